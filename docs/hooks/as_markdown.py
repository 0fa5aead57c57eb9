"""A hook of the site: each page as Markdown beside it, with all outputs, and all pages in one file for assistants.

What is `learn/masks/` for readers is `learn/masks/index.md` as Markdown: `index.md` behind the address of a page, which
ends in a slash, so that links and pictures are as near to it as to the page. `llms.txt` lists the pages, with what each
is about, and `llms-full.txt` has all of them: https://llmstxt.org.

The Markdown is made of the page as readers see it, since only there all that is run, drawn and filled in stands.
"""

import re
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from html import unescape
from pathlib import Path

from bs4 import BeautifulSoup, Comment, NavigableString, Tag
from bs4.element import PageElement
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

from proofread.keep.shelf import Shelf
from proofread.publish.serving import is_looked_at
from proofread.settings import Settings

NAME, INDEX, FULL = "index.md", "llms.txt", "llms-full.txt"
OFFER = f'<button type="button" class="copy-page">Copy page</button> <a href="{NAME}" class="as-markdown">Markdown</a>'
_DOWNLOADS = '<p class="proofread-downloads" data-search-exclude="true">'
# It stands for the site's root, until it is known from where a link leads there.
_ROOT = "\ue000"
# What is there to be clicked or looked at, checks that repeat the text, and the picture of the night.
_LEFT = (
    ".headerlink, .as-markdown, .page-contents, .proofread-copy, .proofread-check, .source, .page-links, .only-dark, "
    "style, script, button, input, fieldset, svg.narrow"
)
_BLOCKS = (
    "article blockquote details div dl figcaption figure h1 h2 h3 h4 h5 h6 hr ol p pre section table ul svg".split()
)
_ARTICLE = re.compile(r"<article\b[^>]*>(.*)</article>", re.DOTALL)
# The theme's own contents for phones, two levels down in its drawer; the link to the page itself stays.
_TWICE = re.compile(
    r'<input class="md-nav__toggle md-toggle" type="checkbox" id="__toc">\s*<label [^>]*for="__toc">.*?</label>\s*'
    r'(<a [^>]*>.*?</a>)\s*(?=<nav class="md-nav md-nav--secondary")',
    re.DOTALL,
)
_STARTS = re.compile(r"^([#>+-]|\d+[.)])(?=\s|$)")


