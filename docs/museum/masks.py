# %% [markdown]
# # Does my mask hide what it should?
#
# **Change what should be hidden, and see whether an output moves: that one test finds most of these mistakes.** None of
# them changes a shape. Each runs here beside the right version, on random numbers of ordinary size. *Off by* is the
# largest difference between the two outputs.
#
# | What you see | Mistake | Off by | Hides with |
# | --- | --- | --- | --- |
# | The loss falls fast, samples are poor | [no causal mask](#no-causal-mask) | 0.54<!--= off["no-causal-mask"] --> | one token |
# | The same | [a mask of the other polarity](#mask-polarity) | 2.64<!--= off["mask-polarity"] --> | equal tokens |
# | The same | [a boolean mask added](#boolean-mask-added) | 0.85<!--= off["boolean-mask-added"] --> | one token |
# | The same | [a float mask of ones](#float-mask-of-ones) | 0.27<!--= off["float-mask-of-ones"] --> | one token |
# | The same | [`is_causal` alone](#is-causal-is-a-hint) | 0.99<!--= off["is-causal-is-a-hint"] --> | one token |
# | Small outputs | [masked too late](#mask-after-softmax) | 0.40<!--= off["mask-after-softmax"] --> | one token |
# | Depends on the batch | [padding seen](#padding-ignored) | 0.23<!--= off["padding-ignored"] --> | no padding |
# | Wrong with a cache | [top-left alignment](#top-left-causal) | 2.54<!--= off["top-left-causal"] --> | no cache |
# | NaN | [a row of nothing](#fully-masked-row) | NaN | a key for each |
# | NaN | [a NaN behind the mask](#hidden-nan) | NaN | a full cache |
# | An error in float16 | [a mask of -1e9](#float16-overflow)<!--~ a name --> | fails | float32 |
# | A checkpoint that fails | [a mask kept in it](#mask-buffer) | nothing | one context length |
# | Memory runs out | [a mask for every head](#expanded-mask) | nothing | short inputs |
#
# **You should know** [what a mask is](../pytorch/masks.py). **You will know** what each wrong one does, the sizes at which it
# hides, and a check that finds it. The [museum's index](index.py) has the other rooms.

# %% tags=["hide-input"]
import math

import torch
import torch.nn.functional as F
from torch import nn

from unmasked import (
    CausalSelfAttention,
    MultiheadAttention,
    attention_scores,
    attention_weights,
    masks,
    plot,
    positions,
    probes,
    scaled_dot_product_attention,
    self_attention,
)
from unmasked.figures import interfaces
from unmasked.figures.interfaces import after_attention, causality
from unmasked.museum import ENTRIES, Exhibits, Plate

B, N, H, D = 2, 5, 4, 3  # batch, tokens, heads, head_dim: all differ
E = H * D
x = torch.randn(B, N, E, generator=torch.Generator().manual_seed(9))


def causal(x):
    return masks.causal(x.size(1))  # True = may see


def with_mask(x, mask):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


# %% [markdown] tags=["check"]
# `Exhibits` runs a wrong version beside the right one. Where the mistake *hides*, by default in a single token, both
# must agree; on what is *given* they must not; and the probe must find the wrong one and pass the right one.

# %% tags=["check"]
leaks = probes.sees_the_future
exhibit = Exhibits(given=x, hides=x[:, :1], probe=leaks)
off = exhibit.off

# %% [markdown]
# Three<!--= len(weighed) - 1 --> of the mistakes, and the right weights of the same sequence. Only the right ones have
# zeros above the diagonal, and rows that sum to one.

# %% tags=["hide-input"]
#| caption: The weights of {{ len(weighed) - 1 }} mistakes beside the right ones.
small = x[0, :, :D]  # few features, so that no weight is close to one
scores, allowed = attention_scores(small, small), causal(x)
weighed = {
    "right": attention_weights(scores, allowed=allowed),
    "other polarity": attention_weights(scores, allowed=~allowed),
    "boolean added": (scores + ~allowed).softmax(-1),
    "after softmax": scores.softmax(-1) * allowed,
}
sound_ones = [
    name
    for name, w in weighed.items()
    if not w.triu(1).any() and torch.allclose(w.sum(-1), torch.ones(N))
]
plot.grid(weighed, queries=range(N))

# %% tags=["claims"]
assert sound_ones == ["right"], (
    "Only the right ones have zeros above the diagonal"
)

# %% [markdown]
# ## No causal mask at all { #no-causal-mask }
#
# It looks like the right thing: `nn.MultiheadAttention` and `F.scaled_dot_product_attention` mask nothing of their own
# accord. A model that is trained to predict the next token then reads the answer from its input.


# %% tags=["hide-input"]
def unmasked(x):
    # right: F.scaled_dot_product_attention(x, x, x, is_causal=True)
    return F.scaled_dot_product_attention(x, x, x)


def right(x):
    return with_mask(x, causal(x))


exhibit("no-causal-mask", unmasked)

