"""The exercises of the page about serving."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks
from unmasked_lessons.exercises._check import exercise, hold, of_masks


@exercise("tree-mask", "Each word of the tree sees its ancestors and itself.")
def _tree_mask(answer: Callable[[list[int]], Tensor]) -> None:
    for parents in ([-1, 0, 0], [-1, 0, 1, 2], [-1, 0, 0, 1, 2, 2], [-1, -1, 0, 1, 2]):
        right = masks.tree(torch.tensor(parents))
        parent = torch.tensor(parents)[:, None] == torch.arange(len(parents))
        known = {
            "Branches see each other.": torch.ones_like(right).tril(),
            "A word sees its parent, but not what is above it.": parent | torch.eye(len(parents), dtype=torch.bool),
            "A word does not see itself.": right.tril(-1),
        }
        hold(answer(parents), right, f"For {parents}", "the mask", known | of_masks(right))
