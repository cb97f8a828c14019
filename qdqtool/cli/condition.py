# SPDX-License-Identifier: Apache-2.0
"""`qdqtool condition`: a model and data to a model that quantizes better. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from qdqtool.cli.data import add_data_arguments, data_options_from
from qdqtool.cli.next_steps import after_condition
from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.cli.plan_options import add_plan_arguments, plan_options_from

if TYPE_CHECKING:
    from qdqtool.verbs.condition import ConditionOptions, ConditionResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the plain ONNX model, which is not changed")
    add_data_arguments(parser, required=True, calibrates=False)
    parser.add_argument(
        "--steps",
        metavar="S",
        default="auto",
        help="some of equalize,smooth,clip,correct (default auto: every step that reduces the loss); relu6 and shift "
        "only if named",
    )
    parser.add_argument(
        "--method",
        metavar="M",
        default="mse",
        help="calibration method that insert will use, needed by correct (default mse)",
    )
    parser.add_argument(
        "--factors",
        choices=("float", "power-of-two"),
        default="float",
        help="factors that channels are divided by; powers of two keep the FP32 results bit for bit, and help less",
    )
    parser.add_argument(
        "--muls",
        choices=("fitting", "all"),
        default="fitting",
        help="Mul nodes that smooth adds, Add nodes of shift: only where INT8 still moves fewer bytes than FP16 "
        "(default), or all that reduce the loss",
    )
    add_plan_arguments(parser)
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="default: beside MODEL, with .conditioned.onnx for its ending"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Condition, write the model, say what was edited and what it changed."""
    from qdqtool.verbs.condition import condition

    result = condition(args.model, args.data, _options(args), args.output)
    for note in result.done.notes:
        warn(note, args, kind="note")
    if args.json:
        print_json(_document(result))
    else:
        print_lines(_lines(args, result), args)
    return 0


def _options(args: argparse.Namespace) -> ConditionOptions:
    from qdqtool.verbs.condition import ConditionOptions

    plan = plan_options_from(args)
    loader = data_options_from(args)
    return ConditionOptions(args.steps, args.method, args.provider, args.factors, plan, loader, args.muls)


def _document(result: ConditionResult) -> dict[str, Any]:
    done = result.done
    return {
        "file": str(result.model),
        "samples": done.samples,
        "method": done.method,
        "edits": [edit.to_json() for edit in done.edits],
        "left": done.left,
        "predicted": {
            name: None if one is None else {"worst": round(one.worst, 2), "mean": round(one.mean, 2)}
            for name, one in (("before", done.before), ("after", done.after))
        },
        "kept": {
            name: {"relative": one.relative, "largest": one.largest, "of_range": one.of_range}
            for name, one in done.kept.items()
        },
        "moved": {name: round(one.decibel, 2) for name, one in done.moved.items()},
        "notes": list(done.notes),
    }


def _lines(args: argparse.Namespace, result: ConditionResult) -> list[str]:

    return [*result.summary(), *after_condition(args, result)]
