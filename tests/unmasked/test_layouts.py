import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import CausalSelfAttention, MultiheadAttention
from unmasked.layouts import convert, from_torch, layout_of, to_torch

HEADS, HEAD_DIM, DIM, D_IN, D_OUT = 3, 2, 6, 5, 4  # DIM: all heads together
LAYOUTS = ["packed", "qkv", "separate", "interleaved", "stacked", "conv1d"]


def packed(bias: bool = True, output: bool = True, d_in: int = D_IN, d_out: int = D_OUT) -> dict[str, Tensor]:
    state = {"in_proj_weight": torch.randn(3 * DIM, d_in), "in_proj_bias": torch.randn(3 * DIM)}
    state |= {"out_proj.weight": torch.randn(d_out, DIM), "out_proj.bias": torch.randn(d_out)}
    return {k: v for k, v in state.items() if (bias or "bias" not in k) and (output or "out_proj" not in k)}


@pytest.mark.parametrize("output", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("source", "target"), list(itertools.product(LAYOUTS, LAYOUTS)))
def test_every_pair_of_layouts_round_trips_exactly_in_storage_of_its_own(
    source: Any, target: Any, bias: bool, output: bool
) -> None:
    original = convert(packed(bias, output), source="packed", target=source, num_heads=HEADS)
    there = convert(original, source=source, target=target, num_heads=HEADS)
    back = convert(there, source=target, target=source, num_heads=HEADS)
    assert layout_of(there) == target
    assert back.keys() == original.keys()
    assert all(torch.equal(back[name], original[name]) for name in original)
    assert all(x.is_contiguous() for x in there.values())
    assert not {x.untyped_storage().data_ptr() for x in there.values()} & {
        x.untyped_storage().data_ptr() for x in original.values()
    }
    assert sum(x.numel() for x in there.values()) == sum(x.numel() for x in original.values())


def linear(state: dict[str, Tensor], name: str) -> nn.Linear:
    weight = state[f"{name}.weight"]
    layer = nn.Linear(weight.size(1), weight.size(0))
    layer.load_state_dict({"weight": weight, "bias": state[f"{name}.bias"]})
    return layer


def as_its_owner_would(layout: str, state: dict[str, Tensor], x: Tensor, **options: bool) -> Tensor:
    """Attention of (batch, tokens, in) with the weights used the way the models that keep them so use them."""
    batch, tokens, _ = x.shape
    if layout == "stacked":
        q, k, v = (
            torch.einsum("bti,hid->bhtd", x, state[name]) + state[f"{name}_bias"][:, None]
            for name in ("query", "key", "value")
        )
    elif layout == "interleaved":
        rows = linear(state, "qkv_layer")(x).view(batch, tokens, HEADS, 3 * HEAD_DIM)
        q, k, v = rows.permute(0, 2, 1, 3).chunk(3, dim=-1)
    else:
        if layout == "conv1d":
            parts = (x @ state["c_attn.weight"] + state["c_attn.bias"]).split(DIM, dim=-1)
        elif layout == "separate":
            parts = tuple(linear(state, f"W_{name}")(x) for name in ("query", "key", "value"))
        elif layout == "qkv":
            parts = linear(state, "qkv")(x).split(DIM, dim=-1)
        else:
            parts = F.linear(x, state["in_proj_weight"], state["in_proj_bias"]).split(DIM, dim=-1)
        q, k, v = (part.view(batch, tokens, HEADS, HEAD_DIM).transpose(1, 2) for part in parts)
    context = F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).reshape(batch, tokens, DIM)
    if layout == "conv1d":
        return context @ state["c_proj.weight"] + state["c_proj.bias"]
    return linear(state, {"interleaved": "linear_layer", "stacked": "output"}.get(layout, "out_proj"))(context)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_computes_the_same_attention_in_its_owners_hands(layout: Any) -> None:
    state, x = packed(), torch.randn(2, 5, D_IN)
    converted = convert(state, source="packed", target=layout, num_heads=HEADS)
    expected = as_its_owner_would("packed", state, x)
    assert expected.shape == (2, 5, D_OUT)
    torch.testing.assert_close(as_its_owner_would(layout, converted, x), expected)


def test_the_packed_layout_is_pytorchs() -> None:
    state, x = packed(d_in=DIM, d_out=DIM), torch.randn(2, 5, DIM)
    module = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    module.load_state_dict(state)
    torch.testing.assert_close(as_its_owner_would("packed", state, x), module(x, x, x, need_weights=False)[0])


