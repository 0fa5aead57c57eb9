"""Where to run: the best device of this machine."""

from __future__ import annotations

import torch

__all__ = ["best_device"]


def best_device(name: str | torch.device | None = None) -> torch.device:
    """The best device of this machine: cuda, mps, xpu or cpu, in this order, or the one asked for.

    Args:
        name: The device to insist on, such as "cuda" or "cpu".

    Returns:
        The device.

    Raises:
        ValueError: The machine lacks that device.

    Examples:
        >>> best_device("cpu")
        device(type='cpu')
    """
    counts = {
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
        "xpu": torch.xpu.device_count() if torch.xpu.is_available() else 0,
        "cpu": 1,
    }
    if name is None:
        return torch.device(next(kind for kind, count in counts.items() if count))
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"name {str(name)!r} is no device: try one of {', '.join(counts)}") from error
    if (device.index or 0) >= counts.get(device.type, 0):
        here = [f"{kind}:{index}" for kind, count in counts.items() if kind != "cpu" for index in range(count)]
        raise ValueError(f"device {str(device)!r} is not available: this machine has {', '.join([*here, 'cpu'])}")
    return device
