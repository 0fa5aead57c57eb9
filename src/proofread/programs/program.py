"""Writes the program of a cell: what it needs of the cells before it, and its own code, which prints what it shows."""

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .names import Import, bound_names, only_defines, uses
from .record import CellRun, Effects
from .source import Source

# Code that looks names up by itself.
_LOOKS = re.compile(r"(?<![\w.])(?:(?:eval|exec)\(|(?:globals|locals|vars|dir)\(\))")
_OPTIONS = re.compile(r"\A\s*(?:#\|.*\n?)+")
_PICTURES = {"image/svg+xml", "image/png", "image/jpeg"}
_DISPLAY = 'def display(*values):\n    print(*map(repr, values), sep="\\n")'
_DEFINITIONS = (ast.FunctionDef, ast.ClassDef)
# The names that keep earlier cells from printing anew, and their modules.
_GUARDS = {"redirect_stdout": "contextlib", "suppress": "contextlib", "StringIO": "io"}

_source = functools.lru_cache(maxsize=1024)(Source)  # programs of a page share its cells


@dataclass(frozen=True)
class Imported:
    """A name that an import binds: ``from module import name as bound``, or ``import module as bound`` without name."""

    module: str
    name: str
    bound: str

    @property
    def target(self) -> str:
        """The dotted name of what is bound."""
        if self.name:
            return f"{self.module}.{self.name}"
        return self.module if self.bound != self.root else self.bound

    @property
    def root(self) -> str:
        """The top-level module that it needs."""
        return self.module.partition(".")[0]

    @property
    def statement(self) -> str:
        """The import statement."""
        renamed = f" as {self.bound}" if self.bound != (self.name or self.root) else ""
        return (f"from {self.module} import {self.name}" if self.name else f"import {self.module}") + renamed


@dataclass
class _Piece:
    """A statement of an earlier cell that the program has."""

    cell: int
    node: ast.stmt
    source: Source
    effects: Effects


def write(cells: Mapping[int, CellRun], target: int) -> str:
    """Write the program of the cell at the target's place among a page's cells, which all ran."""
    run, own = cells[target], _source(_OPTIONS.sub("", cells[target].code).strip("\n") + "\n")
    pieces = [
        _Piece(place, text.tree.body[index], text, cells[place].effects[index])
        for place, chosen in _needed(cells, target).items()
        for text in [_source(cells[place].code)]
        for index in chosen
    ]
    statements = [*(piece.node for piece in pieces), *own.tree.body]
    names = set().union(*(uses(node).read | uses(node).annotations for node in statements))
    bound = set().union(*(uses(node).binds for node in statements))
    imports, moved = _move_imports([piece.node for piece in pieces], names)
    before = _write_pieces([piece for piece in pieces if id(piece.node) not in moved])
    cell = own.text
    by_repr = any(output["output_type"] == "execute_result" for output in run.outputs)  # what displays itself is not
    if run.shown is not None and by_repr and own.tree.body and isinstance(last := own.tree.body[-1], ast.Expr):
        start, end = own.span(last)
        cell = cell[:start] + _shown(own.of(last), last.value, run) + cell[end:]
    if _draws_with_pyplot(run) and ".show(" not in cell:
        plt = next((imported.bound for imported in imports if imported.target == "matplotlib.pyplot"), "plt")
        if not re.search(rf"\bimport matplotlib\.pyplot as {plt}\b", f"{before}\n{cell}"):
            imports.append(Imported("matplotlib.pyplot", "", plt))
        cell = f"{cell.rstrip()}\n{plt}.show()\n"
    guards = [name for name in _GUARDS if re.search(rf"^with .*\b{name}\(", before, re.MULTILINE)]
    imports += [Imported(_GUARDS[name], name, name) for name in guards]
    lazy = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in statements)
    display = _DISPLAY if "display" in names - bound else ""
    parts = [_write_imports(imports, lazy), *map(_apart, filter(None, (display, before, cell)))]
    return re.sub(r"\n{4,}", "\n\n\n", "\n\n".join(parts)).strip("\n") + "\n"


def _needed(cells: Mapping[int, CellRun], target: int) -> dict[int, list[int]]:
    """The statements of earlier cells that a cell needs: going back from it, those that change what is still needed.

    Code that finds names by itself, as `eval` does, may need all of them.
    """
    chosen: dict[int, list[int]] = {}
    wanted: set[str] = set()
    by_functions: set[str] = set()  # what only functions that are called may look at
    earlier = [place for place in sorted(cells) if place < target]
    for place in reversed([*earlier, target]):
        kept: list[int] = []
        for index, (statement, effects) in reversed(
            [*enumerate(zip(_source(cells[place].code).tree.body, cells[place].effects, strict=False))]
        ):
            own = effects.changes & effects.names
            if place == target or effects.changes & wanted or own & by_functions:
                if _LOOKS.search(ast.unparse(statement)):
                    return {place: [*range(len(cells[place].effects))] for place in earlier}
                kept.insert(0, index)
                reads = effects.reads
                if place != target and only_defines(statement):
                    # Names in a function are read by its callers, or by who copies the cell that makes it.
                    reads = reads & (uses(statement).early | uses(statement).annotations)
                wanted = (wanted - effects.binds) | (reads & effects.names)
                by_functions = (by_functions - effects.binds) | (reads - effects.names)
        if place != target and kept:
            chosen[place] = kept
    return dict(sorted(chosen.items()))


