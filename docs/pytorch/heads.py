# %% [markdown]
# # How does one matrix hold many heads?
#
# **Side by side: the matrices of all heads are blocks of one matrix, so one product computes every head. Then each
# token's features are dealt out, the first ones to the first head, the next ones to the next head.** In code that is
# `view` to (batch, tokens, heads, head_dim), and then `transpose` to (batch, heads, tokens, head_dim). The transpose is
# not optional: a `view` straight to (batch, heads, tokens, head_dim) has the right shape, but where this page [follows
# one number](#follow-one-number-the-split) it puts 67%<!--= misplaced --> of the numbers in the wrong place.
#
# The picture follows the numbers of three tokens to two heads and back. A letter stands for a token, a digit for a
# feature. Step through it, and choose a wrong way to see it beside the right one.

# %% tags=["imports"]
import inspect
import textwrap

import torch
import torch.nn.functional as F
from IPython.display import HTML
from torch import nn

from unmasked import (
    CausalSelfAttention,
    MultiheadAttention,
    attend,
    attention_scores,
    layouts,
    masks,
    plot,
)
from unmasked.cache import KVCache
from unmasked.heads import (
    fused_qkv,
    merge_heads,
    project_bmm,
    project_einsum,
    project_linear,
    project_loop,
    split_heads,
)
from unmasked.trace import trace
from unmasked_doctor import probes
from unmasked_lessons.embeddings import ship_vectors
from unmasked_lessons.experiments import heads as experiments

# %% tags=["hide-input"]
#| caption: The tens of a number are the token that it comes from, and the ones are the feature. In the right split, a
#|   head has its own features of every token. In a view without the transpose, it has all features of the first token,
#|   then some of the next. With the axes of the view swapped, it has every second feature. In a merge without
#|   transposing back, a row holds features of several tokens.
#| script: ../../src/unmasked_lessons/figures/split.js
#| data: {"tokens": len(few), "heads": len(into_heads), "head_dim": into_heads.size(-1)}
few, into_heads, viewed, swapped, merged = experiments.splits(3, 2, 3)
ways = {
    "right, head": into_heads,
    "view without transpose, head": viewed,
    "view with axes swapped, head": swapped,
}
letters = ["token a", "token b", "token c"]
grids = [
    plot.grid(ways, rows=letters),
    plot.grid(merged, "merged without transpose", rows=letters),
]
HTML("".join(each._repr_html_() for each in grids))

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ few.device.type.upper() }}.*
#
# **You should know** [what attention computes](../learn/attention.py), [what a mask does](masks.py), and that `@`
# multiplies matrices. **You will know** five ways to project to many heads that give the same numbers, how to split and
# merge without mixing tokens, the shape of every step of multi-head attention, and a test that a wrong merge cannot
# pass.
#
# Why a model has [several heads](../learn/heads.py), and what more of them cost, has a page of its own.

# %% [markdown]
# ## Five ways, one result
#
# Give each head a matrix of its own, stacked along a first axis: (heads, in_dim, head_dim). What they do is defined by
# a loop over heads. All sizes differ here, so that an exchange of axes is noticed, and in_dim, the width of the input,
# need not be the width of all heads together.

# %%
torch.manual_seed(1)
batch, tokens, num_heads, head_dim, in_dim = 2, 5, 3, 4, 7
embed_dim = num_heads * head_dim

x = torch.randn(batch, tokens, in_dim, dtype=torch.float64)
stacked = torch.randn(num_heads, in_dim, head_dim, dtype=torch.float64)

loop = torch.stack([x @ matrix for matrix in stacked], dim=1)
# batch heads tokens head_dim

# %% [markdown]
# For head $h$, token $t$ and feature $j$, with $w$ for `stacked`, that is
#
# $$q_{h, t, j} = \sum_i x_{t, i} \, w_{h, i, j} \tag{6.1}$$
# <!-- where: x, w = random("t_n i_n", "h_n i_n j_n"); q = project_loop(x, w) -->
#
# The other four compute all heads at once: `@`, with an axis of length one in `x` that is broadcast over the heads;
# `torch.bmm`, which multiplies two equally long stacks of matrices pair by pair; `einsum`, in which a letter names each
# axis, and a letter that is missing after the arrow is summed over; and one large matrix that has the heads' columns
# side by side:

# %%
wide = torch.cat(list(stacked), dim=1)  # in_dim heads·head_dim
pairs = x.repeat_interleave(num_heads, dim=0), stacked.repeat(batch, 1, 1)
same = {
    "@": x[:, None] @ stacked,
    "bmm": torch.bmm(*pairs).view(batch, num_heads, tokens, head_dim),
    "einsum": torch.einsum("bti,hid->bhtd", x, stacked),
    "one matrix": (x @ wide)
    .view(batch, tokens, num_heads, head_dim)
    .transpose(1, 2),
}

