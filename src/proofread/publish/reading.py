"""The line below a page's title: how long it takes to read, and when it was checked, with which library."""

import re
from html import escape, unescape

from ..checks.checked import Checked, day

WORDS_A_MINUTE = 120  # for who learns from a page
SECONDS_A_FIGURE, SECONDS_A_LINE = 45, 5  # and looks at its figures, and at its lines of code
SECONDS_AN_EXERCISE = 210  # and does what has a solution
# What stands below such a heading is for who wants more.
_OPTIONAL = re.compile(r'(?s)<h3\b[^>]*\bid="optional".*?(?=<h[12]\b|$)')
_SOLUTION = re.compile(r"<summary>Solution</summary>")
# Folds are there for who wants more, and of the outputs of code the captions are read.
_QUIET = re.compile(r"(?s)<(svg|style|script|math|p-check)\b.*?</\1>|<details\b(?:(?!<details\b).)*?</details>")
_OUTPUT = re.compile(r"(?s)<section\b(?:(?!</section>|<figcaption).)*")
_FIGURE = re.compile(r"<figcaption><b>Figure \d")
_CODE = re.compile(r"(?s)<pre\b.*?</pre>")
_TAG = re.compile(r"<[^>]*>")
_WORD = re.compile(r"\w[\w'’.-]*")
_SIGNS = re.compile(r"\((R|TM|tm)\)|\bCPU\b|\bProcessor\b")


def minutes(html: str) -> int:
    """How long a page takes to read.

    A minute for every 120 words of its text and captions, 45 seconds for a figure that has a number, 5 for a line of
    code, and three and a half minutes for an exercise. What stands below a heading "Optional" takes none.
    """
    html = _OPTIONAL.sub(" ", html)
    exercises = len(_SOLUTION.findall(html))
    for _ in range(3):  # what is folded away may hold folds
        html = _QUIET.sub(" ", html)
    html = _OUTPUT.sub(" ", html)
    lines = [line for code in _CODE.findall(html) for line in _TAG.sub("", code).split("\n") if line.strip()]
    words = _WORD.findall(unescape(_TAG.sub(" ", _CODE.sub(" ", html))))
    looked = SECONDS_A_FIGURE * len(_FIGURE.findall(html)) + SECONDS_A_LINE * len(lines)
    looked += SECONDS_AN_EXERCISE * exercises
    return max(1, round(len(words) / WORDS_A_MINUTE + looked / 60))


def checked_on(checked: Checked) -> str:
    """When a page last ran, and on which library; "" if it has nothing to run or did not come to its end."""
    if not checked.machine:
        return ""
    date = day(checked.began)
    how = "Checked on" if checked.mode == "check" else "Run on"
    return f'{how} <time datetime="{date}">{date}</time>, {escape(checked.machine.software)}'


def about(checked: Checked, html: str, figures: str) -> str:
    """The line below a page's title, which folds the processor away; no prose to search for.

    It names the file of what gave the page's values.
    """
    parts = [f"{minutes(html)} min"] * checked.page.is_script + [checked_on(checked)]
    line = " · ".join(filter(None, parts))
    attributes = 'class="proofread-about" data-search-exclude="true"' + (
        f' data-figures="{figures}"' if figures else ""
    )
    if not checked.machine:
        return f"<p {attributes}>{line}</p>\n" if line else ""
    device = escape(" ".join(_SIGNS.sub("", checked.machine.device).split()))
    return f"<details {attributes}><summary>{line}</summary>It ran on this processor: {device}</details>\n"
