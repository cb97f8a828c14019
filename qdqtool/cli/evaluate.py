# SPDX-License-Identifier: Apache-2.0
"""`qdqtool evaluate`: a model and labeled data to its task's figures. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qdqtool.cli.data import add_data_arguments, feed_options_from
from qdqtool.cli.show import counted, print_json, print_lines, warn

if TYPE_CHECKING:
    from qdqtool.evaluation.metrics import Figure
    from qdqtool.verbs.evaluate import Evaluation

_SHOWN = 10
_HOW = "computed by onnxruntime as the graph is written, Q/DQ in float; nothing was measured on TensorRT"
_LABELS = (
    "the truth: COCO's .json, a folder of VOC's .xml or of YOLO's or KITTI's .txt, a .npz with boxes; for classifiers "
    "a .csv of file and class, a .npz or .npy of classes, or the word filename (0012_cat.jpg)"
)
_DECODER = "auto (default) or a family, with settings behind it: yolov5,anchors=10:13:16:30:..."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the ONNX model, plain or with Q/DQ, which stays as it is")
    add_data_arguments(parser, required=True, calibrates=False)
    parser.add_argument("--labels", metavar="L", help=_LABELS)
    parser.add_argument("--names", metavar="N", help="classes in order: coco, coco90, a file, or car,face=masked|bare")
    parser.add_argument("--baseline", metavar="FP32", help="the FP32 model, against which losses are told")
    parser.add_argument(
        "--metric", choices=("top1", "coco", "voc", "agreement"), help="default: what the labels are for"
    )
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--decoder", metavar="D", default="auto", help=_DECODER)
    one.add_argument("--postprocess", metavar="F", help="script.py:function that makes boxes of the outputs instead")
    parser.add_argument("--score", metavar="S", type=float, default=0.01, help="boxes above it are judged (0.01)")
    parser.add_argument("--iou", metavar="I", type=float, help="overlap that suppression allows (the family's own)")
    parser.add_argument("--label-offset", metavar="N", type=int, default=0, help="added to the labels' class numbers")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the bootstrap (0)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Judge and print; faults are raised as QdqError."""
    from qdqtool.evaluation.nms import Selection
    from qdqtool.verbs.evaluate import EvaluateOptions, evaluate

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
        progress=False if args.quiet else None,
    )
    result = evaluate(args.model, args.data, args.labels, options, feed_options_from(args))
    for note in result.notes:
        warn(f"{args.data}: {note}", args)
    if args.json:
        print_json(result.to_json())
    else:
        print_lines(_report(result), args, asked=True)
    return 0


def _report(result: Evaluation) -> list[str]:
    lines = [f"{result.model}: {counted(result.samples, 'sample')}{_facts(result)}"]
    if result.baseline:
        lines.append(f"baseline: {result.baseline}")
    if result.means:
        lines.append(f"boxes by {result.means}")
    rows = [(name, 0) for name in result.figures]
    lines += ["", *_table(result, "metric", rows, [name for name, _ in rows])]
    if result.classes:
        lines += ["", *_classes(result)]
    return [*lines, "", f"95 % intervals: bootstrap over the samples{', paired' if result.losses else ''}; {_HOW}"]


def _facts(result: Evaluation) -> str:
    words = [f"labels {result.labels}"] if result.labels else []
    words += [f"{number} {name}" for name, number in result.facts.items()]
    return "".join(f", {word}" for word in words)


def _table(result: Evaluation, head: str, rows: list[tuple[str, int]], called: list[str]) -> list[str]:
    """One line per (metric, column): figure and interval; with a baseline both figures, and the loss's interval."""
    width = max(map(len, [head, *called]))
    if not result.losses:
        lines = [f"{head:<{width}}  {'value':>7}  95 % interval"]
        for name, (metric, k) in zip(called, rows, strict=True):
            one = result.figures[metric][k]
            lines.append(f"{name:<{width}}  {one.value:7.4f}  {_span(one)}")
        return lines
    lines = [f"{head:<{width}}  {'FP32':>7}  {'model':>7}  {'loss':>7}  95 % interval of the loss"]
    for name, (metric, k) in zip(called, rows, strict=True):
        before, after, loss = (table[metric][k] for table in (result.baseline_figures, result.figures, result.losses))
        lines.append(f"{name:<{width}}  {before.value:7.4f}  {after.value:7.4f}  {loss.value:7.4f}  {_span(loss)}")
    return lines


def _span(figure: Figure) -> str:
    if figure.interval.low != figure.interval.low:
        return "-"
    return f"{figure.interval.low:.4f} to {figure.interval.high:.4f}"


def _classes(result: Evaluation) -> list[str]:
    """The classes by the first metric, worst first: the largest loss, else the lowest figure."""
    metric = next(iter(result.figures))
    columns = range(1, 1 + len(result.classes))
    if result.losses:
        worst = sorted(columns, key=lambda k: -result.losses[metric][k].value)
    else:
        worst = sorted(columns, key=lambda k: result.figures[metric][k].value)
    shown = worst[:_SHOWN]
    called = [result.class_name(result.classes[k - 1]) for k in shown]
    lines = _table(result, f"{metric} of class", [(metric, k) for k in shown], called)
    left = len(worst) - len(shown)
    return [*lines, f"and {left} more that did no worse (--json)"] if left else lines
