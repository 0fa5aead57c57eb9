"""What people type into the search is found: the theme's own worker answers it, from the index of the site."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
TYPED: dict[str, dict[str, list[str]]] = tomllib.loads(
    (ROOT / "tests/docs/search_queries.toml").read_text(encoding="utf-8")
)
QUERIES, DEMANDS = TYPED["found"], TYPED["demands"]
FIRST, LEAST = 3, 0.95  # places, and the share of queries that must find their page there
# The theme's messages: 0 sets the worker up, 1 is its answer, 2 asks, 3 is what it found.
ASK = """
async (queries) => {
  const config = JSON.parse(document.getElementById("__config").textContent)
  const index = await (await fetch(new URL("search/search_index.json", location))).json()
  const worker = new Worker(new URL(config.search, location))
  const told = (message) => new Promise((done) => {
    worker.onmessage = ({ data }) => done(data)
    worker.postMessage(message)
  })
  await told({ type: 0, data: { ...index, options: { suggest: false } } })
  const found = []
  for (const query of queries) {
    const { data } = await told({ type: 2, data: query })
    found.push(data.items.map((item) => item.find(({ location }) => !location.includes("#"))?.location
      ?? item[0].location.split("#")[0]))
  }
  worker.terminate()
  return found
}
"""


@pytest.fixture(scope="module")
def found(browser: Browser, address: str) -> dict[str, list[str]]:
    """The pages that each query finds, best first."""
    page = browser.new_page()
    page.goto(address)
    asked = [*QUERIES, *DEMANDS]
    answers = page.evaluate(ASK, asked)
    page.close()
    return {query: [each.rstrip("/") for each in pages] for query, pages in zip(asked, answers, strict=True)}


def test_what_people_type_finds_its_page_among_the_first_three(found: dict[str, list[str]]):
    assert len(QUERIES) >= 60
    lost = {query: found[query][:FIRST] for query in QUERIES if not {*QUERIES[query]} & {*found[query][:FIRST]}}
    told = "\n".join(f"{query}: finds {pages}, not one of {QUERIES[query]}" for query, pages in lost.items())
    assert len(QUERIES) - len(lost) >= LEAST * len(QUERIES), told


@pytest.mark.parametrize("query", DEMANDS)
def test_what_engineers_ask_for_is_one_search_away(found: dict[str, list[str]], query: str):
    assert {*DEMANDS[query]} & {*found[query][:FIRST]}, f"{query} finds {found[query][:FIRST]}"


def test_every_page_that_is_to_be_found_first_is_found_by_some_query(site: Path):
    named = {page for pages in QUERIES.values() for page in pages}
    assert len([page for page in named if (site / page / "index.html").exists()]) > 15


def test_what_only_contributors_read_is_not_found(found: dict[str, list[str]]):
    assert [page for pages in found.values() for page in pages if page.startswith("contributing")] == []
