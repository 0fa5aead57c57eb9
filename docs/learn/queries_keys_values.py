# %% [markdown]
# # What do queries, keys and values learn?
#
# **A query learns what to look for, a key learns what to be found by, and a value learns what to hand over.**

# %% tags=["hide-input", "no-snippet"]
#| caption: Five guests have ordered, and five questions ask what they get. Rows are queries, the questions. Columns are
#|   keys, the orders. A question has to find the order with its name, and to answer with the drink.
import torch

from unmasked import plot

torch.set_num_threads(1)  # small matrices are faster on one core

served = ["Kim: tea", "Ann: rum", "Zoe: milk", "Bob: ale", "Max: cola"]
orders = dict(each.split(": ") for each in served)
rows = [list(orders).index(name) for name in sorted(orders)]
goal = torch.eye(len(orders))[rows]
asked = [f"{name}?" for name in sorted(orders)]
plot.grid(goal, "the weights that are wanted", queries=asked, keys=served)

# %% [markdown]
# <div class="overview" data-here="queries"></div>
#
# On [the page before](attention.py)<!--~ link: it stands before this one -->, words were compared by the vectors that
# they already had. A language model does better: it *learns* what to look for. That is how it finds the name to which
# *she* refers, or the opening bracket that is still to be closed.
#
# This page trains the smallest model that has to learn such a thing, and then looks into it. The training takes less
# than a second on most computers.

# %% [markdown]
# ## A waiter's memory
#
# The model is a waiter. It hears five orders, such as *Kim: tea*, and then a question, such as *Kim?*. It has to answer
# with the drink. Names and drinks are shuffled each time. So nothing can be learned by heart: the answer stands in the
# orders, and has to be found there.
#
# The world of this model has 18<!--= len(words) --> words: six questions, six names and six drinks. Each word is a list
# of zeros with a single one, which stands at a place of the word's own. An order is the sum of two words:

# %% tags=["imports"]
import torch

names = ["Ann", "Bob", "Eve", "Kim", "Max", "Zoe"]
drinks = ["tea", "milk", "cola", "soda", "rum", "ale"]
words = [f"{name}?" for name in names] + names + drinks
vectors = torch.eye(len(words))  # a row for each word

order = vectors[words.index("Kim")] + vectors[words.index("tea")]
order.int()

# %% [markdown]
# The ones stand at the places of *Kim* and *tea*. These vectors stay as they are. So whatever the model learns, it
# learns in its three matrices.

# %% [markdown]
# ## Three tables
#
# The model has three matrices, with the usual names `W_q`, `W_k` and `W_v`. A vector with a single one, times a matrix,
# is one row of that matrix. So here each matrix is a table with a row for each word: `W_q` has the words' queries,
# `W_k` their keys and `W_v` their values. In the beginning they hold small random numbers, and the *seed* says which:


# %%
def new_matrices(seed):
    torch.manual_seed(seed)
    W_q, W_k = 0.3 * torch.randn(2, len(words), 16)
    W_v = 0.3 * torch.randn(len(words), len(drinks))
    return W_q.clone(), W_k.clone(), W_v


# %% [markdown]
# A query and a key must be equally long, or they could not be compared. Here both have 16<!--=
# new_matrices(0)[0].size(1) --> numbers. A value has six numbers, one for each drink. They are its bets: once the
# values are averaged, the drink with the largest number is the model's answer. The model itself is attention, as you
# know it, with one line before it. Here only the questions ask, and only the orders are asked. In a sentence every word
# does both:


# %%
def look(asked, orders, W_q, W_k, W_v):
    query, key, value = asked @ W_q, orders @ W_k, orders @ W_v
    scores = query @ key.mT / key.size(-1) ** 0.5
    weights = scores.softmax(dim=-1)
    return weights @ value, weights


