"""Inline mathematics: whether a displayed formula of its page says the same."""

import re
from collections.abc import Iterable, Iterator, Sequence

from .finding import is_marked, spans
from .tokens import DOTS, FRACTIONS, RELATIONS, Token, tokenize

_RELATED = RELATIONS | {name: name for name in (r"\propto", r"\sim", r"\subset", r"\subseteq", r"\leftarrow")}
_PLAIN = _RELATED | dict.fromkeys(FRACTIONS, r"\frac") | dict.fromkeys(DOTS, r"\dots")
_PARTS = {*_RELATED.values(), ",", ";", ".", ":", "{}", r"\\", r"\forall"}  # end what a relation relates
_OPENING, _CLOSING = {"(", "[", "{", r"\{"}, {")", "]", "}", r"\}"}
# Letters with what tells them apart, one or more: what each token is, n a name, a an accent, 0 a number.
_SYMBOL = r"(?:an|a\{n\}|n)'*(?:_(?:\{[^{}]*\}|.)|\^(?:\{[n()*',]*\}|[n*]))*"
_SYMBOLS = re.compile(rf"{_SYMBOL}(?:,{_SYMBOL})*")
_ACCENT = re.compile(r"\\(?:wide)?(?:hat|tilde|bar|vec|d?dot|overline)")


def loose(markdown: str, displayed: Iterable[str], *, strict: bool) -> Iterator[tuple[int, str]]:
    """Yield where inline mathematics says what nothing holds it to, and what to do.

    A relation must be a part of a formula that its page displays, or carry ``where`` or ``unchecked``; where it is
    strict, an expression such as ``1 / d``, too. Symbols say nothing.
    """
    whole = [_words(latex) for latex in displayed]
    for span in spans(markdown):
        if span.display or is_marked(markdown, span.end):
            continue
        words = _words(span.latex)
        relates = any(word in _RELATED.values() for word in _outside(words, {"{"}, {"}"}))
        if not (relates or (strict and not _SYMBOLS.fullmatch("".join(map(_kind, tokenize(span.latex)))))):
            continue
        if not any(_is_part(words, formula, relates) for formula in whole):
            remedy = "add `<!-- where: ... -->`" if relates else "state a relation that `<!-- where: ... -->` can check"
            message = f"`{span.latex}` is a part of no formula that this page displays, and nothing checks it: {remedy}"
            yield span.start, message + ", or say why not, `<!-- unchecked: reason -->`"


def _words(latex: str) -> list[str]:
    """What LaTeX says, whatever the spaces, sizes, fonts, alignment and needless braces in it."""
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


def _is_part(words: list[str], formula: list[str], relates: bool) -> bool:
    """Tell whether words stand in a formula, and mean there what they mean alone."""
    sums = relates or bool({"+", "-"} & set(_outside(words, _OPENING, _CLOSING)))
    for start in range(len(formula) - len(words) + 1):
        end = start + len(words)
        if formula[start:end] != words:
            continue
        before, after = formula[start - 1] if start else ",", (*formula, ",")[end]
        # Sides of a relation, and terms, are whole; of factors one may be missing, but none of its scripts.
        terms = set() if relates else {"+", "-"}
        if sums and (before in _PARTS | _OPENING | (terms - {"-"})) and (after in _PARTS | _CLOSING | terms):
            return True
        called = after == "(" and words[-1].isalpha()
        if not (sums or called or before in ("_", "^") or after in ("_", "^", "'")):
            return True
    return False


def _kind(token: Token) -> str:
    if token.is_name or token.text in DOTS:
        return "n"
    if token.kind == "number":
        return "0"
    return "a" if _ACCENT.fullmatch(token.text) else token.text[:1]
