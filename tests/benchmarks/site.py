"""How fast is the site? Ratios measured in one run; run by hand: ``python tests/benchmarks/site.py``.

Three sites hold the same pages, this site's pages: one for mkdocs-jupyter as it is with ``execute: true``, one for
it with proofread, and one with the pages' prose and code as plain Markdown. Every round builds and edits each of them
once, side by side, and a ratio is the median over the rounds, so that a noisy machine disturbs all of them alike. The
edits are seen as a reader sees them: the time ends when ``mkdocs serve`` answers with a page that holds what the edit
must make it show. What a build spends its time on, ``python -m cProfile -s cumulative -m mkdocs build`` tells.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gzip
import os
import platform
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import yaml
from mkdocs.utils.yaml import yaml_load

from proofread.pages.page import find_pages, read

ROOT = Path(__file__).parents[2]
PACKAGES = ["unmasked", "unmasked_doctor", "unmasked_lessons"]
EDITED = "learn/attention"
PATIENCE = 600  # seconds that a build may take before the benchmark gives up

# What is aimed at: (what is done, whose time, over whose time) -> ratio, at most.
AIMS = {
    ("cold build", "ours", "mkdocs-jupyter, no cache"): 0.25,
    ("nothing changed", "ours", "plain Markdown"): 1.2,
    ("prose edit", "ours", "plain Markdown"): 1.5,
    ("cell edit", "ours", "mkdocs-jupyter"): 0.35,
    ("package edit", "ours", "mkdocs-jupyter, no cache"): 0.35,  # with its cache on it shows what was
}
LIMITS = {"HTML": 60_000, "gzip": 15_000}  # bytes a page, figures apart

# What an edit changes, and the text that the page must hold then. The texts of code are put together when it runs.
EDITION = """
# %% [markdown]
# The edition of this prose is called prose-{word}.

# %%
from unmasked.functional import EDITION

print("cell" + "-{word}")
print("package-" + EDITION)
"""


class Site:
    """One of the sites that are compared: a folder with pages, and a package that they document."""

    def __init__(self, folder: Path, name: str, plugins: list[object], *, as_markdown: bool = False):
        self.folder, self.name = folder, name
        docs = folder / "docs"
        for package in PACKAGES:
            shutil.copytree(ROOT / "src" / package, folder / "src" / package)
        shutil.copytree(ROOT / "docs/assets", docs / "assets")
        self.change_package("first")
        with (ROOT / "mkdocs.yml").open("rb") as file:
            ours = yaml_load(file)  # which knows the tag that reads the environment
        config = {key: ours[key] for key in ("site_name", "theme", "extra_css", "markdown_extensions")}
        del config["theme"]["custom_dir"]  # it stands with the site's own pages
        config |= {"watch": ["src"], "plugins": ["search", *plugins]}
        (folder / "mkdocs.yml").write_text(yaml.dump(config), encoding="utf-8")
        (folder / "pyproject.toml").write_text(f"[tool.proofread]\npackages = {PACKAGES}\n", encoding="utf-8")
        self.pages = {name: text + EDITION.format(word="first") for name, text in sources().items()}
        for page, text in self.pages.items():
            (docs / page).parent.mkdir(exist_ok=True)
            (docs / f"{page}.py").write_text(text, encoding="utf-8")
        self._as_markdown = as_markdown
        if as_markdown:
            for page in self.pages:
                self.write(page, self.pages[page])
                (docs / f"{page}.py").unlink()
        path = os.pathsep.join(filter(None, [str(folder / "src"), os.environ.get("PYTHONPATH")]))
        self.environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "NO_MKDOCS_2_WARNING": "1"}

    def write(self, page: str, text: str) -> None:
        """Write a page in the form that this site has of it."""
        file = self.folder / "docs" / f"{page}.py"
        if not self._as_markdown:
            file.write_text(text, encoding="utf-8")
            return
        aside = self.folder / f"{page}.py"
        aside.parent.mkdir(exist_ok=True)
        aside.write_text(text, encoding="utf-8")
        cells = read(aside, self.folder).cells
        fenced = [f"```python\n{cell.shown}\n```" if cell.is_code else cell.source for cell in cells]
        file.with_suffix(".md").write_text("\n\n".join(fenced), encoding="utf-8")

    def change_prose(self, word: str) -> None:
        """Change a word of the edited page's prose."""
        self.pages[EDITED] = re.sub(r"called prose-\w+", f"called prose-{word}", self.pages[EDITED])
        self.write(EDITED, self.pages[EDITED])

    def change_cell(self, word: str) -> None:
        """Change what a cell of the edited page prints."""
        self.pages[EDITED] = re.sub(r'"cell" \+ "-\w+', f'"cell" + "-{word}', self.pages[EDITED])
        self.write(EDITED, self.pages[EDITED])

    def change_package(self, word: str) -> None:
        """Change what the package says to all pages."""
        module = self.folder / "src" / "unmasked" / "functional.py"
        text = module.read_text(encoding="utf-8").partition("\n\nEDITION =")[0]
        module.write_text(f'{text.rstrip()}\n\nEDITION = "{word}"\n', encoding="utf-8")

    def forget(self) -> None:
        """Remove what earlier builds have kept."""
        shutil.rmtree(self.folder / ".cache", ignore_errors=True)
        shutil.rmtree(self.folder / "site", ignore_errors=True)

    def build(self) -> dict[str, float]:
        """Build once; the seconds it took, and those of the processors."""
        return spent([sys.executable, "-m", "mkdocs", "build", "--quiet"], self)


