# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # What does each interface make of my mask?
#
# **PyTorch's attention function reads `True` as *may attend*; its modules read `True` as *may not attend*.** The wrong
# way round raises no error. Here is what each of them takes:
#
# {{ plot.table(["Interface and argument", "True means", "Shapes that it takes", "A floating mask is"],
# rows).markdown() }}
#
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ y.device.type.upper() }}.*
#
# **You should know** [what a mask is for](../learn/masks.py). **You will know** which mask each interface of PyTorch
# wants, what it answers to a row that allows nothing, and a test that tells of any module whether it sees the future.
#
# ## What each interface makes of `True`
#
# Give each interface a mask in which the first query has `False` for the last key, and then the same mask inverted.
# Change the last token. If the first token's output moves, the first query did see the last key.

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
# Every shape that an interface takes, it reads in one way.
#
# `~mask` turns one kind into the other. `masks.blocked_from_allowed` does so too, and brings a mask with an axis of
# heads into the shape that `nn.MultiheadAttention` wants. Choose an interface, paint a mask, and take its code:

# %% tags=["hide-input", "no-snippet"]
#| caption: Who may see whom, and the weights that come out. Rows are queries, columns are keys. It begins with the
#|   causal mask: each word sees itself and what comes before it.
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


# %% tags=["claims"]
assert told[0] == {"may attend"}, (
    "PyTorch's attention function reads True as may attend"
)
assert told[1:4] == [{"may not attend"}] * 3, (
    "its modules read True as may not attend"
)
assert all(
    takes(call, ~shapes[names[0]])
    for call, names in zip(calls.values(), taken)
), "The wrong way round raises no error"
assert all(
    each.flatten()[0] and not each[..., -1].flatten()[0]
    for each in shapes.values()
), (
    "Give each interface a mask in which the first query has False for the last key"
)
assert [
    notices(calls[rows[0][0]], mask) for mask in (lower, lower | True)
] == [False, True], (
    "If the first token's output moves, the first query did see the last key"
)
assert all(len(each) == 1 for each in told), (
    "Every shape that an interface takes, it reads in one way"
)
assert (painted_weights > 0).equal(painted), "Who may see whom"
assert (
    painted_weights.sum(1).allclose(torch.ones(4), atol=1e-6)
    and not painted_weights[0, 1:].any()
), "Rows are queries, columns are keys"
assert painted.tril().equal(painted), (
    "each word sees itself and what comes before it"
)

# %% [markdown]
# ## Padding: which shape, and which way round
#
# A batch of two sequences has a padding mask of (batch, keys). `nn.MultiheadAttention` wants just that, with `True` for
# what is padding. The function wants (batch, 1, 1, keys)<!--~ axes of length one -->, with `True` for what is real:
# `masks.padding(lengths)`.

# %%
lengths = torch.tensor([3, 2])
real = masks.padding(lengths)  # batch 1 1 keys; True = may attend
q = split(y)  # batch heads tokens head_dim

by_function = F.scaled_dot_product_attention(q, q, q, attn_mask=real)
by_module, _ = module(y, y, y, key_padding_mask=~real[:, 0, 0])

# %% [markdown]
# A mask of (batch, keys) in the function is read as (queries, keys). The call raises an error, but for two cases. With
# one sequence, both shapes mean the same. With as many queries as sequences, it [shuts out the wrong
# keys](../museum/masks.py#mask-polarity)<!--~ link: a neighbor --> without a word.

# %%
#| raises: RuntimeError: must match
F.scaled_dot_product_attention(q, q, q, attn_mask=real[:, 0, 0])

# %% [markdown] tags=["check"]
# Both ways agree with each sequence alone. The mask that is read in the wrong way misses the result by {{ (misread -
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

# %% tags=["claims"]
assert told[2] == {"may not attend"}, "with True for what is padding"
assert told[0] == {"may attend"}, "with True for what is real"
assert read_as_queries, (
    "A mask of (batch, keys) in the function is read as (queries, keys"
)
assert torch.allclose(of_one, of_one_right, atol=1e-5), (
    "With one sequence, both shapes mean the same"
)

# %% [markdown]
# ## No looking ahead: the causal mask
#
# The *causal* mask allows each token itself and what stands before it. Where two masks hold, a query sees what both
# allow: `masks.combine` for masks of `True` for *may attend*, `|` for masks of `True` for *may not attend*.

