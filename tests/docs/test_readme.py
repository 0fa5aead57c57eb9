"""The README: its picture is drawn from the library, its example runs, and what it names is there.

Where the picture has to change, draw it again: ``python tests/docs/test_readme.py``.
"""

from __future__ import annotations

import doctest
import math
import re
import shlex
import textwrap
import tomllib
from operator import attrgetter
from pathlib import Path

import pytest

import unmasked
import unmasked.exercises
import unmasked.testing
from proofread import cli
from proofread.checks.check import check
from unmasked import __main__ as command
from unmasked import self_attention
from unmasked.embeddings import ship_vectors

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "assets" / "ship.svg"
SENTENCES = ("I must go back to my ship and to my crew", "We process and ship your order")
STYLE = """
text { font: 17px system-ui, sans-serif; text-anchor: middle; fill: #24292f }
.weight { font-size: 13px; fill: #57606a }
.ship { font-weight: 700; fill: #00796b }
.strong { fill: #b3460f; font-weight: 700 }
path { fill: none; stroke: #00897b; stroke-linecap: round }
path.strong { fill: none; stroke: #d9652b }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .weight { fill: #9ea7b3 } .ship { fill: #4db6ac } .strong { fill: #ff9e64 }
  path { stroke: #4db6ac } path.strong { stroke: #ff9e64 }
}"""


def sentence(words: list[str], top: int) -> list[str]:
    """One sentence: an arc from *ship* to every other word, as wide as the weight that *ship* gives it."""
    weights = self_attention(ship_vectors().lookup(words)).weights[words.index("ship")].tolist()
    widths = [9 * len(word) + 26 for word in words]
    centers = [360 - sum(widths) / 2 + sum(widths[:i]) + widths[i] / 2 for i in range(len(words))]
    ship = words.index("ship")
    strongest = max((i for i in range(len(words)) if i != ship), key=lambda i: weights[i])
    base, shapes = top + 128, []
    for i, (word, weight, x) in enumerate(zip(words, weights, centers, strict=True)):
        kind = "ship" if i == ship else "strong" if i == strongest else ""
        if i != ship:
            start, height = centers[ship], 26 + 0.22 * abs(x - centers[ship])
            foot, crest, opacity = base - 18, base - 18 - height, 0.35 + 0.65 * math.sqrt(weight)
            shapes.append(
                f'<path class="{kind}" stroke-width="{60 * weight:.2f}" stroke-opacity="{opacity:.2f}" '
                f'd="M{start:.0f} {foot} C{start:.0f} {crest:.0f} {x:.0f} {crest:.0f} {x:.0f} {foot}"/>'
            )
        shapes.append(f'<text class="{kind}" x="{x:.0f}" y="{base}">{word}</text>')
        shapes.append(f'<text class="weight {kind}" x="{x:.0f}" y="{base + 20}">{weight:.0%}</text>')
    return shapes


def draw() -> str:
    first, second = (text.lower().split() for text in SENTENCES)
    body = "\n".join([*sentence(first, 0), *sentence(second, 132)])
    title = "How much the word ship attends to each word of two sentences"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="70 34 580 246" role="img"><title>{title}</title>'
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def test_the_picture_is_what_the_library_draws():
    assert PICTURE.read_text() == draw(), "draw it again: python tests/docs/test_readme.py"


def test_the_example_of_the_readme_prints_what_it_says():
    (example,) = re.findall(r"```pycon\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    test = doctest.DocTestParser().get_doctest(example, {}, "README.md", "README.md", 0)
    failed, attempted = doctest.DocTestRunner(verbose=False).run(test)
    assert attempted > 0
    assert failed == 0


NAMED = ("README.md", "CONTRIBUTING.md")
MY_ATTENTION = """
from unmasked import CausalSelfAttention

class MyAttention(CausalSelfAttention):
    def __init__(self, embed_dim, num_heads):
        super().__init__(embed_dim, embed_dim, num_heads)
"""


def test_the_versions_of_the_readme_are_those_of_the_project():
    text, project = (ROOT / "README.md").read_text(), tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [f">={version}" for version in re.findall(r"Python (\d[\d.]+)", text)] == [project["requires-python"]]
    assert [f"torch>={version}" for version in re.findall(r"PyTorch, (\d[\d.]+)", text)] == project["dependencies"]
    assert unmasked.__name__ in text


def test_every_name_in_the_readmes_table_is_there():
    table = (ROOT / "README.md").read_text().split("| | |\n| --- | --- |\n")[1].split("\n\n")[0]
    names = re.findall(r"`([a-zA-Z_.]+)`", re.sub(r"`(NaN|is_causal)`", "", table))
    assert len(names) >= 20
    for name in names:
        package = unmasked if not name.startswith("torch.") else __import__("torch")
        assert attrgetter(name.removeprefix("torch."))(package) is not None


LEAKS = "    def forward(self, x):\n        return super().forward(x.flip(1)).flip(1)\n"


@pytest.mark.parametrize(
    ("source", "code"),
    [(MY_ATTENTION, 0), (MY_ATTENTION + LEAKS, 1), (MY_ATTENTION + "        self.d_in = 0\n", 2)],
)
def test_the_doctor_takes_the_readmes_command_and_exits_as_it_says(tmp_path: Path, monkeypatch, source: str, code: int):
    text = (ROOT / "README.md").read_text()
    (said,) = re.findall(r"^\$ python -m unmasked (.+)$", text, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("attention.py").write_text(source)
    assert command.main(shlex.split(said)) == code
    assert re.search(r"exits with 1\b[^.]*if there is a finding", text)


@pytest.mark.parametrize("name", NAMED)
def test_every_file_and_command_that_is_named_is_there(name: str):
    text = (ROOT / name).read_text()
    targets = re.findall(r"\]\(([^)#:]+)[^)]*\)", text)
    targets += re.findall(r"(?<![\w/])((?:docs|src|tests|\.ci)/[\w./]+\w)", text)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target
    for said in re.findall(r"(?:bin/|`)proofread ([a-z]+)([^`\n]*)", text):
        cli._parser().parse_args([said[0], *shlex.split(said[1])])  # which exits where there is no such option
    for chosen in re.findall(r"pytest docs -k (\w+)", text):
        assert list((ROOT / "docs").rglob(f"{chosen}*")), chosen
    for extra in re.findall(r'-e "\.\[(\w+)\]"', text):
        assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_the_page_that_contributing_shows_proofreads_clean_and_notices_a_wrong_figure(tmp_path: Path):
    (shown,) = re.findall(r"    ```py\n(.*?)    ```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    page = tmp_path / "page.py"
    page.write_text(textwrap.dedent(shown))
    assert check([page], root=tmp_path, keep=False).findings == []
    page.write_text(textwrap.dedent(shown).replace("13%", "14%"))
    (finding,) = check([page], root=tmp_path, keep=False).findings
    assert "it says 14%, but row[-1] gives 13%" in str(finding)


if __name__ == "__main__":
    PICTURE.write_text(draw())
