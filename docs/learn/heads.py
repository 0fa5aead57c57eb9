# %% [markdown]
# # Why several heads?
#
# **One head gives a word one average of the other words. Several heads give it several averages at once, and each head
# can look for something different.**

# %% tags=["hide-input", "imports"]
#| caption: What *bit* needs from the other words. Rows are queries, columns are keys. One head has to mix *dog* and
#|   *man*. Of two heads, one can look for who bites, and the other for who is bitten.
import torch
from torch import nn

from unmasked import plot

torch.set_num_threads(1)  # small matrices are faster on one core

words = "the dog bit the man".split()
looks = {
    "one head": [[0, 0.5, 0, 0, 0.5]],
    "two heads: head 0": [[0, 1, 0, 0, 0]],
    "two heads: head 1": [[0, 0, 0, 0, 1]],
}
grids = {name: torch.tensor(row) for name, row in looks.items()}
plot.grid(grids, queries=["bit"], keys=words)

# %% [markdown]
# In *the dog bit the man*, the word *bit* needs to know two things: who bites, and who is bitten. (There is no mask
# here, so it may look at *man*, which comes later.) An average of *dog* and *man* no longer tells which was which,
# because it is the same average in *the man bit the dog*. Positions do not help: word and place are added, and *dog +
# second* with *man + fifth* has the same average as *man + second* with *dog + fifth*. So models look several times at
# once, each time with other queries, keys and values. One such look is called a *head*.
#
# <div class="overview" data-here="heads"></div>

# %% [markdown]
# ## One average is not enough
#
# Here is the same trouble as a riddle, so that right answers can be counted. Each of five boxes has a letter on its lid
# and a number inside. The question "B, D?" asks for the numbers in B and in D, in this order: `(7, 4)`<!--= numbers[[1,
# 3]] -->. One head that gives half of its attention to each box gets their average:

# %%
numbers = torch.tensor([3.0, 7.0, 1.0, 4.0, 9.0])  # in A to E
half_each = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
half_each @ numbers

# %% [markdown]
# The question "D, B?" asks for `(4, 7)`<!--= numbers[[3, 1]] -->, and gets the same average. No model can tell the two
# questions apart, as long as it looks at both boxes alike. Does training find a way out? Two models learn such riddles,
# with one head and with two. The question is the query, and each box has a key and a value. Then both answer {{
# len(answers["one head"]) :,}} new riddles:

# %% tags=["hide-input", "any-version"]
#| caption: How many answers are right. The numbers go from zero to nine, so a blind guess is right one time in ten, and
#|   for both one time in a hundred. The model with one head favors one side: it gets one number mostly right, and the
#|   other mostly wrong.
from unmasked_lessons.teaching import PairSolver, draw_pairs

one_head = PairSolver.trained(1, seed=0)
two_heads = PairSolver.trained(2, seed=1)
answers = {"one head": one_head.right(), "two heads": two_heads.right()}
plot.table(
    ["Model", "First number", "Second number", "Both"],
    {
        name: [*right.double().mean(dim=0), right.all(dim=1).double().mean()]
        for name, right in answers.items()
    },
    "{:.0%}",
)

# %% tags=["check"]
torch.manual_seed(1)
given, _ = draw_pairs(1000)
letters, *_, first, second = given
weights = two_heads(*given)[1]  # riddles heads boxes
on_asked = torch.stack(
    [
        (weights * (letters == each[:, None])[:, None])
        .sum(dim=-1)
        .mean(dim=0)
        for each in (first, second)
    ]
)  # what is asked for, heads
first_head, second_head = on_asked.argmax(dim=1).tolist()
leans = answers["one head"].double().mean(dim=0).sort().values

# %% [markdown]
# In the second model, head {{ first_head }} gives {{ on_asked[0, first_head] :.0%}} of its weight to the box that is
# asked for first, and head {{ second_head }} gives {{ on_asked[1, second_head] :.0%}} to the other one. Nobody told
# them to. Chance decides which head takes which job.

# %% tags=["claims"]
assert torch.allclose(numbers[[3, 1]].mean(), half_each @ numbers), (
    "and gets the same average"
)
assert leans[1] > 0.7 > 0.45 > leans[0], (
    "it gets one number mostly right, and the other mostly wrong"
)
assert first_head != second_head and on_asked.amax(dim=1).min() > 0.9, (
    "Chance decides which head takes which job"
)

# %% [markdown]
# ## Two heads that sing
#
# The trained singer has two heads. Here is where they look in a verse, after three *la*. Choose a head, and point at
# the rows of the first two *bottles*, then at *be*:

# %% tags=["hide-input"]
#| caption: The weights of both heads of the trained singer.
from unmasked_lessons.teaching import Singer, verse

singer = Singer.trained(1).rounded()  # as a browser gets it
text = ["la"] * 3 + verse(9).split()
seen = singer.weights(singer.numbers_of(" ".join(text)))[0]
plot.show(seen, queries=text)

