"""`python -m naiad`: the command line. Nothing lives here; see `naiad.cli`."""

import sys

from naiad.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
