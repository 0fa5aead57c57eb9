# %% [markdown]
# # Do my heads, tokens and batches stay apart?
#
# **Not if an axis was moved by a `view` instead of a `transpose`, or if one axis was read as another.** The result
# keeps its shape, its rows of weights still sum to one, and a model trains with it: usually worse, but behind a causal
# mask suspiciously well. Here each such mistake runs beside the right version, on numbers of ordinary size. *Off by* is
# the largest difference in any output.
#
# | What was done | Off by | Invisible with |
# | --- | --- | --- |
# | [merged heads without transposing back](#merge-without-transpose) | 4.4<!--= off["merge-without-transpose"] --> | one token or one head |
# | [split heads by a view alone](#view-without-transpose) | 4.5<!--= off["view-without-transpose"] --> | one token or one head |
# | [exchanged heads and head_dim](#swapped-view) | 0.6<!--= off["swapped-view"] --> | as many heads as features in one |
# | [indexed the batch for the head](#batch-indexed-for-head) | 3.5<!--= off["batch-indexed-for-head"] --> | one item and one head |
# | [wrote `.T` for a batch](#batch-transposed) | 2.3<!--= off["batch-transposed"] --> | one item, one token, one feature |
# | [forgot `batch_first`](#batch-first-forgotten) | 1.6<!--= off["batch-first-forgotten"] --> | one item and one token |
# | [used only the first item](#only-first-item) | 2.1<!--= off["only-first-item"] --> | one item, or equal ones |
# | [swapped batch and tokens](#batch-and-tokens-swapped) | 3.3<!--= off["batch-and-tokens-swapped"] --> | one item |
# | [tested with a head_dim of one](#head-dim-one) | 0.6<!--= off["head-dim-one"] --> | one feature in a head |
#
# **You should know** [how one matrix holds many heads](../pytorch/heads.py). **You will know** which sizes a test
# needs, and a check for each mistake. In the [museum's index](index.py) you find a mistake by what you see.

# %% tags=["hide-input"]
import math
import warnings

import torch
import torch.nn.functional as F
from torch import nn

from unmasked import bypass_, plot, self_attention
from unmasked.heads import merge_heads, split_heads
from unmasked_doctor import probes
from unmasked_doctor.museum import Exhibits

# batch, tokens, heads, head_dim: all differ, none is one
B, N, H, D = 2, 5, 3, 4


def draw(*shape, seed=9):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def right(x):
    return merge_heads(self_attention(split_heads(x, H)).context)


x = draw(B, N, H * D)
# runs wrong beside right: on what hides the mistake, on x, and under a probe
one_item, one_token = draw(1, N, H * D), draw(B, 1, H * D)
exhibit = Exhibits(given=x, hides=one_item, probe=probes.mixes_items)
off = exhibit.off

# %% [markdown]
# ## Heads merged without transposing back { #merge-without-transpose }
#
# After the average, the axes are (batch, heads, tokens, head_dim). A bare `reshape` to (batch, tokens, features) has
# the right shape, but fills each token's row with the features of several tokens.


# %% tags=["hide-input"]
def merged_bare(x):
    context = self_attention(split_heads(x, H)).context
    # right: context.transpose(1, 2).reshape(x.shape)
    return context.reshape(x.shape)


exhibit(
    "merge-without-transpose",
    merged_bare,
    probe=probes.breaks_equivariance,
    hides=one_token,
)

# %% [markdown]
# To see where the numbers come from, fill each token's context with the token's own number, and merge:

# %% tags=["hide-input"]
#| caption: Where the numbers of each merged row come from: transposed back, a row holds its own token's.
tags = torch.arange(N)[:, None].expand(H, N, D)  # heads tokens head_dim
merged = {
    "transposed back": merge_heads(tags),
    "bare reshape": tags.reshape(N, H * D),
}
plot.grid(merged, axes=("tokens", "features"))

# %% [markdown]
# The first row of the bare reshape holds features of three<!--= len(merged["bare reshape"][0].unique()) --> tokens. So
# late tokens reach early outputs through a causal mask. With one head the bare reshape is right.


# %% tags=["check"]
def leaky(x):
    context = self_attention(split_heads(x, H), is_causal=True).context
    return context.reshape(x.shape)


one_head = self_attention(split_heads(x, 1)).context

# %% tags=["claims"]
assert probes.sees_the_future(leaky, x), (
    "So late tokens reach early outputs through a causal mask"
)
assert not probes.differs(one_head.reshape(x.shape), merge_heads(one_head)), (
    "With one head the bare reshape is right"
)

