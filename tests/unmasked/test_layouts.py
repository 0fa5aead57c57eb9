import importlib
import itertools
import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import CausalSelfAttention, MultiheadAttention
from unmasked.layouts import convert, from_torch, layout_of, load, options_of
from unmasked.positions import Rotary, convert_pairing

from ..refusals import refused
from .helpers import shaken
from .of_transformers import tiny

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
    learned = {name: x.requires_grad_() for name, x in packed(bias, output).items()}
    original = convert(learned, source="packed", target=source, num_heads=HEADS)
    there = convert(original, source=source, target=target, num_heads=HEADS)
    back = convert(there, source=target, target=source, num_heads=HEADS)
    assert layout_of(there) == target
    assert back.keys() == original.keys()
    assert all(torch.equal(back[name], original[name]) for name in original)
    assert all(x.is_contiguous() and not x.requires_grad for x in there.values())
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


def test_one_name_of_a_layout_is_not_enough() -> None:
    assert layout_of({"W_query.weight": torch.zeros(1)}) is None


W = torch.zeros
SEPARATE = {f"W_{name}.weight": W(6, 6) for name in ("query", "key", "value")}


CHOICES = "choose one of packed, qkv, separate, interleaved, stacked, conv1d"
PACKED, CONV1D = "in_proj_weight of layout 'packed' has shape", "c_attn.weight of layout 'conv1d' has shape"
SHARED = "key heads that queries share (GQA) must be repeated first"
STACKED = "query of layout 'stacked' has shape"


def converting(
    state: dict[str, Tensor], source: Any = "packed", target: Any = "stacked", num_heads: int = HEADS
) -> Any:
    return partial(convert, state, source=source, target=target, num_heads=num_heads)


