"""How queries, keys and values were made: of which parameters' rows, in which order, times what, turned how."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from unmasked.doctor._call import Call
from unmasked.doctor._report import Finding, Given, Outcome
from unmasked.doctor._steps import Scores
from unmasked.doctor._subject import Subject, gradients
from unmasked.doctor._target import Target
from unmasked.doctor._view import Run, View, changed, unclear

__all__ = ["PLURAL", "ROLES", "Made", "originals", "projections", "role_of", "turning"]

ROLES = ("query", "key", "value", "out")
PLURAL = {"query": "queries", "key": "keys", "value": "values"}
_EXACT, _EXACT_ROUGH = 1e-9, 1e-3  # of two directions, by how much their cosine may miss one
_INVERSE, _INVERSE_ROUGH = 1e-9, 1e-4  # of a matrix, from which part of its size on a singular value counts
_WORDS = {
    "query": {"q", "query", "queries"},
    "key": {"k", "key", "keys"},
    "value": {"v", "val", "value", "values"},
    "out": {"o", "out", "output", "outputs", "merge", "combine", "unify", "unifyheads", "dense", "fc", "final", "mix"},
    "qkv": {"qkv", "attn", "in", "packed", "fused"},
    "kv": {"kv"},
}
_CORE = re.compile(
    r"^(?:w|b|to|u|up|d|down|lin|linear|fc|proj|project|weight|bias|mat)??"
    r"(qkv|kv|q|k|v|o|query|key|value|out|output)"
    r"(?:s|w|b|t|proj|projection|lin|linear|layer|mat|bias|weight)??$"
)
_HEADS = ("num_heads", "n_heads", "n_head", "nhead", "nheads", "heads", "num_attention_heads", "head_count", "h", "H")


def role_of(name: str) -> str:
    """What a parameter's name says that it makes: a role, "qkv", "kv", or "?"."""
    stem = re.sub(r"[._]?(weight|bias)$", "", name) or name
    tokens = [t for t in re.split(r"[._\d]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", stem).lower()) if t]
    tokens = [m.group(1) if (m := _CORE.match(t)) else t for t in tokens]
    roles = {role for role in ("query", "key", "value") for t in tokens[-3:] if t in _WORDS[role]}
    if len(roles) == 3:
        return "qkv"
    if roles == {"key", "value"}:
        return "kv"
    for token in reversed(tokens):
        for role, words in _WORDS.items():
            if token in words:
                return role
    return "out" if tokens and tokens[-1] in ("proj", "projection") else "?"


def declared_heads(target: Target) -> int | None:
    """How many heads an attribute of its modules says that there are."""
    things = [m for module in target.modules.values() for m in module.modules()]
    for thing in [*things, getattr(target.call, "__self__", target.call)]:
        for name in _HEADS:
            count = vars(thing).get(name) if hasattr(thing, "__dict__") else None
            if isinstance(count, int) and not isinstance(count, bool) and count > 0:
                return count
    return None


def originals(target: Target) -> dict[str, Tensor]:
    """The target's own tensors, by the names that their copies have."""
    found: dict[str, Tensor] = {}
    for name, thing in target.originals.items():
        if isinstance(thing, Tensor):
            found[name] = thing
        else:
            named = thing.named_parameters(remove_duplicate=False)
            found |= {f"{name}.{inner}" if name else inner: p for inner, p in named}
    return found


def listed(target: Target) -> set[str]:
    """Parameters of layers that stand several times in one list that repeats them."""
    found = set()
    places: dict[tuple[str, int], list[str]] = {}
    for name, tensor in target.tensors.items():
        places.setdefault((re.sub(r"\d+(?=\.[^.]*$)", "*", name), id(tensor)), []).append(name)
    for names in places.values():
        found |= set(names) if len(names) > 1 else set()
    return found


# Whether places turn queries and keys alike


