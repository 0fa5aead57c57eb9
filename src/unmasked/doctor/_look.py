"""Watching a target from within: runs with other inputs, or with other numbers in the place of some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from unmasked.doctor._mistakes import Case
from unmasked.doctor._observed import Call, Event, calls_of, observed
from unmasked.doctor._patient import Patient
from unmasked.doctor._weights import Weights

__all__ = ["Inside", "Look", "Run", "Unseen", "elsewhere", "moved", "other_token"]


@dataclass
class Inside:
    """What was seen within.

    Attributes:
        seen: Whether attention was recognized at all.
        wrong: Mistakes: the museum's slug or None, what is done, and whether that is proved.
        unclear: What was seen and could not be judged.
        causal: Whether it hides later keys by itself.
        dealt: Whether views alone deal key heads out to query heads in another order than PyTorch's.
        unscaled: Whether the weights that it began with are so small that they may replace the scale.
    """

    seen: bool = False
    wrong: list[tuple[str | None, str, bool]] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    causal: bool | None = None
    dealt: bool = False
    unscaled: bool = False

    @property
    def right(self) -> bool:
        """Whether every stage was judged, and is right."""
        return self.seen and not self.wrong and not self.unclear


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
        if len(self.calls) == 1:
            return self.calls[0]
        first = self.calls[0]
        names = ("query", "key", "product", "scores", "softmax", "weights", "value", "context")
        joined: dict[str, Any] = {name: torch.cat([getattr(call, name) for call in self.calls], 1) for name in names}
        return replace(first, **joined)


class Unseen(Exception):  # noqa: N818  # it is an answer
    """Nothing can be said, and why."""


class Look:
    """A target that is watched, and what was judged of it so far."""

    def __init__(self, patient: Patient, inside: Inside):
        self.patient, self.inside = patient, inside
        self.rough = patient.target.dtype != torch.float64
        self.turned = self.memory = self.sums = False
        self.longer = 0
        self.allowed = torch.ones(1, dtype=torch.bool)
        self.scale: Tensor | None = None
        self.added = self.rest = torch.zeros(1)

    # What is asked

    def near(self, a: Tensor, b: Tensor, size: float = 1.0) -> bool:
        if a.shape != b.shape:
            return False
        gap = (a - b).abs().max().item() if a.numel() else 0.0
        return gap <= (2e-3 if self.rough else 1e-7) * max(size, 1e-3)  # constants may have been kept in float32

    def run(self, case: Case, put: dict[int, Callable[[Tensor], Tensor]] | None = None) -> Run:
        kept: list[Tensor] = []

        def ask() -> None:
            kept.append(self.patient.target(case.query, case.key, case.value, allowed=case.allowed))

        events = observed(ask, put)
        return Run(case, events, kept[0].detach())

    def find(self, run: Run) -> Run:
        c = run.case
        sizes = c.query.size(0), c.query.size(1), c.key.size(1)
        run.calls = calls_of(run.events, sizes, turned=self.turned, added=self.sums)
        return run

    def case(self, items: int, *, same: bool = False) -> Case:
        case = self.sized(items, self.patient.tokens, self.patient.tokens + self.longer)
        if same:
            case = self.changed(case, lambda x: x[:, :1].expand_as(x).clone())
            case = replace(case, allowed=None if case.allowed is None else torch.ones_like(case.allowed))
        return case

    def sized(self, items: int, queries: int, keys: int) -> Case:
        return self.patient.case(items, queries, keys, Weights({}, {}, 1, 1), causal=False)

    @staticmethod
    def changed(case: Case, change: Callable[[Tensor], Tensor]) -> Case:
        made: dict[int, Tensor] = {}
        for x in (case.query, case.key, case.value):
            made.setdefault(id(x), change(x))
        return replace(case, query=made[id(case.query)], key=made[id(case.key)], value=made[id(case.value)])

    def without_memory(self, run: Run) -> Run:
        """Leave out keys that no input makes: a bias for keys, zeros, memory slots."""
        call, keys = run.call, run.case.key.size(1)
        if call.key.size(2) == keys:
            return run
        own = [(x - x[:1]).abs().amax((0, 1, 3)) > 0 for x in (call.key, call.value)]
        kept = (own[0] | own[1]).nonzero().flatten()
        if not torch.equal(*own) and int(own[0].sum()) == int(own[1].sum()) == keys and len(call.key) > 1:
            told = "keys and values that no token makes stand at different places: each key has another token's value"
            self.wrong(None, told)
            kept = own[0].nonzero().flatten()
        if len(kept) != keys:
            raise Unseen(f"it has {call.key.size(2)} keys where it was given {keys}")
        self.memory = True
        less: dict[str, Any] = {name: getattr(call, name)[:, :, kept] for name in ("key", "value")}
        less |= {n: getattr(call, n)[..., kept] for n in ("product", "scores", "softmax", "weights")}
        return replace(run, calls=[replace(call, **less)]) if len(run.calls) == 1 else run

    def wrong(self, cause: str | None, told: str, *, proved: bool = True) -> None:
        if all(told != other for _, other, _ in self.inside.wrong):
            self.inside.wrong.append((cause, told, proved and not self.inside.unclear))

    def constants(self, *words: str) -> list[float]:
        """Numbers that its modules keep as attributes, whose names have one of these words if any are given."""
        found = []
        for module in self.patient.target.modules.values():
            for each in module.modules():
                plain = [x for x in vars(each).values() if not isinstance(x, Tensor | nn.Module) and not callable(x)]
                for holder in (each, *(x for x in plain if hasattr(x, "__dict__"))):  # such as a config
                    for name, value in vars(holder).items():
                        meant = not words or any(word in name for word in words)
                        if meant and isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                            found.append(float(value))
        return sorted(set(found))


def other_token(x: Tensor) -> Tensor:
    x = x.clone()
    x[0, 1] = x[0, 1].flip(-1) + 0.5
    return x


def moved(before: Tensor, after: Tensor) -> Tensor:
    """Which tokens differ: without the axis of features, and of heads if there is one."""
    size = before.abs().max().item()
    limit = 1e-10 if before.dtype == torch.float64 else 1e-4
    return ((before - after).abs() > limit * max(size, 1e-3)).any(-1)


def elsewhere(before: Tensor, after: Tensor) -> bool:
    """Whether anything moved but what belongs to the second token of the first item."""
    if before.shape != after.shape:
        return True
    which = moved(before, after)
    which[0, :, 1] = False
    return bool(which.any())
