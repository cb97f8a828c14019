# SPDX-License-Identifier: Apache-2.0
"""One job for the library: which file it reads, by what its result is known, and whether that is known already."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqtool.engine.onnx_nodes import clear_shared_names
from qdqtool.errors import QdqError
from qdqtool.file_digest import file_sha256
from qdqtool.graph.io import serialize
from qdqtool.graph.model import Model
from qdqtool.graph.tensors import is_external, location_of
from qdqtool.graph.validate import tensors_of
from qdqtool.tensorrt_rtx.child import WORKER, run_worker
from qdqtool.tensorrt_rtx.installed import RtxLibrary
from qdqtool.tensorrt_rtx.result_cache import make_key, read_entry, write_entry

_KEYS = frozenset({"version", "accepted", "network_layers", "errors", "warnings", "log_errors", "cpu_seconds"})
_TODO = "copy it beside the model"


def run_job(library: RtxLibrary, opened: Model, job: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What the library says of a model, from the cache where it has said so before.

    Nodes that share a name are given to the library without one, so that its messages tell them apart: see
    `engine/onnx_nodes.py`.

    Args:
        library: which installation.
        opened: the model; one that has no file of its own is written to a temporary one.
        job: action and options.
        seconds: how long it may take.

    Raises:
        QdqError: the child failed, or the model's external data cannot be read.
    """
    cleared = clear_shared_names(opened.proto)
    own_file = opened.kind == "path" and cleared is None and _is_text(opened.path)
    data = b"" if own_file else serialize(cleared or opened.proto)
    model = opened.sha256 if own_file else hashlib.sha256(data).hexdigest()
    parts = {
        "version": library.version,
        "worker": file_sha256(WORKER),
        "model": model,
        "external": _external(opened),
    }
    key = make_key({**job, "engine": None, "memory": None, **parts})
    if not job.get("engine") and (known := read_entry(key)) is not None and known.keys() >= _KEYS:
        return known
    if own_file:
        result = run_worker(library, {**job, "model": str(opened.path)}, opened.name, seconds)
    else:
        result = _run_bytes(library, opened, data, job, seconds)
    write_entry(key, result)
    return result


def _run_bytes(
    library: RtxLibrary, opened: Model, data: bytes, job: Mapping[str, Any], seconds: float
) -> dict[str, Any]:
    """The job on a temporary file, whose external data lie in the model's folder."""
    with tempfile.TemporaryDirectory(prefix="qdqtool-rtx-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(data)
        external = any(is_external(tensor) for tensor in tensors_of(opened.proto))
        place = str(opened.folder.resolve()) if external and opened.folder is not None else ""
        return run_worker(library, {**job, "model": str(path), "folder": place}, opened.name, seconds)


def _is_text(path: Path | None) -> bool:
    """Whether a path can be handed to the library, which takes UTF-8 alone."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return path is not None


def _external(opened: Model) -> dict[str, str]:
    """The digest of each file of external data, by its place."""
    found = (location_of(tensor, opened.name) for tensor in tensors_of(opened.proto) if is_external(tensor))
    places = sorted(set(found))
    if places and opened.folder is None:
        raise QdqError(opened.name, "has external data in an unknown folder", "give the model as a path")
    return {
        place: file_sha256(opened.folder / place, "copy it beside the model")
        for place in places
        if opened.folder is not None
    }
