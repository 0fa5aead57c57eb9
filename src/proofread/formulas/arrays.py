"""What formulas are computed with: arrays of numpy.

A page's tensors become arrays where a formula meets them, and what the page defines is called with tensors. Nobody but
a page imports torch.
"""

import sys
from typing import Any

import numpy as np


def is_tensor(value: Any) -> bool:
    """Tell whether a value is torch's."""
    torch = sys.modules.get("torch")  # None where it cannot be imported
    return torch is not None and isinstance(value, torch.Tensor)


def is_list(value: Any) -> bool:
    """Tell whether a value is a list, which counts as an array if its items are alike."""
    return isinstance(value, list | tuple | range)


def array(value: Any) -> Any:
    """Return an array for a tensor, and for a list whose items are numbers or of one shape; all else as it is."""
    if is_tensor(value):
        value = value.detach().cpu()
        narrow = value.dtype.is_floating_point and value.element_size() < 4  # numpy does not know all of these
        return (value.float() if narrow else value).numpy()
    if is_list(value) and value:
        try:
            made = np.asarray([array(item) for item in value])
        except ValueError:  # of shapes that differ
            return value
        return value if made.dtype == object else made
    if hasattr(value, "__array__") and not isinstance(value, np.ma.MaskedArray | type):
        return np.asarray(value)  # a numpy scalar or matrix, or what numpy reads as an array
    return value


def shape(value: Any) -> tuple[int, ...]:
    """Return a value's sizes; a number has none."""
    return tuple(value.shape) if isinstance(value, np.ndarray) else ()


def numbers(value: Any) -> np.ndarray:
    """Return the entries of anything that has some, or a number, in double precision."""
    return np.asarray(array(value), dtype=np.float64)


def is_real(value: Any) -> bool:
    """Tell whether an array is one of truth values or real numbers."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and not isinstance(value, np.ma.MaskedArray)


def is_rounded(value: Any) -> bool:
    """Tell whether a value is an array whose entries have a precision; truth values and integers are exact."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def precision(value: Any) -> float:
    """Return the machine epsilon of a value's entries, the coarsest of a list's; 0.0 if they are exact."""
    if is_list(value):
        return max(map(precision, value), default=0.0)
    if is_tensor(value) and value.dtype.is_floating_point:
        return float(sys.modules["torch"].finfo(value.dtype).eps)
    dtype = getattr(value, "dtype", None)
    return float(np.finfo(dtype).eps) if isinstance(dtype, np.dtype) and dtype.kind == "f" else 0.0


def describe(value: Any) -> str:
    """Say what a value is."""
    if isinstance(value, np.ndarray):
        masked = isinstance(value, np.ma.MaskedArray)
        entries = "" if is_real(value) else f" of {'masked entries' if masked else value.dtype}"
        return f"an array of shape {shape(value)}{entries}"
    if is_list(value):
        return "a list of what is no number or has several shapes"
    return f"{value:g}" if isinstance(value, int | float) else f"a {type(value).__name__}"
