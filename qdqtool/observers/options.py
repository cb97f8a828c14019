# SPDX-License-Identifier: Apache-2.0
"""What the user may say about a calibration, and what holds where nothing is said. `-h` reads this: no onnx here."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtool.data.options import count_bytes
from qdqtool.options import option
from qdqtool.runtime.execution import ExecutionOptions
from qdqtool.threads import MOST_THREADS, usable_cores

LONG_RUNS = "long runs and many machines"  # title of a group of options
_AUTO_WORKERS = 8
_DIGITS = 18  # of a number of workers


def read_workers(text: str) -> int:
    """The number of workers that a number or `auto` is.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if text == "auto":
        return min(usable_cores(), _AUTO_WORKERS)
    if not text.isdecimal() or len(text) > _DIGITS or not 1 <= int(text) <= MOST_THREADS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of workers, 1 to {MOST_THREADS}, or auto")
    return int(text)


@dataclass(frozen=True)
class CalibrationOptions(ExecutionOptions):
    """How scales are found.

    Attributes:
        method: auto, mse, max, percentile[=99.99], entropy (TensorRT's) or entropy-stable; "" for the default of who is
            asked, see `with_method` and `default_method`.
        where: what messages call the model.
        beside: another method, whose predicted loss the table tells beside the chosen one's; not `entropy`.
        workers: threads that share one session; the scales are the same for any number.
        max_memory: the most that the arrays of the batches at work and the histograms may take, in bytes; the tensors
            are then fetched in as many walks over the data as that needs.
        checkpoint: a file to keep the work in; see checkpoint.py. It stays there when all is done.
        resume: whether a checkpoint that is there is continued.
        derive: whether histograms that follow exactly from others are derived; False counts every tensor itself.
        inner: whether tensors inside what is fused (before a BatchNormalization, before a Relu) get scales that follow
            from what comes out, and are not fetched; not with `entropy`, which does as TensorRT does, nor without
            `derive`.
        candidates: whether the table lists what `auto` tried for each point and what its consumers lose with it.
    """

    method: str = ""
    where: str = "model"
    beside: str = ""
    workers: int = option(
        1, "--workers", "threads that run the model, or auto (default %(default)s)", metavar="W", read=read_workers
    )
    max_memory: int | None = option(
        None,
        "--max-memory",
        "memory limit for activations and histograms; more passes over the data where needed",
        metavar="BYTES",
        read=count_bytes,
    )
    checkpoint: Path | None = option(
        None, "--checkpoint", "save the progress in F while running", metavar="F", read=Path, group=LONG_RUNS
    )
    resume: bool = option(False, "--resume", "continue from --checkpoint, if the file exists", group=LONG_RUNS)
    derive: bool = True
    inner: bool = True
    candidates: bool = option(False, "--candidates", "with --method auto: print the candidates tried for each tensor")


def with_method(options: CalibrationOptions | None, method: str = "mse") -> CalibrationOptions:
    """The options, with this method where they name none."""
    options = options or CalibrationOptions()
    return options if options.method else replace(options, method=method)
