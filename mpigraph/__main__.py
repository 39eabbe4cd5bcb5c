"""``python -m mpigraph``: see :mod:`mpigraph.cli.main`."""

import sys

from mpigraph.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
