"""Programs that carry a package: one with everything that packages do, which a program must do without it."""

import textwrap
from collections.abc import Callable

import pytest

from proofread.checks.check import check
from proofread.checks.checked import Checked
from proofread.settings import Settings

PACKAGE = {
    "__init__.py": '''
        """A harbour."""

        from . import cranes, depths
        from .boats import Boat, Fleet, launch
        from .star import *

        __all__ = ["Boat", "Fleet", "cranes", "depths", "launch"]
    ''',
    "boats.py": '''
        """Boats."""

        from __future__ import annotations

        import functools
        from collections.abc import Iterable
        from dataclasses import dataclass, field
        from typing import TYPE_CHECKING, NamedTuple, TypeVar

        from harbour import depths
        from harbour._shapes import Float
        from harbour.cranes import lift as hoist

        if TYPE_CHECKING:
            from harbour.nowhere import Sea

        Crew = tuple[str, ...]
        Some = TypeVar("Some")
        # Knots; the table is filled below.
        _SPEEDS = {"sloop": 7}
        _SPEEDS["tug"] = 3


        def _fastest(speeds: Iterable[int]) -> int:
            return max(speeds)


        _TOP = _fastest(_SPEEDS.values())


        class Vessel:
            """What floats.

            And more words about it, which a program does not need.
            """

            draught: float = 2.0

            def floats(self, depth: Float[Sea, "one two"] | None = None) -> bool:
                """Whether it does."""
                return depths.enough(self.draught, depth or depths.DEFAULT)  # not aground


        @dataclass(frozen=True)
        class Boat(Vessel):
            name: str
            crew: Crew = ()
            hull: Float[list, "planks"] = field(default_factory=list)

            @property
            def top(self) -> int:
                return _TOP

            def sister(self, name: str) -> Boat:
                return Boat(name, self.crew)


        class Fleet(NamedTuple):
            boats: list[Boat]


        def launch(
            name: str,  # on its stern
            *crew: str,
            tall: bool = False,
            **options: int,
        ) -> Boat:
            """Launch a boat."""
            from harbour.cranes import lift, strength as force

            lift(1), hoist(1)
            assert force == 5
            return Boat(name, crew)


        @functools.cache
        def slow(x: int) -> int:
            return launch(str(x)).top * x
    ''',
    "cranes.py": '''
        REGISTRY = {}
        strength = 5


        def crane(name):
            def register(function):
                REGISTRY[name] = function
                return function

            return register


        @crane("small")
        def small(x):
            return x + 1


        @crane("large")
        def large(x):
            return x + 10


        def lift(x):
            return x


        def use(name, x):
            """Lift with the crane of that name."""
            global strength
            strength += 1
            return REGISTRY[name](x), strength


        def unused():
            raise AssertionError
    ''',
    "depths.py": """
        import math as m
        from importlib import resources
        from pathlib import Path

        DEFAULT = 3.0
        open = DEFAULT


        def enough(draught, depth):
            return m.floor(depth) > draught and lift() == "depths"


        def lift():
            return "depths"


        def chart():
            return resources.files(__package__).joinpath("charts", "bay.txt").read_text()


        def beside():
            return (Path(__file__).parent / "charts" / "bay.txt").read_text(), open
    """,
    "_shapes.py": """
        try:
            from beartype import nothing_of_this_name as Float
        except ImportError:

            class Float:
                def __class_getitem__(cls, item):
                    return item[0]
    """,
    "star.py": """
        __all__ = ["starred"]


        def starred():
            return _hidden


        _hidden = "hidden"
    """,
    "deep/__init__.py": "",
    "deep/sea.py": """
        from ..depths import lift as up
        from . import sand


        def dive():
            return up(), sand.GRAIN
    """,
    "deep/sand.py": "GRAIN = 1\n",
    "lookup.py": """
        import importlib
        import sys


        def me():
            return sys.modules[__name__].__name__


        def spec():
            return __spec__.name


        def __getattr__(name):
            return f"the {name}"


        def fetch(name):
            return importlib.import_module(f"{__package__}.{name}")


        def told(name):
            return f"{__package__}.{name}"


        # What nobody reads is for tools.
        # ruff: noqa: RET504
        def tooled(
            a,  # : of no use
            *,
            b: dict[str, int] = {"x": 1},  # noqa: B006
        ):  # fmt: skip
            kept = "# noqa: F401"  # noqa: S105  # the text stays
            # type: ignore[misc]
            return kept, b["x"], (lambda: 1)()  # type: ignore[no-any-return]


        def local():
            from harbour import cranes, depths; found = cranes.lift(1)
            return found, depths.lift()
    """,
    "charts/bay.txt": "sand\nmud\n",
}

