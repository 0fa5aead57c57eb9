"""Whether places turn queries and keys alike: every place is given the same content, and what differs is its own."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from unmasked_doctor._listen.calls import ROLES, Call
from unmasked_doctor._listen.view import Run, View, unclear
from unmasked_doctor._report import Given, Outcome
from unmasked_doctor._unlike import TURNED_ALIKE

__all__ = ["turning"]

_INVERSE, _INVERSE_ROUGH = 1e-9, 1e-4  # of a matrix, from which part of its size on a singular value counts


def turning(view: View, run: Run) -> Iterator[Outcome]:
    """Judge a run in which every place was given the same content: what differs is the place's own."""
    call = run.call
    turns = {n: _turn(view, getattr(call, n)) for n in ROLES}
    q, k, v = turns["query"], turns["key"], turns["value"]
    if v is not None and not _still(v):
        if not _still(v @ v.mT):  # such as a convolution over tokens, which has zeros before the first
            yield unclear("its values change with their places, by no rotation")
        elif _turned_back(view, call):
            yield Given("values turned with their places, and outputs turned back")
        else:
            yield view.wrong("positions", None, "values are turned with their places, as queries and keys may be")
        return
    centred = [x - x.mean(0) for x in (call.query, call.key)]
    if centred[0].size(-1) == centred[1].size(-1) and q is not None and k is not None and _still(q) and _still(k):
        if all(_rotated(run, each) for each in run.calls) and call.query.size(2) > 1:
            yield view.wrong("positions", None, TURNED_ALIKE)
        return
    products = centred[0] @ centred[1].mT
    by_distance = _by_distance(view, products)
    for name, turn in turns.items():
        if turn is None and not (by_distance and name != "value"):
            yield unclear(f"how a place changes its {name} is no linear map")
    if by_distance:
        yield Given("how places turn queries and keys")
        return
    if q is None or k is None or q.shape != k.shape:
        return
    for name, turn in (("query", q), ("key", k)):
        if not _still(turn) and view.near(turn[:, 1:-1], turn[:, 1:2].expand_as(turn[:, 1:-1])):
            yield unclear(f"its {name} changes at the ends alone, as by a convolution")
            return
    both = q.mT @ k  # heads tokens features features
    if view.near(both, both[:, :1].expand_as(both), both.abs().max().item()):
        yield Given("how places turn queries and keys")
        return
    if not view.near(q, k) and not _still(q @ q.mT) and _same_angles(view, q, k):
        text = (
            "features are weighed after queries and keys are turned, as by a norm: scores know more than the distance"
        )
        yield view.wrong("positions", "norm-after-rope", text)
        return
    text = "a query and a key at one place are turned differently: scores depend on more than the distance"
    cause = None
    if _still(q) or _still(k):
        text = f"only {'keys' if _still(q) else 'queries'} are turned with their places"
    elif not torch.equal(q.abs().amax((0, 1)) > 1e-6, k.abs().amax((0, 1)) > 1e-6):
        cause, text = "rope-pairing", "queries are turned in other pairs of features than keys"
    elif view.near(q, k) and not _still(q @ q.mT, 0.05):
        cause, text = "rope-pairing", "the angles are those of one pairing, and the pairs those of the other"
    elif view.near(q, k) and not _still(q @ q.mT):
        cause, text = "rope-in-bfloat16", "the angles, or their sines and cosines, are rounded as in 16 bits"
    yield view.wrong("positions", cause, text)


def _rotated(run: Run, call: Call) -> bool:
    """Whether pairs of features, each times a cosine and a sine, were added to make queries and keys."""
    return all(each.turned and each.varied for each in run.events[call.first].facts)


def _by_distance(view: View, products: Tensor) -> bool:
    """Whether all that is alike has scores that depend on how far apart it stands."""
    if products.size(-1) != products.size(-2) or products.size(-1) < 3:
        return False
    step = products[..., 1:, 1:] - products[..., :-1, :-1]
    return view.near(step, torch.zeros_like(step), products.abs().max().item())


def _turned_back(view: View, call: Call) -> bool:
    """Whether outputs differ from place to place where what attention gives is the same everywhere."""
    same = view.case(call.query.size(0), same=True)
    first = call.index[:, :, :1].expand_as(call.index)

    def put(result: Tensor) -> Tensor:
        flat = result.reshape(-1).clone()
        flat[call.index.reshape(-1)] = result.reshape(-1)[first.reshape(-1)]
        return flat.view(result.shape)

    output = view.run(same, {call.place: put}).output
    return not view.near(output, output[:, :1].expand_as(output), output.abs().max().item())


def _same_angles(view: View, a: Tensor, b: Tensor) -> bool:
    """Whether two turn by the same angles, in features stretched differently: their powers have equal traces."""
    traces = [[(x @ x).diagonal(dim1=-2, dim2=-1).sum(-1), x.diagonal(dim1=-2, dim2=-1).sum(-1)] for x in (a, b)]
    return all(view.near(one, two, a.size(-1)) for one, two in zip(*traces, strict=True))


def _turn(view: View, x: Tensor) -> Tensor | None:
    """The matrix that makes features at each place of those at the first: (heads, tokens, features, features).

    None where there is none, or where the features are made of fewer, so that there are many.
    """
    heads, tokens, dim = x.shape[1:]
    centred = (x - x.mean(0)).permute(1, 2, 0, 3)  # heads tokens items features
    first = centred[:, :1].expand_as(centred)
    if view.near(first, centred, centred.abs().max().item()):
        return torch.eye(dim, dtype=x.dtype).expand(heads, tokens, dim, dim)
    if int(torch.linalg.matrix_rank(centred[:, 0], rtol=1e-6).min()) < dim:
        return None
    inverse = torch.linalg.pinv(centred[:, :1], rtol=_INVERSE_ROUGH if view.subject.rough else _INVERSE)
    turn: Tensor = inverse @ centred
    return turn if view.near(first @ turn, centred, centred.abs().max().item() * 10) else None


def _still(turn: Tensor, by: float = 1e-6) -> bool:
    eye = torch.eye(turn.size(-1), dtype=turn.dtype)
    return bool(((turn - eye).abs() < by).all())
