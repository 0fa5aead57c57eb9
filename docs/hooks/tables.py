"""A hook of the site: a table that is wider than a phone, and says more than numbers, is a card for each row there.

The lines of a card say what their columns said. Tables of numbers are compared column by column, and stay tables.
"""

import re
from html import escape, unescape
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority

PHONE = 46  # letters that a row of a phone shows
BETWEEN = 2  # letters of room beside each column
PROSE = 20  # letters of a cell that is more than a number or a name; code as long goes on in the next line
_TABLE = re.compile(r"<table(?P<attributes>[^>]*)>(?P<inside>.*?)</table>", re.DOTALL)
_PART = re.compile(r"<(?P<name>thead|tbody)>(?P<rows>.*?)</(?P=name)>", re.DOTALL)
_ROW = re.compile(r"<tr[^>]*>.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<(?P<name>t[hd])(?P<attributes>(?: [^>]*)?)>(?P<text>.*?)</(?P=name)>", re.DOTALL)
_CODE = re.compile(r"<code>(?P<text>.*?)</code>", re.DOTALL)


def text(html: str) -> str:
    """What is read of HTML."""
    return " ".join(unescape(re.sub(r"<[^>]*>", "", html)).split())


def breaking(html: str) -> str:
    """A cell, whose long code may break at its blanks; short code, as a shape, stays whole, and so does a name.

    >>> breaking("<code>(2, 5)</code>, <code>layer(x, x, x, need_weights=False)</code>")
    '<code>(2, 5)</code>, <code class="long">layer(x, x, x, need_weights=False)</code>'
    """

    def code(found: re.Match[str]) -> str:
        said = text(found[0])
        return f'<code class="long">{found["text"]}</code>' if len(said) > PROSE and " " in said else found[0]

    return _CODE.sub(code, html)


def least(html: str) -> int:
    """Letters of what does not break in a cell."""
    whole = [text(code[0]) for code in _CODE.finditer(breaking(html))]
    return max(map(len, [*whole, *text(html).split()]), default=0)


def carded(table: re.Match[str]) -> str:
    """A table, as it was or with what its cards need to say."""
    inside = _CELL.sub(
        lambda cell: f"<{cell['name']}{cell['attributes']}>{breaking(cell['text'])}</{cell['name']}>", table["inside"]
    )
    parts = {part["name"]: part for part in _PART.finditer(inside)}
    if "class=" in table["attributes"] or "span=" in inside or parts.keys() != {"thead", "tbody"}:
        return f"<table{table['attributes']}>{inside}</table>"
    rows = [[cell["text"] for cell in _CELL.finditer(row)] for row in _ROW.findall(inside)]
    columns = [*zip(*rows, strict=False)]
    width = sum(max(map(least, column)) + BETWEEN for column in columns)
    says = max((len(text(cell)) for row in rows[1:] for cell in row), default=0) > PROSE
    if not says or width <= PHONE or len(columns) < 2:
        return f"<table{table['attributes']}>{inside}</table>"
    names = [text(name) for name in rows[0]]

    def row(found: re.Match[str]) -> str:
        titles = iter(names)
        return _CELL.sub(lambda cell: named(cell, next(titles, "")), found[0])

    def named(cell: re.Match[str], title: str) -> str:
        of = f' data-of="{escape(title)}"' if title else ""
        return f"<{cell['name']}{cell['attributes']}{of}>{cell['text']}</{cell['name']}>"

    body = parts["tbody"]
    made = inside[: body.start()] + _ROW.sub(row, body[0]) + inside[body.end() :]
    return f"<table{table['attributes']} data-cards>{made}</table>"


@event_priority(-100)  # once its Markdown stands beside the page
def on_post_page(output: str, *, config: MkDocsConfig, **_: Any) -> str:
    """Prepare the tables of a page for phones."""
    return _TABLE.sub(carded, output)
