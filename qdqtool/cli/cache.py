# SPDX-License-Identifier: Apache-2.0
"""`qdqtool cache`: what it takes, and `show`. The other actions are in `cache_compare.py` and `cache_write.py`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from qdqtool.cache.convert_options import ConvertOptions
from qdqtool.cli.actions import Actions, add_action
from qdqtool.cli.declared import add_options
from qdqtool.cli.output import print_json, write_lines
from qdqtool.errors import printable

if TYPE_CHECKING:
    from qdqtool.cache.text import Cache

_CACHE = "the calibration cache, which is not changed"
_VERSION = "8502, 8.5.2, jp5.1.2, drive6.0.9 ..."

# action -> module and function that do it
_HOMES = {
    "check": ("cache_compare", "check"),
    "diff": ("cache_compare", "diff"),
    "retarget": ("cache_write", "retarget"),
    "merge": ("cache_write", "merge"),
    "convert": ("cache_write", "convert"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    metavar = "show|check|retarget|diff|merge|convert"
    actions = parser.add_subparsers(dest="action", metavar=metavar, required=True)
    show = add_action(actions, "show", "print the header, every scale, and which entries are unusable and why")
    show.add_argument("cache", metavar="CACHE", help="the calibration cache")
    _add_check(actions)
    _add_retarget(actions)
    _add_diff(actions)
    _add_merge(actions)
    _add_convert(actions)


def run(args: argparse.Namespace) -> int:
    """Do what was parsed."""
    if args.action == "show":
        return _show(args)
    module, function = _HOMES[args.action]
    return int(getattr(importlib.import_module(f"qdqtool.cli.{module}"), function)(args))


def _add_check(actions: Actions[argparse.ArgumentParser]) -> None:
    check = add_action(actions, "check", "compare the names in a cache with the tensors of a model")
    check.add_argument("cache", metavar="CACHE", help="the calibration cache")
    check.add_argument("model", metavar="MODEL", help="the ONNX model it belongs to")
    check.add_argument(
        "--fail-under", type=_percent, metavar="P", help="exit 1 where less than P %% of the float tensors have a scale"
    )


def _add_retarget(actions: Actions[argparse.ArgumentParser]) -> None:
    carry = add_action(actions, "retarget", "write the same scales under the header of another TensorRT")
    carry.add_argument("cache", metavar="CACHE", help=_CACHE)
    carry.add_argument("--trt-version", metavar="V", required=True, help=_VERSION)
    carry.add_argument("-o", "--output", metavar="OUT", help="default: CACHE with .trt8502.cache for its ending")


def _add_diff(actions: Actions[argparse.ArgumentParser]) -> None:
    diff = add_action(actions, "diff", "print what only one of two caches has, and where their scales differ")
    diff.add_argument("first", metavar="A", help="a calibration cache")
    diff.add_argument("second", metavar="B", help="another one")
    diff.add_argument("--exit-code", action="store_true", help="exit 1 where they differ")


def _add_merge(actions: Actions[argparse.ArgumentParser]) -> None:
    merge = add_action(actions, "merge", "put the scales of several caches into one")
    merge.add_argument("caches", metavar="CACHE", nargs="+", help="caches of one version, which are not changed")
    merge.add_argument("-o", "--output", metavar="OUT", required=True, help="the cache to write")
    merge.add_argument(
        "--on-conflict",
        choices=("error", "first", "last", "max"),
        default="error",
        help="which scale is kept where a tensor has several (default: stop with an error)",
    )


def _add_convert(actions: Actions[argparse.ArgumentParser]) -> None:
    convert = add_action(actions, "convert", "write the same scales in the format of another tool")
    convert.add_argument("cache", metavar="CACHE", help=_CACHE)
    add_options(convert, ConvertOptions)
    convert.add_argument("-o", "--output", metavar="OUT", required=True, help="the file to write")
    convert.add_argument(
        "--model", metavar="M", help="with --sanitize-names: the model, which is written with them too"
    )
    convert.add_argument("--model-output", metavar="OUT", help="default: M with .sanitized.onnx for its ending")


def _percent(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{word} is not a percentage from 0 to 100")
    return value


def _show(args: argparse.Namespace) -> int:
    from qdqtool.cache.text import read_cache

    cache = read_cache(args.cache)
    if args.json:
        print_json({"file": str(args.cache), **cache.to_json()})
    else:
        say("\n".join(_table(cache)))
    return 0


def _table(cache: Cache) -> Iterator[str]:
    """The lines of `show`: facts first, then a row per scale, then what is doubtful and what was dropped."""
    yield from cache.facts()
    rows = cache.rows()
    width = max(len(row[0]) for row in rows)
    yield ""
    for name, scale, amax, bits in rows:
        yield f"{name:<{width}}  {scale:>12}  {amax:>12}  {bits}"
    for name, reason in cache.doubtful:
        yield f"doubtful   {printable(name, None)}: {reason}"
    for name, digits, reason in cache.dropped:
        yield f"dropped    {printable(name, None)}: {digits} is {reason}"


def say(text: str) -> None:
    """Write lines to stdout: what a terminal would act on, or its encoding cannot say, is escaped."""
    write_lines(printable(line, None) for line in text.split("\n"))
