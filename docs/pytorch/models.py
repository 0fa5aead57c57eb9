# %% [markdown]
# <!--~ 3: a model's name -->
# # How do Qwen3, Gemma 3, gpt-oss, DeepSeek-V3 and Qwen3-Next attend?
#
# **In the way you know, with grouped heads and rotary positions, plus a few lines of their own: norms on queries and
# keys, a scale, a window, a sink, a gate. Of the layers that attend, only those of DeepSeek-V3 make their keys and
# values in another way, from a short latent.**
#
# {{ table.markdown() }}
#
# *(The first row is a plain decoder with rotary positions, to compare with. Sizes, bases and windows are those of the
# published configs; scales and norms are those that the models' code makes of them. Where a base says *by*, it is
# stretched by that factor, for longer texts.)*
#
# **You should know** [grouped heads](grouped.py), [rotary positions](positions.py) and [windows and sinks](long.py).
# **You will know** which lines make each model's attention, what happens when one of them is forgotten, and how to
# compare your own version with the model in transformers.

# %% tags=["imports"]
import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from unmasked import attend, masks, plot
from unmasked.heads import merge_heads, split_heads
from unmasked.positions import Rotary

# %% [markdown]
# Each section below has a function of four arguments: the words `x` (batch, tokens, features), the layer's weights `w`
# by their names in the checkpoint, the model's `config`, and the number of the layer. Put into a [model in
# transformers](#hold-yours-to-the-model-in-transformers) instead of its own attention, each function gives the same
# logits: the tests of this site make sure of it, in float32, for a text that is read at once, without padding.
#
# ## Qwen3: a norm on every query and key
#
# Large queries and keys can make scores so large that the softmax picks out a single word, so Qwen3 norms them. Each
# head's query is divided by its root mean square and multiplied by learned factors, which all heads share, and so is
# each key. The norm comes *before* the turning. That is no law, though it is usual: a norm multiplies features one by
# one, and turning mixes them in pairs, so only in this order does a score depend on the offset alone. Hunyuan's models
# norm after the turning, and a checkpoint wants the order that it was trained with.


# %%
def norm(x, weight, eps):  # its mean in float32, as in the models
    normed = F.rms_norm(x.float(), weight.shape, weight.float(), eps)
    return normed.to(x.dtype)


def qwen3(x, w, config, layer=0):
    dim, eps = config.head_dim, config.rms_norm_eps
    query = split_heads(
        F.linear(x, w["q_proj.weight"]), config.num_attention_heads
    )
    key, value = (
        split_heads(F.linear(x, w[name]), config.num_key_value_heads)
        for name in ("k_proj.weight", "v_proj.weight")
    )
    query = norm(query, w["q_norm.weight"], eps)
    key = norm(key, w["k_norm.weight"], eps)
    rotary = Rotary.from_config(dim, config.rope_parameters)
    place = torch.arange(x.size(1), device=x.device)
    query, key = rotary(query, place), rotary(key, place)
    context = attend(query, key, value, is_causal=True).context
    return F.linear(merge_heads(context), w["o_proj.weight"])


# %% [markdown]
# Now only a query's direction counts, not its size. OLMo 2<!--~ its name --> norms all heads together before they are
# split; you can tell the two ways apart by the length of the norm's weight.
#
# ## Gemma 3<!--~ its name -->: five layers near, one layer far
#
# Five layers out of six see only a window, and turn by a base of ten thousand. The sixth sees all that stands before,
# and turns by a base of a million, with every angle divided by eight. Two more things are easy to miss. The factor of a
# norm is one plus the stored weight. And the scale comes from the config: in the largest model it does not follow from
# `head_dim`. (In the models of a billion parameters and less, the window is shorter, and no angle is divided.)


