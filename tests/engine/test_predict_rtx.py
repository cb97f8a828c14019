# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Predicted layers of TensorRT for RTX: where it cuts, and how far that is from what its compiler built."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool import insert, predicted_layers, show_engine
from qdqtool.engine.predict import PredictedLayer, predict_layers
from qdqtool.engine.predict_rtx import predict_rtx_layers
from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.verbs.insert_options import InsertOptions
from tests.graphs import SMALL_NET, model_of
from tests.rtx.measure import EVIDENCE
from tests.rtx.minimal_graphs import all_models, quantized

RECORD: dict[str, Any] = json.loads(EVIDENCE.read_text(encoding="utf-8"))["graphs"]
CONV = "i = pair(x) c1 = Conv3(i, w1)"
# Nodes of each layer, Q/DQ nodes left out; "q" for a kernel that only rounds.
CUTS = {
    "a product and what rounds it": (f"{CONV} r = Relu(c1) q = pair(r) z = Conv3(q, w2)", ["q", "c1", "r", "z"]),
    "all between two products": (f"{CONV} r = Sigmoid(c1) m = Mul(c1, r) t = Transpose<perm=[0,1,3,2]>(m) q = pair(t) z = Conv3(q, w2)", ["q", "c1", "r m t", "z"]),
    "a skip that is read by the last of the block": (f"{CONV} q = pair(c1) c2 = Conv3(q, w2) a = Add(c2, q) b = pair(a) z = Conv3(b, w3)", ["q", "c1", "q", "c2", "a", "z"]),
    "the rounding of a skip that only the Add reads": (f"{CONV} c2 = Conv3(i, w2) s = pair(c1) a = Add(c2, s) b = pair(a) z = Conv3(b, w3)", ["q", "c1", "c2", "a", "z"]),
    "a pool is a layer": (f"{CONV} q = pair(c1) m = MaxPool<kernel_shape=[2,2],strides=[2,2]>(q) z = Conv3(m, w2)", ["q", "c1", "q", "m", "z"]),
    "a view is none": (f"{CONV} r = Relu(c1) z = Reshape(r, to)", ["q", "c1", "r z"]),
    "two kernels at one depth": (f"{CONV} c2 = Conv3(i, w2) r = Relu(c1) v = Relu(c2) q = pair(r) p = pair(v) c3 = Conv3(q, w3) y = Conv3(p, w4) z = Add(c3, y)", ["q", "c1", "c2", "r", "v", "c3", "y", "z"]),
    "a product of floats keeps its activation": ("c1 = Conv3(x, f1) r = Relu(c1) z = Conv3(r, f2)", ["c1 r", "z"]),
    "products of floats write into a Concat": ("c1 = Conv3(x, f1) c2 = Conv3(x, f2) k = Concat<axis=1>(c1, c2) z = Conv(k, f3)", ["c1", "c2", "z"]),
    "rounded values are joined by a kernel": (f"{CONV} c2 = Conv3(i, w2) k = Concat<axis=1>(c1, c2) q = pair(k) z = Conv(q, wk)", ["q", "c1", "c2", "k", "z"]),
}  # fmt: skip
MORE = "float[32,32,3,3] f1, float[32,32,3,3] f2, float[32,64,1,1] f3, float[32,64,1,1] wk, int64[2] to = {1,-1}"


def layers_of(model: onnx.ModelProto) -> tuple[PredictedLayer, ...]:
    return predict_rtx_layers(GraphView(model.graph))


@functools.cache
def layers_of_minimal_graphs() -> dict[str, tuple[PredictedLayer, ...]]:
    return {name: layers_of(model) for name, model in all_models().items()}


def told(layer: PredictedLayer) -> str:
    return " ".join(name for name in layer.nodes if not name.endswith(("_Q", "_DQ")) and name not in "iqpsb") or "q"


@pytest.mark.parametrize("name", CUTS)
def test_where_layers_are_cut(name: str) -> None:
    body, wanted = CUTS[name]
    found = [told(layer) for layer in layers_of(quantized(body, MORE))]
    assert sorted(found) == sorted(wanted)


def test_types_of_a_product_and_of_the_kernel_behind_it() -> None:
    body, _ = CUTS["a product and what rounds it"]
    product, kernel = (one for one in layers_of(quantized(body, MORE)) if one.name in ("c1", "r"))
    assert (product.kind, product.compute, product.input, product.output) == ("convolution", "int8", "int8", "float")
    assert (kernel.kind, kernel.compute, kernel.input, kernel.output) == ("kernel", "float", "float", "int8")
    assert [port.tensor for port in (*product.inputs, *product.outputs)] == ["x", "c1"]
    assert [(port.tensor, port.precision) for port in kernel.outputs] == [("r", "int8")]


