"""The pytest plugin: each cell, value, claim, formula and program of a page is a test, named by page and line.

A project says which files hold pages, as in ``proofread = ["docs"]`` under ``[tool.pytest.ini_options]``; without that
nothing of it is collected.

Pages run as for a build, once for all tests that were selected, and not again while nothing changes.
"""

import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .checks.checked import Checked
    from .checks.findings import Finding
    from .pages.page import Page

# This module is loaded by every pytest of an environment; what it needs, only where there are pages.
_PAGES = pytest.StashKey["dict[Path, Checked]"]()
_AS_SUCH = "page"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what a project and its user can set."""
    parser.addini("proofread", "files and folders whose pages are tests", type="args", default=[])
    group = parser.getgroup("proofread", "pages of documentation")
    group.addoption("--proofread-no-cache", action="store_true", help="run every page, whatever proofread has kept")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Collect a page as a page, and as nothing else: it is no module to import for its doctests."""
    collected = yield
    if _is_ours(file_path, parent.config):
        return [PageFile.from_parent(parent, path=file_path)]
    return collected


def _is_ours(path: Path, config: pytest.Config) -> bool:
    named = (config.rootpath / name for name in config.getini("proofread"))
    if path.suffix not in (".md", ".py") or not any(path.is_relative_to(name) for name in named):
        return False
    from .pages.page import is_page

    return is_page(path)


class PageFile(pytest.File):
    """A page, which collects what is checked on it."""

    def collect(self) -> Iterator["PageItem"]:
        """Read the page; nothing runs yet."""
        from .checks.checked import opened
        from .keep.shelf import Shelf
        from .pages.page import PageError
        from .settings import Settings, SettingsError

        root, keep = self.config.rootpath, not self.config.getoption("--proofread-no-cache")
        subjects: list[str] = []
        try:
            settings = Settings.load(root)
            checked = opened(self.path, root, settings, Shelf(root / settings.cache) if keep else None)
            if checked.mode == "off":
                return
            subjects += dict.fromkeys(subject.name for subject in checked.subjects)
        except PageError:
            pass  # the test of the page as such tells of it
        except SettingsError as error:
            raise self.CollectError(str(error)) from None
        for subject in (*subjects, _AS_SUCH):
            # pytest parts the names of tests by two colons, as Python does slices.
            yield PageItem.from_parent(self, name=subject.replace("::", ":"), subject=subject)


class PageItem(pytest.Item):
    """One thing that is checked on a page, or the page as such."""

    def __init__(self, *, subject: str, **keywords: Any):
        super().__init__(**keywords)
        self.subject = subject
        self.add_marker("proofread")

    def runtest(self) -> None:
        """Look at what was found."""
        from .checks.checked import ordered

        checked = _checked(self)
        reached = {subject.name: subject.is_reached for subject in checked.subjects}
        # A finding that belongs to none of the other tests must fail one, too.
        named = [each.subject if each.subject in reached else _AS_SUCH for each in checked.findings]
        found = [each for each, name in zip(checked.findings, named, strict=True) if name == self.subject]
        if not found and not reached.get(self.subject, self.subject == _AS_SUCH):
            stopped = next(iter(ordered(checked.findings)), "it is skipped")
            pytest.skip(f"the page did not come to this: {stopped}".split("\n")[0])
        if found:
            raise FoundError(found, checked.page)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        """Return the findings, without the frames that raised them."""
        return str(excinfo.value if isinstance(excinfo.value, FoundError) else super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where the test is told to be: on its line of the page."""
        number = self.subject.split(" ", 1)[0]
        return self.path, int(number) - 1 if number.isdigit() else 0, f"{self.path.name}: {self.name}"


class FoundError(AssertionError):
    """Something is wrong on a page."""

    def __init__(self, findings: "Iterable[Finding]", page: "Page"):
        messages = []
        for finding in findings:
            is_here = finding.path == page.path and finding.line <= len(page.lines)
            line = page.lines[finding.line - 1].strip() if is_here else ""
            messages.append(f"{finding}\n\n    {line}" if line else str(finding))
        super().__init__("\n\n".join(messages))


def _checked(item: PageItem) -> "Checked":
    """The item's page; the first that asks has all pages run of which tests were selected."""
    from .checks.check import check
    from .keep.files import relative

    root = item.config.rootpath
    pages = item.session.stash.setdefault(_PAGES, {})
    if item.path not in pages:
        asked = [each for each in item.session.items if isinstance(each, PageItem)]
        paths = list(dict.fromkeys(each.path for each in asked))
        keep = not item.config.getoption("--proofread-no-cache")
        with _alone(item.config) if keep else nullcontext():
            report = check(
                paths,
                root=root,
                keep=keep,
                programs={(relative(each.path, root), each.subject) for each in asked if " snippet " in each.subject},
            )
        for finding in report.between:
            # A finding of a docstring fails the first page, for want of one that it belongs to.
            own = (checked for checked in report.pages if checked.page.path == finding.path)
            next(own, report.pages[0]).findings.append(finding)
        pages |= zip(paths, report.pages, strict=True)
    return pages[item.path]


def _alone(config: pytest.Config) -> AbstractContextManager[object]:
    """Let one worker of pytest-xdist check at a time: it uses all cores, and the next takes what it has kept.

    Pages alone would need no such lock, as none runs twice at once. Their programs do.
    """
    workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    if workers == "1":
        return nullcontext()
    from filelock import FileLock

    from .settings import Settings

    folder = config.rootpath / Settings.load(config.rootpath).cache
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # checking tells of it
        return nullcontext()
    return FileLock(folder / "tests.lock")


def pytest_configure(config: pytest.Config) -> None:
    """Name the mark by which all these tests can be selected."""
    config.addinivalue_line("markers", "proofread: a test of a page: `-m proofread` selects them all")
