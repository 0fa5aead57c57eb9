"""What people type into the search is found: the site's own worker answers it, from the index of the site."""

from __future__ import annotations

import json
import random
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import Open, keeps_out

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
TYPED: dict[str, dict[str, list[str]]] = tomllib.loads(
    (ROOT / "tests/docs/search_queries.toml").read_text(encoding="utf-8")
)
FIRST = 3  # places
# The theme's messages: 2 asks, 3 is what was found.
ASK = """
async (queries) => {
  const config = JSON.parse(document.getElementById("__config").textContent)
  const worker = new Worker(new URL(config.search, location))
  const found = []
  for (const query of queries) {
    const items = await new Promise((done) => {
      worker.onmessage = ({ data }) => data.type === 3 && done(data.data.items)
      worker.postMessage({ type: 2, data: query })
    })
    found.push(items.map((item) => item.find(({ location }) => !location.includes("#"))?.location
      ?? item[0].location.split("#")[0]))
  }
  worker.terminate()
  return found
}
"""
# The words that a page marks as those searched for.
MARKED = "() => [...CSS.highlights.get('found')].map(String)"


@pytest.fixture(scope="module")
def found(browser: Browser, address: str) -> dict[str, list[str]]:
    """The pages that each query finds, best first."""
    page = browser.new_page()
    page.goto(address)
    asked = [query for table in TYPED.values() for query in table]
    answers = page.evaluate(ASK, asked)
    page.close()
    return {query: [each.rstrip("/") for each in pages] for query, pages in zip(asked, answers, strict=True)}


# How many of a hundred find a page that answers them first, and among the first three.
@pytest.mark.parametrize(
    ("table", "first", "among"),
    [("seen", 84, 94), ("unseen", 80, 94), ("fresh", 85, 95), ("later", 80, 95), ("found", 95, 97), ("titles", 90, 97)],
)
def test_what_people_type_finds_its_page(found: dict[str, list[str]], table: str, first: int, among: int):
    queries = {query: {page.partition("#")[0] for page in pages} for query, pages in TYPED[table].items()}
    lost = {query: found[query][:FIRST] for query in queries if not queries[query] & {*found[query][:FIRST]}}
    told = "\n".join(f"{query}: finds {pages}, not one of {queries[query]}" for query, pages in lost.items())
    assert len(queries) - len(lost) >= among / 100 * len(queries), told
    at_once = [query for query, pages in queries.items() if {*found[query][:1]} & pages]
    assert len(at_once) >= first / 100 * len(queries), sorted(queries.keys() - at_once)


@pytest.mark.parametrize("query", TYPED["demands"])
def test_what_engineers_ask_for_is_one_search_away(found: dict[str, list[str]], query: str):
    assert {*TYPED["demands"][query]} & {*found[query][:FIRST]}, f"{query} finds {found[query][:FIRST]}"


def test_what_only_contributors_read_is_not_found(found: dict[str, list[str]]):
    assert [page for pages in found.values() for page in pages if page.startswith("contributing")] == []


def test_the_index_is_loaded_when_the_search_gets_the_focus_and_no_page_shows_its_other_names(opened: Open):
    page = opened("learn/masks/")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload(wait_until="networkidle")
    assert [url for url in asked if "search_index" in url] == []
    with page.expect_request("**/search_index.json"):
        page.locator(".md-search__input").focus()
    page.keyboard.type("causal mask")
    page.locator(".md-search-result__link").first.wait_for()
    assert page.locator(".md-search-result .md-tags").count() == 0
    assert page.locator(".md-search-result__meta").inner_text() != ""


def test_a_sign_of_code_is_no_operator_of_the_search(tab: Page, address: str):
    tab.goto(address)
    pairs = {
        "~attn_mask": "attn_mask",
        "-inf": "inf",
        "+causal": "causal",
        "a*b mask": "a b mask",
        "title:mask": "title mask",
        "mask^2": "mask",
        "softmax(QK^T)": "softmax QK T",
        "x[:, -1]": "x 1",
        '"causal mask"': "causal mask",
        "q \\ k ~ rope -- mask": "q k rope mask",
    }
    asked = [*pairs, *pairs.values(), "~", "-", "*", "^", "  ", '""', ":"]
    answers = dict(zip(asked, tab.evaluate(ASK, asked), strict=True))
    for typed, meant in pairs.items():
        assert answers[typed] == answers[meant], typed
        assert answers[typed], typed
    assert "pytorch/masks/" in answers["~attn_mask"][:FIRST]
    assert [answers[sign] for sign in asked[-7:]] == [[]] * 7


@pytest.mark.parametrize(
    "word", ["constructor", "__proto__", "toString hasOwnProperty", "&amp; &lt;", "[(" * 200, "é ∑ 面"]
)
def test_no_word_is_more_than_a_word(tab: Page, address: str, word: str):
    tab.goto(address)
    alone, beside = tab.evaluate(ASK, [word, f"attn_mask {word}"])
    assert len(alone) < len(beside)


def test_the_word_that_is_being_typed_is_completed(opened: Open):
    from playwright.sync_api import expect

    page = opened("learn/masks/")
    page.keyboard.press("/")
    page.keyboard.type("causal cac")
    page.locator(".md-search__suggest").filter(has_text="causal cache").wait_for()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".md-search__input")).to_have_value("causal cache")
    page.keyboard.type("s")
    assert page.locator(".md-search__input").input_value() == "causal caches"


