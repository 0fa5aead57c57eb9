# %% [markdown]
# # Are my weights what attention says they are?
#
# **Sum the rows, call twice, and compare once with a reference, in sizes that differ.** This finds every mistake of
# this room that changes an output, or weights that are returned: wrong scales, wrong sums, dropout, and inputs that are
# overwritten. *Off by* is the largest difference from the right version, on random numbers of ordinary size or on the
# sentence about the *ship*.
#
# | What you see | Mistake | Off by | Hides with |
# | --- | --- | --- | --- |
# | Weights of zero or one | [no scale](#missing-scale) | 0.48<!--= off["missing-scale"] --> | a head_dim of one |
# | Weights nearly even | [another d](#wrong-d-in-scale) | 0.53<!--= off["wrong-d-in-scale"] --> | one head |
# | Right only at first | [a global d_k](#global-d-k) | 0.50<!--= off["global-d-k"] --> | the first sizes |
# | Columns sum to one | [softmax over queries](#softmax-over-queries) | 1.29<!--= off["softmax-over-queries"] --> | equal tokens |
# | Outputs grow | [weights do not sum to one](#weights-not-normalized) | 25.95<!--= off["weights-not-normalized"] --> | one token |
# | A cosine above one | [another's norms](#foreign-norms) | 0.48<!--= off["foreign-norms"] --> | the first sentence |
# | Other sums in training | [after dropout](#weights-after-dropout) | {{ off["weights-after-dropout"] :.2f}} | evaluation |
# | Two calls differ | [dropout in evaluation](#dropout-in-eval) | {{ off["dropout-in-eval"] :.2f}} | dropout of zero |
# | The loss stands still | [a gradient cut off](#gradient-cut) | nothing | no training |
# | The second call differs | [an input overwritten](#input-overwritten) | 0.37<!--= off["input-overwritten"] --> | one call |
# | A hook never runs | [`.forward()`](#forward-called-directly) | nothing | no hooks |
# | Slow, much memory | [weights not used](#need-weights-costs) | nothing | short inputs |
# | A file fails to load | [split at every space](#embedding-reader) | fails | other files |
#
# **You should know** [what attention computes](../learn/attention.py) and [why it is scaled](../pytorch/scale.py).
# **You will know** a check for each of these mistakes. The [museum's index](index.py) has the other rooms.

# %% tags=["hide-input"]
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import nn

from unmasked import (
    attention_scores,
    cosine_attention,
    cosine_weights,
    diagnose,
    functional,
    plot,
    self_attention,
)
from unmasked.heads import merge_heads, split_heads
from unmasked.kernels import kernels_of, sdpa_backends
from unmasked_doctor import probes
from unmasked_doctor.museum import ENTRIES, Exhibits, Plate
from unmasked_lessons.embeddings import read_glove, ship_vectors

# batch, queries, keys, heads, head_dim: all differ
B, N, M, H, D = 2, 5, 7, 3, 4
generator = torch.Generator().manual_seed(9)
q, k, v = (
    torch.randn(B, tokens, D, generator=generator) for tokens in (N, M, M)
)
words = "i must go back to my ship and to my crew"
words = words.split()
ship = ship_vectors().lookup(words)  # tokens features


def right(q, k, v):
    return functional.attend(q, k, v).context


def doctor(inputs="qkv", **options):
    """Compares with a reference, where no probe of calls can know it."""

    def probe(f, *given):
        report = diagnose(f, embed_dim=H * D, inputs=inputs, **options)
        if not report.named:
            return None
        return f"{report.causes[0]}: {report.named[0].evidence}"

    return probe


# runs wrong beside right: on what hides the mistake, on q, k, v, and under a
# probe
exhibit = Exhibits(given=[q, k, v], probe=doctor())
off = exhibit.off

# %% [markdown]
# These are the weights that some of the mistakes give the word *ship*, beside the right ones, and their sums.

