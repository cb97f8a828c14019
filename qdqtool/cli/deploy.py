# SPDX-License-Identifier: Apache-2.0
"""`qdqtool deploy`: a model, images and a board to a folder that builds there. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qdqtool.cli.command_lines import run_script
from qdqtool.cli.output import log_of_steps, print_json, print_lines, warn
from qdqtool.cli.target import add_max_batch

if TYPE_CHECKING:
    from qdqtool.verbs.deploy_options import DeployOptions

_FOR = "a board and its software (xavier-nx:jp4.6.1, orin:jp6, rtx4090, rtx4090:rtx), or a version alone (8.6, jp6.1)"
_LABELS = (
    "labels of --data, or of --eval-data if given, in a format that evaluate reads (default: compare with the "
    "FP32 model)"
)
_MAX_LOSS = "largest accepted loss of the metric, absolute: 0.01 allows 0.75 to become 0.74"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the FP32 ONNX model, which is not changed")
    parser.add_argument(
        "--data", metavar="D", required=True, help="folder of images, .npz, .npy or loader.py[:function]"
    )
    parser.add_argument("--for", metavar="BOARD", dest="place", required=True, help=_FOR)
    parser.add_argument("--dla", action="store_true", help="build for the DLA of the board")
    parser.add_argument("-o", "--output", metavar="FOLDER", required=True, help="the folder to write")
    add_judging_arguments(parser)
    parser.add_argument(
        "--effort",
        choices=("fast", "default", "best"),
        default="default",
        help="how many ways are tried; best also fine-tunes",
    )
    add_max_batch(parser)
    parser.add_argument("--force", action="store_true", help="write into a folder that is not empty")
    parser.add_argument("--json", action="store_true", help="print deploy.json")


def add_judging_arguments(parser: argparse.ArgumentParser, *, needs_max_loss: bool = False) -> None:
    """Declare what models are judged by, and how images are read."""
    parser.add_argument("--labels", metavar="L", help=_LABELS)
    parser.add_argument("--eval-labels", metavar="L", help="labels of --eval-data; --labels are those of --data then")
    parser.add_argument("--eval-data", metavar="E", help="separate samples for the reported figures")
    parser.add_argument(
        "--max-loss",
        metavar="X",
        type=float,
        required=needs_max_loss,
        help=_MAX_LOSS + ("" if needs_max_loss else " (default: INT8 at its best)"),
    )
    parser.add_argument("--metric", choices=("top1", "coco", "voc"), help="metric (default: by the labels)")
    parser.add_argument("--preprocess", metavar="P", help="image preprocessing; see calibrate -h")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--decoder", metavar="D", default="auto", help="decoder of a detector's outputs; see evaluate -h")
    one.add_argument(
        "--postprocess", metavar="F", help="script.py:function that turns the outputs into boxes, instead of --decoder"
    )
    parser.add_argument("--names", metavar="N", help="class names: coco, coco90, a file with one a line, or a,b,c")
    parser.add_argument(
        "--provider",
        choices=("cpu", "cuda", "tensorrt"),
        default="cpu",
        help="execution provider of onnxruntime (default cpu)",
    )


def run(args: argparse.Namespace) -> int:
    """Deploy, say what was tried and kept."""
    import json

    from qdqtool.verbs.deploy import FILE, deploy

    result = deploy(args.model, args.data, args.output, _options(args))
    if args.json:
        print_json(json.loads((result.folder / FILE).read_text(encoding="utf-8")))
    else:
        print_lines([*result.outcome(), *_next(result.next_step)], args)
    if result.meets is False:
        warn(f"--max-loss {args.max_loss:g} is not met: {result.format_loss()}", args)
        return 1
    return 0


def _next(script: str) -> list[str]:

    return [run_script(script)]


def _options(args: argparse.Namespace) -> DeployOptions:
    from qdqtool.data.loader import DataOptions
    from qdqtool.verbs.deploy_options import DeployOptions

    return DeployOptions(
        args.place,
        dla=args.dla,
        labels=args.labels,
        eval_labels=args.eval_labels,
        eval_data=args.eval_data,
        max_loss=args.max_loss,
        effort=args.effort,
        metric=args.metric,
        decoder=args.decoder,
        names=args.names,
        postprocess=args.postprocess,
        data_options=DataOptions(preprocess=args.preprocess),
        force=args.force,
        max_batch=args.max_batch,
        provider=args.provider,
        progress=False if args.quiet else None,
        say=lambda line: None if args.json else print_lines([line], args),
        tried=log_of_steps(args, "tried"),
        warn=lambda line: warn(line, args),
    )
