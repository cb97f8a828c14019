# SPDX-License-Identifier: Apache-2.0
"""`qdqtool report`: a model to one HTML file that needs no network. Words to calls and back, no more."""

from __future__ import annotations

import argparse

from qdqtool.cli.command_lines import shell_line
from qdqtool.cli.data import add_data_arguments, data_options_from
from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.trtversion import parse

_LABELS = "labels, in a format that evaluate reads; without them a detector is compared with the FP32 model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the Q/DQ model, or a plain one, which is not changed")
    parser.add_argument(
        "--model", metavar="FP32", dest="reference", help="the FP32 model that losses are measured against"
    )
    parser.add_argument("--cache", metavar="C", help="a calibration cache, checked against the names of the model")
    add_data_arguments(parser, calibrates=False)
    parser.add_argument("--labels", metavar="L", help=_LABELS)
    parser.add_argument("--names", metavar="N", help="class names: coco, coco90, a file with one a line, or a,b,c")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--decoder", metavar="D", default="auto", help="decoder of a detector's outputs (default auto)")
    how.add_argument(
        "--postprocess", metavar="F", help="script.py:function that turns the outputs into boxes, instead of --decoder"
    )
    parser.add_argument(
        "--pictures", metavar="N", type=int, default=4, help="number of worst images to draw (default 4)"
    )
    parser.add_argument("--diff", metavar="B", help="another model of the same network: show the differences")
    parser.add_argument("--state", metavar="F", help="a state of calibrate --checkpoint, for its histograms")
    parser.add_argument(
        "--layers", metavar="F", help="layers of the built engine: OUT.layers.json, or trtexec's export"
    )
    parser.add_argument("--sensitivity", metavar="F", help="the JSON that sensitivity --json printed")
    parser.add_argument("--log", metavar="F", help="a training log of finetune --log")
    parser.add_argument("--target", choices=("gpu", "rtx"), default="gpu", help="whose rules predict (default gpu)")
    parser.add_argument("--trt-version", metavar="V", help="such as 8.5.2, jp6.1 (default: the newest rules)")
    parser.add_argument(
        "--parser",
        action=argparse.BooleanOptionalAction,
        help="ask NVIDIA's own parser (default: where TensorRT for RTX is installed)",
    )
    parser.add_argument("-o", "--output", metavar="OUT", help="the file (default: MODEL.report.html)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Look, run, write; faults are raised as QdqError."""
    from qdqtool.verbs.report import report
    from qdqtool.verbs.report_options import ReportOptions

    options = ReportOptions(
        args.target,
        None if args.trt_version is None else parse(args.trt_version),
        reference=args.reference,
        data=args.data,
        data_options=data_options_from(args),
        labels=args.labels,
        names=args.names,
        decoder=args.decoder,
        postprocess=args.postprocess,
        cache=args.cache,
        diff=args.diff,
        state=args.state,
        layers=args.layers,
        sensitivity=args.sensitivity,
        log=args.log,
        parser=args.parser,
        pictures=args.pictures,
        provider=args.provider,
        progress=False if args.quiet else None,
        command=_command(args),
    )
    result = report(args.model, args.output, options)
    for note in result.notes:
        warn(note, args, "note")
    if args.json:
        print_json(result.to_json())
    else:
        print_lines(result.summary(), args)
    return 0


def _command(args: argparse.Namespace) -> str:
    """The command as the user gave it, without where the file goes: the same report is the same bytes."""
    words, skip = list[str](), False
    for word in args.words:
        if skip or word in ("-o", "--output") or word.startswith(("-o=", "--output=")):
            skip = word in ("-o", "--output") and not skip
        else:
            words.append(word)
    return shell_line("qdqtool", *words)
