"""How fast is the library? Ratios measured in one run; run by hand: ``python tests/benchmarks/attention.py``.

The limit is what no layer can do without: a bare projection to query, key and value, one fused attention on tensors
that are projected already, and a bare output projection. Every round times every contender once, and a ratio is the
median over the rounds, so that a noisy machine disturbs all of them alike.

``--device cuda`` measures on a GPU, in bfloat16, and writes all figures to tests/benchmarks/records, with the device,
PyTorch and the date; ``--record`` writes those of a CPU there, too.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import unmasked
from unmasked import parallel

Contender = Callable[[], tuple[Tensor, ...]]
ROOT = Path(__file__).parents[2]
RECORDS = Path(__file__).parent / "records"


class Aim(NamedTuple):
    """The most that a contender may take, over another one; None where nothing is aimed at."""

    forward: float | None = None
    both: float | None = None  # forward and backward
    memory: float | None = None  # what a forward pass adds


LIMIT, OURS, THEIRS = "limit", "MultiheadAttention", "nn.MultiheadAttention"
# (contender, against, tokens), with None for any number of tokens. Causal, float32, one thread.
CPU_AIMS = {
    (OURS, LIMIT, 1024): Aim(1.08, 1.08),
    (OURS, LIMIT, 4096): Aim(1.15, 1.15),
    ("CausalSelfAttention", LIMIT, 1024): Aim(1.03, 1.05),
    ("CausalSelfAttention", LIMIT, 4096): Aim(1.15, 1.15),
    ("CausalSelfAttention, RoPE in halves", "CausalSelfAttention", None): Aim(1.15, 1.15),
    ("CausalSelfAttention, RoPE interleaved", "CausalSelfAttention", None): Aim(1.15, 1.15),
    (f"{OURS}, hint and mask", LIMIT, 1024): Aim(1.06),
    (f"{OURS}, causal mask", f"{THEIRS}, causal mask", 1024): Aim(1.0, 1.0),
    (f"{OURS}, weights", f"{THEIRS}, weights", 1024): Aim(1.0),
    (f"{OURS}, weights, sparse mask", f"{THEIRS}, weights, sparse mask", 1024): Aim(1.0),
}
MASKED = ("hint and mask", "causal mask", "floating mask", "padding", "mask across")
GPU_AIMS = {  # bfloat16; scores in float32, which are twice as accurate as PyTorch's there, have their price
    **{(f"{OURS}, {case}", f"{THEIRS}, {case}", None): Aim(1.0, memory=1.1) for case in MASKED},
    (f"{OURS}, weights", f"{THEIRS}, weights", None): Aim(1.5, memory=2.1),
    (f"{OURS}, weights, sparse mask", f"{THEIRS}, weights, sparse mask", None): Aim(1.5, memory=2.1),
}


class Record:
    """The figures of a run: told as they are measured, and written with the machine that gave them."""

    def __init__(self, device: torch.device) -> None:
        on_cuda = device.type == "cuda"
        needs = re.search(r"torch>=([\d.]+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        assert needs
        self.machine = {
            "device": torch.cuda.get_device_name(device) if on_cuda else platform.processor() or platform.machine(),
            "torch": str(torch.__version__),
            "torch needed": needs[1],
            "python": platform.python_version(),
            "date": datetime.now(UTC).date().isoformat(),
            "commit": subprocess.run(
                ["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
            ).stdout.strip(),
        }
        self.figures: list[dict[str, Any]] = []
        print(", ".join(f"{name} {told}" for name, told in self.machine.items() if told))
        if [int(n) for n in torch.__version__.split(".")[:2]] < [int(n) for n in needs[1].split(".")]:
            print(f"The library needs PyTorch {needs[1]}: what follows is of a version that it makes no promise for.")

    def section(self, title: str) -> None:
        """Begin a section."""
        self._section = title
        print(f"\n{title}")

    def tell(self, what: str, figure: float, aim: float | None = None, unit: str = "") -> None:
        """Say a figure, and the most that it should be."""
        told = "" if aim is None else f"  (aim: at most {aim})"
        print(f"  {what:64s}{figure:10.3f} {unit}{told}", flush=True)
        self.figures.append({"section": self._section, "what": what, "figure": figure, "unit": unit, "aim": aim})

    def write(self) -> Path:
        """Write all of it, in place of what the same device and PyTorch gave before."""
        RECORDS.mkdir(exist_ok=True)
        name = re.sub(r"[^a-z0-9.]+", "-", f"{self.machine['device']} torch {self.machine['torch']}".lower())
        path = RECORDS / f"{name}.json"
        path.write_text(json.dumps(self.machine | {"figures": self.figures}, indent=1) + "\n", encoding="utf-8")
        return path


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
    memory = torch.randn(batch, tokens // 2, embed_dim)
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    sparse = (torch.rand(tokens, tokens) < 0.3).fill_diagonal_(False)  # no kernel's own, and no row of it sees nothing
    padded = torch.arange(tokens).expand(batch, -1) >= tokens - tokens // 4
    floating = torch.zeros(tokens, tokens).masked_fill(future, -torch.inf)
    plain = {"need_weights": False}
    cases: dict[str, tuple[Tensor, dict[str, Any]]] = {
        "causal mask": (x, plain | {"attn_mask": future}),
        "hint and mask": (x, plain | {"attn_mask": future, "is_causal": True}),
        "floating mask": (x, plain | {"attn_mask": floating}),
        "padding": (x, plain | {"key_padding_mask": padded}),
        "mask across": (memory, plain | {"attn_mask": sparse[:, : tokens // 2]}),
        "weights": (x, {"attn_mask": future}),
        "weights, sparse mask": (x, {"attn_mask": sparse}),
    }
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

    def run(module: nn.MultiheadAttention, source: Tensor, options: dict[str, Any]) -> Contender:
        return lambda: (module(x, source, source, **options)[0],)

    calls = {
        LIMIT: limit,
        OURS: run(ours, x, plain | {"is_causal": True}),
        "CausalSelfAttention": lambda: (layer(x),),
        "CausalSelfAttention, RoPE in halves": lambda: (turning["halves"](x),),
        "CausalSelfAttention, RoPE interleaved": lambda: (turning["interleaved"](x),),
        "written by hand on SDPA": lambda: (by_hand(x),),
        "eager": run(ours, x, {"is_causal": True}),
    }
    for case, (source, options) in cases.items():
        calls |= {f"{name}, {case}": run(module, source, options) for name, module in ((OURS, ours), (THEIRS, theirs))}
    parameters = [p for module in (theirs, ours, layer, *turning.values(), by_hand) for p in module.parameters()]
    return calls, [x, context, q, k, v, w_in, w_out, *parameters]


class Times:
    """The seconds of every contender, round by round."""

    def __init__(
        self, calls: dict[str, Contender], leaves: list[Tensor], rounds: int, *, backward: bool = False
    ) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in calls}
        with torch.set_grad_enabled(backward):
            cotangents = {name: [torch.randn_like(out) for out in call()] for name, call in calls.items()}  # warms up
        for _ in range(rounds):
            for name, call in calls.items():
                with torch.set_grad_enabled(backward):
                    wait()
                    start = time.perf_counter()
                    outputs = call()
                    if backward:
                        torch.autograd.backward(outputs, cotangents[name])
                    wait()
                    self.seconds[name].append(time.perf_counter() - start)
                for leaf in leaves:
                    leaf.grad = None

    def over(self, name: str, other: str) -> float:
        """The median over the rounds of one contender's time over another's."""
        return statistics.median(a / b for a, b in zip(self.seconds[name], self.seconds[other], strict=True))


def wait() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def peak(call: Contender) -> int:
    """The bytes that a forward pass adds on a GPU, its results included."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        call()
    return torch.cuda.max_memory_allocated() - before


