import torch
from torch import nn

from unmasked import masks, self_attention
from unmasked_lessons.figures import painter

ALLOWS = {"function": True, "module": False, "padding": False}


def inputs():
    torch.manual_seed(5)
    return nn.MultiheadAttention(20, 4, batch_first=True), torch.randn(2, 3, 20)


def test_the_interfaces_answer_a_blind_query_with_zeros_in_the_function_and_nan_in_the_module():
    told = {each["kind"]: (each["allows"], each["blind"]) for each in painter.interfaces(*inputs(), ALLOWS)}
    zeros, nan = "zeros", "NaN"
    assert told == {
        "boolean": (True, zeros),
        "additive": (True, zeros),
        "module": (False, nan),
        "padding": (False, nan),
    }


def test_a_polarity_that_is_not_that_of_the_interface_blinds_no_query():
    wrong = {name: not allows for name, allows in ALLOWS.items()}
    told = {each["kind"]: each["blind"] for each in painter.interfaces(*inputs(), wrong)}
    assert told == {"boolean": "numbers", "additive": "zeros", "module": "numbers", "padding": "numbers"}


def test_a_first_query_that_sees_nothing_is_answered_in_each_interface_its_own_way():
    nothing = masks.causal(3)
    nothing[0] = False
    assert painter.answers(*inputs(), nothing) == {
        "F.scaled_dot_product_attention": "zeros",
        "nn.MultiheadAttention, train, need_weights=True": "NaN",
        "nn.MultiheadAttention, train, need_weights=False": "zeros",
        "nn.MultiheadAttention, eval, no_grad, need_weights=True": "NaN",
        "nn.MultiheadAttention, eval, no_grad, need_weights=False": "NaN",
        "unmasked.self_attention": "zeros",
    }
    assert set(painter.answers(*inputs(), masks.causal(3)).values()) == {"numbers"}


def test_the_function_lets_true_look_and_the_module_does_not():
    torch.manual_seed(0)
    x, allowed = torch.randn(4, 8), masks.causal(4)
    given = painter.readings(x, allowed)
    torch.testing.assert_close(given["the function"], self_attention(x, allowed=allowed).weights)
    torch.testing.assert_close(given["the module"][:3], self_attention(x, allowed=~allowed).weights[:3])
    assert given["the module"][3].isnan().all()
