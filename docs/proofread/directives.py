# %% [markdown]
# # Directives: what an author writes
#
# **A figure is followed by a comment that says what must give it, and a sentence is proved by an assert that quotes it.
# The reader sees no comment.** Below is every directive, on small pages that are checked while this one is built. What
# stands under a cell is what `proofread check` says of the page in it.
#
# <!--~ 55%, 2400, 4, 6, .0%, 2017, 8, 64: examples of the syntax -->
# | In the prose | Says |
# | --- | --- |
# | `55%<!--= weights[6, 6] -->` | the figure is what the expression gives |
# | `about 2400<!--= rows -->` | the figure is near to what the expression gives |
# | `4 MiB<!--= x.nbytes -->` | the figure and its unit; the value is in bytes |
# | `{{ weights[6, 6] :.0%}}` | computed and formatted here |
# | `in 2017<!--~ year -->` | waived, for the reason given |
# | `<!--~ 8, 64: our choice -->` | on a line of its own: these figures of the next block are waived |
# | `<!--~ table: as published -->` | on a line of its own: all of the next block is waived |
# | `$$...$$ <!-- where: S = scores -->` | what the symbols of a formula are |
# | `$$...$$ <!-- unchecked: reason -->` | a formula that is waived |
#
# | In a cell with `tags=["claims"]` | Says |
# | --- | --- |
# | `assert ours < theirs, "Ours is faster"` | the page says so, and the condition holds |
# | `assert a.equal(b), "the same"  # to the bit: a few words` | computed numbers are equal to the last bit, and why |
#
# <!--~ 3, 300: examples of the syntax -->
# | In a code cell | Says |
# | --- | --- |
# | `#| alt: what it shows` | the text of a figure for who cannot see it |
# | `#| caption: what it tells` | the caption of a figure, which gets a number |
# | `#| script: live/draw.js`, `#| data: weights`, `#| digits: 3` | what draws in the place of the figure, and of what |
# | `#| timeout: 300` | how long the cell can take, in seconds |
# | `#| raises: ValueError: must be positive` | the cell must fail with this exception, and this in its message |
# | `tags=["hide-input"]`, `"hide-output"`, `"remove-cell"` | what the reader does not see |
# | `tags=["solution"]` | folded away until the reader opens it |
# | `tags=["check"]`, also of prose | folded away at the end of its section, under *How this is checked* |
# | `tags=["imports"]` | the imports at the top of the cell fold to one line |
# | `tags=["no-snippet"]` | its program is not offered to copy, as that of a hidden cell never is |

# %% tags=["hide-input"]
#| timeout: 300
import textwrap
from pathlib import Path
from tempfile import TemporaryDirectory

from proofread.checks.check import check
from proofread.checks.checked import Checked
from proofread.pages.numbers import correction
from proofread.pages.page import Cell, Page
from proofread.runs.server import warm

warm([Path("docs/proofread/directives.py")])  # what its small pages import
lines = textwrap.TextWrapper(72, subsequent_indent="    ")
lines.break_on_hyphens = lines.break_long_words = False


def checked(text):
    with TemporaryDirectory() as folder:
        page = Path(folder, "page.py")
        page.write_text(text.lstrip())
        return check([page], root=page.parent, keep=False)


def proofread(text):
    for finding in checked(text).findings:
        print(lines.fill(str(finding)))


def fix(text):
    for edit in (finding.edit for finding in checked(text).findings):
        if edit:
            new = f"page.py:{edit.start[0]}: {edit.old} -> {edit.new}"
            print(lines.fill(new))


