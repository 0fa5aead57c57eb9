"""Attention whose every step can be taken in another way, which is a style, or a slip: the family of most strangers.

A step that is given as an option stands in the place of the method of its name. So a row that says
`score=lambda q, k: q @ k.mT` has attention that does not scale.
"""

import functools
import math

import torch
import torch.nn.functional as F
from torch import einsum, nn


def as_is(*given):
    return given[0] if len(given) == 1 else given


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6, axis=-1):
        super().__init__()
        self.eps, self.axis, self.weight = eps, axis, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(self.axis, keepdim=True) + self.eps) * self.weight


# Hidden is what may not be seen: `allowed` is True where a query may see a key, None where it may see all.


def fill(scores, allowed, value=-torch.inf):
    return scores if allowed is None else scores.masked_fill(~allowed, value)


def fill_least(scores, allowed):
    return fill(scores, allowed, torch.finfo(scores.dtype).min)


def fill_large(scores, allowed):
    return fill(scores, allowed, -1e9)


def as_float(scores, allowed, value=-torch.inf):
    return torch.zeros(allowed.shape, dtype=scores.dtype, device=scores.device).masked_fill(~allowed, value)


def add(scores, allowed):
    return scores if allowed is None else scores + as_float(scores, allowed)


def where(scores, allowed):
    return torch.where(allowed, scores, scores.new_tensor(-torch.inf))


def four(allowed):
    """A mask of pairs, (t, s) or (b, t, s), in the shape of scores."""
    return allowed[None, None] if allowed.dim() == 2 else allowed[:, None] if allowed.dim() == 3 else allowed


class Called(nn.Module):
    """What attends by a method: what the module is called with is said by `inputs` and `cache`."""

    def __new__(cls, *args, inputs="x", cache=None, **options):
        is_as_it_is = (inputs, cache) == ("x", None) or cls.forward is not Called.forward
        return super().__new__(cls if is_as_it_is else called(cls, inputs, cache))

    def forward(self, x):
        return self.attend(x, x, x)


