# %% [markdown]
# # Where are my weights? Five layouts
#
# **Find your layout in this table; then `layouts.convert` carries the weights to any other without losing a bit.**
# Libraries keep the matrices of query, key and value together or apart, in one order or another, and transposed or as
# in `nn.Linear`:
#
# {{ plot.table(["Layout", f"Shape, of {num_heads} heads of {head_dim}", "Order of the rows", "Met in"],
# rows).markdown() }}
#
# Packed and interleaved have the same shape, so nothing complains if one is loaded as the other, and the keys come out
# wrong, off by 6.0<!--= wrong -->.
#
# **You should know** [how one matrix holds many heads](heads.py). **You will know** how PyTorch packs its matrices and
# how to take them apart, how each layout is used, how to tell them apart, and how to load weights without tying two
# models together.

# %% tags=["imports"]
import itertools
import textwrap
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import nn

from unmasked import CausalSelfAttention, layouts, masks, plot
from unmasked.heads import fused_qkv, merge_heads, project_loop, split_heads
from unmasked.trace import trace
from unmasked_lessons.experiments import layouts as experiments
from unmasked_lessons.figures import layouts as figures

batch, num_heads, head_dim, tokens = 2, 3, 4, 5
embed_dim = num_heads * head_dim

torch.manual_seed(0)
x = torch.randn(batch, tokens, embed_dim)
theirs = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
with torch.no_grad():  # biases start at zero, which would hide mistakes
    theirs.in_proj_bias.normal_()
    theirs.out_proj.bias.normal_()

packed = {name: x.detach().clone() for name, x in theirs.state_dict().items()}
{name: tuple(tensor.shape) for name, tensor in packed.items()}

# %% [markdown]
# ## Packed: PyTorch's own
#
# `in_proj_weight` has the rows of the query's matrix, then the key's, then the value's. `chunk` takes them apart;
# within each, the first four rows belong to the first head. Like `nn.Linear`, PyTorch keeps each matrix as (features
# out, features in), so the product is with the transpose:

# %%
w_q, w_k, w_v = packed["in_proj_weight"].chunk(3)
b_q, b_k, b_v = packed["in_proj_bias"].chunk(3)
k = split_heads(x @ w_k.T + b_k, num_heads)  # batch heads tokens head_dim

second = x @ w_k[head_dim : 2 * head_dim].T + b_k[head_dim : 2 * head_dim]
torch.testing.assert_close(k[:, 1], second)

# %% tags=["check"]
q, v = (
    split_heads(x @ w.T + b, num_heads) for w, b in ((w_q, b_q), (w_v, b_v))
)
attended = F.scaled_dot_product_attention(q, k, v)
by_parts = theirs.out_proj(merge_heads(attended))

# %% [markdown]
# Without the transpose, `x @ w_k` runs as well, because the matrix is square, and is off by up to
# 3.3<!--= (x @ w_k - x @ w_k.T).abs().max() -->.

# %% tags=["claims"]
assert torch.allclose(by_parts, theirs(x, x, x)[0], atol=1e-5), (
    "in_proj_weight has the rows of the query's matrix, then the key's, then the value's"
)
assert torch.allclose(k[:, 0], x @ w_k[:4].T + b_k[:4], atol=1e-5), (
    "the first four rows belong to the first head"
)

# %% [markdown]
# ## From each to each
#
# `convert` knows where the numbers of each layout belong. All 25 ways from one to another lose nothing:

# %%
LAYOUTS = ("packed", "separate", "interleaved", "stacked", "conv1d")


def convert(state, source, target):
    options = {"source": source, "target": target, "num_heads": num_heads}
    return layouts.convert(state, **options)


kept = {layout: convert(packed, "packed", layout) for layout in LAYOUTS}
for source, target in itertools.product(LAYOUTS, LAYOUTS):
    converted = convert(kept[source], source, target)
    for name, tensor in kept[target].items():
        assert torch.equal(converted[name], tensor)

# %% tags=["check"]
met = {
    "packed": "PyTorch's layer",
    "separate": "textbook code",
    "interleaved": "GPT-NeoX, Megatron",
    "stacked": "the paper",
    "conv1d": "GPT-2, which computes `x @ W`",
}
rows = [
    [
        layout,
        *experiments.described(packed, layout, num_heads=num_heads),
        where,
    ]
    for layout, where in met.items()
]
lossless = [
    all(
        torch.equal(converted[name], tensor) for name, tensor in state.items()
    )
    for source in LAYOUTS
    for target, state in kept.items()
    for converted in [convert(kept[source], source, target)]
]

# %% [markdown]
# Each is used in its own way, and all give the same keys:

# %%
w, b = kept["separate"]["W_key.weight"], kept["separate"]["W_key.bias"]
separate = split_heads(F.linear(x, w, b), num_heads)

