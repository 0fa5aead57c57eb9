"""The command line: ``proofread check docs``."""

import argparse
import contextlib
import json
import logging
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import settings as config
from . import streams
from .checks import machines
from .checks.check import check, project_pages
from .checks.checked import Checked, Report, count
from .checks.findings import BROKEN, KINDS, Finding, listed
from .checks.fix import fixes
from .checks.progress import shown
from .checks.unproved import unproved
from .keep import shelf
from .pages.page import find_pages
from .publish.extra import MissingError, demand
from .runs.cache import Cache
from .settings import Settings, SettingsError

_DESCRIPTION = """\
Run documentation pages and check every value, claim and formula in their prose.

A page is a percent script (a .py file with # %% cells) or a Markdown file, whose ```python
fences run. In its prose an author writes

  keeps 55%<!--= weights[6, 6] --> of itself    a value, and what must give it
  {{ weights[6, 6] :.0%}}                       a value that the page computes
  in 2017<!--~ year of publication -->          a value that is waived, and why
  <!--~ 8, 64: sizes of our choice -->          alone on a line: these values of the next block
  $$S = Q K^\\top$$ <!-- where: S = scores -->   a formula, and what its symbols are
  $$O(n^2)$$ <!-- unchecked: an order -->       a formula that is waived, and why

A cell tagged claims, or a ```claims fence inside of <!-- -->, proves sentences:

  assert a > b, "ours is larger"                what must be true, and a fragment of the page
  assert a.equal(b), "so"  # to the bit: a copy computed numbers equal to the last bit, and why

and in code cells stand

  #| alt: what the figure shows                 for every figure that the cell draws
  #| raises: ValueError: must be positive       a cell that must fail: how, and a part of its message
  #| timeout: 300                               seconds, where the usual limit is too short

further tags: hide-input, hide-output, remove-cell, no-snippet, solution and check (folded away).

What a project sets stands under [tool.proofread] in its pyproject.toml: timeout, memory, output,
workers, start, cache, packages, cite_equations, data, pages, rich, modes, docstrings. The project
is the nearest folder that has one, seen from where you are; pages run there, and findings name files
as seen from there.
"""
_CODES = """\
exit codes:
  0    nothing found
  1    findings
  2    wrong usage: a path, an option or a setting is invalid
  3    proofread could not do its work: no room on the disk, something is not installed
  130  stopped, by Ctrl-C for one
"""
_MACHINES = "\n\nThe machines:\n\n"
_CHECK = """\
Check pages, and run those that changed; try the programs of their cells. Each finding is one line on stdout,

  docs/page.py:12: it says 55%, but weights[6, 6] gives 54%

Progress and the summary go to stderr. With --json, stdout is one object for editors:

  {"pages": [{"path", "mode", "why", "seconds", "figures", "formulas", "waived": [{"line", "reason"}],
              "unproved": [{"line", "where", "words", "compares"}]}],
   "findings": [{"path", "line", "column", "kind", "message", "detail", "subject", "edit"}]}

With --machines, the pages run as on other machines too, one after the other: what is found on one
and not on another, what reads otherwise, and which value stands so near a rounding edge that some
machine may round it to another one are findings. Programs are not tried. The JSON object then has

  "machines": {name: how it is emulated here, or why not}

"unproved" is what --unproved lists: what a sentence of the "prose", a "caption" or an "alt" says without a
claim that quotes a part of it, though it compares or, where "compares" is false, says a value;
"why" says why a page ran, and is "" if it did not; "seconds" is how long its last run took;
"column", or null, is where on its line a finding begins; "edit", or null, is the change that
`proofread fix` would make: {"start": [line, column], "end": [line, column], "old", "new"};
lines count from 1, columns from 0.
The kinds of findings:

"""


_Option = tuple[Sequence[str], dict[str, Any]]


