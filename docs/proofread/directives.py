# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Directives: what an author writes
#
# **A figure is followed by a comment that says what must give it; the reader never sees the comment.** Below is
# every directive, on small pages that are checked while this one is built. What stands under a cell is what
# `proofread check` says of the page in it.
#
# <!--~ examples of the syntax -->
# | In the prose | Says |
# | --- | --- |
# | `55%<!--= weights[6, 6] -->` | the figure before it is what the expression gives |
# | `larger<!--= a > b -->` | the claim before it holds |
# | `same<!--= a.equal(b)  # to the bit: copies -->` | computed numbers are equal to the last bit, and why |
# | `{{ weights[6, 6] :.0%}}` | computed and formatted here |
# | `<!--== ... -->`, `{{= ... }}` | the same, as things stand at the end of the page |
# | `in 2017<!--~ year -->` | waived, for the reason given |
# | `$$...$$ <!-- where: S = scores -->` | what the symbols of a formula are |
# | `$$...$$ <!-- unchecked: reason -->` | a formula that is waived |
#
# <!--~ examples of the syntax -->
# | In a code cell | Says |
# | --- | --- |
# | `#| alt: what it shows` | the text of a figure for who cannot see it |
# | `#| timeout: 300` | how many seconds the cell may take |
# | `tags=["raises-exception"]` | the cell must fail |
# | `tags=["hide-input"]`, `"hide-output"`, `"remove-cell"` | what the reader does not see |
# | `tags=["solution"]` | folded away until the reader opens it |
# | `tags=["no-snippet"]` | its program is not offered to copy |

# %% tags=["hide-input", "no-snippet"]
import textwrap
from pathlib import Path
from tempfile import TemporaryDirectory

from proofread.checks.check import check


def proofread(text):
    with TemporaryDirectory() as folder:
        page = Path(folder, "page.py")
        page.write_text(text.lstrip())
        report = check([page], root=Path(folder), keep=False, mutants=True)
    told = [f"{finding.path}:{finding.line}: {finding.message}" for finding in report.findings]
    for line in told or ["nothing found"]:
        print(textwrap.fill(line, 72, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False))


# %% [markdown]
# ## Figures
#
# Type the figure as the reader shall see it. Percent, decimals, thousands, powers of ten, tuples and shapes, number
# words up to twelve, `True` and `False`: the value is rounded to the digits that you typed, and compared.

# %% tags=["no-snippet"]
proofread(r"""
# %%
share, shape, n = 0.5512, (11, 50), 11

# %% [markdown]
# *ship* keeps 55%<!--= share -->, or 0.551<!--= share -->,
# of `(11, 50)`<!--= shape -->, the eleven<!--= n --> words.
#
# It keeps 54%<!--= share -->, or 0.550<!--= share -->,
# of `(11, 5)`<!--= shape -->, the twelve<!--= n --> words.
""")

# %% [markdown]
# `proofread fix` puts such figures right, in the form in which you typed them.
#
# A comment speaks of what stands directly before it: a number, a word, a code span, a formula, a link, or what is
# emphasised, quoted or in brackets. An expression may use all that the cells above it have defined; with two equals
# signs, all that the page has defined at its end. So an answer can stand before its proof:

# %% tags=["no-snippet"]
proofread(r"""
# %% [markdown]
# The mean is 2.5<!--== mean -->, and already {{= mean :.1f}}.
# Too early: 2.5<!--= mean -->.

# %%
mean = sum([1.0, 2.5, 4.0]) / 3
""")

# %% [markdown]
# ## Claims in words
#
# Words such as *larger*, *most* or *never* carry an expression that must be True. A claim that would hold whatever the
# page computed, or of whatever figure, is refused. Such an expression holds the condition, and nobody but you knows
# whether it is what the word says: *slower* before it would pass as well. Where a word must not be turned around, let
# the expression give the word itself:

# %% tags=["no-snippet"]
proofread(r"""
# %%
ours, theirs = 1.2, 1.9

# %% [markdown]
# Ours is faster<!--= ours < theirs -->.
# Theirs is faster<!--= theirs < ours -->.
# Ours is slower<!--= "faster" if ours < theirs else "slower" -->.
# One is one<!--= 1 == 1 -->.
#
# It takes over 1.5<!--= theirs > 1.5 --> hours,
# or over 3.5<!--= theirs > 1.5 --> hours.
""")

