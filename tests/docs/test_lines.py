"""A long line of code goes on in the next, on a phone as elsewhere, and what is set in columns keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from .hooks import hook

lines = hook("lines")
LONG = "weights = attention_weights(scores, allowed=allowed)"


def shown(html: str) -> str:
    made: str = lines.on_post_page(html, config=None)
    return made


def test_a_long_line_is_marked_with_how_far_in_it_begins() -> None:
    made = shown(f"<pre><code>def f():\n    {LONG}\n</code></pre>")
    assert made == f'<pre><code>def f():\n<span class="line" style="--i:4">    {LONG}</span>\n</code></pre>'
    assert shown("<pre><code>x = 1\ny = 2\n</code></pre>") == "<pre><code>x = 1\ny = 2\n</code></pre>"


def test_the_first_line_has_less_room_for_the_button_lies_on_it() -> None:
    line = "from unmasked import masks"
    assert lines.FIRST < len(line) < lines.LONG
    assert shown(f"<pre><code>{line}\n{line}</code></pre>").count('class="line"') == 1


def test_a_mark_that_goes_over_several_lines_is_in_each_of_them() -> None:
    made = shown(f'<pre><code><i class="s">"""{LONG}\n{LONG}"""</i> + 1</code></pre>')
    assert made.count('<i class="s">') == made.count("</i>") == 2
    assert BeautifulSoup(made, "html.parser").text == f'"""{LONG}\n{LONG}""" + 1'


def test_what_filled_the_width_of_a_report_is_one_line() -> None:
    told = "x no-causal-mask: " + "word " * 12
    report = f"Mine: 1 broken promise\n{told[:-1]}\n    other words of the same sentence\n    a line of its own"
    made = shown(f"<pre>{report}</pre>")
    assert f'<span class="line filled" style="--h:4">{told[:-1]}\n    other' in made
    assert made.count("<span") == 1, "what is short stays as it is"
    assert BeautifulSoup(made, "html.parser").text == report


@pytest.mark.parametrize(
    "output",
    [
        "tensor([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]])",
        "[[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]]",
        "layer  heads  features  bytes  what each of them is\n    0      8        64",
    ],
)
def test_columns_of_an_output_stay(output: str) -> None:
    assert shown(f"<pre>{output}</pre>") == f"<pre>{output}</pre>"


def test_a_comment_far_behind_its_code_makes_no_column() -> None:
    assert "filled" not in shown(f"<pre>{LONG}  # (batch, queries, keys)</pre>")
    assert 'class="line"' in shown(f"<pre>{LONG}  # (batch, queries, keys)</pre>")


def test_marked_lines_of_pages_read_as_their_markdown_has_them(site: Path) -> None:
    for name in ("doctor", "learn/generating", "pytorch/masks", "reference/functional"):
        html = (site / name / "index.html").read_text(encoding="utf-8")
        folded = "details.proofread-check *, details.proofread-about *"
        marks = BeautifulSoup(html, "html.parser").select(f"pre .line:not({folded})")
        known = (site / name / "index.md").read_text(encoding="utf-8")
        assert len(marks) > 9, name
        assert [mark.text for mark in marks if mark.text.strip() not in known] == []
