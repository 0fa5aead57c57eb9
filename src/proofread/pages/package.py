"""A package as its sources define it: read, never imported."""

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..syntax import module, source

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function
Parameters = dict[str, tuple[ast.expr | None, ast.expr | None]]  # the default and the annotation of each, by its name


def sources(package: str, root: Path) -> Iterable[Path]:
    """Return the source files of a package: of the project's own, or else of the one that is installed."""
    for folder in (root / package, root / "src" / package):
        if folder.is_dir():
            return sorted(folder.rglob("*.py"))
    spec = importlib.util.find_spec(package)
    if spec and spec.submodule_search_locations is not None:
        return sorted(path for folder in spec.submodule_search_locations for path in Path(folder).rglob("*.py"))
    return [Path(spec.origin)] if spec and spec.origin else []


def documented(tree: ast.Module) -> Iterator[tuple[Documented, str]]:
    """Yield each module, class and function that has a docstring, with the docstring as it stands in the source."""
    waiting: list[ast.AST] = [tree]
    for node in waiting:  # the list grows here; no expression joins it, as none has a docstring
        if isinstance(node, Documented) and (text := ast.get_docstring(node, clean=False)):
            yield node, text
        waiting += [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr | ast.expr_context)]


@dataclass
class Package:
    """The definitions in the sources of a package, by name; a name may stand for several."""

    modules: dict[Path, ast.Module] = field(default_factory=dict)  # the syntax tree of each file
    broken: dict[Path, SyntaxError] = field(default_factory=dict)  # the error of each file that is not Python
    classes: dict[str, list[ast.ClassDef]] = field(default_factory=dict)  # those within functions, too
    functions: dict[str, list[Function]] = field(default_factory=dict)  # and methods
    _raises_and_calls: dict[int, tuple[set[str], set[str]]] = field(default_factory=dict)  # by the id of a definition

    @classmethod
    def read(cls, paths: Iterable[Path]) -> "Package":
        """Read the sources of a package."""
        package = cls()
        for path in paths:
            try:
                package.modules[path] = tree = module(source(path), str(path))
            except SyntaxError as error:
                package.broken[path] = error
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    package.classes.setdefault(node.name, []).append(node)
                elif isinstance(node, Function):
                    package.functions.setdefault(node.name, []).append(node)
        return package

    def raised(self, node: Documented) -> set[str]:
        """Return the names of the exceptions that a definition raises, or that what it calls of the package raises."""
        exceptions: set[str] = set()
        waiting = [node]
        for each in waiting:  # the list grows here
            if id(each) not in self._raises_and_calls:
                self._raises_and_calls[id(each)] = self._read_raises_and_calls(each)
            own, called = self._raises_and_calls[id(each)]
            exceptions |= own
            for name in called:
                callees: list[Documented] = [*self.functions.get(name, ()), *self.classes.get(name, ())]
                waiting += [callee for callee in callees if callee not in waiting]
        return exceptions

    def _read_raises_and_calls(self, node: Documented) -> tuple[set[str], set[str]]:
        """Return the names of the exceptions that a definition itself raises, and the names of what it calls."""
        exceptions, called = set(), set()
        for decorator in getattr(node, "decorator_list", ()):  # a wrapper may raise before the function runs
            called.add(ast.unparse(decorator).rpartition(".")[2])
        for each in ast.walk(node):
            if isinstance(each, ast.Raise):
                raised = each.exc.func if isinstance(each.exc, ast.Call) else each.exc
                name = ast.unparse(raised).rpartition(".")[2] if raised else "Exception"  # a bare raise: any of them
                # `raise refusal(x)` raises what the function refusal is annotated to return.
                makers = {ast.unparse(maker.returns) for maker in self.functions.get(name, ()) if maker.returns}
                exceptions |= makers or {name}
            elif isinstance(each, ast.Call) and isinstance(each.func, ast.Name | ast.Attribute):
                called.add(each.func.id if isinstance(each.func, ast.Name) else each.func.attr)
        return exceptions, called


def parameters(node: Documented) -> Parameters:
    """Return the parameters of a function or of a class's constructor, with their defaults and annotations."""
    if isinstance(node, ast.Module):
        return {}
    if isinstance(node, ast.ClassDef):
        for each in node.body:
            if isinstance(each, Function) and each.name == "__init__":
                return parameters(each)
        fields = (each for each in node.body if isinstance(each, ast.AnnAssign))
        return {each.target.id: (each.value, each.annotation) for each in fields if isinstance(each.target, ast.Name)}
    arguments = node.args
    usual = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(usual) - len(arguments.defaults)) + [*arguments.defaults]
    pairs: list[tuple[ast.arg | None, ast.expr | None]] = [*zip(usual, defaults, strict=True), (arguments.vararg, None)]
    pairs += [*zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True), (arguments.kwarg, None)]
    return {arg.arg: (value, arg.annotation) for arg, value in pairs if arg and arg.arg not in ("self", "cls")}


def constants(tree: ast.Module) -> dict[str, str]:
    """Return the source of each value that a module binds to a name."""
    assigned = (each for each in tree.body if isinstance(each, ast.Assign | ast.AnnAssign) and each.value)
    return {
        target.id: ast.unparse(each.value)
        for each in assigned
        for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
        if isinstance(target, ast.Name) and each.value
    }
