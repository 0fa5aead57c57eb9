# %% [markdown]
# # What do queries, keys and values learn?
#
# **A query learns what to look for, a key learns what to be found by, and a value learns what to hand over.**

# %% tags=["hide-input"]
#| caption: Five guests have ordered, and five questions ask what they get. Rows are queries (the questions), columns
#|   are keys (the orders). Each question has to find the order with its name.
import torch

from unmasked import plot

torch.set_num_threads(1)  # small matrices are faster on one core

guests, ordered = (
    "Kim Ann Zoe Bob Max".split(),
    "tea rum milk ale cola".split(),
)
served = [f"{name}: {drink}" for name, drink in zip(guests, ordered)]
goal = torch.eye(5)[[guests.index(name) for name in sorted(guests)]]
asked = [f"{name}?" for name in sorted(guests)]
plot.grid(goal, "the weights that are wanted", queries=asked, keys=served)

# %% [markdown]
# <div class="overview" data-here="queries"></div>
#
# On [the page before](attention.py), words were compared by the vectors that they had. Here a small model *learns* what
# to look for, in about a second, and you look inside it.

# %% [markdown]
# ## A waiter's memory
#
# The model is a waiter. It hears five orders, such as *Kim: tea*, and then a question, such as *Kim?*, which it has to
# answer with the drink. Each round draws five of six names and five of six drinks, and shuffles them, so nothing can be
# learned by heart: the answer has to be found in the orders.
#
# The model knows 18<!--= len(words) --> words: six questions, six names and six drinks. Each is a list of zeros with a
# single one, at a place of its own. An order is the sum of two words:

# %% tags=["imports"]
import torch

names = ["Ann", "Bob", "Eve", "Kim", "Max", "Zoe"]
drinks = ["tea", "milk", "cola", "soda", "rum", "ale"]
words = [f"{name}?" for name in names] + names + drinks
vectors = torch.eye(len(words))  # a row for each word

order = vectors[words.index("Kim")] + vectors[words.index("tea")]
order.int()

# %% [markdown]
# These vectors never change. Whatever the model learns, it learns in its three matrices.

# %% [markdown]
# ## Three tables
#
# The matrices are usually called `W_q`, `W_k` and `W_v`. The vector of *Kim* has its one at place 9<!--=
# words.index("Kim") -->: multiply it by a matrix, and you get row 9<!--= words.index("Kim") --> of the matrix. So each
# matrix is a table here, with a row for each word: its query, its key or its value. An order has two words, so its key
# is the sum of two rows, that of *Kim* and that of *tea*, and so is its value. At first the tables hold random numbers;
# with the same *seed*, everyone gets the same ones. `Parameter` marks a tensor that training may change:

# %% tags=["imports"]
from torch.nn import Parameter


def new_matrices(seed):
    torch.manual_seed(seed)
    W_q = Parameter(0.3 * torch.randn(18, 16))  # 18 queries
    W_k = Parameter(0.3 * torch.randn(18, 16))  # 18 keys
    W_v = Parameter(0.3 * torch.randn(18, 6))  # 18 values
    return W_q, W_k, W_v


# %% [markdown]
# A query and a key must be equally long, or they could not be compared: here both have 16<!--=
# new_matrices(0)[0].size(1) --> numbers. A value has six, one for each drink. They are its *bets*: once the values are
# averaged, the drink with the largest number is the answer. (In GPT-2<!--~ a name -->, values are as long as keys.)
#
# The model itself is attention as you know it, after three products. The comments give the shapes for one round:


# %%
def look(asked, orders, W_q, W_k, W_v):
    query = asked @ W_q  # (5, 18) @ (18, 16) is (5, 16)
    key = orders @ W_k  # (5, 16)
    value = orders @ W_v  # (5, 6)
    scores = query @ key.mT / 16**0.5  # (5, 5): question, order
    weights = scores.softmax(dim=-1)  # (5, 5)
    bets = weights @ value  # (5, 6): question, drink
    return bets, weights


# %% [markdown]
# ## Training
#
# To train means to repeat one *step*: ask, see how far off the bets are, and change the matrices a little, so that the
# bets get better. Each step asks in 32<!--= len(bets) --> rounds at once, together called a *batch*: one tensor with
# one more axis in front, (32, 5, 18)<!--= questions.shape --> for the questions. `look` stays as it is, because `@`
# multiplies the last two axes, for each round by itself. (`draw` deals new rounds.)


