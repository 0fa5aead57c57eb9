"""What the doctor found, and how it is told."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any, Literal

from torch import Tensor

from unmasked_doctor import museum
from unmasked_doctor._words import ALONE, ITEMS

__all__ = [
    "STANDINGS", "STEPS", "Finding", "Given", "Layer", "ModelReport", "Open", "Outcome", "Pair", "Passed", "Report",
    "Standing", "known", "reaches", "standing_of",
]  # fmt: skip

VERSION = 3  # of what to_dict gives: it changes where a key goes or means something else, not where one comes

Standing = Literal["equal", "followed", "open"]
STANDINGS: tuple[Standing, ...] = ("open", "followed", "equal")  # each says more than the one before


# The steps in which attention may differ from the textbook and be meant so, and which designs mean it.
STEPS: dict[str, str] = {
    "scale": "muP divides by head_dim, T5 by nothing, and others by numbers that they learn",
    "softmax": "linear, sigmoid and slot attention divide by other sums",
    "mask": "some designs hide more, such as a token from itself",
    "layout": "some designs mix neighboring tokens beside attention",
    "bias": "a bias may prefer what is far, or differ from item to item",
    "positions": "some designs turn or scale queries alone, or turn values too",
    "norms": "some designs normalize one of queries and keys, or over other axes",
    "heads": "some models are trained with their key heads dealt out in turn, or with heads of their own order",
    "projections": "some designs let queries, keys and values share a projection",
    "output": "some designs have no output projection, or merge heads in their own way",
    "inputs": "arguments may stand in another order",
    "parameters": "it may be for another call than this one",
    "dropout": "some designs drop scores, or whole keys",
    "returned": "some layers return their weights for a plot alone",
}


# The promise that a design may not make, by the checks that ask for it: rows of a table may attend to each other.
_MEET = (ALONE, ITEMS)
_ACCEPTED = (*STEPS, "items")  # beside mistakes of the museum


def known(but: Iterable[str]) -> None:
    """Refuse what names neither a mistake of the museum nor a step."""
    for name in but:
        if name not in museum.ENTRIES and name not in _ACCEPTED:
            near = difflib.get_close_matches(name, [*_ACCEPTED, *museum.ENTRIES], n=1)
            meant = f"did you mean {near[0]!r}? Choose" if near else "choose"
            raise ValueError(
                f"but names {name!r}, which is no mistake of unmasked_doctor.museum.ENTRIES, and no step: {meant} of "
                f"{', '.join(_ACCEPTED)}"
            )


def reaches(verdict: Standing, least: Standing) -> bool:
    """Tell whether a verdict says as much as another.

    Args:
        verdict: What is known: "equal", "followed" or "open".
        least: What is asked for.

    Returns:
        Whether it is as much: "equal" says more than "followed", and this more than "open".

    Examples:
        >>> reaches("equal", "followed"), reaches("open", "followed")
        (True, False)
    """
    return STANDINGS.index(verdict) >= STANDINGS.index(least)


@dataclass(frozen=True, eq=False)
class Pair:
    """Two inputs that differ in one thing, and whose outputs show that a promise is broken.

    Attributes:
        promise: The check that asks for it.
        told: What differs, what moved and what was asked for, in a sentence.
        first: floating, (batch, tokens, features).
        second: The same shape and dtype; it differs from the first in one item or token.
        difference: By how much an output moved that should have stayed.
        code: Lines of Python that call ``target`` with both inputs, and print the difference.
    """

    promise: str
    told: str
    first: Tensor
    second: Tensor
    difference: float
    code: str


@dataclass(frozen=True)
class Finding:
    """A broken promise, or a difference from the textbook.

    Attributes:
        check: What was asked of the target.
        cause: The slug of the mistake in the museum, or None where the museum shows none like it.
        told: What the target does, in a sentence.
        evidence: The smallest input that showed it, and by how much it was off.
        how: How it is known. "equal": the mistake, computed beside the target, gives its numbers. "followed": the step
            was recognized as that mistake's. "open": it is the likeliest.
        also: Slugs of mistakes that would show in the same way.
        where: The module of a model that it was found in, by its qualified name; "" for the target itself.
        caution: Whether PyTorch's own functions, or published models, do it too.
        step: Of a difference, the step of `STEPS` in which it differs, by which it is accepted; "" of a broken promise.
        pair: Two inputs that show it, where two calls do; None where it is seen in another way.
    """

    check: str
    cause: str | None
    told: str
    evidence: str
    how: Standing = "open"
    also: tuple[str, ...] = ()
    where: str = ""
    caution: bool = False
    step: str = ""
    pair: Pair | None = field(default=None, compare=False, repr=False)

    def show(self) -> str:
        """Tell how to see it: by lines of Python where two calls show it, or else by its evidence.

        Returns:
            The lines, in which the target is called ``target``; a comment says what they show.

        Examples:
            >>> Finding("a check", None, "what it does", "1 item of 2 tokens").show()
            '# 1 item of 2 tokens'
        """
        if self.pair is None:
            return f"# {self.evidence}"
        call = ", and call what it was called with" if "deepcopy(call)" in self.pair.code else ""
        return f"# {self.pair.told}\n# target is what was examined{call}\n{self.pair.code}"

    @property
    def link(self) -> str | None:
        """Where the cause hangs in the museum, from the site's root."""
        return None if self.cause is None else museum.ENTRIES[self.cause].link

    @property
    def causes(self) -> tuple[str, ...]:
        """The cause, and those that would show in the same way."""
        return (*([self.cause] if self.cause else []), *self.also)

    def accepted(self, but: Collection[str]) -> bool:
        """Tell whether it is meant, or known.

        Args:
            but: Slugs of the museum, of differences also names of steps, and "items" where items may reach each other.

        Returns:
            Whether its cause, its step or its promise is among them.

        Examples:
            >>> found = Finding("a check", None, "what it does", "1 item", step="scale")
            >>> found.accepted(["scale"]), found.accepted(["mask"])
            (True, False)
        """
        kinds = {self.cause, self.step or ("items" if self.check in _MEET else None)} - {None}
        return not kinds.isdisjoint(but)


