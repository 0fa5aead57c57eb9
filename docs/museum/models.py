# %% [markdown]
# # Does it stay right inside a model?
#
# **Run each sequence alone, then in a batch, packed, padded and step by step: the answers must be the same.** A layer
# that is right by itself can be wrong in a model, with positions, caches, padding, shared heads or a fast path. None of
# these mistakes raises an error. *Off by* is the largest difference from the right version.
#
# | What you see | Mistake | Off by | Hides with |
# | --- | --- | --- | --- |
# | A checkpoint answers nonsense | [heads repeated in the wrong order](#repeat-for-repeat-interleave) | {{ off["repeat-for-repeat-interleave"] :.2f}} | one key head |
# | The same | [the other pairing](#rope-pairing) | {{ off["rope-pairing"] :.2f}} | one token |
# | Bad on long texts | [another base](#rope-base) | {{ off["rope-base"] :.2f}} | one token |
# | A checkpoint answers worse | [normed after turning](#norm-after-rope) | {{ off["norm-after-rope"] :.2f}} | a fresh norm |
# | Bad on long texts | [angles in bfloat16](#rope-in-bfloat16) | {{ off["rope-in-bfloat16"] :.2f}} | short texts |
# | It learns slowly | [distance rewarded](#alibi-sign) | {{ off["alibi-sign"] :.2f}} | one token |
# | Writes badly with a cache | [positions begin again](#positions-restart) | {{ off["positions-restart"] :.2f}} | no cache |
# | Depends on the batch | [padding counted](#left-padding-positions) | {{ off["left-padding-positions"] :.2f}} | no padding |
# | The same | [documents see each other](#packed-without-documents) | {{ off["packed-without-documents"] :.2f}} | one document |
# | The same | [positions run on](#positions-not-reset) | {{ off["positions-not-reset"] :.2f}} | one document |
# | NaN | [a mask added twice](#two-finfo-min) | NaN | another large number |
# | Bad on long texts | [a window one wider](#window-off-by-one) | {{ off["window-off-by-one"] :.2f}} | texts within it |
# | A checkpoint answers nonsense | [a sink's share given back](#sink-share-returned) | {{ off["sink-share-returned"] :.2f}} | low sinks |
# | The loss falls fast | [chosen too early](#choice-before-causality) | {{ off["choice-before-causality"] :.2f}} | short texts |
# | A checkpoint answers nonsense | [not turned back](#output-not-turned-back) | {{ off["output-not-turned-back"] :.2f}} | one token |
# | The same | [a finished key as value](#turned-key-as-value) | {{ off["turned-key-as-value"] :.2f}} | one token |
# | The loss falls fast | [capped after the mask](#softcap-after-mask) | {{ off["softcap-after-mask"] :.2f}} | one token |
# | Evaluation is worse than training | [a bias on the fast path](#fast-path-bias) | {{ off["fast-path-bias"] :.2f}} | training |
# | Memory runs out in training | [dropout of the weights](#dropout-leaves-the-kernel) | nothing | evaluation |
# | Frozen weights change | [a gradient of zeros](#frozen-with-zero-gradient) | {{ off["frozen-with-zero-gradient"] :.2f}} | plain descent |
#
# **You should know** [what a mask is](../learn/masks.py) and [why positions are needed](../learn/positions.py). **You
# will know** what each of these mistakes does, where it hides, and a check that finds it. The [museum's
# index](index.py) has the other rooms.

# %% tags=["hide-input"]
import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from unmasked import attention_scores, attention_weights, functional, masks
from unmasked.positions import Rotary, alibi
from unmasked_doctor import probes
from unmasked_doctor.museum import ENTRIES, Exhibits, Plate, mended
from unmasked_lessons.experiments import interfaces

# batch, tokens, heads, heads of keys, head_dim: all differ
B, N, H, G, D = 3, 7, 4, 2, 6


def draw(*shape, seed=9):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


q = draw(B, H, N, D)
k, v = draw(B, G, N, D, seed=1), draw(B, G, N, D, seed=2)
x = draw(B, N, D, seed=3)


def causal(x):
    return masks.causal(x.size(-2))  # True = may see


def attend(x, allowed=None):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=allowed)


