"""Compiles the documented packages once for all pages: the fork server imports this last, and none of the packages.

It compiles what has no bytecode yet, which pages do not write. A page takes what was made here only while the text of
the file is still the same.
"""

import contextlib
import os
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path
from types import CodeType
from typing import Any

FOLDERS = "PROOFREAD_FOLDERS"  # the variable that says where the packages lie
_MUCH = 4_000_000  # bytes of source; of more than that each page compiles what it needs

_compiled: dict[str, tuple[bytes, CodeType]] = {}  # by the file
_compile: Any = SourceFileLoader.source_to_code


def _source_to_code(loader: SourceFileLoader, data: Any, path: Any, **options: Any) -> Any:
    text, code = _compiled.get(path, (b"", None)) if isinstance(path, str) else (b"", None)
    return code if code and text == data else _compile(loader, data, path, **options)


def _read(folders: list[Path]) -> None:
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    if sum(file.stat().st_size for file in files) > _MUCH:
        return
    for file in files:
        with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError):  # whoever needs it will tell
            if not os.path.exists(cache_from_source(str(file))):
                data = file.read_bytes()
                _compiled[str(file)] = data, compile(data, str(file), "exec", dont_inherit=True)


if _folders := os.environ.pop(FOLDERS, ""):
    _read([Path(folder) for folder in _folders.split(os.pathsep)])
    SourceFileLoader.source_to_code = _source_to_code  # type: ignore[assignment,method-assign]
