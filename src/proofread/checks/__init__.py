"""Checks: what pages say, held against what their runs gave."""
