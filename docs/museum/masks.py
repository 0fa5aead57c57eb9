# %% [markdown]
# # Does my mask hide what it should?
#
# **Change what should be hidden, and see whether an output moves: that one test finds most of these mistakes.** None of
# them changes a shape. Each runs here beside the right version, on random numbers of ordinary size. *Off by* is the
# largest difference between the two outputs.
#
# | What you see | Mistake | Off by | Hides with |
# | --- | --- | --- | --- |
# | The loss falls fast, samples are poor | [no causal mask](#no-causal-mask) | 0.54<!--= off["no-causal-mask"] --> | one token |
# | The same | [a mask of the other polarity](#mask-polarity) | 2.64<!--= off["mask-polarity"] --> | equal tokens |
# | The same | [a boolean mask added](#boolean-mask-added) | 0.85<!--= off["boolean-mask-added"] --> | one token |
# | The same | [a float mask of ones](#float-mask-of-ones) | 0.27<!--= off["float-mask-of-ones"] --> | one token |
# | The same | [`is_causal` alone](#is-causal-is-a-hint) | 0.99<!--= off["is-causal-is-a-hint"] --> | one token |
# | Small outputs | [masked too late](#mask-after-softmax) | 0.40<!--= off["mask-after-softmax"] --> | one token |
# | Depends on the batch | [padding seen](#padding-ignored) | 0.23<!--= off["padding-ignored"] --> | no padding |
# | Wrong with a cache | [top-left alignment](#top-left-causal) | 2.54<!--= off["top-left-causal"] --> | no cache |
# | NaN | [a row of nothing](#fully-masked-row) | NaN | a key for each |
# | NaN | [a NaN behind the mask](#hidden-nan) | NaN | a full cache |
# | An error in float16 | [a mask of -1e9](#float16-overflow)<!--~ a name --> | fails | float32 |
# | A checkpoint that fails | [a mask kept in it](#mask-buffer) | nothing | one context length |
# | Memory runs out | [a mask for every head](#expanded-mask) | nothing | short inputs |
#
# **You should know** [what a mask is](../pytorch/masks.py). **You will know** what each wrong mask does, the sizes at
# which it hides, and a check that finds it. The [museum's index](index.py) has the other rooms.

# %% tags=["hide-input"]
import math

import torch
import torch.nn.functional as F
from torch import nn

from unmasked import (
    CausalSelfAttention,
    MultiheadAttention,
    attend,
    attention_scores,
    attention_weights,
    masks,
    plot,
    positions,
    self_attention,
)
from unmasked_doctor import probes
from unmasked_doctor.museum import ENTRIES, Exhibits, Plate
from unmasked_lessons.experiments import interfaces
from unmasked_lessons.experiments.interfaces import causality

B, N, H, D = 2, 5, 4, 3  # batch, tokens, heads, head_dim: all differ
E = H * D
x = torch.randn(B, N, E, generator=torch.Generator().manual_seed(9))


def causal(x):
    return masks.causal(x.size(1))  # True = may see


def with_mask(x, mask):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


# runs wrong beside right: on what hides the mistake, on x, and under a probe
exhibit = Exhibits(given=x, hides=x[:, :1], probe=probes.sees_the_future)
off = exhibit.off

# %% [markdown]
# These are the weights of three mistakes beside the right ones of the same sequence. Only the right ones have zeros
# above the diagonal, and rows that sum to one.

# %% tags=["hide-input"]
#| caption: The weights of {{ len(weighed) - 1 }} mistakes beside the right ones.
small = x[0, :, :D]  # few features, so that no weight is close to one
scores, allowed = attention_scores(small, small), causal(x)
weighed = {
    "right": attention_weights(scores, allowed=allowed),
    "other polarity": attention_weights(scores, allowed=~allowed),
    "boolean added": (scores + ~allowed).softmax(-1),
    "after softmax": scores.softmax(-1) * allowed,
}
sound_ones = [
    name
    for name, w in weighed.items()
    if not w.triu(1).any() and torch.allclose(w.sum(-1), torch.ones(N))
]
plot.grid(weighed, queries=range(N))

# %% tags=["claims"]
assert sound_ones == ["right"], (
    "Only the right ones have zeros above the diagonal, and rows that sum to one"
)

# %% [markdown]
# Break the mask yourself, and see what the check says. It changes a token, as the doctor does, and looks at the outputs
# of those before it.

