# SPDX-License-Identifier: Apache-2.0
"""`qdqtool calibrate`: a model and data to a table of scales. Words to calls and back, no more."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.cli.data import add_data_arguments, data_paths, feed_options_from, print_notes

if TYPE_CHECKING:
    from qdqtool.scales import ScaleTable

_SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the ONNX model, which stays as it is")
    add_data_arguments(parser, required=True)
    parser.add_argument(
        "--method",
        metavar="M",
        default="mse",
        help="mse (default), max, percentile[=99.99], entropy (TensorRT's) or entropy-stable",
    )
    parser.add_argument("-o", "--output", metavar="OUT", help="default: MODEL with .scales.json for its ending")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Calibrate, write the table, say what is in it.

    Returns:
        0; faults are raised as QdqError.
    """
    from qdqtool.calibration.engine import CalibrationOptions, calibrate
    from qdqtool.files import refuse_overwrite, replacing

    model = Path(args.model)
    output = Path(args.output) if args.output else model.parent / f"{model.stem}.scales.json"
    refuse_overwrite(output, [args.model, *data_paths(args)])
    options = CalibrationOptions(args.method, args.provider, progress=False if args.quiet else None)
    table = calibrate(args.model, args.data, options, feed_options_from(args))
    print_notes(table, args)
    with replacing(output) as file:
        file.write(table.to_json().encode())
    _report(args, table, output)
    return 0


def _report(args: argparse.Namespace, table: ScaleTable, output: Path) -> None:
    if args.json:
        facts: dict[str, Any] = {"file": str(output), "scales": len(table), "unscaled": table.unscaled}
        sys.stdout.write(json.dumps({**facts, **table.facts}, indent=1, ensure_ascii=False) + "\n")
    elif not args.quiet:
        sys.stdout.write("\n".join(_summary(args, table, output)) + "\n")


def _summary(args: argparse.Namespace, table: ScaleTable, output: Path) -> list[str]:
    samples, method = table.facts["samples"], table.facts["method"]
    lines = [f"{output}: {len(table)} tensors with a scale, method {method}, {samples} samples"]
    if table.unscaled:
        lines.append(f"{len(table.unscaled)} without:")
        lines += [f"  {name}: {reason}" for name, reason in list(table.unscaled.items())[:_SHOWN]]
        if len(table.unscaled) > _SHOWN:
            lines.append(f'  and {len(table.unscaled) - _SHOWN} more (in the file, under "unscaled")')
    lines.append(f"next: qdqtool insert {args.model} --scales {output}")
    return lines
