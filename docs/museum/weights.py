# %% [markdown]
# # Are these the right weights?
#
# **A comparison with PyTorch proves less than it seems to if the weights are special.** Biases that are zero, a matrix
# that equals its transpose, heads that were averaged: each lets a wrong program agree up to rounding. Here each such
# mistake runs beside the right version. *Off by* is the largest difference in any output or, where outputs agree, in
# what the mistake does change: another layer's weights, fresh matrices, the variance of scores.
#
# | What was done | Off by | Invisible with |
# | --- | --- | --- |
# | [took `add_bias_kv` for a bias](#bias-kv-as-shift) | 0.76<!--= off["bias-kv-as-shift"] --> | the weights: keys may shift |
# | [copied weights by aliasing](#aliased-weights) | 0.010<!--= off["aliased-weights"] --> | no training step |
# | [left out biases](#zero-bias-parity) | 0.5<!--= off["zero-bias-parity"] --> | biases of zero, as they start |
# | [multiplied by `W`, not `W.T`](#weight-not-transposed) | 2.8<!--= off["weight-not-transposed"] --> | symmetric matrices |
# | [compared averaged weights](#averaged-weights-parity) | 2.8<!--= off["averaged-weights-parity"] --> | an average over heads |
# | [left out the output projection](#missing-out-proj) | 3.0<!--= off["missing-out-proj"] --> | the identity |
# | [read packed rows head by head](#interleaved-qkv) | 2.1<!--= off["interleaved-qkv"] --> | one head |
# | [passed the query as the value](#wrong-value) | 2.2<!--= off["wrong-value"] --> | one matrix for all three |
# | [bypassed outside the conditions](#bypass-conditions) | 1.2<!--= off["bypass-conditions"] --> | one head, fresh and frozen |
# | [initialized three matrices, not one](#packed-initialization) | 0.022<!--= off["packed-initialization"] --> | copied weights |
# | [took projected queries for unit variance](#projection-variance) | 0.89<!--= off["projection-variance"] --> | larger matrices |
#
# **You should know** [what nn.MultiheadAttention computes](../pytorch/from_scratch.py). **You will know** how to fill a
# module before you compare it, and a check for each mistake. In the [museum's index](index.py) you find a mistake by
# its symptom.

# %% tags=["hide-input"]
import copy
import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from unmasked import (
    attention_scores,
    bypass_,
    functional,
    is_bypassed,
    plot,
    self_attention,
)
from unmasked.heads import fused_qkv, merge_heads, split_heads
from unmasked_doctor import probes
from unmasked_doctor.museum import Exhibits

# batch, tokens, heads, head_dim: all differ, none is one
B, N, H, D = 2, 5, 3, 4
M = N + 1  # keys
E = H * D


def draw(*shape, seed=9):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


x = draw(B, N, E)


def filled(kind, *sizes, **options):
    """A module whose every number, in the biases too, is like no other."""
    torch.manual_seed(9)
    module = kind(*sizes, **options)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=E**-0.5)
    return module


def mha(heads=H, **options):
    return filled(
        nn.MultiheadAttention, E, heads, batch_first=True, **options
    )


def by_pytorch(module, x):
    return module(x, x, x)[0]


# Attention from scratch, in steps of which each mistake changes one.
def project(module, x):
    packed = F.linear(x, module.in_proj_weight, module.in_proj_bias)
    return packed.chunk(3, dim=-1)


def project_out(module, context):
    return module.out_proj(context)


def attend(module, x, project=project, out=project_out):
    q, k, v = (
        split_heads(part, module.num_heads) for part in project(module, x)
    )
    context = functional.attend(q, k, v).context
    return out(module, merge_heads(context))


module, fresh = mha(), mha()
for bias in (fresh.in_proj_bias, fresh.out_proj.bias):
    nn.init.zeros_(bias)  # as PyTorch starts them

# runs wrong beside PyTorch's: on a module that hides the mistake, on module
exhibits = Exhibits(given=[module, x])
off = exhibits.off


def exhibit(slug, wrong, hides):
    return exhibits(slug, wrong, by_pytorch, hides=[hides, x])


# %% [markdown]
# ## `add_bias_kv` taken for a bias { #bias-kv-as-shift }
#
# `bias_k` and `bias_v` are *one more* key and value, which every query may choose. Code that adds them to all keys and
# values instead gets one column less:


# %% tags=["hide-input"]
def shifted(module, x):
    q, k, v = project(module, x)
    # right: torch.cat([k, module.bias_k.expand(B, 1, E)], 1)
    k, v = k + module.bias_k, v + module.bias_v
    q, k, v = (split_heads(part, H) for part in (q, k, v))
    return functional.attend(q, k, v, need_weights=True)


extended = mha(add_bias_kv=True)
output, weights = extended(x, x, x, average_attn_weights=False)
wrong = shifted(extended, x)
q, k, _ = (split_heads(part, H) for part in project(extended, x))
without_bias_k = attention_scores(q, k).softmax(-1)
off["bias-kv-as-shift"] = probes.differs(
    extended.out_proj(merge_heads(wrong.context)), output
)
exhibits.plate("bias-kv-as-shift", output)

# %% [markdown]
# A vector added to all keys adds the same number to every score of a query, which a softmax does not notice. So the
# weights are those without any `bias_k`, up to rounding, and a test that looks only at weights cannot tell one `bias_k`
# from another.

# %% tags=["claims"]
assert wrong.weights.size(-1) == weights.size(-1) - 1, (
    "Code that adds them to all keys and values instead gets one column less"
)
assert torch.allclose(wrong.weights, without_bias_k, atol=1e-6), (
    "So the weights are those without any bias_k, up to rounding"
)

# %% [markdown]
# **Hides** in the numbers of the weights, and in every shape but theirs. **Caught by** the number of columns. **Fix:**
# append, as [the page on heads](../pytorch/heads.py#a-pair-that-comes-from-no-sequence) does.
#
# ## Weights copied by aliasing them { #aliased-weights }
#
# `.data = other` does not put a copy into a parameter: both now live in the same memory. All outputs agree until one of
# them is trained.

# %% tags=["hide-input"]
original, student = (filled(nn.Linear, E, E) for _ in range(2))
# right: student.weight.copy_(original.weight), under torch.no_grad()
student.weight.data = original.weight.data
before = original.weight.detach().clone()
outputs_apart = probes.differs(student(x), original(x))

optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
student(x).square().mean().backward()
optimizer.step()
off["aliased-weights"] = probes.differs(original.weight, before)
exhibits.plate("aliased-weights", before, probes.shares_memory(student))

# %% tags=["claims"]
assert outputs_apart == 0 < off["aliased-weights"], (
    "All outputs agree until one of them is trained"
)

# %% [markdown]
# The optimizer has moved weights that it was never given. **Hides** until one of the two is trained. **Caught by**
# `probes.shares_memory`. **Fix:** `copy_`, or `load_state_dict`.
#
# ## Parity shown with biases of zero { #zero-bias-parity }
#
# The biases of a fresh `nn.MultiheadAttention` are zero. A version that forgets them agrees with it completely, and
# fails on a trained one.


# %% tags=["hide-input"]
def unbiased(module, x):
    # right: F.linear(x, module.in_proj_weight, module.in_proj_bias)
    return F.linear(x, module.in_proj_weight).chunk(3, dim=-1)


without_bias = partial(attend, project=unbiased)
exhibit("zero-bias-parity", without_bias, hides=fresh)

# %% [markdown]
# **Hides** on a fresh module. **Caught by** a comparison on a filled one. **Fix:** draw every parameter anew before you
# compare.
#
# ## `x @ W` where nn.Linear has `x @ W.T` { #weight-not-transposed }
#
# `nn.Linear` keeps a row for each number that comes out, and multiplies by the transpose. Without it there is an error,
# unless the matrix is square.


# %% tags=["hide-input"]
def untransposed(module, x):
    matrices = module.in_proj_weight.chunk(3)
    biases = module.in_proj_bias.chunk(3)
    # right: x @ w.T + b
    return [x @ w + b for w, b in zip(matrices, biases, strict=True)]


multiplied = partial(attend, project=untransposed)
bypassed = bypass_(mha())
gap = probes.differs(multiplied(bypassed, x), by_pytorch(bypassed, x))
symmetric = mha()
with torch.no_grad():
    turned = [matrix.T for matrix in module.in_proj_weight.chunk(3)]
    symmetric.in_proj_weight.add_(torch.cat(turned)).div_(2)

exhibit("weight-not-transposed", multiplied, hides=symmetric)

# %% tags=["check"]
#| raises: RuntimeError
x @ filled(nn.Linear, E, E + 2).weight

