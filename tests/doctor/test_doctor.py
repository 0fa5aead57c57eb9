"""The doctor is sound and complete: nothing is found in correct attention, and every mistake that shows is named."""

import copy
import json
import math
import re
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import diagnose, self_attention
from unmasked_doctor import Report, museum
from unmasked_doctor.testing import assert_attention

from . import examples, test_zoo
from .zoo.attention import Attention, separate

E, H, D = 20, 5, 4

NAN, SUMS, COSTS, CALLS = (
    "The output is NaN",
    "Rows of weights do not sum to one",
    "It takes too much memory or time, or does not load",
    "Two calls, or training and evaluation, disagree",
)
# What the museum says that one sees, where a check of the doctor sees just that.
SEEN = {
    "hooks run": "Hooks do not run",
    "float16 range": NAN,
    "no NaN where a query may see nothing": NAN,
    "weights sum to one": SUMS,
    "weights sum to one, in training": SUMS,
    "no mask in the state_dict": COSTS,
    "what it costs": COSTS,
    "the same at every call, in evaluation": CALLS,
    "inputs left as they were": CALLS,
    "parameters have their own memory": CALLS,
}


def printed(name: str, report: Report) -> None:
    print(f"{name:55} {', '.join(report.causes) or 'no finding'}")


@pytest.mark.parametrize("name", examples.RIGHT)
def test_nothing_is_found_in_correct_attention(name: str) -> None:
    report = examples.RIGHT[name].examine()
    printed(name, report)
    assert not report.named, report


@pytest.mark.parametrize("name", examples.WRONG)
def test_every_planted_mistake_is_named_and_no_other(name: str) -> None:
    report = examples.WRONG[name].examine()
    printed(name, report)
    assert report.causes == (examples.WRONG[name].cause,), report
    (finding,) = report.named
    assert finding.evidence
    assert finding.link == museum.ENTRIES[finding.cause].link
    (symptom,) = (symptom for symptom, slugs in museum.SYMPTOMS.items() if finding.cause in slugs)
    if finding.check in SEEN or symptom in ("Hooks do not run", NAN, COSTS):
        assert symptom == SEEN.get(finding.check), "the museum has it under another symptom"


def test_every_mistake_of_the_museum_is_planted_or_cannot_be_seen() -> None:
    planted = {example.cause for example in examples.WRONG.values()} | {
        case.cause for case in test_zoo.WRONG.values()
    } - {None}
    assert planted | examples.NOT_SEEN.keys() == museum.ENTRIES.keys()
    assert not planted & examples.NOT_SEEN.keys()
    assert len(examples.RIGHT) >= 15


def test_parameters_are_put_back_as_they_were_also_where_the_target_cannot_be_copied() -> None:
    class Uncopied(examples.WRONG["bias-kv-as-shift"].make):  # type: ignore[name-defined, misc]
        def __deepcopy__(self, memo: Any) -> None:
            raise TypeError("it cannot be copied")

    module = Uncopied()
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    assert "what bias_k and bias_v are for" in str(diagnose(module, embed_dim=12, num_heads=3).inconclusive)
    assert all(torch.equal(parameter, before[name]) for name, parameter in module.named_parameters())


# Classes that nothing was written for


class Letters(nn.Module):
    """Einsum with letters of its own, and matrices whose axes are in another order."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.heads = wrong, H
        self.Wq, self.Wk, self.Wv = (nn.Parameter(torch.randn(E, H, D) / 5) for _ in range(3))
        self.Wo = nn.Parameter(torch.randn(H, D, E) / 5)

    def forward(self, z):
        a, b, c = (torch.einsum("nse,ehp->nhsp", z, w) for w in (self.Wq, self.Wk, self.Wv))
        s = torch.einsum("nhxp,nhyp->nhxy", a, b)
        s = s if self.wrong == "missing-scale" else s / math.sqrt(D)
        s = s.softmax(2 if self.wrong == "softmax-over-queries" else 3)
        c = a if self.wrong == "wrong-value" else c
        r = torch.einsum("nhxy,nhyp->nxhp", s, c)
        if self.wrong == "merge-without-transpose":
            r = r.transpose(1, 2).reshape(r.shape)
        return torch.einsum("nxhp,hpe->nxe", r, self.Wo)


class Callable_:  # noqa: N801
    """No module at all."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.qkv_weight = torch.randn(3, H, D, E) / 4
        self.out_weight = torch.randn(E, E) / 4

    def __call__(self, x):
        q, k, v = torch.einsum("khde,bte->kbhtd", self.qkv_weight.to(x), x)
        if self.wrong == "input-overwritten":
            x.mul_(2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.wrong != "no-causal-mask")
        y = y.reshape(x.shape) if self.wrong == "merge-without-transpose" else y.transpose(1, 2).flatten(2)
        return y @ self.out_weight.to(x)


