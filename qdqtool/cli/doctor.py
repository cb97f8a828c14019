# SPDX-License-Identifier: Apache-2.0
"""`qdqtool doctor`: what is installed and what is wrong with it. Words to calls and back, no more."""

from __future__ import annotations

import argparse

from qdqtool.cli.output import print_json, print_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print what was found; 1 where something that is installed is broken or clashes."""
    from qdqtool.doctor import diagnose

    found = diagnose()
    if args.json:
        print_json(found.to_json())
    else:
        print_lines(found.lines(), args)
        print_lines(found.verdict(), args, asked=True)
    return 0 if found.ok else 1
