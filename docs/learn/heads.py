# %% [markdown]
# # Why several heads?
#
# **One head gives a word one average of the other words. Several heads give it several averages at once, and each head
# can look for something else.**

# %% tags=["hide-input", "imports"]
#| caption: Five boxes, each with a letter on its lid and a number inside. A question names two letters and asks for
#|   both numbers, in its own order. Rows are the questions (queries), columns are the boxes (keys). One head has to
#|   share its attention, and treats both questions alike. Of two heads, each can take a whole box.
import torch
import torch.nn.functional as F
from torch import nn

from unmasked import plot

torch.set_num_threads(1)  # small matrices are faster on one core

boxes = ["A 3", "B 7", "C 1", "D 4", "E 9"]
questions = ["B, D?", "D, B?"]
places = torch.tensor([[1, 3], [3, 1]])  # questions asked
first, second = F.one_hot(places, len(boxes)).double().unbind(dim=1)
wanted = {"one head": (first + second) / 2}
wanted |= {"two heads: head 0": first, "two heads: head 1": second}
plot.grid(wanted, queries=questions, keys=boxes)

# %% [markdown]
# In *the dog bit the man*, the word *bit* needs two things: who bites, and who is bitten. An average of *dog* and *man*
# no longer tells which was which. It is the same average in *the man bit the dog*. Positions do not help: *dog* + place
# 2<!--~ an example --> and *man* + place 5<!--~ an example --> have the sum of *man* + place 2<!--~ an example --> and
# *dog* + place 5<!--~ an example -->. So models look several times at once. Each of these attentions, with queries,
# keys and values of its own, is called a *head*. Llama 3<!--~ its name -->, in its size of 8 billion<!--~ Grattafiori
# et al. (2024), table 3 --> learned numbers (its *parameters*), has 32<!--~ the same table --> heads in each of its
# 32<!--~ the same table --> layers. (Only the queries are a head's own there: four heads each [share keys and
# values](../pytorch/grouped.py)<!--~ link: the page is about that -->.)
#
# <div class="overview" data-here="heads"></div>

# %% [markdown]
# ## One average is not enough
#
# Here is the riddle of the picture again. Each box holds a number from 0<!--~ the riddle's rule --> to 9<!--~ the
# riddle's rule -->. Box A holds 3<!--= int(numbers[0]) -->, box B holds 7<!--= int(numbers[1]) -->, and so on. The
# question "B, D?" asks for `(7, 4)`<!--= numbers[places[0]] -->. So attention has to take something from box B, and
# something from box D. One head gives half of its attention to each:

# %%
numbers = torch.tensor([3.0, 7.0, 1.0, 4.0, 9.0])  # in A to E
half_each = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
half_each @ numbers

# %% [markdown]
# The result is the average of both numbers. The question "D, B?" asks for `(4, 7)`<!--= numbers[places[1]] -->, the
# same numbers the other way round. With the same weights it gets the same average. Whatever the model does next, it
# cannot tell the two questions apart.
#
# A head may also lean to one side, and give more attention to the box that is asked for first. Then the model knows one
# number well and the other one badly. Two heads need no such compromise: one takes the first box, the other the second.

# %% tags=["claims"]
assert (numbers[places] @ torch.tensor([0.5, 0.5])).unique().numel() == 1, (
    "With the same weights it gets the same average"
)

# %% [markdown]
# ## One head and two heads, trained
#
# Does training find this out by itself? Here is a small model for the riddle. It keeps a vector for each letter and for
# each number. A box is the sum of the vectors of its letter and its number. A question is a sum, too: a vector that
# says which letter is asked for first, and one that says which letter is asked for second. `model["attention"]` is
# PyTorch's module. It makes queries of its first input, the question, keys of the second, and values of the third,
# which are the boxes both times:


# %%
def answer(model, letters, numbers, first, second):
    # riddles boxes features
    boxes = model["letter"](letters) + model["number"](numbers)
    # riddles features
    question = model["first"](first) + model["second"](second)
    taken, weights = model["attention"](
        question[:, None], boxes, boxes, average_attn_weights=False
    )
    # There is one query in each riddle: its axis, of length one, goes.
    return model["read"](taken[:, 0]), weights[:, :, 0]


# %% tags=["hide-input", "hide-output"]
from unmasked import teaching

