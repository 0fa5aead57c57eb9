"""Which global names a statement reads and binds, found by walking its syntax tree scope by scope."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Import = ast.Import | ast.ImportFrom


@dataclass
class Uses:
    """The global names of a statement.

    Attributes:
        reads: Where it reads a global name; a function's body reads when it is called.
        late: Those of the reads that stand in the body of a function or lambda.
        annotations: Names in annotations, which most programs never evaluate.
        binds: The names that it binds or deletes.
        stores: Where it binds or deletes them, but for imports.
        changes: The names whose attributes or items it assigns or deletes.
        imports: Its import statements, at any depth.
        declared: Its ``global`` statements.
    """

    reads: list[ast.Name] = field(default_factory=list)
    late: list[ast.Name] = field(default_factory=list)
    annotations: list[ast.Name] = field(default_factory=list)
    binds: set[str] = field(default_factory=set)
    stores: list[ast.Name | Function | ast.ClassDef] = field(default_factory=list)
    changes: set[str] = field(default_factory=set)
    imports: list[Import] = field(default_factory=list)
    declared: list[ast.Global] = field(default_factory=list)

    @property
    def read(self) -> set[str]:
        """All names that it reads, early or late."""
        return {name.id for name in self.reads}

    @property
    def early(self) -> set[str]:
        """The names that it reads when it runs, rather than when a function that it defines is called."""
        late = set(map(id, self.late))
        return {name.id for name in self.reads if id(name) not in late}


def uses(statement: ast.AST) -> Uses:
    """Find the global names that a module-level statement uses."""
    found: Uses | None = getattr(statement, "_uses", None)  # found once for each tree: programs share their statements
    if found is None:
        walker = _Walker()
        walker.visit(statement)
        found = statement._uses = walker.found  # type: ignore[attr-defined]
    return found


def first_reads(*statements: ast.stmt) -> set[str]:
    """The names that statements may read before they have bound them: a loop binds its variable itself."""
    found: set[str] = set()
    _first_reads(statements, set(), found)
    return found


def _first_reads(statements: Iterable[ast.stmt], bound: set[str], found: set[str]) -> None:
    for node in statements:
        match node:
            case ast.For() | ast.AsyncFor():
                found |= uses(node.iter).read - bound
                _first_reads(node.body, bound | uses(node.target).binds, found)
                _first_reads(node.orelse, set(bound), found)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    found |= uses(item.context_expr).read - bound
                    bound |= uses(item.optional_vars).binds if item.optional_vars else set()
                _first_reads(node.body, bound, found)
            case ast.If() | ast.While():
                found |= uses(node.test).read - bound
                _first_reads(node.body, set(bound), found)
                _first_reads(node.orelse, set(bound), found)
            case ast.Try() | ast.TryStar():
                _first_reads(node.body, set(bound), found)
                for handler in node.handlers:
                    found |= (uses(handler.type).read if handler.type else set()) - bound
                    _first_reads(handler.body, bound | ({handler.name} if handler.name else set()), found)
                _first_reads([*node.orelse, *node.finalbody], set(bound), found)
            case _:
                used = uses(node)
                found |= used.read - bound
                bound |= used.binds


def bound_names(node: Import) -> Iterator[tuple[ast.alias, str]]:
    """What an import statement binds, alias by alias."""
    for alias in node.names:
        dotted = alias.name if isinstance(node, ast.ImportFrom) else alias.name.partition(".")[0]
        yield alias, alias.asname or dotted


def root(node: ast.AST) -> ast.Name | None:
    """The name that a chain of attributes and items begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node if isinstance(node, ast.Name) else None


