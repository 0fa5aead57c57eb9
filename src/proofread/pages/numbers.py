"""Does a typed figure say what a value is? The typed text chooses the form, the value must fill it.

A number is compared after rounding to the digits that were typed. One unit in the last place is allowed only where the
value lies within 5e-7 of the rounding edge (and within a hundredth of that unit), where two machines may round apart.
A bare ``0`` claims exactly nothing; ``0.00`` claims something that rounds to it. A whole number of one digit, such as
``3``, leaves nothing to round to: it holds a float that is no more than a twentieth of it away.

Words are numbers, too: up to *twenty* they are whole and exact; a fraction or a multiple (*half*, *two thirds*,
*twice*) holds what is no more than a hundredth of it away; *dozens* holds from 24 up to 100, *hundreds* from 200 up to
1,000; an ordinal is the place counted from 1, or of a float the fraction (*third* is 3, or 1/3).

A unit after the figure takes a value in base units: bytes, seconds, radians, a share for percentage points, and for
million the number itself. ``4 MiB`` says 4194304. A bound before it (*at most 3*) takes a value that keeps it; what
goes *up to 3* reaches 3. What is *about* a figure is within half a unit of its last digit before its zeros, and within
a twentieth of it: *about 2400* holds from 2350 up to 2450. *Nearly* and *almost* hold what lies below alone.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias
from unicodedata import numeric

Value: TypeAlias = "bool | int | float | str | Sequence[Value] | None"

WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_MULTIPLES = {"once": 1, "half": 0.5, "twice": 2, "double": 2, "thrice": 3, "triple": 3, "quarter": 0.25, "dozen": 12}
_VAGUE = {"dozens": (24, 100), "hundreds": (200, 1000), "thousands": (2000, 10**6), "millions": (2 * 10**6, 10**9)}
_PARTS_OF = {"half": 2, "halves": 2, "quarter": 4, "quarters": 4}
_PARTS_OF |= {name + "s" * many: place for place, name in enumerate(_ORDINALS[2:], 3) for many in (False, True)}
# What a figure's unit makes of it, in base units: bytes, seconds, radians.
UNITS = {
    **dict.fromkeys(("bytes", "byte", "B", "bits", "bit", "seconds", "second", "s", "times", "×", "-fold"), 1),
    **{f"{prefix}B": 1000**power for power, prefix in enumerate(("k", "M", "G", "T"), 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T"), 1)},
    **{f"{prefix}bytes": 1000**power for power, prefix in enumerate(("kilo", "mega", "giga", "tera"), 1)},
    **{"KB": 1000, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12},
    **{"ms": 1e-3, "milliseconds": 1e-3, "µs": 1e-6, "us": 1e-6, "microseconds": 1e-6, "ns": 1e-9},
    **{"minutes": 60, "minute": 60, "hours": 3600, "hour": 3600},
    **{"percentage points": 0.01, "percent": 0.01, "degrees": math.pi / 180, "°": math.pi / 180},
}
_NAMED = "|".join(map(re.escape, sorted((u for u in UNITS if u[0].isalpha()), key=len, reverse=True)))
UNIT = rf"(?:[ \t\n\u00a0\u202f]?[×°](?![ \u00a0]?\d)|-fold\b|[ \t\n\u00a0\u202f]+(?:{_NAMED})(?![\w-]))"
# Which comparisons a bound admits; what is said to be about something may lie on either side.
_ABOUT = ("==", "<", ">", "<=", ">=")
BOUNDS = {
    **dict.fromkeys(("over", "more than", "greater than", "larger than", "above", "exceeds", "exceed"), (">",)),
    **dict.fromkeys(("at least", "no less than", "no fewer than", "not less than"), (">=", ">")),
    **dict.fromkeys(("less than", "fewer than", "smaller than", "under", "below"), ("<",)),
    **dict.fromkeys(("at most", "no more than", "not more than", "no larger than"), ("<=", "<")),
    **dict.fromkeys(("about", "around", "roughly", "approximately", "nearly", "almost", "some", "close to"), _ABOUT),
    **dict.fromkeys(("circa", "ca.", "~", "≈"), _ABOUT),
    **dict.fromkeys(("exactly", "only", "just", "up to"), ("==",)),
}
BOUND = "|".join(re.escape(said).replace(r"\ ", r"\s+") for said in sorted(BOUNDS, key=len, reverse=True))
_TRUTH = {"true": True, "yes": True, "np.true_": True, "false": False, "no": False, "np.false_": False}
_RAISED = str.maketrans("+-0123456789", "⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LOWERED = str.maketrans("⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "+-0123456789-")

_SIGN = r"(?<![\w)\]])[-−+]"
_WHOLE = r"(?:\d{1,3}(?:[,_\u00a0\u2009\u202f]\d{3})+(?!\d)|\d+)"
_FRACTION = r"\.\d+"
_GAP = r"[ \u00a0\u2009\u202f]?"
_TEN = r"10(?:\^\{[-−+]?\d+\}|\^[-−+]?\d+|[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)"
_POWER = rf"(?:[eE][-−+]?\d+\b|{_GAP}(?:[·×]|\\cdot|\\times){_GAP}{_TEN})"
_PERCENT = rf"{_GAP}\\?%"
NUMBER = rf"(?:{_SIGN})?(?:{_TEN}|(?:{_WHOLE}(?:{_FRACTION})?|(?<![\d.]){_FRACTION})(?:{_POWER})?)(?:{_PERCENT})?"
VULGAR = "[¼-¾⅐-⅞]"
PARTED = r"(?:(?P<wholes>\d{1,9})[ \u00a0])?(?P<over>\d{1,9})[/⁄](?P<under>\d{1,9})"
_MANY_PARTS = "|".join(part for part in _PARTS_OF if part.endswith("s"))
SPELLED = rf"half[ ]a[ ]dozen|(?:{'|'.join(WORDS[1:])})(?:[ ]dozen|[ -](?:{_MANY_PARTS}))"
FIGURE = rf"\d*{VULGAR}|\d+(?:\.\d+){{2,}}|{NUMBER}(?:{_GAP}×{_GAP}{NUMBER})*"

_PARTS = re.compile(
    rf"(?P<sign>[-−+])?(?P<mantissa>(?P<whole>(?!{_TEN}){_WHOLE})?(?P<fraction>{_FRACTION})?)"
    rf"(?P<power>{_TEN}|{_POWER})?(?P<percent>{_PERCENT})?"
)
# What Python prints before the value of an array, a tensor, or a number of theirs.
PRINTED = r"(?:[A-Za-z_]\w*\.)*(?:array|tensor|Size|matrix|bool_?|str_|(?:float|u?int|bfloat|complex)\d+)"
_PRINTED = re.compile(
    rf"(?P<head>{PRINTED}\(\s*)(?P<value>.*?)"
    r"(?P<tail>\s*(?:,\s*(?:dtype|device|grad_fn|requires_grad|shape)=.*)?\))",
    re.DOTALL,
)
_LONGEST = 400  # characters of a number, which is more than a float takes
_ENTRY = re.compile(r"[-−+]?[\d.].*|[-−+]?(?:nan|inf)|True|False|\[.*", re.DOTALL)  # of an array that is printed
_SAID = re.compile(rf"(?:(?P<bound>(?i:{BOUND}))\s+)?(?P<figure>.+?)(?P<unit>{UNIT})?", re.DOTALL)


@dataclass(frozen=True)
class Number:
    """A typed number, taken apart so that another value can be written the same way."""

    sign: str
    whole: str
    fraction: str
    power: str
    percent: str

    @classmethod
    def parse(cls, typed: str) -> "Number | None":
        """Take a typed number apart; None if it is not one."""
        parts = _PARTS.fullmatch(typed)
        if parts is None or not (parts["mantissa"] or parts["power"]) or len(typed) > _LONGEST:
            return None
        number = cls(*(parts[name] or "" for name in ("sign", "whole", "fraction", "power", "percent")))
        return number if abs(number.exponent) < _LONGEST else None

    @property
    def exponent(self) -> int:
        """The typed power of ten."""
        digits = re.search(r"(?:10|[eE])\^?\{?([-−+⁺⁻]?[\d⁰¹²³⁴⁵⁶⁷⁸⁹]+)", self.power)
        return int(digits[1].translate(_LOWERED)) if digits else 0

    @property
    def value(self) -> Decimal:
        """The number that was typed."""
        digits = re.sub(r"\D", "", self.whole) + self.fraction if self.whole or self.fraction else "1"
        number = Decimal(digits).scaleb(self.exponent - (2 if self.percent else 0))
        return -number if self.sign in ("-", "−") and self.sign else number

    @property
    def unit(self) -> Decimal:
        """One unit in the last typed place."""
        places = len(self.fraction[1:])
        return Decimal(1).scaleb(self.exponent - places - (2 if self.percent else 0))

    @property
    def slack(self) -> Decimal:
        """How far over a rounding edge a value may lie."""
        return min(Decimal("5e-7"), self.unit / 100)

    @property
    def reach(self) -> Decimal:
        """How far a value may lie at most: half a unit, and a twentieth where one digit stands for a float."""
        alone = len(re.sub(r"\D", "", self.whole)) == 1 and not (self.fraction or self.power or self.percent)
        return abs(self.value) / 20 if alone else self.unit

    def says(self, value: float) -> bool:
        """Tell whether rounding the value to the typed digits gives the typed number."""
        if not math.isfinite(value):
            return False
        if self.value == 0 and not self.fraction:
            return value == 0
        exact = Decimal(value)
        slack = self.slack if isinstance(value, float) else Decimal(0)
        if abs(exact - self.value) > self.reach:
            return False
        rounded = (Number.parse(self.write(nearby)) for nearby in (exact, exact - slack, exact + slack))
        return any(number is not None and number.value == self.value for number in rounded)

    def write(self, value: Decimal) -> str:
        """The value in the form of this number."""
        if not value.is_finite():
            return str(float(value))
        places, power = len(self.fraction[1:]), self.power
        value = value.scaleb(2) if self.percent else value
        if power:
            body, _, exponent = f"{value:z.{places}e}".partition("e")
            plain = str(int(exponent))
            if power[-1] in "⁰¹²³⁴⁵⁶⁷⁸⁹":
                plain = plain.translate(_RAISED)
            elif "−" in power:
                plain = plain.replace("-", "−")
            power = re.sub(r"(?<=[eE^{])[-−+]?\d+|[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda _: plain, power)
            if not (self.whole or self.fraction):
                body = "" if body.lstrip("-") == "1" else f"{body} × "
        else:
            separator = re.search(r"\D", self.whole)
            body = f"{value:z,.{places}f}".replace(",", separator[0] if separator else "")
            body = body if self.whole else body.replace("0.", ".", 1)
        if body.startswith("-"):
            body = ("−" if self.sign == "−" else "-") + body[1:]
        elif self.sign == "+":
            body = "+" + body
        return body + power + self.percent


def correction(typed: str, value: Value) -> str | None:
    """Return the text to type instead, in the same form; None if the typed text says the value."""
    typed = typed.strip()
    if printed := _PRINTED.fullmatch(typed):
        new = correction(printed["value"], value)
        return new and printed["head"] + new + printed["tail"]
    bound, figure, unit = said(typed)
    if (bound or unit) and isinstance(value, (int, float)) and not isinstance(value, bool):
        gap = "" if typed.endswith(figure + unit) else " "  # as in 60° and 4 MiB
        return _said_so(bound, figure, gap, unit, value)
    if isinstance(value, bool):
        truth = _TRUTH.get(typed.lower(), True)
        return None if truth is value else str(value)
    if isinstance(value, (list, tuple)):
        return _sequence(typed, value)
    if isinstance(value, (int, float)):
        return _number(typed, value)
    text = str(value)
    bare = typed.strip("\"'“”‘’")
    return None if text in (typed, bare) or text == bare[:1].swapcase() + bare[1:] else text


def said(typed: str) -> tuple[str, str, str]:
    """The bound, the figure and the unit that a text says: ``at most 4 MiB``; only the text if it says no figure."""
    parts = _SAID.fullmatch(typed.strip())
    if parts is None or (Number.parse(parts["figure"]) is None and spelled(parts["figure"]) is None):
        return "", typed, ""
    return " ".join((parts["bound"] or "").lower().split()), parts["figure"], " ".join((parts["unit"] or "").split())


def spelled(typed: str) -> float | None:
    """The number that a word says, *three*, *half*, *two thirds*, *twice*, or a fraction, ``2 1/2``, ``2½``."""
    if parts := re.fullmatch(PARTED, typed):
        over, under = int(parts["over"]), int(parts["under"])
        return int(parts["wholes"] or 0) + over / under if under else None
    if re.fullmatch(rf"\d*{VULGAR}", typed):
        return int(typed[:-1] or "0") + numeric(typed[-1])
    word = re.sub(r"^an? ", "", " ".join(typed.lower().replace("-", " ").split()))
    many, _, part = word.partition(" ")
    if part in ("dozen", "a dozen"):
        return 12 * (0.5 if many == "half" else WORDS.index(many)) if many in ("half", *WORDS) else None
    if part:
        return WORDS.index(many) / _PARTS_OF[part] if many in WORDS and part in _PARTS_OF else None
    return WORDS.index(word) if word in WORDS else _MULTIPLES.get(word)


def amount(figure: str, unit: str = "") -> float | None:
    """A typed figure with its unit as a number in base units; None if it is not one."""
    number = Number.parse(figure)
    plain = number.value if number else spelled(figure)
    return None if plain is None else float(plain) * UNITS.get(unit, 1)


def _said_so(bound: str, figure: str, gap: str, unit: str, value: float) -> str | None:
    """Return the text to type for a number that has a unit or keeps a bound."""
    factor = UNITS.get(unit, 1)
    scaled = value // factor if isinstance(value, int) and value % factor == 0 else value / factor
    exact, signs = amount(figure) or 0.0, BOUNDS.get(bound, ("==",))
    new = correction(figure, scaled)
    if "==" not in signs and (scaled > exact if ">" in signs else scaled < exact):
        return None
    if new is not None and is_about(bound):
        new = None if _near(figure, scaled) else _coarse(figure, scaled) or new
    if new is None and bound in ("nearly", "almost") and scaled > exact:
        new, bound = figure, "over"
    return None if new is None else f"{bound if '==' in signs else ''} {new}{gap if unit else ''}{unit}".lstrip()


def is_about(bound: str) -> bool:
    """Tell whether a bound lets a value lie on either side of its figure, and near to it."""
    return BOUNDS.get(bound) == _ABOUT


def _near(figure: str, value: float) -> bool:
    """Tell whether a value is about a figure."""
    exact, number = amount(figure), Number.parse(figure)
    if exact is None or not math.isfinite(value):
        return False
    reach = abs(exact) / 20
    if number is not None:
        digits = re.sub(r"\D", "", number.whole) if not number.fraction else ""
        reach = min(reach, float(number.unit) * 10 ** (len(digits) - len(digits.rstrip("0"))) / 2)
    return abs(value - exact) <= reach * (1 + 1e-9)


def _coarse(figure: str, value: float) -> str | None:
    """A value in the form of a number, with as many digits as that has before its zeros, or as it takes to be near."""
    number = Number.parse(figure)
    digits = re.sub(r"\D", "", number.whole).rstrip("0") if number and not number.fraction else ""
    rounded = (Decimal(f"{value:.{places}e}") for places in range(len(digits) - 1, len(digits) + 3) if digits)
    return next((written for each in rounded if number and _near(written := number.write(each), value)), None)


def numbers(typed: str, value: Value) -> Iterator[tuple[str, float]]:
    """The numbers of a value, each with what of the typed text says it ("" where it says another number of them)."""
    typed = _bare(typed)
    if isinstance(value, (list, tuple)):
        items = _items(typed, len(value))
        for place, each in enumerate(value):
            yield from numbers(typed[slice(*items[place])] if len(items) == len(value) else "", each)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _, figure, unit = said(typed)
        yield figure, value / UNITS[unit] if unit else value


def room(typed: str, value: float, slack: bool = True) -> tuple[float, float] | None:
    """How far a value may move until the typed text no longer says it, and the unit of its last digit.

    None if no rounding comes between them: a whole number, a word, a bare 0.
    """
    number = Number.parse(typed)
    if number is None or not isinstance(value, float) or not math.isfinite(value) or not number.value:
        return None
    far = min(number.unit / 2, number.reach) - abs(Decimal(value) - number.value)
    return float(far + number.slack if slack else far), float(number.unit)


def mended(typed: str, value: Value) -> str | None:
    """The correction, if it can stand for the typed text: a word has no form for a number, nor a number for nothing."""
    new, (bound, figure, _) = correction(typed, value), said(typed)
    new = new and re.sub(r"[ \t\n]+", " ", new)  # groups of digits may stand apart by other spaces, which stay
    if new is None or not _fits(typed.strip(), value) or correction(new, value) is not None:
        return None
    # The words stay as they are: a value that is not nearly a figure, but over it, is for the author to tell.
    return typed[: typed.index(figure)] + new[len(bound) :].strip() if new.startswith(bound) else None


def _bare(typed: str) -> str:
    """Return a typed text without the name and brackets that Python prints around a value."""
    printed = _PRINTED.fullmatch(typed.strip())
    return (printed["value"] if printed else typed).strip()


def refused(typed: str, value: Value) -> str:
    """Why a text cannot be held against a value, though it is printed as one; "" if it can."""
    typed = _bare(typed)
    if isinstance(value, (list, tuple)) and re.search(r"\.\.\.|…", typed):
        return "leaves numbers out: type all of them, or give a part of them, such as x[:3]"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and typed[:1] in ("(", "[") and not re.search(rf"\d|{VULGAR}|inf|nan|∞", typed):
        return "holds no figure: let the comment directly follow what says the number"
    return ""


def _fits(typed: str, value: Value) -> bool:
    typed = _bare(typed)
    if isinstance(value, bool):
        return typed.lower() in ("true", "false")
    if isinstance(value, (int, float)):
        bound, figure, _ = said(typed)
        return (
            math.isfinite(value)
            and (not bound or is_about(bound))
            and (Number.parse(figure) is not None or figure.lower() in WORDS)
        )
    if isinstance(value, (list, tuple)):
        items = [typed[slice(*span)] for span in _items(typed, len(value))]
        if len(items) == len(value):
            return all(correction(item, v) is None or _fits(item, v) for item, v in zip(items, value, strict=True))
        return (typed[:1] in ("(", "[") or len(items) > 1) and all(map(Number.parse, items))
    return isinstance(value, str) and (Number.parse(typed) is None or re.fullmatch(FIGURE, value) is not None)


def _number(typed: str, value: float) -> str | None:
    typed = re.sub(r"^([-−+]?\d+)\.(?=e|$)", r"\1.0", typed)  # as arrays print whole numbers
    number = Number.parse(typed)
    if number is not None:
        return None if number.says(value) else _distinct(number, value)
    if _spells(typed.lower(), value):
        return None
    if typed.lower() in WORDS:
        word = WORDS[int(value)] if value in range(len(WORDS)) else _plain(value)
        return word.capitalize() if typed[0].isupper() else word
    if not math.isfinite(value):
        infinite = typed.lower().replace("−", "-").replace("infinity", "inf").replace("∞", "inf").lstrip("+")
        return None if infinite == str(value) else str(value)
    return _plain(value)


def _spells(word: str, value: float) -> bool:
    """Tell whether a word says a value."""
    number, place = spelled(word), re.sub(r"^an? ", "", word)
    if place in _VAGUE:
        return _VAGUE[place][0] <= value < _VAGUE[place][1]
    if place in _ORDINALS and (isinstance(value, int) or value.is_integer()):
        return value == _ORDINALS.index(place) + 1
    if place in _PARTS_OF and not place.endswith("s"):
        number = 1 / _PARTS_OF[place]
    exactly = word in WORDS or place == "dozen" or word[:1].isdigit()
    return number is not None and math.isfinite(value) and abs(value - number) <= (5e-7 if exactly else number / 100)


def _plain(value: Value) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _distinct(number: Number, value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    written = number.write(Decimal(value))
    again = Number.parse(written)
    # A typed 0 that stands for something small would be told to stay a 0, a typed 2 to become one.
    return written if again is None or (again.value != number.value and again.says(value)) else _plain(value)


def _sequence(typed: str, values: Sequence[Value]) -> str | None:
    spans = _items(typed, len(values))
    if len(spans) != len(values):
        inside = (" × " if "×" in typed else ", ").join(map(_plain, values))
        return f"[{inside}]" if typed[:1] not in ("(", "[") and len(spans) < 2 else _around(typed, inside)
    new = [correction(typed[slice(*span)], value) for span, value in zip(spans, values, strict=True)]
    if all(each is None for each in new):
        return None
    for (start, end), each in reversed([*zip(spans, new, strict=True)]):
        typed = typed[:start] + (typed[start:end] if each is None else each) + typed[end:]
    return typed


def _around(typed: str, inside: str) -> str:
    """Put a text into the brackets of the typed one."""
    return typed[: typed[:1] in ("(", "[")] + inside + typed[len(typed) - (typed[-1:] in (")", "]")) :]


def _items(typed: str, many: int) -> list[tuple[int, int]]:
    """Where the items of a sequence of so many stand, between commas, or between blanks as arrays are printed."""
    first, last = int(typed[:1] in ("(", "[")), len(typed) - (typed[-1:] in (")", "]"))
    items = _parted(typed, first, last, ",×".__contains__)
    if len(items) != many or Number.parse(typed):  # then a comma parts thousands: 1,234 is one number
        grouped = re.sub(rf"{_FRACTION}|{_WHOLE}", lambda match: match[0].replace(",", "_"), typed)
        items = _parted(grouped, first, last, ",×".__contains__)
    if first and [typed[slice(*span)] for span in items] == [typed[first:last].strip()]:
        printed = _parted(typed, first, last, str.isspace)
        return printed if all(_ENTRY.fullmatch(typed[slice(*span)]) for span in printed) else items
    return items


def _parted(typed: str, first: int, last: int, parts: Callable[[str], bool]) -> list[tuple[int, int]]:
    """Where the parts of a text stand that a character parts outside of brackets."""
    spans, depth, begin = list[tuple[int, int]](), 0, first
    for place in range(first, last + 1):
        depth += (typed[place : place + 1] in ("(", "[")) - (typed[place : place + 1] in (")", "]")) * (place < last)
        if place == last or (depth == 0 and parts(typed[place])):
            if text := typed[begin:place].strip():
                begin = typed.index(text, begin)
                spans.append((begin, begin + len(text)))
            begin = place + 1
    return spans
