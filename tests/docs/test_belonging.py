"""Where the site belongs: what it links to if the environment says so, and that it is whole without."""

from __future__ import annotations

import json
import os
import re
import shlex
import struct
import subprocess
import sys
import tomllib
from collections.abc import Callable
from html import unescape
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest
import yaml
from fontTools.ttLib import TTFont
from mkdocs.config import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from PIL import Image, ImageChops

from ..conftest import pages
from ..running import ROOT, build
from .hooks import hook
from .links import Site, of_texts

belonging, pictures = hook("belonging"), hook("pictures")

NAME = "attention-unmasked"
ADDRESS, REPOSITORY = "https://someone.github.io/unmasked/", "https://github.com/someone/unmasked"
GITHUB = {"SITE_URL": ADDRESS, "REPO_URL": REPOSITORY, "EDIT_URI": "edit/main/docs/", "REVISION": "0a1b2c"}
WORKFLOW = (ROOT / ".github/workflows/site.yml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def known(once: Callable[..., Path]) -> Path:
    """The site where the environment says where it belongs."""

    def make(folder: Path) -> None:
        assert build(ROOT, folder, "--strict", **GITHUB) == ""

    return once("site-known", make)


def found(pattern: str, html: str) -> list[str]:
    return [unescape(each) for each in re.findall(pattern, html)]


def test_with_an_address_each_page_says_where_it_is_and_how_it_looks_when_shared(known: Path):
    listed = found(r"<loc>(.*?)</loc>", (known / "sitemap.xml").read_text())
    for where, html in pages(known).items():
        if where == "404.html":
            continue
        assert found('<link rel="canonical" href="(.*?)">', html) == [ADDRESS + where]
        assert ADDRESS + where in listed
        told = dict(re.findall(r'<meta (?:property|name)="(og:\w+|twitter:card|description)" content="(.*?)">', html))
        assert told["og:url"] == ADDRESS + where
        assert told["og:description"] == told["description"]
        assert told["og:title"]
        assert told["og:image"] == ADDRESS + where + pictures.PICTURE


def test_each_page_has_a_picture_of_its_own_for_those_who_share_it_and_nothing_on_it_is_cut(known: Path):
    drawn = {where: known / where / pictures.PICTURE for where in pages(known) if where != "404.html"}
    assert len({file.read_bytes() for file in drawn.values()}) == len(drawn)
    for where, file in drawn.items():
        with Image.open(file) as picture:
            assert (picture.format, picture.size) == ("PNG", (1200, 630))
            paper = Image.new("RGB", picture.size, "#fffdf8")
            left, top, right, bottom = ImageChops.difference(picture.convert("RGB"), paper).getbbox()
            assert min(left, top, 1200 - right, 630 - bottom) >= 20, where


def test_with_an_address_whatever_the_site_asks_for_is_there(known: Path):
    assert Site(known, ADDRESS).dead() == []


def test_with_an_address_pages_as_markdown_lead_on_from_wherever_they_are_read(known: Path):
    files = [*known.rglob("index.md"), known / "llms.txt", known / "llms-full.txt"]
    assert len(files) == len(pages(known)) + 1  # without that of what is missing
    led = 0
    for file in files:
        targets = of_texts(file.read_text(encoding="utf-8"))
        assert [target for target in targets if not re.match("https?://|mailto:", target)] == [], file
        led += sum(target.startswith(ADDRESS) for target in targets)
    assert led > 2 * len(files)


def test_with_a_repository_each_page_leads_to_it(known: Path):
    for where, html in pages(known).items():
        if where == "404.html":
            continue
        assert f'href="{REPOSITORY}"' in html
        (edit,) = set(found(f'href="({REPOSITORY}/edit/[^"]*)"', html))
        assert (ROOT / edit.removeprefix(f"{REPOSITORY}/edit/main/")).exists(), edit
        assert found(f'href="({REPOSITORY}/issues/new[^"]*)"', html)
        colab = found(r'href="(https://colab\.research\.google\.com/[^"]*)"', html)
        assert bool(colab) is edit.endswith(".py")
        for each in colab:
            branch = "https://colab.research.google.com/github/someone/unmasked/blob/gh-pages/"
            assert (known / each.removeprefix(branch)).exists()
    assert f"url = {{{REPOSITORY}}}" in text(pages(known)["install/"])


def text(html: str) -> str:
    """What a page says, without its tags."""
    return unescape(re.sub(r"<[^>]*>", "", html))


def installers(notebook: Path) -> str:
    """What a notebook says of installing."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"][:2]
    sources = ["".join(cell["source"]) for cell in cells]
    return "\n".join(source for source in sources if "pip install" in source)


def programs(folder: Path) -> dict[str, str]:
    """The programs of cells that take the library, by their places."""
    found = {str(path): path.read_text() for path in folder.rglob("cell-*.py")}
    return {where: program for where, program in found.items() if re.search(r"(?m)^(from|import) unmasked\b", program)}


def test_with_an_address_all_that_installs_names_a_wheel_that_the_site_serves(known: Path):
    said = {
        name: text((known / name / "index.html").read_text()) for name in ("install", "doctor", "proofread/elsewhere")
    }
    notebooks = sorted(known.rglob("*.ipynb"))
    said |= {str(path): installers(path) for path in notebooks} | programs(known)
    assert len(notebooks) > 20
    assert len(programs(known)) > 100
    for where, told in said.items():
        named = re.findall(rf"pip install .*?([\w-]+)(?:\[[\w,]*\])? @ {ADDRESS}(wheels/[^\"\s]+)", told)
        assert named, where
        for name, file in named:
            assert (known / unquote(file)).name.startswith(f"{name.replace('-', '_')}-0"), where
            assert (known / unquote(file)).exists(), where
    assert f'.venv/bin/pip install "{NAME}[plot] @ {ADDRESS}wheels/' in said["install"]
    assert "serves it as a wheel" in said["install"]


def test_without_an_address_all_that_installs_says_that_it_is_for_a_clone(site: Path):
    install, elsewhere = (text((site / name / "index.html").read_text()) for name in ("install", "proofread/elsewhere"))
    begins = r"In the folder of this site's sources, .*:\s+Linux, macOS\s*Windows, in PowerShell\s+"
    both = r"python3 -m venv .venv\s.*bin/pip install -e {0}\s+python -m venv .venv\s.*Scripts\\pip install -e {0}"
    assert re.search(begins + both.format(r"\"\.\[plot\]\""), install)
    for folder, separator in (("bin", "/"), ("Scripts", "\\")):
        assert f".venv{separator}{folder}{separator}mkdocs serve" in install.partition("Run this site")[2]
    assert "as a wheel" not in install.partition("Copy and run")[0]
    assert re.search(r"in a clone of this site's repository:\s+pip install \"\./src/proofread\[mkdocs\]\"", elsewhere)
    told = 'in a clone of the sources, pip install -e ".[parallel,plot]"'
    for notebook in site.rglob("*.ipynb"):
        assert told in installers(notebook), notebook
    for program in programs(site).values():
        assert program.split("\n")[1] == '# In a clone of the sources: pip install -e ".[parallel,plot]"'


def test_the_readme_gives_its_two_commands_to_both_shells():
    given = re.findall(r"```(sh|powershell)\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert [shell for shell, _ in given] == ["sh", "powershell"] * 2
    for (_, commands), (_, theirs) in zip(given[::2], given[1::2], strict=True):
        assert theirs == belonging.powershell(commands)
        assert "/bin/" not in theirs
        assert re.search(r"(?m)^\.venv\\Scripts\\(mkdocs serve|pytest -n auto)$", theirs)


def test_each_heading_of_the_reference_leads_to_the_lines_of_its_source(known: Path):
    names = 0
    for where, html in pages(known).items():
        links = re.findall(
            rf'href="{REPOSITORY}/blob/0a1b2c/(src/[^"#]*)#L(\d+)-L(\d+)" aria-label="Source of unmasked\.([\w.]+)"',
            html,
        )
        headings = found(r'<h\d id="unmasked\.([\w.]+)" class="doc doc-heading">', html)
        linked = {name for *_, name in links}
        assert {*headings} == linked
        for file, first, last, name in links:
            lines = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(first) - 1 : int(last)]
            if name.rpartition(".")[0]:
                assert re.search(
                    rf"^ *((async )?def|class)? ?{name.rpartition('.')[2]}\b", "\n".join(lines), re.MULTILINE
                ), (where, name)
                names += 1
    assert names > 60


def test_the_reference_names_no_private_module(known: Path):
    reference = {where: html for where, html in pages(known).items() if where.startswith("reference/")}
    assert len(reference) > 20
    assert [where for where, html in reference.items() if "unmasked._" in html] == []


def test_the_page_for_what_is_missing_takes_its_style_from_where_the_site_is(known: Path, site: Path):
    missing = pages(known)["404.html"]
    linked = found(r'(?:href|src)="(/[^"]*)"', missing)
    assert any("site.css" in each for each in linked)
    for each in linked:
        assert each.startswith("/unmasked/"), each
        file = known / each.removeprefix("/unmasked/").partition("#")[0]
        assert (file / "index.html").exists() if each.endswith("/") else file.exists(), each
    assert 'href="/learn/attention/"' in pages(site)["404.html"]


def test_without_an_environment_the_site_links_to_nobody(site: Path, known: Path):
    without = pages(site)
    assert without.keys() == pages(known).keys()
    for where, html in without.items():
        assert found(r"(og:\w+|rel=.canonical|rel=.edit|issues/new|colab\.research|md-source)", html) == [], where
    assert [*site.rglob(pictures.PICTURE)] == []
    assert "not published on PyPI yet" in text(without["install/"])


def test_each_page_describes_itself(site: Path):
    told = {where: found('<meta name="description" content="(.*?)">', html) for where, html in pages(site).items()}
    del told["404.html"]
    assert {where for where, said in told.items() if len(said) != 1 or not 40 <= len(said[0]) <= 300} == set()
    assert len({said[0] for said in told.values()}) == len(told)


def test_a_description_is_what_the_page_says_first():
    html = '<h1>Why?</h1><p class="a">2 min</p><p><strong>No &amp; yes.</strong> It <em>is</em>.</p><p>More.</p>'
    assert belonging.about(html, "Why?") == "Why? No & yes. It is."
    assert belonging.about(f"<h1>A</h1><p>{'Long ' * 20}v1.2. And on.</p>", "A") == f"{'Long ' * 20}v1.2."
    assert belonging.about("<h1>Nothing</h1>", "Nothing") == ""


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("unmasked.masks.causal", "@checked", "return "),
        ("unmasked_doctor.diagnose", "def diagnose(", ""),
        ("unmasked_doctor.Report.ok", "@property", "return "),
        ("unmasked.masks", '"""Who may see whom', ""),
    ],
)
def test_the_place_of_a_name_is_found_where_it_is_written(name: str, first: str, last: str):
    file, begin, end = belonging.place(name, ROOT / "src")
    lines = file.read_text(encoding="utf-8").splitlines()
    assert lines[begin - 1].strip().startswith(first)
    assert last in lines[end - 1]


