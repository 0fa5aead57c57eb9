"""What a docstring says and its source does not is a finding."""

from pathlib import Path

import pytest

from proofread.checks import docstrings
from proofread.keep.shelf import Shelf
from proofread.settings import Settings

from .conftest import Project

MODULE = '''
"""Rivers."""

raise ImportError("it is never imported")

BANKS = 2


class Boat:
    """A boat, whose ``crew`` is 2 by default.

    Args:
        width: In meters.
        crew: Who rows.
    """

    width: float
    crew: int = 2


def cross(boats, banks=BANKS, *, speed=0.5, name="Styx", guests=None):
    """Cross a river of 5 banks, and be at the ``fjord``.

    The default of ``banks`` is 2.

    Args:
        boats: The fleet.
        banks: How many; 2 by default.
        speed: By default 0.5, in knots.
        name: Default: "Styx".
        guests: As many as boats by default.

    Raises:
        ValueError: No boats.
        Wreck: A storm.

    >>> cross(1)
    2
    """
    guests = boats if guests is None else guests
    return _checked(boats) * banks


def _checked(boats):
    if not boats:
        raise Empty("boats is none")
    raise _wrecked(boats)


def _wrecked(boats) -> Wreck:
    """An error."""


Empty = ValueError


class Wreck(Exception):
    """A wreck."""
'''


def said(root: Path, module: str) -> list[str]:
    (root / "rivers").mkdir(exist_ok=True)
    (root / "rivers/__init__.py").write_text(module.lstrip())
    return [str(finding) for finding in docstrings.faults(["rivers"], root, None)]


def test_what_is_true_is_no_finding(tmp_path: Path):
    assert said(tmp_path, MODULE) == []


LIES = [
    ("``crew`` is 2", "``crew`` is 4", "crew is 4 by default there, and 2 in the signature"),
    ("crew: Who", "cox: Who", "Boat: it documents the parameter cox, and takes width, crew"),
    ("of ``banks`` is 2", "of ``banks`` is 0.5", "banks is 0.5 by default there, and BANKS in the signature"),
    ("many; 2 by", "many; 1 by", "banks is 1 by default there, and BANKS in the signature"),
    ("BANKS = 2", "BANKS = 3", "banks is 2 by default there, and BANKS in the signature"),
    ("default 0.5, in", "default 0.25, in", "speed is 0.25 by default there, and 0.5 in the signature"),
    ('Default: "Styx"', 'Default: "Acheron"', "name is \"Acheron\" by default there, and 'Styx' in the signature"),
    ("many as boats by", "many as banks by", "guests is banks by default there, and None in the signature"),
    ("fleet.", "fleet; none by default.", "boats is none by default there, and required in the signature"),
    ("        banks: How", "        shores: How", "it documents the parameter shores, and takes boats, banks, speed"),
    ("        banks: How many; 2 by default.\n", "", "it takes banks, which Args does not document"),
    ("        boats: The fleet.\n        banks: How many; 2 by default.\n",
     "        banks: How many; 2 by default.\n        boats: The fleet.\n", "Args are in another order than"),
    ("ValueError: No", "TypeError: No", "nor what it calls raises TypeError; raised there: Empty, Wreck"),
    ("Empty = ValueError", "Empty = KeyError", "nor what it calls raises ValueError; raised there: Empty, Wreck"),
]  # fmt: skip


@pytest.mark.parametrize(("truth", "lie", "told"), LIES, ids=[f"{truth} {lie}" for truth, lie, _ in LIES])
def test_a_lie_is_a_finding_that_names_it(tmp_path: Path, truth: str, lie: str, told: str):
    assert MODULE.count(truth) >= 1
    found = said(tmp_path, MODULE.replace(truth, lie, 1))
    assert found
    assert any(told in each for each in found), found


NUMPYDOC = """
import numpy as np
from decimal import Decimal


def value(rate, nper, *args, when="end", guess=None, tol=0.5, **options):
    r'''
    Compute the value with 12 steps; as [3]_ has it.

    .. versionchanged:: 1.2
        The default of ``tol`` was 0.7.

    Parameters
    ----------
    rate, nper : scalar or array_like of shape(M, )
        In percent, an array_like (M, N).
    *args
        Others.
    when : {{'begin', 1}, {'end', 0}}, optional
        At the beginning (`when` = {'begin', 1}) or 'end' (0).

    Other Parameters
    ----------------
    guess : float, optional, default 0.1
        First guess.
    tol : float
        Tolerance (default = 0.5). An edge without weight defaults to 1.
    \\\\*\\\\*options
        Others.

    Returns
    -------
    value_out : ndarray
        An ``ndarray``.

    Raises
    ------
    ValueError
        If it is wrong.

    Examples
    --------
    >>> value(1, 2)
    '''
    options[rate, "value"]
    if guess is None:
        guess = Decimal("0.1")
    raise ValueError
"""


