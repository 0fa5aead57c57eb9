"""The settings of a project: the table ``[tool.proofread]`` of its ``pyproject.toml``."""

import multiprocessing
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

# The modes of a page.
MODES = {
    "off": "published as it is: nothing is run, nothing is checked",
    "run": "its cells are run and shown, and nothing that it says is held against them",
    "check": "run, and all that it says is held against what it gave",
}
# The ways to check the docstrings of a project's packages.
DOCSTRINGS = ("off", "equations", "check")
_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class SettingsError(ValueError):
    """A setting that is unknown, or has an invalid value."""


@dataclass(frozen=True)
class Settings:
    """How pages are run and kept."""

    timeout: float = 120.0  # seconds that a cell may take unless it says otherwise (``#| timeout: 300``)
    memory: int = 4 * 2**30  # bytes that the run of a page may take
    output: int = 200_000  # bytes of text that a cell may print
    workers: int | None = None  # pages that run side by side; None for as many as there are cores
    cache: Path = Path(".cache/proofread")  # the folder that keeps runs, relative to the project
    # The packages that the pages document: their docstrings are held, and the equations which these cite are those of
    # the pages.
    packages: tuple[str, ...] = ()
    cite_equations: bool = False  # whether one of those docstrings must cite each equation that a page numbers
    data: int = 100_000  # bytes of JSON that a cell may send to its script
    # Files and folders that hold all pages of the project. A build checks those that are not on the site, too, commands
    # without a path take them all, and wherever one is checked, the equations of the others are known.
    pages: tuple[str, ...] = ()
    rich: int = 10_000_000  # bytes that a cell may show otherwise than as text: HTML, JSON, pictures
    # By patterns of pages or by folders, relative to the project, what becomes of them: off (published as it is), run
    # (its cells are run and shown, and nothing is held) or check. The last pattern that matches wins, and a page itself
    # wins over all: ``proofread: run`` in its front matter.
    modes: Mapping[str, str] = field(default_factory=dict)
    # Which parts of the packages' docstrings are held: none (off), only the equations that they cite
    # (equations), or all (check).
    docstrings: str = "check"
    # Folders, relative to the project, from which pages import beside what is installed.
    imports: tuple[str, ...] = ()
    # How a page gets its process: as a fork of one that has imported what pages need (fork), or as a new one (spawn),
    # which takes longer. None for fork where the system has it; Windows has not.
    start: str | None = None

    def mode(self, path: str) -> str:
        """Return the mode that the project gives a page, named relative to it."""
        names = [mode for pattern, mode in self.modes.items() if matches(path, pattern)]
        return names[-1] if names else "check"

    @classmethod
    def load(cls, root: Path) -> "Settings":
        """Read the settings of a project from its pyproject.toml; defaults where it sets nothing.

        Raises:
            SettingsError: The file cannot be read as TOML, or a setting is unknown or has an invalid value.
        """
        file = root / "pyproject.toml"
        if not file.exists():
            return cls()
        try:
            tools = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            told = f"byte {error.object[error.start]:#04x} on line {line} is not UTF-8; save it as UTF-8"
            raise SettingsError(f"{file} is not TOML: {told}") from error
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise SettingsError(f"{file} is not TOML: {error}") from error
        table = tools.get("proofread", {}) if isinstance(tools, dict) else {}
        if not isinstance(table, dict):
            raise SettingsError(f"{file}: tool.proofread ({table!r}) must be a table, [tool.proofread]")
        known = [field.name for field in fields(cls)]
        for name in table:
            if name not in known:
                raise SettingsError(f"{file}: [tool.proofread] has no setting {name}; there are {', '.join(known)}")
        told = f"{file}: [tool.proofread]"
        read = cls(**{name: _read(name, value, f"{told} {name} ({value!r})") for name, value in table.items()})
        if read.cite_equations and read.docstrings == "off":
            raise SettingsError(
                f"{told} docstrings ('off') reads no citations, which cite_equations (True) demands; "
                'set docstrings = "equations", or take cite_equations out'
            )
        return read


