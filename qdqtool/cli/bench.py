# SPDX-License-Identifier: Apache-2.0
"""`qdqtool bench`: models or engines to a table of latencies. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.errors import QdqError

if TYPE_CHECKING:
    from qdqtool.verbs.bench import BenchOptions

_DIGITS = 9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("models", metavar="MODEL", nargs="+", help="ONNX models, or engines (.plan, .engine, .trt)")
    parser.add_argument(
        "--batch", metavar="N,...", type=_batches, default=(), help="batch sizes (default: the model's own, else 1)"
    )
    parser.add_argument(
        "--shapes", metavar="S", help="shapes of inputs with dynamic dimensions: x:1x3x320x320, separated by commas"
    )
    parser.add_argument(
        "--provider",
        choices=("cpu", "cuda", "tensorrt"),
        default="cpu",
        help="execution provider of onnxruntime (default cpu)",
    )
    parser.add_argument(
        "--threads", metavar="N", type=int, help="threads of onnxruntime on the CPU (default: all cores)"
    )
    parser.add_argument(
        "--seconds", metavar="S", type=float, default=2.0, help="seconds measured for each row (default 2)"
    )
    parser.add_argument(
        "--warm-up", metavar="S", type=float, default=0.5, help="seconds of warm-up before that (default 0.5)"
    )
    parser.add_argument("--runs", metavar="N", type=int, help="runs measured for each row, instead of --seconds")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Measure and print; faults are raised as QdqError."""
    from qdqtool.verbs.bench import bench

    result = bench(args.models, _options(args), lambda text: warn(text, args, kind="bench"))
    if args.json:
        print_json(result.to_json())
    else:
        print_lines(result.summary(), args, asked=True)
    return 0


def _options(args: argparse.Namespace) -> BenchOptions:
    from qdqtool.timing.latency import Timing
    from qdqtool.verbs.bench import BenchOptions
    from qdqtool.verbs.build_options import parse_shape_ranges

    shapes = {}
    for name, (low, best, high) in (parse_shape_ranges(args.shapes) if args.shapes else {}).items():
        if low != high:
            raise QdqError(f"--shapes {args.shapes}", f"gives a range for {name!r}", "give one shape")
        shapes[name] = best
    timing = Timing(args.seconds, args.warm_up, args.runs)
    return BenchOptions(args.batch, shapes, args.provider, args.threads, timing)


def _batches(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) <= _DIGITS for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not batch sizes such as 1,8")
    return tuple(dict.fromkeys(map(int, words)))
