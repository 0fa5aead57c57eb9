"""Inline mathematics: whether a displayed formula of its page says the same."""

from collections.abc import Iterable, Iterator, Sequence

from .finding import is_marked, spans
from .tokens import DOTS, FRACTIONS, RELATIONS, tokenize

_UNREAD = (r"\in", r"\notin", r"\ll", r"\gg", r"\propto", r"\sim", r"\subset", r"\subseteq", r"\leftarrow")
_RELATED = RELATIONS | {name: name for name in _UNREAD}
_PLAIN = _RELATED | dict.fromkeys(FRACTIONS, r"\frac") | dict.fromkeys(DOTS, r"\dots")
_PARTS = {*_RELATED.values(), ",", ";", ".", ":", r"\\", r"\forall"}  # end what a relation relates
_OPENING, _CLOSING = {"(", "[", "{", r"\{"}, {")", "]", "}", r"\}"}


def loose(markdown: str, displayed: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield where inline mathematics says what nothing holds it to, and what to do.

    A relation must be a part of a formula that its page displays, or carry ``where`` or ``unchecked``. Symbols and
    expressions such as ``1 / d`` say nothing.
    """
    whole = [_words(latex) for latex in displayed]
    for span in spans(markdown):
        if span.display or is_marked(markdown, span.end):
            continue
        words = _words(span.latex)
        relates = any(word in _RELATED.values() for word in _outside(words, {"{"}, {"}"}))
        if relates and not any(_is_part(words, formula) for formula in whole):
            message = f"`{span.latex}` is a part of no formula that this page displays, and nothing checks it: "
            yield span.start, message + "add `<!-- where: ... -->`, or say why not, `<!-- unchecked: reason -->`"


def _words(latex: str) -> list[str]:
    """Return the words of LaTeX, without spaces, sizes, fonts, alignment and needless braces."""
    words: list[str] = []
    for token in tokenize(latex)[:-1]:
        text = r"\\" if token.kind in ("break", "word", "environment") else _PLAIN.get(token.text, token.text)
        if text == "}" and words[-2:-1] == ["{"]:
            words[-2:] = words[-1:]
        elif text != "&":
            words.append(text)
    return words


def _outside(words: Sequence[str], opening: set[str], closing: set[str]) -> Iterator[str]:
    """Yield what stands outside brackets."""
    depth = 0
    for word in words:
        depth += (word in opening) - (word in closing)
        if depth == 0:
            yield word


def _is_part(words: list[str], formula: list[str]) -> bool:
    """Tell whether words stand in a formula, and mean there what they mean alone: the sides of a relation are whole."""
    for start in range(len(formula) - len(words) + 1):
        end = start + len(words)
        before, after = formula[start - 1] if start else ",", (*formula, ",")[end]
        if formula[start:end] == words and before in _PARTS | _OPENING and after in _PARTS | _CLOSING:
            return True
    return False
