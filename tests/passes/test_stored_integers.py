# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""insert --dq-only: weights as INT8 numbers; the same outputs, a smaller file, the same way back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.passes.stored_integers import store_integers
from qdqtool.verbs.amp import amp
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions
from qdqtool.verbs.peel import peel
from qdqtool.verbs.peel_options import PeelOptions
from tests.cli.command import run
from tests.graphs import SMALL_NET, model_of
from tests.verbs.small_net import write_net

X = np.random.default_rng(0).normal(size=(2, 4, 8, 8)).astype(np.float32)


def outputs(model: onnx.ModelProto) -> np.ndarray:
    return np.asarray(onnx.reference.ReferenceEvaluator(model).run(None, {"x": X})[0])


@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
def test_weights_are_the_codes_of_their_pairs_and_outputs_stay(weights: str) -> None:
    from qdqtool.match.plan import PlanOptions

    plan = PlanOptions(weights=weights)  # type: ignore[arg-type]
    full = insert(model_of(SMALL_NET, 21), options=InsertOptions(plan=plan)).model
    made = insert(model_of(SMALL_NET, 21), options=InsertOptions(plan=plan, dq_only=True)).model
    stored = {tensor.name: tensor.data_type for tensor in made.graph.initializer}
    assert {name for name, kind in stored.items() if kind == 3 and name.endswith("_Q")} == {"w1_Q", "w2_Q", "fc_Q"}
    assert not {"w1", "w2", "fc"} & stored.keys()
    assert [n.op_type for n in made.graph.node].count("QuantizeLinear") == [n.op_type for n in full.graph.node].count(
        "QuantizeLinear"
    ) - 3
    assert np.array_equal(outputs(made), outputs(full))
    onnx.checker.check_model(made, full_check=True)


def test_a_weight_that_others_read_and_other_codes_stay() -> None:
    text = "g (float[1,4] x) => (float[1,3] y, float[4,3] t) <float s = {0.1}, int8 z = {0}, uint8 u = {3}, float[4,3] w, float[4,3] v> { q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) a = MatMul(x, d) t = Neg(w) q2 = QuantizeLinear(v, s, u) d2 = DequantizeLinear(q2, s, u) b = MatMul(x, d2) y = Add(a, b) }"
    model = model_of(text)
    assert store_integers(GraphView(model.graph)) == 1
    assert {"w", "v", "q"} <= {tensor.name for tensor in model.graph.initializer}
    assert [node.op_type for node in model.graph.node].count("QuantizeLinear") == 1


@pytest.mark.parametrize("rest", ["fp32", "fp16"])
def test_the_source_comes_back_to_the_byte(tmp_path: Path, rest: str) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
    model = write_net(tmp_path)
    sizes = []
    for dq_only in (False, True):
        options = InsertOptions(rest=rest, dq_only=dq_only)  # type: ignore[arg-type]
        made = insert(model, data=tmp_path / "d.npz", options=options, output=tmp_path / f"{dq_only}.onnx").model
        peel(made, PeelOptions("8601", source=model), output=tmp_path / "p.onnx", cache=tmp_path / f"{dq_only}.cache")
        assert (tmp_path / "p.onnx").read_bytes() == model.read_bytes()
        sizes.append(made.stat().st_size)
    assert sizes[1] < sizes[0]
    assert (tmp_path / "True.cache").read_bytes() == (tmp_path / "False.cache").read_bytes()


def test_a_typed_model_is_refused_and_the_option_arrives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
    model = write_net(tmp_path)
    half = amp(model, data=tmp_path / "d.npz", output=tmp_path / "h.onnx").model
    with pytest.raises(QdqError, match="has FP16 or BF16 tensors, and --dq-only"):
        insert(half, data=tmp_path / "d.npz", options=InsertOptions(dq_only=True), output=tmp_path / "q.onnx")
    assert run(capsys, "insert", model, "--dq-only", "-o", tmp_path / "q.onnx").code == 0
    assert "w1_Q" in {tensor.name for tensor in onnx.load(tmp_path / "q.onnx").graph.initializer}
