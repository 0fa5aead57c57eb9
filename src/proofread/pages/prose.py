"""Markdown prose, read for what it claims: which figures it types, computes, waives, or leaves bare.

``55%<!--= weights[6, 6] -->`` is a claim, ``{{ weights[6, 6] :.0%}}`` a figure that the page computes,
``2017<!--~ year -->`` a waiver; docs/proofread/directives.py shows all of them.

What stands before the comment is a number, a word, a code span, a formula, something emphasised, quoted or in brackets,
or a link; before a waiver also anything without a space, as a date. Sentences are proved by the asserts of cells, which
are read here, too: ``assert ship > crew, "ship takes more than crew"``. Digits need no claim in fenced code, formulas,
references to equations, links to figures (``[Figure 2](#figure-2)``), link targets, HTML tags, list numbers, names
whose digits follow a letter (GPT-2, float32, H100; also 2-D), and code spans that quote the page's own code. What HTML
and front matter say to readers (alt texts, titles, descriptions) is prose.
"""

import ast
import builtins
import re
import tokenize
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from tokenize import generate_tokens

from ..formulas import spans
from ..formulas.finding import TICKS, without_open
from ..syntax import expression as parse
from .equations import BRACKETED, REFERENCE, is_reference
from .numbers import FIGURE, PARTED, PRINTED, SPELLED, UNIT, VULGAR, WORDS
from .page import FENCE, FRONT_MATTER, OPEN