# %% [markdown]
# ## Figures
#
# Type the figure as the reader shall see it. Percent, decimals, thousands, powers of ten, tuples and shapes, number
# words up to twenty, `True` and `False`: what the expression gives is rounded to the digits that you typed, and
# compared. A single digit holds what lies within a twentieth of it. Fractions in words hold what lies within a
# hundredth, *dozens* what lies from 24<!--~ the rule --> up to a hundred.
#
# A unit behind the figure is part of it, and the expression then gives bytes, seconds or radians. Millions, *times* and
# percentage points are units, too: the expression gives the number, the ratio, the share. So is a bound before it: *at
# most three* holds what is three or less. *Up to three* says that three is reached.

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
# That is half<!--= share --> of it, or 1<!--= share -->.
#
# They take 44 bytes<!--= 4 * n -->, not 44 KiB<!--= 4 * n -->,
# at most 12<!--= n --> words, and at least 12<!--= n -->.
""")

# %% [markdown]
# `proofread fix` mends such figures, in the form in which you typed them, but for a bound, and for a figure whose
# sentence has others that are waived: which of the two is wrong, only you know.
#
# A comment speaks of what stands directly before it: a number, a number word, a code span, a formula, a link, or what
# is emphasised, quoted or in brackets. An expression takes what the cells above it have defined. One that fails there
# is evaluated again at the end of the page, so that an answer can stand before its proof:

# %% tags=["no-snippet"]
proofread(r"""
# %% [markdown]
# The mean is 2.5<!--= mean -->, and already {{ mean :.1f}}.

# %%
mean = sum([1.0, 2.5, 4.0]) / 3

# %% [markdown]
# Later it is 3.5<!--= mean -->.

# %%
mean = mean + 1
""")

# %% [markdown]
# ### About a figure
#
# *About*, *around*, *roughly*, *approximately*, *some*, *circa*, *close to* or a tilde before a figure lets its value
# be near it: off by half a unit of the last digit before the zeros, and by a twentieth of the figure at most. *About
# 2400* holds from 2350 to 2450, and *about 40%* from 38% to 42%. *Nearly* and *almost* hold what lies below the figure
# alone. `proofread fix` leaves such a figure as it is. Any other tolerance is for [a claim](#claims), whose condition
# says which.

# %% tags=["remove-cell"]
shares = [n / 1000 for n in range(1001)]


def near(figure, values):
    held = [each for each in values if correction(figure, each) is None]
    return [held[0], held[-1]]


# %% tags=["claims"]
assert near("about 2400", range(4800)) == [2350, 2450], (
    "About 2400 holds from 2350 to 2450"
)
assert near("about 40%", shares) == [0.38, 0.42], "about 40% from 38% to 42%"
assert near("nearly 40%", shares)[1] <= 0.4, (
    "Nearly and almost hold what lies below the figure alone"
)

# %% [markdown]
# ### As it is printed
#
# An array, a tensor or a number of numpy's can be typed as Python prints it, over several lines too: its numbers are
# compared, each to the digits that are there. What leaves numbers out is refused. A table of many figures is better
# computed: `{{ table }}` shows the Markdown that a cell has made.

# %% tags=["no-snippet"]
proofread(r"""
# %%
import numpy as np

x = np.array([0.5, 0.25])
table = np.array([[0.5, 0.25], [1.0, 2.0]])

# %% [markdown]
# It is `array([0.5 , 0.25])`<!--= x -->, or [0.5 0.26]<!--= x -->,
# begins with np.float64(0.5)<!--= x[0] -->, and is
# not `[0.5 ... 0.25]`<!--= x -->.
#
# ```
# [[0.5  0.25]
#  [1.   2.  ]]
# ```
# <!--= table -->
""")

# %% [markdown]
# ## Claims
#
# A cell with the tag `claims` holds plain asserts: a condition, and as its message a fragment of the page. The fragment
# stands on the page once, in prose, a heading, a table, a caption or an alt text, with what is computed filled in.
# Emphasis, links, quotation marks and the breaks of lines do not matter; a paragraph, an item and a row of a table each
# end a fragment. A figure in it counts as proved. So whoever turns a sentence round, but not its proof, sees the page
# turn red. Words that no fragment quotes are held by nobody; the summary counts the sentences without any proof.

# %% tags=["no-snippet"]
proofread(r"""
# %% [markdown]
# **Ours is *faster*
# than theirs**, by a third. It takes 2 hours.
#
# - Both wait for the disk.
# - Both wait for the network.

# %%
ours, theirs, waits = 1.2, 1.9, {"disk": 0.4, "network": 0.3}

