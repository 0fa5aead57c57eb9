"""Whoever has the site alone installs the library and proofread from it, and does what its pages show."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path
from urllib.parse import quote

import pytest
import torch
import yaml
from mkdocs.exceptions import PluginError
from packaging.version import Version

from unmasked import _site, attend
from unmasked_doctor import museum

from .hooks import hook
from .test_doctor_page import shown

ROOT = Path(__file__).parents[2]
wheels = hook("wheels")

HASH = "0123456789abcdef0123456789abcdef01234567"
OUTSIDE = {
    name: value for name, value in os.environ.items() if not name.upper().startswith(("PYTHON", "PYTEST", "PIP_"))
}


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def run(site: Path, address: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a Python that had nothing before it installed the wheels of the site; PyTorch and the rest came then."""
    folder = tmp_path_factory.mktemp("reader")
    python = folder / "bin" / "python"

    def run(*arguments: str, cwd: Path = folder) -> subprocess.CompletedProcess[str]:
        environment = OUTSIDE | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        return subprocess.run([python, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)

    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, env=OUTSIDE)
    assert run("-c", "import unmasked").returncode == 1
    served = [f"{address}wheels/{quote(file.name)}" for file in (site / "wheels").iterdir()]
    assert len(served) == len(wheels.PROJECTS)
    pip = ["-m", "pip", "--isolated", "--disable-pip-version-check", "install", "--no-cache-dir"]
    installed = run(*pip, "--no-index", "--no-deps", *served)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "rest.pth").write_text(str(Path(torch.__file__).parents[1]))
    return run


def test_what_is_installed_from_the_site_is_its_own_and_says_its_version(site: Path, run: Run):
    packages = [("attention-unmasked", each) for each in ("unmasked", "unmasked_doctor", "unmasked_lessons")]
    for name, package in (*packages, ("proofread-docs", "proofread")):
        said = f"sys.prefix, {package}.__file__, importlib.metadata.version({name!r})"
        asked = f"import importlib.metadata, sys, {package}; print({said})"
        prefix, file, version = run("-c", asked).stdout.split()
        assert Path(file).is_relative_to(prefix), file
        assert (site / f"wheels/{name.replace('-', '_')}-{version}-py3-none-any.whl").exists()


def test_a_copied_program_runs(site: Path, run: Run, tmp_path: Path):
    programs = [each for each in (site / "install").glob("cell-*.py") if "bypassed(mha)" in each.read_text()]
    program = next(each for each in sorted(programs) if "from unmasked import" in each.read_text())
    shutil.copy(program, tmp_path / "first.py")
    ran = run("first.py", cwd=tmp_path)
    assert ran.stderr == ""
    assert ran.stdout.startswith("tensor([[0.4519, 0.2741, 0.2741],")
    assert ran.stdout.endswith("\nTrue\n")


def test_the_words_of_the_pages_come_with_the_library(run: Run):
    code = (
        "from unmasked_lessons.embeddings import common_vectors as words; print(words().nearest(words()['mouse'], 2))"
    )
    assert run("-c", code).stdout == "['mouse', 'cat']\n"


@pytest.mark.parametrize(("triangle", "right"), [("tril", True), ("triu", False)])
def test_an_exercise_is_solved(run: Run, triangle: str, right: bool):
    answer = f"lambda tokens: torch.ones(tokens, tokens, dtype=torch.bool).{triangle}()"
    code = f"import torch\nfrom unmasked_lessons.exercises import check\nprint(check('causal-mask', {answer}).ok)"
    assert run("-c", code).stdout == f"{right}\n"


@pytest.mark.parametrize(("scale", "code"), [("True", 0), ("False", 1)])
def test_the_doctor_examines_a_file(run: Run, tmp_path: Path, scale: str, code: int):
    _, source = shown()
    source = source.replace("import torch\n", "import torch\ntorch.manual_seed(0)\n")
    (tmp_path / "mine.py").write_text(source.replace("scale = True", f"scale = {scale}"))
    command = ["-m", "unmasked", "doctor", "mine.py:Right", "--embed-dim", "12", "--num-heads", "3"]
    ran = run(*command, cwd=tmp_path)
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert ("missing-scale" in ran.stdout) is bool(code)