# %% tags=["hide-input"]
#| caption: A mask to break, and what finds it.
#| script: ../../src/unmasked_lessons/figures/check.js
#| data: {"x": small, "changed": small.flip(0) + 1, "masks": to_break}
to_break = {
    "right": allowed,
    "no mask": torch.ones(N, N, dtype=torch.bool),
    "the other polarity": ~allowed,
    "one key too many": masks.causal(N, N) | torch.eye(N).roll(1, 1).bool(),
    "without itself": allowed & ~torch.eye(N, dtype=torch.bool),
}
plot.grid(to_break["right"], queries=range(N))

# %% [markdown]
# ## No causal mask at all { #no-causal-mask }
#
# The call looks right, but `nn.MultiheadAttention` and `F.scaled_dot_product_attention` do not mask anything of their
# own accord. A model that is trained to predict the next token then reads the answer from its input.


# %% tags=["hide-input"]
def unmasked(x):
    # right: F.scaled_dot_product_attention(x, x, x, is_causal=True)
    return F.scaled_dot_product_attention(x, x, x)


def right(x):
    return with_mask(x, causal(x))


exhibit("no-causal-mask", unmasked)

# %% [markdown]
# **Hides** with one token, and in the last token's output of a single layer, so never test that alone. **Fix:**
# `is_causal=True`, or a mask.
#
# ## A mask of the other polarity { #mask-polarity }
#
# A mask for `nn.MultiheadAttention`, where `True` means *may not attend*, is passed to
# `F.scaled_dot_product_attention`, where it means the opposite, or the other way round. Here every token sees only the
# future, and the last one sees nothing.


# %% tags=["hide-input"]
def inverted(x):
    # right: with_mask(x, causal(x))
    return with_mask(x, ~causal(x))[:, :-1]  # the last row is zeros


exhibit("mask-polarity", inverted, hides=torch.ones(B, N, E))

# %% [markdown]
# To find out what an interface makes of `True`, mark one key with `True` for every query, change it, and see whether an
# output moves. In evaluation without gradients PyTorch's modules may run other code, their *fast path*, so each is
# tried in all three modes, and in the last also with the fast path switched off.

# %% tags=["check"]
torch.manual_seed(1)
module = nn.MultiheadAttention(E, H, batch_first=True)
ours = MultiheadAttention(E, H, batch_first=True)
ours.load_state_dict(module.state_dict())
layer = nn.TransformerEncoderLayer(E, H, 16, dropout=0.0, batch_first=True)
odd = nn.TransformerEncoderLayer(E, 3, 16, dropout=0.0, batch_first=True)
parts = nn.ModuleList([module, ours, layer, odd])
modes = interfaces.MODES
without_fast_path = []  # in the last mode, beside evaluation with gradients


def by_mode(f, *inputs, **options):
    *answers, without = interfaces.by_mode(
        parts, lambda: f(*inputs, **options)
    )
    without_fast_path.append((without, answers[1]))
    return answers


# %% tags=["hide-input"]
questions = interfaces.meanings(x, module, layer, ours)
polarity = {name: by_mode(ask) for name, ask in questions.items()}
plot.table(
    ["True means", *modes],
    [(name, *answers) for name, answers in polarity.items()],
)
by_functions, by_modules, *_ = (cells[0] for cells in polarity.values())

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# The mode changes nothing here. PyTorch's function and its modules disagree.
#
# **Hides** where all tokens are equal, as in a test on `torch.ones`, because an average of equal tokens is that token;
# only a row that sees nothing differs. **Fix:** `~mask`, or name masks by what `True` means (`allowed`, `blocked`) and
# convert them with `masks.blocked_from_allowed`.

# %% tags=["claims"]
assert by_modules == "may not attend", "where True means may not attend"
assert by_functions != by_modules and not any(
    len(set(cells)) > 1 for cells in polarity.values()
), (
    "The mode changes nothing here. PyTorch's function and its modules disagree"
)

# %% [markdown]
# ## A boolean mask added to the scores { #boolean-mask-added }
#
# `scores += mask` is right for a mask of zeros and minus infinity. A boolean mask is silently converted, and each
# `True` adds 1<!--= (torch.zeros(1) + torch.tensor([True])).item() -->.


# %% tags=["hide-input"]
def boolean_added(x):
    scores = attention_scores(x, x)
    scores += ~causal(x)  # right: scores.masked_fill_(~causal(x), -torch.inf)
    return scores.softmax(-1) @ x


future = (torch.zeros(N, N) + ~causal(x)).softmax(-1)[0, 1:].sum()
exhibit("boolean-mask-added", boolean_added, right)

# %% [markdown]
# So what should be shut out is even preferred. With equal scores, the first token would give 80%<!--= (N - 1) / N -->
# of its weight to the future without any mask; with this one it gives 92%<!--= future -->. **Hides** with one token.
# **Fix:** `masked_fill`, or `masks.additive_from_allowed(allowed)`.
#
# ## A float mask of zeros and ones { #float-mask-of-ones }
#
# This mask has ones where a query may see and zeros where it may not. A floating mask is *added* to the scores, so the
# ones change little and the zeros nothing.


