"""Writes the program of a cell: what it needs of the cells before it, and its own code, which prints what it shows."""

import ast
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .inline import (
    Bound,
    Imported,
    Inliner,
    Library,
    PageNames,
    Symbol,
    attributes,
    lines_of,
    required,
    third_party,
    written,
)
from .names import bound_names, uses
from .record import CellRun, Effects

_OPTIONS = re.compile(r"\A\s*(?:#\|.*\n?)+")
# What looks names up by itself.
_LOOKS = re.compile(r"(?<![\w.])(?:(?:eval|exec)\(|(?:globals|locals|vars|dir)\(\))")
_PICTURES = ("image/svg+xml", "image/png", "image/jpeg")
_DISPLAY = 'def display(*values):\n    print(*map(repr, values), sep="\\n")'


@dataclass(frozen=True)
class Program:
    """A program, and the top-level modules outside the standard library that it imports."""

    text: str
    requires: tuple[str, ...]


@dataclass
class _Piece:
    """A statement of the page that the program has."""

    cell: int
    node: ast.stmt
    lines: Sequence[str]
    first: int
    last: int
    effects: Effects | None = None


@dataclass
class _Parts:
    imports: list[Imported] = field(default_factory=list)
    stays: set[int] = field(default_factory=set)  # imports that cannot move to the top, by their node's id


def needed(cells: Mapping[int, CellRun], target: int) -> dict[int, list[int]]:
    """The statements of earlier cells that a cell needs: going back from it, those that change what is still needed.

    Code that finds names by itself, as `eval` does, may need all of them.
    """
    chosen: dict[int, list[int]] = {}
    wanted: set[str] = set()
    by_functions: set[str] = set()  # what only functions that are called may look at
    for place in sorted((place for place in cells if place <= target), reverse=True):
        kept = []
        body = _parse(cells[place].code).body
        for index in reversed(range(len(cells[place].effects))):
            effects = cells[place].effects[index]
            own = effects.changes & effects.names
            if place == target or effects.changes & wanted or own & by_functions:
                if index < len(body) and _LOOKS.search(ast.unparse(body[index])):
                    return everything(cells, target)
                kept.append(index)
                wanted = (wanted - effects.binds) | (effects.reads & effects.names)
                by_functions = (by_functions - effects.binds) | (effects.reads - effects.names)
        if place != target and kept:
            chosen[place] = kept[::-1]
    return dict(sorted(chosen.items()))


def everything(cells: Mapping[int, CellRun], target: int) -> dict[int, list[int]]:
    """All statements of earlier cells."""
    return {place: [*range(len(cells[place].effects))] for place in sorted(cells) if place < target}


