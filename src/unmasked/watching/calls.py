"""A call of attention with its inputs and weights, and all calls of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, cast, overload

import torch
from torch import Tensor

from unmasked import _private, functional
from unmasked._shapes import Bool, Float
from unmasked.plot.tables import Table, Tabular
from unmasked.watching.heard import Inputs, allowed_of, weights_of

__all__ = ["AttentionCall", "AttentionCalls", "nearest"]

Method = TypeVar("Method", bound=Callable[[Any], Any])


def _computed(method: Method) -> Method:
    """Compute without gradients, and unseen by whoever watches."""

    @wraps(method)
    def computed(self: Any) -> Any:
        with torch.no_grad(), _private.unwatched():
            return method(self)

    return cast(Method, computed)


class AttentionCall:
    """One call of attention: its inputs, and the weights that it averaged the values with.

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
        >>> from unmasked import watch
        >>> module, x = torch.nn.MultiheadAttention(4, 2), torch.zeros(3, 4)
        >>> with watch(module) as seen:
        ...     output, _ = module(x, x, x)
        >>> seen[0].entropy  # of three equal weights: ln 3
        tensor([1.0986, 1.0986])
    """

    def __init__(self, module: str, inputs: Inputs, *, fast_path: bool = False) -> None:
        self.module, self.kernel, self.fast_path = module, inputs.kernel, fast_path
        self._values = {name: x.detach() if isinstance(x, Tensor) else x for name, x in inputs.values.items()}
        self._versions = {name: _private.version(x) for name, x in self._values.items()}
        self._weights: Tensor | None = None
        self._allowed: Tensor | None = None
        query: Tensor = self._values["query"]
        self._device = query.device
        self.shape = (*query.shape[:3], self._values["key"].size(2))
        self.scale: float = functional._scale(query, inputs.values["scale"])
        self.dropout_p: float = inputs.values.get("dropout_p", 0.0)

    @property
    def query(self) -> Float[Tensor, "batch heads queries head_dim"]:
        """The queries, before the scale."""
        return self._read("query")["query"]  # type: ignore[no-any-return]

    @property
    def key(self) -> Float[Tensor, "batch kv_heads keys head_dim"]:
        """The keys; fewer heads than the queries where heads share them."""
        return self._read("key")["key"]  # type: ignore[no-any-return]

    @property
    def value(self) -> Float[Tensor, "batch kv_heads keys value_dim"]:
        """The values."""
        return self._read("value")["value"]  # type: ignore[no-any-return]

    @property
    @_computed
    def allowed(self) -> Bool[Tensor, "..."] | None:
        """True where a query may see a key: by a mask, -inf in a bias, is_causal; None where all may see all."""
        if self._allowed is None and self._values:
            self._allowed = allowed_of(self._read("query", "key", "allowed", "bias"))
        return self._allowed

    @property
    @_computed
    def bias(self) -> Float[Tensor, "..."] | None:
        """The numbers that were added to the scores; None where they were none, or only zeros and -inf."""
        bias: Tensor | None = self._read("bias")["bias"]
        return None if bias is None or ((bias == 0) | (bias == -torch.inf)).all() else bias

    @property
    @_computed
    def weights(self) -> Float[Tensor, "batch heads queries keys"]:
        """The weights, before dropout, in float32 or wider: computed when first asked for, and kept."""
        if self._weights is None:
            self._weights = weights_of(self._read("query", "key", "allowed", "bias"))
        return self._weights

    @property
    @_computed
    def entropy(self) -> Float[Tensor, "heads"]:
        """Each head's entropy in nats, the mean over the queries that see a key: zero where one key takes all."""
        entropy = torch.special.entr(self.weights).sum(-1).masked_fill(self.blind, 0.0)  # batch heads queries
        each: Tensor = entropy.sum((0, 2)) / (~self.blind).sum((0, 2))
        return each

    @property
    @_computed
    def blind(self) -> Bool[Tensor, "batch heads queries"]:
        """The queries that may see no key."""
        if (allowed := self.allowed) is None:
            return torch.zeros(self.shape[:-1], dtype=torch.bool, device=self._device)
        return (~allowed.any(-1)).expand(self.shape[:-1])

    @property
    @_computed
    def nan(self) -> Bool[Tensor, "batch heads queries"]:
        """The queries with NaN among their weights."""
        return self.weights.isnan().any(-1)

    def _read(self, *names: str) -> dict[str, Any]:
        """Return the inputs, unless those of these names are gone or were written to."""
        if not self._values:
            raise ValueError(
                f'{names[0]} was not kept: watch(model, keep="inputs") keeps what went into each call, and a copy of a '
                "call has its weights alone"
            )
        for name in names:
            if _private.version(self._values[name]) != self._versions[name]:
                raise ValueError(
                    f"{name} of the call in {self.module!r} has been written to since (is it a cache?): "
                    'watch(model, keep="weights") computes the weights at once'
                )
        return self._values

    def __getstate__(self) -> dict[str, Any]:
        """Copy the weights alone: a copy of an input does not tell whether the input has been written to."""
        return vars(self) | {"_allowed": self.allowed, "_weights": self.weights, "_values": {}, "_versions": {}}

    def _keep_weights(self) -> None:
        vars(self).update(self.__getstate__())

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
        note = ", ".join(note for note, holds in notes.items() if holds)
        return [self.module or "(the model)", self.kernel, *map(str, self.shape), seen, note]

    def __repr__(self) -> str:
        heads = [(f"head {head}", f"{entropy:.3f}") for head, entropy in enumerate(self.entropy.tolist())]
        lost = int(self.nan.sum())
        tables = Table(_COLUMNS, [self._row()]), Table(("", "entropy"), heads)
        return "\n".join([*map(str, tables), *([f"NaN among the weights of {lost} queries"] if lost else [])])


