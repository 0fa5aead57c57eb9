"""One model of transformers, made small, and all that is measured of it."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from ..doctor.published import Case, quiet, running
from .layers import layers
from .trials import IDS, Trials, choose, examined, kernels, watched

SIZES = (2, 3, 4, 0)  # of `published.SIZES`, the first at which the model runs


def made(kind: str) -> tuple[Any, dict[str, Any], int]:
    """The model, what it takes, and the size."""
    problem: Exception | None = None
    for size in SIZES:
        try:
            model, inputs = running(Case(kind, size, 2))
            break
        except TimeoutError:
            raise
        except Exception as error:
            problem = problem or error
    else:
        assert problem is not None
        raise problem
    if "input_ids" in inputs and set(inputs) <= {"input_ids", "decoder_input_ids"}:
        inputs = {name: IDS if name == "input_ids" else IDS.flip(0)[:, :20] for name in inputs}
    with torch.no_grad():
        for x in model.parameters():  # at first weights are so small that no layer changes much
            if x.dim() > 1:
                x *= 6
    return model, inputs, size


def measured(kind: str) -> dict[str, Any]:
    """The record of one model."""
    begun = time.perf_counter()
    with quiet(), kernels():
        model, inputs, size = made(kind)
        config = model.config
        record: dict[str, Any] = {
            "class": type(model).__name__,
            "inputs": list(inputs),
            "size": size,
            "default": config._attn_implementation,
            "watch": tried(lambda: watched(model, inputs)),
            "doctor": tried(lambda: examined(model, inputs)),
        }
        for module in model.modules():
            if hasattr(module, "config") and hasattr(module.config, "_experts_implementation"):
                module.config._experts_implementation = "eager"  # the faster one takes no float64
        record |= Trials(model, inputs).all()
        choose(model, "eager")
        double = {n: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for n, x in inputs.items()}
        record["layers"] = tried(lambda: layers(model.double(), double, 2))
        if isinstance(record["layers"], str):
            record["layers"] = tried(lambda: layers(model.float(), inputs, 2))
    return {**record, "seconds": round(time.perf_counter() - begun, 1)}


def tried(measure: Any) -> Any:
    """What is measured, or why it is not."""
    try:
        return measure()
    except TimeoutError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return f"not measured: {type(error).__name__}: {lines[0][:110]}"
