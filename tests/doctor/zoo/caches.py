"""Keys and values that are carried on from call to call, and what modules keep though they should not."""

from collections import namedtuple
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .attention import SDPA, SDPA_GROUPED, TOKENS_FIRST, Attention, Cached, add, fill_large, separate
from .cases import Cases, Style
from .plain import Gated
from .positions import Placed, ahead, rope, rotary, slopes

CASES = Cases()
right, wrong, slip_of = CASES.right, CASES.wrong, CASES.slip

CACHE = Style(Attention, dim=16, heads=2, causal=True, cache="kv")
ROTARY = CACHE(names=separate("w"), bias=False, **SDPA | rotary())
DICT = {"packed": lambda k, v: {"k": k, "v": v}, "unpacked": lambda cache: (cache["k"], cache["v"])}
STACK = {"packed": lambda k, v: torch.stack((k, v)), "unpacked": lambda cache: cache.unbind()}
LIST = {"packed": lambda k, v: [k, v]}
KV = namedtuple("KV", "k v")
Seen = namedtuple("Seen", "k v seen")


@dataclass
class State:
    keys: Tensor
    values: Tensor


def join(*parts):
    return torch.cat(parts, 2)


def new_first(k, v, earlier_k, earlier_v):
    return join(k, earlier_k), join(v, earlier_v)


def new_values_first(k, v, earlier_k, earlier_v):
    return join(earlier_k, k), join(v, earlier_v)


def last(count):
    return lambda k, v: (k[:, :, -count:], v[:, :, -count:])


def window(size):
    return lambda at, keys: (keys <= at[:, None]) & (at[:, None] - keys < size)


def restarted(**how):
    return lambda q, k, v, at: (rope(q, at - at[0], **how), rope(k, at - at[0], **how), v)


def places(t):
    return torch.arange(t.size(2), device=t.device)


def turned_late(keep):
    """Only queries are turned when they are made; keys as they come out of the cache, which holds what `keep` says."""

    def joined(k, v, cache):
        if cache is not None:
            k, v = join(cache[0], k), join(cache[1], v)
        turned = rope(k, places(k))
        return turned, v, (turned if keep == "turned" else k, v)

    return {"placed": lambda q, k, v, at: (rope(q, at), k, v), "join": joined, "positions": True}


def new_turned_alone(k, v, cache):
    """Keys enter the cache as they are made, and only the new ones are turned for the scores."""
    earlier = (k[:, :, :0], v[:, :, :0]) if cache is None else cache
    at = earlier[0].size(2) + places(k)
    return join(earlier[0], rope(k, at)), join(earlier[1], v), (join(earlier[0], k), join(earlier[1], v))


class Counting(Cached):
    """A rolling cache that also counts the tokens that it has seen."""

    def packed(self, k, v):
        return Seen(k, v, self.seen)

    def unpacked(self, cache):
        return cache[:2]

    def past(self, cache):
        return cache.seen

    def forward(self, x, cache=None):
        self.seen = x.size(1) + (0 if cache is None else cache.seen)
        return super().forward(x, cache)


class KeepsItsCache(Cached):
    """The slip goes on from the last call's keys where a call has no cache, since the module has kept them."""

    def __init__(self, slip="", **options):
        super().__init__(**options)
        self.slip, self.last = slip, None

    def forward(self, x, cache=None):
        if self.slip and cache is None and self.last is not None:
            k, _ = self.unpacked(self.last)
            if (k.size(0), k.dtype) == (x.size(0), x.dtype):
                cache = self.last
        y, cache = super().forward(x, cache)
        if self.slip:
            self.last = self.packed(*(t.detach() for t in self.unpacked(cache)))
        return y, cache


class Streaming(Attention):
    """Keeps the tokens of a stream; a call starts a new one, unless it is told to go on, or by the slip."""

    def __init__(self, slip="", **options):
        super().__init__(names="q kv o", **options)
        self.slip, self.seen = slip, None

    def forward(self, x, go_on=False):
        if self.seen is not None and (self.seen.size(0) != x.size(0) or not (go_on or self.slip)):
            self.seen = None
        context = x if self.seen is None else torch.cat((self.seen, x), 1)
        self.seen = context.detach()
        return self.attend(x, context, context)


class KeepsTraces(Attention):
    """What a module changes though it is in evaluation: its input, or a running mean."""

    def __init__(self, slip="", **options):
        super().__init__(dropout=0.2, **options)
        self.slip, self.average = slip, None

    def forward(self, x):
        if self.slip == "input":
            x -= x.mean(-1, keepdim=True)
        else:
            x = x - x.mean(-1, keepdim=True)
        return super().forward(x)

    def made(self, q, k, v):
        if self.slip == "average":
            mean = v.mean((0, 1))
            self.average = mean if self.average is None else 0.9 * self.average + 0.1 * mean.detach()
            v = v - self.average
        return q, k, v