# %% tags=["hide-input"]
#| caption: With padding on the left, the first two queries see nothing at all.
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
# path](#train-is-not-eval-the-fast-path) is taken, in evaluation without gradients. Elsewhere it raises an error:

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
# as soon as there are [more keys than queries](#more-keys-than-queries). Beside a mask of your own, PyTorch's function
# takes it or refuses it, [by version and kernel](kernels.py#newer-versions); `unmasked` takes both.

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

# %% tags=["claims"]
assert masks.causal(5)[2].tolist() == [True, True, True, False, False], (
    "The causal mask allows each token itself and what stands before it"
)
assert masks.combine(masks.causal(5), end).equal(masks.causal(5) & end), (
    "masks.combine for masks of True for may attend"
)
assert (~masks.causal(5) | ~end).equal(~(masks.causal(5) & end)), (
    "for masks of True for may not attend"
)
assert (
    gallery["left padding, causal"].any(-1).tolist()
    == masks.padding(torch.tensor([3]), 5, side="left").flatten().tolist()
    == [False, False, True, True, True]
), "With padding on the left, the first two queries see nothing at all"
assert hint_alone[False, False] == "drops", "in evaluation without gradients"
assert [*hint_alone.values()].count("raises") == 3, (
    "Elsewhere it raises an error"
)

# %% [markdown]
# ## Masks of numbers are added
#
# A floating mask is *added* to the scores. So a mask of zeros and ones shuts nothing out: it raises the allowed scores
# by one, and the first word still takes 40%<!--= future[0] --> of its context from later ones. A boolean mask that [is
# added](../museum/masks.py#boolean-mask-added), as in `scores += mask`, does the same. The additive mask that means
# what a boolean one means has zero for `True` and minus infinity for `False`:

# %%
x = batch[:1]  # the longer sentence: 11 words
blocked_by_infinity = masks.additive_from_allowed(causal)
right = F.scaled_dot_product_attention(x, x, x, attn_mask=blocked_by_infinity)
wrong = F.scaled_dot_product_attention(x, x, x, attn_mask=causal.float())

# %% [markdown] tags=["check"]
# Allowed weights grow by a factor of 2.72<!--= gain[0] / gain[1] --> relative to the others, which is e.
# `masks.allowed_from_additive` refuses such a mask.

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
# There is one exception: in evaluation, PyTorch's encoder layer takes a [fast path](#train-is-not-eval-the-fast-path).
# A large negative number in the place of minus infinity works until numbers have fewer bits: float16 ends at
# 65,504<!--= torch.finfo(torch.float16).max -->, and the `-1e9`<!--~ a constant that many use --> of much published
# code [does not fit into float16](../museum/masks.py#float16-overflow).

# %% tags=["claims"]
assert torch.allclose(wrong[0], leaked @ x[0], atol=1e-5), (
    "A floating mask is added to the scores"
)
assert (leaked > 0).all(), "So a mask of zeros and ones shuts nothing out"
assert torch.allclose(scores + causal, scores + causal.float(), atol=1e-6), (
    "as in scores += mask, does the same"
)
assert (
    torch.allclose(
        right,
        F.scaled_dot_product_attention(x, x, x, attn_mask=causal),
        atol=1e-5,
    )
    and not blocked_by_infinity[causal].any()
    and (blocked_by_infinity[~causal] == -torch.inf).all()
), (
    "The additive mask that means what a boolean one means has zero for True and minus infinity for False"
)
assert abs(gain[0] / gain[1] - torch.e) < 1e-4, (
    "Allowed weights grow by a factor of 2.72 relative to the others, which is e"
)
assert -1e9 < torch.finfo(torch.float16).min, (
    "and the -1e9 of much published code does not fit into float16"
)

# %% [markdown]
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
# not. `unmasked` uses the second way.
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
# the last, which may see everything. The future is still in there: the scores of later words are part of each row's
# sum, so they decide how small the weights become. Dividing each row by its new sum repairs the weights.

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

# %% tags=["claims"]
assert (blocked_by_infinity.exp() == causal).all(), (
    "zero where a query may see and minus infinity where not"
)
assert (
    (sums[:-1] < 0.999).all()
    and (sums[-1] - 1).abs() < 1e-5
    and causal.all(-1).nonzero().flatten().tolist() == [10]
), "The rows no longer sum to one, but for the last, which may see everything"
assert torch.allclose(late / sums[:, None], by_hand, atol=1e-5), (
    "Dividing each row by its new sum repairs the weights"
)

