"""Differences of positions and scores that calls show. None of them breaks a promise: a design may intend each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from unmasked._private import DispatchMode
from unmasked_doctor._ask.groups import other_groups
from unmasked_doctor._ask.leaves import is_mask
from unmasked_doctor._ask.user_call import UserCall
from unmasked_doctor._form import Leaf
from unmasked_doctor._listen.hear import Event, heard
from unmasked_doctor._report import Finding, Outcome
from unmasked_doctor._tensors import gaps

__all__ = ["designs", "image", "normed_stream"]

_PIXELS = 100  # the most tokens of an image that are changed, one by one
_EPSILON = 1e-3  # of the largest output: that of a norm moves less
_TOKENS = 12  # the most tokens of a text whose scores are compared, one by one


def designs(asked: UserCall) -> Iterator[Outcome]:
    """Yield the differences that this call shows."""
    yield from _unused_positions(asked)
    yield from _restarting_positions(asked)
    yield from _memory_boundary(asked)
    yield from _lost_at_first(asked)
    yield from _scores_of_a_third_token(asked)
    yield from other_groups(asked)
    yield from normed_stream(asked)
    yield from image(asked)
    yield from _grid_axes(asked)


# Positions


def _unused_positions(asked: UserCall) -> Iterator[Outcome]:
    """Find positions whose sines and cosines are computed, though the order of the tokens changes nothing."""
    axis, placed, made = asked.of_tokens, asked.placed, asked.given
    if axis is None or placed is None or asked.leaves[asked.main].given.size(axis) < 3:
        return
    sines = _sines(asked, made)
    if not sines:
        return
    for n in asked.group(asked.main):
        made[n] = made[n].roll(1, axis)
    rolled = _sines(asked, made)
    fewer = _sines(asked, [asked.shortened(n, axis) for n in range(len(asked.leaves))])
    # Those of positions: the order of the tokens leaves them as they are, and their shape follows the count of tokens.
    of_positions = [
        one for one, two, less in zip(sines, rolled, fewer, strict=False)
        if one.shape == two.shape != less.shape and torch.equal(one, two)
    ]  # fmt: skip
    if len(sines) != len(fewer) or not of_positions:
        return
    after = asked.run(made)[0]
    if after.shape == asked.output.shape:
        moved = asked.by_row(gaps(asked.output.roll(1, placed), after)).amax(-1)
        if bool((moved <= asked.share).any()):
            text = "it computes sines and cosines of places, and the order of its tokens changes nothing"
            evidence = asked.evidence("tokens in another order give the same outputs in that order")
            yield Finding("positions", None, text, evidence, step="positions")


class _Sines(DispatchMode):
    """Collects what sines and cosines give."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "overloadpacket", func).__name__ in ("sin", "cos", "polar"):
            self.results.append(result.detach().clone())
        return result


def _sines(asked: UserCall, tensors: list[Tensor]) -> list[Tensor]:
    """Return the sines and cosines that a call computes, in their order; none if it raises."""
    sines = _Sines()
    try:
        with sines:
            asked.run(tensors)
    except Exception:  # whatever a stranger's module raises
        return []
    return sines.results


def _restarting_positions(asked: UserCall) -> Iterator[Outcome]:
    """Find positions that restart within a row, as for several texts in one, where tokens still see the text before."""
    reach, main = asked.reaches.get(asked.main), asked.leaves[asked.main].given
    if reach is None or reach.moved.size(1) != len(reach.tokens) or asked.of_tokens is None:
        return
    tokens, integers = main.size(asked.of_tokens), [leaf for leaf in asked.leaves if _is_integer(leaf)]
    positions = [leaf for leaf in integers if leaf.given.size(-1) == tokens and leaf.given.dim() < 3]
    if len(positions) != 1 or len(reach.tokens) != tokens:
        return
    for item, row in enumerate(positions[0].given.reshape(-1, tokens)):
        starts = [n for n in range(tokens) if row[n] == 0]
        sizes = [b - a for a, b in itertools.pairwise([*starts, tokens])]
        counted = [n for size in sizes for n in range(size)]  # from 0 on in each text
        if len(starts) < 2 or min(sizes) < 2 or row.tolist() != counted:
            continue
        moved = reach.moved[item] if item < reach.moved.size(0) else reach.moved[0]
        if bool(moved[starts[1] :, : starts[1]].any()):
            name = positions[0].name
            text = f"{name} begins again at token {starts[1]}, and what stands before it is still seen"
            evidence = asked.evidence(f"a token before it moves an output behind it, in item {item}")
            yield Finding("documents", "packed-without-documents", text, evidence, step="mask")
            return


