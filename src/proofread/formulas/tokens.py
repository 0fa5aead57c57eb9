"""LaTeX cut into tokens: its numbers, names, words, relations and commands; and a place among them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn, TypeVar

from .tree import FormulaError, Node, Place

if TYPE_CHECKING:
    from .scope import Scope  # without torch

T = TypeVar("T")

DOTS = (r"\dots", r"\ldots", r"\cdots")
STARS = {"*": "star", r"\ast": "star", r"\star": "star"}

RELATIONS = {
    **{"=": "=", ":=": "=", r"\coloneqq": "=", r"\equiv": "=", r"\approx": "≈", r"\simeq": "≈"},
    **{r"\ne": "≠", r"\neq": "≠", "<": "<", r"\lt": "<", ">": ">", r"\gt": ">"},
    **{r"\le": "≤", r"\leq": "≤", r"\leqslant": "≤", r"\ge": "≥", r"\geq": "≥", r"\geqslant": "≥"},
}
FUNCTIONS = {
    *("exp", "log", "ln", "sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan"),
    *("softmax", "max", "min", "det", "tr", "diag", "sign"),
}
ACCENTS = {"hat", "widehat", "tilde", "widetilde", "bar", "overline", "vec", "dot", "ddot"}
FRACTIONS = {r"\frac", r"\dfrac", r"\tfrac"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_WORDS = "for|and|where|with"  # part statements
_FONTS = r"text|textbf|textit|mathrm|mathbf|mathit|mathsf|mathtt|mathcal|mathbb|boldsymbol|bm|operatorname\*?"
_GREEK = (
    r"(?:var)?(?:epsilon|theta|rho|phi)|alpha|beta|[gG]amma|[dD]elta|zeta|eta|Theta|iota|kappa|[lL]ambda|mu|nu|[xX]i|Pi"
    r"|[sS]igma|tau|[uU]psilon|Phi|chi|[pP]si|[oO]mega|ell|hbar"
)
# Libraries (pylatexenc, TexSoup, latex2mathml) part characters, macros and braces only, four times slower: all that is
# named here, and read below, would still have to be made of their tokens.
_TOKEN = re.compile(
    rf"(?P<quad>\\q?quad(?![a-zA-Z]))|(?P<space>\s+|\\[,;:!> ]|~|%[^\n]*"
    rf"|\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits|nonumber)(?![a-zA-Z]))"
    rf"|(?P<word>\\text(?:rm)?\{{\s*(?:{_WORDS})[\s:]*\}})"
    rf"|(?P<font>\\(?:{_FONTS})\s*\{{\s*(?:\\[a-zA-Z]+|[\w\s.\-]+?)\s*\}}"
    rf"|\\math(?:bb|bf|cal|it|rm|sf|tt)\s+[A-Za-z]|\\(?:{_GREEK})(?![a-zA-Z]))"
    rf"|(?P<environment>\\(?:begin|end)\s*\{{[a-z]+\*?\}})"
    rf"|(?P<number>\d+(?:\{{,\}}\d{{3}})*(?:\.\d+)?|\.\d+)"
    rf"|(?P<break>\\\\(?:\[[^\]]*\])?)"
    rf"|(?P<command>\\[a-zA-Z]+|\\.)"
    rf"|(?P<letter>[a-zA-Z])"
    rf"|(?P<symbol>:=|.)",
    re.S,
)
_DIGITS = {"0": "zero", "1": "one"}


@dataclass(frozen=True)
class Token:
    """A piece of LaTeX; `text` is what it says, ``latex[start:end]`` how it is written."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def span(self) -> tuple[int, int]:
        """Where it stands."""
        return self.start, self.end

    @property
    def is_name(self) -> bool:
        """Whether a name begins with it."""
        return self.kind in ("letter", "font")

    def says(self, texts: Collection[str]) -> bool:
        """Tell whether it is one of some signs or commands, and not a name that is spelled so."""
        return self.kind != "font" and self.text in texts


def tokenize(latex: str) -> list[Token]:
    """Cut LaTeX into tokens, of which the last is the end; spaces and what only changes sizes are dropped."""
    tokens: list[Token] = []
    for match in _TOKEN.finditer(latex):
        kind, text = str(match.lastgroup), match[0]
        if kind == "quad":
            # Between statements it separates; after a sign that asks for more it is only a space.
            asks = not tokens or tokens[-1].kind == "break" or tokens[-1].text in {*RELATIONS, ",", "&", "+", "-"}
            kind = "space" if asks else "word"
        if kind == "space":
            continue
        if kind == "font":
            text = re.sub(r"\\math[a-z]+(?!\{)\s*(?=\w$)|[^{]*\{(.*)\}", r"\1", text, flags=re.S)
            text = re.sub(r"[\s.\-]+", "_", text.strip().removeprefix("\\"))
            text = _DIGITS.get(text, text)
        elif kind == "environment":
            text = re.sub(r"\s|\*", "", text)
        elif kind == "number":
            text = text.replace("{,}", "")
            if tokens and tokens[-1].text in FRACTIONS:  # \frac12 is a half
                tokens += [Token(kind, digit, match.start() + i, match.start() + i + 1) for i, digit in enumerate(text)]
                continue
        tokens.append(Token(kind, text, match.start(), match.end()))
    return [*tokens, Token("end", "", len(latex), len(latex))]


