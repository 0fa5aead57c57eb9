# %% [markdown]
# # Is my KV cache right?
#
# **It is right if a prefill, chunks and single steps give what the whole sequence gives at once. Compare all three,
# because most mistakes leave the prefill right.** This is how far the outputs are off, as a share of their size:
#
# {{ plot.table(["What is wrong", "Prefill", "Chunk", "Single steps"], rows).markdown() }}
#
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# **You should know** [what a KV cache keeps](../learn/generating.py) while a model writes. **You will know** the test
# that finds these mistakes, the line that causes each of them, and what a cache costs.
#
# ## Prefill, chunks, steps
#
# The first tokens of a text are handed over together, which is called the *prefill*; a long text can go in several
# *chunks*. Then the model writes, and without [drafts](serving.py) each *step* brings one token. The outputs must not
# depend on how the text was cut. So cut one sequence in all these ways:

# %% tags=["imports"]
import copy

import torch
import torch.nn.functional as F

from unmasked import CausalSelfAttention, masks, plot
from unmasked.heads import split_heads
from unmasked.positions import Rotary
from unmasked_lessons.experiments import kv_cache as experiments

torch.set_grad_enabled(False)  # nothing is trained here
torch.manual_seed(0)
layer = CausalSelfAttention(
    24, 24, num_heads=4, num_kv_heads=2, rotary=Rotary(6)
)
x = torch.randn(2, 12, 24)  # batch tokens features
whole = layer(x)  # all at once

cache = layer.cache(batch=2, max_tokens=12)
lengths = [6, 3, 1, 1, 1]  # a prefill, a chunk, three steps
parts = [layer(part, cache=cache) for part in x.split(lengths, dim=1)]
torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-5)

# %% [markdown]
# The layer makes a `KVCache` for its own heads, which takes its memory once. A step writes its key and value there and
# attends to a view of what is stored, so nothing is copied. Each section below makes one mistake, in a cache written by
# hand, with tensors of (batch, heads, tokens, head_dim).

# %% [markdown]
# ## Where does a query stand?
#
# New queries are the *last* tokens, but `is_causal=True` of PyTorch's function takes them for the first: it is [aligned
# at the top left](masks.py#more-keys-than-queries). A prefill of an empty cache begins at the first key, so it comes
# out right. A single query sees the first key alone, and the model [forgets what is between its first token and its
# newest](https://github.com/pytorch/pytorch/issues/144858).

# %%
torch.manual_seed(1)
q = torch.randn(2, 4, 1, 6)  # one query
keys, values = torch.randn(2, 2, 4, 9, 6)  # nine keys and values
stuck = F.scaled_dot_product_attention(q, keys, values, is_causal=True)


# %%
def attend(q, keys, values):
    queries = q.size(-2)
    mask = None  # one query is the newest, and sees every key
    if queries > 1:
        mask = masks.causal(queries, keys.size(-2))  # bottom right
    return F.scaled_dot_product_attention(q, keys, values, mask)


# %% [markdown]
# PyTorch has the mask, too: `torch.nn.attention.bias.causal_lower_right(queries, keys)`. Leave the mask out for a
# single query: it would hide nothing, and it costs time to make and to read.

# %% tags=["check"]
from torch.nn.attention.bias import causal_lower_right

torch.manual_seed(1)
three = torch.randn(2, 4, 3, 6)
lower_right = F.scaled_dot_product_attention(
    three, keys, values, attn_mask=causal_lower_right(3, 9)
)

# %% tags=["claims"]
assert torch.allclose(stuck, values[:, :, :1], atol=1e-5), (
    "A single query sees the first key alone"
)
assert torch.allclose(attend(three, keys, values), lower_right, atol=1e-5), (
    "PyTorch has the mask, too: torch.nn.attention.bias.causal_lower_right"
)
assert masks.causal(1, 9).all(), (
    "Leave the mask out for a single query: it would hide nothing"
)