# %% tags=["check"]
assert not probes.differs(unmasked(x)[:, -1], right(x)[:, -1])
by_flag = F.scaled_dot_product_attention(x, x, x, is_causal=True)
assert not probes.differs(by_flag, right(x))

# %% [markdown]
# **Hides** with one token, and always in the last one's output: do not test that alone. **Fix:** `is_causal=True`, or
# a mask.
#
# ## A mask of the other polarity { #mask-polarity }
#
# A mask goes from `nn.MultiheadAttention`, where `True` means *may not attend*, to `F.scaled_dot_product_attention`,
# where it means the opposite, or back. Here every token sees the future alone, and the last one sees nothing.


# %% tags=["hide-input"]
def inverted(x):
    # right: with_mask(x, causal(x))
    return with_mask(x, ~causal(x))[:, :-1]  # the last row is zeros


exhibit("mask-polarity", inverted, hides=torch.ones(B, N, E))

# %% [markdown]
# What each interface makes of `True` is found out by asking: mark one key with `True` for every query, change it, and
# see whether an output moves. In evaluation without gradients PyTorch's modules run other code, their *fast path*, so
# each is asked in all three modes, and in the last one also with the fast path switched off.

# %% tags=["check"]
torch.manual_seed(1)
module = nn.MultiheadAttention(E, H, batch_first=True)
ours = MultiheadAttention(E, H, batch_first=True)
ours.load_state_dict(module.state_dict())
layer = nn.TransformerEncoderLayer(E, H, 16, dropout=0.0, batch_first=True)
odd = nn.TransformerEncoderLayer(E, 3, 16, dropout=0.0, batch_first=True)
parts = nn.ModuleList([module, ours, layer, odd])
modes = {
    "train": (True, True),
    "eval": (False, True),
    "eval, no_grad": (False, False),
}


without_fast_path = []  # what the last mode answers then, beside what evaluation with gradients does


def by_mode(f, *inputs, **options):
    answers = []
    for training, gradients in modes.values():
        parts.train(training)
        with torch.set_grad_enabled(gradients):
            answers.append(f(*inputs, **options))
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad():
        without_fast_path.append((f(*inputs, **options), answers[1]))
    torch.backends.mha.set_fastpath_enabled(True)
    parts.train()
    return answers


# %% tags=["hide-input"]
questions = interfaces.meanings(x, module, layer, ours)
polarity = {name: by_mode(ask) for name, ask in questions.items()}
plot.table(
    ["True means", *modes],
    [(name, *answers) for name, answers in polarity.items()],
)

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# The mode changes nothing here. PyTorch's function and its modules disagree.
#
# **Hides** where all tokens are equal, as in a test on `torch.ones`: whomever it averages, the average is the same.
# **Fix:** `~mask`, or name masks by what `True` means (`allowed`, `blocked`) and convert them with
# `masks.blocked_from_allowed`.

# %% tags=["claims"]
assert polarity["nn.MultiheadAttention, attn_mask"][0] == "may not attend", (
    "where True means may not attend"
)
assert all(len(set(cells)) == 1 for cells in polarity.values()), (
    "The mode changes nothing here"
)
assert list(polarity.values())[0] != list(polarity.values())[1], (
    "PyTorch's function and its modules disagree"
)

# %% [markdown]
# ## A boolean mask added to the scores { #boolean-mask-added }
#
# `scores += mask` is right for a mask of zeros and minus infinity. A boolean one is converted without a word: `True`
# adds 1<!--= (torch.zeros(1) + torch.tensor([True])).item() -->.


# %% tags=["hide-input"]
def boolean_added(x):
    scores = attention_scores(x, x)
    scores += ~causal(x)  # right: scores.masked_fill_(~causal(x), -torch.inf)
    return scores.softmax(-1) @ x


exhibit("boolean-mask-added", boolean_added, right)

# %% tags=["check"]
equal = torch.zeros(N, N)
future = (equal + ~causal(x)).softmax(-1)[0, 1:].sum().item()
future, equal.softmax(-1)[0, 1:].sum().item()

# %% [markdown]
# What was to be shut out is even preferred. With equal scores, the first token would give 80%<!--= (N - 1) / N --> of
# its weight to the future without any mask, and with this one it gives 92%<!--= future -->. **Hides** with one token.
# **Fix:** `masked_fill`, or `masks.additive_from_allowed(allowed)`.
#
# ## A float mask of zeros and ones { #float-mask-of-ones }
#
# The same from the other side: a mask of ones where a query may see and zeros where it may not. A floating mask is
# *added* to the scores, so the ones change little and the zeros nothing.


# %% tags=["hide-input"]
def ones_added(x):
    return with_mask(x, causal(x).float())  # right: with_mask(x, causal(x))


exhibit("float-mask-of-ones", ones_added)

# %% [markdown]
# PyTorch has one exception: on its [fast path for such masks](../pytorch/masks.py#masks-of-numbers-are-added),
# `nn.TransformerEncoderLayer` treats every number that is not zero as minus infinity. On that path ones in the hidden
# places happen to give the right mask. So the mistake **hides**: the model is trained with next to no mask, and its
# tests run with the right one. And a right floating mask is lost, such as ALiBi, which here takes off half the distance
# between query and key. `nn.MultiheadAttention` adds it in every mode.


