# %% [markdown]
# # One device is not enough: heads in parallel, and a ring
#
# **Deal the heads out to several devices, which add up their outputs; or deal out the tokens, and send keys and values
# around a ring.** A *rank* is one of the processes that compute together, usually each on a device of its own. Both
# ways give what one device gives, up to rounding, and so do the gradients.
#
# **Which to take?** Within one machine, heads in parallel are the usual choice, because the sums need fast links. A
# ring can take over where the sequence is too long for one rank, or where there are more ranks than heads of keys.
# [What to take in production](#what-to-take-in-production) has the rest. Two processes computed this table while the
# page was built:

# %% tags=["imports"]
import os
import signal
import textwrap

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from unmasked import CausalSelfAttention, plot
from unmasked.parallel import (
    HeadParallel,
    count_bytes,
    launch,
    positions_of_rank,
    ring_attention,
    ring_bytes,
)
from unmasked.parallel.__main__ import demonstrate
from unmasked.positions import Rotary
from unmasked.tiles import merge, tiled_attention
from unmasked_lessons.experiments import parallel as experiments

# %% tags=["hide-input", "any-version"]
#| caption: Causal attention on two ranks, in float32<!--= str(torch.get_default_dtype()).removeprefix("torch.") -->:
#|   how far outputs and gradients are off, as a share of their size, and how many bytes a rank sends, or hands over to
#|   be summed, in a forward and a backward pass, as counted and by formula.
answers = launch(demonstrate, 48, ranks=2)
shown = answers[0]
has = ["half of the heads", *["half of the tokens"] * 3]
plot.table(
    ["", "a rank has", "outputs", "gradients", "bytes", "formula"],
    {
        name: [part, *each]
        for part, (name, *each) in zip(has, shown, strict=True)
    },
    ["{}", "{:.0e}", "{:.0e}", "{:,}", "{:,}"],
)

# %% tags=["claims"]
assert max(max(row[1:3]) for row in shown) < 1e-6, (
    "Both ways give what one device gives, up to rounding, and so do the gradients"
)
assert all(sent == formula for *_, sent, formula in shown), (
    "in a forward and a backward pass, as counted and by formula"
)

# %% [markdown]
# **You should know** [how heads are split and merged](heads.py), and that [parts merge by their
# log-sum-exp][unmasked.tiles.merge]. **You will know** what each rank computes and sends, what goes wrong silently, how
# to test it with two processes on any machine, and what to take in production.
#
# This command makes the same table on as many processes as you like, and on GPUs if there is one for each process:
#
# ```console
# $ torchrun --nproc-per-node 2 -m unmasked.parallel
# ```
#
# ## What to take in production
#
# The functions of this page are written to be read. PyTorch has both ways, with kernels for GPUs:
#
# | You run out of | Take | Know |
# | --- | --- | --- |
# | memory for weights | `ColwiseParallel`, `RowwiseParallel` | ranks must divide the heads, those of the keys too |
# | memory for long sequences | `context_parallel` | needs GPUs; experimental: [PyTorch's own](#beside-pytorchs-own) |
# | memory for weights, gradients, optimizer | `fully_shard` (FSDP) | a rank gathers a layer when it computes it |
# | neither, only time | `DistributedDataParallel` | each rank has its own sequences, and attention is whole |
#
# With fewer heads of keys than ranks, one can also give several ranks a copy of the same head: vLLM does (its function
# `get_num_kv_heads` says so), and its cache is then as many times larger in all. `HeadParallel` below refuses it.
#
# ## Heads in parallel
#
# Each rank has the rows of the projections that make its own heads (*column parallel*, after the columns of the
# transposed matrix), and the columns of the output's projection that take them in (*row parallel*). It computes its
# heads from end to end, and only the outputs have to be summed:

# %%
torch.manual_seed(1)
layer = CausalSelfAttention(d_in=12, d_out=24, num_heads=6, num_kv_heads=2)
x = torch.randn(2, 7, 12)


def some_heads():
    mine = HeadParallel(layer)
    with count_bytes() as sent, torch.no_grad():
        output = mine(x)
    return mine.num_heads, output, sent.reduced


halves = launch(some_heads, ranks=2)
[
    (heads, torch.allclose(output, layer(x), atol=1e-6))
    for heads, output, _ in halves
]

# %% [markdown]
# Each rank has three heads, and both end up with the whole output. It was summed by one *all-reduce* of 1,344
# bytes<!--= halves[0][2] -->, as many as the output has. In the backward pass the gradient of the input is summed in
# the same way.

