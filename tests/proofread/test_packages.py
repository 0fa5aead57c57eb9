"""The library and proofread are packages of their own, and proofread works where nothing else is installed."""

import email
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
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