# %% tags=["hide-input"]
def gap(blocked):
    return probes.differs(
        layer(x, src_mask=blocked.float()), layer(x, src_mask=blocked)
    )


alibi = masks.additive_from_allowed(causal(x)) + positions.alibi(8, N)[0]
by_layer = interfaces.adding(layer, x, alibi)
by_module = ours(x, x, x, attn_mask=alibi)[0]

gaps = by_mode(gap, ~causal(x))
alibi_off = by_mode(
    lambda: probes.differs(layer(x, src_mask=alibi), by_layer)
)
module_off = by_mode(
    lambda: probes.differs(module(x, x, x, attn_mask=alibi)[0], by_module)
)
rows = {"ones where hidden, off by": gaps, "ALiBi, off by": alibi_off}
plot.table(
    ["nn.TransformerEncoderLayer", *modes],
    [(name, *(f"{each:.3g}" for each in row)) for name, row in rows.items()],
)

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# The ones are off by 0.57<!--= gaps[0] --> in training, by nothing in the last mode; ALiBi is right in the first two,
# and off by 0.57<!--= alibi_off[2] --> in the last. **Fix:** `.bool()`, of the right polarity;
# `masks.allowed_from_additive` refuses a mask of ones. For biases: no fast path, by
# `torch.backends.mha.set_fastpath_enabled(False)`.

# %% tags=["claims"]
assert not any(module_off), "nn.MultiheadAttention adds it in every mode"
assert gaps[2] == 0, "by nothing in the last mode"
assert not any(alibi_off[:2]), "ALiBi is right in the first two"

# %% [markdown]
# ## Masked after the softmax { #mask-after-softmax }
#
# The upper triangle of the weights is zero, so the picture looks right. But the future is in every row's denominator.


# %% tags=["hide-input"]
def masked_late(x):
    scores = attention_scores(x, x)
    # right: scores.masked_fill(~causal(x), -torch.inf).softmax(-1)
    return scores.softmax(-1).tril() @ x


exhibit("mask-after-softmax", masked_late)

# %% tags=["check"]
late = attention_scores(x, x).softmax(-1).tril()
assert probes.weights_sum_to_one(late)
renormalised = late / late.sum(-1, keepdim=True)
assert not probes.differs(renormalised @ x, right(x))
late.sum(-1).min().item()

# %% [markdown]
# Rows sum to as little as 0.58<!--= late.sum(-1).min() -->. **Hides** with one token, and in the last row. **Caught
# by** the sums of the rows, too. **Fix:** mask the scores. Dividing each row by its sum also gives the right weights,
# as long as what remains is not rounded to zero.

# %% tags=["claims"]
assert not probes.differs(renormalised @ x, right(x)), (
    "Dividing each row by its sum also gives the right weights"
)

# %% [markdown]
# ## Padding that is attended to { #padding-ignored }
#
# Sequences are padded to one length, and nobody tells the attention. Rows of zeros are no excuse: their scores are
# zero, and the exponential of zero is one<!--= math.exp(0) -->.

# %% tags=["hide-input"]
real, padded = 3, x.clone()
padded[:, real:] = 0.0


def allowed_keys(x):
    return torch.arange(x.size(1)) < real  # True = a word


def padding_seen(x):
    # right: self_attention(x, allowed=allowed_keys(x))
    return self_attention(x).context[:, :real]


def padding_moves_it(f, x):
    def call(query, key, value, allowed):
        return f(key)

    return probes.attends_to_what_is_hidden(call, x, x, x, allowed_keys(x))


exhibit(
    "padding-ignored",
    padding_seen,
    probe=padding_moves_it,
    hides=padded[:, :real],
    given=padded,
)

# %% tags=["check"]
taken = self_attention(padded).weights[:, :real, real:].sum(-1).max().item()

# %% [markdown]
# A word gives up to 25%<!--= taken --> of its weight to nothing. **Hides** where no sequence is padded: in batches of
# one, or of equal lengths. **Fix:** `masks.padding(lengths)`, or a `key_padding_mask`.
#
# ## A causal mask aligned at the top left { #top-left-causal }
#
# With a cache, which keeps the keys and values of earlier tokens, two new queries look at all five keys. They are the
# last tokens. PyTorch's `is_causal=True` counts from the other end and takes them for the first.

# %% tags=["hide-input"]
newest = 2


def top_left(q, k, v):
    # right: F.scaled_dot_product_attention(
    #     q, k, v, masks.causal(q.size(1), k.size(1)))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def misaligned(f, q, k, v):
    return probes.misaligns_a_cache(f, k)


last = x[:, -newest:]
exhibit(
    "top-left-causal",
    top_left,
    probe=misaligned,
    hides=[last] * 3,
    given=[last, x, x],
)

