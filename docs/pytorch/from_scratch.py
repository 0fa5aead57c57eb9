# %% [markdown]
# # Is my multi-head attention right?
#
# **Give it the matrices and biases of `torch.nn.MultiheadAttention`, and compare more than the output.** Some
# twenty<!--= round(lines, -1) --> lines of tensor code differ from PyTorch's layer by less than 0.00001: in the output,
# in the weights of every head, in every gradient. The package behind this site agrees in each of {{ len(drawn) }}
# combinations of the layer's options. Such a comparison is only as good as these four things:
#
# 1. **Sizes** that all differ, and are more than one: of the batch, the heads, the features in a head.
# 2. **Biases** filled with random numbers, and masks that shut something out, of every kind you support.
# 3. **More than the output**: the weights of *every head*, not their average, and the gradients of inputs and
#    parameters.
# 4. **One check that needs no reference**: what may not be seen changes nothing, as long as it is finite.
#
# This page runs wrong layers that pass when one of the four is missing, and measures how wrong each of them is.
#
# **You should know** Python, that tensors have shapes, and what a layer, a gradient and a step of training are. The
# words of attention are explained as they come, and in the [glossary](../notation.md#glossary); [What is
# attention?](../learn/attention.py) takes more time over the idea.
#
# **You will know** each step of multi-head attention with its shape, how PyTorch packs four<!--= sum(p.numel() for p in
# theirs.parameters() if p.dim() == 2) / embed_dim**2 --> matrices into two<!--= sum(p.dim() == 2 for p in
# theirs.parameters()) -->, and which checks find a wrong layer.

# %% tags=["imports"]
import inspect
import itertools
import math
import random
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import nn

from unmasked import (
    attention_scores,
    functional,
    layouts,
    masks,
    plot,
)
from unmasked.heads import merge_heads, split_heads
from unmasked_lessons.experiments import from_scratch as experiments


def gap(a, b):
    """The largest absolute difference."""
    assert a.shape == b.shape, (a.shape, b.shape)
    return (a - b).abs().max().item()


# %% [markdown]
# ## The layer to compare with
#
# Attention reads *tokens*, words or pieces of words, each given as a list of numbers, its *embedding*. Sequences of
# tokens are handled together, as a *batch*. Attention takes three inputs: the **queries** are the tokens that look, the
# **keys** are the tokens that are looked at, and each key has a **value**, which is what a query takes away from it.
#
# Choose sizes that all differ, because with equal sizes no shape shows that two axes were exchanged.

# %%
batch, num_heads, head_dim, queries, keys = 2, 3, 4, 5, 7
embed_dim = num_heads * head_dim

torch.manual_seed(0)
query = torch.randn(batch, queries, embed_dim, requires_grad=True)
key = torch.randn(batch, keys, embed_dim, requires_grad=True)
value = torch.randn(batch, keys, embed_dim, requires_grad=True)
theirs = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

{
    name: tuple(parameter.shape)
    for name, parameter in theirs.named_parameters()
}

# %% tags=["claims"]
assert not (theirs.in_proj_bias.any() or theirs.out_proj.bias.any()), (
    "Both biases start at zero"
)

# %% [markdown]
# `batch_first=True` says that the first axis counts the sequences of the batch; by default PyTorch takes it for the
# tokens. The layer multiplies by
# four<!--= sum(p.numel() for p in theirs.parameters() if p.dim() == 2) / embed_dim**2 --> square matrices and stores
# two<!--= sum(p.dim() == 2 for p in theirs.parameters()) -->: those for query, key and value are *packed*, one below
# the other, into the 36<!--= len(theirs.in_proj_weight) --> rows of `in_proj_weight`. The fourth, `out_proj.weight`,
# comes after attention. (PyTorch calls these matrices weights; on this page *weights* are the numbers with which
# attention averages.)
#
# **Both biases start at zero**. Code that forgets them agrees with a new layer until training moves them, so fill them
# before you compare anything. (The gradient of the key's bias is zero but for rounding; the [second
# exercise](#exercises) says why.)