STRANGE = {
    Letters: ({}, ["missing-scale", "softmax-over-queries", "wrong-value", "merge-without-transpose"]),
    Callable_: (
        {"num_heads": H, "causal": True},
        ["input-overwritten", "no-causal-mask", "merge-without-transpose"],
    ),
}


@pytest.mark.parametrize(
    ("make", "wrong"), [(make, wrong) for make, (_, all_wrong) in STRANGE.items() for wrong in ["", *all_wrong]]
)
def test_classes_that_it_has_never_seen_are_judged_too(make, wrong: str) -> None:
    report = diagnose(make(wrong), embed_dim=E, **STRANGE[make][0])
    assert report.causes == ((wrong,) if wrong else ()), report
    assert bool(report.named) == bool(wrong)
    if not wrong:
        assert "equality with the reference" in report.passed


def test_without_weights_what_it_multiplies_tells_the_mistake() -> None:
    class Sealed:
        """Its matrices are nowhere to be seen."""

        __slots__ = ()

        def __call__(self, x):
            w = torch.randn(4, E, E, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(x) / 4
            q, k, v = ((x @ w[i]).unflatten(-1, (H, D)).transpose(1, 2) for i in range(3))
            return F.scaled_dot_product_attention(q, k, v).reshape(x.shape) @ w[3]

    report = diagnose(Sealed(), embed_dim=E, num_heads=H, causal=False)
    (finding,) = report.named
    assert finding.cause == "merge-without-transpose"
    assert finding.how != "open"
    assert report.verdict != "open"


def test_norms_windows_and_whole_layers_are_not_blamed_for_being_more_than_attention() -> None:
    class Windowed(Letters):
        def forward(self, z):
            a, b, c = (torch.einsum("nse,ehp->nhsp", z, w) for w in (self.Wq, self.Wk, self.Wv))
            seen = torch.ones(z.size(1), z.size(1), dtype=torch.bool).tril().triu(-2)
            y = F.scaled_dot_product_attention(F.normalize(a, dim=-1), b, c, attn_mask=seen)
            return torch.einsum("nhxp,hpe->nxe", y, self.Wo)

    windowed = diagnose(Windowed(), embed_dim=E, causal=True)
    assert not windowed.named, windowed
    assert "the past is seen" in {each.check for each in windowed.inconclusive}
    layer = nn.TransformerEncoderLayer(E, H, dim_feedforward=7, dropout=0.2, batch_first=True)
    assert not diagnose(layer, embed_dim=E, causal=False).named


def test_two_mistakes_at_once_are_both_named() -> None:
    class Two(Letters):
        def forward(self, z):
            a, b, c = (torch.einsum("nse,ehp->nhsp", z, w) for w in (self.Wq, self.Wk, self.Wv))
            r = (a @ b.mT).softmax(-1) @ c
            return torch.einsum("nxhp,hpe->nxe", r.reshape(z.size(0), z.size(1), H, D), self.Wo)

    assert set(diagnose(Two(), embed_dim=E).causes) == {"missing-scale", "merge-without-transpose"}


def test_weights_may_be_named_by_parameter_view_layer_or_name() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.alpha, self.beta = nn.Parameter(torch.randn(3 * E, E)), nn.Linear(E, E)

        def forward(self, x):
            rows = F.linear(x, self.alpha).unflatten(-1, (H, 3, D)).transpose(1, 2)  # read head by head
            return self.beta(F.scaled_dot_product_attention(*rows.unbind(-2)).transpose(1, 2).flatten(2))

    odd = Odd()
    assert not diagnose(odd, embed_dim=E, num_heads=H).named  # an order of its own
    query, key, value = odd.alpha.chunk(3)
    given = {"query": query, "key": key, "value": value, "out": odd.beta}
    assert diagnose(odd, embed_dim=E, num_heads=H, weights=given).causes == ("interleaved-qkv",)
    given = {"qkv": "alpha", "out": "beta.weight", "out_bias": "beta.bias"}
    assert diagnose(odd, embed_dim=E, num_heads=H, weights=given).causes == ("interleaved-qkv",)


def test_the_target_and_the_global_generator_are_left_as_they_were() -> None:
    module = nn.MultiheadAttention(12, 3, dropout=0.3, batch_first=True)
    state = copy.deepcopy(module.state_dict())
    before = torch.get_rng_state()
    for target, options in (
        (module, {"inputs": "qkv"}),
        (lambda x: module(x, x, x)[0], {}),
        (module.forward, {"inputs": "qkv"}),
    ):
        assert not diagnose(target, embed_dim=12, **options).named
    assert torch.equal(torch.get_rng_state(), before)
    assert module.training
    assert not module._forward_hooks
    assert not module._forward_pre_hooks
    assert all(p.grad is None for p in module.parameters())
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())


