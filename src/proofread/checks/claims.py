"""Holds what a text says, its figures, formulas and words, against what the page gave."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..formulas import spans
from ..formulas.inline import loose
from ..pages import numbers, prose
from ..pages.page import Page
from ..pages.prose import Claim
from ..programs.names import uses
from .checked import Text, claim_subject, formula_subject
from .findings import Edit, Finding
from .worded import bound_of, unnamed, unproved

_ABSENT = re.compile(r"NameError: name '(\w+)' is not defined|(\w+) is not bound")
_LONGEST = 200  # characters of what a figure should say that are told


def in_text(page: Page, text: Text, displayed: Sequence[str] = (), *, strict: bool = False) -> Iterator[Finding]:
    """What is wrong with a text once its page has run, which displays some formulas and may be a strict one."""

    def found(line: int, message: str, kind: str, subject: str = "") -> Finding:
        return Finding(page.path, text.line + line, message, kind=kind, subject=subject)

    def at(place: int, message: str, kind: str, subject: str = "") -> Finding:
        line, column = _in_file(page, text, place) or (text.at(place), None)
        return Finding(page.path, line, " ".join(message.split()), kind=kind, subject=subject, column=column)

    for line, message in text.prose.problems:
        yield found(line, message, "waiver" if "waiver" in message or "reason" in message else "expression")
    for place, stated in enumerate(text.formulas):
        subject = formula_subject(text, stated)
        faults, survivors = text.stated.get(place, ([], []))
        for message in faults:
            below = _bound_below(page, text, message, "state the formula below that cell")
            yield found(stated.line, message + below, "formula", subject)
        yield from (found(stated.line, message, "mutant", f"{subject} mutants") for message in survivors)
    for opened in (span for span in spans(text.prose.text) if not span.closes):
        yield at(opened.start, "this $$ is never closed", "formula")
    for place, message in loose(text.prose.text, displayed, strict=strict):
        yield at(place, message, "formula")
    if text.drew:
        yield found(0, f"an expression or formula here {text.drew}; draw in a code cell", "seed")
    for figure, error in text.errors.items():
        said, late = f"{{{{ {figure.expression} }}}}", f"{{{{= {figure.expression} }}}}"
        if isinstance(figure, Claim):
            said, late = f"{figure.typed} cannot be checked: {figure.expression}", f"<!--== {figure.expression} -->"
        below = _bound_below(page, text, error, f"ask at the page's end, {late}")
        yield at(figure.span[0], f"{said} fails with {error}{below}", "expression", claim_subject(text, figure))
    for claim in text.prose.claims:
        subject = claim_subject(text, claim)
        if claim in text.values and claim not in text.errors:
            for kind, message in disagreement(text, claim, text.values[claim], strict):
                finding = at(claim.span[0], message, kind, subject)
                yield replace(finding, edit=_edit(page, text, claim)) if kind == "figure" else finding
            if message := _exactness(claim, text.bits.get(claim, "")):
                yield at(claim.span[0], message, "bits", subject)
    for span in text.prose.bare(page.code):
        typed = text.prose.text[slice(*span)]
        remedy = f"assert it, {typed}<!--= expression -->, or waive it, {typed}<!--~ reason -->"
        yield at(span[0], f"nothing proves the figure {typed}: {remedy}", "bare")


def _bound_below(page: Page, text: Text, error: str, remedy: str) -> str:
    """What else to say of a name that is not there yet: which cell below the text binds it, and what to do."""
    name = _ABSENT.search(error)
    for number, cell in enumerate(page.cells[text.cell :], text.cell + 1):
        if name and cell.is_code and any((name[1] or name[2]) in uses(node).binds for node in cell.tree.body):
            return f"; cell {number}, further down, binds it: {remedy}"
    return ""


def disagreement(text: Text, claim: Claim, value: numbers.Value, strict: bool) -> Iterator[tuple[str, str]]:
    """What is wrong with a claim: its kind and the message."""
    said = text.prose.text
    before, after = said[: claim.span[0]], said[said.find("-->", claim.span[1]) + 3 :]
    bound = _bound(text, claim, value)
    bound = bound if strict or numbers.is_about(bound) else ""
    correction = numbers.correction(f"{bound} {claim.typed}".strip(), value)
    if reason := numbers.refused(claim.typed, value):
        yield "claim", f"{claim.typed} {reason}"
    elif correction is not None and value is False and claim.typed.lower() not in ("true", "yes"):
        yield "claim", f"it says {claim.typed}, but {claim.expression} does not hold"
    elif correction is not None:
        shown = correction if len(correction) <= _LONGEST else f"{correction[:_LONGEST]} ..."
        message = f"it says {claim.typed.strip()}, but {claim.expression} gives {shown}"
        if not bound and numbers.said(claim.typed)[1] and numbers.correction(f"about {claim.typed}", value) is None:
            message += f"; say that, or about {claim.typed}"
        yield "figure" if numbers.is_about(bound) or not bound else "claim", message
    else:
        yield from (("claim", message) for message in unproved(claim, value, before))
        yield from (("claim", message) for message in (unnamed(claim, value, before, after) if strict else ()))


def _bound(text: Text, claim: Claim, value: numbers.Value) -> str:
    """The bound that stands before a claim of a number, not in it."""
    counts = isinstance(value, (int, float)) and not isinstance(value, bool)
    before = text.prose.text[: claim.span[0]]
    return bound_of(claim, before) if counts and not numbers.said(claim.typed)[0] else ""


def _exactness(claim: Claim, compared: str) -> str:
    """What is wrong with how a claim compares computed numbers: without a reason, or with one for nothing."""
    reason = claim.exactly
    if compared and not reason:
        return (
            f"{compared} compares computed numbers to the last bit, which another processor may round otherwise: allow "
            "a tolerance, as torch.allclose does, or end the expression with why no bit can differ, "
            "# to the bit: reason"
        )
    if reason and not compared:
        return f"nothing computed is compared to the bit in {claim.expression}; remove the reason"
    return ""


def _edit(page: Page, text: Text, claim: Claim) -> Edit | None:
    """What would mend a figure, if its form can say the value: once it is written, it is read and agrees."""
    value = text.values[claim]
    bound = _bound(text, claim, value)
    bound = bound if numbers.is_about(bound) else ""
    new = numbers.mended(f"{bound} {claim.typed}".strip(), value)
    if new is None:
        return None
    new = new[len(bound) :].strip()
    (start, end), said = claim.span, text.prose.text
    place = text.prose.claims.index(claim)
    again = prose.read(said[:start] + new + said[end:], opens=text.cell == 0).claims
    if len(again) != len(text.prose.claims) or again[place].typed != new:
        return None
    first, last = _in_file(page, text, start), _in_file(page, text, end)
    if first is None or last is None:
        return None
    lines = "\n".join(page.lines[first[0] - 1 : last[0]])
    return Edit(first, last, lines[first[1] : len(lines) - len(page.lines[last[0] - 1]) + last[1]], new)


def _in_file(page: Page, text: Text, place: int) -> tuple[int, int] | None:
    """Where a place of a text stands in the file: whose lines have marks, indents, quotes around it."""
    number, said = text.at(place), text.prose.text.split("\n")[text.prose.line(place)]
    before = page.lines[number - 1].rfind(said) if number <= len(page.lines) else -1
    return (number, before + place - (text.prose.text.rfind("\n", 0, place) + 1)) if before >= 0 else None