# %% tags=["hide-input"]
def ones_added(x):
    return with_mask(x, causal(x).float())  # right: with_mask(x, causal(x))


exhibit("float-mask-of-ones", ones_added)

# %% [markdown]
# PyTorch has one exception: on its [fast path for such masks](../pytorch/masks.py#masks-of-numbers-are-added),
# `nn.TransformerEncoderLayer` treats every number that is not zero as minus infinity. On that path, a mask that has its
# ones in the hidden places happens to be right. So the mistake **hides**: the model is trained with next to no mask,
# while its tests run with the right one. And a right floating mask, such as ALiBi, which here subtracts half the
# distance between query and key, is lost there. `nn.MultiheadAttention` adds it in every mode.


# %% tags=["hide-input"]
def gap(blocked):
    return probes.differs(
        layer(x, src_mask=blocked.float()), layer(x, src_mask=blocked)
    )


alibi = masks.additive_from_allowed(causal(x)) + positions.alibi(8, N)[0]
by_layer = interfaces.adding(layer, x, alibi)
by_module = ours(x, x, x, attn_mask=alibi)[0]

gaps = by_mode(gap, ~causal(x))
alibi_off = by_mode(
    lambda: probes.differs(layer(x, src_mask=alibi), by_layer)
)
module_off = by_mode(
    lambda: probes.differs(module(x, x, x, attn_mask=alibi)[0], by_module)
)
rows = {"ones where hidden, off by": gaps, "ALiBi, off by": alibi_off}
plot.table(
    ["nn.TransformerEncoderLayer", *modes],
    [(name, *(f"{each:.3g}" for each in row)) for name, row in rows.items()],
)

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# The ones are off by 0.57<!--= gaps[0] --> in training, and by nothing in the last mode; ALiBi is right in the first
# two, and off by 0.57<!--= alibi_off[2] --> in the last. **Fix:** `.bool()`, of the right polarity;
# `masks.allowed_from_additive` refuses a mask of ones. For biases, switch the fast path off:
# `torch.backends.mha.set_fastpath_enabled(False)`.

# %% tags=["claims"]
assert not any(module_off), "nn.MultiheadAttention adds it in every mode"
assert gaps[2] == 0, "by nothing in the last mode"
assert not any(alibi_off[:2]), "ALiBi is right in the first two"

# %% [markdown]
# ## Masked after the softmax { #mask-after-softmax }
#
# The upper triangle of the weights is zero, so the picture looks right. But the future is in the denominator of every
# row but the last.


# %% tags=["hide-input"]
def masked_late(x):
    scores = attention_scores(x, x)
    # right: scores.masked_fill(~causal(x), -torch.inf).softmax(-1)
    return scores.softmax(-1).tril() @ x


late = attention_scores(x, x).softmax(-1).tril()
exhibit("mask-after-softmax", masked_late)

# %% [markdown]
# Rows sum to as little as 0.58<!--= late.sum(-1).min() -->. **Hides** with one token, and in the last row. **Caught
# by** the sums of the rows, too. **Fix:** mask the scores. Dividing each row by its sum also gives the right weights,
# as long as what remains is not rounded to zero.

# %% tags=["claims"]
assert probes.weights_sum_to_one(late), "Caught by the sums of the rows, too"
assert not probes.differs(late / late.sum(-1, keepdim=True) @ x, right(x)), (
    "Dividing each row by its sum also gives the right weights"
)

# %% [markdown]
# ## Padding that is attended to { #padding-ignored }
#
# Sequences are padded to one length, but attention is not told. Padding with zeros does not help: where no bias is
# added to the keys, its scores are zero, and the exponential of zero is one.

# %% tags=["hide-input"]
real, padded = 3, x.clone()
padded[:, real:] = 0.0


def allowed_keys(x):
    return torch.arange(x.size(1)) < real  # True = a word


def padding_seen(x):
    # right: self_attention(x, allowed=allowed_keys(x))
    return self_attention(x).context[:, :real]


def padding_moves_it(f, x):
    def call(query, key, value, allowed):
        return f(key)

    return probes.attends_to_what_is_hidden(call, x, x, x, allowed_keys(x))


taken = self_attention(padded).weights[:, :real, real:].sum(-1).max()
behind = right(padded)[:, :real], right(padded[:, :real])
exhibit(
    "padding-ignored",
    padding_seen,
    probe=padding_moves_it,
    hides=padded[:, :real],
    given=padded,
)

