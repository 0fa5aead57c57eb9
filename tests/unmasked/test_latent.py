"""Latent attention gives the same, absorbed or expanded, in whatever parts, and is DeepSeek's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from unmasked import KVCache, LatentAttention
from unmasked.latent import LatentCache
from unmasked.positions import Rotary

from ..refusals import refused
from .helpers import goes_on_in_every_mode, shaken


def layer(rotary_dim: int = 0, *, dtype: torch.dtype = torch.float64, **options: Any) -> LatentAttention:
    rotary = Rotary(rotary_dim, pairing="interleaved") if rotary_dim else None
    made = LatentAttention(
        9, 10, 3, latent_dim=5, head_dim=4, rotary=rotary, rotary_dim=rotary_dim, dtype=dtype, **options
    )
    return shaken(made, 0.9).requires_grad_(False)


def from_scratch(made: LatentAttention, x: Tensor) -> Tensor:
    """The equations of the paper for one sequence without positions, head by head and token by token."""
    latent = x @ made.down.weight.T
    outputs = []
    for t in range(len(x)):
        contexts = []
        for head in range(made.num_heads):
            rows = slice(head * made.head_dim, (head + 1) * made.head_dim)
            query = made.query.weight[rows] @ x[t]
            keys = [made.key_up.weight[rows] @ latent[s] for s in range(t + 1)]
            values = [made.value_up.weight[rows] @ latent[s] for s in range(t + 1)]
            weights = torch.stack([query @ key * (made.scale or made.head_dim**-0.5) for key in keys]).exp()
            contexts.append(sum(w * value for w, value in zip(weights / weights.sum(), values, strict=True)))
        outputs.append(made.out_proj.weight @ torch.cat(contexts))
    return torch.stack(outputs)


@pytest.mark.parametrize("form", ["expanded", "absorbed", None])
@pytest.mark.parametrize("scale", [None, 0.7, -0.2])
def test_it_is_what_the_paper_writes(form: Any, scale: float | None) -> None:
    made, x = layer(scale=scale), torch.randn(2, 6, 9, dtype=torch.float64)
    expected = torch.stack([from_scratch(made, each) for each in x])
    torch.testing.assert_close(made(x, form=form), expected)


@pytest.mark.parametrize("rotary_dim", [0, 6])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-14), (torch.float32, 2e-6)])
def test_absorbed_is_expanded_with_its_gradients(
    rotary_dim: int, normalize: bool, dtype: torch.dtype, within: float
) -> None:
    made, x = layer(rotary_dim, normalize=normalize, dtype=dtype).requires_grad_(), torch.randn(2, 7, 9, dtype=dtype)
    outputs = [made(x, form=form) for form in ("expanded", "absorbed")]
    gradients = [torch.autograd.grad(output.square().sum(), list(made.parameters())) for output in outputs]
    for a, b in [outputs, *zip(*gradients, strict=True)]:
        assert (a - b).abs().max() <= within * a.abs().max()


@pytest.mark.parametrize("rotary_dim", [0, 6])
@pytest.mark.parametrize("form", ["expanded", "absorbed", None])
@pytest.mark.parametrize("parts", [[7], [4, 1, 1, 1], [1, 2, 3, 1]])
def test_in_whatever_parts_each_token_gets_what_the_whole_gives(rotary_dim: int, form: Any, parts: list[int]) -> None:
    made, x = layer(rotary_dim), torch.randn(2, 7, 9, dtype=torch.float64)
    cache = made.cache(2, max_tokens=8)
    given = [made(part, cache=cache, form=form) for part in x.split(parts, dim=1)]
    torch.testing.assert_close(torch.cat(given, dim=1), made(x))
    assert cache.length == 7


def test_a_step_makes_nothing_again_of_what_is_kept() -> None:
    made, cache = layer(6), layer(6).cache(1, max_tokens=9)
    seen = []
    made.key_up.register_forward_hook(lambda *given: seen.append(given[1][0].shape))
    x = torch.randn(1, 9, 9, dtype=torch.float64)
    made(x[:, :7], cache=cache)
    made(x[:, 7:8], cache=cache)
    made(x[:, 8:], cache=cache)
    assert seen == [(1, 7, 5)]


def test_positions_can_be_given_for_each_sequence_and_only_their_differences_count() -> None:
    made, x = layer(6), torch.randn(2, 7, 9, dtype=torch.float64)
    later = torch.arange(7) + torch.tensor([[100], [3]])
    torch.testing.assert_close(made(x, positions=later), made(x))
    assert not torch.allclose(made(x, positions=2 * later), made(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["expanded", "absorbed"])
def test_it_is_deepseeks_with_its_weights(form: Any) -> None:
    deepseek = pytest.importorskip("transformers.models.deepseek_v2.modeling_deepseek_v2")
    config = deepseek.DeepseekV2Config(
        hidden_size=18,
        num_attention_heads=3,
        num_key_value_heads=3,
        q_lora_rank=None,
        kv_lora_rank=5,
        qk_nope_head_dim=4,
        v_head_dim=4,
        qk_rope_head_dim=6,
        attn_implementation="eager",
    )
    theirs = shaken(deepseek.DeepseekV2Attention(config, layer_idx=0).double().eval(), 0.9)
    ours = LatentAttention(
        18,
        18,
        3,
        latent_dim=5,
        head_dim=4,
        rotary=Rotary(6, pairing="interleaved"),
        rotary_dim=6,
        normalize=True,
        dtype=torch.float64,
    )
    key_up, value_up = theirs.kv_b_proj.weight.unflatten(0, (3, 8)).split([4, 4], dim=1)  # head by head: key, value
    ours.load_state_dict(
        {
            "query.weight": theirs.q_proj.weight,
            "down.weight": theirs.kv_a_proj_with_mqa.weight,
            "norm.weight": theirs.kv_a_layernorm.weight,
            "key_up.weight": key_up.flatten(0, 1),
            "value_up.weight": value_up.flatten(0, 1),
            "out_proj.weight": theirs.o_proj.weight,
        }
    )
    x, positions = torch.randn(2, 7, 18, dtype=torch.float64), torch.arange(7)[None]
    turn = deepseek.DeepseekV2RotaryEmbedding(config)(x, positions)
    future = torch.full((7, 7), -torch.inf, dtype=torch.float64).triu(1)
    with torch.no_grad():
        expected, _ = theirs(x, attention_mask=future[None, None], position_embeddings=turn)
        torch.testing.assert_close(ours(x, form=form), expected, atol=1e-5, rtol=1e-5)  # their rotary is float32


def test_what_is_kept_of_a_token() -> None:
    made = layer(6)
    assert made.cache(1, max_tokens=1).bytes == LatentAttention.bytes_per_token(5, 6, dtype=torch.float64) == 88
    assert LatentAttention.bytes_per_token(512, 64, num_layers=2, dtype=torch.bfloat16) == 2 * 576 * 2
    assert LatentAttention.bytes_per_token(12) == 48
    # As many heads with keys and values of their own:
    assert KVCache.bytes_per_token(3, 4, dtype=torch.float64) == 192
    assert "num_heads=3, head_dim=4, rotary_dim=6" in repr(made)


def sized(**options: Any) -> Callable[[], object]:
    return lambda: LatentAttention(**{"d_in": 5, "d_out": 6, "num_heads": 3, "latent_dim": 4} | options)


def fed(*shape: int, **options: Any) -> Callable[[], object]:
    return lambda: layer(dtype=torch.float32)(torch.randn(shape), **options)


def appending(new: Tensor) -> Callable[[], object]:
    """What is appended to a cache for five tokens of two sequences that holds four, and is to hold four."""

    def call() -> None:
        cache = LatentCache(2, 5, 5)
        cache.append(ONES[:, :4])
        try:
            cache.append(new)
        finally:
            assert cache.length == 4

    return call


def test_it_works_in_inference_mode_and_without_gradients() -> None:
    goes_on_in_every_mode(layer().requires_grad_(True), torch.randn(2, 3, 9, dtype=torch.float64))
    cache = LatentCache(2, 5, 5, dtype=torch.float64)
    with torch.no_grad():
        cache.append(torch.ones(2, 1, 5, dtype=torch.float64, requires_grad=True))
    assert cache.length == 1


ONES = torch.ones(2, 5, 5)
BOTH = "give both, such as rotary=Rotary(16), rotary_dim=16, or neither"
test_what_does_not_fit_is_refused = refused(
    {
        ValueError: {
            "d_in is 0; it must be 1 or more": sized(d_in=0),
            "latent_dim is 0; it must be 1 or more": sized(latent_dim=0),
            "head_dim is 0; it must be 1 or more": sized(head_dim=0),
            "max_tokens is 0; it must be 1 or more": lambda: LatentCache(1, 0, 3),
            "d_out (6) must be divisible by num_heads (4); try 3 or 6": sized(num_heads=4),
            f"rotary is None and rotary_dim 4; {BOTH}": sized(rotary_dim=4),
            f"rotary is {Rotary(4)} and rotary_dim 0; {BOTH}": sized(rotary=Rotary(4)),
            "x has shape (7, 9); this layer takes (batch, tokens, 9)": fed(7, 9),
            "x has shape (2, 7, 8); this layer takes (batch, tokens, 9)": fed(2, 7, 8),
            'form is \'folded\'; choose "expanded", "absorbed" or None': fed(2, 7, 9, form="folded"),
            "scale is inf; it must be a finite number": sized(scale=float("inf")),
            "positions are given, and this layer has no rotary to turn anything by them; make it with rotary=..., or "
            "add positions to x": fed(2, 7, 9, positions=torch.arange(7)),
            'new is on meta and the cache on cpu; make the cache with device="meta"': appending(ONES[:, :1].to("meta")),
            "2 more tokens make 6, more than max_tokens (5); make a larger cache": appending(ONES[:, :2]),
            "new has shape (3, 1, 5); this cache takes (2, tokens, 5)": appending(torch.ones(3, 1, 5)),
            "new requires a gradient, which memory that is written again cannot give; use torch.no_grad()": appending(
                ONES[:, :1].clone().requires_grad_()
            ),
        },
        TypeError: {
            "normalize is 'rms', a str; it must be True or False": sized(normalize="rms"),
            "cache is a KVCache; make one with layer.cache(batch, max_tokens)": fed(2, 7, 9, cache=KVCache(2, 3, 9, 4)),
            "new is torch.float64 and the cache torch.float32; make the cache with dtype=torch.float64": appending(
                ONES[:, :1].double()
            ),
        },
    }
)


@pytest.mark.parametrize(
    ("latent_dim", "queries", "keys", "expected"),
    [(512, 1, 4096, True), (512, 4096, 4096, False), (512, 1024, 2048, False), (32, 2048, 2048, True)],
)
def test_the_form_is_chosen_by_what_it_multiplies(latent_dim: int, queries: int, keys: int, expected: bool) -> None:
    made = LatentAttention(d_in=8, d_out=8, num_heads=2, latent_dim=latent_dim, head_dim=128, device="meta")
    assert made._absorbing_is_less(queries, keys) == expected
