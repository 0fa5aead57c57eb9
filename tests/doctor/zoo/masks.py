"""Masks that attention makes, that it is given, and that it keeps."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .attention import (
    EINSUM,
    FOLDED,
    HEADS_OUTER,
    SDPA,
    SEQUENCE_FIRST,
    Attention,
    Masked,
    as_float,
    fill,
    fill_large,
    fill_least,
    four,
    in_dict,
    pair,
    sdpa,
    sdpa_float,
    separate,
    where,
    with_none,
)
from .cases import Cases, Style
from .plain import Gated, OfPyTorch

CASES = Cases()
right, wrong, slip_of = CASES.right, CASES.wrong, CASES.slip


def by_queries(anew=False, size=3):
    """Attention of a few queries at a time; the slip makes a causal mask anew for each few."""

    def core(q, k, v, allowed):
        places = torch.arange(k.size(2), device=q.device)
        cut = []
        for begin in range(0, q.size(2), size):
            few = q[:, :, begin : begin + size]
            rows = places[: few.size(2), None] if anew else places[begin : begin + size, None]
            cut.append(fill(few @ k.mT / math.sqrt(q.size(-1)), places <= rows).softmax(-1) @ v)
        return torch.cat(cut, 2), None

    return {"core": core}


CAUSAL = Style(Attention, causal=True)
LLAMA = Style(Attention, names=separate("w"), bias=False, out_bias=False, causal=True)
GIVEN = Style(Attention, inputs="x_allowed")
OF_THREE = Style(Attention, names=separate("", "_lin"), inputs="qkv_allowed")
CROSS = Style(Attention, names="to_q to_kv to_out", inputs="x_context_allowed", key_dim=12)
WINDOW = Style(Attention, positions=True, **SDPA)


def after_softmax(s, allowed):
    """Weights that are cut when the softmax is done."""
    return s.softmax(-1) * allowed


def not_shown(s, allowed):
    """Scores that no mask has changed."""
    return s


def nothing_where_all_is_hidden(s, allowed):
    return s.softmax(-1).nan_to_num(0.0)


def very_low(s, allowed):
    return fill(s, allowed, -1e30)


def hides(by_rows):
    """What hides padding besides: keys that no query may see, or the queries of their places."""

    def show(s, allowed, value=-torch.inf):
        padding = ~allowed.any(-2)
        return fill(s, allowed, value).masked_fill(padding[..., :, None] if by_rows else padding[..., None, :], value)

    return show


def band(near, far):
    """Sees keys of which the query is `near` to `far` tokens ahead."""
    return lambda at, keys: (at[:, None] - keys >= near) & (at[:, None] - keys <= far)


def log_of_band(q, k, v, allowed):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed.to(q.dtype).log()), None


def normalized_behind_mask(s, allowed):
    """Exponentials are multiplied with the mask, and then divided by their sum."""
    a = allowed.to(s.dtype)
    e = (s - (s + (a - 1) * 1e30).amax(-1, keepdim=True)).clamp(max=0).exp() * a
    return e / e.sum(-1, keepdim=True).clamp_min(1e-30)


class KeepsMasks(Attention):
    """Keeps a mask for each length, at the class or at the object; the slip keeps that of the first length for all."""

    kept = None

    def __init__(self, at_class=True, causal=True, slip="", **options):
        super().__init__(causal=causal, **options)
        type(self).kept = {}
        if not at_class:
            self.kept = {}
        self.slip = slip

    def sees(self, at, keys):
        n = len(keys)
        kept = self.kept.setdefault(
            "any" if self.slip else n, torch.ones(n, n, dtype=torch.bool, device=at.device).tril()
        )
        kept = kept[:n, :n]
        return F.pad(kept, (0, n - kept.size(1), 0, n - kept.size(0)), value=True)


class KeepsGiven(Masked):
    """Hides what is given; the slip keeps the first mask of each shape at the class."""

    kept = None

    def __init__(self, slip="", inputs="x_allowed", **options):
        super().__init__(inputs=inputs, **options)
        type(self).kept, self.slip = {}, slip

    def forward(self, x, allowed):
        return super().forward(x, self.kept.setdefault(allowed.shape, allowed) if self.slip else allowed)


class PaddedEncoder(Masked):
    """Sets to zero what comes out for tokens that see nothing."""

    def forward(self, x, allowed):
        return super().forward(x, allowed).masked_fill(~four(allowed).any(-1)[:, 0, :, None], 0.0)


class Graph(Masked):
    """Attention to a node's neighbors plus a linear skip, without an output layer."""

    def __init__(self, dim=16, heads=2, inputs="x_allowed", causal=None, **options):
        super().__init__(dim, heads, inputs=inputs, weigh=nothing_where_all_is_hidden, **options)
        self.skip = nn.Linear(dim, dim)

    def out(self, y):
        return y

    def forward(self, nodes, adjacent):
        return super().forward(nodes, adjacent) + self.skip(nodes)


