"""Attention modules with a planted bug each that the doctor had not seen."""

import torch
import torch.nn.functional as F
from cases import Case, seeded
from torch import Tensor, nn

CASES = []


def case(name, build, kind, note, cause=None, /, **call):
    CASES.append(Case(name, seeded(19, build), call, kind, note, cause))


class GatedHeads(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.to_qkvg = nn.Linear(dim, dim * 4, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v, g = self.to_qkvg(self.norm(x)).chunk(4, dim=-1)
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v)
        out = out * torch.sigmoid(g).reshape(out.shape)
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))


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
        qkv_bias = torch.cat((self.q_bias, self.v_bias, torch.zeros_like(self.v_bias, requires_grad=False)))
        qkv = F.linear(input=x, weight=self.qkv.weight, bias=qkv_bias)
        q, k, v = qkv.reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attn = (q * (C // self.num_heads) ** -0.5 @ k.transpose(-2, -1)).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


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
        return (pos[None, :] - pos[:, None]) * self.slopes.to(x.dtype)

    def forward(self, x):  # T, B, C
        t, b, c = x.shape
        q, k, v = (
            z.reshape(t, b, self.num_heads, self.head_dim).permute(1, 2, 0, 3) for z in self.in_proj(x).chunk(3, -1)
        )
        w = torch.matmul(q, k.mT) * self.head_dim**-0.5 + self.position_bias(t, x)
        y = torch.matmul(w.softmax(-1), v)
        return self.out_proj(y.permute(2, 0, 1, 3).reshape(t, b, c))


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
        relative_coords[:, :, 0] *= 2 * window_size[0] - 1
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


def streaming_attention(q: Tensor, k: Tensor, v: Tensor, block: int = 2) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, a block of keys at a time."""
    q = q * q.shape[-1] ** -0.5
    top = q.new_full((*q.shape[:-1], 1), -torch.inf)
    total = torch.zeros_like(top)
    acc = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for lo in range(0, k.shape[-2], block):
        s = q @ k[..., lo : lo + block, :].transpose(-1, -2)
        new_top = torch.maximum(top, s.amax(-1, keepdim=True))
        p, correction = (s - new_top).exp(), (top - new_top).exp()
        total = total + p.sum(-1, keepdim=True)
        acc = acc * correction + p @ v[..., lo : lo + block, :]
        top = new_top
    return acc / total


class PrecomputedBiasAttention(nn.Module):
    """The table is gathered once, not in every forward."""

    def __init__(self, dim, num_heads, side=3):
        super().__init__()
        self.num_heads = num_heads
        self.bias_table = nn.Parameter(torch.randn((2 * side - 1) ** 2, num_heads) * 0.02)
        y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        y, x = y.flatten(), x.flatten()
        index = (y[:, None] - y[None] + side - 1) * (2 * side - 1) + (x[:, None] - x[None] + side - 1)
        self.register_buffer("index", index, persistent=False)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.register_buffer("attn_bias", self.gather_bias().detach().clone(), persistent=False)

    def gather_bias(self):
        return self.bias_table[self.index].permute(2, 0, 1)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.attn_bias.to(q.dtype))
        return self.proj(y.transpose(1, 2).reshape(B, N, C))


class KeyBucketAttention(nn.Module):
    def __init__(self, dim=20, heads=2, bucket=4):
        super().__init__()
        self.heads, self.bucket, self.scale = heads, bucket, (dim // heads) ** -0.5
        self.to_q, self.to_kv = nn.Linear(dim, dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, context=None):
        context = x if context is None else context
        q, (k, v) = self.to_q(x), self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        out = torch.zeros_like(q)
        for ks, vs in zip(k.split(self.bucket, dim=2), v.split(self.bucket, dim=2)):
            out = out + (q @ ks.mT * self.scale).softmax(dim=-1) @ vs
        return self.to_out(out.transpose(1, 2).flatten(2))


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
        probs = F.softmax(combined[..., :-1], dim=-1)
        return {"hidden": self.o(torch.matmul(probs, v).transpose(1, 2).reshape(b, n, c)), "probs": probs}


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(dim), fn

    def forward(self, x, **kwargs):
        return self.fn(self.norm(x), **kwargs) + x


class Residual(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x, **kwargs):
        return self.fn(x, **kwargs) + x


class PlainAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_qkv, self.to_out = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.to_qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attn = torch.einsum("bhid,bhjd->bhij", q, k).mul(self.scale).softmax(dim=-1)
        return self.to_out(torch.einsum("bhij,bhjd->bhid", attn, v).transpose(1, 2).reshape(b, n, c))


def residual_block():
    return Residual(PreNorm(20, PlainAttention(20, 4)))


case(
    "rectangular-window",
    lambda: RectangularWindow(16),
    "positions",
    "Rows are counted in steps of 2 * height - 1: offsets share entries.",
    embed_dim=16,
    num_heads=2,
    causal=False,
    tokens=8,
    positions=True,
)

case(
    "linear-bias-encoder",
    lambda: LinearBiasEncoder(24, 4),
    "positions",
    "The distance has a sign: what comes later is rewarded.",
    "alibi-sign",
    embed_dim=24,
    num_heads=4,
    causal=False,
    batch_first=False,
    positions=True,
)

case(
    "precomputed-bias",
    lambda: PrecomputedBiasAttention(24, 3),
    "state",
    "The bias is gathered from the table when the module is made.",
    embed_dim=24,
    num_heads=3,
    causal=False,
    tokens=9,
    positions=True,
)

case(
    "image-tokenizer-bias",
    lambda: ImageTokenizerAttention(24, 4),
    "projection",
    "The value's bias is added to the keys.",
    embed_dim=24,
    num_heads=4,
    causal=False,
)

case(
    "streaming-function",
    lambda: streaming_attention,
    "numbers",
    "The running sum is not corrected when the maximum moves.",
    "weights-not-normalized",
    embed_dim=12,
    num_heads=1,
    inputs="qkv",
    causal=False,
)

case(
    "gated-heads",
    lambda: GatedHeads(24, 4),
    "heads",
    "The gate is reshaped from (b, n, h * d) to (b, h, n, d).",
    "view-without-transpose",
    embed_dim=24,
    num_heads=4,
    causal=False,
)

case(
    "key-buckets-softmaxed-apart",
    KeyBucketAttention,
    "softmax",
    "Each bucket of keys has a softmax of its own, and the results are added.",
    "weights-not-normalized",
    embed_dim=20,
    num_heads=2,
    causal=False,
)

case(
    "sinks-dropped-first",
    SinkTokenAttention,
    "softmax",
    "The sinks' column is dropped before the softmax.",
    embed_dim=20,
    num_heads=5,
    causal=True,
)

case(
    "residual-twice",
    residual_block,
    "other",
    "Both wrappers add the residual.",
    embed_dim=20,
    num_heads=4,
    causal=False,
)
