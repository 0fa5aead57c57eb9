# %% [markdown]
# # What replaces the N x N matrix?
#
# **A memory of fixed size, which each word reads and writes: linear attention adds to it, and the gated delta rule also
# forgets and corrects.** Three layers of four in Qwen3-Next are of this kind. A memory of fixed size cannot hold
# everything, so in such *hybrids* a few layers of plain attention stay.

# %% tags=["imports"]
import torch
import torch.nn.functional as F

from unmasked import CausalSelfAttention, attend, masks, plot
from unmasked_lessons.experiments.linear import recalled
from unmasked_lessons.figures.atlas import Atlas

# %% [markdown]
# **You should know** [what a cache keeps](cache.py), and what a matrix product is. **You will know** both rules in
# twenty lines each, what such a memory can hold, how a model that has both kinds of layers goes back in a text, and a
# test for your own: any way to cut a text into pieces must give the same.
#
# ## The brackets, moved
#
# Attention without its softmax is two products of matrices, $(Q K^\top) V$. The first has N x N numbers. But the
# brackets can be moved: $Q (K^\top V)$ is the same, and $K^\top V$ has only as many numbers as a key has features,
# times those of a value, however long the text is. Under the causal mask it becomes a sum that grows from word to word,
# the *state*.
#
# As a loop, this is all there is: it writes each pair of a key and a value into the state, and reads the state with the
# query:


# %%
def linear_loop(query, key, value):
    state = key.new_zeros(key.size(-1), value.size(-1))
    outputs = []
    for q, k, v in zip(query, key, value):
        state = state + k[:, None] * v
        outputs.append(q @ state)
    return torch.stack(outputs), state


# %% [markdown]
# In symbols, with $S_t$ for the state after word $t$ and $o_t$ for its output:
#
# $$S_t = S_{t-1} + k_t v_t^\top, \qquad o_t = S_t^\top q_t$$
# <!-- where: n = 5; t = 3; q, k, v = random("n d", "n d", "n m"); o = linear_loop(q, k, v)[0]
# S = torch.stack([linear_loop(q[:i + 1], k[:i + 1], v[:i + 1])[1] for i in range(n)]) -->
#
# A loop over words in Python leaves a GPU idle. So the text is cut into *chunks*: within a chunk the matrix is small
# enough to be made, and what came before the chunk is in the state.


# %%
def linear(query, key, value, chunk=4, state=None):
    if state is None:
        state = key.new_zeros(key.size(-1), value.size(-1))
    outputs = []
    for q, k, v in zip(*(x.split(chunk) for x in (query, key, value))):
        outputs.append(q @ state + (q @ k.mT).tril() @ v)
        state = state + k.mT @ v
    return torch.cat(outputs), state


torch.manual_seed(0)
query, key = F.normalize(torch.randn(2, 10, 8, dtype=torch.double), dim=-1)
value = torch.randn(10, 6, dtype=torch.double)
context, state = linear(query, key, value)
by_loop, _ = linear_loop(query, key, value)
torch.allclose(context, by_loop, atol=1e-9)

# %% [markdown]
# This is not just a quicker way to compute the attention of the other pages. The softmax is gone, and with it much of
# the power to pick out a single word. Nor do weights sum to one here. Katharopoulos and others, who began with this,
# map queries and keys to positive numbers and divide by the sum, so theirs do; newer models, such as Qwen3-Next, norm
# the output instead. Either way, a model has to be trained with it.
#
# ## Correct, and forget
#
# Adding has a flaw: if you write another value under the same key, a query for that key gets the sum of both. The
# *delta rule* first reads what is stored under the key, and writes only the difference. A *gate* before it lets
# everything fade, by a share that the word itself decides. With $\alpha_t$ for the gate and $\beta_t$ for how much is
# written, both between zero and one:


# %%
def gated_delta_loop(query, key, value, keep, write, state=None):
    if state is None:
        state = key.new_zeros(key.size(-1), value.size(-1))
    outputs = []
    for q, k, v, alpha, beta in zip(query, key, value, keep, write):
        state = alpha * state
        state = state + beta * k[:, None] * (v - k @ state)
        outputs.append(q @ state)
    return torch.stack(outputs), state


