"""The site in Firefox and WebKit, whose engines load, paint, are touched and type otherwise than Chromium's."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from unmasked import masks
from unmasked_lessons.embeddings import ship_vectors

from ..conftest import serve
from . import firefox, webkit
from .engine import COMMAND, Engine
from .test_live_masks import SHOWN, by_pytorch, percent
from .test_search import MARKED
from .test_site import PAGES, WIDE

PHONE = 390


def found(*names: str, needs: str) -> str:
    """Where the first of these programs is."""
    program = next(filter(None, map(shutil.which, names)), None)
    return program or pytest.skip(needs)


@pytest.fixture(scope="module", params=["firefox", "webkit"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "webkit":
        needs = "needs WebKit: apt-get install webkit2gtk-driver xvfb"
        with webkit.running(*(found(name, needs=needs) for name in ("WebKitWebDriver", "Xvfb")), folder) as browser:
            yield browser
        return
    program = found("firefox-esr", "firefox", needs="needs Firefox: apt-get install firefox-esr")
    if importlib.util.find_spec("websockets") is None:
        pytest.skip('needs websockets: pip install -e ".[test]"')
    with firefox.running(program, folder) as browser:
        yield browser


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is, with what notes faults."""
    yield from serve(site, webkit.Listening)


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """An empty folder, and the address where it is, with what notes faults."""
    for address in serve(tmp_path, webkit.Listening):
        yield tmp_path, address


@pytest.mark.parametrize("where", [*PAGES, "404.html"])
def test_a_page_opens_without_an_error_or_a_complaint_of_its_policy_and_fits_a_phone(
    engine: Engine, address: str, where: str
):
    engine.open(address + where)
    engine.resize(PHONE)
    assert engine.evaluate(f"({WIDE})()") == []
    assert engine.faults == []


def test_what_goes_wrong_is_noticed(engine: Engine, faulty: tuple[Path, str]):
    folder, address = faulty
    policy = "default-src 'none'; script-src 'unsafe-inline'"
    (folder / "index.html").write_text(
        f'<html><head><meta http-equiv="Content-Security-Policy" content="{policy}"><link rel="next" href="two.html">'
        '<img src="x.png"><script>console.error("told"); setTimeout(() => { throw Error("planted") })</script>'
        '<table width="900"><td>wide</table></html>'
    )
    engine.open(address)
    found = "\n".join(engine.faults)
    assert "planted" in found
    assert "told" in found
    assert "x.png" in found
    assert ("two.html" in found) is isinstance(engine, firefox.Firefox), "who alone loads the next page ahead"
    assert engine.evaluate(f"({WIDE})()") == []
    engine.resize(PHONE)
    engine.until(f"({WIDE})().length")


RIGHT, DOWN = "\ue014", "\ue015"  # as WebDriver writes the keys
DATA = "document.querySelector('[data-live={}]').dataset.json"
CELLS = """
[...document.querySelectorAll(".live-mask tbody tr:first-child button")].slice(0, 6).map((cell) => {
  const { x, y, width, height } = cell.getBoundingClientRect()
  return [x + width / 2, y + height / 2]
})
"""


def test_a_mask_is_painted_in_one_go_and_by_keys_and_its_weights_are_pytorch_s(
    engine: Engine, address: str, site: Path
):
    engine.open(f"{address}pytorch/masks/", PHONE)
    engine.evaluate("document.querySelector('.live-mask').scrollIntoView({ block: 'center', behavior: 'instant' })")
    given = json.loads((site / "pytorch/masks" / engine.evaluate(DATA.format("painter"))).read_text(encoding="utf-8"))
    x = ship_vectors().lookup(given["words"]).double()
    mask = masks.causal(len(x))
    shows(engine, mask, x)
    engine.draw(engine.evaluate(CELLS)[1:4])  # it begins on a number: Firefox once lost a finger there
    mask[0, :4] = True
    shows(engine, mask, x)
    engine.evaluate("document.querySelector('.live-mask button').focus()")
    engine.type(RIGHT + DOWN)
    engine.press_focused()
    mask[1, 1] = False
    shows(engine, mask, x)
    assert engine.faults == []