# %% tags=["claims"]
assert ours < theirs, "Ours is faster than theirs"
assert ours > 2, "It takes 2 hours"
assert waits["disk"] > 0, "Both wait"
assert waits["network"] > 0, "Both sleep for the network"
assert abs(ours) >= 0, "by a third"
assert ours < theirs
slower = theirs - ours
""")

# %% [markdown]
# The condition must be one that the page could break. To find out, proofread puts random numbers in the place of what
# comes from the page or a library: a thing compared with itself, a product with zero, the length of what is written
# out, a tuple or a function hold all the same, and are refused. What a page sees to, weights that sum to one, can then
# fail, and is not refused. No two asserts quote the same words.
#
# Put the cell at the end of the section that it proves, where a reader finds it folded away. What a condition needs and
# the page does not show is bound in a cell above, with the tag `remove-cell`. Where a sentence has lost or gained a
# comma or a small word such as *the*, `proofread fix` lets the assert quote it anew. Any other word can turn a sentence
# round, *seldom* as well as *less*, so the message shows the new sentence and the condition, and you decide:

# %% tags=["no-snippet"]
fix(r"""
# %%
ours, theirs = 1.2, 1.9

# %% [markdown]
# Ours is the faster one of these two. Theirs has fewer rows than ours.

# %% tags=["claims"]
assert ours < theirs, "Ours was the faster one, of the two"
assert ours < theirs, "Theirs has more rows than ours"
""")

# %% [markdown]
# A comment is for figures alone. A condition or a string behind a word is refused, and the message says which assert
# takes its place:

# %% tags=["no-snippet"]
proofread(r"""
# %%
ours, theirs = 1.2, 1.9

# %% [markdown]
# Ours is faster<!--= "faster" if ours < theirs else "slower" -->,
# and theirs is slower<!--= theirs > ours -->, which
# is True<!--= theirs > ours -->.
""")

# %% [markdown]
# ## Equal to the bit
#
# Another processor may add in another order, and its sums may differ from ours in the last bit. A claim that two
# computed numbers are equal, by `==`, `torch.equal` or a tolerance of zero, can hold on your machine alone. It takes a
# tolerance, or a reason of two words or more why no bit can differ: nothing is computed, numbers only change their
# places. What counts is what is really compared: whole numbers, truth values, shapes, texts and numbers that you wrote
# down need no reason.

# %% tags=["no-snippet"]
proofread(r"""
# %%
import torch

x = torch.tensor([0.1, 0.2, 0.3])
half, back = x / 2, x.flip(0).flip(0)

# %% [markdown]
# Halves add up to the whole, and that nearly.
# What is turned twice is the same. The shape stays.
# Nothing is zero.

# %% tags=["claims"]
assert torch.equal(half + half, x), "Halves add up to the whole"
assert torch.allclose(half + half, x, atol=1e-6), "and that nearly"
assert torch.equal(back, x), "is the same"  # to the bit: moved alone
assert back.shape == x.shape, "The shape stays"
assert (x != 0).all(), "Nothing is zero"  # to the bit: no need of it
""")

# %% [markdown]
# ## Bare figures, and waivers
#
# A figure that nothing accounts for is a finding, wherever it stands: in a heading, a table, a caption, a code span. A
# year, a reference, a size that you chose is waived with the reason why. Waivers are counted, and `proofread check
# --waivers` lists them.
#
# A waiver covers what it names, and nothing else: the figure that it directly follows, or, on a line of its own, those
# figures of the next block that stand before its colon. So a figure that comes into the block later needs a word of its
# own. In a table a waiver can stand in the cell, behind the figure; a whole table is waived by `table:`.
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
# <!--~ 8, 64: sizes of our choice -->
# With 8 heads of 64 features each, and 512 in all.
#
# <!--~ sizes of our choice -->
# | heads | features |
# | --- | --- |
# | 8 | 64 |
#
# <!--~ table: as published -->
# | heads | features |
# | --- | --- |
# | 12 | 768 |
#
# Nothing to waive<!--~ a word --> here.
""")

