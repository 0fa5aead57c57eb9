"""Holds code cells against what they gave: failures, seeds, figures, options."""

import ast
import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..pages.page import Cell, leading_imports
from ..runs.server import MEMORY_REMEDY
from ..runs.steps import Raised, Result
from ..settings import Settings, written
from .checked import PICTURES, Checked, count, figures
from .findings import Finding
from .plan import SECONDS

_TAGS = (
    *("check", "claims", "hide-input", "hide-output", "imports", "no-snippet", "raises-exception", "remove-cell"),
    "solution",
)
_OPTIONS = ("alt", "caption", "raises", "timeout", "script", "data", "digits")
_RAISES = re.compile(r"(?P<kind>[A-Za-z_][\w.]*)(?::\s+(?P<part>\S.*))?", re.DOTALL)
_LEAVES = (ast.Raise, ast.Return, ast.Continue, ast.Break)


def options(path: str, cell: Cell, root: Path) -> Iterator[Finding]:
    """Yield the findings on a cell's ``#|`` comments and its tags."""
    for tag in {*cell.tags} - {*_TAGS}:
        if meant := difflib.get_close_matches(tag, _TAGS, 1, 0.85):
            message = f"the tag {tag} does nothing; {meant[0]} may be meant. There are {', '.join(_TAGS)}"
            yield Finding(path, cell.line, message, kind="option")
    for option in cell.options:
        message, key, value = "", option.key, option.value
        if key not in _OPTIONS and not (key == "tags" and cell.fence):
            message = f"`#| {key}:` is no option; there are {', '.join(_OPTIONS[:-1])} and {_OPTIONS[-1]}"
        elif key == "timeout" and not SECONDS.fullmatch(value):
            message = f"timeout ({value}) must be a number of seconds, such as 300"
        elif key == "digits" and not re.fullmatch("[1-9]|1[0-7]", value):
            message = f"digits ({value}) must be how many digits a number of the data keeps, 1 to 17, such as 4"
        elif key == "script" and not (re.search(r"\.m?js$", value) and (root / path).parent.joinpath(value).is_file()):
            message = f"script ({value}) must be a file that ends in .js or .mjs, named as a link from here would"
        elif key in ("data", "digits") and cell.option("script") is None:
            message = f"{key} ({value}) is for a script, and the cell names none: `#| script: ...`"
        elif key == "raises" and not _RAISES.fullmatch(value):
            message = f"raises ({value}) must be an exception, and can be a part of its message"
            message += ": `#| raises: ValueError: must be positive`"
        if message:
            yield Finding(path, option.line, message, kind="option")
    if "imports" in cell.tags and not leading_imports(cell.shown):
        message = "the cell is tagged imports but does not begin with any; drop the tag"
        yield Finding(path, cell.line, message, kind="option")
    for line, caught in _quiet(cell):
        message = "nothing tells if this try does not fail: end it with `else: raise AssertionError(...)`, or let the"
        yield Finding(path, line, f"{message} cell fail and say so, `#| raises: {caught}`", kind="cell")


def _quiet(cell: Cell) -> Iterator[tuple[int, str]]:
    """The lines of the try statements that show a failure and would not miss it, and what they catch.

    They have no else that tells, and both what they try and a handler come to their end. Who leaves the function or the
    loop instead does not show a failure but decides by it; so does who asks whether a package can be imported.
    """
    for node in ast.walk(cell.tree):
        if isinstance(node, ast.Try) and node.handlers and not any(map(_tells, node.orelse)):
            caught = [ast.unparse(handler.type) if handler.type else "Exception" for handler in node.handlers]
            shows = any(not _leaves(handler.body) for handler in node.handlers)
            if shows and not _leaves(node.body) and not {*caught} <= {"ImportError", "ModuleNotFoundError"}:
                yield cell.line + node.lineno - 1, caught[0]


def _leaves(body: Sequence[ast.stmt]) -> bool:
    last = body[-1]
    return isinstance(last, _LEAVES) or (isinstance(last, (ast.With, ast.AsyncWith)) and _leaves(last.body))


def _tells(statement: ast.stmt) -> bool:
    """Tell whether a statement makes a difference: it raises, asserts what is no constant, or binds a name."""
    return any(
        isinstance(node, (ast.Raise, ast.Assign, ast.AugAssign))
        or (isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant))
        for node in ast.walk(statement)
    )


