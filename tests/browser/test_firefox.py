"""The site in Firefox, whose engine prefetches, paints and is touched otherwise than Chromium's."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .firefox import Firefox, running
from .test_site import PAGES

PROGRAMS = ("firefox-esr", "firefox")
PHONE = 390


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("needs Firefox: apt-get install firefox-esr")
    if importlib.util.find_spec("websockets") is None:
        pytest.skip('needs websockets: pip install -e ".[test]"')
    with running(program, tmp_path_factory.mktemp("firefox")) as browser:
        yield browser


@pytest.mark.parametrize("where", [*PAGES, "404.html"])
def test_a_page_opens_without_an_error_or_a_complaint_of_its_policy(firefox: Firefox, address: str, where: str):
    firefox.open(address + where)
    assert firefox.faults == []


def test_errors_and_complaints_are_noticed(firefox: Firefox, faulty: tuple[Path, str]):
    folder, address = faulty
    policy = "default-src 'none'; script-src 'unsafe-inline'"
    (folder / "index.html").write_text(
        f'<html><meta http-equiv="Content-Security-Policy" content="{policy}"><link rel="next" href="two.html">'
        '<img src="x.png"><script>setTimeout(() => { throw Error("planted") })</script></html>'
    )
    firefox.open(address)
    found = "\n".join(firefox.faults)
    assert "planted" in found
    assert "x.png" in found
    assert "two.html" in found


CELLS = """
[...document.querySelectorAll(".live-mask tbody tr:first-child button")].slice(0, 6).map((cell) => {
  const { x, y, width, height } = cell.getBoundingClientRect()
  return [x + width / 2, y + height / 2]
})
"""


def test_a_finger_that_begins_on_a_number_paints_a_mask(firefox: Firefox, address: str):
    firefox.open(f"{address}pytorch/masks/", PHONE)
    firefox.evaluate("document.querySelector('.live-mask').scrollIntoView({ block: 'center' })")
    row = "[...document.querySelectorAll('.live-mask tbody tr:first-child button')].map((each) => each.textContent)"
    before = firefox.evaluate(row)
    assert before[:4] == ["True", "False", "False", "False"]
    firefox.draw_finger(firefox.evaluate(CELLS)[1:4])
    assert firefox.evaluate(row) == ["True"] * 4 + before[4:]


SUNG = """
new Promise((done) => {
  const look = () => {
    const [more] = [...document.querySelectorAll(".live-sing button")].filter((each) => each.textContent === "one word")
    if (!more) return requestAnimationFrame(look)
    more.click()
    const words = document.querySelectorAll(".live-strip [aria-label='Word to follow'] button")
    done([...words].map((each) => each.textContent))
  }
  document.querySelector("[data-live=strip]").scrollIntoView()
  look()
})
"""


def test_the_singer_is_taken_apart_without_a_complaint_and_sings(firefox: Firefox, address: str):
    firefox.open(f"{address}learn/generating/", PHONE)
    assert firefox.evaluate(SUNG)[-3:] == ["will", "be", "eight"]
    assert firefox.faults == []


def test_a_touch_copies_the_page_and_is_told_of(firefox: Firefox, address: str):
    firefox.open(f"{address}learn/masks/", PHONE)
    box = firefox.evaluate("document.querySelector('.copy-page').getBoundingClientRect().toJSON()")
    firefox.draw_finger([(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)])
    firefox.evaluate(
        "new Promise((done) => { const told = document.querySelector('.copied-page'); "
        "const look = () => told.textContent ? done(true) : requestAnimationFrame(look); look() })"
    )
    assert firefox.evaluate("document.querySelector('.copied-page').textContent") == "Copied as Markdown"
    assert firefox.faults == []
