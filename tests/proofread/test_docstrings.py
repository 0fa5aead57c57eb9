"""What a docstring says and its source does not is a finding."""

import re
from pathlib import Path

import pytest

from proofread.checks import docstrings
from proofread.checks.check import check
from proofread.keep.shelf import Shelf
from proofread.settings import Settings

MODULE = '''
"""Rivers; a boat is 3 m wide.

>>> cross(1) * 3
6
"""

import json
from typing import NamedTuple

raise ImportError("it is never imported")


class Boat(NamedTuple):
    """A boat.

    Attributes:
        width: In meters.
        crew: Who rows; ``crew`` is 2 by default.

    >>> Boat(3.0).crew
    2
    """

    width: float
    crew: int = 2


def moored(boats: Int[Array, "rivers boats"]) -> Float[Array, "rivers"]:
    """Count what `rivers.Boat.width` and `Boat.crew` say, and `json.dumps` writes.

    Args:
        boats: int, (rivers, boats).

    Returns:
        floating, (..., rivers).
    """
    return _checked(boats)


def cross(boats, banks=2, *, speed=0.5, name="Styx", guests=None):
    """Cross a river of 2 banks, and be at the other in 0.33 hours; see section 3.2 (1997) of the 16-bit book.

    The default of ``banks`` is 2. With ``speed=0.5`` it is slow.

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
    >>> 1 / 3  # or 0.4
    0.3333333333333333
    """
    guests = boats if guests is None else guests
    return _checked(boats) * banks


def _checked(boats):
    if not boats:
        raise ValueError("boats is none")
    raise _wrecked(boats)


def _wrecked(boats) -> Wreck:
    """An error.

    References:
        The 39 Steps.
    """


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
    ("is 3 m", "is 4 m", "__init__: nothing proves the figure 4: print it in a doctest there, or waive it, 4<!--~"),
    ("crew: Who", "cox: Who", "Boat: it lists the attribute cox, which the class has not"),
    ("``crew`` is 2", "``crew`` is 4", "nothing proves the figure 4"),
    ("boats: int,", "boats: bool,", "moored: boats is bool, there, and Int in the annotation"),
    ("(rivers, boats).", "(boats, rivers).", 'boats is (boats, rivers) there, and "rivers boats" in the annotation'),
    ("(rivers, boats).", "(river * 2, boats).", "nothing in the package is called river"),
    ("(..., rivers)", "(..., boats)", 'what it returns is (..., boats) there, and "rivers" in the annotation'),
    ("floating, (", "bool, (", "what it returns is bool, there, and Float in the annotation"),
    ("`rivers.Boat.width`", "`rivers.Boat.widths`", "there is no rivers.Boat.widths"),
    ("`rivers.Boat.width`", "`rivers.Ship`", "there is no rivers.Ship"),
    ("`Boat.crew`", "`Boat.mast`", "there is no Boat.mast"),
    ("`json.dumps`", "`json.dumpy`", "there is no json.dumpy"),
    ("``banks`` is", "``bonks`` is", "bonks is no name of rivers, nor of Python"),
    ("see section", "see is_wide, section", "is_wide is no name of rivers, nor of Python"),
    ("of ``banks`` is 2", "of ``banks`` is 0.5", "banks is 0.5 by default there, and 2 in the signature"),
    ("many; 2 by", "many; 1 by", "banks is 1 by default there, and 2 in the signature"),
    ("default 0.5, in", "default 0.25, in", "speed is 0.25 by default there, and 0.5 in the signature"),
    ('Default: "Styx"', 'Default: "Acheron"', "name is \"Acheron\" by default there, and 'Styx' in the signature"),
    ("many as boats by", "many as banks by", "guests is banks by default there, and None in the signature"),
    ("fleet.", "fleet; none by default.", "boats is none by default there, and required in the signature"),
    ("``speed=0.5``", "``speed=0.7``", "nothing proves the figure speed=0.7"),
    ("        banks: How", "        shores: How", "it documents the parameter shores, and takes boats, banks, speed"),
    ("        banks: How many; 2 by default.\n", "", "it takes banks, which Args does not document"),
    ("        boats: The fleet.\n        banks: How many; 2 by default.\n",
     "        banks: How many; 2 by default.\n        boats: The fleet.\n", "Args are in another order than"),
    ("ValueError: No", "TypeError: No", "nor what it calls raises TypeError; raised there: ValueError, Wreck"),
    ("of 2 banks", "of 5 banks", "nothing proves the figure 5"),
    ("0.33 hours", "0.34 hours", "nothing proves the figure 0.34"),
    ("0.33 hours", "0.4 hours", "nothing proves the figure 0.4"),
    ("0.33 hours", "7<!--= banks --> hours", "banks is evaluated on pages alone; print it in a doctest"),
]  # fmt: skip


@pytest.mark.parametrize(("truth", "lie", "told"), LIES, ids=[f"{truth} {lie}" for truth, lie, _ in LIES])
def test_a_lie_is_a_finding_that_names_it(tmp_path: Path, truth: str, lie: str, told: str):
    assert MODULE.count(truth) >= 1
    found = said(tmp_path, MODULE.replace(truth, lie, 1))
    assert found
    assert any(told in each for each in found), found


def test_the_finding_stands_on_the_line_of_what_it_names(tmp_path: Path):
    module = MODULE.replace("0.33 hours", "0.34 hours").lstrip()
    (found,) = said(tmp_path, module)
    line = next(number for number, text in enumerate(module.split("\n"), 1) if "0.34" in text)
    assert found.startswith(f"rivers/__init__.py:{line}: cross: ")


def test_a_waiver_waives(tmp_path: Path):
    assert said(tmp_path, MODULE.replace("0.33 hours", "8<!--~ a guess --> hours")) == []


def test_checking_pages_tells_of_docstrings_and_keeps_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert said(tmp_path, MODULE.replace("of 2 banks", "of 5 banks").replace("`json.dumps`", "`json.dumpy`"))
    page = tmp_path / "page.md"
    page.write_text("# A page\n")
    told = [
        [(finding.kind, re.sub(".*: ", "", str(finding).split(";")[0])) for finding in report.findings]
        for report in (check([page], root=tmp_path, settings=Settings(packages=("rivers",))) for _ in range(2))
    ]
    assert told[0] == told[1]
    assert [kind for kind, _ in told[0]] == ["docstring", "docstring"]
    monkeypatch.setattr(docstrings.Package, "read", lambda *_: pytest.fail("it was read again"))
    shelf = Shelf(tmp_path / Settings().cache)
    assert len(list(docstrings.faults(["rivers"], tmp_path, shelf))) == 2


def test_packages_from_elsewhere_are_left_to_others(tmp_path: Path):
    assert list(docstrings.faults(["json"], tmp_path, None)) == []
