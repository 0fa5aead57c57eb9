# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Museum of mistakes: does my mask hide what it should?
#
# **Change what should be hidden, and see whether an output moves: that one test finds most of these mistakes.** None of
# them changes a shape. Each runs here beside the right version, on random numbers of ordinary size. *Off by* is the
# largest difference between the two outputs.
#
# | What you see | Mistake | Off by | Hides with |
# | --- | --- | --- | --- |
# | The loss falls fast, samples are poor | [no causal mask](#no-causal-mask) | 0.54<!--== off["none"] --> | one token |
# | The same | [a mask of the other polarity](#mask-polarity) | 2.64<!--== off["polarity"] --> | equal tokens |
# | The same | [a boolean mask added](#boolean-mask-added) | 0.85<!--== off["boolean"] --> | one token |
# | The same | [a float mask of ones](#float-mask-of-ones) | 0.27<!--== off["ones"] --> | one token |
# | The same | [`is_causal` alone](#is-causal-is-a-hint) | 0.99<!--== off["hint"] --> | one token |
# | Small outputs | [masked too late](#mask-after-softmax) | 0.40<!--== off["late"] --> | one token |
# | Depends on the batch | [padding seen](#padding-ignored) | 0.23<!--== off["padding"] --> | no padding |
# | Wrong with a cache | [top-left alignment](#top-left-causal) | 2.54<!--== off["top left"] --> | no cache |
# | NaN | [a row of nothing](#fully-masked-row) | NaN<!--== any_nan --> | a key for each |
# | An error in float16 | [a mask of -1e9](#float16-overflow)<!--~ a name --> | fails<!--== overflows --> | float32 |
# | A checkpoint that fails | [a mask kept in it](#mask-buffer) | nothing<!--== same_output --> | one context length |
# | Memory runs out | [a mask for every head](#expanded-mask) | nothing<!--== same_weights --> | short inputs |
#
# **You should know** [what a mask is](05_masks.py). **You will know** what each wrong one does, the sizes at which it
# hides, and a check that finds it. The [museum's index](09_museum.py) has the other rooms.

# %%
import math
import textwrap

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
    probes,
    scaled_dot_product_attention,
    self_attention,
)

B, N, H, D = 2, 5, 4, 3  # batch, tokens, heads, head_dim: all differ
E = H * D
x = torch.randn(B, N, E, generator=torch.Generator().manual_seed(9))


def causal(x):
    return masks.causal(x.size(1))  # True = may see


def with_mask(x, mask):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


# %% [markdown]
# `exhibit` runs a wrong version beside the right one. Where the mistake *hides*, by default in a single token, both
# must agree; on what is *given* they must not; and the probe must find the wrong one and pass the right one.

# %%
off = {}
leaks, one_token = probes.sees_the_future, [x[:, :1]]


def exhibit(name, wrong, right, probe=leaks, hides=one_token, given=(x,)):
    assert probes.differs(wrong(*hides), right(*hides)) == 0, "it hides here"
    off[name] = probes.differs(wrong(*given), right(*given))
    assert off[name] > 0
    assert probe(right, *given) is None
    found = probe(wrong, *given)
    assert found
    print(f"off by {off[name]:.3g}", textwrap.fill(str(found), 76), sep="\n")


# %% [markdown]
# Three<!--== len(weighed) - 1 --> of the mistakes, and the right weights of the same sequence. Only
# the right<!--== sound_ones == ["right"] --> ones have zeros above the diagonal, and rows that sum to one.

# %% tags=["hide-input"]
#| alt: Four heat maps of five queries and five keys. The right one is zero above the diagonal. With the other polarity
#|   it is zero everywhere else, and the last row is empty. With a boolean mask added, every key has a weight. Masked
#|   after the softmax, the upper triangle is empty but most rows are too small.
small = x[0, :, :D]  # few features, so that no weight is close to one
scores, allowed = attention_scores(small, small), causal(x)
weighed = {
    "right": attention_weights(scores, allowed=allowed),
    "other polarity": attention_weights(scores, allowed=~allowed),
    "boolean added": (scores + ~allowed).softmax(-1),
    "after softmax": scores.softmax(-1) * allowed,
}
sound_ones = [name for name, w in weighed.items() if not w.triu(1).any() and torch.allclose(w.sum(-1), torch.ones(N))]
plot.heatmap(weighed)