# %% tags=["hide-input"]
#| alt: A heat map with a column for each version and a row for each word of the sentence. In the right column, ship
#|   keeps about half of its weight and crew has more than any other word. Without the scale, ship keeps everything; with
#|   too large a root, it keeps only a fifth. Over the queries, cosines and dropout do not sum to one.
#| caption: What the word *ship* takes, by {{ len(versions) - 1 }} wrong versions and the right one.
torch.manual_seed(5)
scores = attention_scores(ship, ship)
weights = scores.softmax(-1)
versions = {
    "right": weights,
    "no scale": (scores * 50**0.5).softmax(-1),
    "root of 8 x 50": (scores / 8**0.5).softmax(-1),
    "over queries": scores.softmax(-2),
    "cosines": cosine_weights(ship),
    "after dropout": F.dropout(weights, 0.4),
}
rows = torch.stack([each[6] for each in versions.values()])
totals = rows.sum(-1).tolist()
names = [f"{name}: {total:.2f}" for name, total in zip(versions, totals)]
figure = plot.heatmap(rows.mT, queries=words, keys=names)
figure.axes[0].set(xlabel="version: sum of the weights", ylabel="")
figure

# %% tags=["claims"]
assert 0.45 < rows[0, 6] < 0.6 and rows[0].topk(2).indices.tolist() == [
    6,
    10,
], (
    "In the right column, ship keeps about half of its weight and crew has more than any other word"
)
assert rows[1, 6] > 0.99 and 0.15 < rows[2, 6] < 0.25, (
    "Without the scale, ship keeps everything; with too large a root, it keeps only a fifth"
)

# %% [markdown]
# ## The scale left out { #missing-scale }
#
# Without the division by the root of head_dim, the scores `q @ k.mT` are larger by that root, and the softmax leans
# more to the largest.


# %% tags=["hide-input"]
def unscaled(q, k, v):
    # right: (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
    return (q @ k.mT).softmax(-1) @ v


one_feature = [q[..., :1], k[..., :1], v]
exhibit("missing-scale", unscaled, right, hides=one_feature)

# %% [markdown]
# In the figure, *ship* keeps 100%<!--= rows[1, 6] --> of itself instead of 55%<!--= rows[0, 6] -->. **Hides** with one
# feature, whose root is one. **Fix:** divide by the root of the last axis of
# the query, or let `F.scaled_dot_product_attention` do it.
#
# ## The root of another d { #wrong-d-in-scale }
#
# With several heads, d is the number of features of *one* head. `embed_dim` is too large, and makes the weights too
# even.


# %% tags=["hide-input"]
def attend(x, heads, d):
    split = split_heads(x, heads)
    return merge_heads(self_attention(split, scale=d**-0.5).context)


def of_embed_dim(x, heads=H):
    # right: attend(x, heads, x.size(-1) // heads)
    return attend(x, heads, x.size(-1))


torch.manual_seed(11)
many = torch.randn(8, 100, 64) @ torch.randn(8, 64, 100)  # heads queries keys
spread = {d: (many / d**0.5).std().item() for d in (64, 8 * 64)}
x = torch.randn(B, N, H * D, generator=torch.Generator().manual_seed(10))
by_head = doctor("x", num_heads=H)
exhibit(
    "wrong-d-in-scale",
    of_embed_dim,
    probe=by_head,
    hides=[x, 1],
    given=x,
)

# %% [markdown]
# With the sizes of the original paper, eight heads of 64<!--= min(spread) --> features, the standard deviation of the
# scores is 1.0<!--= spread[64] --> with the right root, and only 0.35<!--= spread[512] --> with the root of
# 512<!--= max(spread) -->. **Hides** with one head. **Caught by** that deviation, too: for random queries and keys of
# variance one it should be one. **Fix:** `q.size(-1)` after the split.
#
# ## A global read inside the function { #global-d-k }
#
# The function works in the notebook in which it was written, because at every call it looks up `d_k` in a cell far
# above.

