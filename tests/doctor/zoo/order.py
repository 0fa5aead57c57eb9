"""Tokens that are rolled, sorted, cut into chunks, gathered, laid out in a grid, convolved, or read by others."""

import torch
import torch.nn.functional as F
from torch import einsum, nn

from .attention import EINSUM, SDPA, SDPA_CAUSAL, Attention, separate
from .cases import Cases, Style
from .positions import Table

CASES = Cases()
right, wrong = CASES.right, CASES.wrong


class Chunks(Attention):
    """Chunks of tokens in a row of a ring that is rolled before and back behind; or of tokens far apart, in strides."""

    def __init__(self, dim=16, heads=2, size=4, shift=2, strided=False, plus=False, slip="", **options):
        super().__init__(dim, heads, **SDPA | options)
        self.size, self.shift, self.strided, self.plus, self.slip = size, shift, strided, plus, slip

    def forward(self, x):
        b, n, c = x.shape
        if self.strided:
            y = x.view(b, self.size, -1, c).transpose(1, 2).reshape(-1, self.size, c)
            y = super().forward(y).view(b, -1, self.size, c)
            return y.reshape(b, n, c) if self.slip else y.transpose(1, 2).reshape(b, n, c)
        y = super().forward(x.roll(-self.shift, 1).reshape(-1, self.size, c)).reshape(b, n, c)
        y = y.roll({"not back": 0, "further": -self.shift}.get(self.slip, self.shift), 1)
        return x + y if self.plus else y


class Sorted(Attention):
    """Tokens are sorted by a score, attend in chunks or all together, and are put back; the slip sorts them again."""

    def __init__(self, dim=16, heads=2, size=None, slip="", **options):
        super().__init__(dim, heads, **SDPA | options)
        self.by, self.size, self.slip = nn.Linear(dim, 1), size, slip

    def forward(self, x):
        order = self.by(x).squeeze(-1).argsort(-1)
        y = x.gather(1, order[..., None].expand_as(x))
        y = super().forward(y.reshape(-1, self.size or x.size(1), x.size(-1))).reshape(x.shape)
        back = order if self.slip else order.argsort(-1)
        return y.gather(1, back[..., None].expand_as(y))


class Grid(nn.Module):
    """Attention along the columns of a grid, and along its rows besides; the slip does not turn the columns back."""

    def __init__(self, dim=16, heads=2, grid=(3, 4), rows=True, residual=False, slip="", **options):
        super().__init__()
        self.grid, self.residual, self.slip = grid, residual, slip
        self.columns = Attention(dim, heads, **options)
        self.rows = Attention(dim, heads, **options) if rows else None

    def forward(self, x):
        b, n, c = x.shape
        h, w = self.grid
        grid = x.view(b, h, w, c)
        y = self.columns(grid.transpose(1, 2).reshape(b * w, h, c)).view(b, w, h, c)
        y = y.reshape(b, h, w, c) if self.slip else y.transpose(1, 2)
        if self.rows is not None:
            y = y + self.rows(grid.reshape(b * h, w, c)).view(b, h, w, c)
        return y.reshape(b, n, c) + (x if self.residual else 0)


class ShiftedWindows(Table):
    """Swin: rolled windows of a grid, with a mask of what was not together before: the ends are in windows alone."""

    def __init__(self, dim=16, heads=2, side=4, window=2, shift=1, **options):
        super().__init__(dim=dim, heads=heads, grid=(window, window), **options)
        self.side, self.window, self.shift = side, window, shift
        part = torch.bucketize(torch.arange(side), torch.tensor([side - window, side - shift]), right=True)
        region = self.cut((3 * part[:, None] + part)[None, :, :, None]).squeeze(-1)
        self.register_buffer("together", region[:, None] == region[:, :, None])

    def cut(self, x):
        x = x.unflatten(2, (-1, self.window)).unflatten(1, (-1, self.window))
        return x.transpose(2, 3).reshape(-1, self.window**2, x.size(-1))

    def spread(self, allowed, heads):
        return allowed[:, None]

    def forward(self, x):
        b, n, c = x.shape
        y = self.cut(x.view(b, self.side, self.side, c).roll((-self.shift, -self.shift), (1, 2)))
        y = self.attend(y, y, y, self.together.repeat(b, 1, 1))
        count = self.side // self.window
        y = y.view(b, count, count, self.window, self.window, c).transpose(2, 3).reshape(b, self.side, self.side, c)
        return x + y.roll((self.shift, self.shift), (1, 2)).view(b, n, c)


class Strip(nn.Module):
    """Each query's keys are gathered: those before it, and those behind; the slip shows what pads the ends."""

    def __init__(self, dim=24, heads=2, before=2, behind=2, pad_tokens=False, norm=False, slip=""):
        super().__init__()
        self.heads, self.before, self.behind, self.pad_tokens, self.slip = heads, before, behind, pad_tokens, slip
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()
        self.query, self.key, self.value, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def gathered(self, layer, x, at):
        """(b, t, keys, h, d), with zeros beyond the ends, or with what the layer makes of zeros."""
        ends = (0, 0, self.before, self.behind)
        y = layer(F.pad(x, ends)) if self.pad_tokens else F.pad(layer(x), ends)
        return y.unflatten(-1, (self.heads, -1))[:, at]

    def forward(self, x):
        n, y = x.size(1), self.norm(x)
        at = torch.arange(n, device=x.device)[:, None] + torch.arange(self.before + 1 + self.behind, device=x.device)
        q, k, v = (
            self.query(y).unflatten(-1, (self.heads, -1)),
            self.gathered(self.key, y, at),
            self.gathered(self.value, y, at),
        )
        s = einsum("bnhd,bnwhd->bhnw", q, k) * q.size(-1) ** -0.5
        if not self.slip:
            s = s.masked_fill((at < self.before) | (at >= n + self.before), -torch.inf)
        return self.o(einsum("bhnw,bnwhd->bnhd", s.softmax(-1), v).flatten(2))