# %%
untrained = deepcopy(theirs)
torch.manual_seed(1)
with torch.no_grad():
    theirs.in_proj_bias.normal_()
    theirs.out_proj.bias.normal_()

state = dict(theirs.named_parameters())
w_q, w_k, w_v = state["in_proj_weight"].chunk(3)
b_q, b_k, b_v = state["in_proj_bias"].chunk(3)

# %% [markdown]
# ## Project
#
# Each input is multiplied by its own matrix. `F.linear` takes a matrix as (features out, features in), so the product
# is with its *transpose*.


# %%
def project(x, weight, bias):
    return F.linear(x, weight, bias)  # batch tokens features


# %% tags=["claims"]
assert gap(project(query, w_q, b_q), query @ w_q.T + b_q) < 1e-5, (
    "so the product is with its transpose"
)

# %% [markdown]
# Papers write the product without the transpose, which invites `query @ w_q`. That runs, because the matrix is square,
# and it is off by 3.0<!--= gap(query @ w_q, query @ w_q.T) -->.
#
# ## Split into heads
#
# A single attention gives each query one average of the values. With several *heads* a query takes several averages,
# each with its own weights and over its own part of the features. The first head has the first four features of every
# token, the second the next four, and so on. So `num_heads` must divide the width of all heads together. PyTorch's
# layer calls this width `embed_dim`; other code calls it `d_out`, and calls the width of the incoming tokens, which may
# differ, `d_in`.


# %%
def split(x):
    batch, tokens, _ = x.shape
    x = x.view(batch, tokens, num_heads, -1)  # batch tokens heads head_dim
    return x.transpose(1, 2)  # batch heads tokens head_dim


projected = project(query, w_q, b_q)
q = split(projected)
k = split(project(key, w_k, b_k))
v = split(project(value, w_v, b_v))

# %% tags=["check"]
#| raises: AssertionError: embed_dim must be divisible by num_heads
nn.MultiheadAttention(embed_dim, num_heads=5)

# %% [markdown]
# There are now two axes to tell apart, `num_heads` and `head_dim`. Where their sizes are equal, a split that exchanges
# them [has the right shape and wrong
# values](../museum/heads.py#swapped-view).

# %% tags=["claims"]
assert q[:, 0].equal(projected[..., :4]) and q[:, 1].equal(
    projected[..., 4:8]
), (
    "The first head has the first four features of every token, the second the next four"
)  # to the bit: numbers only change their places

# %% [markdown]
# ## Scores, weights, context
#
# Within a head every query is compared with every key by a *dot product*: multiply feature by feature and add up. The
# dot products, divided by the square root of the number of features in a head, are the **scores**. The *softmax* turns
# a row of scores into positive **weights**: it raises $e$ to each score and divides by the sum of the results, so that
# a row sums to one. The average of the values by these weights is the **context**.
#
# A *mask* says which keys a query may see. Ours is *causal*: no query sees a later token. The queries stand for the
# last five of seven tokens, so the first of them sees three keys and the last all seven. What may not be seen gets a
# score of minus infinity *before* the softmax, which makes it a weight of exactly zero.


# %%
def attend(q, k, v, allowed):
    scores = q @ k.mT / q.size(-1) ** 0.5  # batch heads queries keys
    scores = scores.masked_fill(~allowed, -torch.inf)
    weights = scores.softmax(dim=-1)
    return weights @ v, weights  # batch heads queries head_dim


allowed = masks.causal(queries, keys)
context, weights = attend(q, k, v, allowed)

# %% [markdown]
# Without the mask, that is the formula of the paper that introduced it (Vaswani et al. 2017, section
# 3.2.1, equation 1)<!--~ reference -->:
#
# $$\operatorname{Attention}(Q, K, V) = \operatorname{softmax}\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V \tag{8.1}$$
# <!-- where: Q, K, V = random("n d_k", "m d_k", "m d_v");
# Attention = lambda Q, K, V: attend(Q, K, V, torch.ones(n, m, dtype=torch.bool))[0] -->

