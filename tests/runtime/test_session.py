# SPDX-License-Identifier: Apache-2.0
"""What of a model a session is made from."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from qdqtool.graph.view import GraphView
from qdqtool.runtime.session import skeleton


def test_stated_shapes_are_kept_of_pool_gradients_alone() -> None:
    """Their kernels in onnxruntime-training read them, and crash without; other tensors' may be wrong in a file."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("AveragePoolGrad", ["r"], ["g"], domain="com.microsoft", kernel_shape=[2, 2]),
    ]
    stated = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 4, 4]) for name in ("r", "g")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])]
    model = helper.make_model(helper.make_graph(nodes, "net", inputs, [onnx.ValueInfoProto(name="g")]))
    model.graph.value_info.extend(stated)
    made, _ = skeleton(model, model.graph.node, GraphView(model.graph), None)
    assert list(made.graph.value_info) == stated[1:]
