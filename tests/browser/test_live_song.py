"""The hands that turn along a text and the singer with a silent head: they show what PyTorch gives, to everybody."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from unmasked_lessons.experiments import silence
from unmasked_lessons.teaching import Singer

from .conftest import Open, box_of, write_figures

TURNING: dict[str, Any] = {
    "query": [[1.0, 0.3], [0.6, 0.8]],
    "key": [[0.9, 0.6], [0.9, -0.1]],
    "rates": [0.6, 0.1],
    "names": ["seven", "bottles"],
    "hums": 8,
    "distance": 6,
    "start": [0, 2],
}


@pytest.fixture(scope="module")
def given() -> dict[str, Any]:
    return {"turning": TURNING, "silence": silence.story(Singer.trained(1, steps=20))}  # it still makes mistakes


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, given: dict[str, Any]) -> Path:
    return write_figures(tmp_path_factory.mktemp("song"), given)


def turned(pairs: list[list[float]], place: int) -> torch.Tensor:
    """Pairs of features as complex numbers, turned as a multiplication turns them."""
    rates = torch.tensor(TURNING["rates"], dtype=torch.float64)
    return torch.view_as_complex(torch.tensor(pairs, dtype=torch.float64)) * torch.exp(1j * rates * place)


def test_the_clocks_show_pytorchs_dot_products_and_angles_wherever_the_words_stand(opened: Open):
    page = opened("turning.html")
    cases = [(hums, distance) for hums in range(9) for distance in range(1, 7)]
    found = page.evaluate(
        """async ([data, cases]) => {
          const { clocks } = await import("/live/turning.js")
          return cases.map((each) => clocks(data, ...each))
        }""",
        [TURNING, cases],
    )
    for (hums, distance), shown in zip(cases, found, strict=True):
        key, query = turned(TURNING["key"], hums), turned(TURNING["query"], hums + distance)
        products = (query * key.conj()).real
        torch.testing.assert_close(torch.tensor(shown["products"], dtype=torch.float64), products)
        assert shown["sum"] == pytest.approx(products.sum().item())
        angles = (query * key.conj()).angle().abs() * 180 / math.pi
        assert shown["angles"] == pytest.approx(angles.tolist(), abs=0.51)
        hands = [[torch.view_as_real(each)[pair].tolist() for each in (key, query)] for pair in range(2)]
        torch.testing.assert_close(torch.tensor(shown["hands"]), torch.tensor(hands))


def test_humming_turns_both_hands_and_changes_nothing_and_a_distance_changes_the_product(opened: Open):
    page = opened("turning.html")
    told, hums, distance = page.locator(".live-told b"), page.get_by_label("la hummed"), page.get_by_label("from seven")
    tips = "[...document.querySelectorAll('.live-clock line')].map((line) => line.getAttribute('x2'))"
    first, hands = told.inner_text(), page.evaluate(tips)
    product = (turned(TURNING["query"], 2) * turned(TURNING["key"], 0).conj()).real.sum().item()
    assert first == f"Together the dot product is {product:.2f}."
    hums.focus()
    for place in range(2, 10):
        page.keyboard.press("ArrowRight")
        assert told.inner_text() == first
        assert page.locator(".live-told").inner_text().startswith(f"seven stands at place {place}, bottles at place")
    assert page.evaluate(tips) != hands
    assert page.locator(".live-text > span").all_inner_texts() == ["la"] * 8 + ["seven", "·", "bottles"]
    distance.focus()
    page.keyboard.press("ArrowRight")
    product = (turned(TURNING["query"], 3) * turned(TURNING["key"], 0).conj()).real.sum().item()
    assert told.inner_text() == f"Together the dot product is {product:.2f}."
    assert distance.get_attribute("aria-valuetext") == "3 places"


def test_the_slider_is_moved_by_touch(on_phone: Open):
    page = on_phone("turning.html")
    box = box_of(page.get_by_label("la hummed"))
    page.touchscreen.tap(box["x"] + box["width"] - 8, box["y"] + box["height"] / 2)
    assert page.locator(".live-text > span").all_inner_texts().count("la") == 8


def test_each_verse_is_shown_as_it_is_sung_and_what_is_wrong_is_marked(opened: Open, given: dict[str, Any]):
    page, told = opened("silence.html", has_touch=True), given["silence"]
    choice, text = page.get_by_label("verse"), page.locator(".live-text > span")
    for name, verses in told["sung"].items():
        page.get_by_role("button", name=name).tap()
        choice.focus()
        page.keyboard.press("Home")
        for words, right in zip(verses, told["right"], strict=True):
            assert text.all_inner_texts() == words
            wrong = [place for place, word in enumerate(words) if word != right[place]]
            marked = "[...document.querySelectorAll('.live-text > span')].map((each) => each.className)"
            kinds = page.evaluate(marked)
            assert [place for place, kind in enumerate(kinds) if kind == "live-computed"] == wrong
            assert kinds.count("live-given") == told["given"]
            assert page.get_by_role("status").inner_text() == right[told["given"] - 2]
            said = f"{len(wrong) or 'none'} {'are' if len(wrong) > 1 else 'is'} wrong."
            assert page.locator(".live-told").inner_text().endswith(said)
            page.keyboard.press("ArrowRight")
    assert any(words != right for words, right in zip(told["sung"]["without head 0"], told["right"], strict=True))


def test_the_figure_of_the_singer_begins_where_the_page_says(opened: Open):
    page = opened("silence.html")
    assert page.locator("button[aria-pressed=true]").inner_text() == "without head 0"
    assert page.locator(".live-text > span").all_inner_texts()[3:5] == ["nine", "green"]
