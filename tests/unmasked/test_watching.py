"""Recorded weights are those that transformers' eager attention returns, and those of the call itself, which gives them
where its values are the identity matrix."""

import math
import pickle
import re
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.overrides import _len_torch_function_stack

import unmasked
from unmasked import CausalSelfAttention, MultiheadAttention, ablate, functional, masks, rollout, watch
from unmasked.kernels import kernels_of
from unmasked.watching import AttentionCall

from ..refusals import refused
from .of_transformers import tiny, with_cache

MODELS: dict[str, dict[str, Any]] = {
    "GPT2": {},
    "Llama": {"num_key_value_heads": 2},
    "Bert": {},
    "Mistral": {"num_key_value_heads": 3, "sliding_window": 3},
    "Qwen2": {"num_key_value_heads": 2},
}
PADDING = {
    "none": None,
    "right": torch.tensor([[1] * 7, [1] * 4 + [0] * 3]),
    "left": torch.tensor([[1] * 7, [0] * 3 + [1] * 4]),
}


@pytest.fixture(scope="module")
def theirs() -> dict[str, nn.Module]:
    return {name: tiny(f"{name}Model", **options) for name, options in MODELS.items()}


def run(model: Any, how: str, **options: Any) -> Any:
    model.set_attn_implementation(how)
    with torch.no_grad():
        return model(torch.arange(14).reshape(2, 7) * 3 % 50, **options)


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", MODELS)
def test_it_records_the_weights_of_a_model_of_transformers_that_returns_none(
    name: str, padding: str, theirs: dict[str, nn.Module]
) -> None:
    model, mask = theirs[name], PADDING[padding]
    expected = run(model, "eager", attention_mask=mask, output_attentions=True).attentions
    with watch(model) as seen:
        answered = run(model, "sdpa", attention_mask=mask)
    assert torch.equal(answered[0], run(model, "sdpa", attention_mask=mask)[0])
    real = torch.ones(2, 7).bool() if mask is None else mask.bool()
    for call, weights in zip(seen, expected, strict=True):
        assert call.shape == weights.shape == (2, 6, 7, 7)
        torch.testing.assert_close(call.weights.transpose(1, 2)[real], weights.transpose(1, 2)[real], rtol=0, atol=1e-5)
    suffix = {"GPT2": "attn", "Bert": "attention.self"}.get(name, "self_attn")
    assert [call.module.endswith(f".{layer}.{suffix}") for layer, call in enumerate(seen)] == [True, True]
    modules = dict(model.named_modules())
    assert all(type(modules[call.module]).__name__.endswith("Attention") for call in seen)


@pytest.mark.parametrize("name", ["GPT2", "Llama", "Mistral"])
def test_a_step_with_a_cache_is_recorded_head_by_head_even_where_heads_are_packed_as_queries(
    name: str, theirs: dict[str, nn.Module]
) -> None:
    model: Any = theirs[name]
    mask, step = PADDING["left"], {"input_ids": torch.tensor([[3], [8]])}
    step["attention_mask"] = torch.cat([mask, torch.ones(2, 1).long()], 1)

    def answer(how: str, **options: Any) -> Any:
        kept = with_cache(model)
        run(model, how, attention_mask=mask, use_cache=True, **kept)
        with torch.no_grad():
            return model(**step, **kept, use_cache=True, **options)

    expected = answer("eager", output_attentions=True).attentions
    with watch(model) as seen:
        answer("sdpa")
    last = seen[2:]
    assert [call.shape for call in last] == [tuple(weights.shape) for weights in expected]
    for call, weights in zip(last, expected, strict=True):
        torch.testing.assert_close(call.weights, weights, rtol=0, atol=1e-5)
    heads = {call.module: [1, 4] for call in last}
    with ablate(model, heads):
        switched_off = answer("sdpa")[0]
    torch.testing.assert_close(switched_off, without(model, answer), rtol=0, atol=1e-5)


def without(model: nn.Module, answer: Callable[[str], Any], heads: tuple[int, ...] = (1, 4), dim: int = 4) -> Tensor:
    """The answer of a model whose output projections have zeros where they would read these heads."""
    kept = deepcopy(model.state_dict())
    for name, parameter in model.named_parameters():
        if re.search(r"(self_attn\.o_proj|attn\.c_proj|attn\.out_proj|output\.dense)\.weight$", name):
            for head in heads:
                columns = parameter.data if "c_proj" in name else parameter.data.T  # Conv1D keeps them as rows
                columns[head * dim : (head + 1) * dim] = 0
    answered: Tensor = answer("sdpa")[0]
    model.load_state_dict(kept)
    return answered


