# SPDX-License-Identifier: Apache-2.0
"""The gradient of Resize: along each axis it is a linear map, whose matrix is found by resizing unit vectors.

So every mode that works axis by axis is exact: nearest, linear, cubic, with any way to count coordinates.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from qdqtool.autodiff.lowered.site import Array, LoweringContext, Rule, Shape, Wrap, integers, reshaped

Matrix = npt.NDArray[np.float32]


def _resize(site: LoweringContext) -> Wrap:
    """Gives dx = g times the transposed matrix, one axis after the other."""
    if site.attribute("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise site.refusal("cuts out a region (tf_crop_and_resize)")
    if site.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise site.refusal("keeps the aspect ratio (keep_aspect_ratio_policy)")
    site.only_first(1, 2, 3)
    shape, out = site.shape(0), site.out
    given = tuple(name for at, name in enumerate(("x", "roi", "scales", "sizes")) if site.has(at))
    text, extra, current = "", {}, "g"
    have = list(out)
    for axis in (axis for axis in range(len(shape)) if shape[axis] != out[axis]):
        matrix = _matrix(site, axis)
        part, constant = _back_along(f"a{axis}", current, tuple(have), axis, matrix)
        text += part
        extra.update(constant)
        have[axis] = shape[axis]
        current = f"a{axis}"
    return Wrap((*given, *extra), text + f"dx = Identity ({current})\n", ("x",), extra)


def _back_along(result: str, source: str, have: Shape, axis: int, matrix: Matrix) -> tuple[str, dict[str, Array]]:
    """Statements for `source` times the transposed matrix along an axis: sums of blocks where it only repeats."""
    small, large = matrix.shape
    want = (*have[:axis], small, *have[axis + 1 :])
    times = large // small
    if large == small * times and np.array_equal(matrix, np.repeat(np.eye(small), times, axis=1)):
        blocks = (*have[:axis], small, times, *have[axis + 1 :])
        text = reshaped(f"{result}_b", source, blocks) + integers(f"{result}_at", [axis + 1])
        return text + f"{result} = ReduceSum <keepdims: int = 0> ({result}_b, {result}_at)\n", {}
    after = int(np.prod(have[axis + 1 :], dtype=np.int64))
    before = int(np.prod(have[:axis], dtype=np.int64))
    name = f"{result}_m"
    if after == 1:
        text = reshaped(f"{result}_f", source, (before, large)) + f"{result}_p = MatMul ({result}_f, {name})\n"
        constant = {name: np.ascontiguousarray(matrix.T)}
    else:
        text = reshaped(f"{result}_f", source, (before, large, after))
        text += f"{result}_p = MatMul ({name}, {result}_f)\n"
        constant = {name: matrix}
    return text + reshaped(result, f"{result}_p", want), constant


def _matrix(site: LoweringContext, axis: int) -> Matrix:
    """What Resize does along one axis: [size, new size].

    It is run on unit vectors, with the scale that it has there, since the scale decides where it looks.
    """
    from qdqtool.runtime.installed import load_onnxruntime
    from qdqtool.runtime.session import session_options

    runtime = load_onnxruntime()
    model = _single(site, axis)
    options = session_options(runtime, "ORT_DISABLE_ALL")
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    size = site.shape(0)[axis]
    (rows,) = session.run(None, {"x": np.eye(size, dtype=np.float32)})
    if rows.shape != (size, site.out[axis]):
        raise site.refusal(
            f"makes {rows.shape[1]} of {size} along axis {axis} alone, and {site.out[axis]} in the graph"
        )
    return np.asarray(rows, np.float32)


def _single(site: LoweringContext, axis: int) -> onnx.ModelProto:
    """A model that resizes the second axis of a matrix as the node resizes `axis`."""
    rank = len(site.shape(0))
    axes = [int(one) % rank for one in site.attribute("axes") or range(rank)]
    node = onnx.NodeProto()
    node.CopyFrom(site.node)
    del node.input[:], node.output[:]
    for at in reversed(range(len(node.attribute))):
        if node.attribute[at].name == "axes":
            del node.attribute[at]
    node.output.append("y")
    scales, sizes = site.constant(2), site.constant(3)
    if scales is not None and scales.size:
        table = {"scales": np.asarray([1, scales.reshape(-1)[axes.index(axis)]], np.float32)}
        node.input.extend(["x", "", "scales"])
    elif sizes is not None or site.has(3):
        table = {"sizes": np.asarray([site.shape(0)[axis], site.out[axis]], np.int64)}
        node.input.extend(["x", "", "", "sizes"])
    else:
        raise site.refusal("has scales that are computed in the graph")
    floats = [helper.make_tensor_value_info(name, 1, [None, None]) for name in ("x", "y")]
    constants = [numpy_helper.from_array(value, name) for name, value in table.items()]
    graph = helper.make_graph([node], "axis", floats[:1], floats[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", site.opset)], ir_version=8)


RESIZE: dict[str, Rule] = {"Resize": _resize}
