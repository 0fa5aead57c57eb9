"""The figures of the pages, with the scripts that draw in a browser."""

__all__: list[str] = []
