"""Words that several modules share: names of promises, and what names of arguments say, which alone decide nothing."""

from __future__ import annotations

import re

__all__ = ["ALONE", "HIDES", "HIDES_NOT", "ITEMS", "KEPT", "LENGTHS"]

ALONE, ITEMS = "batch items independent", "no item reaches another"  # of a layer, and of a model
KEPT = "calls do not change each other"

HIDES = re.compile(r"(?i)mask|pad|valid|allow|visible|hidden|keep|alive|exist|present|real|observed")
HIDES_NOT = re.compile(r"(?i)prefix|prompt|segment|type|loss|label|random|noise|hidden_?(state|size|dim)")
LENGTHS = re.compile(r"(?i)length|lens?$|sizes?$|num_|^n_|counts?$")
