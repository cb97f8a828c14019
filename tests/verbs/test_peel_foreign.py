# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Q/DQ of other tools through the verbs: what each exporter writes, what is said of it, and the real ones at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.errors import QdqError
from qdqtool.trtversion import TrtVersion
from tests.graphs import model_of
from tests.ort_session import session_of

V8_5 = TrtVersion(8, 5, 2)
W = "float[4,4,1,1] w, float s = {0.25}, int8 o = {0}, float ws = {0.0078125}"
SHAPES = {
    "Identity": "q = QuantizeLinear(x, s, o) i = Identity(q) d = DequantizeLinear(i, s, o) wq = QuantizeLinear(w, ws, o) wd = DequantizeLinear(wq, ws, o) z = Conv(d, wd)",
    "pairs for each reader": "q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) r = QuantizeLinear(x, s, o) e = DequantizeLinear(r, s, o) wq = QuantizeLinear(w, ws, o) wd = DequantizeLinear(wq, ws, o) a = Conv(d, wd) b = Conv(e, wd) z = Add(a, b)",
    "one Q, two DQ": "q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) e = DequantizeLinear(q, s, o) wq = QuantizeLinear(w, ws, o) wd = DequantizeLinear(wq, ws, o) a = Conv(d, wd) b = Conv(e, wd) z = Add(a, b)",
    "shared zero point after Identity": "oi = Identity(o) si = Identity(s) q = QuantizeLinear(x, si, oi) d = DequantizeLinear(q, si, oi) wq = QuantizeLinear(w, ws, oi) wd = DequantizeLinear(wq, ws, oi) z = Conv(d, wd)",
    "Clip": "l = Constant<value = int8 {-127}>() h = Constant<value = int8 {127}>() q = QuantizeLinear(x, s, o) i = Clip(q, l, h) d = DequantizeLinear(i, s, o) wq = QuantizeLinear(w, ws, o) wi = Clip(wq, l, h) wd = DequantizeLinear(wi, ws, o) z = Conv(d, wd)",
}  # fmt: skip


