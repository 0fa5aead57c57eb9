"""Pages for readers: HTML, notebooks, scripts, a site."""
