# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Where do keys and values come from? Cross-attention, add_bias_kv, add_zero_attn
#
# **From wherever you take them.** A query asks; each key comes with one value; nothing says that they stem from the
# same sequence. If another sequence gives the keys and values, that is *cross-attention*. Six<!--== len(Y) --> words
# that ask eleven<!--== len(X) --> get weights of shape `(6, 11)`<!--== weights.shape -->, and
# six<!--== len(context) --> averages of the other sentence.
#
# **Two options of `nn.MultiheadAttention` take a key and a value from no sequence at all.** `add_bias_kv=True` appends
# a learned pair, `add_zero_attn=True` a pair of zeros, and the weights become `(6, 12)`<!--== grown[0] -->; with both,
# `(6, 13)`<!--== grown[2] -->. In spite of its name `add_bias_kv` adds nothing *to* the keys. It would be of no use: a
# constant added to all keys moves no<!--== "no" if shift_gap < 1e-5 else "some" --> weight, up to rounding.
#
# **You should know** [what attention computes](attention.py), what `True` means in a [mask](../pytorch/masks.py),
# how to [switch a module's matrices off](../pytorch/bypass.py), and what a step of training is. **You will know** which
# input of a module decides which size, what a causal mask means when there are more keys than queries, what both
# options compute, and what they are good for.

# %%
import inspect
import textwrap

import torch
import torch.nn.functional as F
from torch import nn

from unmasked import (
    MultiheadAttention,
    attention_scores,
    layouts,
    masks,
    plot,
    scaled_dot_product_attention,
    self_attention,
)
from unmasked.embeddings import ship_vectors, table

told = "I must go back to my ship and to my crew".lower().split()
asked = "We process and ship your order".lower().split()
X, Y = ship_vectors().lookup(told), ship_vectors().lookup(asked)
X.shape, Y.shape


# %% [markdown]
# ## One sentence asks the other
#
# The words of the second sentence are the queries. The words of the first are keys and values:

# %%
scores = Y @ X.mT / Y.size(-1) ** 0.5  # queries keys
weights = scores.softmax(dim=-1)
context = weights @ X

package = scaled_dot_product_attention(Y, X, X, need_weights=True)
torch.testing.assert_close(package.weights, weights)
torch.testing.assert_close(package.context, context)

# %% tags=["hide-input"]
#| alt: A heat map with a row for each word of the second sentence, and a column for each of the first. ship has one
#|   bright cell, 0.55<!--= weights[3, 6] --> on ship, and a fainter one, 0.13<!--= weights[3, 10] --> on crew. The row
#|   of order has no bright cell.
plot.heatmap(weights, queries=asked, keys=told)

# %% [markdown]
# With $Y$ for the sequence that asks and $X$ for the one that is asked, that is
#
# $$\operatorname{CrossAttention}(Y, X) = \operatorname{softmax}\left(\frac{Y X^\top}{\sqrt{d}}\right) X \tag{8.1}$$
# <!-- where: Y, X = random("n d", "m d");
# CrossAttention = lambda asking, asked: scaled_dot_product_attention(asking, asked, asked).context -->
#
# - *ship* asks in the second sentence, and takes 55%<!--= weights[3, 6] --> from the *ship* of the first and 13%<!--=
#   weights[3, 10] --> from *crew*. Up to rounding<!--= torch.allclose(weights[3], self_attention(X).weights[6],
#   atol=1e-6) --> that is what *ship* takes inside the first sentence: a query knows nothing of its own neighbors.
# - *order* is not in the first sentence. Its weights sum to one<!--= torch.allclose(weights[5].sum(),
#   torch.tensor(1.0)) --> all the same, and go to words such as *must*<!--= told[weights[5].argmax()] --> and
#   *to*<!--= told[weights[5].topk(3).indices[1]] -->. A softmax cannot say that nothing fits.
#
# Asked the other way round, the scores are the same, transposed. The weights are not, for it is now the other
# sentence's words whose weights sum to one:

# %%
back = scaled_dot_product_attention(X, Y, Y, need_weights=True).weights
torch.testing.assert_close(attention_scores(X, Y), scores.mT)
assert back.shape == weights.mT.shape
off = (back - weights.mT).abs().max().item()
back[6, 3].item(), weights[3, 6].item(), off

# %% [markdown]
# The *ship* of the first sentence takes 78%<!--= back[6, 3] --> from the *ship* of the second, which takes
# 55%<!--= weights[3, 6] --> in the other direction: the score is the same, the competitors are others.
#
# ## Which input decides what?
#
# `nn.MultiheadAttention` takes query, key and value as three inputs, each with a matrix of its own. Keys and values may
# be wider or narrower than queries: `kdim` and `vdim`. Only the numbers of keys and of values have to agree.