# %% [markdown]
# To see what training makes of the leak, a small model learns to predict the next of random tokens, which nothing can
# predict. No honest loss is below the logarithm of the number of kinds of tokens, {{ math.log(kinds) :.2f}}.

# %% tags=["check"]
kinds = 16


def learned(merge):
    """The loss of a trained model with this merge, on tokens new to it."""
    torch.manual_seed(9)
    embed, out = nn.Embedding(kinds, H * D), nn.Linear(H * D, kinds)
    places, qkv = nn.Embedding(N, H * D), nn.Linear(H * D, 3 * H * D)

    def loss(count):
        tokens = torch.randint(kinds, (count, N + 1))
        packed = qkv(embed(tokens[:, :-1]) + places.weight)
        q, k, v = (split_heads(part, H) for part in packed.chunk(3, dim=-1))
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.cross_entropy(out(merge(context)).mT, tokens[:, 1:])

    model = nn.ModuleList([embed, places, qkv, out])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(100):
        optimizer.zero_grad()
        loss(64).backward()
        optimizer.step()
    with torch.no_grad():
        return loss(500).item()


losses = {
    "right": learned(merge_heads),
    "bare": learned(lambda context: context.reshape(-1, N, H * D)),
}

# %% [markdown]
# After a hundred steps the right merge has learned nothing, as it should. The bare one is far below the limit, at
# {{ losses["bare"] :.2f}}: it reads the answers off the input. The loss falls suspiciously fast, but what such a model
# generates is bad, because then there is no future to read.
#
# **Hides** with one token, or one head. **Caught by** exchanging tokens, or by changing a late token under a causal
# mask. **Fix:** `merge_heads(context)`, which transposes and then flattens.

# %% tags=["claims"]
assert losses["right"] > math.log(kinds) - 0.02, (
    "After a hundred steps the right merge has learned nothing"
)
assert losses["bare"] < math.log(kinds) - 1, (
    "The bare one is far below the limit"
)

# %% [markdown]
# ## Heads split by a view alone { #view-without-transpose }
#
# This is the same mistake at the entrance: `view(batch, heads, tokens, head_dim)` at once, without a `transpose`. Each
# head gets a stretch of the tokens, cut into pieces, instead of a piece of every token.


# %% tags=["hide-input"]
def split_bare(x):
    # right: x.view(x.size(0), x.size(1), H, D).transpose(1, 2)
    heads = x.view(x.size(0), H, x.size(1), D)
    return merge_heads(self_attention(heads).context)


exhibit(
    "view-without-transpose",
    split_bare,
    probe=probes.breaks_equivariance,
    hides=one_token,
)

# %% [markdown]
# If you split *and* merge by bare views, the result looks plausible: each token's output is made of its own features
# again. But each head has attended only within a third of the sequence, and a token outside that third is never
# noticed.


# %% tags=["check"]
def both_bare(x):
    heads = x.view(x.size(0), H, x.size(1), D)
    return self_attention(heads).context.reshape(x.shape)


# %% tags=["claims"]
assert probes.misses_the_past(both_bare, x), (
    "a token outside that third is never noticed"
)

# %% [markdown]
# **Hides** with one token, or one head. **Caught by** exchanging tokens. **Fix:** `split_heads(x, num_heads)`: a view
# that keeps the axis of tokens in its place, and then the `transpose`.
#
# ## Heads and head_dim exchanged in a view { #swapped-view }
#
# `view(batch, tokens, head_dim, heads)` makes `head_dim` heads of `heads` features each. That is attention, too, so no
# single call looks wrong. The check has to know which features belong to a head: it changes those of the first head,
# and no other head may notice.


# %% tags=["hide-input"]
def swapped(x):
    # right: x.unflatten(-1, (H, -1))
    heads = x.unflatten(-1, (-1, H)).transpose(1, 2)
    return merge_heads(self_attention(heads).context)


def crosses_heads(f, x):
    width = x.size(-1) // H
    changed = x.clone()
    changed[..., :width] += 1 + draw(*x.shape[:2], width)
    gap = probes.differs(f(changed)[..., width:], f(x)[..., width:])
    if gap:
        return f"changing the first head moves the others by {gap:.3g}"
    return None


exhibit("swapped-view", swapped, probe=crosses_heads, hides=draw(B, N, H * H))

# %% [markdown]
# **Hides** with as many heads as features in a head, where both views are the same. A related mistake has the right
# view but then takes the wrong axis for the heads. At the sizes that hide the first mistake, this one has the right
# shapes and wrong numbers.


# %% tags=["check"]
def wrong_axis(x):
    # right: .permute(0, 2, 1, 3)
    heads = x.unflatten(-1, (H, -1)).permute(0, 3, 1, 2)
    return merge_heads(self_attention(heads).context)


