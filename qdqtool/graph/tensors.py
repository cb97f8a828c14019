# SPDX-License-Identifier: Apache-2.0
"""The numbers after a TensorProto: the bytes it needs, where they lie, its values as arrays, mapped or in blocks.

Weights are read here and nowhere else; nothing is written, and external data are mapped, never loaded whole. Those that
were left in the model's own file (`model_file.py`) are read each time, and are as any weight of the model in all else.
A weight that a typed model reads in another type than its file has: `read_as` says so, `stored_array` gives the file's.
"""

from __future__ import annotations

import functools
import math
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from qdqtool.errors import QdqError
from qdqtool.graph.model_file import is_unread, read_bytes, whole

# Bits per element of each element type; strings have no fixed size.
BITS: dict[int, int] = {
    **dict.fromkeys((TensorProto.COMPLEX128,), 128),
    **dict.fromkeys((TensorProto.DOUBLE, TensorProto.INT64, TensorProto.UINT64, TensorProto.COMPLEX64), 64),
    **dict.fromkeys((TensorProto.FLOAT, TensorProto.INT32, TensorProto.UINT32), 32),
    **dict.fromkeys((TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT16, TensorProto.UINT16), 16),
    **dict.fromkeys((TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL), 8),
    **{value: 8 for name, value in TensorProto.DataType.items() if name.startswith("FLOAT8")},
    **{value: 4 for name, value in TensorProto.DataType.items() if name in ("INT4", "UINT4", "FLOAT4E2M1")},
    **{value: 2 for name, value in TensorProto.DataType.items() if name in ("INT2", "UINT2")},
}
# The entry of external_data that says in which type the file holds the values, where the tensor has another.
_STORED_TYPE = "qdqtool.stored_type"
_EXTERNAL_TODO = "keep the data in plain files below the model's folder, as onnx.save_model writes them"
BLOCK_BYTES = 16 << 20
# Attributes of a Constant that hold numbers: what ONNX has them as, and what they are in memory.
_NUMBERS = {
    "value_float": (AttributeProto.FLOAT, np.float32),
    "value_floats": (AttributeProto.FLOATS, np.float32),
    "value_int": (AttributeProto.INT, np.int64),
    "value_ints": (AttributeProto.INTS, np.int64),
}
_SMALL_BYTES = 1 << 20  # a weight that is not worth cutting: its magnitudes are taken at once


@dataclass(frozen=True)
class ExternalRange:
    """The bytes of one tensor inside a data file."""

    path: Path
    offset: int
    length: int


def is_external(tensor: TensorProto) -> bool:
    """Whether the tensor's data lie in a file beside the model."""
    return bool(tensor.data_location == TensorProto.EXTERNAL and not is_unread(tensor))


def bytes_needed(tensor: TensorProto) -> int:
    """Bytes that shape and type ask for, sub-byte types packed; 0 for strings, whose size their content decides."""
    bits: int = math.prod(tensor.dims) * BITS.get(tensor.data_type, 0)
    return (bits + 7) // 8


def read_as(tensor: TensorProto, data_type: int) -> None:
    """Let an external tensor have another element type than its file: values are converted where they are read.

    No byte is read or copied. Such a tensor is for models in memory alone: no other program knows the entry.
    """
    stored = stored_type(tensor)
    for place in range(len(tensor.external_data) - 1, -1, -1):
        if tensor.external_data[place].key == _STORED_TYPE:
            del tensor.external_data[place]
    if data_type != stored:
        tensor.external_data.add(key=_STORED_TYPE, value=str(stored))
    tensor.data_type = data_type


def stored_type(tensor: TensorProto) -> int:
    """The element type in which a tensor's bytes are stored; its own but for those of `read_as`."""
    if is_external(tensor):
        for entry in tensor.external_data:
            if entry.key == _STORED_TYPE and entry.value.isdecimal() and BITS.get(int(entry.value), 0) >= 8:
                return int(entry.value)
    return int(tensor.data_type)


def location_of(tensor: TensorProto, where: object) -> str:
    """The relative path of an external tensor's file, refused where it could lead out of the model's folder.

    Raises:
        QdqError: no location, an absolute path, a drive, a backslash, a NUL or a step upwards.
    """
    location = next((str(entry.value) for entry in tensor.external_data if entry.key == "location"), "")
    parts = PurePosixPath(location).parts
    if not parts or parts == (".",):
        raise QdqError(where, f"tensor {tensor.name} is external but names no file", _EXTERNAL_TODO)
    windows = PureWindowsPath(location)
    if "\0" in location or "\\" in location or ".." in parts or windows.drive or windows.root:
        raise QdqError(where, f"tensor {tensor.name} lies in {location}, outside the model's folder", _EXTERNAL_TODO)
    return location