# %% [markdown]
# ## What lies in memory that is not used?
#
# Until it is full, a cache of fixed size has room that no token has taken. Many programs attend to all of it and hide
# the rest with a mask. Then what lies there must be finite, because a hidden value has the weight zero, and zero times
# NaN is NaN. `torch.empty` hands out memory as it is, and [sometimes there is a NaN in
# it](https://github.com/Dao-AILab/flash-attention/issues/2374).

# %%
room = torch.full((2, 4, 16, 6), torch.nan)  # what torch.empty may give
room[:, :, :9] = values
used = torch.arange(16)[None] < 9  # 1 keys; True = may attend
poisoned = F.scaled_dot_product_attention(
    q, torch.zeros_like(room), room, attn_mask=used
)
in_use = room[:, :, :9]  # a view: no mask, and nothing hidden

# %% [markdown]
# Every number of `poisoned` is NaN. The remedy is `torch.zeros`, or a view of what is in use. `KVCache` does both. The
# museum has [the exhibit](../museum/masks.py#hidden-nan).

# %% tags=["claims"]
assert poisoned.isnan().all(), "Every number of poisoned is NaN"

# %% [markdown]
# ## Which axis grows?
#
# `torch.cat` makes a cache in one line, and it is easy to get the axis wrong. For tensors of (batch, heads, tokens,
# head_dim) it is `dim=2`<!--~ the third axis -->. Here the first axis is taken, for a single sequence that comes token
# by token:

# %%
torch.manual_seed(2)
first, second = torch.randn(2, 2, 1, 4, 1, 6)  # two tokens' (key, value)
grown = torch.cat([first, second], dim=1)  # wrong: sequences, not tokens
wrong = F.scaled_dot_product_attention(q[:1], *grown)
right = F.scaled_dot_product_attention(
    q[:1], *torch.cat([first, second], dim=3)
)
wrong.shape, right.shape


# %% tags=["check"]
def raises(sequences, prefilled):
    before = torch.ones(2, sequences, 4, prefilled, 6)
    try:
        after = torch.cat([before, torch.ones(2, sequences, 4, 1, 6)], dim=1)
        F.scaled_dot_product_attention(q[:sequences], *after)
    except RuntimeError:
        return True
    return False


raised = [raises(1, 3), raises(2, 1)]

# %% [markdown]
# Nothing raises: the one query is broadcast to two sequences, each of which has one key. So the context is just a
# value, and nothing is averaged. A prefill of several tokens, or a batch of two, would raise an error at once. So test
# with more than one token and more than one sequence, in sizes that all differ.

# %% tags=["claims"]
assert (
    wrong.shape == (2, 4, 1, 6)
    and grown.size(1) == 2
    and torch.allclose(wrong, grown[1], atol=1e-5)
), (
    "the one query is broadcast to two sequences, each of which has one key. So the context is just a value"
)
assert raised == [True, True], (
    "A prefill of several tokens, or a batch of two, would raise an error at once"
)

# %% [markdown]
# ## Positions go on counting
#
# A model with rotary positions turns queries and keys by the place where they stand. In a text the place of a new token
# is the number of tokens before it, not zero. Here keys are turned before they are stored, and never again:

# %%
past, tokens = cache.length, 1
place = torch.arange(past, past + tokens)  # wrong: torch.arange(tokens)
place

# %% tags=["check"]
stored_keys, _ = cache.peek(*torch.zeros(2, 2, 2, 0, 6))
_, made, _ = split_heads(layer.qkv(x), 8).split([4, 2, 2], dim=1)
turned_keys = layer.rotary(made, torch.arange(12))

# %% [markdown]
# `CausalSelfAttention(..., rotary=...)` counts from the length of the cache by itself. A model with a table of
# positions takes the same `place` to look them up.

# %% tags=["claims"]
assert torch.allclose(stored_keys, turned_keys, atol=1e-5), (
    "Here keys are turned before they are stored, and never again"
)

# %% [markdown]
# ## Beams: keys and values move together
#
# A beam search drops some sequences and goes on from others. Their keys and values must move in the same way, in every
# layer. `cache.reorder(order)` moves both, and `cache.crop(length)` forgets a draft that [was
# refused](serving.py#what-was-refused-must-go).

