"""The exercises of the pages on PyTorch."""
