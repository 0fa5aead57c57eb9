"""An honest project, and one lie at a time: each is caught, on its line, by a message of its own."""

import logging
import shutil
import textwrap
from pathlib import Path

import pytest
from mkdocs.commands.build import build as build_site
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from proofread.checks.check import check
from proofread.checks.checked import Report
from proofread.pages.page import find_pages
from proofread.settings import Settings

PAGE = r"""
# %% [markdown]
# # A step of 3<!--= len(walk) --> walks
#
# The mean is 2.50<!--= mean -->, larger than the first, and `[1.0, 2.5, 4.0]`<!--= walk -->
# is all[^all] of it. See [the 3 plain walks](plain.md)<!--~ a title --> and [where it ends](#the-end).
#
# !!! note "Of 3<!--= len(walk) --> walks"
#
#     The last is at 4.0<!--= walk[-1] -->.
#
# | walk | at |
# |------|----|
# | last | 4.0<!--= walk[-1] --> |
#
# - The spread is 60%<!--= (walk[-1] - mean) / mean --> of the mean.
#
# [^all]: That makes 3<!--= len(walk) -->.

# %%
import torch

from walks import center, gram, softmax

walk = torch.tensor([1.0, 2.5, 4.0])
mean = walk.mean()
print(center(walk))

# %%
#| alt: a line from 1.0<!--= walk[0] --> to 4.0<!--= walk[-1] -->
import matplotlib.pyplot as plt

plt.plot(walk);

# %%
torch.manual_seed(7)
noise = torch.randn(3)
print(f"{(walk + noise).mean():.3f}")

# %% [markdown]
# ## The end
#
# $$G_{ij} = \sum_{k=1}^{d} \frac{X_{ik} Y_{jk}}{\sqrt{d}} \tag{1.1}$$
# <!-- where: X, Y = random("n d", "m d"); G = gram(X, Y) -->
#
# $$G = \frac{X Y^\top}{\sqrt{d}} \tag{1.2}$$
# <!-- where: X, Y = random("n d", "m d"); G = gram(X, Y) -->
#
# $$\sigma(x)_i = \frac{e^{x_i}}{\sum_{j=1}^{n} e^{x_j}} \tag{1.3}$$
# <!-- where: x = random("n"); sigma = softmax -->
#
# By (1.3)<!--~ an equation -->, no weight is *negative*.

# %% tags=["claims"]
assert mean > walk[0], "larger than the first"
assert (softmax(walk) > 0).all(), "no weight is negative"
"""
PLAIN = """
# Plain

```python
from walks import center

moved = center([1.0, 3.0])
```

Its end is 1.0<!--= moved[-1] -->, as [how it ends](page.py#the-end) says.
"""
PACKAGE = r'''
"""Walks."""


def center(walk):
    """Take the mean away."""
    mean = sum(walk) / len(walk)
    return [round(float(x - mean), 3) for x in walk]


def gram(x, y):
    r"""The products of all pairs.

    Equation:
        $G = \frac{X Y^\top}{\sqrt{d}}$ (1.2)
    """
    return x @ y.T / x.shape[-1] ** 0.5


def softmax(x):
    """Equation: (1.3)"""
    return x.softmax(-1)
'''


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("honest")
    (root / "docs").mkdir()
    (root / "docs/page.py").write_text(PAGE.lstrip())
    (root / "docs/plain.md").write_text(PLAIN.lstrip())
    (root / "walks.py").write_text(PACKAGE.lstrip())
    (root / "mkdocs.yml").write_text(
        textwrap.dedent("""\
            site_name: Walks
            nav: [plain.md, page.py]
            plugins:
              - mkdocs-jupyter: {execute: false, include: ["*.py"]}
              - proofread
            markdown_extensions: [admonition, footnotes, tables]
            validation: {links: {anchors: warn}}
            """)
    )
    return root


class Project:
    def __init__(self, root: Path):
        self.root = root

    def edit(self, name: str, old: str, new: str) -> None:
        file = self.root / name
        assert old in file.read_text(), f"{old} is nowhere in {name}"
        file.write_text(file.read_text().replace(old, new, 1))

    def check(self, **options: object) -> Report:
        settings = Settings(packages=("walks",))
        pages = find_pages([self.root / "docs"])
        options = {"keep": False, "programs": True, **options}
        return check(pages, root=self.root, settings=settings, whole=True, **options)  # type: ignore[arg-type]

    def found(self, **options: object) -> list[str]:
        return [str(finding).split("\n")[0] for finding in self.check(**options).findings]


