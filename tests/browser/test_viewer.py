"""The viewer of `unmasked.show` as a reader has it: a file without any network, a notebook's output, a page."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from unmasked import masks, show

from .conftest import Open, box_of
from .test_site import AXE

if TYPE_CHECKING:
    from playwright.sync_api import Page

WORDS = ["my", "ship", "and", "crew"]


def weights() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    made = torch.randn(2, 3, 4, 4, generator=generator).masked_fill(~masks.causal(4), -torch.inf).softmax(-1)
    made[1, 2, 3] = torch.nan
    return made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of files, which are opened without a server and without a network."""
    folder = tmp_path_factory.mktemp("show")
    show(weights(), queries=WORDS).save(folder / "weights.html")
    show(torch.rand(2, 400, 600, generator=torch.Generator().manual_seed(0))).save(folder / "many.html")
    return f"{folder.as_uri()}/"


@pytest.fixture
def page(opened: Open) -> Page:
    return opened("weights.html", offline=True)


def told(page: Page) -> str:
    return page.locator(".told").inner_text()


def given(weight: float) -> float:
    return float(f"{weight:.3g}")


def said(text: str) -> tuple[float, float]:
    """The weight and the sum of a row that the viewer tells of."""
    found = re.search(r"gives key \d+ “\w+” (exactly 0|[\d.e-]+)\. .* sums to ([\d.]+)", text)
    assert found, text
    return float(found[1].replace("exactly ", "")), float(found[2])


def test_each_weight_can_be_read_by_keyboard(page: Page):
    picture = page.get_by_role("application")
    assert "rows are queries, columns are keys" in str(picture.get_attribute("aria-label"))
    picture.focus()
    for row, query in enumerate(WORDS):
        page.keyboard.press("Home")
        for column, key in enumerate(WORDS):
            assert told(page).startswith(f"Head 0. Query {row} “{query}” gives key {column} “{key}” ")
            weight, total = said(told(page))
            assert weight == pytest.approx(weights()[0, 0, row, column].item(), rel=5e-3, abs=1e-9)
            assert (weight == 0) is (column > row)
            assert total == 1
            page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("End")
    assert told(page).startswith("Head 0. Query 2 “and” gives key 3 “crew” exactly 0.")


def test_the_pointer_tells_and_marks_row_and_column(page: Page):
    picture = page.get_by_role("application")
    box = box_of(picture)
    page.mouse.move(box["x"] + 1.5 * box["width"] / 4, box["y"] + 3.5 * box["height"] / 4)
    assert told(page).startswith("Head 0. Query 3 “crew” gives key 1 “ship” ")
    assert said(told(page))[0] == pytest.approx(weights()[0, 0, 3, 1].item(), rel=5e-3)
    assert page.locator(".at").all_inner_texts() == ["ship", "crew"]  # its column, its row


def test_head_item_and_mean_are_chosen_by_keyboard_too(page: Page):
    last = "document.querySelector('.unmasked-show').shadowRoot.querySelector('canvas[tabindex]').focus()"

    def read() -> str:
        page.evaluate(last)
        for key in ("Home", *["ArrowUp"] * 4, *["ArrowDown"] * 2, "ArrowRight"):
            page.keyboard.press(key)
        return told(page)

    for head, name in enumerate(("head 0", "head 1", "head 2", "mean of heads")):
        page.get_by_role("button", name=name).press("Enter")
        page.get_by_label("item").select_option("0")
        expected = [*weights()[0, :, 2, 1].tolist(), weights()[0, :, 2, 1].mean().item()][head]
        assert read().lower().startswith(f"{name}. query 2")
        assert said(read())[0] == pytest.approx(expected, rel=5e-3)
        assert page.locator("button[aria-pressed=true]").get_attribute("aria-label") == name
    page.get_by_role("button", name="head 1").press("Enter")
    page.get_by_label("item").select_option("1")
    assert said(read())[0] == pytest.approx(weights()[1, 1, 2, 1].item(), rel=5e-3)


def test_a_row_without_numbers_says_so(page: Page):
    page.get_by_label("item").select_option("1")
    page.get_by_role("button", name="head 2").click()
    page.get_by_role("application").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert (
        told(page) == "Head 2. Query 3 “crew” gives key 0 “my” NaN. Its largest: none. The row sums to NaN: it has NaN."
    )
    assert page.locator(".legend").inner_text() == (
        "The stronger the color, the larger, up to 1. Hatched: exactly 0, as blocked weights are. Red: NaN."
    )


PIXELS = """
(at) => {
  const canvas = document.querySelector(".unmasked-show").shadowRoot.querySelector(".map canvas")
  const size = canvas.width / 4
  const [row, column] = at
  const { data } = canvas.getContext("2d").getImageData(column * size + 2, row * size + 2, size - 4, size - 4)
  const drawn = [0, 0, 0, 0]
  for (let each = 0; each < data.length; each += 4)
    for (let part = 0; part < 4; part++) drawn[part] += data[each + part] / (data.length / 4)
  return drawn
}
"""


