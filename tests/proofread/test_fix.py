import os
import stat
from pathlib import Path

import pytest

from proofread.check import Report, check
from proofread.fix import ChangedError, fixes

PAGE = """\
# %% [markdown]
# # All 12<!--== n --> words: café 11<!--== n -->
#
# It keeps 54%<!--== share -->, `(10, 50)`<!--== (n, 50) -->, **12<!--== n -->** and [eleven](x.md)<!--== n -->.
#
# | word | weight |
# |------|--------|
# | ship | 0.54<!--== share --> |
#
# !!! note "Of 12.0<!--== n - 1 --> others"
#
#     Twice that is −1.1<!--== -2 * share -->, some 1,300<!--== 100 * n --> times; more<!--== share < 0.5 --> than half.

# %%
#| alt: a line through 12<!--= n --> words
#|   and 3<!--= 2 * n --> points
import matplotlib.pyplot as plt

n, share = 13, 0.5512
plt.plot([1, 2]);
"""


def checked(root: Path, text: str, name: str = "page.py") -> Report:
    (root / name).write_bytes(text.encode())
    return check([root / name], root=root, keep=False)


def test_every_typed_figure_takes_the_value_in_the_form_it_was_typed(tmp_path: Path) -> None:
    page = tmp_path / "page.py"
    report = checked(tmp_path, PAGE)
    page.chmod(0o640)
    (fix,) = fixes(report.findings, tmp_path)
    fix.apply()
    changed = [(e.start[0], e.old, e.new) for e in fix.edits]
    assert changed == [
        (2, "12", "13"),
        (2, "11", "13"),
        (4, "54%", "55%"),
        (4, "(10, 50)", "(13, 50)"),
        (4, "12", "13"),
        (4, "eleven", "13"),
        (8, "0.54", "0.55"),
        (15, "12", "13"),
        (16, "3", "26"),
    ]
    expected = PAGE
    for old, new in (
        ("# # All 12", "# # All 13"),
        ("café 11", "café 13"),
        ("54%", "55%"),
        ("(10, 50)", "(13, 50)"),
        ("**12", "**13"),
        ("[eleven]", "[13]"),
        ("0.54", "0.55"),
        ("through 12", "through 13"),
        ("and 3", "and 26"),
    ):
        expected = expected.replace(old, new)
    assert page.read_text() == expected
    assert stat.S_IMODE(page.stat().st_mode) == 0o640
    again = check([page], root=tmp_path, keep=False)
    assert [finding.kind for finding in again.findings] == ["claim"]  # the swapped word stays for its author
    assert list(fixes(again.findings, tmp_path)) == []


def test_a_markdown_page_with_windows_line_ends_keeps_them(tmp_path: Path) -> None:
    text = "# Title\r\n\r\n```python\r\nn = 3\r\n```\r\n\r\nIt has 4<!--= n --> of them.\r\n"
    (fix,) = fixes(checked(tmp_path, text, "page.md").findings, tmp_path)
    fix.apply()
    assert (tmp_path / "page.md").read_bytes() == text.replace("4<", "3<").encode()
    assert fix.diff() == (
        "--- a/page.md\n+++ b/page.md\n@@ -4,4 +4,4 @@\n n = 3\r\n ```\r\n \r\n"
        "-It has 4<!--= n --> of them.\r\n+It has 3<!--= n --> of them.\r\n"
    )


def test_a_page_that_was_saved_meanwhile_is_left_alone(tmp_path: Path) -> None:
    report = checked(tmp_path, PAGE)
    page = tmp_path / "page.py"
    (fix,) = fixes(report.findings, tmp_path)
    page.write_text("# new\n" + PAGE)
    with pytest.raises(ChangedError, match=r"page\.py was saved while it was checked; nothing was changed in it"):
        fix.apply()
    with pytest.raises(ChangedError, match=r"page\.py:\d+ was saved while it was checked"):
        list(fixes(report.findings, tmp_path))
    assert page.read_text() == "# new\n" + PAGE


def test_a_link_to_a_page_stays_a_link(tmp_path: Path) -> None:
    report = checked(tmp_path, PAGE)
    (tmp_path / "page.py").rename(tmp_path / "real.py")
    os.symlink("real.py", tmp_path / "page.py")
    (fix,) = fixes(report.findings, tmp_path)
    fix.apply()
    assert (tmp_path / "page.py").is_symlink()
    assert "55%" in (tmp_path / "real.py").read_text()


def test_nothing_is_changed_on_a_page_whose_code_fails(tmp_path: Path) -> None:
    report = checked(tmp_path, "# %%\nn = 3\n\n# %% [markdown]\n# It is 4<!--== n -->.\n\n# %%\n1 / 0\n")
    assert list(fixes(report.findings, tmp_path)) == []
