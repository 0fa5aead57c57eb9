# %% [markdown]
# <!--~ 4, 5: names -->
# # How do DeepSeek V4, Gemma 4, Kimi Linear and Qwen3.5 attend?
#
# **They keep or read less of a long text: the best of its keys, averages of its blocks, keys and values that layers
# share, or, in most layers, a memory of fixed size.**
#
# {{ table.markdown() }}
#
# *(Sizes are the defaults of the configs in transformers; checkpoints of other sizes differ.)*
#
# **You should know** [how the models before them attend](models.py), [latents and shared heads](grouped.py) and [the
# delta rule](linear.py). **You will know** each of these layers in code that gives transformers' logits for a whole
# text without padding, what is easily written wrong in it, and how far off that is.

# %% tags=["imports"]
import math

import torch
import torch.nn.functional as F

from unmasked import attend, masks, plot
from unmasked.heads import merge_heads, split_heads
from unmasked.positions import Rotary

# %% [markdown]
# Each section has a function of the words `x` (batch, tokens, features), the layer's weights `w` by their names in
# transformers, which renames those of some checkpoints, the model's `config`, and the number of the layer. They share
# three helpers. `turn` turns the *last* features of each head, where DeepSeek's models put what turns:


# %%
def norm(x, weight, eps=1e-6):  # its mean in float32, as in the models
    normed = F.rms_norm(x.float(), weight.shape, weight.float(), eps)
    return normed.to(x.dtype)


def project(x, w, name, heads):  # batch heads tokens features
    return split_heads(F.linear(x, w[f"{name}.weight"]), heads)


def turn(x, place, rope, size, pairing="interleaved"):
    rope = rope | {"partial_rotary_factor": None}  # x is cut to what turns
    rotary = Rotary.from_config(size, rope, pairing=pairing)
    still, last = x[..., :-size], x[..., -size:]
    return torch.cat([still, rotary(last, place)], dim=-1)


# %% [markdown]
# ## Choose, then attend: DeepSeek-V3.2<!--~ its name -->
#
# An *indexer* gives each query
# a cheap score for every key, and attention sees only the best. Each of its small heads takes a dot product, with
# negatives set to zero; the score is their sum, weighted by what the query's word gives each head. All heads share one
# key for each word. What a query may not see is hidden *before* the choice: otherwise later words take places among the
# best, the mask hides them afterwards, and early words may be left with few keys, or none.


# %%
def best_of(scores, allowed, count):
    scores = scores.masked_fill(~allowed, -torch.inf)
    best = scores.topk(min(count, scores.size(-1))).indices
    return allowed & torch.zeros_like(scores).scatter(-1, best, 1).bool()


def index_scores(x, query, key, weight):  # no scale: only their order counts
    share = F.linear(x, weight).mT[..., None]  # batch heads tokens 1
    return (share * F.relu(query @ key.mT)).sum(1, keepdim=True)


# %% [markdown]
# The layer makes its latents, queries, keys and values, then the indexer's own queries and keys, and chooses:


