"""Promises that two calls show to be broken: inputs that differ in one thing, and an output that should not notice.

A pair is found at one size and confirmed at another, so that no coincidence of sizes makes it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unmasked_doctor._report import Finding, Outcome, Pair
from unmasked_doctor._subject import Subject
from unmasked_doctor._target import draw
from unmasked_doctor._words import ALONE
from unmasked_doctor.probes import moved

__all__ = [
    "ALONE", "BREAK", "CACHE", "FUTURE", "HIDDEN", "MASK", "NUMBERS", "ORDER", "ORDERED", "SEEN", "broken",
    "prepared", "settled", "with_pairs",
]  # fmt: skip

FUTURE = "no leak from the future, in value and gradient"
MASK = "mask polarity, and padding respected"
HIDDEN = "what is hidden is not seen"  # in whichever sense a mask is obeyed
ORDER = "permutation equivariance"
CACHE = "with a cache, the same as without"
NUMBERS = "finite inputs give finite outputs"
ORDERED = "the order of its tokens counts"
SEEN = "some keys that should be hidden are seen"  # which says no more than the promise
_WIDE = {"padding-ignored", "no-causal-mask"}  # of which other mistakes are a kind
BREAK = ("mask", "softmax", "layout")  # steps that decide which tokens an output depends on


@dataclass(frozen=True)
class _Change:
    """One thing in which two inputs differ, and which outputs must not notice it.

    Attributes:
        promise: The check that asks for it.
        at: The place that is changed, as it is written in Python.
        factor: What that place is multiplied by, its features reversed.
        kept: The outputs that must stay, as a boolean table (items, tokens).
        named: What is changed, in words.
        though: What was asked for.
        allowed: Who may see whom, (tokens, tokens); None for everything.
        turned: Whether the tokens are put in another order instead, in which their outputs must come too.
    """

    promise: str
    at: str
    factor: int
    kept: Tensor
    named: str
    though: str
    allowed: Tensor | None = None
    turned: bool = False

    @property
    def line(self) -> str:
        if self.turned:
            return "second = first.roll(1, 1)"
        times = f"{self.factor} * " if self.factor != 1 else ""
        return f"second[{self.at}] = {times}first[{self.at}].flip(-1)"

    def made(self, first: Tensor) -> Tensor:
        if self.turned:
            return first.roll(1, 1)
        second, place = first.clone(), tuple(slice(None) if each == ":" else int(each) for each in self.at.split(", "))
        second[place] = self.factor * first[place].flip(-1)
        return second


def prepared(target: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Copy a module as the doctor asks it: in evaluation mode, with parameters drawn anew, since zeros hide mistakes.

    Args:
        target: The module, which is left as it is.
        dtype: What the copy computes in.

    Returns:
        The copy.

    Examples:
        >>> prepared(nn.Linear(2, 2).train()).training
        False
    """
    asked = copy.deepcopy(target).to(dtype=dtype).eval()
    draw(asked)
    return asked


def settled(steps: list[Outcome], asked: list[Outcome]) -> list[Outcome]:
    """Let steps that differ from the textbook name the promise that calls show to be broken.

    Args:
        steps: What was seen within.
        asked: What calls showed.

    Returns:
        All outcomes. Where a promise is broken, the steps that decide on which tokens an output depends take its place,
        unless calls named the mistake and no step does; without a broken promise, and of other steps, they stay
        differences.

    Examples:
        >>> seen = Finding("equality", "no-causal-mask", "no query is kept from later keys", "seen", step="mask")
        >>> shown = Finding(FUTURE, None, "every token sees every other", "2 tokens")
        >>> [(each.check == FUTURE, each.cause, each.step) for each in settled([seen], [shown])]
        [(True, 'no-causal-mask', '')]
        >>> settled([seen], [])[0].step
        'mask'
    """
    broken = next((each for each in asked if isinstance(each, Finding) and not (each.caution or each.step)), None)

    differ = [each for each in steps if isinstance(each, Finding) and not each.caution]
    asked = [
        each
        for each in asked
        if not (isinstance(each, Finding) and each.step and each.step in {one.step for one in differ})
    ]
    decide = ("positions",) if broken is not None and broken.check == ORDERED else BREAK
    reasons = [each for each in differ if each.step in decide]
    if broken is None or not reasons:
        return [*steps, *asked]
    if all(each.told == SEEN for each in reasons):
        return [*(each for each in steps if each not in reasons), *asked]
    known, masks = {each.cause for each in reasons} - {None}, all(each.step == "mask" for each in reasons)
    narrow = bool(known) and known <= _WIDE and broken.cause not in _WIDE | {None}
    if masks and narrow:  # calls name it better
        return [*(each for each in steps if each not in reasons), *asked]
    shown = [replace(each, step="", check=broken.check, evidence=broken.evidence, pair=broken.pair) for each in reasons]
    return [*shown, *(each for each in steps if each not in reasons), *(each for each in asked if each is not broken)]


