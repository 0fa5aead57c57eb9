"""The library and proofread are packages of their own, and proofread works where nothing else is installed."""

import email
import importlib.metadata as metadata
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


@pytest.mark.parametrize(("name", "package"), [("attention_unmasked", "unmasked"), ("proofread_docs", "proofread")])
def test_a_wheel_holds_its_own_package_alone(wheels: dict[str, zipfile.ZipFile], name: str, package: str) -> None:
    assert wheels.keys() == PROJECTS.keys()
    of = [file for file in wheels[name].namelist() if ".dist-info/" not in file]
    assert {file.split("/")[0] for file in of} == {package}
    source = ROOT / "src" / package
    kept = {path.relative_to(source.parent).as_posix() for path in source.rglob("*") if "__pycache__" not in path.parts}
    kept = {path for path in kept if (source.parent / path).is_file()}
    left = {"proofread/LICENSE", "proofread/README.md", "proofread/pyproject.toml", "unmasked/data/make.py"}
    assert {*of} == kept - left
    assert "MIT License" in read(wheels[name], "licenses/LICENSE")


def test_the_library_needs_torch_alone_and_puts_nothing_into_its_users_tests(
    wheels: dict[str, zipfile.ZipFile],
) -> None:
    needed = required(wheels["attention_unmasked"])
    assert [each.name for each in needed if not each.marker] == ["torch"]
    assert read(wheels["attention_unmasked"], "entry_points.txt") == ""


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


@pytest.fixture(scope="module")
def alone(wheels: dict[str, zipfile.ZipFile], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has proofread, what it says that it needs, pytest, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    wheels["proofread_docs"].extractall(packages)
    for name in closure([*required(wheels["proofread_docs"]), Requirement("pytest")], {"mkdocs"}):
        files = metadata.files(name) or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))
    (folder / "share").symlink_to(Path(sys.prefix) / "share")  # where distributions keep data, such as templates
    return folder / "bin" / "python"


def test_proofread_alone_checks_tests_and_builds_anothers_project(alone: Path, tmp_path: Path) -> None:
    root = tmp_path / "ohm"
    shutil.copytree(FOREIGN, root)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}

    def run(*arguments: str) -> str:
        told = subprocess.run(
            [alone, *arguments],
            cwd=root,
            env=environment | {"PYTHONPATH": str(root / "source")},
            text=True,
            capture_output=True,
            check=False,
        )
        assert told.returncode == 0, told.stdout + told.stderr
        return told.stdout + told.stderr

    looked_for = "from importlib.util import find_spec as f; print(f('torch'), f('unmasked'), f('matplotlib'))"
    assert run("-c", looked_for) == "None None None\n"
    assert " 0 findings" in run("-m", "proofread", "check", "manual")
    assert re.search(r"\n\d+ passed in", run("-m", "pytest", "manual", "-q", "--color=no"))
    run("-m", "mkdocs", "build", "--strict")
    assert "(1.5, 3.0)" in (root / "site" / "guide" / "circuit" / "index.html").read_text()
