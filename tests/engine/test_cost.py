# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The cost forecast: bytes by hand on a small graph, and the order of placements of one network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

from qdqtool import predicted_layers
from qdqtool.engine.cost import Forecast, forecast
from qdqtool.engine.layer_work import LayerWork, Product, layer_work
from qdqtool.engine.predict import predict_layers
from qdqtool.engine.predicted_text import format_products
from qdqtool.engine.read_info import read_layer_info
from qdqtool.graph.view import GraphView
from qdqtool.precision.element_types import infer_types
from qdqtool.rulebook import load_rules
from qdqtool.trtversion import TrtVersion
from tests.graphs import model_of

V8_5, V11 = TrtVersion(8, 5, 1), TrtVersion(11, 0, 0)
SCALES = "float s = {0.1}, int8 z = {0}"
PLAIN = "g (float[1,4,8,8] x) => (float[1,8,8,8] y) <float[8,4,1,1] w, float[8] b> { c = Conv(x, w, b) y = Softmax(c) }"


def cost_of(text: str) -> Forecast:
    view = GraphView(model_of(text).graph)
    return forecast(view, predict_layers(view, V8_5))


def test_bytes_of_a_plain_model() -> None:
    found = cost_of(PLAIN)
    x, c, weights = 4 * 64, 8 * 64, 8 * 4 + 8
    assert found.bytes_moved == 4 * x + 2 * c + 2 * weights + 2 * c + 4 * c, "FP32 at the ends, FP16 between"
    assert (found.layers, found.layers_by_format.get("INT8", 0), found.conversions, found.float_residuals) == (
        2,
        0,
        0,
        0,
    )


SHUFFLED = """g (float[N,4,8,8] x) => (float[N,256] y) <float[4,4,1,1] w, int64[1] zero = {0}, int64[1] rest = {-1}>
{ c = Conv(x, w) s = Shape(c) n = Gather<axis=0>(s, zero) t = Concat<axis=0>(n, rest) r = Reshape(c, t) y = Relu(r) }"""


def test_sizes_that_the_graph_computes_are_followed() -> None:
    """`x.view(x.size(0), -1)`, with a batch that is free: one sample."""
    assert cost_of(SHUFFLED).bytes_moved == cost_of(SHUFFLED.replace("N,", "1,")).bytes_moved is not None
    assert work_of_layers(SHUFFLED) is not None
    sides = SHUFFLED.replace("N,4,8,8", "N,4,H,8").replace("float[N,256]", "float[N,M]")
    assert cost_of(sides).bytes_moved is None, "a side that is free has no size"


QUANTIZED = "g (float[1,4,8,8] x) => (float[1,8,8,8] y) <float[8,4,1,1] w, {}> {{ xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wq = QuantizeLinear(w, s, z) wd = DequantizeLinear(wq, s, z) c = Conv(xd, wd) y = Softmax(c) }}"


def test_bytes_of_an_int8_layer() -> None:
    found = cost_of(QUANTIZED.format(SCALES))
    x, c, weights = 4 * 64, 8 * 64, 8 * 4
    quantize = 4 * x + x * 1  # reads the FP32 input, writes it as INT8
    assert found.bytes_moved is not None
    # the INT8 values of an input of the network are one byte each, whatever the input itself is
    assert found.bytes_moved == quantize + (x + 2 * c + weights) + (2 * c + 4 * c)
    assert (found.layers_by_format.get("INT8", 0), found.conversions) == (1, 1)


def work_of_layers(text: str) -> list[LayerWork]:
    view = GraphView(model_of(text).graph)
    return layer_work(view, predict_layers(view, V8_5), load_rules("gpu_layers", V8_5))


def test_the_work_of_each_layer_sums_up_to_the_forecast() -> None:
    x, c, weights = 4 * 64, 8 * 64, 8 * 4
    plain, quantized = work_of_layers(PLAIN), work_of_layers(QUANTIZED.format(SCALES))
    assert [(one.products, one.unit, one.activations, one.weights) for one in plain] == [
        ((Product(1, 64, 8, 4),), "half", (4 * x, 2 * c), 2 * (weights + 8)),
        ((), "half", (2 * c, 4 * c), 0),
    ]
    assert [(one.macs, one.unit) for one in quantized] == [
        (0, "half"),
        (64 * 32, "int8"),
        (0, "half"),
    ]
    assert sum(one.moved for one in quantized) == cost_of(QUANTIZED.format(SCALES)).bytes_moved
    free = work_of_layers(PLAIN.replace("float[1,4,8,8] x", "float[1,4,H,8] x"))
    assert [(one.sized, one.macs) for one in free] == [(False, 0), (False, 0)]


def test_unknown_shapes_are_said_to_be_unknown() -> None:
    assert cost_of(PLAIN.replace("float[1,4,8,8] x", "float[N,4,8,8] x")) == cost_of(PLAIN), "one sample"
    found = cost_of(PLAIN.replace("float[1,4,8,8] x", "float[1,4,H,8] x"))
    assert found.bytes_moved is None and found.cost() > cost_of(PLAIN).cost()


