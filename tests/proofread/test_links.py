"""A link leads to what is there, and the heading that it leads to speaks of the same, or the author says why not."""

from pathlib import Path

import pytest

from proofread.checks.findings import Finding

from .conftest import Command, Project

OTHER = """# %% [markdown]
# # Who may see whom? Masks
#
# ## Dividing *every* row
#
# **Term**{ #word }
#
# ## Rückwärts: `is_causal` {: #hint }
#
# ```
# ## Nothing here
# ```
#
# ::: module

# %%
# ## No heading of `scores`
x = 1
"""


def found(root: Path, text: str) -> list[Finding]:
    project = Project(root)
    project.write("more/02_other.py", OTHER)
    project.write("reference.md", "::: module\n")
    project.write("picture.svg", "<svg/>")
    (root / "broken.md").write_bytes(b"# \xff")
    return project.proofread(f"# Weights\n\n## Off for a while\n\n{text}\n", "page.md").findings


@pytest.mark.parametrize(
    "text",
    [
        "[a masked row](more/02_other.py)",
        "[how it divides](more/02_other.py#dividing-every-row)",
        "[it hints at this](more/02_other.py#hint), [where it ends](#top)",
        "[a hint](more/02_other.py#hint)",
        "[`is_causal`](more/02_other.py#hint)",
        "[backwards, `a.is_causal`](more/02_other.py#hint)",
        "[the other page](more/02_other.py)",
        "[While](#off-for-a-while), [a while](#off-for-a-while 'title')",
        "[`module.Class`](reference.md#module.Class), [broken](broken.md)",
        "[here](https://example.org/a.md), [there](//example.org/a.md), [ours](/a.md), [us](mailto:a@example.org)",
        "![alt](picture.svg), [![every](picture.svg)](more/02_other.py#dividing-every-row), [other][], [a][other]",
        "`[how](more/02_other.py)` and <!-- [how](more/02_other.py) -->",
        "```\n[how](more/02_other.py)\n```",
        "[how](more/02_other.py)<!--~ link: what stands there is how it is done -->",
    ],
)
def test_a_link_that_speaks_of_its_heading_passes(tmp_path: Path, text: str) -> None:
    assert [finding for finding in found(tmp_path, text) if finding.kind in ("link", "dead", "waiver")] == []


@pytest.mark.parametrize(
    ("said", "target", "leads"),
    [
        ("how", "more/02_other.py", "Who may see whom? Masks 02_other"),
        ("a mask", "more/02_other.py#dividing-every-row", "Dividing every row dividing-every-row"),
        ("the scores", "more/02_other.py#hint", "Rückwärts: is_causal hint"),
        ("see *far* on", "#off-for-a-while", "Off for a while off-for-a-while"),
        ("broken<br>\nlink", "more/02_other.py#word", "word"),
        ("a class", "more/02_other.py#module.Thing", "module.Thing"),
    ],
)
def test_a_link_to_another_thing_than_it_says_is_found(tmp_path: Path, said: str, target: str, leads: str) -> None:
    (finding,) = found(tmp_path, f"One.\n\nTwo: [{said}]({target}).")
    assert (finding.kind, finding.line) == ("link", 7)
    assert finding.message == (
        f"the link [{' '.join(said.split())}] and {leads!r}, to which it leads, share no word; name in it what is "
        f"there, or say why not, [{' '.join(said.split())}](...)<!--~ link: reason -->"
    )


def test_a_reason_for_a_link_is_counted_and_covers_no_figure(tmp_path: Path) -> None:
    text = "[page 3](more/02_other.py)<!--~ link: a page of a book -->"
    findings = found(tmp_path, text)
    assert [finding.message.split(":")[0] for finding in findings] == ["nothing proves the figure 3"]


GUIDE = """---
title: Guide
---
Title
=====

## The [*first*](other.md) `part` & more

## Again

Under it
--------

## Again

### As it is { .wide #own-name }

<a id="by-hand"></a>

!!! note

    ## Inside

$$x = 1 \\tag{2.3}$$

::: ohm.laws
"""


def dead(project: Project, text: str, name: str = "docs/page.md") -> list[str]:
    """What is told of the links of a page; of a page in an empty folder, with a few files beside it."""
    project.write("docs/guide.md", GUIDE)
    project.write("docs/other.md", "# Other\n")
    project.write("docs/figures/a line.svg", "<svg/>")
    project.write("docs/open.md", "# Open\n\n--8<-- 'other.md'\n")
    project.write("docs/filled.md", "# All {{ n }}\n")
    report = project.proofread(text, name)
    return [f"{each.place}: {each.message}" for each in report.findings if each.kind == "dead"]


