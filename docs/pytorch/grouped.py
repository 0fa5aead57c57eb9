# %% [markdown]
# # MQA, GQA, MLA: how small can the cache be?
#
# **As small as what it keeps of each token: a key and a value for each head that has its own, or one short latent for
# all heads.** Here are four kinds of attention in one model, which has 32<!--= layers --> layers, and 32<!--= heads -->
# heads of 128<!--= head_dim --> features in each, and keeps its cache in
# bfloat16<!--= str(dtype).removeprefix("torch.") -->:

# %% tags=["imports"]
import textwrap

import torch
import torch.nn.functional as F

from unmasked import CausalSelfAttention, plot
from unmasked.cache import KVCache
from unmasked.latent import LatentAttention
from unmasked.positions import Rotary
from unmasked_lessons.experiments import grouped as experiments
from unmasked_lessons.figures.atlas import Atlas

# %% tags=["hide-input", "any-version"]
#| caption: What four kinds of attention keep of a token, and of a sequence of {{ tokens :,}} tokens. Where groups of
#|   four<!--= heads // kinds["grouped (GQA)"] --> share, the cache is a
#|   quarter<!--= table["grouped (GQA)"] / table["every head its own (MHA)"] -->; the latent is smaller than that, and
#|   larger than one head for all.
#| script: ../../src/unmasked_lessons/figures/grouped.js
#| data: {"sizes": sizes, "tokens": tokens, "latent": 512 + 64, "kinds": kinds, "bytes": table}
layers, heads, head_dim, tokens = 32, 32, 128, 131_072
dtype = torch.bfloat16
kinds = {
    "every head its own (MHA)": heads,
    "grouped (GQA)": 8,
    "one for all (MQA)": 1,
    "latent (MLA)": None,
}
table = experiments.bytes_per_token(
    kinds, layers=layers, head_dim=head_dim, dtype=dtype
)
sizes = {"layers": layers, "heads": heads, "features": head_dim}
plot.table(
    [
        "keys and values",
        "heads of them",
        "numbers in a layer",
        "bytes in all layers",
        "GiB of the sequence",
    ],
    {
        kind: [
            kinds[kind] or "none",
            each // layers // 2,
            each,
            each * tokens / 2**30,
        ]
        for kind, each in table.items()
    },
    ["{}", "{:,}", "{:,}", "{:.1f}"],
)

# %% [markdown]
# <!--~ 3, 8: the name of a model -->
# A step of these reads the whole cache, so for long texts and large batches its size decides how long the step takes.
# Llama 3 8B keeps 131,072 bytes<!--= table["grouped (GQA)"] --> a token, as in the second row. The latent in the last
# row has the 512<!--~ its size in the paper --> features of DeepSeek-V2, and 64<!--~ its size in the paper --> more for
# positions.
#
# **You should know** [how heads are split](heads.py) and what a [KV cache][unmasked.cache.KVCache] is. **You will
# know** which heads share, what goes wrong there without an error, what a latent is good for, and how to test all of
# it.

# %% tags=["claims"]
assert (
    table["one for all (MQA)"]
    < table["latent (MLA)"]
    < table["grouped (GQA)"]
), "the latent is smaller than that, and larger than one head for all"

# %% [markdown]
# ## Which head uses which?
#
# With as many heads of keys as of queries nothing is shared, as in ordinary multi-head attention. With fewer, in
# PyTorch's function *neighbors* share:

# %%
torch.manual_seed(0)
q = torch.randn(2, 6, 7, 8)  # batch heads tokens head_dim
k, v = torch.randn(2, 2, 2, 7, 8)  # two heads of keys, and of values

grouped = F.scaled_dot_product_attention(
    q, k, v, is_causal=True, enable_gqa=True
)
repeated = F.scaled_dot_product_attention(
    q,
    k.repeat_interleave(3, dim=1),
    v.repeat_interleave(3, dim=1),
    is_causal=True,
)
torch.allclose(grouped, repeated, atol=1e-6)

