# SPDX-License-Identifier: Apache-2.0
"""`qdqtool cache retarget`, `merge` and `convert`: caches out of caches. Words to calls and back, no more."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable

from qdqtool.cli.cache import say
from qdqtool.cli.show import counted


def retarget(args: argparse.Namespace) -> int:
    """Write the scales of a cache for another TensorRT."""
    from qdqtool.cache.retarget import default_output
    from qdqtool.cache.store import retarget_file
    from qdqtool.trtversion import parse, require_caches

    version = parse(args.trt_version)
    require_caches(version)
    output = args.output or default_output(args.cache, version)
    done = retarget_file(args.cache, version, output)
    _warn(done.notes, args)
    header = done.cache.header
    if args.json:
        facts = {"file": str(output), "from": done.before, "header": header, "platforms": version.platforms}
        counts = {"entries": len(done.cache.entries), "dropped": len(done.cache.dropped), "warnings": done.notes}
        say(json.dumps({**facts, **counts}, indent=1))
    elif not args.quiet:
        say(f"{output}: {done.before} -> {header}, {len(done.cache.entries)} scales unchanged")
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
        say(json.dumps({**facts, "sources": sources, "conflicts": conflicts, "warnings": done.notes}, indent=1))
    elif not args.quiet:
        settled = f", {counted(len(merged.conflicts), 'conflict')} settled by {args.on_conflict}"
        shares = ", ".join(f"{count} from {path}" for path, count in zip(args.caches, taken, strict=True))
        scales = counted(len(done.cache.entries), "scale")
        say(f"{args.output}: {done.cache.header}, {scales}: {shares}" + (settled if merged.conflicts else ""))
    return 0


def convert(args: argparse.Namespace) -> int:
    """Write a cache in another format."""
    from qdqtool.cache.store import ConvertOptions, convert_file
    from qdqtool.trtversion import parse

    version = None if args.trt_version is None else parse(args.trt_version)
    options = ConvertOptions(args.to, args.source, version, args.sanitize_names)
    done = convert_file(args.cache, args.output, options)
    _warn(done.notes, args)
    if args.json:
        facts = {"file": str(args.output), "from": done.source, "to": args.to, "header": done.cache.header}
        counts = {"entries": len(done.cache.entries), "dropped": len(done.cache.dropped)}
        say(json.dumps({**facts, **counts, "renamed": done.renamed, "warnings": done.notes}, indent=1))
    elif not args.quiet:
        say(f"{args.output}: {done.source} -> {args.to}, {counted(len(done.cache.entries), 'scale')}")
    return 0


def _warn(notes: Iterable[str], args: argparse.Namespace) -> None:
    if not args.quiet:
        sys.stderr.writelines(f"qdqtool: warning: {line}\n" for line in notes)
