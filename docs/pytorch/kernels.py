# %% [markdown]
# # Which kernel ran, and what did it cost?
#
# **Ask PyTorch's profiler: `kernels_of(f, ...)` names the kernel that ran and the memory it took.** A single argument
# can make a call leave the fused kernel, with the same shapes and without a warning. Here is one causal call of four
# heads and 1,024<!--= tokens --> tokens, and what makes it leave:
#
# {{ plot.table(["What is different", "Runs", "Takes", "To have the fused kernel back"], rows).markdown() }}
#
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ q.device.type.upper() }}.* The memory is the most
# that is allocated at any moment, the result included.
#
# **You should know** [why a fused kernel needs no N x N matrix](tiles.py). **You will know** how to see which kernel
# runs, before a call and after it, what makes PyTorch leave the fused one, how to forbid that, how exact each is, how a
# layer is exported for any length, and which switch gives a second derivative.

# %% tags=["imports"]
import warnings

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import unmasked
from unmasked import CausalSelfAttention, plot
from unmasked.kernels import kernels_of, sdpa_backends
from unmasked_lessons.experiments import kernels as experiments

torch.set_num_threads(1)  # a fused kernel has a buffer for each thread

# %% [markdown]
# ## After a call
#
# Give `kernels_of` a function, a layer or a whole model: it runs that once, under `torch.profiler`, and lists the
# operators of attention that it saw.

# %%
torch.manual_seed(0)
heads, tokens = 4, 1024
q, k, v = torch.randn(3, 1, heads, tokens, 64)  # batch heads tokens head_dim

attend = F.scaled_dot_product_attention
fused = kernels_of(attend, q, k, v, is_causal=True)
dropped = kernels_of(attend, q, k, v, is_causal=True, dropout_p=0.1)

print(fused, dropped, sep="\n\n")

# %% [markdown]
# The first call runs flash, the fused kernel. The second runs math, since on a CPU no fused kernel drops weights. Math
# makes the whole table of scores several times over: a single table of the four heads is 16 MiB<!--= heads * tokens**2
# * q.itemsize -->, so dropout takes {{ dropped.peak_bytes / fused.peak_bytes :.0f}} times the memory. If a model with
# dropout runs out of memory on a CPU, and only in training, look here first.

# %% [markdown] tags=["check"]
# The table above: `changes` makes each call, and tries its remedy as well. Warnings are recorded.

# %% tags=["check"]
torch.manual_seed(3)
slopes = torch.zeros(tokens, tokens, requires_grad=True)
narrow, strided = v[..., :32], v.mT.contiguous().mT
with warnings.catch_warnings(record=True, action="always") as told_of:
    changes = experiments.changes(q, k, v)
rows = [
    [name, *each.names, f"{each.peak_bytes / 2**20:.0f} MiB", each.remedy]
    for name, each in changes.items()
]
shapes = {changes[each].shape for each in ("nothing", "`dropout_p=0.1`")}

# %% tags=["claims"]
assert not told_of and len(shapes) == 1, (
    "A single argument can make a call leave the fused kernel, with the same shapes and without a warning"
)
assert all(each.mended == ("flash",) for each in changes.values()), (
    "To have the fused kernel back"
)
assert fused.names == ("flash",) and dropped.names == ("math",), (
    "The first call runs flash, the fused kernel. The second runs math"
)
assert not any(
    each.can_run for each in sdpa_backends(q, k, v, dropout_p=0.1)[:3]
), "on a CPU no fused kernel drops weights"

# %% [markdown]
# ## Before a call
#
# `sdpa_backends` says which kernels can run for given tensors and why the others cannot. It uses PyTorch's own words,
# and adds in parentheses what they leave out. It makes no table of scores:

# %%
for name, inputs, options in (
    ("dropout", (q, k, v), {"dropout_p": 0.1}),
    ("bias", (q, k, v), {"attn_mask": slopes}),
    ("plain", (q, k, v), {}),
):
    flash = sdpa_backends(*inputs, **options)[0]
    print(f"{name}: {flash.why_not or 'it runs'}")

# %% [markdown]
# `unmasked.attend` brings tensors into the form that the kernel takes, where it can: it adds the batch, pads narrow
# values, and makes the last axis contiguous. For those three rows of the table it runs the fused kernel.
#
# Put this into the tests of your model, with inputs as in training:

# %%
torch.manual_seed(4)
layer = CausalSelfAttention(16, 16, num_heads=4, dropout=0.1)
x = torch.randn(2, 9, 16)

assert kernels_of(layer.eval(), x).names == ("flash",)
print(kernels_of(layer.train(), x).names)

