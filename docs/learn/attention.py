# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # What is attention? A weighted average
#
# **Attention gives each word of a sentence a new vector: a weighted average of the vectors of all its words.** The
# weights come from the vectors themselves. A dot product compares the word with every word, and a softmax turns the
# results into positive weights that sum to one<!--== bool(torch.allclose(weights.sum(-1), torch.ones(11))) -->.
#
# Take *ship* in "I must go back to my ship and to my crew". It keeps 55%<!--== weights[ship, ship] --> of itself,
# takes 13%<!--== weights[ship, crew] --> from *crew*, and 32%<!--== 1 - weights[ship, ship] - weights[ship, crew] -->
# from the other nine<!--== len(words) - 2 --> words. In "We process and ship your order" it keeps
# 78%<!--== order_weights[3, 3] --> of itself, and of the others takes most from
# *order*<!--== order_words[int(order_weights[3].argsort()[-2])] -->. One vector goes in; what comes out depends on
# the sentence.
#
# **You should know** some Python, what a tensor or a NumPy array is, and that `@` multiplies matrices. **You will
# know** how to read the equation of attention, how to work it out by hand, and what each part of it is for.

# %%
import math

import torch

from unmasked import functional, plot
from unmasked.embeddings import ship_vectors, table
from unmasked.functional import (
    attention_scores,
    attention_weights,
    cosine_attention,
    cosine_weights,
    self_attention,
)

# %% [markdown]
# ## Words as vectors
#
# To compute with a word, a network needs numbers. Each word has its *embedding*: a vector, learned from much text in
# such a way that words which are used alike get vectors that point in similar directions. GloVe is a well-known
# collection.

# %%
sentence = "I must go back to my ship and to my crew"
words = sentence.lower().split()
vectors = ship_vectors()

X = vectors.lookup(words)
X.shape

# %% [markdown]
# The matrix `X` has a row for each of the eleven<!--= len(words) --> words, and 50<!--= X.size(-1) --> columns, the
# *dimension* of the vectors. As a picture, words that stand twice in the sentence, *to* and *my*, have equal rows:

# %%
#| alt: A heat map of eleven<!--= len(words) --> rows, the words, and 50<!--= X.size(-1) --> columns. Amber is positive,
#|   teal negative. The two rows of to are equal, and so are the two of my; ship and crew look like no other.
ship, crew = words.index("ship"), words.index("crew")
figure = plot.signed(X, queries=words)
figure.axes[0].set(xlabel="dimension", ylabel="")
figure

# %% [markdown]
# !!! note "Where the vectors come from"
#
#     They are the published ones of GloVe 6B<!--~ a collection's name -->, in 50<!--= X.size(-1) --> dimensions. The
#     package brings the rows of 13<!--= len(vectors) --> words, those of the two sentences on this page. GloVe's
#     authors released their vectors into the public domain, under the license [PDDL
#     1.0](https://opendatacommons.org/licenses/pddl/1-0/)<!--~ a license's name -->. For other words, download
#     `glove.6B.zip`<!--~ a file's name --> from [GloVe's page](https://nlp.stanford.edu/projects/glove/), and read them
#     out of it:
#
#     ```python
#     from unmasked.embeddings import read_glove
#
#     vectors = read_glove("glove.6B.zip", "the cat sat on the mat", dim=50)
#     ```
#
# An embedding is looked up, as in a dictionary. Wherever *ship* stands, at sea or at the post office, it gets the
# same vector. The words around it change nothing yet; that is what attention is for.
#
# ## How alike are two words?
#
# The *dot product* $x \cdot y$ of two vectors multiplies them entry by entry and adds up the products. It is large if
# both are long and point the same way. The *norm* $\lVert x \rVert$ is a vector's length: the square root of the
# vector's dot product with itself. Divide the dot product by both norms, and only the directions count. The result is
# the *cosine* of the angle between them, from minus one (opposite) to one (the same direction):
#
# $$c_{ij} = \frac{x_i \cdot x_j}{\lVert x_i \rVert \, \lVert x_j \rVert} \tag{1.1}$$
# <!-- where: x = random("n d"); c = cosine_weights(x) -->
#
# Here $x_i$ is row $i$ of `X`. Two lines compute the cosines of all pairs (`.mT` swaps rows and columns), and they
# agree with the package's `cosine_weights`. (`assert_close` raises an error unless two tensors are equal up to
# rounding, and else prints nothing.)

