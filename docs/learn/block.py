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
#|   MLP each word stays by itself. The curved lines are the *residual connections*: they carry each word around norm
#|   and attention, and around norm and MLP. What attention or the MLP found is added to the word. (The *norms* are
#|   explained further down.) The lines were drawn by changing one word and looking at which outputs change.
import copy

import torch
from torch import nn

from unmasked import plot, teaching
from unmasked.figures import block as drawing

WIDTH = 24
torch.manual_seed(0)
drawn = teaching.Block(WIDTH).requires_grad_(False)
x = torch.randn(1, 4, WIDTH)  # one sentence
by_attention = drawing.moves(lambda x: drawn.attention(x, x, x)[0], x)
moves = {"attention": by_attention, "MLP": drawing.moves(drawn.mlp, x)}
drawing.block(moves, ["the", "dog", "bit", "it"])

# %% [markdown]
# Most large language models are stacks of such blocks, and a model that is built in this way is called a *transformer*.
# Llama 3<!--~ its name -->, in its size of 8 billion<!--~ Grattafiori et al. (2024), table 3 --> parameters, has
# 32<!--~ the same table --> blocks, one on top of the other: the *layers* of the pages before. So whoever knows one
# block knows the whole stack.
#
# <div class="overview" data-here="block"></div>

# %% tags=["claims"]
assert moves["attention"].all() and moves["MLP"].equal(torch.eye(4) > 0), (
    "Attention moves information between words. Then a small network, the MLP, works on each word alone"
)
assert moves["attention"].all() and moves["MLP"].equal(torch.eye(4) > 0), (
    "In attention each word takes something from every word. In the MLP each word stays by itself"
)

# %% [markdown]
# ## The block in three lines
#
# Here is all of it. Two *norms* stand in front of the two parts; you will see below what they are for. The attention
# here is PyTorch's module. It takes three inputs, of which it makes queries, keys and values, and here all three are
# the words. It returns the context and the weights; `[0]`<!--~ an index --> takes the context. (To keep the lines short
# they pass no mask. A language model passes a causal mask to its attention.)


# %%
def block(x, norm_1, attention, norm_2, mlp):
    seen = norm_1(x)
    x = x + attention(seen, seen, seen)[0]
    return x + mlp(norm_2(x))


# %% [markdown]
# What comes out has the shape of what went in, a vector for each word. This is why blocks can be stacked.

# %% [markdown]
# ## Attention moves, the MLP works
#
# [Attention](attention.py) is the only place in the block where one word can learn something from another. It fetches.
# To *do* something with what it fetched is the job of the MLP (a *multi-layer perceptron*, an old name for two or more
# matrices with a simple function between them). A word of this page is a vector of 24<!--= WIDTH --> numbers, its
# `WIDTH`:

# %%
torch.manual_seed(0)
mlp = nn.Sequential(
    nn.Linear(WIDTH, 4 * WIDTH),  # makes each word four times as wide
    nn.GELU(),  # keeps large numbers, turns negative ones to about zero
    nn.Linear(4 * WIDTH, WIDTH),  # and back
)

# %% [markdown]
# (Here the word *layer* has its second sense: a single step of computation, such as one matrix.) Without the GELU in
# the middle, both linear layers could be multiplied out into a single one, and the MLP would be no more than a matrix.
# With it the MLP can have rules. In the middle a word has 96<!--= mlp[0].out_features --> numbers. Each of them is
# positive for some words, and negative for others, and each has a vector of its own in the second matrix. Where the
# number is positive, it adds this vector to the result, the more the larger it is. Where it is negative, the GELU
# silences it. So each number is a rule: if the word looks like *this*, add *that*.
#
# A small riddle shows the difference. There are five boxes with a letter on the lid and a number inside, and a
# question. The question "B?" asks for the number in box B. The question "9 − B?"<!--~ 9: the largest number --> asks
# for nine<!--= teaching.NUMBERS - 1 --> minus that number. Attention can fetch the number. But what to do with it
# depends on the question. Here are two models after training, with one block each:

# %% tags=["hide-input"]
#| caption: How many new riddles are answered correctly, by a model of one block with its MLP and by a model without.
#|   Without the MLP the model answers many riddles wrong.
both = {"kinds": 2, "steps": 200, "batch": 128}
with_mlp = teaching.riddles_solved(1, **both)
without_mlp = teaching.riddles_solved(1, "MLP", **both)
answers = torch.tensor([[with_mlp], [without_mlp]])
rows = ["with the MLP", "without it"]
plot.grid(answers, "share right", rows=rows, columns=["answers"])

# %% [markdown]
# With the MLP nearly all of the answers are right, without it many are wrong. If only "B?" were asked, attention alone
# could do it.

# %% tags=["claims"]
assert moves["attention"].all() and moves["MLP"].equal(torch.eye(4) > 0), (
    "Attention is the only place in the block where one word can learn something from another"
)
assert without_mlp < 0.8, (
    "Without the MLP the model answers many riddles wrong"
)
assert with_mlp > 0.95 > 0.8 > without_mlp, (
    "With the MLP nearly all of the answers are right, without it many are wrong"
)

# %% [markdown]
# ## Residual connections: add, do not replace
#
# The block does not replace a word by what attention found. It adds what was found to the word: `x + attention(...)`.
# Why? Stack six blocks, fresh from their random start, and watch how alike the words become:

# %% tags=["hide-input"]
#| alt: Two curves over the blocks. With residual connections the curve stays low. Without them it rises to one.
#| caption: How alike the words of a riddle are, block by block, in untrained models. One stands for words that cannot
#|   be told apart. If each part replaces the words, it takes a few blocks to get there. If it adds to them, they stay
#|   different.
from unmasked.figures.curves import curves

DEPTH = 6
added = teaching.likeness(DEPTH)
replaced = teaching.likeness(DEPTH, "residual")
alike = {"added": added, "replaced": replaced}
axes = {"xlabel": "blocks", "ylabel": "likeness of the words"}
curves(alike, **axes, ylim=(-0.1, 1.1), marker="o")

# %% [markdown]
# Attention gives each word an average, and averages of the same words are alike. (On the first page *ship* kept much of
# itself, because its query and its key were one vector. With matrices of their own nothing ensures that.) After a few
# blocks without residual connections all words have become the same, and no later block can tell one from the other.
# With them each word keeps its own numbers, and the blocks add to them. The sum that runs through the whole stack is
# called the *residual stream*.

# %% tags=["claims"]
assert added[-1] < 0.7 < 0.95 < replaced[-1], (
    "With residual connections the curve stays low. Without them it rises to one"
)
assert added[-1] < 0.7, "If it adds to them, they stay different"
assert replaced[3] > 0.95, (
    "After a few blocks without residual connections all words have become the same"
)
assert replaced[0] < 0.5 < 0.95 < replaced[3], (
    "If each part replaces the words, it takes a few blocks to get there"
)

# %% [markdown]
# ## Norms keep in range what each part reads
#
# Everything is added, so the numbers of a word can grow. Large numbers make large scores, and the softmax of large
# scores gives everything to one word. A norm stands in front of each part and brings each word to the same size: it
# subtracts the mean of the word's numbers and divides by their spread. Here is a word with numbers that are much too
# large:

# %%
word = 100 * torch.tensor([1.0, 2.0, 3.0, 6.0])
centered = word - word.mean()
centered / centered.square().mean().sqrt()

# %% [markdown]
# Now the mean of the numbers is zero, and their spread is one. That is what `nn.LayerNorm` does. (It can also learn a
# factor and a shift for each number.) Now multiply all words of a riddle by a factor, and look at the largest weight in
# each row of attention:

# %% tags=["hide-input"]
#| caption: How much of the attention the favorite word gets, on average, in an untrained model whose words are
#|   multiplied by a factor. Without a norm the factor decides. At 10<!--= sizes[1] --> already, one word gets nearly
#|   everything. With a norm the factor makes no difference.
sizes = [1, 10, 100]
largest = teaching.largest_weights(sizes)
rows = [f"times {size}" for size in sizes]
plot.grid(largest, "largest weight", rows=rows, columns=["no norm", "norm"])

# %% [markdown]
# (The residual stream goes around the norms, and may still grow.)
#
# Training changes a matrix a little, in the direction that helps. If one word has nearly all the weight, a small change
# of a score mostly changes nothing; where two words are almost level, it changes everything. So a few examples [drown
# all others](../pytorch/backward.py#without-the-root-most-gradients-vanish-and-the-rest-are-huge)<!--~ link: the page
# shows it -->.

# %% tags=["claims"]
assert largest[-1, 0] > 0.9, (
    "and the softmax of large scores gives everything to one word"
)
assert torch.allclose(
    nn.LayerNorm(4)(word), nn.LayerNorm(4)(word / 100), atol=1e-4
), "A norm stands in front of each part and brings each word to the same size"
assert torch.allclose(
    nn.LayerNorm(4)(word), centered / centered.std(correction=0), atol=1e-4
), "That is what nn.LayerNorm does"
assert (
    abs(nn.LayerNorm(4)(word).mean()) < 1e-4
    and abs(nn.LayerNorm(4)(word).std(correction=0) - 1) < 1e-3
), "Now the mean of the numbers is zero, and their spread is one"
assert largest[1, 0] > 0.8 > 0.6 > largest[0, 0], (
    "At 10 already, one word gets nearly everything"
)
assert largest[:, 1].max() - largest[:, 1].min() < 0.01, (
    "With a norm the factor makes no difference"
)

# %% [markdown]
# ## Take a part away
#
# Now train the stack of six blocks on riddles that ask for a number. Then train it again without residual connections,
# and again without norms. The words start out ten times<!--= large["size"] --> as large as usual: a stack this small,
# from the usual size, would learn without norms, too.

# %% tags=["hide-input"]
#| caption: How many new riddles are answered correctly by models that took {{ large["steps"] }} steps. By guessing it
#|   would be one in ten. Only the whole stack has learned what was asked for.
large = {"size": 10.0, "steps": 120}
lacks = {"whole": "", "no residual": "residual", "no norms": "norms"}
stack = [
    teaching.riddles_solved(DEPTH, each, **large) for each in lacks.values()
]
stack = torch.tensor(stack)[:, None]
plot.grid(stack, "share right", rows=list(lacks), columns=["answers"])

# %% tags=["check"]
calm, steady = teaching.first_pulls(DEPTH, size=large["size"])
wild, wavering = teaching.first_pulls(DEPTH, "norms", large["size"])

# %% [markdown]
# The whole stack gets nearly all riddles right. Without residual connections, and without norms, it gets most of them
# wrong. Before the first step, a batch pulls at the matrices of queries and keys over a thousand times as hard without
# norms as with them, and the next batch pulls elsewhere.

# %% tags=["claims"]
assert stack[1:].max() < 0.35 < 0.9 < stack[0], (
    "Only the whole stack has learned what was asked for"
)
assert stack[0] > 0.9, "The whole stack gets nearly all riddles right"
assert stack[1:].max() < 0.35, (
    "Without residual connections, and without norms, it gets most of them wrong"
)
assert wild > 1000 * calm, (
    "a batch pulls at the matrices of queries and keys over a thousand times as hard without norms as with them"
)
assert wavering < 0.3 < 0.5 < steady, "and the next batch pulls elsewhere"

