"""A broken promise is shown by two inputs: found at one size, confirmed at another, and told in lines that run."""

import contextlib
import io
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unmasked import diagnose
from unmasked_doctor import Finding


def printed(finding: Finding, target: object) -> float:
    """Run the lines that a finding shows, and read the number that they print."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), torch.no_grad():
        exec(finding.show(), {"target": target})  # what a reader would do with it
    return float(told.getvalue())


def ahead(x: Tensor) -> Tensor:
    return x.flip(1).cumsum(1).flip(1)


def across(x: Tensor) -> Tensor:
    return (x @ x.transpose(1, 2)).softmax(-1) @ x + x.mean(0, keepdim=True)


class Weak(nn.Module):
    """Its mask lowers scores, and hides nothing large."""

    def __init__(self, hidden: float, dims: int) -> None:
        super().__init__()
        self.qkv, self.hidden, self.dims = nn.Linear(12, 36), hidden, dims

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        blocked = torch.ones(x.size(1), x.size(1)).triu(1).bool() if allowed is None else ~allowed
        scores = q @ k.transpose(1, 2) * 12**-0.5 + self.hidden * blocked
        output = scores.softmax(-1) @ v
        return output if self.dims == 1 else (output, scores)


def ignores(x: Tensor, allowed: Tensor) -> Tensor:
    return (x @ x.transpose(1, 2) * 12**-0.5).softmax(-1) @ x


CASES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "sum from the end": (ahead, {"causal": True}, "no token may see a later one"),
    "mean over items": (across, {"causal": False}, "items are independent"),
    "minus nine": (Weak(-9.0, 1), {"causal": True}, "no token may see a later one"),
    "beside its scores": (Weak(-5.0, 2), {"causal": True}, "no token may see a later one"),
    "mask ignored": (ignores, {"causal": False, "inputs": "x_allowed"}, "the mask hides it"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_finding_shows_runs_and_prints_the_difference(name: str) -> None:
    target, options, though = CASES[name]
    report = diagnose(target, embed_dim=12, **options)
    shown = [finding for finding in report.named if finding.pair is not None]
    assert shown, report
    pair = shown[0].pair
    assert pair is not None
    assert pair.told.endswith(though)
    assert pair.told.startswith("two inputs differ only in ")
    assert printed(shown[0], target) == pytest.approx(pair.difference)
    assert pair.difference > 1e-9
    places = (pair.first != pair.second).any(-1).nonzero()
    assert len(places[:, 0].unique()) == 1 or len(places[:, 1].unique()) == 1
    assert json.loads(json.dumps(report.to_dict()))["findings"][0]["pair"] == pair.told


def test_a_scale_breaks_no_promise_and_shows_its_evidence() -> None:
    def unscaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(1, 2)).softmax(-1) @ v

    (finding,) = diagnose(unscaled, embed_dim=12, causal=False, inputs="qkv").differences
    assert finding.cause == "missing-scale"
    assert finding.pair is None
    assert finding.show() == f"# {finding.evidence}"
