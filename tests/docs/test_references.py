"""What pages and docstrings quote of papers stands in the data of the references, and the list is made of it."""

import re
import tomllib
from pathlib import Path
from typing import Any

import markdown
import pytest

from .hooks import hook

ROOT = Path(__file__).parents[2]
DATA: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "docs/references.toml").read_text(encoding="utf-8"))
SOURCES = [
    *sorted((ROOT / "docs").rglob("[!.]*.py")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(
        path
        for package in ("unmasked", "unmasked_doctor", "unmasked_lessons")
        for path in sorted((ROOT / "src" / package).rglob("*.py"))
    ),
]
HOOK = hook("references")
WITHOUT_YEAR = {"onnx": "ONNX", "pytorch": "PyTorch"}
# As pages cite: a name, perhaps others or "et al.", and a year, in brackets or behind "et al.".
NAME = r"[A-Z]\w+(?:-\w+)?"
CITED = re.compile(
    rf"(?P<who>{NAME}(?:(?:,| and|, and) {NAME})*)(?P<more> et al\.| Team)?"
    r"(?:,? \((?P<year>(?:19|20)\d\d)\)|(?<=al\.),? (?P<bare>(?:19|20)\d\d))"
)
ENDS = re.compile(r"\n[ \t]*(?:\n|- )")
KINDS = "section|equation|table|footnote|algorithm"
QUOTED = re.compile(rf"\b(?P<kind>{KINDS})s? (?P<numbers>\d[.\d]*(?:(?:,| and|, and) \d[.\d]*)*)", re.IGNORECASE)


def told(source: Path) -> str:
    """What a reader reads, without marks of comments."""
    text = re.sub(r"<!--.*?-->", "", source.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"^# ?", "", text, flags=re.MULTILINE)


def quotes(text: str) -> list[tuple[str, str, list[str]]]:
    """What a text cites: the key, how it names the work, and the places of it; the key is "" where none is named."""
    found, names = [], re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
    for part in ENDS.split(text):
        line = " ".join(part.split())
        cited = [*CITED.finditer(line)]
        begins = [0, *(each.start() for each in cited)]
        for each, begin, end in zip([None, *cited], begins, [*begins[1:], len(line)], strict=True):
            places = [
                f"{quoted['kind'].lower()} {number.rstrip('.')}"
                for quoted in QUOTED.finditer(line, begin, end)
                for number in re.findall(r"\d[.\d]*", quoted["numbers"])
            ]
            without = [key for key, name in WITHOUT_YEAR.items() if re.search(rf"\b{name}\b", line[begin:end])]
            if each:
                first = names.match(each["who"])
                assert first
                found.append((f"{first[0].lower()}-{each['year'] or each['bare']}", line[begin:end], places))
            elif places:
                found.append((without[0] if without else "", line[begin:end], places))
    return found


def faults(text: str) -> list[str]:
    """What a text cites otherwise than the data has it."""
    found = []
    for key, said, places in quotes(text):
        entry = DATA.get(key)
        if entry is None:
            found.append(f"{key or 'nobody'} is not in .references.toml: {said[:60]}")
            continue
        found += [f"{key} has no {place}" for place in places if place not in entry.get("quoted", {})]
        surnames = re.findall(r"([^\W\d_][\w-]+), (?:\w|Ł)", entry["authors"]) or [
            entry["authors"].removesuffix(" Team")
        ]
        cited = CITED.match(said)
        named = re.findall(NAME, cited["who"]) if cited else []
        if cited and (not {*named} <= {*surnames} or (not cited["more"] and named != surnames)):
            found.append(f"{key} is by {entry['authors']}, not by {cited['who']}")
        title = re.match(r"[^*]{0,40}?\*([^*]+)\*", said[cited.end() if cited else 0 :])
        if cited and title and not entry["title"].casefold().startswith(title[1].rstrip(".").casefold()):
            found.append(f"{key} is called {entry['title']}, not {title[1]}")
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_source_cites_is_in_the_data(source: Path) -> None:
    assert faults(told(source)) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("By Vaswani et al. (2017), section 3.2.2.", []),
        ("Vaswani et al. (2017), *Attention is all you need*: sections 3.2.1 and 3.2.3, equation 1; see (1.4).", []),
        ("Vaswani et al. (2017), section 3.2.4 and footnote\n4, equations 1 and 2", ["section 3.2.4", "equation 2"]),
        ("(Vaswani et al. 2017, equation 3)", ["equation 3"]),
        ("Yang et al. (2021) divide. Glorot and Bengio (2010), section 3.2.1", ["section 3.2.1"]),
    ],
)
def test_a_place_that_the_data_lacks_is_found(text: str, fault: list[str]) -> None:
    assert [each.partition(" has no ")[2] for each in faults(text)] == fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "Vaswani et al. (2018), section 3.2",
            "vaswani-2018 is not in .references.toml: Vaswani et al. (2018), section 3.2",
        ),
        ("As said (section 3.2.2).", "nobody is not in .references.toml: As said (section 3.2.2)."),
        ("Glorot and Benigo (2010)", "glorot-2010 is by Glorot, X., and Bengio, Y., not by Glorot and Benigo"),
        ("Glorot (2010)", "glorot-2010 is by Glorot, X., and Bengio, Y., not by Glorot"),
        ("Zaheer et al. (2017), *Deep Bags*", "zaheer-2017 is called Deep Sets, not Deep Bags"),
    ],
)
def test_a_work_that_the_data_has_otherwise_is_found(text: str, fault: str) -> None:
    assert faults(text) == [fault]