# %% [markdown]
# A word gives up to 25%<!--= taken --> of its weight to nothing. **Hides** where no sequence is padded, as in batches
# of equal lengths, and where padding stands at the end behind a causal mask: no real token sees it. **Fix:**
# `masks.padding(lengths)`, or a `key_padding_mask`.

# %% tags=["claims"]
assert not probes.differs(*behind), (
    "and where padding stands at the end behind a causal mask"
)

# %% [markdown]
# ## A causal mask aligned at the top left { #top-left-causal }
#
# With a cache, which keeps the keys and values of earlier tokens, two new queries look at all five keys. They are the
# last tokens, but PyTorch's `is_causal=True` counts from the other end and takes them for the first.

# %% tags=["hide-input"]
newest = 2


def top_left(q, k, v):
    # right: F.scaled_dot_product_attention(
    #     q, k, v, masks.causal(q.size(1), k.size(1)))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def misaligned(f, q, k, v):
    return probes.misaligns_a_cache(f, k)


last = x[:, -newest:]
seen = torch.ones(newest, N, dtype=torch.bool).tril()
of_the_first = F.scaled_dot_product_attention(last, x, x, attn_mask=seen)
exhibit(
    "top-left-causal",
    top_left,
    probe=misaligned,
    hides=[last] * 3,
    given=[last, x, x],
)

# %% [markdown]
# The newest token sees only the two<!--= seen[-1].sum() --> oldest keys; `masks.causal(newest, N)` gives it
# five<!--= masks.causal(newest, N)[-1].sum() -->. A single new token would be left with only the very first key.
# **Hides** where there are as many queries as keys: in training, and in the first step of generation. **Fix:**
# `masks.causal(queries, keys)`; for one query, no causal mask at all.

# %% tags=["claims"]
assert not probes.differs(top_left(last, x, x), of_the_first), (
    "counts from the other end and takes them for the first"
)

# %% [markdown]
# ## `is_causal` taken for a mask { #is-causal-is-a-hint }
#
# To `nn.MultiheadAttention`, `is_causal=True` is a hint that the mask you pass is causal. Without a mask it does
# nothing or raises an error. With a mask it is sometimes believed:


# %% tags=["hide-input"]
def hinted(x):
    with torch.no_grad():
        module.eval()
        # right: module(x, x, x, attn_mask=~causal(x), need_weights=False)
        return module(x, x, x, is_causal=True, need_weights=False)[0]


exhibit("is-causal-is-a-hint", hinted)


# %% tags=["check"]
def told(mask, is_causal=True):
    query = x[:, -mask.size(0) :]
    options = {"is_causal": is_causal, "need_weights": False}
    return module(query, x, x, attn_mask=~mask, **options)[0]


window = masks.sliding_window(N, window=2)

# %% tags=["hide-input"]
everything = torch.zeros(N, N, dtype=torch.bool)  # a mask that blocks nothing
padding = (torch.arange(N) == 2).expand(B, N)  # one key of each sequence
hints, obeys = {}, []
for given, mask, key_padding_mask in (
    ("no mask", None, None),
    ("open mask", everything, None),
    ("open mask and padding", everything, padding),
):
    for need in (True, False):
        options = {"attn_mask": mask, "need_weights": need}
        options["key_padding_mask"] = key_padding_mask
        hints[given, need] = by_mode(causality, module, x, **options)
        obeys += by_mode(causality, ours, x, **options)
rows = [
    (f"{given}, need_weights={need}", *cells)
    for (given, need), cells in hints.items()
]
plot.table(["nn.MultiheadAttention, is_causal=True", *modes], rows)

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# Without a mask it raises, or, on the fast path, silently drops the hint. With a mask, the hint wins in one case:
# `need_weights=False`, no key_padding_mask, and no fast path. Then a window that the mask has is lost. With fewer
# queries than keys, as with a cache, a causal mask is lost as well, because the hint counts from the top left.
# **Hides** with one token. **Fix:** pass the mask, and add the hint only if the mask is purely causal, with as many
# queries as keys; or use `unmasked.MultiheadAttention`, which obeys in every mode.

# %% tags=["claims"]
assert hints["no mask", False] == ["raises", "raises", "not causal"], (
    "Without a mask it raises, or, on the fast path, silently drops the hint"
)
assert [case for case, cells in hints.items() if "causal" in cells] == [
    ("open mask", False)
] and hints["open mask", False] == ["causal", "causal", "not causal"], (
    "With a mask, the hint wins in one case"
)
assert not probes.differs(told(window), told(causal(x))), (
    "Then a window that the mask has is lost"
)
assert not probes.differs(told(masks.causal(2, N)), told(seen, False)), (
    "a causal mask is lost as well, because the hint counts from the top left"
)
assert set(obeys) == {"causal"}, "which obeys in every mode"

