# %% [markdown]
# # Why divide by the square root of d?
#
# **Because dot products grow with the number of their terms, and the softmax of large numbers picks one of them.** Take
# two random vectors of $d$ independent features, with mean zero and unit variance. Their dot product has the variance
# $d$. Divide it by the root of $d$, and its variance is one for every $d$.
#
# With 512<!--= big --> features, the largest of ten weights is 0.95<!--= largest["unscaled"] --> on average without the
# division, and 0.32<!--= largest["scaled"] --> with it. Without it, not all gradients become small: most queries get
# next to nothing, but a few get so much that all gradients together are 9.4 times<!--= together["unscaled"] /
# together["scaled"] --> as large.

# %% tags=["imports"]
import itertools
import math

import torch
from torch import nn

from unmasked import (
    CausalSelfAttention,
    attention_scores,
    attention_weights,
    masks,
    plot,
    self_attention,
)
from unmasked.functional import cosine_attention, cosine_weights
from unmasked.heads import split_heads
from unmasked_lessons.embeddings import ship_vectors
from unmasked_lessons.experiments import scale as experiments
from unmasked_lessons.figures import scale as figures
from unmasked_lessons.figures.atlas import Atlas

# %% tags=["hide-input"]
#| alt: Bars and dots, without the root on the left and with it on the right. Left, one bar is nearly as high as the
#|   panel, and the dots are strewn over the whole width; right, the bars go down like stairs, and the dots lie close
#|   together.
#| caption: The weights of ten keys, in falling order, and the lengths of the gradients that come back, without the root
#|   and divided by it, for random vectors of {{ drawn["sizes"][-1] :,}} features. The bars are means of {{ samples }}
#|   draws, and the {{ len(shares) }} dots stand for equally many draws each. On the left the largest weight is larger,
#|   and the gradients are spread more widely.
#| script: ../../src/unmasked_lessons/figures/scale.js
#| data: drawn
samples, shares = 400, torch.arange(1, 40, 2, dtype=torch.float64) / 40
drawn = experiments.weights_and_gradients(
    [4, 16, 64, 256, 1024], shares, samples=samples, keys=10
)
spread = {
    name: (lengths[-1].max() / lengths[-1].min()).item()
    for name in ("unscaled", "scaled")
    for lengths in [drawn[f"gradient_{name}"]]
}
figure, panels = figures.panels(drawn)
figure

# %% [markdown]
# **You should know** [what attention computes](../learn/attention.py), and what mean, variance and gradient are.
# **You will know** where the root comes from, what its absence does to weights and gradients, which $d$ belongs under
# it with many heads, what it assumes, and a check that finds the wrong one.

# %% tags=["claims"]
assert drawn["unscaled"][-1][0] > 0.9 * panels[0, 0].get_ylim()[1], (
    "Left, one bar is nearly as high as the panel"
)
assert drawn["scaled"][-1][0] < 0.5 and spread["scaled"] < 10, (
    "right, the bars go down like stairs, and the dots lie close together"
)
assert (
    drawn["unscaled"][-1][0] > drawn["scaled"][-1][0]
    and spread["unscaled"] > spread["scaled"]
), (
    "On the left the largest weight is larger, and the gradients are spread more widely"
)

# %% [markdown]
# ## The variance of a dot product
#
# How large are dot products if you know nothing about the vectors? Their variance can be computed without drawing a
# sample. Let each feature take each of a few values equally often, and list *all* vectors: then the variance over them
# is exact.


# %%
def every_vector(values, d):
    """All vectors of d such values, one in each column."""
    return torch.tensor(
        list(itertools.product(values, repeat=d)), dtype=torch.float64
    ).T


def variance(outcomes):
    return outcomes.var(correction=0)


# %% [markdown]
# A dot product of a query and a key is a sum of $d$ products. Let all features be independent, with mean zero. Then
# each product has the mean zero, and its variance is the product of the two variances. The variances of independent
# terms add up:
#
# $$\operatorname{Var}(q^\top k) = \sum_{t=1}^{d} \operatorname{Var}(q_t) \operatorname{Var}(k_t) \tag{2.1}$$
# <!-- where: Var = variance; d = 3
# q = every_vector([-1.3, 0.4, 0.9], d); k = every_vector([-0.7, -0.2, 0.9], d) -->
#
# Features that are minus one or one have unit variance. This is the variance of the dot products of such vectors, plain
# and divided by the root:

