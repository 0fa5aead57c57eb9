"""A call of attention as it was heard, and all calls of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, overload

import torch
from torch import Tensor

from unmasked import functional
from unmasked._shapes import Bool, Float
from unmasked.plot.tables import Table, Tabular
from unmasked.watching.heard import Inputs, allowed_of

__all__ = ["Call", "Seen", "near"]


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
        >>> from unmasked import watch
        >>> module, x = torch.nn.MultiheadAttention(4, 2), torch.zeros(3, 4)
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
        self.scale: float = functional._scale(query, inputs.values["scale"])
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
            if not self._unwritten(name):
                raise ValueError(
                    f"{name} of the call in {self.module!r} has been written to since (is it a cache?): "
                    'watch(model, keep="weights") computes the weights at once'
                )
        return self._values

    def _unwritten(self, name: str) -> bool:
        return _version(self._values[name]) == self._versions[name]

    def __getstate__(self) -> dict[str, Any]:
        """What a copy takes along: the numbers of versions are those of the tensors here, and not of its own."""
        if "flex" in self._values:  # functions of the caller's, which may not go to another process
            kept: dict[str, Any] = {"_weights": self.weights, "_allowed": self.allowed, "_values": {}, "_versions": {}}
            return vars(self) | kept
        return vars(self) | {"_versions": {name: self._unwritten(name) for name in self._values}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._versions = {name: _version(self._values[name]) if same else -1 for name, same in self._versions.items()}

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
        tables = Table(_COLUMNS, [self._row()]), Table(("", "entropy"), heads)
        return "\n".join([*map(str, tables), *([f"NaN among the weights of {lost} queries"] if lost else [])])


_COLUMNS = ("module", "kernel", "batch", "heads", "queries", "keys", "sees", "note")


class Seen(Tabular, Sequence[Call]):
    """The calls of a run, in their order: a sequence that prints as a table.

    Attributes:
        missed: What looked like attention and could not be recorded, and how often.

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
                raise KeyError(f"no call came from {index!r}; {near(index, (call.module for call in self._calls))}")
            return found
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


def near(name: str, names: Iterable[str]) -> str:
    """What to choose in the place of a name that is not there."""
    known = list(dict.fromkeys(names))
    close = get_close_matches(name, known, n=3, cutoff=0.3) or known[:3]
    return f"choose {' or '.join(map(repr, close))}" if close else "no call of attention was made at all"


def _version(x: Any) -> int | None:
    return x._version if isinstance(x, Tensor) and not x.is_inference() else None
