"""The exercises of the museum's rooms."""

from unmasked_lessons.exercises.museum.index import mysteries

__all__ = ["mysteries"]