# %%
order = torch.tensor([1, 0])  # each goes on from the other's text
cache.crop(6)
cache.reorder(order)
swapped = torch.cat([x[order, :6], x[:, 6:]], dim=1)
torch.allclose(layer(x[:, 6:], cache=cache), layer(swapped)[:, 6:], atol=1e-5)

# %% [markdown]
# ## In bfloat16 it differs, and nothing is wrong
#
# A step's matrix product has another shape than the whole sequence's, so it can [add in another
# order](https://github.com/huggingface/transformers/issues/25420). In float32 you will hardly see it; in bfloat16 you
# will, and it looks like a bug. To find out, compare both with the same layer in float64. If the step is no farther
# from the truth than the whole sequence is, the difference is rounding.

# %% tags=["hide-input"]
#| caption: How far outputs are off, as a share of their size. The steps are about as far from float64 as the whole
#|   sequence is, so nothing is wrong with them.
torch.manual_seed(3)
long = torch.randn(2, 40, 24)
rounding = experiments.rounding(layer, long)
plot.table(
    [
        "dtype",
        "steps, from whole",
        "whole, from float64",
        "steps, from float64",
    ],
    rounding,
    "{:.0e}",
)

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# Now and then rounding decides which of two words is the likelier one, and from there on the two texts differ. So
# compare logits, not texts.

# %% tags=["claims"]
assert rounding["float32"][0] < 1e-5, "In float32 you will hardly see it"
assert all(
    1 / 3 < steps / once < 3 for _, once, steps in rounding.values()
), (
    "The steps are about as far from float64 as the whole sequence is, so nothing is wrong with them"
)

# %% [markdown]
# ## Padding on the left
#
# For `generate` of transformers a decoder's batch of prompts is padded on the left, so that all of them continue at the
# same place. The mask then has to hide the padding from every query, in every step. And a model with a table of
# positions must count from the first *real* token, if it was trained on texts that begin at the first position. Below,
# the second prompt has three padding tokens:

# %%
torch.manual_seed(4)
table = torch.randn(20, 24)  # a position each, as GPT-2 learns them
plain = CausalSelfAttention(24, 24, num_heads=4)
real = masks.padding(torch.tensor([9, 6]), side="left")  # batch 1 1 keys
places = masks.positions_of(real)  # batch keys
prompts = torch.randn(2, 9, 24)  # the second one begins with padding

alone = plain(prompts[1:, 3:] + table[:6])[0]
counted = plain(prompts + table[places], allowed=real)[1, 3:]
naive = plain(prompts + table[:9], allowed=real)[1, 3:]
places

# %% [markdown]
# With `positions_of`, the padded prompt gets what it gets alone. Without it the outputs are off by {{ off_by :.0%}} of
# their size, and [nothing warns you](https://github.com/huggingface/transformers/issues/29029). Where a model of
# transformers takes `position_ids`, these are the same positions: `attention_mask.cumsum(-1) - 1` for each real token.
# The shift does not hurt a model whose only positions are plain rotary ones: its scores depend on distances alone. But
# such a model needs the mask too.
#
# In a step, the mask has one key more than before: `masks.padding(lengths + 1, keys + 1, side="left")`<!--~ a call -->,
# where `lengths` counts the real tokens. The new token has the position `places[:, -1:] + 1`<!--~ code -->.

# %% tags=["check"]
(off_by,) = experiments.shares(naive[None], alone[None], [6])
shifted = layer(x, positions=torch.arange(12) + 3)
attention_mask = real[:, 0, 0].long()

torch.manual_seed(5)
token = torch.randn(2, 1, 24)
store = plain.cache(2, max_tokens=20)
plain(prompts + table[places], allowed=real, cache=store)
stepped = plain(
    token + table[places[:, -1:] + 1],
    allowed=masks.padding(torch.tensor([9, 6]) + 1, 9 + 1, side="left"),
    cache=store,
)
goes_on = torch.cat([prompts[1:, 3:], token[1:]], dim=1)
by_itself = plain(goes_on + table[:7])[:, -1:]

