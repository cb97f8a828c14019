# SPDX-License-Identifier: Apache-2.0
"""`simulate` and `simulated_model`: Q/DQ as written, a cache as each target computes it, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import qdqtool
from qdqtool.errors import QdqError
from qdqtool.graph.edit import drop_metadata, get_metadata
from qdqtool.graph.model import Model
from tests.graphs import model_of
from tests.verbs.small_net import NET, write_net

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

from qdqtool.runtime.executor import Executor

V8_5 = qdqtool.TrtVersion(8, 5, 2)
SCALES = {"x": 0.03, "c1": 0.05, "r1": 0.05, "c2": 0.1, "r2": 0.08, "g": 0.08, "f": 0.08, "y": 0.04}


def data(count: int = 3) -> list[dict[str, npt.NDArray[Any]]]:
    r = np.random.default_rng(6)
    return [{"x": r.normal(size=(1, 4, 8, 8)).astype(np.float32)} for _ in range(count)]


def cache(version: qdqtool.TrtVersion = V8_5, **scales: float) -> qdqtool.Cache:
    return qdqtool.Cache.of(version, {name: np.float32(scale) for name, scale in (scales or SCALES).items()})


def options(target: Any = "gpu", **more: Any) -> qdqtool.SimulateOptions:
    return qdqtool.SimulateOptions(target, progress=False, **{"cache": cache(), **more})


def quantized() -> onnx.ModelProto:
    """In Q/DQ by data, the last layer in float."""
    plan = qdqtool.InsertOptions(qdqtool.PlanOptions(float_heads="all"))
    return qdqtool.insert(model_of(NET), data=data(), options=plan).model


def test_a_qdq_model_on_the_gpu_is_run_as_it_is_written() -> None:
    model = quantized()
    before = model.SerializeToString(deterministic=True)
    result = qdqtool.simulate(model, data(), options(cache=None))
    one = result.simulated
    assert (one.mode, one.target) == ("explicit", "gpu")
    assert one.model.SerializeToString(deterministic=True) == before == model.SerializeToString(deterministic=True)
    assert not any(node.op_type == "QuantizeLinear" for node in one.plain.graph.node)
    assert one.tensors[0] == "x" and set(one.weights) == {"w1", "w2"}
    assert one.floats.keys() == {"y"} and "no Q/DQ" in one.floats["y"]
    ref, got = (
        np.concatenate([Executor(Model(m)).run(batch)["y"] for batch in data()]).astype(float)
        for m in (model_of(NET), model)
    )
    want = 10 * np.log10((ref**2).sum() / ((ref - got) ** 2).sum())
    assert result.outputs[0].tensor == "y" and result.outputs[0].sqnr == pytest.approx(want, abs=1e-6)
    assert result.samples == 3
    assert "accuracy" in result.notes[-1]
    assert any(note.startswith("simulated on a CPU, not run by TensorRT") for note in result.notes)


@pytest.mark.parametrize("target", ["gpu", "dla"])
def test_a_plain_model_with_a_cache(target: Any) -> None:
    model = model_of(NET)
    before = model.SerializeToString()
    result = qdqtool.simulate(model, data(), options(target))
    assert model.SerializeToString() == before
    one = result.simulated
    assert (one.mode, one.target, one.floats) == ("implicit", target, {})
    assert len(one.weights) == 3
    assert ("c1" in one.tensors) == (target == "dla")
    assert 5 < result.outputs[0].sqnr < 60
    assert ("guess" in " ".join(one.notes)) == (target == "dla")


def test_the_targets_differ_and_more_tensors_cost_more() -> None:
    gpu, dla = (qdqtool.simulate(model_of(NET), data(), options(target)).outputs[0].sqnr for target in ("gpu", "dla"))
    assert gpu > dla + 0.3


def test_explicit_and_implicit_agree_where_nothing_lies_half_way() -> None:
    """The Q/DQ of `graft` and the cache it came from: on a GPU the same roundings, ties of weights apart."""
    grafted = qdqtool.graft(model_of(NET), cache()).model
    explicit = qdqtool.simulate(grafted, data(), options(cache=None)).outputs[0]
    implicit = qdqtool.simulate(model_of(NET), data(), options()).outputs[0]
    assert explicit.sqnr == pytest.approx(implicit.sqnr, abs=1e-3)


def test_a_qdq_model_on_the_dla_takes_every_scale_it_carries() -> None:
    model = quantized()
    assert get_metadata(model, "scales") is not None
    result = qdqtool.simulate(model, data(), options("dla", cache=None, trt_version=V8_5))
    one = result.simulated
    assert (one.mode, one.target) == ("implicit", "dla")
    peeled = qdqtool.peel(model, qdqtool.PeelOptions(V8_5, "dla"))
    assert sorted(one.tensors) == sorted(peeled.cache.entries)
    assert one.floats == {"y": "kept in float"}, "the head that insert left in float"


def test_tensors_without_a_scale_are_reported() -> None:
    bare = qdqtool.graft(model_of(NET), cache()).model
    drop_metadata(bare, "scales")
    notes = qdqtool.simulate(bare, data(), options("dla", cache=None)).notes
    assert any("have no scale" in note for note in notes)


def test_outputs_go_to_a_file(tmp_path: Path) -> None:
    result = qdqtool.simulate(model_of(NET), data(), options("dla"), output=tmp_path / "o.npz")
    assert result.file == tmp_path / "o.npz"
    executor = Executor(Model(result.simulated.model))
    with np.load(tmp_path / "o.npz") as read:
        assert list(read) == ["y"]
        assert read["y"].tobytes() == np.concatenate([executor.run(batch)["y"] for batch in data()]).tobytes()


def test_the_order_of_the_samples_changes_nothing() -> None:
    one, other = (qdqtool.simulate(model_of(NET), d, options("dla")) for d in (data(), data()[::-1]))
    assert one.outputs == other.outputs


def test_an_old_opset_is_lifted_for_the_simulation_only(tmp_path: Path) -> None:
    path = write_net(tmp_path, opset=7)
    before = path.read_bytes()
    result = qdqtool.simulate(path, tmp_path / "d.npz", options("dla"))
    assert path.read_bytes() == before
    assert any("converted from opset 7 to 13" in note and "simulation" in note for note in result.notes)
    assert result.outputs[0].sqnr == pytest.approx(
        qdqtool.simulate(model_of(NET), tmp_path / "d.npz", options("dla")).outputs[0].sqnr
    )


def test_a_large_external_model_keeps_its_data_outside(tmp_path: Path) -> None:
    path = write_net(tmp_path)
    inside = qdqtool.simulate(path, tmp_path / "d.npz", options("dla")).outputs
    onnx.save_model(
        onnx.load(path), tmp_path / "e.onnx", save_as_external_data=True, location="e.bin", size_threshold=64
    )
    assert qdqtool.simulate(tmp_path / "e.onnx", tmp_path / "d.npz", options("dla")).outputs == inside


UINT8 = """g (float[4] x) => (float[4] y) <float k = {0.1}, uint8 z = {128}> {
    q = QuantizeLinear(x, k, z)  d = DequantizeLinear(q, k, z)  y = Neg(d)
}"""


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        (NET, {"cache": None}, "has no Q/DQ, and no cache is given; give a cache, which qdqtool ptq writes"),
        (NET, {"cache": cache(other=0.1)}, "none of the 1 scales"),
        (
            NET,
            {"trt_version": qdqtool.TrtVersion(8, 6, 1)},
            "8.6.1 would ignore it and calibrate again; qdqtool cache retarget",
        ),
        (NET, {"target": "dla", "cache": cache(qdqtool.TrtVersion(10, 13, 3))}, "runs no INT8 on the DLA"),
        (NET, {"target": "cpu"}, "--target: 'cpu' is not one"),
        (UINT8, {"cache": None}, "x"),
    ],
)
def test_what_is_refused(model: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(QdqError, match=message):
        qdqtool.simulate(model_of(model), data(), options(**more))


def test_a_q_alone_or_in_a_body_is_no_plain_model() -> None:
    alone = """g (float[2] x) => (int8[2] y) <float k = {0.1}, int8 z = {0}> { y = QuantizeLinear(x, k, z) }"""
    with pytest.raises(QdqError, match=r"QuantizeLinear y .*no DQ "):
        qdqtool.simulate(model_of(alone), data(), options(cache=None))
    inside = """g (float[2] x, bool c) => (float[2] y) <float k = {0.1}, int8 z = {0}> { y = If (c) <
        then_branch = t () => (float[2] a) { q = QuantizeLinear(x, k, z)  a = DequantizeLinear(q, k, z) },
        else_branch = e () => (float[2] b) { b = Neg(x) }
    > }"""
    with pytest.raises(QdqError, match=r"Q/DQ inside a subgraph \(If, Loop, Scan\)"):
        qdqtool.simulate(model_of(inside), data(), options(cache=None))


def test_a_cache_beside_qdq_is_refused() -> None:
    with pytest.raises(QdqError, match=r"has Q/DQ, .*--cache out"):
        qdqtool.simulate(quantized(), data(), options())


def test_q_dq_before_tensorrt_8_are_refused() -> None:
    with pytest.raises(QdqError, match=r"has Q/DQ, .*7\.1\.3 .*qdqtool peel"):
        qdqtool.simulate(quantized(), data(), options(cache=None, trt_version=qdqtool.TrtVersion(7, 1, 3)))
    assert qdqtool.simulate(quantized(), data(), options(cache=None, trt_version=V8_5)).samples == 3


def test_a_header_without_a_version_needs_one() -> None:
    old = qdqtool.Cache(None, "EntropyCalibration", cache().entries, header="1")
    with pytest.raises(QdqError, match=r"header '1' .*--trt-version"):
        qdqtool.simulate(model_of(NET), data(), options(cache=old))
    assert qdqtool.simulate(model_of(NET), data(), options(cache=old, trt_version=V8_5)).samples == 3


def test_estimated_scales_are_told_and_not_taken_to_the_dla() -> None:
    model = qdqtool.insert(model_of(NET)).model
    notes = qdqtool.simulate(model, data(), options(cache=None)).notes
    assert any("estimated without data" in note for note in notes)
    with pytest.raises(QdqError, match="estimated without data; insert --data"):
        qdqtool.simulate(model, data(), options("dla", cache=None))


def test_an_input_is_never_overwritten(tmp_path: Path) -> None:
    path = write_net(tmp_path)
    with pytest.raises(QdqError, match="never overwritten"):
        qdqtool.simulate(path, tmp_path / "d.npz", options(), output=tmp_path / "d.npz")


def test_outputs_behind_a_plugin_are_measured_by_what_it_reads() -> None:
    import qdqtool as verbs
    from tests.foreign_nets import foreign_net

    rng = np.random.default_rng(0)
    data = [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(2)]
    placed = verbs.insert(foreign_net("EfficientNMS_TRT at the outputs"), data=data).model
    result = verbs.simulate(placed, data)
    assert [one.tensor for one in result.outputs] == ["box", "score"]
    assert any("n, nb, ns, nc: box, score " in note for note in result.notes)
