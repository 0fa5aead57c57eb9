# %% [markdown]
# # Who may see whom?
#
# **A mask says which words a word may look at. What the mask hides gets a weight of exactly zero.**

# %% tags=["hide-input", "imports"]
#| caption: A mask, and the weights under it. Rows are queries, columns are keys. Hatched cells are hidden: *ship* may
#|   not look at *your* and *order*, which come later.
import torch

from unmasked import masks, plot, self_attention
from unmasked.functional import attention_scores
from unmasked_lessons.embeddings import ship_vectors

words = ["we", "process", "and", "ship", "your", "order"]
X = ship_vectors().lookup(words)
causal = masks.causal(len(words))
weights = self_attention(X, allowed=causal).weights
grids = {"may look": causal.int(), "weights": weights}
plot.grid(grids, queries=words, allowed=causal)

# %% [markdown]
# <div class="overview" data-here="masks"></div>
#
# A language model learns by guessing the next word of sentences that people wrote. Attention makes new vectors for all
# words of a sentence at once, and the vector of *each* word is asked for the word after it, not only that of the last
# one. So one reading of a sentence gives as many lessons as it has words to guess.
#
# But then the answers are in plain sight. The word that *ship* has to guess, *your*, stands right beside it, and a
# model that can look there has nothing to learn. So whatever comes later is hidden.

# %% [markdown]
# ## Hiding the words that come later
#
# A mask is a table of yes and no, with a row for each query and a column for each key. In the most common one, the
# *causal* mask, each word may look at itself and at the words before it. One comparison makes the whole table: the
# places of the queries, as a column, are compared with those of the keys, as a row. (`[:, None]` makes a column.)

# %%
place = torch.arange(len(words))  # 0 1 2 3 4 5
may_look = place[:, None] >= place  # may look: the key is not later
may_look[words.index("ship")]

# %% [markdown]
# This is the row of *ship*: it may look at *we*, *process*, *and*, and at itself. Now give the mask to
# `self_attention`, which is the three lines of the first page in this site's library. `X` holds the vectors of the six
# words.

# %%
from unmasked import self_attention

masked = self_attention(X, allowed=may_look)
weights_of_ship = masked.weights[words.index("ship")]
weights_of_ship

# %% tags=["remove-cell"]
free = self_attention(X).weights

# %% [markdown]
# Without the mask, *ship* kept 78%<!--= free[3, 3] --> of its attention for itself, and gave *your* and *order*
# 11%<!--= free[3, 4] + free[3, 5] --> together. With the mask those two get nothing, and the others share their part:
# *ship* now keeps 88%<!--= weights_of_ship[3] -->.
#
# How do you know that nothing leaks from later words? Put another word in the place of the last one, compute again, and
# look which of the new vectors have changed:

# %%
changed = X.clone()
changed[-1] = X[0]  # "we" in the place of "order"
again = self_attention(changed, allowed=may_look)
(again.context != masked.context).any(dim=-1)  # for each word

# %% [markdown]
# Only the last one. The others stay exactly what they were, to the last digit. Without the mask, all six change.

# %% tags=["check"]
leaks = (self_attention(changed).context != self_attention(X).context).any(-1)

# %% tags=["claims"]
assert again.context[:-1].equal(masked.context[:-1]) and not again.context[
    -1
].equal(masked.context[-1]), (
    "The others stay exactly what they were, to the last digit"
)  # to the bit: what is hidden is multiplied by zero
assert leaks.all() and len(leaks) == 6, "Without the mask, all six change"

# %% tags=["claims"]
assert (weights[~causal] == 0).all(), (
    "What the mask hides gets a weight of exactly zero"
)
assert words[4:] == ["your", "order"] and not causal[3, 4:].any(), (
    "ship may not look at your and order, which come later"
)
assert may_look.equal(causal), (
    "each word may look at itself and at the words before it"
)

# %% [markdown]
# ## What goes wrong without the mask
#
# Two singers learn the song of the green bottles from the same texts, one with the causal mask and one without. In
# training they guess every next word. Then they sing by themselves, and only verses without a mistake count:
#
# {{ table.markdown() }}
#
# In training, the singer without a mask even seems to be better. (What the other one gets wrong is the humming: nobody
# can guess how long it lasts, or which number follows.) But the singer without a mask copies:

# %% tags=["hide-input"]
#| caption: Some of what *be* looks at just before *eight*, in one of the two attentions that each singer has side by
#|   side. With the mask, more than 80% goes to *nine*, which stands there twice. Without a mask, about 93%<!--=
#|   picked[1, 5] --> goes to *eight*, the word that it should guess.
from unmasked_lessons.teaching import Singer, verse

