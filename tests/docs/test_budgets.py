"""Pages show no more than a reader can take in: boxes of code and output, their size, captions, a recap at the end.

The rules read the HTML of the built site, so that they see what readers see: what lies in a closed fold is not counted.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from bs4.element import Tag

from proofread.pages.page import find_pages

DOCS = Path(__file__).parents[2] / "docs"

# What a page of each track may show at most. A measure that is not named here is not asked for there.
EVERY = {"columns": 78, "addresses": 0, "figures without a caption": 0}
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

# What mends a page that has more of something than its budget allows.
REMEDIES = {
    "boxes": "show less code and fewer outputs, or put what few readers need into a closed fold",
    "lines": "part the cell, print less, or put it into a closed fold",
    "columns": "break lines of code and of output after 78 characters; `ruff format docs` breaks code",
    "addresses": "an object that no reader can use is shown; let the last line end in a name, `_ = plt.plot(...)`",
    "figures without a caption": "give the cell that draws it one, `#| caption: ...`, which gets its number by itself",
    "code above the first figure": "tag its cell hide-input, or draw a figure above it",
    "no Recap": "end the page with ## Recap, ## Exercises and ## What to read next",
    "no Exercises": "end the page with ## Recap, ## Exercises and ## What to read next",
    "no What to read next": "end the page with ## Recap, ## Exercises and ## What to read next",
}
# Pages that exceed their budget so far, and by how much at most. They may get better, and never worse; who meets the
# budget has to leave.
EXCEPTIONS: dict[str, dict[str, int]] = {
    "doctor": {"columns": 153},
    "learn/generating": {"lines": 73},  # it ends with a whole language model
    "museum/weights": {"columns": 95},
    "proofread/elsewhere": {"columns": 98},
    "pytorch/masks": {"columns": 159},
    "pytorch/models_2026": {"lines": 39},  # a layer stands in one piece, to be compared with another's
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
    "reference/tiles": {"columns": 97},
    "reference/trace": {"columns": 110},
    "reference/watching": {"columns": 91},
}


FIGURE = "figure:not(.overview), :is(img.figure:not(.only-dark), .tensors):not(figure *, .tensors *)"
CODE_SHOWN = "pre:not(.jp-OutputArea-output pre)"


def has_caption(figure: Tag) -> bool:
    """Whether a figure has a numbered caption."""
    caption = figure.select_one("figcaption")
    return caption is not None and re.match(r"Figure \d+\. \S", caption.get_text().strip()) is not None


def measured(html: str) -> dict[str, int]:
    """The measures of a page's HTML, of all that budgets name."""
    article = BeautifulSoup(html.replace("<br>", "\n"), "html.parser").select_one("article.md-content__inner")
    assert article
    for fold in article.select("details:not([open])"):
        fold.decompose()
    boxes = [pre.get_text().strip("\n").split("\n") for pre in article.select("pre")]
    tables = [output for output in article.select(".jp-RenderedHTML") if not output.select(FIGURE)]
    first = article.select_one(f"{CODE_SHOWN}, {FIGURE}")
    headings = [heading.get_text().strip("¶ \n") for heading in article.select("h2")]
    wanted = ("Recap", "Exercises", "What to read next")
    return {
        "boxes": len(boxes) + len(tables),
        "lines": max(map(len, boxes), default=0),
        "columns": max((len(line) for lines in boxes for line in lines), default=0),
        "addresses": sum(" at 0x" in line for lines in boxes for line in lines),
        "figures without a caption": len([each for each in article.select(FIGURE) if not has_caption(each)]),
        "code above the first figure": int(first is None or first.name == "pre"),
        **{f"no {title}": int(title not in headings) for title in wanted},
    }


def widest_of(html: str) -> str:
    """The widest line of code or output that a page shows."""
    boxes = BeautifulSoup(html.replace("<br>", "\n"), "html.parser").select("article pre:not(details:not([open]) pre)")
    return max((line for pre in boxes for line in pre.get_text().split("\n")), key=len)


def excess(html: str, budget: dict[str, int]) -> dict[str, int]:
    """What a page has more of than its budget allows."""
    return {what: number for what, number in measured(html).items() if number > budget.get(what, number)}


PAGES = [path.relative_to(DOCS).with_suffix("").as_posix() for path in find_pages([DOCS])]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_keeps_to_its_budget(site: Path, page: str) -> None:
    allowed = EXCEPTIONS.get(page, {})
    html = (site / page.removesuffix("index") / "index.html").read_text(encoding="utf-8")
    over = excess(html, BUDGETS.get(page.split("/")[0], EVERY))
    more = {what: number for what, number in over.items() if number > allowed.get(what, 0)}
    told = [f"{what}, {number}: {REMEDIES[what]}" for what, number in more.items()]
    widest = f"; the widest line is {widest_of(html)!r}" if "columns" in more else ""
    assert more == {}, "; ".join(told) + widest
    assert allowed.keys() <= over.keys(), f"{page} keeps to these budgets now: take them out of EXCEPTIONS"


def test_exceptions_are_pages() -> None:
    assert EXCEPTIONS.keys() - {*PAGES} == set(), (
        "EXCEPTIONS names what is no page: rename it here, too, or take it out"
    )


def test_every_measure_has_a_remedy() -> None:
    assert REMEDIES.keys() == measured(page()).keys()


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
    assert excess(page(OUTPUT.replace("tensor(", "&lt;matplotlib.legend.Legend at 0x7fb6fb405710&gt;")), EVERY) == {
        "addresses": 1
    }
    assert excess(page(captioned(GRID), END, CODE * 12), LEARN) == {}
    assert excess(page(captioned(GRID), END, CODE * 13, wide), LEARN) == {"boxes": 14, "columns": 79}
    assert widest_of(page(CODE, f"<details>{wide.replace('x', 'y')}{wide}</details>", wide)).startswith("x")
    assert excess(page(f"<pre>{'x<br>' * 12}x</pre>"), EVERY | {"lines": 12}) == {"lines": 13}
