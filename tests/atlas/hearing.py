"""What a model's layers attend with: the products, weights and sums of a run, heard as they are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked.watching.heard import MATMULS, PRODUCTS, SDPA, SOFTMAXES, FunctionCall, names_of, watching

MOST = 2**21  # scores of one layer
LINEAR = {F.linear, torch.addmm}
_WITHOUT_OWN = (nn.Softmax, nn.Dropout, nn.Identity)


@dataclass
class Call:
    """A call of attention: queries, keys and values have the axes (items, heads, tokens, features)."""

    query: Tensor
    key: Tensor
    scores: Tensor  # what goes into the softmax
    weights: Tensor  # with which values were averaged: without the column of a sink
    value: Tensor | None = None
    fused: bool = False


class Hearing:
    """Hears one run: the first call of attention of each module."""

    def __init__(self, model: nn.Module, items: int) -> None:
        self.modules, self.items = dict(model.named_modules()), items
        self.calls: dict[str, Call] = {}
        self.outputs: dict[str, Any] = {}
        self.times = 1.0  # by which the products of queries and keys are multiplied
        self.context: Callable[[Tensor], Tensor] | None = None  # what takes the place of averaged values
        self.made: dict[str, list[Tensor]] = {}  # what linear layers give for the first token, by the module's name
        self._products: list[tuple[Tensor, Tensor, Tensor]] = []
        self._open: tuple[str, int] | None = None

    def run(self, call: FunctionCall) -> Any:
        """Make a call of a function, and note what it is of attention."""
        if call.func is SDPA:
            return self._fused(call)
        result = call.run()
        if call.func in LINEAR:
            self.made.setdefault(call.name or "", []).append(result.reshape(-1, result.size(-1))[0].double())
        elif call.func in SOFTMAXES:
            self._weighed(call, result)
        elif isinstance(result, Tensor) and result.dim() > 2:
            first, second = [x for x in (*call.args, *call.kwargs.values()) if isinstance(x, Tensor)][-2:]
            if self._open and first.numel() == self._open[1]:  # weights meet values
                heard = self.calls[self._open[0]]
                heard.weights, heard.value = self._four(first), self._four(second)
                self._open = None
                return result if self.context is None else self.context(result)
            self._products = [*self._products[-5:], (first, second, result.clone())]
            return result * self.times if result.size(-1) == second.size(-1) > 3 and self.times != 1 else result
        return result

    def _owner(self, name: str | None) -> str | None:
        while name and isinstance(self.modules[name], _WITHOUT_OWN):
            name = name.rpartition(".")[0]
        return name

    def _four(self, x: Tensor) -> Tensor:
        if x.dim() == 3:
            return x.unflatten(0, (self.items, -1)) if x.size(0) % self.items == 0 else x[None]
        return x.flatten(0, -4)

    def _weighed(self, call: FunctionCall, weights: Tensor) -> None:
        name, scores = self._owner(call.name), call.argument(0, "input")
        if name is None or scores.dim() < 3:
            return
        queries, keys = scores.shape[-2:]
        if scores.numel() > MOST:
            raise ValueError(f"its tables of scores are {tuple(scores.shape)}, which takes too long")
        for first, second, product in reversed(self._products):
            sunk = keys - product.size(-1)  # a sink is one more column
            if (
                product.size(-2) != queries
                or sunk not in (0, 1)
                or product.numel() // product.size(-1) * keys != scores.numel()
            ):
                continue
            if first.size(-2) == queries and second.size(-1) == keys - sunk:
                if name not in self.calls or self.context is not None:
                    self._open = (name, weights.numel() // keys * (keys - sunk))
                if name not in self.calls:
                    parts = first, second.mT, scores[..., : keys - sunk], weights[..., : keys - sunk]
                    self.calls[name] = Call(*map(self._four, parts))
            break
        self._products = []

    def _fused(self, call: FunctionCall) -> Any:
        query, key, value = (call.argument(n, name) for n, name in enumerate(("query", "key", "value")))
        name = self._owner(call.name)
        if name is not None and query.dim() > 2:
            mask, scale = call.argument(3, "attn_mask"), call.kwargs.get("scale")
            query, key, value = (self._four(x) for x in (query, key, value))
            keys = key.repeat_interleave(query.size(1) // key.size(1), 1)
            if query.size(-2) * keys.size(-2) * query.size(0) * query.size(1) > MOST:
                raise ValueError(f"its queries are {tuple(query.shape)}, which takes too long")
            scores = query @ keys.mT * (query.size(-1) ** -0.5 if scale is None else scale)
            if mask is not None:
                scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
            if call.argument(5, "is_causal", False):
                scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
            self.calls.setdefault(name, Call(query, key, scores, scores.softmax(-1).nan_to_num(), value, True))
        result = call.run()
        return result if self.context is None else self.context(result)


@contextmanager
def given(model: nn.Module, names: dict[str, bool], change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change the tokens that go into these modules, and where keys are of another sequence, the tokens of that one."""

    def enter(crosses: bool) -> Any:
        def changed(_: nn.Module, args: Any, kwargs: Any) -> Any:
            every = [*enumerate(args), *kwargs.items()]
            found = [(n, x) for n, x in every if isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 2]
            both = [(n, x) for n, x in found if x.size(-1) == found[0][1].size(-1)][: 2 if crosses else 1]
            new = {n: change(x) for n, x in both}
            return tuple(new.get(n, x) for n, x in enumerate(args)), {n: new.get(n, x) for n, x in kwargs.items()}

        return changed

    modules = dict(model.named_modules())
    handles = [modules[n].register_forward_pre_hook(enter(both), with_kwargs=True) for n, both in names.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def hear(model: nn.Module, inputs: dict[str, Any], items: int, names: tuple[str, ...] = (), **options: Any) -> Hearing:
    """Run a model, and hear it; of the modules of these names, note what they give."""
    hearing = Hearing(model, items)
    vars(hearing).update(options)

    def leave(name: str) -> Any:
        def note(_: nn.Module, args: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            hearing.outputs.setdefault(name, first)

        return note

    handles = [hearing.modules[name].register_forward_hook(leave(name)) for name in names]
    try:
        with (
            torch.no_grad(),
            watching(
                names_of(model), hearing.run, SOFTMAXES | MATMULS | PRODUCTS | LINEAR | {Tensor.bmm, Tensor.baddbmm}
            ),
        ):
            model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return hearing