def turning(view: View, call: Call) -> Iterator[Outcome]:
    """Give every place the same content: what differs is the place's own."""
    turns = {n: _turn(view, getattr(call, n)) for n in ("query", "key", "value")}
    q, k, v = turns["query"], turns["key"], turns["value"]
    if v is not None and not _still(v):
        if not _still(v @ v.mT):  # such as a convolution over tokens, which has zeros before the first
            yield unclear("its values change with their places, by no rotation")
        elif _turned_back(view, call):
            yield Given("values turned with their places, and outputs turned back")
        else:
            yield view.wrong(None, "values are turned with their places, as queries and keys may be")
        return
    centred = [x - x.mean(0) for x in (call.query, call.key)]
    if centred[0].size(-1) == centred[1].size(-1) and q is not None and k is not None and _still(q) and _still(k):
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
        told = (
            "features are weighed after queries and keys are turned, as by a norm: scores know more than the distance"
        )
        yield view.wrong("norm-after-rope", told, caution=True)
        yield unclear("whether it was trained with its norms behind the turn, as few models are")
        return
    told = "a query and a key at one place are turned differently: scores depend on more than the distance"
    cause = None
    if _still(q) or _still(k):
        told = f"only {'keys' if _still(q) else 'queries'} are turned with their places"
    elif not torch.equal(q.abs().amax((0, 1)) > 1e-6, k.abs().amax((0, 1)) > 1e-6):
        cause, told = "rope-pairing", "queries are turned in other pairs of features than keys"
    elif view.near(q, k) and not _still(q @ q.mT, 0.05):
        cause, told = "rope-pairing", "the angles are those of one pairing, and the pairs those of the other"
    elif view.near(q, k) and not _still(q @ q.mT):
        cause, told = "rope-in-bfloat16", "the angles, or their sines and cosines, are rounded as in 16 bits"
    yield view.wrong(cause, told)


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


def _inverse(view: View, x: Tensor) -> Tensor:
    inverse: Tensor = torch.linalg.pinv(x, rtol=_INVERSE_ROUGH if view.subject.rough else _INVERSE)
    return inverse


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
    turn: Tensor = _inverse(view, centred[:, :1]) @ centred
    return turn if view.near(first @ turn, centred, centred.abs().max().item() * 10) else None


def _still(turn: Tensor, by: float = 1e-6) -> bool:
    eye = torch.eye(turn.size(-1), dtype=turn.dtype)
    return bool(((turn - eye).abs() < by).all())


# Of which rows they are made


def projections(view: View, made: Made, same: Run, scores: Scores, *, clear: bool) -> Iterator[Outcome]:
    """Judge scale and order by the parameters' rows that queries, keys and values are made of."""
    unused = unused_by(view.subject)
    found = [*_never_used(view, made, unused), *itertools.islice(_exchanged(view, made, unused), 1)]
    yield from found
    if any(isinstance(each, Finding) and each.cause != "zero-bias-parity" for each in found):
        return
    if (name := _appended(view.target)) and not view.memory:
        if _shifts(view, same, name):
            told = "bias_k and bias_v are added to every key and value, not appended as one more"
            yield view.wrong("bias-kv-as-shift", told)
        else:
            yield unclear("what bias_k and bias_v are for")
    if clear and not found:
        yield from _output(view, made, same, unused)
        order = list(itertools.islice(_order(view, made, same), 1))
        yield from order or _shared(view, made, same.call)
    yield from _norms(view, made, same)
    if scores.scale is not None:
        yield from _scaling(view, made, same.call, scores)


def _never_used(view: View, made: Made, unused: set[str]) -> Iterator[Outcome]:
    """Find a bias, a norm or a transpose that was forgotten."""
    tensors = view.target.tensors
    for name in sorted(unused):
        weight = name.removesuffix("bias") + "weight"
        if name.endswith("bias") and weight in tensors.keys() - unused:
            yield view.wrong("zero-bias-parity", f"{name} is never added, which biases of zero hide")
        twins = [other for one, two in (("q", "k"), ("k", "q"), ("query", "key"), ("key", "query"))
                 if (other := re.sub(rf"(?<![a-z]){one}(?=_|\d|norm)", two, name)) != name]  # fmt: skip
        if "norm" in name.lower() and any(twin in tensors.keys() - unused for twin in twins):
            yield view.wrong(None, f"{name} is never used, and its twin is: only one of queries and keys is normalized")
    if made.flipped:
        yield view.wrong("weight-not-transposed", f"multiplied by {made.flipped} as it is kept, not by its transpose")