def test_the_cheaper_placement_comes_first() -> None:
    assert Forecast(3, 1, 1, 0, 100).cost() < Forecast(2, 1, 1, 0, 101).cost()
    assert Forecast(2, 1, 1, 0, 100).cost() < Forecast(3, 1, 1, 0, 100).cost()


RESIDUAL = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w, {}> {{ xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wq = QuantizeLinear(w, s, z) wd = DequantizeLinear(wq, s, z) c = Conv(xd, wd) a = Add(c, {}) aq = QuantizeLinear(a, s, z) ad = DequantizeLinear(aq, s, z) y = Conv(ad, wd) }}"


def test_residuals_in_float_are_counted() -> None:
    in_float, in_int8 = cost_of(RESIDUAL.format(SCALES, "x")), cost_of(RESIDUAL.format(SCALES, "xd"))
    assert (in_float.float_residuals, in_int8.float_residuals) == (1, 0)
    assert in_int8.cost() < in_float.cost() and in_int8.layers < in_float.layers


@pytest.mark.shared
def test_the_three_placements_of_resnet18_are_told_apart_as_the_engines_are(shared: Path) -> None:
    from tests.engine.engine_graphs import rebuilt

    modes = ("qat", "qat-residual", "qat-residual-qgap")
    costs, real = {}, {}
    for mode in modes:
        view = GraphView(rebuilt(shared, "resnet18", mode, 0.25).graph)
        costs[mode] = forecast(view, predict_layers(view, V8_5))
        real[mode] = len(read_layer_info(shared / "trt" / "engines" / "resnet18" / f"{mode}.graph.json").layers)
    assert sorted(modes, key=lambda mode: costs[mode].cost()) == sorted(modes, key=lambda mode: real[mode])
    assert [costs[mode].float_residuals for mode in modes] == [8, 1, 0]
    assert [costs[mode].conversions for mode in modes] == [10, 3, 1]
    moved = [costs[mode].bytes_moved or 0 for mode in modes]
    assert moved[0] > 1.8 * moved[1] and moved[1] > moved[2]


def typed_model(text: str) -> onnx.ModelProto:
    """A model whose weight `v`, where it has one, is in FP16."""
    model = model_of(text, 21, 10)
    for tensor in model.graph.initializer:
        if tensor.name == "v":
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float16), "v"))
    return model


def typed_cost(text: str) -> Forecast:
    model = typed_model(text)
    types = infer_types(model).types
    view = GraphView(model.graph)
    return forecast(view, predict_layers(view, V11, "gpu", types), types)


def test_an_fp32_file_is_fp32_in_a_strongly_typed_engine() -> None:
    found = typed_cost(PLAIN)
    x, c, weights = 4 * 64, 8 * 64, 8 * 4 + 8
    assert found.bytes_moved == 4 * (x + c + weights + c + c)
    assert dict(found.bytes_by_type) == {"FP32": found.bytes_moved}
    assert dict(found.macs_by_type) == {"FP32": c * 4}


def test_where_the_builder_chooses_there_are_no_types() -> None:
    found = cost_of(PLAIN)
    assert (found.bytes_by_type, found.macs_by_type) == ({}, {})


TYPED = """g (float16[1,4,8,8] x) => (float16[1,8,8,8] y) <float[8,4,1,1] w, float s = {0.1}, int8 z = {0}> {
 a = Cast<to=1>(x) xq = QuantizeLinear(a, s, z) d = DequantizeLinear(xq, s, z) xd = Cast<to=10>(d)
 wq = QuantizeLinear(w, s, z) e = DequantizeLinear(wq, s, z) wd = Cast<to=10>(e) c = Conv(xd, wd) y = Softmax(c) }"""


def test_casts_around_a_pair_are_seen_through_and_its_product_is_int8() -> None:
    found = typed_cost(TYPED)
    x, c, weights = 4 * 64, 8 * 64, 8 * 4
    assert (found.layers, found.layers_by_format.get("INT8", 0), found.conversions) == (3, 1, 1)
    assert dict(found.bytes_by_type) == {"FP16": 2 * (x + c + c + c), "INT8": x + x + weights}
    assert dict(found.macs_by_type) == {"INT8": c * 4}


def test_products_are_counted_where_their_shapes_are_not_known_and_shares_are_of_all_or_none() -> None:
    """A share of three heads alone said 100 % FP16 of a network whose other 70 convolutions are INT8."""
    found = typed_cost(TYPED)
    assert dict(found.products_by_type) == {"INT8": 1} and found.macs_by_type
    open_side = TYPED.replace("[1,4,8,8]", "[1,4,H,8]").replace("[1,8,8,8]", "[1,8,H,8]")
    lacking = typed_cost(open_side)
    assert dict(lacking.products_by_type) == {"INT8": 1} and not lacking.macs_by_type and lacking.bytes_moved is None
    assert format_products(found.products_by_type).endswith(": 1 in INT8, 0 in FP16, 0 in FP32")
    assert format_products({}) == ""


