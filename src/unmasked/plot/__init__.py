"""Pictures of attention: heat maps of weights and of numbers with signs, grids of cells, tables, and a live viewer.

What draws returns a matplotlib Figure and shows nothing: as a cell's last expression, a notebook displays it. Figures
are transparent, and within a page their text has the page's own colour, light or dark. `grid`, `table` and `show` need
no matplotlib: what they show stays text.
"""

from unmasked.plot.grids import Grid, grid
from unmasked.plot.heatmaps import figure, heatmap, signed
from unmasked.plot.tables import Table, table
from unmasked.plot.viewer import Viewer, show

__all__ = ["Grid", "Table", "Viewer", "figure", "grid", "heatmap", "show", "signed", "table"]
