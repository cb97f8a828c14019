# SPDX-License-Identifier: Apache-2.0
"""Resize: linear in its input and one axis after the other, so the way back is a matrix per axis, transposed.

The matrices are measured: the node's own kernel resizes unit vectors, so every mode and every rounding is the one of
the forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from qdqtool.autodiff.rules.tape import GraphValue
from qdqtool.autodiff.rules.vjp_context import Gradients, Rule, VjpContext
from qdqtool.runtime.installed import load_onnxruntime

Matrix = npt.NDArray[np.float32]
_ROI, _SCALES, _SIZES = 1, 2, 3


def _resize(site: VjpContext) -> Gradients:
    if site.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise site.refusal("with keep_aspect_ratio_policy has no gradient here")
    x, y = site.x, site.y
    moved = [axis for axis in range(len(x.shape)) if _moves(site, axis)]
    matrices = {axis: _matrix(site, axis) for axis in moved}
    repeats = _repeats(matrices)
    if repeats is not None and moved == [len(x.shape) - 2, len(x.shape) - 1] and len(x.shape) == 4:
        return [_block_sums(site.g, repeats)]
    gradient = site.g
    for axis in sorted(moved, key=lambda axis: (x.shape[axis] / y.shape[axis], -axis)):  # what shrinks most comes first
        gradient = gradient.along(axis, matrices[axis])
    return [gradient]


def _moves(site: VjpContext, axis: int) -> bool:
    if site.x.shape[axis] != site.y.shape[axis]:
        return True
    cropped = site.get("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    scale = _scale(site, axis)
    return cropped or (scale is not None and scale != 1)


def _place(site: VjpContext, axis: int) -> int | None:
    """Where an axis stands in the lists of scales, sizes and regions."""
    rank = len(site.x.shape)
    axes = [int(entry) % rank for entry in site.get("axes", range(rank))]
    return axes.index(axis) if axis in axes else None


def _scale(site: VjpContext, axis: int) -> float | None:
    """The scale that the node is given for an axis; None where it is given sizes."""
    value, place = site.optional(_SCALES), _place(site, axis)
    if value is None or not value.shape or not value.shape[0]:
        return None
    return 1.0 if place is None else float(site.constant(_SCALES, "scales")[place])


def _matrix(site: VjpContext, axis: int) -> Matrix:
    """The map along one axis as [new size, size]; what is taken from outside the image counts as zero."""
    size, new = site.x.shape[axis], site.y.shape[axis]
    attributes = {name: value for name, value in site.attributes.items() if name not in ("axes", "extrapolation_value")}
    scale, place = _scale(site, axis), _place(site, axis)
    initializers = []
    names = ["x", "", "", ""]
    if site.get("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize" and place is not None:
        region = site.constant(_ROI, "regions")
        both = (float(region[place]), float(region[place + region.size // 2]))
        roi = np.array([0, 0, 0, both[0], 1, 1, 1, both[1]], np.float32)
        initializers.append(helper.make_tensor("roi", TensorProto.FLOAT, [8], roi))
        names[_ROI] = "roi"
    if scale is not None:
        initializers.append(helper.make_tensor("scales", TensorProto.FLOAT, [4], [1.0, 1.0, 1.0, scale]))
        names[_SCALES] = "scales"
    else:
        initializers.append(helper.make_tensor("sizes", TensorProto.INT64, [4], [1, 1, size, new]))
        names[_SIZES] = "sizes"
    node = helper.make_node("Resize", names[: 3 if scale is not None else 4], ["y"], **attributes)
    return _answer(node, initializers, site.tape.opset, size).reshape(size, new).T


def _answer(node: Any, initializers: list[TensorProto], opset: int, size: int) -> Matrix:
    """What onnxruntime makes of the unit vectors, [1, 1, size, new size]."""
    runtime = load_onnxruntime()
    shape = [1, 1, size, size]
    graph = helper.make_graph(
        [node],
        "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    answer: Matrix = session.run(None, {"x": np.eye(size, dtype=np.float32).reshape(shape)})[0]
    return answer


def _repeats(matrices: Mapping[int, Matrix]) -> tuple[int, ...] | None:
    """How often each place is repeated, where every matrix does nothing else."""
    counts = []
    for _, matrix in sorted(matrices.items()):
        new, size = matrix.shape
        if new % size or not np.array_equal(matrix, np.repeat(np.eye(size, dtype=np.float32), new // size, axis=0)):
            return None
        counts.append(new // size)
    return tuple(counts)


def _block_sums(g: GraphValue, repeats: tuple[int, ...]) -> GraphValue:
    """The sum over the places that one place was repeated to: an average over blocks, times their size."""
    down, right = repeats
    n, channels, height, width = g.shape
    shape = (n, channels, height // down, width // right)
    mean = g.tape.emit("AveragePool", [g], shape, kernel_shape=repeats, strides=repeats)
    return mean * (down * right)


RULES: Mapping[str, Rule] = {"Resize": _resize}
