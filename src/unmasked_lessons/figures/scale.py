"""Weights and gradients with the root of d and without it."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from unmasked import plot


def panels(measured: Mapping[str, list[Any]]) -> tuple[Figure, Any]:
    """Draw `weights_and_gradients` of the largest size, weights above gradients: without the root, and with it."""
    with plot.figure(5.2, 4.0) as figure:
        axes = figure.subplots(2, 2, sharex="row", sharey="row", height_ratios=[3, 1])
        for side, (name, title) in enumerate((("unscaled", "without the root"), ("scaled", "with the root"))):
            weights, lengths = measured[name][-1], measured[f"gradient_{name}"][-1]
            axes[0, side].bar(range(len(weights)), weights.tolist())
            axes[0, side].set(title=title, xticks=[], xlabel="sorted by weight")
            at_least = lengths.clamp(min=1e-8).tolist()  # shorter ones lie on the edge
            axes[1, side].plot(at_least, [0] * len(lengths), "o", alpha=0.5)
            axes[1, side].set(xscale="log", yticks=[], xlabel="gradient's length")
        axes[0, 0].set_ylabel("weight")
    return figure, axes


def curves(
    sizes: Sequence[int], measured: Mapping[str, Mapping[str, Sequence[float]]], titles: Mapping[str, str]
) -> Figure:
    """Draw measures over the count of features, unscaled and scaled, one plot below another.

    `titles` has from top to bottom the name of a measure, and its title. The first and the last have a
    logarithmic axis.
    """
    with plot.figure(5.2, 7.6) as figure:
        below = figure.subplots(len(titles), 1, sharex=True)
        for axes, (measure, title) in zip(below, titles.items(), strict=True):
            for name, marker in (("unscaled", "o"), ("scaled", "s")):
                axes.plot(sizes, measured[name][measure], marker=marker, label=name)
            axes.set(title=title, xscale="log")
            axes.set_xticks(sizes, labels=list(map(str, sizes)))
            axes.minorticks_off()
        below[0].set_yscale("log")
        below[0].legend()
        below[-1].set(yscale="log", xlabel="features d")
    return figure
