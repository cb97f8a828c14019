# SPDX-License-Identifier: Apache-2.0
"""Our loaders chained with Polygraphy's own, with graphsurgeon's, and compared by its tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("polygraphy")
pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

import onnx_graphsurgeon as gs
import polygraphy.backend.onnx as theirs
from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from polygraphy.common import TensorMetadata
from polygraphy.comparator import Comparator, SnrCompareFunc

import qdqtool
import qdqtool.polygraphy as ours
from tests.test_polygraphy_loaders import PEEL, batches, data_bytes, generated, net, pairs, snr


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "m.onnx").write_bytes(net().SerializeToString())
    return str(tmp_path / "m.onnx")


@pytest.fixture(scope="module")
def placed() -> onnx.ModelProto:
    result: onnx.ModelProto = qdqtool.insert(net(), data=batches()).model
    return result


def test_from_a_file_to_a_file(path: str, tmp_path: Path) -> None:
    out = str(tmp_path / "q.onnx")
    save = theirs.SaveOnnx(ours.InsertQdq(theirs.OnnxFromPath(path), data=generated), out)
    assert pairs(save())
    assert Path(path).read_bytes() == net().SerializeToString()
    back = theirs.SaveOnnx(ours.PeelQdq(theirs.OnnxFromPath(out), PEEL), str(tmp_path / "p.onnx"))()
    assert data_bytes(back) == data_bytes(net())


def test_fold_constants_before_and_behind(placed: onnx.ModelProto) -> None:
    def fold(model: Any) -> theirs.FoldConstants:
        return theirs.FoldConstants(model, copy=True, allow_onnxruntime_shape_inference=False)

    before = ours.InsertQdq(fold(lambda: net()), data=batches())()
    behind = fold(ours.InsertQdq(lambda: net(), data=batches()))()
    assert pairs(before) == pairs(placed) == pairs(behind)
    caches = [ours.cache_from_qdq(model, PEEL) for model in (before, behind, placed)]
    assert caches[0] == caches[1] == caches[2]


def test_with_graphsurgeon_on_either_side(placed: onnx.ModelProto) -> None:
    graph = theirs.GsFromOnnx(ours.InsertQdq(lambda: net(), data=batches()))()
    assert isinstance(graph, gs.Graph)
    assert pairs(graph) == pairs(placed)

    def stem() -> gs.Graph:
        cut = gs.import_onnx(net())
        cut.outputs = [tensor for node in cut.nodes for tensor in node.outputs if tensor.name == "r2"]
        cut.outputs[0].dtype = np.float32
        return cut.cleanup()

    options = qdqtool.InsertOptions(plan=qdqtool.PlanOptions(float_heads="none"))
    half = ours.InsertQdq(stem, data=batches(), options=options)()
    assert isinstance(half, gs.Graph)
    assert set(pairs(half)) == {"x", "w1", "r1", "w2"}
    outputs = TensorMetadata().add("r1", np.float32, None)
    first = theirs.ExtractSubgraph(lambda: graph, output_metadata=outputs)()
    assert "x" in pairs(first) and "r1" not in pairs(first)


def test_float_and_placed_compared_by_polygraphy() -> None:
    data = batches(4, seed=9)
    insert = ours.InsertQdq(lambda: net(), data=batches())
    plain = OnnxrtRunner(SessionFromOnnx(theirs.BytesFromOnnx(lambda: net())), name="float")
    quantized = OnnxrtRunner(SessionFromOnnx(theirs.BytesFromOnnx(insert)), name="int8")
    results = Comparator.run([plain, quantized], data_loader=data)
    loss = [snr(a["y"], b["y"]) for a, b in zip(results["float"], results["int8"], strict=True)]
    assert 10 < min(loss) < max(loss) < 80  # it is quantized, and it is the same network
    assert Comparator.compare_accuracy(results, compare_func=SnrCompareFunc(snr_threshold=min(loss) - 1))
    assert not Comparator.compare_accuracy(results, compare_func=SnrCompareFunc(snr_threshold=max(loss) + 1))