test_a_wrong_layout_is_refused_with_the_one_it_looks_like = refused(
    {
        ValueError: {
            f"source is 'fused'; {CHOICES}": converting({}, source="fused", target="packed"),
            f"target is 'jax'; {CHOICES}": converting({}, target="jax"),
            "state of layout 'packed' lacks 'in_proj_weight'": converting({}),
            "state of layout 'packed' lacks 'in_proj_weight'; it looks like layout 'conv1d'": converting(
                {"c_attn.weight": W(6, 18)}
            ),
            "state of layout 'interleaved' lacks 'qkv_layer.weight'; it looks like layout 'separate'": converting(
                SEPARATE, source="interleaved", target="packed"
            ),
            "state of layout 'packed' holds 'norm.weight', which is not one of its names": converting(
                {"in_proj_weight": W(18, 6), "norm.weight": W(6)}
            ),
            f"{PACKED} (6, 18); it looks like layout 'conv1d', transposed": converting({"in_proj_weight": W(6, 18)}),
            f"{CONV1D} (18, 6); it looks like layout 'packed', transposed": converting(
                {"c_attn.weight": W(18, 6)}, source="conv1d", target="packed"
            ),
            f"{STACKED} (6, 6), not 3 axes; it looks like layout 'separate'": converting(
                {"query": W(6, 6), "key": W(6, 6), "value": W(6, 6)}, source="stacked", target="packed"
            ),
            f"{PACKED} (3, 6, 6), not 2 axes; it looks like layout 'stacked'": converting(
                {"in_proj_weight": W(3, 6, 6)}
            ),
            f"{PACKED} (18,), not 2 axes": converting({"in_proj_weight": W(18)}),
            f"{STACKED} (2, 6, 3); its first axis must be num_heads (3)": converting(
                dict.fromkeys(("query", "key", "value"), W(2, 6, 3)), source="stacked", target="packed"
            ),
            f"{PACKED} (12, 6); its 12 outputs must be a multiple of 9 (3 heads); {SHARED}": converting(
                {"in_proj_weight": W(12, 6)}
            ),
            "in_proj_bias has shape (6,); beside a weight of shape (18, 6) it must be (18,)": converting(
                {"in_proj_weight": W(18, 6), "in_proj_bias": W(6)}
            ),
            "in_proj_bias has shape (6,); beside a weight of shape (27, 9) it must be (27,)": converting(
                {"in_proj_weight": W(27, 9), "in_proj_bias": W(6)}
            ),
            f"{PACKED} (9, 27); it looks like layout 'conv1d', transposed": converting(
                {"in_proj_weight": W(9, 27), "in_proj_bias": W(27)}
            ),
            f"qkv.weight of layout 'qkv' has shape (10, 5); its 10 outputs must be a multiple of 9 (3 heads); "
            f"{SHARED}": converting(
                CausalSelfAttention(5, 6, 3, num_kv_heads=1).state_dict(), source="qkv", target="packed"
            ),
            f"out_proj.weight has shape (27, 27); it must have two axes and read the 15 features that 3 heads give; "
            f"{SHARED}": converting(
                CausalSelfAttention(5, 27, 3, num_kv_heads=1).state_dict(), source="qkv", target="packed"
            ),
            f"out_proj.weight has shape (5, 7); it must have two axes and read the 6 features that 3 heads give; "
            f"{SHARED}": converting({"in_proj_weight": W(18, 6), "out_proj.weight": W(5, 7)}),
            f"output.weight has shape (6,); it must have two axes and read the 6 features that 3 heads give; "
            f"{SHARED}": converting(
                dict.fromkeys(("query", "key", "value"), W(3, 5, 2)) | {"output.weight": W(6)},
                source="stacked",
                target="packed",
            ),
            f"c_proj.weight has shape (4, 6); it must have two axes and read the 6 features that 3 heads give; "
            f"{SHARED}": converting(
                {"c_attn.weight": W(5, 18), "c_proj.weight": W(4, 6)}, source="conv1d", target="packed"
            ),
            "c_proj.bias has shape (6,); beside a weight of shape (6, 4) it must be (4,)": converting(
                {"c_attn.weight": W(5, 18), "c_proj.weight": W(6, 4), "c_proj.bias": W(6)},
                source="conv1d",
                target="packed",
            ),
            "state of layout 'packed' lacks 'in_proj_weight'; a module with kdim or vdim keeps q_proj_weight, "
            "k_proj_weight and v_proj_weight: they are layout 'separate' by other names, and in_proj_bias.chunk(3) "
            "its biases": converting(nn.MultiheadAttention(6, 3, kdim=5).state_dict(), target="qkv"),
            "state of layout 'packed' holds 'bias_k', which is not one of its names; no layout holds the key and "
            "value that add_bias_kv "
            "appends": converting(nn.MultiheadAttention(6, 3, add_bias_kv=True).state_dict(), target="qkv"),
            "state of layout 'packed' lacks 'in_proj_weight'; pass the tensors of one layer, by their names without "
            "'self_attn.'": converting(nn.TransformerEncoderLayer(6, 3).state_dict(), target="qkv"),
            "state of layout 'packed' lacks 'in_proj_weight'; pass the tensors of one layer, by their names without "
            "'h.0.attn.'": converting({"wte": W(7, 6), "h.0.attn.c_attn.weight": W(6, 18)}, target="qkv"),
            "state holds 'W_key.bias' but not all of W_query.bias, W_key.bias, W_value.bias; pass all of them or "
            "none": converting(SEPARATE | {"W_key.bias": W(6)}, source="separate", target="packed"),
            f"W_query.weight has 6 outputs and W_key.weight 3; a query is compared with keys of its own size; "
            f"{SHARED}": converting(SEPARATE | {"W_key.weight": W(3, 6), "W_value.weight": W(3, 6)}, source="separate"),
            "layout 'packed' keeps query, key and value in one tensor; theirs differ: (6, 6), (6, 5), (6, "
            "6)": converting(SEPARATE | {"W_key.weight": W(6, 5)}, source="separate", target="packed"),
            "num_heads is 0; it must be 1 or more": converting(packed(), num_heads=0),
        }
    }
)


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
def test_a_module_is_copied_with_options_weights_mode_and_frozen_parameters(options: dict[str, Any]) -> None:
    theirs = shaken(nn.MultiheadAttention(DIM, HEADS, **options).eval())
    theirs.out_proj.weight.requires_grad_(False)
    generator = torch.get_rng_state()
    ours = from_torch(theirs)
    assert torch.equal(torch.get_rng_state(), generator)
    assert type(ours) is MultiheadAttention
    assert (ours.training, ours.dropout) == (False, 0.2)
    assert [p.requires_grad for p in ours.parameters()] == [p.requires_grad for p in theirs.parameters()]
    assert not {p.data_ptr() for p in ours.parameters()} & {p.data_ptr() for p in theirs.parameters()}
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    inputs = [torch.randn(5, 2, dim, dtype=options["dtype"]) for dim in (DIM, ours.kdim, ours.vdim)]
    torch.testing.assert_close(ours(*inputs), theirs(*inputs))
    assert from_torch(theirs.train()).training


