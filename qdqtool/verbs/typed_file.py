# SPDX-License-Identifier: Apache-2.0
"""Writes a model with the types of an assignment; weights in external data are converted block by block."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from qdqtool.files import FileSet, joined
from qdqtool.fresh_names import FreshNames
from qdqtool.graph.io import give_back
from qdqtool.graph.model import Model
from qdqtool.graph.tensors import is_external, location_of, stored_type
from qdqtool.precision.casts import apply_types
from qdqtool.precision.stored_weights import WeightFile, goes_to_file

if TYPE_CHECKING:
    from qdqtool.precision.assignment import TypeAssignment


def give_typed(
    proto: onnx.ModelProto,
    opened: Model,
    target: Path | None,
    types: TypeAssignment | None,
    files: FileSet | None = None,
    typed: Model | None = None,
) -> Any:
    """Write a model with its types, or as it is; gives what `give_back` gives. `typed` has the types, if it is known.

    Constants that lie in external data, in another type than they get, are converted block by block into a data file
    beside the output.
    """
    stored = [tensor for tensor in proto.graph.initializer if is_external(tensor)]
    if types is None and all(stored_type(tensor) == tensor.data_type for tensor in stored):
        return give_back(proto, opened, target, files)
    if target is None or not _converts(proto, opened, stored, types):
        if types is not None:
            proto = (typed or apply_types(replace(opened, proto=proto), types)).proto
        return give_back(proto, opened, target, files)
    with FileSet(opened.files) if files is None else joined(files) as both:
        name = f"{target.name}.data"
        location = FreshNames(location_of(one, name) for one in stored).unique(name)  # none of the model's own
        with both.open(target.with_name(location)) as file:
            weights = WeightFile(file, location, opened.folder)
            made = proto
            if types is not None:
                made = apply_types(replace(opened, proto=proto), types, weights.round).proto
            weights.settle(made)
        return give_back(made, opened, target, both, {location})


def _converts(
    proto: onnx.ModelProto, opened: Model, stored: list[onnx.TensorProto], types: TypeAssignment | None
) -> bool:
    """Whether external data are written into a new file, in another type than in theirs; nothing of them is read."""
    if any(stored_type(tensor) != tensor.data_type for tensor in stored):
        return True
    converted: list[str] = []

    def look(tensor: onnx.TensorProto, kind: int) -> onnx.TensorProto:
        if goes_to_file(tensor, kind):
            converted.append(tensor.name)
        return onnx.TensorProto(name=tensor.name, data_type=kind, dims=tensor.dims)

    if types is not None and stored:
        apply_types(replace(opened, proto=proto), types, look)
    return bool(converted)
