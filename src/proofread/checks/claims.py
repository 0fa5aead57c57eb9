"""Holds what a text says, its values, formulas and sentences, against what the page gave."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from .. import syntax
from ..formulas import spans
from ..formulas.inline import loose
from ..pages import conditions, prose
from ..pages.numbers import BOUND, Typed, correction
from ..pages.page import Page
from ..pages.plain import Plain, plain, reworded
from ..pages.prose import Claim
from ..programs.names import uses
from .checked import Checked, Tested, Text, claim_subject, formula_subject
from .findings import Edit, Finding

_ABSENT = re.compile(r"NameError: name '(\w+)' is not defined|(\w+) is not bound")
_BOUND = re.compile(rf"(?<![\w-])(?P<negated>(?:not|never)\s+)?(?P<bound>{BOUND})[\s*_`\"“(\[$]*\Z", re.IGNORECASE)
_HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)
_LONGEST = 200  # characters of a correction that are told


def in_text(
    page: Page, text: Text, displayed: Sequence[str] = (), quoted: Sequence[tuple[int, int]] = ()
) -> Iterator[Finding]:
    """Yield the findings on a text, given the formulas that its page displays and the places that claims quote."""

    def found(line: int, message: str, kind: str, subject: str = "") -> Finding:
        return Finding(page.path, text.line + line, message, kind=kind, subject=subject)

    def at(place: int, message: str, kind: str, subject: str = "") -> Finding:
        line, column = _in_file(page, text, place) or (text.at(place), None)
        return Finding(page.path, line, " ".join(message.split()), kind=kind, subject=subject, column=column)

    for line, message in text.prose.problems:
        yield found(line, message, "waiver" if "waiver" in message or "reason" in message else "expression")
    for stated in text.formulas:
        subject = formula_subject(text, stated)
        tested = text.tested.get(stated, Tested((), ()))
        for message in tested.faults:
            below = _bound_below(page, text, message, "state the formula below that cell")
            yield found(stated.line, message + below, "formula", subject)
        yield from (found(stated.line, message, "mutant", f"{subject} mutants") for message in tested.survivors)
    for opened in (span for span in spans(text.prose.text) if not span.closes):
        yield at(opened.start, "this $$ is never closed", "formula")
    for place, message in loose(text.prose.text, displayed):
        yield at(place, message, "formula")
    if text.drew:
        yield found(0, f"an expression or formula here {text.drew}; draw in a code cell", "seed")
    for question, answer in text.answers.items():
        if answer.error:
            source = f"{{{{ {question.expression} }}}}"
            if isinstance(question, Claim):
                source = f"{question.typed} cannot be checked: {question.expression}"
            below = _bound_below(page, text, answer.error, "put the claim below that cell") if text.asserts else ""
            message, subject = f"{source} fails with {answer.error}{below}", claim_subject(text, question)
            yield at(question.span[0], message, "expression", subject)
    beside = _waived(text)
    for claim in text.prose.claims:
        subject, held = claim_subject(text, claim), text.answers.get(claim)
        if held and not held.error:
            for kind, message in _broken(text, claim) if text.asserts else _disagreement(page, text, claim):
                edit = _edit(page, text, claim) if kind == "value" else None
                if edit and (waived := beside(claim)):
                    message += f"; its sentence has {waived}, too, which is waived: proofread fix leaves it to you"
                    edit = None
                yield replace(at(claim.span[0], message, kind, subject), edit=edit)
            if message := _exactness(claim, held.bits):
                yield at(claim.span[0], message, "bits", subject)
    for span in text.prose.bare(page.code) if not text.asserts else ():
        if any(first <= span[0] and span[1] <= last for first, last in quoted):
            continue
        typed = text.prose.text[slice(*span)]
        remedy = f"assert it, {typed}<!--= expression -->, or waive it, {typed}<!--~ reason -->"
        yield at(span[0], f"nothing proves the value {typed}: {remedy}", "bare")


def quotations(checked: Checked) -> tuple[Mapping[int, list[tuple[int, int]]], list[Finding]]:
    """Return where claims quote each text, by its place among the page's, and the findings on what they quote.

    The page notes how many of its sentences have nothing that is held, and how many captions and alt texts no claim
    quotes.
    """
    page, places, findings = checked.page, dict[int, list[tuple[int, int]]](), list[Finding]()
    asserted = [(text, claim) for text in checked.texts if text.asserts for claim in text.prose.claims]
    plains = {n: Plain(text.prose, text.values) for n, text in enumerate(checked.texts) if not text.asserts}
    # A page that did not come to its end has not filled in all that it says.
    is_whole = all(each in text.answers for text in checked.texts for each in text.questions)
    first: dict[str, int] = {}  # the line of the first claim that quotes these words
    for text, claim in asserted:
        stands = [(number, place) for number, each in plains.items() for place in each.places(claim.typed)]
        for number, span in stands[:1]:
            places.setdefault(number, []).append(span)
        own, edit = text.line + claim.line, None
        if len(stands) > 1:
            lines = ", ".join(str(checked.texts[number].at(begin)) for number, (begin, _) in stands)
            fault = f"stands on the page {len(stands)} times, on the lines {lines}: quote more of the sentence"
        elif not stands:
            fault, edit = _absent(checked, plains, text, claim, places) if is_whole else ("", None)
        elif negation := plains[stands[0][0]].negation(claim.typed):
            first.setdefault(plain(claim.typed), own)
            fault = f'is quoted without the "{negation}" before it, which turns it round: quote that, too'
        elif (again := first.setdefault(plain(claim.typed), own)) != own:
            fault = f"is what the assert on line {again} quotes, too: join the two by and, or quote other words"
        else:
            continue
        if is_whole:
            line, column = _in_file(page, text, claim.span[0]) or (text.at(claim.span[0]), None)
            subject, message = claim_subject(text, claim), f'"{claim.typed}" {fault}'
            findings.append(Finding(page.path, line, message, kind="claim", subject=subject, edit=edit, column=column))
    _count(checked, plains, places)
    return places, findings


def _absent(
    checked: Checked, plains: Mapping[int, Plain], text: Text, claim: Claim, places: dict[int, list[tuple[int, int]]]
) -> tuple[str, Edit | None]:
    """Return the fault of a claim whose words are not on the page, and the edit that quotes a reworded sentence.

    The sentence that is nearest to them counts as quoted: its values are told of with the claim.
    """
    section = _section(checked, text.cell).items()
    near_by = ((*plains[n].nearest(claim.typed, begins), n) for n, begins in section)
    likeness, near, begin, number = max(near_by, default=(0.0, "", 0, 0))
    if not likeness:
        return f"is not on the page: quote a sentence that {_code(claim)} proves", None
    places.setdefault(number, []).extend(plains[number].places(near))
    line, anew, edit = checked.texts[number].at(begin), reworded(claim.typed, near), None
    claims = (each for asserts in checked.texts if asserts.asserts for each in asserts.prose.claims)
    others = [plain(other.typed) for other in claims if other is not claim]
    is_free = not any(each in plain(anew) or plain(anew) in each for each in others)
    can_quote = anew and text.answers[claim].value and is_free and not re.search(r'["\\]', anew)
    if can_quote and sum(1 for each in plains.values() for _ in each.places(anew)) == 1:
        edit = _written(checked.page, text, claim, f'"{anew}"')
    return f'is not on the page; line {line} says "{near}": if {_code(claim)} proves that, quote it', edit


def _count(checked: Checked, plains: Mapping[int, Plain], places: Mapping[int, list[tuple[int, int]]]) -> None:
    """Note how many sentences have nothing that is held, and how many captions and alt texts no claim quotes."""
    silent = every = 0
    for number, each in plains.items():
        text = checked.texts[number]
        held = [question.span[0] for question in text.questions] + [formula.start for formula in spans(text.prose.text)]
        held += [start for start, _ in places.get(number, ())]
        sentences, held = [*each.sentences()], sorted(held)
        every += len(sentences)
        silent += sum(bisect_left(held, start) == bisect_left(held, end) for start, end, _ in sentences)
    checked.sentences = silent, every
    pictured = [number for number in plains if checked.page.cells[checked.texts[number].cell].is_code]
    checked.pictured = len({*pictured} - places.keys()), len(pictured)


def _broken(text: Text, claim: Claim) -> Iterator[tuple[str, str]]:
    """Yield the kind and the message of the finding on an assert's condition, if there is one."""
    held = text.answers[claim]
    if not held.value:
        sides = f", where {held.sides}" if held.sides else ""
        yield "claim", f'"{claim.typed}" does not hold: {_code(claim)} is false{sides}'
    elif conditions.is_fixed(claim.expression, True):
        yield "claim", _fixed(claim, f'"{claim.typed}"', "compare what the page gave")