@pytest.mark.parametrize("bias", [True, False])
def test_the_state_of_pytorchs_module_makes_a_causal_layer(bias: bool) -> None:
    theirs, x = shaken(nn.MultiheadAttention(DIM, HEADS, bias=bias, batch_first=True)), torch.randn(2, 5, DIM)
    ours = CausalSelfAttention(DIM, DIM, HEADS, qkv_bias=bias, out_bias=bias)
    ours.load_state_dict(convert(theirs.state_dict(), source="packed", target="qkv", num_heads=HEADS))
    torch.testing.assert_close(theirs(x, x, x, attn_mask=torch.ones(5, 5).triu(1).bool())[0], ours(x))


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


def parametrized() -> nn.MultiheadAttention:
    module = nn.MultiheadAttention(6, 3)
    nn.utils.parametrizations.weight_norm(module.out_proj)
    return module


UNDO = "undo what changed module's parameters (a parametrization, pruning, a bias set to None, another shape)"
test_what_cannot_be_copied_is_refused_with_the_reason = refused(
    {
        TypeError: {
            "module is a Linear; from_torch takes a torch.nn.MultiheadAttention": lambda: from_torch(nn.Linear(2, 2)),
        },
        ValueError: {
            f"module and a new MultiheadAttention differ in out_proj.bias; {UNDO}": lambda: from_torch(
                without_output_bias()
            ),
            "module and a new MultiheadAttention differ in out_proj.parametrizations.weight.original0, "
            f"out_proj.parametrizations.weight.original1, out_proj.weight; {UNDO}": lambda: from_torch(parametrized()),
        },
    }
)


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2": ("gpt2", {"add_cross_attention": True}),
    "GPTNeoX": ("gpt_neox", {"rotary_pct": 0.5}),
    "Llama": ("llama", {"num_key_value_heads": 2, "head_dim": 4}),
    "Qwen2": ("llama", {"num_key_value_heads": 6, "head_dim": 4}),
    "Bert": ("bert", {}),
}


@pytest.fixture(scope="module")
def theirs() -> dict[str, nn.Module]:
    """Models whose biases are not zero, as those of a checkpoint are not."""
    return {name: shaken(tiny(f"{name}Model", **options)) for name, (_, options) in MODELS.items()}