# %%
directions = X / X.norm(dim=-1, keepdim=True)
cosines = directions @ directions.mT

torch.testing.assert_close(cosines, cosine_weights(X))
table(cosines, words)

# %% [markdown]
# Read the row of *ship*. It is most like itself, with 1.00<!--= cosines[ship, ship] -->. The nearest other word is
# *crew*<!--= words[int(cosines[ship].argsort()[-2])] -->, with 0.78<!--= cosines[ship, crew] -->; the farthest is
# *i*<!--= words[int(cosines[ship].argmin())] -->, with 0.35<!--= cosines[ship].min() -->.
#
# ## A first attempt: weight by cosine
#
# A *ship* that has a *crew* is not the *ship* of a mail order. So let the other words flow into its vector, each in
# proportion to its likeness to *ship*: multiply every word's vector by its cosine with *ship*, and add them up. First
# with the cosines as the table shows them, then for all words at once and exactly:

# %%
rounded = cosines[ship].round(decimals=2)
by_hand = sum(rounded[word] * X[word] for word in range(len(words)))
summed = cosines @ X

torch.testing.assert_close(summed, cosine_attention(X).context)
by_hand[:6], summed[ship, :6]

# %% [markdown]
# For $n$ words, the sum that belongs to word $i$ is
#
# $$y_i = \sum_{j=1}^{n} c_{ij} \, x_j \tag{1.2}$$
# <!-- where: x = random("n d"); c = cosine_weights(x); y = cosine_attention(x).context -->
# <!-- equivalent: y_i = \sum_{j=1}^{n} c_{j i} \, x_j -->
#
# The idea is right: *ship* now holds something of every word, and more of those that are like it. But an average it
# is not. Here are the sum of the weights of *ship*, and the norm of its vector before and after:

# %%
cosines[ship].sum(), X[ship].norm(), summed[ship].norm()

# %% [markdown]
# The weights sum to 5.74<!--= cosines[ship].sum() -->, and the norm grows from 5.74<!--= X[ship].norm() --> to
# 25.1<!--= summed[ship].norm() -->. (The two figures that agree do so by coincidence<!--= cosines[ship].sum() <
# X[ship].norm() - 0.002 -->.) The longer the sentence, the larger<!--== "larger" if cosines[ship].sum() >
# cosine_weights(Y)[3].sum() else "smaller" --> the sum: in "We process and ship your order", with six<!--==
# len(order_words) --> words, it is 3.00<!--== cosine_weights(Y)[3].sum() -->; these eleven<!--= len(words) --> give
# nearly twice<!--== 1.9 < cosines[ship].sum() / cosine_weights(Y)[3].sum() < 2 --> as much. And because networks apply
# attention many times over, each time to the last result, the growth compounds:

# %%
layers = [X]
for _ in range(4):
    layers.append(cosine_attention(layers[-1]).context)
[round(layer[ship].norm().item(), 1) for layer in layers]

# %% [markdown]
# Four<!--= len(layers) - 1 --> rounds, and the vector is more than
# 8,000<!--= layers[-1][ship].norm() > 8000 * X[ship].norm() --> times as long. What is missing is a step that makes
# every word's weights sum to one.
#
# ## Softmax: weights that sum to one
#
# The results of a comparison, as they are, are called *scores*. The *softmax* turns a row of scores into *weights*:
# take the exponential of each, and divide by their sum.
#
# $$\operatorname{softmax}(s)_j = \frac{e^{s_j}}{\sum_{l=1}^{n} e^{s_l}} \tag{1.3}$$
# <!-- where: s = random("n"); softmax = lambda s: attention_weights(s[None])[0] -->