w = kept["interleaved"]["qkv_layer.weight"]
b = kept["interleaved"]["qkv_layer.bias"]
_, interleaved, _ = fused_qkv(x, w, b, num_heads=num_heads)

w, b = kept["stacked"]["key"], kept["stacked"]["key_bias"]
stacked = project_loop(x, w) + b.unsqueeze(1)

w, b = kept["conv1d"]["c_attn.weight"], kept["conv1d"]["c_attn.bias"]
conv1d = split_heads((x @ w + b).chunk(3, dim=-1)[1], num_heads)

for other in (separate, interleaved, stacked, conv1d):
    torch.testing.assert_close(other, k, atol=1e-5, rtol=0)

# %% tags=["claims"]
assert all(lossless), (
    "layouts.convert carries the weights to any other without losing a bit"
)
assert rows[2][1] == rows[0][1], "Packed and interleaved have the same shape"
assert lossless.count(True) == 25, (
    "All 25 ways from one to another lose nothing"
)
assert all(
    torch.allclose(other, k, atol=1e-5)
    for other in (separate, interleaved, stacked, conv1d)
), "Each is used in its own way, and all give the same keys"

# %% [markdown]
# ## Same shape, another order
#
# Which row belongs to what? Call query, key and value the three<!--= len(packed["in_proj_weight"]) / embed_dim -->
# *parts*. The packed order counts part, head, place in the head; the interleaved one counts head, part, place. So only
# two axes change places:

# %%
w = packed["in_proj_weight"].unflatten(0, (3, num_heads, head_dim))
by_hand = w.transpose(0, 1).flatten(0, 2)  # heads parts head_dim
assert torch.equal(by_hand, kept["interleaved"]["qkv_layer.weight"])

# %% tags=["hide-input"]
#| alt: Two columns of 36 rows. In the packed one, three blocks: query, key, value. In the interleaved one, nine blocks:
#|   query, key, value of one head, then of the next.
#| caption: Where each row of one matrix stands, in two orders.
places = torch.arange(3.0 * embed_dim)[:, None].repeat(1, embed_dim)
marked = convert(packed | {"in_proj_weight": places}, "packed", "interleaved")
order = marked["qkv_layer.weight"][:, 0]
blocks = {
    "packed": [0, 1, 2],
    "interleaved": [part for _, part in experiments.blocks(order, num_heads)],
}
panels = figures.shades(blocks, rows=3 * embed_dim)
figures.labelled(plot.heatmap(panels), blocks)

# %% [markdown]
# So the shape does not tell you which order it is. Names often do, and `layouts.layout_of` reads them. If a tensor is
# all you have, the only proof is to compare its output with one that is known to be right:

# %%
assert layouts.layout_of(packed) == "packed"
w, b = packed["in_proj_weight"], packed["in_proj_bias"]
_, mistaken, _ = fused_qkv(x, w, b, num_heads=num_heads)
assert mistaken.shape == k.shape
wrong = (mistaken - k).abs().max().item()
converted = (interleaved - k).abs().max().item()
f"as is: {wrong:.1f}   converted: {converted:.1g}"

# %% tags=["claims"]
assert mistaken.isfinite().all() and wrong > 1, (
    "nothing complains if one is loaded as the other, and the keys come out wrong"
)
assert torch.allclose(
    by_hand, kept["interleaved"]["qkv_layer.weight"], atol=1e-6
), "the interleaved one counts head, part, place"
assert [len(each) for each in panels.values()] == [36, 36], (
    "Two columns of 36 rows"
)
assert blocks["interleaved"] == 3 * [0, 1, 2], (
    "nine blocks: query, key, value of one head, then of the next"
)

# %% [markdown]
# ## Where each matrix acts
#
# In self-attention one input serves as queries, keys and values, and it may be wider or narrower than the heads
# together. `CausalSelfAttention` is such a layer, and keeps its rows packed, under the name `qkv`. Here is what it
# computes, step by step, under `trace`, which records every operation with its shapes and names the axes by their
# sizes:

# %%
torch.manual_seed(8)
layer = CausalSelfAttention(d_in=10, d_out=12, num_heads=3, qkv_bias=True)
wide = torch.randn(batch, tokens, layer.d_in)


def steps(x, weight, bias, w_o, b_o):
    parts = F.linear(x, weight, bias).chunk(3, dim=-1)
    q, k, v = (split_heads(part, num_heads) for part in parts)
    scores = q @ k.mT / q.size(-1) ** 0.5
    scores = scores.masked_fill(~masks.causal(x.size(1)), -torch.inf)
    return F.linear(merge_heads(scores.softmax(-1) @ v), w_o, b_o)


