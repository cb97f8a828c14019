# SPDX-License-Identifier: Apache-2.0
"""`python -m qdqtool` and the console script `qdqtool`."""

import gc
import os
import signal
import sys

# An index of a large graph is millions of small objects that all live to the end: looking for garbage among them at
# every 700 new ones takes up to a quarter of the time.
_NEW_OBJECTS = 100_000

# NumPy's matrix products sum in another order for each number of threads, so that the bytes of `prune` would depend on
# how many cores there are; and its threads wait by turning, four times the CPU seconds of one. Read when NumPy loads.
_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def run(*, limited: bool = False) -> None:
    """Run the command line and exit with its code; `limited` as of `main`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell lets us ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # before and after a command there is nothing to clean up
    gc.set_threshold(_NEW_OBJECTS, 50, 100)
    from qdqtool.cli.main import main

    for name in _BLAS_THREADS:
        os.environ.setdefault(name, "1")
    code = main(sys.argv[1:], limited=limited)
    gc.freeze()  # what is left goes with the process: the interpreter would look for garbage in it several times
    sys.exit(code)


if __name__ == "__main__":
    run()