def with_pairs(subject: Subject, outcomes: list[Outcome]) -> list[Outcome]:
    """Give findings the pair of inputs that shows them.

    A finding takes the pair of its own check. What is found alone takes any pair, since nothing else is known
    that could have made it.
    """
    findings = [each for each in outcomes if isinstance(each, Finding) and not (each.caution or each.step)]
    if not findings:
        return outcomes
    pairs = list(broken(subject))

    def of(finding: Finding) -> Pair | None:
        own = (pair for pair in pairs if pair.promise == finding.check or len(findings) == 1)
        return next(own, None)

    return [replace(each, pair=of(each)) if each in findings else each for each in outcomes]


def broken(subject: Subject) -> Iterator[Pair]:
    """Ask for each promise whether it is broken, at two sizes."""
    module = isinstance(subject.original, nn.Module)
    if not subject.target.copied or (subject.target.modules and not module):  # no lines could make the same copy
        return
    if len(set(subject.options.widths)) > 1:  # its keys are not made of its queries' tokens
        return
    sizes = (subject.items, subject.tokens)
    others = (subject.items + 1, subject.fixed or subject.tokens + 2)
    told: set[str] = set()
    for change, again in zip(_changes(subject, *sizes), _changes(subject, *others), strict=True):
        if change.promise in told:
            continue
        try:
            pair = _pair(subject, change, *sizes)
            confirmed = pair is not None and _pair(subject, again, *others) is not None
        except Exception:  # whatever a target may raise at a size that it does not take
            continue
        if pair is not None and confirmed:
            told.add(pair.promise)
            yield pair


def _changes(subject: Subject, items: int, tokens: int) -> Iterator[_Change]:
    every, last = torch.ones(items, tokens, dtype=torch.bool), tokens - 1
    before, other = every.clone(), every.clone()
    before[:, last], other[items - 1] = False, False
    if subject.positions is False and not subject.causal and subject.options.own and not subject.options.masked:
        though = "no token has a position"
        yield _Change(ORDER, "", 1, every, "the order of their tokens", though, turned=True)
    for factor in (1, 100, -100):
        large = f", {abs(factor)} times as large" if factor != 1 else ""
        yield _Change(ALONE, f"{items - 1}", factor, other, f"item {items - 1}{large}", "items are independent")
        if subject.causal:
            yield _Change(FUTURE, f":, {last}", factor, before, f"token {last}{large}", "no token may see a later one")
        if subject.options.masked:
            allowed = torch.ones(tokens, tokens, dtype=torch.bool)
            allowed[:, last] = False
            yield _Change(MASK, f":, {last}", factor, before, f"token {last}{large}", "the mask hides it", allowed)


def _pair(subject: Subject, change: _Change, items: int, tokens: int) -> Pair | None:
    first = subject.noise(items, tokens)
    second = change.made(first)
    one, two = (subject.target(x, allowed=change.allowed) for x in (first, second))
    two = two.roll(-1, 1) if change.turned else two
    reached = moved(two, one) & change.kept
    if not reached.any() or not two[change.kept].isfinite().all():  # what overflows is no evidence
        return None
    item, token = reached.nonzero()[0].tolist()
    gap = (two - one)[item, token].abs().max().item()
    who = f"item {item}'s output for token {token}" if change.promise == ALONE else f"token {token}'s output"
    told = f"two inputs differ only in {change.named}, and {who} moves by {gap:.3g}, though {change.though}"
    return Pair(change.promise, told, first, second, gap, _code(subject, change, first, item, token))


def _code(subject: Subject, change: _Change, first: Tensor, item: int, token: int) -> str:
    """Lines of Python that show it, of a target that is called ``target``."""
    target, dtype = subject.target, str(first.dtype)
    count = 1 if subject.options.own else 2 if subject.inputs.startswith("x_context") else 3
    given = "x" if target.batch_first else "x.transpose(0, 1)"
    passed, lines = [given] * count, ["import torch", "from unmasked_doctor import prepared", ""]
    if subject.options.masked:
        items, tokens = first.shape[:2]
        shape = {4: (items, 1, tokens, tokens), 3: (items, tokens, tokens), 2: (tokens, tokens), 1: (items, tokens)}
        lines.append(f"allowed = torch.ones{shape[target.mask_axes]}.bool()")
        lines += [] if change.allowed is None else ["allowed[..., -1] = False"]
        passed.append("allowed")
    called = f"asked({', '.join(passed)})"
    lines += [
        "def call(x):",
        f"    output = {called}",
        "    output = output[0] if isinstance(output, tuple) else output",
    ]
    lines += ["    return output" if target.batch_first else "    return output.transpose(0, 1)", ""]
    module = isinstance(subject.original, nn.Module)
    lines.append(f"asked = prepared(target, {dtype})" if module else "asked = target")
    lines.append("generator = torch.Generator().manual_seed(0)")
    lines.append(f"first = torch.randn({tuple(first.shape)}, generator=generator, dtype=torch.float64).to({dtype})")
    lines += [change.line] if change.turned else ["second = first.clone()", change.line]
    again = "call(second).roll(-1, 1)" if change.turned else "call(second)"
    lines.append(f"print(({again} - call(first))[{item}, {token}].abs().max().item())")
    return "\n".join(lines)
