"""The tree that a formula is read as."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

Place = tuple[int, int]  # latex[start:end]


class FormulaError(Exception):
    """A formula that cannot be read, or evaluated; its text says why and what to do."""


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
    span: Place = field(default=(0, 0), compare=False, repr=False)
    marks: tuple[Place, ...] = field(default=(), compare=False, repr=False)

    def walk(self) -> Iterator[Node]:
        """Yield the node and all below it."""
        yield self
        for kid in self.kids:
            yield from kid.walk()

    @property
    def names(self) -> set[str]:
        """The names in it, but for those of functions that it calls."""
        return {node.value for node in self.walk() if node.kind == "name"}


@dataclass(frozen=True)
class Parsed:
    """A formula: its statements (chains of relations), its free indices in order, and those whose range it lists."""

    statements: tuple[Node, ...]
    free: tuple[str, ...]
    ranges: dict[str, tuple[Node, Node]]
    origin: int
    indices: frozenset[str]

    def walk(self) -> Iterator[Node]:
        """Yield all nodes of its statements."""
        for statement in self.statements:
            yield from statement.walk()

    @property
    def names(self) -> set[str]:
        """The names in its statements, but for those of functions."""
        return set().union(*(statement.names for statement in self.statements))