# %% tags=["any-version"]
#| caption: The exact variance of the dot products of vectors of {{ min(exact) }} to {{ max(exact) }} features that are
#|   minus one or one. Plain, it is the number of features. Divided by the root, it is one.
exact = {}
for d in range(2, 9):
    q = k = every_vector([-1, 1], d)
    products = q.T @ k  # of every query with every key
    exact[d] = [
        variance(products).item(),
        variance(products / math.sqrt(d)).item(),
    ]

plain, divided = zip(*exact.values())
plot.table(
    ["", *(f"d = {d}" for d in exact)],
    {"plain": plain, "divided": divided},
    "{:.2f}",
)

# %% [markdown]
# The standard deviation, the root of the variance, says how large such numbers typically are: the root of $d$. Dot
# products are divided by it, and so the score of query $i$ and key $j$ is
#
# $$s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d_k}} \tag{2.2}$$
# <!-- where: q, k = random("n d_k", "m d_k"); s = attention_scores(q, k) -->
#
# where $d_k$ is the number of features that queries and keys have. The package applies the scale to the query, before
# the product.

# %% [markdown]
# In `float16` it matters where the scale is applied. Here are three tokens whose features are all
# 40<!--= tried[0] -->. If the product is divided, their weights are NaN; if the query is divided first, they are
# finite:

# %%
x = torch.full((1, 1, 3, 64), 40, dtype=torch.float16)
late = (x @ x.mT / 8).softmax(-1)
early = (x / 8 @ x.mT).softmax(-1)

# %% tags=["hide-input"]
#| caption: Four ways to compute attention in float16<!--= str(x.dtype).removeprefix("torch.") -->, and whether the
#|   contexts are numbers: for features of {{ tried[0] }}, and of {{ tried[1] }}.
tried = (40, 400)
held = experiments.half_precision(tried)
plot.table(["float16", *(f"features of {size}" for size in tried)], held)

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# A dot product of 64<!--= x.size(-1) --> features of 40<!--= tried[0] --> is
# 102,400<!--= x.size(-1) * tried[0] ** 2 -->. The largest number of `float16` is
# 65,504<!--= torch.finfo(x.dtype).max -->, so the product is infinite before it can be divided, and the softmax of
# infinite scores is NaN. Dividing the query first helps until the features are larger. PyTorch's function stays finite
# because it keeps the scores in `float32`, as the package does.

# %% tags=["claims"]
assert all(abs(each[1] - 1) < 1e-9 for each in exact.values()), (
    "and its variance is one"
)
assert all(abs(exact[d][0] / d - exact[d][1]) < 1e-9 for d in exact), (
    "Plain, it is the number of features. Divided by the root, it is one"
)
assert late.isnan().all() and early.isfinite().all(), (
    "If the product is divided, their weights are NaN; if the query is divided first, they are finite"
)
assert held["query divided, then product"] == ["finite", "NaN"], (
    "Dividing the query first helps until the features are larger"
)
assert held["F.scaled_dot_product_attention"][1] == "finite", (
    "PyTorch's function stays finite because it keeps the scores in float32"
)

# %% [markdown]
# ## What large scores do to a softmax
#
# The softmax turns differences between scores into ratios between weights. A score that is larger by one gets 2.7
# times<!--= math.e --> the weight, and one that is larger by ten gets {{ math.exp(10) :,.0f}} times the weight:
#
# $$\operatorname{softmax}(s)_j = \frac{e^{s_j}}{\sum_{l=1}^{n} e^{s_l}} \tag{2.3}$$
# <!-- where: s = random("n"); softmax = lambda s: attention_weights(s[None])[0] -->
#
# How widely a row spreads its weights is measured by its *entropy*:


# %%
def entropy(weights):
    return -torch.xlogy(weights, weights).sum(dim=-1)


# %% [markdown]
# $$H = -\sum_{j=1}^{n} a_j \ln a_j \tag{2.4}$$
# <!-- where: a = random("n").softmax(0); H = entropy(a) -->
#
# It is zero where one key gets everything. It has its largest value, the logarithm of the number of keys, where all get
# the same.

# %% tags=["claims"]
assert (
    entropy(torch.eye(3)[0]).abs() < 1e-9
    and abs(entropy(torch.full((10,), 0.1)) - math.log(10)) < 1e-5
), "It is zero where one key gets everything. It has its largest value"

