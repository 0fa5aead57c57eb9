# %% [markdown]
# # What does the backward pass of attention compute?
#
# **Five matrix products, and one sum for each query, give the gradients of query, key and value.** The forward pass
# takes two. The backward pass is given the gradient of the loss by the context, $\partial L / \partial O$<!--
# unchecked: it is given -->. Where the weights were not kept it computes them once more, and then:

# %% tags=["imports"]
import inspect
import textwrap

import torch
import torch.nn.functional as F

from unmasked import (
    attend,
    attention_weights,
    masks,
    plot,
)
from unmasked.gradients import attention_backward
from unmasked.tiles import tiled_attention
from unmasked_lessons.experiments import backward as experiments

# %% tags=["hide-input"]
source = inspect.getsource(attention_backward)
lines = source[source.index("    d_value =") : source.index("    return Gr")]
print(textwrap.dedent(lines).rstrip())

# %% [markdown]
# If you leave a part out, all shapes still agree:
#
# {{ plot.table(["What is left out", "Query is off by", "Key is off by", "Value is off by"], costs).markdown() }}
#
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ query.device.type.upper() }}.* Each entry is the
# largest difference from autograd's gradient, as a share of that gradient's largest entry, in float64.
#
# You need these lines to write the backward pass of a kernel or of an `autograd.Function`, or attention on several
# devices. They also show what the [root of d](scale.py) does for training, which is not what many texts say.
#
# **You should know** [what attention computes](../learn/attention.py) and how the
# [softmax is differentiated](scale.py#what-a-sure-softmax-does-to-gradients). **You will know** each of the five
# products, why a fused kernel keeps its output, what a mask does to gradients, how to test a backward pass of your own,
# and what the gradients are like without the root.

# %% [markdown]
# ## Line by line
#
# The first two lines go back through the product of weights and values:
#
# $$\frac{\partial L}{\partial V} = A^\top \frac{\partial L}{\partial O}, \qquad \frac{\partial L}{\partial A} =
# \frac{\partial L}{\partial O} \, V^\top \tag{9.1}$$
# <!-- where: S, V, G = random("n m", "m c", "n c"); V = V.requires_grad_();
# A = attention_weights(S).requires_grad_(); O = (A @ V); L = (O * G).sum() -->
#
# A value went into every context with some weight, and gets the gradients of the contexts back with the same weights.
# The third line goes back through the softmax. Raise one of several scores, and its own weight grows while all the
# others of the row shrink. So the gradient of a score comes from that of its weight, less what the whole row loses:
#
# $$\frac{\partial L}{\partial s_{ij}} = a_{ij} \left(\frac{\partial L}{\partial a_{ij}} - D_i\right), \qquad D_i =
# \sum_{l} a_{il} \frac{\partial L}{\partial a_{il}} \tag{9.2}$$
# <!-- where: s, v, g = random("n m", "m c", "n c"); s = s.requires_grad_(); a = attention_weights(s);
# L = (a @ v * g).sum(); D = (g * (a @ v)).sum(-1) -->
#
# The sum $D_i$ runs over all keys. But the context is the weighted average of the values, so the context and its
# gradient, multiplied feature by feature, give the same number:
#
# $$D_i = o_i \cdot \frac{\partial L}{\partial o_i} \tag{9.3}$$
# <!-- where: s, v, g = random("n m", "m c", "n c"); o = (attention_weights(s) @ v).requires_grad_();
# L = (o * g).sum(); D = ((g @ v.mT) * attention_weights(s)).sum(-1) -->
#
# That is why a fused kernel of PyTorch's keeps its output for the backward pass: it can compute $D$ before any weight
# is computed again. The last two lines go back through the product of queries and keys, and both have the scale:
#
# $$\frac{\partial L}{\partial Q} = \frac{1}{\sqrt{d_k}} \frac{\partial L}{\partial S} K, \qquad \frac{\partial
# L}{\partial K} = \frac{1}{\sqrt{d_k}} \left(\frac{\partial L}{\partial S}\right)^\top Q \tag{9.4}$$
# <!-- where: Q, K, V, G = random("n d_k", "m d_k", "m c", "n c"); Q = Q.requires_grad_(); K = K.requires_grad_();
# S = Q @ K.mT / d_k**0.5; L = (attention_weights(S) @ V * G).sum() -->

# %% [markdown] tags=["check"]
# The table above: `left_out` compares the package's gradients, and those with a part left out, with autograd's. The
# matrix products are counted while the functions run.