# %% tags=["claims"]
assert gap(weights.sum(-1), torch.ones(batch, num_heads, queries)) < 1e-5, (
    "so that a row sums to one"
)
assert allowed.equal(torch.ones(5, 7).tril(2).bool()), (
    "The queries stand for the last five of seven tokens, so the first of them sees three keys and the last all seven"
)
assert not weights[..., ~allowed].any() and weights[..., allowed].all(), (
    "What may not be seen gets a score of minus infinity before the softmax, which makes it a weight of exactly zero"
)

# %% [markdown]
# ## Merge and project
#
# The heads go side by side again, so that each token has its features together, and the fourth matrix mixes them. To
# undo the split, undo its steps in reverse: first transpose back, then join the last two axes.


# %%
def merge(context):
    return context.transpose(1, 2).flatten(2)  # batch tokens features


def multi_head(query, key, value, allowed, state, merge=merge):
    w_q, w_k, w_v = state["in_proj_weight"].chunk(3)
    b_q, b_k, b_v = state["in_proj_bias"].chunk(3)
    q = split(project(query, w_q, b_q))
    k = split(project(key, w_k, b_k))
    v = split(project(value, w_v, b_v))
    context, weights = attend(q, k, v, allowed)
    w_o, b_o = state["out_proj.weight"], state["out_proj.bias"]
    return project(merge(context), w_o, b_o), weights


output, weights = multi_head(query, key, value, allowed, state)

# %% tags=["check"]
functions = (project, split, attend, merge, multi_head)
lines = sum(len(inspect.getsource(f).strip().splitlines()) for f in functions)

# %% [markdown]
# That is the whole layer. The paper defines it head by head (Vaswani et al. 2017, section 3.2.2)<!--~ reference -->,
# each head with matrices of its own. In PyTorch's layer these are the rows of one matrix: head $h$ has the $h$-th group
# of $d_k$ rows. So it can be compared with the definition:


# %% tags=["check"]
def by_pytorch(Q, K, V, W_Q, W_K, W_V, W_O):
    heads, _, width = W_Q.shape  # heads head_dim embed_dim
    layer = nn.MultiheadAttention(width, heads, bias=False, dtype=Q.dtype)
    packed = torch.cat([W_Q, W_K, W_V]).flatten(0, 1)
    layer.load_state_dict({"in_proj_weight": packed, "out_proj.weight": W_O})
    return layer(Q, K, V)[0]


# %% [markdown]
# $$\begin{aligned}
# \operatorname{MultiHead}(Q, K, V) &= \operatorname{Concat}(\text{head}_1, \dots, \text{head}_H) \, W_O^\top \\
# \text{head}_h &= \operatorname{Attention}(Q \, {W_Q^{(h)}}^\top, K \, {W_K^{(h)}}^\top, V \, {W_V^{(h)}}^\top)
# \end{aligned} \tag{8.2}$$
# <!-- where: H, d_k, d = num_heads, head_dim, embed_dim;
# Q, K, V, W_Q, W_K, W_V, W_O = random("n d", "m d", "m d", "H d_k d", "H d_k d", "H d_k d", "d d");
# Attention = lambda Q, K, V: attend(Q, K, V, torch.ones(n, m, dtype=torch.bool))[0];
# head = [Attention(Q @ a.T, K @ b.T, V @ c.T) for a, b, c in zip(W_Q, W_K, W_V)];
# Concat = lambda *heads: torch.cat(heads, dim=-1);
# MultiHead = lambda Q, K, V: by_pytorch(Q, K, V, W_Q, W_K, W_V, W_O) -->
#
# The paper's matrices are the transposes of these.

# %% tags=["claims"]
assert merge(q).equal(projected), (
    "To undo the split, undo its steps in reverse: first transpose back, then join the last two axes"
)  # to the bit: numbers only change their places

