# %% [markdown]
# # Directives: what an author writes
#
# **A figure is followed by a comment that says what must give it; the reader never<!--== "never" if
# all("<!--" not in text.published for text in tried.texts) else "always" --> sees the comment.** Below is
# every directive, on small pages that are checked while this one is built. What stands under a cell is what
# `proofread check` says of the page in it.
#
# <!--~ 55%, 1.5, 2400, 4, 6, .0%, 2017, 8, 64: examples of the syntax -->
# | In the prose | Says |
# | --- | --- |
# | `55%<!--= weights[6, 6] -->` | the figure is what the expression gives |
# | `larger<!--= "larger" if a > b else "smaller" -->` | the word is what the expression gives |
# | `over 1.5<!--= a > 1.5 -->` | the claim holds |
# | `about 2400<!--= rows -->` | the figure is near to what the expression gives |
# | `<!--= mass: masses -->` | on a line of its own: the next<!--== "next" if told["mass"] == "" and
# told["mass above"] else "previous" --> table has under *mass* what the list gives |
# | `4 MiB<!--= x.nbytes -->` | the figure and its unit; the value is in bytes<!--== "value is in bytes" if
# told["bytes"] == "" else "value is in bits" --> |
# | `same<!--= a.equal(b)  # to the bit: copies -->` | computed numbers are equal to the last<!--== "equal to the last"
# if told["last bit"] and told["no reason"] else "equal to the first" --> bit, and why |
# | `{{ weights[6, 6] :.0%}}` | computed and formatted here |
# | `<!--== ... -->`, `{{= ... }}` | both, as things stand at the end of the page |
# | `in 2017<!--~ year -->` | waived, for the reason given |
# | `<!--~ table: as published -->`, `<!--~ year: as published -->` | the next<!--== "next" if told["table waived"]
# == "" and told["table waived above"] else "previous" --> table is waived, or what it has under *year* |
# | `<!--~ 8, 64: sizes of our choice -->` | on a line of its own: these figures of the next<!--== "next" if
# told["waived"] == "" and told["waived behind"] else "previous" --> block are waived |
# | `$$...$$ <!-- where: S = scores -->` | what the symbols of a formula are |
# | `$$...$$ <!-- unchecked: reason -->` | a formula that is waived |
#
# <!--~ 3, 300: examples of the syntax -->
# | In a code cell | Says |
# | --- | --- |
# | `#| alt: what it shows` | the text of a figure for who cannot see it |
# | `#| caption: what it tells` | the caption of a figure, which gets a number |
# | `#| script: live/draw.js`, `#| data: weights`, `#| digits: 3` | what draws in the place of the figure, and of what |
# | `#| timeout: 300` | how long the cell can take, in seconds |
# | `#| freeze` | the cell is run by `proofread freeze` alone, [and what it gave is kept](runs.md#what-is-frozen) |
# | `#| skip: it needs a GPU` | the cell is not run, and the page says why |
# | `#| raises: ValueError: must be positive` | the cell must fail with this exception, and this in its message |
# | `tags=["hide-input"]`, `"hide-output"`, `"remove-cell"` | what the reader does not see |
# | `tags=["solution"]` | folded away until the reader opens it |
# | `tags=["check"]`, also of prose | folded away at the end of its section, under *How this is checked* |
# | `tags=["imports"]` | the imports at the top of the cell fold to one line |
# | `tags=["no-snippet"]` | its program is not offered to copy |

# %% tags=["hide-input", "no-snippet"]
#| timeout: 300
import textwrap
from pathlib import Path
from tempfile import TemporaryDirectory

from proofread.checks.check import check
from proofread.checks.checked import Checked
from proofread.checks.mutate import every
from proofread.pages.numbers import correction
from proofread.pages.page import Cell, Page
from proofread.runs.server import warm
from proofread.settings import Settings

warm([Path("docs/proofread/directives.py")])  # what its small pages import
digits = Checked(Page("page.py", (Cell("", 1, is_code=True),))).digits(
    0
)  # of a cell that says nothing of them


def about(figure):
    """The least and the largest whole number that a figure is about."""
    near = [
        each
        for each in range(2 * figure)
        if correction(f"about {figure}", each) is None
    ]
    return near[0], near[-1]


def checked(text, **settings):
    with TemporaryDirectory() as folder:
        page = Path(folder, "page.py")
        page.write_text(text.lstrip())
        return check(
            [page],
            root=Path(folder),
            settings=Settings(**settings),
            keep=False,
            mutants=True,
        )


