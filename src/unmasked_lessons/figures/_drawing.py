"""What several drawings share: the site's colours."""

AMBER, TEAL, VIOLET = "#c8702a", "#2f8f8c", "#8a6fb0"
