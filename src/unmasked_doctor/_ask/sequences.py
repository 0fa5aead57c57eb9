"""Whether sequences that lie in one axis, one after another, reach each other."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from unmasked_doctor._ask.promises import ALONE
from unmasked_doctor._ask.user_call import UserCall
from unmasked_doctor._report import Finding, Outcome
from unmasked_doctor._tensors import gaps

__all__ = ["parted", "readings", "sequences", "with_other_rows"]

# What a number is called that says how many rows belong to one item.
_FOLDED = re.compile(r"(?i)frames|views|beams|clips|crops|images|tiles|cameras")


def sequences(asked: UserCall) -> Iterator[Outcome]:
    """Change one of the sequences that rows belong to, and then pass one without the others."""
    for name, ways in readings(asked):
        moved = [_others_moved(asked, which) for which in ways]
        if moved and min(moved) > asked.share:
            text = f"{name} says which rows belong together, and they reach others"
            evidence = asked.evidence(f"with other rows of one, the others move by {min(moved):.2g} of the largest")
            yield Finding(ALONE, None, text, evidence)
            return
    if asked.packed is not None and (gap := _alone(asked, asked.packed.given)) > asked.share:
        text = f"a sequence that {asked.packed.name} parts gives something else without the others"
        evidence = asked.evidence(f"passed by itself, its outputs differ by {gap:.2g} of the largest")
        yield Finding(ALONE, None, text, evidence, step="mask")


def readings(asked: UserCall) -> Iterator[tuple[str, list[Tensor]]]:
    """For each plain argument that parts rows, the ways to read it: of each row, the sequence that it belongs to."""
    rows = asked.leaves[asked.main].given.size(0)
    yield from parted(asked.passed, rows)
    for name, value in asked.passed.items():
        if type(value) is int and 1 < value < rows and rows % value == 0 and _FOLDED.search(name):
            yield name, [torch.arange(rows) // value, torch.arange(rows) % (rows // value)]


def parted(passed: Mapping[str, Any], rows: int) -> Iterator[tuple[str, list[Tensor]]]:
    """For each list that parts rows, by borders, by lengths or by grids, of each row the sequence it belongs to."""
    for name, value in passed.items():
        if type(value) not in (list, tuple) or len(value) < 2:
            continue
        if all(type(n) is int for n in value) and len(value) > 2:
            sizes = list(value)
            if value[0] == 0 and value[-1] == rows and sorted(value) == sizes:
                sizes = [end - start for start, end in itertools.pairwise(value)]
        elif all(type(each) in (list, tuple) and each and all(type(n) is int for n in each) for each in value):
            sizes = [math.prod(each) for each in value]
        else:
            continue
        if sum(sizes) == rows and min(sizes) > 0:
            yield name, [torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))]


def _others_moved(asked: UserCall, which: Tensor) -> float:
    """By how much outputs move of sequences that stay as they are, where the first or the last is another."""
    rows, count, worst = len(which), int(which.max()) + 1, 0.0
    if asked.output.size(0) != rows:
        return 0.0
    for at in (0, count - 1):
        after = asked.run(with_other_rows(asked, which, at))[0]
        if after.shape != asked.output.shape or bool((which == at).all()):
            return 0.0
        worst = max(worst, float(gaps(asked.output, after)[which != at].max()))
    return worst


def with_other_rows(asked: UserCall, which: Tensor, at: int) -> list[Tensor]:
    """The call with other rows in one of its sequences."""
    made, count = asked.given, int(which.max()) + 1
    for n in asked.content:
        own = {count: torch.arange(count) == at, len(which): which == at}.get(len(made[n]))
        if own is not None:
            made[n] = made[n].clone()
            made[n][own] = asked.other(n, made[n][own])
    return made


def _alone(asked: UserCall, offsets: Tensor) -> float:
    """By how much the outputs of a sequence differ if it is passed alone."""
    total, worst = int(offsets[-1]), 0.0
    for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        made = [x[start:end] if len(x) == total else x for x in asked.given]
        made = [torch.tensor([0, end - start]).to(x) if x.equal(offsets) else x for x in made]
        try:
            after = asked.run(made)[0]
        except Exception:  # what else says how long they are does not fit
            return 0.0
        if start == end:
            continue
        if len(asked.output) != total or after.shape != asked.output[start:end].shape:
            return 0.0
        worst = max(worst, float((asked.output[start:end] - after).abs().max() / asked.output.abs().max()))
    return worst
