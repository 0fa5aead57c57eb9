"""Pages: what they hold, and what their prose claims."""