def _exchanged(view: View, made: Made, unused: set[str]) -> Iterator[Outcome]:
    """Find a projection that is passed as another's; the first that is found is told."""
    tensors = view.target.tensors
    for role, others in (("value", ("query", "key")), ("key", ("query",)), ("query", ("key",))):
        for other in others:
            left = any(role_of(name) == role for name in unused)
            if left and made.full(role) and torch.equal(made.ids[role], made.ids[other]):
                told = f"the {other}'s projection passed as the {role}'s, which is never used"
                yield view.wrong("wrong-value" if role == "value" else None, told)
    for one, two in itertools.combinations(("query", "key", "value"), 2):
        same_rows = made.full(one) and torch.equal(made.ids[one].sort(-1)[0], made.ids[two].sort(-1)[0])
        if same_rows and made.names(one) <= listed(view.target):
            told = f"{one} and {two} are made by one layer, which stands in its list several times: `[layer] * n`"
            yield view.wrong(None, f"{told} copies none")
        shared = made.rows(one) & made.rows(two)
        if shared and shared != made.rows(one) and made.full(one) and made.full(two):
            yield view.wrong(None, f"a part of the {two} is made by rows that make the {one}", "open")
    for role in ("value", "key", "query"):
        lost = [n for n in sorted(unused) if role_of(n) == role and tensors[n].dim() > 1]
        if lost and made.full(role) and made.names(role) == {""}:
            told = f"the {role} is what the layer before gave, and {lost[0]} is never used"
            yield view.wrong("wrong-value" if role == "value" else None, told)
    for one, two in (("key", "value"), ("query", "key")):
        if two in made.named(one) - made.named(two) and one in made.named(two) - made.named(one):
            told = f"what the names call {one} is used as the {two}, and the other way round"
            yield view.wrong(None, told, "open")


def _appended(target: Target) -> str:
    """The bias of values that add_bias_kv appends, (1, 1, features), where there is none of queries; or ""."""
    last = {n.rpartition(".")[2]: n for n in target.tensors}
    name = last.get("bias_v", "")
    return name if name and "bias_q" not in last and target.tensors[name].shape[:-1] == (1, 1) else ""


def _shifts(view: View, same: Run, name: str) -> bool:
    """Whether all values move alike with this bias."""
    bias = view.target.tensors[name]
    with torch.no_grad():
        bias.add_(1.0)
        after = view.run(same.case)
        bias.sub_(1.0)
    if len(after.calls) != len(same.calls) or after.call.value.shape != same.call.value.shape:
        return False
    step = after.call.value - same.call.value
    return bool(step.abs().max() > 1e-3) and view.near(step, step[:, :, :1].expand_as(step))


def _norms(view: View, made: Made, same: Run) -> Iterator[Outcome]:
    """Where queries or keys are no affine map, ask whether they are normalized, and over what."""
    for role in ("query", "key"):
        if made.affine[role]:
            continue

        def normed(run: Run, role: str = role) -> bool:
            x = getattr(run.call, role)[:, :, 0] if len(run.calls) == len(same.calls) else torch.zeros(0, 1, 1)
            return _on_ellipsoid(x) or _on_ellipsoid(x.flatten(1).unsqueeze(1))  # each head's, or all heads' at once

        x = getattr(same.call, role)[:, :, 0]  # items heads features
        over_heads = x.size(1) > 1 and _on_ellipsoid(x.transpose(1, 2))
        wide = 2 * x[0].numel() + 5  # a norm over all heads shows in more items than features
        if over_heads and not normed(same):
            yield view.wrong(None, "queries and keys are normalized over the heads, not over the features")
            return
        if normed(same) or (len(x) < wide <= 520 and normed(view.run(view.case(wide, same=True)))):
            yield Given("norms of queries and keys")
        elif normed(view.run(changed(same.case, lambda x: 1e4 * x))):
            told = "the norm of queries and keys has so large an epsilon that it does not normalize"
            yield view.wrong(None, told)
            return
        else:
            yield unclear(f"how its {role} is made")