def asked(model: nn.Module, name: str) -> tuple[Tensor, Tensor]:
    """The input and the output of a module when its model runs."""
    passed: list[Tensor] = []

    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        passed.extend([args[0] if args else kwargs["hidden_states"], output[0]])

    handle = model.get_submodule(name).register_forward_hook(hook, with_kwargs=True)
    with torch.no_grad():
        model(torch.arange(14).reshape(2, 7) * 3 % 50)
    handle.remove()
    return passed[0], passed[1]


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_of_a_checkpoint_computes_what_the_model_does(name: str, theirs: dict[str, nn.Module]) -> None:
    family, model = MODELS[name][0], theirs[name]
    attention = {"GPT2": "h.1.attn", "Bert": "encoder.layer.1.attention.self", "GPTNeoX": "layers.1.attention"}
    x, expected = asked(model, attention.get(name, "layers.1.self_attn"))
    num_kv_heads = model.config.num_key_value_heads if family == "llama" else 6
    checkpoint = {f"model.{key}": tensor for key, tensor in model.state_dict().items()}
    layer = "model.h.1.attn" if name == "GPT2" else 1
    loaded = load(checkpoint, family, num_heads=6, num_kv_heads=num_kv_heads, layer=layer, config=model.config)
    turned = {"gpt_neox": Rotary(4, rotary_dim=2), "llama": Rotary(4, pairing="halves")}.get(family)
    if family == "bert":
        made: nn.Module = MultiheadAttention(24, 6, batch_first=True)
        made.load_state_dict(loaded)
        dense = model.encoder.layer[1].attention.output.dense  # their module ends before it
        torch.testing.assert_close(made(x, x, x)[0], dense(expected), rtol=0, atol=1e-5)
        return
    biases = {"qkv_bias": "qkv.bias" in loaded, "out_bias": "out_proj.bias" in loaded}
    made = CausalSelfAttention(24, 24, 6, num_kv_heads=num_kv_heads, rotary=turned, **biases)
    made.load_state_dict(loaded)
    torch.testing.assert_close(made(x), expected, rtol=0, atol=1e-5)
    assert not {t.untyped_storage().data_ptr() for t in loaded.values()} & {
        t.untyped_storage().data_ptr() for t in checkpoint.values()
    }
    assert not any(t.requires_grad for t in loaded.values())


def test_the_other_pairing_raises_nothing_and_is_off_unless_the_rows_are_put_in_order(
    theirs: dict[str, nn.Module],
) -> None:
    x, expected = asked(theirs["Llama"], "layers.0.self_attn")
    loaded = load(theirs["Llama"].state_dict(), "llama", num_heads=6, num_kv_heads=2, layer=0, config=SHARED_BY_THREE)
    made = CausalSelfAttention(24, 24, 6, num_kv_heads=2, out_bias=False, rotary=Rotary(4, pairing="interleaved"))
    made.load_state_dict(loaded)
    assert (made(x) - expected).abs().max() > 0.1
    released = meta_names(theirs["Llama"].state_dict())
    made.load_state_dict(load(released, "llama_meta", num_heads=6, num_kv_heads=2, layer=0))
    torch.testing.assert_close(made(x), expected, rtol=0, atol=1e-5)


def meta_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Llama's first layer as Meta released it: other names, and neighbors are pairs."""
    released = {
        f"layers.0.attention.w{part}.weight": state[f"layers.0.self_attn.{part}_proj.weight"] for part in "qkvo"
    }
    for part in "qk":
        name = f"layers.0.attention.w{part}.weight"
        heads = released[name].size(0) // 4
        released[name] = convert_pairing(released[name], heads, to="interleaved")
    return released | {"rope.freqs": torch.ones(2)}


def llama(prefix: str = "", layers: int = 1, **sizes: int) -> dict[str, Tensor]:
    rows = {"q": 12, "k": 4, "v": 4, "o": 12} | sizes
    names = [(part, f"{prefix}{n}.self_attn." if prefix else "") for n in range(layers) for part in rows]
    return {f"{before}{part}_proj.weight": torch.randn(rows[part], 12) for part, before in names}


SHARED_BY_THREE = {"num_attention_heads": 6, "num_key_value_heads": 2}


