# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""A calibration cache into a plain model: which entries are placed, bit for bit, and why others are not."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from qdqtool.cache.other_export import shifted_names
from qdqtool.cache.sanitize import renamed
from qdqtool.cache.text import Cache, read_cache, write_cache
from qdqtool.errors import QdqError
from qdqtool.graph.normalize import normalize
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.insert import pair_scale
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.amp import plan_types
from qdqtool.verbs.amp_options import AmpOptions
from qdqtool.verbs.graft import graft
from qdqtool.verbs.graft_options import GraftOptions, GraftResult
from qdqtool.verbs.lint import LintOptions, lint
from qdqtool.verbs.peel import peel
from qdqtool.verbs.peel_options import PeelOptions
from tests.graphs import model_of, points_of

V8_6 = TrtVersion(8, 6, 1)
NET = """g (float[1,4,8,8] x) => (float[1,3] z, float[1,4,7,7] t) <float[4,4,1,1] w1, float[4] b, float[4] s, float[4] v = {1,2,3,4}, float[4,4,1,1] w2, float[4,8,1,1] w8, float[4,3] fc, float one = {1}> {
 [first] c = Conv(x, w1, b) n = BatchNormalization(c, s, s, s, v) r = Relu(n) [second] d = Conv(r, w2) e = Add(d, r) f = Relu(e)
 k = Concat<axis=1>(f, r) [third] h = Conv(k, w8) m = MaxPool<kernel_shape=[2,2]>(h) [fourth] o = Conv(m, w2) t = Add(o, one) g = GlobalAveragePool(o) i = Flatten(g) z = MatMul(i, fc) }"""
CHAIN = "g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,4,1,1] w1, float[4,4,1,1] w2> { [first] c = Conv(x, w1) r = Relu(c) [second] z = Conv(r, w2) }"


def entries(*names: str) -> dict[str, np.float32]:
    """Another float32 for every name, none of them a round number."""
    values = np.random.default_rng(len(names)).uniform(0.001, 3, len(names)).astype(np.float32)
    return dict(zip(names, values, strict=True))


def cache_of(*names: str) -> Cache:
    return Cache.of(V8_6, entries(*names))


def all_names(model: onnx.ModelProto) -> list[str]:
    return [v.name for v in model.graph.input] + [name for node in model.graph.node for name in node.output]


