"""The mask to paint and the way into heads: what they show is what PyTorch gives, and everybody can use them."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import bypass_, masks
from unmasked_lessons.embeddings import ship_vectors

from .conftest import CLIPBOARD, Open, box_of, draw_finger, keeps_out, write_figures

WORDS = ["back", "to", "my", "ship"]
SIZES = {"tokens": 3, "heads": 2, "head_dim": 4}
STAGES = {
    "words": ["my", "ship", "and", "crew"],
    "features": ["sea", "trade"],
    **{name: [[-1, -1], [1, 1], [0, 0], [1, 0]] for name in ("queries", "keys", "values")},
}
KINDS = ["boolean", "additive", "module", "padding"]
# What PyTorch's interfaces make of True, and of a query that may see nothing: the page finds it out by itself.
MEANS = {"boolean": (True, "zeros"), "additive": (True, "zeros"), "module": (False, "NaN"), "padding": (False, "NaN")}
INTERFACES = [{"kind": kind, "name": kind, "allows": MEANS[kind][0], "blind": MEANS[kind][1]} for kind in KINDS]


def vectors(seed: int, tokens: int) -> Tensor:
    return torch.randn(tokens, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scores(x: Tensor) -> Tensor:
    return x @ x.T / math.sqrt(x.size(-1))


def by_pytorch(kind: str, mask: Tensor, x: Tensor) -> Tensor:
    """The weights that an interface gives; the function's are what it makes of the unit matrix."""
    if kind in ("boolean", "additive"):
        return F.scaled_dot_product_attention(x, x, torch.eye(len(x), dtype=x.dtype), attn_mask=mask)
    module = bypass_(nn.MultiheadAttention(x.size(-1), num_heads=1, batch_first=True).double())
    option = {"key_padding_mask": mask} if kind == "padding" else {"attn_mask": mask}
    return module(x[None], x[None], x[None], **option)[1][0].detach()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page for each figure."""
    x = vectors(0, len(WORDS))
    mask = masks.causal(4).tolist()
    painter = {"words": WORDS, "scores": scores(x).tolist(), "mask": mask, "interfaces": INTERFACES}
    data = {"painter": painter, "split": SIZES, "stages": STAGES | {"mask": mask}}
    return write_figures(tmp_path_factory.mktemp("masks"), data)


RUN = """
async (cases) => {
  const { code, entries, read, weigh } = await import("/live/painter.js")
  return cases.map(({ given, seen, scores }) => {
    const mask = entries(given, seen)
    const sees = read(given, mask, seen.length)
    return { mask, sees, code: code(given, sees), weights: weigh(given, mask, scores, sees) }
  })
}
"""


@pytest.mark.parametrize("interface", INTERFACES, ids=lambda each: each["kind"])
def test_the_weights_and_the_code_of_random_masks_are_pytorch_s(opened: Open, interface: dict[str, Any]):
    kind = interface["kind"]
    rows, inputs = [], []
    for seed in range(120):
        generator = torch.Generator().manual_seed(seed)
        size = int(torch.randint(1, 7, (), generator=generator))
        shown = float(torch.rand((), generator=generator))
        seen = torch.rand(size, size, generator=generator) < shown
        seen = masks.causal(size) if seed % 10 == 0 else seen[:1].expand(size, -1) if kind == "padding" else seen
        x = vectors(seed, size)
        inputs.append((x, seen))
        rows.append({"given": interface, "seen": seen.tolist(), "scores": scores(x).tolist()})
    blind = 0
    for (x, seen), told in zip(inputs, opened("painter.html").evaluate(RUN, rows), strict=True):
        mask = torch.tensor(told["mask"], dtype=torch.float64 if kind == "additive" else torch.bool)
        expected = by_pytorch(kind, mask, x)
        got = torch.tensor(told["weights"], dtype=torch.float64)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6, equal_nan=True)
        blind += int((expected.isnan() | (expected == 0)).all(-1).any())
        assert torch.equal(torch.tensor(told["sees"]), expected.nan_to_num() > 0)
        of_padding = seen.any(0).expand_as(seen)  # which is all that one row can say
        assert told["sees"] == (of_padding if kind == "padding" else seen).tolist()
        module = bypass_(nn.MultiheadAttention(8, num_heads=1, batch_first=True).double())
        made: dict[str, Any] = {"torch": torch, "F": F, "x": x[None], "module": module}
        made |= {"query": x.float(), "key": x.float(), "value": torch.eye(len(x))}
        exec(told["code"], made)  # what a reader copies
        assert torch.equal(made["mask"].to(mask.dtype), mask)
        weights = made["weights"][0].detach() if "weights" in made else made["context"].double()
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5, equal_nan=True)
    assert blind > 5


SHOWN = """
() => {
  const table = (name) => [...document.querySelectorAll(`.live-${name} tbody tr`)].filter((row) => !row.hidden)
    .map((row) => [...row.querySelectorAll("td")])
  return {
    mask: table("mask").map((row) => row.map((cell) => cell.textContent)),
    weights: table("out").map((row) => row.map((cell) => cell.textContent)),
    marks: table("out").map((row) => row.map((cell) => cell.className)),
    told: document.querySelector(".live-told").textContent,
    code: document.querySelector(".live-code").textContent,
  }
}
"""


def percent(weight: float) -> str:
    return "NaN" if math.isnan(weight) else "" if weight == 0 else "<1%" if weight < 0.005 else f"{100 * weight:.0f}%"


@pytest.mark.parametrize("start", ["causal", "window", "padding in front", "everything", "the opposite: ~mask"])
def test_each_mask_that_one_can_begin_with_shows_what_each_interface_gives(opened: Open, start: str):
    page = opened("painter.html")
    for interface in INTERFACES:
        page.get_by_role("button", name="causal").click()
        page.get_by_role("button", name=interface["kind"], exact=True).click()
        page.get_by_role("button", name=start).click()
        shown = page.evaluate(SHOWN)
        entry = {"True": True, "False": False, "0": 0.0, "−inf": -math.inf}
        rows = [[entry[each] for each in row] for row in shown["mask"]]
        kind = interface["kind"]
        mask = torch.tensor(rows, dtype=torch.float64 if kind == "additive" else torch.bool)
        expected = by_pytorch(kind, mask, vectors(0, 4))
        assert shown["weights"] == [[percent(weight) for weight in row] for row in expected.tolist()]
        future = torch.ones(4, 4).triu(1).bool() & (expected > 0)
        marks = [["live-leak" in each for each in row] for row in shown["marks"]]
        assert marks == future.tolist()
        assert [["live-nan" in each for each in row] for row in shown["marks"]] == expected.isnan().tolist()
        leaks = int(future.sum())
        assert ("No query sees the future." in shown["told"]) is (leaks == 0)
        assert leaks == 0 or shown["told"].startswith(f"{leaks} weight")
        lost = expected.isnan().any() or (expected == 0).all(-1).any()
        assert ("may see nothing: the weights are " + str(interface["blind"]) in shown["told"]) is bool(lost)


def test_the_page_has_the_painter_with_what_pytorch_gives_for_its_words(opened: Open, address: str, site: Path):
    where = "pytorch/masks/"
    page = opened(where, at=address)
    figure = page.locator("[data-live=painter]")
    given = json.loads((site / where / str(figure.get_attribute("data-json"))).read_text(encoding="utf-8"))
    assert [each["kind"] for each in given["interfaces"]] == KINDS
    x = ship_vectors().lookup(given["words"]).double()
    torch.testing.assert_close(torch.tensor(given["scores"]).double(), scores(x), rtol=0, atol=1e-3)  # as sent
    causal = masks.causal(len(x))
    for each in given["interfaces"]:
        kind = each["kind"]
        assert (each["allows"], each["blind"]) == MEANS[kind]
        figure.get_by_role("button", name="causal").click()
        figure.get_by_role("button", name=each["name"], exact=True).click()
        mask = causal if MEANS[kind][0] else ~causal
        mask = masks.additive_from_allowed(causal, torch.float64) if kind == "additive" else mask
        mask = torch.zeros(1, len(x), dtype=torch.bool) if kind == "padding" else mask
        expected = by_pytorch(kind, mask, x)
        assert page.evaluate(SHOWN)["weights"] == [[percent(weight) for weight in row] for row in expected.tolist()]


def test_a_mask_is_painted_by_keyboard(opened: Open):
    page = opened("painter.html")
    first = page.locator(".live-mask button").first
    first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.ariaLabel ?? ''") == "query to, key my: False"
    page.keyboard.press("Space")
    shown = page.evaluate(SHOWN)
    assert shown["mask"][1] == ["True", "True", "True", "False"]
    assert shown["told"].startswith("1 weight looks into the future: “to” sees “my”.")
    page.keyboard.press("Enter")
    assert page.evaluate(SHOWN)["mask"][1] == ["True", "True", "False", "False"]
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.ariaLabel") == "query back, key my: False"
    assert page.locator(".live-mask button[tabindex='0']").count() == 1


def test_the_pointer_paints_what_it_is_drawn_over_and_so_does_a_finger(opened: Open, on_phone: Open):
    page = opened("painter.html")
    cells = page.locator(".live-mask button")
    boxes = [box_of(cells.nth(place)) for place in (1, 2, 3)]
    page.mouse.move(boxes[0]["x"] + 9, boxes[0]["y"] + 9)
    page.mouse.down()
    for box in boxes[1:]:
        page.mouse.move(box["x"] + 9, box["y"] + 9)
    page.mouse.up()
    assert page.evaluate(SHOWN)["mask"][0] == ["True"] * 4
    page.mouse.move(boxes[1]["x"] + 9, boxes[1]["y"] + 9)
    assert page.evaluate(SHOWN)["mask"][0] == ["True"] * 4
    phone = on_phone("painter.html")
    cells = phone.locator(".live-mask button")
    cells.nth(3).tap()
    assert phone.evaluate(SHOWN)["mask"][0] == ["True", "False", "False", "True"]
    cells.nth(3).scroll_into_view_if_needed()
    boxes = [box_of(cells.nth(place)) for place in (1, 2, 3)]
    draw_finger(phone, *((box["x"] + 9, box["y"] + 9) for box in boxes))
    assert phone.evaluate(SHOWN)["mask"][0] == ["True"] * 4
    cells.nth(2).tap()
    assert phone.evaluate(SHOWN)["mask"][0] == ["True", "True", "False", "True"], "the finger is up"


@pytest.mark.parametrize("figure", ["painter", "stages"])
def test_it_is_told_which_mask_one_has_begun_with_until_it_is_another(opened: Open, figure: str):
    page = opened(f"{figure}.html")
    begin = page.get_by_role("group", name="Begin with")
    on = begin.locator("button[aria-pressed=true]")
    assert on.all_inner_texts() == ["causal"]
    begin.get_by_role("button", name="everything").click()
    assert on.all_inner_texts() == ["everything"]
    page.locator(".live-mask td button").first.press("Enter")
    assert on.count() == 0
    assert begin.locator("button[aria-pressed=false]").count() == 4


def test_a_text_under_a_finger_stays_the_node_that_was_touched(opened: Open):
    for figure in ("painter", "stages"):
        page = opened(f"{figure}.html")
        page.evaluate("window.nodes = [...document.querySelectorAll('.live-mask td button')].map((b) => b.firstChild)")
        for cell in page.locator(".live-mask td button:visible").all():
            cell.press("Enter")
        kept = "nodes.every((node, k) => node === document.querySelectorAll('.live-mask td button')[k].firstChild)"
        assert page.evaluate(kept)


def test_what_is_copied_runs_alone(opened: Open):
    page = opened("painter.html", permissions=CLIPBOARD)
    for kind in page.locator("[aria-label=Interface] button").all():
        kind.click()
        page.get_by_role("button", name="Copy as a program").click()
        page.get_by_text("Copied", exact=True).wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith("import torch\n")
        assert copied.endswith(f"\n{page.evaluate(SHOWN)['code']}\n")
        names: dict[str, Any] = {}
        exec(copied, names)
        assert names["context"].shape == (1, 4, 8)


def test_padding_is_one_row_for_all_queries(opened: Open):
    page = opened("painter.html")
    page.get_by_role("button", name="everything").click()
    page.get_by_role("button", name="padding", exact=True).click()
    page.locator(".live-mask button:visible").nth(1).click()
    shown = page.evaluate(SHOWN)
    assert shown["mask"] == [["False", "True", "False", "False"]]
    assert [row[1] for row in shown["weights"]] == [""] * 4
    page.get_by_role("button", name="module", exact=True).click()
    assert [row[1] for row in page.evaluate(SHOWN)["mask"]] == ["True"] * 4


FOUND = """
async (cases) => {
  const { stages } = await import("/live/stages.js")
  return cases.map(({ seen, ...data }) => stages(data, seen))
}
"""


def test_each_stage_is_what_pytorch_computes(opened: Open):
    inputs, rows, blind = [], [], 0
    for seed in range(120):
        generator = torch.Generator().manual_seed(seed)
        n, d, wide = (int(torch.randint(1, 7, (), generator=generator)) for _ in range(3))
        sizes = {"queries": (n, d), "keys": (n, d), "values": (n, wide)}
        given = {name: torch.randn(size, generator=generator, dtype=torch.float64) for name, size in sizes.items()}
        seen = torch.rand(n, n, generator=generator) < torch.rand((), generator=generator)
        inputs.append((*given.values(), seen))
        rows.append({name: each.tolist() for name, each in given.items()} | {"seen": seen.tolist()})
    for (query, key, value, seen), told in zip(inputs, opened("stages.html").evaluate(FOUND, rows), strict=True):
        got = {name: torch.tensor(each, dtype=torch.float64) for name, each in told.items()}
        torch.testing.assert_close(got["products"], query @ key.T)
        torch.testing.assert_close(got["scores"], query @ key.T / math.sqrt(query.size(-1)))
        expected = got["scores"].masked_fill(~seen, -math.inf).softmax(dim=-1)
        torch.testing.assert_close(got["weights"], expected, equal_nan=True)
        torch.testing.assert_close(got["context"], expected @ value, equal_nan=True)
        sighted = seen.any(dim=-1)
        by_function = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        torch.testing.assert_close(got["context"][sighted], by_function[sighted])
        blind += int(not sighted.all())
    assert blind > 5


TOWER = """
() => [...document.querySelectorAll(".live-tower > table")].map((table) =>
  [...table.tBodies[0].rows].map((row) => [...row.querySelectorAll("td")].map((cell) => cell.textContent)))