def unlike(reference, told):
    """Compares with a version that is known to be right."""

    def probe(f, *given):
        gap = probes.differs(f(*given), reference(*given))
        return f"another answer than {told}, by {gap:.2g}" if gap else None

    return probe


# runs wrong beside right: on what hides the mistake, on x, and under a probe
exhibit = Exhibits(given=x, hides=x[:, :1])
off = exhibit.off

# %% [markdown]
# ## Key heads repeated in the wrong order { #repeat-for-repeat-interleave }
#
# With grouped heads, neighboring query heads share a key head. `repeat` deals the key heads out in turn instead: the
# shapes are right, but the second query head attends with the keys of another group.


# %% tags=["hide-input"]
def repeated(q, k, v):
    groups = q.size(1) // k.size(1)
    # right: k.repeat_interleave(groups, 1)
    k, v = k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1)
    return F.scaled_dot_product_attention(q, k, v)


def by_pytorch(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


equal_heads = [q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)]
exhibit(
    "repeat-for-repeat-interleave",
    repeated,
    by_pytorch,
    unlike(by_pytorch, "with enable_gqa"),
    hides=[q, k[:, :1], v[:, :1]],
    given=[q, k, v],
)

# %% [markdown]
# **Hides** with one key head, which all share, and with as many key heads as query heads. **Caught by** `enable_gqa`,
# and by the [doctor](../doctor.py). **Fix:** `repeat_interleave`, or `enable_gqa=True`: the flash kernel copies nothing
# for it.

# %% tags=["claims"]
assert not probes.differs(repeated(*equal_heads), by_pytorch(*equal_heads)), (
    "which all share, and with as many key heads as query heads"
)

# %% [markdown]
# ## The other rotary pairing { #rope-pairing }
#
# A rotary embedding turns pairs of features. Which two make a pair is a convention: Meta's Llama pairs neighbors, the
# same model in Hugging Face's format pairs the halves. Queries and keys made for one pairing and turned by the other
# give meaningless scores.

# %% tags=["hide-input"]
places = torch.arange(N)
neighbors = Rotary(D, pairing="interleaved")
halves = Rotary(D, pairing="halves")


def turned_by_halves(q, k, places):
    # right: neighbors(q, places), neighbors(k, places)
    return attention_scores(halves(q, places), halves(k, places))


def turned_by_neighbors(q, k, places):
    return attention_scores(neighbors(q, places), neighbors(k, places))


def by_complex_numbers(q, k, places):
    angles = places[:, None] * 10_000.0 ** (-torch.arange(0, D, 2) / D)
    turn = torch.polar(torch.ones_like(angles), angles)
    turned = []
    for y in (q, k):
        pairs = torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous())
        turned.append(torch.view_as_real(pairs * turn).flatten(-2))
    return attention_scores(*turned)


keys = draw(B, H, N, D, seed=4)
exhibit(
    "rope-pairing",
    turned_by_halves,
    turned_by_neighbors,
    unlike(by_complex_numbers, "as complex numbers"),
    hides=[q[:, :, :1], keys[:, :, :1], places[:1]],
    given=[q, keys, places],
)

# %% [markdown]
# **Hides** at the first position, where nothing is turned, so test several tokens. A model that is *trained* with
# either pairing is right; the mistake is to load its checkpoint into the other. **Caught by** `by_complex_numbers`, or
# any logits that come with the checkpoint. **Fix:** `unmasked.positions.convert_pairing` on the projections of query
# and key, or the right `pairing`.

# %% tags=["claims"]
assert not probes.differs(halves(q[:, :, :1], places[:1]), q[:, :, :1]), (
    "Hides at the first position"
)

# %% [markdown]
# ## The base of another config { #rope-base }
#
# The base says how slowly pairs turn, and it differs from config to config. The usual slips are to leave it at ten
# thousand, and to give the near layers of a model the base of its far ones.

# %% tags=["hide-input"]
rope = {"rope_type": "default", "rope_theta": 500_000.0}  # its config


def by_default(x, places):
    # right: Rotary.from_config(D, rope)
    return Rotary(D, base=10_000.0)(x, places)


def unlike_the_config(f, x, places):
    wanted = Rotary.from_config(D, rope)
    return probes.turns_otherwise(f, wanted, x[0, 0])