def external_range(tensor: TensorProto, folder: Path | None, where: object) -> ExternalRange:
    """Where an external tensor's bytes lie, after every check that the file can be trusted with them.

    Raises:
        QdqError: the folder is unknown; the file is missing, leads out of the folder by a link, has other names (hard
            links), or is not a regular file; offset or length do not fit the file or the tensor's shape.
    """
    location = location_of(tensor, where)
    if folder is None:
        reason = f"the data of tensor {tensor.name} lie in {location}, beside a model whose folder is not known"
        raise QdqError(where, reason, "give the model as a path")
    path = folder / location
    size = _trusted_size(path, folder, tensor.name, where)
    offset, length = (_number(tensor, key, where) for key in ("offset", "length"))
    needed = (math.prod(tensor.dims) * BITS.get(stored_type(tensor), 0) + 7) // 8
    begin, span = offset or 0, needed if length is None else length
    if span != needed:
        reason = f"tensor {tensor.name} needs {needed} bytes, its external data have length {span}"
        raise QdqError(where, reason, "export the model again")
    if begin + span > size:
        reason = f"tensor {tensor.name} ends at byte {begin + span} of {location}, which has {size}"
        raise QdqError(where, reason, "copy the whole data file beside the model")
    return ExternalRange(path, begin, span)


def _number(tensor: TensorProto, key: str, where: object) -> int | None:
    text = next((str(entry.value) for entry in tensor.external_data if entry.key == key), None)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise QdqError(
            where, f"tensor {tensor.name} has the external {key} {text[:40]!r}, not a count of bytes", _EXTERNAL_TODO
        )
    return int(text)


def _trusted_size(path: Path, folder: Path, name: str, where: object) -> int:
    """Size in bytes of a regular file with one name that lies below `folder` when every link is followed."""
    try:
        status = path.stat()
    except OSError as error:
        reason = f"the data of tensor {name} should lie in {path}, which cannot be read ({error.strerror})"
        raise QdqError(where, reason, "put the data file beside the model") from None
    if not _lies_below(path, folder, (status.st_dev, status.st_ino, status.st_ctime_ns)):
        raise QdqError(
            where, f"the data file {path} of tensor {name} is a link out of the model's folder", _EXTERNAL_TODO
        )
    if not stat.S_ISREG(status.st_mode):
        raise QdqError(where, f"the data file {path} of tensor {name} is not a regular file", _EXTERNAL_TODO)
    if status.st_nlink > 1:
        raise QdqError(where, f"the data file {path} of tensor {name} has other names (hard links)", _EXTERNAL_TODO)
    return status.st_size


@functools.lru_cache(maxsize=16)
def _lies_below(path: Path, folder: Path, file: tuple[int, int, int]) -> bool:
    """Whether a file lies below a folder when every link is followed: asked once for all tensors of one file."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def array_of(tensor: TensorProto, folder: Path | None) -> np.ndarray[Any, Any]:
    """The tensor's values as a read-only array of its shape.

    External data are mapped: nothing is read before it is looked at, but for what `read_as` converts. Types that numpy
    lacks come as ml_dtypes (bfloat16, float8, int4), as `onnx.numpy_helper` gives them; 4-bit types are unpacked and so
    held in memory.

    Raises:
        QdqError: external data that cannot be trusted or found (see `external_range`).
    """
    values = stored_array(tensor, folder)
    if stored_type(tensor) != tensor.data_type:
        values = values.astype(_stored_dtype(tensor.data_type))
        values.flags.writeable = False
    return values


def stored_array(tensor: TensorProto, folder: Path | None) -> np.ndarray[Any, Any]:
    """`array_of` in the type in which the values are stored: mapped whatever the tensor's own type is."""
    values = _external_array(tensor, folder) if is_external(tensor) else _inline_array(tensor)
    values.flags.writeable = False
    return values


def _inline_array(tensor: TensorProto) -> np.ndarray[Any, Any]:
    unread = is_unread(tensor)
    if (unread or tensor.HasField("raw_data")) and BITS.get(tensor.data_type, 0) >= 8:
        data = read_bytes(tensor) if unread else tensor.raw_data
        return np.frombuffer(data, _stored_dtype(tensor.data_type)).reshape(tuple(tensor.dims))
    return numpy_helper.to_array(whole(tensor))


