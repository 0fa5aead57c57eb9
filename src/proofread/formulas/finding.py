"""Where mathematics stands in Markdown, and what its author says about it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# What begins a code span. More than nine marks begin none: each number of them would be looked for to the text's end.
TICKS = r"(?<!`)(?P<ticks>`{1,9}+)(?!`)"
_SKIPPED = (
    r"^[ \t>]*(?P<fence>`{3,}+|~{3,}+)[^\n]*\n.*?(?:^[ \t>]*(?P=fence)[`~]*[ \t]*$|\Z)",
    rf"{TICKS}(?:(?!\n[ \t]*\n).)*?(?<!`)(?P=ticks)(?!`)",
    r"<!--.*?-->",
    r"<(?P<element>code|pre|script|style)\b.*?</(?P=element)>",
    r"\\[\\$`]",
)
_OPEN = {"<!--": "-->"} | {f"<{name}": f"</{name}>" for name in ("code", "pre", "script", "style")}
_DISPLAY = r"(?<!\$)\$\$(?P<display>[^$]+)\$\$(?!\$)"
_INLINE = r"(?<!\$)\$(?P<inline>[^\s$](?:\\.|[^$\\\n]|\n(?![ \t]*\n))*?(?<!\s))\$(?![\d$])"
_UNCLOSED = r"(?P<unclosed>\$\$)"
_TOKENS = re.compile("|".join((*_SKIPPED, _DISPLAY, _INLINE, _UNCLOSED)), re.M | re.S)
_DIRECTIVE = re.compile(r"\s*<!--\s*(where|unchecked):(.*?)-->", re.S)
_TAG = re.compile(r"\s*\\tag\{([^{}]*)\}")


@dataclass(frozen=True)
class Span:
    """A piece of mathematics in Markdown: ``markdown[start:end]`` with its dollars, and the TeX between them."""

    start: int
    end: int
    latex: str
    display: bool
    tag: str | None

    @property
    def closes(self) -> bool:
        """Whether dollars end it; else they are all of it."""
        return self.latex != "$$"


@dataclass(frozen=True)
class Formula:
    r"""A formula on a page, with what its author says about it.

    Attributes:
        latex: What stands between the dollars, without its ``\tag``.
        line: Index of its first line in the Markdown, counted from 0.
        display: Whether it is displayed (``$$``).
        where: Python assignments that bind its symbols (may be empty), or None where it carries no such comment.
        unchecked: The reason why it is not checked, or None.
        tag: Its equation number, from ``\tag{...}``, or None.
    """

    latex: str
    line: int = 0
    display: bool = True
    where: str | None = None
    unchecked: str | None = None
    tag: str | None = None


def without_open(text: str, pairs: Mapping[str, str]) -> str:
    r"""A text in which all that opens and is nowhere closed is hidden by as many characters.

    Of each such beginning a pattern would look for the end through all that follows.

    >>> without_open("a <!-- b --> <!-- c", {"<!--": "-->"})
    'a <!-- b --> \x00\x00\x00\x00 c'
    """
    for begin, end in pairs.items():
        last = text.rfind(end) + 1
        text = text[:last] + text[last:].replace(begin, "\0" * len(begin))
    return text


def spans(markdown: str) -> Iterator[Span]:
    """Yield the mathematics of a Markdown text in order; code, HTML comments and escaped dollars hold none.

    A ``$$`` that is never closed is a span that does not close.
    """
    for match in _TOKENS.finditer(without_open(markdown, _OPEN)):
        display = match["inline"] is None
        name = next((name for name in ("display", "inline", "unclosed") if match[name]), None)
        if name is None:
            continue
        latex = markdown[slice(*match.span(name))]
        if markdown[markdown.rfind("\n", 0, match.start()) + 1 : match.start()].lstrip().startswith(">"):
            latex = re.sub(r"\n[ \t]*>", "\n", latex)  # a block quote's marker is not a "greater than"
        tags = _TAG.findall(latex)
        if len(tags) == 1:  # a formula has one number; more of them are left for its readers to refuse
            latex = _TAG.sub("", latex)
        yield Span(match.start(), match.end(), latex.strip(), display, tags[0].strip() if len(tags) == 1 else None)


def find(markdown: str) -> list[Formula]:
    """Find the formulas that a Markdown text states: all that is displayed, and inline ones with an author's comment.

    >>> find("so $x_i$ sums to $s = 3$ <!-- where: s = x.sum() -->")
    [Formula(latex='s = 3', line=0, display=False, where='s = x.sum()', unchecked=None, tag=None)]
    """
    formulas = []
    for span in spans(markdown):
        if not span.closes or not (span.display or is_marked(markdown, span.end)):
            continue
        directives: dict[str, list[str]] = {"where": [], "unchecked": []}
        end = span.end
        while directive := _DIRECTIVE.match(markdown, end):
            directives[directive[1]].append(directive[2].strip())
            end = directive.end()
        line = markdown.count("\n", 0, span.start)
        where, unchecked = (
            "; ".join(directives[name]) if directives[name] else None for name in ("where", "unchecked")
        )
        formulas.append(Formula(span.latex, line, span.display, where, unchecked, span.tag))
    return formulas


def is_marked(markdown: str, end: int) -> bool:
    """Tell whether an author's comment follows the mathematics that ends here."""
    return _DIRECTIVE.match(markdown, end) is not None
