"""A hook of the site: where it belongs, and how it is found elsewhere.

Each page says what it is about, and what pip installs the library from. Where the environment names a repository, the
reference links to its source.
"""

import ast
import re
import tomllib
from functools import cache
from html import escape, unescape
from pathlib import Path
from textwrap import indent
from typing import Any
from urllib.parse import urljoin

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from proofread.publish.serving import is_looked_at

CITATION = "CITATION.cff"
REFERENCE, INSTALL, ELSEWHERE = "reference/", "install.md", "proofread/elsewhere.md"
ENOUGH = 70  # letters of a description
# Of the library, as pip knows it; and what a page writes for it, which holds for who has a copy of its sources there.
NAME = "attention-unmasked"
COPY = f"./{NAME}"
# The same of what runs and checks the pages, with what it takes to build a site.
CHECKER, CHECKERS_FOLDER, CHECKERS_EXTRA = "proofread-docs", "src/proofread", "[mkdocs]"
_FIRST = re.compile(r"<p>(.*?)</p>", re.DOTALL)
_SENTENCE = re.compile(r"\S.*?(?:[.?!](?=\s|$)|$)")
_HEADING = re.compile(
    r'<h(?P<level>\d) id="(?P<name>unmasked\.[\w.]+)" class="doc doc-heading">.*?</h(?P=level)>',
    re.DOTALL,
)
_BARE = re.compile(rf"pip install\b.*?(?<![\w./-]){NAME.replace('-', '[-_.]')}(?![\w-]|(\[[\w,]*\])? @)", re.I)
# When a page was checked, and what it can be taken along as.
_ABOUT = re.compile(
    r'<(?P<tag>details|p) class="proofread-(?:about|downloads)"[^>]*>.*?</(?P=tag)>\n',
    re.DOTALL,
)
_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def about(html: str, title: str) -> str:
    """What a page is about: what it says first, a sentence or more; after its title, where that asks a question."""
    body = html.partition("</h1>")[2] or html
    found = _FIRST.search(body)
    text = unescape(re.sub(r"<[^>]*>", "", found[1])) if found else ""
    told = title if title.endswith("?") else ""
    for sentence in _SENTENCE.findall(" ".join(text.split())):
        if len(told) >= ENOUGH:
            break
        told = f"{told} {sentence}".strip()
    return told


def place(name: str, sources: Path) -> tuple[Path, int, int] | None:
    """The file and the lines where a name of a package is defined; None where it is made otherwise.

    Args:
        name: The name with its modules, such as "unmasked.masks.causal".
        sources: The folder of the package's folder.
    """
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        base = sources.joinpath(*parts[:length])
        file = next(
            (each for each in (base.with_suffix(".py"), base / "__init__.py") if each.exists()),
            None,
        )
        if file:
            break
    else:
        return None
    rest = parts[length:]
    lines, body = _read(file, file.stat().st_mtime_ns)
    if not rest:
        return file, 1, lines
    first = last = 0
    for depth, part in enumerate(rest):
        node = next((each for each in body if part in _names(each)), None)
        if isinstance(node, ast.ImportFrom) and node.module and not depth:
            # What a package offers may stand in one of its modules.
            return place(".".join([node.module, *rest]), sources)
        if node is None:
            return None
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(each.lineno for each in decorators)])
        last = node.end_lineno or first
        body = getattr(node, "body", [])
    return file, first, last


@cache
def _read(file: Path, _changed: int) -> tuple[int, list[ast.stmt]]:
    """The number of a file's lines, and its statements: a page of the reference asks for dozens of its names."""
    text = file.read_text(encoding="utf-8")
    body = ast.parse(text).body
    guarded = [inner for each in body if isinstance(each, ast.If) for inner in each.body]  # as what is imported late is
    return len(text.splitlines()), body + guarded


