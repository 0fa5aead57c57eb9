"""Pictures of attention: heat maps of weights, heads side by side, masks, matrices with signs; tables; a live viewer.

What draws returns a matplotlib Figure and shows nothing: as a cell's last expression, a notebook displays it. Figures
are transparent, and within a page their text has the page's own colour, light or dark. `grid`, `table` and `show` need
no matplotlib: what they show stays text.
"""

from unmasked.plot.grids import Grid, grid
from unmasked.plot.heatmaps import figure, heads, heatmap, mask, signed
from unmasked.plot.tables import Table, table
from unmasked.plot.viewer import Viewer, show

__all__ = ["Grid", "Table", "Viewer", "figure", "grid", "heads", "heatmap", "mask", "show", "signed", "table"]