# %% tags=["check"]
torch.manual_seed(5)
asked = kernels_of(sdpa_backends, q, k, v).peak_bytes
encoder = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
in_training = kernels_of(encoder.train(), x).names
with torch.no_grad():
    in_evaluation = kernels_of(encoder.eval(), x).names
mended = [
    kernels_of(unmasked.attend, *each, is_causal=True).names
    for each in ((q[0], k[0], v[0]), (q, k, narrow), (q, k, strided))
]

# %% [markdown]
# There is one more way in which PyTorch leaves what you wrote: in evaluation without gradients, its encoder layers may
# run on a [fast path](masks.py#train-is-not-eval-the-fast-path), which reads masks in its own way. `kernels_of` lists
# it, and `takes_fast_path` says whether a call takes it or why it does not.

# %% tags=["claims"]
assert asked < q.nbytes / 100, "It makes no table of scores"
assert mended == [("flash",)] * 3, (
    "For those three rows of the table it runs the fused kernel"
)
assert "fast path" in in_evaluation and "fast path" not in in_training, (
    "in evaluation without gradients, its encoder layers may run on a fast path"
)

# %% [markdown]
# ## How exact is each?
#
# The fused kernel and the formula round differently. This is the error of the context against float64, for the same
# inputs in each type:

# %% tags=["hide-input"]
#| caption: The error of the context, relative to its size: of the fused kernel, of the formula written by hand in one
#|   type, and of the math backend. In half precision the formula is less exact than the kernel.
torch.manual_seed(1)
wide = torch.randn(3, 1, 4, 256, 64, dtype=torch.float64)
by_dtype = experiments.errors(wide)
plot.table(["", "fused", "by hand", "math backend"], by_dtype, "{:.0e}")

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ wide.device.type.upper() }}.*
#
# In float32 all agree to the sixth digit, so a test that compares two ways to compute attention needs a tolerance.
# Within it, a layer gives the same by hand and with the fused kernel, compiled and exported. The package's tests hold
# the last two to that, and see that they still run the fused kernel. An export is made for the lengths of its example,
# and refuses others with *Guard failed*, unless you say that an axis may vary:

# %%
layer.eval()
compiled = torch.compile(layer, fullgraph=True)
fixed = torch.export.export(layer, (x,)).module()
lengths = ({1: torch.export.Dim("tokens")},)
exported = torch.export.export(layer, (x,), dynamic_shapes=lengths).module()

# %% tags=["check"]
torch.manual_seed(4)
longer = torch.randn(2, 13, 16)
theirs = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
try:
    fixed(longer)
except AssertionError as error:
    of_another_length = str(error)
else:
    raise AssertionError("it took another length")
exported_theirs = torch.export.export(theirs, (x,), dynamic_shapes=lengths)
off_by = [
    (made(longer) - module(longer)).abs().max().item()
    for made, module in (
        (exported, layer),
        (exported_theirs.module(), theirs),
    )
]

# %% [markdown]
# That holds for this package's layers, and for PyTorch's own encoder layer and `nn.MultiheadAttention`.

# %% tags=["claims"]
assert max(off_by) < 1e-5, (
    "That holds for this package's layers, and for PyTorch's own encoder layer"
)
assert "Guard failed" in of_another_length, (
    "An export is made for the lengths of its example, and refuses others with Guard failed"
)
assert all(
    by_dtype[name][1] > 1.2 * by_dtype[name][0]
    for name in ("bfloat16", "float16")
), "In half precision the formula is less exact than the kernel"
assert max(by_dtype["float32"]) < 1e-6 < min(by_dtype["float16"]), (
    "In float32 all agree to the sixth digit"
)

# %% [markdown]
# ### The same bits?
#
# Two questions are often taken for one. Does the same call give the same bits twice? On a CPU it does. On a GPU the
# forward pass does as well, but the backward pass of a fused kernel may add up in another order each time, unless you
# call `torch.use_deterministic_algorithms(True)`; from then on PyTorch leaves cudnn, whose kernel has no such order
# (its `sdp_utils.cpp` says so). And does a text get the same bits in another batch? Not in general, on any device: the
# library that multiplies matrices chooses by their size how to cut them, and adds up in another order. Here is the
# first of 64<!--= len(rows_of_x) --> rows, computed with the others and alone:

# %%
torch.manual_seed(6)
projection = torch.nn.Linear(512, 512)
rows_of_x = torch.randn(64, 512)
together, alone = projection(rows_of_x)[:1], projection(rows_of_x[:1])
once, again = layer(x), layer(x)
print(f"off by {(together - alone).abs().max():.0e}")

