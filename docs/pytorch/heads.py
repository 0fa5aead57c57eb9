# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # How does one matrix hold many heads?
#
# **Side by side. The matrices of all heads are blocks of one matrix, so one product computes every head. Then each
# token's features are dealt out: the first `head_dim` of them to head 0<!--~ heads are counted from zero -->, the next
# ones to the next head, and so on.** In code: `view` to (batch, tokens, heads, head_dim), then `transpose` to (batch,
# heads, tokens, head_dim). The transpose is not optional. `view` straight to (batch, heads, tokens, head_dim) has the
# right shape<!--== direct.shape == split.shape -->, and in the example below it puts 67%<!--== misplaced --> of
# the numbers in the wrong place.
#
# **You should know** [what attention computes](../learn/attention.py), [what a mask does](masks.py), and that `@`
# multiplies matrices. **You will know** five ways to project to many heads that give the same numbers, how to split and
# merge without mixing tokens, the shape of every step of multi-head attention, and a test that a wrong merge cannot
# pass.

# %%
import inspect

import torch
import torch.nn.functional as F
from IPython.display import HTML
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from unmasked import (
    CausalSelfAttention,
    masks,
    plot,
    probes,
    scaled_dot_product_attention,
    self_attention,
)
from unmasked.embeddings import ship_vectors, table
from unmasked.heads import (
    fused_qkv,
    merge_heads,
    project_bmm,
    project_einsum,
    project_linear,
    project_loop,
    split_heads,
)
from unmasked.trace import trace

# %% [markdown]
# The picture follows the numbers of three<!--== len(few) --> tokens to two<!--== len(into_heads) --> heads and back. A
# letter is a token, a digit a feature. Step through it, and choose a wrong way to see beside the right one.

# %% tags=["hide-input"]
#| caption: Each number is named by the token and the feature that it comes from: the ten is the token, the one the
#|   feature. Split right, a head has its own features of every token. Viewed without the transpose, it has
#|   all<!--= "all" if bool((viewed[0, :2].flatten() == few[0]).all()) else "none" --> features of the first token, then
#|   some of the next. With the axes of the view swapped, it has every second<!--= "every second" if
#|   swapped[0].tolist() == few[:, ::2].tolist() else "the first" --> feature. Merged without transposing back, a row
#|   holds features of several<!--= "several" if len(set((merged[0] // 10).tolist())) > 1 else "single" --> tokens.
#| script: ../live/split.js
#| data: {"tokens": len(few), "heads": len(into_heads), "head_dim": into_heads.size(-1)}
few = 10 * torch.arange(3)[:, None] + torch.arange(6)  # tokens features
into_heads = few.view(3, 2, 3).transpose(0, 1)  # heads tokens head_dim
viewed, swapped = (
    few.view(2, 3, 3),
    few.view(3, 3, 2).permute(2, 0, 1),
)  # the same shape
merged = into_heads.reshape(3, 6)  # which lacks a transpose
ways = {
    "right, head": into_heads,
    "view without transpose, head": viewed,
    "view with axes swapped, head": swapped,
}
letters = ["token a", "token b", "token c"]
grids = [
    plot.grid(ways, rows=letters),
    plot.grid(merged, "merged without transpose", rows=letters),
]
HTML("".join(each._repr_html_() for each in grids))

# %% [markdown]
# ## Why several heads?
#
# One head gives a token one average: all features of its context are mixed with the same weights. Two heads mix with
# two sets of weights, so that a word can take some features from here and others from there. Below are the vectors of
# the sentence, whose 50<!--== vectors.size(-1) --> features are cut into five<!--== len(each_head) --> heads of
# ten<!--== vectors.size(-1) / len(each_head) -->, and what *ship* takes from each word:

# %%
sentence = "I must go back to my ship and to my crew"
words = sentence.lower().split()
vectors = ship_vectors().lookup(words)
ship = words.index("ship")

each_head = self_attention(split_heads(vectors, 5)).weights[
    :, ship
]  # heads keys
names = [f"head {number}" for number in range(5)]
table(each_head, names, words)

