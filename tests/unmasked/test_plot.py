import re
import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from IPython.core.pylabtools import print_figure
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from unmasked import plot
from unmasked.plot.page import INK
from unmasked.plot.tables import Tabular

from ..contrast import contrast
from ..refusals import refused

WEIGHTS = torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.125, 0.375]])
PAGES = {"light": "#ffffff", "dark": "#1e2129"}


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def labels(figure: Figure, axes: int = 0) -> tuple[list[str], list[str]]:
    x, y = figure.axes[axes].get_xticklabels(), figure.axes[axes].get_yticklabels()
    return [label.get_text() for label in x], [label.get_text() for label in y]


def inches(figure: Figure, axes: Axes) -> list[float]:
    """Where the axes are drawn: left, bottom, width, height."""
    figure.draw_without_rendering()
    axes.apply_aspect()
    return (axes.get_position().bounds * figure.get_size_inches()[[0, 1, 0, 1]]).tolist()


def test_a_heat_map_writes_its_values_under_named_axes() -> None:
    figure = plot.heatmap({"Weights": WEIGHTS}, queries=["my", "ship"], keys=["go", "back", "to"])
    axes = figure.axes[0]
    assert texts(figure) == ["0.25", "0.75", "0.00", "0.50", "0.12", "0.38"]
    assert labels(figure) == (["go", "back", "to"], ["my", "ship"])
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("keys", "queries", "Weights")
    assert axes.collections[0].get_clim() == (0.0, 0.75)
    assert axes.get_ylim() == (1.5, -0.5)  # the first query on top
    assert axes.collections[0].get_array().tolist() == WEIGHTS.tolist()


def test_the_keys_of_a_square_matrix_are_its_queries() -> None:
    assert labels(plot.heatmap(torch.eye(2), queries=["a", "b"])) == (["a", "b"], ["a", "b"])
    assert labels(plot.heatmap(WEIGHTS, queries=["a", "b"])) == (["0", "1", "2"], ["a", "b"])


def test_large_matrices_are_drawn_without_values_and_fit_a_page() -> None:
    for shape in [(20, 21), (1, 400), (400, 1)]:
        figure = plot.heatmap(torch.rand(shape))
        assert texts(figure) == []
        assert max(figure.get_size_inches()) < 8
        assert min(inches(figure, figure.axes[0])[2:]) > 0.8
    assert all(float(tick).is_integer() for tick in plot.heatmap(torch.rand(20, 3)).axes[0].get_yticks())


@pytest.mark.parametrize("shape", [(1, 30), (1, 15), (2, 9), (20, 3), (20, 1), (6, 6)])
@pytest.mark.parametrize("panels", [1, 2])
def test_the_colour_bar_is_no_taller_than_the_panels(shape: tuple[int, int], panels: int) -> None:
    figure = plot.heatmap({name: torch.rand(shape) for name in "ab"[:panels]})
    *_, (_, low, _, high) = boxes = [inches(figure, axes) for axes in figure.axes]
    assert boxes[0][1] - 0.05 < low
    assert low + high < boxes[0][1] + boxes[0][3] + 0.05


def test_a_dollar_sign_in_a_label_or_title_is_a_dollar_sign() -> None:
    names = ["$\\frac$", "a$b$"]
    for titles in (["$\\frac$"], ["$\\frac$", "$b$"]):
        figure = plot.heatmap(dict.fromkeys(titles, torch.eye(2)), queries=names)
        figure._repr_svg_()
        assert labels(figure) == (names, names)
        dollars = [text for text in figure.findobj(Text) if "$" in text.get_text()]
        assert len(dollars) >= 5
        assert not any(text.get_parse_math() for text in dollars)


def test_a_boolean_heat_map_writes_numbers() -> None:
    assert texts(plot.heatmap(torch.eye(2).bool())) == ["1.00", "0.00", "0.00", "1.00"]


def test_several_matrices_share_one_scale_and_outer_labels() -> None:
    panels = {f"head {number}": WEIGHTS * (number + 1) for number in range(5)}
    figure = plot.heatmap(panels, queries=["my", "ship"])
    assert [axes.get_title() for axes in figure.axes[:5]] == list(panels)
    assert {axes.collections[0].get_clim() for axes in figure.axes[:5]} == {(0.0, 3.75)}
    assert [axes.get_ylabel() for axes in figure.axes[:5]] == ["queries", "", "", "queries", ""]
    assert [axes.get_xlabel() for axes in figure.axes[:5]] == ["", "", "keys", "keys", "keys"]


