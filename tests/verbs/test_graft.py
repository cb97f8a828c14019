# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""A calibration cache into a plain model: which entries are placed, bit for bit, and why others are not."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from qdqtool.cache.text import Cache, write_cache
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.normalize import normalize
from qdqtool.match.plan import PlanOptions
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.graft import graft
from qdqtool.verbs.graft_options import GraftOptions
from qdqtool.verbs.peel import peel
from qdqtool.verbs.peel_options import PeelOptions
from tests.engine.attention_net import inserted
from tests.graphs import model_of, points_of
from tests.ort_session import session_of
from tests.verbs.graft_nets import CHAIN, NET, V8_6, activations, all_names, cache_of, entries, grafted, pairs

# ---------------------------------------------------------------------- what is placed


def test_every_point_of_the_plan_gets_its_entry_bit_for_bit() -> None:
    model = model_of(NET)
    cache = cache_of(*all_names(model))
    result = graft(model, cache)
    placed = activations(result.model)
    assert placed == {name: cache.entries[name].tobytes() for name in (*points_of(NET), "k")}, (
        "and after the Concat, whose inputs have two scales"
    )
    assert {p.tensor for p in result.plan.activations} == set(placed) and len(placed) > 4
    onnx.checker.check_model(result.model, full_check=True)


def test_points_that_insert_would_tie_keep_their_own_bits() -> None:
    result = grafted(NET, *all_names(model_of(NET)))
    at_concat = [activations(result.model)[name] for name in ("f", "r")]
    assert at_concat[0] != at_concat[1]


def test_weights_get_abs_max_per_channel_and_none_from_the_cache() -> None:
    cache = Cache.of(V8_6, {**entries(*all_names(model_of(CHAIN))), "w1": np.float32(9)})
    result = graft(model_of(CHAIN), cache)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model_of(CHAIN).graph.initializer}
    for name in ("w1", "w2"):
        want = np.abs(weights[name]).max(axis=(1, 2, 3)) / np.float32(127)
        assert pairs(result.model)[name].tobytes() == want.tobytes()
    assert result.unplaced["w1"] == "a constant"


def test_what_peel_finds_again_is_what_was_placed() -> None:
    model = model_of(NET)
    cache = cache_of(*all_names(model))
    result = graft(model, cache)
    back = peel(result.model, PeelOptions(V8_6))
    assert back.model == model
    for point in result.plan.activations:
        assert back.cache.entries[point.tensor].tobytes() == cache.entries[point.tensor].tobytes()
    assert {n for n, s in back.table.scales.items() if s.origin == "qdq"} == {p.tensor for p in result.plan.activations}


def test_attentions_are_quantized_where_that_is_asked_for() -> None:
    quantized = inserted("int8", "fp32").model
    back = peel(quantized, PeelOptions(V8_6))
    for plan, whole in ((PlanOptions(attention="int8", float_heads="none"), True), (GraftOptions().plan, False)):
        found = graft(back.model, back.cache, GraftOptions(plan))
        assert [one.int8 for one in found.plan.attentions] == [whole]
        assert (activations(found.model) == activations(quantized)) is whole


# ---------------------------------------------------------------------- partial caches


def test_an_operator_without_a_scale_stays_float_with_its_weight() -> None:
    result = grafted(CHAIN, "x", "c")
    assert set(pairs(result.model)) == {"x", "w1"}
    by_output = {node.output[0]: node for node in result.model.graph.node}
    assert list(by_output["z"].input) == ["r", "w2"]
    assert {r.site for r in result.plan.refusals if r.rule == "no-scale"} == {"r", "z"}
    assert result.uncovered == ("r", "z")


def test_tensors_of_the_opset_conversion_are_not_missed_in_the_cache() -> None:
    """From opset 13 on a Softmax over several axes is written as Flatten, Softmax and Reshape."""
    graph = CHAIN.replace(" z) <", " y) <").replace("(r, w2)", "(r, w2) y = Softmax(z)")
    model = model_of(graph, opset=11)
    result = graft(model, cache_of(*all_names(model)))
    assert any("converted from opset 11" in note for note in result.notes)
    assert {node.op_type for node in result.model.graph.node} >= {"Flatten", "Reshape"}
    assert result.uncovered == () and "not in the cache" not in "\n".join(result.summary())
    assert graft(model, cache_of("x", "c", "z")).uncovered == ("r", "y")


def test_a_cache_that_covers_no_point_is_refused() -> None:
    for names in ((), ("c", "z"), ("elsewhere",)):
        with pytest.raises(QdqError, match=rf"none .* {len(names)} entries.*qdqtool cache check"):
            grafted(CHAIN, *names)


def test_zero_and_infinite_entries_are_no_scales(tmp_path: Path) -> None:
    (tmp_path / "c.cache").write_text(
        "TRT-8601-EntropyCalibration2\nx: 3c010a14\nc: 7f800000\nr: 00000000\nz: 3f800000\n"
    )
    result = graft(model_of(CHAIN), tmp_path / "c.cache")
    assert activations(result.model) == {"x": np.uint32(0x3C010A14).tobytes()}
    assert result.uncovered == ("c", "r") and result.unplaced.keys() == {"z"}
    assert result.uncovered == ("c", "r") and result.unplaced.keys() == {"z"}
    assert any("2 entries" in note and "such as c" in note for note in result.notes), (
        "they are counted, not passed over"
    )