# ------------------------------------------------------------------------------------------------------ as it is meant

right(
    "cached-rotary",
    CACHE(dim=24, heads=3, names=separate("", "_"), bias=False, out_bias=False, **DICT | rotary(base=100.0)),
)
right("growing-cache", Style(Placed, heads=4, groups=2, causal=True, cache="kv", positions=True, **SDPA_GROUPED))
right("whisper-list-cache", CACHE(dim=20, norm=nn.LayerNorm, residual=True, show=add, **LIST | TOKENS_FIRST))
ROLLING = SDPA | rotary() | {"sees": window(5), "kept": last(4)}
right(
    "mistral-window-cache",
    Style(Counting, heads=4, groups=2, names=separate("w"), bias=False, causal=True, cache="kv", **ROLLING),
)
STATE = {"packed": State, "unpacked": lambda c: (c.keys, c.values)}
SLOPED = {"show": lambda s, a: fill_large(s + slopes(3, s) * ahead(s), a), "positions": True}
right("alibi-dataclass-cache", CACHE(dim=18, heads=3, **STATE | SLOPED))

# ------------------------------------------------------------------------------------------------------- what is joined

wrong("cache-values-prepended", CACHE(bias=False, **SDPA), extend=new_values_first)
wrong("decode-prepended", CACHE(bias=False, **SDPA), extend=new_first)
wrong("decode-cropped", CACHE(bias=False, **SDPA), kept=last(3))
wrong(
    "gated-window-cache-cropped",
    Style(Gated, causal=True, positions=True, cache="kv", sees=window(4), kept=last(3), **SDPA),
    kept=last(2),
)
wrong(
    "cache-loses-its-last-token",
    CACHE(dim=24, heads=4, groups=2, bias=False, norm=nn.LayerNorm, residual=True, **SDPA_GROUPED),
    kept=lambda k, v: (k[:, :, :-1], v[:, :, :-1]),
)
KEEPS = Style(KeepsItsCache, dim=16, causal=True, cache="kv")
goes_on = slip_of(slip="goes on")
goes_on("default-cache-object-shared", KEEPS(heads=4, bias=False, **STATE))
goes_on("stream-never-reset", Style(Streaming, dim=18, causal=True))

# ------------------------------------------------------------------------------------------------------------ the mask

wrong(
    "decode-topleft", CACHE(bias=False, **SDPA), "top-left-causal", sees=lambda at, keys: keys <= (at - at[0])[:, None]
)
wrong(
    "sdpa-is-causal-with-cache",
    CACHE(dim=20, heads=4, groups=2, **SDPA),
    "top-left-causal",
    core=lambda q, k, v, a: (nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), None),
)
# All is seen once there is a cache, also later tokens of the same chunk.
wrong(
    "decode-chunk",
    CACHE(bias=False, **SDPA),
    "no-causal-mask",
    sees=lambda at, keys: (keys <= at[:, None]) | (at[0] > 0),
)
wrong(
    "block-local-window-one-long",
    CACHE(dim=24, heads=4, bias=False, sees=window(4), **SDPA),
    sees=lambda at, keys: window(4 if at[0] else 5)(at, keys),
)

# ------------------------------------------------------------------------------------------------------------ positions

wrong(
    "cached-keys-rotated-again",
    ROTARY(dim=24, heads=3),
    extend=lambda k, v, earlier_k, earlier_v: (join(rope(earlier_k, places(earlier_k)), k), join(earlier_v, v)),
)
wrong("cache-holds-rotated-keys", CACHE(names=separate("w"), **SDPA | turned_late("as made")), **turned_late("turned"))
wrong(
    "cache-keys-before-rotation",
    ROTARY(dim=24, heads=4, groups=2),
    placed=lambda q, k, v, at: (rope(q, at), k, v),
    join=new_turned_alone,
)
wrong(
    "cache-positions-off-by-one",
    CACHE(packed=KV, **rotary(pairs=True)),
    placed=lambda q, k, v, at: (*(rope(t, at - (at[0] > 0).long(), pairs=True) for t in (q, k)), v),
)
wrong(
    "decode-restart",
    CACHE(bias=False, **SDPA | rotary(base=100.0, pairs=True)),
    "positions-restart",
    placed=restarted(base=100.0, pairs=True),
)
LEARNED = Style(Placed, dim=16, heads=2, causal=True, cache="kv", positions=True)
wrong("cache-positions-restart", LEARNED(**STACK), "positions-restart", at=lambda at: at - at[0])
wrong("learned-positions-one-late", LEARNED(dim=18, heads=3, **SDPA), at=lambda at: at + (at[0] > 0).long())

# ------------------------------------------------------------------------------------------- what is left of every call

wrong("kept-input", Style(KeepsTraces), "input-overwritten", slip="input")
wrong("kept-average", Style(KeepsTraces), slip="average")
