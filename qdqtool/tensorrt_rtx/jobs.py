# SPDX-License-Identifier: Apache-2.0
"""One job for the library: which file it reads, by what its result is known, and whether that is known already."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqtool.errors import QdqError
from qdqtool.graph.io import Opened, serialize
from qdqtool.graph.tensors import is_external, location_of
from qdqtool.graph.validate import tensors_of
from qdqtool.tensorrt_rtx.child import WORKER, run_worker
from qdqtool.tensorrt_rtx.installed import RtxLibrary
from qdqtool.tensorrt_rtx.result_cache import make_key, read_entry, write_entry

_CHUNK = 1 << 20


def run_job(library: RtxLibrary, opened: Opened, job: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What the library says of a model, from the cache where it has said so before.

    Args:
        library: which installation.
        opened: the model; one that has no file of its own is written to a temporary one.
        job: action and options.
        seconds: how long it may take.

    Raises:
        QdqError: the child failed, or the model's external data cannot be read.
    """
    data = b"" if opened.kind == "path" else serialize(opened.proto)
    own = opened.sha256 if opened.kind == "path" else hashlib.sha256(data).hexdigest()
    key = make_key({**job, "engine": None, "version": library.version, "worker": _digest(WORKER), "model": own,
                    "external": _external(opened)})  # fmt: skip
    if not job.get("engine") and (known := read_entry(key)) is not None:
        return known
    if opened.kind == "path":
        result = run_worker(library, {**job, "model": str(opened.path)}, opened.name, seconds)
    else:
        with tempfile.TemporaryDirectory(prefix="qdqtool-rtx-") as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(data)
            place = str(opened.folder.resolve()) if opened.folder is not None else ""
            result = run_worker(library, {**job, "model": str(path), "folder": place}, opened.name, seconds)
    write_entry(key, result)
    return result


def _external(opened: Opened) -> dict[str, str]:
    """The digest of each file of external data, by its place.

    Raises:
        QdqError: one cannot be read, or nobody knows where it lies.
    """
    found = (location_of(tensor, opened.name) for tensor in tensors_of(opened.proto) if is_external(tensor))
    places = sorted(set(found))
    if places and opened.folder is None:
        raise QdqError(opened.name, "has external data in an unknown folder", "give the model as a path")
    return {place: _digest(opened.folder / place) for place in places if opened.folder is not None}


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise QdqError(path, f"cannot be read ({error.strerror})", "copy it beside the model") from None
    return digest.hexdigest()
