# %% [markdown]
# # How do I see the weights of a model that returns none?
#
# **Run the model under `unmasked.watch`: it records every call of attention that has a name in PyTorch, and computes
# the weights of each head when you ask for them.** Nothing in the model is changed, and nothing is left behind.
# Attention that is written out has no name. Some models of transformers load with such code, gpt-oss and Gemma
# 2<!--~ a name --> among them: there `watch` hears nothing, and warns. [A function of your
# own](#weights-from-transformers-itself) gives their weights.

# %% tags=["imports"]
import copy
import textwrap
import warnings

import torch
import torch.nn.functional as F
from torch import nn

import unmasked
from unmasked import CausalSelfAttention, plot, rollout, watch
from unmasked_lessons.figures.atlas import Atlas

# %%
torch.manual_seed(0)
x = torch.randn(2, 5, 12)  # batch tokens features
layer = nn.TransformerEncoderLayer(12, 3, 24, batch_first=True)
model = nn.Sequential(layer, copy.deepcopy(layer))  # any model

with watch(model) as seen:
    model(x)
seen[0].weights.shape, seen[1].module  # batch heads queries keys

# %% [markdown]
# This is what each interface returns by itself, and what `watch` records of it:
#
# {{ plot.table(["Interface", "Returns the weights of", "Recorded by `watch`"], rows).markdown() }}
#
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# PyTorch's function returns no weights, and its fused kernels [never make
# them](https://github.com/pytorch/pytorch/issues/98505), which saves time and memory. Most models of transformers call
# it too, so [their attentions are empty or `None`](https://github.com/huggingface/transformers/issues/30978). Loaded
# with `attn_implementation="eager"` and called with `output_attentions=True`, they return the weights, but run other
# code than you use. `watch` takes them as they are. A section below compares all ways to [weights from
# transformers](#weights-from-transformers-itself).
#
# **You should know** [what heads are](heads.py) and [what a mask is for](masks.py). **You will know** how to see which
# tokens each head of a model attends to, how to find out what a head does for the output, and four ways to be misled.


