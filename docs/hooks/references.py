"""A hook of the site: the list of references is made of its data."""

import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

LIST, MARK = "references.md", '<div data-list="references"></div>'


def listed(data: dict[str, dict[str, Any]]) -> str:
    """The entries as a list, each with an anchor, its link, and what it is cited for."""
    told = []
    for key, entry in data.items():
        year = f" ({entry['year']})." if "year" in entry else "" if entry["authors"].endswith(".") else "."
        venue = f" {entry['venue']}." if "venue" in entry else ""
        title = f"[*{entry['title']}*]({entry['link']})"
        told.append(f"- {entry['authors']}{year} {title}.{venue} {entry['about']}\n  {{: #{key} }}")
    return "\n".join(told)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the list into its page."""
    if page.file.src_uri != LIST:
        return markdown
    data = tomllib.loads(Path(config.docs_dir, "references.toml").read_text(encoding="utf-8"))
    if MARK not in markdown:
        raise ValueError(f"{LIST} has no place for the list; write {MARK} where it shall stand")
    return markdown.replace(MARK, listed(data))
