"""Memories of fixed size: pairs are written to them, and asked for."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked.functional import attend


def recalled(
    linear: Callable[..., tuple[Tensor, Tensor]],
    gated_delta: Callable[..., tuple[Tensor, Tensor]],
    size: int,
    counts: Sequence[int],
) -> dict[int, Tensor]:
    """Write pairs of random keys and values, ask for each, and measure the errors of the answers.

    Of query, key and value, `linear` makes the outputs and the last state by the rule that adds; `gated_delta` by the
    rule that corrects, of these and of what is kept and written. For each count of pairs the distance of each answer
    from the value that was written, as a share of its length, in the order of writing, (3, pairs): by plain attention
    with sharp scores, by the first rule and by the second.
    """
    generator = torch.Generator().manual_seed(0)
    errors = {}
    for count in counts:
        key, value = torch.randn(2, count, size, dtype=torch.double, generator=generator)
        key, ones = F.normalize(key, dim=-1), torch.ones(count, dtype=torch.double)
        answers = [
            attend(key, key, value, scale=100.0).context,
            key @ linear(key, key, value)[1],
            key @ gated_delta(key, key, value, ones, ones)[1],
        ]
        errors[count] = (torch.stack(answers) - value).norm(dim=-1) / value.norm(dim=-1)
    return errors
