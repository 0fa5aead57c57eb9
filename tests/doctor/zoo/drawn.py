"""Which strangers a run judges: a third, which the doctor's sources draw, and those of files that changed; or all.

`ZOO=all` judges all, as does a checkout that does not tell what its last commit changed.
"""

import os
import re
from pathlib import Path, PurePosixPath
from types import ModuleType

import unmasked_doctor

from ...drawn import changed, digest_of, is_drawn

ZOO = Path(__file__).parent
# What changes all that the zoo holds the doctor to.
OF_ALL = {"cases", "drawn", "test_zoo"}


def sources() -> str:
    """A digest of the doctor, so that each change of it draws anew and every machine draws the same."""
    return digest_of(Path(unmasked_doctor.__path__[0]).rglob("*.py"))


def new() -> set[str] | None:
    """The stems of the zoo's files that are not as before the last commit, or None where nobody knows."""
    files = changed()
    ours = ("tests/doctor/zoo/", "tests/doctor/test_zoo.py")
    return None if files is None else {PurePosixPath(file).stem for file in files if file.startswith(ours)}


def behind(stem: str) -> set[str]:
    """A file of the zoo, and those that it takes from."""
    taken = re.findall(r"(?m)^from \.(\w+) import", (ZOO / f"{stem}.py").read_text(encoding="utf-8"))
    return {stem}.union(*map(behind, taken))


def judged(families: tuple[ModuleType, ...], digest: str, new: set[str] | None) -> set[str]:
    """The names of the strangers to judge, by the digest of the doctor and the files that changed."""
    if new is None or new & OF_ALL:
        return {case.name for family in families for case in family.CASES}
    names = set()
    for family in families:
        is_new = bool(new & behind(family.__name__.rpartition(".")[2]))
        names |= {case.name for case in family.CASES if is_new or is_drawn(case.name, digest)}
    return names


def by_this_run(families: tuple[ModuleType, ...]) -> set[str]:
    return judged(families, sources(), None if os.environ.get("ZOO") == "all" else new())
