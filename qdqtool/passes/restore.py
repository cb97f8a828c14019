# SPDX-License-Identifier: Apache-2.0
"""Brings weights that changed since back into the model that Q/DQ were inserted into. Its nodes are never touched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.edit import edits_of
from qdqtool.graph.tensors import array_of, is_external


def restore_source(
    source: onnx.ModelProto, source_folder: Path | None, peeled: onnx.ModelProto, folder: Path | None
) -> list[str]:
    """Write every initialiser of `peeled` that differs from the one of the same name into `source`.

    Initialisers that only one of the two has stay as they are: lifting makes and drops some.

    Returns:
        Names of those that were written.

    Raises:
        QdqError: an initialiser changed its shape or type, so `source` is another model; `condition` added a node or a
            bias that `source` lacks, without which the weights are wrong.
    """
    _refuse_lacking_edits(source, peeled)
    theirs = {tensor.name: tensor for tensor in peeled.graph.initializer}
    changed = []
    for tensor in source.graph.initializer:
        other = theirs.get(tensor.name)
        if other is None or _same_message(tensor, source_folder, other, folder):
            continue
        if list(other.dims) != list(tensor.dims) or other.data_type != tensor.data_type:
            raise QdqError(
                tensor.name,
                "has another shape or type in the source model",
                "give the model that Q/DQ were inserted into",
            )
        value = array_of(other, folder)
        if not np.array_equal(value.view(np.uint8), array_of(tensor, source_folder).view(np.uint8)):
            name = tensor.name
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))
            changed.append(name)
    return changed


def _refuse_lacking_edits(source: onnx.ModelProto, peeled: onnx.ModelProto) -> None:
    inputs, theirs = ({node.output[0]: node.input for node in m.graph.node if node.output} for m in (source, peeled))
    todo = "give what qdqtool condition makes of the source, or peel without --source"
    for edit in edits_of(peeled):
        site, added = edit["site"], edit.get("added")
        if edit["step"] == "smooth" and added and added not in inputs:
            raise QdqError(site, "got a Mul by condition, which the source lacks", todo)
        if edit["step"] == "correct" and added and len(inputs.get(site, ())) < len(theirs.get(site, ())):
            raise QdqError(site, "got a bias by condition, which the source lacks", todo)


def _same_message(
    tensor: onnx.TensorProto, folder: Path | None, other: onnx.TensorProto, other_folder: Path | None
) -> bool:
    """Whether two tensors are stored alike, which spares reading them; external data only where it is the same file."""
    if is_external(tensor) and folder != other_folder:
        return False
    return bool(other.SerializeToString(deterministic=True) == tensor.SerializeToString(deterministic=True))
