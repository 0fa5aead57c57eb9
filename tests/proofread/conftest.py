"""What these tests share: a project in a folder of its own, whose pages are given as text."""

import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from proofread.checks.check import check
from proofread.checks.checked import Checked, Report
from proofread.cli import main
from proofread.runs.server import warm

Proofreader = Callable[..., Report]
Command = Callable[..., tuple[int, str, str]]


class Project:
    """A project in a folder of its own."""

    def __init__(self, root: Path):
        self.root = root

    def write(self, name: str, text: str) -> Path:
        """Write a file, without the indent that its text has in a test."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # From Python 3.14 on, dedent takes the end of an empty line for white space where it is Windows'.
        path.write_bytes((text if "\r" in text else textwrap.dedent(text).lstrip("\n")).encode())
        return path

    def read(self, name: str) -> str:
        return (self.root / name).read_bytes().decode()

    def edit(self, name: str, old: str, new: str) -> None:
        text = self.read(name)
        assert old in text
        self.write(name, text.replace(old, new))

    def check(self, *names: str, **options: object) -> Report:
        """Check pages of these names, or page.py."""
        return check([self.root / name for name in names or ("page.py",)], root=self.root, **options)

    def proofread(self, text: str, name: str = "page.py", **options: object) -> Report:
        """Check a page that is given as text; nothing of its run is kept."""
        self.write(name, text)
        return self.check(name, **{"keep": False} | options)


def found(report: Report | Checked) -> list[str]:
    """What is wrong with a page, by its lines."""
    return [f"{finding.line}: {finding.message}" for finding in report.findings]


def planted(root: Path, sound: str, faults: Iterable[tuple[str, str, str]]) -> list[list[str]]:
    """What is found on a sound page once one of some faults is planted in it; all are checked at once."""
    project, names = Project(root), []
    for number, (right, wrong, _) in enumerate(faults):
        assert right in sound
        names.append(f"{number}/page.py")
        project.write(names[-1], sound.replace(right, wrong, 1))
    return [found(page) for page in project.check(*names, keep=False).pages]


@pytest.fixture(scope="session", autouse=True)
def server() -> None:
    """One server, that has all: else it would have what the first test's project names, and later pages would wait."""
    warm()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def proofread(project: Project) -> Proofreader:
    return project.proofread


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """The command: it gives its exit code, and what it says on stdout and on stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        return main(arguments), *capsys.readouterr()

    return run
