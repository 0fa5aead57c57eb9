"""What releases of transformers call otherwise."""

import inspect
from typing import Any

from torch import nn


def with_cache(model: nn.Module, cache: Any) -> dict[str, Any]:
    """The argument by which a model is given a cache: `past_key_values` before 5.24."""
    names = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in names else "past_key_values": cache}
