# %% [markdown]
# # Attention in ten minutes
#
# **Attention lets every word look at the other words, and take in what it needs from them.**

# %% tags=["hide-input", "no-snippet"]
#| caption: Arcs and bars show what the word *ship* takes from each word of its sentence. Beside a *crew* it keeps {{
#|   asked[0].kept :.0%}} of itself, and of the others takes most from *crew*. Beside an *order* it keeps {{
#|   asked[1].kept :.0%}}, and takes most from *order*.
#| script: ../../src/unmasked/figures/sentence.js
#| data: sentence_data
from IPython.display import HTML

from unmasked.figures.sentence import ask, side_by_side

by_sea = "i must go back to my ship and to my crew"
asked = ask("ship", by_sea, "we process and ship your order")
sentence_data = {"sentences": [each.data for each in asked], "dim": 50}
HTML(side_by_side(asked))

# %% [markdown]
# <div class="overview" data-here="attention"></div>
#
# The word *ship* means one thing at sea, and another in a warehouse. A *language model*, a program that guesses the
# next word of a text, begins with the same numbers for both, because it looks each word up in a table. Attention is the
# step that lets the neighbors change those numbers, so that *ship* gets other numbers beside *crew* than beside
# *order*. Nearly all large language models take this step again and again, for each word that they read or write.
#
# This page shows how the step works: first with three words and a pencil, at the end with three lines of Python. You
# need to know some Python, and what a dot product is: multiply two lists of numbers, place by place, and add up. Point
# at a word or a number with a thin line below it, and you see what it means, or how it is checked.

# %% tags=["claims"]
assert asked[0].neighbor == "crew", "and of the others takes most from crew"
assert asked[1].neighbor == "order", "and takes most from order"

# %% [markdown]
# ## Three words and a pencil
#
# Take the three words *my ship crew*. Let each word be a list of two numbers, which is called its *vector*. The numbers
# are invented here. They say how much a word has to do with the sea, and how much with trade, on a scale from minus
# one, for nothing, to one, for much.

# %% tags=["hide-input"]
#| caption: Three words as vectors, a row for each word and a column for each number. Its shape, `(3, 2)`<!--=
#|   three.shape -->, stands above. *ship* belongs to the sea and to trade alike, *crew* more to the sea, *my* to
#|   neither.
import math

import torch

from unmasked import functional, plot, self_attention

three_words, features = ["my", "ship", "crew"], ["sea", "trade"]
three = torch.tensor([[-1, -1], [1, 1], [1, 0]])
title = "words and their numbers"
plot.grid(three, title, rows=three_words, columns=features)

# %% [markdown]
# What does *ship* take from each word? The answer needs four steps.
#
# 1. **Compare.** Take the dot product of *ship* with each word. The more two words have in common, the larger it is.
# 2. **Tone down.** A word has two numbers here, and the square root of two is 1.4142<!--= math.sqrt(three.size(1)) -->.
#    Divide each dot product by it. [Another page](../pytorch/scale.py)<!--~ link: the page asks why --> shows why: dot
#    products of many numbers tend to be large, and then the word that is ahead takes nearly all the weight, even if it
#    is only a little ahead. The results are called *scores*.
# 3. **Make shares of them.** Compute *e* to the power of each score; *e* is 2.718<!--= math.e -->. Then divide each
#    result by the sum of all three. The shares are called *weights*, and they add up to one.
# 4. **Average.** Multiply each word's vector by its weight, and add up the three vectors.
#
# {{ by_hand }}
#
# Check one row with a pencil. The sum of the powers of *e* is 6.3845<!--= sum(powers) -->. Divide 2.0281<!--= powers[2]
# --> by that sum, and you have the weight of *crew*, 0.3177<!--= shares[2] -->. So *ship* takes 32%<!--= shares[2] -->
# from *crew*, and keeps 64%<!--= shares[1] --> of itself.

