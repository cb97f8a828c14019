# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Activations stage by stage against one session: the same bits, what is held, and where nothing is cut."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.graph.model import Model
from qdqtool.runtime import staged_activations, stages
from qdqtool.runtime.activations import ObservableModel, OrtActivations
from qdqtool.runtime.executor import Executor, RunsInParts
from qdqtool.runtime.staged_activations import StagedActivations, run_in_parts
from tests.graphs import model_of

RNG = np.random.default_rng(5)
BATCHES = [{"x": RNG.standard_normal((1, 16, 12, 12)).astype(np.float32)} for _ in range(3)]
MIXED_NET = """g (float[N,8,16,16] x) => (float[N,8,1,1] y, int64[4] s) <float[8,8,3,3] w, float[8] k, float[8] b, float[8] m, float[8] v = {1,2,1,2,1,2,1,2}> {
    s = Shape(x) c0 = Conv<pads=[1,1,1,1]>(x, w) n0 = BatchNormalization(c0, k, b, m, v) r0 = Relu(n0) f0 = Reshape(r0, s)
    c1 = Conv<pads=[1,1,1,1]>(f0, w) r1 = Relu(c1) g1 = Greater(r1, r0) c2 = Conv<pads=[1,1,1,1]>(r1, w) a2 = Add(c2, r0)
    h2 = Cast<to=10>(a2) c3 = Conv<pads=[1,1,1,1]>(a2, w) o3 = Where(g1, c3, a2) y = GlobalAveragePool(o3) }"""


def blocks(count: int, shape: str = "1,16,12,12") -> onnx.ModelProto:
    """Residual blocks after each other, each with a size that is computed."""
    lines, last = ["s = Shape(x)"], "x"
    for k in range(count):
        lines.append(f"a{k} = Conv<pads=[1,1,1,1]>({last}, v) b{k} = Relu(a{k}) c{k} = Conv<pads=[1,1,1,1]>(b{k}, v)")
        lines.append(f"d{k} = Add(c{k}, {last}) r{k} = Reshape(d{k}, s)")
        last = f"r{k}"
    return model_of(f"g (float[{shape}] x) => (float[{shape}] {last}) <float[16,16,3,3] v> {{ {' '.join(lines)} }}")


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Almost nothing may be held."""
    monkeypatch.setattr(staged_activations, "_HELD_BYTES", 0)
    monkeypatch.setattr(stages, "_BYTES", 40_000)


def wanted_of(model: ObservableModel) -> tuple[str, ...]:
    return tuple(name for name in model.names if name[0] in "xbdr")


@pytest.mark.usefixtures("little")
def test_stages_give_what_one_session_gives() -> None:
    model = ObservableModel(Model(blocks(6)))
    wanted = wanted_of(model)
    staged = StagedActivations.of(model, wanted)
    assert staged is not None and len(staged.lengths) > 3
    assert sorted(staged.names) == sorted(wanted) and sum(staged.lengths) == len(wanted)
    for batch in BATCHES:
        whole, parts = dict(OrtActivations.of(model, wanted).run(batch)), dict(staged.run(batch))
        assert list(parts) == list(staged.names)
        assert all(parts[name].tobytes() == whole[name].tobytes() for name in wanted)


@pytest.mark.usefixtures("little")
def test_a_stage_runs_once_the_tensors_before_it_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    real = staged_activations.run_session
    monkeypatch.setattr(staged_activations, "run_session", lambda *a: runs.append(a[1]) or real(*a))
    model = ObservableModel(Model(blocks(6)))
    staged = StagedActivations.of(model, wanted_of(model))
    assert staged is not None
    taken = staged.run(BATCHES[0])
    for length in staged.lengths[:2]:
        for _ in range(length):
            next(taken)
    assert len(runs) == 1


@pytest.mark.usefixtures("little")
def test_threads_share_the_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    real = staged_activations.start_session
    monkeypatch.setattr(staged_activations, "start_session", lambda *a: started.append(a) or real(*a))
    model = ObservableModel(Model(blocks(6)))
    staged = StagedActivations.of(model, wanted_of(model))
    assert staged is not None
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda batch: dict(staged.run(batch)), BATCHES))
    assert len(started) == len(staged.lengths) - 1
    assert all(
        got["r5"].tobytes() == dict(staged.run(one))["r5"].tobytes() for got, one in zip(found, BATCHES, strict=True)
    )


def test_little_is_run_as_a_whole() -> None:
    model = ObservableModel(Model(blocks(6)))
    assert StagedActivations.of(model, wanted_of(model)) is None


@pytest.mark.usefixtures("little")
def test_without_known_sizes_or_a_place_to_cut_it_is_run_as_a_whole() -> None:
    free = ObservableModel(Model(blocks(6, "N,16,12,12")))
    assert StagedActivations.of(free, wanted_of(free)) is None
    lines = " ".join(f"r{k} = Relu(p{k}) p{k + 1} = Mul(r{k}, p{k})" for k in range(6))
    text = f"g (float[1,16,12,12] x) => (float[1,16,12,12] y) {{ p0 = Neg(x) {lines} y = Add(p6, p0) }}"
    model = ObservableModel(Model(model_of(text)))
    assert StagedActivations.of(model, ["r0", "r5"]) is None  # every cut would pass p0, which is not given


@pytest.mark.usefixtures("little")
def test_what_only_moves_values_may_pass_a_cut_and_is_not_given() -> None:
    """A feature map, transposed for a decoder: without cuts beside it a SegFormer held 1.2 GB at once."""
    lines = " ".join(f"q{k} = Relu(p{k}) p{k + 1} = Sin(q{k})" for k in range(12))
    text = f"g (float[1,16,12,12] x) => (float[1,12,12,16] y) {{ p0 = Neg(x) t = Transpose<perm=[0,2,3,1]>(p0) {lines} u = Transpose<perm=[0,2,3,1]>(p12) y = Add(u, t) }}"
    model = ObservableModel(Model(model_of(text)))
    wanted = [name for name in model.names if name not in ("t", "u")]
    staged = StagedActivations.of(model, wanted)
    assert staged is not None and len(staged.lengths) > 3
    whole, parts = dict(OrtActivations.of(model, wanted).run(BATCHES[0])), dict(staged.run(BATCHES[0]))
    assert set(parts) == set(wanted)
    assert all(parts[name].tobytes() == whole[name].tobytes() for name in wanted)


@pytest.mark.usefixtures("little")
def test_one_size_that_nobody_knows_counts_as_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ObservableModel(Model(blocks(6)))
    known = {name: length for name, length in staged_activations.known_lengths(model.view).items() if name != "b2"}
    monkeypatch.setattr(staged_activations, "known_lengths", lambda _: known)
    staged = StagedActivations.of(model, wanted_of(model))
    assert staged is not None and len(staged.lengths) > 3


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("method", ["max", "entropy"])
def test_scales_do_not_depend_on_stages(method: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from qdqtool.calibration.engine import calibrate_scales
    from qdqtool.observers.options import CalibrationOptions

    model, options = blocks(6), CalibrationOptions(method=method, workers=workers)
    staged = calibrate_scales(Model(model), BATCHES, options)
    monkeypatch.setattr(staged_activations, "_HELD_BYTES", 1 << 30)
    whole = calibrate_scales(Model(model), BATCHES, options)
    assert list(staged.scales) == list(whole.scales)
    assert all(staged[name].bits.tobytes() == whole[name].bits.tobytes() for name in whole.scales)


pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


@pytest.fixture
def very_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Almost nothing may be held."""
    monkeypatch.setattr(staged_activations, "_HELD_BYTES", 0)
    monkeypatch.setattr(stages, "_BYTES", 10_000)


