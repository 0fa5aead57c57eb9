"""The signs that formulas may have, as the parser knows them; the documentation has an example for each."""

from .expressions import AROUND, BIG, CONSTANTS, PRODUCTS
from .tokens import FRACTIONS, FUNCTIONS, RELATIONS

SIGNS = frozenset({*RELATIONS, *FRACTIONS, *PRODUCTS, *BIG, *AROUND, *CONSTANTS})
SIGNS |= {r"\sqrt", r"\partial", "'", *FUNCTIONS}
