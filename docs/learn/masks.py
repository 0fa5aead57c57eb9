# %% [markdown]
# # Who may see whom?
#
# **A mask says which words a word may look at. What the mask hides gets a weight of exactly zero.**

# %% tags=["hide-input", "imports"]
#| caption: A mask, and the weights under it. Rows are queries, columns are keys. Hatched cells are hidden. *ship* may
#|   not look at *your* and *order*, which come later.
import torch
from torch import nn

import unmasked.embeddings
from unmasked import bypass_, masks, plot, self_attention
from unmasked.functional import attention_scores

words = ["we", "process", "and", "ship", "your", "order"]
X = unmasked.embeddings.ship_vectors().lookup(words)
causal = masks.causal(len(words))
weights = self_attention(X, allowed=causal).weights
grids = {"may look": causal.int(), "weights": weights}
plot.grid(grids, queries=words, allowed=causal)

# %% [markdown]
# A language model learns by guessing the next word of sentences that people wrote. From the new vector of a word it
# computes, for each word that it knows, how likely that word comes next. ([The last page](generating.py)<!--~ link: it
# ends the track --> of this track shows how.) The likeliest one is its guess. In training it reads the whole sentence
# at once, and at every word it guesses the next one. The answer already stands there, one place on. A model that can
# look at the answer does not have to guess. Without a mask, training seems to go very well, and the model is useless.
#
# <div class="overview" data-here="masks"></div>

# %% [markdown]
# ## Hiding the words that come later
#
# A mask is a table of yes and no. It has a row for each query and a column for each key, like the table of weights.
# `True` in row *ship* and column *we* says that *ship* may look at *we*.
#
# The most common mask is the *causal* mask: each word may look at itself and at the words before it. One comparison
# makes the whole table. It holds the places of the queries, as a column, against those of the keys, as a row:

# %%
place = torch.arange(len(words))  # 0 1 2 3 4 5
may_look = place[:, None] >= place  # may look: the key is not later
may_look[words.index("ship")]

# %% [markdown]
# This is the row of *ship*. The first four entries are `True`: *we*, *process*, *and*, and *ship* itself.
# `self_attention` is of `unmasked`, the library of this site: it computes what the first page computed. `X` holds the
# vectors of the six words, and `words` is the list of them. Give it the mask:

# %%
masked = self_attention(X, allowed=may_look)
weights_of_ship = masked.weights[words.index("ship")]
weights_of_ship

# %% tags=["remove-cell"]
free = self_attention(X).weights

# %% [markdown]
# Without the mask, *ship* kept 78%<!--= free[3, 3] --> of its attention for itself, and gave *your* and *order*
# 11%<!--= free[3, 4] + free[3, 5] --> together. With the mask those two words get nothing. The other words share the
# rest, so *ship* now keeps 88%<!--= weights_of_ship[3] -->. The weights still sum to one<!--=
# round(weights_of_ship.sum().item(), 5) -->.
#
# The first word can look only at itself, with a weight of 1.00<!--= masked.weights[0, 0] -->. The last word sees the
# whole sentence, so the mask changes nothing for it.

# %% tags=["claims"]
assert (weights[~causal] == 0).all(), (
    "What the mask hides gets a weight of exactly zero"
)
assert causal[3, :4].all() and not causal[3, 4:].any(), (
    "ship may not look at your and order, which come later"
)
assert may_look.equal(causal), (
    "each word may look at itself and at the words before it"
)
assert not weights_of_ship[4:].any(), (
    "With the mask those two words get nothing"
)
assert may_look[0].tolist() == [True] + [False] * 5, (
    "The first word can look only at itself"
)
assert torch.allclose(masked.weights[-1], free[-1], atol=1e-5), (
    "The last word sees the whole sentence, so the mask changes nothing for it"
)