class Converter:
    """Makes Markdown of a page's HTML.

    Args:
        link: What a link of the page, or a picture's address, becomes.
    """

    def __init__(self, link: Callable[[str], str] = str) -> None:
        self._link = link

    def link(self, target: str) -> str:
        """What an address of the page becomes; a bracket in it would end it."""
        return self._link(target).replace("(", "%28").replace(")", "%29").replace(" ", "%20")

    def convert(self, html: str) -> str:
        """The HTML as Markdown.

        >>> Converter().convert('<h1>One</h1><p>Two <em>or\\nthree</em>: <a href="x">four</a>.</p>')
        '# One\\n\\nTwo *or three*: [four](x).\\n'
        """
        tree = BeautifulSoup(html, "html.parser")
        for each in tree.select(_LEFT):
            each.decompose()
        return self.blocks(tree) + "\n"

    def blocks(self, parent: Tag) -> str:
        """What an element holds: its blocks, and as paragraphs the texts between them."""
        made, texts = [], list[PageElement]()

        def paragraph() -> None:
            text = _STARTS.sub(r"\\\1", self.line(texts))
            made.append(text)
            texts.clear()

        for child in parent.children:
            if _is_block(child):
                paragraph()
                made.append(self.block(child))
            else:
                texts.append(child)
        paragraph()
        return "\n\n".join(filter(None, made))

    def block(self, tag: Tag) -> str:
        """One block."""
        classes = tag.get_attribute_list("class")
        if tag.get("role") == "img" or tag.name == "svg":
            return f"*{_escaped(str(tag['aria-label']))}*" if tag.get("aria-label") else ""
        if re.fullmatch(r"h[1-6]", tag.name):
            return f"{'#' * int(tag.name[1])} {self.line(tag.children)}"
        if "cards" in classes:
            return "\n".join(self.card(each) for each in tag.select("a.card"))
        if tag.name == "pre":
            return _fenced(tag.get_text(), _language(tag))
        if tag.name == "details":
            return self.fold(tag, classes)
        if tag.name == "blockquote" or "admonition" in classes:
            title = tag.find(class_="admonition-title")
            if isinstance(title, Tag):
                title.replace_with(BeautifulSoup(f"<p><b>{title.decode_contents()}</b></p>", "html.parser"))
            return re.sub(r"^(?=(.?))", lambda line: "> " if line[1] else ">", self.blocks(tag), flags=re.MULTILINE)
        if "tabbed-set" in classes:
            titles, contents = tag.select(".tabbed-labels > label"), tag.select(".tabbed-content > .tabbed-block")
            tabs = zip(titles, contents, strict=True)
            return "\n\n".join(f"**{self.line(title.children)}**\n\n{self.blocks(each)}" for title, each in tabs)
        special = {"table": self.table, "ul": self.items, "ol": self.items, "dl": self.terms}
        return special[tag.name](tag) if tag.name in special else "---" if tag.name == "hr" else self.blocks(tag)

    def fold(self, tag: Tag, classes: list[str | None]) -> str:
        """What a page folds away stays folded for who looks at the Markdown, and whoever reads it, reads it."""
        summary = tag.find("summary", recursive=False)
        title = self.line(summary.children) if isinstance(summary, Tag) else ""
        if isinstance(summary, Tag):
            summary.extract()
        if "proofread-about" in classes:
            return title
        inside = self.blocks(tag)
        # The code below it does not run without.
        return inside if "proofread-imports" in classes else _folded(title, inside)

    def card(self, card: Tag) -> str:
        """A card of a gallery: what it is called and says; its picture hangs where it leads."""
        name, said = card.find("b"), card.find_all("span", recursive=False)[-1]
        assert isinstance(name, Tag)
        return f"- [{self.line(name.children)}]({self.link(str(card['href']))}): {self.line(said.children)}"

    def table(self, tag: Tag) -> str:
        """A table, with its caption above; what has no text says what it is to who hears it."""
        rows = [[self.cell(cell) for cell in row.select("th, td")] for row in tag.select("tr")]
        width = max(map(len, rows), default=0)
        if not tag.select("thead"):
            rows.insert(0, [""] * width)
        lines = [f"| {' | '.join(row + [''] * (width - len(row)))} |" for row in rows]
        lines.insert(1, f"|{' --- |' * width}")
        caption = tag.find("caption")
        above = f"**{self.line(caption.children)}**\n\n" if isinstance(caption, Tag) else ""
        return above + "\n".join(lines)

    def cell(self, cell: Tag) -> str:
        """What a cell of a table says, on one line."""
        text = self.line(cell.children) or _escaped(str(cell.get("aria-label", "")))
        if not text and cell.find_parent("tbody") and cell.find_parent(class_="tensor"):
            text = "0"  # which a grid leaves blank
        text = re.sub(r"\$[^$]*\$", lambda tex: tex[0].replace("|", r"\vert "), re.sub(r"\s*\n\s*", " ", text))
        return text.replace("|", "\\|")

    def items(self, tag: Tag) -> str:
        """A list."""
        made = []
        for number, item in enumerate(tag.find_all("li", recursive=False), int(str(tag.get("start", 1)))):
            mark = f"{number}. " if tag.name == "ol" else "- "
            inside = self.blocks(item)
            if "doc-section-item" in item.get_attribute_list("class"):  # a name of the reference, and what it means
                inside = re.sub(r"\s*\n\n", " ", inside, count=1)
            made.append(mark + re.sub(r"\n(?=.)", "\n" + " " * len(mark), inside))
        return ("\n\n" if any("\n\n" in each for each in made) else "\n").join(made)

    def terms(self, tag: Tag) -> str:
        """Words and what they mean, as a list."""
        made = ""
        for each in tag.find_all(["dt", "dd"], recursive=False):
            text = self.blocks(each)
            made += f"\n- **{text}**" if each.name == "dt" else f": {text}".replace("\n", "\n  ")
        return made.strip()

    def line(self, children: Iterable[PageElement]) -> str:
        """Text on one line, but for its line breaks and the formulas that stand alone."""
        text = "".join(self.inline(child) for child in children)
        return re.sub(r" *\n *", "\n", re.sub(r"[ \t]+", " ", text)).strip()

    def inline(self, each: PageElement) -> str:
        """What stands within a line."""
        if isinstance(each, NavigableString):
            return "" if isinstance(each, Comment) else _escaped(re.sub(r"\s+", " ", each))
        assert isinstance(each, Tag)
        classes = each.get_attribute_list("class")
        if "math-display" in classes:
            number = each.select_one(".math-tag")
            tag = rf"\tag{{{number.get_text().strip('()')}}}" if number else ""
            return "\n\n$$\n" + "\n".join(_tex(math) for math in each.select("math")) + f"{tag}\n$$\n\n"
        if each.name == "math":
            return f"$$\n{_tex(each)}\n$$" if each.get("display") == "block" else f"${_tex(each)}$"
        if each.name == "img":
            told = re.sub(r"[][]", r"\\\g<0>", _escaped(" ".join(str(each.get("alt", "")).split())))
            return f"![{told}]({self.link(str(each['src']))})"
        if each.name == "br":
            return "\n"
        if each.name == "code":
            return _code(each.get_text())
        if _is_block(each):
            return f" {self.block(each)} "
        text = "".join(self.inline(child) for child in each.children)
        if not text.strip():
            return text
        if each.name == "a" and each.get("href") and "term" not in classes:  # the glossary is linked from everywhere
            return f"[{text.strip()}]({self.link(str(each['href']))})"
        mark = {"em": "*", "i": "*", "strong": "**", "b": "**"}.get(each.name, "")
        said = text.strip()
        return text.replace(said, f"{mark}{said}{mark}", 1)


