"""A package as its sources define it: read, never imported."""

import ast
import importlib.util
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function
Parameters = dict[str, tuple[ast.expr | None, ast.expr | None]]
_KIND = re.compile(r"(?:^|\.)(?:Bool|Complex|Float|Inexact|Int|Integer|Key|Num|Real|Shaped|UInt)\d*$")  # jaxtyping's
# Bases that bring a class no attributes of its own to document.
_PLAIN = {"NamedTuple", "Protocol", "ABC", "Exception", "ValueError", "KeyError", "RuntimeError", "object"}


def sources(package: str, root: Path) -> Iterable[Path]:
    """The source files of a package: the project's own, or else the installed one's."""
    for folder in (root / package, root / "src" / package):
        if folder.is_dir():
            return sorted(folder.rglob("*.py"))
    spec = importlib.util.find_spec(package)
    if spec and spec.submodule_search_locations is not None:
        return sorted(path for folder in spec.submodule_search_locations for path in Path(folder).rglob("*.py"))
    return [Path(spec.origin)] if spec and spec.origin else []


def documented(tree: ast.Module) -> Iterator[tuple[Documented, str]]:
    """All that has a docstring, each with its docstring as it stands there."""
    waiting: list[ast.AST] = [tree]
    for node in waiting:  # which grows, by what is no expression
        if isinstance(node, Documented) and (text := ast.get_docstring(node, clean=False)):
            yield node, text
        waiting += [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr | ast.expr_context)]


@dataclass
class Package:
    """What the sources of a package define, by name; a name may stand for several things."""

    modules: dict[Path, ast.Module] = field(default_factory=dict)  # the syntax of each, by its file
    classes: dict[str, list[ast.ClassDef]] = field(default_factory=dict)  # methods' own too
    functions: dict[str, list[Function]] = field(default_factory=dict)  # and methods
    aliases: dict[str, str] = field(default_factory=dict)  # what is imported, under the name that it has there
    words: set[str] = field(default_factory=set)  # all names that stand in it, and short texts
    axes: set[str] = field(default_factory=set)  # of tensors, that annotations name
    holds: dict[str, set[str]] = field(default_factory=dict)  # the names that each module binds, by its dotted name
    code: str = ""  # all of it but docstrings
    _raises: dict[int, tuple[set[str], set[str]]] = field(default_factory=dict)

    @classmethod
    def read(cls, name: str, paths: Iterable[Path]) -> "Package":
        """Read the sources of a package; one that is not Python is passed over."""
        package = cls()
        for path in paths:
            source = path.read_text(encoding="utf-8")
            try:
                package.modules[path] = tree = ast.parse(source, str(path))
            except SyntaxError:
                continue
            parts = path.with_suffix("").parts
            dotted = [*parts[len(parts) - 1 - parts[::-1].index(name) :]]
            package._learn(tree, dotted[:-1] if dotted[-1] == "__init__" else dotted)
            for _, text in documented(tree):
                source = source.replace(text, "")
            package.code += source
        return package

    def _learn(self, tree: ast.Module, dotted: Sequence[str]) -> None:
        self.words |= {*dotted}
        for end in range(1, len(dotted)):
            self.holds.setdefault(".".join(dotted[:end]), set()).add(dotted[end])
        self.holds.setdefault(".".join(dotted), set()).update(_bound(tree))
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word) | ast.keyword(arg=str(word)):
                    self.words.add(word)
                case ast.ClassDef(name=name):
                    self.classes.setdefault(name, []).append(node)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    self.functions.setdefault(name, []).append(node)
                case ast.Import(names=names):
                    self.aliases |= {each.asname or each.name: each.name for each in names}
                case ast.ImportFrom(module=str(module), names=names, level=0):
                    self.aliases |= {each.asname or each.name: f"{module}.{each.name}" for each in names}
                case ast.Constant(value=str(text)) if re.fullmatch(r"[\w.:-]+", text):
                    self.words |= set(re.findall(r"\w+", text))
                case ast.Subscript():
                    self.axes |= set(re.findall(r"[A-Za-z_]\w*", axes(node)))

    def has(self, dotted: str) -> bool:
        """Whether a module of the package binds this, or its class has the attribute after it."""
        parts = dotted.split(".")
        end = next((end for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in self.holds), 0)
        top, inner = (*parts[end : end + 2], "", "")[:2]
        if not end or not top:
            return bool(end)
        members = self.members(self.classes[top][0]) if top in self.classes else set()
        return top in self.holds[".".join(parts[:end])] and (not inner or not members or inner in members)

    def members(self, node: ast.ClassDef) -> set[str]:
        """The attributes of a class and of those of the package that it comes from; none if it comes from elsewhere."""
        found: set[str] = set()
        for base in (ast.unparse(base).rpartition(".")[2] for base in node.bases):
            if base not in self.classes and base not in _PLAIN:
                return set()
            found |= self.members(self.classes[base][0]) if base in self.classes else set()
        for each in ast.walk(node):
            match each:
                case ast.AnnAssign(target=ast.Name(id=name)) | ast.FunctionDef(name=name):
                    found.add(name)
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    found.add(name)
                case ast.Assign(targets=targets):
                    found |= {target.id for target in targets if isinstance(target, ast.Name)}
        return found

    def raised(self, node: Documented) -> set[str]:
        """The exceptions that a source raises, in itself or in what it calls of the package."""
        found: set[str] = set()
        waiting = [node]
        for each in waiting:  # which grows
            if id(each) not in self._raises:
                self._raises[id(each)] = self._thrown(each)
            thrown, called = self._raises[id(each)]
            found |= thrown
            for name in called:
                own: list[Documented] = [*self.functions.get(name, ()), *self.classes.get(name, ())]
                waiting += [other for other in own if other not in waiting]
        return found

    def _thrown(self, node: Documented) -> tuple[set[str], set[str]]:
        """The exceptions that a source raises itself, and the names of what it calls."""
        found, called = set(), set()
        for each in ast.walk(node):
            if isinstance(each, ast.Raise):
                thrown = each.exc.func if isinstance(each.exc, ast.Call) else each.exc
                name = ast.unparse(thrown).rpartition(".")[2] if thrown else "Exception"  # any, raised again
                makers = {ast.unparse(maker.returns) for maker in self.functions.get(name, ()) if maker.returns}
                found |= makers or {name}
            elif isinstance(each, ast.Call) and isinstance(each.func, ast.Name | ast.Attribute):
                called.add(each.func.id if isinstance(each.func, ast.Name) else each.func.attr)
        return found, called


