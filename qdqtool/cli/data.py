# SPDX-License-Identifier: Apache-2.0
"""The options of every verb that reads data: one spelling, one meaning. No verb of its own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.cli.declared import Container, add_options, options_from
from qdqtool.cli.output import warn
from qdqtool.data.options import DataOptions
from qdqtool.observers.options import CalibrationOptions
from qdqtool.threads import usable_cores, useful_threads

if TYPE_CHECKING:
    from qdqtool.scales import ScaleTable

CALIBRATES = ("provider", "workers", "max_memory")
_SCRIPT = "same as --data F[:FUNCTION], with Polygraphy's option name"
_JSON = "inputs saved by Polygraphy: JSON files or folders of them"
_DATA = (
    "folder of images, one image, a quoted pattern, .npz, .npy, loader.py[:function] with load_data(), "
    "or Polygraphy's .json inputs"
)


def add_data_arguments(
    parser: argparse.ArgumentParser, *, required: bool = False, calibrates: bool = True
) -> Container:
    """Declare --data, its two spellings of Polygraphy, and what goes with it; more for verbs that calibrate.

    Returns:
        The group of options of which one at most is given, where a verb declares what it takes in place of data.
    """
    group = parser.add_argument_group("data")
    one = group.add_mutually_exclusive_group(required=required)
    one.add_argument("--data", metavar="D", help=_DATA)
    one.add_argument("--data-loader-script", metavar="F", dest="data", type=_script, help=_SCRIPT)
    one.add_argument("--load-inputs", metavar="F", dest="data", nargs="+", action=_LoadInputs, help=_JSON)
    add_options(group, DataOptions)
    add_options(group, CalibrationOptions, only=CALIBRATES if calibrates else ("provider",))
    return one


def calibration_options_from(args: argparse.Namespace, also: Sequence[str] = ()) -> CalibrationOptions:
    """What `add_data_arguments` and, where there is one, --method declared, as options of a calibration.

    `also` names further fields that the verb declared.
    """
    workers = min(args.workers, useful_threads())
    if workers < args.workers:
        warn(f"--workers {args.workers}: {workers} are used, this machine has {usable_cores()} cores", args, "note")
    return options_from(
        CalibrationOptions,
        args,
        only=(*CALIBRATES, *also),
        method=getattr(args, "method", None) or "",
        progress=False if args.quiet else None,
        workers=workers,
    )


def data_options_from(args: argparse.Namespace) -> DataOptions:
    """What `add_data_arguments` declared, as the options of `open_loader`."""
    return options_from(DataOptions, args)


def print_notes(table: ScaleTable, args: argparse.Namespace) -> None:
    """Print the arrays and samples that a run leaves out on stderr, unless --quiet or without data."""
    for note in table.provenance.left_out if args.data is not None else ():
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
