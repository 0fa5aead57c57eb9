"""What a page says of itself: how long it takes to read, when it last ran, on what, and how long that took."""

import re
from datetime import UTC, datetime
from html import escape, unescape

from ..checks.checked import Checked

WORDS_A_MINUTE = 200  # slow for prose, and there are code and formulas on the way
# What a page shows is looked at; what it says is read. Formulas are told by their signs, which are no words.
_SHOWN = re.compile(r"<(section|svg|style|script|math)\b.*?</\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_WORD = re.compile(r"\w[\w'’.-]*")
_SIGNS = re.compile(r"\((R|TM|tm)\)|\bCPU\b|\bProcessor\b")


def minutes(html: str) -> int:
    """How long a page takes to read: a minute for every 200 words of its text and code, outputs not counted."""
    words = len(_WORD.findall(unescape(_TAG.sub(" ", _SHOWN.sub(" ", html)))))
    return max(1, round(words / WORDS_A_MINUTE))


def last_run(checked: Checked) -> str:
    """When a page last ran, on what, and how long that took; "" if it has nothing to run or did not come to its end."""
    if not checked.machine:
        return ""
    began = datetime.fromtimestamp(checked.began, UTC)
    device = " ".join(_SIGNS.sub("", checked.machine.device).split())
    return (
        f'Last run on <time datetime="{began:%Y-%m-%dT%H:%M:%SZ}">{began:%Y-%m-%d, %H:%M} UTC</time> '
        f"in {_seconds(checked.seconds)}, with torch {escape(checked.machine.torch)} on {escape(device)}."
    )


def footer(checked: Checked, html: str) -> str:
    """The line that ends a page; no prose to search for."""
    read = minutes(html)
    told = [f"{read} minute{'s' * (read != 1)} to read.", last_run(checked)]
    return f'\n<p class="proofread-reading" data-search-exclude="true">{" ".join(filter(None, told))}</p>\n'


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
