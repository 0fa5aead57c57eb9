"""Imports what pages need before they begin, in the server that they are forks of, or in the process of one page."""

import os
import warnings
from importlib import import_module

from . import asked as asked  # before anything else: it takes note of what is asked for

NAMES = "PROOFREAD_PRELOAD"  # the variable that says what to import

_names = os.environ.pop(NAMES, "").split()
VARIABLES = frozenset(os.environ)  # that we were started with: what is imported may set others
failed = ""  # what kept us from importing it

for _name in _names:
    try:
        if _name.startswith(("proofread.", "IPython")):
            with warnings.catch_warnings():  # they are no page's, even where pages take warnings for errors
                warnings.simplefilter("ignore")
                import_module(_name)
        else:
            import_module(_name)
    except (ImportError, Warning):  # the page that needs it tells where it does
        pass
    except BaseException as error:
        failed = f"the import of {_name} failed with {type(error).__name__}: {error}; mend what is installed, until "
        failed += f'python -c "import {_name}" does not fail'
        break
