"""How well one color can be told from another, as the guidelines for accessible pages (WCAG) measure it."""

from typing import Any

from matplotlib.colors import to_rgb


def luminance(color: Any) -> float:
    """The relative luminance of a color: a name, #rgb, #rrggbb, or three numbers from 0 to 1."""
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: Any, other: Any) -> float:
    """From 1, of a color with itself, to 21, of black with white."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)
