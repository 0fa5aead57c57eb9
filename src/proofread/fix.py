"""Puts right the figures that an author typed: the value takes the form in which they typed it.

A claim in words that does not hold is never touched: which of the two is wrong, the word or the code,
only a person knows.
"""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .cache import write
from .findings import Edit, Finding


class ChangedError(OSError):
    """A file is no longer what was checked."""


@dataclass(frozen=True)
class Fix:
    """The edits of one file, which turn its text `before` into `after`."""

    file: Path
    path: str
    edits: tuple[Edit, ...]
    before: bytes
    after: bytes

    def diff(self) -> str:
        """The change as a unified diff."""
        before, after = (text.decode().splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(difflib.unified_diff(before, after, f"a/{self.path}", f"b/{self.path}"))

    def apply(self) -> None:
        """Write the file anew, in one step; its mode stays.

        Raises:
            ChangedError: It has changed since it was read.
        """
        if self.file.read_bytes() != self.before:
            raise ChangedError(f"{self.path} was saved while it was checked; nothing was changed in it, fix it again")
        mode = self.file.stat().st_mode
        write(self.file.resolve(), self.after, mode)


def fixes(findings: Iterable[Finding], root: Path) -> Iterator[Fix]:
    """What would mend the findings, file by file.

    Raises:
        ChangedError: A file is no longer what was checked.
    """
    by_path: dict[str, list[Edit]] = {}
    for finding in findings:
        if finding.edit is not None and finding.edit not in by_path.setdefault(finding.path, []):
            by_path[finding.path].append(finding.edit)
    for path, edits in by_path.items():
        file = root / path
        before = file.read_bytes()
        yield Fix(file, path, tuple(sorted(edits, key=lambda e: e.start)), before, _edited(path, before, edits))


def _edited(path: str, before: bytes, edits: Iterable[Edit]) -> bytes:
    lines = before.decode().split("\n")  # a carriage return stays where it is
    for edit in sorted(edits, key=lambda e: e.start, reverse=True):
        (number, start), (_, end) = edit.start, edit.end
        line = lines[number - 1] if number <= len(lines) else ""
        if line[start:end] != edit.old:
            raise ChangedError(
                f"{path}:{number} was saved while it was checked; nothing was changed in it, fix it again"
            )
        lines[number - 1] = line[:start] + edit.new + line[end:]
    return "\n".join(lines).encode()
