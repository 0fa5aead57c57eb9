"""What has a value in formulas: terms, factors, functions, sums; and comparisons, which are true or false."""

import re

from .symbols import Symbols
from .tokens import ACCENTS, FRACTIONS, FUNCTIONS, RELATIONS, Token
from .tree import Node, Place

PRODUCTS = {"/": "fraction", r"\odot": "odot", r"\times": "times", r"\cdot": "dot"}
BIG = {rf"\{name}": name for name in ("sum", "prod", "max", "min")}
AROUND = {
    **{r"\lVert": ("norm", r"\rVert"), r"\|": ("norm", r"\|"), r"\Vert": ("norm", r"\Vert")},
    **{r"\lvert": ("abs", r"\rvert"), "|": ("abs", "|"), r"\vert": ("abs", r"\vert")},
}
CONSTANTS = {r"\pi": "pi", r"\infty": "inf"}
_MANY = ("max", "min")  # take several arguments
_FACTORS = {*AROUND, *BIG, *CONSTANTS, *FRACTIONS, "(", "[", "{", r"\sqrt"}
_FACTORS |= {rf"\{name}" for name in FUNCTIONS | ACCENTS}
_DIFFERENTIAL = re.compile(r"\{\s*(?:d|\\mathrm\{d\})(?:\^\{?\d\}?)?\s*[a-zA-Z\\}]")


