"""Give a broken promise its cause: randomness, what is kept, items that mix, later tokens that are seen."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unmasked_doctor._ask.promises import ALONE, CACHE, FUTURE, MASK
from unmasked_doctor._ask.user_call import UserCall
from unmasked_doctor._report import Finding, Outcome
from unmasked_doctor._subject import STILL
from unmasked_doctor._tensors import gaps, tensors_in
from unmasked_doctor._why.items import kind_of, meeting, tokens_first
from unmasked_doctor._why.masked import future_in_attention, hidden
from unmasked_doctor._why.pieces import in_pieces
from unmasked_doctor._why.trace import Step, traced

__all__ = ["explained"]

KEPT = "calls do not change each other"
_MOST = 0.5  # of the entries of a result


def explained(asked: UserCall, outcomes: list[Outcome]) -> list[Outcome]:
    """Give what calls found a cause, where one can be shown, and leave out what only follows from another.

    Args:
        asked: The call.
        outcomes: What was found.

    Returns:
        The outcomes, of which the broken promises say more.
    """
    random = next((step for step in _random(asked, outcomes)), None)
    found: list[Outcome] = []
    for each in outcomes:
        if not isinstance(each, Finding) or (each.step and each.check != MASK):
            found.append(each)
            continue
        if random is not None and each.check == ALONE and "its place in the batch" in each.told:
            continue  # what is drawn at random is drawn in the order of the batch
        one = each
        with contextlib.suppress(Exception):  # whatever a stranger's module raises, when it is asked once more
            one = _explained(asked, each, random)
        found.append(one)
    return found


def _explained(asked: UserCall, found: Finding, random: Step | None) -> Finding:
    if found.check == STILL and random is not None:
        dropped = "dropout" in random.name or random.name.startswith("bernoulli")
        what = "dropout acts in evaluation" if dropped else "random numbers are drawn in evaluation"
        return replace(found, cause="dropout-in-eval" if dropped else None, told=f"{what}{_at(random)}")
    if found.check in (STILL, KEPT):
        return _kept(asked, found)
    if found.check == ALONE:
        return _mixed(asked, found)
    if found.check == FUTURE:
        return _ahead(asked, found)
    if found.check == MASK:
        return hidden(asked, found)
    return in_pieces(asked, found) if found.check == CACHE else found


def _at(step: Step) -> str:
    return f", at {step.line}" if step.line else ""


def _random(asked: UserCall, outcomes: list[Outcome]) -> Iterator[Step]:
    """What is drawn at random, where the same call gave two outputs."""
    if any(isinstance(each, Finding) and each.check == STILL for each in outcomes):
        yield from (step for step, in traced([lambda: asked.run(asked.given)]) if step.random)


# What is kept from call to call


def _kept(asked: UserCall, found: Finding) -> Finding:
    """Name what is kept: with it as it was before, the next call gives what it should."""
    others = [asked.other(n, x) if n in asked.content else x for n, x in enumerate(asked.given)]
    fresh = asked.fresh()(others)[0]
    target, run = asked.copied()
    if not isinstance(target, nn.Module):
        return found
    before = copy.deepcopy(target)
    run(asked.given)
    names = [name for name, value in _attributes(target) if _differs(value, dict(_attributes(before)).get(name))]
    for name in names:
        twin, again = asked.copied()
        again(asked.given)
        changed = again(others)[0]
        twin, again = asked.copied()
        again(asked.given)
        owner, _, last = name.rpartition(".")
        old = before.get_submodule(owner)
        setattr(twin.get_submodule(owner), last, copy.deepcopy(getattr(old, last)))
        reset = again(others)[0]
        if _gap(fresh, changed) > asked.share >= _gap(fresh, reset):
            text = f"a call changes {name}, which the next one uses: what is kept belongs to the first"
            return replace(found, told=text)
    return found


def _attributes(target: nn.Module) -> Iterator[tuple[str, Any]]:
    """What a module and those within keep, by qualified name."""
    for owner, module in target.named_modules():
        for name, value in (*vars(module).items(), *module._buffers.items(), *module._parameters.items()):
            if name not in ("_parameters", "_buffers", "_modules") and not isinstance(value, nn.Module):
                yield f"{owner}.{name}" if owner else name, value


def _differs(one: Any, other: Any) -> bool:
    some, others = [*tensors_in(one, objects=True)], [*tensors_in(other, objects=True)]
    if len(some) != len(others):
        return True
    if any(x.shape != y.shape or not torch.equal(x, y) for x, y in zip(some, others, strict=True)):
        return True
    return isinstance(one, int | float | str | bool | type(None)) and one != other


def _gap(one: Tensor, other: Tensor) -> float:
    return float(gaps(one, other).max()) if one.shape == other.shape else torch.inf


# Items that mix


def _mixed(asked: UserCall, found: Finding) -> Finding:
    """Tell where items meet."""
    (one, run), (other, again) = asked.copied(), asked.copied()
    grown = asked.grown
    if isinstance(one, nn.Module) and grown is not None:
        text = tokens_first((one, lambda: run(asked.given)), (other, lambda: again(grown)))
        if text:
            return replace(found, cause="batch-first-forgotten", told=f"{found.told}: {text}")
    if asked.rows(asked.main) is None or asked.count < 2:
        return found
    ways = [asked.given]
    for at in range(min(asked.count, 4)):
        made = asked.given
        for n, x in enumerate(made):
            if (axis := asked.rows(n)) is not None:
                made[n] = x.clone()
                row = made[n].narrow(axis, at, 1)
                row.copy_(asked.other(n, row) if n in asked.content else x.narrow(axis, (at + 1) % asked.count, 1))
        ways.append(made)
    text = meeting([functools.partial(asked.run, tensors) for tensors in ways], asked.share)
    return replace(found, told=f"{found.told}: {text}") if text else found


# Later tokens that are seen


def _ahead(asked: UserCall, found: Finding) -> Finding:
    """Tell by how far, or where, tokens see what comes later."""
    reach = asked.reaches[asked.main]
    inside = future_in_attention(asked)
    if inside == "all seen":
        return replace(found, cause="no-causal-mask", told=f"{found.told}: no mask hides them in attention")
    if inside == "hidden":
        step = _pooled(asked)
        if step is not None:
            what = {"sum": "a sum, mean or norm runs over the tokens", "softmax": "a softmax runs over the tokens"}
            how = what.get(kind_of(step), "each token is mixed with all others")
            text = f"later tokens are seen, and not by attention, which hides them: {how}, at {step.line}"
            return replace(found, cause=None, told=text)
    moved = reach.moved.any(0)
    if moved.size(0) != len(reach.tokens) or reach.tokens != [*range(len(reach.tokens))]:
        return found
    size = len(moved)
    place = torch.arange(size)
    ahead = [int((place[row] - n).max()) for n, row in enumerate(moved) if bool(row.any())]
    most = max(ahead, default=0)
    distance = place[None, :] - place[:, None]
    if 0 < most < size - 2 and all(bool(moved[n, n + most]) for n in range(size - most)):
        many = f"the {most} tokens that follow" if most > 1 else "the token that follows"
        text = f"each token sees {many} it, and causal=True says that none is: the mask begins {most} too far right"
        return replace(found, told=text)
    for width in range(2, size // 2 + 1):
        blocks = place[:, None] // width == place[None, :] // width
        if bool((moved & (distance > 0)).any()) and torch.equal(moved & (distance > 0), blocks & (distance > 0)):
            text = f"tokens see all others of their own block of {width}, also those that follow: within blocks nothing"
            return replace(found, told=f"{text} is hidden")
    first = _pooled(asked)
    if found.cause is None and first is not None and "softmax" in first.name:
        return replace(found, told=f"{found.told}: the softmax at {first.line} gives them weight")
    return found


def _pooled(asked: UserCall) -> Step | None:
    """The first operator of which most numbers notice both the first and the last token."""
    last = len(asked.reaches[asked.main].tokens) - 1
    tokens = asked.reaches[asked.main].tokens
    ways = [asked.given, *(asked.changed(asked.main, tokens[at]) for at in (0, last))]
    for steps in traced([functools.partial(asked.run, tensors) for tensors in ways if tensors is not None]):
        if len(steps) < 3:
            return None
        one, two = (gaps(steps[0].result, other.result) > asked.share for other in steps[1:])
        if bool((one & two).to(torch.float64).mean() > _MOST) and steps[0].line:
            return steps[0]
    return None