class Buckets(Attention):
    """Buckets of four tokens, each of which sees itself and the one before, causal; filled up and cropped."""

    def __init__(self, size=4, causal=True, **options):
        super().__init__(**options)
        self.size = size

    def core(self, q, k, v, allowed):
        n, w = q.size(2), self.size
        q, k, v = (F.pad(t, (0, 0, 0, -n % w)).unflatten(2, (-1, w)) for t in (q, k, v))
        k, v = (torch.cat((F.pad(t, (0, 0, 0, 0, 1, -1)), t), 3) for t in (k, v))
        i = torch.arange(q.size(2) * w, device=q.device).view(-1, w)
        j = torch.cat((i - w, i), 1)[:, None]
        s = (q @ k.mT * q.size(-1) ** -0.5).masked_fill((j > i[:, :, None]) | (j < 0), -torch.finfo(q.dtype).max)
        return (s.softmax(-1) @ v).flatten(2, 3)[:, :, :n], None


class Convolved(Attention):
    """A convolution of each channel along the tokens: of the tokens, or, causal, of what the projections made."""

    def __init__(self, dim=24, behind=True, causal=True, **options):
        super().__init__(dim, causal=causal, **options)
        self.behind, size = behind, sum(self.sizes) if behind else 3 * dim
        self.conv = nn.Conv1d(size, size, 3, padding=0 if behind else 1, groups=size)

    def convolved(self, *three):
        y = torch.cat(three, -1).mT
        return self.conv(F.pad(y, (2, 0)) if self.behind else y).mT.chunk(3, -1)

    def taken(self, query, key, value):
        return (query, key, value) if self.behind else self.convolved(query, key, value)

    def made(self, q, k, v):
        return self.convolved(q, k, v) if self.behind else (q, k, v)


class Readers(nn.Module):
    """Learned latents read the tokens, as in a Perceiver, and themselves if they are to; as many outputs as latents."""

    def __init__(self, dim=24, heads=3, count=5, themselves=False, **options):
        super().__init__()
        self.latents, self.themselves = nn.Parameter(torch.randn(count, dim)), themselves
        self.norm, self.norm_latents = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.reads = Attention(dim, heads, "to_q to_kv to_out", inputs="x_context", bias=False, **options)

    def forward(self, x):
        latents, x = self.latents.expand(x.size(0), -1, -1), self.norm(x)
        z = self.norm_latents(latents)
        return latents + self.reads(z, torch.cat((x, z), 1)) if self.themselves else self.reads(z, x)


class Linformer(Attention):
    """Keys and values are projected along the tokens, from nine to four."""

    def __init__(self, tokens=9, to=4, **options):
        super().__init__(**options)
        self.of_keys, self.of_values = (nn.Parameter(torch.randn(to, tokens) / 3) for _ in "kv")

    def made(self, q, k, v):
        return q, self.of_keys @ k, self.of_values @ v


right("sorted-chunks", Style(Sorted, size=4, tokens=12))
right("axial-sum", Style(Grid, tokens=12, positions=True, **SDPA))
right("shifted-window-of-two", Style(ShiftedWindows, norm=nn.LayerNorm, tokens=16, positions=True))
right("neighbors", Style(Strip, heads=3, positions=True))
right("bucketed-local-causal", Style(Buckets, bias=False, positions=True))
right(
    "linformer-nine-tokens",
    Style(Linformer, dim=20, heads=2, names="to_q to_kv to_out", bias=False, tokens=9, positions=True, **SDPA),
)
right("perceiver-latents", Style(Readers, **SDPA))
right("perceiver-resampler", Style(Readers, count=4, themselves=True, **SDPA))
right("cvt-conv", Style(Convolved, names=separate("", "_"), behind=False, causal=False, positions=True, **EINSUM))
right("primer-dconv", Style(Convolved, bias=False, out_bias=False, positions=True, **SDPA_CAUSAL))
wrong("rolled-further", Style(Chunks, shift=1, norm=nn.LayerNorm, plus=True, tokens=12, positions=True), slip="further")
wrong("windows-shift", Style(Chunks, tokens=12, positions=True), slip="not back")
wrong("windows-strided", Style(Chunks, strided=True, tokens=12, positions=True), slip="in a row")
wrong("sorted-not-put-back", Style(Sorted), slip="twice")
turned = CASES.slip(slip="not turned back")
turned("columns-stay", Style(Grid, grid=(3, 5), residual=True, tokens=15, positions=True, **EINSUM))
turned("axial-columns-not-turned-back", Style(Grid, rows=False, bias=False, tokens=12, **SDPA))
STRIP = Style(Strip, before=2, behind=0, causal=True, positions=True)
wrong("strip-padding-visible", STRIP(heads=3, before=3, pad_tokens=True, norm=True), slip="padding seen")
