"""A hook of the site: draws the way from a text to the next word, with "you are here", on each page that asks for it.

`<div class="overview" data-here="attention"></div>` stands where the drawing shall be. A part that a page of the
navigation explains leads there. The drawing comes twice, and the style sheet shows the one that fits the screen.
"""

import re
from html import escape
from typing import NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

# Each part: how it is called in its box, in words, and the page that explains it.
PARTS = {
    "text": ("text", "the text", ""),
    "tokens": ("tokens", "tokens", ""),
    "embeddings": ("embeddings", "embeddings", ""),
    "positions": ("positions", "positions", "learn/positions.py"),
    "block": ("block × N", "a block, which comes N times", "learn/block.py"),
    "norm": ("norm", "the norm", "learn/block.py"),
    "attention": ("attention", "attention", "learn/attention.py"),
    "queries": (
        "Q, K, V",
        "queries, keys and values",
        "learn/queries_keys_values.py",
    ),
    "heads": ("heads", "the heads of attention", "learn/heads.py"),
    "masks": ("masks", "the masks of attention", "learn/masks.py"),
    "cache": ("cache", "the cache of keys and values", "learn/generating.py"),
    "cross": ("two texts", "attention between two texts", "learn/cross.py"),
    "residual": ("residual", "the residual stream", "learn/block.py"),
    "mlp": ("MLP", "the MLP", "learn/block.py"),
    "next-word": ("next word", "the next word", "learn/generating.py"),
}
LABEL = (
    "The way of a text through a language model: tokens, embeddings and positions; N blocks, each of attention and an "
    "MLP with norms and a residual stream; the next word."
)
CAPTION = "<figcaption>This page is about the marked box. Most chat models lack the dashed one.</figcaption>"
# Where the boxes stand: left, top, width, height. Frames come before what they hold.
WIDE = {
    "text": (0, 182, 58, 28),
    "tokens": (76, 182, 66, 28),
    "embeddings": (160, 182, 100, 28),
    "positions": (242, 110, 84, 28),
    "block": (340, 1, 326, 238),
    "norm": (350, 78, 50, 28),
    "attention": (414, 30, 138, 124),
    "queries": (420, 60, 60, 26),
    "heads": (486, 60, 60, 26),
    "masks": (420, 90, 60, 26),
    "cache": (486, 90, 60, 26),
    "cross": (420, 120, 126, 26),
    "residual": (428, 206, 72, 26),
    "norm 2": (580, 114, 52, 28),
    "mlp": (580, 66, 52, 28),
    "next-word": (682, 182, 78, 28),
}
NARROW = {
    "text": (0, 22, 60, 28),
    "tokens": (90, 22, 72, 28),
    "embeddings": (192, 22, 148, 28),
    "positions": (192, 66, 96, 28),
    "block": (1, 106, 338, 216),
    "norm": (238, 146, 52, 28),
    "attention": (10, 138, 212, 92),
    "queries": (16, 168, 62, 26),
    "heads": (84, 168, 62, 26),
    "masks": (152, 168, 64, 26),
    "cache": (16, 198, 62, 26),
    "cross": (84, 198, 132, 26),
    "residual": (240, 182, 68, 26),
    "norm 2": (238, 242, 52, 28),
    "mlp": (130, 242, 92, 28),
    "next-word": (244, 344, 96, 28),
}


class Drawing(NamedTuple):
    """One form of the drawing: its boxes, the lines between them, and what else stands there."""

    kind: str
    size: tuple[int, int]
    boxes: dict[str, tuple[int, int, int, int]]
    lines: str
    adds: tuple[tuple[int, int], ...]  # the circles where two add up
    said: tuple[tuple[int, int, str], ...]  # what an example would be at the place: left, bottom, text
    legend: tuple[int, int]


DRAWINGS = (
    Drawing(
        kind="wide",
        size=(760, 240),
        boxes=WIDE,
        lines=(
            "M58 196h17 M142 196h17 M260 196h15 M284 138v49 M294 196H559 M578 196H639 M658 196H681 "
            "M375 196V107 M400 92h13 M552 92h16v95 M606 196V143 M606 114V95 M632 80h16v107"
        ),
        adds=((284, 196), (568, 196), (648, 196)),
        said=((0, 172, "will be"), (76, 172, "will | be"), (722, 172, "eight")),
        legend=(0, 228),
    ),
    Drawing(
        kind="narrow",
        size=(340, 400),
        boxes=NARROW,
        lines=(
            "M60 36h29 M162 36h29 M316 50v21 M288 80h19 M316 90V211 M316 230V289 M316 308V343 M316 160h-25 "
            "M238 160h-15 M222 220h85 M316 256h-25 M238 256h-15 M176 270v28h131"
        ),
        adds=((316, 80), (316, 220), (316, 298)),
        said=((0, 14, "will be"), (90, 14, "will | be"), (208, 363, "eight")),
        legend=(0, 390),
    ),
)

