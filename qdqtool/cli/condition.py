# SPDX-License-Identifier: Apache-2.0
"""`qdqtool condition`: a model and data to a model that quantizes better. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.cli.data import add_data_arguments, feed_options_from
from qdqtool.cli.show import counted, print_json, print_lines, warn

if TYPE_CHECKING:
    from qdqtool.conditioning.edits import Conditioned
    from qdqtool.verbs import ConditionOptions, ConditionResult

_SHOWN = 8
_TOLD = {
    "relu6": ("Relu", "cut off at 6"),
    "equalize": ("tensor", "evened out in the weights around it"),
    "smooth": ("tensor", "evened out by a Mul behind it"),
    "clip": ("operator", "with clipped weights"),
    "correct": ("operator", "with a corrected bias"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the plain ONNX model, which stays as it is")
    add_data_arguments(parser, required=True, calibrates=False)
    parser.add_argument(
        "--steps",
        metavar="S",
        default="auto",
        help="some of equalize,smooth,clip,correct (default auto: all that win); relu6 only where it is named",
    )
    parser.add_argument(
        "--method", metavar="M", default="mse", help="the one that insert will be given, for correct (default mse)"
    )
    parser.add_argument(
        "--factors",
        choices=("float", "power-of-two"),
        default="float",
        help="what channels are divided by; powers of two keep the float function to the bit, and win less",
    )
    parser.add_argument("--trt-version", metavar="V", help="whose rules place the pairs (default: the newest known)")
    parser.add_argument("--rules", metavar="F", help="a rules file of your own that extends the target's")
    parser.add_argument(
        "--float-heads",
        choices=("regression", "all", "none"),
        default="regression",
        help="detection heads that insert will leave in float",
    )
    parser.add_argument("--heads", metavar="RE", action="append", default=[], help="as insert will be given")
    parser.add_argument("--not-heads", metavar="RE", action="append", default=[], help="as insert will be given")
    parser.add_argument("-o", "--output", metavar="OUT", help="default: MODEL with .conditioned.onnx for its ending")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Condition, write the model, say what was edited and what it changed.

    Returns:
        0; faults are raised as QdqError.
    """
    from qdqtool.verbs import condition

    result = condition(args.model, args.data, _options(args), args.output)
    for note in result.done.notes:
        warn(note, args, kind="note")
    if args.json:
        print_json(_document(result))
    else:
        print_lines(_lines(args, result), args)
    return 0


def _options(args: argparse.Namespace) -> ConditionOptions:
    from qdqtool.conditioning.edits import parse_steps
    from qdqtool.match.plan import PlanOptions
    from qdqtool.trtversion import parse
    from qdqtool.verbs import ConditionOptions

    plan = PlanOptions(
        trt_version=parse(args.trt_version) if args.trt_version else None,
        float_heads=args.float_heads,
        heads=tuple(args.heads),
        not_heads=tuple(args.not_heads),
        rules=Path(args.rules) if args.rules else None,
    )
    feed = feed_options_from(args)
    return ConditionOptions(parse_steps(args.steps), args.method, args.provider, args.factors, plan, feed)


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
    from qdqtool.cli.next_steps import after_condition

    done = result.done
    lines = [f"{result.model}: {counted(len(done.edits), 'edit')}, {counted(done.samples, 'sample')}"]
    for step, (what, how) in _TOLD.items():
        if done.count(step):
            lines.append(f"  {step}: {counted(done.count(step), what)} {how}")
    lines += _effect(done)
    return [*lines, *after_condition(args, result)]


def _effect(done: Conditioned) -> list[str]:
    """What was predicted, what stayed, what moved."""
    lines = []
    if done.before is not None and done.after is not None and (done.count("equalize") or done.count("smooth")):
        lines.append(
            f"predicted signal to noise of the operators: worst {done.before.worst:.1f} -> {done.after.worst:.1f} dB, "
            f"mean {done.before.mean:.1f} -> {done.after.mean:.1f} dB (each by itself, simulated)"
        )
    if done.kept:
        most = max(one.of_range for one in done.kept.values())
        lines.append(f"equalize and smooth keep the float function: outputs moved by {most:.0e} of their range")
    if done.count("relu6") or done.count("clip") or done.count("correct"):
        steps = "relu6, clip and correct" if done.count("relu6") else "clip and correct"
        lines.append(f"{steps} change the float function; signal to noise of its outputs against the original:")
        lines += [f"  {name}: {one.decibel:.1f} dB" for name, one in list(done.moved.items())[:_SHOWN]]
        if len(done.moved) > _SHOWN:
            lines.append(f"  and {len(done.moved) - _SHOWN} more (--json)")
    return lines