def proofread(text, **settings):
    found = [
        f"{finding.path}:{finding.line}: {finding.message}"
        for finding in checked(text, **settings).findings
    ]
    for line in found or ["nothing found"]:
        print(
            textwrap.fill(
                line,
                72,
                subsequent_indent="    ",
                break_on_hyphens=False,
                break_long_words=False,
            )
        )


# %% [markdown]
# ## Figures
#
# Type the figure as the reader shall see it. Percent, decimals, thousands, powers of ten, tuples and shapes, number
# words up to twenty, `True` and `False`<!--== "True and False" if told["True"] == "" and told["False"] else "False
# alone" -->: what the expression gives is rounded to the digits that you typed, and compared. A single digit holds what
# lies within a twentieth of it. Fractions in words hold what lies within a hundredth, *dozens* what lies from 24<!--~
# the rule --> up to a hundred.
#
# A unit behind the figure is part of it, and the expression then gives bytes<!--== "bytes" if told["bytes"] == "" else
# "bits" -->, seconds or radians. Millions, *times* and percentage points are units, too: the expression gives the
# number, the ratio, the share.

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
# They take 44 bytes<!--= 4 * n -->, not 44 KiB<!--= 4 * n -->.
""")

# %% [markdown]
# `proofread fix` mends such figures, in the form in which you typed them.
#
# ### About a figure
#
# *About*, *around*, *roughly*, *approximately*, *some*, *circa*, *close to* or a tilde before a figure lets its value
# be near it. It may be off by half a unit of the last digit before the zeros, and by a twentieth<!--== "a twentieth" if
# correction("about 40%", 0.4199) is None and correction("about 40%", 0.4201) else "a tenth" --> of the figure at most:
# *about 2400*<!--~ an example --> holds from {{ about(2400)[0] }} to {{ about(2400)[1] }}, and *about 40%*<!--~ an
# example --> from {{ about(40)[0] }}% to {{ about(40)[1] }}%. *Nearly* and *almost* hold what lies below<!--== "below"
# if correction("nearly 40%", 0.39) is None and correction("nearly 40%", 0.41) else "above" --> the figure alone.
# `proofread fix` leaves such a figure as it is. For any other tolerance, write the comparison:
# `2400<!--= abs(rows - 2400) < 150 -->`<!--~ the syntax -->.

# %% tags=["no-snippet"]
proofread(r"""
# %%
rows, share = 2441, 0.48

# %% [markdown]
# About 2400<!--= rows --> rows, almost half<!--= share --> of them
# in use. There are 2400<!--= rows -->, that is
# some 3,000<!--= rows -->.
""")

# %% [markdown]
# ### As it is printed
#
# An array, a tensor or a number of numpy's can be typed as Python prints it, over several lines too: its numbers are
# compared, each to the digits that are there. What leaves numbers out is refused. Above a table, on a line of its own,
# a column is named by its title; its cells are then the items of what the expression gives, as many and in that order.

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
#
# <!--= mass: x -->
# | planet | mass |
# | --- | --- |
# | Mars | 0.5 |
# | Pluto | 0.26 |
""")

# %% [markdown]
# A comment speaks of what stands directly before<!--== "before" if told["before"] == "" and told["behind"] else "after"
# --> it: a number, a word, a code span, a formula, a link, or what is emphasised, quoted or in brackets. An expression
# takes what the cells above it<!--== "the cells above it" if told["early"] else "the cells below it" --> have defined;
# with two equals signs, all<!--== "two equals signs, all" if told["late"] == "" else "three equals signs, none" -->
# that the page has defined at its end. So an answer can stand before<!--== "before" if told["late"] == "" else "after"
# --> its proof:

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
# A word carries an expression that gives the word itself, from two branches that differ: who turns the word round sees
# the page turn red. The expression can also be a condition that must be True<!--== "True" if told["false condition"]
# else "False" -->. A number in such a claim must be what the condition compares, by the sign that the words before
# it<!--== "the words before it" if told["over"] == "" and told["under"] else "the words after it" --> name: *over* asks
# for `>`, *at least*<!--== "at least" if told["at least"] == "" and told["at most"] else "at most" --> for `>=`.
#
# An expression that gives the same whatever the page computes proves nothing<!--== "the same whatever the page computes
# proves nothing" if told["itself"] and told["branches"] else "the same whatever the page computes proves something"
# -->, and is refused: a thing compared with itself, equal branches<!--== "equal branches" if told["branches"] else
# "unequal branches" -->, a product with zero, the length of what is written out. To find out, proofread puts random
# numbers in the place of what comes from the page or a library. What a page sees to, weights that sum to one, can then
# fail, and is not refused.

