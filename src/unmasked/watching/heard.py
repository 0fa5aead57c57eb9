"""Finds the calls of attention among all calls that a model makes, and reads the inputs of each."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unmasked import _private, functional, masks
from unmasked._modes import uncompiled
from unmasked.kernels import _kernel_name

__all__ = [
    "MATMULS",
    "SOFTMAXES",
    "FunctionCall",
    "Inputs",
    "allowed_of",
    "contexts_of",
    "inputs_of",
    "names_of",
    "watching",
    "weights_of",
]

SDPA, MHA = F.scaled_dot_product_attention, F.multi_head_attention_forward
PRODUCTS = {torch.bmm, torch.baddbmm}
MATMULS = {torch.matmul, Tensor.matmul, Tensor.__matmul__}
SOFTMAXES = {F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax}
_OPENED = _private.opened(MHA)
_OURS = inspect.signature(functional.attend).parameters
_THREE = ("query", "key", "value")

Values = Mapping[str, Any]


class Inputs(NamedTuple):
    """The kernel and the arguments of a call: axes are (batch, heads, tokens, features), a mask is boolean or a bias.

    The values are query, key, value, allowed, bias, scale, dropout_p; diagonal, to which a causal mask keeps its ones,
    or None; is_nan, whether a query that sees nothing has weights of NaN; and further options of the call.
    """

    kernel: str
    values: dict[str, Any]


class FunctionCall(NamedTuple):
    """A call of a function of PyTorch."""

    func: Any
    args: Any
    kwargs: Any
    name: str | None  # of the innermost module of the model that is running; None where none is
    module: nn.Module | None  # the same
    inside: FrameType | None  # the function of attention that this call is a part of, PyTorch's or ours
    fast: bool  # whether PyTorch's layer would have taken its fast path, had nobody listened

    @property
    def local(self) -> Values:
        """The variables of the function of attention."""
        return self.inside.f_locals if self.inside else {}

    @property
    def is_ours(self) -> bool:
        """True where the function of attention is this library's."""
        return self.inside is not None and self.inside.f_code is not MHA.__code__

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """An argument, by its place or its name."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(name, default)

    def run(self) -> Any:
        """Call the function, and return what it returns."""
        return self.func(*self.args, **self.kwargs)


class _Watcher(TorchFunctionMode):
    def __init__(self, names: Mapping[int, str], functions: frozenset[Any], run: Callable[[FunctionCall], Any]) -> None:
        super().__init__()
        self.names, self.functions, self.run = names, functions, run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass a call on: most have nothing to do with attention, and must not wait."""
        if func not in self.functions:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        if func is MHA:
            with self:
                return _OPENED(*args, **kwargs)
        module, inside, fast = _callers(sys._getframe(1), self.names)
        name = None if module is None else self.names[id(module)]
        return self.run(FunctionCall(func, args, kwargs, name, module, inside, fast))


@contextmanager
def watching(names: Mapping[int, str], run: Callable[[FunctionCall], Any], more: Iterable[Any] = ()) -> Iterator[None]:
    """Let `run` make the calls of this thread that may be of attention, and return what they give.

    Names are those of the model's modules, by id; functions are watched for beyond those that begin or end attention.
    """
    functions = {SDPA, MHA, *PRODUCTS, *more}
    if "torch.nn.attention.flex_attention" in sys.modules:
        functions.add(torch.ops.higher_order.flex_attention)
    # Compiled code calls nothing that could be heard, and flex_attention compiles itself.
    with uncompiled(), _Watcher(names, frozenset(functions), run):
        yield