def test_the_same_report_comes_every_time() -> None:
    target = examples.WRONG["merge-without-transpose: causal"]
    torch.manual_seed(1)
    first = target.examine()
    torch.manual_seed(2)
    assert target.examine() == first


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"embed_dim": 0}, ValueError, "embed_dim is 0; it must be a whole number, 1 or more"),
        ({"num_heads": -1}, ValueError, "num_heads is -1; it must be a whole number, 1 or more"),
        (
            {"inputs": "kv"},
            ValueError,
            'inputs is \'kv\'; choose "x", "x_allowed", "x_context", "x_context_allowed", "qkv" or "qkv_allowed"',
        ),
        ({"tokens": 1}, ValueError, "tokens is 1; it must be a whole number, 2 or more"),
        ({"causal": "yes"}, ValueError, "causal is 'yes'; pass True, False, or None if that is not known"),
        ({"causal": 0}, ValueError, "causal is 0; pass True, False, or None if that is not known"),
        *(
            ({name: "no"}, TypeError, f"{name} is 'no', a str; it must be True or False")
            for name in ("batch_first", "strict", "training")
        ),
        ({"key_dim": 2.5, "inputs": "qkv"}, ValueError, "key_dim is 2.5; it must be a whole number, 1 or more"),
        ({"key_dim": (3, -1), "inputs": "qkv"}, ValueError, "key_dim is (3, -1); it must be a whole number, 1 or more"),
        ({"key_dim": (6, None), "inputs": "qkv"}, ValueError, "key_dim is (6, None); it must be a whole number, 1 or"),
        ({"key_dim": 7}, ValueError, "key_dim is 7, and with inputs='x' the keys are of the tokens themselves"),
        ({"key_dim": (7, 5), "inputs": "x_context"}, ValueError, 'for inputs="qkv" or "qkv_allowed" alone'),
        ({"cache": True}, ValueError, 'cache is True; pass "kv" where forward(x, cache=None) returns (output, cache)'),
        ({"cache": "kv", "inputs": "qkv"}, ValueError, 'a cache is examined with inputs="x": wrap the target'),
        ({"cache": "kv", "causal": False}, ValueError, "what is kept in a cache has not seen later tokens"),
        ({"target": 3}, TypeError, "target is an int; pass a module or a function"),
        ({"target": Letters}, TypeError, "target is the class Letters; pass an object of it: Letters(...)"),
        ({"inputs": "qkv"}, ValueError, "inputs is 'qkv', and the target refuses what that gives: TypeError"),
        ({"weights": ["Wq"]}, TypeError, "weights is a list; pass a dict of roles and parameters"),
        ({"weights": {"q": "Wq"}}, ValueError, "weights names 'q'; its keys are key, key_bias, out"),
        (
            {"weights": {"query": "Wx"}},
            ValueError,
            "is 'Wx', which is no parameter of the target; it has Wq, Wk, Wv, Wo",
        ),
        (
            {"weights": {"query": 3}},
            TypeError,
            "weights['query'] is an int; pass a tensor, the name of a parameter, or",
        ),
        (
            {"weights": {"query": torch.ones(E, E)}},
            ValueError,
            "weights['query'] is a tensor of shape (20, 20) that is none of the target's; pass a parameter",
        ),
    ],
)
def test_errors_say_what_to_pass(unhooked, options, error, text: str) -> None:
    given = {"target": Letters(), "embed_dim": E, **options}
    with pytest.raises(error) as raised:
        diagnose(given.pop("target"), **given)
    assert text in str(raised.value)


