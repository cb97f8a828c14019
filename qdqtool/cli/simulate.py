# SPDX-License-Identifier: Apache-2.0
"""`qdqtool simulate`: an INT8 model and data to what TensorRT should compute. Parses arguments and prints results."""

from __future__ import annotations

import argparse

from qdqtool.cli.data import add_data_arguments, data_options_from
from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.output import print_json, print_lines
from qdqtool.verbs.simulate_options import SimulateOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="a Q/DQ model, or a plain one with --cache; it is not changed")
    add_data_arguments(parser, required=True, calibrates=False)
    add_options(parser, SimulateOptions, only=("target", "cache", "trt_version"))
    parser.add_argument("-o", "--output", metavar="OUT", help="write the outputs of every sample to this .npz")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Simulate and say how far the outputs lie from float; faults are raised as QdqError."""
    from qdqtool.verbs.simulate import simulate

    options = options_from(SimulateOptions, args, progress=False if args.quiet else None)
    result = simulate(args.model, args.data, options, data_options_from(args), output=args.output)
    if args.json:
        print_json(result.to_json())
    else:
        print_lines(result.summary(), args)
    return 0
