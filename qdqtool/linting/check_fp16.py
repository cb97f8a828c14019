# SPDX-License-Identifier: Apache-2.0
"""Checks of what stays in float: whether FP16, in which most engines run it, holds the numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, Node, attribute
from qdqtool.linting.checks import CheckFault, check
from qdqtool.linting.finding import Severity
from qdqtool.linting.lint_context import LintContext

_SMALLEST_NORMAL = float(np.finfo(np.float16).smallest_normal)  # 6.1e-5
_LARGEST = float(np.finfo(np.float16).max)  # 65504
# Operator -> inputs whose size does no harm: an infinite bound bounds nothing, as a huge one does, and parameters of
# a BatchNormalization become one factor and one addend before they are rounded.
_HARMLESS = {"Clip": (1, 2), "Min": (0, 1), "Max": (0, 1), "BatchNormalization": (1, 2, 3, 4)}


@check("Q040", "fp16-overflow", "warning", targets=("gpu", "rtx"))
def fp16_overflow(context: LintContext) -> Iterator[CheckFault]:
    """A constant or, with data, a tensor that FP16 does not hold: its largest number is 65504.

    An engine that runs the operator in FP16 (`--fp16`, or a model converted to FP16) reads infinity instead. The usual
    one is the number that masks attention, -1e9 or float32's lowest: two of them added, or a row that is masked whole,
    give NaN after Softmax (Q061). Constants after Q/DQ, bounds (Clip, Min, Max) and BatchNormalization are left out.
    TensorRT 11 and later, RTX, and a file with FP16 tensors read FP32 where the file has it: there only constants that
    a Cast makes FP16 count.

    With `--data`, tensors whose values passed 65504: an error where the file has them in FP16. A file with FP16 tensors
    is judged by these alone: what is FP32 in it stays so.
    """
    weak = context.asked is not None and not context.strongly_typed
    yield from _constants(context) if weak else _cast_constants(context)
    for name, largest, kind in overflowing(context):
        graver: Severity | None = "error" if kind == TensorProto.FLOAT16 else None
        text = f"holds values up to {largest:g} on the data; the largest FP16 value is {_LARGEST:.0f}"
        yield CheckFault(name, text, "keep its producer and its consumers in FP32 or BF16", severity=graver)


@check("Q057", "fp16-underflow", "note", targets=("gpu", "rtx"))
def fp16_underflow(context: LintContext) -> Iterator[CheckFault]:
    """With data, a tensor that FP16 holds with fewer than its 11 bits: no value of it reaches 6.1e-5.

    Below 3e-8 every value becomes 0. A warning where the file has the tensor in FP16.
    """
    for name, largest, kind in _halves(context):
        if 0 < largest < _SMALLEST_NORMAL:
            graver: Severity | None = "warning" if kind == TensorProto.FLOAT16 else None
            text = f"holds no value beyond {largest:.3g} on the data; FP16 loses bits below {_SMALLEST_NORMAL:.2g}"
            yield CheckFault(name, text, "scale it up, or keep its producer in FP32 or BF16", severity=graver)


def overflowing(context: LintContext) -> Iterator[tuple[str, float, int]]:
    """Each tensor that is FP16, or that a builder may make so, with values beyond FP16: the largest, and its type."""
    return (one for one in _halves(context) if one[1] > _LARGEST)


def _halves(context: LintContext) -> Iterator[tuple[str, float, int]]:
    """Each tensor that is FP16 in the file, or that a builder may make so, its largest value and its type."""
    for name, largest in context.largest.items():
        kind = context.typed.types.get(name, 0)
        if kind == TensorProto.FLOAT16 or (kind == TensorProto.FLOAT and not context.has_halves):
            yield name, largest, kind


def _constants(context: LintContext) -> Iterator[CheckFault]:
    reported: set[str] = set()
    for node in context.view.nodes:
        for index, name in enumerate(node.inputs):
            if (
                not name
                or name in reported
                or not context.view.is_constant(name)
                or not _computes(context, node, index)
            ):
                continue
            array = context.constant(name)
            if array is None or array.dtype not in (np.float32, np.float64):
                continue
            worst = _largest(array)
            if abs(worst) > _LARGEST:
                reported.add(name)
                message = f"{node.op} {node.name} reads {worst:g} from it; the largest FP16 value is {_LARGEST:.0f}"
                mask = "a mask works with -10000 too; else " if worst < 0 else ""
                yield CheckFault(name, message, f"{mask}keep the operator in FP32")


def _cast_constants(context: LintContext) -> Iterator[CheckFault]:
    """Constants of the file that a Cast to FP16 makes infinite."""
    for node in context.file_view.every:
        if node.op != "Cast" or attribute(node, "to") != TensorProto.FLOAT16 or not node.inputs:
            continue
        array = context.file_view.array(node.inputs[0]) if context.file_view.is_constant(node.inputs[0]) else None
        worst = 0.0 if array is None or array.dtype not in (np.float32, np.float64) else _largest(array)
        if abs(worst) > _LARGEST:
            message = f"Cast {node.name} makes FP16 of {worst:g} in it; the largest FP16 value is {_LARGEST:.0f}"
            yield CheckFault(node.inputs[0], message, "keep the operator that reads it in FP32")


def _computes(context: LintContext, node: Node, index: int) -> bool:
    """Whether an operator computes with this input."""
    if (
        node.op in (QUANTIZE, DEQUANTIZE)
        or node.inputs[index] in context.pair_of
        or index in _HARMLESS.get(node.op, ())
    ):
        return False
    return index not in context.words.places.get(node.op, ())


def _largest(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> float:
    """The finite value that is largest without its sign; 0 where there is none."""
    if not array.size:
        return 0.0
    low, high = float(array.min()), float(array.max())
    if not np.isfinite((low, high)).all():
        finite = array[np.isfinite(array)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    return low if -low > high else high
