"""Shape trace: the operations of a module or function, step by step, with their shapes, axes and source lines."""

from __future__ import annotations

import linecache
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from types import FrameType
from typing import Any, no_type_check

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from unmasked._private import leaves
from unmasked.plot.tables import Table, Tabular

__all__ = ["Step", "Trace", "trace"]

Shape = tuple[int, ...]

_SKIPPED = (f"{Path(torch.__file__).parent}{os.sep}", __file__)
_OPERATORS = {"truediv": "div", "floordiv": "floor_divide", "invert": "bitwise_not"}
_OPERATORS |= {name: f"bitwise_{name}" for name in ("and", "or", "xor")}


@dataclass(frozen=True)
class Step:
    """One operation that took or gave tensors.

    Attributes:
        op: Its name: "linear", "view", "matmul", "softmax"; in-place ones end in an underscore.
        inputs: The shapes of the tensors it took.
        outputs: The shapes of the tensors it gave.
        axes: The name of each axis of its first output, or the size where no name is known.
        file: The file of the line that called it.
        line: The number of that line.
        source: The line.
    """

    op: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...] = ()
    axes: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    source: str = ""

    @property
    def output(self) -> Shape:
        """The shape of the first output: most operations have one, chunk and unbind have several."""
        return self.outputs[0]


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Tabular):
    """The steps of a run: prints as a table, renders as one in a notebook, and can be asserted on.

    Attributes:
        steps: The operations in the order they ran.
        result: What the traced function returned.
    """

    steps: tuple[Step, ...]
    result: Any = None

    @property
    def shapes(self) -> list[tuple[str, Shape]]:
        """Each operation's name and the shape of its first output."""
        return [(step.op, step.output) for step in self.steps]

    @property
    def table(self) -> Table:
        """The steps as text, a row for each."""
        rows = [
            (str(n), s.op, _write(s.inputs), _write(s.outputs) or "failed", ", ".join(s.axes), _place(s), s.source)
            for n, s in enumerate(self.steps, 1)
        ]
        return Table(("", "operation", "inputs", "output", "axes", "line", "source"), rows)


def trace(function: Callable[..., Any], /, *args: Any, axes: Mapping[str, int] | None = None, **kwargs: Any) -> Trace:
    """Run a module or function, and record its operations as they are written in its source.

    Operations inside PyTorch's own Python code are not opened: `torch.nn.Linear` is one "linear", and
    `torch.nn.MultiheadAttention` one "multi_head_attention_forward".

    Args:
        function: What to run.
        *args: Its arguments.
        axes: The size of each named axis, all different: an axis is named by its size, also where that is a product
            ("heads·head_dim") or twice or three times one ("3·heads·head_dim", a fused layer's). Of products the
            shortest wins; a size that two equally short ones fit stays a number.
        **kwargs: Its keyword arguments.

    Returns:
        The steps and the result.

    Raises:
        ValueError: Two axes have the same size, so that sizes cannot tell them apart.
        TypeError: The function returns a generator, which has not run.
        Exception: Whatever the function raises, with the steps so far as a note.

    Examples:
        >>> scores = lambda q, k: torch.softmax(q @ k.mT, dim=-1)
        >>> trace(scores, torch.ones(2, 3, 4), torch.ones(2, 5, 4), axes={"batch": 2, "queries": 3, "keys": 5}).shapes
        [('mT', (2, 4, 5)), ('matmul', (2, 3, 5)), ('softmax', (2, 3, 5))]
    """
    recorder = _Recorder(_axis_names(axes or {}))
    try:
        with recorder:
            result = function(*args, **kwargs)
    except Exception as error:
        steps = (*recorder.steps, *filter(None, [recorder.running]))
        error.add_note(f"The operations up to here:\n{Trace(steps)}")
        raise
    if isinstance(result, Iterator):
        name = type(result).__name__
        raise TypeError(f"function returned a {name}, which runs only when it is consumed: trace list(function(...))")
    return Trace(tuple(recorder.steps), result)


class _Recorder(TorchFunctionMode):
    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names, self.steps = names, list[Step]()
        self.running: Step | None = None

    @no_type_check  # a checker's frame would stand between the operation and its line
    def __torch_function__(self, func, types, args=(), kwargs=None):
        # Shapes are taken before the call, which may change them in place.
        step = self.running = Step(_name(func), _shapes((args, kwargs)), **_caller(sys._getframe(1)))
        result = func(*args, **(kwargs or {}))
        self.running = None
        outputs = _shapes(args[0] if func is Tensor.__setitem__ else result)
        if outputs:
            axes = tuple(self.names.get(size, str(size)) for size in outputs[0])
            self.steps.append(replace(step, outputs=outputs, axes=axes))
        return result


def _shapes(values: Any) -> tuple[Shape, ...]:
    return tuple(tuple(leaf.shape) for leaf in leaves(values) if isinstance(leaf, Tensor))


def _name(func: Any) -> str:
    name: str = func.__name__
    if name == "__get__":  # of an attribute such as T or mT
        return str(func.__self__.__name__)
    if not name.startswith("__"):
        return name
    name, suffix = name.strip("_"), ""
    if name[0] in "ir" and hasattr(Tensor, f"__{name[1:]}__"):  # x += y is __iadd__, 1 - x is __rsub__
        name, suffix = name[1:], "_" * (name[0] == "i")
    return _OPERATORS.get(name, name) + suffix


def _caller(frame: FrameType | None) -> dict[str, Any]:
    while frame and frame.f_code.co_filename.startswith(_SKIPPED):
        frame = frame.f_back
    if frame is None:
        return {}
    file, line = frame.f_code.co_filename, frame.f_lineno
    return {"file": file, "line": line, "source": linecache.getline(file, line).strip()}


def _axis_names(axes: Mapping[str, int]) -> dict[int, str]:
    sizes: dict[int, str] = {}
    for name, size in axes.items():
        if size in sizes:
            raise ValueError(f"axes {sizes[size]!r} and {name!r} both have size {size}: choose sizes that all differ")
        sizes[size] = name
    names: dict[int, str] = {}
    terms = {"3": 3, "2": 2, **axes}  # a fused qkv or kv layer multiplies by a number that no axis need have
    for count in range(1, len(axes) + 2):
        level: dict[int, list[str]] = {}
        for group in combinations(terms, count):
            if len(axes.keys() & set(group)) >= max(1, count - 1):
                level.setdefault(math.prod(terms[term] for term in group), []).append("·".join(group))
        for size, products in level.items():
            names.setdefault(size, products[0] if len(products) == 1 else str(size))
    return names


def _place(step: Step) -> str:
    # A notebook's cell has a made-up file name that changes from run to run.
    cell = step.file.startswith("<") or "ipykernel_" in step.file
    return f"{'cell' if cell else Path(step.file).name}:{step.line}"


def _write(shapes: tuple[Shape, ...]) -> str:
    return " ".join(map(str, shapes))