# %%
def gemma3(x, w, config, layer):
    dim, eps = config.head_dim, config.rms_norm_eps
    query = split_heads(
        F.linear(x, w["q_proj.weight"]), config.num_attention_heads
    )
    key, value = (
        split_heads(F.linear(x, w[name]), config.num_key_value_heads)
        for name in ("k_proj.weight", "v_proj.weight")
    )
    query = norm(query, 1 + w["q_norm.weight"].float(), eps)
    key = norm(key, 1 + w["k_norm.weight"].float(), eps)
    kind = config.layer_types[layer]
    rotary = Rotary.from_config(dim, config.rope_parameters[kind])
    place = torch.arange(x.size(1), device=x.device)
    query, key = rotary(query, place), rotary(key, place)
    near = kind == "sliding_attention"
    window = config.sliding_window if near else x.size(1)
    allowed = masks.sliding_window(x.size(1), window=window, device=x.device)
    scale = config.query_pre_attn_scalar**-0.5
    context = attend(query, key, value, allowed=allowed, scale=scale).context
    return F.linear(merge_heads(context), w["o_proj.weight"])


# %% [markdown]
# ## gpt-oss: a sink for each head
#
# Every other layer has a window, of no more than 128<!--~ its config --> tokens. Each head has a learned number that
# joins the scores in the softmax and belongs to no key, so that a head may look at nothing. All projections have a
# bias. Positions are stretched by YaRN: fast pairs turn as before, and slow ones are slowed down in proportion to the
# longer text. Turned queries and keys are also multiplied by a factor, which enters every score squared.


# %%
def gpt_oss(x, w, config, layer):
    def project(name, heads):
        projected = F.linear(
            x, w[f"{name}_proj.weight"], w[f"{name}_proj.bias"]
        )
        return split_heads(projected, heads)

    query = project("q", config.num_attention_heads)
    key = project("k", config.num_key_value_heads)
    value = project("v", config.num_key_value_heads)
    rotary = Rotary.from_config(config.head_dim, config.rope_parameters)
    place = torch.arange(x.size(1), device=x.device)
    query, key = rotary(query, place), rotary(key, place)
    near = config.layer_types[layer] == "sliding_attention"
    window = config.sliding_window if near else x.size(1)
    allowed = masks.sliding_window(x.size(1), window=window, device=x.device)
    sinks = w["sinks"]
    context = attend(query, key, value, allowed=allowed, sinks=sinks).context
    return F.linear(
        merge_heads(context), w["o_proj.weight"], w["o_proj.bias"]
    )


# %% [markdown]
# All heads together are wider than the model: 64<!--~ its config --> heads of 64<!--~ its config --> features make
# 4,096<!--~ their product -->, where a word has 2,880<!--~ its config -->.
#
# ## DeepSeek-V3: keys and values of a latent
#
# A word becomes a short latent, from which all keys and values are made. The cache keeps only the latent, and one
# turned key that all heads share. [How small can the cache be?](grouped.py) says why, and how a step is computed
# without making the keys again. Here is the plain form. Its features turn in *interleaved* pairs, as `rope_interleave`
# in the config of transformers says. YaRN's factor is one here, and its work is done in the scale: by `mscale_all_dim`,
# which stands in the config only where the scale is to grow.


# %%
def deepseek_v3(x, w, config, layer=0):
    heads, eps = config.num_attention_heads, 1e-6
    plain, turned = config.qk_nope_head_dim, config.qk_rope_head_dim
    rope = config.rope_parameters
    place = torch.arange(x.size(1), device=x.device)
    pairing = "interleaved" if config.rope_interleave else "halves"
    rotary = Rotary.from_config(turned, rope, pairing=pairing)

    short = F.linear(x, w["q_a_proj.weight"])
    short = norm(short, w["q_a_layernorm.weight"], eps)
    query = split_heads(F.linear(short, w["q_b_proj.weight"]), heads)
    still, moved = query.split([plain, turned], dim=-1)
    query = torch.cat([still, rotary(moved, place)], dim=-1)

    kept = F.linear(x, w["kv_a_proj_with_mqa.weight"])
    latent, shared = kept.split([config.kv_lora_rank, turned], dim=-1)
    latent = norm(latent, w["kv_a_layernorm.weight"], eps)
    made = split_heads(F.linear(latent, w["kv_b_proj.weight"]), heads)
    key, value = made.split([plain, config.v_head_dim], dim=-1)
    shared = rotary(shared[:, None], place).expand(-1, heads, -1, -1)
    key = torch.cat([key, shared], dim=-1)

    grows = rope.get("mscale_all_dim") or 0.0  # of YaRN alone
    stretch = 0.1 * grows * math.log(rope.get("factor") or 1.0) + 1
    scale = (plain + turned) ** -0.5 * stretch**2
    context = attend(query, key, value, is_causal=True, scale=scale).context
    return F.linear(merge_heads(context), w["o_proj.weight"])