def test_what_is_seen_is_what_is_told(page: Page):
    def strength(row: int, column: int) -> float:
        return float(page.evaluate(PIXELS, [row, column])[3])

    allowed = [(row, column) for row in range(4) for column in range(row + 1)]
    by_weight = sorted(allowed, key=lambda at: weights()[0, 0][at].item())
    strengths = [strength(*at) for at in by_weight]
    assert strengths == sorted(strengths)
    assert strengths[-1] > 200
    hatched = page.evaluate(PIXELS, [0, 3])
    assert 0 < hatched[3] < 80  # lines on nothing
    slider = page.get_by_role("slider")
    slider.fill("50")
    assert page.locator("output").inner_text() == "0.5"
    for at in allowed:
        assert (strength(*at) > 0) is (weights()[0, 0][at].item() >= 0.5), at


SIZES = """
[...document.querySelector(".unmasked-show").shadowRoot.querySelectorAll("*")]
  .filter((each) => each.textContent && each.checkVisibility())
  .map((each) => parseFloat(getComputedStyle(each).fontSize))
"""


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1280)])
def test_it_is_open_to_all_and_fits_a_phone(opened: Open, axe: str, scheme: str, width: int):
    screen = {"viewport": {"width": width, "height": 900}, "has_touch": width < 400}
    page = opened("weights.html", offline=True, color_scheme=scheme, **screen)
    page.evaluate(axe)
    assert page.evaluate(AXE, [[], {}]) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if width < 400:
        box = box_of(page.get_by_role("application"))
        page.touchscreen.tap(box["x"] + box["width"] - 2, box["y"] + box["height"] - 2)
        assert "Query 3 “crew” gives key 3 “crew”" in told(page)
    assert min(page.evaluate(SIZES)) >= 11


def test_without_javascript_there_is_a_table(without_scripts: Open):
    page = without_scripts("weights.html", offline=True)
    assert page.locator("caption").inner_text().startswith("weights (2, 3, 4, 4): rows are queries, columns are keys")
    assert page.locator("tbody tr").first.inner_text().split() == ["my", "1.00", "0", "0", "0"]


def shown(page: Page, html: str) -> None:
    page.evaluate(
        """(html) => {
          const root = document.body.appendChild(document.createElement("div"))
          root.innerHTML = html
          // As notebooks do it: scripts of what is set as HTML do not run, and so they are made again.
          for (const old of root.querySelectorAll("script")) {
            const script = document.createElement("script")
            script.textContent = old.textContent
            old.replaceWith(script)
          }
        }""",
        html,
    )


def test_a_notebook_shows_each_of_several_and_their_styles_stay_their_own(tab: Page, faulty: tuple[Path, str]):
    folder, address = faulty
    (folder / "index.html").write_text('<html lang="en"><title>Notebook</title><style>button {display: none}</style>')
    tab.goto(address)
    one, other = show(torch.eye(2).expand(2, 2, 2)), show(torch.eye(3).expand(3, 3, 3))
    for viewer in (one, other, one):
        shown(tab, viewer._repr_html_())
    assert tab.locator(".told").count() == 3
    assert tab.locator("button:visible").count() == 3 + 4 + 3
    tab.locator(".unmasked-show").nth(1).get_by_role("button", name="head 2").click()
    assert [text[:7] for text in tab.locator(".told").all_inner_texts()] == ["Head 0.", "Head 2.", "Head 0."]


@pytest.mark.parametrize("sandbox", ["allow-scripts", ""])
def test_a_frame_that_may_do_nothing_else_shows_it_live_and_one_without_scripts_the_table(
    tab: Page, faulty: tuple[Path, str], sandbox: str
):
    folder, address = faulty
    html = show(weights(), queries=WORDS)._repr_html_().replace("&", "&amp;").replace('"', "&quot;")
    (folder / "index.html").write_text(
        f'<meta charset="utf-8"><iframe sandbox="{sandbox}" style="width: 600px; height: 800px" srcdoc="{html}">'
    )
    tab.goto(address)
    frame = tab.frame_locator("iframe")
    if sandbox:
        frame.get_by_role("application").focus()
        tab.keyboard.press("ArrowDown")
        assert frame.locator(".told").inner_text().startswith("Head 0. Query 1 “ship” gives key 0 “my” ")
    else:
        assert frame.locator("tbody tr").count() == 4
        assert frame.locator(".told").count() == 0


def test_a_page_that_takes_only_its_own_scripts_and_styles_shows_it_as_it_is(tab: Page, faulty: tuple[Path, str]):
    folder, address = faulty
    html = show(weights(), queries=WORDS)._repr_html_()
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'self'; style-src-attr 'unsafe-inline'"
    )
    (folder / "index.html").write_text(
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<link rel="icon" href="data:,">{html}'
    )
    said = []
    tab.on("console", lambda message: said.append(message.text))
    tab.goto(address)
    assert tab.locator(".heads").evaluate("each => getComputedStyle(each).display") == "flex"
    assert [text for text in said if "style" in text or "script" in text] == []


def test_many_weights_are_drawn_and_scroll(opened: Open):
    page = opened("many.html", offline=True, viewport={"width": 800, "height": 700})
    page.get_by_role("application").focus()
    page.keyboard.press("End")
    for _ in range(150):
        page.keyboard.press("ArrowDown")
    assert told(page).startswith("Head 0. Query 150 gives key 599 ")
    assert page.locator(".scroll").evaluate("each => each.scrollTop > 0 && each.scrollLeft > 0")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
