"""The data by which pages are found: it names pages that exist, and stands at them alone."""

import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

from .hooks import hook

ROOT = Path(__file__).parents[2]
search = hook("search")


def configured(site: Path, told: dict[str, Any]) -> MkDocsConfig:
    """The settings of a site that is built into this folder."""
    config = MkDocsConfig()
    config.load_dict({"site_name": "Ours", "docs_dir": str(ROOT / "docs"), "site_dir": str(site)})
    config.extra["names"] = told
    config.extra["pointed"] = {}
    (site / search.INDEX).parent.mkdir(parents=True)
    return config


def test_a_page_that_is_gone_must_leave_the_data():
    told = "names what is no page: b.md; give each the name that its file has now, or take its line out"
    with pytest.raises(PluginError, match=rf"search\.toml {re.escape(told)}"):  # MkDocs tells of it in one line
        search.names('[pages]\n"a.md" = ["x"]\n"b.md" = ["y"]', {"a.md": "a/"})
    with pytest.raises(PluginError, match=r"search\.toml is not TOML: .*line 2"):
        search.names('"a.md" = ["x"]\n"b.md = ["y"]', {"a.md": "a/"})
    with pytest.raises(PluginError, match=r"search\.toml has a\.md; give it the tables same and pages"):
        search.names('"a.md" = ["x"]', {"a.md": "a/"})
    assert search.names("", {"a.md": "a/"}) == {"same": {}, "pages": {}}


def test_no_page_has_to_be_told_a_word_that_another_word_means_already():
    told = tomllib.loads((ROOT / "docs/search.toml").read_text(encoding="utf-8"))
    assert [short for short, word in told["same"].items() if short == word or word in told["same"]] == []
    phrases = [phrase.lower() for words in told["pages"].values() for phrase in words]
    assert [phrase for phrase in phrases if phrases.count(phrase) > 3] == []


def test_an_error_is_found_in_the_section_of_the_cell_that_raises_it(tmp_path: Path):
    failed = {"output_type": "error", "ename": "ValueError", "evalue": "no kernel"}
    cells = [
        {"cell_type": "markdown", "source": ["# A page\n", "\n", "## Force `one`, or [fail](x.md)\n"]},
        {"cell_type": "code", "source": ["f()"], "outputs": [{"output_type": "stream"}, failed]},
    ]
    assert search.raised({"cells": cells}) == [("force-one-or-fail", "ValueError: no kernel")]
    config = configured(tmp_path, {"same": {"oom": "memory"}, "pages": {"a/": ["x"]}})
    sections = ["a/", "a/#fail", "b/"]
    titles = dict(zip(sections, ["A page", "Force <code>one</code>, or fail", "Another"], strict=True))
    docs = [{"location": section, "title": titles[section], "text": ""} for section in sections]
    (tmp_path / "a").mkdir()
    (tmp_path / "a/a.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    (tmp_path / search.INDEX).write_text(json.dumps({"config": {}, "docs": docs}), encoding="utf-8")
    search.on_post_build(config=config)
    index = json.loads((tmp_path / search.INDEX).read_text(encoding="utf-8"))
    assert index["same"] == {"oom": "memory"}
    page, section, other = index["docs"]
    assert page["tags"] == ["x"], "other names stand at the page and not at its sections"
    assert section["errors"] == ["ValueError: no kernel"]
    assert [("tags" in each, "errors" in each) for each in (section, other)] == [(False, True), (False, False)]


def test_the_index_knows_where_a_cell_of_a_table_ends_and_no_page_shows_it(tmp_path: Path):
    page = SimpleNamespace(url="a/", content="<table><tr><th>a</th><td>b</td></tr></table>")
    search.on_page_context({}, page=page, config=configured(tmp_path, {}))
    assert page.content == "<table><tr><th>a\ue010</th><td>b\ue010</td>\ue011</tr></table>"
    assert search.on_post_page(page.content) == "<table><tr><th>a</th><td>b</td></tr></table>"


def test_what_a_page_says_where_it_links_stands_at_the_section_to_which_the_link_leads(tmp_path: Path):
    config = configured(tmp_path, {"same": {}, "pages": {}})
    card = f'<a class="card" href="../b/#c"><span>wrong</span><b>A leak</b></a>{"<b>x</b>" * search.LONG}'
    told = (
        '<h2>Here<a class="headerlink" href="#here">¶</a></h2><p>No. <em>Any <a href="../b/#c">leak</a></em> tells.</p>'
    )
    links = '<a href="https://c.org/b/">out</a><a href="../notation/#mask">mask</a>'
    page = SimpleNamespace(url="a/", content=f"{told}<div>{card}</div><p>{links}</p>")
    search.on_page_context({}, page=page, config=config)
    docs = [{"location": location, "title": "", "text": ""} for location in ("a/", "a/#here", "b/#c", "notation/#mask")]
    (tmp_path / search.INDEX).write_text(json.dumps({"config": {}, "docs": docs}), encoding="utf-8")
    search.on_post_build(config=config)
    index = json.loads((tmp_path / search.INDEX).read_text(encoding="utf-8"))["docs"]
    assert [entry.get("told") for entry in index] == [None, None, ["Any leak tells.", "wrong A leak"], None]


@pytest.mark.parametrize("quoted", ['"search": "../assets/{}"', '"search":"assets/{}"'])
def test_the_search_asks_the_worker_of_the_site(quoted: str):
    theirs = "javascripts/workers/search.a7633da7.min.js"
    assert search.on_post_page(quoted.format(theirs)) == quoted.format("search.js")
    assert search.on_post_template(quoted.format(theirs)) == quoted.format("search.js")


def test_the_worker_of_the_site_runs_nothing_but_itself():
    script = (ROOT / "docs/assets/search.js").read_text(encoding="utf-8")
    assert re.findall(r"importScripts|\bimport\b|eval\(|Function\(|location\.(?:search|hash)", script) == []
    assert len(script) < 13_500, "a few KB, where the theme's worker has 40 and lunr in it"


def test_the_theme_meets_no_form_for_which_it_would_load_the_index_at_once():
    form = '<form class="md-search__form" name="search"><input name="query">'
    assert search.on_post_page(form) == '<form class="md-search__form"><input name="query">'
