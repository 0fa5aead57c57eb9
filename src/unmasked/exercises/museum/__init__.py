"""The exercises of the museum's rooms."""

from unmasked.exercises.museum.index import mysteries

__all__ = ["mysteries"]
