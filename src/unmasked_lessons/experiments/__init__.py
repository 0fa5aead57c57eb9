"""The computations of the pages: tables, small trainings, and measurements of the library's layers and PyTorch's."""

__all__: list[str] = []
