"""Where the tables of a Markdown text stand, with their columns and cells."""

import re
from dataclasses import dataclass

Span = tuple[int, int]

_RULE = r"[ \t>]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*"
_TABLE = re.compile(rf"[\s\1]*(?P<head>[^\n]*\|[^\n]*)\n{_RULE}(?:\n|\Z)(?P<rows>(?:[^\n]*\|[^\n]*(?:\n|\Z))*)")
_HIDDEN = re.compile(r"<!--.*?-->|(`+)[^`\n]*\1|\\\|", re.DOTALL)  # where a bar parts no cells


@dataclass(frozen=True)
class Table:
    """A table: where it stands, and the cells of each column below its title."""

    span: Span
    columns: dict[str, list[Span]]


def after(text: str, place: int) -> Table | None:
    """The table that comes next in a text, with nothing but blank lines before it."""
    masked = _HIDDEN.sub(lambda hidden: ("\1" if hidden[0][0] == "<" else "\0") * len(hidden[0]), text)
    found = _TABLE.match(masked, place)
    if not found:
        return None
    titles = [_plain(text[slice(*cell)]) for cell in _cells(masked, found.span("head"))]
    rows, place = [], found.start("rows")
    for row in found["rows"].splitlines(keepends=True):
        rows.append(_cells(masked, (place, place + len(row))))
        place += len(row)
    columns = {title: [row[at] for row in rows if at < len(row)] for at, title in enumerate(titles)}
    return Table((found.start("head"), found.end()), columns)


def before(text: str, place: int) -> Table | None:
    """The table that ends before a place, with nothing but blank lines between."""
    starts = (start.start() for start in re.finditer(r"^(?=[^\n]*\|)", text[:place], re.MULTILINE))
    tables = (after(text, start) for start in starts)
    return next((table for table in tables if table and not text[table.span[1] : place].strip()), None)


def _cells(masked: str, row: Span) -> list[Span]:
    """Where the contents of a row's cells stand."""
    start, end = row
    bare = re.match(r"[ \t>]*\|?", masked[start:end])
    start += bare.end() if bare else 0
    end = start + len(masked[start:end].rstrip().removesuffix("|"))
    found = []
    for cell in re.finditer(r"[^|]*(?:\||\Z)", masked[start:end]):
        inside = re.match(r"[\s*_`]*(.*?)[\s*_`]*\|?\Z", cell[0], re.DOTALL)
        if inside and cell.end() > cell.start():
            found.append((start + cell.start() + inside.start(1), start + cell.start() + inside.end(1)))
    return found


def _plain(title: str) -> str:
    return " ".join(re.sub(r"<!--.*?-->|[*_`]", "", title, flags=re.DOTALL).split())
