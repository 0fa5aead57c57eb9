"""A causal model with a cache, fed with a sequence in pieces: what it gives must be what it gives at once."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmasked_doctor._asker import Answers, Asker, Given
from unmasked_doctor._tensors import OTHER_SIZES, tensors_in

__all__ = ["Fed", "fed_in_pieces"]

_STATE = re.compile(r"(?i)cache|past|(^|_)states?$|(^|_)mems?$|memor|(^|_)kvs?$|store|incremental")
_NO_STATE = re.compile(r"(?i)hidden|^use_|^output_|^return_|position|mask|ids$|length|^cache_implementation")
_START = re.compile(r"(?i)start|offset|pos|past|step|seen|index|time|cur|length")


@dataclass(frozen=True)
class Fed:
    """What feeding in pieces showed.

    Attributes:
        share: By how much an output of a single token differs, as a share of the largest; 0.0 where none does.
        first: The first module that gave something else.
        sure: Whether the model is known to keep all that came before.
    """

    share: float
    first: str
    sure: bool


def fed_in_pieces(asker: Asker, axis: int = 1) -> Fed | None:
    """Feed a causal model with all tokens but two, and then with each of these.

    What is kept of tokens before is left out where nothing need be passed, so that all that is kept is of these.

    Args:
        asker: The model.
        axis: The axis of tokens of what it takes and gives.

    Returns:
        What was seen; None where it keeps nothing from call to call, or does not run so.
    """
    given = _from_nothing(asker)
    whole = asker.run(given)
    content = {name: x for name, x in given.content().items() if not _is_state(name)}
    tokens = next((x.size(axis) for x in content.values()), 0)
    if whole is None or tokens < 4 or not whole.outputs or whole.outputs[0].dim() < 2:
        return None
    if whole.outputs[0].size(axis) != tokens:
        return None
    starts = {name: value for name, value in _numbers(asker).items() if _START.search(name) and value == 0}
    names = inspect.signature(asker.model.forward).parameters
    states = [name for name in names if _is_state(name) and name not in starts]
    if not starts and not states:
        return None
    best: Fed | None = None
    for upto in (True, False):  # masks of all tokens so far, or of those that are fed
        fed = _Feeding(asker, given, content, axis, tokens, starts, states, upto=upto).fed(whole)
        if fed is not None and (best is None or fed.share < best.share):
            best = fed
        if (best is not None and best.share == 0) or not _masks(given, content, tokens):
            break
    return best


def _is_state(name: str) -> bool:
    name = name.partition("[")[0]
    return bool(_STATE.search(name)) and not _NO_STATE.search(name)


def _from_nothing(asker: Asker) -> Given:
    """The inputs without what is kept of tokens before, where that need not be passed."""
    known = inspect.signature(asker.model.forward).parameters
    held = {name.partition("[")[0] for name in asker.given.tensors()}  # objects are filled in place
    optional = [name for name in held if _is_state(name) and name in known and known[name].default is None]
    given = asker.given.with_(dict.fromkeys(optional)) if optional else asker.given
    return given if asker.run(given) is not None else asker.given


@dataclass(frozen=True)
class _Feeding:
    """A way to feed a model.

    Attributes:
        asker: The model.
        given: Its inputs.
        content: Those that are tokens.
        axis, tokens: The axis of tokens, and how many there are.
        starts: Numbers that say where a piece begins.
        states: Arguments that take what a call gave back.
        upto: Whether masks are those of all tokens so far.
    """

    asker: Asker
    given: Given
    content: Mapping[str, Tensor]
    axis: int
    tokens: int
    starts: Mapping[str, Any]
    states: list[str]
    upto: bool

    def fed(self, whole: Answers) -> Fed | None:
        """Compare what pieces give with what was given at once; None where nothing of earlier calls is noticed."""
        content = self.content.items()
        others = {name: x.roll(1, self.axis) for name, x in content if x.size(self.axis) == self.tokens}
        own, after_others = self._steps(self.given), self._steps(self.given.with_(others))
        if own is None or after_others is None:
            return None
        one, two = (steps[-1].outputs[0] for steps, _ in (own, after_others))
        if float((one - two).abs().max()) <= OTHER_SIZES * float(one.abs().max()):
            return None
        steps, grows = own
        then = whole.named()
        apart: dict[str, list[float]] = {}
        for number, answers in enumerate(steps):
            now = answers.named()
            for name, x in then.items():
                apart.setdefault(name, []).append(self._apart(x, now.get(name), self.tokens - 2 + number))
        share = max(apart["output 0"])
        first = next((name for name, shares in apart.items() if max(shares) > OTHER_SIZES), "")
        return Fed(share if share > OTHER_SIZES else 0.0, first, bool(self.starts) if grows is None else grows)

    def _steps(self, start: Given) -> tuple[list[Answers], bool | None] | None:
        """What the last two tokens give, each fed alone after others, and whether what is given back grew."""
        use = {"use_cache": True} if "use_cache" in inspect.signature(self.asker.model.forward).parameters else {}
        kept: dict[str, Any] = {}
        now, steps, sizes = start.copied(), [], []
        for low, high in itertools.pairwise((0, self.tokens - 2, self.tokens - 1, self.tokens)):
            piece = self._piece(start if low == 0 else self.given, now, low, high)
            piece = piece.with_({name: _like(value, low) for name, value in self.starts.items()} | kept | use)
            answers = self.asker.once(piece, copied=False)
            if answers is None or not answers.outputs or answers.outputs[0].dim() < 2:
                return None
            if answers.outputs[0].size(self.axis) != high - low:
                return None
            kept = _returned(answers.whole, self.states) or kept
            sizes.append(sum(x.numel() for x in tensors_in(kept, objects=True)))
            steps.append(answers)
        return steps[1:], sizes[-2] < sizes[-1] if kept else None

    def _apart(self, x: Tensor, y: Tensor | None, at: int) -> float:
        """By how much what was given for one token is not what was given for it at once."""
        if y is None or x.dim() < 2 or x.size(self.axis) != self.tokens:
            return 0.0
        own = x.narrow(self.axis, at, 1)
        if y.shape != own.shape:
            return 0.0
        return float((own - y).abs().max() / x.nan_to_num(0, 0, 0).abs().max().clamp(min=1e-12))

    def _piece(self, source: Given, now: Given, low: int, high: int) -> Given:
        """Some of the tokens, and what goes along with them; all else as the calls before it left it."""
        made: dict[str, Tensor] = {}
        for name, x in source.tensors().items():
            axes = (self.axis, 1 - self.axis) if name in self.content else range(x.dim())
            axis = next((n for n in axes if n < x.dim() and x.size(n) == self.tokens), None)
            if axis is not None and not _is_state(name):
                whole = self.upto and name not in self.content and "mask" in name
                made[name] = x.narrow(axis, 0 if whole else low, high if whole else high - low)
        return now.with_(made)


def _numbers(asker: Asker) -> dict[str, Any]:
    """Arguments that are one whole number, as they are passed or by default."""
    every = {
        name: p.default for name, p in inspect.signature(asker.model.forward).parameters.items()
    } | asker.given.every()
    found = {}
    for name, value in every.items():
        single = isinstance(value, Tensor) and value.numel() == 1 and value.dtype in (torch.int32, torch.int64)
        if single or (isinstance(value, int) and not isinstance(value, bool)):
            found[name] = value
    return found


def _like(value: Any, number: int) -> Any:
    return torch.full_like(value, number) if isinstance(value, Tensor) else number


def _masks(given: Given, content: Mapping[str, Tensor], tokens: int) -> bool:
    """Whether an argument that is no content has as many tokens."""
    return any(tokens in x.shape for name, x in given.tensors().items() if name not in content)


def _returned(whole: Any, states: list[str]) -> dict[str, Any]:
    """What a call gave back for the next one."""
    if not states:
        return {}
    if isinstance(whole, Mapping):
        return {name: whole[name] for name in states if whole.get(name) is not None}
    last = whole[-1] if isinstance(whole, list | tuple) and len(whole) > 1 and len(states) == 1 else None
    return {} if last is None else {states[0]: last}
