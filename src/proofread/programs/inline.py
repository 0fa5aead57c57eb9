"""Takes out of a package's source what a program needs of it, so that it runs without the package.

Statements of modules are kept or left out whole, in the order in which Python runs them when it imports the package:
what that order made possible stays possible. A name that two of them, or one and the page, use for different things is
changed. Where a module is used as a namespace (``masks.causal(3)``), the program gets one that holds what is used.
"""

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .excerpt import Replacement, Writer, call, join, shaped
from .library import Bound, CannotInlineError, Library, Module, Symbol, imported_modules
from .names import uses
from .source import Imported, required

_DATA_LIMIT = 500_000  # bytes of a package's data that a program may carry
# What the program's own lines use.
_NAMESPACE = Imported("types", "SimpleNamespace", "SimpleNamespace")
_FILES = [Imported("pathlib", "Path", "Path"), Imported("tempfile", "", "tempfile")]

# What a statement needs: a thing; an attribute of a module, which may be a module in turn; a package's files.
Step = Bound | tuple[str, Sequence[str]] | str


@dataclass
class PageNames:
    """The names that a program's own statements bind: those it stores, and those it imports."""

    stored: set[str]
    imported: dict[str, set[Bound]]


@dataclass
class Inlined:
    """What a program carries of a package.

    Attributes:
        source: The statements, without imports.
        imports: What they import.
        names: What each thing of the package is called in the program.
        requires: The top-level modules that its functions and blocks import.
        lazy_annotations: Whether annotations must not be evaluated.
    """

    source: str = ""
    imports: list[Imported] = field(default_factory=list)
    names: dict[Bound, str] = field(default_factory=dict)
    requires: set[str] = field(default_factory=set)
    lazy_annotations: bool = False


