# SPDX-License-Identifier: Apache-2.0
"""`qdqtool sensitivity`: a model and data to a ranking of operators. Parses arguments and prints results."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from qdqtool.amax.method_table import parse_method
from qdqtool.cli.data import add_data_arguments, calibration_options_from, data_options_from, print_notes
from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.next_steps import after_sensitivity
from qdqtool.cli.output import log_of_steps, print_json, print_lines
from qdqtool.cli.plan_options import add_plan_arguments, plan_options_from
from qdqtool.errors import QdqError
from qdqtool.observers.options import CalibrationOptions
from qdqtool.verbs.sensitivity_options import SensitivityOptions

if TYPE_CHECKING:
    from qdqtool.verbs.sensitivity import SensitivityResult

_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the plain ONNX model, which is not changed")
    add_data_arguments(parser, required=True)
    parser.add_argument("--method", metavar="M", help="see calibrate -h (default as insert's)")
    add_plan_arguments(parser)
    add_options(parser, SensitivityOptions)
    add_options(parser, CalibrationOptions, only=("candidates",))
    parser.add_argument(
        "--top", metavar="N", type=int, default=_SHOWN, help=f"rows that are printed (default {_SHOWN})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Rank, print; faults are raised as QdqError."""
    from qdqtool.verbs.sensitivity import sensitivity

    if args.method is not None and not parse_method(args.method).row.by_consumers and args.candidates:
        raise QdqError("--candidates", f"there are none with --method {args.method}", "add --method auto")
    options = options_from(
        SensitivityOptions,
        args,
        plan=plan_options_from(args),
        calibration=calibration_options_from(args, also=["candidates"]),
        data_options=data_options_from(args),
        say=log_of_steps(args, "measured"),
    )
    result = sensitivity(args.model, args.data, options)
    print_notes(result.table, args)
    top = max(0, args.top)
    if args.json:
        print_json(_facts(result, top))
    else:
        print_lines([*result.summary(top), *after_sensitivity(args, result)], args, asked=True)
    return 0


def _facts(result: SensitivityResult, top: int) -> dict[str, Any]:
    facts = {
        "method": result.table.provenance.method,
        "samples": result.table.provenance.samples,
        "loss": result.ranking.loss,
        "operators": [
            {
                "node": one.name,
                "op": one.op,
                "local": one.local,
                "without": one.without,
                "only": one.only,
                "macs": one.work.macs,
                "share": one.share,
            }
            for one in result.ranking.findings[:top]
        ],
    }
    if result.ranking.groups:
        facts["groups"] = [
            {"group": one.label, "nodes": list(one.nodes), "without": one.after, "share": one.share}
            for one in result.ranking.groups[:top]
        ]
    if result.table.provenance.candidates is not None:
        facts["candidates"] = result.table.provenance.candidates
    return facts
