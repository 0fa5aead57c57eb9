# %% [markdown]
# # What is attention?
#
# **Attention lets every word look at the other words, and take in what it needs from them.**

# %% tags=["hide-input"]
#| caption: What *mouse* takes from its neighbors, and its nearest words before and after. Attention makes it a machine
#|   beside *computer* and *software*, and an animal beside *cat* and *dog*.
#| script: ../../src/unmasked_lessons/figures/sentence.js
#| data: sentence_data
from IPython.display import HTML

from unmasked_lessons.figures.sentence import ask, script_data, side_by_side

asked = ask("mouse", "computer mouse software", "cat dog mouse")
others = ask("crane", "crane bird flew", "crane lifted stone")
sentence_data = script_data([*asked, *others])
HTML(side_by_side(asked))

# %% [markdown]
# A *mouse* can be an animal, and it can lie beside a computer. A *language model* is a program that guesses the next
# word of a text. In a table it finds a list of numbers for each word. There is one list for *mouse*, so it begins with
# the same numbers for both. Attention is the step that lets the neighbors change these numbers. How alike are *mouse*
# and *computer* afterwards? Beside *cat* and *dog* 0.49<!--= likeness[0] -->, beside *computer* and *software*
# 0.81<!--= likeness[1] -->; one would mean the same.
#
# Now type a sentence of your own. This is attention before any training: here a word takes most from words like itself,
# and some sentences will disappoint you. A trained model looks for what it needs, as you will see below. (To read on,
# you need some Python, and the dot product: multiply two lists of numbers, place by place, and add up.)

# %% tags=["claims"]
assert {"computer", "software"} <= {*asked[0].near[1][1]} and {
    "cat",
    "dog",
} <= {*asked[1].near[2][1]}, (
    "Attention makes it a machine beside computer and software, and an animal beside cat and dog"
)
assert asked[0].near[1][0] == asked[1].near[2][0] != asked[0].near[1][1], (
    "and its nearest words before and after"
)

# %% [markdown]
# ## A song that cannot be sung alone
#
# These pages teach a program to sing, by guessing each next word.
#
# > nine green bottles, nine green bottles, and if one bottle should fall, there will be eight green bottles
#
# There is a verse for each number, and the singer may hum *la la la* first. Try it without attention, so that the
# program guesses from the last word alone:

# %%
from unmasked_lessons.teaching import Singer

# a small model; the pages of this track open it, part by part
alone = Singer.trained(blocks=1, lacks="attention")
for number in ["nine", "seven", "four"]:
    print(alone.sing(f"la la la {number} green", 11))

# %% [markdown]
# It has learned which word follows which. But it does not repeat the first line, and it cannot see with which number
# the verse began, so it sings *six* each time.
#
# So let a word take in the words before it. If it simply averages them, all count alike: in the first line that was
# printed, *nine* is one word of fifteen by the time of *be*, and drowns among *should* and *will*. **Attention is an
# average that chooses**: each word decides how much it takes from every word that it sees. (The singer sees only what
# it has sung so far; in the figures with *mouse*, a word also sees the words after it.)
#
# Nearly all large language models are built on that.
#
# ??? note "Where attention comes from"
#
#     Programs once squeezed a text into one list of numbers, where early words faded. In 2015<!--~ the year of a paper
#     -->, attention came to the help of programs that translate: they could now look back at the words. In 2017<!--~
#     the year of a paper -->, a paper called *Attention Is All You Need* gave up the squeezing altogether.

# %% tags=["remove-cell"]
sung = [
    alone.sing(f"la la la {number} green", 11)
    for number in ["nine", "seven", "four"]
]
place = sung[0].split().index("be") + 1

# %% tags=["claims"]
assert all(each.endswith(" be six") for each in sung), (
    "it cannot see with which number the verse began, so it sings six each time"
)
assert place == 15, "nine is one word of fifteen"

# %% [markdown]
# ## Three words and a pencil
#
# Take the three words *my mouse cat*. Let each be a list of two numbers, its *vector*. The numbers are invented here:
# they say how much a word has to do with animals, and how much with machines, from one (very much) through zero
# (neither yes nor no) to minus one (quite the opposite).

# %% tags=["hide-input"]
#| caption: Three words as vectors. The shape, `(3, 2)`<!--= three.shape -->, stands above: rows, then columns.
import math

import torch

from unmasked import functional, plot, self_attention