def matches(path: str, pattern: str) -> bool:
    """Whether a pattern of modes names a page, or a folder that it is in."""
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern.rstrip('/')}/*")


def mode(text: str) -> str:
    """Return the mode that a setting or a front matter names: one of `MODES`.

    Raises:
        ValueError: It is none of them.
    """
    if text not in MODES:
        raise ValueError(f"{text!r}, which is none of off, run and check")
    return text


def parsed(texts: Mapping[str, str]) -> dict[str, Any]:
    """Read settings that were given as text, on a command line; a SettingsError says which is invalid."""
    read = {}
    for name, text in texts.items():
        number = re.fullmatch(r"-?\d+(\.\d+)?", text)
        value = text if not number else float(text) if number[1] else int(text)
        read[name] = _read(name, value, f"--{name} ({text})")
    return read


def size(text: str) -> int:
    """Read a number of bytes.

    >>> size("4 GiB"), size("200 kB")
    (4294967296, 200000)
    """
    parts = re.fullmatch(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})\s*", text)
    if not parts:
        raise ValueError(f'must be a size with its unit ({", ".join(_UNITS)}), such as "4 GiB"')
    return int(float(parts[1]) * _UNITS[parts[2]])


def written(bytes_: int) -> str:
    """Write a number of bytes as a setting would.

    >>> written(4 * 2**30), written(200_000), written(1536), written(1_234_567_000)
    ('4 GiB', '200 kB', '1.5 KiB', '1234567 kB')
    """
    for unit, factor in reversed(_UNITS.items()):
        if bytes_ >= factor and bytes_ * 10 % factor == 0:
            return f"{f'{bytes_ / factor:.1f}'.removesuffix('.0')} {unit}"
    return f"{bytes_} B"


def _read(name: str, value: Any, subject: str) -> Any:
    try:
        return _READERS[name](value)
    except ValueError as error:
        raise SettingsError(f"{subject} {error}") from None


def _reader(fits: Callable[[Any], object], message: str, read: Callable[[Any], object]) -> Callable[[Any], object]:
    """A function that reads what fits, and says of all else what it must be."""

    def reader(value: Any) -> object:
        if not fits(value):
            raise ValueError(message)
        return read(value)

    return reader


def _list(fits: Callable[[str], object], message: str) -> Callable[[Any], object]:
    def is_list(value: object) -> bool:
        return isinstance(value, list) and all(isinstance(each, str) and fits(each) for each in value)

    return _reader(is_list, message, tuple)


def _size(value: object) -> int:
    if bytes_ := size(value if isinstance(value, str) else ""):
        return bytes_
    raise ValueError("must be more than nothing")


def _start(value: object) -> str:
    if value not in ("fork", "spawn"):
        raise ValueError('must be "fork" or "spawn": set start = "spawn"')
    forks = "forkserver" in multiprocessing.get_all_start_methods() and hasattr(os, "setpgid")
    if value == "fork" and not forks:
        raise ValueError('cannot be had on this system, which has no forks; take it out, or set start = "spawn"')
    return str(value)


def _modes(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value.values()):
        raise ValueError('must be a table of patterns and modes, such as {"docs/changelog.md" = "off"}')
    for pattern, name in value.items():
        try:
            mode(name)
        except ValueError as error:
            raise ValueError(f"gives {pattern} {error}") from None
    return dict(value)


# True and False are of a type of their own, though Python counts them among the whole numbers.
_count = _reader(lambda value: type(value) is int and value > 0, "must be a whole number of at least 1", int)
_seconds = _reader(
    lambda value: type(value) in (int, float) and 0 < value < float("inf"),
    "must be a positive number of seconds, such as 300",
    float,
)
_folder = _reader(
    lambda value: isinstance(value, str) and value.strip(),
    'must be the name of a folder, such as ".cache/proofread"',
    Path,
)
_READERS: dict[str, Callable[[Any], object]] = {
    "timeout": _seconds,
    "memory": _size,
    "output": _size,
    "rich": _size,
    "workers": _count,
    "start": _start,
    "cache": _folder,
    "packages": _list(str.isidentifier, 'must be a list of names of packages, such as ["mypackage"]'),
    "cite_equations": _reader(lambda value: isinstance(value, bool), "must be true or false", bool),
    "modes": _modes,
    "pages": _list(str.strip, 'must be a list of files and folders, such as ["docs"]'),
    "data": _size,
    "imports": _list(str.strip, 'must be a list of folders, such as ["lib"]'),
    "docstrings": _reader(
        DOCSTRINGS.__contains__, 'must be one of "off", "equations" and "check": set docstrings = "equations"', str
    ),
}
