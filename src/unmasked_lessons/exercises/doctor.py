"""The exercises of the page about the doctor."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unmasked_doctor import diagnose, museum, probes
from unmasked_lessons.exercises._check import Wrong, exercise


@exercise("get-past-the-doctor", "A leak from the future that the doctor does not find.")
def _get_past(answer: Callable[[Tensor], Tensor]) -> str:
    report = diagnose(answer, embed_dim=6, num_heads=1, causal=True)
    if report.named:
        finding = report.named[0]
        raise Wrong(f"The doctor finds it: {finding.told}. Do right by short sequences.", finding.cause)
    x = torch.randn(1, 128, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if not probes.sees_the_future(answer, x):
        raise Wrong("With 128 tokens no output knows of a later token: there is no leak that one could miss.")
    return "The doctor passes it, and with 128 tokens it leaks: what was not tried is not proved."


@exercise("plant-a-mistake", "Attention with one mistake, which the doctor names.")
def _plant_a_mistake(answer: Any) -> str:
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise Wrong("Pass the function and the mistake's name: (attend, 'missing-scale').")
    f, slug = answer
    if slug not in museum.ENTRIES:
        raise Wrong(f"{slug!r} is no mistake of the museum; unmasked_doctor.museum.ENTRIES has their names.")
    report = diagnose(f, embed_dim=6, num_heads=1)
    if not report.named:
        raise Wrong("The doctor finds nothing: with 6 features and one head, this is attention.")
    if not any(slug in finding.causes for finding in report.named):
        named = " and ".join(finding.cause or "something that the museum does not show" for finding in report.named)
        raise Wrong(f"The doctor finds {named}, not {slug}.", report.named[0].cause)
    return f"The doctor names it: {report.named[0].told}."
