"""What has a value in formulas: terms, factors, functions, sums; and what is true or false of it."""

import re
from collections.abc import Iterator

from .symbols import Symbols
from .tokens import ACCENTS, DOTS, FRACTIONS, FUNCTIONS, RELATIONS, Token
from .tree import Node, Place

PRODUCTS = {"/": "fraction", r"\odot": "odot", r"\oslash": "oslash", r"\times": "times", r"\cdot": "dot"}
PRODUCTS |= {r"\bmod": "mod"}
BIG = {rf"\{name}": name for name in ("sum", "prod", "max", "min", "argmax", "argmin")}
AROUND = {
    **{r"\lVert": ("norm", r"\rVert"), r"\|": ("norm", r"\|"), r"\Vert": ("norm", r"\Vert")},
    **{r"\lvert": ("abs", r"\rvert"), "|": ("abs", "|"), r"\vert": ("abs", r"\vert")},
    **{r"\lfloor": ("floor", r"\rfloor"), r"\lceil": ("ceil", r"\rceil"), r"\langle": ("inner", r"\rangle")},
}
BRACES = {r"\underbrace": "_", r"\overbrace": "^"}
CONSTANTS = {r"\pi": "pi", r"\infty": "inf"}
_MANY = ("max", "min", "concat", "Concat")  # take several arguments
_FACTORS = {*AROUND, *BIG, *CONSTANTS, *FRACTIONS, *BRACES, "(", "[", "{", r"\sqrt", r"\nabla", r"\{"}
_FACTORS |= {rf"\{name}" for name in FUNCTIONS | ACCENTS}
_DIFFERENTIAL = re.compile(r"\{\s*(?:d|\\mathrm\{d\})(?:\^\{?\d\}?)?\s*[a-zA-Z\\}]")


