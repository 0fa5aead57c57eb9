# %% [markdown]
# # Writing one word at a time: the KV cache
#
# **A language model writes one word at a time, and each new word looks back at all words before it. Their keys and
# values are the same in every step. So the model keeps them: this is the *KV cache*.**

# %% tags=["hide-input", "imports"]
#| caption: A small model goes on with a song, step by step, from six words. Filled are the words whose keys and
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

model = Singer.trained()
numbers_of, words_of = model.numbers_of, model.words_of
new_caches = model.new_caches
prompt = "seven green bottles seven green bottles"
story = drawing.story(model, numbers_of(prompt), 10)
computed = story["computed"]
pictures = drawing.computed(story)
pictures = {name: each[:8, :13] for name, each in pictures.items()}
filled = {name: each > 0 for name, each in pictures.items()}
rows = [f"step {number}" for number in range(1, 9)]
columns = [str(number) for number in range(1, 14)]
axes = ("steps", "words")
plot.grid(pictures, rows=rows, columns=columns, allowed=filled, axes=axes)

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
assert computed["without"] == list(range(6, 16)), (
    "Without a cache, each step computes those of all words so far"
)
assert set(computed["with"][1:]) == {1}, (
    "With a cache, only those of the newest word"
)
assert computed["with"] == [6, *[1] * 9], (
    "and on the other side it is a single word after the first step"
)

# %% [markdown]
# ## One word, and then the next
#
# The model of this page is the singer of the pages before, with two blocks. After the second block, the vector of the last word is compared, by a dot product, with a
# learned vector for each word that the model knows. The higher the result, the *word's score*, the likelier this word
# comes next. (These are not the scores of attention.) In the code, `numbers_of` turns the words of a text into numbers,
# by which the model knows them, and `words_of` turns numbers into words.

# %%
words = numbers_of("seven green bottles seven green bottles")
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
print(words_of(text[:, :15]))
print(words_of(text[:, 15:]))

# %% [markdown]
# The model has counted down from seven to six. For this it has to look back: when it writes *six*, the word *seven* is
# 12<!--= words_of(text).split().index("six") - 3 --> words away. Attention is what finds it. Here is the word *be*, the
# last one before *six*, and what each head looks at most:

# %% tags=["hide-input"]
#| caption: What *be* looks at most, just before the model writes *six*. Both heads of the second block take nearly
#|   everything from *seven*.
until_be = write(words, 9)
of_be = model.weights(until_be)[:, :, -1]  # blocks heads keys
most = drawing.favorites(of_be, words_of(until_be).split())
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
# Each of these eight words was drawn as the one that follows *seven green bottles seven green bottles*. The right one had a chance of {{
# scores.softmax(dim=-1).max() :.2%}} before, and it has {{ bold.max() :.0%}} now. However the word is chosen, it goes
# to the end of the text, and the model reads on.

# %% tags=["claims"]
assert "there will be six" in words_of(text), (
    "The model has counted down from seven to six"
)
assert (
    words_of(until_be).endswith("be")
    and of_be[1][:, [0, 3]].sum(-1).min() > 0.9
), "Both heads of the second block take nearly everything from seven"

# %% [markdown]
# ## What stays the same
#
# When a word is added to the text, which of the numbers inside the model change? Compare the keys of the first three
# words, in a text of three words and in a text of four:

# %% tags=["hide-input"]
#| caption: How much the keys of the first three words change, in the second block, when a fourth word is added to the
#|   text. With the causal mask they do not change. If all words could see one another, they would.
longer = numbers_of("seven green bottles seven")
causal = model.changed_keys(longer, 3)
free = model.changed_keys(longer, 3, is_causal=False)
changes = torch.stack([causal, free])
rows = ["with the causal mask", "without a mask"]
columns = ["seven", "green", "bottles"]
plot.grid(changes, "largest change of a key", rows=rows, columns=columns)

# %% [markdown]
# No word may look at the words after it: [the causal mask](masks.py) sees to that. So nothing that comes later can
# change what a word has become. Its key and its value were computed once, and they are right for ever.
#
# The queries stay the same, too, but nobody needs them again. A query asks once, when its word is the newest one. What
# it finds goes into the vector of its word, and the next word has a query of its own.