# %% [markdown]
# ## What goes wrong without the mask
#
# Here is the smallest model that can cheat. It reads six letters. At each of the first five it guesses which letter
# comes next; nothing comes after the sixth. To keep it small, its scores are no dot products: the model has a table
# with one score for each query and key, and training sets them. The letters are drawn at random from eight. Nobody can
# guess them: one guess in eight is correct, by luck.

# %% tags=["hide-input"]
#| caption: The weights that the model learned. Rows are the places that guess, the queries; columns are the letters,
#|   the keys: five places for six letters, since nothing comes after the sixth. Those under the mask are chance.
#|   Without a mask each place looks at the next letter, which it should guess.
from unmasked.teaching import train_to_guess

later = ~masks.causal(6)
cheating, cheats, writes = train_to_guess(torch.zeros_like(later))
honest, guessed, _ = train_to_guess(later)
numbers = [f"at letter {number}" for number in range(1, 6)]
seen = {"no mask": later[:-1] | True, "causal mask": ~later[:-1]}
learned = {"no mask": cheating, "causal mask": honest}
plot.grid(learned, queries=numbers, keys="123456", allowed=seen)

# %% [markdown]
# Without the mask nearly all guesses are correct, although nobody can guess these letters. The model copies. Then let
# it write. The next letter is not there yet, so the model has nothing to copy: one guess in eight<!--= round(1 /
# writes) --> is correct, which is luck.
#
# With the mask the model has only luck in training, too. Its result is poor, and honest: in training it does what it
# will have to do when it writes.

# %% tags=["claims"]
assert cheating.argmax(-1).tolist() == [1, 2, 3, 4, 5], (
    "Without a mask each place looks at the next letter"
)
assert cheats > 0.95, "Without the mask nearly all guesses are correct"
assert round(1 / guessed) == 8, (
    "With the mask the model has only luck in training"
)

# %% [markdown]
# ## Hiding padding
#
# Several sentences are computed at once, as a *batch*. A batch is one tensor, and so all of its sentences must have the
# same length. Short sentences are filled up with *padding*, which means nothing. What stands at a place of a sentence,
# a word or padding, is called a *token*. (For most models a rare word is several tokens, each a part of it.) No word
# should look at padding, so its columns are hidden from every query:

# %% tags=["hide-input"]
#| caption: Padding, the causal mask, and the two together, for a sentence of four words and two tokens of padding.
#|   Rows are queries, columns are keys. Where both masks hold, a query sees what both allow.
padded = ["we", "ship", "your", "order", "[pad]", "[pad]"]
real = torch.tensor([word != "[pad]" for word in padded]).expand(6, 6)
kinds = {"padding": real, "causal": causal, "both": real & causal}
shown = {name: each.int() for name, each in kinds.items()}
plot.grid(shown, queries=padded, allowed=kinds)

# %% [markdown]
# The two rows of padding have weights as well, but nobody reads what comes out in them. In this picture the causal mask
# alone already keeps the padding from the four words, because the padding stands after them. The padding mask is needed
# where words may look ahead, as in a model that reads a whole sentence before it answers, or where the padding stands
# in front.
#
# Two masks are combined with *and*: a query may see a key only if both masks allow it. In code that is `&`. The
# comments name the axes of the masks:

# %%
is_word = torch.tensor([True, True, True, True, False, False])  # keys
both = may_look & is_word  # queries keys
both.int()

# %% tags=["check"]
box = torch.full((6, 50), 1000.0)  # padding that would be noticed
box[:4] = X[[0, 3, 4, 5]]  # we ship your order
in_a_box = self_attention(box, allowed=both).context[:4]
alone = self_attention(box[:4], is_causal=True).context
exposed = self_attention(box.where(is_word[:, None], 0.0)).context[:4]

# %% [markdown]
# With the mask the four words get just what they get alone. Without any mask, whatever stands in the padding is mixed
# into every word.

