"""Takes out of a package's source what a program needs of it, so that it runs without the package.

Statements of modules are kept or left out whole, in the order in which Python runs them when it imports the package:
what that order made possible stays possible. A name that two of them, or one and the page, use for different things is
changed. Where a module is used as a namespace (``masks.causal(3)``), the program gets one that holds what is used.
"""

import ast
import base64
import builtins
import io
import re
import sys
import textwrap
import tokenize
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec, resolve_name
from itertools import accumulate
from pathlib import Path

from .names import FUNCTIONS, Function, Uses, root, uses

WIDTH = 100
_DATA_LIMIT = 500_000  # bytes of a package's data that a program may carry
_READERS = {
    "importlib.resources.files": "{folder}",
    "importlib.resources.read_text": "({folder} / {path}).read_text()",
    "importlib.resources.read_binary": "({folder} / {path}).read_bytes()",
    "pkgutil.get_data": "({folder} / {path}).read_bytes()",
}


class CannotInlineError(ValueError):
    """Why a program cannot carry what it takes from a package."""


@dataclass(frozen=True)
class Imported:
    """What an import binds: ``from module import name as bound``, or with no name ``import module as bound``."""

    module: str
    name: str
    bound: str

    @property
    def target(self) -> str:
        """The dotted name of what is bound."""
        if self.name:
            return f"{self.module}.{self.name}"
        return self.module if self.bound != self.module.partition(".")[0] else self.bound

    @property
    def root(self) -> str:
        """The top-level module that it needs."""
        return self.module.partition(".")[0]


@dataclass(frozen=True)
class Symbol:
    """A name that a module of the package defines; with no name, the module itself."""

    module: str
    name: str = ""


Bound = Imported | Symbol


# What a statement needs: a thing; an attribute of a module, which may be a module in turn; a package's files.
_Step = Bound | tuple[str, Sequence[str]] | str
# What stands in a program for a node: the node, the text, and the package whose files it reads, if any.
_Replacement = tuple[ast.expr, str, str]


@dataclass
class Inlined:
    """What a program carries of a package.

    Attributes:
        source: The statements, without imports.
        imports: What they import.
        names: What each thing that the page takes from the package is called in the program.
        nested: What its functions and blocks import.
        lazy_annotations: Whether annotations must not be evaluated.
    """

    source: str
    imports: list[Imported]
    names: dict[Symbol, str]
    nested: list[Imported]
    lazy_annotations: bool


