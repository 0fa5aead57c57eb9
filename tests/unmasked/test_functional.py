"""Scaled dot-product attention against a reference that shares nothing with it: loops over queries and keys."""

import itertools
import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from unmasked import (
    attend,
    attention_scores,
    attention_weights,
    cosine_attention,
    cosine_weights,
    masks,
    self_attention,
)

from ..refusals import refused
from .helpers import Operations, calls_of_the_kernel

INF = math.inf
IMPLEMENTATIONS = ["eager", "fused"]
# How far a result may lie from the reference on the same, rounded, inputs; relative to its largest value, or to 1.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}


@dataclass
class Problem:
    query: Tensor
    key: Tensor
    value: Tensor
    cotangent: Tensor
    options: dict[str, Any] = field(default_factory=dict)

    def solve(self, implementation: str) -> list[Tensor]:
        """The context, the gradients of what is given and learned, and the weights if it returns them."""
        inputs = [x.detach().requires_grad_() for x in (self.query, self.key, self.value)]
        given = (self.options.get(name) for name in ("bias", "sinks"))
        learned = [x for x in given if x is not None and x.requires_grad]
        is_eager = implementation == "eager"
        context, weights = attend(*inputs, **self.options, implementation=implementation, need_weights=is_eager)
        gradients = torch.autograd.grad(context, inputs + learned, self.cotangent, materialize_grads=True)
        found = [context, *gradients] if weights is None else [context, *gradients, weights]
        assert {x.dtype for x in found} <= {self.query.dtype, *(x.dtype for x in learned)}
        assert (weights is not None) == is_eager
        return found

    def reference(self) -> list[Tensor]:
        return reference(self.query, self.key, self.value, self.cotangent, **self.options)


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cotangent: Tensor,
    *,
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> list[Tensor]:
    """Attention, its gradients and its weights by their definition, in float64, one query and one key at a time."""
    *lead, queries, dim = query.shape
    keys, groups = key.size(-2), lead[-1] // key.size(-3) if len(lead) else 1
    scale = 1 / math.sqrt(dim) if scale is None else scale
    may_see = torch.ones(()).bool() if allowed is None else allowed
    added = torch.zeros(()) if bias is None else bias.detach()
    may_see, added = (x.cpu().expand(*lead, queries, keys) for x in (may_see, added))
    sink = torch.tensor(-INF) if sinks is None else sinks.detach().cpu()
    sink = sink[..., None].expand(*lead, queries)
    inputs = [x.detach().double().cpu() for x in (query, key, value)]
    d_query, d_key, d_value = (torch.zeros_like(x) for x in inputs)
    context = cotangent.double().cpu() * 0
    weights, d_added = torch.zeros(2, *lead, queries, keys, dtype=torch.float64)
    d_sink = torch.zeros(*lead, queries, dtype=torch.float64)
    for index in itertools.product(*map(range, lead)):
        kv = tuple(min(i, size - 1) for i, size in zip(index[:-1], key.shape, strict=False))  # a batch axis of 1
        kv += (index[-1] // groups,) if lead else ()
        q, k, v = (x[i].tolist() for x, i in zip(inputs, (index, kv, kv), strict=True))
        out = cotangent[index].double().tolist()
        for i in range(queries):
            seen, score, slope = [], {}, {}
            for j in range(keys):
                shift = float(added[index][i, j])
                if not may_see[index][i, j] or shift == -INF or (is_causal and j - keys > i - queries):
                    continue
                s = scale * sum(a * b for a, b in zip(q[i], k[j], strict=True))
                capped = s if softcap is None else softcap * math.tanh(s / softcap)
                slope[j] = 1.0 if softcap is None else 1 - (capped / softcap) ** 2
                score[j] = capped + shift
                seen.append(j)
            of_sink = float(sink[index][i])
            top = max([*score.values(), of_sink]) if seen else 0.0
            total = sum(math.exp(score[j] - top) for j in seen) + math.exp(of_sink - top)
            weight = {j: math.exp(score[j] - top) / total for j in seen}
            d_weight = {j: sum(a * b for a, b in zip(out[i], v[j], strict=True)) for j in seen}
            mean = sum(weight[j] * d_weight[j] for j in seen)
            d_sink[index][i] -= math.exp(of_sink - top) / total * mean if seen else 0.0
            for j in seen:
                d_score = weight[j] * (d_weight[j] - mean)
                d_added[index][i, j] += d_score
                weights[index][i, j] = weight[j]
                context[index][i] += weight[j] * inputs[2][kv][j]
                d_value[kv][j] += weight[j] * cotangent[index][i].double().cpu()
                d_query[index][i] += d_score * slope[j] * scale * inputs[1][kv][j]
                d_key[kv][j] += d_score * slope[j] * scale * inputs[0][index][i]
    learned = [d_added.sum_to_size(bias.shape)] if bias is not None and bias.requires_grad else []
    if sinks is not None and sinks.requires_grad:
        learned.append(d_sink.sum(-1).sum_to_size(sinks.shape))
    return [context, d_query, d_key, d_value, *learned, weights]


def assert_near(actual: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    """Compare what was solved with the reference, whose weights come last: no fused kernel returns them."""
    for x, y in zip(actual, expected[: len(actual)], strict=True):
        tolerance = TOLERANCE[dtype] * max(1.0, y.abs().max().item() if y.numel() else 1.0)
        torch.testing.assert_close(x.double().cpu(), y, rtol=0, atol=tolerance)


def in_memory(shape: tuple[int, ...], how: str, **kwargs: Any) -> Tensor:
    if how == "transposed":
        return torch.randn(*shape[:-2], shape[-1], shape[-2], **kwargs).mT
    if how == "sliced":
        return torch.randn(*shape[:-1], 2 * shape[-1] + 1, **kwargs)[..., 1::2]
    return torch.randn(shape, **kwargs)


@st.composite
def problems(draw: st.DrawFn, dtype: torch.dtype, for_all: bool = True) -> Problem:
    """Something to attend to, with options for all implementations, or with some that the eager one alone has."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    batch = draw(st.sampled_from([(), (3,), (2, 3)]))
    kv_heads, groups = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3]))
    no_heads = not batch and draw(st.booleans())
    queries, keys, dim, value_dim = (draw(st.integers(1, 5)) for _ in range(4))
    kv_batch = tuple(draw(st.sampled_from([1, n])) for n in batch)
    q_lead, kv_lead = ((), ()) if no_heads else ((*batch, kv_heads * groups), (*kv_batch, kv_heads))
    hows = [draw(st.sampled_from(["contiguous", "transposed", "sliced"])) for _ in range(3)]
    query = in_memory((*q_lead, queries, dim), hows[0], dtype=dtype)
    key = in_memory((*kv_lead, keys, dim), hows[1], dtype=dtype)
    value = in_memory((*kv_lead, keys, value_dim), hows[2], dtype=dtype)
    scores = (*q_lead, queries, keys)

    def broadcastable() -> tuple[int, ...]:
        shape = tuple(draw(st.sampled_from([1, n])) for n in scores)
        return shape[draw(st.integers(0, len(shape))) :]

    options: dict[str, Any] = {"is_causal": draw(st.booleans()), "scale": draw(st.sampled_from([None, 0.3, 2.0]))}
    if draw(st.booleans()):
        options["allowed"] = torch.rand(broadcastable()) < 0.6
    if draw(st.booleans()):
        bias = torch.randn(broadcastable(), dtype=dtype)
        bias = bias.masked_fill(torch.rand(bias.shape) < draw(st.sampled_from([0.0, 0.4])), -INF)
        options["bias"] = bias.requires_grad_(draw(st.booleans()))
    if not for_all:
        options["softcap"] = draw(st.sampled_from([None, 0.5, 2.0]))
        shape = () if draw(st.booleans()) else q_lead[-1:]
        sinks = torch.randn(shape, dtype=torch.promote_types(dtype, torch.float32))
        sinks = sinks.masked_fill(torch.rand(sinks.shape) < 0.2, -INF)  # which is none
        options["sinks"] = draw(st.sampled_from([None, sinks, sinks.clone().requires_grad_()]))
    return Problem(query, key, value, torch.randn(*q_lead, queries, value_dim, dtype=dtype), options)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@given(data=st.data())
def test_both_implementations_equal_the_reference_forward_and_backward(dtype: torch.dtype, data: st.DataObject) -> None:
    problem = data.draw(problems(dtype))
    expected = problem.reference()
    for implementation in IMPLEMENTATIONS:
        assert_near(problem.solve(implementation), expected, dtype)


@given(data=st.data(), dtype=st.sampled_from(list(TOLERANCE)))
def test_with_a_soft_cap_and_sinks_it_equals_the_reference_forward_and_backward(
    data: st.DataObject, dtype: torch.dtype
) -> None:
    problem = data.draw(problems(dtype, for_all=False))
    assert_near(problem.solve("eager"), problem.reference(), dtype)


def test_a_hand_computed_case() -> None:
    key = torch.tensor([[1.0], [2.0], [3.0]]).log()  # e^score: 1, 2, 3
    query, value = torch.tensor([[1.0], [2.0]]), torch.tensor([[84.0], [42.0], [28.0]])
    context, weights = attend(query, key, value, need_weights=True)
    torch.testing.assert_close(weights, torch.tensor([[1 / 6, 2 / 6, 3 / 6], [1 / 14, 4 / 14, 9 / 14]]))
    torch.testing.assert_close(context, torch.tensor([[42.0], [36.0]]))
    capped = attention_scores(torch.tensor([[3.0]]), torch.tensor([[1.0], [-2.0]]), softcap=6.0)
    torch.testing.assert_close(capped, torch.tensor([[6 * math.tanh(0.5), -6 * math.tanh(1.0)]]))
    assert attention_scores(query, key, scale=7.0)[1, 2] == pytest.approx(14 * math.log(3))


def test_self_attention_passes_every_option_on() -> None:
    x, allowed, bias = torch.randn(2, 5, 3), torch.rand(5, 5) < 0.7, torch.randn(5, 5)
    options = {
        "allowed": allowed,
        "bias": bias,
        "is_causal": True,
        "scale": 0.7,
        "softcap": 1.5,
        "sinks": torch.tensor(0.3),
    }
    actual = self_attention(x, **options)
    expected = attend(x, x, x, **options, need_weights=True)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    fused = self_attention(x, need_weights=False, implementation="fused", dropout_p=1.0)
    assert not fused.context.any()


BLINDFOLDS = {  # options, number of keys, and which of three queries see nothing
    "allowed": ({"allowed": torch.tensor([[False] * 5, [True] * 5])[[0, 1, 0]]}, 5, [0, 2]),
    "bias": ({"bias": torch.tensor([[-INF] * 5, [0.5] * 5])[[0, 1, 0]]}, 5, [0, 2]),
    "allowed and bias": (
        {
            "allowed": torch.tensor([[True, True, False, False, False], [True] * 5])[[0, 1, 0]],
            "bias": torch.tensor([-INF, -INF, 0.0, 0.0, 0.0]),
        },
        5,
        [0, 2],
    ),
    "causal and allowed": ({"is_causal": True, "allowed": torch.tensor([0, 0, 0, 1, 1]).bool()}, 5, [0]),
    "causal, more queries than keys": ({"is_causal": True}, 2, [0]),
    "no keys": ({}, 0, [0, 1, 2]),
}


def check_blindfold(name: str, dtype: torch.dtype, implementation: str, device: str) -> None:
    given_options, keys, blind = BLINDFOLDS[name]
    options = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in given_options.items()}
    shapes = [(2, 4, n, 16) for n in (3, keys, keys)]
    query, key, value = (torch.randn(s, dtype=dtype, device=device, requires_grad=True) for s in shapes)
    context = attend(query, key, value, **options, implementation=implementation).context
    gradients = torch.autograd.grad(context.sum(), (query, key, value), materialize_grads=True)
    assert not context[..., blind, :].any()
    assert not gradients[0][..., blind, :].any()
    assert all(x.isfinite().all() for x in (context, *gradients))
    seeing = [i for i in range(3) if i not in blind]
    assert context[..., seeing, :].any(-1).all()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", BLINDFOLDS)
def test_a_query_that_sees_no_key_gets_zeros_and_zero_gradients(
    name: str, implementation: str, dtype: torch.dtype
) -> None:
    check_blindfold(name, dtype, implementation, "cpu")


@pytest.mark.parametrize("name", [name for name in BLINDFOLDS if name != "no keys"])
def test_no_kernel_is_asked_what_a_query_sees_that_sees_no_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = torch.nn.functional.scaled_dot_product_attention

    def cudnn(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, **options: Any) -> Tensor:
        """As on an H100, numbers in place of zeros: what a kernel makes of a row of -inf is its own affair."""
        return kernel(q, k, v, attn_mask, **options).masked_fill((attn_mask == -INF).all(-1, keepdim=True), -0.104)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", cudnn)
    check_blindfold(name, torch.float32, "fused", "cpu")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("masked", [False, True])
def test_changing_a_later_token_leaves_earlier_outputs_bit_equal(implementation: str, masked: bool) -> None:
    x = torch.randn(2, 3, 7, 5)
    allowed = masks.sliding_window(7, window=3) if masked else None
    changed = x.clone()
    changed[..., 4:, :] = 1e3
    before, after = (
        self_attention(y, is_causal=True, allowed=allowed, need_weights=False, implementation=implementation).context
        for y in (x, changed)
    )
    assert torch.equal(before[..., :4, :], after[..., :4, :])
    assert not torch.equal(before[..., 4, :], after[..., 4, :])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ((0, 3, 4, 5), (0, 3, 7, 5), (0, 3, 7, 6)),
        ((0, 3, 4, 5), (1, 3, 7, 5), (1, 3, 7, 6)),
        ((2, 0, 4, 5), (2, 0, 7, 5), (2, 0, 7, 6)),
        ((2, 3, 0, 5), (2, 3, 7, 5), (2, 3, 7, 6)),
        ((2, 3, 4, 5), (2, 3, 0, 5), (2, 3, 0, 6)),
        ((2, 3, 4, 0), (2, 3, 7, 0), (2, 3, 7, 6)),
        ((2, 3, 4, 5), (2, 3, 7, 5), (2, 3, 7, 0)),
    ],
    ids=["batch", "broadcast batch", "heads", "queries", "keys", "head_dim", "value_dim"],
)
def test_an_axis_may_be_empty(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], implementation: str
) -> None:
    inputs = [torch.randn(shape, requires_grad=True) for shape in (query, key, value)]
    context = attend(*inputs, is_causal=True, implementation=implementation).context
    assert context.shape == (*query[:-1], value[-1])
    assert context.isfinite().all()
    for gradient in torch.autograd.grad(context.sum(), inputs, materialize_grads=True):
        assert gradient.isfinite().all()


def test_scores_without_features_are_equal() -> None:
    weights = self_attention(torch.zeros(3, 0)).weights
    torch.testing.assert_close(weights, torch.full((3, 3), 1 / 3))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_dropout_drops_weights_keeps_the_expectation_and_follows_the_seed(implementation: str) -> None:
    query, key, value = (torch.randn(1, 2, n, d).expand(4000, 2, n, d) for n, d in ((4, 5), (7, 5), (7, 3)))

    def run(seed: int, p: float) -> Tensor:
        torch.manual_seed(seed)
        return attend(query, key, value, dropout_p=p, implementation=implementation).context

    assert torch.equal(run(1, 0.5), run(1, 0.5))
    assert not torch.equal(run(1, 0.5), run(2, 0.5))
    assert not run(1, 1.0).any()
    torch.testing.assert_close(run(1, 0.25).mean(0), run(1, 0.0)[0], rtol=0, atol=0.06)


def test_returned_weights_are_those_after_dropout() -> None:
    query, key, value = torch.randn(2, 4, 5), torch.randn(2, 70, 5), torch.randn(2, 70, 3)
    context, weights = attend(query, key, value, dropout_p=0.25, need_weights=True)
    assert weights is not None
    torch.testing.assert_close(context, weights @ value)
    kept = weights != 0
    assert 0.6 < kept.float().mean() < 0.9
    whole = attention_weights(attention_scores(query, key))
    torch.testing.assert_close(weights[kept], whole[kept] / 0.75)


def test_the_readable_implementation_has_first_and_second_derivatives() -> None:
    query, key, value = (torch.randn(2, n, 2, dtype=torch.float64, requires_grad=True) for n in (3, 4, 4))
    bias = torch.randn(3, 4, dtype=torch.float64).masked_fill(torch.eye(3, 4).bool(), -INF)
    bias[2] = -INF

    def run(*inputs: Tensor) -> Tensor:
        return attend(*inputs, bias=bias, softcap=2.0).context

    assert torch.autograd.gradcheck(run, (query, key, value))
    assert torch.autograd.gradgradcheck(run, (query, key, value))


def test_finite_inputs_whose_scaled_scores_are_finite_give_finite_results() -> None:
    x = torch.full((3, 4), 1e19) * torch.tensor([[1.0], [-1.0], [0.5]])
    context, weights = self_attention(x)
    torch.testing.assert_close(context, x[[0, 1, 0]])
    assert weights is not None
    assert weights.isfinite().all()
    x = torch.full((3, 4), 300.0, dtype=torch.float16)  # 4 · 300² overflows float16: scores are taken in float32
    torch.testing.assert_close(self_attention(x).context, x)


FAST = "_scaled_dot_product_flash_attention_for_cpu"
THREE_AXES = [(3, 4, 5), (3, 7, 5), (3, 7, 5)]
TRAPS = {  # shapes of query, key and value, and options, that fall to the slow kernel if passed on as given
    "2-D": ([(4, 5), (7, 5), (7, 5)], {}),
    "3-D": (THREE_AXES, {}),
    "5-D": ([(2, 6, 3, 4, 5), (2, 6, 3, 7, 5), (2, 6, 3, 7, 5)], {}),
    "wider values": ([(2, 3, 4, 5), (2, 3, 7, 5), (2, 3, 7, 8)], {}),
    "narrower values": ([(2, 3, 4, 8), (2, 3, 7, 8), (2, 3, 7, 5)], {}),
    "broadcast batch": ([(2, 3, 4, 5), (1, 3, 7, 5), (1, 3, 7, 5)], {}),
    "grouped heads": ([(2, 6, 4, 5), (2, 3, 7, 5), (2, 3, 7, 5)], {}),
    "causal": (THREE_AXES, {"is_causal": True}),
    "3-D mask": (THREE_AXES, {"allowed": torch.ones(3, 4, 7).bool()}),
    "1-D bias": (THREE_AXES, {"bias": torch.randn(7)}),
}


@pytest.mark.parametrize("how", ["contiguous", "transposed", "sliced"])
@pytest.mark.parametrize("trap", TRAPS)
def test_the_fused_path_never_falls_to_the_slow_kernel(trap: str, how: str) -> None:
    shapes, options = TRAPS[trap]
    with Operations() as ran:
        attend(*(in_memory(shape, how) for shape in shapes), **options)
    assert FAST in ran.names
    assert not {*ran.names} & {"bmm", "_softmax", "_safe_softmax"}


ones = torch.ones


QKV = {"query": ones(2, 4, 3, 5), "key": ones(2, 4, 7, 5), "value": ones(2, 4, 7, 6)}
AXES = "all need the same number of axes, (..., heads, tokens, features) or (tokens, features)"


def given_in_place(**wrong: Any) -> Any:
    return partial(attend, **QKV | wrong)


test_what_does_not_fit_is_refused_by_name = refused(
    {
        TypeError: {
            "value is of the type list; pass torch.tensor(value)": given_in_place(value=[[1.0]]),
            "query is torch.complex64; it must be floating: call torch.view_as_real(query).flatten(-2)": given_in_place(
                query=ones(2, 4, 3, 5, dtype=torch.complex64)
            ),
            "key is torch.int64; it must be floating: call key.float()": given_in_place(key=ones(2, 4, 7, 5).long()),
            "value is torch.float16 but query is torch.float32; cast one to the other": given_in_place(
                value=ones(2, 4, 7, 6).half()
            ),
            "allowed is torch.float32; it must be bool, True where a query may see a key (else pass "
            "bias)": given_in_place(allowed=ones(3, 7)),
            "bias is torch.bool; it is added to the scores and must be floating (else pass allowed)": given_in_place(
                bias=ones(3, 7).bool()
            ),
        },
        ValueError: {
            f"key has shape (4, 7, 5) and query (2, 4, 3, 5); {AXES}": given_in_place(key=ones(4, 7, 5)),
            "query has shape (5,); it must be (..., heads, tokens, features)": given_in_place(query=ones(5)),
            "query has 5 features and key 6; a dot product needs as many of both": given_in_place(key=ones(2, 4, 7, 6)),
            "key has shape (2, 4, 7, 5) and value (2, 4, 8, 6); every key needs one value: all axes but the last must "
            "agree": given_in_place(value=ones(2, 4, 8, 6)),
            "key has 3 heads and query 4; key's heads must divide query's": given_in_place(
                key=ones(2, 3, 7, 5), value=ones(2, 3, 7, 6)
            ),
            "key has 3 heads and query 2; key's heads must divide query's (of three axes, the first is that of heads, "
            "or of items, which must be as many)": partial(attend, ones(2, 3, 5), ones(3, 7, 5), ones(3, 7, 6)),
            "key has 0 heads and query 4; key's heads must divide query's": given_in_place(
                key=ones(2, 0, 7, 5), value=ones(2, 0, 7, 6)
            ),
            "key has batch axes (3,) and query (2,); they must agree or be 1": given_in_place(
                key=ones(3, 4, 7, 5), value=ones(3, 4, 7, 6)
            ),
            "allowed has shape (7, 3), which does not broadcast to the scores' (2, 4, 3, 7)": given_in_place(
                allowed=ones(7, 3).bool()
            ),
            "bias has shape (1, 2, 4, 3, 7), which does not broadcast to the scores' (2, 4, 3, 7)": given_in_place(
                bias=ones(1, 2, 4, 3, 7)
            ),
            "softcap is 0.0; it must be positive (None for no cap)": given_in_place(softcap=0.0),
            "dropout_p is 1.5; it must be a probability in [0, 1]": given_in_place(dropout_p=1.5),
            'implementation is \'flash\'; choose "fused", "eager" or None': given_in_place(implementation="flash"),
            'need_weights=True needs implementation="eager": no fused kernel does it': given_in_place(
                implementation="fused", need_weights=True
            ),
            'softcap=2.0 needs implementation="eager": no fused kernel does it': given_in_place(
                implementation="fused", softcap=2.0
            ),
            "scores has shape (3,); it must be (..., queries, keys)": partial(attention_weights, ones(3)),
        },
    }
)


BACKENDS = {  # which kernels take which dtypes, and a mask
    SDPBackend.FLASH_ATTENTION: ([torch.float16, torch.bfloat16], False),
    SDPBackend.CUDNN_ATTENTION: ([torch.float16, torch.bfloat16], True),
    SDPBackend.EFFICIENT_ATTENTION: ([torch.float16, torch.bfloat16, torch.float32], True),
    SDPBackend.MATH: (list(TOLERANCE), True),
}
RUNS = [(backend, dtype) for backend, (dtypes, _) in BACKENDS.items() for dtype in dtypes]


@pytest.mark.cuda
@pytest.mark.parametrize(("backend", "dtype"), RUNS, ids=str)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"allowed": True}, {"bias": True}], ids=str)
def test_on_a_gpu_every_kernel_equals_the_reference(
    backend: SDPBackend, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    # 16 features and 8 keys: what the strictest of the kernels asks for.
    inputs = [torch.randn(2, 3, n, 16, dtype=dtype, device="cuda") for n in (8, 8, 8, 8)]
    masked = {
        "allowed": torch.rand(2, 1, 8, 8, device="cuda") < 0.6,
        "bias": torch.randn(8, 8, device="cuda").to(dtype),
    }
    problem = Problem(*inputs, options={k: masked.get(k, v) for k, v in options.items()})
    expected = problem.reference()
    assert_near(problem.solve("eager"), expected, dtype)
    if not masked.keys() & options or BACKENDS[backend][1]:
        with sdpa_kernel(backend):
            assert_near(problem.solve("fused"), expected, dtype)


@pytest.mark.cuda
@pytest.mark.parametrize(("backend", "dtype"), RUNS, ids=str)
@pytest.mark.parametrize("name", BLINDFOLDS)
def test_on_a_gpu_a_query_that_sees_no_key_gets_zeros_from_every_kernel(
    name: str, backend: SDPBackend, dtype: torch.dtype
) -> None:
    check_blindfold(name, dtype, "eager", "cuda")
    check_blindfold(name, dtype, "fused", "cuda")
    if BACKENDS[backend][1] and name != "no keys":  # a blindfold is a mask, and without keys no kernel runs
        with sdpa_kernel(backend):
            check_blindfold(name, dtype, "fused", "cuda")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("large", [-1e9, 3e4, torch.finfo(torch.float32).min])
def test_both_implementations_add_a_bias_in_the_querys_dtype(dtype: torch.dtype, large: float) -> None:
    query, key, value = (torch.randn(2, n, 8, dtype=dtype) for n in (3, 5, 5))
    bias = torch.zeros(3, 5)
    bias[0], bias[1, 2] = large, large
    eager, fused = (
        attend(query, key, value, bias=bias, implementation=implementation).context
        for implementation in ("eager", "fused")
    )
    torch.testing.assert_close(eager, fused, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_cosines_of_short_vectors_and_of_zeros_are_cosines(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3e-3, 4e-3]], dtype=dtype)
    expected = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]], dtype=dtype)
    batch, each = torch.stack([x, 7 * x.flip(0)]), torch.stack([expected, expected.flip(0, 1)])
    torch.testing.assert_close(cosine_weights(batch), each, atol=TOLERANCE[dtype], rtol=0)
    context, weights = cosine_attention(batch)
    torch.testing.assert_close((context, weights), (each @ batch, each), atol=7 * TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_cosines_hold_for_all_lengths_that_numbers_have_never_exceed_one_and_have_gradients(dtype: torch.dtype) -> None:
    x = torch.randn(40, 7, dtype=torch.float64)
    unit = x / x.pow(2).sum(-1, keepdim=True).sqrt()
    (of_right,) = torch.autograd.grad((weights := unit.requires_grad_() @ unit.mT)[0].sum(), unit)  # of the directions
    of_right = (of_right - (of_right * unit).sum(-1, keepdim=True) * unit).to(dtype)  # which turning alone changes
    largest = torch.finfo(dtype).max / 8
    for length in (4 * torch.finfo(dtype).tiny, 1.0, largest):
        given = (unit.detach() * length).to(dtype).requires_grad_()
        cosines = cosine_weights(given)
        assert cosines.dtype == dtype
        assert cosines.abs().max() <= 1
        torch.testing.assert_close(cosines, weights.to(dtype), atol=8 * TOLERANCE[dtype], rtol=0)
        if length >= 1:
            (gradient,) = torch.autograd.grad(cosines[0].sum(), given)
            torch.testing.assert_close(gradient * length, of_right, atol=100 * TOLERANCE[dtype], rtol=0)
    zero = torch.zeros(3, 4, dtype=dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad(cosine_weights(zero).sum(), zero)
    assert not gradient.any()
    assert cosine_weights(torch.zeros(2, 0, dtype=dtype)).tolist() == [[0.0] * 2] * 2


HEADS, TOKENS = 3, 96
LEAVING = {  # options, whether the fused kernel runs, and the (queries, keys) matrices in the largest tensor
    "no mask": ({}, True, 0),
    "is_causal": ({"is_causal": True}, True, 0),
    "the causal mask": ({"allowed": masks.causal(TOKENS)}, True, 1),
    "the causal bias": ({"bias": masks.additive_from_allowed(masks.causal(TOKENS)), "is_causal": True}, True, 1),
    "a mask": ({"allowed": masks.sliding_window(TOKENS, window=2)}, True, 1),
    "a bias": ({"bias": torch.ones(TOKENS, TOKENS)}, True, 1),
    "sinks": ({"sinks": torch.ones(HEADS), "is_causal": True}, True, 0),
    "dropout": ({"dropout_p": 0.1}, False, HEADS),
    "a bias that learns": ({"bias": torch.zeros(TOKENS, TOKENS, requires_grad=True)}, False, HEADS),
    "weights": ({"need_weights": True}, False, HEADS),
    "a soft-cap": ({"softcap": 1.0}, False, HEADS),
}


@pytest.mark.parametrize("case", LEAVING)
def test_the_fused_kernel_is_left_for_dropout_a_bias_that_learns_and_what_no_fused_kernel_does(case: str) -> None:
    options, is_fused, matrices = LEAVING[case]
    q, k, v = (torch.randn(1, HEADS, TOKENS, 8) for _ in range(3))
    with Operations() as ran:
        attend(q, k, v, **options)
    assert (FAST in ran.names) == is_fused
    assert ran.largest // TOKENS**2 == matrices


@pytest.mark.parametrize("form", ["mask", "bias"])
def test_the_causal_mask_reaches_the_kernel_as_its_own_option_which_costs_half(form: str, monkeypatch: Any) -> None:
    calls, allowed = calls_of_the_kernel(monkeypatch), masks.causal(5)
    options = {"allowed": allowed} if form == "mask" else {"bias": masks.additive_from_allowed(allowed)}
    self_attention(torch.randn(5, 4), **options, need_weights=False)
    assert [(call["is_causal"], call["attn_mask"]) for call in calls] == [(True, None)]


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("axes", [2, 3, 4])
@pytest.mark.parametrize("as_bias", [True, False])
def test_a_causal_mask_gives_what_is_causal_gives_however_it_is_passed(
    as_bias: bool, axes: int, need_weights: bool
) -> None:
    x = torch.randn(2, 3, 7, 4, requires_grad=True)
    mask = masks.causal(7)[(None,) * (axes - 2)]
    options = {"bias": masks.additive_from_allowed(mask)} if as_bias else {"allowed": mask}
    expected = self_attention(x, is_causal=True, need_weights=need_weights)
    for is_causal in (True, False):
        actual = self_attention(x, **options, is_causal=is_causal, need_weights=need_weights)
        assert (actual.weights is None) == (not need_weights)
        torch.testing.assert_close(actual.context, expected.context)
        gradients = [torch.autograd.grad(y.context.square().sum(), x, retain_graph=True) for y in (actual, expected)]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (3, 3), (6, 0), (0, 6), (2, 3), (5, 4)])
@pytest.mark.parametrize("as_bias", [True, False])
def test_a_mask_that_is_nearly_causal_is_not_taken_for_it(as_bias: bool, row: int, column: int) -> None:
    x, allowed = torch.randn(2, 7, 4), masks.causal(7)
    allowed[row, column] = ~allowed[row, column]
    options = {"bias": masks.additive_from_allowed(allowed)} if as_bias else {"allowed": allowed}
    for is_causal in (True, False):
        eager, fused = (
            self_attention(x, **options, is_causal=is_causal, need_weights=False, implementation=name).context
            for name in ("eager", "fused")
        )
        torch.testing.assert_close(eager, fused)
        seen = allowed & masks.causal(7) if is_causal else allowed
        by_hand = (x @ x.mT / 2).masked_fill(~seen, -math.inf).softmax(-1).nan_to_num() @ x
        torch.testing.assert_close(eager, by_hand)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is (deprecated|not supported)")  # which jacfwd calls
def test_a_bias_that_hides_the_future_has_forward_mode_derivatives_too() -> None:
    x, bias = torch.randn(5, 4, dtype=torch.float64), masks.additive_from_allowed(masks.causal(5), torch.float64)

    def run(bias: Tensor) -> Tensor:
        return self_attention(x, bias=bias, need_weights=True).context

    forward, backward = torch.func.jacfwd(run)(bias), torch.func.jacrev(run)(bias)
    assert forward.count_nonzero() > 5
    torch.testing.assert_close(forward, backward)


@pytest.mark.parametrize("scale", [0.0, -0.5])
@pytest.mark.parametrize("options", [{"is_causal": True}, {"allowed": masks.causal(5)}], ids=["is_causal", "mask"])
def test_scores_may_be_turned_round_or_dropped_behind_a_causal_mask(options: dict[str, Any], scale: float) -> None:
    x = torch.randn(3, 5, 4, requires_grad=True)  # PyTorch's kernel gives NaN for its own is_causal and such a scale
    contexts = [self_attention(x, **options, scale=scale, need_weights=weights).context for weights in (True, False)]
    torch.testing.assert_close(*contexts)
    torch.testing.assert_close(*(torch.autograd.grad(context.square().sum(), x)[0] for context in contexts))


@pytest.mark.parametrize("need_weights", [True, False])
def test_make_fx_traces_what_it_computes_and_not_what_a_mask_decides(need_weights: bool) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def run(x: Tensor, allowed: Tensor) -> Tensor:
        return self_attention(x, allowed=allowed, need_weights=need_weights).context

    x, blind = torch.randn(2, 5, 4), masks.causal(5)
    blind[3] = False
    traced = make_fx(run)(x, masks.causal(5))
    for mask in (masks.causal(5), torch.ones(5, 5).bool(), blind):
        torch.testing.assert_close(traced(x, mask), run(x, mask))


def test_a_bias_that_hides_the_future_and_learns_gets_its_gradient() -> None:
    x, bias = torch.randn(2, 5, 4), masks.additive_from_allowed(masks.causal(5)).requires_grad_()
    gradients = [
        torch.autograd.grad(self_attention(x, bias=bias, need_weights=w).context.square().sum(), bias)[0]
        for w in (True, False)
    ]
    assert gradients[0].count_nonzero() > 5
    torch.testing.assert_close(*gradients)


@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented the batching rule")
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batched", ["x", "mask", "both"])
def test_vmap_gives_each_item_what_it_gets_alone(batched: str, need_weights: bool) -> None:
    x, allowed = torch.randn(3, 5, 4), torch.rand(3, 5, 5) < 0.5
    allowed[0], allowed[1, 2] = masks.causal(5), False

    def run(x: Tensor, allowed: Tensor) -> Tensor:
        return self_attention(x, allowed=allowed, need_weights=need_weights).context

    axes = (None if batched == "mask" else 0, None if batched == "x" else 0)
    args = [a if axis == 0 else a[1] for a, axis in zip((x, allowed), axes, strict=True)]
    together = torch.vmap(run, in_dims=axes)(*args)
    for i, found in enumerate(together):
        alone = run(*(a[i] if axis == 0 else a for a, axis in zip(args, axes, strict=True)))
        torch.testing.assert_close(found, alone)


def test_neither_scores_nor_masks_of_the_caller_are_changed() -> None:
    scores, allowed, bias = torch.randn(5, 5), torch.rand(5, 5) < 0.5, torch.randn(5, 5)
    allowed[2] = False
    before = [x.clone() for x in (scores, allowed, bias)]
    attention_weights(scores, allowed=allowed, bias=bias, is_causal=True)
    self_attention(scores, allowed=allowed, bias=bias, is_causal=True)
    torch.testing.assert_close([scores, allowed, bias], before, rtol=0, atol=0)
