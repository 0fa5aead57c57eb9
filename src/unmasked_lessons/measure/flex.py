"""What FlexAttention costs on a CPU, and the errors that only compiled code shows.

``python -m unmasked_lessons.measure.flex`` prints it.

It needs a C++ compiler. No page compiles anything: the project's page reads what this found, ``recorded("flex")``.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, create_mask, flex_attention

from unmasked import masks
from unmasked._private import graphs_traced
from unmasked.functional import attend
from unmasked.kernels import kernels_of
from unmasked_lessons.measure import Record, _cost, _drawn

__all__ = ["hold", "measure"]

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def measure(lengths: Sequence[int] = (1024, 2048, 4096, 8192), window: int = 512, repeats: int = 5) -> Record:
    """Measure a causal window on the CPU, in float32, with 8 heads of 64 features, over the number of tokens.

    "measured", "threads" and "torch" say when and on what; "costs" has for each length and way a time in ms and a peak
    of memory in MiB.
    """
    costs: dict[str, dict[str, list[float | None]]] = {}
    for length in lengths:
        costs[str(length)] = ways = {}
        for name, way in _ways(length, window).items():
            cost = _cost(way, torch.device("cpu"), repeats)
            ways[name] = [cost[0] if cost else None, round(kernels_of(way).peak_bytes / 2**20, 2)]
    made = {"measured": time.strftime("%Y-%m-%d"), "threads": torch.get_num_threads(), "torch": torch.__version__}
    return {**made, "window": window, "costs": costs}


def _ways(length: int, window: int) -> dict[str, Callable[[], Any]]:
    q, k, v = _drawn(torch.device("cpu"), (1, 8, length, 64), dtype=torch.float32)
    asked = (_window(window), None, None, length, length, "cpu")
    blocks, mask = create_block_mask(*asked), create_mask(*asked)
    return {
        "create_block_mask": partial(create_block_mask, *asked),
        "create_block_mask, compiled": partial(torch.compile(create_block_mask), *asked),
        "FlexAttention": partial(torch.compile(flex_attention), q, k, v, block_mask=blocks),
        "FlexAttention, not compiled": partial(flex_attention, q, k, v, block_mask=blocks),
        "SDPA, the window as a mask": partial(F.scaled_dot_product_attention, q, k, v, attn_mask=mask),
        "SDPA, causal, no window": partial(F.scaled_dot_product_attention, q, k, v, is_causal=True),
    }


def _window(width: int, place: Tensor | int = 0) -> Rule:
    """A causal window, whose first query stands at a place."""

    def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query + place >= key) & (query + place - key < width)

    return rule


_HERE = SimpleNamespace(place=0)


def _from_here(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A causal window, whose first query stands at a place that a global says."""
    return _window(40, _HERE.place)(batch, head, query, key)


def hold(device: torch.device | str = "cpu") -> Record:
    """Hold FlexAttention to `attend`, compiled and not, used as it should be and with mistakes.

    "errors" has for each case the largest error of the compiled call and of the other; "kernels" how many are compiled
    for four steps of decoding that capture their place as a number, as a tensor, and as a number of a global; "refused"
    what a compiled call says to what it does not take, or None where it takes it.
    """
    q, k, v = _drawn(torch.device(device), (2, 2, 300, 32), dtype=torch.float32)
    sinks = torch.tensor([-1.0, 2.0], device=device)
    ids = torch.zeros(2, 300, dtype=torch.long, device=device)
    ids[0, 128:], ids[1, 260:] = 1, 1  # of three tiles of 128 each the last is not full
    torch.compiler.reset()
    compiled: Callable[..., Any] = torch.compile(flex_attention)
    ways: tuple[Callable[..., Any], ...] = (compiled, flex_attention)

    def errors(right: Tensor, *inputs: Tensor, **options: Any) -> list[float]:
        return [(run(*inputs, **options) - right).abs().max().item() for run in ways]

    def of_documents(blocks: BlockMask) -> list[float]:
        right = attend(q, k, v, allowed=masks.documents(ids), is_causal=True).context
        return errors(right, q, k, v, block_mask=blocks)

    def apart(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (ids[batch, query] == ids[batch, key]) & (query >= key)

    def multiplied(by: Tensor | float) -> object:
        return compiled(q, k, v, score_mod=lambda score, batch, head, query, key: score * by)

    whole, first = (create_block_mask(apart, texts, None, 300, 300, device) for texts in (2, None))
    by_case = {"as it should be": of_documents(whole), "tiles of the first text": of_documents(first)}
    ids[0, 128:] = 0
    by_case["ids changed since"] = of_documents(whole)
    by_case["a sink as a key"] = errors(
        attend(q, k, v, is_causal=True, sinks=sinks).context,
        *(q, F.pad(k, (0, 0, 1, 0)), F.pad(v, (0, 0, 1, 0))),
        score_mod=lambda score, batch, head, query, key: torch.where(key == 0, sinks[head], score),
        block_mask=create_block_mask(lambda b, head, query, key: query + 1 >= key, None, None, 300, 301, device),
    )
    calls: dict[str, Callable[[], object]] = {
        "log-sum-exp": lambda: compiled(q, k, v, return_aux=AuxRequest(lse=True)),
        "parameter": lambda: multiplied(torch.nn.Parameter(torch.ones((), device=device))),
        "another number": lambda: [multiplied(by) for by in (0.5, 0.7)],
    }
    return {
        "errors": by_case,
        "refused": {name: _refusal(call) for name, call in calls.items()},
        "kernels": {name: _decoded(q, k, v, name) for name in ("number", "tensor", "global")},
    }


def _refusal(call: Callable[[], object]) -> str | None:
    try:
        call()
    except Exception as error:
        return str(error).split("\n")[0]
    return None


def _decoded(q: Tensor, k: Tensor, v: Tensor, captured: Literal["number", "tensor", "global"]) -> int:
    """How many kernels four steps of decoding compile, each of which gives what the whole text does.

    That many graphs are traced, each of which would be a kernel of its own; they run here as they are.
    """
    torch.compiler.reset()
    compiled, before = torch.compile(flex_attention, backend="eager"), graphs_traced()
    at = torch.zeros((), dtype=torch.long, device=q.device)
    right = attend(q, k, v, allowed=masks.sliding_window(300, window=40, device=q.device)).context
    blocks = create_block_mask(_window(40), None, None, 300, 300, q.device)
    for place in (5, 127, 128, 299):
        row = blocks[:, :, place // blocks.BLOCK_SIZE[0]]
        at.fill_(place)
        _HERE.place = place
        rules = {"number": _window(40, place), "tensor": _window(40, at), "global": _from_here}
        row.mask_mod, row.seq_lengths = rules[captured], (1, 300)
        step = slice(place, place + 1)
        torch.testing.assert_close(compiled(q[:, :, step], k, v, block_mask=row), right[:, :, step], atol=1e-3, rtol=0)
    made: int = graphs_traced() - before
    return made


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "flex_attention called without")
    print(json.dumps({**measure(), **hold()}, indent=1))