def write(
    cells: Mapping[int, CellRun],
    target: int,
    earlier: Mapping[int, Sequence[int]],
    library: Library,
    inliner: Inliner | None,
) -> Program:
    """Write the program of a cell.

    Args:
        cells: The page's cells, as they ran.
        target: The cell's place.
        earlier: The statements of cells before it that it needs.
        library: The documented packages.
        inliner: Takes what the program needs out of the packages; without one it imports them.

    Raises:
        CannotInlineError: What it takes from the packages cannot be carried.
    """
    pieces = [piece for place, chosen in earlier.items() for piece in _pieces(place, cells[place], chosen)]
    code = _OPTIONS.sub("", cells[target].code).strip("\n") + "\n"
    tree = _parse(code)
    last = _pieces(target, CellRun(code), range(len(tree.body)))
    every = [piece.node for piece in (*pieces, *last)]
    names = {name.id for node in every for name in (*uses(node).reads, *uses(node).annotations)}
    for node in every:
        if not isinstance(node, ast.Import | ast.ImportFrom) and uses(node).imports:  # what they bind may be local
            names |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    imports, moved = _move_imports(pieces, last, names, library)
    pieces = [piece for piece in pieces if id(piece.node) not in moved]
    page = _page_names(every, library, names)

    parts: list[str] = []
    renamed: dict[Symbol, str] = {}
    nested: list[Imported] = []
    lazy = any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in every)
    if inliner is not None:
        taken = [bound for found in page.imported.values() for bound in found if isinstance(bound, Symbol)]
        namespaces: dict[str, list[list[str]]] = {}
        for name, found in page.imported.items():
            for bound in found:
                if isinstance(bound, Symbol) and not bound.name:
                    chains = [chain for node in every for chain in _attributes(node, name)]
                    namespaces.setdefault(bound.module, []).extend(chains)
        if taken:
            inlined = inliner.inline(taken, namespaces, page)
            renamed, lazy = inlined.names, lazy or inlined.lazy_annotations
            parts += [inlined.source] if inlined.source else []
        symbols = {found.bound: _symbol(found, library) for found in imports if library.owns(found.root)}
        aliases = [f"{name} = {renamed[symbol]}" for name, symbol in symbols.items() if name != renamed[symbol]]
        parts += ["\n".join(aliases)] if aliases else []
        nested = inlined.nested if taken else []
        imports = [found for found in imports if not library.owns(found.root)] + (inlined.imports if taken else [])
    if "display" in names and not {"display"} & page.stored:
        parts.append(_DISPLAY)
    rewriter = _Rewriter(library, renamed if inliner is not None else None, names)
    before = _write_pieces(pieces, rewriter)
    cell = rewriter.cell(code, tree, cells[target])
    text_after = f"{before}\n{cell}"
    if _draws_with_pyplot(cells[target]) and ".show(" not in cell:
        plt = next((f.bound for f in imports if f.target == "matplotlib.pyplot"), "plt")
        cell = f"{cell.rstrip()}\n{plt}.show()\n"
        if not re.search(rf"\bimport matplotlib\.pyplot as {plt}\b", text_after):
            imports.append(Imported("matplotlib.pyplot", "", plt))
    for name, module in (("redirect_stdout", "contextlib"), ("suppress", "contextlib"), ("StringIO", "io")):
        if re.search(rf"^with .*\b{name}\(", before, re.MULTILINE):
            imports.append(Imported(module, name, name))
    head = _write_imports(imports, lazy)
    own = "\n\n".join(_apart(part) for part in (before, cell) if part)
    own = f"\n# From the page\n{own.lstrip()}" if parts else own
    text = "\n\n".join(filter(None, [head, *(f"\n{part}" for part in parts), own]))
    text = re.sub(r"\n{4,}", "\n\n\n", text).strip("\n") + "\n"
    modules = {name for node in every for name in required(node) if inliner is None or not library.owns(name)}
    return Program(text, tuple(third_party([*imports, *nested, *(Imported(name, "", "") for name in modules)])))


def _symbol(found: Imported, library: Library) -> Symbol:
    bound = library.resolve(found.module, found.name) if found.name else Symbol(found.target)
    assert isinstance(bound, Symbol)
    return bound


@functools.lru_cache(maxsize=1024)
def _parse(code: str) -> ast.Module:
    try:
        return ast.parse(code)
    except SyntaxError:  # the cell shows what that looks like, and did nothing
        return ast.Module([], [])


def _attributes(node: ast.stmt, name: str) -> Iterable[list[str]]:
    return attributes(node, name) if name in uses(node).read else ()


def _pieces(place: int, cell: CellRun, chosen: Iterable[int]) -> list[_Piece]:
    lines = cell.code.splitlines(keepends=True)
    body = _parse(cell.code).body
    pieces = []
    for index in chosen:
        effects = cell.effects[index] if index < len(cell.effects) else None
        pieces.append(_Piece(place, body[index], lines, *lines_of(body[index], lines), effects))
    return pieces


def _move_imports(
    pieces: Sequence[_Piece], last: Sequence[_Piece], names: set[str], library: Library
) -> tuple[list[Imported], set[int]]:
    """Imports of earlier cells go to the top, each without what is not used; says which statements those were."""
    found: dict[str, list[Imported]] = {}
    sources: list[tuple[ast.stmt, list[Imported]]] = []
    for piece in pieces:
        if isinstance(piece.node, ast.Import | ast.ImportFrom):
            sources.append((piece.node, list(_imports(piece.node, names, library))))
            for imported in sources[-1][1]:
                found.setdefault(imported.bound, []).append(imported)
    others = [piece.node for piece in pieces if not isinstance(piece.node, ast.Import | ast.ImportFrom)]
    stored = set().union(*(uses(node).binds for node in others))
    imports, moved = [], set()
    for node, brought in sources:
        clash = any(i.bound in stored or len({f.target for f in found[i.bound]}) > 1 for i in brought)
        star = any(alias.name == "*" for alias in node.names) if isinstance(node, ast.ImportFrom) else False
        if clash or (star and not brought):
            continue
        moved.add(id(node))
        imports += brought
    return list(dict.fromkeys(imports)), moved


def _imports(node: ast.Import | ast.ImportFrom, names: set[str], library: Library) -> Iterable[Imported]:
    for alias, name in bound_names(node):
        if isinstance(node, ast.Import):
            if name in names:
                yield Imported(alias.name, "", name)
        elif node.module == "IPython.display" and alias.name == "display":
            continue
        elif name == "*" and library.owns(node.module or ""):
            for public in library.public(library.module(node.module or "")):
                if public in names:
                    yield Imported(node.module or "", public, public)
        elif name in names and node.module != "__future__":
            yield Imported(node.module or "", alias.name, name)