# %% [markdown]
# ## Compare: output, every head, every gradient
#
# PyTorch takes the mask the other way round: in `nn.MultiheadAttention` a `True` means *may not* be seen. It returns
# the weights averaged over the heads, unless you say `average_attn_weights=False`. To compare gradients, turn the
# output into one number, the mean of its squares, and differentiate it by every input and parameter.

# %%
blocked = ~allowed
each_head = {"attn_mask": blocked, "average_attn_weights": False}
their_output, their_weights = theirs(query, key, value, **each_head)
_, their_average = theirs(query, key, value, attn_mask=blocked)

inputs = [query, key, value, *theirs.parameters()]
gradients = torch.autograd.grad(output.square().mean(), inputs)
their_gradients = torch.autograd.grad(their_output.square().mean(), inputs)

found = {"output": gap(output, their_output)}
found["weights of each head"] = gap(weights, their_weights)
found["averaged weights"] = gap(weights.mean(dim=1), their_average)
names = ["query", "key", "value", *state]
for name, mine, other in zip(names, gradients, their_gradients, strict=True):
    found["gradient of " + name] = gap(mine, other)
for name, difference in found.items():
    print(f"{name:<32} {difference:.1g}")

# %% [markdown]
# Such differences are a few roundings of numbers with 32 bits. This site's own layer agrees, too, with these lines and
# with PyTorch:

# %%
ours = layouts.from_torch(theirs)
our_output, our_weights = ours(query, key, value, **each_head)

# %% [markdown] tags=["check"]
# The library's functions check their arguments and take more options. The lines that compute are these:


# %% tags=["check"]
begins = {
    merge_heads: "    return",
    attention_scores: "    dtype",
    functional._attend: "    scores = attention_scores",
}
for function, begin in begins.items():
    source = inspect.getsource(function)
    print(f"# {function.__name__}, at its end")
    print(source[source.rindex(begin) :])

# %% tags=["check"]
our_causal, _ = ours(query, key, value, is_causal=True, need_weights=False)
of_bias = gradients[names.index("in_proj_bias")]
of_query_bias, of_key_bias, _ = of_bias.chunk(3)

# %% [markdown]
# The layer's other path, `need_weights=False`, agrees, too. In training it hands the work to
# `F.scaled_dot_product_attention`.

# %% tags=["claims"]
assert max(found.values()) < 1e-5 and len(found) == 3 + len(inputs), (
    "differ from PyTorch's layer by less than 0.00001: in the output, in the weights of every head, in every gradient"
)
assert of_key_bias.abs().max() < 1e-6 < of_query_bias.abs().max(), (
    "The gradient of the key's bias is zero but for rounding"
)
assert not their_weights[..., blocked].any(), (
    "in nn.MultiheadAttention a True means may not be seen"
)
assert (
    found["averaged weights"] < 1e-5 < gap(their_average, their_weights[:, 0])
), "It returns the weights averaged over the heads"
assert (
    torch.finfo(output.dtype).bits == 32
    and max(found.values()) < 32 * torch.finfo(output.dtype).eps
), "Such differences are a few roundings of numbers with 32 bits"
assert (
    max(gap(our_output, each) for each in (output, their_output)) < 1e-5
    and max(gap(our_weights, each) for each in (weights, their_weights))
    < 1e-5
), "agrees, too, with these lines and with PyTorch"
assert max(gap(our_causal, each) for each in (output, their_output)) < 1e-5, (
    "The layer's other path, need_weights=False, agrees, too"
)

# %% [markdown]
# ## Why no table of weights?
#
# A *fused* kernel is one routine for scores, weights and context. PyTorch's do without the table of (queries, keys),
# because they take the keys a few at a time, by an [online softmax](tiles.py). Where none of them can do what is asked,
# PyTorch makes the table after all, silently unless you forbid it. [Which kernel ran](kernels.py) and what it cost has
# a page of its own.

# %% [markdown]
# ## A check without a reference
#
# Change the value of one token and see which outputs move. They must be those of the queries that may see it, *and no
# others*. Make the change large, so that even a small weight stands out from rounding.


