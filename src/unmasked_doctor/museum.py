"""The mistakes that the museum shows: the name of each, its symptom, the wrong line and the right one.

Every mistake has a heading of its own on one of the museum's pages, where it runs beside its fix. The doctor and the
exercises name mistakes by the slugs of these entries.
"""

import ast
import difflib
import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from textwrap import dedent
from typing import Any

from torch import Tensor

from unmasked import _site
from unmasked_doctor.probes import differs

__all__ = ["ENTRIES", "Entry", "Exhibits", "Plate", "drawn", "mended", "reach"]


@dataclass(frozen=True)
class Entry:
    """A mistake of the museum.

    Attributes:
        slug: Its name, as the doctor and the exercises write it.
        title: What it is, in a line.
        page: The page that shows it, from the site's root.
        wrong: The line of code that makes the mistake.
        right: What should stand there.
        seen: How one meets it, in a sentence.
        symptom: What it looks like, one of `SYMPTOMS`.
    """

    slug: str
    title: str
    page: str
    wrong: str
    right: str
    seen: str
    symptom: str

    @property
    def link(self) -> str:
        """Its heading on the museum's page, from the site's root.

        >>> ENTRIES["merge-without-transpose"].link
        'museum/heads/#merge-without-transpose'
        """
        return f"{self.page}/#{self.slug}"

    @property
    def address(self) -> str:
        """The link with the site's address: ``SITE_URL``, or else that of the site that served the library.

        It is the link alone where neither is known.
        """
        return _site.address(self.link)


def reach(f: Callable[[Tensor], Tensor], x: Tensor) -> list[list[float]]:
    """Measure how far each output of a sequence moves when one token changes.

    Args:
        f: A function of (batch, tokens, features) that gives (batch, tokens, features).
        x: (batch, tokens, features).

    Returns:
        A row for each output of the first item, a column for each token that was changed.

    Examples:
        >>> import torch
        >>> reach(lambda x: x.cumsum(1), torch.zeros(1, 3, 1))
        [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    """
    before, columns = f(x), []
    for token in range(x.size(1)):
        changed = x.clone()
        changed[:, token] += 1
        columns.append((f(changed) - before)[0].detach().abs().amax(-1).tolist())
    return [list(row) for row in zip(*columns, strict=True)]


@dataclass(frozen=True)
class Plate:
    """A mistake as the museum shows it: the wrong line beside the right one, and what was measured.

    Attributes:
        entry: The mistake.
        off: The largest difference from the right result, if it was measured.
        size: The largest number of the right result, to compare with.
        found: What a check says of the wrong line.
        maps: What `reach` gives for the wrong and for the right version.
    """

    entry: Entry
    off: float | None = None
    size: float | None = None
    found: str = ""
    maps: tuple[list[list[float]], list[list[float]]] | None = None

    def __str__(self) -> str:
        lines = [f"wrong: {self.entry.wrong}", f"right: {self.entry.right}"]
        return "\n".join(lines + [each for each in (self.measured, self.found) if each])

    __repr__ = __str__

    @property
    def measured(self) -> str:
        """How far off, and compared with what.

        >>> Plate(ENTRIES["missing-scale"], off=0.5, size=2.0).measured
        'off by 0.5, where the right numbers reach 2'
        """
        if self.off is None:
            return ""
        return f"off by {self.off:.2g}" + (f", where the right numbers reach {self.size:.2g}" if self.size else "")

    def _repr_html_(self) -> str:
        maps = self.maps or (None, None)
        sides = "".join(
            f'<div class="plate-{side.lower()}"><p>{side}</p><pre><code>{escape(code)}</code></pre>{drawn(cells)}</div>'
            for side, code, cells in zip(("Wrong", "Right"), (self.entry.wrong, self.entry.right), maps, strict=True)
        )
        notes = [f"<p><b>Off by</b> {escape(self.measured.removeprefix('off by '))}.</p>"] * (self.off is not None)
        notes += [f"<p><b>A check says:</b> {escape(self.found)}.</p>"] * bool(self.found)
        seen = f"<p><b>You see:</b> {escape(self.entry.symptom[0].lower() + self.entry.symptom[1:])}.</p>"
        return f'<div class="plate">{seen}<div class="plate-sides">{sides}</div>{"".join(notes)}</div>'


