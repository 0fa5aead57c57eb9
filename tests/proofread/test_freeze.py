"""What is frozen is run by `proofread freeze` alone; its results are a file of the project, which tells its code."""

import json
import time
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from proofread.checks.checked import Report
from proofread.cli import main
from proofread.publish.export import export

from .conftest import Command, Project

COUNT = "with open('ran', 'a') as file:\n    file.write('x')\n"
PAGE = f"""\
---
proofread: freeze
---
# Rows

There are 3<!--= rows --> rows, 0.50<!--= share --> of {{{{ rows }}}}.

```python
{COUNT}rows, share = 3, 0.5
print(rows)


def total(a, b):
    return a + b
```

$$t = a + b$$
<!-- where: a, b = 2.5, 1.5; t = total(a, b) -->
"""
CELL = f"""\
# %%
question = "why"

# %%
#| freeze
{COUNT}import math
answer, found = 42, [(1.5, "a"), {{"b": None}}]
found.append(True)
client = object()
answer

# %%
answer + 1

# %% [markdown]
# It is 42<!--= answer -->, of 3<!--= len(found) -->.
"""


class Frozen(Project):
    """A project whose pages are in docs, and note there each run of a cell that is frozen."""

    def page(self, text: str, name: str = "page.md") -> None:
        self.write(f"docs/{name}", text)

    def frozen(self, text: str, name: str = "page.md") -> None:
        """Write a page, and freeze what is to be frozen."""
        self.page(text, name)
        assert main(["freeze"]) == 0

    def checked(self, name: str = "page.md", **options: object) -> Report:
        return self.check(f"docs/{name}", **options)

    def said(self, name: str = "page.md") -> list[str]:
        return [str(finding) for finding in self.checked(name).findings]

    @property
    def runs(self) -> int:
        return len(self.read("ran")) if (self.root / "ran").exists() else 0

    def file(self, name: str = "page.md") -> Path:
        return self.root / "frozen/docs" / f"{name}.json"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Frozen:
    monkeypatch.chdir(tmp_path)
    project = Frozen(tmp_path)
    project.write("pyproject.toml", '[tool.proofread]\npages = ["docs"]\n')
    return project


def test_a_frozen_page_is_run_once_and_held_against_what_it_gave_then(project: Frozen, command: Command) -> None:
    project.page(PAGE)
    assert project.said() == [
        "docs/page.md:1: the page is frozen, and it has no results yet; "
        "run it where that can be done, proofread freeze docs/page.md"
    ]
    assert project.runs == 0
    assert command("freeze")[:2] == (0, "frozen/docs/page.md.json: written\n")
    code, _, err = command("check", "docs", "--no-cache")
    assert code == 0
    assert err.endswith(
        "1 page checked; 0 of them run now, 1 frozen; cells: 1 ran; figures: 3 held; formulas: 1 held; "
        "1 of 2 sentences with none of these; 0 findings\n"
    )
    (checked,) = project.checked(programs=True, keep=False).pages
    assert checked.of_cell(0)[0].startswith("---\nproofread: freeze\n---\n# Rows\n\nThere are 3 rows, 0.50 of 3.")
    assert checked.outputs(1)[0]["text"] == "3\n"
    assert not checked.snippets
    assert project.runs == 1
    project.page(PAGE.replace("There are 3", "There were 4").replace("print(rows)", "print( rows )  # all"))
    assert project.said() == ["docs/page.md:6: it says 4, but rows gives 3"]
    assert main(["fix", "docs"]) == 0
    assert "There were 3" in (project.root / "docs/page.md").read_text()
    assert project.runs == 1


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("rows, share = 3, 0.5", "rows, share = 3, 0.6", "code cell 2"),
        ("<!--= share -->", "<!--= share / 1 -->", "what cell 1 says"),
        ("a, b = 2.5, 1.5", "a, b = 2.5, 1.75", "what cell 3 says"),
        ("```python\nwith", "```python\nx = 1\n```\n\n```python\nwith", "code cell 2"),
        ("```python", "```py", "what cell 1 says"),
    ],
)
def test_a_frozen_page_whose_code_changed_is_stale(project: Frozen, old: str, new: str, changed: str) -> None:
    project.frozen(PAGE)
    project.page(PAGE.replace(old, new))
    (said,) = project.said()
    assert said.startswith(f"docs/page.md:1: the page is frozen, and {changed} has changed since; run it where")
    assert project.runs == 1


