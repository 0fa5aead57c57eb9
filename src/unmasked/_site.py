"""Where the pages are that tell more: known to a wheel that a site serves, and to whoever says so."""

import os
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import TypeVar

import torch

__all__ = ["address", "noted"]

Error = TypeVar("Error", bound=Exception)


def address(link: str) -> str:
    """The address of a page, given from the site's root: that of ``SITE_URL``, or else of the site with the wheel.

    Where neither is known it is the link.
    """
    site = os.environ.get("SITE_URL") or _documentation()
    return f"{site.rstrip('/')}/{link}" if site else link


def noted(error: Error, link: str) -> Error:
    """The error, with a note that leads to the page about such a mistake, where its address is known."""
    if not torch.compiler.is_compiling() and (where := address(link)) != link:
        error.add_note(f"See {where}")
    return error


@cache
def _documentation() -> str:
    """Where the library's own metadata say that its pages are; "" where they do not, or it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        for each in metadata.metadata("attention-unmasked").get_all("Project-URL") or []:
            name, _, url = each.partition(", ")
            if name == "Documentation":
                return str(url)
    return ""
