# %% [markdown]
# # Does order matter? Positions
#
# **Not to attention: shuffle the words, and every word gets the same vector as before.** Without a mask, a model knows
# order only if it is told where each word stands.

# %% tags=["hide-input", "imports"]
#| caption: The weights of a sentence. Rows are queries, columns are keys. *my*, in the first row, takes {{
#|   weights_of[0][0, 4] :.2f}} from *your*.
import torch
from torch import nn

import unmasked.embeddings
from unmasked import masks, plot, probes, self_attention

vectors = unmasked.embeddings.ship_vectors()
words = ["my", "crew", "must", "process", "your", "order"]
swapped = ["your", "crew", "must", "process", "my", "order"]
weights_of = [
    self_attention(vectors.lookup(text)).weights for text in (words, swapped)
]
plot.grid(weights_of[0], "weights", queries=words)

# %% tags=["hide-input"]
#| caption: The weights of the same words in another order. Every weight is there again, where the same two words meet:
#|   *my* is in the fifth row now, and takes {{ weights_of[1][4, 0] :.2f}} from *your*.
plot.grid(weights_of[1], "weights", queries=swapped)

# %% [markdown]
# "My crew must process your order" and "your crew must process my order" say different things. Attention alone gives
# each word the same vector in both, so it cannot know whose crew it is. This page shows why, and three ways to tell a
# model where a word stands.
#
# <div class="overview" data-here="positions"></div>

# %% [markdown]
# ## Shuffle the words
#
# The six words are in the list `words`, and `vectors` is the table of the first page, which has [words as
# vectors](attention.py#words-as-vectors). Put the words in another order and compute attention again. Then compare with
# the old contexts, put in that order. `allclose` says whether all numbers are equal, up to rounding:

# %%
X = vectors.lookup(words).double()  # a row for each word
order = torch.tensor([4, 1, 2, 3, 0, 5])  # as in Figure 2
context, weights = self_attention(X)
shuffled = self_attention(X[order])
torch.allclose(shuffled.context, context[order], atol=1e-5)

# %% [markdown]
# They are. Only the rows have changed places. Attention treats a sentence as a *bag* of words: a bag knows which words
# are in it and how often, but not in which order. A score compares two words by their vectors alone, and a sum does not
# care in which order things are added.


# %% [markdown] tags=["check"]
# To multiply by a *permutation matrix* $P$ is to put rows in another order. On both sides of attention it comes to the
# same:
#
# $$\begin{aligned}
# \operatorname{SelfAttention}(P X)
# &= \operatorname{softmax}\left(\frac{P X (P X)^\top}{\sqrt{d}}\right) P X \\
# &= P \operatorname{softmax}\left(\frac{X X^\top}{\sqrt{d}}\right) P^\top P X \\
# &= P \operatorname{SelfAttention}(X)
# \end{aligned} \tag{4.2}$$
# <!-- where: n = 4; X = random("n d"); P = torch.eye(n).double()[[2, 0, 3, 1]]
# SelfAttention = lambda tokens: self_attention(tokens).context -->
#
# With queries, keys and values of their own, and another permutation for keys and values:
#
# $$\operatorname{Attention}(P Q, R K, R V) = P \operatorname{Attention}(Q, K, V) \tag{4.3}$$
# <!-- where: n = 4; m = 5; Q, K, V = random("n d_k", "m d_k", "m d_v")
# P, R = torch.eye(n).double()[[2, 0, 3, 1]], torch.eye(m).double()[[1, 3, 4, 0, 2]]
# Attention = lambda *qkv: unmasked.attend(*qkv).context -->

# %% [markdown]
# As an equation: let a sentence have $u$ different words, and let word $w$ occur $c_w$ times. A word that occurs three
# times simply counts three times in the average. So these counts are enough to compute what word $i$ gets. With
# $s_{iw}$ for the score of word $i$ with word $w$ and $x_w$ for the vector of $w$,
#
# $$o_i = \frac{\sum_{w=1}^{u} c_w \, e^{s_{iw}} \, x_w}{\sum_{w=1}^{u} c_w \, e^{s_{iw}}} \tag{4.1}$$
# <!-- where: u = 3; q, x = random("n d", "u d"); c = torch.tensor([2.0, 4.0, 3.0]); s = unmasked.attention_scores(q, x)
# bag = x.repeat_interleave(c.long(), dim=0); o = unmasked.attend(q, bag, bag).context -->

