# %% [markdown]
# # How does any model attend?
#
# **Of {{ len(atlas.models) }} models of transformers that were measured, {{ decoders }} are decoders. Of these,
# {{ atlas.share("grouped", "decoder") :.0%}} share keys among heads, {{ atlas.share("halves", "decoder") :.0%}} turn
# their features in halves, {{ atlas.share("norm", "decoder") :.0%}} norm their queries and keys, and
# {{ atlas.share("window", "decoder") :.0%}} have layers with a window. Packed texts meet in {{ atlas.share("meet")
# :.0%}} of those that take positions, and no error says so.**
#
# No trait is read from a config or guessed from a name. Each model was made small, with random weights, and asked by
# trials: transformers {{ record["transformers"] }}, PyTorch {{ record["torch"] }}, {{ record["measured"] }}. A small
# model attends as a large one of its class does; only sizes, and what a published config sets otherwise than its class,
# are its own.
#
# **You should know** [grouped heads](grouped.py), [rotary positions](positions.py) and [masks](masks.py). **You will
# know** what is common and what is rare, which traps a model has, and how to ask your own.

# %% tags=["imports"]
from unmasked_lessons.figures.atlas import Atlas, Counts, Listing

# %% tags=["remove-cell"]
atlas = Atlas()
record = atlas.record
decoders = sum(model.kind == "decoder" for model in atlas.models)

# %% [markdown]
# ## All models
#
# A row is a model, and its name is its anchor: `#qwen3` at the end of this page's address leads to Qwen3<!--~ a name
# -->. *Heads* are those of queries and those whose keys differ. *Cache* counts the bytes that a further token takes in
# float32<!--~ a type -->, in all layers, and after a plus what is there however short the text. *Positions* are those
# inside of attention: at *none here* they are added to the words, or there are none. *Sees* counts the layers, and the
# keys that a query sees in them, in a model whose config asks for a window of four. Each trait leads to the page that
# explains it. The year is the one in the head of the model's code.

# %% tags=["hide-input"]
#| script: ../../src/unmasked_lessons/figures/atlas.js
Listing(atlas)

# %% [markdown]
# ## What is common, and what is rare
#
# What the textbook has is not in the list: a softmax over scaled products, a sum of values. Each line counts the models
# that have more than that, and one layer is enough.

# %% tags=["hide-input"]
Counts(atlas, traps=False)

# %% [markdown]
# ## Which traps are open
#
# A trap is a call that runs without an error and gives other numbers than one would think. Each was tried on the model
# itself; it is counted among the models on which the trial ran.

# %% tags=["hide-input"]
Counts(atlas, traps=True)

# %% [markdown]
# Some of these have a name and a reason:
#
# - **Packed texts meet.** Most decoders keep two texts of a row apart if their positions begin anew, and if there is no
#   mask and no cache. gpt-oss, OPT and Qwen3-Next<!--~ a name --> do not. With FlashAttention, texts in a batch of two
#   rows meet in nearly all decoders.
# - **A step needs its position.** Bamba counts the place of a new token from zero if you pass a cache and no
#   `position_ids`. With them its steps are right. `generate` passes them.
# - **Padding on the left shows.** GPT-2<!--~ a name --> and BERT number their places from the padding on, if you pass
#   no `position_ids`. Llama's turned features show offsets alone, so its text stays as it is.
# - **Crop does not bring it back.** A recurrent state does not keep apart what it has read, so nothing can be taken out
#   of it. Qwen3-Next's<!--~ a name --> cache says so by `is_croppable`, and `crop` runs all the same.
# - **A mask of four axes does not hide.** It hides nothing from layers that carry a state, as in Mamba-2<!--~ a name
#   --> and Qwen3-Next<!--~ a name -->.
# - **An implementation gives other numbers.** Without token types PaliGemma is causal with `eager`, and with `sdpa` its
#   tokens see the future. Doge's mask differs from head to head, and FlexAttention is given the first head's.
#
# And what few have:
#
# - HunYuan's queries are normed *after* they are turned, and OLMo 2<!--~ its name --> norms all heads together.
# - The far layers of Command R7B<!--~ its name -->, which see everything, turn nothing, nor do Llama
#   4's<!--~ its name -->.
# - Falcon has one key head, as its class is set. ModernBERT's window is as wide to the right as to the left.

