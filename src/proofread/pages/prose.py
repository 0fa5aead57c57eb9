"""Markdown prose, read for what it claims: which values it types, computes, waives, or leaves bare.

``55%<!--= weights[6, 6] -->`` is a claim, ``{{ weights[6, 6] :.0%}}`` a value that the page computes,
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
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
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
from .numbers import NUMERAL, PARTED, PRINTED, SPELLED, UNIT, VULGAR, WORDS
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
    | (?P<number> {NUMERAL} )
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_IN_CODE = re.compile(rf"{_NAME}|(?P<number>{NUMERAL})")
# What a comment speaks of: the last group is the typed text, without the marks around it.
_BEFORE = re.compile(
    rf"""(?:
        (?<!`)(?P<ticks>`+)(?P<code>[^`]+)(?P=ticks)
      | !?\[(?P<link>[^\[\]]+)\]\([^()]*\)
      | (?P<mark>\*\*|\*|(?<!\w)__?)(?P<emphasised>(?:(?!(?P=mark))[^*\n]|(?<=\w)_(?=\w))+)(?P=mark)
      | ["“‘'](?P<quoted>[^"“”‘’'\n]+)["”’']
      | \$(?P<formula>[^$]+)\$
      | (?P<printed>(?:{PRINTED})?\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\])
      | (?<![\d_])(?<!\d[.,/:⁄])(?P<number>(?:(?<![./⁄]){PARTED}|{NUMERAL})(?:{UNIT})?)  # all of it, not its end
      | (?<![\w-])(?P<spelled>(?i:{SPELLED}|(?:{"|".join(WORDS)})(?={UNIT}))(?:{UNIT})?)
      | (?<![\w-])(?<!\w['’])(?P<word>[^\W\d_][\w'’-]*)    # nor the unit of a number
    )\Z""",
    re.VERBOSE,
)
_REACH = 400  # characters before a comment among which it is looked for

_PART = re.compile(r"\d+(?:\.\d+)?|\w+|\S")
EXACTLY = re.compile(r"#\s*to the bit:\s*(\S+[ ]+\S.*)")  # one word is no reason
_NAMED = re.compile(rf"(?P<numbers>(?:{NUMERAL})(?:, (?:{NUMERAL}))*): \S.*")
_HEAD = re.compile(r"(?<![\w.,-])(\d{1,3})(?:[ \n'’]|&\w+;)\Z")  # of a number whose groups stand apart
_UNSPACED = re.compile(r"[^\s<>|]+\Z")
_LINE_END = re.compile(r"[ \t]*(?:\n|\Z)")
_OPENED = re.compile(r"^[ \t>]*(?:`{3,}|~{3,})(.*)", re.MULTILINE)  # a fence within a comment


Span = tuple[int, int]
_Digits = tuple[int, int, bool]  # where digits stand, and whether that is a code span


@dataclass(frozen=True)
class Claim:
    """A typed value with the expression that must agree, or a fragment of the page with the condition that proves it.

    The span is that of the typed text alone: in an assert of the message, quotes and all.
    """

    typed: str
    expression: str
    span: Span
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
    """A value that the page computes: an expression and how to format it."""

    expression: str
    spec: str
    span: Span
    line: int


Question = Claim | Computed
_NO_MARKS: Mapping[Question, tuple[str, str]] = {}


@dataclass(frozen=True)
class Directive:
    """A comment for proofread, ``<!--= expression -->`` or ``<!--~ reason -->``, with the places of what it speaks of.

    A waiver that is alone on its line covers the block that follows; whatever else covers what stands before it.
    """

    kind: str  # "=" proves a value, "~" waives it
    content: str
    line: int
    is_alone: bool
    covers: Span | None  # None if nothing stands there that it could speak of
    typed: Span  # of what it covers, the text without its marks

    @classmethod
    def read(cls, prose: "Prose", token: re.Match[str], is_alone: bool, fence: Span | None) -> "Directive":
        """Read a comment, given the text of the fence that it directly follows, if it does."""
        kind, (start, end) = token["kind"], token.span()
        covers: Span | None
        if kind == "~" and is_alone:
            covers = typed = prose.block(end)
        elif kind == "=" and fence:
            covers = typed = fence
        else:
            first = max(0, start - _REACH)
            before = _BEFORE.search(prose.text, first, start)
            unspaced = _UNSPACED.search(prose.text, first, start) if kind == "~" else None
            covers = min((match.span() for match in (before, unspaced) if match), default=None)
            typed = before.span(before.lastgroup or 0) if before else (start, start)
        return cls(kind, _unbroken(token["said"]), prose.line(start), is_alone, covers, typed)

    @property
    def of_block(self) -> bool:
        """Whether it waives values of the block that follows."""
        return self.kind == "~" and self.is_alone

    def fault(self, text: str) -> str:
        """Why it cannot do what it is for, and the remedy; "" if it can."""
        if not self.content:
            return f"<!--{self.kind} --> needs {'a reason' if self.kind == '~' else 'an expression'}"
        if self.covers is None:
            return f"<!--{self.kind} {self.content} --> must directly follow what it speaks of"
        if self.kind == "~":
            is_idle = not self.is_alone and not re.search(rf"\d|{VULGAR}", text[slice(*self.covers)])
            return f"the waiver ({self.content}) covers no value; remove it" if is_idle else ""
        begin, typed = self.typed[0], text[slice(*self.typed)]
        head = _HEAD.search(text, max(0, begin - 40), begin)
        if head is None or not re.match(r"\d{3}(?!\d)", typed):
            return ""
        remedy = f"for one write {head[1]},{typed}, for two give {head[1]} a comment, too"
        return f"{head[0]}{typed} reads as one number or as two: {remedy}"


@dataclass
class Prose:
    """The claims of one Markdown text. Lines count from the text's first, which is line 0."""

    text: str
    claims: list[Claim] = field(default_factory=list)
    computed: list[Computed] = field(default_factory=list)
    waivers: list[tuple[int, str]] = field(default_factory=list)
    problems: list[tuple[int, str]] = field(default_factory=list)
    waived: list[Span] = field(default_factory=list)  # where values stand that a waiver covers
    bracketed: list[Span] = field(default_factory=list)  # numbers that must be those of equations
    _bare: list[_Digits] = field(default_factory=list)
    _hidden: list[Span] = field(default_factory=list)  # comments, with their lines where these hold nothing else

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

    def block(self, place: int) -> Span:
        """From a place to the end of the paragraph that follows it."""
        begin = len(self.text) - len(self.text[place:].lstrip())
        following = bisect_left(self._ends, begin)
        return place, self._ends[following] if following < len(self._ends) else len(self.text)

    def bare(self, code: str) -> Iterator[Span]:
        """Where values stand that nothing accounts for; a code span that quotes the code is accounted for."""
        for start, end, is_code in self._bare:
            source = self.text[start:end]
            if not is_code or not re.search(r"[^\W\d]", source) or _parts(source.strip("`")) not in _parts(code):
                yield start, end

    def publish(
        self, values: Mapping[Question, object], marks: Mapping[Question, tuple[str, str]] | None = None
    ) -> str:
        """The text for the reader: comments gone, computed figures in their place, some figures between their marks."""
        parts, end, marks = [], 0, marks or {}
        filled = [(each.span, str(values.get(each, "")).join(marks.get(each, ("", "")))) for each in self.computed]
        for claim in (each for each in self.claims if each in marks):
            start, stop = claim.span
            dollar = self.text[start - 1 : start] == "$"  # marks are no part of a formula
            filled += zip([(start - dollar,) * 2, (stop + dollar,) * 2], marks[claim], strict=True)
        for (start, stop), text in sorted([*filled, *((span, "") for span in self._hidden)]):
            parts += [self.text[end:start], text]
            end = stop
        return "".join([*parts, self.text[end:]])


def read(text: str, *, opens: bool = False) -> Prose:
    """Read a Markdown text for its claims. One that opens a page may begin with front matter."""
    prose, directives, digits = Prose(text), list[Directive](), list[_Digits]()
    masked, fence = _masked(text), None
    for token in _tokens(masked, FRONT_MATTER.match(masked) if opens else None):
        start, end = token.span()
        if token["fenced"]:
            fence = token
            _refuse_claims(prose, token["info"], prose.line(start))
        elif token["comment"]:
            hidden, is_alone = _line_of(text, start, end)
            prose._hidden.append(hidden)
            if token["kind"]:
                between = text[fence.end() : start].strip(" \t").removeprefix("\n").strip(" \t>") if fence else ""
                printed = fence.span("body") if fence and not between else None
                directives.append(Directive.read(prose, token, is_alone, printed))
            for opened in () if token["kind"] else _OPENED.finditer(token["said"]):
                _refuse_claims(prose, opened[1], prose.line(start))
        elif token["computed"]:
            _compute(prose, token, prose.line(start))
        elif token["quoted"]:
            if any(each["number"] for each in _IN_CODE.finditer(token["quoted"])):
                digits.append((start, end, True))
        elif token["bracketed"] and is_reference(text, start):
            prose.bracketed.append((start, end))
        elif token["number"] or token["bracketed"]:
            digits.append((start, end, False))

    is_free = _outside([each.covers for each in directives if each.content and each.covers and not each.of_block])
    prose._bare, prose.bracketed = [*filter(is_free, digits)], [*filter(is_free, prose.bracketed)]
    waived = set[_Digits]()
    for directive in sorted(directives, key=lambda each: each.of_block):
        if fault := directive.fault(text):
            prose.problems.append((directive.line, fault))
        elif directive.of_block:
            waived |= _waive(prose, directive, waived)
        elif directive.kind == "~":
            prose.waivers.append((directive.line, directive.content))
            prose.waived += [directive.covers] if directive.covers else []
        else:
            _prove(prose, directive)
    prose._bare = [place for place in prose._bare if place not in waived]
    prose.waived += sorted(place[:2] for place in waived)
    return prose


def _line_of(text: str, start: int, end: int) -> tuple[Span, bool]:
    """What of a text to hide for a comment, and whether that is alone on its line, but for marks of a quote or a table.

    A line that held only a comment must not stay behind as a blank line: it would end the paragraph.
    """
    first = text.rfind("\n", 0, start) + 1
    before, after = text[first:start], _LINE_END.match(text, end)
    if after is None or before.strip(" \t>|"):
        return (start, end), False
    return (start, end) if before.strip() else (first, after.end()), True


def _outside(spans: Sequence[Span]) -> Callable[[tuple[int, ...]], bool]:
    """Return a function that tells whether a place ends outside of all spans that begin no later than it does."""
    covered = sorted(spans)
    reached = [*accumulate((last for _, last in covered), max, initial=0)]
    return lambda place: place[1] > reached[bisect_right(covered, place[0], key=itemgetter(0))]


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


def _spoken(text: str, within: Span) -> Iterator[re.Match[str]]:
    for match in _SPOKEN.finditer(text, *within):
        yield from _TOKEN.finditer(text, *match.span(match.lastgroup or 0))


def _waive(prose: Prose, waiver: Directive, before: Set[_Digits]) -> set[_Digits]:
    """The values of a block that a waiver names, but for those that were waived before."""
    reason, within = waiver.content, waiver.covers or (0, 0)
    first, last = (bisect_left(prose._bare, place, key=itemgetter(0)) for place in within)
    values = {
        place: {each["number"] for each in _IN_CODE.finditer(prose.text, *place[:2]) if each["number"]}
        for place in prose._bare[first:last]
        if place not in before
    }
    there = set().union(*values.values())
    named = _NAMED.fullmatch(reason)
    waived = there if reason.startswith("table: ") else set(named["numbers"].split(", ")) if named else set()
    if not (named or waived) and there:
        wanted = ", ".join(dict.fromkeys(value for place in values for value in sorted(values[place])))
        example = f"<!--~ {wanted}: {reason} -->, or waive a whole table, <!--~ table: {reason} -->"
        message = f"the waiver ({reason}) must name the values of its block that it covers, as in {example}"
        prose.problems.append((waiver.line, message))
    elif absent := sorted(waived - there):
        message = f"the waiver ({reason}) covers no value {', '.join(absent)} of the block that follows; remove it"
        prose.problems.append((waiver.line, message))
    elif not waived:
        prose.problems.append((waiver.line, f"the waiver ({reason}) covers no value; remove it"))
    else:
        prose.waivers.append((waiver.line, reason))
    return {place for place, numbers in values.items() if numbers and numbers <= waived}


def _prove(prose: Prose, directive: Directive) -> None:
    """Take in what an expression is to prove."""
    expression, typed = directive.content, prose.text[slice(*directive.typed)]
    if not check(prose, expression, directive.line):
        return
    chosen = parse(expression)
    if isinstance(chosen, ast.IfExp) and isinstance(chosen.body, ast.Constant) and isinstance(chosen.body.value, str):
        remedy = f'assert {ast.unparse(chosen.test)}, "..."'
        message = f"{typed} is no number: let a cell tagged claims prove it, {remedy}, with the words around {typed}"
        prose.problems.append((directive.line, message))
    else:
        prose.claims.append(Claim(typed, expression, directive.typed, prose.line(directive.typed[0])))


def _refuse_claims(prose: Prose, info: str, line: int) -> None:
    """Tell of a fence of claims that was left to the prose, where none of its asserts would be read."""
    if re.match(r"\s*claims\b", info):
        message = "these claims are not read: on a Markdown page let the line of their fence begin with it"
        prose.problems.append((line, f"{message}; on any other, tag a code cell claims"))


def _compute(prose: Prose, token: re.Match[str], line: int) -> None:
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