# %% tags=["claims"]
assert torch.allclose(
    shuffled.context, context[order], atol=1e-5
) and not torch.allclose(shuffled.context, context, atol=0.1), (
    "shuffle the words, and every word gets the same vector as before"
)
assert torch.allclose(shuffled.context, context[order], atol=1e-5), (
    "Attention alone gives each word the same vector in both"
)
assert torch.allclose(
    weights_of[1], weights_of[0][order][:, order], atol=1e-5
), "Every weight is there again, where the same two words meet"

# %% [markdown]
# ## A causal mask breaks it, a little
#
# Under a [causal mask](masks.py#hiding-the-words-that-come-later)<!--~ link: it hides later words -->, which
# `is_causal=True` makes, a word sees only itself and the words before it. Now a word that stands twice gets two
# contexts, for the second one sees more words:

# %%
told = "i must go back to my ship and to my crew".split()
seen = self_attention(vectors.lookup(told), is_causal=True)
first, second = seen.context[5], seen.context[9]  # the two my
(first - second).norm()  # length of the difference

# %% [markdown]
# The length of the difference is not zero. So a word knows *which* words came before it. It still does not know their
# order: the words that it sees are a bag again. But a model has several layers, and the second layer gets the contexts
# that the first layer made. Take the texts *a b c* and *b a c*. In the first text, the context of *a* is made of *a*
# alone. In the second text, it is made of *b* and *a*. So *c* meets other contexts in the second layer, and the second
# layer can tell something about the order. Models without any positions have been trained in this way.


# %% tags=["check"]
from unmasked.figures.positions import last_word, map_of

long = vectors.lookup(told).double()
earlier = long[[3, 0, 7, 1, 9, 2, 4, 8, 5, 6, 10]]  # the last stays the last
moved = [last_word(long, n) - last_word(earlier, n) for n in (1, 2)]

# %% [markdown] tags=["check"]
# Where the mask $M$ moves with the words, nothing changes:
#
# $$\operatorname{Attend}(P X, P M P^\top) = P \operatorname{Attend}(X, M) \tag{4.4}$$
# <!-- where: n = 4; X = random("n d"); M = unmasked.masks.causal(n).double(); P = torch.eye(n).double()[[2, 0, 3, 1]]
# Attend = lambda x, allowed: self_attention(x, allowed=allowed.bool()).context -->

# %% tags=["claims"]
assert not seen.weights.triu(1).any(), (
    "a word sees only itself and the words before it"
)
assert (first - second).norm() > 0.01, (
    "Now a word that stands twice gets two contexts"
)
assert moved[0].norm() < 1e-6, "the words that it sees are a bag again"
assert moved[1].norm() > 1e-3, (
    "and the second layer can tell something about the order"
)

# %% [markdown]
# ## A vector for each place
#
# The simplest remedy: give each place a vector, and add it to the embedding of the word that stands there. Then no two
# places look alike, even if the words do. The vectors can be *learned*, like other numbers of a model. The models GPT-2
# and BERT do that. In PyTorch such a table is an `nn.Embedding`:

# %%
torch.manual_seed(0)
table = nn.Embedding(1024, 50)  # a vector for each of 1024 places
with_places = X + table(torch.arange(len(X)))  # word + place

# %% [markdown]
# What good is that? Take a task that needs order: in a text of six letters, drawn at random from eight, say at each
# place the letter *before*. Attention is trained for it twice, with such a table and without it.

# %% tags=["hide-input"]
#| caption: The weights that were learned with positions, a mean of 1,000<!--= trials --> texts. Rows are queries,
#|   columns are keys. Each place but the first looks at the place before it.
from unmasked.teaching import train_to_look_back

trials = 1000
looks, with_table = train_to_look_back(True, trials=trials)
_, without_table = train_to_look_back(False, trials=trials)
numbers = [f"place {number}" for number in range(1, 7)]
plot.grid(looks, "weights", queries=numbers, keys="123456")

# %% [markdown]
# With positions nearly all answers are correct, without them less than half. Without them the letters arrive as a bag,
# and the best that is left is to guess the one that occurs most often among the other letters. (The first place is not
# asked: no letter stands before it.) A learned table has an end, however. This one has 1024<!--= table.num_embeddings
# --> rows, and a longer text raises an error.

# %% tags=["claims"]
assert looks[1:].argmax(-1).tolist() == [0, 1, 2, 3, 4], (
    "Each place but the first looks at the place before it"
)
assert with_table > 0.95 > 0.5 > without_table, (
    "With positions nearly all answers are correct, without them less than half"
)

# %% [markdown]
# ## Sines
#
# The first *transformer* (so a model is called that is built around attention) computed its vectors, so that they have
# no end. Each number of the vector (a *feature*) follows a wave along the text: it rises and falls from place to place.
# The first features are fast waves, the last ones are slow, like the hands of a clock for seconds, minutes and hours. A
# pair of features shares a speed: a sine and a cosine.


