"""What a window, a cache and a check show: what PyTorch and the library give, by mouse, key and touch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked import masks
from unmasked_lessons.experiments.grouped import bytes_per_token

from .conftest import Open, keeps_out, write_figures

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

TOKENS = 9
STARTS = [
    {"name": "W keys", "window": 3, "sinks": 0},
    {"name": "W keys before it", "window": 4, "sinks": 0},
    {"name": "window and two sinks", "window": 3, "sinks": 2},
]
KINDS = {"every head its own (MHA)": 32, "grouped (GQA)": 8, "one for all (MQA)": 1, "latent (MLA)": None}
SIZES = {"layers": 32, "heads": 32, "features": 128}
BYTES = bytes_per_token(KINDS, layers=32, head_dim=128, dtype=torch.bfloat16)
X = torch.randn(5, 3, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
CHANGED = X.flip(0) + 1
CAUSAL = masks.causal(5)
MASKS = {"right": CAUSAL, "no mask": torch.ones_like(CAUSAL), "the other polarity": ~CAUSAL}
SEEN = "(all) => all.map((each) => each.className)"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page for each figure."""
    given = {name: mask.tolist() for name, mask in MASKS.items()}
    data = {
        "long": {"tokens": TOKENS, "layers": 1, "starts": STARTS},
        "grouped": {"sizes": SIZES, "tokens": 131_072, "latent": 512 + 64, "kinds": KINDS, "bytes": BYTES},
        "check": {"x": X.tolist(), "changed": CHANGED.tolist(), "masks": given},
    }
    return write_figures(tmp_path_factory.mktemp("reach"), data)


def slide(page: Page, name: str, value: int) -> None:
    slider = page.get_by_label(name, exact=True)
    slider.fill(str(value))


def is_shown(page: Page, kind: str) -> Tensor:
    cells = page.locator(".live-reach tbody td").evaluate_all(SEEN)
    return torch.tensor([each == kind for each in cells]).view(TOKENS, TOKENS)


@pytest.mark.parametrize(("window", "sinks"), [(1, 0), (3, 0), (3, 2), (4, 1), (9, 4)])
def test_a_window_shows_who_sees_whom_and_the_code_that_makes_it(opened: Open, window: int, sinks: int):
    page = opened("long.html")
    slide(page, "window", window)
    slide(page, "sinks", sinks)
    first = masks.causal(TOKENS) & (torch.arange(TOKENS) < sinks)
    expected = masks.sliding_window(TOKENS, window=window) | first
    assert is_shown(page, "live-sees").equal(expected)
    code = page.locator(".live-code").inner_text()
    assert eval(code, {"torch": torch, "masks": masks}).equal(expected)
    assert f"sees {int(expected[-1].sum())} key" in page.locator(".live-told").inner_text()


def test_windows_add_up_through_layers(opened: Open):
    page = opened("long.html")
    seen = masks.sliding_window(TOKENS, window=3)
    for layers in (1, 2, 3):
        slide(page, "layers", layers)
        known = torch.linalg.matrix_power(seen.double(), layers) > 0
        assert (is_shown(page, "live-sees") | is_shown(page, "live-knows")).equal(known)
        others = int(known[-1].sum()) - 1
        assert f"knows of {others} others" in page.locator(".live-told").inner_text()


def test_a_window_begins_as_one_of_the_page_s_and_says_which(opened: Open):
    page = opened("long.html")
    pressed = page.locator(".live-choices [aria-pressed=true]")
    assert pressed.all_inner_texts() == ["W keys"]
    page.get_by_role("button", name="window and two sinks").click()
    assert pressed.all_inner_texts() == ["window and two sinks"]
    page.get_by_label("sinks", exact=True).focus()
    page.keyboard.press("ArrowLeft")
    assert pressed.count() == 0, "one sink is none of these"


UNITS = {"MiB": 2**20, "GiB": 2**30}