def _is_block(each: PageElement) -> bool:
    """Whether an element stands for itself; one that Markdown does not know does where it holds such."""
    if not isinstance(each, Tag) or "math-display" in each.get_attribute_list("class"):
        return False
    return each.name in _BLOCKS or (each.name not in ("a", "code", "math") and each.find(_BLOCKS) is not None)


def _escaped(text: str) -> str:
    r"""Text in which Markdown finds nothing that is its own.

    >>> _escaped("a * b costs $5, <i> and snake_case _x_")
    'a \\* b costs \\$5, \\<i> and snake_case \\_x\\_'
    """
    return re.sub(r"[*`$\\]|<(?=[a-zA-Z/!])|\b_|_\b|(?<=\W)_|^_", r"\\\g<0>", text)


def _tex(math: Tag) -> str:
    if "alttext" not in math.attrs:
        raise PluginError(f"a formula has lost its TeX before {NAME} was made of its page: {math.get_text()[:80]}")
    return " ".join(str(math["alttext"]).split())


def _code(text: str) -> str:
    """Code within a line."""
    text = " ".join(text.split())
    ticks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    blank = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{blank}{text}{blank}{ticks}" if text else ""


def _fenced(text: str, language: str) -> str:
    ticks = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{ticks}{language}\n{text.strip(chr(10))}\n{ticks}"


def _language(pre: Tag) -> str:
    """What a box of code holds: that of cells, signatures and plates is Python, and outputs are text."""
    if pre.find_parent(class_="jp-OutputArea-output") and not pre.find_parent(class_="plate"):
        return "text"
    if pre.find_parent(class_=["jp-Cell", "doc-signature", "program"]) or pre.select_one(".gp"):
        return "python"
    named = pre.find_parent(class_=re.compile("^language-"))
    said = (
        next((each for each in named.get_attribute_list("class") if each.startswith("language-")), "") if named else ""
    )
    return said.removeprefix("language-").removeprefix("text")


def _folded(title: str, inside: str) -> str:
    return f"<details>\n<summary>{title}</summary>\n\n{inside}\n\n</details>"


def from_root(target: str, url: str) -> str:
    """A link of a page as it leads from the site's root; what leads elsewhere stays.

    >>> from_root("../masks/#traps", "learn/heads/").replace(_ROOT, "ROOT/")
    'ROOT/learn/masks/#traps'
    >>> from_root("https://arxiv.org", "learn/heads/")
    'https://arxiv.org'
    """
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//", target):
        return target
    return _ROOT + urllib.parse.urljoin(f"/{url}", target).removeprefix("/")


def led(markdown: str, root: str) -> str:
    """A page's Markdown with its links, where the site's root is there."""
    return re.sub(rf"{_ROOT}(?=[)#?])", root or "./", markdown).replace(_ROOT, root)