class Expressions(Symbols):
    """Reads expressions, conditions and sets."""

    def expression(self, first: Node | None = None) -> Node:
        """Terms, of which the first may have been read."""
        start = first.span[0] if first else self.next.start
        terms, signs, marks = ([first], "+", [(start, start)]) if first else (list[Node](), "", list[Place]())
        while (sign := self.take("+", "-")) or not terms:
            if sign and terms and (dots := self.take(*DOTS)):
                self.expect("+", r"after the dots: only a_1 + \dots + a_n is read")
                (sequence,) = self.expand([*terms, Node("dots", span=dots.span), self.product()])
                terms, signs, marks = [self.node("series", start, sequence)], "+", [(start, start)]
                continue
            terms.append(self.product())
            signs += sign.text if sign else "+"
            marks.append(sign.span if sign else (start, start))
        if len(terms) == 1 and signs == "+":
            return terms[0]
        for term in terms:
            if term.kind == "mod" and self.latex[term.span[0]] != "(":
                self.fail(r"what \bmod is of can be read in two ways: use parentheses", term.span[0])
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
        if token.is_name or token.kind == "number":
            return True
        if token.kind == "environment":
            return bool(re.fullmatch(r"\\begin\{([pb]?matrix|cases)\}", token.text))
        return token.text in _FACTORS and token.text not in self.closers[-1:]

    def factor(self) -> Node:
        """Read an atom with its scripts."""
        start, token = self.next.start, self.next
        if token.kind == "font" and token.text in FUNCTIONS and not self.names.bound(token.text):
            return self.function(token.text)
        if token.kind == "font" and token.text in ("one", "I") and self.indicates():
            return self.indicator(start)
        if token.text in BIG or (token.kind == "font" and token.text == "E" and not self.names.bound("E")):
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
        if token.kind == "environment" and re.fullmatch(r"\\begin\{[pb]?matrix\}", token.text):
            return self.matrix(token)
        if token.text == "\\begin{cases}":
            return self.cases(token)
        if token.text in CONSTANTS:
            return self.node("constant", token.start, value=CONSTANTS[token.text])
        if token.text in FRACTIONS:
            return self.fraction(token)
        if token.text == "\\sqrt":
            root = [self.only("]")] if self.take("[") else []
            return self.node("sqrt", token.start, self.braced(), *root)
        if token.text == "\\nabla":
            by = self.inside(self.script("_") or self.fail("expected a subscript"), self.factor)
            return self.node("derivative", token.start, self.factor(), by)
        if token.text in BRACES:
            return self.labelled(token)
        if token.text == "\\{":
            return self.braces(token)
        if token.text == "[" and self.related():
            self.at -= 1
            return self.indicator(token.start)
        if token.text == "(":
            inner, *others = self.items(")")
            listed = others or inner.kind == "sequence"
            return self.node("vector", token.start, inner, *others) if listed else self.wider(inner, token.start)
        if token.text == "[":
            return self.bracket(token)
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
            if self.peek("}", "^"):
                only = r"\partial stands in first derivatives of what follows it, \frac{\partial a}{\partial b}, alone"
                self.fail(f"{only}: rewrite it, or add `<!-- unchecked: reason -->`")
            parts.append(self.factor())
            self.expect("}", "after what is differentiated")
        return self.node("derivative", token.start, *parts)

    def labelled(self, token: Token) -> Node:
        r"""``\underbrace{Q K^\top}_{n \times m}``: the label is words, or the shape."""
        inner = self.braced()
        label = self.script(BRACES[token.text])
        if label is None or all("\\text" in self.latex[slice(*t.span)] for t in self.tokens[label.start : label.stop]):
            return self.wider(inner, token.start)
        if "\\times" not in self.texts(label):
            self.fail(r"its label is words, \text{...}, or a shape, n \times m", self.tokens[label.start].start)
        return self.node("labelled", token.start, inner, *self.inside(label, lambda: tuple(self.shape())))

    def around(self, token: Token) -> Node:
        r"""A norm, an absolute value, a rounded number or ``\langle x, y \rangle``."""
        kind, closer = AROUND[token.text]
        self.closers.append(closer)
        kids = [self.expression()]
        if kind == "inner":
            self.expect(",", "between the vectors")
            kids.append(self.expression())
        self.closers.pop()
        self.expect(closer, f"to close {token.text}")
        order = self.script("_") if kind == "norm" else None
        value = "".join(self.texts(order)) if order else ""
        if value not in ("", "1", "2", "F", "\\infty"):
            self.fail(r"of norms, _1, _2, _\infty and _F are in the grammar", self.tokens[self.at - 1].start)
        return self.node(kind, token.start, *kids, value=value)

    def bracket(self, token: Token) -> Node:
        """Read arrays that stand side by side, or below each other."""
        if self.ahead(";") == ";":
            kids = [self.expression()]
            while self.take(";"):
                kids.append(self.expression())
            self.expect("]", "to close [")
            return self.node("concat", token.start, *kids, value="0")
        kids = list(self.items("]"))
        if len(kids) == 1 and kids[0].kind != "sequence":
            return self.wider(kids[0], token.start)
        return self.node("concat", token.start, *kids, value="-1")

    def matrix(self, opening: Token) -> Node:
        """Rows of cells."""
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
        kind, value = ("concat", "-1") if len(rows) == 1 else ("matrix", "0")
        return self.node(kind, opening.start, *self.expand(cells), value=value)

    # Functions and sums

    def function(self, name: str) -> Node:
        """A function that every reader knows, with its argument."""
        start = self.next.start
        self.at += 1
        below, above = self.scripts()
        if name == "softmax" and below and below.stop - below.start == 1 and not above:
            index = self.tokens[below.start]
            if index.kind == "letter" and not self.names.bound(index.text, by_where=True):
                self.free.setdefault(index.text)
                bracket = self.take("(", "[") or self.fail("expected ( after softmax")
                body = self.only(")" if bracket.text == "(" else "]")
                return self.node("softmax", start, body, value=index.text)
        base = self.inside(below, self.expression) if below else None
        power = self.inside(above, self.expression) if above else None
        if base and name != "log":
            self.fail(f"{name} takes no subscript here", base.span[0])
        if power and power.kind != "number":
            self.fail(f"a function's power is a number; for the inverse write \\arc{name}", power.span[0])
        if opening := self.take("(", "["):
            kids = list(self.items(")" if opening.text == "(" else "]"))
        elif name in _MANY:
            self.fail(f"expected ( after {name}")
        else:
            kids = [self.open_argument(name)]
        if len(kids) > 1 and name not in _MANY:
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
            if not simple or not (self.next.is_name or self.next.text in CONSTANTS):
                self.fail(f"where the argument of {name} ends can be read in two ways: use parentheses")
            node = self.node("juxtaposed", start, node, self.factor())
        return node

    def big(self) -> Node:
        """A sum, a product, a mean, or the largest or smallest of what an index gives."""
        token = self.next
        kind = BIG.get(token.text, "mean")
        if kind in FUNCTIONS and self.tokens[self.at + 1].text != "_":
            return self.function(kind)
        self.at += 1
        below, above = self.scripts()
        if below is None:
            self.fail(f"expected the index under {token.text}" + ", or bind E to a function" * (kind == "mean"))
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
            node = self.atom() if kind == "mean" else self.product()  # brackets end what the mean is of
        domains = [domain] if domain else []
        for index in reversed(indices):
            node = self.node("big", token.start, node, *domains, value=f"{kind} {index}", marks=(token.span,))
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
            if token.says(RELATIONS):
                operands.append([])
            else:
                operands[-1].append(token)
        listed = [token for token in operands[0] if token.text != ","]
        letters = len(listed) * 2 - 1 == len(operands[0]) and all(token.is_name for token in listed)
        if letters and (len(listed) > 1 or len(operands) < 3 or listed[0].text not in self.free):
            return tuple(token.text for token in listed)
        for first, *primes in filter(None, operands):
            name = first.text + "_prime" * len(primes)
            known = name in self.free or name in self.locals or self.names.bound(name, by_where=True)
            if first.is_name and all(token.text == "'" for token in primes) and not known:
                return (name,)
        return self.fail(r"under a sum stands an index, as in `j`, `j = 1` or `j \le i`")

    def under(self, indices: tuple[str, ...]) -> Node | None:
        """Read what bounds the indices under a sum; ``j = 1`` is "first"."""
        start = self.next.start
        lines = bool(self.take("\\substack") and self.expect("{", "after \\substack"))
        read: list[str] = []
        resume = self.at
        while not read or self.take(","):
            read.append(self.accented() if self.next.is_name else "")
        listed = tuple(read) == indices
        if listed and self.next.kind == "end":
            return None
        if listed and self.take("="):
            domain = self.node("first", start, self.expression())
        else:
            if not (listed and self.take(":", "\\mid")):
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

    # Conditions and sets

    def condition(self, *words: str) -> Node:
        """Comparisons, joined by "and" and "or", or by some of these."""
        word, *others = words or ("or", "and")
        start, kids = self.next.start, list[Node]()
        while not kids or self.word(word):
            kids.append(self.condition(*others) if others else self.comparison())
        return kids[0] if len(kids) == 1 else self.node(word, start, *kids)

    def comparison(self) -> Node:
        """A chain of relations that is true or false, or a condition in parentheses."""
        start, resume = self.next.start, self.at
        if self.take("("):
            if self.related():
                inner = self.condition()
                self.expect(")", "to close the condition")
                return inner
            self.at = resume
        kids, signs = [self.expression()], list[Token]()
        while self.compared(kids, signs):
            pass
        if not signs:
            self.fail(r"a condition is a comparison, after \text{if}, or \text{otherwise}", start)
        self.starts_at(kids[0])
        return self.chain("condition", start, kids, signs)

    def compared(self, kids: list[Node], signs: list[Token]) -> bool:
        """Take a relation, and what is on its right, if one comes next."""
        token = self.take(*RELATIONS)
        if token is None:
            return False
        self.take("&")
        signs.append(token)
        kids.append(self.space() if RELATIONS[token.text] in "∈∉" else self.expression())
        return True

    def chain(self, kind: str, start: int, kids: list[Node], signs: list[Token]) -> Node:
        """Make a node of what relations part."""
        value = " ".join(RELATIONS[token.text] for token in signs)
        return self.node(kind, start, *kids, value=value, marks=tuple(token.span for token in signs))

    def both(self, one: Node | None, other: Node) -> Node:
        """Join conditions, if there are two."""
        return Node("and", (one, other), "", (one.span[0], other.span[1])) if one else other

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
        self.close(opening, "to close the condition")
        return self.node("indicator", start, condition)

    def cases(self, opening: Token) -> Node:
        """Values, each with its condition."""
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

    def space(self) -> Node:
        """A set, which may be that of all tensors of some sizes whose entries are in it."""
        start, token = self.next.start, self.next
        if token.kind == "font" and token.text in ("R", "Z", "N") and "mathbb" in self.latex[slice(*token.span)]:
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
        """Read the sizes of a set's tensors."""
        if not self.take("{"):
            yield self.factor()
            return
        yield from self.shape()
        self.expect("}", "to close the sizes")

    def shape(self) -> Iterator[Node]:
        r"""Read ``n \times d``."""
        yield self.jux()
        while self.take("\\times"):
            yield self.jux()

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