# %% [markdown]
# Head 1<!--~ a head's name --> gives *crew* 28%<!--= each_head[1, -1] -->, head 3<!--~ a head's name -->
# 5%<!--= each_head[3, -1] -->: there *to*<!--= words[each_head[3].argmax()] --> comes first. Nothing here was
# learned; learned projections decide which features a head compares.
#
# What do more heads cost? A head has fewer features in return, so the number of parameters stays, and so does the
# number of multiplications: the products of the heads are smaller by the same factor. Only the weights become more, a
# table for each head:

# %%
torch.manual_seed(0)
cost = {}
for number in (1, 3, 4):
    module = nn.MultiheadAttention(
        embed_dim=12, num_heads=number, batch_first=True
    )
    with FlopCounterMode(
        display=False
    ) as counted:  # two operations for each multiplication
        _, table_of_each = module(
            *[torch.ones(2, 5, 12)] * 3, average_attn_weights=False
        )
    parameters = sum(parameter.numel() for parameter in module.parameters())
    cost[number] = (
        parameters,
        counted.get_total_flops() // 2,
        table_of_each.numel(),
    )
    assert cost[number] == (
        4 * 12**2 + 4 * 12,
        4 * (2 * 5) * 12**2 + 2 * 2 * 5**2 * 12,
        2 * number * 5**2,
    )
plot.table(
    ["Heads", "Parameters", "Multiplications", "Weights"],
    [[str(n), *map(str, c)] for n, c in cost.items()],
)

# %% [markdown]
# With $E$ for `embed_dim`, the parameters are four matrices of $E^2$<!--~ a square --> and four biases of $E$. `kdim`
# and `vdim` make the key's and the value's matrix $E \cdot$ `kdim` and $E \cdot$ `vdim`; `add_bias_kv` adds two vectors
# of $E$:

# %%
torch.manual_seed(0)
options = {"kdim": 10, "vdim": 9}, {"add_bias_kv": True}, {"bias": False}
expected = (
    2 * 12**2 + 12 * (10 + 9) + 4 * 12,
    4 * 12**2 + 4 * 12 + 2 * 12,
    4 * 12**2,
)
for option, count in zip(options, expected, strict=True):
    module = nn.MultiheadAttention(embed_dim=12, num_heads=3, **option)
    assert (
        sum(parameter.numel() for parameter in module.parameters()) == count
    )
    print(option, count)

# %% [markdown]
# ## Five ways, one result
#
# Give each head a matrix of its own, stacked along a first axis: (heads, in_dim, head_dim). The definition of what they
# do is a loop over heads. All sizes differ here, so that no two axes can be exchanged unnoticed; and in_dim, the width
# of the input, need not be what the heads have together.

# %%
torch.manual_seed(1)
batch, tokens, num_heads, head_dim, in_dim = 2, 5, 3, 4, 7
embed_dim = num_heads * head_dim
assert len({batch, tokens, num_heads, head_dim, in_dim, embed_dim}) == 6

x = torch.randn(batch, tokens, in_dim, dtype=torch.float64)
stacked = torch.randn(num_heads, in_dim, head_dim, dtype=torch.float64)

loop = torch.stack([x @ matrix for matrix in stacked], dim=1)
loop.shape  # batch heads tokens head_dim

# %% [markdown]
# For head $h$, token $t$ and feature $j$, with $w$ for `stacked`, that is
#
# $$q_{h, t, j} = \sum_i x_{t, i} \, w_{h, i, j} \tag{6.1}$$
# <!-- where: x, w = random("t_n i_n", "h_n i_n j_n"); q = project_loop(x, w) -->
#
# The other four<!--== len(same) --> compute all heads at once: `@`, with an axis of length one in `x` that is broadcast
# over the heads; `torch.bmm`, which multiplies two equally long stacks of matrices pair by pair; `einsum`, in which a
# letter names each axis, and a letter that is missing after the arrow is summed over; and one large matrix that has the
# heads' columns side by side:

# %%
wide = torch.cat(list(stacked), dim=1)  # in_dim heads·head_dim
assert torch.equal(wide, stacked.permute(1, 0, 2).reshape(in_dim, embed_dim))