exhibit(
    "rope-base",
    by_default,
    probe=unlike_the_config,
    hides=[q[:, :, :1], places[:1]],
    given=[q, places],
)

# %% [markdown]
# **Hides** in a text of one token, and from `probes.notices_a_shift`: with any base a score depends on the offset
# alone. **Caught by** `turns_otherwise`, which compares how far each pair turns. **Fix:** `Rotary.from_config`, with
# the parameters of that layer.


# %% tags=["remove-cell"]
def attends(x, places):
    turned = by_default(x, places)
    return F.scaled_dot_product_attention(turned, turned, x)


# %% tags=["claims"]
assert not probes.notices_a_shift(attends, x), (
    "with any base a score depends on the offset alone"
)

# %% [markdown]
# ## Queries and keys normed after turning { #norm-after-rope }
#
# Some models norm each query and key and multiply its features by learned factors, which differ within a pair. If that
# is done after turning, the score no longer depends on the offset alone.

# %% tags=["hide-input"]
factors = 1 + 0.5 * draw(D, seed=6)  # learned, one for each feature


def norm(x, factors=factors):
    return F.rms_norm(x, (D,), factors)


def normed_late(x, places):
    # right: halves(norm(x), places)
    query = key = norm(halves(x, places))
    return F.scaled_dot_product_attention(query, key, x)


def shifts(f, x, places):
    return probes.notices_a_shift(f, x)


exhibit(
    "norm-after-rope",
    normed_late,
    probe=shifts,
    hides=[x[:, :1], places[:1]],
    given=[x, places],
)

# %% [markdown]
# **Hides** in a fresh norm, whose factors are all one: turning changes no length. **Caught by** `notices_a_shift`, once
# the factors differ. **Fix:** first norm, then turn, unless the checkpoint was trained the other way round, as Hunyuan
# was. It is also a mistake to norm all heads as one, unless the norm's weight is as long as all of them together.

# %% tags=["claims"]
assert not probes.differs(
    norm(halves(x, places), None), halves(norm(x, None), places)
), "Hides in a fresh norm, whose factors are all one"
assert not probes.differs(halves(x, places).norm(dim=-1), x.norm(dim=-1)), (
    "turning changes no length"
)

# %% [markdown]
# ## Rotary angles in bfloat16 { #rope-in-bfloat16 }
#
# `model.bfloat16()` casts frequencies that are a buffer, too, and with them positions that take their type. That format
# has eight<!--= digits --> binary digits, so from 256<!--= last_exact --> on it skips whole positions.

# %% tags=["hide-input"]
digits = 1 - math.log2(torch.finfo(torch.bfloat16).eps)
numbers = torch.arange(999)
last_exact = (numbers.bfloat16().int() != numbers).int().argmax() - 1
frequencies = 10_000.0 ** (-torch.arange(0, D, 2) / D)  # radians a token


def turned(angles, y):
    a, b = y.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles.float().cos(), angles.float().sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def with_rounded(start):
    """The scores of all queries and keys, from position `start` on."""
    places = start + torch.arange(N)
    # right: places[:, None] * frequencies
    angles = places.bfloat16()[:, None] * frequencies.bfloat16()
    return attention_scores(turned(angles, q), turned(angles, keys))


def shifted(f, start):
    gap = probes.differs(f(start), f(start + 1000))
    if gap > 0.01:
        return f"scores move by {gap:.2g} one thousand tokens on"
    return None


with_exact = mended(ENTRIES["rope-in-bfloat16"], with_rounded)
off["rope-in-bfloat16"] = probes.differs(with_rounded(1000), with_exact(1000))
near = probes.differs(with_rounded(0), with_exact(0))
exhibit.plate("rope-in-bfloat16", with_exact(1000), shifted(with_rounded, 0))

# %% [markdown]
# **Hides** in short texts: at the beginning, the same scores are off by only {{ near :.2f}}. **Caught by** scores that
# should not move when query and key move on together, as `shifted` tests. **Fix:** angles in float32, even under
# autocast, as `Rotary` computes them.

# %% tags=["claims"]
assert 4 * near < off["rope-in-bfloat16"], "Hides in short texts"
assert not shifted(with_exact, 0), (
    "scores that should not move when query and key move on together"
)

