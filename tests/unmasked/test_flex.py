"""The record of FlexAttention is what this PyTorch does, compiled on a CPU, and on a GPU if there is one."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from unmasked import attend
from unmasked_lessons.measure import Record, flex, recorded

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler, and of calls that are not compiled


def missing() -> str:
    """Say what `torch.compile` lacks on this machine to make code for a CPU, and how to get it."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        return f"needs the C++ compiler {compiler}: apt-get install g++, or set CXX to yours"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "needs the headers of Python: apt-get install python3-dev"
    return ""


def kinds(held: Record) -> dict[str, Any]:
    """The part that a page can state for any machine: right cases, refusals, and the count of kernels."""
    right = {case: [error < 1e-3 for error in errors] for case, errors in held["errors"].items()}
    refused = {name: message is not None for name, message in held["refused"].items()}
    return {"right": right, "refused": refused, "kernels": held["kernels"]}


@pytest.mark.weekly
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_compiled_on_a_cpu_it_does_what_the_record_says() -> None:
    held, record = flex.hold(), recorded("flex")
    assert kinds(held) == kinds(record)
    for refusal in ("log-sum-exp", "parameter"):
        assert held["refused"][refusal] == record["refused"][refusal]
    learned, x = nn.Parameter(torch.ones(2)), torch.randn(2, 2, 300, 32)
    compiled = torch.compile(flex_attention)
    with torch.no_grad():
        compiled(x, x, x, score_mod=lambda score, batch, head, query, key: score * learned[head])


def test_the_record_finds_fault_with_the_tiles_alone_and_only_in_compiled_code() -> None:
    right = kinds(recorded("flex"))["right"]
    assert {case for case, (compiled, _) in right.items() if not compiled} == {
        "tiles of the first text",
        "ids changed since",
    }
    assert all(uncompiled for _, uncompiled in right.values())


def test_what_is_measured_has_the_form_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_, record = torch.compile, recorded("flex")
    monkeypatch.setattr(torch, "compile", lambda f, **options: compile_(f, **(options or {"backend": "eager"})))
    here = flex.measure([256], window=4, repeats=1)
    assert here.keys() == record.keys() - {"errors", "refused", "kernels"}
    assert here["costs"]["256"].keys() == record["costs"]["8192"].keys()
    assert all(ms > 0 for ms, _ in here["costs"]["256"].values())
    assert here["costs"]["256"]["create_block_mask"][1] * 2**20 > 9 * 256**2  # bytes for each pair
    with pytest.warns(DeprecationWarning, match="_compile flag"):
        create_block_mask(lambda batch, head, query, key: query >= key, None, None, 256, 256, "cpu", _compile=True)


def test_the_window_that_is_measured_is_a_window() -> None:
    costs = flex._ways(300, 7)
    mask = costs["SDPA, the window as a mask"].keywords["attn_mask"]  # type: ignore[attr-defined]
    i, j = torch.arange(300)[:, None], torch.arange(300)
    assert torch.equal(mask[0, 0], (j <= i) & (i - j < 7))
    assert torch.equal(
        costs["create_block_mask"]().to_dense(), costs["FlexAttention"].keywords["block_mask"].to_dense()
    )  # type: ignore[attr-defined]


@pytest.mark.cuda
def test_on_a_gpu_the_same_cases_are_right_and_wrong_and_the_log_sum_exp_is_given() -> None:
    held = flex.hold("cuda")
    assert kinds(held)["right"] == kinds(recorded("flex"))["right"]
    assert held["refused"]["log-sum-exp"] is None


@pytest.mark.cuda
def test_on_a_gpu_sinks_by_the_log_sum_exp_and_a_learned_slope_agree_with_the_matrix() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 300, 32, device="cuda")
    place = torch.arange(300, device="cuda")
    slopes, sinks = torch.tensor([[0.5, 0.1], [-1.0, 2.0]], device="cuda")
    ours, theirs = (slopes.clone().requires_grad_() for _ in range(2))
    right = attend(q, k, v, bias=-theirs[:, None, None] * (place[:, None] - place), is_causal=True, sinks=sinks).context
    blocks = create_block_mask(lambda batch, head, query, key: query >= key, None, None, 300, 300, "cuda")
    out, aux = torch.compile(flex_attention)(
        *(q, k, v),
        score_mod=lambda score, batch, head, query, key: score - ours[head] * (query - key),
        block_mask=blocks,
        return_aux=AuxRequest(lse=True),
    )
    sunk = torch.sigmoid(aux.lse - sinks[:, None])[..., None] * out
    torch.testing.assert_close(sunk, right, atol=1e-3, rtol=1e-3)
    for context in (sunk, right):
        context.square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-2, rtol=1e-2)