def on_page_content(html: str, *, page: Page, **_: object) -> str:
    """Offer the Markdown below the title, beside the notebook and the script where the page has them.

    A phone, which has no room for the page's contents beside the text, has them there as well.
    """
    below = contents(page)
    if _DOWNLOADS in html:
        before, mark, after = html.partition(_DOWNLOADS)
        links, end, after = after.partition("</p>\n")
        return f"{before}{mark}{links} {OFFER}{end}{below}{after}"
    title, end, rest = html.partition("</h1>")
    offer = f"\n{_DOWNLOADS}{OFFER}</p>\n{below}"
    return title + end + offer + rest if end else offer + html


def contents(page: Page) -> str:
    """The page's sections, folded up; "" where they are few, or the page shows them nowhere."""
    sections = [each for top in page.toc for each in (top, *top.children) if each.level == 2]
    if len(sections) < 2 or "toc" in page.meta.get("hide", ()):
        return ""
    listed = "".join(f'<li><a href="{each.url}">{each.title}</a></li>' for each in sections)
    fold = '<details class="page-contents" data-search-exclude="true"><summary>On this page</summary>'
    return f"{fold}<ul>{listed}</ul></details>\n"


@event_priority(50)  # proofread takes the TeX from formulas in this event, and the theme's white space
def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Write the page's Markdown beside it."""
    article = _ARTICLE.search(output)
    if not article:
        raise PluginError(f"{page.file.src_uri} has no <article>, of which its Markdown could be made")
    root = Path(config.config_file_path).parent
    url = page.url.removeprefix("./")

    def make() -> str:
        return Converter(lambda target: from_root(target, url)).convert(article[1])

    of = [url, article[1], Path(__file__).read_text(encoding="utf-8")]
    text = Shelf(root / Settings.load(root).cache).made(f"{NAME} of {url}", of, make)
    config.extra.setdefault("as_markdown", {})[url] = text
    file = Path(page.file.abs_dest_path).with_name(NAME)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(led(text, address(config) or "../" * url.count("/")), encoding="utf-8")
    return _once(output) if "page-contents" in article[1] else output


def _once(output: str) -> str:
    """Take out the contents that the theme's drawer repeats, with the lists in them.

    >>> own = '<input class="md-nav__toggle md-toggle" type="checkbox" id="__toc"><label for="__toc">a</label>'
    >>> _once(f'{own}<a href="">a</a><nav class="md-nav md-nav--secondary"><li>b<nav>c</nav></li></nav></li>')
    '<a href="">a</a></li>'
    """
    found = _TWICE.search(output)
    if found is None:
        return output
    depth = 0
    for tag in re.compile(r"<(/?)nav\b[^>]*>").finditer(output, found.end()):
        depth += -1 if tag[1] else 1
        if not depth:
            return output[: found.start()] + found[1] + output[tag.end() :]
    return output


def address(config: MkDocsConfig) -> str:
    """The site's address; "" where it has none, as while it is only looked at."""
    return "" if is_looked_at(config) else config.site_url or ""


def on_nav(nav: Navigation, *, config: MkDocsConfig, **_: object) -> Navigation:
    """Note the order of the pages, for what is written once all are there."""
    config.extra["tracks"] = [*tracks(nav)]
    return nav


def tracks(nav: Navigation) -> Iterator[tuple[str, list[Page]]]:
    """The sections of the navigation with all their pages; pages that stand alone belong to none, and come first."""
    yield "", [each for each in nav.items if isinstance(each, Page)]
    for section in nav.items:
        if isinstance(section, Section):
            yield section.title, [page for page in nav.pages if section in page.ancestors]


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write the list of the pages, and all of them in one file."""
    head = f"# {config.site_name}\n\n> {config.site_description}\n"
    listed, texts, root = [head], [head], address(config)
    made = config.extra["as_markdown"]
    for title, pages in config.extra["tracks"]:
        lines = [f"## {title}\n"] if title else []
        for page in pages:
            url = page.url.removeprefix("./")
            about = unescape(page.meta["description"]).removeprefix(str(page.title)).strip()
            lines.append(f"- [{page.title}]({root}{url}{NAME}): {about}")
            texts.append(f"<!-- {root}{url} -->\n\n{led(made[url], root)}")
        listed.append("\n".join(lines) + "\n")
    for name, parts in ((INDEX, listed), (FULL, texts)):
        Path(config.site_dir, name).write_text("\n".join(parts), encoding="utf-8")
