"""A hook of the site: the program of the last page of *learn* grows, page by page.

`<div class="program"></div>` stands where a page shows the lines that its reader has met so far, those of the page
marked. They are lines of the program on the last page, which has it whole. The last page has those that no other adds.
"""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

LAST = "learn/generating.py"
MARK = '<div class="program"></div>'
# What each page adds, in the order of the pages: all lines that begin so, unless an earlier page has them.
ADDED = {
    "learn/attention.py": (
        "import torch",
        "from itertools",
        "from torch import",
        "WIDTH,",
        "names =",
        "song",
        "for now, then",
        "vocabulary =",
        "text =",
        "class Model",
        "def __init__",
        "super()",
        "self.word =",
        "class Block",
        "def attention",
        "scores = q",
        "averages.append",
    ),
    "learn/queries_keys_values.py": (
        "from torch.nn",
        "matrices =",
        "self.W_q,",
        "projected =",
        "torch.manual_seed",
        "model =",
        "optimizer",
        "for _ in range(200)",
        "loss.",
    ),
    "learn/masks.py": (
        "may_look =",
        "scores = scores.masked_fill",
        "starts =",
        "batch =",
        "scores = model(batch",
        "loss =",
    ),
    "learn/positions.py": ("self.place =", "def forward(self, words)", "x = self.word"),
    "learn/heads.py": ("slices =", "averages =", "for q, k, v", "return self.W_o"),
    "learn/block.py": (
        "self.norm_1,",
        "wider,",
        "self.mlp =",
        "def forward(self, x)",
        "x = x +",
        "return x +",
        "self.blocks =",
    ),
    "learn/cross.py": (),
}


def program(source: Path) -> str:
    """The cell of the last page that has a whole model."""
    cells = [cell for cell in source.read_text(encoding="utf-8").split("\n# %%") if "\nclass Model(" in cell]
    if len(cells) != 1:
        raise PluginError(
            f"{source} has {len(cells)} cells with a `class Model`; the pages of learn quote the only one"
        )
    return "\n".join(line for line in cells[0].strip().splitlines() if line.strip())


def adders(lines: list[str]) -> list[str]:
    """The page that adds each line."""
    pages = []
    unused = {(page, begin) for page, begins in ADDED.items() for begin in begins}
    for line in lines:
        found = [(page, begin) for page, begins in ADDED.items() for begin in begins if line.strip().startswith(begin)]
        unused.difference_update(found)
        pages.append(found[0][0] if found else LAST)
    if unused:
        page, begin = sorted(unused)[0]
        raise PluginError(f"docs/hooks/program.py: {page} adds {begin!r}, with which no line of docs/{LAST} begins")
    return pages


def so_far(code: str, here: str) -> str:
    """The lines up to a page as HTML, in a fold; dots stand for those that are still to come."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    lines = code.splitlines()
    order, added = list(ADDED), adders(lines)
    colored = highlight(code, PythonLexer(), HtmlFormatter(nowrap=True)).splitlines()
    shown: list[str] = []
    for line, look, page in zip(lines, colored, added, strict=True):
        if page == here:
            shown.append(f"<mark>{look}</mark>")
        elif page != LAST and order.index(page) < order.index(here):
            shown.append(look)
        elif not shown or not shown[-1].endswith("…</span>"):
            indent = " " * (len(line) - len(line.lstrip()))
            shown.append(f'{indent}<span class="c1">…</span>')
    new, known = added.count(here), sum(not line.endswith("…</span>") for line in shown)
    told = f"{known} of {len(lines)} lines, {new or 'none'} of them new"
    text = "\n".join(shown)
    return (
        f'<details class="note program" data-search-exclude="true"><summary>The program so far: {told}</summary>'
        f'<div class="highlight"><pre><code>{text}\n</code></pre></div></details>'
    )


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the lines where the page asks for them."""
    if MARK not in html:
        return html
    here = page.file.src_uri
    if here not in ADDED:
        raise PluginError(f"docs/{here} has a {MARK}; name the page and its lines in docs/hooks/program.py")
    return html.replace(MARK, so_far(program(Path(config.docs_dir) / LAST), here))
