# %% [markdown]
# # How do I pack several texts into one sequence?
#
# **Give attention a mask that lets each token see only its own document: the packed sequence then gives each document
# what it gets alone.** A causal mask lets a document see all those before it, and starting the positions anew in each
# document does not change that:
#
# {{ plot.table(["Three documents, packed with", "Off from each alone", "The second sees the first"],
# rows).markdown() }}
#
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# **You should know** [what a mask is](masks.py). **You will know** the mask of packed documents, what positions and
# labels need, the cumulative lengths that fast kernels take, and a test that shows whether documents see each other.

# %% tags=["imports"]
import logging
import warnings

import torch
import torch.nn.functional as F

from unmasked import attend, masks, plot
from unmasked.positions import Rotary
from unmasked_lessons.experiments import packing as experiments
from unmasked_lessons.figures.atlas import Atlas

# %% tags=["remove-cell"]
atlas = Atlas()
logging.disable(logging.WARNING)  # of kernels that PyTorch does not take
warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")

# %% tags=["hide-input"]
#| caption: Who sees whom among {{ len(gallery["causal"]) }} tokens of three documents. The causal mask alone lets the
#|   last token see everything; with the mask of documents it sees its own document.
lengths = [3, 4, 2]
ids = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])  # the document of each token
gallery = {
    "causal": masks.causal(9),
    "documents": masks.documents(ids),
    "both": masks.combine(masks.causal(9), masks.documents(ids)),
}
plot.grid(gallery, queries=ids.tolist())

# %% tags=["claims"]
assert gallery["causal"][-1].all() and gallery["both"][-1].equal(ids == 2), (
    "The causal mask alone lets the last token see everything; with the mask of documents it sees its own document"
)

# %% [markdown]
# ## Packed, and each alone
#
# Texts differ in length, so a batch of them has padding. Much training code therefore lays several texts end to end in
# one sequence, and marks with an id which tokens belong together. Here are two heads with rotary positions, and the
# documents of the figure:

# %%
torch.manual_seed(1)
x = torch.randn(2, 9, 8)  # heads tokens head_dim
rotary = Rotary(8)


def attention(x, positions, allowed=None):
    query = key = rotary(x, positions)
    return attend(query, key, x, allowed=allowed, is_causal=True).context


alone = torch.cat(
    [
        attention(part, torch.arange(part.size(1)))
        for part in x.split(lengths, dim=1)
    ],
    dim=1,
)
packed = attention(x, torch.arange(9), masks.documents(ids))
torch.testing.assert_close(packed, alone)

# %% tags=["check"]
run_on, anew = torch.arange(9), torch.tensor([0, 1, 2, 0, 1, 2, 3, 0, 1])
apart = masks.documents(ids)
late = masks.documents(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2]))
ways = {
    "causal mask": (run_on, None),
    "causal mask, positions begin anew": (anew, None),
    "document mask": (run_on, apart),
    "document mask, positions begin anew": (anew, apart),
    "document mask, one token late": (run_on, late),
}


def shown(gap):
    return f"{gap:.2f}" if gap > 1e-5 else "0"


first_changed = x + (ids == 0)[:, None]
off, crossed = {}, {}
for name, way in ways.items():
    outputs = attention(x, *way)
    moved = (attention(first_changed, *way) - outputs)[:, ids == 1]
    off[name] = (outputs - alone).abs().max().item()
    crossed[name] = moved.abs().max().item() > 1e-5
rows = [
    [name, shown(off[name]), "yes" if crossed[name] else "no"]
    for name in ways
]

# %% [markdown]
# `masks.documents(ids)` hides no future; `is_causal=True` does that, and the two combine. In a batch, ids have the axes
# (batch, tokens), and the mask gets an axis for heads. Treat padding at the end of a row as one more document: give it
# an id of its own, and leave its outputs out of the loss.
#
# A document is a *run* of equal ids. Some packers use an id again, and two runs with one id are two documents, though
# many masks on the web, written as `ids[:, None] == ids`, take them for one.

# %% tags=["claims"]
assert not crossed["document mask"] and off["document mask"] < 1e-5, (
    "the packed sequence then gives each document what it gets alone"
)
assert crossed["causal mask"], (
    "A causal mask lets a document see all those before it"
)
assert crossed["causal mask, positions begin anew"], (
    "and starting the positions anew in each document does not change that"
)
assert apart[0, 2], "masks.documents(ids) hides no future"
assert masks.documents(ids[None]).shape == (1, 1, 9, 9), (
    "and the mask gets an axis for heads"
)
assert not masks.documents(torch.tensor([5, 7, 5]))[2, 0], (
    "two runs with one id are two documents"
)

