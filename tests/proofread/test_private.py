"""The private names of other packages: each is there and does what is needed of it, and one module alone has them."""

import ast
import inspect
import multiprocessing
import os
import threading
from collections.abc import Iterator
from multiprocessing import process, resource_tracker, util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import InteractiveShell
from mkdocs.commands import build
from mkdocs.config import load_config
from mkdocs.livereload import LiveReloadServer
from mkdocs.structure.files import File, Files

import proofread
from proofread import _private

HERE = Path(proofread.__file__).parent
# Names with an underscore that Python's documentation has.
DOCUMENTED = {"_asdict", "_exit", "_fields", "_getframe", "_replace"}
# What classes of IPython ask of those that inherit from them.
INHERITED = {"_showtraceback"}


@pytest.fixture
def fork_server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fork server that is not ours and has not begun."""
    forkserver = pytest.importorskip("multiprocessing.forkserver", reason="needs forks: run it on Linux or macOS")
    monkeypatch.setattr(forkserver, "_forkserver", server := forkserver.ForkServer())
    return server


def test_fork_server_pid(fork_server: Any) -> None:
    assert _private.fork_server_pid() is None
    fork_server._forkserver_pid = 3
    assert _private.fork_server_pid() == 3


def test_stop_fork_server(fork_server: Any) -> None:
    fork_server.ensure_running()
    _private.stop_fork_server()
    assert _private.fork_server_pid() is None


def test_forget_fork_server(fork_server: Any) -> None:
    receiver, fork_server._forkserver_alive_fd = os.pipe()
    fork_server._forkserver_pid = 3
    _private.forget_fork_server()
    assert _private.fork_server_pid() is None
    assert os.read(receiver, 1) == b"", "its end of the pipe is open"
    os.close(receiver)


def test_forget_resource_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_tracker, "_resource_tracker", tracker := resource_tracker.ResourceTracker())
    receiver, tracker._fd = os.pipe()
    _private.forget_resource_tracker()
    assert tracker._fd is None
    assert os.read(receiver, 1) == b"", "its end of the pipe is open"
    os.close(receiver)


def test_become_main_process_and_has_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    child = multiprocessing.Process(name="a child")
    monkeypatch.setattr(process, "_current_process", child)
    monkeypatch.setattr(process, "_parent_process", child)
    monkeypatch.setattr(child, "_config", {})
    assert not _private.has_temporary_folder()
    _private.become_main_process(str(tmp_path))
    assert _private.has_temporary_folder()
    assert (multiprocessing.current_process().name, multiprocessing.parent_process()) == ("MainProcess", None)
    assert util.get_temp_dir() == str(tmp_path)


def test_interpreter_flags() -> None:
    before = util._args_from_interpreter_flags()
    with _private.interpreter_flags(lambda flags: [*flags, "-P"]):
        assert util._args_from_interpreter_flags() == [*before, "-P"]
    assert util._args_from_interpreter_flags() == before


def test_end_display() -> None:
    hook = DisplayHook(shell=InteractiveShell())
    hook.start_displayhook()
    _private.end_display(hook)
    assert not hook.is_active


def test_tensor_version() -> None:
    tensor = torch.zeros(3)
    before = _private.tensor_version(tensor)
    tensor[1:].add_(1)
    assert _private.tensor_version(tensor) > before


def test_torch_settings() -> None:
    before = _private.torch_settings(torch)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert _private.torch_settings(torch) != before
    finally:
        hook.remove()
    torch.set_printoptions(precision=7)
    try:
        assert _private.torch_settings(torch) != before
    finally:
        torch.set_printoptions(profile="default")
    assert _private.torch_settings(torch) == before
    gone = SimpleNamespace(nn=torch.nn)
    assert _private.torch_settings(gone)[0] == {}


def test_build_page() -> None:
    names = ["page", "config", "doc_files", "nav", "env"]
    assert [*inspect.signature(build._build_page).parameters][: len(names)] == names


def test_populate_page() -> None:
    names = ["page", "config", "files"]
    assert [*inspect.signature(build._populate_page).parameters][: len(names)] == names


def test_link_resolver(tmp_path: Path) -> None:
    files = Files([File(name, str(tmp_path), str(tmp_path), True) for name in ("a.md", "b.md")])
    config = load_config(None, config_file_path="", docs_dir=str(tmp_path))
    resolver = _private.link_resolver(next(iter(files)), files, config)
    assert resolver.path_to_url("b.md#part") == "../b/#part"
    assert [file.src_uri for file in resolver.links_to_anchors] == ["b.md"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveReloadServer]:
    server = LiveReloadServer(lambda: None, "localhost", 0, str(tmp_path))
    yield server
    server.server_close()


def test_reload_browsers(server: LiveReloadServer) -> None:
    server._wanted_epoch = server._visible_epoch + 1
    browser = threading.Thread(target=lambda: server._epoch_cond.acquire() and server._epoch_cond.release())
    _private.reload_browsers(server)
    browser.start()
    browser.join(10)
    assert server._visible_epoch == server._wanted_epoch
    _private.reload_browsers(SimpleNamespace())  # where MkDocs has it no more, the whole site's build does it


def test_reload_after_build(server: LiveReloadServer) -> None:
    before = server._wanted_epoch
    _private.reload_after_build(server)
    assert server._wanted_epoch > before
    _private.reload_after_build(SimpleNamespace())


def test_wants_rebuild(server: LiveReloadServer) -> None:
    assert not _private.wants_rebuild(server)
    server._want_rebuild = True
    assert _private.wants_rebuild(server)
    assert not _private.wants_rebuild(SimpleNamespace())


def test_each_function_has_a_test_of_its_name() -> None:
    functions = [name for name, each in vars(_private).items() if inspect.isfunction(each) and name[0] != "_"]
    told = " ".join(name for name in globals() if name.startswith("test_"))
    assert [name for name in functions if name not in told] == []


def test_no_other_module_has_a_private_name_of_another_package() -> None:
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in HERE.rglob("*.py")}
    own = DOCUMENTED | INHERITED | {name for tree in trees.values() for name in _defined(tree)}
    foreign = [
        f"{file.relative_to(HERE)}:{line}: {name}"
        for file, tree in trees.items()
        if file.name != "_private.py"
        for line, name in _taken(tree)
        if name not in own and name[0] == "_" and not name.startswith("__")
    ]
    assert foreign == [], "let a function of _private.py take it, say there why, and test it here by its name"


def _defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines, for itself or for its objects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "cls")
        ):
            yield node.attr


def _taken(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the lines and the names of the attributes that a module takes, and of what it imports of others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, alias.name) for alias in node.names)
