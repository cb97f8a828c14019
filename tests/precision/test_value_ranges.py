# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Ranges from histograms, from tables, assumed: the largest value is exact, the rest as near as bins are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qdqtool import CalibrationOptions, calibrate
from qdqtool.amax.histogram import Histogram
from qdqtool.calibration.engine import observe_ranges
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.precision.value_ranges import (
    ValueRange,
    ValueRanges,
    assumed_ranges,
    range_of_constant,
    range_of_histogram,
    ranges_of_table,
)
from qdqtool.scales import Scale, ScaleTable
from tests.graphs import SMALL_NET, model_of, view_of


def histogram_of(*values: float) -> Histogram:
    made = Histogram()
    made.add(np.array(values, np.float32))
    return made


@pytest.mark.parametrize(
    ("values", "low", "high", "mean", "smallest"),
    [
        ((1.0, -3.0), -3.0, 1.0, 2.0, 1.0),
        ((0.0, 0.0), 0.0, 0.0, 0.0, math.inf),
        ((0.0, 4.0), 0.0, 4.0, 2.0, 4.0),
        ((70_000.0,), 70_000.0, 70_000.0, 70_000.0, 70_000.0),
        ((1e-3, -1e-3), -1e-3, 1e-3, 1e-3, 1e-3),
        ((math.inf, 2.0), 2.0, 2.0, 2.0, 2.0),
    ],
)
def test_bounds_are_exact_and_magnitudes_as_near_as_a_bin(
    values: tuple[float, ...], low: float, high: float, mean: float, smallest: float
) -> None:
    found = range_of_histogram(histogram_of(*values))
    assert (found.low, found.high) == (np.float32(low), np.float32(high))
    assert found.largest == max(abs(np.float32(low)), abs(np.float32(high)), 0)
    assert found.mean == pytest.approx(mean, rel=1e-3) and found.smallest == pytest.approx(smallest, rel=1e-3)
    assert found.smallest is not None and found.smallest <= smallest
    assert found.infinite == (math.inf in values)


def test_of_infinities_alone_nothing_finite_is_known() -> None:
    found = range_of_histogram(histogram_of(math.inf, -math.inf), 2)
    assert (found.largest, found.mean, found.infinite, found.elements) == (0.0, None, True, 1)


def test_a_value_in_the_first_bin_may_lie_as_near_to_zero_as_it_likes() -> None:
    assert range_of_histogram(histogram_of(1000.0, 1e-6)).smallest == 0.0


def test_elements_are_counted_for_each_sample() -> None:
    assert range_of_histogram(histogram_of(*range(10)), 2).elements == 5
    assert range_of_histogram(histogram_of(1.0)).elements is None


def test_a_table_keeps_the_largest_value_beside_the_clipping_value() -> None:
    values = np.random.default_rng(0)
    batch = {"x": values.normal(size=(1, 4, 8, 8)).astype(np.float32)}
    batch["x"][0, 0, 0, 0] = 90.0
    table = calibrate(model_of(SMALL_NET), [batch], CalibrationOptions("percentile=99", progress=False))
    ranges = ranges_of_table(table)
    assert ranges.tensors["x"].largest == 90.0 and not ranges.tensors["x"].clipped
    assert float(table["x"].bits) * 127 < 10
    again = ranges_of_table(ScaleTable.from_json(table.to_json()))
    assert again.tensors == ranges.tensors and again.samples == 1


@pytest.mark.parametrize("method", ["mse", "max", "percentile=99.9", "auto"])
def test_every_tensor_of_a_table_has_the_largest_value_of_a_run(method: str) -> None:
    values = np.random.default_rng(1)
    batches = [{"x": values.normal(size=(2, 4, 8, 8)).astype(np.float32)} for _ in range(3)]
    model = model_of(SMALL_NET)
    table = ranges_of_table(calibrate(model, batches, CalibrationOptions(method, progress=False)))
    run = observe_ranges(Model(model), batches, CalibrationOptions(progress=False))
    assert set(table.tensors) == set(run.tensors) and run.input_shapes == {"x": (2, 4, 8, 8)}
    before_relu = {"c1", "c2"} if method != "max" else set()  # they take what gets through
    for name, found in run.tensors.items():
        expected = found.largest if name not in before_relu else max(found.high, 0.0)
        assert table.tensors[name].largest == pytest.approx(expected, rel=1e-4), name


def test_without_the_largest_value_a_scale_is_a_clipping_value() -> None:
    scales = {"a": Scale.of(1.0, method="max"), "b": Scale.of(1.0, method="mse"), "c": Scale.of(1.0, origin="qdq")}
    found = ranges_of_table(ScaleTable(scales, {"d": "is all zero", "e": "holds Inf"})).tensors
    assert [(name, found[name].largest, found[name].clipped) for name in "abcd"] == [
        ("a", 127.0, False),
        ("b", 127.0, True),
        ("c", 127.0, True),
        ("d", 0.0, False),
    ]
    assert "e" not in found


def test_assumed_ranges_hold_for_every_tensor() -> None:
    view = view_of(SMALL_NET)
    assert assumed_ranges(7.0).of(view, "anything") == ValueRange(-7.0, 7.0)


def test_pairs_are_seen_through() -> None:
    text = """g (float[4] x) => (float[4] y) <float s = {0.5}, int8 z = {0}> {
 q = QuantizeLinear(x, s, z)
 d = DequantizeLinear(q, s, z)
 y = Relu(d)
}"""
    ranges = ValueRanges({"x": ValueRange(-3.0, 3.0)})
    assert ranges.of(GraphView(model_of(text).graph), "d") == ValueRange(-3.0, 3.0)
    assert ranges.of(GraphView(model_of(text).graph), "y") is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("float[3] c = {1.0, -5.0, 0.0}", (5.0, 1.0)),
        ("float c = {-0.25}", (0.25, 0.25)),
        ("float[2] c = {0.0, 0.0}", (0.0, math.inf)),
        ("int64[2] c = {-7, 2}", (7.0, 2.0)),
    ],
)
def test_largest_and_smallest_magnitude(given: str, expected: tuple[float, float]) -> None:
    view = view_of(f"g (float[3] x) => (float[3] y) <{given}> {{ k = Cast<to = 1>(c) y = Add(x, k) }}")
    found = range_of_constant(view, "c")
    assert found is not None and (found.largest, found.smallest) == expected


def test_what_is_no_constant_has_no_values() -> None:
    assert range_of_constant(view_of("g (float[3] x) => (float[3] y) { y = Relu(x) }"), "x") is None


def test_behind_integers_the_scale_says_the_most_and_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[1,2] x) => (float[1,2] y) <int8[2,2] q = {1, 2, 3, 4}, float[2] s = {0.5, 2.0}> { w = DequantizeLinear<axis = 1>(q, s) y = MatMul(x, w) }"
    found = range_of_constant(view_of(text), "w")
    assert found is not None and found.largest == 510.0


def test_nan_and_infinity_are_passed_over() -> None:
    view = view_of("g (float[2] x) => (float[2] y) <float[2] c> { y = Add(x, c) }")
    view.initializers["c"].raw_data = np.array([np.inf, 3.0], "<f4").tobytes()
    assert range_of_constant(view, "c") == ValueRange(-3.0, 3.0, smallest=3.0)
