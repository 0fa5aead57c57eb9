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
    assert report.verdict != "open"
    assert "equality with the reference, step by step" in report.passed


@pytest.mark.parametrize("slip", SLIPS)
def test_one_wrong_step_among_them_is_named(slip: str) -> None:
    report = diagnose(Modern(slip), embed_dim=E, causal=True, positions=True)
    finding = report.findings[0]
    assert finding.cause == SLIPS[slip], report
    assert finding.how != "open"
    assert report.verdict != "open"


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
    assert report.verdict != "open"


def test_naming_the_weights_of_more_than_attention_is_no_finding() -> None:
    weights = {"query": "q_proj.weight", "key": "k_proj.weight", "value": "v_proj.weight", "out": "o_proj.weight"}
    report = diagnose(Modern(), embed_dim=E, num_heads=H, weights=weights, causal=True, positions=True)
    assert report.ok, report
    assert report.verdict != "open"


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


class Three(nn.Module):
    """Queries, keys, values and a mask; `slip` takes the values from elsewhere, or masks every item as the first."""

    def __init__(self, slip: str = "", masked: bool = False) -> None:
        super().__init__()
        self.slip, self.masked, self.num_heads = slip, masked, H
        self.q, self.k, self.v, self.out = (nn.Linear(E, E) for _ in range(4))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None = None) -> Tensor:
        v = {"": v, "keys": k, "both": k + v}.get(self.slip, v)
        split = [f(x).unflatten(-1, (H, -1)).transpose(1, 2) for f, x in ((self.q, q), (self.k, k), (self.v, v))]
        if allowed is not None and allowed.dim() == 3:
            allowed = allowed[0] if self.slip == "first" else allowed[:, None]
        y = F.scaled_dot_product_attention(*split, attn_mask=allowed)
        return self.out(y.transpose(1, 2).flatten(2))


def test_each_of_three_inputs_must_make_its_own() -> None:
    swapped = diagnose(Three("keys"), embed_dim=E, inputs="qkv", causal=False)
    assert swapped.causes == ("wrong-value",)
    assert diagnose(Three("both"), embed_dim=E, inputs="qkv", causal=False).verdict == "open"
    assert diagnose(Three(), embed_dim=E, inputs="qkv", causal=False).verdict != "open"


def test_a_mask_of_three_axes_belongs_to_its_item_also_where_four_are_taken() -> None:
    (finding,) = diagnose(Three("first"), embed_dim=E, inputs="qkv_allowed").findings
    assert finding.cause == "only-first-item"
    assert "(batch, queries, keys)" in finding.told
    right = diagnose(Three(), embed_dim=E, inputs="qkv_allowed")
    assert right.ok
    assert right.verdict != "open"


class Own(nn.Module):
    """Self-attention with something between its steps."""

    def __init__(self, step: str) -> None:
        super().__init__()
        self.step, self.num_heads = step, H
        self.qkv, self.out = nn.Linear(E, 3 * E), nn.Linear(E, E)
        self.sinks = nn.Parameter(torch.randn(H)) if step.startswith("sinks") else None
        self.conv = nn.Conv1d(3 * E, 3 * E, 3, groups=3 * E) if step == "convolved" else None
        self.place = nn.Embedding(40, E) if step == "float32 mask" else None

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        items, tokens, _ = x.shape
        if self.place is not None:
            x = x + self.place(torch.arange(tokens))
        y = self.qkv(x)
        if self.conv is not None:
            y = self.conv(F.pad(y.mT, (2, 0))).mT
        q, k, v = y.unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("...id,...jd->...ij", q, k) * q.size(-1) ** -0.5
        if allowed is None:
            shut = torch.ones(tokens, tokens).triu(1).bool()  # through float32, which hides nothing of the rest
            scores = scores.masked_fill(shut, -torch.inf)
        else:
            hides = torch.where(allowed, 0.0, -1e4)
            padding = ~allowed.any(-2)
            scores = scores + hides + (torch.where(padding, -1e9, 0.0)[..., None] if self.step == "rows" else 0.0)
        if self.sinks is not None:
            sink = self.sinks.view(-1, 1, 1).expand(items, -1, tokens, 1)
            weights = torch.cat([sink, scores], -1).softmax(-1)[..., 1:]
            if self.step == "sinks undone":
                weights = weights / weights.sum(-1, keepdim=True)
        else:
            weights = scores.softmax(-1)
        context = (weights @ v).transpose(1, 2).flatten(2)
        if self.step == "context viewed":
            context = context.reshape(tokens, items, -1).transpose(0, 1)
        return self.out(context)