# %% [markdown]
# ## A query that may see nothing { #fully-masked-row }
#
# With padding on the left under a causal mask, an empty sequence, or a window that starts too late, some row of the
# mask allows no key. A softmax of nothing but minus infinity is zero divided by zero.


# %% tags=["hide-input"]
def naive(q, k, v, allowed):
    scores = attention_scores(q, k)
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v


def sound(q, k, v, allowed):
    scores = attention_scores(q, k)
    return attention_weights(scores, allowed=allowed) @ v


def blinded(f, q, k, v, allowed):
    return probes.is_blinded(f, q, k, v, torch.ones_like(allowed))


left_padded = masks.causal(N) & (torch.arange(N) >= N - real)
words = left_padded[-real:]
exhibit(
    "fully-masked-row",
    naive,
    sound,
    blinded,
    hides=[x[:, -real:], x, x, words],
    given=[x, x, x, left_padded],
)

# %% [markdown]
# Two<!--= (~left_padded.any(-1)).sum() --> rows are NaN. **Hides** while every query has a key. What each interface
# makes of such rows depends on the mode, on `need_weights` and on the kind of mask. *Zeros* means a context of zeros,
# so that what comes out is the bias of the last layer.

# %% tags=["hide-input"]
torch.manual_seed(2)
nn.init.normal_(module.out_proj.bias)
ours.load_state_dict(module.state_dict())

questions = interfaces.blind(
    x,
    left_padded,
    {"nn.MultiheadAttention": module, "unmasked.MultiheadAttention": ours},
    {
        "nn.TransformerEncoderLayer, 4 heads": layer,
        "nn.TransformerEncoderLayer, 3 heads": odd,
    },
)
blind = {name: by_mode(ask) for name, ask in questions.items()}
plot.table(["A row that may see nothing", *modes], interfaces.by_kind(blind))

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# So NaN can appear in evaluation alone, because `nn.MultiheadAttention` has three ways to compute. With weights it runs
# a softmax of its own, which gives NaN. Without them it calls PyTorch's function, which gives zeros on a CPU. (On a GPU
# it depends on the kernel [when a row allows nothing](../pytorch/masks.py#when-a-row-allows-nothing).) In evaluation
# without gradients, self-attention with `batch_first=True` may take the fast path, which gives NaN, but zeros for a
# floating mask. A layer with an odd number of heads takes no fast path, and gives zeros. With
# `torch.backends.mha.set_fastpath_enabled(False)`, the last column of every table of this page equals the one before
# it.
#
# A sequence of nothing but padding, hidden by `src_key_padding_mask`, is NaN from an `nn.TransformerEncoderLayer` on
# its fast path, and zeros from an `nn.TransformerEncoder`. The encoder's fast path cuts padding off before the first
# layer, and fills the output up with zeros after the last. But it cuts only if padding stands at the end of every
# sequence: with padding in front, an empty sequence is NaN from the encoder, too.
#
# One NaN does not stay where it is. Here only the second sequence is empty, and the loss reads only the first.

# %% tags=["check"]
shut_out = torch.tensor([[False] * N, [True] * N])  # True = padding
module(x, x, x, key_padding_mask=shut_out)[0][0].sum().backward()
poisoned = module.in_proj_weight.grad.isnan().float().mean().item()

parts = nn.ModuleList([layer, nn.TransformerEncoder(layer, 2)]).eval()
with torch.no_grad():
    empty = [part(x, src_key_padding_mask=shut_out)[1] for part in parts]
    in_front = shut_out.clone()
    in_front[0, 0] = True
    empty_beside = parts[1](x, src_key_padding_mask=in_front)[1]
any_nan = naive(x, x, x, left_padded).isnan().any()
title = "nn.MultiheadAttention, need_weights={}".format
with_weights, without = (blind[title(need), "bool"] for need in (True, False))

# %% [markdown]
# It makes 100%<!--= poisoned --> of the projections' gradient NaN. **Fix:** let such rows see something and ignore
# their output, or call `unmasked.attention_weights` or `unmasked.attend`, which give zeros.

