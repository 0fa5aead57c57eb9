"""LaTeX to a tree: a recursive-descent parser that refuses what could be read in two ways."""

from __future__ import annotations

import contextlib
import dataclasses
import keyword
import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import NoReturn, Protocol, TypeVar

T = TypeVar("T")


class FormulaError(Exception):
    """A formula that cannot be read, or evaluated; its text says why and what to do."""


class Names(Protocol):
    """What the parser must know of the names that are bound."""

    def bound(self, name: str, *, by_where: bool = False) -> bool:
        """Whether something is bound to a name."""

    def callable(self, name: str) -> bool:
        """Whether that is a function."""

    def indexable(self, name: str) -> bool:
        """Whether that has entries."""


@dataclass(frozen=True)
class Node:
    """A node of the tree; trees are equal if they read the same, wherever they stand.

    Attributes:
        kind: What it is; the evaluator has one method for each kind.
        kids: Its operands, in the order of the text.
        value: A name, a number, or which operator.
        span: Where it stands in the LaTeX.
        marks: Where its operators stand.
    """

    kind: str
    kids: tuple[Node, ...] = ()
    value: str = ""
    span: tuple[int, int] = dataclasses.field(default=(0, 0), compare=False, repr=False)
    marks: tuple[tuple[int, int], ...] = dataclasses.field(default=(), compare=False, repr=False)

    def walk(self) -> Iterator[Node]:
        """Yield the node and all below it."""
        yield self
        for kid in self.kids:
            yield from kid.walk()


@dataclass(frozen=True)
class Token:
    """A piece of LaTeX; `text` is what it says, ``latex[start:end]`` how it is written."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Parsed:
    """A formula: its statements (chains of relations), its free indices in order, and those whose range it lists.

    Each statement has the condition under which it holds, or None.
    """

    statements: tuple[Node, ...]
    given: tuple[Node | None, ...]
    free: tuple[str, ...]
    ranges: dict[str, tuple[Node, Node]]
    origin: int
    indices: frozenset[str]


RELATIONS = {
    **{"=": "=", ":=": "=", r"\coloneqq": "=", r"\equiv": "=", r"\approx": "≈", r"\simeq": "≈", r"\in": "∈"},
    **{r"\notin": "∉", r"\ll": "≪", r"\gg": "≫"},
    **{r"\ne": "≠", r"\neq": "≠", "<": "<", r"\lt": "<", ">": ">", r"\gt": ">"},
    **{rf"\{name}": "≤" for name in ("le", "leq", "leqslant")},
    **{rf"\{name}": "≥" for name in ("ge", "geq", "geqslant")},
}
FUNCTIONS = {
    *("exp", "log", "ln", "sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan"),
    *("softmax", "max", "min", "det", "tr", "diag", "sign", "concat", "Concat"),
}
_BIG = {rf"\{name}": name for name in ("sum", "prod", "max", "min", "argmax", "argmin")}
_WORDS = "if|for|for all|whenever|and|or|where|with|otherwise|else|(?:is )?even|(?:is )?odd"
_SEPARATORS = (r"\|", r"\parallel", r"\Vert", r"\mid", "|", r"\middle|")
_STARS = {"*": "star", r"\ast": "star", r"\star": "star"}
_TRANSPOSED = {r"\top", r"\intercal"}
_AROUND = {
    **{r"\lVert": ("norm", r"\rVert"), r"\|": ("norm", r"\|"), r"\Vert": ("norm", r"\Vert")},
    **{r"\lvert": ("abs", r"\rvert"), "|": ("abs", "|"), r"\vert": ("abs", r"\vert")},
    **{r"\lfloor": ("floor", r"\rfloor"), r"\lceil": ("ceil", r"\rceil"), r"\langle": ("inner", r"\rangle")},
}
_FONTS = r"text|textbf|textit|mathrm|mathbf|mathit|mathsf|mathtt|mathcal|mathbb|boldsymbol|bm|operatorname\*?"
_GREEK = (
    r"(?:var)?(?:epsilon|theta|rho|phi)|alpha|beta|[gG]amma|[dD]elta|zeta|eta|Theta|iota|kappa|[lL]ambda|mu|nu|[xX]i|Pi"
    r"|[sS]igma|tau|[uU]psilon|Phi|chi|[pP]si|[oO]mega|ell|hbar"
)
_TOKEN = re.compile(
    rf"(?P<quad>\\q?quad(?![a-zA-Z]))|(?P<space>\s+|\\[,;:!> ]|~|%[^\n]*"
    rf"|\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits|nonumber)(?![a-zA-Z]))"
    rf"|(?P<word>\\text(?:rm)?\{{\s*(?:{_WORDS})[\s:]*\}}|\\land|\\lor)"
    r"|(?P<argument>\\(?:operatorname\*?\{arg(?:\s|\\[,;: ])*(?:max|min)\}|arg\s*\\(?:max|min)))"
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
_ACCENTS = {"hat", "widehat", "tilde", "widetilde", "bar", "overline", "vec", "dot", "ddot"}
_BRACES = {r"\underbrace": "_", r"\overbrace": "^"}
_FRACTIONS = {r"\frac", r"\dfrac", r"\tfrac"}
_CONSTANTS = {r"\pi": "pi", r"\infty": "inf"}
_DIGITS = {"0": "zero", "1": "one"}


def python_name(text: str) -> str:
    r"""Return the Python name of what a font command holds, or a Greek letter's."""
    name = re.sub(r"[\s.\-]+", "_", text.strip().removeprefix("\\"))
    return _DIGITS.get(name, name)


