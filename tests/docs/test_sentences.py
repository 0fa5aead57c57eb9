"""Sentences of the pages on today's PyTorch that turn round by one word: each stands there, and what the page computes
says the same."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from unmasked.positions import Rotary

from ..running import names_of, prose_of


def close(actual: torch.Tensor, expected: torch.Tensor, atol: float = 1e-5) -> bool:
    return torch.allclose(actual, expected, atol=atol)


def rope(p: SimpleNamespace, model: str, kind: str | None = None) -> Rotary:
    """The rotary of one of the small layers of the page on models."""
    parameters = p.experiments.CONFIGS[model]["rope_parameters"]
    return Rotary.from_config(8, parameters if kind is None else parameters[kind])


def scores_grow_by_the_square(p: SimpleNamespace) -> bool:
    yarn, x = rope(p, "gpt-oss"), torch.ones(1, 8)
    turned = yarn(x, torch.tensor([3]))
    return yarn.factor > 1.1 and close(turned @ turned.mT, yarn.factor**2 * x @ x.mT)


def slow_pairs_are_slowed(p: SimpleNamespace) -> bool:
    shares = rope(p, "gpt-oss").frequencies / Rotary(8, base=150_000.0).frequencies
    return close(shares[[0, -1]], 1 / torch.tensor([1.0, 32.0]))


def slip(p: SimpleNamespace, wrong: str) -> bool:
    """Whether the output moves by what is written instead of a line."""
    return sum(share > 0.02 for each, share in p.moved.items() if each.wrong == wrong) == 1


def left(p: SimpleNamespace, length: float) -> float:
    """What is left of a one under a key, where a zero is written."""
    key = torch.tensor([[length]], dtype=torch.double)
    zero, one = torch.zeros_like(key), torch.ones_like(key)
    state: torch.Tensor = p.gated_delta_loop(key, key, zero, [1], [1], one)[1]
    return state.item()


def kept(p: SimpleNamespace) -> dict[str, torch.Tensor]:
    """Which share of each pair's former speed stays, by each rule."""
    return {name: (8 * share - 1) / 7 for name, share in p.slowed.items()}


def rules_differ_in_what_they_read(p: SimpleNamespace) -> bool:
    def straight(name: str, x: torch.Tensor) -> bool:
        y = kept(p)[name]
        between = (y > 0.01) & (y < 0.99)
        steps = y[between].diff() / x[between].diff()
        return bool(steps.std() < 0.02 * steps.mean().abs())

    index = torch.arange(64.0)
    return (straight("llama3", p.plain), straight("llama3", index), straight("yarn", index)) == (True, False, True)


def sees_its_own_slots(p: SimpleNamespace) -> bool:
    each = [p.alone(text[None, : end + 1])[0, -1] for text, end in zip(p.x, p.lengths, strict=True)]
    return close(p.step, torch.stack(each), 1e-4) and not close(p.seen, p.step, 1e-2)


def summed_and_corrected(p: SimpleNamespace) -> bool:
    ones = torch.ones(2, dtype=torch.double)
    (summed, _), (corrected, _) = (
        p.linear(*[p.twice] * 2, p.values),
        p.gated_delta(*[p.twice] * 2, p.values, ones, ones),
    )
    return close(summed[-1], p.values.sum(0)) and close(corrected[-1], p.values[-1])


