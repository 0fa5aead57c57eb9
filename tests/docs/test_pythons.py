"""What the oldest patch of a supported Python gets wrong stands nowhere in the project's code.

From 3.12.0 to 3.12.3, a name that one comprehension binds is hidden from the others of the same function, where it is
a global or a builtin: they raise UnboundLocalError (CPython's issue 118513).
"""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT / name for name in ("src", "tests", "docs")]
FILES = {*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in folder.rglob("*.[pm][yd]"))} - {Path(__file__)}
FENCE = re.compile(r"^([ ]*)(`{3,}) ?(?:py|python)\b.*?\n(.*?)^\1\2[ ]*$", re.DOTALL | re.MULTILINE)
INLINED = ast.ListComp | ast.SetComp | ast.DictComp
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.GeneratorExp
SCOPES = FUNCTIONS | ast.ClassDef


def programs(text: str, is_python: bool) -> Iterator[str]:
    """The code of a file: its own, that in its strings, and that between fences of Markdown, in comments as well."""
    if is_python:
        yield text
        strings = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
        yield from (dedent(each) for each in strings if isinstance(each, str) and " for " in each)
        text = re.sub("(?m)^# ?", "", text)
    yield from (dedent(found[3]) for found in FENCE.finditer(text) if ">>> " not in found[3])


def hidden(code: str) -> set[str]:
    """The names that a comprehension binds, and that another one of the same function takes from outside of it."""
    found = set()
    for function in (node for node in ast.walk(ast.parse(code)) if isinstance(node, FUNCTIONS)):
        bound, taken, own = set[str](), set[str](), set[str]()
        if not isinstance(function, ast.GeneratorExp):
            own = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
        nodes = [(child, frozenset[str](), False) for child in ast.iter_child_nodes(function)]
        while nodes:
            node, above, is_inside = nodes.pop()
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and is_inside and node.id not in above:
                taken.add(node.id)
            elif isinstance(node, ast.Name | ast.alias | SCOPES):
                stored = getattr(node, "id", getattr(node, "asname", None) or getattr(node, "name", ""))
                own |= {stored} - (above if is_inside else set())
            if isinstance(node, INLINED):
                targets = (each.target for each in node.generators)
                names = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
                bound |= names
                above, is_inside = above | names, True
            if not isinstance(node, SCOPES):
                nodes += [(child, above, is_inside) for child in ast.iter_child_nodes(node)]
        found |= bound & taken - own
    return found


@pytest.mark.parametrize(
    "inside",
    [
        "return [shape for shape in sizes], [shape(v) for v in sizes]",
        "return {shape: 0 for shape in sizes}, [{shape(v) for v in w} for w in sizes]",
        "return [[shape for shape in size] for size in sizes], [shape(v) for v in sizes]",
        "return (lambda: ({a for a, *shape in sizes}, [w for v in sizes for w in shape(v)]))()",
        "return ([shape for shape in size] + [shape(v) for v in size] for size in sizes)",
    ],
)
def test_a_name_that_would_be_hidden_is_found(inside: str):
    assert hidden(f"def sized(sizes):\n    {inside}") == {"shape"}


@pytest.mark.parametrize(
    "inside",
    [
        "return [shape for shape in sizes], [shape for shape in sizes]",
        "return [shape for shape in sizes], shape(sizes)",
        "return list(shape for shape in sizes), [shape(v) for v in sizes]",
        "return [shape for shape in sizes], list(shape(v) for v in sizes)",
        "shape = sizes; return [shape for shape in sizes], [shape[v] for v in sizes]",
        "from torch import Size as shape; return [shape for shape in sizes], [shape(v) for v in sizes]",
        "return [[shape for v in shape] for shape in sizes]",
    ],
)
def test_a_name_that_is_safe_is_not_found(inside: str):
    assert hidden(f"def sized(sizes):\n    {inside}") == set()


def test_code_in_strings_and_between_fences_is_looked_through(tmp_path: Path):
    said = "def f(a):\n    return [x for x in a], [x(y) for y in a]\n"
    fenced = f"Read:\n\n```python\n{said}```\n"
    commented = "# %% [markdown]\n" + "".join(f"# {line}".rstrip() + "\n" for line in fenced.splitlines())
    assert [*map(hidden, programs(fenced, False))] == [{"x"}]
    assert [*map(hidden, programs(commented, True))] == [set(), {"x"}]
    assert [*map(hidden, programs(f"CODE = {said!r}", True))] == [set(), {"x"}]


def test_no_comprehension_hides_a_global_from_another():
    found = set[tuple[str, str]]()
    for path in FILES:
        for code in programs(path.read_text(encoding="utf-8"), path.suffix == ".py"):
            with suppress(SyntaxError):  # of a sentence, or of code that shows what goes wrong
                found |= {(path.relative_to(ROOT).as_posix(), name) for name in hidden(code)}
    assert found == set(), "Python 3.12.0 to 3.12.3 raises UnboundLocalError; give what is bound another name"