@pytest.mark.parametrize(
    "target",
    [
        *("guide.md#title", "guide.md#the-first-part-more", "guide.md#the-first-part--more", "guide.md#again_1"),
        *("guide.md#again-1", "guide.md#under-it", "guide.md#own-name", "guide.md#by-hand", "guide.md#inside"),
        *(
            "guide.md#eq-2.3",
            "guide.md#ohm.laws.Resistor",
            "open.md#whatever",
            "filled.md#all-3",
            "figures/a%20line.svg",
            "guide.md#top",
        ),
        *("<figures/a line.svg>", "guide.md?x=1#again", "../docs/other.md", "figures/", "guide/", "{{ where }}"),
    ],
)
def test_what_is_there_can_be_led_to(project: Project, target: str) -> None:
    assert dead(project, f'# Page\n\nA [part]({target}), titled [so]({target} "a (b)").\n\n[other]: {target}\n') == []


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("gide.md", "docs/gide.md, which is not there; name guide.md"),
        ("other.py", "docs/other.py, which is not there; name other.md"),
        ("deep/guide.md#again", "docs/deep/guide.md, which is not there; name guide.md"),
        ("../other.md", "other.md, which is not there; name other.md"),
        ("guide.md#agian", "#agian, which docs/guide.md does not have; name #again"),
        ("guide.md#Again", "#Again, which docs/guide.md does not have; name #again"),
        ("guide.md#again_2", "#again_2, which docs/guide.md does not have; name #again_1"),
        ("guide.md#eq-2.4", "#eq-2.4, which docs/guide.md does not have; name #eq-2.3"),
        ("guide.md#ohm.lawless", "#ohm.lawless, which docs/guide.md does not have; name #own-name"),
        ("guide.md#figure-1", "#figure-1, which docs/guide.md does not have; name #again-1"),
        ("#part", "#part, which docs/page.md does not have; name #page"),
    ],
)
def test_a_link_that_leads_nowhere_is_found_with_the_nearest_name(project: Project, target: str, told: str) -> None:
    waived = "or say why not, [part](...)<!--~ link: reason -->"
    found = dead(project, f"# Page\n\nOne.\nA [part]({target}).\n")
    assert found == [f"docs/page.md:4: the link [part] leads to {told}, {waived}"]
    assert dead(project, f"# Page\n\nOne.\nA [part]({target})<!--~ link: another tool writes it -->.\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "![part](gide.md)",
        "[![part](gide.md)](other.md)",
        "[the [x] part](gide.md)",
        "[part]: gide.md",
        "[part](<gide.md>)",
    ],
)
def test_each_form_of_a_link_is_followed(project: Project, text: str) -> None:
    (told,) = dead(project, f"# Page\n\n{text}\n")
    assert "leads to docs/gide.md" in told


@pytest.mark.parametrize("text", ["`[part](gide.md)`", "```\n[part](gide.md)\n```", "\\[part](gide.md)", "$x[i](a.b)$"])
def test_what_only_looks_like_a_link_leads_nowhere(project: Project, text: str) -> None:
    assert dead(project, f"# Page\n\n{text}\n") == []


FIGURE = """# %% [markdown]
# # Page
#
# [Figure 1](#figure-1) and [Figure 2](#figure-2) are there.

# %%
#| caption: A line, as in [the other](othr.md)
#| alt: a line, as in
#|   [the guide](guide.md#agian)
import matplotlib.pyplot as plt

plt.plot([1, 2]);
"""


def test_captions_and_alternative_texts_are_followed(project: Project) -> None:
    told = [each.partition(";")[0] for each in dead(project, FIGURE, "docs/page.py")]
    assert told == [
        "docs/page.py:4: the link [Figure 2] leads to #figure-2, which docs/page.py does not have",
        "docs/page.py:7: the link [the other] leads to docs/othr.md, which is not there",
        "docs/page.py:9: the link [the guide] leads to #agian, which docs/guide.md does not have",
    ]


def test_docstrings_are_followed_from_the_page_that_shows_them(project: Project) -> None:
    project.write("src/ohm/__init__.py", '"""Not shown: [gone](gone.md)."""\n')
    project.write(
        "src/ohm/laws.py",
        '''
        def ohm():
            """Of a wire.

            >>> led[0](a.b)

            See [the guide](guide.md#title) and [its part](gide.md#title).
            """
        ''',
    )
    (told,) = dead(project, "# API\n\n::: ohm.laws.ohm\n", "docs/api.md")
    assert told.startswith(
        "src/ohm/laws.py:6: the link [its part] leads to docs/gide.md, which is not there; name guide"
    )
    assert told.endswith("; docs/api.md shows it")


def test_a_folder_of_markdown_needs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    (tmp_path / "README.md").write_text(
        "# Notes\n\nSee [its second part](second.md#a-part) and [the third](thrd.md).\n"
    )
    (tmp_path / "second.md").write_text("# A part\n\nBack to [my notes](README.md#note).\n")
    (tmp_path / "third.md").write_text("# Third\n\n[Part](second.md#a-part), [more](more.md)<!--~ link: to come -->.\n")
    monkeypatch.chdir(tmp_path)
    code, out, _ = command("check", ".")
    waived = "(...)<!--~ link: reason -->"
    assert code == 1
    assert out.splitlines() == [
        "README.md:3: the link [the third] leads to thrd.md, which is not there; name third.md, or say why not, "
        f"[the third]{waived}",
        "second.md:3: the link [my notes] leads to #note, which README.md does not have; name #notes, or say why not, "
        f"[my notes]{waived}",
    ]


@pytest.mark.parametrize(("mode", "kinds"), [("check", ["dead"]), ("run", []), ("off", [])])
def test_links_of_pages_that_are_checked_alone_are_followed(project: Project, mode: str, kinds: list[str]) -> None:
    report = project.proofread(f"---\nproofread: {mode}\n---\n# Page\n\n[Gone](gone.md).\n", "page.md")
    assert [finding.kind for finding in report.findings] == kinds
