"""The translation whose English words light up: it shows the weights of the run, by mouse, key and touch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from unmasked_lessons.teaching import translate, translations

from .conftest import Open, box_of, write_figures


@pytest.fixture(scope="module")
def given() -> dict[str, Any]:
    pairs = translations(64)
    weights, _ = translate(pairs)
    told = [
        {"read": english, "written": french, "weights": each.tolist()}
        for (english, french), each in zip(pairs[:2], weights, strict=False)
    ]
    return {"sentences": told, "start": 1}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, given: dict[str, Any]) -> Path:
    return write_figures(tmp_path_factory.mktemp("translation"), {"translation": given})


LIT = "[...document.querySelectorAll('.live-line > span')].map((each) => +each.style.getPropertyValue('--share'))"


def percent(weight: float) -> str:
    return "<1%" if 0 < weight < 0.005 else f"{100 * weight:.0f}%"


def test_each_french_word_lights_up_what_the_model_looked_at(opened: Open, given: dict[str, Any]):
    page = opened("translation.html")
    for number, sentence in enumerate(given["sentences"]):
        page.locator(".live-choices button").nth(number).click()
        assert page.locator(".live-line .live-word").all_inner_texts() == sentence["read"]
        words = page.locator(".live-line button")
        assert words.all_inner_texts() == sentence["written"]
        for place, weights in enumerate(sentence["weights"]):
            words.nth(place).hover()
            torch.testing.assert_close(torch.tensor(page.evaluate(LIT)), torch.tensor(weights), rtol=0, atol=1e-5)
            assert page.locator(".live-line .live-share").all_inner_texts() == [percent(each) for each in weights]
            most = max(range(len(weights)), key=weights.__getitem__)
            told = page.locator(".live-told")
            assert told.locator("b").all_inner_texts() == [sentence["written"][place], sentence["read"][most]]
            asked = f"with {sentence['written'][place - 1]}, the word before" if place else "with its place alone"
            assert f": {percent(weights[most])}. It asks {asked}" in told.inner_text()
        assert words.nth(6).get_attribute("aria-pressed") == "true"
        page.locator("h1").hover()
        assert words.nth(given["start"]).get_attribute("aria-pressed") == "true", "what was chosen is shown again"


def test_the_words_are_chosen_by_keys(opened: Open, given: dict[str, Any]):
    page = opened("translation.html")
    page.locator(".live-choices button").last.focus()
    page.keyboard.press("Tab")
    pressed = page.locator(".live-line button[aria-pressed=true]")
    written = given["sentences"][0]["written"]
    for key, place in (("ArrowRight", 2), ("ArrowLeft", 1), ("Home", 0), ("End", 6), ("ArrowRight", 6)):
        page.keyboard.press(key)
        assert pressed.count() == 1
        assert pressed.inner_text() == written[place]
        assert page.locator(".live-told b").first.inner_text() == written[place]


def test_the_words_are_chosen_by_touch_and_nothing_is_wider_than_a_phone(on_phone: Open, given: dict[str, Any]):
    page = on_phone("translation.html")
    words = page.locator(".live-line button")
    for place in (4, 0):
        words.nth(place).tap()
        shown = torch.tensor(page.evaluate(LIT))
        torch.testing.assert_close(shown, torch.tensor(given["sentences"][0]["weights"][place]), rtol=0, atol=1e-5)
    figure = box_of(page.locator(".live-translation"))
    for word in page.locator(".live-line > *").all():
        assert box_of(word)["x"] + box_of(word)["width"] <= figure["x"] + figure["width"] + 1


def test_without_javascript_the_picture_of_the_run_stays(without_scripts: Open):
    assert without_scripts("translation.html").locator("[data-live=translation]").inner_text() == "static"