def test_no_page_without_a_rare_name_stands_above_the_one_that_has_it(tab: Page, address: str, site: Path):
    on: dict[str, set[str]] = {}
    for entry in json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["docs"]:
        more = [*entry.get("errors", []), *entry.get("tags", [])]  # a tag has what people ask for
        said = entry["title"] + entry["text"] + " ".join(more)
        for name in re.findall(r"\b[a-z]+_[a-z_]+[a-z]\b", said.lower()):
            on.setdefault(name, set()).add(entry["location"].partition("#")[0])
    rare = sorted(name for name, pages in on.items() if len(pages) == 1)
    drawn = random.Random(0).sample(rare, 30)
    tab.goto(address)
    answers = tab.evaluate(ASK, [f"causal mask {name} weights of attention in PyTorch" for name in drawn])
    assert [name for name, pages in zip(drawn, answers, strict=True) if {*pages[:1]} != on[name]] == []


def test_a_result_shows_the_row_of_a_table_and_marks_the_words_that_were_typed(opened: Open):
    page = opened("learn/masks/")
    page.keyboard.press("/")
    page.keyboard.insert_text("mask_mod <block>: packed texts, compiled")
    row = page.locator(".md-search-result__article p").filter(has_text="block mask · Off by, compiled ·").first
    row.wait_for()
    assert row.locator("mark").all_inner_texts() == ["packed", "texts", "block", "compiled", "compiled"]
    assert row.inner_text().endswith("Off by, not compiled")


def test_enter_leads_to_the_first_result_where_all_forms_of_what_was_typed_are_marked(opened: Open):
    page = opened("learn/masks/")
    for typed in ("rotary embedding", "masking queries"):
        page.keyboard.press("/")
        page.locator(".md-search__input").fill(typed)
        page.locator(f".md-search-result__link[href*='{typed.split()[-1]}']").first.wait_for(state="attached")
        leads = str(page.locator(".md-search-result__link").first.get_attribute("href"))
        with page.expect_navigation():
            page.locator(".md-search__input").press("Enter")
        assert page.url.partition("?")[0] == leads.partition("?")[0]
    marked = {word.lower() for word in page.evaluate(MARKED)}
    assert marked > {"mask", "masks", "query", "queries"}
    assert [word for word in marked if not word.startswith(("mask", "quer"))] == []
    page.goto(page.url.partition("?")[0])
    assert page.evaluate("CSS.highlights.size") == 0, "nobody searched"


def test_after_escape_the_focus_is_where_it_was_and_what_is_found_is_told(opened: Open, on_phone: Open):
    active = "document.activeElement.matches('[for=__search], .md-logo, #before')"
    page = opened("learn/masks/")
    page.evaluate("document.querySelector('article a').id = 'before'")
    page.locator("#before").focus()
    page.keyboard.press("/")
    page.keyboard.type("causal mask")
    page.locator(".md-search-result__item").first.wait_for()
    assert page.locator(".md-search-result__meta[role=status]").inner_text().endswith("matching documents")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    page.locator("#before:focus").wait_for()
    assert page.locator(".md-search [tabindex='0']:visible").count() == 0, "no stop where there is nothing"
    phone = on_phone("learn/masks/")
    phone.locator(".md-header button[for=__search]").press("Enter")
    phone.locator(".md-search__input:focus").wait_for()
    phone.keyboard.press("Escape")
    phone.locator("button[for=__search]:focus").wait_for()
    assert phone.evaluate(active)


@pytest.mark.parametrize("width", [1280, 390])
def test_closed_open_and_with_what_it_found_the_search_is_open_to_all(opened: Open, axe: str, width: int):
    page = opened("learn/masks/", viewport={"width": width, "height": 900})
    assert keeps_out(page, axe, "'.md-search'") == []
    page.keyboard.press("/")
    page.locator(".md-search__scrollwrap:visible").wait_for()
    assert keeps_out(page, axe, "'.md-search'") == []
    page.keyboard.type("mask")
    code = page.locator(".md-search-result__item p > code")
    code.first.wait_for(state="attached")
    assert keeps_out(page, axe, "'.md-search'") == []
    assert code.evaluate_all("(all) => all.filter((each) => each.scrollWidth > each.clientWidth).length") == 0


def test_without_a_server_the_search_says_what_it_needs(tab: Page, site: Path):
    tab.goto(f"{(site / 'learn/masks/index.html').as_uri()}")
    tab.locator(".md-search__input").focus()
    tab.keyboard.type("mask")
    told = tab.locator(".md-search-result__meta")
    told.filter(has_text="python -m http.server").wait_for()
    tab.keyboard.press("Escape")
    told.wait_for(state="hidden")


def test_an_index_that_does_not_come_is_told_and_asked_for_again(tab: Page, address: str):
    tab.route("**/search_index.json", lambda route: route.fulfill(status=500))
    tab.goto(f"{address}learn/masks/")
    tab.locator(".md-search__input").focus()
    tab.keyboard.type("mask")
    tab.locator(".md-search-result__meta").filter(has_text="could not be loaded").wait_for()
    tab.unroute("**/search_index.json")
    tab.keyboard.type("s")
    tab.locator(".md-search-result__item").first.wait_for()


def test_on_a_phone_the_search_opens_with_the_cursor_in_it_and_finds_what_is_pasted(on_phone: Open):
    page = on_phone("learn/masks/", is_mobile=True)
    page.locator(".md-header button[for=__search]").tap()
    page.locator(".md-search__input:focus").wait_for()
    page.keyboard.insert_text("rope")
    page.locator(".md-search-result__item").first.wait_for()