def _disagreement(page: Page, text: Text, claim: Claim) -> Iterator[tuple[str, str]]:
    """Yield the kind and the message of the finding on a typed value, if there is one."""
    value, bound = text.answers[claim].value, _bound(text, claim)
    typed = Typed.parse(f"{bound} {claim.typed}")
    new = typed.correction(value)
    is_truth = claim.typed.lower() in ("true", "false", "yes", "no")
    if reason := typed.refused(value):
        yield "claim", f"{claim.typed} {reason}"
    elif isinstance(value, bool) and not is_truth:
        code = _code(claim)
        remedy = f'let a cell tagged claims prove it, assert {code}, "...", with the words around {claim.typed}'
        yield "claim", f"{code} compares, and would stand there whatever {claim.typed} says: {remedy}"
    elif new is not None:
        shown = new if len(new) <= _LONGEST else f"{new[:_LONGEST]} ..."
        message = f"it says {claim.typed.strip()}, but {claim.expression} gives {shown}"
        if not bound and correction(f"about {claim.typed}", value) is None:
            message += f"; say that, or about {claim.typed}"
        message += _bound_again(page, text, claim)
        yield "value" if typed.is_about or not bound else "claim", message
    elif conditions.is_fixed(claim.expression, value):
        yield "claim", _fixed(claim, claim.typed, f"let the page give it, as {claim.typed}<!--= computed -->")


