# SPDX-License-Identifier: Apache-2.0
"""Options of the verbs that write calibration caches: the word behind `--target`, and files for builders."""

from __future__ import annotations

import argparse

from qdqtool.rtxversion import NO_CACHES, RTX_TARGET


def cache_target(word: str) -> str:
    """The word itself; argparse's one-line error for rtx, which has no caches."""
    if word == RTX_TARGET:
        raise argparse.ArgumentTypeError(f"rtx: {NO_CACHES}")
    return word


_MOST_BATCH = 1 << 16


def add_max_batch(parser: argparse.ArgumentParser) -> None:
    """Declare `--max-batch`."""
    parser.add_argument(
        "--max-batch", metavar="N", type=_max_batch, help="largest batch of the engine, where the batch is dynamic"
    )


def _max_batch(word: str) -> int:
    """The number behind `--max-batch`; argparse's one-line error for what is not a number of samples."""
    if not word.isdecimal() or len(word) > len(str(_MOST_BATCH)) or not 1 <= int(word) <= _MOST_BATCH:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of samples, 1 to {_MOST_BATCH}")
    return int(word)


def add_emit_arguments(parser: argparse.ArgumentParser, which: str = "") -> None:
    """Declare what is written for builders beside a cache."""
    parser.add_argument(
        "--emit",
        metavar="K",
        action="append",
        default=[],
        help=f"also write files that tell a builder which layers stay in float{which}, beside the cache: trtexec, "
        "polygraphy-script, deepstream, triton, json; separate several with commas",
    )
    add_max_batch(parser)
    parser.add_argument("--emit-dir", metavar="DIR", help="the folder for these (default: the cache's)")
    parser.add_argument(
        "--names",
        metavar="N",
        help="class names for --emit deepstream: coco, coco90, a file with one a line, or a,b,c",
    )


def emitted_kinds(args: argparse.Namespace) -> tuple[str, ...]:
    """The kinds behind `--emit`, given again or with commas between."""
    return tuple(kind.strip() for text in args.emit for kind in text.split(","))