def _on_ellipsoid(x: Tensor) -> bool:
    """Whether the last axis lies on one, as what is normalized and then scaled and shifted does."""
    if x.size(0) < 2 * x.size(-1) + 4:
        return False
    terms = torch.cat([x.square(), x], -1).transpose(0, 1)  # heads items features
    one = torch.ones_like(terms[..., :1])
    solved = torch.linalg.lstsq(terms, one, driver="gelsd").solution
    return bool(((terms @ solved - 1).abs() < 5e-3).all())


def _output(view: View, made: Made, same: Run, unused: set[str]) -> Iterator[Outcome]:
    """Where the output is the merged context times a matrix, ask which."""
    call, target = same.call, view.target
    merged = call.context.transpose(1, 2).flatten(2)
    by_feature = call.context.permute(0, 2, 3, 1).flatten(2)
    given = same.case.query
    for rest in (torch.zeros_like(same.output), given, 2 * given):
        if rest.shape != same.output.shape:
            continue
        y = same.output - rest
        size = y.abs().max().item()
        if view.near(y, merged, size):
            lost = [n for n in sorted(unused) if target.tensors[n].dim() == 2 and role_of(n) == "out"]
            if lost:
                told = f"the output projection is left out: {lost[0]} is never used"
                yield view.wrong("missing-out-proj", told)
            return
        for name, tensor in target.tensors.items():
            owner = target.owners[name]
            if not isinstance(owner, nn.Linear) or tensor is not owner.weight or name in unused:
                continue
            matrix = tensor.detach().to("cpu")
            if matrix.shape != (y.size(-1), merged.size(-1)):
                continue
            bias = 0 if owner.bias is None else owner.bias.detach().to("cpu")
            if view.near(y, merged @ matrix.mT + bias, size):
                if rest is not given and bool(rest.any()):
                    told = "what it is given is added to its output twice: a residual around another"
                    yield view.wrong(None, told)
                idle = [n for n in sorted(unused) if target.tensors[n].shape == tensor.shape]
                of = [role for role in ("query", "key", "value") if name in made.names(role)]
                if idle and of:
                    told = f"{name} makes its {of[0]} and its output, and {idle[0]} is never used"
                    yield view.wrong(None, told)
                return
            if call.context.size(1) > 1 and view.near(y, by_feature @ matrix.mT + bias, size):
                yield unclear("its heads are merged feature by feature")
            elif matrix.size(0) == matrix.size(1) and view.near(y, merged @ matrix + bias, size):
                yield view.wrong("weight-not-transposed", f"multiplied by {name} as it is kept, not by its transpose")