square = draw(B, N, H * H)
sister = probes.differs(wrong_axis(square), right(square))
# %% tags=["claims"]
assert wrong_axis(square).shape == right(square).shape and sister, (
    "this one has the right shapes and wrong numbers"
)

# %% [markdown]
# It is off by 2.97<!--= sister -->. **Caught by** changing one head. **Fix:** `split_heads`, and a test with more
# features in a head than heads.
#
# ## The batch indexed where the head was meant { #batch-indexed-for-head }
#
# Each head has a matrix, and a loop fills `query`, whose first axis is the batch:


# %% tags=["hide-input"]
def head_by_head(x, assign):
    # heads in head_dim, and then: batch heads tokens head_dim
    stacked = draw(H, H * D, D)[: x.size(0)] / math.sqrt(H * D)
    query = torch.empty(len(x), len(stacked), x.size(1), D)
    for i, matrix in enumerate(stacked):
        assign(query, i, x @ matrix)
    return merge_heads(self_attention(query).context)


def into_items(query, i, projected):
    query[i] = projected


def into_heads(query, i, projected):
    query[:, i] = projected


exhibit(
    "batch-indexed-for-head",
    lambda x: head_by_head(x, into_items),
    lambda x: head_by_head(x, into_heads),
    given=draw(H, N, H * D),
)

# %% [markdown]
# With as many items as heads, the products fit where they do not belong, and item and head are exchanged. With other
# sizes there is an error. **Hides** with one item and one head. The package's loop is `project_loop`.

# %% tags=["check"]
#| raises: RuntimeError: The expanded size of the tensor
into_items(torch.empty(B, H, N, D), 0, draw(B, N, D))

# %% [markdown]
# **Caught by** changing one item: no other may notice. **Fix:** `query[:, i] = ...`, or one matrix for all heads.
#
# ## `.T` on a batch { #batch-transposed }
#
# `.T` transposes a matrix, but in a batch it reverses *all* axes. PyTorch warns, and the product then raises an error,
# unless there are as many tokens as features, and as many items or a single one.