def kept(page: Page) -> list[float]:
    """Bytes of the text, by kind."""
    texts = [text.split() for text in page.locator(".live-grouped .live-share").all_inner_texts()]
    return [float(number) * UNITS[unit] for number, unit in texts]


def test_a_cache_begins_with_what_the_run_counted(opened: Open):
    page = opened("grouped.html")
    assert kept(page) == pytest.approx([each * 131_072 for each in BYTES.values()], rel=0.005)


def test_a_cache_is_as_large_as_the_library_s_for_other_sizes(opened: Open):
    page = opened("grouped.html")
    slide(page, "layers", 79)  # eighty, from one
    slide(page, "heads of queries", 3)  # 64: 8, 16, 32, 64
    slide(page, "share a key", 2)  # eight: 2, 4, 8
    slide(page, "features of a head", 1)  # 64: 32, 64
    slide(page, "tokens", 5)  # 32,768
    kinds = KINDS | {"every head its own (MHA)": 64, "grouped (GQA)": 8}
    expected = bytes_per_token(kinds, layers=80, head_dim=64, dtype=torch.bfloat16)
    assert kept(page) == pytest.approx([each * 32_768 for each in expected.values()], rel=0.005)
    shares = page.locator(".live-grouped .live-bar").evaluate_all(
        "(all) => all.map((each) => +each.style.getPropertyValue('--share'))"
    )
    largest = max(expected.values())
    assert shares == pytest.approx([each / largest for each in expected.values()])


def moved(mask: Tensor, token: int) -> Tensor:
    """By how much PyTorch's function moves each output if a token is changed."""
    other = X.clone()
    other[token] = CHANGED[token]
    before, after = (F.scaled_dot_product_attention(x, x, x, attn_mask=mask) for x in (X, other))
    return (before - after).abs().amax(-1)


RUN = 'async ([x, changed, mask, token]) => (await import("/live/check.js")).moves(x, changed, mask, token)'


def test_outputs_move_as_pytorch_s_do(opened: Open):
    page = opened("check.html")
    for seed in range(40):
        mask = torch.rand(5, 5, generator=torch.Generator().manual_seed(seed)) < 0.6
        mask |= torch.eye(5).bool()  # or a row may see nothing
        got = page.evaluate(RUN, [X.tolist(), CHANGED.tolist(), mask.tolist(), seed % 5])
        torch.testing.assert_close(torch.tensor(got, dtype=torch.float64), moved(mask, seed % 5), rtol=0, atol=1e-9)


def broken(figure: Locator) -> list[bool]:
    return [
        "live-broken" in str(each.get_attribute("class")) and each.inner_text().startswith("✗")
        for each in figure.locator(".live-verdict").all()
    ]


def test_a_check_turns_red_when_a_mask_is_broken_and_says_what_moved(opened: Open):
    page = opened("check.html")
    figure = page.locator("[data-live=check]")
    assert broken(figure) == [False, False, False]
    page.get_by_label("query 0, key 4: False").click()
    assert broken(figure) == [True, False, False]
    mask = CAUSAL.clone()
    mask[0, 4] = True
    by = float(moved(mask, 4)[0])
    assert f"token 4 was changed, and output 0 moved by {by:.2f}" in figure.inner_text()
    page.get_by_label("query 0, key 4: True").focus()
    page.keyboard.press("Enter")
    assert broken(figure) == [False, False, False]
    page.get_by_role("button", name="the other polarity").click()
    assert broken(figure) == [True, True, True], "the last query sees nothing, and no query itself"
    assert "query 4 may see nothing" in figure.inner_text()


@pytest.mark.parametrize("name", ["long", "grouped", "check"])
def test_everybody_can_read_them(opened: Open, on_phone: Open, axe: str, name: str):
    for page in (opened(f"{name}.html"), on_phone(f"{name}.html")):
        if name == "check":
            page.get_by_role("button", name="no mask").click()
        assert keeps_out(page, axe, "'.live'") == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
