# %% [markdown]
# # What does each interface make of my mask?
#
# **PyTorch's attention function reads `True` as *may attend*; its modules read `True` as *may not attend*.** The wrong
# way round raises no error. This is what each of them takes:
#
# {{ plot.table(["Interface and argument", "True means", "Shapes that it takes", "A floating mask is"],
# rows).markdown() }}
#
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ y.device.type.upper() }}.*
#
# **You should know** [what a mask is for](../learn/masks.py). **You will know** which mask each interface of PyTorch
# wants, what it answers to a row that allows nothing, and a test that shows whether a module sees the future.
#
# ## What each interface makes of `True`
#
# Give each interface a mask in which the first query has `False` for the last key, and then the same mask inverted.
# Each time, change the last token: if the first token's output moves, the first query did see the last key.

# %% tags=["imports"]
import itertools
import warnings

import torch
import torch.nn.functional as F
from torch import nn

from unmasked import (
    attention_scores,
    attention_weights,
    masks,
    plot,
    self_attention,
)
from unmasked.kernels import takes_fast_path
from unmasked_doctor import probes
from unmasked_lessons.embeddings import ship_vectors
from unmasked_lessons.experiments.interfaces import (
    answer,
    blind,
    by_mode,
    causality,
    paintable,
)

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
# In every shape that it takes, an interface reads a mask in the same way.
#
# `~mask` turns one kind into the other. So does `masks.blocked_from_allowed`, which also brings a mask with an axis of
# heads into the shape that `nn.MultiheadAttention` wants. Choose an interface, paint a mask, and take its code:

# %% tags=["hide-input"]
#| caption: Who may see whom, and the weights that come out. Rows are queries, columns are keys. It begins with the
#|   causal mask: each word sees itself and what comes before it.
#| script: ../../src/unmasked_lessons/figures/painter.js
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
interfaces = paintable(module, y, allows)
plot.grid(
    {"may look": painted, "weights": painted_weights},
    rows=painter_words,
    columns=painter_words,
    allowed=painted,
    axes=("queries", "keys"),
)


# %% tags=["check"]
def floating(call, mask):
    ones, zeros = mask.float(), 0 * mask.float()
    if not takes(call, ones):
        return "refused"
    moved = not torch.allclose(call(y, ones), call(y, zeros), atol=1e-5)
    return "added" if moved and notices(call, ones) else "ignored"


rows = [
    [
        name,
        f"*{meaning}*",
        "; ".join(f"({each})" for each in names),
        floating(call, shapes[names[0]]),
    ]
    for (name, call), names, (meaning,) in zip(
        calls.items(), taken, told, strict=True
    )
]

# %% tags=["claims"]
assert told[0] == {"may attend"} and told[1:4] == [{"may not attend"}] * 3, (
    "PyTorch's attention function reads True as may attend; its modules read True as may not attend"
)
assert all(
    takes(call, ~shapes[names[0]])
    for call, names in zip(calls.values(), taken)
), "The wrong way round raises no error"
assert all(len(each) == 1 for each in told), (
    "In every shape that it takes, an interface reads a mask in the same way"
)
assert all(
    each.flatten()[0] and not each[..., -1].flatten()[0]
    for each in shapes.values()
), "a mask in which the first query has False for the last key"


# %% [markdown]
# ## Padding: which shape, and which way round
#
# A batch of two sequences has a padding mask of (batch, keys). `nn.MultiheadAttention` wants exactly that, with `True`
# for what is padding, while the function wants (batch, 1, 1, keys)<!--~ axes of length one -->, with `True` for what is
# real: `masks.padding(lengths)`.

# %%
lengths = torch.tensor([3, 2])
real = masks.padding(lengths)  # batch 1 1 keys; True = may attend
q = split(y)  # batch heads tokens head_dim

by_function = F.scaled_dot_product_attention(q, q, q, attn_mask=real)
by_module, _ = module(y, y, y, key_padding_mask=~real[:, 0, 0])