three_words, features = ["my", "mouse", "cat"], ("animal", "machine")
three = torch.tensor([[-1, -1], [1, 1], [1, 0]])
title = "words and their numbers"
plot.grid(three, title, rows=three_words, columns=features)

# %% [markdown]
# What does *mouse* take from each word?
#
# 1. **Compare.** Take the dot product of *mouse* with each word. The more two words have in common, the larger it is.
# 2. **Tone down.** Divide each by the square root of two, 1.4142<!--= math.sqrt(three.size(1)) -->, because a word has
#    two numbers. ([Why the square root?](#why-the-square-root)) The results are called *scores*.
# 3. **Make shares.** Raise *e*, which is 2.718<!--= math.e -->, to the power of each score, and divide the three
#    results by their sum. (A score can be negative, a share cannot. The powers are positive, and grow with the score.)
#    These shares are called *weights*, and they add up to one.
# 4. **Average.** Multiply each word's vector by its weight, and add up the three vectors.
#
# {{ by_hand }}
#
# Check one row with a pencil. The powers of *e* add up to 6.3845<!--= sum(powers) -->, and 2.0281<!--= powers[2] -->
# divided by that is the weight of *cat*. So *mouse* takes 32%<!--= shares[2] --> from *cat*, and keeps 64%<!--=
# shares[1] --> of itself.

# %% tags=["remove-cell", "any-version"]
names = [f"*{name}*" for name in three_words]
dots = (three @ three[1]).tolist()
scored = [dot / math.sqrt(three.size(1)) for dot in dots]
powers = [math.exp(score) for score in scored]
shares = [power / sum(powers) for power in powers]
by_hand = plot.table(
    [
        "*mouse* looks at",
        "dot product",
        "score",
        "*e* to the score",
        "weight",
    ],
    [*zip(names, dots, scored, powers, shares)],
    ["{}", *["{:.4f}"] * 3],
).markdown()

# %% [markdown]
# Step four goes column by column:
#
# {{ averaged }}

# %% tags=["remove-cell", "any-version"]
new = torch.tensor(shares) @ three.float()
rows = {"*mouse*, before": three[1].tolist(), "*mouse*, after": new.tolist()}
averaged = plot.table(["", *features], rows, "{:.4f}").markdown()

# %% [markdown]
# Both numbers have shrunk, the machine number far more: *mouse* was as much a machine as an animal, and is now
# more of an animal, because its neighbor *cat* is one. That is all that attention does.

# %% tags=["claims"]
assert dots[1] > dots[2] > dots[0], (
    "The more two words have in common, the larger it is"
)
assert new[0] > new[1], "and is now more of an animal"
assert torch.allclose(
    self_attention(three.float()).context[1], new, atol=1e-5
), "That is all that attention does"

# %% [markdown]
# ## The same with arrows
#
# Two numbers can be drawn as an arrow. The dot product is large for arrows that point the same way, zero at a right
# angle, and negative for opposite ones. So each word takes most from words that point its own way. (The likeness above
# is the *cosine* of the angle between two arrows.)

# %% tags=["hide-input"]
#| alt: Three arrows from one point, and a ring near the tip of each. The ring of mouse lies on cat's side of its arrow.
#|   The arrow of my points away from both others.
#| caption: The three words as arrows. Attention moves the tip of each to its ring. *mouse* takes {{
#|   weights_of_arrows[1, 2] :.0%}} from *cat*, and {{ weights_of_arrows[1, 0] :.0%}} from *my*, which points away.
#| script: ../../src/unmasked_lessons/figures/arrows.js
#| data: arrow_data
from unmasked_lessons.figures import arrows as drawing

arrows = three.float()
moved, weights_of_arrows = self_attention(arrows)
arrow_data = {"names": three_words, "start": 1, "vectors": arrows}
arrow_data |= {"weights": weights_of_arrows, "context": moved}
arrow_data["axes"] = features
drawing.plane(arrows, three_words, features)

# %% tags=["claims"]
assert dots[0] < 0, "and negative for opposite ones"
assert moved[1, 1] / moved[1, 0] < arrows[1, 1] / arrows[1, 0], (
    "The ring of mouse lies on cat's side of its arrow"
)

# %% [markdown]
# ## Softmax: from scores to weights
#
# Step three is called the *softmax*. It takes two lines of PyTorch, whose arrays are called *tensors* and work much as
# numpy's do:


# %% tags=["imports"]
import torch


def softmax(scores):
    powers = scores.exp()
    return powers / powers.sum(dim=-1, keepdim=True)  # dim=-1: of each row


scores_of_mouse = torch.tensor([-2.0, 2.0, 1.0]) / 2**0.5
softmax(scores_of_mouse)

# %% [markdown]
# These are the weights that you found with a pencil. A score that is larger by one gets 2.7 times<!--=
# softmax(torch.tensor([1.0, 2.0]))[1] / softmax(torch.tensor([1.0, 2.0]))[0] --> the weight. Where scores lie far
# apart, the largest takes nearly everything.

# %% tags=["hide-input"]
#| caption: The larger the scores, the more goes to *mouse* itself.
sharper = [1, 4, 16]
grown = torch.stack([softmax(factor * scores_of_mouse) for factor in sharper])
named = ["as they are", "times 4", "times 16"]
plot.grid(grown, "weights of mouse", rows=named, columns=three_words)

# %% tags=["claims"]
assert torch.allclose(grown[0], torch.tensor(shares), atol=1e-5), (
    "These are the weights that you found with a pencil"
)
assert grown[-1].max() > 0.99, "the largest takes nearly everything"
assert (grown[:, 1].diff() > 0).all(), (
    "The larger the scores, the more goes to mouse itself"
)

# %% [markdown]
# ## Why the square root?
#
# If vectors have $d$ numbers, their dot product is a sum of $d$ products. Some are positive, some negative, and most of
# them cancel. Toss a coin $d$ times, plus one for heads and minus one for tails: the sum is not $d$, but about
# $\sqrt{d}$, to one side or the other.
#
# ??? note "Why about the root?"
#
#     Square the sum: each number times itself gives one, $d$ in all, and the other products cancel on average. So the
#     square is about $d$.

# %% tags=["hide-input"]
#| alt: Thirty jagged lines start at zero and spread to both sides. Most end between two dashed curves, which are the
#|   root of d and its negative.
#| caption: Thirty sums of random plus and minus ones. Those of 256<!--= steps.size(1) --> have a size of about 16<!--=
#|   steps.size(1) ** 0.5 -->, the root of 256<!--= steps.size(1) -->. The dashed curves show the root.
from unmasked_lessons.figures._drawing import AMBER, TEAL

torch.manual_seed(0)
steps = 2 * torch.randint(2, (1000, 256)) - 1
sums = steps.cumsum(dim=1)
d = torch.arange(1, 257)
with plot.figure(3.9, 2.3) as drawn:
    axes = drawn.subplots()
    axes.plot(d, sums[:30].T, color=TEAL, alpha=0.3, linewidth=0.8)
    axes.plot(d, torch.stack([d.sqrt(), -d.sqrt()], dim=1), "--", color=AMBER)
    axes.set(xlabel="d, how many are added", ylabel="sum")
drawn

# %% [markdown]
# So vectors with more numbers have larger dot products, and you have just seen what that does: one word takes nearly
# all the weight. Why is that bad? Before training, the numbers are random, and so is the word that takes all. And
# training can then hardly choose another: it changes scores a little and looks whether the guesses get better, but here
# a little changes nothing. In the first row of [Figure 4](#figure-4), raise the score of *cat* by 0.1<!--= nudge[2]
# -->: its weight grows from 32%<!--= grown[0, 2] --> to 34%<!--= nudged[0, 2] -->. In the last row, it stays below one
# hundredth of a percent.
#
# The root divides by as much as the sum has grown. [More about the root](../pytorch/scale.py).

# %% tags=["remove-cell"]
nudge = torch.tensor([0.0, 0.0, 0.1])
nudged = torch.stack([softmax(f * scores_of_mouse + nudge) for f in sharper])

# %% tags=["claims"]
assert max(grown[2, 2], nudged[2, 2]) < 1e-4, (
    "it stays below one hundredth of a percent"
)
assert 0.9 < sums[:, -1].square().float().mean().sqrt() / 16 < 1.1, (
    "have a size of about 16"
)
assert (sums[:30, -1].abs() < 16).sum() > 15, (
    "Most end between two dashed curves"
)

# %% [markdown]
# ## Words as vectors
#
# Nobody invents the numbers of real words. A program learns them from much text: words that are used alike get vectors
# that point in similar directions, called *embeddings*. Here are those of 5,000<!--= len(vectors) --> words from
# [GloVe](https://nlp.stanford.edu/projects/glove/). Which are nearest to *mouse*?