pairs = x.repeat_interleave(num_heads, dim=0), stacked.repeat(batch, 1, 1)
same = {
    "@": x[:, None] @ stacked,
    "bmm": torch.bmm(*pairs).view(batch, num_heads, tokens, head_dim),
    "einsum": torch.einsum("bti,hid->bhtd", x, stacked),
    "one matrix": (x @ wide)
    .view(batch, tokens, num_heads, head_dim)
    .transpose(1, 2),
}
for result in same.values():
    torch.testing.assert_close(result, loop)

# %% [markdown]
# The package has them too. The last is what models run, and what an `nn.Linear` computes, which keeps its matrix
# transposed, as (features out, features in):

# %%
for project in (project_loop, project_bmm, project_einsum, project_linear):
    torch.testing.assert_close(project(x, stacked), loop)

torch.manual_seed(2)
linear = nn.Linear(in_dim, embed_dim, bias=False, dtype=torch.float64)
with torch.no_grad():
    linear.weight.copy_(wide.T)
torch.testing.assert_close(split_heads(linear(x), num_heads), loop)

for function in (project_linear, split_heads):
    print(inspect.getsource(function).split('"""')[-1].strip("\n"))

# %% [markdown]
# ## Follow one number: the split
#
# To see where each number goes, let it say where it comes from. Below, the tens are the token and the ones the feature:
# 25<!--== tagged[2, 5] --> is feature 5<!--== tagged[2, 5] % 10 --> of token 2<!--== tagged[2, 5] // 10 -->. All are
# counted from zero.

# %%
tagged = 10 * torch.arange(3)[:, None] + torch.arange(8)  # tokens features
split = tagged.view(3, 2, 4).transpose(0, 1)  # heads tokens head_dim
direct = tagged.view(2, 3, 4)  # the same shape

assert torch.equal(split, split_heads(tagged, 2))
misplaced = (direct != split).double().mean()
tokens_named = [f"token {token}" for token in range(3)]
plot.grid(tagged, "tagged", rows=tokens_named)

# %% [markdown]
# Split right, head 0<!--~ a head's name --> has the first four<!--= split.size(-1) --> features of every token. A [view
# alone](../museum/heads.py#view-without-transpose) deals the numbers out as they lie in memory: the same head gets
# *all*
# features of the first token, then half of the next one's<!--= direct[0].flatten().tolist() == [*range(8), *range(10,
# 14)] -->. A view only renames; it moves nothing. The stronger the color, the later the token:

# %% tags=["hide-input"]
plot.grid(
    {"split, head": split, "view alone, head": direct}, rows=tokens_named
)

# %% [markdown]
# In symbols, for $H$ heads of $d_k$ features: place $j$ of head $h$ of token $t$ holds a feature of the same token,
#
# $$q_{h, t, j} = x_{t,\, h \cdot d_k + j} \qquad h = 0, \dots, H - 1 \tag{6.2}$$
# <!-- where: y = random("H n d_k"); x = merge_heads(y[None])[0]; q = split_heads(x, H) -->
#
# Backwards, feature `f` belongs to head `f // d_k`, and stands at place `f % d_k` of it:

# %%
h, j = torch.arange(8) // 4, torch.arange(8) % 4
assert torch.equal(split[h, :, j], tagged.T)

# %% [markdown]
# Memory is one long row $m$, token after token. For head $h$ and token $t$, the right split $q$ and the direct view $z$
# read it at different places. For $n$ tokens:
#
# $$\begin{aligned}
# q_{h, t, j} &= m_{(t \cdot H + h) \cdot d_k + j} \\
# z_{h, t, j} &= m_{(h \cdot n + t) \cdot d_k + j}
# \end{aligned} \qquad h = 0, \dots, H - 1, \quad t = 0, \dots, n - 1 \tag{6.3}$$
# <!-- where: y = random("n H*d_k"); m = y.flatten(); q = split_heads(y, H); z = y.view(H, n, d_k) -->
#
# Take place 0<!--~ a place of our choice --> of token 1<!--~ likewise --> of head 0<!--~ likewise -->: the split reads
# number 8<!--= tagged.flatten().tolist().index(split[0, 1, 0]) --> of the row, the direct view number 4<!--=
# tagged.flatten().tolist().index(direct[0, 1, 0]) -->. The two agree everywhere if there is one head<!--=
# torch.equal(tagged.view(1, 3, 8), split_heads(tagged, 1)) -->, or one token<!--= torch.equal(tagged[:1].view(2, 1, 4),
# split_heads(tagged[:1], 2)) -->: tests of such a size pass.

