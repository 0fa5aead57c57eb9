"""``python -m proofread`` is the command ``proofread``: pages import the same under both."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory, which -m puts there; the setting `imports` names what pages import
    from .cli import main  # whose imports no page may stand in for

    sys.exit(main())
