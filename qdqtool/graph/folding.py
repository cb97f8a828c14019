# SPDX-License-Identifier: Apache-2.0
"""What operators that move, cast, divide or combine constants make of them: sizes, then, where they are sane, values.

The form of each operator is read from the node: axes or a shape may be an attribute or an input, whatever the opset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto

from qdqtool.graph.tensors import BITS, array_of

Shape = tuple[int, ...]
Value = npt.NDArray[np.generic]

# Operators that keep a constant constant: what TensorRT folds on import.
FOLDING = frozenset({"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Cast", "Flatten", "ConstantOfShape"})
# What makes several constants of one: a projection in three, as exporters write an attention with its weights in one.
DIVIDING = frozenset({"Split"})
# Arithmetic of two float32 constants: weights that are normalized or scaled in the graph.
COMBINING = frozenset({"Add", "Sub", "Mul", "Div"})
# ConstantOfShape alone makes more of a file than it holds. The largest weight of a published model that is made so has
# 103 million elements (the classifier of VGG-19 in ONNX's "light" models); no GPU's INT8 kernels take larger ones.
MAX_ELEMENTS = 1 << 27
# Operators between stored constants and a value, each counted as often as it is read: exporters write a handful.
MAX_STEPS = 64
_MAX_RANK = 32  # what every numpy can hold
_LARGEST_LIST = 64
_UNTYPED = AttributeProto.UNDEFINED  # attributes of IR version 1


@dataclass(frozen=True, slots=True)
class Extent:
    """How large a constant is, how many operators stand between it and what the file stores, and its element type.

    The type is one of onnx.TensorProto, or UNDEFINED where that is not known without the value.
    """

    shape: Shape
    steps: int = 0
    kind: int = 0


class _UnfoldableError(Exception):
    """The operator is malformed, or nothing that is constant comes out of it."""


def folded_shape(node: onnx.NodeProto, shape: Shape, operand: Value | None) -> Shape | None:
    """The shape of what an operator of `FOLDING` makes; nothing is computed.

    Args:
        node: the operator.
        shape: of its first input.
        operand: the value of the input that holds a shape or axes: the only one of ConstantOfShape, the second of the
            others; None where it is absent.

    Returns:
        The shape; None where the node is malformed, does not fit its operands, or makes more than `MAX_ELEMENTS`.
    """
    try:
        made = _SHAPES[node.op_type](node, shape, operand)
    except _UnfoldableError:
        return None
    too_large = node.op_type == "ConstantOfShape" and math.prod(made) > MAX_ELEMENTS
    return None if too_large or len(made) > _MAX_RANK else made


def folded_value(node: onnx.NodeProto, value: Value, operand: Value | None) -> Value | None:
    """What an operator of `FOLDING` makes of a constant."""
    shape = folded_shape(node, value.shape, operand)
    if shape is None:
        return None
    if node.op_type == "ConstantOfShape":
        filling = _filling(node)
        return None if filling is None else np.broadcast_to(filling, shape)
    if node.op_type == "Cast":
        return cast(value, node)
    if node.op_type == "Transpose":
        return value.transpose(_permutation(node, value.shape))
    return value.reshape(shape)


def divided_shapes(node: onnx.NodeProto, shape: Shape, operand: Value | None) -> list[Shape] | None:
    """The shapes of what a Split makes, one for each output.

    Args:
        node: the operator.
        shape: of its first input.
        operand: the value of the second one, the lengths (from opset 13 on); None where it is absent.
    """
    try:
        axis, lengths = _division(node, shape, operand)
    except _UnfoldableError:
        return None
    return [(*shape[:axis], length, *shape[axis + 1 :]) for length in lengths]


def divided_value(node: onnx.NodeProto, value: Value, operand: Value | None, index: int) -> Value | None:
    """What a Split makes of a constant at one of its outputs, a view; None where it makes none."""
    try:
        axis, lengths = _division(node, value.shape, operand)
    except _UnfoldableError:
        return None
    first = sum(lengths[:index])
    return value[(slice(None),) * axis + (slice(first, first + lengths[index]),)]


def combined_shape(first: Extent, second: Extent) -> Shape | None:
    """The shape of what an operator of `COMBINING` makes of two float32 constants; None where it makes nothing."""
    if first.kind != onnx.TensorProto.FLOAT or second.kind != onnx.TensorProto.FLOAT:
        return None
    try:
        made = np.broadcast_shapes(first.shape, second.shape)
    except ValueError:
        return None
    return None if math.prod(made) > MAX_ELEMENTS else made


def combined_value(node: onnx.NodeProto, first: Value, second: Value) -> Value:
    """What an operator of `COMBINING` makes of two float32 constants that go together, in float32."""
    functions = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}
    with np.errstate(all="ignore"):  # what is not finite is refused by those who need it finite
        made: Value = functions[node.op_type](first, second)
    return made


def kind_behind(node: onnx.NodeProto, kind: int) -> int:
    """The element type after an operator of `FOLDING` that reads one; UNDEFINED where the node alone does not say."""
    if node.op_type == "ConstantOfShape":
        return int(onnx.TensorProto.UNDEFINED)
    try:
        return _element_type(node) if node.op_type == "Cast" else kind
    except _UnfoldableError:
        return int(onnx.TensorProto.UNDEFINED)


def cast(value: Value, node: onnx.NodeProto) -> Value | None:
    """The value in the element type that a Cast names; None for text, types that are unknown, and 8-bit exponents.

    Numbers beyond the range of an 8-bit float become its largest, unless the node says saturate = 0.
    """
    try:
        code = _element_type(node)
        saturate = _int(node, "saturate", 1)
    except _UnfoldableError:
        return None
    name = onnx.TensorProto.DataType.Name(code) if code in BITS else ""
    if not name or value.dtype.kind in "OSUMm" or name in ("FLOAT8E8M0", "FLOAT4E2M1"):
        return None
    kind: Any = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code))
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused by those who need it finite
        if name.startswith("FLOAT8") and saturate:
            return _saturated(value, kind)
        if value.dtype.kind == "c" and kind.kind != "c":
            return None
        result: Value = value.astype(kind, copy=False)
    return result


def _saturated(value: Value, kind: Any) -> Value:
    import ml_dtypes

    most = float(ml_dtypes.finfo(kind).max)  # type: ignore[no-untyped-call]
    cut: Value = np.clip(value.astype(np.float32), -most, most).astype(kind)
    return cut


def _element_type(node: onnx.NodeProto) -> int:
    for item in node.attribute:
        if item.name == "to" and item.type == AttributeProto.STRING:  # opset 1 to 5
            text = item.s.decode("ascii", "replace").upper()
            return int(dict(onnx.TensorProto.DataType.items()).get(text, 0))
    return _int(node, "to", 0)


def _int(node: onnx.NodeProto, name: str, default: int) -> int:
    for item in node.attribute:
        if item.name == name:
            if item.type not in (AttributeProto.INT, _UNTYPED) or item.ref_attr_name:
                raise _UnfoldableError
            return int(item.i)
    return default


def _ints(node: onnx.NodeProto, name: str) -> list[int] | None:
    for item in node.attribute:
        if item.name == name:
            if item.type not in (AttributeProto.INTS, _UNTYPED) or item.ref_attr_name:
                raise _UnfoldableError
            return list(item.ints)
    return None


def _list_of(operand: Value | None) -> list[int] | None:
    """The integers of an operand that is a shape or axes."""
    if operand is None:
        return None
    if operand.ndim > 1 or operand.size > _LARGEST_LIST or operand.dtype.kind not in "iu":
        raise _UnfoldableError
    return [int(size) for size in operand.reshape(-1)]


def _axes(node: onnx.NodeProto, operand: Value | None, rank: int) -> list[int] | None:
    given = _list_of(operand)
    given = _ints(node, "axes") if given is None else given
    if given is None:
        return None
    if not all(-rank <= axis < rank for axis in given):
        raise _UnfoldableError
    axes = [axis % rank for axis in given]
    if len(set(axes)) < len(axes):
        raise _UnfoldableError
    return axes


def _same(_node: onnx.NodeProto, shape: Shape, _operand: Value | None) -> Shape:
    return shape


def _permutation(node: onnx.NodeProto, shape: Shape) -> list[int]:
    given = _ints(node, "perm")
    perm = list(reversed(range(len(shape)))) if given is None else given
    if sorted(perm) != list(range(len(shape))):
        raise _UnfoldableError
    return perm


def _transposed(node: onnx.NodeProto, shape: Shape, _operand: Value | None) -> Shape:
    return tuple(shape[axis] for axis in _permutation(node, shape))


def _flattened(node: onnx.NodeProto, shape: Shape, _operand: Value | None) -> Shape:
    axis, rank = _int(node, "axis", 1), len(shape)
    if not -rank <= axis <= rank:
        raise _UnfoldableError
    at = axis + rank if axis < 0 else axis
    return (math.prod(shape[:at]), math.prod(shape[at:]))


def _reshaped(node: onnx.NodeProto, shape: Shape, operand: Value | None) -> Shape:
    given = _list_of(operand)
    given = _ints(node, "shape") if given is None else given  # opset 1 to 4
    if given is None:
        raise _UnfoldableError
    if not _int(node, "allowzero", 0):
        if any(size == 0 and index >= len(shape) for index, size in enumerate(given)):
            raise _UnfoldableError
        given = [size or shape[index] for index, size in enumerate(given)]
    known, total = math.prod(size for size in given if size != -1), math.prod(shape)
    if given.count(-1) > 1 or any(size < -1 for size in given):
        raise _UnfoldableError
    if -1 in given:
        if known == 0 or total % known:
            raise _UnfoldableError
        given = [total // known if size == -1 else size for size in given]
    elif known != total:
        raise _UnfoldableError
    return tuple(given)


def _squeezed(node: onnx.NodeProto, shape: Shape, operand: Value | None) -> Shape:
    axes = _axes(node, operand, len(shape))
    if axes is None:
        return tuple(size for size in shape if size != 1)
    if any(shape[axis] != 1 for axis in axes):
        raise _UnfoldableError
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _unsqueezed(node: onnx.NodeProto, shape: Shape, operand: Value | None) -> Shape:
    given = _list_of(operand)
    number = len((_ints(node, "axes") or ()) if given is None else given)
    rank = len(shape) + number
    if rank > _MAX_RANK:
        raise _UnfoldableError
    axes = _axes(node, operand, rank)
    if axes is None:
        raise _UnfoldableError
    sizes = iter(shape)
    return tuple(1 if axis in axes else next(sizes) for axis in range(rank))


def _division(node: onnx.NodeProto, shape: Shape, operand: Value | None) -> tuple[int, list[int]]:
    """The axis that a Split cuts, and the length of each part."""
    axis, count, given = _int(node, "axis", 0), len(node.output), _list_of(operand)
    if not -len(shape) <= axis < len(shape):
        raise _UnfoldableError
    length = shape[axis]
    lengths = _ints(node, "split") if given is None else given  # an attribute up to opset 12
    if lengths is None:
        each = -(-length // count)
        lengths = [*[each] * (count - 1), length - each * (count - 1)]
        if lengths[-1] < each and _int(node, "num_outputs", 0) != count:  # opset 18 on: the last one may be shorter
            raise _UnfoldableError
    if len(lengths) != count or sum(lengths) != length or min(lengths) < 0:
        raise _UnfoldableError
    return axis % len(shape), lengths


def _filled(_node: onnx.NodeProto, _shape: Shape, operand: Value | None) -> Shape:
    given = _list_of(operand)
    if given is None or any(size < 0 for size in given):
        raise _UnfoldableError
    return tuple(given)


def _filling(node: onnx.NodeProto) -> Value | None:
    """The one value of a ConstantOfShape, 0-d."""
    for item in node.attribute:
        if item.name == "value":
            value: Sequence[int] | None = item.t.dims if item.HasField("t") else None
            return None if value is None or math.prod(value) != 1 else array_of(item.t, None).reshape(())
    return np.zeros((), np.float32)


_SHAPES = {
    "Identity": _same,
    "Cast": _same,
    "Transpose": _transposed,
    "Flatten": _flattened,
    "Reshape": _reshaped,
    "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
    "ConstantOfShape": _filled,
}
