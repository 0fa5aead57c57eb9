"""Questions to a whole model: its calls of attention, the effect of a head, and which tokens reach which."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unmasked._checks import checked, size
from unmasked._shapes import Float
from unmasked.watching.calls import AttentionCall, AttentionCalls, nearest
from unmasked.watching.heard import MATMULS, SOFTMAXES, FunctionCall, contexts_of, inputs_of, names_of, watching

__all__ = ["ablate", "rollout", "watch"]


@checked
@contextmanager
def watch(
    model: nn.Module,
    *,
    keep: Literal["inputs", "weights"] = "inputs",
    only: Callable[[AttentionCall], bool] | None = None,
) -> Iterator[AttentionCalls]:
    """Record every call of attention that a model makes, in any code that PyTorch lets be watched.

    That is `torch.nn.functional.scaled_dot_product_attention`, as most models of transformers call it by default (those
    that load with "eager" write attention out), nn.MultiheadAttention and the layers made of it, flex_attention, and
    this library's functions and modules. Compiled models run uncompiled in the meantime. Nothing is patched, nothing
    stays behind, and only this thread is watched.

    Attention that is written out (a product, a softmax, a product) cannot be seen, nor can kernels of other libraries
    such as FlashAttention's own, or scripted and exported code: where nothing is recorded, a warning says so.

    PyTorch's layers leave their fast path while somebody watches, as they do for hooks: see
    `unmasked.watching.AttentionCall`.

    Args:
        model: the model; calls that none of its modules makes are left out.
        keep: "inputs" keeps references to queries, keys, values and masks, and computes weights when they are asked
            for. "weights" computes them at once and keeps nothing else: for a cache, which is written to again.
        only: a function of an `AttentionCall` that says whether to keep it.

    Yields:
        The calls, as they come.

    Raises:
        TypeError: model is no module.
        ValueError: keep is neither.

    References:
        PyTorch, torch.overrides.TorchFunctionMode.

    Examples:
        >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), 2)
        >>> with watch(model) as seen:
        ...     output = model(torch.randn(1, 3, 6))
        >>> [call.module for call in seen]
        ['layers.0.self_attn', 'layers.1.self_attn']
        >>> seen[0].weights.shape
        torch.Size([1, 2, 3, 3])
    """
    if keep not in ("inputs", "weights"):
        raise ValueError(f'keep is {keep!r}; choose "inputs" or "weights"')
    seen = AttentionCalls()
    with watching(names_of(model), partial(_record, seen=seen, keep=keep, only=only), SOFTMAXES):
        yield seen
    if not seen:
        dropped = " only= kept none of the calls." if only else ""
        warnings.warn(seen._empty() + dropped, stacklevel=3)


@checked
@contextmanager
def ablate(model: nn.Module, heads: Mapping[str, Iterable[int]]) -> Iterator[None]:
    """Switch heads off: what they give is zero, as if their columns of the output projection were.

    The change in the absence of a head is its effect. Its weights do not tell: a head may look hard at a token whose
    value is small, or whose part of the output projection is.

    Args:
        model: the model.
        heads: the indices of the heads, by the qualified name of the module that makes the call, as `watch` gives it.

    Yields:
        Nothing; inside, the model runs without those heads.

    Raises:
        TypeError: model is no module.
        ValueError: heads names no module of the model, or one that makes no call, or a head that a call lacks.

    References:
        Michel et al. (2019), Are Sixteen Heads Really Better than One?, section 3.

    Examples:
        >>> from unmasked import CausalSelfAttention
        >>> layer, x = CausalSelfAttention(4, 4, num_heads=2, out_bias=False), torch.randn(1, 3, 4)
        >>> with ablate(layer, {"": [0, 1]}):
        ...     bool(layer(x).any())
        False
    """
    names = names_of(model)
    for name, indices in heads.items():
        if not isinstance(name, str):
            raise TypeError(f"heads names {name!r}; pass the qualified names of modules, as watch tells them")
        if isinstance(indices, str) or not isinstance(indices, Iterable):
            raise TypeError(f"heads[{name!r}] is {indices!r}; pass the numbers of its heads, as [0, 1] holds them")
    chosen = {
        name: sorted({size(f"a head of heads[{name!r}]", each, least=0) for each in indices})
        for name, indices in heads.items()
    }
    for name in chosen:
        if name not in names.values():
            raise ValueError(f"heads names {name!r}, but model has no such module; {nearest(name, names.values())}")
    came: set[str] = set()
    with watching(names, partial(_switch_off, heads=chosen, came=came), MATMULS):
        yield
    if idle := [name for name in chosen if name not in came]:
        raise ValueError(
            f"heads names {idle[0]!r}, but no call of attention came from it, so that nothing was switched off there; "
            f"{nearest(idle[0], came)}"
        )


@checked
def rollout(calls: Sequence[AttentionCall], *, residual: bool = True) -> Float[Tensor, "batch tokens tokens"]:
    """Multiply the layers' weights, averaged over heads: how much of each input token may have reached each output.

    With the residual connection, a layer's matrix is the mean of its weights and the identity; its rows sum to 1.

    Args:
        calls: what `watch` saw, in the order of the layers: one call of self-attention for each.
        residual: count the residual connection too, which carries each token past the attention: half of each row.

    Returns:
        (batch, tokens, tokens): a row for each token of the output, a column for each of the input.

    Raises:
        ValueError: calls is empty, or they differ in the number of sequences or of tokens, or queries and keys do.

    References:
        Abnar and Zuidema (2020), Quantifying Attention Flow in Transformers, section 3.

    Examples:
        >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), 2)
        >>> with watch(model) as seen:
        ...     output = model(torch.randn(1, 3, 6))
        >>> bool(torch.allclose(rollout(seen).sum(-1), torch.ones(1, 3)))
        True
    """
    if not len(calls):
        raise ValueError(
            calls._empty() if isinstance(calls, AttentionCalls) else "calls is empty: pass what watch(model) saw"
        )
    for call in calls:
        if not isinstance(call, AttentionCall):
            raise TypeError(f"calls holds what is of the type {type(call).__name__}; pass what watch(model) saw")
    tokens = calls[0].shape[-1]
    rolled: Tensor | None = None
    for call in calls:
        if call.shape[-2:] != (tokens, tokens):
            raise ValueError(
                f"the call in {call.module!r} has {call.shape[-2]} queries and {call.shape[-1]} keys, the first one "
                f"{tokens} keys; pass the calls of self-attention over one sequence: [call for call in seen if ...]"
            )
        if call.shape[0] != calls[0].shape[0]:
            raise ValueError(
                f"calls have {calls[0].shape[0]} sequences in {calls[0].module!r} and {call.shape[0]} in "
                f"{call.module!r}; pass the calls of one forward pass"
            )
        mixed = call.weights.mean(1)  # batch tokens tokens
        if residual:
            mixed = mixed + torch.eye(tokens, dtype=mixed.dtype, device=mixed.device)
            mixed = mixed / mixed.sum(-1, keepdim=True)
        rolled = mixed if rolled is None else mixed @ rolled
    assert rolled is not None
    return rolled


def _record(call: FunctionCall, seen: AttentionCalls, keep: str, only: Callable[[AttentionCall], bool] | None) -> Any:
    """Run a call, and add it to what was seen if it is one of attention."""
    inputs, recorded = inputs_of(call), None
    by_hand = call.func in SOFTMAXES and call.inside is None and call.argument(0, "input").dim() > 2
    if inputs is not None and call.name is None:
        seen.missed["a call of attention outside of model"] += 1
    elif isinstance(inputs, str):
        seen.missed[f"{inputs} in {call.name!r}"] += 1
    elif inputs is not None and call.name is not None:
        recorded = AttentionCall(call.name, inputs, fast_path=call.fast)
    elif by_hand and call.name is not None:
        shape = tuple(call.argument(0, "input").shape)
        seen.missed[f"a softmax over {shape} in {call.name!r}, which may be attention written out"] += 1
    result = call.run()
    if recorded is not None and (only is None or only(recorded)):
        if keep == "weights":
            recorded._keep_weights()
        seen._calls.append(recorded)
    return result


def _switch_off(call: FunctionCall, heads: Mapping[str, list[int]], came: set[str]) -> Any:
    """Run a call, with zeros in the place of what these heads of its module give."""
    result = call.run()
    if call.name is None or (shape := contexts_of(call, result)) is None:
        return result
    came.add(call.name)
    off = heads.get(call.name, [])
    for head in off:
        if head >= shape[-3]:
            raise ValueError(
                f"heads names head {head} of {call.name!r}; its call has {shape[-3]} heads, numbered from 0"
            )
    context: Tensor = result[0] if isinstance(result, tuple) else result
    index = torch.tensor(off, dtype=torch.long, device=context.device)
    context = context.reshape(shape).index_fill(-3, index, 0.0).reshape(context.shape)
    return (context, *result[1:]) if isinstance(result, tuple) else context