@pytest.mark.parametrize(("figure", "code"), [("4", 0), ("5", 1)])
def test_proofread_checks_a_page(run: Run, tmp_path: Path, figure: str, code: int):
    page = f"# %%\nsides = [2, 2]\n\n# %% [markdown]\n# Together they are {figure}<!--= sum(sides) -->.\n"
    (tmp_path / "page.py").write_text(page)
    ran = run("-m", "proofread", "check", "page.py", cwd=tmp_path)
    assert ran.returncode == code, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("revision", "version"),
    [
        (HASH, "0.1.0+g0123456789ab"),
        ("0a1b2c", "0.1.0+g0a1b2c"),
        ("0123456789ab.dirty", "0.1.0+g0123456789ab.dirty"),
        ("Feature/new_masks-2", "0.1.0+gfeature.new.masks.2"),
        ("", "0.1.0"),
    ],
)
def test_a_wheels_version_has_the_revision_as_pep_440_writes_it(revision: str, version: str):
    assert wheels.version("0.1.0", revision) == version == str(Version(version))


def test_git_says_the_revision_where_the_environment_does_not(tmp_path: Path):
    assert wheels.revision(tmp_path) == ""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "a").write_text("1")
    for command in (["init", "--quiet"], ["add", "a"], ["commit", "--quiet", "--message", "a"], ["tag", "v9"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert wheels.revision(tmp_path) == head[:12]
    (tmp_path / "unpacked").mkdir()
    (tmp_path / "unpacked/pyproject.toml").write_text("")
    assert wheels.revision(tmp_path / "unpacked") == ""  # that of another's repository is not its own
    (tmp_path / "a").write_text("2")
    assert wheels.revision(tmp_path) == f"{head[:12]}.dirty"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The sources that wheels are made of, to be changed."""
    root = tmp_path / "copy"
    shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root)
    return root


def test_wheels_are_made_anew_where_the_sources_have_changed_alone(project: Path, monkeypatch: pytest.MonkeyPatch):
    before = {path: path.stat().st_mtime_ns for path in project.rglob("*") if path.is_file()}
    build, built = wheels.build, []
    monkeypatch.setattr(wheels, "build", lambda *given: built.append(given[0]) or build(*given))
    made = wheels.wheels(project, HASH)
    assert len(built) == 2
    assert [file for file, _ in made.values()] == [
        "attention_unmasked-0.1.0+g0123456789ab-py3-none-any.whl",
        "proofread_docs-0.1.0+g0123456789ab-py3-none-any.whl",
    ]
    assert wheels.wheels(project, HASH) == made
    assert len(built) == 2
    after = {path: path.stat().st_mtime_ns for path in project.rglob("*") if path.is_file()}
    assert {path for path in after if ".cache" not in path.parts} == before.keys()  # nothing was written beside them
    assert after.items() >= before.items()

    (project / "src/unmasked/masks.py").touch()
    assert wheels.wheels(project, HASH) == made  # though a file is younger
    (project / "src/unmasked/new.py").write_text("answer = 42\n")
    changed = wheels.wheels(project, HASH)
    assert len(built) == 4
    content = project.parent / changed["attention-unmasked"][0]
    content.write_bytes(changed["attention-unmasked"][1])
    assert zipfile.ZipFile(content).read("unmasked/new.py") == b"answer = 42\n"
    assert changed["proofread-docs"] == made["proofread-docs"]
    other = wheels.wheels(project, "0a1b2c")
    assert [Path(file).name.split("+")[1][:7] for file, _ in other.values()] == ["g0a1b2c", "g0a1b2c"]


def test_a_wheel_is_what_pip_would_build_but_for_its_version(tmp_path: Path):
    for name, folder in wheels.PROJECTS.items():
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
        subprocess.run(command, cwd=ROOT / folder, check=True, capture_output=True)
        (plain,) = tmp_path.glob(f"{name.replace('-', '_')}-*.whl")
        file, content = wheels.build(ROOT / folder, HASH)
        (tmp_path / "served").write_bytes(content)
        with zipfile.ZipFile(plain) as one, zipfile.ZipFile(tmp_path / "served") as other:
            called = {re.sub(r"\+g[0-9a-f]+", "", each): each for each in other.namelist()}
            assert called.keys() == {*one.namelist()}
            different = {each for each in called if one.read(each) != other.read(called[each])}
        assert {each.rpartition("/")[2] for each in different} == {"METADATA", "RECORD"}
        assert file == plain.name.replace("-py3", "+g0123456789ab-py3")


@pytest.mark.usefixtures("unhooked")
def test_a_wheel_says_where_its_pages_are_and_its_reports_and_errors_lead_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, content = wheels.build(ROOT, HASH, "https://example.org/site/")
    (tmp_path / "served").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "served") as served:
        (name,) = (name for name in served.namelist() if name.endswith("METADATA"))
        told = message_from_bytes(served.read(name))
    assert told.get_all("Project-URL") == ["Documentation, https://example.org/site/"]
    monkeypatch.setattr(_site.metadata, "metadata", lambda _: told)
    monkeypatch.delenv("SITE_URL", raising=False)
    _site._documentation.cache_clear()
    try:
        address = museum.ENTRIES["mask-polarity"].address
        with pytest.raises(TypeError, match=r"^allowed is torch\.float32; it must be bool") as wrong:
            attend(*torch.ones(3, 1, 2, 4, 8), allowed=torch.ones(4, 4))
    finally:
        _site._documentation.cache_clear()
    assert address == "https://example.org/site/museum/masks/#mask-polarity"
    assert wrong.value.__notes__ == ["See https://example.org/site/museum/masks/#float-mask-of-ones"]


def test_the_librarys_errors_lead_to_what_the_museum_shows():
    files = [*(ROOT / "src/unmasked").rglob("*.py")]
    links = {link for file in files for link in re.findall(r'"((?:museum|pytorch|learn)/[^"]*)"', file.read_text())}
    shown = {entry.link for entry in museum.ENTRIES.values()}
    assert len(links & shown) > 2
    assert {link for link in links - shown if not (ROOT / f"docs/{link.rstrip('/')}.py").exists()} == set()


def test_where_no_address_is_known_an_error_is_as_it_was(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SITE_URL", raising=False)
    monkeypatch.setattr(_site, "_documentation", lambda: "")
    assert not hasattr(_site.noted(ValueError("x"), "museum/"), "__notes__")


def test_without_hatchling_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "hatchling.builders.wheel", None)
    with pytest.raises(PluginError, match=r'built with hatchling, which is missing: pip install -e "\.\[docs\]"$'):
        wheels.build(ROOT, "")


STEPS = yaml.safe_load((ROOT / ".github/workflows/site.yml").read_text())["jobs"]["build"]["steps"]
(KEEP,) = (step["run"] for step in STEPS if step.get("name", "").startswith("Keep the wheels"))


@pytest.mark.parametrize(
    ("published", "kept"),
    [
        ({}, {"new.whl": "new"}),
        ({"index.html": "page"}, {"new.whl": "new"}),
        (
            {"index.html": "page", "wheels/old.whl": "old", "wheels/new.whl": "other"},
            {"new.whl": "new", "old.whl": "old"},
        ),
    ],
    ids=["nothing yet", "no wheels yet", "wheels"],
)
def test_the_wheels_of_earlier_builds_stay_on_the_site(tmp_path: Path, published: dict[str, str], kept: dict[str, str]):
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "--quiet", "--initial-branch", "gh-pages", str(origin)], check=True)
    for name, text in published.items():
        (origin / name).parent.mkdir(exist_ok=True)
        (origin / name).write_text(text)
    if published:
        subprocess.run([*git, "add", "."], cwd=origin, check=True)
        subprocess.run([*git, "commit", "--quiet", "--message", "site"], cwd=origin, check=True)
    subprocess.run([*git, "init", "--quiet", str(clone)], check=True)
    subprocess.run([*git, "remote", "add", "origin", str(origin)], cwd=clone, check=True)
    (clone / "site/wheels").mkdir(parents=True)
    (clone / "site/wheels/new.whl").write_text("new")
    done = subprocess.run(["bash", "-e", "-c", KEEP], cwd=clone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {path.relative_to(clone / "site").as_posix(): path.read_text() for path in clone.glob("site/**/*.*")}
    assert found == {f"wheels/{name}": text for name, text in kept.items()}
    shutil.rmtree(origin)
    assert subprocess.run(["bash", "-e", "-c", KEEP], cwd=clone, capture_output=True).returncode != 0