def test_a_target_that_fails_on_every_input_is_a_finding() -> None:
    report = diagnose(Letters(), embed_dim=E + 1)
    (finding,) = report.named
    assert finding.cause is None
    assert finding.link is None
    assert "see embed_dim, num_heads, inputs and batch_first" in finding.told
    report = diagnose(lambda x: x.mean(1), embed_dim=E)
    assert "has not the shape of an attention's" in report.named[0].told


def test_tied_weights_are_not_blamed() -> None:
    tied = Letters()
    tied.Wk = tied.Wq
    assert not diagnose(tied, embed_dim=E).named


# The report, the test helper


def test_the_report_prints_and_goes_to_json() -> None:
    report = examples.WRONG["missing-scale"].examine()
    text = report.text()
    assert text.startswith("MissingScale: 1 difference from the textbook\n~ missing-scale: ")
    assert "museum/computation/#missing-scale" in text
    assert repr(report) == text
    assert "accept it by but=['scale']" in " ".join(text.split())
    assert "\033[33m" in report.text(color=True)
    told = json.loads(json.dumps(report.to_dict()))
    assert (told["ok"], told["findings"]) == (True, [])
    assert told["differences"][0]["cause"] == "missing-scale"
    assert told["differences"][0]["step"] == "scale"
    assert told["differences"][0]["link"] == "museum/computation/#missing-scale"
    assert report
    broken = examples.WRONG["merge-without-transpose"].examine()
    assert not broken
    assert broken.text().startswith("MergeWithoutTranspose: 1 broken promise\nx merge-without-transpose: ")
    assert "\033[31m" in broken.text(color=True)
    assert examples.RIGHT["PyTorch's function"].examine()


def test_the_test_helper_fails_with_the_report_and_lets_known_mistakes_be() -> None:
    target, options = examples.WRONG["missing-scale"].make(), {"embed_dim": 12}
    with pytest.raises(AssertionError, match="~ missing-scale: the scores are not divided"):
        assert_attention(target, **options)
    assert assert_attention(target, but=["missing-scale"], **options).named
    assert assert_attention(target, but=["scale"], **options).differences
    with pytest.raises(AssertionError, match="~ missing-scale"):
        assert_attention(target, but=["softmax", "norm-after-rope"], **options)
    with pytest.raises(
        ValueError,
        match=r"but names 'scales', which is no mistake .* and no step: did you mean 'scale'. Choose of scale, ",
    ):
        assert_attention(target, but=["scales"], **options)


class Keeps(Attention):
    """Correct attention that keeps what it computed last, as many do to look at it."""

    def __init__(self) -> None:
        super().__init__(12, 3)
        self.maps: list[Tensor] = []

    def weigh(self, scores: Tensor, allowed: None) -> Tensor:
        self.last = super().weigh(scores, allowed)
        self.maps.append(self.last)
        return self.last


def test_a_module_that_has_kept_tensors_of_a_graph_is_copied_and_left_as_it_was() -> None:
    module = Keeps()
    module(torch.randn(2, 5, 12))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    report = diagnose(module, embed_dim=12, num_heads=3)
    assert not report.named, report
    assert module.training
    assert len(module.maps) == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


class Uncopied(nn.MultiheadAttention):
    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("there can only be one")


