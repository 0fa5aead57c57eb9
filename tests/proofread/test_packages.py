"""The library and proofread are packages of their own, and proofread works where nothing else is installed."""

import email
import importlib.metadata as metadata
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FOREIGN = Path(__file__).parent / "foreign"
PROJECTS = {"attention_unmasked": ROOT, "proofread_docs": ROOT / "src" / "proofread"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheels")
    for project in PROJECTS.values():
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(build, cwd=project, check=True, capture_output=True, text=True)
    return {file.name.partition("-")[0]: zipfile.ZipFile(file) for file in folder.glob("*.whl")}


def read(wheel: zipfile.ZipFile, name: str) -> str:
    return next((wheel.read(each).decode() for each in wheel.namelist() if each.endswith(f".dist-info/{name}")), "")


def required(wheel: zipfile.ZipFile) -> list[Requirement]:
    return [
        Requirement(each) for each in email.message_from_string(read(wheel, "METADATA")).get_all("Requires-Dist", [])
    ]


PACKAGES = {
    "attention_unmasked": {"unmasked", "unmasked_doctor", "unmasked_lessons"},
    "proofread_docs": {"proofread"},
}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_wheel_holds_its_own_packages_alone(wheels: dict[str, zipfile.ZipFile], name: str) -> None:
    assert wheels.keys() == PROJECTS.keys()
    of = [file for file in wheels[name].namelist() if ".dist-info/" not in file]
    assert {file.split("/")[0] for file in of} == PACKAGES[name]
    source = ROOT / "src"
    files = [path for package in PACKAGES[name] for path in (source / package).rglob("*") if path.is_file()]
    kept = {path.relative_to(source).as_posix() for path in files if "__pycache__" not in path.parts}
    left = {"proofread/LICENSE", "proofread/README.md", "proofread/pyproject.toml", "unmasked_lessons/data/make.py"}
    left |= {"unmasked_lessons/data/.gitattributes"}
    left |= {path for path in kept if path.startswith("unmasked_lessons/figures/") and path.endswith((".css", ".js"))}
    assert {*of} == kept - left
    assert "MIT License" in read(wheels[name], "licenses/LICENSE")


def test_the_library_needs_torch_alone_and_puts_nothing_into_its_users_tests(
    wheels: dict[str, zipfile.ZipFile],
) -> None:
    needed = required(wheels["attention_unmasked"])
    assert [each.name for each in needed if not each.marker] == ["torch"]
    entries = read(wheels["attention_unmasked"], "entry_points.txt").split("\n")
    assert list(filter(None, entries)) == ["[console_scripts]", "unmasked = unmasked_doctor._command:main"]


def test_no_name_is_taken_from_an_index_that_may_be_anothers_there(wheels: dict[str, zipfile.ZipFile]) -> None:
    names = {each.name for wheel in wheels.values() for each in required(wheel)}
    assert names & {"proofread", "proofread-docs", "unmasked"} == set()
    assert not any(name.startswith(("proofread", "unmasked")) for name in names)


def test_proofread_needs_no_torch(wheels: dict[str, zipfile.ZipFile]) -> None:
    assert "torch" not in {each.name for each in required(wheels["proofread_docs"])}
    code = "".join(wheels["proofread_docs"].read(each).decode() for each in wheels["proofread_docs"].namelist())
    assert not re.search(r"^\s*(?:import|from) unmasked\b", code, re.MULTILINE)


def closure(needed: Iterator[Requirement] | list[Requirement], extras: set[str]) -> set[str]:
    """The names of all distributions that are required, and of those that these require."""
    found: set[str] = set()
    waiting = [(each, extras) for each in needed]
    while waiting:
        each, asked = waiting.pop()
        if each.marker and not any(each.marker.evaluate({"extra": extra}) for extra in {*asked, ""}):
            continue
        if (key := f"{each.name} {sorted(each.extras)}") not in found:
            found.add(key)
            waiting += [(Requirement(text), each.extras) for text in metadata.requires(each.name) or []]
    return {key.partition(" ")[0] for key in found}


def environment(folder: Path, wheel: zipfile.ZipFile, extras: set[str]) -> Path:
    """The Python of an environment that has a wheel, what this says that it needs, pytest, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    wheel.extractall(packages)
    for name in closure([*required(wheel), Requirement("pytest")], extras):
        files = metadata.files(name) or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))
    (folder / "share").symlink_to(Path(sys.prefix) / "share")  # where distributions keep data, such as templates
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def alone(wheels: dict[str, zipfile.ZipFile], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has proofread with its extra."""
    return environment(tmp_path_factory.mktemp("alone"), wheels["proofread_docs"], {"mkdocs"})


@pytest.fixture(scope="module")
def bare(wheels: dict[str, zipfile.ZipFile], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has proofread without its extra."""
    return environment(tmp_path_factory.mktemp("bare"), wheels["proofread_docs"], set())


def told(python: Path, root: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    """What a Python says in a project, whose own modules are in its folder `source`."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    outside |= {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # where text is ASCII
    ran = subprocess.run(
        [python, *arguments],
        cwd=root,
        env=outside | {"PYTHONPATH": str(root / "source")},
        text=True,
        capture_output=True,
        check=False,
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout, ran.stderr


def test_proofread_alone_checks_tests_and_builds_anothers_project(alone: Path, tmp_path: Path) -> None:
    root = tmp_path / "ohm"
    shutil.copytree(FOREIGN, root)

    def run(*arguments: str) -> str:
        return "".join(told(alone, root, *arguments))

    looked_for = "from importlib.util import find_spec as f; print(f('torch'), f('unmasked'), f('matplotlib'))"
    assert run("-c", looked_for) == "None None None\n"
    assert " 0 findings" in run("-m", "proofread", "check", "manual")
    assert re.search(r"\n\d+ passed in", run("-m", "pytest", "manual", "-q", "--color=no"))
    run("-m", "mkdocs", "build", "--strict")
    circuit = (root / "site/guide/circuit/index.html").read_text()
    for shown in ("(1.5, 3.0)", "drive <p-f>1.5</p-f> amperes", 'id="eq-1"'):
        assert shown in circuit
    assert 'href="guide/circuit/"' in (root / "site/index.html").read_text()
    program, _ = told(alone, root, "-m", "proofread", "snippet", "manual/guide/series.py:10")
    assert "from ohm" in program
    assert run("-c", program) == "(20.0, 5.0)\n"


FORMULAS = """\
# %% [markdown]
# # Half of $x$, times $2$
#
# $x_1$ is 2<!--= x[0] -->, and $\\lVert x \\rVert \\ge 0$<!-- unchecked: known --> too.

# %%
import numpy as np

x = np.arange(3) + 2.0


def half(x):
    return x / 2


print(half(x))

# %% [markdown]
# $$y = \\frac{x}{2} \\tag{1.1}$$
# <!-- where: x = random("n"); y = half(x) -->

# %% tags=["claims"]
assert np.array_equal(half(x), x / 2), "Half of x"  # to the bit: the same division
"""
SITE = "site_name: Site\nplugins: [proofread, mkdocs-jupyter: {include: ['*.py']}]\n"


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    """A project whose page has formulas within a line and displayed."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.py").write_text(FORMULAS)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nproofread = ["docs"]\n')
    (tmp_path / "mkdocs.yml").write_text(SITE)
    return tmp_path


def test_without_its_extra_proofread_checks_tests_and_mends_a_page_with_formulas(bare: Path, halves: Path) -> None:
    looked_for = "from importlib.util import find_spec as f; print(f('pypandoc'), f('mkdocs'), f('bs4'))"
    assert told(bare, halves, "-c", looked_for)[0] == "None None None\n"
    assert (
        "claims: 1 held; formulas: 1 held, 1 waived; 1 of 3 "
        in told(bare, halves, "-m", "proofread", "check", "docs")[1]
    )
    (page,) = json.loads(told(bare, halves, "-m", "proofread", "check", "docs", "--json")[0])["pages"]
    assert (page["path"], page["formulas"]) == ("docs/page.py", 1)
    assert re.search(r"\n7 passed in", told(bare, halves, "-m", "pytest", "docs", "-q", "--color=no")[0])

    page = halves / "docs/page.py"
    page.write_text(FORMULAS.replace("is 2", "is 3").replace(r"\frac{x}{2}", r"\frac{2}{x}"))
    found = json.loads(told(bare, halves, "-m", "proofread", "check", "docs", "--json", code=1)[0])["findings"]
    assert [(each["kind"], each["line"]) for each in found] == [("value", 4), ("formula", 19)]
    failed = told(bare, halves, "-m", "pytest", "docs", "-q", "--color=no", code=1)[0]
    assert re.search(r"\n2 failed, 5 passed in", failed)
    assert told(bare, halves, "-m", "proofread", "fix", "docs", code=1)[0] == "docs/page.py:4: 3 -> 2\n"
    assert page.read_text() == FORMULAS.replace(r"\frac{x}{2}", r"\frac{2}{x}")


@pytest.mark.parametrize(
    "command",
    [
        ["check", "docs", "--machine", "far"],
        ["run", "docs"],
        ["snippet", "docs/page.py:7"],
        ["cache", "show"],
    ],
    ids=" ".join,
)
def test_every_command_that_sets_no_formula_does_without_the_extra(
    bare: Path, halves: Path, command: list[str]
) -> None:
    told(bare, halves, "-m", "proofread", *command)


def test_what_sets_formulas_says_what_to_install_and_begins_nothing(
    alone: Path, bare: Path, halves: Path, wheels: dict[str, zipfile.ZipFile]
) -> None:
    extra = [each.name for each in required(wheels["proofread_docs"]) if "mkdocs" in str(each.marker)]
    missing = f"publishing takes what is not installed: {', '.join(extra)}; install proofread with its extra, [mkdocs]"
    missing = missing.replace("pypandoc_binary", "pypandoc-binary")  # as the wheel spells it
    said = told(bare, halves, "-m", "proofread", "export", "mkdocs.yml", "--output", "moved", code=3)[1]
    assert said == f"proofread: {missing}\n"
    assert sorted(path.name for path in halves.iterdir()) == ["docs", "mkdocs.yml", "pyproject.toml"]

    # MkDocs may be there, and the rest not.
    (packages,) = alone.parent.parent.glob("lib/python*/site-packages")
    (fonts,) = packages.glob("ziamath-*.dist-info")
    parked = fonts.rename(packages / "parked")
    said = told(alone, halves, "-m", "mkdocs", "build", code=1)[1]
    parked.rename(fonts)
    assert "publishing takes what is not installed: ziamath; install proofread with its extra, [mkdocs]" in said
