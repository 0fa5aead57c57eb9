"""Figures that live: what each shows is what PyTorch computes, and everybody can use it, by hand, key and touch."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

from unmasked import self_attention
from unmasked_lessons.embeddings import common_vectors
from unmasked_lessons.figures.sentence import ask

from .conftest import DOCS, LIVE, Open, box_of, build_project, copy_scripts, draw_finger, settled

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

PROJECT = Path(__file__).parent / "live"
VECTORS = DOCS.parent / "src/unmasked_lessons/data/glove.6B.50d.u8"
FIGURES = ["sentence", "arrows", "scale", "tiles", "training", "temperature", "parts", "cache"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small project with the site's own scripts, styles and vectors."""
    root = tmp_path_factory.mktemp("live")
    copy_scripts(root / "docs/live")
    (root / "docs/assets").mkdir()
    for file in (DOCS / "assets/site.css", VECTORS):
        shutil.copy(file, root / "docs/assets")
    return build_project(PROJECT, root)


@pytest.fixture
def page(opened: Open) -> Page:
    return opened("figures/")


@pytest.fixture
def phone(on_phone: Open) -> Page:
    return on_phone("figures/")


def data_of(built: Path, figure: Locator) -> Any:
    return json.loads((built / "figures" / str(figure.get_attribute("data-json"))).read_text())


def test_each_script_is_small_and_so_are_all_together():
    sizes = {script.name: len(gzip.compress(script.read_bytes())) for script in LIVE.glob("*.js")}
    assert {name: size for name, size in sizes.items() if size > 4_096} == {}
    assert sum(sizes.values()) < 47_000


def test_without_javascript_the_figures_are_those_of_the_run(without_scripts: Open):
    page = without_scripts("figures/")
    for name in FIGURES:
        figure = page.locator(f"[data-live={name}]").first
        assert figure.locator("table, svg, img").first.is_visible()
        assert figure.locator(".live").count() == 0


def test_no_other_page_loads_a_script(built: Path):
    assert "live/" not in (built / "index.html").read_text()


def test_a_figure_whose_data_do_not_come_stays_as_it_was(tab: Page, served: str):
    tab.route("**/*.json", lambda route: route.abort())
    tab.goto(f"{served}figures/", wait_until="networkidle")
    assert tab.locator("[data-drawn]").count() == 0
    assert tab.locator("[data-live=sentence] table.tensor").first.is_visible()


# --- sentence.js


def percent(weight: float) -> str:
    return "<1%" if 0 < weight < 0.005 else f"{100 * weight:.0f}%"


def shares(figure: Locator) -> list[str]:
    return figure.locator(".live-share").all_inner_texts()


def near(figure: Locator) -> list[list[str]]:
    """The nearest words before and after."""
    return [text.split(", ") for text in figure.locator(".live-near dd").all_inner_texts()]


def typed(page: Page, text: str) -> Locator:
    """The figure, once it has drawn a text of known words."""
    figure = page.locator("[data-live=sentence]").first
    figure.get_by_label("Or type a sentence").fill(text)
    figure.locator(f".live-words button:nth-child({len(text.split())})").wait_for()
    words = "[...document.querySelectorAll('[data-live=sentence] .live-word')].map((each) => each.textContent)"
    page.wait_for_function(f"(last) => {words}.includes(last)", arg=text.split()[-1])
    return figure


def nearly(shown: list[str], weights: list[float]) -> bool:
    """Whether percentages are those of weights, which lie on no edge of rounding in the last bits."""
    return len(shown) == len(weights) and all(
        text in {percent(weight - 1e-4), percent(weight + 1e-4)} for text, weight in zip(shown, weights, strict=True)
    )


def test_each_word_of_the_pages_sentences_shows_the_weights_of_the_run(page: Page, built: Path):
    figure = page.locator("[data-live=sentence]").first
    for place, sentence in enumerate(data_of(built, figure)["sentences"]):
        figure.locator(".live-choices button").nth(place).click()
        assert figure.locator(".live-word").all_inner_texts() == sentence["words"]
        for word, weights in enumerate(sentence["weights"]):
            figure.locator(".live-words button").nth(word).hover()
            assert nearly(shares(figure), weights), sentence["words"][word]
            assert figure.locator(".live-arcs path").count() == len(weights) - 1
            assert near(figure) == sentence["near"][word]
        bars = figure.locator(".live-bar").evaluate_all("all => all.map(each => each.offsetHeight)")
        assert bars[-1] == max(bars), "the last word keeps most of itself"
    told = page.locator("[data-live=sentence] .live-told").first
    figure.get_by_role("button", name="i must go back").click()
    assert told.inner_text() == "ship keeps 55% of itself. Of the other words it takes most from crew: 13%."


