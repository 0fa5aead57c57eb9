"""Which global names a statement reads and binds, found in its syntax tree from the innermost scope outwards."""

import ast
import functools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

Function = ast.FunctionDef | ast.AsyncFunctionDef
Import = ast.Import | ast.ImportFrom


@dataclass
class Uses:
    """The global names of a statement.

    Attributes:
        early: The names that it reads when it runs.
        late: Those that it reads when a function or lambda is called which it defines.
        adds: Those of the early ones that it adds to, as in ``n += 1``.
        annotations: Names in annotations, which most programs never evaluate.
        binds: The names that it binds or deletes.
        changes: The names whose attributes or items it assigns or deletes.
        declared: Those that it declares ``global``.
    """

    early: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    adds: set[str] = field(default_factory=set)
    annotations: set[str] = field(default_factory=set)
    binds: set[str] = field(default_factory=set)
    changes: set[str] = field(default_factory=set)
    declared: set[str] = field(default_factory=set)

    @property
    def read(self) -> set[str]:
        """All names that it reads, early or late."""
        return self.early | self.late

    @property
    def own(self) -> set[str]:
        """The names that it binds where it is the body of a function or class."""
        return self.binds - self.declared


@functools.lru_cache(maxsize=10_000)  # programs of a page share their statements
def uses(statement: ast.AST) -> Uses:
    """Find the global names that a module-level statement uses."""
    return _Walker(statement).found


def only_defines(statement: ast.AST) -> bool:
    """Whether a statement defines a function or class and runs none: what its body looks up, who calls it reads."""
    return isinstance(statement, ast.ClassDef | Function) and not statement.decorator_list


def first_reads(*statements: ast.stmt, bound: Iterable[str] = ()) -> set[str]:
    """The names that statements may read before they have bound them: a loop binds its variable itself."""
    reads, bound, waiting = set[str](), {*bound}, deque(statements)
    while waiting:
        match node := waiting.popleft():
            case ast.For() | ast.AsyncFor():
                reads |= uses(node.iter).read - bound
                reads |= first_reads(*node.body, bound=bound | uses(node.target).binds)
                reads |= first_reads(*node.orelse, bound=bound)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    reads |= uses(item.context_expr).read - bound
                    bound |= uses(item.optional_vars).binds if item.optional_vars else set()
                waiting.extendleft(reversed(node.body))
            case ast.If() | ast.While():
                reads |= uses(node.test).read - bound
                reads |= first_reads(*node.body, bound=bound) | first_reads(*node.orelse, bound=bound)
            case ast.Try() | ast.TryStar():
                reads |= first_reads(*node.body, bound=bound)
                reads |= first_reads(*node.orelse, *node.finalbody, bound=bound)
                for handler in node.handlers:
                    reads |= uses(handler.type).read - bound if handler.type else set()
                    reads |= first_reads(*handler.body, bound=bound | _named(handler))
            case _:
                reads |= uses(node).read - bound
                bound |= uses(node).binds
    return reads


def bound_names(node: Import) -> Iterator[tuple[ast.alias, str]]:
    """Yield each alias of an import statement, with the name that it binds."""
    for alias in node.names:
        dotted = alias.name if isinstance(node, ast.ImportFrom) else alias.name.partition(".")[0]
        yield alias, alias.asname or dotted


class _Walker(ast.NodeVisitor):
    """Finds what some nodes use; the scopes within are walked apart, and the names that are their own left out."""

    def __init__(self, *nodes: ast.AST) -> None:
        self.found = Uses()
        for node in nodes:
            self.visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.found.early.add(node.id)
        else:
            self.found.binds.add(node.id)

    def visit_Attribute(self, node: ast.Attribute | ast.Subscript) -> None:
        root: ast.AST = node
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if isinstance(root, ast.Name) and not isinstance(node.ctx, ast.Load):
            self.found.changes.add(root.id)
        self.generic_visit(node)

    visit_Subscript = visit_Attribute  # noqa: N815

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.found.early.add(node.target.id)
            self.found.adds.add(node.target.id)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        self._annotation(node.annotation)
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        self._annotation(node.annotation)

    def _annotation(self, node: ast.AST | None) -> None:
        if node is not None:
            self.found.annotations |= uses(node).read

    def visit_Import(self, node: Import) -> None:
        self.found.binds |= {name for _, name in bound_names(node)} - {"*"}

    visit_ImportFrom = visit_Import  # noqa: N815

    def visit_ExceptHandler(self, node: ast.AST) -> None:
        self.found.binds |= _named(node)
        self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = visit_MatchMapping = visit_ExceptHandler  # noqa: N815

    def visit_Global(self, node: ast.Global) -> None:
        self.found.declared.update(node.names)

    def visit_FunctionDef(self, node: Function) -> None:
        self.found.binds.add(node.name)
        for evaluated in (*node.decorator_list, node.args):
            self.visit(evaluated)
        self._annotation(node.returns)
        self._function(node.args, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.args)
        self._function(node.args, [node.body])

    def _function(self, args: ast.arguments, body: Iterable[ast.AST]) -> None:
        inner = _Walker(*body).found
        parameters = {part.arg for part in ast.iter_child_nodes(args) if isinstance(part, ast.arg)}
        # A function that adds to a global variable needs it as soon as it is defined, as if it bound it.
        self._take(replace(inner, early=inner.adds, late=inner.read), inner.own | parameters)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.found.binds.add(node.name)
        for evaluated in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(evaluated)
        inner = _Walker(*node.body).found
        self._take(inner, inner.own, seen=False)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        first, *others = node.generators
        self.visit(first.iter)
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        inner = _Walker(*elements, first.target, *first.ifs, *others).found
        names = [name for part in node.generators for name in ast.walk(part.target) if isinstance(name, ast.Name)]
        self._take(inner, {name.id for name in names})  # what a walrus binds is bound outside

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension  # noqa: N815

    def _take(self, inner: Uses, own: set[str], *, seen: bool = True) -> None:
        """Take over what a scope within uses, but for its own names: a class's are not seen in its methods."""
        found, hidden = self.found, own if seen else set()
        found.early |= inner.early - hidden
        found.late |= inner.late - hidden
        found.adds |= inner.adds - hidden
        found.annotations |= inner.annotations - hidden
        found.binds |= inner.binds - own
        found.changes |= inner.changes - own
        found.declared |= inner.declared


def _named(node: ast.AST) -> set[str]:
    """The name that an exception or a part of a match is given."""
    name = getattr(node, "rest" if isinstance(node, ast.MatchMapping) else "name")
    return {name} if name else set()