# %% [markdown]
# ## Before, during and after
#
# Training is a loop, and each pass through it is called a *step*. Draw some rounds of orders, ask for each of them, and
# see how far the bets are from the right drinks; then change the matrices a little, in the direction that makes the
# bets better. In the code below, `draw` makes the rounds and `as_vectors` looks up their words; both are in *How this
# is checked*, at the end of this section. `cross_entropy` measures how far the bets are off, which is called the
# *loss*. `backward` finds the direction, and `Adam` takes the step.

# %% tags=["imports"]
import torch.nn.functional as F


def train(matrices, learned, steps=200):
    # What is learned of the matrices, and how large a step is.
    optimizer = torch.optim.Adam(learned, lr=0.02)
    for _ in range(steps):
        who, what = draw(rounds=32)
        answers, _ = look(*as_vectors(who, what), *matrices)
        # The questions of all rounds, one after the other.
        loss = F.cross_entropy(answers.flatten(0, 1), what.flatten())
        optimizer.zero_grad()  # forget the direction of the step before
        loss.backward()
        optimizer.step()
        yield loss.item()


# %% tags=["check"]
from unmasked.figures.training import story


def draw(rounds):
    """Different names and different drinks, five of each for each round."""
    return torch.rand(2, rounds, 6).argsort(dim=-1)[..., :5]


def as_vectors(who, what):
    """The questions for all orders, in their order, and the orders."""
    return vectors[who], vectors[6 + who] + vectors[12 + what]


def tried(matrices):
    """In new rounds: right answers, right looks, each a one; and the drinks."""
    torch.manual_seed(100)
    who, what = draw(rounds=1000)
    answers, weights = look(*as_vectors(who, what), *matrices)
    found = weights.argmax(-1) == torch.arange(5)
    return (answers.argmax(-1) == what).double(), found.double(), what


who = torch.tensor([[names.index(name) for name in orders]])
what = torch.tensor([[drinks.index(drink) for drink in orders.values()]])
given = as_vectors(who, what)
matrices = new_matrices(0)
steps = train(matrices, [matrix.requires_grad_() for matrix in matrices])
training_data = story(
    steps, lambda: look(*given, *matrices)[1][0, rows], asked, list(orders)
)
W_q, W_k, W_v = matrices = [matrix.detach() for matrix in matrices]
right = tried(matrices)[0]
correct, early = right.mean(), tried(new_matrices(0))[0].mean()

# %% [markdown]
# Here the same questions are asked about the same orders, again and again during the training. Move the slider back to
# the start, and see what each question looks at. The curve is the loss.

# %% tags=["hide-input"]
#| caption: What each question looks at: at the start, 30<!--= training_data["steps"][6] --> steps on, and 200<!--=
#|   training_data["steps"][-1] --> steps on. Rows are queries, columns are keys. At the end each question takes nearly
#|   everything from the order with its name.
#| script: ../../src/unmasked/figures/training.js
#| data: training_data
moments = {"at the start": 0, "on the way": 6, "at the end": -1}
grids = {title: training_data["weights"][n] for title, n in moments.items()}
plot.grid(grids, queries=asked, keys=orders)

# %% [markdown]
# At the start the questions look at all orders alike. At the end the largest weights stand where they were wanted, in
# the filled cells of [Figure 1](#figure-1). And the answers are right: {{ correct :.0%}} of those in 1,000<!--=
# len(right) --> new rounds. At the start it was {{ early :.0%}}, which is no more than guessing: who guesses among all
# six drinks is right in {{ 1 / len(drinks) :.0%}} of the cases, and who guesses among the five that were ordered, in {{
# 1 / len(orders) :.0%}}.

# %% tags=["claims"]
assert grids["at the end"][goal > 0].min() > 0.9, (
    "At the end each question takes nearly everything from the order with its name"
)
assert (grids["at the start"] - 0.2).abs().max() < 0.15, (
    "At the start the questions look at all orders alike"
)
assert grids["at the end"].argmax(1).equal(goal.argmax(1)), (
    "At the end the largest weights stand where they were wanted"
)
assert correct > 0.99, "And the answers are right"
assert early < 1.5 / len(drinks), "which is no more than guessing"

