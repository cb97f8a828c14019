# SPDX-License-Identifier: Apache-2.0
"""`qdqtool simulate`: an INT8 model and data to what TensorRT should compute. Words to calls and back, no more."""

from __future__ import annotations

import argparse

from qdqtool.cli.data import add_data_arguments, data_options_from
from qdqtool.cli.output import print_json, print_lines
from qdqtool.target_options import cache_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="a Q/DQ model, or a plain one with --cache; it is not changed")
    add_data_arguments(parser, required=True, calibrates=False)
    parser.add_argument(
        "--target", choices=("gpu", "dla"), type=cache_target, default="gpu", help="whose INT8 (default gpu)"
    )
    parser.add_argument("--cache", metavar="C", help="the calibration cache of a plain model")
    parser.add_argument("--trt-version", metavar="V", help="such as 8502 or jp4.6; default: that of the cache's header")
    parser.add_argument("-o", "--output", metavar="OUT", help="write the outputs of every sample to this .npz")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Simulate and say how far the outputs lie from float; faults are raised as QdqError."""
    from qdqtool.verbs.simulate import SimulateOptions, simulate

    progress = False if args.quiet else None
    options = SimulateOptions(args.target, args.trt_version, args.cache, provider=args.provider, progress=progress)
    result = simulate(args.model, args.data, options, data_options_from(args), output=args.output)
    if args.json:
        print_json(result.to_json())
    else:
        print_lines(result.summary(), args)
    return 0