def test_a_cast_that_the_network_gives_out_stays() -> None:
    text = "g (float16[1,4,8,8] x) => (float[1,4,8,8] y) { r = Relu(x) y = Cast<to=1>(r) }"
    found = typed_cost(text)
    assert dict(found.bytes_by_type) == {"FP16": 2 * 3 * 256, "FP32": 4 * 256}


BETWEEN = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w, float[4,4,1,1] v, float s = {0.1}, int8 z = {0}> {
 xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wq = QuantizeLinear(w, s, z) wd = DequantizeLinear(wq, s, z)
 a = Conv(xd, wd) a2 = Relu(a) ah = Cast<to=10>(a2) b = Conv(ah, v) b2 = Relu(b) bf = Cast<to=1>(b2)
 bq = QuantizeLinear(bf, s, z) bd = DequantizeLinear(bq, s, z) c = Conv(bd, wd) y = Softmax(c) }"""


def typed_layers(text: str) -> list[tuple[str, str]]:
    return list(predicted_layers(typed_model(text), V11).ends)


def test_an_fp16_operator_between_int8_layers_reads_and_writes_fp16() -> None:
    """The Casts around it run in the layers beside: one tensor is not written as FP32 and read as FP16."""
    assert typed_layers(BETWEEN)[1:4] == [("INT8", "FP16"), ("FP16", "FP16"), ("FP16", "INT8")]
    found, one, weights = predicted_layers(typed_model(BETWEEN), V11).forecast, 4 * 64, 4 * 4
    assert dict(found.bytes_by_type) == {
        "FP32": 4 * (one + one + one + one),  # x; what the last product gives to Softmax; y
        "FP16": 2 * (one + one + one + one + weights),
        "INT8": one + one + one + one + 2 * weights,
    }
    assert dict(found.macs_by_type) == {"INT8": 2 * 64 * 16, "FP16": 64 * 16}


def test_a_tensor_that_is_also_read_in_fp32_is_written_in_fp32() -> None:
    read_twice = BETWEEN.replace("y = Softmax(c)", "c2 = Softmax(c) y = Add(c2, a2)")
    assert typed_layers(read_twice)[1:3] == [("INT8", "FP32"), ("FP32", "FP16")]


def test_what_is_no_layer_hands_on_the_type_that_its_readers_take() -> None:
    """A Reshape in FP32 with a Cast behind it: TensorRT moves no byte for it, and nothing is FP32 in memory."""
    reshaped = BETWEEN.replace("ah = Cast<to=10>(a2)", "a3 = Reshape(a2, k) ah = Cast<to=10>(a3)")
    reshaped = reshaped.replace("float s", "int64[4] k = {1, 4, 8, 8}, float s")
    assert typed_layers(reshaped) == typed_layers(BETWEEN)


def test_a_pair_with_fp16_readers_is_dequantized_to_fp16() -> None:
    text = BETWEEN.replace(
        "ah = Cast<to=10>(a2)", "aq = QuantizeLinear(a2, s, z) ad = DequantizeLinear(aq, s, z) ah = Cast<to=10>(ad)"
    )
    assert typed_layers(text)[1:4] == [("INT8", "INT8"), ("INT8", "FP16"), ("FP16", "FP16")]


def test_the_work_of_the_layers_of_a_typed_file_sums_up_to_its_forecast() -> None:
    """Verbs predict the layers of a typed model by its FP32 form, which has no Casts; its file has the types."""
    found = predicted_layers(typed_model(BETWEEN), V11)
    assert found.work is not None and sum(one.moved for one in found.work) == found.forecast.bytes_moved
    assert found.forecast.bytes_by_type == typed_cost(BETWEEN).bytes_by_type


def test_a_product_before_the_cast_to_an_output_is_found_in_the_file() -> None:
    """In the model in FP32 it makes the output itself, and a node without a name has that one's."""
    text = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] v> { h = Cast<to=10>(x) c = Conv(h, v) y = Cast<to=1>(c) }"
    found = predicted_layers(typed_model(text), V11)
    assert dict(found.forecast.products_by_type) == {"FP16": 1}
    assert found.ends == (("FP32", "FP32"),), "both Casts run in the layer"


@pytest.mark.parametrize("version", [V8_5, V11])
def test_nodes_that_share_a_name_are_counted_apart(version: TrtVersion) -> None:
    """Each layer had the multiply-adds of the last of them, and each product its type."""
    text = "g (float[1,4,8,8] x) => (float[1,2,8,8] y) <float[8,4,1,1] w, float[2,8,1,1] v> { c = Conv(x, w) y = Conv(c, v) }"
    model = model_of(text)
    own = predicted_layers(model, version)
    for node in model.graph.node:
        node.name = "conv"
    shared = predicted_layers(model, version)
    assert shared.work == own.work and shared.forecast == own.forecast
    assert shared.work is not None and [one.macs for one in shared.work] == [64 * 32, 64 * 16]
    assert [layer.nodes for layer in shared.layers] == [("c",), ("y",)]