# %% [markdown]
# ## Formulas
#
# The LaTeX that the reader sees is parsed and evaluated, and both sides must agree; [what is read](formulas.py) has a
# page of its own. After `where:` stand Python assignments that bind its symbols; `random("n d", "m d")` draws arrays
# whose axes all differ in size: torch's tensors, or numpy's arrays where the page uses numpy alone. A number is a size
# of its own: `random("4")`<!--~ an example --> draws a vector for a quaternion. One side must call what the page or a
# package defines, or take what a cell computed so: a formula that only restates its own `where` proves nothing.
# Displayed formulas carry `where:` or `unchecked:`. So do inline relations, which say, for example, how large a size
# is, unless they are a part of a formula that the page displays.

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
# $$S = \frac{Q K^\top}{\sqrt{d}$$
# <!-- where: Q, K = random("n d", "m d");
#   S = scores(Q, K) -->
""")

# %% [markdown]
# A build and an export typeset every formula, those that are waived among them: there, LaTeX that cannot be typeset is
# a finding, too.
#
# A displayed formula has its number from `\tag{1.2}`. Wherever prose or a docstring says equation (1.2), a page must
# have it; the site makes a link of it. So it is with a number that has a point and stands in brackets alone. (After
# words such as *section*, *table* or *version* it is another kind of number, and a figure like any other.)

# %% tags=["no-snippet"]
proofread(r"""
# %%
limit = 1.5

# %% [markdown]
# $$l = 1.5 \tag{1.2}$$
# <!-- where: l = limit -->
#
# Compare (1.2) with (1.3) and with equation (1.4).
# PyTorch says so in section (1.2).
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
# Where a change goes unnoticed, the finding says what to write into `where`, if something does. Of a symmetric matrix,
# nobody can tell the transpose: bind the first of its rows alone, and they can. A change that explains a symbol by
# itself is not tried, as no author would write it.

# %% [markdown]
# ## Code cells
#
# A cell that fails stops its page, unless it says that it shall, and how: the class of the exception, and after a
# colon, if you like, a part of its message. (The notebook that readers download then has the tag `raises-exception`,
# at which Jupyter goes on.) A `try` that shows what it caught must not be quiet once there is nothing to catch: it ends
# with `else: raise ...`. This is asked of every `try` without an `else`, at the top of a cell or in a function, but
# where a handler or the tried code leaves by itself (`raise`, `return`, `continue`, `break`), or only an import is
# tried.
#
# A figure has a text that tells what it shows, in which figures are checked as in any prose. A cell that draws random
# numbers seeds them itself, or the page would say something else tomorrow.