def test_a_typed_sentence_is_computed_from_the_vectors_as_the_library_does(page: Page):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    figure = page.locator("[data-live=sentence]").first
    assert asked == []
    figure.get_by_label("Or type a sentence").fill("The animal did not cross the street")
    page.wait_for_function("document.querySelectorAll('[data-live=sentence] .live-word')[1].textContent === 'animal'")
    assert [url.rpartition("/")[2] for url in asked] == ["words.js", "glove.6B.50d.u8"]
    words = ["the", "animal", "did", "not", "cross", "the", "street"]
    (expected,) = ask("cross", " ".join(words))
    for word in range(len(words)):
        figure.locator(".live-words button").nth(word).click()
        assert nearly(shares(figure), expected.weights[word].tolist()), words[word]
        assert near(figure) == [*expected.near[word]]
    assert figure.locator("[role=status]").inner_text() == ""


def test_unknown_words_are_named_and_stay_out(page: Page):
    figure = page.locator("[data-live=sentence]").first
    field = figure.get_by_label("Or type a sentence")
    field.fill("Gandalf has a ship!")
    status = figure.locator("[role=status]")
    status.filter(has_text="stays out").wait_for()
    assert status.inner_text() == "“Gandalf” is not among the 5,000 words that this figure knows, and stays out."
    weights = self_attention(common_vectors().lookup("has a ship")).weights
    figure.locator(".live-words button").nth(3).click()
    assert shares(figure)[0] == ""
    assert nearly(shares(figure)[1:], weights[2].tolist())
    figure.locator(".live-words button").first.click()
    assert figure.locator(".live-told").inner_text() == "Gandalf has no vector here, so it takes nothing."
    assert figure.locator(".live-arcs path").count() == 0
    field.fill("gandalf qwxy")
    assert "“gandalf” and “qwxy” are not among" in status.inner_text()
    field.fill("the ship " * 11)
    assert status.inner_text() == "The first 20 words are drawn."
    assert figure.locator(".live-word").count() == 20
    figure.locator(".live-choices button").first.click()
    assert (status.inner_text(), field.input_value()) == ("", "")
    assert figure.locator(".live-near").is_visible()


def test_a_word_is_known_in_capitals_too_and_what_is_short_for_two_is_read_as_both(page: Page):
    figure = typed(page, "The cat sat on THE mat")
    told = figure.locator(".live-told")
    assert told.inner_text() == "mat keeps 53% of itself. Of the other words it takes most from sat: 13%."
    figure.locator(".live-words button").first.click()
    # Each *the* is a word of its own, as its bar says.
    taken = "The keeps 34% of itself. Of the other words it takes most from on: 23%"
    assert told.inner_text() == f"{taken}, because nobody trained it to look past common words."
    assert shares(figure)[0] == shares(figure)[4] == "34%"
    figure.locator(".live-words button").nth(3).click()
    assert "takes most from The: 26% each of 2 times" in told.inner_text()
    assert figure.locator(".live-most").count() == 4, "both are marked, and both arcs"
    (expected,) = ask("mat", "the cat sat on the mat")
    figure.locator(".live-words button").first.click()
    assert near(figure) == [*expected.near[0]]

    status = figure.locator("[role=status]")
    figure.get_by_label("Or type a sentence").fill("Don’t say it's Alice's: we can't, they'll")
    status.filter(has_text="they").wait_for()
    assert " ".join(figure.locator(".live-word").all_inner_texts()) == "do not say it is alice we can not they will"
    assert status.inner_text() == (
        "“Don’t” is read as “do not”. “it's” is read as “it is”. “Alice's” is read as “alice”. "
        "“can't” is read as “can not”. “they'll” is read as “they will”."
    )


