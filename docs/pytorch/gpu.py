# %% [markdown]
# # What does attention cost on a GPU?
#
# **With a fused kernel, a few milliseconds and a few megabytes. Without one, at 4,096<!--~ the record's --> tokens,
# forty times the time and three hundred times the memory, and more the longer the text. One missing axis is enough.**
#
# The figures of this page do not come from the machine that built it, which has no GPU, but from a record:
# {{ record["device"] }}, PyTorch {{ record["torch"] }}, {{ record["measured"] }}. One command measures most of it on
# [your own machine](#your-own-column). Compare the ways with each other, not the digits with those of another machine.

# %% tags=["imports"]
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from unmasked import masks, plot
from unmasked_lessons.figures import gpu as figures
from unmasked_lessons.measure import recorded

# %% tags=["hide-input"]
#| alt: Two panels over the number of tokens. In both, math lies highest and by hand below it. In time the fused
#|   kernels lie below; in memory these three lie together, far below.
#| caption: Causal attention of 16<!--~ the record's --> heads of 64<!--~ the record's --> features in bfloat16: time,
#|   and memory above the inputs. From mark to mark the lengths double, and the heights grow tenfold.
record = recorded()
figures.over_length(record)

# %% [markdown]
# **You should know** [which kernels there are](kernels.py), and what a [mask](masks.py) costs. **You will know** what
# to look for when attention is slow on a GPU, how exact each kernel is, and how to measure your own.
#
# ## By hand, the matrix is the cost
#
# The three lines of the first page make the matrix of scores, mask it, and turn it into weights. At 16,384<!--=
# max(map(int, record["kernels"])) --> tokens that takes {{ by_hand[0] :.0f}} ms and {{ by_hand[1] / 1024 :.0f}} GiB.
# PyTorch's fused kernels hold only tiles of the matrix at a time: cuDNN's takes {{ fused[0] :.1f}} ms and {{ fused[1]
# :.0f}} MiB, so it needs {{ times :.0f}} times less time and {{ by_hand[1] / fused[1] :.0f}} times less memory.
# PyTorch's own fallback, *math*, takes twice as long as your three lines, because by default it computes in float32.
# That makes it the most exact way [in bfloat16](#how-exact-is-each).
#
# For short texts the choice hardly matters. At 512<!--= min(map(int, record["kernels"])) --> tokens all ways take less
# than a millisecond, most of which is the time to start a kernel.

# %% tags=["check"]
of_all = sorted(record["kernels"].items(), key=lambda of: int(of[0]))
shortest, longest = of_all[0][1], of_all[-1][1]
by_hand, fused = longest["by hand"], longest["cudnn"]
times = by_hand[0] / fused[0]
axes = figures.over_length(record).axes[0]
marks = axes.get_xticks().tolist(), axes.get_yticks().tolist()

# %% tags=["claims"]
assert all(
    each["math"][0] > each["by hand"][0] > each["cudnn"][0]
    for each in record["kernels"].values()
), "In both, math lies highest and by hand below it"
assert all(b == 2 * a for a, b in zip(marks[0], marks[0][1:])) and all(
    9 < b / a < 11 for a, b in zip(marks[1], marks[1][1:])
), "From mark to mark the lengths double, and the heights grow tenfold"
assert max(time for time, _ in shortest.values()) < 1, (
    "all ways take less than a millisecond"
)
assert 2 < longest["math"][0] / by_hand[0] < 2.5, (
    "takes twice as long as your three lines"
)

# %% [markdown]
# ## What makes one call forty times slower
#
# The same call at 4,096<!--~ the record's --> tokens, with one thing changed at a time. The first bar is the call as it
# should be:

# %% tags=["hide-input"]
#| alt: Ten bars. The last two, one head of keys broadcast and three axes, are by far the longest, and amber.
#| caption: Time of one call, and the kernel that PyTorch chose. Amber: no fused kernel ran, and the whole matrix was
#|   made.
names = {
    "causal": "as it should be: is_causal=True",
    "bool mask": "the same as a boolean mask",
    "float mask": "the same as a mask of numbers",
    "mask that needs grad": "a mask that requires grad",
    "float32": "in float32",
    "head_dim 65": "heads of 65 features",
    "dropout": "with dropout",
    "gqa": "one head of keys, enable_gqa=True",
    "gqa broadcast": "one head of keys, broadcast",
    "three axes": "three axes, without a batch",
}
cost = {name: time for name, (_, time, _) in record["choices"].items()}
figures.choices(record, names)

# %% [markdown]
# - **Three axes** instead of four: that version of PyTorch has no fused kernel for them. `x[None]` before the call
#   brings it back. (Newer versions, from 2.14<!--~ a version --> on, take three axes too.)
# - **One head of keys** for all queries, without `enable_gqa=True`: PyTorch [broadcasts
#   it](grouped.py#the-trap-one-head-is-broadcast), but no fused kernel of that version does.
#   The remedy is the keyword. (From 2.14<!--~ its pull request 191085 --> on, the fused kernels do.)
# - **A mask that requires grad**, such as a learned bias: cuDNN gives the mask no gradient, so a slower kernel runs. In
#   inference, `bias.detach()` is enough.
# - **Heads of 65<!--~ the record's --> features** take three times as long: cuDNN, which PyTorch asks first on this
#   GPU, refuses them, and for flash they are copied, to fill them up to a multiple of eight.
# - **float32** has neither flash nor cuDNN. bfloat16 is nine times as fast, at the price of the errors in the next
#   table.
# - **Dropout** costs about twice the time here. On a CPU it would lose the fused kernel.
# - A **mask**, where `is_causal=True` would have said the same, more than doubles the time.
#
# None of these raises an error, and none gives a wrong number. `sdpa_backends` [says it before the
# call](kernels.py), on your own tensors.

# %% tags=["check"]
times_of = [cost[name] for name in names]
odd_kernels, odd_time, odd_memory = record["choices"]["head_dim 65"]

# %% tags=["claims"]
assert [*names][-2:] == ["gqa broadcast", "three axes"] and (
    min(times_of[-2:]) > 2 * max(times_of[:-2])
), (
    "The last two, one head of keys broadcast and three axes, are by far the longest"
)
assert 2.9 < odd_time / cost["causal"] < 3.3, "take three times as long"
assert odd_kernels == ["flash"] and (
    odd_memory > 7 * record["choices"]["causal"][2]
), "refuses them, and for flash they are copied"
assert 35 < cost["three axes"] / cost["causal"] < 45, "forty times the time"
assert (
    record["choices"]["three axes"][2]
    > 300 * (record["choices"]["causal"][2])
), "and three hundred times the memory"
assert 8.5 < cost["float32"] / cost["causal"] < 9.5, (
    "bfloat16 is nine times as fast"
)
assert 2 < cost["dropout"] / cost["causal"] < 2.5, (
    "costs about twice the time here"
)
assert min(cost["bool mask"], cost["float mask"]) > 2 * cost["causal"], (
    "more than doubles the time"
)

# %% [markdown]
# ## How exact is each?
#
# Against float64, on the same rounded inputs, at 1,024<!--~ the record's --> tokens:
#
# {{ exact.markdown() }}
#
# A fused kernel in bfloat16 is *more* exact than your three lines in bfloat16: it keeps scores and sums in float32, and
# rounds only the weights and the result. And by hand, float32 with TF32<!--~ a format --> switched on, as in many
# training scripts, is about as exact as float16.

# %% tags=["check", "any-version"]
WAYS = ["math", "efficient", "flash", "cudnn", "by hand"]


def error(dtype, way):
    found = record["accuracy"][f"{dtype} {way}"]
    return "not there" if found is None else f"{found:.1e}"


dtypes = ["float32", "float16", "bfloat16"]
tf32 = record["accuracy"]["float32 by hand, TF32"]
exact = plot.table(
    ["Kernel", *dtypes], {w: [error(d, w) for d in dtypes] for w in WAYS}
)