# %%
def sines(places, features):
    place = torch.arange(places)[:, None]
    rate = 10_000 ** (-torch.arange(0, features, 2) / features)
    angle = place * rate  # places, half the features
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


# %% tags=["hide-input"]
#| alt: A striped map, a row for each place and a column for each feature. The stripes at the left are narrow, those at
#|   the right so wide that they do not end.
#| caption: The vectors of 60<!--= len(waves) --> places, one in each row. Teal is positive, amber negative. Along the
#|   text the waves at the left are fast. Every row differs from every other.
waves = sines(60, 32)
map_of(waves, "feature", "place")

# %% [markdown]
# The number 10,000<!--= torch.atan2(*waves[1, -2:]) ** (-32 / 30) --> in the code is a choice of that first
# transformer. With it the slowest of these waves comes round only after more than 30,000 places, so even far places of
# a long text get different vectors.
#
# Places that are near each other have vectors that are alike. The dot product compares them:

# %% tags=["hide-input"]
#| alt: A map of dot products with a bright band along the diagonal, which fades with the distance.
#| caption: Dot products of the vectors of any two places. They are largest on the diagonal, where a place meets itself.
#|   Along each parallel to the diagonal they are the same: only the distance counts.
near = waves @ waves.mT
map_of(near, "place", "place", size=(3.9, 3.4))

# %% tags=["claims"]
assert (waves[1:, 0] * waves[:-1, 0] < 0).sum() > 5 and (
    waves[1:, -1] * waves[:-1, -1] > 0
).all(), "The first features are fast waves, the last ones are slow"
assert torch.pdist(waves).min() > 0.1, "Every row differs from every other"
assert 2 * torch.pi / torch.atan2(*waves[1, -2:]) > 30_000, (
    "With it the slowest of these waves comes round only after more than 30,000 places"
)
assert near.argmax(-1).equal(torch.arange(len(waves))), (
    "A map of dot products with a bright band along the diagonal"
)
assert near.argmax(-1).equal(torch.arange(len(waves))), (
    "They are largest on the diagonal, where a place meets itself"
)
assert max(near.diagonal(k).std() for k in range(1, 40)) < 1e-3, (
    "Along each parallel to the diagonal they are the same"
)

# %% [markdown]
# ## Turning queries and keys
#
# A sum holds two things in the same numbers: what the word is, and where it stands. The matrices have to learn to tell
# one from the other. Many newer models, Llama among them, add nothing to the words. They *turn* the query and the key,
# by an angle that grows with the place. This is called *rotary position embedding*, or *RoPE*. A pair of features is an
# arrow in the plane, and an arrow can be turned:


# %%
def turn(arrow, place, rate=0.3):
    angle = torch.tensor(place * rate)
    x, y = arrow
    return torch.stack(
        [x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()]
    )


# %% tags=["hide-input"]
#| alt: Two pictures of a pair of arrows, a query and a key. In the second picture both arrows are turned farther, and
#|   the angle between them is the same.
#| caption: A query and a key, three places apart, early in the text and later. In the second picture both arrows have
#|   turned farther. The angle between them is the same, and so is the dot product, {{ dots[0] :.2f}}.
from unmasked.figures import arrows

query, key = torch.tensor([1.0, 0.3]), torch.tensor([0.9, 0.6])
pairs = [(4, 1), (9, 6)]  # places of query and key
pictures = [
    {f"query at {m}": turn(query, m), f"key at {n}": turn(key, n)}
    for m, n in pairs
]
dots = [(q @ k).item() for q, k in map(dict.values, pictures)]
angles = [arrows.angle(q, k) for q, k in map(dict.values, pictures)]
arrows.turned(pictures)

# %% [markdown]
# Move a query and a key along the text together. Both then turn farther by the same angle, and the angle between them
# stays as it was. So a score depends on how far apart the query and the key are, and not on where in the text they
# stand. What a model has learned about two neighboring words, it then knows of neighbors anywhere in the text. Turning
# changes no length, and values are not turned. A query of a real model has many pairs of features, and each pair turns
# at a speed of its own, like the sines. As an equation, for places $m$ and $n$:
#
# $$\operatorname{turn}(q, m) \cdot \operatorname{turn}(k, n) = \operatorname{turn}(q, m - n) \cdot k$$
# <!-- where: d = 6; q, k = random("d", "d"); m = 7; n = 4
# turn = lambda x, place: unmasked.positions.Rotary(6)(x[None], torch.tensor([int(place)]))[0] -->

