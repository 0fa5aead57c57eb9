"""A hook of the site: a long line of code or of a report goes on in the next, further in than it begins.

On a phone four of five boxes of code would have to be scrolled, line by line. What is set in columns, as a tensor or a
table, would lose them, and is scrolled as it was.
"""

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority

LONG = 36  # letters of a line that a phone shows
FIRST = 16  # and of the first, on which the button lies that copies
FILLED = 78  # letters, after which a report goes on in the next line
_BOX = re.compile(
    r"(?P<begin><pre\b[^>]*>(?:<span></span>)?(?P<code><code\b[^>]*>)?)(?P<lines>.*?)(?P<end>(?:</code>)?</pre>)",
    re.DOTALL,
)
_TAG = re.compile(r"<(?P<ends>/?)(?P<name>[a-z][\w-]*)[^>]*>")
# The row of a tensor, or blanks within a line, but before a comment.
_COLUMNS = re.compile(r"^ *(?:tensor\(|\[+ *-?[\d.]|.*?\S {2,}(?=[^\s#]))", re.MULTILINE)


def text(html: str) -> str:
    """What is read of HTML."""
    return unescape(re.sub(r"<[^>]*>", "", html))


def indent(line: str) -> int:
    """How far in a line begins."""
    return len(line) - len(line.lstrip(" "))


def whole(code: str) -> Iterator[str]:
    """The lines of code as HTML, each with all of its tags: what goes on in the next line begins anew there.

    >>> [*whole('<i class="s">one\\ntwo</i>\\nthree')]
    ['<i class="s">one</i>', '<i class="s">two</i>', 'three']
    """
    opened: list[re.Match[str]] = []
    for line in code.split("\n"):
        before = "".join(tag[0] for tag in opened)
        for tag in _TAG.finditer(line):
            if tag["ends"]:
                opened.pop()
            else:
                opened.append(tag)
        yield before + line + "".join(f"</{tag['name']}>" for tag in reversed(opened))


def code(lines: str) -> str:
    """Code with its long lines marked.

    >>> code("x = 1\\n    return " + "x + " * 10 + "x").replace("x + ", "")
    'x = 1\\n<span class="line" style="--i:4">    return x</span>'
    """
    made = []
    for number, line in enumerate(whole(lines)):
        said = text(line)
        is_long = len(said) > (LONG if number else FIRST)
        made.append(marked(line, indent(said)) if is_long else line)
    return "\n".join(made)


def report(lines: str) -> str:
    """A report with its long lines marked; what was broken since it filled the width is one line, and breaks anew.

    >>> report("+ holds: " + 17 * "one " + "\\n    two").replace("one ", "")
    '<span class="line filled" style="--h:4">+ holds: \\n    two</span>'
    """
    made: list[list[str]] = []
    for line in whole(lines):
        begins, before = text(line), text(made[-1][-1]) if made else ""
        word = re.match(r" *(?P<word>\S+)", begins)
        if word and before.strip() and indent(begins) and len(before) + 1 + len(word["word"]) > FILLED:
            made[-1].append(line)
        else:
            made.append([line])
    return "\n".join(
        marked("\n".join(group), indent(first), indent(text(group[1])) - indent(first) if group[1:] else None)
        if len(first := text(group[0])) > LONG
        else group[0]
        for group in made
    )


def marked(line: str, begins: int, hangs: int | None = None) -> str:
    """A line that may go on, with how far in it begins, and what follows of a filled one."""
    told = {"--i": begins, "--h": hangs}
    places = ";".join(f"{name}:{value}" for name, value in told.items() if value)
    style = f' style="{places}"' if places else ""
    return f'<span class="line{"" if hangs is None else " filled"}"{style}>{line}</span>'


@event_priority(-100)  # once all else stands on the page, and its Markdown beside it
def on_post_page(output: str, *, config: MkDocsConfig, **_: Any) -> str:
    """Mark the long lines of each box but those of columns."""

    def box(found: re.Match[str]) -> str:
        is_set = not found["code"] and _COLUMNS.search(text(found["lines"]))
        marked_lines = found["lines"] if is_set else (code if found["code"] else report)(found["lines"])
        return found["begin"] + marked_lines + found["end"]

    return _BOX.sub(box, output)