def test_signs_are_shown_symmetrically_around_zero_and_masked_scores_as_infinite() -> None:
    figure = plot.signed(torch.tensor([[0.5, -2.0, -torch.inf], [torch.nan, torch.inf, 1.0]], requires_grad=True))
    assert texts(figure) == ["0.50", "−2.00", "−∞", "nan", "∞", "1.00"]
    assert figure.axes[0].collections[0].get_clim() == (-2.0, 2.0)
    figure.canvas.draw()
    cells = [to_hex(cell) for cell in figure.axes[0].collections[0].get_facecolors()]
    assert [cell == "#9a9a9a" for cell in cells] == [False, False, True, True, True, False]
    assert plot.signed(torch.zeros(1, 2)).axes[0].collections[0].get_clim() == (-1.0, 1.0)
    assert plot.signed(torch.full((1, 2), torch.nan)).axes[0].collections[0].get_clim() == (-1.0, 1.0)


def test_values_are_legible_on_every_cell() -> None:
    ramp = torch.linspace(-1, 1, 200).view(10, 20)
    for figure in (plot.heatmap(ramp.abs()), plot.signed(ramp), plot.signed(ramp.log())):
        figure.canvas.draw()
        cells = figure.axes[0].collections[0].get_facecolors()
        assert len(cells) == 200
        for cell, text in zip(cells, figure.axes[0].texts, strict=True):
            assert contrast(cell[:3], text.get_color()) >= 4.5


def test_text_and_lines_take_the_colour_of_the_page_and_as_a_file_stand_off_both_pages() -> None:
    svg = plot.heatmap(dict(zip("abc", torch.rand(3, 2, 4), strict=True)))._repr_svg_()
    assert svg.count(INK) == 1
    assert f"<style>svg:root{{color:{INK}}}</style>" in svg
    for colour in set(re.findall(r"stroke: (#\w+|\w+)", svg)):
        assert colour in ("currentColor", "none")
    assert all(contrast(INK, page) > 3.9 for page in PAGES.values())
    # No single colour reaches 4.5 on both, hence the page's own colour: the best is the root of the pages' contrast.
    assert contrast(*PAGES.values()) ** 0.5 < 4.5


def test_a_figure_of_ones_own_has_the_ink_the_curves_and_the_map_of_the_others() -> None:
    with plot.figure(4.0, 3.0) as figure:
        axes = figure.subplots()
        curves = [axes.plot([0, 1], [number, 1], label=str(number))[0] for number in range(3)]
        axes.set(title="a title", xlabel="features", xscale="log")
        legend = axes.legend()
        cells = axes.pcolormesh([[0.0, 1.0]])
    figure.draw_without_rendering()
    written = [axes.title, axes.xaxis.label, *axes.get_yticklabels(), *legend.get_texts()]
    assert {to_hex(each.get_color()) for each in written} == {INK}
    assert {to_hex(each.get_edgecolor()) for each in (*axes.spines.values(), legend.get_frame())} == {INK}
    assert {to_hex(tick.tick1line.get_color()) for tick in axes.xaxis.get_minor_ticks()} == {INK}
    assert legend.get_frame().get_facecolor()[3] == axes.get_facecolor()[3] == 0
    maps = cells.get_cmap(), plot.heatmap(WEIGHTS).axes[0].collections[0].get_cmap()
    assert len({tuple(map(to_hex, each([0.0, 0.3, 0.7, 1.0]))) for each in maps}) == 1
    for curve, page in product(curves, PAGES.values()):
        assert contrast(curve.get_color(), page) >= 3
    assert len({curve.get_color() for curve in curves}) == 3
    assert Figure().subplots().title.get_color() != INK  # the next figure is anybody's


def test_a_table_prints_aligned_columns_and_names_a_row_that_is_too_long() -> None:
    shown = plot.table(["mask", "True means"], [["attn_mask", "blocked"], ["allowed", "visible"]])
    assert str(shown) == "mask       True means\nattn_mask  blocked\nallowed    visible"
    assert '<th scope="row">attn_mask</th><td>blocked</td>' in shown._repr_html_()
    with pytest.raises(ValueError, match=re.escape("rows[1] has 1 cells, ['b']: header has 2 titles")):
        plot.table(["", "x"], [["a", "1"], ["b"]])


