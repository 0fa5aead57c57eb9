"""What calls show of places and of scores, without a promise: each is a difference that a design may mean."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from unmasked._private import DispatchMode
from unmasked_doctor._ask.leaves import is_mask
from unmasked_doctor._ask.user_call import UserCall
from unmasked_doctor._form import Leaf
from unmasked_doctor._listen.hear import Event, heard
from unmasked_doctor._report import Finding, Outcome
from unmasked_doctor._tensors import gaps

__all__ = ["designs"]

_PIXELS = 100  # the most that are changed, one by one
_TOKENS = 12


def designs(asked: UserCall) -> Iterator[Outcome]:
    """Name each of these differences that the call lets be seen."""
    yield from _placed_in_vain(asked)
    yield from _begin_again(asked)
    yield from _boundary(asked)
    yield from _strange_scores(asked)
    yield from _grid(asked)


# Positions


def _placed_in_vain(asked: UserCall) -> Iterator[Outcome]:
    """Tell of sines and cosines of places that are computed, though the order of tokens changes nothing."""
    axis, placed, made = asked.of_tokens, asked.placed, asked.given
    if axis is None or placed is None or asked.leaves[asked.main].given.size(axis) < 3:
        return
    waves = _waves(asked, made)
    for n in asked.group(asked.main):
        made[n] = made[n].roll(1, axis)
    rolled = _waves(asked, made)
    fewer = _waves(asked, [asked.shortened(n, axis) for n in range(len(asked.leaves))])
    of_places = [
        one for one, two, less in zip(waves, rolled, fewer, strict=False)
        if one.shape == two.shape != less.shape and torch.equal(one, two)
    ]  # fmt: skip
    if len(waves) != len(fewer) or not of_places:
        return
    after = asked.run(made)[0]
    if after.shape == asked.output.shape:
        moved = asked.by_row(gaps(asked.output.roll(1, placed), after)).amax(-1)
        if bool((moved <= asked.share).any()):
            text = "it computes sines and cosines of places, and the order of its tokens changes nothing"
            evidence = asked.evidence("tokens in another order give the same outputs in that order")
            yield Finding("positions", None, text, evidence, step="positions")


class _Waves(DispatchMode):
    """Collects what sines and cosines give."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "overloadpacket", func).__name__ in ("sin", "cos", "polar"):
            self.results.append(result.detach().clone())
        return result


def _waves(asked: UserCall, tensors: list[Tensor]) -> list[Tensor]:
    waves = _Waves()
    try:
        with waves:
            asked.run(tensors)
    except Exception:  # whatever a stranger's module raises
        return []
    return waves.results


def _begin_again(asked: UserCall) -> Iterator[Outcome]:
    """Tell of positions that begin again, where what stands before is still seen: several texts in one row."""
    reach, main = asked.reaches.get(asked.main), asked.leaves[asked.main].given
    if reach is None or reach.moved.size(1) != len(reach.tokens) or asked.of_tokens is None:
        return
    tokens, whole = main.size(asked.of_tokens), [leaf for leaf in asked.leaves if _counts(leaf)]
    places = [leaf for leaf in whole if leaf.given.size(-1) == tokens and leaf.given.dim() < 3]
    if len(places) != 1 or len(reach.tokens) != tokens:
        return
    for item, row in enumerate(places[0].given.reshape(-1, tokens)):
        starts = [n for n in range(tokens) if row[n] == 0]
        sizes = [b - a for a, b in itertools.pairwise([*starts, tokens])]
        inside = (
            torch.arange(tokens)
            - torch.tensor(starts)[torch.bucketize(torch.arange(tokens), torch.tensor(starts), right=True) - 1]
            if starts[:1] == [0]
            else None
        )
        if inside is None or len(starts) < 2 or min(sizes) < 2 or not torch.equal(row.long(), inside):
            continue
        moved = reach.moved[item] if item < reach.moved.size(0) else reach.moved[0]
        if bool(moved[starts[1] :, : starts[1]].any()):
            name = places[0].name
            text = f"{name} begins again at token {starts[1]}, and what stands before it is still seen"
            evidence = asked.evidence(f"a token before it moves an output behind it, in item {item}")
            yield Finding("documents", "packed-without-documents", text, evidence, step="mask")
            return


def _counts(leaf: Leaf) -> bool:
    x = leaf.given
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool) and x.dim() > 0 and not is_mask(leaf)


def _boundary(asked: UserCall) -> Iterator[Outcome]:
    """Move a token from the tokens into the memory before them, where both are made into keys and values alike."""
    axis, placed, own = asked.of_tokens, asked.placed, asked.group(asked.main)
    rest = [n for n in range(len(asked.leaves)) if n not in own]
    if axis is None or placed is None or len(rest) != 1 or rest[0] not in asked.content:
        return
    main, memory = asked.leaves[asked.main].given, asked.leaves[rest[0]].given
    if memory.dim() != main.dim() or main.size(axis) < 3:
        return
    if [size for n, size in enumerate(main.shape) if n != axis] != [
        n for at, n in enumerate(memory.shape) if at != axis
    ]:
        return
    made = asked.given
    made[rest[0]] = torch.cat([memory, main.narrow(axis, 0, 1)], axis)
    for n in own:
        made[n] = made[n].narrow(axis, 1, main.size(axis) - 1)
    before, after = _averaged(asked, asked.given), _averaged(asked, made)
    keys = main.size(axis) + memory.size(axis)
    alike = len(before) == len(after) > 0 and all(
        x.shape == y.shape and keys in x.shape and float(gaps(x, y).max()) <= asked.share
        for x, y in zip(before, after, strict=True)
    )
    if not alike:
        return
    wanted, got = asked.output.narrow(placed, 1, main.size(axis) - 1), asked.run(made)[0]
    if got.shape == wanted.shape and float(gaps(wanted, got).max()) > asked.share:
        name = asked.leaves[rest[0]].name
        text = f"where {name} ends and its tokens begin changes its outputs: places or masks do not count {name}"
        evidence = f"its first token as the last of {name} instead: off by {float(gaps(wanted, got).max()):.2g}"
        yield Finding("memory", None, text, asked.evidence(evidence), step="positions")


