"""Of which rows of which parameters queries, keys and values are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unmasked_doctor._judge.names import declared_heads, role_of
from unmasked_doctor._listen.calls import ROLES
from unmasked_doctor._listen.view import Run, View
from unmasked_doctor._subject import gradients

__all__ = ["Made"]

_EXACT, _EXACT_ROUGH = 1e-9, 1e-3  # of two directions, by how much their cosine may miss one


class _Block(NamedTuple):
    """Rows that features may be made of.

    Attributes:
        name: The parameter's; "" for what a layer took, of which each feature is a row.
        flipped: Whether it is a layer's, and turned against what that multiplies by.
        matrix: (rows, in).
        first: The number of its first row.
    """

    name: str
    flipped: bool
    matrix: Tensor
    first: int


class Made:
    """Of which rows of which parameters each feature of queries, keys and values is made, at the first place.

    Attributes:
        view, same, call: What is looked at, in a run whose tokens are all the same.
        heads: The number of heads that the module declares.
        ids: By role: (heads, features), the number of the row, negative where none fits.
        ratio: By role: by what the row's product was multiplied.
        affine: By role: whether it is an affine map of what layers took.
    """

    def __init__(self, view: View, same: Run):
        self.view, self.same, self.call = view, same, same.call
        self.heads = view.subject.num_heads or declared_heads(view.target)
        inputs = _inputs(same)
        self.blocks = self._blocks({z.size(-1) for z in inputs})
        products = [(z @ block.matrix.mT, block.first) for z in inputs for block in self.blocks
                    if block.matrix.size(1) == z.size(-1)]  # fmt: skip
        joined = torch.cat(inputs, -1) if inputs else None
        self.ids: dict[str, Tensor] = {}
        self.ratio: dict[str, Tensor] = {}
        self.affine: dict[str, bool] = {}
        for role in ROLES:
            x = getattr(self.call, role)[:, :, 0]
            heads, dim = x.shape[1:]
            x = (x - x.mean(0)).flatten(1)  # items, heads * features
            self.ids[role], self.ratio[role] = (result.view(heads, dim) for result in self._fitted(x, products))
            self.affine[role] = self.full(role)
            if not self.affine[role] and joined is not None and joined.size(1) < x.size(0):
                solved = torch.linalg.pinv(joined, rtol=1e-10) @ x
                self.affine[role] = view.near(joined @ solved, x, 10 * x.abs().max().item())

    def _blocks(self, widths: set[int]) -> list[_Block]:
        """All that may have made features, for inputs of these widths."""
        blocks: list[_Block] = []
        total = 0
        layers = nn.Linear | nn.Conv1d | nn.Conv2d
        for name, tensor in self.view.target.tensors.items():
            fixed = isinstance(self.view.target.owners[name], layers)
            for turned, matrix in _unfolded(tensor.detach().to("cpu"), widths):
                blocks.append(_Block(name, turned and fixed, matrix, total))
                total += matrix.size(0)
        for width in sorted(widths):
            if width <= 256:
                blocks.append(_Block("", False, torch.eye(width, dtype=self.call.query.dtype), total))
                total += width
        return blocks

    def _fitted(self, x: Tensor, products: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        """For each feature the number of the row that makes it, and by what its product is multiplied."""
        limit = _EXACT_ROUGH if self.view.subject.rough else _EXACT
        ids, ratio = torch.full(x.shape[1:], -1), torch.full(x.shape[1:], math.nan, dtype=x.dtype)
        size = x.norm(dim=0)
        for product, first in products:
            norm = product.norm(dim=0).clamp(min=1e-30)
            fit = (x / size.clamp(min=1e-30)).mT @ (product / norm)
            best, row = fit.abs().max(-1)
            hit = (1 - best < limit) & (ids < 0)
            sign = fit.gather(1, row[:, None])[:, 0].sign()
            ids = torch.where(hit, row + first, ids)
            ratio = torch.where(hit, sign * size / norm[row], ratio)
        return ids, ratio

    @cached_property
    def gradients(self) -> Mapping[str, Tensor | None]:
        """Of each parameter, as far as autograd sees."""
        try:
            return gradients(self.view.subject)
        except Exception:  # which is asked about elsewhere
            return {}

    @property
    def unused(self) -> set[str]:
        """Names of the parameters that the output does not hang on."""
        return {name for name, grad in self.gradients.items() if grad is None}

    def left(self, role: str) -> bool:
        """Whether what should make it is never used: a parameter of its own, or rows of one that makes others too."""
        packed = (
            grad for name in self.names(role) if (grad := self.gradients.get(name)) is not None and grad.dim() == 2
        )
        idle = any(bool((grad == 0).all(axis).any()) for grad in packed for axis in (0, 1))
        return idle or any(role_of(name) == role for name in self.unused)

    @property
    def flipped(self) -> str | None:
        """A square matrix of a layer that was multiplied without being transposed."""
        blocks = (self.block(row) for role in ROLES for row in sorted(self.rows(role)))
        return next((b.name for b in blocks if b.flipped and b.matrix.size(0) == b.matrix.size(1)), None)

    def block(self, row: int) -> _Block:
        return next(block for block in reversed(self.blocks) if block.first <= row)

    def rows(self, role: str) -> set[int]:
        """The numbers of all rows of this role."""
        return {int(i) for i in self.ids[role].flatten() if i >= 0}

    def names(self, role: str) -> set[str]:
        """The parameters that a role is made of; "" for what a layer took."""
        return {self.block(row).name for row in self.rows(role)}

    def full(self, role: str) -> bool:
        """Whether every feature has a row."""
        return bool((self.ids[role] >= 0).all())

    def named(self, role: str) -> set[str]:
        """What the names of the parameters say that the features of this role are."""
        return {role_of(name) for name in self.names(role)} if self.full(role) else set()

    def groups(self, role: str) -> list[frozenset[int]]:
        """Each head's rows."""
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
        own, sizes = self.view.target.untouched, {}
        for role in ROLES:
            rows = []
            for name in self.names(role) & own.keys():
                block = next(block for block in self.blocks if block.name == name)
                for _, matrix in _unfolded(own[name].detach().to("cpu", torch.float64), {block.matrix.size(1)}):
                    held = (self.ids[role].flatten() - block.first).unique()
                    rows.append(matrix[held[(held >= 0) & (held < matrix.size(0))]].square().mean())
            if rows:
                sizes[role] = torch.stack(rows).mean().sqrt().item()
        return len(sizes) == 3 and sizes["query"] * sizes["key"] < 0.8 * sizes["value"] ** 2

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
    matrices = []
    for axis in range(squeezed.dim() - 1, -1, -1):
        if squeezed.size(axis) in widths:
            matrices.append((axis != squeezed.dim() - 1, squeezed.movedim(axis, -1).reshape(-1, squeezed.size(axis))))
    return matrices


