"""What a whole model's attention did in one run: every call, fused or written out, and what it was connected to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from unmasked import _generators
from unmasked.watching import Call
from unmasked.watching.heard import (
    MATMULS,
    MHA,
    PRODUCTS,
    SDPA,
    SOFTMAXES,
    Event,
    Listener,
    inputs_of,
    listening,
    names_of,
)

__all__ = ["Heard", "Run", "hear"]

# What may stand between a product, its softmax and the next product without making it another table of scores.
_STEPS = frozenset(
    """add sub mul div true_divide multiply divide subtract truediv masked_fill where tanh to float double half bfloat16
    type type_as view reshape unflatten flatten transpose permute contiguous clone clamp maximum nan_to_num dropout tril
    triu squeeze unsqueeze expand getitem get cat repeat_interleave""".split()  # noqa: SIM905
)
_TIMES, _OVER = {"mul", "multiply"}, {"div", "true_divide", "divide", "truediv"}
_OTHER_NAMES = {"iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "truediv", "radd": "add", "rmul": "mul"}
_EINSUMS = {torch.einsum}
_ADDS = {torch.baddbmm, Tensor.baddbmm}


@dataclass
class Heard:
    """One call of attention. The axes are (batch, heads, tokens, features).

    Attributes:
        module: The innermost module that called.
        kernel: What ran; "written out" for a product, a softmax and a product.
        query, key, value: What went in, with the graph that they came from where the run keeps one.
        weights: What the values were averaged with.
        scale: What the products were multiplied by.
        bias: Whether something else than a mask was added to the scores.
        dropout: The probability with which a weight was dropped.
        axis: What the softmax ran over: "keys", "queries", or "another axis".
        softmax: Whether the weights are what the softmax gave.
        trusted: Whether PyTorch's own layer made the call, from its input to its output.
        context: What came out, as a leaf of the graph; None where the run keeps none.
        lay: Gives what has the axes of ``context`` these ones.
        ones: Whether what was added to the scores has only zeros and ones.
    """

    module: str
    kernel: str
    query: Tensor
    key: Tensor
    value: Tensor
    weights: Tensor
    scale: float
    bias: bool = False
    dropout: float = 0.0
    axis: str = "keys"
    softmax: bool = True
    trusted: bool = False
    context: Tensor | None = None
    lay: Callable[[Tensor], Tensor] = lambda x: x
    ones: bool = False
    before: list[tuple[str, Tensor]] = field(default_factory=list)  # outputs of the layers since the call before
    after: list[Tensor] = field(default_factory=list)  # inputs of the first layers that come next


@dataclass
class Run:
    """A run of a model.

    Attributes:
        output: What the model returned.
        calls: Its calls of attention, in their order.
        missed: What looked like attention and could not be recorded.
        inputs, outputs: Of each module that ran, the first tensor that went in and came out last.
    """

    output: Any = None
    calls: list[Heard] = field(default_factory=list)
    missed: Counter[str] = field(default_factory=Counter)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)


def hear(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, wired: bool = False) -> Run:
    """Run a model in evaluation mode, and hear its attention.

    Args:
        model: The model.
        args: What it is called with.
        kwargs: And by name.
        wired: Whether to keep the graph between each call and the layers beside it.
    """
    run, modes = Run(), [(module, module.training) for module in model.modules()]
    listener = _Hearing(names_of(model), run, _batch(args, kwargs), wired)
    try:
        model.eval()
        with (
            _generators.forked(),
            torch.set_grad_enabled(wired),
            _hooked(model, listener),
            listening(listener),
        ):
            run.output = model(*args, **kwargs)
    finally:
        for module, mode in modes:
            module.training = mode
    return run


def _batch(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    return next((x.size(0) for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.dim()), 1)


@contextmanager
def _hooked(model: nn.Module, listener: _Hearing) -> Iterator[None]:
    """Note what goes into every module, and cut the graph behind each layer with a matrix."""
    handles = []
    for name, module in getattr(model, "_orig_mod", model).named_modules():

        def enter(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            first = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
            if first is not None:
                listener.run.inputs[name] = first

        def leave(_: nn.Module, args: Any, output: Any, name: str = name) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            if isinstance(first, Tensor):
                listener.run.outputs[name] = first

        handles += [module.register_forward_pre_hook(enter, with_kwargs=True), module.register_forward_hook(leave)]
        weight = getattr(module, "weight", None)
        is_layer = isinstance(weight, Tensor) and weight.dim() == 2 and not isinstance(module, nn.Embedding)
        if listener.wired and is_layer and not list(module.children()):
            handles.append(module.register_forward_pre_hook(listener.reads))
            handles.append(module.register_forward_hook(lambda _, __, y, name=name: listener.cut(name, y)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class _Trace:
    """Where a tensor comes from: a product's scores, or the weights of a softmax over them."""

    query: Tensor
    key: Tensor
    scale: float = 1.0
    capped: bool = False
    dropout: float = 0.0
    scores: Tensor | None = None
    weights: Tensor | None = None
    axis: str = "keys"