class UsageError(ValueError):
    """The command was not given what it needs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    # A signal that ends us politely ends the pages that run, too.
    with contextlib.suppress(ValueError):  # not in the main thread
        for sent in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):  # Windows has no terminal to hang up
            signal.signal(sent, signal.default_int_handler)
    with streams.guarded():
        try:
            return _exit_code(arguments)
        finally:
            if arguments is None:  # this process ends now, and nobody needs to stop it
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.SIG_IGN)


def _exit_code(arguments: Sequence[str] | None) -> int:
    """Run the command that the arguments name, print its errors, and return its exit code."""
    try:
        try:
            options = _parser().parse_args(arguments)
            code: int = options.command(options)
        finally:  # help, too, ends by an exception
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("stopped; what had run to its end is kept", file=sys.stderr)
        return 130
    except (SettingsError, UsageError) as error:
        print(f"proofread: {error}", file=sys.stderr)
        return 2
    except (OSError, MissingError) as error:
        print(f"proofread: {error}", file=sys.stderr)
        return 3


def _parser() -> argparse.ArgumentParser:
    layout: dict[str, Any] = {"epilog": _CODES, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(prog="proofread", description=_DESCRIPTION, **layout)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(call: Callable[[argparse.Namespace], int], summary: str, text: str, *options: _Option) -> None:
        """Add a command that is named as its function is, without the underscore."""
        subparser = commands.add_parser(call.__name__.removeprefix("_"), help=summary, description=text, **layout)
        subparser.set_defaults(command=call)
        for names, how in options:
            subparser.add_argument(*names, **how)

    paths = _option(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="pages, or folders that hold some (default: what the setting `pages` names)",
    )
    settings = (
        _option("--timeout", help="seconds that a cell may take"),
        _option("--memory", help='bytes that a page may take, such as "8 GiB"'),
        _option("--workers", help="pages run side by side (default: one per core)"),
        _option("--start", help="how pages get their processes: fork, or spawn where forks are missing or distrusted"),
        _option("--no-cache", action="store_true", help="run every page, whatever is kept"),
    )
    running = paths, *settings
    kinds = "\n".join(f"  {kind:<11} {meaning}" for kind, meaning in KINDS.items())
    others = "\n".join(f"  {name:<11} {says}" for name, says in machines.SAYS.items())
    compare_all = f"compare what other machines give: {' and '.join(machines.SAYS)}"
    command(
        _check,
        "check pages, and run those that changed",
        _CHECK + kinds + _MACHINES + others,
        _option("--waivers", action="store_true", help="list what is waived, and why"),
        _option("--unproved", action="store_true", help="list what compares or says a value, and no claim quotes"),
        _option("--machines", action="store_const", const=[*machines.SAYS], help=compare_all),
        _option(
            "--machine",
            action="append",
            dest="machines",
            choices=machines.SAYS,
            help="compare what this one gives",
        ),
        _option("--json", action="store_true", help="write one JSON object to stdout"),
        *running,
    )
    command(
        _run,
        "run pages and show what their cells give",
        "Run pages and show what each cell gives, as text:\n\n  proofread run docs/page.py --cell 3",
        _option("--cell", type=int, help="show this cell alone; cells count from 1, those of prose too"),
        *running,
    )
    command(
        _fix,
        "put right what was typed wrong",
        "Put right the values that were typed wrong, in the form in which they were typed, and let claims quote the\n"
        "sentences anew that lost or gained a comma or a small word:\n\n"
        "  proofread fix docs/page.py --diff     see what would change\n"
        "  proofread fix docs/page.py            change it\n\n"
        "A claim that does not hold is left to its author, and so is a value whose sentence has others that are\n"
        "waived. Exit code 0: all is right now.",
        _option("--diff", "--dry-run", action="store_true", help="show the change and write nothing"),
        *running,
    )
    command(
        _snippet,
        "print the program of a cell",
        "Print the program of a cell: it runs alone and prints what the cell shows,\n\n"
        "  proofread snippet docs/page.py:27             of the cell at line 27",
        _option("place", metavar="PAGE:LINE"),
        *settings,
    )
    command(
        _export,
        "write the site for another generator",
        "Write a whole site, its pages run and checked, as a project that Zensical builds as it is:\n\n"
        "  proofread export mkdocs.yml --output moved\n"
        "  cd moved && zensical build",
        _option("site", type=Path, metavar="SITE", help="the site's mkdocs.yml"),
        _option("--output", type=Path, required=True, help="a folder that is not there, or was exported before"),
        _option("--anyway", action="store_true", help="whatever is found on the pages"),
    )
    command(
        _cache,
        "show or remove the runs that are kept",
        "The runs that are kept, and what has changed since:\n\n"
        "  proofread cache show\n  proofread cache prune            remove those that nothing would take any more\n"
        "  proofread cache prune --all",
        _option("action", choices=("show", "prune")),
        _option("--all", action="store_true", help="remove all of them"),
    )
    return parser


def _option(*names: str, **how: Any) -> _Option:
    return names, how


def _pages(options: argparse.Namespace) -> list[Path]:
    """Return the pages that the paths name or hold; without paths, those of the project."""
    paths = options.paths or project_pages(Settings.load(_project()), _project())
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist; name pages, or folders that hold some")
    pages = find_pages(paths)
    if not pages:
        searched = ", ".join(map(str, paths)) or _project()
        raise UsageError(f"no pages in {searched}: neither .md nor .py with # %% cells")
    return pages


def _report(options: argparse.Namespace, **how: Any) -> Report:
    """Check the pages that were named, and show the progress."""
    pages = _pages(options)
    with contextlib.closing(shown(sys.stderr, len(pages))) as progress:
        return check(pages, **_run_settings(options), **how, progress=progress)


def _compared(options: argparse.Namespace) -> machines.Compared:
    """Check the pages that were named as on several machines, and show the progress."""
    pages, names = _pages(options), options.machines
    with contextlib.closing(shown(sys.stderr, len(pages) * len(machines.chosen(names)))) as progress:
        return machines.compare(pages, **_run_settings(options), names=names, progress=progress)


def _project() -> Path:
    """Return the nearest folder at or above this one that has a pyproject.toml, or else this one."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / "pyproject.toml").exists()), here)


