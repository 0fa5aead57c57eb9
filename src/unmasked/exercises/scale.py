"""The exercises of the page about the scale."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise

PAGE = "02_scale"


@exercise("scaled-scores", page=PAGE, task="Dot products, divided by the root of the number of features.")
def scaled_scores(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Hold a function of queries and keys to the scores."""
    generator = torch.Generator().manual_seed(0)
    for shape, keys, d in (((), 3, 2), ((2,), 5, 4), ((2, 3), 7, 6)):
        q = torch.randn(*shape, 4, d, generator=generator, dtype=torch.float64)
        k = torch.randn(*shape, keys, d, generator=generator, dtype=torch.float64)
        right = torch.einsum("...qd,...kd->...qk", q, k) / d**0.5
        given = answer(q, k)
        if given.shape != right.shape:
            told = f"For q of {tuple(q.shape)} and k of {tuple(k.shape)} the shape is {tuple(given.shape)}"
            raise Wrong(f"{told}; it should be {tuple(right.shape)}.")
        if torch.allclose(given, right):
            continue
        off = f"With d = {d} the scores are off by up to {(given - right).abs().max().item():.2f}."
        if torch.allclose(given, right * d**0.5):
            raise Wrong(f"{off} They are not divided by the root of d.", "missing-scale")
        if torch.allclose(given, right / d**0.5):
            raise Wrong(f"{off} They are divided by d, not by its root.", "wrong-d-in-scale")
        ratio = (given / right).flatten()
        if torch.allclose(ratio, ratio[:1].expand_as(ratio)):
            raise Wrong(f"{off} They are divided by the root of {d / ratio[0].item() ** 2:.3g}.", "wrong-d-in-scale")
        raise Wrong(off)


@exercise("divisor", page=PAGE, task="The standard deviation of the dot products is the variance times the root of d.")
def divisor(answer: Callable[[int, float], float]) -> None:
    """Hold a function of the number of features and their variance to the divisor."""
    for d, v in ((4, 1.0), (9, 2.0), (5, 0.25)):
        given, right = float(answer(d, v)), v * d**0.5
        if abs(given - right) > 1e-6:
            raise Wrong(f"For d = {d} and v = {v:g} it is {given:.4g}; it should be {right:.4g}.")
