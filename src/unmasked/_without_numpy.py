"""Imports PyTorch without its warning that NumPy is missing: neither the library nor PyTorch needs NumPy."""

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)
    import torch  # noqa: F401