# ---------------------------------------------------------------------- what is not placed


def test_each_entry_without_a_point_has_its_reason() -> None:
    result = grafted(NET, *all_names(model_of(NET)), "fc")
    inside, unread = "inside the fused group of ", "no INT8 operator reads it"
    assert result.unplaced["c"] == result.unplaced["n"] == f"{inside}first"
    assert result.unplaced["d"] == f"{inside}second"
    assert result.unplaced["fc"] == "a constant"
    for name in ("z", "t"):
        assert result.unplaced[name].startswith(unread), name
    placed = {point.tensor for point in result.plan.activations}
    assert placed.isdisjoint(result.unplaced) and placed | set(result.unplaced) == {*all_names(model_of(NET)), "fc"}
    assert result.unknown == {} and result.uncovered == ()


def test_names_that_the_model_lacks_come_with_the_nearest() -> None:
    model = model_of(CHAIN.replace("r = Relu", "relu_output_0 = Relu").replace("(r,", "(relu_output_0,"))
    cache = cache_of("x", "relu_output_1", "(Unnamed Layer* 3) [Constant]_output")
    result = graft(model, cache)
    assert result.unknown == {"relu_output_1": ("relu_output_0",)}
    assert result.made_up == ("(Unnamed Layer* 3) [Constant]_output",), "no model has such a name"
    assert result.uncovered == ("c", "relu_output_0", "z") and result.unplaced == {}


def test_near_misses_of_many_names_take_no_long_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("qdqtool.verbs.graft"), "_NEAR_PAIRS", 8)  # verbs.graft is the function
    text = CHAIN.replace("r = Relu", "relu_output_0 = Relu").replace("(r,", "(relu_output_0,")
    result = grafted(text, "x", "relu_output_1", "relu_output_2", "relu_output_3")
    assert list(result.unknown) == ["relu_output_1", "relu_output_2", "relu_output_3"], "each is counted"
    assert list(map(len, result.unknown.values())) == [1, 1, 0], (
        "four known names, eight comparisons: two are looked up"
    )


# ---------------------------------------------------------------------- everywhere, heads


def test_everywhere_places_all_that_somebody_reads() -> None:
    names = all_names(model_of(NET))
    result = grafted(NET, *names, everywhere=True)
    assert set(activations(result.model)) == set(names) - {"z", "t"}
    assert set(result.unplaced) == {"z", "t"}
    cache = cache_of(*names)
    assert activations(result.model) == {n: cache.entries[n].tobytes() for n in names if n not in "zt"}
    assert peel(result.model, PeelOptions(V8_6)).model == model_of(NET)


def test_everywhere_takes_float_tensors_alone() -> None:
    text = "g (float[1,4] x, int64[1,4] n) => (float[1,4] z, int64[1,4] o) <float[4,4] w> { y = MatMul(x, w) m = Neg(n) o = Abs(m) z = Abs(y) }"
    result = grafted(text, "x", "n", "m", "y", everywhere=True)
    assert set(activations(result.model)) == {"x", "y"} and set(result.unplaced) == {"n", "m"}
    onnx.checker.check_model(result.model, full_check=True)


DETECTOR = """g (float[1,4,8,8] x) => (float[1,64,4] boxes, float[1,64,4] scores) <float[4,4,1,1] w1, float[4,4,1,1] wb, float[4,4,1,1] ws, int64[3] s = {1,64,4}> {
 c = Conv(x, w1) r = Relu(c) [box] b = Conv(r, wb) bt = Transpose<perm=[0,2,3,1]>(b) boxes = Reshape(bt, s)
 [score] k = Conv(r, ws) kt = Transpose<perm=[0,2,3,1]>(k) kr = Reshape(kt, s) scores = Softmax<axis=2>(kr) }"""


def test_heads_with_a_scale_are_quantized_unless_told_otherwise() -> None:
    assert set(pairs(grafted(DETECTOR, "x", "r").model)) == {"x", "r", "w1", "wb", "ws"}
    options = PlanOptions(float_heads="regression")
    result = grafted(DETECTOR, "x", "r", plan=options)
    assert {head.label for head in result.plan.heads if head.name == "box"} == {"regression"}
    assert set(pairs(result.model)) == {"x", "r", "w1", "ws"}
    assert set(pairs(grafted(DETECTOR, "x", "r", plan=PlanOptions(float_heads="all")).model)) == {"x", "w1"}


def test_the_version_decides_where_pairs_stand() -> None:
    names = all_names(model_of(NET))
    for version in (TrtVersion(7, 1, 3), TrtVersion(10, 3, 0)):
        plan = PlanOptions(trt_version=version, float_heads="none")
        placed = set(activations(grafted(NET, *names, plan=plan).model))
        assert placed == {*points_of(NET, trt_version=version), "k"}