# %% tags=["check"]
bottles, again, be = 5, 8, 17  # where these words stand
on_number = seen[0][:, [3, 6]].sum(dim=1)  # on both nine
on_la = seen[1, bottles, :3].sum()
on_first_line = seen[1, again, 4]  # on its green

# %% [markdown]
# To go on after *bottles*, the singer must know which number it is, and which line it has just sung. After the first
# line comes *nine* again, after the second *and*.
#
# - **Head 0 finds the number.** At the first *bottles* it gives {{ on_number[bottles] :.0%}} of its weight to *nine*.
#   At *be*, where *eight* comes next, it gives more than 80% to the two *nine*.
# - **Head 1 finds the line.** At the first *bottles* it gives most of it to the *la*, since no line stands before this
#   one. At the second *bottles* it gives about 80%<!--= round(on_first_line.item(), 1) --> to *green* of the line
#   before, and so knows that a line has been sung.
#
# Weights only hint at what a head does. To find out, *silence* the head: put zeros in place of what it found, and
# listen for what is lost:

# %% tags=["hide-input", "any-version"]
#| caption: What the singer sings with both heads, and with one of them silenced. It is given the *la*, the number and
#|   *green*.
#| script: ../../src/unmasked_lessons/figures/silence.js
#| data: told
from unmasked_lessons.experiments import silence

told = silence.story(singer)
nine = {name: verses[1] for name, verses in told["sung"].items()}
plot.table(
    ["Singing", "Verse nine"],
    {name: [" ".join(each)] for name, each in nine.items()},
)

# %% tags=["check"]
kept = silence.kept(told)
lines, second_numbers = zip(*kept.values())

# %% [markdown]
# Without head 0 the singer keeps the lines of all {{ lines[1] }} verses in order, but repeats the right number in {{
# second_numbers[1] or "none" }} of them. Without head 1 it repeats the right number in most of the {{
# len(told["right"]) }} verses, but the lines stay in order in {{ lines[2] or "none" }}: it does not know that the
# second line is over, and sings it again.

# %% tags=["claims"]
assert on_number[bottles] > 0.9, "Head 0 finds the number"
assert on_number[be] > 0.8, "it gives more than 80% to the two nine"
assert min(on_la, on_first_line) > 0.6, "Head 1 finds the line"
assert lines[:2] == (10, 10) and second_numbers[1] <= 3, (
    "Without head 0 the singer keeps the lines of all"
)
assert lines[2] <= 2 and second_numbers[2] >= 7, (
    "Without head 1 it repeats the right number"
)

# %% [markdown]
# ## Each head works in its own slice
#
# A second head does not make the model larger. A query of the singer has 32<!--= Singer.WIDTH --> numbers, and they are
# cut into two slices: head 0 gets the first 16 numbers, head 1 the last 16. What is cut is the query, not the word: the
# matrix `W_q` reads the whole word, and can put into each slice what its head needs. Keys and values are cut in the
# same way. Then each head computes attention on its slices alone, as if there were no other head:


# %%
def attend_in_slices(query, key, value, num_heads):
    averages = []
    slices = [x.chunk(num_heads, dim=-1) for x in (query, key, value)]
    for q, k, v in zip(*slices, strict=True):
        scores = q @ k.mT / q.size(-1) ** 0.5
        averages.append(scores.softmax(dim=-1) @ v)
    return torch.cat(averages, dim=-1)  # side by side


# %% [markdown]
# Each score is divided by the root of the width of a slice, because a score is a sum of that many products. At the end
# the averages are laid side by side.
#
# Why not stop there? What attention found is going to be added to the word's own vector, number by number. Laid side by
# side, head 0 could only ever change the first half of a word, and head 1 the second. One more matrix, the *output
# projection* `W_o`, turns what both found into one vector: each head has half of its rows, and so can change any number
# of the word. What both change is added up.

# %% tags=["hide-input"]
#| alt: A bar of 32<!--= WIDTH --> numbers is cut into two slices of 16<!--= WIDTH // 2 -->. Each goes through its own
#|   head. The two averages lie side by side. Both lead into the output projection, from which the output comes.
#| caption: The way through two heads. The heads work apart. The output projection mixes what they found.
from unmasked_lessons.experiments import heads as experiments
from unmasked_lessons.figures import slices as drawing

WIDTH = Singer.WIDTH
drawing.two_heads(WIDTH)

# %% tags=["check"]
torch.manual_seed(2)
qkv = torch.randn(3, 5, WIDTH)
other = qkv.clone()
other[..., :16] *= 2  # the first slice of queries, keys and values
change = attend_in_slices(*other, 2) - attend_in_slices(*qkv, 2)
apart = change[:, :16].abs().min() > 1e-6 > change[:, 16:].abs().max()
W_O = nn.Linear(WIDTH, WIDTH, bias=False)
mixed = W_O(change)
laid = attend_in_slices(*qkv, 2)
rows_of = W_O.weight.mT.chunk(2)  # those of each head
added_up = sum(each @ rows for each, rows in zip(laid.chunk(2, -1), rows_of))

