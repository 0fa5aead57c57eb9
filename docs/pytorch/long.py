# %% [markdown]
# # Long contexts: windows, sinks, soft-cap
#
# **A window's width depends on who counts: a window of {{ W }} is {{ W }} keys in this library and in the decoders of
# transformers, {{ W + 1 }} in FlashAttention's `window_size`, and {{ 2 * W + 1 }} in an encoder such as ModernBERT.**
# The text of Mistral's paper counts as FlashAttention does. A learned sink is one more term in the softmax, and a
# soft-cap comes before the mask.
#
# {{ plot.table(["Who counts", "A token at i sees the keys j with", "Keys for W = 3"], rows).markdown() }}
#
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ query.device.type.upper() }}.*
#
# **You should know** [what a mask is](masks.py), and what a softmax does. **You will know** how to write a window, a
# sink and a soft-cap, which of these FlexAttention can do and PyTorch's fused function cannot, and a test that counts
# the keys that a token sees.

# %% tags=["imports"]
import warnings

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import (
    create_block_mask,
    flex_attention,
)

from unmasked import attend, attention_scores, attention_weights, masks, plot
from unmasked.kernels import kernels_of
from unmasked_lessons.experiments import long as experiments

# %% tags=["remove-cell"]
warnings.filterwarnings("ignore", "flex_attention called without")

# %% tags=["hide-input"]
#| caption: Who sees whom under a window of {{ W }}, counted in both ways, and under a window that keeps two sinks in
#|   sight. Counted in the other way, a token sees one more key.
#| script: ../../src/unmasked_lessons/figures/long.js
#| data: {"tokens": 9, "layers": 1, "starts": starts}
W = 3
window = masks.sliding_window(9, window=W)
first = torch.arange(9) < 2
gallery = {
    "W keys": window,
    "W keys before it": masks.sliding_window(9, window=W + 1),
    "window and two sinks": window | (first & masks.causal(9)),
}
starts = [
    {"name": name, "window": width, "sinks": sinks}
    for name, width, sinks in zip(gallery, (W, W + 1, W), (0, 0, 2))
]
plot.grid(gallery, queries=range(9))

# %% tags=["claims"]
assert gallery["W keys before it"][-1].sum() == window[-1].sum() + 1, (
    "Counted in the other way, a token sees one more key"
)

# %% [markdown]
# ## Sliding windows
#
# In a decoder, a layer with a window lets each token see the nearest tokens before it, so its cache need be no longer
# than the window, however long the text. The library's `masks.sliding_window` counts the query's own key; so does
# `sliding_window` in the causal layers of transformers. In encoders such as ModernBERT the same number is counted to
# each side, and ModernBERT first halves what its config calls `local_attention`. The project's tests confirm both.
# Others count both sides together: in the encoder of T5Gemma 2<!--~ its name --> a window is as many keys as it says,
# and Gemma 3<!--~ its name -->, made an encoder, gives half of its window to each side. FlashAttention and PyTorch's
# `varlen_attn` count only the keys *beside* the query's own: `window_size=(left, right)`. If you pass one count where
# the other is meant, you are off by one key, as [transformers
# was](https://github.com/huggingface/transformers/issues/39408), with one kernel and [not with
# another](https://github.com/huggingface/transformers/issues/29623).

# %% tags=["check"]
i, j = torch.arange(9)[:, None], torch.arange(9)
own = "i - W < j ≤ i", (i - W < j) & (j <= i)
both_ways = "i - W ≤ j ≤ i + W", (i - j).abs() <= W
beside = "i - W ≤ j ≤ i", (i - W <= j) & (j <= i)
rules = {
    "`masks.sliding_window(n, window=W)`": (own[0], window),
    "`sliding_window=W` of transformers, in a decoder": own,
    "Mistral's paper, its figure": own,
    "Mistral's paper, its text": beside,
    "`window_size=(W, 0)`, as FlashAttention says": beside,
    "`sliding_window=W` of transformers, in ModernBERT": both_ways,
}
known = torch.linalg.matrix_power(window.double(), 3)[-1].count_nonzero()
rows = [
    [name, rule, str(int(mask.sum(-1).max()))]
    for name, (rule, mask) in rules.items()
]