@pytest.mark.parametrize("body", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_what_exporters_write_is_peeled_to_the_plain_graph(body: str, domain: str) -> None:
    model = model_of(f"g (float[1,4,2,2] x) => (float[N] z) <{W}> {{ {body} }}")
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.domain = domain
    model.opset_import.add(domain="com.microsoft", version=1)
    result = qdqtool.peel(model, qdqtool.PeelOptions(V8_5))
    assert {name: value.tobytes() for name, value in result.cache.entries.items()} == {"x": np.float32(0.25).tobytes()}
    assert {node.op_type for node in result.model.graph.node} <= {"Conv", "Add"}
    assert [tensor.name for tensor in result.model.graph.initializer] == ["w"]


def test_an_int32_bias_becomes_float() -> None:
    body = "q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) wq = QuantizeLinear(w, ws, o) wd = DequantizeLinear(wq, ws, o) bd = DequantizeLinear(b, bs) z = Conv(d, wd, bd)"
    model = model_of(
        f"g (float[1,4,2,2] x) => (float[N] z) <{W}, int32[4] b = {{1,-2,300000,0}}, float bs = {{0.5}}> {{ {body} }}"
    )
    result = qdqtool.peel(model, qdqtool.PeelOptions(V8_5))
    bias = next(onnx.numpy_helper.to_array(t) for t in result.model.graph.initializer if t.name == "bd")
    assert bias.tolist() == [0.5, -1.0, 150000.0, 0.0]


def test_a_weight_behind_a_pair_and_a_transpose_is_int8() -> None:
    text = "g (float[2,4] x) => (float[N] z) <float[3,4] w, float s = {0.25}, int8 o = {0}, float ws = {0.0078125}> { q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) wq = QuantizeLinear(w, ws, o) wd = DequantizeLinear(wq, ws, o) t = Transpose<perm=[1,0]>(wd) z = MatMul(d, t) }"
    result = qdqtool.peel(model_of(text), qdqtool.PeelOptions(V8_5, emit=("json",)))
    assert '"layers": {}' in str(result.emitted["json"]), "no layer stays in float"
    again = qdqtool.insert(model_of(text), scales=qdqtool.ScaleTable())
    assert not again.inserted.added, "the pair in front of the Transpose is that of the weight"


def test_force_ptq_needs_no_symmetric_pairs_and_bakes_nothing_by_itself() -> None:
    pytest.importorskip("onnxruntime")
    body = "q = QuantizeLinear(x, s, u) d = DequantizeLinear(q, s, u) wq = QuantizeLinear(w, ws, o) wd = DequantizeLinear(wq, ws, o) z = Conv(d, wd)"
    model = model_of(f"g (float[1,4,2,2] x) => (float[1,4,2,2] z) <{W}, uint8 u = {{7}}> {{ {body} }}")
    data = [{"x": np.random.default_rng(0).normal(size=(1, 4, 2, 2)).astype(np.float32)}]
    with pytest.raises(QdqError, match=r"^x: quantized to uint8 with zero point 7"):
        qdqtool.peel(model, qdqtool.PeelOptions(V8_5, target="dla", data=data))
    result = qdqtool.peel(model, qdqtool.PeelOptions(V8_5, target="dla", force_ptq=True, data=data))
    assert set(result.cache.entries) == {"x", "z"} and set(result.origins) == {"ptq"}


def test_weights_are_told_and_baked() -> None:
    body = "q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) wq = QuantizeLinear(w, ws, o) wd = DequantizeLinear(wq, ws, o) z = Conv(d, wd)"
    model = model_of(f"g (float[1,4,2,2] x) => (float[N] z) <{W.replace('0.0078125', '0.001')}> {{ {body} }}")
    reported = qdqtool.peel(model, qdqtool.PeelOptions(V8_5))
    assert (
        any("; with --bake-weights 4 of them get" in note for note in reported.notes) and reported.weights.agreeing == 4
    )
    done = qdqtool.peel(model, qdqtool.PeelOptions(V8_5, bake_weights=True))
    assert done.weights == reported.weights and any("1 weights " in note for note in done.notes)
    weight = onnx.numpy_helper.to_array(done.model.graph.initializer[0])
    assert float(np.abs(weight).max()) == float(np.float32(127) * np.float32(0.001))
    options = qdqtool.InsertOptions(plan=qdqtool.PlanOptions(float_heads="none"))
    inserted = qdqtool.insert(done.model, scales=qdqtool.ScaleTable({"x": done.table["x"]}), options=options)
    assert qdqtool.peel(inserted.model, qdqtool.PeelOptions(V8_5)).weights.agreeing == 0


def test_q_dq_on_constants_alone_give_no_cache(tmp_path: Path) -> None:
    model = model_of(
        f"g (float[1,4,2,2] x) => (float[N] z) <{W}> {{ wq = QuantizeLinear(w, ws, o) wd = DequantizeLinear(wq, ws, o) z = Conv(x, wd) }}"
    )
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(QdqError, match="Q/DQ on constants alone"):
        qdqtool.peel(tmp_path / "m.onnx", qdqtool.PeelOptions(V8_5))
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


# ---------------------------------------------------------------- the models of other tools

REFUSED = {
    "ort_conv.int4_weights.qdq": "int4",
    "ort_layout_transform_fix_transpose_without_dq.qdq": "uint16",
    "ort_qdq_minimal_model": "has no Q/DQ",
    "ort_qdq_with_multi_consumer_dq_nodes.fixed.qdq16": "uint16",
    "ort_transpose_optimizer_qdq_fixup_unsqueeze_per_axis_dq": "one scale per channel",
    "poly_qdq_conv": "constants alone",
}


def _is_valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError:
        return False
    return True


@pytest.mark.slow  # all foreign models
@pytest.mark.shared
def test_every_model_of_the_corpus_is_peeled_or_refused_by_a_reason(shared: Path, tmp_path: Path) -> None:
    files = sorted((shared / "corpus" / "qdq").glob("*.onnx"))
    refused = {}
    for number, file in enumerate(files):
        outputs = {"output": tmp_path / f"{number}.onnx", "cache": tmp_path / f"{number}.cache"}
        options = qdqtool.PeelOptions(V8_5, on_conflict="max", on_asymmetric="widen")
        try:
            result = qdqtool.peel(file, options, **outputs)
        except QdqError as error:
            refused[file.stem] = error.line()
            assert not any(path.exists() for path in outputs.values()) and error.todo
            continue
        clean = onnx.load(result.model, load_external_data=False)
        known = {name for node in clean.graph.node for name in node.output} | {v.name for v in clean.graph.input}
        assert result.cache.entries and set(result.cache.entries) <= known, file
        assert not any("Linear" in node.op_type for node in clean.graph.node), file
        if _is_valid(onnx.load(file)):
            assert _is_valid(onnx.load(result.model)), file
    assert set(refused) == set(REFUSED)
    assert all(REFUSED[name] in line for name, line in refused.items())


@pytest.mark.slow
@pytest.mark.shared
def test_relu_that_onnxruntime_took_out_comes_back(shared: Path, tmp_path: Path) -> None:
    """Without it the float model is another one: 0.09 of the images right instead of 0.84."""
    file = shared / "corpus" / "qdq" / "gen_resnet32_ort_u8u8_pt_minmax.onnx"
    options = qdqtool.PeelOptions(V8_5, on_conflict="max", on_asymmetric="widen")
    result = qdqtool.peel(file, options, output=tmp_path / "m.onnx", cache=tmp_path / "c.cache")
    plain = sum(node.op_type == "Relu" for node in onnx.load(result.model).graph.node)
    assert plain == 31
    images = np.load(shared / "corpus" / "datasets" / "cifar10_1000.npz")["calib"][:32].astype(np.float32)
    outputs = []
    for model in (file, result.model):
        session = session_of(model)
        name = session.get_inputs()[0].name
        x = images if images.shape[1] == 3 else images.transpose(0, 3, 1, 2)
        outputs.append([session.run(None, {name: one[None] / 255})[0].argmax() for one in x])
    assert np.mean(np.array(outputs[0]) == np.array(outputs[1])) >= 0.85
