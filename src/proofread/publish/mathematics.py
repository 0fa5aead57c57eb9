r"""TeX becomes MathML when a page is built: readers need no JavaScript, and an error in TeX is an error of the build.

>>> to_mathml(r"\sqrt{d}", display=False)
'<math display="inline" alttext="&#92;sqrt&#123;d&#125;"><msqrt><mi>d</mi></msqrt></math>'

A displayed formula becomes one ``span.math-display`` that holds ``math[display=block]`` and, if the formula has a
number (``\tag{7.2}``), ``span.math-tag`` and the anchor ``eq-7.2``. Style them, and choose a font, in CSS::

    math { font-family: "STIX Two Math", math }
    .math-display { display: flex; align-items: center; overflow-x: auto }
    .math-display math { flex: 1 }
"""

import html
import json
import re
import shutil
import subprocess
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from ..checks.checked import Report, Text
from ..checks.findings import Finding, shortened
from ..formulas import spans
from ..keep.files import digest, seal, unsealed, write
from ..pages.page import Page

_Formula = tuple[str, bool]  # TeX, and whether it is displayed

_CUT = "<!--cut-->"
_WARNING = re.compile(r"\[WARNING\] Could not convert TeX math .*?rendering as TeX:\n(.*?)(?=^\[|\Z)", re.S | re.M)
_ANNOTATED = re.compile(r"(<math [^>]*)><semantics>(.*)<annotation .*</annotation></semantics>", re.S)
# The TeX that pandoc drops without a word, or turns into elements that browsers do not draw.
_DROPPED = re.compile(
    r"\\(?:hline|cline|color|boxed|fbox|[bx]?cancel|tag|label)(?![a-zA-Z])|\\begin\{array\}\{[^{}]*[|][^{}]*\}"
)
_INVISIBLE = re.compile(
    r"\\(?:begin|end)\{\w+\*?\}(?:\{[^{}]*\})?|\\(?:hspace|mspace)\*?\{[^{}]*\}|\\\\\[[^\]]*\]|\\[a-zA-Z]+"
)
# The elements that brackets around them must grow with.
_TALL = {"mfrac", "msqrt", "mtable", "munder", "mover", "munderover"}
_KEPT = 5000
_memo: dict[_Formula, "str | MathError"] = {}
_kept: dict[_Formula, str] = {}
_file: Path | None = None


class MathError(ValueError):
    """TeX that cannot be read.

    Attributes:
        line: Index of the line in the Markdown where it stands, counted from 0, where that is known.
    """

    def __init__(self, message: str, line: int | None = None):
        super().__init__(message)
        self.line = line


def keep(folder: Path) -> None:
    """Keep what is converted in a folder, where the next process that is told of it finds it."""
    global _file
    _file = folder / "mathematics.json"
    _kept.clear()
    with suppress(OSError, ValueError, KeyError, TypeError):  # there is none yet, or none that we wrote
        said = json.loads(unsealed(_file))
        if said["by"] == _maker():
            _kept.update({(tex, display): mathml for tex, display, mathml in said["formulas"]})


def prepare(markdowns: Iterable[str]) -> None:
    """Convert the mathematics of many texts, in one run of pandoc at most; what is wrong, `render` says of each."""
    _convert([(span.latex, span.display) for text in markdowns for span in spans(text) if span.closes])


def typeset(report: Report) -> None:
    """Convert the mathematics of all pages; what cannot be converted is found on the page that is held to what it says.

    Checking does without: how a formula is set is a matter of who publishes it, and what it says is not.
    """
    prepare(text.prose.text for checked in report.pages for text in checked.texts)
    for checked in report.held:
        checked.findings += (fault for text in checked.texts for fault in _faults(checked.page, text))


def _faults(page: Page, text: Text) -> Iterator[Finding]:
    for span in spans(text.prose.text):
        try:
            if span.closes:  # else a check has told
                to_mathml(span.latex, display=span.display)
        except MathError as error:
            yield shortened(Finding(page.path, text.at(span.start), str(error), kind="math"))


def to_mathml(tex: str, *, display: bool) -> str:
    """Convert one formula to MathML, on one line.

    Args:
        tex: The text between the dollars.
        display: Whether it is displayed, on lines of its own.

    Raises:
        MathError: It is not TeX that pandoc reads, or pandoc would lose a part of it.
    """
    _convert([(tex, display)])
    return _found((tex, display))