# %% [markdown]
# ## Distance rewarded { #alibi-sign }
#
# ALiBi *lowers* a score by a slope for each token between query and key. With the other sign, the farther of two equal
# keys wins.


# %% tags=["hide-input"]
def rewarded(x):
    bias = alibi(8, x.size(1))[:1]
    # right: attention_scores(x, x) + bias
    scores = attention_scores(x, x) - bias
    return attention_weights(scores, allowed=causal(x)) @ x


def prefers_the_far(f, x):
    # tokens that are orthogonal, and so small that only the bias counts
    tokens = 1e-3 * torch.eye(x.size(1))[None]
    weights = 1e3 * f(tokens)[0, -1]
    if weights[0] < weights[-2]:
        return None
    return f"the first token weighs {weights[0]:.2f}, the one before the last {weights[-2]:.2f}"


exhibit("alibi-sign", rewarded, probe=prefers_the_far)

# %% [markdown]
# **Hides** with one token. A model also trains with the wrong sign. **Caught by** `prefers_the_far`, with tokens so
# small that the bias alone decides. **Fix:** add what `unmasked.positions.alibi` gives, because it is never positive.

# %% tags=["claims"]
assert alibi(H, N).max() <= 0, "it is never positive"

# %% [markdown]
# ## Positions that begin again with every step { #positions-restart }
#
# With a cache a step brings one token, and `arange` over the tokens of the step calls it the first. Its query and its
# stored key are then at the first position for good.

# %% tags=["hide-input"]
table = draw(N, D, seed=5)  # learned positions, added to the embeddings


def write(x, place):
    """Token by token, with a cache of what came before."""
    cache = x[:, :0]
    outputs = []
    for step in range(x.size(1)):
        new = x[:, step : step + 1]
        new = new + table[place(new, past=cache.size(1))]
        cache = torch.cat([cache, new], dim=1)
        outputs.append(F.scaled_dot_product_attention(new, cache, cache))
    return torch.cat(outputs, dim=1)


def restarting(x):
    # right: past + torch.arange(new.size(1))
    return write(x, lambda new, past: torch.arange(new.size(1)))


def at_once(x):
    return attend(x + table[: x.size(1)], causal(x))


exhibit(
    "positions-restart",
    restarting,
    probe=unlike(at_once, "the whole sequence at once"),
)

# %% [markdown]
# **Hides** without a cache, and in the first step. **Caught by** `at_once`: steps must give what the whole sequence
# gives, at every token. **Fix:** begin at the length of the cache.
#
# ## Padding counted as positions { #left-padding-positions }
#
# In a batch, prompts of different lengths are often padded on the left, so that all of them end where writing goes on.
# Counted from the left edge, a short prompt no longer begins at the first position, and a model with learned positions
# reads another text.

# %% tags=["hide-input"]
lengths = torch.tensor([N, N - 2, N - 3])
allowed = masks.padding(lengths, side="left")[:, 0] & causal(x)


def counted(x, allowed):
    # right: x + table[masks.positions_of(allowed.any(1))]
    return attend(x + table[torch.arange(x.size(1))], allowed)[:, -1:]


def alone(x, allowed):
    last = [
        at_once(item[None, N - length :])[:, -1:]
        for item, length in zip(x, allowed[:, -1].sum(-1), strict=True)
    ]
    return torch.cat(last)


exhibit(
    "left-padding-positions",
    counted,
    probe=unlike(alone, "alone"),
    hides=[x, causal(x).expand(B, N, N)],
    given=[x, allowed],
)

# %% [markdown]
# **Hides** where all prompts are equally long, and with plain rotary positions, which know only offsets. **Caught by**
# `alone`, which runs each sequence by itself. **Fix:** pass the numbers of `masks.positions_of` as the model's
# `position_ids`.
#
# ## Packed documents that see each other { #packed-without-documents }
#
# Short texts are packed into one row so that no place is wasted, but a causal mask lets each read all the texts before
# it.

# %% tags=["hide-input"]
ids = torch.tensor([0, 0, 0, 1, 1, 1, 1])  # two documents in a row
one_document = torch.zeros_like(ids)


def causal_alone(x, ids=ids):
    # right: attend(x, causal(x) & masks.documents(ids))
    return attend(x, causal(x))


