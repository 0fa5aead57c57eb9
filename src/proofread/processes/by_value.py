"""Lets multiprocessing take to other processes what a page defines, which they cannot import: by value.

This is the main module of what a page starts: what is sent back to the page goes by value, too.
"""

import pickle
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any


def _override(pickler: object, thing: Any) -> Any:
    if isinstance(thing, (FunctionType, type)) and thing.__module__ == "__main__":
        import cloudpickle

        return pickle.loads, (cloudpickle.dumps(thing),)
    return NotImplemented


ForkingPickler.reducer_override = _override  # type: ignore[method-assign]
