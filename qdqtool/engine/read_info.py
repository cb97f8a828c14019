# SPDX-License-Identifier: Apache-2.0
"""The layers of an engine that TensorRT built, read from an export, a verbose build log, or a profile.

An export is the JSON of `trtexec --exportLayerInfo`, or what `build` writes beside an engine, which is one too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from qdqtool.engine.layer_info import LAYERS_ENDING, MAX_RANK, MAX_SIZE, OURS, EngineInfo, EngineLayer, LayerTensor
from qdqtool.engine.profile import is_profile, read_profile, times_in
from qdqtool.engine.verbose_log import read_log
from qdqtool.errors import QdqError
from qdqtool.limited_reading import LAYERS, parse_json, read_bytes

_TODO = LAYERS.todo
_ENGINE = b"trt"  # of ptrt, ftrt and vtrt, the first four bytes of serialized engines
_BARE = (
    "give its layers: OUT.layers.json of qdqtool build, the JSON of trtexec --exportLayerInfo, or a verbose build log"
)

# A log may begin with a bracket too: [I], [V], [03/24/2023-12:56:13].
_JSON = re.compile(r"\ufeff?\s*(?:\{|\[\s*[{\"\]])")


_SEPARATORS = re.compile(r"[\x1e\x1f]")  # of the nodes of one layer, with Myelin


def read_layer_info(path: Path) -> EngineInfo:
    """The layers of an engine from an export, a verbose log or a profile.

    Raises:
        QdqError: a file that cannot be read, is none of them, or names no layer; an engine itself.
    """
    data = read_bytes(path, LAYERS)
    if data[1:4] == _ENGINE and data[:1].isalpha() and b"\0" in data[:64]:
        beside = path.with_name(path.name + LAYERS_ENDING)
        todo = f"give {beside}, which is beside it" if beside.is_file() else _BARE
        raise QdqError(path, "is an engine, which TensorRT reads on its GPU alone", todo)
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")  # what PowerShell's redirection writes
    text = data.decode("utf-16" if wide else "utf-8", errors="replace")
    if not _JSON.match(text):
        return read_log(path, text)
    document = parse_json(text.lstrip("\ufeff"), path, LAYERS)
    if is_profile(document):
        times = times_in(path, document)
        return EngineInfo(path, tuple(map(EngineLayer, times)), "profile", times=times)
    return info_in(path, document)


def with_profile(info: EngineInfo, path: Path) -> EngineInfo:
    """An engine with the times of its profile.

    Raises:
        QdqError: a file that cannot be read or is not a profile, or the profile of another engine.
    """
    times = read_profile(path)
    if not times.keys() & {layer.name for layer in info.layers}:
        raise QdqError(path, f"names no layer of {info.path.name}", "give the profile of this engine")
    return replace(info, times=times)


def info_in(path: Path, document: object) -> EngineInfo:
    """The layers in the document of an export.

    Raises:
        QdqError: it has none.
    """
    entries = document.get("Layers") if isinstance(document, dict) else document
    if not isinstance(entries, list) or not entries:
        raise QdqError(path, "has no list of Layers", _TODO)
    ours = document.get(OURS) if isinstance(document, dict) else None
    header = ours if isinstance(ours, dict) else {}
    layers = tuple(_layer(path, entry) for entry in entries)
    source: Literal["built", "json"] = "built" if ours else "json"
    return EngineInfo(path, layers, source, _word(header, "version"), _word(header, "built"))


def _layer(path: Path, entry: object) -> EngineLayer:
    if isinstance(entry, str):  # --profilingVerbosity=layer_names_only
        return EngineLayer(entry)
    if not isinstance(entry, dict) or not isinstance(entry.get("Name"), str):
        raise QdqError(path, "has a layer without a Name", _TODO)
    return EngineLayer(
        entry["Name"],
        _word(entry, "LayerType"),
        _onnx_nodes(_word(entry, "Metadata")),
        _tensors(entry.get("Inputs")),
        _tensors(entry.get("Outputs")),
        _word(entry, "TacticName"),
        origin=_word(entry, "Origin"),
        constants=(*_weights(entry), *_tensors(entry.get("Constants"))),
    )


def _onnx_nodes(metadata: str) -> tuple[str, ...]:
    """The names in `[ONNX Layer: a]`, one or several."""
    parts = (part.partition("[ONNX Layer: ")[2].rstrip("\n") for part in _SEPARATORS.split(metadata))
    return tuple(part[:-1] for part in parts if part.endswith("]"))


def _word(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key, "")
    return value if isinstance(value, str) else ""


def _tensors(ports: object) -> tuple[LayerTensor, ...]:
    if not isinstance(ports, list):
        return ()
    return tuple(
        LayerTensor(
            _word(port, "Format/Datatype"), _word(port, "Name"), _shape(port.get("Dimensions")), _word(port, "Format")
        )
        for port in ports
        if isinstance(port, dict)
    )


def _shape(sizes: object) -> tuple[int, ...] | None:
    """The dimensions; None where they are none that a tensor can have."""
    if not isinstance(sizes, list) or len(sizes) > MAX_RANK:
        return None
    if not all(type(size) is int and 0 <= size <= MAX_SIZE for size in sizes):
        return None
    return tuple(sizes)


def _weights(entry: Mapping[str, Any]) -> Iterator[LayerTensor]:
    """Weights and bias of a convolution, by type and count; those of a fused pooling layer have a prefix."""
    for key in ("Weights", "Bias", "ConvWeights", "ConvBias"):
        value = entry.get(key)
        if isinstance(value, dict) and type(value.get("Count")) is int and 0 < value["Count"] <= MAX_SIZE:
            yield LayerTensor(_word(value, "Type"), key.lower(), (value["Count"],))
