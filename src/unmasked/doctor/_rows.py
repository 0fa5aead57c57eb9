"""How queries, keys and values were made: of which parameters' rows, in which order, and times what."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from unmasked.doctor._look import Look, Run
from unmasked.doctor._mistakes import Case
from unmasked.doctor._observed import Call
from unmasked.doctor._patient import Patient
from unmasked.doctor._weights import appended, head_counts, listed, originals, role_of

__all__ = ["Rows", "told_of_one"]


class Rows:
    """Judges the projections by a run in which every place has the same content."""

    def __init__(self, look: Look):
        self.look = look

    def judge(self, same: Run) -> None:
        """Find of which parameters' rows queries, keys and values are made, and judge scale and order by them."""
        made = _Made(self.look, same)
        call = same.call
        unused = _unused(self.look.patient, self.look.case(2))
        for name in unused:
            weight = name.removesuffix("bias") + "weight"
            if name.endswith("bias") and weight in self.look.patient.target.tensors.keys() - unused:
                self.look.wrong("zero-bias-parity", f"{name} is never added, which biases of zero hide")
        if made.flipped:
            told = f"multiplied by {made.flipped} as it is kept, not by its transpose"
            self.look.wrong("weight-not-transposed", told)
        for role, others in (("value", ("query", "key")), ("key", ("query",)), ("query", ("key",))):
            for other in others:
                if made.full(role) and torch.equal(made.ids[role], made.ids[other]) and made.left(role, unused):
                    cause = "wrong-value" if role == "value" else None
                    return self.look.wrong(
                        cause, f"the {other}'s projection passed as the {role}'s, which is never used"
                    )
        for one, two in itertools.combinations(("query", "key", "value"), 2):
            names = {made.blocks[made.block(int(i))][0] for i in made.ids[one].flatten() if i >= 0}
            same_rows = made.full(one) and torch.equal(made.ids[one].sort(-1)[0], made.ids[two].sort(-1)[0])
            if same_rows and names <= listed(self.look.patient.target).keys():
                return self.look.wrong(None, told_of_one(one, two))
        for role in ("value", "key", "query"):
            lost = [n for n in unused if role_of(n) == role and self.look.patient.target.tensors[n].dim() > 1]
            if lost and made.full(role) and made.named(role) == {"?"} and made.plain(role):
                told = f"the {role} is what the layer before gave, and {lost[0]} is never used"
                return self.look.wrong("wrong-value" if role == "value" else None, told)
        for one, two in (("key", "value"), ("query", "key")):
            if two in made.named(one) - made.named(two) and one in made.named(two) - made.named(one):
                told = f"what the names call {one} is used as the {two}, and the other way round"
                return self.look.wrong(None, told, proved=False)
        if appended(self.look.patient.target.tensors) and not self.look.memory:
            self.look.inside.unclear.append("what bias_k and bias_v are for")
        if not self.look.inside.wrong:
            self.output(same, unused)
            self.order(made, call)
        self.norms(made, same)
        if self.look.scale is not None:
            self.scaling(made, call)
        return None

    def norms(self, made: _Made, same: Run) -> None:
        """Where queries or keys are no affine map, ask whether they are normalized, and over what."""
        for role in ("query", "key"):
            if made.affine[role]:
                continue
            x = getattr(same.call, role)[:, :, 0]  # items heads features
            if self.normed(x) or self.normed(x.flatten(1).unsqueeze(1)):
                continue
            if x.size(1) > 1 and self.normed(x.transpose(1, 2)):
                return self.look.wrong(None, "queries and keys are normalized over the heads, not over the features")
            wide = 2 * x[0].numel() + 5
            if x.size(0) < wide <= 520:  # a norm over all heads shows in more items than features
                more = self.look.find(self.look.run(self.look.case(wide, same=True)))
                if len(more.calls) == len(same.calls) and self.normed(
                    getattr(more.call, role)[:, :, 0].flatten(1).unsqueeze(1)
                ):
                    continue
            large = self.look.find(self.look.run(self.look.changed(same.case, lambda x: 1e4 * x)))
            if len(large.calls) == len(same.calls):
                x = getattr(large.call, role)[:, :, 0]
                if self.normed(x) or self.normed(x.flatten(1).unsqueeze(1)):
                    told = "the norm of queries and keys has so large an epsilon that it does not normalize"
                    return self.look.wrong(None, told)
            self.look.inside.unclear.append(f"how its {role} is made")
        return None

    def normed(self, x: Tensor) -> bool:
        """Whether the last axis lies on an ellipsoid, as what is normalized and then scaled and shifted does."""
        if x.size(0) < 2 * x.size(-1) + 4:
            return False
        terms = torch.cat([x.square(), x], -1).transpose(0, 1)  # heads items features
        one = torch.ones_like(terms[..., :1])
        solved = torch.linalg.lstsq(terms, one, driver="gelsd").solution
        return bool(((terms @ solved - 1).abs() < 5e-3).all())

    def output(self, same: Run, unused: set[str]) -> None:
        """Where the output is the merged context times a matrix, ask which."""
        call, target = same.call, self.look.patient.target
        merged = call.context.transpose(1, 2).flatten(2)
        by_feature = call.context.permute(0, 2, 3, 1).flatten(2)
        given = same.case.query
        for rest in (torch.zeros_like(same.output), given, 2 * given):
            if rest.shape != same.output.shape:
                continue
            y = same.output - rest
            size = y.abs().max().item()
            if self.look.near(y, merged, size):
                lost = [n for n in unused if target.tensors[n].dim() == 2 and role_of(n) == "out"]
                if lost:
                    self.look.wrong("missing-out-proj", f"the output projection is left out: {lost[0]} is never used")
                return
            for name, tensor in target.tensors.items():
                owner = target.owners[name]
                if not isinstance(owner, nn.Linear) or tensor is not owner.weight or name in unused:
                    continue
                matrix = tensor.detach().to("cpu")
                if matrix.shape != (y.size(-1), merged.size(-1)):
                    continue
                bias = 0 if owner.bias is None else owner.bias.detach().to("cpu")
                if self.look.near(y, merged @ matrix.mT + bias, size):
                    if rest is not given and bool(rest.any()):
                        self.look.wrong(
                            None, "what it is given is added to its output twice: a residual around another"
                        )
                    return
                if call.context.size(1) > 1 and self.look.near(y, by_feature @ matrix.mT + bias, size):
                    self.look.inside.unclear.append("its heads are merged feature by feature")
                elif matrix.size(0) == matrix.size(1) and self.look.near(y, merged @ matrix + bias, size):
                    self.look.wrong(
                        "weight-not-transposed", f"multiplied by {name} as it is kept, not by its transpose"
                    )

    def order(self, made: _Made, call: Call) -> None:
        """Compare the heads of queries, keys and values: which rows each is made of."""
        heads, dim = call.query.size(1), call.query.size(-1)
        declared = self.look.patient.num_heads or made.heads
        if declared and heads != declared and dim == declared and heads * dim == declared * heads:
            told = f"the view has heads and head_dim exchanged: there are {heads} heads of {dim} features"
            return self.look.wrong("swapped-view", told)
        if heads < 2:
            return None
        kinds = {role: made.kind(role) for role in ("query", "key", "value")}
        if made.full("query") and len(set(made.groups("query"))) == 1:
            return self.look.wrong(None, "every head's queries are made of the same rows: the heads are one head")
        if {"in a row", "apart"} <= {kinds["query"], kinds["key"]}:
            which = "query" if kinds["query"] == "apart" else "key"
            told = f"the {which}'s view has heads and head_dim exchanged: a head takes one feature of every {heads}"
            return self.look.wrong("swapped-view", told)
        ranks = {role: made.ranks(role) for role in ("key", "value") if made.full(role)}
        if len(ranks) < 2:
            return None
        several = len(set(ranks["key"])) == heads and kinds["key"] == kinds["value"] == "in a row"
        if several and sorted(ranks["key"]) == sorted(ranks["value"]) and ranks["key"] != ranks["value"]:
            told = f"the heads of keys are {ranks['key']}, those of values {ranks['value']}: they belong to others"
            return self.look.wrong(None, told, proved=False)
        count = max(ranks["key"]) + 1
        if 1 < count < heads and max(ranks["value"]) + 1 == count:
            right = [h * count // heads for h in range(heads)]
            dealt = [h % count for h in range(heads)]
            if ranks["key"] != ranks["value"]:
                told = "a query head's keys and values come from different key heads"
                return self.look.wrong("repeat-for-repeat-interleave", told)
            if ranks["key"] == dealt and call.copied:
                told = "the heads of keys and values are dealt out in turn: neighbors among the query heads share none"
                return self.look.wrong("repeat-for-repeat-interleave", told)
            by_row = made.ranks("query") if made.full("query") else right
            placed = [ranks["key"][by_row.index(row)] for row in range(heads)] if len(set(by_row)) == heads else right
            if ranks["key"] == right and placed != right:
                self.look.inside.dealt = True
                told = f"query heads, as their rows stand, have the key heads {placed}, where enable_gqa"
                self.look.inside.unclear.append(f"whether it was trained so: {told} gives them {right}")
            if ranks["key"] not in (right, dealt):
                self.look.inside.unclear.append(f"query heads have the key heads {ranks['key']}")
        return None

    def scaling(self, made: _Made, call: Call) -> None:
        """Judge the factor between rows times rows and scores."""
        assert self.look.scale is not None
        dim, tensors = call.query.size(-1), self.look.patient.target.tensors
        q, k = made.factor("query"), made.factor("key")
        if q is None or k is None:
            plain = self.look.near(self.look.scale, torch.full_like(self.look.scale, dim**-0.5))
            if made.affine.get("query") and made.affine.get("key") and not plain:
                self.look.inside.unclear.append("by what its scores are divided")
            return None
        total = self.look.scale * q * k
        if self.look.near(total, torch.full_like(total, dim**-0.5)) or dim == 1:
            return None
        one = total[0].item()
        learned = any(t.numel() in (1, call.query.size(1)) and t.requires_grad for t in tensors.values())
        if not self.look.near(total, torch.full_like(total, one)):
            if not learned:
                self.look.inside.unclear.append("its heads divide scores by different numbers")
            return None

        if one < 0 and not learned:
            return self.look.wrong(None, "the scores have the other sign: what is most alike is seen the least")

        def near(number: float) -> bool:
            return abs(one - number) < 1e-6 * number

        if near(1.0) and dim < call.value.size(-1):  # as in SAGAN, which has no scale by design
            self.look.inside.unclear.append("whether queries of fewer features than values go without a scale")
            return None
        if near(1.0):
            spread = (self.look.added - self.look.added.mean((1, 2), keepdim=True)).abs().max().item()
            if spread > 1e-6 and tensors:  # T5 adds a learned bias, and does not divide
                return None
            if made.begins_small():
                self.look.inside.unscaled = True
                self.look.inside.unclear.append("whether scores go without a scale, which smaller weights begin with")
                return None
            return self.look.wrong("missing-scale", "the scores are not divided by the root of head_dim")
        heads, _, keys = call.scores.shape[1:]
        sizes = {self.look.patient.embed_dim: "embed_dim", heads: "num_heads", dim * heads: "all heads"}
        sizes |= {keys: "the number of keys", call.scores.size(0): "the batch"}
        told = [(n**-0.5, f"divided by the root of {sizes[n]}, {n}") for n in sizes if n not in (1, dim)]
        told += [(1 / n, f"divided by {sizes[n]}, {n}") for n in sizes if n not in (1, dim)]
        told += [(1 / dim, f"divided by head_dim, {dim}"), (dim**0.5, "multiplied by the root of head_dim")]
        kept = self.look.constants()
        told += [
            (c**-0.5, f"divided by the root of {c:g}, a part of a head") for c in kept if c < dim and dim - c in kept
        ]
        for number, how in told:
            if near(number):
                return self.look.wrong("wrong-d-in-scale", f"the scores are {how}, not divided by the root of {dim}")
        if learned or any(near(v) for c in kept for v in (c, c**-0.5, 1 / c)):
            return None  # its own temperature
        number = one**-2
        if abs(number - round(number)) < 1e-5 * number and number < 1e6:
            told_of = (
                f"the scores are divided by the root of {round(number)}, none of its sizes: a name read from outside"
            )
            return self.look.wrong("global-d-k", told_of)
        self.look.inside.unclear.append(f"the scores are multiplied by {one:.4g}")
        return None


def told_of_one(one: str, two: str) -> str:
    """What is wrong where a list holds one layer several times."""
    return f"{one} and {two} are made by one layer, which stands in its list several times: `[layer] * n` copies none"


class _Made:
    """Of which rows of which parameters each feature of queries, keys and values is made, at the first place.

    Attributes:
        ids: By role: (heads, features), the number of the row, negative where none fits.
        ratio: By role: by what the row's product was multiplied.
        affine: By role: whether it is an affine map of what layers took.
        flipped: A matrix of nn.Linear that was multiplied without being transposed.
        heads: The number of heads that the module declares.
    """

    def __init__(self, look: Look, same: Run):
        self.ids: dict[str, Tensor] = {}
        self.ratio: dict[str, Tensor] = {}
        self.affine: dict[str, bool] = {}
        self.flipped: str | None = None
        target, call = look.patient.target, same.call
        tensors = {n: t.detach().to("cpu") for n, t in target.tensors.items()}
        counts = head_counts(target, tensors, look.patient.embed_dim)
        self.heads = counts[0] if len(counts) == 1 else None
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
        self.blocks, self.offsets, self.total, self.target = blocks, offsets, total, target
        limit = 1e-3 if look.rough else 1e-9
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
                self.affine[role] = look.near(joined @ solved, x, 10 * x.abs().max().item())
            used = {self.block(int(i)) for i in self.ids[role].flatten() if i >= 0}
            names = [blocks[b][0] for b in used if blocks[b][1] and blocks[b][2].size(0) == blocks[b][2].size(1)]
            self.flipped = self.flipped or (names[0] if names else None)

    def block(self, row: int) -> int:
        return max(b for b, offset in enumerate(self.offsets) if offset <= row)

    def full(self, role: str) -> bool:
        """Whether every feature has a row."""
        return bool((self.ids[role] >= 0).all())

    def left(self, role: str, unused: set[str]) -> bool:
        """Whether a matrix, or rows of a packed one, that this role's name or place means are never used."""
        if any(role_of(name) == role for name in unused):
            return True
        used = {int(i) for ids in self.ids.values() for i in ids.flatten() if i >= 0}
        for (name, turned, matrix), offset in zip(self.blocks, self.offsets, strict=True):
            rows = used & set(range(offset, offset + matrix.size(0)))
            if rows and not turned and name not in unused and len(rows) < matrix.size(0):
                missing = matrix.size(0) - len(rows)
                if missing == self.ids[role].unique().numel() and role_of(name) in ("qkv", "kv", "?"):
                    return True
        return False

    def named(self, role: str) -> set[str]:
        """What the names of the parameters say that the features of this role are."""
        if not self.full(role):
            return set()
        return {role_of(self.blocks[self.block(int(i))][0]) for i in self.ids[role].flatten().unique()}

    def plain(self, role: str) -> bool:
        """Whether its features are those that a layer took, in the place of rows of a matrix."""
        return all(not self.blocks[self.block(int(i))][0] for i in self.ids[role].flatten().unique())

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
            names = {self.blocks[self.block(int(i))][0] for i in self.ids[role].flatten() if i >= 0}
            rows = []
            for name in names & own.keys():
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
    taken = [x for i, e in enumerate(run.events[:first]) if i not in used and e.kind != "softmax" for x in e.given[:1]]
    for x in [*given, *taken]:
        if x.dim() == 4 and x.size(-1) == 1:
            x = x[..., 0]
        if x.dim() == 3 and x.shape[0] == items and x.shape[1] in (tokens, run.case.key.size(1)):
            z = x[:, 0]
        elif x.dim() == 3 and x.shape[1] == items and x.shape[0] in (tokens, run.case.key.size(1)):
            z = x[0]
        elif x.dim() == 3 and x.shape[0] == items and x.shape[2] in (tokens, run.case.key.size(1)):
            z = x[..., 0]
        elif x.dim() == 2 and x.shape[0] == items * tokens:
            z = x.view(items, tokens, -1)[:, 0]
        else:
            continue
        z = z - z.mean(0)
        if not any(z.shape == old.shape and torch.allclose(z, old) for old in found) and bool(z.abs().max() > 0):
            found.append(z)
    return found[:12]


def _unused(patient: Patient, case: Case) -> set[str]:
    """Names of the parameters that the output does not hang on, as far as autograd sees."""
    target = patient.target
    names = [n for n, t in target.tensors.items() if t.requires_grad and t.is_leaf]
    if not names:
        return set()
    with torch.enable_grad():
        try:
            # The input's gradient is asked for, too: without it, PyTorch 2.13 ends the process by a segmentation fault
            # in the backward pass of a GroupNorm whose input is stored channels last.
            asking: dict[int, Tensor] = {}
            for x in (case.query, case.key, case.value):
                asking.setdefault(id(x), x.clone().requires_grad_())
            query, key, value = (asking[id(x)] for x in (case.query, case.key, case.value))
            output = target(query, key, value, allowed=case.allowed)
            leaves = [*(target.tensors[n] for n in names), *asking.values()]
            given = torch.autograd.grad(output.square().sum(), leaves, allow_unused=True)
        except Exception:
            return set()
    return {name for name, grad in zip(names, given, strict=False) if grad is None}
