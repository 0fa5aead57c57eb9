"""A query and a key that turn along a text, like the hands of clocks: a picture for where `turning.js` does not run."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor

from unmasked import plot
from unmasked_lessons.figures._drawing import AMBER, TEAL


def clocks(moments: Mapping[str, tuple[Tensor, Tensor]]) -> Figure:
    """Draw a clock for each moment, side by side, with a hand for the key and one for the query, (2,) each."""
    longest = max(hand.norm().item() for hands in moments.values() for hand in hands)
    with plot.figure(2.2 * len(moments), 2.4) as drawn:
        for plane, (title, hands) in zip(
            drawn.subplots(1, len(moments), squeeze=False)[0], moments.items(), strict=True
        ):
            plane.add_patch(Circle((0, 0), 1.15 * longest, fill=False, color="gray"))
            for hand, name, color in zip(hands, ("key", "query"), (TEAL, AMBER), strict=True):
                look = {"arrowstyle": "-|>", "color": color, "lw": 1.8, "shrinkA": 0, "shrinkB": 0}
                plane.annotate("", hand.tolist(), (0, 0), arrowprops=look)
                x, y = (0.72 * hand).tolist()
                plane.text(x, y, name, ha="left", va="top", fontsize=9)
            plane.set(xlim=(-1.3 * longest, 1.3 * longest), ylim=(-1.3 * longest, 1.3 * longest), aspect="equal")
            plane.set_title(title, fontsize=10)
            plane.axis("off")
    return drawn
