# %% [markdown]
# # Does order matter? Positions
#
# **Attention does not see the order of words: shuffle the words, and every word gets the same vector as before.** So a
# model is told where each word stands.

# %% tags=["hide-input", "imports"]
#| caption: The weights of a sentence. Rows are queries, columns are keys. Look at the first row: *my* gives {{
#|   weights_of[0][0, 4] :.0%}} of its attention to *your*.
import torch
from torch import nn

import unmasked
from unmasked import self_attention
from unmasked_lessons.embeddings import ship_vectors

torch.set_num_threads(1)  # small matrices are faster on one core

vectors = ship_vectors()
words = ["my", "crew", "must", "process", "your", "order"]
swapped = ["your", "crew", "must", "process", "my", "order"]
weights_of = [
    self_attention(vectors.lookup(text)).weights for text in (words, swapped)
]
unmasked.plot.grid(weights_of[0], "weights", queries=words)

# %% tags=["hide-input"]
#| caption: The same words in another order. Every weight is there again, where the same two words meet: *my*, now in
#|   the fifth row, gives {{ weights_of[1][4, 0] :.0%}} to *your*.
unmasked.plot.grid(weights_of[1], "weights", queries=swapped)

# %% [markdown]
# "My crew must process your order" and "your crew must process my order" say different things. Attention alone gives
# each word the same vector in both, so it cannot know whose crew it is.
#
# <div class="overview" data-here="positions"></div>

# %% [markdown]
# ## Shuffle the words
#
# The six words are in the list `words`, and `vectors` is the first page's [table of
# vectors](attention.py#words-as-vectors). Put the words into another order and compute attention again. Then compare
# the result with the contexts from before, shuffled in the same way. (`allclose` says whether all numbers are equal, up
# to rounding.)

# %%
X = vectors.lookup(words)  # a row for each word
order = torch.tensor([4, 1, 2, 3, 0, 5])  # as in Figure 2
context, weights = self_attention(X)
shuffled = self_attention(X[order])
torch.allclose(shuffled.context, context[order], atol=1e-5)

# %% [markdown]
# They are equal: only the rows have changed places. A score compares two words by their vectors alone, and a sum does
# not care in which order things are added. So attention without a mask treats a sentence as a *bag* of words: what
# counts is which words occur and how often, but not their order.

# %% [markdown] tags=["check"]
# To multiply by a *permutation matrix* $P$ is to put rows in another order. Before attention or after it, the result is
# the same:
#
# $$\begin{aligned}
# \operatorname{SelfAttention}(P X)
# &= \operatorname{softmax}\left(\frac{P X (P X)^\top}{\sqrt{d}}\right) P X \\
# &= P \operatorname{softmax}\left(\frac{X X^\top}{\sqrt{d}}\right) P^\top P X \\
# &= P \operatorname{SelfAttention}(X)
# \end{aligned} \tag{4.1}$$
# <!-- where: n = 4; X = random("n d"); P = torch.eye(n).double()[[2, 0, 3, 1]]
# SelfAttention = lambda tokens: self_attention(tokens).context -->
#
# With queries, keys and values of their own, and another permutation for keys and values:
#
# $$\operatorname{Attention}(P Q, R K, R V) = P \operatorname{Attention}(Q, K, V) \tag{4.2}$$
# <!-- where: n = 4; m = 5; Q, K, V = random("n d_k", "m d_k", "m d_v")
# P, R = torch.eye(n).double()[[2, 0, 3, 1]], torch.eye(m).double()[[1, 3, 4, 0, 2]]
# Attention = lambda *qkv: unmasked.attend(*qkv).context -->
#
# Where the mask $M$ moves with the words, nothing changes either:
#
# $$\operatorname{Attend}(P X, P M P^\top) = P \operatorname{Attend}(X, M) \tag{4.3}$$
# <!-- where: n = 4; X = random("n d"); M = unmasked.masks.causal(n).double(); P = torch.eye(n).double()[[2, 0, 3, 1]]
# Attend = lambda x, allowed: self_attention(x, allowed=allowed.bool()).context -->

