# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # How does one matrix hold many heads?
#
# **Side by side. The matrices of all heads stand in one matrix as blocks of columns, so one product computes every
# head; then each token's features are dealt out, the first `head_dim` of them to the first head, and so on.** In code:
# `view` to (batch, tokens, heads, head_dim), then `transpose` to (batch, heads, tokens, head_dim). The transpose is not
# optional: `view(batch, heads, tokens, head_dim)` has the right shape and puts
# 80%<!--== wrong_places --> of the numbers in the wrong place.
#
# **You should know** [what attention computes](01_what_is_attention.py), and that `@` multiplies matrices. **You will
# know** five ways to project to many heads that give the same numbers, why everybody uses the last, how to split and
# merge without mixing tokens, and a test that a wrong split cannot pass.

# %%
import inspect

import torch
import torch.nn.functional as F
from torch import nn

from unmasked import attention_scores, heads, plot, scaled_dot_product_attention
from unmasked.heads import merge_heads, project_bmm, project_einsum, project_linear, project_loop, split_heads

batch, tokens, num_heads, head_dim, in_dim = 2, 5, 3, 4, 7
embed_dim = num_heads * head_dim
assert len({batch, tokens, num_heads, head_dim, in_dim, embed_dim}) == 6

# %% [markdown]
# ## Why several heads?
#
# One head gives a token one average. A word may need two things at once: *ship* asks who is on board, and whose it is.
# With two heads it takes two averages, each with weights of its own; with one head it has to mix the two questions
# before it asks. A head has fewer features in return: here 12<!--= embed_dim --> of them make
# three<!--= num_heads --> heads of four<!--= head_dim -->. The number of numbers, and of multiplications in the
# projection, stays what it was.
#
# ## Five ways, one result
#
# Give each head a matrix of its own, with the axes (heads, in_dim, head_dim), and project in a loop. That is the
# definition:

# %%
torch.manual_seed(0)
x = torch.randn(batch, tokens, in_dim, dtype=torch.float64)
stacked = torch.randn(num_heads, in_dim, head_dim, dtype=torch.float64)

loop = torch.stack([x @ matrix for matrix in stacked], dim=1)  # batch heads tokens head_dim
loop.shape

# %% [markdown]
# For head $h$, token $t$ and feature $j$ that says
#
# $$q_{h, t, j} = \sum_i x_{t, i} \, w_{h, i, j}$$
# <!-- where: x, w = random("t_n i_n", "h_n i_n j_n"); q = project_loop(x, w) -->
#
# The loop runs one small product after another. Three<!--== len(same) - 1 --> ways ask for all of them at once, and a
# last one asks for a single large product:

# %%
torch.manual_seed(2)
wide = torch.cat(list(stacked), dim=1)  # in_dim, heads * head_dim: the heads' columns side by side
linear = nn.Linear(in_dim, embed_dim, bias=False, dtype=torch.float64)
linear.weight.data.copy_(wide.T)  # nn.Linear keeps (features out, features in)

same = {
    "@ with broadcasting": x[:, None] @ stacked,
    "bmm": torch.bmm(x.repeat_interleave(num_heads, dim=0), stacked.repeat(batch, 1, 1)).unflatten(
        0, (batch, num_heads)
    ),
    "einsum": torch.einsum("bti,hid->bhtd", x, stacked),
    "one Linear, view, transpose": linear(x).view(batch, tokens, num_heads, head_dim).transpose(1, 2),
}
for name, result in same.items():
    torch.testing.assert_close(result, loop)
    print(f"{name:<28} {tuple(result.shape)}")

# %% [markdown]
# They agree with the package's own four, the last of which is:

# %%
for project in (project_loop, project_bmm, project_einsum, project_linear):
    torch.testing.assert_close(project(x, stacked), loop)

print(inspect.getsource(project_linear).split('"""')[-1].strip("\n"))