def tokenize(latex: str) -> list[Token]:
    """Cut LaTeX into tokens; spaces and what only changes sizes are dropped."""
    tokens: list[Token] = []
    inside = 0  # matrices and cases
    for match in _TOKEN.finditer(latex):
        kind, text = str(match.lastgroup), match[0]
        if kind == "quad":
            # Between statements it separates; after a sign that asks for more, and in a cell, it is only a space.
            asks = not tokens or tokens[-1].kind == "break" or tokens[-1].text in {*RELATIONS, ",", "&", "+", "-"}
            kind, text = "space" if asks or inside else "word", "{}"
        if kind == "space":
            continue
        if kind == "font":
            text = python_name(re.sub(r"\\math[a-z]+(?!\{)\s*(?=\w$)|[^{]*\{(.*)\}", r"\1", text, flags=re.S))
        elif kind == "word" and text != "{}":
            text = {"\\land": "and", "\\lor": "or"}.get(text) or text[text.index("{") + 1 : -1].strip(" :")
        elif kind == "argument":
            kind, text = "command", "\\argmax" if "max" in text else "\\argmin"
        elif kind == "environment":
            text = re.sub(r"\s|\*", "", text)
            inside += (("begin" in text) - ("end" in text)) * text.endswith(("matrix}", "cases}"))
        elif kind == "number":
            text = text.replace("{,}", "")
        if kind == "number" and tokens and tokens[-1].text in _FRACTIONS:  # \frac12 is a half
            tokens += [Token(kind, digit, match.start() + i, match.start() + i + 1) for i, digit in enumerate(text)]
            continue
        if text == "\\%" and tokens and tokens[-1].kind == "number":
            number = tokens.pop()
            tokens.append(Token("number", str(Decimal(number.text).scaleb(-2)), number.start, match.end()))
            continue
        tokens.append(Token(kind, text, match.start(), match.end()))
    return [*tokens, Token("end", "", len(latex), len(latex))]


def parse(latex: str, names: Names) -> Parsed:
    """Parse a formula, given the names that are bound.

    Raises:
        FormulaError: At the first character that is not understood.
    """
    return _Parser(latex, names).formula()


