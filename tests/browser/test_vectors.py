"""The words that figures in the browser compute with: the site serves them, and a browser reads what Python reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]


def test_the_script_of_the_vectors_readme_reads_each_number_as_python_does(browser: Browser, address: str):
    readme = (ROOT / "src/unmasked/data/README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```js\n(.*?)```", readme, re.DOTALL)
    page = browser.new_page()
    page.goto(address)
    found = page.evaluate(f"async () => {{ {script}; return words.split(' ').map((word) => [word, vector(word)]) }}")
    page.close()

    header, _, numbers = (ROOT / "src/unmasked/data/glove.6B.50d.u8").read_bytes().partition(b"\n")
    told = json.loads(header)
    words = told["words"].split(" ")
    assert [word for word, _ in found] == words
    assert len(numbers) == len(words) * 50
    for place, (_, vector) in enumerate(found):
        row = numbers[50 * place : 50 * place + 50]
        expected = [low + step * x for low, step, x in zip(told["low"], told["step"], row, strict=True)]
        assert vector == pytest.approx(expected, rel=0, abs=1e-12)