# %% tags=["imports"]
from unmasked_lessons.embeddings import common_vectors

vectors = common_vectors()
words = ["computer", "mouse", "software"]
X = vectors.lookup(words)
vectors.nearest(X[1])

# %% [markdown]
# `X` has a row for each word, and 50<!--= X.size(1) --> columns.
#
# ??? note "Where the vectors come from, and how to get others"
#
#     They are the published vectors of GloVe 6B<!--~ a collection's name -->, rounded to save room, which their authors
#     released into the public domain (license [PDDL
#     1.0](https://opendatacommons.org/licenses/pddl/1-0/)<!--~ a license's name -->). The figure names neighbors
#     without the 150<!--= sentence_data["common"] --> most frequent words, such as *the*, which are near to all others.
#     For other words, download `glove.6B.zip`<!--~ a file's name -->; `read_glove` is a reader of GloVe's files:
#
#     ```python
#     from unmasked_lessons.embeddings import read_glove
#
#     vectors = read_glove("glove.6B.zip", "the cat sat on the mat", dim=50)
#     ```

# %% [markdown]
# ## Query, key and value
#
# With the pencil, *mouse* asked, every word answered, and the answers decided how much of each went into the average.
# These roles have names:
#
# - The *query* asks: it is the row of *mouse*.
# - A *key* is asked: it is each row, where *mouse* is compared with it.
# - A *value* is handed over: it is each row, where it is averaged.
#
# Here each word played all roles with one vector. But a word seldom looks for words like itself: *my* looks for a noun,
# and is not one itself. So a trained model makes a vector for each role, as [the next page](queries_keys_values.py)
# shows. It does so by multiplying the vector by three *matrices*, which are tables of numbers.

# %% [markdown]
# ## In three lines, and as an equation
#
# For all words at once, `@` takes the dot product of each row on its left with each column on its right. `.mT` turns
# rows into columns, so `X @ X.mT` compares all words with all. (`X.size(-1)` is the length of a row.) `weights @ X`
# averages each column of `X` with a word's weights: that is step four. With that, attention is three lines:

# %%
scores = X @ X.mT / X.size(-1) ** 0.5
weights = softmax(scores)
context = weights @ X

# %% [markdown]
# The new vectors are called the *context*. (This is attention without learned matrices; they come next.) *mouse* has
# kept 63%<!--= weights[1, 1] --> of itself, as in [the figure](#figure-1) at the top, and its nearest words are now
# others:

# %%
vectors.nearest(context[1])

# %% tags=["remove-cell"]
beside_cat = (asked[1].weights @ vectors.lookup(asked[1].words))[2]
likeness = torch.cosine_similarity(
    torch.stack([beside_cat, context[1]]), vectors["computer"], dim=-1
)

# %% [markdown]
# ??? note "The same for each number"
#
#     In symbols, the score of word $i$ and word $j$, with $d$ numbers each, is
#
#     $$s_{ij} = \frac{x_i \cdot x_j}{\sqrt{d}} \tag{1.1}$$
#     <!-- where: x = random("n d"); s = functional.attention_scores(x, x) -->
#
#     The weights $a_{ij}$ of word $i$ and its new vector $o_i$, the average of all $n$ words, are
#
#     $$o_i = \sum_{j=1}^{n} a_{ij} \, x_j, \qquad a_{ij} = \frac{e^{s_{ij}}}{\sum_{l=1}^{n} e^{s_{il}}} \tag{1.2}$$
#     <!-- where: x, k = random("n d", "n d"); s = functional.attention_scores(x, k);
#     o, a = functional.attend(x, k, x, need_weights=True) -->
#
# In papers, the queries are the rows of $Q$, the keys of $K$, the values of $V$, and a key has $d_k$ numbers:
#
# $$\operatorname{Attention}(Q, K, V) = \operatorname{softmax}\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V \tag{1.3}$$
# <!-- where: Q, K, V = random("n d_k", "m d_k", "m d_v");
# Attention = lambda *qkv: functional.attend(*qkv).context -->
#
# Read it from the inside: compare, tone down, make shares of each row, average. Here all three are `X`: the words ask
# one another, which is called *self-attention*.