# %% tags=["claims"]
assert any_nan, "NaN a row of nothing NaN a key for each"
assert ["zeros", "zeros", "NaN"] in blind.values(), (
    "So NaN can appear in evaluation alone"
)
assert set(with_weights) == {"NaN"}, (
    "With weights it runs a softmax of its own, which gives NaN"
)
assert without[:2] == ["zeros", "zeros"], (
    "Without them it calls PyTorch's function, which gives zeros on a CPU"
)
assert (without[2], blind[title(False), "float"][2]) == ("NaN", "zeros"), (
    "which gives NaN, but zeros for a floating mask"
)
assert blind["nn.TransformerEncoderLayer, 3 heads", "bool"][2] == "zeros", (
    "A layer with an odd number of heads takes no fast path, and gives zeros"
)
assert all(
    str(a) == str(b) or abs(a - b) < 1e-4 for a, b in without_fast_path
), "the last column of every table of this page equals the one before it"
assert empty[0].isnan().all() and not empty[1].any(), (
    "is NaN from an nn.TransformerEncoderLayer on its fast path, and zeros"
)
assert empty_beside.isnan().all(), (
    "with padding in front, an empty sequence is NaN from the encoder, too"
)

# %% [markdown]
# ## A NaN behind the mask { #hidden-nan }
#
# A cache with room for eight tokens is made by `torch.empty`, which leaves in memory what was there, and the mask hides
# the unused room. Its weights are zero, but zero times NaN is NaN. With deterministic algorithms switched on, PyTorch
# fills `torch.empty` with NaN, so that the mistake shows:

# %% tags=["hide-input"]
room = 8


def cached(x, make, room=room):
    # wrong: torch.empty(B, room, E), right: torch.zeros(B, room, E)
    cache = make(B, room, E)
    cache[:, : x.size(1)] = x
    used = torch.arange(room) < x.size(1)
    return F.scaled_dot_product_attention(
        x, cache, cache, attn_mask=used.expand(x.size(1), room)
    )


def by_empty(x, room=room):
    torch.use_deterministic_algorithms(True)
    context = cached(x, torch.empty, room)
    torch.use_deterministic_algorithms(False)
    return context


def by_zeros(x, room=room):
    return cached(x, torch.zeros, room)


def passes_nan(f, x):
    bad = int(f(x).isnan().any(-1)[0].sum())
    return f"{bad} of {x.size(1)} outputs are NaN" if bad else None


exhibit("hidden-nan", by_empty, by_zeros, passes_nan, hides=[x, N])

# %% tags=["check"]
shut = (torch.arange(N) >= real).expand(B, N)  # True = hidden


def spoilt(number):
    """What comes out where all hidden values are this number."""
    value = x.masked_fill(shut[..., None], number)
    mask = ~shut[:, None]
    yield F.scaled_dot_product_attention(x, x, value, attn_mask=mask)
    yield attend(x, x, value, allowed=mask).context
    for part in (module, ours):
        for need in (True, False):
            options = {"key_padding_mask": shut, "need_weights": need}
            yield part(x, x, value, **options)[0]


long = torch.randn(1, 1, 600, E, generator=torch.Generator().manual_seed(3))
value = long.clone()
value[..., -1, :] = torch.nan  # which only the last query may see
of_long = F.scaled_dot_product_attention(long, long, value, is_causal=True)
hit = int(of_long.isnan().any(-1).sum())

huge = x.masked_fill(shut[..., None], 3e38)
huge_hit = (
    F.scaled_dot_product_attention(x, huge, x, attn_mask=~shut[:, None])
    .isnan()
    .any()
)

# %% [markdown]
# PyTorch's function and module pass a hidden NaN or infinity on, and so do this package's: a matrix product cannot
# leave a term out, it can only multiply it by zero. A check costs little: `key.isfinite().all()` reads each number
# once. A large finite value does no harm, but a key so large that its score overflows can give NaN. Under
# `is_causal=True` a kernel may skip keys that a whole block of queries may not see, so in a long sequence only some
# outputs are hit. **Hides** where the memory happens to be finite, and where no room is left. **Caught by**
# `torch.use_deterministic_algorithms(True)`. **Fix:** `torch.zeros`, or `cache[:, :length]`, which has no unused room.
# Where padding may hold anything, `unmasked.masks.zero_hidden` sets what no query may see to zero, and every output is
# finite again.

# %% tags=["claims"]
assert by_empty(x).isnan().any(), "a NaN behind the mask NaN a full cache"
assert all(
    context.isnan().any()
    for number in (torch.nan, torch.inf)
    for context in spoilt(number)
), "PyTorch's function and module pass a hidden NaN or infinity on"
assert all(context.isfinite().all() for context in spoilt(1e30)), (
    "A large finite value does no harm"
)
assert huge_hit, "but a key so large that its score overflows can give NaN"
assert 1 < hit < long.size(2), (
    "so in a long sequence only some outputs are hit"
)