def _is_integer(leaf: Leaf) -> bool:
    """Whether an argument holds integers, and they are no mask."""
    x = leaf.given
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool) and x.dim() > 0 and not is_mask(leaf)


def _memory_boundary(asked: UserCall) -> Iterator[Outcome]:
    """Move the first token to the end of the memory before the tokens, where both make keys and values alike."""
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
    before, after = _values(asked, asked.given), _values(asked, made)
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


def _lost_at_first(asked: UserCall) -> Iterator[Outcome]:
    """Find a token that is lost to an output from which it is no farther than what later outputs see of theirs.

    So it is where a cache of a fixed size forgets before it is full. Windows see as far from each output, blocks see
    less from each of their first tokens, and sinks are seen from everywhere.
    """
    reach = asked.reaches.get(asked.main)
    if reach is None or reach.moved.size(1) != len(reach.tokens) or asked.leaves[asked.main].given.dim() > 3:
        return
    sees = reach.moved.all(0)  # of all items
    size = len(sees)
    if size != asked.leaves[asked.main].given.size(asked.of_tokens or 0) or bool(reach.moved.any(0).triu(1).any()):
        return
    # The end of a window: all that is nearer is seen, and nothing that is farther.
    far = max((n for n in range(1, size) if bool(reach.moved.any(0).diagonal(-n).any())), default=0)
    line, nearer = sees.diagonal(-far), all(bool(sees.diagonal(-n).all()) for n in range(1, far))
    lost = int((~line).sum())
    if far and nearer and 0 < lost < len(line) - 1 and bool(line[lost:].all()):
        text = "a token is lost to an output, though later outputs see as far back"
        evidence = f"output {far + lost} sees what stands {far} before it, and output {far} does not"
        yield Finding("mask", None, text, asked.evidence(evidence), step="mask")


def _values(asked: UserCall, tensors: list[Tensor]) -> list[Tensor]:
    """Return the values that the weights of each softmax average; none if the call raises."""
    events = _events(asked, tensors)
    return [
        each.inputs[1] for each in events
        if each.kind == "product" and each.facts[0].softmax is not None
    ]  # fmt: skip


def _events(asked: UserCall, tensors: list[Tensor]) -> list[Event]:
    """Return the events of a call; none if it raises."""
    try:
        return heard(lambda: asked.run(tensors))[0]
    except Exception:  # whatever a stranger's module raises
        return []


# What passes by beside attention


def normed_stream(asked: UserCall) -> Iterator[Outcome]:
    """Find a residual that adds the norm of the tokens, and not the tokens: of these no output tells the size."""
    if not isinstance(asked.target, nn.Module) or asked.words or asked.placed is None:
        return
    larger = asked.given
    for n in asked.group(asked.main):
        larger[n] = 2 * larger[n]
    moved = asked.moved(larger)
    if moved is None or bool((moved > _EPSILON).any()):
        return
    try:
        left = asked.without_matrices()(asked.given)[0]
        other = asked.without_matrices()([asked.other(n, x) if n in asked.content else x
                                          for n, x in enumerate(asked.given)])[0]  # fmt: skip
    except Exception:  # whatever a stranger's module raises without its numbers
        return
    if left.shape == asked.leaves[asked.main].given.shape and bool((gaps(left, other) > _EPSILON).any()):
        text = "its residual adds what its norm gives, and not what came in"
        evidence = asked.evidence("with tokens twice as large, outputs are the same; without its matrices, "
                                  "a norm of the tokens is left")  # fmt: skip
        yield Finding("residual", None, text, evidence, step="norms")


# Scores


def _scores_of_a_third_token(asked: UserCall) -> Iterator[Outcome]:
    """Find the score of a query and a key that a third token moves, though other scores of both stay as they are."""
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
        if not after or after[0].shape != before[0].shape:
            continue
        one, two = before[0], after[0]  # what follows the first layer may see other tokens
        valid = (one > -1e4) & (two > -1e4) & (one < 1e4) & (two < 1e4)
        moved = valid & ((one - two).abs() > asked.share * one.masked_fill(~valid, 0.0).abs().max())
        own = torch.zeros(size, size, dtype=torch.bool)  # scores of the token that is changed
        own[token], own[:, token] = True, True
        all_of_query, all_of_key = ((moved | ~valid | own).all(along, keepdim=True) for along in (-1, -2))
        stray = moved & ~own & ~all_of_query & ~all_of_key
        if bool(stray.any()):
            query, key = stray.nonzero()[0][-2:].tolist()
            text = "the score of a query and a key moves with a third token, as where a row is shifted into another"
            evidence = asked.evidence(f"token {token} moves the score of query {query} and key {key}")
            yield Finding("scores", None, text, evidence, step="positions")
            return