def names_of(model: nn.Module) -> dict[int, str]:
    """The qualified names of a model's modules, by their ids."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; pass the torch.nn.Module whose calls are meant")
    return {id(module): name for name, module in _private.uncompiled_module(model).named_modules()}


def inputs_of(call: FunctionCall) -> Inputs | str | None:
    """The inputs of a call of attention; None where this call begins none, or the reason why they cannot be read."""
    if call.func is SDPA:
        return _sdpa(call)
    if call.func in SOFTMAXES:
        return Inputs("eager", _our_values(call.local)) if call.is_ours else None
    if call.func in PRODUCTS:
        begins = call.inside is not None and not call.is_ours and "attn_output_weights" not in call.local
        return _mha(call.local) if begins else None
    query, key, value, score_mod, block_mask, scale, _, *buffers = call.args
    values = {"query": query, "key": key, "value": value, "allowed": None, "bias": None, "diagonal": None}
    return Inputs("flex", values | {"scale": scale, "flex": (score_mod, block_mask, scale, {}, *buffers)})


def contexts_of(call: FunctionCall, result: Any) -> tuple[int, ...] | None:
    """The shape (..., heads, queries, features) of the contexts; None where this call does not end one of attention."""
    local = call.local
    if call.func in PRODUCTS:
        ends = not call.is_ours and local.get("attn_output_weights") is call.argument(0, "input")
        return (local["bsz"], local["num_heads"], *result.shape[-2:]) if ends else None
    if call.func in MATMULS and not (call.is_ours and local.get("value") is call.argument(1, "other")):
        return None
    context = result[0] if isinstance(result, tuple) else result
    if context.dim() < 3:
        raise ValueError(f"a call gives {tuple(context.shape)}, which has no axis of heads to switch off")
    groups = _groups(call.module, context) if call.func is SDPA else 1
    return (*context.shape[:-3], context.size(-3) * groups, context.size(-2) // groups, context.size(-1))


def allowed_of(values: Values) -> Tensor | None:
    """Return True where a query may see a key, by a mask, -inf in a bias and the causal option; None for everywhere."""
    allowed, bias, diagonal = values["allowed"], values["bias"], values["diagonal"]
    queries, keys = values["query"].size(-2), values["key"].size(-2)
    if "flex" in values:
        allowed = _flex_scores(values) != -torch.inf
    if bias is not None and (bias == -torch.inf).any():
        allowed = masks.combine(allowed, bias != -torch.inf)
    if diagonal is not None:
        causal = torch.ones(queries, keys, dtype=torch.bool, device=values["query"].device).tril(diagonal)
        allowed = masks.combine(allowed, causal)
    return None if allowed is None or allowed.all() else allowed


def _sdpa(call: FunctionCall) -> Inputs | str:
    """Read a call of PyTorch's function; if ours makes it, the masks are those that ours was called with."""
    query, key, value = (call.argument(index, name) for index, name in enumerate(_THREE))
    if query.is_nested:
        return "a call with nested tensors"
    mask, dropout_p = call.argument(3, "attn_mask"), call.argument(4, "dropout_p", 0.0)
    is_causal, scale = call.argument(5, "is_causal", False), call.kwargs.get("scale")
    grouped = call.kwargs.get("enable_gqa", False)
    kernel = _kernel_name(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=grouped)
    if call.is_ours:
        return Inputs(kernel, _our_values(call.local))
    values = _with_four_axes(query, key, value, mask, _groups(call.module, query))
    return Inputs(kernel, values | {"diagonal": 0 if is_causal else None, "scale": scale, "dropout_p": dropout_p})


def _mha(local: Values) -> Inputs:
    """Read a call of nn.MultiheadAttention with need_weights=True, where it multiplies queries by keys."""
    by_head = (local["bsz"], local["num_heads"])
    query, key, value = (local[name].unflatten(0, by_head) for name in "qkv")
    mask = local["attn_mask"]
    mask = mask.unflatten(0, by_head) if mask is not None and mask.size(0) > 1 else mask
    values = _with_four_axes(query, key, value, mask) | {"diagonal": None, "scale": None, "is_nan": True}
    return Inputs("eager", values | {"dropout_p": local["dropout_p"]})


def _our_values(local: Values) -> dict[str, Any]:
    """The arguments of this library's function, whose causal option is aligned at the bottom right."""
    arguments = {name: local[name] for name in _OURS if name in local}
    query, key, value = (arguments[name] for name in _THREE)
    diagonal = key.size(-2) - query.size(-2) if arguments["is_causal"] else None
    masked = {name: _with_four_axes(query, key, value, arguments[name])[name] for name in ("allowed", "bias")}
    return arguments | _with_four_axes(query, key, value, None) | masked | {"diagonal": diagonal}


