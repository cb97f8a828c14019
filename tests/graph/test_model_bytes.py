# SPDX-License-Identifier: Apache-2.0
"""A model in pieces has the bytes that protobuf makes of the whole."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qdqtool.graph.model_bytes import ModelBytes
from tests.graphs import SMALL_NET, model_of


def full_model() -> onnx.ModelProto:
    """A model with every kind of field around its weights, and weights of many lengths."""
    model = model_of(SMALL_NET)
    graph, draw = model.graph, np.random.default_rng(0)
    for count in (0, 1, 31, 32, 33, 4095, 70_000):
        graph.initializer.append(numpy_helper.from_array(draw.normal(size=count).astype(np.float32), f"w{count}"))
    graph.doc_string = "text"
    graph.value_info.append(helper.make_tensor_value_info("v", onnx.TensorProto.FLOAT, [1, "n"]))
    graph.quantization_annotation.add(tensor_name="v")
    for key in ("a", "b"):
        model.metadata_props.add(key=key, value="1")
    model.producer_name, model.model_version = "p", 3
    model.functions.append(
        helper.make_function("d", "f", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], model.opset_import)
    )
    return model


def test_the_pieces_are_the_bytes_of_the_whole() -> None:
    model = full_model()
    made = ModelBytes.of(model)
    assert made is not None
    data = b"".join(made.pieces())
    assert data == model.SerializeToString(deterministic=True)
    assert made.size == len(data)


def test_an_empty_graph() -> None:
    model = onnx.ModelProto(ir_version=8)
    assert ModelBytes.of(model) is None
    model.graph.SetInParent()
    made = ModelBytes.of(model)
    assert made is not None and b"".join(made.pieces()) == model.SerializeToString()


@pytest.mark.parametrize("inside", [False, True])
def test_unknown_fields_are_left_to_protobuf(inside: bool) -> None:
    unknown = b"\xfa\x3f\x01x"  # field 1023 with one byte
    model = full_model()
    if inside:
        model.graph.MergeFromString(unknown)
    else:
        model.MergeFromString(unknown)
    assert ModelBytes.of(model) is None


def test_unknown_fields_further_inside_are_kept() -> None:
    model = full_model()
    model.graph.node[0].MergeFromString(b"\xfa\x3f\x01x")
    model.graph.initializer[0].MergeFromString(b"\xfa\x3f\x01x")
    made = ModelBytes.of(model)
    assert made is not None and b"".join(made.pieces()) == model.SerializeToString(deterministic=True)
