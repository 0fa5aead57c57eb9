"""A hook of the site: the wheels of the library and of proofread, which whoever reads it can install from it."""

import hashlib
import os
import re
import subprocess
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from proofread.keep.shelf import Shelf
from proofread.settings import Settings

FOLDER = "wheels"
PROJECTS = {"attention-unmasked": ".", "proofread-docs": "src/proofread"}
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src/**/*")


def revision(root: Path) -> str:
    """What git says that a folder's files are, with `.dirty` behind it where they were changed.

    It is "" without git, and where git knows none of them, as in a folder that was unpacked in another's repository.
    """

    def git(*asked: str) -> str:
        environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
        told = subprocess.run(
            ["git", *asked], cwd=root, env=environment, capture_output=True, encoding="utf-8", check=False
        )
        return told.stdout.strip()

    try:
        is_known = git("ls-files", "--", ".")
        return is_known and git("describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=.dirty")
    except OSError:
        return ""


def version(declared: str, revision: str) -> str:
    """A version with the revision behind it, as PEP 440 lets it be written: the hash of a commit is shortened.

    >>> version("0.1.0", "0123456789abcdef0123456789abcdef01234567"), version("0.1.0", "Next/Try_2")
    ('0.1.0+g0123456789ab', '0.1.0+gnext.try.2')
    >>> version("0.1.0", "")
    '0.1.0'
    """
    short = re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", revision.lower())
    local = re.sub(r"[^a-z0-9]+", ".", short).strip(".")
    return f"{declared}+g{local}" if local else declared


def sources(root: Path) -> str:
    """A hash of all that the wheels are made of."""
    files = {file for pattern in _SOURCES for file in root.glob(pattern)}
    made = hashlib.sha256()
    for file in sorted(file for file in files if file.is_file() and "__pycache__" not in file.parts):
        content = file.read_bytes()
        made.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return made.hexdigest()


def build(project: Path, revision: str, site: str = "") -> tuple[str, bytes]:
    """The wheel of a project, which knows the site's address: the name of its file, and its content.

    Nothing is written beside the sources.

    Raises:
        PluginError: What builds wheels is not installed.
    """
    try:
        from hatchling.builders.wheel import WheelBuilder
    except ModuleNotFoundError:
        told = 'the wheels that the site serves are built with hatchling, which is missing: pip install -e ".[docs]"'
        raise PluginError(told) from None
    told = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    told["project"]["version"] = version(told["project"]["version"], revision)
    if site:
        told["project"].setdefault("urls", {})["Documentation"] = site
    with TemporaryDirectory() as folder:
        (made,) = WheelBuilder(str(project), config=told).build(directory=folder, versions=["standard"])
        return Path(made).name, Path(made).read_bytes()


def wheels(root: Path, revision: str, site: str = "") -> dict[str, tuple[str, bytes]]:
    """The wheels of a revision, by the names of what they install; made anew only where the sources have changed."""

    def make() -> dict[str, list[str]]:
        made = {name: build(root / folder, revision, site) for name, folder in PROJECTS.items()}
        return {name: [file, content.decode("latin-1")] for name, (file, content) in made.items()}

    kept = Shelf(root / Settings.load(root).cache).made("wheels", [revision, site, sources(root)], make)
    return {name: (file, content.encode("latin-1")) for name, (file, content) in kept.items()}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Serve the wheels, and say where they are: proofread's notebooks and programs, which come later, name them."""
    root = Path(config.config_file_path).parent
    made = wheels(root, config.extra["revision"] or revision(root), config.site_url or "")
    for file, content in made.values():
        files.append(File.generated(config, f"{FOLDER}/{file}", content=content))
    # Servers differ in what a plus sign in an address is to them.
    config.extra["wheels"] = {name: f"{FOLDER}/{quote(file)}" for name, (file, _) in made.items()}
    return files