@pytest.mark.parametrize("name", ["GPT2", "Llama"])
def test_ablated_heads_are_zeros_before_the_output_projection(name: str, theirs: dict[str, nn.Module]) -> None:
    model = theirs[name]
    with watch(model) as seen:
        whole = run(model, "sdpa")[0]
    with ablate(model, {call.module: [4, 1] for call in seen}):
        answered = run(model, "sdpa")[0]
    expected = without(model, lambda how: run(model, how))
    torch.testing.assert_close(answered, expected, rtol=0, atol=1e-5)
    assert (answered - whole).abs().max() > 0.01


class Calling(nn.Module):
    """A module that does nothing but call a function."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.function(*args, **kwargs)


def sdpa() -> Calling:
    return Calling(F.scaled_dot_product_attention)


def weights_of(query: Tensor, key: Tensor, **options: Any) -> Tensor:
    """The call's own weights: what it makes of values that are the identity matrix."""
    one = torch.eye(key.size(-2), dtype=query.dtype).expand(*key.shape[:-1], -1)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(query, key, one, **options)


@given(st.data())
def test_the_weights_are_those_of_the_call_whatever_its_options(data: st.DataObject) -> None:
    draw = data.draw
    batch, heads, queries, keys = (draw(st.integers(1, 4)) for _ in range(4))
    groups, dim = draw(st.sampled_from([1, 2, 3])), draw(st.integers(1, 5))
    query = torch.randn(batch, heads * groups, queries, dim)
    key = torch.randn(batch, heads, keys, dim)
    options: dict[str, Any] = {"scale": draw(st.sampled_from([None, 0.3, 1.0])), "enable_gqa": groups > 1}
    kind = draw(st.sampled_from(["none", "causal", "boolean", "floating"]))
    shape = (draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, heads * groups])), queries, keys)
    shape = shape[draw(st.sampled_from([0, 2])) :]
    if kind == "causal":
        options["is_causal"] = True
    elif kind == "boolean":
        options["attn_mask"] = torch.rand(shape) < 0.6
    elif kind == "floating":
        options["attn_mask"] = torch.randn(shape).masked_fill(torch.rand(shape) < 0.3, -torch.inf)
    model = sdpa()
    with watch(model) as seen:
        model(query, key, key, **options)
    expected = weights_of(query, key, **options)
    torch.testing.assert_close(seen[0].weights, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(seen[0].blind, expected.sum(-1) == 0)
    assert seen[0].shape == expected.shape


def recorded(model: nn.Module, *args: Any, **kwargs: Any) -> AttentionCall:
    with watch(model) as seen:
        model(*args, **kwargs)
    (call,) = seen
    return call


def test_axes_that_a_call_lacks_are_added_and_what_is_one_is_broadcast() -> None:
    x = torch.randn(2, 3, 4, 5)
    assert recorded(sdpa(), x[0, 0], x[0, 0], x[0, 0]).shape == (1, 1, 4, 4)
    assert recorded(sdpa(), x[0], x[0], x[0], torch.rand(3, 4, 4) < 0.8).shape == (1, 3, 4, 4)
    five, mask = x.expand(6, 2, 3, 4, 5), torch.rand(6, 1, 3, 4, 4) < 0.8
    call = recorded(sdpa(), five, x[:1], x[:1], mask)
    assert call.shape == (12, 3, 4, 4)
    expected = weights_of(five, x[:1].expand(6, 2, 3, 4, 5), attn_mask=mask)
    torch.testing.assert_close(call.weights, expected.flatten(0, 1))
    one = recorded(sdpa(), x[:1, :1], x, x)
    torch.testing.assert_close(one.weights, weights_of(x[:1, :1].expand(2, 3, 4, 5), x))


def test_what_went_in_is_there_by_name() -> None:
    query, key, value = torch.randn(2, 6, 3, 4, requires_grad=True), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 7)
    hidden = torch.tensor([0.0, -torch.inf, 0.0, 0.0, 0.0])
    call = recorded(sdpa(), query, key, value=value, attn_mask=hidden.expand(3, 5), enable_gqa=True, dropout_p=0.25)
    assert torch.equal(call.query, query)
    assert not call.query.requires_grad
    assert call.query.data_ptr() == query.data_ptr()
    assert torch.equal(call.key, key)
    assert torch.equal(call.value, value)
    assert (call.module, call.scale, call.dropout_p, call.fast_path) == ("", 0.5, 0.25, False)
    assert call.bias is None  # but for -inf, which hides
    assert torch.equal(call.allowed, (hidden == 0).expand(1, 1, 3, 5))
    slope = torch.randn(3, 5)
    call = recorded(sdpa(), query, key, value, slope, scale=2.0, enable_gqa=True)
    assert call.allowed is None
    assert torch.equal(call.bias, slope[None, None])
    assert call.scale == 2.0
    assert recorded(sdpa(), query[:, :1, 1:2], key, value, is_causal=True).allowed.tolist() == [[True] + [False] * 4]


