"""Positions against the code of the models that use them, complex numbers, and what is computed by hand."""

import importlib
import math
import pickle
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import DeepseekV3Config, GPTNeoXConfig, LlamaConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.cohere import modeling_cohere
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.glm import modeling_glm
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.qwen2_vl import modeling_qwen2_vl

from unmasked import attend, positions, self_attention
from unmasked.positions import Rotary, alibi, alibi_slopes, apply_rotary, convert_pairing, sinusoids
from unmasked_doctor import probes

from ..refusals import refused

PAIRINGS = ["halves", "interleaved"]
PLACES = torch.tensor([0, 1, 2, 300, 4095])


def turned_as_complex_numbers(x: Tensor, places: Tensor, pairing: str, base: float = 10_000.0) -> Tensor:
    """Each pair is a complex number in float64, multiplied by e^(i angle)."""
    half = x.size(-1) // 2
    x = x.double()
    real, imaginary = (x[..., :half], x[..., half:]) if pairing == "halves" else (x[..., ::2], x[..., 1::2])
    rates = torch.tensor([base ** (-2 * i / x.size(-1)) for i in range(half)], dtype=torch.float64)
    z = torch.complex(real, imaginary) * torch.exp(1j * places[:, None].double() * rates)
    return torch.cat([z.real, z.imag], -1) if pairing == "halves" else torch.view_as_real(z).flatten(-2)


@pytest.mark.parametrize("pairing", PAIRINGS)
@given(data=st.data())
def test_turning_is_multiplying_complex_numbers(pairing: str, data: st.DataObject) -> None:
    batch = data.draw(st.lists(st.integers(1, 3), max_size=3))
    head_dim = 2 * data.draw(st.integers(1, 4))
    base = data.draw(st.sampled_from([10.0, 10_000.0, 500_000.0]))
    places = torch.tensor(data.draw(st.lists(st.integers(0, 100_000), min_size=1, max_size=5)))
    x = torch.randn(*batch, len(places), head_dim, dtype=torch.float64)
    rotary = Rotary(head_dim, base=base, pairing=pairing)
    torch.testing.assert_close(
        rotary(x, places), turned_as_complex_numbers(x, places, pairing, base), atol=1e-9, rtol=0
    )


def test_a_quarter_turn_by_hand() -> None:
    quarter = torch.tensor([math.pi / 2, 0.0])  # the first pair turns by 90 degrees a position, the second not at all
    x, places = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([1])
    halves = Rotary(4, frequencies=quarter)(x, places)
    torch.testing.assert_close(halves, torch.tensor([[-3.0, 2.0, 1.0, 4.0]]))
    interleaved = Rotary(4, pairing="interleaved", frequencies=quarter)(x, places)
    torch.testing.assert_close(interleaved, torch.tensor([[-2.0, 1.0, 3.0, 4.0]]))
    back = Rotary(4, frequencies=-quarter)(halves, places)
    torch.testing.assert_close(back, x)


def in_llama(x: Tensor, places: Tensor = PLACES, **parameters: Any) -> Tensor:
    config = LlamaConfig(hidden_size=x.size(-1), num_attention_heads=1, rope_parameters=parameters)
    cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(x, places[None])
    return modeling_llama.apply_rotary_pos_emb(x, x, cos, sin)[0]


def in_gpt_neox(x: Tensor) -> Tensor:
    parameters = {"rope_type": "default", "rope_theta": 10_000, "partial_rotary_factor": 0.25}
    config = GPTNeoXConfig(hidden_size=3 * x.size(-1), num_attention_heads=3, rope_parameters=parameters)
    cos, sin = modeling_gpt_neox.GPTNeoXRotaryEmbedding(config)(x, PLACES[None])
    return modeling_gpt_neox.apply_rotary_pos_emb(x, x, cos, sin)[0]


def in_gpt_j(x: Tensor) -> Tensor:
    table = modeling_gptj.create_sinusoidal_positions(4096, x.size(-1))[PLACES]
    sin, cos = table.expand(2, -1, -1).chunk(2, -1)
    return modeling_gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos).transpose(1, 2)


LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
NEAR = LLAMA3 | {"original_max_position_embeddings": 64}
LLAMA3["original_max_position_embeddings"] = 8192
OF_MODELS: dict[str, tuple[Rotary, Callable[[Tensor], Tensor]]] = {
    "Llama": (Rotary(16, base=5e5), partial(in_llama, rope_type="default", rope_theta=5e5)),
    "Llama 3.1": (Rotary(16, frequencies=Rotary.from_config(16, NEAR).frequencies), partial(in_llama, **NEAR)),
    "GPT-NeoX": (Rotary(16, rotary_dim=4), in_gpt_neox),
    "GPT-J": (Rotary(16, pairing="interleaved"), in_gpt_j),
}


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_given_angles_turn_as_those_of_positions_do(pairing: Any, batch: tuple[int, ...]) -> None:
    x = torch.randn(*batch, len(PLACES), 16, dtype=torch.float64)
    rotary = Rotary(16, rotary_dim=12, pairing=pairing, factor=1.5)
    angles = PLACES[:, None] * 10_000.0 ** (-torch.arange(0, 12, 2, dtype=torch.float64) / 12)
    cos, sin = 1.5 * angles.cos(), 1.5 * angles.sin()
    torch.testing.assert_close(apply_rotary(x, cos, sin, pairing=pairing), rotary(x, PLACES))
    if batch:  # an angle of its own for each sequence, and the same for its heads
        cos, sin = torch.stack([cos, cos.flip(0)]), torch.stack([sin, sin.flip(0)])
        turned = apply_rotary(x, cos, sin, pairing=pairing)
        torch.testing.assert_close(turned[1], apply_rotary(x[1], cos[1], sin[1], pairing=pairing))
    half = apply_rotary(x.bfloat16(), cos.bfloat16(), sin.bfloat16(), pairing=pairing)
    assert half.dtype == torch.bfloat16


def test_what_the_models_of_transformers_turn_by_is_given_by_its_first_half() -> None:
    x, config = torch.randn(2, 3, len(PLACES), 16), LlamaConfig(hidden_size=16, num_attention_heads=1)
    cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(x, PLACES.expand(2, -1))
    theirs, _ = modeling_llama.apply_rotary_pos_emb(x, x, cos, sin)
    torch.testing.assert_close(apply_rotary(x, cos[..., :8], sin[..., :8]), theirs)


def given_angles(cos: tuple[int, ...], sin: tuple[int, ...] | None = None, pairing: Any = "halves") -> Any:
    return lambda: apply_rotary(torch.ones(2, 3, 5, 8), torch.ones(cos), torch.ones(sin or cos), pairing=pairing)


WIDE = "half as many pairs at most; where it has a column for each feature, pass cos[..., : cos.size(-1) // 2]"
test_angles_that_do_not_fit_are_refused = refused(
    {
        ValueError: {
            "sin has shape (5, 3) and cos (5, 4); they must have as many pairs": given_angles((5, 4), (5, 3)),
            "cos has shape (4,); it must be (..., tokens, pairs)": given_angles((4,)),
            f"cos has 8 pairs and x 8 features, {WIDE}, and sin likewise": given_angles((5, 8)),
            "cos has shape (6, 4) and x (2, 3, 5, 8); they must have as many tokens": given_angles((6, 4)),
            "cos has shape (3, 5, 4) and x (2, 3, 5, 8); it must be (tokens, pairs) or (batch, tokens, pairs): 5 "
            "tokens, and as many sequences as x has": given_angles((3, 5, 4)),
            'pairing is \'neighbors\'; choose "halves" or "interleaved"': given_angles((5, 4), pairing="neighbors"),
        }
    }
)


@pytest.mark.parametrize("name", OF_MODELS)
def test_features_are_turned_as_in_the_models_of_others(name: str) -> None:
    ours, theirs = OF_MODELS[name]
    x = torch.randn(2, 3, len(PLACES), 16)
    torch.testing.assert_close(ours(x, PLACES), theirs(x))


