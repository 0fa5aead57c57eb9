"""Names in formulas, with what stands below and above them, and lists."""

import dataclasses
import keyword
import re
from abc import ABC, abstractmethod

from .tokens import DOTS, STARS, Cursor
from .tree import Node, Place

_TRANSPOSED = {r"\top", r"\intercal"}


class Symbols(Cursor, ABC):
    """Reads names, scripts and lists."""

    @abstractmethod
    def expression(self, first: Node | None = None) -> Node:
        """Read terms, of which the first may have been read."""

    @abstractmethod
    def starts_factor(self) -> bool:
        """Tell whether a factor comes next."""

    # Lists

    def items(self, closer: str) -> tuple[Node, ...]:
        """Read what commas part, up to what closes the list."""
        self.closers.append("")
        items = [self.argument()]
        while self.take(","):
            items.append(self.argument())
        self.closers.pop()
        if not self.take(closer):
            self.unknown(f"expected {closer}")
        return self.expand(items)

    def only(self, closer: str) -> Node:
        """Read a list of one."""
        start = self.next.start
        item, *others = self.items(closer)
        if others or item.kind == "sequence":
            self.fail("a list has no value here", start)
        return item

    def argument(self) -> Node:
        """Read an item, which may be dots."""
        if token := self.take(*DOTS):
            return Node("dots", span=token.span)
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
            self.counts_up(*(max(steps) if alike else (first, first)), step, item)
        low, high = ends.pop()
        self.starts_at(low)
        self.summed[index] = None
        return (Node("sequence", (template, low, high), index, (first.span[0], last.span[1])),)

    def counts_up(self, first: Node, number: Node, step: int, item: Node) -> None:
        """Refuse an item before dots whose number is not as many steps after the first."""
        if not first.kind == number.kind == "number" or float(number.value) != float(first.value) + step:
            self.fail("the items before the dots must count up by one", item.span[0])

    # Names

    def symbol(self) -> Node:
        """A name with its scripts: as much of them as makes a name that is bound, then indices and powers."""
        first = self.next
        raw = self.accented()
        end = self.last.end
        spelled = re.sub(r"\s", "", self.latex[first.start : end])
        below, above = self.scripts()
        low, high = self.flat(below), self.flat(above)
        name = raw + "_" * keyword.iskeyword(raw)
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
            if self.subscript:
                self.free.setdefault(name)
            elif below and low:
                self.fail(f"neither {name}_{low} nor {name} is bound: bind it in `where`", first.start)
            else:
                self.unbound.append((name, first))
        elif name not in (*self.locals, *self.free) and self.names.callable(name):
            opening = self.take("(", "[")
            if opening is None or above:
                self.fail(f"{name} is a function: call it, as in {name}(x)", first.start)
            kids = self.items(")" if opening.text == "(" else "]")
            call = self.attach(self.node("call", first.start, *kids, value=name), first.start, below, None)
            return self.scripted(call, first.start)
        return self.attach(Node("name", (), name, (first.start, end)), first.start, below, above, turned)

    def accented(self) -> str:
        """Take a letter, or what a font command holds, with accents and primes."""
        token = self.next
        if token.kind == "command":
            self.at += 1
            braced = self.take("{")
            name = f"{self.accented()}_{token.text[1:]}"
            if braced:
                self.expect("}", f"after what {token.text} goes over")
        elif token.is_name:
            self.at += 1
            name = token.text
        else:
            self.fail("expected a letter")
        while self.take("'"):
            name += "_prime"
        return name

    # Scripts

    def scripts(self) -> tuple[range | None, range | None]:
        """Skip what stands below and above; of what stands above a transposition at its end is left out."""
        below = above = None
        while self.peek("_", "^"):
            mark = self.next.text
            if (below if mark == "_" else above) is not None:
                self.fail(f"a second {mark} can be read in two ways: use parentheses")
            if mark == "_":
                below = self.script("_")
            elif above := self.script("^"):
                texts = self.texts(above)
                if len(texts) > 1 and texts[-1] in _TRANSPOSED:
                    above = range(above.start, above.stop - 1)
        return below, above

    def flat(self, script: range | None) -> str:
        """Return what a script spells if it could be part of a name."""
        inside = self.tokens[script.start : script.stop] if script else []
        if len(inside) == 1 and inside[0].text in STARS:
            return STARS[inside[0].text]
        text = "".join(token.text if token.is_name or token.kind == "number" else " " for token in inside)
        return text if re.fullmatch(r"\w+", text) else ""

    def turned(self, above: range | None) -> Place | None:
        r"""Return where, after other things in a superscript, ``\top`` stands, as in ``W^{(h)\top}``."""
        if above is None or self.tokens[above.start - 1].text != "{" or self.tokens[above.stop].text not in _TRANSPOSED:
            return None
        return self.tokens[above.stop].span

    def extent(self, script: range) -> Place:
        """Return where a script stands, with its mark and braces."""
        braces = self.tokens[script.start - 1].text == "{"
        last = script.stop - 1 + braces + (self.turned(script) is not None)
        return self.tokens[script.start - 1 - braces].start, self.tokens[last].end

    def scripted(self, node: Node, start: int) -> Node:
        """Read the scripts of a node."""
        below, above = self.scripts()
        return self.attach(node, start, below, above, self.turned(above))

    def attach(
        self, node: Node, start: int, below: range | None, above: range | None, turned: Place | None = None
    ) -> Node:
        """Apply what stands below and above: readers see no order in them, indices come first."""
        end = self.last.end
        if turned:
            return Node("transpose", (self.attach(node, start, below, above),), "", (start, end), (turned,))
        indexed = above and self.bracketed(above) and node.kind not in ("constant", "number")
        for script in (above if indexed else None, below):
            if script:
                indices = self.subscripts(script, bare=script is above)
                node = Node("index", (node, *indices), "", (start, max(node.span[1], self.extent(script)[1])))
        if indexed or not above:
            return node
        texts, mark = self.texts(above), self.extent(above)
        if len(texts) == 1 and texts[0] in (*_TRANSPOSED, "T"):
            if texts[0] == "T" and self.names.bound("T", by_where=True):
                self.fail("T is bound, so ^T could be a power: write ^\\top, or rename T", mark[0])
            if node.kind == "transpose":
                return dataclasses.replace(node.kids[0], span=(start, end))
            return Node("transpose", (node,), "", (start, end), (mark,))
        return Node("power", (node, self.inside(above, self.expression)), "", (start, end), (mark,))

    def bracketed(self, script: range) -> bool:
        """Tell whether one pair of parentheses holds all of a script."""
        texts = self.texts(script)
        return texts[:1] == ["("] and texts[-1] == ")" and ")" not in texts[1:-1]

    def subscripts(self, script: range, *, bare: bool = False) -> tuple[Node, ...]:
        """Read a script as indices; parentheses around several, or all if `bare`, are left aside."""
        if self.bracketed(script) and (bare or "," in self.texts(script)):
            script = range(script.start + 1, script.stop - 1)
        return self.inside(script, self.indices, subscript=True)

    def indices(self) -> tuple[Node, ...]:
        """Read subscripts: separated by commas, or single letters side by side."""
        outer, self.commas = self.commas, self.ahead(",") == ","
        items: list[Node] = []
        while self.next.kind != "end":
            item = self.expression()
            items.append(item)
            self.starts_at(item)
            if not self.take(",") and self.next.kind != "end":
                after = self.tokens[min(self.at + 1, self.limit - 1)].text
                alone = item.kind in ("name", "number") and after not in ("+", "-", "/")
                if self.commas or not alone or not self.starts_factor():
                    self.fail("these indices can be read in two ways: separate them with a comma")
        self.commas = outer
        if not items:
            self.unknown("expected an index")
        return tuple(items)


def _unify(first: Node, last: Node, index: str, ends: set[tuple[Node, Node]]) -> Node | None:
    """Return the tree that is `first` and `last` for two values of an index, which go to `ends`."""
    if first == last:
        return first
    if first.kind == "number":
        ends.add((first, last))
        return Node("name", value=index, span=first.span)
    if (first.kind, first.value, len(first.kids)) != (last.kind, last.value, len(last.kids)):
        return None
    kids = [_unify(one, other, index, ends) for one, other in zip(first.kids, last.kids, strict=True)]
    whole = tuple(kid for kid in kids if kid)
    return dataclasses.replace(first, kids=whole) if len(whole) == len(kids) else None