# %% tags=["claims"]
assert torch.allclose(
    shuffled.context, context[order], atol=1e-5
) and not torch.allclose(shuffled.context, context, atol=0.1), (
    "shuffle the words, and every word gets the same vector as before"
)
assert torch.allclose(shuffled.context, context[order], atol=1e-5), (
    "Attention alone gives each word the same vector in both"
)
assert sorted(words) == sorted(swapped) and words != swapped, (
    "The same words in another order"
)
assert torch.allclose(
    weights_of[1], weights_of[0][order][:, order], atol=1e-5
), "Every weight is there again, where the same two words meet"

# %% [markdown]
# ## The song without positions
#
# How bad is that? Train the singer of the last pages again, but let no word know its place. In new texts it guesses
# more than nine in ten of the next words, with positions and without. That looks like no great loss, until it sings:

# %% tags=["hide-input", "any-version"]
#| caption: What comes after *nine green*, and how many of the ten verses are right, if they are sung at once or after
#|   eight *la*. Without positions the singer leaves out the second line.
from unmasked_lessons.teaching import Singer

whole, lost = Singer.trained(1), Singer.trained(1, lacks="positions")
start = "nine green"
singers = {"with positions": whole, "without positions": lost}
rows = {
    name: [
        singer.sing(start, 16).removeprefix(start),
        singer.verses_right([0]),
        singer.verses_right([8]),
    ]
    for name, singer in singers.items()
}
unmasked.plot.table(
    ["Singer", "It sings", "Verses right, at once", "... after eight la"],
    rows,
    "{:.0%}",
)

# %% [markdown]
# Its mask hides later words, but the earlier ones are still a bag. Take *nine green bottles*, once and twice. In the
# second text the last word sees the same bag, only with everything in it twice, and an average does not notice that. So
# the singer guesses the same after both, although *nine* should follow the first text, and *and* the second. `lost` is
# the singer without positions. After each word of a text it gives a grade to every word that it knows: the higher, the
# likelier it comes next. `[0, -1]`<!--~ an index --> takes those after the last word. Both texts give the same, up to
# rounding:

# %%
once = lost.numbers_of("nine green bottles")
twice = lost.numbers_of("nine green bottles nine green bottles")
grades, grades_again = lost(once)[0, -1], lost(twice)[0, -1]
(grades - grades_again).abs().max()

# %% tags=["check"]
deeper = Singer.trained(2, lacks="positions").verses_right()  # two blocks
(_, *right), (_, at_once, hummed) = rows.values()

# %% [markdown]
# Humming helps it: the more it has sung, the smaller is the share of *la* in the bag. So it can tell how far it has
# come.
#
# ??? note "A deeper model finds some order by itself"
#
#     Under the [causal mask](masks.py#hiding-the-words-that-come-later) the second *nine* sees more words than the
#     first one. So they have different vectors after one [block](block.py), which attends once, and a second block can
#     tell them apart: a singer with two blocks and no positions sings {{ deeper :.0%}} of the verses. Some language
#     models have been trained without positions, but most are given them.

# %% tags=["claims"]
assert min(whole.words_right(), lost.words_right()) > 0.9, (
    "it guesses more than nine in ten of the next words, with positions and without"
)
assert min(right) > 0.9 > 0.2 > at_once, (
    "Without positions the singer leaves out the second line"
)
assert (grades - grades_again).abs().max() < 1e-4, (
    "So the singer guesses the same after both"
)
assert hummed > 0.4 > 0.2 > at_once, "Humming helps it"
assert deeper > 0.8, "and a second block can tell them apart"

