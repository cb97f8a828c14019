# SPDX-License-Identifier: Apache-2.0
"""`qdqtool evaluate`: a model and labeled data to its task's figures. Words to calls and back, no more."""

from __future__ import annotations

import argparse

from qdqtool.cli.data import add_data_arguments, data_options_from
from qdqtool.cli.output import print_json, print_lines, warn_or_note
from qdqtool.cli.report_option import add_report_argument, check_report, write_report
from qdqtool.target_options import cache_target

_LABELS = (
    "labels: COCO's .json, a folder of VOC's .xml or of YOLO's or KITTI's .txt, a .npz with boxes; for classifiers "
    "a .csv of file and class, a .npz or .npy of classes, or the word filename (0012_cat.jpg)"
)
_DECODER = "auto (default), or a decoder and its settings: yolov5,anchors=10:13:16:30:..."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument(
        "model", metavar="MODEL", help="the ONNX model, plain or with Q/DQ; or an engine (.plan, .engine)"
    )
    add_data_arguments(parser, required=True, calibrates=False)
    parser.add_argument("--labels", metavar="L", help=_LABELS)
    parser.add_argument("--names", metavar="N", help="classes in order: coco, coco90, a file, or car,face=masked|bare")
    parser.add_argument(
        "--baseline", metavar="B", help="what the loss is measured against: the FP32 model, or an older INT8 one"
    )
    group = parser.add_argument_group("simulate INT8 from a cache instead of running the model as written")
    group.add_argument("--cache", metavar="C", help="simulate the plain model with this calibration cache")
    group.add_argument(
        "--target", choices=("gpu", "dla"), type=cache_target, help="whose INT8 is simulated (default gpu with --cache)"
    )
    group.add_argument("--trt-version", metavar="V", help="such as 8502 or jp4.6; default: that of the cache's header")
    parser.add_argument(
        "--metric", choices=("top1", "coco", "voc", "agreement"), help="metric (default: by the labels)"
    )
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--decoder", metavar="D", default="auto", help=_DECODER)
    one.add_argument(
        "--postprocess", metavar="F", help="script.py:function that turns the outputs into boxes, instead of --decoder"
    )
    parser.add_argument(
        "--score", metavar="S", type=float, default=0.01, help="lowest score of a box that counts (default 0.01)"
    )
    parser.add_argument("--iou", metavar="I", type=float, help="IoU threshold of NMS (default: that of the decoder)")
    parser.add_argument(
        "--label-offset", metavar="N", type=int, default=0, help="number added to the labels' class numbers"
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the bootstrap (default 0)")
    parser.add_argument("--per-class", action="store_true", help="print every class in order, not only the ten worst")
    add_report_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Judge and print; faults are raised as QdqError."""
    from qdqtool.evaluation.nms import Selection
    from qdqtool.verbs.evaluate import EvaluateOptions, evaluate

    check_report(args, args.baseline, args.cache, args.labels, args.names)
    options = EvaluateOptions(
        baseline=args.baseline,
        metric=args.metric,
        decoder=args.decoder,
        postprocess=args.postprocess,
        names=args.names,
        label_offset=args.label_offset,
        selection=Selection(args.score, args.iou),
        provider=args.provider,
        seed=args.seed,
        cache=args.cache,
        target=args.target,
        trt_version=args.trt_version,
        progress=False if args.quiet else None,
    )

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