def converted() -> list[str]:
    """The MathML of all formulas that this process has converted: what the site's font must be able to set."""
    return [mathml for mathml in _memo.values() if isinstance(mathml, str)]


def render(markdown: str, *, lenient: bool = False) -> str:
    """Replace the mathematics of a Markdown text by MathML; code is left as it is.

    The result stands on one line each and holds no character that Markdown gives a meaning, so that it can stand
    wherever a word can: in a table cell, a list item, an admonition. If lenient, TeX that cannot be read stays.

    Raises:
        MathError: If a formula is not TeX that pandoc reads, or its dollars are not closed; says on which line.
    """
    formulas = [span for span in spans(markdown) if span.closes or not lenient]
    for span in formulas:
        if not span.closes:
            line = markdown.count("\n", 0, span.start)
            raise MathError(f"line {line + 1}: this $$ is never closed", line)
    _convert([(span.latex, span.display) for span in formulas])
    pieces, end = [], 0
    for span in formulas:
        try:
            mathml = _found((span.latex, span.display))
        except MathError as error:
            if lenient:
                continue
            line = markdown.count("\n", 0, span.start)
            raise MathError(f"line {line + 1}: {error}", line) from None
        pieces += [markdown[end : span.start], _inert(mathml, span.tag)]
        end = span.end
    return "".join([*pieces, markdown[end:]])


def _found(formula: _Formula) -> str:
    mathml = _memo[formula]
    if isinstance(mathml, MathError):
        raise MathError(str(mathml))
    return mathml


def _convert(formulas: Sequence[_Formula]) -> None:
    """Convert what is neither known to this process nor kept by one before, and keep it."""
    _memo.update({pair: _kept[pair] for pair in formulas if pair in _kept and pair not in _memo})
    new = list(dict.fromkeys(pair for pair in formulas if pair not in _memo))
    if not new:
        return
    chunks, warnings = _pandoc(new)
    reasons = iter(warnings)
    for (tex, display), chunk in zip(new, chunks, strict=True):
        opening, closing = ("$$", "$$") if display else ("$", "$")
        if not chunk.startswith("<math"):
            _memo[tex, display] = MathError(f"{opening}{tex}{closing} is not TeX: {next(reasons, chunk)}")
        elif lost := _lost(tex, chunk):
            message = f"{opening}{tex}{closing} would lose {lost} on the way to MathML: write it without"
            _memo[tex, display] = MathError(message)
        else:
            _memo[tex, display] = _kept[tex, display] = chunk
    if _file:
        latest = [(*pair, _kept[pair]) for pair in sorted(_kept, key=_memo.__contains__)][-_KEPT:]
        with suppress(OSError):  # the next process will convert them again
            write(_file, seal(json.dumps({"by": _maker(), "formulas": latest}).encode()))


def _maker() -> str:
    """Return all that the conversion depends on, beside the formula."""
    return f"{metadata.version('pypandoc_binary')} {digest(Path(__file__))}"


def _lost(tex: str, mathml: str) -> str:
    """Tell what of TeX a reader of the MathML would not see."""
    if dropped := _DROPPED.search(tex):
        return dropped[0]

    def letters(text: str) -> Counter[str]:
        return Counter(re.findall(r"[^\W_]", unicodedata.normalize("NFKD", text)))

    shown = letters(html.unescape(re.sub(r"<[^>]*>", "", mathml)))
    return " and ".join(letters(_INVISIBLE.sub(" ", tex)) - shown)