def test_the_kernel_is_the_one_that_pytorch_chooses() -> None:
    x = torch.randn(2, 3, 4, 8)
    assert recorded(sdpa(), x, x, x).kernel == "flash"
    assert recorded(sdpa(), x, x, x, dropout_p=0.5).kernel == "math"
    assert recorded(sdpa(), x, x, x, torch.zeros(4, 4, requires_grad=True)).kernel == "math"
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert recorded(sdpa(), x, x, x).kernel == "math"


def test_dropout_is_left_out_and_half_precision_is_weighed_in_float32() -> None:
    x = torch.randn(2, 3, 4, 8)
    call = recorded(sdpa(), x, x, x, dropout_p=0.9)
    torch.testing.assert_close(call.weights, weights_of(x, x))
    half = recorded(sdpa(), x.bfloat16(), x.bfloat16(), x.bfloat16())
    torch.testing.assert_close(half.weights, weights_of(x.bfloat16().float(), x.bfloat16().float()))
    assert recorded(sdpa(), x.double(), x.double(), x.double()).weights.dtype == torch.float64


def causal_mask(kind: str, n: int) -> Tensor | None:
    blocked = ~masks.causal(n)
    return {"none": None, "boolean": blocked, "floating": blocked.float() * -3.0}[kind]


