"""The package as a command, ``python -m unmasked doctor``: the doctor has it."""

import sys
from importlib import import_module

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory, which -m puts there and `python FILE` does not
    sys.exit(import_module("unmasked_doctor._command").main())
