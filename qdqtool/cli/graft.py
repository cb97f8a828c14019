# SPDX-License-Identifier: Apache-2.0
"""`qdqtool graft`: a plain model and a calibration cache to a Q/DQ model. Parses arguments and prints results."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.cli.data import add_data_arguments, calibration_options_from, data_options_from
from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.loss_steps import likely_cause, measured_first
from qdqtool.cli.next_steps import after_graft
from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.match.options import PlanOptions
from qdqtool.target_options import CACHE_TARGETS, cache_target
from qdqtool.verbs.graft_options import GraftOptions, GraftResult

if TYPE_CHECKING:
    from qdqtool.measuring.keep_float import OutputLoss

_PLACEMENT = ("trt_version", "rules", "float_heads", "keep_float", "attention")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the plain ONNX model, which is not changed")
    parser.add_argument("--cache", metavar="C", required=True, help="a calibration cache of any TensorRT version")
    parser.add_argument(
        "--target",
        choices=CACHE_TARGETS,
        type=cache_target,
        default="gpu",
        help="dla: every tensor gets a pair, for --trt-version 11.4.1 or later (default: %(default)s)",
    )
    add_options(parser, PlanOptions(float_heads="none"), only=_PLACEMENT)
    add_options(parser, GraftOptions)
    add_data_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--output", metavar="OUT", help="default: beside MODEL, with .qdq.onnx for its ending")


def run(args: argparse.Namespace) -> int:
    """Graft and say what became of each entry; faults are raised as QdqError."""
    from qdqtool.verbs.graft import graft

    options = options_from(
        GraftOptions,
        args,
        plan=options_from(PlanOptions, args, only=("target", *_PLACEMENT)),
        calibration=calibration_options_from(args),
        data_options=data_options_from(args),
    )
    result = graft(args.model, args.cache, options, data=args.data, output=args.output)
    for note in result.notes:
        warn(note, args, kind="note")
    for warning in result.warnings:
        warn(warning, args)
    if args.json:
        print_json(_facts(result))
    else:
        print_lines([*result.summary(), *after_graft(args, result)], args)
    if result.output_loss is not None and result.output_loss.large:
        _warn_of_loss(result.output_loss, Path(str(result.model)), args)
    return 0


def _warn_of_loss(loss: OutputLoss, written: Path, args: argparse.Namespace) -> None:
    """Say that the model may lose much, as `insert` does, and how to measure it."""
    measure = measured_first(args, written, loss, had_pairs=args.requantize)
    first = f"calibration data say little of the task, so measure first, {measure}"
    phrases = [*loss.warning("INT8"), first, f"for its likely cause: {likely_cause(args, written)}"]
    warn(f"{written}: {'; '.join(phrases)}", args, wrap=True)


def _facts(result: GraftResult) -> dict[str, object]:
    return {
        "file": str(result.model),
        "placed": [point.tensor for point in result.plan.activations],
        "from_data": list(result.filled),
        "weights": [point.tensor for point in result.plan.weights],
        "unplaced": result.unplaced,
        "unknown": {name: list(near) for name, near in result.unknown.items()},
        "made_up": list(result.made_up),
        "starved": {product: list(names) for product, names in result.starved.items()},
        "uncovered": list(result.uncovered),
        "refusals": [{"site": r.site, "rule": r.rule, "reason": r.reason} for r in result.plan.refusals],
        **({} if result.output_loss is None else result.output_loss.to_json()),
        **({"rest": result.rest.to_json()} if result.rest is not None else {}),
    }
