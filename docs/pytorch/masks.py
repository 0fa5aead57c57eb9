# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # What does each interface make of my mask?
#
# **PyTorch's attention function reads `True` as *may attend*<!--== "PyTorch's attention function reads True as may
# attend" if told[0] == {"may attend"} else "reads True as may not attend" -->; its modules read `True` as *may not
# attend*<!--== "its modules read True as may not attend" if told[1:4] == [{"may not attend"}] * 3 else "may attend"
# -->.** The wrong way round raises no error<!--== "raises no error" if all(takes(call, ~shapes[names[0]]) for call,
# names in zip(calls.values(), taken)) else "raises an error" -->. Here is what each of them takes:
#
# {{= plot.table(["Interface and argument", "True means", "Shapes that it takes", "A floating mask is"],
# rows).markdown() }}
#
# *Computed with torch {{= torch.__version__.split("+")[0] }} on the {{= y.device.type.upper() }}.*
#
# **You should know** [what a mask is for](../learn/masks.py). **You will know** which mask each interface of PyTorch
# wants, what it answers to a row that allows nothing, and a test that tells of any module whether it sees the future.
#
# ## What each interface makes of `True`
#
# Give each interface a mask in which the first query has `False` for the last key<!--== "the first query has False for
# the last key" if all(each.flatten()[0] and not each[..., -1].flatten()[0] for each in shapes.values()) else "the last
# query has True for the first key" -->, and then the same mask inverted. Change the last token. If the first token's
# output moves, the first query did see the last key<!--== "If the first token's output moves, the first query did see
# the last key" if [notices(calls[rows[0][0]], mask) for mask in (lower, lower | True)] == [False, True] else "It moves
# in any case" -->.

# %% tags=["imports"]
import warnings

import torch
import torch.nn.functional as F
from torch import nn

from unmasked import (
    attention_scores,
    attention_weights,
    bypass_,
    masks,
    plot,
    probes,
    self_attention,
)
from unmasked.embeddings import ship_vectors
from unmasked.figures import painter as figures
from unmasked.kernels import takes_fast_path

torch.manual_seed(5)
y = torch.randn(2, 3, 20)  # batch tokens features
module = nn.MultiheadAttention(20, 4, batch_first=True)
layer = nn.TransformerEncoderLayer(20, 4, 16, dropout=0.0, batch_first=True)
lower = masks.causal(3)  # queries keys


def split(y):
    return y.unflatten(-1, (4, 5)).transpose(1, 2)


calls = {
    "`F.scaled_dot_product_attention`, `attn_mask`": lambda y, mask: (
        F.scaled_dot_product_attention(split(y), split(y), split(y), mask)
    ),
    "`nn.MultiheadAttention`, `attn_mask`": lambda y, mask: (
        module(y, y, y, attn_mask=mask)[0][:, None]
    ),
    "`nn.MultiheadAttention`, `key_padding_mask`": lambda y, mask: (
        module(y, y, y, key_padding_mask=mask)[0][:, None]
    ),
    "`nn.TransformerEncoderLayer`, `src_mask`": lambda y, mask: (
        layer(y, src_mask=mask)[:, None]
    ),
    "`unmasked.self_attention`, `allowed`": lambda y, mask: (
        self_attention(split(y), allowed=mask).context
    ),
}  # fmt: skip

# %%
shapes = {  # in each, the first query has False for the last key
    "queries, keys": lower,
    "batch, keys": lower[0].expand(2, 3),
    "batch · heads, queries, keys": lower.expand(8, 3, 3),
    "batch, 1, 1, keys": lower[0].expand(2, 1, 1, 3),
    "batch, heads, queries, keys": lower.expand(2, 4, 3, 3),
}


# %%
def notices(call, mask):
    changed = y.clone()
    changed[:, 2] += 1
    before, after = call(y, mask)[0, :, 0], call(changed, mask)[0, :, 0]
    return not torch.allclose(before, after, atol=1e-5)


def takes(call, mask):
    try:
        call(y, mask)
    except (RuntimeError, AssertionError, TypeError, ValueError):
        return False
    return True


def means(call, mask):
    noticed = notices(call, mask), notices(call, ~mask)
    return {(False, True): "may attend", (True, False): "may not attend"}[
        noticed
    ]


taken = [
    [name for name in shapes if takes(call, shapes[name])]
    for call in calls.values()
]
told = [
    {means(call, shapes[name]) for name in names}
    for call, names in zip(calls.values(), taken, strict=True)
]

# %% [markdown]
# Every shape that an interface takes, it reads in one way<!--= "Every shape that an interface takes, it reads in one
# way" if all(len(each) == 1 for each in told) else "No shape is read in one way" -->.
#
# `~mask` turns one kind into the other. `masks.blocked_from_allowed` does so too, and brings a mask with an axis of
# heads into the shape that `nn.MultiheadAttention` wants. Choose an interface, paint a mask, and take its code:

