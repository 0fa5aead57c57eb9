"""The words that figures in the browser compute with: the site serves them, and a browser reads what Python reads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from .conftest import Open

ROOT = Path(__file__).parents[2]


def test_the_script_of_the_vectors_readme_reads_each_number_as_python_does(opened: Open):
    readme = (ROOT / "src/unmasked_lessons/data/README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```js\n(.*?)```", readme, re.DOTALL)
    read = f"async () => {{ {script}; const all = words.split(' '); return JSON.stringify([all, all.map(vector)]) }}"
    words, vectors = json.loads(opened().evaluate(read))
    header, _, numbers = (ROOT / "src/unmasked_lessons/data/glove.6B.50d.u8").read_bytes().partition(b"\n")
    told = json.loads(header)
    assert words == told["words"].split(" ")
    steps = np.frombuffer(numbers, np.uint8).reshape(len(words), 50)
    np.testing.assert_allclose(vectors, np.array(told["low"]) + np.array(told["step"]) * steps, rtol=0, atol=1e-12)
