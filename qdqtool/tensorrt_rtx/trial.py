# SPDX-License-Identifier: Apache-2.0
"""A build of a small model, to see that an installation works. No result of an earlier build is taken for it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from qdqtool.formats import INT8
from qdqtool.graph.model import Model
from qdqtool.tensorrt_rtx.build import BuiltEngine, RtxBuildOptions, build_opened
from qdqtool.tensorrt_rtx.installed import RtxLibrary, require_library


def try_library() -> dict[str, object]:
    """Build with the installation that is used, as doctor asks for it in a process of its own.

    Raises:
        QdqError: there is none, or it builds no engine.
    """
    return {"cpu_seconds": try_build(require_library()).cpu_seconds}


def try_build(library: RtxLibrary) -> BuiltEngine:
    """Build an engine of one matrix product between two pairs.

    Raises:
        QdqError: it is not built.
    """
    import numpy as np
    import onnx

    arrays = {"w": np.ones((16, 16), np.float32), "s": np.float32(0.1), "z": INT8.zero_point()}
    nodes = [
        onnx.helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        onnx.helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        onnx.helper.make_node("QuantizeLinear", ["w", "s", "z"], ["wq"]),
        onnx.helper.make_node("DequantizeLinear", ["wq", "s", "z"], ["wd"]),
        onnx.helper.make_node("MatMul", ["xd", "wd"], ["y"]),
    ]
    kind = onnx.TensorProto.FLOAT
    ends = [onnx.helper.make_tensor_value_info(name, kind, [8, 16]) for name in ("x", "y")]
    weights = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "trial", ends[:1], ends[1:], weights)
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 13)])
    with tempfile.TemporaryDirectory(prefix="qdqtool-rtx-") as folder:
        options = RtxBuildOptions(engine_path=Path(folder) / "trial.engine", seconds=60.0)
        return build_opened(Model(model), options, library)
