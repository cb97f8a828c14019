# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The reference executor stage by stage gives what it gives at once, and all at once where stages win nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.graph.model import Model
from qdqtool.runtime import staged_activations, staged_executor, stages
from qdqtool.runtime.executor import Executor, RunsInParts
from qdqtool.runtime.staged_executor import run_in_parts
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
NET = """g (float[N,8,16,16] x) => (float[N,8,1,1] y, int64[4] s) <float[8,8,3,3] w, float[8] k, float[8] b, float[8] m, float[8] v = {1,2,1,2,1,2,1,2}> {
    s = Shape(x) c0 = Conv<pads=[1,1,1,1]>(x, w) n0 = BatchNormalization(c0, k, b, m, v) r0 = Relu(n0) f0 = Reshape(r0, s)
    c1 = Conv<pads=[1,1,1,1]>(f0, w) r1 = Relu(c1) g1 = Greater(r1, r0) c2 = Conv<pads=[1,1,1,1]>(r1, w) a2 = Add(c2, r0)
    h2 = Cast<to=10>(a2) c3 = Conv<pads=[1,1,1,1]>(a2, w) o3 = Where(g1, c3, a2) y = GlobalAveragePool(o3) }"""


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("quantized", [False, True], ids=["plain", "with pairs"])
def test_every_tensor_has_the_same_bits(*, quantized: bool) -> None:
    model = pairs_of(model_of(NET)) if quantized else model_of(NET)
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
    assert isinstance(run_in_parts(Model(model_of(NET)), ["r0", "y"], "model"), Executor)


@pytest.mark.usefixtures("little")
def test_what_is_no_tensor_of_the_graph_is_refused_as_ever() -> None:
    with pytest.raises(qdqtool.QdqError, match="no tensor zzz"):
        run_in_parts(Model(model_of(NET)), ["r0", "zzz"], "model")
    for constant in ("w", "w_DQ"):
        assert isinstance(run_in_parts(Model(pairs_of(model_of(NET))), ["r0", constant], "model"), Executor)


def test_compare_has_the_same_figures_in_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, data = model_of(NET), {"x": np.random.default_rng(2).normal(size=(3, 8, 16, 16)).astype(np.float32)}
    options = qdqtool.CompareOptions(progress=False)
    whole = qdqtool.compare(plain, pairs_of(plain), data, options)
    monkeypatch.setattr(staged_activations, "_HELD_BYTES", 0)
    monkeypatch.setattr(stages, "_BYTES", 10_000)
    started: list[object] = []
    real = staged_executor.StagedActivations.of
    monkeypatch.setattr(staged_executor.StagedActivations, "of", lambda *a: started.append(made := real(*a)) or made)
    assert qdqtool.compare(plain, pairs_of(plain), data, options) == whole
    assert len(started) == 2 and all(started)
