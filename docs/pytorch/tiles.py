# %% [markdown]
# # Why is no N x N matrix needed? Online softmax
#
# **Because a softmax can be computed a few keys at a time: keep the largest score so far, and shrink the sums when a
# larger score comes.** What is kept does not grow with the number of keys. This is the trick inside FlashAttention,
# PyTorch's fused kernels, and rings of devices.

# %% tags=["imports"]
import torch
import torch.nn.functional as F

from unmasked import masks, plot
from unmasked.tiles import merge, tiled_attention
from unmasked_lessons.experiments import tiles as experiments
from unmasked_lessons.figures import tiles as figures

torch.set_num_threads(1)  # a fused kernel has a buffer for each thread

# %% tags=["hide-input"]
#| alt: Bars over nine keys, of which the first three have none. A dashed line, the largest score so far, rises like
#|   stairs.
#| caption: The scores of one query, in tiles of three; the dashed line is the largest score so far. The query may not
#|   see the first tile, as under a sliding window. Choose a size and move the tile: the average comes out the same each
#|   time.
#| script: ../../src/unmasked_lessons/figures/tiles.js
#| data: {"scores": row, "hidden": hidden, "values": values[:, 0], "sizes": [1, 3, 9]}
row = torch.tensor([0.6, 2.2, -0.7, -0.4, 1.1, 0.5, 2.4, -1.2, 1.3])
values = torch.tensor([[9, 5, 7, 4, -2, 1, 3, -1, 2.0]]).T / 2
hidden = torch.arange(9) < 3
scores = row.masked_fill(hidden, -torch.inf)[None]
largest = scores[0].cummax(0).values
figures.stairs(scores[0], largest, tile=3)

# %% [markdown]
# **You should know** [what attention computes](../learn/attention.py). **You will know** the rule and why it is exact,
# how much memory it saves, how a careless version makes NaN, and how parts of the keys are merged.

# %% [markdown]
# ## The rule


# %% tags=["check"]
def after_each_key(s, v):
    """The largest score, the sum and the average after each key, by the package."""
    one = torch.ones(1, 1, dtype=s.dtype)
    parts = [
        tiled_attention(one, s[:t, None], v[:t], scale=1.0, tile=1)
        for t in range(1, len(s) + 1)
    ]
    largest = s.cummax(0).values
    total = torch.stack([part.logsumexp[0] for part in parts]) - largest
    return largest, total.exp(), torch.stack([p.context[0] for p in parts])


# what each key makes of the sum before it: all but its own exponential
m, ell, _ = after_each_key(row[3:], values[3:])
factors = (ell[1:] - (row[4:] - m[1:]).exp()) / ell[:-1]
shrinks, grew = (factors < 0.999).tolist(), (m[1:] > m[:-1]).tolist()
where_it_stays = factors[m[1:] == m[:-1]]

one = torch.ones(1, 1)
options = {"allowed": ~hidden, "scale": 1.0}
averages = [
    tiled_attention(one, row[:, None], values, tile=size, **options).context
    for size in (1, 3, 9)
]

# %% [markdown]
# A softmax divides exponentials by their sum. Both may be multiplied by the same number. So every exponential can be
# measured from the largest score, which keeps it at one or below. Take the scores of one query in turn. Let $m_t$ be
# the largest of the first $t$ scores, $\ell_t$ the sum of their exponentials, measured from $m_t$, and $o_t$ the
# average of their values. When the next score comes, the sums so far are multiplied by one number, and the new
# exponential is added:
#
# $$\begin{aligned} m_t &= \max(m_{t-1}, s_t) \\ \ell_t &= \ell_{t-1} \, e^{m_{t-1} - m_t} + e^{s_t - m_t} \\ o_t &=
# \frac{\ell_{t-1} \, e^{m_{t-1} - m_t} \, o_{t-1} + e^{s_t - m_t} \, v_t}{\ell_t} \end{aligned} \tag{10.1}$$
# <!-- where: s = random("n", "11")[1]; v = random("11 c"); m, ell, o = after_each_key(s, v) -->
#
# If the largest score stays the same, that number is one. If it grows, the number is below one, and the sums become
# what they would be if everything had been measured from the new score. After the last key the average is that of the
# softmax over the whole row.

# %% tags=["claims"]
assert shrinks == grew and True in grew, (
    "keep the largest score so far, and shrink the sums when a larger score comes"
)
assert scores[0].isinf().tolist() == 3 * [True] + 6 * [False], (
    "Bars over nine keys, of which the first three have none"
)
assert (largest[4:] >= largest[3:-1]).all() and 1 < len(
    largest[3:].unique()
) < 6, "the largest score so far, rises like stairs"
assert all(largest[t] == scores[0, : t + 1].max() for t in range(9)), (
    "the dashed line is the largest score so far"
)  # to the bit: it is one of them
assert all(
    torch.allclose(each, averages[0], atol=1e-5) for each in averages
), "Choose a size and move the tile: the average comes out the same each time"
assert (where_it_stays - 1).abs().max() < 1e-5 and shrinks == grew, (
    "If the largest score stays the same, that number is one. If it grows, the number is below one"
)
assert torch.allclose(averages[0], scores.softmax(-1) @ values, atol=1e-5), (
    "After the last key the average is that of the softmax over the whole row"
)