def test_gpt2s_weights_load_into_the_decoders_layer() -> None:
    state = convert(packed(d_out=DIM), source="packed", target="conv1d", num_heads=HEADS)
    layer, x = CausalSelfAttention(D_IN, DIM, HEADS, qkv_bias=True), torch.randn(2, 7, D_IN)
    layer.load_state_dict(convert(state, source="conv1d", target="qkv", num_heads=HEADS), strict=True)
    torch.testing.assert_close(layer(x), as_its_owner_would("conv1d", state, x, is_causal=True))


def test_rows_are_where_each_layout_keeps_them() -> None:
    weight = torch.arange(12.0)[:, None] + torch.tensor([0.0, 0.5])  # rows 0 to 3 query, 4 to 7 key, 8 to 11 value
    state = {"in_proj_weight": weight, "in_proj_bias": torch.arange(12.0)}
    interleaved = convert(state, source="packed", target="interleaved", num_heads=2)
    assert interleaved["qkv_layer.bias"].tolist() == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]
    assert torch.equal(interleaved["qkv_layer.weight"][:, 0], interleaved["qkv_layer.bias"])
    stacked = convert(state, source="packed", target="stacked", num_heads=2)
    assert stacked["key"].tolist() == [[[4, 5], [4.5, 5.5]], [[6, 7], [6.5, 7.5]]]
    assert stacked["value_bias"].tolist() == [[8, 9], [10, 11]]
    assert torch.equal(convert(state, source="packed", target="conv1d", num_heads=2)["c_attn.weight"], weight.T)
    separate = convert(state, source="packed", target="separate", num_heads=2)
    assert separate["W_value.weight"].tolist() == [[8, 8.5], [9, 9.5], [10, 10.5], [11, 11.5]]


def test_query_key_and_value_may_read_other_features_where_the_layout_can_hold_them() -> None:
    state = {f"W_{name}.weight": torch.randn(DIM, dim) for name, dim in (("query", 6), ("key", 5), ("value", 4))}
    stacked = convert(state, source="separate", target="stacked", num_heads=HEADS)
    assert stacked["key"].shape == (HEADS, 5, HEAD_DIM)
    back = convert(stacked, source="stacked", target="separate", num_heads=HEADS)
    assert all(torch.equal(back[name], state[name]) for name in state)
    for dim in (7, 9 * DIM):  # more input features than outputs, even as a transposed square matrix would have them
        wide = {"qkv.weight": torch.randn(3 * DIM, dim)}
        conv1d = convert(wide, source="qkv", target="conv1d", num_heads=HEADS)
        assert torch.equal(
            convert(conv1d, source="conv1d", target="qkv", num_heads=HEADS)["qkv.weight"], wide["qkv.weight"]
        )


def test_gradients_do_not_flow_into_a_conversion() -> None:
    state = {"in_proj_weight": torch.randn(3 * DIM, D_IN, requires_grad=True)}
    for layout in LAYOUTS:
        converted = convert(state, source="packed", target=layout, num_heads=HEADS)
        assert not any(x.requires_grad for x in converted.values())


def test_a_layout_is_known_by_its_names() -> None:
    for layout in LAYOUTS:
        assert layout_of(convert(packed(), source="packed", target=layout, num_heads=HEADS)) == layout
    assert layout_of({"W_query.weight": torch.zeros(1)}) is None


W = torch.zeros
SEPARATE = {f"W_{name}.weight": W(6, 6) for name in ("query", "key", "value")}


