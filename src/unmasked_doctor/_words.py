"""What names of arguments say: that they hide tokens, or count them. A name alone decides nothing."""

from __future__ import annotations

import re

__all__ = ["HIDES", "HIDES_NOT", "LENGTHS"]

HIDES = re.compile(r"(?i)mask|pad|valid|allow|visible|hidden|keep|alive|exist|present|real|observed")
HIDES_NOT = re.compile(r"(?i)prefix|prompt|segment|type|loss|label|random|noise|hidden_?(state|size|dim)")
LENGTHS = re.compile(r"(?i)length|lens?$|sizes?$|num_|^n_|counts?$")
