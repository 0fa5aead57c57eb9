# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Does attention know word order?
#
# **No. Shuffle the words, and each word gets the same context as before: only the rows change
# places<!--== shuffled_alike -->.** Attention by itself sees a bag of words. Two things bring order in: a causal mask,
# under which a word sees what came before it<!--== not causal_alike -->, and positions added to the embeddings.
#
# A consequence that surprises: in "I must go back to my ship and to my crew", *my* and *to* occur twice, and both
# times get exactly the same context<!--== twins -->, though one *my* belongs to *ship* and the other to *crew*.
#
# **You should know** [what attention computes](01_what_is_attention.py). **You will know** what *permutation
# equivariance* is and how to test for it, what breaks it, and what a model gains when it is broken.

# %%
import torch
from torch import nn

from unmasked import MultiheadAttention, plot, self_attention
from unmasked.embeddings import ship_vectors

words = ["i", "must", "go", "back", "to", "my", "ship", "and", "to", "my", "crew"]
X = ship_vectors().lookup(words).double()  # tokens features

# %% [markdown]
# ## Shuffle, then attend; or attend, then shuffle
#
# Put the words in another order, compute attention, and compare with the rows of the original, put in that order:

# %%
torch.manual_seed(4)
order = torch.randperm(len(words))
print(" ".join(words[place] for place in order))

context, weights = self_attention(X)
shuffled = self_attention(X[order])
shuffled_alike = torch.allclose(shuffled.context, context[order])
assert shuffled_alike
assert torch.allclose(shuffled.weights, weights[order][:, order])  # rows and columns move together

# %% tags=["hide-input"]
#| alt: A heat map of the weights, in the order of the sentence. The darkest cells lie on the diagonal, where a word
#|   meets itself, and where the two my and the two to meet.
plot.heatmap({"as written": weights}, queries=words, keys=words)

# %% tags=["hide-input"]
#| alt: The heat map of the shuffled sentence, with its words beside the rows and above the columns. Its darkest cells
#|   are again where a word meets itself.
another = [words[place] for place in order]
plot.heatmap({"shuffled": shuffled.weights}, queries=another, keys=another)


# %%
def permutation(n):
    """A matrix that puts rows into another order."""
    return torch.eye(n, dtype=torch.float64)[torch.randperm(n, generator=torch.Generator().manual_seed(n))]


# %% [markdown]
# A function that commutes with reordering is called *permutation equivariant*. With $P$ for the matrix that reorders
# the rows of $X$,
#
# $$\operatorname{Attention}(P X) = P \operatorname{Attention}(X)$$
# <!-- where: X = random("n d"); P = permutation(n); Attention = lambda x: self_attention(x).context -->
#
# Why? Scores compare two words by their vectors and nothing else, so reordering moves them about without changing any:
# $P X (P X)^\top = P \, X X^\top P^\top$<!-- where: X = random("n d"); P = permutation(n) -->. The softmax works on one
# row at a time and does not mind the order of its terms. And an average does not mind the order of what it adds up.
#
# The same holds for projections of any kind, for many heads, and for PyTorch's module: each token is treated by the
# same matrices.

# %%
torch.manual_seed(5)
module = nn.MultiheadAttention(50, 5, batch_first=True).double()
ours = MultiheadAttention(50, 5, batch_first=True).double()
for attend in (module, ours):
    before = attend(X[None], X[None], X[None])[0][0]
    after = attend(X[None, order], X[None, order], X[None, order])[0][0]
    torch.testing.assert_close(after, before[order])

# %% [markdown]
# ## Same word, same row
#
# *my* stands at two places of the sentence with the same embedding, so both ask the same question of the same words and
# get the same answer:

# %%
first, second = (place for place, word in enumerate(words) if word == "my")
twins = torch.equal(context[first], context[second]) and torch.equal(
    *context[[place for place, word in enumerate(words) if word == "to"]]
)
f"distance {(context[first] - context[second]).norm():.1f}"

# %% [markdown]
# No layer on top of it can tell them apart, since all that follows treats every token alike. For some tasks that is
# what is wanted: a set of points has no order. For language it is not: *dog bites man*.
#
# ## The causal mask breaks the symmetry
#
# Under a causal mask the second *my* sees more than the first: the words between them.

# %%
causal = self_attention(X, is_causal=True).context
causal_shuffled = self_attention(X[order], is_causal=True).context
causal_alike = torch.allclose(causal_shuffled, causal[order])
apart = (causal[first] - causal[second]).norm().item()
causal_alike, apart

# %% [markdown]
# Their contexts are now 0.4<!--= apart --> apart. So a causal model can know some order without being told positions:
# how many words it sees is an answer. What it cannot know is the order of the words *before* a word. Shuffle these, and
# the last word's context is what it was:

# %%
earlier = torch.cat([torch.randperm(10, generator=torch.Generator().manual_seed(6)), torch.tensor([10])])
last, last_shuffled = causal[-1], self_attention(X[earlier], is_causal=True).context[-1]
torch.testing.assert_close(last_shuffled, last)

# %% [markdown]
# With one layer that is all. With two, the earlier words' own contexts depend on what came before *them*, and the last
# word sees these:


# %%
def two_layers(x):
    x = x + self_attention(x, is_causal=True).context
    return self_attention(x, is_causal=True).context


moved = (two_layers(X[earlier])[-1] - two_layers(X)[-1]).norm().item()
moved

# %% [markdown]
# It moves by 0.49<!--= moved -->: a deep causal model can learn order from the mask alone.
#
# ## Positions, added
#
# The usual way is to say where each word stands: add to each embedding a vector that belongs to its place. Then the two
# *my* are two vectors, and everything is as before with these.

# %%
torch.manual_seed(7)
positions = 0.5 * torch.randn(len(words), 50, dtype=torch.float64)  # a vector for each place
placed = self_attention(X + positions)
placed_shuffled = self_attention(X[order] + positions)  # the words move, the places do not

told_apart = (placed.context[first] - placed.context[second]).norm().item()
order_matters = not torch.allclose(placed_shuffled.context, placed.context[order])
told_apart, order_matters

# %% [markdown]
# The two *my* are 3.2<!--= told_apart --> apart, and order matters<!--= order_matters -->. How positions are best
# given, by sinusoids, rotations or slopes, is a question of its own.
#
# ## A module that should not know order, and does
#
# Equivariance is a test that needs no reference. Here is attention over a *set*, written by hand, and a version with one
# mistake: its heads are made by a `reshape` alone, without exchanging two axes.


# %%
def right_set_attention(x, num_heads=5):
    split = x.unflatten(-1, (num_heads, -1)).transpose(-3, -2)  # heads tokens head_dim
    return self_attention(split).context.transpose(-3, -2).flatten(-2)


def wrong_set_attention(x, num_heads=5):
    split = x.reshape(num_heads, len(x), -1)  # heads tokens head_dim, it says
    return self_attention(split).context.reshape(len(x), -1)


def is_equivariant(f, x):
    order = torch.arange(len(x) - 1, -1, -1)  # backwards
    return torch.allclose(f(x[order]), f(x)[order])


assert wrong_set_attention(X).shape == right_set_attention(X).shape
is_equivariant(right_set_attention, X), is_equivariant(wrong_set_attention, X)

# %% [markdown]
# The right one is equivariant<!--= is_equivariant(right_set_attention, X) -->. The wrong one is not<!--= not
# is_equivariant(wrong_set_attention, X) -->: which features a head gets depends on where a token stands. With one head
# the two are the same<!--= torch.equal(wrong_set_attention(X, 1), right_set_attention(X, 1)) -->, and a test of that
# size would pass.
#
# ## Exercises
#
# **Test for order.** Write `is_equivariant(f)`, which says whether a function from (tokens, features) to
# (tokens, features) is permutation equivariant. It is tried on functions that are and that are not.
#
# ??? question "Hint"
#
#     One order is not enough: a function may survive being reversed. Try a few, on numbers that all differ.

# %% tags=["solution"]
from unmasked.exercises import check


def tells_order(f):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 8, generator=generator, dtype=torch.float64)
    orders = [torch.randperm(5, generator=generator) for _ in range(10)]
    return all(torch.allclose(f(x[order]), f(x)[order]) for order in orders)


check("is-equivariant", tells_order)

# %% [markdown]
# **Tell the twins apart.** Write `place(x)`, which returns x of (tokens, features) with something added to each row, so
# that equal rows at different places get different contexts and x keeps its shape.
#
# ??? question "Hint"
#
#     Anything that depends on the row's number will do.


# %% tags=["solution"]
def place(x):
    number = torch.arange(len(x), dtype=x.dtype)[:, None]
    return x + torch.sin(number / 10 ** torch.linspace(0, 2, x.size(-1), dtype=x.dtype))


check("tell-apart", place)

# %% [markdown]
# ## What to read next
#
# - [Who may see whom?](05_masks.py): the causal mask, and others.
# - [The museum of mistakes](09_heads.py): what else a shuffled input reveals.
#
# ## References
#
# <!--~ references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.5, positional encoding.
# - Lee et al. (2019), *Set Transformer*: section 3.1, attention that is permutation equivariant by design.
# - Haviv et al. (2022), *Transformer Language Models without Positional Encodings Still Learn Positional Information*.
