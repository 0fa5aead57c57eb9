"""The differences between documents that are packed and each document alone."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from unmasked import masks
from unmasked.functional import attend
from unmasked.positions import sinusoids

Attention = Callable[..., Tensor]


def with_sinusoids(x: Tensor, positions: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Attend causally to x, (heads, tokens, features), to which the sinusoids of its positions were added."""
    x = x + sinusoids(positions, x.size(-1))
    return attend(x, x, x, allowed=allowed, is_causal=True).context


def gaps(ways: Mapping[str, Attention], x: Tensor, lengths: Sequence[int]) -> dict[str, list[float]]:
    """Attend to documents end to end, under the mask of documents, and compare with each document alone.

    The ways are functions of tokens, positions and a mask, such as `with_sinusoids`. For each the largest differences,
    where positions run on and where they begin anew.
    """
    ids = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    anew = torch.cat([torch.arange(length) for length in lengths])
    largest = {}
    for name, way in ways.items():
        alone = torch.cat([way(part, torch.arange(part.size(1))) for part in x.split(list(lengths), dim=1)], dim=1)
        largest[name] = [
            (way(x, positions, masks.documents(ids)) - alone).abs().max().item()
            for positions in (torch.arange(x.size(1)), anew)
        ]
    return largest