def drawn(reached: list[list[float]] | None) -> str:
    """Draw what `reach` gives as a small map.

    Args:
        reached: A row for each output, a column for each token; or None.

    Returns:
        HTML, with a square for each number that is not zero, and a cross for each that is NaN or infinite; "" for None.
        Squares of one shade are one element: a page has hundreds of squares, and a browser lays out each element.

    Examples:
        >>> drawn([[1.0, 0.0], [0.5, 1.0]]).count("M")
        3
        >>> drawn([[1.0, 0.0], [float("nan"), 1.0]]).count('class="lost"')
        1
    """
    if reached is None:
        return ""
    largest = max((cell for row in reached for cell in row if math.isfinite(cell)), default=0.0) or 1.0
    later = [cell > 1e-4 for row, cells in enumerate(reached) for cell in cells[row + 1 :]]
    label = f"Rows are outputs, columns are changed tokens: {sum(later)} of {len(later)} later tokens move an output"
    lost = sum(not all(map(math.isfinite, row)) for row in reached)
    label += f"; {lost} of {len(reached)} outputs are NaN" * bool(lost)
    shades = defaultdict[str, str](str)
    for row, cells in enumerate(reached):
        for column, cell in enumerate(cells):
            if not math.isfinite(cell):
                shades['class="lost"'] += f"M{column + 0.3:g} {row + 0.3:g}l.4 .4m0-.4l-.4 .4"
            elif cell > 1e-4:
                shade = f'opacity="{round(17 * cell / largest) / 20 + 0.15:.2f}"'  # in steps too small to see
                shades[shade] += f"M{column} {row}h.9v.9h-.9z"
    paths = "".join(f'<path {shade} d="{places}"/>' for shade, places in shades.items())
    box = f"0 0 {len(reached[0])} {len(reached)}"
    return f'<div class="reach" role="img" aria-label="{label}"><svg viewBox="{box}">{paths}</svg></div>'


@dataclass
class Exhibits:
    """Runs wrong versions beside right ones, each as an exhibit, and keeps how far off they are.

    Attributes:
        given: The arguments for which the mistake shows, unless an exhibit has its own: a tensor, or several arguments.
        hides: The arguments for which it does not, likewise.
        probe: What finds the mistake, likewise: a function of a version and of the arguments given, which returns what
            it found, or None.
        off: For each exhibit, by its slug, the largest difference from the right version.

    Examples:
        >>> import torch
        >>> exhibit = Exhibits(given=torch.ones(1, 3, 2), hides=torch.zeros(1, 3, 2))
        >>> plate = exhibit("missing-scale", lambda x: 2 * x, lambda x: x)
        >>> plate.measured, exhibit.off
        ('off by 1, where the right numbers reach 1', {'missing-scale': 1.0})
    """

    given: Tensor | Sequence[Any] = ()
    hides: Tensor | Sequence[Any] = ()
    probe: Callable[..., Any] | None = None
    off: dict[str, float] = field(default_factory=dict)

    def __call__(
        self,
        slug: str,
        wrong: Callable[..., Tensor],
        right: Callable[..., Tensor] | None = None,
        probe: Callable[..., Any] | None = None,
        *,
        hides: Tensor | Sequence[Any] | None = None,
        given: Tensor | Sequence[Any] | None = None,
    ) -> Plate:
        """Show a mistake, after checking that it is one, that it hides where it should, and that the probe finds it.

        Args:
            slug: The mistake.
            wrong: The version that makes it.
            right: The version that does not; by default what `mended` makes of the wrong one.
            probe: What finds it.
            hides: Arguments for which both versions must agree: a tensor, or several arguments.
            given: Arguments for which they must differ.

        Returns:
            What the museum shows. It has maps if the last argument given is (batch, tokens, features), and no other is
            a tensor.

        Raises:
            ValueError: The versions differ where the mistake hides, or agree where it shows; or the probe finds
                something in the right version, or nothing in the wrong one.
        """
        right = right or mended(ENTRIES[slug], wrong)
        hidden = _arguments(self.hides if hides is None else hides)
        shown = _arguments(self.given if given is None else given)
        if apart := differs(wrong(*hidden), right(*hidden)):
            raise ValueError(f"{slug} is off by {apart:.2g} where it should hide; pass as hides what hides it")
        self.off[slug] = differs(wrong(*shown), right(*shown))
        if not self.off[slug]:
            raise ValueError(f"{slug} is not off on what is given; pass as given what shows it")
        check = probe or self.probe
        found = check(wrong, *shown) if check else ""
        if check and (words := check(right, *shown)):
            raise ValueError(
                f"{slug}: the probe says of the right version: {words}; pass one that finds only the wrong"
            )
        if check and not found:
            raise ValueError(f"{slug}: the probe does not find the wrong version; pass one that does")
        *others, last = shown
        maps = None
        if isinstance(last, Tensor) and last.dim() == 3 and not any(isinstance(each, Tensor) for each in others):
            maps = reach(lambda x: wrong(*others, x), last), reach(lambda x: right(*others, x), last)
        return Plate(ENTRIES[slug], self.off[slug], _size(right(*shown)), str(found), maps)

    def plate(self, slug: str, right: Tensor | float, found: object = "") -> Plate:
        """Show a mistake that was measured by hand.

        Args:
            slug: The mistake; `off` has how far off it is.
            right: The right numbers, or the largest of them.
            found: What a check said of it.

        Returns:
            What the museum shows, without maps.
        """
        return Plate(ENTRIES[slug], self.off[slug], _size(right) if isinstance(right, Tensor) else right, str(found))