class Expressions(Symbols):
    """Reads expressions and comparisons."""

    def expression(self, first: Node | None = None) -> Node:
        """Terms, of which the first may have been read."""
        start = first.span[0] if first else self.next.start
        terms, signs, marks = ([first], "+", [(start, start)]) if first else (list[Node](), "", list[Place]())
        while (sign := self.take("+", "-")) or not terms:
            terms.append(self.product())
            signs += sign.text if sign else "+"
            marks.append(sign.span if sign else (start, start))
        if len(terms) == 1 and signs == "+":
            return terms[0]
        return self.node("sum", start, *terms, value=signs, marks=tuple(marks))

    def product(self) -> Node:
        """Factors, parted by signs."""
        start, left = self.next.start, self.jux()
        while token := self.take(*PRODUCTS):
            right = self.factor() if token.text == "/" else self.jux()
            if token.text == "/" and self.starts_factor():
                self.fail(r"`a / b c` can be read in two ways: write \frac or parentheses", token.start)
            left = self.node(PRODUCTS[token.text], start, left, right, marks=(token.span,))
        return left

    def jux(self) -> Node:
        """Factors side by side."""
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
        """Tell whether a factor comes next."""
        token = self.next
        return (
            token.is_name or token.kind == "number" or (token.text in _FACTORS and token.text not in self.closers[-1:])
        )

    def factor(self) -> Node:
        """Read an atom with its scripts."""
        start, token = self.next.start, self.next
        if token.kind == "font" and token.text in FUNCTIONS and not self.names.bound(token.text):
            return self.function(token.text)
        if token.text in BIG:
            return self.big()
        if token.is_name or (token.kind == "command" and token.text[1:] in ACCENTS):
            return self.symbol()
        if token.kind == "command" and token.text[1:] in FUNCTIONS:
            return self.function(token.text[1:])
        return self.scripted(self.atom(), start)

    def atom(self) -> Node:
        """Read an atom that has no name."""
        token = self.next
        self.at += 1
        if token.kind == "number":
            return self.node("number", token.start, value=token.text)
        if token.text in CONSTANTS:
            return self.node("constant", token.start, value=CONSTANTS[token.text])
        if token.text in FRACTIONS:
            return self.fraction(token)
        if token.text == "\\sqrt":
            return self.node("sqrt", token.start, self.braced())
        if token.text == "[" and self.related():
            condition = self.condition()
            self.expect("]", "to close the condition")
            return self.node("indicator", token.start, condition)
        if token.text in ("(", "["):
            return self.wider(self.only(")" if token.text == "(" else "]"), token.start)
        if token.text == "{":
            inner = self.factor()
            self.expect("}", "as readers do not see braces: use parentheses")
            return self.wider(inner, token.start)
        if token.text in AROUND:
            return self.around(token)
        self.at -= 1
        return self.unknown("expected an expression")

    def braced(self) -> Node:
        """An operand, in braces if it is more than a token."""
        if self.take("{"):
            return self.only("}")
        if self.next.kind == "number" and len(self.next.text) > 1:
            self.fail(f"TeX takes only {self.next.text[0]} as the operand: use braces")
        self.at += 1
        return self.inside(range(self.at - 1, self.at), self.factor)

    def fraction(self, token: Token) -> Node:
        """A quotient, or a partial derivative."""
        if not (self.peek("{") and self.tokens[self.at + 1].text == "\\partial"):
            top, bottom = self.braced(), self.braced()
            if all(_DIFFERENTIAL.match(self.latex, side.span[0] - 1) for side in (top, bottom)):
                self.fail(r"d over d can be read as a derivative: write \partial, or cancel the d", token.start)
            return self.node("fraction", token.start, top, bottom)
        parts = []
        for _ in range(2):
            self.expect("{", "around the operand")
            self.expect("\\partial", "as in \\frac{\\partial a}{\\partial b}")
            part = self.factor() if self.next.is_name else Node("")
            if not self.take("}") or (part.kids[0] if part.kind == "index" else part).kind != "name":
                only = r"\partial stands in first derivatives of one symbol by another alone"
                example = r"\frac{\partial a_i}{\partial b_j}"
                self.fail(f"{only}, as in {example}: rewrite it, or add `<!-- unchecked: reason -->`")
            parts.append(part)
        return self.node("derivative", token.start, *parts)

    def around(self, token: Token) -> Node:
        """A norm or an absolute value."""
        kind, closer = AROUND[token.text]
        self.closers.append(closer)
        inner = self.expression()
        self.closers.pop()
        self.expect(closer, f"to close {token.text}")
        return self.node(kind, token.start, inner)

    # Functions and sums

    def function(self, name: str) -> Node:
        """A function that every reader knows, with its argument."""
        start = self.next.start
        self.at += 1
        if self.peek("_", "^"):
            self.fail(f"{name} takes nothing below or above it: write it around what it is of, as in ({name} x)^2")
        if opening := self.take("(", "["):
            kids = self.items(")" if opening.text == "(" else "]")
        elif name in _MANY:
            self.fail(f"expected ( after {name}")
        else:
            kids = (self.open_argument(name),)
        if len(kids) > 1 and name not in _MANY:
            self.fail(f"{name} takes one argument", kids[1].span[0])
        return self.scripted(self.node("apply", start, *kids, value=name), start)

    def open_argument(self, name: str) -> Node:
        r"""The argument of a function without parentheses: ``\cos m \theta_i`` takes in all names and numbers."""
        start, node = self.next.start, self.factor()
        simple = node.kind in ("number", "name", "index", "constant", "power", "transpose")
        while self.starts_factor() and not (self.next.kind == "command" and self.next.text[1:] in FUNCTIONS):
            if not simple or not (self.next.is_name or self.next.text in CONSTANTS):
                self.fail(f"where the argument of {name} ends can be read in two ways: use parentheses")
            node = self.node("juxtaposed", start, node, self.factor())
        return node

    def big(self) -> Node:
        """A sum, a product, or the largest or smallest of what an index gives."""
        token = self.next
        kind = BIG[token.text]
        if kind in FUNCTIONS and self.tokens[self.at + 1].text != "_":
            return self.function(kind)
        self.at += 1
        below, above = self.scripts()
        if below is None:
            self.fail(f"expected the index under {token.text}")
        index = self.inside(below, self.index_of_sum)
        with self.local(index):
            domain = self.inside(below, self.under)
            if (domain is not None and domain.kind == "first") != (above is not None):
                self.fail(f"{token.text} needs both limits, or an index alone", token.start)
            if domain and above:
                self.starts_at(domain.kids[0])
                domain = Node("limits", (*domain.kids, self.inside(above, self.expression)), span=domain.span)
            kids = [self.product(), *([domain] if domain else [])]
        return self.node("big", token.start, *kids, value=f"{kind} {index}", marks=(token.span,))

    def index_of_sum(self) -> str:
        """Take the name of the index under a sum, and skip what bounds it."""
        if not self.next.is_name:
            self.fail(r"under a sum stands an index, as in `j`, `j = 1` or `j \le i`")
        name, self.at = self.accented(), self.limit
        return name

    def under(self) -> Node | None:
        """Read what bounds the index under a sum; ``j = 1`` is "first"."""
        start = self.at
        self.accented()
        if self.next.kind == "end":
            return None
        if self.take("="):
            return self.node("first", self.tokens[start].start, self.expression())
        self.at = start
        return self.condition()

    # Comparisons

    def condition(self) -> Node:
        """A chain of relations that is true or false."""
        start, kids, signs = self.next.start, [self.expression()], list[Token]()
        while self.compared(kids, signs):
            pass
        if not signs:
            self.fail(r"a condition is a comparison, as in `j \le i`", start)
        self.starts_at(kids[0])
        return self.chain("condition", start, kids, signs)

    def compared(self, kids: list[Node], signs: list[Token]) -> bool:
        """Take a relation, and what is on its right, if one comes next."""
        token = self.take(*RELATIONS)
        if token is None:
            return False
        self.take("&")
        signs.append(token)
        kids.append(self.expression())
        return True

    def chain(self, kind: str, start: int, kids: list[Node], signs: list[Token]) -> Node:
        """Make a node of what relations part."""
        value = " ".join(RELATIONS[token.text] for token in signs)
        return self.node(kind, start, *kids, value=value, marks=tuple(token.span for token in signs))