class Attention(Called):
    """Attention by its steps.

    Args:
        dim: Features of a token.
        heads: Heads of the queries.
        names: Of the layers, in one string: two for packed projections and the output's, three where keys and values
            are packed, four where all stand apart.
        groups: Heads of keys and values, where those are fewer.
        width: Features of a head, where that is not dim // heads; `value_width` of its values, where it is another.
        key_dim: Features of a token of the context.
        bias: Whether the projections have biases; the output's as `out_bias` says.
        linear: Makes the projections from their sizes.
        norm: Makes a norm before the projections, from dim.
        qk_norm: Makes norms of each head's queries and keys, from their width.
        residual: Whether the tokens are added to the result: "before" the last norm, or True without one.
        dropout: Of the weights.
        causal: Whether a query sees no later key.
        cache: How earlier keys and values are carried on: "kv".
        inputs: What is given: "x", "x_context", "qkv", each also with "_allowed".
        batch_first: Whether the items come before the tokens; else the split sees to it.
        axis: The axis of tokens, once the heads are split.
        steps: Other functions in the place of methods.
    """

    def __init__(
        self,
        dim=24,
        heads=3,
        names="qkv proj",
        *,
        groups=None,
        width=None,
        value_width=None,
        key_dim=None,
        bias=True,
        out_bias=True,
        linear=nn.Linear,
        norm=None,
        qk_norm=None,
        residual=False,
        dropout=0.0,
        causal=False,
        cache=None,
        inputs="x",
        batch_first=True,
        axis=-2,
        **steps,
    ):
        super().__init__()
        self.heads, self.groups, self.width, self.axis = heads, groups or heads, width or dim // heads, axis
        self.masked = causal or "sees" in steps or type(self).sees is not Attention.sees
        self.cached, self.residual, self.names = cache, residual, names.split()
        for step, function in steps.items():
            assert hasattr(type(self), step), f"attention has no step {step}"
            setattr(self, step, function)
        assert not any(hasattr(type(self), name) for name in self.names), f"{names}: one of these is a step"
        value_width = value_width or self.width
        self.sizes = q, k, v = self.heads * self.width, self.groups * self.width, self.groups * value_width
        *made, out = self.names
        sizes = {1: [q + k + v], 2: [q, k + v], 3: [q, k, v]}[len(made)]
        for place, (name, size) in enumerate(zip(made, sizes, strict=True)):
            setattr(self, name, linear(key_dim if key_dim and place else dim, size, bias))
        setattr(self, out, linear(self.heads * value_width, dim, out_bias))
        self.norm = norm(dim) if norm else None
        self.last_norm = nn.LayerNorm(dim) if residual == "before" else None
        self.q_norm, self.k_norm = (qk_norm(self.width) if qk_norm else None for _ in "qk")
        self.dropout = nn.Dropout(dropout) if dropout else None

    # The steps, in their order.

    def taken(self, query, key, value):
        """What the projections take of what is given."""
        return query, key, value

    def project(self, query, key, value):
        *made, _ = (getattr(self, name) for name in self.names)
        if len(made) == 3:
            return tuple(layer(x) for layer, x in zip(made, (query, key, value), strict=True))
        if len(made) == 2:
            return made[0](query), *self.parts(made[1](key), self.sizes[1:], self.heads)
        if query is key:
            return self.parts(made[0](query), self.sizes, self.heads)
        each = zip((query, key, value), made[0].weight.split(self.sizes), made[0].bias.split(self.sizes), strict=True)
        return tuple(F.linear(x, w, b) for x, w, b in each)

    def parts(self, packed, sizes, heads):
        return packed.split(sizes, -1)

    made = staticmethod(as_is)  # queries, keys and values, before the split

    def split(self, t, heads):
        return t.unflatten(-1, (heads, -1)).transpose(1, 2)

    headed = staticmethod(as_is)  # queries, keys and values by heads

    def placed(self, q, k, v, at):
        """Queries, keys and values that know of their tokens' places."""
        return q, k, v

    # A cache: how it is packed, how the earlier come before the new, and what is carried on of both.

    packed = staticmethod(lambda k, v: (k, v))
    unpacked = staticmethod(as_is)
    kept = staticmethod(as_is)

    def past(self, cache):
        return self.unpacked(cache)[0].size(self.axis)

    def extend(self, k, v, earlier_k, earlier_v):
        return torch.cat((earlier_k, k), self.axis), torch.cat((earlier_v, v), self.axis)

    def join(self, k, v, cache):
        if cache is not None:
            k, v = self.extend(k, v, *self.unpacked(cache))
        return k, v, self.packed(*self.kept(k, v))

    def widen(self, k, v, times):
        return k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)

    def sees(self, at, keys):
        """Which keys, by their places, the queries at these places may see."""
        return keys <= at[:, None]

    def spread(self, allowed, heads):
        """A mask that is given, in the shape of scores."""
        return four(allowed)

    def both(self, causal, allowed):
        return causal & allowed

    def core(self, q, k, v, allowed):
        w = self.weigh(self.show(self.score(q, k), allowed), allowed)
        return self.mix(w if self.dropout is None else self.dropout(w), v), w

    def score(self, q, k):
        return q @ k.mT / math.sqrt(q.size(-1))

    show = staticmethod(fill)

    def weigh(self, scores, allowed):
        return scores.softmax(-1)

    def mix(self, w, v):
        return w @ v

    def merge(self, y, heads):
        return y.transpose(1, 2).flatten(2)

    def after(self, y, x):
        """What the heads gave, once more before the output's projection."""
        return y

    def out(self, y):
        return getattr(self, self.names[-1])(y)

    def returns(self, y, w):
        return y

    def attend(self, query, key, value, allowed=None, cache=None):
        skip = query
        if self.norm is not None:
            normed = self.norm(query)
            key, value, query = normed if key is query else key, normed if value is query else value, normed
        q, k, v = self.made(*self.project(*self.taken(query, key, value)))
        q, k, v = self.headed(self.split(q, self.heads), self.split(k, self.groups), self.split(v, self.groups))
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        past = 0 if cache is None else self.past(cache)
        at = torch.arange(past, past + q.size(self.axis), device=q.device)
        q, k, v = self.placed(q, k, v, at)
        if self.cached:
            k, v, cache = self.join(k, v, cache)
        allowed = None if allowed is None else self.spread(allowed, self.heads)
        if self.masked:
            causal = self.sees(
                at, torch.arange(k.size(self.axis), device=q.device) + len(at) + past - k.size(self.axis)
            )
            allowed = causal if allowed is None else self.both(causal, allowed)
        if self.groups < self.heads:
            k, v = self.widen(k, v, self.heads // self.groups)
        y, w = self.core(q, k, v, allowed)
        y = self.out(self.after(self.merge(y, self.heads), query))
        if self.residual:
            y = skip + y
        if self.last_norm is not None:
            y = self.last_norm(y)
        return (y, cache) if self.cached else self.returns(y, w)


FORWARDS = {
    ("x", "kv"): lambda self, x, cache=None: self.attend(x, x, x, cache=cache),
    ("x_allowed", None): lambda self, x, allowed: self.attend(x, x, x, allowed),
    ("x_context", None): lambda self, x, context: self.attend(x, context, context),
    ("x_context_allowed", None): lambda self, x, context, allowed: self.attend(x, context, context, allowed),
    ("qkv", None): lambda self, query, key, value: self.attend(query, key, value),
    ("qkv_allowed", None): lambda self, query, key, value, allowed: self.attend(query, key, value, allowed),
}


@functools.cache
def called(family, inputs, cache):
    """The family as it is called with these inputs."""
    return type(family.__name__, (family,), {"forward": FORWARDS[inputs, cache]})


Cached, Masked = called(Attention, "x", "kv"), called(Attention, "x_allowed", None)

# Other ways to take steps. SDPA takes those from scores to what is mixed at once.


def sdpa(q, k, v, allowed):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed), None