# %% tags=["remove-cell"]
names = [f"*{name}*" for name in three_words]
dots = (three @ three[1]).tolist()
scored = [dot / math.sqrt(three.size(1)) for dot in dots]
powers = [math.exp(score) for score in scored]
shares = [power / sum(powers) for power in powers]
by_hand = plot.table(
    ["*ship* looks at", "dot product", "score", "*e* to the score", "weight"],
    [*zip(names, dots, scored, powers, shares)],
    ["{}", *["{:.4f}"] * 3],
).markdown()

# %% [markdown]
# Step four goes column by column. In the column of the sea, *my* has minus one, and *ship* and *crew* have one. So the
# new number there is the weight of *ship* plus that of *crew* minus that of *my*:
#
# {{ averaged }}

# %% tags=["remove-cell"]
new = torch.tensor(shares) @ three.float()
rows = {"*ship*, before": three[1].tolist(), "*ship*, after": new.tolist()}
averaged = plot.table(["", *features], rows, "{:.4f}").markdown()

# %% [markdown]
# Before, *ship* had as much of trade as of the sea. Now it has more of the sea than of trade, for its neighbor *crew*
# belongs to the sea as well. That is all that attention does. What is left on this page is to look at it from other
# sides, and to give its parts their names.

# %% tags=["claims"]
assert dots[1] > dots[2] > dots[0], (
    "The more two words have in common, the larger it is"
)
assert math.isclose(
    shares[1] + shares[2] - shares[0], new[0], abs_tol=1e-6
), (
    "In the column of the sea, my has minus one, and ship and crew have one. "
    "So the new number there is the weight of ship plus that of crew minus that of my"
)
assert new[0] > new[1], "Now it has more of the sea than of trade"
assert torch.allclose(
    self_attention(three.float()).context[1], new, atol=1e-5
), "That is all that attention does"

# %% [markdown]
# ## The same with arrows
#
# A list of two numbers can be drawn as an arrow. Two arrows that point the same way have a large dot product; at a
# right angle it is zero; if they point in opposite directions, it is negative. So each word takes most from the words
# that point its own way, and more from long arrows than from short ones, whose dot products are smaller. Here are the
# three words from above. Look at where each arrow moves.

# %% tags=["hide-input"]
#| alt: Three arrows from one point, and a ring near the tip of each. The ring of ship lies on crew's side of its arrow.
#|   The arrow of my points away from both others.
#| caption: The three words as arrows. Attention moves the tip of each arrow to its ring. *ship* takes {{
#|   weights_of_arrows[1, 2] :.0%}} from *crew*, at an angle of {{ angle :.0f}} degrees, and {{ weights_of_arrows[1, 0]
#|   :.0%}} from *my*, which points the opposite way.
#| script: ../../src/unmasked/figures/arrows.js
#| data: arrow_data
from unmasked.figures import arrows as drawing

arrows = three.float()
moved, weights_of_arrows = self_attention(arrows)
angle = drawing.angle(arrows[1], arrows[2])
arrow_data = {"names": three_words, "start": 1, "vectors": arrows}
arrow_data |= {"weights": weights_of_arrows, "context": moved}
drawing.moved(arrows, three_words, ("sea", "trade"))

# %% tags=["claims"]
assert dots[0] < 0, "if they point in opposite directions, it is negative"
assert moved[1, 1] / moved[1, 0] < arrows[1, 1] / arrows[1, 0], (
    "The ring of ship lies on crew's side of its arrow"
)
assert (arrows[1:] @ arrows[0] < 0).all(), (
    "The arrow of my points away from both others"
)
assert (
    torch.cosine_similarity(three[0].float(), three[1].float(), dim=0) < -0.99
), "which points the opposite way"


# %% [markdown]
# ## Softmax: from scores to weights
#
# Step three has a name: the *softmax*. It is two lines of Python with PyTorch, a library whose arrays, called
# *tensors*, work much as numpy's do. (What numpy calls `axis` is `dim` here.) The function turns the scores of *ship*
# into weights:


# %% tags=["imports"]
import torch


def softmax(scores):
    powers = scores.exp()
    return powers / powers.sum(dim=-1, keepdim=True)  # dim=-1: of each row


scores_of_ship = torch.tensor([-2.0, 2.0, 1.0]) / 2**0.5
softmax(scores_of_ship)

