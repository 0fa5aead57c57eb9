"""Runs documentation pages and proofreads them."""
