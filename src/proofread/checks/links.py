"""Links between pages: whether they lead to what is there, and whether their text and its heading speak of the same.

They are followed as MkDocs follows those of the prose: relative to the page's file. What has a scheme, begins with a
slash or ends in no name of a file is an address, of which only the site knows. Nothing is fetched.
"""

import ast
import difflib
import posixpath
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from html import unescape
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from ..formulas import spans
from ..formulas.finding import TICKS, without_open
from ..keep.files import relative
from ..keep.shelf import Shelf
from ..pages.package import documented, sources
from ..pages.page import FENCE, FRONT_MATTER, OPEN, Page, PageError, inside, is_page, read
from .checked import Checked
from .findings import Finding

_TARGET = r"(?:<(?P<wrapped>[^<>\n]*)>|(?P<target>(?:[^()\s]|\([^()\s]*\))*))"
_LINK = re.compile(
    rf"(?ms:{FENCE})|{TICKS}(?s:.+?)(?<!`)(?P=ticks)(?!`)|(?P<shown><!--(?s:.*?)-->)"
    rf"|(?<!\\)(?P<image>!?)\[(?P<said>(?:[^\[\]]|\[[^\[\]]*\])+)\]\({_TARGET}"
    r"""(?:\s++(?:"[^"]*+"|[^()]*))?\)"""
    r"(?P<waived>\s*<!--~\s*link:)?|(?m:^[ ]{0,3}\[(?!\^)(?P<named>[^\]\n]+)\]:[ ]*(?P<defined>[^\s<>]+))"
)
_HEADING = re.compile(
    r"(?m)^[ \t>]*(?P<level>#{1,6})[ ]+(?P<title>.+?)(?:[ ]*\{:?[ ]*#(?P<anchor>[\w.-]+)[^{}]*\})?[ ]*$"
    r"|^(?P<underlined>\S.*)\n(?:=+|-+)[ ]*$"
)
_SILENT = re.compile(rf"(?ms:{FENCE})|(?s:<!--.*?-->|\{{\{{.*?\}}\}})")
_MARKUP = re.compile(r"!?\[(?P<said>[^\[\]]*)\](?:\([^()]*\)|\[[^\[\]]*\])|</?[a-zA-Z][^<>]*>|[*`]")
# What others write of a page: the documentation of an API, and what a heading has computed, or another file says.
_API, _FILLED = re.compile(r"(?m)^:::[ ]+([\w.]+)"), re.compile(r"(?m)^[ \t>]*(?:-+8<-+|#.*\{\{)")
_DOCTEST = re.compile(r"(?m)^[ \t]*(?:>>>|\.\.\.).*$")


class _Link(NamedTuple):
    said: str
    path: str
    anchor: str
    place: int
    is_waived: bool
    is_worded: bool  # a reader is told by its text where it leads


class _Known(NamedTuple):
    titles: Mapping[str, str]  # the headings by their anchors, the page's title by "", and other anchors
    apis: Sequence[str]  # what is documented there
    is_whole: bool  # whether nothing else has anchors there

    def has(self, anchor: str) -> bool:
        """Whether an anchor is on the page, or could be, as other tools give them."""
        named = any(f"{anchor}.".startswith(f"{name}.") for name in self.apis)
        return anchor in self.titles or named or not self.is_whole or re.match(r"top\Z|__|.*:", anchor) is not None


_Pages = dict[str, _Known | None]


def faults(pages: Sequence[Checked], root: Path, shelf: Shelf | None = None) -> Iterator[Finding]:
    """The links that lead nowhere, and those whose text shares no word with where they lead."""
    known: _Pages = {checked.page.path: _anchors(checked.page) for checked in pages if checked.mode != "off"}
    for checked in (each for each in pages if each.mode == "check"):
        here = checked.page.path
        for text in (each for each in checked.texts if not each.asserts):
            for link in _links(text.prose.text):
                for kind, message in _wrong(link, here, known, root, shelf):
                    yield Finding(here, text.at(link.place), message, kind=kind)
        page = known[here]
        for name in page.apis if page else ():
            for path, line, link in _documented(name, root):
                for kind, message in _wrong(link, here, known, root, shelf):
                    yield Finding(path, line, f"{message}; {here} shows it", kind=kind)


def _links(text: str) -> Iterator[_Link]:
    """The links of a text that may lead to a file of the project, or to an anchor."""
    if "](" not in text and "]:" not in text:
        return
    formulas = [(span.start, span.end) for span in spans(text)]  # in which brackets are no links
    for found in _LINK.finditer(without_open(text, OPEN)):
        target = unescape(found["wrapped"] or found["target"] or found["defined"] or "")
        said, place = found["said"] or found["named"] or "", found.start()
        if "](" in said:  # a picture that is a link
            yield from (each._replace(place=each.place + found.start("said")) for each in _links(said))
        of_site = re.match(r"[A-Za-z][\w+.-]*:|[/\\]", target) or "{" in target
        before = bisect_right(formulas, place, key=itemgetter(0))
        if target and not of_site and not (before and place < formulas[before - 1][1]):
            path, _, anchor = target.partition("#")
            said = " ".join(re.sub(r"(?s)<!--.*?-->", "", said).split())
            path, anchor = unquote(path.partition("?")[0]), unquote(anchor)
            is_worded = bool(found["said"]) and not found["image"]
            yield _Link(said, path, anchor, place, bool(found["waived"]), is_worded)