# %%
torch.manual_seed(0)
batch, num_heads, head_dim, queries, keys = 2, 3, 4, 5, 7
options = {"kdim": 10, "vdim": 9, "batch_first": True}
theirs = nn.MultiheadAttention(num_heads * head_dim, num_heads, **options)
query = torch.randn(batch, queries, 12)
key, value = torch.randn(batch, keys, 10), torch.randn(batch, keys, 9)
output, average = theirs(query, key, value)
try:
    theirs(query, key, value[:, 1:])
except AssertionError as error:
    refusal = str(error).split(" torch")[0]
else:
    raise ValueError("it took fewer values than keys")
tuple(output.shape), tuple(average.shape), refusal

# %% [markdown]
# | Input | Tokens, features | Decides |
# | --- | --- | --- |
# | query | (5, 12)<!--= query.shape[1:] --> | how many rows weights and output have, and how wide the output is |
# | key | (7, 10)<!--= key.shape[1:] --> | how many columns the weights have |
# | value | (7, 9)<!--= value.shape[1:] --> | what is averaged; its width shows nowhere in the result |
#
# Which output depends on which input? Change one token, and see which outputs move:


# %%
def moved(name, position):
    inputs = {"query": query, "key": key, "value": value}
    changed = inputs[name].clone()
    changed[:, position] += 1
    after, _ = theirs(**{**inputs, name: changed})
    return (
        ((after - output).abs() > 1e-5).any(dim=-1)[0].int().tolist()
    )  # by more than rounding


by_query, by_key, by_value = (
    moved("query", 2),
    moved("key", 2),
    moved("value", 2),
)
order = torch.tensor([6, 2, 0, 4, 1, 5, 3])
shuffled, _ = theirs(query, key[:, order], value[:, order])
torch.testing.assert_close(shuffled, output)
by_query, by_key, by_value

# %% [markdown]
# A changed query moves its own output and no other<!--= by_query == [0, 0, 1, 0, 0] -->. A key or a value moves
# all<!--= by_key == by_value == [1] * 5 -->. The order of the pairs does not matter: shuffled together, they give the
# same output. So a model that writes a translation word by word computes the keys and values of the source text once,
# and uses them for every word. The first transformer did so: its *decoder*, which writes, takes queries from what it
# has written, and keys and values from its *encoder*, which has read the source.
#
# ## More keys than queries: which of them is now?
#
# Between two different sequences a causal mask is rare, since the source is usually known as a whole. (A translator
# that begins before the speaker has finished needs one, and `nn.TransformerDecoder` takes it: `memory_mask`, with the
# hint `memory_is_causal`<!--= "memory_is_causal" if "memory_is_causal" in
# inspect.signature(nn.TransformerDecoder.forward).parameters else "gone" -->.) The usual case with fewer queries than
# keys is another: the newest tokens of *one* sequence ask all that came before, whose keys were kept. The last query is
# the last token. So the mask has to be aligned at its bottom right corner:

# %%
causal = masks.causal(2, 5)  # two queries, five keys
whole = self_attention(X[:5], is_causal=True)
newest = scaled_dot_product_attention(X[3:5], X[:5], X[:5], is_causal=True)
masked = scaled_dot_product_attention(X[3:5], X[:5], X[:5], allowed=causal)
for one in (newest, masked):
    torch.testing.assert_close(one.context, whole.context[3:])


def by_function(query, memory):
    inputs = query[None], memory[None], memory[None]
    return F.scaled_dot_product_attention(*inputs, is_causal=True)[0]


top_left, single = by_function(X[3:5], X[:5]), by_function(X[4:5], X[:5])
causal_off = (top_left - whole.context[3:]).abs().max().item()
causal.int(), causal_off

# %% [markdown]
# The last two queries alone get what they get in the whole sentence. PyTorch's function aligns `is_causal=True` at the
# top left<!--= "left" if torch.allclose(top_left[0], X[0]) else "right" -->: it is off by 1.05<!--= causal_off -->, and
# a single new token sees nothing but the first<!--= "first" if torch.allclose(single[0], X[0]) else "last" --> key.
# `nn.MultiheadAttention` aligns nothing, it wants the mask: give it `~masks.causal(queries, keys)`.
# ([Masks](../pytorch/masks.py) has both pictures.)
#
# ## A pair that comes from no sequence
#
# Now the options. To see attention alone, take a module with one head whose matrices are the identity ([the
# bypass](../pytorch/bypass.py)), and look at what it has to learn:


# %%
def bare(dim, **options):
    options |= {"bias": False, "batch_first": True}
    module = nn.MultiheadAttention(dim, 1, **options)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(dim).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(dim))
    return module


torch.manual_seed(1)
learned, zeros = bare(50, add_bias_kv=True), bare(50, add_zero_attn=True)
two, plain = bare(50, add_bias_kv=True, add_zero_attn=True), bare(50)
modules = learned, zeros, two
grown = [tuple(module(Y, X, X)[1].shape) for module in modules]
for module in (*modules, plain):
    module.requires_grad_(False)
grown, tuple(learned.bias_k.shape), tuple(learned.bias_v.shape)

# %% [markdown]
# `bias_k` and `bias_v` are one key and one value: one token, all features. They are appended *after* the projections,
# and no matrix is applied to them. By hand that is a `cat`. For all queries there is then one key more to choose from:

# %%
bias_k, bias_v = learned.bias_k[0], learned.bias_v[0]  # 1 features
all_keys, all_values = torch.cat([X, bias_k]), torch.cat([X, bias_v])
by_hand = scaled_dot_product_attention(
    Y, all_keys, all_values, need_weights=True
)

torch_output, torch_weights = learned(Y, X, X)
ours_output, ours_weights = layouts.from_torch(learned)(Y, X, X)
for one in (torch_output, ours_output):
    torch.testing.assert_close(one, by_hand.context)
for one in (torch_weights, ours_weights):
    torch.testing.assert_close(one, by_hand.weights)
by_hand.weights.shape, by_hand.weights[:, -1]

# %% [markdown]
# The three agree: the derivation, PyTorch and the package, in which these lines do it:

# %% tags=["hide-input"]
source = inspect.getsource(MultiheadAttention._attend)
source = source[source.index("        learned = ") :]
source = source[: source.index("        appended = ")]
for line in textwrap.dedent(source).strip().splitlines():
    print(
        textwrap.fill(line.partition("  #")[0], 82, subsequent_indent=" " * 8)
    )

# %% [markdown]
# No mask hides the appended pair. A mask has a column for each real key, and gets one more that is always visible. So a
# query that may see no word at all still sees the pair, and its output is `bias_v`, not NaN:

# %%
blocked = torch.zeros(6, 11, dtype=torch.bool)  # True = may not attend
blocked[0] = True
alone, _ = learned(Y, X, X, attn_mask=blocked)
torch.testing.assert_close(alone[0], bias_v[0])
torch.testing.assert_close(alone[1:], torch_output[1:])

without, _ = plain(Y, X, X, attn_mask=blocked)
without[0].isnan().all(), alone[0].isnan().any()


# %% [markdown]
# ## Why it cannot be a shift
#
# Suppose that `bias_k` were added to every key. Then each score would grow by the query's product with it,
#
# $$\frac{q_i \cdot (k_j + b)}{\sqrt{d}} = s_{ij} + \frac{q_i \cdot b}{\sqrt{d}} \tag{8.2}$$
# <!-- where: q, k, b = random("n d", "m d", "d"); s = attention_scores(q, k) -->
#
# and what is added has no $j$ in it: it is the same along the row. A softmax depends on differences alone, so no weight
# changes. And a vector added to all values is added to their average, whatever the weights are:
#
# $$\sum_{j=1}^{m} a_{ij} \, (v_j + b) = o_i + b \tag{8.3}$$
# <!-- where: q, k, v, b = random("n d", "m d", "m d_v", "d_v");
# o, a = scaled_dot_product_attention(q, k, v, need_weights=True) -->
#
# That is the output of a layer with another bias at its end. (The same holds for the key's part of `in_proj_bias`: it
# moves no output, and is not missed, as [an exercise](../pytorch/from_scratch.py#exercises) shows.) Appended, the pair
# competes
# with the others. Take twice<!--== "twice" if factor == 2 else "once" --> the vector of *order* for both, and compare:

# %%
factor = 2
pair = factor * Y[5:]  # 1 features
by_shift = X + pair, X + pair
by_append = torch.cat([X, pair]), torch.cat([X, pair])
shifted = scaled_dot_product_attention(Y, *by_shift, need_weights=True)
appended = scaled_dot_product_attention(Y, *by_append, need_weights=True)

shift_gap = (shifted.weights - weights).abs().max().item()
share = appended.weights[5, -1].item()
torch.testing.assert_close(shifted.context, context + pair, atol=1e-4, rtol=0)
f"added: weights move by {shift_gap:.6f}; appended: order gives it {share:.2f}"


