"""How whoever takes a notebook or a program of a page gets the packages that the page documents."""

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Installing:
    """How the packages are installed.

    Attributes:
        packages: The packages.
        arguments: The arguments of pip, ready for a shell; "" if nobody knows. One that begins with -e holds in a
            clone of the sources alone.
    """

    packages: Sequence[str] = ()
    arguments: str = ""

    @property
    def in_clone(self) -> bool:
        """Whether it holds in a clone of the sources alone."""
        return self.arguments.startswith("-e ")

    def cell(self) -> str:
        """The code that installs in a notebook what is missing, or tells how it is done; "" if there is no way.

        >>> print(Installing(["ohm"], "ohm").cell())
        import importlib.util
        <BLANKLINE>
        if importlib.util.find_spec("ohm") is None:
            %pip install --quiet ohm
        """
        if not (self.packages and self.arguments):
            return ""
        missing = " or ".join(f'importlib.util.find_spec("{package}") is None' for package in self.packages)
        told = f"install {' and '.join(self.packages)}: in a clone of the sources, pip install {self.arguments}"
        does = f"raise ModuleNotFoundError({told!r})" if self.in_clone else f"%pip install --quiet {self.arguments}"
        return f"import importlib.util\n\nif {missing}:\n    {does}"

    def headed(self, program: str) -> str:
        r"""A program that has in its second line how what it imports is installed, if it imports any of the packages.

        >>> print(Installing(["ohm"], "-e .").headed("# page.py, cell 1\nimport ohm"))
        # page.py, cell 1
        # In a clone of the sources: pip install -e .
        import ohm
        """
        imported = r"^\s*(?:import|from)[ ]+(?:{})\b".format("|".join(map(re.escape, self.packages)))
        if not (self.packages and self.arguments and re.search(imported, program, re.MULTILINE)):
            return program
        origin, _, code = program.partition("\n")
        where = "In a clone of the sources: " if self.in_clone else ""
        return f"{origin}\n# {where}pip install {self.arguments}\n{code}"


UNKNOWN = Installing()