# %% [markdown]
# ## A vector for each place
#
# The simplest remedy is to give each place a vector, and to add it to the embedding of the word that stands there. Then
# the two *nine* begin with different vectors. The vectors can be *learned*, like other numbers of a model: the models
# GPT-2 and BERT do that, and so does the singer that sang right. In PyTorch such a table is an `nn.Embedding`:

# %%
torch.manual_seed(0)
table = nn.Embedding(1024, 50)  # a vector for each of 1024 places
with_places = X + table(torch.arange(len(X)))  # word + place

# %% [markdown]
# A learned table has an end. This one has 1024<!--= table.num_embeddings --> rows, and a longer text raises an error.
# The first transformer computed its place vectors instead, as waves along the text, and so never ran out of them.
#
# ??? note "Places as sines"
#
#     Each number of the vector (a *feature*) follows a wave along the text: it rises and falls from place to place. The
#     first features are fast waves, the last ones are slow, like the hands of a clock for seconds, minutes and hours.
#     The features come in pairs, a sine and a cosine of one speed: together they say where the tip of a clock's hand
#     is. The slowest wave repeats only after more than 30,000 places, so all places of a long text get different
#     vectors. For 60 places and 32 features:
#
#     ```python
#     place = torch.arange(60)[:, None]
#     # how far a wave goes at each place: from 1 down to about 1 / 10,000
#     rate = 10_000 ** (-torch.arange(0, 32, 2) / 32)
#     angle = place * rate  # places, half the features
#     waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
#     ```

# %% tags=["check"]
place = torch.arange(60)[:, None]
rate = 10_000 ** (-torch.arange(0, 32, 2) / 32)
angle = place * rate
waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)

# %% tags=["claims"]
assert (waves[1:, 0] * waves[:-1, 0] < 0).sum() > 5 and (
    waves[1:, -1] * waves[:-1, -1] > 0
).all(), "The first features are fast waves, the last ones are slow"
assert (
    torch.pdist(waves).min() > 0.1
    and 2 * torch.pi / torch.atan2(*waves[1, -2:]) > 30_000
), "The slowest wave repeats only after more than 30,000 places"
assert waves.shape == (60, 32), "For 60 places and 32 features"

# %% [markdown]
# ## Turning queries and keys
#
# A sum mixes two things in the same numbers: what the word is, and where it stands. Many newer models, Llama among
# them, add nothing to the words. They *turn* the query and the key, by an angle that grows with the place. This is
# called *rotary position embedding*, or *RoPE*.
#
# A single number cannot be turned, but a pair can: it is an arrow in the plane, like the hand of a clock.


# %% tags=["check"]
def turn(arrow, place, rate):  # rate: how far it turns at each place
    angle = torch.tensor(place * rate)
    x, y = arrow
    return torch.stack(
        [x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()]
    )


# %% [markdown]
# Here are a query and a key of four numbers each, so there are two clocks. On each, one hand belongs to the query, the
# other to the key. Put more *la* in front: both hands of a clock turn on, and the angle between them stays. Then move
# the query away from the key:

# %% tags=["hide-input"]
#| alt: A clock with a hand for the query and a hand for the key. After five *la* both hands are turned farther, and the
#|   angle between them is the same.
#| caption: A query of *bottles* and a key of *nine*, two places apart. Later in the text both hands have turned on,
#|   and the angle between them is the same: on the first clock {{ angles[0] :.0f}}°.
#| script: ../../src/unmasked_lessons/figures/turning.js
#| data: turning_data
from unmasked_lessons.experiments.positions import angle
from unmasked_lessons.figures import turning