# %% tags=["claims"]
assert torch.allclose(counted, alone, atol=1e-5), (
    "the padded prompt gets what it gets alone"
)
assert (attention_mask.cumsum(-1) - 1)[attention_mask == 1].equal(
    places[attention_mask == 1]
), (
    "these are the same positions: attention_mask.cumsum(-1) - 1 for each real token"
)
assert torch.allclose(shifted, layer(x), atol=1e-5), (
    "The shift does not hurt a model whose only positions are plain rotary ones"
)
assert torch.allclose(stepped[1:], by_itself, atol=1e-5), (
    "The new token has the position places[:, -1:] + 1"
)

# %% [markdown]
# ### Or let the cache forget the padding
#
# Padded on the right, prompts leave their padding behind: `cache.crop(lengths)` keeps of each sequence its own tokens,
# and the next token of each stands straight behind them, in memory and by its position. No later step needs a mask.
# The cache counts each sequence's tokens, as flash-attention's `cache_seqlens` does.

# %%
ragged = layer.cache(2, max_tokens=20)
layer(x[:, :9], cache=ragged)  # the second one ends with padding
ragged.crop(torch.tensor([9, 6]))
joined = layer(x[:, 9:10], cache=ragged)
ragged.cache_seqlens

# %% tags=["check"]
own = torch.cat([x[1:, :6], x[1:, 9:10]], dim=1)

# %% tags=["claims"]
assert torch.allclose(joined[1:], layer(own)[:, -1:], atol=1e-5), (
    "the next token of each stands straight behind them, in memory and by its position"
)
assert ragged.cache_seqlens.tolist() == [10, 7], (
    "The cache counts each sequence's tokens"
)

# %% [markdown]
# ### Rows that see nothing
#
# Under a causal mask that also hides padding, the first query of a prompt padded on the left sees nothing at all. A
# softmax of nothing but minus infinity is NaN, so many programs use the lowest finite number, `torch.finfo(dtype).min`,
# instead. Computed by hand, that row is then the mean of all values, the hidden ones included, and PyTorch's function
# gives the same on a CPU. (On a GPU its kernels *efficient* and *cudnn* gave zeros, seen on an H100 with PyTorch
# 2.11<!--~ measured there -->.) This does no harm until two such masks, one for the future and one for the padding, are
# *added*:

# %%
lowest = torch.finfo(torch.float32).min
hidden = torch.full((1, 5), lowest)  # a query that sees no key
twice = hidden + hidden
print(hidden.softmax(-1), twice[0, 0], twice.softmax(-1), sep="\n")

# %% tags=["check"]
theirs = F.scaled_dot_product_attention(
    q, keys[:, :, :5], keys[:, :, :5], attn_mask=hidden
)

# %% [markdown]
# The sum overflows to minus infinity, and the row is NaN. So combine masks as booleans,
# `masks.combine(causal, padding)`, and turn them into numbers once. This library gives such a row zeros, and nobody
# reads it.

# %% tags=["claims"]
assert (hidden.softmax(-1) - 1 / 5).abs().max() < 1e-6 and torch.allclose(
    theirs, keys[:, :, :5].mean(-2, keepdim=True), atol=1e-5
), (
    "that row is then the mean of all values, the hidden ones included, and PyTorch's function gives the same"
)
assert (
    not plain(prompts, allowed=real)[1, :3].sub(plain.out_proj.bias).any()
), "This library gives such a row zeros"

# %% [markdown]
# ## A window: the cache as a ring
#
# With a sliding window a query sees only the last few tokens, so the cache need not keep the others: the newest token
# takes the place of the oldest. The keys are then no longer in the order of the text:

# %%
ring = layer.cache(2, max_tokens=12, window=5)
narrow = layer(x, allowed=masks.sliding_window(12, window=5))
parts = [layer(part, cache=ring) for part in x.split(lengths, dim=1)]
print(torch.allclose(torch.cat(parts, dim=1), narrow, atol=1e-5))
print(ring.positions)  # whose key is where

