"""``python -m proofread`` is the command ``proofread``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
