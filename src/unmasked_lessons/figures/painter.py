"""What the interfaces of PyTorch make of a mask, painted or given, and of a query that may see nothing."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked.bypass import bypass_
from unmasked.functional import self_attention
from unmasked.heads import split_heads


def answer(row: Tensor) -> str:
    """Say what a query that may see nothing got, a context or weights: "NaN", "zeros" or "numbers"."""
    return "NaN" if row.isnan().all() else "zeros" if not row.any() else "numbers"


def interfaces(module: nn.MultiheadAttention, y: Tensor, allows: Mapping[str, bool]) -> list[dict[str, Any]]:
    """The interfaces that take a painted mask, for the script of the figure.

    The module has `batch_first=True`, and trains. `allows` says whether True means that a query may attend: to the
    "function", to the "module" as `attn_mask`, and to it as "padding". Each interface has its kind, its name, whether
    True (or a zero, in a floating mask) allows, and what the weights of a query that may see nothing are, "NaN" or
    "zeros".
    """
    batch, tokens, _ = y.shape
    q = split_heads(y, module.num_heads)
    boolean = F.scaled_dot_product_attention(q, q, q, torch.full((tokens, tokens), not allows["function"]))
    floating = F.scaled_dot_product_attention(q, q, q, torch.full((tokens, tokens), -torch.inf))
    _, weights = module(y, y, y, attn_mask=torch.full((tokens, tokens), not allows["module"]))
    _, padded = module(y, y, y, key_padding_mask=torch.full((batch, tokens), not allows["padding"]))
    found = (
        ("boolean", "the function", allows["function"], boolean),
        ("additive", "the function, floating", True, floating),
        ("module", "the module, attn_mask", allows["module"], weights),
        ("padding", "the module, key_padding_mask", allows["padding"], padded),
    )
    return [
        {"kind": kind, "name": name, "allows": allowed, "blind": answer(given)} for kind, name, allowed, given in found
    ]


def answers(module: nn.MultiheadAttention, y: Tensor, allowed: Tensor) -> dict[str, str]:
    """What each interface gives a first query that may see nothing, by its name and mode, as `answer` says it.

    The module has `batch_first=True`, and is left in evaluation. The first row of `allowed` is False.
    """
    found = {"F.scaled_dot_product_attention": F.scaled_dot_product_attention(y, y, y, attn_mask=allowed)}
    for mode in ("train", "eval, no_grad"):
        module.train(mode == "train")
        for need_weights in (True, False):
            with torch.set_grad_enabled(mode == "train"):
                output, _ = module(y, y, y, attn_mask=~allowed, need_weights=need_weights)
            name = f"nn.MultiheadAttention, {mode}, need_weights={need_weights}"
            found[name] = output - module.out_proj.bias
    found["unmasked.self_attention"] = self_attention(y, allowed=allowed).context
    return {name: answer(context[0, 0]) for name, context in found.items()}


def readings(x: Tensor, allowed: Tensor) -> dict[str, Tensor]:
    """The weights that PyTorch's function and its module give a sentence, (words, features), for one boolean mask."""
    one = x[None]  # a batch of one sentence
    unit = torch.eye(len(x), dtype=x.dtype)[None]  # as values, it shows the weights
    by_function = F.scaled_dot_product_attention(one, one, unit, attn_mask=allowed)
    module = bypass_(nn.MultiheadAttention(x.size(-1), 1, batch_first=True, dtype=x.dtype))
    _, by_module = module(one, one, one, attn_mask=allowed)
    return {"the function": by_function[0], "the module": by_module[0].detach()}
