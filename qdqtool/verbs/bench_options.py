# SPDX-License-Identifier: Apache-2.0
"""What `bench` is asked for. `-h` reads it: no onnx here."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field

from qdqtool.errors import QdqError
from qdqtool.options import option
from qdqtool.runtime.execution import PROVIDER, PROVIDER_WORDS
from qdqtool.threads import check_threads
from qdqtool.timing.options import Timing
from qdqtool.verbs.build_options import Shape, parse_shape_ranges

_MOST_BATCH = 1 << 16
_DIGITS = 9


def _batches(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) <= _DIGITS for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not batch sizes such as 1,8")
    return tuple(dict.fromkeys(map(int, words)))


def _whole_shapes(text: str) -> dict[str, Shape]:
    shapes = {}
    for name, (low, best, high) in parse_shape_ranges(text).items():
        if low != high:
            raise QdqError(f"--shapes {text}", f"gives a range for {name!r}", "give one shape")
        shapes[name] = best
    return shapes


@dataclass(frozen=True)
class BenchOptions:
    """How models are timed.

    Attributes:
        batches: batch sizes; empty for the model's own, or 1 where that is free.
        shapes: whole shapes of inputs whose sides are open.
        provider: of onnxruntime: cpu, cuda or tensorrt. Engines run by TensorRT.
        threads: of onnxruntime's operators on the CPU; None for as many as there are cores.
        timing: seconds, warm-up, runs.
    """

    batches: tuple[int, ...] = option(
        (), "--batch", "batch sizes (default: the model's own, else 1)", metavar="N,...", read=_batches
    )
    shapes: Mapping[str, Shape] = option(
        MISSING,
        "--shapes",
        "shapes of inputs with dynamic dimensions: x:1x3x320x320, separated by commas",
        metavar="S",
        convert=_whole_shapes,
        default_factory=dict,
    )
    provider: str = option("cpu", PROVIDER)
    threads: int | None = option(
        None, "--threads", "threads of onnxruntime on the CPU (default: all cores)", metavar="N", read=int
    )
    timing: Timing = field(default_factory=Timing)

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        if any(not 1 <= batch <= _MOST_BATCH for batch in self.batches):
            raise QdqError("--batch", f"{min(self.batches)} is not a number of samples", f"give 1 to {_MOST_BATCH}")
        if self.threads is not None:
            check_threads("--threads", self.threads)
        if self.provider not in PROVIDER_WORDS:
            raise QdqError("--provider", f"{self.provider!r} is not one", f"choose one of {', '.join(PROVIDER_WORDS)}")
        timing = self.timing
        if not 0 < timing.seconds <= 3600 or not 0 <= timing.warm_up <= 3600:
            raise QdqError("--seconds or --warm-up", "is not a valid time", "give seconds, up to 3600")
        if timing.runs is not None and timing.runs < 1:
            raise QdqError("--runs", f"{timing.runs} is not a number of runs", "give 1 or more")