queries = torch.tensor([[1.0, 0.3], [0.6, 0.8]])  # a row for each clock
keys = torch.tensor([[0.9, 0.6], [0.9, -0.1]])
rates = [0.6, 0.1]  # how far they turn at each place
moments = {
    f"after {hums} la": (
        turn(keys[0], hums, rates[0]),
        turn(queries[0], hums + 2, rates[0]),
    )
    for hums in (0, 5)
}
dots = [(key @ query).item() for key, query in moments.values()]
angles = [angle(*hands) for hands in moments.values()]
turning_data = {"query": queries, "key": keys, "rates": rates, "hums": 8}
turning_data |= {
    "names": ["nine", "bottles"],
    "distance": 6,
    "start": [0, 2],
}
far = (turn(keys[0], 0, 0.6) @ turn(queries[0], 4, 0.6)).item()
turning.clocks(moments)

# %% [markdown]
# The dot product of two hands depends on their lengths and on the angle between them alone, and turning changes no
# length. So a score depends on how far apart the query and the key are, and not on where in the text they stand. What a
# model has learned about *green* before *bottles* then holds anywhere in the text. Values are not turned. A query of a
# real model has many pairs, and each turns at a speed of its own.
#
# ??? note "Why only the angle between the hands counts"
#
#     A hand of length one, turned by the angle $a$, ends at $(\cos a, \sin a)$, and another one, turned by $b$, at
#     $(\cos b, \sin b)$. Their dot product is the cosine of the angle between them:
#
#     $$\cos a \cos b + \sin a \sin b = \cos(a - b)$$
#     <!-- where: a, b = random("", ""); cos, sin = torch.cos, torch.sin -->
#
#     Longer hands multiply it by their lengths. For places $m$ and $n$:
#
#     $$\operatorname{turn}(q, m) \cdot \operatorname{turn}(k, n) = \operatorname{turn}(q, m - n) \cdot k$$
#     <!-- where: d = 6; q, k = random("d", "d"); m = 7; n = 4;
#     turn = lambda x, place: unmasked.positions.Rotary(6)(x[None], torch.tensor([int(place)]))[0] -->

# %% tags=["claims"]
assert abs(angles[0] - angles[1]) < 0.01 and abs(dots[0] - dots[1]) < 1e-4, (
    "the angle between them is the same: on the first clock"
)
assert (
    abs(angles[0] - angles[1]) < 0.01 and 0 < rates[0] * 5 < 2 * torch.pi
), "both hands are turned farther, and the angle between them is the same"
assert abs(dots[0] - dots[1]) < 1e-4 and abs(dots[0] - far) > 0.01, (
    "So a score depends on how far apart the query and the key are, and not on where in the text they stand"
)
assert torch.isclose(
    torch.tensor(dots[0]),
    keys[0].norm()
    * queries[0].norm()
    * torch.tensor(angles[0]).deg2rad().cos(),
    atol=1e-4,
), "Longer hands multiply it by their lengths"
assert torch.isclose(
    turn(queries[0], 9, 0.6).norm(), queries[0].norm(), atol=1e-5
), "turning changes no length"

# %% [markdown]
# ## The word *be* gets its place
#
# The way of *be* through the trained singer begins with two vectors: one for the word, and one for its place. They
# are added, and all that comes later sees nothing but the sum. The place of *be* alone does not help: the singer would
# still say *six*, as nothing has been looked at yet.

# %% tags=["hide-input"]
#| caption: The word *be* on its way through the trained singer.
#| script: ../../src/unmasked_lessons/figures/strip.js
#| data: strip.data
from unmasked_lessons.figures.strip import Strip

strip = Strip("positions")
strip

# %% tags=["claims"]
assert [stop.word for stop in strip.stops()][:2] == ["six", "six"], (
    "the singer would still say six, as nothing has been looked at yet"
)

# %% [markdown]
# <div class="program"></div>

# %% [markdown]
# ## Recap
#
# - To attention without a mask a sentence is a bag of words: shuffled words get the vectors that they had.
# - A model is told where each word stands, by vectors that are added (learned, or sines), or by turning queries and
#   keys.
# - With rotary positions a score depends on the two words and on their distance.

