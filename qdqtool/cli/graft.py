# SPDX-License-Identifier: Apache-2.0
"""`qdqtool graft`: a plain model and a calibration cache to a Q/DQ model. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.cli.show import counted, print_json, print_lines, warn

if TYPE_CHECKING:
    from qdqtool.verbs.graft import GraftResult

_SHOWN = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the plain ONNX model, which stays as it is")
    parser.add_argument("--cache", metavar="C", required=True, help="a calibration cache of any TensorRT version")
    parser.add_argument("--trt-version", metavar="V", help="whose rules place the pairs (default: the newest known)")
    parser.add_argument("--rules", metavar="F", help="a rules file of your own that extends the target's")
    parser.add_argument(
        "--float-heads", choices=("regression", "all", "none"), default="none", help="detection heads left in float"
    )
    parser.add_argument("--everywhere", action="store_true", help="place every entry, also where the rules want none")
    parser.add_argument("--requantize", action="store_true", help="take the Q/DQ of the model out first")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--output", metavar="OUT", help="default: MODEL with .qdq.onnx for its ending")


def run(args: argparse.Namespace) -> int:
    """Graft and say what became of each entry; faults are raised as QdqError."""
    from qdqtool.match.plan import PlanOptions
    from qdqtool.trtversion import parse
    from qdqtool.verbs.graft import GraftOptions, graft

    version = parse(args.trt_version) if args.trt_version else None
    rules = Path(args.rules) if args.rules else None
    plan = PlanOptions(trt_version=version, float_heads=args.float_heads, rules=rules)
    result = graft(args.model, args.cache, GraftOptions(plan, args.everywhere, args.requantize), output=args.output)
    for note in result.notes:
        warn(note, args, kind="note")
    if args.json:
        print_json(_facts(result))
    else:
        print_lines(_summary(result), args)
    return 0


def _facts(result: GraftResult) -> dict[str, object]:
    return {
        "schema": 1,
        "file": str(result.model),
        "placed": [point.tensor for point in result.plan.activations],
        "weights": [point.tensor for point in result.plan.weights],
        "unplaced": result.unplaced,
        "unknown": {name: list(near) for name, near in result.unknown.items()},
        "made_up": list(result.made_up),
        "uncovered": list(result.uncovered),
        "refusals": [{"site": r.site, "rule": r.rule, "reason": r.reason} for r in result.plan.refusals],
    }


def _summary(result: GraftResult) -> list[str]:
    plan = result.plan
    scales, weights = counted(len(plan.activations), "scale"), counted(len(plan.weights), "weight")
    lines = [f"placed {scales} of the cache, and pairs on {weights}"]
    if result.unplaced:
        lines.append(f"{counted(len(result.unplaced), 'entry')} without a point:".replace("entrys", "entries"))
        reasons: dict[str, list[str]] = {}
        for name, reason in result.unplaced.items():
            reasons.setdefault(reason.split(" of ")[0], []).append(name)
        lines += [f"  {len(names)} {reason}, such as {names[0]}" for reason, names in reasons.items()]
    if result.unknown:
        shown = [name + (f" (near: {', '.join(near)})" if near else "") for name, near in result.unknown.items()]
        more = f" and {len(shown) - _SHOWN} more" if shown[_SHOWN:] else ""
        lines.append(f"{counted(len(shown), 'name')} that the model lacks: {', '.join(shown[:_SHOWN])}{more}")
    if result.made_up:
        names = counted(len(result.made_up), "name")
        lines.append(f"{names} of TensorRT's own making, which no model has, such as {result.made_up[0]}")
    if result.uncovered:
        lacking = counted(len(result.uncovered), "float tensor")
        lines.append(f"{lacking} of the model not in the cache, such as {result.uncovered[0]}")
    starved = [r.site for r in plan.refusals if r.rule == "no-scale"]
    if starved:
        lines.append(f"{len(starved)} places left in float for want of a scale, such as {starved[0]}")
    lines.append(f"wrote {result.model}")
    return lines
