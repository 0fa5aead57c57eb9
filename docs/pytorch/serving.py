# %% [markdown]
# # How does a server share one cache among many texts?
#
# **It cuts the memory into pages and keeps a table for each text, which names the pages of that text: texts that begin
# alike name the same pages.** Drafts of the coming words begin alike, too: a tree of them is checked in one pass, and
# what is refused is forgotten. The mistakes below raise no error, but put the logits off by this share of their size:
#
# {{ plot.table(["What is wrong", "Off by"], rows, "{:.0%}").markdown() }}
#
# *Computed with torch {{ torch.__version__.split("+")[0] }} on the {{ x.device.type.upper() }}.*
#
# **You should know** [what a KV cache keeps](cache.py), and [what a mask is](masks.py). **You will know** how pages are
# found, shared and copied, the mask of a tree, the rule by which a drafted word stays, what a draft can read of the
# large model, and a test for all of it.

# %% tags=["imports"]
from itertools import takewhile

import torch
import torch.nn.functional as F

from unmasked import CausalSelfAttention, attend, masks, plot
from unmasked.heads import merge_heads, split_heads
from unmasked.positions import Rotary
from unmasked_lessons.experiments import serving as experiments

# %% [markdown]
# ## Memory in pages
#
# A server does not know how long a text will become. Memory for the longest text that is allowed would mostly stay
# empty. So the server cuts one large memory, the *pool*, into pages of a few tokens each, and gives a page to a text
# when it needs one. The list of a text's pages, in the order of its words, is its *block table*.
#
# Here is a model of two layers with random weights, and what it computes without any cache:

# %%
torch.set_grad_enabled(False)  # nothing is trained here
torch.manual_seed(0)
options = {"num_heads": 4, "num_kv_heads": 2, "rotary": Rotary(6)}
layers = [CausalSelfAttention(24, 24, **options) for _ in range(2)]
for weight in (p for layer in layers for p in layer.parameters()):
    weight *= 2  # so that much depends on attention
vectors = torch.randn(17, 24) / 3  # one for each of 17 words


def features(words, depth=2):  # texts tokens
    x = vectors[words]
    for layer in layers[:depth]:
        x = x + layer(x)
    return x


def alone(words, depth=2):
    return features(words, depth) @ vectors.T  # a score for each word


# %% [markdown]
# And here is the same model with a pool. A token's *slot* is its number in the memory of its text. Divided by the
# length of a page, it says which entry of the table to look up; the remainder says where in that page. All layers use
# the same table. One mask does everything: a query sees the slots up to its own. So it sees neither the future, nor the
# unused end of the last page, nor the pages that only pad the row of a short text.

# %%
PAGE = 4  # tokens; vLLM takes 16, SGLang 1, unless told otherwise
torch.manual_seed(0)
# layers, keys and values, pages, tokens, heads, features:
pool = torch.randn(2, 2, 64, PAGE, 2, 6)  # as earlier texts left it


