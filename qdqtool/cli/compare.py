# SPDX-License-Identifier: Apache-2.0
"""`qdqtool compare`: two models and data to how far they lie apart. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qdqtool.cli.data import add_data_arguments, data_options_from
from qdqtool.cli.decode_options import add_reading_arguments, check_drawing, draw_asked, drawn_json, drawn_lines
from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.cli.report_option import add_report_argument, check_report, write_report

if TYPE_CHECKING:
    from qdqtool.verbs.compare import Comparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("reference", metavar="A", help="the reference model, such as the FP32 one")
    parser.add_argument("other", metavar="B", help="the model to compare with it, such as the Q/DQ one")
    add_data_arguments(parser, required=True, calibrates=False)
    parser.add_argument(
        "--tensors", metavar="T", default="all", help="all (default), outputs, or a regular expression on names"
    )
    parser.add_argument("--top", metavar="N", type=int, default=10, help="number of error sources to show (default 10)")
    parser.add_argument("--draw", metavar="OUT", help="folder for the boxes of both side by side, worst images first")
    add_reading_arguments(parser)
    add_report_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Compare and say where the error is born; faults are raised as QdqError."""
    from qdqtool.verbs.compare import CompareOptions, compare

    check_report(args, args.reference, args.other, args.names)
    check_drawing(args)
    options = CompareOptions(args.tensors, provider=args.provider, progress=False if args.quiet else None)
    result = compare(args.reference, args.other, args.data, options, data_options_from(args))
    drawn = draw_asked(args, (args.reference, args.other))
    for name in result.broken:
        warn(f"{name}: NaN or Inf in only one of the models", args)
    if args.json:
        print_json(result.to_json(max(0, args.top)) | drawn_json(drawn))
    else:
        print_lines([*_summary(result, args), *drawn_lines(drawn)], args)
    given = {"names": args.names, "decoder": args.decoder, "postprocess": args.postprocess, "data": args.data}
    lines = write_report(args, args.other, reference=args.reference, data_options=data_options_from(args), **given)
    print_lines([] if args.json else lines, args)
    return 0


def _summary(result: Comparison, args: argparse.Namespace) -> list[str]:
    every = args.tensors not in ("all", "outputs")
    return result.summary((args.reference, args.other), top=args.top, every=every)
