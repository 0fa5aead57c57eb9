"""One model of transformers, made small, and all that is measured of it."""

from __future__ import annotations

import inspect
import re
import signal
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from unmasked_doctor._mixers import mixers

from ..doctor.published import Case, quiet, running
from .hearing import hear
from .layers import layers
from .trials import IDS, Trials, choose, examined, kernels, tried, watched

MOST = 45  # seconds of work that one model may take
MEMORY = 8 * 2**30  # bytes of addresses
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
        for x in model.parameters():
            if x.dim() > 1 and x.is_floating_point() and float(x.std()) < 0.05:
                x *= 6  # as they are drawn they are so small that no layer changes much
    return model, inputs, size


def measured(kind: str) -> dict[str, Any]:
    """The record of one model."""
    begun = time.process_time()
    with quiet(), kernels():
        model, inputs, size = made(kind)
        config = model.config
        record: dict[str, Any] = {
            "class": type(model).__name__,
            "inputs": list(inputs),
            "size": size,
            "default": config._attn_implementation,
            "watch": tried(watched, model, inputs),
            "doctor": tried(examined, model, inputs),
        }
        for module in model.modules():
            if hasattr(module, "config") and hasattr(module.config, "_experts_implementation"):
                module.config._experts_implementation = "eager"  # the faster one takes no float64
        record |= Trials(model, inputs).all()
        choose(model, "eager")
        record["mixers"] = tried(mixing, model, inputs) if "causal" in record else {}
        record["layers"] = tried(attending, model, inputs)
    return {**record, "seconds": round(time.process_time() - begun, 1)}


def attending(model: Any, inputs: dict[str, Any]) -> Any:
    """The kinds of layers, in float64 where the model's code takes it."""
    wide = {n: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for n, x in inputs.items()}
    try:
        return layers(model.double(), wide, 2)
    except TimeoutError:
        raise
    except Exception:
        return layers(model.float(), inputs, 2)


def mixing(model: Any, inputs: dict[str, Any]) -> dict[str, int]:
    """How many modules mix tokens and do not attend, by their class."""
    modules = dict(model.named_modules())
    if "use_cache" in inspect.signature(model.forward).parameters:
        inputs = inputs | {"use_cache": False}  # what is kept of a run changes the next one
    found = mixers(model, modules, (), inputs, list(hear(model, inputs, 2).calls), (20, 24))
    return dict(Counter(type(modules[name]).__name__ for name in found))


def begin() -> None:
    """Begin a process that measures: one thread, and no more memory than there should be."""
    torch.set_num_threads(1)
    with suppress(ImportError):  # Windows has no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def one(kind: str) -> dict[str, Any]:
    """Measure one model, in a process of its own; what goes wrong is the answer."""
    if hasattr(signal, "ITIMER_PROF"):  # seconds of work: a machine that is busy with other things is slower
        signal.signal(signal.SIGPROF, _too_long)
        signal.setitimer(signal.ITIMER_PROF, MOST)
    try:
        return measured(kind)
    except (Exception, TimeoutError) as error:
        lines = str(error).strip().splitlines() or [""]
        text = re.sub(r" from '[^']*'", "", lines[0])  # where a module lies on this machine
        return {"reason": f"{type(error).__name__}: {text[:160]}"}
    finally:
        if hasattr(signal, "ITIMER_PROF"):
            signal.setitimer(signal.ITIMER_PROF, 0)


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"it took more than {MOST} seconds")