# %% tags=["claims"]
assert real[:, :4].all() and not real[:, 4:].any(), (
    "so its columns are hidden from every query"
)
assert kinds["both"][:4].equal(kinds["causal"][:4]), (
    "In this picture the causal mask alone already keeps the padding from the four words"
)
assert torch.allclose(in_a_box, alone, atol=1e-4), (
    "With the mask the four words get just what they get alone"
)
assert (
    (exposed - self_attention(box[:4]).context).abs().amax(-1) > 0.01
).all(), "whatever stands in the padding is mixed into every word"

# %% [markdown]
# ## Before the softmax, not after
#
# How does a weight become zero? The obvious way is to compute the weights as usual and then set the hidden ones to
# zero. That way is wrong. Look at *ship* again:

# %% tags=["hide-input"]
#| caption: The weights of *ship*, a column for each key, and at the end their sum. Set to zero after the softmax, the
#|   weights no longer sum to one.
ship = words.index("ship")
rows = torch.stack([free[ship], free[ship] * causal[ship], weights[ship]])
rows = torch.cat([rows, rows.sum(-1, keepdim=True)], dim=-1)
kinds_of_rows = ["no mask", "zeros after", "mask before"]
columns = [*words, "sum"]
plot.grid(rows, "weights of ship", rows=kinds_of_rows, columns=columns)

# %% [markdown]
# In the second row the sum is 0.89<!--= rows[1, -1] -->, not one. Worse, the hidden words still have a say. Their
# scores took part in the softmax, and so they decide how much is missing.
#
# Instead, change the score before the softmax. The softmax takes the exponential of each score, which is *e* to the
# power of the score. The exponential of minus infinity is zero. So a hidden key gets the score minus infinity:

# %%
scores = attention_scores(X, X)  # of unmasked, too: queries keys
scores = scores.masked_fill(~may_look, -torch.inf)  # ~ turns True into False
weights_under_mask = scores.softmax(dim=-1)
weights_under_mask[words.index("ship")]

# %% [markdown]
# These are the weights of the third row. The hidden words took no part in the softmax, and the other words share
# everything. As an equation, with $A$ for the weights, $S$ for the scores, and $B$ for a table that is zero where a
# query may look and minus infinity where it may not:
#
# $$A = \operatorname{softmax}(S + B)$$
# <!-- where: S = random("n n"); B = masks.additive_from_allowed(masks.causal(n), torch.float64);
# A = unmasked.functional.attention_weights(S, allowed=masks.causal(n)) -->

# %% tags=["claims"]
assert rows[1, -1] < 0.95 < rows[2, -1], (
    "Set to zero after the softmax, the weights no longer sum to one"
)
assert torch.allclose(weights_under_mask[ship], rows[2, :-1], atol=1e-5), (
    "These are the weights of the third row"
)

# %% [markdown]
# ## A row that may see nothing
#
# Can a mask hide *everything* from a query? Yes: some models put the padding in front of the sentence. The first query
# is then padding. Under the causal mask it could look only at itself, and it is hidden as padding. All of its scores
# are minus infinity:

# %%
blind = torch.full((4,), -torch.inf)
blind.softmax(dim=-1)

# %% [markdown]
# *NaN* means *not a number*: each weight is zero divided by zero. One NaN spreads to everything that is computed with
# it, and can ruin a training run. `unmasked` gives such a row weights of zero. [What PyTorch
# gives](../pytorch/masks.py#when-a-row-allows-nothing)<!--~ link: the section on rows that allow nothing --> depends on
# the interface. Before training, look for such rows:

# %%
may_look.any(dim=-1).all()  # does every query see something?

# %% tags=["claims"]
assert not self_attention(X, allowed=causal & (place > 0)).weights[0].any(), (
    "unmasked gives such a row weights of zero"
)

