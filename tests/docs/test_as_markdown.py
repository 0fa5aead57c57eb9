"""Each page as Markdown: made of what readers see, whole, and found by who looks for it."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from bs4 import BeautifulSoup, Tag
from mkdocs.exceptions import PluginError

from ..conftest import pages
from .hooks import hook

as_markdown = hook("as_markdown")

ADDRESS = "https://someone.github.io/unmasked/"


def made(html: str) -> str:
    return str(as_markdown.Converter().convert(html)).rstrip("\n")


CASES = {
    "a formula within a line is LaTeX": (
        '<p>Root <math display="inline" alttext="&#92;sqrt&#123;d&#125;"><mi>d</mi></math> of</p>',
        r"Root $\sqrt{d}$ of",
    ),
    "a displayed formula stands alone, with its number": (
        '<p>is</p><span class="math-display"><math display="block" alttext="a = b"><mi>a</mi></math>'
        '<span class="math-tag">(1.2)</span></span>',
        "is\n\n$$\na = b\\tag{1.2}\n$$",
    ),
    "a bar of a formula ends no cell of a table": (
        '<table><thead><tr><th>a|b</th></tr></thead><tr><td><math alttext="|x|">x</math></td></tr></table>',
        "| a\\|b |\n| --- |\n| $\\vert x\\vert $ |",
    ),
    "a grid is a table, and says what is blocked and what is zero": (
        '<div class="tensors"><table class="tensor"><caption>w</caption><thead><tr><td></td><th>k</th><th>l</th></tr>'
        '</thead><tbody><tr><th>q</th><td style="x"></td><td class="blocked" aria-label="blocked"></td></tr></tbody>'
        "</table></div>",
        "**w**\n\n|  | k | l |\n| --- | --- | --- |\n| q | 0 | blocked |",
    ),
    "a table without a head has an empty one": (
        "<table><tr><td>1</td><td>2</td></tr></table>",
        "|  |  |\n| --- | --- |\n| 1 | 2 |",
    ),
    "code and what it gave are told apart": (
        '<div class="jp-Cell"><div class="highlight"><pre><code>x = <i class="m">1</i>\n\nx</code></pre></div><section>'
        '<div class="jp-RenderedText jp-OutputArea-output"><pre>1 ```</pre></div></section></div>',
        "```python\nx = 1\n\nx\n```\n\n````text\n1 ```\n````",
    ),
    "code of a page has its language": (
        '<div class="language-sh highlight"><pre><code>ls</code></pre></div>',
        "```sh\nls\n```",
    ),
    "imports are code like any other": (
        '<div class="jp-Cell"><details class="proofread-imports"><summary>i</summary><pre>import a</pre></details>'
        "<pre>a</pre></div>",
        "```python\nimport a\n```\n\n```python\na\n```",
    ),
    "a solution stays folded": (
        '<details class="success"><summary>Solution</summary><p>It is <b>two</b>.</p></details>',
        "<details>\n<summary>Solution</summary>\n\nIt is **two**.\n\n</details>",
    ),
    "an admonition is quoted": (
        '<div class="admonition note"><p class="admonition-title">Mind</p><p>One</p><pre>two</pre></div>',
        "> **Mind**\n>\n> One\n>\n> ```\n> two\n> ```",
    ),
    "tabs stand below each other": (
        '<div class="tabbed-set"><input><div class="tabbed-labels"><label>A</label><label>B</label></div>'
        '<div class="tabbed-content"><div class="tabbed-block"><p>a</p></div><div class="tabbed-block"><p>b</p></div>'
        "</div></div>",
        "**A**\n\na\n\n**B**\n\nb",
    ),
    "a figure is its picture by day, with what it shows, and its caption": (
        '<figure><img class="figure only-light" src="a.svg" alt="two [bars]"><img class="figure only-dark" src="b.svg" '
        'alt="two [bars]"><figcaption><b>Figure 1.</b> Bars.</figcaption></figure>',
        "![two \\[bars\\]](a.svg)\n\n**Figure 1.** Bars.",
    ),
    "a live figure is its still picture": (
        '<div data-live="x"><div role="img" aria-label="an arc to *crew*"><svg><g/></svg></div></div>',
        "*an arc to \\*crew\\**",
    ),
    "lists hold lists and blocks": (
        '<ol start="2"><li>a<ul><li>b</li><li>c</li></ul></li><li><p>d</p><p>e</p></li></ol>',
        "2. a\n\n   - b\n   - c\n\n3. d\n\n   e",
    ),
    "words are explained": ("<dl><dt>Key</dt><dd>is looked at</dd></dl>", "- **Key**: is looked at"),
    "a card is a link with what it says": (
        '<div class="cards"><a class="card" href="h#s"><span class="card-sides"><svg><g/></svg></span><b>Left out</b>'
        "<span>It fails.</span></a></div>",
        "- [Left out](h#s): It fails.",
    ),
    "a link has its text; one to the glossary is a word": (
        '<p><a href="x y(z)">one <em>two</em></a> <a class="term" href="g">mask</a>'
        '<a class="headerlink" href="#a">P</a></p>',
        "[one *two*](x%20y%28z%29) mask",
    ),
    "marks that are text are no marks": (
        "<p>2 * 3 costs $5, <code>a`b</code> and _this_ snake_case &lt;i&gt;</p><p>1. no list</p><p>- nor this</p>",
        r"2 \* 3 costs \$5, ``a`b`` and \_this\_ snake_case \<i>" + "\n\n\\1. no list\n\n\\- nor this",
    ),
    "what is there to be clicked, and what repeats the text, is left out": (
        '<p>a<button>Copy</button></p><details class="proofread-check"><summary>How</summary><pre>b</pre></details>'
        '<details class="proofread-copy"><summary>Copy</summary></details><script>x</script><style>y</style>',
        "a",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_page_shows_becomes_markdown(case: str) -> None:
    html, markdown = CASES[case]
    assert made(html) == markdown


def test_a_formula_without_its_tex_ends_the_build() -> None:
    with pytest.raises(PluginError, match=r"a formula has lost its TeX before index\.md was made of its page: xy"):
        made("<p><math><mi>x</mi><mi>y</mi></math></p>")


@pytest.mark.parametrize(
    ("target", "near", "known"),
    [
        ("../heads/#one", "../../learn/heads/#one", f"{ADDRESS}learn/heads/#one"),
        ("#figure-1", "../../learn/masks/#figure-1", f"{ADDRESS}learn/masks/#figure-1"),
        ("../..", "../../", ADDRESS),
        ("masks.py", "../../learn/masks/masks.py", f"{ADDRESS}learn/masks/masks.py"),
        ("https://arxiv.org/abs/1#x", "https://arxiv.org/abs/1#x", "https://arxiv.org/abs/1#x"),
    ],
)
def test_links_lead_on_from_the_site_or_where_its_address_is_known_from_everywhere(
    target: str, near: str, known: str
) -> None:
    text = f"[x]({as_markdown.from_root(target, 'learn/masks/')})"
    assert as_markdown.led(text, "../../") == f"[x]({near})"
    assert as_markdown.led(text, ADDRESS) == f"[x]({known})"


def test_from_its_root_a_link_to_the_site_itself_leads_somewhere() -> None:
    assert as_markdown.led(f"[x]({as_markdown.from_root('./', '')})", "") == "[x](./)"


def texts(site: Path) -> dict[str, str]:
    """The Markdown of each page, by the address of its folder."""
    return {
        where: (site / where / "index.md").read_text(encoding="utf-8") for where in pages(site) if where != "404.html"
    }


def read(html: str, name: str = "article") -> Tag:
    """The only element of this name on a page. What stands around it is most of the page, and is not read."""
    begin, end = html.index(f"<{name}"), html.rindex(f"</{name}>")
    (element,) = BeautifulSoup(html[begin:end], "html.parser").find_all(name, recursive=False)
    return element


def bare(text: str) -> str:
    """The letters and digits of a text, and nothing between them."""
    return re.sub(r"[\W_]+", "", text)


def test_each_page_is_there_as_markdown_and_says_so(site: Path) -> None:
    for where, html in pages(site).items():
        if where == "404.html":
            continue
        assert '<link rel="alternate " type="text/markdown" href="index.md">' in html, where
        assert html.count('class="copy-page"') == html.count('<a href="index.md" class="as-markdown">Markdown</a>') == 1
        text = (site / where / "index.md").read_text(encoding="utf-8")
        assert re.match(r"# (.*)\n", text), where
        assert bare(text.split("\n")[0]) == bare(read(html, "h1").get_text().replace("¶", "")), where


def test_the_drawer_repeats_no_contents_and_ends_where_it_should(site: Path) -> None:
    folded = 0
    for where, html in pages(site).items():
        start, end = html.find("md-sidebar--primary"), html.find("md-sidebar--secondary")
        drawer = html[start : end if end > 0 else html.find("<article")]
        assert drawer.count("<nav") == drawer.count("</nav>"), where
        assert drawer.count("<li") == drawer.count("</li>"), where
        if "page-contents" in html:
            folded += 1
            assert 'href="#' not in drawer, where
    assert folded > 20


def test_no_page_as_markdown_has_other_html_than_folds_nor_anything_of_the_machinery(site: Path) -> None:
    for where, text in texts(site).items():
        prose = re.sub(r"(?ms)^( *(?:> )?)(```+)[^\n]*\n.*?^\1\2$|(`+)(?!`).*?(?<!`)\3(?!`)|\$[^$]*\$", "", text)
        assert re.findall(r"(?<!\\)<(?!/?(?:details|summary)>)[a-zA-Z/!][^>]*>", prose) == [], where
        assert not re.search("[\ue000\U000f0000-\U000ffffd]|Markdown]\\(|<summary>How this is checked|¶", prose), where
        assert text.count("<details>") == text.count("</details>"), where


def test_the_markdown_alone_answers_the_exercises(site: Path) -> None:
    solutions = 0
    for where, html in pages(site).items():
        folds = read(html).select("details.success") if "<details" in html and "success" in html else []
        if not folds:
            continue
        text = bare(unescape((site / where / "index.md").read_text(encoding="utf-8")))
        for fold in folds:
            for each in fold.select("summary, .proofread-copy, .proofread-check, style, math, a.headerlink"):
                each.decompose()
            shown = [bare(pre.get_text()) for pre in fold.select("pre")] or [bare(fold.get_text())]
            assert [part for part in shown if part not in text] == [], where
            solutions += 1
    assert solutions > 2


def test_outputs_and_alternative_texts_are_those_of_the_page(site: Path) -> None:
    outputs = pictures = 0
    for where, html in pages(site).items():
        if where == "404.html":
            continue
        tree = read(html)
        for fold in tree.select(".proofread-check"):
            fold.decompose()
        text = bare((site / where / "index.md").read_text(encoding="utf-8"))
        for output in tree.select(".jp-OutputArea-output > pre"):
            assert bare(output.get_text()) in text, where
            outputs += 1
        for picture in tree.select("img[alt]:not(.only-dark), [role=img][aria-label]:not(.card *)"):
            assert bare(str(picture.get("alt") or picture["aria-label"])) in text, where
            pictures += 1
    assert outputs > 10
    assert pictures > 3


def test_one_file_lists_all_pages_a_line_each_and_another_has_them_all(site: Path) -> None:
    listed, whole = ((site / name).read_text(encoding="utf-8") for name in ("llms.txt", "llms-full.txt"))
    name, _, about = listed.split("\n")[:3]
    assert (name[:2], about[:2]) == ("# ", "> ")
    lines = re.findall(r"(?m)^- \[[^\]]+\]\(([^)]*)index\.md\): \S.*$", listed)
    assert len(lines) == len(set(lines)) == listed.count("\n- ")
    assert set(lines) == texts(site).keys()
    assert "\n## Learn\n\n- [What is attention?](learn/attention/index.md): " in listed
    for where, text in texts(site).items():
        # All but the links, which lead on from another place.
        part = whole.partition(f"<!-- {where} -->\n\n")[2].partition("\n<!-- ")[0]
        assert [re.sub(r"\]\([^)]*\)", "]()", each).strip() for each in (part, text)] == [
            re.sub(r"\]\([^)]*\)", "]()", text).strip()
        ] * 2, where
