"""Measure what attention costs on your device, and print it beside the record of an H100."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from unmasked.plot.tables import Table
from unmasked_lessons.measure import Record, limits, measure, recorded


def beside(record: Record, yours: Record) -> Table:
    """Put both records into one table, in ms: a row for each length and way that yours has, and for each call."""
    rows = []
    for length, ways in yours["kernels"].items():
        for name, cost in ways.items():
            known = record["kernels"].get(length, {}).get(name)
            rows.append((f"{length} tokens, {name}", f"{known[0]:.2f}" if known else "", f"{cost[0]:.2f}"))
    for name, (ran, time_, _) in yours["choices"].items():
        known = record["choices"].get(name)
        rows.append(
            (name, f"{known[1]:.2f} {known[0][0]}" if known else "", f"{time_:.2f} {' '.join(ran) or 'unnamed'}")
        )
    return Table(["ms", record["device"], f"{yours['device']}, torch {yours['torch']}"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print both columns and what is left out, and write the record where --json says."""
    parser = argparse.ArgumentParser(prog="python -m unmasked_lessons.measure", description=__doc__)
    parser.add_argument("--device", help="cuda, mps, xpu or cpu; the best there is by default")
    parser.add_argument("--lengths", type=int, nargs="+", help="tokens of the texts")
    parser.add_argument("--json", metavar="FILE", help="write the record there, too")
    options = parser.parse_args(arguments)
    yours = measure(options.device, lengths=options.lengths)
    print(beside(recorded(), yours))
    print(limits(yours))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(yours, file, indent=1)


if __name__ == "__main__":
    main()
