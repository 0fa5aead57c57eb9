"""What a caption or an alternative text compares, an assert of its page proves: nobody else looks at what it says."""

from pathlib import Path

import pytest

from proofread.checks.checked import opened
from proofread.checks.unproved import unproved
from proofread.pages.page import find_pages
from proofread.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = find_pages([ROOT / "docs"])


def comparing(page: Path, root: Path, settings: Settings) -> list[str]:
    """The sentences of captions and alternative texts that compare, and that no claim quotes."""
    said = unproved(opened(page, root, settings))
    return [f"{each.line}: {each.words}" for each in said if each.where != "prose" and each.compares]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_caption_or_alternative_text_that_compares_is_quoted(page: Path):
    told = "prove it by an assert that quotes a clause of it, and none of what is computed there"
    assert comparing(page, ROOT, Settings.load(ROOT)) == [], told


def test_each_sentence_of_a_caption_needs_its_own_claim(tmp_path: Path):
    page = tmp_path / "page.py"
    caption = "The second is larger. Both have {{ n }}, and the first falls."
    source = (
        f'# %%\n#| alt: two bars, the second twice the first\n#| caption: {caption}\nn = 2\n\n# %% tags=["claims"]\n'
    )
    page.write_text(source + 'assert n > 1, "The second is larger"\nassert n > 1, "the second twice the first"\n')
    (told,) = comparing(page, tmp_path, Settings())
    assert told.startswith("3: Both have")
