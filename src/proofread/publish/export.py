"""Exports pages to plain Markdown with their figures as files, which MkDocs builds without any plugin of ours.

The text that authors write for proofread is gone: claims, waivers, comments. All that readers see is there: code,
outputs, figures for light and dark, formulas, links. A page that is a script becomes a Markdown file of the same name.
"""

import contextlib
import functools
import json
import posixpath
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ..checks.check import check
from ..checks.checked import Checked, Report
from ..checks.progress import Progress
from ..pages.page import find_pages
from ..runs.steps import Output
from ..settings import Settings
from . import mathematics as math
from .extra import demand
from .layout import parts
from .notebook import caption, relink, relink_html
from .render import Picture, pictures, shown

# The file that marks a folder as made here, which may be made anew. MkDocs leaves hidden files alone.
_MARK = ".proofread-export"
_TERMINAL = re.compile(r"\x1b\[[\d;]*[@-~]")


class ExportError(ValueError):
    """Pages cannot be exported to where they should."""


def export(
    docs: Path,
    target: Path,
    *,
    root: Path | None = None,
    settings: Settings | None = None,
    keep: bool = True,
    tex: bool = False,
    anyway: bool = False,
    progress: Progress = lambda told: None,
) -> Report:
    """Write all pages of a folder as plain Markdown, with the other files that it holds.

    The target is a folder that is not there, is empty, or was exported before. It appears when it is whole, and, if
    anything is found on the pages, only where it shall anyway; the findings are returned. On a site that sets formulas
    itself, they can stay TeX between dollars, instead of MathML. All else is as `proofread.checks.check` has it.

    Raises:
        ExportError: The target holds something else, two pages would become one file, or a cell shows LaTeX that cannot
            be read.
        MissingError: Formulas shall not stay TeX, and what converts them is not installed.
    """
    if not tex:
        demand("leave formulas as TeX (--tex)")
    docs, target = docs.resolve(), target.resolve()
    _free(target, docs)
    sources = find_pages([docs])
    pages = {source: source.relative_to(docs).with_suffix(".md").as_posix() for source in sources}
    for number, (source, name) in enumerate(pages.items()):
        if name in [*pages.values()][:number]:
            raise ExportError(f"{source} would become {name}, which there is already; rename one of them")
    report = check(sources, root=root, settings=settings, keep=keep, whole=True, progress=progress)
    if not tex:
        math.typeset(report)
    if report.findings and not anyway:
        return report
    made_of = {source: pages[source] for source, each in zip(sources, report.pages, strict=True) if each.mode != "off"}
    with replacing(target, docs) as folder:
        # Hidden files are no part of a site.
        shutil.copytree(
            docs,
            folder,
            ignore=lambda at, names: [n for n in names if n[0] == "." or Path(at, n) in pages],
            dirs_exist_ok=True,
        )
        for checked, (source, name) in zip(report.pages, pages.items(), strict=True):
            if checked.mode == "off":  # as it is
                (folder / source.relative_to(docs)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, folder / source.relative_to(docs))
                continue
            link = functools.partial(_linked, source, made_of)
            try:
                text, files = page(checked, Path(name).stem, tex=tex, link=link)
            except math.MathError as error:
                raise ExportError(f"{checked.page.path}: a cell shows {error}") from None
            place = folder / name
            for file, content in {place: text.encode(), **{place.parent / f: c for f, c in files.items()}}.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
    return report


@contextlib.contextmanager
def replacing(target: Path, docs: Path) -> Iterator[Path]:
    """A folder to write into; it takes the place of the target once it is whole, and never if anything goes wrong.

    Raises:
        ExportError: The target holds something that was not exported, or lies in the docs.
    """
    docs, target = docs.resolve(), target.resolve()
    _free(target, docs)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as made:
        folder = Path(made, "new")
        folder.mkdir()
        (folder / _MARK).write_text("Written by `proofread export`, which may write it anew.\n", encoding="utf-8")
        yield folder
        if target.exists():
            target.rename(Path(made, "old"))
        folder.rename(target)


