"""The command line: ``python -m proofread check docs``."""

import argparse
import contextlib
import signal
import sys
from pathlib import Path

from .cache import CacheError
from .check import check, find_pages
from .config import SettingsError
from .progress import shown

_DESCRIPTION = """\
Run documentation pages and check every figure, claim and formula in their prose.

A page is a percent script (a .py file with # %% cells) or a Markdown file, whose ```python
fences run. In its prose an author writes

  keeps 55%<!--= weights[6, 6] --> of itself    a figure, and what must give it
  is larger<!--= a > b -->                      a claim, and what must be True
  {{ weights[6, 6] :.0%}}                       a figure that the page computes
  <!--== ... -->, {{= ... }}                    the same, as the page stands at its end
  in 2017<!--~ year of publication -->          a figure that is waived, and why; alone on a
                                                line, for all figures of the next block
  $$S = Q K^\\top$$ <!-- where: S = scores -->   a formula, and what its symbols are
  $$O(n^2)$$ <!-- unchecked: an order -->       a formula that is waived, and why

and in its code cells

  # %% tags=["raises-exception"]                a cell that must fail
  #| alt: what the figure shows                 for every figure that the cell draws
  #| timeout: 300                               seconds, where the usual limit is too short

further tags: hide-input, hide-output, remove-cell, solution (folded away).

Each finding is one line, page:line: message. Exit code: 0 nothing found, 1 findings, 2 wrong usage.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    # Whoever ends us politely ends the pages that run, too.
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _main(arguments)
    except KeyboardInterrupt:
        print("stopped; what had run to its end is kept", file=sys.stderr)
        return 130
    except (SettingsError, CacheError) as error:
        print(f"proofread: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 3


def _main(arguments: list[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="proofread", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="check")
    checking = commands.add_parser("check", help="check pages, and run those that changed")
    checking.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="pages, or folders that hold some")
    checking.add_argument("--no-cache", action="store_true", help="run every page, whatever the cache holds")
    options = parser.parse_args(arguments)
    for path in options.paths:
        if not path.exists():
            checking.error(f"{path} does not exist")
    pages = find_pages(options.paths)
    if not pages:
        checking.error(f"no pages in {', '.join(map(str, options.paths))}: neither .md nor .py with # %% cells")
    progress = shown(sys.stderr, len(pages))
    report = check(pages, keep=not options.no_cache, progress=progress)
    progress.close()
    for finding in report.findings:
        print(finding)
    print(report, file=sys.stderr)
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