# %% tags=["check"]
seen = torch.ones(newest, N, dtype=torch.bool).tril()
expected = F.scaled_dot_product_attention(last, x, x, attn_mask=seen)
torch.testing.assert_close(top_left(last, x, x), expected)

# %% [markdown]
# The newest token sees two<!--= seen[-1].sum() --> keys, the oldest; `masks.causal(newest, N)` gives it five<!--=
# masks.causal(newest, N)[-1].sum() -->. With one new token the mask would leave it the very first key alone. **Hides**
# where there are as many queries as keys: in training, and in the first step of generation. **Fix:**
# `masks.causal(queries, keys)`; for one query, no mask at all.

# %% tags=["claims"]
assert seen[0].tolist() == [True] + [False] * (N - 1), (
    "With one new token the mask would leave it the very first key alone"
)

# %% [markdown]
# ## `is_causal` taken for a mask { #is-causal-is-a-hint }
#
# To `nn.MultiheadAttention`, `is_causal=True` is a hint that the mask you pass is causal. Alone, it does nothing, or
# raises. With a mask it is believed, or not:


# %% tags=["hide-input"]
def hinted(x):
    with torch.no_grad():
        module.eval()
        # right: module(x, x, x, attn_mask=~causal(x), need_weights=False)
        return module(x, x, x, is_causal=True, need_weights=False)[0]


exhibit("is-causal-is-a-hint", hinted)

# %% tags=["check"]
window = masks.sliding_window(N, window=2)
wide, narrow, told = (
    module(x, x, x, attn_mask=~mask, is_causal=hint, need_weights=False)[0]
    for mask, hint in ((causal(x), False), (window, False), (window, True))
)
lost = probes.differs(told, wide) == 0 and probes.differs(told, narrow) > 0
hinted_last, *of_masks = (
    module(
        x[:, -2:], x, x, attn_mask=~mask, is_causal=hint, need_weights=False
    )[0]
    for mask, hint in (
        (masks.causal(2, N), True),
        (masks.causal(2, N), False),
        (torch.ones(2, N, dtype=torch.bool).tril(), False),
    )
)
(by_hint,) = (
    name
    for name, other in zip(
        ("bottom right", "top left"), of_masks, strict=True
    )
    if probes.differs(hinted_last, other) == 0
)

# %% tags=["hide-input"]
everything = torch.zeros(N, N, dtype=torch.bool)  # a mask that blocks nothing


padding = (torch.arange(N) == 2).expand(B, N)  # one key of each sequence


hints, obeys = {}, []
for given, options in {
    "no mask": {"attn_mask": None},
    "open mask": {"attn_mask": everything},
    "open mask and padding": {
        "attn_mask": everything,
        "key_padding_mask": padding,
    },
}.items():
    for need in (True, False):
        options["need_weights"] = need
        hints[given, need] = by_mode(causality, module, x, **options)
        obeys += by_mode(causality, ours, x, **options)
rows = [
    (f"{given}, need_weights={need}", *cells)
    for (given, need), cells in hints.items()
]
plot.table(["nn.MultiheadAttention, is_causal=True", *modes], rows)

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# Without a mask it raises, or, on the fast path, silently drops the hint. With a mask, the hint wins in one case:
# `need_weights=False`, no key_padding_mask, and no fast path. Then a window in the mask is lost. With fewer queries
# than keys, as with a cache, a causal mask is lost as well: the hint counts from the top left. **Hides** with one
# token. **Fix:** pass the mask, and the hint only where the mask is causal and nothing else, of as many queries as
# keys; or use `unmasked.MultiheadAttention`, which obeys in every mode.

# %% tags=["claims"]
assert hints["no mask", False][0] == "raises", "Without a mask it raises"
assert hints["no mask", False][2] == "not causal", "silently drops the hint"
assert "causal" not in hints["open mask and padding", False], (
    "no keypaddingmask, and no fast path"
)
assert hints["open mask", False] == ["causal", "causal", "not causal"], (
    "and no fast path"
)
assert lost, "Then a window in the mask is lost"
assert by_hint == "top left", (
    "a causal mask is lost as well: the hint counts from the top left"
)
assert set(obeys) == {"causal"}, "which obeys in every mode"

# %% [markdown]
# ## A query that may see nothing { #fully-masked-row }
#
# Padding on the left under a causal mask, an empty sequence, a window that starts too late: some row of the mask allows
# no key. A softmax over nothing but minus infinity is zero divided by zero.


# %% tags=["hide-input"]
def naive(q, k, v, allowed):
    scores = attention_scores(q, k)
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v


def sound(q, k, v, allowed):
    scores = attention_scores(q, k)
    return attention_weights(scores, allowed=allowed) @ v


def blinded(f, q, k, v, allowed):
    return probes.is_blinded(f, q, k, v, torch.ones_like(allowed))


left_padded = masks.causal(N) & (
    torch.arange(N) >= N - real
)  # two keys of padding
words = left_padded[-real:]
exhibit(
    "fully-masked-row",
    naive,
    sound,
    blinded,
    hides=[x[:, -real:], x, x, words],
    given=[x, x, x, left_padded],
)

