# SPDX-License-Identifier: Apache-2.0
"""`qdqtool build`: a model to an engine. Words to calls and back, no more."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.cli.target import add_max_batch
from qdqtool.errors import QdqError

if TYPE_CHECKING:
    from qdqtool.verbs.build_options import BuildOptions, BuildResult

_PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8", "best")  # as building.recipe.PRECISIONS, which imports more
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="a plain or a Q/DQ model, which is not changed")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the engine; layers go to OUT.layers.json")
    parser.add_argument(
        "--target",
        choices=("gpu", "rtx"),
        default="gpu",
        help="gpu: the installed TensorRT, 8.5 to 11, on its GPU; rtx: TensorRT for RTX, on a CPU (default gpu)",
    )
    parser.add_argument(
        "--shapes",
        metavar="S",
        help="shapes of inputs with dynamic dimensions: x:1x3x320x320 or x:MIN:OPT:MAX, separated by commas",
    )
    add_max_batch(parser)
    parser.add_argument("--sm", metavar="N", help="rtx: compute capabilities, such as 89,120 (default 89)")
    parser.add_argument(
        "--precision", choices=_PRECISIONS, help="gpu, up to TensorRT 10: types in which layers may run"
    )
    parser.add_argument("--cache", metavar="C", help="gpu, up to TensorRT 10: the calibration cache of a plain model")
    parser.add_argument(
        "--layer-precisions", metavar="F", help="the file of peel --emit json (default: the one beside the cache)"
    )
    parser.add_argument("--dla-core", metavar="N", type=int, help="gpu: the DLA core that runs what it can")
    parser.add_argument("--workspace", metavar="B", help="gpu: workspace memory at most: bytes, or 512M, 4G")
    parser.add_argument("--timing-cache", metavar="F", help="gpu: timing cache, read if it exists, and written")
    parser.add_argument("--trt-version", metavar="V", help="gpu: refuse any other TensorRT than this")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Build and say what came out; faults are raised as QdqError."""
    from qdqtool.verbs.build import build

    result = build(args.model, args.output, _options(args))
    for note in result.notes:
        warn(note, args, "note")
    if args.json:
        print_json(_facts(result))
    else:
        print_lines([*result.summary(), *_next(result)], args)
    return 0


def _options(args: argparse.Namespace) -> BuildOptions:
    from qdqtool.verbs.build_options import BuildOptions, parse_capabilities, parse_shape_ranges

    if args.sm is not None and args.target != "rtx":
        raise QdqError("--sm", "is for --target rtx: TensorRT builds for the GPU that it runs on", "leave it out")
    return BuildOptions(
        args.target,
        {} if args.shapes is None else parse_shape_ranges(args.shapes),
        BuildOptions().sm if args.sm is None else parse_capabilities(args.sm),
        args.precision,
        args.cache,
        args.layer_precisions,
        args.dla_core,
        _bytes(args.workspace),
        args.timing_cache,
        args.trt_version,
        max_batch=args.max_batch,
    )


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,15})([KMG]?)", text, re.ASCII)
    if not found:
        raise QdqError(f"--workspace {text}", "is not a number of bytes", "write bytes, or a number with K, M or G")
    return int(found[1]) * _UNITS[found[2]]


def _facts(result: BuildResult) -> dict[str, object]:
    return {
        "schema": 1,
        "engine": str(result.engine),
        "layers_file": None if result.layers_file is None else str(result.layers_file),
        "built": result.built,
        "engine_bytes": result.engine_bytes,
        "cpu_seconds": result.cpu_seconds,
        "peak_bytes": result.peak_bytes,
        "totals": None if result.totals is None else result.totals.to_json(),
        "notes": list(result.notes),
    }


def _next(result: BuildResult) -> list[str]:
    return [] if result.layers_file is None else [f"next: qdqtool engine show {result.layers_file}"]