# %% [markdown]
# **Hides** where matrices equal their transposes, as after a [bypass](../pytorch/bypass.py). **Caught by** a layer
# whose input and output differ in width. **Fix:** `F.linear(x, W, b)`, or `x @ W.T + b`.

# %% tags=["claims"]
assert gap == 0, (
    "Hides where matrices equal their transposes, as after a bypass"
)

# %% [markdown]
# ## Parity shown with averaged weights { #averaged-weights-parity }
#
# By default, `nn.MultiheadAttention` returns the mean of the heads' weights, which stays the same when heads are
# exchanged.


# %% tags=["hide-input"]
def reordered(module, x, order=(1, 2, 0)):
    q, k, v = (
        split_heads(part, H)[:, list(order)] for part in project(module, x)
    )
    return functional.attend(q, k, v, need_weights=True)


output, mean = by_pytorch(module, x), module(x, x, x)[1]
own = module(x, x, x, average_attn_weights=False)[1]
context, every = reordered(module, x)  # weights: batch heads queries keys
per_head = probes.differs(every, own)
off["averaged-weights-parity"] = probes.differs(
    module.out_proj(merge_heads(context)), output
)
exhibits.plate("averaged-weights-parity", output)

# %% tags=["hide-input"]
#| caption: The heads' weights, right above and exchanged below: their average is the same.
panels = {
    f"{name} {h}": w[0, h]
    for name, w in (("right", own), ("wrong", every))
    for h in range(H)
}
plot.grid(panels, queries=range(N))

# %% [markdown]
# Averaged, the weights agree; head by head they differ by 0.86<!--= per_head -->, and the outputs by 2.8<!--=
# off["averaged-weights-parity"] -->. **Hides** in the average. **Caught by** `average_attn_weights=False`. **Fix:**
# compare outputs.

# %% tags=["claims"]
assert not probes.differs(every.mean(1), mean), (
    "Averaged, the weights agree; head by head they differ"
)
assert not probes.differs(every.mean(1), own.mean(1)), (
    "their average is the same"
)

# %% [markdown]
# ## The output projection left out { #missing-out-proj }
#
# An example follows the data step by step and stops at the merged heads, because the shape is already right.


# %% tags=["hide-input"]
def merged_heads(module, context):
    return context  # right: return module.out_proj(context)


stopped = partial(attend, out=merged_heads)
identity = copy.deepcopy(module)
nn.init.eye_(identity.out_proj.weight)
nn.init.zeros_(identity.out_proj.bias)
exhibit("missing-out-proj", stopped, hides=identity)

# %% [markdown]
# The check needs no reference: the layer exists, but no gradient reaches it.

# %% tags=["check"]
double = copy.deepcopy(module).double()
named = list(double.named_parameters())
cut, sound = (
    probes.cuts_gradients(lambda x, f=f: f(double, x), x.double(), named)
    for f in (stopped, attend)
)
print(cut)

# %% tags=["claims"]
assert cut and not sound, "the layer exists, but no gradient reaches it"

# %% [markdown]
# **Hides** in every shape, and where `out_proj` is the identity. **Caught by** that probe. **Fix:** apply it, and
# compare the step-by-step example with the class that it explains.
#
# ## Query, key and value packed head by head { #interleaved-qkv }
#
# PyTorch keeps all of the query's rows, then the key's, then the value's. Other code keeps those of the first head,
# then of the next. Both matrices have the same shape, and load without a complaint.


# %% tags=["hide-input"]
# wrong: fused_qkv(x, module.in_proj_weight, module.in_proj_bias, num_heads=H)
# right: first layouts.convert(state, "packed", "interleaved", num_heads=H)
def interleaved(module, x):
    packed = module.in_proj_weight, module.in_proj_bias
    heads = fused_qkv(x, *packed, num_heads=module.num_heads)
    return [merge_heads(part) for part in heads]


loaded = partial(attend, project=interleaved)
exhibit("interleaved-qkv", loaded, hides=mha(heads=1))

# %% [markdown]
# **Hides** with one head. **Caught by** the comparison of outputs. **Fix:** `layouts.convert`.
#
# ## A query or key passed as the value { #wrong-value }
#
# `attention(q, k, q)` gets three tensors of the same shape, one of them in the wrong place. Where query, key and value
# come from one matrix, or from none, nothing can show it.


# %% tags=["hide-input"]
def queries_averaged(module, x):
    q, k, _ = project(module, x)
    return q, k, q  # right: return q, k, v


