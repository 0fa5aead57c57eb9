# %% [markdown]
# # How do I use FlexAttention, and is my mask_mod right?
#
# **Write the rule as a function, make its block mask for as many texts and heads as the rule asks about, and compile
# the call. Then compare two things: the rule with a mask that you trust, and the tiles with the rule.** The outputs of
# a call that is not compiled check the rule alone, because such a call never looks at the tiles:
#
# {{ plot.table(["Two packed texts, and their block mask", "Off by, compiled", "Off by, not compiled"],
# mistakes).markdown() }}
#
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ query.device.type.upper() }}.* Only what is said
# here of compiled calls comes from a record, made on a CPU with PyTorch {{ record["torch"] }}, because no page of this
# site compiles anything.
#
# **You should know** what a [mask](masks.py) and a [kernel](kernels.py) are. **You will know** when FlexAttention is
# worth it, which rules it cannot read, what happens to tensors that a rule captures, and two checks for your own rules.

# %% tags=["imports"]
import warnings

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import (
    AuxRequest,
    create_block_mask,
    create_mask,
    flex_attention,
)

from unmasked import attend, masks, plot
from unmasked.positions import alibi, alibi_slopes
from unmasked_lessons.measure import recorded

# %% tags=["remove-cell"]
warnings.filterwarnings("ignore", "flex_attention called without")
record = recorded("flex")
names = {
    "as it should be": "made for both texts",
    "tiles of the first text": "made for the first text alone",
    "ids changed since": "made before the ids of the texts changed",
}


def shown(error):
    return f"{error:.1f}" if error > 1e-4 else "0"


mistakes = [
    [name, *map(shown, record["errors"][case])]
    for case, name in names.items()
]

# %% [markdown]
# ## When to reach for it
#
# | You need | Take |
# | --- | --- |
# | no mask, or the causal one | `F.scaled_dot_product_attention` with `is_causal` |
# | a window or documents in a long text, on a GPU, or for inference on a CPU | FlexAttention, compiled |
# | ALiBi, a soft-cap, a bias that is learned, on a GPU | FlexAttention, compiled |
# | no rule, a short text, gradients on a CPU or an Apple GPU | `F.scaled_dot_product_attention` with the mask |
#
# A rule that only hides pays where it hides most of the matrix. Here is what a window of {{ record["window"] }} keys
# costs on a CPU, in a text of 8,192<!--= max(map(int, record["costs"])) --> tokens:

# %% tags=["hide-input", "any-version"]
#| caption: Time and memory of one call, from the record: {{ record["measured"] }}, {{ record["threads"] }} threads,
#|   8<!--~ the record's --> heads of 64<!--~ the record's --> features in float32. Compare the rows with each other,
#|   not the digits with those of another machine.
longest = record["costs"][max(record["costs"], key=int)]
plot.table(
    ["A window in a long text", "ms", "MiB"],
    [
        [name, f"{ms:,.0f}", f"{mib:,.1f}"]
        for name, (ms, mib) in longest.items()
    ],
)

# %% [markdown]
# The compiled call needs a twelfth of the time of plain causal attention, which does far more arithmetic, and a
# sixteenth of the time of the same window as a mask. On an {{ gpu["device"] }} the three take {{
# gpu["window"]["FlexAttention"] :.2f}}, {{ gpu["window"]["SDPA, causal, no window"] :.2f}} and {{
# gpu["window"]["SDPA, the window as a mask"] :.2f}} ms, also for 512<!--~ the record's --> keys of
# 8,192<!--~ the record's -->.
#
# Without `torch.compile`, the call makes the whole matrix of scores several times over, and is by far the slowest. Use
# it for trying things out on small inputs, as this page does, and nowhere else. To compile for a CPU, PyTorch needs a
# C++ compiler, such as `g++`, and the first call takes seconds.

# %% tags=["check"]
gpu = recorded()
ms = {name: cost[0] for name, cost in longest.items()}
mib = {name: cost[1] for name, cost in longest.items()}
flex, causal = ms["FlexAttention"], ms["SDPA, causal, no window"]

