"""The MkDocs plugin: builds a site only of pages that proofread clean.

mkdocs-jupyter decides which Python files are pages and its markup shows their cells. Their prose goes through MkDocs'
own Markdown with all the site's extensions, so that links are checked and a page reads like every other.
"""

import contextlib
import errno
import functools
import json
import logging
import posixpath
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from jinja2 import Environment
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.config.base import Config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import BuildError, PluginError
from mkdocs.livereload import LiveReloadServer
from mkdocs.plugins import BasePlugin, event_priority
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url
from mkdocs.utils.meta import get_data

from .. import _private
from ..checks.check import check, project_pages, sources_of
from ..checks.checked import Checked, ordered
from ..checks.findings import Finding, listed
from ..checks.progress import Lines
from ..keep.shelf import Shelf
from ..lazy_import import defer
from ..pages.page import PageError
from ..runs.cache import CacheError
from ..runs.server import warm
from ..runs.start import RunError
from ..runs.steps import Task
from ..settings import Settings, SettingsError
from . import equations, figures, fonts, layout, links, reading, render, serving
from . import mathematics as math
from .extra import MissingError, demand
from .installing import Installing
from .notebook import as_notebook, as_script

# A third of what it takes to build a site in which nothing has changed. They are not yet imported where MkDocs' plugins
# stand in this order: proofread, mkdocs-jupyter.
defer("jupytext", "mkdocs_jupyter.convert")

_STYLES = "assets/proofread.css"
_SCRIPT = "assets/proofread.js"
_FONT = "assets/proofread-math.woff2"
# Of placeholders: raw HTML, which Markdown leaves alone. Material's search leaves out all until the next end of a tag
# of the same name.
_FOLD = {
    layout.SOLUTION: ('<details class="success"><summary>Solution</summary>', "</details>"),
    layout.CHECK: (
        f'<details class="proofread-check"><summary><span>{layout.CHECK}</span></summary>'
        '<p-check data-search-exclude="true">',
        "</p-check></details>",
    ),
}
_GITHUB = re.compile(r"https://github\.com/(?P<name>[^/]+/[^/]+?)(?:\.git)?/?\Z")
_LINE_BREAK = re.compile(r"(<(pre|textarea|script|style)\b.*?</\2>)|\s*\n\s*", re.ASCII | re.DOTALL)
_TEX = re.compile(r'(<math\b[^>]*?) alttext="[^"]*"')
_log = logging.getLogger("mkdocs.plugins.proofread")
_LINKS = logging.getLogger("mkdocs.structure.pages")


@dataclass
class _Shown:
    """A page as it was checked, and what stands in its HTML beside its prose."""

    checked: Checked
    cells: dict[int, str]  # their HTML, by their places
    folder: PurePosixPath  # where its files are in the site, by the name of a file of the docs
    beside: str  # how the page addresses that folder
    downloads: str  # the HTML of the links to them, if there are any


@dataclass
class _Built:
    """The parts that MkDocs has made the whole site of, and the pages as they were shown."""

    config: MkDocsConfig
    nav: Navigation
    files: Files
    env: Environment
    mathematics: "_Mathematics"
    pages: dict[str, _Shown]
    off: set[str]


class ProofreadConfig(Config):
    """There is nothing to set in mkdocs.yml; see `proofread.settings`."""


class ProofreadPlugin(BasePlugin[ProofreadConfig]):
    """Checks every page before anything is written; any finding ends the build.

    Under serve, findings stand on their page: the server would show nothing until they are mended.
    """

    def __init__(self) -> None:
        self._pages: dict[str, _Shown] = {}
        self._serves, self._begun, self._serving = False, False, serving.Serving()
        self._behind: list[Task] = []
        self._off: set[str] = set()
        self._built: _Built | None = None
        self.anyway = False  # whether pages are published whatever is found on them

    def on_startup(self, *, command: Literal["build", "gh-deploy", "serve"], dirty: bool) -> None:
        """Learn what is to come; MkDocs keeps a plugin with this event from one build to the next."""
        self._serves = command == "serve"

    def on_config(self, config: MkDocsConfig) -> MkDocsConfig:
        """Serve the cells' styles once, before those of the site, which may change them; render all mathematics.

        Starts the fork server before the first edit; a build starts it now only if every page has to run.
        """
        try:
            demand()
        except MissingError as error:
            raise PluginError(str(error)) from None
        if self._serves and not self._begun:
            serving.demand(*config.dev_addr)
        with contextlib.suppress(SettingsError):  # which the build tells of
            settings = Settings.load(root := Path(config.config_file_path).parent)
            if not self._begun and (self._serves or not (root / settings.cache / "runs").exists()):
                warm(sources_of(Path(config.docs_dir).rglob("*"), settings), settings.packages, settings)
        self._begun = True
        config.site_dir = self._serving.into(config.site_dir)
        config.extra_css.insert(0, _STYLES)
        config.extra_javascript.append(_SCRIPT)
        self._mathematics = _Mathematics()
        config.markdown_extensions.append(self._mathematics)  # Markdown takes instances beside names
        return config

    # After mkdocs-jupyter, which marks its pages in this event.
    @event_priority(-90)
    def on_files(self, files: Files, *, config: MkDocsConfig) -> Files:
        """Check all pages; render the cells and keep their figures, programs and downloads as files of the site."""
        sources = {
            file.src_uri: Path(file.abs_src_path)
            for file in files.documentation_pages()
            if file.abs_src_path and file.src_uri.endswith((".md", ".py"))
        }
        root = Path(config.config_file_path).parent
        known = {path.resolve() for path in sources.values()}
        try:
            self._settings = Settings.load(root)
            self._shelf = Shelf(root / self._settings.cache)
            others = [path for path in project_pages(self._settings, root) if path.resolve() not in known]
            paths = [*sources.values(), *others]
            at_once = self._serving.wanted(sources, files, config)
            told = Lines(_log.info)
            report = check(paths, root=root, settings=self._settings, whole=True, at_once=at_once, progress=told)
            math.keep(root / self._settings.cache)
            math.typeset(report)
        except (SettingsError, CacheError, RunError) as error:
            raise PluginError(str(error)) from None
        if report.findings:
            self._refuse(["the pages cannot be published:", *listed(report.findings)])
        _log.info(str(report))
        self._behind = report.behind
        shown = dict(zip(sources, report.pages, strict=False))  # those beside the site's are not shown
        self._off = {uri for uri, checked in shown.items() if checked.mode == "off"}
        self._pages = {uri: self._render(uri, shown[uri], files, config) for uri in shown if uri not in self._off}
        _LINKS.addFilter(self._place)
        for asset in (_STYLES, _SCRIPT):
            content = (Path(__file__).parent / asset).read_text(encoding="utf-8")
            files.append(File.generated(config, asset, content=content))
        return files

    def _place(self, record: logging.LogRecord) -> bool:
        """Put the place of a link before what MkDocs says of it, which names only the page."""
        said = re.match(r"Doc file '(?P<uri>.+?)' contains .*?link '(?P<target>.+?)'", record.getMessage())
        if said and said["uri"] in self._pages:
            page, target = self._pages[said["uri"]].checked.page, said["target"]
            line = next((n for n, text in enumerate(page.lines, 1) if target in re.split(r"[\s()<>\"']+", text)), 1)
            record.msg, record.args = f"{page.at(line)}: {record.getMessage()}", ()
        return True

    def on_nav(self, nav: Navigation, *, config: MkDocsConfig, files: Files) -> Navigation:
        """Hold the titles that the navigation gives to those that the pages have themselves."""
        held = {uri for uri, shown in self._pages.items() if shown.checked.mode == "check"}
        shown = {page.file.src_uri: page for page in nav.pages if page.file.src_uri in held}
        titles = {uri: _title(self._pages[uri].checked) for uri in shown}
        own = {uri: _words(f"{title} {PurePosixPath(uri).stem}") for uri, title in titles.items()}
        messages = []
        for uri, page in shown.items():
            if page.is_homepage:  # which every site calls home
                continue
            words = _words(str(page.title)) if "title" in vars(page) else set()  # else it takes the page's own
            fits = max(own, key=lambda other: len(words & own[other]))
            if words and len(words & own[uri]) < max(1, len(words & own[fits])):
                better = f"; {page.title!r} fits {fits}" if words & own[fits] else ""
                called = f"the navigation calls {uri} {page.title!r}, but its title is {titles[uri]!r}"
                messages.append(f"mkdocs.yml: {called}{better}")
        if messages:
            self._refuse(messages)
        self._nav = nav
        return nav

    def _refuse(self, messages: Sequence[str]) -> None:
        """Tell why pages cannot be published, which ends a build."""
        if not (self._serves or self.anyway):
            raise PluginError("\n".join(messages))
        _log.info("\n".join(messages))  # a warning would end a strict build, and stop the server as an error does

    def _render(self, uri: str, checked: Checked, files: Files, config: MkDocsConfig) -> _Shown:
        """Render the cells of a page, and add its files to the site."""
        page = files.get_file_from_path(uri)
        assert page is not None
        folder = PurePosixPath(uri).with_suffix("")
        beside = get_relative_url(f"{folder}/", page.url).removeprefix("./")
        packages, repository = self._settings.packages, config.repo_url or ""
        known = config.extra.get("install") or (repository and f"git+{repository}")
        installing = Installing(packages, known)
        script, notebook = f"{folder.name}.py", f"{folder.name}.ipynb"

        def make(**ask: Callable[[str], str]) -> dict[str, dict[str, str]]:
            rendered = render.render(checked, beside, ask["markdown"], ask["latex"], installing)
            if checked.page.is_script:
                rendered.files[notebook] = as_notebook(checked, ask["link"], installing).encode()
                rendered.files[script] = as_script(checked, ask["link"]).encode()
            return {
                "cells": {str(place): cell for place, cell in rendered.cells.items()},
                "files": {name: content.decode("latin-1") for name, content in rendered.files.items()},
            }

        try:
            made = self._shelf.made(
                f"{checked.page.path} shown",
                [checked.content, beside, packages, known, folder.name, config.site_url],
                make,
                markdown=_converter(config),
                latex=render.from_latex,
                link=functools.partial(links.from_download, f"{folder}/{notebook}", page, files, config),
            )
        except (render.RenderError, PageError) as error:
            before = "the pages cannot be published:\n" if isinstance(error, PageError) else ""
            raise PluginError(f"{before}{error}") from None
        if shadows := [name for name in made["files"] if name.removesuffix(".py") in sys.stdlib_module_names]:
            text = f"readers save {shadows[0]}, and whatever runs beside it imports that for Python's own module"
            raise PluginError(f"the pages cannot be published:\n{checked.page.at(1)}: {text}; rename the page")
        downloads = ""
        if checked.page.is_script:
            offered = {"Notebook": f"{beside}{notebook}", "Script": f"{beside}{script}"}
            if github := _GITHUB.match(repository):
                # Colab opens what is in a repository, and `mkdocs gh-deploy` puts the site there.
                place = f"{github['name']}/blob/{config.remote_branch}/{folder}/{notebook}"
                offered["Open in Colab"] = f"https://colab.research.google.com/github/{place}"
            tags = {label: f'href="{url}"' + " download" * ("://" not in url) for label, url in offered.items()}
            text = " ".join(f"<a {tag}>{label}</a>" for label, tag in tags.items())
            downloads = f'<p class="proofread-downloads" data-search-exclude="true">{text}</p>\n'
        for name, content in made["files"].items():
            files.append(File.generated(config, f"{folder}/{name}", content=content.encode("latin-1")))
        return _Shown(checked, {int(place): cell for place, cell in made["cells"].items()}, folder, beside, downloads)

    # After mkdocs-jupyter, which gives its pages a render method of their own in this event.
    @event_priority(-90)
    def on_pre_page(self, page: Page, *, config: MkDocsConfig, files: Files) -> Page:
        """Let MkDocs render the page as it does any other."""
        self._serving.go_on()
        if page.file.src_uri in self._pages:
            page.__dict__.pop("render", None)
            if type(page).render is not Page.render:
                version = metadata.version("mkdocs-jupyter")
                raise PluginError(f"mkdocs-jupyter {version} does not leave its pages to MkDocs as 0.26 did")
        return page

    # Before all who change it. MkDocs lets one plugin alone read the sources of pages, and mkdocs-jupyter 0.27 does.
    @event_priority(101)
    def on_page_markdown(self, markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
        """The page's Markdown: values filled in, comments gone, a placeholder for each cell."""
        shown = self._pages.get(page.file.src_uri)
        is_held = shown.checked.mode == "check" if shown else page.file.src_uri not in self._off
        self._mathematics.lenient = not is_held
        if shown:
            markdown, page.meta = get_data(_markdown(shown))
        return markdown

    def on_page_content(self, html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
        """Put the cells in the place of their placeholders, downloads below the title, links on equations' numbers."""
        if page.file.src_uri in self._off:
            return html
        shown = self._pages.get(page.file.src_uri)
        prose_texts = [text.prose for text in shown.checked.texts] if shown else []
        bracketed = {prose.text[slice(*span)] for prose in prose_texts for span in prose.bracketed}
        html = equations.link(html, functools.partial(_equation, self._pages, page, files), bracketed)
        if shown is None:
            return html
        paths = links.Paths(page.file, files, config)
        for index, cell in shown.cells.items():
            before, mark, after = html.partition(_placeholder(index))
            if not mark:
                where = f"{shown.checked.page.at(shown.checked.page.cells[index].line)}: cell {index + 1}"
                what = f"a plugin took {_placeholder(index)} out of the page's Markdown"
                raise PluginError(f"{where} has no place: {what}")
            html = before + paths.of_cell(cell) + after
        paths.tell(page)
        for fold, tags in _FOLD.items():
            for mark, tag in zip(_fold(fold), tags, strict=True):
                html = html.replace(mark, tag)
        # The signs of a formula one after the other are no words to search for.
        html = html.replace('<span class="math-display"', '<span class="math-display" data-search-exclude="true"')
        html, offered = figures.offer(html, shown.checked)
        if offered:
            told = json.dumps(offered, ensure_ascii=False, separators=(",", ":"))
            files.append(File.generated(config, f"{shown.folder}/figures.json", content=told))
        above = reading.about(shown.checked, html, f"{shown.beside}figures.json" if offered else "") + shown.downloads
        title, end, rest = html.partition("</h1>\n")
        html = title + end + above + rest if end else above + html
        return (
            _unfit(shown.checked.findings) + _behind(shown.checked.behind) + html + _scripts(shown.checked, page, files)
        )

    def on_post_page(self, output: str, *, page: Page, config: MkDocsConfig) -> str:
        """Drop the white space that a theme leaves between its tags: a third of what it adds to a page.

        And the TeX of formulas, which is there until now for others who make something of the page: it is for browsers
        without MathML, of which there are none left, and would be a third of a formula.
        """
        self._serving.go_on()
        if page.file.src_uri not in self._pages:
            return output
        output = _TEX.sub(r"\1", output)
        return figures.unmarked(_LINE_BREAK.sub(lambda match: match[1] or "\n", output).strip())

    def on_env(self, env: Environment, *, config: MkDocsConfig, files: Files) -> Environment:
        """Add the font of the mathematics, now that every formula of the site is known."""
        if formulas := math.converted():
            cache = Path(config.config_file_path).parent / self._settings.cache
            files.append(File.generated(config, _FONT, content=fonts.mathematics(formulas, cache)))
        self._env, self._files = env, files
        return env

    def on_post_build(self, *, config: MkDocsConfig) -> None:
        """Leave MkDocs' log as it was; run what is shown as it was before."""
        _LINKS.removeFilter(self._place)
        if self._serves:
            of = self._nav, self._files, self._env, self._mathematics, self._pages, self._off
            self._built = _Built(config, *of)
        self._serving.catch_up(self._behind, Path(config.config_file_path).parent, self._settings)

    def on_serve(self, server: LiveReloadServer, *, config: MkDocsConfig, builder: Callable[..., Any]) -> None:
        """From now on, show what is looked at first."""
        root = Path(config.config_file_path).parent
        self._serving.watch(server, root / self._settings.cache, self._show)

    def on_shutdown(self) -> None:
        """Leave no folder behind."""
        if self._built:
            self._serving.close(self._built.config.site_dir.removesuffix("-next"))

    def _show(self) -> str | None:
        """Build the page that is looked at, alone, within the site as it was built last; its file in the site.

        None if it has not changed, or cannot be built alone: building the site tells why.
        """
        if self._built is None:
            return None
        built, config, files = self._built, self._built.config, self._built.files
        self._pages, self._off, self._mathematics = built.pages, built.off, built.mathematics
        uri = self._serving.page(self._pages, files, config)
        file = files.get_file_from_path(uri) if uri else None
        if not (uri and file and file.page and file.abs_src_path and Path(file.abs_src_path).is_file()):
            return None
        root, shown = Path(config.config_file_path).parent, self._pages[uri]
        try:
            path = Path(file.abs_src_path)
            report = check([path], root=root, settings=self._settings, progress=Lines(_log.info))
            math.typeset(report)
            (checked,) = report.pages
            if [checked.content, checked.findings] == [shown.checked.content, shown.checked.findings]:
                return None
            for each in self._beside(files, shown):
                files.remove(each)
            self._pages[uri] = self._render(uri, checked, files, config)
            _private.populate_page(file.page, config, files)
            config.plugins.on_env(built.env, config=config, files=Files([file]))  # where others complete its links
            pages = files.documentation_pages(inclusion=InclusionLevel.is_in_serve)
            _private.build_page(file.page, config, pages, built.nav, built.env)
            for each in self._beside(files, shown):
                each.copy_file()
        except (BuildError, ImportError, SettingsError, CacheError, OSError):
            return None
        _log.info(f"{checked.page.path} is shown; behind it the site is built")
        return file.dest_uri

    @staticmethod
    def _beside(files: Files, shown: _Shown) -> list[File]:
        """The files of a page in the site."""
        return [each for each in files if each.generated_by and PurePosixPath(each.src_uri).parent == shown.folder]

    def on_build_error(self, *, error: Exception) -> None:
        """Leave MkDocs' log as it was; say what to do where the disk is full."""
        _LINKS.removeFilter(self._place)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise PluginError(f"the site cannot be written: {error}; make room, or set site_dir") from None


class _Mathematics(Extension):  # type: ignore[misc]
    """Makes MathML of TeX wherever the site has Markdown: in pages, in files they include, in docstrings."""

    lenient = False  # whether the page that is rendered now may have TeX that cannot be read

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  # the name that Markdown calls
        # Inline mathematics may begin a line of a paragraph, and Markdown would take it for a block of its own.
        if "math" in md.block_level_elements:
            md.block_level_elements.remove("math")
        # Once other files are included and white space is normal, before code blocks are taken out.
        md.preprocessors.register(_Preprocessor(md, self), "proofread-mathematics", 29)


class _Preprocessor(Preprocessor):  # type: ignore[misc]
    def __init__(self, md: Markdown, extension: _Mathematics):
        super().__init__(md)
        self._extension = extension

    def run(self, lines: list[str]) -> list[str]:
        try:
            return math.render("\n".join(lines), lenient=self._extension.lenient).split("\n")
        except math.MathError as error:
            raise PluginError(str(error)) from None


def _title(checked: Checked) -> str:
    """A page's title, as its front matter or its first heading gives it."""
    text = "\n".join(cell.source for cell in checked.page.cells if not cell.is_code)
    match = re.search(r"\A---\n(?:.*\n)*?title:(.*)", text) or re.search(r"^# (.*)", text, re.MULTILINE)
    return match[1].strip() if match else ""


def _words(title: str) -> set[str]:
    """Return the words of a title but the smallest, without their plural."""
    return {word.lower().removesuffix("s") for word in re.findall(r"[^\W\d_]{4,}", title)}


def _markdown(shown: _Shown) -> str:
    pieces, inside = [], ""
    captions = shown.checked.captions
    for fold, index, text in layout.parts(shown.checked, figures.marked(shown.checked)):
        if fold != inside:
            pieces += [*_fold(inside)[1:], *_fold(fold)[:1]]
            inside = fold
        pieces.append(shown.checked.page.cells[index].fenced or text)
        if index in shown.cells:
            # MkDocs holds links to a figure against what has that name in the Markdown.
            numbers = [number for (cell, _), (number, _) in captions.items() if cell == index]
            pieces += [f'<div class="proofread-anchor" id="figure-{number}"></div>' for number in numbers]
            pieces.append(_placeholder(index))
    return "\n\n".join([*pieces, *_fold(inside)[1:]])


def _fold(title: str) -> Sequence[str]:
    """The placeholders for the begin and the end of a fold."""
    return [f'<div data-fold="{end} {title}"></div>' for end in ("begin", "end")] if title else []


def _placeholder(index: int) -> str:
    return f'<div data-cell="{index + 1}"></div>'


def _scripts(checked: Checked, page: Page, files: Files) -> str:
    """The modules that a page names, each once."""
    named = [cell.option("script") for cell in checked.page.cells if cell.is_code and "remove-cell" not in cell.tags]
    folder = posixpath.dirname(page.file.src_uri)
    modules = (files.get_file_from_path(posixpath.normpath(posixpath.join(folder, each))) for each in named if each)
    addresses = dict.fromkeys(get_relative_url(file.url, page.url) for file in modules if file)
    return "".join(f'\n<script type="module" src="{address}"></script>' for address in addresses)


def _unfit(findings: Sequence[Finding]) -> str:
    """Return the HTML of a page's findings, for its author."""
    if not findings:
        return ""
    shown = "".join(f"<pre>{escape(line)}</pre>" for line in listed(ordered(findings)))
    return f'<div class="admonition failure"><p class="admonition-title">Not to be published</p>{shown}</div>\n'


def _behind(why: str) -> str:
    """Return the HTML of the reason why a page shows its last run, for its author."""
    text = f"This page runs again, for {escape(why)}. What it shows is from before."
    return f'<div class="admonition note"><p>{text}</p></div>\n' if why else ""


def _converter(config: MkDocsConfig) -> Callable[[str], str]:
    """The site's own Markdown, for what cells give."""

    def convert(text: str) -> str:
        extensions = [extension for extension in config.markdown_extensions if extension != "toc"]
        markdown = Markdown(extensions=extensions, extension_configs=config.mdx_configs)
        markdown.toc_tokens = []  # as that extension would leave it, which others, such as mkdocstrings', look at
        return str(markdown.convert(text))

    return convert


def _equation(pages: Mapping[str, _Shown], page: Page, files: Files, number: str) -> str | None:
    """The address of an equation, seen from a page."""
    for uri, shown in pages.items():
        if any(stated.tag == number for text in shown.checked.texts for stated in text.formulas):
            file = files.get_file_from_path(uri)
            return f"{get_relative_url(file.url, page.url)}#eq-{number}" if file else None
    return None
