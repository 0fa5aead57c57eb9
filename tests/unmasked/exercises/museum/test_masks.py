"""Answers to the exercises of the museum's room of masks: right ones are accepted, wrong ones told why."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from unmasked import masks, self_attention
from unmasked.exercises import check


def by_prefix(f, x):  # what stands before does not depend on what follows
    return any(not torch.allclose(f(x[:, :n]), f(x)[:, :n]) for n in range(1, x.size(1)))


def by_gradient(f, x):
    x = x.detach().clone().requires_grad_()
    output = f(x)
    for position in range(x.size(1) - 1):
        (gradient,) = torch.autograd.grad(output[:, position].sum(), x, retain_graph=True)
        if gradient[:, position + 1 :].abs().max() > 1e-9:
            return True
    return False


def by_change(f, x, late=None):
    for position in range(1, x.size(1)) if late is None else (late,):
        changed = x.clone()
        changed[:, position] += 1 + torch.arange(x.size(-1))
        if not torch.allclose(f(changed)[:, :position], f(x)[:, :position]):
            return torch.tensor(True)
    return torch.tensor(False)


@pytest.mark.parametrize("answer", [by_prefix, by_gradient, by_change])
def test_every_way_to_find_a_leak_is_accepted(answer):
    assert check("leak-test", answer).ok


def test_a_test_that_never_finds_anything_is_told_what_it_missed():
    feedback = check("leak-test", lambda f, x: False)
    assert not feedback.ok
    assert feedback.cause == "no-causal-mask"
    assert "attention without a mask does not look ahead, but it does" in feedback.message


def test_a_test_that_always_finds_something_is_told_of_a_causal_function():
    feedback = check("leak-test", lambda f, x: True)
    assert not feedback.ok
    assert "causal attention looks ahead, but it does not" in feedback.message


def test_a_test_of_the_first_output_alone_is_told_of_the_function_that_it_passes():
    def first_only(f, x):
        changed = x.clone()
        changed[:, -1] += 1
        return not torch.allclose(f(changed)[:, 0], f(x)[:, 0])

    feedback = check("leak-test", first_only)
    assert not feedback.ok
    assert "one token ahead" in feedback.message


def test_a_test_of_the_sums_of_rows_misses_a_visible_future():
    feedback = check("leak-test", lambda f, x: not torch.allclose(f(torch.ones_like(x)), torch.ones_like(x)))
    assert not feedback.ok


def test_a_test_that_changes_its_input_is_told_so():
    def changing(f, x):
        before = f(x)[:, :-1].clone()
        x[:, -1] += 1
        return not torch.allclose(f(x)[:, :-1], before)

    feedback = check("leak-test", changing)
    assert not feedback.ok
    assert feedback.cause == "input-overwritten"


def expanded(allowed, num_heads):
    return masks.blocked_from_allowed(allowed[:, None], num_heads=num_heads)


def additive(allowed, num_heads):
    return masks.additive_from_allowed(allowed, torch.float64).repeat_interleave(num_heads, 0)


def viewed(allowed, num_heads):
    return (~allowed)[:, None].expand(-1, num_heads, -1, -1).reshape(-1, *allowed.shape[1:])


@pytest.mark.parametrize("answer", [expanded, additive, viewed])
def test_every_way_to_make_a_mask_for_each_head_is_accepted_and_obeyed_by_the_module(answer):
    assert check("module-mask", answer).ok
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    allowed = (masks.padding(torch.tensor([2, 3])) & masks.causal(3))[:, 0]
    module = nn.MultiheadAttention(8, 4, batch_first=True)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(8).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(8))
        output, _ = module(x, x, x, attn_mask=answer(allowed, 4).to(torch.float32 if answer is additive else bool))
    by_head = self_attention(x.unflatten(-1, (4, 2)).transpose(1, 2), allowed=allowed[:, None])
    torch.testing.assert_close(output, by_head.context.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("answer", "cause", "said"),
    [
        (lambda a, h: a.repeat_interleave(h, 0), "mask-polarity", "True means: may not attend"),
        (lambda a, h: (~a).repeat(h, 1, 1), "batch-indexed-for-head", "side by side"),
        (lambda a, h: (~a).float().repeat_interleave(h, 0), "float-mask-of-ones", "other numbers than 0 and -inf"),
        (lambda a, h: ~a, None, "(8, 3, 3): batch times heads, queries, keys"),
        (lambda a, h: (~a).int().repeat_interleave(h, 0), None, "torch.int32"),
        (lambda a, h: (~a).repeat_interleave(h, 0).mT, None, "Mask 0 is [[0, 0, 0], [1, 0, 0], [1, 1, 1]]"),
        (lambda a, h: (~a).tolist(), None, "list; return a tensor"),
    ],
    ids=["polarity", "repeat", "ones", "without heads", "integers", "transposed", "list"],
)
def test_wrong_masks_for_each_head_are_told_apart(answer, cause, said):
    feedback = check("module-mask", answer)
    assert not feedback.ok
    assert feedback.cause == cause
    assert said in feedback.message


def test_the_functions_that_leak_are_those_of_the_page():
    x = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(1))
    leaked = F.scaled_dot_product_attention(x, x, x, attn_mask=~masks.causal(4))
    from unmasked.exercises.museum.masks import _LEAKY

    torch.testing.assert_close(_LEAKY["attention with the mask of the other polarity"][1](x), leaked)
