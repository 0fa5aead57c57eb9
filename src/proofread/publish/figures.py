"""Offers the reader of a value in the prose what gave it: the expression that the author wrote, and the exact value.

A value goes through Markdown between two characters that no text has. Where it comes out in the text of a page it
becomes an element of its own; in a title, a link or an attribute it stays as it is.
"""

import re
from collections.abc import Callable, Sequence

from ..checks.checked import Checked, Text
from ..pages.numbers import VULGAR, Value
from ..pages.page import FRONT_MATTER
from ..pages.prose import Claim, Question

Given = tuple[str, str]
_FIRST, _END = 0xF0000, "\U000ffffd"
_MARK = re.compile("[\U000f0000-\U000ffffd]")
_TITLE = re.compile(r"[ >]*#{1,6}[ \t]|[^\n]*\n[ >]*(?:=+|-+)[ \t]*(?:\n|\Z)")
_CLOSED = "a|abbr|button|h[1-6]|label|math|script|style|summary|svg"
_TAG = re.compile(rf"<(?P<end>/?)(?P<closed>{_CLOSED})\b[^>]*>|<[^>]*>")
_LONGEST = 120


def marked(checked: Checked) -> Callable[[int], str]:
    """Return a function that gives a Markdown cell's text as the reader sees it, with its values between marks."""
    said = {text.cell: text for text in checked.texts}
    marks: dict[int, dict[Question, tuple[str, str]]] = {cell: {} for cell in said}
    for place, (text, question) in enumerate(_offered(checked)):
        marks[text.cell][question] = (chr(_FIRST + place), _END)
    return lambda cell: said[cell].prose.publish(said[cell].values, marks[cell])


def offer(html: str, checked: Checked) -> tuple[str, list[Given]]:
    """Make elements of a page's marked values; and what gave them, in their order."""
    if not _MARK.search(html):
        return html, []
    offered, given = _offered(checked), []

    def element(mark: re.Match[str]) -> str:
        if mark[0] == _END:
            return "</p-f>"
        text, question = offered[ord(mark[0]) - _FIRST]
        given.append((question.expression, _written(text.answers[question].exact)[:_LONGEST]))
        return "<p-f>"

    pieces, depth, end = [], 0, 0
    for tag in _TAG.finditer(html):
        pieces += [_MARK.sub("" if depth else element, html[end : tag.start()]), unmarked(tag[0])]
        depth += (-1 if tag["end"] else 1) if tag["closed"] else 0
        end = tag.end()
    return "".join([*pieces, _MARK.sub(element, html[end:])]), given


def unmarked(text: str) -> str:
    """A text without the marks that others took from a page's Markdown, such as for its description."""
    return _MARK.sub("", text)


def _offered(checked: Checked) -> Sequence[tuple[Text, Question]]:
    """The values of a page's prose that a reader may ask about."""
    return [
        (text, question)
        for text in checked.texts
        if not checked.page.cells[text.cell].is_code
        for question in text.answers
        if _measured(text, question) and not _heads(text.prose.text, question.span[0])
    ]


def _measured(text: Text, question: Question) -> bool:
    """Whether a reader would ask where it is from: it was measured, not counted, and is told in digits."""
    answer = text.answers[question]
    value, typed = answer.exact, question.typed if isinstance(question, Claim) else str(answer.value)
    is_told = "\n" not in typed and re.search(rf"\d|{VULGAR}", typed) is not None
    return is_told and any(isinstance(each, float) for each in (value if isinstance(value, list) else [value]))


def _heads(text: str, place: int) -> bool:
    """Whether a place is in a title or in front matter."""
    front = FRONT_MATTER.match(text)
    line = text.rfind("\n", 0, place) + 1
    return _TITLE.match(text, line) is not None or (front is not None and place < front.end())


def _written(value: Value) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_written, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