# %% tags=["hide-input"]
def by_pytorch(q, k, v, b_k, b_v):
    module = bare(q.size(-1), add_bias_kv=True, dtype=q.dtype)
    module.requires_grad_(False)
    module.bias_k.copy_(b_k)
    module.bias_v.copy_(b_v)
    return module(q, k, v)


# %% [markdown]
# Added to all keys, the vector moves no weight, but for rounding<!--= "rounding" if shift_gap < 1e-6 else "a mistake"
# -->. Appended, it takes 88%<!--=
# share --> of *order*'s weight from the words. In full, with $b_K$ and $b_V$ for the pair, what `add_bias_kv` computes
# for each query is
#
# $$o_i = \frac{e^{t_i} \, b_V + \sum_{j=1}^{m} e^{s_{ij}} \, v_j}{e^{t_i} + \sum_{l=1}^{m} e^{s_{il}}},
# \qquad t_i = \frac{q_i \cdot b_K}{\sqrt{d}} \tag{8.4}$$
# <!-- where: q, k, v, b_K, b_V = random("n d", "m d", "m d", "d", "d"); s = attention_scores(q, k);
# t = attention_scores(q, b_K[None])[:, 0]; o = by_pytorch(q, k, v, b_K, b_V)[0] -->
#
# ## What a place to go is good for
#
# *order* found nothing like itself in the other sentence, and had to take something. A pair that is learned can be the
# place to go instead. Let it learn just that: `bias_v` is zero, so who goes there takes nothing, and `bias_k` is
# trained to draw the words that the other sentence does not have, and no others.

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
#| alt: A heat map, a row for each of the six<!--= len(asked) --> words that ask and a column for each of the
#|   eleven<!--= len(told) --> words that are asked, with one column more at the right. The rows of ship and and stay
#|   within the words, those of the other four<!--= int(absent.sum()) --> are dark but for the last column.
plot.heatmap(trained, queries=asked, keys=[*told, "learned pair"])

# %% [markdown]
# After a hundred steps *we*, *process*, *your* and *order* leave at least 0.98<!--= trained[absent, -1].min() --> to
# the pair, and take next to nothing: the norm of *order*'s output falls from 4.62<!--= context[5].norm() --> to
# 0.11<!--= trained_output[5].norm() -->. *ship* leaves 0.01<!--= trained[3, -1] -->, and keeps 55%<!--= trained[3, 6]
# --> for the other *ship*. In a model nobody sets such a goal, but training finds the use: without a pair, models let
# the first token of a text be the place to go, which is called an *attention sink*.
#
# ## A pair of zeros
#
# `add_zero_attn` appends zeros, nothing that could be learned. A key of zeros has the score zero with every query, and
# the exponential of zero is one. So the weights of the words are a softmax with a one added to the denominator:
#
# $$a_{ij} = \frac{e^{s_{ij}}}{1 + \sum_{l=1}^{m} e^{s_{il}}} \tag{8.5}$$
# <!-- where: q, k = random("n d", "m d"); s = attention_scores(q, k);
# zeros = bare(d, add_zero_attn=True, dtype=torch.float64);
# a = zeros(q, k, k)[1][:, :-1] -->
#
# Since the value is zero as well, what the pair gets is lost to the output. How much it gets depends on the scores: a
# query that matches nothing gets almost nothing. Here *order* is multiplied by larger and larger negative numbers, so
# that its scores fall:

# %%
factors = [1.0, 0.0, -1.0, -4.0]
rows = []
for number in factors:
    query = number * Y[5:]
    taken = zeros(query, X, X)[1][0, :-1].sum()
    norms = [module(query, X, X)[0].norm() for module in (zeros, plain)]
    rows.append([taken, *norms])
columns = ["taken from words", "norm of output", "without the pair"]
names = [f"{number:g} times order" for number in factors]
table(torch.tensor(rows), names, columns)

# %% [markdown]
# With its own scores *order* takes 0.99<!--= rows[0][0] --> from the words. A query of zeros finds twelve keys alike
# and takes 0.92<!--= 11 / 12 if abs(rows[1][0] - 11 / 12) < 1e-6 else None -->, eleven<!--= len(told) --> twelfths,
# from them. With the scores of the last row it takes 0.00<!--= rows[3][0] -->, and its output all but vanishes. Without
# the pair it takes a full average however badly the words fit<!--= min(row[2] for row in rows) > 4 -->. With both
# options the learned pair comes first, then the zeros:

# %%
all_keys = torch.cat([X, two.bias_k[0], torch.zeros(1, 50)])
expected = attention_scores(Y, all_keys).softmax(dim=-1)
torch.testing.assert_close(two(Y, X, X)[1], expected)

# %% [markdown]
# ## A shift that looks right
#
# Here is the misreading as code, a layer that adds `bias_k` to the keys and `bias_v` to the values. It loads the
# parameters of PyTorch's module without complaint, and its output has the right shape:


# %%
def broken(q, k, v, bias_k, bias_v):
    return scaled_dot_product_attention(q, k + bias_k, v + bias_v).context


def right(q, k, v, bias_k, bias_v):
    k, v = torch.cat([k, bias_k]), torch.cat([v, bias_v])
    return scaled_dot_product_attention(q, k, v).context


torch.manual_seed(3)
q, k, v, bias_k, bias_v = (torch.randn(n, 6) for n in (3, 5, 5, 1, 1))
reference, _ = by_pytorch(q, k, v, bias_k, bias_v)
wrong_by = (broken(q, k, v, bias_k, bias_v) - reference).abs().max().item()
right_by = (right(q, k, v, bias_k, bias_v) - reference).abs().max().item()
assert right_by < 1e-6
wrong_by


# %% [markdown]
# It is off by 1.93<!--= wrong_by -->. On a fresh module the mistake is smaller, for both vectors start near zero. The
# check that tells them apart needs no reference: move `bias_k` alone. A layer that uses it must give another output.
# `wander` then trains `bias_k`, and says how far it gets.


# %%
def uses_bias_k(layer):
    before = layer(q, k, v, bias_k, bias_v)
    after = layer(q, k, v, bias_k + 1, bias_v)
    return (after - before).abs().max().item() > 1e-3


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
uses_bias_k(right), uses_bias_k(broken)

# %% [markdown]
# The right one does<!--= "does" if uses_bias_k(right) else "does not" -->, the broken one does
# not<!--= "too" if uses_bias_k(broken) else "not" -->. The gradient of `bias_k` is then zero but for
# rounding, and training has nothing to teach it. Plain gradient descent leaves it where it is<!--= "is" if
# by_sgd < 1e-3 else "was" -->. Adam divides a gradient by its own size, and so makes steps of what is only rounding: it
# moves the vector more than ten times as far<!--= "far" if by_adam > 10 * by_sgd else "little" -->. A parameter that
# moves is not yet one that learns.
#
# ## Exercises
#
# `check` judges an answer by the name in brackets: [how to do the exercises](../install.md#do-the-exercises).
#
# **Ask another sequence** (`cross-attention`). Write `cross(x, memory)` for tensors of (batch, tokens, features): every
# token of `x` gets an average of the tokens of `memory`, without matrices.
#
# ??? question "Hint"
#
#     Which of the two gives the number of rows? Which one is averaged?

# %% tags=["solution"]
from unmasked.exercises import check


def cross(x, memory):
    scores = x @ memory.mT / x.size(-1) ** 0.5
    return scores.softmax(dim=-1) @ memory


check("cross-attention", cross)

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


check("appended-pair", append)

# %% [markdown]
# **A one in the denominator** (`softmax-one`). Write `softmax_one(scores)`, the weights of equation (8.5) for scores of
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


check("softmax-one", softmax_one)

# %% tags=["remove-cell"]
assert check("cross-attention", cross)
assert check("appended-pair", append)
assert check("softmax-one", softmax_one)

# %% [markdown]
# ## What to read next
#
# - [The bias that is none](../museum/weights.py#bias-kv-as-shift): the museum has the shift, and other mistakes about
# weights.
# - [Masks](../pytorch/masks.py): the alignment of causal masks, and what else a mask can say.
# - [Is my multi-head attention right?](../pytorch/from_scratch.py) holds both options, with all others, to PyTorch's.
#
# ## References
#
# <!--~ 2017, 3.2.3, 3.2.1, 1, 2015, 3.1, 2024, 3.3, 2023: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.3, first item, for queries from the decoder with
#   keys and values from the encoder; section 3.2.1, equation 1, for (8.1).
# - Bahdanau, Cho and Bengio (2015), *Neural Machine Translation by Jointly Learning to Align and Translate*: section
#   3.1, where a decoder first asks the words of a source.
# - Xiao et al. (2024), *Efficient Streaming Language Models with Attention Sinks*: section 3.3, for a learned place to
#   go and for a softmax with a one in its denominator, (8.5), which Miller (2023), *Attention Is Off By One*, proposes.