def test_every_node_stands_in_a_layer_and_in_one_kernel_at_most() -> None:
    for name, model in all_models().items():
        found = layers_of_minimal_graphs()[name]
        kernels = [node for layer in found if layer.kind not in ("convolution", "product") for node in layer.nodes]
        assert len(kernels) == len(set(kernels)), name
        products = {
            node.name for node in model.graph.node if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")
        }
        assert products <= {layer.name for layer in found}, name


def test_the_minimal_graphs_have_the_layers_that_were_built_but_for_their_outputs() -> None:
    """What INT8 products give out at the end is scaled and brought to the format of an output by a kernel each."""
    missing = {name: RECORD[name]["89"]["layers"] - len(found) for name, found in layers_of_minimal_graphs().items()}
    assert min(missing.values()) >= 0
    assert sum(count <= 2 for count in missing.values()) >= 0.9 * len(missing)


def test_the_verb_predicts_for_rtx_and_takes_no_version_there() -> None:
    model = quantized(CUTS["a product and what rounds it"][0], MORE)
    assert len(predicted_layers(model, target="rtx").layers) == 4 != len(predicted_layers(model).layers)
    with pytest.raises(QdqError, match=r"--trt-version: .* RTX "):
        predicted_layers(model, "10.3", target="rtx")


@pytest.mark.rtx
@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "built", "apart"),
    [
        ("yolox_nano_coco", 215, 0),
        ("cifar_resnet20_bn", 42, 0),
        ("mlperf_resnet8_fp32", 21, 0),
        ("squeezenet11_fp32", 49, 0),
        ("fastestdet_coco", 138, 2),
        ("nanodet_m_320_coco", 153, 10),
    ],
)
def test_trained_models_have_nearly_the_layers_that_were_predicted(
    name: str, built: int, apart: int, shared: Path
) -> None:
    model = onnx.load(shared / "corpus" / "models" / f"{name}.onnx")
    heads = "none" if name.startswith("yolox") else "regression"
    made = insert(model, options=InsertOptions(plan=PlanOptions("rtx", float_heads=heads))).model  # type: ignore[arg-type]
    shown = show_engine(made)
    assert shown.totals.layers == built and shown.predicted is not None and shown.comparison is not None
    assert abs(len(shown.predicted.layers) - built) <= apart
    assert shown.comparison.right >= 0.8 * built and "float" not in shown.comparison.counts()


BESIDE = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,3,3] w, float[4,4,3,3] v, float s = {0.1}, int8 z = {0}> {
 xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wq = QuantizeLinear(w, s, z) wd = DequantizeLinear(wq, s, z)
 a = Conv<pads=[1,1,1,1]>(xd, wd) a2 = Relu(a) ah = Cast<to=10>(a2) vh = Cast<to=10>(v)
 b = Conv<pads=[1,1,1,1]>(ah, vh) b2 = Relu(b) bf = Cast<to=1>(b2)
 bq = QuantizeLinear(bf, s, z) bd = DequantizeLinear(bq, s, z) c = Conv<pads=[1,1,1,1]>(bd, wd) y = Sigmoid(c) }"""


@pytest.mark.rtx
def test_casts_run_in_the_kernels_beside_them_as_the_forecast_counts_them() -> None:
    """What FP16 reads is written as FP16, and what a pair reads of FP16 is read so: no tensor has two types."""
    model = model_of(BESIDE, 21, 10)
    built = {layer.name: layer for layer in show_engine(model).info.layers}
    types = [({one.type for one in layer.inputs}, {one.type for one in layer.outputs}) for layer in built.values()]
    assert types.count(({"FP32"}, {"FP16"})) == 1 and types.count(({"FP16"}, {"INT8"})) == 1
    assert types.count(({"FP16"}, {"FP16"})) == 1, "the product alone"
    ends = predicted_layers(model, target="rtx").ends
    assert [ends.count(one) for one in (("FP32", "FP16"), ("FP16", "INT8"), ("FP16", "FP16"))] == [1, 1, 1]


def test_a_clip_to_fewer_codes_is_no_layer_of_its_own() -> None:
    plain = insert(model_of(SMALL_NET)).model
    clipped = onnx.ModelProto.FromString(plain.SerializeToString())
    graph = clipped.graph
    ends = [onnx.numpy_helper.from_array(np.int8(code), name) for code, name in ((-127, "low"), (127, "high"))]
    graph.initializer.extend(ends)
    makers = {node.output[0]: node for node in graph.node if node.op_type == "QuantizeLinear"}
    for node in [one for one in graph.node if one.op_type == "DequantizeLinear"]:
        cut = onnx.helper.make_node("Clip", [node.input[0], "low", "high"], [f"{node.input[0]}_cut"])
        graph.node.insert([*graph.node].index(makers[node.input[0]]) + 1, cut)
        node.input[0] = cut.output[0]
    for layers in (layers_of, lambda model: predict_layers(GraphView(model.graph))):
        found = [
            [(one.kind, one.compute, one.inputs, one.outputs) for one in layers(model)] for model in (plain, clipped)
        ]
        assert found[0] == found[1]
