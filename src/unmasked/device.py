"""Where to run: the best device, and the kernels that PyTorch's attention can run there."""

from __future__ import annotations

import re
import warnings
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends.cuda import (
    SDPAParams,
    can_use_cudnn_attention,
    can_use_efficient_attention,
    can_use_flash_attention,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

from unmasked._shapes import Shaped
from unmasked._table import Table

__all__ = ["Backend", "Backends", "best_device", "sdpa_backends"]

_FUSED = {
    SDPBackend.FLASH_ATTENTION: ("flash", can_use_flash_attention),
    SDPBackend.EFFICIENT_ATTENTION: ("efficient", can_use_efficient_attention),
    SDPBackend.CUDNN_ATTENTION: ("cudnn", can_use_cudnn_attention),
}


def best_device(name: str | torch.device | None = None) -> torch.device:
    """The best device of this machine: cuda, mps, xpu or cpu, in this order, or the one asked for.

    Args:
        name: The device to insist on, such as "cuda" or "cpu".

    Returns:
        The device.

    Raises:
        ValueError: The machine lacks that device.

    Examples:
        >>> best_device("cpu")
        device(type='cpu')
    """
    counts = {
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
        "xpu": torch.xpu.device_count() if torch.xpu.is_available() else 0,
        "cpu": 1,
    }
    if name is None:
        return torch.device(next(kind for kind, count in counts.items() if count))
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"name {str(name)!r} is no device: try one of {', '.join(counts)}") from error
    if (device.index or 0) >= counts.get(device.type, 0):
        here = [f"{kind}:{index}" for kind, count in counts.items() if kind != "cpu" for index in range(count)]
        raise ValueError(f"device {str(device)!r} is not available: this machine has {', '.join([*here, 'cpu'])}")
    return device


class Backend(NamedTuple):
    """One backend of `torch.nn.functional.scaled_dot_product_attention`, for given inputs.

    Attributes:
        name: "flash", "efficient", "cudnn" or "math".
        can_run: Whether it can.
        why_not: PyTorch's reasons where it cannot.
        chosen: Whether PyTorch picks it, left to itself.
    """

    name: str
    can_run: bool
    why_not: str
    chosen: bool


class Backends(tuple[Backend, ...]):
    """The backends, printed as a table."""

    def __repr__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()

    @property
    def table(self) -> Table:
        """The backends as text, a row for each."""
        rows = [(b.name, "chosen" if b.chosen else "yes" if b.can_run else "no", b.why_not) for b in self]
        return Table(("backend", "can run", "why not"), rows, tabs=False)


def sdpa_backends(
    query: Shaped[Tensor, "..."],
    key: Shaped[Tensor, "..."],
    value: Shaped[Tensor, "..."],
    *,
    attn_mask: Shaped[Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Backends:
    """Which backends of PyTorch's attention can run for these inputs, and why the others cannot; nothing is run.

    `torch.profiler` lists the operators that did run: ``aten::_scaled_dot_product_flash_attention_for_cpu`` names the
    fused kernel of a CPU, ``aten::_scaled_dot_product_attention_math`` the math backend. The math backend alone makes
    the whole table of weights, and it alone has second derivatives on a CPU.

    Args:
        query: As for `torch.nn.functional.scaled_dot_product_attention`, usually (batch, heads, queries, head_dim).
        key: (batch, heads, keys, head_dim).
        value: (batch, heads, keys, head_dim).
        attn_mask: True where a query may attend, or floats that are added to the scores.
        dropout_p: Probability of dropping a weight.
        is_causal: Whether a query sees only the keys up to its own position.
        enable_gqa: Whether key and value may have fewer heads.

    Returns:
        The backends flash, efficient, cudnn and math. One that is switched off (`torch.nn.attention.sdpa_kernel`) is
        still said to run where it could, but is not chosen.

    Examples:
        >>> q = torch.ones(2, 3, 5, 4)
        >>> sdpa_backends(q, q, q, dropout_p=0.1)[0].why_not
        'Both fused kernels do not support non-zero dropout.'
    """
    inputs = (query, key, value, attn_mask, dropout_p, is_causal)
    kind = query.device.type

    def choice() -> int | None:
        try:
            return int(torch._fused_sdp_choice(*inputs, enable_gqa=enable_gqa))
        except NotImplementedError:  # a device without fused kernels
            return SDPBackend.MATH.value
        except (RuntimeError, IndexError):  # none that is switched on can run
            return None

    @cache
    def why_not_math(is_causal: bool) -> str:
        q, k, v = (torch.empty_like(x, device="meta") for x in (query, key, value))
        mask = None if attn_mask is None else torch.empty_like(attn_mask, device="meta")
        try:  # tensors without data: only shapes and dtypes are checked
            with sdpa_kernel(SDPBackend.MATH):
                F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, enable_gqa=enable_gqa)
        except (RuntimeError, IndexError) as error:
            return str(error)
        return ""

    invalid = why_not_math(is_causal and attn_mask is None)  # a mask beside is_causal is refused by math alone
    with warnings.catch_warnings(action="ignore"):
        chosen = None if invalid else choice()
    backends = []
    for backend, (name, can_use) in _FUSED.items():
        with sdpa_kernel(backend), warnings.catch_warnings(action="always", record=True) as caught:
            if kind == "cuda":
                can_run = can_use(SDPAParams(*inputs, enable_gqa), debug=True)
            else:
                can_run = choice() == backend.value
        said = [re.sub(r" \(Triggered internally.*", "", str(warning.message), flags=re.DOTALL) for warning in caught]
        why_not = invalid or " ".join(text for text in said if not text.endswith("because:"))
        if can_run and not invalid:
            why_not = ""
        elif not why_not:  # PyTorch does not put these two in words
            needs_grad = name == "flash" and attn_mask is not None and attn_mask.requires_grad
            why_not = "attn_mask requires grad." if needs_grad else f"PyTorch has no such kernel on {kind}."
        backends.append(Backend(name, not why_not, why_not, chosen == backend.value))
    why_not = why_not_math(is_causal)
    return Backends([*backends, Backend("math", not why_not, why_not, chosen == SDPBackend.MATH.value)])
