"""Puts right the values that an author typed: what the page gave takes the form in which they typed it.

A claim in words that does not hold is never touched: which of the two is wrong, the word or the code,
only a person knows. Nor is a page whose code fails: what its cells gave is no truth to write down.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..keep.files import write
from ..pages.page import BYTE_ORDER_MARK
from .findings import BROKEN, Edit, Finding


class ChangedError(OSError):
    """A file is no longer what was checked, or is not the project's."""


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
        before, after = (re.findall(r"[^\n]*\n|[^\n]+", text.decode()) for text in (self.before, self.after))
        return "".join(difflib.unified_diff(before, after, f"a/{self.path}", f"b/{self.path}"))

    def apply(self) -> None:
        """Write the file anew, in one step; its mode stays. One that has changed since is a ChangedError."""
        if self.file.read_bytes() != self.before:
            raise ChangedError(f"{self.path} was saved while it was checked; nothing was changed in it, fix it again")
        write(self.file.resolve(), self.after, self.file.stat().st_mode)


def fixes(findings: Iterable[Finding], root: Path) -> Iterator[Fix]:
    """Yield the edits that mend the findings, file by file; a ChangedError names a file that cannot be edited."""
    findings = list(findings)
    broken = {finding.path for finding in findings if finding.kind in BROKEN}
    by_path: dict[str, set[Edit]] = {}
    for finding in findings:
        if finding.edit is not None and finding.path not in broken:
            by_path.setdefault(finding.path, set()).add(finding.edit)
    for path, unordered in by_path.items():
        file, edits = root / path, tuple(sorted(unordered, key=lambda edit: edit.start))
        if not file.resolve().is_relative_to(root.resolve()):
            raise ChangedError(f"{path} lies outside of the project {root}; nothing was changed, fix it from its own")
        before = file.read_bytes()
        yield Fix(file, path, edits, before, _edited(path, before, edits))


def _edited(path: str, before: bytes, edits: Sequence[Edit]) -> bytes:
    text = before.decode()
    begins = [text.startswith(BYTE_ORDER_MARK), *(end.end() for end in re.finditer("\n", text))]
    for edit in reversed(edits):
        # A file that has become shorter has no such line, which is no more what was checked than another text there.
        start, end = (begins[line - 1] + at if line <= len(begins) else 0 for line, at in (edit.start, edit.end))
        if text[start:end].replace("\r\n", "\n") != edit.old:
            message = "was saved while it was checked; nothing was changed in it, fix it again"
            raise ChangedError(f"{path}:{edit.start[0]} {message}")
        text = text[:start] + edit.new + text[end:]
    return text.encode()
