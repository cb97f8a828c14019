# SPDX-License-Identifier: Apache-2.0
"""`qdqtool improve`: a Q/DQ model that loses too much to one that loses less. Parses arguments and prints results."""

from __future__ import annotations

import argparse

from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.next_steps import after_improve
from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.deploying.options import JudgingOptions
from qdqtool.options import declared
from qdqtool.workflows.improve_options import ImproveOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the Q/DQ model, which is not changed")
    parser.add_argument(
        "--data", metavar="D", required=True, help="folder of images, .npz, .npy or loader.py[:function]"
    )
    judging = (*declared(JudgingOptions), "provider")
    add_options(parser, ImproveOptions, only=("source", *judging))
    add_options(parser, ImproveOptions, without=("source", *judging))
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the file for the best model")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Improve, say what each step bought."""
    from qdqtool.cli.in_python import improve

    options = options_from(
        ImproveOptions,
        args,
        progress=False if args.quiet else None,
        say=lambda line: warn(line, args, kind="tried"),
        warn=lambda line: warn(line, args),
    )
    result = improve(args.model, args.data, args.output, options)
    if args.json:
        print_json(result.to_json())
    else:
        print_lines([*result.summary(), *after_improve(args, result)], args)
    if result.meets:
        return 0
    warn(f"{result.verdict()}; {args.output} is written anyway", args)
    return 1
