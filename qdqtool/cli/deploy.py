# SPDX-License-Identifier: Apache-2.0
"""`qdqtool deploy`: a model, images and a board to a folder that builds there. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qdqtool.cli.output import print_json, print_lines, warn

if TYPE_CHECKING:
    from qdqtool.verbs.deploy_options import DeployOptions

_FOR = "a board and its software (xavier-nx:jp4.6.1, orin:jp6, rtx4090, rtx4090:rtx), or a version alone (8.6, jp6.1)"
_LABELS = "the truth of --data, or of --eval-data where that is given, as evaluate takes it (default: FP32's answers)"
_MAX_LOSS = "the most that the metric may lose, in absolute points: 0.01 is one in a hundred"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the FP32 ONNX model, which stays as it is")
    parser.add_argument(
        "--data", metavar="D", required=True, help="folder of images, .npz, .npy or loader.py[:function]"
    )
    parser.add_argument("--for", metavar="BOARD", dest="place", required=True, help=_FOR)
    parser.add_argument("--dla", action="store_true", help="for the DLA of the board")
    parser.add_argument("-o", "--output", metavar="FOLDER", required=True, help="the folder that is made")
    add_judging_arguments(parser)
    parser.add_argument(
        "--effort", choices=("fast", "default", "best"), default="default", help="how much is tried; best also trains"
    )
    parser.add_argument("--force", action="store_true", help="write to a folder that holds files")
    parser.add_argument("--json", action="store_true", help="print what deploy.json says")


def add_judging_arguments(parser: argparse.ArgumentParser, *, needs_max_loss: bool = False) -> None:
    """Declare what models are judged by, and how images are read."""
    parser.add_argument("--labels", metavar="L", help=_LABELS)
    parser.add_argument("--eval-data", metavar="E", help="other samples, which the figures are told of")
    parser.add_argument(
        "--max-loss",
        metavar="X",
        type=float,
        required=needs_max_loss,
        help=_MAX_LOSS + ("" if needs_max_loss else " (default: INT8 at its best)"),
    )
    parser.add_argument("--metric", choices=("top1", "coco", "voc"), help="default: what the labels are for")
    parser.add_argument("--preprocess", metavar="P", help="for images; see calibrate -h")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--decoder", metavar="D", default="auto", help="of a detector's boxes; see evaluate -h")
    one.add_argument("--postprocess", metavar="F", help="script.py:function that makes boxes of the outputs instead")
    parser.add_argument("--names", metavar="N", help="class names: coco, coco90, a file with one a line, or a,b,c")
    parser.add_argument(
        "--provider", choices=("cpu", "cuda", "tensorrt"), default="cpu", help="what onnxruntime calibrates on"
    )


def run(args: argparse.Namespace) -> int:
    """Deploy, say what was tried and kept.

    Returns:
        1 where the kept model loses more than --max-loss on samples that chose nothing, else 0.
    """
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
    from qdqtool.cli.command_lines import run_script

    return [run_script(script)]


def _options(args: argparse.Namespace) -> DeployOptions:
    from qdqtool.data.loader import DataOptions
    from qdqtool.verbs.deploy_options import DeployOptions

    return DeployOptions(
        args.place,
        dla=args.dla,
        labels=args.labels,
        eval_data=args.eval_data,
        max_loss=args.max_loss,
        effort=args.effort,
        metric=args.metric,
        decoder=args.decoder,
        names=args.names,
        postprocess=args.postprocess,
        data_options=DataOptions(preprocess=args.preprocess),
        force=args.force,
        provider=args.provider,
        progress=False if args.quiet else None,
        say=lambda line: None if args.json else print_lines([line], args),
    )