class Cursor:
    """Takes one token after the other, and knows the names around them."""

    def __init__(self, latex: str, names: Scope):
        self.latex, self.names = latex, names
        self.tokens, self.at = tokenize(latex), 0
        if names.bound("pi", by_where=True):
            self.tokens = [replace(t, kind="font", text="pi") if t.text == "\\pi" else t for t in self.tokens]
        self.limit, self.end = len(self.tokens), self.tokens[-1]
        self.subscript = False  # whether one is being read
        self.commas = False  # part the subscripts that are being read
        self.closers: list[str] = []  # what ends the |...| around
        self.locals: list[str] = []  # indices of the sums around
        self.free: dict[str, None] = {}
        self.summed: dict[str, None] = {}
        self.unbound: list[tuple[str, Token]] = []
        self.spellings: dict[str, str] = {}
        self.ranges: dict[str, tuple[Node, Node]] = {}
        self.origin = 1

    @property
    def next(self) -> Token:
        """The token that comes next; what is read ends at the limit."""
        return self.tokens[self.at] if self.at < self.limit else self.end

    @property
    def last(self) -> Token:
        """The token that was taken last."""
        return self.tokens[self.at - 1]

    def peek(self, *texts: str) -> bool:
        """Tell whether one of some signs or commands comes next."""
        return self.next.says(texts)

    def ends(self, *kinds: str) -> bool:
        """Tell whether the formula, a line or a part of the statement ends here."""
        return self.next.kind in ("end", "word", "break", *kinds)

    def take(self, *texts: str) -> Token | None:
        """Take one of some signs or commands, if it comes next."""
        if not self.peek(*texts) or self.next.kind == "end":
            return None
        self.at += 1
        return self.last

    def expect(self, text: str, why: str) -> Token:
        """Take a sign or command that must come next."""
        return self.take(text) or self.fail(f"expected {text} {why}")

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        """Refuse the formula, at a character."""
        position = self.next.start if at is None else at
        rest = self.latex[position : position + 12].split("\n")[0] or "the end"
        raise FormulaError(f"cannot read `{self.latex}` at character {position + 1} ({rest}): {message}")

    def unknown(self, expected: str) -> NoReturn:
        """Refuse what comes next."""
        operators = {*RELATIONS, "\\cdot", "\\times", "\\odot"}
        if (self.next.kind in ("command", "environment") and self.next.text not in operators) or self.peek("!"):
            self.fail(f"{self.next.text} is not in the grammar: rewrite it, or add `<!-- unchecked: reason -->`")
        self.fail(expected)

    def node(self, kind: str, start: int, *kids: Node, value: str = "", marks: tuple[Place, ...] = ()) -> Node:
        """Make a node that ends here."""
        return Node(kind, kids, value, (start, self.last.end), marks)

    def wider(self, node: Node, start: int) -> Node:
        """Return a node with the brackets around it, which end here."""
        return replace(node, span=(start, self.last.end))

    def level(self) -> Iterator[Token]:
        """Yield what comes outside brackets, up to the end of those around."""
        depth = 0
        for token in self.tokens[self.at : self.limit]:
            depth += (token.text in _CLOSING) - (token.text in _CLOSING.values())
            if depth < 0:
                return
            if depth == 0:
                yield token

    def ahead(self, among: Collection[str]) -> str:
        """Return which of some signs comes first outside brackets in this statement; "" if none does."""
        for token in self.level():
            if token.kind in ("word", "break", "end"):
                break
            if token.says(among):
                return token.text
        return ""

    def related(self) -> bool:
        """Tell whether a relation stands within the bracket that was just opened."""
        return any(token.says(RELATIONS) for token in self.level())

    def script(self, mark: str) -> range | None:
        """Skip a script; return which tokens it holds."""
        if not self.take(mark):
            return None
        if not self.take("{"):
            token = self.next
            if token.kind == "number" and len(token.text) > 1:
                self.fail(f"TeX takes only {token.text[0]} into the script: use braces")
            if token.kind not in ("number", "letter", "font", "command") and token.text not in STARS:
                self.fail("expected a script")
            self.at += 1
            return range(self.at - 1, self.at)
        start, depth = self.at, 1
        while depth:
            if self.next.kind == "end":
                self.fail("a brace is not closed")
            depth += self.peek("{") - self.peek("}")
            self.at += 1
        return range(start, self.at - 1)

    def inside(self, tokens: range, rule: Callable[[], T], *, subscript: bool = False) -> T:
        """Apply a rule to all the tokens of a script."""
        resume = self.at, self.limit, self.subscript
        self.at, self.limit, self.subscript = tokens.start, tokens.stop, subscript
        result = rule()
        if self.at != tokens.stop:
            self.unknown("the script does not go on like this")
        self.at, self.limit, self.subscript = resume
        return result

    def texts(self, tokens: range) -> list[str]:
        """Return what some tokens say."""
        return [token.text for token in self.tokens[tokens.start : tokens.stop]]

    @contextlib.contextmanager
    def local(self, index: str) -> Iterator[None]:
        """Let an index have a meaning of its own in what is read meanwhile."""
        if index in self.locals or self.names.bound(index, by_where=True):
            self.fail(f"{index} has a value already: sum over another letter")
        self.summed[index] = None
        self.locals.append(index)
        yield
        self.locals.pop()

    def starts_at(self, low: Node) -> None:
        """Count indices from 0 if a range, a list or a subscript does."""
        if low.kind == "number" and low.value == "0":
            self.origin = 0