# %% tags=["hide-input"]
d_k = D


def with_global(q, k, v):
    # right: q @ k.mT / math.sqrt(q.size(-1))
    return (q @ k.mT / math.sqrt(d_k)).softmax(-1) @ v


# another head_dim
wide = [torch.cat([each] * 3, dim=-1) for each in (q, k, v)]
exhibit("global-d-k", with_global, hides=[q, k, v], given=wide)

# %% [markdown]
# **Hides** as long as all sizes are those of that cell. **Caught by** a second call with other sizes. **Fix:** take
# sizes from the arguments.
#
# ## A softmax over the queries { #softmax-over-queries }
#
# The softmax runs along the axis of the queries, perhaps because its number was right before an axis of heads was
# added. Now the columns sum to one, not the rows.


# %% tags=["hide-input"]
def over_queries(q, k, v):
    # right: attention_scores(q, k).softmax(-1)
    return attention_scores(q, k).softmax(-2) @ v


def sums(f, q, k, v):
    identity = torch.eye(k.size(1)).expand(k.size(0), -1, -1)
    # the context is then the weights
    return probes.weights_sum_to_one(f(q, k, identity))


equal = torch.ones(B, N, D)
exhibit("softmax-over-queries", over_queries, probe=sums, hides=[equal] * 3)

# %% [markdown]
# **Hides** where all tokens are equal and there are as many queries as keys. The check needs no access to the weights:
# give it the identity as values. **Fix:** `softmax(-1)`.

# %% tags=["claims"]
assert torch.allclose(
    over_queries(q, k, torch.eye(M).expand(B, M, M)).sum(-2),
    torch.ones(B, M),
    atol=1e-6,
), "Now the columns sum to one"

# %% [markdown]
# ## Weights that do not sum to one { #weights-not-normalized }
#
# Cosines, or exponentials without the division, are used as weights. What comes out is a sum, and no average: of equal
# tokens it grows with their number.


# %% tags=["hide-input"]
def summed(x):
    return cosine_attention(x).context


def averaged(x):
    return self_attention(x).context


lengths = {f.__name__: f(ship)[6].norm().item() for f in (summed, averaged)}
batch = ship[None]
exhibit(
    "weights-not-normalized",
    summed,
    averaged,
    probes.is_no_average,
    hides=batch[:, :1],
    given=batch,
)

# %% [markdown]
# The cosines of *ship* sum to 5.74<!--= cosine_weights(ship)[6].sum() -->. Its vector has the length
# 5.74<!--= ship[6].norm() -->, which the sum turns into 25.1<!--= lengths["summed"] --> and the average into
# 4.68<!--= lengths["averaged"] -->. **Hides**, where cosines are used, with one token. **Caught by** equal tokens,
# whose average is the token itself. **Fix:** a softmax.
#
# ## Cosines with another sentence's norms { #foreign-norms }
#
# The function divides by the norms of a variable from the notebook, not of its argument, and any sentence of the same
# length gives numbers.

# %% tags=["hide-input"]
norms = ship.norm(dim=-1, keepdim=True)
other = ship_vectors().lookup(
    "we must process your order and go back to my crew"
)


def foreign(x):
    unit = x / norms  # right: x / x.norm(dim=-1, keepdim=True)
    return unit @ unit.mT


def is_no_cosine(f, x):
    worst = (f(x).diagonal() - 1).abs().max().item()
    if worst > 1e-5:
        return f"a cosine of {1 + worst:.2f} with itself"
    return None


exhibit(
    "foreign-norms",
    foreign,
    cosine_weights,
    is_no_cosine,
    hides=[ship],
    given=[other],
)

