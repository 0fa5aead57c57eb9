"""What tests run: programs as a user does, builds of sites, and pages for the names that they bind."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs/pytorch"


def python(*words: object, cwd: Path = ROOT, exits: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these words behind it; a test fails, with what Python wrote, where it does not exit so."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == exits, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done


def build(root: Path, site: Path, *options: str, **environment: str) -> str:
    """Build the site of a project into a folder; return what MkDocs writes, although it is to be quiet."""
    done = python("-m", "mkdocs", "build", "--quiet", "--site-dir", site, *options, cwd=root, **environment)
    return done.stdout + done.stderr


@cache
def names_of(page: str) -> SimpleNamespace:
    """Run a page about PyTorch, but for what its failing cells raise, and return the names that it binds."""
    path = PAGES / f"{page}.py"
    cells = re.split(r"(?m)^(?=# %%)", path.read_text(encoding="utf-8"))
    module = ModuleType(f"page_{page}")
    sys.modules[module.__name__] = module  # where FlexAttention looks for the names of a rule
    with contextlib.redirect_stdout(io.StringIO()), torch.set_grad_enabled(True), torch.random.fork_rng([]):
        for place, cell in enumerate(cells):
            above = "\n" * "".join(cells[:place]).count("\n")  # inspect finds a function by its line
            with contextlib.suppress(*[Exception] * ("#| raises" in cell)):
                exec(compile(above + cell, path, "exec"), vars(module))
    return SimpleNamespace(**vars(module))


@cache
def prose_of(page: str) -> str:
    """Return what a page about PyTorch says, captions too, on one line and without its directives."""
    text = re.sub(r"(?m)^#\|? *", "", (PAGES / f"{page}.py").read_text(encoding="utf-8"))
    return " ".join(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).split())
