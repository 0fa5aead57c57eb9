"""Does a typed text say a value? The text chooses the form, the value must fill it.

A number is compared after rounding to the digits that were typed. One unit in the last place is allowed only where the
value lies within 5e-7 of the rounding edge (and within a hundredth of that unit), where two machines may round apart.
A bare ``0`` claims exactly nothing; ``0.00`` claims something that rounds to it. A whole number of one digit, such as
``3``, leaves nothing to round to: it holds a float that is no more than a twentieth of it away.

Words are numbers, too: up to *twenty* they are whole and exact; a fraction or a multiple (*half*, *two thirds*,
*twice*) holds what is no more than a hundredth of it away; *dozens* holds from 24 up to 100, *hundreds* from 200 up to
1,000; an ordinal is the place counted from 1, or of a float the fraction (*third* is 3, or 1/3).

A unit after the number takes a value in base units: bytes, seconds, radians, a share for percentage points, and for
million the number itself. ``4 MiB`` says 4194304. A bound before it (*at most 3*) takes a value that keeps it; what
goes *up to 3* reaches 3. What is *about* a number is within half a unit of its last digit before its zeros, and within
a twentieth of it: *about 2400* holds from 2350 up to 2450. *Nearly* and *almost* hold what lies below alone.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
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
# What a number's unit makes of it, in base units: bytes, seconds, radians.
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
NUMERAL = rf"\d*{VULGAR}|\d+(?:\.\d+){{2,}}|{NUMBER}(?:{_GAP}×{_GAP}{NUMBER})*"

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
_SAID = re.compile(rf"(?:(?P<bound>(?i:{BOUND}))\s+)?(?P<core>.+?)(?P<unit>{UNIT})?", re.DOTALL)


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
    def digits(self) -> str:
        """The digits before the point."""
        return re.sub(r"\D", "", self.whole)

    @property
    def leading(self) -> str:
        """The digits of a whole number without the zeros that it ends with; "" if there is a fraction."""
        return "" if self.fraction else self.digits.rstrip("0")

    @property
    def value(self) -> Decimal:
        """The number that was typed."""
        digits = self.digits + self.fraction if self.whole or self.fraction else "1"
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
        alone = len(self.digits) == 1 and not (self.fraction or self.power or self.percent)
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

    def room(self, value: float, slack: bool = True) -> tuple[float, float] | None:
        """How far a value may move until this number no longer says it, and the unit of the last digit.

        None if no rounding comes between them: a whole number, a bare 0.
        """
        if not isinstance(value, float) or not math.isfinite(value) or not self.value:
            return None
        far = min(self.unit / 2, self.reach) - abs(Decimal(value) - self.value)
        return float(far + self.slack if slack else far), float(self.unit)

    def distinct(self, value: float) -> str:
        """The value in the form of this number, or plain where that form would say both or neither."""
        if not math.isfinite(value):
            return str(value)
        written = self.write(Decimal(value))
        again = Number.parse(written)
        # A typed 0 that stands for something small would be told to stay a 0, a typed 2 to become one.
        return written if again is None or (again.value != self.value and again.says(value)) else _plain(value)

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


@dataclass(frozen=True)
class Typed:
    """What an author typed for a value, taken apart once: ``at most 4 MiB`` has a bound, a core, a gap and a unit.

    A text that says no number is all core.
    """

    text: str  # without what Python prints around it
    core: str
    bound: str = ""
    gap: str = ""
    unit: str = ""
    head: str = ""  # what Python prints around the text, as in ``tensor(0.5)``
    tail: str = ""

    @classmethod
    def parse(cls, typed: str) -> "Typed":
        """Take a text apart."""
        typed = typed.strip()
        if printed := _PRINTED.fullmatch(typed):
            inner = cls.parse(printed["value"])
            return replace(inner, head=printed["head"] + inner.head, tail=inner.tail + printed["tail"])
        parts = _SAID.fullmatch(typed)
        if parts is None or (Number.parse(parts["core"]) is None and spelled(parts["core"]) is None):
            return cls(typed, typed)
        bound, unit = (" ".join((parts[name] or "").split()) for name in ("bound", "unit"))
        gap = " " if unit and (parts["unit"] or "")[:1].isspace() else ""
        return cls(typed, parts["core"], bound.lower(), gap, unit)

    @cached_property
    def number(self) -> Number | None:
        """The number of its digits; None if it has none, or more than one."""
        return Number.parse(self.core)

    @cached_property
    def amount(self) -> float | None:
        """The number that it says, before its unit; None if it says none."""
        return spelled(self.core) if self.number is None else float(self.number.value)

    @property
    def is_about(self) -> bool:
        """Whether its bound lets a value lie on either side of its number, and near to it."""
        return BOUNDS.get(self.bound) == _ABOUT

    def correction(self, value: Value) -> str | None:
        """Return the text to type instead, in the same form; None if this one says the value."""
        new = self._correction(value)
        return None if new is None else self.head + new + self.tail

    def _correction(self, value: Value) -> str | None:
        if isinstance(value, bool):
            return None if _TRUTH.get(self.text.lower(), True) is value else str(value)
        if isinstance(value, (int, float)):
            return self._measured(value) if self.bound or self.unit else self._number(value)
        if isinstance(value, (list, tuple)):
            return self._sequence(value)
        text, bare = str(value), self.text.strip("\"'“”‘’")
        return None if text in (self.text, bare) or text == bare[:1].swapcase() + bare[1:] else text

    def _measured(self, value: float) -> str | None:
        """Return the text to type for a number that has a unit or keeps a bound."""
        factor = UNITS.get(self.unit, 1)
        scaled = value // factor if isinstance(value, int) and value % factor == 0 else value / factor
        bound, signs, amount = self.bound, BOUNDS.get(self.bound, ("==",)), self.amount or 0.0
        if "==" not in signs and (scaled > amount if ">" in signs else scaled < amount):
            return None
        new = self._number(scaled)
        if new is not None and self.is_about:
            new = None if self.is_near(scaled) else self._coarse(scaled) or new
        if new is None and bound in ("nearly", "almost") and scaled > amount:
            new, bound = self.core, "over"
        return None if new is None else f"{bound if '==' in signs else ''} {new}{self.gap}{self.unit}".lstrip()

    def is_near(self, value: float) -> bool:
        """Tell whether a value, in this unit, is about the number."""
        if self.amount is None or not math.isfinite(value):
            return False
        reach = abs(self.amount) / 20
        if self.number is not None:
            zeros = len(self.number.digits) - len(self.number.leading) if self.number.leading else 0
            reach = min(reach, float(self.number.unit) * 10**zeros / 2)
        return abs(value - self.amount) <= reach * (1 + 1e-9)

    def _coarse(self, value: float) -> str | None:
        """A value with as many digits as the number has before its zeros, or as it takes to be near."""
        if self.number is None or not self.number.leading:
            return None
        fewest = len(self.number.leading) - 1
        texts = (self.number.write(Decimal(f"{value:.{places}e}")) for places in range(fewest, fewest + 4))
        return next((text for text in texts if Typed.parse(text).is_near(value)), None)

    def _number(self, value: float) -> str | None:
        typed = re.sub(r"^([-−+]?\d+)\.(?=e|$)", r"\1.0", self.core)  # as arrays print whole numbers
        word = typed.lower()
        if number := Number.parse(typed):
            return None if number.says(value) else number.distinct(value)
        if _spells(word, value):
            return None
        if word in WORDS:
            new = WORDS[int(value)] if value in range(len(WORDS)) else _plain(value)
            return new.capitalize() if typed[0].isupper() else new
        if not math.isfinite(value):
            infinite = word.replace("−", "-").replace("infinity", "inf").replace("∞", "inf").lstrip("+")
            return None if infinite == str(value) else str(value)
        return _plain(value)

    def _sequence(self, values: Sequence[Value]) -> str | None:
        typed, spans = self.text, _items(self.text, len(values))
        if len(spans) != len(values):
            inside = (" × " if "×" in typed else ", ").join(map(_plain, values))
            return f"[{inside}]" if typed[:1] not in ("(", "[") and len(spans) < 2 else _around(typed, inside)
        new = [correction(typed[slice(*span)], value) for span, value in zip(spans, values, strict=True)]
        if all(each is None for each in new):
            return None
        for (start, end), each in reversed([*zip(spans, new, strict=True)]):
            typed = typed[:start] + (typed[start:end] if each is None else each) + typed[end:]
        return typed

    def items(self, many: int) -> "list[Typed] | None":
        """The items of a sequence of so many, taken apart; None if the text has more or fewer."""
        spans = _items(self.text, many)
        return [Typed.parse(self.text[slice(*span)]) for span in spans] if len(spans) == many else None

    def numbers(self, value: Value) -> Iterator[tuple[str, float]]:
        """The numbers of a value, each with what here says it ("" where this says another number of them)."""
        if isinstance(value, (list, tuple)):
            items = self.items(len(value)) or [Typed("", "")] * len(value)
            for typed, each in zip(items, value, strict=True):
                yield from typed.numbers(each)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield self.core, value / UNITS[self.unit] if self.unit else value

    def mended(self, value: Value) -> str | None:
        """The correction, if it can stand here: a word has no form for a number, nor a number for nothing."""
        new = self.correction(value)
        new = new and re.sub(r"[ \t\n]+", " ", new)  # groups of digits may stand apart by other spaces, which stay
        if new is None or not self._fits(value) or correction(new, value) is not None:
            return None
        if self.head:
            return new
        # The words stay as they are: a value that is not nearly a number, but over it, is for the author to tell.
        before = self.text[: self.text.index(self.core)]
        return before + new[len(self.bound) :].strip() if new.startswith(self.bound) else None

    def _fits(self, value: Value) -> bool:
        """Tell whether the text has a form for such a value."""
        if isinstance(value, bool):
            return self.text.lower() in ("true", "false")
        if isinstance(value, (int, float)):
            has_form = self.number is not None or self.core.lower() in WORDS
            return math.isfinite(value) and (not self.bound or self.is_about) and has_form
        if isinstance(value, (list, tuple)):
            if (items := self.items(len(value))) is not None:
                pairs = zip(items, value, strict=True)
                return all(item.correction(each) is None or item._fits(each) for item, each in pairs)
            others = [self.text[slice(*span)] for span in _items(self.text, len(value))]
            return (self.text[:1] in ("(", "[") or len(others) > 1) and all(map(Number.parse, others))
        return isinstance(value, str) and (Number.parse(self.text) is None or re.fullmatch(NUMERAL, value) is not None)

    def refused(self, value: Value) -> str:
        """Why the text cannot be held against a value, though it is printed as one; "" if it can."""
        if isinstance(value, (list, tuple)) and re.search(r"\.\.\.|…", self.text):
            return "leaves numbers out: type all of them, or give a part of them, such as x[:3]"
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and self.text[:1] in ("(", "[") and not re.search(rf"\d|{VULGAR}|inf|nan|∞", self.text):
            return "holds no number: let the comment directly follow what says the number"
        return ""


def correction(typed: str, value: Value) -> str | None:
    """Return the text to type instead, in the same form; None if the typed text says the value."""
    return Typed.parse(typed).correction(value)


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
