"""Attention in PyTorch, unmasked."""
