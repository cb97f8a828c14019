# SPDX-License-Identifier: Apache-2.0
"""`qdqtool graft`: a plain model and a calibration cache to a Q/DQ model. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.cli.data import add_data_arguments, calibration_options_from, data_options_from
from qdqtool.cli.next_steps import after_graft
from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.cli.target import cache_target
from qdqtool.match.options import names_only

if TYPE_CHECKING:
    from qdqtool.verbs.graft_options import GraftResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the plain ONNX model, which is not changed")
    parser.add_argument("--cache", metavar="C", required=True, help="a calibration cache of any TensorRT version")
    parser.add_argument(
        "--trt-version", metavar="V", help="TensorRT version whose rules place the pairs (default: the newest known)"
    )
    parser.add_argument("--target", choices=("gpu",), type=cache_target, default="gpu", help=argparse.SUPPRESS)
    parser.add_argument("--rules", metavar="F", help="a rules file of your own that extends the target's")
    parser.add_argument(
        "--float-heads", choices=("regression", "all", "none"), default="none", help="detection heads left in float"
    )
    parser.add_argument("--keep-float", metavar="NAMES", type=names_only, default=(), help="operators left in float")
    parser.add_argument("--everywhere", action="store_true", help="use every entry, also where the rules place no pair")
    parser.add_argument("--requantize", action="store_true", help="remove the Q/DQ of the model first")
    parser.add_argument(
        "--force",
        action="store_true",
        help="take a cache that is of another export by the model's constants or its shifted names, too",
    )
    parser.add_argument(
        "--rest",
        choices=("fp16", "bf16", "fp32"),
        help="float type of operators that are not INT8, written as Casts (default: fp16 from --trt-version 11 on, "
        "else fp32)",
    )
    add_data_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--output", metavar="OUT", help="default: beside MODEL, with .qdq.onnx for its ending")


def run(args: argparse.Namespace) -> int:
    """Graft and say what became of each entry; faults are raised as QdqError."""
    from qdqtool.match.plan import PlanOptions
    from qdqtool.verbs.graft import graft
    from qdqtool.verbs.graft_options import GraftOptions

    rules = None if args.rules is None else Path(args.rules)
    plan = PlanOptions(
        trt_version=args.trt_version, float_heads=args.float_heads, keep_float=args.keep_float, rules=rules
    )
    options = GraftOptions(
        plan,
        args.everywhere,
        args.requantize,
        rest=args.rest,
        calibration=calibration_options_from(args),
        data_options=data_options_from(args),
        force=args.force,
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
    return 0


def _facts(result: GraftResult) -> dict[str, object]:
    return {
        "schema": 1,
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
        **({"rest": result.rest.to_json()} if result.rest is not None else {}),
    }
