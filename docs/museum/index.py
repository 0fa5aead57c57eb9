# %% [markdown]
# # Would your tests notice? The museum of mistakes
#
# **Not if they look only at shapes, nor if they run at sizes that hide the mistake.** Below, 14<!--= len(WRONG) -->
# wrong versions of causal attention all pass a test of shape, finiteness and repeatability. On a single token,
# 12<!--= len(hidden["one token"]) --> of them even give the numbers of the right version. But none passes four checks
# at sizes that all differ.
#
# The museum has 66<!--= len(ENTRIES) --> mistakes. Each runs beside the right version, with what it looks like, what it
# does to the numbers, where it hides, what finds it, and the fix. Some words: an *item* is one sequence of a batch; a
# mask's *polarity* is what its `True` means; *parity* is agreement with PyTorch; a *cache* keeps the keys and values of
# earlier tokens.
#
# Find your mistake by what you see. The two maps on a card show what the wrong and the right line do: rows are outputs,
# columns are changed tokens, and a cell is filled where the output moved. Amber is wrong, teal is right, and a cross
# stands for NaN. Where no map can show the mistake, the card shows the wrong line.

# %% tags=["hide-input"]
import inspect

import torch
import torch.nn.functional as F

from unmasked import plot
from unmasked_doctor import probes
from unmasked_doctor.museum import ENTRIES as ENTRIES  # the prose asks them
from unmasked_lessons.exercises.museum import index as exercises
from unmasked_lessons.exercises.museum.index import WRONG, right
from unmasked_lessons.experiments.gallery import pairs
from unmasked_lessons.figures.gallery import Gallery, Rooms

# batch, tokens, heads, head_dim: all differ, none is one
B, N, H, D = 2, 6, 3, 4


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(9))


x = draw(B, N, H * D)
both = pairs(x, H)
maps = {slug: both[slug]["wrong"] for slug in WRONG}
maps["right"] = both["no-causal-mask"]["right"]
Gallery(both)

# %% [markdown]
# **You should know** [what attention computes](../learn/attention.py), and [masks](../pytorch/masks.py) and
# [heads](../pytorch/heads.py). **You will know** what a test of attention must ask, and where to look up what it finds.
#
# ## A test that passes everything
#
# The wrong versions are causal self-attention in several heads, without learned matrices, with one step replaced in
# each. Their lines are in the fold at the section's end, where `s` are the scores, `seen` is the causal mask, `c` the
# context, `h` the heads and `n` their number.

# %% tags=["check", "no-snippet"]
source = inspect.getsource(exercises)
start = source.index("WRONG:")
print(source[start : source.index("\n}\n", start) + 2])

# %% [markdown]
# This is a usual test: run it, look at the shape, look for NaN.


# %%
def usual_test(f, x):
    output = f(x)
    return (
        output.shape == x.shape
        and output.isfinite().all()
        and torch.allclose(f(x), output, atol=1e-5)
    )


usual = sum(
    bool(usual_test(lambda x, f=f: f(x, H), x)) for f in WRONG.values()
)
assert usual == len(WRONG)

# %% [markdown]
# Comparing with the right version is better, unless the sizes hide the mistake. How many of the wrong versions give the
# right numbers?

# %%
sizes = {
    "one token": (B, 1, H, D),
    "one head": (B, N, 1, D),
    "one item": (1, N, H, D),
    "a head_dim of one": (B, N, H, 1),
    "heads = head_dim": (B, N, 3, 3),
    "all differ": (B, N, H, D),
}
hidden = {}
for name, (batch, tokens, heads, head_dim) in sizes.items():
    small = draw(batch, tokens, heads * head_dim)
    expected = right(small, heads)
    hidden[name] = [
        slug
        for slug, f in WRONG.items()
        if not probes.differs(f(small, heads), expected)
    ]
for name, slugs in hidden.items():
    print(f"{name}: {len(slugs)}", *slugs[:3])

# %% [markdown]
# A single token hides nearly all of them, because it can only attend to itself. One head hides
# three<!--= len(hidden["one head"]) -->, and one item two<!--= len(hidden["one item"]) -->. At sizes that all differ
# none hides.

# %% tags=["claims"]
assert usual == len(WRONG), (
    "14 wrong versions of causal attention all pass a test of shape"
)
assert len(WRONG) > len(hidden["one token"]) > 0.8 * len(WRONG), (
    "A single token hides nearly all"
)
assert not hidden["all differ"], "At sizes that all differ none hides"

# %% [markdown]
# ## Who reaches whom
#
# You can see what a mistake does without reading its code. Change one token, and note how far each output moves: a row
# for each output, a column for each changed token.

# %%
shown = [
    "no-causal-mask",
    "mask-polarity",
    "merge-without-transpose",
    "view-without-transpose",
    "mask-after-softmax",
]
maps = {slug: torch.tensor(maps[slug]) for slug in ["right", *shown]}

# %% tags=["hide-input"]
#| alt: Six heat maps, a row for each output, a column for each changed token. Right: zero above the diagonal. Without a
#|   causal mask no cell is zero. With the other polarity only the diagonal, what is above it and the last row are not
#|   zero. Merged without transposing back, and split by a view, late tokens reach early outputs here and there. Masked
#|   after the softmax, the cells above the diagonal are small, and yet not zero.
#| caption: Who reaches whom, in the right version and in {{ len(maps) - 1 }} wrong ones.
figure = plot.heatmap(maps)
for axes in figure.axes[: len(maps)]:
    axes.set(
        xlabel=axes.get_xlabel() and "changed token",
        ylabel=axes.get_ylabel() and "output of token",
    )