class Linears(nn.Module):
    """Four layers in a list, of which one projects what the heads have found."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.linears, self.last = nn.ModuleList(nn.Linear(E, E) for _ in range(4)), last

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (linear(x).unflatten(-1, (-1, 4)).transpose(1, 2) for linear in self.linears[:3])
        return self.linears[self.last](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_a_layer_that_makes_queries_and_outputs_while_another_is_left_out_is_a_finding() -> None:
    (finding,) = diagnose(Linears(0), embed_dim=E, num_heads=H + 1, causal=False).findings
    assert finding.told == "linears.0.weight makes its query and its output, and linears.3.weight is never used"
    assert diagnose(Linears(-1), embed_dim=E, num_heads=H + 1, causal=False).ok


def test_sinks_that_a_second_sum_undoes_are_a_finding() -> None:
    (finding,) = diagnose(Own("sinks undone"), embed_dim=E, causal=True).findings
    assert ("the sink has no effect" in finding.told, finding.cause) == (True, "sink-share-returned")
    assert diagnose(Own("sinks"), embed_dim=E, causal=True).ok


def test_a_context_viewed_with_batch_and_tokens_exchanged_is_named() -> None:
    assert diagnose(Own("context viewed"), embed_dim=E, causal=True).causes[0] == "batch-and-tokens-swapped"


@pytest.mark.parametrize(("step", "decided"), [("", True), ("convolved", False), ("float32 mask", True)])
def test_convolutions_and_masks_made_in_float32_are_no_finding(step: str, decided: bool) -> None:
    report = diagnose(Own(step), embed_dim=E, causal=True, positions=bool(step))
    assert report.ok, report
    assert (report.verdict != "open") == decided


def test_queries_hidden_where_keys_are_padding_leave_it_open() -> None:
    assert diagnose(Own(""), embed_dim=E, inputs="x_allowed").verdict != "open"
    hides = diagnose(Own("rows"), embed_dim=E, inputs="x_allowed")
    assert hides.ok
    assert hides.verdict == "open"


def test_matrices_multiplied_both_ways_contradict_what_was_said_of_them() -> None:
    class Bare(nn.Module):
        def __init__(self, out: str) -> None:
            super().__init__()
            self.rule, self.num_heads = f"bti,{out}->bto", H
            self.q, self.k, self.v, self.o = (nn.Parameter(torch.randn(E, E)) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = ((x @ w).unflatten(-1, (H, -1)).transpose(1, 2) for w in (self.q, self.k, self.v))
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            return torch.einsum(self.rule, y, self.o)

    names = {"query": "q", "key": "k", "value": "v", "out": "o"}
    both = diagnose(Bare("oi"), embed_dim=E, causal=False, weights=names)
    assert both.causes == ("weight-not-transposed",)
    assert both.findings[0].how == "open"
    assert diagnose(Bare("io"), embed_dim=E, causal=False, weights=names).verdict != "open"


class Viewed(nn.Module):
    """Keys shared by groups of queries, which a view alone makes."""

    def __init__(self, rows: tuple[int, int], groups: str) -> None:
        super().__init__()
        self.rows, self.groups, self.num_heads = rows, groups, H
        self.q, self.kv, self.out = nn.Linear(E, H * D), nn.Linear(E, 2 * K * D), nn.Linear(H * D, E)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (*self.rows, D))
        k, v = self.kv(x).unflatten(-1, (2, K, D)).unbind(2)
        weights = torch.einsum(f"bt{self.groups}d,bsgd->bgpts", q, k).mul(D**-0.5).softmax(-1)
        return self.out(torch.einsum(f"bgpts,bsgd->bt{self.groups}d", weights, v).flatten(2))


def test_groups_that_a_view_deals_out_in_turn_are_left_open() -> None:
    assert diagnose(Viewed((K, H // K), "gp"), embed_dim=E, causal=False).verdict != "open"
    dealt = diagnose(Viewed((H // K, K), "pg"), embed_dim=E, causal=False)
    assert dealt.ok
    assert "enable_gqa" in dealt.text()
    assert dealt.verdict == "open"


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