# %% tags=["check"]
torch.manual_seed(0)
query, key, value, grad_context = (
    torch.randn(2, 3, n, d, dtype=torch.float64)
    for n, d in ((6, 5), (7, 5), (7, 4), (6, 4))
)  # batch heads tokens features: all sizes differ
inputs = [each.requires_grad_() for each in (query, key, value)]
found = experiments.left_out(grad_context, *inputs)
costs = [
    [name, *(f"{each:.0%}" for each in off)] for name, off in found.items()
]
saved = tiled_attention(*inputs)
products = {
    "forward": experiments.products(attend, *inputs, implementation="eager"),
    "backward": experiments.products(
        attention_backward, grad_context, *inputs, saved=saved
    ),
}
one = torch.randn(5, dtype=torch.float64)
raised = (one + 0.1 * (torch.arange(5) == 2)).softmax(0) - one.softmax(0)

# %% tags=["claims"]
assert products["backward"] == 5 and max(found["nothing"]) < 1e-12, (
    "Five matrix products, and one sum for each query, give the gradients of query, key and value"
)
assert products["forward"] == 2, "The forward pass takes two"
assert raised[2] > 0 and (raised < 0).sum() == len(raised) - 1, (
    "Raise one of several scores, and its own weight grows while all the others of the row shrink"
)

# %% [markdown]
# ## What is hidden gets nothing
#
# By (9.2), a weight of zero makes the gradient of its score zero. So under a causal mask no gradient goes from a token
# to the keys of later ones. Here are the gradients of the scores of one head, for random tokens:

# %%
torch.manual_seed(1)
scores = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
values = torch.randn(5, 4, dtype=torch.float64)
context = attention_weights(scores, is_causal=True) @ values
(of_scores,) = torch.autograd.grad(context, scores, torch.ones(5, 4))

# %% tags=["hide-input"]
#| caption: The gradients of the scores under a causal mask. Above the diagonal they are exactly zero. Each row sums to
#|   zero. The first query sees one key, whose weight cannot move, so its gradient is zero.
plot.grid(of_scores, allowed=masks.causal(5), axes=("queries", "keys"))

# %% [markdown]
# Here a query that may see nothing passes nothing on, not even a NaN. PyTorch's modules can give NaN [when a row allows
# nothing](masks.py#when-a-row-allows-nothing).

# %% tags=["claims"]
assert not of_scores.triu(1).any() and of_scores.tril()[1:].any(), (
    "Above the diagonal they are exactly zero"
)
assert of_scores.sum(-1).abs().max() < 1e-12 < of_scores.sum(0).abs().max(), (
    "Each row sums to zero"
)
assert of_scores[0].abs().max() < 1e-12, (
    "The first query sees one key, whose weight cannot move, so its gradient is zero"
)

# %% [markdown]
# ## Backward without the whole matrix
#
# PyTorch's fused kernels keep no weights. They keep the context and, for each query, the logarithm of the sum of the
# exponentials of its scores. The exponential of a score less that logarithm is its weight. So the weights of some keys
# can be computed without the others, and the backward pass, too, can [go by parts](tiles.py#merging-parts). The
# argument `saved` passes context and logarithm on:

# %%
saved = tiled_attention(query, key, value, is_causal=True)
seen = masks.causal(6, 7)


def of_keys(some):
    k, v, allowed = key[:, :, some], value[:, :, some], seen[:, some]
    given = {"allowed": allowed, "saved": saved}
    return attention_backward(grad_context, query, k, v, **given)


parts = [of_keys(slice(0, 3)), of_keys(slice(3, 7))]
of_query = parts[0].query + parts[1].query  # these add up
of_key = torch.cat([part.key for part in parts], dim=2)  # these are whole

# %% tags=["check"]
whole = attention_backward(grad_context, *inputs, is_causal=True)

# %% [markdown]
# Each part gives its own keys their whole gradients, and the queries a part of theirs, which add up. A ring of devices,
# each with some of the keys, goes back in the same way.

# %% tags=["claims"]
assert (
    torch.allclose(of_key, whole.key, atol=1e-5)
    and torch.allclose(of_query, whole.query, atol=1e-5)
    and not torch.allclose(parts[0].query, whole.query, atol=1e-5)
), (
    "Each part gives its own keys their whole gradients, and the queries a part of theirs, which add up"
)

# %% [markdown]
# ## A backward pass of your own, and its test
#
# An `autograd.Function` puts the two passes together. Here the forward pass is PyTorch's fused kernel and the backward
# pass is the one above:


# %%
class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return F.scaled_dot_product_attention(q, k, v)

    @staticmethod
    def backward(ctx, grad_context):
        return tuple(attention_backward(grad_context, *ctx.saved_tensors))


# %% [markdown]
# The check for your own tests compares gradients with finite differences, in float64, with sizes that all differ. Its
# last line tests second derivatives, which a gradient penalty needs:

