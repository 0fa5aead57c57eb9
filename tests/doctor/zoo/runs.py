"""How attention is run: by FlexAttention, scripted, compiled, quantized, and in few bits."""

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .attention import SDPA, SDPA_CAUSAL, Attention, separate
from .cases import Cases, Style
from .positions import WideNorm, rotary

CASES = Cases()
right = CASES.right


def flex(score_mod=None, mask_mod=None):
    def core(q, k, v, allowed):
        n = q.size(2)
        mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, n, n, device=str(q.device))
        return flex_attention(q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=q.size(1) > k.size(1)), None

    return {"core": core, "widen": lambda k, v, times: (k, v)}


def slope(head, heads=4):
    return torch.exp2(-((head + 1) * 8.0 / heads))


def where_earlier(score, i, j):
    return torch.where(i >= j, score, -float("inf"))


class Scriptable(nn.Module):
    def __init__(self, dim: int, heads: int, norm: bool, causal: bool):
        super().__init__()
        self.heads, self.norm, self.residual = heads, nn.LayerNorm(dim) if norm else nn.Identity(), norm
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        future = torch.zeros(64, 64) if not causal else torch.full((64, 64), float("-inf")).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        b, n, c = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        s = torch.matmul(qkv[0], qkv[1].transpose(-2, -1)) * float(c // self.heads) ** -0.5
        w = torch.softmax(s + self.future[:n, :n], dim=-1)
        y = self.proj(torch.matmul(w, qkv[2]).transpose(1, 2).reshape(b, n, c))
        return (x + y if self.residual else y), w


def scripted(dim=24, heads=4, norm=False, causal=False):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(Scriptable(dim, heads, norm, causal))


def compiled(family=Attention, dim=24, heads=4, causal=False, dynamic=None, options=None):
    return torch.compile(family(dim=dim, heads=heads, **options or {}), backend="eager", dynamic=dynamic)


def quantized(dim=24, heads=3, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(
            Attention(dim, heads, **options).eval(), {nn.Linear}, dtype=torch.qint8
        )


class Int8(nn.Module):
    """A layer whose weights are kept as int8 with a scale a row."""

    def __init__(self, i, o, bias=True):
        super().__init__()
        w = torch.randn(o, i) * i**-0.5
        scales = w.abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (w / scales).round().to(torch.int8))
        self.register_buffer("scales", scales)
        self.bias = nn.Parameter(torch.randn(o) * 0.1)

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype) * self.scales.to(x.dtype), self.bias)


class Narrow(Attention):
    """SDPA in 16 bits because that is asked for, by an attribute or by an autocast."""

    def __init__(self, dtype=None, **options):
        super().__init__(**options)
        self.compute_dtype = dtype

    def core(self, q, k, v, allowed):
        if self.compute_dtype is None:
            with torch.autocast("cpu", torch.bfloat16):
                return F.scaled_dot_product_attention(q, k, v).to(q.dtype), None
        return F.scaled_dot_product_attention(*(t.to(self.compute_dtype) for t in (q, k, v))).to(q.dtype), None


def in_16_bits(dtype):
    """Products in 16 bits, the softmax in float32."""
    return {
        "made": lambda q, k, v: (q.to(dtype), k.to(dtype), v.to(dtype)),
        "score": lambda q, k: (q * q.size(-1) ** -0.5) @ k.mT,
        "weigh": lambda s, allowed: s.softmax(-1, dtype=torch.float32).to(s.dtype),
        "after": lambda y, x: y.to(x.dtype),
    }


FLEX = Style(Attention, dim=32, heads=2, names=separate("", "_proj"))
right("flex-causal", FLEX(causal=True, **flex(mask_mod=lambda b, h, i, j: i >= j)))
right("flex-alibi", FLEX(heads=4, positions=True, **flex(lambda s, b, h, i, j: s - slope(h) * (i - j).abs())))
right(
    "flex-alibi-causal",
    FLEX(causal=True, positions=True, **flex(lambda s, b, h, i, j: where_earlier(s - slope(h, 2) * (i - j), i, j))),
)
right(
    "flex-soft-cap",
    FLEX(causal=True, bias=False, **flex(lambda s, b, h, i, j: where_earlier(4.0 * torch.tanh(s / 4.0), i, j))),
)
right(
    "flex-window-mqa",
    FLEX(causal=True, groups=1, bias=False, positions=True),
    **flex(mask_mod=lambda b, h, i, j: (i >= j) & (i - j <= 3)),
)
right("jit-script", Style(scripted))
right("scripted-prenorm-causal", Style(scripted, norm=True, causal=True))
right(
    "compiled-protein",
    Style(compiled, heads=3, positions=True),
    options={"placed": rotary()["placed"], "norm": nn.LayerNorm, "residual": True} | SDPA,
)
right(
    "compiled-grouped",
    Style(compiled, family=WideNorm, causal=True, dynamic=True, options={"groups": 1, "bias": False} | SDPA_CAUSAL),
)
right("quantized-dynamic", Style(quantized, bias=False))
right("int8-sdpa", Style(quantized, names=separate("", "_lin"), **SDPA))
right("int8-weight-only", Style(Attention, linear=Int8, names=separate("", "_proj"), **SDPA_CAUSAL))
right("half-core", Style(Attention, heads=4, groups=2, names=separate("attn_"), **in_16_bits(torch.float16)))
right("bfloat16-inside", Style(Attention, **in_16_bits(torch.bfloat16)))
right("bfloat16-values", Style(Attention, heads=4, mix=lambda w, v: (w.bfloat16() @ v.bfloat16()).to(v.dtype)))
right(
    "bfloat16-kernel",
    Style(Attention, dim=16, heads=2, **SDPA_CAUSAL),
    made=lambda q, k, v: (q.bfloat16(), k.bfloat16(), v.bfloat16()),
    after=lambda y, x: y.to(x.dtype),
)
right("narrow-by-autocast", Style(Narrow))
right("narrow-by-attribute", Style(Narrow, dtype=torch.bfloat16))