# %%
torch.manual_seed(1)
query, key, value = torch.randn(3, 2, 9, 16)  # each: heads tokens head_dim
right = attend(query, key, value, allowed=window).context
one_more = masks.sliding_window(9, window=W + 1)
wrong = attend(query, key, value, allowed=one_more).context
print(f"off by {(wrong - right).abs().max():.1f}")

# %% [markdown]
# That is far too much for rounding. Yet the model mostly gives sensible answers, so nobody looks for the mistake.
#
# Every layer sees what the layer below has gathered, so the windows add up. With three layers of such windows, the
# newest token knows of six others: two for each layer.

# %% tags=["claims"]
assert [int(keys) for *_, keys in rows] == [
    *[W] * 3,
    *[W + 1] * 2,
    2 * W + 1,
], (
    "a window of 3 is 3 keys in this library and in the decoders of transformers, 4 "
    "in FlashAttention's window_size, and 7 in an encoder such as ModernBERT"
)
assert window.diagonal().all() and window.equal(own[1]), (
    "The library's masks.sliding_window counts the query's own key"
)
assert known == 1 + 3 * 2 == 7, (
    "the newest token knows of six others: two for each layer"
)

# %% [markdown]
# ## Two things called sink
#
# Trained models often give much of their attention to the first tokens, no matter which these are: where weights must
# sum to one, attention that has nowhere to go goes there. If such a model is then given a window that slides past the
# first tokens, this place is gone, and the text falls apart. There are two remedies that are both called sinks.
#
# One remedy keeps a few *tokens* in sight beside the window. It is a mask, the last one in the figure:

# %%
kept = masks.causal(9) & (torch.arange(9) < 2)  # the first two tokens
streaming = masks.sliding_window(9, window=W) | kept
print(int(streaming[-1].sum()))

# %% [markdown]
# The other adds a *number* to the softmax, which each head learns, as in gpt-oss. It is one more score, $b_h$, that
# belongs to no key: its share goes nowhere, and the weights of a row sum to less than one.
#
# $$a_{hij} = \frac{e^{s_{hij}}}{e^{b_h} + \sum_{l=1}^{n} e^{s_{hil}}} \tag{28.1}$$
# <!-- where: H = 3; s = random("H n n"); b = random("H"); a = attention_weights(s, sinks=b) -->

# %%
sinks = torch.tensor([-1.0, 2.0])  # for two heads
with_sinks = attend(
    query, key, value, allowed=window, sinks=sinks, need_weights=True
)
print(with_sinks.weights[:, -1].sum(-1))

# %% tags=["check"]
scores = attention_scores(query, key)
longer = torch.cat([scores, sinks[:, None, None].expand(2, 9, 1)], -1)
sunk = attention_weights(scores, sinks=sinks)
at_zero, at_minus_infinity = (
    attention_weights(scores, sinks=torch.tensor(each))
    for each in (0.0, -torch.inf)
)
with_zero_key = F.pad(scores, (0, 1)).softmax(-1)[..., :-1]

# %% [markdown]
# A sink of zero still takes as much as a key whose score is zero. To have no sink, set it to minus infinity. So a layer
# that leaves its checkpoint's sinks out, or takes them as zeros, gives wrong outputs and no error.
#
# `F.scaled_dot_product_attention` has no argument for sinks. But a sink is a key in front that scores the same with
# every query of a head, and whose value is zero. One more feature makes such a key: it is the sink in each query, one
# in the front key, and zero in all others. On the *query's* side each head can have its own, even if heads share their
# keys, as gpt-oss's do:


# %%
def fused_with_sinks(query, key, value, sinks, allowed=None):
    scale = query.size(-1) ** -0.5
    pad = (0, 8)  # one feature more; a GPU wants a multiple of eight
    front = (0, 8, 1, 0)  # and one token in front
    q, k, v = F.pad(query, pad), F.pad(key, front), F.pad(value, front)
    q[..., -1] = sinks[:, None] / scale
    k[..., 0, -1] = 1.0
    if allowed is None:
        allowed = masks.causal(query.size(-2))
    allowed = F.pad(allowed, (1, 0), value=True)  # no mask hides a sink
    out = F.scaled_dot_product_attention(
        q, k, v, allowed, scale=scale, enable_gqa=True
    )
    return out[..., :-8]


