"""Right and wrong answers to the exercises of pytorch/serving."""

import torch

from unmasked import masks


def parent_of(parents):
    return torch.tensor(parents)[:, None] == torch.arange(len(parents))


def by_powers(parents):
    return sum(torch.linalg.matrix_power(parent_of(parents).double(), n) for n in range(len(parents))) > 0


RIGHT = {"tree-mask": [lambda parents: masks.tree(torch.tensor(parents)), by_powers]}
WRONG = {
    "tree-mask": [
        ("Branches see each other.", lambda parents: masks.causal(len(parents))),
        ("but not what is above it.", lambda parents: parent_of(parents) | torch.eye(len(parents)).bool()),
        ("A word does not see itself.", lambda parents: by_powers(parents).tril(-1)),
        ("True must say what a query [mask-polarity]", lambda parents: ~by_powers(parents)),
        ("the dtype is torch.int64; return torch.bool.", lambda parents: by_powers(parents).long()),
    ],
}
