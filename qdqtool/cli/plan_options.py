# SPDX-License-Identifier: Apache-2.0
"""The options of every verb that asks where pairs stand: version, rules, heads, names. No verb of its own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
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

    Exporters name operators by numbers, too: behind a comma at the end every word is a name.

    Raises:
        argparse.ArgumentTypeError: an empty name, or two of auto and numbers.
    """
    words = [word.strip() for word in text.split(",")]
    if len(words) > 1 and not words[-1]:
        asked, words = [], words[:-1]
    else:
        asked = [word for word in words if _is_count(word)]
    if not all(words) or len(asked) > 1:
        hint = " (a comma at the end makes names of numbers)" if all(words) else ""
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto, nor a number, nor names of operators{hint}")
    names = tuple(dict.fromkeys(word for word in words if word not in asked))
    if not asked:
        return KeepFloat(0, names)
    return KeepFloat("auto" if asked == ["auto"] else int(asked[0]), names)


def _is_count(word: str) -> bool:
    return word == "auto" or (word.isdecimal() and len(word) <= _DIGITS)


def names_word(names: Sequence[str]) -> str:
    """Names of operators as `keep_float` reads them."""
    return ",".join([*names, ""] if any(map(_is_count, names)) else names)


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where pairs will stand, as `insert` will be asked."""
    group = parser.add_argument_group("placement of pairs (give the same options to insert)")
    group.add_argument(
        "--trt-version", metavar="V", help="TensorRT version whose rules place the pairs (default: the newest known)"
    )
    group.add_argument("--rules", metavar="F", help="a rules file of your own that extends the target's")
    group.add_argument(
        "--float-heads",
        choices=("regression", "all", "none"),
        default="regression",
        help="detection heads left in float (default regression: box values)",
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
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names; insert decides how many stay in float")
    return found.names


def plan_options_from(args: argparse.Namespace) -> dict[str, Any]:
    """What `add_plan_arguments` declared, as fields of `PlanOptions`."""
    return {
        "trt_version": args.trt_version,
        "rules": None if args.rules is None else Path(args.rules),
        "float_heads": args.float_heads,
        "heads": tuple(args.heads),
        "not_heads": tuple(args.not_heads),
        "keep_float": args.keep_float,
    }