def mixes_documents(f, x, ids=ids):
    changed = x.clone()
    changed[:, ids == ids[0]] += 1
    other = ids != ids[0]
    gap = probes.differs(f(changed)[:, other], f(x)[:, other])
    if gap:
        return f"the second document moves with the first, by {gap:.2g}"
    return None


exhibit(
    "packed-without-documents",
    causal_alone,
    probe=mixes_documents,
    hides=[x, one_document],
)

# %% [markdown]
# **Hides** with one document in each row. **Caught by** `mixes_documents`: change the first document, and look at the
# second. **Fix:** a mask of documents as well as the causal one.
#
# ## Positions that run on through a pack { #positions-not-reset }
#
# With the right mask no document sees another, but the second still begins at position three<!--= (ids == 0).sum() -->.


# %% tags=["hide-input"]
def running_on(x, ids=ids):
    places = torch.arange(x.size(1))
    # right: table[places - torch.searchsorted(ids, ids)]
    return attend(x + table[places], causal(x) & masks.documents(ids))


def each_alone(x):
    return torch.cat([at_once(x[:, ids == i]) for i in (0, 1)], dim=1)


exhibit(
    "positions-not-reset",
    running_on,
    probe=unlike(each_alone, "each document alone"),
    hides=[x, one_document],
)

# %% [markdown]
# **Hides** with one document, in the first of several, and with plain rotary positions. **Caught by** `each_alone`; a
# test that changes the other document does not find it. **Fix:** count from each document's first token.

# %% tags=["claims"]
assert not mixes_documents(running_on, x), (
    "a test that changes the other document does not find it"
)

# %% [markdown]
# ## A mask of the smallest number, added twice { #two-finfo-min }
#
# Many models mask with `torch.finfo(dtype).min` instead of minus infinity, so that a row that may see nothing stays
# finite. The model adds it for the padding, a layer adds it once more, and the sum is minus infinity, in every column.

# %% tags=["hide-input"]
scores = draw(N, N)
padded = torch.ones(N, dtype=torch.bool)  # an item of the batch is empty
lowest = torch.finfo(scores.dtype).min
shut = torch.zeros(N, N).masked_fill(padded, lowest)
# right: scores.masked_fill(padded, lowest)
blind = (scores + shut + shut).softmax(-1)
once = scores.masked_fill(padded, lowest).softmax(-1)
Plate(
    ENTRIES["two-finfo-min"],
    found=f"{int(blind.isnan().any(-1).sum())} of {N} rows are NaN",
)

# %% [markdown]
# If the number is added or filled in once, the row becomes the average of everything, which is wrong, too, but goes
# unnoticed. **Hides** with minus one billion, whose double is finite, and where every query sees a key. **Caught by**
# `isnan` on an item that is all padding. **Fix:** combine boolean masks, once, and decide what a query that sees
# nothing gets: see [A query that may see nothing](masks.py#fully-masked-row).

# %% tags=["claims"]
assert blind.isnan().all(), "NaN a mask added twice NaN another large number"
assert (scores + shut + shut == -math.inf).all(), (
    "a layer adds it once more, and the sum is minus infinity, in every column"
)
assert torch.allclose(once, torch.full((N, N), 1 / N), atol=1e-6), (
    "the row becomes the average of everything"
)
assert (scores - 2e9).softmax(-1).isfinite().all(), (
    "Hides with minus one billion, whose double is finite"
)

# %% [markdown]
# ## A window that is one wider { #window-off-by-one }
#
# A window of three<!--= W --> tokens, in the configs of decoders in transformers, is the token itself and the
# two<!--= W - 1 --> before it. Others do not count the token itself.

# %% tags=["hide-input"]
W = 3


def one_wider(x):
    places = torch.arange(x.size(1))
    # right: places[:, None] - places < W
    near = places[:, None] - places <= W
    return attend(x, causal(x) & near)


def sees_too_far(f, x):
    far = x.size(1) - 1 - W
    gap = probes.differs(f(probes.changed(x, far))[:, -1], f(x)[:, -1])
    return (
        f"the last output moves with token {far}, by {gap:.2g}"
        if gap
        else None
    )


exhibit("window-off-by-one", one_wider, probe=sees_too_far, hides=x[:, :W])