# %% tags=["hide-input", "no-snippet"]
#| caption: Who may see whom<!--= "Who may see whom" if (painted_weights > 0).equal(painted) else "Who may not see whom"
#|   -->, and the weights that come out. Rows are queries, columns are keys<!--= "Rows are queries,
#|   columns are keys" if painted_weights.sum(1).allclose(torch.ones(4)) and not painted_weights[0, 1:].any() else "Rows
#|   are keys, columns are queries" -->. It begins with the causal mask: each word sees itself and what comes before
#|   it<!--= "before it" if painted.tril().equal(painted) else "after it" -->.
#| script: ../../src/unmasked/figures/painter.js
#| data: {"words": painter_words, "scores": painter_scores, "mask": painted.tolist(), "interfaces": interfaces}
painter_words, painted = "we process and ship".split(), masks.causal(4)
vectors = ship_vectors().lookup(painter_words)
painter_scores = attention_scores(vectors, vectors)
painted_weights = attention_weights(painter_scores, allowed=painted)
names = "function", "module", "padding"
allows = {
    name: {"may attend"} == each
    for name, each in zip(names, told[:3], strict=True)
}
interfaces = figures.interfaces(module, y, allows)
plot.grid(
    {"may look": painted, "weights": painted_weights},
    rows=painter_words,
    columns=painter_words,
    allowed=painted,
    axes=("queries", "keys"),
)

# %% [markdown] tags=["check"]
# What a floating mask does is tried in the same way. A mask that is added moves the first output, though its zeros and
# ones shut out nothing.


# %% tags=["check"]
def floating(call, mask):
    try:
        given = [call(y, each) for each in (mask.float(), 0 * mask.float())]
    except (TypeError, ValueError):
        return "refused"
    return (
        "added"
        if not torch.allclose(*given, atol=1e-5)
        and notices(call, mask.float())
        else "ignored"
    )


rows = []
for (name, call), names, (meaning,) in zip(
    calls.items(), taken, told, strict=True
):
    floats = floating(call, shapes[names[0]])
    rows.append(
        [
            name,
            f"*{meaning}*",
            "; ".join(f"({each})" for each in names),
            floats,
        ]
    )
table = {
    row[0].split("`")[1] + ", " + row[0].split("`")[3]: row[1:]
    for row in rows
}


# %% [markdown]
# ## Padding: which shape, and which way round
#
# A batch of two sequences has a padding mask of (batch, keys). `nn.MultiheadAttention` wants just that, with `True` for
# what is padding<!--== "with True for what is padding" if told[2] == {"may not attend"} else "with False for what is
# padding" -->. The function wants (batch, 1, 1, keys)<!--~ axes of length one -->, with `True` for what is real<!--==
# "with True for what is real" if told[0] == {"may attend"} else "with False for what is real" -->:
# `masks.padding(lengths)`.

# %%
lengths = torch.tensor([3, 2])
real = masks.padding(lengths)  # batch 1 1 keys; True = may attend
q = split(y)  # batch heads tokens head_dim

by_function = F.scaled_dot_product_attention(q, q, q, attn_mask=real)
by_module, _ = module(y, y, y, key_padding_mask=~real[:, 0, 0])

# %% [markdown]
# A mask of (batch, keys) in the function is read as (queries, keys)<!--== "A mask of (batch, keys) in the function is
# read as (queries, keys)" if read_as_queries else "A mask of (batch, keys) hides keys" -->. The call raises an error,
# but for two cases. With one sequence, both shapes mean the same<!--== "With one sequence, both shapes mean the same"
# if torch.allclose(of_one, of_one_right, atol=1e-5) else "With one sequence, the shapes mean different things" -->.
# With as many queries as sequences, it [shuts out the wrong keys](../museum/masks.py#mask-polarity)<!--~ link: a
# neighbor --> without a word.

# %%
#| raises: RuntimeError: must match
F.scaled_dot_product_attention(q, q, q, attn_mask=real[:, 0, 0])

# %% [markdown] tags=["check"]
# Both ways agree with each sequence alone. The mask that is read in the wrong way misses the result by {{= (misread -
# padded_right).abs().max() :.1f}}.

# %% tags=["check"]
alone = F.scaled_dot_product_attention(
    q[1:, :, :2], q[1:, :, :2], q[1:, :, :2]
)
torch.testing.assert_close(by_function[1:, :, :2], alone)
torch.testing.assert_close(
    by_module[1:, :2], module(y[1:, :2], y[1:, :2], y[1:, :2])[0]
)

