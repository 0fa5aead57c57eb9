"""The documented packages as their source has them: their modules, and what each name in these is."""

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from .names import FUNCTIONS, Import, bound_names, uses
from .source import Edit, Imported, Source

DISPLAY = "IPython.display.display"


class CannotInlineError(ValueError):
    """Why a program cannot carry what it takes from a package."""


@dataclass(frozen=True)
class Symbol:
    """A name that a module of the package defines; with no name, the module itself."""

    module: str
    name: str = ""


Bound = Imported | Symbol


class Module(Source):
    """A module of the package."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        super().__init__(text)
        self.name, self.path = name, path
        self.is_package = path.name == "__init__.py"
        self.package = name if self.is_package else name.rpartition(".")[0]

    @cached_property
    def decorated(self) -> list[tuple[int, ast.Name]]:
        """The functions and classes with a decorator that is a name or a call of one, and that name."""
        found = []
        for place, statement in enumerate(self.tree.body):
            for decorator in getattr(statement, "decorator_list", ()):
                called = decorator.func if isinstance(decorator, ast.Call) else decorator
                if isinstance(called, ast.Name):
                    found.append((place, called))
        return found

    @cached_property
    def is_lazy(self) -> bool:
        """Whether its annotations are not evaluated."""
        future = [node for node in self.tree.body if getattr(node, "module", "") == "__future__"]
        return any("annotations" in uses(node).binds for node in future)

    @cached_property
    def own(self) -> dict[str, list[int]]:
        """The statements that bind each name, but for plain imports."""
        found: dict[str, list[int]] = {}
        # Without these, a function or class binds its own name alone: there is no need to look into it.
        looks = re.search(r"\bglobal\b|:=", self.text) is not None
        for place, statement in enumerate(self.tree.body):
            if isinstance(statement, (*FUNCTIONS, ast.ClassDef)) and not looks:
                found.setdefault(statement.name, []).append(place)
            elif not isinstance(statement, Import):
                for name in uses(statement).binds:
                    found.setdefault(name, []).append(place)
        return found


_ahead: dict[tuple[str, Path], Module] = {}


def read_ahead(package: str, folder: Path, path: Path) -> Module:
    """Read a module of a package, and find in it what programs ask for: libraries of this process will have it so."""
    inside = path.relative_to(folder).with_suffix("").parts
    name = ".".join([package, *inside]).removesuffix(".__init__")
    module = _ahead[name, path] = Module(name, path, path.read_text(encoding="utf-8"))
    for found_once in ("own", "decorated", "parents"):
        getattr(module, found_once)
    for statement in module.tree.body:
        uses(statement)
    return module


def _module(name: str, path: Path) -> Module:
    text, known = path.read_text(encoding="utf-8"), _ahead.get((name, path))
    return known if known and known.text == text else Module(name, path, text)


class Library:
    """The source of some packages."""

    def __init__(self, packages: Sequence[str], imported: Iterable[str] = ()) -> None:
        self.packages = tuple(packages)
        self.imported = [name for name in imported if self.owns(name)]
        self.folder = functools.cache(self._folder)
        self.find = functools.cache(self._find)
        self.lookup = functools.cache(self._lookup)
        self.holders = functools.cache(lambda symbol: list(self._holders(symbol)))
        # What programs of a page have in common, too: what each statement needs, and statements as written.
        self.steps: dict[tuple[str, int, bool], list[Any]] = {}
        self.written: dict[tuple[object, ...], str] = {}

    def owns(self, module: str) -> bool:
        """Whether a module belongs to one of the packages."""
        return module.partition(".")[0] in self.packages

    def _folder(self, package: str) -> Path:
        """Where a top-level package lies."""
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise CannotInlineError(f"the source of {package} is not to be found")
        return Path(spec.origin).parent

    def _find(self, name: str) -> Module | None:
        """A module by its dotted name, if there is one; a package may be one module."""
        top, *rest = name.split(".")
        base = self.folder(top).joinpath(*rest)
        files = [base / "__init__.py", base.with_name(f"{base.name}.py") if rest else base / f"{top}.py"]
        return next((_module(name, path) for path in files if path.exists()), None)

    def module(self, name: str) -> Module:
        """A module by its dotted name.

        Raises:
            CannotInlineError: There is none.
        """
        if (found := self.find(name)) is None:
            raise CannotInlineError(f"the source of {name} is not to be found")
        return found

    def bound(self, node: Import, package: str = "") -> Iterator[tuple[str, Bound]]:
        """The names that an import statement binds, and to what; a star stands for all that it brings."""
        for alias, name in bound_names(node):
            if isinstance(node, ast.ImportFrom) and name == "*" and self.owns(_source(node, package)):
                module = self.module(_source(node, package))
                yield from ((public, self.resolve(module.name, public)) for public in self.public(module))
            else:
                yield name, self._bound(node, alias, package)

    def _bound(self, node: Import, alias: ast.alias, package: str) -> Bound:
        if isinstance(node, ast.Import):
            top = alias.name.partition(".")[0]
            if self.owns(alias.name):
                return Symbol(alias.name if alias.asname else top)
            return Imported(alias.name, "", alias.asname or top)
        module = _source(node, package)
        if self.owns(module):
            return self.resolve(module, alias.name)
        return Imported(module, alias.name, alias.asname or alias.name)

    def public(self, module: Module) -> list[str]:
        """What ``from module import *`` brings."""
        for statement in module.tree.body:
            if isinstance(statement, ast.Assign) and "__all__" in uses(statement).binds:
                return list(ast.literal_eval(statement.value))
        return sorted({name for node in module.tree.body for name in uses(node).binds if not name.startswith("_")})

    def resolve(self, module: str, name: str) -> Bound:
        """What a name of a module is, wherever it was defined.

        Raises:
            CannotInlineError: The module has no such name.
        """
        if (bound := self.lookup(module, name)) is None:
            raise CannotInlineError(f"{module} has no {name} that its source would show")
        return bound

    def _lookup(self, owner: str, name: str) -> Bound | None:
        """What a name of a module is, if it has it."""
        module = self.module(owner)
        if name in module.own:
            return Symbol(owner, name)
        for node in reversed([node for node in module.tree.body if isinstance(node, Import)]):
            source = _source(node, module.package) if isinstance(node, ast.ImportFrom) else ""
            for alias, bound in bound_names(node):
                # A package that imports a module of its own from itself says no more than that there is one.
                if bound == name and (source, alias.name) != (owner, name):
                    return self._bound(node, alias, module.package)
                if bound == "*" and self.owns(source) and name in self.public(self.module(source)):
                    return self.resolve(source, name)
        inner = f"{owner}.{name}"
        return Symbol(inner) if module.is_package and self.find(inner) else None

    def _holders(self, symbol: Symbol) -> Iterator[tuple[Module, int]]:
        """The statements that make what the symbol holds."""
        module = self.module(symbol.module)
        yield from ((module, place) for place in module.own[symbol.name])
        for place, statement in enumerate(module.tree.body):
            used = uses(statement)
            if symbol.name in used.changes or (isinstance(statement, ast.Expr) and symbol.name in used.early):
                yield module, place
        if all(isinstance(module.tree.body[p], ast.Assign | ast.AnnAssign) for p in module.own[symbol.name]):
            for other in self.order:
                yield from ((other, place) for place in self._registrations(other, symbol))

    def _registrations(self, module: Module, symbol: Symbol) -> Iterator[int]:
        """Functions and classes that a decorator may have put into what the symbol holds."""
        holder = self.module(symbol.module)
        for place, called in module.decorated:
            found = self.lookup(module.name, called.id)
            if isinstance(found, Symbol) and found.module == symbol.module:
                makers = (holder.tree.body[p] for p in holder.own.get(found.name, ()))
                if any(symbol.name in uses(maker).read for maker in makers):
                    yield place

    def written_anew(
        self, source: Source, imports: Iterable[Import], names: Mapping[Bound, str], package: str = ""
    ) -> Iterator[Edit]:
        """Imports within a program bring nothing from the packages, but for another name, and no `display`.

        Args:
            source: What the imports stand in.
            imports: The import statements.
            names: What the program calls each thing of the packages.
            package: The package that relative imports begin from.
        """
        for node in imports:
            bound = list(self.bound(node, package))
            ours = any(map(self.owns, imported_modules(node, package)))
            lines = []
            for name, what in bound:
                if isinstance(what, Imported):
                    lines += [replace(what, bound=name).statement] * (what.target != DISPLAY)
                elif names.get(what, name) != name:
                    lines.append(f"{name} = {names[what]}")
            if bound and (ours or len(lines) < len(bound)):
                yield source.replaced(node, lines)

    @cached_property
    def order(self) -> list[Module]:
        """The modules in the order in which Python has run them."""
        order: list[Module] = []
        begun: set[str] = set()

        def run(name: str) -> None:
            if name in begun:
                return
            begun.add(name)
            if "." in name:
                run(name.rpartition(".")[0])
            if module := self.find(name):
                importing = [each for each in module.tree.body if "import" in module.of(each)]  # far the fewest
                for node in [node for statement in importing for node in uses(statement).imports]:
                    for wanted in imported_modules(node, module.package):
                        if self.owns(wanted):
                            run(wanted)
                order.append(module)

        for name in (*self.packages, *self.imported):
            run(name)
        return order


def imported_modules(node: Import, package: str) -> Iterator[str]:
    """The modules that an import statement may run."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    module = _source(node, package)
    yield module
    yield from (f"{module}.{alias.name}" for alias in node.names)


def _source(node: ast.ImportFrom, package: str) -> str:
    """The module that names are imported from."""
    return resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module or ""