# %% [markdown]
# ## Where are the parameters, and where is the time?
#
# Most parameters of a block lie in its MLP. Attention has four matrices of `width` times `width`: for queries, for
# keys, for values, and the output projection. The MLP has two matrices, each four times<!--=
# gpt2.linear1.weight.numel() / wide**2 --> as large as one of these. So it has twice<!--= round(shares["MLP"] /
# shares["attention"], 1) --> the parameters of attention. Models differ here: Llama 3<!--~ its name --> has three
# matrices in the MLP, 81%<!--= llama --> of a block, fewer heads of keys than of queries, and a norm that subtracts no
# mean.

# %% tags=["hide-input"]
#| caption: The parameters of a block of width {{ wide }}, which is that of the small GPT-2<!--~ its name -->.
wide = 768
gpt2 = nn.TransformerEncoderLayer(wide, 12, 4 * wide, device="meta")
counts = drawing.parameters(gpt2)
shares = {name: n / sum(counts.values()) for name, n in counts.items()}
# Llama 3, 8 billion: 32 heads of queries, 8 of keys, of 128 features each
llama_mlp, llama_attention = 3 * 4096 * 14336, (2 * 32 + 2 * 8) * 128 * 4096
llama = llama_mlp / (llama_mlp + llama_attention)
rows = [(name, n, shares[name]) for name, n in counts.items()]
plot.table(["Part", "Parameters", "Share"], rows, ["{:,}", "{:.1%}"])

# %% [markdown]
# The time is another matter. A matrix costs each word the same, however long the text is. But in attention each word
# looks at all words of the text, so its cost grows with the length:

# %% tags=["hide-input"]
#| alt: Two curves over the number of words. That of the MLP is level. That of attention rises in a straight line, and
#|   crosses it at {{ crossing :,}} words.
#| caption: Multiplications for each word in a block of width {{ wide }}, without a mask. In short texts the MLP costs
#|   more, in long texts attention does. They cost the same at {{ crossing :,}} words, twice<!--= crossing / wide -->
#|   the width.
lengths = range(0, 4097, 256)
costs = [drawing.multiplications(wide, length) for length in lengths]
attention_cost, mlp_cost = torch.tensor(costs).T
crossing = next(n for n, (a, m) in zip(lengths, costs) if a >= m)
drawing.costs(lengths, attention_cost, mlp_cost, crossing)

# %% [markdown]
# So long texts are expensive because of attention, and short ones because of the MLP. Under a causal mask a word looks
# at half of the text, on average, and both cost the same at twice as many words, if what is hidden is not computed.

# %% tags=["claims"]
assert shares["MLP"] > 0.5, "Most parameters of a block lie in its MLP"
assert len(mlp_cost.unique()) == 1, (
    "A matrix costs each word the same, however long the text is"
)
assert (attention_cost.diff() > 0).all(), (
    "But in attention each word looks at all words of the text, so its cost grows with the length"
)
assert (attention_cost - mlp_cost)[[0, -1]].sign().tolist() == [-1, 1], (
    "So long texts are expensive because of attention, and short ones because of the MLP"
)
assert (
    len(mlp_cost.unique()) == 1
    and len(attention_cost.diff().unique()) == 1
    and attention_cost[0] < attention_cost[-1]
), "That of the MLP is level. That of attention rises in a straight line"
assert (
    attention_cost[0] < mlp_cost[0] and mlp_cost[-1] < attention_cost[-1]
), "In short texts the MLP costs more, in long texts attention does"
assert costs[lengths.index(crossing)][0] == mlp_cost[0], (
    "They cost the same at 1,536 words"
)

# %% [markdown]
# ## PyTorch's block is the same
#
# PyTorch has the block ready-made, under the name of an encoder's layer; an *encoder* is the part of a model that
# reads. `norm_first=True` puts the norms where they stand here; by default they come after each sum, as in the first
# transformer. `dropout` would set some numbers to zero at random in training, and is switched off here.