def test_a_name_that_is_nowhere_has_no_place():
    assert belonging.place("unmasked.masks.nothing", ROOT / "src") is None
    assert belonging.place("nowhere.at.all", ROOT / "src") is None


WHEELS = {NAME: "wheels/attention_unmasked-1.whl", "proofread-docs": "wheels/proofread_docs-1.whl"}


def at_home(pypi: str = "", repository: str | None = None, address: str | None = None) -> MkDocsConfig:
    """The site's configuration, where the environment says this of the library."""
    config = load_config(str(ROOT / "mkdocs.yml"))
    config.extra["pypi"], config.repo_url, config.site_url = pypi, repository, address
    config.extra["wheels"] = WHEELS
    return config


@pytest.mark.parametrize("repository", [None, REPOSITORY])
@pytest.mark.parametrize("address", [None, ADDRESS])
@pytest.mark.parametrize("pypi", ["", "yes"])
def test_what_the_library_is_installed_from_is_said_by_the_environment(
    pypi: str, address: str | None, repository: str | None
):
    config = at_home(pypi, repository, address)
    from_site = address and f"{NAME}[plot] @ {ADDRESS}{WHEELS[NAME]}"
    from_repository = repository and f"{NAME}[plot] @ git+{REPOSITORY}"
    source = (pypi and f"{NAME}[plot]") or from_site or from_repository or f"./{NAME}[plot]"
    anywhere = bool(pypi or address or repository)
    assert belonging.library(config, "[plot]") == source
    assert (f'pip install "{source}"' in belonging.install(config)) is anywhere
    assert ('pip install -e ".[plot]"' in belonging.install(config)) is not anywhere
    assert ("not published" in belonging.published(config)) is not bool(pypi)
    assert ("as a wheel" in belonging.published(config)) is (source == from_site)


