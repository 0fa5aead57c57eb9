"""Watching a model attend: every call of attention with its weights, heads switched off, and weights rolled out.

A model that runs `torch.nn.functional.scaled_dot_product_attention` never makes its table of weights, so it has none to
return. `watch` keeps what went into each call, and computes the weights when they are asked for.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from unmasked._calls import (
    MATMULS,
    SOFTMAXES,
    Event,
    Inputs,
    Listener,
    allowed_of,
    contexts_of,
    inputs_of,
    listening,
    names_of,
)
from unmasked._shapes import Bool, Float
from unmasked._table import Table

__all__ = ["Call", "Seen", "ablate", "rollout", "watch"]


class Call:
    """One call of attention: what went in, and the weights that it averaged the values with.

    The axes are (batch, heads, tokens, features), whatever the call had: a call without heads has one.

    Attributes:
        module: The qualified name of the innermost module that called, "" for the model itself.
        kernel: What ran: "flash", "efficient", "cudnn" or "math" of PyTorch's function; "eager" where code that makes
            the table of weights did, as with need_weights=True; "flex".
        fast_path: Whether PyTorch, unwatched, would run its layer's fast path here, which it leaves where somebody
            watches. That path reads every nonzero number of a floating mask as -inf, gives NaN where a query sees
            nothing, and zeros for padding.
        shape: (batch, heads, queries, keys).
        scale: What the dot products are multiplied by.
        dropout_p: The probability with which a weight was dropped; the weights here are those before.

    Examples:
        >>> module, x = nn.MultiheadAttention(4, 2), torch.zeros(3, 4)
        >>> with watch(module) as seen:
        ...     output, _ = module(x, x, x)
        >>> seen[0].entropy  # of three equal weights: ln 3
        tensor([1.0986, 1.0986])
    """

    def __init__(self, module: str, inputs: Inputs, *, fast_path: bool = False) -> None:
        self.module, self.kernel, self.fast_path = module, inputs.kernel, fast_path
        self._weigh = inputs.weigh
        self._values = {name: x.detach() if isinstance(x, Tensor) else x for name, x in inputs.values.items()}
        self._versions = {name: _version(x) for name, x in self._values.items()}
        self._weights: Tensor | None = None
        self._allowed: Tensor | None = None
        query: Tensor = self._values["query"]
        self._device = query.device
        self.shape = (*query.shape[:3], self._values["key"].size(2))
        self.scale: float = max(query.size(-1), 1) ** -0.5 if inputs.values["scale"] is None else inputs.values["scale"]
        self.dropout_p: float = inputs.values.get("dropout_p", 0.0)

    @property
    def query(self) -> Float[Tensor, "batch heads queries head_dim"]:
        """The queries, before the scale."""
        query: Tensor = self._read("query")["query"]
        return query

    @property
    def key(self) -> Float[Tensor, "batch kv_heads keys head_dim"]:
        """The keys; fewer heads than the queries where heads share them."""
        key: Tensor = self._read("key")["key"]
        return key

    @property
    def value(self) -> Float[Tensor, "batch kv_heads keys value_dim"]:
        """The values."""
        value: Tensor = self._read("value")["value"]
        return value

    @property
    def allowed(self) -> Bool[Tensor, "..."] | None:
        """Who may see whom, True = may see: a mask, -inf in a bias, is_causal; None where all may see all."""
        if self._allowed is None and self._values:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                self._allowed = allowed_of(self._read("query", "key", "allowed", "bias"))
        return self._allowed

    @property
    def bias(self) -> Float[Tensor, "..."] | None:
        """What was added to the scores; None where that was nothing, or only zeros and -inf."""
        bias: Tensor | None = self._read("bias")["bias"]
        with torch._C.DisableTorchFunction():
            return None if bias is None or ((bias == 0) | (bias == -torch.inf)).all() else bias

    @property
    def weights(self) -> Float[Tensor, "batch heads queries keys"]:
        """The weights, before dropout, in float32 or wider: computed when first asked for, and kept."""
        if self._weights is None:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                self._weights = self._weigh(self._read("query", "key", "allowed", "bias"))
        return self._weights

    @property
    def entropy(self) -> Float[Tensor, "heads"]:
        """Each head's entropy in nats, the mean over the queries that see a key: zero where one key takes all."""
        with torch._C.DisableTorchFunction():
            entropy = torch.special.entr(self.weights).sum(-1).masked_fill(self.blind, 0.0)  # batch heads queries
            each: Tensor = entropy.sum((0, 2)) / (~self.blind).sum((0, 2))
            return each

    @property
    def blind(self) -> Bool[Tensor, "batch heads queries"]:
        """The queries that may see no key."""
        with torch._C.DisableTorchFunction():
            if (allowed := self.allowed) is None:
                return torch.zeros(self.shape[:-1], dtype=torch.bool, device=self._device)
            return (~allowed.any(-1)).expand(self.shape[:-1])

    @property
    def nan(self) -> Bool[Tensor, "batch heads queries"]:
        """The queries with NaN among their weights."""
        with torch._C.DisableTorchFunction():
            return self.weights.isnan().any(-1)

    def _read(self, *names: str) -> dict[str, Any]:
        """What went in, if it is still what it was."""
        if not self._values:
            raise ValueError(f'{names[0]} was not kept: watch(model, keep="inputs") keeps what went into each call')
        for name in names:
            if _version(self._values[name]) != self._versions[name]:
                raise ValueError(
                    f"{name} of the call in {self.module!r} has been written to since (is it a cache?): "
                    'watch(model, keep="weights") computes the weights at once'
                )
        return self._values

    def _keep_weights(self) -> None:
        self._allowed, self._weights, self._values = self.allowed, self.weights, {}

    def _shown(self) -> tuple[Tensor, str]:
        return self.weights, self.module or "weights"

    def _row(self) -> list[str]:
        allowed, blind = self.allowed, int(self.blind.sum())
        notes = {
            "bias": bool(self._values) and self.bias is not None,
            f"dropout {self.dropout_p:g}": self.dropout_p > 0,
            f"{blind} blind": blind > 0,
            "fast path": self.fast_path,
        }
        seen = "all" if allowed is None else f"{allowed.double().mean():.0%}"
        told = ", ".join(note for note, holds in notes.items() if holds)
        return [self.module or "(the model)", self.kernel, *map(str, self.shape), seen, told]

    def __repr__(self) -> str:
        heads = [(f"head {head}", f"{entropy:.3f}") for head, entropy in enumerate(self.entropy.tolist())]
        lost = int(self.nan.sum())
        tables = Table(_COLUMNS, [self._row()], tabs=False), Table(("", "entropy"), heads, tabs=False)
        return "\n".join([*map(str, tables), *([f"NaN among the weights of {lost} queries"] if lost else [])])