def _move_imports(earlier: Sequence[ast.stmt], names: set[str]) -> tuple[list[Imported], set[int]]:
    """Imports of earlier cells go to the top, each without what is not used; says which statements those were."""
    sources = [
        (node, [imported for imported in _imports(node) if imported.bound in names])
        for node in earlier
        if isinstance(node, Import)
    ]
    targets: dict[str, set[str]] = {}
    for imported in [imported for _, brought in sources for imported in brought]:
        targets.setdefault(imported.bound, set()).add(imported.target)
    stored = {name for node in earlier if not isinstance(node, Import) for name in uses(node).binds}
    imports, moved = [], set()
    for node, brought in sources:
        star = any(alias.name == "*" for alias in node.names)
        if not any(i.bound in stored or len(targets[i.bound]) > 1 for i in brought) and (brought or not star):
            moved.add(id(node))
            imports += brought
    return list(dict.fromkeys(imports)), moved


def _imports(node: Import) -> Iterator[Imported]:
    """Yield the names that an import binds."""
    for alias, bound in bound_names(node):
        if isinstance(node, ast.Import):
            yield Imported(alias.name, "", bound)
        elif node.module != "__future__":
            yield Imported(node.module or "", alias.name, bound)


def _shown(text: str, value: ast.expr, run: CellRun) -> str:
    """The last expression, as a program shows it."""
    assert run.shown is not None
    if run.shown.figure:
        whole = text if isinstance(value, ast.Name | ast.Call | ast.Attribute | ast.Subscript) else f"({text})"
        return f'{whole}.savefig("figure.svg")'
    if _draws_with_pyplot(run) and run.shown.text.startswith("<Figure"):
        return text
    printed = ast.parse(f"print({text})", mode="eval").body
    is_one = isinstance(printed, ast.Call) and ast.dump(printed.args[0]) == ast.dump(value)
    inner = text if is_one else f"({text})"
    return f"print({inner})" if run.shown.as_text else f"print(repr({inner}))"


def _draws_with_pyplot(run: CellRun) -> bool:
    return any(
        output["output_type"] == "display_data"
        and any(kind in output["data"] for kind in _PICTURES)
        and "Figure size" in output["data"].get("text/plain", "Figure size")
        for output in run.outputs
    )


def _write_pieces(pieces: Sequence[_Piece]) -> str:
    """The statements of earlier cells; what they printed there is not printed again."""
    text, guards = "", ""
    before: _Piece | None = None
    for piece in pieces:
        source, effects, last = piece.source, piece.effects, guards
        statement = source.whole(piece.node).rstrip("\n")
        guards = ", ".join(
            ["redirect_stdout(StringIO())"] * effects.printed + ["suppress(BaseException)"] * effects.raised
        )
        if guards:
            statement = _indented(statement)
            if effects.raised or guards != last:
                statement = f"with {guards}:  # its cell has shown this\n{statement}"
        text += (_gap(before, piece) if before else "") + statement
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
    if isinstance(before.node, _DEFINITIONS) or isinstance(piece.node, _DEFINITIONS):
        return "\n\n\n"
    between = piece.source.lines[before.node.end_lineno or 0 : piece.source.first_line(piece.node) - 1]
    return "\n\n" if before.cell != piece.cell or any(not line.strip() for line in between) else "\n"


def _apart(code: str) -> str:
    """Code that begins with a function or class stands two lines apart from what is before it."""
    return f"\n{code}" if re.match(r"@|def |class |async def ", code) else code


def _write_imports(imports: Iterable[Imported], lazy: bool) -> str:
    lines = sorted({(imported.statement, imported.root) for imported in imports if not imported.name})
    for module in sorted({imported.module for imported in imports if imported.name}):
        wanted = sorted({i.statement.partition(" import ")[2] for i in imports if i.name and i.module == module})
        line = f"from {module} import {', '.join(wanted)}"
        if len(line) > 88:
            line = f"from {module} import (\n" + "".join(f"    {name},\n" for name in wanted) + ")"
        lines.append((line, module.partition(".")[0]))
    sections = [[line for line, root in lines if (root in sys.stdlib_module_names) is own] for own in (True, False)]
    blocks = [["from __future__ import annotations"] if lazy else [], *sections]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)
