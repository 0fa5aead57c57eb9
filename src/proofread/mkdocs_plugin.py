"""The MkDocs plugin: builds a site only of pages that proofread clean.

mkdocs-jupyter decides which Python files are pages and its markup shows their cells. Their prose goes through MkDocs'
own Markdown with all the site's extensions, so that links are checked and a page reads like every other.
"""

import base64
import logging
from pathlib import Path, PurePosixPath
from typing import Literal

from jinja2 import Environment
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.config.base import Config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import BasePlugin, event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from . import fonts, math, render
from .cache import CacheError
from .check import Checked, check
from .config import Settings, SettingsError
from .progress import Lines
from .run import warm

_STYLES = "assets/proofread.css"
_FONT = "assets/proofread-math.woff2"
_SUFFIXES = {"image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpg"}
_log = logging.getLogger("mkdocs.plugins.proofread")


class ProofreadConfig(Config):
    """There is nothing to set in mkdocs.yml; see `proofread.config`."""


class ProofreadPlugin(BasePlugin[ProofreadConfig]):
    """Checks every page before anything is written; any finding ends the build."""

    def on_startup(self, *, command: Literal["build", "gh-deploy", "serve"], dirty: bool) -> None:
        """Start the fork server before the first edit; a build starts it only if a page has to run."""
        if command == "serve":
            warm()

    def on_config(self, config: MkDocsConfig) -> MkDocsConfig:
        """Serve the cells' styles once, before those of the site, which may change them; render all mathematics."""
        config.extra_css.insert(0, _STYLES)
        config.markdown_extensions.append(_Mathematics())  # Markdown takes instances beside names
        return config

    # After mkdocs-jupyter, which marks its pages in this event.
    @event_priority(-90)
    def on_files(self, files: Files, *, config: MkDocsConfig) -> Files:
        """Check all pages; render the cells and keep their figures as files of the site."""
        sources = {
            file.src_uri: Path(file.abs_src_path)
            for file in files.documentation_pages()
            if file.abs_src_path and file.src_uri.endswith((".md", ".py"))
        }
        root = Path(config.config_file_path).parent
        try:
            self._settings = Settings.load(root)
            report = check(list(sources.values()), root=root, settings=self._settings, progress=Lines(_log.info))
        except (SettingsError, CacheError) as error:
            raise PluginError(str(error)) from None
        if report.findings:
            raise PluginError("\n".join(["the pages cannot be published:", *map(str, report.findings)]))
        _log.info(str(report))
        self._checked = dict(zip(sources, report.pages, strict=True))
        self._cells = {uri: self._render(uri, files, config) for uri in sources if uri.endswith(".py")}
        styles = (Path(__file__).parent / _STYLES).read_text()
        files.append(File.generated(config, _STYLES, content=styles))
        return files

    def _render(self, uri: str, files: Files, config: MkDocsConfig) -> dict[int, str]:
        page = files.get_file_from_path(uri)
        assert page is not None
        folder = PurePosixPath(uri).with_suffix("")
        drawn = 0

        def picture(kind: str, data: str) -> str:
            nonlocal drawn
            drawn += 1
            content = data if kind == "image/svg+xml" else base64.b64decode(data)
            file = File.generated(config, f"{folder}/figure-{drawn}.{_SUFFIXES[kind]}", content=content)
            files.append(file)
            return file.url_relative_to(page)

        return render.cells(self._checked[uri], picture)

    # After mkdocs-jupyter, which gives its pages a render method of their own in this event.
    @event_priority(-90)
    def on_pre_page(self, page: Page, *, config: MkDocsConfig, files: Files) -> Page:
        """Let MkDocs render the page as it does any other."""
        if page.file.src_uri in self._checked:
            page.__dict__.pop("render", None)
        return page

    def on_page_read_source(self, *, page: Page, config: MkDocsConfig) -> str | None:
        """The page's Markdown: figures filled in, comments gone, a placeholder for each cell."""
        checked = self._checked.get(page.file.src_uri)
        return _markdown(checked) if checked else None

    def on_page_content(self, html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
        """Put the cells in the place of their placeholders."""
        for index, cell in self._cells.get(page.file.src_uri, {}).items():
            html = html.replace(_placeholder(index), cell)
        return html

    def on_env(self, env: Environment, *, config: MkDocsConfig, files: Files) -> Environment:
        """Add the font of the mathematics, now that every formula of the site is known."""
        if formulas := math.converted():
            cache = Path(config.config_file_path).parent / self._settings.cache
            files.append(File.generated(config, _FONT, content=fonts.mathematics(formulas, cache)))
        return env


class _Mathematics(Extension):  # type: ignore[misc]
    """Makes MathML of TeX wherever the site has Markdown: in pages, in files they include, in docstrings."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  # the name that Markdown calls
        # Inline mathematics may begin a line of a paragraph, and Markdown would take it for a block of its own.
        if "math" in md.block_level_elements:
            md.block_level_elements.remove("math")
        # Once other files are included and white space is normal, before code blocks are taken out.
        md.preprocessors.register(_Preprocessor(md), "proofread-mathematics", 29)


class _Preprocessor(Preprocessor):  # type: ignore[misc]
    def run(self, lines: list[str]) -> list[str]:
        try:
            return math.render("\n".join(lines)).split("\n")
        except math.MathError as error:
            raise PluginError(str(error)) from None


def _markdown(checked: Checked) -> str:
    cells = enumerate(checked.page.cells)
    if not checked.page.is_script:
        return "".join(cell.fence if cell.is_code else checked.of_cell(i)[0] for i, cell in cells)
    shown = ((i, cell) for i, cell in cells if "remove-cell" not in cell.tags)
    return "\n\n".join(_placeholder(i) if cell.is_code else checked.of_cell(i)[0] for i, cell in shown)


def _placeholder(index: int) -> str:
    return f'<div data-cell="{index + 1}"></div>'
