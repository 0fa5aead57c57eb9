"""How every model of transformers attends that can be made small: ``python -m tests.atlas``.

It makes them with random weights, measures each, and writes a record. Stopped, it goes on where it was; what cannot be
made or measured is listed with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..doctor.published import kinds
from .measured import begin, one

HERE = Path(__file__).parent
MEASURING = ("hearing", "layers", "measured", "trials")
DIED = {"reason": "its process died"}
ROOT = HERE.parents[1]
RECORD = ROOT / "src/unmasked_lessons/data/atlas.json"


class Lane(threading.local):
    """A process for each thread, and a new one where it dies."""

    pool: ProcessPoolExecutor | None = None

    def measure(self, kind: str) -> dict[str, Any]:
        """Measure one model there."""
        if self.pool is None:
            self.pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=begin)
        try:
            return self.pool.submit(one, kind).result()
        except BrokenProcessPool:
            self.pool = None
            return DIED


def versions() -> dict[str, str]:
    """Of what is measured, and what it is measured with."""
    return {name: version(name) for name in ("transformers", "torch")}


def swept(kinds: list[str], kept: Path, workers: int) -> dict[str, dict[str, Any]]:
    """Measure these models, but for those that a run before has kept."""
    found: dict[str, dict[str, Any]] = {}
    if kept.exists():
        for line in kept.read_text("utf-8").splitlines():
            with suppress(json.JSONDecodeError):  # a line that is cut off, of who was stopped while it was written
                found |= json.loads(line)
    lane, left = Lane(), [kind for kind in kinds if kind not in found]
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.open("a", encoding="utf-8") as file, ThreadPoolExecutor(workers) as threads:
        for kind, record in zip(
            left, tqdm(threads.map(lane.measure, left), total=len(left), unit=" models"), strict=True
        ):
            found[kind] = record
            if record != DIED:  # which may have been for want of memory
                file.write(f"\n{json.dumps({kind: record})}")
            file.flush()
    return {kind: found[kind] for kind in kinds}


def without(record: dict[str, Any], *more: str) -> dict[str, Any]:
    """A record without what tells how it was made."""
    return {key: each for key, each in record.items() if key not in ("seconds", "family", "year", "size", *more)}


def changes(before: dict[str, Any], after: dict[str, Any], at: str = "") -> list[str]:
    """What differs between two records of models, a line each."""
    found = []
    for key in sorted({*before, *after}):
        one, other = before.get(key, "nothing"), after.get(key, "nothing")
        if isinstance(one, dict) and isinstance(other, dict):
            found += changes(one, other, f"{at}{key}: ")
        elif isinstance(one, list) and isinstance(other, list) and one and isinstance(one[0], dict):
            found += changes(dict(enumerate(map(str, one))), dict(enumerate(map(str, other))), f"{at}{key} ")
        elif not _alike(one, other):
            found.append(f"{at}{key}: {one} -> {other}")
    return found


def _alike(one: Any, other: Any) -> bool:
    """Whether two answers are the same, where rounding is none."""
    if isinstance(one, float) and isinstance(other, float) and max(abs(one), abs(other)) < 1e-4:
        return True
    if isinstance(one, float | int) and isinstance(other, float | int) and not isinstance(one, bool):
        return abs(one - other) <= 0.5 * max(abs(one), abs(other))
    return bool(one == other)


def main() -> int:
    """Sweep, write the record, and say what changed."""
    parser = argparse.ArgumentParser(prog="python -m tests.atlas", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="a pattern that the types of models match")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes; by default one a core")
    parser.add_argument("--write", action="store_true", help="write the project's record, which pages quote")
    parser.add_argument("--show", action="store_true", help="print what was measured")
    parser.add_argument("--kept", type=Path, default=ROOT / "build/atlas", help="the folder of what is kept of a run")
    options = parser.parse_args()
    places = [*(HERE / f"{each}.py" for each in MEASURING), HERE.parent / "doctor/published.py"]
    sources = b"".join(place.read_bytes() for place in places)
    kept = options.kept / f"{sha256(sources + repr(versions()).encode()).hexdigest()[:12]}.jsonl"
    begun = time.perf_counter()
    chosen = [kind for kind in kinds() if re.search(options.only, kind)]
    found = swept(chosen, kept, options.workers)
    made = {kind: each for kind, each in found.items() if "reason" not in each}
    for kind, each in found.items():
        if options.show or "reason" in each:
            print(f"{kind}: {json.dumps(each) if kind in made else 'not made: ' + each['reason']}")
    print(
        f"{len(made)} models measured, {len(found) - len(made)} not made, {time.perf_counter() - begun:.0f} s; {kept}"
    )
    before = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {"models": {}}
    known = {kind: each for kind, each in before["models"].items() if re.search(options.only, kind)}
    told = changes(*({kind: without(each) for kind, each in models.items()} for models in (known, made)))
    print("\n".join(["", "Against the record:", *told] if told else ["", "As the record says."]))
    if options.write:
        missing = {kind: each["reason"] for kind, each in found.items() if kind not in made}
        others = {kind: each for kind, each in before["models"].items() if kind not in chosen}
        left = {kind: reason for kind, reason in before.get("missing", {}).items() if kind not in chosen}
        write(others | made, left | missing)
    return 0


def told_by_source(kind: str) -> dict[str, Any]:
    """The folder of a model's code, and the year in its head: there is no other year that all models give."""
    configuration = import_module("transformers.models.auto.configuration_auto")
    folder = configuration.model_type_to_module_name(kind)
    place = Path(configuration.__file__).parents[1] / folder
    years = [
        int(found[1])
        for path in [*sorted(place.glob("modeling_*.py")), *sorted(place.glob("configuration_*.py"))]
        if (found := re.search(r"Copyright (\d{4})", path.read_text("utf-8")))
    ]
    return {"family": folder, "year": years[0] if years else None}


def write(made: dict[str, Any], missing: dict[str, str]) -> None:
    """Write the record: a model a line, so that its history can be read."""
    lines, reasons = (
        ",\n".join(f"  {json.dumps(kind)}: {json.dumps(each)}" for kind, each in sorted(every.items()))
        for every in ({kind: told_by_source(kind) | each for kind, each in made.items()}, missing)
    )
    head = json.dumps({"measured": time.strftime("%Y-%m-%d"), **versions()})[1:-1]
    RECORD.write_text(f'{{{head},\n "models": {{\n{lines}\n }},\n "missing": {{\n{reasons}\n }}\n}}\n', "utf-8")


if __name__ == "__main__":
    sys.exit(main())
