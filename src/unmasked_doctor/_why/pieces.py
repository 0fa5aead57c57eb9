"""A sequence in pieces beside the whole: which of queries, keys, masks and biases of a piece is another."""

from __future__ import annotations

from unmasked_doctor._ask.user_call import UserCall
from unmasked_doctor._report import Finding

__all__ = ["in_pieces"]


def in_pieces(asked: UserCall, found: Finding) -> Finding:
    """Tell what a piece has otherwise than the whole sequence has at its place."""
    return found