def test_a_number_within_a_name_is_no_layers() -> None:
    state = {
        f"blocks.{n}.attn{m}.{part}_proj.weight": torch.randn(12, 12) for n in (1, 5) for m in (1, 2) for part in "qkvo"
    }
    first = {name: x for name, x in state.items() if "attn1" in name}
    options: Any = {"num_heads": 6, "config": {"num_attention_heads": 6}}
    loaded = load(first, "llama", layer=5, **options)
    assert torch.equal(loaded["qkv.weight"][:12], state["blocks.5.attn1.q_proj.weight"])
    text = "layer is 5, and state has 4 attention layers, from 'blocks.1.attn1.' to 'blocks.5.attn2.'; pass the number"
    with pytest.raises(ValueError, match=re.escape(text)):
        load(state, "llama", layer=5, **options)
    assert torch.equal(
        load(state, "llama", layer="blocks.5.attn2", **options)["qkv.weight"][:12],
        state["blocks.5.attn2.q_proj.weight"],
    )


SCALED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Granite": ({"attention_multiplier": 0.9}, {"scale": 0.9}),
    "Gemma2": (
        {"query_pre_attn_scalar": 4, "attn_logit_softcapping": 0.8, "sliding_window": 100},
        {"scale": 0.5, "softcap": 0.8},
    ),
    "Qwen2": ({}, {}),
    "Mistral": ({"sliding_window": None}, {}),
    "GptOss": ({"num_local_experts": 2, "num_experts_per_tok": 1, "attention_bias": True}, {}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCALED)
def test_a_layer_with_the_options_of_its_config_computes_what_the_model_does(name: str) -> None:
    in_config, expected_options = SCALED[name]
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    more = {"num_key_value_heads": 2, "head_dim": 4, "attn_implementation": "eager", "rope_parameters": rope}
    model = shaken(tiny(f"{name}Model", **in_config | more))
    assert options_of(model.config, layer=1) == {"num_heads": 6, "num_kv_heads": 2} | expected_options
    assert options_of(model.config.to_dict(), layer=1) == options_of(model.config, layer=1)
    x, expected = asked(model, "layers.1.self_attn")
    loaded = load(model.state_dict(), "llama", num_heads=6, num_kv_heads=2, layer=1, config=model.config)
    biases = {"qkv_bias": "qkv.bias" in loaded, "out_bias": "out_proj.bias" in loaded}
    layer = CausalSelfAttention(
        24, 24, rotary=Rotary(4), sinks="sinks" in loaded, **biases, **options_of(model.config, layer=1)
    )
    layer.load_state_dict(loaded)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-5)
    assert ("sinks" in loaded) is (name == "GptOss")


@pytest.mark.filterwarnings("ignore")
def test_gpt2_scales_by_its_layer_if_its_config_says_so() -> None:
    for option, value in (("scale_attn_by_inverse_layer_idx", True), ("scale_attn_weights", False)):
        model = shaken(tiny("GPT2Model", **{option: value}, attn_implementation="eager"))
        x, expected = asked(model, "h.1.attn")
        layer = CausalSelfAttention(24, 24, qkv_bias=True, **options_of(model.config, layer=1))
        layer.load_state_dict(load(model.state_dict(), "gpt2", num_heads=6, layer="h.1.attn", config=model.config))
        torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-5)


def test_what_weights_do_not_tell_is_warned_of_unless_there_is_a_config() -> None:
    with pytest.warns(
        UserWarning, match="^config is None, and weights by Llama's names do not tell by what scores are"
    ):
        load(llama(), "llama", num_heads=6, num_kv_heads=2)
    windows = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
    text = re.escape("config has sliding_window=5 for layer 0; pass a cache with window=5, or allowed=masks.sliding_wi")
    with pytest.warns(UserWarning, match=f"^{text}"):
        load(llama("layers.", 2), "llama", num_heads=6, num_kv_heads=2, layer=0, config=SHARED_BY_THREE | windows)
    load(llama("layers.", 2), "llama", num_heads=6, num_kv_heads=2, layer=1, config=SHARED_BY_THREE | windows)
    assert options_of(SHARED_BY_THREE | {"sliding_window": 5, "use_sliding_window": False})["num_kv_heads"] == 2