# %% tags=["claims"]
assert torch.allclose(
    scores, functional.attention_scores(X, X), atol=1e-5
) and torch.allclose(context, self_attention(X).context, atol=1e-5), (
    "With that, attention is three lines"
)
assert "computer" not in vectors.nearest(X[1]) and vectors.nearest(
    context[1], 2
) == ["mouse", "computer"], "and its nearest words are now others"

# %% [markdown]
# ## One word, followed
#
# One word will go with you through this track: the last one of *nine green bottles nine green bottles and if one bottle
# should fall there will be*. This singer was trained with attention, and goes on with *eight*. All numbers in the
# figure are its own. Gray parts are explained later.
#
# Follow the arrows. Behind each stands the word that the singer would sing next if the way of *be* ended there. ([The
# last page](generating.py) shows how it finds that word.) At first *be* says *six*, as the singer above did in each
# verse. Attention fetches *nine*, and the MLP, a part of [a later page](block.py), makes *eight* of it.

# %% tags=["hide-input"]
#| caption: The word *be* on its way through the trained singer. Each cell is a number of its vector, teal above zero
#|   and amber below.
#| script: ../../src/unmasked_lessons/figures/strip.js
#| data: strip.data
from unmasked_lessons.figures.strip import Strip

strip = Strip("attention")
strip

# %% tags=["check"]
way = [stop.word for stop in strip.stops()]

# %% tags=["claims"]
assert way == ["six", "six", "nine", "eight"] and all(
    line.endswith(" be six") for line in sung
), "At first be says six, as the singer above did in each verse"
assert way[2:] == ["nine", "eight"], (
    "Attention fetches nine, and the MLP, a part of a later page, makes eight of it"
)

# %% [markdown]
# [The last page](generating.py) has a model that sings, in sixty lines. Each page adds those that it has explained:
# here the song, a vector for each word, and attention. (A class is how PyTorch keeps what a model learns.)
#
# <div class="program"></div>

# %% [markdown]
# ## Recap
#
# - Attention gives each word a new vector, a weighted average of all vectors.
# - The weights are a softmax of scores, and a score is a dot product, divided by a root.
# - A word asks with its query, is found by its key, and hands over its value.
#
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("pull-to-machine", answer))`; `check` comes from
# `unmasked_lessons.exercises`.
#
# **Pull it to the desk** (`pull-to-machine`). Put another word in the place of *cat*: two numbers from minus one to one
# that make *mouse* more of a machine than of an animal.
#
# ??? question "Hint"
#
#     Which word pulls *mouse* the other way? What should it have in common with *mouse*?

# %% tags=["solution"]
from unmasked import self_attention  # the three lines above
from unmasked_lessons.exercises import check

screen = [0.0, 1.0]  # animal, machine
print(
    self_attention(torch.tensor([[-1.0, -1.0], [1.0, 1.0], screen])).context[
        1
    ]
)
feedback = check("pull-to-machine", screen)
assert feedback
feedback

# %% [markdown]
# **Three inputs** (`three-lines`). Write `attention(query, key, value)` for three matrices. There can be more keys than
# queries, and values can have another length than keys.
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
# ### Optional
#
# **Without torch** (`by-hand`). Write `attend(rows)` with nothing but `math`: from a list of words, each a list of
# numbers, to their new vectors.
#
# ??? question "Hint"
#
#     For one word, take its scores with all words, their powers of *e*, and divide each by their sum. Then average, one
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


words = [[-1.0, -1.0], [1.0, 1.0], [1.0, 0.0]]  # my, mouse, cat
print([round(weight, 3) for weight in weights_of(words[1], words)])
feedback = check("by-hand", attend)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# <div class="overview" data-here="attention"></div>
#
# - [What do queries, keys and values learn?](queries_keys_values.py) is the next page.
#
# ??? note "The papers"
#
#     <!--~ 2017, 3.2.1, 1, 2015, 3.1, 5, 6, 2014: references -->
#     Vaswani et al. (2017), *Attention Is All You Need*, section 3.2.1, equation 1, for (1.3); its parts are (1.1) and
#     (1.2). Bahdanau, Cho and Bengio (2015), *Neural Machine Translation by Jointly Learning to Align and Translate*,
#     section 3.1, equations 5 and 6, for the weighted average and its softmax. Pennington, Socher and Manning (2014),
#     *GloVe: Global Vectors for Word Representation*, for the vectors.
