"""Finds what a cell needs: the statements of earlier cells that made or changed what its own read."""

import ast
import functools
import re
from collections.abc import Mapping

from .record import CellRun
from .source import Source

# What looks names up by itself.
_LOOKS = re.compile(r"(?<![\w.])(?:(?:eval|exec)\(|(?:globals|locals|vars|dir)\(\))")
source = functools.lru_cache(maxsize=1024)(Source)  # programs of a page share its cells


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
            [*enumerate(zip(source(cells[place].code).tree.body, cells[place].effects, strict=False))]
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
