# %% [markdown]
# # Attention Unmasked
#
# **What each word takes from the others, and what PyTorch does with your mask: told on pages that prove what they say
# by running it.**

# %% tags=["hide-input", "no-snippet"]
#| caption: What *ship* takes from the words around it. Of the others it takes most from *crew* in one sentence, and
#|   from *order* in the other. That is attention: a weighted average.
#| script: ../src/unmasked/figures/sentence.js
#| data: sentence_data
from IPython.display import HTML

from unmasked.figures.sentence import ask

by_sea = "i must go back to my ship and to my crew"
asked = ask("ship", by_sea, "we process and ship your order")
sentences = [each.data for each in asked]
sentence_data = {"sentences": sentences, "compact": True}
alt = (
    "Arcs from the word ship to the words around it, as wide as its attention"
)
size = 'width="580" height="246"'
HTML(f'<img class="hero" src="assets/ship.svg" {size} alt="{alt}">')

# %% [markdown]
# <div class="doors" markdown>
#
# - [**Learn attention**](learn/attention.py)
#
#     Begin with *Attention in ten minutes*. You need to know some Python, and what a dot product is.
#
# - [**Find my mistake**](museum/index.py)
#
#     The museum of mistakes shows what goes wrong quietly, and the check that finds it.
#
# - [**Examine my module**](doctor.py)<!--~ link: the doctor examines -->
#
#     The doctor calls your module, names what is wrong with it, and proves it.
#
# </div>

# %% tags=["claims"]
assert asked[0].neighbor == "crew", (
    "Of the others it takes most from crew in one sentence"
)
assert asked[1].neighbor == "order", "and from order in the other"

# %% [markdown]
# ## One mask, two readings
#
# (If attention is new to you, begin with [the first page](learn/attention.py)<!--~ link: the first page of Learn -->. A
# later page explains step by step what is told here.)
#
# PyTorch has attention as a function, and as a *module*, an object that holds trained matrices of its own. A mask tells
# either of them which word may look at which. Both take the same boolean mask, and read it in opposite ways.

# %% tags=["imports"]
import torch
import torch.nn.functional as F

from unmasked import bypassed

words = ["my", "ship", "left", "port"]
x = torch.randn(4, 8, generator=torch.manual_seed(0))
mask = torch.ones(4, 4, dtype=torch.bool).tril()  # the diagonal and below

# The third input is what is averaged. Here it has ones on the diagonal and
# zeros elsewhere, so what comes out are the weights.
by_function = F.scaled_dot_product_attention(
    x, x, torch.eye(4), attn_mask=mask
)
with bypassed(torch.nn.MultiheadAttention(8, 1)) as module:
    _, by_module = module(x, x, x, attn_mask=mask)

# %% tags=["hide-input", "no-snippet"]
#| caption: The weights under this mask. To the function, True means *may look*: the first word sees only itself. To the
#|   module, True means *may not look*: the first word sees all but itself, and the last, which may see nothing, comes
#|   out as NaN, *not a number*.
from unmasked import plot

inverted = F.scaled_dot_product_attention(x, x, torch.eye(4), attn_mask=~mask)
readings = {"of the function": by_function, "of the module": by_module}
plot.grid(readings, "weights", queries=words)

# %% [markdown]
# (`bypassed` sets the module's learned matrices aside, so that both compute the same.) A NaN is easy to notice. The
# opposite mistake is not: give the function `~mask`, which is right for the module, and there is no NaN, while each
# word but the last sees only what comes later. (The last word sees nothing, and gets zeros.) [What does each interface
# make of my mask?](pytorch/masks.py)

# %% tags=["claims"]
assert (by_function > 0).equal(mask) and (by_module[:-1] > 0).equal(
    ~mask[:-1]
), "Both take the same boolean mask, and read it in opposite ways"
assert (by_function > 0).equal(mask), "To the function, True means may look"
assert by_function[0, 0] == 1, "the first word sees only itself"
assert (by_module[:-1] > 0).equal(~mask[:-1]), (
    "To the module, True means may not look"
)
assert by_module[0, 0] == 0 and (by_module[0, 1:] > 0).all(), (
    "the first word sees all but itself"
)
assert by_module[-1].isnan().all(), (
    "and the last, which may see nothing, comes out as NaN"
)
assert (
    not inverted[:-1].tril().any() and (inverted[:-1].sum(-1) > 0.99).all()
), "while each word but the last sees only what comes later"
assert inverted.isfinite().all() and not inverted[-1].any(), (
    "The last word sees nothing, and gets zeros"
)

# %% [markdown]
# ## What is checked
#
# Each time the site is built, the code on its pages runs again. Every number in a sentence is compared with what the
# code gave. Formulas are computed, and the descriptions in the library's source are compared with what the library
# does. An author can tie a word of a sentence to the code, and then the word is checked, too. No program checks the
# other words. [How the site is proofread](proofread/index.md).