# %% tags=["claims"]
assert 11 < causal / flex < 13, (
    "The compiled call needs a twelfth of the time of plain causal attention"
)
assert 15 < ms["SDPA, the window as a mask"] / flex < 17, (
    "a sixteenth of the time of the same window as a mask"
)
assert ms["FlexAttention, not compiled"] > 4 * max(
    time for name, time in ms.items() if name != "FlexAttention, not compiled"
), "and is by far the slowest"
assert mib["FlexAttention, not compiled"] > 3 * (8 * 8192**2 * 4 / 2**20), (
    "the call makes the whole matrix of scores several times over"
)

# %% [markdown]
# ## Two functions
#
# A `mask_mod` says who may see whom, and a `score_mod` changes a score. Both are asked about one pair at a time: which
# text of the batch, which head, which query, which key. Here are documents that are packed into two texts, with the
# slopes of ALiBi, one for each of four heads:

# %%
torch.manual_seed(1)
query = torch.randn(2, 4, 9, 16)  # texts heads tokens head_dim
key, value = torch.randn(2, 2, 2, 9, 16)  # two heads of keys and values
ids = torch.tensor([[0, 0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 2, 2]])
slopes = alibi_slopes(4)


def own_document(batch, head, query, key):
    return (ids[batch, query] == ids[batch, key]) & (query >= key)


def nearer(score, batch, head, query, key):
    return score - slopes[head] * (query - key)


blocks = create_block_mask(own_document, 2, None, 9, 9, device="cpu")
by_flex = flex_attention(
    query, key, value, nearer, block_mask=blocks, enable_gqa=True
)

# %% [markdown]
# The library's `attend` gives the same, of a mask and a bias, both as matrices:

# %%
trusted = masks.documents(ids) & masks.causal(9)
ours = attend(query, key, value, allowed=trusted, bias=alibi(4, 9)).context
torch.testing.assert_close(by_flex, ours)

# %% [markdown]
# With `enable_gqa=True`, several query heads share a head of keys, and `head` counts the *query* heads: `slopes` has
# four entries, not two.
#
# PyTorch runs these functions on all pairs at once, so their arguments are tensors from which no single value can be
# read. Python's `and`, `or`, `not`, `if`, and a chain such as `0 <= query - key < 3` all ask for one, and raise a
# `RuntimeError`. Write `&`, `|`, `~` and `torch.where` instead:

# %% tags=["hide-output"]
#| raises: RuntimeError: data-dependent control flow
create_mask(
    lambda batch, head, query, key: 0 <= query - key < 3, 1, 1, 9, 9, "cpu"
)

# %% tags=["check"]
unreadable = {
    "and": lambda b, h, i, j: i >= j and i - j < 3,
    "or": lambda b, h, i, j: i < j or i - j > 3,
    "not": lambda b, h, i, j: not i < j,
    "if": lambda b, h, i, j: i >= j if h == 0 else i <= j,
}


def refused(rule):
    try:
        create_mask(rule, 1, 1, 9, 9, "cpu")
    except RuntimeError as error:
        return "data-dependent control flow" in str(error)
    return False


# %% tags=["claims"]
assert all(map(refused, unreadable.values())), (
    "all ask for one, and raise a RuntimeError"
)
assert len(slopes) == query.size(1) == 2 * key.size(1) == 4, (
    "slopes has four entries, not two"
)
assert torch.allclose(by_flex, ours, atol=1e-5), (
    "and head counts the query heads"
)

# %% [markdown]
# ## The first check: the rule against a mask
#
# Nothing says whether a rule is the one you meant. Exchange `query` and `key`, and the past is hidden instead of the
# future, without an error. `create_mask` turns a rule into a matrix that you can compare with one you trust:

# %%
made = create_mask(own_document, 2, 1, 9, 9, device="cpu")
assert torch.equal(made, trusted)


