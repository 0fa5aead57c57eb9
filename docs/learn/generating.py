# %% [markdown]
# # Writing one word at a time: the KV cache
#
# **A language model writes one word at a time, and each new word looks back at all words before it. Their keys and
# values are the same in every step. So the model keeps them: this is the *KV cache*.**

# %% tags=["hide-input", "imports"]
#| caption: The singer goes on with a song, step by step, from eight words. The filled cells are the words whose keys
#|   and values a step computes. Without a cache, each step computes those of all words so far, with a cache only those
#|   of the newest.
#| script: ../../src/unmasked_lessons/figures/cache.js
#| data: story
import torch

from unmasked import plot
from unmasked.cache import KVCache
from unmasked_lessons.experiments import generating as experiments
from unmasked_lessons.figures import temperature
from unmasked_lessons.teaching.song import HUMS, Singer

torch.set_num_threads(1)  # small matrices are faster on one core

singer = Singer.trained(1).rounded()  # as a browser gets it
numbers_of, words_of = singer.numbers_of, singer.words_of
new_caches = singer.new_caches
given = numbers_of("nine green bottles nine green bottles and if")
story = experiments.story(singer, given, 8)
computed = story["computed"]
pictures = experiments.computed(story, steps=8)
filled = {name: each > 0 for name, each in pictures.items()}
rows = [f"step {number}" for number in range(1, 9)]
columns = [str(number) for number in range(1, 16)]
axes = ("steps", "words")
plot.grid(pictures, rows=rows, columns=columns, allowed=filled, axes=axes)

# %% [markdown]
# <div class="overview" data-here="cache"></div>
#
# Step through [Figure 1](#figure-1) until the model writes *eight*, and watch what is filled. Yet both write the same
# song.
#
# A chat program does not write word by word for effect: such a model can choose a word only after it has read the one
# before.

# %% tags=["claims"]
assert computed["without"] == list(range(8, 16)), (
    "Without a cache, each step computes those of all words so far"
)
assert computed["with"] == [8, *[1] * 7], (
    "with a cache only those of the newest"
)

# %% [markdown]
# ## Writing is a loop
#
# The singer reads a text, and grades each word that it knows: the higher the *grade*, the likelier it comes next. (Most
# papers say *logits*.) To write, take the word with the highest grade, put it at the end of the text, and ask again.
# `numbers_of` turns words into the numbers by which the model knows them, and `words_of` turns them back.


# %%
def write(words, count):
    for _ in range(count):
        grades = singer(words)  # texts words vocabulary: all, each time
        likeliest = grades[:, -1:].argmax(dim=-1)  # after the last word
        words = torch.cat([words, likeliest], dim=1)
    return words


beginning = numbers_of("nine green bottles nine green bottles")
text = write(beginning, 12)
words_of(text[:, 6:])  # what was added

# %% [markdown]
# The model has counted down from nine to eight. The nearer *nine* is 12<!--= words_of(text).split().index("eight") - 3
# --> words before *eight*, and attention has found it.

# %% tags=["check"]
until_be = write(beginning, 9)
of_be = singer.weights(until_be)[0, :, -1]  # heads keys
on_nine = of_be[:, [0, 3]].sum(dim=1).max()

# %% tags=["claims"]
assert "there will be eight" in words_of(text), (
    "The model has counted down from nine to eight"
)
assert words_of(until_be).endswith("be") and on_nine > 0.6, (
    "and attention has found it"
)

# %% [markdown]
# ## How a vector becomes the next word
#
# The block leaves a vector for each word of the text. One more norm, and the vector of the last word is a forecast: it
# points toward the word that may come next. The model has learned a second vector for each of its 22<!--=
# len(singer.vocabulary) --> words, and compares the forecast with each: the dot product, with a bias, is the word's
# grade. (The arrows in the figure of *be* do so at each stop.) A softmax turns the grades into chances:

# %% tags=["hide-input"]
#| alt: Three panels of bars, one for each temperature. The likeliest word has nearly all of the chance at the lowest
#|   temperature, and less than a third of it at the highest.
#| caption: The chances of the next word after *la la la*. The higher the *temperature* (see below), the more alike the
#|   chances. Their order does not change.
#| script: ../../src/unmasked_lessons/figures/temperature.js
#| data: chances
chances = experiments.next_scores(singer, ["la la la", words_of(until_be)])
after_hum, after_be = (each["scores"] for each in chances["texts"])
temperature.bars(singer.vocabulary, after_hum, [0.25, 1, 4])