class _Parser:
    def __init__(self, latex: str, names: Names):
        self.latex, self.names = latex, names
        self.tokens, self.at = tokenize(latex), 0
        if names.bound("pi", by_where=True):
            self.tokens = [
                dataclasses.replace(t, kind="font", text="pi") if t.text == "\\pi" else t for t in self.tokens
            ]
        self.limit, self.end = len(self.tokens), self.tokens[-1]
        self.locals: list[str] = []  # indices of the sums around
        self.closers: list[str] = []  # what ends the |...| around
        self.free: dict[str, None] = {}
        self.summed: dict[str, None] = {}
        self.ranges: dict[str, tuple[Node, Node]] = {}
        self.origin = 1
        self.subscript = False
        self.commas = False  # part the subscripts that are being read
        self.spellings: dict[str, str] = {}
        self.unbound: list[tuple[str, Token]] = []

    # Tokens

    @property
    def next(self) -> Token:
        return self.tokens[self.at] if self.at < self.limit else self.end

    def peek(self, *texts: str) -> bool:
        return self.next.kind != "font" and self.next.text in texts

    def take(self, *texts: str) -> Token | None:
        if not self.peek(*texts) or self.next.kind == "end":
            return None
        self.at += 1
        return self.tokens[self.at - 1]

    def expect(self, text: str, why: str) -> Token:
        return self.take(text) or self.fail(f"expected {text} {why}")

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        position = self.next.start if at is None else at
        rest = self.latex[position : position + 12].split("\n")[0] or "the end"
        raise FormulaError(f"cannot read `{self.latex}` at character {position + 1} ({rest}): {message}")

    def node(
        self, kind: str, start: int, *kids: Node, value: str = "", marks: tuple[tuple[int, int], ...] = ()
    ) -> Node:
        return Node(kind, kids, value, (start, self.tokens[self.at - 1].end), marks)

    # Statements

    def formula(self) -> Parsed:
        statements: list[Node] = []
        given: list[Node | None] = []
        depth = 0
        while self.next.kind != "end":
            token = self.next
            if token.kind == "environment" and re.search(r"\{(aligned|align|split|gathered|gather)\}", token.text):
                self.at += 1
                depth += 1 if "begin" in token.text else -1
            elif token.kind in ("word", "break") or self.peek(",", ";", ".", ":", "&"):
                self.at += 1
                if token.text in ("if", "whenever", "otherwise", "else", "and", "or") and not (
                    statements and token.text in ("if", "whenever", "and")
                ):
                    self.fail(f"`{token.text}` must follow what it qualifies", token.start)
                if token.text in ("if", "whenever") or (token.text == "for" and statements and self.compares()):
                    given[-1] = self.both(given[-1], self.condition())
                if token.kind == "break" and self.peek("+"):
                    self.fail("a new formula or the rest of the last? Begin a line that goes on with &")
                if token.text in ("for", "for all"):
                    self.quantified()
            elif self.take("\\forall"):
                self.quantified()
            elif not self.listed():
                before = self.free, self.summed
                self.free, self.summed = {}, {}
                statement = self.statement()
                if statements and self.is_condition(statement, {*before[0], *self.free, *self.ranges}):
                    given[-1] = self.both(given[-1], dataclasses.replace(statement, kind="condition"))
                else:
                    statements.append(statement)
                    given.append(None)
                for name in self.free.keys() & self.summed.keys():
                    self.fail(f"{name} is the index of a sum and free as well: rename one of them", token.start)
                self.free, self.summed = before[0] | self.free, before[1] | self.summed
                if self.next.kind not in ("end", "word", "break", "environment") and not self.peek(
                    ",", ";", ".", ":", "\\forall"
                ):
                    self.unknown("the formula does not go on like this")
        if depth:
            self.fail(r"\begin and \end do not match")
        if not statements:
            self.fail("it states nothing: add a relation, or `<!-- unchecked: reason -->`")
        free = tuple(dict.fromkeys([*self.free, *self.ranges]))
        for name, token in self.unbound:
            if name not in free:
                self.fail(f"{name} is not bound: bind it in `where`, or use it as a subscript", token.start)
        indices = frozenset({*free, *self.summed})
        return Parsed(tuple(statements), tuple(given), free, self.ranges, self.origin, indices)

    def compares(self) -> bool:
        """Tell whether a comparison comes next, and not the range of an index or a list of names."""
        resume = self.at
        listed = self.listed()
        self.at = resume
        return not listed and any(self.ahead(relation, {*RELATIONS, ","}) for relation in RELATIONS)

    def is_condition(self, statement: Node, indices: set[str]) -> bool:
        r"""Tell whether a statement is about indices alone, as in ``s_{ij} = 0, \quad j > i``: it claims nothing."""
        kinds = {node.kind for node in statement.walk()}
        names = {node.value for node in statement.walk() if node.kind == "name"}
        return (
            bool(names & indices)
            and not kinds & {"index", "call"}
            and (set(statement.value.split()) <= {"<", ">", "≤", "≥", "≠", "∈", "∉"})
        )

    def both(self, one: Node | None, other: Node) -> Node:
        return Node("and", (one, other), "", (one.span[0], other.span[1])) if one else other

    def statement(self) -> Node:
        """A chain of relations; it may go on over the lines of ``aligned``."""
        start, kids, rels, marks = self.next.start, [self.expression()], list[str](), list[tuple[int, int]]()
        if self.peek(",") and self.ahead("\\in", RELATIONS):
            while self.take(","):
                kids.append(self.expression())
            kids = [self.node("members", start, *kids)]
        while True:
            if self.next.kind == "break":
                after = self.tokens[self.at + 1 : self.at + 3]
                marked = after[0].text == "&"
                goes_on = after[marked].text in (
                    RELATIONS if not marked else {*RELATIONS, "+", "-", "\\cdot", "\\times"}
                )
                if not goes_on:
                    break
                self.at += 1
            self.take("&")
            if self.peek("+", "-") and kids[-1].kind != "space":
                kids[-1] = self.expression(kids[-1])
            elif self.peek("\\cdot", "\\times"):
                self.fail("a product that goes on in the next line can be read in two ways: use parentheses")
            elif token := self.take(*RELATIONS):
                self.take("&")
                rels.append(RELATIONS[token.text])
                marks.append((token.start, token.end))
                kids.append(self.space() if rels[-1] in "∈∉" else self.expression())
            elif self.next.kind != "break":
                break
        for kid in kids:
            for node in kid.walk():
                if node.kind == "vector" and node is not kid:
                    self.fail("a list has no value here", node.span[0])
        if not rels:
            if self.starts_factor() or self.next.kind in ("end", "word", "break", "environment") or self.peek(",", "."):
                text = self.latex[slice(*kids[0].span)]
                self.fail(f"`{text}` states nothing: add a relation, or `<!-- unchecked: reason -->`")
            self.unknown("expected a relation")
        return self.node("relation", start, *kids, value=" ".join(rels), marks=tuple(marks))

    def ahead(self, text: str, among: Container[str]) -> bool:
        """Tell whether `text` is the next of `among` outside brackets in this statement."""
        depth = 0
        for token in self.tokens[self.at :]:
            depth += (token.text in ("(", "[", "{", "\\{")) - (token.text in (")", "]", "}", "\\}"))
            if token.kind in ("word", "break", "end") or depth < 0:
                return False
            if depth == 0 and token.kind != "font" and token.text in among:
                return token.text == text
        return False

    def listed(self) -> bool:
        r"""Read ``i = 1, \dots, n``, which states nothing: it is the range of an index."""
        token = self.next
        dots = ("\\dots", "\\ldots", "\\cdots")
        if token.kind not in ("letter", "font") or self.tokens[self.at + 1].text != "=":
            return False
        self.at += 2
        if not any(self.ahead(text, {*RELATIONS, *dots}) for text in dots):
            self.at -= 2
            return False
        items = [self.expression()]
        while len(items) < 3 or items[-2].kind != "dots":
            self.expect(",", rf"in a range, {token.text} = first, \dots, last")
            items.append(self.argument())
        for step, item in enumerate(items[1:-2], 1):
            if item.kind != "number" or int(item.value) != int(items[0].value or 0) + step:
                self.fail("the items before the dots must count up by one", item.span[0])
        self.ranges[token.text] = items[0], items[-1]
        self.starts_at(items[0])
        return True

    def quantified(self) -> None:
        """Skip the names in "for all i, j"."""
        while self.next.kind in ("letter", "font"):
            token, after = self.tokens[self.at : self.at + 2]
            if after.kind not in ("end", "word", "break") and after.text not in (",", ".", ":"):
                break
            self.unbound.append((token.text, token))
            self.at += 1 + (after.text == ",")

    def space(self) -> Node:
        """A set, which may be that of all tensors of some sizes whose entries are in it."""
        start, token = self.next.start, self.next
        if token.kind == "font" and token.text in ("R", "Z", "N") and "mathbb" in self.latex[token.start : token.end]:
            self.at += 1
            node = self.node("space", start, value=token.text)
        elif opening := self.take("\\{"):
            node = self.braces(opening)
        elif opening := self.take("[", "("):
            low = self.expression()
            self.expect(",", "between the ends of the interval")
            high = self.expression()
            closing = self.take("]", ")") or self.fail("expected ] or ) to close the interval")
            node = self.node("interval", start, low, high, value=opening.text + closing.text)
        elif self.starts_factor():
            return self.factor()
        else:
            self.fail(r"a set is \mathbb{R}^{n \times d}, an interval, or \{a, b\}")
        return self.node("sized", start, node, *(self.sizes() if self.take("^") else ()))

    def sizes(self) -> Iterator[Node]:
        if not self.take("{"):
            yield self.factor()
            return
        yield from self.shape()
        self.expect("}", "to close the sizes")

    def braces(self, opening: Token) -> Node:
        r"""A set: ``\{1, 4\}``, or ``\{j : i - w < j \le i\}``."""
        index = self.next
        if index.kind != "letter" or self.tokens[self.at + 1].text not in (":", "\\mid", "|", "\\colon"):
            return self.node("members", opening.start, *self.items("\\}"))
        self.at += 2
        with self.local(index.text):
            condition = self.condition()
        self.expect("\\}", "to close the set")
        return self.node("builder", opening.start, condition, value=index.text)

    @contextlib.contextmanager
    def local(self, *indices: str) -> Iterator[None]:
        """Let indices have a meaning of their own in what is read meanwhile."""
        for index in indices:
            if index in self.locals or self.names.bound(index, by_where=True):
                self.fail(f"{index} has a value already: sum over another letter")
            self.summed[index] = None
        self.locals += indices
        yield
        del self.locals[-len(indices) :]

    # Lists

    def items(self, *closers: str, separator: str = "") -> tuple[Node, ...]:
        self.closers.append(separator)
        items = [self.argument()]
        while self.take(",", separator):
            items.append(self.argument())
        self.closers.pop()
        if not self.take(*closers):
            self.unknown(f"expected {closers[0]}")
        return self.expand(items)

    def only(self, closer: str) -> Node:
        start = self.next.start
        item, *others = self.items(closer)
        if others or item.kind == "sequence":
            self.fail("a list has no value here", start)
        return item

    def argument(self) -> Node:
        if token := self.take("\\dots", "\\ldots", "\\cdots", "\\vdots"):
            return Node("dots", span=(token.start, token.end))
        return self.expression()

    def expand(self, items: list[Node]) -> tuple[Node, ...]:
        r"""Read ``head_1, \dots, head_h`` as a sequence: its ends differ in one index."""
        if all(item.kind != "dots" for item in items):
            return tuple(items)
        *leading, dots, last = items
        first = leading[0] if leading else dots
        if dots.kind != "dots" or any(item.kind == "dots" for item in (*leading, last)):
            self.fail(r"write a list with dots as first, \dots, last", first.span[0])
        index, ends = f"#{first.span[0]}", set[tuple[Node, Node]]()
        template = _unify(first, last, index, ends)
        if template is None or len(ends) != 1:
            self.fail("the ends of a list with dots must differ in one index", first.span[0])
        for step, item in enumerate(leading[1:], 1):
            steps = set[tuple[Node, Node]]()
            alike = _unify(first, item, index, steps) == template and len(steps) == 1
            if not alike or int(max(steps)[1].value or -1) - int(max(steps)[0].value) != step:
                self.fail("the items before the dots must count up by one", item.span[0])
        low, high = ends.pop()
        self.starts_at(low)
        self.summed[index] = None
        return (Node("sequence", (template, low, high), index, (first.span[0], last.span[1])),)

    def starts_at(self, low: Node) -> None:
        if low.kind == "number" and low.value == "0":
            self.origin = 0

    # Expressions

    def expression(self, first: Node | None = None) -> Node:
        start = first.span[0] if first else self.next.start
        terms, signs, marks = ([first], "+", [(start, start)]) if first else (list[Node](), "", list[tuple[int, int]]())
        while (sign := self.take("+", "-")) or not terms:
            if sign and terms and (dots := self.take("\\dots", "\\cdots", "\\ldots")):
                self.expect("+", r"after the dots: only a_1 + \dots + a_n is read")
                (sequence,) = self.expand([*terms, Node("dots", span=(dots.start, dots.end)), self.product()])
                terms, signs, marks = [self.node("series", start, sequence)], "+", [(start, start)]
                continue
            terms.append(self.product())
            signs += sign.text if sign else "+"
            marks.append((sign.start, sign.end) if sign else (start, start))
        if len(terms) == 1 and signs == "+":
            return terms[0]
        for term in terms:
            if term.kind == "mod" and self.latex[term.span[0]] != "(":
                self.fail(r"what \bmod is of can be read in two ways: use parentheses", term.span[0])
        return self.node("sum", start, *terms, value=signs, marks=tuple(marks))

    def product(self) -> Node:
        start, left = self.next.start, self.jux()
        kinds = {"/": "fraction", "\\odot": "odot", "\\oslash": "oslash", "\\times": "times", "\\cdot": "dot"}
        kinds |= {"\\otimes": "kron", "\\bmod": "mod"}
        while token := self.take(*kinds):
            right = self.factor() if token.text == "/" else self.jux()
            if token.text == "/" and self.starts_factor():
                self.fail(r"`a / b c` can be read in two ways: write \frac or parentheses", token.start)
            left = self.node(kinds[token.text], start, left, right, marks=((token.start, token.end),))
        return left

    def jux(self) -> Node:
        start, left = self.next.start, self.factor()
        while self.starts_factor():
            resume = self.at, dict(self.free)
            if self.next.kind == "number" and not self.subscript:
                self.fail("a number after a factor can be read in two ways: write \\cdot between them")
            right = self.factor()
            if self.subscript and not (left.kind == "number" or self.is_size(left) or self.is_size(right)):
                self.at, self.free = resume
                break
            if self.subscript and left.value == "1":
                self.fail("these indices can be read in two ways: separate them with a comma")
            left = self.node("juxtaposed", start, left, right)
        return left

    def is_size(self, node: Node) -> bool:
        """Tell whether a factor in a subscript is no index of its own: ``h d_k`` is a product, ``i j`` are two."""
        if node.kind != "name":
            return node.kind not in ("number", "index")
        bound = node.value not in self.free and node.value not in self.locals
        return bound and (self.commas or "_" in node.value)

    def starts_factor(self) -> bool:
        token = self.next
        if token.kind in ("number", "letter", "font"):
            return True
        if token.kind == "environment":
            return bool(re.fullmatch(r"\\begin\{([pb]?matrix|cases)\}", token.text))
        if token.text in self.closers[-1:]:
            return False
        known = {*_AROUND, *_BIG, *_CONSTANTS, *_FRACTIONS, *_BRACES, "(", "[", "{", "\\sqrt", "\\nabla", "\\{"}
        return token.text in known or (token.kind == "command" and token.text[1:] in FUNCTIONS | _ACCENTS)

    def factor(self) -> Node:
        start, token = self.next.start, self.next
        if token.kind == "font" and token.text in FUNCTIONS and not self.names.bound(token.text):
            node = self.function(token.text)
        elif token.kind == "font" and token.text in ("one", "I") and self.indicates():
            node = self.indicator(start)
        elif token.kind in ("letter", "font") or (token.kind == "command" and token.text[1:] in _ACCENTS):
            node = self.symbol()
        elif token.kind == "command" and token.text[1:] in FUNCTIONS and token.text not in _BIG:
            node = self.function(token.text[1:])
        elif token.text in _BIG:
            node = self.big()
        else:
            node = self.scripted(self.atom(), start)
        return node

    def atom(self) -> Node:
        token = self.next
        self.at += 1
        if token.kind == "number":
            return self.node("number", token.start, value=token.text)
        if token.kind == "environment" and re.fullmatch(r"\\begin\{[pb]?matrix\}", token.text):
            return self.matrix(token)
        if token.text == "\\begin{cases}":
            return self.cases(token)
        if token.text in _CONSTANTS:
            return self.node("constant", token.start, value=_CONSTANTS[token.text])
        if token.text in _FRACTIONS:
            return self.fraction(token)
        if token.text == "\\sqrt":
            root = [self.only("]")] if self.take("[") else []
            return self.node("sqrt", token.start, self.braced(), *root)
        if token.text == "\\nabla":
            by = self.inside(self.script("_") or self.fail("expected a subscript"), self.factor)
            return self.node("derivative", token.start, self.factor(), by)
        if token.text in _BRACES:
            return self.labelled(token)
        if token.text == "\\{":
            return self.braces(token)
        if token.text == "[" and self.related():
            self.at -= 1
            return self.indicator(token.start)
        if token.text == "(":
            inner, *others = self.items(")")
            if others or inner.kind == "sequence":
                return self.node("vector", token.start, inner, *others)
            return dataclasses.replace(inner, span=(token.start, self.tokens[self.at - 1].end))
        if token.text == "[":
            return self.bracket(token)
        if token.text == "{":
            inner = self.factor()
            self.expect("}", "as readers do not see braces: use parentheses")
            return dataclasses.replace(inner, span=(token.start, self.tokens[self.at - 1].end))
        if token.text in _AROUND:
            return self.around(token)
        self.at -= 1
        return self.unknown("expected an expression")

    def unknown(self, expected: str) -> NoReturn:
        operators = {*RELATIONS, "\\cdot", "\\times", "\\odot", "\\oslash"}
        if self.next.kind in ("command", "environment") and self.next.text not in operators:
            self.fail(f"{self.next.text} is not in the grammar: rewrite it, or add `<!-- unchecked: reason -->`")
        self.fail(expected)

    def related(self) -> bool:
        """Tell whether a relation stands within the bracket that was just opened."""
        depth = 1
        for token in self.tokens[self.at : self.limit]:
            depth += (token.text in ("(", "[", "{", "\\{")) - (token.text in (")", "]", "}", "\\}"))
            if depth == 0:
                return False
            if depth == 1 and token.kind != "font" and (token.text in RELATIONS or token.kind == "word"):
                return True
        return False

    def indicates(self) -> bool:
        r"""Tell whether, after ``\mathbb{1}``, a condition comes next in brackets; then go there."""
        resume = self.at
        self.at += 1
        if (self.take("[", "(", "\\{") or (self.take("_") and self.take("{"))) and self.related():
            self.at -= 1
            return True
        self.at = resume
        return False

    def indicator(self, start: int) -> Node:
        r"""``[j \le i]``: one if it holds, else zero."""
        opening = self.take("[", "(", "\\{", "{") or self.fail("expected a condition in brackets")
        condition = self.condition()
        self.expect({"[": "]", "(": ")", "\\{": "\\}", "{": "}"}[opening.text], "to close the condition")
        return self.node("indicator", start, condition)

    def labelled(self, token: Token) -> Node:
        r"""``\underbrace{Q K^\top}_{n \times m}``: the label is words, or the shape."""
        inner = self.braced()
        label = self.script(_BRACES[token.text])
        if label is None or all("\\text" in self.latex[t.start : t.end] for t in self.tokens[label.start : label.stop]):
            return dataclasses.replace(inner, span=(token.start, self.tokens[self.at - 1].end))
        if all(t.text != "\\times" for t in self.tokens[label.start : label.stop]):
            self.fail(r"its label is words, \text{...}, or a shape, n \times m", self.tokens[label.start].start)
        sizes = self.inside(label, lambda: tuple(self.shape()))
        return self.node("labelled", token.start, inner, *sizes)

    def shape(self) -> Iterator[Node]:
        yield self.jux()
        while self.take("\\times"):
            yield self.jux()

    def braced(self) -> Node:
        if self.take("{"):
            return self.only("}")
        if self.next.kind == "number" and len(self.next.text) > 1:
            self.fail(f"TeX takes only {self.next.text[0]} as the operand: use braces")
        self.at += 1
        return self.inside(range(self.at - 1, self.at), self.factor)

    def around(self, token: Token) -> Node:
        kind, closer = _AROUND[token.text]
        self.closers.append(closer)
        kids = [self.expression()]
        if kind == "inner":
            self.expect(",", "between the vectors")
            kids.append(self.expression())
        self.closers.pop()
        self.expect(closer, f"to close {token.text}")
        order = self.script("_") if kind == "norm" else None
        value = "".join(t.text for t in self.tokens[order.start : order.stop]) if order else ""
        if value not in ("", "1", "2", "F", "\\infty"):
            self.fail(f"no norm {value} is known: 1, 2, F and \\infty are", token.start)
        return self.node(kind, token.start, *kids, value=value)

    def bracket(self, token: Token) -> Node:
        if self.ahead(";", {";", "]"}):
            kids = [self.expression()]
            while self.take(";"):
                kids.append(self.expression())
            self.expect("]", "to close [")
            return self.node("concat", token.start, *kids, value="0")
        kids = list(self.items("]"))
        if len(kids) == 1 and kids[0].kind != "sequence":
            return dataclasses.replace(kids[0], span=(token.start, self.tokens[self.at - 1].end))
        return self.node("concat", token.start, *kids, value="-1")

    def matrix(self, opening: Token) -> Node:
        rows: list[list[Node]] = [[]]
        self.closers.append("")
        while not self.next.text.startswith("\\end"):
            rows[-1].append(self.argument())
            if self.next.kind == "break":
                self.at += 1
                if not self.next.text.startswith("\\end"):
                    rows.append([])
            elif not self.take("&") and not self.next.text.startswith("\\end"):
                self.unknown("expected & or \\\\")
        self.closers.pop()
        self.at += 1
        if len({len(row) for row in rows}) != 1:
            self.fail("its rows differ in length", opening.start)
        cells = [cell for row in rows for cell in row]
        if all(cell.kind != "dots" for cell in cells):
            return self.node("matrix", opening.start, *cells, value=str(len(rows)))
        if 1 not in (len(rows), len(rows[0])):
            self.fail("dots are read in one row or one column alone", opening.start)
        kind = ("concat", "-1") if len(rows) == 1 else ("matrix", "0")
        return self.node(kind[0], opening.start, *self.expand(cells), value=kind[1])

    def cases(self, opening: Token) -> Node:
        kids: list[Node] = []
        self.closers.append("")
        while not self.take("\\end{cases}"):
            kids.append(self.expression())
            while self.take("&", ","):
                pass
            if self.word("otherwise", "else"):
                kids.append(Node("condition"))
            else:
                self.word("if", "for")
                kids.append(self.condition())
            if self.next.kind == "break":
                self.at += 1
            elif not self.peek("\\end{cases}"):
                self.unknown("expected \\\\")
        self.closers.pop()
        return self.node("cases", opening.start, *kids)

    def condition(self) -> Node:
        """Comparisons, joined by "and" and "or"."""
        start, kids = self.next.start, [self.conjunction()]
        while self.word("or"):
            kids.append(self.conjunction())
        return kids[0] if len(kids) == 1 else self.node("or", start, *kids)

    def conjunction(self) -> Node:
        start, kids = self.next.start, [self.comparison()]
        while self.word("and"):
            kids.append(self.comparison())
        return kids[0] if len(kids) == 1 else self.node("and", start, *kids)

    def comparison(self) -> Node:
        start, start_at = self.next.start, self.at
        if self.take("("):
            if self.related():
                inner = self.condition()
                self.expect(")", "to close the condition")
                return inner
            self.at = start_at
        kids, rels, marks = [self.expression()], list[str](), list[tuple[int, int]]()
        if parity := self.word("even", "odd", "is even", "is odd"):
            return self.node("parity", start, *kids, value=parity.removeprefix("is "))
        while token := self.take(*RELATIONS):
            rels.append(RELATIONS[token.text])
            marks.append((token.start, token.end))
            kids.append(self.space() if rels[-1] in "∈∉" else self.expression())
        if not rels:
            self.fail(r"a condition is a comparison, after \text{if}, or \text{otherwise}", start)
        self.starts_at(kids[0])
        return self.node("condition", start, *kids, value=" ".join(rels), marks=tuple(marks))

    def word(self, *texts: str) -> str:
        """Take one of some words; "" if none comes next."""
        if self.next.kind != "word" or self.next.text not in texts:
            return ""
        self.at += 1
        return self.tokens[self.at - 1].text

    def fraction(self, token: Token) -> Node:
        partial = self.peek("{") and self.tokens[self.at + 1].text == "\\partial"
        if not partial:
            top, bottom = self.braced(), self.braced()
            if all(re.match(r"\{\s*d\s*[a-zA-Z\\]", self.latex[side.span[0] - 1 :]) for side in (top, bottom)):
                self.fail(r"d over d can be read as a derivative: write \partial, or cancel the d", token.start)
            return self.node("fraction", token.start, top, bottom)
        parts = []
        for _ in range(2):
            self.expect("{", "around the operand")
            self.expect("\\partial", "as in \\frac{\\partial a}{\\partial b}")
            parts.append(self.factor())
            self.expect("}", "after what is differentiated")
        return self.node("derivative", token.start, *parts)

    # Functions and sums

    def function(self, name: str) -> Node:
        start = self.next.start
        self.at += 1
        below, above = self.scripts()
        if name == "softmax" and below and below.stop - below.start == 1 and not above:
            index = self.tokens[below.start].text
            if self.tokens[below.start].kind == "letter" and not self.names.bound(index, by_where=True):
                self.free.setdefault(index)
                bracket = self.take("(", "[") or self.fail("expected ( after softmax")
                return self.node("softmax", start, self.only(")" if bracket.text == "(" else "]"), value=index)
        base = self.inside(below, self.expression) if below else None
        power = self.inside(above, self.expression) if above else None
        if base and name != "log":
            self.fail(f"{name} takes no subscript here", base.span[0])
        if power and power.kind != "number":
            self.fail(f"a function's power is a number; for the inverse write \\arc{name}", power.span[0])
        if opening := self.take("(", "["):
            kids = list(self.items(")" if opening.text == "(" else "]"))
        elif name in ("max", "min", "concat", "Concat"):
            self.fail(f"expected ( after {name}")
        else:
            kids = [self.open_argument(name)]
        if len(kids) > 1 and name not in ("max", "min", "concat", "Concat"):
            self.fail(f"{name} takes one argument", kids[1].span[0])
        if name in ("concat", "Concat"):
            return self.scripted(self.node("concat", start, *kids, value="-1"), start)
        node = self.node("apply", start, *kids, *([base] if base else []), value=name)
        if power:
            return self.node("power", start, node, power, value="of entries")
        return self.scripted(node, start)

    def open_argument(self, name: str) -> Node:
        r"""The argument of a function without parentheses: ``\cos m \theta_i`` takes in all names and numbers."""
        start, node = self.next.start, self.factor()
        simple = node.kind in ("number", "name", "index", "constant", "power", "transpose")
        while self.starts_factor() and not (self.next.kind == "command" and self.next.text[1:] in FUNCTIONS):
            if not simple or (self.next.kind not in ("letter", "font") and self.next.text not in _CONSTANTS):
                self.fail(f"where the argument of {name} ends can be read in two ways: use parentheses")
            node = self.node("juxtaposed", start, node, self.factor())
        return node

    def big(self) -> Node:
        token = self.next
        kind = _BIG[token.text]
        if kind in FUNCTIONS and self.tokens[self.at + 1].text != "_":
            return self.function(kind)
        self.at += 1
        below, above = self.scripts()
        if below is None:
            self.fail(f"expected the index under {token.text}")
        indices = self.inside(below, self.summed_over)
        with self.local(*indices):
            domain = self.inside(below, lambda: self.under(indices))
            if (domain is not None and domain.kind == "first") != (above is not None):
                self.fail(f"{token.text} needs both limits, or an index alone", token.start)
            if domain and above:
                first, *others = domain.kids
                self.starts_at(first)
                limits = Node("limits", (first, self.inside(above, self.expression)), span=domain.span)
                domain = self.both(limits, others[0]) if others else limits
            node = self.product()
        for index in reversed(indices):
            node = self.node(
                "big",
                token.start,
                node,
                *([domain] if domain else []),
                value=f"{kind} {index}",
                marks=((token.start, token.end),),
            )
        return node

    def summed_over(self) -> tuple[str, ...]:
        """Find which letters under a sum are its indices: those before the relation, or the one between two."""
        tokens = self.tokens[self.at : self.limit]
        self.at = self.limit
        while tokens and tokens[0].text in ("\\substack", "{"):
            del tokens[0]
        operands: list[list[Token]] = [[]]
        for token in tokens:
            if token.kind in ("break", "word") or token.text in (":", "\\mid", "}"):
                break
            if token.kind != "font" and token.text in RELATIONS:
                operands.append([])
            else:
                operands[-1].append(token)
        listed = [token for token in operands[0] if token.text != ","]
        letters = len(listed) * 2 - 1 == len(operands[0]) and all(token.kind in ("letter", "font") for token in listed)
        if letters and (len(listed) > 1 or len(operands) < 3 or listed[0].text not in self.free):
            return tuple(token.text for token in listed)
        known = {*self.free, *self.locals}

        def is_letter(operand: list[Token]) -> bool:
            return bool(operand) and operand[0].kind in ("letter", "font") and all(t.text == "'" for t in operand[1:])

        names = [operand[0].text + "_prime" * (len(operand) - 1) for operand in operands if is_letter(operand)]
        unknown = [name for name in names if name not in known and not self.names.bound(name, by_where=True)]
        return tuple(unknown[:1]) or self.fail(r"under a sum stands an index, as in `j`, `j = 1` or `j \le i`")

    def under(self, indices: tuple[str, ...]) -> Node | None:
        """Read what bounds the indices under a sum; ``j = 1`` is "first"."""
        start = self.next.start
        lines = bool(self.take("\\substack") and self.expect("{", "after \\substack"))
        read: list[str] = []
        resume = self.at
        while not read or self.take(","):
            read.append(self.accented() if self.next.kind in ("letter", "font") else "")
        if tuple(read) == indices and (self.next.kind == "end" or self.take("=")):
            if self.tokens[self.at - 1].text != "=":
                return None
            domain = self.node("first", start, self.expression())
        else:
            if not (tuple(read) == indices and self.take(":", "\\mid")):
                self.at = resume
            domain = self.condition()
        while lines and not self.take("}"):
            if self.next.kind != "break":
                self.unknown("expected \\\\")
            self.at += 1
            other = self.condition()
            first = domain.kind == "first"
            domain = self.node("first", start, *domain.kids, other) if first else self.both(domain, other)
        return domain

    # Names and scripts

    def script(self, mark: str) -> range | None:
        """Skip a script; return which tokens it holds."""
        if not self.take(mark):
            return None
        if not self.take("{"):
            token = self.next
            if token.kind == "number" and len(token.text) > 1:
                self.fail(f"TeX takes only {token.text[0]} into the script: use braces")
            if token.kind not in ("number", "letter", "font", "command") and token.text not in _STARS:
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

    def symbol(self) -> Node:
        """A name with its scripts: as much of them as makes a name that is bound, then indices and powers."""
        first = self.next
        name = self.accented()
        end = self.tokens[self.at - 1].end
        spelled = re.sub(r"\s", "", self.latex[first.start : end])
        below, above = self.scripts()
        low, high = self.flat(below), self.flat(above)
        raw, name = name, _escaped(name)
        known = name in self.locals or self.names.bound(name, by_where=self.subscript)
        turned = self.turned(above)
        if not (low in self.locals and self.names.indexable(name)):
            for scripts in ((low, high), (low, ""), ("", high)):
                longer = "_".join([raw, *filter(None, scripts)])
                if longer != raw and scripts[0] in ("", low) and self.names.bound(longer):
                    name, known, spelled = longer, True, f"{spelled}_{scripts[0]}^{scripts[1]}"
                    taken = [script for script, text in zip((below, above), scripts, strict=True) if script and text]
                    end = max(self.extent(script)[1] for script in taken)
                    below, above = (None if script in taken else script for script in (below, above))
                    break
        if name == "e" and not (below or self.subscript or self.names.bound("e", by_where=True)):
            return self.attach(Node("constant", (), "e", (first.start, end)), first.start, below, above)
        if self.spellings.setdefault(name, spelled) != spelled:
            self.fail(f"{name} is written in two ways here: one symbol, one spelling", first.start)
        if not known:
            self.letter(name, first, low if below else "")
        elif name not in (*self.locals, *self.free) and self.names.callable(name):
            opening = self.take("(", "[")
            if opening is None and below:  # one of a family, such as R_m
                family = self.inside(self.unbracketed(below), self.indices, subscript=True)
                call = Node("call", family, name, (first.start, self.extent(below)[1]))
                return self.attach(call, first.start, None, above, turned)
            if opening is None or above:
                self.fail(f"{name} is a function: call it, as in {name}(x)", first.start)
            kids = self.items(")" if opening.text == "(" else "]", separator=self.separator())
            call = self.attach(self.node("call", first.start, *kids, value=name), first.start, below, None)
            return self.scripted(call, first.start)
        return self.attach(Node("name", (), name, (first.start, end)), first.start, below, above, turned)

    def separator(self) -> str:
        r"""Return what parts the arguments of a call, as in ``D(p \| q)``: what stands there just once."""
        depth, found = 1, []
        for token in self.tokens[self.at : self.limit]:
            depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
            if depth == 0:
                break
            found += [token.text] if depth == 1 and token.text in _SEPARATORS else []
        return found[0] if len(found) == 1 else ""

    def turned(self, above: range | None) -> tuple[int, int] | None:
        r"""Return where, after other things in a superscript, ``\top`` stands, as in ``W^{(h)\top}``."""
        if above is None or self.tokens[above.start - 1].text != "{" or self.tokens[above.stop].text not in _TRANSPOSED:
            return None
        return self.tokens[above.stop].start, self.tokens[above.stop].end

    def accented(self) -> str:
        """Take a letter, a run of letters that `where` binds, or what a font command holds, with accents and primes."""
        if self.next.kind == "command":
            accent = self.tokens[self.at].text[1:]
            self.at += 1
            braced = self.take("{")
            name = f"{self.accented()}_{accent}"
            if braced:
                self.expect("}", f"after what \\{accent} goes over")
        elif self.next.kind in ("letter", "font"):
            name = self.next.text
            self.at += 1
            if self.tokens[self.at - 1].kind == "letter":
                name = self.run(name)
        else:
            self.fail("expected a letter")
        while self.take("'"):
            name += "_prime"
        return name

    def run(self, name: str) -> str:
        """Return the longest name that `where` binds and that adjacent letters spell."""
        end = self.at
        while self.tokens[end].kind == "letter" and self.tokens[end].start == self.tokens[end - 1].end:
            end += 1
        for stop in range(min(end, self.limit), self.at, -1):
            run = name + "".join(token.text for token in self.tokens[self.at : stop])
            if self.names.bound(run, by_where=True):
                self.at = stop
                return run
        return name

    def letter(self, name: str, token: Token, low: str) -> None:
        if self.subscript:
            self.free.setdefault(name)
        elif low:
            self.fail(f"neither {name}_{low} nor {name} is bound: bind it in `where`", token.start)
        else:
            self.unbound.append((name, token))

    def flat(self, tokens: range | None) -> str:
        """Return what a script spells if it could be part of a name."""
        inside = self.tokens[tokens.start : tokens.stop] if tokens else []
        if len(inside) == 1 and inside[0].text in _STARS:
            return _STARS[inside[0].text]
        if any(token.kind not in ("letter", "font", "number") for token in inside):
            return ""
        text = "".join(token.text for token in inside)
        return text if re.fullmatch(r"\w+", text) else ""

    def scripts(self) -> tuple[range | None, range | None]:
        below = above = None
        while self.peek("_", "^"):
            mark = self.next
            if (below if mark.text == "_" else above) is not None:
                self.fail(f"a second {mark.text} can be read in two ways: use parentheses")
            if mark.text == "_":
                below = self.script("_")
            else:
                above = self.script("^")
                assert above is not None
                tokens = self.tokens[above.start : above.stop]
                if len(tokens) > 1 and tokens[-1].text in _TRANSPOSED and tokens[0].text != "-":
                    above = range(above.start, above.stop - 1)
        return below, above

    def extent(self, script: range) -> tuple[int, int]:
        """Return where a script stands, with its mark and braces."""
        braces = self.tokens[script.start - 1].text == "{"
        last = script.stop - 1 + braces + (self.turned(script) is not None)
        return self.tokens[script.start - 1 - braces].start, self.tokens[last].end

    def scripted(self, node: Node, start: int) -> Node:
        below, above = self.scripts()
        return self.attach(node, start, below, above, self.turned(above))

    def attach(
        self,
        node: Node,
        start: int,
        below: range | None,
        above: range | None,
        turned: tuple[int, int] | None = None,
    ) -> Node:
        """Apply what stands below and above: readers see no order in them, indices come first."""
        end = self.tokens[self.at - 1].end
        if turned:
            return Node("transpose", (self.attach(node, start, below, above),), "", (start, end), (turned,))
        if above and self.is_bracketed(above) and node.kind not in ("constant", "number"):
            indices = self.inside(range(above.start + 1, above.stop - 1), self.indices, subscript=True)
            node = Node("index", (node, *indices), "", (start, max(node.span[1], self.extent(above)[1])))
            above = None
        if below:
            indices = self.inside(self.unbracketed(below), self.indices, subscript=True)
            node = Node("index", (node, *indices), "", (start, max(node.span[1], self.extent(below)[1])))
        if not above:
            return node
        texts = [token.text for token in self.tokens[above.start : above.stop]]
        mark = self.extent(above)
        if texts[-1] in ("\\top", "\\intercal", "T") and len(texts) <= 2 and texts[:-1] in ([], ["-"]):
            if texts[-1] == "T" and self.names.bound("T", by_where=True):
                self.fail("T is bound, so ^T could be a power: write ^\\top, or rename T", mark[0])
            if node.kind == "vector":
                return node  # a list has no direction
            if node.kind == "transpose" and len(texts) == 1:
                return dataclasses.replace(node.kids[0], span=(start, end))
            if len(texts) == 2:
                node = Node("inverse", (node,), "", (start, end))
            return Node("transpose", (node,), "", (start, end), (mark,))
        if texts == ["-", "1"]:
            return Node("inverse", (node,), "", (start, end), (mark,))
        power = self.inside(above, self.expression)
        return Node("power", (node, power), "", (start, end), (mark,))

    def is_bracketed(self, script: range) -> bool:
        """Tell whether one pair of parentheses holds all of a script."""
        texts = [token.text for token in self.tokens[script.start : script.stop]]
        return texts[0] == "(" and texts[-1] == ")" and ")" not in texts[1:-1]

    def unbracketed(self, script: range) -> range:
        """Leave the parentheses around all subscripts aside."""
        listed = self.is_bracketed(script) and any(t.text == "," for t in self.tokens[script.start : script.stop])
        return range(script.start + 1, script.stop - 1) if listed else script

    def indices(self) -> tuple[Node, ...]:
        """Read subscripts: separated by commas, or single letters side by side."""
        outer, self.commas = self.commas, self.ahead(",", ",")
        items: list[Node] = []
        while self.next.kind != "end":
            start = self.next.start
            item = Node("missing") if self.peek(":") else self.expression()
            if self.take(":"):
                high = Node("missing") if self.next.kind == "end" or self.peek(",") else self.expression()
                item = self.node("slice", start, item, high)
            items.append(item)
            self.starts_at(item)
            if not self.take(",") and self.next.kind != "end":
                after = self.tokens[min(self.at + 1, self.limit - 1)].text
                alone = item.kind in ("name", "number") and after not in ("+", "-", "/", ":")
                if self.commas or not alone or not self.starts_factor():
                    self.fail("these indices can be read in two ways: separate them with a comma")
        self.commas = outer
        if not items:
            self.unknown("expected an index")
        return tuple(items)


def _escaped(name: str) -> str:
    return name + "_" if keyword.iskeyword(name) else name


def _unify(first: Node, last: Node, index: str, ends: set[tuple[Node, Node]]) -> Node | None:
    """Return the tree that is `first` and `last` for two values of an index, which go to `ends`."""
    if first == last:
        return first
    if first.kind == "number":
        ends.add((first, last))
        return Node("name", value=index, span=first.span)
    if (first.kind, first.value, len(first.kids)) != (last.kind, last.value, len(last.kids)):
        return None
    kids = []
    for one, other in zip(first.kids, last.kids, strict=True):
        kid = _unify(one, other, index, ends)
        if kid is None:
            return None
        kids.append(kid)
    return dataclasses.replace(first, kids=tuple(kids))