# %% [markdown]
# ## What it saves
#
# Attention by the formula makes a table of scores and one of weights, with a number for each query and each key. There,
# twice the tokens take four times the memory; by tiles, they take twice the memory:

# %% tags=["hide-input"]
#| caption: The most memory that one call takes at any moment, the result included, for two heads of
#|   32<!--= q.size(-1) --> features. PyTorch's fused kernel takes least.
torch.manual_seed(1)
q, k, v = torch.randn(3, 1, 2, 2048, 32)
sizes = [256, 512, 1024, 2048]
by_tokens = experiments.memory(q, k, v, sizes)
whole, by_tiles, fused = by_tokens.values()
plot.table(
    ["", *(f"{tokens:,} tokens" for tokens in sizes)],
    by_tokens,
    "{:.1f} MiB",
)

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ q.device.type.upper() }}.*
#
# The fused kernel cuts the queries into tiles, too. On a GPU the tables would also cost time, because each is written
# to slow memory and read again. A kernel keeps a tile of queries and keys in fast memory, and writes each context once.
# `tiled_attention` is there to be read: its loop is in Python, and depending on the sizes it takes up to several times
# as long as the fused kernel.
#
# Between tile sizes only the rounding differs. These are the largest errors, where contexts are about one in size:

# %%
torch.manual_seed(2)
q, k, v = torch.randn(3, 2, 64, 8)
exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
errors = {}
for tile in (1, 7, 16, 64):
    context, _ = tiled_attention(q, k, v, tile=tile)
    errors[tile] = (context - exact).abs().max().item()
    print(f"tiles of {tile}: {errors[tile]:.0e}")

# %% tags=["claims"]
assert max(errors.values()) < 1e-5, (
    "Because a softmax can be computed a few keys at a time"
)
assert 3.6 < whole[-1] / whole[-2] < 4.4, (
    "twice the tokens take four times the memory"
)
assert 1.8 < by_tiles[-1] / by_tiles[-2] < 2.2, (
    "by tiles, they take twice the memory"
)
assert (
    min(fused[-1], by_tiles[-1]) > q.new_empty(2, 2048, 32).nbytes / 2**20
), "The most memory that one call takes at any moment, the result included"
assert fused[-1] < by_tiles[-1] < whole[-1], (
    "PyTorch's fused kernel takes least"
)

# %% [markdown]
# ## The trap: a tile that shows nothing
#
# This is the rule as it is usually written down. It agrees with PyTorch for every tile size, until there is a mask:


# %%
def online(q, k, v, allowed, tile):
    largest, total, summed = torch.tensor(-torch.inf), 0, 0
    for start in range(0, k.size(-2), tile):
        part = slice(start, start + tile)
        scores = q @ k[..., part, :].mT / q.size(-1) ** 0.5
        scores = scores.masked_fill(~allowed[..., part], -torch.inf)
        new = torch.maximum(largest, scores.amax(-1, keepdim=True))
        powers, shrink = (scores - new).exp(), (largest - new).exp()
        total = total * shrink + powers.sum(-1, keepdim=True)
        summed = summed * shrink + powers @ v[..., part, :]
        largest = new
    return summed / total


# %%
window = masks.sliding_window(64, window=8)  # each query sees eight keys
expected = F.scaled_dot_product_attention(q, k, v, attn_mask=window)
broken = online(q, k, v, window, tile=1)
broken_rows = broken[0].isnan().any(-1).sum().item()
print(f"{broken_rows} of {len(broken[0])} queries are NaN")

# %% [markdown]
# A window hides the first key from most queries. For these the largest score is still minus infinity after the first
# tile, and minus infinity less minus infinity is a NaN, which stays. The queries that see the first key,
# 8<!--= 64 - broken_rows --> of them, are right, and so is every test without a mask. The fix is one line: measure from
# zero as long as nothing has been seen.

# %%
new = torch.tensor([[-torch.inf], [0.3]])  # of two queries
new.masked_fill(new == -torch.inf, 0.0)  # subtract this instead

# %% [markdown]
# The package does so, agrees with PyTorch here, and gives zeros to a query that may see nothing at all. So does
# PyTorch's function on a CPU. On a GPU, what it gives [when a row allows nothing](masks.py#when-a-row-allows-nothing)
# depends on the kernel. Put this into your own tests, with the tile size of your code:

# %%
mended, _ = tiled_attention(q, k, v, allowed=window, tile=1)
torch.testing.assert_close(mended, expected)

# %% tags=["check"]
whole = F.scaled_dot_product_attention(q, k, v)
nothing = torch.zeros(64, 64, dtype=torch.bool)
blind, _ = tiled_attention(q, k, v, allowed=nothing)

