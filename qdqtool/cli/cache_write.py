# SPDX-License-Identifier: Apache-2.0
"""`qdqtool cache retarget`, `merge` and `convert`: caches out of caches. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from qdqtool.cache.convert_options import ConvertOptions
from qdqtool.cli.cache import say
from qdqtool.cli.declared import options_from
from qdqtool.cli.output import print_json, warn
from qdqtool.display import counted
from qdqtool.errors import QdqError, printable
from qdqtool.trtversion import CACHE_TO_QDQ, parse, require_caches

if TYPE_CHECKING:
    from qdqtool.cache.store import Stored


def retarget(args: argparse.Namespace) -> int:
    """Write the scales of a cache for another TensorRT."""
    from qdqtool.cache.retarget import default_output
    from qdqtool.cache.store import retarget_file

    version = parse(args.trt_version)
    require_caches(version, CACHE_TO_QDQ)
    output = args.output or default_output(args.cache, version)
    done = retarget_file(args.cache, version, output)
    _warn(done.notes, args)
    header = done.cache.header
    if args.json:
        facts = {"file": str(output), "from": done.before, "header": header, "platforms": version.platforms}
        counts = {"entries": len(done.cache.entries), "dropped": len(done.cache.dropped), "warnings": done.notes}
        print_json({**facts, **counts})
    elif not args.quiet:
        say(printable(f"{output}: {done.before} -> {header}, {len(done.cache.entries)} scales unchanged", None))
    return 0


def merge(args: argparse.Namespace) -> int:
    """Write several caches as one."""
    from qdqtool.cache.store import merge_files
    from qdqtool.cache.text import scale_hex

    merged, done = merge_files(args.caches, args.output, args.on_conflict)
    _warn(done.notes, args)
    taken = [sum(index == place for place in merged.chosen.values()) for index in range(len(args.caches))]
    if args.json:
        conflicts = {name: [scale_hex(scale) for scale in scales] for name, scales in merged.conflicts.items()}
        sources = [{"file": str(path), "scales": count} for path, count in zip(args.caches, taken, strict=True)]
        facts = {"file": str(args.output), "header": done.cache.header, "entries": len(done.cache.entries)}
        print_json({**facts, "sources": sources, "conflicts": conflicts, "warnings": done.notes})
    elif not args.quiet:
        settled = f", {counted(len(merged.conflicts), 'conflict')} settled by {args.on_conflict}"
        shares = ", ".join(f"{count} from {path}" for path, count in zip(args.caches, taken, strict=True))
        scales = counted(len(done.cache.entries), "scale")
        say(
            printable(
                f"{args.output}: {done.cache.header}, {scales}: {shares}" + (settled if merged.conflicts else ""), None
            )
        )
    return 0


def convert(args: argparse.Namespace) -> int:
    """Write a cache in another format."""
    from qdqtool.cache.store import convert_file

    for option, given, needs, there in (
        ("--model", args.model, "--sanitize-names", args.sanitize_names),
        ("--model-output", args.model_output, "--model", args.model is not None),
    ):
        if given is not None and not there:
            raise QdqError(option, f"says something only with {needs}", f"add {needs}, or leave it out")
    options = options_from(ConvertOptions, args)
    if args.model is not None:
        return _convert_both(args, options)
    done = convert_file(args.cache, args.output, options)
    _warn(done.notes, args)
    if args.json:
        print_json(_converted(done, args))
    elif not args.quiet:
        changed = f", {counted(len(args.rename), 'name')} changed" if args.rename else ""
        shifted = (
            changed if args.shift_names is None else f", {counted(len(done.renamed), 'name')} {args.shift_names:+d}"
        )
        scales = counted(len(done.cache.entries), "scale")
        say(printable(f"{args.output}: {done.source} -> {args.to}, {scales}{shifted}", None))
    return 0


def _convert_both(args: argparse.Namespace, options: ConvertOptions) -> int:
    """Write a cache and its model under names that both share."""
    from qdqtool.verbs.sanitize import sanitize_files

    both = sanitize_files(args.cache, args.model, args.output, options, args.model_output)
    done = both.stored
    _warn(done.notes, args)
    if args.json:
        print_json({**_converted(done, args), "model": str(both.model)})
    elif not args.quiet:
        changed = sum(new in done.cache.entries for new in done.renamed.values())
        scales = counted(len(done.cache.entries), "scale")
        say(printable(f"{args.output}: {done.source} -> {args.to}, {scales}, {counted(changed, 'name')} changed", None))
        say(printable(f"{both.model}: {counted(len(both.renamed), 'name')} changed", None))
    return 0


def _converted(done: Stored, args: argparse.Namespace) -> dict[str, object]:
    facts = {"file": str(args.output), "from": done.source, "to": args.to, "header": done.cache.header}
    counts = {"entries": len(done.cache.entries), "dropped": len(done.cache.dropped)}
    return {**facts, **counts, "renamed": done.renamed, "warnings": done.notes}


def _warn(notes: Iterable[str], args: argparse.Namespace) -> None:
    for line in notes:
        warn(line, args)
