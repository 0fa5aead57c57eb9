# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Why divide by the square root of d_k?
#
# **Because a dot product grows with the number of its terms, and a softmax of large numbers is almost a choice of
# one.** The dot product of two random vectors with $d$ features of unit variance has the variance $d$. Divided by
# $\sqrt{d}$ it has unit variance, whatever $d$ is. Without the division, with 512<!--== big --> features, the largest
# of ten<!--== keys --> weights is 0.95<!--== largest_unscaled --> on average and gradients of the scores all but
# vanish; with it, the largest is 0.32<!--== largest_scaled -->.
#
# **You should know** [what attention computes](01_what_is_attention.py), and what a mean and a variance are. **You will
# know** where the root comes from, what happens without it, which $d$ belongs under it with many heads, and why the
# rule rests on an assumption that a new layer does not meet.

# %%
import itertools

import matplotlib.pyplot as plt
import torch
from torch import nn

from unmasked import attention_scores, attention_weights, self_attention
from unmasked.embeddings import ship_vectors

# %% [markdown]
# ## The variance of a dot product
#
# A dot product is a sum of $d$ products. If the features are independent, with mean zero and variance one, each product
# has mean zero and variance one too, and variances of independent terms add up:
#
# $$\operatorname{Var}(q \cdot k) = d$$
# <!-- unchecked: a statement about random vectors, which the next cell computes exactly -->
#
# This can be counted rather than estimated. Let each feature be plus or minus one, equally likely. Then for small $d$
# all pairs of vectors can be listed, and the variance over them is exact:


# %%
def exact_variance(d, scale):
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=d)), dtype=torch.float64)  # all vectors
    return attention_scores(signs, signs, scale=scale).var(correction=0).item()


exact = {d: (exact_variance(d, 1.0), exact_variance(d, d**-0.5)) for d in range(2, 8)}
for d, (plain, scaled) in exact.items():
    assert abs(plain - d) < 1e-9
    assert abs(scaled - 1) < 1e-9
exact[7]

# %% [markdown]
# Without the scale the variance is $d$<!--= all(abs(plain - d) < 1e-9 for d, (plain, _) in exact.items()) -->, with it
# it is one<!--= all(abs(scaled - 1) < 1e-9 for _, (_, scaled) in exact.items()) -->, for each $d$ tried. So scores are
# divided by the standard deviation that they would have:
#
# $$s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}}$$
# <!-- where: q = random("n d"); k = random("m d"); s = attention_scores(q, k) -->
#
# ## What large scores do to a softmax
#
# Draw queries and keys for growing $d$ and look at the weights. The *entropy* says over how many keys a row is spread:
# zero if one key gets all, $\log n$ if all $n$ get the same.

# %%
torch.manual_seed(2)
sizes, keys, draws = [4, 16, 64, 256, 1024], 10, 2_000


def entropy(weights):
    return -torch.xlogy(weights, weights).sum(-1).mean().item()


def softmaxes(d):
    q, k = torch.randn(draws, 1, d), torch.randn(draws, keys, d)
    return [attention_weights(attention_scores(q, k, scale=scale)) for scale in (1.0, None)]


measured = {d: [entropy(weights) for weights in softmaxes(d)] for d in sizes}
{d: tuple(round(value, 2) for value in each) for d, each in measured.items()}

# %% tags=["hide-input"]
#| alt: Two plots against the number of features. Above, the variance of unscaled scores rises in proportion to it;
#|   that of scaled ones stays at one. Below, the entropy of unscaled weights falls towards zero;
#|   that of scaled ones stays level, below the broken line of equal weights.
figure, (left, right) = plt.subplots(2, 1, figsize=(5, 6.5), layout="constrained", sharex=True)
left.loglog(sizes, sizes, "o-", label="unscaled")
left.loglog(sizes, [1] * len(sizes), "s-", label="scaled")
left.set_ylabel("variance of the scores")
right.semilogx(sizes, [plain for plain, _ in measured.values()], "o-", label="unscaled")
right.semilogx(sizes, [scaled for _, scaled in measured.values()], "s-", label="scaled")
right.axhline(torch.tensor(float(keys)).log().item(), linestyle="--", color="gray", label="equal weights")
right.set_ylabel("entropy of the weights")
right.set_xlabel("features d")
left.legend()
right.legend()
plt.show()

# %% [markdown]
# Unscaled, the entropy falls from 1.44<!--= measured[4][0] --> to 0.08<!--= measured[1024][0] -->: attention becomes a
# lookup of the nearest key, decided before anything is learned. Scaled, it stays at
# 1.92<!--= measured[1024][1] -->.

# %%
big = 512
torch.manual_seed(7)
plain, scaled = softmaxes(big)
largest_unscaled, largest_scaled = (weights.max(-1).values.mean().item() for weights in (plain, scaled))
largest_unscaled, largest_scaled

# %% [markdown]
# ## Why that stops learning
#
# Training moves scores along the gradient that comes back through the softmax. The derivative of weight $j$ by score
# $k$ is
#
# $$\frac{\partial w_j}{\partial s_k} = w_j \, (\delta_{jk} - w_k)$$
# <!-- unchecked: a derivative; the next cell compares it with what autograd gives -->
#
# where $\delta_{jk}$ is one if both are the same and zero otherwise. If one weight is nearly one and the others nearly
# zero, each of these products is nearly zero. Autograd agrees:


# %%
def jacobian(scores):
    weights = scores.softmax(-1)
    return torch.diag(weights) - weights[:, None] * weights


