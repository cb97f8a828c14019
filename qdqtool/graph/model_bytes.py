# SPDX-License-Identifier: Apache-2.0
"""The bytes of a model in pieces, a weight at a time: protobuf makes two copies of what it serializes as a whole.

The pieces together are what `SerializeToString` gives. A message is its fields by their numbers, each of them a tag, a
length and the bytes; what protobuf does not know of comes last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_BYTES = 2  # protobuf's type of what has a length
_SEVEN_BITS = 0x7F


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
        """
        graph = proto.graph
        if not proto.HasField("graph") or len(UnknownFieldSet(proto)) or len(UnknownFieldSet(graph)):
            return None
        around, beside = _around(proto, _GRAPH), _around(graph, _INITIALIZER)
        weights = sum(_framed(_INITIALIZER, tensor.ByteSize()) for tensor in graph.initializer)
        inner = sum(map(len, beside)) + weights
        return cls(proto, sum(map(len, around)) + _framed(_GRAPH, inner), around, beside, inner)

    def pieces(self) -> Iterator[bytes]:
        """All of them, in their order."""
        yield self._model[0]
        yield _head(_GRAPH, self._graph_size)
        yield self._graph[0]
        for tensor in self.proto.graph.initializer:
            data = tensor.SerializeToString(deterministic=True)
            yield _head(_INITIALIZER, len(data))
            yield data
        yield self._graph[1]
        yield self._model[1]


def _around(message: Any, number: int) -> tuple[bytes, bytes]:
    """The bytes of the fields before and behind one of a message."""
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
    return len(_head(number, size)) + size


def _head(number: int, size: int) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(size)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last byte have the eighth bit."""
    found = bytearray()
    while value > _SEVEN_BITS:
        found.append(value & _SEVEN_BITS | _SEVEN_BITS + 1)
        value >>= 7
    return bytes((*found, value))
