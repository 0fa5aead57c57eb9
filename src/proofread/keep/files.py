"""Files: written whole or not at all, and told apart by what they hold."""

import hashlib
import os
import re
import tempfile
import time
from pathlib import Path


def write(file: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file in one step: a reader sees the old one or the new one, never a part of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = tempfile.NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False)  # noqa: SIM115  # closed below
    try:
        with part:
            part.write(data)
        os.chmod(part.name, mode)
        _replace(part.name, file)
    except BaseException:
        Path(part.name).unlink(missing_ok=True)
        raise


def _replace(part: str, file: Path) -> None:
    """Put a file in the place of another; Windows refuses while another program reads that, for a moment."""
    for more in reversed(range(50 if os.name == "nt" else 1)):
        try:
            os.replace(part, file)
            break
        except PermissionError:
            if not more:
                raise
            time.sleep(0.02)


def sha(text: str) -> str:
    """Return the digest of a text."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def folder_of(name: str) -> str:
    """Return a unique name of a folder: the name of a thing, as far as a file system takes it, and its digest."""
    readable = re.sub(r"[^\w.-]+", "-", name).strip("-.")
    return f"{readable[-60:]}-{sha(name)[:8]}"


def digest(path: Path) -> str:
    """Return the digest of a file's content."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "missing"


def seal(data: bytes) -> bytes:
    """Return data with a checksum before it."""
    return hashlib.sha256(data).hexdigest().encode() + b"\n" + data


def unsealed(file: Path) -> bytes:
    """Return the data of a file that `seal` wrote.

    Raises:
        ValueError: It is not what was written.
    """
    checksum, _, data = file.read_bytes().partition(b"\n")
    if checksum != hashlib.sha256(data).hexdigest().encode():
        raise ValueError(f"{file} is damaged")
    return data


def relative(path: Path, root: Path) -> str:
    """How findings name a file."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
