# SPDX-License-Identifier: Apache-2.0
"""`qdqtool condition`: a model and data to a model that quantizes better. Parses arguments and prints results."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from qdqtool.cli.data import add_data_arguments, data_options_from
from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.next_steps import after_condition
from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.cli.plan_options import add_plan_arguments, plan_options_from
from qdqtool.verbs.condition_options import ConditionOptions

if TYPE_CHECKING:
    from qdqtool.verbs.condition import ConditionResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the plain ONNX model, which is not changed")
    add_data_arguments(parser, required=True, calibrates=False)
    add_options(parser, ConditionOptions, without=("provider",))
    add_plan_arguments(parser)
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="default: beside MODEL, with .conditioned.onnx for its ending"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Condition, write the model, say what was edited and what it changed."""
    from qdqtool.verbs.condition import condition

    options = options_from(ConditionOptions, args, plan=plan_options_from(args), data_options=data_options_from(args))
    result = condition(args.model, args.data, options, args.output)
    for note in result.done.notes:
        warn(note, args, kind="note")
    if args.json:
        print_json(_document(result))
    else:
        print_lines([*result.summary(), *after_condition(args, result)], args)
    return 0


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
