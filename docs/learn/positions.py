# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Does attention know word order?
#
# **No<!--== "No" if torch.allclose(shuffled.context, context[order]) else "Yes" -->. Shuffle the words, and every word
# gets the context that it had: only the rows change places<!--== torch.allclose(shuffled.context, context[order])
# -->.** To attention, "my crew must process your order" and "your crew must process my order" are the same six<!--==
# len(one) --> words, and *crew* comes out the same<!--== "same" if exchanged < 1e-12 else "changed" --> from both. In
# "I must go back to my ship and to my crew", *my* and *to* stand twice, and both copies come out the same<!--==
# "same" if max(twins.values()) < 1e-12 else "different" -->.
#
# Two things bring order in. Under a *causal mask* (the next page is about [masks](../pytorch/masks.py)) a word sees
# only itself
# and what came before<!--== "before" if torch.allclose(causal[0], X[0]) else "after" -->, and with *positions* added to
# the embeddings no two places are alike<!--== not equivariant["self-attention, positions added"] -->.
#
# **You should know** [what attention computes](attention.py): scores, a softmax, an average.
# **You will know** what *permutation equivariance* is, why attention has it, how to test for it, what breaks it, and
# how the test finds positions that never arrive.

# %%
import inspect

import torch
from torch import nn

from unmasked import (
    attention_scores,
    masks,
    plot,
    probes,
    scaled_dot_product_attention,
    self_attention,
)
from unmasked.embeddings import ship_vectors

vectors = ship_vectors()
words = "I must go back to my ship and to my crew".lower().split()
X = vectors.lookup(words).double()  # tokens features
ship, crew = words.index("ship"), words.index("crew")

# %% [markdown]
# ## Shuffle the words
#
# Put the words in another order, compute attention, and compare with the rows of the original, put in that order. They
# are equal. So are the weights, whose rows *and* columns have moved:

# %%
torch.manual_seed(23)
order = torch.randperm(len(words))
another = [words[place] for place in order]
assert all(
    old != new for old, new in zip(words, another, strict=True)
)  # no word keeps its place

context, weights = self_attention(X)
shuffled = self_attention(X[order])
torch.testing.assert_close(shuffled.context, context[order])
torch.testing.assert_close(shuffled.weights, weights[order][:, order])
" ".join(another)

# %% tags=["hide-input"]
#| alt: The weights of the sentence and of the shuffled sentence, one heat map above the other. The bright cells, where
#|   ship and other words meet themselves, stay on the diagonal; the other cells are in other places. In both, a box
#|   marks the same weight, 0.13<!--= weights[ship, crew] -->, in the row of ship and the column of crew.
with plot.figure(4.6, 9.2) as figure:
    for axes, names, matrix in zip(
        figure.subplots(2),
        (words, another),
        (weights, shuffled.weights),
        strict=True,
    ):
        edges = [place - 0.5 for place in range(len(names) + 1)]
        axes.pcolormesh(edges, edges, matrix.tolist(), vmin=0, vmax=0.6)
        axes.set(
            aspect="equal",
            ylim=(len(names) - 0.5, -0.5),
            title="as written" if names is words else "shuffled",
        )
        axes.set_xticks(range(len(names)), labels=names, rotation=90)
        axes.set_yticks(range(len(names)), labels=names)
        corner = names.index("crew") - 0.5, names.index("ship") - 0.5
        axes.add_patch(
            axes.patch.__class__(
                corner, 1, 1, fill=False, edgecolor="#ff9d3c", linewidth=2.5
            )
        )
figure

# %% [markdown]
# A function is *permutation equivariant* if shuffling the rows of its input shuffles the rows of its output in the same
# way, and changes nothing else. So the context of *ship* is found wherever *ship* now stands, but which words stand
# beside it, before or after, has no influence. Over 1,000<!--== tried --> orders, the context of *ship* changes by no
# more than rounding:

# %%
torch.manual_seed(2)
tried, moves = 1_000, []
for _ in range(tried):
    places = torch.randperm(len(words))
    there = places.tolist().index(ship)
    moves.append(
        (self_attention(X[places]).context[there] - context[ship])
        .abs()
        .max()
        .item()
    )

assert max(moves) < 1e-12
max(moves)

# %% [markdown]
# ## Why: a matrix that shuffles
#
# To multiply by a *permutation matrix* $P$, the identity with its rows in another order, puts the rows of a matrix in
# that order. Its transpose undoes it.


# %%
def permutation(order):
    return torch.eye(len(order), dtype=torch.float64)[order]