# %% [markdown]
# The first three heads of queries use the first head of keys, the other three the second. `enable_gqa` says that this
# is intended, and the flash kernel copies nothing for it. (On a GPU it takes only numbers of 16<!--= 8 *
# torch.float16.itemsize --> bits, and no mask. Up to PyTorch 2.13<!--~ read in its source -->, what neither it nor
# cuDNN takes goes to math there, which copies; newer versions have groups in the *efficient* kernel, too.)
# `repeat_interleave` makes a copy as large as the cache would be without sharing.
#
# ### The trap: `repeat` for `repeat_interleave`
#
# `k.repeat` gives the same shape, but it puts one whole copy behind the other, so that heads of queries alternate
# between the heads of keys:

# %%
wrong = F.scaled_dot_product_attention(
    q, k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1), is_causal=True
)
off = (wrong - grouped).abs().amax(dim=(0, 2, 3))
off

# %% [markdown]
# Two of the six heads are off, by up to 2.8<!--= off.max() -->; the others happen to get the right keys. A model that
# is trained in this order learns to live with it. A checkpoint that was trained in the other order writes nonsense, and
# no error says so. With one head of keys, or as many as queries, both orders are the same, so a test needs a number in
# between.

# %% tags=["claims"]
assert torch.allclose(grouped, repeated, atol=1e-5), (
    "The first three heads of queries use the first head of keys, the other three the second"
)
assert torch.equal(
    k.repeat(1, 3, 1, 1).unflatten(1, (3, 2)),
    k.unsqueeze(1).expand(-1, 3, -1, -1, -1),
), (
    "but it puts one whole copy behind the other, so that heads of queries alternate between the heads of keys"
)  # to the bit: they are copies
assert off.lt(1e-5).tolist() == [True, False, True] * 2, (
    "Two of the six heads are off, by up to 2.8; the others happen to get the right keys"
)
assert all(
    torch.equal(
        each.repeat(1, copies, 1, 1),
        each.repeat_interleave(copies, dim=1),
    )
    for copies, each in ((6, k[:, :1]), (1, q))
), (
    "With one head of keys, or as many as queries, both orders are the same"
)  # to the bit: they are copies

# %% [markdown]
# ### The trap: one head is broadcast
#
# Without `enable_gqa`, two heads of keys for six of queries are refused. One head is not: it is broadcast, whether you
# meant it or not.


# %%
try:
    F.scaled_dot_product_attention(q, k, v, is_causal=True)
except RuntimeError as error:
    refused = str(error)
else:
    raise AssertionError("it was not refused")
print(textwrap.fill(refused, 72))

# %%
one = F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], is_causal=True)
meant = F.scaled_dot_product_attention(
    q, k[:, :1], v[:, :1], is_causal=True, enable_gqa=True
)
[torch.allclose(one, each, atol=1e-5) for each in (meant, grouped)]

# %% [markdown]
# That is right for multi-query attention, where one head is all there is. But where a slice, a mean or a wrong `view`
# has lost the others on the way, it hides the mistake: the result is off by up to
# 2.8<!--= (one - grouped).abs().max() -->, and no shape shows it.

# %% tags=["claims"]
assert torch.allclose(one, meant, atol=1e-5), (
    "One head is not: it is broadcast, whether you meant it or not"
)
assert one.shape == grouped.shape, "and no shape shows it"

# %% [markdown]
# ## A latent for all heads
#
# Multi-head latent attention (MLA) keeps neither keys nor values, but one vector $c$ for each token, a projection of
# its features. Each head has a matrix $U$ that makes its key from $c$, and another that makes its value. So every head
# has keys of its own, and the cache does not grow with the number of heads:

# %%
torch.manual_seed(1)
layer = LatentAttention(d_in=24, d_out=24, num_heads=3, latent_dim=12)
x, cache = torch.randn(2, 7, 24), layer.cache(2, max_tokens=7)

