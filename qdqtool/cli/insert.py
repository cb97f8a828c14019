# SPDX-License-Identifier: Apache-2.0
"""`qdqtool insert`: a model to a Q/DQ model. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.cli.data import add_data_arguments, calibration_options_from, data_options_from, print_notes
from qdqtool.cli.loss_steps import lose_less, measured_first, peeled_first
from qdqtool.cli.next_steps import after_insert, conditioned_insert, insert_with_more_float, ranked_operators
from qdqtool.cli.output import print_json, print_lines, warn, write_error
from qdqtool.cli.plan_options import keep_float
from qdqtool.display import counted
from qdqtool.errors import QdqError, printable
from qdqtool.rtxversion import RTX_HONESTY, RTX_TARGET

if TYPE_CHECKING:
    from qdqtool.match.plan import Plan, PlanOptions
    from qdqtool.trtversion import TrtVersion
    from qdqtool.verbs.insert_options import InsertOptions, InsertResult

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
    parser.add_argument(
        "--target",
        choices=("gpu", "rtx", "dla"),
        default="gpu",
        help="gpu (default): around fused groups; rtx: TensorRT for RTX; dla: every tensor",
    )
    parser.add_argument(
        "--trt-version", metavar="V", help="TensorRT version whose rules place the pairs (default: the newest known)"
    )
    parser.add_argument("--rules", metavar="F", help="a rules file of your own that extends the target's")
    parser.add_argument(
        "--float-heads",
        choices=("regression", "all", "none"),
        default="regression",
        help="detection heads left in float",
    )
    parser.add_argument(
        "--heads",
        metavar="RE",
        action="append",
        default=[],
        help="more operators left in float: node, tensor or output names",
    )
    parser.add_argument(
        "--not-heads", metavar="RE", action="append", default=[], help="heads that are quantized anyway"
    )
    _add_type_arguments(parser)
    _add_accuracy_arguments(parser)
    parser.add_argument(
        "--fold-bn", action="store_true", help="first fold BatchNormalization into the weights, where that is exact"
    )
    parser.add_argument(
        "--fold-constants", action="store_true", help="first store what operators compute from constants alone"
    )
    parser.add_argument("--requantize", action="store_true", help="remove the Q/DQ of the model first")
    parser.add_argument(
        "--input-range", metavar="LO:HI", help="range of the network's input, to estimate scales without data"
    )
    parser.add_argument(
        "--allow-empty",
        action="store_true",
        help="if nothing can be quantized, write the model without Q/DQ instead of stopping",
    )
    parser.add_argument("--opset-lowered-later", action="store_true", help=argparse.SUPPRESS)  # said by `run`
    parser.add_argument("--dry-run", action="store_true", help="print the plan, write nothing")
    parser.add_argument(
        "--explain", metavar="NAME", help="print what was decided about a tensor or node, write nothing"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--output", metavar="OUT", help="default: beside MODEL, with .qdq.onnx for its ending")


def _add_type_arguments(parser: argparse.ArgumentParser) -> None:
    """How weights are scaled, what depthwise convolutions compute in, and what the engine then costs."""
    parser.add_argument(
        "--weights",
        choices=("per-channel", "per-tensor"),
        default="per-channel",
        help="scales of weights: one per output channel (default), or one per weight, which is coarser",
    )
    parser.add_argument(
        "--depthwise",
        choices=("int8", "float"),
        help="depthwise convolutions in INT8, or left in float (default: as the target's rules say)",
    )
    parser.add_argument(
        "--decoder",
        choices=("float", "int8"),
        default="float",
        help="decoder of a DETR-like detector: left in float (default), or in INT8 with float boxes",
    )
    parser.add_argument(
        "--attention",
        choices=("auto", "int8", "float"),
        default="auto",
        help="attentions that are built as one INT8 kernel: quantized where data show that little is lost (auto, the"
        " default), all of them, or none",
    )
    parser.add_argument(
        "--rest",
        choices=("fp16", "bf16", "fp32"),
        help="float type of operators that are not INT8, written as Casts (default: fp16 from --trt-version 11 on, "
        "with data"
        " or scales; else fp32)",
    )
    parser.add_argument(
        "--dq-only",
        action="store_true",
        help="store quantized weights as INT8, with only a DequantizeLinear after them",
    )
    parser.add_argument(
        "--build",
        action="store_true",
        help="with --target rtx: build engines of the float, FP16 and INT8 file on this CPU, and say what INT8 costs",
    )


def _add_accuracy_arguments(parser: argparse.ArgumentParser) -> None:
    """What is kept in float, calibrated and edited for accuracy's sake."""
    parser.add_argument(
        "--keep-float",
        metavar="N",
        type=keep_float,
        help="operators that stay in float: names separated by commas; or how many may stay in float for accuracy: a "
        "number, or auto: a few, where the loss is concentrated (default auto with --data for the GPU, else 0)",
    )
    parser.add_argument(
        "--max-output-loss",
        metavar="L",
        type=float,
        help="keep the cheapest operators in float that reduce the loss at the outputs (0 to 1) to L; exit 1 if that is"
        " not reached",
    )
    parser.add_argument(
        "--points-only",
        action="store_true",
        help="calibrate only tensors that get Q/DQ: faster, but peel --target dla then needs --data",
    )
    parser.add_argument(
        "--condition",
        metavar="STEPS",
        default="",
        help="edit weights first: auto, or some of relu6,equalize,smooth,shift,clip,correct; see condition -h",
    )


