"""How the calls of attention are found among all calls that a model makes, and what goes into each of them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unmasked import functional, masks
from unmasked._modes import uncompiled
from unmasked.kernels import _choose

__all__ = [
    "MATMULS",
    "SOFTMAXES",
    "Event",
    "Inputs",
    "Listener",
    "allowed_of",
    "contexts_of",
    "inputs_of",
    "listening",
    "names_of",
]

SDPA, MHA = F.scaled_dot_product_attention, F.multi_head_attention_forward
PRODUCTS = {torch.bmm, torch.baddbmm}
MATMULS = {torch.matmul, Tensor.matmul, Tensor.__matmul__}
SOFTMAXES = {F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax}
# PyTorch's function hands itself over as a whole to whoever listens. This is its code, which does not ask who listens,
# so that the calls within it are heard.
_OPENED = FunctionType(MHA.__code__, {**vars(F), "has_torch_function": lambda *_: False}, MHA.__name__)
_OPENED.__defaults__, _OPENED.__kwdefaults__ = MHA.__defaults__, MHA.__kwdefaults__
_OURS = inspect.signature(functional.attend).parameters
_THREE = ("query", "key", "value")

Values = Mapping[str, Any]


class Inputs(NamedTuple):
    """What goes into a call: axes are (batch, heads, tokens, features), and a mask stands by what it means.

    The values are query, key, value, allowed, bias, scale, dropout_p; diagonal, to which a causal mask keeps its ones,
    or None; and what else it takes to weigh them.
    """

    kernel: str
    values: dict[str, Any]
    weigh: Callable[[Values], Tensor]


class Event(NamedTuple):
    """A call of a function of PyTorch."""

    func: Any
    args: Any
    kwargs: Any
    module: nn.Module | None  # the innermost of the model that is running
    inside: FrameType | None  # the function of attention that this call is a part of, PyTorch's or ours
    fast: bool  # whether PyTorch's layer would have taken its fast path, had nobody listened

    @property
    def local(self) -> Values:
        """The variables of the function of attention."""
        return self.inside.f_locals if self.inside else {}

    @property
    def is_ours(self) -> bool:
        """Whether the function of attention is this library's."""
        return self.inside is not None and self.inside.f_code is not MHA.__code__

    def given(self, place: int, name: str, default: Any = None) -> Any:
        """An argument, by its place or its name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    def run(self) -> Any:
        """What the function returns."""
        return self.func(*self.args, **self.kwargs)


class Listener(TorchFunctionMode):
    """Hears of every call, and asks `hear` about those of attention; names are those of the model's modules, by id."""

    heard: frozenset[Any] = frozenset({SDPA, MHA, *PRODUCTS})

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names = names
        if "torch.nn.attention.flex_attention" in sys.modules:
            self.heard = self.heard | {torch.ops.higher_order.flex_attention}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass a call on: most have nothing to do with attention, and must not wait."""
        if func not in self.heard:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        if func is MHA:
            with self:
                return _OPENED(*args, **kwargs)
        return self.hear(Event(func, args, kwargs, *_callers(sys._getframe(1), self.names)))

    def hear(self, event: Event) -> Any:
        """Run a call that may be one of attention, and return what it gives."""
        raise NotImplementedError


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let a listener hear of what this thread runs."""
    with uncompiled(), listener:  # compiled code calls nothing that could be heard, and flex_attention compiles itself
        yield


def names_of(model: nn.Module) -> dict[int, str]:
    """The qualified names of a model's modules, by their ids."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; pass the torch.nn.Module whose calls are meant")
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    return {id(module): name for name, module in model.named_modules()}


def inputs_of(event: Event) -> Inputs | str | None:
    """What goes into a call of attention; None where the event begins none, or why it cannot be told."""
    if event.func is SDPA:
        return _sdpa(event)
    if event.func in SOFTMAXES:
        return Inputs("eager", _our_values(event.local), _weigh_ours) if event.is_ours else None
    if event.func in PRODUCTS:
        begins = event.inside is not None and not event.is_ours and "attn_output_weights" not in event.local
        return _mha(event.local) if begins else None
    query, key, value, score_mod, block_mask, scale, _, *buffers = event.args
    values = {"query": query, "key": key, "value": value, "allowed": None, "bias": None, "diagonal": None}
    values |= {"scale": scale, "flex": (score_mod, block_mask, scale, {}, *buffers)}
    return Inputs("flex", values, _weigh_flex)


def contexts_of(event: Event, result: Any) -> tuple[int, ...] | None:
    """The shape (..., heads, queries, features) of what a call gives; None where the event does not end one."""
    local, given = event.local, event.given(0, "input")
    if event.func in PRODUCTS:
        ends = not event.is_ours and local.get("attn_output_weights") is given
        return (local["bsz"], local["num_heads"], *result.shape[-2:]) if ends else None
    if event.func in MATMULS and not (event.is_ours and local.get("value") is event.given(1, "other")):
        return None
    context = result[0] if isinstance(result, tuple) else result
    if context.dim() < 3:
        raise ValueError(f"a call gives {tuple(context.shape)}, which has no axis of heads to switch off")
    groups = _packed(event.module, context) if event.func is SDPA else 1
    return (*context.shape[:-3], context.size(-3) * groups, context.size(-2) // groups, context.size(-1))


def allowed_of(values: Values) -> Tensor | None:
    """Who may see whom, by a mask, by -inf in a bias and by the causal option; None where all may see all."""
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


def _sdpa(event: Event) -> Inputs | str:
    """Of PyTorch's function, called by whomever: ours keeps its own masks, of which it makes one for the kernel."""
    query, key, value = (event.given(place, name) for place, name in enumerate(_THREE))
    if query.is_nested:
        return "a call with nested tensors"
    mask, dropout_p = event.given(3, "attn_mask"), event.given(4, "dropout_p", 0.0)
    is_causal, scale = event.given(5, "is_causal", False), event.kwargs.get("scale")
    try:
        grouped = event.kwargs.get("enable_gqa", False)
        inputs = (query, key, value, mask, dropout_p, is_causal)
        kernel = _choose(*inputs, scale=scale, enable_gqa=grouped).name.removesuffix("_ATTENTION").lower()
    except NotImplementedError:  # a device without fused kernels
        kernel = "math"
    except (RuntimeError, IndexError, ValueError):  # the call itself will say why
        kernel = "unknown"
    if event.is_ours:
        return Inputs(kernel, _our_values(event.local), _weigh_ours)
    values = _four_axes(query, key, value, mask, _packed(event.module, query))
    values |= {"diagonal": 0 if is_causal else None, "scale": scale, "dropout_p": dropout_p}
    return Inputs(kernel, values, _weigh)


