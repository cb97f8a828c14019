# SPDX-License-Identifier: Apache-2.0
"""Weights in the element type in which they are read: rounded in the model, or block by block into a data file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from qdqtool.graph.tensors import array_of, bytes_needed, is_external, read_as, stored_array, stored_type

# The smallest positive number of each type, and its largest finite one.
SMALLEST: Mapping[int, float] = {TensorProto.FLOAT16: 2.0**-24, TensorProto.BFLOAT16: 2.0**-133}
LARGEST: Mapping[int, float] = {TensorProto.FLOAT16: 65504.0, TensorProto.BFLOAT16: 3.3895313892515355e38}
# Makes a TensorProto of another element type from one of float32; the name stays.
Rounding = Callable[[TensorProto, int], TensorProto]
_BLOCK = 1 << 22  # values that are rounded at a time
_INLINE = 1024  # bytes: what is smaller stays in the model
_ALIGNMENT = 4096  # bytes, so that a data file can be mapped


def rounded_values(values: npt.NDArray[np.float32], kind: int) -> npt.NDArray[Any]:
    """Float32 values in another type: to the nearest, ties to even; what is finite stays finite (the largest value).

    Args:
        values: float32, any shape.
        kind: FLOAT16 or BFLOAT16.

    Returns:
        float16, or bfloat16 of ml_dtypes; infinity and NaN stay what they are.
    """
    made = helper.tensor_dtype_to_np_dtype(kind)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded: npt.NDArray[Any] = values.astype(made)
    lost = np.isinf(rounded.astype(np.float32)) & np.isfinite(values)
    if lost.any():
        rounded = np.where(lost, np.copysign(np.float32(LARGEST[kind]), values).astype(made), rounded)
    return rounded


def rounded_tensor(tensor: TensorProto, kind: int, folder: Path | None) -> TensorProto:
    """A float32 tensor in another element type, its values held in the model.

    A single value that would be rounded to 0 becomes the smallest number of the type: it is an epsilon, which keeps a
    divisor from 0.

    Args:
        tensor: float32; external data are read.
        kind: FLOAT16 or BFLOAT16, or FLOAT for a copy that is held in the model.
        folder: where external data lie.
    """
    if stored_type(tensor) == kind and is_external(tensor):
        return _as_stored(tensor)
    values = array_of(tensor, folder)
    data = values if kind == tensor.data_type else rounded_values(values, kind)
    if data.size == 1 and values.any() and not data.any():
        data = np.copysign(np.float32(SMALLEST[kind]), values).astype(data.dtype)
    made = TensorProto(name=tensor.name, data_type=kind, dims=tensor.dims, raw_data=_bytes(data))
    if tensor.doc_string:
        made.doc_string = tensor.doc_string
    return made


def goes_to_file(tensor: TensorProto, kind: int) -> bool:
    """Whether a weight is written into a new data file when it gets a type: one of external data that is not small."""
    if not is_external(tensor) or stored_type(tensor) == kind:
        return False
    return bytes_needed(TensorProto(data_type=kind, dims=tensor.dims)) > _INLINE


class WeightFile:
    """A data file that takes the weights of a model one after the other, in blocks; small ones stay in the model.

    Attributes:
        location: the file's name beside the model, as external data have it.
    """

    def __init__(self, file: BinaryIO, location: str, folder: Path | None) -> None:
        """Begin at the file's start."""
        self.location = location
        self._file, self._folder, self._end = file, folder, 0

    def round(self, tensor: TensorProto, kind: int) -> TensorProto:
        """A float tensor in another type, its data in this file; or where they lie, where they have that type there."""
        if stored_type(tensor) == kind and is_external(tensor):
            return _as_stored(tensor)
        made = TensorProto(name=tensor.name, data_type=kind, dims=tensor.dims)
        if not goes_to_file(tensor, kind):
            return rounded_tensor(tensor, kind, self._folder)
        begin = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        self._file.write(bytes(begin - self._end))
        self._end = begin
        for block in self._blocks(tensor, kind):
            self._end += self._file.write(block)
        made.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self.location), ("offset", begin), ("length", self._end - begin)):
            made.external_data.add(key=key, value=str(value))
        if tensor.doc_string:
            made.doc_string = tensor.doc_string
        return made

    def _blocks(self, tensor: TensorProto, kind: int) -> Iterator[bytes]:
        values = stored_array(tensor, self._folder).reshape(-1)
        for begin in range(0, values.size, _BLOCK):
            block = values[begin : begin + _BLOCK].astype(np.float32)
            yield _bytes(block if kind == TensorProto.FLOAT else rounded_values(block, kind))

    def settle(self, model: onnx.ModelProto) -> None:
        """Store here what a model reads in another type than its data file has (`graph.tensors.read_as`)."""
        for tensor in model.graph.initializer:
            if stored_type(tensor) != tensor.data_type:
                tensor.CopyFrom(self.round(tensor, tensor.data_type))


def _as_stored(tensor: TensorProto) -> TensorProto:
    """An external tensor whose file holds the values in the type that is wanted: nothing is converted."""
    made = TensorProto()
    made.CopyFrom(tensor)
    if made.data_type != stored_type(made):
        read_as(made, stored_type(made))
    return made


def _bytes(values: npt.NDArray[Any]) -> bytes:
    if values.dtype.kind in "fiu":
        values = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return values.tobytes()
