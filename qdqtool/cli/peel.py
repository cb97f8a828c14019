# SPDX-License-Identifier: Apache-2.0
"""`qdqtool peel`: a Q/DQ model to the clean model and its calibration cache. Parses arguments and prints results."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from qdqtool.cli.cache_steps import after_cache, after_script
from qdqtool.cli.data import add_data_arguments, calibration_options_from, data_options_from
from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.output import print_json, print_lines, warn, warn_or_note
from qdqtool.errors import QdqError
from qdqtool.observers.options import CalibrationOptions
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.peel_options import PeelOptions, PeelResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the Q/DQ model, which is not changed")
    add_options(parser, PeelOptions, only=("target", "trt_version"))
    add_options(parser, PeelOptions, without=("target", "trt_version"))
    parser.add_argument("--method", metavar="M", help="dla: calibration method (default: the one of insert)")
    add_data_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="the clean model (default: beside MODEL, with .peeled.onnx for its ending)",
    )
    parser.add_argument("--cache", metavar="C", help="the cache (default: beside MODEL, with .cache for its ending)")


def run(args: argparse.Namespace) -> int:
    """Peel and say what came out; faults are raised as QdqError."""
    from qdqtool.verbs.peel import OWN_SCALES, peel

    options = options_from(
        PeelOptions, args, data=args.data, calibration=_calibration(args), data_options=data_options_from(args)
    )
    result = peel(args.model, options, output=args.output, cache=args.cache)
    for note in result.notes:
        if OWN_SCALES in note:
            warn(note, args, "note")
        else:
            warn_or_note(note, args)
    if args.json:
        print_json(_facts(result))
    else:
        print_lines(_summary(result, options.trt_version, args), args)
    return 0


def _calibration(args: argparse.Namespace) -> CalibrationOptions | None:
    """How data becomes scales; without a method the verb takes the one that suits."""
    for option, given in (
        ("--fill", args.fill != "ptq"),
        ("--no-shared-scales", args.no_shared_scales),
        ("--data", args.data),
        ("--method", args.method),
        ("--force-ptq", args.force_ptq),
    ):
        if args.target == "gpu" and given:
            raise QdqError(
                option, "is for --target dla: a cache for the GPU holds the Q/DQ's own scales", "leave it out"
            )
    if args.target == "gpu":
        return None
    return calibration_options_from(args)


def _facts(result: PeelResult) -> dict[str, object]:
    scales = {name: scale.to_json() for name, scale in result.table.scales.items()}
    return {
        "file": str(result.model),
        "cache": None if result.cache is None else str(result.path),
        "header": None if result.cache is None else result.cache.header,
        "scales": scales,
        "float_outputs": list(result.float_outputs),
        "origins": result.origins,
        "shared_scales": result.shared_scales,
        "unscaled": result.table.unscaled,
        "weights": result.weights.to_json(),
        "emitted": {kind: str(path) for kind, path in result.emitted.items()},
        "layers": [asdict(layer) for layer in result.layers],
        "notes": list(result.notes),
    }


def _summary(result: PeelResult, version: TrtVersion, args: argparse.Namespace) -> list[str]:
    from qdqtool.emit.trtexec_flags import has_flag

    lines = result.summary()
    if result.cache is None:
        return lines
    files = result.model, result.path
    if "trtexec" in result.emitted:
        tells_all = not result.layers or has_flag("--layerPrecisions", version)
        return [*lines, *after_script(args, files, version, result.emitted, tells_all=tells_all)]
    facts = result.layers, result.data, args.max_batch
    is_dla = args.target == "dla"
    return [*lines, *after_cache(args, files, version, result.emitted, *facts, has_all_scales=is_dla)]