def exchanged(batch, head, key, query):
    return own_document(batch, head, query, key)


made = create_mask(exchanged, 2, 1, 9, 9, device="cpu")
print(int((made != trusted).sum()), "pairs are wrong")

# %% [markdown]
# `masks.mask_mod` goes the other way: it makes a function of a matrix, for masks that follow no rule. It keeps the
# whole matrix, so it saves time and no memory.

# %%
looked_up = create_mask(masks.mask_mod(trusted), 2, 1, 9, 9, device="cpu")
assert torch.equal(looked_up, trusted)

# %% [markdown]
# ## The second check: the tiles against the rule
#
# A block mask divides the matrix into tiles, usually of 128<!--= blocks.BLOCK_SIZE[0] --> queries and keys, and keeps
# lists of two kinds: tiles of which the rule allows all, and tiles of which it allows some. The kernel computes a tile
# of the first kind without asking the rule, asks it in a tile of the second kind, and never visits any other.

# %% tags=["hide-input"]
#| caption: The documents of the first text, the tiles of three that the kernel visits for them, and those that it
#|   visits in the second text. With a block mask of the first text alone, it visits the same tiles in both.
tiles = create_block_mask(own_document, 2, None, 9, 9, "cpu", BLOCK_SIZE=3)
visited = tiles.to_dense()[:, 0].bool()  # texts rows columns, of tiles
visited = visited.repeat_interleave(3, 1).repeat_interleave(3, 2)
plot.grid(
    {
        "own document, first text": trusted[0, 0],
        "tiles, first text": visited[0],
        "tiles, second text": visited[1],
    },
    queries=range(9),
)

# %% [markdown]
# So the lists are a second copy of the rule, made once, for a number of texts and heads. If you pass `None` for the
# texts, as most examples do, they hold for the first text, and the kernel takes them for all. The same goes for the
# heads. So a rule that asks about `batch` needs the number of texts, and one that asks about `head` the number of
# heads. No error says so, and the call that is not compiled gives the right numbers, as the table at the top shows.
# Compare the lists themselves:


# %%
LISTS = "kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"


def tiles_follow(blocks, rule, texts, heads):
    queries, keys = blocks.seq_lengths
    device, size = blocks.kv_indices.device, blocks.BLOCK_SIZE
    fresh = create_block_mask(
        rule, texts, heads, queries, keys, device, BLOCK_SIZE=size
    )
    pairs = [(getattr(blocks, x), getattr(fresh, x)) for x in LISTS]
    return all(torch.equal(a.expand_as(b), b) for a, b in pairs)


small = create_block_mask(own_document, 2, None, 9, 9, "cpu", BLOCK_SIZE=3)
for_one = create_block_mask(
    own_document, None, None, 9, 9, "cpu", BLOCK_SIZE=3
)
print(tiles_follow(small, own_document, 2, 4))
print(tiles_follow(for_one, own_document, 2, 4))

# %% tags=["check"]
blind_to_tiles = flex_attention(
    query, key, value, nearer, block_mask=for_one, enable_gqa=True
)
both = record["errors"]["tiles of the first text"]


def wider(batch, head, query, key):
    return (query - key).abs() <= 3 * head


one_head, four_heads = (
    create_block_mask(wider, None, heads, 9, 9, "cpu", BLOCK_SIZE=3)
    for heads in (None, 4)
)

# %% tags=["claims"]
assert torch.allclose(blind_to_tiles, ours, atol=1e-5), (
    "The outputs of a call that is not compiled check the rule alone"
)
assert max(record["errors"]["as it should be"]) < 1e-5 > both[1], (
    "and the call that is not compiled gives the right numbers"
)
assert both[0] > 0.1, "the kernel takes them for all"
assert tiles_follow(for_one, own_document, 1, 4), (
    "they hold for the first text"
)
assert tiles_follow(small, own_document, 2, 4) and not (
    tiles_follow(for_one, own_document, 2, 4)
), "Compare the lists themselves"
assert tiles_follow(four_heads, wider, 1, 4) and not (
    tiles_follow(one_head, wider, 1, 4)
), "The same goes for the heads"
assert tiles_follow(small, own_document, 2, 4) and (
    tiles_follow(four_heads, wider, 1, 4)
), (
    "a rule that asks about batch needs the number of texts, and one that asks about head the number of heads"
)
assert not visited[0].equal(visited[1]), "it visits the same tiles in both"

