"""A hook of the site: pages are found by what they say, the errors that they show, and what people call things."""

import json
import re
import tomllib
from html import unescape
from pathlib import Path
from posixpath import normpath
from textwrap import shorten
from typing import Any

from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

LONG = 240  # no sentence, but a list of cards
NAMES, INDEX, TABLES = "search.toml", "search/search_index.json", ("same", "pages")
_FORM = '<form class="md-search__form" name="search">'
_WORKER = re.compile(r'("search": ?"[^"]*?assets/)javascripts/workers/[\w.]+\.js"')
_CELL, _ROW = "\ue010", "\ue011"  # where they end; the theme's index has a table as one text
_HEADING = re.compile(r"(?m)^#+ (.*)$")
_PIECE = re.compile(r"</?(?:p|li|ul|ol|td|th|tr|dd|dt|figcaption|h\d|pre)\b[^>]*>")
_LINK = re.compile(r'<a\b[^>]*? href="([^":]*)"[^>]*>(.*?)</a>', re.DOTALL)
_HEADERLINK = re.compile(r'<a class="headerlink".*?</a>')
_INSIDE = re.compile(r"</?(?:code|em|strong|su[bp])\b[^>]*>")  # what parts no words
_SENTENCE = re.compile(r"(?<=[.:?!])\s+(?=[A-Z*(])")
_SILENT = ("notation/", "references/")  # most of their links are single words and works


def names(text: str, urls: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return one word for another, and what else people call each page, by its address.

    Args:
        text: The data, with these two tables.
        urls: The addresses of the pages, by their names.

    Raises:
        PluginError: It cannot be read, or names what is no page.
    """
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PluginError(f"{NAMES} is not TOML: {error}") from None
    if odd := sorted(read.keys() - {*TABLES}):
        raise PluginError(f"{NAMES} has {', '.join(odd)}; give it the tables {' and '.join(TABLES)}, and nothing else")
    pages = read.get("pages", {})
    if unknown := sorted(pages.keys() - urls.keys()):
        remedy = "give each the name that its file has now, or take its line out"
        raise PluginError(f"{NAMES} names what is no page: {', '.join(unknown)}; {remedy}")
    return {"same": read.get("same", {}), "pages": {urls[name]: words for name, words in pages.items()}}


def raised(notebook: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the errors that the cells of a page raise, each with the heading above it as an anchor is made of it."""
    above, found = "", list[tuple[str, str]]()
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            for heading in _HEADING.findall("".join(cell["source"])):
                above = slugify(re.sub(r"[`*$]|\[|\]\(.*?\)", "", heading), "-")
        errors = [output for output in cell.get("outputs", []) if output["output_type"] == "error"]
        # PyTorch goes on for pages about each of its backends, and people type the beginning.
        found += [(above, shorten(f"{error['ename']}: {error['evalue']}", 160)) for error in errors]
    return found


def pointed(html: str, url: str) -> list[tuple[str, str]]:
    """Return where the links of a page lead, each with its sentence, or itself where it is more than that.

    >>> pointed('<p>No. A <a href="../b/#c"><em>leak</em></a> is found.</p><p><a href="#d">x</a></p>', "a/")
    [('b/#c', 'A leak is found.'), ('a/#d', 'x')]
    """
    found = []
    for piece in _PIECE.split(_HEADERLINK.sub("", html)):
        for address, inside in _LINK.findall(piece):
            path, mark, anchor = address.partition("#")
            to = normpath(f"/{url}{path}").strip("/") + "/" if path else url
            link = _words(inside)
            told = next((each for each in _SENTENCE.split(_words(piece)) if link in each), link)
            if len(told) > LONG:
                told = link
            found.append((to.lstrip("/") + mark + anchor, told))
    return found


def _words(html: str) -> str:
    return " ".join(unescape(re.sub("<[^>]*>", " ", _INSIDE.sub("", html))).split())


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Read what else people call things, for the index."""
    urls = {file.src_uri: file.url.removeprefix("./") for file in files.documentation_pages()}
    config.extra["pointed"] = {}
    config.extra["names"] = names(Path(config.docs_dir, NAMES).read_text(encoding="utf-8"), urls)
    return files


@event_priority(100)  # before the theme's search reads it
def on_page_context(context: dict[str, Any], *, page: Page, config: MkDocsConfig, **_: Any) -> dict[str, Any]:
    """Mark where the cells and rows of tables end, until the page is written, and read what it says of others."""
    for to, told in pointed(page.content or "", page.url.removeprefix("./")):
        config.extra["pointed"].setdefault(to, {})[told] = True
    page.content = re.sub("(?=</t[dh]>)", _CELL, page.content or "").replace("</tr>", f"{_ROW}</tr>")
    return context


@event_priority(90)  # before the page's Markdown is made of it
def on_post_page(output: str, **_: Any) -> str:
    """Let the search ask the site's own worker, which loads the index once somebody searches.

    The theme would load it on every page that has a form of this name.
    """
    output = output.replace(_CELL, "").replace(_ROW, "")
    return _WORKER.sub(r'\1search.js"', output).replace(_FORM, _FORM.replace(' name="search"', ""))


def on_post_template(output_content: str, **_: Any) -> str:
    """The same for the page of what is missing."""
    return on_post_page(output_content)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Put what else people call things, and errors, into the index, once the search has written it."""
    site = Path(config.site_dir)
    index = json.loads((site / INDEX).read_text(encoding="utf-8"))
    called = config.extra["names"]
    headings: dict[str, dict[str, dict[str, Any]]] = {}
    for entry in index["docs"]:
        page, _, anchor = entry["location"].partition("#")
        if not anchor and page in called["pages"]:
            entry["tags"] = called["pages"][page]
        if page not in _SILENT and (told := config.extra["pointed"].get(entry["location"])):
            entry["told"] = [*told]
        headings.setdefault(page, {})[slugify(unescape(re.sub("<[^>]*>", "", entry["title"])), "-")] = entry
    for file in site.rglob("*.ipynb"):
        sections = headings.get(f"{file.parent.relative_to(site).as_posix()}/", {})
        for above, error in raised(json.loads(file.read_text(encoding="utf-8"))):
            if above in sections:
                sections[above].setdefault("errors", []).append(error)
    told = {"same": called["same"], "docs": index["docs"]}
    (site / INDEX).write_text(json.dumps(told, separators=(",", ":")), encoding="utf-8")