# %% tags=["claims"]
assert abs(angles[0] - angles[1]) < 0.01 and abs(dots[0] - dots[1]) < 1e-4, (
    "The angle between them is the same, and so is the dot product"
)
assert (
    abs(dots[0] - dots[1]) < 1e-4
    and abs(dots[0] - turn(query, 4) @ turn(key, 3)) > 0.01
), (
    "So a score depends on how far apart the query and the key are, and not on where in the text they stand"
)
assert torch.isclose(turn(query, 9).norm(), query.norm(), atol=1e-5), (
    "Turning changes no length"
)

# %% [markdown]
# ## Do positions arrive?
#
# A mistake in the code can lose the positions, and the model still learns something from the bag. The test is this
# page's first experiment: shuffle the words. A model with positions must *not* give the same vectors. What attention
# alone does is called *equivariant*: if its input is shuffled, its output is shuffled in the same way, and nothing else
# changes. `probes.breaks_equivariance` of `unmasked` makes the test with any module, such as PyTorch's: without a mask
# `nn.MultiheadAttention` is equivariant, and so is a whole `nn.TransformerEncoder`.


# %% tags=["check"]
torch.manual_seed(3)
module = nn.MultiheadAttention(50, 5, batch_first=True).double()
layer = nn.TransformerEncoderLayer(50, 5, 64, dropout=0.0, batch_first=True)
encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()


def is_equivariant(f):
    """Whether shuffling two sentences shuffles what they give alike."""
    pair = torch.stack([X, X[order]])
    return probes.breaks_equivariance(f, pair) is None


# %% tags=["claims"]
assert not is_equivariant(
    lambda x: self_attention(x + table.weight[:6]).context
), "A model with positions must not give the same vectors"
assert is_equivariant(lambda x: self_attention(x).context), (
    "its output is shuffled in the same way, and nothing else changes"
)
assert is_equivariant(lambda x: module(x, x, x)[0]), (
    "without a mask nn.MultiheadAttention is equivariant"
)
assert is_equivariant(encoder) and not is_equivariant(
    lambda x: encoder(x, mask=~masks.causal(6))
), "and so is a whole nn.TransformerEncoder"

# %% [markdown]
# ## Recap
#
# - To attention a sentence is a bag of words: shuffled words get the vectors that they had.
# - A model is told where each word stands, by vectors that are added (learned, or sines), or by turning queries and
#   keys.
# - With rotary positions a score depends on the two words and on their distance, not on where in the text they stand.

# %% tags=["claims"]
assert torch.allclose(shuffled.context, context[order], atol=1e-5), (
    "To attention a sentence is a bag of words: shuffled words get the vectors that they had"
)
assert (
    abs(dots[0] - dots[1]) < 1e-4
    and abs(dots[0] - turn(query, 4) @ turn(key, 3)) > 0.01
), (
    "With rotary positions a score depends on the two words and on their distance, not on where in the text they stand"
)
# %% [markdown]
# ## Exercises
#
# `print(check(name, answer))`, with `check` of `unmasked.exercises`, judges an answer by the name in brackets: [how to
# do the exercises](../install.md#do-the-exercises).
#
# **A test for order** (`is-equivariant`). `probes.breaks_equivariance` wants a batch of sentences. Write
# `survives_shuffles(f)` for functions from (tokens, features) to (tokens, features), of any size; draw the tokens
# yourself. It will be tried on functions that are equivariant and on some that are not.
#
# ??? question "Hint"
#
#     One order is not enough: some functions survive being reversed, others being rolled. And sums in another order end
#     in other digits.

# %% tags=["solution"]
from unmasked.exercises import check


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
# them. Do not write the sentence out.
#
# ??? question "Hint"
#
#     Equation (4.1): the exponential of each score, times the count of its column, divided by the row's sum.


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
# - [Do my heads, tokens and batches stay apart?](../museum/heads.py): heads that are merged wrongly fail this page's
#   test, too.
#
# ## References
#
# <!--~ 2017, 3.5, 2.2, 2019, 3.1, 2021, 3.2, 2022: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.5, positions as sines and cosines, added.
# - Zaheer et al. (2017), *Deep Sets*: section 2.2, functions that are permutation equivariant.
# - Lee et al. (2019), *Set Transformer*: section 3.1, attention over sets, equivariant by design.
# - Su et al. (2021), *RoFormer: Enhanced Transformer with Rotary Position Embedding*: section 3.2, positions that turn.
# - Haviv et al. (2022), *Transformer Language Models without Positional Encodings Still Learn Positional Information*:
#   causal models without positions.