# %%
#| caption: Which token moves which output: the causal mask has come back out of the layer.
def reach(merge):
    before, _ = multi_head(query, key, value, allowed, state, merge=merge)
    moved = torch.zeros(queries, keys, dtype=torch.bool)
    for token in range(keys):
        changed = value.detach().clone()
        changed[:, token] += 100.0
        after, _ = multi_head(
            query, key, changed, allowed, state, merge=merge
        )
        moved[:, token] = (
            ((after - before).abs() > 1e-3).any(dim=-1).any(dim=0)
        )
    return moved


plot.grid(reach(merge), "moved", queries=range(queries), keys=range(keys))

# %% [markdown]
# A row is a query, and a column the value of a token. [The broken layer](#one-broken-one-right), with the right shapes
# and the right weights, fails here.
#
# The value must be finite, because zero times NaN is NaN. A NaN in a masked place, such as the unused end of a cache
# from `torch.empty`, can reach every query, in PyTorch's layer as well.

# %% tags=["check"]
spoiled = value.detach().clone()
spoiled[:, -1] = torch.nan
gone, _ = multi_head(query, key, spoiled, allowed, state)
their_gone, _ = theirs(
    query, key, spoiled, attn_mask=blocked, need_weights=False
)

# %% tags=["claims"]
assert not reach(merge)[~allowed].any() and gone.isnan().any(), (
    "what may not be seen changes nothing, as long as it is finite"
)
assert torch.equal(reach(merge), allowed), (
    "the causal mask has come back out of the layer"
)
assert not allowed[:-1, -1].any() and all(
    each.isnan().all() for each in (gone, their_gone)
), "can reach every query, in PyTorch's layer as well"

# %% [markdown]
# ## Where options meet
#
# A layer with every option off is the easy part. The constructor of PyTorch's layer has {{ len(constructor) }} options,
# and a call has {{ len(use) }} more. In all combinations that were tried, the library's layer differs from PyTorch's by
# nothing but rounding.
#
# Not tried are inference without gradients, `is_causal`, and queries that may see nothing: there the library differs
# from PyTorch on purpose. The last is shown [below, with what hides it](#what-hides-a-mistake), the others in [the
# museum, on masks](../museum/masks.py#is-causal-is-a-hint).
#
# [One option](heads.py#a-pair-that-comes-from-no-sequence) is often misread:
# `add_bias_kv` does not add a bias to the keys, it appends a key.

# %% tags=["check"]
constructor, use = experiments.CONSTRUCTOR, experiments.CALL
choices = [*constructor.values(), *use.values()]
every = list(itertools.product(*choices))
drawn = random.Random(4).sample(every, 200)

# %% [markdown] tags=["check"]
# Of the {{ len(every) :,}} combinations, {{ len(drawn) }} are drawn at random: for any four options, every combination
# of their values is among them. Each is run in PyTorch's layer, with random matrices *and biases*, and in its copy in
# the package, in float64 and under one seed, so that even the dropout is the same.

# %% tags=["check"]
torch.manual_seed(6)
largest = experiments.differences(drawn)
largest

# %% tags=["claims"]
assert max(largest.values()) < 1e-12, (
    "In all combinations that were tried, the library's layer differs from PyTorch's by nothing but rounding"
)
assert all(
    len({tuple(values[i] for i in some) for values in drawn})
    == math.prod(len(choices[i]) for i in some)
    for some in itertools.combinations(range(len(choices)), 4)
), "for any four options, every combination of their values is among them"

# %% [markdown]
# ## What hides a mistake
#
# **Biases of zero.** This copy, which forgets all biases, is compared with the layer as it was made and after its
# biases were filled.

# %%
zero = {n: p * 0 if "bias" in n else p for n, p in state.items()}
forgetful, _ = multi_head(query, key, value, allowed, zero)
new_output, _ = untrained(query, key, value, attn_mask=blocked)
as_made, filled = gap(forgetful, new_output), gap(forgetful, their_output)
print(f"as made: {as_made:.1g}   filled: {filled:.2f}")

