"""Writes the program of a cell: what it needs of the cells before it, and its own code, which prints what it shows."""

import ast
import functools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .inline import Inlined, Inliner, PageNames
from .library import DISPLAY, Bound, Library, Symbol
from .names import Import, uses
from .record import CellRun, Effects
from .source import Imported, Source, required

# What looks names up by itself.
_LOOKS = re.compile(r"(?<![\w.])(?:(?:eval|exec)\(|(?:globals|locals|vars|dir)\(\))")
_OPTIONS = re.compile(r"\A\s*(?:#\|.*\n?)+")
_PICTURES = {"image/svg+xml", "image/png", "image/jpeg"}
_DISPLAY = 'def display(*values):\n    print(*map(repr, values), sep="\\n")'
_DEFINITIONS = (ast.FunctionDef, ast.ClassDef)
# What keeps earlier cells from showing anew what they have shown, and where it is from.
_GUARDS = {"redirect_stdout": "contextlib", "suppress": "contextlib", "StringIO": "io"}
_source = functools.lru_cache(maxsize=1024)(Source)  # programs of a page share its cells


@dataclass
class _Piece:
    """A statement of an earlier cell that the program has."""

    cell: int
    node: ast.stmt
    source: Source
    effects: Effects


def needed(cells: Mapping[int, CellRun], target: int) -> dict[int, list[int]]:
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
                wanted = (wanted - effects.binds) | (effects.reads & effects.names)
                by_functions = (by_functions - effects.binds) | (effects.reads - effects.names)
        if place != target and kept:
            chosen[place] = kept
    return dict(sorted(chosen.items()))


def write(
    cells: Mapping[int, CellRun],
    target: int,
    earlier: Mapping[int, Sequence[int]],
    inliner: Inliner,
) -> tuple[str, tuple[str, ...]]:
    """Write the program of a cell; returns it and the top-level modules outside the standard library that it imports.

    Args:
        cells: The page's cells, as they ran.
        target: The cell's place.
        earlier: The statements of cells before it that it needs.
        inliner: Takes what the program needs out of packages; of a library without any it takes nothing.

    Raises:
        CannotInlineError: What it takes from the packages cannot be carried.
    """
    library = inliner.library
    run, own = cells[target], _source(_OPTIONS.sub("", cells[target].code).strip("\n") + "\n")
    pieces = [
        _Piece(place, text.tree.body[index], text, cells[place].effects[index])
        for place, chosen in earlier.items()
        for text in [_source(cells[place].code)]
        for index in chosen
    ]
    every = [*((piece.node, piece.source) for piece in pieces), *((node, own) for node in own.tree.body)]
    statements = [node for node, _ in every]
    names = {name.id for node in statements for name in (*uses(node).reads, *uses(node).annotations)}
    for node in statements:
        if not isinstance(node, Import) and uses(node).imports:  # what they bind may be local
            names |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    imports, moved = _move_imports([piece.node for piece in pieces], names, library)
    pieces = [piece for piece in pieces if id(piece.node) not in moved]
    page = _page_names(statements, library, names)

    inlined = _inlined(inliner, page, every)
    aliases, others = [], [found for found in imports if not library.owns(found.root)]
    for found in [found for found in imports if library.owns(found.root)]:
        bound = library.resolve(found.module, found.name) if found.name else Symbol(found.target)
        if isinstance(bound, Imported):  # what a package has imported itself
            others.append(replace(bound, bound=found.bound))
        elif inlined.names[bound] != found.bound:
            aliases.append(f"{found.bound} = {inlined.names[bound]}")
    shows = "display" in names and "display" not in page.stored
    parts = [part for part in (inlined.source, "\n".join(aliases), _DISPLAY if shows else "") if part]
    imports = others + inlined.imports
    before = _write_pieces(pieces, library, inlined.names)
    edits = [edit for node in own.tree.body for edit in library.written_anew(own, uses(node).imports, inlined.names)]
    by_repr = any(output["output_type"] == "execute_result" for output in run.outputs)  # what displays itself is not
    if run.shown is not None and by_repr and own.tree.body and isinstance(last := own.tree.body[-1], ast.Expr):
        edits.append((*own.span(last), _shown(own.of(last), last.value, run)))
    cell = own.edited(edits, 0, len(own.text)).strip("\n") + "\n"
    if _draws_with_pyplot(run) and ".show(" not in cell:
        plt = next((found.bound for found in imports if found.target == "matplotlib.pyplot"), "plt")
        if not re.search(rf"\bimport matplotlib\.pyplot as {plt}\b", f"{before}\n{cell}"):
            imports.append(Imported("matplotlib.pyplot", "", plt))
        cell = f"{cell.rstrip()}\n{plt}.show()\n"
    guards = [name for name in _GUARDS if re.search(rf"^with .*\b{name}\(", before, re.MULTILINE)]
    imports += [Imported(_GUARDS[name], name, name) for name in guards]
    body = "\n\n".join(_apart(part) for part in (before, cell) if part)
    body = f"\n# From the page\n{body.lstrip()}" if parts else body
    lazy = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in statements)
    head = _write_imports(imports, lazy or inlined.lazy_annotations)
    text = "\n\n".join(part for part in (head, *(f"\n{part}" for part in parts), body) if part)
    text = re.sub(r"\n{4,}", "\n\n\n", text).strip("\n") + "\n"
    modules = {found.root for found in imports}.union(inlined.requires, *map(required, statements))
    return text, tuple(_third_party(name for name in modules if not library.owns(name)))