def test_what_is_stale_is_run_anew_and_what_is_named_in_any_case(project: Frozen, command: Command) -> None:
    project.page(PAGE)
    project.page(PAGE, "other.md")
    project.frozen("# Plain\n", "plain.md")
    assert project.runs == 2
    project.page(PAGE.replace("rows, share = 3,", "rows, share = 4,"), "other.md")
    code, out, _ = command("freeze")
    assert code == 1
    assert out.splitlines()[:2] == [
        "frozen/docs/other.md.json: written",
        "docs/other.md:6: it says 3, but rows gives 4",
    ]
    assert project.runs == 3
    assert command("freeze") == (0, "", "nothing that is frozen is stale\n")
    assert command("freeze", "docs/page.md")[0] == 0
    assert project.runs == 4
    code, _, err = command("freeze", "docs/plain.md")
    assert code == 0
    assert err.endswith("nothing is frozen there\n")


def test_a_run_that_fails_leaves_what_was_kept(project: Frozen) -> None:
    project.frozen(PAGE)
    before = project.file().read_bytes()
    project.page(PAGE.replace("print(rows)", "1 / 0"))
    assert main(["freeze"]) == 1
    assert project.file().read_bytes() == before
    project.page(PAGE)
    assert project.said() == []


@pytest.mark.parametrize("damage", ["{", "[]", "<<<<<<< HEAD\n", '{"steps": [], "run": {}}', "value"])
def test_results_that_were_changed_by_hand_are_none(project: Frozen, damage: str) -> None:
    project.frozen(PAGE)
    file = project.file()
    file.write_text(file.read_text().replace("0.5", "0.6") if damage == "value" else damage)
    (said,) = project.said()
    assert "the page is frozen, and frozen/docs/page.md.json is not what was written there; run it" in said
    assert main(["freeze"]) == 0
    assert project.said() == []


def test_other_line_ends_do_no_harm(project: Frozen) -> None:
    project.frozen(PAGE)
    project.file().write_bytes(project.file().read_bytes().replace(b"\n", b"\r\n"))
    (project.root / "docs/page.md").write_bytes(PAGE.replace("\n", "\r\n").encode())
    assert project.said() == []


def test_a_frozen_cell_gives_the_cells_after_it_what_it_found(project: Frozen) -> None:
    project.page(CELL, "page.py")
    assert project.said("page.py") == [
        "docs/page.py:5: cell 2 is frozen, and it has no results yet; "
        "run it where that can be done, proofread freeze docs/page.py"
    ]
    assert main(["freeze"]) == 0
    assert project.runs == 1
    report = project.checked("page.py", programs=True)
    assert report.findings == []
    (checked,) = report.pages
    assert project.runs == 1
    assert checked.outputs(1)[0]["data"] == {"text/plain": "42"}
    assert checked.outputs(2)[0]["data"] == {"text/plain": "43"}
    assert "answer = 42" in checked.snippets[2].text
    assert 1 not in checked.snippets
    assert checked.note(1).startswith("As of 2")
    assert "cells: 2 ran, 1 frozen; figures: 2 held" in str(report)
    names = next(iter(json.loads(project.file("page.py").read_text())["cells"].values()))["names"]
    assert names == {"answer": "42", "found": "[(1.5, 'a'), {'b': None}, True]"}


