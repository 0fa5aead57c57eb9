import re
from typing import Any

import pytest
import torch

from unmasked import plot

from ..contrast import contrast
from ..refusals import refused

PAGES = {"light": (255, 253, 248), "dark": (20, 27, 29)}
TEXT = {"light": (29, 43, 46), "dark": (224, 229, 228)}


def colours(html: str) -> list[tuple[tuple[int, ...], float]]:
    cells = re.findall(r"background:rgba\((\d+),(\d+),(\d+),([\d.]+)\)", html)
    return [((int(r), int(g), int(b)), float(strength)) for r, g, b, strength in cells]


def test_the_digits_of_a_grid_are_text_in_print_and_in_html():
    shown = plot.grid(torch.tensor([[1.0, -0.5], [0.25, -torch.inf]]), "scores", rows=["my", "ship"])
    assert str(shown) == repr(shown) == "scores (2, 2)\n         0      1\n  my  1.00  −0.50\nship  0.25     −∞"
    html = shown._repr_html_()
    assert re.findall(r"<td style[^>]*>([^<]+)</td>", html) == ["1.00", "−0.50", "0.25", "−∞"]
    assert re.findall(r'<th scope="row"[^>]*>([^<]+)<', html) == ["my", "ship"]
    assert re.findall(r'<th scope="col"[^>]*>([^<]+)<', html) == ["0", "1"]
    assert ">scores (2, 2)</caption>" in html


def test_whole_numbers_and_truth_have_no_decimals_and_several_tensors_their_titles():
    places = torch.arange(4).view(2, 2)
    shown = plot.grid({"split": places, "view": places.mT}, "tagged")
    assert str(shown).splitlines() == [
        "tagged (2, 2)",
        "split",
        "   0  1",
        "0  0  1",
        "1  2  3",
        *str(shown).splitlines()[5:],
    ]
    assert re.findall(r"<caption[^>]*>([^<]+)<", shown._repr_html_()) == ["tagged split", "tagged view"]
    assert re.findall(r"<td style[^>]*>([^<]+)</td>", plot.grid(places > 1)._repr_html_()) == ["0", "0", "1", "1"]
    stacked = plot.grid({"split": places[None], "view": places[None]})
    assert [title for title, _ in stacked.panels] == ["split [0]", "view [0]"]


def of(*shape: int, **options: Any) -> Any:
    return lambda: plot.grid(torch.ones(shape), **options)


BOOL = "expected torch.bool of (2, 2), True where..."
test_what_is_no_small_tensor_with_its_own_names_and_mask_is_refused_with_a_remedy = refused(
    {
        ValueError: {
            "values must hold tensors of one shape to share their names, not {'a': (2,), 'b': (3,)}...": (
                lambda: plot.grid({"a": torch.ones(2), "b": torch.ones(3)})
            ),
            "values has 0 numbers, shape (0, 3), expected 1 to 256: cut out a part...": of(0, 3),
            "values has 257 numbers, shape (257,), expected 1 to 256...": of(257),
            "rows has 1 names, but values is (2, 3): pass 2...": of(2, 3, rows=["a"]),
            "columns has 1 names, but values is (2, 3): pass 3...": of(2, 3, columns=["a"]),
            "keys has 1 names, but values is (2, 3): pass 3...": of(2, 3, keys=["a"]),
            "pass rows and columns, or queries and keys, not both...": of(1, 1, rows=["a"], keys=["b"]),
            "allowed has the titles ['b'], expected those of values, ['a']...": lambda: plot.grid(
                {"a": torch.ones(2, 2)}, allowed={"b": torch.ones(2, 2, dtype=torch.bool)}
            ),
            f"allowed is torch.float32 of shape (2, 2), {BOOL}": of(2, 2, allowed=torch.ones(2, 2)),
            f"allowed is torch.bool of shape (2, 3), {BOOL}": of(2, 2, allowed=torch.ones(2, 3).bool()),
        }
    }
)


def test_the_larger_a_number_the_stronger_its_colour_and_the_sign_has_one_of_its_own():
    (one, strong), (other, weak), (same, half), (_, none) = colours(
        plot.grid(torch.tensor([1.0, -0.5, 0.5, torch.nan]))._repr_html_()
    )
    assert one == same != other
    assert strong == pytest.approx(2 * half, abs=0.01)
    assert weak == half
    assert none == 0