def _run_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return what says where and how pages run, as arguments of `check`: the project's settings, then the options."""
    values = {name: getattr(options, name) for name in ("timeout", "memory", "workers", "start")}
    parsed = config.parsed({name: text for name, text in values.items() if text is not None})
    settings = replace(Settings.load(_project()), **parsed)
    return {"root": _project(), "settings": settings, "keep": not getattr(options, "no_cache", True)}


def _check(options: argparse.Namespace) -> int:
    compared = _compared(options) if options.machines else None
    report = compared.report if compared else _report(options, programs=True)
    findings = (compared or report).findings
    if options.json:
        answer: dict[str, Any] = {"pages": list(map(_as_json, report.pages)), "findings": list(map(asdict, findings))}
        if compared:
            answer |= {"machines": compared.machines}
        print(json.dumps(answer, indent=1))
    else:
        _tell(findings)
        for checked in report.pages if options.waivers else ():
            for line, reason in _waived(checked):
                print(f"{checked.page.at(line)}: waived: {reason}")
        for checked in report.held if options.unproved else ():
            for each in unproved(checked):
                print(f"{checked.page.at(each.line)}: unproved {each.where}: {each.words}")
    print(compared or report, file=sys.stderr)
    return 1 if findings else 0


def _run(options: argparse.Namespace) -> int:
    report = _report(options)
    cells = {
        checked.page.path: [n for n, cell in enumerate(checked.page.cells, 1) if cell.is_code and not cell.holds_claims]
        for checked in report.pages
    }
    if options.cell is not None and not any(options.cell in numbers for numbers in cells.values()):
        there = ", ".join(f"{path}: {', '.join(map(str, numbers)) or 'none'}" for path, numbers in cells.items())
        raise UsageError(f"--cell ({options.cell}) is no code cell; there are {there}")
    for checked in report.pages:
        for number in cells[checked.page.path]:
            if options.cell in (None, number):
                cell = checked.page.cells[number - 1]
                print(f"── {checked.page.at(cell.line)} cell {number}\n{cell.shown}")
                for output in checked.outputs(number - 1):
                    print("→ " + _as_text(output).rstrip("\n").replace("\n", "\n  "))
    failed = [finding for finding in report.findings if finding.kind in BROKEN]
    _tell(failed, file=sys.stderr)
    return 1 if failed else 0