averaged = partial(attend, project=queries_averaged)
same = copy.deepcopy(module)
with torch.no_grad():
    for parameter in (same.in_proj_weight, same.in_proj_bias):
        parameter.copy_(torch.cat([parameter[:E]] * 3))
exhibit("wrong-value", averaged, hides=same)

# %% [markdown]
# The check uses what a value is: double it, and the context doubles.


# %% tags=["check"]
def ignores_the_value(f):
    q, k, v = draw(B, N, D), draw(B, M, D, seed=1), draw(B, M, D, seed=2)
    return probes.differs(f(q, k, 2 * v), 2 * f(q, k, v))


attention = F.scaled_dot_product_attention

# %% tags=["claims"]
assert ignores_the_value(lambda q, k, v: attention(q, k, k)) and not (
    ignores_the_value(attention)
), "The check uses what a value is: double it, and the context doubles"

# %% [markdown]
# **Hides** where one matrix makes all three. **Caught by** that check. And with more keys than queries, a query cannot
# pass for a value at all. **Fix:** pass them by name.
#
# ## The weight bypass outside its conditions { #bypass-conditions }
#
# A module whose four matrices are the identity is plain attention, *if* it has one head, no biases, no dropout and no
# appended pair, and is not trained. [The page on the bypass](../pytorch/bypass.py#what-the-bypass-needs) measures each
# condition.


# %% tags=["hide-input"]
def set_identity(module, biases=False):
    # wrong: set_identity(module), right: bypass_(module)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(E).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(E))
        if not biases:
            module.in_proj_bias.zero_()
            module.out_proj.bias.zero_()
    return module


plain = self_attention(x).context
biased, headed = set_identity(mha(heads=1), biases=True), set_identity(mha())
good = set_identity(mha(heads=1))  # here the mistake hides
amounts = [
    probes.differs(by_pytorch(each, x), plain)
    for each in (biased, headed, good)
]
off["bypass-conditions"] = max(amounts)
reasons = "; ".join(is_bypassed(biased).reasons)
exhibits.plate("bypass-conditions", plain, reasons)

# %% tags=["check"]
optimizer = torch.optim.Adam(good.parameters(), lr=0.01)
by_pytorch(good, x).square().mean().backward()
optimizer.step()
moved = probes.differs(by_pytorch(good, x), plain)

# %% [markdown]
# With biases it is off by 1.17<!--= amounts[0] -->, with three heads by 0.76<!--= amounts[1] -->. And what is not
# frozen gets trained: after one step, outputs that agreed are off by 0.25<!--= moved -->.
#
# **Hides** on a fresh module with one head. **Caught by** `is_bypassed`, which gives reasons. **Fix:**
# `bypass_(module)`; with several heads, compare each slice with attention.

# %% tags=["claims"]
assert amounts[2] == 0, "Hides on a fresh module with one head"

# %% [markdown]
# ## Three matrices initialized for one packed { #packed-initialization }
#
# Xavier's bound is smaller for a matrix with more rows and columns. PyTorch fills the packed matrix, which has three
# times the rows; the matrix of `out_proj` starts as that of `nn.Linear` does. Three square matrices start larger, by
# the root of two.

# %% tags=["hide-input"]
wide = 512
torch.manual_seed(9)
theirs = nn.MultiheadAttention(wide, 8).in_proj_weight.detach()
torch.manual_seed(9)
square = torch.cat(
    [nn.init.xavier_uniform_(torch.empty(wide, wide)) for _ in range(3)]
)
right = nn.init.xavier_uniform_(torch.empty(3 * wide, wide))

apart = nn.MultiheadAttention(wide, 8, kdim=wide + 1).q_proj_weight
bounds = [
    matrix.abs().max().item() for matrix in (theirs, right, square, apart)
]
off["packed-initialization"] = bounds[2] - bounds[0]
exhibits.plate("packed-initialization", bounds[0])

# %% [markdown]
# The largest number is 0.0541<!--= bounds[0] --> in PyTorch's, and 0.0765<!--= bounds[2] --> in the three. Every test
# with copied weights passes, and so does one with a `kdim` of its own, because PyTorch then keeps, and starts, three
# matrices itself.

# %% tags=["claims"]
assert math.isclose(bounds[0], bounds[1], rel_tol=1e-3), (
    "PyTorch fills the packed matrix, which has three times the rows"
)
assert math.isclose(bounds[2] / bounds[0], math.sqrt(2), rel_tol=1e-3), (
    "Three square matrices start larger, by the root of two"
)
assert math.isclose(bounds[3], bounds[2], rel_tol=1e-3), (
    "PyTorch then keeps, and starts, three matrices itself"
)