class PairBias(Gated):
    """OpenFold: a bias for each pair of tokens out of their products, the mask as 1e9 * (mask - 1), and a gate."""

    def __init__(self, dim=24, **options):
        super().__init__(dim, norm=nn.LayerNorm, bias=False, **options)
        self.left, self.right, self.pairs = nn.Linear(dim, 8), nn.Linear(dim, 8), nn.Linear(8, self.heads, bias=False)

    def taken(self, x, *_):
        self.bias = self.pairs(self.left(x)[:, :, None] * self.right(x)[:, None]).permute(0, 3, 1, 2)
        return x, x, x

    def show(self, s, allowed):
        return s + 1e9 * (allowed.to(s.dtype) - 1) + self.bias


# ----------------------------------------------------------------------------------------------------------- causal

weighed_first = slip_of("mask-after-softmax", show=not_shown, weigh=after_softmax)
wrong(
    "sdpa-polarity",
    CAUSAL(dim=16, heads=2, names="in_proj out_proj", **SDPA),
    "mask-polarity",
    core=lambda q, k, v, a: sdpa(q, k, v, ~a),
)
wrong(
    "tri-polarity", CAUSAL(dim=18, show=very_low, **EINSUM), "mask-polarity", sees=lambda at, keys: keys >= at[:, None]
)
wrong("bool-mask-added", LLAMA(dim=18, show=fill_least), "boolean-mask-added", show=lambda s, a: s + ~a)
wrong("visible-bool-added", LLAMA(dim=18, heads=3, show=fill_least), "boolean-mask-added", show=lambda s, a: s + a)
wrong(
    "float-future-added-as-ones",
    LLAMA(dim=21, show=fill_large, returns=in_dict),
    "float-mask-of-ones",
    show=lambda s, a: s + (1.0 - a.to(s.dtype)),
)
sees_next = slip_of(sees=lambda at, keys: keys <= at[:, None] + 1)
sees_next("where-causal-sees-next", CAUSAL(dim=21, norm=nn.LayerNorm, residual=True, show=where))
sees_next("tril-of-one", CAUSAL(heads=4, norm=nn.LayerNorm, residual=True, returns=with_none, **SDPA))
wrong(
    "fairseq-causal-hides-itself",
    CAUSAL(dim=16, heads=4, returns=with_none, show=fill_large, **SEQUENCE_FIRST),
    sees=lambda at, keys: keys < at[:, None],
)
wrong(
    "tri-firsthead",
    CAUSAL(dim=18, show=very_low, **EINSUM),
    show=lambda s, a: torch.cat((very_low(s[:, :1], a), s[:, 1:]), 1),
)

# ----------------------------------------------------------------------------------------------------- masks as given