# %% tags=["no-snippet"]
proofread(r"""
# %%
import matplotlib.pyplot as plt
import torch

# %%
#| raises: RuntimeError: shapes cannot be multiplied
torch.ones(2, 3) @ torch.ones(2, 3)

# %%
#| raises: IndexError
torch.ones(2, 3) @ torch.ones(2, 3)

# %%
#| raises: RuntimeError
torch.ones(2, 3) @ torch.ones(3, 2)

# %%
try:
    torch.ones(2, 3) @ torch.ones(3, 2)
except RuntimeError as error:
    print(error)

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
# ## What a page folds away
#
# A page that teaches shows the code that a reader should read, and folds away the rest, which runs and is checked all
# the same. The cell below has the tag `imports`: the imports at its top fold to one line.

# %% tags=["imports"]
import matplotlib.pyplot as plt
import torch

weights = torch.softmax(torch.tensor([2.0, 1.0, 0.0]), dim=0)
weights

# %% [markdown]
# The first weight is {{ weights[0] :.0%}}. A figure of the prose that was measured has a hairline below it. Rest on the
# figure, reach it with the Tab key, or touch it: it tells the expression that you wrote and what the code gave. Figures
# in titles, links, captions and alt texts stay as they are.
#
# The next two cells stand at the end of this section, in one fold: a sentence with the tag `check`, which any cell can
# have, and a cell of claims.

# %% [markdown] tags=["check"]
# The softmax divides by the sum, so the weights have the sum one.

# %% tags=["claims"]
assert torch.isclose(weights.sum(), torch.tensor(1.0), atol=1e-6), (
    "the weights have the sum one"
)

# %% [markdown]
# The notebook and the script that a reader downloads hold all of the code. The search does not look into a fold of
# checks.
#
# ## Captions
#
# A caption is a text like any other on the page, and its figures are checked. The figure gets a number, and
# `[Figure 1](#figure-1)`<!--~ the syntax --> in the prose leads to [Figure 1](#figure-1). A number that leads to its
# figure needs no claim.

# %%
#| alt: three bars, each lower than the one before it
#| caption: Three weights. The first takes {{ weights[0] :.0%}} of the whole, the last only {{ weights[-1] :.0%}}.
plt.figure(figsize=(5, 1.6))
plt.bar(["first", "second", "third"], weights)
plt.show()

# %% tags=["claims"]
assert (weights.diff() < 0).all(), (
    "three bars, each lower than the one before it"
)
assert weights[-1] < weights[0], "of the whole, the last only"

# %% [markdown]
# A caption may also stand below what a cell shows as HTML. A cell has a caption for each of its figures or for none.
# The alt texts are needed in any case.
#
# ## Figures that live
#
# `#| script:` names an ES module, as a link from the page would name it. The page loads the module, and no other page
# does. The module finds the figure of its cell in an element with the attribute `data-live`, whose value is the name of
# the module's file without its ending. It may draw in the place of the figure. A reader without JavaScript keeps the
# figure.
#
# `#| data:` is an expression, evaluated after the cell: lists, dicts, tensors, numbers, texts. What it gives lies as
# JSON beside the page; the attribute `data-json` of the element has its address, and `data-bytes` its size. Its numbers
# are rounded to 4 digits, or as many as `#| digits:` says.
#
# ```js
# for (const figure of document.querySelectorAll('[data-live="draw"]')) {
#   const weights = await (await fetch(figure.dataset.json)).json()
#   figure.replaceChildren(...weights.map(bar))
# }
# ```

# %% tags=["no-snippet"]
proofread(r"""
# %%
#| alt: three bars
#| caption: Of 4 weights.
#| script: live/draw.js
#| data: {"weights": weights, "of": object}
#| digits: all
import matplotlib.pyplot as plt
import torch

weights = torch.tensor([0.7, 0.2, 0.1])
plt.bar(range(3), weights);

# %% tags=["imports"]
#| caption: Nothing is shown.
total = weights.sum()
""")

# %% [markdown]
# ## Markdown pages
#
# In a Markdown page the fences that begin with three backticks and `python` are its code cells, and the page shows what
# they give; those that say `py` are only shown. The options of a cell stand in the fence, and so do its tags:
# `#| tags: hide-output`. A fence that says `claims` holds asserts. No reader sees it; in a comment, it is hidden
# wherever else the file is shown, too:
#
# ````markdown
# Ours is faster than theirs.
#
# <!--
# ```claims
# assert ours < theirs, "Ours is faster than theirs"
# ```
# -->
# ````
#
# ## What a cell gives
#
# Text, pictures, HTML, Markdown, LaTeX and JSON are shown; the tables of pandas look like those of the site. HTML, JSON
# and pictures have a limit of their own, `rich`, which lets a figure of plotly pass with all of its program. A copied
# program is held to what it prints, whatever its page shows beside that.

# %% [markdown]
# ## How this page knows
#
# What the pages above do not show is tried on one more:

# %% tags=["no-snippet"]
LINES = {
    "after the colon": "<!--~ 8: a size, and no 9 -->\nIt is 8, or 9.",
    "waived below": "It is 8.\n\n<!--~ 8: a size -->",
    "table above": "| a |\n| - |\n| 8 |\n\n<!--~ table: sizes -->",
}
page, begins = "# %%\nsize = 1\n\n# %% [markdown]\n", {}
for name, text in LINES.items():
    begins[page.count("\n") + 1] = name
    page += "".join(f"# {line}\n" for line in [*text.split("\n"), ""])
tried = checked(page)
refused = {
    begins[max(line for line in begins if line <= finding.line)]
    for finding in tried.findings
}

# %% tags=["claims"]
assert "<!--" not in tried.pages[0].texts[0].published, (
    "The reader sees no comment"
)
assert (
    Checked(Page("page.py", (Cell("", 1, is_code=True),))).digits(0) == 4
), "rounded to 4 digits"
assert "after the colon" in refused, (
    "those figures of the next block that stand before its colon"
)
assert "waived below" in refused, "these figures of the next block are waived"
assert "table above" in refused, "all of the next block is waived"
