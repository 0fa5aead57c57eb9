"""What tests share: seeds, threads, hypothesis's profile, what machine they need, the site, a user without hooks."""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from proofread.processes.control import FORKS, LINEAGE
from proofread.programs import Snippet, disagreement
from proofread.programs.trial import Ran, Trial

from . import drawn
from .running import ROOT, build

# derandomize: a run that fails on a machine of CI fails on every machine. More examples: --hypothesis-profile=thorough.
settings.register_profile("default", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile("default")


# What a test needs of the machine, by its mark: whether that is there, and what to say where it is not.
NEEDS = {
    "cuda": (torch.cuda.is_available(), "needs an NVIDIA GPU: run it on a machine with CUDA"),
    "forks": (FORKS, "needs forks: run it on Linux or macOS"),
    "lineage": (LINEAGE, "needs to be told which process started which, and what it holds: run it on Linux"),
    # What a push need not try again. That FlexAttention is as recorded is PyTorch's doing, whose version is pinned; it
    # compiles for a minute.
    "weekly": (os.environ.get("WEEKLY") == "all", "is tried each week: set WEEKLY=all"),
}


def pytest_configure(config: pytest.Config) -> None:
    for name, (_, told) in NEEDS.items():
        config.addinivalue_line("markers", f"{name}: {told}")
    config.addinivalue_line("markers", "drawn(*files): a third of its cases is tried, and all whose files have changed")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1 and "OMP_NUM_THREADS" not in os.environ:
        # Workers share the cores. Had each a thread for every core, threads would wait for one another, and waiting
        # keeps a core busy: the tests of the library would take some five times as long. This is not done by the
        # variable, because runs of pages depend on it, and would not be those that a build has kept.
        torch.set_num_threads(max(1, torch.get_num_threads() // workers))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker tests that stand side by side, and who has done its own some of another's.

    By default more of them are dealt out than the slowest take, and one worker waits for the other for minutes.
    """
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_report_header() -> str:
    which = "all cases" if drawn.ALL else "a third of their cases, drawn by the sources; WEEKLY=all tries all"
    return f"drawn tests: {which}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for name in {mark.name for mark in item.iter_markers()} & NEEDS.keys():
            is_there, told = NEEDS[name]
            if not is_there:
                item.add_marker(pytest.mark.skip(reason=told))
    if config.option.keyword or any("::" in name for name in config.args):
        return  # who names a test means it
    left = {item for item in items if _is_drawn(item) and not drawn.is_tried(item.nodeid, *_files_of(item))}
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def _is_drawn(item: pytest.Item) -> bool:
    is_program = item.get_closest_marker("proofread") is not None and " snippet " in item.name
    return is_program or item.get_closest_marker("drawn") is not None


def _files_of(item: pytest.Item) -> list[str]:
    """What may make the test another one: its file, or page, and what its mark names."""
    mark = item.get_closest_marker("drawn")
    return [item.path.relative_to(ROOT).as_posix(), *(mark.args if mark else ())]


@given(st.none())
def _begin(_: None) -> None:
    """Let hypothesis make its generator, whose holder it looks for: nobody finds who holds what once that is frozen."""


def pytest_collection_finish() -> None:
    _begin()
    gc.collect()
    gc.freeze()  # a collection of garbage would look through torch and ten thousand tests each time


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def unhooked() -> Iterator[None]:
    """Switch off the run-time check of annotations: what a user's errors and torch.compile go through."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[[str, Callable[[Path], object]], Path]:
    """Has a folder of this name made by the first worker that needs it; the others wait."""
    temporary = tmp_path_factory.getbasetemp()
    shared = temporary if worker_id == "master" else temporary.parent

    def made(name: str, make: Callable[[Path], object]) -> Path:
        folder = shared / name
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                part = folder.with_suffix(".part")
                make(part)
                part.rename(folder)
        return folder

    return made


@pytest.fixture(scope="session")
def site(once: Callable[..., Path]) -> Path:
    """The site, built. SITE names one that is built already."""
    built = os.environ.get("SITE")
    return Path(built) if built else once("site-in-browser", lambda folder: build(ROOT, folder, "--strict"))


class Silent(SimpleHTTPRequestHandler):
    """Serves a folder and says nothing."""

    def log_message(self, *_: object) -> None:
        pass


def serve(folder: Path, handler: type[Silent] = Silent) -> Iterator[str]:
    """Serve a folder at an address of this machine until the generator is closed."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """Where the site is, as a server has it."""
    yield from serve(site)


def pages(site: Path) -> dict[str, str]:
    """The HTML of each page, by the address of its folder; that of the page for what is missing too.

    What stands where a page was, and leads on, is none.
    """
    found = {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    return {name.removesuffix("index.html"): html for name, html in found.items() if "location.replace(" not in html}


_ALONE = """
import json, os, pickle, sys
from proofread.programs import trial
output = os.fdopen(os.dup(1), "w")  # what is written to 1 belongs to the program
print(json.dumps(vars(trial.run(*pickle.load(sys.stdin.buffer)))), file=output)
"""


@pytest.fixture
def verify(tmp_path: Path) -> Callable[..., str | None]:
    """Run a cell's program in a new interpreter and an empty folder, as one who pasted it would.

    It returns None if the program did what the page shows, else what it did instead.
    """

    def run(snippet: Snippet, timeout: float = 120.0) -> str | None:
        environment = os.environ | {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-s", "-P", "-c", _ALONE]
        job = pickle.dumps((Trial(snippet.text), tmp_path / "alone"))
        try:
            ended = subprocess.run(command, input=job, env=environment, stdout=subprocess.PIPE, timeout=timeout)
            ran = Ran(**json.loads(ended.stdout))
        except subprocess.TimeoutExpired:
            ran = Ran("", "TimeoutError: it ran for too long")
        wrong = disagreement(snippet, ran)
        return wrong and wrong[1]

    return run
