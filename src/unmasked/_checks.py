"""Checks of arguments, with the same messages in the whole package: kinds, numbers, sizes, flags, choices, shapes.

`checked` reads them off a function's annotations. A function calls the checks in its body where every microsecond
counts, and where it needs a range, which no annotation states.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import numbers
from collections import abc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count
from types import UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import torch
from torch import Tensor

from unmasked._private import is_transformed, tracing_state
from unmasked._site import noted

__all__ = [
    "broadcasts",
    "checked",
    "choice",
    "flag",
    "floats",
    "number",
    "require_axes",
    "require_beside",
    "require_divides",
    "require_positive",
    "require_values",
    "size",
    "tensor",
]

Function = TypeVar("Function", bound=Callable[..., Any])
# By the name of each axis that one call has shown so far: its length, and the first argument that has it, by name and
# as a tensor. Under "" stands the first tensor of the call: all others must be on its device.
Lengths = dict[str, tuple[int, str, Tensor]]
Check = Callable[[str, Any, Lengths], object]  # of an argument's name, its value, and the lengths of its call

floats = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.float64})  # those of 8 bits only store numbers
_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})


def number(
    name: str,
    value: float,
    must: str = "be a finite number",
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
) -> float:
    """Return a value as a number, or refuse it if it is no finite real number in a range; ``must`` states the range.

    A tensor of no axes becomes its number, as PyTorch's own options take it. A tensor with a derivative is refused: the
    number would lose the derivative.
    """
    if type(value) is not float and type(value) is not int:
        value = _as_number(name, value, must, numbers.Real, torch.SymFloat)
    if not (above < value < math.inf and least <= value <= most):
        raise ValueError(f"{name} is {value}; it must {must}")
    return value


def size(name: str, value: int, *, least: int = 1) -> int:
    """Return a value as an integer, or refuse it if it is none, or is less than the least."""
    if type(value) is not int:
        value = _as_number(name, value, "be an integer", numbers.Integral, torch.SymInt)
    if value < least:
        raise ValueError(f"{name} is {value}; it must be {least} or more")
    return value


def flag(name: str, value: bool) -> bool:
    """Return a value that is True or False, or refuse it, even if Python counts it as one of them, as it does 1."""
    if value is not True and value is not False and not isinstance(value, torch.SymBool) and not _is_traced(value):
        raise TypeError(f"{name} is {_shown(value)}; it must be True or False")
    return value


def choice(name: str, value: object, *choices: object) -> None:
    """Refuse a value that is none of the choices."""
    if not any(type(value) is type(each) and value == each for each in choices):
        names = [f'"{each}"' if isinstance(each, str) else str(each) for each in choices]
        shown = repr(value) if isinstance(value, str) else _shown(value)
        raise ValueError(f"{name} is {shown}; choose {' or '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}")


def tensor(name: str, value: Tensor, kind: str = "Shaped") -> None:
    """Refuse a value that is no tensor of its kind: Float, Bool, Int, or Shaped for any of them."""
    if not isinstance(value, Tensor):
        remedy = f"pass torch.tensor({name})" if isinstance(value, list | tuple | numbers.Real) else "pass a tensor"
        remedy = f"pass torch.from_numpy({name})" if type(value).__module__ == "numpy" else remedy
        raise TypeError(f"{name} is {_shown(value)}; {remedy}")
    if value.is_nested:
        raise TypeError(
            f"{name} is a nested tensor; call {name}.to_padded_tensor(0.0), and hide the padding with a mask"
        )
    if value.layout != torch.strided:
        raise TypeError(f"{name} is sparse, {value.layout}; call {name}.to_dense()")
    dtype = value.dtype
    if kind == "Float" and dtype not in floats:
        remedy = f"torch.view_as_real({name}).flatten(-2)" if dtype.is_complex else f"{name}.float()"
        raise TypeError(f"{name} is {dtype}; it must be floating: call {remedy}")
    if kind == "Bool" and dtype != torch.bool:
        told = f"{name} is {dtype}; it must be bool (an additive mask: allowed_from_additive)"
        raise noted(TypeError(told), "museum/masks/#float-mask-of-ones")
    if kind == "Int" and dtype not in _INTEGERS:
        raise TypeError(f"{name} is {dtype}; pass integers, such as torch.tensor([0, 0, 1]) holds")


def checked(function: Function) -> Function:
    """Check a function's arguments against its annotations before it runs.

    That is their types, the axes of tensors, that axes of one name are equally long, and that all tensors are on one
    device. An int must be 0 or more, as it is a size, a count or an index; a float must be finite. Under a compiler
    nothing is checked: its guards do that.
    """
    taken = inspect.signature(function).parameters
    positional = [name for name, each in taken.items() if each.kind <= each.POSITIONAL_OR_KEYWORD]
    rest = [name for name, each in taken.items() if each.kind == each.VAR_POSITIONAL]

    @functools.cache  # not before the first call: an annotation may have a name that its module defines later
    def checks() -> dict[str, Check]:
        names = inspect.unwrap(function).__globals__
        return {
            name: _any_of([*_alternatives(ast.parse(each.annotation, mode="eval").body, names)])
            for name, each in taken.items()
            if each.annotation is not each.empty and each.kind != each.VAR_KEYWORD
        }

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            asked = checks()
            lengths: Lengths = {}
            for name, value in chain(zip(positional, args, strict=False), kwargs.items()):
                if (check := asked.get(name)) is not None:
                    check(name, value, lengths)
            for name in rest:
                for place, value in enumerate(args[len(positional) :]):
                    asked.get(name, _nothing)(f"{name}[{place}]", value, lengths)
        return function(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


class _Alternative(NamedTuple):
    """One of the kinds that an annotation lets through: its types, its name in messages, and its check."""

    kinds: tuple[type, ...]
    words: str
    check: Check


def _any_of(alternatives: list[_Alternative]) -> Check:
    if len(alternatives) == 1:
        return alternatives[0].check
    words = " or ".join(each.words for each in alternatives)
    takes_device = any(torch.device in each.kinds for each in alternatives)

    def check(name: str, value: Any, lengths: Lengths) -> None:
        if type(value) is bool and not any(bool in each.kinds or object in each.kinds for each in alternatives):
            raise TypeError(f"{name} is {value}; it must be {words}")
        matches = [each for each in alternatives if isinstance(value, each.kinds)]
        others = [each for each in alternatives if each.words != "None"]
        if not matches and len(others) == 1:  # its own check has the better message
            matches = others
        if not matches:
            raise TypeError(f"{name} is {_shown(value)}; it must be {words}")
        if takes_device and value is not None:  # a string must name a device
            _device(name, value, lengths)
        matches[0].check(name, value, lengths)

    return check


def _alternatives(annotation: ast.expr, names: dict[str, Any]) -> Iterator[_Alternative]:
    match annotation:
        case ast.BinOp(left, ast.BitOr(), right):
            yield from _alternatives(left, names)
            yield from _alternatives(right, names)
        case ast.Subscript(
            ast.Name("Float" | "Bool" | "Int" | "Shaped" as kind), ast.Tuple([_, ast.Constant(str(axes))])
        ):
            yield _Alternative((Tensor,), "a tensor", _shape(kind, axes.split()))
        case _:
            yield from _of_type(eval(compile(ast.Expression(annotation), "<annotation>", "eval"), names))


def _of_type(hint: Any) -> Iterator[_Alternative]:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        for each in get_args(hint):
            yield from _of_type(each)
    elif origin is Literal:
        yield _Alternative(
            (str,), " or ".join(map(repr, get_args(hint))), lambda name, it, _: choice(name, it, *get_args(hint))
        )
    elif (hint := None if hint is type(None) else hint) in _ALTERNATIVES:
        yield _ALTERNATIVES[hint]
    elif isinstance(kind := origin or hint, type) and kind is not Any and kind is not object:
        words = _WORDS.get(kind, f"of the type {kind.__name__}")
        yield _Alternative((kind,), words, partial(_instance, kind, words))
    else:  # Any, a type variable
        yield _Alternative((object,), "anything", _nothing)


def _nothing(name: str, value: object, lengths: Lengths) -> None:
    pass


def _instance(kind: type, words: str, name: str, value: object, lengths: Lengths) -> None:
    is_text = issubclass(str, kind) and isinstance(value, str | bytes)  # which Python counts as a sequence
    if not isinstance(value, kind) or (is_text and kind is not str):
        raise TypeError(f"{name} is {_shown(value)}; it must be {words}")


def _device(name: str, value: Any, lengths: Lengths) -> None:
    try:
        torch.device(value)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'{name} is {_shown(value)}; it must be a device, such as "cpu"') from error


_WORDS = {
    str: "a string",
    Tensor: "a tensor",
    torch.dtype: "a dtype, such as torch.float32",
    abc.Callable: "a function",
    abc.Mapping: "a mapping, such as a dict",
    abc.Sequence: "a sequence, such as a list",
    abc.Iterable: "an iterable, such as a list",
}
_ALTERNATIVES = {
    None: _Alternative((type(None),), "None", _nothing),
    bool: _Alternative((bool, torch.SymBool), "True or False", lambda name, it, _: flag(name, it)),
    int: _Alternative((numbers.Integral, torch.SymInt), "an integer", lambda name, it, _: size(name, it, least=0)),
    float: _Alternative((numbers.Real, torch.SymFloat), "a finite number", lambda name, it, _: number(name, it)),
    torch.device: _Alternative((torch.device,), "a device", _device),
}


def _shape(kind: str, axes: list[str]) -> Check:
    """Return the check of a tensor: its kind, its device, how many axes it has, and the length of each.

    An axis must be as long as the axes of the same name that were checked before, and the device that of all tensors.
    """
    many = [each for each in axes if each.startswith(("*", "..."))]
    start = axes.index(many[0]) if many else len(axes)
    fixed = dict(zip(axes[:start], count())) | dict(zip(axes[:start:-1], count(-1, -1)))
    expected = ", ".join("..." if each in many else each for each in axes) + "," * (len(axes) == 1)

    def check(name: str, x: Any, lengths: Lengths) -> None:
        tensor(name, x, kind)
        shape = x.shape
        _, other, y = lengths.setdefault("", (0, name, x))  # the first tensor: all others must be on its device
        if x.device != y.device:
            raise ValueError(f"{name} is on {x.device} and {other} on {y.device}; move one to the other")
        if len(shape) < len(fixed) or (not many and len(shape) > len(fixed)):
            raise ValueError(f"{name} has shape {tuple(shape)}; it must be ({expected})")
        for axis, place in fixed.items():
            length, other, y = lengths.setdefault(axis, (shape[place], name, x))
            if length != shape[place]:
                raise ValueError(
                    f"{name} has shape {tuple(shape)} and {other} {tuple(y.shape)}; they must have as many {axis}"
                )

    return check


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether a shape broadcasts to a target shape without changing the target."""
    return len(shape) <= len(target) and all(
        a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False)
    )


