# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""`insert --format nvfp4`: which products, in which file, what runs, and the way back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

from qdqtool import InsertOptions, LintOptions, PeelOptions, finetune, insert, lint, peel, plan
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.linting.check_formats import formats_in
from qdqtool.match.plan import PlanOptions
from qdqtool.runtime.executor import Executor
from tests.verbs.test_insert_weights import network, samples

pytestmark = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 23), reason="this onnxruntime reads no opset 23"
)

GRAPH = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 8, 64] x) => (float[1, 8, 40] y)
<float[64, 128] w1 = {0}, float[128] b1 = {0}, float[96, 128] w2 = {0}, float[96] b2 = {0}, float[96, 40] w3 = {0}, float[40, 40] w4 = {0}, int64[2] flat = {-1, 128}, int64[4] boxed = {1, 2, 4, 128}, int64[3] deep = {1, 8, 96}>
{
    m1 = MatMul(x, w1)
    a1 = Add(m1, b1)
    r1 = Relu(a1)
    f1 = Reshape(r1, flat)
    g2 = Gemm<transB = 1>(f1, w2, b2)
    d2 = Reshape(g2, deep)
    r2 = Relu(d2)
    m3 = MatMul(r2, w3)
    p3 = Softmax<axis = -1>(m3)
    y = MatMul(p3, w4)
}
"""
E2M1, E4M3 = np.dtype(ml_dtypes.float4_e2m1fn), np.dtype(ml_dtypes.float8_e4m3fn)
NVFP4 = InsertOptions(PlanOptions(format="nvfp4"))


def run(model: onnx.ModelProto, feed: dict[str, Any]) -> Any:
    return next(iter(Executor(Model(model)).run(feed).values()))


def held(model: onnx.ModelProto) -> dict[str, Any]:
    return {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}


def test_both_sides_of_a_product_have_blocks_along_what_it_sums_over() -> None:
    made = insert(network(GRAPH), data=samples(), options=NVFP4).model
    onnx.checker.check_model(made)
    assert {entry.domain: entry.version for entry in made.opset_import} == {"": 23, "trt": 1}
    dynamic = [node for node in made.graph.node if node.op_type == "TRT_FP4DynamicQuantize"]
    assert [node.input[0] for node in dynamic] == ["x", "f1", "r2"]
    assert all(
        {one.name: one.i for one in node.attribute} == {"axis": -1, "block_size": 16, "scale_type": 17}
        for node in dynamic
    )
    stored = held(made)
    assert "w1" not in stored
    assert "w4" in stored
    layouts = {
        node.input[0]: {one.name: one.i for one in node.attribute}
        for node in made.graph.node
        if node.op_type == "DequantizeLinear" and stored.get(node.input[0], np.zeros(1)).dtype == E2M1
    }
    assert layouts == {
        "w1_Q": {"axis": 0, "block_size": 16},
        "w2_Q": {"axis": 1, "block_size": 16},
        "w3_Q": {"axis": 0, "block_size": 16},
    }
    for feed in samples(2):
        largest = max(float(np.abs(one["x"]).max()) for one in samples())
        assert stored["x_tensor_scale"] == np.float32(largest) / np.float32(6 * 448)
        assert np.isfinite(run(made, feed)).all()


def test_codes_and_both_levels_of_scales_are_those_of_modelopt() -> None:
    model = network(GRAPH)
    weights, made = held(model), held(insert(model, options=NVFP4).model)
    for name, axis in (("w1", 0), ("w2", 1), ("w3", 0)):
        rows = weights[name] if axis else weights[name].T
        blocks = rows.reshape(rows.shape[0], -1, 16)
        second = np.float32(np.abs(rows).max()) / np.float32(6 * 448)
        assert made[f"{name}_tensor_scale"].tobytes() == second.tobytes()
        scales = (np.abs(blocks).max(2) / (np.float32(6) * second)).astype(E4M3)
        assert (scales if axis else scales.T).tobytes() == made[f"{name}_scale"].tobytes()
        codes = (blocks / (scales.astype(np.float32) * second)[..., None]).reshape(rows.shape).astype(E2M1)
        assert (codes if axis else codes.T).tobytes() == made[f"{name}_Q"].tobytes()


def test_lint_names_the_format_alone_and_finds_nothing_else() -> None:
    made = insert(network(GRAPH), data=samples(), options=InsertOptions(PlanOptions("rtx", format="nvfp4"))).model
    assert [row.name for row in formats_in(GraphView(made.graph))] == ["nvfp4"]
    found = [one for one in lint(made, LintOptions("rtx")).findings if one.severity != "note"]
    assert [one.code for one in found] == ["Q053"]  # what is not in FP4 is FP32
    assert "beside quantized operators" in found[0].message


def test_values_lie_half_a_step_from_the_weight_at_most() -> None:
    model = network(GRAPH)
    weights, made = held(model), held(insert(model, options=NVFP4).model)
    steps = np.repeat(made["w1_scale"].astype(np.float32) * made["w1_tensor_scale"], 16, 0)
    codes = made["w1_Q"].astype(np.float32)
    inside = np.abs(weights["w1"]) <= 6 * steps
    spacing = np.where(np.abs(codes) < 2, 0.5, np.where(np.abs(codes) < 4, 1, 2))
    assert (np.abs(codes * steps - weights["w1"])[inside] <= (spacing * steps / 2)[inside] * (1 + 1e-6)).all()


@pytest.mark.slow
def test_the_search_loses_less_than_rounding_on_other_data() -> None:
    model, fresh = network(GRAPH), samples(30, seed=1)[10:]
    plain, found = (insert(model, data=samples(10), options=NVFP4).model, insert(model, options=NVFP4).model)
    exact = [run(model, feed) for feed in fresh]
    errors = [
        sum(float(np.square(run(one, feed) - at).sum()) for feed, at in zip(fresh, exact, strict=True))
        for one in (found, plain)
    ]
    assert errors[1] < errors[0]


@pytest.mark.parametrize("rest", ["fp32", "fp16"])
def test_peel_gives_the_source_back_to_the_byte_and_refuses_a_cache(rest: Any, tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(network(GRAPH), source)
    options = InsertOptions(PlanOptions(format="nvfp4"), rest=rest)
    made = insert(source, data=samples(), options=options, output=tmp_path / "q.onnx").model
    back = peel(made, PeelOptions(trt_version="8.6.1", source=source), output=tmp_path / "back.onnx")
    assert (tmp_path / "back.onnx").read_bytes() == source.read_bytes()
    assert any("no cache is written" in note for note in back.notes)
    assert set(back.table.scales) == {"x", "f1", "r2"}
    alone = onnx.load(peel(made, PeelOptions(trt_version="8.6.1"), output=tmp_path / "alone.onnx").model)
    assert not any(node.op_type == "DequantizeLinear" or node.domain == "trt" for node in alone.graph.node)
    assert [entry.domain for entry in alone.opset_import] == [""]
    stored = held(onnx.load(made))
    steps = np.repeat(stored["w1_scale"].astype(np.float32) * stored["w1_tensor_scale"], 16, 0)
    assert held(alone)["w1_DQ"].tobytes() == (stored["w1_Q"].astype(np.float32) * steps).tobytes()
    with pytest.raises(QdqError, match="nvfp4"):
        peel(made, PeelOptions(trt_version="8.6.1"), output=tmp_path / "no.onnx", cache=tmp_path / "no.cache")
    assert not (tmp_path / "no.onnx").exists()


def test_peel_refuses_rounded_blocks_without_a_scale() -> None:
    """A mutant with an empty scale ended `report` with exit code 70."""
    made = insert(network(GRAPH), data=samples(), options=NVFP4).model
    (rounded,) = (node for node in made.graph.node if node.op_type.startswith("TRT_FP4") and node.input[0] == "x")
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((4, 0), np.float32), "none"))
    rounded.input[1] = "none"
    with pytest.raises(QdqError, match="makes these integers"):
        peel(made, PeelOptions(trt_version="8.6.1"))


def test_in_fp16_nothing_is_cast_before_blocks_are_rounded() -> None:
    made = insert(network(GRAPH), data=samples(), options=InsertOptions(PlanOptions(format="nvfp4"), rest="fp16")).model
    makers = {name: node for node in made.graph.node for name in node.output}
    for node in made.graph.node:
        if node.op_type == "TRT_FP4DynamicQuantize" and node.input[0] in makers:
            maker = makers[node.input[0]]
            fed = maker.op_type == "Cast" and maker.input[0] == "x"  # an FP32 input of the graph
            assert maker.op_type != "Cast" or fed
    exact = insert(network(GRAPH), data=samples(), options=NVFP4).model
    feed = samples(1)[0]
    np.testing.assert_allclose(run(made, feed), run(exact, feed), rtol=0.1, atol=0.2)


def test_what_is_there_stays() -> None:
    made = insert(network(GRAPH), data=samples(), options=NVFP4).model
    again = insert(made, options=NVFP4).model
    count = [sum(node.op_type == "TRT_FP4DynamicQuantize" for node in one.graph.node) for one in (made, again)]
    assert count == [3, 3]


def test_what_cannot_have_blocks_is_said() -> None:
    text = GRAPH.replace(
        "f1 = Reshape(r1, flat)", "q1 = Reshape(r1, boxed) m0 = MatMul(q1, w2t) f1 = Reshape(q1, flat)"
    )
    found = plan(network(text.replace("float[96] b2", "float[96] b2 = {0}, float[128, 16] w2t", 1)), NVFP4.plan)
    assert {one.site: one.reason for one in found.refusals if "axes" in one.reason} == {
        "m0": "its activation has 4 axes, and FP4 takes two or three"
    }
    with pytest.raises(QdqError, match="blocks of 16"):
        plan(network(GRAPH), PlanOptions(format="nvfp4", block=32))
    with pytest.raises(QdqError, match=r"10\.3\.0 does not read FP4, which 10\.8 does"):
        insert(network(GRAPH), options=InsertOptions(PlanOptions(format="nvfp4", trt_version="10.3.0")))


def test_steps_that_divide_channels_are_refused_and_auto_does_without() -> None:
    with pytest.raises(QdqError, match="--condition smooth: reckons with one scale"):
        insert(network(GRAPH), data=samples(), options=InsertOptions(NVFP4.plan, condition="smooth,correct"))
    with pytest.raises(QdqError, match="one per block"):
        insert(network(GRAPH), data=samples(), options=InsertOptions(NVFP4.plan, keep_float="auto"))
    done = insert(network(GRAPH), data=samples(), options=InsertOptions(NVFP4.plan, condition="auto"))
    assert not any("smooth" in note for note in done.notes)


def test_finetune_says_that_such_blocks_are_not_trained(tmp_path: Path) -> None:
    made = insert(network(GRAPH), data=samples(), options=NVFP4).model
    with pytest.raises(QdqError, match="get their scales at run time"):
        finetune(made, samples(), output=tmp_path / "t.onnx")


PACKED = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 8, 64] x) => (float[1, 8, 64] y) <float[64, 192] w = {0}, float[64, 64] w2 = {0}>
{
    h = Relu(x)
    m = MatMul(h, w)
    q, k, v = Split<axis = -1>(m)
    t = Transpose<perm = [0, 2, 1]>(k)
    s = MatMul(q, t)
    p = Softmax<axis = -1>(s)
    c = MatMul(p, v)
    o = MatMul(c, w2)
    y = Relu(o)
}
"""


def test_a_product_that_is_cut_into_operands_of_an_attention_stays_in_float_for_rtx() -> None:
    heads = ("o",)
    rtx = plan(network(PACKED), PlanOptions("rtx", format="nvfp4", not_heads=heads))
    assert [point.tensor for point in rtx.weights] == ["w2"]
    assert [one.rule for one in rtx.refusals if one.site == "m"] == ["packed-operands-float"]
    assert [point.tensor for point in plan(network(PACKED), PlanOptions(format="nvfp4", not_heads=heads)).weights] == [
        "w",
        "w2",
    ]


def test_data_for_a_typed_model_are_refused_whether_or_not_it_has_pairs() -> None:
    typed = insert(network(GRAPH), data=samples(), options=replace(NVFP4, rest="fp16")).model
    with pytest.raises(QdqError, match="stores the codes of FP32 weights"):
        insert(typed, data=samples(), options=NVFP4)
    assert insert(typed, options=NVFP4).has_pairs