def pairs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Tensor -> the scale of the pair on it, weights too."""
    view = GraphView(model.graph)
    assert all(len(on) == 1 for on in view.pairs.values())
    return {name: pair_scale(view, on[0]).bits for name, on in view.pairs.items()}


def activations(model: onnx.ModelProto) -> dict[str, bytes]:
    stored = {tensor.name for tensor in model.graph.initializer}
    return {name: bits.tobytes() for name, bits in pairs(model).items() if name not in stored}


def grafted(text: str, *names: str, **options: object) -> GraftResult:
    return graft(model_of(text), cache_of(*names), GraftOptions(**options))  # type: ignore[arg-type]


# ---------------------------------------------------------------------- what is placed


def test_every_point_of_the_plan_gets_its_entry_bit_for_bit() -> None:
    model = model_of(NET)
    cache = cache_of(*all_names(model))
    result = graft(model, cache)
    placed = activations(result.model)
    assert placed == {name: cache.entries[name].tobytes() for name in (*points_of(NET), "k")}, (
        "and behind the Concat, whose inputs have two scales"
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


# ---------------------------------------------------------------------- partial caches


def test_an_operator_without_a_scale_stays_float_with_its_weight() -> None:
    result = grafted(CHAIN, "x", "c")
    assert set(pairs(result.model)) == {"x", "w1"}
    by_output = {node.output[0]: node for node in result.model.graph.node}
    assert list(by_output["z"].input) == ["r", "w2"]
    assert {r.site for r in result.plan.refusals if r.rule == "no-scale"} == {"r", "z"}
    assert result.uncovered == ("r", "z")


def test_a_cache_that_covers_no_point_is_refused() -> None:
    for names in ((), ("c", "z"), ("elsewhere",)):
        with pytest.raises(QdqError, match=rf"none of the cache's {len(names)} entries.*qdqtool cache check"):
            grafted(CHAIN, *names)


def test_zero_and_infinite_entries_are_no_scales(tmp_path: Path) -> None:
    (tmp_path / "c.cache").write_text(
        "TRT-8601-EntropyCalibration2\nx: 3c010a14\nc: 7f800000\nr: 00000000\nz: 3f800000\n"
    )
    result = graft(model_of(CHAIN), tmp_path / "c.cache")
    assert activations(result.model) == {"x": np.uint32(0x3C010A14).tobytes()}
    assert result.uncovered == ("c", "r") and result.unplaced.keys() == {"z"}
    assert any("2 entries of the cache" in note and "such as c" in note for note in result.notes), (
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
    lifted = normalize(onnx.ModelProto.FromString(before), None).proto
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
    ort = pytest.importorskip("onnxruntime")
    scale = np.float32(0.05)
    cache = Cache.of(V8_6, {"x": scale})
    model = model_of("g (float[1,4] x) => (float[1,4] z) <float[4,4] w> { z = MatMul(x, w) }")
    weight = np.diag(np.array([1, -2, 3, 127], np.float32))
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    x = np.array([[0.024, -0.026, 6.0, 100.0]], np.float32)  # rounds to 0, -1, 120 and saturates at 127
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = ort.InferenceSession(graft(model, cache).model.SerializeToString(), options)
    want = (np.array([[0, -1, 120, 127]], np.float32) * scale) @ weight
    assert np.allclose(session.run(None, {"x": x})[0], want, rtol=1e-6)


# ---------------------------------------------------------------------- a published pair


@pytest.mark.shared
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_published_cache_into_its_model(shared: Path, tmp_path: Path, everywhere: bool) -> None:
    """Written by TensorRT 8.0.1, whose parser named its own layers: what is unknown is theirs or lost to its folding."""
    ort = pytest.importorskip("onnxruntime")
    folder = shared / "trt" / "pairs" / "lannyyip_share"
    source, cache = onnx.load(folder / "model.onnx"), read_cache(folder / "calibration.cache")
    options = GraftOptions(everywhere=everywhere, force=True)
    result = graft(folder / "model.onnx", cache, options, output=tmp_path / "q.onnx")
    names = {*all_names(source), *(t.name for t in source.graph.initializer)}
    assert {*result.unknown, *result.made_up} == set(cache.entries) - names
    assert result.made_up and not set(result.unknown) & set(result.made_up)
    second = {point.tensor for point in result.plan.activations if point.repeats} | result.lent.keys()
    placed = {name: bits for name, bits in activations(onnx.load(tmp_path / "q.onnx")).items() if name not in second}
    assert placed == {name: cache.entries[name].tobytes() for name in placed}
    counts = (len(cache.entries), len(placed), *map(len, (result.unplaced, result.unknown, result.made_up)))
    assert sum(counts[1:]) + len(set(result.lent.values()) - placed.keys()) == counts[0]
    assert len(placed) > (30 if everywhere else 5)
    kinds = Counter(reason.split(" of ")[0] for reason in result.unplaced.values())
    constants = {t.name for t in source.graph.initializer} | {
        n.output[0] for n in source.graph.node if n.op_type == "Constant"
    }
    assert kinds["a constant"] >= len(set(cache.entries) & constants) > 0
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(tmp_path / "q.onnx", options, providers=["CPUExecutionProvider"])
    assert [o.name for o in session.get_outputs()] == [o.name for o in source.graph.output]
    back = peel(tmp_path / "q.onnx", PeelOptions(TrtVersion(8, 0, 1), source=folder / "model.onnx"), output=tmp_path / "p.onnx", cache=tmp_path / "p.cache")  # fmt: skip
    assert (tmp_path / "p.onnx").read_bytes() == (folder / "model.onnx").read_bytes()
    assert all(back.cache.entries[name].tobytes() == bits for name, bits in placed.items())


OTHER = "g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,4,1,1] w1, float[4] k, float[4] zeros = {0,0,0,0}> { c = Conv(x, w1) n = InstanceNormalization(c, k, zeros) z = Relu(n) }"


def test_a_cache_of_another_export_is_refused_with_a_way_out(tmp_path: Path) -> None:
    """Its names are one off, so a constant of zeros has the range of what is behind it."""
    model, cache = model_of(OTHER), cache_of("x", "zeros", "c", "n")
    with pytest.raises(QdqError, match=r"is of another export .*zeros \(it holds zeros only.*--force takes it"):
        graft(model, cache, output=tmp_path / "q.onnx")
    assert not list(tmp_path.iterdir())
    forced = graft(model, cache, GraftOptions(force=True))
    assert any("may be of another export" in note for note in forced.notes)
    assert not graft(model, cache_of("x", "c", "n")).notes


# ---------------------------------------------------------------------- the way back

POOLED = """g (float[1,4,8,8] x) => (float[1,4,4,4] z) <float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,8,1,1] w3> { c = Conv(x, w1) r = Relu(c) m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
 d = Conv(m, w2) e = Relu(d) k = Concat<axis=1>(e, m) z = Conv(k, w3) }"""


@pytest.mark.parametrize("version", ["8601", "11.4.1"])
def test_peel_gives_back_the_cache_s_scale_on_both_sides_of_a_pool_and_a_concat(version: str) -> None:
    model, cache = model_of(POOLED), cache_of("x", "c", "r", "m", "d", "e", "k", "z")
    made = graft(model, cache, GraftOptions(with_version(version))).model
    back = peel(made, PeelOptions(V8_6)).cache.entries
    assert {name: bits.tobytes() for name, bits in back.items()} == {
        name: cache.entries[name].tobytes() for name in back
    }
    assert {"x", "r", "m", "e", "k"} <= set(back)


def test_a_point_that_was_trained_since_gives_its_own_scale() -> None:
    made = graft(model_of(POOLED), cache_of("x", "c", "r", "m", "d", "e", "k", "z"), GraftOptions(with_version("8601"))).model  # fmt: skip
    view = GraphView(made.graph)
    placed = {name: pairs[0].quantize.inputs[1] for name, pairs in view.pairs.items() if name in ("r", "m")}
    ((point, stored),) = placed.items()
    other = next(name for name in ("r", "m") if name != point)
    for tensor in made.graph.initializer:
        if tensor.name == stored:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32(5), stored))
    back = peel(made, PeelOptions(V8_6)).cache.entries
    assert back[point] == back[other] == np.float32(5)


@pytest.mark.shared
def test_the_published_pair_there_and_back_changes_no_scale(shared: Path) -> None:
    folder = shared / "trt" / "pairs" / "lannyyip_share"
    given = read_cache(folder / "calibration.cache")
    cache = renamed(given, shifted_names(given, -8))
    for version in ("8.0.1", "11.4.1"):
        result = graft(onnx.load(folder / "model.onnx"), cache, GraftOptions(with_version(version)))
        back = peel(result.model, PeelOptions(TrtVersion(8, 0, 1)))
        changed = [name for name, bits in back.cache.entries.items() if bits.tobytes() != cache.entries[name].tobytes()]
        assert changed == [] and {"100", "108", "128", "186", "187"} & set(back.cache.entries)
        assert len(back.cache.entries) == 33


def test_a_point_that_the_cache_lacks_takes_the_scale_of_the_same_values() -> None:
    """The cache has what the pool reads, the pair stands behind the pool."""
    cache = cache_of("x", "r", "e", "k")
    result = graft(model_of(POOLED), cache, GraftOptions(with_version("8601")))
    assert result.lent == {"m": "r"}
    assert activations(result.model)["m"] == cache.entries["r"].tobytes()
    assert "1 of them of a tensor with the same values (m from r)" in result.summary()[0]
    assert "r" not in result.unplaced


# ---------------------------------------------------------------------- TensorRT 11: second pairs


UPSAMPLED = """g (float[1,4,8,8] x, float[1,4,16,16] s) => (float[1,4,16,16] z) <float[4,4,1,1] w1, float[4,8,1,1] w2, float[4] f = {1,1,2,2}>
 { c = Conv(x, w1) r = Relu(c) u = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(r, , f) k = Concat<axis=1>(u, s) z = Conv(k, w2) }"""


def test_tensorrt_11_gets_a_second_pair_with_the_scale_of_the_cache() -> None:
    """Without it the product behind the Resize is built in float; Q020 leaves what the cache says at the Concat."""
    model = model_of(UPSAMPLED)
    scales = entries("x", "c", "r", "u", "s", "k", "z")
    cache = Cache.of(V8_6, {**scales, "s": scales["r"]})  # else older versions get one, too: behind the Concat
    old, new = (graft(model, cache, GraftOptions(PlanOptions(trt_version=v, float_heads="none"), rest="fp32")) for v in ("8601", "11.4.1"))  # fmt: skip
    assert set(activations(old.model)) == {"x", "r", "s"}
    placed = activations(new.model)
    assert placed == {name: cache.entries[name].tobytes() for name in ("x", "r", "s", "k")}
    for made in (old, new):
        found = lint(made.model, LintOptions(trt_version="11.4.1", select=("Q020", "Q035"), parser=False)).findings
        assert [one.code for one in found if one.code == "Q035"] == (["Q035"] if made is old else [])
        assert not any(one.fixable for one in found)
    assert not any("build in float" in note for note in new.notes)


def test_a_second_pair_that_the_cache_lacks_has_the_scale_before_it() -> None:
    cache = cache_of("x", "r", "s")
    placed = activations(graft(model_of(UPSAMPLED), cache, GraftOptions(with_version("11.4.1"), rest="fp32")).model)
    assert placed["k"] == max(cache.entries[name] for name in "rs").tobytes()


JOINED = """g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,8,1,1] w3>
 { a = Conv(x, w1) b = Conv(x, w2) k = Concat<axis=1>(a, b) z = Conv(k, w3) }"""


@pytest.mark.parametrize("version", ["8601", "10.3.0", "11.4.1"])
def test_behind_a_concat_of_several_scales_stands_the_scale_that_the_cache_has_for_it(version: str) -> None:
    """As TensorRT does with that cache: it requantizes each input, and the product reads one scale."""
    result = graft(model_of(JOINED), cache_of("x", "a", "b", "k"), GraftOptions(with_version(version), rest="fp32"))
    assert activations(result.model) == {name: bits.tobytes() for name, bits in entries("x", "a", "b", "k").items()}
    assert not result.unplaced


def test_behind_a_concat_that_the_cache_lacks_stands_the_largest_scale_before_it() -> None:
    scales = entries("x", "a", "b")
    placed = activations(graft(model_of(JOINED), Cache.of(V8_6, scales)).model)
    assert placed["k"] == max(scales["a"], scales["b"]).tobytes() and placed["a"] != placed["b"]


def test_behind_a_concat_of_one_scale_stands_no_pair() -> None:
    """Whatever the cache says of the Concat: values of one scale are read with it."""
    scales = entries("x", "a", "k")
    assert set(activations(graft(model_of(JOINED), Cache.of(V8_6, {**scales, "b": scales["a"]})).model)) == set("xab")


def test_a_pair_behind_the_inner_concat_counts_as_the_one_scale_of_what_it_joins() -> None:
    text = """g (float[1,4,8,8] x) => (float[1,4,8,8] z, float[1,4,8,8] y)
     <float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,8,1,1] w3, float[4,12,1,1] w4>
     { a = Conv(x, w1) b = Conv(x, w2) k = Concat<axis=1>(a, b) z = Conv(k, w3) l = Concat<axis=1>(k, a) y = Conv(l, w4) }"""
    cache = cache_of("x", "a", "b", "k", "l")
    assert activations(graft(model_of(text), cache).model) == {n: cache.entries[n].tobytes() for n in cache.entries}


def test_a_cache_whose_names_are_shifted_is_refused_with_the_command_that_renames_them(tmp_path: Path) -> None:
    """Some of its names fit as they are, on other tensors: their scales would be placed without a word."""
    steps = " ".join(f"n{n} = Conv({'x' if n == 10 else f'n{n - 1}'}, w)" for n in range(10, 26))
    model = model_of(f"g (float[1,4,8,8] x) => (float[1,4,8,8] n25) <float[4,4,1,1] w> {{ {steps} }}")
    for one in (*model.graph.node, *model.graph.output):  # text has no names of digits
        for field in ("input", "output") if isinstance(one, onnx.NodeProto) else ():
            getattr(one, field)[:] = [name.removeprefix("n") for name in getattr(one, field)]
        one.name = one.name.removeprefix("n")
    names = [str(number) for number in range(16, 32)]
    cache = cache_of("x", *names)
    with pytest.raises(QdqError, match=r"minus 6 fit 16 of 16, as they are 10; .*--shift-names -6 .*--force takes it"):
        graft(model, cache)
    forced = graft(model, cache, GraftOptions(force=True))
    assert any("may be of another export" in note for note in forced.notes)
    renamed = Cache.of(V8_6, {shifted_names(cache, -6).get(name, name): bits for name, bits in cache.entries.items()})
    assert not graft(model, renamed).unknown


def test_products_that_build_in_float_are_told() -> None:
    """A MatMul of two computed tensors, of which the cache has one."""
    text = "g (float[1,4,4] a, float[1,4,4] b, float[1,4,4] c) => (float[1,4,4] z) <float[4,4] w> { m = MatMul(a, b) n = MatMul(c, w) p = Add(m, n) z = Relu(p) }"
    result = graft(
        model_of(text), cache_of("a", "c"), GraftOptions(with_version("11.4.1"), everywhere=True, rest="fp32")
    )
    assert any("1 product will build in float though it has Q/DQ, such as m (Q038" in note for note in result.notes)


def with_version(version: str) -> PlanOptions:
    return PlanOptions(trt_version=version, float_heads="none")


# ---------------------------------------------------------------------- the float type of the rest


def with_rest(rest: str | None, version: str | None = None, **more: object) -> GraftResult[onnx.ModelProto]:
    plan = PlanOptions(float_heads="none", trt_version=version)
    model = model_of(CHAIN.replace("z = Conv(r, w2)", "d = Conv(r, w2) z = ConvTranspose(d, w2)"))
    return graft(model, cache_of("x", "r", "c", "d", "z"), GraftOptions(plan, rest=rest), **more)  # type: ignore[arg-type]


def test_an_engine_that_would_be_mostly_fp32_is_told_of() -> None:
    """One scale of the cache is for this model: nothing is known of the other tensors' values without data."""
    body = "a = Relu(x) b = Sigmoid(a) c = Mul(a, b) d = Add(c, a) e = Conv(d, w) f = Sigmoid(e) z = Mul(e, f)"
    model = model_of(f"g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,4,1,1] w> {{ {body} }}")
    few, full = (graft(model, cache_of(*names), GraftOptions(with_version("11.4.1"))) for names in ("d", "xabcdefz"))
    (line,) = (line for line in few.summary() if "mostly FP32" in line)
    assert (
        line
        == "this engine will be mostly FP32 (7 of 7 operators, 100 %): the cache does not tell their values; give --data"
    )
    assert not any("mostly FP32" in line for line in full.summary())
    data = [{"x": np.ones((1, 4, 8, 8), np.float32)}]
    assert not any(
        "mostly" in line
        for line in graft(model, cache_of("d"), GraftOptions(with_version("11.4.1")), data=data).summary()
    )


