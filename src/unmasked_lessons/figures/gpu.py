"""The costs of attention on a GPU, drawn from a record of `unmasked_lessons.measure`."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from unmasked import plot
from unmasked.plot.page import INK
from unmasked_lessons.figures._drawing import AMBER, TEAL, VIOLET

# The dash and the color of each way: no two of one hue.
WAYS = {
    "math": (":", AMBER),
    "by hand": ("--", INK),
    "efficient": ("-.", VIOLET),
    "flash": ("-", "#b0568c"),
    "cudnn": ("-", TEAL),
}


def over_length(record: Mapping[str, Any]) -> Figure:
    """Draw time and memory of each way over the length, on logarithmic axes, from the record's "kernels"."""
    lengths = sorted(map(int, record["kernels"]))
    with plot.figure(4.4, 5.2) as drawn:  # one below the other, or a phone would show letters that nobody reads
        panels = drawn.subplots(2, 1, sharex=True)
        for axes, place, unit in zip(panels, (0, 1), ("ms", "MiB"), strict=True):
            for name, (line, color) in WAYS.items():
                numbers = [record["kernels"][str(length)][name][place] for length in lengths]
                axes.plot(lengths, numbers, line, color=color, label=name, marker="o" if name == "cudnn" else "")
            axes.set(xscale="log", yscale="log", ylabel=unit)
            axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
            axes.minorticks_off()
        panels[-1].set_xlabel("tokens")
        panels[0].legend(loc="upper left", fontsize="small")  # where no curve runs
    return drawn


def choices(record: Mapping[str, Any], names: Mapping[str, str]) -> Figure:
    """Draw the time of each call of the record's "choices" as bars, amber where no fused kernel ran."""
    rows = [record["choices"][name] for name in names]
    with plot.figure(5.4, 0.29 * len(names) + 0.6) as drawn:
        axes = drawn.subplots()
        colors = [AMBER if "math" in ran else TEAL for ran, *_ in rows]
        bars = axes.barh(list(names.values()), [time for _, time, _ in rows], color=colors)
        axes.bar_label(bars, [f" {time:.2f} ms, {ran[0]}" for ran, time, _ in rows])
        axes.set(xlim=(0, 1.4 * max(time for _, time, _ in rows)))
        axes.invert_yaxis()
        axes.xaxis.set_visible(False)
        for side in ("top", "right", "bottom"):
            axes.spines[side].set_visible(False)
    return drawn