P = permutation([2, 0, 1])
rows = torch.tensor(
    [[1.0, 0.0, 0.0, 1.0], [0.0, 1.5, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]],
    dtype=torch.float64,
)
assert torch.equal(P @ rows, rows[[2, 0, 1]])
assert torch.equal(P.T @ P @ rows, rows)
P, P @ rows

# %% [markdown]
# Follow $P$ through the three steps of attention. *Scores* compare two words by their vectors and by nothing else:
# shuffled words have the same scores, in shuffled rows and columns. The *softmax* takes one row at a time, and its sum
# does not depend on the order of the terms, so that it makes no difference whether rows and columns are shuffled before
# it or after it: $P$ on the left shuffles the rows, $P^\top$ on the right the columns. And the *average* adds up the
# same words with the same weights: $P^\top P$ cancels.
#
# $$\begin{aligned}
# \operatorname{SelfAttention}(P X)
# &= \operatorname{softmax}\left(\frac{P X (P X)^\top}{\sqrt{d}}\right) P X \\
# &= P \operatorname{softmax}\left(\frac{X X^\top}{\sqrt{d}}\right) P^\top P X \\
# &= P \operatorname{SelfAttention}(X)
# \end{aligned} \tag{4.1}$$
# <!-- where: n = 4; X = random("n d"); P = permutation([2, 0, 3, 1])
# SelfAttention = lambda tokens: self_attention(tokens).context -->
#
# With queries, keys and values of their own, each word of the context belongs to a query. The order of keys and values
# drops out altogether, as long as it is the same for both. With $R$ for another permutation matrix,
#
# $$\operatorname{Attention}(P Q, R K, R V) = P \operatorname{Attention}(Q, K, V) \tag{4.2}$$
# <!-- where: n = 4; m = 5; Q, K, V = random("n d_k", "m d_k", "m d_v")
# P = permutation([2, 0, 3, 1]); R = permutation([1, 3, 4, 0, 2])
# Attention = lambda *qkv: scaled_dot_product_attention(*qkv).context -->
#
# ## A bag of words
#
# What has no order is a *bag*: it holds words, and each a number of times. Take the
# nine<!--== len(counts) --> different words of the sentence and count them. What a word gets can be computed from that:


# %%
counts = {word: words.count(word) for word in words}
U = vectors.lookup(counts).double()  # each word once
times = torch.tensor(list(counts.values()))


def as_a_sentence(queries, bag, times):
    """What queries get from the words of a bag, written out one after the other."""
    sentence = bag.repeat_interleave(times.long(), dim=0)
    return scaled_dot_product_attention(queries, sentence, sentence).context


counts

# %% [markdown]
# With $c_w$ for how often word $w$ occurs among $u$ different ones,
#
# $$o_i = \frac{\sum_{w=1}^{u} c_w \, e^{s_{iw}} \, x_w}{\sum_{w=1}^{u} c_w \, e^{s_{iw}}} \tag{4.3}$$
# <!-- where: u = 3; q, x = random("n d", "u d"); c = torch.tensor([2.0, 4.0, 3.0]); s = attention_scores(q, x)
# o = as_a_sentence(q, x, c) -->
#
# To add the logarithm of a number to a score is to multiply its exponential by that number. So the package can do it
# without writing the sentence out, with its argument `bias`: numbers that are added to the scores (not the bias of a
# layer).

# %%
shares = times * attention_scores(U, U).exp()
by_hand = shares @ U / shares.sum(dim=-1, keepdim=True)

from_the_bag = self_attention(U, bias=times.double().log()).context
torch.testing.assert_close(from_the_bag, by_hand)
for word, row in zip(counts, from_the_bag, strict=True):
    torch.testing.assert_close(row, context[words.index(word)])

torch.testing.assert_close(from_the_bag, as_a_sentence(U, U, times))
from_the_bag[list(counts).index("ship"), :4]

# %% [markdown]
# Two consequences. A word that stands twice gets the same context twice, up to rounding, though one *my* belongs to
# *ship* and the other to *crew*:

# %%
twins = {}
for word in ("my", "to"):
    first, second = (
        place for place, each in enumerate(words) if each == word
    )
    torch.testing.assert_close(weights[first], weights[second])
    twins[word] = (context[first] - context[second]).abs().max().item()
twins

# %% [markdown]
# And sentences of the same words cannot be told apart, whatever they mean:

# %%
one, two = (
    text.split()
    for text in (
        "my crew must process your order",
        "your crew must process my order",
    )
)
pair = torch.stack(
    [vectors.lookup(one), vectors.lookup(two)]
).double()  # batch tokens features
contexts = self_attention(pair).context
exchanged = max(
    (contexts[0, place] - contexts[1, two.index(word)]).abs().max().item()
    for place, word in enumerate(one)
)
exchanged

