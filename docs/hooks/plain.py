"""A hook of the site: code on Markdown pages marks only what has a colour, as code of cells does.

A browser styles and lays out each element before it shows anything. Most of those in a page of the reference marked
names, blanks and punctuation.
"""

import re
from typing import Any

from mkdocs.structure.pages import Page

_CODE = re.compile(r"<pre\b.*?</pre>", re.DOTALL)
_PLAIN = re.compile(r'<span(?: class="(?:n|o|p|w)")?>((?:(?!</?span\b).)*)</span>', re.DOTALL)  # no other in it


def plain(code: str) -> str:
    """The code without the marks that change nothing.

    >>> plain('<span class="n"><span>x</span></span><span class="p">,</span> <span class="mi">1</span>')
    'x, <span class="mi">1</span>'
    """
    while (less := _PLAIN.sub(r"\1", code)) != code:
        code = less
    return code


def on_post_page(output: str, *, page: Page, **_: Any) -> str:
    """Take the marks away, once all links in code lead somewhere."""
    return _CODE.sub(lambda found: plain(found[0]), output) if page.file.src_uri.endswith(".md") else output