# %% [markdown]
# ## Where do positions begin?
#
# New positions for each document say where a token stands, not what it may see: with them alone, the causal mask is
# still wrong, as people [have measured](https://github.com/huggingface/nanoVLM/pull/204) in their own training code.
# With the right mask in place, what is left to do depends on the kind of positions. (A RoPE of the kinds `dynamic` and
# `longrope`, whose speeds depend on the last position, must begin anew, too.)

# %% tags=["hide-input", "any-version"]
#| caption: How far the outputs of packed documents, with the mask of documents, lie from those of each document alone.
#|   RoPE depends on offsets, which stay the same; sinusoids and learned tables must begin anew.
ways_to_place = {"RoPE": attention, "sinusoids": experiments.with_sinusoids}
kinds = experiments.gaps(ways_to_place, x, lengths)
plot.table(
    ["off by", "positions run on", "positions begin anew"],
    {name: [*map(shown, gaps)] for name, gaps in kinds.items()},
)

# %%
ends = masks.cu_seqlens(ids)
runs = masks.ids_from_cu_seqlens(ends)  # an id may come back
positions = torch.arange(9) - ends[runs]
print(positions.tolist())

# %% tags=["claims"]
assert off["causal mask, positions begin anew"] > 0.1, (
    "with them alone, the causal mask is still wrong"
)
assert kinds["RoPE"][0] < 1e-5 < kinds["sinusoids"][0], (
    "RoPE depends on offsets, which stay the same; sinusoids and learned tables must begin anew"
)

# %% [markdown]
# ### Models of transformers: some, and on conditions
#
# Many models of transformers make the mask of documents by themselves, from positions that begin anew: {{
# atlas.count("packs") }} of the {{ len(atlas.asked("packs")) }} in [the atlas](atlas.py) that take positions. Whether
# one does depends on the model, on its implementation, and on what else you pass:
#
# | Positions begin anew, and | `sdpa`, `eager`, FlexAttention | FlashAttention |
# | --- | --- | --- |
# | no `attention_mask`, `use_cache=False` | apart | apart |
# | a cache, which is the default, or a mask of ones | they see each other | apart |
# | several rows in the batch | apart | they see each other |
# | the model is gpt-oss, OPT or BLOOM | they see each other | see [the atlas](atlas.py) |
# | some layers carry a state: Qwen3-Next, Mamba-2<!--~ a name --> | they see each other, by the state | the same |
#
# None of these raises an error. The project's tests hold transformers 5.24<!--~ the version that was seen --> to the
# table, with random weights, and with FlashAttention's kernels replaced by the formula. Of its 232<!--~ counted in the
# sources --> files of models that make masks, 72<!--~ counted in the sources --> do not pass the positions on to each;
# most of those are encoders, gpt-oss is not. FlashAttention reads the positions itself, in each layer, and only if the
# batch has one row. So change one document and look at the others, as the check at the end does, or pass a mask of four
# axes.
#
# ### What their `attention_mask` means
#
# A mask of two axes, (batch, tokens so far), says which *tokens* are real: ones, zeros for padding. The model makes of
# it what its implementation takes, and a decoder adds the causal mask. A mask of four axes, (batch, heads or one,
# queries, keys), is handed on *as it is*, and replaces the causal mask. For a text that is read at once, this is what
# arrives in Llama:
#
# | You give | `sdpa` gets | `eager` gets | FlashAttention gets |
# | --- | --- | --- | --- |
# | nothing, or ones | `None`, and is causal by itself | numbers to add | `None`, and is causal by itself |
# | zeros for padding | booleans, causal and real | numbers to add | your mask |
# | four axes | your mask | your mask | your mask |
#
# FlexAttention gets a `BlockMask`. It adds your mask of four axes as `eager` does, but uses the first head's for all;
# and compiled for a CPU, that [ends the process](flex.py#what-a-rule-captures). Five mistakes with these masks give
# wrong numbers, and no error:
#
# - Two axes of numbers to add, zero and minus infinity: whatever is not zero counts as real, so it is the *padding*
#   that the model reads.
# - Four axes of booleans for `eager` or FlexAttention: they are [added as ones and zeros, and hide
#   nothing](https://github.com/huggingface/transformers/pull/41443). For `sdpa` they are right.
# - Four axes of ones and zeros as floats: they are
#   [added](https://github.com/huggingface/transformers/issues/46458) in all three.
# - Four axes with the padding alone: each token sees the future.
# - In a step with a cache, a mask of the new token alone: it is taken for the first token's, and all other tokens are
#   hidden, the new one too.
#
# The project's tests hold a random Llama of transformers 5.24<!--~ the version that was seen --> to all of this.

# %% [markdown]
# ## A prefix that sees itself
#
# Some parts of a text may be read in both directions: a prompt in a *prefix LM*, or the patches of one image among the
# words of Gemma 3<!--~ a name -->. That is the opposite of a document: tokens of one part see each other, *as well as*
# all that came before. So the part is added to the causal mask, where a document is cut out of it:

# %%
part = torch.tensor([-1, 0, 0, 0, -1, -1, 1, 1, -1])  # two images
within = (part[:, None] == part) & (part >= 0)
allowed = masks.causal(9) | within

at_once = attend(x, x, x, allowed=allowed).context
cut = [attend(x[:, :3], x[:, :3], x[:, :3], allowed=allowed[:3, :3])]
first_image = slice(1, 3)  # the image ends at token 3, which came later
gap = (cut[0].context - at_once[:, :3])[:, first_image].abs().max()

# %% [markdown]
# Three traps come with it, which need not raise an error. `is_causal=True` beside this mask hides the part's future
# again. A prompt that is read in chunks must not be cut within a part: its first tokens would be read before its last
# ones are there, here off by {{ gap :.2f}}. And a mask of documents beside it has to hold for parts, too:
# `masks.documents(ids) & allowed`. For Gemma 3<!--~ a name --> transformers makes this mask from `token_type_ids`, and
# adds a part to the window of near layers as well, so that a token may see more keys than the window has.

# %% tags=["claims"]
assert atlas.share("packs") > 0.5, (
    "Many models of transformers make the mask of documents by themselves, from positions that begin anew"
)
assert gap > 0.1, (
    "its first tokens would be read before its last ones are there"
)
assert not (masks.combine(allowed, masks.causal(9)) & within).triu(1).any(), (
    "is_causal=True beside this mask hides the part's future again"
)

# %% [markdown]
# ## The loss crosses the border, too
#
# A decoder is trained to predict the next token. At the end of a document, the next token belongs to another document.
# No attention mask changes that, so replace the label by the value that the loss ignores.

# %%
words = torch.tensor([11, 12, 13, 21, 22, 23, 24, 31, 32])
labels = words.roll(-1)
labels[ends[1:].long() - 1] = -100  # F.cross_entropy ignores it
print(labels.tolist())

# %% tags=["check"]
unshifted = words.clone()
unshifted[ends[:-1].long()] = -100

# %% [markdown]
# Decoders of transformers such as Llama shift the labels on their own; `BartForCausalLM` does not. Where they are
# shifted, give the words themselves as labels, with -100 at the first token of each document.

# %% tags=["claims"]
assert torch.nn.CrossEntropyLoss().ignore_index == labels[2], (
    "so replace the label by the value that the loss ignores"
)
assert unshifted.roll(-1).equal(labels), (
    "give the words themselves as labels, with -100 at the first token of each document"
)

# %% [markdown]
# ## Cumulative lengths, both ways
#
# A mask of (tokens, tokens) grows with the square of the tokens. Kernels for varying lengths take `cu_seqlens` instead.
# All tokens lie along one axis, and `cu_seqlens` has a zero and then the place where each document ends, in
# `int32`<!--= str(ends.dtype).removeprefix("torch.") -->.

# %%
ends = masks.cu_seqlens(ids)  # from ids
longest = int(ends.diff().max())
print(ends.tolist(), longest)
print(masks.ids_from_cu_seqlens(ends).tolist())  # and back

# %% [markdown]
# Three documents need only four numbers. A list of lengths becomes
# `F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int()`<!--~ a call -->. FlashAttention's kernels do not check these
# numbers: a list without the zero, or counted from one, silently moves the borders. The table at the top shows what a
# shift by one token does.

# %% [markdown]
# ## `varlen_attn`: on a GPU
#
# PyTorch's kernel for varying lengths is `torch.nn.attention.varlen.varlen_attn`, in half precision. Its inputs have
# the axes (tokens, heads, head_dim), and `window_size=(-1, 0)`<!--~ a constant --> makes it causal. It does not run on
# a CPU, where it raises `NotImplementedError`:

# %% tags=["hide-output"]
#| raises: NotImplementedError: 'CPU' backend
from torch.nn.attention.varlen import varlen_attn

tokens_first = x.transpose(0, 1).bfloat16()  # tokens heads head_dim
varlen_attn(
    *[tokens_first] * 3, ends, ends, longest, longest, window_size=(-1, 0)
)

# %% [markdown]
# On an NVIDIA GPU it gives what the mask gives. Where CUDA is available, this project's tests compare the two for whole
# documents, causal ones, and windows. A batch is flattened first, `x.flatten(0, 1)`<!--~ a call -->: `masks.cu_seqlens`
# lets each of its rows begin a new document, even if the ids go on.

# %% tags=["claims"]
assert masks.cu_seqlens(ids.new_zeros(2, 3)).tolist() == [0, 3, 6], (
    "masks.cu_seqlens lets each of its rows begin a new document, even if the ids go on"
)