# %%
def softmax(scores):
    exponentials = scores.exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


some_scores = torch.tensor([[2.0, 1.0, 1.0, -3.0]])
some_weights = softmax(some_scores)

torch.testing.assert_close(some_weights, attention_weights(some_scores))
some_weights

# %% [markdown]
# - Every weight is positive<!--= bool((some_weights > 0).all()) -->, as exponentials are, and together they make
#   one<!--= round(some_weights.sum().item(), 6) == 1 -->, as they were divided by their sum.
# - The larger score has the larger<!--= some_weights[0, 0] > some_weights[0, 1] > some_weights[0, 3] --> weight;
#   equal scores have equal<!--= "equal" if torch.isclose(*some_weights[0, 1:3]) else "unequal" --> weights.
# - Only the differences between scores matter: add the same to all, and the weights stay the same<!--=
#   torch.allclose(softmax(some_scores + 5), some_weights) -->. A score that is larger by one has $e$, or 2.72<!--=
#   some_weights[0, 0] / some_weights[0, 1] -->, times the weight.
#
# The last point helps in practice. In `float32` the exponential of
# 100<!--= next(n for n in range(20, 200, 20) if torch.tensor(float(n)).exp() == math.inf) --> is infinite, so libraries
# subtract<!--= torch.allclose(attention_weights(some_scores + 100), some_weights) -->
# the largest score from the whole row first.
#
# ## Scores: scaled dot products
#
# Which scores should we use? Cosines are timid: they differ by two at most, from minus one to one, so that no word
# could count more than $e^2$, or 7.4<!--= math.exp(1 - -1) -->, times as much as another. The plain dot product knows
# no such bound, and saves the division by the norms. But it is too bold:

# %%
unscaled = softmax(X @ X.mT)
unscaled[ship]

# %% [markdown]
# *ship* would keep practically all of itself, and take 0.003%<!--= unscaled[ship, crew] --> from *crew*. A dot product
# adds up as many products as the vectors have dimensions, and the more it adds, the farther apart its results tend to
# lie. Here is how far, as standard deviation, for random vectors of two sizes:

# %%
spread = {}
for d in (50, 200):
    torch.manual_seed(d)
    one, other = torch.randn(2, 10_000, d)
    spread[d] = round((one * other).sum(dim=-1).std().item(), 2)
spread

# %% [markdown]
# With four<!--= max(spread) / min(spread) --> times the dimensions, they lie
# twice<!--= round(spread[200] / spread[50], 1) == 2 --> as far apart: the spread is the
# root<!--= all(abs(spread[d] / d**0.5 - 1) < 0.02 for d in spread) --> of the dimension $d$. So scores are dot products
# divided by that root, here 7.07<!--= math.sqrt(X.size(-1)) -->:
#
# $$s_{ij} = \frac{x_i \cdot x_j}{\sqrt{d}} \tag{1.4}$$
# <!-- where: x = random("n d"); s = attention_scores(x, x) -->

# %%
scores = X @ X.mT / math.sqrt(X.size(-1))
scores[ship]

# %% [markdown]
# ## The weighted average
#
# Softmax makes weights of these scores, and the weights make an average of the vectors. That average is called the
# *context*. The whole of attention is three lines, one of which you have just seen:

# %%
weights = softmax(scores)
context = weights @ X

torch.testing.assert_close(weights.sum(dim=-1), torch.ones(len(words)))
table(weights, words)

