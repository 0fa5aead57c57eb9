"""Code on Markdown pages marks only what has a colour: each mark is an element that a browser styles first."""

from __future__ import annotations

import re
from pathlib import Path

from .hooks import hook

plain = hook("plain").plain


def test_marks_without_a_colour_go_and_what_they_hold_stays() -> None:
    typed = '<span class="n"><span><a href="#t">Tensor</a></span></span><span class="p">,</span>'
    assert plain(typed) == '<a href="#t">Tensor</a>,'
    assert plain('<span class="k">if</span> <span class="n">x</span>') == '<span class="k">if</span> x'


def test_no_markdown_page_has_such_a_mark(site: Path) -> None:
    for name in ("reference/probes", "notation", "proofread/elsewhere"):
        code = "".join(re.findall(r"(?s)<pre\b.*?</pre>", (site / name / "index.html").read_text(encoding="utf-8")))
        assert '<span class="k' in code, f"{name} has no colored code"
        assert not re.search(r'<span(?: class="[nopw]")?>', code)
