# %% [markdown]
# # The weight bypass
#
# **`nn.MultiheadAttention` adds four<!--= len(blocks(module)) --> matrices and their biases to attention. To switch
# them off, make all four the identity and the biases zero: with one head, the module then returns plain
# self-attention.** `unmasked.bypass_(module)` does it in one line. The identity has ones on its diagonal and zeros
# elsewhere, so multiplying by it changes nothing:

# %% tags=["imports"]
import math

import torch
from torch import nn

from unmasked import bypass_, bypassed, is_bypassed, plot, self_attention
from unmasked.heads import merge_heads, split_heads
from unmasked.kernels import takes_fast_path
from unmasked_lessons.embeddings import ship_vectors
from unmasked_lessons.experiments import bypass as experiments

# %% tags=["hide-input"]
#| caption: The four<!--= len(rows) / 4 --> matrices of a module whose tokens have four numbers each. As initialized,
#|   the numbers are scattered around zero. As `bypass_` leaves them, each of the matrices has ones on its diagonal and
#|   zeros elsewhere.
torch.manual_seed(3)
panels = experiments.before_and_after(
    nn.MultiheadAttention(4, 1, batch_first=True)
)
fresh = panels["as initialized"]
names = ["query", "key", "value", "output"]
rows = [f"{name} {row}" for name in names for row in range(4)]
plot.grid(panels, rows=rows, axes=("output features", "input features"))