@pytest.mark.parametrize("pypi", ["", "yes"])  # which says nothing of proofread
def test_proofread_is_installed_from_the_site_or_else_its_repository_or_else_a_clone(pypi: str):
    told = belonging.checker(at_home(pypi, REPOSITORY, ADDRESS))
    assert f'Install it:\n\n```sh\npip install "proofread-docs[mkdocs] @ {ADDRESS}{WHEELS["proofread-docs"]}"\n' in told
    told = belonging.checker(at_home(pypi, REPOSITORY))
    assert f'"proofread-docs[mkdocs] @ git+{REPOSITORY}#subdirectory=src/proofread"' in told
    assert (ROOT / "src/proofread/pyproject.toml").exists()
    told = belonging.checker(at_home(pypi))
    assert "Install it in a clone of this site's repository:" in told
    assert 'pip install "./src/proofread[mkdocs]"' in told


def test_a_site_that_is_only_looked_at_names_no_address_of_this_machine():
    config = at_home(address="http://127.0.0.1:8001/")  # that of another server
    assert "127.0.0.1" in belonging.install(config)
    config = at_home(address="http://127.0.0.1:8000/some/folder/")  # that of MkDocs'
    assert 'pip install -e ".[plot]"' in belonging.install(config)
    assert "127.0.0.1" not in belonging.install(config) + belonging.checker(config) + belonging.published(config)


