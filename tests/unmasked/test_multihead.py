"""The drop-in beside torch.nn.MultiheadAttention: the same results over every option, but where it says otherwise."""

import copy
import io
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from unmasked import MultiheadAttention, masks
from unmasked.layouts import from_torch

from ..refusals import refused
from .helpers import fast_path, shaken

INF = math.inf
TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 5e-2}


def pair(*args: Any, **kwargs: Any) -> tuple[nn.MultiheadAttention, MultiheadAttention]:
    """PyTorch's module and ours with the same weights."""
    theirs = shaken(nn.MultiheadAttention(*args, **kwargs))
    return theirs, from_torch(theirs)


@dataclass
class Call:
    options: dict[str, Any]
    dtype: torch.dtype
    training: bool
    inputs: list[Tensor]
    call: dict[str, Any]
    seed: int

    def run(self, module: nn.MultiheadAttention) -> list[Tensor]:
        """The output, the weights, and the gradients of inputs and parameters."""
        module.train(self.training)
        leaves = {id(x): x.detach().clone().requires_grad_() for x in self.inputs}
        inputs = [leaves[id(x)] for x in self.inputs]
        torch.manual_seed(self.seed)
        output, weights = module(*inputs, **self.call)
        torch.manual_seed(self.seed)
        loss = (output.double() * torch.randn(output.shape, dtype=torch.float64)).sum()
        if weights is not None:  # the weights' own gradient counts too
            loss = loss + (weights.double() * torch.randn(weights.shape, dtype=torch.float64)).sum()
        gradients = torch.autograd.grad(loss, [*leaves.values(), *module.parameters()])
        return [output, *([] if weights is None else [weights]), *gradients]


@st.composite
def calls(draw: st.DrawFn) -> Call:
    seed = draw(st.integers(0, 2**31))
    torch.manual_seed(seed)
    heads, head_dim = draw(st.sampled_from([(1, 4), (2, 3), (3, 2), (4, 1)]))
    batch, queries, keys = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 5))
    embed_dim = heads * head_dim
    kind = draw(st.sampled_from(["self", "key is value", "query is key", "all three"]))
    kdim, vdim = (
        (draw(st.sampled_from([None, 7])), draw(st.sampled_from([None, 5]))) if kind == "all three" else (None,) * 2
    )
    options = {
        "embed_dim": embed_dim,
        "num_heads": heads,
        "dropout": draw(st.sampled_from([0.0, 0.4])),
        "kdim": kdim,
        "vdim": vdim,
        **{name: draw(st.booleans()) for name in ("bias", "add_bias_kv", "add_zero_attn", "batch_first")},
    }
    dtype, batched = draw(st.sampled_from(list(TOLERANCE))), draw(st.booleans())

    def tokens(n: int, features: int) -> Tensor:
        axes = () if not batched else (batch, n) if options["batch_first"] else (n, batch)
        return torch.randn(*(axes or (n,)), features, dtype=dtype)

    query = tokens(queries, embed_dim)
    if kind == "self":
        keys, inputs = queries, [query] * 3
    elif kind == "key is value":
        inputs = [query, *[tokens(keys, embed_dim)] * 2]
    elif kind == "query is key":
        keys, inputs = queries, [query, query, tokens(queries, embed_dim)]
    else:
        inputs = [query, tokens(keys, kdim or embed_dim), tokens(keys, vdim or embed_dim)]
    is_float = draw(st.booleans())  # PyTorch warns where the two masks' types differ
    kind_of_mask = draw(st.sampled_from([None, "2-D", "3-D", "causal"]))
    seen = 0 if kind_of_mask == "causal" else draw(st.integers(0, keys - 1))

    def mask(*shape: int) -> Tensor:
        blocked = torch.rand(shape) < 0.4
        blocked[..., seen] = False  # PyTorch's rows that see nothing are NaN
        return torch.randn(shape, dtype=dtype).masked_fill(blocked, -INF) if is_float else blocked

    call: dict[str, Any] = {name: draw(st.booleans()) for name in ("need_weights", "average_attn_weights")}
    items = batch if batched else 1
    match kind_of_mask:
        case "2-D":
            call["attn_mask"] = mask(queries, keys)
        case "3-D":
            call["attn_mask"] = mask(items * heads, queries, keys)
        # PyTorch aligns the hint at the start of all keys: wrong with other lengths, and where keys are appended.
        case "causal" if queries == keys and not (options["add_bias_kv"] or options["add_zero_attn"]):
            future = ~masks.causal(queries)
            call |= {
                "is_causal": True,
                "attn_mask": masks.additive_from_allowed(~future, dtype) if is_float else future,
            }
    if draw(st.booleans()):
        call["key_padding_mask"] = mask(items, keys) if batched else mask(keys)
    return Call(options, dtype, draw(st.booleans()), inputs, call, seed)