# %% [markdown]
# Why the last? One large product keeps a processor busier than many small ones, and one matrix is one parameter to
# store and to initialise. Go one step further and put query, key and value side by side as well: then a single product
# does all nine<!--= 3 * num_heads -->, and that is PyTorch's `in_proj_weight` ([where are my
# weights?](07_layouts.py)). Note that `in_dim` need not be `embed_dim`: the input of this page has
# seven<!--= in_dim --> features, and the heads together have twelve<!--= embed_dim -->.
#
# ## Follow one number: the split
#
# To see where each number goes, let it say where it comes from. Below, a feature is named by its token, its head and
# its place in the head, all counted from one. Feature 213<!--== tagged[0, 1, 2] --> belongs to the second token, the
# first head, the third place.

# %%
token = torch.arange(1, tokens + 1)[:, None]
feature = torch.arange(embed_dim)[None]
tagged = 100 * token + 10 * (feature // head_dim + 1) + (feature % head_dim + 1)
tagged = tagged[None]  # batch tokens features
tagged[0]

# %% [markdown]
# Split right, the first head has the numbers whose second digit is one, a row for each token:

# %%
split = tagged.view(1, tokens, num_heads, head_dim).transpose(1, 2)  # batch heads tokens head_dim
assert torch.equal(split, split_heads(tagged, num_heads))
split[0, 0]

# %% [markdown]
# The direct view fills heads in the order in which numbers lie in memory: the first head gets all features of the first
# token, then begins with the next token's.

# %%
direct = tagged.view(1, num_heads, tokens, head_dim)
assert direct.shape == split.shape
wrong_places = (direct != split).float().mean().item()
direct[0, 0]


# %% tags=["hide-input"]
#| alt: Two grids of the numbers' second digits, a block of rows for each head. Split right, each block has one shade,
#|   its head's own. By the direct view every block has all three shades in stripes.
def head_of(each):
    return (each // 10 % 10 / num_heads)[0].flatten(0, 1)  # which head a number belongs to, from light to dark


figure = plot.heatmap({"view, then transpose": head_of(split), "view alone": head_of(direct)})
for axes in figure.axes[:2]:
    axes.set_xlabel("place in the head")
    axes.set_ylabel("head and token")
figure

# %% [markdown]
# In symbols, with features counted from zero: number $j$ of head $h$ of token $t$ is feature $h \cdot d_k + j$ of the
# same token,
#
# $$q_{h, t, j} = x_{t,\, h \cdot d_k + j} \qquad h = 0, \dots, H - 1$$
# <!-- where: y = random("H n d_k"); x = merge_heads(y[None])[0]; q = split_heads(x, H) -->
#
# ## And back: the merge
#
# After attention the heads go side by side again. Undo the steps in reverse: transpose first, then join the last two
# axes. A tensor that was transposed does not lie in memory as its shape says, so `view` refuses, and `reshape` copies:

# %%
merged = split.transpose(1, 2).reshape(1, tokens, embed_dim)
assert torch.equal(merged, tagged)
assert torch.equal(merged, merge_heads(split))

try:
    split.transpose(1, 2).contiguous().transpose(1, 2).view(1, tokens, embed_dim)
    refusal = ""
except RuntimeError as error:
    refusal = str(error).split(".")[0]
refusal

# %% [markdown]
# ## Attention, head by head, at once
#
# With the heads on an axis of their own, `@` works on the last two axes and leaves the others alone. So the code for
# many heads is the code for one, and each head gets exactly what it would get by itself:

# %%
torch.manual_seed(1)
q, k, v = (project_linear(x, torch.randn_like(stacked)) for _ in range(3))

allowed = torch.ones(tokens, tokens, dtype=torch.bool).tril()
scores = q @ k.transpose(-2, -1) / head_dim**0.5  # batch heads queries keys
weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
context = weights @ v  # batch heads queries head_dim
output = merge_heads(context)  # batch queries embed_dim

torch.testing.assert_close(scores, attention_scores(q, k))
torch.testing.assert_close(context, scaled_dot_product_attention(q, k, v, allowed=allowed).context)
for h in range(num_heads):
    alone = scaled_dot_product_attention(q[:, h], k[:, h], v[:, h], allowed=allowed).context
    torch.testing.assert_close(context[:, h], alone)
traced = {"q": q, "scores": scores, "weights": weights, "context": context, "output": output}
{name: tuple(tensor.shape) for name, tensor in traced.items()}

# %% [markdown]
# The mask has no axes for batch and heads: one of 25<!--= allowed.numel() --> entries serves all
# 150<!--= weights.numel() --> weights by broadcasting. A last matrix, `out_proj`, then mixes the heads.
#
# `.T` reverses *all* axes of a tensor, `.mT` and `transpose(-2, -1)` exchange the last two. On a batch of matrices only
# the latter is meant.
#
# ## A merge that looks right
#
# A common mistake is a merge without the transpose. It has the right shape, its rows of weights are right, and every
# token's output is made of parts of other tokens:


# %%
def broken_merge(context):
    return context.reshape(context.size(0), context.size(2), -1)


off = (broken_merge(context) - merge_heads(context)).abs().max().item()
hidden = {
    "one head": torch.equal(broken_merge(context[:, :1]), merge_heads(context[:, :1])),
    "one token": torch.equal(broken_merge(context[:, :, :1]), merge_heads(context[:, :, :1])),
}
f"off by {off:.2f}", hidden

# %% [markdown]
# With one head or one token the two agree<!--= all(hidden.values()) -->, so a test of that size passes. The check that
# tells them apart needs no reference: under a causal mask, change the last token, and no other
# may move.


# %%
def leaks(merge):
    def attend(v):
        return merge(scaled_dot_product_attention(q, k, v, allowed=allowed).context)

    changed = v.clone()
    changed[:, :, -1] += 1
    return not torch.equal(attend(v)[:, :-1], attend(changed)[:, :-1])


leaks(merge_heads), leaks(broken_merge)

# %% [markdown]
# Right merges do not leak<!--= not leaks(merge_heads) -->, the broken one does<!--= leaks(broken_merge) -->.
#
# ## Exercises
#
# **Split.** Write `split(x, num_heads)` for x of (batch, tokens, features).
#
# ??? question "Hint"
#
#     Name the axes that you want in the order in which the numbers lie, then exchange two of them.

# %% tags=["solution"]
from unmasked.exercises import check


def my_split(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


check("split-heads", my_split)

# %% [markdown]
# **Merge.** Write the inverse, `merge(x)` for x of (batch, heads, tokens, head_dim).
#
# ??? question "Hint"
#
#     In reverse: first exchange, then join.


# %% tags=["solution"]
def my_merge(x):
    return x.transpose(-3, -2).flatten(-2)


check("merge-heads", my_merge)

# %% [markdown]
# **One product for three.** Write `project(x, weight, num_heads)`, where `weight` has the query's rows first, then the
# key's and the value's, as `nn.MultiheadAttention` packs them. Return q, k and v, each (batch, heads, tokens,
# head_dim).
#
# ??? question "Hint"
#
#     One `F.linear`, one `chunk`, three splits.


# %% tags=["solution"]
def my_projection(x, weight, num_heads):
    return tuple(heads.split_heads(part, num_heads) for part in F.linear(x, weight).chunk(3, dim=-1))


check("packed-projection", my_projection)

# %% [markdown]
# ## What to read next
#
# - [Is my multi-head attention right?](07_from_scratch.py) puts these pieces together and compares them with PyTorch's.
# - [Where are my weights?](07_layouts.py): how libraries pack the matrices of query, key and value.
# - [The museum of mistakes](09_heads.py): splits and merges that look right.
#
# ## References
#
# <!--~ references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.2, multi-head attention.