# %% tags=["claims"]
assert halves[0][2] == halves[0][1].nbytes, "as many as the output has"

# %% [markdown]
# ### The trap: a bias for every rank
#
# A layer that is cut by its columns still has one bias. If each rank adds it before the sum, it is added as often as
# there are ranks. Nothing fails, but a model that was trained in one process comes out slightly wrong:

# %%
torch.manual_seed(5)
context = torch.randn(2, 7, 24)
weight, bias = layer.out_proj.weight, layer.out_proj.bias
parts = zip(context.chunk(2, dim=-1), weight.chunk(2, dim=1), strict=True)
partial = [part @ columns.T for part, columns in parts]

whole = context @ weight.T + bias
wrong = sum(each + bias for each in partial)
right = sum(partial) + bias

# %% [markdown]
# The wrong sum is off by up to {{ (wrong - whole).abs().max() :.2f}}, exactly the bias, and the right one agrees with
# the whole. With a bias of zeros, which many layers start with, both agree, so a test needs a bias that is not zero.
# (Gradients can go wrong, too: `torch.distributed.nn.functional.all_reduce` also sums in the backward pass, and if
# every rank has the same loss, gradients come out as many times too large as there are ranks.)

# %% tags=["claims"]
assert torch.allclose(wrong, sum(partial) + 2 * bias, atol=1e-5), (
    "If each rank adds it before the sum, it is added as often as there are ranks"
)
assert right.allclose(whole, atol=1e-5), "the right one agrees with the whole"

# %% [markdown]
# ## A ring
#
# Now each rank has some tokens, with their queries, keys and values. The queries stay. At each step a rank attends to
# the keys that it holds, and passes them on to the next rank while it computes. After as many steps as there are ranks,
# every query has seen every key, and no rank ever held them all:

# %%
torch.manual_seed(2)
q = torch.randn(1, 6, 32, 8)  # batch heads tokens head_dim
k, v = torch.randn(2, 1, 2, 32, 8)  # two heads of keys, and of values


def some_tokens():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = positions_of_rank(32, rank=rank, ranks=ranks)
    parts = (each[:, :, mine] for each in (q, k, v))
    with count_bytes() as sent:
        context = ring_attention(*parts, is_causal=True)
    return context, mine, sent.to_next


shares = launch(some_tokens, ranks=4)

# %% tags=["check"]
whole = F.scaled_dot_product_attention(
    q, k, v, is_causal=True, enable_gqa=True
)

# %% [markdown]
# Each of the four ranks has the contexts of its own eight tokens, and they are those of the whole. Each has sent 3,072
# bytes<!--= shares[0][2] -->.

# %% tags=["claims"]
assert all(
    torch.allclose(context, whole[:, :, mine], atol=1e-5)
    for context, mine, _ in shares
), (
    "Each of the four ranks has the contexts of its own eight tokens, and they are those of the whole"
)

# %% [markdown]
# ### Or exchange heads for tokens: Ulysses
#
# There is a third way, between the two. Each rank has some tokens, as in a ring, but before attention the ranks
# exchange what they have: each gives away its tokens of all heads but a few, and gets all tokens of those few.
# Attention is then that of one device, with any mask and any kernel, and a second exchange brings the tokens back:


# %%
def exchange(x, deal, join):
    ranks = dist.get_world_size()
    parts = [part.contiguous() for part in x.chunk(ranks, dim=deal)]
    got = [torch.empty_like(part) for part in parts]
    dist.all_to_all(got, parts)
    return torch.cat(got, dim=join)


def heads_for_tokens():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = (x.chunk(ranks, dim=2)[rank] for x in (q, k, v))
    few = [exchange(x, deal=1, join=2) for x in mine]
    context = F.scaled_dot_product_attention(
        *few, is_causal=True, enable_gqa=True
    )
    return exchange(context, deal=2, join=1)


by_heads = torch.cat(launch(heads_for_tokens, ranks=2), dim=2)
torch.testing.assert_close(by_heads, whole)

# %% [markdown]
# A rank sends a share of its queries, keys, values and contexts, once, so its bytes fall as ranks are added, while in a
# ring they do not. But no more ranks can take part than there are heads of keys, unless these are copied, and each rank
# holds all keys of its heads. `all_to_all` has no gradient by itself: for training take
# `torch.distributed.nn.functional.all_to_all`.
#
# ### How the steps are merged
#
# A step gives contexts over some of the keys, and for each query the logarithm of the sum of its exponentials. From
# these logarithms [`tiles.merge`][unmasked.tiles.merge] knows how much each part weighs. A plain mean of the parts
# would be right if all had the same sums. Here are two parts with half of the keys each, without a mask:

# %%
spans = [slice(0, 16), slice(16, 32)]
parts = [tiled_attention(q, k[:, :, span], v[:, :, span]) for span in spans]
whole = tiled_attention(q, k, v)

mean = sum(context for context, _ in parts) / 2
merged = merge(parts).context
[
    torch.allclose(context, whole.context, atol=1e-5)
    for context in (mean, merged)
]

# %% [markdown]
# The mean is off by up to 0.36<!--= (mean - whole.context).abs().max() -->; the merge agrees.

# %% tags=["check"]
(first, logsumexp), (second, _) = parts
same_sums = merge([(first, logsumexp), (second, logsumexp)]).context

# %% tags=["claims"]
assert torch.allclose(mean, same_sums, atol=1e-5), (
    "A plain mean of the parts would be right if all had the same sums"
)

# %% [markdown]
# ### Who has work to do?
#
# With a causal mask a query sees only the keys up to its own place, so the last tokens have the most work, and the
# layout decides which rank gets them. Here are four ranks with four tokens each:

# %% tags=["hide-input"]
#| caption: How many pairs of a query and a key each rank computes at each step. The ranks of a step wait for the
#|   slowest one, so the largest number of each column counts. The sum of these is 58<!--= waited["contiguous"] --> for
#|   contiguous parts, 34<!--= waited["zigzag"] --> for zigzag, and 40<!--= waited["striped"] --> for striped.
tokens, ranks = 16, 4
pairs = experiments.pairs(tokens, ranks)
first, *_, last = pairs["contiguous"]
waited = {name: each.amax(0).sum().item() for name, each in pairs.items()}
names = [str(place) for place in range(ranks)]
plot.grid(pairs, "pairs", rows=names, columns=names, axes=("ranks", "steps"))

# %% [markdown]
# In *contiguous* parts the first rank has no work after its first step, while the last one has work at every step.
# *Zigzag* gives each rank one part of the beginning and the part of the end that makes up for it, so all ranks have the
# same work at every step. *Striped* deals the tokens out one by one, and is nearly as even.

# %% tags=["claims"]
assert not first[1:].any() and last.all(), (
    "the first rank has no work after its first step, while the last one has work at every step"
)
assert pairs["zigzag"].amin(0).equal(pairs["zigzag"].amax(0)), (
    "all ranks have the same work at every step"
)
assert waited == {
    name: sum(map(max, each.T.tolist())) for name, each in pairs.items()
}, "so the largest number of each column counts"

# %% [markdown]
# ### The trap: where a token stands
#
# The tokens of a rank need not stand side by side. Anything that depends on positions, such as a rotary embedding,
# needs the positions in the whole sequence. Counted from zero on each rank, they are wrong, and nothing fails:

# %%
rotary, key = Rotary(8), k[:, :, positions_of_rank(32, rank=1, ranks=2)]
where = positions_of_rank(32, rank=1, ranks=2)
right = rotary(key, where)
wrong = rotary(key, torch.arange(len(where)))

# %% [markdown]
# The second rank's keys are off by up to {{ (wrong - right).abs().max() :.1f}}. The second of its tokens stands at
# {{ where[1].item() }}, not at one.

# %% tags=["claims"]
assert positions_of_rank(32, rank=0, ranks=2).diff().max() > 1, (
    "The tokens of a rank need not stand side by side"
)
assert not torch.allclose(wrong, right, atol=1e-5), (
    "Counted from zero on each rank, they are wrong, and nothing fails"
)

# %% [markdown]
# ## How many bytes?
#
# A ring sends each rank's keys and values to all others. With $n$ ranks, $h$ heads of keys, $t$ tokens in all, $d$
# features and $b$ bytes a number, a rank sends in a forward pass
#
# $$B = (n - 1) \cdot 2 h \, \frac{t}{n} \, d \, b \tag{41.1}$$
# <!-- where: n = 4; h = 2; t = 32; d = 8; b = 4; B = ring_bytes(1, h, t, d, ranks=n) -->
#
# bytes, and in the backward pass the same again, and a gradient for each. The bytes grow with the tokens of a rank, but
# the work grows with their square, so from some length on the transfer can hide behind the computation. With heads in
# parallel, each rank hands over the whole output, however many ranks there are. Here is a layer as large as Llama's
# with eight heads of keys, in bfloat16:

# %% tags=["hide-input", "any-version"]
#| caption: What each of {{ ranks }} ranks sends in a ring, or hands over to be summed, in one forward pass of one layer
#|   of {{ width :,}} features.
width, head_dim, ranks = 4096, 128, 8
lengths = [8_192, 131_072, 1_048_576]
sent = experiments.sent(
    lengths, kv_heads=8, head_dim=head_dim, width=width, ranks=ranks
)
plot.table(["tokens", "ring", "heads in parallel"], sent, "{:,.0f} MiB")

# %% [markdown]
# Shared heads make the ring cheap, because it sends keys and values before they are repeated, while the output has all
# 32<!--= width // head_dim --> heads. And what is handed over to be summed goes over the wire almost twice: an
# all-reduce that runs as a ring sends $2 (n - 1) / n$<!-- unchecked: how libraries sum, which is not run here --> times
# as much, here {{ 2 * (ranks - 1) / ranks :.2f}} times.

# %% tags=["claims"]
assert shares[0][2] == 3 * (k.nbytes + v.nbytes) // 4, (
    "A ring sends each rank's keys and values to all others"
)
assert ring_bytes(1, 2, 32, 8, ranks=4, backward=True) == 3 * shares[0][2], (
    "and in the backward pass the same again, and a gradient for each"
)
assert ring_bytes(1, 6, 32, 8, ranks=4) == 3 * shares[0][2], (
    "it sends keys and values before they are repeated"
)

# %% [markdown]
# ## When ranks differ, or die
#
# A common mistake is that ranks call with different shapes, as at the end of a data set, where one rank gets a shorter
# batch. PyTorch's transfers can then wait until a timeout, or end a process in the middle. The ranks of this package
# first tell each other, in a few hundred bytes, what they are about to do. If they differ, all of them say so:


# %%
def differ():
    keys = k[:, :, dist.get_rank() :]
    return ring_attention(q, keys, keys)


def told(work, ranks):
    try:
        launch(work, ranks=ranks)
    except RuntimeError as error:
        return textwrap.fill(str(error), 72)
    else:
        raise AssertionError("nothing was wrong")


print(told(differ, ranks=2))

# %% [markdown]
# If a rank's process dies, its neighbors notice at once, because their connection breaks. That is so with gloo, which
# carries the bytes on a CPU. With NCCL, on GPUs, a transfer that has begun may wait, until PyTorch's watchdog, a thread
# in each process, ends it after the timeout, ten minutes unless you pass another. (The sources say so; nobody here
# tried it.) Here one rank of four kills itself:


# %%
def die():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return ring_attention(q, k, v)


print(told(die, ranks=4))

# %% tags=["check"]
torch.manual_seed(6)
uneven = [
    told(lambda layer=layer: HeadParallel(layer), ranks=2).replace("\n", " ")
    for layer in (
        CausalSelfAttention(6, 6, num_heads=3),
        CausalSelfAttention(6, 8, num_heads=4, num_kv_heads=1),
    )
]

# %% tags=["claims"]
assert (
    "num_heads (3) must be divisible" in uneven[0]
    and "num_kv_heads (1) must be divisible" in uneven[1]
), "ranks must divide the heads, those of the keys too"

# %% [markdown]
# ## Beside PyTorch's own
#
# `parallelize_module` cuts the projections of a module in the same way, given a plan. It cuts whole projections, so
# query, key and value must be separate, or lie [head by head](layouts.py#same-shape-another-order), and by default the
# module must not rely on the number of heads:


# %%
class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (
            torch.nn.Linear(12, 12, bias=False) for _ in range(4)
        )

    def forward(self, x):
        q, k, v = (
            w(x)
            .unflatten(-1, (-1, 3))
            .transpose(1, 2)  # as many as there are
            for w in (self.wq, self.wk, self.wv)
        )
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(context.transpose(1, 2).flatten(2))


# %%
torch.manual_seed(3)
module = Attention()
expected = module(x).detach()
plan = dict.fromkeys(("wq", "wk", "wv"), ColwiseParallel())
plan["wo"] = RowwiseParallel()


def pytorchs_heads():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    output = parallelize_module(module, mesh, plan)(x)
    return torch.allclose(output, expected, atol=1e-6)


launch(pytorchs_heads, ranks=2)


# %% [markdown]
# PyTorch's `context_parallel` gathers the keys of all ranks, unless you call `set_rotate_method("alltoall")`, which is
# in `torch.distributed.tensor.experimental._attention`. With that call, it is a ring, and no rank holds all keys. It
# replaces `F.scaled_dot_product_attention` inside its block, deals tokens out in zigzag by default, and knows only the
# kernels of GPUs. On a CPU it says so:


# %%
def pytorchs_ring():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parts = [q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)]
    parts = [part.clone() for part in parts]
    try:
        with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2, 2, 2]):
            F.scaled_dot_product_attention(*parts, is_causal=True)
    except NotImplementedError as error:
        return str(error)
    else:
        return ""


refused = launch(pytorchs_ring, ranks=2)
print(
    refused[0].partition(" does ")[0],
    "\n does",
    refused[0].partition(" does ")[2],
)

# %% [markdown]
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*

# %% tags=["check"]
from torch.distributed.tensor.experimental import _attention as pytorchs

# %% tags=["claims"]
assert pytorchs._cp_options.rotate_method.name == "ALL_GATHER" and (
    '"alltoall"' in pytorchs.set_rotate_method.__doc__
), "gathers the keys of all ranks, unless you call set_rotate_method"
assert all("for_cpu" in each for each in refused), (
    "and knows only the kernels of GPUs"
)

# %% [markdown]
# ## The check for your own tests
#
# `launch` runs a function in several processes of one machine and returns what each of them returned. These are new
# processes, even if yours has used a GPU, and the function travels there by value, even from a notebook (for which you
# need `pip install cloudpickle`). Compare your module with the whole, including gradients, with a bias that is not
# zero, and with two and four ranks, because with two, a mistake in the order of turns can hide:

# %%
torch.manual_seed(4)
torch.nn.init.uniform_(layer.out_proj.bias)
expected = torch.autograd.grad(layer(x).square().sum(), layer.out_proj.bias)


def gradients():
    mine = HeadParallel(layer)  # your module here
    return torch.autograd.grad(mine(x).square().sum(), mine.out_bias)


for ours in launch(gradients, ranks=2):
    torch.testing.assert_close(ours, expected)

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("row-parallel", answer))`.
#
# **One bias** (`row-parallel`). Write `output(contexts, weights, bias)`: lists of what each rank has, its contexts
# (..., tokens, features) and its columns of the output's matrix (d_out, features); and the bias. Return the output.
#
# ??? question "Hint"
#
#     What every rank gives is added up; what the layer has only once is added once.


# %% tags=["solution"]
from unmasked_lessons.exercises import check


def output(contexts, weights, bias):
    parts = zip(contexts, weights, strict=True)
    return sum(context @ columns.T for context, columns in parts) + bias


feedback = check("row-parallel", output)
assert feedback
feedback

# %% [markdown]
# **Who sees what?** (`zigzag-block`). Write `seen(rank, owner, ranks)` for a causal ring in zigzag: how many of the
# four quarters (first or second half of the rank's queries, first or second half of the owner's keys) have any pair
# that a query sees?
#
# ??? question "Hint"
#
#     The tokens are cut into twice as many parts as there are ranks. Rank `rank` has the parts `rank` and
#     `2 * ranks - 1 - rank`. A part sees itself, and all parts before it.


# %% tags=["solution"]
def seen(rank, owner, ranks):
    queries = (rank, 2 * ranks - 1 - rank)
    keys = (owner, 2 * ranks - 1 - owner)
    return sum(key <= query for query in queries for key in keys)


feedback = check("zigzag-block", seen)
assert feedback
feedback

# %% [markdown]
# **What does it cost?** (`ring-traffic`). Write `traffic(kv_heads, tokens, head_dim, ranks, itemsize)`: the bytes that
# all ranks together send in a forward pass of a ring, for one sequence.
#
# ??? question "Hint"
#
#     Equation (41.1) has what one of them sends.


# %% tags=["solution"]
def traffic(kv_heads, tokens, head_dim, ranks, itemsize):
    return (ranks - 1) * 2 * kv_heads * tokens * head_dim * itemsize


feedback = check("ring-traffic", traffic)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [How small can the cache be?](grouped.py): fewer heads of keys, which a ring does not have to send.
# - [How does one matrix hold many heads?](heads.py): the rows that a rank takes.
# - [The reference of `unmasked.parallel`](../reference/parallel.md).
#
# ## References
#
# <!--~ 2019, 3, 2023, 2024, 3.3.2: references -->
# - Shoeybi et al. (2019), *Megatron-LM*: section 3, heads in parallel.
# - Liu et al. (2023), *Ring Attention with Blockwise Transformers for Near-Infinite Context*.
# - Brandon et al. (2023), *Striped Attention: Faster Ring Attention for Causal Transformers*.
# - Grattafiori et al. (2024), *The Llama 3 Herd of Models*: section 3.3.2, zigzag.