# %% [markdown]
# All of them give what the loop gives. The package has them too, as `project_loop`, `project_bmm`, `project_einsum` and
# `project_linear`. PyTorch's layer and Llama run the last one, and XLNet `einsum`. An `nn.Linear` computes the same,
# but keeps its matrix transposed, as (features out, features in).

# %% tags=["check"]
for function in (project_linear, split_heads):
    print(inspect.getsource(function).split('"""')[-1].strip("\n"))

# %% tags=["claims"]
assert viewed[0].flatten().tolist() == [*range(6), 10, 11, 12], (
    "In a view without the transpose, it has all features of the first token, then some of the next"
)
assert all(
    wide[:, 4 * head : 4 * head + 4].equal(stacked[head]) for head in range(3)
) and torch.allclose(same["one matrix"], loop, atol=1e-5), (
    "the matrices of all heads are blocks of one matrix, so one product computes every head"
)  # to the bit: they are copies
assert all(torch.allclose(each, loop, atol=1e-5) for each in same.values()), (
    "All of them give what the loop gives"
)
assert all(
    torch.allclose(project(x, stacked), loop, atol=1e-5)
    for project in (project_loop, project_bmm, project_einsum, project_linear)
), (
    "The package has them too, as project_loop, project_bmm, project_einsum and project_linear"
)
assert torch.equal(into_heads[0], few[:, :3]), (
    "In the right split, a head has its own features of every token"
)


# %% [markdown]
# ## Follow one number: the split
#
# To see where each number goes, let it say where it comes from. Again the tens are the token and the ones are the
# feature: 25<!--= tagged[2, 5] --> is feature 5<!--= tagged[2, 5] % 10 --> of token 2<!--= tagged[2, 5] // 10 -->. Both
# are counted from zero.

# %%
tagged = 10 * torch.arange(3)[:, None] + torch.arange(8)  # tokens features
split = tagged.view(3, 2, 4).transpose(0, 1)  # heads tokens head_dim
direct = tagged.view(2, 3, 4)  # the same shape

# %% [markdown]
# The right split gives the first head the first four features of every token. A [view
# alone](../museum/heads.py#view-without-transpose) deals the numbers out as they lie in memory: the same head gets
# *all* features of the first token, then half of the next one's. A view only renames the places; it moves nothing.

# %% tags=["check"]
misplaced = (direct != split).double().mean()
at = 0, 1, 0  # head, token, place

# %% tags=["hide-input"]
#| caption: The split with its transpose, and the view alone. The color tells the token.
tokens_named = [f"token {token}" for token in range(3)]
plot.grid(
    {"split, head": split, "view alone, head": direct}, rows=tokens_named
)

# %% [markdown]
# In symbols, for $H$ heads of $d_k$ features: place $j$ of head $h$ of token $t$ holds a feature of the same token,
#
# $$q_{h, t, j} = x_{t,\, h \cdot d_k + j} \qquad h = 0, \dots, H - 1 \tag{6.2}$$
# <!-- where: y = random("H n d_k"); x = merge_heads(y[None])[0]; q = split_heads(x, H) -->
#
# In the other direction, feature `f` belongs to head `f // d_k`, where it has the place `f % d_k`.

# %% [markdown]
# Memory is one long row $m$, token after token. For head $h$ and token $t$, the right split $q$ and the direct view $z$
# read it at different places. For $n$ tokens:
#
# $$\begin{aligned}
# q_{h, t, j} &= m_{(t \cdot H + h) \cdot d_k + j} \\
# z_{h, t, j} &= m_{(h \cdot n + t) \cdot d_k + j}
# \end{aligned} \qquad h = 0, \dots, H - 1, \quad t = 0, \dots, n - 1 \tag{6.3}$$
# <!-- where: y = random("n H*d_k"); m = y.flatten(); q = split_heads(y, H); z = y.view(H, n, d_k) -->
#
# Take place 0<!--= at[2] --> of token 1<!--= at[1] --> of head 0<!--= at[0] -->: the split reads number 8<!--=
# tagged.flatten().tolist().index(split[at]) --> of the row, the direct view number 4<!--=
# tagged.flatten().tolist().index(direct[at]) -->. With one head, or with one token, the two agree
# everywhere, so a test of such a size passes.