SENTENCES: dict[tuple[str, str], Callable[[SimpleNamespace], bool]] = {
    ("models", "Each head's query is divided by its root mean square"): lambda p: close(
        p.norm(torch.full((1, 8), 4.0), torch.ones(8), 0), torch.ones(1, 8)
    ),
    ("models", "The norm comes *before* the turning"): lambda p: (
        (text := inspect.getsource(p.qwen3)).index("= norm(query") < text.index("= rotary(query")
    ),
    ("models", "see only a window, and turn by a base of ten thousand"): lambda p: close(
        rope(p, "Gemma 3", "sliding_attention").frequencies, Rotary(8).frequencies
    ),
    ("models", "turns by a base of a million, with every angle divided by eight"): lambda p: close(
        8 * rope(p, "Gemma 3", "full_attention").frequencies, Rotary(8, base=1e6).frequencies
    ),
    ("models", "The factor of a norm is one plus the stored weight"): lambda p: slip(p, 'w["q_norm.weight"]'),
    ("models", "fast pairs turn as before, and slow ones are slowed down in proportion"): slow_pairs_are_slowed,
    ("models", "are also multiplied by a factor, which enters every score squared"): scores_grow_by_the_square,
    ("models", "The cache keeps only the latent, and one turned key that all heads share"): lambda p: (
        len(p.experiments.layer("DeepSeek-V3")[1]["kv_a_proj_with_mqa.weight"]) == 10 + 4
    ),
    ("models", "first a head's query, then its gate"): lambda p: slip(p, "gate, query = both"),
    ("models", "Only a quarter of the features turn"): lambda p: rope(p, "Qwen3-Next").rotary_dim == 8 / 4,
    ("linear", r"the brackets can be moved: $Q (K^\top V)$ is the same"): lambda p: close(
        p.query @ (p.key.mT @ p.value), p.query @ p.key.mT @ p.value
    ),
    ("linear", "reads what is stored under the key, and writes only the difference"): summed_and_corrected,
    ("linear", "answers with the sum, and the delta rule with the newest"): summed_and_corrected,
    ("linear", "all of it for a key of length one, and more than all of it for a longer one"): lambda p: (
        abs(left(p, 1)) < 1e-9 and left(p, 1.2) < 0
    ),
    ("linear", "has the other sign; beyond a length of the root of two, it is larger than what was there"): lambda p: (
        left(p, 1.42) < -1 < left(p, 1.41) < 0
    ),
    ("linear", "in bytes, that makes twice as many words"): lambda p: (
        torch.float32.itemsize == 2 * torch.bfloat16.itemsize
    ),
    ("serving", "a query sees the slots up to its own"): sees_its_own_slots,
    ("serving", "*slot* says where its key lies, and is counted along the row"): lambda p: close(
        p.goes_on, p.by_itself, 1e-4
    ),
    ("serving", "*place* says where it stands in its text, and is counted by depth"): lambda p: (
        (p.place - 8).tolist() == [0, 1, 1, 2, 2, 2]
    ),
    ("serving", r"stays with the chance $\min(1, p(w) / q(w))$"): lambda p: close(
        p.verify(p.q, p.p)[0], (p.p / p.q).clamp(max=1)
    ),
    ("serving", "replaced by a draw from the excess of $p$ over $q$"): lambda p: (
        not (p.verify(p.q, p.p)[1] * (p.p <= p.q)).any()
    ),
    ("flex", "A `mask_mod` says who may see whom, and a `score_mod` changes a score"): lambda p: close(
        p.by_flex, p.ours
    ),
    ("flex", "Exchange `query` and `key`, and the past is hidden instead of the future"): lambda p: bool(
        p.made.triu(1).any() and not p.made.tril(-1).any()
    ),
    ("flex", r"shrinks by a factor, the sigmoid of $\ell - b$"): lambda p: close(p.sunk, p.eager),
    ("positions", "Their dot product keeps only the difference of the angles"): lambda p: p.spread < 1e-3,
    ("positions", "move the rows of both projections, and to leave the value's alone"): lambda p: close(
        p.mended, p.all_scores(p.w_q, p.w_k, Rotary(8, pairing="halves"))
    ),
    (
        "positions",
        "`chunk(2, -1)` has halves, and code with `view_as_complex` or `x[..., ::2]` is interleaved",
    ): lambda p: (
        [p.which_pairing(turn, 64) for turn in (p.in_bfloat16, p.as_deepseek_does)] == ["halves", "interleaved"]
    ),
    ("positions", "fast pairs keep their speed"): lambda p: all(share[0] == 1 for share in p.slowed.values()),
    ("positions", "falls from one for the fast pairs to zero for the slow ones"): lambda p: all(
        y[0] == 1 and y[-1].abs() < 1e-2 for y in kept(p).values()
    ),
    ("positions", r"Llama's rule takes $\gamma_i$ from the wavelength, the code of YaRN from the number of the pair"): (
        rules_differ_in_what_they_read
    ),
    ("positions", "the first becomes the first times the cosine minus the second times the sine"): lambda p: (
        abs(Rotary(2)(torch.tensor([[3.0, 5.0]]), torch.tensor([1]))[0, 0] - 3 * math.cos(1) + 5 * math.sin(1)) < 1e-5
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "sentence"), SENTENCES)
def test_a_sentence_stands_on_its_page_and_is_true(name: str, sentence: str) -> None:
    page = f"docs/pytorch/{name}.py"
    assert sentence in prose_of(name), f"{page} no longer says: {sentence}"
    assert SENTENCES[name, sentence](names_of(name)), f"{page} computes otherwise than it says: {sentence}"
