"""Keeps the products of a build, so that the next one need not make them again."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .environment import environment, sources
from .files import folder_of, seal, sha, unsealed, write
from .installed import EVERYTHING, installed

_KEPT = 3  # versions of a thing: those of the branches that a writer goes to and fro between


class Shelf:
    """Things on disk, a folder for each and a file for each version of it.

    A thing is known by all that it was made of, which the caller names in full, by the environment that a run is known
    by, by all that is installed, and by all of proofread.
    """

    def __init__(self, directory: Path):
        self._directory = directory / "made"

    def made(self, name: str, of: Any, make: Callable[..., Any], **ask: Callable[[str], str]) -> Any:
        """Return the result of `make`, or the kept one that was made of the same.

        Args:
            name: The name of the thing.
            of: All that it is made of, as JSON knows it.
            make: Makes it, of what JSON knows too.
            ask: Functions that `make` may call while it works. Its questions and their answers are kept: the thing is
                made anew as soon as one answer is another.
        """
        known = environment() | installed([EVERYTHING])
        of_all = json.dumps([name, of, known, sources("**/*.py", "**/*.j2")], sort_keys=True)
        folder = self._directory / folder_of(name)
        file = folder / f"{sha(of_all)[:32]}.json"
        with suppress(OSError, ValueError, TypeError, KeyError):  # there is none, or none that we wrote
            kept = json.loads(unsealed(file))
            if all(ask[who](question) == answer for who, question, answer in kept["answers"]):
                return kept["made"]
        answers: list[tuple[str, str, str]] = []

        def noted(who: str) -> Callable[[str], str]:
            def asked(question: str) -> str:
                answer = ask[who](question)
                answers.append((who, question, answer))
                return answer

            return asked

        made = make(**{who: noted(who) for who in ask})
        with suppress(OSError):  # a build that cannot keep it has it all the same
            write(file, seal(json.dumps({"answers": answers, "made": made}).encode()))
            for old in sorted({*folder.glob("*.json")} - {file}, key=_time, reverse=True)[_KEPT - 1 :]:
                old.unlink(missing_ok=True)
        return made


def prune(directory: Path, every: bool) -> int:
    """Remove what was made and is not the latest of its kind, or all of it; returns how many bytes that freed."""
    freed = 0
    for folder in (directory / "made").glob("*"):
        versions = sorted(folder.glob("*.json"), key=_time, reverse=True)
        for file in versions if every else versions[1:]:
            with suppress(OSError):
                size = file.stat().st_size
                file.unlink()
                freed += size
        with suppress(OSError):
            folder.rmdir()
    return freed


def _time(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:  # another program has removed it
        return 0.0