# %% [markdown]
# ## Equal to the bit
#
# Another processor adds in another order, and its sums differ from ours in the last bit. A claim that two computed
# numbers are equal, by `==`, `torch.equal` or a tolerance of zero, may hold on your machine alone. It takes a
# tolerance, or a reason why no bit can differ: nothing is computed, numbers only change their places. What counts is
# what is really compared: whole numbers, truth values, shapes, texts and numbers that you wrote down need no reason.

# %% tags=["no-snippet"]
proofread(r"""
# %%
import torch

x = torch.tensor([0.1, 0.2, 0.3])
half, back = x / 2, x.flip(0).flip(0)

# %% [markdown]
# Halves add up to the same<!--= torch.equal(half + half, x) -->,
# nearly the same<!--= torch.allclose(half + half, x) -->.
# What is turned twice is the same<!--= torch.equal(back, x)
#   # to the bit: only places change -->.
# The shapes are the same<!--= back.shape == x.shape -->, and
# nothing is zero<!--= (x != 0).all()
#   # to the bit: no reason is needed here -->.
""")

# %% [markdown]
# ## Bare figures, and waivers
#
# A figure that nothing accounts for is a finding, wherever it stands: in a heading, a table, a caption, a code
# span. A year, a reference, a size that you chose is waived with the reason why. Waivers are counted, and
# `proofread check --waivers` lists them. On a line of its own, a waiver speaks for the block that follows.
#
# Code blocks, link targets and names such as *GPT-2* or *float32* need no word, nor does a code span that quotes
# the page's own code.

# %% tags=["no-snippet"]
proofread(r"""
# %%
limit = 40 + 2

# %% [markdown]
# # All 42 of them
#
# `limit = 40 + 2` says so; `limit = 43` does not.
# In 2017<!--~ year of publication --> GPT-2 was still to come.
#
# <!--~ sizes of our choice -->
# With 8 heads of 64 features each.
#
# Nothing to waive<!--~ a word --> here.
""")

# %% [markdown]
# ## Formulas
#
# The LaTeX that the reader sees is parsed and evaluated, and both sides must agree. After `where:` stand Python
# assignments that bind its symbols; `random("n d", "m d")` draws tensors whose axes all differ in size. One side
# must call what the page or a package defines: a formula that only restates its own `where` proves nothing.
# Displayed formulas, and inline equations too, carry `where:` or `unchecked:`.

# %% tags=["no-snippet"]
proofread(r"""
# %%
import torch

def scores(Q, K):
    return Q @ K.mT / Q.size(-1) ** 0.5

# %% [markdown]
# $$S = \frac{Q K^\top}{\sqrt{d}} \tag{1}$$
# <!-- where: Q, K = random("n d", "m d");
#   S = scores(Q, K) -->
#
# $$S = \frac{K Q^\top}{\sqrt{d}}$$
# <!-- where: Q, K = random("n d", "m d");
#   S = scores(Q, K) -->
#
# $$S = Q K^\top$$
# <!-- where: Q, K = random("n d", "m d"); S = Q @ K.mT -->
#
# $$C = O(n^2)$$
# <!-- unchecked: an order, which no single size proves -->
#
# $$\frac{a}{b$$
# <!-- unchecked: it cannot even be read -->
""")

# %% [markdown]
# A formula can hold and yet say nothing, if its test values are too special. So the tests change each formula (a
# sign, an index, a factor, a transposition) and want each change to be noticed. Here keys and queries are the same,
# and nobody can tell their product from its transpose:

# %% tags=["no-snippet"]
proofread(r"""
# %%
import torch

def scores(Q, K):
    return Q @ K.mT

# %% [markdown]
# $$S = Q K^\top$$
# <!-- where: Q = random("n d"); K = Q; S = scores(Q, K) -->
""")

# %% [markdown]
# ## Code cells
#
# A cell that fails stops its page, unless it says that it shall. A figure has a text that tells what it shows, in
# which figures are checked as in any prose. A cell that draws random numbers seeds them itself, or the page would
# say something else tomorrow.

# %% tags=["no-snippet"]
proofread(r"""
# %%
import matplotlib.pyplot as plt
import torch

# %% tags=["raises-exception"]
torch.ones(2, 3) @ torch.ones(2, 3)

# %% tags=["raises-exception"]
torch.ones(2, 3) @ torch.ones(3, 2)

# %%
#| alt: a line up to 4.5<!--= top -->
top = 4.0
plt.plot([1, top]);

# %%
plt.plot([1, 4]);

# %%
torch.randn(3)

# %%
#| timeout: soon
print("a", "b"

# %%
never = 1
""")

# %% [markdown]
# In a Markdown page the fences that begin with three backticks and `python` are its code cells; those that say `py`
# are only shown. Their outputs are not.
