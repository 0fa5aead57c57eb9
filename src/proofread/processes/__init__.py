"""Processes of pages and programs: how they are set up and ended, how their output is captured."""
