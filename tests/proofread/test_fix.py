import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proofread.checks.fix import ChangedError, Fix, fixes

from .conftest import Project
from .test_figures import FORMS

PAGE = """\
# %% [markdown]
# # All 12<!--= n --> words: café 11<!--= n -->
#
# It keeps 54%<!--= share -->, `(10, 50)`<!--= (n, 50) -->, **12<!--= n -->** and [eleven](//x)<!--= n -->.
#
# | word | weight |
# |------|--------|
# | ship | 0.54<!--= share --> |
#
# !!! note "Of 12.0<!--= n - 1 --> others"
#
#     Twice that is −1.1<!--= -2 * share -->, some 1,300<!--= 100 * n --> times; more<!--= share < 0.5 --> than half.

# %%
#| alt: a line through 12<!--= n --> words
#|   and 3<!--= 2 * n --> points
import matplotlib.pyplot as plt

n, share = 13, 0.5512
plt.plot([1, 2]);
"""


def fixed(project: Project, text: str, name: str = "page.py") -> Fix:
    """What mends a page, which is done."""
    (fix,) = fixes(project.proofread(text, name).findings, project.root)
    fix.apply()
    return fix


def test_every_typed_figure_takes_the_value_in_the_form_it_was_typed(project: Project) -> None:
    page = project.write("page.py", PAGE)
    page.chmod(0o640)
    changed = [(e.start[0], e.old, e.new) for e in fixed(project, PAGE).edits]
    assert changed == [
        (2, "12", "13"),
        (2, "11", "13"),
        (4, "54%", "55%"),
        (4, "(10, 50)", "(13, 50)"),
        (4, "12", "13"),
        (4, "eleven", "thirteen"),
        (8, "0.54", "0.55"),
        (15, "12", "13"),
        (16, "3", "26"),
    ]
    lines = PAGE.split("\n")
    for line, old, new in changed:
        lines[line - 1] = lines[line - 1].replace(old, new, 1)
    assert page.read_text() == "\n".join(lines)
    assert stat.S_IMODE(page.stat().st_mode) == 0o640
    again = project.check(keep=False)
    assert [finding.kind for finding in again.findings] == ["claim"]  # the swapped word stays for its author
    assert list(fixes(again.findings, project.root)) == []


def test_a_markdown_page_with_windows_line_ends_keeps_them(project: Project) -> None:
    text = "# Title\r\n\r\n```python\r\nn = 3\r\n```\r\n\r\nIt has 4<!--= n --> of them.\r\n"
    fix = fixed(project, text, "page.md")
    assert project.read("page.md") == text.replace("4<", "3<")
    assert fix.diff() == (
        "--- a/page.md\n+++ b/page.md\n@@ -4,4 +4,4 @@\n n = 3\r\n ```\r\n \r\n"
        "-It has 4<!--= n --> of them.\r\n+It has 3<!--= n --> of them.\r\n"
    )


def test_a_page_that_was_saved_meanwhile_is_left_alone(project: Project) -> None:
    report = project.proofread(PAGE)
    (fix,) = fixes(report.findings, project.root)
    project.write("page.py", "# new\n" + PAGE)
    with pytest.raises(ChangedError, match=r"page\.py was saved while it was checked; nothing was changed in it"):
        fix.apply()
    with pytest.raises(ChangedError, match=r"page\.py:\d+ was saved while it was checked"):
        list(fixes(report.findings, project.root))
    assert project.read("page.py") == "# new\n" + PAGE


def test_a_link_to_a_page_stays_a_link(project: Project) -> None:
    project.write("real.py", PAGE)
    (project.root / "page.py").symlink_to("real.py")
    fixed(project, PAGE)
    assert (project.root / "page.py").is_symlink()
    assert "55%" in project.read("real.py")


def test_nothing_is_changed_on_a_page_whose_code_fails(project: Project) -> None:
    page = "# %%\nn = 3\n\n# %% [markdown]\n# It is 4<!--= n -->.\n\n# %%\n1 / 0\n"
    report = project.proofread(page)
    assert [finding.kind for finding in report.findings] == ["value", "cell"]
    assert list(fixes(report.findings, project.root)) == []
    fixed(project, page.replace("1 / 0", "n"))


def test_a_figure_that_goes_over_lines_is_written_on_one(project: Project) -> None:
    text = "\ufeff# %% [markdown]\n# The shape (11,\n# 50)<!--= shape --> is 4<!--= shape[0] -->.\n\n"
    text = (text + "# %%\nshape = (3, 50)\n").replace("\n", "\r\n")
    fix = fixed(project, text)
    assert project.read("page.py") == text.replace("(11,\r\n# 50)", "(3, 50)").replace("is 4", "is 3")
    assert [edit.old for edit in fix.edits] == ["(11,\n# 50)", "4"]


def test_prose_in_quotes_and_without_spaces_is_mended_where_it_stands(project: Project) -> None:
    text = """\
# %%
n = 3

# %% [markdown]
'''It is 4<!--= n --> of 4<!--= n -->.'''

# %% [markdown]
r'''
  - It is 4<!--= n -->.  \n'''

# %% [markdown]
#It is 4<!--= n -->.
#
# 4<!--= n -->
""".replace("'''", '"""')
    fixed(project, text)
    assert project.read("page.py") == text.replace("4", "3")


