"""A table that says more than numbers is a card for each row on a phone, and each line says what its column said."""

from __future__ import annotations

from pathlib import Path

from bs4 import BeautifulSoup

from .hooks import hook

tables = hook("tables")
HEAD = "<thead><tr><th>Interface</th><th>True means</th><th>Shapes</th></tr></thead>"
SHAPES = "(queries, keys); (batch, heads, queries, keys)"
NAME = "<code>F.scaled_dot_product_attention</code>"


def shown(table: str) -> str:
    made: str = tables.on_post_page(table, config=None)
    return made


def table(*rows: str, attributes: str = "") -> str:
    cells = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row.split(' | '))}</tr>" for row in rows)
    return f"<table{attributes}>{HEAD}<tbody>{cells}</tbody></table>"


def test_each_line_of_a_card_says_what_its_column_said() -> None:
    made = BeautifulSoup(shown(table(f"{NAME} | may attend | {SHAPES}")), "html.parser")
    assert made.select("table[data-cards]")
    assert [cell["data-of"] for cell in made.select("td")] == ["Interface", "True means", "Shapes"]
    assert [cell.text for cell in made.select("td")] == ["F.scaled_dot_product_attention", "may attend", SHAPES]


def test_numbers_stay_in_their_columns_and_what_fits_a_phone_stays_a_table() -> None:
    numbers = table("flash | 0.1234567890123456 | 0.1234567890123456")
    assert shown(numbers) == numbers
    assert "data-cards" not in shown(table(f"name | may | {SHAPES}"))


def test_what_has_styles_of_its_own_stays_as_it_is() -> None:
    own = table(f"{NAME} | may attend | {SHAPES}", attributes=' class="tensor"')
    assert shown(own) == own
    spanned = table(f"{NAME} | may attend | {SHAPES}").replace("<td>", '<td colspan="2">', 1)
    assert shown(spanned) == spanned


def test_long_code_breaks_at_its_blanks_and_names_and_shapes_do_not() -> None:
    call = "<code>layer(x, x, x, need_weights=False)</code>"
    made = shown(table(f"{NAME} | {call} | <code>(2, 5)</code>"))
    assert made.count('<code class="long">') == 1
    assert '<code class="long">layer(' in made


def test_pages_have_such_cards(site: Path) -> None:
    for name in ("pytorch/masks", "pytorch/models", "pytorch/watching"):
        html = (site / name / "index.html").read_text(encoding="utf-8")
        assert BeautifulSoup(html, "html.parser").select("article table[data-cards] td[data-of]"), name
