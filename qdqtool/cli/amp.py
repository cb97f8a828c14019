# SPDX-License-Identifier: Apache-2.0
"""`qdqtool amp`: an FP32 model to one in FP16 or BF16. Parses arguments and prints results."""

from __future__ import annotations

import argparse

from qdqtool.cli.data import add_data_arguments, calibration_options_from, data_options_from
from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.next_steps import after_amp
from qdqtool.cli.output import print_json, print_lines, warn, write_error
from qdqtool.verbs.amp_options import AmpOptions, AmpResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the ONNX model in FP32, plain or with Q/DQ; it is not changed")
    add_data_arguments(parser)
    parser.add_argument(
        "--scales", metavar="S", help="a scale table that calibrate wrote, in place of data: nothing is run"
    )
    add_options(parser, AmpOptions)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, write nothing")
    parser.add_argument("--explain", action="store_true", help="print why each operator stays in FP32, write nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="default: beside MODEL, with .fp16.onnx (.bf16.onnx) for its ending"
    )


def run(args: argparse.Namespace) -> int:
    """Choose, write, say what was chosen; faults are raised as QdqError."""
    from qdqtool.verbs.amp import amp, plan_types

    options = options_from(
        AmpOptions, args, calibration=calibration_options_from(args), data_options=data_options_from(args)
    )
    dry = args.dry_run or args.explain
    result: AmpResult = (
        plan_types(args.model, args.data, args.scales, options)
        if dry
        else amp(args.model, args.data, args.scales, options, args.output)
    )
    if not args.explain:
        result.require_conversion(args.model)
    for note in result.notes:
        warn(note, args, kind="note")
    if args.json:
        print_json(result.to_json())
    elif args.explain:
        print_lines(result.explained(), args, asked=True)
    else:
        print_lines(
            [*result.summary(), *(after_amp(args, result) if result.model is not None else [])], args, asked=dry
        )
    if not result.misses:
        return 0
    reached = f"is not met: the loss at the outputs is {result.output_loss:.3g}"
    done = "nothing is written" if dry else "the model is written anyway"
    write_error(f"qdqtool: error: --max-output-loss {args.max_output_loss}: {reached}; {done}")
    return 1
