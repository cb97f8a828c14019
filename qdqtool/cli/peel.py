# SPDX-License-Identifier: Apache-2.0
"""`qdqtool peel`: a Q/DQ model to the clean model and its calibration cache. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.cli.show import counted, print_json, print_lines, warn

if TYPE_CHECKING:
    from qdqtool.verbs import PeelResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the Q/DQ model, which stays as it is")
    parser.add_argument("--target", choices=("gpu",), required=True, help="whose cache is written")
    parser.add_argument("--trt-version", metavar="V", required=True, help="such as 7100, 8.5.2, jp4.6, drive6.0.9")
    parser.add_argument(
        "--source", metavar="M", help="the model that Q/DQ were inserted into: it is given back as it was"
    )
    parser.add_argument(
        "--on-conflict", choices=("error", "max"), default="error", help="where one tensor has several scales"
    )
    parser.add_argument("--allow-estimated", action="store_true", help="write scales that no data was seen for")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="the clean model (default: MODEL with .peeled.onnx for its ending)"
    )
    parser.add_argument("--cache", metavar="C", help="the cache (default: MODEL with .cache for its ending)")


def run(args: argparse.Namespace) -> int:
    """Peel and say what came out; faults are raised as QdqError."""
    from qdqtool import verbs
    from qdqtool.trtversion import parse

    options = verbs.PeelOptions(
        trt_version=parse(args.trt_version),
        target=args.target,
        on_conflict=args.on_conflict,
        allow_estimated=args.allow_estimated,
        source=args.source,
    )
    cache = args.cache or Path(args.model).with_suffix(".cache")
    result = verbs.peel(args.model, options, output=args.output, cache=cache)
    for note in result.notes:
        warn(note, args)
    if args.json:
        print_json(_facts(result, str(cache)))
    else:
        print_lines(_summary(result, str(cache)), args)
    return 0


def _facts(result: PeelResult, cache: str) -> dict[str, object]:
    scales = {name: scale.to_json() for name, scale in result.table.scales.items()}
    return {
        "schema": 1,
        "file": str(result.model),
        "cache": cache,
        "header": result.cache.header,
        "scales": scales,
        "float_outputs": list(result.float_outputs),
    }


def _summary(result: PeelResult, cache: str) -> list[str]:
    equal = sum(scale.origin == "equal" for scale in result.table.scales.values())
    scales = counted(len(result.table), "scale")
    lines = [
        f"wrote {result.model}",
        f"wrote {cache}: {result.cache.header}, {scales}, {equal} of them from neighbours of the same values",
    ]
    if result.float_outputs:
        shown = ", ".join(result.float_outputs[:6])
        more = f" and {len(result.float_outputs) - 6} more" if result.float_outputs[6:] else ""
        lines.append(f"outputs of INT8 groups that stay float: {shown}{more}")
    lines.append(f"next: trtexec --onnx={result.model} --int8 --fp16 --calib={cache}")
    return lines