def shows(engine: Engine, mask: Tensor, x: Tensor) -> None:
    """The painter has this mask, and the weights that PyTorch gives for it."""
    shown = engine.evaluate(f"({SHOWN})()")
    assert shown["mask"] == [[str(each) for each in row] for row in mask.tolist()]
    expected = by_pytorch("boolean", mask, x)
    assert shown["weights"] == [[percent(weight) for weight in row] for row in expected.tolist()]


def test_a_slider_goes_by_keys_and_the_chances_are_pytorch_s(engine: Engine, address: str, site: Path):
    where = "learn/generating/"
    engine.open(address + where)
    given = json.loads((site / where / engine.evaluate(DATA.format("temperature"))).read_text(encoding="utf-8"))
    engine.press("[data-live=temperature] .live-choices button:nth-child(2)")
    scores = torch.tensor(given["texts"][1]["scores"], dtype=torch.float64)
    engine.evaluate("document.querySelector('[data-live=temperature] input').focus()")
    for step in range(3):
        share = percent((scores / 2 ** (step / 4)).softmax(dim=0).max().item())
        assert engine.evaluate("document.querySelector('[data-live=temperature] .live-share').textContent") == share
        engine.type(RIGHT)
    assert engine.faults == []


SUNG = """
(() => {
  const [more] = [...document.querySelectorAll(".live-sing button")].filter((each) => each.textContent === "one word")
  more?.click()
  const words = document.querySelectorAll(".live-strip [aria-label='Word to follow'] button")
  return more && [...words].map((each) => each.textContent)
})()
"""


def test_the_singer_is_taken_apart_without_a_complaint_and_sings(engine: Engine, address: str):
    engine.open(f"{address}learn/generating/", PHONE)
    engine.evaluate("document.querySelector('[data-live=strip]').scrollIntoView()")
    assert engine.until(SUNG)[-3:] == ["will", "be", "eight"]
    assert engine.faults == []


def test_a_page_and_a_cell_are_copied_and_what_was_copied_is_pasted(engine: Engine, address: str, site: Path):
    engine.open(f"{address}learn/masks/", PHONE)
    engine.press(".copy-page")
    assert engine.until("document.querySelector('.copied-page').textContent") == "Copied as Markdown"
    assert pasted(engine).startswith("# ")
    engine.press(".proofread-copy > summary")
    name = engine.evaluate("document.querySelector('.proofread-copy > a').getAttribute('href')")
    engine.press(".proofread-copy > a")
    engine.until("document.querySelector('.proofread-copied')")
    program = (site / "learn/masks" / name).read_text(encoding="utf-8")
    assert pasted(engine).split() == program.split()
    assert engine.faults == []


def pasted(engine: Engine) -> str:
    """What a reader pastes."""
    engine.evaluate("document.body.prepend(document.createElement('textarea'))")
    engine.evaluate("document.querySelector('textarea').focus()")
    engine.type("v", held=COMMAND)
    return str(engine.until("document.querySelector('textarea').value"))


def test_the_search_opens_by_a_key_and_finds(engine: Engine, address: str):
    engine.open(f"{address}learn/masks/")
    engine.type("/")
    engine.until("document.activeElement.matches('.md-search__input')")
    engine.type("rope")
    first = engine.until("[...document.querySelectorAll('.md-search-result__link[href$=rope]')][0]?.href")
    assert first.startswith(f"{address}pytorch/positions/")
    engine.open(first)
    assert engine.evaluate(f"({MARKED})()")[:3] == ["RoPE", "RoPE", "RoPE"]
    assert engine.faults == []


GROUND = "getComputedStyle(document.body).backgroundColor"


def test_the_colors_are_those_of_day_and_night_and_stay(engine: Engine, address: str):
    engine.open(f"{address}learn/masks/")
    day = engine.evaluate(GROUND)
    engine.press("#__palette label:not([hidden])")
    night = engine.until(f"{GROUND} !== '{day}' && {GROUND}")
    engine.open(f"{address}learn/attention/")
    assert engine.evaluate(GROUND) == night, "and on the next page"
    engine.press("#__palette label:not([hidden])")
    engine.until(f"{GROUND} === '{day}'")
    assert engine.faults == []