# %% [markdown]
# ## No causal mask at all { #no-causal-mask }
#
# It looks like the right thing: `nn.MultiheadAttention` and `F.scaled_dot_product_attention` mask nothing of their own
# accord. A model that is trained to predict the next token then reads the answer from its input.


# %%
def unmasked(x):
    return F.scaled_dot_product_attention(x, x, x)


def right(x):
    return with_mask(x, causal(x))  # or is_causal=True


exhibit("none", unmasked, right)
assert not probes.differs(unmasked(x)[:, -1], right(x)[:, -1])

# %% [markdown]
# **Hides** with one token, and always in the last one's output: do not test that alone. **Fix:** `is_causal=True`, or
# a mask.
#
# ## A mask of the other polarity { #mask-polarity }
#
# A mask goes from `nn.MultiheadAttention`, where `True` means *may not attend*<!--== polarity["nn.MultiheadAttention,
# attn_mask"][0] -->, to `F.scaled_dot_product_attention`, where it means the opposite, or back. Here every token sees
# the future alone, and the last one sees nothing.


# %%
def inverted(x):
    return with_mask(x, ~causal(x))[:, :-1]  # the last row is zeros


def but_last(x):
    return right(x)[:, :-1]


exhibit("polarity", inverted, but_last, hides=[torch.ones(B, N, E)])

# %% [markdown]
# What each interface makes of `True` is found out by asking: mark one key with `True` for every query, change it, and
# see whether an output moves. In evaluation without gradients PyTorch's modules run other code, so each is asked in all
# three modes.

# %%
torch.manual_seed(1)
module = nn.MultiheadAttention(E, H, batch_first=True)
ours = MultiheadAttention(E, H, batch_first=True)
ours.load_state_dict(module.state_dict())
layer = nn.TransformerEncoderLayer(E, H, 16, dropout=0.0, batch_first=True)
odd = nn.TransformerEncoderLayer(E, 3, 16, dropout=0.0, batch_first=True)
parts = nn.ModuleList([module, ours, layer, odd])
modes = {"train": (True, True), "eval": (False, True), "eval, no_grad": (False, False)}


def by_mode(f, *inputs, **options):
    answers = []
    for training, gradients in modes.values():
        parts.train(training)
        with torch.set_grad_enabled(gradients):
            answers.append(f(*inputs, **options))
    parts.train()
    return answers


# %%
marked = torch.zeros(N, N, dtype=torch.bool)
marked[:, 0] = True  # for every query, the first key alone
keys = marked[:1].expand(B, N)
interfaces = {
    "F.scaled_dot_product_attention, attn_mask": lambda x: with_mask(x, marked),
    "nn.MultiheadAttention, attn_mask": lambda x: module(x, x, x, attn_mask=marked)[0],
    "nn.MultiheadAttention, key_padding_mask": lambda x: module(x, x, x, keys)[0],
    "nn.TransformerEncoderLayer, src_mask": lambda x: layer(x, marked),
    "unmasked.MultiheadAttention, attn_mask": lambda x: ours(x, x, x, attn_mask=marked)[0],
    "unmasked.self_attention, allowed": lambda x: self_attention(x, allowed=marked).context,
}


def meaning(call):
    changed = x.clone()
    changed[:, 0] += 1
    moved = probes.differs(call(changed)[:, 1:], call(x)[:, 1:])
    return "may attend" if moved else "may not attend"


polarity = {name: by_mode(meaning, call) for name, call in interfaces.items()}
plot.table(["True means", *modes], [(name, *cells) for name, cells in polarity.items()])

