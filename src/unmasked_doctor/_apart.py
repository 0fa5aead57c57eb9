"""Whether the items of a model's inputs reach each other, and along which axis they lie."""

from __future__ import annotations

import torch
from torch import nn

from unmasked_doctor._asker import Asker, Given

__all__ = ["Apart"]


class Apart:
    """Whether items reach each other, and along which axis of the inputs they lie."""

    def __init__(self, asker: Asker, batch_first: bool | None) -> None:
        self.asker, self.axis = asker, 0
        self.first, self.share, self.at, self.forgotten, self.known = "", 0.0, 0, False, False
        self.mistaken = False  # whether one layer takes tokens for items, and those before it do not
        if batch_first is None and _of_torch(asker.model) is False:
            batch_first = False
        if batch_first is False:
            self.axis = 1
            self._take(asker.reached(1))
            return
        given = asker.given
        if _is_list_of_nodes(given):
            return  # which graph each is of, its numbers say
        if asker.items(given, 0) == 1:
            given = asker.grown(given, 0)
        reached = asker.reached(0, given)
        if not isinstance(reached, tuple):
            self._take(reached)
            return
        apart = asker.items(asker.given, 0) > 1 and asker.reached(1)
        self.mistaken = _takes_tokens_first(asker, reached[0]) and asker.mixes_before(reached[0])
        if self.mistaken:
            self._take(reached)
            return
        if apart is False or (apart is None and _takes_tokens_first(asker, reached[0])):
            if apart is False and batch_first is None and asker.placed(0) and asker.placed(1) is False:
                self.axis, self.known = 1, True
                return
            self.forgotten, self.axis = True, 1
        elif not isinstance(asker.reached(0, asker.grown(given, 0)), tuple):
            return  # at another size it does not, so that a coincidence decides nothing
        self._take(reached)

    def _take(self, reached: tuple[str, float, int] | bool | None) -> None:
        if isinstance(reached, tuple):
            self.first, self.share, self.at = reached
            self.known = True
        else:
            self.known = reached is False


def _is_list_of_nodes(given: Given) -> bool:
    """Whether rows are the tokens of several items, one after another, and a vector says of which."""
    tensors = [*given.tensors().values()]
    rows = {len(x) for x in tensors if x.dim() == 2 and x.is_floating_point()}
    for x in tensors:
        if x.dim() == 1 and len(x) in rows and not x.is_floating_point() and x.dtype != torch.bool and len(x) > 1:
            steps = x[1:] - x[:-1]
            if int(x[0]) == 0 and bool(((steps == 0) | (steps == 1)).all()) and bool((steps == 0).any()):
                return True
    return False


def _takes_tokens_first(asker: Asker, name: str) -> bool:
    """Whether the module in which an item reached others is PyTorch's, and takes tokens first."""
    module = next((m for end in _ends(name) if isinstance(m := asker.modules.get(end), nn.MultiheadAttention)), None)
    return module is not None and not module.batch_first


def _ends(name: str) -> list[str]:
    """A module's name, and those of the modules around it, the innermost first."""
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def _of_torch(model: nn.Module) -> bool | None:
    """Whether a model that is one of PyTorch's own takes items first; None where it is none of these."""
    if not type(model).__module__.startswith("torch.nn"):
        return None
    said = {m.batch_first for m in model.modules() if isinstance(m, nn.MultiheadAttention)}
    return None if len(said) != 1 else bool(said.pop())