class _Walker(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found = Uses()
        self._scopes: list[tuple[bool, set[str]]] = []  # whether it is a function's, and what is local there
        self._in_body = 0
        self._in_annotation = False

    def _is_global(self, name: str) -> bool:
        if not self._scopes:
            return True
        innermost = self._scopes[-1]
        # A class's names are seen in its own body alone, not in its methods.
        outer = [local for is_function, local in self._scopes[:-1] if is_function]
        return name not in innermost[1] and not any(name in local for local in outer)

    def visit_Name(self, node: ast.Name) -> None:
        is_class = self._scopes and not self._scopes[-1][0]
        if isinstance(node.ctx, ast.Load) and (self._is_global(node.id) or is_class):
            if self._in_annotation:
                self.found.annotations.append(node)
            else:
                self.found.reads.append(node)
                if self._in_body:
                    self.found.late.append(node)
        elif not isinstance(node.ctx, ast.Load) and self._is_global(node.id):
            self.found.binds.add(node.id)
            self.found.stores.append(node)

    def visit_Attribute(self, node: ast.Attribute | ast.Subscript) -> None:
        name = root(node)
        if not isinstance(node.ctx, ast.Load) and name is not None and self._is_global(name.id):
            self.found.changes.add(name.id)
        self.generic_visit(node)

    visit_Subscript = visit_Attribute  # noqa: N815

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name) and self._is_global(node.target.id):
            self.found.reads.append(node.target)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        self._annotation(node.annotation)
        if node.value is not None:
            self.visit(node.value)

    def _annotation(self, node: ast.AST | None) -> None:
        if node is not None:
            before, self._in_annotation = self._in_annotation, True
            self.visit(node)
            self._in_annotation = before

    def visit_Import(self, node: Import) -> None:
        self.found.imports.append(node)
        self.found.binds |= {name for _, name in bound_names(node) if name != "*" and self._is_global(name)}

    visit_ImportFrom = visit_Import  # noqa: N815

    def visit_ExceptHandler(self, node: ast.AST) -> None:
        self.found.binds |= {name for name in _named(node) if self._is_global(name)}
        self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = visit_MatchMapping = visit_ExceptHandler  # noqa: N815

    def visit_Global(self, node: ast.Global) -> None:
        self.found.declared.append(node)

    def visit_FunctionDef(self, node: Function) -> None:
        self._defined(node)
        for evaluated in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(evaluated)
        for argument in arguments(node.args):
            self._annotation(argument.annotation)
        self._annotation(node.returns)
        self._body(node.args, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def _defined(self, node: Function | ast.ClassDef) -> None:
        if self._is_global(node.name):
            self.found.binds.add(node.name)
            self.found.stores.append(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        self._body(node.args, [node.body])

    def _body(self, args: ast.arguments, body: Iterable[ast.AST]) -> None:
        body = list(body)
        self._in_body += 1
        self._inside(True, {argument.arg for argument in arguments(args)} | _local(body), body)
        self._in_body -= 1

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._defined(node)
        for evaluated in (*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)):
            self.visit(evaluated)
        self._inside(False, _local(node.body), node.body)

    def _inside(self, is_function: bool, local: set[str], nodes: Iterable[ast.AST]) -> None:
        self._scopes.append((is_function, local))
        for node in nodes:
            self.visit(node)
        self._scopes.pop()

    def generic_visit(self, node: ast.AST) -> None:
        if not isinstance(node, _COMPREHENSIONS):
            super().generic_visit(node)
            return
        self.visit(node.generators[0].iter)
        local = {name.id for part in node.generators for name in ast.walk(part.target) if isinstance(name, ast.Name)}
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        inner: list[ast.AST] = [*elements]
        for number, part in enumerate(node.generators):
            inner += [part.target, *part.ifs, *([part.iter] if number else [])]
        self._inside(True, local, inner)


def arguments(args: ast.arguments) -> Iterator[ast.arg]:
    """All parameters of a function."""
    yield from (*args.posonlyargs, *args.args, *args.kwonlyargs)
    yield from filter(None, (args.vararg, args.kwarg))


def _named(node: ast.AST) -> set[str]:
    """The name that an exception or a part of a match is given."""
    name = getattr(node, "rest" if isinstance(node, ast.MatchMapping) else "name")
    return {name} if name else set()


def _local(body: Iterable[ast.AST]) -> set[str]:
    """The names that a function's or class's body binds in its own scope."""
    bound: set[str] = set()
    elsewhere: set[str] = set()
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                bound.add(name)
            case ast.Import() | ast.ImportFrom():
                bound |= {name for _, name in bound_names(node)}
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() | ast.MatchMapping():
                bound |= _named(node)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                elsewhere |= set(names)
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            bound.add(node.name)
            waiting += node.decorator_list
        elif isinstance(node, _COMPREHENSIONS):
            # Its targets are its own, but a walrus in it binds outside.
            bound |= {inner.target.id for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr)}
        elif not isinstance(node, ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return bound - elsewhere