@pytest.mark.parametrize("cls", [nn.MultiheadAttention, MultiheadAttention])
@pytest.mark.parametrize("kind", ["none", "boolean", "floating"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_module_s_weights_are_recorded_whether_it_returns_them_or_not(
    cls: type[nn.MultiheadAttention], kind: str, batch_first: bool
) -> None:
    module = cls(12, 3, batch_first=batch_first, add_bias_kv=True)
    x, y = torch.randn(2, 2, 12), torch.randn(2, 2, 12)  # batch and tokens are of one size: either may be first
    options = {"attn_mask": causal_mask(kind, 2), "key_padding_mask": torch.tensor([[False, True], [False, False]])}
    if kind == "floating":
        options["key_padding_mask"] = masks.additive_from_allowed(~options["key_padding_mask"])
    _, expected = module(x, y, y, **options, average_attn_weights=False)
    eager, fused = (recorded(module, x, y, y, **options, need_weights=needed) for needed in (True, False))
    assert (eager.kernel, fused.kernel) == ("eager", "flash")
    for call in (eager, fused):
        assert call.shape == (2, 3, 2, 3)
        torch.testing.assert_close(call.weights, expected)
        torch.testing.assert_close(call.query, fused.query)
    unbatched = recorded(module, x[0], y[0], y[0])
    torch.testing.assert_close(unbatched.weights[0], module(x[0], y[0], y[0], average_attn_weights=False)[1])


def test_a_query_that_sees_nothing_is_nan_where_the_module_makes_it_nan() -> None:
    module, x = nn.MultiheadAttention(4, 2, batch_first=True), torch.randn(1, 3, 4)
    blocked = torch.zeros(3, 3).bool()
    blocked[1] = True
    _, expected = module(x, x, x, attn_mask=blocked, average_attn_weights=False)
    eager, fused = (recorded(module, x, x, x, attn_mask=blocked, need_weights=needed) for needed in (True, False))
    torch.testing.assert_close(eager.weights, expected, equal_nan=True)
    assert eager.nan[0].tolist() == fused.blind[0].tolist() == eager.blind[0].tolist() == [[False, True, False]] * 2
    assert not fused.nan.any()
    assert not fused.weights[:, :, 1].any()
    assert fused.entropy.isfinite().all()
    assert eager.entropy.isfinite().all()


def encoder(**options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("mode", ["train", "eval", "fast"])
def test_an_encoder_of_pytorch_is_recorded_and_says_where_it_would_take_its_fast_path(mode: str) -> None:
    model, x = encoder(dropout=0.0).train(mode == "train"), torch.randn(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.set_grad_enabled(mode != "fast"):
        expected = model(x, src_key_padding_mask=padding)
        with watch(model) as seen:
            answered = model(x, src_key_padding_mask=padding)
        first = model.layers[0].self_attn
        weights = first(x, x, x, key_padding_mask=padding, average_attn_weights=False)[1]
    torch.testing.assert_close(answered[~padding], expected[~padding])
    torch.testing.assert_close(seen[0].weights, weights)
    assert [call.module for call in seen] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert [call.fast_path for call in seen] == [mode == "fast"] * 2
    assert ("fast path: unwatched, PyTorch runs other code there" in repr(seen)) == (mode == "fast")


def test_a_fast_path_that_pytorch_would_not_take_is_not_told() -> None:
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        for model, fast in (
            (nn.MultiheadAttention(8, 2, batch_first=True), True),
            (nn.MultiheadAttention(8, 2), False),
        ):
            assert recorded(model.eval(), x, x, x).fast_path == fast
            assert not recorded(model.train(), x, x, x).fast_path
    x.requires_grad_()
    assert not recorded(nn.MultiheadAttention(8, 2, batch_first=True).eval(), x, x, x).fast_path


@pytest.mark.parametrize("num_kv_heads", [6, 2])
def test_a_layer_of_ours_is_recorded_with_its_own_masks(num_kv_heads: int) -> None:
    layer, x = CausalSelfAttention(7, 12, 6, num_kv_heads=num_kv_heads), torch.randn(2, 5, 7)
    allowed = torch.rand(2, 1, 5, 5) < 0.5
    for options in ({}, {"allowed": allowed}):
        call = recorded(layer, x, **options)
        torch.testing.assert_close(call.weights, layer.weights(x, **options))
        assert call.kernel == "flash"
        seen = masks.combine(masks.causal(5), options.get("allowed"))
        assert torch.equal(call.allowed.expand(2, 6, 5, 5), seen.expand(2, 6, 5, 5))
        assert torch.equal(call.blind[:, 0], ~seen.expand(2, 1, 5, 5)[:, 0].any(-1))


@pytest.mark.parametrize("implementation", ["fused", "eager"])
def test_our_function_is_recorded_with_all_its_options(implementation: str) -> None:
    model = Calling(lambda *inputs, **options: functional.attend(*inputs, **options).context)
    query, key, value = torch.randn(2, 6, 3, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 7)
    for options in (
        {"is_causal": True},  # aligned at the bottom right
        {"bias": torch.randn(3, 5), "allowed": torch.rand(2, 1, 1, 5) < 0.6, "scale": 0.7},
        {"bias": torch.randn(6, 3, 5).masked_fill(torch.rand(3, 1) < 0.5, -torch.inf), "dropout_p": 0.5},
        *([{"softcap": 0.5}] if implementation == "eager" else []),
    ):
        expected = functional.attend(query, key, value, **options | {"need_weights": True, "dropout_p": 0.0})
        call = recorded(model, query, key, value, **options, implementation=implementation)
        torch.testing.assert_close(call.weights, expected.weights)
        assert (call.kernel == "eager") == (implementation == "eager")
    by_heads = recorded(model, query[0], key[0], value[0], implementation=implementation)
    assert by_heads.shape == (1, 6, 3, 5)
    two = recorded(model, query[0, 0], key[0, 0], value[0, 0], implementation=implementation)
    torch.testing.assert_close(two.weights[0, 0], by_heads.weights[0, 0])


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_is_recorded_after_its_functions() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    query, key = torch.randn(2, 6, 4, 8), torch.randn(2, 2, 4, 8)
    far = torch.arange(4)[:, None] - torch.arange(4)
    window = create_block_mask(lambda b, h, q, k: (q >= k) & (q > 0), None, None, 4, 4, device="cpu")
    options = {"block_mask": window, "score_mod": lambda score, b, h, q, k: score - 0.5 * h * (q - k)}
    model = Calling(flex_attention)
    call = recorded(model, query, key, key, **options, enable_gqa=True)
    bias = -0.5 * torch.arange(6.0)[:, None, None] * far
    seen = (far >= 0) & (torch.arange(4) > 0)[:, None]
    expected = weights_of(query, key, attn_mask=bias.masked_fill(~seen, -torch.inf), enable_gqa=True)
    torch.testing.assert_close(call.weights, expected)
    assert call.kernel == "flex"
    assert torch.equal(call.allowed.expand(2, 6, 4, 4), seen.expand(2, 6, 4, 4))
    with ablate(model, {"": [1]}):
        answered = model(query, key, key, **options, enable_gqa=True)
    whole = (expected @ key.repeat_interleave(3, dim=1)).index_fill(1, torch.tensor([1]), 0.0)
    torch.testing.assert_close(answered, whole)


class Block(nn.Module):
    """Attention at several depths: in a child, by a method that is no forward, in a plain function, and by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = CausalSelfAttention(4, 4, 2)
        self.sdpa = sdpa()
        self.twice = nn.ModuleList([self.sdpa, nn.MultiheadAttention(4, 2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(x)
        x = self.sdpa.forward(x, x, x)
        x, _ = self.twice[1](x, x, x)
        return self.mixed(self.twice[0](x, x, x))

    def mixed(self, x: Tensor) -> Tensor:
        return plain(x)


def plain(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x)


def test_a_call_has_the_name_of_the_innermost_module_that_made_it() -> None:
    model = nn.ModuleDict({"blocks": nn.ModuleList([Block(), Block()])})
    with watch(model) as seen:
        for block in model["blocks"]:
            block(torch.randn(1, 3, 4))
    one = ["attn", "sdpa", "twice.1", "sdpa", ""]
    expected = [f"blocks.{n}.{name}".rstrip(".") for n in range(2) for name in one]
    assert [call.module for call in seen] == expected
    assert [call.module for call in seen[1:3]] == expected[1:3]
    assert seen["blocks.1.sdpa"] == [seen[6], seen[8]]
    assert seen[-1] is seen[9]


def test_calls_that_no_module_of_the_model_makes_are_left_out_and_told() -> None:
    model, other, x = Block(), Block(), torch.randn(1, 3, 4)
    with watch(model) as seen:
        other(x)
        model(x)
        plain(x)
    assert len(seen) == 5
    assert repr(seen).endswith("not recorded: a call of attention outside of model, 6 times")


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_afterwards(fails: bool) -> None:
    model, x = Block().eval(), torch.randn(1, 3, 4)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    stance = torch._dynamo.eval_frame._stance
    expected = model(x)
    for manager in (watch(model), ablate(model, {"attn": [1]})):
        try:
            with manager as seen:
                inside = model(x)
                assert _len_torch_function_stack() == 1
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        assert _len_torch_function_stack() == 0
        assert torch._dynamo.eval_frame._stance == stance
        assert torch.equal(model(x), expected)
        if seen is not None:
            assert torch.equal(inside, expected)
            assert len(seen) == 5
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before


def test_two_may_watch_at_once_and_while_heads_are_off() -> None:
    model, x = Block(), torch.randn(1, 3, 4)
    with watch(model) as outer, watch(model.attn) as inner, ablate(model, {"twice.1": [0, 1]}):
        model(x)
        with watch(model) as innermost:
            model(x)
    assert (len(outer), len(inner), len(innermost)) == (10, 2, 5)
    assert [call.module for call in inner] == ["", ""]
    for first, second in zip(outer[5:], innermost, strict=True):
        torch.testing.assert_close(first.weights, second.weights)
    assert not innermost[3].value.sub(model.twice[1].out_proj.bias).any()  # what came out of the ablated one


def test_a_thread_sees_its_own_calls() -> None:
    model, counts, both = Block(), {}, threading.Barrier(2)

    def work(times: int) -> None:
        with watch(model) as seen:
            both.wait()
            for _ in range(times):
                model(torch.randn(1, 3, 4))
            both.wait()
        counts[times] = len(seen)

    threads = [threading.Thread(target=work, args=(times,)) for times in (1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == {1: 5, 3: 15}


def test_a_model_that_is_watched_is_trained_as_ever() -> None:
    model, x = encoder(dropout=0.3), torch.randn(2, 5, 8)
    gradients = []
    for watched in (nullcontext(), watch(model)):
        torch.manual_seed(1)
        model.zero_grad()
        with watched as seen:
            model(x).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert seen[0].dropout_p == 0.3
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.usefixtures("unhooked")
def test_a_compiled_model_is_watched_as_it_is_written() -> None:
    model, x = Block().eval(), torch.randn(1, 3, 4)
    compiled = torch.compile(model, backend="eager")
    expected = compiled(x)
    with watch(compiled) as seen:
        torch.testing.assert_close(compiled(x), expected)
    assert [call.module for call in seen] == ["attn", "sdpa", "twice.1", "sdpa", ""]


def test_weights_alone_are_kept_where_tensors_are_written_to_again() -> None:
    model, cache = sdpa(), torch.randn(1, 2, 5, 4)
    query = torch.randn(1, 2, 1, 4)
    with watch(model) as seen, watch(model, keep="weights") as kept:
        model(query, cache[:, :, :3], cache[:, :, :3])
    expected = weights_of(query, cache[:, :, :3])
    cache[:, :, :3] = 7.0
    torch.testing.assert_close(kept[0].weights, expected)
    assert (kept[0].allowed, kept[0].kernel, kept[0].shape) == (None, "flash", (1, 2, 1, 3))
    assert not kept[0].blind.any()
    again = (
        "key of the call in '' has been written to since (is it a cache?): watch(model, keep=\"weights\") computes the"
    )
    for name in ("weights", "key"):
        with pytest.raises(ValueError, match="^" + re.escape(f"{again} weights at once") + "$"):
            getattr(seen[0], name)
    assert torch.equal(seen[0].query, query)
    with pytest.raises(ValueError, match=re.escape('query was not kept: watch(model, keep="inputs") keeps what went')):
        _ = kept[0].query
    masked = torch.rand(1, 2, 1, 3) < 0.5
    with watch(model, keep="weights") as kept:
        model(query, cache[:, :, :3], cache[:, :, :3], masked)
    assert torch.equal(kept[0].allowed, masked)


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": deepcopy,
    "pickle": lambda seen: pickle.loads(pickle.dumps(seen)),
}


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_has_the_weights_alone_unless_the_inputs_were_written_to(copy: str) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    x, keys = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)
    flex = Calling(partial(flex_attention, score_mod=lambda score, b, h, q, k: score - k))  # which no process is sent
    model = nn.ModuleList([sdpa(), flex])
    with watch(model) as seen:
        model[0](x, keys, keys, is_causal=True)
        model[1](x, keys, keys)
    again = COPIES[copy](seen)
    for call, other in zip(seen, again, strict=True):
        torch.testing.assert_close(other.weights, call.weights, rtol=0, atol=0)
        assert repr(other) == repr(call)
    assert repr(again) == repr(seen)
    with pytest.raises(ValueError, match=r"^key was not kept: .* and a copy of a call has its weights alone$"):
        _ = again[0].key
    with watch(model) as seen:
        model[0](x, keys, keys)
    keys += 1
    with pytest.raises(ValueError, match=r"^key of the call in '0' has been written to since"):
        COPIES[copy](seen)


def test_steps_with_a_cache_are_the_rows_of_all_tokens_at_once() -> None:
    layer, x = CausalSelfAttention(8, 8, 4, num_kv_heads=2), torch.randn(2, 5, 8)
    cache = layer.cache(2, 5)
    with torch.no_grad(), watch(layer, keep="weights") as steps:
        for part in x.split([3, 1, 1], dim=1):
            layer(part, cache=cache)
    whole = layer.weights(x)
    for call, rows in zip(steps, whole.split([3, 1, 1], dim=2), strict=True):
        torch.testing.assert_close(call.weights, rows[..., : call.shape[-1]])


def test_inference_mode_can_be_watched() -> None:
    model = Block().eval()
    with torch.inference_mode(), watch(model) as seen:
        model(torch.randn(1, 3, 4))
    torch.testing.assert_close(seen[0].weights.sum(-1), torch.ones(1, 2, 3))


def test_calls_can_be_chosen() -> None:
    model = Block()
    with watch(model, only=lambda call: call.module == "sdpa") as seen:
        model(torch.randn(1, 3, 4))
    assert [call.module for call in seen] == ["sdpa"] * 2
    warns = pytest.warns(UserWarning, match=r"xformers\), scripted or exported code\. only= kept none of the calls\.$")
    with warns, watch(model, only=lambda call: call.shape[1] > 2):
        model(torch.randn(1, 3, 4))


class ByHand(nn.Module):
    """Attention that is written out."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.mT, dim=-1) @ x


REMEDY = (
    "no call of attention was recorded. watch sees torch.nn.functional.scaled_dot_product_attention, "
    "nn.MultiheadAttention, flex_attention and this library's, called by model inside the with; it cannot see "
    "attention written out (of transformers: load with attn_implementation='sdpa'), kernels of other libraries "
    "(flash_attn, xformers), scripted or exported code. Not recorded: a softmax over (2, 3, 3) in 'layer', which may "
    "be attention written out, 1 times."
)


def test_attention_that_is_written_out_is_missed_aloud() -> None:
    model = nn.ModuleDict({"layer": ByHand()})
    with pytest.warns(UserWarning, match=f"^{re.escape(REMEDY)}$"), watch(model) as seen:
        model["layer"](torch.randn(2, 3, 4))
    assert len(seen) == 0
    assert repr(seen) == REMEDY
    for ask in (lambda: seen[0], lambda: rollout(seen), lambda: unmasked.show(seen)):
        with pytest.raises((IndexError, ValueError), match=f"^{re.escape(REMEDY)}$"):
            ask()
    with pytest.raises(KeyError, match="no call came from 'layer'; no call of attention was made at all"):
        seen["layer"]


def test_an_error_of_the_model_is_not_followed_by_a_warning() -> None:
    with warnings.catch_warnings(record=True) as warned, pytest.raises(ZeroDivisionError), watch(ByHand()):
        raise ZeroDivisionError
    assert not warned


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_missed_aloud() -> None:
    x = torch.nested.nested_tensor([torch.randn(3, 2, 4), torch.randn(5, 2, 4)], layout=torch.jagged).transpose(1, 2)
    model = sdpa()
    with pytest.warns(UserWarning, match=r"Not recorded: a call with nested tensors in '', 1 times\.$"), watch(model):
        model(x, x, x)


def test_the_calls_print_as_a_table() -> None:
    model, x, first_two = Block(), torch.randn(1, 3, 4), torch.tensor([[True], [True], [False]])
    with watch(model) as seen:
        model(x)
        model.sdpa(*[torch.full((2, 3, 4), torch.nan)] * 3, torch.tensor([0.5, -torch.inf, 0]), dropout_p=0.5)
        model.sdpa(x, x, x, first_two)
    # Of three axes: the kernel is math in PyTorch 2.13 and flash from 2.14 on.
    (plain_one,), (masked_one,) = (kernels_of(sdpa(), x, x, x, *mask).names for mask in ((), (first_two,)))
    rows = [re.split(" {2,}", line.strip()) for line in repr(seen).splitlines()]
    assert rows == [
        ["module", "kernel", "batch", "heads", "queries", "keys", "sees", "note"],
        ["0", "attn", "flash", "1", "2", "3", "3", "67%"],
        ["1", "sdpa", plain_one, "1", "1", "3", "3", "all"],
        ["2", "twice.1", "eager", "3", "2", "1", "1", "all"],
        ["3", "sdpa", plain_one, "1", "1", "3", "3", "all"],
        ["4", "(the model)", plain_one, "1", "1", "3", "3", "all"],
        ["5", "sdpa", "math", "1", "2", "3", "3", "67%", "bias, dropout 0.5"],
        ["6", "sdpa", masked_one, "1", "1", "3", "3", "67%", "1 blind"],
    ]
    assert "<td>dropout" not in seen._repr_html_()
    assert seen._repr_html_().count("<tr>") == 8
    assert repr(seen[5]).endswith("\nNaN among the weights of 6 queries")
    assert repr(seen[0]).splitlines()[2].split() == ["entropy"]
    with pytest.raises(IndexError, match=r"^call 7 of 7: they are numbered from 0 to 6$"):
        seen[7]
    with pytest.raises(KeyError, match="no call came from 'sdp'; choose 'sdpa'"):
        seen["sdp"]


def test_entropy_is_each_head_s_mean_over_the_queries_that_see_a_key() -> None:
    scores = torch.tensor([[0.0, 0.0, -torch.inf], [0.0, -torch.inf, -torch.inf], [-torch.inf] * 3])
    bias = torch.stack([scores, torch.zeros(3, 3)])
    call = recorded(sdpa(), *[torch.zeros(1, 2, 3, 4)] * 3, bias)
    torch.testing.assert_close(call.entropy, torch.tensor([math.log(2) / 2, math.log(3)]))


def test_what_was_seen_is_shown() -> None:
    model = encoder()
    with watch(model) as seen:
        model(torch.randn(2, 5, 8))
    one, all_of_them = unmasked.show(seen[1]), unmasked.show(seen, queries="abcde")
    assert (one.title, one.shape) == ("layers.1.self_attn", (2, 2, 5, 5))
    torch.testing.assert_close(one.weights, seen[1].weights)
    assert (all_of_them.title, all_of_them.shape) == ("2 calls, sequence 0", (2, 2, 5, 5))
    torch.testing.assert_close(all_of_them.weights[1], seen[1].weights[0])
    assert unmasked.show(seen[1], title="mine").title == "mine"
    with watch(model) as mixed:
        model(torch.randn(2, 5, 8))
        model(torch.randn(2, 4, 8))
    with pytest.raises(
        ValueError, match=re.escape("the calls have 2 shapes, so no one picture holds them: show(seen[0])")
    ):
        unmasked.show(mixed)


HEADS = [(cls, needed) for cls in (nn.MultiheadAttention, MultiheadAttention) for needed in (True, False)]


@pytest.mark.parametrize(("cls", "needed"), HEADS)
def test_heads_of_a_module_are_ablated_whether_it_returns_weights_or_not(
    cls: type[nn.MultiheadAttention], needed: bool
) -> None:
    module, x = cls(12, 3, batch_first=True), torch.randn(2, 5, 12)
    changed = deepcopy(module)
    changed.out_proj.weight.data[:, 4:8] = 0
    with ablate(module, {"": [1]}):
        answered, _ = module(x, x, x, need_weights=needed)
    torch.testing.assert_close(answered, changed(x, x, x)[0])
    answered.sum().backward()
    assert not module.out_proj.weight.grad[:, 4:8].any()
    assert module.out_proj.weight.grad[:, :4].all()


def test_heads_of_the_layer_of_ours_are_ablated_by_name() -> None:
    model, x = (
        nn.Sequential(CausalSelfAttention(12, 12, 6, num_kv_heads=2), CausalSelfAttention(12, 12, 3)),
        torch.randn(2, 5, 12),
    )
    for number, heads, columns in ((0, [5], slice(10, 12)), (1, [0], slice(0, 4)), (1, [], slice(0, 0))):
        changed = deepcopy(model)
        changed[number].out_proj.weight.data[:, columns] = 0
        with ablate(model, {str(number): heads}):
            torch.testing.assert_close(model(x), changed(x))


def wrong(heads: dict[str, list[int]], *shape: int) -> Callable[[], None]:
    def run() -> None:
        model = Block()
        with ablate(model, heads):
            model(torch.randn(shape or (1, 3, 4)))

    return run


test_what_cannot_be_done_is_refused_with_the_remedy = refused(
    {
        ValueError: {
            "heads names 'atn', but model has no such module; choose 'attn' or 'attn.qkv' or 'attn.out_proj'": wrong(
                {"atn": [0]}
            ),
            "heads names 'twice', but no call of attention came from it, so that nothing was switched off there; "
            "choose 'twice.1'": wrong({"twice": [0]}),
            "heads names head 2 of 'attn'; its call has 2 heads, numbered from 0": wrong({"attn": [0, 2]}),
            "a head of heads['attn'] is -1; it must be 0 or more": wrong({"attn": [-1]}),
            "a call gives (3, 4), which has no axis of heads to switch off": wrong({"sdpa": [0]}, 3, 4),
            'keep is \'all\'; choose "inputs" or "weights"': lambda: watch(Block(), keep="all").__enter__(),
            "calls is empty: pass what watch(model) saw": lambda: rollout([]),
            "the call in '' has 2 queries and 3 keys, the first one 3 keys; pass the calls of self-attention over one "
            "sequence: [call for call in seen if ...]": lambda: rollout([calls_of(3, 3), calls_of(2, 3)]),
        },
        TypeError: {
            "model is of the type function; it must be of the type Module": lambda: watch(plain).__enter__(),
        },
    },
    afterwards=lambda: _len_torch_function_stack() == 0,
)


def calls_of(queries: int, keys: int) -> AttentionCall:
    return recorded(sdpa(), torch.randn(1, 2, queries, 4), *[torch.randn(1, 2, keys, 4)] * 2)


def weighing(*rows: list[float]) -> AttentionCall:
    """A call whose weights, in two heads, have this mean; where the sum of a row is 0, the query sees nothing."""
    weights = torch.tensor(rows)
    heads = torch.stack([weights * 1.5, weights * 0.5]) / weights.sum(-1, keepdim=True).clamp(min=1e-9)
    bias = (heads / heads.sum(-1, keepdim=True).clamp(min=1e-9)).log()
    return recorded(sdpa(), *[torch.zeros(1, 2, len(rows), 1)] * 3, bias[None])


def test_rollout_multiplies_the_layers_by_hand() -> None:
    first, second = weighing([1.0, 0.0], [0.5, 0.5]), weighing([0.25, 0.75], [0.0, 1.0])
    plain = torch.tensor([[[0.25 * 1 + 0.75 * 0.5, 0.75 * 0.5], [0.5, 0.5]]])
    torch.testing.assert_close(rollout([first, second], residual=False), plain)
    # with the residual: (A + I) / 2, that is [[1, 0], [1/4, 3/4]] and [[5/8, 3/8], [0, 1]]
    mixed = torch.tensor([[[5 / 8 + 3 / 32, 9 / 32], [1 / 4, 3 / 4]]])
    torch.testing.assert_close(rollout([first, second]), mixed)


def test_rollout_leaves_a_token_that_sees_nothing_to_itself() -> None:
    blind = weighing([0.0, 0.0], [0.5, 0.5])
    torch.testing.assert_close(rollout([blind]), torch.tensor([[[1.0, 0.0], [0.25, 0.75]]]))
    assert rollout([blind], residual=False)[0, 0].tolist() == [0.0, 0.0]


@pytest.mark.cuda
def test_a_model_on_a_gpu_is_watched_there() -> None:
    x = torch.randn(2, 4, 16, 32, device="cuda", dtype=torch.float16)
    mask = torch.rand(16, 16, device="cuda") < 0.6
    for options in ({}, {"is_causal": True}, {"attn_mask": mask}):
        call = recorded(sdpa(), x, x, x, **options)
        assert call.kernel in ("flash", "efficient", "cudnn")
        assert call.entropy.device.type == call.blind.device.type == "cuda"
        there = {name: each.cpu() if isinstance(each, Tensor) else each for name, each in options.items()}
        expected = weights_of(x.float().cpu(), x.float().cpu(), **there)
        torch.testing.assert_close(call.weights.cpu(), expected, rtol=0, atol=1e-3)
        torch.testing.assert_close(call.weights.half() @ x, sdpa()(x, x, x, **options), rtol=0, atol=1e-2)
    model = Block().cuda()
    with watch(model, keep="weights") as seen, ablate(model, {"attn": [1]}):
        model(torch.randn(1, 3, 4, device="cuda"))
    assert "nan" not in repr(seen)
    assert rollout(seen[:1]).device.type == "cuda"
