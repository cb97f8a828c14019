# SPDX-License-Identifier: Apache-2.0
"""`qdqtool evaluate`: a model and labeled data to its task's figures. Parses arguments and prints results."""

from __future__ import annotations

import argparse

from qdqtool.cli.data import add_data_arguments, data_options_from
from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.output import print_json, print_lines, warn_or_note
from qdqtool.cli.report_option import add_report_argument, check_report, write_report
from qdqtool.evaluation.decode_options import Selection
from qdqtool.verbs.evaluate_options import EvaluateOptions

_LABELS = (
    "labels: COCO's .json, a folder of VOC's .xml or of YOLO's or KITTI's .txt, a .npz with boxes; for classifiers "
    "a .csv of file and class, a .npz or .npy of classes, or the word filename (0012_cat.jpg)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument(
        "model", metavar="MODEL", help="the ONNX model, plain or with Q/DQ; or an engine (.plan, .engine)"
    )
    add_data_arguments(parser, required=True, calibrates=False)
    parser.add_argument("--labels", metavar="L", help=_LABELS)
    first = ("names", "baseline", "cache", "target", "trt_version", "metric", "decoder", "postprocess")
    add_options(parser, EvaluateOptions, only=first)
    add_options(parser, Selection)
    add_options(parser, EvaluateOptions, without=("provider", *first))
    parser.add_argument("--per-class", action="store_true", help="print every class in order, not only the ten worst")
    add_report_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Judge and print; faults are raised as QdqError."""
    from qdqtool.verbs.evaluate import evaluate

    check_report(args, args.baseline, args.cache, args.labels, args.names)
    selection = options_from(Selection, args)
    options = options_from(EvaluateOptions, args, selection=selection, progress=False if args.quiet else None)
    result = evaluate(args.model, args.data, args.labels, options, data_options_from(args))
    for note in result.notes:
        warn_or_note(f"{args.data}: {note}", args)
    if args.json:
        print_json(result.to_json())
    else:
        print_lines(result.summary(per_class=args.per_class), args, asked=True)
    given = {name: getattr(args, name) for name in ("data", "labels", "names", "decoder", "postprocess")}
    lines = write_report(args, args.model, reference=args.baseline, data_options=data_options_from(args), **given)
    print_lines([] if args.json else lines, args)
    return 0
