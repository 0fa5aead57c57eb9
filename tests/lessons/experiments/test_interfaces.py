"""The questions behind the museum's tables of masks tell right answers from wrong ones."""

import pytest
import torch
from torch import nn

from unmasked import masks, self_attention
from unmasked.multihead import MultiheadAttention
from unmasked_lessons.experiments.interfaces import (
    WAYS_TO_HIDE,
    adding,
    after_attention,
    answer,
    blind,
    by_mode,
    causality,
    hiding_everything,
    meanings,
    paintable,
    readings,
)

X = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def parts() -> tuple[nn.MultiheadAttention, nn.TransformerEncoderLayer, MultiheadAttention]:
    torch.manual_seed(3)
    module = nn.MultiheadAttention(6, 2, batch_first=True)
    layer = nn.TransformerEncoderLayer(6, 2, 5, dropout=0.0, batch_first=True)
    return module, layer, MultiheadAttention(6, 2, batch_first=True)


def test_a_question_is_asked_in_each_mode_and_without_the_fast_path_which_is_on_again_afterwards(parts):
    _, layer, _ = parts

    def state() -> tuple[bool, bool, bool]:
        return layer.training, torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled()

    assert by_mode(layer, state) == [
        (True, True, True),
        (False, True, True),
        (False, False, True),
        (False, False, False),
    ]
    with pytest.raises(ZeroDivisionError):
        by_mode(layer, lambda: 1 / 0)
    assert state() == (True, True, True)


def test_true_allows_in_functions_and_blocks_in_modules(parts):
    told = {name: ask() for name, ask in meanings(X, *parts).items()}
    assert {name for name, meaning in told.items() if meaning == "may attend"} == {
        "F.scaled_dot_product_attention, attn_mask",
        "unmasked.self_attention, allowed",
    }
    assert len(told) == 6
    assert set(told.values()) == {"may attend", "may not attend"}


def test_an_interface_that_turns_its_mask_round_gets_the_other_answer(parts):
    class Inverted(MultiheadAttention):
        def forward(self, query, key, value, *, attn_mask):
            return super().forward(query, key, value, attn_mask=~attn_mask)

    module, layer, _ = parts
    told = meanings(X, module, layer, Inverted(6, 2, batch_first=True))
    assert told["unmasked.MultiheadAttention, attn_mask"]() == "may attend"


def test_a_layer_that_adds_a_bias_is_put_together_of_its_parts(parts):
    _, layer, _ = parts
    bias = torch.randn(4, 4, generator=torch.Generator().manual_seed(4))
    before = torch.get_rng_state()
    torch.testing.assert_close(adding(layer, X, bias), layer(X, src_mask=bias))  # in training it adds
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.allclose(adding(layer, X, bias), layer(X), atol=1e-3)


def test_after_its_attention_a_layer_normalizes_what_it_has_added(parts):
    _, layer, _ = parts
    output = after_attention(layer, X, layer.self_attn(X, X, X)[0])
    torch.testing.assert_close(output, layer(X))


def test_a_hint_is_obeyed_dropped_or_refused(parts):
    module, _, ours = parts
    open_mask = torch.zeros(4, 4, dtype=torch.bool)
    assert causality(module, X) == "raises"
    assert causality(module, X, attn_mask=open_mask, need_weights=False) == "causal"
    assert causality(module, X, attn_mask=open_mask, need_weights=True) == "not causal"
    assert causality(ours, X) == "causal"


def test_another_error_than_a_missing_mask_is_raised(parts):
    with pytest.raises(RuntimeError, match="shape"):
        causality(parts[0], X, attn_mask=torch.zeros(3, 3, dtype=torch.bool))


def test_a_query_that_sees_nothing_gets_zeros_nan_or_numbers(parts):
    module, layer, ours = parts
    for part in (module, ours, layer.self_attn):
        torch.nn.init.normal_(part.out_proj.bias)
    questions = blind(X, torch.eye(4).bool().roll(1, 0).tril(), {"theirs": module, "ours": ours}, {"layer": layer})
    told = {name: ask() for name, ask in questions.items()}
    assert [name for name, answer in told.items() if answer == "NaN"] == [
        ("theirs, need_weights=True", "bool"),
        ("theirs, need_weights=True", "float"),
    ]
    assert list(told.values()).count("zeros") == 10
    seeing = blind(X, torch.ones(4, 4).bool(), {"theirs": module, "ours": ours}, {"layer": layer})
    assert {ask() for ask in seeing.values()} == {"numbers"}


@pytest.mark.parametrize(
    ("dtype", "told"),
    [
        (torch.float64, ["equal weights", "as if nothing were masked", "as if nothing were masked"]),
        (torch.float32, ["equal weights", "equal weights", "equal weights"]),
        (torch.float16, ["raises", "NaN", "raises"]),
    ],
)
def test_minus_one_billion_hides_nothing_evens_out_or_overflows(dtype: torch.dtype, told: list[str]):
    scores = (X[0] @ X[0].mT).to(dtype)
    assert dict(zip(WAYS_TO_HIDE, hiding_everything(scores), strict=True)) == dict(zip(WAYS_TO_HIDE, told, strict=True))


ALLOWS = {"function": True, "module": False, "padding": False}


def painted():
    torch.manual_seed(5)
    return nn.MultiheadAttention(20, 4, batch_first=True), torch.randn(2, 3, 20)


def test_the_interfaces_answer_a_blind_query_with_zeros_in_the_function_and_nan_in_the_module():
    told = {each["kind"]: (each["allows"], each["blind"]) for each in paintable(*painted(), ALLOWS)}
    zeros, nan = "zeros", "NaN"
    assert told == {
        "boolean": (True, zeros),
        "additive": (True, zeros),
        "module": (False, nan),
        "padding": (False, nan),
    }


def test_a_polarity_that_is_not_that_of_the_interface_blinds_no_query():
    wrong = {name: not allows for name, allows in ALLOWS.items()}
    told = {each["kind"]: each["blind"] for each in paintable(*painted(), wrong)}
    assert told == {"boolean": "numbers", "additive": "zeros", "module": "numbers", "padding": "numbers"}


def test_a_first_query_that_sees_nothing_is_answered_in_each_mode_its_own_way():
    module, y = painted()
    nothing = masks.causal(3)
    nothing[0] = False
    asked = {name: by_mode(module, ask) for name, ask in blind(y, nothing, {"module": module}).items()}
    assert asked["F.scaled_dot_product_attention", "bool"] == ["zeros"] * 4
    assert asked["module, need_weights=True", "bool"] == ["NaN"] * 4
    assert asked["module, need_weights=False", "bool"] == ["zeros", "zeros", "NaN", "zeros"]
    assert {ask() for ask in blind(y, masks.causal(3), {"module": module}).values()} == {"numbers"}


def test_a_blind_row_is_named_by_its_numbers():
    assert answer(torch.tensor([torch.nan] * 2)) == "NaN"
    assert answer(torch.tensor([torch.nan, 1.0])) == "numbers"
    assert answer(torch.zeros(2)) == answer(torch.ones(2), zeros=torch.ones(2)) == "zeros"


def test_the_function_lets_true_look_and_the_module_does_not():
    torch.manual_seed(0)
    x, allowed = torch.randn(4, 8), masks.causal(4)
    given = readings(x, allowed)
    torch.testing.assert_close(given["the function"], self_attention(x, allowed=allowed).weights)
    torch.testing.assert_close(given["the module"][:3], self_attention(x, allowed=~allowed).weights[:3])
    assert given["the module"][3].isnan().all()