@pytest.mark.parametrize(
    ("truth", "lie", "told"),
    [
        ("", "", ""),
        ("rate, nper :", "rate, npr :", "value: it takes nper, which Parameters does not document"),
        ("rate, nper :", "rate :", "value: it takes nper, which Parameters does not document"),
        ("rate, nper :", "nper, rate :", ""),
        ("default 0.1", "default 0.2", "value: guess is 0.2 by default there, and None in the signature"),
        ("(default = 0.5)", "(default = 0.6)", "value: tol is 0.6 by default there, and 0.5 in the signature"),
        ("    ValueError\n", "    TypeError\n", "value: neither it nor what it calls raises TypeError"),
    ],
)
def test_a_docstring_in_numpydocs_style_is_read_like_googles(tmp_path: Path, truth: str, lie: str, told: str):
    module = NUMPYDOC.replace("\\\\", "\\")
    assert truth in module
    found = said(tmp_path, module.replace(truth, lie, 1))
    assert told in "\n".join(found) if told else found == []


@pytest.mark.parametrize(
    ("held", "kinds"), [("off", []), ("equations", ["equation"]), ("check", ["equation", "docstring"])]
)
def test_a_project_says_what_of_its_docstrings_is_held(project: Project, held: str, kinds: list[str]):
    module = 'def cross(boats):\n    """See equation (7.7); ``boats`` is 2 by default."""\n'
    project.write("rivers/__init__.py", module)
    settings = Settings(packages=("rivers",), docstrings=held)
    report = project.proofread("# A page\n", "page.md", settings=settings, whole=True)
    assert sorted(kinds) == sorted(finding.kind for finding in report.findings)


def test_the_finding_stands_on_the_line_of_what_it_names(tmp_path: Path):
    module = MODULE.replace("many; 2 by", "many; 1 by").lstrip()
    (found,) = said(tmp_path, module)
    line = next(number for number, text in enumerate(module.split("\n"), 1) if "many; 1 by" in text)
    assert found.startswith(f"rivers/__init__.py:{line}: cross: ")


def test_checking_pages_tells_of_docstrings_and_keeps_what_it_found(
    tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch
):
    assert said(tmp_path, MODULE.replace("many; 2 by", "many; 1 by").replace("Wreck: A", "Reef: A"))
    settings = Settings(packages=("rivers",))
    first, again = (project.proofread("# A page\n", "page.md", keep=True, settings=settings) for _ in range(2))
    assert [*map(str, first.findings)] == [*map(str, again.findings)]
    assert [finding.kind for finding in first.findings] == ["docstring", "docstring"]
    monkeypatch.setattr(docstrings.Package, "read", lambda *_: pytest.fail("it was read again"))
    shelf = Shelf(tmp_path / Settings().cache)
    assert len(list(docstrings.faults(["rivers"], tmp_path, shelf))) == 2


def test_packages_from_elsewhere_are_left_to_others(tmp_path: Path):
    assert list(docstrings.faults(["json"], tmp_path, None)) == []


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            b'"""Ours."""\n# caf\xe9\n',
            "2: its docstrings cannot be read: byte 0xe9 is not utf-8; save the file as UTF-8",
        ),
        (b'"""Ours.\0"""\n', "1: its docstrings cannot be read: source code "),  # cannot contain null bytes
        (b'"""Ours."""\n\nclass\n', "3: its docstrings cannot be read: invalid syntax"),
        (b"x = " + b"-" * 5000 + b"1\n", "1: its docstrings cannot be read: it is nested more than 150 deep"),
        (b'# -*- coding: latin-1 -*-\n"""caf\xe9"""\n', None),
        (b'\xef\xbb\xbf"""Ours."""\r\n', None),
    ],
)
def test_a_source_that_cannot_be_read_is_told_with_its_line(project: Project, source: bytes, told: str | None) -> None:
    project.write("ours/good.py", '"""Ours."""\n')
    (project.root / "ours/other.py").write_bytes(source)
    project.write("page.py", "# %%\nprint(1)\n")
    report = project.check(settings=Settings(packages=("ours",)), keep=False)
    found = [str(finding) for finding in report.findings]
    assert [each.startswith(f"ours/other.py:{told}") for each in found] == [True] * bool(told), found