# %% [markdown]
# Each row says what the new vector of its word is made of, and each row sums to one. *ship* keeps
# 55%<!--= weights[ship, ship] --> of itself and takes 13%<!--= weights[ship, crew] --> from *crew*, more than
# twice<!--= weights[ship, crew] > 2 * weights[ship].sort().values[-3] --> as much as from any other word. As equations:
#
# $$o_i = \sum_{j=1}^{n} a_{ij} \, x_j, \qquad a_{ij} = \frac{e^{s_{ij}}}{\sum_{l=1}^{n} e^{s_{il}}} \tag{1.5}$$
# <!-- where: x, k = random("n d", "n d"); s = attention_scores(x, k)
# o, a = functional.scaled_dot_product_attention(x, k, x, need_weights=True) -->
#
# Now see both tables as pictures, the words that ask in rows, those that are asked in columns. On the left, most words
# resemble most others, and a row may sum to anything. On the right, each row divides up a total of one.

# %% tags=["hide-input"]
#| alt: Two heat maps of the sentence, eleven words by eleven. Left, the cosines: most cells are bright; ship and crew
#|   stand apart from the other words, and resemble each other. Right, the weights: most cells are dark; the row of ship
#|   has one bright cell, 0.55<!--= weights[ship, ship] --> on itself, and a fainter one,
#|   0.13<!--= weights[ship, crew] --> on crew.
with plot.figure(7.6, 3.9) as figure:
    left, right = figure.subplots(1, 2)
    for axes, title, matrix in (
        (left, "cosines", cosines),
        (right, "weights", weights),
    ):
        cells = axes.pcolormesh(matrix, vmin=0)
        places = [place + 0.5 for place in range(len(words))]
        axes.set(title=title, aspect="equal", ylim=(len(words), 0))
        axes.set_xticks(places, labels=words, rotation=90)
        axes.set_yticks(places, labels=words)
        figure.colorbar(cells, ax=axes, shrink=0.7)
figure

# %% [markdown]
# An average cannot leave the range of what it averages. No context vector is longer<!--= "longer" if
# (context.norm(dim=-1) <= X.norm(dim=-1).max()).all() else "shorter" --> than the longest word vector, and the norm of
# *ship* goes from 5.74<!--= X[ship].norm() --> to 4.68<!--= context[ship].norm() -->. Repeat it, and nothing runs away.
# But look at the second row of this table, the smallest cosine between any two of the words:

# %%
averaged, added = [X], [X]
for _ in range(4):
    averaged.append(self_attention(averaged[-1]).context)
    added.append(added[-1] + self_attention(added[-1]).context)
    assert averaged[-1].norm(dim=-1).max() <= X.norm(dim=-1).max()

norms = [layer[ship].norm() for layer in averaged]
smallest = [cosine_weights(layer).min() for layer in averaged]
figures = torch.tensor([norms, smallest])
rounds = [f"round {number}" for number in range(5)]
table(figures, ["norm of ship", "smallest cosine"], rounds)

# %% [markdown]
# After three<!--= next(n for n, layer in enumerate(averaged) if torch.allclose(layer, layer[ship], atol=0.01)) -->
# rounds all words are the same vector, and which word is which is lost. That is also why the norm settles: an average
# of equal vectors is that vector. In networks a *residual connection* keeps words apart: it adds each word's old vector
# to its new one. The smallest cosine is then 0.52<!--= cosine_weights(added[-1]).min() --> after four<!--= len(added) -
# 1 --> rounds. The price is that vectors grow again: *ship* then has the norm {{ added[-1][ship].norm() :.0f}}. So
# networks also bring every vector back to a fixed size, in *normalization layers*.

