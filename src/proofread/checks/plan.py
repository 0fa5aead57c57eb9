"""Plans what a page has to run, in steps, and takes in what they gave."""

import re
from collections.abc import Sequence

from ..pages.page import Cell
from ..pages.prose import Claim, Computed
from ..runs.steps import Outcome, Step
from .checked import Checked, Text, cell_subject, has_snippet
from .findings import Finding

SECONDS = re.compile(r"\d+(\.\d+)?")
# Whose a step is: a cell's own, or that of a text in it, and then for which of its figures.
Owner = tuple[int, Text | None, Sequence[Claim | Computed]]


def plan(checked: Checked, timeout: float, mutants: bool) -> tuple[list[Owner], list[Step]]:
    """What to run and for whom. Texts are evaluated where they stand, after the code above them, or at the end."""
    owners: list[Owner] = []
    steps: list[Step] = []

    def evaluate(text: Text, late: bool) -> None:
        asked = [figure for figure in text.asked if figure.late is late]
        stated = () if late else tuple(text.formulas)
        if asked or stated:
            owners.append((text.cell, text, asked))
            expressions = tuple((a.expression, a.spec if isinstance(a, Computed) else None) for a in asked)
            name = f"what cell {text.cell + 1} asserts" + " at the end" * late
            searched = mutants and bool(stated)
            # Each formula has some twenty mutants, and each of them is checked.
            longest = timeout * (1 + searched * len(stated))
            steps.append(Step(text.line, None, name, False, longest, expressions, stated, searched))

    for index, cell in enumerate(checked.page.cells):
        if cell.is_code:
            owners.append((index, None, []))
            name, seconds = f"code cell {index + 1}", patience(cell, timeout)
            steps.append(Step(cell.line, cell.source, name, cell.fails, seconds, snippet=has_snippet(cell)))
        for text in [*checked.texts, *checked.data.values()]:
            if text.cell == index:
                evaluate(text, late=False)
    for text in checked.texts:
        evaluate(text, late=True)
    return owners, steps


def patience(cell: Cell, default: float) -> float:
    """The seconds that a cell may take."""
    own = cell.option("timeout")
    return float(own) if own and SECONDS.fullmatch(own) else default


def take(checked: Checked, owners: Sequence[Owner], outcome: Outcome) -> None:
    """Take in what a run gave."""
    if owners:
        checked.began, checked.seconds, checked.machine = outcome.began, outcome.seconds, outcome.machine
    for (index, text, asked), result in zip(owners, outcome.results, strict=False):
        if text is None:
            checked.code[index] = result
        else:
            text.take(asked, result)
    checked.snippets |= {owners[place][0]: snippet for place, snippet in outcome.snippets.items()}
    if outcome.stopped:
        index, text, _ = owners[min(len(outcome.results), len(owners) - 1)]
        cell = checked.page.cells[index]
        path, line, message = checked.page.path, text.line if text else cell.line, f"cell {index + 1} {outcome.stopped}"
        subject = cell_subject(index, cell) if cell.is_code else ""
        checked.findings.append(Finding(path, line, message, kind="stopped", subject=subject))
