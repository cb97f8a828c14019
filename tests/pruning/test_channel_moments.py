# SPDX-License-Identifier: Apache-2.0
"""Means of channels over data, by hand; and data on which a channel has none."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool import PruneOptions, prune
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.pruning.channel_moments import channel_moments
from qdqtool.pruning.probe import ProbeRun
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

DOUBLED = "g (float[N,2,1,2] x) => (float[N,2,1,2] y) { t = Add(x, x)  y = Relu(t) }"
NET = """g (float[N,1,2,2] x) => (float[N,2,2,2] y) <float[4,1,1,1] w, float[2,4,1,1] u> {
    a = Conv(x, w)  b = Relu(a)  y = Conv(b, u) }"""


def test_means_over_samples_and_places() -> None:
    """Channels of t: 2, 4 and 6, 8 in the first batch; 0, 0 and 2, 2 in the two samples of the second."""
    first = np.array([[1, 2], [3, 4]], np.float32).reshape(1, 2, 1, 2)
    second = np.array([[0, 0], [1, 1]] * 2, np.float32).reshape(2, 2, 1, 2)
    data = [{"x": first}, {"x": second}]
    found = channel_moments([("t", 1), ("t", 3)], ProbeRun(Model(model_of(DOUBLED)), data), data)
    mean, square = found["t", 1]
    assert mean == pytest.approx([(2 + 4) / 6, (6 + 8 + 4 * 2) / 6])
    assert square == pytest.approx([(4 + 16) / 6, (36 + 64 + 4 * 4) / 6])
    assert found["t", 3][0] == pytest.approx([(2 + 6 + 2 * 2) / 6, (4 + 8 + 2 * 2) / 6])


@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_a_channel_without_a_mean_is_named(value: float) -> None:
    """The last one is finite, but twice of it is beyond float32."""
    data = [{"x": np.full((1, 2, 1, 2), value, np.float32)}]
    with pytest.raises(QdqError, match="t: holds NaN"):
        channel_moments([("t", 1)], ProbeRun(Model(model_of(DOUBLED)), data), data)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("weights", "message"),
    [((1.8e38, 1e-3), "b: holds NaN"), ((1e20, 3e20), r"y: would have a bias beyond float32; .*--no-correct")],
)
def test_prune_says_why_there_is_no_corrected_bias(weights: tuple[float, float], message: str) -> None:
    """Channels of a are a big number times x, and u sums them: beyond float32 at once, or in the bias only."""
    model = model_of(NET)
    for held, value in zip(model.graph.initializer, weights, strict=True):
        size = int(np.prod(held.dims))
        held.float_data[:] = []
        held.raw_data = (value * (1 + np.arange(size) / size)).astype(np.float32).tobytes()
    data = {"x": np.full((4, 1, 2, 2), 2, np.float32)}
    with pytest.raises(QdqError, match=message):
        prune(model, data, PruneOptions(ratio=0.5))
