"""Which cases of a test that has many alike are tried: a third, drawn by the sources, and those that changed.

Each change of the packages or the pages draws anew, and the same checkout draws the same on every machine: what failed
fails again. All cases are tried where WEEKLY is "all", and where a run names tests, as by `-k`.

``python -m tests.drawn docs`` prints the pages of a folder that a run tries, for the command line.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
ALL = os.environ.get("WEEKLY") == "all"


def digest_of(files: Iterable[Path]) -> str:
    texts = (file.read_bytes().replace(b"\r\n", b"\n") for file in sorted(files))
    return hashlib.sha256(b"\n".join(texts)).hexdigest()


def is_drawn(name: str, digest: str) -> bool:
    """Whether a case is among the third that a digest draws."""
    return hashlib.sha256(f"{digest} {name}".encode()).digest()[0] % 3 == 0


@cache
def changed() -> frozenset[str] | None:
    """The files that are not as before the last commit, as seen from the root, or None where nobody knows."""
    files: set[str] = set()
    for told in ("diff --name-only HEAD~1 --", "ls-files --others --exclude-standard"):
        try:
            done = subprocess.run(["git", *told.split()], cwd=ROOT, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        files |= {*done.stdout.splitlines()}
    return frozenset(files)


@cache
def _sources() -> str:
    files = (file for folder in ("src", "docs") for file in (ROOT / folder).rglob("*"))
    return digest_of(file for file in files if file.suffix in (".py", ".md", ".js", ".css"))


def is_tried(name: str, *files: str) -> bool:
    """Whether this run tries a case, which files, or folders, as seen from the root, may have made another one."""
    new = changed()
    if ALL or new is None or is_drawn(name, _sources()):
        return True
    return any(PurePosixPath(each).is_relative_to(file) for each in new for file in files)


if __name__ == "__main__":
    from proofread.pages.page import find_pages

    names = (page.relative_to(ROOT).as_posix() for page in find_pages([ROOT / sys.argv[1]]))
    print(*(name for name in names if is_tried(name, name)))
