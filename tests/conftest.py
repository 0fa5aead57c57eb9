"""What tests share: seeds, threads, hypothesis's profile, the GPU mark, and a way to be the user without hooks."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# derandomize: a run that fails on a machine of CI fails on every machine. More examples: --hypothesis-profile=thorough.
settings.register_profile("default", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cuda: needs an NVIDIA GPU")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1 and "OMP_NUM_THREADS" not in os.environ:
        # Workers share the cores. Had each a thread for every core, threads would wait for one another, and waiting
        # keeps a core busy: the tests of the library would take some five times as long. This is not done by the
        # variable, because runs of pages depend on it, and would not be those that a build has kept.
        torch.set_num_threads(max(1, torch.get_num_threads() // workers))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU: run on a machine with CUDA"))


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