CHOICES = "choose one of packed, qkv, separate, interleaved, stacked, conv1d"
PACKED, CONV1D = "in_proj_weight of layout 'packed' has shape", "c_attn.weight of layout 'conv1d' has shape"
SHARED = "key heads that queries share (GQA) must be repeated first"
STACKED = "query of layout 'stacked' has shape"
REFUSED: dict[str, tuple[dict[str, Tensor], str, str]] = {
    f"source is 'fused'; {CHOICES}": ({}, "fused", "packed"),
    f"target is 'jax'; {CHOICES}": ({}, "packed", "jax"),
    "state of layout 'packed' lacks 'in_proj_weight'": ({}, "packed", "stacked"),
    "state of layout 'packed' lacks 'in_proj_weight'; it looks like layout 'conv1d'": (
        {"c_attn.weight": W(6, 18)},
        "packed",
        "stacked",
    ),
    "state of layout 'interleaved' lacks 'qkv_layer.weight'; it looks like layout 'separate'": (
        SEPARATE,
        "interleaved",
        "packed",
    ),
    "state of layout 'packed' holds 'norm.weight', which is not one of its names": (
        {"in_proj_weight": W(18, 6), "norm.weight": W(6)},
        "packed",
        "stacked",
    ),
    f"{PACKED} (6, 18); it looks like layout 'conv1d', transposed": ({"in_proj_weight": W(6, 18)}, "packed", "stacked"),
    f"{CONV1D} (18, 6); it looks like layout 'packed', transposed": ({"c_attn.weight": W(18, 6)}, "conv1d", "packed"),
    f"{STACKED} (6, 6), not 3 axes; it looks like layout 'separate'": (
        {"query": W(6, 6), "key": W(6, 6), "value": W(6, 6)},
        "stacked",
        "packed",
    ),
    f"{PACKED} (3, 6, 6), not 2 axes; it looks like layout 'stacked'": (
        {"in_proj_weight": W(3, 6, 6)},
        "packed",
        "stacked",
    ),
    f"{PACKED} (18,), not 2 axes": ({"in_proj_weight": W(18)}, "packed", "stacked"),
    f"{STACKED} (2, 6, 3); its first axis must be num_heads (3)": (
        dict.fromkeys(("query", "key", "value"), W(2, 6, 3)),
        "stacked",
        "packed",
    ),
    f"{PACKED} (12, 6); its 12 outputs must be a multiple of 9 (3 heads); {SHARED}": (
        {"in_proj_weight": W(12, 6)},
        "packed",
        "stacked",
    ),
    "in_proj_bias has shape (6,); beside a weight of shape (18, 6) it must be (18,)": (
        {"in_proj_weight": W(18, 6), "in_proj_bias": W(6)},
        "packed",
        "stacked",
    ),
    "in_proj_bias has shape (6,); beside a weight of shape (27, 9) it must be (27,)": (
        {"in_proj_weight": W(27, 9), "in_proj_bias": W(6)},
        "packed",
        "stacked",
    ),
    f"{PACKED} (9, 27); it looks like layout 'conv1d', transposed": (
        {"in_proj_weight": W(9, 27), "in_proj_bias": W(27)},
        "packed",
        "stacked",
    ),
    f"qkv.weight of layout 'qkv' has shape (10, 5); its 10 outputs must be a multiple of 9 (3 heads); {SHARED}": (
        CausalSelfAttention(5, 6, 3, num_kv_heads=1).state_dict(),
        "qkv",
        "packed",
    ),
    f"out_proj.weight has shape (27, 27); it must have two axes and read the 15 features that 3 heads give; {SHARED}": (
        CausalSelfAttention(5, 27, 3, num_kv_heads=1).state_dict(),
        "qkv",
        "packed",
    ),
    f"out_proj.weight has shape (5, 7); it must have two axes and read the 6 features that 3 heads give; {SHARED}": (
        {"in_proj_weight": W(18, 6), "out_proj.weight": W(5, 7)},
        "packed",
        "stacked",
    ),
    f"output.weight has shape (6,); it must have two axes and read the 6 features that 3 heads give; {SHARED}": (
        dict.fromkeys(("query", "key", "value"), W(3, 5, 2)) | {"output.weight": W(6)},
        "stacked",
        "packed",
    ),
    f"c_proj.weight has shape (4, 6); it must have two axes and read the 6 features that 3 heads give; {SHARED}": (
        {"c_attn.weight": W(5, 18), "c_proj.weight": W(4, 6)},
        "conv1d",
        "packed",
    ),
    "c_proj.bias has shape (6,); beside a weight of shape (6, 4) it must be (4,)": (
        {"c_attn.weight": W(5, 18), "c_proj.weight": W(6, 4), "c_proj.bias": W(6)},
        "conv1d",
        "packed",
    ),
    "state of layout 'packed' lacks 'in_proj_weight'; a module with kdim or vdim keeps q_proj_weight, k_proj_weight "
    "and v_proj_weight: they are layout 'separate' by other names, and in_proj_bias.chunk(3) its biases": (
        nn.MultiheadAttention(6, 3, kdim=5).state_dict(),
        "packed",
        "qkv",
    ),
    "state of layout 'packed' holds 'bias_k', which is not one of its names; no layout holds the key and value that "
    "add_bias_kv appends": (nn.MultiheadAttention(6, 3, add_bias_kv=True).state_dict(), "packed", "qkv"),
    "state of layout 'packed' lacks 'in_proj_weight'; pass the tensors of one layer, by their names without "
    "'self_attn.'": (nn.TransformerEncoderLayer(6, 3).state_dict(), "packed", "qkv"),
    "state of layout 'packed' lacks 'in_proj_weight'; pass the tensors of one layer, by their names without "
    "'h.0.attn.'": ({"wte": W(7, 6), "h.0.attn.c_attn.weight": W(6, 18)}, "packed", "qkv"),
    "state holds 'W_key.bias' but not all of W_query.bias, W_key.bias, W_value.bias; pass all of them or none": (
        SEPARATE | {"W_key.bias": W(6)},
        "separate",
        "packed",
    ),
    f"W_query.weight has 6 outputs and W_key.weight 3; a query is compared with keys of its own size; {SHARED}": (
        SEPARATE | {"W_key.weight": W(3, 6), "W_value.weight": W(3, 6)},
        "separate",
        "stacked",
    ),
    "layout 'packed' keeps query, key and value in one tensor; theirs differ: (6, 6), (6, 5), (6, 6)": (
        SEPARATE | {"W_key.weight": W(6, 5)},
        "separate",
        "packed",
    ),
}


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("text", REFUSED)
def test_a_wrong_layout_is_refused_with_the_one_it_looks_like(text: str) -> None:
    state, source, target = REFUSED[text]
    with pytest.raises(ValueError, match=re.escape(text) + "$"):
        convert(state, source=source, target=target, num_heads=HEADS)