@dataclass(frozen=True)
class Open:
    """A check that was not decided.

    Attributes:
        check: What was to be asked.
        needs: What would decide it.
    """

    check: str
    needs: str


@dataclass(frozen=True)
class Passed:
    """A check that holds."""

    check: str


@dataclass(frozen=True)
class Given:
    """What was seen, and taken as it is: any choice of it is attention."""

    choice: str


Outcome = Finding | Open | Passed | Given


def standing_of(findings: Iterable[Finding], otherwise: Standing) -> Standing:
    """What is known of what it computes: the most that a finding says, or else what is known without."""
    return max((*(found.how for found in findings), otherwise), key=STANDINGS.index)


@dataclass(frozen=True)
class Report:
    """What holds of a target and what does not.

    Attributes:
        target: The target's name.
        findings: The promises that it breaks, the surest first.
        differences: Where it differs from the textbook without breaking a promise: a design, or a mistake.
        cautions: What PyTorch's own functions do too, and may surprise; findings, with ``strict=True``.
        passed: The checks that hold.
        inconclusive: The checks that were not decided, and what they need.
        verdict: What is known of what it computes. "equal": its outputs are those of an independent attention, or of
            one with the mistake that was found. "followed": each of its steps was recognized, each parameter is
            used, and what stands in ``given`` was taken as it is. "open": it may compute something else.
        given: What was not judged, since any choice of it is attention: positions, windows, norms, gates.
        never_passed: The optional arguments that the target was never called with, such as masks and caches.
    """

    target: str
    findings: tuple[Finding, ...] = ()
    differences: tuple[Finding, ...] = ()
    cautions: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    inconclusive: tuple[Open, ...] = ()
    verdict: Standing = "open"
    given: tuple[str, ...] = ()
    never_passed: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no promise is broken; it may still differ from the textbook."""
        return not self.findings

    @property
    def named(self) -> tuple[Finding, ...]:
        """The broken promises, and then the differences."""
        return (*self.findings, *self.differences)

    @property
    def causes(self) -> tuple[str, ...]:
        """The slugs of all that is named."""
        return tuple(finding.cause for finding in self.named if finding.cause)

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return self.text()

    def text(self, *, color: bool = False, width: int = 78, shell: bool = False) -> str:
        """Tell it in words.

        Args:
            color: Whether to color it for a terminal.
            width: Columns to wrap it to.
            shell: Whether to write remedies as options of the command, not as arguments of `diagnose`.
        """
        paint = _Paint(color)
        words = _WORDS[self.verdict]
        if self.verdict == "equal" and self.never_passed:
            words += f", asked without {_listed(self.never_passed)}"
        lines = [_verdict(self.target, self, words, paint)]
        lines += _lines(self.named, self.cautions, self.inconclusive, self.passed, paint)
        lines += _choices_line(self.given, paint)
        if self.never_passed:
            lines.append(f"{paint.dim}={paint.off} never passed: {', '.join(self.never_passed)}")
        return _wrapped(map(_as_options, lines) if shell else lines, width)

    def to_dict(self) -> dict[str, Any]:
        """Tell it in plain dictionaries, for JSON."""
        return _dict(self) | {"never_passed": list(self.never_passed)}


@dataclass(frozen=True)
class Layer:
    """One call of attention in a model.

    Attributes:
        name: The qualified name of the module that called.
        kind: "causal", "every token sees every", "masked", or "keys of another length".
        kernel: What ran: "sdpa" for PyTorch's function, whichever of its kernels that takes outside of here, "flex" for
            FlexAttention, "eager" for PyTorch's layer without its function, or "written out".
        heads: Heads of the queries.
        kv_heads: Different heads of the keys.
        head_dim: Features of a head.
        causal: Whether no query sees a later key.
        window: How many keys a query sees at most, where that is fewer than there are.
        scale: What the products of query and key were multiplied by, from the layers on; None if that varies.
        bias: Whether something besides a mask is added to the scores.
        turned: Whether positions turn query and key; None where that could not be told.
        findings: What is named of it, broken promises and differences.
        verdict: "equal" if PyTorch's own layer made the call; "followed" if it was followed from the layers before it
            to the layer behind it; or else "open".
        given: What was taken as it is.
    """

    name: str
    kind: str
    kernel: str
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    window: int | None = None
    scale: float | None = None
    bias: bool = False
    turned: bool | None = None
    findings: tuple[Finding, ...] = ()
    verdict: Standing = "open"
    given: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """What it computes, in a line."""
        usual = self.scale is None or abs(self.scale * self.head_dim**0.5 - 1) < 1e-3
        parts = [
            self.kind,
            f"window {self.window}" if self.window else "",
            f"{self.heads} heads of {self.head_dim} features",
            f"{self.kv_heads} key heads" if self.kv_heads != self.heads else "",
            "" if usual else f"scale {self.scale:g}",
            "rotary" if self.turned else "",
            "bias" if self.bias else "",
            self.kernel,
        ]
        return ", ".join(part for part in parts if part)

    def to_dict(self) -> dict[str, Any]:
        """Tell it in plain dictionaries, for JSON."""
        return vars(self) | {"given": list(self.given), "findings": _dicts(self.findings)}


@dataclass(frozen=True)
class ModelReport:
    """What holds of a model's attention, layer by layer.

    Attributes:
        target: The model's name.
        layers: The calls of attention, in their order.
        findings: The promises that the model breaks, the surest first; each says where.
        differences: Where a layer differs from the textbook or from its likes, and no promise is broken.
        cautions: What may surprise.
        passed: The checks that hold of all layers.
        inconclusive: The checks that were not decided, and what they need.
        watched: The modules whose calls were heard.
        unwatched: What looked like attention and could not be heard, and why.
    """

    target: str
    layers: tuple[Layer, ...] = ()
    findings: tuple[Finding, ...] = ()
    differences: tuple[Finding, ...] = ()
    cautions: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    inconclusive: tuple[Open, ...] = ()
    watched: tuple[str, ...] = ()
    unwatched: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no promise is broken; a layer may still differ from the textbook, or from its likes."""
        return not self.findings

    @property
    def verdict(self) -> Standing:
        """What is known of all its attention: the least that is known of a layer, and "open" if some was not heard."""
        if not self.layers or self.unwatched:
            return "open"
        return min((layer.verdict for layer in self.layers), key=STANDINGS.index)

    @property
    def given(self) -> tuple[str, ...]:
        """What was taken as it is, in any layer."""
        return tuple(dict.fromkeys(choice for layer in self.layers for choice in layer.given))

    @property
    def named(self) -> tuple[Finding, ...]:
        """The broken promises, and then the differences."""
        return (*self.findings, *self.differences)

    @property
    def causes(self) -> tuple[str, ...]:
        """The slugs of all that is named."""
        return tuple(finding.cause for finding in self.named if finding.cause)

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return self.text()

    def text(self, *, color: bool = False, width: int = 78, shell: bool = False) -> str:
        """Tell it in words; equal layers in one line.

        Args:
            color: Whether to color it for a terminal.
            width: Columns to wrap it to.
            shell: Whether to write remedies as options of the command, not as arguments of `diagnose_model`.
        """
        paint = _Paint(color)
        words = "no call of attention was found" if not self.layers else _WORDS_OF_ALL[self.verdict]
        count = len(self.layers)
        heard = f"{count} call{'s' if count != 1 else ''} of attention"
        lines = [_verdict(f"{self.target}, {heard}", self, words, paint)]
        lines += _lines(self.named, self.cautions, (), (), paint)
        lines += [f"{paint.dim}-{paint.off} {line}" for line in _folded(self.layers)]
        lines += [f"{paint.yellow}?{paint.off} not watched: {place}" for place in self.unwatched]
        lines += _lines((), (), self.inconclusive, self.passed, paint)
        lines += _choices_line(self.given, paint)
        return _wrapped(map(_as_options, lines) if shell else lines, width)

    def to_dict(self) -> dict[str, Any]:
        """Tell it in plain dictionaries, for JSON."""
        more = {"watched": list(self.watched), "unwatched": list(self.unwatched)}
        return _dict(self) | {"layers": [layer.to_dict() for layer in self.layers]} | more