right("espnet-padding", OF_THREE(dim=16, heads=4, dropout=0.1, show=fill_least, weigh=after_softmax))
ADDED = {"show": lambda s, a: s + as_float(s, a, torch.finfo(s.dtype).min)}
right("padded-encoder", Style(PaddedEncoder, inputs="x_allowed", dim=30, heads=5, **ADDED))
right("masked-cross", CROSS(key_dim=18, weigh=nothing_where_all_is_hidden, returns=pair))
right(
    "postnorm-cross-masked",
    CROSS(dim=20, heads=2, residual="before"),
    core=lambda q, k, v, a: sdpa(q, k, v, as_float(q, a, torch.finfo(q.dtype).min)),
)
right("seq-first-masked", OF_THREE(names="in_proj out_proj", **SEQUENCE_FIRST))
right("graph-conv-attention", Style(Graph, inputs="x_allowed"))
right("mask-times-exponentials", GIVEN(dim=18, show=not_shown, weigh=normalized_behind_mask))
right("gated-pair-bias", Style(PairBias, heads=4, width=5, inputs="x_allowed"))
weighed_first("mask-times-weights", OF_THREE(dim=16, heads=2, returns=pair))
weighed_first("cross-mask-after-softmax", CROSS(dim=18, heads=2, show=very_low, weigh=after_softmax))
turned_round = slip_of("mask-polarity", show=lambda s, a: fill_least(s, ~a))
turned_round("masked-fill-of-visible", GIVEN(heads=4, norm=nn.LayerNorm, residual=True, show=fill_least))
turned_round("allowed-taken-for-hidden", GIVEN(heads=4, names="c_attn c_proj", show=fill_least))
wrong("first-items-mask", GIVEN(dim=18, names=separate("", "_lin")), "only-first-item", spread=lambda a, h: four(a)[:1])
FAIRSEQ = {"dim": 16, "heads": 4} | FOLDED | {"show": lambda s, a: fill(s, a, -1e4)}
wrong("fairseq-mask-first", GIVEN(**FAIRSEQ), "only-first-item", spread=lambda a, h: a[:1])
wrong("fairseq-mask-class", Style(KeepsGiven, inputs="x_allowed", **FAIRSEQ), slip="first of its shape")
wrong(
    "bmm-mask-repeat", OF_THREE(dim=20, heads=4, **FOLDED), spread=lambda a, h: a.repeat(h, 1, 1) if a.dim() == 3 else a
)
wrong(
    "heads-outer-mask-interleaved",
    GIVEN(show=lambda s, a: fill(s, a, -(2**31)), **HEADS_OUTER),
    spread=lambda a, h: a.repeat_interleave(h, 0) if a.dim() == 3 else a,
)
wrong("allowed-transposed", GIVEN(dim=16, heads=2, core=sdpa_float), spread=lambda a, h: four(a).mT)
PADDED = GIVEN(dim=18, heads=2, weigh=nothing_where_all_is_hidden, returns=pair)
right("padding-on-keys", PADDED(show=hides(by_rows=False)))
right("padding-on-queries-too", PADDED(show=hides(by_rows=True)))  # whose outputs are nobody's
wrong(
    "padding-broadcast-over-keys",
    GIVEN(norm=nn.LayerNorm, residual=True, show=lambda s, a: hides(by_rows=False)(s, a, -1e30)),
    show=lambda s, a: hides(by_rows=True)(s, a, -1e30),
)
wrong(
    "cross-mask-ignored",
    CROSS(dim=16, heads=2, core=sdpa_float),
    "padding-ignored",
    core=lambda q, k, v, a: sdpa(q, k, v, None),
)
wrong("mha-hides-what-is-allowed", Style(OfPyTorch, inputs="x_allowed"), "mask-polarity", slip="visible")
wrong("mha-mask-repeat", Style(OfPyTorch, dim=20, inputs="x_allowed"), slip="tiled")
wrong(
    "mha-mask-dropped",
    Style(OfPyTorch, inputs="qkv_allowed", norm=True, returns=pair),
    "padding-ignored",
    slip="dropped",
)
wrong(
    "mha-float-mask-of-ones",
    Style(OfPyTorch, dim=18, heads=3, inputs="qkv_allowed", returns=pair),
    "float-mask-of-ones",
    slip="ones",
)
MERGED = CAUSAL(heads=4, inputs="x_allowed", weigh=nothing_where_all_is_hidden)
wrong("few-queries-each-from-the-start", CAUSAL(heads=4, **by_queries()), "top-left-causal", **by_queries(anew=True))
wrong("merged-masks-or", MERGED, both=lambda causal, given: causal | given)
wrong("merged-masks-replaced", MERGED, "no-causal-mask", both=lambda causal, given: given)
wrong("merged-masks-small", MERGED, "boolean-mask-added", show=lambda s, a: fill(s, a, -5.0))

# ------------------------------------------------------------------------------------------------ masks that are kept

right("mask-by-length", Style(KeepsMasks, heads=4, at_class=False))
wrong("mask-cached-at-class-level", Style(KeepsMasks, bias=False, show=fill_least), slip="first length")
wrong("mask-cached-by-device", Style(KeepsMasks, dim=16, heads=2), slip="first length")

# ----------------------------------------------------------------------------------------------------- windows by mask

right("mistral-window", LLAMA(heads=4, groups=1, sees=band(0, 2), core=log_of_band))
right("own-wide-window", CAUSAL(positions=True, sees=band(0, 99), **SDPA))
OTHERS = {"sees": lambda at, keys: (at[:, None] != keys) | (len(keys) == 1), "score": lambda q, k: q @ k.mT * 0.4}
right("own-self-excluded", Style(Attention, causal=False, show=fill_least, **OTHERS))
right(
    "longformer-dilated",
    WINDOW(dim=18, sees=lambda at, keys: ((at[:, None] - keys).abs() <= 2) & ((at[:, None] - keys) % 2 == 0)),
)
right(
    "frame-causal-video",
    WINDOW(heads=4, qk_norm=nn.LayerNorm, bias=False, sees=lambda at, keys: keys // 2 <= at[:, None] // 2),
)
wrong("window-one-short-on-the-left", WINDOW(dim=16, heads=2, sees=band(-2, 2)), sees=band(-2, 1))
wrong(
    "window-without-a-future-bound",
    LLAMA(sees=band(0, 2), **SDPA),
    "no-causal-mask",
    sees=lambda at, keys: at[:, None] - keys < 3,
)
wrong(
    "window-by-zeros",
    WINDOW(norm=nn.LayerNorm, residual=True, sees=band(-2, 2)),
    "float-mask-of-ones",
    core=lambda q, k, v, a: ((q @ k.mT * q.size(-1) ** -0.5 * a).softmax(-1) @ v, None),
)
