# SPDX-License-Identifier: Apache-2.0
"""What verbs that draw boxes share: how outputs are read, what classes are called, `--draw`. No verb of its own."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from qdqtool.cli.data import data_options_from
from qdqtool.errors import QdqError

if TYPE_CHECKING:
    from qdqtool.verbs.compare_pictures import DrawnDifferences
    from qdqtool.verbs.infer import InferOptions

_DEFAULTS = {"decoder": "auto", "postprocess": None, "names": None, "score": 0.3, "iou": None, "force": False}

_DECODER = "auto (default), or a decoder and its settings: yolox, ssd,decoded=no, yolov5,anchors=10:13:..."


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare decoder or script, class names, thresholds, and --force for the folder that is written."""
    group = parser.add_argument_group("boxes")
    how = group.add_mutually_exclusive_group()
    how.add_argument("--decoder", metavar="F", help=_DECODER)
    how.add_argument("--postprocess", metavar="F", help="script.py[:function] that turns the outputs into boxes")
    group.add_argument("--names", metavar="N", help="class names: coco, coco90, a file with one a line, or a,b,c")
    group.add_argument("--score", metavar="S", type=float, help="draw boxes with a score above this (default 0.3)")
    group.add_argument("--iou", metavar="I", type=float, help="IoU threshold of NMS (default: that of the decoder)")
    group.add_argument("--force", action="store_true", help="write into a folder that is not empty")
    parser.set_defaults(**_DEFAULTS)


def infer_options_from(args: argparse.Namespace) -> InferOptions:
    """What `add_reading_arguments` declared, with --provider and --quiet."""
    from qdqtool.evaluation.inference import DecodeOptions
    from qdqtool.evaluation.nms import Selection
    from qdqtool.verbs.infer import InferOptions

    reading = DecodeOptions(args.decoder, args.postprocess, Selection(score=args.score, iou=args.iou))
    return InferOptions(reading, args.names, args.force, provider=args.provider, progress=False if args.quiet else None)


def draw_asked(args: argparse.Namespace, models: tuple[str, str]) -> DrawnDifferences | None:
    """Draw what two models find where --draw says so.

    Raises:
        QdqError: options of the drawing without --draw; what `draw_differences` refuses.
    """
    from qdqtool.verbs.compare_pictures import DrawOptions, draw_differences

    if args.draw is None:
        for name, default in _DEFAULTS.items():
            if args.report is None and getattr(args, name) != default:
                raise QdqError(
                    f"--{name}", "is for pictures, and --draw is not given", "add --draw OUT, or leave it out"
                )
        return None
    options = DrawOptions(infer_options_from(args))
    return draw_differences(models, args.data, args.draw, options, data_options_from(args))


def drawn_json(drawn: DrawnDifferences | None) -> dict[str, Any]:
    """What `--json` says of the pictures; nothing where there are none."""
    return {} if drawn is None else {"drawn": drawn.to_json()}


def drawn_lines(drawn: DrawnDifferences | None) -> list[str]:
    """What is printed of the pictures; nothing where there are none."""
    return [] if drawn is None else drawn.summary()