@pytest.mark.parametrize(
    ("rest", "version", "kind"),
    [
        (None, None, 0),
        (None, "8601", 0),
        (None, "11.1.0", 10),
        ("fp32", "11.1.0", 0),
        ("fp16", None, 10),
        ("bf16", "11.1.0", 16),
    ],
)
def test_the_version_or_the_user_says_the_float_type(rest: str | None, version: str | None, kind: int) -> None:
    done = with_rest(rest, version)
    casts = {item.i for node in done.model.graph.node if node.op_type == "Cast" for item in node.attribute} - {1}
    assert casts == ({kind} if kind else set())
    assert (done.rest is not None) is bool(kind)


def test_scales_are_the_cache_s_with_either_type() -> None:
    full, half = with_rest("fp32").model, with_rest("fp16").model
    stored = [{t.name: t.raw_data for t in one.graph.initializer if t.name.endswith("_scale")} for one in (full, half)]
    assert stored[0] == stored[1]


def test_data_that_nothing_asks_for_are_refused() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
    data = np.random.default_rng(0).normal(size=(3, 4, 8, 8)).astype(np.float32)
    assert with_rest("fp16", data=data).rest is not None
    with pytest.raises(QdqError, match=r"--data: has no effect: the cache has every scale.*--rest fp16"):
        with_rest("fp32", data=data)


def test_a_tensor_that_the_cache_shows_beyond_fp16_stays_fp32() -> None:
    plan = PlanOptions(float_heads="none")
    cache = Cache.of(V8_6, {**entries("x", "r", "c"), "c": np.float32(1e4)})  # 1.27 million
    done = graft(model_of(CHAIN), cache, GraftOptions(plan, rest="fp16"))
    assert done.rest is not None
    assert "c" in done.rest.assignment.float32


def test_versions_before_10_and_typed_models_are_refused() -> None:
    with pytest.raises(QdqError, match=r"--rest fp16: TensorRT 8\.6\.1 chooses the float types itself"):
        with_rest("fp16", "8601")
    half = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float16[1,4] x) => (float16[1,4] y) { y = Relu(x) }'
    )
    with pytest.raises(QdqError, match="has FP16 or BF16 tensors, which keep their types, and --rest chooses some"):
        graft(half, cache_of("x"), GraftOptions(rest="fp16"))


def test_amp_counts_the_types_of_a_grafted_model_as_graft_does() -> None:
    """What is FP32 in the file and inside of INT8 layers is no operator in FP32."""
    result = graft(
        model_of(UPSAMPLED), cache_of("x", "c", "r", "u", "s", "k", "z"), GraftOptions(with_version("11.4.1"))
    )
    again = plan_types(result.model, options=AmpOptions(assume_range=10.0))
    assert result.rest is not None and result.rest.choice.int8 > 0
    assert again.choice.headline() == result.rest.choice.headline()
