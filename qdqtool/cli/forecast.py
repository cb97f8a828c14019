# SPDX-License-Identifier: Apache-2.0
"""`qdqtool forecast`: a model to a table of formats and boards. Parses arguments and prints results."""

from __future__ import annotations

import argparse

from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.output import print_json, print_lines
from qdqtool.command_lines import command, file_word, option
from qdqtool.verbs.forecast_options import ForecastOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument(
        "model", metavar="MODEL", help="a plain model, or one with Q/DQ or types, which is taken as it is"
    )
    add_options(parser, ForecastOptions)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Forecast and print; faults are raised as QdqError."""
    from qdqtool.verbs.forecast import NOT_KNOWN, forecast

    options = options_from(ForecastOptions, args)
    result = forecast(args.model, options)
    if args.json:
        print_json(result.to_json())
        return 0
    lines = result.summary()
    if len(options.places) == 1 and NOT_KNOWN in result.notes and not options.shapes:
        words = [file_word(args.model), "--data", "DATA", *option("--for", options.places[0])]
        lines.append(
            f"next, with your calibration data for DATA (images: add --preprocess): {command('deploy', *words)}"
        )
    print_lines(lines, args, asked=True)
    return 0