# Each is a page; the program of its last cell must have the first text, and not the second.
PAGES = {
    "a function with all its needs": (
        "def launch(name, *crew, tall=False, **options):",
        "def unused",
        ["from harbour import launch", "launch('Ann', 'Bo').top"],
    ),
    "a module as a namespace": (
        "cranes = SimpleNamespace(use=use)",
        "def unused",
        ["from harbour import cranes", "cranes.use('large', 2)"],
    ),
    "a package as a namespace": (
        "harbour = SimpleNamespace(",
        "def unused",
        ["import harbour", "harbour.depths.enough(1, 2), harbour.cranes.lift(3)"],
    ),
    "a module under another name": ("d = depths", "REGISTRY", ["import harbour.depths as d", "d.lift()"]),
    "what decorators register": ("def small", "def unused", ["from harbour.cranes import use", "use('small', 2)"]),
    "one name in two modules": (
        "def depths_lift",
        "def unused",
        ["from harbour import cranes, depths", "cranes.lift(1), depths.lift()"],
    ),
    "a name that the page uses itself": (
        "def boats_launch",
        "def unused",
        ["from harbour import launch as start", "launch = 5", "start('A').name, launch"],
    ),
    "a name that is a module's own in the page": (
        "depths = 7",
        "def unused",
        ["from harbour import Boat", "depths = 7", "Boat('A').floats(), depths"],
    ),
    "a function's name for its argument": ("_TOP", "def unused", ["from harbour.boats import slow", "slow(2)"]),
    "a star": ("_hidden = ", "class Boat", ["from harbour import *", "from harbour.star import *", "starred()"]),
    "a package in the package": ("GRAIN = 1", "def unused", ["from harbour.deep.sea import dive", "dive()"]),
    "a file of the package": ('.write_text("""', "def unused", ["from harbour.depths import chart", "print(chart())"]),
    "a file beside a module": (
        'harbour_files / "depths.py"',
        "def unused",
        ["from harbour.depths import beside", "beside()"],
    ),
    "a dataclass and a tuple": (
        "class Fleet",
        "def launch",
        ["from harbour import Boat, Fleet", "Fleet([Boat('A', ('B',))])"],
    ),
    "a class of one's own": (
        "class Raft(Boat)",
        "def launch",
        ["from harbour import Boat", "class Raft(Boat):\n    pass", "Raft('R').sister('S'), Raft('R').floats(5.0)"],
    ),
    "an import in a function": (
        "def go():\n    return launch",
        "harbour",
        ["def go():\n    from harbour import launch\n    return launch('A').name", "go()"],
    ),
    "an import in the cell": ("a = 1", "harbour", ["a = 1", "from harbour import launch\nlaunch('A').crew, a"]),
    "an import that nothing uses": ("a = 1", "def launch", ["a = 1", "from harbour import launch\na"]),
    "the source of a function": (
        "crane(name)",
        "REGISTRY = {}\nstrength",
        ["import inspect\nfrom harbour.cranes import crane", "print(inspect.getsource(crane))"],
    ),
    "source with its annotations": (
        "def _fastest(speeds: Iterable[int]) -> int:",
        "def unused",
        ["import inspect\nfrom harbour.boats import _fastest", "print(inspect.getsource(_fastest))"],
    ),
    "a shape in an annotation": ("hull: list = field", "beartype", ["from harbour import Boat", "Boat('A').hull"]),
    "a name of the module in a text": (
        "{'harbour'}.{name}",
        "import_module",
        ["from harbour.lookup import told", "told('x')"],
    ),
    "comments for tools": (
        'def tooled(a, *, b={"x": 1}):\n    kept = "# noqa: F401"  # the text stays\n    return kept, ',
        "type: ignore",
        ["from harbour.lookup import tooled", "tooled(1)"],
    ),
    "a comment for tools in source that is shown": (
        "# type: ignore[no-any-return]",
        "REGISTRY",
        ["import inspect\nfrom harbour.lookup import tooled", "print(inspect.getsource(tooled))"],
    ),
    "an import of modules in a function, in one line with more": (
        "pass; found = cranes.lift(1)",
        "def unused",
        ["from harbour.lookup import local", "local()"],
    ),
    "imports in a block, in one line with more": (
        "if a:\n    pass; b = launch('A').name",
        "harbour",
        ["a = 1", "if a:\n    from harbour import launch; b = launch('A').name\nb"],
    ),
    "imports alone in a block": (
        "if a:\n    lift = cranes_lift\n    b = lift(2)",
        "harbour",
        ["a, lift = 1, 2", "if a:\n    from harbour.cranes import lift\n    b = lift(2)\nb"],
    ),
    "what a module imports itself": (
        "import functools as tools",
        "class",
        ["from harbour.boats import functools as tools", "tools.reduce(max, [1, 2])"],
    ),
    "what a module imports itself, in the cell": (
        "import functools as tools",
        "class",
        ["a = 1", "from harbour.boats import functools as tools\ntools.reduce(max, [a, 2])"],
    ),
    "comments and first lines": (
        '"""What floats."""',
        "And more words",
        ["from harbour.boats import Vessel", "Vessel().floats(4)"],
    ),
}

