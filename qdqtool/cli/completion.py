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
    if args.shell == "bash":  # names of files where nothing else completes a word
        text = text.replace("complete -o bashdefault -F", "complete -o bashdefault -o default -F")
    if args.json:
        print_json({"shell": args.shell, "script": text})
    else:
        sys.stdout.write(text)
    return 0


def _whole_parser() -> argparse.ArgumentParser:
    """One parser with every verb as a command of its own, which the command line itself never builds."""
    from qdqtool.cli.main import VERBS, fill_parser

    whole = argparse.ArgumentParser(prog="qdqtool")
    commands = whole.add_subparsers()
    for verb, text in VERBS.items():
        parser = commands.add_parser(verb, help=text, description=text)
        fill_parser(parser, verb)
        _give_choices(parser)
    return whole


def _give_choices(parser: argparse.ArgumentParser) -> None:
    """Offer boards and presets, which verbs read as free text, and files for what has no choices."""
    import shtab

    from qdqtool.data.preprocess import PRESETS
    from qdqtool.forecasting.devices import known_devices

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                _give_choices(one)
        elif "--for" in action.option_strings:
            action.choices = known_devices()
        elif "--preprocess" in action.option_strings:
            action.choices = tuple(PRESETS)
        elif action.nargs != 0 and not action.choices:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