# %% [markdown]
# $$S_t = \alpha_t S_{t-1} + \beta_t \, k_t \left(v_t - \alpha_t S_{t-1}^\top k_t\right)^\top$$
# <!-- where: n = 5; t = 3; k, v = random("n d", "n m"); alpha, beta = torch.rand(2, n, dtype=torch.double)
# S = torch.stack([gated_delta_loop(k[:i], k[:i], v[:i], alpha[:i], beta[:i])[1] for i in range(1, n + 1)]) -->
#
# Around this rule Qwen3-Next has a short convolution, which mixes each query, key and value with those of the three
# words before, a norm and a gate on the output, and queries that are normed to length one, and divided by the root of
# the number of their features. They are left out here, and [newer
# models](models_2026.py#write-into-a-fixed-memory-kimi-linear-and-qwen35) have them in full. Mamba-2 has the gate
# without the correction, and Kimi Linear a gate for each feature of a key.
#
# In a chunk, what a word writes depends on what the words before it wrote. These are equations with a triangular
# matrix, and solving them once replaces the loop. `decay` has the product of all gates between two words:


# %%
def gated_delta(query, key, value, keep, write, chunk=4, state=None):
    if state is None:
        state = key.new_zeros(key.size(-1), value.size(-1))
    outputs = []
    pieces = (x.split(chunk) for x in (query, key, value, keep, write))
    for q, k, v, alpha, beta in zip(*pieces):
        log = alpha.log().cumsum(0)  # sums of logs: products would vanish
        decay = (log[:, None] - log).tril().exp().tril()  # words words
        since = log.exp()[:, None]  # from the beginning of the chunk
        beta = beta[:, None]
        mixed = beta * (decay * (k @ k.mT)).tril(-1)
        wanted = beta * (v - since * (k @ state))
        written = torch.linalg.solve_triangular(
            mixed, wanted, upper=False, unitriangular=True
        )
        outputs.append(since * (q @ state) + (decay * (q @ k.mT)) @ written)
        state = since[-1] * state + (decay[-1, :, None] * k).mT @ written
    return torch.cat(outputs), state


torch.manual_seed(1)
keep, write = torch.rand(2, 10, dtype=torch.double)
context, state = gated_delta(query, key, value, keep, write)
by_loop, last = gated_delta_loop(query, key, value, keep, write)
torch.allclose(context, by_loop, atol=1e-9)

# %% [markdown]
# ## What it can hold
#
# Write pairs into a memory, each a random key of length one with a random value, and ask for each of them. As many keys
# as the memory has rows could stand at right angles to each other, but random ones do not, so the answers blur:

# %% tags=["hide-input", "any-version"]
#| caption: How far the answer of a memory of {{ SIZE }} x {{ SIZE }} numbers is from the value that was written, as a
#|   share of its length, on average.
SIZE, counts = 32, [4, 8, 16, 32, 64, 128]
errors = recalled(linear, gated_delta, SIZE, counts)
means = {n: each.mean(dim=1).tolist() for n, each in errors.items()}
plot.table(
    ["Pairs", "Softmax", "Linear", "Delta rule"],
    [[str(n), *means[n]] for n in counts],
    "{:.0%}",
)

# %% [markdown]
# Softmax attention, with sharp scores, finds every value, because its cache has grown with the text. The linear memory
# blurs from the beginning. The delta rule blurs less: the newest pair is exact, and the oldest pays for it. Where a key
# comes again with another value, the linear memory answers with the sum, and the delta rule with the newest:

# %%
twice = F.normalize(torch.ones(1, 8, dtype=torch.double), dim=-1).repeat(2, 1)
ones = torch.ones(2, dtype=torch.double)
values = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.double)
print(linear(twice, twice, values)[0][-1].tolist())
print(gated_delta(twice, twice, values, ones, ones)[0][-1].tolist())

# %% tags=["claims"]
assert max(each[0] for each in means.values()) < 0.01, (
    "Softmax attention, with sharp scores, finds every value"
)
assert means[4][1] > 0.05 and means[128][1] > means[16][1] > means[4][1], (
    "The linear memory blurs from the beginning"
)
assert all(means[n][2] < means[n][1] for n in counts), (
    "The delta rule blurs less"
)
assert errors[128][2, -1] < 1e-6 < 0.5 < errors[128][2, 0], (
    "the newest pair is exact, and the oldest pays for it"
)