# %% tags=["claims"]
assert all(
    record["accuracy"][f"bfloat16 {way}"]
    < 0.7 * record["accuracy"]["bfloat16 by hand"]
    for way in WAYS[:-1]
), (
    "A fused kernel in bfloat16 is more exact than your three lines in bfloat16"
)
assert 0.5 < tf32 / record["accuracy"]["float16 by hand"] < 2, (
    "is about as exact as float16"
)

# %% [markdown]
# ## A window, and one token after another
#
# With 8<!--~ the record's --> heads, a window of 512<!--~ the record's --> keys in 8,192<!--~ the record's --> tokens
# is little work if a kernel leaves out what is hidden, as FlexAttention does, in {{ window["FlexAttention"] :.2f}} ms.
# The same window as a mask of the fused function takes {{ window["SDPA, the window as a mask"] :.2f}} ms, more than
# plain causal attention, which does far more arithmetic and takes {{ window["SDPA, causal, no window"] :.2f}} ms.
#
# A step of writing has little to compute. This one mostly waits for Python to start kernels, and reads what is kept. In
# bfloat16, for 8<!--~ the record's --> texts and 16<!--~ the record's --> heads of 128<!--~ the record's --> features,
# after 128<!--= min(map(int, decode)) --> tokens a cache that grows by `torch.cat` takes {{ decode["128"]["cat"] :.3f}}
# ms; after 4,000<!--= max(map(int, decode)) --> it takes {{ decode["4000"]["cat"] :.2f}}, because it copies everything
# each time. The library's `KVCache` takes {{ decode["128"]["KVCache"] :.2f}} and {{ decode["4000"]["KVCache"] :.2f}}
# ms: its checks cost more than the copies until the text is long. The three raw calls alone would take {{
# decode["4000"]["limit"] :.2f}} ms.

# %% tags=["check"]
window, decode = record["window"], record["decode"]

# %% tags=["claims"]
assert decode["128"]["KVCache"] > decode["128"]["cat"] and (
    decode["4000"]["KVCache"] < decode["4000"]["cat"]
), "its checks cost more than the copies until the text is long"
assert decode["4000"]["KVCache"] < 1.2 * decode["128"]["KVCache"], (
    "a step with the library's cache takes hardly longer after thirty times as many tokens"
)

# %% [markdown]
# ## Code that suits a GPU
#
# - Ask for the device once, and make masks and positions there. `best_device()` of `unmasked.device` says which it is.
# - Never ask a tensor for its value on the way: `mask.any()` in an `if` [makes the processor wait](#hidden-waits) for
#   the GPU. So the library reads no mask's values there and cannot see that one is causal, unless you say
#   `is_causal=True`.
# - A row that may see nothing gets zeros from one kernel and other numbers from another: with a boolean mask in
#   bfloat16, cuDNN's are neither zero nor NaN. Look for such rows before the call:
#   [masks](masks.py#when-a-row-allows-nothing).
# - If you do not wait, you time only the start of a kernel. Call `torch.accelerator.synchronize()` before you look at
#   the clock.
#
# ### Hidden waits
#
# On an NVIDIA GPU, after `torch.cuda.set_sync_debug_mode("error")` most operations that make the processor wait raise
# an error; those of `torch.distributed` and `torch.sparse` do not. Without a GPU, listen for the usual operators that
# ask for it:


# %% tags=["hide-output"]
waiting = "_local_scalar_dense", "nonzero", "_nested_tensor_from_mask"


class Waits(TorchDispatchMode):
    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        name = call.overloadpacket.__name__
        places = args[1] if name == "index" else []
        by_mask = any(i is not None and i.dtype == torch.bool for i in places)
        if by_mask or name in waiting:
            found.append(name)  # an if, an int() or .item(); a size
        return call(*args, **kwargs or {})


def waits(function):
    found.clear()
    with torch.no_grad(), Waits():
        function()
    return len(found)