SIZES = {"cpu": (768, 12, 4096), "cuda": (1024, 16, 8192)}  # width, heads, and tokens of all sequences together


def report_layers(record: Record, device: torch.device, lengths: list[int], rounds: int) -> None:
    """Compare the layers with the limit, with PyTorch's, and with what a user would write."""
    on_cuda = device.type == "cuda"
    (width, heads, together), aims = SIZES[device.type], GPU_AIMS if on_cuda else CPU_AIMS
    for tokens in lengths:
        batch = max(1, together // tokens)
        with device:
            calls, leaves = contenders(batch, tokens, width, heads)
        if tokens > 4096 or (tokens > 2048 and not on_cuda):  # eager ones hold every score: gigabytes, to learn no more
            calls = {name: call for name, call in calls.items() if "weights" not in name and name != "eager"}
        aimed = {pair: aim for pair, aim in aims.items() if pair[2] in (tokens, None) and pair[0] in calls}
        sizes = f"width {width}, {heads} heads, batch {batch}, {tokens} tokens"
        for backward in (False, True):
            record.section(f"{sizes}, {'forward and backward' if backward else 'forward'}: time over the limit's")
            times = Times(calls, leaves, rounds, backward=backward)
            for name in calls:
                record.tell(name, times.over(name, LIMIT))
            record.tell(LIMIT, 1e3 * statistics.median(times.seconds[LIMIT]), unit="ms")
            for (name, other, _), aim in aimed.items():
                if (most := aim.both if backward else aim.forward) is not None:
                    record.tell(f"{name} / {other}", times.over(name, other), most)
        if on_cuda:
            record.section(f"{sizes}: memory that a forward pass adds")
            bytes_of = {name: peak(call) for name, call in calls.items()}
            for name in calls:
                record.tell(name, bytes_of[name] / 2**20, unit="MiB")
            for (name, other, _), aim in aimed.items():
                if aim.memory is not None:
                    record.tell(f"{name} / {other}", bytes_of[name] / bytes_of[other], aim.memory)


SMALL_AIM = 1.25  # a layer of 64 features, where Python takes as long as the products, over the same by hand


def small(width: int = 64, heads: int = 4) -> dict[str, Contender]:
    """A layer so small that what it does on the host counts, and the same by hand."""
    layer, by_hand = unmasked.CausalSelfAttention(width, width, heads), HandWritten(width, heads)
    x = torch.randn(2, 16, width)
    return {
        "by hand": often(lambda: (by_hand(x),)),
        "CausalSelfAttention": often(lambda: (layer(x),)),
    }


def often(call: Contender, times: int = 50) -> Contender:
    """Call so often that the clock can tell."""

    def run() -> tuple[Tensor, ...]:
        for _ in range(times):
            outputs = call()
        return outputs

    return run


CHUNK = 125  # tokens of a part of a prefill
STEP_AIM = 1.2  # a step of a batch of 8, over the same by hand; a lone sequence pays for Python, which no batch shares


def decoding(batch: int, stored: int, width: int, num_heads: int) -> dict[str, Contender]:
    """A step after so many tokens; the same by hand; and what it cannot do without, projections and one call."""
    layer = unmasked.CausalSelfAttention(width, width, num_heads, qkv_bias=True)
    sizes = (batch, num_heads, stored + 1, width // num_heads)
    cache = layer.cache(batch, stored + 1)
    layer(torch.randn(batch, stored, width), cache=cache)
    x, context = torch.randn(batch, 1, width), torch.randn(batch, 1, width)
    query = torch.randn(batch, num_heads, 1, width // num_heads)
    keys, values = torch.randn(2, *sizes).unbind()

    def limit() -> tuple[Tensor, ...]:
        return layer.qkv(x), F.scaled_dot_product_attention(query, keys, values), layer.out_proj(context)

    def step() -> tuple[Tensor, ...]:
        output = layer(x, cache=cache)
        cache.crop(stored)
        return (output,)

    def by_hand(grown: bool) -> Contender:
        def run() -> tuple[Tensor, ...]:
            q, k, v = layer.qkv(x).view(batch, 1, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
            if grown:
                k, v = torch.cat([keys[:, :, :stored], k], dim=2), torch.cat([values[:, :, :stored], v], dim=2)
            else:
                keys[:, :, stored : stored + 1], values[:, :, stored : stored + 1] = k, v
                k, v = keys[:, :, : stored + 1], values[:, :, : stored + 1]
            context = F.scaled_dot_product_attention(q, k, v)
            return (layer.out_proj(context.transpose(1, 2).reshape(batch, 1, width)),)

        return run

    calls = {LIMIT: limit, "KVCache": step, "by hand": by_hand(grown=False), "torch.cat": by_hand(grown=True)}
    return {name: often(call, 10) for name, call in calls.items()}


def prefilling(tokens: int, width: int = 512, num_heads: int = 8) -> dict[str, Contender]:
    """A prefill in chunks, and its limit: the projections of each, and one call on the keys so far."""
    layer = unmasked.CausalSelfAttention(width, width, num_heads, qkv_bias=True)
    x = torch.randn(1, tokens, width)
    cache = layer.cache(1, tokens)
    query, key, value = torch.randn(3, 1, num_heads, tokens, width // num_heads).unbind()

    def limit() -> tuple[Tensor, ...]:
        for end in range(CHUNK, tokens + 1, CHUNK):
            part = x[:, end - CHUNK : end]
            mask = unmasked.masks.causal(CHUNK, end, device=x.device)
            F.scaled_dot_product_attention(query[:, :, end - CHUNK : end], key[:, :, :end], value[:, :, :end], mask)
            output = layer.out_proj(layer.qkv(part)[..., :width])
        return (output,)

    def chunks() -> tuple[Tensor, ...]:
        cache.crop(0)
        for part in x.split(CHUNK, dim=1):
            output = layer(part, cache=cache)
        return (output,)

    return {LIMIT: limit, "in chunks": chunks, "at once": lambda: (layer(x),)}


def report_caches(record: Record, device: torch.device, rounds: int) -> None:
    """Time steps and prefills with a cache."""
    width, heads = (2048, 16) if device.type == "cuda" else (512, 8)
    for batch, aim in ((8, STEP_AIM), (1, None)):
        for stored in (128, 1000, 4000):
            with device, torch.no_grad():
                calls = decoding(batch, stored, width, heads)
            record.section(f"a step of decoding, width {width}, {heads} heads, batch {batch}, after {stored} tokens")
            times = Times(calls, [], 10 * rounds)
            record.tell("KVCache / by hand", times.over("KVCache", "by hand"), aim)
            for name in ("KVCache", "by hand", "torch.cat"):
                record.tell(f"{name} / {LIMIT}", times.over(name, LIMIT))
            if device.type == "cuda":
                memory = [peak(calls[name]) for name in ("KVCache", "by hand")]
                record.tell("KVCache / by hand, memory", memory[0] / memory[1], aim)
    record.section(f"a prefill in chunks of {CHUNK}, width 512, batch 1: over the limit, which must not grow")
    for tokens in (1000, 2000, 4000):
        with device, torch.no_grad():
            calls = prefilling(tokens)
        times = Times(calls, [], rounds)
        record.tell(f"{tokens} tokens", times.over("in chunks", LIMIT))
        record.tell(f"{tokens} tokens, over one without chunks", times.over("in chunks", "at once"))


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


def report_watching(record: Record, device: torch.device, rounds: int) -> None:
    """Time forward passes that are watched."""
    record.section("four layers, watched: time over that of the same pass, unwatched; afterwards it should be 1")
    for width, tokens in ((64, 32), (256, 128), (512, 512)):
        with device:
            calls = watching(width, tokens)
        times = Times(calls, [], 4 * rounds)
        for name in calls:
            if "," in name:
                aim = None if "afterwards" in name else WATCH_AIM
                record.tell(f"width {width}, {tokens} tokens: {name}", times.over(name, name.split(",")[0]), aim)


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
        with parallel.count_bytes() as sent:
            shared = run(parallel.ring_attention, part, cotangent[:, :, mine])
        dist.barrier()
        carried = int(LOOPBACK.read_text()) - before if LOOPBACK.exists() else 0
        ratios.append(shared / alone)
    return statistics.median(ratios[1:]), sent.to_next, carried


def report_rings(record: Record, rounds: int) -> None:
    """Compare two ranks, one core each, with the whole on one core."""
    record.section(
        "a ring of two processes of one core each, 8 heads of 64: CPU time of both over that of the whole on one core"
    )
    for tokens in (2048, 4096):
        for is_causal in (False, True):
            for backward in (False, True):
                ranks = parallel.launch(one_rank, tokens, rounds, is_causal, backward, ranks=2, timeout=300.0)
                formula = parallel.ring_bytes(1, 8, tokens, 64, ranks=2, backward=backward)
                assert all(sent == formula for _, sent, _ in ranks)
                what = f"{tokens} tokens, {'causal' if is_causal else 'no mask'}"
                what += ", forward and backward" if backward else ", forward"
                record.tell(what, sum(ratio for ratio, _, _ in ranks), RING_AIM)
                record.tell(f"{what}: bytes that the loopback carried, over the formula's", ranks[0][2] / 2 / formula)


TILES_AIM = 7.0  # readable tiles over the fused kernel, at these sizes: what was measured, with some room


def tiling(tokens: int, is_causal: bool) -> dict[str, Contender]:
    """Attention by tiles, by the fused kernel, and with the whole matrix."""
    q, k, v = torch.randn(3, 1, 4, tokens, 64)

    def run(implementation: str) -> Contender:
        return lambda: (unmasked.attend(q, k, v, is_causal=is_causal, implementation=implementation).context,)

    return {
        "fused": run("fused"),
        "eager": run("eager"),
        **{
            f"tiles of {tile}": lambda tile=tile: unmasked.tiles.tiled_attention(
                q, k, v, is_causal=is_causal, tile=tile
            )
            for tile in (16, 64, 256)
        },
    }


def report_tiles(record: Record, device: torch.device, rounds: int) -> None:
    """Time attention by tiles."""
    record.section("tiles, 4 heads of 64: time over the fused kernel's")
    for tokens in (1024, 4096):
        for is_causal in (False, True):
            with device:
                calls = tiling(tokens, is_causal)
            times = Times(calls, [], rounds)
            for name in calls:
                what = f"{tokens} tokens{', causal' if is_causal else ''}: {name}"
                record.tell(what, times.over(name, "fused"), TILES_AIM if name == "tiles of 64" else None)


IMPORT = """
import time
start = time.perf_counter()
import torch
middle = time.perf_counter()
import unmasked
print(time.perf_counter() - middle, middle - start)
"""


def report_imports(record: Record, rounds: int) -> None:
    """Time `import unmasked` beside the import of torch, in interpreters of their own."""
    runs = [
        [float(seconds) for seconds in subprocess.run(
            [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True
        ).stdout.split()]
        for _ in range(rounds)
    ]  # fmt: skip
    own, of_torch = (statistics.median(each) for each in zip(*runs, strict=True))
    record.section("import unmasked")
    record.tell("over the import of torch", own / of_torch)


MEMORY = """
import torch, unmasked
def status(field):  # MiB
    return int(next(line for line in open("/proc/self/status") if line.startswith(field)).split()[1]) / 1024
torch.set_num_threads(1)
q, k, v = (torch.randn(1, 4, {tokens}, 64) for _ in range(3))
def run(q, k, v):
    if "{implementation}" == "tiles":
        return unmasked.tiles.tiled_attention(q, k, v, is_causal=True)
    return unmasked.attend(q, k, v, is_causal=True, implementation="{implementation}")
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


def report_memory(record: Record) -> None:
    """Tell what one call adds to the memory of its process."""
    if not sys.platform.startswith("linux"):
        print("\nextra memory: measured on Linux alone, which tells a process's peak and lets it be reset")
        return
    record.section("extra memory of one call, batch 1, 4 heads, head_dim 64")
    for tokens in (2048, 4096, 8192):
        for implementation in ("fused", "tiles", "eager"):
            aim = 32.0 if (tokens, implementation) == (8192, "fused") else None
            record.tell(f"{tokens} tokens, {implementation}", extra_memory(tokens, implementation), aim, unit="MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help='"cpu" or "cuda" (default: cpu)')
    parser.add_argument("--tokens", type=int, nargs="+", help="lengths of the layers' sequences")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--record", action="store_true", help="write the figures of a CPU, too")
    options = parser.parse_args()
    device = unmasked.device.best_device(options.device)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    record = Record(device)
    if device.type == "cuda":
        torch.set_default_dtype(torch.bfloat16)
    lengths = options.tokens or ([1024, 4096, 16384] if device.type == "cuda" else [1024, 4096])
    report_layers(record, device, lengths, options.rounds)
    record.section("a layer of 64 features, 2 x 16 tokens: what the host does counts")
    with device:
        times = Times(small(), [], 20 * options.rounds)
    record.tell("CausalSelfAttention / by hand", times.over("CausalSelfAttention", "by hand"), SMALL_AIM)
    report_caches(record, device, options.rounds)
    report_watching(record, device, options.rounds)
    report_tiles(record, device, options.rounds)
    if device.type == "cpu":
        report_imports(record, options.rounds)
        report_rings(record, options.rounds)
        report_memory(record)
    if options.record or device.type != "cpu":
        print(f"\nwritten to {record.write().relative_to(ROOT)}")


if __name__ == "__main__":
    main()
