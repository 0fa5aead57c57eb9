# %% [markdown]
# # Attention Unmasked
#
# **See what each word takes from the others, why language models are built on that, and what PyTorch does with your
# mask. The code of these pages runs at every build, and the numbers in their sentences are compared with what it
# gives.**
#
# [Install](install.md) the library, and ask it whether a layer lets words see those that come later:
#
# ```sh
# pip install "./attention-unmasked"
# ```

# %%
import torch

from unmasked import diagnose

torch.manual_seed(0)
x = torch.randn(2, 5, 12)
layer = torch.nn.MultiheadAttention(12, 3, batch_first=True)
report = diagnose(layer, (x, x, x), causal=True)
print(report.findings[0].told)

# %% tags=["hide-input"]
#| caption: What *mouse* takes from its neighbors, and its nearest words before and after. Attention makes it a machine,
#|   or an animal. This is attention before any training; a trained model [looks for what it needs](learn/heads.py).
#| script: ../src/unmasked_lessons/figures/sentence.js
#| data: sentence_data
from IPython.display import HTML

from unmasked_lessons.figures.sentence import ask, script_data

asked = ask("mouse", "computer mouse software", "cat dog mouse")
sentence_data = script_data(asked, together=True)
alt = (
    "Beside computer and software, the word mouse is near to them; "
    "beside cat and dog, to animals"
)
picture = 'class="hero" src="assets/mouse.svg" width="500" height="245"'
HTML(f'<img {picture} alt="{alt}">')

# %% [markdown]
# <div class="doors" markdown>
#
# - [**Learn attention**](learn/attention.py)
#
#     Begin with *What is attention?* All you need is some Python, and on its last page you have a [model that
#     sings](learn/generating.py#take-the-singer-apart).
#
# - [**Build it in PyTorch**](pytorch/from_scratch.py)
#
#     Masks, caches, positions, kernels, whole models: each page answers one question by code that runs.
#
# - [**Find my mistake**](museum/index.py)
#
#     The museum of mistakes shows what goes wrong quietly, and the check that finds it.
#
# - [**Examine my module**](doctor.py)
#
#     The doctor calls your module, names the mistakes that it finds, and shows the calls that prove them.
#
# </div>

# %% tags=["claims"]
assert (
    {"computer", "software"} <= {*asked[0].near[1][1]}
    and {"cat", "dog"} <= {*asked[1].near[2][1]}
    and asked[0].near[1][0] == asked[1].near[2][0]
), (
    "its nearest words before and after. Attention makes it a machine, or an animal"
)

# %% [markdown]
# ## What is checked
#
# Each time the site is built, the code on its pages is held to their words: a number in a sentence is compared with
# what the code gave, or its source says why not. Point at a word or a number with a thin line below it, and you see
# what it means, or how it is checked. [How the site is proofread](proofread/index.md).