class _Paint:
    def __init__(self, color: bool) -> None:
        codes = (f"\033[{code}m" if color else "" for code in (31, 32, 33, 2, 0))
        self.red, self.green, self.yellow, self.dim, self.off = codes


_WORDS: dict[Standing, str] = {
    "equal": "equal to an independent attention",
    "followed": "followed step by step",
    "open": "equality with attention was not settled, so it may compute something else",
}
_WORDS_OF_ALL: dict[Standing, str] = {
    "equal": "each made by PyTorch's own layer, or equal to an independent attention",
    "followed": "each followed from the layers before it to the layer behind it",
    "open": "not all of it could be followed, so look at the rest",
}
_HOW: dict[Standing, str] = {"equal": "", "followed": " (followed)", "open": " (likely)"}


def _verdict(target: str, report: Report | ModelReport, words: str, paint: _Paint) -> str:
    broken, others = len(report.findings), len(report.differences)
    counts = [
        f"{paint.red}{_counted(broken, 'broken promise')}{paint.off}" if broken else "",
        f"{paint.yellow}{_counted(others, 'difference')} from the textbook{paint.off}" if others else "",
    ]
    if any(counts):
        return f"{target}: {' and '.join(filter(None, counts))}"
    is_open = report.verdict == "open"
    text = f"{paint.yellow}no finding, but {words}" if is_open else f"{paint.green}no finding, {words}"
    return f"{target}: {text}{paint.off}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'s' if count > 1 else ''}"