def test_every_head_is_a_panel_on_one_scale_with_one_name():
    values = torch.arange(12.0).view(2, 3, 2)
    html = plot.grid(values, "weights")._repr_html_()
    assert html.count("<table") == 2
    assert 'aria-label="weights (2, 3, 2)"' in html
    assert re.findall(r"<caption[^>]*>([^<]+)<", html) == ["weights [0]", "weights [1]"]
    assert [strength for _, strength in colours(html)][-1] == max(strength for _, strength in colours(html))
    assert str(plot.grid(values, "weights")).splitlines()[:2] == ["weights (2, 3, 2)", "[0]"]
    assert html.count("[0]") == 1


def test_the_text_of_a_page_can_be_read_on_every_cell_in_light_and_dark():
    for colour, strength in colours(plot.grid(torch.tensor([1.0, -1.0, 0.3, -0.3, 0.0]))._repr_html_()):
        for theme, page in PAGES.items():
            cell = tuple(strength * c + (1 - strength) * p for c, p in zip(colour, page, strict=True))
            assert contrast(*([c / 255 for c in color] for color in (cell, TEXT[theme]))) >= 4.5, (
                theme,
                colour,
                strength,
            )


def test_names_of_tokens_are_text_and_no_html():
    html = plot.grid(torch.ones(1, 1), "<b>", rows=["<s>"], columns=["&"])._repr_html_()
    assert "<b>" not in html
    assert "<s>" not in html
    assert "&lt;s&gt;" in html


def test_gradients_integers_and_booleans_have_grids_too():
    assert "1.00" in str(plot.grid(torch.ones(1, 2, requires_grad=True)))
    assert str(plot.grid(torch.tensor(3))) == "()\n   0\n0  3"
    assert str(plot.grid(torch.tensor([True]))) == "(1,)\n   0\n0  1"


def test_what_a_mask_hides_is_hatched_and_the_corner_names_the_axes():
    weights = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    shown = plot.grid(weights, "weights", allowed=weights > 0, axes=("queries", "keys"))
    assert str(shown).splitlines()[1:] == [
        "queries / keys     0     1",
        "             0  1.00     ×",
        "             1  0.25  0.75",
    ]
    html = shown._repr_html_()
    assert re.findall(r"<td style[^>]*>([^<]+)</td>", html) == ["1.00", "0.25", "0.75"]
    assert html.count('<td class="blocked" aria-label="blocked"></td>') == 1
    assert '<td class="axes">queries ↓<br>keys →</td>' in html

    masks = {"one": weights > 0, "other": weights > 0.5}
    shown = plot.grid({"one": weights, "other": weights}, allowed=masks)
    assert [str(line).count("×") for line in str(shown).splitlines()] == [0, 0, 0, 1, 0, 0, 0, 1, 1]
    stacked = plot.grid(torch.stack([weights, weights]), allowed=torch.stack([weights > 0, weights > 0.5]))
    assert [str(line).count("×") for line in str(stacked).splitlines()] == [0, 0, 0, 1, 0, 0, 0, 1, 1]


def test_attention_says_that_rows_are_queries_and_leaves_zeros_unprinted():
    weights = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    shown = plot.grid(weights, "weights", queries=["my", "ship"])
    assert str(shown).splitlines()[1].split() == ["queries", "/", "keys", "my", "ship"]
    html = shown._repr_html_()
    assert '<td class="axes">queries ↓<br>keys →</td>' in html
    assert re.findall(r"<td style[^>]*>([^<]*)</td>", html) == ["1.00", "", "0.25", "0.75"]
    assert re.findall(r'<th scope="col"[^>]*>([^<]+)<', html) == ["my", "ship"]
    assert 'class="axes">queries' not in plot.grid(weights, "weights", rows=["my", "ship"])._repr_html_()


def test_a_mask_fills_what_it_allows_and_hatches_what_it_blocks():
    html = plot.grid(torch.ones(2, 3).tril(1).bool(), "mask", queries=range(2), keys=["a", "b", "c"])._repr_html_()
    assert html.count('aria-label="allowed"></td>') == 5
    assert html.count('<td class="blocked" aria-label="blocked"></td>') == 1
    assert str(plot.grid(torch.tensor([[True, False]]), queries=["a"])).splitlines()[-1].split() == ["a", "1", "×"]