def _names(statement: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    if isinstance(statement, _DEFINED):
        return [statement.name]
    if isinstance(statement, ast.ImportFrom):
        return [alias.name for alias in statement.names]
    targets = getattr(statement, "targets", [getattr(statement, "target", 0)])
    return [each.id for each in targets if isinstance(each, ast.Name)]


def linked(html: str, root: Path, blob: str) -> str:
    """The reference with a link to the source below each heading."""

    def link(heading: re.Match[str]) -> str:
        found = place(heading["name"], root / "src")
        if found is None:
            return heading[0]
        file, first, last = found
        address = f"{blob}/{file.relative_to(root).as_posix()}#L{first}-L{last}"
        told = f'<a href="{address}" aria-label="Source of {heading["name"]}">Source</a>'
        return f'{heading[0]}\n<p class="source" data-search-exclude="true">{told}</p>'

    return _HEADING.sub(link, html)


def wheel(config: MkDocsConfig, name: str) -> str:
    """The address at which the site serves a package; "" where the site has none, as while it is only looked at."""
    is_known = config.site_url and not is_looked_at(config)
    return urljoin(config.site_url, config.extra["wheels"][name]) if is_known else ""


def library(config: MkDocsConfig, extra: str = "") -> str:
    """What pip installs the library from, as far as anybody knows where it is: all pages take it from here."""
    if config.extra["pypi"]:
        return f"{NAME}{extra}"
    address = wheel(config, NAME) or (config.repo_url and f"git+{config.repo_url}")
    return f"{NAME}{extra} @ {address}" if address else f"{COPY}{extra}"


def arguments(config: MkDocsConfig, extra: str) -> str:
    """What a command gives to pip; without an address it is for the folder of the sources."""
    what = library(config, extra)
    return f'-e ".{extra}"' if COPY in what else f'"{what}"'


def powershell(commands: str) -> str:
    """The same commands for PowerShell on Windows, one a line, since its older versions have no &&."""
    return commands.replace(" && ", "\n").replace("python3 ", "python ").replace(".venv/bin/", ".venv\\Scripts\\")


def shells(commands: str) -> str:
    """Commands for both shells, in a tab each."""
    told = {"Linux, macOS": f"```sh\n{commands}", "Windows, in PowerShell": f"```powershell\n{powershell(commands)}"}
    return "\n\n".join(f'=== "{name}"\n\n{indent(said, "    ")}\n    ```' for name, said in told.items())


def install(config: MkDocsConfig) -> str:
    """How to install the library."""
    what = arguments(config, "[plot]")
    told = "In the folder of this site's sources, which has its `pyproject.toml`:\n\n" if what.startswith("-e") else ""
    return told + shells(f"python3 -m venv .venv\n.venv/bin/pip install {what}")


def site(config: MkDocsConfig) -> str:
    """How to serve the site: the README's first command."""
    readme = (Path(config.config_file_path).parent / "README.md").read_text(encoding="utf-8")
    return shells(readme.partition("```sh\n")[2].partition("\n```")[0].replace(" && ", "\n"))


def checker(config: MkDocsConfig) -> str:
    """How to install what runs and checks the pages, which PyPI need not have where it has the library."""
    repository = config.repo_url and f"git+{config.repo_url}#subdirectory={CHECKERS_FOLDER}"
    if address := wheel(config, CHECKER) or repository:
        where, what = "", f"{CHECKER}{CHECKERS_EXTRA} @ {address}"
    else:
        where, what = " in a clone of this site's repository", f"./{CHECKERS_FOLDER}{CHECKERS_EXTRA}"
    return f'Install it{where}:\n\n```sh\npip install "{what}"\n```'


def published(config: MkDocsConfig) -> str:
    """Whether a package index has the library, and who has it otherwise."""
    if config.extra["pypi"]:
        return "The library is published on PyPI."
    told = "The library is not published on PyPI yet. A package of its name that you find there is not this one."
    served = " This site serves it as a wheel, which is made of the same sources as the pages."
    return told + served if wheel(config, NAME) else told


def strangers(html: str) -> str:
    """The command on a page that installs what has the library's name on PyPI; "" if there is none."""
    found = _BARE.search(unescape(re.sub(r"<[^>]*>", "", html)))
    return found[0] if found else ""


def promised(html: str) -> str:
    """The first page, which begins with what it promises, and ends with when it was checked and what it is there as.

    >>> promised('<h1>A</h1><p class="proofread-downloads">Notebook</p>\\n<p>Promise</p>').split("\\n")
    ['<h1>A</h1><p>Promise</p><p class="proofread-downloads">Notebook</p>', '']
    """
    told = [each[0] for each in _ABOUT.finditer(html)]
    return _ABOUT.sub("", html) + "".join(told)


def credited(config: MkDocsConfig) -> dict[str, str]:
    """What whoever cites the library says of it."""
    root = Path(config.config_file_path).parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    licensed = re.search(r"Copyright \(c\) (\d+) (.+)", (root / "LICENSE").read_text("utf-8"))
    assert licensed
    year, authors = licensed.groups()
    fields = {
        "title": config.site_name,
        "author": authors,
        "year": year,
        "version": project["version"],
        "url": config.repo_url or (None if is_looked_at(config) else config.site_url),
    }
    return {name: said for name, said in fields.items() if said}


def cite(config: MkDocsConfig) -> str:
    """An entry for BibTeX, and where the same is for tools."""
    fields = credited(config)
    lines = [f"  {name} = {{{said}}}," for name, said in (fields | {"author": f"{{{fields['author']}}}"}).items()]
    entry = "\n".join(["```bibtex", "@software{attention_unmasked,", *lines, "}", "```"])
    return f"{entry}\n\nTools read the same from [{CITATION}]({CITATION})."


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Tell proofread what pip is given in notebooks and programs, and serve what says how the library is cited.

    A page may draw and start processes.
    """
    config.extra["install"] = arguments(config, "[parallel,plot]")
    source = Path(config.config_file_path).parent / CITATION
    files.append(File.generated(config, CITATION, content=source.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Say where the library is, and on pages about installing what else these leave open; give home the whole width."""
    if page.is_homepage:
        page.meta.setdefault("hide", ["navigation", "toc"])
    markdown = markdown.replace(COPY, library(config))
    told = {
        INSTALL: {"install": install, "pypi": published, "site": site, "cite": cite},
        ELSEWHERE: {"checker": checker},
    }
    for name, say in told.get(page.file.src_uri, {}).items():
        mark = f'<div data-belongs="{name}"></div>'
        if mark not in markdown:
            raise PluginError(f"{page.file.src_uri} has no place for it; write {mark} where it shall stand")
        markdown = markdown.replace(mark, say(config))
    return markdown


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Say what the page is about, unless it says so itself, and link the reference to its source.

    Raises:
        PluginError: The page installs a stranger's package.
    """
    if not config.extra["pypi"] and (command := strangers(html)):
        raise PluginError(
            f"{page.file.src_uri} says `{command}`, and what PyPI has by that name is another's package: write {COPY}, "
            "which becomes what the library is installed from, or set PYPI once it is published there"
        )
    page.meta.setdefault("description", escape(about(html, page.title or "")))
    if page.is_homepage:
        html = promised(html)
    if not config.repo_url or not page.file.src_uri.startswith(REFERENCE):
        return html
    root = Path(config.config_file_path).parent
    return linked(
        html,
        root,
        f"{config.repo_url.rstrip('/')}/blob/{config.extra['revision'] or 'main'}",
    )
