# SPDX-License-Identifier: Apache-2.0
"""`qdqtool build`: a model to an engine. Parses arguments and prints results."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.errors import QdqError
from qdqtool.verbs.build_options import BuildOptions

if TYPE_CHECKING:
    from qdqtool.verbs.build import BuildResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="a plain or a Q/DQ model, which is not changed")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the engine; layers go to OUT.layers.json")
    add_options(parser, BuildOptions, only=("shapes", "sm"))
    add_options(parser, BuildOptions, without=("shapes", "sm"))
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
    if args.sm != BuildOptions().sm and args.target != "rtx":
        raise QdqError("--sm", "is for --target rtx: TensorRT builds for the GPU that it runs on", "leave it out")
    return options_from(BuildOptions, args)


def _facts(result: BuildResult) -> dict[str, object]:
    return {
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