# %% [markdown]
# ## What a sure softmax does to gradients
#
# Training changes the scores by a gradient that comes back through the softmax. It is made of the derivatives of every
# weight by every score, which form a matrix, the *Jacobian*. The Jacobian has the weights on its diagonal, less the
# product of every two weights:


# %%
def softmax(scores):
    return attention_weights(scores[None])[0]


def jacobian(weights):
    return (
        torch.diag_embed(weights)
        - weights[..., :, None] * weights[..., None, :]
    )


# %% [markdown]
# The derivative of weight $j$ by score $l$ is
#
# $$\frac{\partial a_j}{\partial s_l} = a_j \, ([j = l] - a_l) \tag{2.5}$$
# <!-- where: s = random("n").requires_grad_(); a = softmax(s) -->
#
# where the bracket is one if $j$ and $l$ are the same, and zero otherwise.

# %% [markdown]
# Every entry is, up to its sign, a product of two weights, or of a weight and one minus that weight. If one weight is
# nearly one, each product has a factor that is nearly zero: a softmax like that is *saturated*.

# %%
sure = torch.tensor([0.99, 0.006, 0.004])
jacobian(sure)

# %% [markdown]
# With a largest weight of 0.99<!--= sure.max() -->, the largest entry is 0.0099<!--= jacobian(sure).abs().max() -->.

# %% tags=["claims"]
assert torch.allclose(
    jacobian(sure),
    torch.autograd.functional.jacobian(softmax, sure.log()),
    atol=1e-6,
), "the weights on its diagonal, less the product of every two weights"

# %% [markdown]
# ## With more and more features
#
# Now draw queries and keys for growing $d$, once *unscaled* (the dot products are multiplied by one) and once *scaled*
# (divided by the root, the default). Measure the variance of the scores, the mean entropy of the weights, and the
# *median*, over all rows, of the largest entry of the Jacobian.


# %% tags=["check"]
def draw(d, scale, rows=1_000):
    # a query, and its own ten keys, in each row
    q, k = torch.randn(rows, 1, d), torch.randn(rows, keys, d)
    # In float32, what a sure softmax leaves to the other keys would be rounding.
    scores = attention_scores(q, k, scale=scale)[:, 0].double()
    return scores, attention_weights(scores)


keys, sizes, measured = 10, [4, 16, 64, 256, 512, 1024], {}
for name, scale in (("unscaled", 1.0), ("scaled", None)):
    torch.manual_seed(4)
    rows = []
    for d in sizes:
        scores, weights = draw(d, scale)
        steepest = jacobian(weights).abs().amax((1, 2))
        row = variance(scores), entropy(weights).mean(), steepest.median()
        rows.append([each.item() for each in (*row, steepest.mean())])
    named = "variance", "entropy", "derivative", "mean"
    measured[name] = dict(zip(named, map(list, zip(*rows)), strict=True))

entropies = measured["unscaled"]["entropy"], measured["scaled"]["entropy"]
falling, means = (
    measured["unscaled"]["derivative"],
    measured["unscaled"]["mean"],
)
fall, mean_fall = math.log10(falling[0] / falling[-1]), means[0] / means[-1]

# %% tags=["hide-input"]
#| alt: Three plots over the number of features d, from 4<!--= sizes[0] --> to 1024<!--= sizes[-1] -->. Unscaled, the
#|   variance of the scores rises in proportion to d, the entropy of the weights falls from 1.4<!--= entropies[0][0] -->
#|   to 0.1<!--= entropies[0][-1] -->, and the largest derivative falls by over five powers of ten. Scaled, all three
#|   are level.
#| caption: The variance of the scores, the entropy of the weights and the median derivative for growing d, unscaled and
#|   scaled.
told = {
    "variance": "variance of the scores",
    "entropy": "entropy of the weights",
    "derivative": "largest derivative",
}
figure = figures.curves(sizes, measured, told)
panels = figure.axes
figure

# %% [markdown]
# Unscaled, the entropy falls from 1.44<!--= entropies[0][0] --> to 0.07<!--= entropies[0][-1] -->: attention picks the
# best key and drops the others before anything has been learned. Scaled, it is {{ entropies[1][0] :.2f}} with four
# features and {{ entropies[1][-1] :.2f}} with 1,024<!--= sizes[-1] -->; equal weights would have
# 2.30<!--= math.log(keys) -->.
#
# Unscaled, the median derivative falls by over five powers of ten, but the mean only by a factor of
# {{ mean_fall :.0f}}: now and then the two best keys have nearly the same score, and the weights of that row still
# move. What gets through then reaches the query undivided. So measure what arrives there, the gradient of each query,
# for random values and a random gradient of the contexts:

# %% tags=["hide-input", "any-version"]
#| caption: With {{ big }} features, of {{ draws :,}} draws: the mean weight of the best key, the median norm of the
#|   gradients, the norm of all gradients together, and the share of the sum of their squares that belongs to the
#|   largest tenth.
big, draws = 512, 1_000
largest, norms, together, tenth, ranked = experiments.norms(
    big, samples=draws, keys=keys
)
steep, flat_ones = (
    part.mean().item() for part in ranked["unscaled"].split([100, 900])
)
medians = {name: each.median() for name, each in norms.items()}
columns = largest, medians, together, tenth
plot.table(
    ["", "largest weight", "median norm", "norm of all", "share of a tenth"],
    {name: [each[name] for each in columns] for name in largest},
    "{:.2f}",
)

# %% [markdown]
# The gradient of the median query has the norm 0.08<!--= norms["unscaled"].median() --> without the scale and
# 6.8<!--= norms["scaled"].median() --> with it. But all gradients together have 9.4
# times<!--= together["unscaled"] / together["scaled"] --> the norm without it. The tenth of the queries with the
# largest gradients then makes up 95%<!--= tenth["unscaled"] --> of the sum of their squares, against
# {{ tenth["scaled"] :.0%}} with the scale. So learning does not lack gradients: it gets large ones from a few queries,
# those that are undecided. Their mean largest weight is 0.70<!--= steep -->, that of the others
# 0.98<!--= flat_ones -->.

# %% tags=["claims"]
assert all(
    math.isclose(each.norm(), together[name], rel_tol=1e-5)
    and math.isclose(
        each.topk(100).values.square().sum() / each.square().sum(),
        tenth[name],
        rel_tol=1e-5,
    )
    for name, each in norms.items()
), (
    "the norm of all gradients together, and the share of the sum of their squares that belongs to the largest tenth"
)
assert norms["unscaled"].median() < norms["scaled"].median() / 50, (
    "most queries get next to nothing"
)
assert fall > 5, "the largest derivative falls by over five powers of ten"
assert fall > 5, "the median derivative falls by over five powers of ten"
assert all(
    max(measured["scaled"][what]) < 1.5 * min(measured["scaled"][what])
    for what in told
), "Scaled, all three are level"
assert tenth["unscaled"] > 0.9, "it gets large ones from a few queries"

# %% [markdown]
# ## Which d, with many heads?
#
# Models usually run several attentions side by side, each on its own slice of the projected features. Each of them is
# called a *head* ([heads have a page](heads.py)). The $d$ under the root is that of one head, since its dot products
# run over its own features alone. A model that is 512<!--= width --> features wide and has eight heads divides by the
# root of 64<!--= head_dim -->, not of 512<!--= width -->. With [the width under the
# root](../museum/computation.py#wrong-d-in-scale) nothing fails, but all scores are too small, by the root of the
# number of heads.

# %%
width, num_heads = 512, 8
head_dim = width // num_heads
torch.manual_seed(20)
# batch heads tokens head_dim
q, k = torch.randn(2, 3, num_heads, 5, head_dim)
by_head = attention_scores(q, k)
by_width = attention_scores(q, k, scale=width**-0.5)

# %% [markdown]
# The standard deviation of the scores is 1.02<!--= by_head.std() --> with 64<!--= head_dim -->, and 0.36<!--=
# by_width.std() --> with 512<!--= width -->. The package and PyTorch's function read the number from the last axis of
# the query, which is right once the heads have been split off. `nn.MultiheadAttention` does the same:

# %%
torch.manual_seed(7)
module = nn.MultiheadAttention(width, num_heads, bias=False, batch_first=True)
x = 3 * torch.randn(3, 5, width)  # batch tokens features
_, theirs = module(x, x, x, average_attn_weights=False)

q, k, _ = (
    split_heads(each, num_heads)
    for each in (x @ module.in_proj_weight.T).chunk(3, dim=-1)
)
ours = attention_weights(attention_scores(q, k))
flat = attention_weights(attention_scores(q, k, scale=width**-0.5))