def _order(view: View, made: Made, same: Run) -> Iterator[Outcome]:
    """Compare the heads of queries, keys and values: which rows each is made of; the first that is found is told."""
    heads, dim = same.call.query.shape[1::2]
    declared, given = made.heads, view.subject.num_heads
    several = len(same.calls) > 1 and given is not None and heads % given == 0  # calls of as many heads each
    if given and heads != given and not several and (dim != given or declared_heads(view.target) == heads):
        yield view.wrong(None, f"it has {heads} heads of {dim} features, and num_heads={given} was given", "open")
    if declared and heads != declared and dim == declared:
        told = f"the view has heads and head_dim exchanged: there are {heads} heads of {dim} features"
        yield view.wrong("swapped-view", told)
    if heads < 2:
        return
    kinds = {role: made.kind(role) for role in ("query", "key", "value")}
    if made.full("query") and len(set(made.groups("query"))) == 1:
        yield view.wrong(None, "every head's queries are made of the same rows: the heads are one head")
    if {"in a row", "apart"} <= {kinds["query"], kinds["key"]}:
        which = "query" if kinds["query"] == "apart" else "key"
        told = f"the {which}'s view has heads and head_dim exchanged: a head takes one feature of every {heads}"
        yield view.wrong("swapped-view", told)
    if not (made.full("key") and made.full("value")):
        return
    key, value = made.ranks("key"), made.ranks("value")
    apart = len(set(key)) == heads and kinds["key"] == kinds["value"] == "in a row"
    if apart and sorted(key) == sorted(value) and key != value:
        told = f"the heads of keys are {key}, those of values {value}: they belong to others"
        yield view.wrong(None, told, "open")
    if 1 < len(set(key)) == len(set(value)) < heads and key != value:
        told = "a query head's keys and values come from different key heads"
        yield view.wrong("repeat-for-repeat-interleave", told)


