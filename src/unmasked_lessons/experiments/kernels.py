"""Calls of attention that leave their fused kernel, and the errors of the kernels in each dtype."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from unmasked.kernels import kernels_of


class Change(NamedTuple):
    """A call that differs from a plain causal one."""

    names: tuple[str, ...]  # the kernels that ran
    peak_bytes: int
    shape: torch.Size  # of the context
    remedy: str  # the way back to the fused kernel, in Markdown
    mended: tuple[str, ...]  # the kernels that ran with the remedy


def changes(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Change]:
    """Change a causal call in several ways, note which kernels run, and try the remedy of each change.

    Dropout draws from the global generator.

    Args:
        q: The query, (batch, heads, tokens, head_dim).
        k: The key, (batch, heads, tokens, head_dim).
        v: The value, (batch, heads, tokens, head_dim), with an even head_dim.

    Returns:
        What each change did, by its name in Markdown; the first, "nothing", is the call as it was.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout_p: float = 0.0) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal=mask is None)

    slopes = torch.zeros(q.size(-2), k.size(-2), requires_grad=True)
    narrow, strided = v[..., : v.size(-1) // 2], v.mT.contiguous().mT
    padded = F.pad(narrow, (0, v.size(-1) - narrow.size(-1)))
    plain, single = (q, k, v), (q[0], k[0], v[0])
    three_axes = "three axes, without a batch, up to PyTorch 2.13"
    tried: dict[str, tuple[tuple[Any, ...], str, tuple[Any, ...]]] = {  # inputs, the remedy, inputs by the remedy
        "nothing": (plain, "", plain),
        "`dropout_p=0.1`": ((*plain, None, 0.1), "`dropout_p=0.0`; a GPU has it fused", plain),
        three_axes: (single, "`q[None]`, `k[None]`, `v[None]`", tuple(each[None] for each in single)),
        "a bias that requires grad": (
            (*plain, slopes),
            "`bias.detach()`, if it is not trained",
            (*plain, slopes.detach()),
        ),
        "values of another width": ((q, k, narrow), "`F.pad(v, (0, missing))`, cut afterwards", (q, k, padded)),
        "a last axis that is not contiguous": ((q, k, strided), "`v.contiguous()`", (q, k, strided.contiguous())),
    }
    results = {}
    for name, (inputs, remedy, mended) in tried.items():
        ran = kernels_of(attend, *inputs)
        shape, ran_mended = attend(*inputs).shape, kernels_of(attend, *mended).names
        results[name] = Change(ran.names, ran.peak_bytes, shape, remedy, ran_mended)
    return results


def errors(qkv: Tensor) -> dict[str, list[float]]:
    """Round query, key and value, and compare three ways to attend with the same numbers in float64.

    Args:
        qkv: (3, batch, heads, tokens, head_dim), in float64.

    Returns:
        By the name of the dtype, the norm of the context's error as a share of the context's norm: of the kernel that
        PyTorch chooses, of the formula written by hand, and of the math backend.
    """
    shares = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rounded = qkv.to(dtype)
        q, k, v = rounded
        exact = F.scaled_dot_product_attention(*rounded.double())
        contexts = [F.scaled_dot_product_attention(q, k, v), (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v]
        with sdpa_kernel(SDPBackend.MATH):
            contexts.append(F.scaled_dot_product_attention(q, k, v))
        shares[str(dtype).removeprefix("torch.")] = [
            ((each.double() - exact).norm() / exact.norm()).item() for each in contexts
        ]
    return shares