def _external_array(tensor: TensorProto, folder: Path | None) -> np.ndarray[Any, Any]:
    place = external_range(tensor, folder, tensor.name)
    shape, kind = tuple(tensor.dims), stored_type(tensor)
    if place.length == 0:
        return np.empty(shape, _stored_dtype(kind))
    if BITS[kind] >= 8:
        return np.memmap(str(place.path), _stored_dtype(kind), "r", place.offset, shape)  # a Path it would resolve
    with place.path.open("rb") as file:
        file.seek(place.offset)
        inline = TensorProto(name=tensor.name, data_type=kind, dims=shape, raw_data=file.read(place.length))
    return numpy_helper.to_array(inline)


@functools.cache
def _stored_dtype(kind: int) -> np.dtype[Any]:
    """The element type as ONNX stores it: little-endian."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)).newbyteorder("<")


def channel_amax(tensor: TensorProto, folder: Path | None, axis: int | None) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Largest magnitude of each channel of a weight, read in blocks.

    amax[c] = max |w[..., c, ...]|, over everything but `axis`. A channel without values has amax 0.

    Args:
        tensor: a real-valued weight of any shape.
        folder: the folder of the model file.
        axis: the channels' axis, negative counts from the end; None for the whole tensor.

    Returns:
        float32, one value per channel; 0-d for `axis` None.

    Raises:
        QdqError: the weight holds NaN or infinity (or a double too large for float32), or the axis does not exist.
    """
    values = stored_array(tensor, folder)
    at = None if axis is None else _axis_of(tensor, axis)
    channels = 1 if at is None else values.shape[at]
    before = 1 if at is None else math.prod(values.shape[:at])
    after = values.size if at is None else math.prod(values.shape[at + 1 :])
    cube = values.reshape(before, channels, after)
    if values.dtype == np.float32 and values.nbytes <= _SMALL_BYTES:
        result: np.ndarray[Any, np.dtype[np.float32]] = np.abs(cube).max(axis=(0, 2), initial=0)
    else:
        result = _amax_in_blocks(cube)
    if not np.isfinite(result).all():
        channel = "" if at is None else f" in channel {int(np.flatnonzero(~np.isfinite(result))[0])}"
        raise QdqError(
            tensor.name, f"the weight holds NaN or infinity{channel}", "export the model again from sound weights"
        )
    return result.reshape(()) if at is None else result


def _amax_in_blocks(view: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Max |x| per channel of [before, channels, after]; infinity for a double too large for float32."""
    amax = np.zeros(view.shape[1], np.float64)
    for part, cube in _cubes(view, BLOCK_BYTES):
        amax[part] = np.maximum(amax[part], _magnitude(cube))
    with np.errstate(over="ignore"):
        result: np.ndarray[Any, np.dtype[np.float32]] = amax.astype(np.float32)
    return result


def _axis_of(tensor: TensorProto, axis: int) -> int:
    rank = len(tensor.dims)
    if not -rank <= axis < rank:
        raise QdqError(
            tensor.name, f"has no axis {axis}, its shape is {list(tensor.dims)}", "check the operator that reads it"
        )
    return axis % rank


def _cubes(view: np.ndarray[Any, Any], max_bytes: int) -> Iterator[tuple[slice, np.ndarray[Any, Any]]]:
    """Cut an array [before, channels, after] into pieces of at most `max_bytes`, in the order of memory."""
    before, channels, after = view.shape
    cells = max(1, max_bytes // view.itemsize)
    steps = (cells // max(1, channels * after), min(channels, cells // max(1, after)), min(after, cells))
    deep, wide, long = (max(1, step) for step in steps)
    for i in range(0, before, deep):
        for j in range(0, channels, wide):
            for k in range(0, after, long):
                yield slice(j, min(j + wide, channels)), view[i : i + deep, j : j + wide, k : k + long]


def _magnitude(cube: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Max |x| per channel of [before, channels, after], without a copy of float32 data; NaN and infinity show."""
    if cube.dtype.kind not in "iuf" or cube.dtype == np.float16:  # kind V: the types of ml_dtypes
        cube = cube.astype(np.float32)
    high = cube.max(axis=(0, 2), initial=0).astype(np.float64)
    low = cube.min(axis=(0, 2), initial=0).astype(np.float64)
    result: np.ndarray[Any, np.dtype[np.float64]] = np.maximum(high, -low)
    return result


def constant_value(proto: onnx.NodeProto, folder: Path | None) -> np.ndarray[Any, np.dtype[np.generic]] | None:
    """The value of a Constant node, whichever attribute holds it; None for sparse and text values."""
    for item in proto.attribute:
        if item.name == "value":
            return array_of(item.t, folder) if item.t.data_type else None  # no tensor at all
        kind, dtype = _NUMBERS.get(item.name, (None, None))
        if kind == item.type:  # a local function named Constant may have it of another type
            return np.asarray(onnx.helper.get_attribute_value(item), dtype)
    return None
