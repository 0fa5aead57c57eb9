# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Who may see whom? Masks
#
# **A mask is a table with a row for each query and a column for each key. In this site's masks, `True`<!--==
# bool(causal[1, 0]) --> says that the query may see the key.** What a query may not see gets a score of minus infinity
# before the softmax, and so a weight of exactly zero<!--== bool((weights[~both] == 0).all()) -->. PyTorch's own
# interfaces disagree about `True`:
#
# | `True` means | In |
# | --- | --- |
# | *may attend*<!--== means[0] --> | `F.scaled_dot_product_attention`: `attn_mask` |
# | **may not attend**<!--== means[1] --> | `nn.MultiheadAttention`: `attn_mask` |
# | **may not attend**<!--== means[2] --> | `nn.MultiheadAttention`: `key_padding_mask` |
# | **may not attend**<!--== means[3] --> | `nn.TransformerEncoderLayer`: `src_mask` |
# | *may attend*<!--== means[4] --> | `unmasked`: `allowed` |
#
# None<!--== "None" if ran == 2 * len(calls) else "Some" --> of them raises an error when `True` and `False` are
# exchanged. This page computes that table.
#
# *Computed with torch {{= torch.__version__.split("+")[0] }} on the {{= y.device.type.upper() }}.*
#
# **You should know** [what attention computes](../learn/attention.py): scores, a softmax, an average of values. **You
# will know** the masks for padding and for causality and how to combine them, what each interface of PyTorch does with
# yours, and a test that tells of any module whether it sees the future.

# %%
import torch
import torch.nn.functional as F
from torch import nn

from unmasked import attention_scores, attention_weights, bypass_, masks, plot, probes, self_attention
from unmasked.embeddings import ship_vectors

sentences = ["I must go back to my ship and to my crew", "We process and ship your order"]
words = [sentence.lower().split() for sentence in sentences]
lengths = torch.tensor([len(each) for each in words])
lengths

# %% [markdown]
# ## Two sentences in one batch: padding
#
# A tensor is rectangular. The sentences have 11<!--= lengths[0] --> and 6<!--= lengths[1] --> words, so the shorter one
# is *padded* with rows that mean nothing. Usually they are zeros. Here they hold a number that will be noticed if
# anybody looks at it:

# %%
x = torch.full((2, 11, 50), 1000.0)  # batch tokens features
for rows, sentence in zip(x, words, strict=True):
    rows[: len(sentence)] = ship_vectors().lookup(sentence)

real = torch.tensor([[key < length for key in range(11)] for length in lengths])  # batch keys
padding = real[:, None]  # batch 1 keys
assert torch.equal(padding[:, None], masks.padding(lengths))
real.int()

# %% [markdown]
# The mask has an axis of length one, for the queries: whoever asks, padding may not be seen. Such an axis is
# *broadcast*, which costs no copies. `masks.padding` has another one, for heads. With the mask, the words of the short
# sentence get the context that they get when they are alone:

# %%
padded = self_attention(x, allowed=padding)
for context, sentence in zip(padded.context, words, strict=True):
    alone = self_attention(ship_vectors().lookup(sentence)).context
    torch.testing.assert_close(context[: len(sentence)], alone)

exposed = self_attention(x)
off = (exposed.context - padded.context)[:, :6].abs().amax((1, 2))
[f"{each:.0f}" for each in off.tolist()]

# %% [markdown]
# Without the mask the longer<!--= "longer" if off[0] < 1e-5 and lengths[0] > lengths[1] else "shorter" --> sentence is
# right, since it has no padding, and the shorter one is not<!--= off[1] > 1 -->. A row of padding still gets some
# output itself. Leave it out of the loss and of every average.
#
# ## No looking ahead: the causal mask
#
# A model that is to predict the next word must not see that word. The *causal* mask allows each token itself and what
# stands before it. Where two masks hold, a query sees what both allow:

# %%
causal = torch.tensor([[key <= query for key in range(11)] for query in range(11)])  # queries keys
assert torch.equal(causal, masks.causal(11))

both = causal & padding  # batch queries keys
assert torch.equal(both, masks.combine(causal, padding))
{"causal": causal.shape, "padding": padding.shape, "both": both.shape}