def test_a_box_without_a_word_shows_the_pages_sentence_again_and_says_why(page: Page):
    figure = typed(page, "river bank")
    words, status = figure.locator(".live-word"), figure.locator("[role=status]")
    field = figure.get_by_label("Or type a sentence")
    field.fill("!!!")
    assert status.inner_text() == "“!!!” has no word in it. Above is the page’s sentence."
    assert words.first.inner_text() == "i"
    typed(page, "river bank")
    field.fill("")
    assert (words.first.inner_text(), status.inner_text()) == ("i", "")
    assert figure.locator(".live-choices [aria-pressed=true]").inner_text().startswith("i must go")


@pytest.mark.parametrize("word", ["constructor", "toString", "__proto__", "hasOwnProperty", "valueOf"])
def test_names_of_the_language_are_words_like_others(page: Page, word: str):
    figure = page.locator("[data-live=sentence]").first
    figure.get_by_label("Or type a sentence").fill(f"the {word} ship")
    figure.locator("[role=status]").filter(has_text="stays out").wait_for()
    assert figure.locator(".live-word").all_inner_texts()[-1] == "ship"
    assert figure.locator(".live-words [aria-pressed=true] .live-word").inner_text() == "ship"


def test_a_word_that_hardly_moves_is_told(page: Page):
    figure = typed(page, "river bank")
    told = "bank keeps 94% of itself and hardly moves: nobody trained it to look at river (6%)."
    assert figure.locator(".live-told").inner_text() == told
    before, after = near(figure)
    assert before == after == ["banks", "securities", "banking", "investment", "exchange"]
    figure = typed(page, "crane bird flew")
    assert figure.locator(".live-words [aria-pressed=true] .live-word").inner_text() == "crane"
    assert figure.locator(".live-near b").all_inner_texts() == ["bird", "flying", "ship", "hunter"]


def test_long_words_stay_apart_on_a_phone(phone: Page):
    figure = typed(phone, "international responsibility administration")
    for line in figure.locator(".live-words button").all():
        word, share = (line.locator(f".live-{part}").bounding_box() for part in ("word", "share"))
        assert word
        assert share
        assert word["x"] + word["width"] <= share["x"]
        assert line.locator(".live-word").evaluate("each => each.scrollWidth <= each.clientWidth")


def test_vectors_that_do_not_come_are_told_of_and_the_rest_works(tab: Page, served: str):
    tab.route("**/*.u8", lambda route: route.fulfill(status=404))
    tab.goto(f"{served}figures/")
    settled(tab)
    figure = tab.locator("[data-live=sentence]").first
    figure.get_by_label("Or type a sentence").fill("the ship")
    figure.get_by_text("The words could not be loaded. The sentences above work without them.").wait_for()
    tab.unroute("**/*.u8")
    figure.get_by_label("Or type a sentence").fill("the ship sails")
    tab.wait_for_function("document.querySelectorAll('[data-live=sentence] .live-word')[2].textContent === 'sails'")


def test_the_words_are_reached_by_keys_and_by_touch(page: Page, phone: Page):
    figure = page.locator("[data-live=sentence]").first
    pressed = figure.locator(".live-words [aria-pressed=true] .live-word")
    figure.get_by_label("Or type a sentence").focus()
    page.keyboard.press("Tab")
    assert pressed.inner_text() == "ship"
    for key, word in (
        ("ArrowRight", "and"),
        ("ArrowLeft", "ship"),
        ("Home", "i"),
        ("End", "crew"),
        ("ArrowRight", "crew"),
    ):
        page.keyboard.press(key)
        assert pressed.inner_text() == word
        assert figure.locator(".live-told b").first.inner_text() == word
    figure.locator(".live-words button").nth(1).hover()
    assert pressed.inner_text() == "must"
    page.locator("h1").hover()
    assert pressed.inner_text() == "crew"

    figure = phone.locator("[data-live=sentence]").first
    assert figure.locator(".live-upright").count() == 1
    figure.locator(".live-words button").nth(3).tap()
    assert figure.locator(".live-words [aria-pressed=true] .live-word").inner_text() == "back"
    bars = figure.locator(".live-bar").evaluate_all("all => all.map(each => each.offsetWidth)")
    assert bars[3] == max(bars)


# --- arrows.js


def numbers(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"-?[0-9]+(?:\.[0-9]+)?", text.replace("−", "-"))]


def where(figure: Locator) -> torch.Tensor:
    """Where the arrows point, as their handles say."""
    told = figure.get_by_role("slider").evaluate_all("all => all.map(each => each.ariaValueText)")
    return torch.tensor([numbers(text) for text in told], dtype=torch.float64)