# %% tags=["check"]
def draw(rounds):
    """Five different names and drinks in each round: the questions, the orders, and the right drinks."""
    who, right = torch.rand(2, rounds, 6).argsort(dim=-1)[..., :5]
    return vectors[who], vectors[6 + who] + vectors[12 + right], right


# %% tags=["check"]
matrices = new_matrices(seed=0)
questions, orders, right = draw(rounds=32)
bets, weights = look(questions, orders, *matrices)
logarithm = -torch.tensor([1 / 6, 1 / 2, 1.0]).log()

# %% [markdown]
# One number, the *loss*, says how far off the bets are. A softmax turns the six bets into six chances, and the loss is
# minus the logarithm of the chance that the right drink got, averaged over all questions (it is called
# *cross-entropy*). If the right drink has a chance of one in six, the loss is 1.79<!--= logarithm[0] -->, the logarithm
# of six: the training begins near that. For one in two it is 0.69<!--= logarithm[1] -->, and for certainty zero.
#
# For each number in the matrices, `backward` finds out whether to raise it or to lower it, so that the loss shrinks,
# and `Adam` moves it a little that way:

# %% tags=["imports"]
import torch.nn.functional as F


def train(matrices):
    optimizer = torch.optim.Adam(matrices, lr=0.02)  # lr: how far to go
    for _ in range(200):
        questions, orders, right = draw(rounds=32)
        bets, _ = look(questions, orders, *matrices)
        loss = F.cross_entropy(bets.mT, right)  # drinks before questions
        optimizer.zero_grad()  # forget the direction of the last step
        loss.backward()  # find the direction
        optimizer.step()  # go a little way


# %% tags=["claims"]
assert abs(F.cross_entropy(bets.mT, right) - logarithm[0]) < 0.05, (
    "the training begins near that"
)

# %% [markdown]
# Here the five questions from above are asked again and again. Move the slider:

# %% tags=["hide-input"]
#| caption: What each question looks at during the training. Before it, all weights are between 15%<!--=
#|   film["weights"][0].min() --> and 24%<!--= film["weights"][0].max() -->. After 200<!--= film["steps"][-1] --> steps,
#|   each question gives at least 99%<!--= film["weights"][-1][goal > 0].min() --> to the order with its name.
#| script: ../../src/unmasked_lessons/figures/training.js
#| data: film | {"wanted": goal.argmax(-1)}
from unmasked_lessons.experiments.training import story

matrices = new_matrices(seed=0)
of_name = torch.stack([vectors[names.index(name)] for name in guests])
of_order = of_name.roll(6, 1) + torch.stack(
    [vectors[words.index(drink)] for drink in ordered]
)


def seen():
    bets, weights = look(goal @ of_name, of_order, *matrices)
    return F.cross_entropy(bets, (goal @ of_order)[:, 12:]), weights


film = story(lambda: train(matrices), seen, asked, guests)
moments = {"before": 0, "after 30 steps": 6, "after 200 steps": -1}
grids = {title: film["weights"][n] for title, n in moments.items()}
plot.grid(grids, queries=asked, keys=guests)

# %% [markdown]
# In 1,000<!--= len(found) --> new rounds, {{ correct :.0%}} of the answers are now right. Before the training it was {{
# early :.0%}}, like a blind guess among six drinks.


# %% tags=["check"]
def tried(matrices):
    """Of questions in new rounds, which got the right drink, and which looked most at the right order."""
    torch.manual_seed(100)
    questions, orders, right = draw(rounds=1000)
    bets, weights = look(questions, orders, *matrices)
    found = weights.argmax(dim=-1) == torch.arange(5)
    return (bets.argmax(dim=-1) == right).double(), found.double()


W_q, W_k, W_v = [matrix.detach() for matrix in matrices]
answered, found = tried(matrices)
correct, early = answered.mean(), tried(new_matrices(0))[0].mean()

# %% [markdown]
# ## What the queries and keys became
#
# How does *Kim?* find *Kim: tea*? Compare the query of each question with the keys of names and drinks:

# %% tags=["hide-input"]
#| caption: The scores of each question with all names, and its largest with any drink. With its own name a question
#|   scores about 7<!--= with_names.diagonal().mean() -->, with a drink at most 0.5<!--= with_drinks.max() -->.
with_names, with_drinks = (W_q[:6] @ W_k[6:].mT / 16**0.5).chunk(2, dim=1)
best = with_drinks.amax(dim=1, keepdim=True)
compared = torch.cat([with_names, best], dim=1)
plot.grid(compared, "scores", queries=words[:6], keys=[*names, "any drink"])

# %% [markdown]
# The vectors of *Kim?* and *Kim* had nothing in common: their dot product was zero. Now the query of the one and the
# key of the other point almost the same way. A drink adds its row to the key, too, but it hardly changes the score: a
# key is what an order is *found by*, and nobody asks for a drink.

# %% tags=["claims"]
assert 0.145 < film["weights"][0].min() < film["weights"][0].max() < 0.245, (
    "Before it, all weights are between 15% and 24%"
)
assert torch.allclose(compared[:, :6], with_names) and torch.allclose(
    compared[:, 6], with_drinks.max(dim=1).values
), (
    "The scores of each question with all names, and its largest with any drink"
)
assert with_names.diagonal().min() > 3 + max(
    with_names[torch.eye(6) == 0].max(), with_drinks.abs().max()
), "but it hardly changes the score"
assert F.cosine_similarity(W_q[:6], W_k[6:12]).min() > 0.9, (
    "the query of the one and the key of the other point almost the same way"
)

# %% [markdown]
# ## What the values became
#
# Numbers above zero are bets on a drink, and numbers below zero bets against it:

# %% tags=["hide-input"]
#| caption: What each word adds to the bets. A drink bets on itself, and against the other drinks. A name bets on next
#|   to nothing.
by_name, by_drink = W_v[6:12], W_v[12:]
plot.grid(W_v[6:], "values", rows=words[6:], columns=drinks)

# %% [markdown]
# Keys and values are opposites here. The key of an order tells the name and hides the drink; its value tells the drink
# and hides the name. With one vector for both, the model could not keep them apart.

# %% tags=["claims"]
assert (
    by_drink.diagonal().min() > 1 and by_drink[torch.eye(6) == 0].max() < 0
), "A drink bets on itself, and against the other drinks"
assert by_name.abs().max() < by_drink.diagonal().min() / 2, (
    "A name bets on next to nothing"
)
assert (
    with_drinks.abs().max() < with_names.diagonal().min() / 2
    and by_name.abs().max() < by_drink.diagonal().min() / 2
), (
    "The key of an order tells the name and hides the drink; its value tells the drink and hides the name"
)

# %% [markdown]
# ## What fails without each?
#
# Leave some of the matrices untrained, and count the right answers. Each row was trained from five random starts; the
# table has the middle result:
#
# {{ table.markdown() }}
#
# - Without training `W_v`, the model may find the order, but what is handed over is not what was asked for: random
#   bets.
# - Without training `W_q` and `W_k`, chance decides where a question looks.
# - Without training one of these two, nothing is lost. A query and a key only have to *meet*: where one stays, the
#   other comes to it.


# %% tags=["check", "any-version"]
def trained(start, *left):
    """Matrices drawn anew, after a training of all but those that are left as they were drawn."""
    matrices = dict(zip(["W_q", "W_k", "W_v"], new_matrices(start)))
    for name in left:
        matrices[name].requires_grad_(False)
    train(matrices.values())
    return matrices.values()


STARTS = range(5)
lefts = {"nothing": [], "W_q": ["W_q"], "W_k": ["W_k"], "W_v": ["W_v"]}
lefts |= {"W_q and W_k": ["W_q", "W_k"]}
results = {
    said: [[each.mean() for each in tried(trained(n, *left))] for n in STARTS]
    for said, left in lefts.items()
}
shares = {said: torch.tensor(each).T for said, each in results.items()}
cells = [(said, right.median()) for said, (right, _) in shares.items()]
table = plot.table(["Untrained", "Right answers"], cells, "{:.0%}")
unmet, _ = shares["W_q and W_k"]