# %% [markdown]
# <!--~ -1e9: a constant that many use -->
#
# ## A mask of -1e9 in float16 { #float16-overflow }
#
# In many programs $-10^9$<!--~ the constant --> stands in for minus infinity. float16 cannot hold it: its lowest number
# is -65,504<!--= torch.finfo(torch.float16).min -->.


# %% tags=["hide-input"]
def filled(number):
    def attend(x):
        scores = x @ x.mT / math.sqrt(x.size(-1))
        # wrong: scores.masked_fill(~causal(x), -1e9)
        # right: scores.masked_fill(~causal(x), -torch.inf)
        return scores.masked_fill(~causal(x), number).softmax(-1) @ x

    return attend


overflow = probes.fails_in_half(filled(-1e9), x)
Plate(ENTRIES["float16-overflow"], found=str(overflow))

# %% [markdown]
# In float16 `masked_fill` and `torch.full` raise, and a cast turns the number into minus infinity. And in a row where
# every key is masked, the result depends on the dtype, and on whether the number is filled in or added:

# %% tags=["hide-input"]
scores = attention_scores(x, x)[0]
dtypes = torch.float64, torch.float32, torch.bfloat16, torch.float16
emptied = {
    dtype: interfaces.hiding_everything(scores.to(dtype)) for dtype in dtypes
}
plot.table(
    ["every key masked with -1e9", *interfaces.WAYS_TO_HIDE],
    [(str(dtype), *cells) for dtype, cells in emptied.items()],
)

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# In float32, scores of ordinary size are rounded away, and every key gets the same weight. float64 keeps them, so an
# added mask then hides nothing. **Hides** in float32 and bfloat16, while every row has a key. **Fix:** `-torch.inf`,
# with an eye on [rows that may see nothing](#fully-masked-row).
#
# Scores overflow without a mask, too. Here the queries and keys are a hundred times as large, and `q @ k.mT` is
# infinite before anything divides it. A row with a score of plus infinity is NaN, since the softmax takes it away from
# itself.

# %% tags=["check"]
big, bigger = (100 * x).half(), (1000 * x).half()
by_hand = (big @ big.mT / math.sqrt(E)).softmax(-1) @ big
largest = attention_scores(bigger, bigger).max().item()
beyond = largest / torch.finfo(torch.float16).max

# %% [markdown]
# By hand the output is NaN. `F.scaled_dot_product_attention` stays finite, even where the divided scores are still
# 82<!--= beyond --> times too large for float16: its kernels keep them in float32, and so does
# `unmasked.attention_scores`. By hand, divide the query before the product: then the scores may be $\sqrt{d}$ times as
# large before they overflow.

# %% tags=["claims"]
assert overflow and not probes.fails_in_half(filled(-torch.inf), x), (
    "An error in float16 a mask of -1e9 fails float32"
)
assert emptied[torch.float64][1] == "as if nothing were masked", (
    "float64 keeps them, so an added mask then hides nothing"
)
assert all(
    probes.differs(filled(-1e9)(each), filled(-torch.inf)(each)) == 0
    for each in (x, x.bfloat16())
), "Hides in float32 and bfloat16, while every row has a key"
assert by_hand.isnan().any(), "By hand the output is NaN"
assert all(
    with_mask(each, None).isfinite().all() for each in (big, bigger)
), "stays finite, even where the divided scores are still 82 times too large"

# %% [markdown]
# ## A mask kept as a persistent float32 buffer { #mask-buffer }
#
# A *buffer* is a tensor that a module keeps and does not learn. `register_buffer("mask", ...)` with a square for the
# longest context puts one such square for every layer into the checkpoint, the file in which a model is saved.


# %% tags=["hide-input"]
class Buffered(CausalSelfAttention):
    def __init__(self, context_length):
        super().__init__(4, 4, 1, out_bias=False)
        mask = torch.ones(context_length, context_length).triu(1)
        # right: self.register_buffer("mask", mask.bool(), persistent=False)
        self.register_buffer("mask", mask)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        allowed = ~self.mask.bool()[: x.size(1), : x.size(1)]
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out_proj(context)


torch.manual_seed(4)
wrong, lean = Buffered(7), CausalSelfAttention(4, 4, 1, out_bias=False)
lean.load_state_dict(dict(wrong.named_parameters()))
same_output = probes.differs(wrong(x[..., :4]), lean(x[..., :4])) == 0
with torch.device("meta"):  # sizes without memory
    longer = Buffered(1024)
weight_size = sum(each.nbytes for each in lean.state_dict().values())
try:
    Buffered(8).load_state_dict(wrong.state_dict())
except RuntimeError as error:
    refusal = str(error).splitlines()[-1].strip()
else:
    raise AssertionError("it loaded a mask of another size")
