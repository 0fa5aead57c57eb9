from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from unmasked import CausalSelfAttention, MultiheadAttention, masks
from unmasked.positions import Rotary

from ..refusals import refused
from .helpers import shaken
from .of_transformers import tiny

ALL = {"scale": 0.3, "softcap": 0.4, "sinks": True}
MODELS: dict[str, dict[str, Any]] = {
    "Gemma2": {"query_pre_attn_scalar": 2, "attn_logit_softcapping": 0.8},
    "Granite": {"attention_multiplier": 0.9},
    "GptOss": {"num_local_experts": 2, "num_experts_per_tok": 1, "attention_bias": True},
}
for options in MODELS.values():
    options |= {"num_key_value_heads": 2, "head_dim": 4, "attn_implementation": "eager"}
    options["rope_parameters"] = {"rope_type": "default", "rope_theta": 10_000.0}


def layer(d_in: int, d_out: int, num_heads: int, **options: object) -> CausalSelfAttention:
    return shaken(CausalSelfAttention(d_in, d_out, num_heads, **options, dtype=torch.float64))


def from_scratch(made: CausalSelfAttention, x: Tensor, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The layer's output and weights for one sequence, head by head and token by token."""
    rows = x @ made.qkv.weight.T
    rows = rows if made.qkv.bias is None else rows + made.qkv.bias
    d, kv_dim = made.head_dim, made.num_kv_heads * made.head_dim
    context = torch.zeros(len(x), made.d_out, dtype=x.dtype)
    weights = torch.zeros(made.num_heads, len(x), len(x), dtype=x.dtype)
    for head in range(made.num_heads):
        kv_head = head * made.num_kv_heads // made.num_heads
        query = rows[:, head * d : (head + 1) * d]
        key = rows[:, made.d_out + kv_head * d :][:, :d]
        value = rows[:, made.d_out + kv_dim + kv_head * d :][:, :d]
        for i in range(len(x)):
            seen = [j for j in range(i + 1) if allowed is None or allowed[i, j]]
            if seen:
                scores = torch.stack([query[i] @ key[j] for j in seen]) * (made.scale or d**-0.5)
                if made.softcap is not None:
                    scores = made.softcap * torch.tanh(scores / made.softcap)
                powers = torch.exp(scores)
                sink = 0 if made.sinks is None else torch.exp(made.sinks[head])
                row = powers / (powers.sum() + sink)
                weights[head, i, seen] = row.detach()
                context[i, head * d : (head + 1) * d] = row @ value[seen]
    output = context @ made.out_proj.weight.T
    return output if made.out_proj.bias is None else output + made.out_proj.bias, weights


@pytest.mark.parametrize("num_kv_heads", [6, 3, 2, 1])
@pytest.mark.parametrize(("qkv_bias", "out_bias"), [(False, True), (True, False)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", [{}, {"scale": -0.7}, {"softcap": 0.4}, {"sinks": True}, ALL], ids=str)
def test_it_equals_attention_from_scratch(
    num_kv_heads: int, qkv_bias: bool, out_bias: bool, masked: bool, options: dict[str, Any]
) -> None:
    made = layer(7, 12, 6, num_kv_heads=num_kv_heads, qkv_bias=qkv_bias, out_bias=out_bias, **options)
    assert (made.qkv.bias is not None, made.out_proj.bias is not None) == (qkv_bias, out_bias)
    x = torch.randn(2, 5, 7, dtype=torch.float64)
    allowed = torch.rand(2, 1, 5, 5) < 0.6 if masked else None
    each = [from_scratch(made, x[b], None if allowed is None else allowed[b, 0]) for b in range(2)]
    output, weights = (torch.stack(found) for found in zip(*each, strict=True))
    torch.testing.assert_close(made(x, allowed=allowed), output)
    torch.testing.assert_close(made.weights(x, allowed=allowed), weights)
    cotangent = torch.randn_like(output)
    gradients = (
        torch.autograd.grad(each, [*made.parameters()], cotangent) for each in (made(x, allowed=allowed), output)
    )
    for (name, _), mine, right in zip(made.named_parameters(), *gradients, strict=True):
        torch.testing.assert_close(mine, right, msg=name)


@pytest.mark.parametrize("options", [{"scale": 0.3}, {"softcap": 0.4}, {"sinks": True}, ALL], ids=str)
@pytest.mark.parametrize("window", [None, 3])
def test_in_parts_a_scale_a_cap_and_sinks_give_what_they_give_at_once(
    options: dict[str, Any], window: int | None
) -> None:
    made, x = layer(7, 12, 6, num_kv_heads=3, **options), torch.randn(2, 9, 7, dtype=torch.float64)
    allowed = None if window is None else masks.sliding_window(9, window=window)
    with torch.no_grad():
        cache = made.cache(2, 9, window=window)
        parts = [made(part, cache=cache) for part in x.split([4, 3, 1, 1], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), made(x, allowed=allowed))


def test_autocast_and_fewer_bits_are_within_rounding_with_all_options() -> None:
    made = shaken(CausalSelfAttention(7, 12, 6, **ALL))
    x = torch.randn(2, 5, 7)
    right = made(x)
    with torch.autocast("cpu", torch.bfloat16):
        output = made(x)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), right, rtol=0.05, atol=0.05)
    torch.testing.assert_close(made.bfloat16()(x.bfloat16()).float(), right, rtol=0.05, atol=0.05)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Gemma2", "Granite", "GptOss"])
def test_it_is_the_attention_of_models_that_scale_cap_or_have_sinks(name: str) -> None:
    module = pytest.importorskip(
        f"transformers.models.{name.lower().replace('oss', '_oss')}.modeling_{name.lower().replace('oss', '_oss')}"
    )
    made = tiny(f"{name}ForCausalLM", **MODELS[name])
    theirs = made.model.layers[1].self_attn.double()
    assert isinstance(theirs, getattr(module, f"{name}Attention"))
    shaken(theirs, 0.9)
    options: dict[str, Any] = {
        "Gemma2": {"scale": MODELS["Gemma2"]["query_pre_attn_scalar"] ** -0.5, "softcap": 0.8},
        "Granite": {"scale": 0.9},
        "GptOss": {"sinks": True, "qkv_bias": True},
    }[name]
    options |= {"num_kv_heads": 2, "out_bias": name == "GptOss", "rotary": Rotary(4)}
    ours = CausalSelfAttention(24, 24, 6, **options, dtype=torch.float64)
    state = dict(theirs.state_dict())
    for kind in ("weight", "bias") if options.get("qkv_bias") else ("weight",):
        state[f"qkv.{kind}"] = torch.cat([state.pop(f"{part}_proj.{kind}") for part in "qkv"])
        state[f"out_proj.{kind}"] = state.pop(f"o_proj.{kind}")
    ours.load_state_dict(state)
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    turn = made.model.rotary_emb(x.float(), torch.arange(7)[None])
    future = torch.full((7, 7), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    expected, _ = theirs(x, attention_mask=future, position_embeddings=[each.double() for each in turn])
    torch.testing.assert_close(ours(x), expected, rtol=1e-5, atol=1e-5)  # their rotary is float32


def test_it_equals_the_drop_in_told_to_be_causal_with_its_gradients() -> None:
    made = layer(12, 12, 3, qkv_bias=True)
    other = MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    other.load_state_dict({k.replace("qkv.", "in_proj_"): v for k, v in made.state_dict().items()})
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    output, weights = other(x, x, x, is_causal=True, average_attn_weights=False)
    torch.testing.assert_close(made(x), output)
    torch.testing.assert_close(made.weights(x), weights)
    cotangent = torch.randn_like(output)
    mine, theirs = (
        torch.autograd.grad(out, list(module.parameters()), cotangent)
        for out, module in ((made(x), made), (output, other))
    )
    for gradient, (name, _) in zip(mine, made.named_parameters(), strict=True):
        expected = dict(zip([n for n, _ in other.named_parameters()], theirs, strict=True))
        torch.testing.assert_close(gradient, expected[name.replace("qkv.", "in_proj_")])


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_any_batch_axes_give_what_each_sequence_gives_alone(batch: tuple[int, ...]) -> None:
    made = layer(7, 12, 6)
    x = torch.randn(*batch, 5, 7, dtype=torch.float64)
    output = made(x)
    assert output.shape == (*batch, 5, 12)
    for one, alone in zip(output.view(-1, 5, 12), x.view(-1, 5, 7), strict=True):
        torch.testing.assert_close(one, made(alone))


def test_its_state_holds_weights_alone_and_nothing_is_sized_by_the_context() -> None:
    short = CausalSelfAttention(7, 12, 3, context_length=4, qkv_bias=True)
    long = CausalSelfAttention(7, 12, 3, context_length=10**9, qkv_bias=True)
    assert list(short.state_dict()) == ["qkv.weight", "qkv.bias", "out_proj.weight", "out_proj.bias"]
    assert not list(short.buffers())
    long.load_state_dict(short.state_dict())
    x = torch.randn(4, 7)
    assert torch.equal(long(x), short(x))
    assert "num_heads=3, num_kv_heads=3, dropout=0.0, context_length=4" in repr(short)


def test_dropout_drops_weights_in_training_only() -> None:
    made = CausalSelfAttention(7, 12, 3, dropout=0.5)
    x = torch.randn(2, 30, 7)
    kept = made.weights(x)[..., masks.causal(30)] != 0
    assert 0.4 < kept.float().mean() < 0.6
    assert not torch.equal(made(x), made(x))
    assert not torch.equal(made.weights(x), made.weights(x))
    made.eval()
    assert torch.equal(made(x), made(x))
    torch.testing.assert_close(made.weights(x).sum(-1), torch.ones(2, 3, 30))


def impossible(*sizes: int, **options: Any) -> Any:
    return partial(CausalSelfAttention, *sizes, **options)


def fed(*shape: int) -> Any:
    made = CausalSelfAttention(7, 12, 3, context_length=4)
    return partial(made, torch.randn(shape)), partial(made.weights, torch.randn(shape))


test_impossible_sizes_and_inputs_that_do_not_fit_are_refused = refused(
    {
        ValueError: {
            "scale is nan; it must be a finite number": impossible(7, 12, 3, scale=float("nan")),
            "softcap is 0; it must be positive (None for no cap)": impossible(7, 12, 3, softcap=0),
            "softcap is -1.0; it must be positive (None for no cap)": impossible(7, 12, 3, softcap=-1.0),
            "d_in is 0; it must be 1 or more": impossible(0, 12, 3),
            "d_out is 0; it must be 1 or more": impossible(7, 0, 3),
            "num_heads is 0; it must be 1 or more": impossible(7, 12, 0),
            "d_out (12) must be divisible by num_heads (5); try 4 or 6": impossible(7, 12, 5),
            "num_heads (6) must be divisible by num_kv_heads (4); try 3 or 6": impossible(7, 12, 6, num_kv_heads=4),
            "num_kv_heads is 0; it must be 1 or more": impossible(7, 12, 6, num_kv_heads=0),
            "context_length is -1; it must be 1 or more": impossible(7, 12, 6, context_length=-1),
            "dropout is 1.5; it must be a probability in [0, 1]": impossible(7, 12, 6, dropout=1.5),
            "x has 5 tokens, more than context_length (4); shorten it, or make the layer with a larger "
            "context_length": fed(2, 5, 7),
        }
        | {f"x has shape {shape}; this layer takes (..., tokens, 7)": fed(*shape) for shape in ((2, 3, 8), (7,), ())}
        | {
            'x is on meta and the layer on cpu; call x.to("cpu")': lambda: CausalSelfAttention(7, 12, 3)(
                torch.ones(2, 3, 7, device="meta")
            ),
            "rotary made (2, 3, 4), torch.float32 of x, (2, 3, 5, 4), torch.float32; it must keep shape and "
            "dtype": lambda: CausalSelfAttention(7, 12, 3, rotary=lambda x, positions: x[:, :, 0])(torch.ones(2, 5, 7)),
        },
        TypeError: {
            "sinks is 'yes', a str; it must be True or False": impossible(7, 12, 3, sinks="yes"),
            "qkv_bias is 1...": impossible(7, 12, 3, qkv_bias=1),
            "rotary is 'rope'; it is called with queries or keys and their positions: pass "
            "unmasked.positions.Rotary(head_dim)": impossible(7, 12, 3, rotary="rope"),
            "dtype is torch.int64; it must be floating, such as torch.float32": impossible(7, 12, 3, dtype=torch.int64),
            "x is torch.float64 and the layer torch.float32; call x.to(torch.float32)": lambda: CausalSelfAttention(
                7, 12, 3
            )(torch.ones(2, 3, 7).double()),
            "cache is a dict; make one with layer.cache(batch, max_tokens)": lambda: CausalSelfAttention(7, 12, 3)(
                torch.ones(2, 3, 7), cache={}
            ),
        },
    }
)