# %% [markdown]
# `ours` equals `theirs`. With the root of the width, as in `flat`, the weights are off by up to
# {{ (theirs - flat).abs().max() :.2f}}.
#
# A few models are trained with another factor, which [the atlas](atlas.py) lists. Granite's configs give it
# (`attention_multiplier`), those of Gemma 2<!--~ names --> and 3<!--~ names --> give the number under the root
# (`query_pre_attn_scalar`). `CausalSelfAttention(..., scale=factor)` multiplies by it, and without `scale=` by one over
# the root of the head's features.

# %% tags=["check"]
atlas = Atlas()
torch.manual_seed(21)
scaled = CausalSelfAttention(width, width, num_heads, scale=1.0)
usual = CausalSelfAttention(width, width, num_heads)
usual.load_state_dict(scaled.state_dict())
q, k, _ = (
    split_heads(each, num_heads) for each in scaled.qkv(x).chunk(3, dim=-1)
)
sees = masks.causal(5)

# %% tags=["claims"]
assert 0 < atlas.share("scale") < 0.2 and atlas.has("granite", "scale"), (
    "A few models are trained with another factor"
)
assert torch.allclose(
    scaled.weights(x),
    attention_weights(attention_scores(q, k, scale=1.0), allowed=sees),
    atol=1e-5,
), "scale=factor) multiplies by it"
assert torch.allclose(
    usual.weights(x),
    attention_weights(
        attention_scores(q, k, scale=head_dim**-0.5), allowed=sees
    ),
    atol=1e-5,
), "without scale= by one over the root of the head's features"
assert torch.allclose(by_width * math.sqrt(num_heads), by_head, atol=1e-5), (
    "but all scores are too small, by the root of the number of heads"
)
assert torch.allclose(theirs, ours, atol=1e-5), "ours equals theirs"

# %% [markdown]
# ## What the rule assumes
#
# **Unit variance.** In a layer, queries and keys are *projections* of the input $x$. Entry $t$ of a query is itself a
# dot product, of $x$ with a row of the matrix, so by equation (2.1) its variance is the number of features times the
# variance of the matrix's entries. PyTorch's modules draw new matrices at random, evenly between a bound $b$ and its
# negative. The variance of such numbers is


# %% tags=["check"]
def evenly(bound, steps=100_000):
    return bound * (
        2 * (torch.arange(steps, dtype=torch.float64) + 0.5) / steps - 1
    )


# %% [markdown]
#
# $$\operatorname{Var}(w) = \frac{b^2}{3} \tag{2.6}$$
# <!-- where: Var = variance; b = random(""); w = evenly(b) -->
#
# The bound of `nn.Linear` is one over the root of $d$, so the $d$ terms together have a third of the unit
# variance that the rule asks for. Other layers have other bounds:


# %% tags=["hide-input", "any-version"]
#| caption: The bound of fresh matrices of width {{ width }}, the variance that equation (2.6) gives for the
#|   projections, and the variances that were measured of projections and of scores.
torch.manual_seed(8)
new, other = (experiments.fresh_matrices(each) for each in (width, 128))
plot.table(["", "bound", "by (2.6)", "var(q)", "var(scores)"], new, "{:.2f}")

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ module.in_proj_weight.device.type.upper() }}.*
#
# With `nn.Linear` the features of a query have a variance of 0.33<!--= new["nn.Linear"][2] -->, a third, and the scores
# have its square, 0.11<!--= new["nn.Linear"][3] -->. PyTorch's module packs three matrices into one ([fresh matrices
# come out smaller](bypass.py#where-fresh-matrices-come-from)) and has 0.50<!--= new["nn.MultiheadAttention"][2] --> and
# 0.25<!--= new["nn.MultiheadAttention"][3] -->. Of the three, only *Xavier*'s draw for a square matrix meets the
# assumption. But each of the three gives the same variances at another width, and that is what the root is for. Smaller
# scores mean flatter weights at the start, and training can make the matrices larger.
#
# **Mean zero, and independent features.** Five features that are zero or two have unit variance, but their mean is one:
# their dot products have three times<!--= odd["mean one"] / odd["as assumed"] --> the variance. If all five are copies
# of one feature, it is five times<!--= odd["copies"] / odd["as assumed"] --> as large.

