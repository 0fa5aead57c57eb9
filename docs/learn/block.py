# %% [markdown]
# # A whole transformer block
#
# **A block does two things in turn. Attention moves information between words. Then a small network, the MLP, works on
# each word alone. What each of them finds is added to what was there before.**

# %% tags=["hide-input", "imports"]
#| alt: A drawing, to be read from the bottom up: four words, then twice a norm, a part and a plus sign. The first part
#|   is attention: lines lead from every word to every word. The second part is the MLP: each word has a line of its
#|   own. A curved line leads from before each norm around the part, to the plus sign.
#| caption: A block, from the bottom up, without a mask. In attention each word takes something from every word. In the
#|   MLP each word stays by itself. The curved lines are the *residual connections*: they carry each word around a part.
import copy

import torch
from torch import nn

from unmasked import plot
from unmasked_lessons import teaching
from unmasked_lessons.experiments import block as experiments
from unmasked_lessons.figures import block as drawing

WIDTH = 24
torch.manual_seed(0)
drawn = teaching.Block(WIDTH).requires_grad_(False)
x = torch.randn(1, 4, WIDTH)  # one sentence
by_attention = experiments.moves(lambda x: drawn.attention(x, x, x)[0], x)
moves = {"attention": by_attention, "MLP": experiments.moves(drawn.mlp, x)}
drawing.block(moves, ["the", "dog", "bit", "it"])

# %% [markdown]
# Most large language models are stacks of such blocks, and a model that is built in this way is called a *transformer*.
# Llama 3<!--~ its name -->, in its size of 8 billion<!--~ Grattafiori et al. (2024), table 3 --> *parameters*, as
# learned numbers are called, has 32<!--~ the same table --> blocks, or *layers*, each with 32<!--~ the same table -->
# heads. If you know one block, you know them all.
#
# <div class="overview" data-here="block"></div>

# %% tags=["claims"]
assert moves["attention"].all() and moves["MLP"].equal(torch.eye(4) > 0), (
    "Attention moves information between words. Then a small network, the MLP, works on each word alone"
)
assert moves["attention"].all() and moves["MLP"].equal(torch.eye(4) > 0), (
    "In attention each word takes something from every word. In the MLP each word stays by itself"
)
assert [len(moved) for moved in moves.values()] == [4, 4], (
    "four words, then twice a norm, a part and a plus sign"
)

# %% [markdown]
# ## The block in three lines
#
# A *norm* stands in front of each part; you will see below what it is for. The attention is PyTorch's module. It
# takes three inputs, of which it makes queries, keys and values, here the same words, and returns the context and the
# weights; `[0]`<!--~ an index --> takes the context. (A language model passes a causal mask, too.)


# %%
def block(x, norm_1, attention, norm_2, mlp):
    seen = norm_1(x)
    x = x + attention(seen, seen, seen)[0]
    return x + mlp(norm_2(x))


# %% [markdown]
# What comes out has the shape of what went in, so blocks can be stacked. PyTorch has the same block ready-made, as
# `nn.TransformerEncoderLayer`, if you ask for `norm_first=True` and `activation="gelu"`.

# %% tags=["check"]
torch.manual_seed(0)
like_here = {"norm_first": True, "dropout": 0.0, "activation": "gelu"}
layer = nn.TransformerEncoderLayer(
    WIDTH, 2, 4 * WIDTH, batch_first=True, **like_here
)
x = torch.randn(1, 5, WIDTH)
layer_mlp = nn.Sequential(layer.linear1, nn.GELU(), layer.linear2)
ours = block(x, layer.norm1, layer.self_attn, layer.norm2, layer_mlp)

exact = copy.deepcopy(layer).double().requires_grad_(False)
exact_mlp = nn.Sequential(exact.linear1, nn.GELU(), exact.linear2)

# %% tags=["claims"]
assert ours.shape == x.shape, "What comes out has the shape of what went in"
assert torch.allclose(layer(x), ours, atol=1e-5), (
    "PyTorch has the same block ready-made"
)