_PLACE = re.compile(
    r'<div\b(?P<told>[^>]*\bclass="overview"[^>]*)>(?P<inside>.*?)</div>',
    re.DOTALL,
)
_HERE = re.compile(r'\bdata-here="(?P<name>[^"]*)"')


def on_nav(nav: Navigation, *, config: MkDocsConfig, files: Files) -> Navigation:
    """Note the addresses of the pages of the navigation: `config.extra["addresses"]`."""
    config.extra["addresses"] = {page.file.src_uri: page.file.url for page in nav.pages}
    return nav


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the drawing where the page asks for it."""
    addresses = {uri: get_relative_url(url, page.url) for uri, url in config.extra["addresses"].items()}
    return placed(html, page.file.src_uri, addresses)


def placed(html: str, uri: str, addresses: dict[str, str]) -> str:
    """A page's HTML with the drawing in the place of its mark."""

    def drawing(mark: re.Match[str]) -> str:
        here = _HERE.search(mark["told"])
        if here is None or here["name"] not in PARTS:
            said = f"has no part {here['name']!r}" if here else "lacks data-here, the part where its reader is"
            raise PluginError(f'docs/{uri}: the <div class="overview"> {said}; write one of {", ".join(PARTS)}')
        if mark["inside"].strip():
            raise PluginError(f'docs/{uri}: the <div class="overview"> must be empty: the drawing takes its place')
        return drawn(
            here["name"],
            {at: address for at, address in addresses.items() if at != uri},
        )

    return _PLACE.sub(drawing, html)


def drawn(here: str, addresses: dict[str, str]) -> str:
    """The figure: both drawings, of which the style sheet shows one."""
    both = "".join(_svg(drawing, here, addresses) for drawing in DRAWINGS)
    return f'<figure class="overview" data-search-exclude="true">{both}{CAPTION}</figure>'


def _svg(drawing: Drawing, here: str, addresses: dict[str, str]) -> str:
    boxes = {name: _box(name, place, here, addresses) for name, place in drawing.boxes.items()}
    frame = boxes.pop("block")  # behind the lines and what it holds
    head = f'<marker id="overview-{drawing.kind}" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" markerHeight="6"'
    ends = "".join(
        f'<path class="line" marker-end="url(#overview-{drawing.kind})" d="M{each}"/>'
        for each in drawing.lines.removeprefix("M").split(" M")
    )
    circles = "".join(
        f'<path class="add" d="M{x - 9} {y}a9 9 0 1 0 18 0a9 9 0 1 0-18 0m4 0h10m-5-5v10"/>' for x, y in drawing.adds
    )
    examples = "".join(f'<text class="said" x="{x}" y="{y}">{text}</text>' for x, y, text in drawing.said)
    (width, height), (left, bottom) = drawing.size, drawing.legend
    # Links within an image would be lost to those who hear it, and so it is a group.
    return (
        f'<svg class="{drawing.kind}" viewBox="0 0 {width} {height}" role="group" '
        f'aria-label="{escape(f"{LABEL} You are here: {PARTS[here][1]}.")}">'
        f'<defs>{head} orient="auto"><path d="M0 0 5 3 0 6z"/></marker></defs>'
        f"{frame}{ends}{circles}{examples}{''.join(boxes.values())}"
        f'<rect class="sign" x="{left}" y="{bottom - 9}" width="10" height="10" rx="2"/>'
        f'<text class="legend" x="{left + 16}" y="{bottom}">You are here: {escape(PARTS[here][1])}</text></svg>'
    )


def _box(
    name: str,
    place: tuple[int, int, int, int],
    here: str,
    addresses: dict[str, str],
) -> str:
    """A part in its box: a link, if a page explains it that is not this one."""
    x, y, width, height = place
    name = name.removesuffix(" 2")  # the second norm of a block is another box of the same part
    label, _, page = PARTS[name]
    tall = height > 40  # it holds others below its name
    at = (x + 10, y + 21, "start") if tall else (x + width / 2, y + height / 2 + 5, "middle")
    text = f'<text x="{at[0]:g}" y="{at[1]:g}" text-anchor="{at[2]}">{escape(label)}</text>'
    inside = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4"/>{text}'
    look = " ".join(["part", name, *["here"] * (name == here), *["frame"] * tall])
    current = ' aria-current="true"' if name == here else ""
    if page in addresses:
        return f'<a class="{look}" href="{escape(addresses[page])}"{current}>{inside}</a>'
    return f'<g class="{look}"{current}>{inside}</g>'