# %% tags=["check"]
any_nan = bool(naive(x, x, x, left_padded).isnan().any())

# %% [markdown]
# Two<!--= (~left_padded.any(-1)).sum() --> rows are NaN. **Hides** while every query has a key. What each interface
# makes of them depends on the mode, on `need_weights` and on the kind of mask. *Zeros* means a context of zeros: what
# comes out is the bias of the last layer.

# %% tags=["check"]
nn.init.normal_(
    module.out_proj.bias, generator=torch.Generator().manual_seed(2)
)
ours.load_state_dict(module.state_dict())


def answer(row, zero):
    if row.isnan().all():
        return "NaN"
    return "zeros" if probes.differs(row, zero) == 0 else "numbers"


def of_function(mask):
    return answer(with_mask(x, mask)[0, 0], torch.zeros(E))


def of_module(part, mask, need):
    output, _ = part(x, x, x, attn_mask=mask, need_weights=need)
    return answer(output[0, 0], part.out_proj.bias)


def of_layer(part, mask):
    zero = after_attention(
        part, x[0, 0], part.self_attn.out_proj.bias
    )  # with a context of zeros
    return answer(part(x, src_mask=mask)[0, 0], zero)


stack = nn.TransformerEncoder(layer, 2).eval()
shut_out = torch.tensor([[False] * N, [True] * N])  # True = padding
layer.eval()
with torch.no_grad():
    empty = {
        name: answer(
            part(x, src_key_padding_mask=shut_out)[1], torch.zeros(N, E)
        )
        for name, part in {"layer": layer, "encoder": stack}.items()
    }
layer.train()

# %% tags=["hide-input"]
added = masks.additive_from_allowed(left_padded)
blind = {}
for kind, mask in {"bool": ~left_padded, "float": added}.items():
    theirs = left_padded if kind == "bool" else mask
    blind["F.scaled_dot_product_attention", kind] = by_mode(
        of_function, theirs
    )
    for name, part in {"nn": module, "unmasked": ours}.items():
        for need in (True, False):
            title = f"{name}.MultiheadAttention, need_weights={need}"
            blind[title, kind] = by_mode(of_module, part, mask, need)
    for name, part in {"4 heads": layer, "3 heads": odd}.items():
        blind[f"nn.TransformerEncoderLayer, {name}", kind] = by_mode(
            of_layer, part, mask
        )
plot.table(["A row that may see nothing", *modes], interfaces.by_kind(blind))

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# So NaN can appear in evaluation alone, because `nn.MultiheadAttention` has three programs. With weights it runs a
# softmax of its own, which gives NaN. Without them it calls PyTorch's function, which gives zeros on a CPU. (On a GPU
# [a row that allows nothing](../pytorch/masks.py#when-a-row-allows-nothing) gets what the kernel gives.) In evaluation
# without gradients, self-attention with `batch_first=True` takes the fast path ([for a row of
# nothing](../pytorch/masks.py#when-a-row-allows-nothing)), which gives NaN, but not for a floating mask: zeros. A layer
# with an odd number of heads takes no fast path, and gives zeros. With
# `torch.backends.mha.set_fastpath_enabled(False)`, the last column of every table of this page equals the one before
# it.
#
# A sequence of nothing but padding, hidden by `src_key_padding_mask`, is NaN from an `nn.TransformerEncoderLayer` on
# its fast path, and zeros from an `nn.TransformerEncoder`. There, too, the fast path cuts padding off before the first
# layer, and fills the output up with zeros after the last.
#
# One NaN does not stay where it is. Here only the second sequence is empty, and the loss is made of the first alone:


# %% tags=["check"]
def clean_gradient(module):
    empty = torch.tensor([[False] * N, [True] * N])  # True = padding
    module.zero_grad()
    module(x, x, x, key_padding_mask=empty)[0][0].sum().backward()
    return module.in_proj_weight.grad


poisoned = clean_gradient(module).isnan().float().mean().item()
assert clean_gradient(ours).isfinite().all()
poisoned

# %% [markdown]
# It makes 100%<!--= poisoned --> of the projections' gradient NaN. **Fix:** let such rows see something and ignore
# their output, or call what gives zeros: `unmasked.attention_weights`, or `unmasked.scaled_dot_product_attention`.