# %% [markdown]
# These are the weights that you found with a pencil. Three properties make the softmax useful:
#
# - Every weight is positive, and the weights of a word add up to one. So they divide up a whole, and what they make is
#   an average.
# - The larger score gets the larger weight. A score that is larger by one gets 2.7 times<!--=
#   softmax(torch.tensor([1.0, 2.0]))[1] / softmax(torch.tensor([1.0, 2.0]))[0] --> the weight.
# - If the scores lie far apart, the largest takes nearly everything. The name says so: it is a *soft* maximum.

# %% tags=["hide-input"]
#| caption: The weights of *ship* for its scores as they are, for scores four times and sixteen times as large. The
#|   larger the scores, the more goes to *ship* itself.
sharper = [1, 4, 16]
grown = torch.stack([softmax(factor * scores_of_ship) for factor in sharper])
named = ["as they are", "times 4", "times 16"]
plot.grid(grown, "weights of ship", rows=named, columns=three_words)

# %% tags=["claims"]
assert torch.allclose(grown[0], torch.tensor(shares), atol=1e-5), (
    "These are the weights that you found with a pencil"
)
assert (grown > 0).all() and torch.allclose(
    grown.sum(1), torch.ones(3), atol=1e-6
), "Every weight is positive, and the weights of a word add up to one"
assert grown[0].argsort().equal(scores_of_ship.argsort()), (
    "The larger score gets the larger weight"
)
assert grown[-1].max() > 0.99, "the largest takes nearly everything"
assert (grown[:, 1].diff() > 0).all(), (
    "The larger the scores, the more goes to ship itself"
)

# %% [markdown]
# ## Words as vectors
#
# Now with real words. Nobody invents the numbers of a word: a program learns them from much text, in such a way that
# words which are used alike get vectors that point in similar directions. Such a vector is called the word's
# *embedding*. These are from [GloVe](https://nlp.stanford.edu/projects/glove/), a well-known collection:

# %% tags=["imports"]
from unmasked.embeddings import ship_vectors

sentence = "i must go back to my ship and to my crew"
words = sentence.split()
X = ship_vectors().lookup(words)
X.shape

# %% [markdown]
# `X` has a row for each of the eleven words, and 50<!--= X.size(1) --> columns. Nobody can say what a single column
# means.
#
# ??? note "Where the vectors come from, and how to get others"
#
#     They are the published vectors of GloVe 6B<!--~ a collection's name -->, which their authors released into the
#     public domain (license [PDDL 1.0](https://opendatacommons.org/licenses/pddl/1-0/)<!--~ a license's name -->).
#     `unmasked` brings those of 13<!--= len(ship_vectors()) --> words. For other words, download
#     `glove.6B.zip`<!--~ a file's name -->; `read_glove` is a reader of GloVe's files:
#
#     ```python
#     from unmasked.embeddings import read_glove
#
#     vectors = read_glove("glove.6B.zip", "the cat sat on the mat", dim=50)
#     ```

# %% [markdown]
# ## The same word in two sentences
#
# An embedding is looked up, as in a dictionary. Wherever *ship* stands, it gets the same vector. Attention then gives
# it a new one, and now the sentence counts. Here are all weights of the other sentence:

# %% tags=["hide-input"]
#| caption: The weights of six words. Rows are queries, the words that look. Columns are keys, the words that are looked
#|   at. Find the row of *ship*: it keeps {{ second_weights[3, 3] :.0%}} of itself.
second = asked[1].words
Y = ship_vectors().lookup(second)
second_context, second_weights = self_attention(Y)
title = "weights: queries in rows, keys in columns,"
plot.grid(second_weights, title, rows=second, columns=second)

# %% [markdown]
# Each row adds up to one. In this sentence each word takes most from itself: its own vector points exactly its own way.
# (A longer vector can still win: beside the *crew*, *go* takes more from *i* than from itself.) In the sentence with
# the *crew*, *ship* keeps less of itself: 55%<!--= weights[6, 6] -->, against 78%<!--= second_weights[3, 3] --> here.
# So one vector went in, and two different ones come out:

