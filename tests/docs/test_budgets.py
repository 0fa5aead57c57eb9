"""Pages show no more than a reader can take in: boxes of code and output, their size, captions, a recap at the end.

The rules read the HTML of the built site, so that they see what readers see: what lies in a closed fold is not counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar

import pytest

from proofread.pages.page import find_pages

DOCS = Path(__file__).parents[2] / "docs"

_CAPTION = re.compile(r"Figure \d+\. \S")

# What a page of each track may show at most. A measure that is not named here is not asked for there.
EVERY = {"columns": 78, "figures without a caption": 0}
LEARN = EVERY | {
    "boxes": 12,
    "lines": 12,
    "code above the first figure": 0,
    "no Recap": 0,
    "no Exercises": 0,
    "no What to read next": 0,
}
BUDGETS = {
    "learn": LEARN,
    "pytorch": EVERY | {"boxes": 20, "lines": 30},
    "doctor": EVERY | {"boxes": 20, "lines": 30},
    "museum": EVERY | {"lines": 30},
}

# Pages that exceed their budget so far, and by how much at most. They may get better, and never worse; who meets the
# budget has to leave.
EXCEPTIONS: dict[str, dict[str, int]] = {
    "contributing/index": {"columns": 79},
    "doctor": {"columns": 153},
    "learn/generating": {"lines": 73},  # it ends with a whole language model
    "museum/weights": {"columns": 95},
    "proofread/elsewhere": {"columns": 98},
    "pytorch/masks": {"columns": 159},
    "pytorch/watching": {"boxes": 21},
    "reference/bypass": {"columns": 112},
    "reference/cache": {"columns": 80},
    "reference/doctor": {"columns": 83},
    "reference/embeddings": {"columns": 109},
    "reference/functional": {"columns": 97},
    "reference/gradients": {"columns": 88},
    "reference/heads": {"columns": 97},
    "reference/kernels": {"columns": 98},
    "reference/latent": {"columns": 96},
    "reference/layouts": {"columns": 99},
    "reference/masks": {"columns": 110},
    "reference/measure": {"columns": 99},
    "reference/parallel": {"columns": 92},
    "reference/plot": {"columns": 111},
    "reference/positions": {"columns": 93},
    "reference/probes": {"columns": 110},
    "reference/teaching": {"columns": 101},
    "reference/testing": {"columns": 82},
    "reference/tiles": {"columns": 97},
    "reference/trace": {"columns": 110},
    "reference/watching": {"columns": 91},
}


@dataclass
class _Open:
    """An element that has not ended yet."""

    tag: str
    folded: bool = False
    names: frozenset[str] = frozenset()
    figures: int = 0  # before it began


@dataclass
class Shown(HTMLParser):
    """What a reader sees of a page: boxes and their lines, figures, headings, in their order.

    Attributes:
        boxes: The visible boxes: "code", "output" or "table", and their lines.
        figures: Whether each figure has a visible, numbered caption.
        headings: The text of each heading of the second level.
        order: The kinds of what is visible, in the order of the page.
    """

    boxes: list[tuple[str, list[str]]] = field(default_factory=list)
    figures: list[bool] = field(default_factory=list)
    headings: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)

    _VOID: ClassVar = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[_Open] = []
        self._pre = self._heading = self._caption = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        names = frozenset((given.get("class") or "").split())
        if self._is_figure(tag, names) and not self._folded and not self._inside("tensors"):
            self.figures.append(False)
            self.order.append("figure")
        if tag in self._VOID:
            if tag == "br":
                self.handle_data("\n")
            return
        folded = tag == "details" and "open" not in given
        self._open.append(_Open(tag, folded, names, len(self.figures)))
        if tag == "pre":
            self._pre = ""
        if tag == "h2":
            self._heading = ""
        if tag == "figcaption":
            self._caption = ""

    def handle_data(self, data: str) -> None:
        self._pre += data
        self._heading += data
        self._caption += data

    def handle_endtag(self, tag: str) -> None:
        if tag not in [each.tag for each in self._open]:
            return
        while (ended := self._open.pop()).tag != tag:
            pass
        if self._folded:
            return
        if tag == "pre":
            kind = "output" if self._inside("jp-OutputArea-output") else "code"
            self.boxes.append((kind, self._pre.strip("\n").split("\n")))
            self.order.append(kind)
        elif tag == "h2":
            self.headings.append(self._heading.strip("¶ \n"))
        elif tag == "figure" and "overview" not in ended.names:  # which says where one is, and has no number
            if ended.figures == len(self.figures):  # of a table, or of what a page draws itself
                self.order.append("figure")
            told = _CAPTION.match(self._caption.strip()) is not None
            self.figures[ended.figures :] = [told] * max(1, len(self.figures) - ended.figures)
            self._caption = ""
        elif "jp-RenderedHTML" in ended.names and ended.figures == len(self.figures):
            self.boxes.append(("table", []))

    @property
    def _folded(self) -> bool:
        return any(each.folded for each in self._open)

    def _inside(self, name: str) -> bool:
        return any(name in each.names for each in self._open)

    @staticmethod
    def _is_figure(tag: str, names: frozenset[str]) -> bool:
        # A figure by day and by night is two files, and one figure.
        return (tag == "img" and "figure" in names and "only-dark" not in names) or "tensors" in names


def measured(html: str) -> dict[str, int]:
    """The measures of a page's HTML, of all that budgets name."""
    _, _, content = html.partition('<article class="md-content__inner')
    shown = Shown()
    shown.feed(content.partition("</article>")[0] or html)
    code = shown.order.index("code") if "code" in shown.order else len(shown.order)
    lines = [lines for _, lines in shown.boxes]
    wanted = ("Recap", "Exercises", "What to read next")
    return {
        "boxes": len(shown.boxes),
        "lines": max(map(len, lines), default=0),
        "columns": max((len(line) for each in lines for line in each), default=0),
        "figures without a caption": shown.figures.count(False),
        "code above the first figure": int("figure" not in shown.order[:code]),
        **{f"no {title}": int(title not in shown.headings) for title in wanted},
    }