def assert_near(actual: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    for x, y in zip(actual, expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        tolerance = TOLERANCE[dtype] * max(1.0, y.abs().max().item())
        torch.testing.assert_close(x.double(), y.double(), rtol=0, atol=tolerance)


@given(call=calls())
def test_output_weights_and_every_gradient_equal_pytorchs(call: Call) -> None:
    theirs, ours = pair(**call.options, dtype=call.dtype)
    assert_near(call.run(ours), call.run(theirs), call.dtype)
    if not call.training:  # PyTorch's fast path: another code, without gradients
        with torch.no_grad():
            expected, actual = (module(*call.inputs, **call.call) for module in (theirs, ours))
        assert (actual[1] is None) == (expected[1] is None)
        assert_near([x for x in actual if x is not None], [x for x in expected if x is not None], call.dtype)


OPTIONS = [
    {},
    {"bias": False},
    {"kdim": 7, "vdim": 5},
    {"add_bias_kv": True, "add_zero_attn": True, "dropout": 0.3, "batch_first": True, "dtype": torch.float64},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_same_seed_gives_the_same_weights_at_first_and_again_and_state_dicts_load_both_ways(
    options: dict[str, Any],
) -> None:
    modules = []
    for cls in (nn.MultiheadAttention, MultiheadAttention):
        torch.manual_seed(3)
        modules.append(cls(12, 3, **options))
    theirs, ours = modules
    for state in (ours.state_dict(), theirs.state_dict()):
        torch.testing.assert_close(state, theirs.state_dict(), rtol=0, atol=0)
        theirs.load_state_dict(state, strict=True)
        ours.load_state_dict(state, strict=True)
    assert isinstance(ours, nn.MultiheadAttention)
    assert repr(ours) == repr(theirs)
    # Who calls F.multi_head_attention_forward on a module's own weights asks this for their form.
    assert ours._qkv_same_embed_dim == theirs._qkv_same_embed_dim == (ours.in_proj_weight is not None)
    for module in modules:
        torch.manual_seed(1)
        module._reset_parameters()
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)


def pickled(module: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(module))


def saved(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("clone", [copy.deepcopy, pickled, saved])
def test_copies_compute_the_same_from_storage_of_their_own_and_no_fast_path_skips_them(clone: Any) -> None:
    layer, x = nn.TransformerEncoderLayer(12, 2, 20, batch_first=True).eval(), torch.randn(5, 2, 12)
    ours = from_torch(layer.self_attn)
    layer.self_attn = other = clone(ours)
    torch.testing.assert_close(other(x, x, x), ours(x, x, x), rtol=0, atol=0)
    assert not {p.data_ptr() for p in other.parameters()} & {p.data_ptr() for p in ours.parameters()}
    seen = []
    other.forward = lambda *args, **options: (seen.append(1), args[0])[::-1]
    with torch.no_grad():
        layer(x)
    assert seen == [1]


def test_hooks_run() -> None:
    layer, seen = nn.TransformerEncoderLayer(12, 3, 20), []
    layer.self_attn = ours = MultiheadAttention(12, 3)
    ours.register_forward_pre_hook(lambda module, args: seen.append(("before", args[0].shape)))
    ours.register_forward_hook(lambda module, args, result: seen.append(("after", result[0].shape)))
    x = torch.randn(5, 2, 12)
    with torch.inference_mode():
        ours.eval()(x, x, x)
        layer.eval()(x)
    assert seen == [("before", (5, 2, 12)), ("after", (5, 2, 12))] * 2


def test_a_bias_of_another_type_is_taken_as_pytorch_takes_it() -> None:
    theirs, ours = pair(12, 3, batch_first=True, dtype=torch.float64)
    for module in (theirs, ours):
        module.in_proj_bias = nn.Parameter(module.in_proj_bias.half())
    x = torch.randn(5, 2, 12, dtype=torch.float64)
    torch.testing.assert_close(ours(x, x, x), theirs(x, x, x), rtol=0, atol=1e-3)


def assert_autocast_agrees(dtype: torch.dtype, tolerance: float, x: Tensor, mask: Tensor, **options: Any) -> None:
    """Compare the outputs, the weights and the gradients of both modules under autocast, on the device of x."""
    theirs, ours = pair(x.size(-1), 4, batch_first=True, device=x.device, **options)
    for need_weights in (True, False):
        results = []
        for module in (theirs, ours):
            with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
                output, weights = module(x, x, x, attn_mask=mask, need_weights=need_weights)
            gradients = torch.autograd.grad(output.float().square().mean(), list(module.parameters()))
            results.append([output, *([] if weights is None else [weights]), *gradients])
        assert results[1][0].dtype == dtype
        for actual, expected in zip(results[1], results[0], strict=True):
            scale = max(1.0, expected.abs().max().item())
            torch.testing.assert_close(actual.float(), expected.float(), rtol=0, atol=tolerance * scale)


def test_autocast_computes_in_bfloat16_as_pytorch_does() -> None:
    assert_autocast_agrees(torch.bfloat16, 4e-2, torch.randn(2, 5, 12), torch.randn(5, 5), add_bias_kv=True)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 6e-2)], ids=str
)
def test_on_a_gpu_it_equals_pytorchs_also_under_autocast(dtype: torch.dtype, tolerance: float) -> None:
    mask = (torch.rand(8, 8, device="cuda") < 0.4).fill_diagonal_(False)
    assert_autocast_agrees(dtype, tolerance, torch.randn(3, 8, 64, device="cuda"), mask)


def test_it_has_second_derivatives_where_it_returns_weights() -> None:
    _, ours = pair(4, 2, add_bias_kv=True, dtype=torch.float64)
    query, key = torch.randn(3, 2, 4, dtype=torch.float64), torch.randn(2, 2, 4, dtype=torch.float64)
    query.requires_grad_(), key.requires_grad_()

    def attend(q: Tensor, k: Tensor) -> Tensor:
        return ours(q, k, k, attn_mask=torch.eye(3, 2).bool())[0]

    assert torch.autograd.gradcheck(attend, (query, key))
    assert torch.autograd.gradgradcheck(attend, (query, key))


def with_ours(layer: nn.Module) -> nn.Module:
    """A copy of a transformer whose every attention is ours."""
    other = copy.deepcopy(layer)
    for name, module in layer.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            other.set_submodule(name, from_torch(module))
    return other


@st.composite
def layer_calls(draw: st.DrawFn) -> tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]:
    """An encoder or decoder layer of PyTorch, of any kind, and what it is called with."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    is_encoder, heads = draw(st.booleans()), draw(st.sampled_from([1, 2, 3]))
    cls = nn.TransformerEncoderLayer if is_encoder else nn.TransformerDecoderLayer
    options = {name: draw(st.booleans()) for name in ("batch_first", "norm_first", "bias")}
    layer = shaken(cls(6, heads, 8, dropout=0.0, **options, dtype=torch.float64)).train(draw(st.booleans()))
    for module in layer.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.3
    args = [torch.randn(2, tokens, 6, dtype=torch.float64) for tokens in ((5,) if is_encoder else (5, 7))]
    future, padding = ~masks.causal(5), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    prefix, hint = ("src", "is_causal") if is_encoder else ("tgt", "tgt_is_causal")
    calls: list[dict[str, Any]] = [
        {},
        {f"{prefix}_mask": future, f"{prefix}_key_padding_mask": padding},
        {f"{prefix}_mask": torch.randn(5, 5, dtype=torch.float64)},
        {f"{prefix}_mask": future, hint: True},
    ]
    return layer, tuple(x if options["batch_first"] else x.transpose(0, 1) for x in args), draw(st.sampled_from(calls))


@given(call=layer_calls())
def test_it_serves_as_the_attention_of_layers_whether_pytorchs_fast_path_is_allowed_or_not(
    call: tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]],
) -> None:
    theirs, args, options = call
    results: list[list[Tensor]] = []  # PyTorch's own fast path would not agree: it is left out
    for module, allowed in ((theirs, False), (with_ours(theirs), True), (with_ours(theirs), False)):
        with fast_path(allowed):
            torch.manual_seed(4)
            inputs = [x.clone().requires_grad_() for x in args]
            output = module(*inputs, **options)
            gradients = torch.autograd.grad(output.square().sum(), [*inputs, *module.parameters()])
            with torch.no_grad():
                results.append([output, *gradients, module(*args, **options)])
    for found in results[1:]:
        torch.testing.assert_close(found, results[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
@pytest.mark.parametrize("mode", ["train", "eval", "eval without gradients"])
def test_a_query_that_sees_no_key_gets_the_output_bias_where_pytorch_gives_nan_at_times(
    mode: str, kind: torch.dtype, need_weights: bool
) -> None:
    theirs, ours = pair(12, 4, batch_first=True)
    x, mask = torch.randn(2, 5, 12), torch.zeros(5, 5).bool()
    mask[2] = True
    options = {
        "attn_mask": mask if kind is torch.bool else masks.additive_from_allowed(~mask),
        "need_weights": need_weights,
    }
    for module in (theirs, ours):
        module.train(mode == "train")
    with torch.set_grad_enabled("without" not in mode):
        expected, (output, weights) = theirs(x, x, x, **options)[0], ours(x, x, x, **options)
    torch.testing.assert_close(output[:, 2], ours.out_proj.bias.expand(2, 12))
    assert output.isfinite().all()
    assert weights is None or not weights[:, 2].any()
    is_nan = need_weights or ("without" in mode and kind is torch.bool)
    assert expected[:, 2].isnan().all() == is_nan
    if output.requires_grad:
        gradients = torch.autograd.grad(output.square().sum(), list(ours.parameters()))
        assert all(g.isfinite().all() for g in gradients)


def test_is_causal_masks_the_future_where_pytorch_takes_it_for_a_hint() -> None:
    theirs, ours = pair(12, 4, batch_first=True)
    x, future, nothing = torch.randn(2, 5, 12), ~masks.causal(5), torch.zeros(5, 5).bool()
    causal = theirs(x, x, x, attn_mask=future, need_weights=False)[0]
    plain = theirs(x, x, x, need_weights=False)[0]
    for need_weights in (True, False):
        for options in ({}, {"attn_mask": nothing}, {"attn_mask": future}):
            output, weights = ours(x, x, x, **options, is_causal=True, need_weights=need_weights)
            torch.testing.assert_close(output, causal)
            assert weights is None or not weights[:, future].any()
    with pytest.raises(RuntimeError, match="Need attn_mask if specifying the is_causal hint"):
        theirs(x, x, x, is_causal=True)
    over, ignored = (theirs(x, x, x, attn_mask=nothing, is_causal=True, need_weights=w)[0] for w in (False, True))
    torch.testing.assert_close(over, causal)
    torch.testing.assert_close(ignored, plain)
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(x, x, x, is_causal=True)[0], plain)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("appended", [{}, {"add_bias_kv": True, "add_zero_attn": True}], ids=["", "appended"])
def test_is_causal_is_aligned_at_the_end_of_the_given_keys(appended: dict[str, bool], need_weights: bool) -> None:
    theirs, ours = pair(12, 4, batch_first=True, **appended)
    query, key = torch.randn(2, 3, 12), torch.randn(2, 5, 12)
    padding = torch.tensor([[False] * 5, [True] + [False] * 4])
    actual = ours(query, key, key, key_padding_mask=padding, is_causal=True, need_weights=need_weights)
    blocked = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]).bool()
    expected = theirs(query, key, key, key_padding_mask=padding, attn_mask=blocked, need_weights=need_weights)
    torch.testing.assert_close(actual, expected)


def test_masks_of_different_types_combine_where_pytorch_warns() -> None:
    theirs, ours = pair(12, 4, batch_first=True)
    x, bias, padding = torch.randn(2, 5, 12), torch.randn(5, 5), torch.tensor([[False] * 5, [True] + [False] * 4])
    with pytest.warns(UserWarning, match="mismatched key_padding_mask and attn_mask is deprecated"):
        expected = theirs(x, x, x, attn_mask=bias, key_padding_mask=padding)
    torch.testing.assert_close(ours(x, x, x, attn_mask=bias, key_padding_mask=padding), expected)


@pytest.mark.parametrize(("queries", "keys", "batch"), [(0, 7, 2), (3, 0, 2), (3, 7, 0)])
@pytest.mark.parametrize("need_weights", [True, False])
def test_an_axis_may_be_empty(queries: int, keys: int, batch: int, need_weights: bool) -> None:
    ours = MultiheadAttention(12, 4, batch_first=True)
    query, key = torch.randn(batch, queries, 12), torch.randn(batch, keys, 12)
    output, weights = ours(query, key, key, need_weights=need_weights)
    assert output.shape == (batch, queries, 12)
    assert output.isfinite().all()
    assert weights is None or weights.shape == (batch, queries, keys)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


BATCHED, UNBATCHED = (zeros(2, 3, 12), zeros(2, 5, 7), zeros(2, 5, 9)), (zeros(3, 12), zeros(5, 7), zeros(5, 9))
QUERY, KEY, VALUE = BATCHED
IN_3D, IN_2D = "For batched (3-D) `query`, expected ", "For unbatched (2-D) `query`, expected "
EXPECTING = "was expecting embedding dimension of "
KINDS = "are supported, not torch.int64; use .bool()"


def shaped(text: str, *inputs: Tensor, **masks: Tensor) -> tuple[str, Sequence[Tensor], dict[str, Tensor]]:
    return text, inputs or BATCHED, masks


WRONG_SHAPES = [
    shaped("query should be unbatched 2D or batched 3D tensor but received 1-D query tensor", *[zeros(12)] * 3),
    shaped(IN_3D + "`key` and `value` to be 3-D but found 2-D and 3-D tensors respectively", QUERY, zeros(5, 7), VALUE),
    shaped(IN_2D + "`key` and `value` to be 2-D but found 2-D and 3-D tensors respectively", *UNBATCHED[:2], VALUE),
    shaped(EXPECTING + "12, but got 11 in `query`", zeros(2, 3, 11), KEY, VALUE),
    shaped(EXPECTING + "7, but got 12 in `key`", QUERY, zeros(2, 5, 12), VALUE),
    shaped(EXPECTING + "9, but got 12 in `value`", QUERY, KEY, zeros(2, 5, 12)),
    shaped("key shape (2, 5, 7) does not match value shape (2, 6, 9)", QUERY, KEY, zeros(2, 6, 9)),
    shaped(
        "query has batch size 2 but key 3; with batch_first=True the batch is axis 0",
        QUERY,
        zeros(3, 5, 7),
        zeros(3, 5, 9),
    ),
    shaped("only bool and floating types of key_padding_mask " + KINDS, key_padding_mask=zeros(2, 5).long()),
    shaped("only bool and floating types of attn_mask " + KINDS, attn_mask=zeros(3, 5).long()),
    shaped(IN_3D + "`key_padding_mask` to be `None` or 2-D but found 1-D tensor instead", key_padding_mask=zeros(5)),
    shaped(
        IN_2D + "`key_padding_mask` to be `None` or 1-D but found 2-D tensor instead",
        *UNBATCHED,
        key_padding_mask=zeros(2, 5),
    ),
    shaped("Expected `key_padding_mask` shape to be (2, 5) but got (2, 3)", key_padding_mask=zeros(2, 3)),
    shaped("Expected `key_padding_mask` shape to be (5,) but got (3,)", *UNBATCHED, key_padding_mask=zeros(3)),
    shaped(IN_3D + "`attn_mask` to be `None`, 2-D or 3-D but found 1-D tensor instead", attn_mask=zeros(5)),
    shaped(IN_2D + "`attn_mask` to be `None`, 2-D or 3-D but found 1-D tensor instead", *UNBATCHED, attn_mask=zeros(5)),
    shaped("Expected `attn_mask` shape to be (4, 3, 5) but got (2, 3, 5)", *UNBATCHED, attn_mask=zeros(2, 3, 5)),
    shaped("The shape of the 2D attn_mask is torch.Size([5, 3]), but should be (3, 5).", attn_mask=zeros(5, 3)),
    shaped(
        "The shape of the 2D attn_mask is torch.Size([5, 3]), but should be (3, 5).", *UNBATCHED, attn_mask=zeros(5, 3)
    ),
    shaped(
        "The shape of the 3D attn_mask is torch.Size([2, 3, 5]), but should be (8, 3, 5).", attn_mask=zeros(2, 3, 5)
    ),
]


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize(("text", "inputs", "masks"), WRONG_SHAPES)
def test_wrong_shapes_are_refused_with_pytorchs_exception_and_first_words(
    text: str, inputs: Sequence[Tensor], masks: dict[str, Tensor]
) -> None:
    theirs, ours = pair(12, 4, kdim=7, vdim=9, batch_first=True)
    with pytest.raises((AssertionError, RuntimeError)) as caught:
        ours(*inputs, **masks)
    assert str(caught.value) == text
    with pytest.raises((AssertionError, RuntimeError)) as refused:
        theirs(*inputs, **masks)
    pytorch_names_it = not text.startswith(("query has batch size", EXPECTING + "7", EXPECTING + "9"))
    if pytorch_names_it:  # else it lets a product or a view fail
        assert refused.type is caught.type
        assert str(refused.value)[:3] == text[:3]


def made(**options: Any) -> Callable[[], object]:
    return lambda: MultiheadAttention(**{"embed_dim": 12, "num_heads": 3} | options)


def called(**wrong: Any) -> Callable[[], object]:
    return lambda: MultiheadAttention(12, 3, batch_first=True)(**dict.fromkeys(("query", "key", "value"), X) | wrong)


X = torch.zeros(2, 5, 12)
ELSEWHERE = 'is on meta and the layer on cpu; call {0}.to("cpu")'
test_what_pytorch_takes_in_silence_or_refuses_in_other_words_is_refused_by_name = refused(
    {
        TypeError: {
            **{
                f"{name} is 'no', a str; it must be True or False": made(**{name: "no"})
                for name in ("bias", "add_bias_kv", "add_zero_attn", "batch_first")
            },
            **{
                f"{name} is 'no', a str; it must be True or False": called(**{name: "no"})
                for name in ("need_weights", "average_attn_weights", "is_causal")
            },
            "need_weights is 2, a int; it must be True or False": called(need_weights=2),
            "embed_dim is 8.0, a float; it must be an integer": made(embed_dim=8.0),
            "num_heads is 2.0, a float; it must be an integer": made(num_heads=2.0),
            "num_heads is None; it must be an integer": made(num_heads=None),
            "dropout is '0.1', a str; it must be a probability in [0, 1]": made(dropout="0.1"),
            "dtype is torch.int32; it must be floating, such as torch.float32": made(dtype=torch.int32),
            "query is of the type list; pass torch.tensor(query)": called(query=[[0.0]]),
            "query is None; pass a tensor": called(query=None),
            "value is None; pass a tensor": called(value=None),
            "attn_mask is 'causal', a str; pass a tensor": called(attn_mask="causal"),
            "key is sparse, torch.sparse_coo; call key.to_dense()": called(key=X.to_sparse()),
            "key is torch.float64 and the layer torch.float32; call key.to(torch.float32)": called(key=X.double()),
        },
        ValueError: {
            "kdim is 0; it must be 1 or more": made(kdim=0),
            "vdim is -3; it must be 1 or more": made(vdim=-3),
            "embed_dim is 0; it must be 1 or more": made(embed_dim=0),
            **{f"dropout is {p}; it must be a probability in [0, 1]": made(dropout=p) for p in (torch.nan, -0.1, 1.5)},
            **{
                f"{name} {ELSEWHERE.format(name)}": called(**{name: X.to("meta")}) for name in ("query", "key", "value")
            },
            f"attn_mask {ELSEWHERE.format('attn_mask')}": called(attn_mask=torch.zeros(5, 5, device="meta")),
            f"key_padding_mask {ELSEWHERE.format('key_padding_mask')}": called(
                key_padding_mask=torch.zeros(2, 5, device="meta").bool()
            ),
        },
    }
)


@pytest.mark.usefixtures("unhooked")
def test_a_flag_may_be_a_number_of_one_bit_as_pytorchs_users_write_it() -> None:
    layer = MultiheadAttention(12, 3, bias=0, batch_first=1)  # type: ignore[arg-type]
    assert layer.in_proj_bias is None
    output, weights = layer(X, X, X, need_weights=0, is_causal=1)
    assert (output.shape, weights) == (X.shape, None)
    assert layer(X, X, X, average_attn_weights=0)[1].shape == (2, 3, 5, 5)


nested_is_a_prototype = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")


def nested(*lengths: int, features: int = 12, layout: torch.layout = torch.jagged) -> Tensor:
    sequences = [torch.randn(n, features) for n in lengths]
    return torch.nested.nested_tensor(sequences, layout=layout, requires_grad=True)


@nested_is_a_prototype
@pytest.mark.usefixtures("unhooked")  # jaxtyping cannot read a nested tensor's shape
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("appended", [{}, {"add_bias_kv": True}, {"add_bias_kv": True, "add_zero_attn": True}], ids=str)
@pytest.mark.parametrize("kind", ["self", "key is value", "all three"])
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
def test_the_sequences_of_nested_tensors_attend_as_they_do_alone(
    layout: torch.layout, kind: str, appended: dict[str, bool], is_causal: bool
) -> None:
    widths = {"kdim": 7, "vdim": 5} if kind == "all three" else {}
    _, ours = pair(12, 3, batch_first=True, **appended, **widths)
    query = nested(4, 6, 1, layout=layout)
    key = query if kind == "self" else nested(7, 2, 3, features=ours.kdim, layout=layout)
    value = nested(7, 2, 3, features=ours.vdim, layout=layout) if kind == "all three" else key
    leaves = list({id(x): x for x in (query, key, value)}.values())
    for need_weights in (True, False):
        output, weights = ours(query, key, value, is_causal=is_causal, need_weights=need_weights)
        assert output.layout == layout
        alone = [
            ours(*item, is_causal=is_causal, need_weights=need_weights)
            for item in zip(*(x.unbind() for x in (query, key, value)), strict=True)
        ]
        for found, (expected, _) in zip(output.unbind(), alone, strict=True):
            torch.testing.assert_close(found, expected)
        gradients = [
            torch.autograd.grad(sum(y.square().sum() for y in ys), leaves, retain_graph=True)
            for ys in (output.unbind(), [expected for expected, _ in alone])
        ]
        for found, expected in zip(*gradients, strict=True):
            for a, b in zip(found.unbind(), expected.unbind(), strict=True):
                torch.testing.assert_close(a, b)
        assert (weights is None) == (not need_weights)
        for i, (_, expected) in enumerate(alone if need_weights else []):
            queries, keys = expected.size(0), expected.size(1) - len(appended)
            kept = torch.cat([weights[i, :queries, :keys], weights[i, :queries, weights.size(2) - len(appended) :]], -1)
            torch.testing.assert_close(kept, expected)
            torch.testing.assert_close(weights[i].sum(), expected.sum())  # and nothing elsewhere


@nested_is_a_prototype
@pytest.mark.usefixtures("unhooked")
def test_a_jagged_output_can_be_added_to_its_query_and_gaps_are_skipped() -> None:
    _, ours = pair(12, 3, batch_first=True)
    x = nested(4, 0, 6)
    assert (x + ours(x, x, x)[0]).offsets().tolist() == [0, 4, 4, 10]
    with torch.inference_mode():
        assert (x + ours(x, x, x)[0]).offsets().tolist() == [0, 4, 4, 10]
    padded, starts, lengths = torch.randn(2, 8, 12), torch.tensor([1, 2]), torch.tensor([4, 5])
    gaps = torch.nested.narrow(padded, 1, starts, lengths, layout=torch.jagged)
    output = ours(gaps, gaps, gaps, average_attn_weights=False)[0]
    for found, sequence in zip(output.unbind(), gaps.unbind(), strict=True):
        torch.testing.assert_close(found, ours(sequence, sequence, sequence)[0])


NO_NESTED = "MultiheadAttention does not support NestedTensor"
ELSE = "Else pad it with torch.nested.to_padded_tensor and pass a key_padding_mask"


def attending(batch_first: bool = True, **given: Any) -> Callable[[], object]:
    """A call with nested tensors, but for what is given; what is made of it first is given as a function."""

    def call() -> object:
        x = nested(4, 6)
        made = {name: value() if callable(value) else value for name, value in given.items()}
        return MultiheadAttention(12, 4, batch_first=batch_first)(**{"query": x, "key": x, "value": x} | made)

    return call


test_nested_tensors_that_cannot_attend_are_refused_with_the_way_out = nested_is_a_prototype(
    refused(
        {
            AssertionError: {
                f"{NO_NESTED} with attn_mask. {ELSE}": attending(attn_mask=zeros(6, 6).bool()),
                f"{NO_NESTED} with key_padding_mask. {ELSE}": attending(key_padding_mask=zeros(2, 6).bool()),
                f"{NO_NESTED} with batch_first=False: its batch is the first axis. {ELSE}": attending(False),
                f"{NO_NESTED} beside tensors that are not: nest query, key and value, each of three axes. {ELSE}": (
                    attending(key=zeros(2, 6, 12))
                ),
                "query should be unbatched 2D or batched 3D tensor but received...": attending(
                    query=lambda: torch.nested.nested_tensor([])
                ),
                EXPECTING + "12, but got 7 in `key`": attending(key=lambda: nested(4, 6, features=7)),
                "query has 1 sequences, key 2 and value 2; each sequence of queries needs one of keys and one of "
                "values": attending(query=lambda: nested(3)),
                "key has sequences of [4, 5] tokens and value of [4, 6]; every key needs one value": attending(
                    key=lambda: nested(4, 5)
                ),
            }
        }
    )
)


@pytest.mark.parametrize("grad", [True, False])
def test_an_encoder_layer_in_evaluation_goes_through_the_module_and_not_past_it(grad: bool) -> None:
    """PyTorch's layer has a fast path of its own, which gives NaN for rows that see nothing and forgets is_causal."""
    layer = nn.TransformerEncoderLayer(12, 2, 20, dropout=0.0, batch_first=True).eval()
    theirs, layer.self_attn = layer.self_attn, from_torch(layer.self_attn)
    x = torch.randn(3, 5, 12)
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    with torch.set_grad_enabled(grad):
        assert layer(x, src_key_padding_mask=torch.ones(3, 5, dtype=torch.bool)).isfinite().all()
        torch.testing.assert_close(layer(x, is_causal=True), layer(x, src_mask=future))
        ours = layer(x, src_mask=future)
        layer.self_attn = theirs
        torch.testing.assert_close(ours, layer(x, src_mask=future))


