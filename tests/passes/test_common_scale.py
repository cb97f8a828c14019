# SPDX-License-Identifier: Apache-2.0
"""One scale for all channels of a weight: the same INT8 numbers, the same function, and the way back."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from qdqtool import insert, peel
from qdqtool.engine.cost import forecast
from qdqtool.engine.predict import predict_layers
from qdqtool.engine.predict_rtx import predict_rtx_layers
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.common_scale import place_common_scales, restore_scales
from qdqtool.passes.rewrites import without_rewrites
from qdqtool.rulebook import load_rules
from qdqtool.verbs.insert_options import InsertOptions
from qdqtool.verbs.peel_options import PeelOptions
from tests.graphs import model_of

NET = """net (float[n,3,8,8] x) => (float[n,6] y)
    <float[16,3,3,3] w, float[16] b, float[16,1,3,3] v, float[16] d, float[16] g, float[16] o, float[16,8] k,
     float[8] l,
     float[8,6] u, int64[1] axes = {1}> {
    c = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(c) e = Conv<pads=[1,1,1,1],group=16>(r, v, d)
    m = Transpose<perm=[0,2,3,1]>(e) a = LayerNormalization(m, g, o) f = ReduceMean<axes=[1,2],keepdims=0>(a)
    p = Gemm(f, k, l) q = Relu(p) y = MatMul(q, u) }"""
Data = list[dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def plain() -> onnx.ModelProto:
    model, generator = model_of(NET), np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            value = generator.normal(size=tuple(tensor.dims)) * np.exp(
                generator.normal(size=(tensor.dims[0],) + (1,) * (len(tensor.dims) - 1))
            )
            tensor.CopyFrom(numpy_helper.from_array(value.astype(np.float32), tensor.name))
    return model


@pytest.fixture(scope="module")
def data() -> Data:
    generator = np.random.default_rng(1)
    return [{"x": generator.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]


def inserted(plain: onnx.ModelProto, data: Data, rest: str = "fp32", *, dq_only: bool = False) -> onnx.ModelProto:
    options = InsertOptions(plan=PlanOptions("rtx", float_heads="none"), rest=rest, keep_float=0, dq_only=dq_only)  # type: ignore[arg-type]
    return insert(plain, data=data, options=options).model


def values(model: onnx.ModelProto, data: Data, names: list[str]) -> list[np.ndarray]:
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    del asked.graph.output[:]
    asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(asked.SerializeToString(), options)
    return [value for one in data for value in session.run(names, one)]


def common(model: onnx.ModelProto) -> onnx.ModelProto:
    edited = onnx.ModelProto()
    edited.CopyFrom(model)
    assert place_common_scales(GraphView(edited.graph), load_rules("rtx")) == 3
    return edited


def codes_of(model: onnx.ModelProto) -> dict[str, str]:
    """Weight -> what its QuantizeLinear makes."""
    makers = {node.output[0]: node for node in model.graph.node}
    found = {}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            source = makers.get(node.input[0])
            name = source.input[0] if source is not None and source.op_type == "Div" else node.input[0]
            found[name] = node.output[0]
    return found


def test_the_int8_numbers_are_the_same_bit_for_bit(plain: onnx.ModelProto, data: Data) -> None:
    before = inserted(plain, data)
    after, weights = common(before), ["w", "v", "k"]
    for one, other in zip(
        values(before, data[:1], [codes_of(before)[name] for name in weights]),
        values(after, data[:1], [codes_of(after)[name] for name in weights]),
        strict=True,
    ):
        assert one.dtype == np.int8 and np.array_equal(one, other)


def test_the_function_stays_and_what_is_behind_keeps_its_names(plain: onnx.ModelProto, data: Data) -> None:
    before = inserted(plain, data)
    after = common(before)
    for one, other in zip(values(before, data, ["c", "p", "y"]), values(after, data, ["c", "p", "y"]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    scales = [node.input[1] for node in after.graph.node if node.op_type == "DequantizeLinear"]
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in after.graph.initializer}
    shared = [held[name] for name in scales if name.endswith("_common_scale")]
    assert len(shared) == 3 and all(np.frexp(scale)[0] == 0.5 for scale in shared)


@pytest.mark.parametrize("dq_only", [False, True])
def test_the_way_back_gives_the_graph_back(plain: onnx.ModelProto, data: Data, dq_only: bool) -> None:
    before = inserted(plain, data, dq_only=dq_only)
    edited = common(before)
    assert restore_scales(GraphView(edited.graph)) == 3 and restore_scales(GraphView(edited.graph)) == 0
    names = [node.output[0] for node in before.graph.node]
    assert [node.output[0] for node in edited.graph.node] == names
    for one, other in zip(values(before, data, ["c", "p", "y"]), values(edited, data, ["c", "p", "y"]), strict=True):
        assert one.tobytes() == other.tobytes()


def test_a_file_with_an_fp16_rest_has_them_and_no_product_in_fp32(plain: onnx.ModelProto, data: Data) -> None:
    typed = inserted(plain, data, "fp16")
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in onnx.shape_inference.infer_shapes(typed).graph.value_info
    }
    made = {node.output[0]: node for node in typed.graph.node}
    assert {name: types[name] for name in ("c_product", "p_product")} == dict.fromkeys(
        ("c_product", "p_product"), onnx.TensorProto.FLOAT16
    )
    assert made["m"].op_type == "Add" and made[made["m"].input[0]].op_type == "Mul"  # after the Transpose
    assert not any(node.op_type == "Div" for node in inserted(plain, data, "bf16").graph.node)
    assert not any(node.op_type == "Div" for node in inserted(plain, data).graph.node)


@pytest.mark.parametrize("dq_only", [False, True])
def test_peel_of_a_typed_file_gives_the_same_scales_as_of_one_in_fp32(
    plain: onnx.ModelProto, data: Data, dq_only: bool
) -> None:
    options = PeelOptions(target="gpu", trt_version="8502")
    typed, wide = (peel(inserted(plain, data, rest, dq_only=dq_only), options) for rest in ("fp16", "fp32"))
    assert typed.cache == wide.cache
    assert not any(node.op_type in ("QuantizeLinear", "DequantizeLinear", "Div") for node in typed.model.graph.node)
    float_run, plain_run = (values(one, data, ["y"]) for one in (typed.model, plain))
    assert all(
        np.abs(a - b).max() < (0.2 if dq_only else 0.02) * np.abs(b).max()
        for a, b in zip(float_run, plain_run, strict=True)
    )


def test_node_names_stay_unique_where_nodes_are_named_like_what_they_make(plain: onnx.ModelProto, data: Data) -> None:
    named = onnx.ModelProto()
    named.CopyFrom(plain)
    for node in named.graph.node:
        node.name = node.output[0]
    names = [node.name for node in common(inserted(named, data)).graph.node]
    assert len(set(names)) == len(names)


def test_a_forecast_by_the_rules_of_tensorrt_is_that_of_the_graph_before(plain: onnx.ModelProto, data: Data) -> None:
    before = inserted(plain, data)
    after, model = without_rewrites(Model(common(before))).view, Model(before)
    layers = [predict_layers(one) for one in (after, without_rewrites(model).view)]
    assert [layer.nodes for layer in layers[0]] == [layer.nodes for layer in layers[1]]
    assert forecast(after, layers[0]).bytes_moved == forecast(model.view, layers[1]).bytes_moved


def test_what_divides_a_weight_is_no_layer_of_tensorrt_for_rtx(plain: onnx.ModelProto, data: Data) -> None:
    before = inserted(plain, data)
    layers = [predict_rtx_layers(GraphView(model.graph)) for model in (before, common(before))]
    assert len(layers[0]) == len(layers[1])
