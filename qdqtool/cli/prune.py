# SPDX-License-Identifier: Apache-2.0
"""`qdqtool prune`: a model to a smaller model. Parses arguments and prints results."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from qdqtool.cli.data import add_data_arguments, data_options_from
from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.next_steps import after_prune
from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.display import written
from qdqtool.errors import QdqError
from qdqtool.verbs.prune_options import PruneOptions

if TYPE_CHECKING:
    from qdqtool.verbs.prune import PruneResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the ONNX model, plain or Q/DQ, which is not changed")
    add_options(parser, PruneOptions, without=("provider",))
    add_data_arguments(parser, required=False, calibrates=False)
    parser.add_argument(
        "--explain", metavar="GROUP", help="print the members of a group, or why an operator cannot be pruned"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed, write nothing")
    parser.add_argument("-o", "--output", metavar="OUT", help="default: beside MODEL, with .pruned.onnx for its ending")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Prune, write the model, say what went."""
    from qdqtool.verbs.prune import plan_pruning, prune

    options = options_from(
        PruneOptions,
        args,
        data_options=data_options_from(args),
        progress=False if args.quiet else None,
    )
    if args.dry_run or args.explain:
        result = plan_pruning(args.model, args.data, options)
    else:
        result = prune(args.model, args.data, options, args.output)
    for note in result.notes:
        warn(note, args, kind="note")
    if args.json:
        print_json(_document(args, result))
    elif args.explain:
        print_lines(_explained(result, args.explain), args)
    else:
        print_lines(_lines(args, result), args)
    return 0


def _lines(args: argparse.Namespace, result: PruneResult[Any]) -> list[str]:

    lines = [*result.summary(), *result.group_lines()]
    pinned = result.done.pinned
    lines += [f"keeps all or some channels: {name}: {reason}" for name, reason in list(pinned.items())[:8]]
    if len(pinned) > 8:
        lines.append(f"and {len(pinned) - 8} more (--json)")
    return lines if args.dry_run else [*lines, *written(result.model), *after_prune(args, result)]


def _explained(result: PruneResult[Any], name: str) -> list[str]:
    for group in result.done.groups:
        if group.name == name:
            lines = [f"{group.name}: keeps {group.kept} of {group.total}", *(f"  {one}" for one in group.operators)]
            pairs = {"parameters": group.parameters, "multiply-adds": group.multiply_adds}
            return [*lines, *(f"  {what} {before} -> {after}" for what, (before, after) in pairs.items())]
    if name in result.done.pinned:
        return [f"{name}: {result.done.pinned[name]}"]
    raise QdqError(
        "--explain", f"{name} is neither a group nor an operator that keeps channels", "see --dry-run --json"
    )


def _document(args: argparse.Namespace, result: PruneResult[Any]) -> dict[str, Any]:
    done = result.done
    return {
        "file": None if args.dry_run or args.explain else str(result.model),
        "channels": done.channels,
        "prunable": done.prunable,
        "parameters": {"before": done.parameters[0], "after": done.parameters[1]},
        "macs": {"before": done.multiply_adds[0], "after": done.multiply_adds[1]},
        "difference": None if done.difference is None else done.difference.outputs,
        "corrected": list(done.corrected),
        "reconstructed": list(done.reconstructed),
        "held_out": [one.to_json() for one in done.judged],
        "shared_out": done.shared_out or None,
        "forecast": None if done.forecast is None else done.forecast.to_json(),
        "groups": [group.to_json() for group in done.groups],
        "pinned": done.pinned,
    }