# %% tags=["no-snippet"]
proofread(r"""
# %%
ours, theirs = 1.2, 1.9

# %% [markdown]
# Ours is faster<!--= "faster" if ours < theirs else "slower" -->.
# Ours is slower<!--= "faster" if ours < theirs else "slower" -->.
# Theirs is faster<!--= theirs < ours -->.
# It takes over 1.5<!--= theirs > 1.5 --> hours,
# or over 3.5<!--= theirs > 1.5 --> hours,
# or under 1.5<!--= theirs > 1.5 --> hours.
#
# One is one<!--= 1 == 1 -->, and ours
# is positive<!--= abs(ours) >= 0 -->.
""")

# %% [markdown]
# A claim takes in several words where a branch of its expression spells them. Their case, their emphasis and the breaks
# of the lines do not matter:

# %% tags=["no-snippet"]
proofread(r"""
# %%
shape = (5, 4)

# %% [markdown]
# The words have a row each<!--=
#   "a row each" if shape[0] == 5 else "a column each" -->.
# They have a column each<!--=
#   "a row each" if shape[0] == 5 else "a column each" -->.
""")

# %% [markdown]
# ### Words that are held by nobody
#
# `proofread mutate` swaps words for their opposites, one at a time, and lists the swaps that go unnoticed. A claim
# holds the words that it takes in, and no other<!--== "no other" if len(swapped) > sum(swap.held for swap in swapped) >
# 0 else "every other" -->; what the page computes cannot be typed wrong. Here are those of a tiny page:

# %% tags=["no-snippet"]
swapped = every(
    checked(r"""
# %%
rows, columns = 5, 4

# %% [markdown]
# It has more rows<!--=
#   "more rows" if rows > columns else "fewer rows" -->
# than columns, and the last is empty.
""")
)
for swap in swapped:
    if not swap.held:
        print(swap)

# %% [markdown]
# The summary of a build counts the words that are held, by the kind of place where they stand. Under
# `[tool.proofread.words]` a project demands a share of them on its strict pages.

# %% [markdown]
# ### Strict pages
#
# A condition alone says nothing<!--== "nothing" if told["slower"] == "" else "everything" --> of its word:
# *slower*<!--== "slower" if told["slower"] == "" else "faster" --> in front of `ours < theirs` would pass as well. The
# setting `strict` names the pages on which that is refused. There the word must name what the condition compares
# (*larger*<!--== "larger" if strictly["larger"] == "" and strictly["smaller"] else "smaller" --> is `>`, *same*<!--==
# "same" if strictly["same"] == "" and strictly["different"] else "different" --> is `==` or `torch.allclose`,
# *every*<!--== "every" if strictly["every"] == "" and strictly["no"] else "no" --> is `all`, *none*<!--== "none" if
# strictly["none"] == "" and strictly["all"] else "all" --> is `not any`), or the expression must give the word.
#
# Units and bounds must be part of the claim, too. Where an expression that gives three stands beside *at most three*,
# *at least*<!--== "at least" if told["at least, of three"] == "" == told["at most, of three"] else "at most" --> would
# pass as well. There the comparison has to be written, unless the expression ends with a `max`<!--== "max" if
# strictly["max"] == "" and strictly["min"] else "min" -->, or with a `min`<!--== "min" if strictly["least min"] == ""
# and strictly["least max"] else "max" --> for *at least*<!--== "at least" if strictly["least min"] == "" else "at most"
# -->.

# %% tags=["no-snippet"]
proofread(
    r"""
# %%
ours, theirs, size = 1, 3, 4 * 2**20

# %% [markdown]
# Ours is less<!--= ours < theirs -->, which is
# faster<!--= ours < theirs --> and not more<!--= ours < theirs -->.
#
# It takes at most 3<!--= theirs <= 3 --> of them,
# or at most 3<!--= theirs -->, and 4 MiB<!--= size -->,
# that is 4<!--= size / 2**20 --> MiB.
""",
    strict=("*",),
)