# %% tags=["claims"]
assert any_nan, "NaN a row of nothing NaN a key for each"
assert ["zeros", "zeros", "NaN"] in blind.values() and not any(
    row[0] == "NaN" != row[2] for row in blind.values()
), "So NaN can appear in evaluation alone"
assert (
    blind["nn.MultiheadAttention, need_weights=True", "bool"][0] == "NaN"
), "With weights it runs a softmax of its own, which gives NaN"
assert (
    blind["nn.MultiheadAttention, need_weights=False", "bool"][1] == "zeros"
), "which gives zeros on a CPU"
assert (
    blind["nn.MultiheadAttention, need_weights=False", "bool"][2] == "NaN"
), "for a row of nothing), which gives NaN"
assert (
    blind["nn.MultiheadAttention, need_weights=False", "float"][2] == "zeros"
), "but not for a floating mask: zeros"
assert blind["nn.TransformerEncoderLayer, 3 heads", "bool"][2] == "zeros", (
    "A layer with an odd number of heads takes no fast path, and gives zeros"
)
assert all(
    str(a) == str(b) or abs(a - b) < 1e-4 for a, b in without_fast_path
), "the last column of every table of this page equals the one before it"
assert empty["layer"] == "NaN", (
    "is NaN from an nn.TransformerEncoderLayer on its fast path"
)
assert empty["encoder"] == "zeros", "and zeros from an nn.TransformerEncoder"

# %% [markdown]
# ## A NaN behind the mask { #hidden-nan }
#
# A cache is made with room for eight tokens by `torch.empty`, which leaves in memory what was there, and the mask hides
# the room that is not in use. Its weights are zero, but zero times NaN is NaN. With deterministic algorithms switched
# on, PyTorch fills `torch.empty` with NaN, so that the mistake shows:

# %% tags=["hide-input"]
room = 8


def cached(x, make, room=room):
    # wrong: torch.empty(B, room, E), right: torch.zeros(B, room, E)
    cache = make(B, room, E)
    cache[:, : x.size(1)] = x
    used = torch.arange(room) < x.size(1)
    return F.scaled_dot_product_attention(
        x, cache, cache, attn_mask=used.expand(x.size(1), room)
    )


def by_empty(x, room=room):
    torch.use_deterministic_algorithms(True)
    context = cached(x, torch.empty, room)
    torch.use_deterministic_algorithms(False)
    return context


def by_zeros(x, room=room):
    return cached(x, torch.zeros, room)


def passes_nan(f, x):
    bad = int(f(x).isnan().any(-1)[0].sum())
    return f"{bad} of {x.size(1)} outputs are NaN" if bad else None


exhibit("hidden-nan", by_empty, by_zeros, passes_nan, hides=[x, N])

# %% tags=["check"]
hit = int(by_empty(x).isnan().any(-1)[0].sum())

# %% tags=["check"]
spoiled = {}
long = torch.randn(1, 1, 600, E, generator=torch.Generator().manual_seed(3))
for name, number in {
    "NaN": torch.nan,
    "inf": torch.inf,
    "1e30": 1e30,
}.items():
    value, cut = x.clone(), long.clone()
    value[:, real:] = cut[..., -1, :] = (
        number  # all hidden; of the long sequence the last token, by the causal mask
    )
    shut = (torch.arange(N) >= real).expand(B, N)
    contexts = [
        F.scaled_dot_product_attention(x, x, value, attn_mask=~shut[:, None]),
        scaled_dot_product_attention(
            x, x, value, allowed=~shut[:, None]
        ).context,
        scaled_dot_product_attention(
            x, x, value, allowed=~shut[:, None], implementation="eager"
        ).context,
        *(
            part(x, x, value, key_padding_mask=shut, need_weights=need)[0]
            for part in (module, ours)
            for need in (0, 1)
        ),
    ]
    spoiled[name] = [bool(context.isnan().any()) for context in contexts]
    if name == "NaN":
        causal_hit = int(
            F.scaled_dot_product_attention(long, long, cut, is_causal=True)[
                0, 0
            ]
            .isnan()
            .any(-1)
            .sum()
        )
        cleared = masks.zero_hidden(value, ~shut[:, None])
        cleared = F.scaled_dot_product_attention(
            x, x, cleared, attn_mask=~shut[:, None]
        )
spoiled, causal_hit

# %% [markdown]
# PyTorch's function and module pass a hidden NaN or infinity on, and so do this package's: a matrix product cannot
# leave a term out, it can only multiply it by zero. To check costs little: `key.isfinite().all()` reads each number
# once. A large finite number does no harm. Under `is_causal=True` a kernel may skip keys that a whole block of queries
# may not see, so that of a long sequence only some outputs are hit. **Hides** where the memory happens to be finite,
# and where no room is left. **Caught by** `torch.use_deterministic_algorithms(True)`. **Fix:** `torch.zeros`, or
# `cache[:, :length]`, which needs no mask. Where padding may hold anything, `unmasked.masks.zero_hidden` sets what no
# query may see to zero, and every output is finite again.

# %% tags=["claims"]
assert hit == N, "NaN a NaN behind the mask NaN a full cache"
assert all(spoiled["NaN"] + spoiled["inf"]), (
    "PyTorch's function and module pass a hidden NaN or infinity on"
)
assert not any(spoiled["1e30"]), "A large finite number does no harm"
assert 1 < causal_hit < long.size(2), (
    "so that of a long sequence only some outputs are hit"
)
assert cleared.isfinite().all(), "and every output is finite again"

# %% [markdown]
# <!--~ -1e9: a constant that many use -->
#
# ## A mask of -1e9 in float16 { #float16-overflow }
#
# $-10^9$<!--~ the constant --> stands in for minus infinity in many programs. float16 cannot hold it: its lowest number
# is -65,504<!--= torch.finfo(torch.float16).min -->.


