"""Two calls of a model that differ in one thing, as a report carries them, and the lines of Python that make them."""

from __future__ import annotations

import torch
from torch import Tensor

from unmasked_doctor._asker import Asker, Given
from unmasked_doctor._report import Pair

__all__ = ["pair_of"]


def pair_of(asker: Asker, promise: str, told: str, first: Given, second: Given) -> Pair | None:
    """Two calls whose difference shows a broken promise, and lines of Python that make them.

    Args:
        asker: Runs the model.
        promise: The check that asks for it.
        told: What differs, and what moves.
        first: The inputs.
        second: The same with other tokens, in one item, from one token on, or where they are hidden.

    Returns:
        The pair; None where no line of Python makes them, or no output of the other tokens moves in the model's
        first output.
    """
    set_up = [
        _set(asker.given, name, x) for name, x in first.tensors().items() if x is not asker.given.tensors().get(name)
    ]
    x_of, y_of, changes, made = first.tensors(), second.tensors(), [], {}
    where = torch.zeros((), dtype=torch.bool)
    for name, x in x_of.items():
        y, path = y_of[name], first.path(name)
        if y is x or torch.equal(x, y):
            continue
        if path is None or x.dim() < 2 or (where.dim() and where.shape != x.shape[:2]):
            return None
        here = (x != y).flatten(2).any(-1) if x.dim() > 2 else x != y
        new = 1 - x[here].flip(-1) if x.is_floating_point() else y[here]
        made[name], where = x.clone(), where | here
        made[name][here] = new
        written = "1 - x[where].flip(-1)" if x.is_floating_point() else f"torch.tensor({new.tolist()})"
        changes += [
            f"x, where = second{path}, torch.tensor({here.long().tolist()}).bool()",
            f"x[where] = {written}",
        ]
    before, after = asker.run(first), asker.once(first.with_(made)) if made else None
    if None in set_up or before is None or after is None or not before.outputs or not after.outputs:
        return None
    out, other = before.outputs[0], after.outputs[0]
    if out.shape[:2] != where.shape or out.shape != other.shape or out.dim() < 3:
        return None
    gap = (out - other).abs().flatten(2).nan_to_num().amax(-1).masked_fill(where.to(out.device), 0)
    item, token = divmod(int(gap.argmax()), gap.size(1))
    if float(gap.max()) <= 1e-3 * float(out.abs().nan_to_num().max()):
        return None
    code = "\n".join([
        "import copy", "", "import torch", "from unmasked_doctor import called", "",
        "asked, first = copy.deepcopy(target).eval(), copy.deepcopy(call)", *filter(None, set_up),
        "second = copy.deepcopy(first)", *changes,
        f"print((called(asked, second) - called(asked, first))[{item}, {token}].abs().max().item())",
    ])  # fmt: skip
    name = next(iter(made))
    return Pair(promise, told, x_of[name], made[name], float(gap.max()), code)


def _set(given: Given, name: str, x: Tensor) -> str | None:
    """A line that passes a mask, or lengths, that the user's call has not; None where none does."""
    path = given.path(name)
    if path is None or x.is_floating_point():
        return None
    return f"first{path} = torch.tensor({x.tolist()}, dtype={x.dtype})"