def _fixed(claim: Claim, subject: str, remedy: str) -> str:
    why = conditions.why_fixed(claim.expression)
    return f"{_code(claim)} takes nothing from the page, so it proves nothing of {subject}: {why}; {remedy}"


def _code(claim: Claim) -> str:
    """The expression on one line, without the comment that it may end with."""
    return " ".join(re.sub(r"\s+#\s*to the bit:.*", "", claim.expression).split())


def _bound_below(page: Page, text: Text, error: str, remedy: str) -> str:
    """Return what to add about a name that is not bound yet: the cell below the text that binds it, and the remedy."""
    name = _ABSENT.search(error)
    for number, cell in enumerate(page.cells[text.cell :], text.cell + 1):
        if name and cell.is_code and any((name[1] or name[2]) in uses(node).binds for node in cell.tree.body):
            return f"; cell {number}, further down, binds it: {remedy}"
    return ""


def _bound_again(page: Page, text: Text, claim: Claim) -> str:
    """Return what to add about a value whose names are bound further down more than once."""
    for name in sorted(uses(syntax.expression(claim.expression)).read):
        cells = [n for n, cell in enumerate(page.cells) if any(name in uses(node).binds for node in cell.tree.body)]
        if len(cells) > 1 and cells[-1] > text.cell:
            listed = ", ".join(str(cell + 1) for cell in cells)
            return f" ({name} is bound in the cells {listed}: what it is here counts, and if it is not yet, at the end)"
    return ""


def _bound(text: Text, claim: Claim) -> str:
    """The bound that stands directly before a claim of a number, not in it: *at most*."""
    value, typed = text.answers[claim].value, Typed.parse(claim.typed)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or typed.amount is None or typed.bound or typed.head:
        return ""
    match = _BOUND.search(re.sub(r"[*_`]", "", text.prose.text[: claim.span[0]][-60:]))
    return "" if not match or match["negated"] else " ".join(match["bound"].lower().split())