# %% [markdown]
# ??? note "The same as a formula"
#
#     With $X$ for the words that go in, $Y$ for what is between the two parts, and $Z$ for what comes out:
#
#     $$\begin{aligned}
#     Y &= X + \operatorname{Attention}(\operatorname{Norm}(X)) \\
#     Z &= Y + \operatorname{MLP}(\operatorname{Norm}(Y))
#     \end{aligned}$$
#     <!-- where: X = random("n 24"); Norm, MLP = exact.norm1, exact_mlp;
#     Attention = lambda X: exact.self_attn(X, X, X)[0];
#     Y = block(X, Norm, exact.self_attn, Norm, torch.zeros_like);
#     Z = block(X, Norm, exact.self_attn, Norm, MLP) -->

# %% [markdown]
# ## Attention moves, the MLP works
#
# [Attention](attention.py) is the only place in the block where one word can learn something from another. It fetches,
# and the MLP works on what was fetched. (*MLP* is short for *multi-layer perceptron*, an old name for two or more
# matrices with a simple function between them. An `nn.Linear` also adds a learned number to each result, the *bias*;
# `nn.Sequential` does one after the other.) Here a word has 24<!--= WIDTH --> numbers:

# %%
torch.manual_seed(0)
mlp = nn.Sequential(
    nn.Linear(WIDTH, 4 * WIDTH),  # makes each word four times as wide
    nn.GELU(),  # keeps large numbers, turns negative ones to about zero
    nn.Linear(4 * WIDTH, WIDTH),  # and back
)

# %% [markdown]
# Think of 96<!--= mlp[0].out_features --> detectors, one for each number in the middle. Each one whose number is large
# adds its own vector to the word; the larger the number, the more it adds. The GELU keeps the others silent. So each
# detector is a rule: if the word looks like *this*, add *that*. Without the GELU there would be no *if*: weighted sums
# of weighted sums are weighted sums again (twice three times *x* is six times *x*), so a single matrix could do the
# work of both.
#
# A riddle of boxes shows what that is worth. The question "B?" asks for the number in box B, and "9<!--=
# teaching.riddles.NUMBERS - 1 --> − B?" for nine<!--= teaching.riddles.NUMBERS - 1 --> minus that number. Attention can
# fetch the number, but what to do with it depends on the question. So a model of one block was trained on both
# questions, with its MLP and without.

# %% tags=["check"]
both = {"kinds": 2, "steps": 200, "batch": 128}
with_mlp = teaching.riddles_solved(1, **both)
without_mlp = teaching.riddles_solved(1, "MLP", **both)

# %% [markdown]
# With the MLP over 90% of the answers are right, without it about half. If only "B?" were asked, attention alone could
# do it.

# %% tags=["claims"]
assert moves["attention"].all() and moves["MLP"].equal(torch.eye(4) > 0), (
    "Attention is the only place in the block where one word can learn something from another"
)
assert with_mlp > 0.9 and abs(without_mlp - 0.5) < 0.1, (
    "With the MLP over 90% of the answers are right, without it about half"
)

# %% [markdown]
# ## Residual connections: add, do not replace
#
# Why is what attention found added to the word, and not put in its place? Stack six blocks, fresh from their random
# start, and watch how alike the words become:

# %% tags=["hide-input"]
#| alt: Two curves over the blocks. With residual connections the curve stays low. Without them it rises to one.
#| caption: How alike the words of a text are (the cosine), block by block, in untrained models. One stands for words
#|   that cannot be told apart.
from unmasked_lessons.figures.curves import curves

DEPTH = 6
added = teaching.likeness(DEPTH)
replaced = teaching.likeness(DEPTH, "residual")
alike = {"added": added, "replaced": replaced}
axes = {"xlabel": "blocks", "ylabel": "likeness of the words"}
curves(alike, **axes, ylim=(-0.1, 1.1), marker="o")

# %% [markdown]
# Attention gives each word an average, and averages of the same words are alike. Without residual connections their
# likeness is {{ replaced[2] :.3f}} after two blocks, and no later block can tell one word from another. With them each
# word keeps its own numbers, and after six blocks the likeness is {{ added[-1] :.2f}}. The sum that runs through the
# whole stack is called the *residual stream*.