# %% [markdown]
# ## And back: the merge
#
# After attention the heads go side by side again. Undo the steps in reverse: transpose back, then join the last two
# axes.

# %%
context = (
    split.contiguous()
)  # heads tokens head_dim, and in memory too, as attention returns it
back = context.transpose(0, 1)  # tokens heads head_dim

assert torch.equal(back.reshape(3, 8), tagged)
assert torch.equal(merge_heads(context), tagged)
try:
    back.view(3, 8)
except RuntimeError as error:
    print(str(error).split(" (")[0])
else:
    raise AssertionError("view joined the axes")
print("steps in memory:", context.stride(), "transposed:", back.stride())

# %% [markdown]
# A transposed tensor lies in memory as before and is only read with other steps, so `view` refuses to join axes whose
# numbers do not lie one after the other. `reshape` copies them where it must; `.contiguous().view(...)` makes the copy
# visible. The error helps: it comes exactly where the numbers have to move. With a head_dim of one there is no
# error<!--== one.shape == (3, 2) -->, so a test of that size does not notice that `contiguous()` is missing:

# %%
one = (
    torch.randn(2, 3, 1, generator=torch.Generator().manual_seed(3))
    .transpose(0, 1)
    .view(3, 2)
)

# %% [markdown]
# ## Every step with its shape
#
# Here is all of it: project, split, compare, mask, average, merge, project. `@` multiplies the last two axes and leaves
# batch and heads alone, so the middle is the same code as for one head.


# %%
def multi_head(x, w_q, w_k, w_v, w_o, allowed):
    q = (
        F.linear(x, w_q)
        .view(batch, tokens, num_heads, head_dim)
        .transpose(1, 2)
    )
    k = (
        F.linear(x, w_k)
        .view(batch, tokens, num_heads, head_dim)
        .transpose(1, 2)
    )
    v = (
        F.linear(x, w_v)
        .view(batch, tokens, num_heads, head_dim)
        .transpose(1, 2)
    )
    scores = q @ k.transpose(-2, -1) / head_dim**0.5
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1)
    context = (weights @ v).transpose(1, 2)
    return F.linear(context.reshape(batch, tokens, embed_dim), w_o)


torch.manual_seed(4)
layer = CausalSelfAttention(
    in_dim, embed_dim, num_heads, out_bias=False
).double()
matrices = *layer.qkv.weight.chunk(3), layer.out_proj.weight
axes = {
    "batch": batch,
    "tokens": tokens,
    "heads": num_heads,
    "head_dim": head_dim,
    "in_dim": in_dim,
}
axes |= {"embed_dim": embed_dim}
steps = trace(multi_head, x, *matrices, masks.causal(tokens), axes=axes)

torch.testing.assert_close(steps.result, layer(x))
plot.table(
    ["Step", "Shape", "Axes"],
    [(s.op, str(s.output), ", ".join(s.axes)) for s in steps.steps],
)

# %% [markdown]
# The result is the one of the package's own layer, with the same matrices. The mask has no axes for batch and heads:
# its 25<!--= masks.causal(tokens).numel() --> entries serve all 150<!--= batch * num_heads * tokens**2 --> weights by
# broadcasting. The last matrix mixes the heads.
#
# Three things remain to be shown: `@` does what `torch.bmm` does, pair by pair; each head gets what it would get by
# itself; and an additive mask, minus infinity where nothing may be seen, serves as well.

# %%
torch.manual_seed(5)
q, k, v = (
    project_linear(x, torch.randn_like(stacked)) for _ in range(3)
)  # batch heads tokens head_dim
allowed = masks.causal(tokens)

pairs = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)).view(
    batch, num_heads, tokens, tokens
)
torch.testing.assert_close(pairs, q @ k.mT)

