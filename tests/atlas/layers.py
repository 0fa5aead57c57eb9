"""The traits of each layer that attends, measured: what turns, what is normed, who sees whom, what is added."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn

from .hearing import Call, given, hear

TURNED = 1e-6  # share of the largest feature by which a feature moves at least if it turns


def flat(x: Tensor) -> Tensor:
    """The same token in every place."""
    return x.reshape(-1, x.size(-1))[:1].expand_as(x.reshape(-1, x.size(-1))).reshape(x.shape).clone()


@contextmanager
def jittered(model: nn.Module) -> Iterator[None]:
    """Give the parameters of one axis, biases and the weights of norms, other numbers, and set them back."""
    found = [x for x in model.parameters() if x.dim() == 1 and x.is_floating_point()]
    kept = [x.detach().clone() for x in found]
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for x in found:
            x += torch.empty(x.shape).uniform_(0.2, 0.6, generator=draw).to(x.dtype)
        try:
            yield
        finally:
            for x, before in zip(found, kept, strict=True):
                x.copy_(before)


def layers(model: nn.Module, inputs: dict[str, Any], items: int) -> list[dict[str, Any]]:
    """Measure each module that attends, and gather those of the same traits."""
    heard = hear(model, inputs, items)
    names = tuple(heard.calls)
    crosses = {name: call.query.size(-2) != call.key.size(-2) for name, call in heard.calls.items()}
    runs: dict[str, Any] = {"plain": heard}

    def note(name: str, change: Any = None, jitters: bool = False, **options: Any) -> None:
        other = given(model, crosses, change) if change else nullcontext()
        with suppress(Exception), other, jittered(model) if jitters else nullcontext():
            runs[name] = hear(model, inputs, items, names, **options)

    note("flat", flat)
    note("jittered", jitters=True)
    note("flat, jittered", flat, jitters=True)
    note("zero", torch.zeros_like, jitters=True)
    note("noise", lambda x: torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(x.dtype))
    note("large", times=1e5)
    note("without", jitters=True, context=torch.zeros_like)
    note("without, other", lambda x: -0.5 * x, jitters=True, context=torch.zeros_like)
    note("same", jitters=True, context=torch.ones_like)
    note("same, other", lambda x: -0.5 * x, jitters=True, context=torch.ones_like)
    kinds: dict[str, dict[str, Any]] = {}
    for name in names:
        calls = {run: each.calls.get(name) for run, each in runs.items()}
        outputs = {run: each.outputs.get(name) for run, each in runs.items()}
        still = runs.get("flat", heard)
        linear = [x for each, xs in still.made.items() if each.startswith(f"{name}.") for x in xs]
        earlier = [heard.calls[each] for each in names[: names.index(name)]]
        found = traits(calls, outputs, earlier, linear)
        told = {"module": type(heard.modules[name]).__name__, **found}
        kind = kinds.setdefault(json.dumps(told), {**told, "layers": 0, "first": name})
        kind["layers"] += 1
    return list(kinds.values())


def traits(
    calls: dict[str, Call | None], outputs: dict[str, Any], earlier: list[Call], linear: list[Tensor]
) -> dict[str, Any]:
    """What one module's calls show."""
    call = calls["plain"]
    assert call is not None
    keys = distinct(call.key)
    made: dict[str, Any] = {
        "heads": call.query.size(1),
        "key_heads": keys,
        "head_dim": call.query.size(-1),
        "value_dim": None if call.value is None else call.value.size(-1),
        "sees": sees(seen_in(call)),
    }
    still = calls.get("flat")
    first = None if still is None else [origin(x[0, :, 0].double(), linear) for x in (still.query, still.key)]
    before = math.prod(each[0] for each in first or [] if each)
    made |= scores(call, calls.get("large"), before)
    made["turns"] = "not measured: the layer does not run on one token in all places"
    if still is not None and still.key.shape == call.key.shape:
        places = [None if each is None else each[1] for each in first or [None, None]]
        made["turns"], by_key = turning(still.query, places[0]), turning(still.key, places[1])
        if made["turns"] != by_key:
            made["turns_keys"] = by_key
    for role in ("query", "key"):
        noise = calls.get("noise") or call  # tokens may be alike in a model that was never trained
        others = calls.get("jittered"), calls.get("flat, jittered")
        made[f"{role}_norm"] = norm(getattr(noise, role), *others, made["turns"], role)
    made["biases"] = biases(calls.get("zero"), outputs)
    made["gate"] = gate(outputs)
    if any(call.key.shape == each.key.shape and torch.equal(call.key, each.key) for each in earlier):
        made["keys"] = "those of an earlier layer"
    elif call.value is not None and call.value.shape == call.key.shape and torch.equal(call.value, call.key):
        made["keys"] = "are the values too"
    else:
        made["keys"] = "own"
    made["latent"] = latent(calls.get("noise"))
    return made


