# SPDX-License-Identifier: Apache-2.0
"""An action after a verb's name, such as `cache check`: its parser with what every action has. Not its own options."""

from __future__ import annotations

import argparse

from qdqtool.cli.color import MODES

Actions = argparse._SubParsersAction  # argparse gives its type no public name


def add_action(actions: Actions[argparse.ArgumentParser], name: str, text: str) -> argparse.ArgumentParser:
    """Add one, with what its help says."""
    parser = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print JSON")
    # As main declares them before the action; SUPPRESS keeps an absent one from undoing that.
    for words in (("-v", "--verbose"), ("-q", "--quiet"), ("--untrusted",)):
        parser.add_argument(*words, action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument("--color", choices=MODES, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser
