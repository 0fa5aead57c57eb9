"""Finds what is dead in a built site: links, anchors, and what else a page, a download or a style asks for."""

from __future__ import annotations

import io
import json
import posixpath
import re
import tokenize
import zlib
from collections.abc import Callable, Iterable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import markdown

HERE = "http://localhost/"  # where a site is that has no address
ADDRESSES = {"href", "xlink:href", "src", "poster", "data", "action", "data-json"}
SEVERAL = {"srcset", "imagesrcset"}
SHARED = {"og:url", "og:image"}  # whose content is an address
_URL = re.compile(r"""url\(\s*["']?([^"')]+)""")
_STYLE = re.compile(rf"""@import\s*["']([^"']+)|{_URL.pattern}""")
_ASKED = re.compile(
    r"""\b(?:from|import|import\(|importScripts\()\s*["'](\.[^"']*|[^"'.]+/[^"']+\.js)["']"""
    r"""|new URL\(["']([^"']+)["'], (?:import\.meta\.url|location)\)|location\.replace\(["']([^"']+)"""
)


class _Html(HTMLParser):
    """The anchors of a page or a picture, and what it asks for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.asked: list[str] = []
        self._within = self._id = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self._within, self._id = tag, given.get("id", "")
        self.anchors |= {self._id} | ({given["name"]} if tag == "a" and "name" in given else set())
        for name, value in given.items():
            if name in SEVERAL:
                self.asked += [each.split()[0] for each in value.split(",")]
            elif name in ADDRESSES:
                self.asked.append(value)
            else:
                self.asked += _URL.findall(value)
        if given.get("http-equiv") == "refresh":
            self.asked.append(given["content"].partition("url=")[2])
        if given.get("property") in SHARED:
            self.asked.append(given["content"])

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within == "script" and self._id == "__config":
            config = json.loads(data)
            self.asked += [f"{config['base'].rstrip('/')}/", config["search"]]
        elif self._within == "script":
            self.asked += of_script(data)
        elif self._within == "style":
            self.asked += of_style(data)


def of_style(text: str) -> list[str]:
    return ["".join(found) for found in _STYLE.findall(text)]


def of_script(text: str) -> list[str]:
    return ["".join(found) for found in _ASKED.findall(text)]


def of_markdown(text: str) -> _Html:
    return _Html(markdown.markdown(text, extensions=["fenced_code", "tables", "md_in_html"]))


def of_program(text: str) -> _Html:
    """What the comments of a program ask for, which are Markdown where they are the text of a page."""
    lines = [""] * (text.count("\n") + 2)
    for kind, token, (line, column), *_ in tokenize.generate_tokens(io.StringIO(text).readline):
        if kind == tokenize.COMMENT and not column and not token.startswith(("# %%", "#|")):
            lines[line] = token[1:].removeprefix(" ")
    return of_markdown("\n".join(lines))


def of_notebook(text: str) -> _Html:
    """What the text of a notebook and its outputs ask for."""
    cells = json.loads(text)["cells"]
    told = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    shown = [output["data"] for cell in cells for output in cell.get("outputs", ()) if "data" in output]
    found = of_markdown("\n\n".join([*told, *("".join(data.get("text/markdown", "")) for data in shown)]))
    for data in shown:
        more = _Html("".join(data.get("text/html", "")))
        found.asked += more.asked
        found.anchors |= more.anchors
    return found


def of_manifest(text: str) -> list[str]:
    told = json.loads(text)
    return [told.get("start_url", "."), *(icon["src"] for icon in told.get("icons", ()))]


def of_texts(text: str) -> list[str]:
    """What a page as Markdown leads to, or the list of all of them; code leads nowhere."""
    told = re.sub(r"(?ms)^( *)(```+)[^\n]*\n.*?^\1\2$|(`+)(?!`).*?(?<!`)\3(?!`)", "", text)
    return re.findall(r"\]\(([^()\s]+)\)", told)


def of_index(text: str) -> list[str]:
    """Where the search leads, from its own folder."""
    return [f"../{entry['location']}" for entry in json.loads(text)["docs"]]


def of_sitemap(text: str) -> list[str]:
    return [unescape(found) for found in re.findall(r"<loc>(.*?)</loc>", text)]


def of_inventory(data: bytes) -> list[str]:
    """Where the names lead that other projects link to."""
    lines = zlib.decompress(data.split(b"\n", 4)[4]).decode().splitlines()
    return [line.split(" ")[3].replace("$", line.split(" ")[0]) for line in lines]


# How to read the files of a site, by how their names end.
HTML: dict[str, Callable[[str], _Html]] = {".html": _Html, ".svg": _Html, ".ipynb": of_notebook, ".py": of_program}
TEXT: dict[str, Callable[[str], Iterable[str]]] = {
    ".css": of_style,
    ".js": of_script,
    ".webmanifest": of_manifest,
    "/search_index.json": of_index,
    "/sitemap.xml": of_sitemap,
    "/index.md": of_texts,
    "/llms.txt": of_texts,
    "/llms-full.txt": of_texts,
}


class Site:
    """A built site, and what its files ask for."""

    def __init__(self, folder: Path, address: str = HERE) -> None:
        self.folder, self.address, self.root = folder, address, urlsplit(address).path
        self.asked: dict[str, list[str]] = {}
        self._anchors: dict[str, set[str]] = {}
        for file in sorted(folder.rglob("*")):
            name = file.relative_to(folder).as_posix()
            if read := HTML.get(file.suffix):
                html = read(file.read_text(encoding="utf-8"))
                self.asked[name], self._anchors[name] = html.asked, html.anchors
            elif name == "objects.inv":
                self.asked[name] = of_inventory(file.read_bytes())
            elif found := next((each for ending, each in TEXT.items() if f"/{name}".endswith(ending)), None):
                self.asked[name] = [*found(file.read_text(encoding="utf-8"))]

    def dead(self) -> list[str]:
        """What is asked for and is not there, with who asks; what is of another origin is not looked at."""
        return [
            f"{name}: {target} {fault}"
            for name, targets in self.asked.items()
            for target in dict.fromkeys(targets)
            if (fault := self._fault(name, target))
        ]

    def _fault(self, name: str, target: str) -> str:
        scheme, host, path, _, anchor = urlsplit(target)
        is_folder = posixpath.basename(path) in ("", ".", "..")
        if scheme or host:
            if not target.startswith(self.address):
                return ""
        elif path and not path.startswith("/"):
            if name == "404.html":
                return "is asked for from where the page is shown, which may be anywhere"
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
            if path.split("/")[0] == "..":
                return "leads out of the site"
            path = self.root + path
        elif not path:
            path, is_folder = self.root + name, False
        if not f"{path}/".startswith(self.root):
            return "leads out of the site"
        path = unquote(path).removeprefix(self.root)
        path = posixpath.normpath(posixpath.join(path, "index.html") if is_folder else path)
        if not (self.folder / path).is_file():
            return "is not there"
        anchor = unquote(anchor)
        return "is no anchor there" if anchor not in ("", "top", *self._anchors.get(path, ())) else ""