def test_the_name_rotate_half_tells_no_pairing() -> None:
    x = torch.arange(1.0, 5)
    assert modeling_llama.rotate_half(x).tolist() == [-3, -4, 1, 2]
    for module in (modeling_cohere, modeling_glm):
        assert module.rotate_half(x).tolist() == [-2, 1, -4, 3]


def test_a_configuration_may_name_its_pairing_and_deepseek_puts_neighbors_into_the_halves() -> None:
    assert DeepseekV3Config().rope_interleave
    x = torch.randn(2, 3, 5, 8)
    angles = PLACES[:, None] * 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
    cos, sin = (turn(torch.cat([angles, angles], -1))[None] for turn in (torch.cos, torch.sin))
    theirs, _ = modeling_deepseek_v3.apply_rotary_pos_emb_interleave(x, x, cos, sin)
    torch.testing.assert_close(Rotary(8)(torch.cat([x[..., ::2], x[..., 1::2]], -1), PLACES), theirs)
    ours = Rotary(8, pairing="interleaved")(x, PLACES)
    torch.testing.assert_close(ours @ ours.mT, theirs @ theirs.mT)


def test_sequences_may_start_at_different_places() -> None:
    x, rotary = torch.randn(2, 3, 4, 6), Rotary(6)
    starts = torch.tensor([[5, 6, 7, 8], [0, 0, 1, 2]])
    both = rotary(x, starts)
    for item in range(2):
        torch.testing.assert_close(both[item], rotary(x[item], starts[item]))
    more = rotary(x.expand(5, 2, 3, 4, 6), starts)
    torch.testing.assert_close(more[4], both)
    torch.testing.assert_close(rotary(x, starts[:1]), rotary(x, starts[0]))


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_angles_keep_float32_for_half_precision_and_under_autocast(pairing: str, dtype: torch.dtype) -> None:
    x, places = torch.randn(2, 3, 4, 8).to(dtype), torch.tensor([1003, 1004, 1005, 30_001])
    rotary = Rotary(8, pairing=pairing)
    exact = rotary(x.float(), places).to(dtype)
    assert rotary(x, places).dtype == dtype
    torch.testing.assert_close(rotary(x, places), exact, rtol=0, atol=0)
    with torch.autocast("cpu", dtype=dtype):
        torch.testing.assert_close(rotary(x, places), exact, rtol=0, atol=0)
        torch.testing.assert_close(rotary(x.float(), places).to(dtype), exact, rtol=0, atol=0)
    expected = turned_as_complex_numbers(x, places, pairing)
    torch.testing.assert_close(rotary(x, places).double(), expected, rtol=0, atol=2e-2)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_gradients_are_turned_back(pairing: str) -> None:
    x, rotary = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True), Rotary(6, pairing=pairing, rotary_dim=4)
    assert torch.autograd.gradcheck(lambda x: rotary(x, torch.tensor([2, 7, 1])), x)


@pytest.mark.usefixtures("unhooked")
def test_compiles_and_runs_under_vmap() -> None:
    x = torch.randn(2, 3, 4, 6)
    for pairing in PAIRINGS:
        rotary = Rotary(6, pairing=pairing)
        compiled = torch.compile(rotary.__call__, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, torch.arange(4)), rotary(x, torch.arange(4)))
        vmapped = torch.func.vmap(rotary, in_dims=(0, None))(x, torch.arange(4))
        torch.testing.assert_close(vmapped, rotary(x, torch.arange(4)))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_turns_as_a_cpu_does(dtype: torch.dtype) -> None:
    x, rotary = torch.randn(2, 3, 5, 8).to(dtype), Rotary(8)
    there = rotary(x.cuda(), PLACES.cuda())
    torch.testing.assert_close(there.cpu(), rotary(x, PLACES), atol=1e-2 if dtype == torch.bfloat16 else 1e-3, rtol=0)
    scaled = Rotary(8, frequencies=torch.tensor([1.0, 0.1, 0.01, 0.001]))
    torch.testing.assert_close(scaled(x.cuda(), PLACES.cuda()).cpu(), scaled(x, PLACES), atol=1e-2, rtol=0)
    assert torch.equal(alibi(3, 4, device="cuda").cpu(), alibi(3, 4))


