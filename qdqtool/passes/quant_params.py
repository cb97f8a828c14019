# SPDX-License-Identifier: Apache-2.0
"""What integers a Q/DQ pair makes of a tensor, and whether a cache can say so. Reads pairs, never edits them.

A cache knows symmetric int8 alone: x = scale * q with q from -128 to 127, zero point 0. See docs/peel.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.errors import QdqError
from qdqtool.formats import FP8, INT8, NumberFormat, format_of_element, number_formats
from qdqtool.graph.view import QUANTIZE, GraphView, Node, Pair, attribute
from qdqtool.scales import Scale

OnAsymmetric = Literal["error", "widen"]
Integers = npt.NDArray[np.int64]

_LEVELS = {INT8.name: INT8.codes, "uint8": (0, 255), "int32": (-(2**31), 2**31 - 1), FP8.dtype.name: FP8.codes}
_FLOATS = ("float16", "float32", "bfloat16")
_TODO = "quantize it to symmetric int8"
_WIDEN = (
    "peel --on-asymmetric widen takes the symmetric range that contains it, with a coarser scale; or calibrate again: "
    "peel --target dla --force-ptq --data, or symmetric int8 where the model was made"
)


class OtherTypeError(QdqError):
    """Q/DQ of a type that no int8 scale can stand for, such as INT4 and FP8; reported as a cache's limit."""

    def __init__(self, tensor: str, kind: str) -> None:
        super().__init__(tensor, f"quantized to {kind}, where TensorRT's caches hold symmetric int8 only", _why(kind))


@dataclass(frozen=True)
class QuantParams:
    """The integers that a pair makes.

    Attributes:
        kind: their type: int8, uint8, int32 (a bias).
        zero: the zero point, one or one per channel.
        low, high: the smallest and largest integer that it uses, what Clip cuts off left out.
    """

    kind: str
    zero: Integers
    low: int
    high: int

    @property
    def symmetric(self) -> bool:
        """Whether these are int8 without a zero point, or uint8 that are int8 shifted by 128: the same steps."""
        return (self.kind != "uint8" and not self.zero.any()) or self.shifted

    @property
    def shifted(self) -> bool:
        """Whether these are int8 with 128 added."""
        return self.kind == "uint8" and bool((self.zero == 128).all())

    @property
    def format(self) -> NumberFormat:
        """The row of rules/formats.toml that has these codes; INT8, whose steps they are, where none has."""
        return _format_of(self.kind, self.low, self.high) or INT8

    def describe(self) -> str:
        """The type and zero point in words."""
        values = np.unique(self.zero)
        zero = f"zero point {values[0]}" if values.size == 1 else f"zero points from {values[0]} to {values[-1]}"
        return f"{self.kind} with {zero}"


def coding_of(view: GraphView, pair: Pair) -> QuantParams:
    """What integers a pair makes.

    Raises:
        QdqError: a type, a width, or blocks that no calibration cache knows; a zero point that is computed, or that the
            Q and the DQ do not share.
    """
    kind, zero = _type_and_zero(view, pair, pair.quantize or pair.dequantize)
    if pair.quantize is not None and len(pair.dequantize.inputs) > 2 and pair.dequantize.inputs[2]:
        back = view.array(pair.dequantize.inputs[2])
        if back is None or not np.array_equal(np.unique(back.astype(np.int64)), np.unique(zero)):
            raise QdqError(pair.tensor, "its Q and its DQ have different zero points", "repair the model")
    low, high = _levels(view, pair, kind)
    return QuantParams(kind, zero, low, high)


