"""Holds code cells against what they gave: failures, seeds, figures, options."""

from collections.abc import Iterator

from ..pages.page import Cell
from ..runs.server import MEMORY_REMEDY
from ..runs.steps import Result
from ..settings import Settings, written
from .checked import PICTURES, count
from .findings import Finding
from .plan import SECONDS


def options(path: str, cell: Cell) -> Iterator[Finding]:
    """What is wrong with a cell's ``#|`` comments."""
    for option in cell.options:
        if option.key not in ("alt", "timeout"):
            message = f"`#| {option.key}:` is no option; there are alt and timeout"
            yield Finding(path, option.line, message, kind="option")
        elif option.key == "timeout" and not SECONDS.fullmatch(option.value):
            message = f"timeout ({option.value}) must be a number of seconds, such as 300"
            yield Finding(path, option.line, message, kind="option")


def in_code(path: str, index: int, cell: Cell, result: Result | None, settings: Settings) -> Iterator[Finding]:
    """What is wrong with a code cell once it has run."""
    name, raises = f"cell {index + 1}", "raises-exception" in cell.tags
    if result is None:
        return
    raised = result.raised
    if raised and raised.fatal and "characters" in raised.summary:
        message = f"{name} shows more than {written(settings.output)} of text, which nobody reads; show less, or set"
        yield Finding(path, raised.line, f'{message} output = "1 MB" under [tool.proofread]', kind="output")
    elif raised and raised.fatal:
        message = f"{name} ran out of the {written(settings.memory)} that a page may take ({raised.summary})"
        yield Finding(path, raised.line, f"{message}; {MEMORY_REMEDY}", kind="memory")
    elif raised and not raises:
        yield Finding(path, raised.line, f"{name} failed with {raised.summary}", raised.trace, kind="cell")
    if raised and (raised.fatal or not raises):
        return
    if not raised and raises:
        message = f"{name} is tagged raises-exception but raises nothing; drop the tag or let it fail"
        yield Finding(path, cell.line, message, kind="cell")
    if result.unseeded:
        message = f"{name} draws from {result.unseeded} global random generator without seeding it"
        yield Finding(path, cell.line, f"{message}; {_seeding(result.unseeded)}", kind="seed")
    if cell.fence:
        return  # a Markdown page shows the code alone
    alts = sum(option.key == "alt" for option in cell.options)
    drawn = sum(any(kind in output.get("data", {}) for kind in PICTURES) for output in result.outputs)
    if drawn != alts and "hide-output" not in cell.tags:
        remedy = "say what each shows in a comment at the top of the cell: `#| alt: ...`"
        message = f"{name} draws {count(drawn, 'figure')} but has {count(alts, 'alt text')}; {remedy}"
        yield Finding(path, cell.line, message, kind="alt")


def _seeding(generator: str) -> str:
    if generator.startswith("torch"):
        return "begin it with torch.manual_seed(...) or give it a torch.Generator of its own"
    if generator.startswith("NumPy"):
        return "take a generator of its own, numpy.random.default_rng(seed)"
    return "begin it with random.seed(...) or take a generator of its own, random.Random(seed)"