# %% [markdown]
# The largest "cosine" is 1.48<!--= foreign(other).max() -->. **Hides** for the sentence whose norms they are. **Caught
# by** the diagonal, which must be one. **Fix:** `F.normalize` on the argument.
#
# ## Weights returned after dropout { #weights-after-dropout }
#
# In training with dropout, `nn.MultiheadAttention` returns what dropout left: in each head some weights are zero, the
# others larger.

# %% tags=["hide-input"]
torch.manual_seed(12)
module = nn.MultiheadAttention(H * D, H, dropout=0.4, batch_first=True)
_, dropped = module.train()(x, x, x)
_, kept = module.eval()(x, x, x)
off["weights-after-dropout"] = probes.differs(dropped, kept)
found = probes.weights_sum_to_one(dropped)
exhibit.plate("weights-after-dropout", kept, found)

# %% [markdown]
# Here rows sum to between {{ dropped.sum(-1).min() :.2f}} and {{ dropped.sum(-1).max() :.2f}}; in evaluation to
# 1.00<!--= kept.sum(-1).min() -->. This spoils a picture of the weights, but not the training. **Hides** in evaluation.
# **Fix:** look at weights after `module.eval()`, or return those from before the dropout.
#
# ## Dropout in evaluation { #dropout-in-eval }
#
# `F.scaled_dot_product_attention` does not know the module's mode, so `dropout_p` is always applied. Nor does
# `F.dropout(x, p)` know it: its `training` is True<!--= F.dropout.__defaults__[1] --> unless you say otherwise.

# %% tags=["hide-input"]
torch.manual_seed(13)


def always(q, k, v, p):
    # right: dropout_p=p if training else 0.0
    return F.scaled_dot_product_attention(q, k, v, dropout_p=p)


def in_training(q, k, v, p, training=False):
    return always(q, k, v, p if training else 0.0)


def varies(f, q, k, v, p):
    return probes.changes_from_call_to_call(lambda q: f(q, k, v, p), q)


exhibit(
    "dropout-in-eval",
    always,
    in_training,
    varies,
    hides=[q, k, v, 0.0],
    given=[q, k, v, 0.2],
)

# %% [markdown]
# **Hides** with a dropout of zero, and in every test that compares shapes. **Fix:** in a module,
# `self.dropout if self.training else 0.0`<!--~ code -->.
#
# ## A gradient cut off { #gradient-cut }
#
# Somewhere on the way there is a `.detach()`, `.data`, `torch.tensor(x)` or `no_grad`. Every output is right, so no
# comparison of outputs notices, but what lies before the cut, here queries and keys, does not learn through it.


# %% tags=["hide-input"]
def cut(x):
    scores = attention_scores(x, x)
    return scores.softmax(-1).detach() @ x  # right: scores.softmax(-1) @ x


def slope(f):
    leaf = x.double().requires_grad_()
    return torch.autograd.grad(f(leaf).square().sum(), leaf)[0]


off["gradient-cut"] = probes.differs(cut(x), averaged(x))
gap, size = probes.differs(slope(cut), slope(averaged)), slope(averaged).abs()
found = str(probes.cuts_gradients(cut, x.double()))
Plate(ENTRIES["gradient-cut"], gap, size.max().item(), found)

# %% [markdown]
# The gradient is off by 2.61<!--= gap -->. **Hides** in every forward pass. **Caught by** a measured
# derivative: move the input a little, and compare. **Fix:** leave the graph alone; detach what you plot, not what you
# use.

# %% tags=["claims"]
assert off["gradient-cut"] == 0, "a gradient cut off nothing no training"

# %% [markdown]
# ## An input overwritten in place { #input-overwritten }
#
# `q /= ...`, or `scores.masked_fill_(...)` on scores that were passed in, changes something that belongs to the caller.


# %% tags=["hide-input"]
def in_place(q, k, v):
    q /= math.sqrt(q.size(-1))  # right: q = q / math.sqrt(q.size(-1))
    return (q @ k.mT).softmax(-1) @ v


