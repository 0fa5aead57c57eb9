"""The exercises of the pages: they judge a reader's answer, and say what is wrong with it.

``check("causal-mask", answer)`` tries the answer on inputs whose sizes all differ and says what is right or wrong,
with the smallest input that shows it. Each module here holds the exercises of one page, in the folder
that the page is in.
"""

from unmasked_lessons.exercises._check import Feedback, Wrong, check, exercises

__all__ = ["Feedback", "Wrong", "check", "exercises"]