# %% tags=["hide-input"]
#| caption: Six of the 50<!--= X.size(1) --> numbers of *ship*, those in which the two sentences differ most: as they
#|   are looked up, as attention makes them beside a *crew*, and as it makes them beside an *order*. Beside an *order*
#|   they stay nearer to those that were looked up, because *ship* keeps more of itself.
first_context, first_weights = self_attention(X)
ships = torch.stack([X[6], first_context[6], second_context[3]])
most = (ships[1] - ships[2]).abs().topk(6).indices.sort().values
columns = [f"{place + 1}" for place in most]
named = ["looked up", "with crew", "with order"]
plot.grid(ships[:, most], "ship", rows=named, columns=columns)

# %% tags=["claims"]
assert second_weights.argmax(1).equal(torch.arange(6)), (
    "In this sentence each word takes most from itself"
)
assert (
    first_weights[words.index("go"), 0]
    > first_weights[words.index("go"), words.index("go")]
), "go takes more from i than from itself"
assert first_weights[6, 6] < second_weights[3, 3], "ship keeps less of itself"
assert torch.allclose(X[6], Y[3], atol=1e-6) and not torch.allclose(
    first_context[6], second_context[3], atol=0.1
), "So one vector went in, and two different ones come out"
assert second_weights[3, 3] > first_weights[6, 6] and torch.dist(
    *ships[[0, 2]]
) < torch.dist(*ships[[0, 1]]), (
    "they stay nearer to those that were looked up, because ship keeps more of itself"
)

# %% [markdown]
# ## Query, key and value
#
# In the pencil example, *ship* was the word that asked, and every word answered. The answers decided how much of each
# word went into the average. So a word can play three roles, and they have names:
#
# | Vector | Its role | With the pencil |
# | --- | --- | --- |
# | *query* | asks: it is compared with every key | the row of *ship*, which was compared |
# | *key* | is asked: it is compared with every query | each row that *ship* was compared with |
# | *value* | is handed over: it is averaged | each row that was multiplied by its weight |
#
# So far each word played all roles with one and the same vector. But a word seldom looks for words like itself. *my*,
# for example, looks for a noun, but is not a noun. So in a trained model each word has three vectors, one for each
# role. They are made from the word's embedding by three matrices. What those matrices learn is the subject of [the next
# page](queries_keys_values.py)<!--~ link: its title is a question -->.

# %% [markdown]
# ## In three lines, and as an equation
#
# For all words at once, the dot products are one product of matrices: `X @ X.mT` multiplies each row of X by each row
# of X. (`.mT` turns rows into columns, and `X.size(-1)` is the length of a row: numpy's `X.shape[-1]`<!--~ numpy's name
# of it -->.) With that, attention is three lines:

# %%
scores = X @ X.mT / X.size(-1) ** 0.5
weights = softmax(scores)
context = weights @ X

# %% [markdown]
# The new vectors are called the *context*. Here is what *ship* takes. It keeps 55%<!--= weights[6, 6] --> of itself
# and takes 13%<!--= weights[6, 10] --> from *crew*, as in [Figure 1](#figure-1):

# %%
weights[words.index("ship")].mul(100).round().int()  # percent

# %% [markdown]
# In symbols, the first two steps give the score of word $i$ and word $j$, where a word has $d$ numbers:
#
# $$s_{ij} = \frac{x_i \cdot x_j}{\sqrt{d}} \tag{1.1}$$
# <!-- where: x = random("n d"); s = functional.attention_scores(x, x) -->
#
# Steps three and four make the weights $a_{ij}$ of word $i$, and its new vector $o_i$, the average of all $n$ words:
#
# $$o_i = \sum_{j=1}^{n} a_{ij} \, x_j, \qquad a_{ij} = \frac{e^{s_{ij}}}{\sum_{l=1}^{n} e^{s_{il}}} \tag{1.2}$$
# <!-- where: x, k = random("n d", "n d"); s = functional.attention_scores(x, k)
# o, a = functional.attend(x, k, x, need_weights=True) -->
#
# Papers write all of it in one line. The queries are the rows of $Q$, the keys of $K$, the values of $V$, and a key has
# $d_k$ numbers:
#
# $$\operatorname{Attention}(Q, K, V) = \operatorname{softmax}\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V \tag{1.3}$$
# <!-- where: Q, K, V = random("n d_k", "m d_k", "m d_v");
# Attention = lambda *qkv: functional.attend(*qkv).context -->
#
# Read it from the inside: compare each query with each key, tone down, make shares of each row, and average the values.
# On this page the queries, the keys and the values were all the rows of `X`. That is called *self-attention* without
# learned matrices.