# %%
def deepseek_v32(x, w, config, layer=0):
    heads, rope = config.num_attention_heads, config.rope_parameters
    still, size = config.qk_nope_head_dim, config.qk_rope_head_dim
    place = torch.arange(x.size(1), device=x.device)

    latent = F.linear(x, w["q_a_proj.weight"])
    latent = norm(latent, w["q_a_layernorm.weight"])
    query = project(latent, w, "q_b_proj", heads)
    both = F.linear(x, w["kv_a_proj_with_mqa.weight"])
    kept, shared = both.split([config.kv_lora_rank, size], dim=-1)
    kept = norm(kept, w["kv_a_layernorm.weight"])
    key, value = project(kept, w, "kv_b_proj", heads).split(
        [still, config.v_head_dim], dim=-1
    )
    shared = shared[:, None].expand(-1, heads, -1, -1)
    key = torch.cat([key, shared], dim=-1)
    query, key = (turn(each, place, rope, size) for each in (query, key))

    small = F.linear(x, w["indexer.wk.weight"])
    parts = (w[f"indexer.k_norm.{name}"] for name in ("weight", "bias"))
    small = F.layer_norm(small, small.shape[-1:], *parts, eps=1e-6)[:, None]
    looks = project(latent, w, "indexer.wq_b", config.index_n_heads)
    looks, small = (each.roll(-size, -1) for each in (looks, small))
    looks, small = (  # the first features turn here, and stand last now
        turn(each, place, rope, size, "halves") for each in (looks, small)
    )
    scores = index_scores(x, looks, small, w["indexer.weights_proj.weight"])
    causal = masks.causal(x.size(1), device=x.device)
    allowed = best_of(scores, causal, config.index_topk)

    grows = rope.get("mscale_all_dim") or 0.0  # of YaRN alone
    stretch = 0.1 * grows * math.log(rope.get("factor") or 1.0) + 1
    scale = (still + size) ** -0.5 * stretch**2
    context = attend(query, key, value, allowed=allowed, scale=scale).context
    return F.linear(merge_heads(context), w["o_proj.weight"])


# %% [markdown]
# What attends is the latent attention of DeepSeek-V3<!--~ its name -->, line for line. The indexer turns its *first*
# features, in halves; attention turns its *last*, as neighbors. In a text of no more words than the indexer chooses,
# the indexer changes nothing, so compare on a longer one.
#
# ## Sum up, then choose: DeepSeek V4<!--~ its name -->
#
# There is one head of keys, and *its keys are the values, too*. A query sees the nearest words as they are, and
# complete blocks, near ones too, as summaries. A summary is an average of a block's projected words, feature by
# feature: its weights are a softmax over learned gates, with a bias for each place in the block, and a norm follows.
# Two kinds of layers alternate. In the one a block is long, and all summaries are seen. In the other it is short, its
# summary averages the block before, too, by features of their own, and an indexer chooses. A third kind sees the
# nearest words alone, and turns by another base.


# %%
def summaries(x, w, name, size, every, eps):
    whole = x.size(1) // every  # blocks that are complete
    blocks = x[:, : whole * every].unflatten(1, (whole, every))
    value = F.linear(blocks, w[f"{name}.kv_proj.weight"])
    share = F.linear(blocks, w[f"{name}.gate_proj.weight"])
    share = share + w[f"{name}.position_bias"]
    if value.size(-1) > size:  # the first half is for the block that follows

        def overlapping(each, empty):
            following, own = each.split(size, dim=-1)
            before = F.pad(following, (0, 0, 0, 0, 1, 0), value=empty)
            return torch.cat([before[:, :-1], own], dim=2)

        value, share = overlapping(value, 0.0), overlapping(share, -torch.inf)
    summary = (share.softmax(2) * value).sum(2)
    return norm(summary, w[f"{name}.kv_norm.weight"], eps)[:, None]


# %% [markdown]
# A query may see a summary once its block is complete. A summary is turned by the place where its block begins:


# %%
def far_words(x, latent, w, config, kind, place, rope, size):
    eps, every = config.rms_norm_eps, config.compress_rates[kind]
    begins = place[: len(place) // every * every : every]
    ready = begins + every - 1 <= place[:, None]  # tokens summaries

    def summed(name, dim):
        each = summaries(x, w, name, dim, every, eps)
        return turn(each, begins, rope, size)

    if kind == "compressed_sparse_attention":
        name = "compressor.indexer"
        small = summed(name, config.index_head_dim)
        looks = project(latent, w, f"{name}.q_b_proj", config.index_n_heads)
        looks = turn(looks, place, rope, size)
        weight = w[f"{name}.scorer.weights_proj.weight"]
        scores = index_scores(x, looks, small, weight)
        ready = best_of(scores, ready, config.index_topk)
    return summed("compressor", config.head_dim), ready


# %% [markdown]
# Near keys and summaries are joined in one tensor, which is also the values. At the end each group of heads is
# projected to few features, and then all together:


# %%
def deepseek_v4(x, w, config, layer):
    kind, eps = config.layer_types[layer], config.rms_norm_eps
    near, dim = kind == "sliding_attention", config.head_dim
    rope = config.rope_parameters["main" if near else "compress"]
    size = int(dim * rope["partial_rotary_factor"])
    tokens = x.size(1)
    place = torch.arange(tokens, device=x.device)

    latent = F.linear(x, w["q_a_proj.weight"])
    latent = norm(latent, w["q_a_norm.weight"], eps)
    query = project(latent, w, "q_b_proj", config.num_attention_heads)
    query = turn(F.rms_norm(query, (dim,), eps=eps), place, rope, size)
    key = norm(project(x, w, "kv_proj", 1), w["kv_norm.weight"], eps)
    key = turn(key, place, rope, size)
    window = config.sliding_window
    allowed = masks.sliding_window(tokens, window=window, device=x.device)
    if not near:
        given = kind, place, rope, size
        entries, ready = far_words(x, latent, w, config, *given)
        key = torch.cat([key, entries], dim=2)
        allowed = allowed.expand(*ready.shape[:-1], tokens)
        allowed = torch.cat([allowed, ready], dim=-1)
    sinks = w["sinks"]  # one for each head, that no mask hides
    found = attend(query, key, key, allowed=allowed, sinks=sinks).context
    found = turn(found, -place, rope, size)  # back: keys are the values

    groups = merge_heads(found).unflatten(-1, (config.o_groups, -1))
    first = w["o_a_proj.weight"].unflatten(0, (config.o_groups, -1))
    mixed = torch.einsum("bngi,goi->bngo", groups, first).flatten(2)
    return F.linear(mixed, w["o_b_proj.weight"])


# %% [markdown]
# A key that is turned by its place is also the value, so the output depends on where words stand. Turned back by the
# *query's* place, it depends on distances alone. And a summary that is seen from its first word on, as its position
# suggests, would reveal words still to come.
#
# ## Share keys and values: Gemma 4<!--~ its name -->
#
# Near and far layers alternate as in Gemma 3<!--~ its name -->. In all of them norms no longer add one to their weight,
# the scale is one, and values are normed, too, without a weight. Far heads are twice as wide. Larger models have fewer
# far key heads, and no matrix for far values: the keys, before norm and turning, serve as values (both are still kept).
# In smaller ones the last layers, near and far, read the keys and values of the last layer of their kind that has its
# own.


# %%
def gemma4(x, w, config, layer, kept):  # kept: a dict that begins empty
    kind, eps = config.layer_types[layer], config.rms_norm_eps
    place = torch.arange(x.size(1), device=x.device)
    dim = len(w["q_norm.weight"])
    rotary = Rotary.from_config(dim, config.rope_parameters[kind])
    query = project(x, w, "q_proj", config.num_attention_heads)
    query = rotary(norm(query, w["q_norm.weight"], eps), place)
    if "k_proj.weight" in w:  # else those that a layer before has kept
        heads = len(w["k_proj.weight"]) // dim
        key = project(x, w, "k_proj", heads)
        own = "v_proj.weight" in w
        value = project(x, w, "v_proj", heads) if own else key
        value = F.rms_norm(value, (dim,), eps=eps)
        key = rotary(norm(key, w["k_norm.weight"], eps), place)
        kept[kind] = key, value
    key, value = kept[kind]
    near = kind == "sliding_attention"
    window = config.sliding_window if near else x.size(1)
    allowed = masks.sliding_window(x.size(1), window=window, device=x.device)
    context = attend(query, key, value, allowed=allowed, scale=1.0).context
    return F.linear(merge_heads(context), w["o_proj.weight"])


# %% [markdown]
# Far layers turn a quarter of their pairs, the fast ones (`"proportional"`, which
# [`Rotary.from_config`](positions.py#what-a-checkpoints-config-says) knows). If you take the finished key as the value,
# values turn with their place, and carry the weight of the keys' norm.
#
# ## Write into a fixed memory: Kimi Linear and Qwen3.5<!--~ its name -->
#
# Three layers out of four have no keys that grow with the text. They write each word into a matrix for each head, by
# the [gated delta rule](linear.py#correct-and-forget), here for all heads at once. Queries and keys have length one,
# and a short convolution mixes each feature of queries, keys and values with the same feature of the three words
# before:


# %%
def delta(query, key, value, keep, write):  # batch heads tokens features
    query, key = (
        each * (each.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
        for each in (query, key)
    )
    query = query * query.size(-1) ** -0.5
    state = key.new_zeros(*key.shape[:2], key.size(-1), value.size(-1))
    found, every = [], (query, key, value, keep, write)
    for q, k, v, alpha, beta in zip(
        *(each.split(1, dim=2) for each in every)
    ):
        state = alpha.mT * state  # forget
        state = state + k.mT @ (beta * (v - k @ state))  # correct
        found.append(q @ state)
    return torch.cat(found, dim=2)


def with_words_before(x, weight):
    before = F.pad(x.mT, (weight.size(-1) - 1, 0))
    return F.silu(F.conv1d(before, weight, groups=len(weight)).mT)


def qwen35_delta(x, w, config, layer=0):
    keys, heads = config.linear_num_key_heads, config.linear_num_value_heads
    wide, groups = keys * config.linear_key_head_dim, heads // keys
    mixed = F.linear(x, w["in_proj_qkv.weight"])
    mixed = with_words_before(mixed, w["conv1d.weight"])
    query, key, value = mixed.tensor_split([wide, 2 * wide], dim=-1)
    query, key = (
        split_heads(each, keys).repeat_interleave(groups, dim=1)
        for each in (query, key)
    )
    slow = F.softplus(F.linear(x, w["in_proj_a.weight"]) + w["dt_bias"])
    keep = (-w["A_log"].exp() * slow).exp().mT[..., None]  # one for each head
    write = F.linear(x, w["in_proj_b.weight"]).sigmoid().mT[..., None]
    context = delta(query, key, split_heads(value, heads), keep, write)
    context = norm(context, w["norm.weight"], config.rms_norm_eps)
    gated = context * F.silu(project(x, w, "in_proj_z", heads))
    return F.linear(merge_heads(gated), w["out_proj.weight"])


# %% [markdown]
# Kimi Linear's rule forgets *feature by feature*: each word says how much of each row stays. Its output's gate is a
# sigmoid, and that of Qwen3.5<!--~ its name --> a SiLU. One of its layers in four is latent attention without
# positions; the others carry the order. (Qwen3.5's<!--~ its name --> is that of
# [Qwen3-Next](models.py#qwen3-next-a-gate-on-what-was-found).)


# %%
def kimi_linear(x, w, config, layer):
    if config.layer_types[layer] == "full_attention":
        heads, still = config.num_attention_heads, config.qk_nope_head_dim
        query = project(x, w, "q_proj", heads)
        both = F.linear(x, w["kv_a_proj_with_mqa.weight"])
        kept, shared = both.tensor_split([config.kv_lora_rank], dim=-1)
        kept = norm(kept, w["kv_a_layernorm.weight"])
        both = project(kept, w, "kv_b_proj", heads)
        key, value = both.tensor_split([still], dim=-1)
        shared = shared[:, None].expand(-1, heads, -1, -1)
        key = torch.cat([key, shared], dim=-1)
        context = attend(query, key, value, is_causal=True).context
        return F.linear(merge_heads(context), w["o_proj.weight"])

    def narrow(name):  # by way of few features
        few = F.linear(x, w[f"{name}_a_proj.weight"])
        return split_heads(F.linear(few, w[f"{name}_b_proj.weight"]), heads)

    heads = config.linear_num_heads
    mixed = [F.linear(x, w[f"{name}_proj.weight"]) for name in "qkv"]
    mixed = with_words_before(torch.cat(mixed, dim=-1), w["conv1d.weight"])
    parts = (split_heads(each, heads) for each in mixed.chunk(3, dim=-1))
    bias = w["forget_gate.dt_bias"].view(heads, 1, -1)
    slow = F.softplus(narrow("forget_gate.f") + bias)
    keep = (-w["forget_gate.A_log"].exp().view(heads, 1, 1) * slow).exp()
    write = F.linear(x, w["b_proj.weight"]).sigmoid().mT[..., None]
    context = delta(*parts, keep, write)
    context = norm(context, w["o_norm.weight"], config.rms_norm_eps)
    gated = context * narrow("g").sigmoid()
    return F.linear(merge_heads(gated), w["o_proj.weight"])


# %% tags=["check", "any-version"]
from unmasked_lessons.experiments import models_2026 as experiments

FUNCTIONS = {
    "DeepSeek-V3.2": deepseek_v32,
    "DeepSeek V4": deepseek_v4,
    "Gemma 4": gemma4,
    "Kimi Linear": kimi_linear,
    "Qwen3.5": qwen35_delta,
}
moved = experiments.effects(FUNCTIONS)
leaks = experiments.leaking(FUNCTIONS)
table = experiments.published()
slips = plot.table(*experiments.models.in_table(moved))

# %% [markdown]
# ## What each mistake does
#
# None of these raises an error, and no shape changes. Each line was replaced in the functions above, in small layers
# with random weights; the last column is the difference, as a share of the output's size, in the layer where it is
# largest:
#
# {{ slips.markdown() }}
#
# Three of them hang in the museum, each with what finds it: [chosen before the future is
# hidden](../museum/models.py#choice-before-causality), [not turned back](../museum/models.py#output-not-turned-back),
# and [a finished key as value](../museum/models.py#turned-key-as-value). Two let a word see the future: choosing first,
# and seeing a summary before it is complete. Such a model learns quickly, and writes badly.

# %% tags=["claims"]
assert min(moved.values()) > 0.1, (
    "None of these raises an error, and no shape changes"
)
assert [each.within for each in leaks] == ["best_of", "far_words"], (
    "Two let a word see the future"
)

# %% [markdown]
# ## Hold yours to the model in transformers
#
# As [for the models before](models.py#hold-yours-to-the-model-in-transformers): make a tiny model from the config, with
# large random weights, replace its layers' `forward`, and compare logits. Choose sizes that show what these layers do:
#
# - a text longer than `index_topk`, than a few blocks, and than the window; its end in the midst of a block;
# - another number of heads in near and far layers, and a layer that reuses keys;
# - norms whose weights are not all one, and gates that are not all closed: a decay that forgets everything hides what
#   stands in the memory.
#
# The tests of this site do so with each function of this page, and with each of the slips.
#
# ## What to read next
#
# - [What replaces the N x N matrix?](linear.py), for the delta rule in chunks, and sparse attention in three branches.
# - [MQA, GQA, MLA: how small can the cache be?](grouped.py), for latents and for shared heads.
# - [How does any model attend?](atlas.py), for all others.
#
# ## References
#
# <!--~ 2025, 2024, 2: references -->
# - DeepSeek-AI (2025), *DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models*: the indexer.
# - Kimi Team (2025), *Kimi Linear: An Expressive, Efficient Attention Architecture*: the gate for each feature.
# - Yang, Kautz and Hatamizadeh (2024), *Gated Delta Networks: Improving Mamba2 with Delta Rule*.
# - The code of `deepseek_v32`, `deepseek_v4`, `gemma4`, `kimi_linear` and `qwen3_5` in transformers 5.24<!--~ a version
#   -->, read for this page.
