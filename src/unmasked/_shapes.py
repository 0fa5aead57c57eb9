"""Shape annotations: jaxtyping's where it is installed, plain tensors elsewhere.

The tests install jaxtyping and check each annotation that has a shape at run time; a user needs torch alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
else:
    try:
        from jaxtyping import Bool, Float, Int, Shaped
    except ModuleNotFoundError:

        class _Unchecked:
            def __class_getitem__(cls, item: tuple[type, str]) -> Any:
                return item[0]

        Bool = Float = Int = Shaped = _Unchecked

__all__ = ["Bool", "Float", "Int", "Shaped"]
