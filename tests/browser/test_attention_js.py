"""The one script that computes, held to PyTorch: what figures in the browser show is what PyTorch would give."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

from unmasked import bypassed, masks, self_attention

from .conftest import LIVE, Open

if TYPE_CHECKING:
    from playwright.sync_api import Page

CASES = 400
TOLERANCE: dict[str, float] = {"rtol": 0, "atol": 1e-5}
RUN = """
async (cases) => {
  const { attention } = await import("/attention.js")
  return cases.map(({ query, key, value, ...options }) => attention(query, key, value, options))
}
"""


@pytest.fixture(scope="module")
def built() -> Path:
    return LIVE


@pytest.fixture
def page(opened: Open) -> Page:
    return opened("attention.js")


def drawn(seed: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A case for the script, and what PyTorch makes of it: the weights are what it gives for the unit matrix."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return 2 * torch.randn(shape, generator=generator, dtype=torch.float64)

    def size(most: int) -> int:
        return int(torch.randint(1, most, (), generator=generator))

    def maybe() -> bool:
        return bool(torch.rand((), generator=generator) < 0.5)

    queries, keys = size(7), size(8)
    dim, value_dim = size(12), size(6)
    query, key, value = normal(queries, dim), normal(keys, dim), normal(keys, value_dim)
    case: dict[str, Any] = {"query": query.tolist(), "key": key.tolist(), "value": value.tolist()}
    added = torch.zeros(queries, keys, dtype=torch.float64)
    scale = None
    if maybe():
        allowed = torch.rand(queries, keys, generator=generator) < 0.6
        if maybe():
            allowed[int(torch.randint(queries, (), generator=generator))] = False
        if maybe():
            allowed = allowed[:1]  # one row for all queries, as of padding
        case["mask"] = allowed.tolist() if len(allowed) == queries else allowed[0].tolist()
        added = added.masked_fill(~allowed, -math.inf)
    if maybe():
        bias = normal(queries, keys)
        bias[torch.rand(queries, keys, generator=generator) < 0.3] = -math.inf
        if maybe():
            bias = bias[:1]
        case["bias"] = bias.tolist() if len(bias) == queries else bias[0].tolist()
        added = added + bias
    if maybe():
        case["causal"] = True
        added = added.masked_fill(~masks.causal(queries, keys), -math.inf)
    if maybe():
        scale = case["scale"] = float(normal())

    def attended(values: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query[None], key[None], values[None], attn_mask=added, scale=scale)[0]

    expected = {"context": attended(value), "weights": attended(torch.eye(keys, dtype=torch.float64))}
    return case, expected | {"blind": (added == -math.inf).all(-1)}


def test_hundreds_of_random_cases_come_out_as_pytorch_has_them(page: Page):
    cases, expected = zip(*map(drawn, range(CASES)), strict=True)
    found = page.evaluate(RUN, cases)
    assert len(found) == CASES
    for seed, (case, ours, theirs) in enumerate(zip(cases, found, expected, strict=True)):
        for name in ("weights", "context"):
            got = torch.tensor(ours[name], dtype=torch.float64)
            torch.testing.assert_close(got, theirs[name], **TOLERANCE, msg=lambda text, seed=seed: f"{seed}: {text}")
        scale = case.get("scale", len(case["query"][0]) ** -0.5)
        products = torch.tensor(case["query"]).double() @ torch.tensor(case["key"]).double().T
        torch.testing.assert_close(torch.tensor(ours["scores"]).double(), scale * products, rtol=1e-5, atol=1e-5)
    # All that can be asked for is among them, and rows that see nothing, too.
    for option in ("mask", "bias", "causal", "scale"):
        assert sum(option in case for case in cases) > CASES / 4, option
    assert sum(bool(theirs["blind"].any()) for theirs in expected) > CASES / 8
    assert sum(len(case["query"]) != len(case["key"]) for case in cases) > CASES / 2


ONLINE = """
async (cases) => {
  const { online } = await import("/attention.js")
  return cases.map(({ scores, hidden, value, tile }) => {
    const seen = scores.map((score, j) => (hidden[j] ? -Infinity : score))
    return online(seen, value, tile).map((state) => ({ ...state, largest: `${state.largest}` }))
  })
}
"""


def test_after_every_tile_the_running_softmax_is_that_of_what_has_been_seen(page: Page):
    cases = []
    generator = torch.Generator().manual_seed(0)
    for seed in range(CASES):
        keys, tile = 1 + seed % 9, 1 + seed % 5
        cases.append(
            {
                "scores": (4 * torch.randn(keys, generator=generator).double()).tolist(),
                "hidden": (torch.rand(keys, generator=generator) < 0.4).tolist(),
                "value": torch.randn(keys, 1 + seed % 3, generator=generator).double().tolist(),
                "tile": tile,
            }
        )
    empty = 0
    for case, states in zip(cases, page.evaluate(ONLINE, cases), strict=True):
        scores = torch.tensor(case["scores"]).double().masked_fill(torch.tensor(case["hidden"]), -math.inf)
        value = torch.tensor(case["value"]).double()
        assert len(states) == 1 + -(-len(scores) // case["tile"])
        for place, state in enumerate(states):
            seen = scores[: place * case["tile"]]
            if not seen.isfinite().any():
                assert (state["largest"], state["total"], any(state["average"])) == ("-Infinity", 0, False)
                empty += place > 0
                continue
            assert float(state["largest"]) == pytest.approx(seen.max().item())
            assert state["total"] == pytest.approx((seen - seen.max()).exp().sum().item())
            average = F.scaled_dot_product_attention(
                torch.zeros(1, 1, 1).double(),
                torch.zeros(1, len(seen), 1).double(),
                value[None, : len(seen)],
                attn_mask=seen[None],
            )
            torch.testing.assert_close(torch.tensor(state["average"]).double(), average[0, 0], **TOLERANCE)
    assert empty > CASES / 20, "an empty first tile is among them"


def test_blind_rows_are_nan_where_that_is_asked_for_as_of_pytorchs_module(page: Page):
    cases, expected = [], []
    for seed in range(20):
        torch.manual_seed(seed)
        x = torch.randn(1, 5, 4)
        blocked = torch.rand(5, 5) < 0.4
        blocked[seed % 5] = True
        with bypassed(torch.nn.MultiheadAttention(4, 1, batch_first=True)) as module:
            context, weights = module(x, x, x, attn_mask=blocked)
        rows = x[0].tolist()
        cases.append({"query": rows, "key": rows, "value": rows, "mask": (~blocked).tolist(), "blind": math.nan})
        expected.append((context[0], weights[0]))
    for ours, (context, weights) in zip(page.evaluate(RUN, cases), expected, strict=True):
        assert weights.isnan().any(-1).sum() == weights.isnan().all(-1).sum() >= 1
        torch.testing.assert_close(torch.tensor(ours["weights"]), weights, **TOLERANCE, equal_nan=True)
        torch.testing.assert_close(torch.tensor(ours["context"]), context, **TOLERANCE, equal_nan=True)


def test_large_scores_stay_numbers_and_what_torch_makes_nan_is_nan(page: Page):
    rows = [[800.0, -900.0, 799.0], [-math.inf, 3.0, -math.inf], [math.inf, 1.0, 2.0], [math.nan, 1.0, 2.0]]
    found = page.evaluate("async (rows) => (await import('/attention.js')).weights(rows)", rows)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(rows).softmax(-1), **TOLERANCE, equal_nan=True)


def test_a_sentence_attends_to_itself_as_the_library_has_it(page: Page):
    torch.manual_seed(0)
    x = torch.randn(11, 50, dtype=torch.float64)
    (found,) = page.evaluate(RUN, [dict.fromkeys(("query", "key", "value"), x.tolist())])
    context, weights = self_attention(x)
    torch.testing.assert_close(torch.tensor(found["weights"]).double(), weights, **TOLERANCE)
    torch.testing.assert_close(torch.tensor(found["context"]).double(), context, **TOLERANCE)


@pytest.mark.parametrize(
    ("query", "key", "value", "told"),
    [
        ([[1, 2]], [[1, 2], [3]], [[1], [2]], "a key or query has 1 numbers, and another 2: give as many"),
        ([[1, 2]], [[1, 2], [3, 4]], [[1]], "there are 2 keys and 1 values: give one value for each key"),
    ],
)
def test_what_does_not_fit_is_named(page: Page, query: Any, key: Any, value: Any, told: str):
    with pytest.raises(Exception, match=told):
        page.evaluate(RUN, [{"query": query, "key": key, "value": value}])
