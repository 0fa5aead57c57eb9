"""A hook of the site: the first time that a page uses a word of the glossary, the word leads there.

Whoever rests on it, with a mouse or the keyboard, reads what it means; whoever follows it comes to the glossary.
"""

import re
from html import escape
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

GLOSSARY = "notation.md"
# Words of the glossary that also have a meaning of every day, or that every page has in its first line.
PLAIN = {
    "allowed",
    "attention",
    "blocked",
    "evaluation",
    "identity",
    "item",
    "key",
    "layer",
    "module",
    "step",
    "training",
    "value",
}

_ENTRY = re.compile(
    r"^\*\*(?P<names>[^*]+)\*\*\{ #(?P<anchor>[\w-]+) \}\n:(?P<text>.*(?:\n+ {4}.*)*)",
    re.MULTILINE,
)
# Where a link would stand in a link, in a name, in a heading, or in what a program gave.
_CLOSED = "a|abbr|autoref|button|caption|code|details|h[1-6]|label|math|pre|script|section|style|summary|svg|th"
_TAG = re.compile(rf"<(?P<end>/?)(?P<closed>{_CLOSED})\b[^>]*>|<[^>]*>")
_COMMENT, _MARKS = (
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"[*`]|\$[^$]*\$"),
)


def terms(markdown: str) -> dict[str, tuple[str, str]]:
    """The words that the glossary explains, each with its anchor and what it means."""
    found = {}
    for entry in _ENTRY.finditer(markdown):
        meaning = " ".join(_MARKS.sub("", _COMMENT.sub("", entry["text"])).split())
        for name in entry["names"].lower().split(", "):
            found[name] = (entry["anchor"], meaning)
    return found


def link(html: str, glossary: dict[str, tuple[str, str]], address: str) -> str:
    """Make links of the first use of each word."""
    names = sorted(glossary.keys() - PLAIN, key=len, reverse=True)
    # A name in the middle of a longer one, as in "self-attention", is another name.
    word = re.compile(
        rf"(?<![\w-])(?P<name>{'|'.join(map(re.escape, names))})s?(?![\w-])",
        re.IGNORECASE,
    )
    told: set[str] = set()

    def linked(found: re.Match[str]) -> str:
        anchor, meaning = glossary[found["name"].lower()]
        if anchor in told:
            return found[0]
        told.add(anchor)
        return f'<a class="term" href="{address}#{anchor}" title="{escape(meaning)}">{found[0]}</a>'

    pieces, depth, end = [], 0, 0
    for tag in _TAG.finditer(html):
        text = html[end : tag.start()]
        pieces += [text if depth else word.sub(linked, text), tag[0]]
        depth += (-1 if tag["end"] else 1) if tag["closed"] else 0
        end = tag.end()
    return "".join([*pieces, html[end:]])


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the words of the pages that teach."""
    glossary = files.get_file_from_path(GLOSSARY)
    if glossary is None or not page.file.src_uri.startswith(("learn/", "pytorch/", "museum/", "doctor.py")):
        return html
    explained = terms(Path(config.docs_dir, GLOSSARY).read_text(encoding="utf-8"))
    return link(html, explained, get_relative_url(glossary.url, page.url))