# %% [markdown]
# ## Query, key, value
#
# A word played three parts just now. As the *query* it asked: a row of the table. As a *key* it was compared with a
# query: a column. As a *value* it was averaged. The usual equation keeps the parts apart, because they may be
# different vectors: with the queries as the rows of $Q$, the keys of $K$, the values of $V$, and $d_k$ numbers to
# each key,
#
# $$\operatorname{Attention}(Q, K, V) = \operatorname{softmax}\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V \tag{1.6}$$
# <!-- where: Q, K, V = random("n d_k", "m d_k", "m d_v");
# Attention = lambda *qkv: functional.scaled_dot_product_attention(*qkv).context -->
#
# With $Q$, $K$ and $V$ all equal to $X$, as here, it is *self-attention* without learned matrices: there is nothing in
# it to learn. (The softmax is taken row by row.) The package's `self_attention` computes the same:


# %%
ours = self_attention(X)

torch.testing.assert_close(ours.weights, weights)
torch.testing.assert_close(ours.context, context)
ours.weights[ship]

# %% [markdown]
# ## A dot product is not a cosine
#
# A dot product is the cosine times both norms. Within the row of *ship* the norm of *ship* is a factor that all
# share, but the norm of the other word is not: long vectors are favored. Here are the neighbors of *ship*, nearest
# first, by cosine and by score:


# %%
def neighbors(row):
    value = dict(zip(words, row.tolist(), strict=True))
    return sorted(value, key=value.get, reverse=True)


print(*neighbors(cosines[ship]))
print(*neighbors(scores[ship]))

# %% [markdown]
# The nearest four<!--= sum(map(str.__eq__, neighbors(cosines[ship]), neighbors(scores[ship]))) --> keep their places,
# *ship* itself among them; the order of the others changes. By its cosine *i* comes last<!--= "last" if
# neighbors(cosines[ship])[-1] == "i" else "earlier" -->. Its norm, 6.25<!--= X[words.index("i")].norm() -->, is the
# largest<!--= X.norm(dim=-1).argmax() == words.index("i") --> of all, and lifts it past *must*, *and* and *go*<!--=
# neighbors(scores[ship])[-3:] == ["must", "and", "go"] -->.
#
# A word need not even attend most to itself. *go* takes 18%<!--= weights[words.index("go"), words.index("i")] -->
# from *i* and keeps 14%<!--= weights[words.index("go"), words.index("go")] --> of itself. In the table of cosines
# nothing<!--= bool((cosines.max(dim=-1).values - cosines.diagonal() < 1e-6).all()) --> comes before the word itself.
#
# ## The same word in another sentence
#
# Now the other sentence, with the same function:

# %%
order_words = "We process and ship your order".lower().split()
Y = vectors.lookup(order_words)
order_context, order_weights = self_attention(Y)
table(order_weights, order_words)

# %% [markdown]
# *ship* keeps 78%<!--= order_weights[3, 3] --> of itself here and takes 6%<!--= order_weights[3, 5] --> from *order*.
# It went in as the same vector; it comes out as another:

# %%
assert torch.equal(X[ship], Y[3])
context[ship, :6], order_context[3, :6]

# %% [markdown]
# The two contexts are still close, with a cosine of
# 0.983<!--= torch.cosine_similarity(context[ship], order_context[3], dim=0) -->, since each is mostly *ship*.
# Attention in trained models makes queries, keys and values by multiplying the words' vectors by three learned
# matrices. Those decide what a word looks for, and how far its neighbors move it.
#
# ## By hand
#
# Three tokens of four numbers are small enough for pencil and paper. (A *token* is what a model treats as one word.)

# %%
rows = [[1.0, 0.0, 0.0, 1.0], [0.0, 1.5, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]]
x = torch.tensor(rows)
attention_scores(x, x)

# %% [markdown]
# The root of the dimension is 2<!--= math.sqrt(x.size(-1)) -->. The first token has the dot product
# 2<!--= x[0] @ x[0] --> with itself and 1<!--= x[0] @ x[1] == x[0] @ x[2] == 1 --> with each of the others, so its
# scores are (1, 0.5, 0.5)<!--= attention_scores(x, x)[0].tolist() -->. Their exponentials are
# 2.7183<!--= math.exp(1) -->, 1.6487<!--= math.exp(1 / 2) --> and 1.6487<!--= math.exp(1 / 2) -->, which sum to
# 6.0157<!--= math.exp(1) + 2 * math.exp(1 / 2) -->. Divide, and you have the first row of weights: (0.4519, 0.2741,
# 0.2741)<!--= self_attention(x).weights[0].tolist() -->.