class Inliner:
    """Finds what a program needs of the packages, and writes it down.

    Args:
        library: The packages.
        data: The files that lie within each package and that the page has read.
        annotations: Whether the program keeps them as they are; else it has those of classes alone.
    """

    def __init__(self, library: Library, data: Mapping[str, Sequence[str]], annotations: bool = False) -> None:
        self.library, self._data, self._annotations = library, data, annotations
        self._statements: set[tuple[str, int]] = set()
        self._imports: dict[tuple[str, str], Imported] = {}  # by target and bound name
        self._symbols: dict[Symbol, None] = {}
        self._namespaces: dict[str, dict[str, Bound]] = {}
        self._reads: set[str] = set()  # packages that a file is read of
        self._waiting: list[tuple[Module, int]] = []

    def inline(
        self, wanted: Iterable[Bound], namespaces: Mapping[str, Iterable[Sequence[str]]], page: PageNames
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
            self._imports.setdefault((bound.target, bound.bound), bound)
        elif not bound.name:
            self._namespaces.setdefault(bound.module, {})
        elif bound not in self._symbols:
            self._symbols[bound] = None
            for module, place in self.library.holders(bound):
                self._add(module, place)

    def _add(self, module: Module, place: int) -> None:
        if (module.name, place) not in self._statements:
            self._statements.add((module.name, place))
            self._waiting.append((module, place))
            for name in uses(module.tree.body[place]).binds:
                if name in module.own:
                    self._want(Symbol(module.name, name))

    def _follow(self, module: Module, place: int) -> None:
        """Take in what a statement needs."""
        key = module.name, place, self._annotations
        if key not in self.library.steps:
            self.library.steps[key] = list(self._steps(module, place))
        for step in self.library.steps[key]:
            match step:
                case str(package):
                    self._reads.add(package)
                case (str(name), chain):
                    self._attribute(name, chain)
                case _:
                    self._want(step)

    def _steps(self, module: Module, place: int) -> Iterator[Step]:
        """What a statement needs at once."""
        statement, used = module.tree.body[place], uses(module.tree.body[place])
        for name in (*used.reads, *(n for n in used.annotations if self._is_evaluated(module, n))):
            if replaced := self._replacement(module, name):
                yield from filter(None, [replaced[2]])
            elif bound := self.library.lookup(module.name, name.id):
                is_module = isinstance(bound, Symbol) and not bound.name
                yield (bound.module, module.chain(name)) if is_module else bound
        for node in used.imports:  # within a function or block
            if any(map(self.library.owns, imported_modules(node, module.package))):
                for local, bound in self.library.bound(node, module.package):
                    if isinstance(bound, Symbol) and not bound.name:
                        yield from ((bound.module, chain) for chain in module.chains(statement, local))
                    yield bound

    def _attribute(self, module: str, chain: Sequence[str]) -> None:
        """Take in an attribute of a module, which may be a module in turn."""
        if not chain:
            raise CannotInlineError(f"the module {module} is itself passed on, rather than something in it")
        if chain[0].startswith("__"):
            raise CannotInlineError(f"{module}.{chain[0]} is asked for, which only the module itself has")
        bound = self.library.resolve(module, chain[0])
        self._namespaces.setdefault(module, {})[chain[0]] = bound
        if isinstance(bound, Symbol) and not bound.name:
            self._attribute(bound.module, chain[1:])
        else:
            self._want(bound)

    def _is_evaluated(self, module: Module, name: ast.Name) -> bool:
        """Whether an annotation's name must be known."""
        if module.is_lazy and not isinstance(self.library.lookup(module.name, name.id), Imported):
            return False
        if self._annotations:
            return True
        outer = module.parents[id(name)]
        if isinstance(outer, ast.Subscript) and outer.value is name and shaped(outer) is not None:
            return False
        node: ast.AST = name
        while not isinstance(outer := module.parents[id(node)], ast.stmt | ast.arg):
            node = outer
        is_annotation = isinstance(outer, ast.AnnAssign) and outer.annotation is node
        return is_annotation and isinstance(module.parents[id(outer)], ast.ClassDef)

    def _replacement(self, module: Module, name: ast.Name) -> Replacement | None:
        """What stands in the program for what asks where its module lies, or finds a file of the package."""
        top = module.name.partition(".")[0]
        match name.id:
            case "__file__":
                inside = module.path.relative_to(self.library.folder(top)).parts
                return name, f"str({_path(top, inside)})", top
            case "__name__" | "__package__":
                text = _quoted(module.name if name.id == "__name__" else module.package)
                return name, text.replace('"', "'") if _is_in_double_quotes(module, name) else text, ""
            case "__spec__" | "__path__":
                raise CannotInlineError(f"{module.name} uses {name.id}, which only a module has")
        node: ast.AST = name
        while isinstance(parent := module.parents[id(node)], ast.Attribute):
            node = parent
        bound = self.library.lookup(module.name, name.id)
        if not isinstance(parent, ast.Call) or parent.func is not node or not isinstance(bound, Imported):
            return None
        match ".".join([bound.target, *module.chain(name)]), parent.args:
            case "importlib.import_module", _:
                raise CannotInlineError(f"{module.name} imports modules by name")
            case "importlib.resources.files", [ast.Constant(value=str(package)) | ast.Name(id=package)]:
                package = module.package if package in ("__package__", "__name__") else package
                if self.library.owns(package):
                    top, *folders = package.split(".")
                    return parent, f"({_path(top, folders)})" if folders else _path(top, ()), top
        return None

    def _write(self, page: PageNames) -> Inlined:
        names = self._choose_names(page)
        parts = ["\n".join(self._write_data())] if self._reads else []
        found = Inlined("", [Imported(i.module, i.name, names[i]) for i in self._imports.values()], names)
        found.imports += _FILES if self._reads else []
        for module in self.library.order:
            needed = sorted(place for owner, place in self._statements if owner == module.name)
            statements = [module.tree.body[place] for place in needed]
            found.requires.update(*map(required, statements))
            if module.is_lazy and (any(map(_has_fields, statements)) or (needed and self._annotations)):
                found.lazy_annotations = True
            if needed:
                writer = Writer(self.library, module, names, self._annotations, self._replacement)
                parts.append(f"# From {module.name}\n{join(map(writer.write, needed))}")
            if attributes := self._namespaces.get(module.name):
                held = [f"{attribute}={names[bound]}" for attribute, bound in sorted(attributes.items())]
                parts.append(call(f"{names[Symbol(module.name)]} = SimpleNamespace", held))
                found.imports.append(_NAMESPACE)
        found.source = "\n\n\n".join(parts)
        return found

    def _choose_names(self, page: PageNames) -> dict[Bound, str]:
        taken: dict[str, Bound] = {own.bound: own for own in (_NAMESPACE, *(_FILES if self._reads else ()))}
        names: dict[Bound, str] = {}
        wanted: list[tuple[Bound, str, str]] = [
            *((s, s.name, s.module) for s in self._symbols),
            *((Symbol(m), m.rpartition(".")[2], m) for m in self._namespaces),
            *((i, i.bound, i.root) for i in self._imports.values()),
        ]
        for bound, name, module in wanted:
            prefix = re.sub(r"\W", "_", module.rpartition(".")[2]).strip("_")
            while not self._is_free(name, bound, taken, page):
                name = f"{prefix}_{name.strip('_')}" if not name.startswith(prefix) else f"{name}_"
            taken.setdefault(name, bound)
            names[bound] = name
        return names

    def _is_free(self, name: str, bound: Bound, taken: Mapping[str, Bound], page: PageNames) -> bool:
        if name in taken and not _is_same(taken[name], bound):
            return False
        if name in page.stored or any(not _is_same(other, bound) for other in page.imported.get(name, ())):
            return False
        return isinstance(bound, Imported) or not hasattr(builtins, name)

    def _write_data(self) -> Iterator[str]:
        for package in sorted(self._reads):
            folder = _path(package, ())
            yield f"# Files of {package}"
            yield f"{folder}_kept = tempfile.TemporaryDirectory()  # until the program ends"
            yield f"{folder} = Path({folder}_kept.name)"
            for file in sorted(self._data.get(package, ())):
                data = (self.library.folder(package) / file).read_bytes()
                if len(data) > _DATA_LIMIT:
                    raise CannotInlineError(f"{package} reads its file {file}, whose {len(data):,} bytes are too many")
                if inside := Path(file).parts[:-1]:
                    yield f"({_path(package, inside)}).mkdir(parents=True, exist_ok=True)"
                place = f"({_path(package, Path(file).parts)})"
                if data.isascii() and not re.search(rb'[^\n\t -~]|\\|"""|"\Z', data):
                    text = data.decode()
                    end = "" if text.endswith("\n") else "\\\n"
                    yield f'{place}.write_text("""\\\n{text}{end}""")'
                else:
                    yield f"{place}.write_bytes({data!r})"


def _is_same(one: Bound, other: Bound) -> bool:
    if isinstance(one, Imported) and isinstance(other, Imported):
        return one.target == other.target
    return one == other


def _quoted(text: str) -> str:
    return '"' + repr(text)[1:-1].replace('"', '\\"') + '"'


def _path(package: str, inside: Sequence[str]) -> str:
    """Where a program has a file of a package."""
    return " / ".join([f"{package}_files", *map(_quoted, inside)])


def _has_fields(statement: ast.stmt) -> bool:
    classes = [node for node in ast.walk(statement) if isinstance(node, ast.ClassDef)]
    return any(isinstance(inner, ast.AnnAssign) for node in classes for inner in node.body)


def _is_in_double_quotes(module: Module, node: ast.AST) -> bool:
    """Whether it stands in an f-string that is written so; before Python 3.12 its own quotes must then be others."""
    while not isinstance(node, ast.stmt | ast.JoinedStr):
        node = module.parents[id(node)]
    return isinstance(node, ast.JoinedStr) and module.of(node).lstrip("fFrR").startswith('"')
