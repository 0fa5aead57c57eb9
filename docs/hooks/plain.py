"""A hook of the site: what Markdown pages and the reference need not show.

Code on Markdown pages marks only what has a colour, as code of cells does. A browser styles and lays out each element
before it shows anything, and most of those in a page of the reference marked names, blanks and punctuation. Equations
that follow each other in a docstring share one box.
"""

import re
from typing import Any

from mkdocs.structure.pages import Page

_CODE = re.compile(r"<pre\b.*?</pre>", re.DOTALL)
_PLAIN = re.compile(r'<span(?: class="(?:n|o|p|w)")?>((?:(?!</?span\b).)*)</span>', re.DOTALL)  # no other in it


_EQUATION = '<details class="equation" open>\n<summary>Equation</summary>'
_EQUATIONS = re.compile(rf"{_EQUATION}.*?</details>(?:\s*{_EQUATION}.*?</details>)+", re.DOTALL)


def together(html: str) -> str:
    """The reference with one box for the equations that follow each other.

    >>> box = f"{_EQUATION}\\n<p>x</p>\\n</details>"
    >>> together(box + box.replace("x", "y"))
    '<details class="equation" open>\\n<summary>Equations</summary>\\n<p>x</p>\\n\\n<p>y</p>\\n</details>'
    """

    def box(found: re.Match[str]) -> str:
        first, *more = found[0].split(_EQUATION)[1:]
        inside = "".join(each.rpartition("</details>")[0] for each in (first, *more))
        return f"{_EQUATION.replace('Equation<', 'Equations<')}{inside}</details>"

    return _EQUATIONS.sub(box, html)


def plain(code: str) -> str:
    """The code without the marks that change nothing.

    >>> plain('<span class="n"><span>x</span></span><span class="p">,</span> <span class="mi">1</span>')
    'x, <span class="mi">1</span>'
    """
    while (less := _PLAIN.sub(r"\1", code)) != code:
        code = less
    return code


def on_page_content(html: str, **_: Any) -> str:
    """Put the equations of a docstring together."""
    return together(html)


def on_post_page(output: str, *, page: Page, **_: Any) -> str:
    """Take the marks away, once all links in code lead somewhere."""
    return _CODE.sub(lambda found: plain(found[0]), output) if page.file.src_uri.endswith(".md") else output