# %% tags=["claims"]
assert split[0].equal(tagged[:, :4]) and split[1].equal(tagged[:, 4:]), (
    "the first ones to the first head, the next ones to the next head"
)
assert direct[0].flatten().tolist() == [*range(8), *range(10, 14)], (
    "the same head gets all features of the first token, then half of the next one's"
)
assert direct.data_ptr() == tagged.data_ptr(), (
    "A view only renames the places; it moves nothing"
)
assert all(
    split[feature // 4, :, feature % 4].equal(tagged[:, feature])
    for feature in range(8)
), "feature f belongs to head f // d_k, where it has the place f % d_k"
assert all(
    each.view(heads, -1, 8 // heads).equal(split_heads(each, heads))
    for each, heads in ((tagged, 1), (tagged[:1], 2))
), "With one head, or with one token, the two agree everywhere"
assert direct.shape == split.shape, (
    "(batch, heads, tokens, head_dim) has the right shape"
)

# %% [markdown]
# ## And back: the merge
#
# After attention the heads go side by side again. Undo the steps in reverse order: transpose back, then join the last
# two axes.

# %%
context = split.contiguous()  # heads tokens head_dim, as attention returns it
back = context.transpose(0, 1)  # tokens heads head_dim
joined = back.reshape(3, 8)  # tokens features

# %% [markdown]
# `joined` equals `tagged`. With `view` instead of `reshape`, PyTorch says *{{ refused }}*:

# %% tags=["hide-output"]
#| raises: RuntimeError: view size is not compatible
back.view(3, 8)

# %% [markdown]
# A transposed tensor lies in memory as before, and only its *strides*, the steps of reading, change: {{
# context.stride() }} becomes {{ back.stride() }}. So `view` refuses to join axes whose numbers do not lie one after the
# other. `reshape` copies them where it must, and `.contiguous().view(...)` makes the copy visible. The error is
# helpful, because it comes exactly where the numbers have to move. With a head_dim of one there is no error, so a test
# of that size does not notice that `contiguous()` is missing.

# %% tags=["check"]
try:
    back.view(3, 8)
except RuntimeError as error:
    refused = str(error).split(" (")[0]
else:
    raise AssertionError("view joined the axes")
one = torch.zeros(2, 3, 1).transpose(0, 1).view(3, 2)

# %% tags=["claims"]
assert torch.equal(joined, tagged), (
    "Undo the steps in reverse order: transpose back, then join the last two axes"
)
assert back.data_ptr() == context.data_ptr(), (
    "A transposed tensor lies in memory as before"
)
assert one.shape == (3, 2), "With a head_dim of one there is no error"

# %% [markdown]
# ## Every step with its shape
#
# The steps are: project, split, compare, mask, average, merge, project. `@` multiplies the last two axes and leaves
# batch and heads alone, so the code in the middle is the same as for one head.


# %%
def multi_head(x, w_q, w_k, w_v, w_o, allowed):
    q, k, v = (
        F.linear(x, weight)
        .view(batch, tokens, num_heads, head_dim)
        .transpose(1, 2)
        for weight in (w_q, w_k, w_v)
    )
    scores = q @ k.transpose(-2, -1) / head_dim**0.5
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1)
    context = (weights @ v).transpose(1, 2)
    return F.linear(context.reshape(batch, tokens, embed_dim), w_o)


# %% tags=["hide-input", "any-version"]
#| caption: The steps of `multi_head`, as `unmasked.trace` records them, and the shape that each gives.
torch.manual_seed(4)
layer = CausalSelfAttention(
    in_dim, embed_dim, num_heads, out_bias=False
).double()
matrices = *layer.qkv.weight.chunk(3), layer.out_proj.weight
axes = {"batch": batch, "tokens": tokens, "heads": num_heads}
axes |= {"head_dim": head_dim, "in_dim": in_dim, "embed_dim": embed_dim}
steps = trace(multi_head, x, *matrices, masks.causal(tokens), axes=axes)

plot.table(
    ["Step", "Shape", "Axes"],
    [(s.op, str(s.output), ", ".join(s.axes)) for s in steps.steps],
)

# %% [markdown]
# The result is that of the package's own layer with the same matrices. The mask has no axes for batch and heads: its
# 25<!--= masks.causal(tokens).numel() --> entries serve all 150<!--= batch * num_heads * tokens**2 --> weights by
# broadcasting. The last matrix mixes the heads.
#
# By default the parameters of `nn.MultiheadAttention` are four square matrices and four biases for any number of heads.
# With `kdim` and `vdim`, the matrices of key and value have those widths, and `add_bias_kv` adds two vectors.

# %% tags=["check"]
torch.manual_seed(0)
with_four, with_one, with_widths, with_pair = (
    sum(
        each.numel()
        for each in nn.MultiheadAttention(12, **made).parameters()
    )
    for made in (
        {"num_heads": 4},
        {"num_heads": 1},
        {"num_heads": 3, "kdim": 10, "vdim": 9},
        {"num_heads": 3, "add_bias_kv": True},
    )
)

# %% tags=["claims"]
assert torch.allclose(steps.result, layer(x), atol=1e-5), (
    "The result is that of the package's own layer with the same matrices"
)
assert with_four == with_one == 4 * 12**2 + 4 * 12, (
    "four square matrices and four biases for any number of heads"
)
assert with_widths == 2 * 12**2 + 12 * (10 + 9) + 4 * 12, (
    "the matrices of key and value have those widths"
)
assert with_pair == with_four + 2 * 12, "add_bias_kv adds two vectors"

# %% [markdown]
# ## One matrix for query, key and value too
#
# The matrices of query, key and value can be packed into one as well, so that a single product computes all
# nine<!--= 3 * num_heads --> projections. The rows can come in more than one order, and the shape is the same.
# PyTorch's `in_proj_weight` has all of the query's rows first, then the key's, then the value's. Other code, such as
# GPT-NeoX's, goes head by head: query, key and value of the first head, then those of the next. Below, `in_turn` reads
# the rows in the first order, and `by_head` in the second, as the package's `fused_qkv` does.

# %%
torch.manual_seed(6)
packed = torch.randn(3 * embed_dim, in_dim, dtype=torch.float64)

in_turn = [
    split_heads(part, num_heads)
    for part in F.linear(x, packed).chunk(3, dim=-1)
]
by_head = (
    F.linear(x, packed)
    .view(batch, tokens, num_heads, 3 * head_dim)
    .transpose(1, 2)
    .chunk(3, dim=-1)
)

# %% [markdown]
# Read [head by head](../museum/weights.py#interleaved-qkv), the projections are off by up to {{ off :.1f}}. The cure is
# to put the rows into the other order: [the page on layouts](layouts.py) converts between the orders that libraries
# use.

# %% tags=["check"]
off = max((a - b).abs().max() for a, b in zip(in_turn, by_head))
reordered = (
    packed.view(3, num_heads, head_dim, in_dim)
    .transpose(0, 1)
    .reshape(-1, in_dim)
)
by_package, mended = (
    fused_qkv(x, rows, num_heads=num_heads) for rows in (packed, reordered)
)

# %% tags=["claims"]
assert all(
    torch.allclose(a, b, atol=1e-5) for a, b in zip(by_head, by_package)
), "by_head in the second, as the package's fused_qkv does"
assert all(
    torch.allclose(a, b, atol=1e-5) for a, b in zip(in_turn, mended)
), "The cure is to put the rows into the other order"

# %% [markdown]
# ## Fewer heads for keys and values
#
# A model that writes can keep the keys and values of all tokens so far, its *cache*. To make it smaller, several heads
# of the queries share one head of keys and values (*grouped* heads; one for all is *multi-query*). In PyTorch's
# function the heads that share are neighbors: with six heads of queries and two of keys, the first three use the first
# head of keys. `repeat_interleave` copies the heads that way. `repeat` gives the same shape, and the wrong queries for
# each head of keys:

# %%
torch.manual_seed(7)
queries = torch.randn(batch, 6, tokens, head_dim)  # six heads
keys, values = torch.randn(2, batch, 2, tokens, head_dim)  # two heads each
grouped = F.scaled_dot_product_attention(
    queries, keys, values, enable_gqa=True
)

# the heads of keys are 0 0 0 1 1 1, as it should be, or 0 1 0 1 0 1
neighbors = [x.repeat_interleave(3, dim=1) for x in (keys, values)]
in_turn_heads = [x.repeat(1, 3, 1, 1) for x in (keys, values)]

# %% [markdown]
# Attention to `neighbors` gives `grouped`. Attention to `in_turn_heads` is off by up to {{ apart.abs().max() :.1f}}.
#
# What does sharing save? Llama 3<!--~ a name -->, in its version with eight billion parameters, has 8<!--= kv_heads -->
# heads of keys. With 16 bits<!--= 8 * torch.bfloat16.itemsize --> a number, a sequence of 8,192<!--= context_length -->
# tokens takes 1 GiB<!--= takes[kv_heads] --> of cache. With as many heads of keys as of queries it would take 4
# GiB<!--= takes[32] -->.

# %% tags=["check"]
off_by_neighbors, apart = (
    F.scaled_dot_product_attention(queries, *pair) - grouped
    for pair in (neighbors, in_turn_heads)
)
kv_heads, context_length = 8, 8192  # and 32 heads of queries
takes = {
    heads: KVCache.bytes_per_token(
        heads, 128, num_layers=32, dtype=torch.bfloat16
    )
    * context_length
    for heads in (kv_heads, 32)
}

# %% tags=["claims"]
assert off_by_neighbors.abs().max() < 1e-5, (
    "Attention to neighbors gives grouped"
)

# %% [markdown]
# ## A merge that looks right
#
# A common mistake is to merge without transposing back. The shape is right and the weights of the heads are right, but
# each token's output is put together from several tokens:


# %%
def broken_merge(context):
    return context.reshape(context.size(0), context.size(2), -1)


def attend_with(x, merge):
    parts = (
        split_heads(F.linear(x, part), num_heads) for part in packed.chunk(3)
    )
    return merge(attend(*parts, is_causal=True).context)


print(probes.sees_the_future(lambda x: attend_with(x, merge_heads), x))
print(probes.sees_the_future(lambda x: attend_with(x, broken_merge), x))

# %% [markdown]
# The two differ by {{ gap :.1f}}. The check that tells them apart needs no reference: under a causal mask, change a
# later token; no earlier output may move. The right merge passes it; through [the broken
# merge](../museum/heads.py#merge-without-transpose) the future leaks in, behind a mask that is right.
#
# With one head or one token the broken merge would pass, because the two are then equal. So test with several of both.

# %% tags=["check"]
gap = (attend_with(x, broken_merge) - attend_with(x, merge_heads)).abs().max()

# %% tags=["claims"]
assert probes.sees_the_future(
    lambda x: attend_with(x, broken_merge), x
) and not probes.sees_the_future(lambda x: attend_with(x, merge_heads), x), (
    "The right merge passes it; through the broken merge the future leaks in"
)

# %% [markdown]
# ## A pair that comes from no sequence
#
# Two options of `nn.MultiheadAttention` take a key and a value from no sequence. `add_bias_kv=True` appends a learned
# pair, and `add_zero_attn=True` a pair of zeros. The weights of six words that look at eleven then have the shape
# `(6, 12)`<!--= grown[0] -->, and `(6, 13)`<!--= grown[2] --> with both options. In spite of its name, `add_bias_kv`
# adds nothing *to* the keys. ([Cross-attention](../learn/cross.py) without options has a page of its own.) To see
# attention alone, take a module with one head whose matrices are the identity ([the bypass](bypass.py)), and look at
# what it has to learn:

# %%
told = "I must go back to my ship and to my crew".lower().split()
asked = "We process and ship your order".lower().split()
X, Y = ship_vectors().lookup(told), ship_vectors().lookup(asked)


def bare(dim, **options):
    options |= {"bias": False, "batch_first": True}
    module = nn.MultiheadAttention(dim, 1, **options)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(dim).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(dim))
    return module.requires_grad_(False)


torch.manual_seed(1)
learned, zeros = bare(50, add_bias_kv=True), bare(50, add_zero_attn=True)

# %% tags=["check"]
weights = attend(Y, X, X, need_weights=True).weights  # queries keys
context = weights @ X

torch.manual_seed(2)
two, plain = bare(50, add_bias_kv=True, add_zero_attn=True), bare(50)
modules = learned, zeros, two
grown = [tuple(module(Y, X, X)[1].shape) for module in modules]

# %% [markdown]
# `bias_k` and `bias_v` are one key and one value. They are appended *after* the projections, and no matrix is applied
# to them. By hand that is a `cat`, after which all queries have one more key to choose from:

# %%
bias_k, bias_v = learned.bias_k[0], learned.bias_v[0]  # 1 features
all_keys, all_values = torch.cat([X, bias_k]), torch.cat([X, bias_v])
by_hand = attend(Y, all_keys, all_values, need_weights=True)

# %% tags=["check"]
torch_output, torch_weights = learned(Y, X, X)
ours_output, ours_weights = layouts.from_torch(learned)(Y, X, X)

# %% [markdown]
# The three agree: the derivation, PyTorch and the package.

# %% [markdown] tags=["check"]
# These are the lines in which the package does it:

# %% tags=["check"]
source = inspect.getsource(MultiheadAttention._attend)
begin, end = (
    source.index("        learned = "),
    source.index("        appended = "),
)
print(textwrap.dedent(source[begin:end]))

