"""What is known of a model that is examined: its run, its calls of attention, and what was found so far."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unmasked_doctor._apart import Apart
from unmasked_doctor._asker import Given
from unmasked_doctor._model_run import ModelRun, hear_model
from unmasked_doctor._report import Finding, Open
from unmasked_doctor._subject import brief
from unmasked_doctor._unlike import Seen

__all__ = ["PADDED", "Examined"]

PADDED = "padding"


class Examined:
    """A model, what it was given, and what was found."""

    def __init__(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: ModelRun,
        default: torch.device | None,
        apart: Apart,
        *,
        causal: bool | None,
        strict: bool,
    ):
        self.apart, self.asker, self.causal, self.strict = apart, apart.asker, causal, strict
        self.model, self.args, self.kwargs, self.run, self.default = model, args, kwargs, run, default
        self.modules = apart.asker.modules
        self.findings: list[Finding] = []  # broken promises, and steps that differ
        self.cautions: list[Finding] = []
        self.real_tokens: list[Tensor] = []  # for each argument that says what is padding: True where a token is none
        self.masks: list[tuple[str, Tensor]] = []  # each way to read what may say which tokens are no padding
        self.looks: set[str] = set()  # layers that were seen to look at padding
        self.passed: list[str] = []
        self.open: list[Open] = []
        missed = run.missed.items()
        self.unwatched = [f"{text}, {'once' if count == 1 else f'{count} times'}" for text, count in missed]
        self.seen = run.calls
        self.groups: dict[str, list[Seen]] = {}
        for seen in self.seen:
            self.groups.setdefault(seen.place, []).append(seen)

    def find(self, seen: Seen | None, check: str, cause: str | None, text: str, evidence: str, **more: Any) -> None:
        """Note a broken promise, or a step that differs; the same of one layer once."""
        self.note(Finding(check, cause, text, evidence, where="" if seen is None else seen.name, **more))

    def note(self, found: Finding) -> None:
        """Add what was found, if the same was not found there."""
        known = [each for each in self.findings if (each.where, bool(each.step)) == (found.where, bool(found.step))]
        if not any(each.told == found.told or (found.cause and each.cause == found.cause) for each in known):
            self.findings.append(found)

    def likes(self, among: str) -> list[list[Seen]]:
        """The calls that are compared with each other."""
        groups: dict[Any, list[Seen]] = {}
        for seen in self.seen:
            if seen.finite:
                more = {"declared": seen.declared, "queries": seen.call.query.size(-2)}.get(among)
                groups.setdefault((seen.kin if among == "kin" else seen.place, more), []).append(seen)
        return list(groups.values())

    def backward(self) -> bool:
        """Whether as many calls see the earlier tokens alone as see the later ones alone, as a pair of readers does."""
        ahead = sum(seen.ahead for seen in self.seen)
        return ahead == sum(seen.causal and seen.call.query.size(-2) == seen.call.key.size(-2) for seen in self.seen)

    def near(self, name: str) -> Seen | None:
        """The call of attention beside a module, in the same layer."""
        if not name:
            return None
        for end in (len(name), *(n for n in range(len(name) - 1, 0, -1) if name[n] == ".")):
            for seen in self.seen:
                if seen.name and (seen.name == name[:end] or seen.name.startswith(name[:end] + ".")):
                    return seen
        return None

    def again(self, check: str, how: str, given: Given | None) -> ModelRun | None:
        """Hear the model again; None where there are no such inputs, or other calls, or where it does not run."""
        if given is None:
            return None
        try:
            run = hear_model(self.model, given.args, given.kwargs, self.default, self.apart.axis)
        except Exception as error:
            self.open.append(Open(check, f"the model to run {how}: {brief(error)}"))
            return None
        return run if [call.name for call in run.calls] == [seen.name for seen in self.seen] else None