def test_converted_rows_give_the_scores_of_the_other_pairing_and_mixed_pairings_do_not() -> None:
    heads, kv_heads, head_dim, width = 4, 2, 6, 10
    x, places = torch.randn(3, 5, width, dtype=torch.float64), torch.arange(5)
    w_q, w_k = (torch.randn(n * head_dim, width, dtype=torch.float64) for n in (heads, kv_heads))

    def scores(w_q: Tensor, w_k: Tensor, rotary: Rotary) -> Tensor:
        query = (x @ w_q.mT).unflatten(-1, (heads, head_dim)).transpose(1, 2)
        key = (x @ w_k.mT).unflatten(-1, (kv_heads, head_dim)).transpose(1, 2)
        return rotary(query, places) @ rotary(key, places).repeat_interleave(heads // kv_heads, 1).mT

    for rotary_dim in (head_dim, 4):
        for here, there in (PAIRINGS, PAIRINGS[::-1]):
            before = scores(w_q, w_k, Rotary(head_dim, pairing=here, rotary_dim=rotary_dim))
            other = Rotary(head_dim, pairing=there, rotary_dim=rotary_dim)
            moved = [convert_pairing(w, n, to=there, rotary_dim=rotary_dim) for w, n in ((w_q, heads), (w_k, kv_heads))]
            torch.testing.assert_close(scores(*moved, other), before)
            assert (scores(w_q, w_k, other) - before).abs().max() > 1
            back = convert_pairing(moved[0], heads, to=here, rotary_dim=rotary_dim)
            assert torch.equal(back, w_q)


def test_conversion_to_halves_is_the_permutation_by_which_llama_came_to_transformers() -> None:
    heads, head_dim, width = 3, 8, 5
    weight = torch.randn(heads * head_dim, width)
    # convert_llama_weights_to_hf.py of transformers, permute
    theirs = weight.view(heads, head_dim // 2, 2, width).transpose(1, 2).reshape(heads * head_dim, width)
    assert torch.equal(convert_pairing(weight, heads, to="halves"), theirs)
    assert torch.equal(convert_pairing(weight[:, 0], heads, to="halves"), theirs[:, 0])


def test_sinusoids_are_those_of_the_paper() -> None:
    table = sinusoids(PLACES, 6)
    for row, place in zip(table.tolist(), PLACES.tolist(), strict=True):
        for i in range(3):
            angle = place / 10_000 ** (2 * i / 6)
            assert row[2 * i] == pytest.approx(math.sin(angle), abs=1e-3)
            assert row[2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-3)
    halves = sinusoids(torch.arange(7), 6, pairing="halves")
    torch.testing.assert_close(halves, modeling_gptj.create_sinusoidal_positions(7, 6))
    assert sinusoids(torch.zeros(2, 3, dtype=torch.int32), 4).shape == (2, 3, 4)
    assert sinusoids(PLACES, 4).dtype == torch.float32


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12, 16, 20, 25, 40, 112])
def test_slopes_are_those_of_bloom_and_mpt(num_heads: int) -> None:
    of_bloom = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)[:, 0, 1]  # at a distance of 1
    of_mpt = -build_mpt_alibi_tensor(num_heads, 2)[:, 0, 0]
    torch.testing.assert_close(alibi_slopes(num_heads), of_bloom)
    torch.testing.assert_close(alibi_slopes(num_heads), of_mpt)


