"""What is said of answers to the museum's exercises."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import museum
from unmasked.exercises import check
from unmasked.exercises.museum.index import WRONG, mysteries, right
from unmasked.heads import merge_heads, split_heads
from unmasked.probes import differs, mixes_items, sees_the_future


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("slug", WRONG)
def test_a_wrong_version_hangs_in_the_museum_and_gives_the_right_shape_and_other_numbers(slug: str):
    x = draw(2, 5, 12)
    given = WRONG[slug](x, 3)
    assert slug in museum.ENTRIES
    assert given.shape == x.shape
    assert given.isfinite().all()
    assert differs(given, right(x, 3)) > 0.01


def test_the_right_version_is_pytorchs():
    x = draw(2, 5, 12)
    heads = split_heads(x, 3)
    torch.testing.assert_close(
        right(x, 3), merge_heads(F.scaled_dot_product_attention(heads, heads, heads, is_causal=True))
    )


# test-of-your-own


def by_equality(f):
    x = draw(2, 5, 12)
    torch.testing.assert_close(f(x), right(x, 3))


def by_truth(f):
    x = draw(3, 4, 6).double()
    return torch.allclose(f(x), right(x, 3))


def by_a_number(f):
    x = draw(2, 7, 15)
    return int((f(x) - right(x, 3)).abs().max() < 1e-4)


@pytest.mark.parametrize("answer", [by_equality, by_truth, by_a_number])
def test_any_test_that_compares_at_good_sizes_is_right(answer):
    feedback = check("test-of-your-own", answer)
    assert feedback, feedback
    assert feedback.message == "Your test passes what is right, and none of 14 wrong versions."


def test_a_test_that_lets_wrong_versions_through_is_told_how_many_and_one():
    feedback = check("test-of-your-own", lambda f: f(draw(2, 5, 12)).shape == (2, 5, 12))
    assert feedback.cause == "merge-without-transpose"
    assert feedback.message == (
        "Your test lets through 14 of 14 wrong versions, such as this: Heads merged without transposing back."
    )

    def calls(f):
        assert not sees_the_future(f, draw(2, 5, 12))
        assert not mixes_items(f, draw(2, 5, 12))

    feedback = check("test-of-your-own", calls)
    assert feedback.cause == "swapped-view"
    assert feedback.message.startswith("Your test lets through 4 of 14")


def test_a_test_at_sizes_that_hide_a_mistake_is_told_which():
    def one_item(f):
        torch.testing.assert_close(f(draw(1, 5, 12)), right(draw(1, 5, 12), 3))

    def narrow(f):
        torch.testing.assert_close(f(draw(2, 5, 3)), right(draw(2, 5, 3), 3))

    assert check("test-of-your-own", one_item).cause == "only-first-item"
    assert check("test-of-your-own", narrow).cause == "missing-scale"


def test_a_test_that_refuses_what_is_right_is_told_so():
    feedback = check("test-of-your-own", lambda f: False)
    assert feedback.message.startswith("Your test refuses a right version, the package's.")
    wider = right(draw(2, 5, 12).double(), 3)  # float32 cannot hold these numbers, on any machine
    exact = check("test-of-your-own", lambda f: torch.equal(f(draw(2, 5, 12)).double(), wider))
    assert "Your test refuses a right version" in exact.message
    assert "tolerance" in exact.message


# which-mistake

NAMES = ["mask-after-softmax", "swapped-view", "batch-and-tokens-swapped"]


@pytest.mark.parametrize("answer", [NAMES, tuple(NAMES)])
def test_the_names_of_all_three_are_right(answer):
    assert check("which-mistake", answer)
    x = draw(2, 5, 12)
    for slug, mystery in zip(answer, mysteries(), strict=True):
        torch.testing.assert_close(mystery(x), WRONG[slug](x, 3))


def test_wrong_names_are_told_apart():
    feedback = check("which-mistake", [NAMES[0], "missing-scale", NAMES[2]])
    assert feedback.cause == "missing-scale"
    assert feedback.message.startswith("Function 1 has another mistake than 'missing-scale': on 2 items of 5 tokens")
    assert "did you mean 'swapped-view'?" in check("which-mistake", [NAMES[0], "swaped-view", NAMES[2]]).message
    assert check("which-mistake", NAMES[:2]).message.startswith("You named 2; name 3")
    assert check("which-mistake", "swapped-view").message.startswith("You named 1; name 3")


# sizes-that-tell


@pytest.mark.parametrize(
    "answer", [(2, 5, 3, 4), [3, 4, 2, 5], {"batch": 2, "tokens": 3, "heads": 4, "head_dim": 5}, (2, 2, 2, 3)]
)
def test_sizes_that_differ_are_right(answer):
    assert check("sizes-that-tell", answer)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ((1, 5, 3, 4), "only-first-item"),
        ((2, 1, 3, 4), "merge-without-transpose"),
        ((2, 5, 1, 4), "merge-without-transpose"),
        ((2, 5, 3, 1), "missing-scale"),
        ((2, 5, 3, 3), "swapped-view"),
    ],
)
def test_sizes_that_hide_a_mistake_are_told_which(answer, cause: str):
    feedback = check("sizes-that-tell", answer)
    assert feedback.cause == cause
    assert f"(batch, tokens, heads, head_dim) = {answer}" in feedback.message
    assert museum.ENTRIES[cause].title in feedback.message


def test_what_is_no_size_is_refused():
    assert check("sizes-that-tell", (2, 5, 3)).message.startswith("You gave (2, 5, 3); give four whole numbers")
    assert check("sizes-that-tell", (2, 5, 0, 1)).message.startswith("You gave (2, 5, 0, 1); give four")
    assert "20,480,000 numbers" in check("sizes-that-tell", (10, 1000, 32, 64)).message


# undo-a-bare-merge


def by_view(merged, num_heads):
    b, n, e = merged.shape
    return merged.view(b, num_heads, n, e // num_heads).transpose(1, 2).reshape(b, n, e)


def by_loop(merged, num_heads):
    parts = [item.reshape(num_heads, merged.size(1), -1) for item in merged]
    return torch.stack([torch.cat(list(part), dim=-1) for part in parts]).double()


@pytest.mark.parametrize("answer", [by_view, by_loop])
def test_any_way_to_undo_a_bare_merge_is_right(answer):
    assert check("undo-a-bare-merge", answer)


def test_what_does_not_undo_it_is_shown_the_smallest_input():
    same = check("undo-a-bare-merge", lambda merged, num_heads: merged)
    assert same.cause == "merge-without-transpose"
    assert same.message.startswith("The input came back as it was. For 2 heads and the input [[[0.0, 1.0, 2.0, 3.0]")
    assert same.message.endswith(
        "it should give [[[0.0, 1.0, 6.0, 7.0], [2.0, 3.0, 8.0, 9.0], [4.0, 5.0, 10.0, 11.0]]]."
    )
    again = check("undo-a-bare-merge", lambda merged, n: split_heads(merged, n).reshape(merged.shape))
    assert again.cause == "view-without-transpose"
    turned = check("undo-a-bare-merge", lambda merged, n: merged.flip(1))
    assert turned.cause is None
    assert "it should give" in turned.message
    assert check("undo-a-bare-merge", lambda merged, n: None).message == "It returned NoneType; return a tensor."
    assert "it should be (1, 3, 4)" in check("undo-a-bare-merge", lambda merged, n: merged.mT).message
    two = check("undo-a-bare-merge", lambda merged, n: by_view(merged, 2) if n == 2 else merged.neg())
    assert two.message == "With 2 heads it is right, with 3 it is not."


# weights-that-tell


def every_number(module):
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape)
    return module


def in_place(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-1, 1)


def biases_only(module):
    nn.init.normal_(module.in_proj_bias)
    nn.init.normal_(module.out_proj.bias)


@pytest.mark.parametrize("answer", [every_number, in_place, biases_only])
def test_any_weights_that_are_not_special_are_right(answer):
    feedback = check("weights-that-tell", answer)
    assert feedback, feedback


def identity(module):
    biases_only(module)
    nn.init.eye_(module.out_proj.weight)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(12).repeat(3, 1))


def out_only(module):
    nn.init.normal_(module.in_proj_bias)
    nn.init.zeros_(module.out_proj.bias)


def one_for_all(module):
    in_place(module)
    with torch.no_grad():
        module.in_proj_weight.copy_(module.in_proj_weight[:12].repeat(3, 1))
        module.in_proj_bias.copy_(module.in_proj_bias[:12].repeat(3))


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (lambda module: None, "zero-bias-parity"),
        (out_only, "zero-bias-parity"),
        (identity, "weight-not-transposed"),
        (one_for_all, "wrong-value"),
    ],
)
def test_weights_that_hide_a_mistake_are_told_which(answer, cause: str):
    feedback = check("weights-that-tell", answer)
    assert feedback.cause == cause
    assert museum.ENTRIES[cause].title in feedback.message


def test_weights_that_are_no_weights_are_refused():
    def empty(module):
        module.in_proj_bias = nn.Parameter(torch.zeros(5))

    def infinite(module):
        nn.init.constant_(module.out_proj.bias, math.inf)

    assert "shapes of the parameters" in check("weights-that-tell", empty).message
    assert "not finite" in check("weights-that-tell", infinite).message


# mend-the-class


class Copied(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = copy.deepcopy(module)

    def attend(self, q, k, v):
        parts = (split_heads(part, self.module.num_heads) for part in (q, k, v))
        return merge_heads(F.scaled_dot_product_attention(*parts))

    def project(self, x):
        return F.linear(x, self.module.in_proj_weight, self.module.in_proj_bias).chunk(3, -1)

    def forward(self, x):
        return self.module.out_proj(self.attend(*self.project(x)))


class Whole(Copied):
    def forward(self, x):
        return self.module(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("answer", [Copied, Whole, lambda module: Copied(module).forward])
def test_any_class_that_equals_pytorchs_module_is_right(answer):
    assert check("mend-the-class", answer)


class NoBias(Copied):
    def project(self, x):
        return F.linear(x, self.module.in_proj_weight).chunk(3, -1)


class NoBiases(NoBias):
    def forward(self, x):
        return self.attend(*self.project(x)) @ self.module.out_proj.weight.T


class Turned(Copied):
    def project(self, x):
        weights, biases = self.module.in_proj_weight.chunk(3), self.module.in_proj_bias.chunk(3)
        return [x @ w + b for w, b in zip(weights, biases, strict=True)]


class Interleaved(Copied):
    def project(self, x):
        rows = F.linear(x, self.module.in_proj_weight, self.module.in_proj_bias)
        return [part.flatten(-2) for part in rows.unflatten(-1, (3, 3, -1)).unbind(-2)]


class Stopped(Copied):
    def forward(self, x):
        return self.attend(*self.project(x))


class QueriesAveraged(Copied):
    def project(self, x):
        q, k, _ = super().project(x)
        return q, k, q


class Alias(Copied):
    def __init__(self, module):
        super().__init__(module)
        self.module = module


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (NoBias, "zero-bias-parity"),
        (Turned, "weight-not-transposed"),
        (Interleaved, "interleaved-qkv"),
        (Stopped, "missing-out-proj"),
        (QueriesAveraged, "wrong-value"),
        (Alias, "aliased-weights"),
    ],
)
def test_a_class_with_one_mistake_is_told_which(answer, cause: str):
    assert check("mend-the-class", answer).cause == cause


def test_a_class_with_more_mistakes_is_told_how_far_it_is_off():
    feedback = check("mend-the-class", NoBiases)
    assert feedback.cause is None
    assert feedback.message.endswith("from PyTorch's output, and by more than one mistake.")
    assert check("mend-the-class", lambda module: lambda x: None).message == (
        "For an input (2, 5, 12) it returned NoneType; it should be (2, 5, 12)."
    )
