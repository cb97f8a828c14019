# SPDX-License-Identifier: Apache-2.0
"""The layers of an engine that was built here: as any engine's layers, and as the file `OUT.layers.json`.

The file has the form of `trtexec --exportLayerInfo`, so that tools made for that read it, and one key more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from qdqtool.engine.layer_info import OURS, EngineInfo, EngineLayer, LayerTensor

SCHEMA = 1
_SEPARATOR = "\x1f"


def built_line(product: str, version: str, sm: Sequence[str]) -> str:
    """`TensorRT for RTX 1.7.1, built on a CPU for SM89; not run`: what is said wherever such layers are shown."""
    numbers = ".".join(version.split(".")[:3])
    built = f"{product} {numbers}, built on a CPU for {', '.join(f'SM{one}' for one in sm)}; not run"
    return f"{built}; layers of one of these" if len(sm) > 1 else built


def layers_document(info: EngineInfo, facts: dict[str, Any]) -> bytes:
    """What stands in `OUT.layers.json`."""
    document = {
        "Layers": [_exported(layer) for layer in info.layers],
        OURS: {"schema": SCHEMA, "built": info.built, "version": info.version, **facts},
    }
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def _exported(layer: EngineLayer) -> dict[str, Any]:
    return {
        "Name": layer.name,
        "LayerType": layer.kind,
        "Inputs": _ports(layer.inputs),
        "Constants": _ports(layer.constants),
        "Outputs": _ports(layer.outputs),
        "TacticName": layer.tactic,
        "Metadata": _SEPARATOR.join(f"[ONNX Layer: {name}]" for name in layer.metadata),
    }


def _ports(tensors: Iterable[LayerTensor]) -> list[dict[str, Any]]:
    return [
        {
            "Name": one.name,
            "Dimensions": None if one.shape is None else list(one.shape),
            "Format/Datatype": one.text,
            "Format": one.layout,
        }
        for one in tensors
    ]