# %%
torch.manual_seed(3)
small = [
    torch.randn(2, 2, n, d, dtype=torch.float64, requires_grad=True)
    for n, d in ((3, 4), (5, 4), (5, 2))
]
print(torch.autograd.gradcheck(Attention.apply, small))
print(torch.autograd.gradgradcheck(Attention.apply, small))

# %% [markdown]
# PyTorch's fused kernels have no second derivative. The lines above do, because they are made of operations that can be
# differentiated. One line switches PyTorch to a kernel with [a second derivative](kernels.py#a-second-derivative).

# %% [markdown]
# ## Without the root, many gradients vanish, and the rest are huge
#
# Many texts say that without the root of d the softmax saturates, its gradients vanish, and nothing is learned. The
# last does not follow. To measure it, let each of 512<!--= examples --> random queries look for one of 16<!--= keys -->
# words. Words and queries have 256<!--= width --> features, and the loss is the distance of the context from the value
# of the word. The table describes the gradients of the matrix that makes the queries, with the root and without:

# %% tags=["hide-input"]
#| caption: What {{ examples }} examples give: the share of those whose scores have a gradient under a hundredth of
#|   the strongest one; then, for the gradients of the matrix, the norm of the median example's, the norm of their sum,
#|   and the cosine of the angle between the sums over the halves of the batch.
examples, keys, width = 512, 16, 256
scaled, unscaled = (
    experiments.of_retrieval(examples, keys=keys, width=width, root=root)
    for root in (True, False)
)
plot.table(
    ["", "scores under 1%", "median norm", "norm of all", "halves agree"],
    {"with the root": scaled, "without": unscaled},
    ["{:.0%}", "{:.0f}", "{:,.0f}", "{:.2f}"],
)

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ of_query.device.type.upper() }}.*
#
# Without the root, more than a third of the examples have next to no gradient at their scores: the softmax has made up
# its mind, and these examples teach nothing. This is what the root is for. But the matrix learns from the others, and
# with large gradients. One over the root of d is also a factor of equation (9.4), on the way from the scores to the
# query, and now it is missing. So all gradients together are {{ unscaled.norm / scaled.norm :.0f}} times as large,
# while the median falls. And the two halves of the batch agree less, because what comes from a few examples is mostly
# noise. In plain gradient descent a learning rate that suits one case does not suit the other, and a bound that seldom
# clips with the root cuts nearly every step without. Adam divides by the size of the gradients, so a common factor does
# not disturb it, but the noise stays.

# %% tags=["claims"]
assert scaled._fields == ("quiet", "median", "norm", "agreement"), (
    "the share of those whose scores have a gradient under a hundredth of the strongest one; then"
)
assert unscaled.quiet > 1 / 3 > scaled.quiet, (
    "more than a third of the examples have next to no gradient at their scores"
)
assert (
    unscaled.median < scaled.median
    and unscaled.agreement < scaled.agreement / 2
), "while the median falls. And the two halves of the batch agree less"

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("row-sums", answer))`.
#
# **Row sums** (`row-sums`). Write a function of the gradient of the context and of the context, which returns $D$ of
# equation (9.3), with a number for each query.
#
# ??? question "Hint"
#
#     Multiply them entry by entry. Which axis goes away?

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def row_sums(grad_context, context):
    return (grad_context * context).sum(-1, keepdim=True)


feedback = check("row-sums", row_sums)
assert feedback
feedback

# %% [markdown]
# **Backward** (`attention-backward`). Write a function of `grad_context, q, k, v` that returns the gradients of `q`,
# `k` and `v`, without autograd. There is no mask, and the scale is the usual one.
#
# ??? question "Hint"
#
#     Compute the weights first. Then follow (9.1), (9.2) and (9.4).


# %% tags=["solution"]
def backward(grad_context, q, k, v):
    scale = q.size(-1) ** -0.5
    weights = (q @ k.mT * scale).softmax(-1)
    of_weights = grad_context @ v.mT
    sums = row_sums(grad_context, weights @ v)
    of_scores = scale * weights * (of_weights - sums)
    return of_scores @ k, of_scores.mT @ q, weights.mT @ grad_context


feedback = check("attention-backward", backward)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [Why is no N x N matrix needed?](tiles.py) The forward pass by tiles, and the log-sum-exp that this page used.
# - [Which kernel ran, and what did it cost?](kernels.py) Memory, second derivatives, and what makes PyTorch switch.
# - [Why divide by the square root of d?](scale.py) The variance of scores, and the Jacobian of the softmax.
#
# ## References
#
# <!--~ 2022, 4, 116350, 181177: references -->
# - Dao et al. (2022), *FlashAttention*: algorithm 4, the backward pass by tiles, and the row sum of (9.3).
# - PyTorch's issues [116350](https://github.com/pytorch/pytorch/issues/116350) and
#   [181177](https://github.com/pytorch/pytorch/issues/181177): people who meet the missing second derivative.
