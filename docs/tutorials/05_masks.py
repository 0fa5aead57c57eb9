# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Who may see whom? Masks
#
# **A mask is a table with a row for each query and a column for each key. In this site's masks, `True` says that the
# query may see the key.** What it may not see gets a score of minus infinity before the softmax, and so a weight of
# exactly zero<!--== bool((weights[~both.expand_as(weights)] == 0).all()) -->. PyTorch's own interfaces disagree about
# `True`:
#
# | Given this boolean mask | `True` means |
# | --- | --- |
# | `F.scaled_dot_product_attention(attn_mask=...)` | may attend<!--== means[0] == "may attend" --> |
# | `nn.MultiheadAttention(attn_mask=...)` | may **not** attend<!--== means[1] == "may not attend" --> |
# | `nn.MultiheadAttention(key_padding_mask=...)` | may **not** attend<!--== means[2] == "may not attend" --> |
# | `nn.TransformerEncoderLayer(src_mask=...)` | may **not** attend<!--== means[3] == "may not attend" --> |
# | `unmasked`, `allowed=...` | may attend<!--== means[4] == "may attend" --> |
#
# The wrong one raises no error, and every number stays finite for most tokens. This page computes that table.
#
# **You should know** [what attention computes](01_what_is_attention.py): scores, a softmax, an average of values.
# **You will know** the masks for causality and for padding and how to combine them, what each interface of PyTorch does
# with yours, and a test that finds a wrong mask in any module.

# %%

import torch
import torch.nn.functional as F
from torch import nn

from unmasked import attention_scores, attention_weights, masks, plot, self_attention
from unmasked._table import Table
from unmasked.embeddings import ship_vectors, table

sentences = ["I must go back to my ship and to my crew", "We process and ship your order"]
words = [sentence.lower().split() for sentence in sentences]
lengths = torch.tensor([len(each) for each in words])
lengths

# %% [markdown]
# ## Two sentences in one batch: padding
#
# A tensor has one length. The sentences have 11<!--= lengths[0] --> and 6<!--= lengths[1] --> words, so the shorter one
# is *padded* with rows that mean nothing. To make sure that nobody looks at them, here they are filled with a number
# that would be noticed:

# %%
x = torch.full((2, 11, 50), 1000.0)  # batch tokens features
for row, sentence in zip(x, words, strict=True):
    row[: len(sentence)] = ship_vectors().lookup(sentence)

padding = masks.padding(lengths)  # batch 1 keys, to be broadcast
padding = padding[:, 0]
padding.int()

# %% [markdown]
# The mask has one axis of length one, for the queries: whoever asks, the padding may not be seen. With it, the words of
# the short sentence get the context that they get when they are alone:

# %%
padded = self_attention(x, allowed=padding)
for context, sentence in zip(padded.context, words, strict=True):
    alone = self_attention(ship_vectors().lookup(sentence)).context
    torch.testing.assert_close(context[: len(sentence)], alone)

exposed = self_attention(x)
worst = (exposed.context - padded.context)[1, :6].abs().max()
f"without the mask, off by {worst:.0f}"

# %% [markdown]
# Rows of padding still get some output. Nobody should use it: leave it out of the loss and of every average.
#
# ## No looking ahead: the causal mask
#
# A model that predicts the next word must not see it. The *causal* mask allows each token itself and what stands before
# it. Who must obey both masks obeys their conjunction:

# %%
causal = masks.causal(11)  # queries keys
both = causal & padding  # batch queries keys

# %% tags=["hide-input"]
#| alt: Three masks side by side, a row for each query and a column for each key. The causal one is a staircase; the
#|   padding one shuts out the last five columns in every row; both together are a staircase that ends at the sixth
#|   column.
plot.mask({"causal": causal, "padding of the second": padding[1].expand(11, 11), "both": both[1]})

# %% [markdown]
# Every row still allows something<!--= bool(both.any(-1).all()) -->, since each token may see the first. With these
# weights, *ship* in the first sentence no longer takes anything from *crew*, which comes later:

# %%
weights = self_attention(x, allowed=both).weights
ship, crew = words[0].index("ship"), words[0].index("crew")
assert weights[0, ship, crew] == 0
table(weights[0], words[0])

# %% [markdown]
# The first token sees only itself, with a weight of 1.00<!--= weights[0, 0, 0] -->. *ship* keeps
# 73%<!--= weights[0, ship, ship] --> of itself; without the mask it kept 55%<!--= padded.weights[0, ship, ship] -->.
#
# ## Before the softmax, not after
#
# Let $a_{ij}$ be one where query $i$ may see key $j$, and zero elsewhere. Masking means to leave what is not allowed
# out of the sum:
#
# $$w_{ij} = \frac{a_{ij} \, e^{s_{ij}}}{\sum_k a_{ik} \, e^{s_{ik}}}$$
# <!-- where: s = random("n n"); a = masks.causal(n).double(); w = attention_weights(s, allowed=masks.causal(n)) -->
#
# A score of minus infinity does that, since the exponential of minus infinity is zero: `masked_fill` and a softmax are
# all it takes, and the package agrees.