text, be = "la la la " + verse(9), 17
shown = torch.tensor(
    [3, 6, 15, 16, 17, 18, 19, 20]
)  # what gets most, and some
trained = [Singer.trained(1).rounded(), Singer.trained(1, "mask")]
singers = dict(zip(["with the mask", "without"], trained))
looks = [each.weights(each.numbers_of(text))[0, 0, be] for each in trained]
picked = torch.stack(looks)[:, shown]
columns = [text.split()[place] for place in shown]
seen = torch.stack([shown <= be, shown > 0])
name = "weights of be"
plot.grid(picked, name, rows=[*singers], columns=columns, allowed=seen)

# %% [markdown]
# When it sings, there is no next word yet, and nothing to copy. After "{{ begun }}" it sings "{{ stuck }}", and so on
# for ever. The singer with the mask had to look back throughout its training, and so it has learned to: "{{ sung }}".
#
# A mask does not make training easier, but it makes training the same task as singing.

# %% tags=["check", "any-version"]
begun = "la la la nine green"
sung, stuck = (
    each.sing(begun, count).removeprefix(begun + " ")
    for each, count in zip(trained, [16, 7])
)
words_right = {name: each.words_right() for name, each in singers.items()}
verses_right = {name: each.verses_right() for name, each in singers.items()}
cells = [(name, words_right[name], verses_right[name]) for name in singers]
table = plot.table(
    ["Trained", "In training: next words right", "Singing: verses right"],
    cells,
    "{:.0%}",
)

# %% tags=["claims"]
assert columns[:2] == ["nine"] * 2 and text.split()[:be].count("nine") == 2, (
    "goes to nine, which stands there twice"
)
assert picked[0, :2].sum() > 0.8, "more than 80% goes to nine"
assert words_right["without"] > 0.99 > words_right["with the mask"], (
    "In training, the singer without a mask even seems to be better"
)
assert (
    verses_right["without"] < 0.2 and verses_right["with the mask"] > 0.9
), (
    "The singer with the mask had to look back throughout its training, and so it has learned to"
)

# %% [markdown]
# ## Hiding padding
#
# All sentences of a batch must have the same length, since the batch is one tensor. Short ones are filled up with
# *padding*, which means nothing, and another mask hides it from every query.
#
# ??? note "Both masks in one"
#
#     Whatever stands at a place of a sentence, a word or padding, is called a *token*. (For most models a rare word is
#     several tokens.) Let `is_word` be `True` for each token that is a word. Then `may_look & is_word` is one mask for
#     both: a query may see a key only if both allow it. Where the padding stands behind the words, the causal mask
#     alone already keeps the padding from them. Another mask is needed where words may look ahead, or where the padding
#     stands in front.

# %% tags=["check"]
is_word = torch.tensor([True, True, True, True, False, False])  # keys
both = may_look & is_word  # queries keys

# %% tags=["claims"]
assert both[:4].equal(causal[:4]), (
    "the causal mask alone already keeps the padding from them"
)

# %% [markdown]
# ## Before the softmax, not after
#
# How does a weight become zero? The obvious way is to compute the weights as usual, and then set the hidden ones to
# zero. That is wrong:

# %% tags=["hide-input"]
#| caption: The weights of *ship*, and at the end their sum. If hidden ones are set to zero after the softmax, the rest
#|   no longer sums to one.
ship = words.index("ship")
rows = torch.stack([free[ship], free[ship] * causal[ship], weights[ship]])
rows = torch.cat([rows, rows.sum(-1, keepdim=True)], dim=-1)
kinds_of_rows = ["no mask", "zeros after", "mask before"]
plot.grid(
    rows, "weights of ship", rows=kinds_of_rows, columns=[*words, "sum"]
)

# %% [markdown]
# The hidden words even have a say: their scores took part in the softmax, and decide how much is missing.
#
# Instead, change the scores before the softmax. It takes *e* to the power of each score, and *e* to the power of minus
# infinity is zero. So a hidden key gets the score minus infinity:

# %%
scores = attention_scores(X, X)  # queries keys
scores = scores.masked_fill(~may_look, -torch.inf)  # ~ turns True into False
scores.softmax(dim=-1)[words.index("ship")]

# %% [markdown]
# These are the weights of the third row. Here is the whole computation, for four words with two invented numbers each,
# for *sea* and *trade*. Hide a score, and follow its column down through the tables. Then look at the row of *and*: a
# score of zero hides nothing.

