"""The site's colors."""

AMBER, TEAL, VIOLET = "#c8702a", "#2f8f8c", "#8a6fb0"
