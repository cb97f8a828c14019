# SPDX-License-Identifier: Apache-2.0
"""`qdqtool infer`: a model and images to pictures with boxes or classes drawn. Parses arguments and prints results."""

from __future__ import annotations

import argparse

from qdqtool.cli.data import add_data_arguments, data_options_from
from qdqtool.cli.decode_options import add_reading_arguments, infer_options_from
from qdqtool.cli.output import print_json, print_lines, warn_or_note


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the ONNX model, plain or with Q/DQ, which is not changed")
    add_data_arguments(parser, required=True, calibrates=False)
    add_reading_arguments(parser)
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="folder for pictures and detections.json")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Infer, write the folder, say what is in it."""
    from qdqtool.verbs.infer import infer

    result = infer(args.model, args.data, args.output, infer_options_from(args), data_options_from(args))
    for note in result.notes:
        warn_or_note(f"{args.data}: {note}", args)
    if args.json:
        print_json({"folder": str(result.folder), **result.to_json()})
    else:
        print_lines(result.summary(), args)
    return 0
