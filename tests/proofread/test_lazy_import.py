"""Modules that others import at once are read when something in them is used, and are as they would have been."""

import importlib
import sys

import pytest

from proofread.lazy_import import defer


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A package that imports one of its modules and tells, in a list, which of them have been read."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    read: list[str] = []
    monkeypatch.setattr(sys, "test_deferred_read", read, raising=False)
    folder = tmp_path / "deferredlibrary"
    folder.mkdir()
    told = "import sys\nsys.test_deferred_read.append(__name__)\n"
    (folder / "__init__.py").write_text(told)
    (folder / "front.py").write_text(f"{told}from . import back\n\ndef use():\n    return back.answer\n")
    (folder / "back.py").write_text(f"{told}answer = 42\n")
    yield read
    for name in [name for name in sys.modules if name.startswith("deferredlibrary")]:
        del sys.modules[name]


def test_a_deferred_module_is_read_when_it_is_used(library):
    defer("deferredlibrary.back")
    import deferredlibrary.front

    assert library == ["deferredlibrary", "deferredlibrary.front"]
    assert deferredlibrary.front.use() == 42
    assert library[2:] == ["deferredlibrary.back"]


def test_a_module_that_is_imported_already_stays(library):
    import deferredlibrary.back

    before = deferredlibrary.back
    defer("deferredlibrary.back")
    from deferredlibrary import back

    assert back is before


def test_a_module_that_is_nowhere_is_missed_where_it_is_imported(library):
    defer("deferredlibrary.nowhere")
    with pytest.raises(ModuleNotFoundError, match=r"deferredlibrary\.nowhere"):
        importlib.import_module("deferredlibrary.nowhere")