def pixels(figure: Locator) -> float:
    """How many pixels of the screen are one unit of the plane."""
    bound = float(figure.get_by_role("slider").first.get_attribute("aria-valuemax") or 0)
    return float(figure.locator("svg").evaluate("each => each.getBoundingClientRect().width")) / 2 / bound


def assert_the_tables_are_pytorchs(figure: Locator) -> None:
    arrows = where(figure)
    products, weights = (
        [table.locator("tbody tr").nth(row).locator("td").all_inner_texts() for row in range(len(arrows))]
        for table in figure.locator("table").all()
    )
    found = torch.tensor([[numbers(text)[0] for text in row] for row in products], dtype=torch.float64)
    torch.testing.assert_close(found, arrows @ arrows.T, rtol=0, atol=0.0051)
    expected = F.scaled_dot_product_attention(*(each[None] for each in (arrows, arrows, torch.eye(3).double())))[0]
    for row, shown in zip(expected.tolist(), weights, strict=True):
        assert nearly(shown, row)
    chosen = figure.locator("tr.live-chosen").first.locator("th").inner_text()
    place = figure.locator("tbody").first.locator("th").all_inner_texts().index(chosen)
    moved = numbers(figure.locator(".live-told").inner_text().rpartition("make")[2])
    torch.testing.assert_close(torch.tensor(moved).double(), (expected @ arrows)[place], rtol=0, atol=0.0051)
    # The ring is there, too.
    unit = float(figure.locator("svg").evaluate("each => each.viewBox.baseVal.width")) / 2
    bound = float(figure.get_by_role("slider").first.evaluate("each => each.ariaValueMax"))
    ring = figure.locator(".live-mean").nth(place).evaluate("each => [each.cx.baseVal.value, -each.cy.baseVal.value]")
    torch.testing.assert_close(
        torch.tensor(ring).double() * bound / unit, (expected @ arrows)[place], atol=1e-4, rtol=0
    )


def test_arrows_begin_where_the_page_has_them_with_the_weights_of_the_run(page: Page, built: Path):
    figure = page.locator("[data-live=arrows]")
    given = data_of(built, figure)
    assert where(figure).tolist() == given["vectors"]
    assert_the_tables_are_pytorchs(figure)
    shown = figure.locator("table").nth(1).locator("td").all_inner_texts()[1:]
    assert nearly([text for text in shown if text], [weight for row in given["weights"] for weight in row])
    assert figure.get_by_role("button").is_disabled()


def test_arrows_are_moved_by_keys(page: Page):
    figure = page.locator("[data-live=arrows]")
    first = where(figure)
    for place, handle in enumerate(figure.get_by_role("slider").all()):
        handle.focus()
        assert figure.locator("tr.live-chosen th").first.inner_text() == handle.get_attribute("aria-label")
        for key, by in {"ArrowRight": (0.1, 0), "Shift+ArrowUp": (0, 0.5), "ArrowLeft": (-0.1, 0)}.items():
            before = where(figure)[place]
            page.keyboard.press(key)
            torch.testing.assert_close(where(figure)[place], before + torch.tensor(by), rtol=0, atol=1e-6)
            assert_the_tables_are_pytorchs(figure)
    for _ in range(20):
        page.keyboard.press("Shift+ArrowDown")
    assert where(figure)[2, 1] == -float(handle.get_attribute("aria-valuemax") or 0)
    figure.get_by_role("button").click()
    torch.testing.assert_close(where(figure), first)
    assert_the_tables_are_pytorchs(figure)


def test_arrows_are_dragged_by_a_mouse_and_by_a_finger(page: Page, phone: Page):
    figure = page.locator("[data-live=arrows]")
    for place, handle in enumerate(figure.get_by_role("slider").all()):
        handle.scroll_into_view_if_needed()
        unit, before, box = pixels(figure), where(figure), box_of(handle)
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - unit, y + unit / 2, steps=4)
        page.mouse.up()
        page.mouse.move(x, y)  # no longer held
        moved = before.clone()
        moved[place] += torch.tensor([-1.0, -0.5])
        torch.testing.assert_close(where(figure), moved, rtol=0, atol=0.051)
        assert_the_tables_are_pytorchs(figure)

    figure = phone.locator("[data-live=arrows]")
    handle = figure.get_by_role("slider").first
    handle.scroll_into_view_if_needed()
    box = box_of(handle)
    before, scrolled = where(figure), phone.evaluate("scrollY")
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    draw_finger(phone, (x, y), (x - 20, y + 40), (x - 40, y + 80))
    moved = before[0] + torch.tensor([-40, -80]) / pixels(figure)
    now = "parseFloat(document.querySelector('[data-live=arrows] [role=slider]').ariaValueNow)"
    phone.wait_for_function(f"Math.abs({now} - {float(moved[0])}) < 0.051")
    torch.testing.assert_close(where(figure)[0], moved, rtol=0, atol=0.051)
    assert phone.evaluate("scrollY") == scrolled
    assert_the_tables_are_pytorchs(figure)