def parameters(node: Documented) -> Parameters:
    """What a function, or a class's constructor, takes: each with its default and its annotation."""
    if isinstance(node, ast.Module):
        return {}
    if isinstance(node, ast.ClassDef):
        for each in node.body:
            if isinstance(each, Function) and each.name == "__init__":
                return parameters(each)
        fields = (each for each in node.body if isinstance(each, ast.AnnAssign))
        return {each.target.id: (each.value, each.annotation) for each in fields if isinstance(each.target, ast.Name)}
    given = node.args
    usual = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(usual) - len(given.defaults)) + [*given.defaults]
    pairs: list[tuple[ast.arg | None, ast.expr | None]] = [*zip(usual, defaults, strict=True), (given.vararg, None)]
    pairs += [*zip(given.kwonlyargs, given.kw_defaults, strict=True), (given.kwarg, None)]
    return {arg.arg: (value, arg.annotation) for arg, value in pairs if arg and arg.arg not in ("self", "cls")}


def axes(node: ast.AST) -> str:
    """The axes that an annotation such as ``Float[Tensor, "batch tokens"]`` names; "" if it is none such."""
    match node:
        case ast.Subscript(value=kind, slice=ast.Tuple(elts=[_, ast.Constant(value=str(named))])) if _KIND.search(
            ast.unparse(kind)
        ):
            return re.sub(r"[{}#]", "", named)
    return ""


def _bound(tree: ast.Module) -> Iterator[str]:
    """The names that a module binds, but in its functions and classes."""
    for each in tree.body:
        if isinstance(each, ast.ClassDef | Function):
            yield each.name
            continue
        for part in ast.walk(each):
            if isinstance(part, ast.Name | ast.alias):
                yield part.id if isinstance(part, ast.Name) else part.asname or part.name