def _mha(local: Values) -> Inputs:
    """Of nn.MultiheadAttention with need_weights=True, where it multiplies queries by keys."""
    by_head = (local["bsz"], local["num_heads"])
    query, key, value = (local[name].unflatten(0, by_head) for name in "qkv")
    mask = local["attn_mask"]
    mask = mask.unflatten(0, by_head) if mask is not None and mask.size(0) > 1 else mask
    values = _four_axes(query, key, value, mask)
    return Inputs("eager", values | {"diagonal": None, "scale": None, "dropout_p": local["dropout_p"]}, _weigh_to_nan)


def _our_values(local: Values) -> dict[str, Any]:
    """The arguments of this library's function, whose causal option is aligned at the bottom right."""
    given = {name: local[name] for name in _OURS if name in local}
    query, key, value = (given[name] for name in _THREE)
    diagonal = key.size(-2) - query.size(-2) if given["is_causal"] else None
    masked = {name: _four_axes(query, key, value, given[name])[name] for name in ("allowed", "bias")}
    return given | _four_axes(query, key, value, None) | masked | {"diagonal": diagonal}


def _four_axes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, groups: int = 1) -> dict[str, Any]:
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


def _packed(module: nn.Module | None, query: Tensor) -> int:
    """How many heads stand in the place of queries: so transformers packs those that share a key, for one query."""
    groups: int = getattr(module, "num_key_value_groups", 1)
    heads = getattr(getattr(module, "config", None), "num_attention_heads", None)
    return groups if query.dim() == 4 and query.size(2) == groups and query.size(1) * groups == heads else 1


def _weigh(values: Values) -> Tensor:
    query, key = values["query"], values["key"]
    scores = functional.attention_scores(query, functional._shared(key, query), scale=values["scale"])
    return functional.attention_weights(scores, allowed=allowed_of(values), bias=values["bias"])


def _weigh_to_nan(values: Values) -> Tensor:
    """The weights of code whose softmax makes NaN of a row that sees nothing."""
    weights, allowed = _weigh(values), allowed_of(values)
    return weights if allowed is None else weights.masked_fill(~allowed.any(-1, keepdim=True), torch.nan)


def _weigh_ours(values: Values) -> Tensor:
    """The weights by this library's function itself, whatever options it has."""
    given = {name: values[name] for name in _OURS if name in values}
    dtype = torch.promote_types(values["query"].dtype, torch.float32)
    given |= {name: values[name].to(dtype) for name in _THREE}
    given |= {"allowed": allowed_of(values), "is_causal": False, "dropout_p": 0.0}
    given |= {"need_weights": True, "implementation": "eager"}
    weights = functional.attend(**given).weights
    assert weights is not None
    return weights


def _weigh_flex(values: Values) -> Tensor:
    scores = _flex_scores(values)
    return functional.attention_weights(scores, allowed=scores != -torch.inf)


def _flex_scores(values: Values) -> Tensor:
    """The scores after score_mod and mask_mod, as FlexAttention's own reference makes them."""
    from torch._higher_order_ops.flex_attention import _math_attention_inner

    query, key, value = (values[name] for name in _THREE)
    return _math_attention_inner(query, functional._shared(key, query), value, *values["flex"])[1]


def _callers(frame: FrameType | None, names: Mapping[int, str]) -> tuple[nn.Module | None, FrameType | None, bool]:
    """Whose call it is: module, inside and fast of an `Event`.

    The stack tells, so that no module needs a hook, which would have to be taken away again.
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
    named = code.co_name == "attend" and code.co_filename == functional.__file__
    return named or code is MHA.__code__


def _is_fast(local: Values) -> bool:
    """Whether PyTorch's layer gives the listener as the reason why it leaves its fast path, and has no other."""
    why = local.get("why_not_fast_path") or local.get("why_not_sparsity_fast_path")
    if why != "some Tensor argument has_torch_function":
        return False
    return not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in local["tensor_args"]))