# %% tags=["claims"]
assert all(
    torch.allclose(online(q, k, v, ~nothing, tile), whole, atol=1e-5)
    for tile in errors
), "It agrees with PyTorch for every tile size, until there is a mask"
assert torch.allclose(broken[:, :8], expected[:, :8], atol=1e-5), (
    "The queries that see the first key, 8 of them, are right"
)
assert torch.allclose(mended, expected, atol=1e-5) and not blind.any(), (
    "agrees with PyTorch here, and gives zeros to a query that may see nothing at all"
)
assert not F.scaled_dot_product_attention(q, k, v, attn_mask=nothing).any(), (
    "So does PyTorch's function on a CPU"
)

# %% [markdown]
# ## Merging parts


# %% tags=["check"]
def merged(o_1, l_1, o_2, l_2):
    parts = [
        (each[None], torch.tensor([log], dtype=each.dtype))
        for each, log in ((o_1, l_1), (o_2, l_2))
    ]
    context, logsumexp = merge(parts)
    return context[0], logsumexp[0].item()


# %% [markdown]
# The tiles need not come one after the other. Two devices, or two blocks of a GPU, can divide the keys. Each of them
# returns the average over its own keys, $o_p$<!-- unchecked: a name -->, and the logarithm of its sum of exponentials,
# the *log-sum-exp* $l_p$<!-- unchecked: a name -->. A part counts as much as its share in the whole sum:
#
# $$o = e^{l_1 - l} \, o_1 + e^{l_2 - l} \, o_2, \qquad l = \ln \left(e^{l_1} + e^{l_2}\right) \tag{10.2}$$
# <!-- where: o_1, o_2 = random("c", "c"); l_1, l_2 = random("", ""); o, l = merged(o_1, l_1, o_2, l_2) -->

# %%
halves = [
    tiled_attention(q, k[:, part], v[:, part])
    for part in (slice(0, 32), slice(32, 64))
]
merged_context = merge(halves).context
mean = (halves[0].context + halves[1].context) / 2


# %% tags=["check"]
off_merged, off_mean = (
    (each - whole).abs().max().item() for each in (merged_context, mean)
)
pytorchs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_, their_logsumexp = pytorchs(q[None], k[None], v[None])

# %% [markdown]
# Merged in this way, two halves give the whole. Their plain mean is off by {{ off_mean :.2f}}, because it counts both
# parts alike, whatever their sums of exponentials are. [Ring attention](parallel.py) sends keys around a ring of
# devices and merges what comes; decoding with a long cache on a GPU cuts the cache into parts that run at the same
# time. The log-sum-exp is also what PyTorch's fused kernels keep [for the backward
# pass](backward.py#backward-without-the-whole-matrix); the package's equals it.

# %% tags=["claims"]
assert off_merged < 1e-5, "Merged in this way, two halves give the whole"
assert off_mean > 1000 * off_merged, (
    "it counts both parts alike, whatever their sums of exponentials are"
)
assert torch.allclose(
    merge(halves).logsumexp, their_logsumexp[0], atol=1e-5
), "the package's equals it"

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("running-softmax", answer))`.
#
# **A running softmax** (`running-softmax`). Write a function of a row of scores, given as a list of tiles, each of them
# a list of numbers. It returns the largest score and the sum of the exponentials measured from it, and looks at each
# tile once. Scores may be minus infinity, or 800<!--~ a score of the exercise -->.
#
# ??? question "Hint"
#
#     What is the sum after a tile that is minus infinity throughout?

# %% tags=["solution"]
import math

from unmasked_lessons.exercises import check


def running(row):
    largest, total = -math.inf, 0.0
    for tile in row:
        new = max(largest, *tile)
        if new > -math.inf:
            total *= math.exp(largest - new)
            total += sum(math.exp(score - new) for score in tile)
        largest = new
    return largest, total


feedback = check("running-softmax", running)
assert feedback
feedback

# %% [markdown]
# **Two parts** (`merge-parts`). Write a function of `context_1, logsumexp_1, context_2, logsumexp_2` that returns the
# context of both parts. Scores of several hundred must not make it infinite.
#
# ??? question "Hint"
#
#     `torch.logaddexp` adds two sums of exponentials that are given by their logarithms.


# %% tags=["solution"]
def merge_two(context_1, logsumexp_1, context_2, logsumexp_2):
    both = torch.logaddexp(logsumexp_1, logsumexp_2)
    first, second = (logsumexp_1 - both).exp(), (logsumexp_2 - both).exp()
    return first[..., None] * context_1 + second[..., None] * context_2


feedback = check("merge-parts", merge_two)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [Which kernel ran, and what did it cost?](kernels.py) When PyTorch leaves the fused kernel, and how to notice.
# - [What does the backward pass of attention compute?](backward.py) The same tiles, in the other direction.
# - [What does each interface make of my mask?](masks.py) Rows that may see nothing, in all of PyTorch's interfaces.
#
# ## References
#
# <!--~ 2018, 3, 2022, 1, 3.1: references -->
# - Milakov and Gimelshein (2018), *Online Normalizer Calculation for Softmax*: algorithm 3, the running maximum and
#   sum.
# - Dao et al. (2022), *FlashAttention*: algorithm 1, and section 3.1 for a softmax in two parts.
