"""How does a build grow with a site? Measured in one run, by hand: ``python tests/benchmarks/growth.py``.

A project that has nothing of this one, with 15, 20, 60 and 200 pages over NumPy, each of six cells and seven figures in
the prose. Each is built with proofread, as plain Markdown, and, up to a size, by mkdocs-jupyter alone with its cache.
Every round builds each of them once for each case, side by side.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEAD = """# %% [markdown]
# # Numbers
#
# There are 12<!--= len(x) --> of them, from 0<!--= x.min() --> to 11<!--= x.max() -->, 66<!--= x.sum() --> in all.
# Edition: prose-{prose}.
"""
BODY = """
# %%
import numpy as np

x = np.arange(12)

# %%
square = x.reshape(3, 4)
square

# %% [markdown]
# The square has 3<!--= square.shape[0] --> rows; the mean of all is 5.5<!--= square.mean() -->.

# %%
rng = np.random.default_rng({number})
noise = rng.normal(size=1000)
print(noise.shape)

# %%
share = float((np.abs(noise) < 10).mean())
share

# %% [markdown]
# All of the noise, 100 %<!--= share -->, is small.

# %%
print(square @ square.T)

# %%
print("cell-{cell}")
"""
THEME = "site_name: Numbers\ntheme: material\nmarkdown_extensions: [pymdownx.superfences, pymdownx.highlight]\n"
PLUGINS = {
    "plain Markdown": "plugins: [search]\n",
    "proofread": 'plugins: [search, proofread, {mkdocs-jupyter: {include: ["*.py"]}}]\n',
    "mkdocs-jupyter": 'plugins: [search, {mkdocs-jupyter: {include: ["*.py"], execute: true, cache: true}}]\n',
}
CASES = ("cold", "unchanged", "cell", "prose")


class Site:
    """A project with some pages, built in one way."""

    def __init__(self, folder: Path, name: str, pages: int):
        self.folder, self.name = folder, name
        (folder / "docs").mkdir(parents=True)
        (folder / "mkdocs.yml").write_text(THEME + PLUGINS[name])
        (folder / "pyproject.toml").write_text("[tool.proofread]\n")
        (folder / "docs/index.md").write_text("# Home\n")
        for number in range(pages):
            self.write(number)

    def write(self, number: int, prose: str = "first", cell: str = "first") -> None:
        """Write a page, with a word in its prose and one in what its last cell prints."""
        text = HEAD.format(number=number, prose=prose) + BODY.format(number=number, cell=cell)
        name = f"page{number:03}"
        if self.name != "plain Markdown":
            (self.folder / f"docs/{name}.py").write_text(text)
            return
        parts = []
        for part in text.split("# %%")[1:]:
            prose_part = part.startswith(" [markdown]\n")
            lines = part.partition("\n")[2].strip().splitlines()
            code = "\n".join(lines)
            parts.append("\n".join(line[2:] for line in lines) if prose_part else f"```python\n{code}\n```")
        (self.folder / f"docs/{name}.md").write_text("\n\n".join(parts))

    def build(self, case: str, word: str) -> float:
        """Bring a case about, build, see that what changed is shown; the seconds that the build took."""
        if case == "cold":
            for kept in (".cache", "site"):
                shutil.rmtree(self.folder / kept, ignore_errors=True)
        elif case != "unchanged":
            self.write(0, **{case: word})
        began = time.perf_counter()
        ran = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--quiet"],
            cwd=self.folder,
            env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - began
        if ran.returncode:
            raise RuntimeError(f"{self.name}, {case}: ended with {ran.returncode}\n{ran.stdout}{ran.stderr}")
        shown = (self.folder / "site/page000/index.html").read_text()
        if case in ("cell", "prose") and f"{case}-{word}" not in shown:
            raise RuntimeError(f"{self.name}: the page does not show {case}-{word}")
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pages", type=int, nargs="+", default=[15, 20, 60, 200])
    parser.add_argument("--jupyter", type=int, default=20, help="the most pages that mkdocs-jupyter builds, too")
    options = parser.parse_args()
    print(f"seconds, median of {options.rounds} rounds; {os.cpu_count()} cores")
    print(f"{'pages':>5}  {'':16}" + "".join(f"{case:>11}" for case in CASES))
    for pages in options.pages:
        with tempfile.TemporaryDirectory(prefix="growth-") as scratch:
            names = [name for name in PLUGINS if name != "mkdocs-jupyter" or pages <= options.jupyter]
            sites = [Site(Path(scratch, name.replace(" ", "-")), name, pages) for name in names]
            times: dict[tuple[str, str], list[float]] = {}
            for number in range(options.rounds):
                for case in CASES:
                    for site in sites:
                        seconds = site.build(case, word=f"round{number}")
                        times.setdefault((site.name, case), []).append(seconds)
            middle = {of: statistics.median(found) for of, found in times.items()}
            for name in names:
                print(f"{pages:5}  {name:16}" + "".join(f"{middle[name, case]:11.2f}" for case in CASES), flush=True)


if __name__ == "__main__":
    main()