# %% [markdown]
# The order does not matter to a single query: it sees every key of the ring, and each key was turned by its own
# position before it was stored. So a step needs no mask. Here the ring takes less than half of the memory of the whole
# cache. (A chunk that overruns the ring works on a copy, which still has what it overwrites.) What was overwritten does
# not come back, so from then on `crop` can take back a single token, but not a draft of several.

# %% tags=["claims"]
assert 2 * ring.bytes < cache.bytes, (
    "Here the ring takes less than half of the memory of the whole cache"
)

# %% [markdown]
# ## What does it cost?
#
# In the models below a token leaves a key and a value in each layer, for each head of keys, in numbers of two
# bytes<!--= torch.bfloat16.itemsize -->:

# %% tags=["hide-input", "any-version"]
#| caption: What the cache takes. Fewer heads of keys make it smaller, in proportion.
sizes = experiments.sizes((32, 8, 1), tokens=8192)
plot.table(
    ["32 layers, heads of 128 features", "a token", "8,192 tokens"],
    sizes,
    ["{:.0f} KiB", "{:g} GiB"],
)

# %% [markdown]
# A step reads all of that once. `torch.cat` makes a new cache for each token, so it reads and writes everything once
# more. After 1,000<!--= grown_by --> steps, `torch.cat` has copied {{ copied :,}} keys, and `KVCache` has written each
# key once: {{ grown_by :,}} of them. The price of taking the memory once is that `max_tokens` is paid for from the
# start.

# %% tags=["check"]
grown_by = 1000
copied = sum(range(1, grown_by + 1))

# %% tags=["claims"]
assert all(
    abs(row[0] - 16 * heads) < 0.1 and abs(row[1] - heads / 8) < 0.001
    for heads, row in zip((32, 8, 1), sizes.values())
), "Fewer heads of keys make it smaller, in proportion"

# %% [markdown]
# `KVCache` stores numbers without the history that a gradient needs. So it refuses keys that want a gradient, and tells
# you to generate under `torch.no_grad()`.

# %% [markdown]
# ## The check for your own tests
#
# `model(tokens, cache)` stands for your model: it returns logits of (batch, tokens, words). Given None as its cache, it
# returns those of the whole text. `new_cache()` makes an empty cache. The sequences differ, and no two sizes are alike.


# %%
def test_a_cache_changes_nothing(model, new_cache, vocabulary):
    torch.manual_seed(0)
    text = torch.randint(vocabulary, (3, 12))  # batch tokens
    whole = model(text, None)  # without a cache
    near = 1e-5 * whole.abs().max().item()
    for lengths in ([12], [6, 3, 1, 1, 1], [1] * 12, [1, 11]):
        cache, done = new_cache(), 0
        for part in text.split(lengths, dim=1):
            found, done = model(part, cache), done + part.size(1)
            expected = whole[:, done - part.size(1) : done]
            torch.testing.assert_close(found, expected, rtol=0, atol=near)


# %% [markdown]
# Run it in float32, or in float64 if you can. It finds every mistake in the table that shows within one sequence.
# Padding and beams need a batch: compare each of its sequences with the same sequence alone.

# %% tags=["check"]
named = {
    "nothing": "",
    "the mask begins at the [top left](#where-does-a-query-stand)": "top left",
    "[memory](#what-lies-in-memory-that-is-not-used) is not cleared": "memory",
    "[positions](#positions-go-on-counting) begin at zero again": "positions",
    "[beams](#beams-keys-and-values-move-together): only keys move": "beams",
}
shares = {
    name: experiments.shares(
        *experiments.by_hand(layer, x, lengths, mistake), [6, 3, 3]
    )
    for name, mistake in named.items()
}
of_padding = (
    "[padding](#padding-on-the-left) is counted by a table of positions"
)
left = masks.padding(torch.tensor([12, 9]), side="left")
shares[of_padding] = experiments.shares(
    plain(x + table[:12], allowed=left)[1:, 3:],  # the second prompt
    plain(x[1:, 3:] + table[:9]),
    [3, 3, 3],
)
of_half = (
    "nothing, in [bfloat16](#in-bfloat16-it-differs-and-nothing-is-wrong)"
)
half = copy.deepcopy(layer).bfloat16(), long.bfloat16()
shares[of_half] = experiments.shares(
    *experiments.by_hand(*half, [20, 10, *[1] * 10], ""), [20, 10, 10]
)
mistakes = [*shares.values()][1:-1]


