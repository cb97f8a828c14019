# SPDX-License-Identifier: Apache-2.0
"""A detector with rows at its end, as DeepStream-Yolo exports YOLOX: corners, best score, its class. No tests here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdqtool.evaluation.decode.grids import STRIDES, all_cells
from tests.detector_model import BOXES, CELLS, CLASSES, SIDE, write_detector

COLUMNS = 6


def write_rows_detector(path: Path, batch: int | str = "n", pick: int = 0) -> Path:
    """The detector of `detector_model` with rows (batch, CELLS, 6) for its output; or the `pick` best of them."""
    write_detector(path, BOXES, batch)
    model = onnx.load(path)
    append_rows(model, (SIDE, SIDE), CELLS, CLASSES, pick)
    path.write_bytes(model.SerializeToString())
    onnx.checker.check_model(str(path))
    return path


def append_rows(model: onnx.ModelProto, size: tuple[int, int], cells: int, classes: int, pick: int = 0) -> None:
    """Decode YOLOX's raw output in the graph and make rows of it; with `pick` a TopK keeps the best."""
    graph = model.graph
    grid, stride = all_cells(size, STRIDES)
    corners = [[1, 0, 1, 0], [0, 1, 0, 1], [-0.5, 0, 0.5, 0], [0, -0.5, 0, 0.5]]
    values: dict[str, np.ndarray] = {
        "grid": grid[None].astype(np.float32),
        "stride": stride[None].astype(np.float32),
        "to_corners": np.array(corners, np.float32),
        "axis": np.array([2]),
        "most": np.array([max(pick, 1)]),
        **{f"at{one}": np.array([one]) for one in (0, 2, 4, 5, 5 + classes)},
    }
    graph.initializer.extend(numpy_helper.from_array(value, f"rows/{name}") for name, value in values.items())
    (raw,) = (value.name for value in graph.output)
    free = graph.output[0].type.tensor_type.shape.dim[0]

    def node(op: str, inputs: str, output: str, **attributes: object) -> None:
        names = [raw if one == "raw" else f"rows/{one}" for one in inputs.split()]
        graph.node.append(helper.make_node(op, names, [f"rows/{one}" for one in output.split()], **attributes))

    for name, first, last in (("xy", 0, 2), ("wh", 2, 4), ("object", 4, 5), ("classes", 5, 5 + classes)):
        node("Slice", f"raw at{first} at{last} axis", name)
    node("Add", "xy grid", "shifted")
    node("Mul", "shifted stride", "centers")
    node("Exp", "wh", "powers")
    node("Mul", "powers stride", "sides")
    node("Concat", "centers sides", "box", axis=2)
    node("MatMul", "box to_corners", "corners")
    node("ReduceMax", "classes", "best", axes=[2], keepdims=1)
    node("Mul", "best object", "score")
    node("ArgMax", "classes", "number", axis=2, keepdims=1)
    node("Cast", "number", "label", to=TensorProto.FLOAT)
    node("Concat", "corners score label", "all", axis=2)
    if pick:
        node("Squeeze", "score axis", "flat")
        node("TopK", "flat most", "top places")
        node("Unsqueeze", "places axis", "column")
        for part, columns in (("corners", 4), ("score", 1), ("label", 1)):
            node("Concat", " ".join(["column"] * columns), f"where_{part}", axis=2) if columns > 1 else None
            node("GatherElements", f"{part} {'where_corners' if columns > 1 else 'column'}", f"kept_{part}", axis=1)
        node("Concat", "kept_corners kept_score kept_label", "rows", axis=2)
    del graph.output[:]
    rows = helper.make_tensor_value_info(
        "rows/rows" if pick else "rows/all", TensorProto.FLOAT, [1, pick or cells, COLUMNS]
    )
    rows.type.tensor_type.shape.dim[0].CopyFrom(free)
    graph.output.append(rows)