# %% [markdown]
# The function reads a mask of (batch, keys) as (queries, keys), and the call raises an error in all but two cases. With
# one sequence, both shapes mean the same. With as many queries as sequences, it [shuts out the wrong
# keys](../museum/masks.py#mask-polarity) without a word.

# %%
#| raises: RuntimeError: must match
F.scaled_dot_product_attention(q, q, q, attn_mask=real[:, 0, 0])

# %% tags=["check"]
attend = F.scaled_dot_product_attention
one, short = q[1:], q[1:, :, :2]  # the second sequence, and its real tokens
alone = attend(short, short, short)
alone_in_module, _ = module(*[y[1:, :2]] * 3)
two, ends = q[:, :, :2], real[:, 0, 0]  # as many queries as sequences
misread = attend(two, q, q, attn_mask=ends)

# %% [markdown]
# A row of padding still gets an output of its own, so leave it out of the loss and of every average.

# %% tags=["claims"]
assert by_module[1:, :2].allclose(alone_in_module, atol=1e-5), (
    "with True for what is padding"
)
assert by_function[1:, :, :2].allclose(alone, atol=1e-5), (
    "with True for what is real"
)
assert torch.allclose(
    misread, attend(two, q, q, attn_mask=ends[None, None]), atol=1e-5
), "The function reads a mask of (batch, keys) as (queries, keys)"
assert torch.allclose(
    attend(one, one, one, attn_mask=ends[1:]), by_function[1:], atol=1e-5
), "With one sequence, both shapes mean the same"
assert not torch.allclose(
    misread, attend(two, q, q, attn_mask=real), atol=1e-2
), "it shuts out the wrong keys without a word"

# %% [markdown]
# ## No looking ahead: the causal mask
#
# The *causal* mask allows each token itself and what stands before it. Where two masks hold, a query sees what both
# allow: use `masks.combine` where `True` means *may attend*, and `|` where it means *may not attend*.

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
# `nn.MultiheadAttention` does not make the causal mask for you. Its argument `is_causal=True` is only a hint that the
# mask you pass is causal. Without a mask, the hint is silently dropped where the [fast
# path](#train-is-not-eval-the-fast-path) is taken, in evaluation without gradients. Elsewhere it raises an error:

# %%
#| raises: RuntimeError: Need attn_mask
module(y, y, y, is_causal=True)


# %% tags=["check"]
hints = []
for training, gradients in itertools.product((True, False), repeat=2):
    module.train(training)
    with torch.set_grad_enabled(gradients):
        hints.append(causality(module, y))
module.train()

# %% [markdown]
# `F.scaled_dot_product_attention(q, k, v, is_causal=True)` does make it, and `unmasked` does so, too. The two disagree
# as soon as there are [more keys than queries](#more-keys-than-queries). If you also pass a mask, PyTorch's function
# takes or refuses `is_causal`, [by version and kernel](kernels.py#newer-versions); `unmasked` takes both.

# %% tags=["claims"]
assert gallery["left padding, causal"].any(-1).tolist() == 2 * [False] + 3 * [
    True
], "With padding on the left, the first two queries see nothing at all"
assert masks.combine(masks.causal(5), end).equal(gallery["both"]) and (
    ~masks.causal(5) | ~end
).equal(~gallery["both"]), (
    "use masks.combine where True means may attend, and | where it means may not attend"
)
assert hints == [*["raises"] * 3, "not causal"], (
    "in evaluation without gradients. Elsewhere it raises an error"
)

# %% [markdown]
# ## Masks of numbers are added
#
# A floating mask is *added* to the scores. So a mask of zeros and ones shuts nothing out: it raises the allowed scores
# by one, and the first word still takes 40%<!--= future[0] --> of its context from later ones. The same happens to a
# boolean mask that [is added](../museum/masks.py#boolean-mask-added), as in `scores += mask`. An additive mask that
# means what a boolean one means has zero for `True` and minus infinity for `False`. That of
# `nn.Transformer.generate_square_subsequent_mask` is the causal one:

# %%
words = "i must go back to my ship and to my crew".split()
x = ship_vectors().lookup(words)[None]  # batch tokens features
causal = masks.causal(len(words))
blocked_by_infinity = masks.additive_from_allowed(causal)
right = F.scaled_dot_product_attention(x, x, x, attn_mask=blocked_by_infinity)
wrong = F.scaled_dot_product_attention(x, x, x, attn_mask=causal.float())

# %% tags=["check"]
scores = attention_scores(x[0], x[0])
leaked = (scores + causal.float()).softmax(-1)
future = leaked.triu(1).sum(-1)

# %% [markdown]
# There is one exception: in evaluation, PyTorch's encoder layer may take a [fast
# path](#train-is-not-eval-the-fast-path). Many programs write a large negative number instead of minus infinity. That
# works until numbers have fewer bits: float16 ends at 65,504<!--= torch.finfo(torch.float16).max -->, and the
# `-1e9`<!--~ a constant that many use --> of much published code [does not fit into
# float16](../museum/masks.py#float16-overflow).

# %% tags=["claims"]
assert torch.allclose(wrong[0], leaked @ x[0], atol=1e-5), (
    "A floating mask is added to the scores"
)
assert (leaked > 0).all(), "So a mask of zeros and ones shuts nothing out"
assert (blocked_by_infinity.exp() == causal).all() and torch.allclose(
    right, attend(x, x, x, attn_mask=causal), atol=1e-5
), (
    "that means what a boolean one means has zero for True and minus infinity for False"
)
assert nn.Transformer.generate_square_subsequent_mask(len(words)).equal(
    blocked_by_infinity
), "That of nn.Transformer.generate_square_subsequent_mask is the causal one"
assert torch.finfo(torch.float16).min > -1e9, (
    "the -1e9 of much published code does not fit into float16"
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
# There are two ways to write that as a softmax. The first is `masked_fill`, which replaces the scores that are not
# allowed by minus infinity, whose exponential is zero. The second, which `unmasked` uses, adds a matrix $B$ that is
# zero where a query may see and minus infinity where it may not.
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
# Zeros [after the softmax](../museum/masks.py#mask-after-softmax) come too late. The rows no longer sum to one, except
# the last, which may see everything. And the future is still there: the scores of later words are part of each row's
# sum, so they decide how small the weights become. Dividing each row by its new sum repairs the weights.

# %% tags=["claims"]
assert (sums[:-1] < 0.999).all() and abs(sums[-1] - 1) < 1e-5, (
    "The rows no longer sum to one, except the last, which may see everything"
)
assert torch.allclose(
    late / sums[:, None], masked_softmax(scores, causal), atol=1e-5
), "Dividing each row by its new sum repairs the weights"

# %% [markdown]
# ## When a row allows nothing
#
# A query that may see nothing has no weights: (5.1) divides zero by zero. Such rows come from empty sequences, from
# padding on the left under a causal mask, and from windows that lie beyond the text. Each interface answers in its own
# way:


# %% tags=["hide-input"]
nothing = lower.clone()
nothing[0] = False  # the first query may see no key
questions = blind(y, nothing, {"nn.MultiheadAttention": module})
by_pytorch, with_weights, without_weights = (
    by_mode(module, ask)
    for (_, kind), ask in questions.items()
    if kind == "bool"
)
by_library = answer(self_attention(y, allowed=nothing).context[0, 0])
by_modes = {
    f"nn.MultiheadAttention, {mode}, need_weights={need}": answers[place]
    for place, mode in ((0, "train"), (2, "eval, no_grad"))
    for need, answers in ((True, with_weights), (False, without_weights))
}
plot.table(
    ["Interface", "Context of the first query"],
    [
        ("F.scaled_dot_product_attention", by_pytorch[0]),
        *by_modes.items(),
        ("unmasked.self_attention", by_library),
    ],
)

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ y.device.type.upper() }}.*
#
# *eval* is run without gradients, as models usually are when they are used. The same module answers NaN when weights
# are asked for, and zeros or NaN when they are not. That last NaN comes from a [fast
# path](#train-is-not-eval-the-fast-path), which `nn.MultiheadAttention` keeps for self-attention with
# `batch_first=True`, biases, an even number of heads and a boolean mask. This library always gives zeros. PyTorch's
# function gives zeros on a CPU, and on a GPU it depends on the kernel: with a boolean mask, cuDNN gave numbers, such as
# -1.8<!--~ measured there -->. (Seen on an H100 with PyTorch 2.11<!--~ the version there --> in bfloat16, where the
# function takes cuDNN by itself.) The museum's [query that may see nothing](../museum/masks.py#fully-masked-row) has
# the full table.


