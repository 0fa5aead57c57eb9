from __future__ import annotations

import io
from pathlib import Path

import pytest
from fontTools.ttLib import TTFont

from proofread.publish import fonts


def test_the_font_sets_the_formulas_and_knows_how_to_stretch(tmp_path: Path) -> None:
    data = fonts.mathematics(['<math alttext="⊗"><mo>∑</mo><mi>x</mi><mo>&#8804;</mo></math>'], tmp_path)
    font = TTFont(io.BytesIO(data))
    assert {ord(character) for character in "∑x≤(𝑥𝛼√"} <= set(font.getBestCmap())
    assert ord("⊗") not in font.getBestCmap()
    assert "MATH" in font
    assert "STIX" in font["name"].getDebugName(0) + font["name"].getDebugName(4)
    assert len(data) < 100_000


def test_the_font_is_cut_once_for_the_same_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fonts.mathematics(["<math><mi>x</mi></math>"], tmp_path)
    monkeypatch.setattr(fonts, "_subset", lambda characters: pytest.fail("cut again"))
    assert fonts.mathematics(["<math><mi>x</mi><mi>x</mi></math>"], tmp_path) == first
    assert [file.suffix for file in tmp_path.iterdir()] == [".woff2"]
