# SPDX-License-Identifier: Apache-2.0
"""`--report FILE` of verbs that judge or train: the report of what they looked at. No verb of its own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from qdqtool.command_lines import shell_line

_HELP = "also write an HTML report, as qdqtool report does; runs the data once more"


def add_report_argument(parser: argparse.ArgumentParser) -> None:
    """Declare --report."""
    parser.add_argument("--report", metavar="OUT", type=Path, help=_HELP)


def check_report(args: argparse.Namespace, *inputs: object) -> None:
    """Refuse, before any work, a report that would overwrite an input or cannot be made.

    Raises:
        QdqError: see `check_target`.
    """
    from qdqtool.output_paths import check_target, files_of

    if args.report is not None:
        named = (args.data, getattr(args, "model", None), getattr(args, "postprocess", None), *inputs)
        check_target(args.report, files_of(*named))


def write_report(args: argparse.Namespace, model: object, **more: Any) -> list[str]:
    """Write the report where one is asked for, and what is printed of it."""
    if args.report is None:
        return []
    from qdqtool.workflows.report import report
    from qdqtool.workflows.report_options import ReportOptions

    progress = False if args.quiet else None
    command = shell_line("qdqtool", *args.words)
    options = ReportOptions(provider=args.provider, progress=progress, command=command, **more)
    result = report(model, args.report, options)
    return [result.summary()[-1]]