def test_no_heads_are_refused() -> None:
    with pytest.raises(ValueError, match=r"num_heads is 0; it must be 1 or more$"):
        convert(packed(), source="packed", target="stacked", num_heads=0)


OPTIONS = [
    {
        "bias": bias,
        "add_bias_kv": kv,
        "add_zero_attn": zero,
        "batch_first": zero,
        **dims,
        "dtype": dtype,
        "dropout": 0.2,
    }
    for bias, kv, zero in itertools.product([True, False], repeat=3)
    for dims, dtype in (({}, torch.float64), ({"kdim": 5, "vdim": 4}, torch.float32))
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_module_crosses_over_and_back_with_options_weights_mode_and_frozen_parameters(
    options: dict[str, Any],
) -> None:
    theirs = nn.MultiheadAttention(DIM, HEADS, **options).eval()
    for parameter in theirs.parameters():
        nn.init.uniform_(parameter)
    theirs.out_proj.weight.requires_grad_(False)
    generator = torch.get_rng_state()
    ours = from_torch(theirs)
    again = to_torch(ours)
    assert torch.equal(torch.get_rng_state(), generator)
    assert (type(ours), type(again)) == (MultiheadAttention, nn.MultiheadAttention)
    inputs = [torch.randn(5, 2, dim, dtype=options["dtype"]) for dim in (DIM, ours.kdim, ours.vdim)]
    for module in (ours, again):
        assert (module.training, module.dropout) == (False, 0.2)
        assert {n: p.requires_grad for n, p in module.named_parameters()} == {
            n: p.requires_grad for n, p in theirs.named_parameters()
        }
        torch.testing.assert_close(module.state_dict(), theirs.state_dict(), rtol=0, atol=0)
        assert not {p.data_ptr() for p in module.parameters()} & {p.data_ptr() for p in theirs.parameters()}
        torch.testing.assert_close(module(*inputs), theirs(*inputs))
    assert ours.train().training
    assert from_torch(theirs.train()).training


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_causal_layer_crosses_over_to_pytorch_and_back(bias: bool, batch_first: bool) -> None:
    ours = CausalSelfAttention(DIM, DIM, HEADS, qkv_bias=bias, out_bias=bias, dropout=0.2, dtype=torch.float64).eval()
    for parameter in ours.parameters():
        nn.init.uniform_(parameter)
    ours.qkv.weight.requires_grad_(False)
    theirs = to_torch(ours)
    x = torch.randn(2, 5, DIM, dtype=torch.float64)
    future = torch.ones(5, 5).triu(1).bool()
    torch.testing.assert_close(theirs(x, x, x, attn_mask=future)[0], ours(x))
    assert theirs.batch_first
    theirs.batch_first = batch_first  # a causal layer's tensors have the batch first in any case
    generator = torch.get_rng_state()
    again = from_torch(theirs, CausalSelfAttention)
    assert torch.equal(torch.get_rng_state(), generator)
    torch.testing.assert_close(again.state_dict(), ours.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(again(x), ours(x))
    for module in (theirs, again):
        assert (module.training, module.dropout) == (False, 0.2)
        assert [p.requires_grad for p in module.parameters()] == [p.requires_grad for p in ours.parameters()]
        assert not {p.data_ptr() for p in module.parameters()} & {p.data_ptr() for p in ours.parameters()}


def test_tied_parameters_stay_tied_in_the_copy_alone() -> None:
    theirs = nn.MultiheadAttention(DIM, HEADS, kdim=DIM, vdim=5)
    theirs.k_proj_weight = theirs.q_proj_weight
    ours = from_torch(theirs)
    assert ours.k_proj_weight is ours.q_proj_weight
    assert ours.k_proj_weight is not theirs.k_proj_weight
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)


def without_output_bias() -> nn.MultiheadAttention:
    module = nn.MultiheadAttention(6, 3)
    module.out_proj.bias = None
    return module


def test_a_bias_that_only_the_output_lacks_reaches_the_class_that_can_lack_it() -> None:
    ours = from_torch(without_output_bias(), CausalSelfAttention)
    assert list(ours.state_dict()) == ["qkv.weight", "qkv.bias", "out_proj.weight"]


def parametrized() -> nn.MultiheadAttention:
    module = nn.MultiheadAttention(6, 3)
    nn.utils.parametrizations.weight_norm(module.out_proj)
    return module


UNDO = "undo what changed module's parameters (a parametrization, pruning, a bias set to None)"
KEPT = "copy it into MultiheadAttention"
NOT_COPIED: dict[str, tuple[type[Exception], Callable[[], object]]] = {
    "module is a Linear; from_torch takes a torch.nn.MultiheadAttention": (
        TypeError,
        lambda: from_torch(nn.Linear(2, 2)),
    ),
    "into is <class 'torch.nn.modules.linear.Linear'>; choose MultiheadAttention or CausalSelfAttention": (
        TypeError,
        lambda: from_torch(nn.MultiheadAttention(4, 2), nn.Linear),
    ),
    "module is a torch.nn.modules.activation.MultiheadAttention; to_torch takes this package's MultiheadAttention or "
    "CausalSelfAttention": (TypeError, lambda: to_torch(nn.MultiheadAttention(4, 2))),
    f"module was made with kdim or vdim; CausalSelfAttention reads query, key and value off one input: {KEPT}": (
        ValueError,
        lambda: from_torch(nn.MultiheadAttention(6, 3, vdim=5), CausalSelfAttention),
    ),
    f"module was made with add_bias_kv; CausalSelfAttention appends no key: {KEPT}": (
        ValueError,
        lambda: from_torch(nn.MultiheadAttention(6, 3, add_bias_kv=True), CausalSelfAttention),
    ),
    f"module was made with add_zero_attn; CausalSelfAttention appends no key: {KEPT}": (
        ValueError,
        lambda: from_torch(nn.MultiheadAttention(6, 3, add_zero_attn=True), CausalSelfAttention),
    ),
    f"module and a new MultiheadAttention differ in out_proj.bias; {UNDO}": (
        ValueError,
        lambda: from_torch(without_output_bias()),
    ),
    "module and a new MultiheadAttention differ in out_proj.parametrizations.weight.original0, "
    f"out_proj.parametrizations.weight.original1, out_proj.weight; {UNDO}": (
        ValueError,
        lambda: from_torch(parametrized()),
    ),
}


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("text", NOT_COPIED)
def test_what_cannot_be_copied_is_refused_with_the_reason(text: str) -> None:
    error, make = NOT_COPIED[text]
    with pytest.raises(error, match=re.escape(text) + "$"):
        make()


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (CausalSelfAttention(5, 6, 3), "d_in is 5 and d_out 6; in nn.MultiheadAttention they agree"),
        (
            CausalSelfAttention(6, 6, 3, num_kv_heads=1),
            "num_kv_heads is 1 and num_heads 3; in nn.MultiheadAttention they agree",
        ),
        (CausalSelfAttention(6, 6, 3), "nn.MultiheadAttention has all biases or none; qkv_bias and out_bias differ"),
    ],
)
def test_what_pytorch_cannot_hold_is_refused(module: CausalSelfAttention, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text) + "$"):
        to_torch(module)
