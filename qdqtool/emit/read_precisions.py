# SPDX-License-Identifier: Apache-2.0
"""The file that `precision_json.py` writes, read back: which layers must not run in INT8. Its form is owned there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qdqtool.emit.precision_json import SCHEMA
from qdqtool.errors import QdqError
from qdqtool.limited_reading import FileKind, read_json

KIND = FileKind("layer precisions", 64 << 20, "give the file of qdqtool peel --emit json")
_PRECISIONS = frozenset({"fp16", "fp32"})


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