figure

# %% [markdown]
# The right version is zero above the diagonal: no output notices a later token. All others shown break this rule, each
# in its own pattern.

# %% tags=["remove-cell"]
bare, turned, late = (maps[slug] for slug in (shown[0], shown[1], shown[-1]))
future = {slug: each.triu(1).max().item() for slug, each in maps.items()}

# %% tags=["claims"]
assert future["right"] < 1e-6, "Right: zero above the diagonal"
assert (bare > 1e-4).all(), "Without a causal mask no cell is zero"
assert turned.tril(-1)[:-1].max() < 1e-6 < turned[-1].min(), (
    "what is above it and the last row are not zero"
)
assert (late > 1e-4).all() and late.triu(1).sum() < late.tril(-1).sum(), (
    "the cells above the diagonal are small, and yet not zero"
)
assert not probes.sees_the_future(lambda x: right(x, H), x), (
    "The right version is zero above the diagonal: no output notices"
)
assert min(future[slug] for slug in shown) > 0.01, (
    "All others shown break this rule"
)

# %% [markdown]
# ## Four checks that none passes
#
# Three of these checks only call the function, so they work even on code that you cannot read. The fourth compares it
# with PyTorch's function, one head at a time.


# %%
def unlike_pytorch(f, x):
    heads = [
        F.scaled_dot_product_attention(part, part, part, is_causal=True)
        for part in x.chunk(H, dim=-1)
    ]
    return probes.differs(f(x), torch.cat(heads, dim=-1))


checks = {
    # change a token: no earlier output may move
    "future": probes.sees_the_future,
    # change a batch item: no other may move
    "items": probes.mixes_items,
    # equal tokens: their average is the token
    "average": probes.is_no_average,
    "equality": unlike_pytorch,
}
assert not any(probe(lambda x: right(x, H), x) for probe in checks.values())

found = {}
for slug, f in WRONG.items():
    found[slug] = [
        name
        for name, probe in checks.items()
        if probe(lambda x, f=f: f(x, H), x)
    ]
survivors = [slug for slug, names in found.items() if not names]
assert not survivors

# %% tags=["hide-input", "any-version"]
marks = [
    (slug, *("found" if name in names else "" for name in checks))
    for slug, names in found.items()
]
plot.table(["", *checks], marks)

# %% [markdown]
# The comparison finds all of them, but it needs to know what is right: the weights, and where each belongs. The other
# three checks find 11<!--= sum(len(names) > 1 for names in found.values()) --> of the 14<!--= len(WRONG) -->. What they
# miss, another scale or another number of heads, is attention, too, only not the attention that was meant. The
# [doctor](../doctor.py) asks these questions, and many more, of your module. What breaks no promise it names apart, as
# a difference.

# %% tags=["claims"]
assert not survivors, "But none passes four checks at sizes that all differ"
assert all("equality" in names for names in found.values()), (
    "The comparison finds all of them, but it needs to know what is right"
)

# %% [markdown]
# ## All rooms

# %% tags=["hide-input"]
Rooms()

# %% [markdown]
# ## Exercises
#
# [Do the exercises](../install.md#do-the-exercises) with `print(check("test-of-your-own", answer))`.
#
# **A test of your own** (`test-of-your-own`). Write `my_test(f)` for a function of `x`, (batch, tokens, features):
# causal self-attention in three heads, without learned matrices. Your test must fail (by an `assert`, or `False`) for
# every wrong version, and pass for right ones, which may differ by rounding.
#
# ??? question "Hint"
#
#     One comparison is enough, at good sizes: with PyTorch's function, one head at a time.

# %% tags=["solution"]
from unmasked_lessons.exercises import check


def my_test(f):
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1))
    parts = [
        F.scaled_dot_product_attention(part, part, part, is_causal=True)
        for part in x.chunk(3, dim=-1)
    ]
    torch.testing.assert_close(f(x), torch.cat(parts, dim=-1))


check("test-of-your-own", my_test)

# %% [markdown]
# **Which mistake?** (`which-mistake`) `unmasked_lessons.exercises.museum.mysteries()` returns
# three<!--= len(exercises.mysteries()) --> functions of `x`, with as many heads as above, each wrong in one of the ways
# above. Name their mistakes without reading their code: answer with a list of names from the table, such as
# `"missing-scale"`, in the order of the functions.
#
# ??? question "Hint"
#
#     Which checks find it? Compare it with the wrong versions that remain.

# %% tags=["solution"]
named = []
for mystery in exercises.mysteries():
    evidence = [name for name, probe in checks.items() if probe(mystery, x)]
    (slug,) = [
        s
        for s, f in WRONG.items()
        if found[s] == evidence and not probes.differs(mystery(x), f(x, H))
    ]
    named.append(slug)

check("which-mistake", named)

# %% [markdown]
# ## What to read next
#
# - The rooms: [heads](heads.py), [masks](masks.py), [weights](weights.py), [computation](computation.py),
#   [models](models.py).
# - [Is my module right? The doctor](../doctor.py) finds these mistakes in your code, and uses the names that they have
#   here.
#
# ## References
#
# <!--~ 2017, 3.2, 1978: references -->
# - Vaswani et al. (2017), *Attention Is All You Need*: section 3.2, what all versions here should compute.
# - DeMillo, Lipton and Sayward (1978), *Hints on Test Data Selection: Help for the Practicing Programmer*: a test is as
#   good as the wrong programs that it rejects.
