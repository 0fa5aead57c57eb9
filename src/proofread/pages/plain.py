"""A text as its reader reads it, without any markup, each character with its place in the source.

So a fragment of a sentence is found though some of its words are emphasized, linked, quoted or on another line.
"""

import difflib
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from html import unescape

from ..formulas.finding import without_open
from .page import FENCE
from .prose import Prose, Question

_ITEM = r"(?:[-*+]|\d+[.)])[ ]"
_MARKUP = re.compile(
    rf"""
      (?P<fenced> {FENCE} )
    | (?P<gone>
          <!--.*?(?:-->|\Z)
        | (?<=\])\((?:[^()\s]|\([^()\s]*\))*(?:\s+"[^"]*")?\)  # a link's target and title
        | (?<=\])\[[^\]\n]*\]
        | \[\^[\w-]+\](?!:)                             # a footnote's number
        | \{{:?[ ]*[.\#][^{{}}\n]*\}}
      )
    | (?P<tag> </?(?P<name>[a-zA-Z][\w-]*)(?:\s[^<>]*)?> )
    | (?P<computed> \{{\{{.+?\}}\}} )
    | (?P<entity> &\#?\w+; )
    | (?P<block>
          [\s|]*\n[ \t>|:]*(?:--|==|-[ \t:]*\|)[-=|: \t]*(?=\n|\Z)  # below a heading, or that of a table
        | [\s|]*\n(?:[ \t>]*\n[\s>]*|[ \t]*{_ITEM}|[ \t]*\||(?=\#{{1,6}}[ ]))(?:\#{{1,6}}[ ]|{_ITEM})?
      )
    | (?P<mark> ^[ \t]*(?:>[ \t]*)+ | ^\#{{1,6}}[ ] | \A[ \t]*{_ITEM} | [*_`"“”$\\\[\]] )
    | (?P<space> [\s|]+ )
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_INLINE = re.compile("(?:a|abbr|b|code|em|i|kbd|mark|s|small|span|strong|su[bp]|u|var)", re.IGNORECASE)
_WITHIN = re.compile("br|img", re.IGNORECASE)  # they stand between words, and end no sentence
_SPOKEN = re.compile(r"""\b(?:alt|title|aria-label)=(["'])(.*?)\1""", re.DOTALL)  # what screen readers read
_SENTENCE = re.compile(r"\S.*?(?:[.?!:](?=\s)|(?=\n)|\Z)")
# Some characters, where they begin in the source, and how many characters of the source each of them is: one where they
# stand there as they are; none where they are something else, such as an entity, and all stand where it begins.
_Piece = tuple[str, int, int]
_POINTS = ".,;:?!()"
_NEGATIONS = r"no|not|never|neither|nor|hardly|seldom|cannot|without|\w+n't"
# Small words, which a sentence may gain, lose or exchange and still say the same.
_SMALL = re.compile("an?|th(e|is|at|ese|ose)|which|who|is|are|was|were|be|been|its?|so|then|too|also")
_NEAR = 0.5  # the part of a fragment's words that a sentence must have, to be taken for what the fragment quotes


class Plain:
    """The words of a text, with the computed values filled in; each paragraph, item and table row is one line."""

    def __init__(self, prose: Prose, values: Mapping[Question, object]):
        self._pieces: list[_Piece] = []
        self._starts = [0]
        filled = {each.span[0]: str(values.get(each, "")) for each in prose.computed}
        for piece in _read(prose.text, filled):
            if piece[0] not in (" ", "\n") or (self._pieces and self._pieces[-1][0] not in (" ", "\n")):
                self._pieces.append(piece)
                self._starts.append(self._starts[-1] + len(piece[0]))

    @cached_property
    def text(self) -> str:
        """The words."""
        return "".join(piece for piece, _, _ in self._pieces)

    def places(self, fragment: str) -> Iterator[tuple[int, int]]:
        """Yield the start and the end in the source of each place where a fragment stands."""
        sought = plain(fragment)
        whole = rf"(?<!\w){re.escape(sought)}(?!\w)"
        for match in re.finditer(whole, self.text) if sought in self.text else ():  # `in` is much faster
            yield self._place(match.start()), self._place(match.end() - 1) + 1

    def sentences(self) -> Iterator[tuple[int, int, str]]:
        """Yield each sentence of three words or more: its start and its end in the source, and its words."""
        for match in _SENTENCE.finditer(self.text):
            if len(match[0].split()) > 2:
                yield self._place(match.start()), self._place(match.end() - 1) + 1, match[0]

    def nearest(self, fragment: str, begin: int = 0) -> tuple[float, str, int]:
        """Find the sentence most like a fragment, among those that begin at a place of the source or later.

        Returns:
            The part of the fragment's words that it has, the sentence, and its start in the source; (0.0, "", 0) if
            no sentence is near enough.
        """
        words, best = _content_words(plain(fragment)), (0.0, "", 0)
        for sentence in _SENTENCE.finditer(self.text):
            place = self._place(sentence.start())
            if place < begin:
                continue
            same = difflib.SequenceMatcher(None, words, _content_words(sentence[0]), False).get_matching_blocks()
            likeness = sum(block.size for block in same) / len(words)
            if likeness > best[0]:
                best = likeness, sentence[0].rstrip(_POINTS), place
        return best if best[0] >= _NEAR else (0.0, "", 0)

    def negation(self, fragment: str) -> str:
        """Return the negation that stands just before a fragment, such as *not*, or "" if there is none."""
        sought = rf"(?<!\w)(?:((?i:{_NEGATIONS})) )?{re.escape(plain(fragment))}(?!\w)"
        return ((match := re.search(sought, self.text)) and match[1]) or ""

    def _place(self, at: int) -> int:
        piece = bisect_right(self._starts, at) - 1
        _, place, step = self._pieces[piece]
        return place + (at - self._starts[piece]) * step


def reworded(fragment: str, sentence: str) -> str:
    """Return the longest part of a sentence that differs from a fragment in marks and small words alone, or ""."""
    words, sense = sentence.split(), _sense(plain(fragment))
    spans = ((start, end) for start in range(len(words)) for end in range(start + 1, len(words) + 1))
    same = [words[start:end] for start, end in spans if sense and _sense(" ".join(words[start:end])) == sense]
    return " ".join(sorted(same, key=len)[-1]).strip(_POINTS) if same else ""


def _bare(text: str) -> list[str]:
    return [word.strip(_POINTS) for word in text.lower().split()]


def _content_words(text: str) -> list[str]:
    """Return the words of a text without the small ones, which all sentences have, unless it has no others."""
    words = _bare(text)
    return [word for word in words if not _SMALL.fullmatch(word)] or words


def _sense(text: str) -> str:
    """Return the letters of a text without small words: those of two texts that say the same are equal."""
    return "".join(re.sub(r"[^\w%']", "", word) for word in _bare(text) if not _SMALL.fullmatch(word))


@cache
def plain(fragment: str) -> str:
    """Return a fragment without its markup, on one line: as `Plain` looks for it."""
    return " ".join("".join(piece for piece, _, _ in _read(fragment, {})).split())


def _read(text: str, filled: Mapping[int, str]) -> Iterator[_Piece]:
    """Yield the pieces of a text without its markup; a computed value is what stands in `filled` by its start."""
    end = 0
    for match in [*_MARKUP.finditer(without_open(text, {"{{": "}}"})), None]:
        start = match.start() if match else len(text)
        if start > end:
            yield text[end:start].replace("’", "'"), end, 1
        if not match:
            return
        end = match.end()
        if match["block"] or match["space"] or match["fenced"]:
            yield " " if match["space"] else "\n", start, 0
        elif match["entity"]:
            yield unescape(match[0]).replace("\u00a0", " "), start, 0
        elif match["computed"]:
            yield from ((characters, start, 0) for characters, _, _ in _read(filled.get(start, ""), {}))
        elif match["tag"] and not _INLINE.fullmatch(match["name"]):
            space = " " if _WITHIN.fullmatch(match["name"]) else "\n"
            spoken_texts = [plain(spoken[2]) for spoken in _SPOKEN.finditer(text[start:end])]
            yield from ((each, start, 0) for spoken in ("", *spoken_texts) for each in (spoken, space))