ends, two = real[:, 0, 0], q[:, :, :2]  # as many queries as sequences
misread = F.scaled_dot_product_attention(two, q, q, attn_mask=ends)
read_as_queries = torch.allclose(
    misread,
    F.scaled_dot_product_attention(two, q, q, attn_mask=ends[None, None]),
    atol=1e-5,
)
padded_right = F.scaled_dot_product_attention(two, q, q, attn_mask=real)
torch.testing.assert_close(
    padded_right[1],
    F.scaled_dot_product_attention(two[1], q[1, :, :2], q[1, :, :2]),
)
one = q[1:]
of_one = F.scaled_dot_product_attention(one, one, one, attn_mask=ends[1:])
of_one_right = F.scaled_dot_product_attention(
    one, one, one, attn_mask=real[1:]
)

# %% [markdown]
# A row of padding still gets some output itself. Leave it out of the loss and of every average.
#
# ## No looking ahead: the causal mask
#
# The *causal* mask allows each token itself and what stands before it<!--== "what stands before it" if
# masks.causal(5)[2].tolist() == [True, True, True, False, False] else "what stands after it" -->. Where two masks hold,
# a query sees what both allow: `masks.combine` for masks of `True` for *may attend*<!--== "masks.combine for masks of
# True for may attend" if masks.combine(masks.causal(5), end).equal(masks.causal(5) & end) else "masks.combine for masks
# of True for may not attend" -->, `|` for masks of `True` for *may not attend*<!--== "for masks of True for may not
# attend" if (~masks.causal(5) | ~end).equal(~(masks.causal(5) & end)) else "for masks of True for may attend" -->.

# %% tags=["hide-input"]
#| caption: With padding on the left, the first two queries see nothing at all<!--= "With padding on the left, the first
#|   two queries see nothing at all" if gallery["left padding, causal"].any(-1).tolist() ==
#|   masks.padding(torch.tensor([3]), 5, side="left").flatten().tolist() == [False, False, True, True, True] else "With
#|   padding on the right, the last two queries see nothing at all" -->.
end = torch.tensor([True, True, True, False, False]).expand(5, 5)
gallery = {
    "causal": masks.causal(5),
    "padding": end,
    "both": masks.causal(5) & end,
}
gallery["left padding, causal"] = masks.causal(5) & end.flip(-1)
plot.grid(gallery, queries=range(5))

# %% [markdown]
# `nn.MultiheadAttention` does not make the causal mask for you. Its argument `is_causal=True` is a hint that the mask
# which you pass is causal. Without a mask, it is dropped without a word where the [fast
# path](#train-is-not-eval-the-fast-path) is taken, in evaluation without gradients<!--== "in evaluation without
# gradients" if hint_alone[False, False] == "drops" else "in training with gradients" -->. Elsewhere it raises an
# error<!--== "Elsewhere it raises an error" if [*hint_alone.values()].count("raises") == 3 else "Elsewhere it raises
# none" -->:

# %%
#| raises: RuntimeError: Need attn_mask
module(y, y, y, is_causal=True)


# %% tags=["check"]
def hinted(training, gradients):
    """What the module makes of the hint alone."""
    module.train(training)
    with torch.set_grad_enabled(gradients):
        try:
            seen = notices(
                lambda y, _: module(y, y, y, is_causal=True)[0][:, None], None
            )
        except RuntimeError:
            return "raises"
    return "drops" if seen else "masks"


hint_alone = {
    (training, gradients): hinted(training, gradients)
    for training in (True, False)
    for gradients in (True, False)
}
module.train()

# %% [markdown]
# `F.scaled_dot_product_attention(q, k, v, is_causal=True)` does make it, and `unmasked` does so, too. The two disagree
# as soon as there are [more keys than queries](#more-keys-than-queries)<!--== "more keys than queries" if disagree ==
# [False, True] else "as many keys as queries" -->. Beside a mask of your own, PyTorch's function takes it or refuses
# it, [by version and kernel](kernels.py#newer-versions); `unmasked` takes both.

# %% [markdown] tags=["check"]
# Under [the bypass](bypass.py), so that nothing learned is in the way, the module agrees with this library on two
# sentences under both masks.

# %% tags=["check"]
sentences = [
    "I must go back to my ship and to my crew",
    "We process and ship your order",
]
words = [sentence.lower().split() for sentence in sentences]
batch = torch.nn.utils.rnn.pad_sequence(
    [ship_vectors().lookup(each) for each in words], batch_first=True
)
kept = masks.padding(torch.tensor([11, 6]))[:, 0]  # batch 1 keys
causal = masks.causal(11)
torch.manual_seed(7)
bare = bypass_(nn.MultiheadAttention(50, num_heads=1, batch_first=True))
output, their_weights = bare(
    batch, batch, batch, attn_mask=~causal, key_padding_mask=~kept[:, 0]
)
ours = self_attention(batch, allowed=masks.combine(causal, kept))
torch.testing.assert_close(output, ours.context)
torch.testing.assert_close(their_weights, ours.weights)

