"""Derivatives and means: what an operator says of the expression behind it."""

from abc import abstractmethod
from dataclasses import replace

from .symbols import Symbols
from .tokens import Token
from .tree import Node


class Operators(Symbols):
    """Reads operators of calculus."""

    @abstractmethod
    def product(self) -> Node:
        """Read factors, parted by signs."""

    @abstractmethod
    def factor(self) -> Node:
        """Read what has a value."""

    @abstractmethod
    def summed_over(self) -> tuple[str, ...]:
        """Find which letters below a sign are its indices."""

    @abstractmethod
    def under(self, indices: tuple[str, ...]) -> Node | None:
        """Read what bounds indices."""

    def operator(self) -> str:
        r"""Tell which sign of differentiation stands alone above a fraction's line; "" if none does."""
        top = self.texts(range(self.at, min(self.at + 6, self.limit)))
        if top[:1] != ["{"] or top[1:2] not in (["d"], ["\\partial"]):
            return ""
        alone = top[2:3] == ["}"] or top[2:5] == ["^", "2", "}"] or top[2:7] == ["^", "{", "2", "}"]
        return top[1] if alone else ""

    def differentiated(self, token: Token, sign: str) -> Node:
        r"""``\frac{d}{dx} f(x)`` and ``\frac{\partial^2}{\partial x \partial y} f(x, y)``."""
        upright = self.tokens[self.at + 1].kind == "font"
        if sign == "d" and not upright and self.names.bound("d"):
            self.fail(r"d is bound, so this could be a quotient: write \mathrm{d} or \partial", token.start)
        self.at += 2
        order = int(self.inside(above, self.factor).value) if (above := self.script("^")) else 1
        self.expect("}", "after the sign of differentiation")
        self.expect("{", "around what it is by")
        by: list[Node] = []
        while not self.take("}"):
            if self.next.text != sign:
                self.fail(f"expected {sign} before what it is by")
            self.at += 1
            start, power = self.next.start, self.factor()
            twice = power.kind == "power" and power.kids[1].value == "2"
            by += [replace(power.kids[0], span=(start, power.kids[0].span[1]))] * 2 if twice else [power]
        if len(by) != order or any(each.kind not in ("name", "index") for each in by):
            self.fail(r"a derivative is by one name, or twice: \frac{d^2}{dx^2}", token.start)
        node = self.factor()
        if self.starts_factor():
            self.fail("where ends what is differentiated can be read in two ways: use parentheses")
        for each in reversed(by):
            node = self.node("derivative", token.start, node, each)
        return node

    def mean(self) -> Node:
        r"""``\mathbb{E}_i[x_i]``: the mean over an index."""
        token = self.next
        self.at += 1
        below = self.script("_")
        if below is None:
            self.fail(r"of a mean, say over which index, as in \mathbb{E}_i[x_i], or bind E to a function", token.start)
        indices = self.inside(below, self.summed_over)
        with self.local(*indices):
            domain = self.inside(below, lambda: self.under(indices))
            opening = self.take("[", "(") or self.fail("expected [ after the mean's index")
            node = self.only("]" if opening.text == "[" else ")")
        for index in reversed(indices):
            kids = (node, domain) if domain else (node,)
            node = self.node("big", token.start, *kids, value=f"mean {index}", marks=(token.span,))
        return node
