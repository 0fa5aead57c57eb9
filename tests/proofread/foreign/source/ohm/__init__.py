"""Resistors, and what flows through them."""

from .laws import current, parallel, series

__all__ = ["current", "parallel", "series"]