with torch.no_grad():
    steps = [layer(token, cache=cache) for token in x.split(1, dim=1)]
    at_once = layer(x)

torch.allclose(torch.cat(steps, dim=1), at_once, atol=1e-6), cache.bytes

# %% [markdown]
# It keeps 12<!--= layer.latent_dim --> numbers a token, where keys and values of three heads of eight features would be
# 48<!--= 2 * layer.num_heads * layer.head_dim -->.
#
# ### Absorbed
#
# Making all keys again at each step would cost more than the small cache saves. But a score is a product of three
# factors, and the brackets can be moved:
#
# $$q^\top (U c) = (U^\top q)^\top c$$
# <!-- where: q, U, c = random("d", "d m", "m") -->
#
# The right side never makes a key. It applies the matrix to the query, and a step has only one. In the same way, the
# matrix of the values can wait until after the average. What is left is attention with one head of keys, which are the
# latents:

# %%
with torch.no_grad():
    expanded = layer(x, form="expanded")
    absorbed = layer(x, form="absorbed")
torch.allclose(expanded, absorbed, atol=1e-6)

# %% [markdown]
# Both agree up to rounding. The expanded form is for training and prompts, where it multiplies fewer numbers, and the
# absorbed one is for steps. `LatentAttention` chooses by itself.

# %% [markdown]
# ### The trap: which root?
#
# The absorbed query has as many features as the latent. If its scores are divided by the root of *that* number, as
# `F.scaled_dot_product_attention` does by default, other weights come out:

# %%
up = layer.key_up.weight.unflatten(0, (3, 8))  # heads head_dim latent_dim
query = layer.query(x).unflatten(-1, (3, 8)).transpose(1, 2)
latents = layer.down(x).unsqueeze(1)  # batch 1 tokens latent_dim

wrong = F.scaled_dot_product_attention(query @ up, latents, latents)
right = F.scaled_dot_product_attention(
    query @ up, latents, latents, scale=8**-0.5
)

# %% tags=["check"]
scores = query @ (latents @ up.mT).mT / 8**0.5  # of the eight features
expanded_context = scores.softmax(-1) @ latents

# %% tags=["claims"]
assert torch.allclose(right, expanded_context, atol=1e-5), (
    "The right root is that of the eight features of a head's key, as in the expanded form"
)

# %% [markdown]
# The right root is that of the eight features of a head's key, as in the expanded form. The other is off by up to
# {{ (wrong - right).abs().max() :.3f}}, small enough to pass for rounding.
#
# ### Why positions have features of their own
#
# A rotary embedding turns a key by its position. This turn stands between $U$ and the query's matrix and differs from
# token to token, so it cannot be absorbed. If the latents are turned instead, other scores come out.

# %%
turn, turn_latent, at = Rotary(8), Rotary(12), torch.arange(7)
keys = turn(latents @ up.mT, at)
wanted = turn(query, at) @ keys.mT
tried = turn_latent(query @ up, at) @ turn_latent(latents, at).mT

# %% [markdown]
# The scores are off by {{ (wanted - tried).abs().max() / wanted.abs().max() :.0%}} of the largest. So DeepSeek's MLA
# gives each query a few more features, for the position alone. Each token gets one key of as many features, which all
# heads share and the cache keeps beside the latent. The root then counts these features, too:

# %%
torch.manual_seed(2)
turned = LatentAttention(
    24, 24, 3, latent_dim=12, rotary=Rotary(4), rotary_dim=4
)
with torch.no_grad():
    apart = turned(x, form="expanded") - turned(x, form="absorbed")
turned.bytes_per_token(12, 4), apart.abs().max() < 1e-6

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*

# %% [markdown]
# ## Eight bits for a number
#
# A cache of any of these kinds can also keep each number in eight bits instead of sixteen, beside a *scale* by which it
# is multiplied when it is read. There are two ways to spend the eight bits, and the axes that share a scale are yours
# to choose:


