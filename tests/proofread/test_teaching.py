"""What pages that teach are made of: folded checks and imports, captions, figures that tell what gave them, scripts."""

import json
import re
from pathlib import Path

import pytest

from proofread.checks.check import check
from proofread.checks.checked import Checked
from proofread.publish import figures, layout
from proofread.publish.notebook import as_notebook, as_script
from proofread.publish.render import render
from proofread.settings import Settings

LIVE = "#| script: draw.js\n#| alt: a"
PLOT = "from PIL import Image\n\nImage.new('RGB', (4, 3))"


def looked_at(root: Path, text: str, name: str = "page.py", **settings: object) -> Checked:
    (root / name).write_text(text.lstrip("\n"))
    (root / "draw.js").touch()
    return check([root / name], root=root, keep=False, settings=Settings(**settings)).pages[0]  # type: ignore[arg-type]


def findings(checked: Checked) -> list[str]:
    return [f"{finding.line}: {finding.message}" for finding in checked.findings]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (f"#| digits: many\n{LIVE}", "digits (many) must be how many digits a number of the data"),
        ("#| script: gone.js\n#| alt: a", "script (gone.js) must be a file that ends in .js or .mjs, named as a link"),
        ("#| script: page.py\n#| alt: a", "script (page.py) must be a file that ends in .js or .mjs, named as a link"),
        ("#| data: [1]\n#| alt: a", "data ([1]) is for a script, and the cell names none: `#| script: ...`"),
        (f"#| data: [1, {{2}}]\n{LIVE}", "data ([1, {2}]) is nothing that JSON can hold: Attribute"),
        (f"#| data: float('nan')\n{LIVE}", "data (float('nan')) is nothing that JSON can hold: Val"),
        (f"#| data: missing\n{LIVE}", "JSON can hold: NameError: name 'missing' is not defined"),
        (f"#| data: 1 +\n{LIVE}", "data (1 +) is nothing that JSON can hold: SyntaxError"),
        (
            f"#| data: [1 / 3] * 10\n{LIVE}",
            "data ([1 / 3] * 10) is 71 bytes with 4 digits, more than 70 B; send less, or fewer `#| digits:`, or set "
            'data = "1 MB" under [tool.proofread]',
        ),
        (f"#| data: __import__('random').random()\n{LIVE}", "draws from Python's global random generator; draw in"),
        ("#| alt: a\n#| caption: a\n#| caption: b", "cell 1 shows 1 figure but has 2 captions; give each one or none"),
        ("#| alt: a\n#| caption: 3 bars", "nothing proves the value 3"),
        ("#| caption: a", "cell 1 draws 1 figure but has 0 alt texts; say what each shows"),
    ],
)
def test_an_option_that_cannot_be_meant_is_a_finding_of_its_line(tmp_path: Path, source: str, found: str) -> None:
    told = findings(looked_at(tmp_path, f"# %%\n{source}\n{PLOT}\n", data=70))
    assert len(told) == 1, told
    assert found in told[0]


def test_a_script_and_a_caption_need_a_figure_that_is_shown(tmp_path: Path) -> None:
    one = "#| script: draw.js\n#| caption: a"
    assert findings(looked_at(tmp_path, f"# %%\n{one}\nprint(1)\n")) == [
        "2: cell 1 shows 0 figures but has 1 caption; give each one or none",
        "2: cell 1 has a script, which draws in the place of one figure, but shows 0; show one, a picture or HTML",
    ]
    assert findings(looked_at(tmp_path, "```python\n#| script: draw.js\nx = 1\n```\n", "page.md")) == [
        "2: cell 2 has a script, which draws in the place of one figure, but shows 0; show one, a picture or HTML"
    ]


def test_a_tag_that_folds_nothing_is_a_finding(tmp_path: Path) -> None:
    told = findings(looked_at(tmp_path, '# %% tags=["imports"]\nx = 1\nimport this\n'))
    assert told == ["2: the cell is tagged imports but does not begin with any; drop the tag"]


def test_a_folded_check_is_still_a_check(tmp_path: Path) -> None:
    text = '# %% tags=["check"]\nx = 1\nassert x == 2\n\n# %% [markdown] tags=["check"]\n# It is 3<!--= x -->.\n'
    assert "cell 1 failed with AssertionError" in findings(looked_at(tmp_path, text))[0]
    assert findings(looked_at(tmp_path, text.replace("== 2", "== 1"))) == ["6: it says 3, but x gives 1"]


