"""What attention costs on a device: ``python -m unmasked_lessons.measure`` prints yours beside the record of an H100.

Times are medians, in milliseconds; memory is what a call takes above its inputs, in MiB, where the device counts it.
They are of one machine at one hour: compare columns, not digits. A kernel is measured by its name where PyTorch says,
before the call, that it would run: otherwise another might run under that name. `limits` says what is left out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import resources
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from unmasked._checks import checked, choice, require_positive, size
from unmasked.device import best_device
from unmasked.kernels import sdpa_backends

__all__ = ["limits", "measure", "recorded"]

Record = dict[str, Any]
_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)  # what is no CUDA device gets those up to 2,048
_NAMED = {
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def recorded(name: Literal["h100", "flex", "atlas"] = "h100") -> Record:
    """A record that the project's pages read: of an NVIDIA H100, of FlexAttention on a CPU, or of models.

    Args:
        name: "h100", for the page on costs; "flex", which `unmasked_lessons.measure.flex` has made and describes; or
            "atlas", of the models of transformers, which ``python -m tests.atlas`` of the repository has made.

    Returns:
        "measured", "device" and "torch" say when and on what; "kernels" has for each length and way a time and memory;
        "choices" for each call what ran, its time and memory; "accuracy" for each dtype and way the relative error, or
        None where it does not run. The atlas has "models" by their types, and the reasons of those that are "missing".

    Examples:
        >>> recorded()["device"]
        'NVIDIA H100 80GB HBM3'
    """
    choice("name", name, "h100", "flex", "atlas")
    record: Record = json.loads((resources.files("unmasked_lessons") / "data" / f"{name}.json").read_text("utf-8"))
    return record


def measure(
    device: torch.device | str | None = None,
    *,
    lengths: Sequence[int] | None = None,
    heads: int = 16,
    repeats: int = 20,
) -> Record:
    """Measure attention on a device: by hand and by each backend over the length, what calls cost, and how exact it is.

    Args:
        device: Where; the best there is by default.
        lengths: How many tokens the texts have: by default from 512 to 16,384 on CUDA, else to 2,048. What calls cost
            is measured at 4,096, or at the longest if it is less.
        heads: How many heads of 64 features there are.
        repeats: How often each is run, after three runs that are not counted.

    Returns:
        A record like that of `recorded`. What does not fit in memory, or is not there on the device, is left out.

    Raises:
        ValueError: There is no length, or one that is not positive, or no head, or nothing is to be run.

    Examples:
        >>> list(measure("cpu", lengths=[8], heads=2, repeats=1)["kernels"]["8"])
        ['math', 'flash', 'by hand']
    """
    device = best_device(device)
    require_positive(heads=heads, repeats=repeats)
    if lengths is None:
        lengths = [each for each in _LENGTHS if device.type == "cuda" or each <= 2048]
    if not isinstance(lengths, Sequence) or isinstance(lengths, str):
        raise TypeError(f"lengths is of the type {type(lengths).__name__}; pass numbers of tokens, as [512] holds")
    lengths = [size("lengths", each, least=-sys.maxsize) for each in lengths]
    if not lengths or min(lengths) < 1:
        raise ValueError(f"lengths is {list(lengths)}; name at least one number of tokens, each positive")
    kernels: dict[str, dict[str, list[float | None]]] = {}
    for length in lengths:
        ways = _ways(*_drawn(device, (1, heads, length, 64)))
        costs = {name: _cost(way, device, repeats) for name, way in ways.items()}
        kernels[str(length)] = {name: cost for name, cost in costs.items() if cost is not None}
    choices = {}
    for name, (inputs, options) in _calls(device, heads, min(4096, max(lengths))).items():
        q, k, v = inputs
        cost = _cost(partial(F.scaled_dot_product_attention, q, k, v, **options), device, repeats)
        if cost is not None:
            chosen = [each.name for each in sdpa_backends(q, k, v, **options) if each.chosen]
            choices[name] = [chosen, *cost]
    return {
        "measured": time.strftime("%Y-%m-%d"),
        "device": _name(device),
        "torch": torch.__version__,
        "kernels": kernels,
        "choices": choices,
        "accuracy": _accuracy(device, heads, min(1024, max(lengths))),
    }


@checked
def limits(record: Record) -> str:
    """Say in a sentence which of the things in the record of an H100 a record lacks.

    Args:
        record: As `measure` gives it.

    Returns:
        The sentence, or "" where nothing is left out.

    Raises:
        ValueError: The record lacks what such a record has.

    Examples:
        >>> limits(measure("cpu", lengths=[8], heads=2, repeats=1))
        'CPU: PyTorch runs no kernel there that it calls efficient or cudnn, and counts no peak of memory.'
        >>> limits(recorded())
        ''
    """
    if lacking := [name for name in ("device", "kernels", "choices") if name not in record]:
        raise ValueError(f"record lacks {', '.join(lacking)}; pass what measure or recorded gives")
    costs = [cost for ways in record["kernels"].values() for cost in ways.values()]
    there = {name for ways in record["kernels"].values() for name in ways}
    *most, last = [name for name in _NAMED if name not in there] or [""]
    left = [f"runs no kernel there that it calls {', '.join(most)}{' or ' if most else ''}{last}"] * bool(last)
    left += ["does not name the one that it chooses"] * any(not ran for ran, *_ in record["choices"].values())
    left += ["counts no peak of memory"] * all(memory is None for _, memory in costs)
    return f"{record['device']}: PyTorch {', and '.join(left)}." if left else ""


def _name(device: torch.device) -> str:
    name = getattr(torch.get_device_module(device), "get_device_name", None)  # of CUDA and XPU
    return str(name(device)) if name else device.type.upper()


def _drawn(device: torch.device, *shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    """Queries, keys and values: of one shape, or of a shape each."""
    generator = torch.Generator().manual_seed(0)
    each = shapes * 3 if len(shapes) == 1 else shapes
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in each]


def _by(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / q.size(-1) ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    context: Tensor = scores.masked_fill(later, -torch.inf).softmax(dim=-1) @ v
    return context


def _ways(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Callable[[], Tensor]]:
    """By hand, and each kernel that PyTorch would run: on some devices it takes any name, and runs another."""
    there = [each.name for each in sdpa_backends(q, k, v, is_causal=True) if each.can_run]
    ways = {name: partial(_by, backend, q, k, v) for name, backend in _NAMED.items() if name in there}
    return {**ways, "by hand": partial(_by_hand, q, k, v)}


def _calls(device: torch.device, heads: int, length: int) -> dict[str, tuple[list[Tensor], dict[str, Any]]]:
    """The same call, and what is easily changed about it."""
    shape = (1, heads, length, 64)
    q, k, v = _drawn(device, shape)
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    bias = torch.zeros(length, length, dtype=q.dtype, device=device).masked_fill(~mask, -torch.inf)
    one_head = [x[:, :1] for x in (k, v)]
    return {
        "plain": ([q, k, v], {}),
        "causal": ([q, k, v], {"is_causal": True}),
        "bool mask": ([q, k, v], {"attn_mask": mask}),
        "float mask": ([q, k, v], {"attn_mask": bias}),
        "mask that needs grad": ([q, k, v], {"attn_mask": bias.clone().requires_grad_()}),
        "float32": ([x.float() for x in (q, k, v)], {"is_causal": True}),
        "head_dim 65": (_drawn(device, (*shape[:3], 65)), {"is_causal": True}),
        "dropout": ([q, k, v], {"is_causal": True, "dropout_p": 0.1}),
        "three axes": ([x[0] for x in (q, k, v)], {"is_causal": True}),
        "gqa": ([q, *one_head], {"is_causal": True, "enable_gqa": True}),
        "gqa broadcast": ([q, *one_head], {"is_causal": True}),
    }


def _cost(run: Callable[[], Tensor], device: torch.device, repeats: int) -> list[float | None] | None:
    """The median time in ms, and MiB above what was there; None where it does not run."""

    def wait() -> None:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)

    with _where_it_runs():
        for _ in range(3):  # the first runs load kernels, and choose among them
            run()
        wait()
        before = _peak(device, anew=True)
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            run()
            wait()
            times.append(1000 * (time.perf_counter() - start))
        most = _peak(device)
        memory = None if before is None or most is None else round((most - before) / 2**20, 1)
        return [round(sorted(times)[repeats // 2], 4), memory]
    return None


def _peak(device: torch.device, *, anew: bool = False) -> int | None:
    """The most bytes that were taken at once, since it was last counted anew; None where the device does not count."""
    if device.type == "cpu":
        return None
    try:
        if anew:
            torch.accelerator.reset_peak_memory_stats(device)
        return torch.accelerator.memory_stats(device).get("allocated_bytes.all.peak")
    except RuntimeError:
        return None


@contextmanager
def _where_it_runs() -> Iterator[None]:
    """Leave the block where the device lacks the memory, or the operation."""
    try:
        yield
    except RuntimeError as error:
        lacking = isinstance(error, torch.OutOfMemoryError | NotImplementedError)
        if not lacking and "out of memory" not in str(error):  # as MPS says it, by an error of no kind of its own
            raise


def _accuracy(device: torch.device, heads: int, length: int) -> dict[str, float | None]:
    """The relative error of each dtype and way against float64 on the same rounded inputs."""
    errors: dict[str, float | None] = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        qkv = _drawn(device, (1, heads, length, 64), dtype=dtype)
        right = _by_hand(*(x.cpu().double() for x in qkv))
        ways = _ways(*qkv)
        for name in (*_NAMED, "by hand"):
            key = f"{str(dtype).removeprefix('torch.')} {name}"
            errors[key] = None
            with _where_it_runs():
                if name in ways:
                    errors[key] = ((ways[name]().cpu().double() - right).norm() / right.norm()).item()
    return errors
