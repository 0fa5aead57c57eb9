# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Where do keys and values come from? Cross-attention, add_bias_kv, add_zero_attn
#
# **From wherever you take them. In self-attention they come from the tokens that ask; in cross-attention from another
# sequence, so that there are as many rows of weights as queries and as many columns as keys.** `nn.MultiheadAttention`
# can add one more column: `add_bias_kv` appends a *learned* key and value, `add_zero_attn` a key and value of zeros.
# Neither shifts anything: the weights get the shape (queries, keys + 1<!--== shape_with_bias_kv[-1] - len(keys_words)
# -->), and each row still sums to one<!--== bool(torch.allclose(with_bias_kv.sum(-1), torch.ones(1, 6))) -->.
#
# **You should know** [what attention computes](01_what_is_attention.py) and the [weight bypass](03_weight_bypass.py).
# **You will know** what one sentence takes from another, what the two options really do, why no bias on the keys can
# ever change the weights, and how to align a causal mask when there are more keys than queries.

# %%
import torch
from torch import nn

from unmasked import (
    attention_scores,
    attention_weights,
    bypass_,
    masks,
    plot,
    scaled_dot_product_attention,
)
from unmasked.embeddings import ship_vectors

query_words = ["we", "process", "and", "ship", "your", "order"]
keys_words = ["i", "must", "go", "back", "to", "my", "ship", "and", "to", "my", "crew"]
vectors = ship_vectors()
Q, K = vectors.lookup(query_words), vectors.lookup(keys_words)
assert len(Q) != len(K)

# %% [markdown]
# ## One sentence asks another
#
# Let "We process and ship your order" ask "I must go back to my ship and to my crew". Each of its
# six<!--= len(Q) --> words gets an average of the eleven<!--= len(K) --> words of the other. The function does not know
# where its arguments come from:

# %%
context, weights = scaled_dot_product_attention(Q, K, K, need_weights=True)
assert context.shape == Q.shape

ship = query_words.index("ship")
tuple(weights.shape)

# %% tags=["hide-input"]
#| alt: A heat map with the six words of one sentence as rows and the eleven of the other as columns. The row of ship is
#|   darkest where it meets ship; the row of and where it meets and.
plot.heatmap(weights, queries=query_words, keys=keys_words)

# %% [markdown]
# *ship* takes 55%<!--= weights[ship, keys_words.index("ship")] --> of what it gets from the other sentence's *ship*.
# Words that occur twice in the other sentence get two equal<!--= bool((weights[:, 4] == weights[:, 8]).all()) -->
# columns.
#
# The shapes say what may differ: the number of queries and the number of keys may; there are as many values as keys; a
# query has as many features as a key; a value may have any number. In a translation model the queries are the words
# written so far, keys and values the sentence to be translated; in a model of images and text, one asks the other.
#
# $$\operatorname{Attention}(Q, K, V)_i = \sum_j w_{ij} V_j$$
# <!-- where: Q, K, V = random("n d", "m d", "m e"); w = attention_weights(attention_scores(Q, K));
# Attention = lambda Q, K, V: scaled_dot_product_attention(Q, K, V).context -->
#
# With the weights bypassed, PyTorch's module computes the same:

# %%
torch.manual_seed(8)
module = bypass_(nn.MultiheadAttention(50, 1, batch_first=True))
theirs, their_weights = module(Q[None], K[None], K[None])
torch.testing.assert_close(theirs[0], context)
torch.testing.assert_close(their_weights[0], weights)

# %% [markdown]
# ## add_bias_kv: one more key and value, learned
#
# The name suggests a bias that is added to keys and values. What it does is to *append* a learned key and a learned
# value to each sequence, like a word that everybody can see:

# %%
torch.manual_seed(9)
with_kv = nn.MultiheadAttention(50, 1, add_bias_kv=True, batch_first=True)
packed = torch.eye(50).repeat(3, 1)
with torch.no_grad():  # the bypass, by hand: it declines a module with a learned key
    with_kv.in_proj_weight.copy_(packed)
    with_kv.out_proj.weight.copy_(torch.eye(50))

output, with_bias_kv = with_kv(Q[None], K[None], K[None])
shape_with_bias_kv = tuple(with_bias_kv.shape)

longer = torch.cat([K, with_kv.bias_k[0]])  # one row more
longer_values = torch.cat([K, with_kv.bias_v[0]])
expected = scaled_dot_product_attention(Q, longer, longer_values, need_weights=True)
torch.testing.assert_close(output[0], expected.context)
torch.testing.assert_close(with_bias_kv[0], expected.weights)
shape_with_bias_kv

# %% tags=["hide-input"]
#| alt: The heat map of the six queries and twelve keys, the last of which is the learned one. Every row gives it some
#|   weight.
plot.heatmap(with_bias_kv[0].detach(), queries=query_words, keys=[*keys_words, "learned"])

# %% [markdown]
# All other weights shrink to make room<!--= bool((with_bias_kv[0, :, :-1] < weights).all()) -->, and the learned key
# gets 0.6%<!--= with_bias_kv[0, :, -1].mean() --> on average, before any training. It is a place to look at when
# nothing else is worth it.
#
# ## No shift of the keys changes anything
#
# Suppose it *were* a bias, one vector added to every key. Then all scores of a query would grow by the same number, its
# dot product with that vector, and a softmax does not see that:
#
# $$\operatorname{softmax}(s + c)_j = \operatorname{softmax}(s)_j$$
# <!-- where: s = random("n"); c = 0.7; softmax = lambda s: attention_weights(s[None])[0] -->