def test_a_module_that_cannot_be_copied_is_left_as_it_was() -> None:
    module = nn.Sequential(Uncopied(12, 3, dropout=0.1, batch_first=True))
    report = diagnose(lambda x: module[0](x, x, x)[0], embed_dim=12)
    assert not report.named, report
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    assert all(each.training for each in module.modules())
    assert not module[0]._forward_pre_hooks
    assert "a target that copy.deepcopy can copy" in str(report)


def mixed(softmax: torch.dtype | None, dim: int = -1, **slip: Any) -> nn.Module:
    """The scale is a tensor of float32, and the softmax may be computed in it."""
    return Attention(
        12,
        2,
        names=separate("", "_proj"),
        score=lambda q, k: q @ k.mT / torch.sqrt(torch.tensor(6.0)),
        weigh=lambda s, allowed: s.softmax(dim, dtype=softmax).to(s.dtype),
        **slip,
    )


@pytest.mark.parametrize("softmax", [None, torch.float32])
@pytest.mark.parametrize(
    ("slip", "cause"),
    [
        ({}, None),
        ({"dim": -2}, "softmax-over-queries"),
        ({"headed": lambda q, k, v: (q, k, k)}, "wrong-value"),
    ],
)
def test_what_computes_in_float32_inside_is_judged_by_its_rounding(softmax, slip, cause: str | None) -> None:
    report = diagnose(mixed(softmax, **slip), embed_dim=12, num_heads=2)
    assert report.causes == ((cause,) if cause else ()), report


def test_what_is_passed_to_pytorchs_module_is_seen_in_float32_too() -> None:
    class Hinted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mha = nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            everything = torch.zeros(x.size(1), x.size(1), dtype=x.dtype)
            output, _ = self.mha(x, x, x, attn_mask=everything, is_causal=True)
            return output * torch.sqrt(torch.tensor(1.0))

    assert diagnose(Hinted(), embed_dim=12, causal=True).causes == ("is-causal-is-a-hint",)


def test_what_computes_in_16_bits_inside_is_left_open() -> None:
    report = diagnose(lambda x: self_attention(x.bfloat16()).context.to(x.dtype), embed_dim=12)
    assert not report.named, report
    assert "somewhere inside it computes in 16 bits" in report.inconclusive[-1].needs


def test_a_frozen_mask_is_kept_as_it_is() -> None:
    class Frozen(Attention):
        def __init__(self) -> None:
            super().__init__(12, 3)
            self.mask = nn.Parameter(torch.full((32, 32), -torch.inf).triu(1), requires_grad=False)
            self.factor = nn.Parameter(torch.tensor([0.5]), requires_grad=False)

        def score(self, q: Tensor, k: Tensor) -> Tensor:
            return q @ k.mT * self.factor + self.mask[: q.size(2), : k.size(2)]

    report = diagnose(Frozen(), embed_dim=12, num_heads=3, causal=True)
    assert not report.named, report
    assert "equality with the reference" in str(report)


GLOBAL = nn.MultiheadAttention(12, 3, dropout=0.1, batch_first=True)
BLOCKS = [GLOBAL]


def by_helper(x: Tensor) -> Tensor:
    return _helper(x)


def _helper(x: Tensor) -> Tensor:
    return GLOBAL(x, x, x)[0]


def by_list(x: Tensor) -> Tensor:
    return BLOCKS[0](x, x, x)[0]


class Holder:
    def __init__(self) -> None:
        self.layer = GLOBAL

    def run(self, x: Tensor) -> Tensor:
        return self.layer(x, x, x)[0]


HOLDER = Holder()


def by_object(x: Tensor) -> Tensor:
    return HOLDER.run(x)