# %% [markdown]
# ## The surprise: `True` means two things
#
# In PyTorch attention is a function, `F.scaled_dot_product_attention`. It is also a *module*, `nn.MultiheadAttention`:
# an object that holds learned matrices of its own. Both take a boolean mask, and they read it in opposite ways. To the
# function, `True` means *may look*. To the module, `True` means *may not look*.
#
# No error is raised. With the causal mask the module looks only at what comes later, and the weights of the last word,
# which may then see nothing, are NaN. The remedy is one character: `~mask` turns the mask of one into the mask of the
# other. Paint a mask yourself, and give the same mask to the function and to the module:

# %% tags=["hide-input"]
#| caption: A mask to paint, and the weights that come out. Rows are queries, columns are keys.
#| script: ../../src/unmasked/figures/painter.js
#| data: painter_data
from unmasked.figures.painter import readings

four = masks.causal(4)  # True on the diagonal and below
x = X[None, :4]  # a batch of one sentence: we process and ship
torch.manual_seed(0)
module = bypass_(nn.MultiheadAttention(50, 1, batch_first=True))
interfaces = readings(module, x, four)
painter_data = {"words": words[:4], "mask": four.tolist(), "keeps": "mask"}
painter_data |= {
    "scores": attention_scores(x, x)[0],
    "interfaces": interfaces,
}
under_four = self_attention(x, allowed=four).weights[0]
grids = {"may look": four.int(), "weights": under_four}
plot.grid(grids, queries=words[:4], allowed=four)

# %% [markdown]
# The page
# [What does each interface make of my mask?](../pytorch/masks.py)<!--~ link: the page's new title --> has all
# interfaces of PyTorch, and a test that tells of any module whether it sees the future.

# %% tags=["claims"]
assert [each["allows"] for each in interfaces] == [True, False], (
    "Both take a boolean mask, and they read it in opposite ways"
)
assert interfaces[0]["allows"], "To the function, True means may look"
assert not interfaces[1]["allows"], "To the module, True means may not look"
assert not interfaces[1]["allows"], (
    "With the causal mask the module looks only at what comes later"
)
assert interfaces[1]["blind"] == "NaN", (
    "and the weights of the last word, which may then see nothing, are NaN"
)

# %% [markdown]
# ## Recap
#
# - A mask has a row for each query and a column for each key. Hidden keys get a weight of exactly zero.
# - The causal mask hides later words, so that a model learns to guess and not to copy. A padding mask hides filler.
# - Hiding happens before the softmax, by scores of minus infinity. What a row that may see nothing gets depends on the
#   interface.
#
# ## Exercises
#
# `print(check(name, answer))`, with `check` of `unmasked.exercises`, judges an answer by the name in brackets: [how to
# do the exercises](../install.md#do-the-exercises).
#
# **A window** (`window-mask`). Some models let each word see only itself and a few words before it. Write
# `window(tokens, width)`, which returns the boolean mask: each query may see `width` keys, itself included, and none
# that comes later.
#
# ??? question "Hint"
#
#     How far back is a key? Subtract the key's place from the query's place, and ask for two things at once.

# %% tags=["solution"]
from unmasked.exercises import check


def window(tokens, width):
    place = torch.arange(tokens)
    back = place[:, None] - place
    return (back >= 0) & (back < width)


feedback = check("window-mask", window)
assert feedback
feedback

# %% [markdown]
# **Who sees nothing?** (`blind-queries`). Write `blind(allowed)`, which takes a boolean mask with any axes before the
# last two, queries and keys, and returns `True` for each query that may see no key.
#
# ??? question "Hint"
#
#     `any` along the last axis says whether a query sees something.


# %% tags=["solution"]
def blind_queries(allowed):
    return ~allowed.any(dim=-1)


feedback = check("blind-queries", blind_queries)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [Does order matter?](positions.py) is the next page: a causal mask tells attention a little about the order of
#   words, and positions tell the rest.
# - [What does each interface make of my mask?](../pytorch/masks.py)<!--~ link: the page's new title --> for those who
#   build.
# - [Does my mask hide what it should?](../museum/masks.py) shows masks that went wrong.
