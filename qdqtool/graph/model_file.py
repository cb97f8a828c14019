# SPDX-License-Identifier: Apache-2.0
"""A model's file, whose large weights stay there until they are asked for. Not data files beside it (`tensors.py`).

protobuf holds every byte of what it parses for as long as the model lives, and a weight that an edit replaces as well.
So the fields of the file are walked, and large weights are parsed without their bytes. Such a tensor says where they
lie, for this process alone: `model_bytes.py` writes it as it stands in the file. Weights that edits have written
(`weight_store.py`) are said in the same way.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from qdqtool.errors import QdqError
from qdqtool.graph.wire_format import LENGTH, Field, NotPlainError, fields_of, framed

_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = TensorProto.RAW_DATA_FIELD_NUMBER
# Smaller weights are parsed as they are: there are many of them, and together they are little.
_LEAST_BYTES = 16 << 10
# The first entry of external_data of a tensor whose bytes were left in its model's file: which file, known here.
_KEY = "qdqtool.model_file"
UNREAD = _KEY.encode()
"""What the bytes of such a tensor's message hold."""


@dataclass(frozen=True)
class FileVersion:
    """A file as it was when it was opened."""

    path: Path
    size: int
    modified: int  # nanoseconds
    number: tuple[int, int]  # device and inode

    @classmethod
    def of(cls, path: Path, status: os.stat_result) -> FileVersion:
        """The file as it is now."""
        return cls(path.absolute(), status.st_size, status.st_mtime_ns, (status.st_dev, status.st_ino))

    @contextmanager
    def reading(self) -> Iterator[BinaryIO]:
        """The file, open.

        Raises:
            QdqError: it is gone, or is another than it was; or what reads it fails.
        """
        try:
            with self.path.open("rb", buffering=0) as file:
                if FileVersion.of(self.path, os.fstat(file.fileno())) != self:
                    raise self.changed()
                yield file
        except OSError as error:
            raise QdqError(self.path, f"cannot be read any more ({error.strerror})", "leave it in place") from error

    def changed(self) -> QdqError:
        """The error that says so."""
        return QdqError(self.path, "was changed while it was read", "run it again, and leave the file in place")


# By names that nobody can guess, so that no model can make this process read a file of its choice. A number is the
# descriptor of a temporary file of this process, which has no other name.
_OPENED: dict[str, FileVersion | int] = {}


def own_file(number: int) -> str:
    """The name under which tensors say that they lie in a temporary file of this process, by its descriptor."""
    token = os.urandom(16).hex()
    _OPENED[token] = number
    return token


def forget_file(token: str) -> None:
    """Forget what `own_file` gave: no tensor lies there any more."""
    _OPENED.pop(token, None)


def leave_in_file(tensor: TensorProto, token: str, begin: int, length: int) -> None:
    """Let a tensor without a value say where its bytes are."""
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in ((_KEY, token), ("offset", str(begin)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def parse_file(file: BinaryIO, path: Path) -> onnx.ModelProto:
    """The model of a file; large weights of its main graph stay in the file (`is_unread`).

    Raises:
        DecodeError: this is no ONNX model.
        OSError: the file cannot be read.
    """
    try:
        data = _without_weights(file, path)
    except (NotPlainError, OSError, ValueError):  # of the last two, that the file system maps no files
        file.seek(0)
        data = file.read()
    proto = onnx.ModelProto()
    proto.ParseFromString(data)
    return proto


def is_unread(tensor: TensorProto) -> bool:
    """Whether the tensor's bytes were left in its model's file."""
    return bool(
        tensor.data_location == TensorProto.EXTERNAL
        and len(tensor.external_data)
        and tensor.external_data[0].key == _KEY
        and tensor.external_data[0].value in _OPENED
    )


def unread_bytes(tensor: TensorProto) -> int:
    """How many bytes of a tensor were left in its model's file; 0 for any other tensor."""
    return int(tensor.external_data[2].value) if is_unread(tensor) else 0


def read_bytes(tensor: TensorProto) -> bytes:
    """The bytes of a tensor that were left in its model's file.

    Raises:
        QdqError: the file is gone, or is another than the one that was opened.
    """
    opened = _OPENED[tensor.external_data[0].value]
    begin, length = (int(entry.value) for entry in tensor.external_data[1:3])
    if isinstance(opened, int):
        return os.pread(opened, length, begin)
    with opened.reading() as file:
        file.seek(begin)
        data = file.read(length)
    if len(data) != length:
        raise opened.changed()
    return data


def bare(tensor: TensorProto) -> TensorProto:
    """A tensor that was left in its model's file, without its bytes and without a word of where they are."""
    made = TensorProto()
    made.CopyFrom(tensor)
    made.ClearField("external_data")
    made.ClearField("data_location")
    return made


def whole(tensor: TensorProto) -> TensorProto:
    """A tensor that was left in its model's file, as it stands there; any other tensor itself.

    Raises:
        QdqError: see `read_bytes`.
    """
    if not is_unread(tensor):
        return tensor
    made = bare(tensor)
    made.raw_data = read_bytes(tensor)
    return made


def _without_weights(file: BinaryIO, path: Path) -> bytes:
    """The bytes of the model with another tensor in the place of each large weight."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        outer = list(fields_of(data, 0, len(data)))
        graphs = [field for field in outer if field.number == _GRAPH]
        if len(graphs) != 1 or graphs[0].kind != LENGTH:
            raise NotPlainError
        token = os.urandom(16).hex()
        parts, kept = [], graphs[0].begin
        for field in fields_of(data, graphs[0].begin, graphs[0].end):
            if field.number != _INITIALIZER or field.end - field.begin < _LEAST_BYTES:
                continue
            tensor = _left_in_file(data, field, token)
            if tensor is not None:
                parts += [data[kept : field.tag], framed(_INITIALIZER, tensor)]
                kept = field.end
        if not parts:
            raise NotPlainError
        graph = b"".join([*parts, data[kept : graphs[0].end]])
        _OPENED[token] = FileVersion.of(path, os.fstat(file.fileno()))
        return b"".join([data[: graphs[0].tag], framed(_GRAPH, graph), data[graphs[0].end :]])


def _left_in_file(data: mmap.mmap, field: Field, token: str) -> bytes | None:
    """The message of a weight that says where its bytes are; None for one that is stored in another way."""
    inner = list(fields_of(data, field.begin, field.end))
    raw = [one for one in inner if one.number == _RAW_DATA]
    if len(raw) != 1 or raw[0].kind != LENGTH or raw[0].end - raw[0].begin < _LEAST_BYTES:
        return None
    tensor = TensorProto()
    try:
        tensor.ParseFromString(data[field.begin : raw[0].tag] + data[raw[0].end : field.end])
    except DecodeError:
        raise NotPlainError from None
    if tensor.HasField("data_location") or len(tensor.external_data):
        return None
    leave_in_file(tensor, token, raw[0].begin, raw[0].end - raw[0].begin)
    made: bytes = tensor.SerializeToString()
    return made