# %% [markdown]
# ## Masks of numbers are added
#
# A floating mask is *added* to the scores<!--== "A floating mask is added to the scores" if torch.allclose(wrong[0],
# leaked @ x[0], atol=1e-5) else "A boolean mask is added to the scores" -->. So a mask of zeros and ones shuts nothing
# out<!--== "shuts nothing out" if (leaked > 0).all() else "shuts everything out" -->: it raises the allowed scores by
# one, and the first word still takes 40%<!--== future[0] --> of its context from later ones. A boolean mask that [is
# added](../museum/masks.py#boolean-mask-added), as in `scores += mask`, does the same<!--== "does the same" if
# torch.allclose(scores + causal, scores + causal.float()) else "does something different" -->. The additive mask that
# means what a boolean one means has zero for `True` and minus infinity for `False`<!--== "what a boolean one means has
# zero for True and minus infinity for False" if torch.allclose(right, F.scaled_dot_product_attention(x, x, x,
# attn_mask=causal), atol=1e-5) and not blocked_by_infinity[causal].any() and (blocked_by_infinity[~causal] ==
# -torch.inf).all() else "what a boolean one means has zero for False" -->:

# %%
x = batch[:1]  # the longer sentence: 11 words
blocked_by_infinity = masks.additive_from_allowed(causal)
right = F.scaled_dot_product_attention(x, x, x, attn_mask=blocked_by_infinity)
wrong = F.scaled_dot_product_attention(x, x, x, attn_mask=causal.float())

# %% [markdown] tags=["check"]
# Allowed weights grow by a factor of 2.72<!--== gain[0] / gain[1] --> relative to the others, which is e<!--== "e" if
# abs(gain[0] / gain[1] - torch.e) < 1e-4 else "pi" -->. `masks.allowed_from_additive` refuses such a mask.

# %% tags=["check"]
scores = attention_scores(x[0], x[0])
leaked, plain = (scores + causal.float()).softmax(-1), scores.softmax(-1)
torch.testing.assert_close(wrong[0], leaked @ x[0])
torch.testing.assert_close(
    right[0], self_attention(x[0], is_causal=True).context
)
assert torch.equal(
    scores + causal, scores + causal.float()
)  # a boolean mask that is added
gain = leaked[0] / plain[0]
future = leaked.triu(1).sum(-1)
try:
    masks.allowed_from_additive(causal.float())
except ValueError as error:
    refused = str(error)
else:
    raise AssertionError("it took ones for a mask")

# %% [markdown]
# There is one exception: in evaluation<!--== "in evaluation" if path and moved_by > 0.1 else "in training" -->,
# PyTorch's encoder layer takes a [fast path](#train-is-not-eval-the-fast-path). A large negative number in the place of
# minus infinity works until numbers have fewer bits: float16 ends at 65,504<!--= torch.finfo(torch.float16).max -->,
# and the `-1e9`<!--~ a constant that many use --> of much published code
# [does not fit into float16](../museum/masks.py#float16-overflow)<!--= "does not fit into float16" if -1e9 <
# torch.finfo(torch.float16).min else "fits into float16" -->.
#
# ## Before the softmax, not after
#
# Masking leaves what is not allowed out of the sum. Let $m_{ij}$ be one where query $i$
# may see key $j$, and zero elsewhere. Then the weights of the scores $s_{ij}$ are
#
# $$a_{ij} = \frac{m_{ij} \, e^{s_{ij}}}{\sum_l m_{il} \, e^{s_{il}}} \tag{5.1}$$
# <!-- where: s = random("n n"); m = masks.causal(n).double(); a = attention_weights(s, allowed=masks.causal(n)) -->
#
# There are two ways to write that as a softmax. `masked_fill` replaces the scores that are not allowed by minus
# infinity, whose exponential is zero. Or a matrix $B$ is added, zero where a query may see and minus infinity where
# not<!--== "zero where a query may see and minus infinity where not" if (blocked_by_infinity.exp() == causal).all()
# else "minus infinity where a query may see" -->. `unmasked` uses the second way.
#
# $$A = \operatorname{softmax}(S + B) \tag{5.2}$$
# <!-- where: S = random("n n"); B = masks.additive_from_allowed(masks.causal(n), torch.float64);
# A = attention_weights(S, allowed=masks.causal(n)) -->


# %%
def masked_softmax(scores, allowed):
    return scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1)


late = (
    scores.softmax(dim=-1) * causal
)  # weights set to zero after the softmax
sums = late.sum(dim=-1)
print([f"{each:.2f}" for each in sums.tolist()])

