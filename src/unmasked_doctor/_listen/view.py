"""A target that is watched from within: runs with other inputs, or with other numbers in the place of some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from unmasked_doctor._listen.calls import Call, calls_of, joined
from unmasked_doctor._listen.hear import Event, heard
from unmasked_doctor._report import Finding, Open, Standing
from unmasked_doctor._subject import Case, Subject
from unmasked_doctor._target import Target

__all__ = [
    "EQUALITY",
    "Run",
    "Unseen",
    "View",
    "changed",
    "drawn",
    "elsewhere",
    "moved",
    "other_token",
    "unclear",
    "without_memory",
]

EQUALITY = "equality with the reference"
# How far two results of one computation may lie apart, as a part of their size: float64, whose constants may have been
# kept in float32, and float32.
NEAR, NEAR_ROUGH = 1e-7, 2e-3
# By how much a token moves, at the least, if anything of it is changed.
MOVED, MOVED_ROUGH = 1e-10, 1e-4
_SMALLEST = 1e-3  # sizes below are taken for this one


@dataclass
class Run:
    """One forward pass: what was asked, what was heard, what came out."""

    case: Case
    events: list[Event]
    output: Tensor
    calls: list[Call] = field(default_factory=list)

    @property
    def call(self) -> Call:
        """The calls as one: heads of a list stand side by side."""
        return joined(self.calls)


class Unseen(Exception):  # noqa: N818  # it is an answer
    """Nothing can be said, and why."""


@dataclass(frozen=True)
class View:
    """A target that is watched, and what is known of how it lays out its heads and keys.

    Attributes:
        subject: The target, with all that it is asked with.
        layout: Which of `LAYOUTS` the heads stand in.
        longer: How many more keys than queries it is given.
        memory: Whether it has keys that no input makes, which are left out.
        idle: Indices of the calls of attention that reach no output, which are left out.
    """

    subject: Subject
    layout: int = 0
    longer: int = 0
    memory: bool = False
    idle: frozenset[int] = frozenset()

    @property
    def target(self) -> Target:
        return self.subject.target

    def near(self, a: Tensor, b: Tensor, size: float = 1.0) -> bool:
        """Whether two results of this size are the same, but for rounding."""
        if a.shape != b.shape:
            return False
        gap = (a - b).abs().max().item() if a.numel() else 0.0
        return gap <= (NEAR_ROUGH if self.subject.rough else NEAR) * max(size, _SMALLEST)

    def run(self, case: Case, put: dict[int, Callable[[Tensor], Tensor]] | None = None) -> Run:
        """Ask, and listen; find its calls of attention."""
        events, output = heard(lambda: self.subject.answer(case), put)
        run = Run(case, events, output.detach())
        return self.again(run) if put is None else run

    def again(self, run: Run) -> Run:
        """The same run in this view's layout."""
        calls = calls_of(run.events, run.case.sizes, self.layout)
        return replace(run, calls=[call for n, call in enumerate(calls) if n not in self.idle])

    def asked(self, case: Case, base: Run) -> Run:
        """Ask what should be attended to in as many calls, without what no input makes."""
        run = self.run(case)
        if len(run.calls) != len(base.calls):
            raise Unseen("what it does depends on its input")
        return without_memory(run) if self.memory else run

    def case(self, items: int, *, same: bool = False) -> Case:
        case = self.subject.case(items, self.subject.tokens, self.subject.tokens + self.longer)
        if same:
            case = changed(case, lambda x: x[:, :1].expand_as(x).clone())
            case = replace(case, allowed=None if case.allowed is None else torch.ones_like(case.allowed))
        return case

    def wrong(self, step: str, cause: str | None, text: str, how: Standing = "followed", **more: Any) -> Finding:
        """What a step does otherwise; whether that breaks a promise is asked by calls."""
        evidence = self.subject.sized("seen in what its own forward pass multiplies")
        return Finding(EQUALITY, cause, text, evidence, how=how, step=step, **more)

    def constants(self, *words: str) -> list[float]:
        """Numbers that its modules keep as attributes, whose names have one of these words."""
        numbers = []
        for module in self.target.modules.values():
            for each in module.modules():
                plain = [x for x in vars(each).values() if not isinstance(x, Tensor | nn.Module) and not callable(x)]
                for holder in (each, *(x for x in plain if hasattr(x, "__dict__"))):  # such as a config
                    for name, value in vars(holder).items():
                        meant = any(word in name.lower() for word in words)
                        if meant and isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                            numbers.append(float(value))
        return sorted(set(numbers))


def without_memory(run: Run) -> Run:
    """Leave out keys that no input makes: a bias for keys, zeros, memory slots."""
    call, keys = run.call, run.case.key.size(1)
    if call.key.size(2) == keys:
        return run
    own, values = call.tokens_own
    kept = (own if int(own.sum()) == keys else own | values).nonzero().flatten()
    if len(kept) != keys:
        raise Unseen(f"it has {call.key.size(2)} keys where it was given {keys}")
    less: dict[str, Any] = {name: getattr(call, name)[:, :, kept] for name in ("key", "value")}
    less |= {n: getattr(call, n)[..., kept] for n in ("product", "scores", "softmax", "weights", "numbers")}
    less["sinks"] = False
    return replace(run, calls=[replace(call, **less)]) if len(run.calls) == 1 else run


def unclear(why: str) -> Open:
    return Open(EQUALITY, why)


def changed(case: Case, change: Callable[[Tensor], Tensor]) -> Case:
    """Change each of its inputs, the same one once."""
    made: dict[int, Tensor] = {}
    for x in (case.query, case.key, case.value):
        if id(x) not in made:
            made[id(x)] = change(x)
    return replace(case, query=made[id(case.query)], key=made[id(case.key)], value=made[id(case.value)])


def other_token(x: Tensor) -> Tensor:
    x = x.clone()
    x[0, 1] = x[0, 1].flip(-1) + 0.5
    return x


def drawn(like: Tensor, seed: int = 4) -> Tensor:
    """Numbers without a pattern, as many as these, where they are."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(like)


def moved(before: Tensor, after: Tensor) -> Tensor:
    """Which tokens differ: without the axis of features, and of heads if there is one. What is NaN in both does not."""
    size = before.nan_to_num(0.0, 0.0, 0.0).abs().max().item()
    limit = MOVED if before.dtype == torch.float64 else MOVED_ROUGH
    same = (
        ((before - after).abs() <= limit * max(size, _SMALLEST)) | (before.isnan() & after.isnan()) | (before == after)
    )
    return ~same.all(-1)


def elsewhere(before: Tensor, after: Tensor) -> bool:
    """Whether anything moved but what belongs to the second token of the first item."""
    if before.shape != after.shape:
        return True
    which = moved(before, after)
    which[0, :, 1] = False
    return bool(which.any())