torch.manual_seed(0)
found, x = [], torch.randn(2, 9, 16)
future = torch.nn.Transformer.generate_square_subsequent_mask(9)
layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
encoder = torch.nn.TransformerEncoder(layer, 2)
waits(lambda: encoder(x, mask=future))

# %% tags=["check"]
torch.manual_seed(1)
real = torch.ones(2, 9, dtype=torch.bool)
cutting, keeping = (
    torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
    for nested in (True, False)
)
module = torch.nn.MultiheadAttention(16, 4, batch_first=True)
number = {
    "encoder": waits(lambda: encoder(x, mask=future)),
    "told": waits(lambda: encoder(x, mask=future, is_causal=True)),
    "padded": waits(lambda: cutting(x, src_key_padding_mask=~real)),
    "kept": waits(lambda: keeping(x, src_key_padding_mask=~real)),
    "module": waits(
        lambda: module(x, x, x, key_padding_mask=~real, attn_mask=future < 0)
    ),
    "layer": waits(lambda: layer(x, src_mask=future)),
    "any": waits(lambda: bool(real.any())),
    "longest": waits(lambda: int(real.sum(1).max())),
    "index": waits(lambda: x[real]),
    "where": waits(lambda: torch.where(real[..., None], x, 0)),
    "lengths": waits(lambda: masks.cu_seqlens(real.int())),
}

# %% tags=["claims"]
assert number["encoder"] == 1 and not number["told"], (
    "nn.TransformerEncoder compares a mask with the causal one, and waits"
)
assert number["padded"] and not number["kept"], (
    "it also waits to cut padding away, unless it was made with enable_nested_tensor=False"
)
assert not number["module"] and not number["layer"], (
    "nn.MultiheadAttention and the single encoder layer ask for nothing"
)
assert all(number[each] for each in ("any", "longest", "index", "lengths")), (
    "Yours wait at if mask.any(), int(lengths.max()), x[mask] and masks.cu_seqlens"
)
assert not number["where"], "torch.where does not"

# %% [markdown]
# `nn.TransformerEncoder` compares a mask with the causal one, and waits, unless you say `is_causal`, true or false. In
# evaluation without gradients it also waits to cut padding away, unless it was made with `enable_nested_tensor=False`.
# `nn.MultiheadAttention` and the single encoder layer ask for nothing. Yours wait at `if mask.any()`,
# `int(lengths.max())`, `x[mask]` and `masks.cu_seqlens`; `torch.where` does not. Make lengths once for a batch, on the
# processor, before its tensors travel.
#
# ### A step that waits for Python
#
# You see it by a time that does not grow with the work: above, a step with the library's cache takes hardly longer
# after thirty times as many tokens. The GPU idles between kernels, and a faster one would not help. Two things do:
#
# - **Start fewer things.** `torch.compile(step, mode="reduce-overhead")` records a step as a CUDA graph and starts it
#   as one, if the compiler can take all of it. A graph wants the same addresses and shapes each time: a cache that is
#   allocated once, and its length in a tensor, not in Python.
# - **Do more in each step**: more texts in the batch, or several drafted words to [check in one
#   pass](serving.py#a-draft-is-a-tree). That costs next to nothing until the GPU, not Python, is the slower one.
#
# ## Your own column
#
# ```sh
# python -m unmasked_lessons.measure
# ```
#
# It runs the kernels, the calls and the comparison with float64 on the best device that it finds, but neither the
# window nor the steps of writing, and prints its times beside the record's. `--json FILE` keeps them. Its last line
# says what your device leaves out. On an Apple or Intel GPU it is most or all kernels by name, because PyTorch may take
# a name there and run another kernel; on Apple's it is also the memory, whose peak is not counted. On a CPU the amber
# bars have other reasons: there it is above all dropout that loses the fused kernel.
#
# ## What to read next
#
# - [Which kernel ran, and what did it cost?](kernels.py) The same questions on a CPU, and to your own tensors.
# - [Why is no N x N matrix needed?](tiles.py) How a fused kernel does without it.
# - [How do I use FlexAttention, and is my mask_mod right?](flex.py) What a window costs on a CPU, too.
