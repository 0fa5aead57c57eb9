"""Cells as HTML, without a site around them."""

import re
from pathlib import Path

import pytest

from proofread.checks.checked import Checked
from proofread.programs import Snippet, disagreement
from proofread.programs.trial import Ran
from proofread.publish.render import Rendered, _tables_of_the_site, render
from proofread.settings import Settings

from ..contrast import contrast
from .conftest import Project, Proofreader

PAGE = r"""
# %%
#| alt: a line
import matplotlib.pyplot as plt

plt.plot([1, 2, 3])
print(f"{1 + 1} é", "\n" in "a", True)  # a comment

# %%
class Empty:
    def _repr_mimebundle_(self, **_):
        return {"application/x-own+json": {"a": 1}}, {}

    def __repr__(self):
        return "own"

Empty()

# %%
#| alt: both
class Both:
    def _repr_png_(self):
        return b"\x89PNG\r\n\x1a\n" + bytes(20)

    def _repr_html_(self):
        return '<i class="both">html</i> <img src=x> & "quoted"'

    def _repr_latex_(self):
        return "$x$"

Both()

# %%
from IPython.display import JSON, display

class Frame:
    def _repr_html_(self):
        return '''<div>
<style scoped>
    .dataframe tbody tr th { vertical-align: top; }
</style>
<table border="1" class="dataframe">
  <thead><tr style="text-align: right;"><th></th><th>a</th></tr></thead>
  <tbody><tr><th>0</th><td>1</td></tr><tr><th rowspan="2">1</th><td>2</td></tr></tbody>
</table></div>'''

class Figure:
    def _repr_mimebundle_(self, **_):
        return {"application/vnd.own.v1+json": {"x": [0] * 9}, "text/html": "<div id='own'></div>" + " " * 320_000}

    def __repr__(self):
        return "Figure({'x': [0, 0, 0]})"

class Shows:
    def _ipython_display_(self):
        display({"text/html": "<p>shown by itself</p>"}, raw=True)

Frame()

# %%
JSON({"a": [1, "<b>"]})

# %%
JSON(list(range(40)))

# %%
print("before")
display(Frame())
display(Figure())
Figure()

# %%
Shows()
"""
STYLES = (Path(__file__).parents[2] / "src/proofread/publish/assets/proofread.css").read_text()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    report = Project(tmp_path_factory.mktemp("project")).proofread(PAGE, programs=True)
    assert report.findings == []  # 320 kB of HTML are no text, and every program prints what it can
    return report.pages[0]


@pytest.fixture(scope="module")
def rendered(page: Checked) -> Rendered:
    return render(page, "page/")


def test_rendering_the_same_page_again_gives_the_same(page: Checked, rendered: Rendered) -> None:
    again = render(page, "page/")
    assert again == rendered
    assert page.outputs(0)[-1]["data"].keys() > {"image/svg+xml"}  # and leaves the page as it is


def test_only_what_has_a_colour_of_its_own_is_marked(rendered: Rendered) -> None:
    (code,) = re.findall(r"<code>(.*?)</code>", rendered.cells[0], re.DOTALL)
    assert code.startswith('<i class="k">import</i> <i class="nf">matplotlib.pyplot</i> <i class="k">as</i>')
    assert "plt.plot([" in code
    assert '(<i class="s">f"{</i><i class="m">1</i> + <i class="m">1</i><i class="s">} é"</i>' in code
    assert '<i class="se">\\n</i><i class="s">"</i> <i class="k">in</i>' in code
    assert ", True)" in code
    assert '<i class="c"># a comment</i>' in code


def test_the_code_can_be_copied_as_it_was_written(page: Checked, rendered: Rendered) -> None:
    import html

    for index, cell in rendered.cells.items():
        (code,) = re.findall(r"<code>(.*?)</code>", cell, re.DOTALL)
        assert html.unescape(re.sub("<[^>]*>", "", code)) == page.page.cells[index].shown + "\n"


def test_files_are_addressed_from_the_page(rendered: Rendered) -> None:
    assert set(rendered.files) >= {"cell-1.py", "figure-1.svg"}
    addresses = re.findall(r'(?:src|href)="(page/[^"]*)"', "".join(rendered.cells.values()))
    assert {address.removeprefix("page/") for address in addresses} == set(rendered.files)


def test_html_is_preferred_to_a_picture_of_it_and_left_as_it_is(rendered: Rendered) -> None:
    assert '<i class="both">html</i> <img src=x> & "quoted"' in rendered.cells[2]
    assert "figure-2" not in rendered.cells[2]


def test_what_has_no_form_that_can_be_shown_is_named(rendered: Rendered) -> None:
    assert "<pre>own</pre>" in rendered.cells[1] or "(application/x-own+json)" in rendered.cells[1]


COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"]
NAMES = [f"{colour}{shade}" for colour in COLOURS for shade in ("", "-intense")]