def test_a_layer_is_found_by_its_number_by_what_stands_before_it_or_because_it_is_alone() -> None:
    whole = llama("model.layers.", 12)
    options: Any = {"family": "llama", "num_heads": 6, "num_kv_heads": 2, "config": SHARED_BY_THREE}
    for layer, n in ((1, 1), (11, 11), ("model.layers.2.self_attn", 2), ("model.layers.2.self_attn.", 2)):
        one = {name[len(f"model.layers.{n}.self_attn.") :]: x for name, x in whole.items() if f".{n}." in name}
        expected = torch.cat([one[f"{part}_proj.weight"] for part in "qkv"])
        for loaded in (load(whole, layer=layer, **options), load(one, **options)):
            assert list(loaded) == ["qkv.weight", "out_proj.weight"]
            assert torch.equal(loaded["qkv.weight"], expected)
            assert torch.equal(loaded["out_proj.weight"], one["o_proj.weight"])


def test_what_stands_beside_the_weights_is_left_out_and_another_layout_can_be_asked_for() -> None:
    beside = {"h.0.attn.bias": W(1, 1, 5, 5), "h.0.attn.masked_bias": W(1), "h.0.ln_1.weight": W(6)}
    state = {"h.0.attn.c_attn.weight": torch.randn(6, 18), "h.0.attn.c_proj.weight": torch.randn(6, 6)}
    loaded = load(state | beside, "gpt2", num_heads=3, target="packed")
    assert torch.equal(loaded["in_proj_weight"], state["h.0.attn.c_attn.weight"].T)
    assert list(loaded) == ["in_proj_weight", "out_proj.weight"]
    turned = llama("layers.") | {"layers.0.self_attn.rotary_emb.inv_freq": W(2)}
    assert len(load(turned, "llama", num_heads=6, num_kv_heads=2, config=SHARED_BY_THREE)) == 2


GPT2_STATE = {
    f"h.{n}.attn.{name}": W(6, size) for n in range(2) for name, size in (("c_attn.weight", 18), ("c_proj.weight", 6))
}


def loading(state: dict[str, Tensor], **options: Any) -> Any:
    return partial(load, state, **{"family": "llama", "num_heads": 6, "num_kv_heads": 2} | options)