@pytest.mark.parametrize(
    ("old", "new", "is_stale"),
    [
        ("answer, found = 42,", "answer, found = 41,", True),
        ('question = "why"', 'question = "how"', True),
        ("#| freeze", "#| timeout: 3\n#| freeze\n# said otherwise", False),
        ("answer + 1", "answer + 2", False),
        ("# %%\nanswer + 1", "# %% [markdown]\n# Now:\n\n# %%\nanswer + 1", False),
        ("# %%\nquestion", "# %% [markdown]\n# First:\n\n# %%\nquestion", False),
    ],
)
def test_a_frozen_cell_is_stale_by_its_code_and_that_above_it(
    project: Frozen, old: str, new: str, is_stale: bool
) -> None:
    project.frozen(CELL, "page.py")
    project.page(CELL.replace(old, new), "page.py")
    said = project.said("page.py")
    assert ["is frozen, and its code, or code above it, has changed since" in each for each in said] == [
        True
    ] * is_stale
    assert project.runs == 1


def test_of_two_frozen_cells_the_stale_one_is_run(project: Frozen) -> None:
    two = CELL + f"\n# %%\n#| freeze\n{COUNT}last = answer\n"
    project.frozen(two, "page.py")
    assert project.runs == 2
    project.frozen(two.replace("last = answer", "last = answer + 1"), "page.py")
    assert project.runs == 3
    assert project.said("page.py") == []
    assert main(["freeze", "docs"]) == 0
    assert project.runs == 5


def test_what_no_literal_can_keep_is_told_where_it_is_missed(project: Frozen) -> None:
    project.frozen(f"{CELL}\n# %%\nclient\n", "page.py")
    (said,) = project.said("page.py")
    assert said.startswith(
        "docs/page.py:21: cell 5 failed with NameError: name 'client' is not defined; cell 2, which is frozen and "
        "keeps no more than literals, would define it: freeze or skip what needs it, too"
    )


def test_a_frozen_failure_is_shown_as_it_was(project: Frozen) -> None:
    project.frozen("# %%\n#| freeze\n#| raises: ZeroDivisionError\n1 / 0\n", "page.py")
    report = project.checked("page.py")
    assert report.findings == []
    assert report.pages[0].outputs(0)[0]["ename"] == "ZeroDivisionError"


def test_a_skipped_cell_never_runs_and_says_why(project: Frozen) -> None:
    project.page(f"# %%\n#| skip: it takes an hour\n{COUNT}model = 1\n\n# %%\nmodel\n", "page.py")
    (said,) = project.said("page.py")
    assert "cell 1, which is skipped, would define it" in said
    project.page(f"# %%\n#| skip: it takes an hour\n{COUNT}model = 1\n\n# %%\n2\n", "page.py")
    report = project.checked("page.py", programs=True)
    assert report.findings == []
    assert report.pages[0].note(0) == "Not run: it takes an hour"
    assert "cells: 1 ran, 1 skipped;" in str(report)
    assert project.runs == 0


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("skip", "skip needs a reason, which the page tells: `#| skip: it takes an hour`"),
        ("freeze: never", "freeze (never) must stand alone: `#| freeze`; leave it out where the cell is to run"),
    ],
)
def test_an_option_that_cannot_be_meant_is_told(project: Frozen, option: str, message: str) -> None:
    project.page(f"# %%\n#| {option}\n1\n", "page.py")
    main(["freeze"])
    assert message in "".join(project.said("page.py"))