def scale_of(view: GraphView, pair: Pair, coding: QuantParams, on_asymmetric: OnAsymmetric = "error") -> Scale:
    """The symmetric int8 scale of a pair: its own bits where it is symmetric, else that of the range around it.

    Widened: scale = max(|low - zero|, |high - zero|) * step / 127, in float64, rounded to float32 once.

    Raises:
        QdqError: asymmetric integers, unless `on_asymmetric` is "widen"; a scale that is computed or not positive.
    """
    own = pair_scale(view, pair)
    if coding.symmetric:
        return own
    if on_asymmetric == "error":
        unnamed = pair.quantize is not None and len(pair.quantize.inputs) < 3
        what = coding.describe() + (", since its Q names none" if unnamed else "")
        raise QdqError(pair.tensor, f"quantized to {what}, where TensorRT's caches hold symmetric int8 only", _WIDEN)
    steps = np.maximum(np.abs(coding.low - coding.zero), np.abs(coding.high - coding.zero)).astype(np.float64)
    wide = (steps.reshape(-1 if own.bits.ndim else ()) if steps.size > 1 or own.bits.ndim else steps.reshape(())) * (
        own.bits.astype(np.float64)
    )
    if wide.max() / INT8.largest > np.finfo(np.float32).max:
        raise QdqError(pair.tensor, "its widened scale is more than float32 holds", "repair the model")
    bits = (wide / INT8.largest).astype(np.float32)
    return Scale.of(bits, axis=own.axis, origin="derived", method=f"widened from {coding.describe()}")


def pair_scale(view: GraphView, pair: Pair) -> Scale:
    """The scale that a pair in the graph carries; a half-precision one in float32, which holds it exactly.

    Raises:
        QdqError: a scale that is computed, in blocks, or not finite and positive.
    """
    node = pair.quantize or pair.dequantize
    value = view.array(node.inputs[1])
    if value is None or value.dtype.name not in _FLOATS:
        raise QdqError(
            pair.tensor, "the scale of its Q/DQ is not a float32 constant, nor half precision", "fold constants first"
        )
    if not value.size:
        raise QdqError(
            pair.tensor, f"the scale of its Q/DQ is empty: its shape is {list(value.shape)}", "repair the model"
        )
    for end in (pair.quantize, pair.dequantize):
        if end is not None:
            _check_sizes(view, pair, end, value.size)
    with np.errstate(over="ignore"):  # a double that float32 cannot hold becomes infinity, which is refused below
        value = value.astype(np.float32, copy=False)
    axis = int(str(attribute(node, "axis", 1))) if value.size > 1 else None
    try:
        bits = value if value.size > 1 else value.reshape(())
        return Scale.of(bits, axis=axis, origin="qdq", format=pair_format(view, pair))
    except QdqError as error:
        raise QdqError(
            pair.tensor, f"the scale of its Q/DQ: {error.reason}", "TensorRT refuses it: repair the model"
        ) from None


def block_scale(view: GraphView, pair: Pair) -> Scale | None:
    """The scales of a weight that is stored as codes of a format with one scale per block; None for other pairs."""
    stored, node = view.constant_tensor(pair.dequantize.inputs[0]), pair.dequantize
    row = None if stored is None else format_of_element(stored.data_type)
    block, value = int(str(attribute(node, "block_size", 0))), view.array(node.inputs[1])
    if pair.quantize is not None or row is None or not row.blocks or not block or value is None:
        return None
    axis = int(str(attribute(node, "axis", 1)))
    return Scale(value.astype(np.float32), axis, "qdq", format=row, block=block)


def _check_sizes(view: GraphView, pair: Pair, node: Node, scales: int) -> None:
    """Refuse scales and zero points that do not go with one another, or with the constant that they are for."""
    zero = view.array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    if zero is not None and zero.size not in (1, scales):
        raise QdqError(pair.tensor, f"its Q/DQ has {scales} scales and {zero.size} zero points", "repair the model")
    shape = view.shape(pair.tensor) if scales > 1 else None
    if shape is None:
        return
    axis = int(str(attribute(node, "axis", 1)))
    if not -len(shape) <= axis < len(shape) or shape[axis] != scales:
        reason = f"its Q/DQ has {scales} scales along axis {axis}, where the shape is {list(shape)}"
        raise QdqError(pair.tensor, reason, "repair the model")


