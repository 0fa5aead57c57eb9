"""Runs of pages: what is to run, the server that runs it, and what is kept of it."""
