"""What is asked of a whole model: its calls of attention, what a head is worth, and what reaches what."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unmasked._checks import checked, size
from unmasked._shapes import Float
from unmasked.watching.calls import Call, Seen, near
from unmasked.watching.heard import MATMULS, SOFTMAXES, Event, Listener, contexts_of, inputs_of, listening, names_of

__all__ = ["ablate", "rollout", "watch"]


@checked
@contextmanager
def watch(
    model: nn.Module,
    *,
    keep: Literal["inputs", "weights"] = "inputs",
    only: Callable[[Call], bool] | None = None,
) -> Iterator[Seen]:
    """Record every call of attention that a model makes, in any code that PyTorch lets be watched.

    That is `torch.nn.functional.scaled_dot_product_attention`, as models of transformers call it by default,
    nn.MultiheadAttention and the layers made of it, flex_attention, and this library's functions and modules. Compiled
    models run uncompiled in the meantime. Nothing is patched, nothing stays behind, and only this thread is watched.

    Attention that is written out (a product, a softmax, a product) cannot be seen, nor can kernels of other libraries
    such as FlashAttention's own, or scripted and exported code: where nothing is recorded, a warning says so.

    PyTorch's layers leave their fast path while somebody watches, as they do for hooks: see `unmasked.watching.Call`.

    Args:
        model: the model; calls that none of its modules makes are left out.
        keep: "inputs" keeps references to queries, keys, values and masks, and computes weights when they are asked
            for. "weights" computes them at once and keeps nothing else: for a cache, which is written to again.
        only: a function of a `Call` that says whether to keep it.

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
    seen = Seen()
    with listening(_Watching(names_of(model), seen, keep == "weights", only)):
        yield seen
    if not seen:
        dropped = " only= kept none of the calls." if only else ""
        warnings.warn(seen._empty() + dropped, stacklevel=3)


@checked
@contextmanager
def ablate(model: nn.Module, heads: Mapping[str, Iterable[int]]) -> Iterator[None]:
    """Switch heads off: what they give is zero, as if their columns of the output projection were.

    What a head's absence changes is its effect. Its weights do not tell: a head may look hard at a token whose value is
    small, or whose part of the output projection is.

    Args:
        model: the model.
        heads: the numbers of the heads, by the qualified name of the module that makes the call, as `watch` tells it.

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
    for name, numbers in heads.items():
        if not isinstance(name, str):
            raise TypeError(f"heads names {name!r}; pass the qualified names of modules, as watch tells them")
        if isinstance(numbers, str) or not isinstance(numbers, Iterable):
            raise TypeError(f"heads[{name!r}] is {numbers!r}; pass the numbers of its heads, as [0, 1] holds them")
    chosen = {
        name: sorted({size(f"a head of heads[{name!r}]", each, least=0) for each in numbers})
        for name, numbers in heads.items()
    }
    for name in chosen:
        if name not in names.values():
            raise ValueError(f"heads names {name!r}, but model has no such module; {near(name, names.values())}")
    mode = _Ablating(names, chosen)
    with listening(mode):
        yield
    if idle := [name for name in chosen if not mode.came[name]]:
        raise ValueError(
            f"heads names {idle[0]!r}, but no call of attention came from it, so that nothing was switched off there; "
            f"{near(idle[0], mode.came)}"
        )


@checked
def rollout(calls: Sequence[Call], *, residual: bool = True) -> Float[Tensor, "batch tokens tokens"]:
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
        raise ValueError(calls._empty() if isinstance(calls, Seen) else "calls is empty: pass what watch(model) saw")
    for call in calls:
        if not isinstance(call, Call):
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


class _Watching(Listener):
    heard = Listener.heard | SOFTMAXES

    def __init__(
        self, names: Mapping[int, str], seen: Seen, weights: bool, only: Callable[[Call], bool] | None
    ) -> None:
        super().__init__(names)
        self.seen, self.weights, self.only = seen, weights, only

    def hear(self, event: Event) -> Any:
        name = None if event.module is None else self.names[id(event.module)]
        inputs, call = inputs_of(event), None
        if inputs is not None and name is None:
            self.seen.missed["a call of attention outside of model"] += 1
        elif isinstance(inputs, str):
            self.seen.missed[f"{inputs} in {name!r}"] += 1
        elif inputs is not None and name is not None:
            call = Call(name, inputs, fast_path=event.fast)
        elif (
            event.func in SOFTMAXES and event.inside is None and name is not None and event.given(0, "input").dim() > 2
        ):
            shape = tuple(event.given(0, "input").shape)
            self.seen.missed[f"a softmax over {shape} in {name!r}, which may be attention written out"] += 1
        result = event.run()
        if call is not None and (self.only is None or self.only(call)):
            if self.weights:
                call._keep_weights()
            self.seen._calls.append(call)
        return result


class _Ablating(Listener):
    heard = Listener.heard | MATMULS

    def __init__(self, names: Mapping[int, str], heads: Mapping[str, list[int]]) -> None:
        super().__init__(names)
        self.heads, self.came = heads, Counter[str]()

    def hear(self, event: Event) -> Any:
        result = event.run()
        if event.module is None or (shape := contexts_of(event, result)) is None:
            return result
        name = self.names[id(event.module)]
        self.came[name] += 1
        heads = self.heads.get(name, [])
        for head in heads:
            if not 0 <= head < shape[-3]:
                raise ValueError(
                    f"heads names head {head} of {name!r}; its call has {shape[-3]} heads, numbered from 0"
                )
        context: Tensor = result[0] if isinstance(result, tuple) else result
        which = torch.tensor(heads, dtype=torch.long, device=context.device)
        context = context.reshape(shape).index_fill(-3, which, 0.0).reshape(context.shape)
        return (context, *result[1:]) if isinstance(result, tuple) else context
