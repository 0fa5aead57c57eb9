"""What the pages draw, each figure in a module of its own."""

__all__: list[str] = []
