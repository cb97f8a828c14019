# SPDX-License-Identifier: Apache-2.0
"""`qdqtool insert`: a model to a Q/DQ model. Parses arguments and prints results."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.amax.method_table import parse_method
from qdqtool.cli.data import add_data_arguments, calibration_options_from, data_options_from, print_notes
from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.loss_steps import likely_cause, lose_less, measured_first, peeled_first
from qdqtool.cli.next_steps import (
    after_insert,
    conditioned_insert,
    deployed_to_dla,
    insert_with_more_float,
    ranked_operators,
)
from qdqtool.cli.output import print_json, print_lines, warn, write_error
from qdqtool.errors import QdqError, printable
from qdqtool.match.options import KeepFloat, PlanOptions
from qdqtool.rtxversion import RTX_HONESTY, RTX_TARGET
from qdqtool.verbs.insert_options import InsertOptions, InsertResult

if TYPE_CHECKING:
    from qdqtool.match.plan import Plan
    from qdqtool.trtversion import TrtVersion

_BY_DATA = "layers that stay in float for accuracy and attentions in INT8 are decided with the data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the ONNX model, which is not changed")
    add_data_arguments(parser)
    parser.add_argument("--scales", metavar="S", help="a scale table that calibrate wrote, in place of data")
    parser.add_argument(
        "--method",
        metavar="M",
        help="calibration method; see calibrate -h (default auto; mse for a model that condition edited)",
    )
    add_options(parser, PlanOptions, without=("keep_float",))
    add_options(parser, InsertOptions)
    parser.add_argument("--dry-run", action="store_true", help="print the plan, write nothing")
    parser.add_argument("--explain", metavar="NAME", help="print the decisions on a tensor or node; write nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--output", metavar="OUT", help="default: beside MODEL, with .qdq.onnx for its ending")


def run(args: argparse.Namespace) -> int:
    """Insert, or only say what would be; faults are raised as QdqError."""
    from qdqtool.deploying.board_ratios import NOWHERE
    from qdqtool.match.plan import explain
    from qdqtool.verbs.insert import insert, plan_insert
    from qdqtool.verbs.insert_measure import check_data

    options = _options(args)
    _check_method(args)
    if args.dry_run or args.explain:
        _warn_of_opset(args, None if args.opset_lowered_later else options.plan.trt_version)
        if args.data is not None:
            check_data(args.model, args.data, options.data_options)
            warn(f"a dry run does not calibrate: {_BY_DATA}", args, kind="note")
        planned = plan_insert(args.model, options, data=args.data, scales=args.scales)
        if args.explain:
            print_lines(explain(planned, args.explain, options.plan), args, asked=True)
        else:
            _print_plan(planned, args)
        return 0
    result = insert(args.model, data=args.data, scales=args.scales, options=options, output=args.output)
    print_notes(result.table, args)
    for note in (*result.notes, *_of_target(options.plan)):
        if note.startswith(NOWHERE) and args.said is not None:
            if NOWHERE in args.said:
                continue
            args.said.add(NOWHERE)
        warn(note, args, kind="note")
    for warning in result.build_warnings:
        warn(warning, args)
    if result.overwrites:  # whatever --quiet says: what is lost is not made again in a second
        write_error(f"qdqtool: warning: {printable(result.overwrite_warning)}")
    if result.estimated:
        warn(result.estimate_warning, args)
    if args.json:
        print_json(
            {
                "file": str(result.model),
                **_facts(result.plan),
                "added": len(result.inserted.added),
                "kept": len(result.inserted.kept),
                **_loss_facts(result),
                **({"build": result.costs.to_json()} if result.costs is not None else {}),
                **({"rest": result.rest.to_json()} if result.rest is not None else {}),
                "notes": list(result.notes),
            }
        )
    elif not args.quiet:
        print_lines(_summary(result, args), args)
    return _judge_loss(result, args)


def _of_target(plan: PlanOptions) -> list[str]:
    """What is to be said of INT8 on the target, whatever the model."""
    return [RTX_HONESTY] if plan.target == RTX_TARGET and plan.format == "int8" else []


def _judge_loss(result: InsertResult, args: argparse.Namespace) -> int:
    """Say where the model loses much, or more than was asked for, and what to try next; the exit code."""
    if not result.loss_warning:
        return 0
    todo = _to_try(result, args)
    if result.output_loss is not None and not result.misses:
        best = "best with --labels" if result.output_loss.reads else "tensor by tensor"
        first = f"calibration data say little of the task, so measure first, {best}, "
        first += measured_first(args, Path(str(result.model)), result.output_loss, had_pairs=result.had_pairs)
        if args.format == "int8":
            first += (
                f"; for its likely cause: {likely_cause(args, Path(str(result.model)), edited=bool(args.condition))}"
            )
        warn(f"{result.loss_warning}; {first}; {todo}", args, wrap=True)
        return 0
    miss = f"{result.loss_warning}; {result.model} is written anyway"
    write_error(f"qdqtool: warning: {miss}; {todo}", wrap=True)
    return 1


def _to_try(result: InsertResult, args: argparse.Namespace) -> str:
    """What is left to try: even out the channels; keep more in float, or train; see which operators are to blame."""
    written = Path(str(result.model))
    if result.had_pairs and not result.conditioned:
        return "; ".join(peeled_first(args, written))
    alone = not result.plan.activations  # a format of weights
    less = result.output_loss.smaller() if result.output_loss is not None else 0.0
    if alone and result.conditioned:
        return "try: a smaller --block"
    if args.target == "dla" and args.trt_version:  # no prediction covers edited weights there
        return f"try every way to this DLA: {deployed_to_dla(args)}"
    if not result.conditioned:
        free = args.target != "dla" and result.max_output_loss is None and args.keep_float is None and not alone
        instead = f", or --max-output-loss {less:g} in its place" if free and less else ""
        return f"try: {conditioned_insert(args, written)}{instead}"
    if result.max_output_loss is None and less:
        return f"try: {insert_with_more_float(args, less, written)}"
    if result.search is not None and not result.search.reasons:  # no operator in float lowers the loss
        trained = lose_less(args, written, edited=True)
        if trained:
            return "; ".join(trained)
    return f"try: {ranked_operators(args)}"


def _loss_facts(result: InsertResult) -> dict[str, object]:
    """What JSON tells of the loss at the outputs, where there was data."""
    lost, search = result.output_loss, result.search
    if lost is None:
        return {}
    facts = lost.to_json()
    if result.max_output_loss is not None:
        facts.update(max_output_loss=result.max_output_loss, max_output_loss_met=not result.misses)
    if search is not None:
        facts["search"] = search.to_json()
    return facts


def _check_method(args: argparse.Namespace) -> None:
    """Refuse what says how data is used where there is none, and a method that is not, before reading the model."""
    if args.method is not None:
        parse_method(args.method)
    if args.data is None and (args.method is not None or args.preprocess):
        option = "--preprocess" if args.preprocess else "--method"
        raise QdqError(option, "says how data is used, and no data is given", "give --data")


def _options(args: argparse.Namespace) -> InsertOptions:
    kept = args.keep_float or KeepFloat()
    return options_from(
        InsertOptions,
        args,
        plan=options_from(PlanOptions, args, keep_float=kept.names),
        calibration=calibration_options_from(args),
        data_options=data_options_from(args),
        keep_float=kept.count,
        advise=not args.quiet,
    )


def _facts(plan: Plan) -> dict[str, object]:
    return {
        "points": [
            {
                "tensor": p.tensor,
                "role": p.role,
                "consumers": [f"{r.node}:{r.index}" for r in p.reads],
                "rule": p.rule,
                "reason": p.reason,
                "shared_scale": p.shared_scale,
            }
            for p in plan.points
        ],
        "refusals": [{"site": r.site, "rule": r.rule, "reason": r.reason} for r in plan.refusals],
        "heads": [
            {"node": h.name, "label": h.label, "evidence": h.evidence, "float": h.key in plan.float_nodes}
            for h in plan.heads
        ],
        "groups": [{"rule": g.rule, "nodes": [n.name for n in g.nodes], "output": g.output} for g in plan.groups],
    }


def _warn_of_opset(args: argparse.Namespace, version: TrtVersion | None) -> None:
    """Say that the version's parser does not read the model's opset."""
    from qdqtool.graph.io import open_model
    from qdqtool.graph.opset_lower import opset_warnings

    for warning in opset_warnings(open_model(args.model).proto, version) if version is not None else ():
        warn(warning, args)


def _print_plan(plan: Plan, args: argparse.Namespace) -> None:
    if args.json:
        print_json(_facts(plan))
        return
    print_lines(plan.lines(), args, asked=True)


def _summary(result: InsertResult, args: argparse.Namespace) -> list[str]:
    from qdqtool.conditioning.before_insert import PEEL_FIRST
    from qdqtool.formats import MIXED

    lines, written = result.summary(), Path(str(result.model))
    if result.output_loss is not None and result.output_loss.hint():
        lines.append(f"to measure it, {measured_first(args, written, result.output_loss, had_pairs=result.had_pairs)}")
        if args.format != MIXED:  # neither edited for one format nor trained
            edited = result.had_pairs or bool(result.conditioned)
            lines += lose_less(args, written, edited=edited, attends=bool(result.plan.attentions))
    if any(note.endswith(PEEL_FIRST) for note in result.notes):
        lines += peeled_first(args, written)
    if not result.plan.points and not result.inserted.kept:
        if not result.has_pairs:
            return [*lines, "nothing was quantized: the model has no Q/DQ"]
        lines.append("nothing more was quantized: the model keeps the Q/DQ that it had")
    return [*lines, *after_insert(args, result)]