_CODE_SPAN = rf"{TICKS}(?P<quoted>(?:(?!\n[ \t>]*\n).)+?)(?<!`)(?P=ticks)(?!`)"  # in one paragraph
_NAME = rf"(?<!_)_*+(?!{VULGAR})[^\W\d_]\w*(?:-\d(?:[\w.]*\w)?)?|\b\d-?D\b"
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"'=<>`]+)"""
_TAG = rf"</?[a-zA-Z][\w-]*(?:\s+[a-zA-Z_:@][\w.:@-]*(?:\s*=\s*{_VALUE})?)*\s*/?>"
_SPOKEN = re.compile(
    r"""\s(?:alt|title|aria-label)\s*=\s*(?P<mark>["'])(?P<said>.*?)(?P=mark)|^(?:title|description):(?P<told>[^\n]*)""",
    re.DOTALL | re.MULTILINE,
)
# Whichever of these begins first wins, as in Markdown itself: a comment in a code span is code, a digit in a formula is
# the formula's.
_TOKEN = re.compile(
    rf"""
      (?P<fenced> {FENCE} )
    | {_CODE_SPAN}
    | (?P<comment> <!--(?P<kind>=|~|)(?P<said>.*?)--> )
    | \{{\{{(?P<computed>.+?)\}}\}}
    | \x00+                                           # a formula, see read
    | (?P<tag> {_TAG} )
    | (?P<skipped>
          ^:::[ ].*(?:\n(?:[ ]{{4}}.*|[ \t]*(?=\n)))*  # an API directive and its options
        | <[a-zA-Z][\w+.-]*:[^\s<>]*>                  # autolinks
        | https?://[^\s)>]+
        | (?<=\])\([^()\s]*                           # a link's target, but not its title
        | ^[ ]{{0,3}}\[(?!\^)[^\]\n]+\]:[ ]*\S+       # a reference's target
        | \[\^[\w-]+\]                               # footnotes
        | {REFERENCE}                                # to an equation, of which the registry knows
      | (?<=\[)Figure[ ](?P<drawn>\d+)(?=\]\([^()\s]*\#figure-(?P=drawn)\))
        | \{{:?[ ]*[.\#][^{{}}\n]*\}}                  # attribute lists
        | &\#?\w+;
        | ^[ \t>]*\d+[.)][ ]                          # list numbers
        | ^[ \t]*-+8<-+.*?$                           # another file's text
        | {_NAME}
      )
    | (?P<bracketed> {BRACKETED} )
    | (?P<figure> {FIGURE} )
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_IN_CODE = re.compile(rf"{_NAME}|(?P<figure>{FIGURE})")
_BEFORE = re.compile(
    rf"""(?:
        (?<!`)(?P<ticks>`+)(?P<a>[^`]+)(?P=ticks)
      | !?\[(?P<b>[^\[\]]+)\]\([^()]*\)
      | (?P<mark>\*\*|\*|(?<!\w)__?)(?P<c>(?:(?!(?P=mark))[^*\n]|(?<=\w)_(?=\w))+)(?P=mark)
      | ["“‘'](?P<d>[^"“”‘’'\n]+)["”’']
      | \$(?P<e>[^$]+)\$
      | (?P<f>(?:{PRINTED})?\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\])
      | (?<![\d_])(?<!\d[.,/:⁄])(?P<g>(?:(?<![./⁄]){PARTED}|{FIGURE})(?:{UNIT})?)  # all of a number, not the end of one
      | (?<![\w-])(?P<i>(?i:{SPELLED}|(?:{"|".join(WORDS)})(?={UNIT}))(?:{UNIT})?)
      | (?<![\w-])(?<!\w['’])(?P<h>[^\W\d_][\w'’-]*)    # nor the unit of one
    )\Z""",
    re.VERBOSE,
)

_PART = re.compile(r"\d+(?:\.\d+)?|\w+|\S")
EXACTLY = re.compile(r"#\s*to the bit:\s*(\S+[ ]+\S.*)")  # one word is no reason
_NAMED = re.compile(rf"(?P<figures>(?:{FIGURE})(?:, (?:{FIGURE}))*): \S.*")
_HEAD = re.compile(r"(?<![\w.,-])(\d{1,3})(?:[ \n'’]|&\w+;)\Z")  # of a number whose groups stand apart
_UNSPACED = re.compile(r"[^\s<>|]+\Z")


# Where digits stand, and whether that is a code span.
_Digits = tuple[int, int, bool]


@dataclass(frozen=True)
class Claim:
    """A typed figure with the expression that must agree, or a fragment of the page with the condition that proves it.

    The span is that of the typed text alone: in an assert of the message, quotes and all.
    """

    typed: str
    expression: str
    span: tuple[int, int]
    line: int

    @property
    def exactly(self) -> str:
        """The reason that the expression gives for comparing computed numbers to the bit; "" if it gives none."""
        lines = iter([f"({self.expression}\n", ")"])
        comments = (t.string for t in generate_tokens(lambda: next(lines, "")) if t.type == tokenize.COMMENT)
        reasons = map(EXACTLY.fullmatch, comments)
        return next((reason[1] for reason in reasons if reason), "")


@dataclass(frozen=True)
class Computed:
    """A figure that the page computes: an expression and how to format it."""

    expression: str
    spec: str
    span: tuple[int, int]
    line: int


Figure = Claim | Computed


@dataclass
class Prose:
    """The claims of one Markdown text. Lines count from the text's first, which is line 0."""

    text: str
    claims: list[Claim] = field(default_factory=list)
    computed: list[Computed] = field(default_factory=list)
    waivers: list[tuple[int, str]] = field(default_factory=list)
    problems: list[tuple[int, str]] = field(default_factory=list)
    waived: list[tuple[int, int]] = field(default_factory=list)  # where figures stand that a waiver covers
    bracketed: list[tuple[int, int]] = field(default_factory=list)  # numbers that must be those of equations
    _bare: list[_Digits] = field(default_factory=list)
    _comments: list[tuple[int, int]] = field(default_factory=list)
    _covered: list[tuple[int, int]] = field(default_factory=list)  # by comments that speak of it
    _blocks: list[tuple[int, str, tuple[int, int]]] = field(default_factory=list)  # whose figures a waiver names

    def line(self, place: int) -> int:
        """The line of a place in the text."""
        return bisect_left(self._breaks, place)

    def begins(self, place: int) -> int:
        """Where the line of a place begins."""
        line = self.line(place)
        return self._breaks[line - 1] + 1 if line else 0

    @cached_property
    def _breaks(self) -> list[int]:
        return [match.start() for match in re.finditer("\n", self.text)]

    @cached_property
    def _ends(self) -> list[int]:
        """Where paragraphs end."""
        return [match.start() for match in re.finditer(r"\n(?=[ \t>]*\n)", self.text)]

    def block(self, place: int) -> tuple[int, int]:
        """From a place to the end of the paragraph that follows it."""
        begin = len(self.text) - len(self.text[place:].lstrip())
        following = bisect_left(self._ends, begin)
        return place, self._ends[following] if following < len(self._ends) else len(self.text)

    def bare(self, code: str) -> Iterator[tuple[int, int]]:
        """Where figures stand that nothing accounts for; a code span that quotes the code is accounted for."""
        for start, end, is_code in self._bare:
            source = self.text[start:end]
            if not is_code or not re.search(r"[^\W\d]", source) or _parts(source.strip("`")) not in _parts(code):
                yield start, end

    def publish(self, values: Mapping[Figure, object], marks: Mapping[Figure, tuple[str, str]] | None = None) -> str:
        """The text for the reader: comments gone, computed figures in their place, some figures between their marks."""
        parts, end, marks = [], 0, marks or {}
        filled = [(each.span, str(values.get(each, "")).join(marks.get(each, ("", "")))) for each in self.computed]
        for claim in (each for each in self.claims if each in marks):
            start, stop = claim.span
            dollar = self.text[start - 1 : start] == "$"  # marks are no part of a formula
            filled += zip([(start - dollar,) * 2, (stop + dollar,) * 2], marks[claim], strict=True)
        for (start, stop), text in sorted([*filled, *((span, "") for span in self._comments)]):
            parts += [self.text[end:start], text]
            end = stop
        return "".join([*parts, self.text[end:]])


def read(text: str, *, opens: bool = False) -> Prose:
    """Read a Markdown text for its claims. One that opens a page may begin with front matter."""
    prose = Prose(text)
    loose: list[_Digits] = []
    masked, fence = _masked(text), None
    for token in _tokens(masked, FRONT_MATTER.match(masked) if opens else None):
        start, end = token.span()
        line = prose.line(start)
        if token["fenced"]:
            fence = token
            _claims(prose, token["info"], line)
        elif token["comment"]:
            of_fence = fence is not None and not text[fence.end() : start].strip(" \t").removeprefix("\n").strip(" \t>")
            _comment(prose, token, line, fence.span("body") if fence and of_fence else None)
        elif token["computed"]:
            _computed(prose, token, line)
        elif token["quoted"]:
            if any(digits["figure"] for digits in _IN_CODE.finditer(token["quoted"])):
                loose.append((start, end, True))
        elif token["bracketed"] and is_reference(text, start):
            prose.bracketed.append((start, end))
        elif token["figure"] or token["bracketed"]:
            loose.append((start, end, False))

    covered = sorted(prose._covered)
    reached = [*accumulate((last for _, last in covered), max, initial=0)]

    def is_loose(place: tuple[int, ...]) -> bool:
        return place[1] > reached[bisect_right(covered, place[0], key=itemgetter(0))]

    prose._bare, prose.bracketed = [*filter(is_loose, loose)], [*filter(is_loose, prose.bracketed)]
    waived = set[_Digits]()
    for line, said, within in prose._blocks:
        waived |= _waive(prose, line, said, within, waived)
    prose._bare = [place for place in prose._bare if place not in waived]
    prose.waived += sorted(place[:2] for place in waived)
    return prose


def _masked(text: str) -> str:
    """The text without its formulas and without what begins a directive and ends none, each character in its place."""
    parts, end = [], 0
    for formula in spans(text):
        parts += [text[end : formula.start], "\0" * (formula.end - formula.start)]
        end = formula.end
    return without_open("".join([*parts, text[end:]]), OPEN)


def _tokens(text: str, front: re.Match[str] | None) -> Iterator[re.Match[str]]:
    """The tokens of a text, of its front matter only what a reader is told."""
    if front:
        yield from _spoken(text, front.span())
    for token in _TOKEN.finditer(text, front.end() if front else 0):
        if token["tag"]:
            yield from _spoken(text, token.span())
        else:
            yield token


def _spoken(text: str, within: tuple[int, int]) -> Iterator[re.Match[str]]:
    for match in _SPOKEN.finditer(text, *within):
        yield from _TOKEN.finditer(text, *match.span(match.lastgroup or 0))


def _waive(prose: Prose, line: int, reason: str, within: tuple[int, int], before: Set[_Digits]) -> set[_Digits]:
    """The figures of a block that a waiver names, but for those that were waived before."""
    first, last = (bisect_left(prose._bare, place, key=itemgetter(0)) for place in within)
    figures = {
        place: {digits["figure"] for digits in _IN_CODE.finditer(prose.text, *place[:2]) if digits["figure"]}
        for place in prose._bare[first:last]
        if place not in before
    }
    named = _NAMED.fullmatch(reason)
    waived = set(re.split(", ", named["figures"])) if named else set()
    there = set().union(*figures.values())
    waived = there if reason.startswith("table: ") else waived
    if not (named or waived) and there:
        wanted = ", ".join(dict.fromkeys(figure for place in figures for figure in sorted(figures[place])))
        example = f"<!--~ {wanted}: {reason} -->, or waive a whole table, <!--~ table: {reason} -->"
        message = f"the waiver ({reason}) must name the figures of its block that it covers, as in {example}"
        prose.problems.append((line, message))
    elif absent := sorted(waived - there):
        message = f"the waiver ({reason}) covers no figure {', '.join(absent)} of the block that follows"
        prose.problems.append((line, f"{message}; remove it"))
    elif not waived:
        prose.problems.append((line, f"the waiver ({reason}) covers no figure; remove it"))
    else:
        prose.waivers.append((line, reason))
    return {place for place, said_there in figures.items() if said_there and said_there <= waived}


def _comment(prose: Prose, token: re.Match[str], line: int, printed: tuple[int, int] | None) -> None:
    text, (start, end), content = prose.text, token.span(), _unbroken(token["said"])
    waives = token["kind"] == "~"
    before, after = text[text.rfind("\n", 0, start) + 1 : start], re.compile(r"[ \t]*(?:\n|\Z)").match(text, end)
    alone = not before.strip(" \t>|") and after is not None
    # A line that held only a comment must not stay behind as a blank line: it would end the paragraph.
    whole = (start - len(before), after.end()) if alone and after and not before.strip() else (start, end)
    prose._comments.append(whole)
    if not token["kind"]:
        for opened in re.finditer(r"^[ \t>]*(?:`{3,}|~{3,})(.*)", token["said"], re.MULTILINE):
            _claims(prose, opened[1], line)
        return
    if not content:
        missing = "a reason" if waives else "an expression"
        prose.problems.append((line, f"<!--{token['kind']} --> needs {missing}"))
    elif not waives and printed:
        _claim(prose, content, printed, line)
    elif waives and alone:
        prose._blocks.append((line, content, prose.block(end)))
    else:
        matches = [p.search(text, max(0, start - 400), start) for p in ((_BEFORE, _UNSPACED) if waives else (_BEFORE,))]
        spoken_of = [claimed for claimed in matches if claimed]
        prose._covered += (claimed.span() for claimed in spoken_of)
        if not spoken_of:
            prose.problems.append((line, f"<!--{token['kind']} {content} --> must directly follow what it speaks of"))
        elif not waives:
            name = next(name for name in "abcdefghi" if spoken_of[0][name] is not None)
            begin, stop = spoken_of[0].span(name)
            typed, head = text[begin:stop], _HEAD.search(text, max(0, begin - 40), begin)
            if head and re.match(r"\d{3}(?!\d)", typed):
                message = (
                    f"{head[0]}{typed} may be one number or two: write {head[1]},{typed}, or end what stands before"
                )
                prose.problems.append((line, f"{message} it with a comment of its own"))
            else:
                _claim(prose, content, (begin, stop), line)
        elif any(re.search(rf"\d|{VULGAR}", claimed[0]) for claimed in spoken_of):
            prose.waivers.append((line, content))
            prose.waived.append(spoken_of[0].span())
        else:
            prose.problems.append((line, f"the waiver ({content}) covers no figure; remove it"))


def _claim(prose: Prose, expression: str, span: tuple[int, int], line: int) -> None:
    """Take in what an expression is to prove."""
    typed, is_fit = prose.text[slice(*span)], check(prose, expression, line)
    chosen = parse(expression) if is_fit else None
    if isinstance(chosen, ast.IfExp) and isinstance(chosen.body, ast.Constant) and isinstance(chosen.body.value, str):
        remedy = f'assert {ast.unparse(chosen.test)}, "..."'
        message = f"{typed} is no figure: let a cell tagged claims prove it, {remedy}, with the words around {typed}"
        prose.problems.append((line, message))
    elif is_fit:
        prose.claims.append(Claim(typed, expression, span, prose.line(span[0])))


def _claims(prose: Prose, info: str, line: int) -> None:
    """Tell of a fence of claims that was left to the prose, where none of its asserts would be read."""
    if re.match(r"\s*claims\b", info):
        message = "these claims are not read: on a Markdown page let the line of their fence begin with it"
        prose.problems.append((line, f"{message}; on any other, tag a code cell claims"))


def _computed(prose: Prose, token: re.Match[str], line: int) -> None:
    said, spec = _unbroken(token["computed"]), ""
    # The last colon begins the format unless what stands before it is no expression, as in a slice.
    expression, colon, rest = said.rpartition(":")
    with suppress(SyntaxError):
        if colon and parse(expression):
            said, spec = expression, rest.strip()
    if check(prose, said.strip(), line):
        prose.computed.append(Computed(said.strip(), spec, token.span(), line))


def _unbroken(content: str) -> str:
    """Return the content of a directive as one line: prose may be broken within a string of its code, too."""
    return re.sub(r"\s*\n\s*", " ", content).strip()


def check(prose: Prose, expression: str, line: int) -> bool:
    """Tell whether an expression can be evaluated, and can give different values on different pages."""
    try:
        tree = parse(expression)
    except SyntaxError as error:
        prose.problems.append((line, f"{expression} is not an expression: {error.msg}"))
        return False
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if names <= vars(builtins).keys():
        prose.problems.append((line, f"{expression} takes nothing from the page, so it proves nothing"))
        return False
    return True


def _parts(code: str) -> str:
    """Code however it is spaced; ``dim=-1`` is no part of ``dim=-10``."""
    return f" {' '.join(_PART.findall(code))} "
