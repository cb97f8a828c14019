# SPDX-License-Identifier: Apache-2.0
"""`qdqtool cache check` and `diff`: a cache beside a model, and beside another cache. Words to calls and back."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qdqtool.cache.text import cut_names
from qdqtool.cli.cache import say
from qdqtool.cli.output import print_json
from qdqtool.command_lines import command, file_word, next_line, option, stem_of
from qdqtool.display import counted
from qdqtool.errors import printable

if TYPE_CHECKING:
    from qdqtool.cache.check import CacheCheck, PairCheck
    from qdqtool.cache.diff import CacheDiff
    from qdqtool.cache.other_export import ExportEvidence

_SHOWN = 20


def check(args: argparse.Namespace) -> int:
    """Compare a cache with a model."""
    from qdqtool.cache.text import read_cache
    from qdqtool.verbs.check_cache import check_cache

    cache = read_cache(args.cache)
    found = check_cache(args.model, cache)
    if args.json:
        files = {"cache": str(args.cache), "model": str(args.model), "header": cache.header}
        print_json({**files, "passes": found.passes(args.fail_under), **found.to_json()})
    elif not args.quiet:
        say("\n".join(_check_lines(found, args)))
    return 0 if found.passes(args.fail_under) else 1


def diff(args: argparse.Namespace) -> int:
    """Compare two caches."""
    from qdqtool.cache.diff import diff as compare
    from qdqtool.cache.text import read_cache

    found = compare(read_cache(args.first), read_cache(args.second))
    if args.json:
        print_json({"a": str(args.first), "b": str(args.second), **found.to_json()})
    elif not args.quiet:
        say("\n".join(_diff_lines(found)))
    return int(args.exit_code and found.differs)


def _check_lines(found: CacheCheck, args: argparse.Namespace) -> Iterator[str]:
    everything = bool(args.verbose)
    yield from _export_lines(found.export, args)
    yield from [] if found.pairs is None else _pair_lines(found.pairs, everything)
    total = len(found.matched) + len(found.missing)
    yield f"coverage   {found.coverage:.1f} %: {len(found.matched)} of {counted(total, 'float tensor')} have a scale"
    if found.constant and not found.export.is_proof:
        yield f"constants  {counted(len(found.constant), 'scale')} of constants and other tensors, which do no harm"
    if found.made_up:
        yield f"internal   {counted(len(found.made_up), 'name')} that TensorRT generated, which no model has"
    if found.unusable:
        yield f"unusable   {counted(len(found.unusable), 'scale')} of zero or infinity"
    if found.colons:
        yield f"colons     {cut_names(len(found.colons))}"
    yield f"unknown    {counted(len(found.unknown), 'name')} in the cache that the model lacks, {_near(found)}"
    yield from _listed([f"{n}  (near {found.near[n]})" if n in found.near else n for n in found.unknown], everything)
    yield f"missing    {counted(len(found.missing), 'float tensor')} of the model without a scale"
    if found.missing:
        yield "           right for a GPU inside of fused layers, which need scales only where they begin and end, and"
        yield "           around what shall run in float: peel --target gpu leaves them out; a DLA needs one for each"
    yield from _listed(found.missing, everything)
    yield from _step(found, args)


def _step(found: CacheCheck, args: argparse.Namespace) -> Iterator[str]:
    """What to do about names that the model lacks: give them its names, or calibrate what has no scale.

    A cache without a scale for any tensor of the model is of no use to `graft`. Where most of its names are like none
    of the model, the few that are like one are so by chance.
    """
    if found.export.shift or found.export.is_proof or not found.unknown or not found.missing:
        return
    new = {old: near for old, near in found.near.items() if "=" not in old}
    if not found.matched and 2 * len(new) < len(found.unknown):
        new = {}
    chosen = {near: old for old, near in reversed(new.items())}  # the first of two for one tensor
    if chosen:
        words = [word for near, old in reversed(chosen.items()) for word in option("--rename", f"{old}={near}")]
        output = option("-o", f"{stem_of(args.cache)}.renamed.cache")
        line = command("cache", "convert", file_word(args.cache), "--to", "trt", *words, *output)
        yield f"next, where these are the same tensors: {line}"
    if not found.matched:
        if not (chosen or found.constant or found.export):
            yield "model      this cache is of another model: no name in it is of a tensor of this one"
        if not (chosen or found.pairs):
            line = command("insert", file_word(args.model), "--data", "DATA")
            yield f"to calibrate this model, with your data for DATA: {line}"
    elif len(chosen) < len(found.missing) and found.pairs is None:
        line = command("graft", file_word(args.model), *option("--cache", args.cache), "--data", "DATA")
        yield f"to calibrate what has no scale, with your data for DATA: {line}"


def _pair_lines(found: PairCheck, everything: bool) -> Iterator[str]:
    """Whether the pairs of a Q/DQ model have the cache's scales."""
    total = len(found.same) + len(found.differing) + len(found.lacking)
    yield f"pairs      {len(found.same)} of {total} have the scale of the cache, bit for bit"
    if found.differing:
        yield f"  {counted(len(found.differing), 'pair')} with another scale than the cache:"
        rows = [
            f"  {name}: {mine} in the model, {cached} in the cache" for name, (mine, cached) in found.differing.items()
        ]
        yield from _listed(rows, everything)
    if found.lacking:
        yield f"  {counted(len(found.lacking), 'pair')} on tensors that the cache lacks:"
        yield from _listed([f"  {name}" for name in found.lacking], everything)


def _export_lines(found: ExportEvidence, args: argparse.Namespace) -> Iterator[str]:
    """That the cache is of another export of the model, by what, and the command that renames its entries."""
    if not found:
        return
    yield f"export     this cache {'is' if found.is_proof else 'may be'} of another export than the model"
    yield from (f"  {printable(line, None)}" for line in found.sentences())
    if found.shift:
        output = f"{stem_of(args.cache)}.shifted.cache"
        words = [file_word(args.cache), "--to", "trt", "--shift-names", str(found.shift), "-o", file_word(output)]
        yield next_line(command("cache", "convert", *words))


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
