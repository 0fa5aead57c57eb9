"""A project that has nothing to do with ours, with its own package, layout and theme: all of proofread works there."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOREIGN = Path(__file__).parent / "foreign"


class Project:
    def __init__(self, root: Path):
        self.root = root
        blocker = "import sys\nsys.modules['unmasked'] = None\n"  # whoever imports it gets an ImportError
        (root / "source/sitecustomize.py").write_text(blocker)

    def run(self, *arguments: str, code: int = 0) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        environment |= {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # where text is ASCII
        told = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=self.root,
            env=environment | {"PYTHONPATH": str(self.root / "source")},
            text=True,
            capture_output=True,
            check=False,
        )
        assert told.returncode == code, told.stdout + told.stderr
        return told.stdout

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text()
        assert old in text
        (self.root / name).write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("foreign") / "ohm"
    shutil.copytree(FOREIGN, root)
    return Project(root)


def test_it_checks_clean_and_its_pages_are_tests(project: Project) -> None:
    report = json.loads(project.run("proofread", "check", "manual", "--json"))
    assert report["findings"] == []
    assert [page["path"] for page in report["pages"]] == [
        "manual/guide/circuit.py",
        "manual/guide/series.py",
        "manual/index.md",
    ]
    assert re.search(r"\n\d+ passed in", project.run("pytest", "manual", "-q", "--color=no"))


def test_its_site_is_built_with_cells_figures_formulas_and_links(project: Project) -> None:
    project.run("mkdocs", "build")
    circuit = (project.root / "site/guide/circuit/index.html").read_text()
    assert "(1.5, 3.0)" in circuit
    assert "drive <p-f>1.5</p-f> amperes" in circuit
    assert 'id="eq-1"' in circuit
    home = (project.root / "site/index.html").read_text()
    assert "draws\n<p-f>0.435</p-f> amperes" in home
    assert 'href="guide/circuit/"' in home


def test_its_programs_import_its_package(project: Project) -> None:
    program = project.run("proofread", "snippet", "manual/guide/series.py:10")
    assert "from ohm" in program
    environment = os.environ | {"PYTHONPATH": str(project.root / "source")}
    told = subprocess.run([sys.executable, "-c", program], env=environment, text=True, capture_output=True, check=True)
    assert told.stdout == "(20.0, 5.0)\n"


def test_a_change_of_its_package_is_seen_where_it_is_imported(project: Project) -> None:
    project.edit("source/ohm/laws.py", "return sum(resistances)", "return 2 * sum(resistances)")
    report = json.loads(project.run("proofread", "check", "manual", "--json", code=1))
    assert [(page["path"], page["why"]) for page in report["pages"]] == [
        ("manual/guide/circuit.py", "source/ohm/laws.py changed"),
        ("manual/guide/series.py", "source/ohm/laws.py changed"),
        ("manual/index.md", "source/ohm/laws.py changed"),
    ]
    (finding,) = report["findings"]
    assert finding["path"] == "manual/guide/series.py"
    assert finding["message"] == "it says 20, but one_after_the_other gives 40"
    project.edit("source/ohm/laws.py", "return 2 * sum(resistances)", "return sum(resistances)")
