"""The environment that every run depends on: Python, the machine, the variables that steer both."""

import functools
import os
import platform
import re
import site
import sys
from pathlib import Path

from .files import digest, sha

# The files of proofread that decide the outcome of a run; the others only read it.
_ENGINE = ("runs/*.py", "formulas/*.py", "programs/*.py", "processes/*.py", "_private.py", "lazy_import.py")
# Settings of Python and of the libraries that compute come from the environment too. One is none: in a process that
# compiles, PyTorch sets it itself, to the folder that it keeps kernels in.
_VARIABLES = re.compile(
    r"(?!TORCHINDUCTOR_CACHE_DIR)(ATEN|BLIS|CUDA|CUBLAS|CUDNN|DNNL|GOMP|KMP|LANG|LC_|MKL|MPL|NPY|NVIDIA|OMP|ONEDNN"
    r"|OPENBLAS|PYTHON|PYTORCH|TORCH|TZ|VECLIB)[A-Z0-9_]*"
)
# Lines of /proc/cpuinfo that say what a processor can do, on x86 and on ARM; others tell how fast it runs just now.
_PROCESSOR = re.compile(
    r"^(?:vendor_id|cpu family|model|model name|stepping|flags|CPU \w+|Features)\s*:.*$", re.MULTILINE
)


@functools.cache
def environment() -> dict[str, str]:
    """All that every run depends on; it stays as it is while this process lives."""
    # As the driver tells: asking CUDA would start it, and forked children could not use it any more.
    gpus = " ".join(sorted(map(digest, Path("/proc/driver/nvidia").glob("gpus/*/information"))))
    parts = {"Python": sys.version, "the platform": platform.platform(), "the GPU": gpus, "the processor": _processor()}
    parts |= {f"${name}": value for name, value in os.environ.items() if _VARIABLES.fullmatch(name)}
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    started = [file for folder in folders for file in sorted(Path(folder).glob("*.pth"))]
    parts["what Python starts with"] = sha(" ".join(f"{file.name} {digest(file)}" for file in started))
    return parts | {"proofread": sources(*_ENGINE)}


def changed(name: str, then: str | None, now: str | None) -> str:
    """Return in words how a part of the environment, or a distribution, has changed."""
    old, new = (value.split()[0] if value else "" for value in (then, now))
    if name == "Python" or (then and now and old != new and re.match(r"\d+\.", new)):
        return f"{name} {old} is now {new}" if old != new else f"{name} is another build"
    if then is None or now is None:
        return f"{name} {'came' if then is None else 'is gone'}"
    return f"{name} changed"


@functools.cache
def sources(*patterns: str) -> str:
    """Return the digest of some of proofread's own files."""
    here = Path(__file__).parents[1]
    return sha(
        " ".join(
            sorted(
                f"{path.relative_to(here).as_posix()} {digest(path)}" for part in patterns for path in here.glob(part)
            )
        )
    )


def _processor() -> str:
    # The choices of libraries, such as torch.backends.cpu.get_cpu_capability(), follow from this and from $ATEN_*.
    lines = sorted(set(_PROCESSOR.findall(cpuinfo())))
    return sha("\n".join(lines)) if lines else f"{platform.machine()} {platform.processor()}"


def cpuinfo() -> str:
    """Return the description of the processors by Linux; "" elsewhere."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
