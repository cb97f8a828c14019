# SPDX-License-Identifier: Apache-2.0
"""What verbs that draw boxes share: how outputs are read, what classes are called, `--draw`. No verb of its own."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from qdqtool.cli.data import data_options_from
from qdqtool.cli.declared import add_options, options_from
from qdqtool.errors import QdqError
from qdqtool.evaluation.decode_options import DRAWN_SCORE, DecodeOptions, Selection
from qdqtool.verbs.infer_options import InferOptions

if TYPE_CHECKING:
    from qdqtool.verbs.compare_pictures import DrawnDifferences


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare decoder or script, class names, thresholds, and --force for the folder that is written."""
    group = parser.add_argument_group("boxes")
    add_options(group, DecodeOptions)
    add_options(group, InferOptions, only=("names",))
    group.add_argument(
        "--score",
        metavar="S",
        type=float,
        default=DRAWN_SCORE,
        help="draw boxes with a score above this (default %(default)s)",
    )
    add_options(group, Selection, only=("iou",))
    add_options(group, InferOptions, only=("force",))


def infer_options_from(args: argparse.Namespace) -> InferOptions:
    """What `add_reading_arguments` declared, with --provider and --quiet."""
    reading = options_from(DecodeOptions, args, selection=options_from(Selection, args))
    return options_from(InferOptions, args, reading=reading, progress=False if args.quiet else None)


def check_drawing(args: argparse.Namespace) -> None:
    """Refuse options of pictures where neither --draw nor --report asks for some.

    Raises:
        QdqError: there is one.
    """
    if args.draw is not None or args.report is not None:
        return
    ungiven = argparse.ArgumentParser()
    add_reading_arguments(ungiven)
    for name, default in vars(ungiven.parse_args([])).items():
        if getattr(args, name) != default:
            raise QdqError(f"--{name}", "is for pictures, and --draw is not given", "add --draw OUT, or leave it out")


def draw_asked(args: argparse.Namespace, models: tuple[str, str]) -> DrawnDifferences | None:
    """Draw what two models find where --draw says so.

    Raises:
        QdqError: what `draw_differences` refuses.
    """
    from qdqtool.verbs.compare_pictures import DrawOptions, draw_differences

    if args.draw is None:
        return None
    options = DrawOptions(infer_options_from(args))
    return draw_differences(models, args.data, args.draw, options, data_options_from(args))


def drawn_json(drawn: DrawnDifferences | None) -> dict[str, Any]:
    """What `--json` says of the pictures; nothing where there are none."""
    return {} if drawn is None else {"drawn": drawn.to_json()}


def drawn_lines(drawn: DrawnDifferences | None) -> list[str]:
    """What is printed of the pictures; nothing where there are none."""
    return [] if drawn is None else drawn.summary()