def distinct(x: Tensor) -> int:
    """How many heads differ."""
    heads = x.transpose(0, 1).flatten(1)
    return 1 + sum(not any(torch.equal(heads[n], heads[m]) for m in range(n)) for n in range(1, heads.size(0)))


def seen_in(call: Call) -> Tensor:
    """True where a query sees a key: its score is not out of reach of the highest."""
    return call.scores > call.scores.amax(-1, keepdim=True).clamp_min(-1e4) - 5000


def sees(seen: Tensor) -> str:
    """Which keys a query sees, as counted in the first head."""
    seen = seen[:, 0]
    if not seen.eq(seen[:1]).all():
        most = int(seen.sum(-1).max())
        return f"keys that the content chooses, at most {most}" if most < seen.size(-1) else "other"
    grid = seen[0]
    queries, count = grid.shape
    if grid.all():
        return "all" if queries == count else "all of another sequence"
    if queries != count:
        return "other keys"
    place = torch.arange(count)
    back = place[:, None] - place
    left, right = int(back[grid].max()), int(-back[grid].min())
    block = place[:, None] // (left + 1) == place // (left + 1)
    known = {
        "all before": back >= 0,
        f"{left + 1} keys: a window before": (back >= 0) & (back <= left),
        f"{left + 1} keys: a chunk": (back >= 0) & block,
        f"{left + right + 1} keys: a window on both sides": (back <= left) & (-back <= right),
        f"{left + 1} keys: a block": block,
    }
    other = "other keys before" if right == 0 else "other keys"
    return next((told for told, mask in known.items() if grid.equal(mask)), other)


