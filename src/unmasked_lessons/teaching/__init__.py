"""The small models that pages train: each learns one thing within seconds, and the same each time, from its seed.

While one is made and trained, random numbers come from its seed, on one thread; the caller's random numbers and threads
stay as they were. None of them needs a GPU.
"""

from unmasked_lessons.teaching.riddles import (
    Block,
    PairSolver,
    Stack,
    draw_pairs,
    draw_riddles,
    largest_weights,
    likeness,
    riddles_solved,
)
from unmasked_lessons.teaching.song import Singer, verse
from unmasked_lessons.teaching.translator import translate, translations

__all__ = [
    "Block",
    "PairSolver",
    "Singer",
    "Stack",
    "draw_pairs",
    "draw_riddles",
    "largest_weights",
    "likeness",
    "riddles_solved",
    "translate",
    "translations",
    "verse",
]