# %% tags=["hide-input"]
#| caption: Four words on their way through attention: dot products, scores, and weights under the causal mask.
#| script: ../../src/unmasked_lessons/figures/stages.js
#| data: stages
four, features = ["my", "ship", "and", "crew"], ["sea", "trade"]
x = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
visible = masks.causal(4)
under = self_attention(x, allowed=visible).weights
stages = {"words": four, "features": features, "mask": visible.tolist()}
stages |= {"queries": x, "keys": x, "values": x}
pictures = {
    "Q Kᵀ": x @ x.mT,
    "scores": attention_scores(x, x),
    "weights": under,
}
seen = {name: visible | (name != "weights") for name in pictures}
plot.grid(pictures, queries=four, allowed=seen)

# %% tags=["claims"]
assert torch.allclose(scores.softmax(-1)[ship], rows[2, :-1], atol=1e-5), (
    "These are the weights of the third row"
)
assert rows[1, -1] < 0.95 < rows[2, -1], (
    "If hidden ones are set to zero after the softmax, the rest no longer sums to one"
)

# %% [markdown]
# ## Two traps
#
# A mask can hide *everything* from a query. Then each weight is zero divided by zero, which is *NaN*, *not a number*.
# It spreads to all that is computed with it, and can ruin a training run.
#
# And PyTorch has attention as a function and as a module. To the function, `True` means *may look*. To the
# module, `True` means *may not look*. [What does each interface make of my mask?](../pytorch/masks.py) has both traps,
# and a mask to paint.

# %% tags=["check"]
from unmasked_lessons.experiments.interfaces import readings

blind = torch.full((4,), -torch.inf).softmax(dim=-1)
torch.manual_seed(0)
by_function, by_module = readings(X[:4], visible).values()

# %% tags=["claims"]
assert blind.isnan().all(), (
    "Then each weight is zero divided by zero, which is NaN, not a number"
)
assert (by_function > 0).equal(visible), (
    "To the function, True means may look"
)
assert (by_module[:3] > 0).equal(~visible[:3]), (
    "To the module, True means may not look"
)

# %% [markdown]
# ## The word *bottles* sees what came before
#
# This is the trained singer again. No word comes after *be*, so here you follow the first *bottles*. The word that it
# has to guess, *nine*, stands right beside it. The mask hides it: its score is minus infinity, and its weight zero. So
# *bottles* looks back: over 95% of its weight goes to the *nine* at the beginning. Choose a later word, and it sees
# more.

# %% tags=["hide-input"]
#| caption: The word *bottles* on its way through the trained singer.
#| script: ../../src/unmasked_lessons/figures/strip.js
#| data: strip.data
from unmasked_lessons.figures.strip import Strip

strip = Strip("masks", follow=2)
strip

# %% tags=["check"]
read = strip.singer.numbers_of(" ".join(strip.words))
of_bottles = strip.singer.weights(read)[0, 0, 2]

# %% tags=["claims"]
assert strip.words[2:4] == ["bottles", "nine"] and not of_bottles[3:].any(), (
    "its score is minus infinity, and its weight zero"
)
assert of_bottles[0] > 0.95 and strip.words[0] == "nine", (
    "over 95% of its weight goes to the nine at the beginning"
)

# %% [markdown]
# With the mask, the program can learn from whole pieces of the song. It reads a piece without its last word, and the
# answers are the same piece without its first: the answer to each word is the word after it. (In the lines below,
# `starts` draws where the pieces begin, and `flatten` puts the guesses of all of them in one row.)
#
# <div class="program"></div>

# %% [markdown]
# ## Recap
#
# - What a mask hides gets a weight of exactly zero, by a score of minus infinity before the softmax.
# - The causal mask hides later words, so that every word of a text is a lesson, and none can be copied.
# - Nothing leaks if a change of any word changes no vector before it.
#
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("window-mask", answer))`.
#
# **A window** (`window-mask`). Some models let each word see only itself and a few words before it. Write
# `window(tokens, width)`, which returns the boolean mask for so many *tokens*, words or padding: each query may see
# `width` keys, itself included, and none that comes later.
#
# ??? question "Hint"
#
#     How far back is a key? Subtract the key's place from the query's place, and ask for two things at once.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def window(tokens, width):
    place = torch.arange(tokens)
    back = place[:, None] - place
    return (back >= 0) & (back < width)


feedback = check("window-mask", window)
assert feedback
feedback

# %% [markdown]
# ### Optional
#
# **Who sees nothing?** (`blind-queries`). Write `blind_queries(allowed)`, which takes a boolean mask with any axes
# before the last two, queries and keys, and returns `True` for each query that may see no key.
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
# - [Does order matter?](positions.py) is the next page.
# - [Does my mask hide what it should?](../museum/masks.py) shows masks that went wrong.