def written(share):
    percent = f"{100 * share:.1g}" if share < 0.1 else f"{100 * share:.0f}"
    return "0" if share < 1e-5 else "NaN" if share != share else f"{percent}%"


rows = [[name, *map(written, each)] for name, each in shares.items()]
if max(shares[of_half]) < 0.02:
    rows[-1][1:] = ["rounding"] * 3

torch.manual_seed(7)
vectors, caught = torch.randn(17, 24), []
for mistake in named.values():
    try:
        test_a_cache_changes_nothing(
            lambda text, cached: (cached or layer)(vectors[text]),
            lambda mistake=mistake: experiments.ByHand(
                layer, mistake, batch=3, max_tokens=12
            ),
            vocabulary=17,
        )
    except AssertionError:
        caught.append(mistake)
    else:
        assert mistake in ("", "beams")

# %% tags=["claims"]
assert max(shares["nothing"]) < 1e-5, (
    "It is right if a prefill, chunks and single steps give what the whole sequence gives at once"
)
assert sum(each[0] < 1e-5 for each in mistakes) > len(mistakes) / 2, (
    "Compare all three, because most mistakes leave the prefill right"
)
assert caught == ["top left", "memory", "positions"], (
    "It finds every mistake in the table that shows within one sequence"
)

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("chunk-mask", answer))`.
#
# **The mask of a chunk** (`chunk-mask`). Write a function of `past`, the number of tokens in the cache, and `tokens`,
# the number of new ones. It returns the boolean mask, `True` for *may attend*, of the new queries and all keys.
#
# ??? question "Hint"
#
#     The first new query stands at position `past`. Compare a column of positions with a row of positions.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def chunk_mask(past, tokens):
    query = past + torch.arange(tokens)
    return query[:, None] >= torch.arange(past + tokens)


feedback = check("chunk-mask", chunk_mask)
assert feedback
feedback

# %% [markdown]
# **Count what is real** (`padded-positions`). Write a function of `real`, a boolean tensor (batch, keys), `True` for
# real tokens. It returns the position of each token, counted from the first real one of its sequence. What padding gets
# must exist in a table of positions: not a negative number.
#
# ??? question "Hint"
#
#     How many real tokens are there up to this one?


# %% tags=["solution"]
def padded_positions(real):
    return (real.cumsum(dim=-1) - 1).clamp(min=0)


feedback = check("padded-positions", padded_positions)
assert feedback
feedback

# %% [markdown]
# **Which slot of the ring?** (`ring-slots`) A ring of `window` slots has taken in `length` tokens, `length` being at
# least `window`. Write a function of both that returns the position of the token in each slot, in the order of the
# slots. The token at position zero was put into slot zero.
#
# ??? question "Hint"
#
#     The token at position `p` is in slot `p % window`. Which positions are still there?


# %% tags=["solution"]
def ring_slots(length, window):
    kept = torch.arange(length - window, length)
    slots = torch.empty(window, dtype=torch.long)
    slots[kept % window] = kept
    return slots


feedback = check("ring-slots", ring_slots)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [What does each interface make of my mask?](masks.py) draws [more keys than
#   queries](masks.py#more-keys-than-queries), with both alignments of the causal mask.
# - [Fewer heads for keys and values](heads.py#fewer-heads-for-keys-and-values) make a cache small.
# - [How does a server share one cache among many texts?](serving.py) Pages, prefixes, and drafts that are refused.
# - The reference of [`KVCache`](../reference/cache.md#unmasked.cache.KVCache).
#
# ## References
#
# <!--~ 2022, 2023, 2, 7: references -->
# - Pope et al. (2022), *Efficiently Scaling Transformer Inference*: what the cache costs, and who pays.
# - Jiang et al. (2023), *Mistral 7B*: section 2, with the cache as a ring.