_COLUMNS = ("module", "kernel", "batch", "heads", "queries", "keys", "sees", "note")


class Seen(Sequence[Call]):
    """The calls of a run, in their order: a sequence that prints as a table.

    Attributes:
        missed: What looked like attention and could not be recorded, and how often.

    Examples:
        >>> module, x = nn.MultiheadAttention(4, 2), torch.zeros(3, 4)
        >>> with watch(module) as seen:
        ...     output, _ = module(x, x, x)
        >>> seen
           module       kernel  batch  heads  queries  keys  sees  note
        0  (the model)  eager   1      2      3        3     all
    """

    def __init__(self) -> None:
        self.missed: Counter[str] = Counter()
        self._calls: list[Call] = []

    def __len__(self) -> int:
        return len(self._calls)

    @overload
    def __getitem__(self, index: int) -> Call: ...
    @overload
    def __getitem__(self, index: slice | str) -> list[Call]: ...
    def __getitem__(self, index: int | slice | str) -> Call | list[Call]:
        """One call by its number, several by a slice, or all calls of a module by its name."""
        if isinstance(index, str):
            found = [call for call in self._calls if call.module == index]
            if not found:
                raise KeyError(f"no call came from {index!r}; {_choose(index, (call.module for call in self._calls))}")
            return found
        if not self._calls:
            raise IndexError(self._empty())
        if isinstance(index, int) and not -len(self) <= index < len(self):
            raise IndexError(f"call {index} of {len(self)}: they are numbered from 0 to {len(self) - 1}")
        return self._calls[index]

    @property
    def table(self) -> Table:
        """The calls as text, a row for each."""
        return Table(("", *_COLUMNS), [(str(n), *call._row()) for n, call in enumerate(self._calls)], tabs=False)

    def __repr__(self) -> str:
        return "\n".join([str(self.table), *self._notes()] if self._calls else [self._empty()])

    def _repr_html_(self) -> str:
        return self.table._repr_html_() + "".join(f"<p>{note}</p>" for note in self._notes())

    def _notes(self) -> list[str]:
        notes = [f"not recorded: {what}, {count} times" for what, count in self.missed.items()]
        if any(call.fast_path for call in self._calls):
            notes.append("fast path: unwatched, PyTorch runs other code there, which reads a floating mask otherwise")
        return notes

    def _empty(self) -> str:
        told = "".join(f" Not recorded: {what}, {count} times." for what, count in self.missed.items())
        return (
            "no call of attention was recorded. watch sees torch.nn.functional.scaled_dot_product_attention, "
            "nn.MultiheadAttention, flex_attention and this library's, called by model inside the with; it cannot see "
            "attention written out (of transformers: load with attn_implementation='sdpa'), kernels of other libraries "
            f"(flash_attn, xformers), scripted or exported code.{told}"
        )

    def _shown(self) -> tuple[Tensor, str]:
        shapes = {call.shape for call in self}
        if not self._calls:
            raise ValueError(self._empty())
        if len({shape[1:] for shape in shapes}) > 1:
            raise ValueError(f"the calls have {len(shapes)} shapes, so no one picture holds them: show(seen[0])")
        return torch.stack([call.weights[0] for call in self]), f"{len(self)} calls, sequence 0"


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
    chosen = {name: sorted(set(numbers)) for name, numbers in heads.items()}
    for name in chosen:
        if name not in names.values():
            raise ValueError(f"heads names {name!r}, but model has no such module; {_choose(name, names.values())}")
    mode = _Ablating(names, chosen)
    with listening(mode):
        yield
    if idle := [name for name in chosen if not mode.came[name]]:
        raise ValueError(
            f"heads names {idle[0]!r}, but no call of attention came from it, so that nothing was switched off there; "
            f"{_choose(idle[0], mode.came)}"
        )


