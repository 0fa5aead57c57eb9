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


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Read the table, for what comes later: `config.extra["moved"]`.

    Raises:
        PluginError: It cannot be read, or leads to what is no page, or from what is one.
    """
    try:
        table = tomllib.loads(Path(config.docs_dir, TABLE).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise PluginError(f"{TABLE} is not TOML: {error}") from None
    there = {file.url.removeprefix("./") for file in files.documentation_pages()}
    for new in [*table["pages"].values(), *table["headings"]]:
        if new not in there:
            raise PluginError(f"{TABLE} leads to {new}, which is no page: name the page that has its content now")
    for old in table["pages"]:
        if old in there:
            raise PluginError(f"{TABLE} leads away from {old}, which is a page: take the line out")
    config.extra["moved"] = {"modules": {}, **table}
    return files


def named(html: str, names: dict[str, str], page: str) -> str:
    """Return the page, with its headings found by the names that they had, too.

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
    """Return the names that headings of the reference had, as members of the modules that moved.

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
    table = config.extra["moved"]
    return named(html, in_modules(html, table["modules"]) | table["headings"].get(page.url, {}), page.url)


def stub(old: str, new: str) -> str:
    """Return the page at an address that another had: it leads on, to the same heading."""
    address = escape(get_relative_url(new, old))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Moved</title>\n'
        f'<meta name="robots" content="noindex">\n'
        f'<script>location.replace("{address}" + location.hash)</script>\n'
        f'<noscript><meta http-equiv="refresh" content="0; url={address}"></noscript>\n</head>\n'
        f'<body><p>This page has <a href="{address}">another address</a> now.</p></body>\n</html>\n'
    )


def on_post_build(*, config: MkDocsConfig) -> None:
    """Put a page that leads on at each address that a page had."""
    for old, new in config.extra["moved"]["pages"].items():
        file = Path(config.site_dir, old, "index.html")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(stub(old, new), encoding="utf-8")
