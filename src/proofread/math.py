r"""TeX becomes MathML when a page is built: readers need no JavaScript, and an error in TeX is an error of the build.

>>> to_mathml(r"\sqrt{d}", display=False)
'<math display="inline" alttext="&#92;sqrt&#123;d&#125;"><msqrt><mi>d</mi></msqrt></math>'

A displayed formula becomes one ``span.math-display`` that holds ``math[display=block]`` and, if the formula has a
number (``\tag{7.2}``), ``span.math-tag`` and the anchor ``eq-7.2``. Style them, and choose a font, in CSS::

    math { font-family: "STIX Two Math", math }
    .math-display { display: flex; align-items: center; overflow-x: auto }
    .math-display math { flex: 1 }
"""

from __future__ import annotations

import html
import json
import re
import subprocess
from collections.abc import Sequence

import pypandoc

from .formula import spans

__all__ = ["MathError", "converted", "render", "to_mathml", "to_mathml_many"]

_CUT = "<!--cut-->"
_WARNING = re.compile(r"\[WARNING\] Could not convert TeX math .*?rendering as TeX:\n(.*?)(?=^\[|\Z)", re.S | re.M)
_ANNOTATED = re.compile(
    r'(<math [^>]*)><semantics>(.*)<annotation encoding="application/x-tex">(.*)</annotation></semantics>'
)
_cache: dict[tuple[str, bool], str] = {}


class MathError(ValueError):
    """TeX that cannot be read.

    Attributes:
        line: Index of the line in the Markdown where it stands, counted from 0, where that is known.
    """

    def __init__(self, message: str, line: int | None = None):
        super().__init__(message)
        self.line = line


def to_mathml(tex: str, *, display: bool) -> str:
    """Convert one formula to MathML, on one line.

    Args:
        tex: What stands between the dollars.
        display: Whether it is displayed, on lines of its own.

    Raises:
        MathError: If it is not TeX that pandoc reads.
    """
    return to_mathml_many([(tex, display)])[0]


def to_mathml_many(formulas: Sequence[tuple[str, bool]]) -> list[str]:
    """Convert pairs of TeX and `display` to MathML, those not seen before in one run of pandoc.

    Raises:
        MathError: If one of them is not TeX that pandoc reads.
    """
    new = list(dict.fromkeys(pair for pair in formulas if pair not in _cache))
    if new:
        chunks, warnings = _pandoc(new)
        for (tex, display), chunk in zip(new, chunks, strict=True):
            if not chunk.startswith("<math"):
                raise MathError(
                    f"{'$$' if display else '$'}{tex}{'$$' if display else '$'} is not TeX: {warnings.pop(0)}"
                )
            _cache[tex, display] = chunk
    return [_cache[pair] for pair in formulas]


def converted() -> list[str]:
    """The MathML of all formulas that this process has converted: what the site's font must be able to set."""
    return list(_cache.values())


def render(markdown: str) -> str:
    """Replace the mathematics of a Markdown text by MathML; code is left as it is.

    The result stands on one line each and holds no character that Markdown gives a meaning, so that it can stand
    wherever a word can: in a table cell, a list item, an admonition.

    Raises:
        MathError: If a formula is not TeX that pandoc reads, or its dollars are not closed; says on which line.
    """
    found = list(spans(markdown))
    for span in found:
        if span.latex == "$$":
            line = markdown.count("\n", 0, span.start)
            raise MathError(f"line {line + 1}: this $$ is never closed", line)
    pairs = [(span.latex, span.display) for span in found]
    try:
        to_mathml_many(pairs)
    except MathError:
        for span, pair in zip(found, pairs, strict=True):
            line = markdown.count("\n", 0, span.start)
            try:
                to_mathml_many([pair])
            except MathError as error:
                raise MathError(f"line {line + 1}: {error}", line) from None
    pieces, end = [], 0
    for span, pair in zip(found, pairs, strict=True):
        pieces += [markdown[end : span.start], _inert(_cache[pair], span.tag)]
        end = span.end
    return "".join([*pieces, markdown[end:]])


def _pandoc(formulas: Sequence[tuple[str, bool]]) -> tuple[list[str], list[str]]:
    """Return for each formula what pandoc made of it, and for each that it could not read the reason."""
    blocks: list[dict[str, object]] = []
    for tex, display in formulas:
        kind = {"t": "DisplayMath" if display else "InlineMath"}
        blocks.append({"t": "Plain", "c": [{"t": "Math", "c": [kind, tex]}]})
        blocks.append({"t": "RawBlock", "c": ["html", _CUT]})
    ran = subprocess.run(
        [pypandoc.get_pandoc_path(), "--from=json", "--to=html5", "--mathml", "--wrap=none"],
        input=json.dumps({"pandoc-api-version": [1, 23, 1], "meta": {}, "blocks": blocks}),
        capture_output=True,
        encoding="utf-8",
    )
    if ran.returncode:
        raise MathError(f"pandoc failed with exit code {ran.returncode}: {ran.stderr.strip()}")
    output = ran.stdout.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")  # HTML needs no namespace
    # Pandoc's copy of the TeX is an element, which a search would take for the page's text.
    chunks = [_ANNOTATED.sub(_named, " ".join(chunk.split())) for chunk in output.split(_CUT)[:-1]]
    # What pandoc would have accepted instead is a hundred tokens long: only what it met is of use.
    return chunks, [
        re.sub(r"\s*expecting .*", "", reason, flags=re.S).strip() for reason in _WARNING.findall(ran.stderr)
    ]


def _named(annotated: re.Match[str]) -> str:
    opening, mathml, tex = annotated.groups()
    return f'{opening} alttext="{_encoded(tex)}">{mathml}'


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