# ---------------------------------------------------------------------- doors


def test_an_ir_in_which_weights_were_inputs_is_raised_and_comes_back() -> None:
    model = model_of(CHAIN, 13, ir=3)
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    result = graft(model, cache_of("x", "r"))
    assert result.model.ir_version >= 4
    onnx.checker.check_model(result.model, full_check=True)
    assert peel(result.model, PeelOptions(V8_6)).model == model


@pytest.mark.parametrize("opset", [7, 11])
def test_an_old_model_is_lifted_and_comes_back_lifted(opset: int) -> None:
    model = model_of(CHAIN, opset, ir=3)
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    before = model.SerializeToString(deterministic=True)
    result = graft(model, cache_of("x", "r"))
    assert model.SerializeToString(deterministic=True) == before
    assert any(f"converted from opset {opset} to 13" in note for note in result.notes)
    lifted = onnx.ModelProto.FromString(before)
    normalize(Model(lifted))
    back = peel(result.model, PeelOptions(V8_6)).model
    assert back.SerializeToString(deterministic=True) == lifted.SerializeToString(deterministic=True)
    assert peel(result.model, PeelOptions(V8_6, source=model)).model == model


def test_the_same_kind_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of(CHAIN).SerializeToString())
    write_cache(cache_of("x", "r"), tmp_path / "c.cache")
    by_file = graft(path, tmp_path / "c.cache")
    assert by_file.model == tmp_path / "m.qdq.onnx"
    want = activations(onnx.load(by_file.model))
    assert graft(lambda: path, str(tmp_path / "c.cache"), output=tmp_path / "o.onnx").model == tmp_path / "o.onnx"
    graph = graft(gs.import_onnx(model_of(CHAIN)), cache_of("x", "r")).model
    assert isinstance(graph, gs.Graph) and activations(gs.export_onnx(graph)) == want
    assert path.read_bytes() == model_of(CHAIN).SerializeToString()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.cache", "m.onnx", "m.qdq.onnx", "o.onnx"]


def test_refused_with_nothing_written(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of(CHAIN).SerializeToString())
    write_cache(cache_of("x", "r"), tmp_path / "c.cache")
    done = graft(model_of(CHAIN), cache_of("x", "r"))
    with pytest.raises(QdqError, match=r"has Q/DQ already.*qdqtool peel"):
        graft(done.model, cache_of("x", "r"), output=tmp_path / "o.onnx")
    for name in ("m.onnx", "c.cache"):
        with pytest.raises(QdqError, match="never overwritten"):
            graft(path, tmp_path / "c.cache", output=tmp_path / name)
    with pytest.raises(QdqError):
        graft(path, path, output=tmp_path / "o.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.cache", "m.onnx"]


def test_the_grafted_model_computes_what_the_scales_say() -> None:
    scale = np.float32(0.05)
    cache = Cache.of(V8_6, {"x": scale})
    model = model_of("g (float[1,4] x) => (float[1,4] z) <float[4,4] w> { z = MatMul(x, w) }")
    weight = np.diag(np.array([1, -2, 3, 127], np.float32))
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    x = np.array([[0.024, -0.026, 6.0, 100.0]], np.float32)  # rounds to 0, -1, 120 and saturates at 127
    session = session_of(graft(model, cache).model)
    want = (np.array([[0, -1, 120, 127]], np.float32) * scale) @ weight
    assert np.allclose(session.run(None, {"x": x})[0], want, rtol=1e-6)


# ---------------------------------------------------------------------- a cache of another export

OTHER = "g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,4,1,1] w1, float[4] k, float[4] zeros = {0,0,0,0}> { c = Conv(x, w1) n = InstanceNormalization(c, k, zeros) z = Relu(n) }"


def test_a_cache_of_another_export_is_refused_with_a_way_out(tmp_path: Path) -> None:
    """Its names are one off, so a constant of zeros has the range of what is after it."""
    model, cache = model_of(OTHER), cache_of("x", "zeros", "c", "n")
    with pytest.raises(QdqError, match=r"another export .*zeros \(.*--force"):
        graft(model, cache, output=tmp_path / "q.onnx")
    assert not list(tmp_path.iterdir())
    forced = graft(model, cache, GraftOptions(force=True))
    assert any("another export" in note for note in forced.notes)
    assert not any("another export" in note for note in graft(model, cache_of("x", "c", "n")).notes)


def test_a_cache_of_an_older_dla_goes_to_one_that_takes_pairs() -> None:
    names = list(all_names(model_of(NET)))
    dla = GraftOptions(PlanOptions("dla", "11.4.1", float_heads="none"))
    result = graft(model_of(NET), cache_of(*names), dla)
    assert result.rest is not None and result.rest.choice.assignment.for_dla
    assert len(activations(result.model)) > len(activations(grafted(NET, *names).model)), "every tensor has a pair"
    for version in (None, "8502", "10.3"):
        with pytest.raises(QdqError, match=r"takes Q/DQ from TensorRT 11\.4\.1 on"):
            graft(model_of(NET), cache_of(*names), GraftOptions(PlanOptions("dla", version)))