# %% [markdown]
# **Hides** in texts no longer than the window. **Caught by** `sees_too_far`: change the nearest token outside, and look
# at the last output. **Fix:** count as the config does: `masks.sliding_window` counts the token itself, but
# FlashAttention's `window_size` does not, so there it is one less. See [Long contexts](../pytorch/long.py).

# %% tags=["claims"]
assert torch.equal(
    masks.sliding_window(N, window=W),
    causal(x) & (places[:, None] - places < W),
), "masks.sliding_window counts the token itself"

# %% [markdown]
# ## A sink whose share is given back { #sink-share-returned }
#
# A learned sink is a number that joins a head's scores in the softmax and belongs to no key. What it takes is lost, and
# should be: the row then sums to less than one. Scaling it back to one undoes the sink.

# %% tags=["hide-input"]
sinks = draw(H, seed=7)


def given_back(q, k, sinks):
    scores = attention_scores(q, k)
    sink = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    kept = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
    # right: weights = kept
    weights = kept / kept.sum(-1, keepdim=True)
    return weights @ k


def ignores_its_sinks(f, q, k, sinks):
    left = f(q, k, sinks + 20).abs().max()
    if left < 1e-3:
        return None
    return f"{left:.2g} is left where the sinks should take everything"


with_sinks = mended(ENTRIES["sink-share-returned"], given_back)
exhibit(
    "sink-share-returned",
    given_back,
    probe=ignores_its_sinks,
    hides=[q, keys, sinks - 50],
    given=[q, keys, sinks],
)

# %% [markdown]
# **Hides** where sinks are so low that they take nothing. **Caught by** `ignores_its_sinks`, which raises them until
# they take everything. A test that rows sum to one *demands* the mistake. **Fix:** leave the rows as they are, as
# `functional.attend` does with its `sinks`.

# %% tags=["claims"]
assert not probes.differs(
    with_sinks(q, keys, sinks),
    functional.attend(q, keys, keys, sinks=sinks).context,
), "leave the rows as they are, as functional.attend does with its sinks"

# %% [markdown]
# ## Chosen before the future is hidden { #choice-before-causality }
#
# Some sparse attention looks only at the best keys of each query. If these are chosen among all words, later ones take
# places that the mask then leaves empty. And the choice depends on words that the query must not know.


# %% tags=["hide-input"]
def chosen_of_all(x):
    scores = attention_scores(x, x)
    # right: ranked = scores.masked_fill(~causal(x), -math.inf)
    ranked = scores
    best = ranked.topk(2).indices
    chosen = torch.zeros_like(scores).scatter(-1, best, 1).bool()
    return attend(x, causal(x) & chosen)


exhibit(
    "choice-before-causality",
    chosen_of_all,
    probe=probes.sees_the_future,
    hides=x[:, :2],
)

# %% [markdown]
# **Hides** in texts of no more words than are chosen. **Caught by** `sees_the_future`. **Fix:** hide the future before
# `topk`, and once more after it: where fewer keys are allowed than it picks, it picks hidden ones. See
# [DeepSeek-V3.2<!--~ its name -->](../pytorch/models_2026.py#choose-then-attend-deepseek-v32).
#
# ## An output that is not turned back { #output-not-turned-back }
#
# Where one turned tensor is key and value, values are turned by their place as keys are. Turned back by the query's
# place, an output depends on distances alone, as scores do. Not turned back, it also depends on where in the text the
# words stand.


# %% tags=["hide-input"]
def not_back(x, places):
    both = neighbors(x, places)
    # right: return neighbors(attend(both), -places)
    return attend(both)


def knows_the_place(f, x, places):
    gap = probes.differs(f(x, places + 100), f(x, places))
    return f"counted from 100, it is off by {gap:.2g}" if gap else None


exhibit(
    "output-not-turned-back",
    not_back,
    probe=knows_the_place,
    hides=[x[:, :1], places[:1]],
    given=[x, places],
)

# %% [markdown]
# **Hides** with one token, at place zero, where nothing turns. **Caught by** `knows_the_place`, which begins to count
# at a hundred. **Fix:** turn the context by minus the query's place, as [DeepSeek V4<!--~ its name
# -->](../pytorch/models_2026.py#sum-up-then-choose-deepseek-v4) does.
#
# ## A finished key as value { #turned-key-as-value }
#
# Far layers of the larger Gemma 4<!--~ its name --> models have no matrix for values: the projected keys serve for
# both. But only keys are turned. Who takes the key after its turning has values that turn with their place.