"""


def test_a_score_that_is_hidden_takes_no_part_in_the_stages_below(opened: Open):
    page = opened("stages.html")
    products, scaled, masked, shares, context = page.evaluate(TOWER)
    assert products[1] == ["−2", "2", "0", "1"]
    assert scaled[1] == ["−1.41", "1.41", "0", "0.71"]
    assert masked[1] == ["−1.41", "1.41", "−∞", "−∞"]
    assert shares[1] == ["6%", "94%", "", ""]
    assert context[1] == ["0.89", "0.89"]
    assert shares[2] == ["33%", "33%", "33%", ""]  # a score of zero hides nothing
    page.get_by_role("button", name="query ship, key ship: score 1.41").click()
    assert page.locator(".live-told").inner_text() == "ship may see “my”, and becomes sea −1, trade −1."
    after = page.evaluate(TOWER)
    assert after[:2] == [products, scaled]
    assert after[2][1] == ["−1.41", "−∞", "−∞", "−∞"]
    assert after[3][1] == ["100%", "", "", ""]
    assert after[4] == [context[0], ["−1", "−1"], *context[2:]]
    page.get_by_role("button", name="query ship, key my: score −1.41").click()
    assert page.evaluate(TOWER)[3][1] == ["NaN"] * 4
    assert "ship may see nothing" in page.locator(".live-told").inner_text()
    page.get_by_role("button", name="causal").click()
    assert page.evaluate(TOWER) == [products, scaled, masked, shares, context]


def test_the_stages_are_gone_through_by_key_and_by_touch(opened: Open, on_phone: Open):
    page = opened("stages.html")
    told = page.locator(".live-told")
    page.locator(".live-mask button").first.focus()
    assert told.inner_text().startswith("my may see “my”, and becomes")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert told.inner_text().startswith("ship may see “my” and “ship”")
    page.keyboard.press("Space")
    assert page.evaluate(TOWER)[2][1] == ["−1.41", "−∞", "−∞", "−∞"]
    chosen = page.locator(".live-tower .live-chosen")
    assert [row.locator("th").inner_text() for row in chosen.all()] == ["ship"] * 5
    page.locator(".live-tower > table").first.get_by_role("cell").nth(-1).hover()
    assert told.inner_text().startswith("crew may see")
    phone = on_phone("stages.html")
    phone.get_by_role("button", name="query and, key crew").tap()
    assert phone.evaluate(TOWER)[3][2] == ["25%"] * 4
    assert phone.locator(".live-told").inner_text().startswith("and may see “my”, “ship”, “and”, and “crew”")


def test_the_page_on_masks_has_the_stages_of_its_words(on_phone: Open, address: str):
    page = on_phone("learn/masks/", at=address)
    x = torch.tensor(STAGES["values"]).double()
    shares = (x @ x.T / math.sqrt(2)).masked_fill(~masks.causal(4), -math.inf).softmax(dim=-1)
    assert page.evaluate(TOWER)[3] == [[percent(share) for share in row] for row in shares.tolist()]


WAYS = """
async (sizes) => {
  const { misplaced, ways } = await import("/live/split.js")
  const all = ways(sizes)
  const off = (way) => way.stages.map((_, stage) => misplaced(way, all[0], stage).filter(Boolean).length)
  return all.map((way) => ({ ...way, off: off(way) }))
}
"""


@pytest.mark.parametrize(("T", "H", "d"), [(3, 2, 4), (2, 3, 5), (1, 2, 3), (4, 1, 3), (3, 3, 3), (5, 4, 2)])
def test_each_way_moves_the_numbers_as_its_code_does(opened: Open, T: int, H: int, d: int):
    told = opened("split.html").evaluate(WAYS, {"tokens": T, "heads": H, "head_dim": d})
    x = torch.arange(T * H * d).view(T, H * d)
    right = [x, x.view(T, H, d), x.view(T, H, d).transpose(0, 1), x.view(T, H, d), x]
    for way in told:
        tensor = x
        for place, (code, stage) in enumerate(zip(way["code"], way["stages"], strict=True)):
            tensor = eval(f"tensor{code}" if place else code, {"tensor": tensor, "x": x, "T": T, "H": H, "d": d})
            assert list(tensor.shape) == stage["shape"], (way["name"], code)
            assert tensor.flatten().tolist() == stage["items"], (way["name"], code)
            if place in (2, 4):
                assert way["off"][place] == int((tensor != right[place]).sum())
    off = {way["name"]: way["off"][2] + way["off"][4] for way in told}
    assert off["right"] == 0
    if min(T, H, d) > 1:
        assert all(count for name, count in off.items() if name != "right")


def test_the_steps_go_by_key_and_button_and_say_what_is_wrong(opened: Open):
    page = opened("split.html")
    said, parts = page.locator(".live-told"), page.locator(".live-pair > div")
    assert "16 of 24 numbers in the wrong place" in parts.last.inner_text()
    slider = page.get_by_role("slider")
    for step, name in itertools.product(range(5), ("view without", "merge without", "view with axes")):
        page.get_by_role("button", name=name).click()
        slider.fill(str(step))
        assert said.inner_text().startswith(f"Step {step} of 4.")
        assert "wrong place" not in parts.first.inner_text()
        if step == 2:
            assert ("wrong place" in parts.last.inner_text()) is (name != "merge without")
        assert ("live-off" in str(parts.last.inner_html())) is ("wrong place" in parts.last.inner_text())
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert said.inner_text().startswith("Step 3 of 4.")
    page.get_by_role("button", name="next step").press("Enter")
    assert said.inner_text().startswith("Step 4 of 4.")
    assert page.get_by_role("button", name="next step").is_disabled()
    page.get_by_role("button", name="back").click()
    assert said.inner_text().startswith("Step 3 of 4.")


def test_numbers_move_only_for_those_who_like_motion(opened: Open):
    duration = "getComputedStyle(document.querySelector('.live-number')).transitionDuration"
    assert opened("split.html").evaluate(duration) == "0s"
    assert opened("split.html", reduced_motion="no-preference").evaluate(duration) == "0.6s"


def test_what_is_wrong_in_the_painter_is_open_to_all(opened: Open, axe: str):
    page = opened("painter.html")
    page.get_by_role("button", name="module", exact=True).click()
    page.get_by_role("button", name="the opposite").click()
    assert keeps_out(page, axe, "'main'") == []