# %% [markdown]
# ## The trap: keys that are too long
#
# With $\beta_t$ at one, the delta rule takes away what stands under a key: all of it for a key of length one, and more
# than all of it for a longer one. What is left then has the other sign; beyond a length of the root of two, it is
# larger than what was there, and grows with every word. So the keys are normed, in Qwen3-Next as here. Without this,
# these two hundred words end in meaningless numbers:

# %%
torch.manual_seed(1)
many, ones = torch.randn(200, 8, dtype=torch.double), torch.ones(200).double()
for name, each in {"normed": F.normalize(many, dim=-1), "raw": many}.items():
    _, state = gated_delta_loop(each, each, many, ones, ones)
    print(f"{name}: largest number of the state {state.abs().max():.0e}")

# %% tags=["check"]
sizes = [
    gated_delta_loop(each, each, many, ones, ones)[1].abs().max()
    for each in (F.normalize(many, dim=-1), many)
]

# %% [markdown]
# ## What it saves
#
# The state of a layer of Qwen3-Next has 32<!--= of_state[0] --> heads of 128<!--= of_state[1] --> x 128<!--=
# of_state[2] --> numbers. A layer that attends keeps two<!--= of_word[0] --> vectors of 256<!--= of_word[1] --> numbers
# for each word, in 2<!--= of_word[2] --> heads. So the state is as large as the cache of {{ same :,}} words, and the
# cache of a long text is far larger. (The state is kept in float32, and the cache in bfloat16: in bytes, that makes
# twice as many words.)
#
# What a mask did has to be done in another way. No mask hides padding from a state: nothing may be written there, and
# nothing forgotten. Texts that are packed into one sequence need a fresh state each: a gate of zero makes one in the
# loop, but in chunks its logarithm is minus infinity, and gives NaN.
#
# ## What a hybrid keeps, and how it goes back
#
# **A hybrid such as Qwen3-Next<!--~ a name --> keeps a state and the window of its convolution, which have one size in
# a text of any length, and for each word the keys and values of its few layers that attend. Keys can be cropped; a
# state cannot, so going back takes a copy of it.** Here is a small one: a convolution over four words, the rule from
# above, and plain attention.

# %%
torch.set_grad_enabled(False)
torch.manual_seed(3)
taps, parts = torch.rand(4, 8).double(), torch.randn(8, 24).double() / 2
attention = CausalSelfAttention(8, 8, num_heads=2, dtype=torch.double)


def hybrid(x, window, state, keys):  # words features
    wide = torch.cat([window, x])
    mixed = sum(tap * wide[n : n + len(x)] for n, tap in enumerate(taps))
    query, key, value = (mixed @ parts).split(8, dim=-1)
    query, key = (F.normalize(each, dim=-1) for each in (query, key))
    gates = mixed[:, :2].sigmoid().T
    read, state = gated_delta(query, key, value, *gates, state=state)
    x = x + read
    return x + attention(x[None], cache=keys)[0], wide[len(x) :], state


def nothing():  # is kept before the first word
    window, state = (torch.zeros(n, 8).double() for n in (3, 8))
    return window, state, attention.cache(1, max_tokens=64)


# %% tags=["check"]
torch.manual_seed(4)
words = torch.randn(64, 8).double()
text, draft, newest = words[:8], words[8:12], words[12:14]
at_once, *_ = hybrid(words, *nothing())
window, state, keys = nothing()
sizes_kept, in_steps = {}, []
for word in range(64):
    made, window, state = hybrid(words[word : word + 1], window, state, keys)
    in_steps.append(made)
    counts = 2 * 8 * keys.length
    sizes_kept[word + 1] = window.numel(), state.numel(), counts

# %% tags=["hide-input", "any-version"]
#| caption: How many numbers the small hybrid keeps, part by part. The two parts of its first layer do not grow.
plot.table(
    ["Words", "Window", "State", "Keys and values"],
    [[str(n), *map(str, sizes_kept[n])] for n in (1, 8, 64)],
)

# %% [markdown]
# Now four words are drafted behind eight, and [two of them stay](serving.py#what-was-refused-must-go). The keys are
# cropped. The window and the state of before the draft are still there, since `hybrid` makes new ones; code that writes
# into its state has to clone it first. They are fed the two words once more, with keys that are cropped to eight:

# %%
window, state, keys = nothing()
_, window, state = hybrid(text, window, state, keys)
_, late_window, late_state = hybrid(draft, window, state, keys)

keys.crop(8)
_, window, state = hybrid(draft[:2], window, state, keys)
goes_on, *_ = hybrid(newest, window, state, keys)
right, *_ = hybrid(torch.cat([text, draft[:2], newest]), *nothing())
torch.testing.assert_close(goes_on, right[-2:])

# %% tags=["check"]
own_window = torch.cat([text, draft[:2]])[-3:]
gone_wrong = {}
for name, parts_kept in {
    "keys": (late_window, late_state),
    "window": (own_window, late_state),
}.items():
    keys.crop(10)
    found, *_ = hybrid(newest, *parts_kept, keys)
    gone_wrong[name] = (found - right[-2:]).norm() / right[-2:].norm()

# %% [markdown]
# If the keys alone go back, the next words are {{ gone_wrong["keys"] :.0%}} off, and if the window goes back with them,
# still {{ gone_wrong["window"] :.0%}}: no error is raised. The `crop` of transformers brings back these two (the window
# if `activate_past_recording` was called before the draft), and not the state; its cache says so by `is_croppable`, and
# [the atlas](atlas.py) measured it. To feed no word twice, vLLM keeps a state for each drafted word, and goes on from
# that of the last that stays (read in its `gdn_attn.py`, not tried). As a test, compare what is written behind a
# refused draft with the same text, read at once.
#
# ## Sparse attention: choose, then attend
#
# Another way is to keep the softmax and look at fewer words. A cheap score, for single keys or for whole blocks, says
# for each query which keys are worth a look, and attention runs over these alone.
# [DeepSeek-V3.2](models_2026.py#choose-then-attend-deepseek-v32)<!--~ its name --> chooses 2,048<!--~ its report -->
# keys for each query in this way, by small heads that share one key for each word. (They still compare every query with
# every key, only more cheaply.) As a mask this is a row with few True, and everything that the page on masks says
# holds. But it saves time only with a kernel that does not read the other keys: one that gathers the chosen ones, or
# leaves out whole blocks, as [FlexAttention](flex.py) does for blocks that are known beforehand.
#
# ### Three branches, and who chooses
#
# Native sparse attention has three ways for a query to look back: at short summaries of all blocks that are complete,
# at the single keys of a few blocks, and at the nearest keys. A gate for each, made of the query's word, says how much
# of each it takes. The first branch chooses for the second: the blocks whose summaries got the largest weights. So the
# choice costs little extra, and is trained with the first branch, since choosing itself has no gradient:


# %%
def three_branches(query, key, value, gates, block=4, best=2, window=3):
    place = torch.arange(len(query))
    full = len(query) // block  # blocks that are complete at the end
    whole = (x[: full * block] for x in (key, value))
    summaries = [x.unflatten(0, (full, block)).mean(1) for x in whole]
    done = place[:, None] >= torch.arange(1, full + 1) * block - 1
    coarse = attend(query, *summaries, allowed=done, need_weights=True)

    chosen = torch.zeros(len(query), full + 1, dtype=torch.bool)
    chosen.scatter_(1, coarse.weights.topk(best).indices, True)
    chosen[:, :full] &= done  # early words have few blocks to choose
    chosen.scatter_(1, (place // block)[:, None], True)  # and their own
    of_blocks = chosen[:, place // block] & masks.causal(len(query))
    near = masks.sliding_window(len(query), window=window)

    fine = (
        attend(query, key, value, allowed=allowed).context
        for allowed in (of_blocks, near)
    )
    branches = torch.stack([coarse.context, *fine], dim=-1)
    return (branches * gates[:, None]).sum(-1)


torch.manual_seed(2)
gates = torch.rand(10, 3, dtype=torch.double)
sparse = three_branches(query, key, value, gates)

# %% [markdown]
# A loop over words, which makes lists of keys and no mask, gives the same. The paper's model learns the summaries
# instead of taking means, lets all heads of a group choose the same blocks, and has a kernel that reads those alone;
# here the masks only show which.


# %% tags=["check"]
def average(q, keys, values):
    if not len(keys):
        return torch.zeros(value.size(1), dtype=torch.double)
    return (keys @ q / len(q) ** 0.5).softmax(0) @ values


by_words = []
for i, (q, gate) in enumerate(zip(query, gates)):
    blocks = [slice(b, b + 4) for b in range(0, i + 1, 4) if b + 4 <= i + 1]
    summed = [
        torch.stack([x[b].mean(0) for b in blocks]) if blocks else x[:0]
        for x in (key, value)
    ]
    best = (summed[0] @ q).topk(min(2, len(blocks))).indices.tolist()
    seen = {j for b in best for j in range(4 * b, 4 * b + 4)}
    seen |= set(range(i // 4 * 4, i + 1))
    fine, near = sorted(seen), list(range(max(0, i - 2), i + 1))
    parts = [average(q, *summed)]
    parts += [average(q, key[js], value[js]) for js in (fine, near)]
    by_words.append(sum(g * part for g, part in zip(gate, parts)))

# %% tags=["claims"]
assert torch.allclose(torch.stack(by_words), sparse), (
    "A loop over words, which makes lists of keys and no mask, gives the same"
)

# %% [markdown]
# ## The check for your own tests
#
# However a text is cut, the outputs must be the same, and so must the last state: in a loop, in chunks of any length,
# or with a text that goes on later. Paste this, with your function instead of `gated_delta`:


# %%
def any_cut_gives_the_same(function, *given):
    whole, last = function(*given, chunk=len(given[0]))
    for chunk in (1, 3, 4):
        outputs, state = function(*given, chunk=chunk)
        torch.testing.assert_close(outputs, whole)
        torch.testing.assert_close(state, last)
    _, state = function(*(x[:-1] for x in given))  # and then one word more
    newest, _ = function(*(x[-1:] for x in given), state=state)
    torch.testing.assert_close(newest, whole[-1:])


any_cut_gives_the_same(gated_delta, query, key, value, keep, write)

# %% tags=["check"]
import math

of_state, of_word = (32, 128, 128), (2, 256, 2)  # as in its config
same = math.prod(of_state) // math.prod(of_word)
given = query, key, value
closed = torch.where(torch.arange(10) == 6, 0, keep)
anew, _ = gated_delta_loop(*(x[6:] for x in (*given, keep, write)))
starts, _ = gated_delta_loop(*given, closed, write)
in_chunks, _ = gated_delta(*given, closed, write)

# %% tags=["claims"]
assert torch.allclose(
    linear(query, key, value)[0], linear_loop(query, key, value)[0]
) and torch.allclose(context, by_loop), (
    "However a text is cut, the outputs must be the same"
)
assert sizes[0] < 1e3 < 1e9 < sizes[1], "and grows with every word"
assert torch.allclose(torch.cat(in_steps), at_once) and all(
    each[:2] == sizes_kept[1][:2] for each in sizes_kept.values()
), "The two parts of its first layer do not grow"
assert min(gone_wrong.values()) > 0.03, "no error is raised"
assert all(
    Atlas().has(name, "crop")
    for name in ("qwen3_next", "kimi_linear", "mamba2", "jamba", "bamba")
), "its cache says so by is_croppable, and the atlas measured it"
assert torch.allclose(starts[6:], anew) and in_chunks[7:].isnan().any(), (
    "a gate of zero makes one in the loop, but in chunks its logarithm is minus infinity, and gives NaN"
)

# %% [markdown]
# ## What to read next
#
# - [How do today's models attend?](models.py), with Qwen3-Next's fourth layer.
# - [Is my KV cache right?](cache.py), for what is kept by plain attention.
# - [Why is no N x N matrix needed?](tiles.py) The softmax without the matrix, with nothing lost.
#
# ## References
#
# <!--~ 2020, 2021, 2024: references -->
# - Katharopoulos et al. (2020), *Transformers are RNNs*: linear attention and its state.
# - Schlag, Irie and Schmidhuber (2021), *Linear Transformers Are Secretly Fast Weight Programmers*: the delta rule, and
#   what a memory can hold.
# - Yang, Kautz and Hatamizadeh (2024), *Gated Delta Networks: Improving Mamba2 with Delta Rule*: both of its
#   forms.