def _size(numbers: Tensor) -> float:
    return numbers.detach().abs().max().item()


def mended(entry: Entry, wrong: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Put a mistake's right line in the place of its wrong one.

    Args:
        entry: The mistake.
        wrong: A function whose source has the wrong line once, as an expression or as a statement.

    Returns:
        The function with the right line, in the same module.

    Raises:
        ValueError: The function has no source, or the wrong line does not stand there once.

    Examples:
        >>> import torch
        >>> def weights(q, k):
        ...     return (q @ k.mT).softmax(-1)
        >>> q, k = torch.eye(4), torch.zeros(4, 4).fill_diagonal_(2 * math.log(4.0))
        >>> weights(q, k)[0, 0], mended(ENTRIES["missing-scale"], weights)(q, k)[0, 0]
        (tensor(0.8421), tensor(0.5714))
    """
    mending = _Mending(entry)
    try:
        tree = ast.parse(dedent(inspect.getsource(wrong)))
    except OSError as error:
        text = f"{wrong.__name__} has no source to mend: write it in a file or in a notebook, or pass right"
        raise ValueError(text) from error
    mending.visit(tree)
    if mending.times != 1:
        raise ValueError(
            f"{entry.slug}: `{entry.wrong}` stands {mending.times} times in {wrong.__name__}, expected once; "
            "write it as the museum has it, or pass right"
        )
    names: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(tree), f"<{entry.slug}>", "exec"), wrong.__globals__, names)
    return names[wrong.__name__]  # type: ignore[no-any-return]


class _Mending(ast.NodeTransformer):
    def __init__(self, entry: Entry) -> None:
        self.wrong, self.right = ast.dump(_parsed(entry.wrong)), _parsed(entry.right)
        self.times = 0

    def visit(self, node: ast.AST) -> ast.AST:
        if ast.dump(node) == self.wrong:
            self.times += 1
            return self.right
        return self.generic_visit(node)


def _parsed(line: str) -> ast.AST:
    (statement,) = ast.parse(line).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def _arguments(given: Tensor | Sequence[Any]) -> Sequence[Any]:
    """Return the arguments of a call: a tensor is its only one."""
    return [given] if isinstance(given, Tensor) else given


# By the words that museum.txt has for them.
_SYMPTOMS = {
    "loss": "The loss falls suspiciously fast, and what is generated is bad",
    "quality": "It trains, but worse than it should",
    "batch": "A sequence's result depends on what else is in the batch",
    "parity": "It agrees with PyTorch in the test, and not elsewhere",
    "nan": "The output is NaN",
    "rows": "Rows of weights do not sum to one",
    "columns": "The weights have a column too many or too few",
    "cache": "With a cache, the newest token gets another answer",
    "checkpoint": "A checkpoint loads without an error, and answers nonsense",
    "length": "Right on short texts, wrong on long ones",
    "calls": "Two calls, or training and evaluation, disagree",
    "resources": "It takes too much memory or time, or does not load",
    "frozen": "Frozen weights change",
    "hooks": "Hooks do not run",
}


def _entries(text: str) -> Iterator[Entry]:
    """Read the entries of museum.txt, page by page."""
    page = ""
    _, *blocks = text.strip().split("\n\n")
    for block in blocks:
        if block.startswith("# "):
            page = block.removeprefix("# ")
            continue
        try:
            (slug, title), (symptom, seen) = (line.split(": ", 1) for line in block.splitlines()[:2])
            wrong, right = (line[2:] for line in block.splitlines()[2:])
        except ValueError:
            remedy = "write its slug and title, its symptom and what one sees, the wrong line and the right one"
            raise ValueError(f"museum.txt cannot be read at {block.splitlines()[0]!r}: {remedy}") from None
        if symptom not in _SYMPTOMS:
            raise ValueError(f"museum.txt gives {slug} the symptom {symptom!r}; write one of {', '.join(_SYMPTOMS)}")
        yield Entry(slug, title, page, wrong, right, seen, _SYMPTOMS[symptom])


class _Entries(dict[str, Entry]):
    """The mistakes by their slugs, which pages, exercises and the doctor write by hand."""

    def __missing__(self, slug: str) -> Entry:
        nearest = difflib.get_close_matches(slug, self, 1, 0.0)[0]
        raise KeyError(f"museum.txt has no {slug!r}; the nearest is {nearest!r}")


ENTRIES = _Entries((entry.slug, entry) for entry in _entries(Path(__file__).with_suffix(".txt").read_text("utf-8")))

SYMPTOMS = {
    symptom: tuple(entry.slug for entry in ENTRIES.values() if entry.symptom == symptom)
    for symptom in _SYMPTOMS.values()
}
"""The slugs of the mistakes with each symptom; every mistake has one symptom."""