# %% tags=["claims"]
assert added[-1] < 0.7 < 0.95 < replaced[-1], (
    "With residual connections the curve stays low. Without them it rises to one"
)
assert len(added) == len(replaced) == DEPTH + 1 and max(replaced) < 1.001, (
    "How alike the words of a text are (the cosine), block by block"
)
assert replaced[2] > 0.99, "no later block can tell one word from another"
assert added[-1] < 0.5, "With them each word keeps its own numbers"

# %% [markdown]
# ## Norms keep in range what each part reads
#
# Everything is added, so the numbers of a word can grow. Large numbers make large scores, and the softmax of large
# scores gives everything to one word. And the MLP's detectors are tuned to numbers of one size. So a norm stands
# in front of each part: it subtracts the mean of the word's numbers and divides by their spread. Here is a word that is
# much too large:

# %%
word = 100 * torch.tensor([1.0, 2.0, 3.0, 6.0])
centered = word - word.mean()
centered / centered.square().mean().sqrt()

# %% [markdown]
# Now the mean of the numbers is zero, and their spread is one. That is what `nn.LayerNorm` does. Multiply all words of
# a text by a factor, and look at the largest weight of each word:

# %% tags=["hide-input"]
#| caption: How much of its attention a word gives to its favorite, on average, in an untrained model whose words are
#|   multiplied by a factor. Without a norm the factor decides. With a norm it makes no difference.
sizes = [1, 10, 100]
largest = teaching.largest_weights(sizes)
rows = [f"times {size}" for size in sizes]
plot.grid(largest, "largest weight", rows=rows, columns=["no norm", "norm"])

# %% [markdown]
# At only 10<!--= sizes[1] --> times the size, one word already gets {{ largest[1, 0] :.0%}}, and training can [hardly
# choose another](attention.py#why-the-square-root).
#
# A norm in front of a part changes what this part reads, and nothing else: the residual stream itself runs past it.

# %% tags=["claims"]
assert largest[-1, 0] > 0.9, (
    "and the softmax of large scores gives everything to one word"
)
assert torch.allclose(
    nn.LayerNorm(4)(word), nn.LayerNorm(4)(word / 100), atol=1e-4
), (
    "So a norm stands in front of each part: it subtracts the mean of the word's numbers and divides by their spread"
)
assert torch.allclose(
    nn.LayerNorm(4)(word), centered / centered.std(correction=0), atol=1e-4
), "That is what nn.LayerNorm does"
assert (
    abs(nn.LayerNorm(4)(word).mean()) < 1e-4
    and abs(nn.LayerNorm(4)(word).std(correction=0) - 1) < 1e-3
), "Now the mean of the numbers is zero, and their spread is one"
assert largest[1, 0] > 0.95 > 0.6 > largest[0, 0], (
    "times the size, one word already gets"
)
assert largest[:, 1].max() - largest[:, 1].min() < 0.01, (
    "With a norm it makes no difference"
)
assert block(
    word,
    nn.LayerNorm(4),
    lambda *seen: [0 * seen[0]],
    nn.LayerNorm(4),
    torch.zeros_like,
).equal(word), "the residual stream itself runs past it"

# %% [markdown]
# ## Take a part away
#
# The trained singer is a block like this one, with places, a mask and two heads. Take a part away from it after its
# training, and hear what it does to the song:

# %% tags=["hide-input", "any-version"]
#| caption: What the singer sings after *la la la nine green*, whole and without a part, and how many verses it sings
#|   without a mistake. Each is begun after several numbers of *la*.
#| script: ../../src/unmasked_lessons/figures/parts.js
#| data: {"right": songs[0]["words"], "songs": songs}
singer = teaching.Singer.trained(1).rounded()  # as a browser gets it
songs = experiments.songs(singer, 9)
sung = [
    (each["name"], " ".join(each["words"]), each["share"]) for each in songs
]
plot.table(["Singer", "It sings", "Verses right"], sung, ["{}", "{:.0%}"])