SECTIONS = """
# %% [markdown]
# # Title

# %% tags=["check"]
a = 1

# %% [markdown]
# Before.
#
# ```
# # no heading
# ```
#
# ## Second
#
# After.

# %% [markdown] tags=["check"]
# Why:

# %% tags=["check"]
b = 2

# %%
c = 3

# %% tags=["solution"]
d = 4

# %% tags=["remove-cell"]
e = 5
"""


def test_each_section_folds_its_checks_at_its_end_in_their_order(tmp_path: Path) -> None:
    page = looked_at(tmp_path, SECTIONS)
    laid = list(layout.parts(page, lambda cell: page.of_cell(cell)[0]))
    assert [(fold, cell, text[:9]) for fold, cell, text in laid] == [
        ("", 0, "# Title"),
        ("", 2, "Before.\n\n"),
        (layout.CHECK, 1, ""),
        ("", 2, "## Second"),
        ("", 5, ""),
        (layout.SOLUTION, 6, ""),
        (layout.CHECK, 3, "Why:"),
        (layout.CHECK, 4, ""),
    ]
    assert laid[1][2].endswith("# no heading\n```\n\n")


def test_downloads_keep_what_is_folded(tmp_path: Path) -> None:
    page = looked_at(tmp_path, SECTIONS)
    assert all(f"{name} = " in as_script(page) for name in "abcde")
    cells = json.loads(as_notebook(page))["cells"]
    assert [cell["source"] for cell in cells if cell["cell_type"] == "code"][:2] == [["a = 1"], ["b = 2"]]
    assert cells[1]["metadata"]["jupyter"] == {"source_hidden": True, "outputs_hidden": True}


def test_the_imports_at_the_top_of_a_cell_fold_to_one_line(tmp_path: Path) -> None:
    top = "# what for\nimport re\nfrom ast import (\n    parse,\n)\n"
    text = f'# %% tags=["imports"]\n{top}\nx = 1\nimport io\n\n# %% tags=["imports"]\nimport os'
    rendered = render(looked_at(tmp_path, text))
    fold, rest = rendered.cells[0].split("</details>", 1)
    plain = re.sub("<i[^>]*>|</i>", "", fold)
    assert plain.endswith(f"<pre><code>{top}</code></pre></div>")
    assert '<details class="proofread-imports"><summary>imports</summary>' in fold
    assert "x = " in rest
    assert "parse" not in re.sub("<details.*?</details>", "", rest)
    assert rendered.cells[1].count("<code>") == 1
    assert "proofread-copy" not in rendered.cells[1]
    assert "cell-2.py" not in rendered.files


CAPTIONED = f"""
# %%
#| alt: first
{PLOT}

# %%
#| alt: one
#| alt: other
#| caption: *One* of {{{{ width }}}}.
#| caption: The other.
width = 4
display(Image.new("RGB", (width, 1)))
Image.new("RGB", (width, 2))

# %%
#| caption: A table,
#|   on two lines.
from IPython.display import HTML

HTML("<table></table>")

# %% [markdown]
# See [Figure 3](#figure-3), [Figure 2](page.py#figure-2).
"""


def test_captions_are_numbered_through_the_page(tmp_path: Path) -> None:
    page = looked_at(tmp_path, CAPTIONED)
    assert findings(page) == []
    cells = render(page, "page/").cells
    captions = re.findall(r"<figcaption>(.*?)</figcaption></figure>", "".join(cells.values()), re.DOTALL)
    assert captions == [
        "<b>Figure 1.</b> *One* of 4.",
        "<b>Figure 2.</b> The other.",
        "<b>Figure 3.</b> A table,\non two lines.",
    ]
    assert "<figure" not in cells[0]
    assert re.search(r'<figure><img [^>]*src="page/figure-2.png" alt="one"[^>]*><figcaption>', cells[1])
    assert "<figure><table></table><figcaption>" in cells[2]


def test_captions_are_text_of_downloads(tmp_path: Path) -> None:
    page = looked_at(tmp_path, CAPTIONED)
    cells = json.loads(as_notebook(page))["cells"]
    below = '<a id="figure-1"></a><a id="figure-2"></a>**Figure 1.** *One* of 4.\n\n**Figure 2.** The other.'
    assert "".join(cells[2]["source"]) == below
    assert "".join(cells[4]["source"]) == '<a id="figure-3"></a>**Figure 3.** A table, on two lines.'
    assert "# **Figure 2.** The other." in as_script(page)


