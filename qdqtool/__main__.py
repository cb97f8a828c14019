# SPDX-License-Identifier: Apache-2.0
"""`python -m qdqtool` and the console script `qdqtool`."""

import gc
import sys

from qdqtool.cli.main import main

# An index of a large graph is millions of small objects that all live to the end: looking for garbage among them at
# every 700 new ones takes up to a quarter of the time.
_NEW_OBJECTS = 100_000


def run() -> None:
    """Run the command line and exit with its code."""
    gc.set_threshold(_NEW_OBJECTS, 50, 100)
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