# %% [markdown]
# That is rounding, but it decides ties: at temperature zero, a server may answer the same question differently when it
# is busy. Attention adds one reason of its own. In a step, a GPU's kernel cuts long keys into splits, whose number
# depends on how many texts the batch has, and on the longest. `varlen_attn(..., num_splits=1)`<!--~ a call --> forbids
# that, and SGLang has `--enable-deterministic-inference`. (Read in their sources, not tried.)

# %% tags=["claims"]
assert torch.equal(once, again), (
    "Does the same call give the same bits twice? On a CPU it does"
)  # to the bit: that is the question
assert (together - alone).abs().max() < 1e-5, "That is rounding"

# %% [markdown]
# ## A second derivative
#
# A gradient penalty differentiates a gradient, and PyTorch's fused kernels have no second derivative: the last line
# raises a RuntimeError: *derivative for aten::_scaled_dot_product_flash_attention_for_cpu_backward is not implemented*.


# %% tags=["hide-output"]
#| raises: RuntimeError: is not implemented
def penalty(x):
    loss = attend(x, x, x).square().sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    return torch.autograd.grad(gradient.square().sum(), x)[0]


torch.manual_seed(2)
small = torch.randn(1, 2, 5, 8, requires_grad=True)
penalty(small)

# %% [markdown]
# For that call, switch to the math backend, which has one:

# %%
with sdpa_kernel(SDPBackend.MATH):
    second = penalty(small)

# %% tags=["check"]
try:
    penalty(small)
except RuntimeError as error:
    refused = str(error)
else:
    raise AssertionError("the fused kernel has a second derivative")

# %% tags=["claims"]
assert (
    "derivative for aten::_scaled_dot_product_flash_attention_for_cpu_backward is not implemented"
    in refused
), (
    "derivative for aten::_scaled_dot_product_flash_attention_for_cpu_backward is not implemented"
)
assert second.isfinite().all() and second.any(), (
    "For that call, switch to the math backend, which has one"
)

# %% [markdown]
# ## What a GPU would show
#
# The tables of this page are those of a CPU. On an NVIDIA GPU there are three fused kernels, flash, efficient and
# cudnn. They drop weights themselves, so dropout no longer makes a call leave them. Flash and cudnn take tensors in
# half precision only, and each kernel has its own demands on shapes. Flash is FlashAttention 2<!--~ a version -->,
# unless you call `torch.nn.attention.activate_flash_attention_impl("FA3")`, or with "FA4"<!--~ a name -->, whose
# packages you install yourself. These two have no dropout; FA3<!--~ a name --> takes float8, too. The same two
# functions work there, with PyTorch's reasons and the GPU's memory. The package's tests run them there, for each
# combination of tensors that they try on a CPU.
#
# PyTorch asks the kernels in an order, and the first that can takes the call:
#
# <!--~ 9, 10, 9.15, 8, 12, 30, 50, 7.5: read in sdp_utils.cpp, see below -->
# | GPU, by compute capability | The order | So a call with a mask runs |
# | --- | --- | --- |
# | 9 and 10 (H100, B200), with cuDNN above 9.15 | cudnn, flash, efficient, math | cudnn |
# | 8 and 12 (A100, RTX 30 to 50) | flash, efficient, math | efficient: flash takes no mask |
# | 7.5 and less (T4) | flash, which refuses, then efficient, math | efficient, in float16 or float32 |
#
# Further, float32 goes to efficient. Heads of more than 128<!--~ the same --> features leave cudnn, except on the GPUs
# of the first row with a cuDNN above 9.22<!--~ the same -->, and those of more than 256<!--~ the same --> leave flash.
# This is read in PyTorch's source (`sdp_utils.cpp` of autumn 2026<!--~ read then -->), not measured; only the order of
# the second row is that of your own PyTorch. Where you must know, ask `sdpa_backends`.
#
# ### Force one, or fail
#
# A kernel that is left silently can be forbidden to: then the call fails, where it would have been slow. That is a good
# line for a test, or for the first step of a training:

# %% tags=["hide-output"]
#| raises: RuntimeError: No available kernel
with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
    attend(q, k, v, is_causal=True)  # it runs
    attend(q, k, v, is_causal=True, dropout_p=0.1)

# %% [markdown]
# PyTorch warns beside the error why each kernel refused, on a GPU for all three. With a list,
# `sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True)`, it asks in that order.

# %% tags=["check"]
from torch.nn.attention import list_flash_attention_impls