# %% [markdown]
# ## Equal to the bit
#
# Another processor adds in another order, and its sums differ from ours in the last bit. A claim that two computed
# numbers are equal<!--== "equal" if told["no reason"] and told["last bit"] else "unequal" -->, by `==`, `torch.equal`
# or a tolerance of zero, can hold on your machine alone. It takes a tolerance, or a reason why no bit can differ:
# nothing is computed, numbers only change their places. What counts is what is really compared: whole numbers, truth
# values, shapes, texts and numbers that you wrote down need no reason<!--== "need no reason" if told["shapes"] ==
# told["written"] == "" else "need every reason" -->.

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
# nothing<!--= (x != 0).all()
#   # to the bit: no reason is needed here --> is zero.
""")

# %% [markdown]
# ## Bare figures, and waivers
#
# A figure that nothing<!--== "nothing" if told["bare"] and told["before"] == "" else "everything" --> accounts for is a
# finding, wherever it stands: in a heading, a table, a caption, a code span. A year, a reference, a size that you chose
# is waived with the reason why. Waivers are counted, and `proofread check --waivers` lists them.
#
# A waiver covers what it names, and nothing else<!--== "nothing else" if told["waived, and more"] else "everything
# else" -->: the figure that it directly follows, or, on a line of its own, those figures of the next<!--== "next" if
# told["waived"] == "" and told["waived behind"] else "previous" --> block that stand before<!--== "before" if
# told["waived"] == "" and told["after the colon"] else "after" --> its colon. So a figure that comes into the block
# later needs a word of its own. In a table a waiver can stand in the cell, behind the figure. A whole table is waived
# by `table:`, and a column by its title, on a line of its own above the table; `table:` may also stand in the line of
# its caption, above<!--== "above" if told["caption above"] == "" else "nowhere" --> it or below<!--== "below" if
# told["caption below"] == "" else "nowhere" --> it.
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
# Sizes of four models <!--~ table: as published -->
#
# | heads | features |
# | --- | --- |
# | 12 | 768 |
#
# Nothing to waive<!--~ a word --> here.
""")

# %% [markdown]
# ## Links
#
# The text of a link and the heading to which it leads, or its anchor, must share a word of four letters or more, or a
# name of code. So a link that leads to the wrong page is found, even if there is a heading there. Where the text must
# say something else, a waiver behind the link says why, and its reason begins with *link*.

