"""Leads links where the site has what they name, in what cells show and in what readers take elsewhere."""

import posixpath
import re
from urllib.parse import unquote, urljoin, urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from .._private import link_resolver
from .notebook import relink_html

_PROGRAM = re.compile(r"(?:\A|/)cell-\d+\.py\Z")  # of a cell, which its own menu links


def from_download(place: str, page: File, files: Files, config: MkDocsConfig, target: str) -> str:
    """Return where a link of a page leads from a file of its own in the site, which readers take elsewhere.

    So it is written in full if the site has an address. A target that names no file of the docs is an address, as
    cells give them; a link to a heading of the page itself leads to the site, since each viewer of notebooks calls
    headings otherwise.
    """
    path, rest = re.split(r"(?=[?#])|\Z", target, maxsplit=1)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:|/", path) or re.match(r"#figure-\d", rest):
        return target
    named = posixpath.normpath(posixpath.join(posixpath.dirname(page.src_uri), path)) if path else page.src_uri
    linked = files.get_file_from_path(named)
    url = linked.url if linked else urljoin(f"/{page.url}", path).removeprefix("/")
    if config.site_url:
        return str(urljoin(config.site_url, url)) + rest
    file = linked.dest_uri if linked else f"{url}index.html" if url.endswith("/") or not url else url
    return get_relative_url(file, place) + rest


class Paths:
    """Where links of a page lead on the site; MkDocs tells of those that lead nowhere, as of links of the prose."""

    def __init__(self, file: File, files: Files, config: MkDocsConfig):
        self._file, self._files = file, files
        self._resolver = link_resolver(file, files, config)

    def of_cell(self, html: str) -> str:
        """Return the HTML of a cell, whose links to files of the docs lead to their pages on the site.

        A target that names no file, nor looks like a page, is an address, which cells may give.
        """
        return relink_html(html, self._led)

    def _led(self, target: str) -> str:
        path = urlsplit(target).path
        named = posixpath.normpath(posixpath.join(posixpath.dirname(self._file.src_uri), unquote(path)).lstrip("/"))
        names_page = path.endswith((".md", ".ipynb")) or (path.endswith(".py") and not _PROGRAM.search(path))
        return (
            str(self._resolver.path_to_url(target)) if names_page or self._files.get_file_from_path(named) else target
        )

    def tell(self, page: Page) -> None:
        """Let MkDocs look for the anchors, too, once it has all pages."""
        for file, anchors in self._resolver.links_to_anchors.items():
            if page.links_to_anchors is not None:
                page.links_to_anchors.setdefault(file, {}).update(anchors)