def sdpa_causal(q, k, v, allowed):
    return F.scaled_dot_product_attention(q, k, v, is_causal=allowed is not None), None


def sdpa_float(q, k, v, allowed):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=as_float(q, allowed)), None


def sdpa_grouped(q, k, v, allowed):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=True), None


def as_they_are(k, v, times):
    return k, v


SDPA, SDPA_CAUSAL = {"core": sdpa}, {"core": sdpa_causal, "causal": True}
SDPA_GROUPED = {"core": sdpa_grouped, "widen": as_they_are}
EINSUM = {
    "score": lambda q, k: einsum("bhid,bhjd->bhij", q, k) * q.size(-1) ** -0.5,
    "mix": lambda w, v: einsum("bhij,bhjd->bhid", w, v),
}
# Tokens before heads all through.
TOKENS_FIRST = {
    "axis": 1,
    "split": lambda t, heads: t.unflatten(-1, (heads, -1)),
    "score": lambda q, k: einsum("bihd,bjhd->bhij", q, k) * q.size(-1) ** -0.5,
    "mix": lambda w, v: einsum("bhij,bjhd->bihd", w, v),
    "merge": lambda y, heads: y.flatten(2),
}
# Heads in the batch, and bmm.
FOLDED = {
    "split": lambda t, heads: t.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1),
    "score": lambda q, k: torch.bmm(q * q.size(-1) ** -0.5, k.transpose(1, 2)),
    "spread": lambda allowed, heads: allowed.repeat_interleave(heads, 0) if allowed.dim() == 3 else allowed,
    "mix": torch.bmm,
    "merge": lambda y, heads: y.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2),
}
# The same from tokens that come before the items.
SEQUENCE_FIRST = FOLDED | {
    "batch_first": False,
    "split": lambda t, heads: t.reshape(t.size(0), -1, t.size(-1) // heads).transpose(0, 1),
    "merge": lambda y, heads: y.transpose(0, 1).reshape(y.size(1), -1, heads * y.size(-1)),
}
# The same without a batch of heads.
TIME_FIRST = {
    "batch_first": False,
    "split": lambda t, heads: t.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3),
    "merge": lambda y, heads: y.permute(2, 0, 1, 3).flatten(2),
}
# Heads before the items in the batch.
HEADS_OUTER = FOLDED | {
    "split": lambda t, heads: torch.cat(t.chunk(heads, -1), 0),
    "spread": lambda allowed, heads: allowed.repeat(heads, 1, 1) if allowed.dim() == 3 else allowed,
    "merge": lambda y, heads: torch.cat(y.chunk(heads, 0), -1),
}
# Each head's query, key and value lie together in what is packed.
BY_HEAD = {"parts": lambda packed, _, heads: [t.flatten(-2) for t in packed.unflatten(-1, (heads, 3, -1)).unbind(-2)]}


def pair(y, w):
    return y, w


def with_none(y, w):
    return y, None


def in_dict(y, w):
    return {"hidden": y, "weights": w}


def separate(prefix, suffix=""):
    """The names of four layers."""
    return " ".join(prefix + letter + suffix for letter in "qkvo")