def test_alibi_lowers_scores_with_the_distance_as_bloom_does_up_to_a_constant_of_each_row() -> None:
    heads, tokens = 3, 5
    ours = alibi(heads, tokens)
    assert (ours.diagonal(dim1=-2, dim2=-1) == 0).all()
    assert (ours[:, ~torch.eye(tokens, dtype=torch.bool)] < 0).all()
    assert ours[0, 4, 1] == -3 * alibi_slopes(heads)[0]
    assert torch.equal(ours, ours.mT)
    theirs = build_alibi_tensor(torch.ones(1, tokens), heads, torch.float32)  # heads 1 keys
    query, key, value = torch.randn(3, 2, heads, tokens, 4)
    of_ours, of_theirs = (attend(query, key, value, bias=bias, is_causal=True).context for bias in (ours, theirs))
    torch.testing.assert_close(of_ours, of_theirs)
    flipped = attend(query, key, value, bias=-ours, is_causal=True).context
    assert (flipped - of_ours).abs().max() > 0.1


def test_alibi_aligns_the_last_query_with_the_last_key() -> None:
    whole = alibi(3, 7)
    assert torch.equal(alibi(3, 2, 7), whole[:, -2:])
    assert alibi(3, 4, 2).shape == (3, 4, 2)
    assert not torch.signbit(whole.diagonal(dim1=-2, dim2=-1)).any()  # 0, which prints better than -0


def rotary_attention(rotary: Rotary):
    return lambda x, places: attend(rotary(x, places), rotary(x, places), x).context


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_probe_is_silent_on_relative_positions(dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, 8, dtype=dtype)

    def with_alibi(x: Tensor, places: Tensor) -> Tensor:
        bias = -0.1 * (places[:, None] - places).abs().to(x)
        return self_attention(x, bias=bias).context

    for pairing in PAIRINGS:
        assert probes.notices_a_shift(rotary_attention(Rotary(8, pairing=pairing)), x) is None
    assert probes.notices_a_shift(with_alibi, x) is None


