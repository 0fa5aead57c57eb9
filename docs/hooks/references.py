"""A hook of the site: the list of references is made of its data, and where a page cites a work, it leads to it."""

import re
import tomllib
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

LIST, MARK = "references.md", '<div data-list="references"></div>'
# Where a link would stand in a link, in a heading, in a name, or in what a program gave.
_TAG = re.compile(r"<(?P<end>/?)(?P<closed>a|autoref|code|h[1-6]|math|pre|script|style|summary|svg)\b[^>]*>|<[^>]*>")


def listed(data: dict[str, dict[str, Any]]) -> str:
    """The entries as a list, each with an anchor, its link, and what it is cited for."""
    told = []
    for key, entry in data.items():
        year = f" ({entry['year']})." if "year" in entry else "" if entry["authors"].endswith(".") else "."
        venue = f" {entry['venue']}." if "venue" in entry else ""
        title = f"[*{entry['title']}*]({entry['link']})"
        told.append(f"- {entry['authors']}{year} {title}.{venue} {entry['about']}\n  {{: #{key} }}")
    return "\n".join(told)


def linked(html: str, data: dict[str, dict[str, Any]]) -> str:
    """Make links of what cites a work: "Vaswani et al. (2017)" leads to the paper."""
    links = {(re.split(",| Team", each["authors"])[0], str(each.get("year"))): each["link"] for each in data.values()}
    names, years = ("|".join(map(re.escape, {key[place] for key in links})) for place in (0, 1))
    cited = re.compile(
        rf"\b(?P<name>{names})\b[^()<>\d.;:]{{0,60}}?(?:\bal\.)?,? (?:\((?P<in>{years})\)|(?P<bare>{years})\b)"
    )

    def link(found: re.Match[str]) -> str:
        address = links.get((found["name"], found["in"] or found["bare"]))
        return f'<a href="{escape(address)}">{found[0]}</a>' if address else found[0]

    pieces, depth, end = [], 0, 0
    for tag in _TAG.finditer(html):
        text = html[end : tag.start()]
        pieces += [text if depth else cited.sub(link, text), tag[0]]
        depth += (-1 if tag["end"] else 1) if tag["closed"] else 0
        end = tag.end()
    return "".join([*pieces, cited.sub(link, html[end:])])


def _read(config: MkDocsConfig) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(config.docs_dir, "references.toml").read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise PluginError(f"references.toml is not TOML: {error}") from None


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead from each citation to the work."""
    return linked(html, _read(config))


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the list into its page."""
    if page.file.src_uri != LIST:
        return markdown
    data = _read(config)
    if MARK not in markdown:
        raise PluginError(f"{LIST} has no place for the list; write {MARK} where it shall stand")
    return markdown.replace(MARK, listed(data))
