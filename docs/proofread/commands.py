# %% [markdown]
# # Commands
#
# **`proofread check docs` says what is wrong, `proofread fix docs` mends the values.** Findings go to standard output,
# one a line; progress goes to standard error: a bar on a terminal, plain lines in a log.
#
# {{ listed(["Command", "Does"], commands) }}
#
# Without a path, `check`, `run` and `fix` take what the setting `pages` names. Each takes `--help`, which
# says the rest. The project is the nearest folder with a `pyproject.toml`, seen from where you are: the commands work
# in every folder below it, and name files as seen from the project.
#
# ## Exit codes
#
# {{ listed(["Code", "Means"], codes) }}
#
# ## Other machines
#
# Two processors may add in another order, and a sum may differ in its last bit. So a value can round to another digit
# on a reader's machine, and what is *equal* here can differ there. `--machines` runs the pages as other machines would
# too, one after another, each in a process of its own. Variables such as `MKL_CBWR` and `OMP_NUM_THREADS` make the
# difference:
#
# {{ listed(["Machine", "Is"], kinds) }}
#
# `--machine far` compares that one alone with this machine. One that cannot be had is left out, and the summary says
# so. Findings are:
#
# - what is wrong on one machine and not on another;
# - a value that a page computes and that reads otherwise on another;
# - a value so near a rounding edge that another machine could show another digit: nearer than a ten-thousandth of its
#   last digit, or than four times<!--= machines.FURTHER --> as far as it moves between the machines tried.

# %%
#| timeout: 300
import json
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from proofread.checks import machines
from proofread.cli import main


def check(page, *options):
    with (
        TemporaryDirectory() as folder,
        chdir(folder),
        redirect_stdout(StringIO()) as out,
        redirect_stderr(StringIO()),
    ):
        Path("page.py").write_text(page)
        main(["check", "page.py", *options])
    return out.getvalue()


PAGE = """\
# %%
import os
threads = int(os.environ["OMP_NUM_THREADS"])

# %% [markdown]
# It runs on one<!--= threads --> thread.
"""
print(check(PAGE, "--machine", "far"))

# %% [markdown]
# Such a page passes on this machine alone.
#
# Programs are tried on this machine alone, by `proofread check` without `--machines`. A test suite can be run as one of
# these machines, too:
#
# ```console
# $ env $(python -m proofread.checks.machines far) pytest
# ```
#
# ## What nobody holds
#
# Words that no assert quotes are anybody's. `proofread check --unproved` lists the sentences, captions and alt texts of
# which no claim quotes a part, if they compare (*larger*, *twice*, *falls*, *all*) or say a value:

# %%
PAGE = """\
# %% [markdown]
# The ship takes more than the crew. It has 2<!--= n --> masts, and a name.
#
# Both are at sea.

# %%
n = 2
"""
print(check(PAGE, "--unproved"))

# %% [markdown]
# Each of them is for a person to prove, or to leave. `--waivers` lists what is waived, and why.
#
# ## For editors
#
# `proofread check --json` writes one object. Each finding has its place, its kind, and, where `proofread fix` could
# mend it, the change:

# %%
PAGE = "# %%\nn = 13\n\n# %% [markdown]\n# All 12<!--= n --> of them.\n"
json.loads(check(PAGE, "--json"))["findings"]

# %% [markdown]
# Lines count from one, columns from zero. `column` is where on its line a finding begins, or null where it is the
# line's.
#
# The tables of this page are made of what the commands themselves say:

# %% tags=["no-snippet"]
import re

with redirect_stdout(StringIO()) as told, suppress(SystemExit):
    main(["--help"])
lines = told.getvalue()
commands = [
    (f"`proofread {name}`", does)
    for name, does in re.findall(r"^    (\w+) {2,}(.+)$", lines, re.MULTILINE)
]
codes = re.findall(
    r"^  (\d+) +(.+)$", lines[lines.index("exit codes") :], re.MULTILINE
)
kinds = [(f"`{name}`", says) for name, says in machines.SAYS.items()]


def listed(headings, rows):
    """A Markdown table."""
    return "\n".join(
        f"| {' | '.join(row)} |"
        for row in (headings, ["---"] * len(headings), *rows)
    )