# %% [markdown]
# **The average over the heads.** Suppose queries and keys count the heads in one order and values in another. Each head
# then averages the values of its neighbor. The average of the weights stays what it was, but every head's weights
# change, and so does the context:

# %%
rolled = attend(q.roll(1, dims=1), k.roll(1, dims=1), v, allowed)
rolled_context, rolled_weights = rolled
rolled_average = rolled_weights.mean(dim=1)
print(f"averaged weights:     {gap(rolled_average, their_average):.1g}")
print(f"weights of each head: {gap(rolled_weights, their_weights):.2f}")
print(f"context:              {gap(rolled_context, context):.2f}")

# %% [markdown]
# **A mask, an axis, a mode.** Three slips in the call leave every shape as it should be: a mask made for
# `scaled_dot_product_attention`, in which `True` means *may* be seen; a layer without `batch_first`, which takes the
# first axis for the tokens and lets sequences attend to one another; and weights read during training, where *dropout*
# sets some to zero and enlarges the others:

# %% tags=["hide-input"]
torch.manual_seed(9)
other_order, inverted, mixed, expected, dropped = experiments.slips(
    theirs, query, key, value, allowed
)
masked = gap(inverted[:, :-1], their_output[:, :-1])
sums = dropped.sum(dim=-1)
print(f"mask inverted: off by {masked:.2f}")
print(f"axes exchanged: off by {gap(mixed, expected):.2f}")
print(f"rows sum to {sums.min():.2f} up to {sums.max():.2f}")

# %% [markdown]
# The inverted mask leaves the last query no key. PyTorch makes that row NaN, *not a number*. With `need_weights=False`,
# on a CPU, it gives the bias of the output. In self-attention (query, key and value the same tensor) there is a third
# answer: in evaluation without gradients ([a row that allows nothing](masks.py#when-a-row-allows-nothing)), with a
# boolean mask and an even number of heads, the row is NaN again. The package gives the bias. The other
# four<!--= inverted.isfinite().all(dim=-1)[0].sum() --> queries see only the future, and their numbers look like any
# others. ([Masks](masks.py) has the whole table.) A floating mask, in both layers, is *added* to the scores.

# %% tags=["check"]
additive = masks.additive_from_allowed(allowed)  # zero, or minus infinity
added = [
    layer(query, key, value, attn_mask=additive)[0]
    for layer in (theirs, ours)
]
of_output = theirs.out_proj.bias.expand(batch, -1)
ours_blind, _ = ours(query, key, value, attn_mask=allowed)
torch.manual_seed(4)
even = nn.MultiheadAttention(embed_dim, 4, batch_first=True)
own = {"attn_mask": masks.causal(queries), "need_weights": False}
crossing = {"attn_mask": allowed, "need_weights": False}
unasked, _ = theirs(query, key, value, **crossing)
even, odd = even.eval(), deepcopy(theirs).eval()
with torch.no_grad():
    of_itself, of_itself_odd = (
        layer(query, query, query, **own)[0] for layer in (even, odd)
    )
    crossed, unasked_eval = (
        layer(query, key, value, **crossing)[0] for layer in (even, odd)
    )