def _inlined(inliner: Inliner, page: PageNames, every: Sequence[tuple[ast.stmt, Source]]) -> Inlined:
    """What the program carries: all that its statements take from the packages."""
    taken = [(name, bound) for name, found in page.imported.items() for bound in found if isinstance(bound, Symbol)]
    namespaces: dict[str, list[list[str]]] = {}
    for name, bound in taken:
        if not bound.name:
            readers = [(node, text) for node, text in every if name in uses(node).read]
            chains = [chain for node, text in readers for chain in text.chains(node, name)]
            namespaces.setdefault(bound.module, []).extend(chains)
    return inliner.inline([bound for _, bound in taken], namespaces, page)


def _move_imports(earlier: Sequence[ast.stmt], names: set[str], library: Library) -> tuple[list[Imported], set[int]]:
    """Imports of earlier cells go to the top, each without what is not used; says which statements those were."""
    sources = [(node, list(_imports(node, names, library))) for node in earlier if isinstance(node, Import)]
    targets: dict[str, set[str]] = {}
    for found in [found for _, brought in sources for found in brought]:
        targets.setdefault(found.bound, set()).add(found.target)
    stored = {name for node in earlier if not isinstance(node, Import) for name in uses(node).binds}
    imports, moved = [], set()
    for node, brought in sources:
        star = any(alias.name == "*" for alias in node.names)
        if not any(i.bound in stored or len(targets[i.bound]) > 1 for i in brought) and (brought or not star):
            moved.add(id(node))
            imports += brought
    return list(dict.fromkeys(imports)), moved


def _imports(node: Import, names: set[str], library: Library) -> Iterable[Imported]:
    """What an import brings of what is used; a star, what a package makes public."""
    for name, found in Library(()).bound(node):
        assert isinstance(found, Imported)  # of no package
        if name == "*" and library.owns(found.module):
            public = library.public(library.module(found.module))
            yield from (Imported(found.module, each, each) for each in public if each in names)
        elif name in names and found.module != "__future__" and found.target != DISPLAY:
            yield found


def _page_names(statements: Sequence[ast.stmt], library: Library, names: set[str]) -> PageNames:
    imported: dict[str, set[Bound]] = {}
    stored: set[str] = set()
    for statement in statements:
        brought = set()
        for node in uses(statement).imports:
            if not isinstance(node, ast.ImportFrom) or node.module != "__future__":
                for name, bound in library.bound(node):
                    brought.add(name)
                    if name in names or not isinstance(bound, Symbol):
                        imported.setdefault(name, set()).add(bound)
        if not isinstance(statement, Import):
            stored |= uses(statement).binds - brought
    return PageNames(stored, imported)


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


def _write_pieces(pieces: Sequence[_Piece], library: Library, renamed: Mapping[Bound, str]) -> str:
    """The statements of earlier cells; what they printed there is not printed again."""
    text, guards = "", ""
    before: _Piece | None = None
    for piece in pieces:
        source, effects, last = piece.source, piece.effects, guards
        edits = library.written_anew(source, uses(piece.node).imports, renamed)
        statement = source.edited(edits, *source.whole(piece.node)).rstrip("\n")
        if not statement.strip():
            continue
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
    lines = sorted({(found.statement, found.root) for found in imports if not found.name})
    for module in sorted({found.module for found in imports if found.name}):
        wanted = sorted({i.statement.partition(" import ")[2] for i in imports if i.name and i.module == module})
        line = f"from {module} import {', '.join(wanted)}"
        if len(line) > 88:
            line = f"from {module} import (\n" + "".join(f"    {name},\n" for name in wanted) + ")"
        lines.append((line, module.partition(".")[0]))
    sections = [[line for line, root in lines if bool(_third_party([root])) is is_other] for is_other in (False, True)]
    blocks = [["from __future__ import annotations"] if lazy else [], *sections]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _third_party(modules: Iterable[str]) -> list[str]:
    """What must be installed for some top-level modules."""
    return sorted({*modules} - sys.stdlib_module_names)