def _inputs(run: Run) -> list[Tensor]:
    """What layers took before the first score, at the first place, less its mean: (batch, features), each once."""
    items, tokens = run.case.query.shape[:2]
    first = min(call.first for call in run.calls)
    used = {i for call in run.calls for i in call.used}
    inputs: list[Tensor] = []
    asked = [run.case.query, run.case.key, run.case.value]
    taken = [e.inputs[0] for i, e in enumerate(run.events[:first]) if i not in used and e.kind != "softmax"]
    for x in [*asked, *taken]:
        z = _at_first(x, items, {tokens, run.case.key.size(1)})
        if z is None:
            continue
        z = z - z.mean(0)
        if not any(z.shape == old.shape and torch.allclose(z, old) for old in inputs) and bool(z.abs().max() > 0):
            inputs.append(z)
    return inputs[:12]


def _at_first(x: Tensor, items: int, tokens: set[int]) -> Tensor | None:
    """What a layer took of the first token of each item, whatever the order of its axes."""
    if x.dim() == 3 and x.size(0) % items == 0 and x.size(1) in tokens:
        return x.view(items, -1, *x.shape[1:])[:, 0, 0]
    if x.dim() == 3 and x.size(0) == items and x.size(2) in tokens:
        return x[..., 0]
    count = next((n for n in tokens if x.dim() == 2 and x.size(0) == items * n), None)
    if count is None:
        return None
    by_item, by_token = x.view(items, count, -1)[:, :2], x.view(count, items, -1)[:2]
    if torch.allclose(by_token[0], by_token[1]) and not torch.allclose(by_item[:, 0], by_item[:, 1]):
        return by_token[0]
    return by_item[:, 0]