# %% tags=["claims"]
assert (
    gap(other_order(*[key.transpose(0, 1)] * 3)[0].transpose(0, 1), expected)
    < 1e-5
    < gap(mixed, expected)
), (
    "the first axis counts the sequences of the batch; by default PyTorch takes it for the tokens"
)
assert as_made < 1e-5 < 1 < filled, (
    "Code that forgets them agrees with a new layer"
)
assert (
    gap(rolled_weights, weights.roll(1, dims=1)) < 1e-5
    and gap(rolled_context, rolled_weights @ v) < 1e-5
), "Each head then averages the values of its neighbor"
assert (
    gap(rolled_average, their_average) < 1e-6
    and (rolled_weights - their_weights).abs().amax((0, 2, 3)).min() > 0.1
    and gap(rolled_context, context) > 0.1
), (
    "The average of the weights stays what it was, but every head's weights change, and so does the context"
)
assert allowed[-1].all() and inverted[:, -1].isnan().all(), (
    "The inverted mask leaves the last query no key. PyTorch makes that row NaN"
)
assert (
    max(gap(each[:, -1], of_output) for each in (unasked, unasked_eval))
    < 1e-6
), "it gives the bias of the output"
assert (
    of_itself[:, -1].isnan().all()
    and of_itself_odd[:, -1].isfinite().all()
    and crossed[:, -1].isfinite().all()
), "with a boolean mask and an even number of heads, the row is NaN again"
assert gap(ours_blind[:, -1], of_output) < 1e-6, "The package gives the bias"
assert max(gap(each, their_output) for each in added) < 1e-5, (
    "A floating mask, in both layers, is added to the scores"
)

# %% [markdown]
# ## One broken, one right
#
# The merge is easy to get wrong and hard to see. The context has the axes (batch, heads, queries, head_dim). Joining
# the last three as they lie also gives the right shape, (batch, queries, embed_dim):


# %%
def broken_merge(context):
    batch, num_heads, tokens, head_dim = context.shape
    return context.reshape(batch, tokens, num_heads * head_dim)


broken, seen = multi_head(query, key, value, allowed, state, broken_merge)
right, wrong = gap(output, their_output), gap(broken, their_output)
print(f"right: {right:.1g}   broken: {wrong:.2f}")

# %% [markdown]
# In the right merge, feature $h \cdot d_k + j$ of a token is feature $j$ of head $h$, both counted from zero, of the
# *same* token. With $O$ for the context and $M$ for the merged one,
#
# $$M_{t,\, h \cdot d_k + j} = O_{h, t, j} \qquad h = 0, \dots, H - 1 \tag{8.3}$$
# <!-- where: O = random("H n d_k"); M = merge(O[None])[0] -->
#
# If the context is merged as it lies, each token's row is filled from several tokens. The shapes are right, every
# head's weights are right, and the output is wrong for every query:

# %% tags=["hide-input"]
#| caption: How far the output is off if it is merged without transposing: a column for each query and a row for each
#|   output feature. Every column is wrong.
off = (broken - their_output)[0].abs()
plot.grid(off.mT, "difference", axes=("output features", "queries"))

# %% [markdown]
# The check without a reference catches it too:

# %% tags=["hide-input"]
#| caption: Which token moves which output? Merged right, the mask comes out; merged without transposing, the second
#|   query is moved by every key.
reached = reach(broken_merge)
whose = {"merged right": reach(merge), "without transposing": reached}
plot.grid(whose, queries=range(queries), keys=range(keys))

# %% [markdown]
# The first query may see three keys, and the broken layer shows it five. The second may see four and gets all seven:
# the future leaks in through the merge, behind a mask that is right. With one head, or with one token, both merges are
# the same, so a test of that size cannot tell them apart.

