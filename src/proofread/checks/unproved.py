"""The sentences that compare or give a value, and that no claim quotes: a person decides which need a proof."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..pages.numbers import BOUND
from ..pages.plain import Plain
from .checked import Checked
from .claims import quotations

_STEMS = (
    "big|bright|cheap|clos|dark|deep|earli|fast|flat|great|hard|high|larg|lat|light|long|low|narrow|near|new|old|quick"
    "|sharp|short|slow|small|steep|strong|tall|thick|thin|weak|wid"
)
_COMPARES = re.compile(
    rf"\b(?:than|as (?!well)\w+ as|twice|thrice|half|halves|doubled?|doubles|\w+fold|(?:{_STEMS})[gnt]?(?:er|est)"
    "|further|farther|furthest|farthest|more|most|less|least|fewer|fewest|better|best|worse|worst|the same|equals?"
    "|alike|identical|differs?|falls?|fell|rises?|rose|grows?|grew|shrinks?|drops?|increases?|decreases?|exceeds?"
    r"|all|none|nothing|everything|never|always|only)\b",
    re.IGNORECASE,
)
# "at most 5" compares nothing: the bound is a part of the value, and is proved with it.
_BOUNDED = re.compile(rf"\b(?:{BOUND})\s+(?=\d)", re.IGNORECASE)
_DIGITS = re.compile(r"(?<![\w.-])\d")  # but not a digit of a name, as in GPT-2


@dataclass(frozen=True)
class Unproved:
    """A sentence of the prose, a caption or an alternative text that no claim quotes."""

    line: int
    where: str  # prose, caption or alt
    words: str
    compares: bool  # or else it gives a value


def unproved(checked: Checked) -> Iterator[Unproved]:
    """Yield the sentences of a page that compare or give a value, and of which no claim quotes any part."""
    quoted, _ = quotations(checked)
    for number, text in enumerate(checked.texts):
        code = checked.page.cells[text.cell].is_code
        where = ("caption" if text.caption else "alt") if code else "prose"
        for start, end, words in () if text.asserts else Plain(text.prose, text.values).sentences():
            if not any(first < end and start < last for first, last in quoted.get(number, ())):
                compares = _COMPARES.search(_BOUNDED.sub("", words)) is not None
                if compares or _DIGITS.search(words):
                    yield Unproved(text.at(start), where, words, compares)