# %% [markdown]
# ## Qwen3-Next: a gate on what was found
#
# Three layers out of four have another kind of attention, which carries a memory of fixed size from word to word. The
# fourth attends, and then multiplies what each head found by a gate between zero and one. The gate comes from the
# query's own matrix, head by head: first a head's query, then its gate. Only a quarter of the features turn, and the
# weights of norms are added to one, as in Gemma.


# %%
def qwen3_next(x, w, config, layer=0):
    dim, eps = config.head_dim, config.rms_norm_eps
    both = split_heads(
        F.linear(x, w["q_proj.weight"]), config.num_attention_heads
    )
    query, gate = both.chunk(2, dim=-1)  # of each head
    key, value = (
        split_heads(F.linear(x, w[name]), config.num_key_value_heads)
        for name in ("k_proj.weight", "v_proj.weight")
    )
    query = norm(query, 1 + w["q_norm.weight"].float(), eps)
    key = norm(key, 1 + w["k_norm.weight"].float(), eps)
    rotary = Rotary.from_config(dim, config.rope_parameters)
    place = torch.arange(x.size(1), device=x.device)
    query, key = rotary(query, place), rotary(key, place)
    context = attend(query, key, value, is_causal=True).context
    gated = context * gate.sigmoid()
    return F.linear(merge_heads(gated), w["o_proj.weight"])


# %% [markdown]
# <!--~ 5, 4: names -->
# Newer models are often one of these with other numbers: the layer of Qwen3.5 that attends is that of Qwen3-Next, and
# Kimi K2's are those of DeepSeek-V3. Others are not: see [DeepSeek V4, Gemma 4, Kimi Linear and
# Qwen3.5](models_2026.py).

# %% tags=["check", "any-version"]
from unmasked_lessons.experiments import models as experiments

FUNCTIONS = {
    "Qwen3": qwen3,
    "Gemma 3": gemma3,
    "gpt-oss": gpt_oss,
    "DeepSeek-V3": deepseek_v3,
    "Qwen3-Next": qwen3_next,
}
moved = experiments.effects(FUNCTIONS)
table = experiments.published()
slips = plot.table(*experiments.in_table(moved))

# %% [markdown]
# ## What each mistake does
#
# None of these raises an error, and no shape changes. Each line was replaced in the functions above, with small random
# weights, and the outputs were compared. The last column is the difference, as a share of the output's size:
#
# {{ slips.markdown() }}
#
# The tests of this site also put each of them into the whole model, and each moves its logits. Some of them hang in the
# museum, each with what finds it: [the wrong base](../museum/models.py#rope-base), a norm [after the
# turning](../museum/models.py#norm-after-rope), a window [one wider](../museum/models.py#window-off-by-one), a sink
# [whose share is given back](../museum/models.py#sink-share-returned).
#
# A trained model is often robust enough to go on talking, only worse. So such a mistake is found late, which is why you
# should compare the logits *before* you train or serve anything.

# %% tags=["claims"]
assert min(moved.values()) > 0.02, (
    "None of these raises an error, and no shape changes"
)