def _scores(asked: UserCall, tensors: list[Tensor], size: int) -> list[Tensor]:
    """Return the scores of each softmax over keys whose queries and keys are all tokens; none if the call raises."""
    events = [each for each in _events(asked, tensors) if each.kind == "softmax"]
    return [x for each in events if (x := each.inputs[0]).shape[-2:] == (size, size) and each.axis == x.dim() - 1]


# Images


def _grid_axes(asked: UserCall) -> Iterator[Outcome]:
    """Find an axis of the grid that tokens lie in, by what is passed, whose places alone count for nothing."""
    axis, placed = asked.of_tokens, asked.placed
    if axis is None or placed is None:
        return
    count = asked.leaves[asked.main].given.size(axis)
    for name, grid in asked.passed.items():
        plain = type(grid) in (list, tuple) and len(grid) in (2, 3) and all(type(n) is int and n > 1 for n in grid)
        if not plain or math.prod(grid) != count:
            continue
        lost = []
        for along in range(len(grid)):
            order = torch.arange(count).view(*grid).roll(1, along).flatten()
            made = asked.given
            for n in asked.group(asked.main):
                made[n] = made[n].index_select(axis, order)
            after = asked.run(made)[0]
            if after.shape != asked.output.shape:
                return
            moved = float(gaps(asked.output.index_select(placed, order), after).max())
            lost += [along] if moved <= asked.share else []
        if 0 < len(lost) < len(grid):
            text = f"places along axis {lost[0]} of {name} count for nothing, and those along others do"
            evidence = asked.evidence(f"tokens rolled along it give the same outputs, rolled; {name} is {tuple(grid)}")
            yield Finding("positions", None, text, evidence, step="positions")


def image(asked: UserCall, circles: int = 0) -> Iterator[Outcome]:
    """Find tokens of an image that see each other and make no row, no column and no window.

    These are products of evenly spaced indices along each axis, but for as many axes as may be circles.
    """
    main = asked.leaves[asked.main].given
    if main.dim() < 4 or asked.output.shape != main.shape or asked.rows(asked.main) != 0:
        return
    seen = [(groups, shape) for features in {main.dim() - 1, 1} if (groups := _groups(asked, features)) is not None
            for shape in [[n for at, n in enumerate(main.shape) if at not in (0, features)]]]  # fmt: skip
    if not seen:
        return
    groups, shape = min(seen, key=lambda each: max(map(len, each[0])) / torch.tensor(each[1]).prod().item())
    told = torch.stack(torch.unravel_index(torch.arange(math.prod(shape)), shape), -1).tolist()
    lines = [[sorted({told[n][axis] for n in group}) for axis in range(len(shape))] for group in groups]
    for group, along in zip(groups, lines, strict=True):
        shown = asked.evidence(f"tokens {', '.join(str((*told[n],)) for n in group[:4])} see each other")
        if len(group) != math.prod(map(len, along)):
            text = "tokens that see each other are no rows, no columns and no windows of the image"
            yield Finding("grid", None, text, shown, step="layout")
            return
    steps = [[{b - a for a, b in itertools.pairwise(along[axis])} for along in lines] for axis in range(len(shape))]
    # Where windows are cut along another axis, a mask is there: what it leaves may be a circle, as of longitudes.
    cut = [len({len(along[axis]) for along in lines}) > 1 for axis in range(len(shape))]
    torn = [axis for axis, each in enumerate(steps) if len(set().union(*each)) > 1]
    torn = [axis for axis in torn if not (circles and any(cut[:axis] + cut[axis + 1 :]))]
    if len(torn) > circles:
        at = max(range(len(groups)), key=lambda n: max(steps[torn[0]][n], default=0))
        shown = f"tokens {', '.join(str((*told[n],)) for n in groups[at][:4])} see each other"
        text = "tokens at opposite borders of the image see each other, as in windows that are rolled and not masked"
        yield Finding("grid", None, text, asked.evidence(shown), step="mask")


def _groups(asked: UserCall, features: int) -> list[list[int]] | None:
    """Return the groups of tokens that see each other, each token by its index in the flattened image.

    None if some tokens see others that do not see them, if groups overlap, or if there is only one.
    """
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