# %% tags=["hide-input"]
#| alt: Four masks of five queries and five keys. Causal: visible on and below the diagonal. Padding: the last two
#|   columns are blocked in every row. Both: a staircase that ends at the third column. Padding on the left and causal:
#|   the first two columns are blocked, so that the first two<!--= (~gallery["left padding, causal"].any(-1)).sum() -->
#|   rows are blocked altogether.
end = torch.tensor([True, True, True, False, False]).expand(5, 5)
gallery = {"causal": masks.causal(5), "padding": end, "both": masks.causal(5) & end}
gallery["left padding, causal"] = masks.causal(5) & end.flip(-1)
plot.mask(gallery)

# %% [markdown]
# In the last of the four<!--= len(gallery) --> masks the padding stands in front, as is usual where a model goes on
# writing at the end. Then the first queries see nothing at all; [what a row of nothing
# gives](#when-a-row-allows-nothing) depends on the interface. Padded at the end, every query sees at least the first
# token<!--= bool(both[:, :, 0].all())
# -->.
#
# Under the causal mask *ship* takes nothing<!--== "nothing" if weights[0, ship, crew] == 0 else "something" --> from
# *crew*, which comes later:

# %% tags=["hide-input"]
#| alt: A heat map of the weights, eleven<!--== len(words[0]) --> words by eleven: a staircase. Nothing above the
#|   diagonal has a weight; the first row has one cell, 1.00<!--= weights[0, 0, 0] -->, and ship keeps
#|   0.73<!--= weights[0, ship, ship] --> of itself.
weights = self_attention(x, allowed=both).weights
ship, crew = words[0].index("ship"), words[0].index("crew")
plot.heatmap(weights[0], queries=words[0])

# %% [markdown]
# The first word sees only itself, with a weight of 1.00<!--= weights[0, 0, 0] -->. *ship* keeps
# 73%<!--= weights[0, ship, ship] --> of itself; without the causal mask it kept
# 55%<!--= padded.weights[0, ship, ship] -->.
#
# ## Before the softmax, not after
#
# Masking leaves what is not allowed out of the sum. Let $m_{ij}$ be one where query $i$ may see key $j$, and zero
# elsewhere; $s_{ij}$ are the scores, and $a_{ij}$ the weights:
#
# $$a_{ij} = \frac{m_{ij} \, e^{s_{ij}}}{\sum_l m_{il} \, e^{s_{il}}} \tag{5.1}$$
# <!-- where: s = random("n n"); m = masks.causal(n).double(); a = attention_weights(s, allowed=masks.causal(n)) -->
#
# There are two ways to write that as a softmax. `masked_fill` replaces the scores that are not allowed by minus
# infinity, whose exponential is zero. Or a matrix $B$ is added, zero where a query may see and minus infinity where
# not: the *additive* mask.
#
# $$A = \operatorname{softmax}(S + B) \tag{5.2}$$
# <!-- where: S = random("n n"); B = masks.additive_from_allowed(masks.causal(n), torch.float64);
# A = attention_weights(S, allowed=masks.causal(n)) -->


# %%
def masked_softmax(scores, allowed):
    return scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1)


scores = attention_scores(x[0], x[0])
by_hand = masked_softmax(scores, causal)
added = torch.zeros(11, 11).masked_fill(~causal, -torch.inf)

torch.testing.assert_close(by_hand, weights[0])
torch.testing.assert_close(by_hand, (scores + added).softmax(-1))
assert torch.equal(added, masks.additive_from_allowed(causal))

# %% [markdown]
# Some code masks first and divides by $\sqrt{d}$ afterwards. That is the same, as minus infinity stays what it is:

# %%
masked_first = (x[0] @ x[0].mT).masked_fill(~causal, -torch.inf)
torch.testing.assert_close((masked_first / 50**0.5).softmax(-1), by_hand)

# %% [markdown]
# The package adds. What if weights are set to zero [*after* the softmax](../museum/masks.py#mask-after-softmax)?

# %%
late = scores.softmax(dim=-1) * causal
sums = late.sum(dim=-1)
print([f"{each:.2f}" for each in sums.tolist()])

torch.testing.assert_close(late / sums[:, None], by_hand)