def _page_names(statements: Sequence[ast.stmt], library: Library, names: set[str]) -> PageNames:
    imported: dict[str, set[Bound]] = {}
    stored: set[str] = set()
    for statement in statements:
        used = uses(statement)
        brought = set()
        for node in used.imports:
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                continue
            for alias, bound in library.bound(node):
                name = alias.asname or (alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name)
                brought.add(name)
                if name in names or not isinstance(bound, Symbol):
                    imported.setdefault(name, set()).add(bound)
        if isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        stored |= used.binds - brought
    return PageNames(stored, imported)


class _Rewriter:
    """Rewrites what the program cannot have as the page has it: imports of the packages, and the last expression."""

    def __init__(self, library: Library, renamed: Mapping[Symbol, str] | None, names: set[str]) -> None:
        self._library, self._renamed, self._names = library, renamed, names

    def statement(self, piece: _Piece) -> str:
        """An earlier cell's statement."""
        source = "".join(piece.lines[piece.first - 1 : piece.last])
        shift = sum(len(line) for line in piece.lines[: piece.first - 1])
        alone = _shares_no_line(piece)
        text = "".join(piece.lines)
        begin, end = (shift, shift + len(source)) if alone else _span(piece.node, piece.lines)
        return _apply(text, self._imports(piece.node, piece.lines), begin, end).rstrip("\n")

    def cell(self, code: str, tree: ast.Module, run: CellRun) -> str:
        """The cell's own code, which prints what its last expression shows."""
        lines = code.splitlines(keepends=True)
        edits = [edit for statement in tree.body for edit in self._imports(statement, lines)]
        if run.shown is not None and tree.body and isinstance(tree.body[-1], ast.Expr):
            start, end = _span(tree.body[-1], lines)
            edits.append((start, end, _shown(code[start:end], tree.body[-1].value, run)))
        return _apply(code, edits, 0, len(code)).strip("\n") + "\n"

    def _imports(self, statement: ast.stmt, lines: Sequence[str]) -> list[tuple[int, int, str]]:
        edits: list[tuple[int, int, str]] = []
        if not uses(statement).imports:
            return edits
        parents = {id(child): node for node in ast.walk(statement) for child in ast.iter_child_nodes(node)}
        for node in uses(statement).imports:
            display = isinstance(node, ast.ImportFrom) and node.module == "IPython.display"
            display = display and any(alias.name == "display" for alias in node.names)
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            if not display and (self._renamed is None or not any(map(self._library.owns, modules))):
                continue
            kept = [line for alias, bound in self._library.bound(node) for line in self._replaced(node, alias, bound)]
            start, end = _span(node, lines)
            parent = parents.get(id(node))
            body = (
                next((v for _, v in ast.iter_fields(parent) if isinstance(v, list) and node in v), []) if parent else []
            )
            if not kept and len(body) == 1:
                kept = ["pass"]
            end += lines[(node.end_lineno or 1) - 1][-1:] == "\n" and not kept
            indent = " " * node.col_offset
            edits.append((start - (0 if kept else node.col_offset), end, f"\n{indent}".join(kept)))
        return edits

    def _replaced(self, node: ast.Import | ast.ImportFrom, alias: ast.alias, bound: Bound) -> Iterable[str]:
        name = alias.asname or (alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name)
        if isinstance(bound, Imported):
            if bound.target != "IPython.display.display":
                yield written(bound)
        elif self._renamed is None:
            yield written(
                Imported(node.module or "", alias.name, name)
                if isinstance(node, ast.ImportFrom)
                else Imported(alias.name, "", name)
            )
        elif name in self._names and self._renamed.get(bound, name) != name:
            yield f"{name} = {self._renamed[bound]}"


def _shown(text: str, value: ast.expr, run: CellRun) -> str:
    """The last expression, as a program shows it."""
    assert run.shown is not None
    if run.shown.figure:
        whole = text if isinstance(value, ast.Name | ast.Call | ast.Attribute | ast.Subscript) else f"({text})"
        return f'{whole}.savefig("figure.svg")'
    if _draws_with_pyplot(run) and run.shown.text.startswith("<Figure"):
        return text
    printed = f"print({text})"
    called = ast.parse(printed).body[0]
    assert isinstance(called, ast.Expr)
    match called.value:
        case ast.Call(args=[argument], keywords=[]) if ast.dump(argument) == ast.dump(value):
            inner = text
        case _:
            inner = f"({text})"
    return f"print({inner})" if run.shown.as_text else f"print(repr({inner}))"


