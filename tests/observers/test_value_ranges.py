# SPDX-License-Identifier: Apache-2.0
"""Ranges of a run: every tensor has one, as the arrays show it; what the feed is makes no difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from qdqtool.calibration.engine import observe_ranges
from qdqtool.data.loader import inputs_of, open_loader
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.observers.collect import count_batches
from qdqtool.observers.options import CalibrationOptions
from qdqtool.observers.value_ranges import read_ranges
from qdqtool.runtime.activations import OrtActivations
from tests.graphs import SMALL_NET, model_of

QUIET = CalibrationOptions(progress=False)
NORMALIZED = """g (float[N,4,6,6] x) => (float[N,4,6,6] y) <float[4,4,1,1] w, float[4] s = {1.0, 2.0, 0.5, 1.0}, float[4] b = {0.0, 1.0, 0.0, 2.0}, float[4] m = {0.0, 0.0, 1.0, 0.0}, float[4] v = {1.0, 4.0, 1.0, 1.0}> {
 c = Conv(x, w)
 n = BatchNormalization(c, s, b, m, v)
 y = Relu(n)
}"""  # noqa: E501


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