def require_positive(**sizes: int) -> None:
    """Refuse a size that is not positive."""
    for name, each in sizes.items():
        size(name, each)


def require_divides(name: str, whole: int, parts_name: str, parts: int) -> None:
    """Refuse a number of equal parts that does not divide a whole; the message has the nearest numbers that do."""
    if type(parts) is not int or parts < 1 or whole % parts:
        size(parts_name, parts)
        if whole % parts == 0:
            return
        divisors = [n for n in range(1, whole + 1) if whole % n == 0]
        near = sorted(sorted(divisors, key=lambda n: (abs(n - parts), -n))[:2])
        raise ValueError(
            f"{name} ({whole}) must be divisible by {parts_name} ({parts}); try {' or '.join(map(str, near))}"
        )


def require_axes(name: str, x: Tensor, *axes: str) -> None:
    """Refuse a value that is no dense tensor, or lacks one of the last axes."""
    if not isinstance(x, Tensor) or x.is_nested or x.layout is not torch.strided:
        tensor(name, x)
    if x.dim() < len(axes):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; it must be (..., {', '.join(axes)})")


def require_beside(**tensors: Tensor) -> None:
    """Refuse tensors that are on several devices."""
    first, x = next(iter(tensors.items()), ("", None))
    for name, y in tensors.items():
        if x is not None and y.device != x.device:
            raise ValueError(f"{name} is on {y.device} and {first} on {x.device}; move one to the other")