def _with_four_axes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, groups: int = 1) -> dict[str, Any]:
    def four(x: Tensor) -> Tensor:
        if x.dim() > 4:
            x = x.expand(*torch.broadcast_shapes(query.shape[:-3], key.shape[:-3]), *x.shape[-3:])
            return x.flatten(0, -4)
        return x if x.dim() == 4 else x[(None,) * (4 - x.dim())]

    mask = None if mask is None else four(mask)
    query, key, value = four(query), four(key), four(value)
    if groups > 1:  # batch kv_heads groups features -> batch heads 1 features
        query = query.reshape(query.size(0), -1, 1, query.size(-1))
        mask = mask.reshape(mask.size(0), -1, 1, mask.size(-1)) if mask is not None and mask.size(1) > 1 else mask
    if query.size(0) < key.size(0) or query.size(1) < key.size(1):
        query = query.expand(max(query.size(0), key.size(0)), max(query.size(1), key.size(1)), -1, -1)
    allowed, bias = (mask, None) if mask is not None and mask.dtype == torch.bool else (None, mask)
    return {"query": query, "key": key, "value": value, "allowed": allowed, "bias": bias}


def _groups(module: nn.Module | None, query: Tensor) -> int:
    """Count the heads in the place of queries: so transformers packs those that share a key, for one query."""
    groups: int = getattr(module, "num_key_value_groups", 1)
    heads = getattr(getattr(module, "config", None), "num_attention_heads", None)
    return groups if query.dim() == 4 and query.size(2) == groups and query.size(1) * groups == heads else 1


def weights_of(values: Values) -> Tensor:
    """The weights, before dropout and in float32 or wider, by this library's function with the options of the call."""
    if "flex" in values:
        scores = _flex_scores(values)
        return functional.attention_weights(scores, allowed=scores != -torch.inf)
    allowed, dtype = allowed_of(values), torch.promote_types(values["query"].dtype, torch.float32)
    query, key = values["query"].to(dtype), values["key"].to(dtype)
    options: dict[str, Any] = {name: values.get(name) for name in ("bias", "scale", "softcap", "sinks")}
    # Any values will do, since the context is not asked for.
    weights = functional.attend(query, key, key, allowed=allowed, need_weights=True, **options).weights
    assert weights is not None
    if values.get("is_nan") and allowed is not None:  # of code whose softmax makes NaN of a row that sees nothing
        return weights.masked_fill(~allowed.any(-1, keepdim=True), torch.nan)
    return weights


def _flex_scores(values: Values) -> Tensor:
    query, key, value = (values[name] for name in _THREE)
    return _private.flex_scores(query, functional._shared(key, query), value, *values["flex"])


def _callers(frame: FrameType | None, names: Mapping[int, str]) -> tuple[nn.Module | None, FrameType | None, bool]:
    """Read module, inside and fast of a `FunctionCall` off the stack.

    So no module needs a hook, which would have to be taken away again.
    """
    module, inside, fast = None, None, False
    while frame is not None:
        if module is None and inside is None and _is_attention(frame.f_code):
            inside = frame
        elif frame.f_code.co_argcount:
            local = frame.f_locals
            first = local.get(frame.f_code.co_varnames[0])
            if isinstance(first, nn.Module):
                module = first if module is None and id(first) in names else module
                fast = fast or _is_fast(local)
        frame = frame.f_back
    return module, inside, fast


def _is_attention(code: CodeType) -> bool:
    named = code.co_name == "_attend" and code.co_filename == functional.__file__
    return named or code is MHA.__code__


def _is_fast(local: Values) -> bool:
    """Tell whether PyTorch's layer gives the watcher as the reason why it leaves its fast path, and has no other."""
    why = local.get("why_not_fast_path") or local.get("why_not_sparsity_fast_path")
    if why != "some Tensor argument has_torch_function":
        return False
    return not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in local["tensor_args"]))