# %% [markdown]
# After *la la la* nobody can know what comes: the humming may go on, or a verse begins, with any of ten numbers. The
# model gives another *la* over 80% of the chance; in the texts that it learned from, the humming went on in 83%<!--=
# humming --> of such cases. After *there will be* the model is sure, and *eight* has over 90%.
#
# A program need not take the likeliest word. Most chat programs *draw* a word at random, so that one with a chance of
# one in ten comes one time in ten. Before the softmax they divide the grades by a number, the *temperature*. A low
# temperature leaves only the likeliest word, and the text is careful; a high one makes all words equally likely, and
# the text is bold, and in the end nonsense. Some draw only from the likeliest few words, which is called *top-k*.

# %% tags=["check"]
scores = singer(until_be)[0, -1]  # after "... there will be"
humming = (HUMS - 3) / (HUMS - 2)  # of the texts with three *la*, or more
forecasts = []
hook = singer.read.register_forward_hook(
    lambda _, given, scores: forecasts.append(given[0][0, -1])
)
_ = singer(until_be)
hook.remove()
by_hand = singer.read.weight @ forecasts[0] + singer.read.bias
low, middle, high = (
    (after_hum / heat).softmax(dim=-1).sort(descending=True).values
    for heat in (0.25, 1, 4)
)

# %% tags=["claims"]
assert torch.allclose(by_hand, scores, atol=1e-4), (
    "the dot product, with a bias, is the word's grade"
)
assert after_hum.softmax(dim=-1)[0] > 0.8, "another la over 80% of the chance"
assert after_be.softmax(dim=-1).max() > 0.9, "and eight has over 90%"
assert low[0] > 0.95 and high[0] < 0.3, (
    "has nearly all of the chance at the lowest temperature, and less than a third of it at the highest"
)
assert low.std() > middle.std() > high.std(), (
    "The higher the temperature (see below), the more alike the chances"
)

# %% [markdown]
# ## What stays the same
#
# When a word is added to the text, which of the numbers inside the model change? Compare the keys of the first three
# words before and after. (This singer has two blocks, and the keys are those of the second: in the first, no word has
# looked at another yet.)

# %% tags=["hide-input"]
#| caption: How much the keys of the first three words change, in the second block, when a fourth word is added to the
#|   text. With the causal mask they do not change. If all words could see one another, they would.
longer = numbers_of("nine green bottles nine")
deeper = Singer.trained(2)
causal = deeper.changed_keys(longer, 3)
free = deeper.changed_keys(longer, 3, is_causal=False)
changes = torch.stack([causal, free])
rows = ["with the causal mask", "without a mask"]
columns = ["nine", "green", "bottles"]
plot.grid(changes, "largest change of a key", rows=rows, columns=columns)

# %% [markdown]
# No word may look at the words after it: [the causal mask](masks.py) sees to that. So nothing that comes later can
# change what a word has become. Its key and its value stay right as long as each word keeps its place. (The program
# below has no cache: it sees the last 32<!--= LENGTH --> words, and in a longer text each of them moves up a place at
# every step.)
#
# The queries stay the same, too, but nobody needs them again: a query asks once, when its word is the newest one.

# %% tags=["claims"]
assert causal.max() < 1e-4 < 0.01 < free.min(), (
    "With the causal mask they do not change. If all words could see one another, they would"
)
assert not deeper.weights(longer).triu(1).any(), (
    "No word may look at the words after it"
)

# %% [markdown]
# ## Keep the keys and values
#
# So a step computes the query, key and value of the newest word alone, and takes the other keys and values from the
# cache. For one head:


# %%
def step(query, key, value, keys, values):
    keys = torch.cat([keys, key])  # the newest goes to the others
    values = torch.cat([values, value])
    weights = (query @ keys.mT / key.size(-1) ** 0.5).softmax(dim=-1)
    return weights @ values, keys, values


# %% [markdown]
# This step needs no mask: the newest word may look at everything that is there. Now the loop hands over the newest word
# only. Each cache (a `KVCache` of this site's library) knows how many words it holds, and so the model knows the place
# of the new one:


# %%
def write_with_cache(words, count):
    new, caches = words, new_caches()  # a cache for each block
    for _ in range(count):
        grades = singer(new, caches)  # reads what is new
        new = grades[:, -1:].argmax(dim=-1)
        words = torch.cat([words, new], dim=1)
    return words


write_with_cache(beginning, 18).equal(write(beginning, 18))

# %% [markdown]
# The first step takes in the whole *prompt*, the text that the model is given. This is the *prefill*, and it needs the
# causal mask, because the words of the prompt come together. Every other step takes in one word. That is why a chat
# program that was given a long text is silent at first, and then writes steadily.

# %% tags=["check"]
from unmasked import attend

torch.manual_seed(1)
q, k, v = torch.randn(3, 5, 4)  # five words
at_once = attend(q, k, v, is_causal=True).context
by_step, _, _ = step(q[4:], k[4:], v[4:], k[:4], v[:4])

