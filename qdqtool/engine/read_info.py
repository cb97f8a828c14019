# SPDX-License-Identifier: Apache-2.0
"""The layers of an engine that TensorRT built, read from `trtexec --exportLayerInfo` or from a verbose build log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqtool.bounded import LAYERS, parse_json, read_bytes
from qdqtool.engine.layer_info import EngineInfo, EngineLayer
from qdqtool.errors import QdqError

_TODO = LAYERS.todo


# A log may begin with a bracket too: [I], [V], [03/24/2023-12:56:13].
_JSON = re.compile(r"\ufeff?\s*(?:\{|\[\s*[{\"\]])")


_SEPARATORS = re.compile(r"[\x1e\x1f]")  # of the nodes of one layer, with Myelin


def read_layer_info(path: Path) -> EngineInfo:
    """The layers of an engine from an export or a verbose log.

    Raises:
        QdqError: a file that cannot be read, is neither, or names no layer.
    """
    from qdqtool.engine.verbose_log import read_log

    text = _text(path)
    if _JSON.match(text):
        return EngineInfo(path, _from_json(path, text), "json")
    return read_log(path, text)


def _text(path: Path) -> str:
    data = read_bytes(path, LAYERS)
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")  # what PowerShell's redirection writes
    return data.decode("utf-16" if wide else "utf-8", errors="replace")


def _from_json(path: Path, text: str) -> tuple[EngineLayer, ...]:
    document = parse_json(text.lstrip("\ufeff"), path, LAYERS)
    entries = document.get("Layers") if isinstance(document, dict) else document
    if not isinstance(entries, list) or not entries:
        raise QdqError(path, "has no list of Layers", _TODO)
    return tuple(_layer(path, entry) for entry in entries)


def _layer(path: Path, entry: object) -> EngineLayer:
    if isinstance(entry, str):  # --profilingVerbosity=layer_names_only
        return EngineLayer(entry)
    if not isinstance(entry, dict) or not isinstance(entry.get("Name"), str):
        raise QdqError(path, "has a layer without a Name", _TODO)
    return EngineLayer(
        entry["Name"],
        _word(entry, "LayerType"),
        _onnx_nodes(_word(entry, "Metadata")),
        _formats(entry.get("Inputs")),
        _formats(entry.get("Outputs")),
        _word(entry, "TacticName"),
        origin=_word(entry, "Origin"),
    )


def _onnx_nodes(metadata: str) -> tuple[str, ...]:
    """The names in `[ONNX Layer: a]`, one or several."""
    parts = (part.partition("[ONNX Layer: ")[2].rstrip("\n") for part in _SEPARATORS.split(metadata))
    return tuple(part[:-1] for part in parts if part.endswith("]"))


def _word(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key, "")
    return value if isinstance(value, str) else ""


def _formats(ports: object) -> tuple[str, ...]:
    if not isinstance(ports, list):
        return ()
    return tuple(_word(port, "Format/Datatype") for port in ports if isinstance(port, dict))
