# SPDX-License-Identifier: Apache-2.0
"""From counted histograms to scales: tensors of the same values have one search for a clipping value, and one scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from qdqtool.amax.histogram import Histogram
from qdqtool.amax.method_table import Method
from qdqtool.amax.methods import choose_amax
from qdqtool.calibration.engine import calibrate
from qdqtool.graph.model import Model
from qdqtool.observers import table
from qdqtool.observers.collect import count_batches
from qdqtool.observers.observation_plan import ObservationPlan
from qdqtool.observers.options import CalibrationOptions
from qdqtool.scales import Scale
from tests.graphs import model_of

pytest.importorskip("onnxruntime")

NET = """g (float[2,3,4] x) => (float[4,3,2] y, float[2,3,4] z) {
    t = Transpose<perm=[2,1,0]>(x) y = Identity(t) n = Neg(x) z = Relu(n) }"""


def test_tensors_of_the_same_values_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []

    def counting(method: Method, histogram: Histogram) -> np.float32:
        searched.append(histogram)
        return choose_amax(method, histogram)

    monkeypatch.setattr(table, "choose_amax", counting)
    draw = np.random.default_rng(0)
    batches = [{"x": draw.normal(size=(2, 3, 4)).astype(np.float32)} for _ in range(3)]
    options = CalibrationOptions(method="mse", inner=False)
    state = count_batches(Model(model_of(NET, 17)), batches, options)
    scales = table.read_table(state, Method("mse")).scales
    assert list(scales) == ["x", "t", "y", "n", "z"]
    assert scales["x"] == scales["t"] == scales["y"] and scales["z"] != scales["n"] != scales["x"]
    assert len(searched) == 3  # of x, n and z


def test_a_tensor_that_an_activation_alone_reads_takes_the_scale_behind_it() -> None:
    net = "g (float[2,3] x) => (float[2,3] y) <float[3,3] w = {1,0,0,0,1,0,0,0,1}> { a = MatMul(x, w) y = Relu(a) }"
    batches = [{"x": np.array([[3, -9, 1], [2, -5, 0.5]], np.float32)}]
    scales = table.read_table(
        count_batches(Model(model_of(net, 17)), batches, CalibrationOptions("mse")), Method("mse")
    )
    assert scales["a"].bits == scales["y"].bits and (scales["a"].origin, scales["y"].origin) == ("derived", "ptq")


SILU = """g (float[2,3] x) => (float[2,3] y) <float[3,3] w = {1,0,0,0,1,0,0,0,1}>
    { a = MatMul(x, w) s = Sigmoid(a) y = Mul(a, s) }"""
ROWS = [{"x": np.array([[3, -90, 1], [2, -5, 0.5]], np.float32)}]


@pytest.mark.parametrize("method", ["mse", "auto"])
def test_a_tensor_that_a_silu_alone_reads_is_scaled_by_the_error_behind_it(method: str) -> None:
    scales = calibrate(model_of(SILU, 17), ROWS, CalibrationOptions(method, inner=True, progress=False)).scales
    assert scales["a"].method == "mse after the SiLU: y"
    assert 2.8 < float(scales["a"].bits) * 127 < 8 < 89 < float(calibrated("max")["a"].bits) * 127


@pytest.mark.parametrize("method", ["mse", "auto", "percentile=99.9"])
def test_what_the_sigmoid_of_a_silu_makes_follows_from_what_it_reads(method: str) -> None:
    options = CalibrationOptions(method, inner=True, progress=False)
    found, fetched = (
        calibrate(model_of(SILU, 17), ROWS, replace(options, derive=d)).scales["s"] for d in (True, False)
    )
    assert found.origin == "derived" and found.method.endswith(" Sigmoid of a")
    assert fetched.origin == "ptq" and float(found.bits) == pytest.approx(float(fetched.bits), rel=0.01)


def test_max_and_a_caller_who_needs_it_fetch_the_sigmoid() -> None:
    assert calibrated("max")["s"].origin == "ptq"
    options = CalibrationOptions("mse", inner=True)
    assert "s" not in count_batches(Model(model_of(SILU, 17)), ROWS, options).plan.fetched
    assert "s" in count_batches(Model(model_of(SILU, 17)), ROWS, options, points=("s",)).plan.fetched
    assert "s" in count_batches(Model(model_of(SILU, 17)), ROWS, replace(options, inner=False)).plan.fetched


def calibrated(method: str) -> Mapping[str, Scale]:
    return table.read_table(
        count_batches(Model(model_of(SILU, 17)), ROWS, CalibrationOptions(method)), Method(method)
    ).scales


def test_what_a_silu_alone_reads_is_kept_in_a_state() -> None:
    plan = count_batches(Model(model_of(SILU, 17)), ROWS, CalibrationOptions("mse")).plan
    facts = plan.to_json()
    assert plan.silu == {"a": "y"} == ObservationPlan.from_json(facts).silu
    del facts["silu"]  # states of before
    assert ObservationPlan.from_json(facts).silu == {}