def _free(target: Path, docs: Path) -> None:
    if target.is_relative_to(docs) or docs.is_relative_to(target):
        raise ExportError(f"target ({target}) must not lie in docs ({docs}), nor docs in it; choose a folder beside it")
    if target.exists() and not (target / _MARK).exists() and (not target.is_dir() or any(target.iterdir())):
        what = "holds something that was not exported"
        raise ExportError(f"target ({target}) {what}; remove it or choose another folder")


def _linked(source: Path, pages: dict[Path, str], target: str) -> str:
    """A link of a page; one to a script that is a page leads to what that becomes."""
    path, anchor, fragment = target.partition("#")
    linked, (stem, _) = Path(posixpath.normpath(source.parent / path)), posixpath.splitext(path)
    return f"{stem}.md{anchor}{fragment}" if linked in pages else target


def page(
    checked: Checked, folder: str, *, tex: bool = False, link: Callable[[str], str] = str
) -> tuple[str, dict[str, bytes]]:
    """One page as Markdown, and its figures by name; the folder is where these will lie, seen from the page."""
    drawn, captions = pictures(checked), checked.captions
    pieces: list[str] = []
    inside = ""
    for fold, index, said in parts(checked, lambda cell: checked.of_cell(cell)[0]):
        cell = checked.page.cells[index]
        if fold != inside:
            pieces += ["</details>"] * bool(inside)
            pieces += [f'<details markdown="1">\n<summary>{fold}</summary>'] * bool(fold)
            inside = fold
        if not cell.is_code:
            text = relink(said, link)
            pieces.append((text if tex else _mathml(text, lenient=checked.mode == "run")).strip("\n"))
        else:
            pieces += [cell.fenced or _fenced(cell.shown, "python")] if "hide-input" not in cell.tags else []
            shows = checked.outputs(index) if "hide-output" not in cell.tags else []
            for place, output in enumerate(shows):
                picture = drawn.get((index, place))
                captioned = captions.get((index, place))
                pieces += [f'<a id="figure-{captioned[0]}"></a>'] if captioned else []
                pieces.append(_image(picture, folder) if picture else _output(output, tex, link))
                pieces += [relink(caption(*captioned), link)] if captioned else []
    pieces += ["</details>"] if inside else []
    text = "\n\n".join(piece for piece in pieces if piece)
    return f"{text}\n", {f"{folder}/{name}": data for picture in drawn.values() for name, data in picture.files.items()}


def _output(output: Output, tex: bool, link: Callable[[str], str]) -> str:
    if "text" in output:
        return _fenced(output["text"], "text")
    if "traceback" in output:
        return _fenced("\n".join(output["traceback"]), "text")
    kind = shown(output)
    if kind == "application/json":
        return _fenced(json.dumps(output["data"][kind], indent=2, ensure_ascii=False), "json")
    data = "".join(output["data"].get(kind, ""))
    if kind == "text/html":
        # A blank line would end the HTML, as most Markdown has it.
        html = relink_html(data.strip(), link)
        return "<div>\n" + re.sub(r"^[ \t]*$", "<!-- -->", html, flags=re.MULTILINE) + "\n</div>"
    if kind == "text/markdown":
        data = relink(data, link)
        return data if tex else _mathml(data)
    if kind == "text/latex":
        latex = data.strip() if data.lstrip().startswith("$") else f"$$\n{data.strip()}\n$$"
        return latex if tex else _mathml(latex)
    return _fenced(data, "text")


def _image(picture: Picture, folder: str) -> str:
    alt = re.sub(r"([\\\[\]])", r"\\\1", " ".join(picture.alt.split()))
    # By the fragment Material for MkDocs shows the image of one theme and hides that of the other.
    return "\n".join(
        f"![{alt}]({folder}/{name}{theme and f'#only-{theme}'})"
        for name, theme in zip(picture.files, picture.themes, strict=True)
    )


def _fenced(text: str, language: str) -> str:
    text = _TERMINAL.sub("", text).strip("\n")
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{language}\n{text}\n{ticks}" if text else ""


def _mathml(markdown: str, lenient: bool = False) -> str:
    # A line that begins with a formula of the text would be taken for HTML that stands by itself.
    return re.sub(
        r"^([ \t>]*)(<math .*?</math>)",
        r"\1<span>\2</span>",
        math.render(markdown, lenient=lenient),
        flags=re.MULTILINE,
    )