# %% [markdown]
# ## A test, and who passes
#
# The test needs no reference, only a function and some tokens:


# %%
def is_equivariant(f, x, tries=5):
    generator = torch.Generator().manual_seed(0)
    orders = [
        torch.randperm(x.size(1), generator=generator) for _ in range(tries)
    ]
    return all(
        torch.allclose(f(x[:, order]), f(x)[:, order]) for order in orders
    )


# %% [markdown]
# The package has it as a *probe*, which returns `None` or what it has found. Its source, without the docstring:

# %% tags=["hide-input"]
source = inspect.getsource(probes.breaks_equivariance)
print(
    source[: source.index("r" + '"""')].rstrip(),
    source.rpartition('"""')[2].strip("\n"),
    sep="\n",
)

# %% [markdown]
# Learned matrices and several heads change nothing, since every token goes through the same ones. Neither do the other
# parts of a *transformer*, the network that GPT and BERT are made of: its norms, and its layers that take one token at
# a time. Only what treats places differently knows order, such as the mask and the positions that follow below.

# %%
torch.manual_seed(3)
positions = 0.5 * torch.randn(
    6, 50, dtype=torch.float64
)  # a vector for each place
module = nn.MultiheadAttention(50, 5, batch_first=True).double()
layer = nn.TransformerEncoderLayer(50, 5, 64, dropout=0.0, batch_first=True)
encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()
future = ~masks.causal(6)  # True = may not attend

functions = {
    "self-attention": lambda x: self_attention(x).context,
    "nn.MultiheadAttention, five heads": lambda x: module(x, x, x)[0],
    "nn.TransformerEncoder, two layers": encoder,
    "causal self-attention": lambda x: (
        self_attention(x, is_causal=True).context
    ),
    "nn.TransformerEncoder, causal": lambda x: encoder(x, mask=future),
    "self-attention, positions added": lambda x: (
        self_attention(x + positions).context
    ),
}
equivariant = {name: is_equivariant(f, pair) for name, f in functions.items()}
for name, f in functions.items():
    assert equivariant[name] == (probes.breaks_equivariance(f, pair) is None)
plot.table(
    ["function", "equivariant"],
    [(name, str(passes)) for name, passes in equivariant.items()],
)

# %% [markdown]
# ## The causal mask breaks it
#
# Under a causal mask the second *my* sees more<!--== "more" if masks.causal(len(words))[second].sum() >
# masks.causal(len(words))[first].sum() else "fewer" --> words than the first, and the two get different contexts:

# %%
causal = self_attention(X, is_causal=True).context
first, second = (place for place, word in enumerate(words) if word == "my")
apart = (causal[first] - causal[second]).norm().item()
apart, causal[first].norm().item()

# %% [markdown]
# They are now 0.38<!--= apart --> apart. The words were shuffled; the mask was not. Let $M$ be the mask as a matrix,
# one where a query may see a key and zero elsewhere, and let it move with the words, rows and columns: then all is as
# before.


# %%
def attend(x, allowed):
    return self_attention(x, allowed=allowed.bool()).context


# %% [markdown]
# $$\operatorname{Attend}(P X, P M P^\top) = P \operatorname{Attend}(X, M) \tag{4.4}$$
# <!-- where: n = 4; X = random("n d"); M = masks.causal(n).double(); P = permutation([2, 0, 3, 1]); Attend = attend -->
#
# So under a causal mask a word knows *which* words came before it. Their order it does not know: what it sees is again
# a bag. Shuffle all words but the last, and the last one gets the context that it had:


# %%
def layers(x, number):
    for _ in range(number):
        x = x + self_attention(x, is_causal=True).context
    return x


torch.manual_seed(6)
earlier = torch.cat(
    [torch.randperm(10), torch.tensor([10])]
)  # the last word stays the last
moved = [
    (layers(X[earlier], number)[-1] - layers(X, number)[-1]).norm().item()
    for number in (1, 2)
]
assert moved[0] < 1e-12
moved

# %% [markdown]
# With one layer it moves by nothing<!--= "nothing" if moved[0] < 1e-12 else "something" -->. With two it moves by {{
# moved[1] :.2f}}: the first layer has given the earlier words contexts that tell what came before *them*, and the
# second layer sees these. A causal model of several layers can learn order from the mask alone.
#
# ## Positions, added
#
# The usual way is to say where a word stands: add to each embedding a vector that belongs to its place. Then the two
# sentences about orders differ. Above, `positions` were random vectors, which is enough to tell places apart; GPT-2 and
# BERT learn theirs from such a start.

