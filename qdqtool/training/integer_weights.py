# SPDX-License-Identifier: Apache-2.0
"""Integer constants after a DequantizeLinear as floats with a pair in front, and floats as those integers again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from qdqtool.graph.builder import GraphBuilder
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import GraphView, Pair, attribute

Float32 = npt.NDArray[np.float32]
# What QuantizeLinear makes at the opset of the copy; int32 it never makes: such a bias is trained in float.
_FROM_13 = frozenset({"int8", "uint8"})
_FROM_21 = _FROM_13 | {"int4", "uint4", "int16", "uint16"}


@dataclass(frozen=True, eq=False)
class Code:
    """How the file codes a constant that is trained as a float.

    Attributes:
        scale: the initializer or Constant of the file that holds its scale.
        zero: zero point, int64 [] or [channels].
        axis: of the scales; None for one.
        kind: element type of the integers, as numpy or ml_dtypes know it.
        low, high: the smallest and largest integer in use.
    """

    scale: str
    zero: npt.NDArray[np.int64]
    axis: int | None
    kind: np.dtype[Any]
    low: int
    high: int

    def encode(self, value: Float32, scale: Float32) -> npt.NDArray[Any]:
        """The integers nearest to a value, ties to even, cut off at the ends: what QuantizeLinear makes of it."""
        steps = np.rint(value / self._along(scale, value.ndim)).astype(np.float64)
        levels = np.clip(steps + self._along(self.zero, value.ndim), self.low, self.high)
        coded: npt.NDArray[Any] = levels.astype(np.int64).astype(self.kind)
        return coded

    def decode(self, stored: npt.NDArray[Any], scale: Float32) -> Float32:
        """Scale * (integer - zero point), in float32 as DequantizeLinear computes it."""
        levels = np.clip(stored.astype(np.int64), self.low, self.high) - self._along(self.zero, stored.ndim)
        value: Float32 = levels.astype(np.float32) * self._along(scale, stored.ndim)
        return value

    def _along(self, values: npt.NDArray[Any], rank: int) -> npt.NDArray[Any]:
        if values.size == 1:
            return values.reshape(())
        shape = [1] * rank
        shape[self.axis or 0] = -1
        return values.reshape(shape)


def decode_constants(draft: GraphBuilder) -> tuple[dict[str, Code], dict[str, str]]:
    """Make each integer initializer that one way of decoding reads a float one of the same name.

    A pair takes the place of its DequantizeLinear, so that the forward computes the same; int32 (a bias) stands as it
    is, in float.
    """
    view = draft.view()
    by_source: dict[str, list[Pair]] = {}
    for pairs in view.pairs.values():
        for pair in pairs:
            if pair.quantize is None:
                first = pair.between[0] if pair.between else pair.dequantize
                by_source.setdefault(first.inputs[0], []).append(pair)
    codes: dict[str, Code] = {}
    left: dict[str, str] = {}
    front: dict[int, onnx.NodeProto] = {}
    renamed: dict[str, str] = {}
    for name, pairs in by_source.items():
        code = _code_of(draft, view, name, pairs)
        if isinstance(code, str):
            left[name] = code
            continue
        codes[name] = code
        stored, scale = view.array(name), view.array(code.scale)
        if stored is None or scale is None:
            raise AssertionError(name)  # _code_of has read both
        view.initializers[name].CopyFrom(numpy_helper.from_array(code.decode(stored, scale.astype(np.float32)), name))
        if code.kind == np.int32:
            renamed.update((pair.dequantize.outputs[0], name) for pair in pairs)
        else:
            _put_before(draft, code, name, pairs, front)
    gone = {id(pair.dequantize.proto) for name in codes for pair in by_source[name] if codes[name].kind == np.int32}
    nodes = []
    for node in view.every:
        if id(node.proto) in front:
            nodes.append(front[id(node.proto)])
        if id(node.proto) not in gone:
            nodes.append(node.proto)
    draft.set_nodes(nodes)
    draft.rename_reads(renamed)
    return codes, left


def _put_before(
    draft: GraphBuilder, code: Code, name: str, pairs: list[Pair], front: dict[int, onnx.NodeProto]
) -> None:
    """A QuantizeLinear on the float, read by all that read the integers."""
    zero = code.zero.astype(code.kind)
    quantized = draft.unique(f"{name}_Q")
    operands = [name, code.scale, draft.constant("qdqtool_zero", zero)]
    how = {} if code.axis is None else {"axis": code.axis}
    heads = [pair.between[0] if pair.between else pair.dequantize for pair in pairs]
    front[id(min(heads, key=lambda node: node.index).proto)] = draft.node("QuantizeLinear", operands, quantized, **how)
    for head in heads:
        head.proto.input[0] = quantized


def _code_of(draft: GraphBuilder, view: GraphView, name: str, pairs: list[Pair]) -> Code | str:
    """How an initializer is coded, or why it is not trained."""
    stored = view.array(name) if name in view.initializers else None
    if stored is None:
        return "its integers are computed"
    reads = sum(source == name for node in view.every for source in node.inputs)
    if reads != len({id(p.between[0] if p.between else p.dequantize) for p in pairs}) or view.is_output(name):
        return "its integers are read by others, too"
    if len({tuple(pair.dequantize.inputs[1:]) for pair in pairs}) > 1:
        return "it is read with several scales"
    return _one_code(view, draft, stored, pairs[0])


def _one_code(view: GraphView, draft: GraphBuilder, stored: npt.NDArray[Any], pair: Pair) -> Code | str:
    node = pair.dequantize
    scale = view.array(node.inputs[1])
    zero = view.array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    if attribute(node, "block_size", 0) or (scale is not None and scale.ndim > 1):
        return "it has one scale per block"
    if scale is None or scale.dtype != np.float32 or node.inputs[1] not in view.initializers:
        return "its scale is not a float32 constant"
    if zero is None and len(node.inputs) > 2 and node.inputs[2]:
        return "its zero point is computed"
    if zero is not None and zero.dtype != stored.dtype:
        return f"its zero point is {zero.dtype.name}, its integers are {stored.dtype.name}"
    kinds = _FROM_21 if (opset_of(draft.proto) or 1) >= 21 else _FROM_13
    if stored.dtype.name not in kinds | {"int32"}:
        return f"its integers are {stored.dtype.name}"
    if stored.dtype == np.int32 and pair.between:
        return "its integers are clipped"
    size = scale.size if scale.ndim else 1
    axis = int(str(attribute(node, "axis", 1))) % max(1, stored.ndim) if size > 1 else None
    levels = np.zeros(scale.shape, np.int64) if zero is None else zero.astype(np.int64)
    if axis is not None and (stored.shape[axis : axis + 1] != (size,) or levels.size not in (1, size)):
        return "its scales or zero points do not fit its shape"
    if axis is None:
        levels = levels.reshape(())
    low, high = limits(view, pair, stored.dtype)
    return Code(node.inputs[1], levels, axis, stored.dtype, low, high)


def limits(view: GraphView, pair: Pair, kind: np.dtype[Any]) -> tuple[int, int]:
    """The smallest and the largest integer that a pair makes, Clips between its Q and its DQ carried out."""
    import ml_dtypes

    info: Any = ml_dtypes.iinfo(kind)  # type: ignore[no-untyped-call]
    low, high = int(info.min), int(info.max)
    for node in pair.between:
        if node.op == "Clip":
            least, most = view.bounds(node)
            low = low if least is None else max(low, int(least.item()))
            high = high if most is None else min(high, int(most.item()))
    return low, high