def pairs_of(model: onnx.ModelProto) -> onnx.ModelProto:
    options = qdqtool.InsertOptions(plan=qdqtool.PlanOptions(float_heads="none"))
    return qdqtool.insert(model, options=options).model


def tensors_of(model: onnx.ModelProto) -> list[str]:
    constants = {tensor.name for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if not constants.issuperset(node.input)]
    return ["x", *(name for node in nodes for name in node.output)]


def in_one(run: RunsInParts, size: int) -> list[dict[str, np.ndarray]]:
    return list(run.parts({"x": np.random.default_rng(size).normal(size=(size, 8, 16, 16)).astype(np.float32)}))


@pytest.mark.usefixtures("very_little")
@pytest.mark.parametrize("quantized", [False, True], ids=["plain", "with pairs"])
def test_every_tensor_has_the_same_bits(*, quantized: bool) -> None:
    model = pairs_of(model_of(MIXED_NET)) if quantized else model_of(MIXED_NET)
    names = [name for name in tensors_of(model) if not name.endswith("_Q") and name != "w_DQ"]
    run = run_in_parts(Model(model), names, "model")
    assert not isinstance(run, Executor)
    for size in (2, 1):  # the last batch of data may be smaller
        (whole,) = in_one(Executor(Model(model), names), size)
        parts = in_one(run, size)
        assert len(parts) > 3 and sum(map(len, parts)) == len(names)
        for name, array in ((name, array) for part in parts for name, array in part.items()):
            assert array.dtype == whole[name].dtype and array.tobytes() == whole[name].tobytes(), name


def test_little_comes_at_once() -> None:
    assert isinstance(run_in_parts(Model(model_of(MIXED_NET)), ["r0", "y"], "model"), Executor)


@pytest.mark.usefixtures("very_little")
def test_what_is_no_tensor_of_the_graph_is_refused_as_ever() -> None:
    with pytest.raises(qdqtool.QdqError, match="no tensor zzz"):
        run_in_parts(Model(model_of(MIXED_NET)), ["r0", "zzz"], "model")
    for constant in ("w", "w_DQ"):
        assert isinstance(run_in_parts(Model(pairs_of(model_of(MIXED_NET))), ["r0", constant], "model"), Executor)


def test_compare_has_the_same_figures_in_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, data = model_of(MIXED_NET), {"x": np.random.default_rng(2).normal(size=(3, 8, 16, 16)).astype(np.float32)}
    options = qdqtool.CompareOptions(progress=False)
    whole = qdqtool.compare(plain, pairs_of(plain), data, options)
    monkeypatch.setattr(staged_activations, "_HELD_BYTES", 0)
    monkeypatch.setattr(stages, "_BYTES", 10_000)
    started: list[object] = []
    real = staged_activations.StagedActivations.of
    monkeypatch.setattr(staged_activations.StagedActivations, "of", lambda *a: started.append(made := real(*a)) or made)
    assert qdqtool.compare(plain, pairs_of(plain), data, options) == whole
    assert len(started) == 2 and all(started)
