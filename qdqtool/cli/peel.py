# SPDX-License-Identifier: Apache-2.0
"""`qdqtool peel`: a Q/DQ model to the clean model and its calibration cache. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.cli.cache_steps import after_cache, after_script
from qdqtool.cli.data import add_data_arguments, calibration_options_from, data_options_from
from qdqtool.cli.output import print_json, print_lines, warn_or_note
from qdqtool.cli.target import add_emit_arguments, cache_target, emitted_kinds
from qdqtool.errors import QdqError

if TYPE_CHECKING:
    from qdqtool.calibration.engine import CalibrationOptions
    from qdqtool.trtversion import TrtVersion
    from qdqtool.verbs.peel_options import PeelResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the Q/DQ model, which is not changed")
    parser.add_argument(
        "--target", choices=("gpu", "dla"), type=cache_target, required=True, help="whose cache is written"
    )
    parser.add_argument("--trt-version", metavar="V", required=True, help="such as 7100, 8.5.2, jp4.6, drive6.0.9")
    parser.add_argument(
        "--source", metavar="M", help="the model that Q/DQ were inserted into: it is given back as it was"
    )
    parser.add_argument(
        "--on-conflict",
        choices=("error", "max"),
        default="error",
        help="which scale is kept where a tensor has several",
    )
    parser.add_argument(
        "--lower-opset",
        action="store_true",
        help="lower the model's opset to what the version's parser reads, where its outputs stay the same bit for bit",
    )
    parser.add_argument(
        "--on-asymmetric",
        choices=("error", "widen"),
        default="error",
        help="where integers are not symmetric int8: stop with an error, or take the symmetric range that contains "
        "theirs",
    )
    parser.add_argument(
        "--bake-weights",
        action="store_true",
        help="adjust weights so that TensorRT quantizes them to the same integers as the Q/DQ did",
    )
    parser.add_argument(
        "--allow-estimated", action="store_true", help="also write scales that were estimated without data"
    )
    parser.add_argument(
        "--fill", choices=("ptq", "propagate", "none"), default="ptq", help="dla: how missing scales are filled in"
    )
    parser.add_argument(
        "--no-shared-scales",
        action="store_true",
        help="dla: do not give one common scale to tensors that should share one range",
    )
    parser.add_argument(
        "--force-ptq", action="store_true", help="dla: ignore the scales of the Q/DQ and calibrate every tensor"
    )
    parser.add_argument("--method", metavar="M", help="dla: calibration method (default: the one of insert)")
    add_data_arguments(parser)
    add_emit_arguments(parser)
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
    from qdqtool.verbs.peel import peel
    from qdqtool.verbs.peel_options import PeelOptions

    options = PeelOptions(
        trt_version=args.trt_version,
        target=args.target,
        on_conflict=args.on_conflict,
        on_asymmetric=args.on_asymmetric,
        bake_weights=args.bake_weights,
        allow_estimated=args.allow_estimated,
        source=args.source,
        lower_opset=args.lower_opset,
        fill=args.fill,
        shared_scales=not args.no_shared_scales,
        force_ptq=args.force_ptq,
        data=args.data,
        calibration=_calibration(args),
        data_options=data_options_from(args),
        emit=emitted_kinds(args),
        emit_dir=args.emit_dir,
        max_batch=args.max_batch,
        names=args.names,
    )
    model = Path(args.model)
    cache = args.cache or model.parent / f"{model.stem}.cache"
    result = peel(args.model, options, output=args.output, cache=cache)
    for note in result.notes:
        warn_or_note(note, args)
    if args.json:
        print_json(_facts(result, str(cache)))
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


def _facts(result: PeelResult, cache: str) -> dict[str, object]:
    scales = {name: scale.to_json() for name, scale in result.table.scales.items()}
    return {
        "schema": 1,
        "file": str(result.model),
        "cache": cache,
        "header": result.cache.header,
        "scales": scales,
        "float_outputs": list(result.float_outputs),
        "origins": result.origins,
        "shared_scales": result.shared_scales,
        "unscaled": result.table.unscaled,
        "weights": result.weights.to_json(),
        "emitted": {kind: str(path) for kind, path in result.emitted.items()},
    }


def _summary(result: PeelResult, version: TrtVersion, args: argparse.Namespace) -> list[str]:
    from qdqtool.emit.trtexec_flags import has_flag

    lines = result.summary()
    files = result.model, result.path
    if "trtexec" in result.emitted:
        tells_all = not result.layers or has_flag("--layerPrecisions", version)
        return [*lines, *after_script(args, files, version, result.emitted, tells_all=tells_all)]
    told = result.layers, result.data, args.max_batch
    is_dla = args.target == "dla"
    return [*lines, *after_cache(args, files, version, result.emitted, *told, has_all_scales=is_dla)]
