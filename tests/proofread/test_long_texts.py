"""What it takes to read a text grows as the text does, whatever stands in it: nothing opens a search to the text's end.

The texts are so long that what grew by the square would take many minutes, and a process is given one or two.
"""

import subprocess
import sys

import pytest

SIZE = 200_000  # characters
TEXTS = {
    "backticks": "`" * SIZE,
    "runs of backticks of all lengths": "".join("`" * many + " a " for many in range(1, 600)),
    "claims that end nowhere": "<!--= " * (SIZE // 6),
    "figures that end nowhere": "{{ " * (SIZE // 3),
    "braces": "{" * SIZE,
    "underscores": "_" * SIZE,
    "fences in comments that end nowhere": "<!--\n```\n" * (SIZE // 9),
    "waivers of one paragraph": "<!--~ 3: a -->\n" * (SIZE // 15),
    "waivers of many paragraphs": "<!--~ 3: a -->\nhas 3\n\n" * (SIZE // 22),
    "elements that end nowhere": "<code <pre " * (SIZE // 11),
    "formulas": "$x$ " * (SIZE // 4),
    "a link that ends nowhere": "[a](b" + " " * SIZE,
    "figures": "a line has the number 12\n" * (SIZE // 25),
}
READ = """
import sys
from pathlib import Path
from proofread.checks.check import check
check([Path("page.md")], root=Path.cwd(), keep=False)
"""


@pytest.mark.parametrize("name", TEXTS)
def test_a_long_text_is_read(tmp_path, name):
    (tmp_path / "page.md").write_text(TEXTS[name])
    ran = subprocess.run(
        [sys.executable, "-c", READ], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
