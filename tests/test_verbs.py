# SPDX-License-Identifier: Apache-2.0
"""The verbs as a library: every kind in and the same kind out, options, results, and who is never changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqtool as verbs
from qdqtool.errors import QdqError
from qdqtool.graph.io import serialize
from qdqtool.match.plan import PlanOptions
from qdqtool.metadata import stored_table
from qdqtool.scales import Scale, ScaleTable
from qdqtool.trtversion import TrtVersion
from tests.graphs import model_of
from tests.ort_session import session_of

V7, V8 = TrtVersion(7, 1, 3), TrtVersion(8, 5, 2)
TEXT = """net (float[N,4,8,8] x) => (float[N,4,8,8] z)
 <float[4,4,3,3] w1, float[4] b1, float[4] s, float[4,4,3,3] w2, float[4,4,1,1] w3>
{
 c1 = Conv<pads=[1,1,1,1]>(x, w1, b1)
 n1 = BatchNormalization(c1, s, b1, b1, s)
 r1 = Relu(n1)
 p = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(r1)
 c2 = Conv<pads=[1,1,1,1]>(p, w2)
 a = Add(c2, p)
 r2 = Relu(a)
 c3 = Conv(r2, w3)
 z = Sigmoid(c3)
}"""
TABLE = ScaleTable({name: Scale.of(value) for name, value in (("x", 0.1), ("p", 0.2), ("r2", 0.3))})


def net(opset: int = 13, ir: int = 8) -> onnx.ModelProto:
    model = model_of(TEXT, opset, ir)
    for tensor in model.graph.initializer:
        if tensor.name == "s":  # a variance, so positive
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([0.5, 1, 2, 4], np.float32), "s"))
    return model


def quantized(**changes: int) -> onnx.ModelProto:
    model: onnx.ModelProto = verbs.insert(net(**changes), scales=TABLE).model
    return model


# ---------------------------------------------------------------------- kinds


def test_a_proto_gives_a_proto_and_is_not_changed() -> None:
    model = net()
    before = serialize(model)
    done = verbs.insert(model, scales=TABLE)
    assert isinstance(done.model, onnx.ModelProto) and done.model is not model
    peeled = verbs.peel(done.model, verbs.PeelOptions(V8))
    assert isinstance(peeled.model, onnx.ModelProto)
    assert serialize(model) == before == serialize(peeled.model)


def test_a_path_gives_a_path_beside_it(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(serialize(net()))
    done = verbs.insert(str(tmp_path / "m.onnx"), scales=TABLE)
    assert done.model == tmp_path / "m.qdq.onnx"
    peeled = verbs.peel(done.model, verbs.PeelOptions(V8))
    assert peeled.model == tmp_path / "m.qdq.peeled.onnx"
    assert (tmp_path / "m.qdq.cache").read_text().splitlines()[0] == peeled.cache.header
    assert peeled.model.read_bytes() == serialize(net())


def test_a_graphsurgeon_graph_gives_one() -> None:
    gs = pytest.importorskip("onnx_graphsurgeon")
    graph = gs.import_onnx(net())
    done = verbs.insert(graph, scales=TABLE)
    assert isinstance(done.model, gs.Graph)
    assert sum(node.op == "QuantizeLinear" for node in done.model.nodes) == 6
    assert not any(node.op == "QuantizeLinear" for node in graph.nodes)
    peeled = verbs.peel(done.model, verbs.PeelOptions(V8))
    assert [node.op for node in peeled.model.nodes] == [node.op for node in graph.nodes]


def test_a_callable_gives_what_it_returns() -> None:
    done = verbs.insert(lambda: net(), scales=TABLE)
    assert serialize(done.model) == serialize(quantized())


def test_a_proto_can_be_written_too(tmp_path: Path) -> None:
    done = verbs.insert(net(), scales=TABLE, output=tmp_path / "q.onnx")
    assert isinstance(done.model, onnx.ModelProto)
    assert (tmp_path / "q.onnx").read_bytes() == serialize(done.model)


@pytest.mark.parametrize("model", [3, None, b"bytes", ["m.onnx"]])
def test_anything_else_is_a_type_error(model: object) -> None:
    with pytest.raises(TypeError, match="a path"):
        verbs.insert(model)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- plan


def test_plan_says_what_insert_does() -> None:
    model = net()
    plan, before = verbs.plan(model), serialize(model)
    done = verbs.insert(model, scales=TABLE)
    assert plan.points == done.plan.points == done.inserted.added
    assert {point.tensor for point in plan.activations} == set(TABLE)
    assert serialize(model) == before


def test_plan_of_an_old_model_is_that_of_the_lifted_one() -> None:
    assert verbs.plan(net(opset=11)).points == verbs.plan(net(opset=13)).points


def test_options_of_the_plan_arrive() -> None:
    everything = verbs.insert(net(), scales=TABLE)
    fewer = verbs.insert(net(), scales=TABLE, options=verbs.InsertOptions(plan=PlanOptions(float_heads="all")))
    assert {p.tensor for p in everything.plan.weights} - {p.tensor for p in fewer.plan.weights} == {"w3"}


# ---------------------------------------------------------------------- insert


def test_scales_come_as_a_table_or_its_file(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(TABLE.to_json())
    for scales in (TABLE, tmp_path / "s.json", str(tmp_path / "s.json")):
        assert serialize(verbs.insert(net(), scales=scales).model) == serialize(quantized())


def test_data_and_scales_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(QdqError, match=r"insert: .*data and scales"):
        verbs.insert(net(), data=tmp_path / "d.npz", scales=TABLE)


def test_estimated_scales_are_counted_and_marked() -> None:
    done = verbs.insert(net())
    assert done.estimated == 3
    assert all(scale.origin == "estimated" for scale in done.inserted.scales.values())
    assert verbs.insert(net(), scales=TABLE).estimated == 0


def test_a_range_of_the_input_is_taken() -> None:
    done = verbs.insert(net(), options=verbs.InsertOptions(input_range=(-4.0, 2.0)))
    assert done.inserted.scales["x"].bits.tobytes() == (np.float32(4) / np.float32(127)).tobytes()


def test_data_is_kept_as_a_table_of_every_float_tensor_and_taken_out_by_peel(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    np.save(tmp_path / "d.npy", np.random.default_rng(5).normal(size=(3, 4, 8, 8)).astype(np.float32))
    model = net()
    model.metadata_props.add(key="author", value="somebody")
    done = verbs.insert(model, data=tmp_path / "d.npy")
    stored = stored_table(done.model)
    assert stored is not None
    assert set(stored) == {"x", "c1", "n1", "r1", "p", "c2", "a", "r2", "c3", "z"}
    assert all(stored[name].same_bits(scale) for name, scale in done.inserted.scales.items())
    assert stored_table(model) is None
    assert serialize(verbs.peel(done.model, verbs.PeelOptions(V8)).model) == serialize(model)


def test_lifting_is_noted() -> None:
    lifted, plain = (verbs.insert(net(**how), scales=TABLE).notes for how in ({"opset": 11}, {}))
    assert lifted[0].startswith("converted from opset 11 to 13") and lifted[1:] == plain
    assert all("by forecast" in note for note in plain)


def test_fold_bn_folds_and_computes_the_same() -> None:
    done = verbs.insert(net(), scales=TABLE, options=verbs.InsertOptions(fold_bn=True))
    assert any(note.startswith("folded 1 BatchNormalization ") for note in done.notes)
    folded = verbs.peel(done.model, verbs.PeelOptions(V8)).model
    assert not any(node.op_type == "BatchNormalization" for node in folded.graph.node)
    x = np.random.default_rng(6).normal(size=(2, 4, 8, 8)).astype(np.float32)
    one, other = (session_of(m).run(None, {"x": x})[0] for m in (net(), folded))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)  # one rounding of each weight, after a sigmoid


def test_an_ir_version_below_4_comes_back() -> None:
    model = net(ir=3)
    for tensor in model.graph.initializer:
        shape = list(tensor.dims)
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, shape))
    done = verbs.insert(model, scales=TABLE)
    assert done.model.ir_version >= 4
    assert serialize(verbs.peel(done.model, verbs.PeelOptions(V8)).model) == serialize(model)


# ---------------------------------------------------------------------- peel


def test_the_cache_holds_the_points_and_the_tensors_of_the_same_values() -> None:
    peeled = verbs.peel(quantized(), verbs.PeelOptions(V8))
    table = {name: (scale.bits.item(), scale.origin) for name, scale in peeled.table.scales.items()}
    exact = {name: scale.bits.item() for name, scale in TABLE.scales.items()}
    assert table == {
        "x": (exact["x"], "qdq"),
        "r1": (exact["p"], "equal"),  # before the pool whose output is the point
        "p": (exact["p"], "qdq"),
        "r2": (exact["r2"], "qdq"),
    }
    assert list(peeled.table) == ["x", "r1", "p", "r2"]
    assert list(peeled.float_outputs) == ["z"]
    for name, entry in peeled.cache.entries.items():
        assert entry.tobytes() == peeled.table[name].bits.tobytes()


def test_estimated_scales_are_refused_unless_allowed() -> None:
    done = verbs.insert(net())
    with pytest.raises(QdqError, match="3 of 3 scales were estimated"):
        verbs.peel(done.model, verbs.PeelOptions(V8))
    peeled = verbs.peel(done.model, verbs.PeelOptions(V8, allow_estimated=True))
    assert serialize(peeled.model) == serialize(net())


def test_a_plain_model_is_refused() -> None:
    with pytest.raises(QdqError, match="has no Q/DQ to take out"):
        verbs.peel(net(), verbs.PeelOptions(V8))


def test_versions_without_caches_are_refused() -> None:
    with pytest.raises(QdqError, match="reads no calibration caches"):
        verbs.peel(quantized(), verbs.PeelOptions(TrtVersion(11, 0, 0)))


def test_source_gives_the_old_opset_back() -> None:
    source = net(opset=11)
    done = verbs.insert(source, scales=TABLE)
    plain = verbs.peel(done.model, verbs.PeelOptions(V7))
    assert any("opset 13" in note and "--source" in note for note in plain.notes)
    restored = verbs.peel(done.model, verbs.PeelOptions(V7, source=source))
    assert serialize(restored.model) == serialize(source)
    assert not any("opset" in note for note in restored.notes)
    assert list(restored.table) == list(plain.table)


def test_nothing_is_written_where_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "q.onnx").write_bytes(serialize(quantized()))
    with pytest.raises(QdqError):
        verbs.peel(tmp_path / "q.onnx", verbs.PeelOptions(V8), cache=tmp_path / "q.onnx")
    with pytest.raises(QdqError):
        verbs.peel(tmp_path / "q.onnx", verbs.PeelOptions(V8), output=tmp_path / "q.onnx")
    with pytest.raises(QdqError):
        verbs.insert(tmp_path / "q.onnx", scales=TABLE, output=tmp_path / "q.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["q.onnx"]


# ---------------------------------------------------------------------- tables


def test_load_table_reads_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(TABLE.to_json())
    table = verbs.load_table(tmp_path / "s.json")
    assert list(table) == list(TABLE) and all(table[name].same_bits(TABLE[name]) for name in TABLE)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"{"])
def test_load_table_refuses_what_is_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "s.json").write_bytes(content)
    with pytest.raises(QdqError, match=r"s\.json"):
        verbs.load_table(tmp_path / "s.json")


def test_a_damaged_table_in_the_metadata_is_named() -> None:
    model = net()
    model.metadata_props.add(key="qdqtool.scales", value="{")
    with pytest.raises(QdqError, match=r"metadata qdqtool\.scales"):
        stored_table(model)


def test_a_weight_that_a_float_head_reads_too_is_peeled() -> None:
    """The weight's pair is for the INT8 reader; the head reads the weight itself and needs no scale at its input."""
    text = """net (float[1,4,8,8] x) => (float[N,4,H,W] z) <float[4,4,1,1] w>
    { c = Conv(x, w) r = Relu(c) z = Conv(r, w) }"""
    done = verbs.insert(model_of(text, 13), scales=ScaleTable({"x": Scale.of(0.1)}))
    assert [point.tensor for point in done.plan.points] == ["x", "w"]
    assert serialize(verbs.peel(done.model, verbs.PeelOptions(V8)).model) == serialize(model_of(text, 13))
