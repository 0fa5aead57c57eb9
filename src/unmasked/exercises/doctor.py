"""The exercises of the page about the doctor."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from unmasked import museum
from unmasked.doctor import diagnose
from unmasked.exercises._check import Wrong, exercise

PAGE = "18_doctor"


def _leaky(x: Tensor, leak: str) -> Tensor:
    """Attend causally, with a leak or without."""
    scores = x @ x.mT / math.sqrt(x.size(-1))
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    if leak == "everything":
        return scores.softmax(-1) @ x
    if leak == "the sum":
        return scores.softmax(-1).tril() @ x
    if leak == "a little":
        return scores.masked_fill(future, -8.0).softmax(-1) @ x
    context = scores.masked_fill(future, -math.inf).softmax(-1) @ x
    if leak == "the last token":
        context = torch.cat([context[:, :-2], context[:, -1:], context[:, -1:]], 1)
    return context


@exercise("future-probe", page=PAGE, task="A probe that tells whether a function sees the future.")
def future_probe(answer: Callable[[Callable[[Tensor], Tensor], Tensor], Any]) -> None:
    """Hold a probe to functions that leak in several ways, and to one that does not."""
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept = x.clone()
    if answer(lambda x: _leaky(x, ""), x):
        raise Wrong("A causal function is said to see the future. Earlier outputs only may be compared.")
    causes = {"everything": "no-causal-mask", "the sum": "mask-after-softmax", "a little": "boolean-mask-added"}
    told = {
        "everything": "nothing is masked",
        "the sum": "the weights are masked after the softmax",
        "a little": "later keys have a score of -8, and weights that are small, not zero",
        "the last token": "only the last token but one sees the last",
    }
    for leak, what in told.items():
        if not answer(lambda x, leak=leak: _leaky(x, leak), x):  # type: ignore[misc]
            raise Wrong(f"A function that leaks passes: {what}.", causes.get(leak))
    if not torch.equal(x, kept):
        raise Wrong("Your probe writes into its input: change a copy.", "input-overwritten")


@exercise("hiding-sizes", page=PAGE, task="Sizes that no mistake of shapes can hide behind.")
def hiding_sizes(answer: Mapping[str, int]) -> str:
    """Hold sizes of a test to being distinct, and larger than one."""
    needed = ("batch", "tokens", "heads", "head_dim")
    for name in needed:
        if name not in answer:
            raise Wrong(f"{name!r} is missing; the sizes are {', '.join(needed)}.")
    sizes = {name: int(answer[name]) for name in needed}
    causes = {"batch": "only-first-item", "tokens": "merge-without-transpose", "heads": "merge-without-transpose"}
    for name, size in sizes.items():
        if size < 2:
            told = f"With {name} = {size}, axes of one item hide what is wrong in them."
            raise Wrong(told, causes.get(name, "head-dim-one"))
    named = sizes | {"embed_dim (heads times head_dim)": sizes["heads"] * sizes["head_dim"]}
    for first, one in named.items():
        for second, other in named.items():
            if first < second and one == other:
                pair = {first, second}
                cause = "swapped-view" if pair == {"heads", "head_dim"} else "batch-and-tokens-swapped"
                cause = "batch-indexed-for-head" if pair == {"batch", "heads"} else cause
                raise Wrong(f"{first} and {second} are both {one}: exchange the two axes, and no shape changes.", cause)
    return "All differ, and none is one."


@exercise("plant-a-mistake", page=PAGE, task="Attention with one mistake, which the doctor names.")
def plant_a_mistake(answer: Any) -> str:
    """Hold a planted mistake to its name."""
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise Wrong("Pass the function and the mistake's name: (attend, 'missing-scale').")
    f, slug = answer
    if slug not in museum.ENTRIES:
        raise Wrong(f"{slug!r} is no mistake of the museum; unmasked.museum.ENTRIES has their names.")
    report = diagnose(f, embed_dim=6, num_heads=1)
    if report.ok:
        raise Wrong("The doctor finds nothing: with 6 features and one head, this is attention.")
    if not any(slug in finding.causes for finding in report.findings):
        named = " and ".join(finding.cause or "something that the museum does not show" for finding in report.findings)
        raise Wrong(f"The doctor finds {named}, not {slug}.", report.findings[0].cause)
    return f"The doctor names it: {report.findings[0].told}."
