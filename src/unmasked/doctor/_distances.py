"""Scores by distance: whether a distance has the same score in a longer sequence."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from unmasked.doctor._look import Inside, Look
from unmasked.doctor._patient import Patient

__all__ = ["counts_distances"]


def counts_distances(patient: Patient) -> None:
    """Let all tokens be alike, and ask what the scores of two lengths have in common.

    Where a score hangs on the distance alone, it may be another in a longer sequence, as where a base grows with it;
    but no distance has the score that a distance as much longer has there: that is counted from the wrong end.
    """
    look, (short, long) = Look(patient, Inside()), (11, 14)
    try:
        found = [list(_by_distance(look, tokens)) for tokens in (short, long)]
    except Exception:  # it takes no such lengths
        return
    if len(found[0]) != len(found[1]):
        return
    for one, other in zip(*found, strict=True):
        if one is None or other is None or one.shape[:-1] != other.shape[:-1]:
            continue
        size, more = one.abs().max().item(), long - short
        same = look.near(one, other[..., :short], size)
        if size > 1e-3 and not same and look.near(one.diff(), other.diff()[..., more:], size):
            told = "relative positions are counted from the wrong end: a distance's score hangs on the number of tokens"
            evidence = (
                f"1 item of {short} tokens, all alike: a distance has the score that one longer by {more} has among "
                f"{long} tokens"
            )
            patient.find("the order of its tokens counts", None, told, evidence)
            return


def _by_distance(look: Look, tokens: int) -> Iterator[Tensor | None]:
    """Of each softmax the scores of distances back, less that of the token itself, where these are all they hang on."""
    same = look.changed(look.sized(1, tokens, tokens), lambda x: x[:, :1].expand_as(x).clone())
    for event in look.run(same).events:
        if event.kind != "softmax":
            continue
        scores = event.given[0]
        axes = [n for n, size in enumerate(scores.shape) if size == tokens and n != event.axes]
        if scores.size(event.axes) != tokens or len(axes) != 1:
            yield None
            continue
        scores = scores.movedim((axes[0], event.axes), (-2, -1)).reshape(-1, tokens, tokens)
        scores = scores - scores.diagonal(dim1=-2, dim2=-1)[..., None]
        last = scores[:, -1].flip(-1)
        back = torch.arange(tokens)[:, None] - torch.arange(tokens)
        kept = (back >= 0).expand_as(scores)
        expected = last[:, back.clamp(min=0)]
        seen = bool((scores[kept].isfinite() & (scores[kept].abs() < 1e3)).all())
        yield last if seen and look.near(scores[kept], expected[kept], last.abs().max().item()) else None
