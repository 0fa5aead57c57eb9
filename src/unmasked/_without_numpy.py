"""Imports PyTorch, which would warn where there is no NumPy: the library does without it, as PyTorch does."""

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)
    import torch  # noqa: F401
