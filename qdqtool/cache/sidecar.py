# SPDX-License-Identifier: Apache-2.0
"""`X.cache.json` beside a cache: how it was made and where each scale comes from. Not the scales themselves.

Same facts, same bytes: no time stamps, no folders, names in the order of the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from qdqtool import __version__
from qdqtool.errors import QdqError
from qdqtool.file_digest import file_sha256
from qdqtool.files import FileSet, joined, refuse_overwrite
from qdqtool.limited_reading import FileKind, parse_json, read_at_most
from qdqtool.scales import Scale

SCHEMA = 1

_TOOL = "qdqtool"
_MAX_BYTES = 256 << 20
_SECTIONS = ("model", "data", "options", "tensors")
_FACTS = frozenset({"verb", "header", "sources", *_SECTIONS})
_TODO = "remove it, or make the cache again"
_NO_CACHE = "give the path of a calibration cache"
_KIND = FileKind("a sidecar", _MAX_BYTES, _TODO)


@dataclass(frozen=True)
class Sidecar:
    """What stands beside a cache.

    Attributes:
        verb: what wrote the cache: `peel`, `cache retarget`, ...
        header: the first line of the cache; empty where its format has none.
        fresh: whether the cache is still the file that was described, by its SHA-256.
        model: facts of the model, such as `{"sha256": ...}`; empty where it is not known.
        data: facts of the calibration data.
        options: what the verb was asked for.
        tensors: name -> `{"origin": ..., "method": ..., "bits": ...}`; `bits` are the eight hexadecimal digits that the
            scale had before it took a shared one.
        sources: `{"file": ..., "sha256": ..., "header": ...}` of each cache that this one was made from.
    """

    verb: str
    header: str = ""
    fresh: bool = True
    model: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)
    sources: list[dict[str, Any]] = field(default_factory=list)


def sidecar_path(cache_path: str | os.PathLike[str]) -> Path:
    """The file beside a cache: `m.cache` -> `m.cache.json`, `cal.bin` -> `cal.bin.json`.

    Raises:
        QdqError: the path names a folder, such as `.` or `/`, and no file.
    """
    path = Path(cache_path)
    if not path.name:
        raise QdqError(path, "is a folder, where a calibration cache is named", "give the name of a file")
    return path.with_name(path.name + ".json")


def write_with_sidecar(
    cache_path: str | os.PathLike[str], data: bytes, facts: Mapping[str, Any], files: FileSet | None = None
) -> None:
    """Write a cache and the sidecar that describes it, both or none.

    Raises:
        QdqError: as `write_sidecar`, or one of them cannot be written.
    """
    with joined(files) as both:
        with both.open(cache_path) as file:
            file.write(data)
        write_sidecar(cache_path, facts, hashlib.sha256(data).hexdigest(), both)


def write_sidecar(
    cache_path: str | os.PathLike[str],
    facts: Mapping[str, Any],
    sha256: str | None = None,
    files: FileSet | None = None,
) -> Path:
    """Describe a cache in a file beside it.

    Args:
        cache_path: the cache: its SHA-256 goes in, so that `read_sidecar` sees when it was changed.
        facts: any of `verb` (text), `header` (text), `model`, `data`, `options` (mappings), `tensors` (name ->
            mapping; see `tensor_facts`) and `sources` (a list of mappings). Paths are cut to their last part, numpy
            float32 become their eight hexadecimal digits, tuples lists; None and empty sections are left out.
        sha256: hex digest of the cache, where it is not written yet.
        files: the set of files that it is written with; None for it alone.

    Raises:
        QdqError: the cache cannot be read, or a file that is no sidecar of ours stands in the place.
        TypeError: a fact of another name, or a value that JSON has no form for (our own fault).
    """
    unknown = sorted(set(facts) - _FACTS)
    if unknown:
        raise TypeError(f"the file of details beside a cache (sidecar) has no field for {', '.join(unknown)}")
    path = sidecar_path(cache_path)
    check_place(cache_path)
    cache: dict[str, Any] = {"file": Path(cache_path).name, "sha256": sha256 or file_sha256(cache_path, _NO_CACHE)}
    cache["header"] = facts.get("header")
    document = {"schema": SCHEMA, "tool": _TOOL, "version": __version__, "verb": facts.get("verb", "")}
    document["cache"] = _plain(cache)
    document.update({key: value for key in (*_SECTIONS, "sources") if (value := _plain(facts.get(key)))})
    with joined(files) as both, both.open(path) as file:
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        file.write(text.encode(errors="replace"))  # a file name that is not UTF-8 is shown with ? in it
    return path


def read_sidecar(cache_path: str | os.PathLike[str]) -> Sidecar | None:
    """What stands beside a cache, or None where there is nothing of ours.

    Raises:
        QdqError: the file says that it is a sidecar, but is damaged or of another schema.
    """
    path = sidecar_path(cache_path)
    document = _document(path)
    if document is None:
        return None
    cache = document.get("cache")
    sections = {key: document.get(key, {}) for key in _SECTIONS}
    sources = document.get("sources", [])
    objects = (
        cache,
        *sections.values(),
        *(sections["tensors"].values() if isinstance(sections["tensors"], dict) else ()),
    )
    if document.get("schema") != SCHEMA or not isinstance(sources, list):
        raise QdqError(path, f"is not a sidecar of schema {SCHEMA}", _TODO)
    if not all(isinstance(part, dict) for part in (*objects, *sources)):
        raise QdqError(path, "is damaged: cache, model, data, options, tensors and sources must be objects", _TODO)
    cache = dict(document["cache"])
    fresh = cache.get("sha256") == file_sha256(cache_path, _NO_CACHE)
    header = str(cache.get("header", ""))
    return Sidecar(str(document.get("verb", "")), header, fresh, **sections, sources=sources)


def check_place(cache_path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]] = ()) -> None:
    """Refuse, before anything is written, a place where a sidecar would do harm.

    Raises:
        QdqError: the sidecar of `cache_path` would overwrite an input, or a file that is not a sidecar.
    """
    path = sidecar_path(cache_path)
    refuse_overwrite(path, inputs)
    if path.exists() and _document(path) is None:
        raise QdqError(path, "is in the place of the file with the cache's details", "give the cache another name")


def tensor_facts(
    scales: Mapping[str, Scale], before: Mapping[str, np.float32] | None = None
) -> dict[str, dict[str, Any]]:
    """The `tensors` section of a table of scales."""
    tensors: dict[str, dict[str, Any]] = {}
    for name, scale in scales.items():
        fact: dict[str, Any] = {"origin": scale.origin, "method": scale.method, "rule": scale.rule}
        fact["samples"] = scale.samples
        tensors[name] = {key: value for key, value in fact.items() if value}
        was = None if before is None else before.get(name)
        if was is not None and was.tobytes() != scale.bits.tobytes():
            tensors[name]["bits"] = _plain(was)
    return tensors


def source_fact(cache_path: str | os.PathLike[str]) -> dict[str, Any]:
    """An entry of `sources` for a cache that another was made from."""
    return {"file": Path(cache_path).name, "sha256": file_sha256(cache_path, _NO_CACHE), "header": ""}


def _document(path: Path) -> dict[str, Any] | None:
    """The JSON of a sidecar; None where there is no file, or one that is not ours."""
    try:
        with path.open("rb") as file:
            data = read_at_most(file, _MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise QdqError(path, f"cannot be read ({error.strerror})", _TODO) from error

    def refuse(constant: str) -> None:
        raise ValueError(constant)  # which could not be written again

    try:
        document = parse_json(data.decode(), path, _KIND, constant=refuse) if len(data) <= _MAX_BYTES else None
    except (UnicodeDecodeError, QdqError):
        return None
    return document if isinstance(document, dict) and document.get("tool") == _TOOL else None


def _plain(value: Any) -> Any:
    """The value as JSON keeps it; see `write_sidecar`."""
    if isinstance(value, Mapping):
        items = ((str(key), _plain(item)) for key, item in value.items())
        return {key: item for key, item in items if item is not None}
    if isinstance(value, np.float32):
        return f"{int(value.view(np.uint32)):08x}"
    if isinstance(value, PurePath):
        return value.name
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"the file of details beside a cache (sidecar) cannot hold a value of type {type(value).__name__}")