# %% tags=["claims"]
assert causal.max() < 1e-4 < 0.01 < free.min(), (
    "With the causal mask they do not change. If all words could see one another, they would"
)
assert not model.weights(longer).triu(1).any(), (
    "No word may look at the words after it"
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
from unmasked import attend

torch.manual_seed(1)
q, k, v = torch.randn(3, 5, 4)  # five words
at_once = attend(q, k, v, is_causal=True).context
by_step, _, _ = step(q[4:], k[4:], v[4:], k[:4], v[:4])

# How much queries, keys and values of the first words change with a fourth.
of_three, of_four = model.projected(longer[:, :3]), model.projected(longer)
stay = [torch.dist(a, b[:, :, :3]) for a, b in zip(of_three, of_four)]
all_words = " + ".join(map(str, computed["without"]))

# %% tags=["claims"]
assert max(stay[1:]) < 1e-4, (
    "Their keys and values are the same in every step"
)
assert max(stay[1:]) < 1e-4, (
    "Its key and its value were computed once, and they are right for ever"
)
assert write_on(words, 10).equal(write(words, 10)), (
    "Yet both sides write the same song"
)
assert stay[0] < 1e-4, "The queries stay the same, too"
assert set(computed["with"][1:]) == {1}, "Every other step takes in one word"
assert torch.allclose(by_step[0], at_once[-1], atol=1e-5), (
    "This step needs no mask: the newest word may look at everything that is there"
)

# %% [markdown]
# ## What it saves, and what it costs
#
# In the steps of [Figure 1](#figure-1), the model without a cache computed the keys and values of {{ all_words }}
# words, 105<!--= sum(computed["without"]) --> in all. The model with a cache computed those of 15<!--=
# sum(computed["with"]) --> words, each of them once. The longer the text, the larger the difference. Take a text of
# 1,000<!--= thousand --> words. With a cache the model computes the keys and values of each of them once. Without a
# cache it computes those of one word, then of two, then of three, and at the end of 1,000<!--= thousand -->. That makes
# {{ sum(range(1, thousand + 1)) :,}} in all.

# %% tags=["hide-input"]
#| alt: Two curves over the words of a text. The one without a cache bends upwards. The one with a cache stays so low
#|   that it looks level.
#| caption: For how many words keys and values are computed until a text is written. Without a cache they grow with the
#|   square of its length; twice the text takes four times the work. With a cache each word counts once.
from unmasked.figures.curves import curves

thousand = 1000
lengths = torch.arange(1, 101)
all_again = lengths.cumsum(0)
ways = {"without a cache": all_again, "with a cache": lengths}
axes = {"xlabel": "words in the text", "ylabel": "words computed"}
curves(ways, lengths, **axes, height=2.4)

# %% [markdown]
# The price is memory. This model keeps {{ of_token }} bytes for each word: a key and a value in each head of each
# block. In large models it is far more.
#
# Take Llama 3<!--~ its name -->, in its size of 8 billion<!--~ Grattafiori et al. (2024), table 3 --> parameters. A
# block of it keeps a key and a value for eight heads. (It has more heads, but several of them share a key and a value.)
# A key has 128<!--~ the same table --> numbers, and so has a value. A number takes 2 bytes<!--= torch.bfloat16.itemsize
# -->, and there are 32<!--~ the same table --> blocks. For each word that makes 2 × 8 × 128 × 2 × 32 = 131,072 bytes,
# which is 128 KiB<!--= llama -->. A text of 8,192<!--~ an example --> words takes 1 GiB<!--= llama * 8192 -->, for each
# reader who is waiting for an answer.

# %% tags=["check"]
of_token = story["kept"][1] - story["kept"][0]
llama = KVCache.bytes_per_token(8, 128, num_layers=32, dtype=torch.bfloat16)

# %% tags=["claims"]
assert ((all_again - lengths).diff() > 0).all(), (
    "The longer the text, the larger the difference"
)
assert (all_again.diff().diff() > 0).all(), (
    "The one without a cache bends upwards"
)
assert round((all_again[-1] / all_again[49]).item()) == 4, (
    "twice the text takes four times the work"
)
assert llama == 2 * 8 * 128 * 2 * 32, (
    "For each word that makes 2 × 8 × 128 × 2 × 32 = 131,072 bytes"
)
assert of_token == 2 * len(model.qkv) * model.WIDTH * 4, (
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
assert max(stay[1:]) < 1e-4, (
    "the keys and values of earlier words never change"
)
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


feedback = check("write-on", write_words)
assert feedback
feedback

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


feedback = check("cache-size", cache_size)
assert feedback
feedback

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