# %%
contexts = self_attention(pair + positions).context
told_apart = (
    (contexts[0, one.index("crew")] - contexts[1, two.index("crew")])
    .norm()
    .item()
)
assert pair[0, one.index("crew")].equal(pair[1, two.index("crew")])
told_apart

# %% [markdown]
# The two contexts of *crew* are now {{ told_apart :.2f}} apart. Models differ here: some add sines and cosines, some
# learn the vectors.
#
# ## Positions, turned
#
# Many newer models add nothing. They take the features of each query and key in pairs, and turn each pair, as a point
# of the plane, by an angle that grows with the place: *rotary* positions, or *RoPE*. Values are not turned.


# %%
def turn(x, place):
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    rates = 10_000 ** -(torch.arange(0, x.size(-1), 2).to(x) / x.size(-1))
    return torch.view_as_real(pairs * torch.exp(1j * place * rates)).flatten(
        -2
    )


torch.manual_seed(9)
q, k = torch.randn(2, 64, dtype=torch.float64)
back = 5
places = (5, 105, 1005)
dots = {
    place: (turn(q, place) @ turn(k, place - back)).item() for place in places
}
farther = (turn(q, 105) @ turn(k, 105 - back - 1)).item()
torch.testing.assert_close(turn(q, 1005).norm(), q.norm())
dots, farther

# %% [markdown]
# The norm stays<!--= "stays" if torch.isclose(turn(q, 1005).norm(), q.norm()) else "grows" -->. At every place the dot
# product with the key five<!--= back --> places back is the same<!--= "same" if max(dots.values()) - min(dots.values())
# < 1e-9 else "other" -->, up to rounding; with the key before that one it is another<!--= "another" if abs(farther -
# dots[105]) > 1 else "the same" -->. It depends on the offset alone:
#
# $$\operatorname{turn}(q, m) \cdot \operatorname{turn}(k, n) = \operatorname{turn}(q, m - n) \cdot k$$
# <!-- where: d = 6; q, k = random("d", "d"); m = 7.0; n = 4.0 -->
#
# ## A version that looks right
#
# Positions are often kept with the axes (places, one, features), for input that has the tokens first and the batch
# second. Then `x.size(0)` is the number of tokens. But here the batch comes first:


# %%
torch.manual_seed(8)
kept = 0.5 * torch.randn(20, 1, 50, dtype=torch.float64)  # places 1 features


def wrong(x):  # batch tokens features
    return self_attention(x + kept[: x.size(0)]).context


def right(x):
    return self_attention(x + kept[: x.size(1)].transpose(0, 1)).context


assert wrong(pair).shape == right(pair).shape
(wrong(pair) - self_attention(pair).context).norm().item()

# %% [markdown]
# The shapes fit, no error is raised, and outputs have changed. But every word of a sentence got the same vector, which
# belongs to the number of its *sentence* in the batch. Places are as alike as before, and the test says so:

# %%
print("wrong:", probes.breaks_equivariance(wrong, pair))
print("right:", probes.breaks_equivariance(right, pair))
assert is_equivariant(wrong, pair)
assert not is_equivariant(right, pair)

# %% [markdown]
# A model with positions must *fail*<!--= "fail" if not is_equivariant(right, pair) else "pass" --> the test for
# equivariance. This one passes<!--= "passes" if is_equivariant(wrong, pair) else "fails" --> it, so it knows no order.
# Such a model still learns something, from the bag of words, so a falling loss does not give the mistake away.
#
# ## Exercises
#
# `check` judges an answer by the name in brackets: [how to do the exercises](../install.md#do-the-exercises).
#
# **A test for order** (`is-equivariant`). The page's test wants a batch. Write `survives_shuffles(f)` for functions
# from (tokens, features) to (tokens, features), of any size; draw the tokens yourself. It will be tried on functions
# that are equivariant and on some that are not.
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
    return all(torch.allclose(f(x[order]), f(x)[order]) for order in orders)


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
#     Equation (4.3): the exponential of each score, times the count of its column, divided by the row's sum.


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
# - [Who may see whom?](../pytorch/masks.py): the causal mask, and others.
# - [Is my module right?](../doctor.py) runs this page's probe, and others, on your module.
# - [The museum of mistakes](../museum/heads.py): heads that are merged wrongly fail this page's test too.
# - [Notation](../notation.md) for the symbols.
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
