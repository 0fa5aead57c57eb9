"""Tables of Markdown: their figures are held one by one, waived by name, or waived with all of the table."""

import pytest

from proofread.pages.prose import read

TABLE = """
| planet | mass | year |
| --- | --- | --- |
| Ceres 1 | 0.5 | 1801 |
| Eris 2 | *0.25* | `2005` |
""".lstrip()


@pytest.mark.parametrize(
    ("text", "problem", "bare"),
    [
        (f"<!--~ table: as published -->\n{TABLE}", "", 0),
        (f"<!--~ table: as published -->\n\n{TABLE}", "", 0),
        (f"<!--~ table: as published -->\n\n{TABLE}\nAnd 3 more.", "", 1),
        (f"<!--~ 0.5, 0.25: measured -->\n{TABLE}", "", 4),
        (f"<!--~ as published -->\n{TABLE}", "or waive a whole table, <!--~ table: as published -->", 6),
        ("<!--~ table: as published -->\n| a |\n| - |\n| b |\n\nText 5", "covers no value; remove it", 1),
        ("Text 5 <!--~ table: as published -->", "must directly follow", 1),
    ],
)
def test_a_table_is_waived_as_a_whole_or_by_its_figures(text: str, problem: str, bare: int) -> None:
    prose = read(text)
    assert len([*prose.bare("")]) == bare
    assert [problem in message for _, message in prose.problems] == [True] * bool(problem)