# %% [markdown]
# The rows no longer sum to one, but for the last<!--= "last" if (sums[:-1] < 0.999).all() and (sums[-1] - 1).abs() <
# 1e-5 else "first" -->, which may see everything. And the future is still in there: the scores of later words are part
# of each row's sum, so they decide how small the weights become. To divide by the new sums mends it, as the last line
# shows: that is (5.1) in another order.
#
# ## Nothing leaks
#
# A causal module must give the earlier tokens the same output, whatever the later ones are. So a test needs no
# reference: change the later tokens, and compare what the earlier ones get. The comparison allows for rounding, so the
# change must be large: then even a small weight shows. (*Eager* below makes the table of weights. *Fused* is PyTorch's
# faster code, which does not hold it [unless the table is asked for](from_scratch.py#why-no-table-of-weights).
# *Shallow* lowers the scores of the future by 14<!--== lowered --> where it should take away infinity.)


# %%
def leaks(f, x, position):
    for size in (100, -100):  # one of the two raises an earlier token's scores
        changed = x.clone()
        changed[:, position:] *= size  # this token and all later ones
        if not torch.allclose(f(x)[:, :position], f(changed)[:, :position], atol=1e-4):
            return True
    return False


def eager(x):
    return self_attention(x, is_causal=True, implementation="eager").context


def fused(x):
    return self_attention(x, is_causal=True, need_weights=False, implementation="fused").context


def masked_late(x):
    return attention_scores(x, x).softmax(-1).tril() @ x


lowered = 14


def shallow(x):
    return (attention_scores(x, x) - lowered * ~masks.causal(x.size(1))).softmax(-1) @ x


x = x[:1]  # from here on, the longer sentence alone
for f in (eager, fused, masked_late, shallow):
    print(f.__name__, [position for position in range(1, 11) if leaks(f, x, position)])

# %% [markdown]
# In the two that are right nothing<!--= "nothing" if not any(leaks(f, x, position) for f in (eager, fused) for position
# in range(1, 11)) else "something" --> leaks, from any position; in the others, something<!--= "something" if
# all(leaks(f, x, position) for f in (masked_late, shallow) for position in range(1, 11)) else "nothing" -->, from every
# one. The package has this test as a *probe*, which also looks at the gradients. It
# returns `None` if all is well, and otherwise what it saw. It enlarges inputs a hundredfold. A leak that stays within
# rounding even then goes unseen by [`sees_the_future`](../reference/index.md#unmasked.probes.sees_the_future).

# %%
assert probes.sees_the_future(eager, x) is None
assert probes.sees_the_future(fused, x) is None
print(probes.sees_the_future(masked_late, x))
print(probes.sees_the_future(shallow, x))
assert probes.sees_the_future(shallow, x)
assert probes.differs(shallow(x), eager(x)) == 0  # on these words, nothing shows

# %% [markdown]
# ## What each interface makes of `True`
#
# Give each interface a mask in which the first query has `False` for the last key, then the mask inverted. Does the
# first token notice when the last one changes?

# %%
torch.manual_seed(5)
y = torch.randn(2, 3, 20)  # batch tokens features
module = nn.MultiheadAttention(20, 4, batch_first=True)  # four heads of five features
layer = nn.TransformerEncoderLayer(20, 4, dim_feedforward=16, dropout=0.0, batch_first=True)

calls = {
    "F.scaled_dot_product_attention, attn_mask": lambda y, mask: F.scaled_dot_product_attention(y, y, y, mask),
    "nn.MultiheadAttention, attn_mask": lambda y, mask: module(y, y, y, attn_mask=mask)[0],
    "nn.MultiheadAttention, key_padding_mask": lambda y, mask: module(y, y, y, mask[:2])[0],  # batch keys
    "nn.TransformerEncoderLayer, src_mask": lambda y, mask: layer(y, src_mask=mask),
    "unmasked.self_attention, allowed": lambda y, mask: self_attention(y, allowed=mask).context,
}
lower = masks.causal(3)
ran = 0


# %%
def notices(call, mask):
    global ran
    changed = y.clone()
    changed[:, 2] += 1
    before, after = call(y, mask)[0, 0], call(changed, mask)[0, 0]
    ran += 1
    return not torch.allclose(before, after)


meaning = {(False, True): "may attend", (True, False): "may not attend"}
means = [meaning[notices(call, lower), notices(call, ~lower)] for call in calls.values()]
plot.table(["Interface and argument", "True means"], list(zip(calls, means, strict=True)))

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ y.device.type.upper() }}.*
#
# A mask of padding is (batch, keys) to `key_padding_mask`. `F.scaled_dot_product_attention` reads two axes as (queries,
# keys). So it raises an error, or, with several sequences and as many queries, shuts out the wrong keys. What it
# wants is (batch, 1, 1, keys)<!--~ axes of length one -->. (With one sequence both mean the same<!--== "same" if
# torch.allclose(of_one, of_one_right) else "opposite" -->.)

