"""The executed notebook of a page: its cells with what they gave, and its values filled in."""

import ast
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from html import escape, unescape
from typing import TYPE_CHECKING, Any

from ..checks.checked import Checked
from ..pages.page import FENCE
from ..programs.source import Source
from ..syntax import module
from .installing import UNKNOWN, Installing

if TYPE_CHECKING:  # it takes a while to import, and a build in which nothing has changed needs it not at all
    from nbformat import NotebookNode

_HIDDEN = {
    "hide-input": {"source_hidden": True},
    "hide-output": {"outputs_hidden": True},
    "solution": {"source_hidden": True, "outputs_hidden": True},
    "check": {"source_hidden": True, "outputs_hidden": True},
}
_DRAWN = re.compile(r"<\w*Figure\b|\[?<matplotlib\b")  # how what is drawn prints; the page shows its picture instead
_BOX = re.compile(r'(?:!!!|\?\?\?\+?)[ ]+(?P<kind>[\w-]+)[\w -]*?(?:[ ]+"(?P<title>.*)")?[ ]*')
_TAB = re.compile(r'===[!+]?[ ]+"(?P<title>.*)"[ ]*')
_CODE = rf"(?ms:{FENCE})|(?s:(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))"
_LINK = re.compile(rf"{_CODE}|(?<=\]\()(?P<inline>[^()\s<>]+)|(?m:^[ ]{{0,3}}\[(?!\^)[^\]\n]+\]:[ ]+(?P<named>\S+))")
_HTML_LINK = re.compile(r'(?P<before><(?:a|img)\b[^<>]*?\s(?:href|src)=")(?P<target>[^"]+)')
_TO_PAGE = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])+)\]\((?:\w+://|[^()\s]+\.(?:md|py|ipynb)\b)[^()\s]*\)")
# Classes and names that Markdown gives to what stands before; TeX has braces of its own.
_ATTRIBUTES = re.compile(rf"(?m){_CODE}|(?:(?<=[)\]`*])|[ \t]+(?=\{{[^{{}}\n]*\}}$))\{{:?[ ]*[.#][A-Za-z][^{{}}\n]*\}}")


def notebook(checked: Checked) -> "NotebookNode":
    """Return the page as Jupyter saves it after a run; a cell's id is its place, so it is the same in every build."""
    import nbformat.v4

    cells = []
    for index, cell in enumerate(checked.page.cells):
        # Jupyter goes on after a failure only where the cell has this tag.
        tags = list(dict.fromkeys([*cell.tags, *["raises-exception"] * cell.fails]))
        metadata: dict[str, object] = {"tags": tags} if tags else {}
        if cell.is_code:
            if hidden := {key: value for tag in cell.tags for key, value in _HIDDEN.get(tag, {}).items()}:
                metadata["jupyter"] = hidden
            shows = [nbformat.from_dict(output) for output in checked.outputs(index)]
            made = nbformat.v4.new_code_cell(cell.shown, outputs=shows, metadata=metadata)
        else:
            made = nbformat.v4.new_markdown_cell(checked.of_cell(index)[0], metadata=metadata)
        made["id"] = f"cell-{index + 1}"
        cells.append(made)
    about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    about["language_info"] = {"name": "python"}
    made_notebook: "NotebookNode" = nbformat.v4.new_notebook(cells=cells, metadata=about)
    return made_notebook


def as_notebook(checked: Checked, link: Callable[[str], str] = str, installing: Installing = UNKNOWN) -> str:
    """Return the text of the notebook that readers download.

    `link` turns the target of a link on the page into an address that works anywhere. A cell at the top installs the
    packages that the page documents, where they are missing.
    """
    import nbformat.v4

    made = _captioned(checked)
    for cell in made.cells:
        if cell["cell_type"] == "markdown":
            cell["source"] = for_jupyter(cell["source"], link)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            for kind, changed in (("text/markdown", relink), ("text/html", relink_html)):
                if kind in data:
                    data[kind] = changed("".join(data[kind]), link)
    if source := installing.cell():
        made.cells.insert(1, nbformat.v4.new_code_cell(source, id="install"))
    return str(nbformat.writes(made))


def as_script(checked: Checked, link: Callable[[str], str] = str) -> str:
    """Return the page as a script that plain Python runs to its end, and that shows what the page shows.

    A cell that must fail prints its exception, the last value of a cell is printed, what pyplot draws opens a window,
    and what is drawn without pyplot becomes a file. `link` is that of `as_notebook`.
    """
    import jupytext
    import nbformat

    made = _captioned(checked)
    made["metadata"] = nbformat.from_dict({"jupytext": {"notebook_metadata_filter": "-all"}})
    programs = {f"cell-{place + 1}": snippet.text for place, snippet in checked.snippets.items()}
    for cell in made.cells:
        if cell["cell_type"] == "code":
            cell["source"] = showing(
                cell["source"], cell["outputs"], programs.get(cell["id"], ""), checked.page.code, cell["id"]
            )
        cell["metadata"].pop("jupyter", None)
        if cell["cell_type"] == "markdown":
            cell["source"] = relink(cell["source"], link)
        elif "raises-exception" in cell["metadata"].get("tags", []):
            cell["source"] = _caught(cell["source"])
    return str(jupytext.writes(made, fmt="py:percent"))


def caption(number: int, text: str) -> str:
    """Return the caption of a figure, as Markdown below it."""
    return f"**Figure {number}.** {' '.join(text.split())}"


def _captioned(checked: Checked) -> "NotebookNode":
    """Return the notebook with the captions of a cell's figures in a cell below it."""
    import nbformat.v4

    made, captions = notebook(checked), checked.captions
    for index in sorted({cell for cell, _ in captions}, reverse=True):
        numbered = [captioned for (cell, _), captioned in captions.items() if cell == index]
        anchors = "".join(f'<a id="figure-{number}"></a>' for number, _ in numbered)
        text = "\n\n".join(caption(*captioned) for captioned in numbered)
        below = nbformat.v4.new_markdown_cell(f"{anchors}{text}", id=f"cell-{index + 1}-caption")
        made.cells.insert(index + 1, below)
    return made


def for_jupyter(markdown: str, link: Callable[[str], str] = str) -> str:
    r"""Turn Markdown of the site into that of Jupyter, which knows neither admonitions nor tabs nor attributes.

    >>> print(for_jupyter('!!! note "Mind the *gap*"\n\n    It is [wide](gap.md){ .wide }.'))
    > **Mind the *gap***
    >
    > It is [wide](gap.md).
    """
    plain = _ATTRIBUTES.sub(lambda match: match[0] if match["fence"] or match["ticks"] else "", markdown)
    return _boxes(relink(plain, link))


def relink(markdown: str, link: Callable[[str], str]) -> str:
    """Change the targets of the links in a Markdown text, but nothing in code.

    >>> relink("See [b](b.py#c) and `[x](y)`.", str.upper)
    'See [b](B.PY#C) and `[x](y)`.'
    """

    def changed(match: re.Match[str]) -> str:
        target = match["inline"] or match["named"]
        return match[0].removesuffix(target) + link(target) if target else match[0]

    return _LINK.sub(changed, markdown)


def relink_html(html: str, link: Callable[[str], str]) -> str:
    """Change the targets of the links and pictures in HTML.

    >>> relink_html('<p>See <a class="x" href="b.py#c">b</a>', str.upper)
    '<p>See <a class="x" href="B.PY#C">b</a>'
    """
    return _HTML_LINK.sub(lambda match: match["before"] + escape(link(unescape(match["target"]))), html)


def unlinked(markdown: str) -> str:
    """Return the text without its links to pages, for where no link can stand, such as an alt text.

    >>> unlinked("the [heads](heads.py#two) of `x[0](1)`")
    'the heads of `x[0](1)`'
    """
    return _TO_PAGE.sub(r"\1", markdown)


def _boxes(markdown: str) -> str:
    """Turn admonitions into quotations, and tabs into sections that follow each other."""
    lines, written, fence = markdown.split("\n"), [], ""
    while lines:
        line = lines.pop(0)
        if mark := re.match(r"[ ]*(`{3,}|~{3,})", line):
            closes = fence and line.strip() == line.strip()[:1] * len(line.strip()) and line.strip().startswith(fence)
            fence = "" if closes else fence or mark[1]
        box = _BOX.fullmatch(line)
        found = box or _TAB.fullmatch(line)
        if fence or not found:
            written.append(line)
            continue
        inside = []
        while lines and (not lines[0].strip() or lines[0].startswith("    ")):
            inside.append(lines.pop(0))
        body = _boxes(textwrap.dedent("\n".join(inside)).strip("\n")).strip("\n")
        title = found["title"] if found["title"] is not None else found["kind"].replace("-", " ").capitalize()
        shown = (f"**{title}**\n\n" if title else "") + body
        written += ["\n".join(f"> {part}".rstrip() for part in shown.split("\n")) if box else shown, ""]
    return "\n".join(written)


def showing(
    source: str, outputs: Sequence[Mapping[str, Any]], program: str = "", known: str = "", name: str = "figure"
) -> str:
    r"""Return the source of a cell that also prints its last value, if the page shows it, and opens pyplot's windows.

    The cell's own program, where it has one, says whether `print` gives what was shown or `repr` is needed, and by
    which name the page calls pyplot. Pyplot is imported by this name, unless the code that is known to run does it.
    What is drawn without pyplot is saved as a file of the given name.

    >>> one = {"output_type": "execute_result", "data": {"text/plain": "'a'"}}
    >>> print(showing("x = 'a'\nx  # so", [one]))
    x = 'a'
    print(repr(x))  # so
    """
    text = Source(source)
    last = text.tree.body[-1] if text.tree.body else None
    plain = ["".join(each["data"].get("text/plain", "")) for each in outputs if each["output_type"] == "execute_result"]
    if plain and isinstance(last, ast.Expr):
        start, end = text.span(last)
        expression = text.of(last)
        if not _DRAWN.match(plain[-1]):
            ways = [f"print({expression})", f"print(({expression}))"]
            shown = next((way for way in ways if way in program), f"print(repr({expression}))")
        elif any(each["output_type"] == "display_data" for each in outputs):
            shown = expression  # pyplot shows it
        else:
            whole = (
                expression
                if isinstance(last.value, ast.Name | ast.Call | ast.Attribute | ast.Subscript)
                else f"({expression})"
            )
            shown = f'{whole}.savefig("{name}.svg")'
        source = source[:start] + shown + source[end:]
    if not (named := re.findall(r"^(\w+)\.show\(\)$", program, re.MULTILINE)) or ".show(" in source:
        return source
    # A function may draw for the cell: the page itself need not import pyplot.
    pyplot = named[-1]
    is_imported = re.search(rf"\bimport (matplotlib\.pyplot as {pyplot}|{pyplot})\b", known)
    imported = "" if is_imported else f"import matplotlib.pyplot as {pyplot}\n\n"
    return f"{source.rstrip()}\n{imported}{pyplot}.show()"


def _caught(source: str) -> str:
    """Return the source of a cell that prints its exception instead of raising it."""
    try:
        tree = module(source)
    except SyntaxError as error:  # the cell shows this very error; a script with such a line would not start
        return textwrap.indent(f"{source}\n{type(error).__name__}: {error.msg}", "# ", lambda line: True)
    inside_strings = {
        line
        for node in ast.walk(tree)
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno
        for line in range(node.lineno + 1, node.end_lineno + 1)
    }
    lines = enumerate(source.split("\n"), 1)
    body = "\n".join(line if not line or number in inside_strings else f"    {line}" for number, line in lines)
    return f'try:\n{body}\nexcept Exception as error:\n    print(f"{{type(error).__name__}}: {{error}}")'
