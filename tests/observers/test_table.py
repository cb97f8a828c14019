# SPDX-License-Identifier: Apache-2.0
"""From counted histograms to scales: tensors of the same values have one search for a clipping value, and one scale."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.amax.histogram import Histogram
from qdqtool.amax.methods import Method, choose_amax
from qdqtool.observers import table
from qdqtool.observers.collect import count_batches
from qdqtool.observers.options import CalibrationOptions
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
    state = count_batches(model_of(NET, 17), None, batches, options)
    scales = table.read_table(state, Method("mse")).scales
    assert list(scales) == ["x", "t", "y", "n", "z"]
    assert scales["x"] == scales["t"] == scales["y"] and scales["z"] != scales["n"] != scales["x"]
    assert len(searched) == 3  # of x, n and z


def test_a_tensor_that_an_activation_alone_reads_takes_the_scale_behind_it() -> None:
    net = "g (float[2,3] x) => (float[2,3] y) <float[3,3] w = {1,0,0,0,1,0,0,0,1}> { a = MatMul(x, w) y = Relu(a) }"
    batches = [{"x": np.array([[3, -9, 1], [2, -5, 0.5]], np.float32)}]
    scales = table.read_table(count_batches(model_of(net, 17), None, batches, CalibrationOptions("mse")), Method("mse"))
    assert scales["a"].bits == scales["y"].bits and (scales["a"].origin, scales["y"].origin) == ("derived", "ptq")