class Module:
    """A module of the package, as its source has it."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.source = path.read_text(encoding="utf-8")
        self.lines = self.source.splitlines(keepends=True)
        self.tree = ast.parse(self.source)
        self.is_package = path.name == "__init__.py"
        self.package = name if self.is_package else name.rpartition(".")[0]

    def used(self, place: int) -> Uses:
        """The names that a statement uses."""
        return uses(self.tree.body[place])

    @cached_property
    def binds(self) -> list[set[str]]:
        """The names that each statement binds."""
        # What is within a function or class binds a name of the module only by this statement.
        whole = "global" in self.source
        definitions = (*FUNCTIONS, ast.ClassDef)
        return [
            {statement.name} if isinstance(statement, definitions) and not whole else uses(statement).binds
            for statement in self.tree.body
        ]

    @cached_property
    def bound(self) -> set[str]:
        """All names that it binds."""
        return set().union(*self.binds)

    @cached_property
    def imports(self) -> list[ast.Import | ast.ImportFrom]:
        """Its import statements, at any depth."""
        found: list[ast.Import | ast.ImportFrom] = []
        for statement in self.tree.body:
            if any("import" in line for line in self.lines[statement.lineno - 1 : statement.end_lineno]):
                found += (node for node in ast.walk(statement) if isinstance(node, ast.Import | ast.ImportFrom))
        return found

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
    def parents(self) -> dict[int, ast.AST]:
        """Each node's parent, by the node's id."""
        return {id(child): node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def is_lazy(self) -> bool:
        """Whether its annotations are not evaluated."""
        return any(
            isinstance(node, ast.ImportFrom) and node.module == "__future__" and "annotations" in map(_name, node.names)
            for node in self.tree.body
        )

    @cached_property
    def requires(self) -> list[set[str]]:
        """The top-level modules that each statement imports."""
        return [required(statement) for statement in self.tree.body]

    @cached_property
    def own(self) -> dict[str, list[int]]:
        """The statements that bind each name, but for plain imports."""
        found: dict[str, list[int]] = {}
        for place, (statement, names) in enumerate(zip(self.tree.body, self.binds, strict=True)):
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                for name in names:
                    found.setdefault(name, []).append(place)
        return found

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(map(len, self.lines))]

    def offset(self, line: int, column: int) -> int:
        """Where in the source a position of the syntax tree is."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        column = column if text.isascii() else len(text.encode()[:column].decode())
        return self._starts[line - 1] + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where in the source a node stands."""
        assert isinstance(node, ast.stmt | ast.expr | ast.arg)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)


def _name(alias: ast.alias) -> str:
    return alias.name


class Library:
    """The source of some packages."""

    def __init__(self, packages: Sequence[str], imported: Iterable[str] = ()) -> None:
        self.packages = tuple(packages)
        self.imported = [name for name in imported if self.owns(name)]
        self._modules: dict[str, Module | None] = {}
        self._folders: dict[str, Path] = {}
        self.written: dict[tuple[object, ...], str] = {}  # statements, as programs have them
        self._bound_names: dict[tuple[str, str], bool] = {}
        self._resolved: dict[tuple[str, str], Bound] = {}
        # What each symbol and each statement needs at once; programs of a page share most of it.
        self.holders: dict[Symbol, list[tuple[Module, int]]] = {}
        self.steps: dict[tuple[str, int, bool], list[_Step]] = {}

    def owns(self, module: str) -> bool:
        """Whether a module belongs to one of the packages."""
        return module.partition(".")[0] in self.packages

    def folder(self, package: str) -> Path:
        """Where a top-level package lies."""
        if package not in self._folders:
            spec = find_spec(package)
            origin = spec.origin if spec else None
            if origin is None:
                raise CannotInlineError(f"the source of {package} is not to be found")
            self._folders[package] = Path(origin).parent
        return self._folders[package]

    def find(self, name: str) -> Module | None:
        """A module by its dotted name, if there is one."""
        if name not in self._modules:
            top, *rest = name.split(".")
            base = self.folder(top).joinpath(*rest)
            files = [base / "__init__.py", base.with_name(f"{base.name}.py")] if rest else [base / "__init__.py"]
            path = next((file for file in files if file.exists()), None)
            if path is None and not rest:
                path = self.folder(top) / f"{top}.py"  # a package that is one module
                path = path if path.exists() else None
            if path is None and list(base.parent.glob(f"{base.name}.*.so")):
                raise CannotInlineError(f"{name} is compiled, so it has no source")
            self._modules[name] = Module(name, path) if path else None
        return self._modules[name]

    def module(self, name: str) -> Module:
        """A module by its dotted name.

        Raises:
            CannotInlineError: There is none.
        """
        found = self.find(name)
        if found is None:
            raise CannotInlineError(f"the source of {name} is not to be found")
        return found

    def bound(self, node: ast.Import | ast.ImportFrom, package: str = "") -> Iterator[tuple[ast.alias, Bound]]:
        """What each alias of an import statement binds; a star stands for all that it brings."""
        for alias in node.names:
            if isinstance(node, ast.ImportFrom) and alias.name == "*" and self.owns(_source(node, package)):
                module = self.module(_source(node, package))
                yield from ((ast.alias(name), self.resolve(module.name, name)) for name in self.public(module))
            else:
                yield alias, self._bound(node, alias, package)

    def _bound(self, node: ast.Import | ast.ImportFrom, alias: ast.alias, package: str) -> Bound:
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
        return sorted(name for name in module.bound if not name.startswith("_"))

    def resolve(self, module: str, name: str) -> Bound:
        """What a name of a module is, wherever it was defined."""
        if (module, name) not in self._resolved:
            self._resolved[module, name] = self._resolve(self.module(module), name)
        return self._resolved[module, name]

    def _resolve(self, module: Module, name: str) -> Bound:
        if name in module.own:
            return Symbol(module.name, name)
        inner = f"{module.name}.{name}"
        for node in reversed(module.tree.body):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            for alias in node.names:
                itself = isinstance(node, ast.ImportFrom) and _source(node, module.package) == module.name
                if (alias.asname or alias.name.partition(".")[0]) == name and not (itself and alias.name == name):
                    return self._bound(node, alias, module.package)
                if alias.name == "*" and isinstance(node, ast.ImportFrom):
                    source = _source(node, module.package)
                    if self.owns(source) and name in self.public(self.module(source)):
                        return self.resolve(source, name)
        if module.is_package and self.find(inner):
            return Symbol(inner)
        raise CannotInlineError(f"{module.name} has no {name} that its source would show")

    def is_bound(self, module: Module, name: str) -> bool:
        """Whether a module binds a name."""
        key = (module.name, name)
        if key not in self._bound_names:
            self._bound_names[key] = self._is_bound(module, name)
        return self._bound_names[key]

    def _is_bound(self, module: Module, name: str) -> bool:
        if name in module.bound:
            return True
        stars = (node for node in module.tree.body if isinstance(node, ast.ImportFrom) and node.names[0].name == "*")
        return any(
            self.owns(source) and name in self.public(self.module(source))
            for source in (_source(node, module.package) for node in stars)
        )

    @cached_property
    def order(self) -> list[str]:
        """The modules in the order in which Python has run them."""
        order: list[str] = []
        begun: set[str] = set()

        def run(name: str) -> None:
            if name in begun:
                return
            begun.add(name)
            if "." in name:
                run(name.rpartition(".")[0])
            module = self.find(name)
            for node in module.imports if module else ():
                for wanted in _imported_modules(node, module.package if module else ""):
                    if self.owns(wanted) and self.find(wanted):
                        run(wanted)
            order.append(name)

        for name in (*self.packages, *self.imported):
            run(name)
        return order


def _imported_modules(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    module = _source(node, package)
    yield module
    yield from (f"{module}.{alias.name}" for alias in node.names)


def _source(node: ast.ImportFrom, package: str) -> str:
    """The module that names are imported from."""
    return resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module or ""


@dataclass
class _Need:
    """What a program needs, found step by step."""

    statements: set[tuple[str, int]] = field(default_factory=set)
    imports: dict[tuple[str, str], Imported] = field(default_factory=dict)  # by target and bound name
    symbols: dict[Symbol, None] = field(default_factory=dict)
    namespaces: dict[str, dict[str, Bound]] = field(default_factory=dict)
    data: set[str] = field(default_factory=set)  # packages that a file is read of


class Inliner:
    """Finds what a program needs of the packages, and writes it down."""

    def __init__(self, library: Library, data: Mapping[str, Sequence[str]], annotations: bool = False) -> None:
        """Begin.

        Args:
            library: The packages.
            data: The files that lie within each package and that the page has read.
            annotations: Whether the program keeps them as they are; else it has those of classes alone.
        """
        self._library, self._data, self._annotations = library, data, annotations
        self._need = _Need()
        self._waiting: list[tuple[Module, int]] = []

    def inline(
        self, wanted: Iterable[Bound], namespaces: Mapping[str, Iterable[Sequence[str]]], page: "PageNames"
    ) -> Inlined:
        """Write down what a page takes from the packages, with all that this needs in turn.

        Args:
            wanted: What it imports from them.
            namespaces: The attributes that it reads of their modules, each a chain of names.
            page: The names that it uses itself.
        """
        for bound in wanted:
            self._want(bound)
        for module, chains in namespaces.items():
            for chain in chains:
                self._attribute(module, chain)
        while self._waiting:
            self._follow(*self._waiting.pop())
        return self._write(page)

    def _want(self, bound: Bound) -> None:
        if isinstance(bound, Imported):
            self._need.imports.setdefault((bound.target, bound.bound), bound)
        elif not bound.name:
            self._need.namespaces.setdefault(bound.module, {})
        elif bound not in self._need.symbols:
            self._need.symbols[bound] = None
            if bound not in self._library.holders:
                self._library.holders[bound] = list(self._holders(bound))
            for module, place in self._library.holders[bound]:
                self._add(module, place)

    def _holders(self, symbol: Symbol) -> Iterator[tuple[Module, int]]:
        """The statements that make what the symbol holds."""
        module = self._library.module(symbol.module)
        yield from ((module, place) for place in (*module.own[symbol.name], *self._changers(symbol)))
        if not all(isinstance(module.tree.body[p], ast.Assign | ast.AnnAssign) for p in module.own[symbol.name]):
            return
        for other in map(self._library.find, self._library.order):
            if other:
                yield from ((other, place) for place in self._registrations(other, symbol))

    def _add(self, module: Module, place: int) -> None:
        if (module.name, place) not in self._need.statements:
            self._need.statements.add((module.name, place))
            self._waiting.append((module, place))
            for name in module.binds[place]:
                if name in module.own:
                    self._want(Symbol(module.name, name))

    def _changers(self, symbol: Symbol) -> Iterator[int]:
        """Statements of its module that change what the symbol holds."""
        module = self._library.module(symbol.module)
        for place, statement in enumerate(module.tree.body):
            used = uses(statement)
            called = isinstance(statement, ast.Expr) and symbol.name in used.early
            if symbol.name in used.changes or called:
                yield place

    def _registrations(self, module: Module, symbol: Symbol) -> Iterator[int]:
        """Functions and classes that a decorator may have put into what the symbol holds."""
        holder = self._library.module(symbol.module)
        for place, called in module.decorated:
            if not self._library.is_bound(module, called.id):
                continue
            found = self._library.resolve(module.name, called.id)
            made_here = isinstance(found, Symbol) and found.module == symbol.module
            if made_here and any(symbol.name in holder.used(p).read for p in holder.own.get(found.name, ())):
                yield place

    def _follow(self, module: Module, place: int) -> None:
        """Take in what a statement needs."""
        key = module.name, place, self._annotations
        if key not in self._library.steps:
            self._library.steps[key] = list(self._steps(module, place))
        for step in self._library.steps[key]:
            match step:
                case str(package):
                    self._need.data.add(package)
                case (str(name), chain):
                    self._attribute(name, chain)
                case _:
                    self._want(step)

    def _steps(self, module: Module, place: int) -> Iterator[_Step]:
        """What a statement needs at once."""
        statement, used = module.tree.body[place], module.used(place)
        for name in (*used.reads, *(n for n in used.annotations if self._is_evaluated(module, n))):
            if replaced := self._replacement(module, name):
                yield from filter(None, [replaced[2]])
            elif self._library.is_bound(module, name.id):
                bound = self._library.resolve(module.name, name.id)
                if isinstance(bound, Symbol) and not bound.name:
                    yield bound.module, _chain(module.parents, name)
                else:
                    yield bound
        for node in used.imports:
            yield from self._nested(module, statement, node)

    def _attribute(self, module: str, chain: Sequence[str]) -> None:
        """Take in an attribute of a module, which may be a module in turn."""
        if not chain:
            raise CannotInlineError(f"the module {module} is itself passed on, rather than something in it")
        if chain[0].startswith("__"):
            raise CannotInlineError(f"{module}.{chain[0]} is asked for, which only the module itself has")
        bound = self._library.resolve(module, chain[0])
        self._need.namespaces.setdefault(module, {})[chain[0]] = bound
        if isinstance(bound, Symbol) and not bound.name:
            self._attribute(bound.module, chain[1:])
        else:
            self._want(bound)

    def _nested(self, module: Module, statement: ast.stmt, node: ast.Import | ast.ImportFrom) -> Iterator[_Step]:
        """What an import within a function or block brings from the packages."""
        if not any(map(self._library.owns, _imported_modules(node, module.package))):
            return
        for alias, bound in self._library.bound(node, module.package):
            if isinstance(bound, Symbol) and not bound.name:
                name = alias.asname or alias.name.partition(".")[0]
                for used in ast.walk(statement):
                    if isinstance(used, ast.Name) and used.id == name and isinstance(used.ctx, ast.Load):
                        yield bound.module, _chain(module.parents, used)
            yield bound

    def _is_evaluated(self, module: Module, name: ast.Name) -> bool:
        """Whether an annotation's name must be known."""
        if not self._library.is_bound(module, name.id):
            return False
        if self._annotations:
            return not module.is_lazy or isinstance(self._library.resolve(module.name, name.id), Imported)
        if not _is_field(module.parents, name):
            return False
        return not _is_shaped(module.parents, name) and (
            not module.is_lazy or isinstance(self._library.resolve(module.name, name.id), Imported)
        )

    def _replacement(self, module: Module, name: ast.Name) -> _Replacement | None:
        """What stands in the program for what asks where its module lies."""
        if name.id in ("__file__", "__name__", "__package__", "__spec__", "__path__"):
            call = module.parents.get(id(name))
            if isinstance(call, ast.Call) and self._reader(module, call):
                return self._reader(module, call)
            if name.id == "__file__":
                top = module.name.partition(".")[0]
                inside = module.path.relative_to(self._library.folder(top)).parts
                return name, f"str({' / '.join([folder_name(top), *map(_quoted, inside)])})", top
            if name.id in ("__name__", "__package__"):
                text = _quoted(module.name if name.id == "__name__" else module.package)
                return name, text.replace('"', "'") if _is_in_double_quotes(module, name) else text, ""
            raise CannotInlineError(f"{module.name} uses {name.id}, which only a module has")
        node: ast.AST = name
        while isinstance(parent := module.parents.get(id(node)), ast.Attribute):
            node = parent
        if isinstance(parent, ast.Call) and parent.func is node:
            return self._reader(module, parent)
        return None

    def _reader(self, module: Module, call: ast.Call) -> _Replacement | None:
        """What stands for a call that finds or reads a file of the package."""
        name = root(call.func)
        if name is None or not self._library.is_bound(module, name.id) or not call.args:
            return None
        bound = self._library.resolve(module.name, name.id)
        if not isinstance(bound, Imported):
            return None
        dotted = ".".join([bound.target, *_chain(module.parents, name)])
        if dotted == "importlib.import_module":
            raise CannotInlineError(f"{module.name} imports modules by name")
        match call.args[0]:
            case ast.Constant(value=str(package)):
                pass
            case ast.Name(id="__package__"):
                package = module.package
            case ast.Name(id="__name__"):
                package = module.name
            case _:
                return None
        if dotted not in _READERS or not self._library.owns(package):
            return None
        top, *inside = package.split(".")
        folder = " / ".join([folder_name(top), *map(_quoted, inside)])
        path = module.source[slice(*module.span(call.args[1]))] if len(call.args) > 1 else ""
        return call, _READERS[dotted].format(folder=f"({folder})" if inside else folder, path=path), top

    def _write(self, page: "PageNames") -> Inlined:
        names = self._choose_names(page)
        parts: list[str] = []
        imports = [Imported(found.module, found.name, names[found]) for found in self._need.imports.values()]
        if self._need.data:
            parts.append(self._write_data())
            imports += [Imported("pathlib", "Path", "Path"), Imported("tempfile", "", "tempfile")]
        lazy = False
        nested: set[str] = set()
        for name in self._library.order:
            module = self._library.find(name)
            if module is None:
                continue
            needed = sorted(place for owner, place in self._need.statements if owner == name)
            written = [
                _Writer(self._library, module, names, self._annotations, self._replacement).write(p) for p in needed
            ]
            nested.update(*(module.requires[place] for place in needed))
            if needed:
                lazy = lazy or (
                    module.is_lazy
                    and (self._annotations or any(map(_has_fields, (module.tree.body[p] for p in needed))))
                )
                parts.append(f"# From {name}\n" + _join(written))
            if attributes := self._need.namespaces.get(name):
                held = [f"{attribute}={names[bound]}" for attribute, bound in sorted(attributes.items())]
                parts.append(call(f"{names[Symbol(name)]} = SimpleNamespace", held))
                imports.append(Imported("types", "SimpleNamespace", "SimpleNamespace"))
        return Inlined(
            "\n\n\n".join(parts),
            imports,
            {s: n for s, n in names.items() if isinstance(s, Symbol)},
            [Imported(n, "", "") for n in sorted(nested) if not self._library.owns(n)],
            lazy,
        )

    def _choose_names(self, page: "PageNames") -> dict[Bound, str]:
        taken: dict[str, Bound] = {"SimpleNamespace": Imported("types", "SimpleNamespace", "SimpleNamespace")}
        if self._need.data:
            taken |= {"Path": Imported("pathlib", "Path", "Path"), "tempfile": Imported("tempfile", "", "tempfile")}
        names: dict[Bound, str] = {}
        wanted: list[tuple[Bound, str, str]] = [
            *((s, s.name, s.module) for s in self._need.symbols),
            *((Symbol(m), m.rpartition(".")[2], m) for m in self._need.namespaces),
            *((i, i.bound, i.root) for i in self._need.imports.values()),
        ]
        for bound, name, module in wanted:
            prefix = re.sub(r"\W", "_", module.rpartition(".")[2]).strip("_")
            while not self._is_free(name, bound, taken, page):
                name = f"{prefix}_{name.strip('_')}" if not name.startswith(prefix) else f"{name}_"
            taken.setdefault(name, bound)
            names[bound] = name
        return names

    def _is_free(self, name: str, bound: Bound, taken: Mapping[str, Bound], page: "PageNames") -> bool:
        if name in taken and not _is_same(taken[name], bound):
            return False
        if name in page.stored or any(not _is_same(other, bound) for other in page.imported.get(name, ())):
            return False
        return isinstance(bound, Imported) or not hasattr(builtins, name)

    def _write_data(self) -> str:
        parts = []
        for package in sorted(self._need.data):
            files = self._data.get(package, ())
            folder = folder_name(package)
            parts.append(
                f"# Files of {package}\n{folder}_kept = tempfile.TemporaryDirectory()  # until the program ends"
            )
            parts.append(f"{folder} = Path({folder}_kept.name)")
            for file in sorted(files):
                data = (self._library.folder(package) / file).read_bytes()
                if len(data) > _DATA_LIMIT:
                    raise CannotInlineError(f"{package} reads its file {file}, whose {len(data):,} bytes are too many")
                place = " / ".join([folder, *map(_quoted, Path(file).parts)])
                if "/" in file:
                    parent = " / ".join([folder, *map(_quoted, Path(file).parts[:-1])])
                    parts.append(f"({parent}).mkdir(parents=True, exist_ok=True)")
                parts.append(_write_file(place, data))
        return "\n".join(parts)