# %% [markdown]
# No mask hides the appended pair. A mask has a column for each real key, and gets one more that is always visible. So a
# query that may see no word still sees the pair, and its output is `bias_v`, not NaN:

# %%
blocked = torch.zeros(6, 11, dtype=torch.bool)  # True = may not attend
blocked[0] = True
alone, _ = learned(Y, X, X, attn_mask=blocked)

# %% tags=["claims"]
assert all(
    torch.allclose(each, by_hand.weights, atol=1e-5)
    for each in (torch_weights, ours_weights)
) and all(
    torch.allclose(each, by_hand.context, atol=1e-5)
    for each in (torch_output, ours_output)
), "The three agree: the derivation, PyTorch and the package"
assert torch.allclose(alone[0], bias_v[0], atol=1e-5), (
    "So a query that may see no word still sees the pair, and its output is bias_v, not NaN"
)

# %% [markdown]
# ## Why it cannot be a shift
#
# Suppose that `bias_k` were added to every key. Then each score would grow by the query's product with it,
#
# $$\frac{q_i \cdot (k_j + b)}{\sqrt{d}} = s_{ij} + \frac{q_i \cdot b}{\sqrt{d}} \tag{6.4}$$
# <!-- where: q, k, b = random("n d", "m d", "d"); s = attention_scores(q, k) -->
#
# and what is added has no $j$ in it: it is the same along the row. A softmax depends on differences alone, so no weight
# changes. And a vector added to all values is added to their average:
#
# $$\sum_{j=1}^{m} a_{ij} \, (v_j + b) = o_i + b \tag{6.5}$$
# <!-- where: q, k, v, b = random("n d", "m d", "m d_v", "d_v");
# o, a = attend(q, k, v, need_weights=True) -->
#
# That is the output of a layer with another bias at its end. (The key's part of `in_proj_bias` is such a shift: where
# no pair is appended, no output depends on it, as [an exercise](from_scratch.py#exercises) shows.) A pair that is
# appended does not get that bias, and competes with the others. Take twice the vector of *order* for both, and compare:

# %%
factor = 2
pair = factor * Y[5:]  # 1 features
by_shift = X + pair, X + pair
by_append = torch.cat([X, pair]), torch.cat([X, pair])
shifted = attend(Y, *by_shift, need_weights=True)
appended = attend(Y, *by_append, need_weights=True)

# %% tags=["check"]
shift_gap = (shifted.weights - weights).abs().max().item()
share = appended.weights[5, -1].item()


# %% tags=["check"]
def by_pytorch(q, k, v, b_k, b_v):
    module = bare(q.size(-1), add_bias_kv=True, dtype=q.dtype)
    module.bias_k.copy_(b_k)
    module.bias_v.copy_(b_v)
    return module(q, k, v)


# %% [markdown]
# Added to all keys, the vector moves no weight, except by rounding. Appended, it takes 88%<!--= share --> of *order*'s
# weight from the words. In full, with $b_K$ and $b_V$ for the pair, what `add_bias_kv` computes for each query is
#
# $$o_i = \frac{e^{t_i} \, b_V + \sum_{j=1}^{m} e^{s_{ij}} \, v_j}{e^{t_i} + \sum_{l=1}^{m} e^{s_{il}}},
# \qquad t_i = \frac{q_i \cdot b_K}{\sqrt{d}} \tag{6.6}$$
# <!-- where: q, k, v, b_K, b_V = random("n d", "m d", "m d", "d", "d"); s = attention_scores(q, k);
# t = attention_scores(q, b_K[None])[:, 0]; o = by_pytorch(q, k, v, b_K, b_V)[0] -->

# %% tags=["claims"]
assert torch.allclose(shifted.context, context + pair, atol=1e-4), (
    "And a vector added to all values is added to their average"
)
assert shift_gap < 1e-6, (
    "Added to all keys, the vector moves no weight, except by rounding"
)

# %% [markdown]
# ## What a place to go is good for
#
# *order* found nothing like itself in the other sentence, but had to take something. A learned pair can give such a
# word a place to go, and below it learns just that: `bias_v` is zero, so a word that goes there takes nothing, and
# `bias_k` is trained to attract the words that the other sentence does not have, and no others.

