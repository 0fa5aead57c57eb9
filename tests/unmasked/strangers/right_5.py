"""Correct attention modules that were accused, or that stopped the doctor, when it first saw them."""

import math

import torch
import torch.nn.functional as F
from cases import Case, seeded
from torch import Tensor, nn

CASES = []


def case(name, build, kind, note, **call):
    CASES.append(Case(name, seeded(19, build), call, kind, note))


class ShiftedWindowAttention(nn.Module):
    def __init__(self, dim, resolution=(4, 4), window=2, shift=1, num_heads=2):
        super().__init__()
        self.res, self.ws, self.shift, self.h = resolution, window, shift, num_heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.relative_position_bias_table = nn.Parameter(torch.randn((2 * window - 1) ** 2, num_heads) * 0.02)
        c = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        r = (c[:, :, None] - c[:, None, :]).permute(1, 2, 0).contiguous() + window - 1
        r[..., 0] *= 2 * window - 1
        self.register_buffer("relative_position_index", r.sum(-1))
        H, W = resolution
        img = torch.zeros(1, H, W, 1)
        slices = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
        cnt = 0
        for h in slices:
            for w in slices:
                img[:, h, w, :] = cnt
                cnt += 1
        ids = self.partition(img).squeeze(-1)
        self.register_buffer("attn_mask", ids.unsqueeze(1) != ids.unsqueeze(2))

    def partition(self, x):
        B, H, W, C = x.shape
        x = x.view(B, H // self.ws, self.ws, W // self.ws, self.ws, C)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, self.ws * self.ws, C)

    def reverse(self, w, B):
        H, W = self.res
        x = w.view(B, H // self.ws, W // self.ws, self.ws, self.ws, -1)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, -1)

    def forward(self, x):
        B, L, C = x.shape
        shortcut = x
        x = self.norm1(x).view(B, *self.res, C)
        x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        xw = self.partition(x)
        nB, N, _ = xw.shape
        q, k, v = self.qkv(xw).reshape(nB, N, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4)
        attn = (q * (C // self.h) ** -0.5) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(N, N, -1)
        attn = attn + bias.permute(2, 0, 1).unsqueeze(0)
        nW = self.attn_mask.shape[0]
        attn = attn.view(B, nW, self.h, N, N).masked_fill(self.attn_mask[None, :, None], -100.0)
        attn = attn.view(-1, self.h, N, N).softmax(-1)
        xw = self.proj((attn @ v).transpose(1, 2).reshape(nB, N, C))
        x = torch.roll(self.reverse(xw, B), shifts=(self.shift, self.shift), dims=(1, 2))
        return shortcut + x.view(B, L, C)


class GanSelfAttention(nn.Module):
    def __init__(self, n_channels, reduction=4):
        super().__init__()
        self.query, self.key, self.value = [
            nn.Conv1d(n_channels, c, kernel_size=1, bias=False)
            for c in (n_channels // reduction, n_channels // reduction, n_channels)
        ]
        self.gamma = nn.Parameter(torch.tensor([0.0]))

    def forward(self, seq):
        x = seq.mT
        f, g, h = self.query(x), self.key(x), self.value(x)
        # beta[b, key, query]; each column is a distribution over keys
        beta = F.softmax(torch.bmm(g.transpose(1, 2), f), dim=1)
        o = self.gamma * torch.bmm(h, beta) + x
        return o.mT.contiguous()


def permute_final_dims(t, inds):
    zero = -1 * len(inds)
    first = list(range(len(t.shape[:zero])))
    return t.permute(first + [zero + i for i in inds])


class GatedPairBias(nn.Module):
    def __init__(self, c=24, c_hidden=5, no_heads=4, inf=1e9):
        super().__init__()
        self.c_hidden, self.no_heads, self.inf = c_hidden, no_heads, inf
        self.layer_norm = nn.LayerNorm(c)
        self.left, self.right = nn.Linear(c, 8), nn.Linear(c, 8)
        self.linear_z = nn.Linear(8, no_heads, bias=False)
        self.linear_q = nn.Linear(c, c_hidden * no_heads, bias=False)
        self.linear_k = nn.Linear(c, c_hidden * no_heads, bias=False)
        self.linear_v = nn.Linear(c, c_hidden * no_heads, bias=False)
        self.linear_g = nn.Linear(c, c_hidden * no_heads)
        self.linear_o = nn.Linear(c_hidden * no_heads, c)

    def forward(self, m, mask=None):
        m = self.layer_norm(m)
        if mask is None:
            mask = m.new_ones(m.shape[0], m.shape[1], m.shape[1])
        if mask.dim() == 2:
            mask = mask[None]
        if mask.dim() == 3:
            mask = mask[:, None]
        mask_bias = self.inf * (mask.to(m.dtype) - 1)
        z = self.left(m)[:, :, None] * self.right(m)[:, None]
        pair_bias = permute_final_dims(self.linear_z(z), (2, 0, 1))
        q, k, v = (f(m).unflatten(-1, (self.no_heads, -1)) for f in (self.linear_q, self.linear_k, self.linear_v))
        q = permute_final_dims(q, (1, 0, 2)) / math.sqrt(self.c_hidden)
        k = permute_final_dims(k, (1, 2, 0))
        a = torch.matmul(q, k)
        for bias in (mask_bias, pair_bias):
            a = a + bias
        a = torch.softmax(a, dim=-1)
        o = torch.matmul(a, permute_final_dims(v, (1, 0, 2)))
        o = permute_final_dims(o, (1, 0, 2))
        g = torch.sigmoid(self.linear_g(m)).view(o.shape)
        return self.linear_o((o * g).flatten(-2))


class PointwiseSequential(nn.Module):
    def __init__(self, d=24, heads=2, dqk=8, dv=12, max_len=256):
        super().__init__()
        self.h, self.dqk, self.dv, self.n = heads, dqk, dv, 50
        self.norm_in = nn.LayerNorm(d)
        self.uvqk = nn.Parameter(torch.randn(d, heads * (2 * dv + 2 * dqk)) * 0.2)
        self.ts_bias = nn.Parameter(torch.randn(2 * max_len - 1) * 0.1)
        self.max_len = max_len
        self.norm_attn = nn.LayerNorm(heads * dv)
        self.o = nn.Linear(heads * dv, d)

    def forward(self, x):
        B, T, _ = x.shape
        mixed = F.silu(self.norm_in(x) @ self.uvqk)
        u, v, q, k = mixed.split([self.h * self.dv] * 2 + [self.h * self.dqk] * 2, dim=-1)
        v, q, k = (z.reshape(B, T, self.h, -1) for z in (v, q, k))
        i = torch.arange(T, device=x.device)
        rab = self.ts_bias[i[:, None] - i[None, :] + self.max_len - 1]
        a = torch.einsum("bnhd,bmhd->bhnm", q, k) + rab
        a = F.silu(a) / self.n * (i[:, None] >= i[None, :])
        y = torch.einsum("bhnm,bmhd->bnhd", a, v).reshape(B, T, -1)
        return x + self.o(u * self.norm_attn(y))


class FrameCausalAttention(nn.Module):
    def __init__(self, dim=24, heads=4, tokens_per_frame=2):
        super().__init__()
        self.heads, self.tpf = heads, tokens_per_frame
        self.in_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.q_ln, self.k_ln = nn.LayerNorm(dim // heads), nn.LayerNorm(dim // heads)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.in_proj(x).view(b, n, 3, self.heads, c // self.heads).unbind(2)
        q, k = self.q_ln(q), self.k_ln(k)
        frame = torch.arange(n, device=x.device) // self.tpf
        mask = frame[:, None] >= frame[None, :]
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
        return self.out_proj(y.transpose(1, 2).reshape(b, n, c))


case(
    "shifted-window-of-two",
    lambda: ShiftedWindowAttention(16),
    "vision",
    "Rolled windows of 2x2 with region masks: the ends are in windows of their own.",
    embed_dim=16,
    num_heads=2,
    causal=False,
    tokens=16,
    positions=True,
)

case(
    "gan-self-attention",
    lambda: GanSelfAttention(24),
    "vision",
    "SAGAN: no scale, as in the paper; queries have fewer features than values.",
    embed_dim=24,
    num_heads=1,
    causal=False,
)

case(
    "gated-pair-bias",
    GatedPairBias,
    "mask",
    "OpenFold: a pair bias out of products of tokens, the mask as 1e9 * (mask - 1).",
    embed_dim=24,
    num_heads=4,
    causal=False,
    inputs="x_allowed",
)

case(
    "pointwise-silu-recommender",
    PointwiseSequential,
    "softmax",
    "HSTU: SiLU of the scores over a constant length, no softmax.",
    embed_dim=24,
    num_heads=2,
    causal=True,
    positions=True,
)

case(
    "frame-causal-video",
    FrameCausalAttention,
    "mask",
    "Tokens of a frame of two see each other and all earlier frames.",
    embed_dim=24,
    num_heads=4,
    causal=False,
    positions=True,
)


def streaming_right(q: Tensor, k: Tensor, v: Tensor, block: int = 2) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, a block of keys at a time."""
    q = q * q.shape[-1] ** -0.5
    top = q.new_full((*q.shape[:-1], 1), -torch.inf)
    total = torch.zeros_like(top)
    acc = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for lo in range(0, k.shape[-2], block):
        s = q @ k[..., lo : lo + block, :].transpose(-1, -2)
        new_top = torch.maximum(top, s.amax(-1, keepdim=True))
        p, correction = (s - new_top).exp(), (top - new_top).exp()
        total = total * correction + p.sum(-1, keepdim=True)
        acc = acc * correction + p @ v[..., lo : lo + block, :]
        top = new_top
    return acc / total


case(
    "streaming-function, right",
    lambda: streaming_right,
    "numbers",
    "The running sum and the accumulator are both corrected when the maximum moves.",
    embed_dim=12,
    num_heads=1,
    inputs="qkv",
    causal=False,
)


class RectangularWindow(nn.Module):
    def __init__(self, dim, window_size=(2, 4), num_heads=2):
        super().__init__()
        self.dim, self.window_size, self.num_heads = dim, window_size, num_heads
        self.scale = (dim // num_heads) ** -0.5
        table = torch.zeros((2 * window_size[0] - 1) * (2 * window_size[1] - 1), num_heads)
        self.relative_position_bias_table = nn.Parameter(nn.init.trunc_normal_(table, std=0.02))
        coords = torch.stack(torch.meshgrid([torch.arange(s) for s in window_size], indexing="ij"))
        coords_flatten = torch.flatten(coords, 1)
        relative_coords = (coords_flatten[:, :, None] - coords_flatten[:, None, :]).permute(1, 2, 0).contiguous()
        relative_coords[:, :, 0] += window_size[0] - 1
        relative_coords[:, :, 1] += window_size[1] - 1
        relative_coords[:, :, 0] *= 2 * window_size[1] - 1
        self.register_buffer("relative_position_index", relative_coords.sum(-1))
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B_, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(N, N, -1)
        attn = (attn + bias.permute(2, 0, 1).contiguous().unsqueeze(0)).softmax(-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B_, N, C))


case(
    "rectangular-window, right",
    lambda: RectangularWindow(16),
    "positions",
    "Rows are counted in steps of 2 * width - 1.",
    embed_dim=16,
    num_heads=2,
    causal=False,
    tokens=8,
    positions=True,
)


class LinearBiasEncoder(nn.Module):
    """Speech encoder with linear position biases, both sides."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        slopes = 2.0 ** (-8.0 * torch.arange(1, num_heads + 1, dtype=torch.float64) / num_heads)
        self.register_buffer("slopes", slopes.view(-1, 1, 1), persistent=False)

    def position_bias(self, n, x):
        pos = torch.arange(n, device=x.device, dtype=x.dtype)
        return -(pos[None, :] - pos[:, None]).abs() * self.slopes.to(x.dtype)

    def forward(self, x):  # T, B, C
        t, b, c = x.shape
        q, k, v = (
            z.reshape(t, b, self.num_heads, self.head_dim).permute(1, 2, 0, 3) for z in self.in_proj(x).chunk(3, -1)
        )
        w = torch.matmul(q, k.mT) * self.head_dim**-0.5 + self.position_bias(t, x)
        y = torch.matmul(w.softmax(-1), v)
        return self.out_proj(y.permute(2, 0, 1, 3).reshape(t, b, c))


case(
    "linear-bias-encoder, right",
    lambda: LinearBiasEncoder(24, 4),
    "positions",
    "The distance has no sign.",
    embed_dim=24,
    num_heads=4,
    causal=False,
    batch_first=False,
    positions=True,
)


class ImageTokenizerAttention(nn.Module):
    """Keys have no bias."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv_bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias, requires_grad=False), self.v_bias))
        qkv = F.linear(input=x, weight=self.qkv.weight, bias=qkv_bias)
        q, k, v = qkv.reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attn = (q * (C // self.num_heads) ** -0.5 @ k.transpose(-2, -1)).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


case(
    "image-tokenizer-bias, right",
    lambda: ImageTokenizerAttention(24, 4),
    "projection",
    "Keys have no bias.",
    embed_dim=24,
    num_heads=4,
    causal=False,
)


class SinkTokenAttention(nn.Module):
    def __init__(self, hidden_size=20, num_heads=5):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.sinks = nn.Parameter(torch.randn(num_heads))
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.o = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden):
        b, n, c = hidden.shape
        q, k, v = self.qkv(hidden).view(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        logits = torch.matmul(q, k.transpose(2, 3)) * self.head_dim**-0.5
        logits = logits + torch.full((n, n), -torch.inf, dtype=logits.dtype, device=logits.device).triu(1)
        sinks = self.sinks.view(1, -1, 1, 1).expand(b, -1, n, 1)
        combined = torch.cat([logits, sinks], dim=-1)
        combined = combined - combined.amax(dim=-1, keepdim=True)
        probs = F.softmax(combined, dim=-1)[..., :-1]
        return {"hidden": self.o(torch.matmul(probs, v).transpose(1, 2).reshape(b, n, c)), "probs": probs}


case(
    "sinks, right",
    SinkTokenAttention,
    "softmax",
    "The sinks' column is dropped after the softmax.",
    embed_dim=20,
    num_heads=5,
    causal=True,
)
