"""Give a broken promise its cause: randomness, what is kept, items that mix, later tokens that are seen."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unmasked_doctor._ask.promises import ALONE, CACHE, FUTURE, MASK
from unmasked_doctor._ask.sequences import readings, with_other_rows
from unmasked_doctor._ask.user_call import UserCall
from unmasked_doctor._call import parameters_of
from unmasked_doctor._report import Finding, Outcome
from unmasked_doctor._subject import STILL
from unmasked_doctor._tensors import gaps, tensors_in
from unmasked_doctor._why.items import kind_of, meeting, tokens_first
from unmasked_doctor._why.masked import between, future_in_attention, hidden, of_another_item
from unmasked_doctor._why.pieces import in_pieces
from unmasked_doctor._why.trace import Step, traced
from unmasked_doctor._words import KEPT

__all__ = ["explained"]

_KEEPS = "a call changes {}, by which the next one gives another output: it keeps what belongs to the first"
_MOST = 0.5  # of the entries of a result


def explained(asked: UserCall, outcomes: list[Outcome]) -> list[Outcome]:
    """Give what calls found a cause, where one can be shown, and leave out what only follows from another.

    Args:
        asked: The call.
        outcomes: What was found.

    Returns:
        The outcomes, of which the broken promises say more.
    """
    random, checks = None, {each.check for each in outcomes if isinstance(each, Finding) and not each.step}
    with contextlib.suppress(Exception):  # whatever a stranger's module raises, when it is asked once more
        random = next(_random(asked), None) if STILL in checks else None
    found: list[Outcome] = []
    for each in outcomes:
        if not isinstance(each, Finding) or (each.step and (each.check, each.step) != (MASK, "mask")):
            found.append(each)
            continue
        if each.check == ALONE and (STILL in checks or (KEPT in checks and "its place in the batch" in each.told)):
            continue  # calls differ by what is drawn, or by what an earlier one left behind
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


def _random(asked: UserCall) -> Iterator[Step]:
    """What is drawn at random in a call."""
    run = asked.fresh()
    yield from (step for (step,) in traced([lambda: run(asked.given)]) if step.random)


# What is kept from call to call


def _kept(asked: UserCall, found: Finding) -> Finding:
    """Name what is kept: with it as it was before, the next call gives what it should."""
    others = [asked.other(n, x) if n in asked.content else x for n, x in enumerate(asked.given)]
    rows = {n: axis for n in range(len(others)) if n not in asked.content and (axis := asked.rows(n)) is not None}
    turned = [x.roll(1, rows[n]) if n in rows else x for n, x in enumerate(others)]
    target, run = asked.copied()
    if not isinstance(target, nn.Module):
        return found
    before = copy.deepcopy(target)
    run(asked.given)
    names = [name for name, value in _attributes(target) if _differs(value, dict(_attributes(before)).get(name))]
    for tensors, some in itertools.product((others, turned), [[name] for name in names]):
        if _resets(asked, before, tensors, some):
            return replace(found, told=_KEEPS.format(", ".join(some)))
    if len(names) > 1 and _resets(asked, before, others, names):
        return replace(found, told=_KEEPS.format(", ".join(names[:3])))
    return found


def _resets(asked: UserCall, before: nn.Module, tensors: list[Tensor], names: list[str]) -> bool:
    """Whether a second call gives what a first one gives, if these are as they were, and not otherwise."""
    fresh, (_, used), (twin, reset) = asked.fresh()(tensors)[0], asked.copied(), asked.copied()
    used(asked.given)
    reset(asked.given)
    for name in names:
        owner, _, last = name.rpartition(".")
        setattr(twin.get_submodule(owner), last, copy.deepcopy(getattr(before.get_submodule(owner), last)))
    return _gap(fresh, _first(used, tensors)) > asked.share >= _gap(fresh, _first(reset, tensors))


def _first(run: Callable[..., list[Tensor]], tensors: list[Tensor]) -> Tensor:
    """The first output; nothing where what was kept makes it raise."""
    try:
        return run(tensors)[0]
    except Exception:  # whatever a stranger's module raises
        return torch.zeros(0)


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
    for name, ways in readings(asked):
        if found.told.startswith(f"{name} says which rows"):
            text = _parts_meet(asked, name, ways[0])
            return replace(found, told=f"{found.told}: {text}") if text else found
    (one, run), (other, again) = asked.copied(), asked.copied()
    grown = asked.grown
    if isinstance(one, nn.Module) and grown is not None:
        text = tokens_first((one, lambda: run(asked.given)), (other, lambda: again(grown)))
        if text:
            return replace(found, cause="batch-first-forgotten", told=f"{found.told}: {text}")
    if asked.rows(asked.main) is None or asked.count < 2:
        return found
    if "its place" in found.told:
        text = _placed(asked)
    elif "mask" in found.told:
        text = of_another_item(asked) or meeting(
            [functools.partial(asked.run, each) for each in _with_other_items(asked)], asked.share, how="they meet"
        )
    else:
        text = meeting([functools.partial(asked.run, each) for each in _with_other_items(asked)], asked.share)
    return replace(found, told=f"{found.told}: {text}") if text else found


def _with_other_items(asked: UserCall) -> Iterator[list[Tensor]]:
    """The call, and then with another item in the place of each of the first."""
    yield asked.given
    for at in range(min(asked.count, 4)):
        made = asked.given
        for n, x in enumerate(made):
            if (axis := asked.rows(n)) is not None:
                made[n] = x.clone()
                row = made[n].narrow(axis, at, 1)
                row.copy_(asked.other(n, row) if n in asked.content else x.narrow(axis, (at + 1) % asked.count, 1))
        yield made


def _placed(asked: UserCall) -> str:
    """Tell the first line that gives other numbers where the items come in another order."""
    rows = {n: axis for n in range(len(asked.leaves)) if (axis := asked.rows(n)) is not None}
    turned = [x.roll(1, rows[n]) if n in rows else x for n, x in enumerate(asked.given)]
    for one, other in traced([functools.partial(asked.run, each) for each in (asked.given, turned)]):
        x, y = (step.result.flatten().to(torch.float64).sort()[0] for step in (one, other))
        if one.line and not torch.allclose(x, y, rtol=1e-6, atol=1e-9, equal_nan=True):
            return f"an item that stands at another place has other numbers, first at {one.line}"
    return ""


def _parts_meet(asked: UserCall, name: str, which: Tensor) -> str:
    """Tell how sequences meet whose rows stand one after another."""
    value = asked.passed[name]
    for other in range(2, len(which)) if isinstance(value, int) else ():
        if other != value and len(which) % other == 0:
            with contextlib.suppress(Exception):  # a number that it refuses
                after = asked.run(asked.given, form=asked.form.passing(name, other, parameters_of(asked.target)))[0]
                if torch.equal(after, asked.output):
                    return f"{name} is passed and counts for nothing: rows are taken together by another number"
    if not isinstance(value, int):
        text = between(asked, which, name)
        if text:
            return text
    ways = [asked.given, *(with_other_rows(asked, which, at) for at in range(min(int(which.max()) + 1, 4)))]
    runs = [functools.partial(asked.run, each) for each in ways]
    return meeting(runs, asked.share, masked=not isinstance(value, int))


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