@pytest.mark.parametrize("target", [by_helper, by_list, by_object])
def test_modules_behind_a_function_a_list_or_an_object_are_found(target) -> None:
    report = diagnose(target, embed_dim=12)
    assert not report.named, report
    assert "equality with the reference" in str(report)
    assert GLOBAL.training


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (lambda x: x * torch.nan, "no number of its output is finite"),
        (lambda x: x * torch.inf, "no number of its output is finite"),
        (lambda x: torch.zeros_like(x), "its output does not depend on its input"),
        (lambda x: 1 + 1e-15 * x, "its output does not depend on its input"),  # but for rounding
    ],
)
def test_an_output_that_says_nothing_is_told_of_and_no_mistake_is_guessed(target, told: str) -> None:
    (finding,) = diagnose(target, embed_dim=12).named
    assert (finding.cause, finding.told) == (None, told)


@pytest.mark.parametrize("causal", [None, False, True])
def test_what_attends_to_nothing_is_a_finding(causal: bool | None) -> None:
    (finding,) = diagnose(lambda x: 2 * x, embed_dim=12, causal=causal).named
    assert finding.told == "no output depends on another token: nothing attends"


def test_a_backward_pass_that_fails_breaks_a_promise_and_an_unused_parameter_is_a_difference() -> None:
    def overwritten(x: Tensor) -> Tensor:
        weights = (x @ x.mT / 12**0.5).softmax(-1)
        weights *= 1.0
        return weights @ x

    (finding,) = diagnose(overwritten, embed_dim=12).named
    assert (finding.cause, finding.told) == ("gradient-cut", "it cannot be trained: its backward pass fails")
    module = nn.MultiheadAttention(12, 3, batch_first=True)
    module.norm = nn.LayerNorm(12)
    report = diagnose(module, embed_dim=12, inputs="qkv")
    assert report.ok, report
    assert [each.step for each in report.differences] == ["parameters"]
    assert "norm.weight" in report.differences[0].evidence


def test_statistics_without_a_gradient_are_a_difference_and_weights_without_one_break_a_promise() -> None:
    class Normed(nn.Module):
        def __init__(self, of: str) -> None:
            super().__init__()
            self.of, self.qkv, self.out = of, nn.Linear(12, 36), nn.Linear(12, 12)

        def forward(self, x: Tensor) -> Tensor:
            if self.of == "statistics":
                x = (x - x.mean(-1, keepdim=True).detach()) / x.std(-1, keepdim=True).detach()
            q, k, v = self.qkv(x).chunk(3, -1)
            scores = q @ k.mT / 12**0.5
            weights = (scores.detach() if self.of == "weights" else scores).softmax(-1)
            return cast(Tensor, self.out(weights @ v))

    report = diagnose(Normed("statistics"), embed_dim=12, num_heads=1, causal=False)
    assert report.ok, report
    assert [(each.cause, each.step) for each in report.differences] == [("gradient-cut", "inputs")]
    broken = diagnose(Normed("weights"), embed_dim=12, num_heads=1, causal=False)
    assert not broken.ok
    assert "gradient-cut" in broken.causes


def test_what_is_causal_though_it_was_said_not_to_be_is_told_so() -> None:
    (finding,) = diagnose(lambda x: self_attention(x, is_causal=True).context, embed_dim=12, causal=False).named
    assert finding.cause is None
    assert "it is causal, and causal=False was given" in finding.told


def test_rows_of_a_table_may_be_meant_to_attend_to_each_other() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(12, 36)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).transpose(0, 1).chunk(3, -1)
            return cast(Tensor, ((q @ k.mT / 12**0.5).softmax(-1) @ v).transpose(0, 1))

    call = (torch.randn(4, 5, 12),)
    report = diagnose(Rows(), call, causal=False, num_heads=1)
    assert not report.ok
    assert "if items are meant to meet, as rows of a table may, accept it by but=['items']" in " ".join(
        report.text().split()
    )
    with pytest.raises(AssertionError, match="items"):
        assert_attention(Rows(), call=call, causal=False, num_heads=1, but=["scale"])
    steps = {each.step for each in report.differences}
    assert_attention(Rows(), call=call, causal=False, num_heads=1, but=["items", *steps])


def test_but_takes_names_and_not_one_name() -> None:
    with pytest.raises(
        TypeError, match=re.escape("but is 'missing-scale'; pass a collection of names: ['missing-scale']")
    ):
        assert_attention(Keeps(), but="missing-scale", embed_dim=12)