# %%
def masked_softmax(scores, allowed):
    return scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1)


scores = attention_scores(x[0], x[0])
torch.testing.assert_close(masked_softmax(scores, causal), attention_weights(scores, allowed=causal))

late = scores.softmax(dim=-1) * causal  # masked after the softmax
sums = late.sum(dim=-1)
f"rows sum to {sums.min():.2g} up to {sums.max():.2g}"

# %% [markdown]
# Setting weights to zero *after* the softmax gives every row another sum, less than one for all but the
# last<!--= bool((sums[:-1] < 1).all() and torch.allclose(sums[-1], torch.tensor(1.0))) -->. And the later tokens still
# count: they are in each row's denominator, so a change of the last word moves what the first one gets.
#
# ## Nothing leaks
#
# That is the test for a causal mask, of any module: change a later token, and compare what the earlier ones get, bit
# for bit.


# %%
def leaks(f, x, position):
    changed = x.clone()
    changed[:, position:] = torch.flip(changed[:, position:], [-1])  # other numbers for all later tokens
    return not torch.equal(f(x)[:, :position], f(changed)[:, :position])


def right(x):
    return self_attention(x, is_causal=True, implementation="eager").context


def masked_late(x):
    return attention_scores(x, x).softmax(-1).tril() @ x


x = x[:1]  # the longer sentence
assert not any(leaks(right, x, position) for position in range(1, 11))
leaks(masked_late, x, ship)

# %% [markdown]
# ## What each interface makes of `True`
#
# Give each the same boolean mask, `True` on the diagonal and below, and see whether the first token takes anything from
# the last:

# %%
torch.manual_seed(5)
y = torch.randn(2, 3, 8)  # batch tokens features
lower = masks.causal(3)
module = nn.MultiheadAttention(8, 4, batch_first=True)
layer = nn.TransformerEncoderLayer(8, 4, dim_feedforward=16, dropout=0.0, batch_first=True)
first = torch.tensor([[True, False, False]] * 2)  # for a mask of keys: True for the first alone

calls = {
    "F.scaled_dot_product_attention, attn_mask": lambda y: F.scaled_dot_product_attention(y, y, y, attn_mask=lower),
    "nn.MultiheadAttention, attn_mask": lambda y: module(y, y, y, attn_mask=lower)[0],
    "nn.MultiheadAttention, key_padding_mask": lambda y: module(y, y, y, key_padding_mask=first)[0],
    "nn.TransformerEncoderLayer, src_mask": lambda y: layer(y, src_mask=lower),
    "unmasked.self_attention, allowed": lambda y: self_attention(y, allowed=lower).context,
}


def meaning(call):
    changed = y.clone()
    changed[:, 2] += 1  # the last token, which the mask says False of, for the first query
    moved = not torch.equal(call(y)[:, 0], call(changed)[:, 0])
    return "may not attend" if moved else "may attend"


means = [meaning(call) for call in calls.values()]
Table(["Interface and argument", "True means"], list(zip(calls, means, strict=True)))

# %% [markdown]
# Turn one into the other with `~`, or with `masks.blocked_from_allowed`, which also brings it into the shape that
# `nn.MultiheadAttention` wants. A floating mask has one meaning everywhere: it is *added* to the scores. So a mask of
# zeros and ones shuts out nothing. It adds one to a score, which multiplies its share by 2.72<!--= math.e -->:

# %%
added = (scores[0] + lower.float().new_tensor([1.0] + [0.0] * 10)).softmax(-1)
plain = scores[0].softmax(-1)
share = added[0] / (1 - added[0]) / (plain[0] / (1 - plain[0]))
assert bool((added > 0).all())

try:
    torch.zeros(1).half().masked_fill(torch.tensor([True]), -1e9)
    overflows = False
except RuntimeError as error:
    overflows = "overflow" in str(error)
share

# %% [markdown]
# Nor is $-10^9$<!--~ a constant that many use --> a safe stand-in for minus infinity: float16 ends at
# 65,504<!--= torch.finfo(torch.float16).max -->, so that `masked_fill` fails there<!--= overflows -->.
#
# ## When a row allows nothing
#
# A query that may see nothing has no weights: zero divided by zero. Each interface answers in its own way.

# %%
nothing = torch.tensor([[False, False, False], [True, True, False], [True, True, True]])  # True = may attend
rows = []
with torch.no_grad():
    output = F.scaled_dot_product_attention(y, y, y, attn_mask=nothing)
    rows.append(("F.scaled_dot_product_attention", output[0, 0]))
    for need_weights in (True, False):
        output, _ = module.train()(y, y, y, attn_mask=~nothing, need_weights=need_weights)
        rows.append((f"nn.MultiheadAttention, need_weights={need_weights}", output[0, 0] - module.out_proj.bias))
    rows.append(("unmasked.self_attention", self_attention(y, allowed=nothing).context[0, 0]))

