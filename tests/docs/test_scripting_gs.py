# SPDX-License-Identifier: Apache-2.0
"""Every verb through the door of onnx-graphsurgeon, beside protos, paths and callables: same kind out, input kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

import qdqtool
from qdqtool.calibration.engine import CalibrationOptions, calibrate
from qdqtool.verbs.graft import graft
from qdqtool.verbs.ptq import ptq
from qdqtool.verbs.ptq_options import PtqOptions
from tests.ort_session import session_of

pytest.importorskip("onnxruntime")

V8502 = qdqtool.TrtVersion(8, 5, 2)
DETECTOR, CLASSIFIER = "digits_detector", "tiny_classifier"
DATA = {DETECTOR: "digits_calib.npz", CLASSIFIER: "digits8_calib.npz"}

# Chosen without running the model again: what is tested here is what comes in and goes out.
FAST = qdqtool.InsertOptions(calibration=qdqtool.CalibrationOptions("mse"), keep_float=0)


def exported(graph: gs.Graph) -> bytes:
    """What onnx-graphsurgeon makes of a graph: two graphs with the same bytes are the same graph."""
    data: bytes = gs.export_onnx(graph, do_type_check=False).SerializeToString(deterministic=True)
    return data


def proto_of(models: Path, name: str) -> onnx.ModelProto:
    return onnx.load(models / f"{name}.onnx")


def graph_of(models: Path, name: str) -> gs.Graph:
    return gs.import_onnx(proto_of(models, name))


def batches_of(models: Path, name: str, count: int = 8) -> list[dict[str, Any]]:
    return [{"images": np.load(models / DATA[name])["images"][:count]}]


def pairs_of(graph: gs.Graph) -> dict[str, tuple[bytes, list[str]]]:
    """Tensor with a Q -> the bytes of its scale, and what reads its DQ."""
    found = {}
    for node in graph.nodes:
        if node.op == "QuantizeLinear":
            (dequantize,) = node.outputs[0].outputs
            readers = sorted(reader.name for reader in dequantize.outputs[0].outputs)
            found[node.inputs[0].name] = (np.asarray(node.inputs[1].values).tobytes(), readers)
    return found


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:

    session = session_of(model)
    return list(session.run(None, feeds))


# ---------------------------------------------------------------------------------------------------- insert


@pytest.mark.parametrize("name", [DETECTOR, CLASSIFIER])
def test_insert_gives_a_graph_back_and_keeps_the_one_it_got(models: Path, name: str) -> None:
    graph = graph_of(models, name)
    before = exported(graph)
    result = qdqtool.insert(graph, data=batches_of(models, name), options=FAST)
    assert isinstance(result.model, gs.Graph)
    assert result.model is not graph
    assert exported(graph) == before
    ops = [node.op for node in result.model.nodes]
    assert ops.count("QuantizeLinear") == ops.count("DequantizeLinear") == len(result.plan.points) > 15
    assert not any(node.op == "QuantizeLinear" for node in graph.nodes)


def test_the_graph_that_comes_out_is_the_proto_that_comes_out(models: Path) -> None:
    data = batches_of(models, CLASSIFIER)
    from_graph = qdqtool.insert(graph_of(models, CLASSIFIER), data=data, options=FAST)
    from_proto = qdqtool.insert(proto_of(models, CLASSIFIER), data=data, options=FAST)
    assert isinstance(from_proto.model, onnx.ModelProto)
    assert pairs_of(from_graph.model) == pairs_of(gs.import_onnx(from_proto.model))
    assert from_graph.plan.points == from_proto.plan.points


def test_scales_stand_in_the_graph_to_the_bit(models: Path) -> None:
    result = qdqtool.insert(graph_of(models, CLASSIFIER), data=batches_of(models, CLASSIFIER), options=FAST)
    pairs = pairs_of(result.model)
    for point in result.plan.activations:
        assert pairs[point.tensor][0] == result.inserted.scales[point.tensor].bits.tobytes()
    assert {point.tensor for point in result.plan.points} == set(pairs)


def test_the_placed_graph_runs_and_stays_near_float(models: Path) -> None:
    """Top-1 of INT8 and float agree on nearly every digit: pairs stand where values flow, with scales that fit."""
    placed = qdqtool.insert(graph_of(models, CLASSIFIER), data=batches_of(models, CLASSIFIER, 64), options=FAST).model
    held_out = {"images": np.load(models / "digits8_test.npz")["x"][:64]}
    exact = run(proto_of(models, CLASSIFIER), held_out)[0]
    rounded = run(gs.export_onnx(placed), held_out)[0]
    assert not np.array_equal(exact, rounded)
    assert (exact.argmax(1) == rounded.argmax(1)).mean() > 0.9


def test_insert_takes_a_table_and_options(models: Path) -> None:
    graph = graph_of(models, DETECTOR)
    table = calibrate(graph, batches_of(models, DETECTOR), CalibrationOptions("max"))
    options = qdqtool.InsertOptions(plan=qdqtool.PlanOptions(trt_version=V8502, float_heads="none"))
    result = qdqtool.insert(graph, scales=table, options=options)
    assert result.table is table
    readers = [name for _, names in pairs_of(result.model).values() for name in names]
    assert "/box_head/conv/Conv" in readers
    default = qdqtool.insert(graph, scales=table)
    weights = [names for tensor, (_, names) in pairs_of(default.model).items() if tensor.startswith("box_head.conv")]
    assert weights == []


def test_a_graph_that_was_edited_in_gs_is_what_is_quantized(models: Path) -> None:
    graph = graph_of(models, DETECTOR)
    graph.outputs = [tensor for tensor in graph.outputs if tensor.name == "scores"]
    graph.cleanup().toposort()
    result = qdqtool.insert(graph, data=batches_of(models, DETECTOR), options=FAST)
    assert [head.label for head in result.plan.heads] == ["score"]
    assert [tensor.name for tensor in result.model.outputs] == ["scores"]
    assert not any("box_head" in tensor for tensor in pairs_of(result.model))


def test_insert_without_data_says_how_many_are_estimated(models: Path) -> None:
    result = qdqtool.insert(graph_of(models, CLASSIFIER))
    assert result.estimated == len(result.plan.activations) > 0


def test_output_also_writes_the_file(models: Path, tmp_path: Path) -> None:
    graph = graph_of(models, CLASSIFIER)
    result = qdqtool.insert(graph, data=batches_of(models, CLASSIFIER), output=tmp_path / "q.onnx", options=FAST)
    assert isinstance(result.model, gs.Graph)
    written = gs.import_onnx(onnx.load(tmp_path / "q.onnx"))
    assert pairs_of(written) == pairs_of(result.model)
    assert [path.name for path in tmp_path.iterdir()] == ["q.onnx"]


# ---------------------------------------------------------------------------------------------------- peel, plan


@pytest.mark.parametrize("name", [DETECTOR, CLASSIFIER])
def test_peel_gives_the_graph_back_as_it_was(models: Path, name: str) -> None:
    graph = graph_of(models, name)
    placed = qdqtool.insert(graph, data=batches_of(models, name), options=FAST).model
    before = exported(placed)
    result = qdqtool.peel(placed, qdqtool.PeelOptions(V8502))
    assert isinstance(result.model, gs.Graph)
    assert exported(result.model) == exported(graph)
    assert exported(placed) == before


def test_the_cache_holds_the_bits_of_the_graph(models: Path, tmp_path: Path) -> None:
    placed = qdqtool.insert(graph_of(models, DETECTOR), data=batches_of(models, DETECTOR), options=FAST)
    result = qdqtool.peel(placed.model, qdqtool.PeelOptions(V8502), cache=tmp_path / "c.cache")
    pairs = pairs_of(placed.model)
    for point in placed.plan.activations:
        assert result.cache.entries[point.tensor].tobytes() == pairs[point.tensor][0]
    assert qdqtool.read_cache(tmp_path / "c.cache") == result.cache


def test_a_scale_changed_in_gs_goes_into_the_cache(models: Path) -> None:
    """What a user, or QAT, writes into the graph is what TensorRT gets."""
    placed = qdqtool.insert(graph_of(models, CLASSIFIER), data=batches_of(models, CLASSIFIER), options=FAST).model
    first = next(node for node in placed.nodes if node.op == "QuantizeLinear" and node.inputs[0].name == "images")
    value = np.array(0.015625, np.float32)
    first.inputs[1].values = value  # the DQ reads the same constant
    result = qdqtool.peel(placed, qdqtool.PeelOptions(V8502))
    assert result.cache.entries["images"].tobytes() == value.tobytes()


def test_weights_that_were_tuned_go_into_the_source(models: Path) -> None:
    graph = graph_of(models, CLASSIFIER)
    placed = qdqtool.insert(graph, data=batches_of(models, CLASSIFIER), options=FAST).model
    tuned = next(
        tensor for tensor in placed.tensors().values() if isinstance(tensor, gs.Constant) and tensor.values.ndim == 4
    )
    tuned.values = tuned.values * np.float32(0.5)
    result = qdqtool.peel(placed, qdqtool.PeelOptions(V8502, source=graph))
    assert isinstance(result.model, gs.Graph)
    assert np.array_equal(result.model.tensors()[tuned.name].values, tuned.values)
    others = [n for n, t in graph.tensors().items() if isinstance(t, gs.Constant) and n != tuned.name]
    assert all(np.array_equal(result.model.tensors()[n].values, graph.tensors()[n].values) for n in others)
    assert any(tuned.name in note for note in result.notes)


def test_a_plain_graph_has_nothing_to_peel(models: Path) -> None:
    with pytest.raises(qdqtool.QdqError, match="no Q/DQ"):
        qdqtool.peel(graph_of(models, CLASSIFIER), qdqtool.PeelOptions(V8502))


def test_a_q_whose_dq_was_cut_off_is_refused_by_name(models: Path) -> None:
    placed = qdqtool.insert(graph_of(models, CLASSIFIER), data=batches_of(models, CLASSIFIER), options=FAST).model
    node = next(node for node in placed.nodes if node.op == "QuantizeLinear" and node.inputs[0].name == "images")
    dequantize = node.outputs[0].outputs[0]
    for reader in list(dequantize.outputs[0].outputs):
        reader.inputs[reader.inputs.index(dequantize.outputs[0])] = node.inputs[0]
    placed.nodes.remove(dequantize)
    with pytest.raises(qdqtool.QdqError, match="images"):
        qdqtool.peel(placed, qdqtool.PeelOptions(V8502))


def test_plan_of_a_graph_is_the_plan_of_its_proto(models: Path) -> None:
    graph = graph_of(models, DETECTOR)
    before = exported(graph)
    decided = qdqtool.plan(graph)
    assert decided.points == qdqtool.plan(proto_of(models, DETECTOR)).points
    assert decided.points == qdqtool.plan(models / f"{DETECTOR}.onnx").points
    assert [(head.name, head.label) for head in decided.heads if head.key in decided.float_nodes] == [
        ("/box_head/conv/Conv", "regression")
    ]
    assert exported(graph) == before


# ---------------------------------------------------------------------------------------------------- tables, kinds


@pytest.mark.slow
def test_calibrate_and_ptq_take_a_graph(models: Path) -> None:
    graph = graph_of(models, CLASSIFIER)
    before = exported(graph)
    data = batches_of(models, CLASSIFIER)
    table = calibrate(graph, data)
    same = calibrate(proto_of(models, CLASSIFIER), data)
    assert {name: table[name].hex() for name in table} == {name: same[name].hex() for name in same}
    cache = ptq(graph, data, PtqOptions(V8502, shared_scales=False, calibration=CalibrationOptions("mse"))).cache
    gates = {name for name in table if "of the Sigmoid of" in table[name].method}  # which ptq fetches as well
    assert gates and cache.entries.keys() == set(table)
    for name, scale in cache.entries.items():
        if name in gates:
            assert float(scale) == pytest.approx(float(table[name].bits), rel=0.01)
        else:
            assert f"{int(scale.view(np.uint32)):08x}" == table[name].hex()
    assert exported(graph) == before


def test_graft_takes_a_graph_and_gives_one_back(models: Path) -> None:
    graph, data = graph_of(models, CLASSIFIER), batches_of(models, CLASSIFIER)
    before = exported(graph)
    cache = ptq(graph, data, PtqOptions(V8502)).cache
    result = graft(graph, cache)
    assert isinstance(result.model, gs.Graph)
    assert exported(graph) == before
    pairs = pairs_of(result.model)
    assert len(result.plan.activations) > 5
    for point in result.plan.activations:
        assert pairs[point.tensor][0] == cache.entries[point.tensor].tobytes()
    assert exported(qdqtool.peel(result.model, qdqtool.PeelOptions(V8502)).model) == before


@pytest.mark.slow
def test_peel_for_the_dla_takes_a_graph_and_data(models: Path) -> None:
    """The calibrated table is lost with the metadata of a gs.Graph: data fills in what the pairs do not say."""
    graph, data = graph_of(models, CLASSIFIER), batches_of(models, CLASSIFIER)
    placed = qdqtool.insert(graph, data=data, options=FAST).model
    with pytest.raises(qdqtool.QdqError, match="no scale"):
        qdqtool.peel(placed, qdqtool.PeelOptions(V8502, target="dla"))
    result = qdqtool.peel(placed, qdqtool.PeelOptions(V8502, target="dla", data=data))
    assert isinstance(result.model, gs.Graph)
    assert exported(result.model) == exported(graph)
    assert set(result.cache.entries) == set(calibrate(graph, data))


KINDS: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path,
    "text": str,
    "proto": onnx.load,
    "graph": lambda path: gs.import_onnx(onnx.load(path)),
    "callable path": lambda path: lambda: path,
    "callable proto": lambda path: lambda: onnx.load(path),
    "callable graph": lambda path: lambda: gs.import_onnx(onnx.load(path)),
    "callable callable": lambda path: lambda: lambda: onnx.load(path),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_kind_comes_out(models: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes((models / f"{CLASSIFIER}.onnx").read_bytes())
    expected = Path if kind.endswith(("path", "text")) else gs.Graph if kind.endswith("graph") else onnx.ModelProto
    source = KINDS[kind](path)
    placed = qdqtool.insert(source, data=batches_of(models, CLASSIFIER), options=FAST).model
    assert isinstance(placed, expected)
    peeled = qdqtool.peel(lambda: placed, qdqtool.PeelOptions(V8502, source=source)).model
    assert isinstance(peeled, expected)
    files = {file.name for file in tmp_path.iterdir()}
    if expected is Path:
        assert peeled.read_bytes() == path.read_bytes()
        assert {"m.qdq.onnx", "m.qdq.peeled.onnx", "m.qdq.cache"} <= files
    else:
        assert files == {"m.onnx"}
    assert path.read_bytes() == (models / f"{CLASSIFIER}.onnx").read_bytes()


def test_what_is_no_model_is_our_callers_fault(models: Path) -> None:
    with pytest.raises(TypeError, match=r"a gs\.Graph"):
        qdqtool.insert(graph_of(models, CLASSIFIER).nodes[0])
    with pytest.raises(TypeError, match="int"):
        qdqtool.plan(lambda: 1)


def test_a_proto_that_was_given_stays_as_it_was(models: Path) -> None:
    model = proto_of(models, DETECTOR)
    before = model.SerializeToString(deterministic=True)
    placed = qdqtool.insert(model, data=batches_of(models, DETECTOR), options=FAST).model
    between = placed.SerializeToString(deterministic=True)
    peeled = qdqtool.peel(placed, qdqtool.PeelOptions(V8502)).model
    assert model.SerializeToString(deterministic=True) == before
    assert placed.SerializeToString(deterministic=True) == between != before
    assert peeled.SerializeToString(deterministic=True) == before


@pytest.mark.slow
def test_data_may_be_a_callable_a_list_or_a_file_and_a_generator_is_walked_once(models: Path) -> None:
    graph, data = graph_of(models, CLASSIFIER), batches_of(models, CLASSIFIER, 128)
    tables = [calibrate(graph, source) for source in (data, lambda: iter(data), models / DATA[CLASSIFIER])]
    assert len({tuple((name, str(table[name].hex())) for name in table) for table in tables}) == 1
    once = iter(data)
    assert calibrate(graph, once)["images"].hex() == tables[0]["images"].hex()


# ---------------------------------------------------------------------------------------------------- what gs loses


def test_estimates_are_refused_through_gs_too(models: Path) -> None:
    placed = qdqtool.insert(graph_of(models, CLASSIFIER)).model
    with pytest.raises(qdqtool.QdqError, match="estimated"):
        qdqtool.peel(placed, qdqtool.PeelOptions(V8502))
    allowed = qdqtool.peel(placed, qdqtool.PeelOptions(V8502, allow_estimated=True))
    assert isinstance(allowed.model, gs.Graph)


@pytest.mark.slow
def test_the_public_calibrate_is_a_function_before_and_after_insert(models: Path) -> None:
    qdqtool.insert(graph_of(models, CLASSIFIER), data=batches_of(models, CLASSIFIER), options=FAST)
    assert "images" in qdqtool.calibrate(graph_of(models, CLASSIFIER), batches_of(models, CLASSIFIER))


@pytest.mark.slow
def test_a_folded_model_is_not_peeled_onto_a_source_that_has_its_batch_norms(models: Path) -> None:
    data, options = batches_of(models, DETECTOR), qdqtool.InsertOptions(fold_bn=True)
    source = graph_of(models, DETECTOR)
    placed = qdqtool.insert(source, data=data, options=options).model
    with pytest.raises(qdqtool.QdqError, match="give the model that Q/DQ were inserted into"):
        qdqtool.peel(placed, qdqtool.PeelOptions(V8502, source=source))
    peeled = gs.export_onnx(qdqtool.peel(placed, qdqtool.PeelOptions(V8502)).model)
    for before, after in zip(run(proto_of(models, DETECTOR), data[0]), run(peeled, data[0]), strict=True):
        np.testing.assert_allclose(after, before, atol=1e-4)  # folding rounds each weight once
