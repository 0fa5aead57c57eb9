"""How fast is the library? Ratios measured in one run; run by hand: ``python tests/benchmarks/attention.py``.

The limit is what no layer can do without: a bare projection to query, key and value, one fused attention on tensors
that are projected already, and a bare output projection. Every round times every contender once, and a ratio is the
median over the rounds, so that a noisy machine disturbs all of them alike.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import unmasked
from unmasked import parallel

Contender = Callable[[], tuple[Tensor, ...]]

# What is aimed at: (contender, against, tokens) -> the most, forward and
# forward + backward; None where nothing is aimed at. Width 768, 12 heads, causal, float32, one thread.
AIMS = {
    ("MultiheadAttention", "limit", 1024): (1.08, 1.08),
    ("MultiheadAttention", "limit", 4096): (1.15, 1.15),
    ("CausalSelfAttention", "limit", 1024): (1.03, 1.05),
    ("CausalSelfAttention", "limit", 4096): (1.15, 1.15),
    ("CausalSelfAttention, RoPE in halves", "CausalSelfAttention", 1024): (1.15, 1.15),
    ("CausalSelfAttention, RoPE in halves", "CausalSelfAttention", 4096): (1.15, 1.15),
    ("CausalSelfAttention, RoPE interleaved", "CausalSelfAttention", 1024): (1.15, 1.15),
    ("CausalSelfAttention, RoPE interleaved", "CausalSelfAttention", 4096): (1.15, 1.15),
    ("MultiheadAttention, hint and mask", "limit", 1024): (1.08, None),
    ("MultiheadAttention, causal mask", "nn.MultiheadAttention, causal mask", 1024): (1.0, 1.0),
    ("MultiheadAttention, need_weights", "nn.MultiheadAttention, need_weights", 1024): (1.0, None),
    ("MultiheadAttention, need_weights, sparse mask", "nn.MultiheadAttention, need_weights, sparse mask", 1024): (
        1.0,
        None,
    ),
}


class HandWritten(nn.Module):
    """What a user would write instead: one projection, a view, PyTorch's fused attention."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.out_proj = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, embed_dim = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(context.transpose(1, 2).reshape(batch, tokens, embed_dim))