# How much queries, keys and values of the first words change with a fourth.
of_three, of_four = deeper.projected(longer[:, :3]), deeper.projected(longer)
stay = [torch.dist(a, b[:, :, :3]) for a, b in zip(of_three, of_four)]

# %% tags=["claims"]
assert max(stay[1:]) < 1e-4, (
    "Their keys and values are the same in every step"
)
assert max(stay[1:]) < 1e-4, (
    "So nothing that comes later can change what a word has become"
)
assert write_with_cache(beginning, 10).equal(write(beginning, 10)), (
    "Yet both write the same song"
)
assert stay[0] < 1e-4, "The queries stay the same, too"
assert torch.allclose(by_step[0], at_once[-1], atol=1e-5), (
    "This step needs no mask: the newest word may look at everything that is there"
)

# %% [markdown]
# ## What it saves, and what it costs
#
# In the eight steps of [Figure 1](#figure-1), the model computed the keys and values of 92<!--=
# sum(computed["without"]) --> words without a cache, and of 15<!--= sum(computed["with"]) --> with it. For a text of
# 1,000<!--= thousand --> words it is 1,000<!--= thousand --> with a cache, each word once. Without one, each step
# computes one word more than the step before: {{ sum(range(1, thousand + 1)) :,}} in all.
#
# The price is memory. Llama 3<!--~ its name -->, in its size of 8 billion<!--~ Grattafiori et al. (2024), table 3 -->
# parameters, keeps {{ llama :,}} bytes for each word, and 1 GiB<!--= llama * long --> for a text of 8,192<!--= long -->
# words.
#
# ??? note "How many bytes are that?"
#
#     It keeps a key and a value of 128<!--= per_head --> numbers, 2 bytes<!--= torch.bfloat16.itemsize --> each, for
#     eight<!--= kv_heads --> heads (each serves four of the 32<!--~ the same table --> heads of queries) in each of
#     32<!--= layers --> blocks. That makes 2 × 128 × 2 × 8 × 32 = 131,072 bytes for a word.

# %% tags=["check"]
thousand, long = 1000, 8192
kv_heads, per_head, layers = 8, 128, 32  # as in that table
llama = KVCache.bytes_per_token(
    kv_heads, per_head, num_layers=layers, dtype=torch.bfloat16
)

# %% tags=["claims"]
assert llama == 2 * 128 * 2 * 8 * 32, (
    "That makes 2 × 128 × 2 × 8 × 32 = 131,072 bytes"
)

# %% [markdown]
# ## A language model in sixty lines
#
# You have met every part of the program below; its comments name the pages. Given six words, it sings. Copy it into an
# empty file and run it: it needs `torch` and a few seconds.

# %%
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import cross_entropy

WIDTH, HEADS, LENGTH = 32, 2, 32  # features, heads, words that it can see

names = "ten nine eight seven six five four three two one no".split()
song = []
for now, then in pairwise(names):
    song += f"{now} green bottles {now} green bottles and if one".split()
    song += f"bottle should fall there will be {then} green bottles".split()
vocabulary = sorted(set(song))
text = torch.tensor([vocabulary.index(word) for word in song])


class Block(nn.Module):  # a whole block
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        matrices = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
        self.W_q, self.W_k, self.W_v, self.W_o = matrices  # queries, keys
        wider, back = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(wider, nn.GELU(), back)

    def attention(self, x):
        may_look = torch.ones(x.size(1), x.size(1)).tril() > 0  # masks
        projected = self.W_q(x), self.W_k(x), self.W_v(x)
        slices = [each.chunk(HEADS, dim=-1) for each in projected]  # heads
        averages = []
        for q, k, v in zip(*slices):
            scores = q @ k.mT / q.size(-1) ** 0.5  # attention
            scores = scores.masked_fill(~may_look, -torch.inf)  # masks
            averages.append(scores.softmax(dim=-1) @ v)  # attention
        return self.W_o(torch.cat(averages, dim=-1))  # heads

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(len(vocabulary), WIDTH)  # attention
        self.place = nn.Embedding(LENGTH, WIDTH)  # positions
        self.blocks = nn.Sequential(Block(), nn.LayerNorm(WIDTH))
        self.read = nn.Linear(WIDTH, len(vocabulary))  # this page

    def forward(self, words):
        x = self.word(words) + self.place.weight[: words.size(1)]
        return self.read(self.blocks(x))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(200):  # the training of queries, keys and values
    starts = torch.randint(len(text) - LENGTH, (32, 1))
    batch = text[starts + torch.arange(LENGTH + 1)]  # 32 pieces of the song
    grades = model(batch[:, :-1]).flatten(0, 1)  # a guess after each word
    loss = cross_entropy(grades, batch[:, 1:].flatten())  # and the answers
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

