"""Writes a statement of a package as a program has it: its names changed, and without what a reader need not see."""

import ast
import functools
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .library import Bound, Library, Module
from .names import FUNCTIONS, Function, Uses, named, uses
from .source import Edit

WIDTH = 100
# What stands in a program for a node: the node, the text, and the package whose files it reads, if any.
Replacement = tuple[ast.expr, str, str]
# Comments that only type checkers, linters and formatters read.
_FOR_TOOLS = re.compile(r"#\s*(?:noqa\b|type: ignore|(?:fmt|isort|mypy|pragma|pylint|pyright|ruff|ty):)[^#]*")


@dataclass
class Writer:
    """Writes statements of a module for one program.

    Attributes:
        library: The packages.
        module: What the statements stand in.
        names: What the program calls each thing of the packages.
        annotations: Whether the program keeps all as it is; else it has the annotations of classes alone.
        replacement: What stands in the program for a name, or for what is asked of it.
    """

    library: Library
    module: Module
    names: Mapping[Bound, str]
    annotations: bool
    replacement: Callable[[Module, ast.Name], Replacement | None]
    _edits: list[Edit] = field(default_factory=list)

    def write(self, place: int) -> str:
        """The source of a statement, with the comments directly above it."""
        module, statement = self.module, self.module.tree.body[place]
        used = uses(statement)
        self._edits = [
            *self._renamed(used),
            *self.library.written_anew(module, used.imports, self.names, module.package),
        ]
        key = (module.name, place, self.annotations, *self._edits)
        if key not in self.library.written:
            if not self.annotations:
                self._edits += tools_comments(module)
            for node in ast.walk(statement):
                if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                    self._shorten_docstring(node)
                if not self.annotations:
                    self._drop_annotations(node)
            self.library.written[key] = self.module.edited(self._edits, *module.whole(statement)).rstrip()
        return self.library.written[key]

    def _renamed(self, used: Uses) -> Iterator[Edit]:
        module = self.module
        for name in (*used.reads, *used.annotations):
            if (replacement := self.replacement(module, name)) is not None:
                yield (*module.span(replacement[0]), replacement[1])
            elif (new := self._new_name(name.id)) != name.id:
                yield (*module.span(name), new)
        for node in used.stores:
            if (new := self._new_name(named(node))) != named(node):
                start = re.compile(rf"\b{named(node)}\b").search(module.text, module.span(node)[0])
                assert start is not None
                yield *start.span(), new
        for declared in used.declared:
            yield (*module.span(declared), f"global {', '.join(map(self._new_name, declared.names))}")

    def _new_name(self, name: str) -> str:
        bound = self.library.lookup(self.module.name, name)
        return self.names.get(bound, name) if bound else name

    def _shorten_docstring(self, node: Function | ast.ClassDef) -> None:
        match node.body[0]:
            case ast.Expr(value=ast.Constant(value=str(text))) as docstring if "\n" in text:
                literal = self.module.of(docstring)
                if opening := re.match(r"[a-zA-Z]*(\"\"\"|''')\s*", literal):
                    first = literal[opening.end() : -3].partition("\n")[0].strip()
                    self._edits.append((*self.module.span(docstring), opening[0].strip() + first + opening[1]))

    def _drop_annotations(self, node: ast.AST) -> None:
        module = self.module
        if isinstance(node, FUNCTIONS):
            self._shorten_signature(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(module.parents[id(node)], ast.ClassDef):
            for part in ast.walk(node.annotation):
                if (kind := shaped(part)) is not None:
                    self._edits.append((*module.span(part), module.of(kind)))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._edits.append((module.span(node.target)[1], module.span(node.annotation)[1], ""))

    def _shorten_signature(self, node: Function) -> None:
        args, (start, _) = node.args, self.module.span(node)
        positional = [*args.posonlyargs, *args.args]
        defaults = [*[None] * (len(positional) - len(args.defaults)), *args.defaults]
        parts = [self._parameter(a, d) for a, d in zip(positional, defaults, strict=True)]
        if args.posonlyargs:
            parts.insert(len(args.posonlyargs), "/")
        if args.vararg or args.kwonlyargs:
            parts.append(f"*{args.vararg.arg if args.vararg else ''}")
        parts += [self._parameter(a, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
        parts += [f"**{args.kwarg.arg}"] if args.kwarg else []
        # All that can hold a colon, but for comments, ends before the one that ends the signature.
        holders = [args, *filter(None, [node.returns]), *getattr(node, "type_params", ())]
        inner = [part for holder in holders for part in ast.walk(holder) if isinstance(part, ast.expr | ast.arg)]
        last = max((self.module.span(part)[1] for part in inner), default=start)
        colon = re.compile(r"(?:#.*|[^:#])*:").match(self.module.text, last)
        assert colon is not None
        name = self.module.edited(self._edits, start, colon.end()).partition("(")[0].split("[")[0]
        self._edits = [edit for edit in self._edits if not start <= edit[0] < colon.end()]
        self._edits.append((start, colon.end(), call(name, parts, " " * node.col_offset, ":")))

    def _parameter(self, parameter: ast.arg, default: ast.expr | None) -> str:
        return parameter.arg + (f"={self.module.edited(self._edits, *self.module.span(default))}" if default else "")


@functools.lru_cache(maxsize=256)
def tools_comments(module: Module) -> list[Edit]:
    """What takes out of a module the comments that only tools read; what else stands in such a comment stays."""
    edits = []
    if _FOR_TOOLS.search(module.text):
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
            if token.type == tokenize.COMMENT and _FOR_TOOLS.search(token.string):
                row, column = token.start
                before = token.line[:column]
                kept = _FOR_TOOLS.sub("", token.string).rstrip()
                start, end = module.offset(row, 0) + column, module.offset(row, 0) + token.end[1]
                if not kept:
                    start, end = start - len(before) + len(before.rstrip()), end + (not before.strip())
                edits.append((start, end, kept))
    return edits


def shaped(node: ast.AST) -> ast.expr | None:
    """The type that one such as jaxtyping's says the shape of: ``Float[Tensor, "rows columns"]``."""
    match node:
        case ast.Subscript(slice=ast.Tuple(elts=[kind, ast.Constant(value=str())])):
            return kind
    return None


def call(function: str, arguments: Sequence[str], indent: str = "", end: str = "") -> str:
    """Write a call in as many lines as it needs."""
    line = f"{function}({', '.join(arguments)}){end}"
    if len(indent + line) <= WIDTH:
        return line
    inner = f"{indent}    "
    unbroken = ", ".join(argument.replace(" ", "\0") for argument in arguments)
    filled = textwrap.fill(unbroken, WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    lines = filled.replace("\0", " ").replace("\n", f"\n{inner}")
    return f"{function}(\n{inner}{lines}\n{indent}){end}"


def join(statements: Iterable[str]) -> str:
    """Put statements below one another: functions and classes stand apart."""
    text = before = ""
    for statement in statements:
        apart = any(re.search(r"^(@|(async )?def |class )", part, re.MULTILINE) for part in (before, statement))
        text += ("\n\n\n" if apart else "\n") * bool(before) + statement
        before = statement
    return text
