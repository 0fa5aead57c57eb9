"""``python -m unmasked.parallel``: attention on several ranks, compared with attention on one."""

from __future__ import annotations

import argparse
import os
import sys
from typing import get_args

import torch
import torch.distributed as dist
from torch import Tensor

from unmasked.causal import CausalSelfAttention
from unmasked.functional import attend
from unmasked.parallel import (
    HeadParallel,
    count_bytes,
    head_bytes,
    launch,
    positions_of_rank,
    ring_attention,
    ring_bytes,
)
from unmasked.parallel.ranks import lost, process_group
from unmasked.parallel.ring import RingLayout

__all__ = ["demonstrate", "main"]


def demonstrate(tokens: int) -> list[tuple[str, float, float, int, int]]:
    """Compare heads in parallel, and a ring of each layout, with the same attention on one rank.

    Args:
        tokens: How many there are: a multiple of twice the ranks.

    Returns:
        For each way its name, the errors of the output and of the gradients as shares of their largest number, the
        bytes that a rank sent in the forward and the backward pass, and those by the formula.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    torch.manual_seed(0)
    layer = CausalSelfAttention(12 * ranks, 16 * ranks, num_heads=2 * ranks, num_kv_heads=ranks, device=device)
    x = torch.randn(2, tokens, layer.d_in, device=device, requires_grad=True)
    cotangent = torch.randn(2, tokens, layer.d_out, device=device)
    with count_bytes() as sent:
        output = HeadParallel(layer)(x)
        (gradient,) = torch.autograd.grad(output, x, cotangent)
    right = layer(x)
    rows = [  # a row of the table that `main` prints
        (
            "heads in parallel",
            _off(output, right),
            _off(gradient, torch.autograd.grad(right, x, cotangent)[0]),
            sent.reduced,
            head_bytes(2, tokens, layer.d_in, layer.d_out, backward=True),
        )
    ]
    q = torch.randn(2, 2 * ranks, tokens, 8, device=device, requires_grad=True)
    k, v = (torch.randn(2, ranks, tokens, 8, device=device, requires_grad=True) for _ in range(2))
    cotangent = torch.randn_like(q)
    right = attend(q, k, v, is_causal=True).context
    whole = torch.autograd.grad(right, (q, k, v), cotangent)
    for layout in get_args(RingLayout):
        mine = positions_of_rank(tokens, rank=rank, ranks=ranks, layout=layout, device=device)
        with count_bytes() as sent:
            output = ring_attention(*(each[:, :, mine] for each in (q, k, v)), is_causal=True, layout=layout)
            gradients = torch.autograd.grad(output, (q, k, v), cotangent[:, :, mine])
        off = max(_off(a[:, :, mine], b[:, :, mine]) for a, b in zip(gradients, whole, strict=True))
        expected = ring_bytes(2, ranks, tokens, 8, ranks=ranks, backward=True)
        rows.append((f"ring, {layout}", _off(output, right[:, :, mine]), off, sent.to_next, expected))
    return rows


def _off(x: Tensor, right: Tensor) -> float:
    """Return the largest difference on any rank, as a share of the largest right number on any rank."""
    largest = torch.stack([(x - right).abs().max(), right.abs().max()]).detach()
    with lost("the demonstration", "another rank", None):
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return (largest[0] / largest[1]).item()


def main() -> int:
    """Run the demonstration, print it as a table, and return 0 where everything agrees."""
    parser = argparse.ArgumentParser(
        prog="python -m unmasked.parallel",
        description="Compare heads in parallel and ring attention, causal, forward and backward, with the whole. "
        "Started by torchrun it runs on its processes, otherwise on two of its own.",
    )
    parser.add_argument("--tokens", type=int, default=48, help="a multiple of twice the ranks (default: 48)")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds to wait for another rank (default: 20)")
    options = parser.parse_args()
    rank = int(os.environ.get("RANK", 0))
    try:
        if "RANK" not in os.environ:
            rows = launch(demonstrate, options.tokens, ranks=2, timeout=options.timeout)[0]
        else:
            on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
            if on_gpus:
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            with process_group(options.timeout, backend="nccl" if on_gpus else "gloo"):
                rows = demonstrate(options.tokens)
    except (ImportError, RuntimeError, ValueError) as error:
        if rank == 0:
            print(f"unmasked.parallel: {error}", file=sys.stderr)
        return 1
    if rank:
        return 0
    header = ("", "output off by", "gradient off by", "bytes sent", "by the formula")
    print("{:20}{:>15}{:>17}{:>12}{:>16}".format(*header))
    for name, off, gradient_off, sent, formula in rows:
        print(f"{name:20}{off:15.0e}{gradient_off:17.0e}{sent:12,}{formula:16,}")
    return 0 if all(sent == formula and max(off, g) < 1e-6 for _, off, g, sent, formula in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
