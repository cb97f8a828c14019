# SPDX-License-Identifier: Apache-2.0
"""The options of every verb that reads data: one spelling, one meaning. No verb of its own."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.cli.output import warn
from qdqtool.threads import MOST_THREADS, usable_cores, useful_threads

if TYPE_CHECKING:
    from qdqtool.data.loader import DataOptions
    from qdqtool.observers.options import CalibrationOptions
    from qdqtool.scales import ScaleTable

_SCRIPT = "same as --data F[:FUNCTION], with Polygraphy's option name"
_JSON = "inputs saved by Polygraphy: JSON files or folders of them"
_DATA = (
    "folder of images, one image, a quoted pattern, .npz, .npy, loader.py[:function] with load_data(), "
    "or Polygraphy's .json inputs"
)
_PREPROCESS = (
    "for images, in files or 8-bit arrays: imagenet, caffe, keras, yolov5, yolov8, yolox, nanodet, fastestdet, yunet, "
    "ssd, ultraface and/or key=value,... "
    "(size=WxH layout= color= scale= mean=a:b:c std=a:b:c resize= pad= interpolation=)"
)
_PART = "only samples whose SHA-256 is in this hexadecimal range, such as :80 (the first half) or 80: (the second)"
_AUTO_WORKERS = 8
_DIGITS = 18  # of a number: more are no count of anything
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_data_arguments(parser: argparse.ArgumentParser, *, required: bool = False, calibrates: bool = True) -> None:
    """Declare --data, its two spellings of Polygraphy, and what goes with it; more for verbs that calibrate."""
    group = parser.add_argument_group("data")
    one = group.add_mutually_exclusive_group(required=required)
    one.add_argument("--data", metavar="D", help=_DATA)
    one.add_argument("--data-loader-script", metavar="F", dest="data", type=_script, help=_SCRIPT)
    one.add_argument("--load-inputs", metavar="F", dest="data", nargs="+", action=_LoadInputs, help=_JSON)
    group.add_argument("--preprocess", metavar="P", help=_PREPROCESS)
    group.add_argument("--batch", metavar="N", type=int, default=1, help="samples per run (default 1)")
    group.add_argument("--limit", metavar="N", type=int, help="use the first N samples only")
    group.add_argument("--part", metavar="LOW:HIGH", help=_PART)
    group.add_argument(
        "--max-data",
        metavar="BYTES",
        type=_bytes,
        default=8 << 30,
        help="largest unpacked size of an archive (default 8G)",
    )
    group.add_argument(
        "--provider",
        choices=("cpu", "cuda", "tensorrt"),
        default="cpu",
        help="execution provider of onnxruntime (default cpu)",
    )
    if not calibrates:
        return
    group.add_argument(
        "--workers", metavar="W", type=_workers, default=1, help="threads that run the model, or auto (default 1)"
    )
    group.add_argument(
        "--max-memory",
        metavar="BYTES",
        type=_bytes,
        help="memory limit for activations and histograms; more passes over the data where needed",
    )


def calibration_options_from(args: argparse.Namespace, **more: Any) -> CalibrationOptions:
    """What `add_data_arguments` and, where there is one, --method declared, as options of a calibration."""
    from qdqtool.observers.options import CalibrationOptions

    workers = min(args.workers, useful_threads())
    if workers < args.workers:
        warn(f"--workers {args.workers}: {workers} are used, this machine has {usable_cores()} cores", args, "note")
    return CalibrationOptions(
        method=getattr(args, "method", None) or "",
        provider=args.provider,
        progress=False if args.quiet else None,
        workers=workers,
        max_memory=args.max_memory,
        **more,
    )


def data_options_from(args: argparse.Namespace) -> DataOptions:
    """What `add_data_arguments` declared, as the options of `open_loader`."""
    from qdqtool.data.loader import DataOptions

    return DataOptions(
        batch=args.batch, limit=args.limit, preprocess=args.preprocess, max_bytes=args.max_data, part=args.part
    )


def print_notes(table: ScaleTable, args: argparse.Namespace) -> None:
    """Say on stderr what of the data was left out, unless --quiet."""
    for note in table.provenance.left_out:
        warn(f"{args.data}: {note}", args)


class _LoadInputs(argparse.Action):
    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        from qdqtool.data.json_inputs import JsonInputs

        namespace.data = JsonInputs(tuple(map(Path, values)))


def _script(text: str) -> str:
    from qdqtool.data.polygraphy_loader import split_script

    if split_script(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not FILE.py or FILE.py:FUNCTION")
    return text


def _workers(text: str) -> int:
    if text == "auto":
        return min(usable_cores(), _AUTO_WORKERS)
    if not text.isdecimal() or len(text) > _DIGITS or not 1 <= int(text) <= MOST_THREADS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of workers, 1 to {MOST_THREADS}, or auto")
    return int(text)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]?)", text.upper().removesuffix("B"))
    if not match or len(match[1]) > _DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes such as 500M or 8G")
    return int(match[1]) * _UNITS[match[2]]
