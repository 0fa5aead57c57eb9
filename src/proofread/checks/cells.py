"""Holds code cells against what they gave: failures, seeds, figures, options."""

import re
from collections.abc import Iterator
from pathlib import Path

from ..pages.page import Cell, leading_imports
from ..runs.server import MEMORY_REMEDY
from ..runs.steps import Result
from ..settings import Settings, written
from .checked import PICTURES, Checked, count, figures
from .findings import Finding
from .plan import SECONDS

_OPTIONS = ("alt", "caption", "timeout", "script", "data", "digits")


def options(path: str, cell: Cell, root: Path) -> Iterator[Finding]:
    """What is wrong with a cell's ``#|`` comments and its tags."""
    for option in cell.options:
        message, key, value = "", option.key, option.value
        if key not in _OPTIONS:
            message = f"`#| {key}:` is no option; there are {', '.join(_OPTIONS[:-1])} and {_OPTIONS[-1]}"
        elif key == "timeout" and not SECONDS.fullmatch(value):
            message = f"timeout ({value}) must be a number of seconds, such as 300"
        elif key == "digits" and not re.fullmatch("[1-9]|1[0-7]", value):
            message = f"digits ({value}) must be how many digits a number of the data keeps, 1 to 17, such as 4"
        elif key == "script" and not (
            re.search(r"\.m?js$", value) and Path(root, path).parent.joinpath(value).is_file()
        ):
            message = (
                f"script ({value}) must be a file that ends in .js or .mjs, named as a link would name it from here"
            )
        elif key == "script" and cell.fence:
            message = f"script ({value}) needs a figure to stand in for, and a Markdown page shows none"
        elif key in ("data", "digits") and cell.option("script") is None:
            message = f"{key} ({value}) is for a script, and the cell names none: `#| script: ...`"
        if message:
            yield Finding(path, option.line, message, kind="option")
    if "imports" in cell.tags and not leading_imports(cell.shown):
        message = "the cell is tagged imports but does not begin with any; drop the tag"
        yield Finding(path, cell.line, message, kind="option")


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
    if "hide-output" in cell.tags:
        return
    alts, captions = (sum(option.key == key for option in cell.options) for key in ("alt", "caption"))
    drawn = sum(any(kind in output.get("data", {}) for kind in PICTURES) for output in result.outputs)
    if drawn != alts:
        remedy = "say what each shows in a comment at the top of the cell: `#| alt: ...`"
        message = f"{name} draws {count(drawn, 'figure')} but has {count(alts, 'alt text')}; {remedy}"
        yield Finding(path, cell.line, message, kind="alt")
    shows = len(figures(result.outputs))
    if captions and captions != shows:
        message = f"{name} shows {count(shows, 'figure')} but has {count(captions, 'caption')}; give each one or none"
        yield Finding(path, cell.line, message, kind="alt")
    if cell.option("script") is not None and shows != 1:
        message = f"{name} has a script, which draws in the place of one figure, but shows {shows}"
        yield Finding(path, cell.line, f"{message}; show one, a picture or HTML", kind="alt")


def in_data(checked: Checked, settings: Settings) -> Iterator[Finding]:
    """What is wrong with what a page sends to its scripts."""
    for index, text in checked.data.items():
        said = f"data ({text.prose.text})"
        if error := next(iter(text.errors.values()), ""):
            message = (
                f"{said} is nothing that JSON can hold: {error}; give numbers, texts, None, and lists, tensors and"
            )
            message += " dicts of them, and no number that is NaN or infinite"
        elif text.drew:
            message = f"{said} draws from {text.drew} global random generator; draw in the cell"
        elif text.values and (size := len(checked.sent(index).encode())) > settings.data:
            message = (
                f"{said} is {size:,} bytes with {checked.digits(index)} digits, more than {written(settings.data)}; "
            )
            message += 'send less, or fewer `#| digits:`, or set data = "1 MB" under [tool.proofread]'
        else:
            continue
        yield Finding(checked.page.path, text.line, message, kind="data")


def _seeding(generator: str) -> str:
    if generator.startswith("torch"):
        return "begin it with torch.manual_seed(...) or give it a torch.Generator of its own"
    if generator.startswith("NumPy"):
        return "take a generator of its own, numpy.random.default_rng(seed)"
    return "begin it with random.seed(...) or take a generator of its own, random.Random(seed)"