@dataclass
class PageNames:
    """The names that a program's own statements bind: those it stores, and those it imports."""

    stored: set[str]
    imported: dict[str, set[Bound]]


def folder_name(package: str) -> str:
    """What a program calls the folder that stands for a package's."""
    return f"{package}_files"


def _is_same(one: Bound, other: Bound) -> bool:
    if isinstance(one, Imported) and isinstance(other, Imported):
        return one.target == other.target
    return one == other


def _quoted(text: str) -> str:
    return '"' + repr(text)[1:-1].replace('"', '\\"') + '"'


def _write_file(place: str, data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.isprintable() or (not re.search(r'[\0\r\\]|"""|"\Z', text) and text.isascii()):
        end = "" if text.endswith("\n") else "\\\n"
        return f'({place}).write_text("""\\\n{text}{end}""")'
    packed = base64.b85encode(zlib.compress(data, 9)).decode()
    lines = "\n".join(f"    {line!r}" for line in textwrap.wrap(packed, 96, break_on_hyphens=False))
    return f"({place}).write_bytes(__import__('zlib').decompress(__import__('base64').b85decode(\n{lines}\n)))"


def call(function: str, arguments: Sequence[str], indent: str = "", end: str = "") -> str:
    """Write a call in as many lines as it needs."""
    line = f"{function}({', '.join(arguments)}){end}"
    if len(indent + line) <= WIDTH:
        return line
    inner = f"{indent}    "
    filled = textwrap.fill(
        ", ".join(a.replace(" ", "\0") for a in arguments), WIDTH - 4, break_long_words=False, break_on_hyphens=False
    )
    lines = filled.replace("\0", " ").replace("\n", f"\n{inner}")
    return f"{function}(\n{inner}{lines}\n{indent}){end}"


def _join(statements: Sequence[str]) -> str:
    """Put statements below one another: functions and classes stand apart."""
    text = ""
    for before, statement in zip(["", *statements], statements, strict=False):
        apart = any(re.search(r"^(@|(async )?def |class )", part, re.MULTILINE) for part in (before, statement))
        text += ("\n\n\n" if apart else "\n") * bool(before) + statement
    return text


def _chain(parents: Mapping[int, ast.AST], node: ast.AST) -> list[str]:
    """The attributes that are read of a name, one of the other."""
    chain = []
    while isinstance(parent := parents.get(id(node)), ast.Attribute):
        chain.append(parent.attr)
        node = parent
    return chain


def attributes(tree: ast.AST, name: str) -> Iterator[list[str]]:
    """The chains of attributes that code reads of a name."""
    parents = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            yield _chain(parents, node)


def _annotation_of(parents: Mapping[int, ast.AST], node: ast.AST) -> ast.AnnAssign | None:
    """The annotated assignment in whose annotation a node stands."""
    while (parent := parents.get(id(node))) is not None:
        if isinstance(parent, ast.AnnAssign):
            return parent if parent.annotation is node else None
        if isinstance(parent, ast.stmt | ast.arg):
            return None
        node = parent
    return None


def _is_field(parents: Mapping[int, ast.AST], node: ast.AST) -> bool:
    annotated = _annotation_of(parents, node)
    return annotated is not None and isinstance(parents.get(id(annotated)), ast.ClassDef)


def _is_shaped(parents: Mapping[int, ast.AST], node: ast.AST) -> bool:
    """Whether a name is one such as jaxtyping's, which says the shape of a type: ``Float[Tensor, "rows columns"]``."""
    parent = parents.get(id(node))
    return isinstance(parent, ast.Subscript) and parent.value is node and _shaped(parent) is not None


def _shaped(node: ast.AST) -> ast.expr | None:
    match node:
        case ast.Subscript(slice=ast.Tuple(elts=[kind, ast.Constant(value=str())])):
            return kind
    return None


def _has_fields(statement: ast.stmt) -> bool:
    return any(
        isinstance(inner, ast.AnnAssign)
        for node in ast.walk(statement)
        if isinstance(node, ast.ClassDef)
        for inner in node.body
    )


class _Writer:
    """Writes a module's statement as the program has it."""

    def __init__(
        self,
        library: Library,
        module: Module,
        names: Mapping[Bound, str],
        annotations: bool,
        replacement: Callable[[Module, ast.Name], _Replacement | None],
    ) -> None:
        self._library, self._module, self._names, self._annotations = library, module, names, annotations
        self._replacement = replacement
        self._edits: list[tuple[int, int, str]] = []

    def write(self, place: int) -> str:
        """The source of a statement, with the comments directly above it."""
        module = self._module
        statement, used = module.tree.body[place], module.used(place)
        self._edits = [*self._renamed(used), *self._imported(statement, used)]
        key = (module.name, place, self._annotations, *self._edits)
        if key not in self._library.written:
            self._library.written[key] = self._write(statement)
        return self._library.written[key]

    def _write(self, statement: ast.stmt) -> str:
        module = self._module
        for node in ast.walk(statement):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                self._shorten_docstring(node)
            if not self._annotations:
                self._drop_annotations(node)
        start, end = lines_of(statement, module.lines)
        return self._text(module.offset(start, 0), module.offset(end, 0) + len(module.lines[end - 1])).rstrip()

    def _text(self, start: int, end: int) -> str:
        text, at = "", start
        for first, last, new in sorted(set(self._edits)):
            if first >= at and last <= end:
                text += self._module.source[at:first] + new
                at = last
        return text + self._module.source[at:end]

    def _renamed(self, used: Uses) -> Iterator[tuple[int, int, str]]:
        module = self._module
        for name in (*used.reads, *used.annotations):
            if (replacement := self._replacement(module, name)) is not None:
                yield (*module.span(replacement[0]), replacement[1])
            elif (new := self._new_name(name.id)) != name.id:
                yield (*module.span(name), new)
        for node in used.stores:
            bound = node.id if isinstance(node, ast.Name) else node.name
            if (new := self._new_name(bound)) == bound:
                continue
            start, end = module.span(node)
            if not isinstance(node, ast.Name):
                found = re.compile(rf"\b{bound}\b").search(module.source, start)
                assert found is not None
                start, end = found.span()
            yield start, end, new
        for declared in used.declared:
            names = ", ".join(map(self._new_name, declared.names))
            yield (*module.span(declared), f"global {names}")

    def _new_name(self, name: str) -> str:
        if not self._library.is_bound(self._module, name):
            return name
        return self._names.get(self._library.resolve(self._module.name, name), name)

    def _imported(self, statement: ast.stmt, used: Uses) -> Iterator[tuple[int, int, str]]:
        """Imports within a function or block bring nothing from the packages any more, but for another name."""
        module = self._module
        for node in used.imports:
            if not any(map(self._library.owns, _imported_modules(node, module.package))):
                continue
            lines = []
            for alias, bound in self._library.bound(node, module.package):
                name = alias.asname or alias.name.partition(".")[0]
                if isinstance(bound, Symbol) and self._names[bound] != name:
                    lines.append(f"{name} = {self._names[bound]}")
                elif isinstance(bound, Imported):
                    lines.append(written(bound))
            start, end = module.span(node)
            parent = module.parents[id(node)]
            body = next(value for _, value in ast.iter_fields(parent) if isinstance(value, list) and node in value)
            if not lines and len(body) == 1:
                lines = ["pass"]
            if lines:
                yield start, end, "; ".join(lines)
            else:
                line = module.offset(node.lineno, 0)
                yield line, module.offset((node.end_lineno or 0) + 1, 0), ""

    def _shorten_docstring(self, node: Function | ast.ClassDef) -> None:
        match node.body[0]:
            case ast.Expr(value=ast.Constant(value=str(text))) as docstring if "\n" in text:
                start, end = self._module.span(docstring)
                literal = self._module.source[start:end]
                opening = re.match(r"[a-zA-Z]*(\"\"\"|''')", literal)
                if opening:
                    first = next(
                        (line.strip() for line in literal[opening.end() : -3].splitlines() if line.strip()), ""
                    )
                    self._edits.append((start, end, opening[0] + first + opening[1]))

    def _drop_annotations(self, node: ast.AST) -> None:
        module = self._module
        if isinstance(node, FUNCTIONS):
            self._shorten_signature(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(module.parents.get(id(node)), ast.ClassDef):
            for part in ast.walk(node.annotation):
                if (kind := _shaped(part)) is not None:
                    self._edits.append((*module.span(part), module.source[slice(*module.span(kind))]))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._edits.append((module.span(node.target)[1], module.span(node.annotation)[1], ""))

    def _shorten_signature(self, node: Function) -> None:
        module = self._module
        first = module.offset(node.lineno, node.col_offset)
        depth, end = 0, first
        for token in tokenize.generate_tokens(io.StringIO(module.source[first:]).readline):
            depth += (token.string in ("(", "[", "{")) - (token.string in (")", "]", "}"))
            if token.type == tokenize.OP and token.string == ":" and not depth:
                lines = module.source[first:].splitlines(keepends=True)
                end = first + sum(map(len, lines[: token.end[0] - 1])) + token.end[1]
                break
        args = node.args
        positional = [*args.posonlyargs, *args.args]
        defaults = [*[None] * (len(positional) - len(args.defaults)), *args.defaults]
        parts = [self._parameter(a, d) for a, d in zip(positional, defaults, strict=True)]
        if args.posonlyargs:
            parts.insert(len(args.posonlyargs), "/")
        if args.vararg or args.kwonlyargs:
            parts.append(f"*{args.vararg.arg if args.vararg else ''}")
        parts += [self._parameter(a, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
        parts += [f"**{args.kwarg.arg}"] if args.kwarg else []
        name = self._text(first, end).partition("(")[0].split("[")[0]
        self._edits = [edit for edit in self._edits if not first <= edit[0] < end]
        self._edits.append((first, end, call(name, parts, " " * node.col_offset, ":")))

    def _parameter(self, parameter: ast.arg, default: ast.expr | None) -> str:
        return parameter.arg + (f"={self._text(*self._module.span(default))}" if default else "")


def written(imported: Imported) -> str:
    """An import statement."""
    if imported.name:
        renamed = f" as {imported.bound}" if imported.bound != imported.name else ""
        return f"from {imported.module} import {imported.name}{renamed}"
    renamed = f" as {imported.bound}" if imported.bound != imported.module.partition(".")[0] else ""
    return f"import {imported.module}{renamed}"


def _is_in_double_quotes(module: Module, node: ast.AST) -> bool:
    """Whether it stands in an f-string that is written so; before Python 3.12 its own quotes must then be others."""
    while (above := module.parents.get(id(node))) is not None:
        if isinstance(above, ast.JoinedStr):
            return module.source[slice(*module.span(above))].lstrip("fFrR").startswith('"')
        node = above
    return False


def required(statement: ast.stmt) -> set[str]:
    """The top-level modules that a statement imports; what it only tries to import does not count."""
    if not uses(statement).imports:
        return set()
    tried: set[int] = set()
    for attempt in ast.walk(statement):
        for handler in attempt.handlers if isinstance(attempt, ast.Try) else ():
            caught = ast.unparse(handler.type) if handler.type else "ImportError"
            if re.search("ImportError|ModuleNotFoundError", caught) and not isinstance(handler.body[-1], ast.Raise):
                assert isinstance(attempt, ast.Try)
                tried |= {id(node) for part in attempt.body for node in ast.walk(part)}
    found: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Import) and id(node) not in tried:
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and id(node) not in tried:
            found.add((node.module or "").partition(".")[0])
    return found


def lines_of(statement: ast.stmt, lines: Sequence[str]) -> tuple[int, int]:
    """The first and last line of a statement, with its decorators and the comments directly above it."""
    decorators = getattr(statement, "decorator_list", ())
    first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
    while first > 1 and lines[first - 2].startswith("#") and not lines[first - 2].startswith(("# %%", "#|")):
        first -= 1
    assert statement.end_lineno is not None
    return first, statement.end_lineno


def third_party(imports: Iterable[Imported]) -> list[str]:
    """What must be installed for some imports."""
    return sorted({found.root for found in imports} - sys.stdlib_module_names)
