"""What formulas are computed with: arrays of numpy, and tensors of torch where a page has them.

The two call nearly all that a formula needs by the same names, so `library` is enough to compute with either; a wrapper
such as array-api-compat would be one more dependency, and has neither diagonals nor softmax. Nobody but a page imports
torch.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any  # np.ndarray | torch.Tensor, which need not be there


def is_tensor(value: Any) -> bool:
    """Tell whether a value is torch's."""
    torch = sys.modules.get("torch")  # None where it cannot be imported
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    """Tell whether a value is an array or a tensor."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def is_list(value: Any) -> bool:
    """Tell whether a value is a list, which may stand for a set."""
    return isinstance(value, list | tuple)


def shape(value: Any) -> tuple[int, ...]:
    """Return a value's sizes; a number has none."""
    return tuple(value.shape) if is_array(value) else ()


def library(*values: Any) -> Any:
    """Return torch if one of the values is a tensor, and else numpy."""
    return sys.modules["torch"] if any(map(is_tensor, values)) else np


def alike(values: Sequence[Any]) -> list[Any]:
    """Make tensors of arrays that stand beside tensors."""
    tensor = next(filter(is_tensor, values), None)
    if tensor is None:
        return [*values]
    return [_tensor(value, tensor.device) if isinstance(value, np.ndarray) else value for value in values]


def arrays(values: Sequence[Any], otherwise: Any) -> list[Array]:
    """Make arrays of numbers, as those beside them are; by a library where there are numbers alone."""
    xp = library(*values) if any(map(is_array, values)) else otherwise
    return alike([value if is_array(value) else xp.asarray(value, dtype=xp.float64) for value in values])


def like(drawn: np.ndarray, value: Array) -> Array:
    """Make an array of the kind that another one is."""
    return _tensor(drawn, value.device).to(value.dtype) if is_tensor(value) else drawn.astype(value.dtype)


def _tensor(value: np.ndarray, device: Any) -> Array:
    # A copy, as torch warns of arrays that cannot be written to, and refuses those that are turned round.
    return sys.modules["torch"].tensor(np.ascontiguousarray(value), device=device)


def numbers(value: Any) -> np.ndarray:
    """Return the entries of anything that has some, or a number, in double precision."""
    if is_tensor(value):
        value = value.detach().cpu().double().numpy()
    return np.asarray(value, dtype=np.float64)


def entries(value: Any, xp: Any) -> Any:
    """Make an array of a list of numbers, and of lists of equal length; another list stays."""
    if not is_list(value) or not value:
        return value
    try:
        array = np.asarray([*value], dtype=np.float64 if _numeric(value) else object)
    except ValueError:  # of lengths that differ
        return value
    return value if array.dtype == object else xp.asarray(array)


def _numeric(value: Any) -> bool:
    return all(map(_numeric, value)) if is_list(value) else isinstance(value, int | float | np.number)


def is_real(value: Array) -> bool:
    """Tell whether an array is one of truth values or real numbers."""
    if is_tensor(value):
        return not value.dtype.is_complex
    return value.dtype.kind in "biuf" and not np.ma.isMaskedArray(value)


def is_rounded(value: Array) -> bool:
    """Tell whether an array's entries have a precision; truth values and integers are exact."""
    return bool(value.dtype.is_floating_point if is_tensor(value) else value.dtype.kind == "f")


def precision(value: Array) -> float:
    """Return the machine epsilon of an array's entries."""
    return float(library(value).finfo(value.dtype).eps)


def double(value: Array) -> Array:
    """Return an array in double precision."""
    return value.double() if is_tensor(value) else value.astype(np.float64)


def matmul(one: Array, other: Array) -> Array:
    """Multiply arrays of any precision."""
    one, other = alike([one, other])
    if is_tensor(one) and one.dtype != other.dtype:
        dtype = library(one).promote_types(one.dtype, other.dtype)
        one, other = one.to(dtype), other.to(dtype)
    return one @ other


def softmax(value: Array) -> Array:
    """The softmax along the last axis."""
    if is_tensor(value):
        return value.softmax(-1)
    raised = np.exp(value - value.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def describe(value: Any) -> str:
    """Say what a value is."""
    if is_array(value):
        kind = "a tensor" if is_tensor(value) else "an array"
        text = f"{kind} of shape {shape(value)}"
        return text if is_real(value) else f"{text} of {'masked entries' if _masked(value) else value.dtype}"
    return f"{value:g}" if isinstance(value, int | float) else f"a {type(value).__name__}"


def _masked(value: Any) -> bool:
    return bool(np.ma.isMaskedArray(value))