# %% tags=["check"]
def filled(number):
    def attend(x):
        scores = x @ x.mT / math.sqrt(x.size(-1))
        # wrong: scores.masked_fill(~causal(x), -1e9)
        # right: scores.masked_fill(~causal(x), -torch.inf)
        return scores.masked_fill(~causal(x), number).softmax(-1) @ x

    return attend


overflow = probes.fails_in_half(filled(-1e9), x)
assert probes.fails_in_half(filled(-torch.inf), x) is None
overflows = "overflow" in overflow.text
assert torch.tensor(-1e9).half() == -torch.inf
for wider in (x, x.bfloat16()):  # it hides there
    assert probes.differs(filled(-1e9)(wider), filled(-torch.inf)(wider)) == 0
print(overflow)

# %% tags=["hide-input"]
Plate(ENTRIES["float16-overflow"], found=str(overflow))

# %% [markdown]
# In float16 `masked_fill` and `torch.full` raise, and a cast makes minus infinity of the number. And in a row where
# every key is masked, what the number gives depends on the dtype, and on whether it is filled in or added:

# %% tags=["hide-input"]
scores = attention_scores(x, x)[0]
dtypes = torch.float64, torch.float32, torch.bfloat16, torch.float16
emptied = {
    dtype: interfaces.hiding_everything(scores.to(dtype)) for dtype in dtypes
}
plot.table(
    ["every key masked with -1e9", *interfaces.WAYS_TO_HIDE],
    [(str(dtype), *cells) for dtype, cells in emptied.items()],
)

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# In float32 the scores are rounded away, and every key gets the same weight. float64 keeps them: added, the mask then
# hides nothing. **Hides** in float32 and bfloat16, while every row has a key. **Fix:** `-torch.inf`, with an eye on
# [rows that may see nothing](#fully-masked-row).
#
# Scores overflow without a mask, too. Here the queries and keys are a hundred times as large, and `q @ k.mT` is
# infinite before anything divides it; twice infinity in a row is NaN:

# %% tags=["check"]
big = (100 * x).half()
by_hand = (big @ big.mT / math.sqrt(E)).softmax(-1) @ big
bigger = (1000 * x).half()
beyond = (
    attention_scores(bigger, bigger).max().item()
    / torch.finfo(torch.float16).max
)
by_function = [with_mask(each, None) for each in (big, bigger)]
by_hand.isnan().any(), beyond

# %% [markdown]
# By hand the output is NaN. `F.scaled_dot_product_attention` stays finite, even where the divided scores are still
# 82<!--= beyond --> times too large for float16: its kernels keep them in float32. So does `unmasked.attention_scores`.
# By hand, divide the query before the product: then the scores may be $\sqrt{d}$ times as large before they overflow.

# %% tags=["claims"]
assert overflows, "An error in float16 a mask of -1e9 fails float32"
assert emptied[torch.float64][1] == "as if nothing were masked", (
    "the mask then hides nothing"
)
assert by_hand.isnan().any(), "By hand the output is NaN"
assert all(each.isfinite().all() for each in by_function), (
    "finite, even where the"
)

# %% [markdown]
# ## A mask kept as a persistent float32 buffer { #mask-buffer }
#
# A *buffer* is a tensor that a module keeps and does not learn. `register_buffer("mask", ...)` with a square as long as
# the longest context puts one such square for every layer into the checkpoint, the file in which a model is saved.


# %% tags=["check"]
class Buffered(nn.Module):
    def __init__(self, context_length):
        super().__init__()
        self.qkv = nn.Linear(4, 12, bias=False)
        self.out_proj = nn.Linear(4, 4, bias=False)
        mask = torch.ones(context_length, context_length).triu(1)
        # right: self.register_buffer("mask", mask.bool(), persistent=False)
        self.register_buffer("mask", mask)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        allowed = ~self.mask.bool()[: x.size(1), : x.size(1)]
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out_proj(context)


def kept(module):
    return sum(tensor.nbytes for tensor in module.state_dict().values())


torch.manual_seed(4)
wrong, lean = Buffered(7), CausalSelfAttention(4, 4, 1, out_bias=False)
lean.load_state_dict(dict(wrong.named_parameters()))
y = x[..., :4]
same_output = probes.differs(wrong(y), lean(y)) == 0
unlearned = set(wrong.state_dict()) - {
    name for name, _ in wrong.named_parameters()
}
assert unlearned == {"mask"}
assert set(lean.state_dict()) == {name for name, _ in lean.named_parameters()}
with torch.device("meta"):  # sizes without memory
    longer = Buffered(1024)
mask_size, weight_size = longer.mask.nbytes, kept(longer) - longer.mask.nbytes
mask_size, weight_size

# %% tags=["check"]
torch.manual_seed(4)
try:
    Buffered(8).load_state_dict(wrong.state_dict())
