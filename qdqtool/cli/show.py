# SPDX-License-Identifier: Apache-2.0
"""How every verb speaks: results on stdout, everything else on stderr, one form for each."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping


def print_json(document: Mapping[str, object]) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def print_lines(lines: Iterable[str], args: argparse.Namespace, *, asked: bool = False) -> None:
    """Lines on stdout, unless --quiet; those that were asked for in any case."""
    if asked or not args.quiet:
        sys.stdout.write("".join(f"{line}\n" for line in lines))


def warn(text: str, args: argparse.Namespace, kind: str = "warning") -> None:
    """One line on stderr, unless --quiet."""
    if not args.quiet:
        sys.stderr.write(f"qdqtool: {kind}: {text}\n")


def counted(number: int, noun: str) -> str:
    """`1 pair`, `2 pairs`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