# %% tags=["check"]
torch.manual_seed(5)


def fast(*inputs, mask=~nothing, **options):
    options = {"num_heads": 4, "batch_first": True} | options
    made = nn.MultiheadAttention(20, **options).eval()
    given = {"attn_mask": mask, "need_weights": False}
    with torch.no_grad():
        return bool(takes_fast_path(made, *inputs, **given))


cross = [y, y.clone(), y.clone()]
tokens_first = [y.transpose(0, 1)] * 3
fast_ones = [
    fast(y, y, y),
    fast(*cross),
    fast(*tokens_first, batch_first=False),
]
fast_ones += [fast(y, y, y, bias=False), fast(y, y, y, num_heads=5)]
fast_ones += [fast(y, y, y, mask=masks.additive_from_allowed(nothing))]

# %% [markdown]
# One NaN is enough to ruin a training run. Below, the second sequence is empty, and the loss reads only the first:

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
# `allowed.any(-1).all()`<!--~ a call --> is true if every row of a mask allows something.

# %% tags=["claims"]
assert [*by_modes.values()] == ["NaN", "zeros", "NaN", "NaN"], (
    "The same module answers NaN when weights are asked for, and zeros or NaN when they are not"
)
assert fast_ones == [True, *[False] * 5], (
    "keeps for self-attention with batch_first=True, biases, an even number of heads and a boolean mask"
)
assert by_library == by_pytorch[0] == "zeros", (
    "This library always gives zeros. PyTorch's function gives zeros on a CPU"
)
assert loss.isfinite() and poisoned == 1, (
    "The loss is a number, and every entry of the gradient is NaN"
)

# %% [markdown]
# ## Train is not eval: the fast path
#
# In evaluation without gradients, `nn.TransformerEncoderLayer` can compute all its steps in one operator, its *fast
# path*, which turns every entry of a floating mask that is not zero into minus infinity. A bias such as ALiBi's, which
# only lowers the scores of distant tokens, then hides all but the token itself:

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
# `without` equals `itself`, and is off by 0.79<!--= moved_by --> from the layer that is trained. Nothing warns you, but
# you can ask: `takes_fast_path` is true here. Where it is false, it gives PyTorch's reason, such as training,
# gradients, `batch_first=False` (the default), no biases, an odd number of heads, an activation other than relu or
# gelu, a hook, norms that differ in `eps`, a sequence without a batch, or autocast on a GPU.
#
# The remedy is one line for the whole program: `torch.backends.mha.set_fastpath_enabled(False)`. Where no weights are
# asked for, it also turns the NaN of a row that allows nothing into zeros. Your own test can check that, without
# dropout, a layer gives in evaluation what it gives in training. Here
# `torch.testing.assert_close(without, with_gradients)` fails.


# %% tags=["check"]
torch.manual_seed(8)
fast_layers = []
for changed in (
    {},
    {"activation": "gelu"},
    {"bias": False},
    {"nhead": 5},
    {"activation": torch.tanh},
    {"batch_first": False},
):
    options = {"nhead": 4, "batch_first": True} | changed
    made = nn.TransformerEncoderLayer(20, dim_feedforward=16, **options)
    taken = y if options["batch_first"] else y.transpose(0, 1)
    with torch.no_grad():
        path_of_made = takes_fast_path(made.eval(), taken, src_mask=alibi)
    fast_layers.append(bool(path_of_made))

torch.backends.mha.set_fastpath_enabled(False)
with torch.no_grad():
    slow = layer(y, src_mask=alibi)