def rollout(calls: Sequence[Call], *, residual: bool = True) -> Float[Tensor, "batch tokens tokens"]:
    """Multiply the layers' weights, averaged over heads: how much of each input token may have reached each output.

    With the residual connection, a layer's matrix is the mean of its weights and the identity; its rows sum to 1.

    Args:
        calls: what `watch` saw, in the order of the layers: one call of self-attention for each.
        residual: count the residual connection too, which carries each token past the attention: half of each row.

    Returns:
        (batch, tokens, tokens): a row for each token of the output, a column for each of the input.

    Raises:
        ValueError: calls is empty, or they are not all of one number of tokens, queries and keys alike.

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
    tokens = calls[0].shape[-1]
    rolled: Tensor | None = None
    for call in calls:
        if call.shape[-2:] != (tokens, tokens):
            raise ValueError(
                f"the call in {call.module!r} has {call.shape[-2]} queries and {call.shape[-1]} keys, the first one "
                f"{tokens} keys; pass the calls of self-attention over one sequence: [call for call in seen if ...]"
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


def _choose(name: str, names: Iterable[str]) -> str:
    known = list(dict.fromkeys(names))
    close = get_close_matches(name, known, n=3, cutoff=0.3) or known[:3]
    return f"choose {' or '.join(map(repr, close))}" if close else "no call of attention was made at all"


def _version(x: Any) -> int | None:
    return x._version if isinstance(x, Tensor) and not x.is_inference() else None
