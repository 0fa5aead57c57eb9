"""Words as arrows in a plane, and where attention moves them: for the script `arrows.js`."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from torch import Tensor

from unmasked import plot
from unmasked.functional import self_attention


def plane(arrows: Tensor, names: Sequence[str], axes: tuple[str, str]) -> Figure:
    """Draw an arrow for each word, (words, 2), and a ring where attention moves its tip, on axes of these names."""
    if arrows.shape != (len(names), 2):
        raise ValueError(f"arrows has shape {tuple(arrows.shape)}, expected ({len(names)}, 2): two numbers a name")
    context = self_attention(arrows).context
    with plot.figure(4.0, 2.6) as drawn:
        shown = drawn.subplots()
        for index, (name, tip, ring) in enumerate(zip(names, arrows.tolist(), context.tolist(), strict=True)):
            color = f"C{index}"
            look = {"arrowstyle": "-|>", "color": color, "lw": 1.8, "shrinkA": 0, "shrinkB": 0}
            shown.annotate("", tip, (0, 0), arrowprops=look)
            shown.plot(*zip(tip, ring, strict=True), ":", color=color)
            shown.plot(*ring, "o", color=color, fillstyle="none")
            shown.text(tip[0] + 0.07, tip[1] - 0.04, name, fontsize=11)
        shown.set(xlim=(-1.2, 1.5), ylim=(-1.15, 1.15), xlabel=axes[0], ylabel=axes[1], aspect="equal")
    return drawn