# %% [markdown]
# Zeros [after the softmax](../museum/masks.py#mask-after-softmax) come too late. The rows no longer sum to one, but for
# the last, which may see everything<!--= "The rows no longer sum to one, but for the last, which may see everything" if
# (sums[:-1] < 0.999).all() and (sums[-1] - 1).abs() < 1e-5 and causal.all(-1).nonzero().flatten().tolist() == [10] else
# "The rows sum to one" -->. The future is still in there: the scores of later words are part of each row's sum, so they
# decide how small the weights become. Dividing each row by its new sum repairs the weights<!--== "Dividing each row by
# its new sum repairs the weights" if torch.allclose(late / sums[:, None], by_hand, atol=1e-5) else "Dividing each
# column by its sum is no repair" -->.

# %% tags=["check"]
by_hand = masked_softmax(scores, causal)
torch.testing.assert_close(late / sums[:, None], by_hand)
torch.testing.assert_close(by_hand, attention_weights(scores, allowed=causal))
torch.testing.assert_close(
    by_hand, (scores + blocked_by_infinity).softmax(-1)
)
assert torch.equal(
    blocked_by_infinity, torch.zeros(11, 11).masked_fill(~causal, -torch.inf)
)

# %% [markdown] tags=["check"]
# Some code masks first and divides by the root of d afterwards. That is the same, as minus infinity stays what it is.

# %% tags=["check"]
masked_first = (x[0] @ x[0].mT).masked_fill(~causal, -torch.inf)
torch.testing.assert_close((masked_first / 50**0.5).softmax(-1), by_hand)

# %% [markdown]
# ## When a row allows nothing
#
# A query that may see nothing has no weights<!--== "A query that may see nothing has no weights" if
# masked_softmax(scores[:1], causal[:1] & False).isnan().all() else "A query that may see nothing has all weights" -->:
# (5.1) divides zero by zero. Such rows come from padding on the left under a causal mask<!--== "padding on the left
# under a causal mask" if [gallery[name].any(-1).all() for name in ("both", "left padding, causal")] == [True, False]
# else "padding on the right under a causal mask" -->, and from empty sequences. Each interface answers in its own way:


# %% tags=["hide-input"]
answer, nothing = figures.answer, lower.clone()
nothing[0] = False  # the first query may see no key
answers = figures.answers(module, y, nothing)
plot.table(["Interface", "Context of the first query"], [*answers.items()])

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ y.device.type.upper() }}.*
#
# *eval* is run without gradients, as models usually are when they are used. The same module answers NaN<!--=
# answers["nn.MultiheadAttention, train, need_weights=True"] --> when weights are asked for, and zeros<!--=
# answers["nn.MultiheadAttention, train, need_weights=False"] --> or NaN<!--= answers["nn.MultiheadAttention, eval,
# no_grad, need_weights=False"] --> when they are not. The latter is a [fast path](#train-is-not-eval-the-fast-path),
# too. That of `nn.MultiheadAttention` is for self-attention, with `batch_first=True`, biases, an even number of heads
# and a boolean mask<!--== "an even number of heads and a boolean mask" if answers_off == ["NaN", *["zeros"] * 5] else
# "any number of items and a floating mask" -->. This library always gives zeros<!--= answers["unmasked.self_attention"]
# -->. PyTorch's function gives zeros<!--= answers["F.scaled_dot_product_attention"] --> on a CPU. On a GPU it depends
# on the kernel: with a boolean mask, cuDNN gave numbers, such as -1.8<!--~ measured there -->. (Seen on an H100 with
# PyTorch 2.11<!--~ the version there --> in bfloat16, where the function takes cuDNN by itself.) The museum's [query
# that may see nothing](../museum/masks.py#fully-masked-row) has the full table.


# %% tags=["check"]
def fast(*inputs, mask=~nothing, heads=4, **options):
    torch.manual_seed(5)
    module = nn.MultiheadAttention(
        20, heads, **{"batch_first": True, **options}
    ).eval()
    with (
        torch.no_grad()
    ):  # a new module's output has a bias of zeros, or none
        return answer(
            module(*inputs, attn_mask=mask, need_weights=False)[0][0, 0]
        )


other = y.clone()  # the same numbers, yet not the same tensor
time_first = y.transpose(0, 1)
answers_off = [
    fast(y, y, y),
    fast(y, other, other),
    fast(*[time_first] * 3, batch_first=False),
    fast(y, y, y, bias=False),
    fast(y, y, y, heads=5),
    fast(y, y, y, mask=masks.additive_from_allowed(nothing)),
]

# %% [markdown]
# One NaN is enough to ruin a training run. Below, the second sequence is empty, and the loss reads the first one alone:

# %%
module.train()
padding = torch.tensor([[False, False, True], [True, True, True]])
output, _ = module(y, y, y, key_padding_mask=padding)
loss = output[0].square().sum()
loss.backward()
poisoned = module.in_proj_weight.grad.isnan().float().mean()
print(f"loss {loss:.2f}, NaN in {poisoned:.0%} of the gradient")