added = torch.full((tokens, tokens), -torch.inf, dtype=x.dtype).triu(1)
context = (q @ k.mT / head_dim**0.5 + added).softmax(-1) @ v
torch.testing.assert_close(
    context, scaled_dot_product_attention(q, k, v, allowed=allowed).context
)
for head in range(num_heads):
    alone = scaled_dot_product_attention(
        q[:, head], k[:, head], v[:, head], allowed=allowed
    ).context
    torch.testing.assert_close(context[:, head], alone)

# %% [markdown]
# ## One matrix for query, key and value too
#
# A step further, the matrices of query, key and value are packed into one: a single product then does all nine<!--= 3 *
# num_heads -->. Their rows come in one of two orders. PyTorch's `in_proj_weight` has all of the query's first, then the
# key's, then the value's. Other code goes head by head: query, key and value of head 0<!--~ a head's name -->, then
# those of the next. The shapes are the same. Below, `in_turn` reads the rows in the first order; `by_head` and the
# package's `fused_qkv` read them in the second.

# %%
torch.manual_seed(6)
packed = torch.randn(3 * embed_dim, in_dim, dtype=torch.float64)

in_turn = [
    split_heads(part, num_heads)
    for part in F.linear(x, packed).chunk(3, dim=-1)
]
by_head = (
    F.linear(x, packed)
    .view(batch, tokens, num_heads, 3 * head_dim)
    .transpose(1, 2)
    .chunk(3, dim=-1)
)
for mine, theirs in zip(
    by_head, fused_qkv(x, packed, num_heads=num_heads), strict=True
):
    torch.testing.assert_close(mine, theirs)
off = max(
    (a - b).abs().max().item() for a, b in zip(in_turn, by_head, strict=True)
)

reordered = (
    packed.view(3, num_heads, head_dim, in_dim)
    .transpose(0, 1)
    .reshape(-1, in_dim)
)
for mine, theirs in zip(
    in_turn, fused_qkv(x, reordered, num_heads=num_heads), strict=True
):
    torch.testing.assert_close(mine, theirs)
by_head[0].shape, f"off by {off:.1f}"

# %% [markdown]
# Read [head by head](../museum/weights.py#interleaved-qkv), the projections are off by up to {{ off :.1f}}. Putting the
# rows into the other order mends it: [the page on layouts](layouts.py) converts between the orders that libraries
# use.
#
# ## Fewer heads for keys and values
#
# A model that writes keeps the keys and values of all tokens so far, its *cache*. To make it smaller, several heads of
# the queries share one head of keys and values (*grouped* heads; one for all is *multi-query*). The heads that share
# are neighbors: with six heads of queries and two of keys, the first three use the first. `repeat_interleave` copies
# the heads that way; `repeat`, which has the same shape, gives each key head to the wrong queries:

# %%
torch.manual_seed(7)
queries = torch.randn(batch, 6, tokens, head_dim)  # six heads
keys, values = torch.randn(2, batch, 2, tokens, head_dim)  # two heads each
grouped = F.scaled_dot_product_attention(
    queries, keys, values, enable_gqa=True
)

neighbors = [
    each.repeat_interleave(3, dim=1) for each in (keys, values)
]  # 0 0 0 1 1 1
in_turn_heads = [
    each.repeat(1, 3, 1, 1) for each in (keys, values)
]  # 0 1 0 1 0 1
torch.testing.assert_close(
    F.scaled_dot_product_attention(queries, *neighbors), grouped
)
apart = (
    (F.scaled_dot_product_attention(queries, *in_turn_heads) - grouped)
    .abs()
    .max()
)


def cache_bytes(layers, kv_heads, head_dim, tokens, bits):
    return (
        2 * layers * kv_heads * head_dim * tokens * bits // 8
    )  # keys and values


llama = {
    "layers": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "tokens": 8192,
    "bits": 16,
}  # and 32 heads of queries
shared = cache_bytes(**llama) / 2**30
full = cache_bytes(**{**llama, "kv_heads": 32}) / 2**30
print(f"repeat: off by {apart:.1f}")