@pytest.fixture
def project(honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    root = tmp_path / "walks"
    shutil.copytree(honest, root)
    monkeypatch.syspath_prepend(str(root))
    return Project(root)


def build(root: Path, caplog: pytest.LogCaptureFixture) -> str:
    """What a strict build of the site complains of."""
    config = load_config(str(root / "mkdocs.yml"), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    aborted = False
    with caplog.at_level(logging.WARNING):
        try:
            build_site(config)
        except Abort:
            aborted = True
    complaints = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert aborted == bool(complaints), caplog.text
    return "\n".join(complaints)


def test_the_honest_project_is_clean(project: Project) -> None:
    assert project.found(mutants=True) == []


# What is said, what it becomes, and what is told; {line} is the line of the page that the lie stands on.
PROSE = {
    "sentence": ("mean is 2.50", "mean is 2.51", "it says 2.51, but mean gives 2.50"),
    "heading": ("step of 3", "step of 4", "it says 4, but len(walk) gives 3"),
    "code span": ("`[1.0, 2.5, 4.0]`", "`[1.0, 2.5, 5.0]`", "it says [1.0, 2.5, 5.0], but walk gives [1.0, 2.5, 4.0]"),
    "admonition's title": ("Of 3", "Of 2", "it says 2, but len(walk) gives 3"),
    "admonition": ("last is at 4.0", "last is at 4.5", "it says 4.5, but walk[-1] gives 4.0"),
    "table": ("| last | 4.0", "| last | 3.0", "it says 3.0, but walk[-1] gives 4.0"),
    "list": ("spread is 60%", "spread is 61%", "it says 61%, but (walk[-1] - mean) / mean gives 60%"),
    "footnote": ("makes 3", "makes 13", "it says 13, but len(walk) gives 3"),
    "caption": ("from 1.0", "from 1.5", "it says 1.5, but walk[0] gives 1.0"),
    "condition turned round": ("mean > walk", "mean < walk", "does not hold: mean < walk[0] is false, where mean is"),
    "claim turned round": ('"larger than', '"smaller than', '"smaller than the first" is not on the page; it says'),
    "claim that proves nothing": ("assert mean > walk[0]", "assert 2 > 1", "2 > 1 takes nothing from the page"),
    "figure nobody proves": ("than the first,", "than the first 1.5,", "nothing proves the figure 1.5: assert it"),
    "figure nobody proves, in code": ("`[1.0, 2.5, 4.0]`<!--= walk -->", "`1.75`", "nothing proves the figure `1.75`"),
    "waiver of nothing": (
        "it ends](#the-end)",
        "it ends](#the-end)<!--~ a date -->",
        "the waiver (a date) covers no figure",
    ),
    "thing compared with itself": ("mean > walk[0],", "mean >= mean,", "mean >= mean compares mean with itself"),
    "product with zero": ("mean > walk[0],", "(walk * 0 == 0).all(),", "walk * 0 is zero"),
    "never negative": ("mean > walk[0],", "abs(mean) >= 0,", "abs(mean) >= 0 takes nothing from"),
    "length of what is written": (
        "makes 3<!--= len(walk)",
        "makes 3<!--= len((1, walk, 2))",
        "counts what is written",
    ),
    "bound turned round": (
        "mean is 2.50<!--= mean -->",
        "mean is under 2.25<!--= mean -->",
        "it says 2.25, but mean gives 2.50",
    ),
    "whole number for a share": ("spread is 60%", "spread is 1", "it says 1, but (walk[-1] - mean) / mean gives 0.6"),
    "fraction": ("spread is 60%", "spread is half", "it says half, but (walk[-1] - mean) / mean gives 0.6"),
    "unit": ("last is at 4.0", "last is at 4.0 GiB", "it says 4.0 GiB, but walk[-1] gives 0.0 GiB"),
    "claim of any figure": ("2.50<!--= mean -->", "2.50<!--= mean > 0 -->", "mean > 0 compares, and would stand there"),
    "unknown name": ("2.50<!--= mean -->", "2.50<!--= avg -->", "2.50 cannot be checked: avg fails with NameError"),
    "broken TeX": (r"\frac{X Y^\top}{\sqrt{d}}", r"\frac{X Y^\top}{\sqrt{d}", "cannot read `G = "),
}


@pytest.mark.parametrize("place", PROSE)
def test_a_lie_in_the_prose_is_caught_where_it_stands(project: Project, place: str) -> None:
    old, new, message = PROSE[place]
    line = PAGE.lstrip()[: PAGE.lstrip().index(old)].count("\n") + 1
    project.edit("docs/page.py", old, new)
    found = project.found()
    assert any(f.startswith(f"docs/page.py:{line}: ") and message in f for f in found), found
    # What the package states of the equation is another one then, too.
    assert place == "broken TeX" or len(found) == 1, found


CODE = {
    "a cell that fails": ("plt.plot(walk);", "plt.plt(walk);", "cell 3 failed with AttributeError"),
    "a figure without its text": (
        "#| alt: a line from 1.0",
        "# a line from 1.0",
        "cell 3 draws 1 figure but has 0 alt",
    ),
    "an unknown option": ("#| alt:", "#| heading: x\n#| alt:", "`#| heading:` is no option; there are alt"),
    "an unseeded draw": ("torch.manual_seed(7)\n", "", "cell 4 draws from torch's global random generator without"),
    "a program that lacks an import": (
        "walk = torch.tensor",
        "get_ipython().user_ns['np'] = torch\nwalk = np.tensor",
        "cell 2: alone, its program does not run: NameError: name 'get_ipython' is not defined",
    ),
}


@pytest.mark.parametrize("lie", CODE)
def test_a_lie_in_the_code_is_caught(project: Project, lie: str) -> None:
    old, new, message = CODE[lie]
    project.edit("docs/page.py", old, new)
    found = project.found()
    assert any(f.startswith("docs/page.py:") and message in f for f in found), found


FORMULAS = [
    (r"G_{ij} = \sum", r"G_{ij} = -\sum"),
    (r"X_{ik} Y_{jk}", r"X_{ik} Y_{ik}"),
    (r"X_{ik} Y_{jk}", r"X_{ik} Y_{kj}"),
    (r"X_{ik} Y_{jk}", r"Y_{ik} X_{jk}"),
    (r"X_{ik} Y_{jk}", r"X_{ik} + Y_{jk}"),
    (r"\sum_{k=1}^{d}", r"\sum_{k=2}^{d}"),
    (r"{\sqrt{d}} \tag{1.1}", r"{d} \tag{1.1}"),
    (r"G = \frac{X Y^\top}", r"G = \frac{X^\top Y}"),
    (r"G = \frac{X Y^\top}", r"G = \frac{Y X^\top}"),
    (r"G = \frac{X Y^\top}{\sqrt{d}}", r"G = X Y^\top"),
    (r"G = \frac{X Y^\top}{\sqrt{d}}", r"G = \frac{X Y^\top}{\sqrt{n}}"),
    (r"\frac{e^{x_i}}", r"\frac{e^{-x_i}}"),
    (r"\frac{e^{x_i}}", r"\frac{e^{x_j}}"),
    (r"\sum_{j=1}^{n} e^{x_j}", r"\sum_{j=1}^{n} e^{x_i}"),
    (r"\sum_{j=1}^{n} e^{x_j}", r"\sum_{j=1}^{n} x_j"),
]


@pytest.mark.parametrize(("true", "false"), FORMULAS)
def test_a_formula_that_is_changed_no_longer_holds(project: Project, true: str, false: str) -> None:
    project.edit("docs/page.py", true, false)
    findings = [finding for finding in project.check().findings if finding.kind == "formula"]
    line = PAGE.lstrip()[: PAGE.lstrip().index(true)].count("\n") + 1
    assert [finding.line for finding in findings] == [line]


def test_equations_and_docstrings_that_differ_are_named(project: Project) -> None:
    project.edit("walks.py", r"X Y^\top", r"Y X^\top")
    project.edit("docs/page.py", r"\tag{1.3}", r"\tag{1.1}")
    first, second, third = project.found()
    assert "docs/page.py:" in first
    assert "equation (1.1) is also at docs/page.py:" in first
    assert "walks.py:14: gram states equation (1.2) otherwise than docs/page.py:" in second
    assert "walks.py:20: softmax cites equation (1.3), which no page has" in third


def test_no_output_is_stale(project: Project) -> None:
    assert project.found(keep=True) == []
    project.edit("walks.py", "x - mean", "x - 2 * mean")
    assert project.found(keep=True) == [
        "docs/plain.md:9: it says 1.0, but moved[-1] gives -1.0",
    ]
    (page,) = (page for page in project.check(keep=True).pages if page.page.path == "docs/page.py")
    assert page.outputs(1)[0]["text"] == "[-4.0, -2.5, -1.0]\n"


def test_a_page_that_is_not_utf_8_is_named(project: Project) -> None:
    page = project.root / "docs/plain.md"
    page.write_bytes(page.read_bytes().replace(b"Plain", b"Plain caf\xe9"))
    assert "docs/plain.md:1: byte 0xe9 is not UTF-8; save the page as UTF-8" in project.found()


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("docs/page.py", "(plain.md)", "(plane.md)", "'page.py' contains a link 'plane.md'"),
        ("docs/plain.md", "(page.py#the-end)", "(pages.py)", "'plain.md' contains a link 'pages.py'"),
        ("docs/plain.md", "#the-end", "#an-end", "'page.py#an-end'"),
        ("docs/page.py", "(#the-end)", "(#an-end)", "'#an-end'"),
    ],
)
@pytest.mark.filterwarnings("default")  # a site's own plugins may warn
def test_a_dead_link_ends_a_strict_build(
    project: Project, caplog: pytest.LogCaptureFixture, name: str, old: str, new: str, message: str
) -> None:
    project.edit(name, old, new)
    assert message in build(project.root, caplog)


@pytest.mark.filterwarnings("default")
def test_a_strict_build_of_the_honest_project_has_nothing_to_say(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    assert build(project.root, caplog) == ""
    assert (project.root / "site/page/index.html").exists()