answers = ["NaN" if bool(row.isnan().all()) else "zeros" if not row.any() else "numbers" for _, row in rows]
Table(["Interface", "Context of the first query"], [(name, a) for (name, _), a in zip(rows, answers, strict=True)])

# %% [markdown]
# Here `nn.MultiheadAttention` gives NaN<!--= answers[1] --> where weights are asked for and zeros<!--= answers[2] -->
# where they are not. The package gives zeros<!--= answers[3] --> always. The [museum's table](09_masks.py) has all
# modes. Rows of nothing come from left padding under a causal mask and from empty sequences: look for them before you
# train, since one NaN reaches every gradient.
#
# ## More keys than queries
#
# With a cache of earlier keys, two new queries look at five keys. They are the *last* two tokens, so the mask has to be
# aligned at the bottom right:

# %%
aligned = masks.causal(2, 5)
top_left = torch.ones(2, 5, dtype=torch.bool).tril()

# %% tags=["hide-input"]
#| alt: Two masks of two queries and five keys. Aligned at the bottom right, the queries see four and five keys; aligned
#|   at the top left, one and two.
plot.mask({"bottom right": aligned, "top left": top_left})

# %% [markdown]
# Aligned at the top left the newest query sees only two<!--= top_left[-1].sum() --> keys, the oldest. That is what
# `is_causal=True` means to PyTorch's function; the package aligns at the bottom right.

# %%
q, kv = torch.randn(1, 2, 4, generator=torch.Generator().manual_seed(6)), y.flatten()[:20].view(1, 5, 4)
theirs = F.scaled_dot_product_attention(q, kv, kv, is_causal=True)
torch.testing.assert_close(theirs, masked_softmax(attention_scores(q, kv), top_left) @ kv)

# %% [markdown]
# ## A mask that looks right
#
# Here is a causal module as many write it, with a mask for `nn.MultiheadAttention`, then moved to the function with the
# mask that it had. Shapes, dtypes and the sums of the rows are right:

# %%
blocked = torch.ones(11, 11, dtype=torch.bool).triu(1)  # True = may not attend, for the module


def moved_to_the_function(x):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=blocked)


def mended(x):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=~blocked)


assert moved_to_the_function(x).isfinite().all()
leaks(moved_to_the_function, x, ship), leaks(mended, x, ship)

# %% [markdown]
# The first is wrong<!--= leaks(moved_to_the_function, x, ship) -->: every token sees the future alone. The second does
# not leak<!--= not leaks(mended, x, ship) -->. A training loss would not tell: it falls faster, since the answer is in
# the input.
#
# ## Exercises
#
# **The causal mask.** Write a function that takes a number of tokens and returns the mask, `True` for *may attend*.
#
# ??? question "Hint"
#
#     Compare a column of positions with a row of positions.

# %% tags=["solution"]
from unmasked.exercises import check


def causal_mask(tokens):
    position = torch.arange(tokens)
    return position[:, None] >= position


check("causal-mask", causal_mask)

# %% [markdown]
# **The padding mask.** Write a function of `lengths` and `keys` that returns the mask for a batch, shaped so that it
# broadcasts over scores of shape (batch, heads, queries, keys).
#
# ??? question "Hint"
#
#     Compare each key's position with each sequence's length, then make room for two axes.


# %% tags=["solution"]
def padding_mask(lengths, keys):
    return (torch.arange(keys) < lengths[:, None])[:, None, None]


check("padding-mask", padding_mask)

# %% [markdown]
# **A softmax that survives.** Write `masked_softmax(scores, allowed)` so that a row that may see nothing gets weights
# of zero instead of NaN, and every other row is unchanged.
#
# ??? question "Hint"
#
#     Fill with the lowest finite number instead of minus infinity, and set to zero what is not allowed, afterwards too.


# %% tags=["solution"]
def safe_softmax(scores, allowed):
    lowest = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(~allowed, lowest).softmax(dim=-1)
    return weights.masked_fill(~allowed, 0.0)


check("masked-softmax", safe_softmax)

# %% [markdown]
# ## What to read next
#
# - [How does one matrix hold many heads?](06_heads.py): the axis between batch and queries.
# - [The museum of mistakes](09_masks.py): every way to get a mask wrong, with the test that finds it.
# - [The doctor](18_doctor.py) runs this page's test, and others, on your module.
#
# ## References
#
# <!--~ references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.3, the causal mask.
# - Radford et al. (2019), *Language Models are Unsupervised Multitask Learners*: a causal model of text.
# - PyTorch 2.13, documentation of `scaled_dot_product_attention` and `MultiheadAttention`: what `True` means.