# %% [markdown]
# The mode changes nothing<!--= "nothing" if all(len(set(cells)) == 1 for cells in polarity.values()) else "much" -->
# here. PyTorch's function and its modules disagree<!--= "disagree" if list(polarity.values())[0] !=
# list(polarity.values())[1] else "agree" -->.
#
# **Hides** where all tokens are equal, as in a test on `torch.ones`: whomever it averages, the average is the same.
# **Fix:** `~mask`, or name masks by what `True` means (`allowed`, `blocked`) and convert them with
# `masks.blocked_from_allowed`.
#
# ## A boolean mask added to the scores { #boolean-mask-added }
#
# `scores += mask` is right for a mask of zeros and minus infinity. A boolean one is converted without a word: `True`
# adds 1<!--= (torch.zeros(1) + torch.tensor([True])).item() -->.


# %%
def boolean_added(x):
    scores = attention_scores(x, x)
    scores += ~causal(x)  # right: scores.masked_fill_(~causal(x), -torch.inf)
    return scores.softmax(-1) @ x


exhibit("boolean", boolean_added, right)

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
# *added*, everywhere in PyTorch.


# %%
def ones_added(x):
    return with_mask(x, causal(x).float())


exhibit("ones", ones_added, right)

# %% [markdown]
# It **hides** in a second place, too: a float mask with ones where a query may *not* see. In training
# `nn.TransformerEncoderLayer` adds these ones to the scores; in evaluation without gradients it treats every number
# that is not zero as minus infinity. So the model is trained with next to no mask, and tested with the right one:


# %%
def gap(blocked):
    return probes.differs(layer(x, src_mask=blocked.float()), layer(x, src_mask=blocked))


gaps = by_mode(gap, ~causal(x))
plot.table(["", *modes], [("off by", *(f"{each:.3g}" for each in gaps))])

# %% [markdown]
# Off by 0.57<!--= gaps[0] --> in training, by nothing<!--= gaps[2] == 0 --> in the last mode. **Fix:** `.bool()`, of
# the right polarity. `masks.allowed_from_additive` refuses such a mask.
#
# ## Masked after the softmax { #mask-after-softmax }
#
# The upper triangle of the weights is zero, so the picture looks right. But the future is in every row's denominator.


# %%
def masked_late(x):
    weights = attention_scores(x, x).softmax(-1)
    return weights.tril() @ x  # right: mask the scores


exhibit("late", masked_late, right)

late = attention_scores(x, x).softmax(-1).tril()
assert probes.weights_sum_to_one(late)
renormalised = late / late.sum(-1, keepdim=True)
assert not probes.differs(renormalised @ x, right(x))
late.sum(-1).min().item()

# %% [markdown]
# Rows sum to as little as 0.58<!--= late.sum(-1).min() -->. **Hides** with one token, and in the last row. **Caught
# by** the sums of the rows, too. **Fix:** mask the scores. Dividing each row by its sum also gives
# the right<!--= not probes.differs(renormalised @ x, right(x)) --> weights, as long as what remains is not rounded to
# zero.
#
# ## Padding that is attended to { #padding-ignored }
#
# Sequences are padded to one length, and nobody tells the attention. Rows of zeros are no excuse: their scores are
# zero, and the exponential of zero is one<!--= math.exp(0) -->.

# %%
real, padded = 3, x.clone()
padded[:, real:] = 0.0


def allowed_keys(x):
    return torch.arange(x.size(1)) < real  # True = a word


def padding_seen(x):
    return self_attention(x).context[:, :real]


def padding_hidden(x):
    return self_attention(x, allowed=allowed_keys(x)).context[:, :real]


def padding_moves_it(f, x):
    def call(query, key, value, allowed):
        return f(key)

    return probes.attends_to_what_is_hidden(call, x, x, x, allowed_keys(x))


exhibit(
    "padding",
    padding_seen,
    padding_hidden,
    padding_moves_it,
    hides=[padded[:, :real]],
    given=[padded],
)
taken = self_attention(padded).weights[:, :real, real:].sum(-1).max().item()

# %% [markdown]
# A word gives up to 25%<!--= taken --> of its weight to nothing. **Hides** where no sequence is padded: in batches of
# one, or of equal lengths. **Fix:** `masks.padding(lengths)`, or a `key_padding_mask`.
#
# ## A causal mask aligned at the top left { #top-left-causal }
#
# With a cache, which keeps the keys and values of earlier tokens, two<!--== newest --> new queries look at all
# five<!--= N --> keys. They are the last tokens. PyTorch's `is_causal=True` counts from the other end and takes them
# for the first.

