"""Whether the words of a claim and its expression say the same: its number, its bound, its unit, its comparison.

Everywhere, an expression must be able to give something else, and a number in a claim must be what is compared, by the
sign that the bound before it names. On strict pages, a bare condition must be named by its word, and units and bounds
are part of the claim.
"""

import ast
import math
import re
from collections.abc import Iterator

from ..pages import conditions, numbers
from ..pages.numbers import BOUND, BOUNDS, UNIT, Value
from ..pages.prose import Claim, figures

_BOUND = re.compile(rf"(?<![\w-])(?P<negated>(?:not|never)\s+)?(?P<bound>{BOUND})[\s*_`\"“(\[$]*\Z", re.IGNORECASE)
_UNIT = re.compile(rf"[)\]\"”]*(?P<unit>{UNIT})")
_MARKS = re.compile(r"[*_`]")
_BASES = {
    "with the value in bytes": r"\w*B|\w*bytes?",
    "with the value in seconds": r"[mµun]?s|\w*(?:second|minute|hour)s?",
    "with the value in radians": "degrees|°",
    "with the value in bits": "bits?",
    "with the value in shares of one": "percent.*",
    "with the value in full": ".*(?:thousand|illion)",
    "with the ratio itself": "times|×|-fold",
}

_MORE, _LESS, _SAME, _OTHER = {">", ">="}, {"<", "<="}, {"=="}, {"!="}
_NAMED = {
    word: kinds
    for words, kinds in (
        ("larger more greater above longer wider higher bigger over exceeds exceed beyond", _MORE),
        ("smaller less fewer below under shorter lower narrower within", _LESS),
        ("same equal equals identical alike agree agrees equally", _SAME),
        ("different differ differs other another unequal apart changed", _OTHER),
        ("every all each always everywhere everything", {"all"}),
        ("none no never nothing nowhere neither", {"none"}),
        ("some sometimes something somewhere", {"any"}),
        ("any", {"all", "any"}),
        ("not", {"!=", "none", "not all"}),
    )
    for word in words.split()
}
_PHRASES = {"at least": _MORE, "at most": _LESS, "as many": _SAME, "as much": _SAME, "not all": {"not all"}}
_PAIRS = """
larger smaller; more less; greater smaller; above below; longer shorter; wider narrower; over under; same different
equal unequal; all some; every some; none some; nothing something; first last; right wrong; always never; higher lower
faster slower; fails passes; bigger smaller; before after
"""
_OPPOSITES: dict[str, str] = {}
for _one, _other in map(str.split, re.split(r"[;\n]", _PAIRS.strip())):
    _OPPOSITES |= {_other: _one, _one: _other}


def unproved(claim: Claim, value: Value, before: str) -> Iterator[str]:
    """Why a claim, though it agrees with its value, is proved by nothing."""
    if conditions.is_fixed(claim.expression, value):
        example = "computed" if _said(claim) else f'"{claim.typed}" if one > other else "{_opposite(claim.typed)}"'
        yield (
            f"{_code(claim)} takes nothing from the page, so it proves nothing of {claim.typed}: "
            f"{conditions.why_fixed(claim.expression)}; let the page give it, as {claim.typed}<!--= {example} -->"
        )
    elif isinstance(value, bool) and not _is_truth(claim):
        yield from _compared(claim, before)


def unnamed(claim: Claim, value: Value, before: str, after: str) -> Iterator[str]:
    """What is wrong with a claim on a strict page: a word that names no comparison, a bound or a unit outside."""
    said = _said(claim)
    unit = _UNIT.match(_MARKS.sub("", after[:60].replace("&nbsp;", "\u00a0")))
    if said and unit and not said[2]:
        name = " ".join(unit["unit"].split())
        gap = "" if name[0] in "-×°" else " "
        base = next((base for base, units in _BASES.items() if re.fullmatch(units, name)), "")
        yield (
            f"{name} stands outside the claim {claim.typed}, which says nothing of it: take it in, "
            f"{claim.typed}{gap}{name}<!--= {claim.expression} -->, {base}"
        )
    if said and isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _undecided(claim, value, before)
    if isinstance(value, bool) and not said and not figures(claim.typed) and not _is_truth(claim):
        given = conditions.kinds(conditions.parse(claim.expression))
        named = _kinds(claim.typed)
        if named & given and "mixed" not in named:
            return
        why = "says the contrary of" if named and given else "does not name"
        yield (
            f"{claim.typed} {why} what {_code(claim)} compares, and would stand there whatever it says: let the "
            f'expression give the word, {claim.typed}<!--= "{claim.typed}" if {_code(claim)} else '
            f'"{_opposite(claim.typed)}" -->'
        )