def _averaged(asked: UserCall, tensors: list[Tensor]) -> list[Tensor]:
    """What each softmax's weights average; nothing where it does not run."""
    events = _events(asked, tensors)
    return [
        each.inputs[1] for each in events
        if each.kind == "product" and each.facts[0].softmax is not None
    ]  # fmt: skip


def _events(asked: UserCall, tensors: list[Tensor]) -> list[Event]:
    try:
        return heard(lambda: asked.run(tensors))[0]
    except Exception:  # whatever a stranger's module raises
        return []


# Scores


def _strange_scores(asked: UserCall) -> Iterator[Outcome]:
    """Tell of scores that move with a third token, and neither with all of their query's nor of their key's."""
    axis = asked.of_tokens
    if axis is None:
        return
    size = asked.leaves[asked.main].given.size(axis)
    before = _scores(asked, asked.given, size)
    if not before or not 3 <= size <= _TOKENS:
        return
    for token in range(size):
        made = asked.changed(asked.main, token)
        after = [] if made is None else _scores(asked, made, size)
        for n, (one, two) in enumerate(zip(before, after, strict=False)):
            valid = (one > -1e4) & (two > -1e4) & (one < 1e4) & (two < 1e4)
            most = one.masked_fill(~valid, 0.0).abs().max()
            moved = valid & ((one - two).abs() > asked.share * most)
            own = torch.zeros(size, size, dtype=torch.bool)
            own[token], own[:, token] = True, True
            full = [(moved | ~valid | own).all(along, keepdim=True) for along in (-1, -2)]
            stray = moved & ~own & ~full[0] & ~full[1]
            if n == 0 and bool(stray.any()):
                query, key = stray.nonzero()[0][-2:].tolist()
                text = "the score of a query and a key moves with a third token, as where a row is shifted into another"
                evidence = asked.evidence(f"token {token} moves the score of query {query} and key {key}")
                yield Finding("scores", None, text, evidence, step="positions")
                return


def _scores(asked: UserCall, tensors: list[Tensor], size: int) -> list[Tensor]:
    """What its softmaxes over keys are given, where queries and keys are all its tokens."""
    events = [each for each in _events(asked, tensors) if each.kind == "softmax"]
    return [x for each in events if (x := each.inputs[0]).shape[-2:] == (size, size) and each.axis == x.dim() - 1]


# Grids


def _grid(asked: UserCall) -> Iterator[Outcome]:
    """Ask which tokens of an image see each other: rows, columns and windows are products of evenly spaced lines."""
    main = asked.leaves[asked.main].given
    if main.dim() < 4 or asked.output.shape != main.shape or asked.rows(asked.main) != 0:
        return
    seen = [(groups, shape) for features in {main.dim() - 1, 1} if (groups := _groups(asked, features)) is not None
            for shape in [[n for at, n in enumerate(main.shape) if at not in (0, features)]]]  # fmt: skip
    if not seen:
        return
    groups, shape = min(seen, key=lambda each: max(map(len, each[0])) / torch.tensor(each[1]).prod().item())
    steps: list[set[int]] = [set() for _ in shape]
    for group in groups:
        at = torch.stack(torch.unravel_index(torch.tensor(group), shape), -1)
        lines = [sorted(set(at[:, n].tolist())) for n in range(len(shape))]
        told = f"tokens {', '.join(str(tuple(row)) for row in at[:4].tolist())} see each other"
        if len(group) != torch.tensor([len(line) for line in lines]).prod():
            text = "tokens that see each other are no rows, no columns and no windows of the image"
            yield Finding("grid", None, text, asked.evidence(told), step="layout")
            return
        for n, line in enumerate(lines):
            steps[n] |= {b - a for a, b in itertools.pairwise(line)}
        if any(len(each) > 1 for each in steps):
            text = (
                "tokens at opposite borders of the image see each other, as in windows that are rolled and not masked"
            )
            yield Finding("grid", None, text, asked.evidence(told), step="mask")
            return


def _groups(asked: UserCall, features: int) -> list[list[int]] | None:
    """The tokens that see each other, each by its place in the image; None where they make no groups, or only one."""
    main = asked.leaves[asked.main].given
    inner = [n for n in range(main.dim()) if n not in (0, features)]
    count = main[:1].numel() // main.size(features)
    if not 4 <= count <= _PIXELS:
        return None
    flat = main.movedim([0, *inner, features], list(range(main.dim()))).flatten(1, -2)
    rows = []
    for token in range(count):
        made, other = asked.given, flat.clone()
        other[:, token] = asked.other(asked.main, other[:, token])
        changed = other.view(main.size(0), *[main.size(n) for n in inner], main.size(features))
        for n in asked.group(asked.main):
            made[n] = changed.movedim(list(range(main.dim())), [0, *inner, features]).contiguous()
        gap = gaps(asked.output, asked.run(made)[0]).movedim([0, *inner, features], list(range(main.dim())))
        rows.append((gap.flatten(1, -2) > asked.share).any(-1).any(0))
    sees = torch.stack(rows, -1)
    if not torch.equal(sees, sees.mT) or bool(sees.all()) or not bool(sees.diagonal().all()):
        return None
    groups = {tuple(row.nonzero().flatten().tolist()) for row in sees}
    return [list(group) for group in groups] if sum(map(len, groups)) == count else None