def _exactness(claim: Claim, compared: str) -> str:
    """Return the fault of a claim that compares computed numbers without a reason, or gives a reason for nothing."""
    reason = claim.exactly
    if compared and not reason:
        return (
            f"{compared} compares computed numbers to the last bit, which another processor may round otherwise: allow "
            "a tolerance, as torch.allclose does, or end the expression with why no bit can differ, "
            "# to the bit: a few words"
        )
    if reason and not compared:
        return f"nothing computed is compared to the bit in {claim.expression}; remove the reason"
    return ""


def _waived(text: Text) -> Callable[[Claim], str]:
    """Return a function that lists the waived values of a claim's sentence: only a person knows which one is wrong."""

    @cache
    def sentences() -> list[tuple[int, int]]:
        spans = Plain(text.prose, text.values).sentences() if text.prose.waived else ()
        return [(start, end) for start, end, _ in spans]

    def beside(claim: Claim) -> str:
        number = bisect_right(sentences(), (claim.span[0], len(text.prose.text))) - 1
        start, end = sentences()[number] if number >= 0 else (0, 0)
        first, last = (bisect_left(waived, (place, 0)) for place in (start, end))
        return ", ".join(dict.fromkeys(text.prose.text[slice(*span)] for span in waived[first:last]))

    waived = sorted(text.prose.waived)
    return beside


def _section(checked: Checked, cell: int) -> Mapping[int, int]:
    """The texts of the section that a cell ends, by their place among the page's, and where it begins in each."""
    begins: dict[int, int] = {}
    for number, text in reversed([*enumerate(checked.texts)]):
        if not text.asserts and text.cell <= cell:
            headings = [heading.start() for heading in _HEADING.finditer(text.prose.text)]
            begins[number] = headings[-1] if headings else 0
            if headings:
                break
    return begins


def _edit(page: Page, text: Text, claim: Claim) -> Edit | None:
    """Return the edit that mends a typed value, if its form has room for what the page gave and it is then read so."""
    value, bound = text.answers[claim].value, _bound(text, claim)
    new = Typed.parse(f"{bound} {claim.typed}").mended(value)
    if new is None:
        return None
    new = new[len(bound) :].strip()
    source, (begin, _) = text.prose.text, claim.span
    paragraph = max(source.rfind("\n\n", 0, begin), 0), source.find("\n\n", begin) % (len(source) + 1)
    for first, last in (paragraph, (0, len(source))):  # the first is enough, unless it is a part of something larger
        part, (start, end), opens = source[first:last], (place - first for place in claim.span), text.cell == first == 0
        before = prose.read(part, opens=opens).claims
        if (start, end) in (each.span for each in before):
            again = prose.read(part[:start] + new + part[end:], opens=opens).claims
            typed = [new if each.span == (start, end) else each.typed for each in before]
            return _written(page, text, claim, new) if [each.typed for each in again] == typed else None
    return None


def _written(page: Page, text: Text, claim: Claim, new: str) -> Edit | None:
    """The edit of the page that writes something for what a claim says."""
    first, last = (_in_file(page, text, place) for place in claim.span)
    if first is None or last is None:
        return None
    lines = "\n".join(page.lines[first[0] - 1 : last[0]])
    return Edit(first, last, lines[first[1] : len(lines) - len(page.lines[last[0] - 1]) + last[1]], new)


def _in_file(page: Page, text: Text, place: int) -> tuple[int, int] | None:
    """Where a place of a text stands in the file: whose lines have marks, indents, quotes around it."""
    number, begin = text.at(place), text.prose.begins(place)
    if number not in text.columns:
        end = text.prose.text.find("\n", begin)
        rest = text.prose.text[begin : end if end >= 0 else len(text.prose.text)]
        text.columns[number] = page.lines[number - 1].rfind(rest) if number <= len(page.lines) else -1
    before = text.columns[number]
    return (number, before + place - begin) if before >= 0 else None