WIDTH, steps = 32, 250
one_head = teaching.train_heads(answer, 1, seed=0, steps=steps, width=WIDTH)
two_heads = teaching.train_heads(answer, 2, seed=1, steps=steps, width=WIDTH)
torch.manual_seed(1)
new, right, asked = teaching.draw_pairs(1000)
one_alone, one_both = teaching.share_right(answer, one_head, new, right)
two_alone, two_both = teaching.share_right(answer, two_heads, new, right)

# How much each head gives to the boxes that are asked for first and second.
weights = answer(two_heads, *new)[1]  # questions heads boxes
on_asked = weights.gather(2, asked[:, None].expand(-1, 2, -1)).mean(dim=0)
first_head, second_head = on_asked.argmax(dim=0).tolist()

# %% [markdown]
# Attention takes from the boxes what the question asks for. One *linear layer*, `read`, then reads both numbers from
# what was taken. It multiplies by a learned matrix, and adds a learned vector, the *bias*. The two models differ only
# in `num_heads`. Both learn from {{ steps }} batches of random riddles. Then each answers {{ len(right) }} new ones:
#
# - The model with **two heads** gets both numbers right in nearly all riddles.
# - The model with **one head** gets both right in less than half of them. It has learned to lean to one side: one of
#   the numbers is right in most riddles, the other in less than half. Guessing would be right in one of ten.
#
# Look at where the trained heads look:

# %% tags=["hide-input"]
#| caption: What both models have learned. Rows are questions (queries), columns are boxes (keys). Of the two heads, one
#|   looks at the letter that is asked for first, the other at the letter that is asked for second.
given = torch.arange(5).expand(2, -1), numbers.long().expand(2, -1), *places.T
looks = [answer(each, *given)[1] for each in (one_head, two_heads)]
learned = dict(zip(wanted, torch.cat(looks, dim=1).unbind(dim=1)))
plot.grid(learned, queries=questions, keys=boxes)

# %% [markdown]
# Head {{ first_head }} looks at the letter that is asked for first, and head {{ second_head }} at the other one. Nobody
# told them to: which head takes which job depends on the random numbers that training starts from. Over all new
# riddles, each head gives nearly all of its attention to its own box.

# %% tags=["claims"]
assert one_alone.max() > 0.6 and one_alone.min() < 0.45, (
    "Then the model knows one number well and the other one badly"
)
assert two_both > 0.95 and first_head != second_head, (
    "Two heads need no such compromise: one takes the first box, the other the second"
)
assert two_both > 0.95, (
    "The model with two heads gets both numbers right in nearly all riddles"
)
assert one_both < 0.45, (
    "The model with one head gets both right in less than half of them"
)
assert one_alone.max() > 0.6 and one_alone.min() < 0.45, (
    "It has learned to lean to one side: one of the numbers is right in most riddles, the other in less than half"
)
assert len(right.unique()) == 10, "Guessing would be right in one of ten"
assert looks[1][:, [first_head, second_head]].argmax(-1).equal(places), (
    "one looks at the letter that is asked for first, the other at the letter that is asked for second"
)
assert first_head != second_head and on_asked.amax(dim=-1).min() > 0.9, (
    "each head gives nearly all of its attention to its own box"
)

# %% [markdown]
# ## Each head works in its own slice
#
# Two heads do not make the model wider. The query of the question is a vector of 32<!--= WIDTH --> numbers, whatever
# the number of heads. With two heads it is cut into two slices: head 0 gets the first 16 numbers, head 1 the last 16.
# What is cut is the query, not the word: the matrix `W_q` reads all numbers of the word, and can put into each slice
# what its head needs. Keys and values are cut in the same way. Then each head computes attention on its slices alone,
# as if there were no other head:


# %%
def attend_in_slices(query, key, value, num_heads):
    averages = []
    slices = [x.chunk(num_heads, dim=-1) for x in (query, key, value)]
    for q, k, v in zip(*slices, strict=True):
        scores = q @ k.mT / q.size(-1) ** 0.5
        averages.append(scores.softmax(dim=-1) @ v)
    return torch.cat(averages, dim=-1)  # side by side


# %% [markdown]
# Each score is divided by the root of the width of a slice, because that many numbers are multiplied and added for it.
# At the end the averages of the heads are laid side by side, and there are as many numbers as before.
#
# That is the whole idea. [How does one matrix hold many heads?](../pytorch/heads.py) does the same without a loop, and
# shows the ways in which the cutting goes wrong.

