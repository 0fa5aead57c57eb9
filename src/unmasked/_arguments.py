"""Checks of the tensors of attention together: query, key and value, and the masks and sinks that go with them."""

from __future__ import annotations

import torch
from torch import Tensor

from unmasked._checks import broadcasts, floats, tensor
from unmasked._site import noted


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Refuse tensors that PyTorch would broadcast, misread or report in the words of a kernel."""
    if not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)):
        _refuse_kinds(query=query, key=key, value=value)
    strided = torch.strided
    if not (
        query.dtype == key.dtype == value.dtype
        and query.dtype in floats
        and query.device == key.device == value.device
        and query.layout is key.layout is value.layout is strided
        and not (query.is_nested or key.is_nested or value.is_nested)
        and 2 <= query.dim() == key.dim() == value.dim()
    ):
        _refuse_kinds(query=query, key=key, value=value)
    q, k, v = query.shape, key.shape, value.shape
    if q[-1] != k[-1]:
        raise ValueError(f"query has {q[-1]} features and key {k[-1]}; a dot product needs as many of both")
    if k != v and k[:-1] != v[:-1]:
        raise ValueError(
            f"key has shape {tuple(k)} and value {tuple(v)}; every key needs one value: all axes but the last must "
            "agree"
        )
    heads, kv_heads = (q[-3], k[-3]) if len(q) > 2 else (1, 1)
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads):
        hint = "" if len(q) > 3 else " (of three axes, the first is that of heads, or of items, which must be as many)"
        raise ValueError(f"key has {kv_heads} heads and query {heads}; key's heads must divide query's{hint}")
    if k[:-3] != q[:-3] and not broadcasts(k[:-3], q[:-3]):
        raise ValueError(f"key has batch axes {tuple(k[:-3])} and query {tuple(q[:-3])}; they must agree or be 1")
    if allowed is not None or bias is not None or sinks is not None:
        _check_masks(allowed, bias, sinks, query, (*q[:-1], k[-2]))


# The dtypes of masks and sinks, the message for another one, and the page that shows what comes of it.
_MASKS = {
    "allowed": (
        {torch.bool},
        "it must be bool, True where a query may see a key (else pass bias)",
        "museum/masks/#float-mask-of-ones",
    ),
    "bias": (
        floats,
        "it is added to the scores and must be floating (else pass allowed)",
        "museum/masks/#boolean-mask-added",
    ),
    "sinks": (floats, "it joins the scores and must be floating", "pytorch/long/"),
}


def _check_masks(
    allowed: Tensor | None, bias: Tensor | None, sinks: Tensor | None, x: Tensor, scores: tuple[int, ...]
) -> None:
    """Refuse masks that are not for these scores, and sinks that are not for the heads of x."""
    for (name, (dtypes, must, page)), mask in zip(_MASKS.items(), (allowed, bias, sinks), strict=True):
        if mask is None:
            continue
        if not isinstance(mask, Tensor) or mask.is_nested or mask.layout != torch.strided:
            tensor(name, mask)
        if mask.dtype not in dtypes:
            raise noted(TypeError(f"{name} is {mask.dtype}; {must}"), page)
        if mask.device != x.device:
            raise ValueError(f"{name} is on {mask.device}, and what it belongs to on {x.device}; move one to the other")
        if mask is not sinks and not broadcasts(mask.shape, scores):
            raise ValueError(f"{name} has shape {tuple(mask.shape)}, which does not broadcast to the scores' {scores}")
    if sinks is None:
        return
    heads = (x.size(-3),) if x.dim() > 2 else ()
    if sinks.shape not in ((), heads):
        each = f"{heads}, one for each head, or a number" if heads else "a number, where there is no axis of heads"
        raise ValueError(f"sinks has shape {tuple(sinks.shape)}; it must be {each}")


def _refuse_kinds(**tensors: Tensor) -> None:
    first, query = next(iter(tensors.items()))
    for name, x in tensors.items():
        tensor(name, x, "Float")
        if x.dtype != query.dtype:
            raise TypeError(f"{name} is {x.dtype} but {first} is {query.dtype}; cast one to the other")
        if x.device != query.device:
            raise ValueError(f"{name} is on {x.device} but {first} is on {query.device}; move one to the other")
        if x.dim() < 2:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; it must be (..., heads, tokens, features)")
        if x.dim() != query.dim():
            raise ValueError(
                f"{name} has shape {tuple(x.shape)} and {first} {tuple(query.shape)}; "
                "all need the same number of axes, (..., heads, tokens, features) or (tokens, features)"
            )
