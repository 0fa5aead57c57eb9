"""Demands the distributions that publishing takes and checking does not: the extra `mkdocs` of the package."""

import re
from importlib import metadata

from ..keep.installed import distributions, normal

_NAME = re.compile(r"([\w.-]+).*;.*\bextra == ['\"]mkdocs['\"]")


class MissingError(RuntimeError):
    """Something of the extra is not installed."""


def demand() -> None:
    """Refuse to begin what could not be ended.

    Raises:
        MissingError: Something of the extra is not installed; says what, and how to install it.
    """
    named = filter(None, map(_NAME.match, metadata.requires("proofread-docs") or []))
    if missing := [found[1] for found in named if normal(found[1]) not in distributions()]:
        message = f"publishing takes what is not installed: {', '.join(missing)}"
        raise MissingError(f"{message}; install proofread with its extra, [mkdocs]")
