# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which tensors are float32, as shape inference finds it without the weights."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtool.graph.model import Model
from qdqtool.graph.types import float_tensors, infer_types, known_types, opset_of, wrong_type
from tests.graphs import model_of

NET = """g (float[N,4,8,8] x, int64[2] where) => (float[N,64] z) <float[4,4,3,3] w, int64[2] shape = {0,-1}, float[1] half = {0.5}> {
 c = Conv<pads=[1,1,1,1]>(x, w) big = Greater(c, half) f = Cast<to=1>(big) h = Cast<to=10>(c) s = Shape(c) k = Constant<value_float = 2.0>() m = Mul(c, k)
 p, places = MaxPool<kernel_shape=[2,2], strides=[2,2]>(m) z = Reshape(p, shape) }"""


def test_inputs_first_then_in_the_order_of_the_nodes() -> None:
    assert float_tensors(Model(model_of(NET))) == ["x", "c", "f", "k", "m", "p", "z"]


def test_booleans_integers_and_half_floats_are_left_out() -> None:
    assert not set(float_tensors(Model(model_of(NET)))) & {"where", "big", "h", "s", "places"}


def test_weights_are_left_out_also_where_they_are_inputs() -> None:
    model = model_of(NET, opset=8)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4, 3, 3]))
    assert "w" not in float_tensors(Model(model)) and "half" not in float_tensors(Model(model))


def test_the_model_is_not_changed_and_value_info_is_not_needed() -> None:
    model = model_of(NET)
    del model.graph.value_info[:]
    before = model.SerializeToString(deterministic=True)
    names = float_tensors(Model(model))
    assert model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(model)
    infer = onnx.shape_inference.infer_shapes(model).graph
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*infer.input, *infer.value_info, *infer.output)}
    assert set(names) == {name for name, kind in kinds.items() if kind == TensorProto.FLOAT}


def test_blocks_of_nvfp4_have_types_and_shapes_where_inference_runs_twice() -> None:
    text = """g (float[2,32] x) => (float[2,32] z) <float s = {1}> {
 q, e = trt.TRT_FP4DynamicQuantize<axis=-1, block_size=16, scale_type=17>(x, s) f = DequantizeLinear(e, s)
 d = DequantizeLinear<axis=-1, block_size=16>(q, f) p = a.Plugin(d) r = Relu(p) z = Identity(r) }"""
    model = onnx.parser.parse_model(f'<ir_version: 11, opset_import: ["" : 23, "trt" : 1, "a" : 1]> {text}')
    model.graph.value_info.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, [2, 32]))
    types = known_types(Model(model))
    assert [types[name] for name in "qefdr"] == [TensorProto.FLOAT4E2M1, TensorProto.FLOAT8E4M3FN, 1, 1, 1]
    shapes = {value.name: len(value.type.tensor_type.shape.dim) for value in infer_types(model, 23).value_info}
    assert shapes["d"] == 2


def test_types_that_the_file_gives_reach_behind_a_plugin() -> None:
    text = "g (float[1,4] x) => (float[1,4] z) { a = Abs(x) b = trt.Clever(a) c = Abs(b) z = Abs(c) }"
    assert float_tensors(Model(model_of(text))) == ["x", "a", "z"]
    reported = model_of(text)
    reported.graph.value_info.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [1, 4]))
    assert float_tensors(Model(reported)) == ["x", "a", "b", "c", "z"]


CHAIN = "g (float[1,4] x) => (float[1,4] z) { a = Abs(x) b = Abs(a) z = Abs(b) }"


@pytest.mark.parametrize("name", ["a", "z"])
def test_a_type_that_the_file_has_wrong_is_not_believed(name: str) -> None:
    model = model_of(CHAIN)
    model.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [1, 4]))
    assert wrong_type(model, known_types(Model(model))) is None
    wrong = next(value for value in (*model.graph.output, *model.graph.value_info) if value.name == name)
    wrong.type.tensor_type.elem_type = TensorProto.UINT8
    assert float_tensors(Model(model)) == ["x", "a", "b", "z"]
    assert wrong_type(model, known_types(Model(model))) == (name, "uint8", "float")


def test_a_declared_type_that_inference_does_not_find_reaches_what_stands_behind() -> None:
    model = model_of("g (float[1,4] x) => (float[1,4] z) { a = trt.Clever(x) b = Abs(a) c = Abs(b) z = Abs(c) }")
    model.graph.value_info.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [1, 4]))
    assert float_tensors(Model(model)) == ["x", "b", "c", "z"]
    assert wrong_type(model, known_types(Model(model))) is None


def test_a_graph_that_inference_refuses_keeps_what_the_file_says() -> None:
    model = model_of("g (float[1,4] x) => (float[1,4] z) <float[3,3] w> { a = MatMul(x, w) z = Abs(a) }")
    assert float_tensors(Model(model))[0] == "x" and "z" in float_tensors(Model(model))