def mixed_pairings(x: Tensor, places: Tensor) -> Tensor:
    return attend(Rotary(8)(x, places), Rotary(8, pairing="interleaved")(x, places), x).context


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda x, places: self_attention(x + sinusoids(places, 8)).context, "where all positions are 1 larger"),
        (mixed_pairings, "where all positions are 1 larger"),
        (lambda x, places: self_attention(x).context, "no output notices that every offset doubles"),
    ],
)
def test_the_probe_finds_what_depends_on_the_place_or_on_nothing(f, words: str) -> None:
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    evidence = probes.notices_a_shift(f, x)
    assert evidence
    assert evidence.text.startswith("2 items of 5 tokens: ")
    assert words in str(evidence)
    assert (evidence.difference > 0) == ("larger" in words)


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 32.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("turn", "right", "words"),
    [
        (Rotary(8, base=5e5), Rotary(8), r"1 and 5 turn by 0.0376 .* should by 0.1: their base is 500,000"),
        (Rotary(8), Rotary(8, base=5e5), r"1 and 5 turn by 0.1 .* should by 0.0376: their base is 10,000"),
        (Rotary(128, base=5e5), Rotary.from_config(128, LLAMA3), r"29 and 93 .*: their base is 500,000"),
        (Rotary(8, pairing="interleaved"), Rotary(8), r"0 and 1 turn by 1 .* should by 0$"),
        (Rotary(8), Rotary(8, rotary_dim=4), r"0 and 2 turn by 0 .* should by 1$"),
        (lambda x, places: Rotary(8)(x, -places), Rotary(8), r"0 and 4 turn by -1 .* should by 1$"),
        (lambda x, places: Rotary(8)(x, 2 * places), Rotary(8), r"0 and 4 turn by 2 .* should by 1$"),
        (lambda x, places: x, Rotary(8), r"0 and 4 turn by 0 .* should by 1$"),
        (Rotary(8), lambda x, places: x, r"0 and 4 turn by 1 .* should by 0: their base is 10,000$"),
        (Rotary(8, factor=1.1), Rotary(8), r"^scores are 1.21 times those that they should be$"),
        (Rotary(8, rotary_dim=4), Rotary(8, rotary_dim=4, factor=1.1), r"^scores are 0.826 times those"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_probe_finds_what_a_config_does_not_say_though_every_shift_is_silent(turn, right, words, dtype) -> None:
    x = torch.randn(5, 128 if "93" in words else 8, dtype=dtype)
    evidence = probes.turns_otherwise(turn, right, x)
    assert evidence
    assert re.search(words, str(evidence))
    assert probes.turns_otherwise(right, right, x) is None
    if "turn by 0 " not in words:  # what turns nothing is found by any shift
        shifted = lambda x, places: attend(turn(x, places), turn(x, places), x).context  # noqa: E731
        assert probes.notices_a_shift(shifted, x[None]) is None


@pytest.mark.parametrize("wrong", [1e4, 499_000.0])
def test_the_base_of_a_model_of_transformers_is_held_to_its_config(wrong: float) -> None:
    def of_a_model(base: float):
        rope = {"rope_type": "default", "rope_theta": base}
        return lambda x, places: in_llama(x[None, None], places, **rope)[0, 0]

    right, x = Rotary.from_config(64, {"rope_type": "default", "rope_theta": 5e5}), torch.ones(1, 64)
    assert probes.turns_otherwise(of_a_model(5e5), right, x) is None
    assert f"their base is {wrong:,.0f}" in str(probes.turns_otherwise(of_a_model(wrong), right, x))


def test_features_given_back_in_another_order_have_the_scores_of_their_pairing() -> None:
    def as_deepseek(x: Tensor, places: Tensor) -> Tensor:
        return Rotary(8)(torch.cat([x[..., ::2], x[..., 1::2]], -1), places)

    x = torch.ones(1, 8)
    assert probes.turns_otherwise(as_deepseek, Rotary(8, pairing="interleaved"), x) is None
    assert probes.turns_otherwise(as_deepseek, Rotary(8), x)


@pytest.mark.parametrize("rope", [LLAMA3, YARN], ids=["llama3", "yarn"])
def test_stretched_frequencies_are_computed_in_the_dtype_of_the_angles(rope) -> None:
    far, rotary = torch.tensor([1_000_003]), Rotary.from_config(64, rope)
    x = torch.randn(1, 64, dtype=torch.float64)
    first = rotary.frequencies.double() * 0
    for pair in range(32):  # each pair alone, by Python's numbers
        plain = rope["rope_theta"] ** (-pair / 32)
        if rope is LLAMA3:
            kept = min(max((8192 * plain / (2 * math.pi) - 1) / 3, 0), 1)
        else:
            ends = [32 * math.log(4096 / (turns * 2 * math.pi)) / math.log(1e4) for turns in (32, 1)]
            low, high = math.floor(ends[0]), math.ceil(ends[1])
            kept = 1 - min(max((pair - low) / (high - low), 0), 1)
        first[pair] = (1 - kept) * plain / rope["factor"] + kept * plain
    exact = Rotary(64, frequencies=first, factor=rotary.factor)
    torch.testing.assert_close(rotary(x, far), exact(x, far), rtol=0, atol=1e-8)
    assert rotary.frequencies.dtype == torch.float32
    assert pickle.loads(pickle.dumps(rotary))(x, far).equal(rotary(x, far))


PAGE = (Path(__file__).parents[2] / "docs/pytorch/positions.py").read_text()


def from_the_page(function: str, source: str = PAGE):
    (code,) = re.findall(rf"(?ms)^def {function}\(.*?(?=^\S)", source)
    names = {"Rotary": Rotary, "probes": probes, "torch": torch}
    exec(code, names)
    return names[function]


def test_the_pages_check_for_ones_own_tests_fails_where_the_base_is_another() -> None:
    name = "test_features_turn_as_the_config_says"
    from_the_page(name)()
    for misread in ("Rotary(8, base=500_000.0)", 'Rotary(8, pairing="interleaved")', "Rotary(8, rotary_dim=4)"):
        with pytest.raises(AssertionError):
            from_the_page(name, PAGE.replace("my_turn = Rotary(8) ", f"my_turn = {misread} "))()


def test_the_pages_rows_and_columns_turn_as_in_qwen2_vl_but_for_the_order_of_features() -> None:
    x, place = torch.randn(5, 16), torch.randint(0, 40, (2, 5))
    angles = place[..., None] * 10_000.0 ** (-torch.arange(0, 8, 2) / 8)  # rows and columns have the same
    both = torch.cat([*angles, *angles], dim=-1)
    cos, sin = both.cos(), both.sin()
    theirs, _ = modeling_qwen2_vl.apply_rotary_pos_emb_vision(x[:, None], x[:, None], cos, sin)
    order = torch.arange(16).unflatten(0, (2, 2, 4)).transpose(0, 1).flatten()  # row and column, then the two partners
    ours = from_the_page("planar")(x[:, order], *place)
    torch.testing.assert_close(ours, theirs[:, 0, order])


def test_a_rotary_says_its_options() -> None:
    assert repr(Rotary(8)) == "Rotary(8, base=10000, pairing='halves')"
    partial = Rotary(8, base=5e5, pairing="interleaved", rotary_dim=2, frequencies=torch.ones(1))
    assert repr(partial) == "Rotary(8, base=500000, pairing='interleaved', rotary_dim=2, frequencies=...)"


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


EVEN = "features are turned in pairs: it must be even"
PLACED = "it must be (tokens,) or (batch, tokens): 4 tokens, and as many sequences as x has"
INTEGERS = "pass integers, such as torch.tensor([0, 0, 1]) holds"
test_what_makes_no_positions_is_refused = refused(
    {
        ValueError: {
            f"head_dim is 5; {EVEN}": lambda: Rotary(5),
            "head_dim is 0; it must be 1 or more": lambda: Rotary(0),
            f"rotary_dim is 3; {EVEN}": lambda: Rotary(8, rotary_dim=3),
            "rotary_dim is 10; it can be at most head_dim (8)": lambda: Rotary(8, rotary_dim=10),
            'pairing is \'neox\'; choose "halves" or "interleaved"': lambda: Rotary(8, pairing="neox"),
            "frequencies has shape (8,); for 8 features it must be (4,), one for each pair": lambda: Rotary(
                8, frequencies=torch.ones(8)
            ),
            "frequencies has shape (3,); for 8 features it must be (4,), one for each pair": lambda: Rotary(
                8, frequencies=lambda plain: plain[1:]
            ),
            "x has shape (2, 3, 4, 6); it must be (..., heads, tokens, 8)": lambda: Rotary(8)(
                torch.ones(2, 3, 4, 6), torch.arange(4)
            ),
            "x has shape (8,); it must be (..., heads, tokens, 8)": lambda: Rotary(8)(torch.ones(8), torch.arange(1)),
            "positions has shape (2, 4) and x (4, 8); " + PLACED: lambda: Rotary(8)(torch.ones(4, 8), zeros(2, 4)),
            f"dim is 5; {EVEN}": lambda: sinusoids(torch.arange(4), 5),
            "rows of weight (10) must be divisible by num_heads (4); try 2 or 5": lambda: convert_pairing(
                torch.ones(10, 3), 4, to="halves"
            ),
            f"rotary_dim is 5; {EVEN}": lambda: convert_pairing(torch.ones(10, 3), 2, to="halves"),
            "rotary_dim is 6; it can be at most head_dim (4)": lambda: convert_pairing(
                torch.ones(8, 3), 2, to="halves", rotary_dim=6
            ),
            'to is \'meta\'; choose "halves" or "interleaved"': lambda: convert_pairing(torch.ones(8, 3), 2, to="meta"),
            "num_heads is 0; it must be 1 or more": lambda: alibi_slopes(0),
        }
        | {
            f"positions has shape {shape} and x (2, 3, 4, 8); {PLACED}": lambda shape=shape: Rotary(8)(
                torch.ones(2, 3, 4, 8), zeros(*shape)
            )
            for shape in [(1,), (3,), (3, 4), (2, 1), (1, 1, 2, 4)]
        },
        TypeError: {
            f"positions is torch.float32; {INTEGERS}": (
                lambda: Rotary(8)(torch.ones(4, 8), torch.arange(4.0)),
                lambda: sinusoids(torch.arange(4.0), 4),
            ),
            f"positions is torch.bool; {INTEGERS}": lambda: Rotary(8)(torch.ones(4, 8), torch.ones(4).bool()),
        },
    }
)


def test_the_table_of_pairings_names_the_partners() -> None:
    table = dict(re.findall(r"^\| (halves|interleaved) \| (.+?) \|", positions.__doc__ or "", re.MULTILINE))
    assert table == {
        "halves": "a feature of the first half, its like in the second",
        "interleaved": "an even feature, and the next",
    }
    for pairing, partner in (("halves", lambda i: (i, i + 4)), ("interleaved", lambda i: (2 * i, 2 * i + 1))):
        for i in range(4):
            one, other = partner(i)
            moved = Rotary(8, pairing=pairing)(torch.eye(8)[one][None], torch.tensor([1]))[0]
            assert moved.nonzero().flatten().tolist() == [one, other]


MORE: dict[str, dict[str, Any]] = {  # the pairing, how many of 16 features turn, and what the functions want besides
    "llama": {},
    "cohere": {"says": "interleaved"},
    "glm4": {"says": "interleaved, 8 of 16 features"},
    "glm4_moe": {"says": "halves, 8 of 16 features"},
    "gpt_neox": {"says": "halves, 4 of 16 features"},
    "phi": {"says": "halves, 8 of 16 features"},
    "stablelm": {"says": "halves, 4 of 16 features"},
    "nemotron": {"says": "halves, 8 of 16 features"},
    "qwen3_next": {"says": "halves, 4 of 16 features"},
    "gemma3": {"config": "Gemma3TextConfig", "kind": ("full_attention",)},
    "modernbert": {"kind": ("sliding_attention",)},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MORE)
def test_the_page_tells_the_pairing_of_models_of_transformers(name: str) -> None:
    (fence,) = re.findall(r"(?s)#     ```py\n(#     def theirs.*?)#     ```", PAGE)
    names: dict[str, Any] = {"torch": torch}
    exec(fence.replace("#     ", ""), names)
    modeling = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    (rotary,) = (each for key, each in vars(modeling).items() if re.fullmatch(r"(?!Vision)\w+RotaryEmbedding", key))
    config_class = MORE[name].get("config") or rotary.__name__.replace("RotaryEmbedding", "Config")
    config = getattr(importlib.import_module("transformers"), config_class)(hidden_size=64, num_attention_heads=4)
    if hasattr(config, "head_dim"):
        config.head_dim = 16
    turn = names["theirs"](rotary(config), modeling.apply_rotary_pos_emb, *MORE[name].get("kind", ()))
    assert from_the_page("which_pairing")(turn, 16) == MORE[name].get("says", "halves")


def test_a_layer_of_exaone_4_turns_nothing_only_where_it_has_a_window_elsewhere() -> None:
    exaone4 = importlib.import_module("transformers.models.exaone4.modeling_exaone4")
    config_class = importlib.import_module("transformers").Exaone4Config
    for window, kinds in ((4, [True, False]), (None, [True, True])):
        layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": window}
        config = config_class(
            hidden_size=16, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=2, **layers
        )
        config._attn_implementation = "eager"
        for number, turns in enumerate(kinds):
            layer, x = exaone4.Exaone4Attention(config, number).eval(), torch.randn(1, 5, 16)
            angles = torch.rand(1, 5, 8)
            given = [layer(x, (each.cos(), each.sin()), None)[0] for each in (angles, 2 * angles)]
            assert (not torch.allclose(*given)) == turns