# %% [markdown]
# The whole singer gets every verse right. Without attention it forgets the number with which it began. Without the MLP
# it can fetch the number, but gets hardly a verse right. Without residual connections it no longer knows its words.
# Norms are missed least here, where there is only one block. In a deep stack, norms and residual connections decide
# whether it learns at all.
#
# ??? note "In a deep stack"
#
#     Six blocks were trained on riddles that ask for a number, from vectors ten times<!--= large["size"] --> as large
#     as usual. The whole stack got over 95% of new riddles right; without residual connections, or without norms, less
#     than 25%. A blind guess gets 10%<!--= 1 / teaching.riddles.NUMBERS -->.
#
# ??? note "Where are the parameters, and where is the time?"
#
#     Most parameters of a block lie in its MLP. Attention has four matrices of `width` times `width`, the last of them
#     the output projection; the MLP has two, each four times<!--= gpt2.linear1.weight.numel() / wide**2 --> as large.
#     So the MLP has two thirds of them. The time is another matter. A matrix costs each word the same, however long the
#     text is. But in attention each word looks at all words of the text, so its cost grows with the length: in a block
#     as wide as the small GPT-2<!--~ its name -->, it overtakes the MLP at {{ crossing :,}} words.

# %% tags=["check"]
large = {"size": 10.0, "steps": 120}
lacks = {"whole": "", "no residual": "residual", "no norms": "norms"}
stack = [
    teaching.riddles_solved(DEPTH, each, **large) for each in lacks.values()
]
# %% tags=["claims"]
assert songs[0]["share"] == 1, "The whole singer gets every verse right"
assert "nine" not in songs[1]["words"], (
    "Without attention it forgets the number with which it began"
)
assert songs[2]["share"] < 0.1, "but gets hardly a verse right"
assert songs[3]["share"] < 0.05 and songs[4]["share"] > 0.3, (
    "Norms are missed least here"
)
assert stack[0] > 0.95, "The whole stack got over 95% of new riddles right"
assert max(stack[1:]) < 0.25, (
    "without residual connections, or without norms, less than 25%"
)

# %% tags=["check"]
wide = 768  # that of the small GPT-2
gpt2 = nn.TransformerEncoderLayer(wide, 12, 4 * wide, device="meta")
counts = experiments.parameters(gpt2)
shares = {name: n / sum(counts.values()) for name, n in counts.items()}
lengths = range(0, 4097, 256)
costs = [experiments.multiplications(wide, length) for length in lengths]
attention_cost, mlp_cost = torch.tensor(costs).T
crossing = next(n for n, (a, m) in zip(lengths, costs) if a >= m)

# %% tags=["claims"]
assert shares["MLP"] > 0.5, "Most parameters of a block lie in its MLP"
assert round(shares["MLP"], 2) == 0.67, "So the MLP has two thirds of them"
assert len(mlp_cost.unique()) == 1, (
    "A matrix costs each word the same, however long the text is"
)
assert (attention_cost.diff() > 0).all(), (
    "But in attention each word looks at all words of the text, so its cost grows with the length"
)
assert (
    gpt2.self_attn.embed_dim == wide
    and attention_cost[lengths.index(crossing)] == mlp_cost[0] == 8 * wide**2
), "it overtakes the MLP at"

# %% [markdown]
# ## The word *be* becomes *eight*
#
# Now the whole block of the trained singer is open. Before the block the arrows say *six*: a blind guess, since without
# attention the singer says *six* in all ten verses. Here attention fetches *nine*, the number that the verse has named,
# and the MLP turns it into *eight*.

# %% tags=["hide-input"]
#| caption: The word *be* on its way through the trained singer.
#| script: ../../src/unmasked_lessons/figures/strip.js
#| data: strip.data
from unmasked_lessons.figures.strip import Strip

strip = Strip("block", singer=singer)
strip

# %% tags=["check"]
verses = [teaching.verse(number).split() for number in range(10, 0, -1)]
ways = [
    Strip("block", singer=singer, words=words[:15]).stops()
    for words in verses
]
named = [
    words[0] for words, way in zip(verses, ways) if way[2].word == words[0]
]
found = [
    singer.weights(singer.numbers_of(" ".join(words[:15])))[0, :, -1, [0, 3]]
    .sum(dim=-1)
    .max()
    for words in verses
]  # how much the head that looks more at the number gives to it
ends = [way[3].word == words[15] for words, way in zip(verses, ways)]
with experiments.without(singer, "attention"):
    blind = {
        Strip("block", singer=singer, words=words[:15]).stops()[-1].word
        for words in verses
    }