# %% tags=["check"]
vectors = {
    "as assumed": every_vector([-1, 1], 5),
    "mean one": every_vector([0, 2], 5),
    "copies": every_vector([-1, 1], 1).expand(5, 2),
}
odd = {name: variance(each.T @ each).item() for name, each in vectors.items()}

# %% [markdown]
# **Independence of query and key.** A token is not independent of itself. The dot product of a vector with itself does
# not vary around zero: its *mean* is $d$, so its score is about the root of $d$. Without learned matrices, a token in
# self-attention therefore keeps more of itself the wider it is: 3%<!--= alone[4][2] --> on average with four features,
# and nearly all with 512<!--= big -->:

# %% tags=["any-version"]
#| caption: The mean score of {{ len(x) }} random tokens with themselves, the root of d, and the weight that they keep.
torch.manual_seed(9)
alone = {}
for d in (4, 64, 512):
    x = torch.randn(300, d)
    scores, weights = attention_scores(x, x), self_attention(x).weights
    alone[d] = [
        scores.diagonal().mean().item(),
        math.sqrt(d),
        weights.diagonal().mean().item(),
    ]

plot.table(
    ["", "own score", "root of d", "own weight"],
    {f"d = {d}": row for d, row in alone.items()},
    "{:.2f}",
)

# %% [markdown]
# The vectors of words do not have unit variance either. In the sentence below, *ship* keeps 55%<!--= kept[1] --> of
# itself with the root, and practically all without:

# %%
words = "I must go back to my ship and to my crew".lower().split()
ship, tokens = words.index("ship"), ship_vectors().lookup(words)
kept = [
    self_attention(tokens, scale=scale).weights[ship, ship].item()
    for scale in (1.0, None)
]

# %% tags=["claims"]
assert abs(new["nn.Linear"][0] * math.sqrt(width) - 1) < 1e-4, (
    "The bound of nn.Linear is one over the root"
)
assert abs(new["nn.Linear"][1] - 1 / 3) < 1e-3, (
    "so the d terms together have a third of the unit variance that the rule asks for"
)
assert all(
    abs(a / b - 1) < 0.1
    for name in new
    for a, b in zip(new[name][1:], other[name][1:])
), "But each of the three gives the same variances at another width"
assert alone[4][2] < alone[64][2] < 0.99 < alone[512][2], (
    "a token in self-attention therefore keeps more of itself the wider it is"
)
assert kept[0] > 0.999, "of itself with the root, and practically all without"

# %% [markdown]
# ## Why dot products, and not cosines?
#
# Divide a dot product by the lengths of both vectors (their *norms*), and it cannot grow with $d$. The result is the
# *cosine* of the angle between them. It says how similar two words are, from minus one (opposite) to one (the same
# direction):
#
# $$c_{ij} = \frac{x_i \cdot x_j}{\lVert x_i \rVert \, \lVert x_j \rVert} \tag{2.7}$$
# <!-- where: x = random("n d"); c = cosine_weights(x) -->
#
# Why not weight by cosines, then? The simplest way needs no softmax. Multiply the vector of every word by its cosine
# with *ship* and add the results up:
#
# $$y_i = \sum_{j=1}^{n} c_{ij} \, x_j \tag{2.8}$$
# <!-- where: x = random("n d"); c = cosine_weights(x)[:-1]; y = cosine_attention(x).context[:-1] -->

# %%
cosines, summed = cosine_weights(tokens), cosine_attention(tokens).context

# %% tags=["check"]
rounds, again, stream, averaged = 3, summed, tokens, [tokens]
for _ in range(rounds):
    again = cosine_attention(again).context
    averaged.append(self_attention(averaged[-1]).context)
    stream = stream + self_attention(stream).context

norms_of_ship = [each[ship].norm().item() for each in (tokens, summed, again)]
alike = [cosine_weights(each).min().item() for each in averaged]
added = cosine_weights(stream)
soft = {
    "cosines": cosines.softmax(-1),
    "dot products": self_attention(tokens).weights,
}
own_share = {name: each[ship, ship].item() for name, each in soft.items()}
of_go = soft["dot products"][words.index("go")]