def _draws_with_pyplot(run: CellRun) -> bool:
    return any(
        output["output_type"] == "display_data" and any(kind in output["data"] for kind in _PICTURES)
        for output in run.outputs
    )


def _span(node: ast.AST, lines: Sequence[str]) -> tuple[int, int]:
    assert isinstance(node, ast.stmt | ast.expr)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    column = len(lines[node.lineno - 1].encode()[: node.col_offset].decode())
    end_column = len(lines[node.end_lineno - 1].encode()[: node.end_col_offset].decode())
    return starts[node.lineno - 1] + column, starts[node.end_lineno - 1] + end_column


def _apply(text: str, edits: Iterable[tuple[int, int, str]], begin: int, end: int) -> str:
    result, at = "", begin
    for first, last, new in sorted(edits):
        if at <= first and last <= end:
            result += text[at:first] + new
            at = last
    return result + text[at:end]


def _shares_no_line(piece: _Piece) -> bool:
    before = piece.lines[piece.node.lineno - 1].encode()[: piece.node.col_offset].decode()
    after = piece.lines[piece.last - 1].encode()[piece.node.end_col_offset :].decode().strip()
    return not before.strip() and (not after or after.startswith("#") or after == ";")


def _write_pieces(pieces: Sequence[_Piece], rewriter: _Rewriter) -> str:
    """The statements of earlier cells; what they printed there is not printed again."""
    text = ""
    before: _Piece | None = None
    quiet = False
    for piece in pieces:
        statement = rewriter.statement(piece)
        if not statement.strip():
            continue
        heading = ""
        guards = []
        if piece.effects and piece.effects.printed:
            guards.append("redirect_stdout(StringIO())")
        if piece.effects and piece.effects.raised:
            guards.append("suppress(BaseException)")
        if guards:
            heading = f"with {', '.join(guards)}:  # its cell has shown this\n"
            if (
                quiet
                and before is not None
                and before.effects
                and not before.effects.raised
                and guards == ["redirect_stdout(StringIO())"]
            ):
                heading = ""
            statement = _indented(statement)
        quiet = bool(guards)
        text += _gap(before, piece) + heading + statement if before else heading + statement
        before = piece
    return text


def _indented(statement: str) -> str:
    indented = "".join(f"    {line}" if line.strip() else line for line in statement.splitlines(keepends=True))
    block = ast.parse(f"if True:\n{indented}").body[0]
    assert isinstance(block, ast.If)
    if ast.dump(ast.Module(block.body, [])) == ast.dump(ast.Module(ast.parse(statement).body, [])):
        return indented
    unparsed = ast.unparse(ast.parse(statement))  # a string of several lines must not be indented
    return "\n".join(f"    {line}" for line in unparsed.splitlines())


def _gap(before: _Piece, piece: _Piece) -> str:
    if isinstance(before.node, ast.FunctionDef | ast.ClassDef) or isinstance(
        piece.node, ast.FunctionDef | ast.ClassDef
    ):
        return "\n\n\n"
    if before.cell != piece.cell:
        return "\n\n"
    between = piece.lines[before.last : piece.first - 1]
    return "\n\n" if any(not line.strip() for line in between) else "\n"


def _apart(code: str) -> str:
    """Code that begins with a function or class stands two lines apart from what is before it."""
    return f"\n{code}" if re.match(r"@|def |class |async def ", code) else code


def _write_imports(imports: Iterable[Imported], lazy: bool) -> str:
    plain: set[str] = set()
    named: dict[str, set[str]] = {}
    for found in imports:
        if found.name:
            named.setdefault(found.module, set()).add(written(found).partition(" import ")[2])
        else:
            plain.add(written(found))
    sections: dict[bool, list[str]] = {False: [], True: []}
    for line in sorted(plain):
        sections[bool(third_party([Imported(line.split()[1], "", "")]))].append(line)
    for module, wanted in sorted(named.items()):
        line = f"from {module} import {', '.join(sorted(wanted))}"
        if len(line) > 88:
            line = f"from {module} import (\n" + "".join(f"    {name},\n" for name in sorted(wanted)) + ")"
        sections[bool(third_party([Imported(module, "", "")]))].append(line)
    blocks = ["from __future__ import annotations"] if lazy else []
    blocks += ["\n".join(lines) for lines in sections.values() if lines]
    return "\n\n".join(blocks)