torch.manual_seed(3)
d = 512
q, k = torch.randn(d, dtype=torch.float64), torch.randn(keys, d, dtype=torch.float64)
sizes_of_gradients = []
for scale in (1.0, d**-0.5):
    scores = attention_scores(q[None], k, scale=scale)[0]
    found = torch.autograd.functional.jacobian(lambda s: attention_weights(s[None])[0], scores)
    torch.testing.assert_close(found, jacobian(scores))
    sizes_of_gradients.append(found.abs().max().item())

unscaled_gradient, scaled_gradient = sizes_of_gradients
f"largest derivative: {unscaled_gradient:.1g} unscaled, {scaled_gradient:.2f} scaled"

# %% [markdown]
# For this draw the scaled derivatives are over a thousand times larger<!--= scaled_gradient > 1000 * unscaled_gradient
# -->.
#
# ## Which d, with many heads?
#
# A model of width 512<!--== width --> with eight<!--== num_heads --> heads has 64<!--== head_dim --> features in each.
# The dot products run over one head's features, so its root belongs under the fraction. The width is a common mistake:
# nothing fails, but scores come out too small, by the root of the number of heads.

# %%
width, num_heads = 512, 8
head_dim = width // num_heads
torch.manual_seed(4)
q, k = torch.randn(2, num_heads, 300, head_dim)
by_head = attention_scores(q, k)
by_width = attention_scores(q, k, scale=width**-0.5)
by_head.std().item(), by_width.std().item()

# %% [markdown]
# Divided by the root of 64<!--= head_dim -->, the standard deviation is 1.00<!--= by_head.std() -->; by the root
# of 512<!--= width -->, it is 0.35<!--= by_width.std() -->, and the weights are flatter than they were meant to be. The
# default of `attention_scores`, and of PyTorch's function, is the last axis of the query, which is right once the heads
# have been split off.
#
# ## What the rule assumes
#
# Unit variance of queries and keys is an assumption. In a new layer they are *projections*, and `nn.Linear` draws
# its matrix so that the variance of a projected feature is a third of the input's:

# %%
torch.manual_seed(5)
x = torch.randn(2_000, 512)
project_q, project_k = nn.Linear(512, 64, bias=False), nn.Linear(512, 64, bias=False)
with torch.no_grad():
    q, k = project_q(x), project_k(x)
variance_of_q, variance_of_scores = q.var().item(), attention_scores(q, k).var().item()
variance_of_q, variance_of_scores

# %% [markdown]
# The entries of the matrix are uniform up to $1/\sqrt{512}$<!--~ the bound of nn.Linear's rule -->, with a variance of
# a third of that bound's square, and 512<!--= x.size(-1) --> of them add up: the variance of a query's feature is
# 0.34<!--= variance_of_q -->, and that of a score 0.11<!--= variance_of_scores -->, the square of a third. At the start
# attention is close to a plain average, which does no harm: training makes the matrices larger where that helps. The
# root keeps the start the same for every $d$; it does not fix the scores for ever.
#
# Nor do embeddings have unit variance. *ship* in the running example keeps 55%<!--== with_root --> of itself with the
# root, and 100%<!--== without_root --> without:

# %%
words = ["i", "must", "go", "back", "to", "my", "ship", "and", "to", "my", "crew"]
ship, x = words.index("ship"), ship_vectors().lookup(words)
with_root = self_attention(x).weights[ship, ship].item()
without_root = self_attention(x, scale=1.0).weights[ship, ship].item()
with_root, without_root

# %% [markdown]
# ## A version that looks right
#
# Here the size under the root is read from a global, set once at the top of a notebook. It is right until a second
# model of another size is made:


# %%
d_k = 64


def careless_scores(q, k):
    return q @ k.mT / d_k**0.5  # whose d_k?


torch.manual_seed(6)
q, k = torch.randn(2, 3, 5, 64)
agreed = torch.allclose(careless_scores(q, k), attention_scores(q, k))
d_k = 16  # elsewhere
off = (careless_scores(q, k) - attention_scores(q, k)).abs().max().item()
agreed, off

# %% [markdown]
# It agrees first<!--= agreed -->, and is off by 3.2<!--= off --> later, at the same inputs. The check: call it with two
# sizes in one run, and compare with the package, or see that doubling all features by repetition multiplies scores by
# the root of two. The remedy: read the size from the argument, `q.size(-1)`.
#
# ## Exercises
#
# **Scores.** Write `scores(q, k)` for q of (..., queries, d) and k of (..., keys, d).
#
# ??? question "Hint"
#
#     The last axis of q tells d.

# %% tags=["solution"]
from unmasked.exercises import check


def scores(q, k):
    return q @ k.mT / q.size(-1) ** 0.5


check("scaled-scores", scores)

# %% [markdown]
# **Another rule.** Suppose that the features of queries and keys have the variance $v$. By which number must the dot
# products be divided to have unit variance? Write it as a function `divisor(d, v)`.
#
# ??? question "Hint"
#
#     Multiplying a variable by $c$ multiplies its variance by $c^2$<!--~ a power -->.


# %% tags=["solution"]
def divisor(d, v):
    return v * d**0.5


check("divisor", divisor)

# %% [markdown]
# ## What to read next
#
# - [The weight bypass](03_weight_bypass.py): PyTorch's module with its matrices out of the way.
# - [The museum of mistakes](09_numbers.py): the scale left out, the root of another $d$.
#
# ## References
#
# <!--~ references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.1 and footnote 4, on the variance of dot products.
# - Glorot and Bengio (2010), *Understanding the difficulty of training deep feedforward neural networks*: section 4.2.