# --- scale.js


def test_the_slider_shows_for_each_size_the_weights_and_gradients_of_the_run(page: Page, built: Path):
    figure = page.locator("[data-live=scale]")
    given = data_of(built, figure)
    slider = figure.get_by_role("slider")
    slider.focus()
    page.keyboard.press("Home")
    low = []
    for place, size in enumerate(given["sizes"]):
        assert slider.evaluate("each => each.ariaValueText") == f"d = {size}" == figure.locator("output").inner_text()
        for side, name in enumerate(("unscaled", "scaled")):
            weights, norms = given[name][place], given[f"gradient_{name}"][place]
            chart, strip = figure.locator("svg").nth(2 * side), figure.locator("svg").nth(2 * side + 1)
            heights = chart.locator("rect").evaluate_all("all => all.map(each => parseFloat(each.style.height))")
            unit = chart.evaluate("each => each.viewBox.baseVal.height") - 18
            assert heights == pytest.approx([max(1, weight * unit) for weight in weights], abs=0.01)
            assert nearly([str(chart.locator("text").text_content())], weights[:1])
            dots = strip.locator("circle").evaluate_all("all => all.map(each => parseFloat(each.style.cx))")
            assert len(dots) == len(norms)
            assert dots == sorted(dots)
            ticks = strip.locator("text").evaluate_all(
                "all => all.map(each => [each.textContent, each.x.baseVal[0].value])"
            )
            (one, at), (two, later) = ((numbers(text.partition("10")[2])[0], x) for text, x in (ticks[0], ticks[-1]))
            for dot, norm in zip(dots, norms, strict=True):
                power = one + (dot - at) * (two - one) / (later - at)
                assert power == pytest.approx(max(-8, torch.tensor(norm).log10().item()), abs=0.01)
            low.append(min(dots))
        told = numbers(figure.locator(".live-told").inner_text())
        assert told[:2] == [size, len(given["scaled"][place])]
        page.keyboard.press("ArrowRight")
    assert low[-2] < low[-1], "without the root, some gradients vanish"


# --- tiles.js


