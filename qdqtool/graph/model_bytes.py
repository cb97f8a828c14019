# SPDX-License-Identifier: Apache-2.0
"""The bytes of a model in pieces, a weight at a time: protobuf makes two copies of what it serializes as a whole.

The pieces together are what `SerializeToString` gives, with the weights that were left in the model's file
(`model_file.py`). A message is its fields by their numbers; what protobuf does not know of comes last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from qdqtool.graph.model_file import UNREAD, bare, is_unread, unread_bytes, whole
from qdqtool.graph.wire_format import head

_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER


@dataclass(frozen=True)
class ModelBytes:
    """The bytes of a model, not made yet but for the small ones.

    Attributes:
        proto: the model; it must not change before the pieces are taken.
        size: how many.
    """

    proto: onnx.ModelProto
    size: int
    _model: tuple[bytes, bytes]
    _graph: tuple[bytes, bytes]
    _graph_size: int

    @classmethod
    def of(cls, proto: onnx.ModelProto) -> ModelBytes | None:
        """Those of a model; None where it has no graph, or fields that protobuf does not know.

        Raises:
            EncodeError, ValueError: one weight is more than protobuf can hold.
            RuntimeError: a weight that was left in the model's file is not in the main graph.
        """
        graph = proto.graph
        if not proto.HasField("graph") or len(UnknownFieldSet(proto)) or len(UnknownFieldSet(graph)):
            return None
        outer, beside = around(proto, _GRAPH), around(graph, _INITIALIZER)
        if any(UNREAD in part for part in beside):
            raise RuntimeError("a weight that was left in its file is none of the main graph's any more")
        weights = sum(_framed(_INITIALIZER, _size_of(tensor)) for tensor in graph.initializer)
        inner = sum(map(len, beside)) + weights
        return cls(proto, sum(map(len, outer)) + _framed(_GRAPH, inner), outer, beside, inner)

    def pieces(self) -> Iterator[bytes]:
        """All of them, in their order."""
        yield self._model[0]
        yield head(_GRAPH, self._graph_size)
        yield self._graph[0]
        for tensor in self.proto.graph.initializer:
            data = whole(tensor).SerializeToString(deterministic=True)
            yield head(_INITIALIZER, len(data))
            yield data
        yield self._graph[1]
        yield self._model[1]


def around(message: Any, number: int) -> tuple[bytes, bytes]:
    """The bytes of the fields before and after one of a message."""
    before, behind = type(message)(), type(message)()
    for field, value in message.ListFields():
        if field.number == number:
            continue
        part = before if field.number < number else behind
        if isinstance(value, Message):
            getattr(part, field.name).CopyFrom(value)
        elif isinstance(value, (int, float, str, bytes)):
            setattr(part, field.name, value)
        else:
            getattr(part, field.name).extend(value)
    return before.SerializeToString(deterministic=True), behind.SerializeToString(deterministic=True)


def _framed(number: int, size: int) -> int:
    """Bytes of a field of so many bytes, with its tag and length."""
    return len(head(number, size)) + size


def _size_of(tensor: onnx.TensorProto) -> int:
    """Bytes of a weight's message."""
    unread = is_unread(tensor)
    size: int = (bare(tensor) if unread else tensor).ByteSize()
    return size + (_framed(_RAW_DATA, unread_bytes(tensor)) if unread else 0)


def whole_model(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model with every weight in memory: a copy where some were left in its file, else the model itself.

    Raises:
        QdqError: the file is gone, or another one now.
    """
    if not any(map(is_unread, proto.graph.initializer)):
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for tensor in filter(is_unread, made.graph.initializer):
        tensor.CopyFrom(whole(tensor))
    return made


def size_of(proto: onnx.ModelProto) -> int:
    """Bytes of a model, to within a few for each weight; those of files beside it are not counted."""
    parsed: int = proto.ByteSize()
    return parsed + sum(map(unread_bytes, proto.graph.initializer))