def test_what_the_data_has_is_cited_and_in_the_order_of_the_alphabet() -> None:
    assert list(DATA) == sorted(DATA)
    every = [quote for source in SOURCES for quote in quotes(told(source))]
    everything = " ".join(map(told, SOURCES))
    assert {*DATA} - {key for key, _, _ in every} == {key for key, name in WITHOUT_YEAR.items() if name in everything}
    for key, entry in DATA.items():
        said = {place for cited, _, places in every if cited == key for place in places}
        assert {*entry.get("quoted", {})} == said, key


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_an_equation_of_a_paper_is_named_with_its_section(source: Path) -> None:
    for key, said, places in quotes(told(source)):
        kinds = [place.partition(" ")[0] for place in places]
        assert "equation" not in kinds or "section" in kinds[: kinds.index("equation")], f"{key}: {said}"


VASWANI = '<a href="https://arxiv.org/abs/1706.03762">'


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<p>By Vaswani et al. (2017), <em>A</em>.</p>", f"<p>By {VASWANI}Vaswani et al. (2017)</a>, <em>A</em>.</p>"),
        ("<li>(Vaswani et al. 2017, section 3)</li>", f"<li>({VASWANI}Vaswani et al. 2017</a>, section 3)</li>"),
        (
            "<p>Bahdanau, Cho and Bengio (2015) and Gemma Team (2024)</p>",
            '<p><a href="https://arxiv.org/abs/1409.0473">Bahdanau, Cho and Bengio (2015)</a> and '
            '<a href="https://arxiv.org/abs/2408.00118">Gemma Team (2024)</a></p>',
        ),
        ("<p>Vaswani et al. (2018)</p>", "<p>Vaswani et al. (2018)</p>"),
        ("<p>Vaswani said so. In 2017</p>", "<p>Vaswani said so. In 2017</p>"),
        ("<pre>Vaswani et al. (2017)</pre>", "<pre>Vaswani et al. (2017)</pre>"),
        ("<h2>Vaswani et al. (2017)</h2>", "<h2>Vaswani et al. (2017)</h2>"),
        ("<p><a href='b'>Vaswani et al. (2017)</a></p>", "<p><a href='b'>Vaswani et al. (2017)</a></p>"),
    ],
)
def test_what_cites_a_work_leads_to_it(html: str, expected: str) -> None:
    assert HOOK.linked(html, DATA) == expected


def test_every_work_that_a_page_cites_can_be_reached_from_there() -> None:
    for source in SOURCES:
        for key, said, _ in quotes(told(source)):
            if key and "year" in DATA[key]:
                assert f'<a href="{DATA[key]["link"]}">' in HOOK.linked(said, DATA), f"{source.name}: {said}"


def test_the_list_is_made_of_the_data() -> None:
    assert HOOK.MARK in (ROOT / "docs/references.md").read_text()
    html = markdown.markdown(HOOK.listed(DATA), extensions=["attr_list"])
    assert re.findall(r'<li id="([^"]+)">', html) == list(DATA)
    begins = (
        '<li id="yang-2021">Yang, G., Hu, E. J., et al. (2021). <a href="https://arxiv.org/abs/2203.03466"><em>Tuning '
    )
    ends = "Hyperparameter Transfer</em></a>. NeurIPS. Scores divided by the size itself.</li>"
    assert re.search(f"{re.escape(begins)}[^<]*{re.escape(ends)}", html)
    assert '<li id="gemma-2024">Gemma Team (2024).' in html
    assert '<li id="onnx">ONNX. <a ' in html