def scores(call: Call, large: Call | None, before: float) -> dict[str, Any]:
    """The scale, what is added to scaled products, the cap and the sink."""
    found: dict[str, Any] = {"scale": "not measured: items of queries and keys differ", "added": "not measured"}
    query, key = call.query.double(), call.key.double()
    key = key.repeat_interleave(query.size(1) // key.size(1), 1)
    if key.size(0) != query.size(0):
        return found | {"cap": None, "sink": None}
    product, made = query @ key.mT, call.scores.double()
    allowed = seen_in(call)
    if made.shape != product.shape:
        return found | {"scale": "not measured: another layout", "cap": None, "sink": None}
    # Between two items what is added by place is the same: only products differ. What a row has in common does nothing.
    both = allowed & allowed[:1]
    over, rise = (level((x - x[:1]).masked_fill(~both, torch.nan)) for x in (product, made))
    over, rise = over[both], rise[both]
    if len(over) and over.abs().max() > 1e-9:
        slope = float((over * rise).sum() / (over * over).sum())
        off = float((rise - slope * over).abs().max() / rise.abs().max().clamp_min(1e-12))
        if off > 1e-2:
            found["scale"] = "not measured: scores are more than scaled products"
            found["added"] = "what depends on the content"
        else:
            rest = (made - slope * product).masked_fill(~allowed, torch.nan)
            found["scale"] = scale_of(slope * before, query.size(-1))
            found["added"] = added(rest[0], made[allowed].abs().max())
    else:
        found["scale"] = found["added"] = "not measured: a single item"
    total = call.weights.sum(-1)
    found["sink"] = bool((total[total > 0] < 1 - 1e-4).any())
    found["cap"] = "not measured: fused"
    if call.key.size(-2) <= 3:
        found["cap"] = "not measured: three keys or fewer"
    elif large is not None and not call.fused:
        big = large.scores[seen_in(call)].abs() if large.scores.shape == call.scores.shape else call.scores.new_zeros(0)
        found["cap"] = round(float(big.max()), 2) if len(big) and 0 < float(big.max()) < 1e3 else None
    return found


def scale_of(slope: float, size: int) -> str:
    """Write a scale as people do."""
    for told, value in (("1", 1.0), ("1/sqrt(head_dim)", size**-0.5), ("1/head_dim", 1 / size)):
        if math.isclose(slope, value, rel_tol=1e-3):
            return told
    return f"{slope:.3g} (1/sqrt(head_dim) is {size**-0.5:.3g})"


def level(x: Tensor) -> Tensor:
    """Rows without what they have in common."""
    return x - x.nanmean(-1, keepdim=True)


def added(rest: Tensor, size: Tensor) -> str | None:
    """What stands in the scores beside the products: by distance in a line, by distance, or by place."""
    if float(level(rest).nan_to_num().abs().max()) < 5e-3 * float(size):  # a cap bends them by less
        return None
    queries, keys = rest.shape[-2:]
    if queries != keys or rest.diagonal(0, -2, -1).isnan().any():
        return "numbers by place"
    rest = rest - rest.diagonal(0, -2, -1)[..., None]  # to the token itself
    away = (torch.arange(keys)[None] - torch.arange(queries)[:, None]).abs().double().expand(rest.shape)
    there = ~rest.isnan()
    slope = (rest.nan_to_num() * away).sum((-1, -2)) / (away.square() * there).sum((-1, -2))
    if float((rest - slope[:, None, None] * away)[there].abs().max()) < 1e-3 * float(size):
        return "a slope by distance"
    for k in range(-queries + 1, keys):
        along = rest.diagonal(k, -2, -1)
        if not along.isnan().any() and float((along.amax(-1) - along.amin(-1)).max()) > 1e-3 * float(size):
            return "numbers by place"
    return "numbers by distance"


def origin(x: Tensor, made: list[Tensor]) -> tuple[float, Tensor] | None:
    """By what numbers of linear layers, of the first token, were multiplied to give these, and the places of these."""
    if not made:
        return None
    numbers, order = torch.cat(made).sort()
    for factor in (1.0, x.size(-1) ** -0.5, x.size(-1) ** -0.25):
        wanted = (x / factor).contiguous()
        at = torch.searchsorted(numbers, wanted).clamp(1, len(numbers) - 1)
        at = torch.where((numbers[at] - wanted).abs() < (numbers[at - 1] - wanted).abs(), at, at - 1)
        if float((numbers[at] - wanted).abs().max()) < 1e-6 * float(wanted.abs().max()):
            return factor, order[at]
    return None


def turning(x: Tensor, places: Tensor | None = None) -> Any:
    """What turns in queries or keys of one token in all places: the share, the pairs, the base."""
    x = x[0].double()  # heads tokens features
    size = x.abs().amax()
    if not size:
        return "not measured: they are zero"
    moves = (x - x[:, :1]).abs().amax((0, 1)) / size > TURNED
    if not moves.any():
        return None
    at = moves.nonzero()[:, 0].tolist()
    square = x.square()
    pairs: list[tuple[int, int]] = []
    taken: set[int] = set()
    for i in at:
        if i in taken:
            continue
        norm = square + square[..., i : i + 1]
        off = (norm - norm[:, :1]).abs().amax((0, 1)) / norm.amax((0, 1))
        off[[i, *taken]] = 1
        best = int(off.argmin())
        if float(off[best]) < 1e-5:
            pairs.append((min(i, best), max(i, best)))
            taken |= {i, best}
    pairs.sort()
    at = sorted({*at, *taken})
    if len(pairs) * 2 < len(at):
        return "something else is added or multiplied by place"
    at_first = torch.arange(x.size(-1)).expand(x.size(0), -1) if places is None else places
    steps = {int((at_first[:, j] - at_first[:, i]).abs().amax()) for i, j in pairs}  # as the layer before numbers them
    half = x.size(-1) // 2
    known = {len(pairs): "halves", half: "halves", 1: "interleaved"}
    told = known.get(min(steps), f"{min(steps)} apart") if len(steps) == 1 else "in blocks"
    told = "one pair" if len(pairs) == 1 else told
    speeds = [speed(x, i, j) for i, j in pairs]
    whole = half if steps == {half} else len(pairs)  # pairs that do not turn have their powers too
    return {
        "pairs": told,
        "share": round(len(at) / x.size(-1), 3),
        "where": "first" if at[0] == 0 else "last" if at[-1] == x.size(-1) - 1 else "middle",
        "base": base(speeds, whole),
    }


def speed(x: Tensor, i: int, j: int) -> float | None:
    """The angle from token to token; None if it is not the same everywhere."""
    head = int(x[:, 0, [i, j]].norm(dim=-1).argmax())
    z = torch.complex(x[head, :, i], x[head, :, j])
    angles = (z / z[0]).angle()
    step = (z[1:] / z[:-1]).angle()
    if float((step - step[0]).abs().max()) > 1e-4:
        return None
    last = float(angles[-1]) / (len(angles) - 1)
    return abs(last) if abs(float(step[0])) * len(angles) < 3 else abs(float(step[0]))


def base(speeds: list[float | None], whole: int) -> Any:
    """The base whose powers the speeds of pairs are, if so many pairs go through all of them; or why there is none."""
    if any(each is None for each in speeds):
        return "by more than one axis"
    logs = torch.tensor([math.log(max(each, 1e-30)) for each in speeds if each is not None], dtype=torch.float64)
    if len(logs) < 2:
        return "not measured: one pair"
    step = float(logs[1] - logs[0])
    if float((logs - logs[0] - step * torch.arange(len(logs))).abs().max()) > 0.02:
        return "no powers of one base"
    if abs(float(logs[0])) > 0.01:
        return f"powers, the first turns by {math.exp(float(logs[0])):.3g}"
    found = math.exp(-step * whole)
    return float(f"{found:.2g}")


def norm(x: Tensor, jittered: Call | None, flat_jittered: Call | None, turns: Any, role: str) -> Any:
    """Whether queries or keys have one length, over what, whether it is learned, and where it stands."""
    if x.size(-1) < 2 or x.size(-2) < 3:
        return "not measured: heads of one feature, or fewer than three tokens"

    def lengths(x: Tensor) -> tuple[bool, bool]:
        each = x.double().square().mean(-1)  # items heads tokens
        whole = each.mean(1)
        alike = [float(y.std() / y.mean().clamp_min(1e-30)) < 2e-3 for y in (each, whole)]
        return alike[0], alike[1]

    head, whole = lengths(x)
    if not (head or whole):
        return None
    middle = float(x[:, :, 0].double().mean(-1).abs().max() / x.double().square().mean().sqrt())
    told = {"over": "each head" if head else "all heads", "centered": middle < 1e-3 if head else None}
    if jittered is None:
        return told | {"learned": "not measured"}
    told["learned"] = not any(lengths(getattr(jittered, role)))
    if told["learned"] and flat_jittered is not None and isinstance(turns, dict):
        still_turns = isinstance(turning(getattr(flat_jittered, role)), dict)
        told["stands"] = "before turning" if still_turns else "after turning"
    return told


def biases(zero: Call | None, outputs: dict[str, Any]) -> Any:
    """Which projections have a bias: of nothing they make something."""
    if zero is None:
        return "not measured: the layer does not run on zeros"
    found = "".join(role[0] for role in ("query", "key") if getattr(zero, role).abs().max() > 1e-9)
    found += "v" if zero.value is not None and zero.value.abs().max() > 1e-9 else ""
    one, other = (outputs.get(run) for run in ("without", "without, other"))
    if isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape and one.allclose(other):
        found += "o" if one.abs().max() > 1e-9 else ""
    return found


def gate(outputs: dict[str, Any]) -> Any:
    """Whether what is averaged is multiplied by something that the tokens give."""
    runs = [outputs.get(run) for run in ("without", "without, other", "same", "same, other")]
    if not all(isinstance(x, Tensor) for x in runs) or len({x.shape for x in runs if isinstance(x, Tensor)}) > 1:
        return "not measured"
    none, none_other, same, same_other = (x for x in runs if isinstance(x, Tensor))
    size = (same - none).abs().max()
    if not float(size):
        return "not measured: the context does not reach what the layer gives"
    if float(((same - none) - (same_other - none_other)).abs().max()) < 1e-4 * float(size):
        return False
    alone = bool((none - none_other).abs().max() < 1e-6 * size)
    return True if alone else "not measured: the layer adds what it is given"


def latent(call: Call | None) -> Any:
    """How few numbers all values are made of, where these are fewer than they and the tokens."""
    if call is None or call.value is None:
        return "not measured: no values were heard"
    value = call.value.transpose(1, 2).flatten(2).flatten(0, 1).double()  # tokens, features of all heads
    wide = distinct(call.value) * call.value.size(-1)
    rank = int(torch.linalg.matrix_rank(value, rtol=1e-5))
    return rank if rank <= 0.75 * min(wide, value.size(0)) else None