# %% tags=["no-snippet"]
proofread(r"""
# %% [markdown]
# # Masks
#
# ## Rows that may see nothing
#
# See [empty rows](#rows-that-may-see-nothing), or
# [how it is done](#rows-that-may-see-nothing), or
# [this](#rows-that-may-see-nothing)<!--~ link: a last word -->.
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
# is, unless they are a part of a formula that the page displays. Where a project sets `strict`, that is asked of every
# inline expression.

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
# The first weight is {{ weights[0] :.0%}}. A figure of the prose has a hairline below it. Rest on the figure, reach it
# with the Tab key, or touch it: it tells the expression that you wrote and what the code gave. Figures in titles,
# links, captions and alt texts stay as they are, and so do words.
#
# The next cell, and the sentence before it, have the tag `check`. They stand at the end of this section, in one fold.

# %% [markdown] tags=["check"]
# The softmax divides by the sum, so the sum of the weights is one<!--= round(weights.sum().item(), 6) -->:

# %% tags=["check"]
assert torch.isclose(weights.sum(), torch.tensor(1.0))

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
#| alt: three<!--= len(weights) --> bars, each lower than the one before<!--= "lower than the one before" if
#|   (weights.diff() < 0).all() else "higher than the one before" --> it
#| caption: Three<!--= len(weights) --> weights. The first<!--= "first" if weights.argmax() == 0 else "last" --> takes
#|   {{ weights[0] :.0%}} of the whole, the last<!--= "last" if weights.argmin() == len(weights) - 1 else "first" -->
#|   only {{ weights[-1] :.0%}}.
plt.figure(figsize=(5, 1.6))
plt.bar(["first", "second", "third"], weights)
plt.show()

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
# are rounded to 4<!--= digits --> digits, or as many as `#| digits:` says.
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
# `#| tags: hide-output`.
#
# ## What a cell gives
#
# Text, pictures, HTML, Markdown, LaTeX and JSON are shown; the tables of pandas look like those of the site. HTML, JSON
# and pictures have a limit of their own, `rich`, which lets a figure of plotly pass with all of its program. A copied
# program is held to what it prints, whatever its page shows beside that.
#
# ## How this page knows
#
# What this page says of proofread is tried, a line for each question, on a page that is strict and on one that is not.
# The expressions of the sentences name the lines, and ask what was found on them:

# %% tags=["no-snippet"]
DEFINED = """
import torch

ours, theirs, size, share, three, third, flag = 1, 3, 4 * 2**20, 0.551, 3, 0.1 + 0.2, True
few = [1, 2, 3]
part, whole = torch.tensor([0.1, 0.2]), torch.tensor([0.1]) + torch.tensor([0.2])
"""
LINES = {
    "before": "It is 55%<!--= share -->, not 54%<!--~ a size -->.",
    "behind": "It is 54%<!--= share -->, not 55%<!--~ a size -->.",
    "bytes": "It takes 4 MiB<!--= size -->.",
    "True": "It is True<!--= flag -->.",
    "False": "It is False<!--= flag -->.",
    "early": "It is 1<!--= late -->.",
    "late": "It is 1<!--== late -->.",
    "false condition": "It is nice<!--= ours > theirs -->.",
    "over": "It is over 2<!--= theirs > 2 -->.",
    "under": "It is under 2<!--= theirs > 2 -->.",
    "at least": "It is at least 2<!--= theirs >= 2 -->.",
    "at most": "It is at most 2<!--= theirs >= 2 -->.",
    "itself": "It is nice<!--= ours == ours -->.",
    "branches": 'It is nice<!--= "nice" if ours < theirs else "nice" -->.',
    "slower": "It is slower<!--= ours < theirs -->.",
    "at most, of three": "It is at most three<!--= three -->.",
    "at least, of three": "It is at least three<!--= three -->.",
    "larger": "It is larger<!--= theirs > ours -->.",
    "smaller": "It is smaller<!--= theirs > ours -->.",
    "same": "It is the same<!--= three == theirs -->.",
    "different": "It is different<!--= three == theirs -->.",
    "every": "It is so for every<!--= all(one > 0 for one in few) --> one.",
    "no": "It is so for no<!--= all(one > 0 for one in few) --> one.",
    "none": "It is so for none<!--= not any(one > 5 for one in few) -->.",
    "all": "It is so for all<!--= not any(one > 5 for one in few) -->.",
    "max": "It is at most three<!--= max(few) -->.",
    "min": "It is at most one<!--= min(few) -->.",
    "least max": "It is at least three<!--= max(few) -->.",
    "least min": "It is at least one<!--= min(few) -->.",
    "last bit": "It is the same<!--= third == 0.3  # to the bit: said for the example -->.",
    "no reason": "It is the same<!--= torch.equal(part + part, 2 * part) -->.",
    "shapes": "The shapes are the same<!--= part.flip(0).shape == part.shape -->.",
    "written": "It is the same<!--= three == theirs -->.",
    "bare": "It is 8.",
    "waived": "<!--~ 8: a size -->\nIt is 8.",
    "waived behind": "It is 8.\n\n<!--~ 8: a size -->",
    "waived, and more": "<!--~ 8: a size -->\nIt is 8 or 9.",
    "after the colon": "<!--~ 8: a size, and no 9 -->\nIt is 8, or 9.",
    "mass": "<!--= mass: few -->\n| mass |\n| - |\n| 1 |\n| 2 |\n| 3 |",
    "mass above": "| mass |\n| - |\n| 1 |\n| 2 |\n| 3 |\n\n<!--= mass: few -->",
    "table waived": "<!--~ table: sizes -->\n| a |\n| - |\n| 8 |",
    "table waived above": "| a |\n| - |\n| 8 |\n\n<!--~ table: sizes -->",
    "caption above": "Sizes<!--~ table: of ours -->\n\n| a |\n| - |\n| 8 |",
    "caption below": "| a |\n| - |\n| 8 |\n\nSizes<!--~ table: of ours -->",
}


def tried_on(**settings):
    page, lines = f"# %%{DEFINED}\n# %% [markdown]\n", {}
    for name, text in LINES.items():
        begin = page.count("\n") + 1
        page += "".join(
            f"# {line}".rstrip() + "\n" for line in [*text.split("\n"), ""]
        )
        lines[name] = range(begin, page.count("\n") + 1)
    report = checked(page + "\n# %%\nlate = 1\n", **settings)
    said = {
        name: " ".join(f.message for f in report.findings if f.line in at)
        for name, at in lines.items()
    }
    return report.pages[0], said


tried, told = tried_on()
strictly = tried_on(strict=("*",))[1]
print(told["under"])
