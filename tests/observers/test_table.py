# SPDX-License-Identifier: Apache-2.0
"""From counted histograms to scales: tensors of the same values have one search for a clipping value, and one scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qdqtool.amax.histogram import Histogram
from qdqtool.amax.method_table import Method
from qdqtool.amax.methods import choose_amax
from qdqtool.calibration.engine import calibrate, observe_ranges
from qdqtool.data.loader import inputs_of, open_loader
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.observers import table
from qdqtool.observers.collect import count_batches
from qdqtool.observers.observation_plan import ObservationPlan
from qdqtool.observers.options import CalibrationOptions
from qdqtool.observers.table import read_ranges
from qdqtool.runtime.activations import OrtActivations
from qdqtool.scales import Scale
from tests.graphs import SMALL_NET, model_of

QUIET = CalibrationOptions(progress=False)
NORMALIZED = """g (float[N,4,6,6] x) => (float[N,4,6,6] y) <float[4,4,1,1] w, float[4] s = {1.0, 2.0, 0.5, 1.0}, float[4] b = {0.0, 1.0, 0.0, 2.0}, float[4] m = {0.0, 0.0, 1.0, 0.0}, float[4] v = {1.0, 4.0, 1.0, 1.0}> {
 c = Conv(x, w)
 n = BatchNormalization(c, s, b, m, v)
 y = Relu(n)
}"""  # noqa: E501


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


def batches(shape: tuple[int, ...] = (2, 4, 8, 8)) -> list[dict[str, Any]]:
    values = np.random.default_rng(8)
    return [{"x": values.normal(size=shape).astype(np.float32)} for _ in range(3)]


@pytest.mark.parametrize(("text", "shape"), [(SMALL_NET, (2, 4, 8, 8)), (NORMALIZED, (1, 4, 6, 6))])
def test_every_tensor_has_the_range_that_its_arrays_have(text: str, shape: tuple[int, ...]) -> None:
    model, data = model_of(text), batches(shape)
    found = observe_ranges(Model(model), data, QUIET)
    run = OrtActivations(Model(model))
    arrays: dict[str, list[Any]] = {}
    for batch in data:
        for name, values in run.run(batch):
            arrays.setdefault(name, []).append(values)
    assert set(found.tensors) == set(arrays) and found.samples == 3 * shape[0]
    for name, parts in arrays.items():
        values, one = np.concatenate(parts), found.tensors[name]
        assert one.low == pytest.approx(min(float(values.min()), one.low), rel=1e-3, abs=1e-5), name
        assert one.largest == pytest.approx(float(np.abs(values).max()), rel=1e-3), name
        if one.mean is not None:
            assert one.mean == pytest.approx(float(np.abs(values).mean()), rel=1e-2, abs=1e-6), name
            assert one.elements == values.size // found.samples


def test_before_a_batchnorm_the_range_alone_is_known() -> None:
    found = observe_ranges(Model(model_of(NORMALIZED)), batches((1, 4, 6, 6)), QUIET)
    assert found.tensors["c"].mean is None and found.tensors["c"].largest > 0


def test_a_tensor_that_an_activation_cuts_has_the_range_of_what_gets_through() -> None:
    state = count_batches(Model(model_of(SMALL_NET)), batches(), CalibrationOptions("mse", progress=False))
    assert set(state.plan.follows) == {"c1", "c2"}
    found, whole = read_ranges(state, {}), observe_ranges(Model(model_of(SMALL_NET)), batches(), QUIET)
    assert found.tensors.keys() == whole.tensors.keys()
    assert found.tensors["c1"] == found.tensors["r1"] == whole.tensors["r1"] != whole.tensors["c1"]


@pytest.mark.parametrize("workers", [1, 2])
def test_threads_change_nothing(workers: int) -> None:
    one = observe_ranges(Model(model_of(SMALL_NET)), batches(), QUIET)
    other = observe_ranges(Model(model_of(SMALL_NET)), batches(), CalibrationOptions(progress=False, workers=workers))
    assert one == other


def test_data_that_can_be_walked_once_have_no_shapes() -> None:
    def generate() -> Iterator[dict[str, Any]]:
        yield from batches()

    model = model_of(SMALL_NET)
    feed = open_loader(generate(), inputs_of(model.graph))
    found = observe_ranges(Model(model), feed, QUIET)
    assert found.input_shapes == {} and found.samples == 6
    assert found.tensors == observe_ranges(Model(model), batches(), QUIET).tensors


def test_no_samples_are_refused() -> None:
    with pytest.raises(QdqError, match=r"data: .*; ranges need"):
        observe_ranges(Model(model_of(SMALL_NET)), [], QUIET)