# %%
self_attention(x).weights

# %%
self_attention(x).context

# %% [markdown]
# Two columns of the context need no calculation. Only the first token has anything in the first column, a one, so that
# column of the context holds the weight that every token gives to the first<!--=
# torch.allclose(self_attention(x).context[:, 0], self_attention(x).weights[:, 0]) -->. In the last column all tokens
# have a one, and the average of ones is 1.0000<!--= self_attention(x).context[:, 3].mean() -->, because the weights sum
# to one. And here too a token prefers another: the third takes 0.4842<!--= self_attention(x).weights[2, 1] --> from the
# second, which is longer<!--= "longer" if x[1].norm() > x[2].norm() else "shorter" -->, and keeps 0.3771<!--=
# self_attention(x).weights[2, 2] --> of itself.
#
# ## A version that looks right
#
# Equation (1.6) with one letter changed: this function averages the queries, where it should average the values.


# %%
def attention(query, key, value):
    return softmax(query @ key.mT / math.sqrt(key.size(-1))) @ value


def broken(query, key, value):
    return softmax(query @ key.mT / math.sqrt(key.size(-1))) @ query


torch.testing.assert_close(broken(X, X, X), context)
torch.testing.assert_close(broken(Y, Y, Y), order_context)
broken(x, x, x)

# %% [markdown]
# It passes every check that this page has made so far, and gives the same context as above: in self-attention without
# learned matrices the queries *are* the values. What tells the two functions apart is an input that keeps the parts
# apart:

# %%
torch.manual_seed(1)
query, key, value = torch.randn(3, 5, 7)

right = functional.scaled_dot_product_attention(query, key, value).context
torch.testing.assert_close(attention(query, key, value), right)
assert not torch.allclose(broken(query, key, value), right, atol=1)
(broken(query, key, value) - right).abs().max()

# %% [markdown]
# Better still, give every axis a size of its own, and the mistake cannot even run where it counts: two queries that
# look at five keys, with seven numbers to a key and three to a value.

# %%
torch.manual_seed(2)
query, key, value = torch.randn(2, 7), torch.randn(5, 7), torch.randn(5, 3)

assert attention(query, key, value).shape == (2, 3)
try:
    broken(query, key, value)
except RuntimeError as error:
    print(error)
else:
    raise AssertionError("averaged the queries, unnoticed")

# %% [markdown]
# ## Exercises
#
# `check` judges an answer by the name in brackets: [how to do the exercises](../install.md#do-the-exercises).
#
# **With `math.exp` alone** (`by-hand`). Write `attend(rows)` without torch: it takes a list of tokens, each a list of
# numbers, and returns the context in the same form. Which weights has the second of the three tokens above?
#
# ??? question "Hint"
#
#     For one token: its scores with all, their exponentials, each divided by their sum. Then, column by column, the
#     average.

# %% tags=["solution"]
from unmasked.exercises import check


def dot(a, b):
    return sum(p * q for p, q in zip(a, b, strict=True))


def weights_of(row, rows):
    scores = [dot(row, other) / math.sqrt(len(row)) for other in rows]
    exponentials = [math.exp(score) for score in scores]
    return [exponential / sum(exponentials) for exponential in exponentials]


def attend(rows):
    columns = list(zip(*rows, strict=True))
    weights = [weights_of(row, rows) for row in rows]
    return [[dot(each, column) for column in columns] for each in weights]


torch.testing.assert_close(
    torch.tensor(attend(rows)), self_attention(x).context
)
print([round(weight, 4) for weight in weights_of(rows[1], rows)])
check("by-hand", attend)

