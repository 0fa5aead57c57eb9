"""Links between pages: whether the text of a link and the heading that it leads to speak of the same."""

import posixpath
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..formulas.finding import TICKS, without_open
from ..keep.shelf import Shelf
from ..pages.page import FENCE, OPEN, Page, PageError, is_page, read
from .checked import Checked
from .findings import Finding

_LINK = re.compile(
    rf"(?ms:{FENCE})|{TICKS}(?s:.+?)(?<!`)(?P=ticks)(?!`)|(?P<shown><!--(?s:.*?)-->)"
    r"|(?<!!)\[(?P<said>(?:[^\[\]]|\[[^\[\]]*\])+)\]\((?P<path>[^()\s#:]*)(?:#(?P<anchor>[^()\s]+))?(?:\s[^()]*)?\)"
    r"(?P<waived>\s*<!--~\s*link:)?"
)
_HEADING = re.compile(r"(?m)^(?P<level>#{1,6})[ ]+(?P<title>.+?)(?:[ ]*\{:?[ ]*#(?P<anchor>[\w.-]+)[^{}]*\})?[ ]*$")
_SILENT = re.compile(rf"(?ms:{FENCE})|(?s:<!--.*?-->|\{{\{{.*?\}}\}})")


def faults(pages: Sequence[Checked], root: Path, shelf: Shelf | None = None) -> Iterator[Finding]:
    """The links whose text shares no word with where they lead."""
    known: dict[str, Mapping[str, str] | None] = {
        checked.page.path: _headings(checked.page) for checked in pages if checked.mode != "off"
    }
    for checked in (each for each in pages if each.mode == "check"):
        for text in checked.texts:
            for link in _LINK.finditer(without_open(text.prose.text, OPEN)):
                anchor = link["anchor"] or ""
                if link["said"] is None or link["waived"] or anchor.startswith("eq-") or not (link["path"] or anchor):
                    continue
                here = path = checked.page.path
                if link["path"]:
                    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), link["path"]))
                if path not in known:
                    known[path] = _read(root / path, root, shelf)
                headings = known[path]
                # Of an anchor that is not there MkDocs tells; those of an API reference are names.
                if headings is None or (anchor and anchor not in headings and "." not in anchor):
                    continue
                leads = f"{headings.get(anchor, '')} {anchor or Path(path).stem}"
                said = " ".join(re.sub(r"(?s)<!--.*?-->", "", link["said"]).split())
                if not _words(said) & _words(leads, 3):
                    remedy = f"name in it what is there, or say why not, [{said}](...)<!--~ link: reason -->"
                    message = f"the link [{said}] and {leads.strip()!r}, to which it leads, share no word; {remedy}"
                    yield Finding(here, text.at(link.start()), message, kind="link")


def _read(file: Path, root: Path, shelf: Shelf | None) -> Mapping[str, str] | None:
    """The headings of a page; None if there is no such page, of which MkDocs tells."""
    if is_page(file):
        with suppress(PageError):  # which is told when that page is checked
            return _headings(read(file, root, shelf))
    return None


def _headings(page: Page) -> Mapping[str, str]:
    """The headings by their anchors, the page's title by ""."""
    found: dict[str, str] = {}
    for cell in page.cells:
        said = "" if cell.is_code else cell.source
        for heading in _HEADING.finditer(_SILENT.sub("", without_open(said, OPEN))):
            title = re.sub(r"[*`]", "", heading["title"])
            found.setdefault("", title)
            found.setdefault(heading["anchor"] or _slug(title), title)
        for anchor in re.findall(r"\{:?[ ]*#([\w.-]+)[^{}\n]*\}", said):
            found.setdefault(anchor, "")
    return found


def _slug(title: str) -> str:
    """The anchor that Markdown gives a heading, without the half tenth of a second that importing it takes."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def _words(text: str, least: int = 4) -> set[str]:
    """The words of so many letters or more by their stems, so that *masked* is as *masks*; and names of code."""
    names = re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text))) + re.findall(r"\w+[._]\w+", text)
    words = re.findall(rf"[^\W\d_]{{{least},}}", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower())
    stems = {re.sub(r"(?<=...)(?:ings?|ed|es|s)$", "", word)[:6].rstrip("e") for word in words}
    return stems | {*map(str.lower, names)}