# %% [markdown]
# ## When a row allows nothing
#
# A query that may see nothing has no weights: (5.1) divides zero by zero. Such rows come from padding on the left under
# a causal mask, and from empty sequences. Each interface answers in its own way:


# %% tags=["hide-input"]
answer, nothing = figures.answer, lower.clone()
nothing[0] = False  # the first query may see no key
answers = figures.answers(module, y, nothing)
plot.table(["Interface", "Context of the first query"], [*answers.items()])

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ y.device.type.upper() }}.*
#
# *eval* is run without gradients, as models usually are when they are used. The same module answers NaN when weights
# are asked for, and zeros or NaN when they are not. The latter is a [fast path](#train-is-not-eval-the-fast-path), too.
# That of `nn.MultiheadAttention` is for self-attention, with `batch_first=True`, biases, an even number of heads and a
# boolean mask. This library always gives zeros. PyTorch's function gives zeros on a CPU. On a GPU it depends on the
# kernel: with a boolean mask, cuDNN gave numbers, such as -1.8<!--~ measured there -->. (Seen on an H100 with PyTorch
# 2.11<!--~ the version there --> in bfloat16, where the function takes cuDNN by itself.) The museum's [query that may
# see nothing](../museum/masks.py#fully-masked-row) has the full table.


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
# The loss is a number, and every entry of the gradient is NaN. Look for such rows before you train:
# `allowed.any(-1).all()`<!--~ a call --> tells whether every row of a mask allows something.

# %% tags=["claims"]
assert masked_softmax(scores[:1], causal[:1] & False).isnan().all(), (
    "A query that may see nothing has no weights"
)
assert [
    gallery[name].any(-1).all() for name in ("both", "left padding, causal")
] == [True, False], (
    "Such rows come from padding on the left under a causal mask"
)
assert answers["nn.MultiheadAttention, train, need_weights=True"] == "NaN", (
    "The same module answers NaN when weights are asked for"
)
assert (
    answers["nn.MultiheadAttention, train, need_weights=False"] == "zeros"
    and answers["nn.MultiheadAttention, eval, no_grad, need_weights=False"]
    == "NaN"
), "and zeros or NaN when they are not"
assert answers_off == ["NaN", *["zeros"] * 5], (
    "an even number of heads and a boolean mask"
)
assert answers["unmasked.self_attention"] == "zeros", (
    "This library always gives zeros"
)
assert answers["F.scaled_dot_product_attention"] == "zeros", (
    "PyTorch's function gives zeros on a CPU"
)
assert loss.isfinite(), "The loss is a number"
assert poisoned == 1, "and every entry of the gradient is NaN"
assert lower.any(-1).all() and not nothing.any(-1).all(), (
    "tells whether every row of a mask allows something"
)

# %% [markdown]
# ## Train is not eval: the fast path
#
# In evaluation without gradients `nn.TransformerEncoderLayer` computes all its steps by one operator, its *fast path*,
# which turns every entry of a floating mask that is not zero into minus infinity. A bias such as ALiBi's, which only
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
# `without` equals `itself`, and is off by 0.79<!--= moved_by --> from the layer that is trained. Nothing warns you.
# `takes_fast_path` tells beforehand: here it is true. Where it is false it says why: training, gradients,
# `batch_first=False` (the default), no biases, an odd number of heads, an activation other than relu or gelu, a hook,
# or norms that differ in `eps`.
#
# The remedy is one line for the whole program: `torch.backends.mha.set_fastpath_enabled(False)`. Where no weights are
# asked for, it also turns the NaN of a row that allows nothing into zeros. For your own tests: without dropout, a layer
# gives in evaluation what it gives in training. `torch.testing.assert_close(without, with_gradients)` fails here.


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

# %% tags=["claims"]
assert torch.allclose(without, itself, atol=1e-5), "without equals itself"
assert path and moved_by > 0.1, "There is one exception: in evaluation"
assert torch.allclose(without, itself, atol=1e-5) and (distance > 0).equal(
    alibi != 0
), (
    "which turns every entry of a floating mask that is not zero into minus infinity"
)
assert not warned, "trained. Nothing warns you. takesfastpath"
assert path, "here it is true"
assert losing["five heads"] != losing["relu"], "an odd number of heads"
assert torch.allclose(slow, with_gradients, atol=1e-5), (
    "The remedy is one line for the whole program: torch.backends.mha.setfastpathenabled(False"
)
assert blind_rows == {True: ["NaN", "NaN"], False: ["NaN", "zeros"]}, (
    "Where no weights are asked for, it also turns the NaN of a row that allows nothing into zeros"
)
assert moved_by > 1e-3, (
    "torch.testing.assertclose(without, withgradients) fails here"
)

