# SPDX-License-Identifier: Apache-2.0
"""`python -m qdqtool` and the console script `qdqtool`."""

import sys

from qdqtool.cli.main import main


def run() -> None:
    """Run the command line and exit with its code."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
