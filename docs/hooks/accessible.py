"""A hook of the site: what the theme and Markdown leave unsaid to readers who do not see the page."""

import re
from typing import Any

from mkdocs.structure.pages import Page

_EMPTY = re.compile(r"<th(?: [^>]*)?>\s*</th>")
_PATH = re.compile(r'<span title="[\w.]+">')
_SEARCH = {
    r'(<div class="md-search"[^>]*) role="dialog">': r'\1 role="dialog" aria-label="Search">',
    '<div class="md-search-result__meta">': '<div class="md-search-result__meta" role="status">',
}


def on_page_content(html: str, **_: Any) -> str:
    """The corner of a table heads no column."""
    return _EMPTY.sub("<td></td>", html)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """In the reference a type carries no path, which may be private.

    The paths come after the page's content: they are what is left of references that lead nowhere.
    """
    output = on_post_template(output)
    return _PATH.sub("<span>", output) if page.file.src_uri.startswith("reference/") else output


def on_post_template(output_content: str, **_: Any) -> str:
    """The search is a dialog, and says so by name, and what it finds is told, on the page of what is missing, too."""
    for said, better in _SEARCH.items():
        output_content = re.sub(said, better, output_content)
    return output_content
