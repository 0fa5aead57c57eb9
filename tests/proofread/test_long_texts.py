"""What it takes to read a text grows as the text does, whatever stands in it: nothing opens a search to the text's end.

The texts are so long that what grew by the square would take many minutes, and a process is given one or two.
"""

import subprocess
import sys

import pytest

from proofread.pages.conditions import is_fixed
from proofread.settings import Settings, SettingsError

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
    "figures on one line": "has the number 12 " * (SIZE // 18),
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


N = 5_000
DEEP = "it is nested more than 150 deep; let statements compute its parts, one after another"
MUCH = "characters, and 2,000 are the most; let a cell compute it, and give its name"
# What a page has in place of n, once in its prose and once in a claim, and what is said of that.
LARGE = {
    "sums": ("n" + " + n" * N, MUCH),
    "members": ("n" + ".real" * N, MUCH),
    "minuses": ("-" * N + "n", MUCH),
    "brackets": ("(" * N + "n" + ")" * N, MUCH),
    "comparisons": ("n" + " <= n" * N, MUCH),
    "conditions": (" and ".join(["n"] * N), MUCH),
    "digits": (f"n + {'1' * N}", MUCH),
    "few sums": ("n" + " + n" * 200, DEEP),
    "few minuses": ("-" * 200 + "n", DEEP),
    "few lists": ("[" * 160 + "n" + "]" * 160, DEEP),
    "a huge number": (
        "n + 10**5000",
        "bits, and 1,023 are the most that a page can say; give its logarithm, or a quotient",
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_what_is_too_long_too_deep_or_too_large_is_told_with_the_remedy(proofread, name):
    code, told = LARGE[name]
    page = f"# %%\nn = 3\n\n# %% [markdown]\n# It is 3<!--= {code} --> or {{{{ {code} }}}}.\n\n# %% tags=['claims']\n"
    findings = proofread(f"{page}assert {code} != 4, 'It is'\n").findings
    assert [finding.line for finding in findings[:2]] == [5, 5]
    assert told in findings[0].message
    assert all(len(finding.message) < 1_100 for finding in findings)


def test_a_cell_that_is_too_deep_fails_as_it_does_in_python(proofread):
    code = f"n = 3{' + 0' * 20_000}\n"
    findings = proofread(f"# %%\n{code}").findings
    try:
        exec(code, {})
    except RecursionError:  # until Python 3.14, which takes more
        (finding,) = findings
        assert finding.message.startswith("cell 1 failed with RecursionError: maximum recursion depth exceeded")
    else:
        assert findings == []
    assert proofread(f"# %%\nn = 3{' + 0' * 300}\nprint(n)\n").findings == []


NESTED = {
    "conditions": "(n and 1 < " * 40 + "n" + ")" * 40,
    "choices": "(n if 1 < n else 1 < " * 30 + "n" + ")" * 30,
    "comprehensions": "len([" * 30 + "n" + " for x in m])" * 30,
    "comparisons": "n" + " <= n" * 390,
}


@pytest.mark.parametrize("name", NESTED)
def test_a_condition_that_is_nested_takes_no_longer_than_it_is_long(name):
    is_fixed(NESTED[name], True)


def test_wrong_figures_beside_those_that_are_waived_take_no_longer_than_they_are_many(proofread):
    page = "# %%\nn = 3\n\n# %% [markdown]\n" + "# It is 4<!--= n --> of 8<!--~ a bound -->.\n#\n" * 1_500
    findings = proofread(page).findings
    assert len(findings) == 1_500
    assert all("its sentence has 8, too" in finding.message for finding in findings)


def test_a_number_with_a_huge_exponent_is_no_number(proofread):
    (finding,) = proofread("# %%\nn = 3\n\n# %% [markdown]\n# It is 1e999999999<!--= n -->.\n").findings
    assert finding.message == "it says 1e999999999, but n gives 3"


def test_settings_that_are_too_deep_are_none(tmp_path):
    (tmp_path / "pyproject.toml").write_text("x = " + "[" * 100_000)
    with pytest.raises(SettingsError, match=r"pyproject.toml is not TOML: "):
        Settings.load(tmp_path)