# %%
newest = 2


def top_left(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def bottom_right(q, k, v):
    return scaled_dot_product_attention(q, k, v, is_causal=True).context


def misaligned(f, q, k, v):
    return probes.misaligns_a_cache(f, k)


last = x[:, -newest:]
exhibit("top left", top_left, bottom_right, misaligned, [last] * 3, [last, x, x])
seen = torch.ones(newest, N, dtype=torch.bool).tril()
expected = F.scaled_dot_product_attention(last, x, x, attn_mask=seen)
torch.testing.assert_close(top_left(last, x, x), expected)

# %% [markdown]
# The newest token sees two<!--= seen[-1].sum() --> keys, the oldest; `masks.causal(newest, N)` gives it
# five<!--= masks.causal(newest, N)[-1].sum() -->. With one new token the mask would leave it the very
# first<!--= seen[0].tolist() == [True] + [False] * (N - 1) --> key alone. **Hides** where there are as many queries as
# keys: in training, and in the first step of generation. **Fix:** `masks.causal(queries, keys)`; for one query, no mask
# at all.
#
# ## `is_causal` taken for a mask { #is-causal-is-a-hint }
#
# To `nn.MultiheadAttention`, `is_causal=True` is a hint that the mask you pass is causal. Alone, it does nothing, or
# raises. With a mask it is believed, or not:


# %%
def hinted(x):
    with torch.no_grad():
        return module.eval()(x, x, x, is_causal=True, need_weights=False)[0]


def obeyed(x):
    with torch.no_grad():
        return ours.eval()(x, x, x, is_causal=True, need_weights=False)[0]


exhibit("hint", hinted, obeyed)

# %%
everything = torch.zeros(N, N, dtype=torch.bool)  # a mask that blocks nothing


def causality(part, **options):
    try:
        seen = leaks(lambda x: part(x, x, x, is_causal=True, **options)[0], x)
    except RuntimeError as error:
        if "Need attn_mask if specifying the is_causal hint" not in str(error):
            raise
        return "raises"
    return "not causal" if seen else "causal"


hints, rows = {}, []
for name, part in {"nn": module, "unmasked": ours}.items():
    for given, mask in {"no mask": None, "open mask": everything}.items():
        for need in (True, False):
            cells = by_mode(causality, part, attn_mask=mask, need_weights=need)
            hints[name, given, need] = cells
            rows.append((f"{name}.MultiheadAttention, {given}, need_weights={need}", *cells))
plot.table(["is_causal=True", *modes], rows)

# %% [markdown]
# In evaluation without gradients and without a mask, the hint is silently dropped<!--= hints["nn", "no mask", False][2]
# == "not causal" -->. If a mask is passed too, `need_weights=True` lets the mask<!--= "mask" if hints["nn", "open
# mask", True][0] == "not causal" else "hint" --> win; with `need_weights=False` the hint<!--= "hint" if hints["nn",
# "open mask", False][:2] == ["causal", "causal"] else "mask" --> wins while gradients are on, and the mask wins<!--=
# hints["nn", "open mask", False][2] == "not causal" --> in evaluation without gradients. **Hides** with one token.
# **Fix:** always pass the mask, with the hint or without, or use `unmasked.MultiheadAttention`, which obeys
# throughout<!--= all(cells == ["causal"] * 3 for key, cells in hints.items() if key[0] == "unmasked") -->.
#
# ## A query that may see nothing { #fully-masked-row }
#
# Padding on the left under a causal mask, an empty sequence, a window that starts too late: some row of the mask allows
# no key. A softmax over nothing but minus infinity is zero divided by zero.


# %%
def naive(q, k, v, allowed):
    scores = attention_scores(q, k).masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1) @ v


def sound(q, k, v, allowed):
    return attention_weights(attention_scores(q, k), allowed=allowed) @ v


def blinded(f, q, k, v, allowed):
    return probes.is_blinded(f, q, k, v, torch.ones_like(allowed))