# %% tags=["claims"]
assert atlas.share("packs", "decoder") > 0.5, (
    "Most decoders keep two texts of a row apart if their positions begin anew"
)
assert all(atlas.has(m, "meet") for m in ("gpt_oss", "opt", "qwen3_next")), (
    "gpt-oss, OPT and Qwen3-Next do not"
)
assert atlas.share("two-rows", "decoder") > 0.9, (
    "texts in a batch of two rows meet in nearly all decoders"
)
assert atlas.has("bamba", "steps"), (
    "Bamba counts the place of a new token from zero if you pass a cache and no position_ids. "
    "With them its steps are right"
)
assert atlas.has("gpt2", "padding") and atlas.has("bert", "padding"), (
    "GPT-2 and BERT number their places from the padding on"
)
assert not (
    atlas.has("gpt2", "padding-placed") or atlas.has("llama", "padding")
), "Llama's turned features show offsets alone, so its text stays as it is"
assert atlas.has("qwen3_next", "crop") and (
    record["models"]["qwen3_next"]["crop"]["is_croppable"] is False
), "says so by is_croppable, and crop runs all the same"
assert atlas.has("mamba2", "four-axes") and (
    atlas.has("qwen3_next", "four-axes")
), (
    "It hides nothing from layers that carry a state, as in Mamba-2 and Qwen3-Next"
)
assert atlas.has("paligemma", "sdpa") and atlas.has("doge", "flex"), (
    "Without token types PaliGemma is causal with eager, and with sdpa its tokens see the future"
)
assert atlas.has("hunyuan_v1_dense", "norm-after") and (
    atlas.has("olmo2", "norm-all")
), (
    "HunYuan's queries are normed after they are turned, and OLMo 2 norms all heads together"
)
assert atlas.has("cohere2", "some-nowhere") and (
    atlas.has("llama4_text", "some-nowhere")
), (
    "The far layers of Command R7B, which see everything, turn nothing, nor do Llama 4's"
)
assert atlas.has("falcon", "one-key") and atlas.has(
    "modernbert", "both-sides"
), (
    "Falcon has one key head, as its class is set. ModernBERT's window is as wide to the right as to the left"
)

# %% [markdown]
# ## How each was asked
#
# - **Which keys a query sees.** Scores are heard as they go into the softmax. Those that no mask put out of reach are
#   counted.
# - **What turns.** A layer gets the same token in all places. What still differs from place to place is turned, and two
#   features are a pair if the sum of their squares stays. Pairs are counted in the order of the projection's rows,
#   because some models reorder them before they turn. The angle between neighbors, pair by pair, gives the base.
# - **Norms.** Queries have one length, in each head or over all. Other weights of the norm show whether it is learned,
#   and whether it stands before the turning.
# - **What is added to scores** is left of them without the products: nothing, a slope, or numbers by distance.
# - **Scale, cap and sink.** The scale is the slope of scores over products. A cap holds back scores that are a hundred
#   thousand times as large. With a sink, weights do not sum to one.
# - **A gate** multiplies: with other tokens and the same context, the output changes by a factor.
# - **A latent.** All values of a text have a lower rank than they have features.
# - **Packed texts.** A token of the first text is changed, and the second text is looked at.
# - **Padding, steps, pieces, crop.** The same text is read in two ways, and the numbers are compared.
# - **FlashAttention and FlexAttention.** Their kernels are replaced by the formula that they compute. What is tried is
#   how a model calls them.
#
# Where something could not be measured, the record says so, with the reason. It also names {{ len(atlas.missing) }}
# types of models that were not made: they want files, images or packages of their own, or no rule makes them small.
#
# ## Ask your own
#
# From a clone of this site's repository, with its environment:
#
# ```sh
# .venv/bin/python -m tests.atlas --only '^qwen3$' --show
# ```
#
# Without `--only` it sweeps over all, goes on after a model that fails, and when it was stopped begins where it was.
# Its last lines say what differs from the record.
#
# ## What to read next
#
# - [How do Qwen3, Gemma 3, gpt-oss, DeepSeek-V3 and Qwen3-Next attend?](models.py)<!--~ names --> Five of them, line by
#   line.
# - [Which RoPE is mine, and did I break it?](positions.py) Halves and interleaved pairs.
# - [How do I pack several texts into one sequence?](packing.py) Where texts meet.
