"""What the doctor sees by watching what a module multiplies: right steps combined, and one wrong step among them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import diagnose

from .test_zoo import RIGHT, WRONG, examined
from .zoo.attention import Attention, fill, four, separate
from .zoo.cases import Style
from .zoo.plain import LETTERS, Gated, Matrices
from .zoo.positions import Placed, rope, rotary

E, H, K, D = 20, 4, 2, 5 + 1


def capped(scores: Tensor) -> Tensor:
    return 30 * (scores / 30).tanh()


# Pre-norm and residual, shared keys, rotation, a gate and a soft cap.
MODERN = Style(
    Gated,
    dim=E,
    heads=H,
    groups=K,
    width=D,
    names=separate("", "_proj"),
    norm=nn.LayerNorm,
    residual=True,
    causal=True,
    show=lambda s, allowed: fill(capped(s), allowed),
    **rotary(),
)
SLIPS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "queries alone": (None, {"placed": lambda q, k, v, at: (rope(q, at), k, v)}),
    "backwards": (None, {"placed": lambda q, k, v, at: (rope(q, at), rope(k, at, sign=-1.0), v)}),
    "values too": (None, {"placed": lambda q, k, v, at: (rope(q, at), rope(k, at), rope(v, at))}),
    "another order": (
        "repeat-for-repeat-interleave",
        {"widen": lambda k, v, n: (k.repeat_interleave(n, 1), v.repeat(1, n, 1, 1))},
    ),
    "over tokens": (
        None,
        {"placed": lambda q, k, v, at: (F.normalize(rope(q, at), dim=2), F.normalize(rope(k, at), dim=2), v)},
    ),
    "no scale": ("missing-scale", {"score": lambda q, k: q @ k.mT}),
    "two softmaxes": (None, {"show": lambda s, allowed: fill(s.softmax(-1), allowed)}),
    "cap last": ("softcap-after-mask", {"show": lambda s, allowed: capped(fill(s, allowed, -1e9))}),
    "merged by a view": ("merge-without-transpose", {"merge": lambda y, heads: y.reshape(len(y), y.size(2), -1)}),
}


@pytest.mark.parametrize("weights", [None, {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}])
def test_right_steps_of_many_kinds_are_settled_together_also_where_their_weights_are_named(weights) -> None:
    weights = weights and {role: f"{name}.weight" for role, name in weights.items()}
    report = MODERN.examine(weights=weights)
    assert not report.named, report
    assert report.verdict != "open"
    assert weights or "equality with the reference, step by step" in report.passed


@pytest.mark.parametrize("slip", SLIPS)
def test_one_wrong_step_among_them_is_named(slip: str) -> None:
    cause, steps = SLIPS[slip]
    report = MODERN(**steps).examine()
    finding = report.named[0]
    assert finding.cause == cause, report
    assert finding.how != "open"
    assert report.verdict != "open"


@pytest.mark.parametrize("weights", [None, LETTERS])
def test_either_orientation_of_a_plain_matrix_is_right_and_biases_are_biases(weights) -> None:
    report = diagnose(Matrices(bias=True), embed_dim=24, weights=weights, causal=False)
    assert not report.named, report
    assert report.verdict != "open"


def test_matrices_multiplied_both_ways_contradict_what_was_said_of_them() -> None:
    said = Style(Matrices, weights=LETTERS, causal=False)
    both = said(slip="o").examine()
    assert both.causes == ("weight-not-transposed",)
    assert both.named[0].how == "open"
    assert said.examine().verdict != "open"


def test_each_of_three_inputs_must_make_its_own() -> None:
    three = Style(Attention, dim=E, heads=H, inputs="qkv", names=separate("", "_proj"), causal=False)
    assert three(taken=lambda q, k, v: (q, k, k)).examine().causes == ("wrong-value",)
    assert three(taken=lambda q, k, v: (q, k, k + v)).examine().verdict == "open"
    assert three.examine().verdict != "open"


def test_a_mask_of_three_axes_belongs_to_its_item_also_where_four_are_taken() -> None:
    three = Style(Attention, dim=E, heads=H, inputs="qkv_allowed", names=separate("", "_proj"))
    first = three(spread=lambda allowed, heads: allowed[0] if allowed.dim() == 3 else four(allowed))
    (finding,) = first.examine().named
    assert finding.cause == "only-first-item"
    assert "(batch, queries, keys)" in finding.told
    right = three.examine()
    assert not right.named
    assert right.verdict != "open"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("head-list-of-one-module", "the heads are one head"),
        ("sink-weights-renormalized", "the sink has no effect"),
        (
            "query-layer-for-the-output",
            "projections.0.weight makes its query and its output, and projections.3.weight is never used",
        ),
    ],
)
def test_what_it_sees_is_told(name: str, told: str) -> None:
    report = examined(WRONG[name])
    assert told in report.named[0].told, report


def test_convolutions_leave_it_open_and_masks_made_in_float32_do_not() -> None:
    assert examined(RIGHT["primer-dconv"]).verdict == "open"
    masked = Style(
        Placed,
        causal=True,
        positions=True,
        sees=lambda at, keys: torch.ones(len(at), len(keys)).tril().bool(),  # which hides nothing of the rest
    )
    report = masked.examine()
    assert not report.named, report
    assert report.verdict != "open"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("padding-broadcast-over-keys", ""),
        ("grouped-queries-viewed-the-other-way", "enable_gqa"),
    ],
)
def test_queries_hidden_where_keys_are_padding_and_groups_dealt_out_in_turn_are_left_open(name: str, told: str) -> None:
    assert WRONG[name].twin.examine().verdict != "open"
    report = examined(WRONG[name])
    assert (not report.named, report.verdict) == (True, "open")
    assert told in report.text()


def test_layers_of_several_widths_with_names_that_go_together_are_no_crash() -> None:
    class Latent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads = H
            self.q_proj, self.kv_a_proj, self.kv_b_proj = nn.Linear(E, H * D), nn.Linear(E, 7), nn.Linear(7, 2 * H * D)
            self.o_proj = nn.Linear(H * D, E)

        def forward(self, x: Tensor) -> Tensor:
            k, v = self.kv_b_proj(self.kv_a_proj(x)).unflatten(-1, (H, -1)).transpose(1, 2).chunk(2, -1)
            q = self.q_proj(x).unflatten(-1, (H, -1)).transpose(1, 2)
            return self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    assert diagnose(Latent(), embed_dim=E, causal=False).verdict != "open"


class Grouped(nn.Module):
    """Six query heads share two key heads, behind norms, which hide of which rows keys are made."""

    def __init__(self, *, dealt: bool) -> None:
        super().__init__()
        self.q, self.kv, self.out, self.dealt = nn.Linear(24, 24), nn.Linear(24, 16), nn.Linear(24, 24), dealt
        self.q_norm, self.k_norm = nn.LayerNorm(4), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q_norm(self.q(x).unflatten(-1, (6, 4))).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, 2, 4)).unbind(2)
        k, v = (y.transpose(1, 2) for y in (self.k_norm(k), v))
        k, v = (y.repeat(1, 3, 1, 1) if self.dealt else y.repeat_interleave(3, 1) for y in (k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("dealt", [False, True])
def test_which_heads_share_a_key_is_seen_behind_norms(dealt: bool) -> None:
    report = diagnose(Grouped(dealt=dealt), embed_dim=24, num_heads=6, causal=False)
    assert report.ok, report
    assert report.causes == (("repeat-for-repeat-interleave",) if dealt else ()), report


class Distant(nn.Module):
    """A bias by distance, whose sign may be turned: then all tokens before a query have the same."""

    def __init__(self, sign: int) -> None:
        super().__init__()
        self.qkv, self.table, self.sign = nn.Linear(12, 36), nn.Embedding(8, 1), sign

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        at = torch.arange(x.size(1))
        distance = (self.sign * (at[:, None] - at)).clamp(0, 7)
        scores = q @ k.mT * 12**-0.5 + self.table(distance)[..., 0]
        return scores.masked_fill(at > at[:, None], -torch.inf).softmax(-1) @ v


def test_a_table_of_which_one_row_is_read_is_told() -> None:
    assert not diagnose(Distant(1), embed_dim=12, causal=True).named
    (difference,) = diagnose(Distant(-1), embed_dim=12, causal=True).differences
    assert (difference.step, difference.told) == ("parameters", "only 1 of 8 rows of table.weight are ever read")


def test_a_kink_is_no_cut_gradient() -> None:
    def kinked(x: Tensor) -> Tensor:
        signed = (x.relu() + 1e-9).sqrt() - ((-x).relu() + 1e-9).sqrt()
        return (signed @ signed.mT).softmax(-1) @ x

    assert "gradient-cut" not in diagnose(kinked, embed_dim=12, causal=False).causes