def in_code(path: str, index: int, cell: Cell, result: Result | None, settings: Settings) -> Iterator[Finding]:
    """Yield the findings on a code cell that has run."""
    name, raises, named = f"cell {index + 1}", cell.fails, cell.option("raises")
    if result is None:
        return
    raised = result.raised
    if raised and raised.fatal and (much := re.fullmatch("the cell shows more than it may of (.+)", raised.summary)):
        message = f"{name} shows more than {written(settings.output)} of text, which nobody reads; show less, or set"
        message += ' output = "1 MB" under [tool.proofread]'
        if (form := much[1]) != "text":
            message = f"{name} shows more than {written(settings.rich)} of {form}, which every reader of the page loads"
            message += '; show fewer points of it, or a picture, or set rich = "50 MB" under [tool.proofread]'
        yield Finding(path, raised.line, message, kind="output")
    elif raised and raised.fatal:
        message = f"{name} ran out of the {written(settings.memory)} that a page may take ({raised.summary})"
        yield Finding(path, raised.line, f"{message}; {MEMORY_REMEDY}", kind="memory")
    elif raised and not raises:
        yield Finding(path, raised.line, f"{name} failed with {raised.summary}", raised.trace, kind="cell")
    if raised and (raised.fatal or not raises):
        return
    if not raised and raises:
        phrase = f"says `#| raises: {named}`" if named is not None else "is tagged raises-exception"
        message = f"{name} {phrase} but raises nothing; drop the {'tag' if named is None else 'option'} or let it fail"
        yield Finding(path, cell.line, message, kind="cell")
    elif raised:
        yield from _other(path, name, named, raised)
    if result.unseeded:
        message = f"{name} {result.unseeded} without seeding it"
        yield Finding(path, cell.line, f"{message}; {_seeding(result.unseeded)}", kind="seed")
    if "hide-output" in cell.tags:
        return
    alts, captions = (sum(option.key == key for option in cell.options) for key in ("alt", "caption"))
    drawn = sum(any(kind in output.get("data", {}) for kind in PICTURES) for output in result.outputs)
    if drawn != alts:
        remedy = "say what each shows in a comment at the top of the cell: `#| alt: ...`"
        if drawn < alts and result.backend:
            remedy = f"matplotlib draws with {result.backend}, which shows none: leave out what chose it"
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
    """Yield the findings on the data that a page sends to its scripts."""
    for index, text in checked.data.items():
        subject = f"data ({text.prose.text})"
        if error := next((answer.error for answer in text.answers.values() if answer.error), ""):
            holds = "numbers, texts, None, and lists, tensors and dicts of them, and no number that is NaN or infinite"
            message = f"{subject} is nothing that JSON can hold: {error}; give {holds}"
        elif text.drew:
            message = f"{subject} {text.drew}; draw in the cell"
        elif text.answers and (size := len(checked.sent(index).encode())) > settings.data:
            most = written(settings.data)
            message = f"{subject} is {size:,} bytes with {checked.digits(index)} digits, more than {most}"
            message += '; send less, or fewer `#| digits:`, or set data = "1 MB" under [tool.proofread]'
        else:
            continue
        yield Finding(checked.page.path, text.line, message, kind="data")


def _other(path: str, name: str, named: str | None, raised: Raised) -> Iterator[Finding]:
    """Yield the finding on a cell that shall fail, and does not say how, or fails otherwise."""
    summary, expected = " ".join(raised.summary.split()), _RAISES.fullmatch(named or "")
    if named is None:
        message = f"{name} is tagged raises-exception, which any failure would do for; say which instead, at its top:"
        yield Finding(path, raised.line, f"{message} `#| raises: {summary[:100].strip()}`", kind="cell")
    elif expected:
        same = f".{raised.kind}".endswith(f".{expected['kind']}")
        if not same or " ".join((expected["part"] or "").split()) not in summary:
            message = f"{name} says `#| raises: {' '.join(expected[0].split())}` but failed with {summary}"
            yield Finding(path, raised.line, message, raised.trace, kind="cell")


def _seeding(unseeded: str) -> str:
    if "torch's" in unseeded and "makes" in unseeded:
        return "seed it with manual_seed(...) instead of seed()"
    if "torch's" in unseeded:
        return "begin it with torch.manual_seed(...) or give it a torch.Generator of its own"
    if "NumPy's" in unseeded:
        return "take a generator of its own, numpy.random.default_rng(seed)"
    return "begin it with random.seed(...) or take a generator of its own, random.Random(seed)"