@pytest.mark.parametrize("name", [*NAMES, "ink"])
# The papers: a white page, Material's code, and the darkest and lightest of Material's dark schemes.
@pytest.mark.parametrize(("scheme", "papers"), [(r":root", ["#ffffff", "#f5f5f5"]), (r"slate", ["#16181d", "#2b2e3b"])])
def test_each_colour_of_a_terminal_can_be_read_by_day_and_by_night(name: str, scheme: str, papers: list[str]) -> None:
    (block,) = re.findall(rf"^[^\n]*{scheme}[^{{}}]*\{{([^{{}}]*ansi-paper[^{{}}]*)\}}", STYLES, re.MULTILINE)
    colours = dict(re.findall(r"--proofread-ansi-([\w-]+): (#\w+);", block))
    for paper in [*papers, colours["paper"]]:
        assert contrast(colours[name], paper) >= 4.5, paper


@pytest.mark.parametrize("name", NAMES)
def test_each_colour_of_a_terminal_has_a_style_for_text_and_ground(name: str) -> None:
    assert f".ansi-{name}-fg {{ color: var(--proofread-ansi-{name}); }}" in STYLES
    assert f".ansi-{name}-bg {{ background: var(--proofread-ansi-{name}); }}" in STYLES


def test_a_table_of_pandas_has_the_styles_of_the_site_and_names_its_rows(page: Checked, rendered: Rendered) -> None:
    cell = rendered.cells[3]
    assert "<style" not in cell
    assert "<table>" in cell
    assert '<th scope="row">0</th>' in cell
    assert '<th scope="row" rowspan="2">1</th>' in cell
    assert "<th></th><th>a</th>" in cell
    assert 'class="dataframe"' in page.outputs(3)[0]["data"]["text/html"]  # which a notebook takes


def test_other_tables_stay_as_they_are() -> None:
    table = '<style>#t {color: red}</style><table class="own"><tbody><tr><th>0</th></tr></tbody></table>'
    assert _tables_of_the_site(table) == table


def test_json_is_shown_and_folded_if_it_is_long(rendered: Rendered) -> None:
    assert "&quot;a&quot;: [\n    1,\n    &quot;&lt;b&gt;&quot;" in rendered.cells[4]
    assert "<summary>JSON (42 lines)</summary>" in rendered.cells[5]
    assert "<summary>JSON" not in rendered.cells[4]


def test_what_a_figure_gives_as_html_is_shown_with_its_program(rendered: Rendered) -> None:
    assert rendered.cells[6].count("<div id='own'></div>") == 2
    assert "<p>shown by itself</p>" in rendered.cells[7]


def test_what_shows_itself_is_not_printed_by_its_program(page: Checked) -> None:
    assert page.program(7).endswith("\nShows()\n")
    assert page.program(6).endswith("print(Figure())\n")


def test_what_is_printed_counts_beside_what_is_shown() -> None:
    snippet = Snippet(shows="before\n\0after\n")
    assert disagreement(snippet, Ran("before\nafter\n")) is None
    assert disagreement(snippet, Ran("before\n<Figure at 0x1f>\nafter\n")) is None
    wrong = disagreement(snippet, Ran("before\n"))
    assert wrong is not None
    assert wrong[0] == "prints something else"
    assert wrong[1].endswith("before\n...after")


@pytest.mark.parametrize(
    ("given", "form"),
    [
        ('{"text/html": "a" * 3000}', "text/html"),
        ('{"application/json": ["a"] * 3000}', "application/json"),
        ('{"image/png": b"a" * 3000}', "image/png"),
    ],
)
def test_what_is_too_much_is_named_with_a_remedy(proofread: Proofreader, given: str, form: str) -> None:
    page = f"# %%\nfrom IPython.display import display\n\ndisplay({given}, raw=True)\n"
    (finding,) = proofread(page, settings=Settings(rich=2_000)).findings
    assert str(finding) == (
        f"page.py:4: cell 1 shows more than 2 kB of {form}, which every reader of the page loads; show fewer points "
        'of it, or a picture, or set rich = "50 MB" under [tool.proofread]'
    )


MARKDOWN = """
# A page

```python title="with a title"
#| alt: a line
#| caption: A line.
import matplotlib.pyplot as plt

plt.plot([1, 2]);
```

```python
#| tags: hide-output
print("not seen")
```

```python
#| tags: hide-input
print("seen")
```

```python
quiet = 1
```
"""


def test_a_markdown_page_shows_what_its_cells_give(proofread: Proofreader) -> None:
    report = proofread(MARKDOWN, name="page.md")
    assert report.findings == []
    rendered = render(report.pages[0], "page/")
    figure, unseen, seen, quiet = (rendered.cells.get(place, "") for place in (1, 3, 5, 7))
    assert figure.startswith('<details class="proofread-copy"')
    assert '<img class="figure" src="page/figure-1.svg" alt="a line"' in figure
    assert "<figcaption><b>Figure 1.</b> A line.</figcaption>" in figure
    assert "import" not in re.sub("<[^>]*>|with imports", "", figure)  # the fence shows the code
    assert "not seen" not in unseen
    assert unseen.startswith('<details class="proofread-copy"')
    assert "<pre>seen\n</pre>" in seen
    assert "proofread-copy" not in seen
    assert "jp-Cell" not in quiet
    fences = [cell.fenced for cell in report.pages[0].page.cells if cell.is_code]
    assert fences[0].startswith('```python title="with a title"\nimport matplotlib')
    assert fences[1] == '```python\nprint("not seen")\n```'
    assert fences[2] == ""
