"""A hook of the site: pages are found by what people call things, and by the error messages that lead to them."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files

ALIASES, INDEX, WORKER = "search.toml", "search/search_index.json", "assets/search.js"
_FORM = '<form class="md-search__form" name="search">'
_WORKER = re.compile(r'("search": ?"[^"]*?assets/)javascripts/workers/[\w.]+\.js"')
_PLACE = "THEMES_WORKER"


def aliases(text: str, urls: dict[str, str]) -> dict[str, list[str]]:
    """Return the other names of each page, by its address.

    Args:
        text: The data, with a list for each page.
        urls: The addresses of the pages, by their names.

    Raises:
        PluginError: It cannot be read, or names what is no page.
    """
    try:
        called = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PluginError(f"{ALIASES} is not TOML: {error}") from None
    if unknown := sorted(called.keys() - urls.keys()):
        remedy = "give each the name that its file has now, or take its line out"
        raise PluginError(f"{ALIASES} names what is no page: {', '.join(unknown)}; {remedy}")
    return {urls[name]: words for name, words in called.items()}


def named(index: dict[str, Any], called: dict[str, list[str]]) -> None:
    """Give each page its other names, and its sections none. A name weighs as much as a title.

    More, and pages with few names would be found by none of their words.
    """
    fields = index["config"]["fields"]
    fields["tags"] = fields["title"]
    for entry in index["docs"]:
        if entry["location"] in called:
            entry["tags"] = called[entry["location"]]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Read the other names of pages, for the index: `config.extra["aliases"]`."""
    urls = {file.src_uri: file.url for file in files.documentation_pages()}
    text = Path(config.docs_dir, ALIASES).read_text(encoding="utf-8")
    config.extra["aliases"] = aliases(text, {name: url.removeprefix("./") for name, url in urls.items()})
    return files


def on_post_page(output: str, **_: Any) -> str:
    """Let the search ask a worker of the site's own, which asks the theme's.

    That worker loads the index. The theme would load it on every page that has a form of this name.
    """
    return _WORKER.sub(r'\1search.js"', output).replace(_FORM, _FORM.replace(' name="search"', ""))


def on_post_template(output_content: str, **_: Any) -> str:
    """The same for the page of what is missing."""
    return on_post_page(output_content)


def asking(script: str, names: list[str]) -> str:
    """The site's worker, with the name of the theme's: it runs that and no other, whatever its address says.

    Raises:
        PluginError: The theme has none, or several.
    """
    if len(names) != 1 or _PLACE not in script:
        raise PluginError(f"{WORKER} runs the worker of the theme's search at {_PLACE}, and there is {names}")
    return script.replace(_PLACE, names[0])


def on_post_build(*, config: MkDocsConfig) -> None:
    """Put it into the index, once the search has written it, and what the search runs into its worker."""
    worker = Path(config.site_dir, WORKER)
    names = [
        file.relative_to(worker.parent).as_posix() for file in worker.parent.glob("javascripts/workers/search.*.js")
    ]
    script = Path(config.docs_dir, WORKER).read_text(encoding="utf-8")  # a build of what has changed copies it once
    worker.write_text(asking(script, names), encoding="utf-8")
    file = Path(config.site_dir, INDEX)
    index = json.loads(file.read_text(encoding="utf-8"))
    named(index, config.extra["aliases"])
    file.write_text(json.dumps(index, separators=(",", ":")), encoding="utf-8")
