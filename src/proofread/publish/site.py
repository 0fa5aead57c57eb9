"""Exports a whole site as a project for Zensical, or for another generator that reads mkdocs.yml as it does.

MkDocs renders the pages with all that the site has for that: proofread, other plugins, hooks, extensions. What MkDocs
leaves to a theme is the other generator's: the frame around the pages, navigation, contents, search. So a page becomes
a Markdown file that holds HTML, in which only the headings are Markdown's: from these come contents and search.
"""

import contextlib
import posixpath
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from html import unescape
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from bs4 import BeautifulSoup
from bs4.element import Comment, NavigableString, Tag
from jinja2 import Environment
from markdown.util import BLOCK_LEVEL_ELEMENTS
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.config.config_options import ExtraScriptValue
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import Abort, ConfigurationError
from mkdocs.plugins import BasePlugin, event_priority
from mkdocs.structure import StructureItem
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link, Navigation, Section
from mkdocs.structure.pages import Page
from mkdocs.structure.toc import AnchorLink
from mkdocs.utils.yaml import yaml_load

from . import figures
from .mkdocs_plugin import ProofreadConfig, ProofreadPlugin

# The settings that the other generator gets as MkDocs had them. Nobody is to edit an export.
_SAME = (
    *("site_name", "site_url", "site_description", "site_author", "copyright", "repo_url", "repo_name", "strict"),
    *("use_directory_urls", "extra", "extra_css"),
)
# The file that marks a folder as made here, which may be made anew. MkDocs leaves hidden files alone.
_MARK = ".proofread-export"
_FRAME = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title></title></head><body>{{ page.content }}'
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_AROUND = ("article", "aside", "blockquote", "details", "div", "main", "section")  # a heading may stand in
# Markdown makes blanks of a tab, and nothing of those on a line of their own; Zensical sees links in listings.
_BLANK = re.compile(
    r"(?s)(<(?:script|style)\b.*?</(?:script|style)>|<[^>]*>|^/{3,}[^\n]*)|\t|\[|(?<=\n) (?= *\n)", re.M
)


class ExportError(ValueError):
    """A site cannot be exported to where it should."""


class NotBuiltError(RuntimeError):
    """MkDocs did not build the site; its log says why."""


