"""The page on memories of fixed size: its functions give what the Qwen3-Next of transformers computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from unmasked_lessons.experiments.linear import recalled

from ..running import names_of

theirs = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next", reason="pip install transformers>=5")


@pytest.fixture
def page() -> dict[str, Any]:
    return vars(names_of("linear"))


@pytest.mark.parametrize("name", ["gated_delta", "gated_delta_loop"])
def test_the_gated_delta_rule_is_that_of_qwen3_next(name: str, page: dict[str, Any]):
    generator = torch.Generator().manual_seed(0)
    query, key = F.normalize(torch.randn(2, 13, 8, generator=generator), dim=-1)
    value, (gate, beta) = torch.randn(13, 6, generator=generator), torch.rand(2, 13, generator=generator)
    outputs, state = page[name](query, key, value, gate, beta)
    one = [x[None, :, None] for x in (query * 8**0.5, key, value, gate.log(), beta)]  # batch tokens heads
    for rule in (theirs.torch_recurrent_gated_delta_rule, theirs.torch_chunk_gated_delta_rule):
        out, last = rule(*one, initial_state=None, output_final_state=True, use_qk_l2norm_in_kernel=False)
        torch.testing.assert_close(outputs, out[0, :, 0], rtol=0, atol=1e-5)
        torch.testing.assert_close(state, last[0, 0], rtol=0, atol=1e-5)


def test_gates_that_almost_close_lose_nothing_in_a_long_chunk(page: dict[str, Any]):
    generator = torch.Generator().manual_seed(0)
    x = F.normalize(torch.randn(64, 8, generator=generator), dim=-1)
    gate, beta = torch.full((64,), 1e-6), torch.ones(64)
    whole, _ = page["gated_delta"](x, x, x, gate, beta, chunk=64)
    torch.testing.assert_close(whole, page["gated_delta_loop"](x, x, x, gate, beta)[0], rtol=0, atol=1e-5)


def test_a_text_that_goes_on_from_nothing_is_noticed(page: dict[str, Any]):
    def starts_anew(query, key, value, chunk=4, state=None):
        return page["linear"](query, key, value, chunk)

    page["any_cut_gives_the_same"](page["linear"], page["query"], page["key"], page["value"])
    with pytest.raises(AssertionError):
        page["any_cut_gives_the_same"](starts_anew, page["query"], page["key"], page["value"])


def test_a_cut_that_changes_something_is_noticed(page: dict[str, Any]):
    def forgets(query, key, value, chunk=4, state=None):
        return page["linear"](query, key, value, chunk, state)[0].clone().index_fill_(
            0, torch.tensor([chunk - 1]), 0
        ), 0

    with pytest.raises(AssertionError):
        page["any_cut_gives_the_same"](forgets, page["query"], page["key"], page["value"])


def test_what_is_recalled_by_a_rule_that_remembers_nothing_is_off_by_all_of_it():
    nothing = torch.zeros(4, 4, dtype=torch.double)
    errors = recalled(lambda *_: (nothing, nothing), lambda *_: (nothing, nothing), 4, [3])[3]
    assert errors[1:].allclose(torch.ones(2, 3, dtype=torch.double))
    assert errors[0].max() < 1e-3
