"""PyTorch's layer beside the package's, with many options, and three wrong calls that keep every shape right."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from unmasked import layouts

_BATCH, _HEAD_DIM, _QUERIES, _KEYS = 2, 4, 5, 7
_EMBED_DIM = 3 * _HEAD_DIM
_ON_OFF = (True, False)
CONSTRUCTOR: Mapping[str, Sequence[Any]] = {
    "num_heads": (1, 3),
    "kdim": (None, 10),  # None: keys as wide as queries
    "vdim": (None, 9),
    "dropout": (0.0, 0.25),
    "bias": _ON_OFF,
    "add_bias_kv": _ON_OFF,  # one learned key and value more
    "add_zero_attn": _ON_OFF,  # one key and value of zeros more
    "batch_first": _ON_OFF,
}
CALL: Mapping[str, Sequence[Any]] = {
    "attn_mask": ("none", "shared", "per head"),
    "key_padding_mask": _ON_OFF,
    "boolean": _ON_OFF,  # whether masks are boolean, or numbers that are added to the scores
    "need_weights": _ON_OFF,
    "average_attn_weights": _ON_OFF,
    "batched": _ON_OFF,
    "training": _ON_OFF,
}


def differences(combinations: Iterable[Sequence[Any]]) -> dict[str, float]:
    """Run PyTorch's layer and its copy in the package, with random matrices, biases, inputs and masks, in float64.

    Both run under one seed, so that even their dropout is the same. The rest is drawn from the global generator.

    Args:
        combinations: For each run, a value of each option of `CONSTRUCTOR`, then of each of `CALL`.

    Returns:
        The largest difference in all runs, of an entry of the "output", of the "weights", and of the "gradients": those
        of the output's mean square with respect to inputs and parameters.
    """
    largest = {"output": 0.0, "weights": 0.0, "gradients": 0.0}
    for values in combinations:
        options = dict(zip([*CONSTRUCTOR, *CALL], values, strict=True))
        constructed = {name: options.pop(name) for name in CONSTRUCTOR}
        layer = nn.MultiheadAttention(_EMBED_DIM, **constructed, dtype=torch.float64).train(options["training"])
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.3)
        inputs = _inputs(layer, batched=options["batched"])
        call = {name: options[name] for name in ("need_weights", "average_attn_weights")}
        call |= _masks(layer.num_heads, options)
        ran = (_run(each, inputs, call) for each in (layouts.from_torch(layer), layer))
        for name, ours, theirs in zip(largest, *ran, strict=True):
            gaps = [(a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True)]
            largest[name] = max(largest[name], *gaps, 0.0)
    return largest


def _inputs(layer: nn.MultiheadAttention, *, batched: bool) -> list[Tensor]:
    """Draw query, key and value, of the shapes that the layer takes."""
    inputs = []
    for tokens, features in ((_QUERIES, _EMBED_DIM), (_KEYS, layer.kdim), (_KEYS, layer.vdim)):
        axes = () if not batched else (_BATCH, tokens) if layer.batch_first else (tokens, _BATCH)
        inputs.append(torch.randn(*(axes or (tokens,)), features, dtype=torch.float64, requires_grad=True))
    return inputs


def _masks(num_heads: int, options: Mapping[str, Any]) -> dict[str, Tensor | None]:
    """Draw the masks that the options ask for: they hide some keys, and leave every query at least the first one."""
    sequences = _BATCH if options["batched"] else 1
    hidden = torch.rand(sequences * num_heads, _QUERIES, _KEYS) < 0.4
    hidden[..., 0] = False
    padded = torch.arange(_KEYS) >= torch.tensor([[_KEYS - 2], [_KEYS]])
    kinds = {"none": None, "shared": hidden[0], "per head": hidden}
    masks = {
        "attn_mask": kinds[options["attn_mask"]],
        "key_padding_mask": (padded if options["batched"] else padded[0]) if options["key_padding_mask"] else None,
    }
    if options["boolean"]:
        return masks
    return {name: mask if mask is None else _additive(mask) for name, mask in masks.items()}


def _additive(hidden: Tensor) -> Tensor:
    """Draw a mask of random numbers, to be added to the scores, with minus infinity where keys are hidden."""
    return torch.randn(hidden.shape, dtype=torch.float64).masked_fill(hidden, -torch.inf)


def _run(layer: nn.Module, inputs: list[Tensor], call: Mapping[str, Any]) -> tuple[list[Tensor], ...]:
    """Return the output, the weights if there are any, and the gradients of inputs and parameters."""
    torch.manual_seed(5)
    output, weights = layer(*inputs, **call)
    gradients = torch.autograd.grad(output.square().mean(), [*inputs, *layer.parameters()])
    return [output], [] if weights is None else [weights], [*gradients]


def slips(
    module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor
) -> tuple[nn.MultiheadAttention, Tensor, Tensor, Tensor, Tensor]:
    """Call a layer with an inverted mask, with its two first axes exchanged, and in training mode by mistake.

    Args:
        module: A layer with `batch_first=True`; it is not changed.
        query: (batch, queries, features).
        key: (batch, keys, features).
        value: (batch, keys, features).
        allowed: True where a query may see a key: (queries, keys).

    Returns:
        A copy of the module that takes the first axis for the tokens; the output under the inverted mask; the output of
        that copy for the keys, and the right one; the weights in training mode, of which the global generator drops
        half: (batch, heads, queries, keys).
    """
    inverted, _ = module(query, key, value, attn_mask=allowed)  # should be blocked
    tokens_first, training = deepcopy(module), deepcopy(module).train()
    tokens_first.batch_first = False
    mixed, expected = (layer(key, key, key)[0] for layer in (tokens_first, module))
    training.dropout = 0.5
    _, dropped = training(query, key, value, attn_mask=~allowed, average_attn_weights=False)
    return tokens_first, inverted, mixed, expected, dropped
