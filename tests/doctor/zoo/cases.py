"""A stranger is a family, which is written once, in a style; a wrong one has a slip besides, and a right twin without.

Each file of this folder holds families of one kind, and `CASES`, in which every stranger is a row.
"""

import inspect
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from unmasked import diagnose
from unmasked_doctor import Report

# What `diagnose` is told of a stranger, by the names that families have for it.
TOLD = {"dim": "embed_dim", "heads": "num_heads"}
TOLD |= {name: name for name in ("causal", "inputs", "key_dim", "batch_first", "cache")}
TOLD |= {name: name for name in ("positions", "tokens", "training", "weights")}


def parameters(family: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """What a family takes, with its defaults, as those that it hands it on to; and whether the last takes anything."""
    classes = family.__mro__ if isinstance(family, type) else ()
    named: dict[str, Any] = {}
    for made in [vars(each)["__init__"] for each in classes if "__init__" in vars(each)] or [family]:
        found = inspect.signature(made).parameters.values()
        named = {each.name: None if each.default is each.empty else each.default for each in found} | named
        if not any(each.kind is each.VAR_KEYWORD for each in found):
            return named, False
    return named, True


class Style:
    """A family with its options, each of which goes to who takes it: to the family, to `diagnose`, or to both."""

    def __init__(self, family: Callable[..., Any], /, **options: Any) -> None:
        named, free = parameters(family)
        self.family, self.options = family, options
        self.taken = {k: v for k, v in options.items() if k in named or (free and k not in TOLD)}
        assert not options.keys() - self.taken.keys() - TOLD.keys(), f"{family} does not take all of {[*options]}"
        self.call = {TOLD[k]: v for k, v in (named | options).items() if k in TOLD and v is not None}
        self.call.setdefault("positions", False)  # whose authors know

    def __call__(self, **options: Any) -> "Style":
        """The same in another style, or with a slip."""
        return Style(self.family, **self.options | options)

    def make(self, seed: int = 20) -> Any:
        """Make it from a seed, and leave the generator of the caller as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.family(**self.taken)

    def examine(self, seed: int = 20, **more: Any) -> Report:
        """Let the doctor see it, who may be told more of it."""
        return diagnose(self.make(seed), **self.call | more)

    @property
    def key(self) -> Hashable:
        """What is equal for styles that are."""
        return self.family, *sorted((k, v if callable(v) else repr(v)) for k, v in self.options.items())


@dataclass(frozen=True)
class Case:
    """A row: a wrong one has the museum's cause, if that has one, and its right twin."""

    name: str
    style: Style
    cause: str | None = None
    twin: Style | None = None

    @property
    def make(self) -> Callable[[], Any]:
        return self.style.make

    @property
    def call(self) -> dict[str, Any]:
        """How `diagnose` is called."""
        return self.style.call


class Cases:
    """The rows of a file."""

    def __init__(self) -> None:
        self.rows: list[Case] = []

    def __iter__(self) -> Iterator[Case]:
        return iter(self.rows)

    def right(self, name: str, style: Style, /, **own: Any) -> None:
        """A row whose options are its own, besides those of its style."""
        self.rows.append(Case(name, style(**own)))

    def wrong(self, name: str, twin: Style, cause: str | None = None, /, **slip: Any) -> None:
        """A row whose options are the slip, which the twin, named before, has not."""
        self.rows.append(Case(name, twin(**slip), cause, twin))

    def slip(self, cause: str | None = None, /, **slip: Any) -> Callable[[str, Style], None]:
        """What makes the rows of one slip, each in another style."""
        return lambda name, twin: self.wrong(name, twin, cause, **slip)