torch.backends.mha.set_fastpath_enabled(True)
with (
    torch.no_grad(),
    warnings.catch_warnings(record=True, action="always") as warned,
):
    layer(y, src_mask=alibi)

# %% tags=["claims"]
assert path, "in evaluation, PyTorch's encoder layer may take a fast path"
assert torch.allclose(without, itself, atol=1e-5), "without equals itself"
assert torch.allclose(without, itself, atol=1e-5) and path, (
    "which turns every entry of a floating mask that is not zero into minus infinity"
)
assert not warned and path, (
    "Nothing warns you, but you can ask: takes_fast_path is true here"
)
assert fast_layers == [True, True, *[False] * 4], (
    "no biases, an odd number of heads, an activation other than relu or gelu"
)
assert torch.allclose(slow, with_gradients, atol=1e-5), (
    "The remedy is one line for the whole program"
)
assert without_weights[2:] == ["NaN", "zeros"], (
    "it also turns the NaN of a row that allows nothing into zeros"
)

# %% [markdown]
# ## More keys than queries
#
# A model that generates text keeps the keys of what it has written, so that two new queries may look at five keys. The
# queries are the *last* two tokens, so the mask must be aligned at the bottom right, and [not at the top
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
# Aligned at the top left, as `is_causal=True` is in PyTorch's function, the newest query sees only the two oldest keys.
# This library aligns at the bottom right, as `mended` does.

# %% tags=["check"]
square = kv[:, :2]  # as many keys as queries
by_theirs = F.scaled_dot_product_attention(q, square, square, is_causal=True)
by_ours, ours = (
    attention_weights(attention_scores(q, keys), is_causal=True) @ keys
    for keys in (square, kv)
)
at_top_left = masked_softmax(attention_scores(q, kv), top_left) @ kv

# %% tags=["claims"]
assert torch.allclose(by_ours, by_theirs, atol=1e-5) and not torch.allclose(
    ours, theirs, atol=1e-5
), "The two disagree as soon as there are more keys than queries"
assert bottom_right.equal(masks.causal(5)[-2:]), (
    "The queries are the last two tokens, so the mask must be aligned at the bottom right"
)
assert bottom_right[-1].all() and theirs.allclose(at_top_left, atol=1e-5), (
    "masks.causal is aligned at the bottom right, and is_causal=True of PyTorch's function at the top left"
)
assert torch.allclose(ours, mended, atol=1e-5), (
    "This library aligns at the bottom right, as mended does"
)

# %% [markdown]
# ## Nothing leaks
#
# A mask that looks right can be wrong. This one was written for `nn.MultiheadAttention`, and stayed as it was when the
# code moved to PyTorch's function:

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
# and the last one sees nothing: its output is zeros.
#
# A causal module gives the earlier tokens the same output, no matter what comes later. So a test needs no reference:
# change the later tokens, and compare what the earlier ones get. Put this into your own tests:

# %%
print(probes.sees_the_future(inverted, x))
print(probes.sees_the_future(moved, x))

# %% [markdown]
# [`sees_the_future`](../reference/probes.md#unmasked_doctor.probes.sees_the_future) returns `None` if all is well, and
# otherwise what it saw. It enlarges the inputs a hundredfold and looks at the gradients, too. A leak that stays within
# rounding even then escapes it, and so does one that shows only in a longer text, or in the other mode of train and
# eval.

# %% tags=["check"]
other_start = torch.cat([2 * x[:, :1], x[:, 1:]], dim=1)

# %% tags=["claims"]
assert moved(x)[:, 1:].allclose(moved(other_start)[:, 1:], atol=1e-5), (
    "But each word sees only what comes after it"
)
assert not moved(x)[0, -1].any(), (
    "the last one sees nothing: its output is zeros"
)

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("causal-mask", answer))`.
#
# **The causal mask** (`causal-mask`). Write a function that takes a number of tokens and returns the boolean mask,
# `True` for *may attend*, without a loop.
#
# ??? question "Hint"
#
#     Compare a column of positions with a row of positions.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


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