def contenders(batch: int, tokens: int, embed_dim: int, num_heads: int) -> tuple[dict[str, Contender], list[Tensor]]:
    """The contenders, and the tensors whose gradients a backward pass makes."""
    x, context = (torch.randn(batch, tokens, embed_dim, requires_grad=True) for _ in range(2))
    q, k, v = (torch.randn(batch, num_heads, tokens, embed_dim // num_heads, requires_grad=True) for _ in range(3))
    w_in, w_out = (torch.randn(n * embed_dim, embed_dim, requires_grad=True) for n in (3, 1))
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    sparse = (torch.rand(tokens, tokens) < 0.3).fill_diagonal_(False)  # no kernel's own, and no row of it sees nothing
    theirs = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
    ours = unmasked.layouts.from_torch(theirs)
    layer = unmasked.CausalSelfAttention(embed_dim, embed_dim, num_heads, qkv_bias=True)
    turning = {
        pairing: unmasked.CausalSelfAttention(
            embed_dim,
            embed_dim,
            num_heads,
            qkv_bias=True,
            rotary=unmasked.positions.Rotary(embed_dim // num_heads, pairing=pairing),
        )
        for pairing in ("halves", "interleaved")
    }
    by_hand = HandWritten(embed_dim, num_heads)

    def limit() -> tuple[Tensor, ...]:
        return (
            F.linear(x, w_in),
            F.scaled_dot_product_attention(q, k, v, is_causal=True),
            F.linear(context, w_out),
        )

    def run(module: nn.MultiheadAttention, **options: object) -> Contender:
        return lambda: (module(x, x, x, **options)[0],)

    calls = {
        "limit": limit,
        "MultiheadAttention": run(ours, need_weights=False, is_causal=True),
        "CausalSelfAttention": lambda: (layer(x),),
        "CausalSelfAttention, RoPE in halves": lambda: (turning["halves"](x),),
        "CausalSelfAttention, RoPE interleaved": lambda: (turning["interleaved"](x),),
        "written by hand on SDPA": lambda: (by_hand(x),),
        "MultiheadAttention, causal mask": run(ours, need_weights=False, attn_mask=future),
        "MultiheadAttention, hint and mask": run(ours, need_weights=False, attn_mask=future, is_causal=True),
        "nn.MultiheadAttention, hint and mask": run(theirs, need_weights=False, attn_mask=future, is_causal=True),
        "nn.MultiheadAttention, causal mask": run(theirs, need_weights=False, attn_mask=future),
        "eager": run(ours, need_weights=True, is_causal=True),
        "MultiheadAttention, need_weights": run(ours, need_weights=True, attn_mask=future),
        "nn.MultiheadAttention, need_weights": run(theirs, need_weights=True, attn_mask=future),
        "MultiheadAttention, need_weights, sparse mask": run(ours, need_weights=True, attn_mask=sparse),
        "nn.MultiheadAttention, need_weights, sparse mask": run(theirs, need_weights=True, attn_mask=sparse),
    }
    parameters = [p for module in (theirs, ours, layer, *turning.values(), by_hand) for p in module.parameters()]
    return calls, [x, context, q, k, v, w_in, w_out, *parameters]


def medians(
    calls: dict[str, Contender], leaves: list[Tensor], rounds: int, backward: bool
) -> dict[str, dict[str, float]]:
    """Time every contender once a round; return the median over the rounds of each one's ratio to each other one."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    cotangents = {name: [torch.randn_like(output) for output in call()] for name, call in calls.items()}  # warms up
    for _ in range(rounds):
        for name, call in calls.items():
            with torch.set_grad_enabled(backward):
                start = time.perf_counter()
                outputs = call()
                if backward:
                    torch.autograd.backward(outputs, cotangents[name])
                seconds[name].append(time.perf_counter() - start)
            for leaf in leaves:
                leaf.grad = None
    return {
        name: {other: statistics.median(a / b for a, b in zip(times, seconds[other], strict=True)) for other in calls}
        for name, times in seconds.items()
    }


STORED, CHUNK = 1000, 125  # tokens that a step finds in the cache; tokens of a part of a prefill
DECODE_AIMS = {  # batch -> the most over the limit; a lone sequence pays for Python, which no batch shares
    8: 1.10,
    1: None,
}


def decoding(batch: int, width: int = 512, num_heads: int = 8) -> dict[str, Contender]:
    """A step with 1,000 tokens in the cache, and what it cannot do without: projections, and one call on the keys."""
    layer = unmasked.CausalSelfAttention(width, width, num_heads, qkv_bias=True)
    cache = unmasked.KVCache(batch, num_heads, 2 * STORED, width // num_heads)
    layer(torch.randn(batch, STORED, width), cache=cache)
    x, context = torch.randn(batch, 1, width), torch.randn(batch, 1, width)
    query = torch.randn(batch, num_heads, 1, width // num_heads)
    key, value = torch.randn(2, batch, num_heads, STORED + 1, width // num_heads).unbind()
    grown = [each.clone() for each in cache.peek(key[:, :, :0], value[:, :, :0])]

    def limit() -> tuple[Tensor, ...]:
        return layer.qkv(x), F.scaled_dot_product_attention(query, key, value), layer.out_proj(context)

    def step() -> tuple[Tensor, ...]:
        output = layer(x, cache=cache)
        cache.crop(STORED)
        return (output,)

    def concatenated() -> tuple[Tensor, ...]:
        q, k, v = layer.qkv(x).view(batch, 1, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
        k, v = torch.cat([grown[0], k], dim=2), torch.cat([grown[1], v], dim=2)
        context = F.scaled_dot_product_attention(q, k, v)
        return (layer.out_proj(context.transpose(1, 2).reshape(batch, 1, width)),)

    return {"limit": limit, "KVCache": step, "torch.cat": concatenated}


def prefilling(tokens: int, width: int = 512, num_heads: int = 8) -> dict[str, Contender]:
    """A prefill in chunks, and its limit: the projections of each, and one call on the keys so far."""
    layer = unmasked.CausalSelfAttention(width, width, num_heads, qkv_bias=True)
    cache = unmasked.KVCache(1, num_heads, tokens, width // num_heads)
    x = torch.randn(1, tokens, width)
    query, key, value = torch.randn(3, 1, num_heads, tokens, width // num_heads).unbind()

    def limit() -> tuple[Tensor, ...]:
        for end in range(CHUNK, tokens + 1, CHUNK):
            part = x[:, end - CHUNK : end]
            mask = unmasked.masks.causal(CHUNK, end)
            F.scaled_dot_product_attention(query[:, :, end - CHUNK : end], key[:, :, :end], value[:, :, :end], mask)
            output = layer.out_proj(layer.qkv(part)[..., :width])
        return (output,)

    def chunks() -> tuple[Tensor, ...]:
        cache.crop(0)
        for part in x.split(CHUNK, dim=1):
            output = layer(part, cache=cache)
        return (output,)

    return {"limit": limit, "in chunks": chunks, "at once": lambda: (layer(x),)}


def report_caches(rounds: int) -> None:
    """Time steps and prefills with a cache."""
    print(f"\nwith a cache: a step after {STORED} tokens, 8 heads of 64, time over the limit's")
    for batch, aim in DECODE_AIMS.items():
        with torch.no_grad():
            calls = decoding(batch)
            ratios = medians(calls, [], 40 * rounds, backward=False)
        told = "" if aim is None else f" (aim: at most {aim})"
        print(f"  batch {batch}: KVCache {ratios['KVCache']['limit']:.3f}{told}", end="")
        print(f", torch.cat {ratios['torch.cat']['limit']:.2f}")
    print(f"a prefill in chunks of {CHUNK}, batch 1: time over the limit (must not grow), and over one without chunks")
    for tokens in (STORED, 2 * STORED, 4 * STORED):
        with torch.no_grad():
            ratios = medians(prefilling(tokens), [], rounds, backward=False)
        print(f"  {tokens} tokens: {ratios['in chunks']['limit']:.2f}, {ratios['in chunks']['at once']:.2f}")


WATCH_AIM = 2.5  # a forward pass that is watched, over one that is not; once left, watching costs nothing


def watching(width: int, tokens: int) -> dict[str, Contender]:
    """A stack of PyTorch's layers and one of ours, watched and not: in training mode, where no fast path is left."""
    theirs = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True), 4)
    ours = nn.Sequential(*(unmasked.CausalSelfAttention(width, width, 4) for _ in range(4)))
    x = torch.randn(1, tokens, width)

    def watched(model: nn.Module, weights: bool) -> Contender:
        def run() -> tuple[Tensor, ...]:
            with unmasked.watch(model) as seen:
                output = model(x)
            if weights:
                assert all(call.weights.size(-1) == tokens for call in seen)
            return (output,)

        return run

    calls: dict[str, Contender] = {}
    for name, model in (("nn.TransformerEncoder", theirs), ("CausalSelfAttention", ours)):
        calls[name] = lambda model=model: (model(x),)
        calls[f"{name}, watched"] = watched(model, weights=False)
        calls[f"{name}, watched, all weights read"] = watched(model, weights=True)
        calls[f"{name}, afterwards"] = calls[name]
    return calls


def report_watching(rounds: int) -> None:
    """Time forward passes that are watched."""
    print(
        f"\nfour layers, watched: time over that of the same pass, unwatched (aim: at most {WATCH_AIM}, afterwards 1)"
    )
    for width, tokens in ((64, 32), (256, 128), (512, 512)):
        with torch.no_grad():
            ratios = medians(watching(width, tokens), [], 4 * rounds, backward=False)
        for name, each in ratios.items():
            if "," in name:
                print(f"  width {width}, {tokens} tokens: {name:45s}{each[name.split(',')[0]]:6.2f}")


RING_AIM = 1.25  # CPU time of all ranks together, over that of the whole on one core
LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")


def one_rank(tokens: int, rounds: int, is_causal: bool, backward: bool) -> tuple[float, int, int]:
    """Time this rank's part of a ring against the whole, each on one core; count what it sends, and what all sent."""
    sizes = (1, 8, tokens, 64)
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(sizes, generator=generator, requires_grad=backward) for _ in range(3)]
    cotangent = torch.randn(sizes, generator=generator)
    mine = parallel.positions_of_rank(tokens, rank=dist.get_rank(), ranks=dist.get_world_size())
    part = [x.detach()[:, :, mine].requires_grad_(backward) for x in whole]

    def run(attend: Callable[..., Tensor], given: list[Tensor], gradient: Tensor) -> float:
        dist.barrier()
        start = time.process_time()
        output = attend(*given, is_causal=is_causal)
        if backward:
            torch.autograd.grad(output, given, gradient)
        return time.process_time() - start

    ratios, carried = [], 0
    for _ in range(rounds + 1):  # the first warms up
        alone = run(F.scaled_dot_product_attention, whole, cotangent)
        before = int(LOOPBACK.read_text()) if LOOPBACK.exists() else 0
        with parallel.counted() as sent:
            shared = run(parallel.ring_attention, part, cotangent[:, :, mine])
        dist.barrier()
        carried = int(LOOPBACK.read_text()) - before if LOOPBACK.exists() else 0
        ratios.append(shared / alone)
    return statistics.median(ratios[1:]), sent.to_next, carried


