"""Imports what pages need before they begin, in the server that they are forks of, or in the process of one page.

Then it compiles the modules of the documented packages that have no bytecode yet, which pages do not write; it imports
none of them. A page takes what was compiled here only while the text of the file is still the same.
"""

import contextlib
import os
import warnings
from collections.abc import Iterable
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path
from types import CodeType
from typing import Any

from . import import_tracker as import_tracker  # before anything else: it takes note of what is asked for

NAMES = "PROOFREAD_PRELOAD"  # the variable that says what to import
FOLDERS = "PROOFREAD_FOLDERS"  # the variable that says where the packages lie
_MUCH = 4_000_000  # bytes of source; of more than that each page compiles what it needs

_names = os.environ.pop(NAMES, "").split()
_folders = os.environ.pop(FOLDERS, "")
VARIABLES = frozenset(os.environ)  # that we were started with: what is imported may set others

_compiled: dict[str, tuple[bytes, CodeType]] = {}  # by the file
_compile: Any = SourceFileLoader.source_to_code


def _preload(names: Iterable[str]) -> str:
    """Import modules; return why one could not be, or ""."""
    for name in names:
        try:
            if name.startswith(("proofread.", "IPython")):
                with warnings.catch_warnings():  # they are no page's, even where pages take warnings for errors
                    warnings.simplefilter("ignore")
                    import_module(name)
            else:
                import_module(name)
        except (ImportError, Warning):  # the page that needs it tells where it does
            pass
        except BaseException as error:
            reason = f"the import of {name} failed with {type(error).__name__}: {error}; mend what is installed, until "
            return reason + f'python -c "import {name}" does not fail'
    return ""


def _source_to_code(loader: SourceFileLoader, data: Any, path: Any, **options: Any) -> Any:
    text, code = _compiled.get(path, (b"", None)) if isinstance(path, str) else (b"", None)
    return code if code and text == data else _compile(loader, data, path, **options)


def _compile_packages(folders: Iterable[Path]) -> None:
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    if sum(file.stat().st_size for file in files) > _MUCH:
        return
    for file in files:
        with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError):  # whoever needs it will tell
            if not os.path.exists(cache_from_source(str(file))):
                data = file.read_bytes()
                _compiled[str(file)] = data, compile(data, str(file), "exec", dont_inherit=True)


failed = _preload(_names)  # what kept us from importing it
if _folders and not failed:
    _compile_packages(map(Path, _folders.split(os.pathsep)))
    SourceFileLoader.source_to_code = _source_to_code  # type: ignore[assignment,method-assign]