# %% tags=["check"]
torch.manual_seed(2)
qkv = torch.randn(3, 5, WIDTH)
other = qkv.clone()
other[..., :16] *= 2  # the first slice of queries, keys and values
change = attend_in_slices(*other, 2) - attend_in_slices(*qkv, 2)
apart = change[:, :16].abs().min() > 1e-6 > change[:, 16:].abs().max()
mixed = nn.Linear(WIDTH, WIDTH, bias=False)(change)

# %% tags=["claims"]
assert two_heads["attention"].embed_dim == WIDTH, (
    "Two heads do not make the model wider"
)
assert apart and WIDTH == 2 * 16, (
    "head 0 gets the first 16 numbers, head 1 the last 16"
)
assert apart, (
    "Then each head computes attention on its slices alone, as if there were no other head"
)
assert change.shape == qkv[0].shape, (
    "At the end the averages of the heads are laid side by side, and there are as many numbers as before"
)

# %% [markdown]
# ## Side by side, and mixed
#
# What the heads have found still lies in separate places: the first half of the numbers comes from head 0, the second
# half from head 1. One more matrix, the *output projection*, reads all of them and writes new ones. After it, every
# number can depend on every head.

# %% tags=["hide-input"]
#| alt: A bar of 32<!--= WIDTH --> numbers is cut into two slices of 16<!--= WIDTH // 2 -->. Each goes through its own
#|   head. The two averages lie side by side. Both lead into the output projection, from which the output comes.
#| caption: The way through two heads. The query is cut into slices, and so are keys and values. The heads work apart.
#|   The output projection mixes what they found.
from unmasked.figures import slices as drawing

drawing.two_heads(WIDTH)

# %% [markdown]
# You can see in the trained model that both heads are needed. Silence one of them: set its 16<!--= WIDTH // 2
# --> numbers to zero before the output projection.

# %% tags=["hide-input"]
#| caption: Shares of correct answers, with all of the model and with a part silenced. The number that the silenced head
#|   looked for is lost. The other one is kept.
kept = [two_alone]
for head in range(2):
    with teaching.silenced(two_heads["attention"], head):
        kept.append(teaching.share_right(answer, two_heads, new, right)[0])
kept = torch.stack(kept)
rows = ["both heads", "no head 0", "no head 1"]
columns = ["first number", "second number"]
plot.grid(kept, "share right", rows=rows, columns=columns)

# %% [markdown]
# Without head {{ first_head }} the first number is right by luck alone, and the second one is still right in nearly all
# riddles. Without head {{ second_head }} it is the other way round.

# %% tags=["claims"]
assert apart, (
    "the first half of the numbers comes from head 0, the second half from head 1"
)
assert apart and (mixed.abs() > 1e-6).all(), (
    "The heads work apart. The output projection mixes what they found"
)
assert (mixed.abs() > 1e-6).all(), "every number can depend on every head"
assert kept[1:].amin(-1).max() < 0.3, (
    "You can see in the trained model that both heads are needed"
)
assert kept[1 + first_head][0] < 0.2 and kept[1 + first_head][1] > 0.9, (
    "the first number is right by luck alone, and the second one is still right in nearly all riddles"
)
assert kept[1 + second_head][0] > 0.9 and kept[1 + second_head][1] < 0.3, (
    "it is the other way round"
)
assert kept[1:].amin(-1).max() < 0.3 < 0.9 < kept[1:].amax(-1).min(), (
    "The number that the silenced head looked for is lost. The other one is kept"
)

# %% [markdown]
# ## What do more heads cost?
#
# No more multiplications. More heads have thinner slices, so all heads together multiply as many numbers as one head
# would. Look down the columns of this table:

# %% tags=["hide-input"]
#| caption: Attention of width {{ WIDTH }} over {{ tokens }} words, with one head and with more. Parameters and
#|   multiplications stay the same. Each head has a table of weights of its own, so there are more weights.
tokens = 10
costs = drawing.costs(WIDTH, tokens, (1, 2, 4, 8))
plot.table(
    ["Heads", "Slice", "Parameters", "Multiplications", "Weights"],
    costs,
    "{:,}",
)

# %% [markdown]
# They cost time all the same: each head makes a table of weights, and a processor is slower with thin slices. With
# dozens of heads a layer that returns its weights can take several times as long as with one.
#
# More heads are not always better. A head with a thin slice has few numbers to compare words by: with 32<!--= WIDTH -->
# heads, each would have a single one. Most models give a head 64<!--~ Vaswani et al. (2017) --> or 128<!--~ Grattafiori
# et al. (2024) --> numbers, and many take as many heads as fit into their width. (Others do not: gpt-oss is
# 2,880<!--~ OpenAI (2025) --> numbers wide, and its heads are 4,096<!--~ 64 of 64 --> together.)

