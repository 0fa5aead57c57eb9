"""Pages that show all that a page can."""

INDEX = """
# Home

See [the first heading][named], `[x](lessons/first.py)` and ![a logo](logo.svg), with $x_1^2$.

```python
x = 3
```

It has 3<!--= x --> parts, and
$x_1^2$ begins a line.

[named]: lessons/first.py#a-heading-of-3
"""
FIRST = """
# %% [markdown]
# # A first lesson
#
# !!! note "Only 3<!--= len(rows) --> rows"
#
#     Back [home](../index.md), on to [the second](second.py).[^1]
#
# [^1]: A note.
#
# ## A heading of {{ len(rows) }}
#
# $$\\sqrt{n} = m \\tag{1.2}$$
# <!-- unchecked: a drawing -->

# %%
import torch

rows = torch.arange(48).reshape(3, 16)
print("shown\\n```\\nquoted")
rows

# %%
#| alt: a line of [3<!--= len(rows) -->] "points"
import matplotlib.pyplot as plt

plt.plot([1, 2, 3]);

# %% tags=["hide-input"]
print("input is hidden")

# %% tags=["hide-output"]
print("output is hidden")

# %% tags=["remove-cell"]
print("cell is removed")

# %% [markdown] tags=["solution"]
# Folded prose, too.

# %% tags=["solution"]
print("folded away")

# %% [markdown]
# No longer folded.

# %%
#| raises: RuntimeError
rows @ rows
"""
SECOND = """
# %% [markdown]
# # A second lesson
#
# Text.

# %%
y = 1
"""
DIALECT = """
# A dialect

!!! note "Mind"

    Inside.

=== "One"

    First tab.

=== "Two"

    Second tab.

A footnote.[^n] Of HTML, a [link home](../index.md#home){ .special } and $a_i$.

[^n]: The note.

*[HTML]: Hyper Text

Term
:   Its definition.

- [x] done
- [ ] open

| a | b |
|---|---|
| c | d |

--8<-- "docs/included.txt"

<div markdown="1">
*inside*
</div>

## Named { #part }

### Below
"""
RICH = """
# %% [markdown]
# # Rich outputs

# %%
#| alt: a square
#| alt: a photo
import base64
import io

from IPython.display import HTML, JSON, SVG, Image, Latex, Markdown, Javascript, display
from PIL import Image as Picture

display(HTML("<style>#t td {color: red}</style><table id='t'><tr><td>styled</td></tr></table>"))
display(HTML("<b>rich</b>\\n\\n    <p>*plain* $5 or $6</p>"))
path = '<path fill="currentColor" d="M0 0h9v9z"/>'
display(SVG(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 30 60">{path}</svg>'))
buffer = io.BytesIO()
Picture.new("RGB", (40, 30)).save(buffer, "JPEG")
display(Image(data=buffer.getvalue()))
Latex(r"$$\\frac{1}{2}$$")

# %%
#| alt: a dot
print("before")
buffer = io.BytesIO()
Picture.new("RGB", (4, 3)).save(buffer, "PNG")
display(Image(data=buffer.getvalue()))
print("after")
display(Markdown('!!! tip "Told"\\n\\n    By a *cell*.'))
display(JSON({"a": "b"}), Javascript("alert()"))

# %% tags=["no-snippet"]
#| alt: a patch
Picture.new("RGB", (5, 2))

# %%
print("\\x1b[31mred\\x1b[0m \\x1b[1;92mgreen\\x1b[0m \\x1b[37;44mwhite on blue\\x1b[0m \\x1b[38;5;226myellow\\x1b[0m")
"""
PAGES = {
    "index.md": INDEX,
    "lessons/first.py": FIRST,
    "lessons/second.py": SECOND,
    "lessons/dialect.py": "# %% [markdown]\n" + "\n".join(f"# {line}".rstrip() for line in DIALECT.split("\n")),
    "lessons/again.md": DIALECT,
    "lessons/rich.py": RICH,
    "included.txt": "Included *text*.",
    "logo.svg": "<svg/>",
}