mine = q.clone()
first, second = (
    probes.differs(in_place(mine, k, v), right(q, k, v)) for _ in range(2)
)
off["input-overwritten"] = second
found = probes.overwrites_inputs(in_place, q, k, v)
exhibit.plate("input-overwritten", right(q, k, v), found)

# %% [markdown]
# **Hides** in the first call. The second is off by 0.37<!--= off["input-overwritten"] -->. **Fix:** no in-place
# operation on an argument, nor on a view of it.

# %% tags=["claims"]
assert first == 0, "Hides in the first call"

# %% [markdown]
# ## `.forward()` called directly { #forward-called-directly }
#
# `module.forward(x)` skips the hooks that are registered on the module: such hooks record weights, profile, or
# distribute a model over devices.


# %% tags=["hide-input"]
class Direct(nn.Sequential):
    def forward(self, x):
        return self[0].forward(x)  # right: self[0](x)


torch.manual_seed(14)
direct = Direct(nn.Linear(H * D, H * D))
called = nn.Sequential(direct[0])
records = []
direct[0].register_forward_hook(lambda *_: records.append("ran"))
apart = probes.differs(direct(x), called(x))
times = len(records)
found = probes.skips_hooks(direct, lambda: direct(x))
Plate(ENTRIES["forward-called-directly"], found=str(found))

# %% [markdown]
# Two calls were made, and the hook ran once. The outputs are equal. **Hides** while there are no hooks. **Fix:** call
# the module.

# %% tags=["claims"]
assert apart == 0, "A hook never runs .forward() nothing no hooks"
assert times == 1, "Two calls were made, and the hook ran once"
assert apart == 0, "The outputs are equal. Hides while there are no hooks"

# %% [markdown]
# ## Weights asked for and not used { #need-weights-costs }
#
# `output, _ = module(x, x, x)`: `need_weights` is True<!--= module.forward.__defaults__[1] --> by default. To return
# the weights, the module has to make them, so it cannot use `F.scaled_dot_product_attention`, whose fused kernels make
# none.

# %% tags=["hide-input"]
module.eval()
apart = probes.differs(
    *(module(x, x, x, need_weights=need)[0] for need in (True, False))
)
ran = [
    kernels_of(module, x, x, x, need_weights=need).names
    for need in (True, False)
]
heads = split_heads(x, H)
fused = [
    sdpa_backends(heads, heads, heads, dropout_p=p)[0].why_not == ""
    for p in (0.0, 0.4)
]
with torch.device("meta"):  # shapes without memory
    long = torch.empty(1, 8192, 64)
    large = nn.MultiheadAttention(64, 4, batch_first=True)
    _, all_heads = large(long, long, long, average_attn_weights=False)
Plate(ENTRIES["need-weights-costs"])

# %% [markdown]
# The outputs are equal, but the function is called only without weights. (With dropout it is called, but has no fused
# kernel on a CPU, so it makes the weights after all.) For one sequence of 8,192<!--= long.size(1) --> tokens and
# four<!--= all_heads.size(1) --> heads, the weights alone take 1<!--= all_heads.nbytes / 2**30 --> GiB. **Hides** with
# short inputs. **Caught by** watching which function is called, as here. **Fix:**
# `output, _ = module(x, x, x, need_weights=False)`.

# %% tags=["claims"]
assert apart == 0, "weights not used nothing short inputs"
assert apart == 0 and ran == [("softmax",), ("flash",)], (
    "The outputs are equal, but the function is called only without weights"
)
assert fused == [True, False], "but has no fused kernel on a CPU"

# %% [markdown]
# ## An embedding file split at every space { #embedding-reader }
#
# GloVe's format has a word and its numbers on every line, but in some published files there are words with spaces.


# %% tags=["hide-input"]
def split_everywhere(path):
    vectors = {}
    for line in path.read_text().splitlines():
        word, *numbers = line.split()  # right: line.rsplit(" ", dim)
        vectors[word] = torch.tensor([float(number) for number in numbers])
    return vectors


