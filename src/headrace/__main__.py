"""The command line: `headrace COMMAND`, or `python -m headrace COMMAND`."""

import sys

from headrace.cli import main as main

if __name__ == "__main__":
    sys.exit(main())
