# SPDX-License-Identifier: Apache-2.0
"""Verbs of the editor that folding needs: another maker of a tensor, another value of a weight, one input more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from qdqtool.graph.edit import Editor
from qdqtool.graph.view import GraphView

TEXT = """<ir_version: 8, opset_import: ["": 17]>
    g (float[4] X, float[4] w) => (float[4] OUT) <float[4] w = {1, 2, 3, 4}, float[4] other = {0, 0, 0, 0}, float[4] Y>
    { Y = Add(X, w) Z = Relu(Y) OUT = Neg(Z) }"""


def edited() -> tuple[onnx.ModelProto, GraphView, Editor]:
    proto = parser.parse_model(TEXT)
    view = GraphView(proto.graph)
    return proto, view, Editor(view)


def test_a_node_takes_over_the_tensor_of_a_removed_one() -> None:
    proto, view, editor = edited()
    add, relu = view.nodes[0], view.nodes[1]
    editor.remove_node(relu)
    editor.rename_output(add, 0, "Z")
    assert view.producers["Z"] is add
    assert "Y" not in view.producers
    editor.commit()
    assert [(node.op_type, list(node.output)) for node in proto.graph.node] == [("Add", ["Z"]), ("Neg", ["OUT"])]
    assert GraphView(proto.graph).nodes[1].inputs == ["Z"]


def test_an_initializer_gets_another_value_and_keeps_name_place_and_text() -> None:
    proto, view, editor = edited()
    proto.graph.initializer[0].doc_string = "kept"
    editor.set_initializer("w", np.array([[5, 6]], np.float64))
    tensor = proto.graph.initializer[0]
    assert (tensor.name, tensor.doc_string, list(tensor.dims)) == ("w", "kept", [1, 2])
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), [[5, 6]])
    np.testing.assert_array_equal(view.array("w"), [[5, 6]])


def test_an_external_initializer_comes_into_the_model() -> None:
    proto, _, editor = edited()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="elsewhere.bin")
    editor.set_initializer("w", np.ones(4, np.float32))
    assert not tensor.external_data
    assert tensor.data_location == onnx.TensorProto.DEFAULT
    np.testing.assert_array_equal(GraphView(proto.graph, Path("nowhere")).array("w"), np.ones(4))


def test_an_input_that_was_left_out_is_filled_in() -> None:
    proto, view, editor = edited()
    relu = view.nodes[1]
    editor.set_input(relu, 2, "other")
    assert list(proto.graph.node[1].input) == relu.inputs == ["Y", "", "other"]
    editor.set_input(relu, 0, "X")
    assert list(proto.graph.node[1].input) == relu.inputs == ["X", "", "other"]


def test_types_and_listed_inputs_are_forgotten_by_name() -> None:
    proto, _, editor = edited()
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("Z", 1, [4]))
    kinds = [value.name for value in proto.graph.value_info]
    assert "Z" in kinds
    editor.drop_value_info(["Z", "no such"])
    assert [value.name for value in proto.graph.value_info] == [name for name in kinds if name != "Z"]
    editor.drop_inputs(["w"])
    assert [value.name for value in proto.graph.input] == ["X"]