def test_a_site_and_an_export_show_of_when_results_are(project: Frozen) -> None:
    project.page(CELL.replace("# %%\nanswer + 1", "# %%\n#| skip: no time\nanswer + 1"), "page.py")
    project.page(PAGE)
    project.frozen("# Plain\n\n```python\n#| skip: no shell\nx = 1\n```\n", "plain.md")
    (project.root / "mkdocs.yml").write_text(
        "site_name: Site\nnav: [{Rows: page.md}, {Plain: plain.md}]\ntheme: readthedocs\n"
        "plugins: [proofread, {mkdocs-jupyter: {execute: false, cache: false, ignore: ['*.md']}}]\n"
    )
    (project.root / "docs/page.py").rename(project.root / "docs/cell.py")
    project.file("page.py").rename(project.file("cell.py"))
    build(load_config(str(project.root / "mkdocs.yml")))
    day = project.checked().pages[0].began
    stamp = time.strftime("%Y-%m-%d", time.gmtime(day))
    assert f'As of <time datetime="{stamp}">' in (project.root / "site/page/index.html").read_text()
    html = (project.root / "site/cell/index.html").read_text()
    assert f'<p class="proofread-note" data-search-exclude="true">As of {stamp}</p>' in html
    assert ">Not run: no time</p>" in html
    plain = (project.root / "site/plain/index.html").read_text()
    assert ">Not run: no shell</p>" in plain
    assert "#| skip" not in plain
    assert export(project.root / "docs", project.root / "plain", root=project.root).findings == []
    assert f"*As of {stamp}*" in (project.root / "plain/cell.md").read_text()
    assert "*Not run: no shell*" in (project.root / "plain/plain.md").read_text()


def test_what_is_off_or_runs_nothing_has_nothing_to_freeze(project: Frozen) -> None:
    for said in ("off, freeze", "freeze"):
        project.page(f"---\nproofread: {said}\n---\n# Rows\n\n```py\n1 / 0\n```\n")
        assert main(["freeze", "docs"]) == 0
        assert project.said() == []
    assert not project.file().exists()


def test_a_page_that_is_only_run_is_frozen_too(project: Frozen) -> None:
    project.frozen(PAGE.replace("proofread: freeze", "proofread: run, freeze").replace("There are 3", "There are 9"))
    (checked,) = project.checked().pages
    assert checked.findings == []
    assert "There are 9 rows, 0.50 of 3." in checked.texts[0].published
    assert project.runs == 1


def test_code_of_ipython_is_frozen_as_any_other(project: Frozen) -> None:
    project.page(f"# %%\n#| freeze\n%precision 3\n{COUNT}x = 1\n\n# %%\nx\n", "magic.py")
    assert main(["freeze"]) == 0
    assert project.said("magic.py") == []
    assert project.runs == 1


def test_the_command_that_runs_pages_tells_what_is_stale(project: Frozen, command: Command) -> None:
    project.page(PAGE)
    code, _, err = command("run", "docs")
    assert code == 1
    assert "the page is frozen, and it has no results yet" in err


def test_only_what_a_literal_gives_again_is_kept(project: Frozen) -> None:
    code = """
import collections, enum
class Odd:
    @property
    def shape(self):
        raise RuntimeError
class Color(enum.IntEnum):
    RED = 1
one, pair, part, text = 1, (1, 2.5), {3}, "it's\\n"
odd, color, endless, counts, long = Odd(), Color.RED, float("inf"), collections.Counter("a"), "a" * 20_000
"""
    project.frozen(f"# %%\n#| freeze{code}\n# %%\n[one, pair, part, text]\n", "page.py")
    (kept,) = json.loads(project.file("page.py").read_text())["cells"].values()
    assert kept["names"] == {"one": "1", "pair": "(1, 2.5)", "part": "{3}", "text": '"it\'s\\n"'}
    report = project.checked("page.py")
    assert report.findings == []
    assert report.pages[0].outputs(1)[0]["data"]["text/plain"] == '[1, (1, 2.5), {3}, "it\'s\\n"]'


@pytest.mark.parametrize("removed", ["page.md", "other.md"])
def test_a_page_that_is_removed_meanwhile_is_a_finding(project: Frozen, command: Command, removed: str) -> None:
    project.page("# Other\n", "other.md")
    code = f"import os\n\nos.remove('docs/{removed}')"
    project.page(f"---\nproofread: freeze\n---\n# Page\n\n```python\n{code}\n```\n")
    code, out, _ = command("freeze")
    assert code == 1
    assert "page.md.json: written" in out
    assert f"docs/{removed}:1: the page was removed while this ran; name pages that stay, or put it back" in out