# %% [markdown]
# ## More keys than queries
#
# A model that generates text keeps the keys of what it has written. Then two new queries look at five keys. The queries
# are the *last* two tokens, so the mask must be aligned at the bottom right, and [not at the top
# left](../museum/masks.py#top-left-causal):

# %% tags=["hide-input"]
#| caption: `masks.causal` is aligned at the bottom right, and `is_causal=True` of PyTorch's function at the top left.
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
# Aligned at the top left, the newest query sees only two keys, the oldest. That is what `is_causal=True` means to
# PyTorch's function. This library aligns at the bottom right, as `mended` does.

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

# %% tags=["claims"]
assert disagree == [False, True], (
    "The two disagree as soon as there are more keys than queries"
)
assert bottom_right.shape == (2, 5), "Then two new queries look at five keys"
assert bottom_right.equal(masks.causal(5)[-2:]), (
    "The queries are the last two tokens, so the mask must be aligned at the bottom right"
)
assert bottom_right[-1].all(), "masks.causal is aligned at the bottom right"
assert torch.allclose(
    theirs, masked_softmax(attention_scores(q, kv), top_left) @ kv, atol=1e-5
), "and iscausal=True of PyTorch's function at the top left"
assert top_left[-1].tolist() == [True, True, False, False, False], (
    "Aligned at the top left, the newest query sees only two keys, the oldest"
)
assert torch.allclose(
    theirs, masked_softmax(attention_scores(q, kv), top_left) @ kv, atol=1e-5
), "That is what iscausal=True means to PyTorch's function"
assert torch.allclose(
    attention_weights(attention_scores(q, kv), is_causal=True),
    masked_softmax(attention_scores(q, kv), bottom_right),
    atol=1e-5,
), "This library aligns at the bottom right"

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
# Shape and dtype are right, nothing raises, and all numbers are finite. But each word sees *only* what comes after it,
# and the last one nothing: its output is zeros.
#
# A causal module must give the earlier tokens the same output, whatever the later ones are. So a test needs no
# reference: change the later tokens, and compare what the earlier ones get. Put this into your own tests:

# %%
print(probes.sees_the_future(inverted, x))
print(probes.sees_the_future(moved, x))

# %% [markdown]
# The probe returns `None` if all is well, and otherwise what it saw. It enlarges the inputs a hundredfold and looks at
# the gradients, too. A leak that stays within rounding even then goes unseen by
# [`sees_the_future`](../reference/probes.md#unmasked.probes.sees_the_future).

# %% [markdown] tags=["check"]
# The test by hand, on two modules that are right (eager, which holds the table of weights, and fused, PyTorch's faster
# code), and on two that are wrong (a mask after the softmax; scores of the future lowered by 14<!--= lowered --> where
# it should be infinity). In those that are right nothing leaks, from any position; in the others something does, from
# every one.


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

# %% tags=["claims"]
assert moved(x).isfinite().all() and (moved(x).shape, moved(x).dtype) == (
    x.shape,
    x.dtype,
), "Shape and dtype are right, nothing raises, and all numbers are finite"
assert leaks(moved, x, ship) and not leaks(inverted, x, ship), (
    "But each word sees only what comes after it"
)
assert [answer(each) for each in moved(x)[0, -2:]] == ["numbers", "zeros"], (
    "and the last one nothing: its output is zeros"
)
assert not leaks(fused, x, ship) and leaks(moved, x, ship), (
    "A causal module must give the earlier tokens the same output, whatever the later ones are"
)
assert probes.sees_the_future(inverted, x) is None and probes.sees_the_future(
    moved, x
), "The probe returns None if all is well, and otherwise what it saw"
assert not any(
    leaks(f, x, position) for f in (eager, fused) for position in range(1, 11)
), "In those that are right nothing leaks"
assert all(
    leaks(f, x, position)
    for f in (masked_late, shallow)
    for position in range(1, 11)
), "in the others something does"

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
