"""What the doctor sees by watching what a module multiplies: right steps combined, and one wrong step among them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import diagnose

E, H, K, D = 20, 4, 2, 5 + 1


class Modern(nn.Module):
    """Pre-norm and residual, shared keys, rotation, a gate and a soft cap; `slip` changes one step."""

    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.slip, self.num_heads = slip, H
        self.norm = nn.LayerNorm(E)
        self.q_proj, self.o_proj, self.gate = nn.Linear(E, H * D), nn.Linear(H * D, E), nn.Linear(E, H * D)
        self.k_proj, self.v_proj = nn.Linear(E, K * D), nn.Linear(E, K * D)

    def turned(self, x: Tensor, sign: int = 1) -> Tensor:
        angle = sign * torch.arange(x.size(2)).to(x)[:, None] * 10.0 ** -torch.arange(D // 2).to(x)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    def forward(self, x: Tensor) -> Tensor:
        n, slip = self.norm(x), self.slip
        q, k, v = (f(n).unflatten(-1, (-1, D)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.turned(q), k if slip == "queries alone" else self.turned(k, -1 if slip == "backwards" else 1)
        v = self.turned(v) if slip == "values too" else v
        k = k.repeat_interleave(H // K, 1)
        v = v.repeat(1, H // K, 1, 1) if slip == "another order" else v.repeat_interleave(H // K, 1)
        if slip == "over tokens":
            q, k = F.normalize(q, dim=2), F.normalize(k, dim=2)
        scores = q @ k.mT * (1.0 if slip == "no scale" else D**-0.5)
        future = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        if slip == "two softmaxes":
            scores = scores.softmax(-1)
        scores = scores.masked_fill(future, -torch.inf) if slip != "cap last" else scores.masked_fill(future, -1e9)
        cap = 30 * (scores / 30).tanh()
        if slip != "two softmaxes":
            scores = cap if slip == "cap last" else torch.where(future, scores, cap)
        y = scores.softmax(-1) @ v
        y = y.transpose(1, 2).flatten(2) if slip != "merged by a view" else y.reshape(*x.shape[:2], -1)
        return x + self.o_proj(y * self.gate(n).sigmoid())


SLIPS = {
    "queries alone": None,
    "backwards": None,
    "values too": None,
    "another order": "repeat-for-repeat-interleave",
    "over tokens": None,
    "no scale": "missing-scale",
    "two softmaxes": None,
    "cap last": "softcap-after-mask",
    "merged by a view": "merge-without-transpose",
}


def test_right_steps_of_many_kinds_are_settled_together() -> None:
    report = diagnose(Modern(), embed_dim=E, causal=True, positions=True)
    assert report.ok, report
    assert report.decided
    assert "equality with the reference, step by step" in report.passed


@pytest.mark.parametrize("slip", SLIPS)
def test_one_wrong_step_among_them_is_named(slip: str) -> None:
    report = diagnose(Modern(slip), embed_dim=E, causal=True, positions=True)
    finding = report.findings[0]
    assert finding.cause == SLIPS[slip], report
    assert finding.certain
    assert report.decided


class Biased(nn.Module):
    """Three plain vectors are biases of three projections, whose matrices are kept (in, out)."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = H
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Parameter(torch.randn(E, E) / 4) for _ in range(4))
        self.bias_q, self.bias_k, self.bias_v = (nn.Parameter(torch.randn(E)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        pairs = ((self.w_q, self.bias_q), (self.w_k, self.bias_k), (self.w_v, self.bias_v))
        q, k, v = ((x @ w + b).unflatten(-1, (H, -1)).transpose(1, 2) for w, b in pairs)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2) @ self.w_o


@pytest.mark.parametrize("weights", [None, {"query": "w_q", "key": "w_k", "value": "w_v", "out": "w_o"}])
def test_either_orientation_of_a_plain_matrix_is_right_and_biases_are_biases(weights) -> None:
    report = diagnose(Biased(), embed_dim=E, weights=weights, causal=False)
    assert report.ok, report
    assert report.decided


def test_naming_the_weights_of_more_than_attention_is_no_finding() -> None:
    weights = {"query": "q_proj.weight", "key": "k_proj.weight", "value": "v_proj.weight", "out": "o_proj.weight"}
    report = diagnose(Modern(), embed_dim=E, num_heads=H, weights=weights, causal=True, positions=True)
    assert report.ok, report
    assert report.decided


def test_a_list_that_holds_one_head_many_times_is_a_finding() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            head = nn.ModuleList(nn.Linear(E, E // H) for _ in range(3))
            self.heads, self.out = nn.ModuleList([head] * H), nn.Linear(E, E)

        def forward(self, x: Tensor) -> Tensor:
            each = [F.scaled_dot_product_attention(*(layer(x) for layer in head)) for head in self.heads]
            return self.out(torch.cat(each, -1))

    report = diagnose(Shared(), embed_dim=E, num_heads=H, causal=False)
    assert any("the heads are one head" in finding.told for finding in report.findings), report
