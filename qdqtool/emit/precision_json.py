# SPDX-License-Identifier: Apache-2.0
"""The same facts as JSON, for a builder of one's own, and read back: layer -> precision, tensor -> scale. Stable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qdqtool.cache.amax import amax_of
from qdqtool.emit.job import EmitJob, Emitted
from qdqtool.errors import QdqError
from qdqtool.limited_reading import FileKind, read_json

SCHEMA = 1
KIND = FileKind("layer precisions", 64 << 20, "give the file of qdqtool peel --emit json")
_PRECISIONS = frozenset({"fp16", "fp32"})


def write_precision_json(job: EmitJob) -> Emitted:
    """One document.

    `layers` and `output_types` are keyed by TensorRT's layer name; `float_tensors` says the same by the tensors that
    the layers make, and holds the layers that cannot be named too. `scale` is the float32 pattern, eight hexadecimal
    digits; `amax` is 127 times it, exact.
    """
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "tensorrt": job.version.text,
        "header": job.version.header(),
        "target": job.target,
        "model": job.model,
        "cache": job.cache,
        "layers": {layer.name: layer.precision for layer in job.named},
        "output_types": {layer.name: layer.precision for layer in job.named if layer.typed},
        "reasons": {layer.name: layer.why for layer in job.named},
        "float_tensors": {name: layer.precision for layer in job.layers for name in layer.outputs},
        "unnamed": {layer.node: layer.unnamed for layer in job.unnamed},
        "tensors": {name: _entry(scale) for name, scale in job.scales.items()},
    }
    return Emitted(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _entry(scale: np.float32) -> dict[str, Any]:
    bits = np.float32(scale)
    return {"scale": f"{int(bits.view(np.uint32)):08x}", "amax": amax_of(bits)}


@dataclass(frozen=True)
class LayerPrecisions:
    """Which layers must not run in INT8.

    Attributes:
        layers: TensorRT's layer name -> "fp16" or "fp32".
        output_types: layers whose outputs have that type too -> the type.
        float_tensors: tensor that such a layer makes -> the precision, for layers without a name of their own.
    """

    layers: Mapping[str, str] = field(default_factory=dict)
    output_types: Mapping[str, str] = field(default_factory=dict)
    float_tensors: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is any such layer."""
        return bool(self.layers or self.float_tensors)

    def of(self, name: str, outputs: tuple[str, ...]) -> str:
        """The precision of a layer by its name or by what it makes; "" for one that may run in INT8."""
        found = self.layers.get(name, "")
        return found or next((self.float_tensors[one] for one in outputs if one in self.float_tensors), "")

    def is_typed(self, name: str, outputs: tuple[str, ...]) -> bool:
        """Whether the type of the layer's outputs is said too; for a layer that has no name, in any case."""
        return name in self.output_types or name not in self.layers


def read_precisions(path: Path) -> LayerPrecisions:
    """The layers that a file tells.

    Raises:
        QdqError: a file that cannot be read, or is none of `peel --emit json`.
    """
    document = read_json(path, KIND)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or "layers" not in document:
        raise QdqError(path, "is not a file of layer precisions", KIND.todo)
    keys = ("layers", "output_types", "float_tensors")
    return LayerPrecisions(*(_precisions(path, document.get(key, {})) for key in keys))


def _precisions(path: Path, table: Any) -> dict[str, str]:
    if not isinstance(table, dict) or not all(isinstance(one, str) and one in _PRECISIONS for one in table.values()):
        raise QdqError(path, "names a precision that is neither fp16 nor fp32", KIND.todo)
    return table