def _choices_line(choices: Sequence[str], paint: _Paint) -> Iterator[str]:
    if choices:
        yield f"{paint.dim}={paint.off} taken as given: {', '.join(choices)}"


def _lines(
    named: Iterable[Finding],
    cautions: Iterable[Finding],
    inconclusive: Iterable[Open],
    passed: Sequence[str],
    paint: _Paint,
) -> Iterator[str]:
    marked = [("~" if each.step else "x", paint.yellow if each.step else paint.red, each) for each in named]
    alike: dict[tuple[Any, ...], list[tuple[str, str, Finding]]] = {}
    for mark, color, each in [*marked, *(("!", paint.yellow, each) for each in cautions)]:
        key = mark, each.check, each.cause, each.step, each.told, each.how, each.also, each.where != ""
        alike.setdefault(key, []).append((mark, color, each))
    for (mark, color, each), *others in alike.values():
        where = f"{_places([each.where, *(other.where for *_, other in others)])}: " if each.where else ""
        title = where + (each.cause or each.step or each.check) + _HOW[each.how]
        yield f"{color}{mark} {title}{paint.off}: {each.told}"
        yield f"    {each.evidence}"
        if each.step and not each.caution:
            yield f"    if it is meant ({STEPS[each.step]}), accept it by but=[{each.step!r}]"
        elif each.check in _MEET:
            yield "    if items are meant to meet, as rows of a table may, accept it by but=['items']"
        if each.also:
            yield f"    it could also be {' or '.join(each.also)}"
        if each.cause:
            yield f"    {paint.dim}{museum.ENTRIES[each.cause].address}{paint.off}"
    yield from (f"{paint.yellow}?{paint.off} {each.check}: {each.needs}" for each in inconclusive)
    if passed:
        yield f"{paint.green}+{paint.off} holds: {', '.join(passed)}"