except RuntimeError as error:
    refusal = str(error).splitlines()[-1].strip()
else:
    raise AssertionError("it loaded a mask of another size")
refusal

# %% tags=["hide-input"]
Plate(ENTRIES["mask-buffer"], found=refusal.rstrip("."))

# %% [markdown]
# The outputs are the same. For 1,024<!--= longer.mask.size(0) --> tokens the mask takes 4<!--= mask_size / 2**20 -->
# MiB beside 256<!--= weight_size --> bytes of weights. And a model with another context length does not load them.
# **Hides** while nobody saves, or changes the length. **Caught by** a `state_dict` that holds more than parameters.
# **Fix:** `persistent=False` and `torch.bool`, or no mask at all: `is_causal`.

# %% tags=["claims"]
assert same_output, (
    "A checkpoint that fails a mask kept in it nothing one context length"
)
assert same_output, "The outputs are the same"
assert "size mismatch for mask" in refusal, (
    "And a model with another context length does not load them"
)

# %% [markdown]
# ## A mask expanded to every head { #expanded-mask }
#
# `torch.full(scores.size(), -torch.inf).triu(1)` makes a mask for every sequence and every head. They are all the same.

# %% tags=["check"]
scores = torch.randn(B, H, N, N, generator=torch.Generator().manual_seed(5))
every = torch.full(scores.size(), -torch.inf).triu(1)
one = torch.full((N, N), -torch.inf).triu(1)
same_weights = (
    probes.differs((scores + every).softmax(-1), (scores + one).softmax(-1))
    == 0
)
assert every.nbytes == B * H * one.nbytes
assert one.expand_as(every).untyped_storage().nbytes() == one.nbytes

batch, heads, tokens = 30, 8, 1024
with torch.device("meta"):
    per_head = torch.full((batch, heads, tokens, tokens), -torch.inf)
    single = torch.full((tokens, tokens), -torch.inf)
mebibytes = [
    mask.nbytes / 2**20 for mask in (per_head, single, single.bool())
]
mebibytes

# %% tags=["hide-input"]
Plate(ENTRIES["expanded-mask"])

# %% [markdown]
# The weights are the same. For 30<!--= batch --> sequences, eight heads and 1,024<!--= tokens --> tokens it takes
# 960<!--= mebibytes[0] --> MiB where 4<!--= mebibytes[1] --> MiB do, or 1<!--= mebibytes[2] --> MiB as `torch.bool`.
# **Hides** with short inputs. **Caught by** `mask.untyped_storage().nbytes()`, which for a view by `expand` stays what
# it was. **Fix:** (queries, keys), and let it broadcast.

# %% tags=["claims"]
assert same_weights, (
    "Memory runs out a mask for every head nothing short inputs"
)
assert same_weights, "The weights are the same"

# %% [markdown]
# ## Exercises
#
# `print(check(name, answer))`, with `check` of `unmasked.exercises`, judges an answer by the name in brackets: [how to
# do the exercises](../install.md#do-the-exercises).
#
# **A test for leaks** (`leak-test`). Write `looks_ahead(f, x)`: does a later token reach an earlier output of `f`, for
# `x` of (batch, tokens, features)? The check gives it functions with the mistakes of this page, and some without.
#
# ??? question "Hint"
#
#     For every position, change all tokens from there on, and compare the outputs before it.

# %% tags=["solution"]
from unmasked.exercises import check


def looks_ahead(f, x):
    before = f(x)
    for position in range(1, x.size(1)):
        changed = x.clone()
        changed[:, position:] = changed[:, position:].flip(-1) + 1
        after = f(changed)[:, :position]
        if not torch.allclose(after, before[:, :position], atol=1e-5):
            return True
    return False


check("leak-test", looks_ahead)

# %% [markdown]
# **A mask for the module** (`module-mask`). Write `module_mask(allowed, num_heads)` for `allowed` of (batch, queries,
# keys): the `attn_mask` for `nn.MultiheadAttention`, of shape (batch times heads, queries, keys).
#
# ??? question "Hint"
#
#     The heads of one sequence stand side by side: `repeat_interleave`, not `repeat`.


# %% tags=["solution"]
def module_mask(allowed, num_heads):
    return ~allowed.repeat_interleave(num_heads, dim=0)


check("module-mask", module_mask)

# %% [markdown]
# ## What to read next
#
# - The museum's other rooms: [heads](heads.py), [learned weights](weights.py), [computation](computation.py).
# - [What does each interface make of my mask?](../pytorch/masks.py) has the tables of PyTorch's interfaces.
# - [The doctor](../doctor.py) asks your module all of this page's questions.
#
# ## References
#
# <!--~ 2017, 3.2.3, 2.13, 8068: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.3, masks before the softmax.
# - PyTorch 2.13, documentation of `MultiheadAttention` and `scaled_dot_product_attention`: masks, `is_causal`.
# - ONNX, operator `Attention`, with the erratum of onnx/onnx#8068: a row that may see nothing gives zeros; a causal mask is aligned at the end where a cache is declared, and at the top left where none is.