# %% tags=["claims"]
assert torch.allclose(
    scores, functional.attention_scores(X, X), atol=1e-5
) and torch.allclose(context, first_context, atol=1e-5), (
    "With that, attention is three lines"
)

# %% [markdown]
# ## Recap
#
# - Attention gives each word a new vector: a weighted average of the vectors of all words.
# - The weights are a softmax of scores, and a score is a dot product, divided by a square root.
# - A word asks with its query, is found by its key, and hands over its value.
#
# ## Exercises
#
# `print(check(name, answer))`, with `check` of `unmasked.exercises`, judges an answer by the name in brackets: [how to
# do the exercises](../install.md#do-the-exercises).
#
# **Pull it ashore** (`pull-to-trade`). Put another word in the place of *crew*: a list of two numbers, each from minus
# one to one. Choose them so that *ship* ends up with more of trade than of the sea.
#
# ??? question "Hint"
#
#     Which word pulls *ship* the other way? What should it have in common with *ship*?

# %% tags=["solution"]
from unmasked.exercises import check

order = [0.0, 1.0]  # sea, trade
print(
    self_attention(torch.tensor([[-1.0, -1.0], [1.0, 1.0], order])).context[1]
)
feedback = check("pull-to-trade", order)
assert feedback
feedback

# %% [markdown]
# **Three inputs** (`three-lines`). Write `attention(query, key, value)` for three matrices that differ. There can be
# more keys than queries, and values can have another length than keys. You may use `torch.softmax`.
#
# ??? question "Hint"
#
#     Take the three lines from above. Each `X` in them is one of the three matrices now. Equation (1.3) says which.


# %% tags=["solution"]
def attention(query, key, value):
    scores = query @ key.mT / key.size(-1) ** 0.5
    return torch.softmax(scores, dim=-1) @ value


feedback = check("three-lines", attention)
assert feedback
feedback

# %% [markdown]
# **Without torch** (`by-hand`). Write `attend(rows)` with nothing but `math`: it takes a list of words, each a list of
# numbers, and returns their new vectors in the same form.
#
# ??? question "Hint"
#
#     For one word: its scores with all words, their powers of *e*, each divided by their sum. Then the average, one
#     place of the lists after the other.

# %% tags=["solution"]
import math


def dot(a, b):
    return sum(p * q for p, q in zip(a, b, strict=True))


def weights_of(row, rows):
    powers = [
        math.exp(dot(row, other) / math.sqrt(len(row))) for other in rows
    ]
    return [power / sum(powers) for power in powers]


def attend(rows):
    columns = list(zip(*rows, strict=True))
    return [
        [dot(weights_of(row, rows), column) for column in columns]
        for row in rows
    ]


print(
    [
        round(weight, 3)
        for weight in weights_of(three[1].tolist(), three.tolist())
    ]
)
feedback = check("by-hand", attend)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [What do queries, keys and values learn?](queries_keys_values.py) The next page trains a small model, and looks into
#   its matrices.
# - [Why divide by the square root?](../pytorch/scale.py) What the root does, and why not to use cosines.
# - [The weight bypass](../pytorch/bypass.py): how to see plain attention in PyTorch's own module.
#
# <!--~ 2017, 3.2.1, 1, 2015, 3.1, 5, 6, 2014: references -->
# The papers: Vaswani et al. (2017), *Attention Is All You Need*, section 3.2.1, equation 1, for (1.3); its parts are
# (1.1) and (1.2). Bahdanau, Cho and Bengio (2015), *Neural Machine Translation by Jointly Learning to Align and
# Translate*, section 3.1, equations 5 and 6, for the weighted average and its softmax. Pennington, Socher and Manning
# (2014), *GloVe: Global Vectors for Word Representation*, for the vectors.
