"""What flips or stands near an edge on other machines, told apart on this one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from proofread.checks import machines
from proofread.checks.machines import Compared, chosen, compare, variables
from proofread.cli import main
from proofread.pages.numbers import Number, Typed
from proofread.settings import Settings

PAGE = """\
# %%
import locale, os, time
import torch

threads = torch.get_num_threads()
kind = os.environ.get("ATEN_CPU_CAPABILITY", "its own")
best = "its first" if torch.backends.cpu.get_cpu_capability() == "DEFAULT" else "its best"
drift = 0.4242 + 1e-9 * threads
edge = 0.125 - 1e-9
near = 0.125 - 1e-5 * threads

# %% [markdown]
# It runs on one<!--= threads --> thread, and says {{ threads }}.
# The clock is `UTC`<!--= time.tzname[0] -->.
# Text is `utf-8`<!--= locale.getpreferredencoding(False).lower() -->.
# It computes as *its own*<!--= kind --> can.
# It is 42%<!--= drift -->, on every machine.
# It is 12%<!--= edge -->, or 12.5%<!--= edge -->.
# It is {{ near :.1%}}, or 12%<!--= near -->.
# On every machine it is two<!--= 3 * threads // threads -->.
# PyTorch computes by *its best*<!--= best -->.
"""


# Where it is not to be had, the processor without its best is none of the machines.
NEAR = "this" if variables("plain") is None else "this, plain"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """One page on this machine, on another processor, and as far away as it goes."""
    root = tmp_path_factory.mktemp("machines")
    (root / "page.py").write_text(PAGE)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ATEN_CPU_CAPABILITY", raising=False)
        patch.setenv("LC_ALL", "C.UTF-8")
        patch.setenv("TZ", "UTC0")
        return compare([root / "page.py"], root=root, settings=Settings())


def on(compared: Compared, line: int) -> list[str]:
    return [finding.message for finding in compared.findings if finding.line == line]


def test_a_claim_that_flips_is_found_with_the_machines_on_which_it_does(compared: Compared) -> None:
    flip, read = sorted(on(compared, 13))
    assert flip == f"it says one, but threads gives two: on far, not on {NEAR}"
    assert read.startswith(f"{{{{ threads }}}} reads 1 on {NEAR}; 2 on far: ")
    assert {finding.kind for finding in compared.findings if finding.line == 13} == {"machine"}


def test_a_time_zone_and_a_locale_that_flip_are_found(compared: Compared) -> None:
    assert on(compared, 14) == [f"it says UTC, but time.tzname[0] gives NPT: on far, not on {NEAR}"]
    (encoding,) = on(compared, 15)
    assert encoding.startswith("it says utf-8, but locale.getpreferredencoding(False).lower() gives ")
    assert encoding.endswith(f": on far, not on {NEAR}")


@pytest.mark.skipif(variables("plain") is None, reason="needs to be told what the processor has: run it on Linux")
def test_an_emulated_processor_is_another_one(compared: Compared) -> None:
    assert on(compared, 16) == ["it says its own, but kind gives default: on plain, far, not on this"]
    if torch.backends.cpu.get_cpu_capability() != "DEFAULT":  # else this machine is such a one
        (vectors,) = on(compared, 21)
        assert vectors.endswith(" gives its first: on plain, far, not on this")


def test_a_figure_at_a_rounding_edge_is_found_and_one_that_merely_moves_is_not(compared: Compared) -> None:
    assert on(compared, 17) == []
    (edge,) = on(compared, 18)
    assert edge.startswith("12% stands at a rounding edge: edge gives 0.124999999, and another machine may ")
    # A thousandth of a unit away, and as far as that it moves from one machine to the next.
    assert [message.split(" stands")[0] for message in on(compared, 19)] == ["12%"]


def test_what_is_wrong_everywhere_is_found_once_as_ever(compared: Compared) -> None:
    (finding,) = (finding for finding in compared.findings if finding.line == 20)
    assert finding.message == "it says two, but 3 * threads // threads gives three"
    assert finding.kind == "value"


@pytest.mark.parametrize(
    ("told", "plain"),
    [("flags : fpu sse sse2 avx avx2", "COMPATIBLE"), ("Features : fp asimd sve", "ARMV8"), ("", None)],
    ids=["x86", "ARM", "unknown"],
)
def test_only_what_this_processor_can_do_is_emulated(
    monkeypatch: pytest.MonkeyPatch, told: str, plain: str | None
) -> None:
    monkeypatch.setattr(machines, "cpuinfo", lambda: told)
    taken = chosen(["plain", "far"])
    assert [*taken] == ["this", *["plain"] * (plain is not None), "far"]
    assert taken["this"] == {}
    assert all((plain in taken[name].values()) == (plain is not None) for name in [*taken][1:])
    assert taken["far"]["OMP_NUM_THREADS"] == "2"


def test_what_cannot_be_emulated_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "cpuinfo", lambda: "")
    (tmp_path / "page.md").write_text("# A page\n")
    compared = compare([tmp_path / "page.md"], root=tmp_path, settings=Settings(), names=["plain"])
    assert str(compared).startswith("plain: not here: this system does not say that its processor has sse2 or asimd\n")


@pytest.mark.parametrize("outside", [True, False], ids=["what Python imports", "the project"])
def test_a_machine_keeps_its_locale_where_another_has_no_name_for_a_path_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outside: bool
) -> None:
    """In the C locale Python neither starts from such a folder nor opens what is in it."""
    accented = tmp_path / "é"
    root = tmp_path if outside else accented
    accented.mkdir()
    (root / "page.py").write_text(
        "# %%\nimport locale, time\n\n# %% [markdown]\n"
        "# Text is `utf-8`<!--= locale.getpreferredencoding(False).lower() -->.\n"
        "# The clock is `UTC`<!--= time.tzname[0] -->.\n"
    )
    if outside:
        monkeypatch.syspath_prepend(str(accented))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("TZ", "UTC0")
    compared = compare([root / "page.py"], root=root, settings=Settings(), names=["far"])
    assert f", but for the locale, which has no name for {accented}" in str(compared)
    assert [finding.line for finding in compared.findings] == [6]  # the clock's alone


@pytest.mark.parametrize(
    ("typed", "value", "room"),
    [
        ("55%", 0.55, (0.005, 0.01)),
        ("55%", 0.5512, (0.0038, 0.01)),
        ("0.551", 0.5505, (0.0, 0.001)),
        ("3 × 10⁻⁸", 3.2e-8, (0.3e-8, 1e-8)),
        ("1,235", 1234.6, (0.1, 1.0)),
    ],
)
def test_room_is_what_a_value_may_move_until_it_is_shown_otherwise(
    typed: str, value: float, room: tuple[float, float]
) -> None:
    number = Number.parse(typed)
    assert number is not None
    assert number.room(value, slack=False) == pytest.approx(room, abs=1e-12)


@pytest.mark.parametrize(("typed", "value"), [("13", 13), ("0", 0.0), ("3", float("inf"))])
def test_what_no_rounding_comes_between_has_no_room(typed: str, value: float) -> None:
    number = Number.parse(typed)
    assert number is not None
    assert number.room(value) is None


def test_numbers_stand_with_what_says_them() -> None:
    assert [*Typed.parse("(0.5, 12%)").numbers([0.5, 0.12])] == [("0.5", 0.5), ("12%", 0.12)]
    assert [*Typed.parse("(2, 3)").numbers([2])] == [("", 2)]
    assert [*Typed.parse("larger").numbers(True)] == []


def test_one_object_tells_an_editor_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("page.py").write_text("# %%\nimport torch\n\n# %% [markdown]\n# 1<!--= torch.get_num_threads() -->\n")
    assert main(["check", "page.py", "--machine", "far", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [each["kind"] for each in told["findings"]] == ["machine"]
    assert told["machines"] == {"far": machines.SAYS["far"]}
    kept = Path(".cache/proofread")
    assert [*kept.glob("runs/*/*.json")]
    assert [*kept.glob("machines/far/runs/*/*.json")]
    assert main(["cache", "prune", "--all"]) == 0
    assert not (kept / "machines").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [(["far"], 0, ""), (["mars"], 1, "NAME prints the variables of one of plain, far"), ([], 1, "NAME prints")],
)
def test_the_variables_of_a_machine_are_printed_or_it_is_an_error(arguments: list[str], code: int, told: str) -> None:
    command = [sys.executable, "-m", "proofread.checks.machines", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert told in done.stderr
    assert ("OMP_NUM_THREADS=2" in done.stdout.split()) == (code == 0)
