# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Each trained number's rate, largest magnitude and decay, on one MatMul with a pair on its weight and a bias."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqtool.graph.model import Model
from qdqtool.training.options import UpdateOptions
from qdqtool.training.parameters import Parameters, channel_steps, steps_of_weight
from qdqtool.training.training_graph import Ranges, TrainingGraph, make_form
from qdqtool.training.weight_limits import at_bound, decayed, lr_multipliers, magnitude_bounds
from tests.graphs import model_of

F = np.float32
QDQ = """net (float[N,2] x) => (float[N,2] y)
    <float s = {0.5}, int8 z = {0}, float[2,2] w = {1, -12.7, 3, 20}, float ws = {0.1}, int8 wz = {0},
     float[2] b = {5, 6}>
{
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
    wq = QuantizeLinear(w, ws, wz) wd = DequantizeLinear(wq, ws, wz)
    m = MatMul(d, wd) y = Add(m, b)
}"""


def problem(ranges: Ranges = "fixed") -> tuple[TrainingGraph, Parameters, dict[str, Any]]:
    form = make_form(Model(model_of(QDQ, 17)), ranges)
    values = {name: form.initial()[name] for name in form.parameters}
    return form, Parameters(values, scales=form.scales), values


def of(parameters: Parameters, vector: np.ndarray) -> dict[str, list[float]]:
    """A vector over the parameters, by the name of each."""
    return {name: found.ravel().tolist() for name, found in Parameters.values(parameters, vector).items()}


def test_the_rate_is_in_steps_of_each_weight() -> None:
    form, parameters, values = problem()
    found = of(parameters, lr_multipliers(form, parameters, values, UpdateOptions()))
    assert found["w"] == [float(F(0.1))] * 4
    assert found["b"] == steps_of_weight(values["b"]).ravel().tolist() * (2 // steps_of_weight(values["b"]).size)


def test_a_searched_rate_is_in_steps_of_each_channel() -> None:
    text = "net (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, -12.7, 3, 20}, float[2,2] v = {1, 2, 3, 4}> { m = MatMul(x, w)  y = MatMul(m, v) }"
    form = make_form(Model(model_of(text, 17)))
    values = {name: form.initial()[name] for name in form.parameters}
    parameters = Parameters(values)
    found = of(parameters, lr_multipliers(form, parameters, values, UpdateOptions(rise=1.05)))
    given = of(parameters, lr_multipliers(form, parameters, values, UpdateOptions()))
    assert set(given["w"]) == {float(steps_of_weight(values["w"]))}
    assert form.in_float and not problem()[0].in_float
    assert found["w"] == channel_steps(values["w"]).ravel().tolist() and len(set(found["w"])) == 4


def test_an_absolute_rate_is_that_of_every_weight() -> None:
    form, parameters, values = problem()
    assert (lr_multipliers(form, parameters, values, UpdateOptions(lr=0.1)) == 1).all()


def test_scales_have_a_rate_of_their_own() -> None:
    form, parameters, values = problem("learn")
    update = UpdateOptions(lr=0.5, scale_lr=0.125)
    multipliers = lr_multipliers(form, parameters, values, update)
    slots = parameters.slots
    assert [name for name in slots if slots[name].logarithm] == list(form.scales) != []
    assert np.count_nonzero(multipliers == F(0.25)) == len(form.scales)
    assert np.count_nonzero(multipliers == 1) == parameters.vector.size - len(form.scales)


@pytest.mark.parametrize(
    ("name", "bounds"), [("w", [12.7, 12.7, 12.7, 20.0]), ("b", [np.inf, np.inf])], ids=["weight", "bias"]
)
def test_a_weight_stays_within_its_pair_or_what_it_was(name: str, bounds: list[float]) -> None:
    form, parameters, values = problem()
    found = of(parameters, magnitude_bounds(form, parameters, values))
    assert found[name] == pytest.approx(bounds)


def test_where_the_scale_is_learned_the_weight_has_no_bound() -> None:
    form, parameters, values = problem("learn")
    assert np.isinf(magnitude_bounds(form, parameters, values)).all()


def test_the_largest_weights_are_at_their_bound() -> None:
    form, parameters, values = problem()
    held = at_bound(parameters, magnitude_bounds(form, parameters, values))
    assert of(parameters, held.astype(F))["w"] == [0, 1, 0, 1], "-12.7 is what 127 steps hold, 20 lies above"
    assert of(parameters, held.astype(F))["b"] == [0, 0]


def test_weights_decay_and_biases_do_not() -> None:
    form, parameters, values = problem()
    assert of(parameters, decayed(form, parameters, values)) == {"w": [1.0] * 4, "b": [0.0] * 2}
