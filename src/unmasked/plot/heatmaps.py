"""Heat maps of weights, and of numbers with signs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unmasked._checks import tensor
from unmasked.plot.grids import Labels, Matrices, digits_of, drawable, require_labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any

__all__ = ["figure", "heatmap", "signed"]

# The site's colours. From little to much: deep teal to sand; with signs: amber, paper, teal.
_AMOUNTS = ["#0b3a41", "#14636b", "#3f9290", "#a3c4a0", "#f7dfa6"]
_SIGNS = ["#a8480a", "#e3a063", "#f6f4ee", "#5fa7aa", "#0f5c63"]
_LINES = ["#c8702a", "#2f8f8c", "#8a6fb0"]  # for curves; each at least 3 to 1 on paper and on the dark page
_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
_CLEAR = ("axes.facecolor", "legend.facecolor")


@contextmanager
def figure(width: float, height: float) -> Iterator[Figure]:
    """A figure to draw in yourself: within the block, text and axes have the page's colour, curves and maps the site's.

    Args:
        width: In inches.
        height: In inches.

    Yields:
        The figure, made without pyplot; as a cell's last expression, after the block, a notebook displays it.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.

    Examples:
        >>> with figure(4.0, 3.0) as drawn:
        ...     axes = drawn.subplots()
        ...     _ = axes.plot([4, 16, 64], [1.4, 0.9, 0.3], label="entropy")
        >>> axes.lines[0].get_color()
        '#c8702a'
    """
    try:
        import matplotlib
        from matplotlib.colors import LinearSegmentedColormap
        from matplotlib.rcsetup import cycler

        from unmasked.plot.page import INK, PageFigure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("plots need matplotlib: pip install matplotlib") from error
    style: Any = dict.fromkeys(_INKED, INK) | dict.fromkeys(_CLEAR, "none") | {"legend.edgecolor": INK}
    style["axes.prop_cycle"] = cycler(color=_LINES)
    style["image.cmap"] = "unmasked"
    if "unmasked" not in matplotlib.colormaps:
        matplotlib.colormaps.register(LinearSegmentedColormap.from_list("unmasked", _AMOUNTS))
    with matplotlib.rc_context(style):
        yield PageFigure(width, height)


def heatmap(weights: Matrices, *, queries: Labels = None, keys: Labels = None) -> Figure:
    """A heat map of attention weights, from zero up, with the values written in where there is room.

    Args:
        weights: (queries, keys), or several of one shape under their titles, drawn side by side on one scale.
        queries: The tokens of the rows.
        keys: The tokens of the columns; by default the queries', where the matrix is square.

    Returns:
        The figure.

    Raises:
        ValueError: No matrix, one that is not (queries, keys), or labels that are not as many as its rows or columns.
        ModuleNotFoundError: matplotlib is not installed.

    Examples:
        >>> figure = heatmap(torch.eye(2), queries=["my", "ship"])
        >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
        ('keys', 'queries')
    """
    panels = _panels("weights", weights)
    finite = _finite(panels)
    low, high = min(finite.min().item(), 0.0), finite.max().item()
    return _draw("weights", panels, queries, keys, _AMOUNTS, (low, high if high > low else low + 1))


def signed(matrix: Matrices, *, queries: Labels = None, keys: Labels = None) -> Figure:
    """A heat map of numbers with signs, such as scores or gradients: pale is zero, the scale symmetric around it.

    Arguments as for `heatmap`, and errors, with matrix for its weights. Cells that are not finite are grey.

    Examples:
        >>> signed(torch.tensor([[0.5, -2.0]])).axes[0].collections[0].get_clim()
        (-2.0, 2.0)
    """
    panels = _panels("matrix", matrix)
    bound = _finite(panels).abs().max().item() or 1.0
    return _draw("matrix", panels, queries, keys, _SIGNS, (-bound, bound))


def _panels(name: str, matrices: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
    panels = {"": matrices} if isinstance(matrices, Tensor) else matrices
    if not isinstance(panels, Mapping) or not panels:
        kind = "an empty dict" if isinstance(panels, Mapping) else f"a {type(panels).__name__}"
        raise ValueError(f"{name} is {kind}, expected a tensor (queries, keys) or a dict of them under their titles")
    for title, matrix in panels.items():
        tensor(f"{name}{title and f' {title!r}'}", matrix)
        if matrix.ndim != 2 or not matrix.numel():
            raise ValueError(
                f"{name}{title and f' {title!r}'} has shape {tuple(matrix.shape)}, expected (queries, keys): "
                "pick one item of a batch and one head, or show all heads with plot.show"
            )
    shapes = {title: tuple(matrix.shape) for title, matrix in panels.items()}
    if len(set(shapes.values())) != 1:
        raise ValueError(f"{name} must hold matrices of one shape to share their labels, not {shapes}")
    return {title: drawable(name, matrix) for title, matrix in panels.items()}


def _finite(panels: Mapping[str, Tensor]) -> Tensor:
    values = torch.cat([matrix.double().flatten() for matrix in panels.values()])
    finite = values[values.isfinite()]
    return finite if len(finite) else torch.zeros(1, dtype=torch.float64)


def _draw(
    name: str,
    panels: Mapping[str, Tensor],
    queries: Labels,
    keys: Labels,
    colours: Sequence[str],
    limits: tuple[float, float],
) -> Figure:
    rows, columns = next(iter(panels.values())).shape
    keys = queries if keys is None and rows == columns else keys
    for axis, labels, size in (("queries", queries, rows), ("keys", keys, columns)):
        require_labels(axis, labels, size, f"labels, but {name} is {(rows, columns)}")

    across = min(len(panels), max(2, math.ceil(math.sqrt(len(panels)))))
    down = math.ceil(len(panels) / across)
    written = len(panels) * rows * columns <= 400 and max(across * columns, down * rows) <= 40
    cell = 0.46 if written else min(0.3, min(4, 10 / across) / max(rows, columns))
    line = 0.2 if queries is not None else 0.0  # a label's
    # Square cells would leave a hairline of a long matrix, and no room for labels where there are many.
    even = written or (max(rows, columns) <= 20 * min(rows, columns) and cell >= line)
    height = rows * cell if even else max(1.0, rows * max(cell, line))
    high = down * height
    extent = across * max(1.6, columns * cell) + 1.6, down * (max(1.0, height) + 0.5) + 0.8
    with figure(*extent) as drawing:
        from matplotlib import rcParams
        from matplotlib.colors import LinearSegmentedColormap

        rcParams["text.parse_math"] = False  # "$" may be a token
        colourmap = LinearSegmentedColormap.from_list("unmasked", colours).with_extremes(bad="#9a9a9a")
        places = drawing.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        for spare in places.flat[len(panels) :]:
            spare.remove()
        drawn = list(places.flat[: len(panels)])
        for index, (axes, (panel, matrix)) in enumerate(zip(drawn, panels.items(), strict=True)):
            edges = [[position - 0.5 for position in range(size + 1)] for size in (columns, rows)]
            values = matrix.double().masked_fill(~matrix.isfinite(), math.nan).tolist()
            image = axes.pcolormesh(*edges, values, cmap=colourmap, vmin=limits[0], vmax=limits[1])
            image.set(
                edgecolor=rcParams["text.color"] if written else "face",
                linewidth=0.3,
                rasterized=rows * columns > 10_000,
            )
            left, lowest = index % across == 0, index + across >= len(panels)
            axes.set(title=panel, aspect="equal" if even else "auto", ylim=(rows - 0.5, -0.5))
            axes.set(xlabel="keys" if lowest else "", ylabel="queries" if left else "")
            _label(axes.xaxis, keys, columns)
            _label(axes.yaxis, queries, rows)
            axes.tick_params(labelbottom=lowest, labelleft=left)
            for row, column in product(range(rows), range(columns)) if written else ():
                text = digits_of(float(matrix[row, column]))
                points = 9.0 if len(text) < 5 else 7.5
                red, green, blue, _ = image.to_rgba(values[row][column])
                ink = "black" if _luminance(red, green, blue) > 0.179 else "white"  # where both reach 4.58 to 1
                # Within its cell, it needs no room of its own.
                axes.text(column, row, text, color=ink, ha="center", va="center", fontsize=points).set_in_layout(False)
        label = name if name == "weights" and len(panels) == 1 else None
        drawing.colorbar(image, ax=drawn, label=label, shrink=high / (high + 0.25), aspect=max(3.0, 6 * high))
    return drawing


def _label(axis: Any, labels: Labels, size: int) -> None:
    if labels is None and size > 12:
        axis.get_major_locator().set_params(integer=True)
    else:
        names = [str(position) for position in range(size)] if labels is None else labels
        upright = axis.axis_name == "y" or max(map(len, names)) <= 3
        axis.set_ticks(range(size), labels=names, rotation=0 if upright else 90)


def _luminance(*channels: float) -> float:
    """WCAG's relative luminance of an sRGB colour."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