def sources() -> dict[str, str]:
    """The pages that teach and show: the equations that the package's docstrings cite are on them."""
    docs = ROOT / "docs"
    pages = [path for path in find_pages([docs]) if path.suffix == ".py" and path.parent.name != "proofread"]
    return {path.relative_to(docs).with_suffix("").as_posix(): path.read_text(encoding="utf-8") for path in pages}


def spent(command: list[str], site: Site) -> dict[str, float]:
    """Run a program to its end and that of all that it started; the seconds it took, and those of the processors."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ran = subprocess.run(command, cwd=site.folder, env=site.environment, capture_output=True, text=True)
    wall = time.perf_counter() - began
    if ran.returncode:
        raise RuntimeError(
            f"{site.name}: {' '.join(command[:4])} ended with {ran.returncode}\n{ran.stdout}{ran.stderr}"
        )
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()  # for those whose parent has ended: they are ours by then, see adopt_orphans
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"wall": wall, "CPU": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def adopt_orphans() -> None:
    """Let what outlives its parent become our child, so that its time is counted: fork servers and kernels."""
    if not sys.platform.startswith("linux"):
        raise RuntimeError("measured on Linux alone, which tells the processor time of all that a build starts")
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


class Server:
    """A running ``mkdocs serve``."""

    def __init__(self, site: Site):
        self.site = site
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self._log = site.folder / "serve.log"
        with self._log.open("w") as log:
            self._process = psutil.Popen(
                # The option is on by default, which click 8.3 and its successors do not tell MkDocs.
                [sys.executable, "-m", "mkdocs", "serve", "--livereload", "--dev-addr", self._address],
                cwd=site.folder,
                env=site.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.wait("prose-first")

    def wait(self, text: str) -> None:
        """Return when the edited page holds a text."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                url = f"http://{self._address}/{EDITED}/"
                with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                    if text in re.sub(r"<[^>]*>", "", answer.read().decode()):
                        return
            with contextlib.suppress(psutil.TimeoutExpired):
                self._process.wait(0.02)
                break
        log = self._log.read_text(encoding="utf-8")
        raise RuntimeError(f"{self.site.name}: {text} does not appear on the page; mkdocs serve says\n{log}")

    def edit(self, change: Callable[[str], None], kind: str, word: str) -> dict[str, float]:
        """Change something; the seconds until a reader sees it, those of the build among them, of the processors."""
        builds, before, began = len(self._builds()), self._processors(), time.perf_counter()
        change(word)
        self.wait(f"{kind}-{word}")
        wall = time.perf_counter() - began
        return {"wall": wall, "CPU": self._processors() - before, "build": sum(self._builds()[builds:])}

    def _builds(self) -> list[float]:
        log = self._log.read_text(encoding="utf-8")
        return [float(seconds) for seconds in re.findall(r"Documentation built in ([\d.]+) seconds", log)]

    def _processors(self) -> float:
        total = 0.0
        for process in (self._process, *self._process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def close(self) -> None:
        """End it, and all that it started."""
        for process in (*self._process.children(recursive=True), self._process):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        self._process.wait()


@contextlib.contextmanager
def serving(sites: list[Site]) -> Iterator[dict[str, Server]]:
    """Servers of some sites, by their names."""
    with contextlib.ExitStack() as stack:
        servers = {}
        for site in sites:
            servers[site.name] = Server(site)
            stack.callback(servers[site.name].close)
        yield servers


Times = dict[tuple[str, str], list[dict[str, float]]]  # by what is done and on which site, round by round


def measure(sites: dict[str, Site], rounds: int) -> Times:
    """Do everything once a round on every site."""
    times: Times = {}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}: builds")
        for name in ("mkdocs-jupyter, no cache", "ours"):
            sites[name].forget()
            times.setdefault(("cold build", name), []).append(sites[name].build())
        for name in ("ours", "plain Markdown", "mkdocs-jupyter"):
            if number == 0:
                sites[name].build()  # what is kept is kept now, and Python's own caches are warm
            times.setdefault(("nothing changed", name), []).append(sites[name].build())
    say("servers start")
    with serving(list(sites.values())) as servers:
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}: edits")
            for kind in ("prose", "cell", "package"):
                for name in {name: None for what, *pair in AIMS for name in pair if what == f"{kind} edit"}:
                    site = sites[name]
                    change = getattr(site, f"change_{kind}")
                    word = "abcdefghijklmnopqrstuvwxyz"[number] * 5
                    times.setdefault((f"{kind} edit", name), []).append(servers[name].edit(change, kind, word))
    return times