def bound_of(claim: Claim, before: str) -> str:
    """The bound that a claim's figure keeps, in the claim or directly before it: *at most*."""
    said, (bound, negated) = _said(claim), _bound(before)
    return "" if said is None or negated else said[0] or bound


def _bound(before: str) -> tuple[str, bool]:
    """The bound at the end of a text, and whether it is negated there."""
    found = _BOUND.search(_MARKS.sub("", before[-60:]))
    return (" ".join(found["bound"].lower().split()), bool(found["negated"])) if found else ("", False)


def _compared(claim: Claim, before: str) -> Iterator[str]:
    """What is wrong with how a condition compares the numbers of its claim."""
    said = _said(claim)
    inside = [(figure, before + claim.typed[:start], "", figure, "") for start, figure in figures(claim.typed)]
    stated = [(claim.typed, before, *said)] if said else inside
    for text, until, bound, figure, unit in stated:
        amount = numbers.amount(figure, unit)
        if amount is None:
            continue
        signs = conditions.compared_with(claim.expression, amount)
        outside, negated = _bound(until)
        bound = bound or outside
        wanted = set(BOUNDS.get(bound, ("==",)))
        if negated:
            bound, wanted = f"not {bound}", {conditions.NEGATED[sign] for sign in wanted}
        sides = (side for _, *both in conditions.relations(conditions.parse(claim.expression)) for side in both)
        left = next((ast.unparse(side) for side in sides if conditions.number(side) is None), "value")
        sign = "==" if "==" in wanted else min(wanted, key=len)
        example = f"{bound} {text}".strip() + f"<!--= {left} {sign} {amount:.10g} -->"
        if not signs:
            yield f"it says {text}, but {_code(claim)} holds for any figure: compare with {text} in it, as {example}"
        elif not signs & wanted:
            says = f"{bound} {text}" if bound else f"{text} without a bound"
            yield f"it says {says}, but {_code(claim)} compares by {min(signs)}: let word and sign agree, as {example}"


def _undecided(claim: Claim, value: float, before: str) -> Iterator[str]:
    """A bound that its value reaches: *at most 3* and *at least 3* hold for three alike."""
    bound, (_, figure, unit) = bound_of(claim, before), _said(claim) or ("", "", "")
    signs = BOUNDS.get(bound, ("==",))
    last = conditions.top(claim.expression)
    amount = numbers.amount(figure, unit) or 0.0
    text = " ".join(filter(None, (bound, figure, unit)))
    if "==" not in signs and numbers.correction(f"{figure} {unit}".strip(), value) is None:
        if not (len(signs) > 1 and last == ("max" if "<" in signs else "min")):
            yield (
                f"{text} is held against {_code(claim)}, which gives that very figure and would hold turned round: "
                f"compare, {text}<!--= {_code(claim)} {signs[0]} {amount:.10g} -->, or say it without {bound}"
            )
    elif bound == "exactly" and not math.isclose(value, amount, rel_tol=1e-9, abs_tol=5e-7):
        yield f"it says {text}, but {_code(claim)} gives {value:.6g}: say about, or {value:.6g}"


def _said(claim: Claim) -> tuple[str, str, str] | None:
    """The bound, the figure and the unit of a claim that is a number."""
    said = numbers.said(claim.typed)
    return said if numbers.amount(said[1], said[2]) is not None else None


def _kinds(typed: str) -> set[str]:
    """What the words of a claim name; ``mixed`` if they name what does not go together."""
    text = " ".join(typed.lower().split())
    named = [kinds for phrase, kinds in _PHRASES.items() if phrase in text]
    named = named or [_NAMED[word] for word in re.findall(r"\w+", text) if word in _NAMED]
    return set.intersection(*named) or {"mixed"} if named else set()


def _opposite(typed: str) -> str:
    opposite = _OPPOSITES.get(typed.lower(), f"not {typed}")
    return opposite.capitalize() if typed[:1].isupper() and not opposite.startswith("not ") else opposite


def _is_truth(claim: Claim) -> bool:
    return claim.typed.lower() in ("true", "false", "yes", "no")


def _code(claim: Claim) -> str:
    """The expression, without the comment that it may end with."""
    return claim.expression if "#" not in claim.expression else ast.unparse(conditions.parse(claim.expression))
