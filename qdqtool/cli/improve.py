# SPDX-License-Identifier: Apache-2.0
"""`qdqtool improve`: a Q/DQ model that loses too much to one that loses less. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qdqtool.cli.deploy import add_judging_arguments
from qdqtool.cli.next_steps import after_improve
from qdqtool.cli.output import print_json, print_lines, warn

if TYPE_CHECKING:
    from qdqtool.verbs.improve_options import ImproveOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the Q/DQ model, which is not changed")
    parser.add_argument(
        "--data", metavar="D", required=True, help="folder of images, .npz, .npy or loader.py[:function]"
    )
    parser.add_argument("--source", metavar="M", help="the FP32 model (default: MODEL without its Q/DQ)")
    add_judging_arguments(parser, needs_max_loss=True)
    parser.add_argument("--target", choices=("gpu", "rtx", "dla"), default="gpu", help="target (default gpu)")
    parser.add_argument(
        "--trt-version", metavar="V", help="TensorRT version whose rules place the pairs (default: the newest known)"
    )
    parser.add_argument("--no-finetune", action="store_true", help="leave out the last step, training of the weights")
    parser.add_argument("--by-value", action="store_true", help="judge by the loss itself, not by all of its interval")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the file for the best model")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Improve, say what each step bought."""
    from qdqtool.verbs.improve import improve

    result = improve(args.model, args.data, args.output, _options(args))
    if args.json:
        print_json(result.to_json())
    else:
        print_lines([*result.summary(), *after_improve(args, result)], args)
    if result.meets:
        return 0
    warn(f"{result.verdict()}; {args.output} is written anyway", args)
    return 1


def _options(args: argparse.Namespace) -> ImproveOptions:
    from qdqtool.data.loader import DataOptions
    from qdqtool.verbs.improve_options import ImproveOptions

    return ImproveOptions(
        args.target,
        args.trt_version,
        max_loss=args.max_loss,
        source=args.source,
        labels=args.labels,
        eval_labels=args.eval_labels,
        eval_data=args.eval_data,
        metric=args.metric,
        decoder=args.decoder,
        names=args.names,
        postprocess=args.postprocess,
        finetune=not args.no_finetune,
        by_value=args.by_value,
        data_options=DataOptions(preprocess=args.preprocess),
        provider=args.provider,
        progress=False if args.quiet else None,
        say=lambda line: warn(line, args, kind="tried"),
        warn=lambda line: warn(line, args),
    )