# %% [markdown]
# ## What a rule captures
#
# `ids` and `slopes` are not arguments: the functions *capture* them. What happens when they change after the call was
# compiled depends on what they are:
#
# | Captured | Then it changes |
# | --- | --- |
# | a tensor | the next call uses its new numbers, in the tiles that it visits |
# | a tensor that the block mask was made from | the tiles stay those of the old numbers: make the block mask anew |
# | an integer of the enclosing function | one more kernel is compiled, which then takes every integer |
# | a floating-point number of that function | on a CPU the next call raises an error: capture a tensor |
# | a global integer, or an `nn.Module`'s | each new number compiles a kernel, up to eight; then none is compiled |
# | a parameter | on a CPU the compiled call raises an error, except within `torch.no_grad()` |
#
# Look up a captured tensor by all its axes at once, `bias[query, key]`. Written as `bias[query][key]`, the rule is
# right without `torch.compile`. Compiled for a CPU, it reads memory that is not its own, and can end the process, with
# *double free or corruption* or worse: seen with PyTorch 2.13<!--~ measured --> and, since a model of transformers adds
# a mask of four axes in this way, with `attn_implementation="flex_attention"`, too.
#
# The second row is the last one of the table at the top. It happens where each step writes the ids of its batch into
# the same tensor, beside a block mask that was made once.
#
# The error of the last row does not name its reason: `tuple index out of range`. Without `torch.compile`
# a captured parameter does get its gradient, even on a CPU, while queries, keys and values that require one are
# refused:

# %% tags=["hide-output"]
#| raises: NotImplementedError: does not support backward on CPU
learned = slopes.clone().requires_grad_()


def learned_nearer(score, batch, head, query, key):
    return score - learned[head] * (query - key)


out = flex_attention(query, key, value, learned_nearer, enable_gqa=True)
out.sum().backward()
print(learned.grad is not None)
flex_attention(query.clone().requires_grad_(), key, value, enable_gqa=True)

# %% tags=["check"]
refusals = record["refused"]
changed = record["errors"]["ids changed since"]

# %% tags=["claims"]
assert changed[0] > 0.1 > 1e-5 > changed[1], (
    "a tensor that the block mask was made from the tiles stay those of the old numbers"
)
assert record["kernels"]["tensor"] == 1, (
    "a tensor the next call uses its new numbers, in the tiles that it visits"
)
assert record["kernels"]["number"] == 2, (
    "an integer of the enclosing function one more kernel is compiled, which then takes every integer"
)
assert record["kernels"]["global"] == 4 and (
    torch._dynamo.config.recompile_limit == 8
), "each new number compiles a kernel, up to eight; then none is compiled"
assert refusals["another number"], (
    "a floating-point number of that function on a CPU the next call raises an error: capture a tensor"
)
assert "tuple index out of range" in refusals["parameter"], (
    "The error of the last row does not name its reason: tuple index out of range"
)
assert learned.grad is not None and learned.grad.abs().min() > 0, (
    "a captured parameter does get its gradient, even on a CPU"
)

# %% [markdown]
# ## Decoding: made once, and sliced
#
# A block mask is made for one size. When a model writes token by token, the mask of the whole text is refused by an
# error that begins with "block_mask was created for". Up to PyTorch 2.13 it is a `ValueError`, and from 2.14 on a
# `RuntimeError`:

# %%
newest = query[:, :, -1:]
try:
    flex_attention(newest, key, value, block_mask=blocks, enable_gqa=True)
except (ValueError, RuntimeError) as error:
    too_long = error
else:
    raise AssertionError("it took the block mask of another size")