# %% [markdown]
# - The weights do not sum to one. Those of *ship* sum to 5.74<!--= cosines[ship].sum() -->, and in a longer sentence
#   they sum to more. So vectors grow: the norm of *ship* goes from 5.74<!--= norms_of_ship[0] --> to 25.1<!--=
#   norms_of_ship[1] -->, and in four layers it grows more than 8,000 times. (That two figures agree is a coincidence.)
# - A softmax of cosines does sum to one, but it is timid. Cosines differ by two at most, so a word can count at most
#   7.4 times<!--= math.exp(1 - -1) --> as much as another. *ship* would keep 14%<!--= own_share["cosines"] --> of
#   itself, against 55%<!--= own_share["dot products"] -->. A dot product has no such bound, and training can set how
#   sharp it is. (It can do so with cosines, too, if they are multiplied by a learned factor, as in some models with
#   *QK-norm*.)
# - A cosine forgets the lengths. A word with a long vector has large dot products with all words that point its way:
#   *go* takes more from *i* than it keeps of itself, because the vector of *i* is the longest. With cosines nothing
#   comes before the word itself.
# - Averages cannot grow, but averages of averages become alike: the smallest cosine between any two of the words is
#   0.35<!--= alike[0] -->, and after three rounds of attention all words are nearly the same vector. A *residual
#   connection*, which adds each word's old vector to its new one, works against that: with it the smallest cosine is
#   0.52<!--= added.min() -->. (It was not invented for this: earlier deep networks had it so that they could be
#   trained.)

# %% tags=["claims"]
assert norms_of_ship[2] > 8000 * norms_of_ship[0], (
    "and in four layers it grows more than 8,000 times"
)
assert (
    of_go[words.index("i")] > of_go[words.index("go")]
    and words[tokens.norm(dim=-1).argmax()] == "i"
), (
    "go takes more from i than it keeps of itself, because the vector of i is the longest"
)
assert (cosines.max(-1).values - cosines.diagonal() < 1e-6).all(), (
    "With cosines nothing comes before the word itself"
)
assert alike[-1] > 0.999, (
    "after three rounds of attention all words are nearly the same vector"
)

# %% [markdown]
# ## A version that looks right
#
# Here the number under the root is a global that a notebook sets once, at its top. The function agrees with the package
# until someone tries another size:


# %%
d_k = 64


def careless_scores(q, k):
    return q @ k.mT / math.sqrt(d_k)  # whose d_k?


torch.manual_seed(10)
q, k = torch.randn(3, 5, 64), torch.randn(3, 7, 64)
before = careless_scores(q, k)

d_k = 16  # another cell, for another model
after = careless_scores(q, k)

# %% tags=["check"]
off = (after - attention_scores(q, k)).abs().max().item()

# %% [markdown]
# Neither the call nor its inputs have changed, and the scores are off by up to {{ off :.1f}}. A check needs no
# reference: a token of ones has the dot product $d$ with itself, so its score must be the root of $d$. Try two sizes,
# and more than one head:


# %%
def own_score(scores, d, heads=3):
    ones = torch.ones(2, heads, 5, d)  # batch heads tokens head_dim
    return scores(ones, ones).mean().item()


# %% tags=["hide-input", "any-version"]
#| caption: The score of a token of ones with itself, scaled in six ways, and what it must be.
candidates = {
    "right": attention_scores,
    "a global d_k": careless_scores,
    **experiments.WRONG_SCALES,
}
asked, must_be = (16, 64), torch.tensor([4.0, 8.0])
own = {
    name: torch.tensor([own_score(scores, d) for d in asked])
    for name, scores in candidates.items()
}
by_all_heads = experiments.WRONG_SCALES["the width of all heads"]
with_one_head = own_score(by_all_heads, 16, heads=1)
passed = [
    name for name, given in own.items() if must_be.allclose(given, atol=1e-3)
]
plot.table(
    ["", *(f"d = {d}" for d in asked)],
    {**own, "it must be": must_be},
    "{:.2f}",
)

# %% [markdown]
# Only the right one gives both. With a single head, the width of all heads would pass as well. The remedy is to read
# the size from the argument, `q.size(-1)`.