# %% [markdown]
# ## What the queries and keys became
#
# How does *Kim?* find *Kim: tea*? Compare its query with the keys of all words, one after the other. The scores with
# the names stand in [Figure 3](#figure-3), and those with the drinks in [Figure 4](#figure-4):

# %% tags=["hide-input"]
#| caption: The score of each question with each name. It is large where the question and the name belong to one guest.
scores = W_q[:6] @ W_k[6:].mT / W_k.size(1) ** 0.5
with_names, with_drinks = scores.chunk(2, dim=1)
plot.grid(with_names, "scores with names", queries=words[:6], keys=names)

# %% tags=["hide-input"]
#| caption: The scores of these questions with the drinks. (Colors begin anew in each figure; read the numbers.) They
#|   are small, compared with those of a guest's own name.
plot.grid(with_drinks, "scores with drinks", queries=words[:6], keys=drinks)

# %% [markdown]
# There it is. *Kim?* and *Kim* are different words, which had nothing in common: their dot product was zero. Their
# query and their key have learned to point the same way. The drinks stand in the same orders, but a key shows little of
# them. A key is what an order is *found by*. Nobody asks for a drink here, so the keys need not show the drinks. An
# order is the sum of two words. So its key is the sum of two keys, and its score is the sum of two scores: that of its
# name, and that of its drink.

# %% tags=["claims"]
assert (
    with_names.diagonal().min() > 2 + with_names[torch.eye(6) == 0].max()
), "It is large where the question and the name belong to one guest"
assert with_drinks.abs().max() < with_names.diagonal().min() / 2, (
    "They are small, compared with those of a guest's own name"
)
assert F.cosine_similarity(W_q[:6], W_k[6:12]).min() > 0.8, (
    "Their query and their key have learned to point the same way"
)

# %% [markdown]
# ## What the values became
#
# A value is what an order hands over once it is found. These are the values of all names and drinks. A number above
# zero is a bet on a drink, and a number below zero a bet against it:

# %% tags=["hide-input"]
#| caption: What each word adds to the bet on each drink. A drink bets on itself, and against the other drinks. A name
#|   bets on next to nothing.
by_name, by_drink = W_v[6:12], W_v[12:]
plot.grid(W_v[6:], "values", rows=names + drinks, columns=drinks)

# %% [markdown]
# Keys and values are opposites here. The key of an order tells the name and hides the drink; its value tells the drink
# and hides the name. With one vector for both, as on the page before, the model could not keep them apart.

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
# Which of the three matrices does the model need? Leave one of them, or several, as they were drawn at random, and
# train the others. Here is how many answers are then right:
#
# {{ table.markdown() }}
#
# - Without training `W_q`, or without training `W_k`, the model still gets nearly all right. A query and a key only
#   have to *meet*. If one of them stays where it is, the other comes to it.
# - With both left alone, nothing can meet. Chance decides which order a question looks at most. Here that is the right
#   order for only {{ looked_right :.0%}} of the questions. From any other order it takes a wrong drink, for no drink is
#   ordered twice. So the answers are even worse than guessing.
# - Without training `W_v`, the model gets most answers wrong. It may find the order, but what is handed over is not
#   what was asked for. Chance decides here, too: the random value of *{{ lucky }}* happens to bet most on the right
#   drink. Where *{{ lucky }}* was ordered, {{ by_each[lucky] :.0%}} of the answers are right. Where *{{ unlucky }}* was
#   ordered, it is {{ by_each[unlucky] :.0%}}.


# %% tags=["check"]
def trained(learns):
    """Matrices drawn anew, after a training of those that learn."""
    matrices = dict(zip("qkv", new_matrices(1)))
    learned = [matrices[name].requires_grad_() for name in learns]
    list(train(matrices.values(), learned) if learned else ())
    return [matrix.detach() for matrix in matrices.values()]


learning = {"nothing": "qkv", "W_q": "kv", "W_k": "qv", "W_v": "qk"}
learning |= {"W_q and W_k": "v", "all three": ""}
results = {left: tried(trained(which)) for left, which in learning.items()}
share = {left: each[0].mean() for left, each in results.items()}
cells = [*share.items()]
table = plot.table(["Left as it was drawn", "Right answers"], cells, "{:.0%}")