STRANGERS = [NAME, f"{NAME}[plot] pytest", f"torch '{NAME}>=0.1'", f'-U "{NAME}[plot]"', NAME.replace("-", "_").title()]


@pytest.mark.parametrize("what", STRANGERS)
def test_a_page_that_installs_a_strangers_package_ends_the_build(what: str):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="doctor.py"), title="", meta={}, is_homepage=False)
    html = f"<p>Text</p><pre><code>pip<span> </span>install {what}\npytest</code></pre>"
    with pytest.raises(PluginError, match=r"^doctor\.py says `pip install .*another's package: write \./"):
        belonging.on_page_content(html, page=page, config=at_home())
    assert belonging.on_page_content(html, page=page, config=at_home(pypi="yes")) == html


def test_the_doctors_workflow_installs_the_library_from_where_it_is():
    page = SimpleNamespace(is_homepage=False, file=SimpleNamespace(src_uri="doctor.py"))
    for config in (at_home(), at_home(repository=REPOSITORY), at_home(address=ADDRESS), at_home(pypi="yes")):
        said = belonging.on_page_markdown((ROOT / "docs/doctor.py").read_text(), page=page, config=config)
        (step,) = re.findall(r"(?m)^# +- (run: .* install .*)$", said)
        *_, library, pytest_ = shlex.split(yaml.safe_load(step)["run"])
        assert (library, pytest_) == (belonging.library(config), "pytest")


