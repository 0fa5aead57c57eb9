import platform
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
import torch

from proofread.checks.checked import Checked
from proofread.formulas.arrays import numbers
from proofread.pages.page import Cell, Page
from proofread.publish import reading
from proofread.runs import kernel
from proofread.runs.steps import Machine

from .conftest import Project

RUN = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC).timestamp()
TORCH = Page("page.md", (Cell("import torch", 1, is_code=True),))
CHECKED = Checked(TORCH, began=RUN, seconds=4.24, machine=Machine("torch 2.13.0", "Intel(R) Xeon(R) @ 2 GHz"))


@pytest.mark.parametrize(
    ("html", "minutes"),
    [
        ("", 1),
        ("<p>" + "word " * 179 + "</p>", 1),
        ("<p>" + "word " * 181 + "</p>", 2),
        ("<p>" + "<b>to</b> <i>be</i> " * 180 + "</p>", 3),
        ("<pre>" + "x = y.mean() " * 300 + "</pre>", 1),
        ("<pre><code>" + "x = <i>y</i>.mean()\n\n" * 36 + "</code></pre>" + "word " * 120, 4),
        ("<section><pre>" + "tensor(1.0)\n" * 90 + "</pre></section>", 1),
        ("<section><figure><svg></svg><figcaption><b>Figure 2.</b></figcaption></figure></section>" * 4, 3),
        ("<section>" + "word " * 900 + "</section>", 1),
        ("<section>" + "word " * 900 + "<figcaption>" + "word " * 240 + "</figcaption></section>", 2),
        ("<p-check>" + "<section>a</section> word " * 900 + "</p-check>", 1),
        ("<details>" + "word <details>a</details> word " * 900 + "</details>", 1),
        ("<math><mi>a</mi>" + "<mi>x</mi>" * 900 + "</math>", 1),
        ("<details><summary>Solution</summary>" + "word " * 900 + "</details>" + "word " * 150, 5),
        (
            "word " * 120
            + '<h3 id="optional">Optional</h3>'
            + ("word " * 900 + "<details><summary>Solution</summary>x</details>") * 2
            + '<h2 id="b">More</h2>'
            + "word " * 120,
            2,
        ),
    ],
    ids=[
        "nothing",
        "one and a half",
        "more",
        "tags",
        "long line",
        "code",
        "printed",
        "figures",
        "outputs",
        "captions",
        "checks",
        "folds",
        "formulas",
        "exercises",
        "optional",
    ],
)
def test_a_page_takes_as_long_as_its_words_figures_lines_of_code_and_exercises_do(html: str, minutes: int):
    assert reading.minutes(html) == minutes


def test_a_page_says_when_it_was_checked_and_on_what():
    told = reading.about(CHECKED, "word", "")
    assert 'Checked on <time datetime="2026-03-04">2026-03-04</time>, torch 2.13.0</summary>' in told
    assert told.endswith("</summary>It ran on this processor: Intel Xeon @ 2 GHz</details>\n")
    other = reading.about(replace(CHECKED, machine=Machine("numpy 2.4", "<GPU>")), "word", "")
    assert other.endswith(", numpy 2.4</summary>It ran on this processor: &lt;GPU&gt;</details>\n")


class Own:
    pass


@pytest.mark.parametrize(
    ("namespace", "told"),
    [
        ({"x": torch.ones(2), "np": np}, "torch"),
        ({"F": torch.nn.functional}, "torch"),
        ({"linear": torch.nn.Linear}, "torch"),
        ({"numbers": numbers}, "numpy"),  # by what its package imports
        ({"x": np.float32(2)}, "numpy"),
        ({"x": Own(), "y": 2, "_z": torch.ones(2)}, "Python"),
    ],
)
def test_a_page_names_the_library_that_it_uses(namespace: dict[str, object], told: str):
    Own.__module__ = "__main__"
    software = kernel._machine(namespace).software
    versions = {"torch": torch.__version__, "numpy": np.__version__, "Python": platform.python_version()}
    assert software == f"{told} {versions[told]}"


def test_the_line_below_the_title_says_only_what_there_is_to_say():
    said = 'class="proofread-about" data-search-exclude="true"'
    assert reading.about(Checked(Page("page.md", ())), "a word", "") == ""
    assert reading.about(Checked(Page("page.py", ())), "a word", "") == f"<p {said}>1 min</p>\n"
    assert reading.about(CHECKED, "word", "").startswith(f"<details {said}><summary>Checked on <time")
    script = replace(CHECKED, page=Page("page.py", ()))
    told = reading.about(script, "word " * 240, "a/figures.json")
    assert told.startswith(f'<details {said} data-figures="a/figures.json"><summary>2 min · Checked on <time')


def test_a_page_that_is_not_run_again_tells_of_the_run_that_was_kept(project: Project):
    project.write("page.py", "# %%\nx = 1\n")
    project.write("prose.md", "# Prose\n")
    told = []
    for _ in range(2):
        code, prose = project.check("page.py", "prose.md").pages
        told.append((code.began, code.seconds, code.machine))
        assert (prose.began, prose.machine) == (0, None)
    assert not code.ran
    assert told[0] == told[1]
    began, seconds, machine = told[0]
    assert began > RUN
    assert 0 < seconds < 600
    assert machine is not None
    assert machine.software == f"Python {platform.python_version()}"
    assert machine.device
