# SPDX-License-Identifier: Apache-2.0
"""Puts the weights of a model that is too large for one file into a data file beside it. Nothing is edited in place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

import onnx
from google.protobuf.message import Message
from onnx import TensorProto

from qdqtool.fresh_names import FreshNames
from qdqtool.graph.model_bytes import around
from qdqtool.graph.model_file import bare, is_unread, unread_bytes, whole
from qdqtool.graph.tensors import is_external, location_of

_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = TensorProto.RAW_DATA_FIELD_NUMBER
_LEAST_BYTES = 1024  # smaller weights stay in the model, as `onnx.save_model` leaves them
_PAGE = 4096  # what is mapped begins at one

MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True)
class WithDataFile:
    """A model whose large weights lie in a data file that is still to be written.

    Attributes:
        proto: the model.
        location: the file, beside the model's own.
        weights: what lies there, in the order of the file; the bytes of each are made when they are written.
    """

    proto: onnx.ModelProto
    location: str
    weights: tuple[TensorProto, ...]

    @classmethod
    def of(cls, proto: onnx.ModelProto, name: str) -> WithDataFile:
        """The model with its large weights outside; those in other data files stay there."""
        initializers = proto.graph.initializer
        taken = (location_of(tensor, name) for tensor in initializers if is_external(tensor))
        location = FreshNames(taken).unique(f"{name}.data")
        made = _without(proto, _GRAPH)
        made.graph.CopyFrom(_without(proto.graph, _INITIALIZER))
        weights, end = list[TensorProto](), 0
        for tensor in initializers:
            length = _stored_bytes(tensor)
            if length < _LEAST_BYTES:
                made.graph.initializer.append(tensor)
                continue
            begin = -(-end // _PAGE) * _PAGE
            outside = made.graph.initializer.add()
            outside.MergeFrom(bare(tensor) if is_unread(tensor) else _without(tensor, _RAW_DATA))
            outside.data_location = TensorProto.EXTERNAL
            for key, value in (("location", location), ("offset", str(begin)), ("length", str(length))):
                outside.external_data.add(key=key, value=value)
            weights.append(tensor)
            end = begin + length
        return cls(made, location, tuple(weights))

    def write(self, file: BinaryIO) -> None:
        """Write the data file, a weight at a time."""
        for piece in self._pieces():
            file.write(piece)

    def _pieces(self) -> Iterator[bytes]:
        end = 0
        for tensor in self.weights:
            data = whole(tensor).raw_data
            yield bytes(-end % _PAGE)
            yield data
            end += -end % _PAGE + len(data)


def _stored_bytes(tensor: TensorProto) -> int:
    """Bytes of a tensor that can lie in a data file; 0 of one that lies in one, or is stored in another way."""
    if is_unread(tensor):
        return unread_bytes(tensor)
    return len(tensor.raw_data) if tensor.HasField("raw_data") and not is_external(tensor) else 0


def _without(message: MessageT, number: int) -> MessageT:
    """A message with the fields of another one, but for one field."""
    made: MessageT = type(message).FromString(b"".join(around(message, number)))
    return made