# %%
ends = torch.tensor([[True, True, True], [True, True, False]])  # batch keys; True = may attend
q = y.unflatten(-1, (4, 5)).transpose(1, 2)  # batch heads tokens head_dim
try:
    F.scaled_dot_product_attention(q, q, q, attn_mask=ends)
except RuntimeError as error:
    print(error)
else:
    raise AssertionError("it took the mask")

two = q[:, :, :2]  # as many queries as sequences
misread = F.scaled_dot_product_attention(two, q, q, attn_mask=ends)
as_queries = F.scaled_dot_product_attention(two, q, q, attn_mask=ends[None, None])
torch.testing.assert_close(misread, as_queries)
padded_right = F.scaled_dot_product_attention(two, q, q, attn_mask=ends[:, None, None])
torch.testing.assert_close(padded_right[1], F.scaled_dot_product_attention(two[1], q[1, :, :2], q[1, :, :2]))
print(f"misread: off by {(misread - padded_right).abs().max():.1f}")

one = q[1:]  # a single sequence
of_one = F.scaled_dot_product_attention(one, one, one, attn_mask=ends[1:])
of_one_right = F.scaled_dot_product_attention(one, one, one, attn_mask=ends[1:, None, None])

# %% [markdown]
# `~` turns one kind into the other. `masks.blocked_from_allowed` does so too, and brings masks with an axis of heads
# into the shape that `nn.MultiheadAttention` wants. Here is that module, [switched off](bypass.py) so that
# nothing learned is in the way, on the batch of both sentences:

# %%
torch.manual_seed(7)
batch = torch.nn.utils.rnn.pad_sequence([ship_vectors().lookup(each) for each in words], batch_first=True)
bare = bypass_(nn.MultiheadAttention(50, num_heads=1, batch_first=True))

output, their_weights = bare(batch, batch, batch, attn_mask=~causal, key_padding_mask=~real)
ours = self_attention(batch, allowed=both)
torch.testing.assert_close(output, ours.context)
torch.testing.assert_close(their_weights, ours.weights)

try:
    bare(batch, batch, batch, is_causal=True)
except RuntimeError as error:
    print(str(error).split(". ")[0])
else:
    raise AssertionError("it took the hint for a mask")

# %% [markdown]
# As the last lines show, `is_causal=True` is no mask in that module. It is a hint that the mask which you pass is
# causal.
#
# ## Masks of numbers are added
#
# A floating mask is *added* to the scores, as in (5.2). So a mask of zeros and ones shuts nothing out.

# %%
leaked = (scores + causal.float()).softmax(-1)
theirs = F.scaled_dot_product_attention(x, x, x, attn_mask=causal.float())
torch.testing.assert_close(theirs[0], leaked @ x[0])
assert torch.equal(scores + causal, scores + causal.float())  # a boolean mask that is added

plain = scores.softmax(-1)
gain = leaked[0] / plain[0]
future = leaked.triu(1).sum(-1)
try:
    masks.allowed_from_additive(causal.float())
except ValueError as error:
    print(error)
else:
    raise AssertionError("it took ones for a mask")

# %% [markdown]
# It only raises the allowed scores by one, so that allowed weights grow by a factor of 2.72<!--= gain[0] / gain[1] -->
# relative to the others, which is $e$<!--= abs(gain[0] / gain[1] - torch.e) < 1e-4 -->. The first word still takes
# 40%<!--= future[0] --> of its context from later ones. A boolean mask that [is
# added](../museum/masks.py#boolean-mask-added),
# as in `scores += mask`, does the same.
#
# There is an exception. `nn.TransformerEncoderLayer` has a *fast path*, which makes minus infinity of every entry that
# is not zero. A mask such as ALiBi's, which lowers the scores of distant tokens, then shuts out all but the token
# itself. The layer takes that path in evaluation without gradients if it has `batch_first=True` (not the default), an
# even number of heads, biases, and relu or gelu. (Hooks, and norms that differ in `eps`, turn it off, too.)