def _wrong(link: _Link, here: str, known: _Pages, root: Path, shelf: Shelf | None) -> Iterator[tuple[str, str]]:
    """What is wrong with a link of a page: its kind and the message."""
    said, anchor, folder = link.said, link.anchor, posixpath.dirname(here)
    path = posixpath.normpath(posixpath.join(folder, link.path)) if link.path else here
    told, waived = f"the link [{said}] leads to", f"or say why not, [{said}](...)<!--~ link: reason -->"
    if path not in known and (root / path).exists():
        known[path] = _read(root / path, root, shelf)
    page = known.get(path)
    if link.is_waived:
        return
    if path not in known:
        if "." in posixpath.basename(path):  # else it is an address
            near = _nearest(path, root)
            remedy = f"name {posixpath.relpath(near, folder or '.')}" if near else "take it out"
            yield "dead", f"{told} {path}, which is not there; {remedy}, {waived}"
    elif page and anchor and not page.has(anchor):
        like = difflib.get_close_matches(anchor, sorted({*page.titles} - {""}), 1, 0)
        remedy = f"name #{like[0]}" if like else "leave it out"
        yield "dead", f"{told} #{anchor}, which {path} does not have; {remedy}, {waived}"
    elif page and link.is_worded and (not anchor or anchor in page.titles or "." in anchor):
        if re.match(r"eq-|figure-\d", anchor):  # a number says where they lead
            return
        leads = f"{page.titles.get(anchor, '')} {anchor or Path(path).stem}".strip()
        if not _words(said) & _words(leads, 3):
            remedy = f"name in it what is there, {waived}"
            yield "link", f"the link [{said}] and {leads!r}, to which it leads, share no word; {remedy}"


def _nearest(path: str, root: Path) -> str:
    """The file most like one that is not there, in the same folder of the project; "" if there is none."""
    top = root / re.sub(r"/.*|\A\.\./.*", "", path)
    files = [relative(file, root) for file in inside(top if top.is_dir() else root)]
    name = posixpath.basename(path)

    def likeness(other: str) -> tuple[float, float]:
        is_named = Path(other).stem == Path(name).stem
        return is_named + (posixpath.basename(other) == name), difflib.SequenceMatcher(None, path, other).ratio()

    return max(files, key=likeness, default="")


def _read(file: Path, root: Path, shelf: Shelf | None) -> _Known | None:
    """The anchors of a page; None if the file is none, or cannot be read."""
    if is_page(file):
        with suppress(PageError):  # which is told when that page is checked
            return _anchors(read(file, root, shelf))
    return None


def _anchors(page: Page) -> _Known:
    """All to which a link to the page can lead."""
    found, counted = dict[str, str](), Counter[tuple[str, str]]()
    said = [cell.source for cell in page.cells if not cell.is_code]
    text = FRONT_MATTER.sub("", "\n\n".join(_SILENT.sub("", without_open(each, OPEN)) for each in said))
    for heading in _HEADING.finditer(text):
        title = unescape(_MARKUP.sub(r"\g<said>", heading["title"] or heading["underlined"]))
        found.setdefault("", title)
        if heading["anchor"]:
            found.setdefault(heading["anchor"], title)
            continue
        for slug, mark in ((_slug(title), "_"), (_slug_of_github(title), "-")):
            number = counted[slug, mark] + (not slug)  # Markdown gives a heading without letters the anchor _1
            counted[slug, mark] += 1
            found.setdefault(f"{slug}{mark}{number}" if number else slug, title)
    source, captions = "\n".join(page.lines), sum(each.key == "caption" for cell in page.cells for each in cell.options)
    others = [*re.findall(r"\{:?[^{}\n]*#([\w.-]+)[^{}\n]*\}", source), *(f"figure-{n + 1}" for n in range(captions))]
    others += re.findall(r"""\b(?:id|name)=["']?([\w.-]+)""", source)
    others += [f"eq-{number}" for number in re.findall(r"\\tag\{([^{}]*)\}", source)]
    return _Known(dict.fromkeys(others, "") | found, _API.findall(text), not any(map(_FILLED.search, said)))


def _documented(name: str, root: Path) -> Iterator[tuple[str, int, _Link]]:
    """The links in the docstrings of what an API's page documents, with file and line."""
    package = name.partition(".")[0]
    modules = dict[str, Path]()
    for file in sources(package, root) if (root / package).is_dir() or (root / "src" / package).is_dir() else ():
        at = [*file.with_suffix("").parts]
        modules[".".join(at[len(at) - 1 - at[::-1].index(package) :]).removesuffix(".__init__")] = file
    own = max((module for module in modules if f"{name}.".startswith(f"{module}.")), key=len, default="")
    for module, file in modules.items():
        is_shown = module == own or module.startswith(f"{name}.")
        source = file.read_text(encoding="utf-8", errors="replace") if is_shown else ""
        if re.search(r"\]\([^()\s]*[.#]\w", source):
            with suppress(SyntaxError):
                for node, text in documented(ast.parse(source)):
                    for link in _links(_DOCTEST.sub("", text)):
                        yield relative(file, root), node.body[0].lineno + text.count("\n", 0, link.place), link


def _slug(title: str) -> str:
    """The anchor that Markdown gives a heading, without the half tenth of a second that importing it takes."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def _slug_of_github(title: str) -> str:
    """The anchor that GitHub gives a heading, as does the `slugify` that Material for MkDocs recommends."""
    return re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-")


def _words(text: str, least: int = 4) -> set[str]:
    """The words of so many letters or more by their stems, so that *masked* is as *masks*; and names of code."""
    names = re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text))) + re.findall(r"\w+[._]\w+", text)
    words = re.findall(rf"[^\W\d_]{{{least},}}", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower())
    stems = {re.sub(r"(?<=...)(?:ings?|ed|es|s)$", "", word)[:6].rstrip("e") for word in words}
    return stems | {*map(str.lower, names)}