left_padded = masks.causal(N) & (torch.arange(N) >= N - real)  # two keys of padding
words = left_padded[-real:]
exhibit(
    "blind",
    naive,
    sound,
    blinded,
    hides=[x[:, -real:], x, x, words],
    given=[x, x, x, left_padded],
)
any_nan = bool(naive(x, x, x, left_padded).isnan().any())

# %% [markdown]
# Two<!--= (~left_padded.any(-1)).sum() --> rows are NaN. **Hides** while every query has a key. What each interface
# makes of them depends on the mode, on `need_weights` and on the kind of mask. *Zeros* means a context of zeros: what
# comes out is the bias of the last layer.

# %%
nn.init.normal_(module.out_proj.bias, generator=torch.Generator().manual_seed(2))
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
    h = part.norm1(x[0, 0] + part.self_attn.out_proj.bias)  # with a context of zeros
    zero = part.norm2(h + part.linear2(part.linear1(h).relu()))
    return answer(part(x, src_mask=mask)[0, 0], zero)


# %%
added = masks.additive_from_allowed(left_padded)
blind = {}
for kind, mask in {"bool": ~left_padded, "float": added}.items():
    theirs = left_padded if kind == "bool" else mask
    blind["F.scaled_dot_product_attention", kind] = by_mode(of_function, theirs)
    for name, part in {"nn": module, "unmasked": ours}.items():
        for need in (True, False):
            title = f"{name}.MultiheadAttention, need_weights={need}"
            blind[title, kind] = by_mode(of_module, part, mask, need)
    for name, part in {"4 heads": layer, "3 heads": odd}.items():
        blind[f"nn.TransformerEncoderLayer, {name}", kind] = by_mode(of_layer, part, mask)
rows = sorted((f"{name}, {kind} mask", *cells) for (name, kind), cells in blind.items())
plot.table(["A row that may see nothing", *modes], rows)

# %% [markdown]
# `nn.MultiheadAttention` gives NaN<!--= blind["nn.MultiheadAttention, need_weights=True", "bool"][0] --> with weights.
# Without, it gives zeros<!--= blind["nn.MultiheadAttention, need_weights=False", "bool"][1] -->, but in evaluation
# without gradients NaN<!--= blind["nn.MultiheadAttention, need_weights=False", "bool"][2] --> for a boolean mask,
# and zeros<!--= blind["nn.MultiheadAttention, need_weights=False", "float"][2] --> for a float one. A layer with an odd
# number of heads runs the usual code in every mode, and
# gives zeros<!--= blind["nn.TransformerEncoderLayer, 3 heads", "bool"][2] -->.
#
# One NaN does not stay where it is. Here only the second sequence is empty, and the loss is made of the first alone:


# %%
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
# their output, or call what gives zeros: `unmasked.attention_weights`, or `F.scaled_dot_product_attention`.
#
# <!--~ a constant that many use -->
# ## A mask of -1e9 in float16 { #float16-overflow }
#
# $-10^9$<!--~ the constant --> stands in for minus infinity in many programs. float16 cannot hold it: its lowest number
# is -65,504<!--= torch.finfo(torch.float16).min -->.


# %%
def filled(number):
    def attend(x):
        scores = x @ x.mT / math.sqrt(x.size(-1))
        return scores.masked_fill(~causal(x), number).softmax(-1) @ x

    return attend


overflow = probes.fails_in_half(filled(-1e9), x)
assert probes.fails_in_half(filled(-torch.inf), x) is None
overflows = "overflow" in overflow.text
assert torch.tensor(-1e9).half() == -torch.inf
for wider in (x, x.bfloat16()):  # it hides there
    assert probes.differs(filled(-1e9)(wider), filled(-torch.inf)(wider)) == 0
print(overflow)

# %% [markdown]
# Added as a mask it does not fail, since the cast to float16 makes it minus infinity. And in every dtype it hides an
# error: in a row where every key is masked with it, the scores are rounded away, and every key gets the same weight,
# 20%<!--= (attention_scores(x, x) - 1e9).softmax(-1).max() -->. **Hides** in float32 and bfloat16. **Fix:**
# `-torch.inf`, with an eye on [rows that may see nothing](#fully-masked-row).
#
# ## A mask kept as a persistent float32 buffer { #mask-buffer }
#
# A *buffer* is a tensor that a module keeps and does not learn. `register_buffer("mask", ...)` with a square as long as
# the longest context puts one such square for every layer into the checkpoint, the file in which a model is saved.