def _shared(view: View, made: Made, call: Call) -> Iterator[Outcome]:
    """Ask which key head each query head has, where there are fewer."""
    heads, count = call.query.size(1), len(set(made.groups("key")))
    ranks = made.ranks("key")
    if not made.full("key") or not made.full("value") or not 1 < count < heads or ranks != made.ranks("value"):
        return
    right, dealt = [h * count // heads for h in range(heads)], [h % count for h in range(heads)]
    if ranks == dealt and call.copied:  # right, if the checkpoint was trained so
        told = "the heads of keys and values are dealt out in turn: neighbors among the query heads share none"
        yield view.wrong("repeat-for-repeat-interleave", told, caution=True)
        yield unclear("whether it was trained with its key heads dealt out in turn, as few models are")
        return
    by_row = made.ranks("query") if made.full("query") else right
    placed = [ranks[by_row.index(row)] for row in range(heads)] if len(set(by_row)) == heads else right
    if ranks == right and placed != right:
        told = f"query heads, as their rows stand, have the key heads {placed}, where enable_gqa gives them {right}"
        yield unclear(f"whether it was trained so: {told}")
    if ranks not in (right, dealt):
        yield unclear(f"query heads have the key heads {ranks}")


def _scaling(view: View, made: Made, call: Call, scores: Scores) -> Iterator[Outcome]:
    """Judge the factor between rows times rows and scores."""
    assert scores.scale is not None
    dim = call.query.size(-1)
    q, k = made.factor("query"), made.factor("key")
    if made.affine["query"] and made.affine["key"] and made.full("query") != made.full("key"):
        known, other = ("query", "key") if made.full("query") else ("key", "query")
        yield unclear(
            f"how its {other} is turned at the first place, where its {known} is not: positions may be one apart"
        )
        return
    if q is None or k is None:
        plain = view.near(scores.scale * call.gain, torch.full_like(scores.scale, dim**-0.5))
        if made.affine["query"] and made.affine["key"] and not plain:
            yield unclear("by what its scores are divided")
        elif not plain:
            yield Given("the scale of its scores")
        return
    total = scores.scale * q * k
    if view.near(total, torch.full_like(total, dim**-0.5)) or dim == 1:
        return
    learned = any(t.numel() in (1, call.query.size(1)) and t.requires_grad for t in view.target.tensors.values())
    if learned:
        yield Given("a scale that is learned")
    found = next(outcome for fits, outcome in _scales(view, made, call, scores, total, learned=learned) if fits)
    if found is not None:
        yield found


def _scales(
    view: View, made: Made, call: Call, scores: Scores, total: Tensor, *, learned: bool
) -> Iterator[tuple[bool, Outcome | None]]:
    """What may stand in the place of one over the root of head_dim, and what it means: the first row that fits."""
    one, dim, every = total[0].item(), call.query.size(-1), view.constants("")
    kept = view.constants("scal", "temp", "tau", "multiplier", "beta", "sharp", "query_pre")

    def near(number: float) -> bool:
        return abs(one - number) < 1e-6 * number

    different = unclear("its heads divide scores by different numbers")
    yield not view.near(total, torch.full_like(total, one)), None if learned else different
    told = "the scores have the other sign: what is most alike is seen the least"
    yield one < 0 and not learned, view.wrong(None, told)
    none = near(1.0)
    few = none and dim < call.value.size(-1)  # as in SAGAN, which has no scale by design
    yield few, unclear("whether queries of fewer features than values go without a scale")
    yield none and 1.0 in kept, Given("a scale of its own")  # as Granite has it
    added = scores.added
    spread = (added - added.mean((1, 2), keepdim=True)).abs().max().item() if added.dim() == 3 else 0.0
    biased = none and spread > 1e-6 and bool(view.target.tensors)  # as in T5
    yield biased, Given("scores without a scale, to which something is added")
    told = "whether scores go without a scale, as queries and keys are cast to float32 for them"
    yield none and view.subject.upcast, unclear(told)  # as in GPT-Neo, whose scores are large
    yield none and made.begins_small(), unclear("whether scores go without a scale, which smaller weights begin with")
    yield none, view.wrong("missing-scale", "the scores are not divided by the root of head_dim")
    heads, _, keys = call.scores.shape[1:]
    sizes = {view.subject.embed_dim: "embed_dim", heads: "num_heads", dim * heads: "all heads"}
    sizes |= {keys: "the number of keys", call.scores.size(0): "the batch"}
    others = {n: name for n, name in sizes.items() if n not in (1, dim)}
    numbers = [(n**-0.5, f"divided by the root of {name}, {n}") for n, name in others.items()]
    numbers += [(1 / n, f"divided by {name}, {n}") for n, name in others.items()]
    numbers += [(1 / dim, f"divided by head_dim, {dim}"), (dim**0.5, "multiplied by the root of head_dim")]
    parts = [c for c in every if c < dim and dim - c in every]
    numbers += [(c**-0.5, f"divided by the root of {c:g}, a part of a head") for c in parts]
    for number, how in numbers:
        told = f"the scores are {how}, not divided by the root of {dim}"
        yield near(number), view.wrong("wrong-d-in-scale", told)
    yield learned, None
    yield any(near(v) for c in kept for v in (c, c**-0.5, 1 / c)), Given("a scale of its own")
    root = one**-2
    told = f"the scores are divided by the root of {round(root)}, none of its sizes: a name read from outside"
    yield abs(root - round(root)) < 1e-5 * root and root < 1e6, view.wrong("global-d-k", told)
    yield True, unclear(f"the scores are multiplied by {one:.4g}")


class Made:
    """Of which rows of which parameters each feature of queries, keys and values is made, at the first place.

    Attributes:
        ids: By role: (heads, features), the number of the row, negative where none fits.
        ratio: By role: by what the row's product was multiplied.
        affine: By role: whether it is an affine map of what layers took.
        flipped: A matrix of nn.Linear that was multiplied without being transposed.
        heads: The number of heads that the module declares.
    """

    def __init__(self, view: View, same: Run):
        self.ids: dict[str, Tensor] = {}
        self.ratio: dict[str, Tensor] = {}
        self.affine: dict[str, bool] = {}
        self.flipped: str | None = None
        target, call = view.target, same.call
        tensors = {n: t.detach().to("cpu") for n, t in target.tensors.items()}
        self.heads = view.subject.num_heads or declared_heads(target)
        inputs = _inputs(same)
        blocks: list[tuple[str, bool, Tensor]] = []  # name, whether turned against nn.Linear, (rows, in)
        widths = {z.size(-1) for z in inputs}
        for name, tensor in tensors.items():
            for turned, matrix in _unfolded(tensor, widths):
                fixed = isinstance(target.owners[name], nn.Linear | nn.Conv1d | nn.Conv2d)
                blocks.append((name, turned and fixed, matrix))
        blocks += [("", False, torch.eye(width, dtype=call.query.dtype)) for width in sorted(widths) if width <= 256]
        offsets, total = [], 0
        for _, _, matrix in blocks:
            offsets.append(total)
            total += matrix.size(0)
        self.blocks, self.offsets, self.target = blocks, offsets, target
        limit = _EXACT_ROUGH if view.subject.rough else _EXACT
        features: dict[str, Tensor] = {}
        for role in ("query", "key", "value"):
            x = getattr(call, role)[:, :, 0]
            features[role] = (x - x.mean(0)).flatten(1)  # items, heads * features
            self.ids[role] = torch.full((features[role].size(1),), -1)
            self.ratio[role] = torch.full((features[role].size(1),), math.nan, dtype=x.dtype)
        for z in inputs:
            for (_, _, matrix), offset in zip(blocks, offsets, strict=True):
                if matrix.size(1) != z.size(-1):
                    continue
                u = z @ matrix.mT
                norm = u.norm(dim=0)
                for role, x in features.items():
                    size = x.norm(dim=0)
                    fit = (x / size.clamp(min=1e-30)).mT @ (u / norm.clamp(min=1e-30))
                    best, row = fit.abs().max(-1)
                    hit = (1 - best < limit) & (self.ids[role] < 0)
                    sign = fit.gather(1, row[:, None])[:, 0].sign()
                    self.ids[role] = torch.where(hit, row + offset, self.ids[role])
                    self.ratio[role] = torch.where(hit, sign * size / norm[row].clamp(min=1e-30), self.ratio[role])
        joined = torch.cat(inputs, -1) if inputs else None
        for role, x in features.items():
            shape = getattr(call, role).shape
            self.ids[role] = self.ids[role].view(shape[1], shape[3])
            self.ratio[role] = self.ratio[role].view(shape[1], shape[3])
            self.affine[role] = bool((self.ids[role] >= 0).all())
            if not self.affine[role] and joined is not None and joined.size(1) < x.size(0):
                solved = torch.linalg.pinv(joined, rtol=1e-10) @ x
                self.affine[role] = view.near(joined @ solved, x, 10 * x.abs().max().item())
            used = {self.block(row) for row in self.rows(role)}
            names = [blocks[b][0] for b in used if blocks[b][1] and blocks[b][2].size(0) == blocks[b][2].size(1)]
            self.flipped = self.flipped or (names[0] if names else None)

    def block(self, row: int) -> int:
        return max(b for b, offset in enumerate(self.offsets) if offset <= row)

    def rows(self, *roles: str) -> set[int]:
        """The numbers of all rows of these roles."""
        return {int(i) for role in roles for i in self.ids[role].flatten() if i >= 0}

    def names(self, role: str) -> set[str]:
        """The parameters that a role is made of; "" for what a layer took."""
        return {self.blocks[self.block(row)][0] for row in self.rows(role)}

    def full(self, role: str) -> bool:
        """Whether every feature has a row."""
        return bool((self.ids[role] >= 0).all())

    def named(self, role: str) -> set[str]:
        """What the names of the parameters say that the features of this role are."""
        return {role_of(name) for name in self.names(role)} if self.full(role) else set()

    def groups(self, role: str) -> list[frozenset[int]]:
        return [frozenset(head.tolist()) for head in self.ids[role]]

    def ranks(self, role: str) -> list[int]:
        """The place of each head's rows among all that there are."""
        groups = self.groups(role)
        order = sorted(set(groups), key=min)
        return [order.index(group) for group in groups]

    def kind(self, role: str) -> str:
        """Whether a head's rows stand in a row, or apart by the number of heads."""
        ids = self.ids[role]
        if not self.full(role) or ids.size(1) < 2:
            return "unknown"
        steps = ids.sort(-1).values.diff(dim=-1)
        if bool((steps == 1).all()):
            return "in a row"
        return "apart" if bool((steps == ids.size(0)).all()) else "unknown"

    def begins_small(self) -> bool:
        """Whether queries or keys began with smaller weights than values, as those do that are to replace a scale."""
        own, sizes = originals(self.target), {}
        for role in ("query", "key", "value"):
            rows = []
            for name in self.names(role) & own.keys():
                at = next(n for n, block in enumerate(self.blocks) if block[0] == name)
                widths = {self.blocks[at][2].size(1)}
                for _, matrix in _unfolded(own[name].detach().to("cpu", torch.float64), widths):
                    held = (self.ids[role].flatten() - self.offsets[at]).unique()
                    rows.append(matrix[held[(held >= 0) & (held < matrix.size(0))]].square().mean())
            if rows:
                sizes[role] = torch.stack(rows).mean().sqrt().item()
        if len(sizes) < 3:
            return False
        return sizes["query"] * sizes["key"] < 0.8 * sizes["value"] ** 2

    def factor(self, role: str) -> float | None:
        """By what all rows of this role are multiplied."""
        ratio = self.ratio[role]
        if not self.full(role):
            return None
        one = ratio.flatten()[0].item()
        return one if bool(((ratio - one).abs() < 1e-6 * max(abs(one), 1e-6)).all()) else None


def _unfolded(tensor: Tensor, widths: set[int]) -> list[tuple[bool, Tensor]]:
    """Read a parameter as (rows, in) in each way that its shape allows, and say whether that turns it."""
    if tensor.dim() < 2 or not tensor.is_floating_point():
        return []
    squeezed = tensor.flatten(1) if tensor.dim() > 2 and tensor[0, 0].numel() == 1 else tensor
    found = []
    for axis in range(squeezed.dim() - 1, -1, -1):
        if squeezed.size(axis) in widths:
            found.append((axis != squeezed.dim() - 1, squeezed.movedim(axis, -1).reshape(-1, squeezed.size(axis))))
    return found


def _inputs(run: Run) -> list[Tensor]:
    """What layers took before the first score, at the first place, less its mean: (batch, features), each once."""
    items, tokens = run.case.query.shape[:2]
    first = min(call.first for call in run.calls)
    used = {i for call in run.calls for i in call.used}
    found: list[Tensor] = []
    given = [run.case.query, run.case.key, run.case.value]
    taken = [e.given[0] for i, e in enumerate(run.events[:first]) if i not in used and e.kind != "softmax"]
    for x in [*given, *taken]:
        z = _at_first(x, items, {tokens, run.case.key.size(1)})
        if z is None:
            continue
        z = z - z.mean(0)
        if not any(z.shape == old.shape and torch.allclose(z, old) for old in found) and bool(z.abs().max() > 0):
            found.append(z)
    return found[:12]


def _at_first(x: Tensor, items: int, tokens: set[int]) -> Tensor | None:
    """What a layer took of the first token of each item, whatever the order of its axes."""
    if x.dim() == 4 and x.size(-1) == 1:
        x = x[..., 0]
    if x.dim() == 3 and x.size(0) % items == 0 and x.size(1) in tokens:
        return x.view(items, -1, *x.shape[1:])[:, 0, 0]
    if x.dim() == 3 and x.size(1) == items and x.size(0) in tokens:
        return x[0]
    if x.dim() == 3 and x.size(0) == items and x.size(2) in tokens:
        return x[..., 0]
    count = next((n for n in tokens if x.dim() == 2 and x.size(0) == items * n), None)
    if count is None:
        return None
    by_item, by_token = x.view(items, count, -1)[:, :2], x.view(count, items, -1)[:2]
    if torch.allclose(by_token[0], by_token[1]) and not torch.allclose(by_item[:, 0], by_item[:, 1]):
        return by_token[0]
    return by_item[:, 0]


def unused_by(subject: Subject) -> set[str]:
    """Names of the parameters that the output does not hang on, as far as autograd sees."""
    try:
        return {name for name, grad in gradients(subject).items() if grad is None}
    except Exception:  # which is asked about elsewhere
        return set()