def excess(html: str, budget: dict[str, int]) -> dict[str, int]:
    """What a page has more of than its budget allows."""
    return {what: number for what, number in measured(html).items() if number > budget.get(what, number)}


def budget(page: str) -> dict[str, int]:
    return BUDGETS.get(page.split("/")[0], EVERY)


PAGES = [path.relative_to(DOCS).with_suffix("").as_posix() for path in find_pages([DOCS])]


@pytest.fixture(scope="module")
def shown(site: Path) -> dict[str, str]:
    found = {}
    for page in PAGES:
        path = site / page.removesuffix("index") / "index.html"
        found[page] = path.read_text(encoding="utf-8")
    return found


@pytest.mark.parametrize("page", PAGES)
def test_a_page_keeps_to_its_budget(shown: dict[str, str], page: str) -> None:
    allowed = EXCEPTIONS.get(page, {})
    over = excess(shown[page], budget(page))
    assert {what: number for what, number in over.items() if number > allowed.get(what, 0)} == {}
    assert allowed.keys() <= over.keys(), f"{page} keeps to these budgets now: take them out of EXCEPTIONS"


def test_exceptions_are_pages() -> None:
    assert EXCEPTIONS.keys() <= set(PAGES)


def page(*parts: str) -> str:
    return f'<pre>the theme</pre><article class="md-content__inner">{"".join(parts)}</article><pre>the footer</pre>'


CODE = '<div class="highlight"><pre><code>one = 1\n<i class="m">two</i> = 2\n</code></pre></div>'
OUTPUT = '<div class="jp-RenderedText jp-OutputArea-output"><pre>tensor([1.,\n        2.,\n        3.])\n</pre></div>'
TABLE = '<div class="jp-RenderedHTML jp-OutputArea-output"><table><tr><td>1</td></tr></table></div>'
PICTURE = '<img class="figure only-light" src="a.svg"><img class="figure only-dark" src="b.svg">'
GRID = '<div class="tensors"><table class="tensor"></table></div>'
CAPTION = "<figcaption><b>Figure 2.</b> What it tells.</figcaption>"
END = '<h2 id="a">Recap<a>¶</a></h2><h2>Exercises</h2><h2>What to read next</h2>'


def captioned(figure: str, caption: str = CAPTION) -> str:
    return f'<div class="jp-RenderedHTML jp-OutputArea-output"><figure>{figure}{caption}</figure></div>'


def test_code_output_and_tables_are_boxes_and_the_theme_is_none() -> None:
    found = measured(page(CODE, OUTPUT, TABLE))
    assert (found["boxes"], found["lines"], found["columns"]) == (3, 3, len("        3.])"))


@pytest.mark.parametrize("box", [CODE, OUTPUT, TABLE])
def test_what_lies_in_a_closed_fold_is_not_seen(box: str) -> None:
    assert measured(page(f"<details><summary>Solution</summary>{box}</details>"))["boxes"] == 0
    assert measured(page(f"<details open><summary>Solution</summary>{box}</details>"))["boxes"] == 1
    assert measured(page(f"<details><details open>{box}</details>{box}</details>", box))["boxes"] == 1


@pytest.mark.parametrize("drawn", [PICTURE, GRID, "<svg></svg>", "<table><tr><td>1</td></tr></table>"])
def test_a_figure_with_a_caption_is_no_box(drawn: str) -> None:
    found = measured(page(captioned(drawn), CODE))
    assert (found["boxes"], found["figures without a caption"], found["code above the first figure"]) == (1, 0, 0)


@pytest.mark.parametrize("drawn", [PICTURE, GRID, captioned(GRID, ""), captioned(GRID, "<figcaption>A</figcaption>")])
def test_a_figure_without_a_numbered_caption_is_found(drawn: str) -> None:
    wrapped = drawn if "figure>" in drawn else TABLE.replace("<table>", f"{drawn}<table>")
    assert measured(page(captioned(GRID), wrapped))["figures without a caption"] == 1


def test_code_stands_below_the_first_figure() -> None:
    assert measured(page(CODE, captioned(GRID)))["code above the first figure"] == 1
    assert measured(page(f"<details>{CODE}</details>", captioned(GRID), CODE))["code above the first figure"] == 0
    assert measured(page(CODE))["code above the first figure"] == 1
    overview = '<figure class="overview"><svg></svg></figure>'
    assert measured(page(overview, CODE))["code above the first figure"] == 1


def test_the_end_of_a_page_is_asked_for() -> None:
    assert excess(page(captioned(GRID), END), LEARN) == {}
    assert excess(page(captioned(GRID), END.replace("Recap", "In short")), LEARN) == {"no Recap": 1}


def test_what_exceeds_a_budget_is_told_and_no_more() -> None:
    wide = f"<pre>{'x' * 79}</pre>"
    assert excess(page(captioned(GRID), END, CODE * 12), LEARN) == {}
    assert excess(page(captioned(GRID), END, CODE * 13, wide), LEARN) == {"boxes": 14, "columns": 79}
    assert excess(page(f"<pre>{'x<br>' * 12}x</pre>"), EVERY | {"lines": 12}) == {"lines": 13}
