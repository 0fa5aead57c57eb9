# %% [markdown]
# # How does any model attend?
#
# **Of {{ len(atlas.models) }} models of transformers that were measured, {{ decoders }} are decoders. Of these,
# {{ atlas.share("grouped", "decoder") :.0%}} share keys among heads, {{ atlas.share("halves", "decoder") :.0%}} turn
# their features in halves, {{ atlas.share("norm", "decoder") :.0%}} norm their queries and keys, and
# {{ atlas.share("window", "decoder") :.0%}} have layers with a window. Packed texts meet in {{ atlas.share("meet")
# :.0%}} of those that take positions, and no error says so.**
#
# Nothing here is read from a config or guessed from a name. Each model was made small, with random weights, and asked
# by trials: transformers {{ record["transformers"] }}, PyTorch {{ record["torch"] }}, {{ record["measured"] }}. A small
# model attends as a large one of its class does; only sizes, and what a published config sets otherwise than its class,
# are its own.
#
# **You should know** [grouped heads](grouped.py), [rotary positions](positions.py) and [masks](masks.py). **You will
# know** what is common and what is rare, which traps a model has, and how to ask your own.

# %% tags=["imports"]
from unmasked_lessons.figures.atlas import TRAITS, Atlas, Counts, Listing

# %% tags=["remove-cell"]
atlas = Atlas()
record = atlas.record
decoders = sum(model.kind == "decoder" for model in atlas.models)

# %% [markdown]
# ## All models
#
# A row is a model, and its name is its anchor: `#qwen3` at the end of this page's address leads to Qwen3<!--~ a name
# -->. *Heads* are those of queries and those whose keys differ. *Sees* counts the layers, and the keys that a query
# sees in them, in a model whose config asks for a window of four<!--~ the sweep's size -->. Each trait leads to the
# page that explains it.

# %% tags=["hide-input"]
#| script: ../../src/unmasked_lessons/figures/atlas.js
Listing(atlas)

# %% [markdown]
# ## What is common, and what is rare
#
# What the textbook has is not in the list: a softmax over scaled products, a sum of values. Each line says in how many
# models at least one layer has more than that.

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
# ## How each was asked
#
# | Asked | How |
# | --- | --- |
# | which keys a query sees | scores are heard as they go into the softmax; those that a mask put out of reach are counted |
# | what turns, and in which pairs | the layer gets one token in all places: what still differs from place to place is turned, and two features are a pair if the sum of their squares stays |
# | halves or interleaved | pairs are counted in the order of the projection's rows, where a model may reorder them |
# | the base | from the angle between neighbors, pair by pair |
# | norms | queries have one length, for each head or for all; other weights of the norm show whether it is learned, and whether it stands before the turning |
# | what is added to scores | what is left of them without the products: nothing, a slope, numbers by distance |
# | the scale, the cap, the sink | the slope of scores over products; scores a hundred thousand times as large; weights that do not sum to one |
# | a gate | with other tokens and the same context, the output changes by a factor |
# | a latent | all values of a text have a lower rank than they have features |
# | bytes of the cache | tensors that a cache holds are counted, after texts of several lengths |
# | packed texts | a token of the first text is changed, and the second one is looked at |
# | FlashAttention and FlexAttention | their kernels are replaced by what they compute: it is tried how models call them |
#
# <!--~ the record's: where something was not measured it says why -->
# What could not be measured the [record](https://github.com/) names with its reason, and so it does with {{
# len(atlas.missing) }} types of models that could not be made small or do not run without files, images or packages of
# their own.

# %% [markdown]
# ## Ask your own
#
# From a clone of this site's repository, with its environment:
#
# ```sh
# .venv/bin/python -m tests.atlas --only '^qwen3$' --show
# ```
#
# Without `--only` it sweeps over all, goes on after a model that fails, and when it was stopped begins where it was. Its
# last lines say what differs from the record.
#
# ## What to read next
#
# - [How do Qwen3, Gemma 3, gpt-oss, DeepSeek-V3 and Qwen3-Next attend?](models.py)<!--~ names --> Five of them, line by
#   line.
# - [Which RoPE is mine, and did I break it?](positions.py) Halves and interleaved pairs.
# - [How do I pack several texts into one sequence?](packing.py) Where texts meet.