# %% tags=["claims"]
assert costs[8][0] < costs[1][0] and costs[8][2] == costs[1][2], (
    "More heads have thinner slices, so all heads together multiply as many numbers as one head would"
)
assert len({each[1:3] for each in costs.values()}) == 1, (
    "Parameters and multiplications stay the same"
)
assert costs[8][3] == 8 * costs[1][3], (
    "Each head has a table of weights of its own, so there are more weights"
)

# %% [markdown]
# ## The same as a formula
#
# With $Q_h$, $K_h$ and $V_h$ for the slices of head $h$, $d_k$ for their width, $H$ for the number of heads, and $W_O$
# for the output projection, the output is as follows. *Concat* lays vectors side by side.
#
# $$\begin{aligned}
# O &= \operatorname{Concat}(\text{head}_1, \dots, \text{head}_H) \, W_O \\
# \text{head}_h &= \operatorname{softmax}\left(\frac{Q_h K_h^\top}{\sqrt{d_k}}\right) V_h
# \end{aligned}$$
# <!-- where: H, d_k, d = 2, 3, 6; x, y, z, W_O = random("n d", "m d", "m d", "d d");
# Q, K, V = [torch.stack(each.chunk(H, dim=-1)) for each in (x, y, z)];
# head = attend_in_slices(x, y, z, H).chunk(H, dim=-1);
# Concat = lambda *heads: torch.cat(heads, dim=-1);
# O = attend_in_slices(x, y, z, H) @ W_O -->
#
# ## Recap
#
# - One head gives one average, and an average does not tell what it was made of.
# - Several heads work side by side, each in its own slice of the numbers. The output projection mixes what
#   they find.
# - More heads cost no more parameters and no more multiplications; each head gets a thinner slice.

# %% tags=["claims"]
assert apart and (mixed.abs() > 1e-6).all(), (
    "Several heads work side by side, each in its own slice of the numbers. The output projection mixes what they find"
)
assert costs[8][0] < costs[1][0] and costs[8][1:3] == costs[1][1:3], (
    "More heads cost no more parameters and no more multiplications; each head gets a thinner slice"
)
# %% [markdown]
# ## Exercises
#
# `print(check(name, answer))`, with `check` of `unmasked.exercises`, judges an answer by the name in brackets: [how to
# do the exercises](../install.md#do-the-exercises).
#
# **Silence a head** (`silence-head`). Write `silence(averages, num_heads, head)`. It gets what the heads have laid side
# by side, (tokens, features), and returns the same with the numbers of one head set to zero. The heads are counted from
# zero. Leave the tensor that you were given as it is.
#
# ??? question "Hint"
#
#     How wide is a slice? Where does the slice of this head begin, and where does it end?

# %% tags=["solution"]
from unmasked.exercises import check


def silence(averages, num_heads, head):
    wide = averages.size(-1) // num_heads
    silenced = averages.clone()
    silenced[:, head * wide : (head + 1) * wide] = 0
    return silenced


feedback = check("silence-head", silence)
assert feedback
feedback

# %% [markdown]
# **Count the parameters** (`count-parameters`). Write `count(width, num_heads)`: how many parameters has
# `nn.MultiheadAttention(width, num_heads)`? It has four matrices (for queries, keys, values and the output), and a bias
# for each of them. Do it without building the module.
#
# ??? question "Hint"
#
#     Each matrix turns `width` numbers into `width` numbers.


# %% tags=["solution"]
def count(width, num_heads):
    return 4 * (width * width + width)


feedback = check("count-parameters", count)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [A whole transformer block](block.py) shows what stands around attention: the MLP, the residual connections and the
#   norms.
# - [How does one matrix hold many heads?](../pytorch/heads.py) is for everybody who writes this code: `view`,
#   `transpose`, and one large matrix for all heads.
# - [Do my heads, tokens and batches stay apart?](../museum/heads.py) shows what it looks like when heads are mixed up.
#
# ## References
#
# <!--~ 2017, 3.2.2, 2024, 3, 2025: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.2, for several heads and their output projection.
# - Grattafiori et al. (2024), *The Llama 3 Herd of Models*: table 3, for the number of heads.
# - OpenAI (2025), *gpt-oss-120b & gpt-oss-20b Model Card*: heads that are together wider than the model.
