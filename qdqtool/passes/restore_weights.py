# SPDX-License-Identifier: Apache-2.0
"""Brings weights that changed since back into the model that Q/DQ were inserted into. Its nodes stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.tensors import array_of, is_external
from qdqtool.precision.stored_weights import rounded_values


def restore_source(source: Model, peeled: Model, rest: int = TensorProto.FLOAT) -> list[str]:
    """Write every initializer and Constant of `peeled` that differs from the one of the same name into `source`.

    Those that only one of the two has stay as they are: lifting makes and drops some, and what `condition` added is
    there by now (`replay_conditioning.py`).

    Raises:
        QdqError: one changed its shape or type, so `source` is another model.
    """
    theirs = dict(_weights(peeled.graph))
    changed = []
    for name, tensor in _weights(source.graph):
        other = theirs.get(name)
        if other is None or _same_message(tensor, source.folder, other, peeled.folder):
            continue
        if list(other.dims) != list(tensor.dims) or other.data_type != tensor.data_type:
            reason = "has another shape or type in the source model"
            raise QdqError(name, reason, "give the model that Q/DQ were inserted into")
        value = array_of(other, peeled.folder)
        before = array_of(tensor, source.folder)
        if not np.array_equal(_bytes(value), _bytes(before)) and not _is_rounding(value, before, rest):
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(value, order="C"), tensor.name))
            changed.append(name)
    if changed:
        source.changed()
    return changed


def _is_rounding(value: np.ndarray[Any, Any], source: np.ndarray[Any, Any], rest: int) -> bool:
    """Whether a float32 value is the source's in a type of 16 bits."""
    if rest == TensorProto.FLOAT or source.dtype != np.float32:
        return False
    return np.array_equal(_bytes(value), _bytes(rounded_values(source, rest).astype(np.float32)))


def _bytes(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.atleast_1d(value).view(np.uint8)


def _weights(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Initializers, and the tensors of Constant nodes under the name of what those make."""
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        if node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].name == "value":
            yield node.output[0], node.attribute[0].t


def _same_message(
    tensor: onnx.TensorProto, folder: Path | None, other: onnx.TensorProto, other_folder: Path | None
) -> bool:
    """Whether two tensors are stored alike, which spares reading them; external data only where it is the same file."""
    if is_external(tensor) and folder != other_folder:
        return False
    return bool(other.SerializeToString(deterministic=True) == tensor.SerializeToString(deterministic=True))