# %% tags=["claims"]
assert min(shares["W_q"][0].median(), shares["W_k"][0].median()) > 0.99, (
    "Without training one of these two, nothing is lost"
)
assert shares["W_v"][1].max() > 0.5 > shares["W_v"][0].max(), (
    "the model may find the order, but what is handed over is not what was asked for"
)
assert unmet.max() < 0.5, "chance decides where a question looks"

# %% [markdown]
# ## Why not one matrix for queries and keys?
#
# The waiter's questions are never asked, and his orders never ask. In a text, each word does both. So let all six
# guests order, and let each ask what the next one in the alphabet drinks (and Zoe, what Ann does). With two matrices,
# {{ two.median() :.0%}} of the answers are right. If `W_q` is `W_k`, only {{ one.median() :.0%}} are.
#
# A dot product is the same from both sides: with one matrix, Bob's score for Ann is Ann's score for Bob, although Ann
# looks for Bob, and Bob for Eve. With two, a word can look for one thing and be found by another.


# %% tags=["check"]
from unmasked_lessons.experiments.training import guests_answered

two, one = [
    torch.tensor([guests_answered(n, shared=shared) for n in STARTS])
    for shared in (False, True)
]
W = new_matrices(0)[1]
from_both_sides = W[6:12] @ W[6:12].mT

# %% tags=["claims"]
assert two.median() > 0.95 > 0.5 > one.max(), (
    "With two, a word can look for one thing and be found by another"
)
assert torch.allclose(from_both_sides, from_both_sides.mT, atol=1e-5), (
    "Bob's score for Ann is Ann's score for Bob"
)

# %% [markdown]
# ## The word *be* asks
#
# The trained singer has queries, keys and values, too. It learned them from nothing but the song, by the loss of its
# guesses of each next word. *be* asks for the number, and *nine* answers, as *Kim: tea* answered *Kim?*. What you know
# now is open: the query of *be*, and the key and the value of *nine*.

# %% tags=["hide-input"]
#| caption: The word *be* on its way through the trained singer.
#| script: ../../src/unmasked_lessons/figures/strip.js
#| data: strip.data
from unmasked_lessons.figures.strip import Strip

strip = Strip("queries_keys_values")
strip

# %% tags=["check"]
read = strip.singer.numbers_of(" ".join(strip.words))
of_be = strip.singer.weights(read)[0, 0, -1]

# %% tags=["claims"]
assert strip.words[of_be.argmax()] == "nine", (
    "be asks for the number, and nine answers, as Kim: tea answered Kim?"
)

# %% [markdown]
# In the program, `nn.Linear` is a matrix that training may change.
#
# <div class="program"></div>

# %% [markdown]
# ## Recap
#
# - A query is a question, a key is a label under which something is found, and a value is what one then gets.
# - Query and key are learned together, because only their dot product counts. They differ, because a word can look for
#   one thing and be found by another.

# %% [markdown]
# ## Exercises
#
# ### Optional
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("keys-for-queries", answer))`.
#
# **Keys without training** (`keys-for-queries`). Write `keys_for(W_q)`. It takes a table of random queries, a row for
# each question, and returns a table of keys of the same shape, so that each question has its largest score with the key
# in its own row.
#
# ??? question "Hint"
#
#     You want `W_q @ W_k.mT` to be the identity. The identity has ones on the diagonal and zeros elsewhere.
#     `torch.linalg.pinv` finds such a matrix.


# %% tags=["solution"]
from unmasked_lessons.exercises import check


def keys_for(W_q):
    return torch.linalg.pinv(W_q).mT


feedback = check("keys-for-queries", keys_for)
assert feedback
feedback

# %% [markdown]
# **Only the product counts** (`same-product`). Someone multiplies all queries from the right by a square matrix `M`
# that has an inverse. Write `other_keys(W_k, M)`, which changes the keys so that all scores stay what they were.
#
# ??? question "Hint"
#
#     The scores are `W_q @ W_k.mT`. With `M` they are `W_q @ M @ new.mT`. What must `M @ new.mT` be?
#     `torch.linalg.inv(M)` is the matrix that undoes `M`.


# %% tags=["solution"]
def other_keys(W_k, M):
    return W_k @ torch.linalg.inv(M).mT


feedback = check("same-product", other_keys)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [Who may see whom?](masks.py) is the next page.
# - [The weight bypass](../pytorch/bypass.py): the three matrices of PyTorch's own module, and how to switch them off.
