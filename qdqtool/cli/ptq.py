# SPDX-License-Identifier: Apache-2.0
"""`qdqtool ptq`: a plain model and data to a calibration cache. Parses arguments and prints results."""

from __future__ import annotations

import argparse

from qdqtool.amax.method_table import parse_method
from qdqtool.cli.cache_steps import after_cache, after_script
from qdqtool.cli.data import add_data_arguments, calibration_options_from, data_options_from, print_notes
from qdqtool.cli.declared import add_options, group_named, options_from
from qdqtool.cli.loss_steps import cache_that_loses_less, measured_cache
from qdqtool.cli.output import print_json, print_lines, warn, warn_or_note
from qdqtool.errors import QdqError
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.ptq_options import PtqOptions, PtqResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the plain ONNX model of any opset, which is not changed")
    add_data_arguments(parser, required=True)
    add_options(parser, PtqOptions, only=("target", "trt_version"))
    parser.add_argument(
        "--method", metavar="M", default="entropy", help="see calibrate -h (default entropy, TensorRT's)"
    )
    parser.add_argument("--cache", metavar="C", help="default: beside MODEL, with .cache for its ending")
    add_options(parser, PtqOptions, without=("target", "trt_version"))
    group_named(parser, "back end").add_argument(
        "--compare-backends", action="store_true", help="run both, write nothing, print the scales that differ"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Calibrate into a cache and say what is in it, or compare the back ends; faults are raised as QdqError."""
    from qdqtool.calibration.tensorrt.input_shapes import parse_shapes
    from qdqtool.verbs.ptq import ptq

    parse_method(args.method)
    options = options_from(
        PtqOptions,
        args,
        calibration=calibration_options_from(args),
        data_options=data_options_from(args),
        shapes=parse_shapes(args.shapes) if args.shapes else None,
    )
    if args.compare_backends:
        from qdqtool.verbs.ptq_compare import compare_backends

        if args.cache:
            raise QdqError("--compare-backends", "writes no cache", "leave --cache out, or run each back end alone")
        # Print what the two back ends say differently: it was asked for, so --quiet does not hide it
        comparison = compare_backends(args.model, args.data, options)
        if args.json:
            print_json({"model": str(args.model), **comparison.to_json()})
        else:
            print_lines(comparison.summary(every=args.verbose), args, asked=True)
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
    measure = measured_cache(args, result.path, result.output_loss)
    first = f"calibration data say little of the task, so measure first, {measure}"
    less = (
        f"edited weights often lose less, but not always; to measure both: {cache_that_loses_less(args, result.path)}"
    )
    loss, *figures = result.output_loss.warning("INT8")
    warn("; ".join([f"{result.path}: {loss}", *figures, first, less]), args, wrap=True)


def _facts(result: PtqResult) -> dict[str, object]:
    return {
        "cache": str(result.path),
        "header": result.cache.header,
        "backend": result.backend,
        "scales": {name: scale.to_json() for name, scale in result.table.scales.items()},
        "unscaled": result.table.unscaled,
        "shared_scales": result.shared_scales,
        "predicted": result.predicted(),
        **({"output_loss": None} if result.output_loss is None else result.output_loss.to_json()),
        "emitted": {kind: str(path) for kind, path in result.emitted.items()},
        "notes": list(result.notes),
    }


def _summary(args: argparse.Namespace, result: PtqResult, version: TrtVersion) -> list[str]:
    from qdqtool.emit.trtexec_flags import has_flag

    files, lines = (args.model, result.path), result.summary()
    if result.output_loss is not None and result.output_loss.hint() and result.path is not None:
        lines.append(f"to measure it, {measured_cache(args, result.path, result.output_loss)}")
    if "trtexec" in result.emitted:
        tells_all = not result.layers or has_flag("--layerPrecisions", version)
        return [*lines, *after_script(args, files, version, result.emitted, tells_all=tells_all)]
    facts = result.layers, result.table.provenance.data, args.max_batch
    return [*lines, *after_cache(args, files, version, result.emitted, *facts, has_all_scales=True)]