# %% [markdown]
# ## Nested tensors
#
# A nested tensor of the layout `torch.jagged` keeps documents of different lengths as a batch, and is made from the
# same cumulative lengths. `F.scaled_dot_product_attention` takes it:

# %%
tokens_first = x.transpose(0, 1).contiguous()  # tokens heads head_dim
nested = torch.nested.nested_tensor_from_jagged(tokens_first, ends)
nested = nested.transpose(1, 2)  # documents heads tokens head_dim
each = F.scaled_dot_product_attention(nested, nested, nested)
by_mask = attend(x, x, x, allowed=masks.documents(ids)).context
flat = each.transpose(1, 2).values().transpose(0, 1)
torch.testing.assert_close(flat, by_mask)

# %% [markdown]
# On a CPU, `is_causal=True` raises a `RuntimeError`. What it says depends on how PyTorch was built: without CUDA, "No
# viable backend for scaled_dot_product_attention was found"; with CUDA but without a driver, "CUDA driver version is
# insufficient", since the last kernel it asks is cuDNN's. On a GPU there is a kernel that can:

# %%
try:
    F.scaled_dot_product_attention(nested, nested, nested, is_causal=True)
except RuntimeError as error:
    no_kernel = str(error)
else:
    raise AssertionError("nested tensors on a CPU take is_causal=True")

# %% tags=["claims"]
assert "No viable backend" in no_kernel or "CUDA driver" in no_kernel, (
    "On a CPU, is_causal=True raises a RuntimeError"
)

# %% [markdown]
# ## Which one to take
#
# | You have | Take | It holds |
# | --- | --- | --- |
# | a CPU, or short sequences | `masks.documents` | a mask of (tokens, tokens) |
# | a GPU, half precision | `varlen_attn`, with `masks.cu_seqlens` | no mask |
# | a GPU, rules of your own | FlexAttention, with the ids | blocks |
#
# The page about [FlexAttention](flex.py) packs documents, and says what happens when their ids change.

# %% [markdown]
# ## The check for your own tests
#
# Change one document, and look at the others. They stay exactly the same, because what is hidden has a weight of zero.


# %%
def test_documents_do_not_meet():
    torch.manual_seed(0)
    x = torch.randn(2, 9, 8)
    before = attention(x, positions, masks.documents(ids))
    for document in ids.unique():
        own = ids == document
        changed = x.clone()
        changed[:, own] += 1
        after = attention(changed, positions, masks.documents(ids))
        assert torch.equal(after[:, ~own], before[:, ~own])
        assert not torch.equal(after[:, own], before[:, own])


test_documents_do_not_meet()

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("packed-causal", answer))`.
#
# **The mask of a packed decoder** (`packed-causal`). Write `packed(ids)`, with ids of the axis (tokens). It returns the
# boolean mask, `True` for *may attend*: a token sees its own document, and no later token. An id may come back.
#
# ??? question "Hint"
#
#     Where does an id differ from the one before it? Count such places up to each token.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def packed(ids):
    begins = torch.ones_like(ids)
    begins[1:] = ids[1:] != ids[:-1]
    run = begins.cumsum(0)
    place = torch.arange(len(ids))
    return (run[:, None] == run) & (place[:, None] >= place)


feedback = check("packed-causal", packed)
assert feedback
feedback

# %% [markdown]
# **From lengths to cumulative lengths** (`cumulative-lengths`). Write a function of a tensor of lengths that returns
# what the kernels take.
#
# ??? question "Hint"
#
#     There is one number more than there are documents. Mind the dtype.


# %% tags=["solution"]
def cumulative(lengths):
    return F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


feedback = check("cumulative-lengths", cumulative)
assert feedback
feedback

# %% [markdown]
# **Positions that begin anew** (`restarted-positions`). Write `restarted(ids)`, with ids of the axis (tokens), that
# gives each token its place in its own document, without a loop.
#
# ??? question "Hint"
#
#     The place where the document of a token began is the largest beginning so far: `torch.cummax`.


# %% tags=["solution"]
def restarted(ids):
    place = torch.arange(len(ids))
    begins = torch.ones_like(ids, dtype=torch.bool)
    begins[1:] = ids[1:] != ids[:-1]
    return place - torch.where(begins, place, 0).cummax(0).values


feedback = check("restarted-positions", restarted)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [Long contexts](long.py): windows, sinks, and FlexAttention, whose masks need no matrix.
# - [Which RoPE is mine?](positions.py), for positions.
# - [How does a server share one cache?](serving.py) Many texts that are being written, in pages.
# - The museum's [packed documents](../museum/models.py#packed-without-documents), with the line that is wrong.
# - [What does each interface make of my mask?](masks.py), for padding.
#
# ## References
#
# <!--~ 2021: references -->
# - Krell et al. (2021), *Efficient Sequence Packing without Cross-contamination*: masks and positions of packed texts.
