# SPDX-License-Identifier: Apache-2.0
"""`qdqtool cache`: show a calibration cache, carry it to another version. Words to calls and back, no more."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdqtool.cache.text import Cache


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="show|retarget", required=True)
    show = _action(actions, "show", "print the header, every scale and what is wrong with the rest")
    show.add_argument("cache", metavar="CACHE", help="the calibration cache")
    carry = _action(actions, "retarget", "write the same scales under the header of another TensorRT")
    carry.add_argument("cache", metavar="CACHE", help="the calibration cache, which stays as it is")
    carry.add_argument("--trt-version", metavar="V", required=True, help="8502, 8.5.2, jp5.1.2, drive6.0.9 ...")
    carry.add_argument("-o", "--output", metavar="OUT", help="default: CACHE with .trt8502.cache for its ending")


def run(args: argparse.Namespace) -> int:
    """Do what was parsed.

    Returns:
        0; faults are raised as QdqError.
    """
    return _show(args) if args.action == "show" else _retarget(args)


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print JSON")
    # As main declares them before the action; SUPPRESS keeps an absent one from undoing that.
    for words in (("-v", "--verbose"), ("-q", "--quiet")):
        parser.add_argument(*words, action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def _show(args: argparse.Namespace) -> int:
    from qdqtool.cache.text import read_cache

    cache = read_cache(args.cache)
    if args.json:
        _print(json.dumps({"file": str(args.cache), **cache.to_json()}, indent=1))
    else:
        _print("\n".join(_table(cache)))
    return 0


def _retarget(args: argparse.Namespace) -> int:
    from qdqtool.cache.retarget import cautions, default_output, retarget
    from qdqtool.cache.text import read_cache, write_cache
    from qdqtool.files import refuse_overwrite
    from qdqtool.trtversion import parse, require_caches

    version = parse(args.trt_version)
    require_caches(version)
    source = read_cache(args.cache)
    output = args.output or default_output(args.cache, version)
    refuse_overwrite(output, [args.cache])
    cache = retarget(source, version, args.cache)
    write_cache(cache, output)
    warnings = cautions(source, version)
    if not args.quiet:
        sys.stderr.writelines(f"qdqtool: warning: {line}\n" for line in warnings)
    if args.json:
        facts = {"file": str(output), "from": source.header, "header": cache.header, "platforms": version.platforms}
        counts = {"entries": len(cache.entries), "dropped": len(cache.dropped), "warnings": warnings}
        _print(json.dumps({**facts, **counts}, indent=1))
    elif not args.quiet:
        _print(f"{output}: {source.header} -> {cache.header}, {len(cache.entries)} scales unchanged")
    return 0


def _table(cache: Cache) -> Iterator[str]:
    """The lines of `show`: facts first, then a row per scale, then what was dropped."""
    facts = cache.to_json()
    version = f"TensorRT {facts['version']}" if facts["version"] else "TensorRT 5.0 or before"
    yield f"header     {facts['header']}"
    yield f"version    {version}" + (f" ({', '.join(facts['platforms'])})" if facts["platforms"] else "")
    yield f"algorithm  {facts['algorithm']}"
    yield f"entries    {len(facts['entries'])}"
    yield f"dropped    {len(facts['dropped'])}"
    if facts["names_with_colon"]:
        count = len(facts["names_with_colon"])
        yield f"colons     {count} of the names hold ':', where the readers of onnxruntime and MIGraphX cut them off"
    names = [_printable(name) for name in facts["entries"]]
    width = max(map(len, ["tensor", *names]))
    yield ""
    yield f"{'tensor':<{width}}  {'scale':>12}  {'amax':>12}  bits"
    for name, entry in zip(names, facts["entries"].values(), strict=True):
        yield f"{name:<{width}}  {entry['value']:>12.6g}  {entry['amax']:>12.6g}  {entry['scale']}"
    for entry in facts["dropped"]:
        yield f"dropped    {_printable(entry['name'])}: {entry['scale']} is {entry['reason']}"


def _printable(name: str) -> str:
    """A name without what a terminal would act on."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def _print(text: str) -> None:
    """Write to stdout what its encoding can say, the rest escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
