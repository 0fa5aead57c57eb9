# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Writing one word at a time: the KV cache
#
# **A language model writes one word at a time, and each new word looks back at all words before it. Their keys and
# values are the same in every step. So the model keeps them: this is the *KV cache*.**

# %% tags=["hide-input", "imports"]
#| caption: A small model goes on with a song, step by step, from three words. Filled are the words whose keys and
#|   values a step computes. Without a cache, each step computes those of all words so far. With a cache, only those of
#|   the newest word.
#| script: ../../src/unmasked/figures/cache.js
#| data: story
import torch

from unmasked import plot
from unmasked.cache import KVCache
from unmasked.figures import cache as drawing
from unmasked.teaching import Singer

torch.set_num_threads(1)  # small matrices are faster on one core

WIDTH, HEADS = Singer.WIDTH, Singer.HEADS
training_steps = 100
model = Singer.trained(training_steps)
vocabulary, verses = model.vocabulary, model.verses
numbers_of, words_of = model.numbers_of, model.words_of
new_caches = model.new_caches
prompt, steps = numbers_of("seven green bottles"), 10
story = drawing.story(model, prompt, steps)
pictures = drawing.computed(story)
of_token = KVCache.bytes_per_token(HEADS, WIDTH // HEADS, num_layers=2)
places = torch.arange(len(story["words"]) - 1)
plot.grid(
    pictures,
    rows=[f"step {n + 1}" for n in range(steps)],
    columns=[str(n + 1) for n in range(len(places))],
    allowed={name: each > 0 for name, each in pictures.items()},
    axes=("steps", "words"),
)

# %% [markdown]
# <div class="overview" data-here="cache"></div>
#
# Step through [Figure 1](#figure-1), and watch what is filled. On one side it grows with every word, and on the other
# side it is a single word after the first step. Yet both sides write the same song.
#
# The answers of a chat program appear word by word. This is not for show. The model chooses a word, reads the text with
# that word at its end, and only then can it choose the next one. Without a cache, it would do nearly all of its work
# again for every word. This page shows why it need not.

# %% tags=["claims"]
assert [int(each.sum(1)[-1]) for each in pictures.values()] == [
    story["computed"]["without"][-1],
    story["computed"]["with"][-1],
], "Filled are the words whose keys and values a step computes"
assert story["computed"]["without"] == list(range(3, 13)), (
    "Without a cache, each step computes those of all words so far"
)
assert set(story["computed"]["with"][1:]) == {1}, (
    "With a cache, only those of the newest word"
)
assert (torch.tensor(story["computed"]["without"]).diff() == 1).all(), (
    "On one side it grows with every word"
)
assert story["computed"]["with"] == [3, *[1] * 9], (
    "and on the other side it is a single word after the first step"
)

# %% [markdown]
# ## One word, and then the next
#
# The model of this page knows one song by heart, *Ten green bottles*. It has two blocks, and its training took {{
# training_steps }} steps. After the second block, the vector of the last word is compared, by a dot product, with a
# learned vector for each word that the model knows. The higher the result, the *word's score*, the likelier this word
# comes next. (These are not the scores of attention.) In the code, `numbers_of` turns the words of a text into numbers,
# by which the model knows them, and `words_of` turns numbers into words.

# %%
words = numbers_of("seven green bottles")
scores = model(words)[0, -1]  # of the first text, after its last word
words_of(scores.argmax().view(1, 1))  # the likeliest

# %% [markdown]
# To write more, put that word at the end of the text, and ask again:


# %%
def write(words, count):
    for _ in range(count):
        scores = model(words)  # texts words vocabulary: all, each time
        likeliest = scores[:, -1:].argmax(dim=-1)  # after the last word
        words = torch.cat([words, likeliest], dim=1)
    return words


text = write(words, 18)
print(words_of(text[:, :10]))
print(words_of(text[:, 10:]))

# %% [markdown]
# The model has counted down from seven to six. For this it has to look back: when it writes *six*, the word *seven* is
# 16<!--= words_of(text).split().index("six") --> words away. Attention is what finds it. Here is the word *be*, the
# last one before *six*, and what each head looks at most:

# %% tags=["hide-input"]
#| caption: What *be* looks at most, just before the model writes *six*. A head of the second block takes nearly
#|   everything from *seven*.
before_six = words_of(write(words, 13)).split()
of_be = model.weights(write(words, 13))[:, :, -1]  # blocks heads keys
most = drawing.favorites(of_be, before_six)
from_seven = of_be[1, :, 0].max()
plot.table(["Head", "looks most at", "with a weight of"], most)

# %% [markdown]
# A program need not take the likeliest word. Most chat programs *draw* the word, so that a word with a chance of one in
# ten comes one time in ten. A softmax makes such chances of the scores. Before it, the scores are divided by a number,
# the *temperature*: a low one makes the text careful, a high one makes it bold. This model is so sure of its song that
# it takes a high one to make it stray:

# %%
torch.manual_seed(3)
bold = (scores / 4).softmax(dim=-1)  # a temperature of four
drawn = torch.multinomial(bold, 8, replacement=True)  # eight words
print(words_of(drawn[None]))

# %% [markdown]
# Each of these eight words was drawn as the one that follows *seven green bottles*. The right one had a chance of {{
# scores.softmax(dim=-1).max() :.2%}} before, and it has {{ bold.max() :.0%}} now. However the word is chosen, it goes
# to the end of the text, and the model reads on.

# %% tags=["claims"]
assert "there will be six" in words_of(text), (
    "The model has counted down from seven to six"
)
assert (
    words_of(text).split()[16] == "six"
    and words_of(text).split()[0] == "seven"
), "the word seven is 16 words away"
assert "be six" in words_of(text), "the last one before six"
assert len(most) == 4, "and what each head looks at most"
assert before_six[-1] == "be" and words_of(write(words, 14)).endswith(
    "be six"
), "What be looks at most, just before the model writes six"
assert from_seven > 0.8 and before_six[0] == "seven", (
    "A head of the second block takes nearly everything from seven"
)
assert vocabulary[scores.argmax()] == "hanging", (
    "The right one had a chance of"
)

# %% [markdown]
# ## What stays the same
#
# When a word is added to the text, which of the numbers inside the model change? Compare the keys of the first three
# words, in a text of three words and in a text of four:

# %% tags=["hide-input"]
#| caption: How much the keys of the first three words change, in the second block, when a fourth word is added to the
#|   text. With the causal mask they do not change. If all words could see one another, they would.
longer = numbers_of("seven green bottles hanging")
changes = torch.stack(
    [model.changed_keys(longer, 3, is_causal=each) for each in (True, False)]
)
plot.grid(
    changes,
    "largest change of a key",
    rows=["with the causal mask", "without a mask"],
    columns=["seven", "green", "bottles"],
)

# %% [markdown]
# No word may look at the words after it: [the causal mask](masks.py) sees to that. So nothing that comes later can
# change what a word has become. Its key and its value were computed once, and they are right for ever.
#
# The queries stay the same, too, but nobody needs them again. A query asks once, when its word is the newest one. What
# it finds goes into the vector of its word, and the next word has a query of its own.

# %% tags=["claims"]
assert (words.size(1), longer.size(1), changes.size(1)) == (3, 4, 3), (
    "Compare the keys of the first three words, in a text of three words and in a text of four"
)
assert (words.size(1), longer.size(1), changes.size(1)) == (3, 4, 3), (
    "How much the keys of the first three words change, in the second block, when a fourth word is added to the text"
)
assert changes[0].max() < 1e-4, "With the causal mask they do not change"
assert changes[1].min() > 0.01, (
    "If all words could see one another, they would"
)

# %% [markdown]
# ## Keep the keys and values
#
# So a step needs the query, the key and the value of the newest word alone. The other keys and values are taken from
# the cache. This is attention with a cache, for one head:


# %%
def step(query, key, value, keys, values):
    keys = torch.cat([keys, key])  # the newest goes to the others
    values = torch.cat([values, value])
    weights = (query @ keys.mT / key.size(-1) ** 0.5).softmax(dim=-1)
    return weights @ values, keys, values


# %% [markdown]
# This step needs no mask: the newest word may look at everything that is there. In the library of this site, the layer
# `CausalSelfAttention` does the same with a `KVCache`, which takes its memory once and copies nothing. And the loop
# hands over the newest word only. The cache knows how many words it holds, and so the model knows the place of the new
# one:


# %%
def write_on(words, count):
    new, caches = words, new_caches()  # a cache for each block
    for _ in range(count):
        scores = model(new, caches)  # reads what is new
        new = scores[:, -1:].argmax(dim=-1)
        words = torch.cat([words, new], dim=1)
    return words


write_on(words, 18).equal(write(words, 18))

# %% [markdown]
# The text is the same. The first step takes in the whole *prompt*, the text that the model is given. This is the
# *prefill*, and here the causal mask is needed, for the words of the prompt come together. Every other step takes in
# one word. This is why a chat program is silent for a moment, if you have given it much to read, and then writes
# steadily.

# %% tags=["check"]
from unmasked import scaled_dot_product_attention

torch.manual_seed(1)
q, k, v = torch.randn(3, 5, 4)  # five words
at_once = scaled_dot_product_attention(q, k, v, is_causal=True).context
by_step = step(q[4:], k[4:], v[4:], k[:4], v[:4])[0][0]
torch.testing.assert_close(by_step, at_once[-1])

caches = new_caches()
model(words, caches)
_, _, seen_values = model.projected(words)
empty = seen_values[:, :, :0]
kept_keys, kept_values = caches[1].peek(empty, empty)
model(longer[:, 3:], caches)
later_keys, later_values = caches[1].peek(empty, empty)
stay = max(
    (kept_keys - later_keys[:, :, :3]).abs().max().item(),
    (later_values - model.projected(longer)[2]).abs().max().item(),
    (later_keys - model.projected(longer)[1]).abs().max().item(),
)
x = model.norm[0](model.word(longer) + model.place(torch.arange(4)))
looks = model.attention[0].weights(x)[0, :, -1]  # heads keys
query_changes = model.projected(longer)[0][:, :, :3]
query_changes = (query_changes - model.projected(words)[0]).abs().max()

# the likeliest words are so by far, on any machine
right = model(verses[:, :-1]).softmax(dim=-1)
right = right.gather(-1, verses[:, 1:, None])
assert right.min() > 0.6

# %% tags=["claims"]
assert (looks > 0).all(), (
    "and each new word looks back at all words before it"
)
assert stay < 1e-4, "Their keys and values are the same in every step"
assert write_on(words, 10).equal(write(words, 10)), (
    "Yet both sides write the same song"
)
assert not model.attention[0].weights(x)[0].triu(1).any(), (
    "No word may look at the words after it"
)
assert stay < 1e-4, (
    "Its key and its value were computed once, and they are right for ever"
)
assert query_changes < 1e-4, "The queries stay the same"
assert (by_step - at_once[-1]).abs().max() < 1e-4, (
    "the key and the value of the newest word alone"
)
assert (by_step - at_once[-1]).abs().max() < 1e-4, (
    "This step needs no mask: the newest word may look at everything that is there"
)
assert caches[0].length == longer.size(1), (
    "The cache knows how many words it holds, and so the model knows the place of the new one"
)
assert write_on(words, 18).equal(write(words, 18)), "The text is the same"
assert set(story["computed"]["with"][1:]) == {1}, (
    "Every other step takes in one word"
)

# %% [markdown]
# ## What it saves, and what it costs
#
# In the steps of [Figure 1](#figure-1), the model without a cache computed the keys and values of {{ " +
# ".join(map(str, story["computed"]["without"])) }} words, 75<!--= sum(story["computed"]["without"]) --> in all. The
# model with a cache computed those of 12<!--= sum(story["computed"]["with"]) --> words, each of them once. The longer
# the text, the larger the difference. Take a text of 1,000<!--= thousand --> words. With a cache the model computes the
# keys and values of each of them once. Without a cache it computes those of one word, then of two<!--= all_again[1] -
# all_again[0] -->, then of three<!--= all_again[2] - all_again[1] -->, and at the end of 1,000<!--= thousand -->. That
# makes {{ sum(range(1, thousand + 1)) :,}} in all.

# %% tags=["hide-input"]
#| alt: Two<!--= len(savings.axes[0].lines) --> curves over the words of a text. The one without a cache bends upwards.
#|   The one with a cache stays so low that it looks level.
#| caption: For how many words keys and values are computed until a text is written. Without a cache they grow with the
#|   square of its length; twice the text takes four times the work. With a cache each word counts once.
from unmasked.figures.curves import curves

thousand = 1000
lengths = torch.arange(1, 101)
all_again, kept_once = lengths.cumsum(0), lengths
savings = curves(
    {"without a cache": all_again, "with a cache": kept_once},
    lengths,
    xlabel="words in the text",
    ylabel="words computed",
    height=2.4,
)
savings

# %% [markdown]
# The price is memory. This model keeps {{ of_token }} bytes for each word: a key and a value in each head of each
# block. In large models it is far more.
#
# Take Llama 3<!--~ its name -->, in its size of 8 billion<!--~ Grattafiori et al. (2024), table 3 --> parameters. A
# block of it keeps a key and a value for eight heads. (It has more heads, but several of them share a key and a value.)
# A key has 128<!--= features --> numbers, and so has a value. A number takes 2 bytes<!--= torch.bfloat16.itemsize -->,
# and there are 32<!--= blocks --> blocks. For each word that makes {{ f"2 × {kv_heads} × {features} ×
# {torch.bfloat16.itemsize} × {blocks} = {2 * kv_heads * features * torch.bfloat16.itemsize * blocks:,}" }} bytes, which
# is 128 KiB<!--= llama -->. A text of 8,192<!--= long_text --> words takes 1 GiB<!--= llama * long_text -->, for each
# reader who is waiting for an answer.

# %% tags=["check"]
kv_heads, features, blocks = 8, 128, 32
llama = KVCache.bytes_per_token(
    kv_heads, features, num_layers=blocks, dtype=torch.bfloat16
)
long_text = 8192

# %% tags=["claims"]
assert sum(story["computed"]["with"]) == len(places), (
    "The model with a cache computed those of 12 words, each of them once"
)
assert ((all_again - kept_once).diff() > 0).all(), (
    "The longer the text, the larger the difference"
)
assert kept_once[-1] == lengths[-1], (
    "With a cache the model computes the keys and values of each of them once"
)
assert all_again[0] == 1, "Without a cache it computes those of one word"
assert all_again.diff().diff().min() > 0, (
    "The one without a cache bends upwards"
)
assert all_again[:3].tolist() == [1, 3, 6], (
    "For how many words keys and values are computed until a text is written"
)
assert round((all_again[-1] / all_again[49]).item()) == 4, (
    "twice the text takes four times the work"
)
assert kept_once[-1] == lengths[-1], "With a cache each word counts once"
assert of_token == 2 * 2 * HEADS * (WIDTH // HEADS) * 4, (
    "a key and a value in each head of each block"
)

# %% [markdown]
# ## Recap
#
# - A model writes one word at a time, and reads each new word before it writes the next.
# - Because of the causal mask, the keys and values of earlier words never change. They are computed once, and kept.
# - A step computes the query, key and value of the newest word alone. What grows is the memory, and the number of keys
#   that the query is compared with.

# %% tags=["claims"]
assert stay < 1e-4, "the keys and values of earlier words never change"

# %% [markdown]
# ## Exercises
#
# `print(check(name, answer))`, with `check` of `unmasked.exercises`, judges an answer by the name in brackets: [how to
# do the exercises](../install.md#do-the-exercises).
#
# **Write on** (`write-on`). Write `write_on(model, text, count)`, which returns the list of the next `count` words.
# `text` is a list of words, as numbers. `model(new, kept)` takes a list of the words that are new to it and what it
# kept before (`None` at the start). It returns the scores of the next word, and what is to be kept. Hand each word over
# once.
#
# ??? question "Hint"
#
#     The first call gets the whole text. What does the second one get?

# %% tags=["solution"]
from unmasked.exercises import check


def write_words(model, text, count):
    new, kept, written = text, None, []
    for _ in range(count):
        scores, kept = model(new, kept)
        new = [int(scores.argmax())]
        written += new
    return written


check("write-on", write_words)

# %% [markdown]
# **How large is a cache?** (`cache-size`) Write a function of the numbers of layers, heads, features of a head, and
# words. It returns how many numbers the cache keeps.
#
# ??? question "Hint"
#
#     Each head of each layer keeps two vectors of each word.


# %% tags=["solution"]
def cache_size(layers, heads, features, words):
    return 2 * layers * heads * features * words


check("cache-size", cache_size)

# %% tags=["remove-cell"]
assert check("write-on", write_words)
assert check("cache-size", cache_size)

# %% [markdown]
# ## What to read next
#
# You have come to the end of this track.
#
# - [Is my KV cache right?](../pytorch/cache.py) has what goes wrong with caches, and a test that finds it.
# - [Fewer heads for keys and values](../pytorch/heads.py#fewer-heads-for-keys-and-values) make the cache smaller.
# - [The museum of mistakes](../museum/index.py): choose what you see, and find out why.
#
# ## References
#
# <!--~ 2024, 3, 2022: references -->
# - Pope et al. (2022), *Efficiently Scaling Transformer Inference*: what the cache costs when many are waiting.
# - Grattafiori et al. (2024), *The Llama 3 Herd of Models*: table 3, for the sizes of the model.