with TemporaryDirectory() as folder:
    path = Path(folder, "vectors.txt")
    path.write_text("ship 0.5 1.5\ncrew 2.5 3.5\n")
    ours, theirs = read_glove(path), split_everywhere(path)
    hides = all(theirs[word].equal(ours[word]) for word in theirs)
    path.write_text("ship 0.5 1.5\n. . . 2.5 3.5\n")
    whole = read_glove(path)[". . ."].tolist() == [2.5, 3.5]
    try:
        split_everywhere(path)
    except ValueError as error:
        failure = str(error)
    else:
        raise AssertionError("no error")
Plate(ENTRIES["embedding-reader"], found=failure)

# %% tags=["check"]
#| raises: UnknownWordError: nearest: 'ship'
ours["shop"]

# %% [markdown]
# The reader fails at a word of dots and spaces. (When a word is missing, a dictionary's error names only that word;
# `read_glove` names the nearest ones.) **Hides** with files without such words. **Fix:** split from the right, as many
# times as there are numbers, or `unmasked_lessons.embeddings.read_glove`.

# %% tags=["claims"]
assert failure, "split at every space fails other files"
assert "'.'" in failure, "The reader fails at a word of dots and spaces"
assert hides, "Hides with files without such words"
assert whole, (
    "as many times as there are numbers, or unmasked_lessons.embeddings.read_glove"
)

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("mended-attention", answer))`.
#
# **Mend this function** (`mended-attention`). It has four mistakes of this page. Write it anew as
# `attend(query, key, value, dropout, training)`, which returns the context, and weights whose rows sum to one even in
# training.


# %%
def broken(query, key, value, dropout, training):
    query /= math.sqrt(512)
    weights = (query @ key.mT).softmax(-2)
    return F.dropout(weights, dropout) @ value, weights


# %% [markdown]
# ??? question "Hint"
#
#     There is one mistake in each step: the division, the root, the softmax, the dropout.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def mended(query, key, value, dropout, training):
    scores = query @ key.mT / math.sqrt(query.size(-1))
    weights = scores.softmax(-1)
    return F.dropout(weights, dropout, training) @ value, weights


planted = [
    "in-place division",
    "root of another d",
    "softmax over queries",
    "dropout in evaluation",
]
assert not check("mended-attention", broken)
check("mended-attention", mended)

# %% [markdown]
# **Are these weights?** (`are-weights`) Write `are_weights(w)` for w of (..., queries, keys), which says whether every
# row has the weights of an average, or all zeros for a query that may see nothing.
#
# ??? question "Hint"
#
#     Ask three questions of each row: is it finite, is nothing negative, and what is its sum, up to rounding?


# %% tags=["solution"]
def are_weights(w):
    total = w.sum(-1)
    fits = torch.isclose(total, torch.ones_like(total), atol=1e-4) | (
        w == 0
    ).all(-1)
    return bool(fits.all() and (w >= 0).all())


check("are-weights", are_weights)

# %% [markdown]
# ## What to read next
#
# - The museum's other rooms: [heads](heads.py), [masks](masks.py), [learned weights](weights.py).
# - [Why divide by the square root?](../pytorch/scale.py): what a wrong scale does to learning.
# - [The doctor](../doctor.py) asks your module most of this page's questions.
#
# ## References
#
# <!--~ 2017, 3.2.1, 1, 4, 3.2.2, 64, 2014, 2.13: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.1, equation 1, and footnote 4 for the scale; section
#   3.2.2 for eight heads of 64 features.
# - Srivastava et al. (2014), *Dropout: A Simple Way to Prevent Neural Networks from Overfitting*: section 4.
# - PyTorch 2.13, documentation of `scaled_dot_product_attention` (`dropout_p`) and `MultiheadAttention`
#   (`need_weights`).
# - Pennington, Socher and Manning (2014), *GloVe*, for the format of the vectors.