# %% [markdown]
# The loss is a number<!--= "number" if loss.isfinite() else "NaN" -->, and every entry of the gradient is NaN<!--=
# "every entry of the gradient is NaN" if poisoned == 1 else "some entries are" -->. Look for such rows before you
# train: `allowed.any(-1).all()`<!--~ a call --> tells whether every row of a mask allows something<!--= "every row of a
# mask allows something" if lower.any(-1).all() and not nothing.any(-1).all() else "it does not" -->.

# %% [markdown]
# ## Train is not eval: the fast path
#
# In evaluation without gradients `nn.TransformerEncoderLayer` computes all its steps by one operator, its *fast path*,
# which turns every entry of a floating mask that is not zero into minus infinity<!--== "which turns every entry of a
# floating mask that is not zero into minus infinity" if torch.allclose(without, itself, atol=1e-5) and (distance >
# 0).equal(alibi != 0) else "which adds a floating mask" -->. A bias such as ALiBi's, which only
# lowers the scores of distant tokens, then hides all but the token itself:

# %%
distance = (torch.arange(3)[:, None] - torch.arange(3)).abs()
alibi = -0.5 * distance.float()

layer.eval()
with_gradients = layer(y, src_mask=alibi)
with torch.no_grad():
    without = layer(y, src_mask=alibi)
    itself = layer(y, src_mask=distance > 0)  # True = may not attend
    path = takes_fast_path(layer, y, src_mask=alibi)
moved_by = (without - with_gradients).abs().max()

# %% [markdown]
# `without` equals `itself`<!--= "without equals itself" if torch.allclose(without, itself, atol=1e-5) else
# "without differs from itself" -->, and is off by 0.79<!--= moved_by --> from the layer that is trained. Nothing warns
# you<!--== "Nothing warns you" if not warned else "A warning tells you" -->. `takes_fast_path` tells beforehand: here
# it is true<!--= "true" if path else "false" -->. Where it is false it says why: training, gradients,
# `batch_first=False` (the default), no biases, an odd<!--== "odd" if losing["five heads"] != losing["relu"] else "even"
# --> number of heads, an activation other than relu or gelu, a hook, or norms that differ in `eps`.
#
# The remedy is one line for the whole program: `torch.backends.mha.set_fastpath_enabled(False)`<!--==
# "torch.backends.mha.set_fastpath_enabled(False)" if torch.allclose(slow, with_gradients, atol=1e-5) else "none" -->.
# Where no weights are asked for, it also turns the NaN of a row that allows nothing into zeros<!--== "Where no weights
# are asked for, it also turns the NaN of a row that allows nothing into zeros" if blind_rows == {True: ["NaN", "NaN"],
# False: ["NaN", "zeros"]} else "It turns nothing into zeros" -->. For your own tests: without dropout, a layer gives in
# evaluation what it gives in training. `torch.testing.assert_close(without, with_gradients)` fails<!--== "fails" if
# moved_by > 1e-3 else "passes" --> here.


# %% tags=["check"]
def blind_row(need_weights):
    torch.manual_seed(8)
    module = nn.MultiheadAttention(20, 4, batch_first=True).eval()
    output, _ = module(y, y, y, attn_mask=~nothing, need_weights=need_weights)
    return answer(output[0, 0])


with (
    torch.no_grad(),
    warnings.catch_warnings(record=True, action="always") as warned,
):
    layer(y, src_mask=alibi)
    blind_rows = {need: [blind_row(need)] for need in (True, False)}
    torch.backends.mha.set_fastpath_enabled(False)
    slow = layer(y, src_mask=alibi)
    for need, given in blind_rows.items():
        given.append(blind_row(need))
    torch.backends.mha.set_fastpath_enabled(True)


def loses(y, prepare=nn.Module.eval, heads=4, batch_first=True, **options):
    """Whether a layer's answer changes without gradients; it is what is said of its path."""
    torch.manual_seed(8)
    layer = nn.TransformerEncoderLayer(
        20, heads, 16, batch_first=batch_first, **options
    ).eval()
    prepare(layer)
    with torch.no_grad():
        fast = layer(y, src_mask=alibi)
        said = bool(takes_fast_path(layer, y, src_mask=alibi))
    lost = not torch.allclose(fast, layer(y, src_mask=alibi), atol=1e-4)
    assert lost == said
    return lost


losing = {
    "relu": loses(y),
    "gelu": loses(y, activation="gelu"),
    "tanh": loses(y, activation=torch.tanh),
    "five heads": loses(y, heads=5),
    "no bias": loses(y, bias=False),
    "time first": loses(y.transpose(0, 1), batch_first=False),
    "a hook": loses(
        y, lambda layer: layer.register_forward_hook(lambda *_: None)
    ),
    "another eps": loses(y, lambda layer: setattr(layer.norm1, "eps", 1e-6)),
}
assert [name for name, lost in losing.items() if lost] == ["relu", "gelu"]