def require_values(**tensors: Tensor) -> None:
    """Refuse a tensor on the meta device, which has no values."""
    for name, x in tensors.items():
        if x.is_meta:
            raise ValueError(f"{name} is on the meta device and has no values; call .to_empty(device=...) and fill it")


def _as_number(name: str, value: Any, must: str, kind: type, symbol: type) -> Any:
    """Return Python's number of a value that counts as one, such as NumPy's, or refuse it; ``must`` says what it needs.

    A compiler's symbol, and the tensor that stands for a number in a trace, are returned as they are.
    """
    if isinstance(value, symbol | torch.SymInt) or _is_traced(value):
        return value
    if isinstance(value, Tensor) and value.dim() == 0 and (kind is numbers.Real or not value.is_floating_point()):
        wrapped = is_transformed(value)
        if value.requires_grad or wrapped or torch.autograd.forward_ad.unpack_dual(value).tangent is not None:
            raise TypeError(
                f"{name} is a tensor with a derivative, which an option would lose; pass a number, {name}.item(), or "
                f"multiply what it belongs to by {name} (a scale: the query, and pass scale=1.0)"
            )
        value = value.item() if value.dtype != torch.bool and not value.is_meta else value
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} is {_shown(value)}; it must {must}")
    return (int if kind is numbers.Integral else float)(value)  # type: ignore[arg-type, call-overload]


def _is_traced(value: object) -> bool:
    """Whether a value is a tensor that stands for a number, because torch.jit traces: there every size is a tensor."""
    return isinstance(value, Tensor) and tracing_state() is not None


def _shown(value: object) -> str:
    """A value and its type, in few words."""
    kind = type(value).__name__
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}" + (
            "" if value.is_nested else f", {tuple(value.shape)}"
        )
    if value is None or isinstance(value, bool | type):
        return repr(value)
    shown = repr(value) if isinstance(value, int | float | complex | str | bytes) else ""
    return f"{shown}, a {kind}" if 0 < len(shown) < 60 else f"of the type {kind}"
