"""Whatever the built site asks for is there: see links.py. Where it has an address, test_belonging.py looks as well."""

import json
import zlib
from pathlib import Path

import pytest

from .links import Site

ADDRESS = "https://someone.example/some/where/"
WHOLE = '<h2 id="part two"></h2><a name="old"></a><a href="">here</a><a href="#">top</a><a href="#old">old</a>'


def cells(*outputs: dict[str, str], source: str = "") -> str:
    """A notebook with a cell of text and one that shows something."""
    told = {"cell_type": "markdown", "source": [source]}
    shown = {"cell_type": "code", "source": ["`[no](link)`"], "outputs": [{"data": each} for each in outputs]}
    return json.dumps({"cells": [told, shown]})


# What a file asks for, by its name; each asks for what is there, too.
ASKED = {
    "link.html": f'<a href="a/#part%20two">x</a><a href="./">x</a><a href="{ADDRESS}">x</a><a href="{{}}">bad</a>',
    "picture.html": '<img src="a/b.svg"><img src="{}">',
    "script.html": '<script src="a/b.js"></script><script src="{}"></script>',
    "style.html": '<link rel="stylesheet" href="a/b.css"><link rel="stylesheet" href="{}">',
    "preload.html": '<link rel="preload" imagesrcset="a/b.svg 1x, {} 2x">',
    "set.html": '<img srcset="a/b.svg 1x, {} 2x">',
    "manifest.html": '<link rel="manifest" href="{}">',
    "poster.html": '<video poster="{}"></video>',
    "object.html": '<object data="{}"></object>',
    "form.html": '<form action="{}"></form>',
    "live.html": '<div data-live="x" data-json="{}"></div>',
    "paint.html": '<svg><rect fill="url({})"/><use href="a/b.svg#one"/></svg>',
    "use.html": '<svg><use xlink:href="{}"/></svg>',
    "inline.html": "<p style=\"background: url('{}')\">",
    "sheet.html": "<style>p {{ background: url({}) }}</style>",
    "moved.html": '<script>location.replace("{}" + location.hash)</script>',
    "refresh.html": '<noscript><meta http-equiv="refresh" content="0; url={}"></noscript>',
    "worker.html": '<script id="__config" type="application/json">{{"base": ".", "search": "{}"}}</script>',
    "base.html": '<script id="__config" type="application/json">{{"base": "{}", "search": "a/b.js"}}</script>',
    "shared.html": f'<meta property="og:image" content="{ADDRESS}{{}}"><meta property="og:title" content="x/">',
    "full.html": f'<a href="{ADDRESS}{{}}">bad</a><a href="https://else.example/">other</a><a href="mailto:x">x</a>',
    "picture.svg": '<a href="{}"><text>x</text></a>',
    "a.css": 'p {{ background: url("a/b.svg") }} q {{ background: url("{}") }}',
    "imported.css": '@import "{}";',
    "module.js": 'import {{ x }} from "./{}"',
    "worker.js": 'importScripts("{}")',
    "beside.js": 'fetch(new URL("{}", import.meta.url))',
    "app.webmanifest": '{{"start_url": "a/", "icons": [{{"src": "{}"}}]}}',
    "program.py": "# See [there]({}), not `[code](x)`.\ntext = '''\n# [none](y)\n'''\n#| alt: [none](z)\n",
    "sitemap.xml": f"<urlset><url><loc>{ADDRESS}a/</loc></url><url><loc>{ADDRESS}{{}}</loc></url></urlset>",
}


def planted(folder: Path, name: str, text: str | bytes) -> list[str]:
    """What is found dead in a site of this file and some others."""
    (folder / "a").mkdir()
    for living in ("a/index.html", "a/b.js", "a/b.css", "index.html"):
        (folder / living).write_text(WHOLE)
    (folder / "a/b.svg").write_text('<svg><g id="one"/></svg>')
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return Site(folder, ADDRESS).dead()


@pytest.mark.parametrize("name", ASKED)
def test_what_is_not_there_is_found_whoever_asks_for_it(tmp_path: Path, name: str):
    target = "gone/x.js"
    (found,) = planted(tmp_path, name, ASKED[name].format(target))
    assert found.startswith(f"{name}: ")
    assert found.endswith(f"{target}{'/' * (name == 'base.html')} is not there")


@pytest.mark.parametrize("name", ASKED)
def test_what_is_there_is_not_found(tmp_path: Path, name: str):
    assert planted(tmp_path, name, ASKED[name].format("a/" if name == "base.html" else "a/b.js")) == []


# And what else can be wrong with it: the file, its text, and what is found.
FAULTS: dict[str, tuple[str, str | bytes, str]] = {
    "an anchor of another page": ("x.html", '<a href="a/#gone">x</a>', "x.html: a/#gone is no anchor there"),
    "its own anchor": ("x.html", '<a href="#gone">x</a>', "x.html: #gone is no anchor there"),
    "an anchor of what has none": ("x.html", '<a href="a/b.js#x">x</a>', "x.html: a/b.js#x is no anchor there"),
    "a part of a picture": ("x.html", '<use href="a/b.svg#two"/>', "x.html: a/b.svg#two is no anchor there"),
    "paint": ("x.html", '<path fill="url(#two)"/>', "x.html: #two is no anchor there"),
    "a folder, as a file": ("x.html", '<a href="a">x</a>', "x.html: a is not there"),
    "a folder without a page": ("a/c/x.html", '<a href=".">x</a>', "a/c/x.html: . is not there"),
    "above the site": ("a/x.html", '<a href="../../">x</a>', "a/x.html: ../../ leads out of the site"),
    "beside the site": ("x.html", '<a href="/some/">x</a>', "x.html: /some/ leads out of the site"),
    "from wherever": (
        "404.html",
        '<a href="/some/where/a/">x</a><a href="a/">x</a>',
        "404.html: a/ is asked for from where the page is shown, which may be anywhere",
    ),
    "text of a notebook": ("x.ipynb", cells(source="[x](gone) [y](a/)"), "x.ipynb: gone is not there"),
    "HTML of a notebook": ("x.ipynb", cells(source='<img src="gone">'), "x.ipynb: gone is not there"),
    "output": ("x.ipynb", cells({"text/html": '<a href="gone">x</a>'}), "x.ipynb: gone is not there"),
    "output as text": ("x.ipynb", cells({"text/markdown": "[x](gone)"}), "x.ipynb: gone is not there"),
    "a result of the search": (
        "a/search_index.json",
        '{"docs": [{"location": "a/"}, {"location": "a/#x"}]}',
        "a/search_index.json: ../a/#x is no anchor there",
    ),
    "a name for other projects": (
        "objects.inv",
        b"#\n#\n#\n#\n" + zlib.compress(b"part py:module 0 a/#$ -\n"),
        "objects.inv: a/#part is no anchor there",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_other_kind_of_fault_is_found(tmp_path: Path, fault: str):
    name, text, found = FAULTS[fault]
    assert planted(tmp_path, name, text) == [found]


def test_whatever_the_site_asks_for_is_there(site: Path):
    whole = Site(site)
    assert whole.dead() == []
    kinds = {Path(name).suffix for name, asked in whole.asked.items() if asked}
    assert kinds == {".html", ".ipynb", ".py", ".svg", ".css", ".js", ".json", ".inv", ".md", ".txt"}
    assert sum(map(len, whole.asked.values())) > 20_000