# %% tags=["check"]
class Sdpa(nn.Module):
    def forward(self, x):
        q = k = v = x.unflatten(-1, (3, 4)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


class ByHand(nn.Module):
    def forward(self, x):
        return (x @ x.mT / x.size(-1) ** 0.5).softmax(-1) @ x


class Asked(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attn = nn.MultiheadAttention(12, 3, batch_first=True)
        self.options = options

    def forward(self, x):
        return self.attn(x, x, x, **self.options)


atlas = Atlas()
torch.manual_seed(0)
interfaces = {
    "`F.scaled_dot_product_attention`": Sdpa(),
    "`nn.MultiheadAttention`": Asked(),
    "`nn.MultiheadAttention`, `average_attn_weights=False`": Asked(
        average_attn_weights=False
    ),
    "`nn.MultiheadAttention`, `need_weights=False`": Asked(
        need_weights=False
    ),
    "`nn.TransformerEncoder`": nn.TransformerEncoder(
        layer, 1, enable_nested_tensor=False
    ),
    "`unmasked.CausalSelfAttention`": CausalSelfAttention(12, 12, 3),
    "attention written out by hand": ByHand(),
}
axes = {0: "nothing", 3: "the mean of its heads", 4: "each head"}
rows, recorded = [], []
for name, interface in interfaces.items():
    with warnings.catch_warnings(action="ignore"), watch(interface) as calls:
        returned = interface(x)
    weights = returned[1] if isinstance(returned, tuple) else None
    told = axes[0 if weights is None else weights.dim()]
    heads = [call.weights.size(1) for call in calls]
    recorded.append(heads)
    each = f"each of {heads[0]} heads" if heads else "no: see below"
    rows.append([name, told, each])

# %% tags=["claims"]
assert atlas.share("unheard", "decoder") < 0.2, (
    "Most models of transformers call it too"
)
assert recorded == [*[[3]] * 6, []], (
    "it records every call of attention that has a name in PyTorch, "
    "and computes the weights of each head when you ask for them"
)

# %% [markdown]
# ## A model whose heads can be read
#
# This model has two layers of attention and nothing else. It reads words and says, after each, which word it expects
# next. After *go back to my ship and to my* it should say *ship*, because *ship* came after *my* before. Two heads in
# two layers can do that together. The second one, which finds the earlier place, is the *induction head*, and the two
# are its *circuit*.
#
# The features of a token say which word it is, at which position, which word came before, and which comes next. `embed`
# fills in the first two, and the heads the rest:

# %% tags=["check"]
words = "go back to my ship and to my".split()
known = sorted(set(words))  # the vocabulary
ids = torch.tensor([[known.index(word) for word in words]])
V, P = len(known), len(words)  # words of the vocabulary, positions
WORD, POSITION = slice(0, V), slice(V, V + P)
BEFORE, NEXT = slice(V + P, 2 * V + P), slice(2 * V + P, 3 * V + P)
WIDTH = 3 * V + P
same_word, same_position = torch.eye(V), torch.eye(P)
shifted = torch.eye(P).roll(1, 0)  # a position, turned into the next one


def embed(ids):
    x = torch.zeros(*ids.shape, WIDTH)
    x[..., WORD] = F.one_hot(ids, V).float()
    x[..., POSITION] = torch.eye(P)[: ids.size(1)]
    return x


# %%
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        options = {"num_heads": 2, "out_bias": False}
        self.layers = nn.ModuleList(
            CausalSelfAttention(WIDTH, WIDTH, **options) for _ in range(2)
        )

    def forward(self, ids):
        x = embed(ids)  # batch tokens width
        for layer in self.layers:
            x = x + layer(x)
        return x[..., NEXT]  # a score for each word


# %% [markdown]
# Each head is wired by hand, with its query, its key, its value, and the part of the features that it writes to:


# %% tags=["check"]
def wire(layer, head, *, query=None, key=None, value=None, to=None, of=1.0):
    d = layer.head_dim
    parts = layer.qkv.weight.data.view(3, layer.num_heads, d, -1)
    for number, part in enumerate((query, key, value)):
        if part is not None:
            reads, matrix = part
            parts[number, head, : len(matrix), reads] = matrix
    if to is not None:
        columns = slice(head * d, head * d + V)
        layer.out_proj.weight.data[to, columns] = of * same_word


# %%
word, position = (WORD, same_word), (POSITION, 100 * same_position)


def wire_first(layer):
    wire(layer, 0, query=position, key=(POSITION, shifted))
    wire(layer, 0, value=word, to=BEFORE)
    always = torch.full((1, P), 100.0)  # whatever the position
    wire(layer, 1, query=(POSITION, always), key=(POSITION, torch.eye(1, P)))


# %%
def wire_second(layer):
    wire(layer, 0, query=(WORD, 100 * same_word), key=(BEFORE, same_word))
    wire(layer, 0, value=word, to=NEXT)
    wire(layer, 1, value=word, to=NEXT, of=0.2)


# %% tags=["check"]
def build():
    model = Reader().eval()
    for parameter in model.parameters():
        parameter.data.zero_()
    wire_first(model.layers[0])
    wire_second(model.layers[1])
    return model


torch.manual_seed(1)
model = build()

# %% [markdown]
# - In the first layer, one head looks at the position before its own and notes the word there.
# - The other looks at the first position. It has no value, so it writes nothing.
# - In the second layer, one head looks for words whose *word before* is the present word, and writes them down as the
#   next word. This is the induction head.
# - The other asks for nothing in particular, and writes a weak average of all words so far.

# %% [markdown]
# ## Every call, in its order

# %%
with unmasked.watch(model) as seen:
    scores = model(ids)  # batch tokens vocabulary

seen

# %%
expected = [known[best] for best in scores[0].argmax(-1)]
print("after", " ".join(words), "comes", expected[-1])

# %% [markdown]
# A call knows which module made it, which kernel ran, its axes, and how much of the table of weights its mask lets
# through. `seen[1]`<!--~ a place --> is the second call, and its `.weights` are (batch, heads, queries, keys).
# `.query`, `.key`, `.value`, `.allowed` and `.bias` are what went in, and `.entropy` says how widely each head spreads
# its weights.

# %% tags=["hide-input"]
#| caption: What the four heads look at. Rows are queries, columns are keys. In its last row, the induction's map gives
#|   *ship* a weight of {{ found :.2f}}.
maps = {
    f"layer {n}, head {head}": call.weights[0, head]
    for n, call in enumerate(seen)
    for head in range(2)
}
previous = maps["layer 0, head 0"].diagonal(-1)
sink, found = maps["layer 0, head 1"][:, 0], maps["layer 1, head 0"][-1, 4]
even = maps["layer 1, head 1"][-1]
shown = {name: each.round(decimals=4) for name, each in maps.items()}
plot.grid(shown, queries=words, allowed=unmasked.masks.causal(P))

# %% tags=["check"]
untouched = torch.allclose(model(ids), scores, atol=1e-6) and not any(
    module._forward_hooks or "forward" in vars(module)
    for module in model.modules()
)

# %% tags=["claims"]
assert untouched, (
    "Nothing in the model is changed, and nothing is left behind"
)
assert (previous > 0.99).all(), (
    "one head looks at the position before its own"
)
assert (sink > 0.99).all(), "The other looks at the first position"
assert not seen[0].value[0, 1].any(), "It has no value, so it writes nothing"
assert found > 0.99, (
    "one head looks for words whose word before is the present word"
)
assert not seen[1].query[0, 1].any(), (
    "The other asks for nothing in particular"
)

# %% [markdown]
# ## All heads of a trained model
#
# Nobody wires a real model by hand. This one has learned a
# [song](../learn/heads.py#two-heads-that-sing), in two layers of two heads.
# `unmasked.show` takes what was watched and shows all of its weights live, in a notebook and here: *item* chooses the
# layer, and a small map the head. `.save("weights.html")` writes the same as a page.

# %%
from unmasked_lessons.teaching import Singer, verse

singer, song = Singer.trained(2), "la la la " + verse(7)
with unmasked.watch(singer) as sung:
    singer(singer.numbers_of(song))

# %% tags=["hide-input"]
#| caption: The weights of a trained model, of which each item is a layer. Rows are queries, columns are keys. In the
#|   row of *be*, before *six*, both heads of the second layer find the two *seven*.
of_layers = torch.cat([call.weights for call in sung])
to_seven = of_layers[:, :, 17, [3, 6]].sum(dim=-1)  # from be, by each head
unmasked.show(sung, queries=song.split(), title="weights")

# %% tags=["claims"]
assert to_seven[1].min() > 0.9, (
    "both heads of the second layer find the two seven"
)

# %% [markdown]
# ## A weight is not an effect
#
# One head of the first layer has the sharpest weights possible: everything goes to one word. Yet the model does not
# need it. To find out what a head does, switch it off: `ablate` sets its output to zero inside its block.

# %%
effects = {}
for layer in range(2):
    for head in range(2):
        with unmasked.ablate(model, {f"layers.{layer}": [head]}):
            without = model(ids)
        effects[layer, head] = (without - scores)[0, -1], without[0, -1]

# %% tags=["hide-input", "any-version"]
#| caption: The entropy of each head, how much the scores of the coming word change without it, and what is expected
#|   then. The head that looks at the first word has the smallest entropy, and no effect.
jobs = ["the word before", "the first word", "induction", "all words so far"]
entropies = {at: seen[at[0]].entropy[at[1]].item() for at in effects}
spoiled = [
    at
    for at, (_, last) in effects.items()
    if known[last.argmax()] != expected[-1] == "ship"
]
rows_of_heads = [
    [
        f"layer {at[0]}, head {at[1]}: {job}",
        entropies[at] + 0,
        change.abs().max(),
        known[without.argmax()],
    ]
    for job, (at, (change, without)) in zip(
        jobs, effects.items(), strict=True
    )
]
plot.table(
    ["Head", "Entropy", "Largest change", "Next word without it"],
    rows_of_heads,
    "{:.2f}",
)

# %% [markdown]
# Trained models can have such heads too, which look at the first token when they have nothing to look for. So do not
# rank heads by their weights. Nor need the effect of two heads be the sum of their effects: without the head that notes
# the word before, the induction head has nothing to find, though its own weights are as they were wired.

# %% tags=["claims"]
assert spoiled == [(0, 0), (1, 0)], "Two heads in two layers can do that"
assert not effects[0, 1][0].any(), "Yet the model does not need it"
assert entropies[0, 1] < 1e-6 and not effects[0, 1][0].any(), (
    "The head that looks at the first word has the smallest entropy, and no effect"
)
assert (0, 0) in spoiled, "the induction head has nothing to find"

# %% [markdown]
# ## An average hides heads
#
# `nn.MultiheadAttention` returns the mean over its heads, unless you say `average_attn_weights=False`. The mean of the
# first layer looks like a head that divides its attention between two words, but there is no such head:

# %%
mean = seen[0].weights.mean(dim=1)[0]  # queries keys
print("mean:  ", [f"{weight:.2f}" for weight in mean[-1].tolist()])
for head in range(2):
    row = seen[0].weights[0, head, -1].tolist()
    print(f"head {head}:", [f"{weight + 0:.2f}" for weight in row])

# %% [markdown]
# The mean gives the word before 0.50<!--= mean[-1, -2] --> and the first word 0.50<!--= mean[-1, 0] -->. Each head
# gives one of them 1.00<!--= torch.stack([previous[-1], sink[-1]]).min() -->.

# %% tags=["claims"]
assert rows[1][1] == axes[3], (
    "nn.MultiheadAttention returns the mean over its heads"
)
assert (seen[0].entropy < 0.01).all(), "but there is no such head"

# %% [markdown]
# ## Weights after dropout
#
# In training with dropout, `nn.MultiheadAttention` returns the weights *after* it, which are not those that the softmax
# made. In each head, some are zero, the others are enlarged, and the rows do not sum to one. `watch` gives the weights
# before dropout:

# %%
torch.manual_seed(2)
module = nn.MultiheadAttention(12, 3, dropout=0.5, batch_first=True)
with unmasked.watch(module) as training:
    _, returned = module(x, x, x, average_attn_weights=False)

returned[0, 0].sum(-1), training[0].weights[0, 0].sum(-1)


# %% tags=["check"]
enlarged = torch.where(returned == 0, 0, 2 * training[0].weights)


class Scored(nn.Module):
    def forward(self, x, bias):
        return F.scaled_dot_product_attention(x, x, x, bias)


def by_rollout(first, second):
    calls = []
    for weights in (first, second):
        n = len(weights)
        zeros = torch.zeros(1, 1, n, 1, dtype=weights.dtype)
        given = Scored()
        with watch(given) as seen:
            given(zeros, weights.log())
        calls += seen
    return rollout(calls)[0]


# %% [markdown]
# The sums of the returned rows lie between {{ returned.sum(-1).min() :.2f}} and {{ returned.sum(-1).max() :.2f}}; those
# of `watch` are one.

# %% tags=["claims"]
assert (returned == 0).any(), (
    "In training with dropout, nn.MultiheadAttention returns the weights after it"
)
assert torch.allclose(returned, enlarged, atol=1e-6), (
    "some are zero, the others are enlarged"
)
assert (training[0].weights > 0).all(), (
    "watch gives the weights before dropout"
)

# %% [markdown]
# ## Through all layers: rollout
#
# From the second layer on, weights point at what the layer below has made of the words, not at the words themselves.
# *Attention rollout* multiplies the tables of all layers, averaged over heads. It has to count the residual connection,
# which carries each word past the attention, so half of each row goes to the word itself:
#
# $$R = \tfrac{1}{2} (A_2 + I) \cdot \tfrac{1}{2} (A_1 + I)$$
# <!-- where: A_1 = random("n n").softmax(-1); A_2 = random("n n").softmax(-1)
# I = torch.eye(len(A_1), dtype=A_1.dtype); R = by_rollout(A_1, A_2) -->
#
# Without the residual connection, the tables are simply multiplied, and *ship* nearly disappears:

# %%
ship = words.index("ship")
with_residual = unmasked.rollout(seen)[0, -1]
without_residual = unmasked.rollout(seen, residual=False)[0, -1]
with_residual[ship], without_residual[ship]


# %% [markdown]
# Rollout gives *ship* {{ with_residual[ship] :.2f}} with the residual connection and {{ without_residual[ship] :.2f}}
# without it. It still looks at weights alone, and counts all heads alike; `ablate` is the better way to find what moves
# the output.

# %% tags=["claims"]
assert without_residual[ship] < with_residual[ship] / 4, (
    "the tables are simply multiplied, and ship nearly disappears"
)

# %% [markdown]
# ## Weights from transformers itself
#
# This is what you get from a model of transformers as it is loaded, with `sdpa`:
#
# | You write | You get |
# | --- | --- |
# | `model(ids, output_attentions=True)` | an empty tuple, and a line in the log, once |
# | `model.config.output_attentions = True` | a `ValueError` |
# | the first, after `model.set_attn_implementation("eager")` | the weights of each layer, in training after dropout |
# | `with watch(model) as seen` | the weights of each layer, before dropout |
#
# ([Older versions](https://github.com/huggingface/transformers/pull/33660) computed the
# first by `eager`, and warned.) A function of your own can return the weights, or anything else:
#
# ```python
# from transformers import AttentionInterface, AttentionMaskInterface
# from transformers.masking_utils import eager_mask
# from unmasked import attend
#
# def mine(module, query, key, value, attention_mask, scaling=None, **more):
#     added = [attention_mask, more.get("position_bias")]
#     added = [x for x in added if x is not None]
#     options = {"bias": sum(added) if added else None, "scale": scaling}
#     options |= {"softcap": more.get("softcap"), "sinks": more.get("s_aux")}
#     found = attend(query, key, value, need_weights=True, **options)
#     return found.context.transpose(1, 2), found.weights
#
# AttentionInterface.register("mine", mine)
# AttentionMaskInterface.register("mine", eager_mask)  # do not forget it
# model.set_attn_implementation("mine")
# weights = model(ids, output_attentions=True).attentions
# ```
#
# What you leave out of `more` is lost without an error, such as the soft-cap of Gemma 2<!--~ a name -->, the sinks of
# gpt-oss, or the positions of T5<!--~ a name -->, MPT and Inkling, which are added as `position_bias`. The other trap
# is the mask, which is [made for the name of the
# implementation](https://github.com/huggingface/transformers/pull/45811). If no mask is registered for a name, its
# function gets `None`, even if there is padding. Here each token then sees the future. Registering `sdpa_mask` is not
# enough for this function: where a causal mask would do, it gives `None`, too, and relies on the function to be causal.
# `eager_mask` makes the causal mask in every case, [in numbers that are
# added](packing.py#what-their-attention_mask-means). The project's tests hold transformers 5.24<!--~ the version that
# was seen --> to this section.
#
# ## What `watch` cannot see
#
# PyTorch lets a program watch every call of its functions, and `watch` picks out attention. So it sees PyTorch's
# function, FlexAttention, PyTorch's modules and this library's, and compiled models, which it runs uncompiled. It
# cannot see attention that has no name, written out as a product, a softmax and a product, nor the kernels of other
# libraries, such as flash_attn and xformers. If nothing is recorded, a warning says so:

# %%
by_hand, recording = ByHand(), warnings.catch_warnings(record=True)
with recording as caught, unmasked.watch(by_hand) as nothing:
    by_hand(x)

# %% tags=["hide-input"]
for line in textwrap.wrap(str(caught[0].message), 78):
    print(line)

# %% [markdown]
# PyTorch's encoder leaves its [fast path](masks.py#masks-of-numbers-are-added) while it is watched, as it does for
# hooks. The column *note* of the table shows where that happens. Unwatched, such a call gives other numbers if its mask
# is one of numbers, or if a query sees nothing, and `nn.TransformerEncoder` may give zeros at padding.
#
# `watch` keeps references, not copies. If a cache is written to again, the weights that you ask for later would be
# wrong; `watch` notices, and raises an error, except under `torch.inference_mode`, where PyTorch does not count what is
# written. For such a cache use `watch(model, keep="weights")`, which computes the weights at once and keeps only them.
# For models with many layers, `only=` takes a function of a call.

# %% tags=["claims"]
assert len(caught) == 1, "If nothing is recorded, a warning says so"

# %% [markdown]
# ## The check for your own tests
#
# One NaN in a table of weights can spoil all layers above it, and a query that sees nothing is a mistake, unless it is
# padding. This test names the first call where either happens. Put it into your own tests, with a text without padding:


# %%
def assert_healthy(model, *inputs):
    with unmasked.watch(model) as seen:
        model(*inputs)
    assert seen, "no call of attention was recorded"
    for number, call in enumerate(seen):
        assert not call.nan.any(), f"NaN in call {number}: {call}"
        assert not call.blind.any(), f"a blind query in call {number}: {call}"


assert_healthy(model, ids)

# %% tags=["check"]
broken = copy.deepcopy(model)
broken.layers[1].qkv.weight.data[0, 0] = torch.nan
try:
    assert_healthy(broken, ids)
except AssertionError as error:
    complaint = str(error)
else:
    raise AssertionError("NaN was not found")

# %% tags=["claims"]
assert complaint.startswith("NaN in call 1"), (
    "This test names the first call where either happens"
)

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("previous-token-heads", answer))`.
#
# **Find the heads that look back** (`previous-token-heads`). Write `looks_back(weights)`, which takes the weights of a
# call, (batch, heads, queries, keys), and returns for each head the mean weight that a token gives to the one before
# it, (heads,). The first token has none before it, so it does not count.
#
# ??? question "Hint"
#
#     The weights on the previous token are a diagonal of the table, one below the main one.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def looks_back(weights):
    return weights.diagonal(-1, dim1=-2, dim2=-1).mean(dim=(0, 2))


feedback = check("previous-token-heads", looks_back)
assert feedback
feedback

# %% [markdown]
# **Switch heads off by hand** (`ablate-by-hand`). Write `without(context, heads)`. `context` is the merged result of
# three heads, (batch, tokens, heads times head_dim), and `heads` has the numbers of those to switch off. Return a copy
# in which these are zero, for the output projection to read.
#
# ??? question "Hint"
#
#     Split the last axis into heads and features again before you choose.


# %% tags=["solution"]
def without(context, heads):
    by_head = context.unflatten(-1, (3, -1)).clone()
    by_head[:, :, heads] = 0
    return by_head.flatten(-2)


feedback = check("ablate-by-hand", without)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [What does each interface make of my mask?](masks.py): where blind queries and NaN come from.
# - [Where are my weights?](layouts.py): load one layer of a checkpoint, and look at it alone.
# - [Why several heads?](../learn/heads.py): what heads learn when they are trained.
#
# ## References
#
# <!--~ 2020, 3, 2022, 2019, 2024: references -->
# - Abnar and Zuidema (2020), *Quantifying Attention Flow in Transformers*: section 3, attention rollout.
# - Olsson et al. (2022), *In-context Learning and Induction Heads*.
# - Michel, Levy and Neubig (2019), *Are Sixteen Heads Really Better than One?*: section 3, heads switched off.
# - Xiao et al. (2024), *Efficient Streaming Language Models with Attention Sinks*: heads that look at the first token.