class _Hearing(Listener):
    heard = Listener.heard | SOFTMAXES

    def __init__(self, names: Mapping[int, str], run: Run, batch: int, wired: bool):
        super().__init__(names)
        self.run, self.batch, self.wired = run, batch, wired
        self.traces: dict[int, tuple[Tensor, _Trace]] = {}  # with the tensor, so that no other takes its id
        self.layers: list[tuple[str, Tensor]] = []

    # Beside the calls

    def cut(self, name: str, output: Any) -> Any:
        if not isinstance(output, Tensor):
            return output
        leaf = output.detach().requires_grad_()
        self.layers.append((name, leaf))
        return leaf.clone()  # which may be written to

    def reads(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and self.run.calls and len(self.run.calls[-1].after) < 2:
            self.run.calls[-1].after.append(args[0])

    def noted(self, call: Heard, result: Tensor, lay: Callable[[Tensor], Tensor]) -> Tensor:
        call.before, self.layers, call.lay = self.layers, [], lay
        self.run.calls.append(call)
        if not self.wired or call.trusted:
            return result
        call.context = result.detach().requires_grad_()
        return call.context.clone()

    # The calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.heard:
            return super().__torch_function__(func, types, args, kwargs)
        kwargs = kwargs or {}
        if func in MATMULS | _EINSUMS | _ADDS | {Tensor.bmm}:
            return self.product(func, args, kwargs)
        result = func(*args, **kwargs)
        if self.traces and isinstance(result, Tensor):
            self.step(func, args, kwargs, result)
        return result

    def hear(self, event: Event) -> Any:
        inputs = inputs_of(event)
        if event.inside is None and event.func in PRODUCTS:
            return self.product(event.func, event.args, event.kwargs)
        if event.inside is None and event.func in SOFTMAXES:
            result = event.run()
            self.softmax(event, result)
            return result
        result = event.run()
        name = None if event.module is None else self.names[id(event.module)]
        if isinstance(inputs, str) or (inputs is not None and name is None):
            what = inputs if isinstance(inputs, str) else "a call of attention outside of the model"
            self.run.missed[f"{what} in {name!r}" if name is not None else what] += 1
        elif inputs is not None and name is not None:
            call = Call(name, inputs)
            bias, kept = call.bias, inputs.values
            heard = Heard(name, call.kernel, kept["query"], kept["key"], kept["value"], call.weights, call.scale)
            heard.bias, heard.dropout = bias is not None, call.dropout_p
            heard.ones = bias is not None and bool(((bias == 0) | (bias == 1)).all()) and bool((bias == 0).any())
            heard.trusted = event.inside is not None and event.inside.f_code is MHA.__code__
            if event.func is SDPA:
                return self.noted(heard, result, self.four)
            self.noted(heard, torch.empty(0), self.four)
            heard.context = None
        return result

    def product(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Follow a product of two tensors that both have a batch: scores, or weights with values."""
        result = func(*args, **kwargs)
        args = (*args, *(kwargs[name] for name in ("batch1", "batch2", "mat2", "other") if name in kwargs))
        found = _operands(func, args)
        if found is None:
            return result
        left, right, back = found
        first, second = (self.traced([x]) for x in _pair(func, args))
        if first is not None and first.weights is not None:
            return self.attended(first, left, right, result, back)
        if second is not None and second.weights is not None:
            self.run.missed[f"weights in {self.where!r} that stand on the right of their product with the values"] += 1
        elif first is None:
            key = right.transpose(-2, -1)
            self.traces[id(result)] = (result, _Trace(left, key, _alpha(func, kwargs)))
        return result

    def traced(self, args: Any) -> _Trace | None:
        for each in args:
            for x in each if isinstance(each, list | tuple) else (each,):
                if isinstance(x, Tensor) and id(x) in self.traces:
                    return self.traces[id(x)][1]
        return None

    def step(self, func: Any, args: Any, kwargs: Any, result: Tensor) -> None:
        """Follow scores and weights through what is done to them."""
        name = getattr(func, "__name__", "").strip("_")
        name = _OTHER_NAMES.get(name, name)
        if name not in _STEPS or (trace := self.traced(args)) is None:
            return
        found = _Trace(**vars(trace))
        if name in _TIMES | _OVER and found.weights is None:
            other = next((x for x in args if not (isinstance(x, Tensor) and id(x) in self.traces)), 1.0)
            if not isinstance(other, Tensor) or other.numel() == 1:
                found.scale *= float(other) if name in _TIMES else 1 / float(other)
        found.capped = found.capped or name == "tanh"
        if name == "dropout" and found.weights is not None and kwargs.get("training", True):
            found.dropout = float(kwargs.get("p", args[1] if len(args) > 1 else 0.5))
        self.traces[id(result)] = (result, found)

    def softmax(self, event: Event, result: Tensor) -> None:
        scores, name = event.given(0, "input"), event.module
        trace = self.traced([scores])
        if trace is None or name is None:
            if scores.dim() > 2 and name is not None:
                shape, where = tuple(scores.shape), self.names[id(name)]
                self.run.missed[f"a softmax over {shape} in {where!r}, of what is no product of two tensors"] += 1
            return
        place = event.given(1, "dim", event.kwargs.get("axis", -1)) % scores.dim()
        axis = {scores.dim() - 1: "keys", scores.dim() - 2: "queries"}.get(place, "another axis")
        self.traces[id(result)] = (
            result,
            _Trace(
                trace.query, trace.key, trace.scale, trace.capped, 0.0, scores.detach().clone(), result.detach(), axis
            ),
        )
        self.where = self.names[id(name)]

    def attended(self, trace: _Trace, weights: Tensor, value: Tensor, result: Tensor, back: Any) -> Tensor:
        """Note attention that was written out, where its weights meet the values."""
        assert trace.scores is not None
        assert trace.weights is not None
        query, key, value, weights, scores, soft = (
            self.four(x) for x in (trace.query, trace.key, value, weights, trace.scores, trace.weights)
        )
        keys = key.size(-2)
        if weights.size(-1) != keys or weights.shape[:-1] != scores.shape[:-1] or query.size(-2) != scores.size(-2):
            self.run.missed[f"a softmax in {self.where!r}, whose weights have other axes than its scores"] += 1
            return result
        with torch.no_grad(), torch._C.DisableTorchFunction():
            seen = soft[..., :keys] > 0
            many = query.size(1) // max(key.size(1), 1)
            products = query @ (key.repeat_interleave(many, 1) if 1 < key.size(1) < query.size(1) else key).mT
            rest = (scores[..., :keys] - trace.scale * products).masked_fill(~seen, 0.0)
            size = scores.masked_fill(scores < -1e4, 0.0).abs().max() + 1
            bias = bool(rest.abs().max() > 1e-4 * size)
            ones = bias and bool((rest.round().abs() <= 1).all()) and float((rest - rest.round()).abs().max()) < 1e-4
            same = torch.allclose(weights.detach(), soft[..., :keys], atol=1e-6) or trace.dropout > 0
        heard = Heard(self.where, "written out", query, key, value, weights.detach(), trace.scale, bias)
        heard.dropout, heard.axis, heard.softmax, heard.ones = trace.dropout, trace.axis, same, ones
        return self.noted(heard, result, lambda x: self.four(back(x)))

    def four(self, x: Tensor) -> Tensor:
        """Give it four axes; three may be (batch · heads, tokens, features)."""
        if x.dim() == 3:
            heads = x.size(0) // self.batch if x.size(0) % self.batch == 0 else 0
            return x.unflatten(0, (self.batch, heads)) if heads else x[None]
        return x if x.dim() == 4 else x.flatten(0, -4)


def _alpha(func: Any, kwargs: Any) -> float:
    return float(kwargs.get("alpha", 1.0)) if func in _ADDS else 1.0


def _operands(func: Any, args: Any) -> tuple[Tensor, Tensor, Any] | None:
    """The factors as (..., rows, inner) and (..., inner, columns), and how to lay the result out like that."""
    pair = _pair(func, args)
    if func in _EINSUMS:
        return _einsum(args[0], pair)
    if len(pair) != 2 or not all(isinstance(x, Tensor) and x.dim() >= 3 for x in pair):
        return None
    return pair[0], pair[1], lambda x: x


def _pair(func: Any, args: Any) -> list[Any]:
    """The two factors among a product's arguments."""
    if func in _EINSUMS:
        return list(args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:])
    return list(args[1:3] if func in _ADDS else args[:2])


def _einsum(equation: Any, pair: list[Any]) -> tuple[Tensor, Tensor, Any] | None:
    if not isinstance(equation, str) or len(pair) != 2 or "..." in equation or "->" not in equation:
        return None
    terms, out = equation.replace(" ", "").split("->")
    if terms.count(",") != 1:
        return None
    left, right = terms.split(",")
    shared = [c for c in left if c in right and c in out]
    inner = [c for c in left if c in right and c not in out]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    if len(rows) != 1 or len(columns) != 1 or len(inner) != 1 or not shared or set(out) != {*shared, *rows, *columns}:
        return None
    first = pair[0].permute([left.index(c) for c in (*shared, *rows, *inner)])
    second = pair[1].permute([right.index(c) for c in (*shared, *inner, *columns)])
    order = [out.index(c) for c in (*shared, *rows, *columns)]
    return first, second, lambda x: x.permute(order)