batch = [x[None] for x in (query, key[:1], value[:1])]  # one key head
fused = fused_with_sinks(*batch, sinks, window)[0]
eager = attend(
    *batch, allowed=window, sinks=sinks, implementation="eager"
).context[0]
torch.testing.assert_close(fused, eager)

# %% [markdown]
# `unmasked.attend(..., sinks=sinks)` does the same, and needs no matrix for a causal mask. A sink of minus infinity
# becomes the lowest number there, because minus infinity times zero is NaN.

# %% tags=["claims"]
assert torch.allclose(sunk, longer.softmax(-1)[..., :-1], atol=1e-5), (
    "A learned sink is one more term in the softmax"
)
assert (sunk.sum(-1) < 1).all(), "weights of a row sum to less than one"
assert torch.allclose(at_zero, with_zero_key, atol=1e-6), (
    "A sink of zero still takes as much as a key whose score is zero"
)
assert torch.allclose(at_minus_infinity, scores.softmax(-1), atol=1e-6), (
    "To have no sink, set it to minus infinity"
)
assert (fused - eager).abs().max() < 1e-5, (
    "But a sink is a key in front that scores the same with every query of a head, and whose value is zero"
)
assert kernels_of(attend, *batch, is_causal=True, sinks=sinks).names == (
    "flash",
) and torch.allclose(
    attend(*batch, is_causal=True, sinks=sinks).context,
    fused_with_sinks(*batch, sinks),
    atol=1e-5,
), "does the same, and needs no matrix for a causal mask"

# %% [markdown]
# ## A soft-cap comes before the mask
#
# Gemma 2<!--~ a name --> bounds its scores $s$: however large a dot product gets, what enters the softmax stays below a
# cap $c$ of 50<!--~ Gemma 2's -->.
#
# $$z_{ij} = c \tanh(s_{ij} / c) \tag{28.2}$$
# <!-- where: q, k = random("n d", "n d"); c = 1.5; s = attention_scores(q, k)
# z = attention_scores(q, k, softcap=c) -->
#
# The order matters. A hidden score is minus infinity. If it is capped *after* the mask, it becomes minus the cap, a
# score like any other, and the future leaks in:

# %% tags=["hide-input", "any-version"]
#| caption: The weight of the future in the first row, if scores are capped after the mask. The smaller the cap, the
#|   larger the leak; at Gemma's it is too small to be seen in a test.
future = ~masks.causal(9)
leaked = experiments.leaks(scores, (50.0, 20.0, 10.0, 5.0))
plot.table(
    ["cap", *(f"{cap:g}" for cap in leaked)],
    {"weight of the future": [*leaked.values()]},
    "{:.0e}",
)

# %%
capped = attend(query, key, value, is_causal=True, softcap=5.0)
hidden = torch.where(future, -torch.inf, 5 * torch.tanh(scores / 5))
torch.testing.assert_close(capped.context, hidden.softmax(-1) @ value)

# %% [markdown]
# PyTorch's fused function has no soft-cap either. In transformers, models that need one run with `eager`, with
# [FlashAttention](https://github.com/huggingface/transformers/pull/31887), or with FlexAttention. In this library,
# `softcap` chooses the eager implementation by itself, and `implementation="fused"` refuses it:

# %% tags=["hide-output"]
#| raises: ValueError: needs implementation="eager"
attend(query, key, value, softcap=5.0, implementation="fused")

# %% tags=["claims"]
assert (capped.context - hidden.softmax(-1) @ value).abs().max() < 1e-5, (
    "and a soft-cap comes before the mask"
)
assert (attention_scores(1e3 * query, key, softcap=50.0).abs() <= 50).all(), (
    "however large a dot product gets, what enters the softmax stays below a cap"
)
assert leaked[5.0] > 0.1, "a score like any other, and the future leaks in"
assert leaked[5.0] > leaked[10.0] > leaked[20.0] > 1e-12 > leaked[50.0], (
    "The smaller the cap, the larger the leak; at Gemma's it is too small to be seen in a test"
)