def export_site(config_file: Path, target: Path, *, anyway: bool = False) -> None:
    """Write a site as a folder in which `zensical build` makes it.

    The target is a folder that is not there, is empty, or was exported before. It appears when it is whole. A site with
    findings is not exported, unless it shall be anyway: its pages then begin with what was found on them.

    Raises:
        ExportError: The target holds something else, or the file is no configuration of a site with proofread.
        NotBuiltError: Something was found on the pages, or MkDocs warned of something in a strict build.
    """
    config_file = config_file.resolve()
    try:
        with config_file.open("rb") as file:
            source = yaml_load(file)
        with _replacing(target, config_file.parent / source.get("docs_dir", "docs")) as folder:
            config, kept = _built(config_file, folder / "docs", anyway)
            for name, text in kept.pages.items():
                (page := folder / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
                page.write_text(text, encoding="utf-8")
            settings = _settings(source, config) | {"nav": [_entry(item) for item in kept.nav.items]}
            if custom := settings["theme"].get("custom_dir"):
                shutil.copytree(config_file.parent / custom, folder / "theme")
                settings["theme"]["custom_dir"] = "theme"
            (folder / "mkdocs.yml").write_text(_yaml(settings), encoding="utf-8")
    except ConfigurationError as error:
        raise ExportError(f"{config_file} is no configuration of a site that can be exported: {error}") from None


@contextlib.contextmanager
def _replacing(target: Path, docs: Path) -> Iterator[Path]:
    """A folder to write into; it takes the place of the target once it is whole, and never if anything goes wrong.

    Raises:
        ExportError: The target holds something that was not exported, or lies in the docs.
    """
    docs, target = docs.resolve(), target.resolve()
    _free(target, docs)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as made:
        folder = Path(made, "new")
        folder.mkdir()
        (folder / _MARK).write_text("Written by `proofread export`, which may write it anew.\n", encoding="utf-8")
        yield folder
        if target.exists():
            target.rename(Path(made, "old"))
        folder.rename(target)


def _free(target: Path, docs: Path) -> None:
    if target.is_relative_to(docs) or docs.is_relative_to(target):
        raise ExportError(f"target ({target}) must not lie in docs ({docs}), nor docs in it; choose a folder beside it")
    if target.exists() and not (target / _MARK).exists() and (not target.is_dir() or any(target.iterdir())):
        what = "holds something that was not exported"
        raise ExportError(f"target ({target}) {what}; remove it or choose another folder")


class _Kept(BasePlugin[ProofreadConfig]):
    """Keeps what MkDocs has rendered when a theme is to frame it."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}  # by the names of their files
        self.framed: list[str] = []  # where a theme puts them
        self.nav: Navigation

    @event_priority(-100)
    def on_nav(self, nav: Navigation, *, config: MkDocsConfig, files: Files) -> None:
        self.nav = nav

    @event_priority(-100)
    def on_env(self, env: Environment, *, config: MkDocsConfig, files: Files) -> None:
        for file in files.documentation_pages():
            assert file.page is not None
            self.pages[_name(file)] = _page(file.page)
            self.framed.append(file.dest_uri)
            file.page.meta.pop("template", None)  # of the theme that is not there


def _built(config_file: Path, site: Path, anyway: bool) -> tuple[MkDocsConfig, _Kept]:
    """Let MkDocs build with the least of themes, and leave of the site what is no page, index or map."""
    with tempfile.TemporaryDirectory() as theme:
        Path(theme, "main.html").write_text(_FRAME, encoding="utf-8")
        least = {"name": None, "custom_dir": theme, "search_index_only": True}
        config = load_config(str(config_file), theme=least, site_dir=str(site))
        checks = config.plugins.get("proofread")
        if not isinstance(checks, ProofreadPlugin):
            raise ConfigurationError("its plugins lack proofread, which stands before mkdocs-jupyter")
        checks.anyway = anyway
        config.plugins["proofread/export"] = kept = _Kept()
        config.plugins.on_startup(command="build", dirty=False)
        try:
            build(config)
        except Abort as error:
            raise NotBuiltError(str(error)) from None
        finally:
            config.plugins.on_shutdown()
    for name in (*kept.framed, "sitemap.xml", "sitemap.xml.gz", "search/search_index.json"):
        (site / name).unlink(missing_ok=True)
    return config, kept


def _settings(source: Mapping[str, Any], config: MkDocsConfig) -> dict[str, Any]:
    """Return the other generator's mkdocs.yml, but for the navigation."""
    theme = source.get("theme")
    if not isinstance(theme, dict) or theme.get("name") != "material":
        theme = {"name": "material", "font": False}  # no font from another origin: other themes bring their own
    plugins = source.get("plugins") or []
    options = [each for each in (plugins if isinstance(plugins, list) else [plugins]) if isinstance(each, dict)]
    search: dict[str, Any] = next((each["search"] for each in options if each.get("search")), {})
    modes = [{"tag": tag, "mode": "html"} for tag in _HEADINGS] + [{"tag": tag, "mode": "block"} for tag in _AROUND]
    scripts = [
        {"path": each.path, "type": each.type, "async": each.async_, "defer": each.defer}
        if isinstance(each, ExtraScriptValue)
        else each
        for each in config.extra_javascript
    ]
    return {name: _plain(config[name]) for name in _SAME if config[name]} | {
        "edit_uri": "",
        "use_directory_urls": config.use_directory_urls,
        "theme": _plain({"variant": "classic"} | theme),
        "plugins": [{"search": {name: search[name] for name in ("lang", "separator") if name in search}}],
        "markdown_extensions": [
            {"toc": _plain(config.mdx_configs.get("toc", {}))},
            {"pymdownx.blocks.html": {"custom": modes}},
        ],
        "extra_javascript": _plain(scripts),
    }


def _page(page: Page) -> str:
    """A page's file: what its front matter said, and its contents as they are shown."""
    # Zensical takes links for those of the file, which need not lie in the folder that the page is in.
    beside = posixpath.relpath(posixpath.dirname(page.url) or ".", posixpath.dirname(page.file.src_uri) or ".")
    contents = BeautifulSoup(page.content or "", "html.parser")
    for element in contents.find_all(True):
        for name in {"href", "src"} & element.attrs.keys():
            element[name] = _moved(str(element[name]), beside)
    text = _BLANK.sub(lambda match: match[1] or f"&#{ord(match[0])};", _written(contents, dict(_labels(page.toc))))
    front = f"---\n{_yaml(_plain(page.meta))}---\n\n" if page.meta else ""
    return figures.unmarked(f"{front}{text}\n")


def _moved(target: str, beside: str) -> str:
    path = re.split("[?#]", target, maxsplit=1)[0]
    if not path or path.startswith("/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", path):
        return target
    folder = "/" if path.endswith("/") or posixpath.basename(path) in (".", "..") else ""
    return posixpath.normpath(posixpath.join(beside, path)) + folder + target[len(path) :]


def _labels(links: Iterable[AnchorLink]) -> Iterator[tuple[str, str]]:
    """Yield the labels of headings in the contents of a page, by their anchors."""
    for link in links:
        yield link.id, link.title
        yield from _labels(link.children)


def _name(file: File) -> str:
    return PurePosixPath(file.src_uri).with_suffix(".md").as_posix()


def _entry(item: StructureItem) -> dict[str, Any]:
    """An entry of the navigation, as mkdocs.yml has it."""
    if isinstance(item, Page):
        return {figures.unmarked(str(item.title)): _name(item.file)}
    if isinstance(item, Section):
        return {item.title: [_entry(child) for child in item.children]}
    assert isinstance(item, Link)
    return {item.title: item.url}


def _plain(value: Any) -> Any:
    """Return the part of a value that can be written as YAML; functions, for one, are left out."""
    if isinstance(value, Mapping):
        return {str(key): plain for key, each in value.items() if (plain := _plain(each)) is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if isinstance(value, (str, int, float, date)) else None


def _yaml(value: Any) -> str:
    return str(yaml.safe_dump(value, allow_unicode=True, sort_keys=False, width=120))


def _written(element: Tag, labels: Mapping[str, str]) -> str:
    """Return the content of an element as Markdown: blocks of HTML, and headings in the elements around them."""
    pieces, loose = [], ""  # what is in no block would become a paragraph of its own
    for node in element.children:
        if not isinstance(node, Tag) or node.name not in BLOCK_LEVEL_ELEMENTS:
            if not isinstance(node, Comment):
                loose += node.output_ready() if isinstance(node, NavigableString) else str(node)
            continue
        pieces.append(f"<div>{loose}</div>" if loose.strip() else "")
        loose = ""
        if node.name in _HEADINGS and node.get("id") in labels:
            pieces.append(_heading(node, labels[str(node["id"])]))
        elif node.name in _AROUND and any(each.get("id") in labels for each in node.find_all(_HEADINGS)):
            pieces.append(_block(node, _written(node, labels)))
        else:
            pieces.append(str(node))
    return "\n\n".join(filter(None, [*pieces, f"<div>{loose}</div>" if loose.strip() else ""]))


def _heading(heading: Tag, label: str) -> str:
    for permalink in heading.find_all(class_="headerlink"):
        permalink.decompose()
    inside = " ".join(heading.decode_contents().split())
    if "<" in label or unescape(label).split() != heading.get_text().split():
        heading["data-toc-label"] = label
    # Markdown takes mathematics for a block.
    return _block(heading, f"<span>{inside}</span>" if inside.startswith("<math") else inside)


def _block(element: Tag, inside: str) -> str:
    """An element around Markdown."""
    fence = "/" * (1 + max(map(len, re.findall("^/{2,}", f"//\n{inside}", re.MULTILINE))))
    attributes = "".join(f"[{name}={_quoted(value)}]" for name, value in element.attrs.items())
    return f"{fence} html | {element.name}{attributes}\n\n{inside}\n\n{fence}"


def _quoted(value: str | Iterable[str]) -> str:
    text = value if isinstance(value, str) else " ".join(value)
    quote = "'" if '"' in text else '"'
    return quote + re.sub(rf"[\\{quote}]", lambda sign: f"&#{ord(sign[0])};", text) + quote
