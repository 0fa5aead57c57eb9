"""What the pages compute: tables, small trainings, and measurements of layers, their own and others'."""

__all__: list[str] = []
