# SPDX-License-Identifier: Apache-2.0
"""The bias of a convolution moves after the Transpose of its sums, and back to the same bytes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from qdqtool import insert, peel
from qdqtool.match.plan import PlanOptions
from qdqtool.verbs.insert_options import InsertOptions
from qdqtool.verbs.peel import PeelOptions
from tests.graphs import model_of

NET = """net (float[n,3,8,8] x) => (float[n,8,8,4] y)
    <float[16,3,3,3] w, float[16] b, float[16] g, float[16] o, float[16,4] k> {
    c = Conv<pads=[1,1,1,1]>(x, w, b) m = Transpose<perm=[0,2,3,1]>(c)
    l = LayerNormalization(m, g, o) y = MatMul(l, k) }"""


@pytest.fixture(scope="module")
def plain() -> onnx.ModelProto:
    model = model_of(NET)
    generator = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        value = generator.normal(size=tuple(tensor.dims)).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    return model


@pytest.fixture(scope="module")
def data() -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(1)
    return [{"x": generator.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]


def inserted(
    plain: onnx.ModelProto, data: list[dict[str, np.ndarray]], target: str, rest: str = "fp32"
) -> onnx.ModelProto:
    options = InsertOptions(plan=PlanOptions(target), rest=rest, keep_float=0)  # type: ignore[arg-type]
    result = insert(plain, data=data, options=options)
    assert any("after a Transpose" in note for note in result.notes) == (target == "rtx")
    return result.model


def run(model: onnx.ModelProto, data: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return [session.run(None, one)[0] for one in data]


def test_the_function_stays_and_tensors_keep_their_names(
    plain: onnx.ModelProto, data: list[dict[str, np.ndarray]]
) -> None:
    for_gpu, for_rtx = (inserted(plain, data, target) for target in ("gpu", "rtx"))
    nodes = {node.output[0]: node for node in for_rtx.graph.node}
    assert list(nodes["c"].input) == ["x_DQ", "w_DQ"] and list(nodes["m"].input) == ["m_sums", "b"]
    assert nodes["m"].op_type == "Add" and nodes["l"].input[0] == "m"
    for one, other in zip(run(for_gpu, data), run(for_rtx, data), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_peel_gives_the_plain_model_back(plain: onnx.ModelProto, data: list[dict[str, np.ndarray]]) -> None:
    model = inserted(plain, data, "rtx")
    result = peel(model, PeelOptions(target="gpu", trt_version="8502"))
    assert result.model.SerializeToString() == plain.SerializeToString()


def test_in_a_typed_file_sums_and_bias_are_fp32(plain: onnx.ModelProto, data: list[dict[str, np.ndarray]]) -> None:
    for_rtx = inserted(plain, data, "rtx", "bf16")
    nodes = {node.output[0]: node for node in for_rtx.graph.node}
    (cast,) = [node for node in nodes.values() if "m" in node.input]
    assert (cast.op_type, cast.attribute[0].i) == ("Cast", TensorProto.BFLOAT16)
    assert nodes["m"].input[0] == "m_sums" and nodes["m_sums"].input[0] == "c"
    (bias,) = [tensor for tensor in for_rtx.graph.initializer if tensor.name == "b"]
    assert bias.data_type == TensorProto.FLOAT
    typed = (inserted(plain, data, target, "bf16") for target in ("rtx", "gpu"))
    back, before = (peel(model, PeelOptions(target="gpu", trt_version="8502")).model for model in typed)
    assert back.graph == before.graph


def test_a_second_insert_moves_nothing_again(plain: onnx.ModelProto, data: list[dict[str, np.ndarray]]) -> None:
    once = inserted(plain, data, "rtx")
    options = InsertOptions(plan=PlanOptions("rtx"), requantize=True, keep_float=0)
    twice = insert(once, data=data, options=options).model
    assert [node.op_type for node in twice.graph.node] == [node.op_type for node in once.graph.node]


def test_node_names_stay_unique_where_nodes_are_named_like_what_they_make(
    plain: onnx.ModelProto, data: list[dict[str, np.ndarray]]
) -> None:
    named = onnx.ModelProto()
    named.CopyFrom(plain)
    for node in named.graph.node:
        node.name = node.output[0]
    names = [node.name for node in inserted(named, data, "rtx").graph.node]
    assert len(set(names)) == len(names)
