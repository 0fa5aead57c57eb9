"""A run of a model: each call of attention in it, in one layout, with what its layer says of itself."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from unmasked._private import uncompiled_module
from unmasked_doctor._asker import Given, evaluated
from unmasked_doctor._listen.calls import Call, Match, laid, matches_in
from unmasked_doctor._listen.hear import Event, heard
from unmasked_doctor._listen.wires import wires_of
from unmasked_doctor._unlike import Seen

__all__ = ["ModelRun", "hear_model"]

# Attributes of modules and configs, by their names: what says which tokens a layer sees, which layers differ, and how
# long a window is.
_DECLARES = re.compile(
    r"(?i)window|sliding|local|global|chunk|stride|dilat|shift|(layer|attn|attention|block)_?types?$"
)
_PATTERN = re.compile(r"(?i)pattern|every_n|interval|_freq")
_SPAN = re.compile(r"(?i)^(window|window_size|sliding_window|sliding_window_size|local_window|left_window)$")


@dataclass
class ModelRun:
    """A run of a model.

    Attributes:
        events: What was heard.
        calls: Its calls of attention, in their order.
        missed: How often something looked like attention and fitted no layout, by what it was.
        outputs: For each module that ran, the first tensor of its last result; None where that is no tensor.
    """

    events: list[Event] = field(default_factory=list)
    calls: list[Seen] = field(default_factory=list)
    missed: Counter[str] = field(default_factory=Counter)
    outputs: dict[str, Tensor | None] = field(default_factory=dict)


def hear_model(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], default: torch.device | None, axis: int = 0
) -> ModelRun:
    """Run a model in evaluation mode, and hear its attention; ``axis`` is that of items in its arguments."""
    given = Given.of(model, args, kwargs).copied()

    def forward() -> object:
        with contextlib.nullcontext() if default is None else default:
            return model(*given.args, **given.kwargs)

    run, stack = ModelRun(), [""]
    modules = dict(uncompiled_module(model).named_modules())
    items = next((x.size(axis) for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.dim() > axis), 1)
    with evaluated(model), _followed(modules, run, stack):
        run.events, _ = heard(forward, where=lambda: stack[-1])
    counted: Counter[str] = Counter()
    used: set[int] = set()
    for match in matches_in(run.events):
        softmax = run.events[match.at]
        if match.at == match.place:
            continue
        used.add(match.at)
        call, name = _call_of(run.events, match, items), softmax.module
        if call is None:
            run.missed[f"a softmax over {tuple(softmax.result.shape)} in {name!r}, in no known layout"] += 1
            continue
        wires = wires_of(run.events, call, name)
        # Heads may have been taken for items, where there are as many.
        if wires.folded and (again := _call_of(run.events, match, 1)) is not None:
            call, wires = again, wires_of(run.events, again, name)
        kinds, (rows, heads) = len(set(wires.reads.get("query", ()))), call.query.shape[:2]
        if not wires.viewed and kinds and kinds < heads and heads % kinds == 0:
            again = _call_of(run.events, match, rows * heads // kinds)
            more = None if again is None else wires_of(run.events, again, name)
            if again is not None and more is not None and not more.folded:  # rows were folded into the items
                call, wires = again, more
        own = modules[name].named_parameters(remove_duplicate=False) if name in modules else ()
        shapes = sorted(tuple(x.shape) for _, x in own)
        place = f"{re.sub(r'[0-9]+', '*', name)} {counted[name]} {shapes}"
        counted[name] += 1
        native = type(modules.get(name)) is nn.MultiheadAttention
        kernel = "eager" if native and softmax.kernel == "written out" else softmax.kernel
        run.calls.append(
            Seen(
                name, place, call, softmax.facts[0], kernel, native, wires,
                kin=place.partition(" [")[0], whole=_has_integer_weights(modules.get(name)), **_declared(modules, name),
            )
        )  # fmt: skip
    for number, event in enumerate(run.events):
        if event.kind == "softmax" and number not in used and event.result.dim() > 2:
            cause = "of what is no product of two tensors" if event.ids[0] is None else "which averages no values"
            run.missed[f"a softmax over {tuple(event.result.shape)} in {event.module!r}, {cause}"] += 1
    return run


def _has_integer_weights(module: nn.Module | None) -> bool:
    """Whether a module keeps a matrix in integers of eight bits, as quantization does."""
    kept = [] if module is None else [*module.parameters(), *module.buffers()]
    return any(x.dim() > 1 and x.dtype in (torch.int8, torch.uint8) for x in kept)


def _declared(modules: Mapping[str, nn.Module], name: str) -> dict[str, Any]:
    """Return what a layer says of the tokens that it sees, as `Seen` keeps it: "declared", and "span".

    It says so by attributes of its modules, by its entry in lists of configs, and by numbers of configs such as
    "every second layer".
    """
    parts, said = name.split("."), {}
    numbers = [n for n, part in enumerate(parts) if part.isdigit()]
    inner = [".".join(parts[:n]) for n in range(len(parts), numbers[-1] if numbers else len(parts) - 1, -1)]
    span = None
    for each in inner:
        for key, value in vars(modules[each]).items() if each in modules else ():
            if _DECLARES.search(key) and isinstance(value, bool | int | float | str | tuple | type(None)):
                said[f"{each.count('.')} {key}"] = value
            if _SPAN.search(key) and isinstance(value, int) and not isinstance(value, bool):
                span = value
    place = int(parts[numbers[-1]]) if numbers else None
    configs = {id(c): c for m in (modules[""], *(modules[e] for e in inner if e in modules))
               if (c := getattr(m, "config", None)) is not None}  # fmt: skip
    for config in configs.values() if place is not None else ():
        assert place is not None
        inside = [c for c in vars(config).values() if hasattr(c, "to_dict")]
        for key, value in (pair for each in (config, *inside) for pair in vars(each).items()):
            if isinstance(value, list | tuple) and len(value) > place and len(value) > 2:
                single = value[place]
                if isinstance(single, bool | int | float | str):
                    said[f"config {key}"] = single
                elif isinstance(single, list | tuple):
                    said[f"config {key}"] = str(single)
            elif isinstance(value, list | tuple) and value and all(isinstance(n, int) for n in value):
                said[f"config {key}"] = place in value
            elif isinstance(value, int) and value > 1 and _PATTERN.search(key):
                said[f"config {key}"] = (place % value == 0, (place + 1) % value == 0)
    return {"declared": tuple(sorted((key, str(value)) for key, value in said.items())), "span": span}


@contextlib.contextmanager
def _followed(modules: Mapping[str, nn.Module], run: ModelRun, stack: list[str]) -> Iterator[None]:
    """Keep in ``stack`` which modules run, the innermost last, and in the run what each gives."""
    handles = []
    for name, module in modules.items():

        def enter(_: nn.Module, args: Any, name: str = name) -> None:
            stack.append(name)

        def leave(_: nn.Module, args: Any, output: Any, name: str = name) -> None:
            if stack[-1] == name:
                stack.pop()
            first = output[0] if isinstance(output, tuple) and output else output
            run.outputs[name] = first if isinstance(first, Tensor) else None

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _call_of(events: list[Event], match: Match, items: int) -> Call | None:
    """Return the call of a match, in the layout that the axes of its softmax tell; None if it fits none.

    The axis of keys is the last one along which scores have other keys; the last of the other axes is that of queries.
    """
    ids = events[match.at].ids[0]
    assert ids is not None
    columns = events[match.start].result.size(-1)
    key = (ids - events[match.start].first) % columns if not match.swapped else (ids - ids.min()) // columns
    axes = [n for n in range(ids.dim()) if ids.size(n) > 1 and bool((key.select(n, 1) != key.select(n, 0)).any())]
    keys = axes[-1] if axes else ids.dim() - 1
    rest = [size for n, size in enumerate(ids.shape) if n != keys]
    queries = rest[-1] if rest else 1
    for batch in (items, 1, *rest[:1]):
        if match.query.size(0) % batch == 0:
            call = laid(events, match, (batch, queries, match.key.size(1)))
            if call is not None:
                return call
    return None