def report_rings(rounds: int) -> None:
    """Compare two ranks, one core each, with the whole on one core."""
    print(
        "\na ring of two processes of one core each, 8 heads of 64: CPU time of both over that of the whole on one core"
    )
    for tokens in (2048, 4096):
        for is_causal in (False, True):
            for backward in (False, True):
                ranks = parallel.together(one_rank, tokens, rounds, is_causal, backward, ranks=2, timeout=300.0)
                ratio = sum(each[0] for each in ranks)
                formula = parallel.ring_bytes(1, 8, tokens, 64, ranks=2, backward=backward)
                assert all(sent == formula for _, sent, _ in ranks)
                what = f"{'causal' if is_causal else 'no mask'}, {'forward + backward' if backward else 'forward'}"
                print(f"  {tokens} tokens, {what:27s} {ratio:.3f} (aim: at most {RING_AIM})", end="")
                told = (
                    "" if not ranks[0][2] else f"; the loopback carried {ranks[0][2] / 2 / formula:.3f} times as much"
                )
                print(f", bytes a rank sends: {formula:,}, as its formula says{told}")


TILES_AIM = 7.0  # readable tiles over the fused kernel, at these sizes: what was measured, with some room


def tiling(tokens: int, is_causal: bool) -> dict[str, Contender]:
    """Attention by tiles, by the fused kernel, and with the whole matrix."""
    q, k, v = torch.randn(3, 1, 4, tokens, 64)

    def run(implementation: str) -> Contender:
        return lambda: (
            unmasked.scaled_dot_product_attention(q, k, v, is_causal=is_causal, implementation=implementation).context,
        )

    return {
        "fused": run("fused"),
        "eager": run("eager"),
        **{
            f"tiles of {tile}": lambda tile=tile: unmasked.tiles.attention(q, k, v, is_causal=is_causal, tile=tile)
            for tile in (16, 64, 256)
        },
    }


