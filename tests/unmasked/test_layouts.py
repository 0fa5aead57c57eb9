import itertools
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import CausalSelfAttention, MultiheadAttention
from unmasked.layouts import convert, from_torch, layout_of, to_torch

HEADS, HEAD_DIM, DIM = 3, 2, 6
LAYOUTS = ["packed", "separate", "interleaved", "stacked", "conv1d"]


def packed(bias: bool = True, output: bool = True) -> dict[str, Tensor]:
    state = {"in_proj_weight": torch.randn(3 * DIM, DIM), "in_proj_bias": torch.randn(3 * DIM)}
    state |= {"out_proj.weight": torch.randn(DIM, DIM), "out_proj.bias": torch.randn(DIM)}
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


def as_its_owner_would(layout: str, state: dict[str, Tensor], x: Tensor) -> Tensor:
    """Attention of (batch, tokens, DIM) with the weights used the way the models that keep them so use them."""
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
        else:
            parts = tuple(linear(state, f"W_{name}")(x) for name in ("query", "key", "value"))
        q, k, v = (part.view(batch, tokens, HEADS, HEAD_DIM).transpose(1, 2) for part in parts)
    context = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, DIM)
    if layout == "conv1d":
        return context @ state["c_proj.weight"] + state["c_proj.bias"]
    return linear(state, {"interleaved": "linear_layer", "stacked": "output"}.get(layout, "out_proj"))(context)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "packed"])
def test_every_layout_computes_the_same_attention_in_its_owners_hands(layout: Any) -> None:
    state, x = packed(), torch.randn(2, 5, DIM)
    module = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    module.load_state_dict(state)
    converted = convert(state, source="packed", target=layout, num_heads=HEADS)
    torch.testing.assert_close(as_its_owner_would(layout, converted, x), module(x, x, x, need_weights=False)[0])


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
    narrow = {"in_proj_weight": torch.randn(3 * DIM, 7)}  # fewer or more input features than outputs
    assert convert(narrow, source="packed", target="conv1d", num_heads=HEADS)["c_attn.weight"].shape == (7, 3 * DIM)


def test_gradients_do_not_flow_into_a_conversion() -> None:
    state = {"in_proj_weight": torch.randn(3 * DIM, DIM, requires_grad=True)}
    for layout in LAYOUTS:
        converted = convert(state, source="packed", target=layout, num_heads=HEADS)
        assert not any(x.requires_grad for x in converted.values())


def test_a_layout_is_known_by_its_names() -> None:
    for layout in LAYOUTS:
        assert layout_of(convert(packed(), source="packed", target=layout, num_heads=HEADS)) == layout
    assert layout_of({"W_query.weight": torch.zeros(1)}) is None


W = torch.zeros
SEPARATE = {f"W_{name}.weight": W(6, 6) for name in ("query", "key", "value")}


CHOICES = "choose one of packed, separate, interleaved, stacked, conv1d"
PACKED, CONV1D = "in_proj_weight of layout 'packed' has shape", "c_attn.weight of layout 'conv1d' has shape"
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
    f"{PACKED} (12, 6); its 12 outputs must be a multiple of 9 (3 heads)": (
        {"in_proj_weight": W(12, 6)},
        "packed",
        "stacked",
    ),
    "in_proj_bias has shape (6,); beside a weight of shape (18, 6) it must be (18,)": (
        {"in_proj_weight": W(18, 6), "in_proj_bias": W(6)},
        "packed",
        "stacked",
    ),
    "state holds 'W_key.bias' but not all of W_query.bias, W_key.bias, W_value.bias; pass all of them or none": (
        SEPARATE | {"W_key.bias": W(6)},
        "separate",
        "packed",
    ),
    "W_query.weight has 6 outputs and W_key.weight 3; a query is compared with keys of its own size, and shared key "
    "heads must be repeated first": (
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
        convert(state, source=source, target=target, num_heads=HEADS)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("bias", [True, False])
def test_a_causal_layer_crosses_over_to_pytorch(bias: bool) -> None:
    ours = CausalSelfAttention(DIM, DIM, HEADS, qkv_bias=bias, out_bias=bias, dropout=0.2, dtype=torch.float64).eval()
    ours.qkv.weight.requires_grad_(False)
    theirs = to_torch(ours)
    assert (theirs.training, theirs.dropout, theirs.batch_first) == (False, 0.2, True)
    assert [p.requires_grad for p in theirs.parameters()] == [p.requires_grad for p in ours.parameters()]
    x = torch.randn(2, 5, DIM, dtype=torch.float64)
    future = torch.ones(5, 5).triu(1).bool()
    torch.testing.assert_close(theirs(x, x, x, attn_mask=future)[0], ours(x))


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