_COLUMNS = ("module", "kernel", "batch", "heads", "queries", "keys", "sees", "note")


class AttentionCalls(Tabular, Sequence[AttentionCall]):
    """The calls of a run, in their order: a sequence that prints as a table.

    Attributes:
        missed: Calls that looked like attention and could not be recorded, and how often each came.

    Examples:
        >>> from unmasked import watch
        >>> module, x = torch.nn.MultiheadAttention(4, 2), torch.zeros(3, 4)
        >>> with watch(module) as seen:
        ...     output, _ = module(x, x, x)
        >>> seen
           module       kernel  batch  heads  queries  keys  sees  note
        0  (the model)  eager   1      2      3        3     all
    """

    def __init__(self) -> None:
        self.missed: Counter[str] = Counter()
        self._calls: list[AttentionCall] = []

    def __len__(self) -> int:
        return len(self._calls)

    @overload
    def __getitem__(self, index: int) -> AttentionCall: ...
    @overload
    def __getitem__(self, index: slice | str) -> list[AttentionCall]: ...
    def __getitem__(self, index: int | slice | str) -> AttentionCall | list[AttentionCall]:
        """One call by its index, several by a slice, or all calls of a module by its name."""
        if isinstance(index, str):
            calls = [call for call in self._calls if call.module == index]
            if not calls:
                raise KeyError(f"no call came from {index!r}; {nearest(index, (call.module for call in self._calls))}")
            return calls
        if not self._calls:
            raise IndexError(self._empty())
        if isinstance(index, int) and not -len(self) <= index < len(self):
            raise IndexError(f"call {index} of {len(self)}: they are numbered from 0 to {len(self) - 1}")
        return self._calls[index]

    @property
    def table(self) -> Table:
        """The calls as text, a row for each."""
        return Table(("", *_COLUMNS), [(str(n), *call._row()) for n, call in enumerate(self._calls)])

    def __repr__(self) -> str:
        return super().__repr__() if self._calls else self._empty()

    def _notes(self) -> list[str]:
        notes = [f"not recorded: {call}, {count} times" for call, count in self.missed.items()]
        if any(call.fast_path for call in self._calls):
            notes.append("fast path: unwatched, PyTorch runs other code there, which reads a floating mask otherwise")
        return notes

    def _empty(self) -> str:
        missed = "".join(f" Not recorded: {call}, {count} times." for call, count in self.missed.items())
        return (
            "no call of attention was recorded. watch sees torch.nn.functional.scaled_dot_product_attention, "
            "nn.MultiheadAttention, flex_attention and this library's, called by model inside the with; it cannot see "
            "attention written out (of transformers: load with attn_implementation='sdpa'), kernels of other libraries "
            f"(flash_attn, xformers), scripted or exported code.{missed}"
        )

    def _shown(self) -> tuple[Tensor, str]:
        shapes = {call.shape for call in self}
        if not self._calls:
            raise ValueError(self._empty())
        if len({shape[1:] for shape in shapes}) > 1:
            raise ValueError(f"the calls have {len(shapes)} shapes, so no one picture holds them: show(seen[0])")
        return torch.stack([call.weights[0] for call in self]), f"{len(self)} calls, sequence 0"


def nearest(name: str, names: Iterable[str]) -> str:
    """Say which names to choose in the place of one that is not there."""
    known = list(dict.fromkeys(names))
    close = get_close_matches(name, known, n=3, cutoff=0.3) or known[:3]
    return f"choose {' or '.join(map(repr, close))}" if close else "no call of attention was made at all"