# %% [markdown]
# ## More keys than queries
#
# A model that generates text keeps the keys of what it has written. Then two new queries look at five keys<!--== "two
# new queries look at five keys" if bottom_right.shape == (2, 5) else "five new queries look at two keys" -->. The
# queries are the *last* two tokens, so the mask must be aligned at the bottom right<!--== "The queries are the last two
# tokens, so the mask must be aligned at the bottom right" if bottom_right.equal(masks.causal(5)[-2:]) else "The queries
# are the first two tokens" -->, and [not at the top left](../museum/masks.py#top-left-causal):

# %% tags=["hide-input"]
#| caption: `masks.causal` is aligned at the bottom right<!--= "bottom right" if bottom_right[-1].all() else "top left"
#|   -->, and `is_causal=True` of PyTorch's function at the top left<!--== "top left" if torch.allclose(theirs,
#|   masked_softmax(attention_scores(q, kv), top_left) @ kv, atol=1e-5) else "bottom right" -->.
bottom_right = masks.causal(2, 5)
top_left = torch.ones(2, 5, dtype=torch.bool).tril()
plot.grid(
    {"bottom right": bottom_right, "top left": top_left},
    queries=range(2),
    keys=range(5),
)

# %%
torch.manual_seed(6)
q, kv = torch.randn(1, 2, 4), torch.randn(1, 5, 4)  # batch tokens features
theirs = F.scaled_dot_product_attention(q, kv, kv, is_causal=True)
mended = F.scaled_dot_product_attention(
    q, kv, kv, attn_mask=masks.causal(2, 5)
)

# %% [markdown]
# Aligned at the top left, the newest query sees only two keys, the oldest<!--= "Aligned at the top left, the newest
# query sees only two keys, the oldest" if top_left[-1].tolist() == [True, True, False, False, False] else "It sees all
# keys" -->. That is what `is_causal=True` means to PyTorch's function<!--= "PyTorch's function" if
# torch.allclose(theirs, masked_softmax(attention_scores(q, kv), top_left) @ kv, atol=1e-5) else "this library" -->.
# This library aligns at the bottom right<!--= "bottom right" if torch.allclose(attention_weights(attention_scores(q,
# kv), is_causal=True), masked_softmax(attention_scores(q, kv), bottom_right), atol=1e-5) else "top left" -->, as
# `mended` does.

# %% tags=["check"]
torch.testing.assert_close(
    mended, masked_softmax(attention_scores(q, kv), bottom_right) @ kv
)
disagree = [
    not torch.allclose(
        F.scaled_dot_product_attention(q, keys, keys, is_causal=True),
        attention_weights(attention_scores(q, keys), is_causal=True) @ keys,
        atol=1e-5,
    )
    for keys in (kv[:, :2], kv)
]

# %% [markdown]
# ## Nothing leaks
#
# A mask that looks right can be wrong. Here it was written for `nn.MultiheadAttention`; then the code was moved to
# PyTorch's function, and the mask with it:

# %%
blocked = torch.ones(11, 11, dtype=torch.bool).triu(
    1
)  # True = may not attend


def moved(x):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=blocked)


def inverted(x):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=~blocked)


# %% [markdown]
# Shape and dtype are right, nothing raises, and all numbers are finite<!--= "Shape and dtype are right, nothing raises,
# and all numbers are finite" if moved(x).isfinite().all() and (moved(x).shape, moved(x).dtype) == (x.shape, x.dtype)
# else "Something is wrong to see" -->. But each word sees *only* what comes after it<!--== "only what comes after it"
# if leaks(moved, x, ship) and not leaks(inverted, x, ship) else "what comes before" -->, and the last one nothing: its
# output is zeros<!--== "the last one nothing: its output is zeros" if [answer(each) for each in moved(x)[0, -2:]] ==
# ["numbers", "zeros"] else "the first one nothing" -->.
#
# A causal module must give the earlier tokens the same output, whatever the later ones are<!--== "must give the earlier
# tokens the same output, whatever the later ones are" if not leaks(fused, x, ship) and leaks(moved, x, ship) else
# "gives the earlier tokens other outputs" -->. So a test needs no reference: change the later tokens, and compare what
# the earlier ones get. Put this into your own tests:

# %%
print(probes.sees_the_future(inverted, x))
print(probes.sees_the_future(moved, x))

# %% [markdown]
# The probe returns `None` if all is well, and otherwise what it saw<!--= "returns None if all is well, and otherwise
# what it saw" if probes.sees_the_future(inverted, x) is None and probes.sees_the_future(moved, x) else "returns what it
# saw if all is well" -->. It enlarges the inputs a hundredfold and looks at
# the gradients, too. A leak that stays within rounding even then goes unseen by
# [`sees_the_future`](../reference/probes.md#unmasked.probes.sees_the_future).