# %%
torch.manual_seed(8)
distance = (torch.arange(3)[:, None] - torch.arange(3)).abs()
alibi = -0.5 * distance.float()
layer.eval()
with_gradients = layer(y, src_mask=alibi)
with torch.no_grad():
    without = layer(y, src_mask=alibi)
    itself = layer(y, src_mask=distance > 0)  # True: may not attend
    torch.backends.mha.set_fastpath_enabled(False)
    slow = layer(y, src_mask=alibi)
    torch.backends.mha.set_fastpath_enabled(True)
torch.testing.assert_close(without, itself)
torch.testing.assert_close(slow, with_gradients)
moved_by = (without - with_gradients).abs().max()


def loses(y, prepare=nn.Module.eval, heads=4, batch_first=True, **options):
    layer = nn.TransformerEncoderLayer(20, heads, 16, batch_first=batch_first, **options).eval()
    prepare(layer)
    with torch.no_grad():
        fast = layer(y, src_mask=alibi)
    return not torch.allclose(fast, layer(y, src_mask=alibi), atol=1e-4)


assert loses(y)  # relu is the default
assert loses(y, activation="gelu")
assert not loses(y, activation=torch.tanh)
assert not loses(y, heads=5)
assert not loses(y, bias=False)
assert not loses(y.transpose(0, 1), batch_first=False)
assert not loses(y, lambda layer: layer.register_forward_hook(lambda *_: None))
assert not loses(y, lambda layer: setattr(layer.norm1, "eps", 1e-6))

# %% [markdown]
# The output is off by 0.79<!--= moved_by -->, and nothing warns you. The remedy is
# `torch.backends.mha.set_fastpath_enabled(False)`, as the cell asserts.
#
# A large negative number in the place of minus infinity works until numbers have fewer bits: float16 ends at
# 65,504<!--= torch.finfo(torch.float16).max -->, and the $-10^9$<!--~ a constant that many use --> of much published
# code [does not fit into float16](../museum/masks.py#float16-overflow)<!--= torch.finfo(torch.float16).min > -1e9 -->:

# %%
try:
    scores.half().masked_fill(~causal, -1e9)
except RuntimeError as error:
    print(error)
else:
    raise AssertionError("the number fits")

# %% [markdown]
# ## When a row allows nothing
#
# A query that may see nothing has no weights: (5.1) divides zero by zero. Such rows come from
# padding on the left under a causal mask, and from empty sequences. Each interface answers in its own way:


# %%
def answer(row):
    return "NaN" if row.isnan().all() else "zeros" if not row.any() else "numbers"


nothing = lower.clone()
nothing[0] = False  # the first query may see no key
blind = {"F.scaled_dot_product_attention": F.scaled_dot_product_attention(y, y, y, attn_mask=nothing)}
for mode in ("train", "eval, no_grad"):
    module.train(mode == "train")
    for need_weights in (True, False):
        with torch.set_grad_enabled(mode == "train"):
            output, _ = module(y, y, y, attn_mask=~nothing, need_weights=need_weights)
        blind[f"nn.MultiheadAttention, {mode}, need_weights={need_weights}"] = output - module.out_proj.bias
blind["unmasked.self_attention"] = self_attention(y, allowed=nothing).context


def fast(*inputs, mask=~nothing, heads=4, **options):
    torch.manual_seed(5)
    module = nn.MultiheadAttention(20, heads, **{"batch_first": True, **options}).eval()
    with torch.no_grad():  # a new module's output has a bias of zeros, or none
        return answer(module(*inputs, attn_mask=mask, need_weights=False)[0][0, 0])


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
answers = {name: answer(output[0, 0]) for name, output in blind.items()}
plot.table(["Interface", "Context of the first query"], list(answers.items()))

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ y.device.type.upper() }}.*
#
# *eval* is run without gradients, as models usually are when they are used. The same module answers NaN<!--=
# answers["nn.MultiheadAttention, train, need_weights=True"] --> when weights are asked for, and zeros<!--=
# answers["nn.MultiheadAttention, train, need_weights=False"] --> or NaN<!--= answers["nn.MultiheadAttention, eval,
# no_grad, need_weights=False"] --> when they are not. The latter is a fast path again; that of
# `nn.MultiheadAttention` is for self-attention, with `batch_first=True`, biases, an even number of heads and a
# boolean mask<!--= "mask" if answers_off == ["NaN", *["zeros"] * 5] else "nothing" -->. The package always gives
# zeros<!--= answers["unmasked.self_attention"] -->. The museum's [query that may see
# nothing](../museum/masks.py#fully-masked-row) has the full table.
#
# One NaN is enough to ruin a training run. Below, the second sequence is empty, and the loss reads the first one alone:

# %%
module.train()
empty = torch.tensor([[False, False, True], [True, True, True]])  # True = padding, as this module wants it
output, _ = module(y, y, y, key_padding_mask=empty)
loss = output[0].square().sum()
loss.backward()
poisoned = module.in_proj_weight.grad.isnan().float().mean()
print(f"loss {loss:.2f}, NaN in {poisoned:.0%} of the gradient")

assert lower.any(-1).all()
assert not nothing.any(-1).all()

# %% [markdown]
# The loss is a number<!--= "number" if loss.isfinite() else "NaN" -->, and every<!--= poisoned == 1 --> entry of the
# gradient is NaN. Look for such rows before you train: `.any(-1).all()` tells whether every row of a mask allows
# something.
#
# ## More keys than queries
#
# A model that generates text keeps the keys of what it has written. Then two new queries look at five keys. The queries
# are the *last* two tokens, so the mask must be aligned at the bottom right, and [not at the top
# left](../museum/masks.py#top-left-causal):

# %%
bottom_right = masks.causal(2, 5)
top_left = torch.ones(2, 5, dtype=torch.bool).tril()

torch.manual_seed(6)
q, kv = torch.randn(1, 2, 4), torch.randn(1, 5, 4)  # batch tokens features
theirs = F.scaled_dot_product_attention(q, kv, kv, is_causal=True)
torch.testing.assert_close(theirs, masked_softmax(attention_scores(q, kv), top_left) @ kv)
ours = attention_weights(attention_scores(q, kv), is_causal=True)
torch.testing.assert_close(ours, masked_softmax(attention_scores(q, kv), bottom_right))

# %% tags=["hide-input"]
#| alt: Two masks of two queries and five keys. Aligned at the bottom right, the queries see
#|   four<!--= bottom_right[0].sum() --> and five<!--= bottom_right[1].sum() --> keys; aligned at the top left,
#|   one<!--= top_left[0].sum() --> and two<!--= top_left[1].sum() -->.
plot.mask({"bottom right": bottom_right, "top left": top_left})

# %% [markdown]
# Aligned at the top left, the newest query sees only two<!--= top_left[-1].sum() --> keys, the oldest. That is what
# `is_causal=True` means to PyTorch's function, as the cell asserts. The package aligns at the bottom right.
#
# ## A mask that looks right
#
# Here is a common mistake. The mask was written for `nn.MultiheadAttention`; then the code was moved to
# PyTorch's function, and the mask with it:

# %%
blocked = torch.ones(11, 11, dtype=torch.bool).triu(1)  # True = may not attend


def moved(x):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=blocked)


def mended(x):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=~blocked)


assert moved(x).shape == mended(x).shape
assert moved(x).isfinite().all()
for f in (moved, mended):
    print(f.__name__, probes.sees_the_future(f, x))

# %% [markdown]
# Shape and dtype are right, nothing raises, and all numbers are finite. But each word sees *only* what comes after
# it<!--= leaks(moved, x, ship) and not leaks(mended, x, ship) -->, and the last one nothing: its output is
# zeros<!--= answer(moved(x)[0, -1]) -->. The probe tells the two apart.
#
# ## Exercises
#
# `check` judges an answer by the name in brackets: [how to do the exercises](../install.md#do-the-exercises).
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
# - [How does one matrix hold many heads?](heads.py): the axis between batch and queries.
# - [The museum of mistakes](../museum/masks.py): every way to get a mask wrong, with the test that finds it.
# - [The doctor](../doctor.py) runs this page's test, and others, on your module.
#
# ## References
#
# <!--~ 2017, 3.2.3, 1, 2.13, 8068, 2022: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.3, the causal mask as minus infinity before the
#   softmax; equation 1, the softmax that (5.1) and (5.2) restrict.
# - PyTorch 2.13, documentation of `scaled_dot_product_attention` and `MultiheadAttention`: what `True` means.
# - ONNX, operator *Attention*, with the erratum of onnx/onnx#8068: a row that sees nothing is zero. A causal mask is
#   aligned at the end where a cache is declared (`past_key` or `nonpad_kv_seqlen`), and at the top left otherwise.
# - Press, Smith and Lewis (2022), *Train Short, Test Long*: ALiBi, which adds a penalty for distance to the scores.
