"""Tries the programs of code cells: each must print what its cell shows."""

from collections.abc import Callable, Sequence

from ..programs import SNIPPET_REMEDY, disagreement, trials
from ..programs.trial import Trial
from ..runs.cache import Cache
from ..runs.server import attempt
from ..runs.steps import Limits
from ..settings import Settings
from .checked import Checked, Told, snippet_subject
from .findings import Finding
from .plan import patience


def try_programs(
    pages: Sequence[Checked], settings: Settings, kept: Cache | None, progress: Callable[[Told], None]
) -> None:
    """Try the programs that have not done yet, as they are, what their pages show."""
    asked: list[tuple[Checked, int, str, Trial]] = []
    done: dict[str, list[str]] = {}
    for checked in pages:
        agreed = kept.tried(checked.page.path) if kept else set()
        done[checked.page.path] = []
        for index, snippet in checked.snippets.items():
            # What draws without a seed differs from run to run, and is told of already.
            if any(result.unseeded for place, result in checked.code.items() if place <= index):
                continue
            seconds = patience(checked.page.cells[index], settings.timeout)
            for form, trial in trials(snippet, settings.packages, seconds).items():
                key = kept.trial(trial, snippet, settings.packages) if kept else ""
                if key in agreed:
                    done[checked.page.path].append(key)
                else:
                    asked.append((checked, index, form, trial))
    every = [trial for *_, trial in asked]
    limits = Limits(settings.memory, settings.output)
    for number, (place, ran) in enumerate(attempt(every, settings.packages, workers=settings.workers, limits=limits)):
        checked, index, form, trial = asked[place]
        snippet, cell = checked.snippets[index], checked.page.cells[index]
        progress(Told("programs", number + 1, len(every), f"{checked.page.path}, cell {index + 1}"))
        if wrong := disagreement(snippet, ran, settings.packages):
            message = f"cell {index + 1}: {form}, its program {wrong[0]}; {SNIPPET_REMEDY}"
            subject = snippet_subject(index, cell)
            checked.findings.append(Finding(checked.page.path, cell.line, message, wrong[1], "snippet", subject))
        elif kept:
            done[checked.page.path].append(kept.trial(trial, snippet, settings.packages))
    if kept and asked:
        for page, keys in done.items():
            kept.keep_tried(page, keys)