# %% [markdown] tags=["check"]
# The test by hand, on two modules that are right (eager, which holds the table of weights, and fused, PyTorch's faster
# code), and on two that are wrong (a mask after the softmax; scores of the future lowered by 14<!--== lowered --> where
# it should be infinity). In those that are right nothing leaks<!--== "nothing leaks" if not any(leaks(f, x, position)
# for f in (eager, fused) for position in range(1, 11)) else "something leaks" -->, from any position; in the others
# something does<!--== "something does" if all(leaks(f, x, position) for f in (masked_late, shallow) for position in
# range(1, 11)) else "nothing does" -->, from every one.


# %% tags=["check"]
def leaks(f, x, position):
    for size in (
        100,
        -100,
    ):  # one of the two raises an earlier token's scores
        changed = x.clone()
        changed[:, position:] *= size  # this token and all later ones
        if not torch.allclose(
            f(x)[:, :position], f(changed)[:, :position], atol=1e-4
        ):
            return True
    return False


def eager(x):
    return self_attention(x, is_causal=True, implementation="eager").context


def fused(x):
    return self_attention(
        x, is_causal=True, need_weights=False, implementation="fused"
    ).context


def masked_late(x):
    return attention_scores(x, x).softmax(-1).tril() @ x


lowered = 14


def shallow(x):
    return (
        attention_scores(x, x) - lowered * ~masks.causal(x.size(1))
    ).softmax(-1) @ x


ship = words[0].index("ship")
assert probes.sees_the_future(eager, x) is None
assert probes.sees_the_future(fused, x) is None
assert probes.sees_the_future(masked_late, x)
assert probes.sees_the_future(shallow, x)
assert (
    probes.differs(shallow(x), eager(x)) == 0
)  # on these words, nothing shows

# %% [markdown]
# ## Exercises
#
# `print(check(name, answer))`, with `check` of `unmasked.exercises`, judges an answer by the name in brackets: [how to
# do the exercises](../install.md#do-the-exercises).
#
# **The causal mask** (`causal-mask`). Write a function that takes a number of tokens and returns the boolean mask,
# `True` for *may attend*, without a loop.
#
# ??? question "Hint"
#
#     Compare a column of positions with a row of positions.

# %% tags=["solution"]
from unmasked.exercises import check


def causal_mask(tokens):
    position = torch.arange(tokens)
    return position[:, None] >= position


feedback = check("causal-mask", causal_mask)
assert feedback
feedback

# %% [markdown]
# **The padding mask** (`padding-mask`). Write a function of `lengths` and `keys`, the padded length, that returns the
# boolean mask for a batch, shaped so that it broadcasts over scores of shape (batch, heads, queries, keys).
#
# ??? question "Hint"
#
#     Compare each key's position with each sequence's length, then make room for two axes.


# %% tags=["solution"]
def padding_mask(lengths, keys):
    return (torch.arange(keys) < lengths[:, None])[:, None, None]


feedback = check("padding-mask", padding_mask)
assert feedback
feedback

# %% [markdown]
# **A softmax that survives** (`masked-softmax`). Write a function of `scores` and `allowed` that returns the weights. A
# row that may see nothing gets weights of zero instead of NaN, and every other row is as before.
#
# ??? question "Hint"
#
#     Fill with the lowest finite number instead of minus infinity. What do the weights of a row that allows nothing
#     look like then, and what has to be done with them?


# %% tags=["solution"]
def safe_softmax(scores, allowed):
    lowest = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(~allowed, lowest).softmax(dim=-1)
    return weights.masked_fill(~allowed, 0.0)


feedback = check("masked-softmax", safe_softmax)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [How does one matrix hold many heads?](heads.py) has the axis between batch and queries.
# - [Does my mask hide what it should?](../museum/masks.py): every way to get a mask wrong, with the test that finds it.
# - [The doctor](../doctor.py) runs this page's test, and others, on your module.
#
# ## References
#
# <!--~ 2017, 3.2.3, 3.2.1, 1, 2.13, 8068, 2022, 118628, 102333: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.3, the causal mask as minus infinity before the
#   softmax; section 3.2.1, equation 1, the softmax that (5.1) and (5.2) restrict.
# - PyTorch 2.13, documentation of `scaled_dot_product_attention` and `MultiheadAttention`: what `True` means.
# - ONNX, operator *Attention*, with the erratum of onnx/onnx#8068: a row that sees nothing is zero. A causal mask is
#   aligned at the end where a cache is declared (`past_key` or `nonpad_kv_seqlen`), and at the top left otherwise.
# - Press, Smith and Lewis (2022), *Train Short, Test Long*: ALiBi, which adds a penalty for distance to the scores.
# - PyTorch's issues [118628](https://github.com/pytorch/pytorch/issues/118628) and
#   [102333](https://github.com/pytorch/pytorch/issues/102333): people whose layer answers otherwise in evaluation.
