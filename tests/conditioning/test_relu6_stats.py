# SPDX-License-Identifier: Apache-2.0
"""What Clip(0, 6) cuts off, counted; and relu6 as a step of conditioning: opt-in, first, reported."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import pytest

from qdqtool.conditioning.edits import STEPS, Conditioned
from qdqtool.conditioning.relu6_stats import CutTensor, measure_cuts
from qdqtool.conditioning.run import ConditionSettings, condition_model
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from tests.conditioning.nets import RELU, SILU, feed_of, samples, singles_of, spread
from tests.graphs import model_of
from tests.ort_session import session_of

ort = pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

PLAN = PlanOptions(float_heads="none")
LARGE = 8 * samples()  # some of what Relu lets through lies above 6


def done(proto: onnx.ModelProto, *steps: str) -> tuple[onnx.ModelProto, Conditioned]:
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    reported = condition_model(Model(copy), feed_of(proto, LARGE), ConditionSettings(steps, PLAN))
    onnx.checker.check_model(copy, full_check=True)
    return copy, reported


def run_model(proto: onnx.ModelProto, rows: np.ndarray) -> np.ndarray:
    session = session_of(proto)
    return np.asarray(session.run(None, {"x": rows})[0])


def test_counts_and_the_largest_value_over_all_samples() -> None:
    proto = model_of("g (float[N,4,6,6] x) => (float[N,4,6,6] y) { r = Relu(x)  y = Neg(r) }")
    rows = np.zeros((3, 4, 6, 6), np.float32)
    rows[0, 0, 0, :3] = 5, 6, 7
    rows[2, 1, 0, :2] = -9, 12
    found = measure_cuts(Model(proto), ["r"], singles_of(proto, rows))
    assert found == {"r": CutTensor(above=2, values=432, largest=12.0)}
    assert re.match("0.46 % .* 6, .* 12$", found["r"].summary())
    assert re.match("none .* 6, .* 5.5$", CutTensor(0, 4, 5.5).summary())
    assert "not seen" in CutTensor().summary()
    assert measure_cuts(Model(proto), [], singles_of(proto, rows)) == {}


def test_nan_is_refused_by_name() -> None:
    proto = model_of("g (float[N,4,6,6] x) => (float[N,4,6,6] y) { r = Relu(x)  n = Log(x)  y = Add(r, n) }")
    rows = np.full((1, 4, 6, 6), -1, np.float32)
    with pytest.raises(QdqError, match="n: holds NaN"):
        measure_cuts(Model(proto), ["r", "n"], [{"x": rows}])


def test_it_is_done_where_it_is_named_and_reported() -> None:
    proto = spread(RELU)
    made, reported = done(proto, "relu6")
    assert [node.op_type for node in made.graph.node] == ["Conv", "Clip", "Conv"]
    (edit,) = reported.edits
    assert (edit.step, edit.site, edit.decibel) == ("relu6", "r1", 0.0)
    assert "lie above 6" in edit.reason
    assert 0 < reported.moved["y"].decibel < 60
    assert reported.kept == {}
    assert reported.samples == len(LARGE)
    rows = np.abs(run_model(made, LARGE) - run_model(proto, LARGE)).max()
    assert rows > 0.01
    entries = {entry.key: entry.value for entry in made.metadata_props}
    assert [edit["step"] for edit in json.loads(entries["qdqtool.condition"])["edits"]] == ["relu6"]


def test_auto_leaves_relu_alone() -> None:
    made, reported = done(spread(RELU), *STEPS)
    assert reported.count("relu6") == 0
    assert "Clip" not in [node.op_type for node in made.graph.node]


def test_what_is_divided_behind_it_keeps_the_function_that_it_left() -> None:
    """Dividing is judged against the model with its Clip, the whole against the model before."""
    proto = spread(SILU.replace("c1 = Conv(x,", "r1 = Relu(x)  c1 = Conv(r1,"))
    made, reported = done(proto, "relu6", "equalize", "smooth")
    assert [(edit.step, edit.site) for edit in reported.edits] == [("relu6", "r1"), ("smooth", "m1")]
    assert reported.kept["y"].relative < 1e-6
    assert reported.moved["y"].decibel < 60
    cut, _ = done(proto, "relu6")
    assert run_model(made, LARGE) == pytest.approx(run_model(cut, LARGE), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(("opset", "ir"), [(9, 3), (11, 3), (13, 8)])
def test_old_opsets_keep_theirs(opset: int, ir: int) -> None:
    proto = spread(RELU, opset, ir)
    if ir < 4:
        for tensor in proto.graph.initializer:
            proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, 1, list(tensor.dims)))
    made, reported = done(proto, "relu6", *STEPS)
    assert reported.edits[0].step == "relu6"
    assert (made.ir_version, made.opset_import[0].version) == (ir, opset)
    assert {len(node.input) for node in made.graph.node if node.op_type == "Clip"} == {1 if opset < 11 else 3}


def test_a_model_without_relu_is_left_as_it_is() -> None:
    proto = spread(SILU)
    made, reported = done(proto, "relu6")
    assert made == proto
    assert reported.edits == ()