Plate(ENTRIES["mask-buffer"], found=refusal.rstrip("."))

# %% [markdown]
# The outputs are the same. For 1,024<!--= longer.mask.size(0) --> tokens the mask takes
# 4<!--= longer.mask.nbytes / 2**20 --> MiB beside 256<!--= weight_size --> bytes of weights. And a model with another
# context length does not load the checkpoint. **Hides** as long as nobody saves, or changes the length. **Caught by** a
# `state_dict` that holds more than parameters. **Fix:** `persistent=False` and `torch.bool`, or no mask at all:
# `is_causal`.

# %% tags=["claims"]
assert same_output, "a mask kept in it nothing one context length"
assert same_output, "The outputs are the same"
assert "size mismatch for mask" in refusal, (
    "And a model with another context length does not load the checkpoint"
)

# %% [markdown]
# ## A mask expanded to every head { #expanded-mask }
#
# `torch.full(scores.size(), -torch.inf).triu(1)` makes a mask for every sequence and every head, all of them the same.

# %% tags=["hide-input"]
scores = torch.randn(B, H, N, N, generator=torch.Generator().manual_seed(5))
every = torch.full(scores.size(), -torch.inf).triu(1)
one = torch.full((N, N), -torch.inf).triu(1)
by_every, by_one = ((scores + mask).softmax(-1) for mask in (every, one))
same_weights = probes.differs(by_every, by_one) == 0
view = one.expand_as(every).untyped_storage()

batch, heads, tokens = 30, 8, 1024
with torch.device("meta"):
    per_head = torch.full((batch, heads, tokens, tokens), -torch.inf)
    single = torch.full((tokens, tokens), -torch.inf)
mebibytes = [
    mask.nbytes / 2**20 for mask in (per_head, single, single.bool())
]
Plate(ENTRIES["expanded-mask"])

# %% [markdown]
# The weights are the same. For 30<!--= batch --> sequences, eight heads and 1,024<!--= tokens --> tokens the mask takes
# 960<!--= mebibytes[0] --> MiB where 4<!--= mebibytes[1] --> MiB are enough, or 1<!--= mebibytes[2] --> MiB as
# `torch.bool`. **Hides** with short inputs. **Caught by** `mask.untyped_storage().nbytes()`, which does not grow for a
# view by `expand`. **Fix:** make it (queries, keys), and let it broadcast.

# %% tags=["claims"]
assert view.nbytes() == one.nbytes, "which does not grow for a view by expand"
assert same_weights, "a mask for every head nothing short inputs"
assert same_weights, "The weights are the same"

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("leak-test", answer))`.
#
# **A test for leaks** (`leak-test`). Write `looks_ahead(f, x)`, which says whether a later token reaches an earlier
# output of `f`, for `x` of (batch, tokens, features). The check gives it functions with the mistakes of this page, and
# some without.
#
# ??? question "Hint"
#
#     For every position, change all tokens from there on, and compare the outputs before it.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def looks_ahead(f, x):
    before = f(x)
    for position in range(1, x.size(1)):
        changed = x.clone()
        changed[:, position:] = changed[:, position:].flip(-1) + 1
        after = f(changed)[:, :position]
        if not torch.allclose(after, before[:, :position], atol=1e-5):
            return True
    return False


check("leak-test", looks_ahead)

# %% [markdown]
# **A mask for the module** (`module-mask`). Write `module_mask(allowed, num_heads)` for `allowed` of (batch, queries,
# keys): the `attn_mask` for `nn.MultiheadAttention`, of shape (batch times heads, queries, keys).
#
# ??? question "Hint"
#
#     The heads of one sequence stand side by side: `repeat_interleave`, not `repeat`.


# %% tags=["solution"]
def module_mask(allowed, num_heads):
    return ~allowed.repeat_interleave(num_heads, dim=0)


check("module-mask", module_mask)

# %% [markdown]
# ## What to read next
#
# - The museum's other rooms: [heads](heads.py), [learned weights](weights.py), [computation](computation.py).
# - [What does each interface make of my mask?](../pytorch/masks.py) has the tables of PyTorch's interfaces.
# - [The doctor](../doctor.py) asks your module most of this page's questions.
#
# ## References
#
# <!--~ 2017, 3.2.3, 2.13, 8068: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.3, masks before the softmax.
# - PyTorch 2.13, documentation of `MultiheadAttention` and `scaled_dot_product_attention`: masks, `is_causal`.
# - ONNX, operator `Attention`, with the erratum of onnx/onnx#8068: a row that may see nothing gives zeros; a causal
#   mask is aligned at the end where a cache is declared, and at the top left where none is.
