"""The README: its picture is drawn from the library, its example runs, and what it names is there.

Where the picture has to change, draw it again: ``python tests/docs/test_readme.py``.
"""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import textwrap
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest

import unmasked
from proofread import cli
from proofread.checks.check import check
from unmasked_doctor import _command as command
from unmasked_lessons.figures.sentence import Asked, ask

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "assets" / "mouse.svg"
TOP = {"docs", "src", "tests", "mkdocs.yml", "pyproject.toml", "README.md", "CONTRIBUTING.md", "LICENSE",
       "CITATION.cff", ".ci", ".github", ".gitignore", ".pre-commit-config.yaml"}  # fmt: skip
KINDS = {
    *(".py", ".md", ".toml", ".yml", ".yaml", ".json", ".cff", ".txt", ".u8", ".typed", ".gitignore", ".gitattributes"),
    *(".html", ".css", ".js", ".svg", ".j2", ".sh", "run", "LICENSE"),
}
SENTENCES = ("computer mouse software", "cat dog mouse")
NAMED_NEAREST = 3  # words
WIDTH, HEIGHT = 500, 245
STYLE = """
text { font: 16px system-ui, sans-serif; text-anchor: middle; fill: #24292f }
.said { font-size: 14px; fill: #57606a }
.word { font-weight: 700; fill: #00796b }
.strong { fill: #b3460f; font-weight: 700 }
path { fill: none; stroke: #00897b; stroke-linecap: round }
path.strong { fill: none; stroke: #d9652b }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .said { fill: #9ea7b3 } .word { fill: #4db6ac } .strong { fill: #ff9e64 }
  path { stroke: #4db6ac } path.strong { stroke: #ff9e64 }
}"""


def text(x: float, y: float, said: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}">{said}</text>'


def sentence(asked: Asked, middle: float) -> list[str]:
    """One sentence: an arc from the word to every other one, as wide as its weight; and what the word is near to."""
    widths = [10 * len(word) + 16 for word in asked.words]
    centers = [middle - sum(widths) / 2 + sum(widths[:i]) + widths[i] / 2 for i in range(len(widths))]
    shapes = []
    for i, (word, weight, x) in enumerate(zip(asked.words, asked.row, centers, strict=True)):
        kind = "word" if i == asked.start else "strong" if word == asked.neighbor else ""
        if i != asked.start:
            start, crest = centers[asked.start], 90 - 0.6 * abs(x - centers[asked.start])
            d = f"M{start:.0f} 122 C{start:.0f} {crest:.0f} {x:.0f} {crest:.0f} {x:.0f} 122"
            shapes.append(f'<path class="{kind}" stroke-width="{40 * weight:.2f}" stroke-opacity="0.7" d="{d}"/>')
        shapes += [text(x, 142, word, kind), text(x, 162, f"{weight:.0%}", f"said {kind}")]
    after = ", ".join(asked.near[asked.start][1][:NAMED_NEAREST])
    return [*shapes, text(middle, 202, "now it is near to", "said"), text(middle, 226, after, "strong")]


def draw() -> str:
    first, second = ask("mouse", *SENTENCES)
    before = ", ".join(first.near[first.start][0])
    looked_up = text(WIDTH / 2, 22, f"looked up, <tspan class='word'>mouse</tspan> is near to {before}", "said")
    body = "\n".join([looked_up, *sentence(first, 0.28 * WIDTH), *sentence(second, 0.77 * WIDTH)])
    title = "What the word mouse takes from its neighbors, and what it is then near to"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{title}</title>'
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def test_the_picture_is_what_the_library_draws():
    assert PICTURE.read_text() == draw(), "draw it again: python tests/docs/test_readme.py"
    sized = f'src="assets/mouse.svg" width="{WIDTH}" height="{HEIGHT}"'
    assert sized in (ROOT / "docs/index.py").read_text(), "home keeps room for the picture"


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
        package = name.partition(".")[0] if name.startswith(("torch.", "unmasked_")) else "unmasked"
        assert resolve_name(f"{package}.{name.removeprefix(f'{package}.')}") is not None


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
    assert re.search(r"exits with 1\b[^.]*if a promise is broken", text)


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


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository: clone it instead of copying its files")
def test_the_repository_holds_sources_alone_and_its_top_what_belongs_there():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    files = [Path(name) for name in listed.stdout.decode().split("\0") if name and (ROOT / name).exists()]
    assert {file.parts[0] for file in files} == TOP
    assert {file.suffix or file.name for file in files} <= KINDS, "built, or of somebody else"


if __name__ == "__main__":
    PICTURE.write_text(draw())
