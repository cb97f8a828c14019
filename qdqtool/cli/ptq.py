# SPDX-License-Identifier: Apache-2.0
"""`qdqtool ptq`: a plain model and data to a calibration cache. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qdqtool.cli.cache_steps import after_cache, after_script
from qdqtool.cli.data import add_data_arguments, calibration_options_from, data_options_from, print_notes
from qdqtool.cli.loss_steps import cache_that_loses_less, measured_cache
from qdqtool.cli.output import print_json, print_lines, warn, warn_or_note
from qdqtool.cli.target import add_emit_arguments, cache_target, emitted_kinds
from qdqtool.errors import QdqError

if TYPE_CHECKING:
    from qdqtool.trtversion import TrtVersion
    from qdqtool.verbs.ptq import PtqOptions, PtqResult
    from qdqtool.verbs.ptq_compare import BackendComparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the plain ONNX model of any opset, which is not changed")
    add_data_arguments(parser, required=True)
    parser.add_argument(
        "--target", choices=("gpu", "dla"), type=cache_target, required=True, help="whose cache is written"
    )
    parser.add_argument("--trt-version", metavar="V", required=True, help="such as 7103, 8.5.2, jp4.6, drive6.0.9")
    parser.add_argument(
        "--method", metavar="M", default="entropy", help="see calibrate -h (default entropy, TensorRT's)"
    )
    parser.add_argument(
        "--no-shared-scales",
        action="store_true",
        help="do not give one common scale to tensors that should share one range",
    )
    parser.add_argument("--cache", metavar="C", help="default: beside MODEL, with .cache for its ending")
    add_emit_arguments(parser, " (heads, as insert leaves them)")
    _add_backend_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare who calibrates, and what only TensorRT needs."""
    group = parser.add_argument_group("back end")
    group.add_argument(
        "--backend",
        choices=("embedded", "tensorrt"),
        default="embedded",
        help="embedded: onnxruntime and our own search; tensorrt: NVIDIA's calibrator, 8.5 to 10.16, on a GPU",
    )
    group.add_argument(
        "--cuda", choices=("cudart", "pycuda"), default="cudart", help="how batches reach the GPU for TensorRT"
    )
    group.add_argument("--shapes", metavar="S", help="fix inputs at one shape: x:1x3x224x224, commas between several")
    group.add_argument(
        "--compare-backends", action="store_true", help="run both, write nothing, print the scales that differ"
    )


def run(args: argparse.Namespace) -> int:
    """Calibrate into a cache and say what is in it, or compare the back ends; faults are raised as QdqError."""
    from qdqtool.amax.methods import parse_method
    from qdqtool.verbs.ptq import ptq

    parse_method(args.method)
    options = _options(args)
    if args.compare_backends:
        from qdqtool.verbs.ptq_compare import compare_backends

        if args.cache:
            raise QdqError("--compare-backends", "writes no cache", "leave --cache out, or run each back end alone")
        _show_comparison(compare_backends(args.model, args.data, options), args)
        return 0
    result = ptq(args.model, args.data, options, cache=args.cache)
    print_notes(result.table, args)
    for text in (options.trt_version.warning, *result.notes, *result.warnings):
        if text:
            warn_or_note(text, args)
    _warn_of_loss(result, args)
    if args.json:
        print_json(_facts(result))
    else:
        print_lines(_summary(args, result, options.trt_version), args)
    return 0


def _warn_of_loss(result: PtqResult, args: argparse.Namespace) -> None:
    """Say where the cache loses much at the outputs, how to measure it, and which way loses less."""
    if result.output_loss is None or not result.output_loss.large or result.path is None:
        return
    first = f"that says little of the task, so measure first: {measured_cache(args, result.path)}"
    less = f"to lose less: {cache_that_loses_less(args, result.path)}"
    warn(f"{result.path}: loses much in INT8; {result.output_loss.summary()}; {first}; {less}", args)


def _show_comparison(comparison: BackendComparison, args: argparse.Namespace) -> None:
    """Print what the two back ends say differently: it was asked for, so --quiet does not hide it."""
    if args.json:
        print_json({"schema": 1, "model": str(args.model), **comparison.to_json()})
    else:
        print_lines(comparison.summary(every=args.verbose), args, asked=True)


def _options(args: argparse.Namespace) -> PtqOptions:
    from qdqtool.calibration.tensorrt.input_shapes import parse_shapes
    from qdqtool.verbs.ptq import PtqOptions

    return PtqOptions(
        args.trt_version,
        args.target,
        calibration_options_from(args),
        data_options_from(args),
        shared_scales=not args.no_shared_scales,
        backend=args.backend,
        cuda=args.cuda,
        shapes=parse_shapes(args.shapes) if args.shapes else None,
        emit=emitted_kinds(args),
        emit_dir=args.emit_dir,
        max_batch=args.max_batch,
        names=args.names,
    )


def _facts(result: PtqResult) -> dict[str, object]:
    return {
        "schema": 1,
        "cache": str(result.path),
        "header": result.cache.header,
        "backend": result.backend,
        "scales": {name: scale.to_json() for name, scale in result.table.scales.items()},
        "unscaled": result.table.unscaled,
        "shared_scales": result.shared_scales,
        "predicted": result.predicted(),
        "output_loss": None if result.output_loss is None else result.output_loss.value,
        "emitted": {kind: str(path) for kind, path in result.emitted.items()},
    }


def _summary(args: argparse.Namespace, result: PtqResult, version: TrtVersion) -> list[str]:
    from qdqtool.emit.trtexec_flags import has_flag

    files = args.model, result.path
    if "trtexec" in result.emitted:
        tells_all = not result.layers or has_flag("--layerPrecisions", version)
        return [*result.summary(), *after_script(args, files, version, result.emitted, tells_all=tells_all)]
    told = result.layers, result.table.provenance.data, args.max_batch
    return [*result.summary(), *after_cache(args, files, version, result.emitted, *told, has_all_scales=True)]