# %% [markdown]
# **Hides** where weights are copied, and with such a `kdim`. **Caught by** the largest number, or the standard
# deviation, of a fresh matrix. **Fix:** fill one packed matrix, and `chunk` it.
#
# ## Projected queries taken for unit variance { #projection-variance }
#
# The division by the root of head_dim gives scores of variance one *if* the numbers of queries and keys are
# independent, of mean zero and variance one. After a fresh `nn.Linear`, the variance is smaller.

# %% tags=["hide-input"]
tokens = draw(20_000, 96)
torch.manual_seed(9)
query, key = nn.Linear(96, 64, bias=False), nn.Linear(96, 64, bias=False)


def variances():
    """Of the queries, and of the scores of each with one key."""
    with torch.no_grad():
        q, k = query(tokens), key(tokens.flip(0))
        return q.var().item(), ((q * k).sum(-1) / math.sqrt(64)).var().item()


of_query, of_scores = variances()
with torch.no_grad():
    for layer in (query, key):
        layer.weight.normal_(std=96**-0.5)  # here the mistake hides
normal = variances()[1]
off["projection-variance"] = 1 - of_scores
exhibits.plate("projection-variance", normal)

# %% [markdown]
# A query's variance is 0.33<!--= of_query -->: `nn.Linear` draws evenly between bounds that give a third. The scores
# have its square, 0.11<!--= of_scores -->, and a softmax starts flatter than the scaling promises. With matrices whose
# variance is one over the input's width it is 1.0<!--= normal -->, and there the mistake **hides**. **Caught by**
# measuring scores, not inputs. **Fix:** choose the initialization, and say which.

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("weights-that-tell", answer))`.
#
# **Weights that tell** (`weights-that-tell`). Write `fill(module)`, which fills an `nn.MultiheadAttention` so that
# every mistake shows. It is tried with biases left out, a matrix not transposed, heads exchanged, and rows read head by
# head.
#
# ??? question "Hint"
#
#     All of them show if no two numbers are alike and none is zero.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def fill(module):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


print(
    check("weights-that-tell", lambda module: module)
)  # as PyTorch starts it
check("weights-that-tell", fill)

# %% [markdown]
# **Mend the class** (`mend-the-class`). It takes its weights from PyTorch's module, and should give the same outputs.
# Make them equal, for any module with biases, and keep the copy independent of the original.


# %%
class Copied(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.heads = module.num_heads
        self.qkv = nn.Linear(
            module.embed_dim, 3 * module.embed_dim, bias=False
        )
        self.out = nn.Linear(module.embed_dim, module.embed_dim)
        self.qkv.weight.data = module.in_proj_weight.data
        self.out.weight.data = module.out_proj.weight.data

    def forward(self, x):
        q, k, v = (
            split_heads(part, self.heads)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        return self.out(merge_heads(F.scaled_dot_product_attention(q, k, v)))


torch.manual_seed(9)
check("mend-the-class", Copied)

# %% [markdown]
# ??? question "Hint"
#
#     `print(dict(module.named_parameters()).keys())`: which of them are never copied? Which are copied as an alias?


# %% tags=["solution"]
class Mended(Copied):
    def __init__(self, module):
        super().__init__(module)
        self.qkv = nn.Linear(module.embed_dim, 3 * module.embed_dim)
        self.out = copy.deepcopy(module.out_proj)
        self.qkv.load_state_dict(
            {"weight": module.in_proj_weight, "bias": module.in_proj_bias}
        )


torch.manual_seed(9)
check("mend-the-class", Mended)

# %% [markdown]
# ## What to read next
#
# - [Heads](heads.py), [masks](masks.py) and [computation](computation.py): the museum's other rooms.
# - [Where are my weights?](../pytorch/layouts.py): the same weights in every layout, and how to convert them.
# - [The doctor](../doctor.py) fills your module and compares it.
#
# ## References
#
# <!--~ 2017, 3.2.2, 2010, 4.2, 16, 2.13: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2.2, the four projections.
# - Glorot and Bengio (2010), *Understanding the difficulty of training deep feedforward neural networks*: section 4.2,
#   equation 16, for Xavier's bound.
# - PyTorch 2.13, source of `nn.MultiheadAttention`: `_reset_parameters`.
