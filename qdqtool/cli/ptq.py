# SPDX-License-Identifier: Apache-2.0
"""`qdqtool ptq`: a plain model and data to a calibration cache. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qdqtool.cli.data import add_data_arguments, feed_options_from, print_notes
from qdqtool.cli.show import counted, print_json, print_lines, warn

if TYPE_CHECKING:
    from qdqtool.verbs.ptq import PtqResult

_SHOWN = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the plain ONNX model of any opset, which stays as it is")
    add_data_arguments(parser, required=True)
    parser.add_argument("--target", choices=("gpu", "dla"), required=True, help="whose cache is written")
    parser.add_argument("--trt-version", metavar="V", required=True, help="such as 7103, 8.5.2, jp4.6, drive6.0.9")
    parser.add_argument(
        "--method", metavar="M", default="entropy", help="see calibrate -h (default entropy, TensorRT's)"
    )
    parser.add_argument("--no-ties", action="store_true", help="leave tensors of one range with scales of their own")
    parser.add_argument("--cache", metavar="C", help="default: MODEL with .cache for its ending")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Calibrate into a cache and say what is in it; faults are raised as QdqError."""
    from qdqtool.calibration.engine import CalibrationOptions
    from qdqtool.calibration.methods import parse_method
    from qdqtool.trtversion import parse
    from qdqtool.verbs.ptq import PtqOptions, ptq

    parse_method(args.method)
    version = parse(args.trt_version)
    calibration = CalibrationOptions(args.method, args.provider, progress=False if args.quiet else None)
    options = PtqOptions(version, args.target, calibration, feed_options_from(args), ties=not args.no_ties)
    result = ptq(args.model, args.data, options, cache=args.cache)
    print_notes(result.table, args)
    if version.warning:
        warn(version.warning, args)
    if args.json:
        print_json(_facts(result))
    else:
        print_lines(_summary(args, result), args)
    return 0


def _facts(result: PtqResult) -> dict[str, object]:
    return {
        "schema": 1,
        "cache": str(result.path),
        "header": result.cache.header,
        "scales": {name: scale.to_json() for name, scale in result.table.scales.items()},
        "unscaled": result.table.unscaled,
        "ties": result.ties,
        "predicted": result.predicted(),
    }


def _summary(args: argparse.Namespace, result: PtqResult) -> list[str]:
    facts = result.table.facts
    scales = f"{counted(len(result.table), 'scale')}, {len(result.ties)} of them tied"
    lines = [
        f"wrote {result.path}: {result.cache.header}, {scales}",
        f"method {facts['method']}, {counted(facts['samples'], 'sample')}",
    ]
    predicted = result.predicted()
    if predicted:
        lines.append(
            f"predicted signal to noise of the rounding, median over tensors: {predicted['chosen_db']:.1f} dB,"
            f" with {predicted['beside']} {predicted['beside_db']:.1f} dB"
        )
    if result.table.unscaled:
        shown = [f"{name} ({reason})" for name, reason in result.table.unscaled.items()]
        more = f" and {len(shown) - _SHOWN} more" if shown[_SHOWN:] else ""
        lines.append(f"without a scale: {', '.join(shown[:_SHOWN])}{more}")
    dla = " --useDLACore=0 --allowGPUFallback" if args.target == "dla" else ""
    lines.append(f"next: trtexec --onnx={args.model} --int8 --fp16 --calib={result.path}{dla}")
    return lines