@pytest.mark.usefixtures("unhooked")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_an_encoder_made_of_our_layers_is_quiet_and_packs_padded_batches_as_pytorchs() -> None:
    layer = nn.TransformerEncoderLayer(12, 4, 20, dropout=0.0, batch_first=True).eval()
    x, padding = torch.randn(2, 5, 12), torch.tensor([[False] * 5, [False, False, False, True, True]])
    encoders = [
        nn.TransformerEncoder(one, 2).eval() for one in (layer, with_ours(layer))
    ]  # a warning would be an error
    assert all(encoder.use_nested_tensor for encoder in encoders)
    with torch.no_grad():
        results = [encoder(x, src_key_padding_mask=padding) for encoder in encoders]
    torch.testing.assert_close(*results, rtol=0, atol=2e-6)


@pytest.mark.parametrize("grad", [True, False])
def test_the_output_is_contiguous_with_batch_first_where_pytorchs_is_a_view_in_training(grad: bool) -> None:
    x, (theirs, ours) = torch.randn(3, 5, 12), pair(12, 2, batch_first=True)
    with torch.set_grad_enabled(grad):
        assert ours.train(grad)(x, x, x)[0].is_contiguous()
        assert theirs.train(grad)(x, x, x)[0].is_contiguous() == (not grad)