def test_a_table_writes_its_numbers_in_the_form_of_their_column_and_leaves_text() -> None:
    rows = {"fused": [1.25e-7, 3.0], "by hand": ["none", torch.tensor(4.5)]}
    shown = plot.table(["", "error", "time"], rows, ["{:.0e}", "{:.1f} s"])
    assert shown.rows == [["fused", "1e-07", "3.0 s"], ["by hand", "none", "4.5 s"]]
    assert plot.table(["", "a", "b"], [["x", 0.25, 1]], "{:.0%}").rows == [["x", "25%", "100%"]]
    with pytest.raises(ValueError, match=re.escape("form has 1 items, ['{}']: pass one text, or 2, one a column")):
        plot.table(["", "error", "time"], rows, ["{}"])


def test_a_table_escapes_its_cells_in_html() -> None:
    assert plot.table(["", "&"], {"<b>": ["<i>"]})._repr_html_() == (
        '<table style="text-align:left"><thead><tr><td></td><th scope="col">&amp;</th></tr></thead>'
        '<tbody><tr><th scope="row">&lt;b&gt;</th><td>&lt;i&gt;</td></tr></tbody></table>'
    )


def test_notes_stand_below_a_table_as_text() -> None:
    class Noted(Tabular):
        table = plot.table(["", "a"], {"x": [1]})

        def _notes(self) -> list[str]:
            return ["<b>"]

    assert repr(Noted()) == "   a\nx  1\n<b>"
    assert Noted()._repr_html_() == Noted.table._repr_html_() + "<p>&lt;b&gt;</p>"


def test_a_figure_is_transparent_and_draws_the_same_bytes_twice(tmp_path: Path) -> None:
    first, second = (plot.heatmap(WEIGHTS) for _ in range(2))
    assert first.get_facecolor()[3] == 0
    assert first._repr_svg_() == second._repr_svg_()
    first.savefig(tmp_path / "a.svg")
    first.savefig(tmp_path / "a.png")
    assert "currentColor" in (tmp_path / "a.svg").read_text()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_notebook_shows_the_figure_with_and_without_the_inline_backend() -> None:
    figure = plot.heatmap(WEIGHTS)
    plain, inline = DisplayFormatter(), DisplayFormatter()
    inline.formatters["image/svg+xml"].for_type(Figure, partial(print_figure, fmt="svg"))
    for formatter in (plain, inline):
        data, _ = formatter.format(figure)
        assert "currentColor" in data["image/svg+xml"]


def test_drawing_leaves_pyplot_alone_and_importing_leaves_matplotlib_alone() -> None:
    program = """
import sys, torch, unmasked.plot
assert "matplotlib" not in sys.modules
unmasked.plot.heatmap(torch.ones(3, 4))._repr_svg_()
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


test_a_wrong_shape_is_named_with_its_remedy = refused(
    {
        ValueError: {
            "weights has shape (2, 3, 4), expected (queries, keys): "
            "pick one item of a batch and one head, or show all heads with plot.show...": lambda: plot.heatmap(
                torch.ones(2, 3, 4)
            ),
            "matrix 'a' has shape (3,), expected (queries, keys)...": lambda: plot.signed({"a": torch.ones(3)}),
            "weights has shape (0, 3), expected (queries, keys)...": lambda: plot.heatmap(torch.ones(0, 3)),
            "weights must hold matrices of one shape to share their labels, not {'a': (2, 3), 'b': (3, "
            "2)}...": lambda: plot.heatmap({"a": torch.ones(2, 3), "b": torch.ones(3, 2)}),
            "queries has 1 labels, but weights is (2, 3): pass 2...": lambda: plot.heatmap(WEIGHTS, queries=["a"]),
            "keys has 1 labels, but matrix is (2, 3): pass 3...": lambda: plot.signed(WEIGHTS, keys=["a"]),
            "weights is an empty dict, expected a tensor (queries, keys) or a dict of them under their "
            "titles...": lambda: plot.heatmap({}),
            "weights is a list, expected a tensor (queries, keys) or a dict of them under their titles...": lambda: (
                plot.heatmap([torch.eye(2)])
            ),
        },
    }
)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"^plots need matplotlib: pip install matplotlib$"):
        plot.heatmap(WEIGHTS)