# %% tags=["hide-input"]
def turned(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of it
        scores = x @ x.T / math.sqrt(x.size(-1))  # right: x @ x.mT
    return scores.softmax(-1) @ x


def plain(x):
    return self_attention(x).context


exhibit(
    "batch-transposed",
    turned,
    hides=draw(1, 1, 1),
    given=draw(3, 3, 3),
)

# %% tags=["check"]
#| raises: RuntimeError
turned(x)

# %% [markdown]
# **Hides** where all sizes are one. **Caught by** sizes that differ, or by changing one item. **Fix:** `.mT`, which
# exchanges the last two axes.
#
# ## `batch_first` forgotten { #batch-first-forgotten }
#
# By default, `nn.MultiheadAttention` takes (tokens, batch, features). Given (batch, tokens, features), it takes items
# for tokens, and its output still has the right shape.

# %% tags=["hide-input"]
torch.manual_seed(9)
# right: batch_first=True
forgotten = bypass_(nn.MultiheadAttention(H * D, H))
told = bypass_(nn.MultiheadAttention(H * D, H, batch_first=True))

exhibit(
    "batch-first-forgotten",
    lambda x: forgotten(x, x, x)[0],
    lambda x: told(x, x, x)[0],
    hides=draw(1, 1, H * D),
)

# %% tags=["check"]
output, weights = forgotten(one_item, one_item, one_item)

# %% [markdown]
# With one item every token is alone: all weights are 1, and a bypassed module returns its input. The shape of the
# weights gives it away, unless there are as many items as tokens: it is `(5, 1, 1)`<!--= weights.shape --> where it
# should be (items, tokens, tokens). **Hides** with one token in one item. **Caught by** changing one item. **Fix:**
# `batch_first=True`.

# %% tags=["claims"]
assert torch.allclose(weights, torch.ones(1), atol=1e-6) and not (
    probes.differs(output, one_item)
), "all weights are 1, and a bypassed module returns its input"

# %% [markdown]
# ## Only the first batch item used { #only-first-item }
#
# The index `x[0]` is left over from a first try with one sequence, and broadcasting makes it fit.


# %% tags=["hide-input"]
def first_only(x):
    scores = x @ x[0].T / math.sqrt(x.size(-1))  # right: x @ x.mT
    return scores.softmax(-1) @ x[0]  # right: @ x


exhibit("only-first-item", first_only, plain)

# %% [markdown]
# **Hides** with one item, and with equal ones, as in an example whose batch is one sentence stacked twice. **Caught
# by** changing one item. **Fix:** no index of the batch inside a layer.

# %% tags=["claims"]
assert not probes.differs(first_only(x[[0, 0]]), plain(x[[0, 0]])), (
    "Hides with one item, and with equal ones"
)

# %% [markdown]
# ## Batch and tokens swapped { #batch-and-tokens-swapped }
#
# A layer that turns its input to (tokens, batch, ...) must turn its output back. A `reshape` instead of a `transpose`
# lets the items run into each other.


# %% tags=["hide-input"]
def came_back_flat(x):
    context = self_attention(split_heads(x, H)).context
    context = context.permute(2, 0, 1, 3)  # tokens batch heads head_dim
    # right: context.transpose(0, 1).reshape(x.shape)
    return context.reshape(x.shape)


exhibit("batch-and-tokens-swapped", came_back_flat)

# %% [markdown]
# **Hides** with one item. **Caught by** changing one of several. **Fix:** undo each `permute` by its inverse.
#
# ## Tested with a head_dim of one { #head-dim-one }
#
# This time the test is wrong. If a head has one feature, the root of head_dim is 1<!--= math.sqrt(1) -->, so a version
# that forgets to divide by it is right. The check is PyTorch's own function, one head at a time:


# %% tags=["hide-input"]
def unscaled(x):
    return merge_heads(self_attention(split_heads(x, H), scale=1.0).context)


def unlike_pytorch(f, x):
    heads = [
        F.scaled_dot_product_attention(part, part, part)
        for part in x.chunk(H, dim=-1)
    ]
    gap = probes.differs(f(x), torch.cat(heads, dim=-1))
    if not gap:
        return None
    return f"head_dim {x.size(-1) // H}: off by {gap:.3g} from PyTorch's function"


# tried with draw(B, N, H); right: draw(B, N, H * D)
exhibit("head-dim-one", unscaled, right, unlike_pytorch, hides=draw(B, N, H))

# %% [markdown]
# A head_dim of one **hides** more: every row of a head's scores is then a multiple of every other row, and a `view`
# merges the heads without an error although `contiguous()` is missing.


# %% tags=["check"]
def merged_by_view(heads):
    return heads.contiguous().transpose(1, 2).view(B, N, -1)


narrow = split_heads(draw(B, N, H), H)
rank = torch.linalg.matrix_rank(narrow @ narrow.mT, rtol=1e-4)

# %% tags=["claims"]
assert (rank == 1).all(), (
    "every row of a head's scores is then a multiple of every other row"
)
assert not probes.differs(merged_by_view(narrow), merge_heads(narrow)), (
    "and a view merges the heads without an error"
)

# %% tags=["check"]
#| raises: RuntimeError: view size is not compatible
merged_by_view(split_heads(x, H))

# %% [markdown]
# **Caught by** the same test at other sizes. **Fix:** sizes that all differ and are more than one:
# `B, N, H, D = 2, 5, 3, 4`.
#
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("sizes-that-tell", answer))`.
#
# **Sizes that tell** (`sizes-that-tell`). Give four numbers, for
# batch, tokens, heads and head_dim, at which no mistake hides. They are tried on the wrong versions of [the index, with
# its test](index.py#a-test-that-passes-everything). Then see which hide if you make one of them smaller.
#
# ??? question "Hint"
#
#     Which size makes an axis disappear? Which two sizes could be exchanged without notice?

# %% tags=["solution"]
from unmasked_lessons.exercises import check

print(check("sizes-that-tell", (2, 5, 4, 1)))
check("sizes-that-tell", (2, 5, 3, 4))

# %% [markdown]
# **Undo a bare merge** (`undo-a-bare-merge`). A model was saved with outputs that a bare reshape merged. Write
# `repair(merged, num_heads)`, which returns them as they should be, (batch, tokens, features).
#
# ??? question "Hint"
#
#     The reshape has lost nothing, so another can undo it. Then merge in the right way.


# %% tags=["solution"]
def repair(merged, num_heads):
    batch, tokens, features = merged.shape
    return merge_heads(
        merged.reshape(batch, num_heads, tokens, features // num_heads)
    )


check("undo-a-bare-merge", repair)

# %% [markdown]
# ## What to read next
#
# - [Masks](masks.py), [weights](weights.py) and [computation](computation.py): the museum's other rooms.
# - [How does one matrix hold many heads?](../pytorch/heads.py): the right versions, and why they are right.
# - [The doctor](../doctor.py) tries these probes on your module.
#
# ## References
#
# <!--~ 2017, 3.2.2, 2.13: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.2, heads and how they are joined.
# - PyTorch 2.13, documentation of `Tensor.view`, `Tensor.T` and `nn.MultiheadAttention`.
