# SPDX-License-Identifier: Apache-2.0
"""Resizes that make a map smaller as the poolings they are, which a DLA runs. Which are asked for: linting.

A DLA's Resize enlarges only (NvInfer.h, IResizeLayer). Bilinear interpolation to half a side at half pixels is the mean
of two by two values; nearest neighbors at whole steps are a MaxPool of 1x1 with that stride (ONNX, Resize).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnx import TensorProto

from qdqtool.graph.edit import Editor, count_uses, release
from qdqtool.graph.nodes import attribute
from qdqtool.graph.shape_values import Shape
from qdqtool.graph.shapes import shapes_of
from qdqtool.graph.view import GraphView, Node

_MAP = 4  # axes of a map: batch, channels, height, width
_WIDEST = 16  # the longest stride of a pooling on a DLA (NvInfer.h, IPoolingLayer)
_SCALES, _SIZES = 2, 3  # inputs of a Resize since opset 11
# Attributes that change the values, with the settings that do not.
_USUAL = {"antialias": 0, "exclude_outside": 0, "keep_aspect_ratio_policy": "stretch", "axes": None}


@dataclass(frozen=True, eq=False)
class PooledResize:
    """A Resize or Upsample that is a pooling.

    Attributes:
        node: it.
        op: AveragePool or MaxPool.
        kernel: height and width of its window.
        strides: how many rows and columns it goes on by.
    """

    node: Node
    op: str
    kernel: tuple[int, int]
    strides: tuple[int, int]


def find_pooled_resizes(view: GraphView, types: Mapping[str, int]) -> list[PooledResize]:
    """The Resizes of a graph that are poolings, in the order of its nodes; maps of fixed size and float32 alone."""
    resizes = [node for node in view.nodes if node.op in ("Resize", "Upsample") and len(node.inputs) > 1]
    of_floats = [node for node in resizes if types.get(node.inputs[0]) == TensorProto.FLOAT]
    shapes = shapes_of(view) if of_floats else {}
    found = (_pooled(view, node, shapes.get(node.inputs[0]), shapes.get(node.outputs[0])) for node in of_floats)
    return [one for one in found if one is not None]


def _pooled(view: GraphView, node: Node, before: Shape | None, after: Shape | None) -> PooledResize | None:
    strides = _steps(before, after)
    if strides is None or not _by_whole_steps(view, node, strides):
        return None
    if any(attribute(node, name, usual) != usual for name, usual in _USUAL.items()):
        return None
    mode, places = attribute(node, "mode", "nearest"), "asymmetric"  # a Resize of opset 10 chooses the mode alone
    if _scales_at(node) == _SCALES:
        places = str(attribute(node, "coordinate_transformation_mode", "half_pixel"))
    if mode == "nearest" and places == "asymmetric":  # i x stride is whole: no rounding changes it
        return PooledResize(node, "MaxPool", (1, 1), strides)
    one_wide = after is not None and 1 in after[2:]  # for which pytorch_half_pixel has another rule
    halved = max(strides) == 2 and (places == "half_pixel" or (places == "pytorch_half_pixel" and not one_wide))
    return PooledResize(node, "AveragePool", strides, strides) if mode == "linear" and halved else None


def _steps(before: Shape | None, after: Shape | None) -> tuple[int, int] | None:
    """By how much a map gets lower and narrower, in powers of two; None where it is anything else."""
    if before is None or after is None or len(before) != _MAP or before[:2] != after[:2]:
        return None
    found = []
    for long, short in zip(before[2:], after[2:], strict=True):
        if not long or not short or long % short:
            return None
        found.append(long // short)
    high, wide = found
    fits = all(step <= _WIDEST and step & (step - 1) == 0 for step in found)
    return (high, wide) if fits and max(found) > 1 else None


def _scales_at(node: Node) -> int:
    """The input that has the scales."""
    return 1 if node.op == "Upsample" or len(node.inputs) == 2 else _SCALES


def _by_whole_steps(view: GraphView, node: Node, strides: tuple[int, int]) -> bool:
    """Whether the steps are exact: by the scales, or because output sizes are given, which make them so."""
    index = _scales_at(node)
    name = node.inputs[index] if index < len(node.inputs) else ""
    scales = view.array(name) if name else None
    if scales is not None and scales.size:
        return scales.size == _MAP and all(
            float(scale) * step == 1 for scale, step in zip(scales[2:], strides, strict=True)
        )
    return (not name or scales is not None) and len(node.inputs) > _SIZES and bool(node.inputs[_SIZES])


def pool_resizes(view: GraphView, chosen: Iterable[PooledResize]) -> int:
    """Make Resizes the poolings that they are; means differ by the order of a sum, taken values not at all."""
    editor, uses = Editor(view), count_uses(view)
    number = 0
    for one in chosen:
        editor.set_operator(one.node, one.op, {"kernel_shape": one.kernel, "strides": one.strides})
        for name in editor.cut_inputs(one.node, 1):
            release(editor, uses, name)
        number += 1
    editor.commit()
    return number