def run(words, tables, start, place=None, allowed=None):
    slot = start[:, None] + torch.arange(words.size(1))  # texts tokens
    page = tables.gather(1, slot // PAGE)
    place = slot if place is None else place
    if allowed is None:
        keys = torch.arange(tables.size(1) * PAGE)
        allowed = slot[:, None, :, None] >= keys  # texts 1 tokens keys
    x = vectors[words]
    for layer, store in zip(layers, pool):
        parts = split_heads(layer.qkv(x), 8).split([4, 2, 2], dim=1)
        query, key = (layer.rotary(part, place) for part in parts[:2])
        made = torch.stack([key, parts[2]]).transpose(2, 3)
        store[:, page, slot % PAGE] = made  # 2 texts tokens heads dim
        key, value = store[:, tables].flatten(2, 3).transpose(2, 3)
        context = attend(query, key, value, allowed=allowed).context
        x = x + layer.out_proj(merge_heads(context))
    return x @ vectors.T


# %% [markdown]
# Three texts of different lengths get whatever pages are free, in any order. Each prompt is read in
# one call, and then one pass adds a word to all three. Any page may pad a shorter table, because the mask hides it:

# %%
torch.manual_seed(1)
x = torch.randint(17, (3, 10))  # texts tokens
lengths = torch.tensor([5, 9, 3])
three = torch.tensor([[7, 2, 0], [1, 5, 3], [4, 0, 0]])

for text, table, length in zip(x, three, lengths):
    run(text[None, :length], table[None], torch.tensor([0]))
newest = x.gather(1, lengths[:, None])
step = run(newest, three, lengths)[:, 0]

for text, length, scores in zip(x, lengths, step):
    by_itself = alone(text[None, : length + 1])[0, -1]
    torch.testing.assert_close(scores, by_itself, rtol=0, atol=1e-4)

# %% tags=["hide-input"]
#| caption: The first pages of the pool, after the step: whose words lie there, and which ones. Hatched places are free,
#|   and hold what earlier texts left. A text wastes at most the end of its last page.
lies, taken = experiments.pages(three, lengths + 1, PAGE)
names = [f"page {page}" for page in range(8)]
plot.grid(lies, rows=names, allowed=taken, axes=("pages", "places"))

# %% tags=["remove-cell"]
drawn = torch.Generator().manual_seed(0)
earlier = torch.randn(pool.shape, generator=drawn)

# %% tags=["claims"]
assert not (pool - earlier)[:, :, :8][:, :, ~taken].any(), (
    "Hatched places are free, and hold what earlier texts left"
)  # to the bit: nothing was written there
assert all(
    taken[table[: length // PAGE]].all()
    for table, length in zip(three, (lengths + 1).tolist())
), "A text wastes at most the end of its last page"

# %% [markdown]
# ### The kernel that takes the table
#
# `run` gathers the pages, which copies them. A kernel that takes the table reads them where they are. PyTorch has one:
# `varlen_attn` takes a `block_table`, in `int32`, and in `seqused_k` how many keys of each text count. Its pool has the
# axes (pages, tokens, heads, head_dim), as each half of ours has. It needs an NVIDIA GPU and half precision:

# %% tags=["hide-output"]
#| raises: NotImplementedError: 'CPU' backend
from torch.nn.attention.varlen import varlen_attn

query = torch.ones(3, 4, 6).bfloat16()  # texts heads head_dim: a token each
used, (keys, values) = (lengths + 1).int(), pool[0].bfloat16()
ends = torch.arange(4).int(), F.pad(used.cumsum(0), (1, 0)).int()
read = {"seqused_k": used, "block_table": three.int(), "enable_gqa": True}
varlen_attn(query, keys, values, *ends, 1, int(used.max()), **read)

# %% [markdown]
# The signature is the same from PyTorch 2.13<!--~ a version --> to 2.15<!--~ a version -->. What pages may be long
# depends on the kernel behind it. FlashAttention 2<!--~ a name -->, as PyTorch builds it, wants a multiple of 256<!--~
# its error message --> tokens, and a head_dim that is a multiple of 8<!--~ its error message -->. From PyTorch
# 2.15<!--~ read in its varlen.py --> on, cuDNN is asked first on GPUs of compute capability 9<!--~ the same --> and
# 10<!--~ the same -->. It takes pages whose length is a power of two, and steps only from its version 9.24<!--~ the
# same --> on; what it does not take goes to FlashAttention. Where CUDA is available, this project's tests compare it
# with the mask.
#
# ## Texts that begin alike
#
# Many requests begin with the same instructions. Their keys are the same, too, so the second request takes the pages of
# the first, and computes only what is its own. Only full pages are shared in this way. `known` finds a page by *all
# words from the beginning of the text to the end of the page*:

# %%
free, known = list(range(8, 64)), {}


def serve(words):
    ends = range(PAGE, len(words) + 1, PAGE)  # of its full pages
    begins = [tuple(words[:end].tolist()) for end in ends]
    table = [known[each] for each in takewhile(known.__contains__, begins)]
    table = table[: (len(words) - 1) // PAGE]  # leave one word to compute
    start = len(table) * PAGE
    table += [free.pop() for _ in range(start, len(words), PAGE)]
    rest = words[None, start:]
    scores = run(rest, torch.tensor([table]), torch.tensor([start]))[0, -1]
    known.update(zip(begins, table))
    return table, scores


for words in (x[0], torch.cat([x[0, :8], x[1, :2]])):
    table, scores = serve(words)
    by_itself = alone(words[None])[0, -1]
    torch.testing.assert_close(scores, by_itself, rtol=0, atol=1e-4)
    print(table)

# %% [markdown]
# The second text has computed two words instead of ten. The last word of a text is always computed, even if every page
# is known: pages hold keys and values, and you ask for logits.
#
# ### Same words, other keys
#
# It is tempting to find a page by its own words. But from the second layer on, the key of a word depends on the words
# before it. And rotary keys depend on the place, in all layers. Here the same page of words stands behind another
# beginning, which differs in one word, and then at the beginning of a text:

# %%
torch.manual_seed(2)
begin, page = torch.randint(16, (2, PAGE))
other = torch.cat([begin[:1] + 1, begin[1:]])
where = torch.cat([begin, page]), torch.cat([other, page]), page
served = [serve(words)[0] for words in where]
own, behind_other, first = (pool[:, 0, table[-1]] for table in served)
for keys in (behind_other, first):  # of each layer
    print([f"{experiments.off(*pair):.0%}" for pair in zip(keys, own)])

# %% [markdown]
# Behind another word, the keys of the first layer are the same, and those of the second are not. So a test with one
# layer does not find this mistake. vLLM [names a page by the hash of the page before it and of its own
# words](https://docs.vllm.ai/en/latest/design/prefix_caching/), which is as good as
# all words so far, unless two hashes are equal. Whatever else changes the keys belongs to the name, too: an adapter, or
# the image that a placeholder stands for.
#
# ### Copy on write
#
# If one text goes on in two ways, as in a beam search, both ways can name *all* of its pages, the last one included,
# which is not full. Either would then write into the other's text. So count the users of each page, and copy a shared
# one before you write to it. The last user keeps the page:

# %%
nine = x[1, :9]
table, _ = serve(nine)
users = dict.fromkeys(table, 2)  # two texts, which begin alike


def writable(table, slot):
    page = table[slot // PAGE]
    if users[page] == 1:
        return table
    copied = free.pop()
    users[page], users[copied] = users[page] - 1, 1
    pool[:, :, copied] = pool[:, :, page]
    return [copied if each == page else each for each in table]


two_ways, at_nine = torch.tensor([[3], [5]]), torch.tensor([9, 9])
tables = torch.tensor([writable(table, slot=9) for _ in range(2)])
goes_on = run(two_ways, tables, at_nine)[:, 0]

two_alone = alone(torch.cat([nine.expand(2, -1), two_ways], dim=1))[:, -1]
torch.testing.assert_close(goes_on, two_alone, rtol=0, atol=1e-4)
shared = run(two_ways, tables[[0, 0]], at_nine)[:, 0]  # not copied

# %% tags=["claims"]
assert tables[0].tolist() != tables[1].tolist() == table, (
    "The last user keeps the page"
)
assert experiments.off(behind_other[0], own[0]) < 1e-5, (
    "Behind another word, the keys of the first layer are the same"
)
assert experiments.off(behind_other[1], own[1]) > 0.05, (
    "from the second layer on, the key of a word depends on the words before it"
)
assert min(map(experiments.off, first, own)) > 0.1, (
    "And rotary keys depend on the place, in all layers"
)

# %% [markdown]
# ## A draft is a tree
#
# A step reads the model's weights, all of them or, where a word has experts, those that it is sent to, to write a
# single word. *Speculative decoding* gets more out of it: something cheap, here a small model, drafts some words, and
# the large one checks them all in one pass. A draft may have branches. They lie in one row behind the text, and share
# its cache and whatever they have in common. `parents` says which word each of them follows, and `masks.tree` lets it
# see only itself and its ancestors:

# %%
torch.manual_seed(3)
text, draft = torch.randint(17, (8,)), torch.randint(17, (6,))
parents = torch.tensor([-1, 0, 0, 1, 2, 2])
tree = masks.tree(parents, keys=8 + 6)
place = tree.sum(-1) - 1  # how many words it sees before it

table, _ = serve(text)
tables = torch.tensor([[*table, free.pop(), free.pop()]])
behind, allowed = torch.tensor([8]), F.pad(tree, (0, 2))  # of 16 slots
checked = run(draft[None], tables, behind, place, allowed)[0]

branches = ["a", "ab", "ac", "abd", "ace", "acf"]  # of words a to f
for branch, scores in zip(branches, checked):
    words = torch.cat(
        [text, draft[["abcdef".index(each) for each in branch]]]
    )
    by_itself = alone(words[None])[0, -1]
    torch.testing.assert_close(scores, by_itself, rtol=0, atol=1e-4)
print(place.tolist())

# %% tags=["hide-input"]
#| caption: Who sees whom in the draft. Under the causal mask each branch sees those that lie before it in the row;
#|   under the mask of the tree it sees its own ancestors.
among = {"causal": masks.causal(6), "tree": tree[:, 8:]}
plot.grid(among, queries=branches, keys=list("abcdef"))

# %% [markdown]
# So one pass gives each branch what it gets alone. A word has two numbers now. Its *slot* says where its key lies, and
# is counted along the row. Its *place* says where it stands in its text, and is counted by depth, so siblings have the
# same place. Rotary and learned positions need the place.

# %% tags=["claims"]
assert place[1] == place[2] and place[3] == place[4] == place[5], (
    "siblings have the same place"
)

# %% [markdown]
# ## Which words stay?
#
# With greedy decoding, a drafted word stays if the large model would have written it. If words are drawn at random, the
# large model has a distribution $p$, the *target*, and the small one has $q$, from which the draft was drawn. A word
# $w$ stays with the chance $\min(1, p(w) / q(w))$. The first that does not is replaced by a draw from the excess of $p$
# over $q$, and all words behind it are dropped. If all stay, one more is drawn from $p$, at no further cost.
#
# The text is then distributed as if the large model had written it. To prove this, draw nothing: this function returns
# the chance of each word to stay if it is drafted, and the distribution of the word that replaces a refused one:


# %%
def verify(q, p):
    stays = torch.where(p < q, p / q, 1)
    rest = (p - q).clamp(min=0)
    return stays, F.normalize(rest, p=1, dim=-1)  # zeros where p equals q


# %% [markdown]
# Now take *all* drafts of two words; the small model is the large one without its second layer. Each draft has its
# chance, and so has each way in which it can end. For each pair of words that can come out, the sum of these chances
# must be what the large model gives the pair:


# %%
def next_two(depth):  # distributions: of a word, and of one behind each
    goes_on = torch.cat([text.expand(17, -1), torch.arange(17)[:, None]], 1)
    chances = alone(goes_on, depth)[:, -2:].double().softmax(-1)
    return chances[0, 0], chances[:, 1]


(p, p_next), (q, q_next) = next_two(depth=2), next_two(depth=1)


def two_words(verify):
    (stays, rest), (also, rest_next) = verify(q, p), verify(q_next, p_next)
    first, second = q * stays, q_next * also  # drafted, and it stays
    replaced = (1 - second.sum(-1, keepdim=True)) * rest_next
    refused = (1 - first.sum()) * rest  # then the large model goes on
    return first[:, None] * (second + replaced) + refused[:, None] * p_next


wanted = p[:, None] * p_next
torch.testing.assert_close(two_words(verify), wanted)

# %% tags=["check"]
kept, kept_next = torch.minimum(p, q), torch.minimum(p_next, q_next)
written = 1 + kept.sum() + (kept * kept_next.sum(-1)).sum()
anew = two_words(lambda q, p: (verify(q, p)[0], p))
sharper = two_words(lambda q, p: verify(F.normalize(q**2, p=1, dim=-1), p))
astray = [(each - wanted).abs().sum() / 2 for each in (anew, sharper)]

# %% [markdown]
# Nothing was drawn, and yet all 289<!--= wanted.numel() --> chances agree. A pass writes {{ written :.1f}} words on
# average, of three at most. Two slips would still write fluent texts, but not those of the large model. If a refused
# word is replaced by any draw from $p$, {{ astray[0] :.0%}} of the chance lies at wrong pairs of words. And if $q$ is
# not the distribution that the draft was drawn from, here a sharper one, it is {{ astray[1] :.0%}}. So apply
# temperature, top-k and all the rest before you compare $p$ and $q$. If several words were drawn from $q$ for one
# place, as in a tree, try one after the other: when one is refused, what $p$ has more of than $q$, scaled to a sum of
# one, takes the place of $p$.
#
# ## What was refused must go
#
# The pass has stored the keys of all drafted words. Those that were refused must be forgotten, in every layer: with a
# `KVCache` by `cache.crop(length)`, with pages by counting on from the words that stay. In a tree the words that stay
# do not lie side by side, so move their keys first:

# %%
path = torch.tensor([0, 2, 4])  # ace
old, new = 8 + path, 8 + torch.arange(3)  # slots
lay, lie = tables[0, old // PAGE], tables[0, new // PAGE]
pool[:, :, lie, new % PAGE] = pool[:, :, lay, old % PAGE]

word = torch.tensor([[5]])
goes_on = run(word, tables, behind + 3)[0, 0]
by_itself = alone(torch.cat([text, draft[path], word[0]])[None])[0, -1]
torch.testing.assert_close(goes_on, by_itself, rtol=0, atol=1e-4)

# %% [markdown]
# A page that is `known` belongs to all. So make it known only when its words are final, or others get keys of refused
# words.
#
# A ring, which keeps only the last words, cannot go back once it is full: the draft has overwritten what it needs.
# `KVCache` says so; [elsewhere the keys were silently wrong](https://github.com/ml-explore/mlx-lm/pull/1486). Keep a
# copy from before the draft, and feed it the words that stay. Or make the ring longer than the window, by the length of
# a draft, and let a mask hide the rest. [What replaces the matrix](linear.py) in some layers of newer models, a memory
# of fixed size, [cannot go back either](linear.py#what-a-hybrid-keeps-and-how-it-goes-back). Nor can a text begin there
# with another's pages, unless a copy of the memory was kept from the place where these pages end.
#
# So servers of such hybrids keep copies of the state where a text may begin or go back to. vLLM has three ways for its
# Mamba layers, by `mamba_cache_mode`: none, without shared prefixes; `align`, its default with them, keeps the state at
# the end of a step if a page ends there; `all` keeps one for each page. A state is as large as the keys of many words,
# so vLLM makes the pages of the attending layers longer, until both need equally many bytes. (Read in its
# `config/cache.py`, not tried.) A text then shares only what ends at a copy, in *all* of its layers.
#

# %% tags=["hide-output"]
#| raises: ValueError: crop to 0, or make the cache without a window
ring = layers[0].cache(1, max_tokens=20, window=4)
layers[0](vectors[text][None], cache=ring)
layers[0](vectors[draft][None], cache=ring)
ring.crop(8 + 1)

# %% [markdown]
# ## A draft that reads features
#
# **Of two drafts of one size, one that reads what the large model has computed guesses better than one that reads words
# alone, and none of its mistakes shows in the text: fewer words stay.** So count them. EAGLE and the multi-token
# prediction of DeepSeek-V3<!--~ a name --> draft in this way, by one more layer. Beside each word it reads the large
# model's *features* of the word *before*, the numbers of which that word was chosen, and it guesses the features of the
# word itself. (EAGLE-3<!--~ a name --> reads those of three layers, and need not guess them.) Behind the words that it
# drafts itself there are no features yet, so it reads its own guesses.
#
# `write` drafts three words, checks them in one pass, and goes on with those that stay. It takes only *their* features
# over, for those of a refused word go, as its keys do. Words are drawn, and the noise of the draw is fixed for each
# place, so the text is the same however it is written:

# %%
torch.manual_seed(5)
noise = -torch.empty(51, 17).exponential_().log()


def draws(seen, place):  # one word for each row of features
    return (seen @ vectors.T + noise[place : place + len(seen)]).argmax(-1)


def write(words, guess):
    seen, passes = features(words[None])[0], 0
    words = torch.cat([words, draws(seen[-1:], len(words))])
    while len(words) < 48:
        drafted = words
        for _ in range(3):
            newest = guess(seen[None], drafted[None])[0, -1:]
            seen = torch.cat([seen, newest])
            drafted = torch.cat([drafted, draws(newest, len(drafted))])
        seen, passes = features(drafted[None])[0], passes + 1
        right = draws(seen[len(words) - 1 :], len(words))
        stays = right[:-1] == drafted[len(words) :]
        words = torch.cat([words, right[: stays.cumprod(0).sum() + 1]])
        seen = seen[: len(words) - 1]
    return words, passes


# %% [markdown] tags=["check"]
# Both drafts have the same layers. They learn for a hundred steps to give the large model's features and its scores,
# and the second one is given zeros in place of features.


# %% tags=["check"]
def learned(reads):
    torch.manual_seed(4)
    mix, own = torch.nn.Linear(48, 24), CausalSelfAttention(24, 24, **options)
    parameters = [*mix.parameters(), *own.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01)

    def guess(seen, words):  # the features before each word, and the word
        x = mix(torch.cat([reads * seen, vectors[words]], dim=-1))
        return x + own(x)

    for _ in range(100):
        words = torch.randint(17, (8, 24))
        seen = features(words)
        with torch.enable_grad():
            found = guess(seen[:, :-1], words[:, 1:])
            pairs = (
                (x @ vectors.T).log_softmax(-1) for x in (found, seen[:, 1:])
            )
            apart = F.kl_div(*pairs, reduction="batchmean", log_target=True)
            loss = F.mse_loss(found, seen[:, 1:]) + apart / found.size(1)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
    return guess


by_features, by_words = learned(1), learned(0)
guesses = {
    "each word, and the features before it": (
        lambda seen, words: by_features(seen, words[:, 1:])
    ),
    "words alone": lambda seen, words: by_words(seen, words[:, 1:]),
    "each word, and its *own* features": (
        lambda seen, words: by_features(seen, words[:, :-1])
    ),
}
beginnings = torch.randint(17, (5, 8))
written = {
    name: [write(words, guess) for words in beginnings]
    for name, guess in guesses.items()
}
one_by_one = []
for words in beginnings:
    for at in range(8, 48):
        seen = features(words[None])[0, -1:]
        words = torch.cat([words, draws(seen, at)])
    one_by_one.append(words)
a_pass = {
    name: sum(len(words) - 9 for words, _ in each)
    / sum(passes for _, passes in each)
    for name, each in written.items()
}
most, middle, least = a_pass.values()

# %% tags=["hide-input", "any-version"]
#| caption: How many words of a text one pass of the large model writes, out of four, by what the draft reads.
plot.table(
    ["The draft reads", "Words a pass"],
    [[name, f"{count:.1f}"] for name, count in a_pass.items()],
)

# %% [markdown]
# All of them write the text that the large model writes alone, word by word. The last row is the same draft, fed
# wrongly: each word comes with its own features, so the draft never reads the newest word. No test of the text finds
# this slip. A test for a draft counts the words that stay, on a text that is known.

# %% [markdown]
# ## The check for your own tests
#
# `serve(words)` stands for your server: it returns the logits behind a text. `alone(words)` computes the same without
# any cache. The texts begin alike, or differ early, late, or in their place, and are served in two orders:


# %%
def what_is_shared_changes_nothing(serve, alone, vocabulary, page):
    torch.manual_seed(0)
    long = torch.randint(vocabulary - 1, (3 * page + 1,))
    early, late = long.clone(), long.clone()
    early[0] += 1
    late[-2] += 1
    texts = [long, early, late, long[page:], long[: 2 * page], long]
    for words in texts + texts[::-1]:
        right = alone(words)
        near = 1e-5 * right.abs().max().item()
        torch.testing.assert_close(serve(words), right, rtol=0, atol=near)


what_is_shared_changes_nothing(
    lambda words: serve(words)[1],
    lambda words: alone(words[None])[0, -1],
    vocabulary=17,
    page=PAGE,
)

# %% [markdown]
# It fails if the name of a page leaves out a word or the place. A fork or a draft needs a test of its own: compare what
# is written behind it with the same text, written alone.

# %% tags=["check"]
unhidden = torch.ones(1, 1, 1, three.size(1) * PAGE, dtype=torch.bool)
seen = run(newest, three, lengths, allowed=unhidden)[:, 0]
misled = torch.tensor([[served[1][0], served[0][1], free[0]]])
named = run(word, misled, behind)[0, 0]
whole = alone(torch.cat([where[1], word[0]])[None])[0, -1]
by_causal = run(draft[None], tables, behind, place)[0]
by_row = run(draft[None], tables, behind, allowed=allowed)[0]
run(draft[None], tables, behind, place, allowed)
after = run(word, tables, behind + 6)[0, 0]
pairs = {
    "the end of a page [is seen](#memory-in-pages)": (seen, step),
    "a page goes [by its own words](#same-words-other-keys)": (named, whole),
    "a shared page [is not copied](#copy-on-write)": (shared, two_alone),
    "a tree has [the causal mask](#a-draft-is-a-tree)": (by_causal, checked),
    "its places are counted along the row": (by_row, checked),
    "refused words [stay](#what-was-refused-must-go)": (after, goes_on),
}
rows = [[name, experiments.off(*pair)] for name, pair in pairs.items()]

# %% tags=["claims"]
assert all(
    words[:48].equal(right)
    for each in written.values()
    for (words, _), right in zip(each, one_by_one)
), (
    "All of them write the text that the large model writes alone, word by word"
)
assert most > middle + 0.1 > least + 0.3, (
    "one that reads what the large model has computed guesses better than one that reads words alone"
)
assert all(share > 0.02 for _, share in rows), (
    "The mistakes below raise no error"
)

# %% [markdown]
# ## Exercises
#
# Each exercise has a name in brackets. Import `check` from `unmasked_lessons.exercises` and run
# `print(check("tree-mask", answer))`: it tells you whether you are right, and usually what went wrong. [How to do the
# exercises](../install.md#do-the-exercises).
#
# **The mask of a tree** (`tree-mask`). Write a function of `parents`, a list with the place of each word's parent in
# the row, or minus one for none. It returns the boolean mask among the words of the tree, `True` for *may attend*.
#
# ??? question "Hint"
#
#     A word sees what its parent sees, and itself. Parents stand before their children.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def tree_mask(parents):
    allowed = torch.eye(len(parents), dtype=torch.bool)
    for word, parent in enumerate(parents):
        if parent >= 0:
            allowed[word] |= allowed[parent]
    return allowed


feedback = check("tree-mask", tree_mask)
assert feedback
feedback

# %% [markdown]
# ## What to read next
#
# - [Is my KV cache right?](cache.py), for the cache of one text, and for rings.
# - [How do I pack several texts into one sequence?](packing.py) Many texts in one row, for training.
#
# ## References
#
# <!--~ 2023, 2024, 4.1, 4.4, 4.2, 2.3, 2, 3.1: references -->
# - Kwon et al. (2023), *Efficient Memory Management for Large Language Model Serving with PagedAttention*: sections 4.1
#   and 4.4, pages, and pages that are shared.
# - Leviathan, Kalman and Matias (2023), *Fast Inference from Transformers via Speculative Decoding*: section 2.3, which
#   words stay.
# - Chen et al. (2023), *Accelerating Large Language Model Decoding with Speculative Sampling*: algorithm 2, the same.
# - Li et al. (2024), *EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty*: section 3.1, a draft that
#   reads features, each beside the word that was drawn of them.
# - Miao et al. (2024), *SpecInfer: Accelerating Large Language Model Serving with Tree-based Speculative Inference and
#   Verification*: section 4.2, the mask of a tree.