test_a_checkpoint_of_another_family_is_refused_with_the_one_it_looks_like = refused(
    {
        ValueError: {
            "family is 'gpt3'; choose one of gpt2, gpt_neox, llama, llama_meta, bert": loading({}, family="gpt3"),
            "no name in state ends with 'q_proj.weight', as those of family 'llama' do; they look like those of family "
            "'gpt2'": loading(GPT2_STATE),
            "no name in state ends with 'c_attn.weight', as those of family 'gpt2' do; they look like those of family "
            "'llama'": loading(llama(), family="gpt2"),
            "no name in state ends with 'q_proj.weight', as those of family 'llama' do; they look like those of family "
            "'llama_meta'": loading(meta_names(llama("layers."))),
            "no name in state ends with 'q_proj.weight', as those of family 'llama' do; they are those of layout "
            "'packed': call convert": loading(packed()),
            "no name in state ends with 'q_proj.weight', as those of family 'llama' do": loading({"W.weight": W(1)}),
            "layer is None, and state has 2 attention layers, from 'h.0.attn.' to 'h.1.attn.'; pass the number of "
            "one, or what stands before its names": loading(GPT2_STATE, family="gpt2"),
            "layer is 2, and state has 2 attention layers, from 'h.0.attn.' to 'h.1.attn.'; pass the number of one, or "
            "what stands before its names": loading(GPT2_STATE, family="gpt2", layer=2),
            "layer is 'h.0', and state has 2 attention layers, from 'h.0.attn.' to 'h.1.attn.'; pass the number of "
            "one, or what stands before its names": loading(GPT2_STATE, family="gpt2", layer="h.0"),
            "layer is 1, and state has one attention layer, 'layers.0.self_attn.'; pass the number of one, or "
            "what stands before its names": loading(llama("layers."), layer=1),
            "state holds 'layers.0.self_attn.q_norm.weight', which no layer of family 'llama' has, and for which ours "
            "has no place: without it the layer computes something else. The page on today's models has theirs as "
            "functions of state": loading(llama("layers.") | {"layers.0.self_attn.q_norm.weight": W(2)}),
            "state lacks 'o_proj.weight', which a layer of family 'llama' has": loading(
                {name: x for name, x in llama().items() if "o_proj" not in name}
            ),
            "k_proj.weight has 4 rows, 2 heads of 2 features, but num_kv_heads is 6": loading(
                llama(), num_kv_heads=None
            ),
            "v_proj.weight has 6 rows, 3 heads of 2 features, but num_kv_heads is 2": loading(llama(v=6)),
            "q_proj.weight of layout 'separate' has shape (12, 12); its 12 outputs must be a multiple of 8 (8 heads); "
            "correct num_heads": loading(llama(), num_heads=8),
            "num_heads (6) must be divisible by num_kv_heads (4); try 3 or 6": loading(llama(), num_kv_heads=4),
            "num_kv_heads is 2; in family 'gpt2' no heads share a key: leave it out": loading(
                GPT2_STATE, family="gpt2", layer=0
            ),
            f"target is 'packed', and {SHARED}; 'qkv', for CausalSelfAttention, keeps them shared": loading(
                llama(), target="packed"
            ),
            "state holds 'q_proj.bias' but not all of q_proj.bias, k_proj.bias, v_proj.bias; pass all of them or "
            "none": loading(llama() | {"q_proj.bias": W(12)}),
            "o_proj.weight has shape (12, 7); it must have two axes and read the 12 features that 6 heads give; "
            "correct num_heads": loading(llama() | {"o_proj.weight": W(12, 7)}),
            "layout 'qkv' keeps query, key and value in one tensor; theirs differ: (12, 12), (4, 7), (4, 12)": loading(
                llama() | {"k_proj.weight": W(4, 7)}
            ),
            "o_proj.bias has shape (3,); beside a weight of shape (12, 12) it must be (12,)": loading(
                llama() | {"o_proj.bias": W(3)}
            ),
            "sinks has shape (5,); it must be (6,), one for each head": loading(llama() | {"sinks": W(5)}),
            "num_kv_heads is 2, and config has 3; pass what it has": loading(
                llama(), config=SHARED_BY_THREE | {"num_key_value_heads": 3}
            ),
            "config has clip_qkv=8.0, which CausalSelfAttention does not do: use attend": loading(
                llama(), config=SHARED_BY_THREE | {"clip_qkv": 8.0}
            ),
            "config has no num_attention_heads; pass that of the text model: config.text_config": loading(
                llama(), config={}
            ),
            "c_attn.weight of layout 'conv1d' has shape (18, 6); it looks like layout 'packed', transposed": loading(
                {"c_attn.weight": W(18, 6), "c_proj.weight": W(6, 6)}, family="gpt2", num_kv_heads=None
            ),
        }
    }
)


@pytest.mark.parametrize("name", ["Cohere", "Glm4", "Gemma2"])
@pytest.mark.filterwarnings("ignore:config has sliding_window")
def test_models_with_the_names_of_llama_load_even_if_they_turn_or_cap_otherwise(name: str) -> None:
    model = tiny(f"{name}Model", num_key_value_heads=2, head_dim=4)
    options = {"num_heads": 6, "num_kv_heads": 2, "layer": 0, "config": model.config}
    assert "qkv.weight" in load(model.state_dict(), "llama", **options)
    code = importlib.import_module(type(model).__module__)
    neighbors = code.rotate_half(torch.arange(4.0)).tolist() == [-1, 0, -3, 2]
    assert (neighbors, getattr(model.config, "attn_logit_softcapping", None)) == (
        (False, 50) if name == "Gemma2" else (True, None)
    )