# %% tags=["claims"]
assert torch.allclose(before, attention_scores(q, k), atol=1e-4), (
    "The function agrees with the package until someone tries another size"
)
assert passed == ["right"], "Only the right one gives both"
assert abs(with_one_head - 4) < 1e-3, (
    "With a single head, the width of all heads would pass as well"
)

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("scaled-scores", answer))`.
#
# **Scores** (`scaled-scores`). Write `scores(q, k)` for q with the axes (..., queries, features) and k with (..., keys,
# features).
#
# ??? question "Hint"
#
#     The last axis of q tells how many features there are. `.mT` exchanges the last two axes and leaves batches alone.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def scores(q, k):
    return q @ k.mT / math.sqrt(q.size(-1))


feedback = check("scaled-scores", scores)
assert feedback
feedback

# %% [markdown]
# **Another variance** (`divisor`). Let every feature of queries and keys have the variance $v$ instead of one. By which
# number must their dot products be divided to have unit variance? Write it as a function `divisor(d, v)`.
#
# ??? question "Hint"
#
#     Put $v$ into equation (2.1). Dividing numbers by $c$ divides their variance by the square of $c$.


# %% tags=["solution"]
def divisor(d, v):
    return v * math.sqrt(d)


feedback = check("divisor", divisor)
assert feedback
feedback

# %% [markdown]
# **Back through the softmax** (`softmax-backward`). Write `backward(weights, gradient)`: from a softmax's weights, and
# the gradient of the loss by these weights, the gradient by the scores. Rows are along the last axis. Never make the
# Jacobian: it has as many entries for each row as the row has pairs of keys.
#
# ??? question "Hint"
#
#     Multiply equation (2.5) by the gradient of weight $j$, and sum over $j$. One of the two terms has a sum that is
#     the same for the whole row.


# %% tags=["solution"]
def backward(weights, gradient):
    share = weights * gradient
    return share - weights * share.sum(dim=-1, keepdim=True)


feedback = check("softmax-backward", backward)
assert feedback
feedback

# %% [markdown]
# **Lengths from another sentence** (`is-cosines`). Someone keeps the norms of "to my ship and my crew" in a variable,
# and divides the vectors of another sentence of six words by them: `borrowed` below. Nothing fails. Write
# `is_cosines(table)`, which says whether a square table can be one of cosines.
#
# ```python
# Y = ship_vectors().lookup("we process and ship your order")
# other = ship_vectors().lookup("to my ship and my crew")
# norms = other.norm(dim=-1, keepdim=True)
# borrowed = (Y / norms) @ (Y / norms).mT
# ```
#
# ??? question "Hint"
#
#     What is the cosine of a vector with itself?


# %% tags=["solution"]
def is_cosines(table):
    return torch.allclose(table.diagonal(), torch.ones_like(table.diagonal()))


Y = ship_vectors().lookup("we process and ship your order")
lengths = (
    ship_vectors().lookup("to my ship and my crew").norm(dim=-1, keepdim=True)
)
borrowed = (Y / lengths) @ (Y / lengths).mT

assert is_cosines(cosine_weights(Y))
assert not is_cosines(borrowed)
feedback = check("is-cosines", is_cosines)
assert feedback
feedback

# %% [markdown]
# **Why not divide by the sum?** (`sum-of-zero`) Cosines that are divided by the sum of their row sum to one as well.
# Find two vectors for which this fails altogether, as the rows of a tensor.
#
# ??? question "Hint"
#
#     One of the two cosines in each row is one. What must the other be?

# %% tags=["solution"]
opposite = torch.tensor([[3.0, 4.0], [-3.0, -4.0]])
sums = cosine_weights(opposite).sum(dim=-1)
assert sums.abs().max() < 1e-6
feedback = check("sum-of-zero", opposite)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [The weight bypass](bypass.py): the learned matrices of PyTorch's module, and how to switch them off.
# - [How does one matrix hold many heads?](heads.py), where the heads' features come from.
# - [Are my weights what attention says they are?](../museum/computation.py): the scale left out, the root of another
#   $d$, a global read inside.
# - [Notation](../notation.md) for the symbols.
#
# ## References
#
# <!--~ 2017, 3.2.1, 1, 4, 3.2.2, 2010, 4.2, 16, 2021: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.1, equation 1, for (2.2), and its footnote 4 for
#   (2.1); section 3.2.2 for the size of a head.
# - Glorot and Bengio (2010), *Understanding the difficulty of training deep feedforward neural networks*: section 4.2,
#   equation 16, for Xavier's bound.
# - Dong, Cordonnier and Loukas (2021), *Attention Is Not All You Need: Pure Attention Loses Rank Doubly Exponentially
#   with Depth*, for words that become one vector, and what residual connections do against it.
# - Yang et al. (2021), *Tuning Large Neural Networks via Zero-Shot Hyperparameter Transfer*: they divide by d, since
#   trained queries and keys are no longer independent.