# %%
absent = torch.tensor([word not in told for word in asked])
learned.bias_v.zero_()
learned.bias_k.zero_().requires_grad_()
optimizer = torch.optim.Adam([learned.bias_k], lr=0.1)
for _ in range(100):
    share = learned(Y, X, X)[1][:, -1]  # queries: what the pair gets
    loss = F.binary_cross_entropy(share.clamp(1e-6, 1 - 1e-6), absent.float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
trained_output, trained = (each.detach() for each in learned(Y, X, X))

# %% tags=["hide-input"]
#| caption: What the six words take from the eleven others and from the trained pair, which is the last column. The rows
#|   of *ship* and *and* stay within the words; those of the other four give nearly everything to the pair.
plot.grid(trained, "weights", queries=asked, keys=[*told, "pair"])

# %% [markdown]
# After a hundred steps *we*, *process*, *your* and *order* give at least 0.98<!--= trained[absent, -1].min() --> to the
# pair, and take little from the words: the norm of *order*'s output falls from 4.62<!--= context[5].norm() --> to
# 0.11<!--= trained_output[5].norm() -->. *ship* gives it 0.01<!--= trained[3, -1] -->, and keeps 55%<!--= trained[3, 6]
# --> for the other *ship*. Nobody sets a real model such a goal, but training finds the use: without a pair, trained
# models often make the first token of a text the place to go, which is called an *attention sink*.

# %% tags=["claims"]
assert (
    {word for word, gone in zip(asked, absent) if not gone} == {"ship", "and"}
    and trained[~absent, -1].max() < 0.1
    and trained[absent, -1].min() > 0.9
), (
    "The rows of ship and and stay within the words; those of the other four give nearly everything to the pair"
)
assert trained.size(1) == len(told) + 1, (
    "and from the trained pair, which is the last column"
)


# %% [markdown]
# ## A pair of zeros
#
# `add_zero_attn` appends zeros. A key of zeros has the score zero with every query, and the exponential of zero is one.
# So the weights of the words are a softmax with a one added to the denominator:
#
# $$a_{ij} = \frac{e^{s_{ij}}}{1 + \sum_{l=1}^{m} e^{s_{il}}} \tag{6.7}$$
# <!-- where: q, k = random("n d", "m d"); s = attention_scores(q, k);
# zeros = bare(d, add_zero_attn=True, dtype=torch.float64);
# a = zeros(q, k, k)[1][:, :-1] -->
#
# Since the value is zero as well, what the pair gets is lost to the output. How much it gets depends on the scores.
# Here *order* is multiplied by ever smaller numbers, so its scores fall, too:

# %% tags=["hide-input"]
#| caption: What *order*, multiplied by four numbers, takes from the words beside a pair of zeros, and the norm of its
#|   output with and without the pair.
factors = [1.0, 0.0, -1.0, -4.0]
rows = []
for number in factors:
    query = number * Y[5:]
    taken = zeros(query, X, X)[1][0, :-1].sum()
    norms = [module(query, X, X)[0].norm() for module in (zeros, plain)]
    rows.append([taken, *norms])
names = [f"{number:g} times order" for number in factors]
plot.table(
    ["", "taken from words", "norm of output", "without the pair"],
    dict(zip(names, rows)),
    "{:.2f}",
)

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ X.device.type.upper() }}.*
#
# With its own scores *order* takes 0.99<!--= rows[0][0] --> from the words. A query of zeros scores all twelve keys
# alike, so it takes eleven twelfths, 0.92, from the words. With the scores of the last row it takes
# 0.00<!--= rows[-1][0] -->, and its output nearly vanishes. Without the pair it takes a full average, no matter how
# badly the words fit. With both options, the learned pair comes before the zeros.

# %% tags=["check"]
all_keys = torch.cat([X, two.bias_k[0], torch.zeros(1, 50)])
expected = attention_scores(Y, all_keys).softmax(dim=-1)

# %% tags=["claims"]
assert (zeros(0 * Y[5:], X, X)[1] - 1 / 12).abs().max() < 1e-6, (
    "A query of zeros scores all twelve keys alike, so it takes eleven twelfths, 0.92, from the words"
)
assert torch.allclose(two(Y, X, X)[1], expected, atol=1e-6), (
    "With both options, the learned pair comes before the zeros"
)

# %% [markdown]
# ## A shift that looks right
#
# This is the misreading as code: a layer that adds `bias_k` to the keys and `bias_v` to the values. It loads the
# parameters of PyTorch's module without complaint, and its output has the right shape:


# %%
def broken(q, k, v, bias_k, bias_v):
    return attend(q, k + bias_k, v + bias_v).context


def right(q, k, v, bias_k, bias_v):
    k, v = torch.cat([k, bias_k]), torch.cat([v, bias_v])
    return attend(q, k, v).context


torch.manual_seed(3)
q, k, v, bias_k, bias_v = (torch.randn(n, 6) for n in (3, 5, 5, 1, 1))

# %% tags=["check"]
torch.manual_seed(4)
reference, _ = by_pytorch(q, k, v, bias_k, bias_v)
wrong_by, right_by = (
    (each(q, k, v, bias_k, bias_v) - reference).abs().max().item()
    for each in (broken, right)
)

# %% [markdown]
# It is off by 1.93<!--= wrong_by -->. On a fresh module the mistake is smaller, because both vectors start near zero.
# Again the check needs no reference: move `bias_k` alone, and a layer that uses it must give another output.


# %%
def uses_bias_k(layer):
    before = layer(q, k, v, bias_k, bias_v)
    after = layer(q, k, v, bias_k + 1, bias_v)
    return (after - before).abs().max().item() > 1e-3


print(uses_bias_k(right), uses_bias_k(broken))

# %% [markdown] tags=["check"]
# `wander` trains `bias_k`, and says how far it gets.


# %% tags=["check"]
def wander(layer, optimizer, lr):
    learned = bias_k.clone().requires_grad_()
    steps = optimizer([learned], lr=lr)
    for _ in range(100):
        steps.zero_grad()
        layer(q, k, v, learned, bias_v).square().sum().backward()
        steps.step()
    return (learned - bias_k).abs().max().item()


# Adam enlarges rounding: were every rounding error exactly zero, which we know of no machine, Adam would move nothing
by_sgd, by_adam = (
    wander(broken, torch.optim.SGD, 0.1),
    wander(broken, torch.optim.Adam, 0.001),
)