def test_what_readers_are_told_elsewhere_is_mended_too(project: Project) -> None:
    text = """\
---
title: All 4<!--= n --> words
---
# Title

<img src="a.svg" alt="for 4<!--= n --> words">

=== "Of 4<!--= n -->"

    Its 4<!--= n -->.

> 1. quoted `4`<!--= n -->

*[MHA]: has 4<!--= n --> heads

[^a]: 4<!--= n -->

```python
n = 3
```
"""
    fixed(project, text, "page.md")
    assert project.read("page.md") == text.replace("4", "3")


LEFT = {
    "many": "13",
    "**12 words**": "13",
    "[all 12](//a)": "13",
    "(about 12)": "13",
    "12": "(13, 14)",
    "(12, 13)": "13",
    "12.0": "float('nan')",
    "∞": "13",
    "12.00": "None",
    "12.000": "'many'",
    "*word*": "'a\\nb'",
    "*a word*": "'a*b'",
    "yes": "False",
    "larger": "False",
}


def test_what_has_no_form_for_the_value_is_left_to_its_author(project: Project) -> None:
    code = f"# %%\nv = [{', '.join(LEFT.values())}]\n\n# %% [markdown]\n"
    prose = "".join(f"# It is {typed}<!--= v[{place}] -->.\n" for place, typed in enumerate(LEFT))
    report = project.proofread(code + prose)
    assert [finding.line for finding in report.findings] == [*range(5, 5 + len(LEFT))]
    assert list(fixes(report.findings, project.root)) == []


def test_a_file_that_cannot_be_written_stays_as_it_was(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (fix,) = fixes(project.proofread(PAGE).findings, project.root)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        fix.apply()
    assert [path.name for path in project.root.iterdir()] == ["page.py"]
    assert project.read("page.py") == PAGE


WHOLE = st.integers(-(10**7), 10**7)
REAL = st.floats(-1e9, 1e9, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-9)
AROUND = st.sampled_from(["{}", "**{}**", "`{}`", "$ {} $", "[{}](//a)", "<b>{}", '"{}"', "_{}_"])


@st.composite
def figures(draw: st.DrawFn) -> tuple[str, object]:
    """A figure as it is typed on a page, and a value that has its form."""
    kind = draw(st.sampled_from(["number", "number", "sequence", "word", "truth"]))
    if kind == "number":
        return draw(AROUND).format(draw(FORMS)), draw(WHOLE | REAL)
    if kind == "sequence":
        form = draw(st.sampled_from(["({})", "[{}]", "`({})`", "torch.Size([{}])"]))
        numbers = st.integers(0, 99).map(str) | st.decimals(-9, 9, places=2).map(str)
        items, values = (draw(st.lists(each, min_size=2, max_size=3)) for each in (numbers, WHOLE | REAL))
        return form.format(", ".join(items)), tuple(values)
    if kind == "word":
        return draw(AROUND.filter(lambda form: "$" not in form)).format("ship"), draw(st.sampled_from(["crew", "ship"]))
    return draw(st.sampled_from(["True", "`False`", "*true*"])), draw(st.booleans())


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(figures(), min_size=30, max_size=30))
def test_once_a_page_is_fixed_it_is_clean(tmp_path_factory: pytest.TempPathFactory, typed: list[Any]) -> None:
    project = Project(tmp_path_factory.mktemp("fixed"))
    code = f"# %%\nv = {[value for _, value in typed]!r}\n\n# %% [markdown]\n"
    prose = "".join(f"# It is {text}<!--= v[{place}] -->.\n#\n" for place, (text, _) in enumerate(typed))
    for fix in fixes(project.proofread(code + prose).findings, project.root):
        fix.apply()
    assert project.check(keep=False).findings == []


def test_no_link_out_of_the_project_is_written_through(tmp_path: Path) -> None:
    project, page = Project(tmp_path / "project"), tmp_path / "page.py"
    project.root.mkdir()
    page.write_text("# %%\nx = 3\n\n# %% [markdown]\n# It is 4<!--= x -->.\n")
    (project.root / "page.py").symlink_to(page)
    before = page.read_bytes()
    report = project.check(keep=False)
    assert [finding.kind for finding in report.findings] == ["value"]
    with pytest.raises(ChangedError) as raised:
        list(fixes(report.findings, project.root))
    told = f"{page} lies outside of the project {project.root}; nothing was changed, fix it from its own"
    assert str(raised.value) == told
    assert page.read_bytes() == before


def test_a_sentence_with_another_figure_that_is_waived_is_left_to_its_author(project: Project) -> None:
    page = """
        # %%
        ours = 130

        # %% [markdown]
        # Llama has 131,072<!--~ its config --> bytes, and ours 131<!--= ours -->. We have 131<!--= ours -->.
        #
        # <!--~ 8: an example -->
        # It has 8 heads, and 131<!--= ours --> tails.
        """
    report = project.proofread(page)
    waived = "; its sentence has {}, too, which is waived: proofread fix leaves it to you"
    assert [finding.message for finding in report.findings] == [
        "it says 131, but ours gives 130",
        "it says 131, but ours gives 130" + waived.format("131,072"),
        "it says 131, but ours gives 130" + waived.format("8"),
    ]
    for fix in fixes(report.findings, project.root):
        fix.apply()
    assert project.read("page.py").count("130<!--=") == 1
    assert "We have 130<!--=" in project.read("page.py")