# %% tags=["claims"]
assert blind == {"six"} and {way[1].word for way in ways} == {"six"}, (
    "Before the block the arrows say six: a blind guess, since without attention the singer says six in all ten verses"
)
assert [stop.word for stop in strip.stops()][2:] == ["nine", "eight"], (
    "Here attention fetches nine, the number that the verse has named, and the MLP turns it into eight"
)
assert all(ends) and len(ends) == 10, (
    "In all ten verses the last arrow is right"
)
assert named == ["nine", "eight", "six"], (
    "The arrow before it names the number of the verse only in those of nine, eight and six"
)
assert min(found) > 0.5, (
    "In the others, too, a head gives most of its weight to the number"
)

# %% [markdown]
# In all ten verses the last arrow is right. The arrow before it names the number of the verse only in those of *nine*,
# *eight* and *six*. In the others, too, a head gives most of its weight to the number. But what it hands over is for
# the MLP to read, and training asks for nothing but the last arrow.
#
# <div class="program"></div>

# %% [markdown]
# ## Recap
#
# - Attention moves information between words; the MLP works on each word alone.
# - Both add to the residual stream. The norms in front of them keep what they read in range.

# %% tags=["claims"]
assert moves["attention"].all() and moves["MLP"].equal(torch.eye(4) > 0), (
    "Attention moves information between words; the MLP works on each word alone"
)

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("moves-information", answer))`.
#
# **Which part moves information?** (`moves-information`) Write `moves_information(part, x)`. It gets a function and
# words (words, features), and says whether the output of any word depends on another word: `True` or `False`.
#
# ??? question "Hint"
#
#     Change one word, and look at the outputs of the others.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def moves_information(part, x):
    for place in range(len(x)):
        changed = x.clone()
        changed[place] += 1
        differs = (part(changed) - part(x)).abs().amax(dim=-1) > 1e-6
        differs[place] = False  # its own output may change
        if differs.any():
            return True
    return False


feedback = check("moves-information", moves_information)
assert feedback
feedback

# %% [markdown]
# ### Optional
#
# **Norms after the sum** (`post-norm`). In the first transformer the norm came after each sum, not in front of each
# part. Write `post_norm(x, attention, norm_1, mlp, norm_2)`. All four are functions of one tensor; `attention` takes
# the words once.
#
# ??? question "Hint"
#
#     Nothing is normed before attention sees it. The residual connection, too, starts from what the last norm gave.


# %% tags=["solution"]
def post_norm(x, attention, norm_1, mlp, norm_2):
    x = norm_1(x + attention(x))
    return norm_2(x + mlp(x))


feedback = check("post-norm", post_norm)
assert feedback
feedback

# %% [markdown]
# **Where do both cost the same?** (`same-cost`) Write `same_cost(width)`: with how many words in the text does
# attention, without a mask, take as many multiplications for each word as the MLP? Its inner layer is four times as
# wide.
#
# ??? question "Hint"
#
#     Attention has four matrices, and twice a product of `width` numbers with every word. The MLP has two matrices,
#     each four times as large.


# %% tags=["solution"]
def same_cost(width):
    return 2 * width  # 4 width² + 2 words · width = 8 width²


feedback = check("same-cost", same_cost)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [Cross-attention](cross.py): a block that takes its keys and values from another text.
# - [Is my multi-head attention right?](../pytorch/from_scratch.py) builds attention with all its options.
#
# ??? note "The papers"
#
#     <!--~ 2017, 3, 3.1, 3.3, 2024, 2021, 2019, 2.3: references -->
#     - Vaswani et al. (2017), *Attention Is All You Need*: sections 3.1 and 3.3, with the norms after the sums.
#     - Radford et al. (2019), *Language Models are Unsupervised Multitask Learners*: section 2.3, with the norms in
#       front.
#     - Dong, Cordonnier and Loukas (2021), *Attention Is Not All You Need: Pure Attention Loses Rank Doubly
#       Exponentially with Depth*, for words that become alike.
#     - Grattafiori et al. (2024), *The Llama 3 Herd of Models*: table 3, for the number of blocks and their sizes.