axes = {"batch": batch, "tokens": tokens, "heads": num_heads}
axes |= {"head_dim": head_dim, "d_in": layer.d_in, "d_out": layer.d_out}
traced = trace(steps, wide, *layer.parameters(), axes=axes)
for step in traced.steps:
    print(f"{step.op:<12} {step.output!s:<14} {', '.join(step.axes)}")
assert (traced.result - layer(wide)).abs().max() < 1e-5

# %% [markdown]
# The packed matrix and its bias act in the first step, the output projection in the last. The traced steps end with the
# layer's own output, as the cell asserts, so no step is missing.

# %% tags=["check"]
places = range(len(traced.steps))
projections = [n for n in places if traced.steps[n].op == "linear"]

# %% tags=["claims"]
assert projections == [places[0], places[-1]], (
    "The packed matrix and its bias act in the first step, the output projection in the last"
)

# %% [markdown]
# ## Load a copy, not a view
#
# `weight.data = chunk` copies nothing: the new layer's matrix *is* a part of the old one's. Train the new layer by one
# step, and the old one moves with it. `copy_`, `convert` and `load_state_dict`, unless you pass `assign=True`, give the
# new layer numbers of its own.


# %%
def moves_the_original(load):
    original = deepcopy(theirs)
    torch.manual_seed(8)
    mine = nn.Linear(embed_dim, embed_dim)
    load(mine, original.in_proj_weight.chunk(3)[0])
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
    mine(x).square().mean().backward()
    optimizer.step()
    return (
        (original.in_proj_weight - theirs.in_proj_weight).abs().max().item()
    )


def alias(layer, chunk):
    layer.weight.data = chunk


def copy(layer, chunk):
    with torch.no_grad():
        layer.weight.copy_(chunk)


moved, stayed = moves_the_original(alias), moves_the_original(copy)
moved, stayed

# %% [markdown]
# One step on the aliased layer moved the original by 0.015<!--= moved -->; one on the copy left it alone. To check,
# compare `untyped_storage().data_ptr()`, the address at which a tensor's memory begins, or train one and look at the
# other. (Plain `data_ptr()` is the address of the tensor's own first number: it differs for the key's and the value's
# chunk, though they share the memory.)

# %% tags=["check"]
of_key, of_value = (each.untyped_storage().data_ptr() for each in (w_k, w_v))

# %% tags=["claims"]
assert moved > 0.001, (
    "Train the new layer by one step, and the old one moves with it"
)
assert stayed == 0, "one on the copy left it alone"
assert w_k.data_ptr() != w_v.data_ptr() and of_key == of_value, (
    "it differs for the key's and the value's chunk, though they share the memory"
)

# %% [markdown]
# ## Loading a checkpoint
#
# A checkpoint holds all layers of a model, under the names that its family uses. `layouts.load` takes out one layer and
# converts it to one of these layouts:
#
# {{ plot.table(["Family", "Names of a layer", "Layout", "Rotary embeddings turn"], families).markdown() }}
#
# Here are two layers as GPT-NeoX saves them. The careless way is to rename the tensors to PyTorch's names: the shapes
# fit, `load_state_dict` is content, and the model talks nonsense.

# %% tags=["check"]
families = experiments.families()
names = [
    f"{name}.{kind}"
    for name in ("query_key_value", "dense")
    for kind in ("weight", "bias")
]
checkpoint = {
    f"gpt_neox.layers.{number}.attention.{name}": tensor + number
    for number in range(2)
    for name, tensor in zip(names, kept["interleaved"].values(), strict=True)
}

# %%
first_layer = list(checkpoint.values())[:4]
careless, careful = deepcopy(theirs), deepcopy(theirs)
told = careless.load_state_dict(dict(zip(packed, first_layer, strict=True)))

options = {"layer": 0, "num_heads": num_heads, "target": "packed"}
careful.load_state_dict(layouts.load(checkpoint, "gpt_neox", **options))

expected = theirs(x, x, x)[0]
off = (careless(x, x, x)[0] - expected).abs().max().item()
mended = (careful(x, x, x)[0] - expected).abs().max().item()
str(told), f"{off:.1f}", f"{mended:.1g}"

# %% [markdown]
# The first is off by 1.6<!--= off -->, the second by nothing but rounding. Shapes prove nothing, so compare outputs
# after every conversion. If you name the wrong family, the error says which one the names look like:

# %%
try:
    layouts.load(checkpoint, "llama", **options)
except ValueError as error:
    named = str(error)
else:
    raise AssertionError("no error")
print(textwrap.fill(named, 76))