# What chance decides: where untrained queries look, and which drinks untrained values tell.
looked_right = results["W_q and W_k"][1].mean()
right, _, what = results["W_v"]
by_each = {name: right[what == n].mean() for n, name in enumerate(drinks)}
lucky, unlucky = (find(by_each, key=by_each.get) for find in (max, min))
drawn = new_matrices(1)[2][12:]  # the values of the drinks

# %% tags=["claims"]
assert min(share["W_q"], share["W_k"]) > 0.9 > share["W_q and W_k"], (
    "the model still gets nearly all right. A query and a key only have to meet"
)
assert (what.sort(-1).values.diff() > 0).all(), (
    "for no drink is ordered twice"
)
assert share["W_q and W_k"] < 1 / len(drinks), (
    "So the answers are even worse than guessing"
)
assert share["W_v"] < 0.5, "the model gets most answers wrong"
assert drawn[drinks.index(lucky)].argmax() == drinks.index(lucky), (
    "happens to bet most on the right drink"
)

# %% [markdown]
# ## In your own words
#
# A query is a question. A key is a label: it says what can be found here. A value is the content: what one gets. In a
# library the query is what you type into the catalog, the keys are the cards, and the values are the books. The cards
# need not look like the books. They have to look like what readers type.
#
# In a real model a word is not a list of zeros with a single one, and nobody lays down what there is to be asked for,
# as names and drinks were laid down here. A real model takes the step of attention many times, one after the other.
# Each time is called a *layer*, and each layer has three matrices of its own, which learn by themselves what to ask
# for. Often nobody can say in words what a query of a large model looks for.
#
# ## Recap
#
# - A query and a key are learned together: what counts is their dot product.
# - A value is learned apart from the key. So an order can be found by its name, and hand over its drink.
# - Without trained queries and keys the model looks in the wrong place. Without trained values it brings back the wrong
#   thing.

# %% tags=["claims"]
assert looked_right < 0.5, (
    "Without trained queries and keys the model looks in the wrong place"
)
assert share["W_v"] < 0.5, (
    "Without trained values it brings back the wrong thing"
)

# %% [markdown]
# ## Exercises
#
# `print(check(name, answer))`, with `check` of `unmasked.exercises`, judges an answer by the name in brackets: [how to
# do the exercises](../install.md#do-the-exercises).
#
# **Keys without training** (`keys-for-queries`). Write `keys_for(W_q)`. It takes a table of random queries, a row for
# each question, and returns a table of keys of the same shape, so that each question has its largest score with the key
# in its own row. No training is needed.
#
# ??? question "Hint"
#
#     You want `W_q @ W_k.mT` to be the identity. The identity has ones on the diagonal and zeros elsewhere.
#     `torch.linalg.pinv` finds such a matrix.


# %% tags=["solution"]
from unmasked.exercises import check


def keys_for(W_q):
    return torch.linalg.pinv(W_q).mT


feedback = check("keys-for-queries", keys_for)
assert feedback
feedback

# %% [markdown]
# **Only the product counts** (`same-product`). Someone multiplies all queries by a square matrix `M`, which has an
# inverse, from the right. Write `other_keys(W_k, M)`, which changes the keys so that all scores stay what they were.
#
# ??? question "Hint"
#
#     The scores are `W_q @ W_k.mT`. With `M` they are `W_q @ M @ new.mT`. What must `M @ new.mT` be?


# %% tags=["solution"]
def other_keys(W_k, M):
    return W_k @ torch.linalg.inv(M).mT


feedback = check("same-product", other_keys)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [Who may see whom?](masks.py) is the next page: not every word may look at every other.
# - [The weight bypass](../pytorch/bypass.py): the three matrices of PyTorch's own module, and how to switch them off.
# - [Attention in ten minutes](attention.py), if a step went too fast.
