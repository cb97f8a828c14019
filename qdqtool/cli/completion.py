# SPDX-License-Identifier: Apache-2.0
"""`qdqtool completion`: what a shell needs to complete verbs and options, made by shtab from the parsers themselves."""

from __future__ import annotations

import argparse
import sys

from qdqtool.cli.output import print_json
from qdqtool.errors import MissingPackageError

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the script.

    Raises:
        MissingPackageError: shtab is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise MissingPackageError("shtab", "is not installed", 'pip install "qdqtool[completion]"') from None
    text = str(shtab.complete(_whole_parser(), args.shell)).rstrip() + "\n"
    if args.json:
        print_json({"schema": 1, "shell": args.shell, "script": text})
    else:
        sys.stdout.write(text)
    return 0


def _whole_parser() -> argparse.ArgumentParser:
    """One parser with every verb as a command of its own, which the command line itself never builds."""
    from qdqtool.cli.main import VERBS, fill_parser

    whole = argparse.ArgumentParser(prog="qdqtool")
    commands = whole.add_subparsers()
    for verb, text in VERBS.items():
        fill_parser(commands.add_parser(verb, help=text, description=text), verb)
    return whole
