# SPDX-License-Identifier: Apache-2.0
"""`qdqtool cache check` and `diff`: a cache beside a model, and beside another cache. Words to calls and back."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qdqtool.cache.text import cut_names
from qdqtool.cli.cache import say
from qdqtool.display import counted
from qdqtool.errors import printable

if TYPE_CHECKING:
    from qdqtool.cache.check import CacheCheck
    from qdqtool.cache.diff import CacheDiff

_SHOWN = 20


def check(args: argparse.Namespace) -> int:
    """Compare a cache with a model.

    Returns:
        1 where the cache names tensors that nothing has, or where the coverage asked for is missed, else 0.
    """
    from qdqtool.cache.check import check as compare
    from qdqtool.cache.text import read_cache

    cache = read_cache(args.cache)
    floats, others = model_names(args.model)
    found = compare(cache, floats, others)
    if args.json:
        files = {"cache": str(args.cache), "model": str(args.model), "header": cache.header}
        document = {**files, "passes": found.passes(args.fail_under), **found.to_json()}
        say(json.dumps(document, indent=1))
    elif not args.quiet:
        say("\n".join(_check_lines(found, args.verbose)))
    return 0 if found.passes(args.fail_under) else 1


def diff(args: argparse.Namespace) -> int:
    """Compare two caches.

    Returns:
        1 where they differ and --exit-code asks for it, else 0.
    """
    from qdqtool.cache.diff import diff as compare
    from qdqtool.cache.text import read_cache

    found = compare(read_cache(args.first), read_cache(args.second))
    if args.json:
        say(json.dumps({"a": str(args.first), "b": str(args.second), **found.to_json()}, indent=1))
    elif not args.quiet:
        say("\n".join(_diff_lines(found)))
    return int(args.exit_code and found.differs)


def model_names(path: str) -> tuple[list[str], list[str]]:
    """The tensors of a model: see `tensor_names`."""
    from qdqtool.graph.io import open_model
    from qdqtool.precision.tensor_names import tensor_names

    return tensor_names(open_model(path))


def _check_lines(found: CacheCheck, everything: bool) -> Iterator[str]:
    total = len(found.matched) + len(found.missing)
    yield f"coverage   {found.coverage:.1f} %: {len(found.matched)} of {counted(total, 'float tensor')} have a scale"
    if found.constant:
        yield f"constants  {counted(len(found.constant), 'scale')} of constants and other tensors, which are no fault"
    if found.made_up:
        yield f"made up    {counted(len(found.made_up), 'name')} of TensorRT's own making, which no model has"
    if found.unusable:
        yield f"unusable   {counted(len(found.unusable), 'scale')} of zero or infinity"
    if found.colons:
        yield f"colons     {cut_names(len(found.colons))}"
    yield f"unknown    {counted(len(found.unknown), 'name')} in the cache that the model lacks, {_near(found)}"
    yield from _listed([f"{n}  (near {found.near[n]})" if n in found.near else n for n in found.unknown], everything)
    yield f"missing    {counted(len(found.missing), 'float tensor')} of the model without a scale"
    yield from _listed(found.missing, everything)


def _near(found: CacheCheck) -> str:
    return f"{len(found.near)} of them near a tensor without a scale"


def _diff_lines(found: CacheDiff) -> Iterator[str]:
    one, other = found.headers
    yield f"header     {one}" if one == other else f"header     {one} -> {other}"
    yield f"same       {len(found.same)}"
    yield f"changed    {len(found.changed)}"
    counts = found.to_json()
    for row in counts["changed"]:
        yield f"  {printable(row['name'], None)}: {row['a']} -> {row['b']}, x {row['ratio']:.6g}"
    for key, label in (("only_a", "only in A"), ("only_b", "only in B")):
        yield f"{label}  {len(counts[key])}"
        yield from (f"  {printable(name, None)}: {word}" for name, word in counts[key].items())


def _listed(names: Sequence[str], everything: bool) -> Iterator[str]:
    shown = names if everything else names[:_SHOWN]
    yield from (f"  {printable(name, None)}" for name in shown)
    if len(names) > len(shown):
        yield f"  ... and {len(names) - len(shown)} more; -v lists them all"