def test_tiles_of_every_size_go_over_the_row_and_come_to_the_softmax_of_the_whole(page: Page, built: Path):
    figure = page.locator("[data-live=tiles]")
    given = data_of(built, figure)
    hidden = torch.tensor(given["hidden"])
    scores = torch.tensor(given["scores"]).double().masked_fill(hidden, -torch.inf)
    values = torch.tensor(given["values"]).double()
    slider, told = figure.get_by_role("slider"), figure.locator(".live-told")
    for size, name in ((1, "1 key"), (2, "2 keys"), (7, "all 7")):
        figure.get_by_role("button", name=name).click()
        assert figure.locator("[aria-pressed=true]").inner_text() == name
        tiles = -(-7 // size)
        assert int(slider.input_value()) == tiles, "a row begins where it ends"
        assert f"the average is {fixed((scores.softmax(0) @ values).item())}" in told.inner_text()
        slider.focus()
        page.keyboard.press("Home")
        assert told.inner_text() == "Nothing has been seen: the largest score is −∞, and both sums are 0."
        for tile in range(1, tiles + 1):
            page.keyboard.press("ArrowRight")
            assert slider.evaluate("each => each.ariaValueText") == f"tile {tile} of {tiles}"
            seen, this = scores[: tile * size], scores[(tile - 1) * size : tile * size]
            before = scores[: (tile - 1) * size]
            rows = [row.locator("td").all_inner_texts() for row in figure.locator("tbody tr").all()]
            largest = [part.max().item() if len(part) else -torch.inf for part in (before, this, seen)]
            assert rows[0] == [fixed(each) for each in largest]
            shown = seen.isfinite().any()
            assert rows[1][2] == fixed((seen - seen.max()).exp().sum().item() if shown else 0.0)
            assert rows[1][1] == fixed((this - seen.max()).exp().sum().item() if shown else 0.0)
            for part, text in zip((before, this, seen), rows[2], strict=True):
                start = (tile - 1) * size if part is this else 0
                average = (part.softmax(0) @ values[start : start + len(part)]).item() if len(part) else torch.nan
                assert text == ("none" if average != average else fixed(average))
            classes = figure.locator("rect").evaluate_all("all => all.map(each => each.getAttribute('class'))")
            keys = [key for key in range(7) if not hidden[key]]
            now = range((tile - 1) * size, tile * size)
            assert classes == [
                "live-now" if key in now else "live-seen" if key < now.start else "live-later" for key in keys
            ]
            grown = largest[2] - largest[0]
            if not shown:
                assert "may see none of these keys" in told.inner_text()
            elif before.isfinite().any() and grown > 0:
                factor = fixed(torch.tensor(-grown).exp().item())
                assert f"has grown by {fixed(grown)}" in told.inner_text()
                assert f"is multiplied by {factor}." in told.inner_text()
            elif before.isfinite().any():
                assert "has stayed" in told.inner_text()
            else:
                assert "The first keys that it sees." in told.inner_text()


def fixed(value: float) -> str:
    return f"{value:.2f}".replace("-inf", "−∞").replace("-0.00", "0.00").replace("-", "−")


def test_a_finger_chooses_a_tile(phone: Page):
    figure = phone.locator("[data-live=tiles]")
    figure.get_by_role("button", name="1 key").tap()
    assert figure.locator("label").inner_text() == "tile 7 of 7"
    slider = figure.get_by_role("slider")
    box = box_of(slider)
    phone.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert figure.locator("label").inner_text() in {"tile 3 of 7", "tile 4 of 7"}
    assert figure.locator("rect.live-now").count() == 1


# --- training.js


def shown_step(figure: Locator) -> tuple[str, list[str]]:
    return figure.locator(".live-told b").inner_text(), figure.locator("td").all_inner_texts()[1:]


def test_the_slider_goes_through_the_steps_of_the_run(page: Page, built: Path):
    figure = page.locator("[data-live=training]")
    given = data_of(built, figure)
    headers = figure.locator("th").all_inner_texts()
    assert headers == given["keys"] + given["queries"]
    slider = figure.get_by_role("slider")
    slider.focus()
    height = []
    for key, place in {"Home": 0, "ArrowRight": 1, "PageUp": None, "End": len(given["steps"]) - 1}.items():
        page.keyboard.press(key)
        place = int(slider.input_value()) if place is None else place
        step, texts = shown_step(figure)
        assert step == f"Step {given['steps'][place]}."
        assert nearly(texts, [weight for row in given["weights"][place] for weight in row])
        mark = figure.locator("circle").evaluate("each => [each.cx.baseVal.value, each.cy.baseVal.value]")
        ends = figure.locator("path.live-done").evaluate("each => each.getAttribute('d')").split("L")
        assert len(ends) == place + 1
        assert numbers(ends[-1]) == pytest.approx(mark, abs=0.1)
        height.append(mark[1])
        assert numbers(figure.locator(".live-told").inner_text())[-1] == pytest.approx(given["loss"][place], abs=0.0051)
    zero, top = (figure.locator("svg text").nth(place).evaluate("each => each.y.baseVal[0].value") for place in (1, 0))
    assert (zero - 4 - height[0]) / (zero - top) == pytest.approx(given["loss"][0] / max(given["loss"]), abs=0.01)
    assert (zero - 4 - height[-1]) / (zero - top) == pytest.approx(given["loss"][-1] / max(given["loss"]), abs=0.01)
    assert height[0] < height[1] < height[-1]


def test_the_run_plays_and_is_at_its_end_at_once_for_who_wants_less_motion(opened: Open, built: Path):
    for motion in ("reduce", "no-preference"):
        page = opened("figures/", reduced_motion=motion)
        page.clock.install()
        figure = page.locator("[data-live=training]")
        last = len(data_of(built, figure)["steps"]) - 1
        slider = figure.get_by_role("slider")
        assert slider.input_value() == "0", "it begins at the beginning"
        figure.get_by_role("button", name="Play").click()
        page.clock.run_for(100)
        if motion == "reduce":
            assert int(slider.input_value()) == last
        else:
            assert int(slider.input_value()) < last
            page.clock.run_for(3000)
            assert 0 < int(slider.input_value()) < last
            figure.get_by_role("button", name="Pause").click()
            at = slider.input_value()
            page.clock.run_for(3000)
            assert slider.input_value() == at
            figure.get_by_role("button", name="Play").click()
            page.clock.run_for(10_000)
            assert int(slider.input_value()) == last
        assert figure.get_by_role("button", name="Play").is_visible()


# --- temperature.js


def test_the_chances_of_the_next_word_are_the_softmax_of_its_scores_at_each_temperature(page: Page, built: Path):
    figure = page.locator("[data-live=temperature]")
    given = data_of(built, figure)
    slider = figure.get_by_role("slider", name="Temperature")
    for text in given["texts"]:
        figure.get_by_role("button", name=text["text"], exact=True).click()
        scores = torch.tensor(text["scores"], dtype=torch.float64)
        order = scores.argsort(descending=True)
        slider.focus()
        page.keyboard.press("Home")
        for step in range(25):
            temperature = 2 ** (step / 4 - 3)
            for said in (slider.evaluate("each => each.ariaValueText"), figure.locator("output").first.inner_text()):
                assert numbers(said) == [pytest.approx(temperature, abs=0.0051)]
            chances = (scores / temperature).softmax(dim=-1)[order]
            expected = [*chances[:6].tolist(), chances[6:].sum().item()]
            names = figure.locator(".live-word").all_inner_texts()
            assert names == [*(given["words"][place] for place in order[:6].tolist()), "3 others"]
            assert nearly(shares(figure), expected)
            shown = figure.locator(".live-bar").evaluate_all(
                "all => all.map(each => +each.style.getPropertyValue('--share'))"
            )
            assert shown == pytest.approx(expected, abs=1e-5)
            wide = figure.locator(".live-bar").evaluate_all(
                "all => all.map(each => each.getBoundingClientRect().width)"
            )
            assert [width / sum(wide) for width in wide] == pytest.approx(expected, abs=0.03), "the bars are as wide"
            page.keyboard.press("ArrowRight")


def test_words_are_drawn_by_their_chances_and_by_touch(phone: Page, built: Path):
    figure = phone.locator("[data-live=temperature]")
    given = data_of(built, figure)
    scores = torch.tensor(given["texts"][0]["scores"], dtype=torch.float64)
    order = scores.argsort(descending=True)
    edges = scores.softmax(dim=-1)[order].cumsum(0)
    numbers_drawn = [0.0, 0.1, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999999]
    phone.evaluate("(all) => (Math.random = () => all.shift())", numbers_drawn)
    figure.get_by_role("button", name="Draw 10 words").tap()
    expected = [given["words"][order[int((edges <= each).sum())]] for each in numbers_drawn]
    assert len(set(expected)) > 3
    assert figure.locator(".live-told").inner_text() == f"Drawn: {', '.join(expected)}."


def test_of_the_top_words_alone_chances_are_made_and_words_drawn(page: Page, built: Path):
    figure = page.locator("[data-live=temperature]")
    given = data_of(built, figure)
    scores = torch.tensor(given["texts"][0]["scores"], dtype=torch.float64)
    best = scores.sort(descending=True)
    slider = figure.get_by_role("slider", name="Likeliest words")
    assert slider.evaluate("each => each.ariaValueText") == "All words"
    slider.press("Home")
    for top in range(1, len(scores)):
        for said in (slider.evaluate("each => each.ariaValueText"), figure.locator("output").last.inner_text()):
            assert said == f"Top {top}"
        chances = best.values[:top].softmax(dim=-1)
        expected = [*chances[:6].tolist(), *([chances[6:].sum().item()] if top > 6 else [])]
        shown = shares(figure)
        assert nearly(shown[: len(expected)], expected)
        assert shown[len(expected) :] == ["0%"] * (7 - len(expected)), "no other word can come"
        page.evaluate("() => (Math.random = () => 0.9999999)")
        figure.get_by_role("button", name="Draw 10 words").click()
        last = given["words"][best.indices[top - 1]]
        assert figure.locator(".live-told").inner_text() == f"Drawn: {', '.join([last] * 10)}."
        slider.press("ArrowRight")
    assert slider.evaluate("each => each.ariaValueText") == "All words"


# --- parts.js


def test_a_button_takes_a_part_away_and_the_wrong_words_are_marked(phone: Page, built: Path):
    figure = phone.locator("[data-live=parts]")
    given = data_of(built, figure)
    for song in given["songs"]:
        button = figure.get_by_role("button", name=song["name"], exact=True)
        if song is given["songs"][0]:
            assert button.get_attribute("aria-pressed") == "true", "the figure begins with the whole"
        else:
            button.tap()
        pressed = figure.locator("button[aria-pressed=true]")
        assert pressed.all_inner_texts() == [song["name"]]
        pairs = list(zip(song["words"], given["right"], strict=True))
        wrong = [word for word, right in pairs if word != right]
        assert chips(figure, "computed") == wrong
        assert chips(figure, "stored") == [word for word, right in pairs if word == right]
        label = figure.locator(".live-text").get_attribute("aria-label")
        assert label == " ".join(word if word == right else f"{word} (wrong)" for word, right in pairs)
        told = figure.locator(".live-told").inner_text()
        assert numbers(told) == [len(wrong), len(pairs), round(100 * song["share"])]


# --- cache.js


def chips(side: Locator, kind: str) -> list[str]:
    return side.locator(f".live-text > .live-{kind}").all_inner_texts()


def test_each_step_shows_what_it_computes_what_is_kept_and_what_is_written(page: Page, built: Path):
    figure = page.locator("[data-live=cache]")
    given = data_of(built, figure)
    words, steps = given["words"], len(given["likely"])
    slider = figure.get_by_role("slider")
    slider.focus()
    page.keyboard.press("Home")
    for step in range(steps):
        read = given["prompt"] + step
        assert slider.evaluate("each => each.ariaValueText") == f"step {step + 1} of {steps}"
        told = figure.locator(".live-told")
        assert told.locator("b").all_inner_texts() == [f"Step {step + 1} of {steps}.", words[read]]
        assert f"has read {read} words, and writes" in told.inner_text()
        assert re.findall(r"(?:<?\d+)%", told.inner_text()) == [percent(each) for _, each in given["likely"][step]]
        for side, way in zip(figure.locator(".live-pair > div").all(), ("without", "with"), strict=True):
            fresh, computed = given["computed"][way][step], given["computed"][way][: step + 1]
            assert chips(side, "computed") == words[read - fresh : read]
            assert chips(side, "stored") == words[: read - fresh]
            assert chips(side, "written") == [words[read]]
            assert side.locator(".live-text > :visible").count() == read + 1, "what is not written yet is not shown"
            now, so_far = side.locator("p").all_inner_texts()[1:]
            assert numbers(now) == [fresh]
            kept = {"without": [], "with": numbers(size(given["kept"][step]))}[way]
            assert numbers(so_far) == [sum(computed), *kept]
            label = str(side.locator(".live-text").get_attribute("aria-label"))
            assert label.endswith(
                f"computed: {' '.join(words[read - fresh : read])}; kept from before: "
                f"{' '.join(words[: read - fresh]) or 'nothing'}"
            )
        page.keyboard.press("ArrowRight")


def size(count: int) -> str:
    return f"{count} bytes" if count < 1024 else f"{round(count / 1024, 1):g} KiB"


def test_steps_of_the_writing_are_taken_by_buttons_and_by_touch(page: Page, phone: Page):
    figure = page.locator("[data-live=cache]")
    slider, told = figure.get_by_role("slider"), figure.locator(".live-told b").first
    back, on = figure.get_by_role("button", name="back"), figure.get_by_role("button", name="next word")
    assert told.inner_text() == "Step 1 of 7."
    for _ in range(6):
        on.click()
    assert (told.inner_text(), on.is_disabled(), slider.input_value()) == ("Step 7 of 7.", True, "6")
    tall = figure.bounding_box()
    for _ in range(6):
        back.click()
    assert (told.inner_text(), back.is_disabled(), slider.input_value()) == ("Step 1 of 7.", True, "0")
    assert figure.bounding_box() == tall, "nothing jumps"
    figure = phone.locator("[data-live=cache]")
    figure.get_by_role("button", name="next word").tap()
    assert figure.locator(".live-told b").first.inner_text() == "Step 2 of 7."