# %%
torch.manual_seed(0)
like_here = {"norm_first": True, "dropout": 0.0, "activation": "gelu"}
layer = nn.TransformerEncoderLayer(
    WIDTH, 2, 4 * WIDTH, batch_first=True, **like_here
)
x = torch.randn(1, 5, WIDTH)
mlp = nn.Sequential(layer.linear1, nn.GELU(), layer.linear2)
ours = block(x, layer.norm1, layer.self_attn, layer.norm2, mlp)
torch.allclose(layer(x), ours, atol=1e-5)

# %% tags=["remove-cell"]
exact = copy.deepcopy(layer).double().requires_grad_(False)
exact_mlp = nn.Sequential(exact.linear1, nn.GELU(), exact.linear2)

# %% [markdown]
# The three lines from above and PyTorch's block give the same numbers. There is one catch: when it does not train,
# PyTorch's block takes a shortcut, which [reads some masks in its own way](../pytorch/masks.py).

# %% tags=["claims"]
assert ours.shape == x.shape, "What comes out has the shape of what went in"
assert torch.allclose(layer(x), ours, atol=1e-5), (
    "The three lines from above and PyTorch's block give the same numbers"
)

# %% [markdown]
# ## The same as a formula
#
# With $X$ for the words that go in, $Y$ for what is between the two parts, and $Z$ for what comes out:
#
# $$\begin{aligned}
# Y &= X + \operatorname{Attention}(\operatorname{Norm}(X)) \\
# Z &= Y + \operatorname{MLP}(\operatorname{Norm}(Y))
# \end{aligned}$$
# <!-- where: X = random("n 24"); Norm, MLP = exact.norm1, exact_mlp;
# Attention = lambda X: exact.self_attn(X, X, X)[0];
# Y = block(X, Norm, exact.self_attn, Norm, torch.zeros_like);
# Z = block(X, Norm, exact.self_attn, Norm, MLP) -->
#
# ## Recap
#
# - Attention moves information between words; the MLP works on each word alone.
# - Both add to the residual stream. Norms in front of them keep in range what they read.
# - The MLP has two thirds of the parameters; in Llama 3<!--~ its name -->, more. In long texts
#   attention takes most of the multiplications.

# %% tags=["claims"]
assert moves["attention"].all() and moves["MLP"].equal(torch.eye(4) > 0), (
    "Attention moves information between words; the MLP works on each word alone"
)
assert round(shares["MLP"], 2) == 0.67, (
    "The MLP has two thirds of the parameters"
)
assert attention_cost[-1] > mlp_cost[-1], (
    "In long texts attention takes most of the multiplications"
)

# %% [markdown]
# ## Exercises
#
# `print(check(name, answer))`, with `check` of `unmasked.exercises`, judges an answer by the name in brackets: [how to
# do the exercises](../install.md#do-the-exercises).
#
# **Which part moves information?** (`moves-information`) Write `moves(part, x)`. It gets a function and words (words,
# features), and says whether the output of any word depends on another word: `True` or `False`.
#
# ??? question "Hint"
#
#     Change one word, and look at the outputs of the others.

# %% tags=["solution"]
from unmasked.exercises import check


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
#     Four matrices, and twice a product of `width` numbers with every word. The MLP: two matrices, each four times as
#     large.


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
# - [What does each interface make of my mask?](../pytorch/masks.py) is about the shortcut of PyTorch's block.
# - [Is my multi-head attention right?](../pytorch/from_scratch.py) builds attention with all its options.
#
# ## References
#
# <!--~ 2017, 3, 3.1, 3.3, 2024, 2021, 2019, 2.3: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: sections 3.1 and 3.3, with the norms after the sums.
# - Radford et al. (2019), *Language Models are Unsupervised Multitask Learners*: section 2.3, with the norms in front.
# - Dong, Cordonnier and Loukas (2021), *Attention Is Not All You Need: Pure Attention Loses Rank Doubly Exponentially
#   with Depth*, for words that become alike.
# - Grattafiori et al. (2024), *The Llama 3 Herd of Models*: table 3, for the number of blocks and their sizes.