# %% [markdown]
# The right one does, the broken one does not. In the broken layer the gradient of `bias_k` is zero but for rounding, so
# there is nothing to learn from. Plain gradient descent leaves it where it is. Adam divides a gradient by its own size,
# and so turns mere rounding into steps: it moves the vector more than ten times as far. A parameter that moves does not
# always learn.

# %% tags=["claims"]
assert right_by < 1e-6 and uses_bias_k(right) and not uses_bias_k(broken), (
    "The right one does, the broken one does not"
)
assert by_sgd < 1e-3, "Plain gradient descent leaves it where it is"
assert by_adam > 10 * by_sgd, "it moves the vector more than ten times as far"

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("split-heads", answer))`.
#
# **Split** (`split-heads`). Write `split(x, num_heads)` for x of (batch, tokens, features).
#
# ??? question "Hint"
#
#     Name the axes in the order in which the numbers lie, then exchange two of them.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def my_split(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


feedback = check("split-heads", my_split)
assert feedback
feedback

# %% [markdown]
# **Merge** (`merge-heads`). Write the inverse, `merge(x)` for x of (batch, heads, tokens, head_dim).
#
# ??? question "Hint"
#
#     In reverse: first exchange, then join.


# %% tags=["solution"]
def my_merge(x):
    return x.transpose(-3, -2).flatten(-2)


feedback = check("merge-heads", my_merge)
assert feedback
feedback

# %% [markdown]
# **One product for three** (`packed-projection`). Write `project(x, weight, num_heads)`, where `weight` has all of the
# query's rows first, then the key's, then the value's, as `nn.MultiheadAttention` packs them. Return query, key and
# value, each (batch, heads, tokens, head_dim).
#
# ??? question "Hint"
#
#     One `F.linear`. Then name all five axes that are in its result, and put the one that counts to three in front.


# %% tags=["solution"]
def my_projection(x, weight, num_heads):
    parts = F.linear(x, weight).unflatten(
        -1, (3, num_heads, -1)
    )  # batch tokens 3 heads head_dim
    return parts.permute(2, 0, 3, 1, 4).unbind()


feedback = check("packed-projection", my_projection)
assert feedback
feedback

# %% [markdown]
# **Append the pair** (`appended-pair`). Write `append(q, k, v, bias_k, bias_v)`, which returns context and weights as
# `add_bias_kv` has them. `bias_k` and `bias_v` have one row; the others may have batch axes before their last two.
#
# ??? question "Hint"
#
#     `torch.cat` wants the same leading axes of both: `expand` the row to them.


# %% tags=["solution"]
def append(q, k, v, bias_k, bias_v):
    one = (*k.shape[:-2], 1, k.size(-1))
    k = torch.cat([k, bias_k.expand(one)], dim=-2)
    v = torch.cat([v, bias_v.expand(one)], dim=-2)
    weights = (q @ k.mT / q.size(-1) ** 0.5).softmax(dim=-1)
    return weights @ v, weights


feedback = check("appended-pair", append)
assert feedback
feedback

# %% [markdown]
# **A one in the denominator** (`softmax-one`). Write `softmax_one(scores)`, the weights of equation (6.7) for scores of
# any shape. It must give finite weights for scores of a thousand, and of minus a thousand.
#
# ??? question "Hint"
#
#     Either append a score of zero, take the softmax, and drop the last column. Or subtract the largest score (zero, if
#     all are negative) from every score before the exponentials; the one then becomes `exp(-largest)`.


# %% tags=["solution"]
def softmax_one(scores):
    largest = scores.amax(dim=-1, keepdim=True).clamp(min=0.0)
    exponentials = (scores - largest).exp()
    total = exponentials.sum(dim=-1, keepdim=True)
    return exponentials / ((-largest).exp() + total)


feedback = check("softmax-one", softmax_one)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [Is my multi-head attention right?](from_scratch.py) puts these pieces together and compares them with PyTorch's.
# - [Where are my weights?](layouts.py): how libraries pack the matrices of query, key and value.
# - [Do my heads, tokens and batches stay apart?](../museum/heads.py): splits and merges that look right.
#
# ## References
#
# <!--~ 2017, 3.2.2, 2023, 2.2, 2024, 3, 3.3: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.2, multi-head attention: why several heads, and that
#   their cost together is that of one with all features.
# - Ainslie et al. (2023), *GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints*:
#   section 2.2, groups of query heads that share a head of keys and values.
# - Grattafiori et al. (2024), *The Llama 3 Herd of Models*: table 3, the sizes of its models.
# - Xiao et al. (2024), *Efficient Streaming Language Models with Attention Sinks*: section 3.3, for a learned place to
#   go and for a softmax with a one in its denominator, (6.7), which Miller (2023), *Attention Is Off By One*, proposes.
