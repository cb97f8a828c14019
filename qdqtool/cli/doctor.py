# SPDX-License-Identifier: Apache-2.0
"""`qdqtool doctor`: what is installed and what is wrong with it. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qdqtool.cli.show import counted, print_json, print_lines

if TYPE_CHECKING:
    from qdqtool.doctor import Diagnosis, Item

_HEADS = {"needed": "packages that every verb needs", "optional": "packages for some verbs", "machine": "machine"}


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
        print_lines(_table(found), args)
        print_lines(_verdict(found), args, asked=True)
    return 0 if found.ok else 1


def _table(found: Diagnosis) -> list[str]:
    names = max(len(item.name) for item in found.items)
    versions = max(len(_version(item)) for item in found.items)
    lines: list[str] = []
    section = "program"
    for item in found.items:
        if item.section != section:
            section = item.section
            lines.append(f"{_HEADS[section]}:")
        line = f"  {item.name:<{names}}  {_version(item):<{versions}}  {_said(item)}"
        lines.append(line.rstrip() if section != "program" else " ".join(line.split()))
    return lines


def _version(item: Item) -> str:
    return item.version or ("missing" if item.state == "missing" else "")


def _said(item: Item) -> str:
    if item.state == "wrong":
        return "WRONG, see below"
    return "; ".join(filter(None, (item.text, item.todo)))


def _verdict(found: Diagnosis) -> list[str]:
    if found.ok:
        return ["nothing that is installed is wrong"]
    return [
        f"{counted(len(found.wrong), 'fault')}:",
        *(f"  {item.name}: {item.text}; {item.todo}" for item in found.wrong),
    ]
