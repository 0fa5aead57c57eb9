"""The language model at the end of *learn*: what the page promises of its program."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from unmasked_lessons.teaching import verse

from ..running import python

PAGE = Path(__file__).parents[2] / "docs/learn/generating.py"


@pytest.fixture(scope="module")
def program() -> str:
    """The cell of the page that has a whole model."""
    (cell,) = (cell for cell in PAGE.read_text(encoding="utf-8").split("\n# %%") if "\nclass Model(" in cell)
    return cell.strip() + "\n"


def test_the_language_model_has_sixty_lines(program: str):
    assert len([line for line in program.splitlines() if line.strip()]) <= 60


def test_alone_in_an_empty_folder_it_learns_to_sing_all_ten_verses_and_needs_torch_alone(program: str, tmp_path: Path):
    imports = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Import | ast.ImportFrom)]
    named = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports}
    assert {str(name).partition(".")[0] for name in named} == {"itertools", "torch"}
    (tmp_path / "song.py").write_text(program, encoding="utf-8")
    ran = python("song.py", cwd=tmp_path, OMP_NUM_THREADS="1")  # small matrices are faster so
    assert ran.stdout.split() == " ".join(verse(number) for number in range(10, 0, -1)).split()