SILENT = sorted(
    {
        (one.name, one.since_version)
        for one in onnx.defs.get_all_schemas_with_history()
        if one.domain == "" and one.since_version >= 7 and not one.has_type_and_shape_inference_function
    }
)


@pytest.mark.parametrize(("op", "opset"), SILENT)
def test_an_operator_without_inference_has_the_type_of_its_schema(op: str, opset: int) -> None:
    inputs = ["x" if "tensor(float)" in one.types else "where" for one in onnx.defs.get_schema(op, opset, "").inputs]
    attributes = "<num_groups=2>" if op == "GroupNormalization" else ""
    text = f"g (float[1,4,8,8] x, bool[4] where) => (y) {{ a = {op}{attributes}({', '.join(inputs)}) y = Identity(a) }}"
    made = TensorProto.BOOL if op.endswith("OrEqual") else TensorProto.FLOAT
    assert known_types(Model(model_of(text, opset)))["y"] == made


BEHIND = {
    "group": ("n = GroupNormalization<num_groups=2>(x, s, s) y = Relu(n)", 21),
    "older opset": ("n = LayerNormalization(x, s) y = Relu(n)", 13),
    "of a body": (
        "y = If(k) <then_branch = t () => (u) { u = GroupNormalization<num_groups=2>(x, s, s) }, else_branch = e () => (v) { v = GroupNormalization<num_groups=2>(x, s, s) }>",
        21,
    ),
    "domain that is not imported": ("h = own.Plugin(x) y = Relu(x)", 17),
}


@pytest.mark.parametrize("name", BEHIND)
def test_types_reach_behind_operators_on_which_inference_is_silent(name: str) -> None:
    body, opset = BEHIND[name]
    model = model_of(f"g (float[1,4,8,8] x, bool k) => (y) <float[4] s> {{ {body} }}", opset)
    before = model.SerializeToString(deterministic=True)
    assert known_types(Model(model))["y"] == TensorProto.FLOAT
    assert model.SerializeToString(deterministic=True) == before


def test_types_reach_behind_a_local_function_with_such_an_operator() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "own" : 1]> g (float[1,4,8,8] x, float[4] s) => (y) {
 a = own.f(x, s) y = Relu(a) }
 <domain: "own", opset_import: ["" : 21]> f (x, s) => (z) { n = GroupNormalization<num_groups=2>(x, s, s) z = Relu(n) }"""
    assert known_types(Model(onnx.parser.parse_model(text)))["y"] == TensorProto.FLOAT


@pytest.mark.parametrize("opset", [1, 6, 7, 11, 17])
def test_elementwise_operators_have_types_at_every_opset(opset: int) -> None:
    more = "<broadcast=1>" if opset < 7 else ""
    model = model_of(
        f"g (float[1,4] x) => (float[1,4] z) <float[4] b> {{ a = Add{more}(x, b) s = Sigmoid(a) z = Mul(a, s) }}", opset
    )
    assert float_tensors(Model(model)) == ["x", "a", "s", "z"]


def test_opset_of_looks_at_the_default_domain_alone() -> None:
    model = model_of(NET, opset=12)
    assert opset_of(model) == 12
    model.opset_import[0].domain = "ai.onnx"
    assert opset_of(model) == 12
    model.opset_import[0].domain = "theirs"
    assert opset_of(model) is None


def test_weights_are_not_read_and_external_data_is_not_looked_for() -> None:
    model = model_of(NET)
    tensor = model.graph.initializer.add(name="far", data_type=TensorProto.FLOAT, dims=[1 << 20])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="nowhere.bin")
    model.graph.node.append(helper.make_node("Abs", ["far"], ["away"]))
    assert "away" in float_tensors(Model(model))
    large = {t.name: t for t in infer_types(big_model(), 17).initializer}["w"]
    assert not large.raw_data and list(large.dims) == [64, 64]


def big_model() -> onnx.ModelProto:
    model = model_of("g (float[1,64] x) => (float[1,64] z) <float[64,64] w> { z = MatMul(x, w) }")
    assert onnx.numpy_helper.to_array(model.graph.initializer[0]).dtype == np.float32
    return model


@pytest.mark.parametrize("error", [ValueError("vector::reserve"), IndexError("map::at"), MemoryError(), RuntimeError()])
def test_whatever_inference_raises_the_file_itself_is_what_is_known(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fail)
    assert {value.name for value in infer_types(model_of(NET), 17).input} == {"x", "where"}


def test_a_vector_of_millions_is_not_read_as_a_shape() -> None:
    """Inference would give the output 2 to the power of 27 axes."""
    model = model_of("g (int64[134217728] s) => (float[N] y) { y = ConstantOfShape(s) }")
    graph = infer_types(model, 17)
    assert len(graph.output[0].type.tensor_type.shape.dim) == 1 and not graph.value_info