# %% tags=["claims"]
assert (
    broken.shape == output.shape
    and gap(seen, weights) < 1e-6
    and ((broken - their_output).abs() > 0.1).any(-1).all()
), (
    "The shapes are right, every head's weights are right, and the output is wrong for every query"
)
assert (off > 0.1).any(dim=1).all(), "Every column is wrong"
assert torch.equal(reach(merge), allowed) and reached[1].all(), (
    "Merged right, the mask comes out; merged without transposing, the second query is moved by every key"
)
assert [each.sum(1)[:2].tolist() for each in (allowed, reached)] == [
    [3, 4],
    [5, 7],
], (
    "The first query may see three keys, and the broken layer shows it five. The second may see four and gets all seven"
)
assert all(
    merge(each).equal(broken_merge(each))
    for each in (context[:, :1], context[:, :, :1])
), (
    "With one head, or with one token, both merges are the same"
)  # to the bit: both only move numbers

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("multi-head", answer))`.
#
# **The whole layer** (`multi-head`). Write `layer(query, key, value, state, num_heads)` without a mask, where `state`
# is the `state_dict` of an `nn.MultiheadAttention` with `batch_first=True`. Return the output.
#
# ??? question "Hint"
#
#     Project with `F.linear`, split, attend, merge, project. A state has two biases, one of them packed.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def layer(query, key, value, state, num_heads):
    w, b = state["in_proj_weight"].chunk(3), state["in_proj_bias"].chunk(3)
    projected = map(F.linear, (query, key, value), w, b)
    q, k, v = (split_heads(x, num_heads) for x in projected)
    merged = merge_heads(F.scaled_dot_product_attention(q, k, v))
    return F.linear(merged, state["out_proj.weight"], state["out_proj.bias"])


check("multi-head", layer)

# %% [markdown]
# **Which bias is never missed?** (`bias-never-missed`) Leave out one of `b_q`, `b_k`, `b_v` and the output's `b_o` at a
# time, and measure the output. One of them makes no difference to any output, so no comparison of outputs notices that
# it is gone. Answer with its name.
#
# ??? question "Hint"
#
#     Which bias adds the same number to all scores of a query?

# %% tags=["solution"]
missed = {}
for number, name in enumerate(["b_q", "b_k", "b_v", "b_o"]):
    fewer = {n: p.detach().clone() for n, p in state.items()}
    parts = *fewer["in_proj_bias"].chunk(3), fewer["out_proj.bias"]
    parts[number].zero_()
    missed[name] = gap(
        multi_head(query, key, value, allowed, fewer)[0], output
    )

print({name: f"{difference:.1g}" for name, difference in missed.items()})
check("bias-never-missed", min(missed, key=missed.get))

# %% [markdown]
# ??? success "Why"
#
#     With the key bias, all scores of a query grow by the same number, the query's dot product with the bias. A softmax
#     does not change when the same number is added to a whole row. So no output depends on this bias, and its gradient
#     is zero but for rounding. Plain gradient descent therefore leaves the bias where it is. Adam divides a gradient by
#     its own size, rounding included, and so can make the bias wander, without any effect on the output.

# %% [markdown]
# **Dropout** (`weights-dropout`). Write `attend(q, k, v, allowed, p)`, which drops weights with probability `p` and
# returns context and weights. In training, under the same seed, it can agree with PyTorch weight for weight.
#
# ??? question "Hint"
#
#     `F.dropout`, after the softmax.


# %% tags=["solution"]
def attend_with_dropout(q, k, v, allowed, p):
    _, weights = attend(q, k, v, allowed)
    weights = F.dropout(weights, p)
    return weights @ v, weights


torch.manual_seed(9)
_, mine = attend_with_dropout(q, k, v, allowed, p=0.5)
torch.testing.assert_close(mine, dropped, atol=1e-5, rtol=0)
check("weights-dropout", attend_with_dropout)

# %% tags=["remove-cell"]
assert check("multi-head", layer)
assert check("bias-never-missed", min(missed, key=missed.get))
assert check("weights-dropout", attend_with_dropout)

# %% tags=["claims"]
assert missed["b_k"] < 1e-5 < sorted(missed.values())[1], (
    "So no output depends on this bias"
)

# %% [markdown]
# ## What to read next
#
# - [Where are my weights?](layouts.py): the same matrices as other code keeps them, and how to load them.
# - [The weight bypass](bypass.py): what this layer computes once its matrices are identities.
# - [Notation and glossary](../notation.md): every symbol, axis and word of this site.
# - [API reference](../reference/index.md): `heads`, `layouts`, `masks` and `trace`, with every option.
#
# ## References
#
# <!--~ 2017, 3.2.1, 1, 3.2.2, 3.2.3: years, sections and equations of papers -->
# - Ashish Vaswani et al. (2017), *Attention Is All You Need*. Section 3.2.1, equation 1: scaled dot-product attention.
#   Section 3.2.2: multi-head attention. Section 3.2.3: the causal mask.
