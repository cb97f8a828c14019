# SPDX-License-Identifier: Apache-2.0
"""Whether a tensor is stored as it says: a known type, a sane shape, as much data as that takes. Not its values."""

from __future__ import annotations

import math
from pathlib import Path

from onnx import TensorProto

from qdqtool.errors import QdqError
from qdqtool.graph.model_file import is_unread, unread_bytes
from qdqtool.graph.tensors import BITS, bytes_needed, external_range, is_external, location_of

_MAX_ELEMENTS = 1 << 58
_AGAIN = "export the model again"
# The typed field of each element type and the entries that one element takes; what is not here uses int32_data.
_FIELDS: dict[int, tuple[str, int]] = {
    TensorProto.FLOAT: ("float_data", 1),
    TensorProto.COMPLEX64: ("float_data", 2),
    TensorProto.DOUBLE: ("double_data", 1),
    TensorProto.COMPLEX128: ("double_data", 2),
    TensorProto.INT64: ("int64_data", 1),
    TensorProto.UINT64: ("uint64_data", 1),
    TensorProto.UINT32: ("uint64_data", 1),
    TensorProto.STRING: ("string_data", 1),
}


def check_tensor(tensor: TensorProto, where: object, folder: Path | None) -> None:
    """Refuse a weight whose type or shape is senseless or whose data do not fill its shape."""
    if _is_full(tensor):
        return
    name = tensor.name or "(in an attribute)"
    if tensor.data_type not in BITS and tensor.data_type != TensorProto.STRING:
        reason = f"tensor {name} has the unknown element type {tensor.data_type}"
        raise QdqError(where, reason, "upgrade onnx, or export again")
    elements = 1
    for size in tensor.dims:
        if size < 0:
            raise QdqError(where, f"tensor {name} has a negative size in its shape {list(tensor.dims)}", _AGAIN)
        elements *= size
    if elements > _MAX_ELEMENTS:
        raise QdqError(where, f"tensor {name} of shape {list(tensor.dims)} is too large for any file", _AGAIN)
    if tensor.HasField("segment"):
        raise QdqError(where, f"tensor {name} is stored in segments, which no tool reads", _AGAIN)
    if is_external(tensor):
        location_of(tensor, where)
        if folder is not None:
            external_range(tensor, folder, where)
        return
    there, needed, unit = _amount_of_data(tensor, elements)
    if there != needed:
        reason = f"tensor {name} of shape {list(tensor.dims)} needs {needed} {unit} and has {there}"
        raise QdqError(where, reason, "the file is damaged: export or copy it again")


def _is_full(tensor: TensorProto) -> bool:
    """Whether this is a weight as almost all are: raw bytes that fill its shape. The rest is looked at in turn."""
    dims = tensor.dims
    if is_external(tensor) or tensor.HasField("segment") or min(dims, default=1) < 1:
        return False
    bits: int = math.prod(dims) * BITS.get(tensor.data_type, 0)
    return 0 < bits == 8 * (len(tensor.raw_data) or unread_bytes(tensor))


def _amount_of_data(tensor: TensorProto, elements: int) -> tuple[int, int, str]:
    """How much data a tensor holds, how much it needs, and in which unit."""
    if tensor.HasField("raw_data") or is_unread(tensor):
        return len(tensor.raw_data) or unread_bytes(tensor), bytes_needed(tensor), "bytes"
    field, each = _FIELDS.get(tensor.data_type, ("int32_data", 1))
    there = len(getattr(tensor, field))
    bits = BITS.get(tensor.data_type, 8)
    if bits < 8:  # packed, one byte in each entry
        return there, (elements * bits + 7) // 8, "packed bytes"
    return there, elements * each, "values"
