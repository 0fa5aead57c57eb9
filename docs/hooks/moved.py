"""A hook of the site: addresses that pages and headings had lead to where these are now, as one table says."""

import re
import tomllib
from html import escape
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

TABLE = "moved.toml"
_pages: dict[str, str] = {}
_headings: dict[str, dict[str, str]] = {}
_modules: dict[str, str] = {}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Read the table.

    Raises:
        PluginError: It cannot be read, or leads to what is no page, or from what is one.
    """
    try:
        told = tomllib.loads(Path(config.docs_dir, TABLE).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise PluginError(f"{TABLE} is not TOML: {error}") from None
    there = {file.url.removeprefix("./") for file in files.documentation_pages()}
    for new in [*told["pages"].values(), *told["headings"]]:
        if new not in there:
            raise PluginError(f"{TABLE} leads to {new}, which is no page: name the page that has its content now")
    for old in told["pages"]:
        if old in there:
            raise PluginError(f"{TABLE} leads away from {old}, which is a page: take the line out")
    _pages.clear()
    _pages.update(told["pages"])
    _headings.clear()
    _headings.update(told["headings"])
    _modules.clear()
    _modules.update(told.get("modules", {}))
    return files


def named(html: str, names: dict[str, str], page: str) -> str:
    """The page, where its headings are found by the names that they had, too.

    Raises:
        PluginError: It has no such heading.
    """
    for old, new in names.items():
        html, found = re.subn(rf'(?=<[^>]* id="{re.escape(new)}")', f'<span id="{escape(old)}"></span>', html, count=1)
        if not found:
            raise PluginError(
                f"{TABLE} leads to {page}#{new}, and the page has no such heading: name the one it has now"
            )
    return html


def in_modules(html: str, modules: dict[str, str]) -> dict[str, str]:
    """The names that headings of the reference had, as members of the modules that moved.

    >>> in_modules('<h2 id="new.home.f"></h2><h2 id="newer"></h2>', {"old": "new", "old.house": "new.home"})
    {'old.house.f': 'new.home.f'}
    """
    names = {}
    for heading in re.findall(r'<h\d [^>]*id="([\w.]+)"', html):
        homes = [old for old, new in modules.items() if f"{heading}.".startswith(f"{new}.")]
        if homes:
            old = max(homes, key=lambda old: len(modules[old]))
            names[heading.replace(modules[old], old, 1)] = heading
    return names


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep the names that headings had."""
    return named(html, in_modules(html, _modules) | _headings.get(page.url, {}), page.url)


def stub(old: str, new: str) -> str:
    """What stands at an address that a page had: it leads on, to the same heading."""
    address = escape(get_relative_url(new, old))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Moved</title>\n'
        f'<meta name="robots" content="noindex">\n'
        f'<script>location.replace("{address}" + location.hash)</script>\n'
        f'<noscript><meta http-equiv="refresh" content="0; url={address}"></noscript>\n</head>\n'
        f'<body><p>This page has <a href="{address}">another address</a> now.</p></body>\n</html>\n'
    )


def on_post_build(*, config: MkDocsConfig) -> None:
    """Put something at the addresses that pages had."""
    for old, new in _pages.items():
        file = Path(config.site_dir, old, "index.html")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(stub(old, new), encoding="utf-8")