# %% [markdown]
# ## FlexAttention
#
# FlexAttention takes the rules as functions: `mask_mod` says who may see whom, and `score_mod` changes a score. When
# compiled, they become part of one kernel on an NVIDIA GPU and, for the forward pass alone, on a CPU or an Apple GPU. A
# block mask says which tiles need no work at all:


# %%
def in_window(batch, head, query, key):
    return (query >= key) & (query - key < W)


def cap(score, batch, head, query, key):
    return 5 * torch.tanh(score / 5)


blocks = create_block_mask(in_window, None, None, 9, 9, device="cpu")
by_flex = flex_attention(
    query[None], key[None], value[None], score_mod=cap, block_mask=blocks
)
ours = attend(query, key, value, allowed=window, softcap=5.0).context
torch.testing.assert_close(by_flex[0], ours)

# %% [markdown]
# Every such function is one more mask to get wrong. [FlexAttention](flex.py) has a page of its own: how to check the
# function and its block mask, how to decode, and what it costs.

# %% [markdown]
# ## The check for your own tests
#
# A gradient shows how many keys a token really sees, however a window is counted:


# %%
def keys_seen(attention, tokens=9):
    torch.manual_seed(0)
    value = torch.randn(2, tokens, 16, requires_grad=True)
    last = attention(torch.randn(2, tokens, 16), value)[:, -1].sum()
    (gradient,) = torch.autograd.grad(last, value)
    return int((gradient.abs().sum((0, 2)) > 0).sum())


def my_attention(x, value):
    return attend(x, x, value, allowed=window).context


assert keys_seen(my_attention) == W

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("window-with-sinks", answer))`.
#
# **Windows with sinks** (`window-with-sinks`). Write `mask(tokens, window, sinks)`: a token sees `window` keys, its own
# included, and the first `sinks` tokens of the text, but no later token.
#
# ??? question "Hint"
#
#     Compare a column of places with a row of places, twice.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def mask(tokens, window, sinks):
    place = torch.arange(tokens)
    distance = place[:, None] - place
    return (distance >= 0) & ((distance < window) | (place < sinks))


feedback = check("window-with-sinks", mask)
assert feedback
feedback

# %% [markdown]
# **A softmax with a sink** (`sink-softmax`). Write `weights(scores, sinks)`, with scores of (heads, queries, keys),
# sinks of (heads), and scores that may be as large as a thousand.
#
# ??? question "Hint"
#
#     Append a column, and drop it again.


# %% tags=["solution"]
def weights(scores, sinks):
    column = sinks[:, None, None].expand(-1, scores.size(1), 1)
    return torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1]


feedback = check("sink-softmax", weights)
assert feedback
feedback

# %% [markdown]
# **Capped and masked** (`capped-weights`). Write `weights(scores, allowed, cap)`: the weights of scores that are
# capped, where what is not allowed has a weight of exactly zero.
#
# ??? question "Hint"
#
#     Which of the two comes last, so that nothing can undo it?


# %% tags=["solution"]
def weights(scores, allowed, cap):
    capped = cap * torch.tanh(scores / cap)
    return capped.masked_fill(~allowed, -torch.inf).softmax(dim=-1)


feedback = check("capped-weights", weights)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [How do I use FlexAttention, and is my mask_mod right?](flex.py)
# - [Packed sequences](packing.py): masks of documents, which FlexAttention takes as ids.
# - [Which RoPE is mine?](positions.py), for positions in long texts.
# - [What does each interface make of my mask?](masks.py), for masks in general.
#
# ## References
#
# <!--~ 2020, 3.1, 2023, 7, 2, 2024, 3.3, 2025: references -->
# - Beltagy et al. (2020), *Longformer*: section 3.1, sliding windows.
# - Jiang et al. (2023), *Mistral 7B*: section 2, a window in which the text counts one key more than the figure.
# - Xiao et al. (2024), *Efficient Streaming Language Models with Attention Sinks*: section 3.3, for (28.1) with a sink
#   of zero, and for tokens as sinks.
# - OpenAI (2025), *gpt-oss-120b & gpt-oss-20b Model Card*: a learned sink for each head.
# - Gemma Team (2024), *Gemma 2*: section 2, for (28.2).
# - Dong et al. (2024), *Flex Attention: A Programming Model for Generating Optimized Attention Kernels*.