# %% tags=["claims"]
assert apart and WIDTH == 2 * 16, (
    "head 0 gets the first 16 numbers, head 1 the last 16"
)
assert apart, (
    "Then each head computes attention on its slices alone, as if there were no other head"
)
assert apart and (mixed.abs() > 1e-6).all(), (
    "The heads work apart. The output projection mixes what they found"
)
assert torch.allclose(added_up, W_O(laid), atol=1e-5), (
    "each head has half of its rows, and so can change any number of the word"
)
assert (change[:, 16:].abs() < 1e-6).all(), (
    "Laid side by side, head 0 could only ever change the first half of a word, and head 1 the second"
)

# %% tags=["check"]
costs = experiments.costs(WIDTH, 10, (1, 8))  # ten words

# %% tags=["claims"]
assert costs[8][0] < costs[1][0] and costs[8][1:3] == costs[1][1:3], (
    "They cost no more multiplications, because each head works with a thinner slice, and no more parameters"
)

# %% [markdown]
# ??? note "What do more heads cost?"
#
#     They cost no more multiplications, because each head works with a thinner slice, and no more *parameters*, as
#     learned numbers are called. But a thin slice has few numbers to compare words by, so most models give a head
#     64<!--~ Vaswani et al. (2017) --> or 128<!--~ Grattafiori et al. (2024) -->.
#
# ??? note "The same as a formula"
#
#     With $Q_h$, $K_h$ and $V_h$ for the slices of head $h$, $d_k$ for their width, $H$ for the number of heads, and
#     $W_O$ for the output projection, the output is as follows. *Concat* lays vectors side by side.
#
#     $$\begin{aligned}
#     O &= \operatorname{Concat}(\text{head}_1, \dots, \text{head}_H) \, W_O \\
#     \text{head}_h &= \operatorname{softmax}\left(\frac{Q_h K_h^\top}{\sqrt{d_k}}\right) V_h
#     \end{aligned}$$
#     <!-- where: H, d_k, d = 2, 3, 6; x, y, z, W_O = random("n d", "m d", "m d", "d d");
#     Q, K, V = [torch.stack(each.chunk(H, dim=-1)) for each in (x, y, z)];
#     head = attend_in_slices(x, y, z, H).chunk(H, dim=-1);
#     Concat = lambda *heads: torch.cat(heads, dim=-1);
#     O = attend_in_slices(x, y, z, H) @ W_O -->

# %% [markdown]
# ## The word *be* has two heads
#
# On the pages before, the trained singer showed only the head that finds the number. Here are both on the way of *be*.
# Head 1, which finds lines, spreads its weight over several words here: at *be* the line is not in question.

# %% tags=["hide-input"]
#| caption: The word *be* on its way through the trained singer.
#| script: ../../src/unmasked_lessons/figures/strip.js
#| data: strip.data
from unmasked_lessons.figures.strip import Strip

strip = Strip("heads", singer=singer)
strip

# %% tags=["check"]
read = singer.numbers_of(" ".join(strip.words))
of_be = singer.weights(read)[0, :, -1]

# %% tags=["claims"]
assert strip.words[of_be[0].argmax()] == "nine" and of_be[1].max() < 0.5, (
    "Head 1, which finds lines, spreads its weight over several words here"
)

# %% [markdown]
# <div class="program"></div>

# %% [markdown]
# ## Recap
#
# - One head gives one average, and an average does not tell what it was made of.
# - Several heads work side by side, each in its own slice of the numbers. The output projection turns what they find
#   into one vector.

# %% tags=["claims"]
assert apart, (
    "Several heads work side by side, each in its own slice of the numbers"
)
# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("silence-head", answer))`.
#
# **Silence a head** (`silence-head`). Write `silence(averages, num_heads, head)`. It gets what the heads have laid side
# by side, (tokens, features), and returns the same with the numbers of one head set to zero. The heads are counted from
# zero. Leave the tensor that you were given as it is.
#
# ??? question "Hint"
#
#     How wide is a slice? Where does the slice of this head begin, and where does it end?

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def silence(averages, num_heads, head):
    wide = averages.size(-1) // num_heads
    silenced = averages.clone()
    silenced[:, head * wide : (head + 1) * wide] = 0
    return silenced


feedback = check("silence-head", silence)
assert feedback
feedback

# %% [markdown]
# ### Optional
#
# **Count the parameters** (`count-parameters`). Write `count(width, num_heads)`: how many parameters has
# `nn.MultiheadAttention(width, num_heads)`? It has four matrices (for queries, keys, values and the output), and a
# *bias* for each of them, a number that is added to each result.
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
# - [A whole transformer block](block.py) shows what stands around attention.
# - [How does one matrix hold many heads?](../pytorch/heads.py) shows the ways in which the cutting goes wrong.
#
# ??? note "The papers"
#
#     <!--~ 2017, 3.2.2, 2024, 3: references -->
#     - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.2, for several heads and their output
#       projection.
#     - Grattafiori et al. (2024), *The Llama 3 Herd of Models*: table 3, for the number of heads.