def test_nothing_in_the_sources_installs_a_strangers_package():
    folders = ("docs", "src", "tests", ".github", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix != ".pyc"]
    found = []
    for path in [*ROOT.glob("*.md"), *filter(Path.is_file, files)]:
        text = path.read_bytes().decode(errors="replace")
        found += [f"{path}: {line}" for line in text.split("\n") if belonging.strangers(line)]
    assert (len(files) > 300, found) == (True, [])
    for fine in (
        f'"./{NAME}"',
        f'"{NAME}[plot] @ git+{REPOSITORY}"',
        f"{ADDRESS}attention_unmasked-1.whl",
        f'"{NAME}[plot] @ {ADDRESS}{WHEELS[NAME]}"',
        "matplotlib",
    ):
        assert belonging.strangers(f"pip install {fine}") == ""


def test_the_entry_for_bibtex_is_that_of_the_project():
    entry = belonging.cite(load_config(str(ROOT / "mkdocs.yml")))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"version = {{{project['version']}}}" in entry
    assert "title = {Attention Unmasked}" in entry
    assert entry.count("{") == entry.count("}")


def test_what_the_page_says_of_the_font_is_what_the_font_says():
    place = distribution("ziamath").locate_file("ziamath/fonts/STIXTwoMath-Regular.ttf")
    font, page = TTFont(Path(str(place))), (ROOT / "docs/install.md").read_text(encoding="utf-8")
    quoted = " ".join(re.sub(r"<!--.*?-->|^> ?|[<>]", "", page, flags=re.MULTILINE | re.DOTALL).split())
    for number in (0, 13):
        assert font["name"].getDebugName(number) in quoted


def test_the_workflow_says_it_from_githubs_own_variables():
    for name in [*GITHUB, "PYPI"]:
        assert re.search(rf"^      {name}: .*\$\{{\{{ .*(github|vars)\.", WORKFLOW, re.MULTILINE), name
        assert f"!ENV {name}" in (config := (ROOT / "mkdocs.yml").read_text()) or f"!ENV [{name}," in config
    # The branch to which the pages link for Colab is the one that the workflow writes.
    branch = load_config(str(ROOT / "mkdocs.yml")).remote_branch
    assert f"--initial-branch {branch} " in WORKFLOW
    assert re.search(f"git push --force .* {branch}$", WORKFLOW, re.MULTILINE)


@pytest.mark.parametrize("command", ["mkdocs", "mkdocs/__main__.py"])
def test_mkdocs_is_not_preceded_by_what_others_have_to_say(command: str):
    load = f"import sys; sys.argv[0] = {command!r}; from mkdocs.config import load_config; load_config('mkdocs.yml')"
    environment = {name: value for name, value in os.environ.items() if name != "NO_MKDOCS_2_WARNING"}
    done = subprocess.run(
        [sys.executable, "-c", load], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == ""


def test_phones_and_tools_find_the_icon_the_color_and_how_to_cite(site: Path):
    html = pages(site)["learn/attention/"]
    assert len(found('<meta name="theme-color" media="[^"]*" content="(#[0-9a-f]{6})">', html)) == 2
    (icon,) = found('<link rel="apple-touch-icon" href="([^"]*)">', html)
    png = (site / "learn/attention" / icon).read_bytes()
    assert (png[1:4], struct.unpack(">II", png[16:24])) == (b"PNG", (180, 180))
    told = yaml.safe_load((site / "CITATION.cff").read_text(encoding="utf-8"))
    assert told == yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (told["cff-version"], told["version"]) == ("1.2.0", project["version"])
    assert " AND ".join(told["license"]) == project["license"]
    assert told["authors"][0]["name"] in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert 'href="../CITATION.cff"' in pages(site)["install/"]