# %% [markdown]
# Attention alone has nothing to learn: it compares the tokens of a sequence, and averages them. PyTorch's module
# multiplies its input by three learned matrices before it does so, and the result by one more afterwards. A *bias* is a
# vector that is added after each multiplication. With all of these switched off, you can tell what in a result is
# attention and what was learned: a bypassed module differs from attention alone only by rounding. The bypass is exact
# with one head, zero biases, frozen parameters, no dropout and nothing appended. [What the bypass
# needs](#what-the-bypass-needs) measures the damage when one of these is missing.
#
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ fresh.device.type.upper() }}.* (*Weights* here
# are the numbers of the average; what is learned is called matrices and biases.)
#
# **You should know** some Python, and what a layer, a gradient and a training step are; the
# [glossary](../notation.md#glossary) explains the other terms. **You will know** what the module computes, how to
# switch its matrices off and why that works, what breaks it, and how a fresh module is initialized.

# %% tags=["claims"]
assert 0.3 < (fresh > 0).float().mean() < 0.7 and len(fresh.unique()) > 60, (
    "As initialized, the numbers are scattered around zero"
)

# %% [markdown]
# ## Attention without learned matrices
#
# (If you come from [attention with a pencil](../learn/attention.py#three-words-and-a-pencil), you know these steps: go
# on to [what the module adds](#what-the-module-adds).)
#
# A sequence is a matrix with one row for each *token*: a word, or a piece of one. The row is the token's *embedding*,
# the list of numbers that stands for it. Below are three made-up tokens of four numbers each. Attention replaces every
# row by an average of all rows, in three steps.

# %%
x = torch.tensor(
    [
        [1.0, 0.0, 0.0, 1.0],
        [0.0, 1.5, 1.0, 1.0],
        [0.0, 1.0, 1.0, 1.0],
    ]
)

scores = x @ x.mT / math.sqrt(x.size(-1))
weights = scores.softmax(dim=-1)
context = weights @ x

# %% tags=["hide-input"]
#| caption: The scores and the weights of the three tokens. Each row of weights sums to one.
plot.grid({"scores": scores, "weights": weights}, queries=["a", "b", "c"])

# %% [markdown]
# **Scores.** A *dot product* compares two tokens: multiply their rows entry by entry, and add up. `x @ x.mT` holds the
# dot product of every token with every token (`.mT` turns rows into columns). Each is divided by the square root of the
# row's length, here 2<!--= math.sqrt(x.size(1)) -->. The first token's dot product with itself is
# 2<!--= (x[0] @ x[0]).item() -->, so its score is 1<!--= scores[0, 0].item() -->; with either of the others the dot
# product is 1<!--= (x[0] @ x[1]).item() if torch.isclose(scores[0, 1], scores[0, 2]) else None --> and the score
# 0.5<!--= scores[0, 1].item() -->.
#
# **Weights.** The *softmax* turns a row of scores into positive numbers that sum to one: it raises *e* to each score,
# and divides by the sum of the results. In the first row these are 2.718<!--= scores[0, 0].exp().item() --> and twice
# 1.649<!--= scores[0, 1].exp().item() -->. Their sum is 6.016<!--= scores[0].exp().sum().item() -->, so the token keeps
# 45%<!--= weights[0, 0].item() --> of itself and takes 27%<!--= weights[0, 1].item() --> of each other.
#
# **Context.** The tokens are averaged by these weights. All tokens end in 1<!--= x[0, 3].item() -->, so every average
# does too. With $X$ for the matrix of tokens and $d$ for the length of its rows, the three steps are
#
# $$\operatorname{SelfAttention}(X) = \operatorname{softmax}\left(\frac{X X^\top}{\sqrt{d}}\right) X \tag{3.1}$$
# <!-- where: X = random("n d"); SelfAttention = lambda tokens: self_attention(tokens).context -->
#
# and the package's `self_attention` computes the same.

# %% tags=["check"]
plain = self_attention(x)

# %% tags=["claims"]
assert torch.allclose(weights.sum(-1), torch.ones(3), atol=1e-6), (
    "Each row of weights sums to one"
)
assert (weights > 0).all() and torch.allclose(
    weights.sum(-1), torch.ones(3), atol=1e-6
), "The softmax turns a row of scores into positive numbers that sum to one"
assert torch.allclose(context[:, 3], torch.ones(3), atol=1e-6), (
    "All tokens end in 1, so every average does too"
)
assert torch.allclose(plain.context, context, atol=1e-6) and torch.allclose(
    plain.weights, weights, atol=1e-6
), "and the package's self_attention computes the same"

# %% [markdown]
# ## What the module adds
#
# PyTorch's module takes the tokens three times: as *queries* (what looks), as *keys* (what is looked at) and as
# *values* (what is averaged). In *self*-attention all three are the same sequence. `embed_dim` is the length of a row,
# whose numbers are called *features*, and one *head* compares whole rows.

# %%
torch.manual_seed(3)
module = nn.MultiheadAttention(embed_dim=4, num_heads=1, batch_first=True)
output, learned = module(x, x, x)

for name, parameter in module.named_parameters():
    print(f"{name:16}{tuple(parameter.shape)}")

# %% [markdown] tags=["check"]
# Equation (3.2) is held against modules whose biases are not zero, because zeros hide mistakes. `as_if_trained` makes
# them, and `blocks` takes the packed matrices apart.


# %% tags=["check"]
def blocks(module):
    matrices = *module.in_proj_weight.chunk(3), module.out_proj.weight
    return dict(
        zip(["query", "key", "value", "output"], matrices, strict=True)
    )


def as_if_trained(embed_dim, **options):
    module = nn.MultiheadAttention(embed_dim, 1, batch_first=True, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=embed_dim**-0.5)
    return module


# %% [markdown]
# The weights that it returns differ from those above by up to 0.29<!--= (learned - weights).abs().max().item() -->, and
# the list of parameters shows why.
#
# `in_proj_weight` holds three square matrices, one below the other, for query, key and value. They are *packed*, so
# that one multiplication applies them all. `out_proj` holds the fourth, which is applied to the averages. With $W$ for
# the matrices and $b$ for the biases, the module computes
#
# $$\begin{aligned}
# Q &= X W_Q^\top + b_Q, \\ K &= X W_K^\top + b_K, \\ V &= X W_V^\top + b_V, \\
# \operatorname{Module}(X) &= \operatorname{softmax}\left(\dfrac{Q K^\top}{\sqrt{d}}\right) V \, W_O^\top + b_O
# \end{aligned} \tag{3.2}$$
# <!-- where:
# X = random("n d"); trained = as_if_trained(d, dtype=torch.float64)
# Module = lambda tokens: trained(tokens, tokens, tokens)[0]
# W_Q, W_K, W_V, W_O = blocks(trained).values()
# b_Q, b_K, b_V = trained.in_proj_bias.chunk(3); b_O = trained.out_proj.bias
# Q, K, V = torch.nn.functional.linear(X, trained.in_proj_weight, trained.in_proj_bias).chunk(3, dim=-1)
# -->
#
# The matrices appear transposed because PyTorch stores them so: one row for each number that comes *out*. Compare (3.2)
# with (3.1): they agree when every $W$ is the identity, and every $b$ is zero.

# %% tags=["claims"]
assert nn.MultiheadAttention(
    4, 1, kdim=2, device="meta"
).k_proj_weight.shape == (4, 2), "one row for each number that comes out"

# %% [markdown]
# ## Switch it off by hand
#
# `copy_` writes numbers into a parameter that exists, and `torch.no_grad()` keeps that out of the gradients. The
# identity goes into `in_proj_weight` three times, one below the other. Then the parameters are *frozen*: they get no
# more gradients. A gradient left over from an earlier step is thrown away, because an optimizer would still use it.
# That is the weight bypass, here on a matrix `x` of three rows and four columns.


# %%
def set_identity(module):
    identity = torch.eye(module.embed_dim)
    with torch.no_grad():
        module.in_proj_weight.copy_(identity.repeat(3, 1))
        module.out_proj.weight.copy_(identity)


def switch_off(module):
    set_identity(module)
    with torch.no_grad():
        module.in_proj_bias.zero_()
        module.out_proj.bias.zero_()
    module.zero_grad(set_to_none=True)
    return module.requires_grad_(False)


output, weights = switch_off(module)(x, x, x)
print("output", output, "weights", weights, sep="\n")

# %% [markdown]
# The weights are those of the figure above, and each row of the output is the average that they make of the tokens. A
# difference in the last digits would be rounding: a `float32` keeps about
# seven<!--= round(-math.log10(torch.finfo(torch.float32).eps)) --> digits, and the next number after one is larger by
# 1.2e-07<!--= torch.finfo(torch.float32).eps -->. No difference is more than a few such steps.

# %% [markdown] tags=["check"]
# This holds with the weights returned, without them (PyTorch then runs other code, a *fused* kernel where it can), and
# for a batch.


# %% tags=["check"]
def apart(one, other):
    return (one - other).abs().max().item()


gaps = [
    apart(weights, plain.weights),
    apart(output, plain.context),
    apart(module(x, x, x, need_weights=False)[0], plain.context),
    apart(
        module(x[None], x[None], x[None])[0], self_attention(x[None]).context
    ),
]

# %% tags=["claims"]
assert (
    apart(weights, plain.weights) < 1e-5
    and apart(output, plain.weights @ x) < 1e-5
), (
    "The weights are those of the figure above, and each row of the output is the average that they make of the tokens"
)
assert max(gaps) < 4 * torch.finfo(torch.float32).eps, (
    "No difference is more than a few such steps"
)

# %% [markdown]
# ## The same in one line
#
# `bypass_` is this recipe in one call. The underscore at its end says, as in PyTorch, that it changes what it is given.
# `is_bypassed` says whether a module is bypassed and, if it is not, why:

# %%
torch.manual_seed(4)
another = nn.MultiheadAttention(embed_dim=4, num_heads=1, batch_first=True)
print(*is_bypassed(another).reasons, sep="\n")

bypass_(another)
print(is_bypassed(another))

# %% [markdown] tags=["check"]
# A fresh module's biases are zero, and a recipe that forgot them would seem to work. So the recipes are compared on
# modules whose biases are not zero.

# %% tags=["check"]
torch.manual_seed(4)
by_hand = switch_off(as_if_trained(4))
by_package = bypass_(as_if_trained(4))

# %% tags=["claims"]
assert all(
    apart(hand, package) < 1e-6
    for hand, package in zip(by_hand.parameters(), by_package.parameters())
), "bypass_ is this recipe in one call"

# %% [markdown]
# ## The word *ship*
#
# In "I must go back to my ship and to my crew", which words does *ship* take from?
#
# The vectors come with the package and have 50<!--= tokens.size(1) --> numbers each; they are [GloVe's
# vectors](../learn/attention.py#words-as-vectors).

# %%
sentence = "I must go back to my ship and to my crew"
words = sentence.lower().split()
tokens = ship_vectors().lookup(words)
ship = words.index("ship")

torch.manual_seed(5)
layer = nn.MultiheadAttention(50, 1, batch_first=True)
before = layer(tokens, tokens, tokens)[1][ship].detach()
after = bypass_(layer)(tokens, tokens, tokens)[1][ship]

# %% tags=["hide-input"]
#| caption: What *ship* takes from each word. With the matrices of a fresh module, all words get about the same. With
#|   the bypass, more than half stays with *ship*, and *crew* comes second.
rows = torch.stack([before, after])
plot.grid(
    rows.mT, "weights", rows=words, columns=["fresh module", "bypassed"]
)

# %% [markdown]
# As initialized, *ship* keeps {{ before[ship] :.0%}} of itself, and takes nearly equal parts from the other words.
# Bypassed, it keeps 55%<!--= after[ship] --> and takes 13%<!--= after[words.index("crew")] --> from *crew*, more than
# from any other word. No matrix learned that; it was in the embeddings all along. The embedding of *ship* began
# [1.5213, 0.1052, 0.3816, -0.5080]<!--= tokens[ship, :4].tolist() -->. Now it begins [1.0387, 0.1033, 0.3426,
# -0.4320]<!--= of_ship[:4].tolist() -->: the word has become a mixture.

# %% tags=["check"]
plain = self_attention(tokens)
output, weights = layer(tokens, tokens, tokens)
of_ship = output[ship]

# %% tags=["claims"]
assert (
    layer.num_heads == 1
    and apart(weights, plain.weights) < 1e-5
    and apart(output, plain.context) < 1e-5
), (
    "the identity and the biases zero: with one head, the module then returns plain self-attention"
)
assert before.max() < 2 * before.min(), (
    "With the matrices of a fresh module, all words get about the same"
)
assert after[ship] > 0.5 and after.argsort()[-2] == words.index("crew"), (
    "more than half stays with ship, and crew comes second"
)
assert before.max() < 2 * before.min(), (
    "and takes nearly equal parts from the other words"
)


# %% [markdown]
# ## What the bypass needs
#
# Each row of this table but the first breaks one condition. The columns show what `is_bypassed` says first, how much
# *ship* keeps of itself, and how far the output is from plain self-attention.
#
# {{ plot.table(["Broken", "`is_bypassed` says", "*ship* keeps", "Off by"], rows_of_conditions).markdown() }}
#
# The biases hardly move *ship*'s weight, from {{ conditions["nothing"][0] :.0%}} to
# {{ conditions["biases kept"][0] :.0%}}, but they move the output by {{ conditions["biases kept"][1] :.2f}}. Weights
# that look right prove little, so compare outputs.
#
# - **One head.** Each of [several heads](#with-several-heads) compares and averages a slice of the features, and no
#   identity can undo that.
# - **Zero biases.** They start at zero, so a bypass that forgets them works on a fresh module, and fails once they have
#   moved. (Some biases change nothing: a bias of the keys alone, which raises all scores of a query by the same amount,
#   and a bias of the output that takes back the bias of the values.)
# - **Frozen.** To an optimizer the identity is a starting point like any other: left trainable, it is gone after one
#   step (of *Adam*, a common optimizer). `requires_grad_(False)` alone does not save it. If a gradient is left over
#   from an earlier step, the optimizer moves the frozen parameter all the same. `bypass_` clears the gradients, and the
#   same step then changes nothing.
# - **Dropout off.** In training mode, `dropout` drops some weights at random and enlarges the others. `.eval()`
#   switches to evaluation mode, which drops none.
# - **Nothing appended.** `add_zero_attn` appends a token of zeros to keys and values, and `add_bias_kv` appends a
#   learned one. Neither was in the sequence, and both take their share of the weights.
# - **Packed matrices.** If keys or values have a length of their own (`kdim`, `vdim`), the matrices are not packed. The
#   one for that length is not square either, so no identity fits.
#
# `bypass_` refuses a module that it cannot bypass. This call raises a `ValueError`, *{{ refused }}*:

# %% tags=["hide-output"]
#| raises: ValueError: module cannot be bypassed
torch.manual_seed(11)
bypass_(nn.MultiheadAttention(50, 1, kdim=7))

# %% [markdown] tags=["check"]
# `broken` makes a module of each kind. Below them are modules that a broken condition does not harm.

# %% tags=["check"]
torch.manual_seed(13)
conditions, rows_of_conditions = {}, []
modules = experiments.broken(tokens)
for name, broken in modules.items():
    attended, shares = broken(tokens, tokens, tokens)
    keeps, off = shares[ship, ship].item(), apart(attended, plain.context)
    conditions[name] = [keeps, off]
    told = [*is_bypassed(broken).reasons, str(is_bypassed(broken))][0]
    rows_of_conditions.append([name, told, f"{keeps:.0%}", f"{off:.2f}"])

# %% tags=["check"]
torch.manual_seed(7)
dropped = modules["dropout in training"](tokens, tokens, tokens)[1]
new, of_keys, of_values = (
    nn.MultiheadAttention(50, 1, batch_first=True).requires_grad_(False)
    for _ in range(3)
)
for each in (new, of_keys, of_values):
    set_identity(each)
of_keys.in_proj_bias[50:100] = torch.randn(50)
of_values.in_proj_bias[100:] = torch.randn(50)
of_values.out_proj.bias.copy_(-of_values.in_proj_bias[100:])
harmless = {
    each: apart(each(tokens, tokens, tokens)[0], plain.context)
    for each in (new, of_keys, of_values)
}
try:
    bypass_(nn.MultiheadAttention(50, 1, kdim=7))
except ValueError as error:
    refused = str(error)
else:
    raise AssertionError("it was bypassed")

# %% tags=["claims"]
assert conditions["nothing"][1] < 1e-5 and all(
    off > 0.02 for name, (_, off) in conditions.items() if name != "nothing"
), (
    "The bypass is exact with one head, zero biases, frozen parameters, no dropout and nothing appended"
)
assert abs(conditions["biases kept"][0] - conditions["nothing"][0]) < 0.05, (
    "The biases hardly move ship's weight"
)
assert harmless[new] < 1e-5 and conditions["biases kept"][1] > 0.02, (
    "so a bypass that forgets them works on a fresh module, and fails once they have moved"
)
assert harmless[of_keys] < 1e-5 and harmless[of_values] < 1e-5, (
    "a bias of the keys alone, which raises all scores of a query by the same amount, and a bias of the output"
)
assert conditions["one step of Adam"][1] > 0.02, "it is gone after one step"
assert conditions["frozen with a gradient"][1] > 0.02, (
    "If a gradient is left over from an earlier step, the optimizer moves the frozen parameter all the same"
)
assert (dropped == 0).any() and (dropped > plain.weights)[
    dropped > 0
].all(), (
    "In training mode, dropout drops some weights at random and enlarges the others"
)

# %% [markdown]
# ## With several heads
#
# With $H$ heads, the features are cut into $H$ slices of length $d_k$, and a bypassed module does (3.1) with each of
# them. With $X_h$ for the slice of head $h$ and $O_h$ for its context, which is that slice of the output,
#
# $$O_h = \operatorname{softmax}\left(\frac{X_h X_h^\top}{\sqrt{d_k}}\right) X_h \tag{3.3}$$
# <!-- where:
# tokens = random("n H*d_k"); many = bypass_(torch.nn.MultiheadAttention(H * d_k, H, dtype=torch.float64))
# X = split_heads(tokens, H); O = split_heads(many(tokens, tokens, tokens)[0], H)
# -->
#
# The root is that of the slice's length, not of the row's:

# %%
torch.manual_seed(12)
batch = torch.randn(4, 5, 6)  # batch tokens embed_dim
heads = bypass_(nn.MultiheadAttention(6, num_heads=3, batch_first=True))

output, mean_weights = heads(batch, batch, batch)
by_slice = self_attention(split_heads(batch, 3))
expected = merge_heads(by_slice.context)

# %% [markdown]
# `output` equals `expected`. The weights that the module returns are the mean over the heads. No head used them, and
# averaging the tokens with them does not give the output.
#
# In evaluation mode, when nothing is trained, PyTorch has a shortcut: one function instead of its usual steps. Only an
# even number of heads takes it, and the result is the same.

# %% tags=["check"]
shortcut = {}
for count in (1, 2, 3):
    torch.manual_seed(count)
    still = bypass_(nn.MultiheadAttention(6, count, batch_first=True)).eval()
    by_slice_of = self_attention(split_heads(batch, count)).context
    shortcut[count] = (
        bool(takes_fast_path(still, batch, batch, batch)),
        apart(still(batch, batch, batch)[0], merge_heads(by_slice_of)),
    )

# %% tags=["claims"]
assert (
    apart(output, expected) < 1e-5
    and apart(mean_weights, by_slice.weights.mean(1)) < 1e-5
), (
    "output equals expected. The weights that the module returns are the mean over the heads"
)
assert (
    min(apart(mean_weights, used) for used in by_slice.weights.unbind(1))
    > 0.01
    and apart(mean_weights @ batch, expected) > 0.1
), (
    "No head used them, and averaging the tokens with them does not give the output"
)
assert all(
    taken == (count % 2 == 0) and off < 1e-5
    for count, (taken, off) in shortcut.items()
), "Only an even number of heads takes it, and the result is the same"

# %% [markdown]
# ## Other matrices that do nothing
#
# The identity is not the only such matrix. A matrix $R$ is *orthogonal* if it turns or mirrors vectors and keeps
# lengths and angles; its transpose undoes it. If query and key share one, the scores do not change:
#
# $$\frac{(X R^\top)(X R^\top)^\top}{\sqrt{d}} = \frac{X R^\top R \, X^\top}{\sqrt{d}}
# = \frac{X X^\top}{\sqrt{d}} \tag{3.4}$$
# <!-- where: X = random("n d"); R = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64)).Q -->

# %%
torch.manual_seed(13)
turned = bypass_(nn.MultiheadAttention(50, 1, batch_first=True))
orthogonal = torch.linalg.qr(torch.randn(50, 50)).Q
turned.in_proj_weight[:100] = orthogonal.repeat(2, 1)  # query and key
both_turned = turned(tokens, tokens, tokens)[0]

turned.in_proj_weight[50:100] = torch.eye(50)  # the key's turn undone
queries_turned = turned(tokens, tokens, tokens)[0]

# %% [markdown]
# `both_turned` is the output of plain self-attention. If only the queries turn, they are compared with keys that point
# elsewhere, and the outputs differ by up to {{ apart(queries_turned, plain.context) :.1f}}. Query and key need not even
# share a matrix: the query can have any matrix that has an inverse, if the key has the transpose of this inverse.

# %% tags=["check"]
torch.manual_seed(15)
shear = torch.eye(50) + 0.1 * torch.randn(50, 50).triu(1)
turned.in_proj_weight[:50] = shear
turned.in_proj_weight[50:100] = torch.linalg.inv(shear).T
sheared = turned(tokens, tokens, tokens)[0]

# %% tags=["claims"]
assert apart(both_turned, plain.context) < 1e-5, (
    "both_turned is the output of plain self-attention"
)
assert (
    apart(sheared, plain.context)
    < 1e-4
    < apart(shear @ shear.T, torch.eye(50))
), (
    "the query can have any matrix that has an inverse, if the key has the transpose of this inverse"
)

# %% [markdown]
# ## Switch it off for a while
#
# `bypassed` switches a module off for one block of code, for example to look into a trained model. Then it puts
# everything back, matrices, biases and what was trainable, even if the block fails. The parameters remain the same
# objects, so an optimizer still holds them.

# %%
torch.manual_seed(14)
trained = nn.MultiheadAttention(50, 1, batch_first=True)
nn.init.normal_(trained.in_proj_bias)  # as if it had been trained

with bypassed(trained):
    while_off, _ = trained(tokens, tokens, tokens)
on_again, _ = trained(tokens, tokens, tokens)

# %% [markdown]
# `while_off` is plain self-attention, and `on_again` is not.

# %% tags=["claims"]
assert (
    apart(while_off, plain.context) < 1e-5
    and apart(on_again, plain.context) > 0.1
), "while_off is plain self-attention, and on_again is not"

# %% [markdown]
# ## Where fresh matrices come from
#
# A fresh module draws its matrices at random, evenly between a bound and its negative. For `in_proj_weight` the bound
# is *Xavier*'s,
# $\sqrt{6 / (\text{rows} + \text{columns})}$<!-- unchecked: the draw itself is held against it below -->. Packing
# matters here: the draw sees one matrix with three times as many rows as columns. `out_proj` is drawn as `nn.Linear`,
# PyTorch's layer of one matrix, draws its own, and the biases are zero. The same draws, made one by one, give the same
# module:

# %%
torch.manual_seed(15)
wide = nn.MultiheadAttention(embed_dim=512, num_heads=8)

torch.manual_seed(15)
linear = nn.Linear(512, 512)
packed = nn.init.xavier_uniform_(torch.empty(3 * 512, 512))

torch.testing.assert_close(wide.out_proj.weight, linear.weight)
torch.testing.assert_close(wide.in_proj_weight, packed)

# %% [markdown]
# With an `embed_dim` of 512<!--= wide.embed_dim -->, packing makes the bound 0.0541<!--= bounds[3 * 512] -->, where
# square matrices would have 0.0765<!--= bounds[512] -->. To start a module of your own the way PyTorch's starts, draw
# the packed matrix and cut it into three.

# %% tags=["check"]
bounds = {rows: math.sqrt(6 / (rows + 512)) for rows in (3 * 512, 512)}

# %% tags=["claims"]
assert all(
    0.999 < end / bounds[3 * 512] < 1.001
    for end in (wide.in_proj_weight.max(), -wide.in_proj_weight.min())
), "evenly between a bound and its negative"
assert (
    apart(wide.in_proj_weight, packed) < 1e-6
    and apart(wide.out_proj.weight, linear.weight) < 1e-6
), "The same draws, made one by one, give the same module"

# %% [markdown]
# ## A mistake with the right shape
#
# Without [`batch_first=True`](../museum/heads.py#batch-first-forgotten), the module reads its input as (tokens, batch,
# features). A batch of one sequence with three tokens is then three sequences with one token each, and a token that is
# alone gives all its weight to itself. Nothing complains, because the output has the shape that it should have.

# %%
torch.manual_seed(16)
right = bypass_(nn.MultiheadAttention(4, 1, batch_first=True))
wrong = bypass_(nn.MultiheadAttention(4, 1))

one = x[None]  # a batch of one sequence: batch tokens embed_dim
for candidate in (right, wrong):
    output, weights = candidate(one, one, one)
    print("output", tuple(output.shape), "weights", tuple(weights.shape))

# %% [markdown]
# The wrong output *is* the input. Its rows of weights sum to one, as they should: every weight is one. To find the
# mistake, change one token, and see which outputs notice.


# %%
def who_notices(module, position=2):
    changed = one.clone()
    changed[:, position] += 1
    before = module(one, one, one)[0]
    moved = (module(changed, changed, changed)[0] - before).abs()
    return (moved > 1e-4).any(-1)[0].tolist()  # by more than rounding


print(who_notices(right), who_notices(wrong))

# %% tags=["claims"]
assert apart(output, one) < 1e-6 and (weights - 1).abs().max() < 1e-6, (
    "The wrong output is the input. Its rows of weights sum to one, as they should: every weight is one"
)

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("undo-the-root", answer))`.
#
# Each asks for a module: begin with `bypass_(nn.MultiheadAttention(50, 1, batch_first=True))`.
#
# **Undo the root** (`undo-the-root`). Change one of its four matrices so that its weights become the softmax of $X
# X^\top$, without the division by $\sqrt{d}$. How much does *ship* then keep of itself?
#
# ??? question "Hint"
#
#     `module.in_proj_weight` has the query's rows first. What multiplies a score if it multiplies the query?

# %% tags=["solution"]
from unmasked_lessons.exercises import check

torch.manual_seed(17)
unscaled = bypass_(nn.MultiheadAttention(50, 1, batch_first=True))
unscaled.in_proj_weight[:50] *= math.sqrt(50)  # the query's block

weights = unscaled(tokens, tokens, tokens)[1]
torch.testing.assert_close(weights, self_attention(tokens, scale=1.0).weights)
print(f"ship keeps {weights[ship, ship].item():.3%} of itself")
check("undo-the-root", unscaled)

# %% [markdown]
# **A plain average** (`plain-average`). Change a bypassed module so that every token gets the same context, the mean of
# all tokens. One matrix is enough.
#
# ??? question "Hint"
#
#     Equal scores get equal weights. Which matrix can make all scores equal?

# %% tags=["solution"]
torch.manual_seed(18)
even = bypass_(nn.MultiheadAttention(50, 1, batch_first=True))
even.in_proj_weight[:50] = 0  # the query's block

output, weights = even(tokens, tokens, tokens)
torch.testing.assert_close(weights, torch.full((11, 11), 1 / 11))
torch.testing.assert_close(output, tokens.mean(0).expand(11, 50))
check("plain-average", even)

# %% [markdown]
# ??? success "Why it works"
#
#     Queries of zeros have the dot product zero with every key, and equal scores get equal weights. Keys of zeros would
#     do as well.
#
# **Hide a matrix** (`hidden-matrix`). Put a random matrix where the value's identity was, and repair the output with
# `out_proj`. Why do the attention weights not change?
#
# ??? question "Hint"
#
#     Multiplying every value by a matrix and then averaging gives the same as averaging first and multiplying
#     afterwards. So what undoes the matrix can wait until after the average: its *inverse*, `matrix.inverse()`.

# %% tags=["solution"]
torch.manual_seed(19)
hidden = bypass_(nn.MultiheadAttention(50, 1, batch_first=True)).double()
matrix = torch.randn(50, 50, dtype=torch.float64)
hidden.in_proj_weight[100:] = matrix
hidden.out_proj.weight.copy_(matrix.inverse())

double = tokens.double()
output, weights = hidden(double, double, double)
torch.testing.assert_close(weights, self_attention(double).weights)
torch.testing.assert_close(output, self_attention(double).context)
check("hidden-matrix", hidden)

# %% [markdown]
# ??? success "Why the weights do not change"
#
#     They come from queries and keys alone. The output can be repaired because averaging and multiplying by a matrix
#     may change places: the inverse undoes the matrix after the average as well as before it.

# %% tags=["remove-cell"]
assert check("undo-the-root", unscaled)
assert check("plain-average", even)
assert check("hidden-matrix", hidden)

# %% [markdown]
# ## What to read next
#
# - [What is attention?](../learn/attention.py) takes (3.1) apart with a pencil.
# - [Is my multi-head attention right?](from_scratch.py) builds the whole module and compares it with PyTorch's.
# - [Notation](../notation.md) defines every symbol; the [API reference](../reference/index.md) has `bypass_`,
#   `bypassed` and `is_bypassed`.
#
# ## References
#
# <!--~ 2017, 3.2.1, 1, 3.2.2, 2010, 4.2, 16, 2014: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.1, equation 1, for (3.1); section 3.2.2 for the
#   projections in (3.2) and (3.3).
# - Glorot and Bengio (2010), *Understanding the difficulty of training deep feedforward neural networks*: section 4.2,
#   equation 16, for Xavier's bound.
# - Pennington, Socher and Manning (2014), *GloVe: Global Vectors for Word Representation*, for the vectors.
