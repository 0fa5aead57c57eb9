"""Plans what a page has to run, in steps, takes in what they gave, and tries the programs of its code cells."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from ..pages.page import Cell
from ..pages.prose import Computed, Question
from ..programs import SNIPPET_REMEDY, disagreement
from ..programs.trial import Trial
from ..runs.cache import Cache
from ..runs.server import attempt
from ..runs.steps import Outcome, Step
from ..settings import Settings
from .checked import Checked, Text, cell_subject
from .findings import Finding
from .progress import Progress, Told

SECONDS = re.compile(r"\d+(\.\d+)?")
# Whose a step is: a cell's own, or that of a text in it, and then for which of its questions.
Owner = tuple[int, Text | None, Sequence[Question]]


def plan(checked: Checked, timeout: float) -> tuple[list[Owner], list[Step]]:
    """Plan the steps of a run, each with its owner. A text is evaluated where it stands; if it fails, at the end."""
    owners: list[Owner] = []
    steps: list[Step] = []
    is_held = checked.mode == "check"

    asks: list[tuple[Owner, int]] = []  # the texts that may take a name which is bound further down, with their steps

    def evaluate(text: Text) -> None:
        asked = [question for question in text.questions if is_held or isinstance(question, Computed)]
        stated = tuple(text.formulas) if is_held else ()
        if asked or stated:
            form = "bool(\n{}\n)" if text.asserts else "{}"  # as Python takes what is asserted
            expressions = tuple((form.format(a.expression), a.spec if isinstance(a, Computed) else None) for a in asked)
            # Each formula has some twenty mutants, and each of them is checked.
            longest = timeout * (1 + len(stated))
            if asked and not text.asserts:
                asks.append(((text.cell, text, asked), len(steps)))
            owners.append((text.cell, text, asked))
            steps.append(Step(text.line, None, f"what cell {text.cell + 1} says", False, longest, expressions, stated))

    for index, cell in enumerate(checked.page.cells):
        if cell.is_code and not cell.holds_claims:
            owners.append((index, None, []))
            name, seconds = f"code cell {index + 1}", patience(cell, timeout)
            steps.append(Step(cell.line, cell.source, name, cell.fails, seconds, snippet=checked.offers(index)))
        for text in [*checked.texts, *checked.data.values()]:
            if text.cell == index:
                evaluate(text)
    for owner, place in asks:
        owners.append(owner)
        name = f"what cell {owner[0] + 1} says, with all names of the page"
        steps.append(replace(steps[place], name=name, formulas=(), again=place))
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
    for _, text, _ in owners[len(outcome.results) :]:
        if text and not text.asserts:
            text.leave()
    checked.asked = outcome.asked
    if checked.mode == "run":  # braces that are another tool's stay as they stand
        for text in checked.texts:
            failed = {question for question, answer in text.answers.items() if answer.error}
            text.prose.computed = [each for each in text.prose.computed if each not in failed]
    checked.snippets |= {owners[place][0]: snippet for place, snippet in outcome.snippets.items()}
    if outcome.stopped:
        index, text, _ = owners[min(len(outcome.results), len(owners) - 1)]
        cell = checked.page.cells[index]
        path, line, message = checked.page.path, text.line if text else cell.line, f"cell {index + 1} {outcome.stopped}"
        subject = cell_subject(index, cell) if cell.is_code else ""
        checked.findings.append(Finding(path, line, message, kind="stopped", subject=subject))


def try_programs(
    pages: Sequence[Checked],
    settings: Settings,
    kept: Cache | None,
    progress: Progress,
    chosen: Collection[tuple[str, str]] | None = None,
) -> None:
    """Try the programs that have not done yet what their pages show: each must print what its cell shows.

    Only those are tried that are chosen, by the names of a page and of a program's subject, or all.
    """
    asked: list[tuple[Checked, int, Trial, str]] = []
    done: dict[str, list[str]] = {}
    for checked in pages:
        agreed = kept.tried(checked.page.path) if kept else set()
        done[checked.page.path] = []
        for index, snippet in checked.snippets.items():
            # What draws without a seed differs from run to run, and is told of already.
            if not snippet.text or any(gave.unseeded for place, gave in checked.code.items() if place <= index):
                continue
            cell = checked.page.cells[index]
            trial = Trial(snippet.text, patience(cell, settings.timeout))
            key = kept.trial(trial, snippet, settings.packages, checked.asked) if kept else ""
            if key in agreed:
                done[checked.page.path].append(key)
            elif chosen is None or (checked.page.path, cell_subject(index, cell, "snippet")) in chosen:
                asked.append((checked, index, trial, key))
    every = [trial for _, _, trial, _ in asked]
    for number, (place, ran) in enumerate(attempt(every, settings)):
        checked, index, _, key = asked[place]
        snippet, cell = checked.snippets[index], checked.page.cells[index]
        progress(Told("programs", number + 1, len(every), f"{checked.page.path}, cell {index + 1}"))
        if wrong := disagreement(snippet, ran):
            message = f"cell {index + 1}: alone, its program {wrong[0]}; {SNIPPET_REMEDY}"
            subject = cell_subject(index, cell, "snippet")
            checked.findings.append(Finding(checked.page.path, cell.line, message, wrong[1], "snippet", subject))
        else:
            done[checked.page.path].append(key)
    if kept and asked:
        for page, keys in done.items():
            kept.keep_tried(page, keys)
