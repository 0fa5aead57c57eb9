"""A ring of ranks: what goes around in it, who sees what of it, and the derivative."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from unmasked import masks
from unmasked._ranks import agree, lost, tally
from unmasked.tiles import attention, merge

__all__ = ["Layout", "Ring", "RingAttention", "gradient_type"]

Layout = Literal["zigzag", "striped", "contiguous"]


@dataclass(frozen=True)
class Ring:
    """The ranks in a circle, each of which sends to the next one."""

    group: dist.ProcessGroup | None
    rank: int
    ranks: int
    causal_layout: Layout | None
    scale: float

    def pass_on(self, sent: Tensor) -> _Passing:
        received = torch.empty_like(sent)
        after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        with lost("ring_attention", f"rank {before} or {after}", self.group):
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, sent, group=self.group, group_peer=after),
                    dist.P2POp(dist.irecv, received, group=self.group, group_peer=before),
                ]
            )
        tally(to_next=sent.nbytes)
        return _Passing(self, sent, received, works)

    def seen(self, owner: int, queries: int, keys: int) -> tuple[slice, slice, bool] | None:
        """Say which of this rank's queries see which of an owner's keys, and whether only those before them."""
        everything = slice(None)
        if self.causal_layout is None:
            return everything, everything, False
        if owner == self.rank:  # each layout keeps the order of the tokens
            return everything, everything, True
        if self.causal_layout == "contiguous":
            return (everything, everything, False) if owner < self.rank else None
        if self.causal_layout == "striped":  # of two tokens dealt out together, the earlier rank has the earlier one
            if owner < self.rank:
                return everything, everything, True
            return (slice(1, None), slice(keys - 1), True) if keys > 1 else None
        half = keys // 2  # zigzag: the earlier rank has the earlier beginning, and the later end
        return (everything, slice(half), False) if owner < self.rank else (slice(half, None), everything, False)


@dataclass(frozen=True)
class _Passing:
    ring: Ring
    sent: Tensor  # kept until it has arrived
    received: Tensor
    works: list[dist.Work]

    def wait(self) -> Tensor:
        before, after = (self.ring.rank - 1) % self.ring.ranks, (self.ring.rank + 1) % self.ring.ranks
        with lost("ring_attention", f"rank {before} or {after}", self.ring.group):
            for work in self.works:
                work.wait()
        return self.received


def gradient_type(dtype: torch.dtype) -> torch.dtype:
    """In which type gradients of several ranks are added up: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def _packed(*tensors: Tensor) -> Tensor:
    return torch.cat([x.flatten() for x in tensors])


def _unpacked(packed: Tensor, *like: Tensor) -> tuple[Tensor, ...]:
    parts = packed.split([x.numel() for x in like])
    return tuple(part.view(x.shape) for part, x in zip(parts, like, strict=True))


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, ring: Ring) -> Tensor:
        query, exact = _dense(query), gradient_type(query.dtype)
        for step, held in enumerate(_around(ring, key, value)):
            seen = ring.seen((ring.rank - step) % ring.ranks, query.size(2), key.size(2))
            if seen is None:
                continue
            rows, columns, causal = seen
            k, v = (x[:, :, columns] for x in held)
            part = _attend(query[:, :, rows], k, v, causal, ring.scale)
            if step == 0:  # every query sees a key of its own rank
                context, logsumexp = part[0].to(exact), part[1]
                continue
            merged = merge([(context[:, :, rows], logsumexp[:, :, rows]), (part[0].to(exact), part[1])])
            context[:, :, rows], logsumexp[:, :, rows] = merged
        context = context.to(query.dtype)
        ctx.save_for_backward(query, key, value, context, logsumexp)
        ctx.ring = ring
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, context, logsumexp = ctx.saved_tensors
        ring: Ring = ctx.ring
        agree("ring_attention's backward pass", ring.group, gradient=gradient)
        exact = gradient_type(query.dtype)
        grad_query = torch.zeros_like(query, dtype=exact)
        own, arriving = query.new_zeros(0), None
        for step, held in enumerate(_around(ring, key, value)):
            grad_held = [torch.zeros_like(x, dtype=exact) for x in held]
            seen = ring.seen((ring.rank - step) % ring.ranks, query.size(2), key.size(2))
            if seen is not None:
                rows, columns, causal = seen
                q, o, g, lse = (x[:, :, rows] for x in (query, context, gradient, logsumexp))
                k, v = (x[:, :, columns] for x in held)
                dq, dk, dv = _attend_backward(g, q, k, v, o, lse, causal, ring.scale)
                grad_query[:, :, rows] += dq
                grad_held[0][:, :, columns] += dk
                grad_held[1][:, :, columns] += dv
            if step == 0:  # what is found at home stays there
                own = _packed(*grad_held)
                continue
            travelling = _packed(*grad_held)
            if arriving is not None:  # what the ranks before have found in the same keys and values
                travelling += arriving.wait()
            arriving = ring.pass_on(travelling)
        if arriving is not None:  # the last rank that they visit is the one before their own
            own = own + arriving.wait()
        grad_key, grad_value = (x.to(query.dtype) for x in _unpacked(own, key, value))
        return grad_query.to(query.dtype), grad_key, grad_value, None


def _around(ring: Ring, key: Tensor, value: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the keys and values that this rank holds at each step; the next ones come while they are computed with."""
    held = _packed(key, value)
    for step in range(ring.ranks):
        passing = ring.pass_on(held) if step < ring.ranks - 1 else None
        yield _unpacked(held, key, value)
        if passing is not None:
            held = passing.wait()


def _dense(x: Tensor) -> Tensor:
    """Lay the features side by side: the kernel takes them to be, and would read others."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _runs_fused(query: Tensor, value: Tensor) -> bool:
    return query.device.type == "cpu" and query.size(-1) == value.size(-1)


def _attend(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Attend to the keys at hand; return the contexts and the log-sum-exp of each query's scores."""
    if _runs_fused(query, value):  # the operator below F.scaled_dot_product_attention, which hides the log-sum-exp
        fused: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, scale=scale
        )
        return fused
    return attention(query, key, value, is_causal=causal, scale=scale)


def _attend_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Tensor,
    logsumexp: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients that come through the keys at hand, of a softmax over more keys than these.

    The weights are those of the whole softmax, because logsumexp is that of the whole row; and so is the sum that each
    row of the scores' gradients takes off, because context is the whole one.
    """
    if _runs_fused(query, value):
        fused: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, key, value, context, logsumexp, 0.0, causal, scale=scale
        )
        return fused
    # batch kv_heads group tokens features
    g, o, q = (x.to(logsumexp.dtype).unflatten(1, (key.size(1), -1)) for x in (gradient, context, query))
    k, v = (x.to(logsumexp.dtype).unsqueeze(2) for x in (key, value))
    weights = ((q * scale) @ k.mT - logsumexp.unflatten(1, (key.size(1), -1)).unsqueeze(-1)).exp()
    if causal:
        weights = weights.masked_fill(~masks.causal(*weights.shape[-2:], device=weights.device), 0.0)
    grad_scores = weights * (g @ v.mT - (g * o).sum(-1, keepdim=True)) * scale
    grad_key, grad_value = (x.sum(2) for x in (grad_scores.mT @ q, weights.mT @ g))  # of all heads that share them
    return (grad_scores @ k).flatten(1, 2), grad_key, grad_value
