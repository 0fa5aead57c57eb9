# %% [markdown]
# # A lesson in {{ len(weights) }} parts
#
# Look at [Figure 1](#figure-1). It says 67%<!--= weights[0] -->.

# %% tags=["imports"]
import torch
from IPython.display import HTML
from mini import weigh
from PIL import Image

weights = weigh(torch.tensor([2.0, 1.0, 0.0]))
weights

# %% [markdown]
# The first weighs 67%<!--= weights[0] -->, and there are **three**<!--= len(weights) --> of them, larger and
# smaller. A [link home with 3<!--= len(weights) -->](../index.md) tells nothing.
#
# | | Share |
# | --- | --- |
# | second | {{ weights[1] :.2f}} |

# %% tags=["check"]
assert torch.isclose(weights.sum(), torch.tensor(1.0))
print("checked wordily")

# %%
#| alt: a square
#| caption: One **square** of 3<!--= len(weights) -->.
Image.new("RGB", (200, 200))

# %% tags=["no-snippet"]
weights.shape

# %% [markdown]
# ## Live

# %%
#| caption: The three weights.
#| script: ../live/bars.js
#| data: {"weights": weights, "names": ["first", "second", "third"]}
#| digits: 2
HTML("<p>0.67, 0.24, 0.09</p>")

# %% [markdown]
# The end.