# %% [markdown]
# **Lengths from another sentence** (`is-cosines`). Someone keeps the norms of "to my ship and my crew" in a variable,
# and divides the vectors of `Y` by them: `borrowed` below. Both sentences have six<!--= len(order_words) --> words, so
# nothing fails. Write `is_cosines(table)`, which says whether a square table can be one of cosines.
#
# ```python
# others = vectors.lookup("to my ship and my crew")
# norms = others.norm(dim=-1, keepdim=True)
# borrowed = (Y / norms) @ (Y / norms).mT
# ```
#
# ??? question "Hint"
#
#     What is the cosine of a vector with itself?


# %% tags=["solution"]
def is_cosines(table):
    return torch.allclose(table.diagonal(), torch.ones_like(table.diagonal()))


others = vectors.lookup("to my ship and my crew")
norms = others.norm(dim=-1, keepdim=True)
borrowed = (Y / norms) @ (Y / norms).mT

assert is_cosines(cosine_weights(Y))
assert not is_cosines(borrowed)
check("is-cosines", is_cosines)

# %% [markdown]
# ??? success "Which property"
#
#     Every word points the same way as itself: the diagonal of a table of cosines is all ones. (No cosine exceeds one
#     either, but that is a weaker check: norms that are too large pass it.)
#
# **Why not divide by the sum?** (`sum-of-zero`) Cosines that are divided by the sum of their row sum to one as well.
# How much of itself would *ship* keep? Find two vectors for which this fails altogether, as the rows of a tensor.
#
# ??? question "Hint"
#
#     One of the two cosines in each row is one. What must the other be?

# %% tags=["solution"]
shares = cosines / cosines.sum(dim=-1, keepdim=True)
print(f"ship keeps {shares[ship, ship].item():.0%} of itself")

opposite = torch.tensor([[3.0, 4.0], [-3.0, -4.0]])
sums = cosine_weights(opposite).sum(dim=-1)
assert sums.abs().max() < 1e-6
print("sums of cosines", sums)
print("weights", self_attention(opposite).weights)
check("sum-of-zero", opposite)

# %% [markdown]
# ??? success "Which two vectors"
#
#     Any two that point in opposite directions. Their cosines sum to zero, by which nothing can be divided. The sum of
#     exponentials is always positive.

# %% tags=["remove-cell"]
assert check("by-hand", attend)
assert check("is-cosines", is_cosines)
assert check("sum-of-zero", opposite)

# %% [markdown]
# ## What to read next
#
# - [Why divide by the square root of d_k?](../pytorch/scale.py): what the root does, and what happens without it.
# - [The weight bypass](../pytorch/bypass.py): the learned matrices that PyTorch's `nn.MultiheadAttention` puts around
#   these three lines, and how to switch them off.
# - [Multi-head attention from scratch](../pytorch/from_scratch.py): several attentions side by side, compared with
# PyTorch's.
# - [Notation](../notation.md) for the names and symbols, the [API reference](../reference/index.md) for the functions,
#   [home](../index.md)<!--~ link: its title is the site's --> for everything else.
#
# ## References
#
# <!--~ 2017, 3.2.1, 1, 2015, 3.1, 5, 6, 2021, 2014: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.1, equation 1, for (1.6); (1.4) and (1.5) are its
#   parts for Q = K = V.
# - Bahdanau, Cho and Bengio (2015), *Neural Machine Translation by Jointly Learning to Align and Translate*: section
#   3.1, equations 5 and 6, for the weighted average and its softmax, with another score than the dot product.
# - Dong, Cordonnier and Loukas (2021), *Attention Is Not All You Need: Pure Attention Loses Rank Doubly Exponentially
#   with Depth*, for words that become one vector, and what residual connections do against it.
# - Pennington, Socher and Manning (2014), *GloVe: Global Vectors for Word Representation*, for the vectors.
