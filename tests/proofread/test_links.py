"""A link and the heading that it leads to speak of the same, or the author says why not."""

from pathlib import Path

import pytest

from proofread.checks.findings import Finding

from .conftest import Project

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

# %%
# ## No heading of `scores`
x = 1
"""


def found(root: Path, text: str) -> list[Finding]:
    project = Project(root)
    project.write("more/02_other.py", OTHER)
    (root / "broken.md").write_bytes(b"# \xff")
    return project.proofread(f"# Weights\n\n## Off for a while\n\n{text}\n", "page.md").findings


@pytest.mark.parametrize(
    "text",
    [
        "[a masked row](more/02_other.py)",
        "[how it divides](more/02_other.py#dividing-every-row)",
        "[it hints at this](more/02_other.py#hint), [where it ends](#the-end)",
        "[a hint](more/02_other.py#hint)",
        "[`is_causal`](more/02_other.py#hint)",
        "[backwards, `a.is_causal`](more/02_other.py#hint)",
        "[the other page](more/02_other.py)",
        "[While](#off-for-a-while), [a while](#off-for-a-while 'title')",
        "[`module.Class`](reference.md#module.Class), [broken](broken.md)",
        "[what is missing](nowhere.md#anchor), [gone](more/02_other.py#nowhere)",
        "[(1.1)](more/02_other.py#eq-1.1)<!--~ number -->, [here](https://example.org/a.md), ![alt](picture.md)",
        "`[how](more/02_other.py)` and <!-- [how](more/02_other.py) -->",
        "```\n[how](more/02_other.py)\n```",
        "[how](more/02_other.py)<!--~ link: what stands there is how it is done -->",
    ],
)
def test_a_link_that_speaks_of_its_heading_passes(tmp_path: Path, text: str) -> None:
    assert [finding for finding in found(tmp_path, text) if finding.kind in ("link", "waiver")] == []


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