# %% tags=["hide-input"]
def finished(shared, places):
    key = neighbors(shared, places)
    # right: value = shared
    value = key
    return F.scaled_dot_product_attention(key, key, value)


exhibit(
    "turned-key-as-value",
    finished,
    probe=knows_the_place,
    hides=[x[:, :1], places[:1]],
    given=[x, places],
)

# %% [markdown]
# **Hides** with one token, at place zero. **Caught by** `knows_the_place`. **Fix:** take the value where the key was
# projected, before its norm and its turning. See [Gemma 4<!--~ its name
# -->](../pytorch/models_2026.py#share-keys-and-values-gemma-4).
#
# ## Capped after the mask { #softcap-after-mask }
#
# A soft-cap bends scores into a range by a tanh. Applied to scores that are already masked, it bends minus infinity,
# too, so the future gets the lowest score allowed, and is seen.

# %% tags=["hide-input"]
cap = 5.0


def capped_late(x):
    scores = attention_scores(x, x).masked_fill(~causal(x), -math.inf)
    # right: (cap * (scores / cap).tanh()).masked_fill(~causal(x), -math.inf)
    return (cap * (scores / cap).tanh()).softmax(-1) @ x


exhibit("softcap-after-mask", capped_late, probe=probes.sees_the_future)

# %% [markdown]
# **Hides** with one token, and nearly hides with a large cap, because the leak falls exponentially with it. **Caught
# by** `probes.sees_the_future`. **Fix:** cap first, mask last.
#
# ## A floating bias on the fast path { #fast-path-bias }
#
# In evaluation without gradients, `nn.TransformerEncoderLayer` may run other code, its fast path. This reads a floating
# mask as a boolean one, in which every number other than zero hides. A bias of distances then hides nearly everything.

# %% tags=["hide-input"]
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
wide = draw(B, N, 8)
distance_bias = alibi(1, N)[0]


def by_mode(bias):
    return interfaces.by_mode(
        layer, lambda: layer(wide, src_mask=bias).detach()
    )


def with_gradients(bias):
    return by_mode(bias)[1]


exhibit(
    "fast-path-bias",
    lambda bias: by_mode(bias)[2],
    lambda bias: by_mode(bias)[3],  # with the fast path switched off
    unlike(with_gradients, "with gradients"),
    hides=[torch.zeros(N, N)],
    given=[distance_bias],
)

# %% [markdown]
# **Hides** in training, and with masks of zeros and minus infinity. **Caught by** `with_gradients`, which makes the
# same call with gradients and without. **Fix:** `torch.backends.mha.set_fastpath_enabled(False)`. See also [What does
# each interface make of my mask?](../pytorch/masks.py)
#
# ## Dropout that leaves the kernel { #dropout-leaves-the-kernel }
#
# On a CPU the fused kernel has no dropout. If you ask for dropout, `F.scaled_dot_product_attention` runs the steps one
# by one, and keeps the matrices of all queries and keys for the backward pass.

# %% tags=["hide-input"]
torch.manual_seed(0)
long = draw(1, 1, 256, 8).requires_grad_()


