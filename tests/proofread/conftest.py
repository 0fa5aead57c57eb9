import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from proofread.checks.check import check
from proofread.checks.checked import Report
from proofread.runs.server import warm

Proofreader = Callable[..., Report]


@pytest.fixture(scope="session", autouse=True)
def server() -> None:
    """One server, that has all: else it would have what the first test's project names, and later pages would wait."""
    warm()


@pytest.fixture
def proofread(tmp_path: Path) -> Proofreader:
    """Proofread pages given as text; the first is page.py or the name given."""

    def run(text: str, name: str = "page.py", **options: object) -> Report:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))
        options.setdefault("keep", False)
        return check([path], root=tmp_path, **options)

    return run