def run(args: argparse.Namespace) -> int:
    """Insert, or only say what would be; faults are raised as QdqError."""
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
        warn(note, args, kind="note")
    for warning in result.warnings:
        warn(warning, args)
    if result.overwrites:  # whatever --quiet says: what is lost is not made again in a second
        lost = f"{result.model}: replaced a file that held {result.overwrites} by one with estimated scales"
        write_error(f"qdqtool: warning: {printable(lost)}; -o writes another file")
    if result.estimated:
        warn(f"{counted(result.estimated, 'scale')} estimated without data: calibrate with --data, or fine-tune", args)
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
            }
        )
    else:
        print_lines(_summary(result, args), args)
    return _judge_loss(result, args)


def _of_target(plan: PlanOptions) -> list[str]:
    """What is to be said of INT8 on the target, whatever the model."""
    return [RTX_HONESTY] if plan.target == RTX_TARGET else []


def _judge_loss(result: InsertResult, args: argparse.Namespace) -> int:
    """Say where the model loses much, or more than was asked for, and what to try next; the exit code."""
    if not result.misses and not (result.output_loss and result.output_loss.large):
        return 0
    todo = _to_try(result, args)
    if not result.misses:
        first = "that says little of the task, so measure first, best with --labels and other images: "
        first += measured_first(args, Path(str(result.model)))
        warn(f"{result.model}: {result.format_loss()}; {first}; {todo}", args)
        return 0
    miss = f"is not met: {result.format_loss()}; {result.model} is written anyway"
    write_error(f"qdqtool: warning: --max-output-loss {args.max_output_loss}: {miss}; {todo}")
    return 1


def _to_try(result: InsertResult, args: argparse.Namespace) -> str:
    """What is left to try: even out the channels; keep more in float; see which operators are to blame."""
    from qdqtool.mixed_precision.output_loss import LARGE_LOSS

    written = Path(str(result.model))
    if (result.inserted.kept or result.requantized) and not result.conditioned:
        return "; ".join(peeled_first(args, written))
    if not result.conditioned:
        free = result.max_output_loss is None and args.keep_float is None
        instead = f", or --max-output-loss {LARGE_LOSS} in its place" if free else ""
        return f"try: {conditioned_insert(args, written)}{instead}"
    if result.max_output_loss is None:
        return f"try: {insert_with_more_float(args, LARGE_LOSS, written)}"
    return f"try: {ranked_operators(args)}"


def _loss_facts(result: InsertResult) -> dict[str, object]:
    """What JSON tells of the loss at the outputs, where there was data."""
    lost, search = result.output_loss, result.search
    if lost is None:
        return {}
    facts: dict[str, object] = {
        "output_loss": lost.value,
        "output_loss_samples": lost.samples,
        "output_loss_large": lost.large,
    }
    if lost.value is None:
        facts["output_loss_reason"] = lost.reason
    if result.max_output_loss is not None:
        facts.update(max_output_loss=result.max_output_loss, max_output_loss_met=not result.misses)
    if search is not None:
        facts["search"] = search.to_json()
    return facts


def _check_method(args: argparse.Namespace) -> None:
    """Refuse what says how data is used where there is none, and a method that is not, before reading the model."""
    from qdqtool.amax.methods import parse_method

    if args.method is not None:
        parse_method(args.method)
    if args.data is None and (args.method is not None or args.preprocess):
        option = "--preprocess" if args.preprocess else "--method"
        raise QdqError(option, "says how data is used, and no data is given", "give --data")


def _options(args: argparse.Namespace) -> InsertOptions:
    from qdqtool.verbs.insert_options import InsertOptions

    return InsertOptions(
        plan=_plan_options(args),
        calibration=calibration_options_from(args),
        data_options=data_options_from(args),
        fold_bn=args.fold_bn,
        fold_constants=args.fold_constants,
        requantize=args.requantize,
        input_range=_range(args.input_range),
        keep_float=None if args.keep_float is None else args.keep_float.count,
        max_output_loss=args.max_output_loss,
        condition=args.condition,
        advise=not args.quiet,
        whole_table=not args.points_only,
        allow_empty=args.allow_empty,
        build=args.build,
        rest=args.rest,
        dq_only=args.dq_only,
        opset_lowered_later=args.opset_lowered_later,
    )


def _plan_options(args: argparse.Namespace) -> PlanOptions:
    from qdqtool.match.plan import PlanOptions

    return PlanOptions(
        target=args.target,
        trt_version=args.trt_version,
        float_heads=args.float_heads,
        heads=tuple(args.heads),
        not_heads=tuple(args.not_heads),
        keep_float=() if args.keep_float is None else args.keep_float.names,
        rules=None if args.rules is None else Path(args.rules),
        weights=args.weights,
        depthwise=args.depthwise,
        decoder=args.decoder,
        attention=args.attention,
    )


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    low, colon, high = text.partition(":")
    try:
        limits = float(low), float(high)
    except ValueError:
        limits = (0.0, 0.0)
    if not colon or not -3e38 < limits[0] < limits[1] < 3e38:
        raise QdqError(f"--input-range {text}", "is not two numbers, the smaller first", "write it like 0:1")
    return limits


def _facts(plan: Plan) -> dict[str, object]:
    return {
        "schema": 1,
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

    lines, written = result.summary(), Path(str(result.model))
    if result.output_loss is not None and result.output_loss.hint():
        lines += lose_less(args, written, plain=not (result.inserted.kept or result.requantized or result.conditioned))
    if any(note.endswith(PEEL_FIRST) for note in result.notes):
        lines += peeled_first(args, written)
    if not result.plan.points and not result.inserted.kept:
        if not result.has_pairs:
            return [*lines, "nothing was quantized: the model has no Q/DQ"]
        lines.append("nothing more was quantized: the model keeps the Q/DQ that it had")
    return [*lines, *after_insert(args, result)]