def kept(p):
    """Numbers that are kept for the backward pass, for each of the input's."""
    sizes = {}

    def note(tensor):
        sizes[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(
        note, lambda tensor: tensor
    ):
        # right: F.scaled_dot_product_attention(long, long, long, dropout_p=0.0)
        F.scaled_dot_product_attention(long, long, long, dropout_p=p)
    return sum(sizes.values()) / long.numel()


wrong, right = kept(0.1), kept(0.0)

Plate(
    ENTRIES["dropout-leaves-the-kernel"],
    found=f"kept for the backward pass: {wrong:.0f} times the input, not {right:.0f}",
)

# %% [markdown]
# Here more than ten times as much is kept, and the factor grows with the tokens. **Hides** in evaluation, where dropout
# is off, and on CUDA, whose kernels have dropout. **Caught by** `saved_tensors_hooks`, or a profile. **Fix:**
# `dropout_p=0.0` on a CPU; dropout of the output remains.

# %% tags=["claims"]
assert not probes.differs(
    F.scaled_dot_product_attention(long, long, long, dropout_p=0.0),
    attend(long),
), "dropout of the weights nothing evaluation"
assert wrong > 10 * right, "Here more than ten times as much is kept"

# %% [markdown]
# ## Frozen, with a gradient of zeros { #frozen-with-zero-gradient }
#
# A layer is frozen in the middle of training. Its gradient was set to zeros, not to None, so the optimizer goes on:
# momentum and weight decay move every weight that has a gradient, even one of zeros.


# %% tags=["hide-input"]
def moved(optimize, **options):
    torch.manual_seed(0)
    frozen = nn.Linear(D, D)
    optimizer = optimize(frozen.parameters())
    frozen(x).square().mean().backward()
    optimizer.step()
    frozen.requires_grad_(False)
    # wrong: optimizer.zero_grad(set_to_none=False)
    # right: optimizer.zero_grad(set_to_none=True)
    optimizer.zero_grad(**options)
    before = frozen.weight.clone()
    for _ in range(10):
        optimizer.step()
    return (frozen.weight - before).abs().max().item()


adam = partial(torch.optim.AdamW, lr=0.1)
descent = partial(torch.optim.SGD, lr=0.1)
off["frozen-with-zero-gradient"] = moved(adam, set_to_none=False)
Plate(
    ENTRIES["frozen-with-zero-gradient"],
    off["frozen-with-zero-gradient"],
    found="after ten steps of the optimizer the frozen weights have moved",
)

# %% [markdown]
# **Hides** with plain gradient descent, which has neither momentum nor decay. **Caught by** a copy of the weights
# before some steps. **Fix:** `zero_grad(set_to_none=True)`, its default, or an optimizer that gets only what is
# trained.

# %% tags=["claims"]
assert moved(descent, set_to_none=False) == 0, (
    "Hides with plain gradient descent"
)
assert moved(adam) == 0 == moved(adam, set_to_none=True), (
    "Fix: zero_grad(set_to_none=True), its default"
)

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("positions-of-a-pack", answer))`.
#
# **Positions of a pack** (`positions-of-a-pack`). Write `place(ids)` for ids of (batch, tokens), which number the
# documents of a row in ascending order. It returns (batch, tokens): how many tokens of its own document stand before
# each token.
#
# ??? question "Hint"
#
#     A document begins where a number differs from the one before it. The latest beginning up to here is a running
#     maximum.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def place(ids):
    count = torch.arange(ids.size(-1))
    begins = torch.ones_like(ids, dtype=torch.bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    return count - (count * begins).cummax(-1).values


check("positions-of-a-pack", place)

# %% [markdown]
# **Grouped heads** (`grouped-heads`). Write `attend(query, key, value)`, causal, for queries of (batch, heads, queries,
# head_dim), and keys and values of fewer heads and of at least as many tokens: the last query is the newest token.
#
# ??? question "Hint"
#
#     Split the query heads into (key heads, group). Then one key head stands beside its whole group.


# %% tags=["solution"]
def attend_grouped(query, key, value):
    groups = query.size(1) // key.size(1)
    query = query.unflatten(1, (-1, groups))  # batch kv_heads group tokens d
    allowed = masks.causal(query.size(-2), key.size(-2))
    context = functional.attend(
        query, key.unsqueeze(2), value.unsqueeze(2), allowed=allowed
    ).context
    return context.flatten(1, 2)


check("grouped-heads", attend_grouped)

# %% [markdown]
# ## What to read next
#
# - The museum's other rooms: [heads](heads.py), [masks](masks.py), [learned weights](weights.py),
#   [computation](computation.py).
# - [Does order matter? Positions](../learn/positions.py): what positions are for.
# - [The doctor](../doctor.py) asks your module for many of these mistakes.
#
# ## References
#
# <!--~ 2021, 3.2, 2022, 2023: references -->
# - Su et al. (2021), *RoFormer*: section 3.2, rotary embeddings.
# - Press, Smith and Lewis (2022), *Train Short, Test Long*: ALiBi.
# - Ainslie et al. (2023), *GQA*: grouped heads.