def _as_text(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return str(output["text"])
    if output["output_type"] == "error":
        return f"{output['ename']}: {output['evalue']}"
    return str(output["data"].get("text/plain", ", ".join(output["data"])))


def _fix(options: argparse.Namespace) -> int:
    report = _report(options)
    changes = list(fixes(report.findings, _project()))
    mended = {(change.path, edit) for change in changes for edit in change.edits}
    left = [finding for finding in report.findings if (finding.path, finding.edit) not in mended]
    for change in changes:
        if options.diff:
            print(change.diff(), end="")
            continue
        change.apply()
        for edit in change.edits:
            old = re.sub(r"\s*\n[\s#|>]*", " ", edit.old)  # from several lines of a script's prose
            print(f"{change.path}:{edit.start[0]}: {old} -> {edit.new}")
    _tell(left, file=sys.stderr)
    return 1 if left or (options.diff and changes) else 0


def _snippet(options: argparse.Namespace) -> int:
    path, _, line = options.place.rpartition(":")
    if not path or not line.isdigit():
        raise UsageError(f"{options.place} is no place; name a page and a line of it, such as docs/page.py:27")
    options.paths = [Path(path)]
    (checked,) = _report(options).pages
    index = max((i for i, cell in enumerate(checked.page.cells) if cell.line <= int(line)), default=0)
    if not checked.page.cells or not checked.page.cells[index].is_code:
        raise UsageError(f"{options.place} is in no cell of code")
    snippet = checked.snippets.get(index)
    program = checked.program(index)
    if not program:
        reason = (snippet and snippet.reason) or "it has not run, or is tagged so"
        print(f"{options.place}: the cell has no program: {reason}", file=sys.stderr)
        return 1
    print(program, end="")
    return 0


def _export(options: argparse.Namespace) -> int:
    if not options.site.is_file():
        raise UsageError(f"{options.site} is no file; name the site's mkdocs.yml")
    demand()
    from .publish.site import ExportError, NotBuiltError, export_site  # here alone: it imports MkDocs

    logger = logging.getLogger("mkdocs")
    logger.addHandler(handler := logging.StreamHandler())
    logger.getChild("plugins.proofread").setLevel(logging.INFO)
    try:
        export_site(options.site, options.output, anyway=options.anyway)
    except ExportError as error:
        raise UsageError(str(error)) from None
    except NotBuiltError as error:
        print(f"{error} Nothing is exported.", file=sys.stderr)
        return 1
    finally:
        logger.removeHandler(handler)
    print(f"{options.output} holds the site; `zensical build` makes it there", file=sys.stderr)
    return 0


def _cache(options: argparse.Namespace) -> int:
    cache = Cache(_project() / Settings.load(_project()).cache)
    entries = list(cache.entries())
    if options.action == "prune":
        dropped = [entry for entry in entries if options.all or entry.stale]
        freed = cache.prune(dropped) + shelf.prune(cache.directory, options.all)
        freed += machines.prune(cache.directory) if options.all else 0
        print(f"removed {len(dropped)} of {len(entries)} runs, {freed / 1e6:.1f} MB")
        return 0
    for entry in entries:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.kept))
        state = f"stale: {entry.stale}" if entry.stale else "current"
        print(f"{when}  {entry.size / 1e3:6.0f} kB  ran {entry.seconds:5.1f} s  {entry.page}  {state}")
    size = sum(entry.size for entry in entries)
    print(f"{count(len(entries), 'run')}, {size / 1e6:.1f} MB, in {cache.directory}")
    return 0


def _tell(findings: Sequence[Finding], **where: Any) -> None:
    for line in listed(findings):
        print(line, **where)


def _waived(checked: Checked) -> list[tuple[int, str]]:
    """Return the line and the reason of each waiver of a page."""
    values = [(text.line + line, reason) for text in checked.texts for line, reason in text.prose.waivers]
    formulas = [(text.line + f.line, f.unchecked) for text in checked.texts for f in text.formulas if f.unchecked]
    return sorted(values + formulas)


def _as_json(checked: Checked) -> dict[str, Any]:
    return {
        "path": checked.page.path,
        "mode": checked.mode,
        "why": checked.why,
        "seconds": round(checked.seconds, 2),
        "figures": sum(len(text.questions) for text in checked.texts),
        "formulas": sum(formula.unchecked is None for text in checked.texts for formula in text.formulas),
        "waived": [{"line": line, "reason": reason} for line, reason in _waived(checked)],
        "unproved": [asdict(each) for each in unproved(checked)] if checked.mode == "check" else [],
    }
