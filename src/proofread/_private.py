"""The private names of other packages that proofread needs; no other module of it touches any.

Each function says why it needs its name, and what happens where a version of the package has it no more. A test of the
same name (tests/proofread/test_private.py) fails as soon as it is gone.
"""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import process, resource_tracker, util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.livereload import LiveReloadServer
    from mkdocs.structure.files import File, Files
    from mkdocs.structure.nav import Navigation
    from mkdocs.structure.pages import Page


# multiprocessing of CPython. Without these no page is run by a fork: each begins with an AttributeError, and
# start = "spawn" helps.


def _fork_server() -> Any:
    from multiprocessing import forkserver  # there is none on Windows

    return forkserver._forkserver


def fork_server_pid() -> int | None:
    """Return the process id of the running fork server, to tell ours from another's and how it ended."""
    pid: int | None = _fork_server()._forkserver_pid
    return pid


def stop_fork_server() -> None:
    """Stop the fork server, of which no public function disposes, since another's would run pages with its imports."""
    _fork_server()._stop()


def forget_fork_server() -> None:
    """Let the next process start a fork server anew: this one has ended, or belongs to the process we come from."""
    server = _fork_server()
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)  # or the server that we come from would live as long as we
    server.__init__()


def forget_resource_tracker() -> None:
    """Let the next user start a resource tracker anew: that of our parent would tell of what is written there.

    Where the name is gone, each page begins with an AttributeError.
    """
    tracker: Any = resource_tracker._resource_tracker
    if tracker._fd is not None:
        os.close(tracker._fd)
    tracker.__init__()


def become_main_process(temporary: str) -> None:
    """Make multiprocessing take this child for a main process, as a page's code would find it in a script of its own.

    Where CPython keeps this elsewhere, pages see themselves as children, and their sockets lie in another folder.
    """
    this: Any = process.current_process()
    this._identity, this._name, this._parent_pid, process._parent_process = (), "MainProcess", None, None  # type: ignore[attr-defined]
    this._config["tempdir"] = temporary


def has_temporary_folder() -> bool:
    """Return whether multiprocessing has chosen its folder for sockets, which nothing changes afterwards."""
    config: Mapping[str, object] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    return "tempdir" in config


@contextlib.contextmanager
def interpreter_flags(change: Callable[[list[str]], list[str]]) -> Iterator[None]:
    """Change the flags of the interpreters that multiprocessing starts, for which it has no option.

    Where the name is gone, a page's folder stays on the path: a page called as one of Python's modules hides that.
    """
    flags: Any = util._args_from_interpreter_flags  # type: ignore[attr-defined]
    util._args_from_interpreter_flags = lambda: change(flags())  # type: ignore[attr-defined]
    try:
        yield
    finally:
        util._args_from_interpreter_flags = flags  # type: ignore[attr-defined]


# IPython


def end_display(hook: Any) -> None:
    """Tell a DisplayHook that it has shown a value; its own method would write to the page's output.

    Where the name is gone, nothing happens: IPython asks for it only to tell one display in another.
    """
    hook._is_active = False


# PyTorch


def tensor_version(tensor: Any) -> int:
    """Return how often a tensor was changed in place, which nothing else tells of a change by any name.

    Where the name is gone, the programs of a page's cells cannot be made, and the page says so.
    """
    version: int = tensor._version
    return version


def torch_settings(torch: Any) -> list[Any]:
    """Return PyTorch's options for printing and its global hooks, which later statements depend on.

    Where the options are gone, a program lacks ``torch.set_printoptions``, and its trial tells.
    """
    options = getattr(getattr(torch, "_tensor_str", None), "PRINT_OPTS", None)
    hooks = [
        tuple(value)
        for name, value in vars(torch.nn.modules.module).items()
        if name.startswith("_global_") and isinstance(value, Mapping)
    ]
    return [{**vars(options)} if options is not None else {}, hooks]


# MkDocs. Where one of these is gone, but for `link_resolver`, a page is not shown before the whole site is built.


def build_page(page: "Page", config: "MkDocsConfig", pages: "Sequence[File]", nav: "Navigation", env: Any) -> None:
    """Write a rendered page into the site, alone: MkDocs itself can only build all pages.

    Raises:
        ImportError: MkDocs has the function no more.
    """
    from mkdocs.commands.build import _build_page

    _build_page(page, config, pages, nav, env)


def populate_page(page: "Page", config: "MkDocsConfig", files: "Files") -> None:
    """Read and render a page, alone.

    Raises:
        ImportError: MkDocs has the function no more.
    """
    from mkdocs.commands.build import _populate_page

    _populate_page(page, config, files)


def link_resolver(file: "File", files: "Files", config: "MkDocsConfig") -> Any:
    """Return what leads the links of a page's prose, for those that cells show: so MkDocs tells of both alike.

    Raises:
        ImportError: MkDocs has it no more, which ends a build.
    """
    from mkdocs.structure.pages import _RelativePathTreeprocessor

    return _RelativePathTreeprocessor(file, files, config)


def reload_browsers(server: "LiveReloadServer") -> None:
    """Let browsers load the page that they show, as the server does when it has built the site."""
    with contextlib.suppress(AttributeError), server._epoch_cond:
        server._visible_epoch = server._wanted_epoch
        server._epoch_cond.notify_all()


def reload_after_build(server: "LiveReloadServer") -> None:
    """Let browsers load their page once more when the build that goes on has ended."""
    with contextlib.suppress(AttributeError):
        server._wanted_epoch += 1


def wants_rebuild(server: "LiveReloadServer") -> bool:
    """Return whether a file has changed since the build that goes on began."""
    return bool(getattr(server, "_want_rebuild", False))