# %% tags=["claims"]
assert torch.allclose(shuffled.context, context[order], atol=1e-5), (
    "To attention without a mask a sentence is a bag of words: shuffled words get the vectors that they had"
)
# %% [markdown]
# ## Exercises
#
# ### Optional
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("is-equivariant", answer))`.
#
# **A test for order** (`is-equivariant`). A function is called *equivariant* if shuffling its input only shuffles its
# output. Write `survives_shuffles(f)` for functions from (tokens, features) to (tokens, features), of any size: it says
# whether f is equivariant. Draw the tokens yourself.
#
# ??? question "Hint"
#
#     One order is not enough: some functions survive being reversed, others being rolled. And numbers added in another
#     order may differ in the last digits.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def survives_shuffles(f):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 8, generator=generator, dtype=torch.float64)
    orders = [torch.randperm(5, generator=generator) for _ in range(10)]
    return all(
        torch.allclose(f(x[order]), f(x)[order], atol=1e-5)
        for order in orders
    )


feedback = check("is-equivariant", survives_shuffles)
assert feedback
feedback

# %% [markdown]
# **Attention from a bag** (`bag-of-words`). Write `bag(x, counts)`: x holds each word once, with the axes (words,
# features), and `counts` says how often each occurs. Return the context of each word, as in a sentence with all of
# them, without writing the sentence out.
#
# ??? question "Hint"
#
#     A word that occurs three times simply counts three times in the average. With $s_{iw}$ for the score of word $i$
#     with word $w$, $c_w$ for its count and $x_w$ for its vector:
#
#     $$o_i = \frac{\sum_{w=1}^{u} c_w \, e^{s_{iw}} \, x_w}{\sum_{w=1}^{u} c_w \, e^{s_{iw}}} \tag{4.4}$$
#     <!-- where: u = 3; q, x = random("n d", "u d"); c = torch.tensor([2.0, 4.0, 3.0]);
#     s = unmasked.attention_scores(q, x); bag = x.repeat_interleave(c.long(), dim=0);
#     o = unmasked.attend(q, bag, bag).context -->


# %% tags=["solution"]
def bag(x, counts):
    shares = counts * torch.exp(x @ x.mT / x.size(-1) ** 0.5)
    return shares / shares.sum(dim=-1, keepdim=True) @ x


feedback = check("bag-of-words", bag)
assert feedback
feedback

# %% [markdown]
# **Tell twins apart** (`tell-apart`). Write `place(x)`, which adds a vector to each row of x, with the axes (tokens,
# features), so that equal rows at different places get different contexts from self-attention.
#
# ??? question "Hint"
#
#     Anything that depends on the row's number will do, if it is not large beside x. Sines do not grow.


# %% tags=["solution"]
def place(x):
    number = torch.arange(len(x), dtype=x.dtype)[:, None]
    return x + torch.sin(
        number / 10 ** torch.linspace(0, 2, x.size(-1), dtype=x.dtype)
    )


feedback = check("tell-apart", place)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [Why several heads?](heads.py) is the next page.
# - [Is my module right?](../doctor.py) runs this page's test, and others, on your module.
# - [Which RoPE is mine, and did I break it?](../pytorch/positions.py) is for everybody who writes this code.
#
# ??? note "The papers"
#
#     <!--~ 2017, 3.5, 2.2, 2019, 3.1, 2021, 3.2, 2022: references -->
#     - Vaswani et al. (2017), *Attention Is All You Need*: section 3.5, positions as sines and cosines, added.
#     - Zaheer et al. (2017), *Deep Sets*: section 2.2, functions that are permutation equivariant.
#     - Lee et al. (2019), *Set Transformer*: section 3.1, attention over sets, equivariant by design.
#     - Su et al. (2021), *RoFormer: Enhanced Transformer with Rotary Position Embedding*: section 3.2, positions that
#       turn.
#     - Haviv et al. (2022), *Transformer Language Models without Positional Encodings Still Learn Positional
#       Information*: causal models without positions.