order = [SDPBackend(n).name for n in torch._C._get_sdp_priority_order()]

# %% tags=["claims"]
assert [each.name for each in sdpa_backends(q, k, v)][:-1] == [
    "flash",
    "efficient",
    "cudnn",
], "there are three fused kernels, flash, efficient and cudnn"
assert order[:3] == ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"], (
    "only the order of the second row is that of your own PyTorch"
)
assert {"FA3", "FA4"} <= {*list_flash_attention_impls()}, (
    "unless you call torch.nn.attention.activate_flash_attention_impl"
)

# %% [markdown]
# ## Newer versions
#
# From PyTorch 2.14<!--= border --> on, two things differ on a CPU, and on a GPU more does: there the *efficient* kernel
# takes groups of heads, too. This page is checked against the version that is installed:
#
# - Up to 2.13<!--= before -->, three axes leave the fused kernel, and so does one head of keys for several of queries,
#   which is [broadcast](grouped.py#the-trap-one-head-is-broadcast). From 2.14<!--= border --> on, both run on the fused
#   kernel, where they have no second derivative.
# - Up to 2.13<!--= before -->, the fused kernel takes a mask beside `is_causal=True`, and a query sees what both allow;
#   math refuses the two. From 2.14<!--= border --> on, every kernel refuses them. Pass one mask, made with
#   `masks.combine`.
#
# `sdpa_backends` and `kernels_of` ask your own PyTorch.

# %% tags=["check"]
before, border = "2.13", "2.14"
older = torch.__version__ < border
few = q[:, :, :8], k[:, :, :8], v[:, :, :8]
even = (torch.arange(8) % 2 == 0).expand(8, 8) | torch.eye(
    8, dtype=torch.bool
)
flat = kernels_of(attend, *(each[0] for each in few))
broadcast = kernels_of(attend, few[0], few[1][:, :1], few[2][:, :1])
together, *_, alone = sdpa_backends(*few, attn_mask=even, is_causal=True)
seen_by_both = together.can_run and torch.allclose(
    attend(*few, even, is_causal=True), attend(*few, even.tril()), atol=1e-5
)

# %% tags=["claims"]
assert not older or flat.names == broadcast.names == ("math",), (
    "three axes leave the fused kernel, and so does one head of keys for several of queries"
)
assert older or flat.names == broadcast.names == ("flash",), (
    "both run on the fused kernel"
)
assert not alone.can_run and (not older or seen_by_both), (
    "the fused kernel takes a mask beside is_causal=True, and a query sees what both allow; math refuses the two"
)
assert older or not together.can_run, "every kernel refuses them"

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("back-to-the-kernel", answer))`.
#
# **Back to the kernel** (`back-to-the-kernel`). Write a function of `query, key, value` with three axes each, (heads,
# tokens, features), where values are narrower than keys and their last axis is not contiguous.
# It returns what PyTorch's function returns, by the fused kernel.
#
# ??? question "Hint"
#
#     Three things at once make the call leave the kernel. Columns of zeros that are added to the values change nothing
#     in the other columns.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def back(query, key, value):
    width = value.size(-1)
    value = F.pad(value, (0, query.size(-1) - width)).contiguous()
    return attend(query[None], key[None], value[None])[0, ..., :width]


feedback = check("back-to-the-kernel", back)
assert feedback
feedback

# %% [markdown]
# **What one table takes** (`bytes-of-scores`). Write a function of `batch, heads, tokens, dtype` that returns how many
# bytes the scores of one call take.
#
# ??? question "Hint"
#
#     `dtype.itemsize` has the bytes of one number.


# %% tags=["solution"]
def bytes_of_scores(batch, heads, tokens, dtype):
    return batch * heads * tokens**2 * dtype.itemsize


feedback = check("bytes-of-scores", bytes_of_scores)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [What does each interface make of my mask?](masks.py) The fast path of PyTorch's encoder, and what it does to masks.
# - [Why is no N x N matrix needed?](tiles.py) What the fused kernel does inside.
# - [What does the backward pass of attention compute?](backward.py) What it keeps for the gradients.
#
# ## References
#
# <!--~ 2.13, 98940, 116350: references -->
# - PyTorch 2.13, documentation of `scaled_dot_product_attention` and `torch.nn.attention.sdpa_kernel`: the backends,
#   and how to choose among them.
# - PyTorch's issues [98940](https://github.com/pytorch/pytorch/issues/98940) and
#   [116350](https://github.com/pytorch/pytorch/issues/116350): people whom dropout costs the memory of a table, and who
#   miss a second derivative.