def ratios(times: Times, what: str, name: str, other: str, unit: str) -> list[float]:
    """The ratio of each round."""
    return [a[unit] / b[unit] for a, b in zip(times[what, name], times[what, other], strict=True)]


def report(times: Times) -> None:
    """Print what was reached, the aims first."""
    print(f"\n{'':52s}{'aim':>6s}{'ratio':>8s}  {'spread':13s}{'CPU':>6s}{'build':>7s}")
    for (what, name, other), aim in AIMS.items():
        found = sorted(ratios(times, what, name, other, "wall"))
        ratio = statistics.median(found)
        processors = statistics.median(ratios(times, what, name, other, "CPU"))
        alone = f"{statistics.median(ratios(times, what, name, other, 'build')):7.2f}" if "edit" in what else " " * 7
        label = f"{what}, {name} / {other}"
        print(
            f"{label:52s}{aim:6.2f}{ratio:8.2f}  {f'{found[0]:.2f} to {found[-1]:.2f}':13s}{processors:6.2f}{alone}"
            f"  {'reached' if ratio <= aim else 'NOT reached'}"
        )
    print(f"\n{'seconds, median over the rounds':52s}{'wall':>14s}{'CPU':>8s}{'build':>7s}")
    for (what, name), found in times.items():
        shown = {unit: statistics.median(each[unit] for each in found) for unit in found[0]}
        alone = f"{shown['build']:7.2f}" if "build" in shown else ""
        print(f"{f'{what}, {name}':52s}{shown['wall']:14.2f}{shown['CPU']:8.2f}{alone}")


def report_sizes(sites: dict[str, Site]) -> None:
    """Print how large the pages are."""
    print(f"\n{'bytes of a page, figures apart':32s}{'HTML':>10s}{'gzip':>8s}{'':14s}{'HTML':>10s}{'gzip':>8s}")
    for page in sites["ours"].pages:
        row = f"{page:32s}"
        for name in ("ours", "mkdocs-jupyter"):
            folder = sites[name].folder / "site" / page.removesuffix("index")
            html = (folder / "index.html").read_bytes()
            size = {"HTML": len(html), "gzip": len(gzip.compress(html, 6))}
            reached = all(size[kind] <= limit for kind, limit in LIMITS.items())
            row += f"{size['HTML']:10,}{size['gzip']:8,}  "
            row += f"{'reached' if reached else 'NOT reached':12s}" if name == "ours" else name
        print(row)


def say(text: str) -> None:
    """Tell a person who waits."""
    print(text, file=sys.stderr, flush=True)


def make_sites(folder: Path) -> dict[str, Site]:
    """The sites that are compared, by their names."""
    theirs = {"include": ["*.py"], "execute": True}
    ours = {"include": ["*.py"], "cache": False}
    sites = (
        Site(folder / "cached", "mkdocs-jupyter", [{"mkdocs-jupyter": theirs}]),
        Site(folder / "uncached", "mkdocs-jupyter, no cache", [{"mkdocs-jupyter": theirs | {"cache": False}}]),
        Site(folder / "ours", "ours", ["proofread", {"mkdocs-jupyter": ours}]),
        Site(folder / "plain", "plain Markdown", [], as_markdown=True),
    )
    return {site.name: site for site in sites}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="site-") as scratch:
        sites = make_sites(Path(scratch))
        machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
        print(f"{len(sources())} pages, {options.rounds} rounds, {machine}")
        times = measure(sites, options.rounds)
        report(times)
        report_sizes(sites)


if __name__ == "__main__":
    main()