# %%
class Buffered(nn.Module):
    def __init__(self, context_length):
        super().__init__()
        self.qkv = nn.Linear(4, 12, bias=False)
        self.out_proj = nn.Linear(4, 4, bias=False)
        mask = torch.ones(context_length, context_length).triu(1)
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
unlearned = set(wrong.state_dict()) - {name for name, _ in wrong.named_parameters()}
assert unlearned == {"mask"}
assert set(lean.state_dict()) == {name for name, _ in lean.named_parameters()}
with torch.device("meta"):  # sizes without memory
    longer = Buffered(1024)
mask_size, weight_size = longer.mask.nbytes, kept(longer) - longer.mask.nbytes
mask_size, weight_size

# %%
torch.manual_seed(4)
try:
    Buffered(8).load_state_dict(wrong.state_dict())
    refusal = ""
except RuntimeError as error:
    refusal = str(error).splitlines()[-1].strip()
refusal

# %% [markdown]
# The outputs are the same<!--= same_output -->. For 1,024<!--= longer.mask.size(0) --> tokens the mask takes
# 4<!--= mask_size / 2**20 --> MiB beside 256<!--= weight_size --> bytes of weights. And a model with another context
# length does not load<!--= "size mismatch for mask" in refusal --> them. **Hides** while nobody saves, or changes the
# length. **Caught by** a `state_dict` that holds more than parameters. **Fix:** `persistent=False` and `torch.bool`, or
# no mask at all: `is_causal`.
#
# ## A mask expanded to every head { #expanded-mask }
#
# `torch.full(scores.size(), -torch.inf).triu(1)` makes a mask for every sequence and every head. They are all the same.

# %%
scores = torch.randn(B, H, N, N, generator=torch.Generator().manual_seed(5))
every = torch.full(scores.size(), -torch.inf).triu(1)
one = torch.full((N, N), -torch.inf).triu(1)
same_weights = torch.equal((scores + every).softmax(-1), (scores + one).softmax(-1))
assert every.nbytes == B * H * one.nbytes
assert one.expand_as(every).untyped_storage().nbytes() == one.nbytes

batch, heads, tokens = 30, 8, 1024
with torch.device("meta"):
    per_head = torch.full((batch, heads, tokens, tokens), -torch.inf)
    single = torch.full((tokens, tokens), -torch.inf)
mebibytes = [mask.nbytes / 2**20 for mask in (per_head, single, single.bool())]
mebibytes

# %% [markdown]
# The weights are the same<!--= same_weights -->. For 30<!--= batch --> sequences, eight<!--= heads --> heads and
# 1,024<!--= tokens --> tokens it takes 960<!--= mebibytes[0] --> MiB where 4<!--= mebibytes[1] --> MiB do, or
# 1<!--= mebibytes[2] --> MiB
# as `torch.bool`. **Hides** with short inputs. **Caught by** `mask.untyped_storage().nbytes()`, which for a view by
# `expand` stays what it was. **Fix:** (queries, keys), and let it broadcast.

# %% [markdown]
# ## Exercises
#
# `check` judges an answer by the name in brackets: [how](../start.md#do-the-exercises).
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
        if not torch.allclose(f(changed)[:, :position], before[:, :position]):
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
# - The museum's other rooms: [heads](09_heads.py), [learned weights](09_weights.py), [numbers](09_numbers.py).
# - [Who may see whom?](05_masks.py): how masks are made.
# - [The doctor](18_doctor.py) asks your module all of this page's questions.
#
# ## References
#
# <!--~ references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.3, masks before the softmax.
# - PyTorch 2.13, documentation of `MultiheadAttention` and `scaled_dot_product_attention`: masks, `is_causal`.
# - ONNX, operator `Attention`: a row that may see nothing gives zeros; causal masks are aligned at the end.