# %%
def int8(x, axes):
    scale = x.abs().amax(axes, keepdim=True) / 127
    return (x / scale).round() * scale


def float8(x, axes):
    scale = x.abs().amax(axes, keepdim=True) / 448  # its largest number
    return (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale


# %% tags=["hide-input", "any-version"]
#| caption: The error of the context, as a share of its size, where the values are kept in eight bits, or the keys, or
#|   keys of which one feature is twenty times as large as the others.
torch.manual_seed(4)
given = torch.randn(3, 1, 4, 256, 64)  # batch heads tokens head_dim
uneven = torch.where(torch.arange(64) == 3, 20.0, 1.0)
shared_by = {"all": (0, 1, 2, 3), "a token": (3,), "a feature": (2,)}
in_eight_bits = experiments.in_eight_bits(
    (int8, float8), shared_by, 2 * given[0], *given[1:], uneven
)
plot.table(
    ["in eight bits, one scale for", "values", "keys", "uneven keys"],
    in_eight_bits,
    "{:.1%}",
)

# %% [markdown]
# - **Here an error in a key costs more than one in a value.** Errors of values are averaged away with the values. Those
#   of keys change scores, and then weights by their exponentials: the larger the queries, the more.
# - **Whole numbers need the right scale.** If one feature is much larger than the others, as in keys of many trained
#   models, and shares its scale with them, nothing is left of the others: give each feature its own. (That scale must
#   be known before the token comes, or a few tokens are kept back in sixteen bits.)
# - **Floating-point numbers need hardly any.** They keep four binary digits of every number from a sixty-fourth up. A
#   scale only keeps them in range: without one, all beyond 448<!--= top --> becomes 448<!--= top -->, and no error is
#   raised.
#
# vLLM's `kv_cache_dtype="fp8"` has one scale for all keys of a layer and one for its values, from the checkpoint, or
# else the number one; with FlashAttention a checkpoint may have a scale for each head. It also has `fp8_per_token_head`
# and `int8_per_token_head`. (Read in its documentation and its `config/cache.py`, not tried.) To see what your own
# model bears, put `float8` around what it stores, and compare logits.

# %% tags=["check"]
top = torch.tensor(500.0).to(torch.float8_e4m3fn).float()
whole, floating = (
    [row for name, row in in_eight_bits.items() if name.startswith(kind)]
    for kind in ("int8", "float8")
)

# %% tags=["claims"]
assert (uneven == 20).sum() == 1 and (uneven == 1).sum() == 63, (
    "keys of which one feature is twenty times as large as the others"
)
assert all(keys > values for values, keys, _ in whole + floating), (
    "Here an error in a key costs more than one in a value"
)
assert whole[2][2] < 0.02 < 0.1 < whole[0][2], "give each feature its own"
assert max(row[0] for row in floating) < 1.1 * min(
    row[0] for row in floating
), "Floating-point numbers need hardly any"

# %% [markdown]
# ## Which to take
#
# | You | Take |
# | --- | --- |
# | load a checkpoint | what its configuration says |
# | want PyTorch's kernels, and a smaller cache | groups, with `enable_gqa` |
# | split a model over several devices | a number of groups that the [devices](parallel.py) divide |
# | must keep very long sequences | a latent, and write its steps absorbed |
#
# Most decoders of transformers share keys among heads: {{ atlas.count("grouped", "decoder") }} of the {{
# len(atlas.asked("grouped", "decoder")) }} that [the atlas](atlas.py) has measured. A latent is rare: {{
# atlas.count("latent", "decoder") }} have one.

# %% tags=["remove-cell"]
atlas = Atlas()

# %% tags=["claims"]
assert atlas.share("grouped", "decoder") > 0.5, (
    "Most decoders of transformers share keys among heads"
)
assert atlas.share("latent", "decoder") < 0.15, "A latent is rare"

# %% [markdown]
# ## The check for your own tests
#
# Choose a number of heads of keys that is neither one nor all, compare the layer with one that repeats them, and look
# at what the cache really takes:

# %%
torch.manual_seed(3)
shared = CausalSelfAttention(24, 24, num_heads=6, num_kv_heads=2)
full = CausalSelfAttention(24, 24, num_heads=6)

query, key, value = shared.qkv.weight.detach().split([24, 8, 8])
rows = [
    each.unflatten(0, (2, 4)).repeat_interleave(3, dim=0).flatten(0, 1)
    for each in (key, value)
]
state = shared.state_dict() | {"qkv.weight": torch.cat([query, *rows])}
full.load_state_dict(state)
torch.testing.assert_close(shared(x), full(x))

kept = shared.cache(1, max_tokens=100)
assert kept.bytes == 100 * KVCache.bytes_per_token(2, 4)


# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("shared-heads", answer))`.
#
# **Share without a copy** (`shared-heads`). Write `attend(q, k, v)` for q of (batch, heads, queries, head_dim), and k
# and v of (batch, kv_heads, keys, head_dim), which have fewer heads. It computes attention without a mask, by products
# and a softmax. Do not repeat k or v, and use no function for attention.
#
# ??? question "Hint"
#
#     Give the queries one more axis: `unflatten` splits that of the heads. A product broadcasts over the rest.


# %% tags=["solution"]
from unmasked_lessons.exercises import check


def attend(q, k, v):
    grouped = q.unflatten(1, (k.size(1), -1))  # batch kv_heads group queries
    scores = grouped @ k.unsqueeze(2).mT / q.size(-1) ** 0.5
    return (scores.softmax(-1) @ v.unsqueeze(2)).flatten(1, 2)


feedback = check("shared-heads", attend)
assert feedback
feedback

# %% [markdown]
# **How many tokens fit?** (`tokens-that-fit`). Write `tokens(memory, num_layers, kv_heads, head_dim, itemsize)`: how
# many tokens a cache of so many bytes can keep.
#
# ??? question "Hint"
#
#     A token takes a key and a value, in each head of each layer. What is left over keeps no token.


# %% tags=["solution"]
def tokens(memory, num_layers, kv_heads, head_dim, itemsize):
    return memory // (2 * num_layers * kv_heads * head_dim * itemsize)


feedback = check("tokens-that-fit", tokens)
assert feedback
feedback

# %% [markdown]
# **Absorb** (`absorbed-scores`). Write `scores(q, up, latent)` for q of (heads, queries, head_dim), up of (heads,
# head_dim, latent_dim) and latents of (keys, latent_dim): the scaled scores, (heads, queries, keys). No tensor that you
# make may have both an axis of keys and one of head_dim.
#
# ??? question "Hint"
#
#     Multiply from the left: the query with the matrix first. The scale is that of the head.


# %% tags=["solution"]
def scores(q, up, latent):
    return (q @ up) @ latent.mT / q.size(-1) ** 0.5


feedback = check("absorbed-scores", scores)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [How does a server share one cache among many texts?](serving.py) Pages, and prefixes that are kept once.
# - [One device is not enough](parallel.py): a ring sends keys and values, and fewer heads are fewer bytes.
# - [How does one matrix hold many heads?](heads.py): shared heads in PyTorch's function.
#
# ## References
#
# <!--~ 2019, 2023, 2.2, 2024, 2.1.2, 2.1.3: references -->
# - Shazeer (2019), *Fast Transformer Decoding: One Write-Head is All You Need*: one head of keys for all.
# - Ainslie et al. (2023), *GQA*: section 2.2, groups.
# - Liu et al. (2024), *DeepSeek-V2*: section 2.1.2, the latent and how it is absorbed; section 2.1.3, the features for
#   positions.
