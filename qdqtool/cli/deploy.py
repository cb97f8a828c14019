# SPDX-License-Identifier: Apache-2.0
"""`qdqtool deploy`: a model, images and a board to a folder that builds there. Parses arguments and prints results."""

from __future__ import annotations

import argparse

from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.output import log_of_steps, print_json, print_lines, warn
from qdqtool.deploying.options import JudgingOptions
from qdqtool.options import declared
from qdqtool.workflows.deploy_options import DeployOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the FP32 ONNX model, which is not changed")
    parser.add_argument(
        "--data", metavar="D", required=True, help="folder of images, .npz, .npy or loader.py[:function]"
    )
    add_options(parser, DeployOptions, only=("place", "dla"))
    parser.add_argument("-o", "--output", metavar="FOLDER", required=True, help="the folder to write")
    add_options(parser, DeployOptions, only=(*declared(JudgingOptions), "provider", "effort", "max_batch", "force"))
    parser.add_argument("--json", action="store_true", help="print deploy.json")


def run(args: argparse.Namespace) -> int:
    """Deploy, say what was tried and kept."""
    import json

    from qdqtool.cli.in_python import deploy
    from qdqtool.workflows.deploy import FILE

    options = options_from(
        DeployOptions,
        args,
        progress=False if args.quiet else None,
        say=lambda line: None if args.json else print_lines([line], args),
        tried=log_of_steps(args, "tried"),
        warn=lambda line: warn(line, args),
    )
    result = deploy(args.model, args.data, args.output, options)
    if args.json:
        print_json(json.loads((result.folder / FILE).read_text(encoding="utf-8")))
    else:
        print_lines([*result.outcome(), *result.next_lines()], args)
    if result.meets is False:
        warn(f"--max-loss {args.max_loss:g} is not met: {result.format_loss()}", args)
        return 1
    return 0
