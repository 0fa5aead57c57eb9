"""What the interfaces of PyTorch make of a mask, painted or given, and of a query that may see nothing."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked.functional import self_attention
from unmasked.heads import split_heads


def answer(row: Tensor) -> str:
    """Say what a query that may see nothing got, a context or weights: "NaN", "zeros" or "numbers"."""
    return "NaN" if row.isnan().all() else "zeros" if not row.any() else "numbers"


def interfaces(module: nn.MultiheadAttention, y: Tensor, allows: Mapping[str, bool]) -> list[dict[str, Any]]:
    """List the interfaces that take a painted mask, for the script of the figure.

    Args:
        module: A layer with `batch_first=True`, in training.
        y: (batch, tokens, features), what it is tried with.
        allows: Whether True means that a query may attend: to the "function", to the "module" as `attn_mask`, and to it
            as "padding".

    Returns:
        For each its kind, its name, whether True (or a zero, in a floating mask) allows, and what the weights of a
        query that may see nothing are, "NaN" or "zeros".
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
    """Ask each interface for the context of a first query that may see nothing.

    Args:
        module: A layer with `batch_first=True`, which is left in evaluation.
        y: (batch, tokens, features), what it is asked with.
        allowed: (queries, keys), boolean, True where a query may attend; the first row is False.

    Returns:
        By the name of the interface and of its mode: "NaN", "zeros" or "numbers".
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


def readings(module: nn.MultiheadAttention, x: Tensor, allowed: Tensor) -> list[dict[str, object]]:
    """What the function and a module make of a mask, and of a query that may see nothing.

    Args:
        module: With one head and `batch_first=True`.
        x: One sentence (1, words, features).
        allowed: Boolean (words, words), True where a query may look, by which the interfaces are told apart. Its last
            row is left out, for what it gets where it may see nothing.

    Returns:
        For the function and for the module: its "kind" and its "name", whether True "allows" a query to look, and what
        the weights of a "blind" query are, "zeros" or "NaN".

    Raises:
        ValueError: An interface reads the mask in neither way.
    """
    nothing = torch.zeros_like(allowed)  # no query may look at anything
    by_function = F.scaled_dot_product_attention(x, x, torch.eye(x.size(1))[None], attn_mask=allowed)
    lost_by_function = F.scaled_dot_product_attention(x, x, x, attn_mask=nothing)
    _, by_module = module(x, x, x, attn_mask=allowed)
    _, lost_by_module = module(x, x, x, attn_mask=~nothing)
    found = (
        ("boolean", "the function", by_function, lost_by_function),
        ("module", "the module", by_module, lost_by_module),
    )
    return [
        {"kind": kind, "name": name, "allows": _allows(name, weights[0], allowed), "blind": answer(lost)}
        for kind, name, weights, lost in found
    ]


def _allows(name: str, weights: Tensor, allowed: Tensor) -> bool:
    """Whether True lets a query look."""
    looks = weights[:-1] > 0
    for meaning, seen in ((True, allowed), (False, ~allowed)):
        if looks.equal(seen[:-1]):
            return meaning
    raise ValueError(
        f"{name} reads allowed={allowed.int().tolist()} in neither way: its weights are {weights.tolist()}"
    )