# What cannot be carried, and why.
IMPOSSIBLE = {
    "the module harbour.depths is itself passed on": "from harbour import depths\nlen(vars(depths)) > 2",
    "harbour.lookup uses __spec__": "from harbour.lookup import spec\nspec()",
    "harbour.depths.__doc__ is asked for": "from harbour import depths\ndepths.__doc__",
    "harbour.lookup has no tide that its source would show": "from harbour.lookup import tide\ntide",
    "harbour.lookup imports modules by name": "from harbour.lookup import fetch\nfetch('depths')",
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checked]:
    """All pages, of a project with the package harbour."""
    root = tmp_path_factory.mktemp("project")
    for name, text in PACKAGE.items():
        file = root / "harbour" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text).lstrip("\n"))
    cells = {name: cells for name, (_, _, cells) in PAGES.items()} | {name: [cell] for name, cell in IMPOSSIBLE.items()}
    paths = []
    for number, sources in enumerate(cells.values()):
        paths.append(root / f"page{number}.py")
        paths[-1].write_text("".join(f"# %%\n{source}\n\n" for source in sources))
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(root)
    report = check(paths, root=root, settings=Settings(packages=("harbour",)), keep=False, programs=True)
    patch.undo()
    return dict(zip(cells, report.pages, strict=True))


@pytest.mark.parametrize("name", PAGES)
def test_a_program_carries_what_it_takes_from_the_package(pages: dict[str, Checked], name: str) -> None:
    checked = pages[name]
    assert [f"{finding}" for finding in checked.findings] == []
    wanted, unwanted, _ = PAGES[name]
    snippet = checked.snippets[max(checked.snippets)]
    assert snippet.reason == ""
    body = snippet.runnable
    assert wanted in body
    assert unwanted not in body.replace("# From harbour", "")
    assert "import harbour" not in body
    assert "from harbour" not in body
    assert "harbour" in snippet.importing or "def launch" not in body


@pytest.mark.parametrize("reason", IMPOSSIBLE)
def test_what_cannot_be_carried_is_imported_and_the_reason_kept(pages: dict[str, Checked], reason: str) -> None:
    checked = pages[reason]
    assert checked.findings == []
    assert checked.snippets[0].reason.startswith(reason)
    assert checked.snippets[0].runnable == ""
    assert "from harbour" in checked.snippets[0].importing


def test_a_program_runs_in_a_new_interpreter_that_lacks_the_package(
    pages: dict[str, Checked], verify: Callable[..., str | None]
) -> None:
    snippet = pages["a file of the package"].snippets[1]
    assert verify(snippet, ["harbour"]) is None
    assert "No module named 'harbour'" in (verify(snippet, ["harbour"], importing=True) or "")