# %% [markdown]
# The last sizes are those of Llama 3<!--~ a name -->, in its version with eight billion parameters. A sequence of
# 8,192<!--= llama["tokens"] --> tokens, with 16<!--= llama["bits"] --> bits a number, takes 1<!--= shared --> GiB of
# cache; with as many heads of keys as of queries it would take 4<!--= full --> GiB.
#
# ## A merge that looks right
#
# A common mistake merges without transposing back. The shape is right, the weights of every head are right, and each
# token's output is put together from several tokens:


# %%
def broken_merge(context):
    return context.reshape(context.size(0), context.size(2), -1)


def attend(x, merge):
    parts = (
        split_heads(F.linear(x, part), num_heads) for part in packed.chunk(3)
    )
    return merge(scaled_dot_product_attention(*parts, is_causal=True).context)


gap = (attend(x, broken_merge) - attend(x, merge_heads)).abs().max()
for merge in (merge_heads, broken_merge):
    print(
        merge.__name__,
        probes.sees_the_future(lambda x, merge=merge: attend(x, merge), x),
    )

# %% [markdown]
# The two differ by {{ gap :.1f}}. The check that tells them apart needs no reference: under a causal mask, change a
# later token, and no earlier one may move. The right merge passes<!--= "passes" if probes.sees_the_future(lambda x:
# attend(x, merge_heads), x) is None else "fails" --> it; through [the broken
# merge](../museum/heads.py#merge-without-transpose) the future leaks in<!--= bool(probes.sees_the_future(lambda x:
# attend(x,
# broken_merge), x)) -->, behind a mask that is right.
#
# Where would it pass? With one head or one token the two are
# equal<!--= torch.equal(broken_merge(context[:, :1]), merge_heads(context[:, :1])) and
# torch.equal(broken_merge(context[:, :, :1]), merge_heads(context[:, :, :1]))  # to the bit: both only move numbers
# -->. So test with several of both.
#
# ## Exercises
#
# `check` judges an answer by the name in brackets: [how to do the exercises](../install.md#do-the-exercises).
#
# **Split** (`split-heads`). Write `split(x, num_heads)` for x of (batch, tokens, features).
#
# ??? question "Hint"
#
#     Name the axes in the order in which the numbers lie, then exchange two of them.

# %% tags=["solution"]
from unmasked.exercises import check


def my_split(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


feedback = check("split-heads", my_split)
assert feedback
feedback

# %% [markdown]
# **Merge** (`merge-heads`). Write the inverse, `merge(x)` for x of (batch, heads, tokens, head_dim).
#
# ??? question "Hint"
#
#     In reverse: first exchange, then join.


# %% tags=["solution"]
def my_merge(x):
    return x.transpose(-3, -2).flatten(-2)


feedback = check("merge-heads", my_merge)
assert feedback
feedback

# %% [markdown]
# **One product for three** (`packed-projection`). Write `project(x, weight, num_heads)`, where `weight` has all of the
# query's rows first, then the key's, then the value's, as `nn.MultiheadAttention` packs them. Return query, key and
# value, each (batch, heads, tokens, head_dim).
#
# ??? question "Hint"
#
#     One `F.linear`. Then name all five axes that are in its result, and put the one that counts to three in front.


# %% tags=["solution"]
def my_projection(x, weight, num_heads):
    parts = F.linear(x, weight).unflatten(
        -1, (3, num_heads, -1)
    )  # batch tokens 3 heads head_dim
    return parts.permute(2, 0, 3, 1, 4).unbind()


feedback = check("packed-projection", my_projection)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [Is my multi-head attention right?](from_scratch.py) puts these pieces together and compares them with PyTorch's.
# - [Where are my weights?](layouts.py): how libraries pack the matrices of query, key and value.
# - [The museum of mistakes](../museum/heads.py): splits and merges that look right.
#
# ## References
#
# <!--~ 2017, 3.2.2, 2023, 2.2, 2024, 3: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.2, multi-head attention: why several heads, and that
#   their cost together is that of one with all features.
# - Ainslie et al. (2023), *GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints*:
#   section 2.2, groups of query heads that share a head of keys and values.
# - Grattafiori et al. (2024), *The Llama 3 Herd of Models*: table 3, the sizes of its models.
