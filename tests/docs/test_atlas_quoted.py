"""What pages say of many models at once quotes the atlas, and is held to its record."""

import ast
import re
from pathlib import Path

import pytest

from proofread.pages.page import find_pages, read

DOCS = Path(__file__).parents[2] / "docs"
GENERAL = re.compile(r"(?<!how )\b(most|many|few|all|nearly all) (decoders|encoders|models)\b", re.IGNORECASE)
# Sentences of this form about something else, each by its words and why the atlas has nothing to say about it.
OTHERS = {
    "For most models a rare word is several tokens": "of tokens, which come before a model",
    "Many models mask with torch.finfo(dtype).min": "of a number in their code, which no trial asks",
    "so most models give a head 64": "of published sizes, by the papers that are named there",
}


def plain(text: str) -> str:
    """Words alone: directives and marks left out."""
    return " ".join(re.sub(r"<!--.*?-->|[*`]|\[|\]\([^)]*\)", "", text, flags=re.DOTALL).split())


def quoted(source: str) -> set[str]:
    """What asserts of a page quote whose condition asks the atlas."""
    found = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Assert)]
    return {
        plain(each.msg.value)
        for each in found
        if isinstance(each.msg, ast.Constant)
        and "atlas" in {x.id for x in ast.walk(each.test) if isinstance(x, ast.Name)}
    }


def unheld(prose: str, held: set[str]) -> list[str]:
    """The sentences about many models that no such assert quotes."""
    sentences = re.split(r"(?<=[.:?!])\s+(?=[A-Z*])|\n\s*\n", re.sub(r"<!--.*?-->", "", prose, flags=re.DOTALL))
    sentences = [each for each in sentences if not each.startswith("#")]
    general = [plain(each) for each in sentences if GENERAL.search(plain(each))]
    known = {*held, *OTHERS}
    return [each for each in general if not any(words in each for words in known)]


PAGES = [path for path in find_pages([DOCS]) if path.suffix == ".py"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_a_sentence_about_many_models_is_held_to_the_atlas(path: Path) -> None:
    cells = read(path, DOCS.parent).cells
    prose = "\n\n".join(cell.source for cell in cells if not cell.is_code)
    told = "count it in the atlas, and quote it in an assert: assert atlas.share(trait, kind) > 0.5"
    assert unheld(prose, quoted(path.read_text(encoding="utf-8"))) == [], told


def test_what_is_left_out_is_said_somewhere() -> None:
    prose = plain("\n".join(re.sub(r"(?m)^# ?", "", path.read_text(encoding="utf-8")) for path in PAGES))
    assert [words for words in OTHERS if words not in prose] == []


def test_a_sentence_that_nothing_holds_is_found() -> None:
    said = "Most models share *keys*<!--~ a note -->. A model turns. Few encoders do."
    assert unheld(said, set()) == ["Most models share keys.", "Few encoders do."]
    source = 'assert atlas.share("grouped") > 0.5, "Most models share *keys*"\nassert 1 < 2, "Few encoders do"'
    assert unheld(said, quoted(source)) == ["Few encoders do."]