def _pandoc(formulas: Sequence[_Formula]) -> tuple[list[str], list[str]]:
    """Return for each formula what pandoc made of it, and for each that it could not read the reason."""
    blocks: list[dict[str, object]] = []
    for tex, display in formulas:
        kind = {"t": "DisplayMath" if display else "InlineMath"}
        # A comma in braces parts thousands; pandoc would set a space after it.
        grouped = re.sub(r"(?<=\d)\{,\}(?=\d{3})", r"\\text{,}", tex)
        blocks.append({"t": "Plain", "c": [{"t": "Math", "c": [kind, grouped]}]})
        blocks.append({"t": "RawBlock", "c": ["html", _CUT]})
    # Its package would start it several times to ask for its version.
    pandoc = shutil.which("pandoc", path=str(metadata.distribution("pypandoc_binary").locate_file("pypandoc/files")))
    assert pandoc, "pypandoc_binary comes with pandoc"
    ran = subprocess.run(
        [pandoc, "--from=json", "--to=html5", "--mathml", "--wrap=none"],
        input=json.dumps({"pandoc-api-version": [1, 23, 1], "meta": {}, "blocks": blocks}),
        capture_output=True,
        encoding="utf-8",
    )
    if ran.returncode:
        raise MathError(f"pandoc failed with exit code {ran.returncode}: {ran.stderr.strip()}")
    output = ran.stdout.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")  # HTML needs no namespace
    chunks = []
    for (tex, _), chunk in zip(formulas, output.split(_CUT), strict=False):
        # Pandoc's copy of the TeX is an element, which a search would take for the page's text.
        annotated = _ANNOTATED.search(chunk)
        mathml = f'{annotated[1]} alttext="{_encoded(tex)}">{_typeset(annotated[2])}</math>' if annotated else chunk
        chunks.append(" ".join(mathml.split()))
    # Its list of accepted tokens is a hundred tokens long: only the one that it met is of use.
    return chunks, [
        re.sub(r"\s*expecting .*", "", reason, flags=re.S).strip() for reason in _WARNING.findall(ran.stderr)
    ]


def _typeset(mathml: str) -> str:
    """Set what pandoc leaves to a reader's browser as TeX does."""
    root = ElementTree.fromstring(f"<math>{mathml}</math>")
    for element in root.iter():
        if element.tag == "mo" and element.text == "\u0303":
            element.text = "\u02dc"  # a tilde of a size that can be seen
        kids = list(element)
        bars = [kid for kid in kids if kid.tag == "mo" and kid.text == "‖"]
        if bars and not _TALL & {part.tag for part in element.iter()}:
            for bar in bars:
                bar.set("stretchy", "false")
        if element.tag not in ("math", "mrow", "mtd", "mstyle"):
            continue
        for place in range(len(kids) - 1, -1, -1):
            if _is_operator(kids[place]):
                # A thin space parts the name of a function from letters and numbers beside it, not from brackets.
                after, before = kids[place + 1 : place + 2], kids[max(place - 1, 0) : place]
                if after and after[0].tag not in ("mo", "mspace") and (after[0].tag != "mrow" or _is_bare(after[0])):
                    element.insert(place + 1, ElementTree.Element("mspace", width="0.167em"))
                if before and before[0].tag in ("mi", "mn", "msub", "msup", "msubsup", "mfrac", "mrow"):
                    element.insert(place, ElementTree.Element("mspace", width="0.167em"))
    inside = ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)
    return inside.removeprefix("<math>").removesuffix("</math>")


def _is_operator(element: ElementTree.Element) -> bool:
    """Tell whether an element is the name of a function, with what stands below and above it."""
    if element.tag in ("msub", "msup", "msubsup", "munder", "mover", "munderover"):
        return _is_operator(element[0])
    if element.tag == "mrow" and len(element):
        return element[-1].text == "\u2061"
    return element.tag == "mi" and element.get("mathvariant") == "normal" and len(element.text or "") > 1


def _is_bare(row: ElementTree.Element) -> bool:
    """Tell whether a row begins with something else than a bracket."""
    return not (len(row) and row[0].tag == "mo" and row[0].get("form") == "prefix")


def _encoded(text: str) -> str:
    """Text of HTML with its punctuation as character references, which Markdown does not read."""
    return re.sub(r"[!-/:-@[-`{-~]", lambda m: f"&#{ord(m[0])};", html.unescape(text))


def _inert(mathml: str, tag: str | None) -> str:
    """Encode the text between tags, and put a displayed formula beside its number."""
    parts = re.split(r"(<[^>]*>)", mathml)
    body = "".join(part if part.startswith("<") else _encoded(part) for part in parts)
    if 'display="block"' not in parts[1]:
        return body
    number = f'<span class="math-tag">({html.escape(tag)})</span>' if tag else ""
    anchor = f' id="eq-{html.escape(tag)}"' if tag else ""
    return f'<span class="math-display"{anchor}>{body}{number}</span>'