words = text[:6]
while len(words) < len(text):  # the loop of this page
    grades = model(words[None, -LENGTH:])[0, -1]
    words = torch.cat([words, grades.argmax(dim=-1, keepdim=True)])
for line in words.split(9):
    print(" ".join(vocabulary[word] for word in line))

# %% [markdown]
# Every word is right: from six words the model has sung all ten verses. It knows them by heart, and nothing else.
#
# It has {{ size :,}} parameters. Llama 3<!--~ its name --> is built of the same parts, and this is what lies between:
#
# <!--~ 32, 4,096, 128,000, 15: Grattafiori et al. (2024), section 3 and table 3 -->
# - **Size.** It has 32 blocks in place of one, and vectors of 4,096 numbers in place of 32.
# - **Text.** It has read 15 trillion pieces of text in place of 180<!--= len(song) --> words.
# - **Tokens.** Its 128,000 words are *tokens*, pieces of words, so it can read a word that it has never met.
# - **Refinements.** Its [positions turn](positions.py), its [heads share keys and values](../pytorch/grouped.py), and
#   it writes with a cache.
# - **Manners.** A model that merely continues texts does not answer questions yet. That takes a second training, on
#   good answers.

# %% tags=["check"]
size = sum(each.numel() for each in model.parameters())

# %% tags=["claims"]
assert words.equal(text), "from six words the model has sung all ten verses"

# %% [markdown]
# ## Take the singer apart
#
# You know all parts of the trained singer now, and it runs in your browser. Watch *be* in this text:
# silence head 0, or take attention away, and *be* becomes *six*. Then sing a verse, silence head 1 and watch *bottles*:
# the line comes again and again. Type a beginning of your own, turn the temperature, or hide the mask.

# %% tags=["hide-input"]
#| caption: The word *be* on its way through the trained singer.
#| script: ../../src/unmasked_lessons/figures/strip.js
#| data: strip.data
from unmasked_lessons.figures.strip import Strip

strip = Strip("generating", sings=True, singer=singer)
strip

# %% tags=["check"]
from unmasked_lessons.experiments.block import without

likeliest = [singer(until_be, silent=0)[0, -1].argmax()]
with without(singer, "attention"):
    likeliest.append(singer(until_be)[0, -1].argmax())
again = singer.sing("nine green bottles", 15, silent=1).split()

# %% tags=["claims"]
assert words_of(torch.stack(likeliest)[None]) == "six six", (
    "silence head 0, or take attention away, and be becomes six"
)
assert again == ["nine", "green", "bottles"] * 4 + again[12:], (
    "silence head 1 and watch bottles: the line comes again and again"
)

# %% [markdown]
# ## Recap
#
# - Writing is a loop: the last vector is compared with a vector of each word, and the word that is chosen goes to the
#   end of the text.
# - Because of the causal mask, the keys and values of earlier words never change. They are computed once, and kept:
#   what grows is the memory.

# %% tags=["claims"]
assert max(stay[1:]) < 1e-4, (
    "the keys and values of earlier words never change"
)
# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("write-on", answer))`.
#
# **Write on** (`write-on`). Write `write_on(model, text, count)`, which returns the list of the next `count` words.
# `text` is a list of words, as numbers. `model(new, kept)` takes a list of the words that are new to it and what it
# kept before (`None` at the start). It returns the grades of the next word, and what is to be kept. Hand each word over
# once.
#
# ??? question "Hint"
#
#     The first call gets the whole text. What does the second one get?

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def write_on(model, text, count):
    new, kept, written = text, None, []
    for _ in range(count):
        grades, kept = model(new, kept)
        new = [int(grades.argmax())]
        written += new
    return written


feedback = check("write-on", write_on)
assert feedback
feedback

# %% [markdown]
# ### Optional
#
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
# You have come to the end of this track, with a language model of your own.
#
# - [Is my KV cache right?](../pytorch/cache.py) has what goes wrong with caches, and a test that finds it.
# - [Fewer heads for keys and values](../pytorch/heads.py#fewer-heads-for-keys-and-values) make the cache smaller.
# - [How does a server share one cache among many texts?](../pytorch/serving.py) It also writes several words at once.
#
# ??? note "The papers"
#
#     <!--~ 2024, 3, 2022: references -->
#     - Pope et al. (2022), *Efficiently Scaling Transformer Inference*: what the cache costs when many are waiting.
#     - Grattafiori et al. (2024), *The Llama 3 Herd of Models*: section 3 and table 3, for the model and its
#       training.