# %%
torch.manual_seed(10)
shift = torch.randn(50, dtype=torch.float64)
Qd, Kd = Q.double(), K.double()
shifted = attention_weights(attention_scores(Qd, Kd + shift))
change = (shifted - attention_weights(attention_scores(Qd, Kd))).abs().max().item()
assert change < 1e-12
f"{change:.0e}"

# %% [markdown]
# For the same reason the bias of the key's projection, the middle third of `in_proj_bias`, has no effect and no
# gradient. A bias on *queries* matters: it adds another number to each key's score.
#
# ## add_zero_attn: one more key and value, of zeros
#
# `add_zero_attn=True` appends a key of zeros. Every query's dot product with it is zero, so it gets the share that a
# score of zero deserves, and its value adds nothing: the other weights shrink, and so does the context.

# %%
torch.manual_seed(11)
zero_attn = bypass_(nn.MultiheadAttention(50, 1, add_zero_attn=False, batch_first=True))
zero_attn.add_zero_attn = True
output, with_zero = zero_attn(Q[None], K[None], K[None])

scores = attention_scores(Q, K)
share = 1 / (1 + scores.exp().sum(-1))  # that of a score of zero
torch.testing.assert_close(with_zero[0, :, -1], share)
torch.testing.assert_close(output[0], (1 - share[:, None]) * context)
share.max().item()

# %% [markdown]
# So a query may take nothing at all, if every score is far below zero. That is a *softmax with one added to its
# denominator*:
#
# $$w_{ij} = \frac{e^{s_{ij}}}{1 + \sum_k e^{s_{ik}}}$$
# <!-- where: s = random("n m"); w = attention_weights(torch.cat([s, s[:, :1] * 0], dim=1))[:, :-1] -->
#
# ## Which keys may a query see, when lengths differ?
#
# A causal mask compares positions, and with two lengths one has to say whose. If the queries are the *last* tokens of
# the sequence that gives the keys, as in generation with a cache, the last query sees every key:

# %%
bottom_right = masks.causal(2, 5)
top_left = torch.ones(2, 5, dtype=torch.bool).tril()
bottom_right.int(), top_left.int()

# %% [markdown]
# PyTorch's `is_causal=True` aligns at the top left: its last query would see two<!--= top_left[-1].sum() --> of
# five<!--= bottom_right[-1].sum() --> keys, the oldest ones. Check it as the package does, step by step against the
# whole:

# %%
tokens = vectors.lookup(keys_words)[None]
whole = scaled_dot_product_attention(tokens, tokens, tokens, is_causal=True).context


def last_two(allowed):
    return scaled_dot_product_attention(tokens[:, -2:], tokens, tokens, allowed=allowed).context


right = torch.allclose(last_two(masks.causal(2, 11)), whole[:, -2:], atol=1e-6)
wrong = (last_two(torch.ones(2, 11, dtype=torch.bool).tril()) - whole[:, -2:]).abs().max().item()
right, wrong

# %% [markdown]
# Aligned at the bottom right, the last two queries get what they get in the whole<!--= right -->; at the top left they
# are off by 1.20<!--= wrong -->. Between two sentences there is no causal order: leave the mask out.
#
# ## A call that looks right
#
# Keys and values come from the same place, and the arguments are easy to exchange. Here the value is the query's
# sentence:


# %%
def wrong_value(q, kv):
    return scaled_dot_product_attention(q, kv, q).context


def wrong_order(q, kv):
    return scaled_dot_product_attention(kv, q, q).context


refused = []
for call in (wrong_value, wrong_order):
    try:
        refused.append(call(Q, K).shape != Q.shape)
    except ValueError:
        refused.append(True)

same_length = K[:6]
silent = (wrong_value(Q, same_length) - scaled_dot_product_attention(Q, same_length, same_length).context).norm()
refused, silent.item()

# %% [markdown]
# With lengths that differ both show<!--= all(refused) -->: by an error, or by the shape. With equal lengths the first
# is silent, and wrong by 5<!--= silent -->. The check: change a value that no query asks for, and see that nothing
# moves; change the other sentence, and see that everything does.
#
# ## Exercises
#
# **Cross-attention.** Write `cross(x, other)`, in which x of (queries, features) asks other of (keys, features),
# without learned matrices. Return the context.
#
# ??? question "Hint"
#
#     Whose rows are averaged?

# %% tags=["solution"]
from unmasked.exercises import check


def cross(x, other):
    weights = (x @ other.mT / x.size(-1) ** 0.5).softmax(dim=-1)
    return weights @ other


check("cross-attention", cross)

# %% [markdown]
# **An extra column.** Write `with_sink(scores)`, which returns the weights of a softmax with one added to its
# denominator: rows that may sum to less than one.
#
# ??? question "Hint"
#
#     Append a column of zeros, and leave it out again after the softmax.


# %% tags=["solution"]
def with_sink(scores):
    return nn.functional.pad(scores, (0, 1)).softmax(dim=-1)[..., :-1]


check("softmax-with-sink", with_sink)

# %% [markdown]
# ## What to read next
#
# - [The museum of mistakes](09_museum.py): `add_bias_kv` taken for a bias, a query passed as the value, and others.
# - [Who may see whom?](05_masks.py): masks in full.
#
# ## References
#
# <!--~ references -->
# - Bahdanau, Cho and Bengio (2015), *Neural Machine Translation by Jointly Learning to Align and Translate*: section
#   3.1.
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.3, encoder-decoder attention.
# - Miller (2023), *Attention Is Off By One*: the softmax with one added to its denominator.
