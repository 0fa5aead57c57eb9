"""Numbers of equations become links to them."""

import re
from collections.abc import Callable, Collection

from ..pages.equations import BRACKETED, LISTED, NUMBER, SEVERAL

# HTML after which a list of numbers is one of equations; what is inside links, code and formulas is left alone.
_IN_HTML = re.compile(
    rf"<(?P<element>a|code|pre|math|script|style|h\d)\b.*?</(?P=element)>(?P<after>\s*{LISTED})?"
    rf"|(?P<prose>\b[Ee]quations?(?:</summary>|</strong>|</p>|:|\s|<p>)*{SEVERAL})"
    rf"|(?<!class=\"math-tag\">)(?P<bracketed>{BRACKETED})",
    re.DOTALL,
)


def link(html: str, address: Callable[[str], str | None], bracketed: Collection[str] = ()) -> str:
    """Make links of the numbers of equations in the HTML of a page, after the word equation or after a formula.

    So it is with what the page's prose has in brackets and means as an equation's number, without that word. The
    address says where an equation stands, and is None if there is no such equation.
    """

    def linked(number: re.Match[str]) -> str:
        target = address(number[0])
        return f'<a href="{target}">{number[0]}</a>' if target else number[0]

    def replaced(match: re.Match[str]) -> str:
        if match["bracketed"] and match["bracketed"] not in bracketed:
            return match[0]
        begin = match.start("after") if match["after"] else match.end() if match["element"] else match.start()
        listed = re.sub(LISTED, lambda group: re.sub(NUMBER, linked, group[0]), html[begin : match.end()])
        return html[match.start() : begin] + listed

    return _IN_HTML.sub(replaced, html)