# %% [markdown]
# The message offers to crop the mask. That keeps its upper left corner, as if the newest token stood at the beginning.
# Instead take the row of tiles in which the token stands, and count the query from its place. Then the mask is made
# only once, for the whole text. `place` is a tensor that each step fills anew, so that one kernel serves all steps. For
# a number, PyTorch would compile two, or one for each step. All rows look at the same `place`, so use each before you
# make the next.

# %%
place = torch.zeros((), dtype=torch.long)


def decoding(blocks, at):
    def shifted(batch, head, query, key):
        return blocks.mask_mod(batch, head, query + place, key)

    place.fill_(at)
    row = blocks[:, :, at // blocks.BLOCK_SIZE[0]]
    row.mask_mod, row.seq_lengths = shifted, (1, blocks.seq_lengths[1])
    return row


step = flex_attention(
    newest, key, value, block_mask=decoding(small, 8), enable_gqa=True
)
whole = attend(query, key, value, allowed=trusted).context
torch.testing.assert_close(step, whole[:, :, -1:])

# %% tags=["check"]
corner = create_mask(own_document, 1, None, 1, 9, device="cpu")[0, 0]
rows = [decoding(small, at) for at in range(9)]
decoded = [
    flex_attention(*given, block_mask=decoding(small, at), enable_gqa=True)
    for at in (0, 2, 3, 7)
    for given in [(query[:, :, at : at + 1], key, value)]
]

# %% tags=["claims"]
assert str(too_long).startswith("block_mask was created for"), (
    "by an error that begins with block_mask was created for"
)
assert type(too_long) is (
    ValueError if torch.__version__ < "2.14" else RuntimeError
), "Up to PyTorch 2.13 it is a ValueError, and from 2.14 on a RuntimeError"
assert corner.nonzero().tolist() == [[0, 0]], (
    "That keeps its upper left corner, as if the newest token stood at the beginning"
)
assert all(
    row.to_dense()[:, 0, 0].equal(small.to_dense()[:, 0, at // 3])
    for at, row in enumerate(rows)
), "Instead take the row of tiles in which the token stands"
assert torch.allclose(
    torch.cat(decoded, dim=2), whole[:, :, [0, 2, 3, 7]], atol=1e-5
), "Then the mask is made only once, for the whole text"
assert record["kernels"] == {"number": 2, "tensor": 1, "global": 4}, (
    "so that one kernel serves all steps. For a number, PyTorch would compile two, or one for each step"
)

# %% [markdown]
# ## Sinks, by the log-sum-exp
#
# A learned [sink](long.py#two-things-called-sink) $b$ is one more score in each softmax, so a `score_mod` alone cannot
# add it. But the sink only enlarges the sum by which all weights of a row are divided. With $\ell$ for the logarithm of
# the sum without it, the context $o$ shrinks by a factor, the sigmoid of $\ell - b$:
#
# $$z_i = \frac{e^{\ell_i}}{e^{\ell_i} + e^b} \, o_i, \qquad \ell_i = \log \sum_{j=1}^{n} e^{s_{ij}}$$
# <!-- where: q, k, v = random("n d", "n d", "n m"); b = 0.7; s = q @ k.mT / d**0.5; ell = s.logsumexp(-1)
# o = attend(q, k, v).context; z = attend(q, k, v, sinks=torch.tensor(b)).context -->

# %%
sinks = torch.tensor([-1.0, 2.0, 0.5, -3.0])  # one for each query head
out, aux = flex_attention(
    query,
    key,
    value,
    block_mask=blocks,
    enable_gqa=True,
    return_aux=AuxRequest(lse=True),
)
sunk = torch.sigmoid(aux.lse - sinks[:, None])[..., None] * out
eager = attend(query, key, value, allowed=trusted, sinks=sinks).context
torch.testing.assert_close(sunk, eager)

# %% [markdown]
# `return_lse=True`, which older code has, gives the same with a `FutureWarning`. Compiled for a CPU, neither works: the
# error says that `return_lse` is not supported. There, put a key of zeros in front, with a value of zeros, and let a
# `score_mod` give it the sink as its score. That is one term more in the softmax, and it compiles:


# %%
def sunk_score(score, batch, head, query, key):
    return torch.where(key == 0, sinks[head], score)


def one_key_later(batch, head, query, key):
    return (key == 0) | own_document(batch, head, query, (key - 1).clamp(0))


longer = create_block_mask(one_key_later, 2, None, 9, 10, device="cpu")
front = [F.pad(x, (0, 0, 1, 0)) for x in (key, value)]
by_key = flex_attention(
    query, *front, sunk_score, block_mask=longer, enable_gqa=True
)
torch.testing.assert_close(by_key, eager)

# %% tags=["check"]
with warnings.catch_warnings(record=True, action="always") as told:
    _, lse = flex_attention(
        query, key, value, block_mask=blocks, enable_gqa=True, return_lse=True
    )

# %% tags=["claims"]
assert FutureWarning in {each.category for each in told} and (
    torch.allclose(lse, aux.lse, atol=1e-6)
), "gives the same with a FutureWarning"
assert "`return_lse` is not supported" in refusals["log-sum-exp"], (
    "the error says that return_lse is not supported"
)
assert max(record["errors"]["a sink as a key"]) < 1e-5, (
    "That is one term more in the softmax, and it compiles"
)

# %% [markdown]
# ## What the block mask costs
#
# `create_block_mask` first makes the whole matrix, and the sums over its tiles: {{ per_pair :.0f}} bytes for each pair
# of a query and a key. At 8,192<!--= max(map(int, record["costs"])) --> tokens that takes {{ made_in / flex :.0f}}
# times as long as the attention itself, and {{ mib["create_block_mask"] :.0f}} MiB. A layer that makes it in each call
# has lost most of what FlexAttention wins. Make it once for all layers that share a rule, and for long texts compile
# it, too:
#
# ```py
# blocks = torch.compile(create_block_mask)(rule, texts, heads, n, n, device)
# ```
#
# Then no matrix is made: the same tiles take {{ ms["create_block_mask, compiled"] :.0f}} ms and
# {{ mib["create_block_mask, compiled"] :.1f}} MiB. The argument `_compile=True` does the same, with a
# `DeprecationWarning`.

# %% tags=["check"]
per_pair = mib["create_block_mask"] * 2**20 / 8192**2
made_in = ms["create_block_mask"]

# %% tags=["claims"]
assert 9 < per_pair < 11, "first makes the whole matrix"
assert made_in + flex > 0.6 * causal, (
    "A layer that makes it in each call has lost most of what FlexAttention wins"
)
assert mib["create_block_mask, compiled"] < 1, "Then no matrix is made"

# %% [markdown]
# ## Exercises
#
# Each exercise has a name in brackets. Import `check` from `unmasked_lessons.exercises` and run
# `print(check("packed-rule", answer))`: it tells you whether you are right, and usually what went wrong. [How to do
# the exercises](../install.md#do-the-exercises).
#
# **The rule of packed texts** (`packed-rule`). Write `rule_of(ids)`, with ids of (texts, tokens) that never come back.
# It returns a `mask_mod`: a token sees its own document, and no later token.
#
# ??? question "Hint"
#
#     The function that you return has four parameters, and uses three of them.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def rule_of(ids):
    def rule(batch, head, query, key):
        return (ids[batch, query] == ids[batch, key]) & (query >= key)

    return rule


feedback = check("packed-rule", rule_of)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [Long contexts](long.py): windows, sinks and soft-caps, and how each is counted.
# - [Packed sequences](packing.py): positions, labels, and kernels that take lengths instead of a rule.
# - [What does attention cost on a GPU?](gpu.py)
#
# ## References
#
# <!--~ 2024: references -->
# - Dong et al. (2024), *Flex Attention: A Programming Model for Generating Optimized Attention Kernels*.