# %% [markdown]
# ## Hold yours to the model in transformers
#
# Make a tiny model from the config, with random weights, and replace its attention by your function. Nothing has to be
# downloaded, and only rounding may be left as a difference. The snippet wants transformers 5<!--~ a version -->, since
# older configs know no `rope_parameters`:
#
# ```python
# import torch
# from transformers import Qwen3Config, Qwen3ForCausalLM
#
# config = Qwen3Config(
#     vocab_size=50, hidden_size=24, intermediate_size=32, num_hidden_layers=2,
#     num_attention_heads=4, num_key_value_heads=2, head_dim=8,
#     rope_parameters={"rope_type": "default", "rope_theta": 1e6},
# )
# model, words = Qwen3ForCausalLM(config).eval(), torch.randint(50, (2, 11))
# with torch.no_grad():
#     for parameter in model.parameters():  # large, and no norm of ones
#         parameter += 0.3 * torch.randn_like(parameter)
#     theirs = model(words).logits
#     for number, block in enumerate(model.model.layers):
#         w = dict(block.self_attn.named_parameters())
#         block.self_attn.forward = lambda hidden_states, w=w, n=number, **_: (
#             qwen3(hidden_states, w, config, n), None
#         )
#     ours = model(words).logits
# torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
# ```
#
# ## What a small test does not see
#
# Random weights must be large enough to matter. If a norm's weight is all ones, or all zeros in Gemma, nobody sees that
# this weight was forgotten. A text shorter than the window hides the window. A text of one or two words hides a wrong
# base, and a short text hides that the stretching of Llama 3.1<!--~ its name --> was left out. Here is the error of
# each word, in a layer of Qwen3: first a base of ten thousand where it should be a million, then no stretching where
# there should be:

# %%
config, w, x = experiments.layer("Qwen3", tokens=12)
stretched = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}
stretched |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
stretched |= {"original_max_position_embeddings": 8192}


def off(rope, wrong):
    right, other = (
        qwen3(x, w, SimpleNamespace(**vars(config) | {"rope_parameters": r}))
        for r in (rope, rope | wrong)
    )
    return ((other - right).norm(dim=-1) / right.norm(dim=-1))[0]


base = off(config.rope_parameters, {"rope_theta": 1e4})
stretching = off(stretched, {"rope_type": "default"})
print(" ".join(f"{share:.0%}" for share in base.tolist()))
print(" ".join(f"{share:.2%}" for share in stretching.tolist()))

# %% [markdown]
# The first word meets only itself, and turning a query and a key by the same angle changes nothing. The wrong base
# shows from the third word on. Without the stretching all twelve words are off by less than a thousandth, because the
# fast pairs keep their speed, and the slow ones have hardly turned. The check of [positions](positions.py) finds both
# at once.

# %% tags=["claims"]
assert max(base[0], stretching[0]) < 1e-5, "The first word meets only itself"
assert base[1] < 0.02 and base[2:].min() > 0.04, (
    "The wrong base shows from the third word on"
)
assert len(stretching) == 12 and stretching.max() < 1e-3, (
    "Without the stretching all twelve words are off by less than a thousandth"
)

# %% [markdown]
# ## What to read next
#
# - [The models after these](models_2026.py), which keep less of a long text.
# - [Which RoPE is mine, and did I break it?](positions.py), for pairings, bases and what stretches them.
# - [MQA, GQA, MLA: how small can the cache be?](grouped.py), for DeepSeek's latent.
# - [Long contexts](long.py), for windows and sinks.
#
# ## References
#
# <!--~ 2025, 2024, 2.1.1, 3: references -->
# - Yang et al. (2025), *Qwen3 Technical Report*: the norms of queries and keys.
# - Gemma Team (2025), *Gemma 3 Technical Report*: five near layers to one far one, and their bases.
# - OpenAI (2025), *gpt-oss-120b & gpt-oss-20b Model Card*: windows, sinks and YaRN.
# - DeepSeek-AI (2024), *DeepSeek-V3 Technical Report*: section 2.1.1, the latent.
# - Peng et al. (2024), *YaRN: Efficient Context Window Extension of Large Language Models*.