def _places(names: Sequence[str]) -> str:
    """Some of the layers in which the same was found, and how many more there are."""
    first = ", ".join(names[:2])
    return f"{first} and {len(names) - 2} more" if len(names) > 3 else ", ".join(names)


# How an argument of `diagnose` is written as an option of the command.
_OPTIONS = {
    r"\b(causal|positions)=True or False": r"--\1 or --no-\1",
    r"\b(causal|positions)=True": r"--\1",
    r"\b(causal|positions)=False": r"--no-\1",
    r"\bbatch_first=False": "--tokens-first",
    r"\bbut=\['(\w+)'\]": r"--but \1",
    r"\btokens=(\d+)": r"--tokens \1",
    r"\bnum_heads=(\d+)": r"--num-heads \1",
    r"\bdiagnose_model\b": "--model",
}


def _as_options(line: str) -> str:
    for argument, option in _OPTIONS.items():
        line = re.sub(argument, option, line)
    return line


def _wrapped(lines: Iterable[str], width: int) -> str:
    wrap = {"subsequent_indent": "    ", "break_long_words": False, "break_on_hyphens": False}
    whole = (line if " " not in line.strip() else textwrap.fill(line, width, **wrap) for line in lines)  # type: ignore[arg-type]
    return "\n".join(whole)


def _dict(report: Report | ModelReport) -> dict[str, Any]:
    return {
        "version": VERSION,
        "target": report.target,
        "ok": report.ok,
        "verdict": report.verdict,
        "given": list(report.given),
        "findings": _dicts(report.findings),
        "differences": _dicts(report.differences),
        "cautions": _dicts(report.cautions),
        "passed": list(report.passed),
        "inconclusive": [asdict(each) for each in report.inconclusive],
    }


def _dicts(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [_plain(each) for each in findings]


def _plain(finding: Finding) -> dict[str, Any]:
    plain = asdict(replace(finding, pair=None))
    del plain["pair"]
    return plain | {"link": finding.link, "pair": finding.pair.told if finding.pair else None, "show": finding.show()}


def _folded(layers: Sequence[Layer]) -> Iterator[str]:
    """Tell layers that compute the same in one line."""
    by_text: dict[str, list[str]] = {}
    for layer in layers:
        by_text.setdefault(layer.told, []).append(layer.name or "(the model)")
    places: dict[str, int] = {}  # each name's number among those of its pattern
    counts: Counter[str] = Counter()
    for name in dict.fromkeys(layer.name or "(the model)" for layer in layers):
        pattern = re.sub(r"[0-9]+", "*", name)
        places[name], counts[pattern] = counts[pattern], counts[pattern] + 1
    for text, names in by_text.items():
        unique = list(dict.fromkeys(names))
        by_run = groupby(enumerate(unique), lambda at: places[at[1]] - at[0])
        spans = [[name for _, name in run] for _, run in by_run]
        ranges = [f"{span[0]} ... {span[-1]}" if len(span) > 2 else ", ".join(span) for span in spans]
        yield f"{', '.join(ranges)}: {text}"