# %% [markdown]
# Mistral and Qwen2 use Llama's names. Where a model has fewer key heads than query heads, pass `num_kv_heads`, and the
# result fits a `CausalSelfAttention` with as many. No shape shows which features [rotary embeddings](positions.py) turn
# together, and no name proves it: *Llama* from transformers pairs the two halves of a head, *Llama* as Meta released it
# pairs neighbors. Weights loaded for the other pairing raise no error, but the scores are wrong.
#
# If a layer has more weights than these, such as the norms of Qwen3, `load` refuses it; [today's
# models](models.py) have such layers as functions. What is not a weight stands in the
# checkpoint's config: Gemma 2<!--~ its name --> uses Llama's names, but it caps its scores. Pass the config to `load`,
# and make the layer with `layouts.options_of(config)`. How positions turn is not among these options: Cohere and
# GLM-4<!--~ its name --> use Llama's names, too, but they pair neighbors.

# %% tags=["check"]
capped = {"num_attention_heads": 3, "attn_logit_softcapping": 50.0}
qwen3 = {f"{name}_proj.weight": torch.ones(12, 12) for name in "qkvo"}
try:
    layouts.load(qwen3 | {"q_norm.weight": w_q[0, :4]}, "llama", num_heads=3)
except ValueError as error:
    with_norms = str(error)
else:
    raise AssertionError("no error")

# %% tags=["claims"]
assert "q_norm.weight" in with_norms and (
    len(layouts.load(qwen3, "llama", num_heads=3, config=capped)) == 2
), "such as the norms of Qwen3, load refuses it"
assert layouts.options_of(capped)["softcap"] == 50, "it caps its scores"
assert mended < 1e-5, "the second by nothing but rounding"
assert "look like those of family 'gpt_neox'" in named, (
    "the error says which one the names look like"
)

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("one-head-of-packed", answer))`.
#
# **Take PyTorch apart** (`one-head-of-packed`). Write `head_weights(in_proj_weight, num_heads, head)`, which returns
# the query's, key's and value's matrix of one head, each (head_dim, embed_dim).
#
# ??? question "Hint"
#
#     Three axes are hidden in the rows: part, head, place in the head.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def head_weights(in_proj_weight, num_heads, head):
    return tuple(in_proj_weight.unflatten(0, (3, num_heads, -1))[:, head])


check("one-head-of-packed", head_weights)

# %% [markdown]
# **Repack** (`interleaved-to-packed`). Write `to_packed(weight, num_heads)`, which turns the rows of an interleaved
# weight into the packed order.
#
# ??? question "Hint"
#
#     The same three axes, in another order.


# %% tags=["solution"]
def to_packed(weight, num_heads):
    return (
        weight.unflatten(0, (num_heads, 3, -1)).transpose(0, 1).flatten(0, 2)
    )


check("interleaved-to-packed", to_packed)

# %% [markdown]
# **Load GPT-2's layout** (`conv1d-to-packed`). Write `load(state, num_heads)`, which turns a state with
# `c_attn.weight`, `c_attn.bias`, `c_proj.weight` and `c_proj.bias`, in the layout `conv1d`, into a state that
# `nn.MultiheadAttention` loads.
#
# ??? question "Hint"
#
#     `c_attn` computes `x @ weight + bias`; its columns are the packed rows. `c_proj` is used like it.


# %% tags=["solution"]
def load(state, num_heads):
    return {
        "in_proj_weight": state["c_attn.weight"].T,
        "in_proj_bias": state["c_attn.bias"],
        "out_proj.weight": state["c_proj.weight"].T,
        "out_proj.bias": state["c_proj.bias"],
    }


torch.manual_seed(10)
gpt2 = {"c_attn.weight": torch.randn(12, 36), "c_attn.bias": torch.randn(36)}
gpt2 |= {"c_proj.weight": torch.randn(12, 12), "c_proj.bias": torch.randn(12)}
layer = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
layer.load_state_dict(load(gpt2, num_heads))
expected, _ = layer(x, x, x, attn_mask=~masks.causal(tokens))

parts = (x @ gpt2["c_attn.weight"] + gpt2["c_attn.bias"]).chunk(3, dim=-1)
q, k, v = (split_heads(part, num_heads) for part in parts)
context = merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True))
mine = context @ gpt2["c_proj.weight"] + gpt2["c_proj.bias"]
torch.testing.assert_close(mine, expected, atol=1e-4, rtol=0)
check("conv1d-to-packed", load)

# %% [markdown]
# ## What to read next
#
# - [Cross-attention](../learn/cross.py): one sequence that asks another.
# - [Are these the right weights?](../museum/weights.py): aliased, untransposed and interleaved weights, run beside the
#   right ones.
#
# ## References
#
# <!--~ 2017, 3.2.2, 2022, 2019: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.2, one matrix for each head.
# - Black et al. (2022), *GPT-NeoX-20B*: the model whose code keeps its rows head by head; Shoeybi et al. (2019),
#   *Megatron-LM*, on which it builds.
# - Radford et al. (2019), *Language Models are Unsupervised Multitask Learners*: GPT-2, whose code has `c_attn` and
#   `c_proj`.