def _type_and_zero(view: GraphView, pair: Pair, node: Node) -> tuple[str, Integers]:
    """The integer type and the zero point, where a cache can know them."""
    named = node.inputs[2] if len(node.inputs) > 2 else ""
    zero = view.array(named) if named else None
    if named and zero is None:
        raise QdqError(pair.tensor, "the zero point of its Q/DQ is not a constant", "fold constants first")
    if zero is not None:
        kind = zero.dtype.name
    elif node.op == QUANTIZE:
        code = int(str(attribute(node, "output_dtype", 0))) or onnx.TensorProto.UINT8  # what ONNX takes without one
        kind = onnx.helper.tensor_dtype_to_np_dtype(code).name
    else:
        stored = view.integers(node.inputs[0])
        kind = "unknown" if stored is None else stored.dtype.name
    if kind not in _LEVELS or (kind == "int32") != (pair.quantize is None and _is_int32(view, node)):
        raise OtherTypeError(pair.tensor, kind)
    if attribute(node, "block_size", 0) or _rank(view, node.inputs[1]) > 1:
        raise QdqError(pair.tensor, "it has one scale per block, which no calibration cache can hold", _TODO)
    return kind, np.zeros((), np.int64) if zero is None else zero.astype(np.int64)


def _is_int32(view: GraphView, node: Node) -> bool:
    stored = view.integers(node.inputs[0])
    return stored is not None and stored.dtype == np.int32


def _rank(view: GraphView, name: str) -> int:
    value = view.array(name)
    return 0 if value is None else value.ndim


def _why(kind: str) -> str:
    row = next((one for one in number_formats().values() if kind in (one.name, one.dtype.name)), INT8)
    if not row.cache:
        since = ".".join(map(str, row.since))
        return f"{row.title} needs TensorRT {since} or later with the Q/DQ model itself; for a cache quantize to int8"
    if kind in ("int4", "uint4", "int2", "uint2"):
        return f"{kind} weights need TensorRT 10 or later with the Q/DQ model itself; for a cache quantize to int8"
    return _TODO


def _levels(view: GraphView, pair: Pair, kind: str) -> tuple[int, int]:
    """The integers in use. A Clip to fewer than 255 levels is another width, which a cache cannot say."""
    low, high = _LEVELS[kind]
    for node in pair.between:
        if node.op == "Cast":
            _check_cast(pair, node, kind)
        elif node.op == "Clip":
            bounds = view.bounds(node)
            if any(bound is None and len(node.inputs) > index for index, bound in enumerate(bounds, 1)):
                raise QdqError(pair.tensor, "the bounds of the Clip in its Q/DQ are not constants", _TODO)
            low = low if bounds[0] is None else max(low, int(bounds[0].item()))
            high = high if bounds[1] is None else min(high, int(bounds[1].item()))
    if kind != "int32" and high - low < 254 and _format_of(kind, low, high) is None:
        reason = f"a Clip leaves it {high - low + 1} levels, from {low} to {high}, where int8 has 255 or 256"
        raise QdqError(pair.tensor, reason, "quantize it to 8 bits")
    return low, high


def pair_format(view: GraphView, pair: Pair) -> NumberFormat:
    """The number format of a pair's codes; INT8 where no row of rules/formats.toml has them, whatever they are."""
    try:
        return coding_of(view, pair).format
    except QdqError:
        return INT8


def _format_of(kind: str, low: int, high: int) -> NumberFormat | None:
    rows = (row for row in number_formats().values() if row.dtype.name == kind and row.codes == (low, high))
    return next(rows, None)


def _check_cast(pair: Pair, node: Node, kind: str) -> None:
    code = int(str(attribute(node, "to", 0)))
    name: Any = onnx.helper.tensor_dtype_to_np_dtype(code).name
    if name not in (kind, "int32"):
        raise QdqError(pair.tensor, f"its integers are cast from {kind} to {name} between Q and DQ", "repair the model")
