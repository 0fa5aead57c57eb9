"""A hook of the site: the program of the last page of *learn* grows, page by page.

`<div class="program"></div>` stands where a page shows the lines that it adds, marked, below those that they belong to.
All lines that its reader has met so far are folded up below them. They are lines of the program on the last page, which
has it whole. The last page has those that no other adds.
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
        "grades = model(batch",
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


def holders(lines: list[str], added: set[int]) -> set[int]:
    """The lines that say what others belong to, such as a class: before each, the nearest that stand less far in."""
    found = set()
    for at in added:
        far = _indent(lines[at])
        for before in reversed(range(at)):
            if _indent(lines[before]) < far:
                far = _indent(lines[before])
                found.add(before)
    return found


def so_far(code: str, here: str) -> str:
    """The lines that a page adds as HTML, in a fold, and all that were met; dots stand for others."""
    lines = code.splitlines()
    order, added = [*ADDED, LAST], adders(lines)
    new = {at for at, page in enumerate(added) if page == here}
    met = {at for at, page in enumerate(added) if order.index(page) <= order.index(here)}
    told = f"The program grows: {len(new)} new lines, {len(met)} of {len(lines)} so far"
    everything = f"<details><summary>All {len(met)} lines</summary>{_box(code, met, new)}</details>"
    return (
        f'<details class="note program" data-search-exclude="true"><summary>{told}</summary>'
        f"{_box(code, new | holders(lines, new) & met, new)}{everything if met > new else ''}</details>"
    )


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _box(code: str, shown: set[int], marked: set[int]) -> str:
    """Some lines of the code, colored, and some of these marked."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    colored = highlight(code, PythonLexer(), HtmlFormatter(nowrap=True)).splitlines()
    made: list[str] = []
    for at, (line, look) in enumerate(zip(code.splitlines(), colored, strict=True)):
        if at in shown:
            made.append(f"<mark>{look}</mark>" if at in marked else look)
        elif not made or not made[-1].endswith("…</span>"):
            made.append(f'{" " * _indent(line)}<span class="c1">…</span>')
    text = "\n".join(made)
    return f'<div class="highlight"><pre><code>{text}\n</code></pre></div>'


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the lines where the page asks for them."""
    if MARK not in html:
        return html
    here = page.file.src_uri
    if here not in ADDED:
        raise PluginError(f"docs/{here} has a {MARK}; name the page and its lines in docs/hooks/program.py")
    return html.replace(MARK, so_far(program(Path(config.docs_dir) / LAST), here))
