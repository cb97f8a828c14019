# SPDX-License-Identifier: Apache-2.0
"""The options of every verb that asks where pairs stand: version, rules, heads, names. No verb of its own."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

_DIGITS = 9  # of a number of operators


@dataclass(frozen=True)
class KeepFloat:
    """What `--keep-float` says.

    Attributes:
        count: how many operators are searched for, or "auto"; None where that is not said.
        names: operators that stay in float in any case.
    """

    count: int | Literal["auto"] | None = None
    names: tuple[str, ...] = ()


def keep_float(text: str) -> KeepFloat:
    """Read `auto`, a number, names of operators with commas between, or one of the first and names.

    Raises:
        argparse.ArgumentTypeError: an empty name, or two of auto and numbers.
    """
    words = [word.strip() for word in text.split(",")]
    asked = [word for word in words if word == "auto" or (word.isdecimal() and len(word) <= _DIGITS)]
    if not all(words) or len(asked) > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto, nor a number, nor names of operators")
    names = tuple(dict.fromkeys(word for word in words if word not in asked))
    if not asked:
        return KeepFloat(0, names)
    return KeepFloat("auto" if asked == ["auto"] else int(asked[0]), names)


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where pairs will stand, as `insert` will be asked."""
    group = parser.add_argument_group("where pairs stand, as insert will be given")
    group.add_argument("--trt-version", metavar="V", help="whose rules place the pairs (default: the newest known)")
    group.add_argument("--rules", metavar="F", help="a rules file of your own that extends the target's")
    group.add_argument(
        "--float-heads",
        choices=("regression", "all", "none"),
        default="regression",
        help="detection heads left in float (default regression)",
    )
    group.add_argument("--heads", metavar="RE", action="append", default=[], help="more operators left in float")
    group.add_argument("--not-heads", metavar="RE", action="append", default=[], help="heads that are quantized")
    group.add_argument("--keep-float", metavar="NAMES", type=names_only, default=(), help="operators left in float")


def names_only(text: str) -> tuple[str, ...]:
    """Names of operators with commas between.

    Raises:
        argparse.ArgumentTypeError: an empty name, auto, or a number, which are insert's.
    """
    found = keep_float(text)
    if found.count != 0 or not found.names:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of names; how many stay in float, insert decides")
    return found.names


def plan_options_from(args: argparse.Namespace) -> dict[str, Any]:
    """What `add_plan_arguments` declared, as fields of `PlanOptions`."""
    return {
        "trt_version": args.trt_version or None,
        "rules": Path(args.rules) if args.rules else None,
        "float_heads": args.float_heads,
        "heads": tuple(args.heads),
        "not_heads": tuple(args.not_heads),
        "keep_float": args.keep_float,
    }
