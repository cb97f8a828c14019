# SPDX-License-Identifier: Apache-2.0
"""`qdqtool report`: a model to one HTML file that needs no network. Parses arguments and prints results."""

from __future__ import annotations

import argparse

from qdqtool.cli.data import add_data_arguments, data_options_from
from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.command_lines import shell_line
from qdqtool.workflows.report_options import ReportOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the Q/DQ model, or a plain one, which is not changed")
    parser.add_argument(
        "--model", metavar="FP32", dest="reference", help="the FP32 model that losses are measured against"
    )
    add_data_arguments(parser, calibrates=False)
    how = ("decoder", "postprocess")
    add_options(parser, ReportOptions, only=how)
    add_options(parser, ReportOptions, without=("provider", *how))
    parser.add_argument("-o", "--output", metavar="OUT", help="the file (default: MODEL.report.html)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Look, run, write; faults are raised as QdqError."""
    from qdqtool.workflows.report import report

    options = options_from(
        ReportOptions,
        args,
        reference=args.reference,
        data=args.data,
        data_options=data_options_from(args),
        progress=False if args.quiet else None,
        command=_command(args),
    )
    result = report(args.model, args.output, options)
    for note in result.notes:
        warn(note, args, "note")
    if args.json:
        print_json(result.to_json())
    else:
        print_lines(result.summary(), args)
    return 0


def _command(args: argparse.Namespace) -> str:
    """The command as the user gave it, without where the file goes: the same report is the same bytes."""
    words, skip = list[str](), False
    for word in args.words:
        if skip or word in ("-o", "--output") or word.startswith(("-o=", "--output=")):
            skip = word in ("-o", "--output") and not skip
        else:
            words.append(word)
    return shell_line("qdqtool", *words)
