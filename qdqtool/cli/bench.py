# SPDX-License-Identifier: Apache-2.0
"""`qdqtool bench`: models or engines to a table of latencies. Parses arguments and prints results."""

from __future__ import annotations

import argparse

from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.timing.options import Timing
from qdqtool.verbs.bench_options import BenchOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("models", metavar="MODEL", nargs="+", help="ONNX models, or engines (.plan, .engine, .trt)")
    add_options(parser, BenchOptions)
    add_options(parser, Timing)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Measure and print; faults are raised as QdqError."""
    from qdqtool.verbs.bench import bench

    options = options_from(BenchOptions, args, timing=options_from(Timing, args))
    result = bench(args.models, options, lambda text: warn(text, args, kind="bench"))
    if args.json:
        print_json(result.to_json())
    else:
        print_lines(result.summary(), args, asked=True)
    return 0
