# SPDX-License-Identifier: Apache-2.0
"""Caches from file to file, each written with its sidecar: merge, convert, retarget. Not what becomes of the scales."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qdqtool.cache.amax import inexact_as_float32
from qdqtool.cache.convert import read_any, render, with_version
from qdqtool.cache.convert_options import ConvertOptions, Source
from qdqtool.cache.merge import Merged, OnConflict, merge
from qdqtool.cache.other_export import shifted_names
from qdqtool.cache.retarget import cautions, retarget
from qdqtool.cache.sanitize import renamed, sanitized
from qdqtool.cache.sidecar import check_place, read_sidecar, sidecar_path, source_fact, write_with_sidecar
from qdqtool.cache.text import Cache, format_cache, read_cache
from qdqtool.errors import QdqError
from qdqtool.files import FileSet, check_outputs
from qdqtool.trtversion import CACHE_TO_QDQ, TrtVersion, require_caches

_Path = str | os.PathLike[str]

_AS_FLOAT32 = ("ort-flatbuffers", "ort-json", "polygraphy-script")


@dataclass(frozen=True)
class Stored:
    """A cache that was written.

    Attributes:
        cache: what is in it.
        before: the first line of the input; empty where its format has none.
        source: the format of the input.
        renamed: old name -> new name.
        notes: what the user should know, one line each.
    """

    cache: Cache
    before: str = ""
    source: Source = "trt"
    renamed: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def retarget_file(path: _Path, version: TrtVersion, output: _Path) -> Stored:
    """Write the scales of a cache under the header of another TensorRT; origins go along with them.

    Raises:
        QdqError: as `read_cache`, `retarget` and `write`; nothing is written then.
    """
    require_caches(version, CACHE_TO_QDQ)
    source = read_cache(path)
    cache = retarget(source, version, path)
    notes = cautions(source, version)
    described, stale = carried([path], dict.fromkeys(cache.entries, 0))
    facts = {"verb": "cache retarget", "header": cache.header, "options": {"trt_version": version.text}}
    write(format_cache(cache).encode(), output, {**facts, **described}, [path])
    return Stored(cache, source.header, notes=(*notes, *stale))


def merge_files(paths: Sequence[_Path], output: _Path, on_conflict: OnConflict = "error") -> tuple[Merged, Stored]:
    """Write several caches as one; each tensor's origin comes from the cache whose scale it has.

    Raises:
        QdqError: as `read_cache`, `merge` and `write`; nothing is written then.
    """
    merged = merge([(str(path), read_cache(path)) for path in paths], on_conflict)
    described, stale = carried(paths, merged.chosen)
    facts = {"verb": "cache merge", "header": merged.cache.header, "options": {"on_conflict": on_conflict}}
    write(format_cache(merged.cache).encode(), output, {**facts, **described}, paths)
    dropped = len(merged.cache.dropped)
    lost = (f"{dropped} dropped: none of the caches has a usable scale for them",) if dropped else ()
    return merged, Stored(merged.cache, notes=(*lost, *stale))


def convert_file(path: _Path, output: _Path, options: ConvertOptions, files: FileSet | None = None) -> Stored:
    """Write a cache in another format; with `files`, as a part of that set.

    Raises:
        QdqError: as `read_any`, `with_version`, `render` and `write`; nothing is written then.
    """
    source, kind = read_any(path, options.source)
    cache = with_version(source, options.trt_version, options.target, path)
    names = sanitized([*cache.entries, *options.model_names]) if options.sanitize_names else {}
    if options.shift_names is not None:
        names |= shifted_names(cache, options.shift_names)
    names |= _known(options.rename, cache)
    described, stale = carried([path], dict.fromkeys(cache.entries, 0))
    if described.get("tensors"):
        described["tensors"] = {names.get(name, name): fact for name, fact in described["tensors"].items()}
    cache = renamed(cache, names)
    facts: dict[str, Any] = {"verb": "cache convert", "header": cache.header}
    facts["options"] = {"to": options.target, "from": kind, "renamed": names or None}
    write(render(cache, options.target), output, {**facts, **described}, [path], files)
    return Stored(cache, source.header, kind, names, (*_notes(source, cache, options, names), *stale))


def carried(paths: Sequence[_Path], chosen: Mapping[str, int]) -> tuple[dict[str, Any], list[str]]:
    """What the sidecars of caches say that holds for a cache made from them."""
    read = [read_sidecar(path) for path in paths]
    stale = [
        f"{sidecar_path(path)} does not match the cache, which was changed since; the details in it are ignored"
        for path, sidecar in zip(paths, read, strict=True)
        if sidecar is not None and not sidecar.fresh
    ]
    fresh = [sidecar if sidecar is not None and sidecar.fresh else None for sidecar in read]
    tensors = {
        name: sidecar.tensors[name]
        for name, index in chosen.items()
        if (sidecar := fresh[index]) is not None and name in sidecar.tensors
    }
    facts: dict[str, Any] = {"tensors": tensors, "sources": [source_fact(path) for path in paths]}
    for key in ("model", "data"):
        said = [part for sidecar in fresh if sidecar is not None and (part := getattr(sidecar, key))]
        if said and all(part == said[0] for part in said):
            facts[key] = said[0]
    return facts, stale


def write(
    data: bytes, output: _Path, facts: Mapping[str, Any], inputs: Sequence[_Path], files: FileSet | None = None
) -> None:
    """Write a cache and its sidecar, both or none; every refusal comes before the first byte.

    Raises:
        QdqError: either would overwrite an input, an input's sidecar or a stranger's file, or cannot be written.
    """
    read = [*inputs, *map(sidecar_path, inputs)]
    check_outputs({"the cache": output, "the cache's details": sidecar_path(output)}, read)
    check_place(output, inputs)
    write_with_sidecar(output, data, facts, files)


def _notes(source: Cache, cache: Cache, options: ConvertOptions, names: Mapping[str, str]) -> tuple[str, ...]:
    notes: list[str] = []
    if options.trt_version is not None and source.header:
        notes.extend(cautions(source, options.trt_version))
    elif source.dropped:
        notes.append(f"{_entries(len(source.dropped))} of zero or infinity dropped")
    if options.target == "trt" and not source.header:
        notes.append("the header says EntropyCalibration2, since the input does not say how it was calibrated")
    if options.target == "trt" and cache.colon_names:
        count = len(cache.colon_names)
        notes.append(f"{count} of the names contain ':', and onnxruntime and MIGraphX cut names off there")
    if options.sanitize_names and names and not options.model_names:
        notes.append(f"{len(names)} names changed; the model must take the same names")
    if options.target in _AS_FLOAT32 and (inexact := inexact_as_float32(cache)):
        counts = f"{len(inexact)} of {_entries(len(cache.entries))}"
        notes.append(f"{counts} change by one unit in the last place, because this format stores amax as float32")
    return tuple(notes)


def _known(names: Mapping[str, str], cache: Cache) -> Mapping[str, str]:
    there = {*cache.entries, *(name for name, *_ in cache.dropped)}
    for name in names:
        if name not in there:
            raise QdqError("--rename", f"the cache has no entry {name}", "qdqtool cache show lists them")
    return names


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"
