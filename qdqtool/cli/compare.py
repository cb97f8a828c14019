# SPDX-License-Identifier: Apache-2.0
"""`qdqtool compare`: two models and data to how far they lie apart. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qdqtool.cli.data import add_data_arguments, feed_options_from
from qdqtool.cli.figures import measure_rows, shown, table
from qdqtool.cli.reading import add_reading_arguments, draw_asked, drawn_json, drawn_lines
from qdqtool.cli.show import counted, print_json, print_lines, warn

if TYPE_CHECKING:
    from qdqtool.verbs.compare import Comparison

_NAMED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("reference", metavar="A", help="the model that counts as right, such as the plain one")
    parser.add_argument("other", metavar="B", help="the model that is judged, such as its Q/DQ one")
    add_data_arguments(parser, required=True, calibrates=False)
    parser.add_argument(
        "--tensors", metavar="T", default="all", help="all (default), outputs, or a regular expression on names"
    )
    parser.add_argument("--top", metavar="N", type=int, default=10, help="culprits that are shown (default 10)")
    parser.add_argument("--draw", metavar="OUT", help="folder for the boxes of both side by side, worst images first")
    add_reading_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Compare and say where the error is born; faults are raised as QdqError."""
    from qdqtool.verbs.compare import CompareOptions, compare

    drawn = draw_asked(args, (args.reference, args.other))
    options = CompareOptions(args.tensors, args.provider, progress=False if args.quiet else None)
    result = compare(args.reference, args.other, args.data, options, feed_options_from(args))
    for name in result.broken:
        warn(f"{name}: NaN or Inf in one of the models where the other has something else", args)
    if args.json:
        print_json(result.to_json(max(0, args.top)) | drawn_json(drawn))
    else:
        print_lines([*_summary(result, args), *drawn_lines(drawn)], args)
    return 0


def _summary(result: Comparison, args: argparse.Namespace) -> list[str]:
    from qdqtool.verbs.compare import NO_TASK_METRIC

    counts = f"{counted(len(result.tensors), 'tensor')}, {counted(result.samples, 'sample')}"
    lines = [f"{args.other} against {args.reference}: {counts}"]
    lines += measure_rows("output", result.outputs)
    if args.tensors not in ("all", "outputs"):
        lines += measure_rows("tensor", result.tensors)
    lines += _culprits(result, args.top)
    lines += _left_out(result, args)
    return [*lines, *result.notes, NO_TASK_METRIC]


def _culprits(result: Comparison, top: int) -> list[str]:
    rows = [
        (one.site.operator, one.site.kind, one.site.output, *map(shown, (one.sqnr_in, one.sqnr_read, one.sqnr_out)))
        for one in result.culprits[: max(0, top)]
    ]
    head = ("where SQNR drops, most first", "operators", "tensor", "dB in", "dB read", "dB out")
    return table(head, rows) if rows else []


def _left_out(result: Comparison, args: argparse.Namespace) -> list[str]:
    """What has no measure: by reason, and by the model that alone has it."""
    reasons: dict[str, list[str]] = {}
    for name, reason in result.uncompared.items():
        reasons.setdefault(reason, []).append(name)
    lines = [
        f"not compared, {reason}: {counted(len(names), 'tensor')}, {_named(names)}" for reason, names in reasons.items()
    ]
    for model, names in zip((args.reference, args.other), result.only, strict=True):
        if names:
            lines.append(f"only in {model}: {_named(names)}")
    return lines


def _named(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED} more (--json has them)" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
