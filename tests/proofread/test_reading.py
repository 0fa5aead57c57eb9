from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from proofread.checks.check import check
from proofread.checks.checked import Checked
from proofread.pages.page import Page
from proofread.publish import reading
from proofread.runs.steps import Machine

RUN = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC).timestamp()
CHECKED = Checked(Page("page.md", ()), began=RUN, seconds=4.24, machine=Machine("2.13.0", "Intel(R) Xeon(R) @ 2 GHz"))


@pytest.mark.parametrize(
    ("html", "minutes"),
    [
        ("", 1),
        ("<p>" + "word " * 299 + "</p>", 1),
        ("<p>" + "word " * 301 + "</p>", 2),
        ("<p>" + "<b>to</b> <i>be</i> " * 300 + "</p>", 3),
        ("<pre>" + "x = y.mean() " * 300 + "</pre>", 3),
        ("<section>" + "word " * 900 + "</section>", 1),
        ("<math><mi>a</mi>" + "<mi>x</mi>" * 900 + "</math>", 1),
    ],
    ids=["nothing", "one and a half", "more", "tags", "code", "outputs", "formulas"],
)
def test_a_page_takes_a_minute_for_every_two_hundred_words_that_are_read(html: str, minutes: int):
    assert reading.minutes(html) == minutes


def test_a_page_says_when_it_ran_on_what_and_how_long():
    assert reading.last_run(CHECKED) == (
        'Last run on <time datetime="2026-03-04T05:06:07Z">2026-03-04, 05:06 UTC</time> '
        "in 4.2 s, with torch 2.13.0 on Intel Xeon @ 2 GHz."
    )
    assert "in 123 s," in reading.last_run(replace(CHECKED, seconds=123.4))
    assert "on &lt;GPU&gt;." in reading.last_run(replace(CHECKED, machine=Machine("2.13.0", "<GPU>")))


def test_a_page_that_did_not_run_says_only_how_long_it_takes_to_read():
    assert reading.footer(Checked(Page("page.md", ())), "a word") == (
        '\n<p class="proofread-reading" data-search-exclude="true">1 minute to read.</p>\n'
    )
    assert ">2 minutes to read. Last run" in reading.footer(CHECKED, "word " * 400)


def test_a_page_that_is_not_run_again_tells_of_the_run_that_was_kept(tmp_path: Path):
    (tmp_path / "page.py").write_text("# %%\nx = 1\n")
    (tmp_path / "prose.md").write_text("# Prose\n")
    told = []
    for _ in range(2):
        code, prose = check([tmp_path / "page.py", tmp_path / "prose.md"], root=tmp_path).pages
        told.append((code.began, code.seconds, code.machine))
        assert (prose.began, prose.machine) == (0, None)
    assert not code.ran
    assert told[0] == told[1]
    began, seconds, machine = told[0]
    assert began > RUN
    assert 0 < seconds < 600
    assert machine is not None
    assert machine.torch == torch.__version__
    assert machine.device