@pytest.mark.parametrize("said", ["Figure 2", "[Figure 2](#figure-3)", "[Figure 2](#other-2)", "[2](#figure-2)"])
def test_the_number_of_a_figure_is_bare_unless_it_leads_there(tmp_path: Path, said: str) -> None:
    assert "nothing proves the value 2" in findings(looked_at(tmp_path, f"# %% [markdown]\n# {said}\n"))[0]


def test_what_a_script_draws_is_rounded_and_lies_beside_the_page(tmp_path: Path) -> None:
    options = f'{LIVE}\n#| data: {{"x": torch.tensor([1 / 3, 2e-9, 4.0]), "é": [True, None, 12345]}}'
    text = f"# %%\nimport torch\n\n# %%\n{options}\n{PLOT}\n\n# %%\n{options}\n#| digits: 2\nImage.new('RGB', (1, 1))\n"
    page = looked_at(tmp_path, text)
    assert findings(page) == []
    rendered = render(page, "page/")
    assert rendered.files["cell-2.json"].decode() == '{"x":[0.3333,2e-09,4],"é":[true,null,12345]}'
    assert rendered.files["cell-3.json"].decode() == '{"x":[0.33,2e-09,4],"é":[true,null,12345]}'
    size = len(rendered.files["cell-2.json"])
    opens = f'<div class="proofread-live" data-live="draw" data-json="page/cell-2.json" data-bytes="{size}"><img '
    assert opens in rendered.cells[1]


def test_the_menu_of_a_cell_offers_the_program_that_imports_what_it_needs(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "own_package.py").write_text("def one():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    page = looked_at(tmp_path, "# %%\nfrom own_package import one\n\none()\n", packages=("own_package",))
    offered = render(page, "page/")
    menu = (
        '<details class="proofread-copy" data-search-exclude="true"><summary>Copy</summary>'
        '<a href="page/cell-1.py">Copy with imports (4 lines)</a></details>'
    )
    assert menu in offered.cells[0]
    program = "# page.py, cell 1\nfrom own_package import one\n\nprint(one())\n"
    assert {name: file.decode() for name, file in offered.files.items()} == {"cell-1.py": program}


FIGURES = """
# %% [markdown]
# ---
# title: 4.5<!--= n -->
# ---
# # All 4.5<!--= n -->
#
# Setext 4.5<!--= n -->
# --------------------
#
# **4.5**<!--= n -->, over 3<!--= n -->, True<!--= n > 3 -->, `(2.5, 2)`<!--= (2.5, 2) + (n,)[:0] -->,
# {{ 4 / n + 1 / 3 :.2f}}, [4.5](x)<!--= n -->, $4.5$<!--= n -->, <img alt="4.5<!--= n -->">.

# %%
n = 4.5
"""


def test_a_figure_tells_its_expression_and_value_and_titles_links_and_attributes_do_not(tmp_path: Path) -> None:
    page = looked_at(tmp_path, FIGURES)
    assert findings(page) == []
    text = figures.marked(page)(0)
    head, body = text.split("--------------------")
    assert not figures._MARK.search(head)
    html = body.replace("[", "<a>").replace("](x)", "</a>").replace('alt="', 'alt="\U000f0000')
    html, given = figures.offer(html, page)
    assert given == [
        ("n", "4.5"),
        ("n", "4.5"),
        ("(2.5, 2) + (n,)[:0]", "[2.5, 2]"),
        ("4 / n + 1 / 3", "1.22222"),
        ("n", "4.5"),
    ]
    assert not figures._MARK.search(html)
    for shown in ("**<p-f>4.5</p-f>**", "`<p-f>(2.5, 2)</p-f>`", "<p-f>1.22</p-f>", "<p-f>$4.5$</p-f>"):
        assert shown in html
    for plain in ("<a>4.5</a>", '<img alt="4.5">'):
        assert plain in html


def test_a_computed_table_and_computed_words_are_no_figures(tmp_path: Path) -> None:
    page = """
# %% [markdown]
# {{ table }}
#
# It has {{ word }} and {{ n }}.

# %%
n, word, table = 2.5, "rows", "| a | b |\\n| --- | --- |\\n| 1 | 2 |"
"""
    marked = figures.marked(looked_at(tmp_path, page))(0)
    assert marked.startswith("| a | b |\n| --- | --- |\n| 1 | 2 |\n\nIt has rows and ")
    assert figures.unmarked(marked).endswith("It has rows and 2.5.")
    assert figures.unmarked(marked) != marked


def test_a_page_without_figures_stays_as_it_is(tmp_path: Path) -> None:
    page = looked_at(tmp_path, "# %% [markdown]\n# Words.\n")
    assert figures.offer("<p>Words > others.", page) == ("<p>Words > others.", [])