def report_tiles(rounds: int) -> None:
    """Time attention by tiles."""
    print(f"\ntiles, 4 heads of 64: time over the fused kernel's (aim, tiles of 64: at most {TILES_AIM})")
    for tokens in (1024, 4096):
        for is_causal in (False, True):
            with torch.no_grad():
                ratios = medians(tiling(tokens, is_causal), [], rounds, backward=False)
            told = ", ".join(f"{name} {ratios[name]['fused']:.2f}" for name in ratios if name != "fused")
            print(f"  {tokens} tokens{', causal' if is_causal else ''}: {told}")


IMPORT = """
import time, torch
start = time.perf_counter()
import unmasked
alone = time.perf_counter() - start
start = time.perf_counter()
[getattr(unmasked, name) for name in unmasked.__all__]
print(alone, time.perf_counter() - start)
"""


def report_imports(rounds: int) -> None:
    """Time `import unmasked`, and what it leaves for later, in interpreters of their own that have imported torch."""
    runs = [
        [float(seconds) for seconds in subprocess.run(
            [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True
        ).stdout.split()]
        for _ in range(rounds)
    ]  # fmt: skip
    alone, later = (statistics.median(each) for each in zip(*runs, strict=True))
    print(f"\nimport unmasked, over the import of all that it has: {alone / (alone + later):.2f}")


MEMORY = """
import torch, unmasked
def status(field):  # MiB
    return int(next(line for line in open("/proc/self/status") if line.startswith(field)).split()[1]) / 1024
torch.set_num_threads(1)
q, k, v = (torch.randn(1, 4, {tokens}, 64) for _ in range(3))
def run(q, k, v):
    if "{implementation}" == "tiles":
        return unmasked.tiles.attention(q, k, v, is_causal=True)
    return unmasked.scaled_dot_product_attention(q, k, v, is_causal=True, implementation="{implementation}")
run(*(x[..., :64, :] for x in (q, k, v)))
open("/proc/self/clear_refs", "w").write("5")  # the peak is now what is in use now
before = status("VmRSS")
run(q, k, v)
print(status("VmHWM") - before)
"""


def extra_memory(tokens: int, implementation: str) -> float:
    """Peak memory in MiB that one call adds, in an interpreter of its own. Linux only."""
    code = MEMORY.format(tokens=tokens, implementation=implementation)
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, one thread, float32, embed_dim 768, 12 heads, causal, {options.rounds} rounds")
    for tokens in options.tokens:
        batch = max(1, 4096 // tokens)
        calls, leaves = contenders(batch, tokens, 768, 12)
        if tokens > 2048:  # the eager ones hold every score: minutes and gigabytes, to learn nothing new
            calls = {name: call for name, call in calls.items() if "need_weights" not in name and name != "eager"}
        for backward in (False, True):
            ratios = medians(calls, leaves, options.rounds, backward)
            passes = "forward + backward" if backward else "forward"
            print(f"\nbatch {batch}, {tokens} tokens, {passes}: time over the limit's")
            for name in calls:
                print(f"  {name:52s}{ratios[name]['limit']:6.2f}")
            for (name, other, size), (forward, both) in AIMS.items():
                aim = both if backward else forward
                if size == tokens and name in calls and aim is not None:
                    print(f"  {name} / {other}: {ratios[name][other]:.3f} (aim: at most {aim})")
    report_imports(options.rounds)
    report_caches(options.rounds)
    report_watching(options.rounds)
    report_rings(options.rounds)
    report_tiles(options.rounds)
    if not sys.platform.startswith("linux"):
        print("\nextra memory: measured on Linux alone, which tells a process's peak and lets it be reset")
        return
    print("\nextra memory of one call, batch 1, 4 heads, head_dim 64, MiB (aim at 8192 tokens, fused: under 32)")
    for tokens in (2048, 4096, 8192):
        fused, tiles, eager = (extra_memory(tokens, implementation) for implementation in ("fused", "tiles", "eager"))
        print(f"  {tokens} tokens: fused {fused:.1f}, tiles of 64 {tiles:.1f}, eager {eager:.1f}")


if __name__ == "__main__":
    main()
