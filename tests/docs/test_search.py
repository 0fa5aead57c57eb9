"""The data by which pages are found: it names pages that exist, and stands at them alone."""

import json
import re
from pathlib import Path

import pytest
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

from .hooks import hook

ROOT = Path(__file__).parents[2]
search = hook("search")


def test_a_page_that_is_gone_must_leave_the_data():
    told = "names what is no page: b.md; give each the name that its file has now, or take its line out"
    with pytest.raises(PluginError, match=rf"search\.toml {re.escape(told)}"):  # MkDocs tells of it in one line
        search.aliases('"a.md" = ["x"]\n"b.md" = ["y"]', {"a.md": "a/"})
    with pytest.raises(PluginError, match=r"search\.toml is not TOML: .*line 2"):
        search.aliases('"a.md" = ["x"]\n"b.md = ["y"]', {"a.md": "a/"})


def test_other_names_stand_at_the_page_and_not_at_its_sections():
    fields = {"title": {"boost": 2.0}, "tags": {"boost": 9.0}}
    index = {"config": {"fields": fields}, "docs": [{"location": "a/"}, {"location": "a/#b"}, {"location": "c/"}]}
    search.named(index, search.aliases('"a.md" = ["x"]', {"a.md": "a/", "c.md": "c/"}))
    assert fields["tags"] == fields["title"] == {"boost": 2.0}, "a name weighs what a title weighs"
    assert index["docs"] == [{"location": "a/", "tags": ["x"]}, {"location": "a/#b"}, {"location": "c/"}]


@pytest.mark.parametrize("quoted", ['"search": "../assets/{}"', '"search":"assets/{}"'])
def test_the_search_asks_the_worker_of_the_site(quoted: str):
    theirs = "javascripts/workers/search.a7633da7.min.js"
    assert search.on_post_page(quoted.format(theirs)) == quoted.format("search.js")
    assert search.on_post_template(quoted.format(theirs)) == quoted.format("search.js")


def test_the_worker_of_the_site_runs_that_of_the_theme_and_nothing_that_an_address_says():
    script = (ROOT / "docs/assets/search.js").read_text(encoding="utf-8")
    named = search.asking(script, ["javascripts/workers/search.a7.min.js"])
    assert named.count('importScripts("javascripts/workers/search.a7.min.js")') == named.count("importScripts") == 1
    assert "location.search" not in script
    for names in ([], ["a.js", "b.js"]):
        with pytest.raises(PluginError, match=r"assets/search\.js runs the worker of the theme's search at"):
            search.asking(script, names)


def test_the_theme_meets_no_form_for_which_it_would_load_the_index_at_once():
    form = '<form class="md-search__form" name="search"><input name="query">'
    assert search.on_post_page(form) == '<form class="md-search__form"><input name="query">'


def test_a_build_of_what_has_changed_finds_its_worker_as_it_left_it(tmp_path: Path):
    config = MkDocsConfig()
    config.load_dict({"site_name": "Ours", "docs_dir": str(ROOT / "docs"), "site_dir": str(tmp_path)})
    config.extra["aliases"] = {}
    theirs, index = tmp_path / "assets/javascripts/workers/search.a7.min.js", tmp_path / search.INDEX
    for file in (theirs, index):
        file.parent.mkdir(parents=True)
    theirs.touch()
    index.write_text(json.dumps({"config": {"fields": {"title": {}}}, "docs": []}), encoding="utf-8")
    for _ in range(2):
        search.on_post_build(config=config)
        assert (tmp_path / search.WORKER).read_text(encoding="utf-8").count(f"workers/{theirs.name}") == 1
