# SPDX-License-Identifier: Apache-2.0
"""Divisions that `smooth` leaves to weights: no Mul where no other tensor holds the channels, and the same outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from qdqtool.conditioning.equalize_step import ClassState, count_state
from qdqtool.conditioning.free_divisions import carry_out, split_free
from qdqtool.conditioning.run import ConditionSettings, condition_model
from qdqtool.conditioning.smooth_step import decide_smooth, divisions_of
from qdqtool.conditioning.workspace import Workspace
from qdqtool.graph.edit import equalized_tensors
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.condition.smooth import Division
from tests.conditioning.nets import CONCAT, RELU, SILU, feed_of, run_model, samples, singles_of, spread

PLAN = PlanOptions(float_heads="none")
TWICE = """g (float[N,4,6,6] x) => (float[N,3,6,6] y)
<float[8,4,1,1] w1, float[8] b1, float[8,8,1,1] w2, float[8] b2, float[3,8,1,1] w3>
{ c1 = Conv(x, w1, b1)  r1 = Relu(c1)  c2 = Conv(r1, w2, b2)  a = Add(c2, r1)  r2 = Relu(a)  y = Conv(r2, w3) }"""


def state_of(proto: onnx.ModelProto) -> ClassState:
    return count_state(Workspace(Model(proto), singles_of(proto), PLAN))


def split(state: ClassState) -> tuple[list[str], list[str]]:
    verdicts, _ = decide_smooth(state, "float")
    free, paid = split_free(state, [one for verdict in verdicts for one in divisions_of(state.context, verdict)])
    return [one.tensor for one in free], [one.tensor for one in paid]


def test_a_tensor_whose_weights_can_take_factors_in_needs_no_mul() -> None:
    proto = spread(RELU)
    name = split(state_of(proto))[0]
    assert name, "something is divided"
    given = run_model(proto, samples())
    reported = condition_model(Model(proto), feed_of(proto), ConditionSettings(("smooth",), PLAN))
    assert [(edit.step, edit.site, edit.added) for edit in reported.edits] == [("smooth", name[0], "")]
    assert not [node for node in proto.graph.node if node.op_type == "Mul"]
    np.testing.assert_allclose(run_model(proto, samples()), given, rtol=0, atol=1e-5 * np.ptp(given))
    assert equalized_tensors(proto) == name


def test_behind_a_gate_it_takes_a_mul() -> None:
    assert split(state_of(spread(SILU))) == ([], ["m1"])


def test_channels_that_two_tensors_hold_are_not_divided_for_one() -> None:
    """The stream of a residual block: what weights divide is divided in both, a Mul divides one of them."""
    free, _ = split(state_of(spread(TWICE, names=("w1", "b1", "w2", "b2"))))
    assert "r1" not in free and "r2" not in free


def test_one_class_has_one_factor() -> None:
    state = state_of(spread(RELU))
    one_class = np.full_like(state.classes.labels["r1"], state.classes.labels["r1"][0])
    state = replace(state, classes=replace(state.classes, labels={"r1": one_class}))
    equal = np.full(one_class.size, 2, np.float32)
    made = [Division("r1", factors, 1, 4, ()) for factors in (equal, equal ** np.arange(one_class.size))]
    assert split_free(state, made) == (made[:1], made[1:])


@pytest.mark.parametrize("text", [RELU, CONCAT], ids=["one", "joined"])
def test_both_kinds_are_carried_out_at_once(text: str) -> None:
    proto = spread(text)
    given = run_model(proto, samples())
    state = state_of(proto)
    verdicts, _ = decide_smooth(state, "float")
    free, paid = split_free(state, [one for verdict in verdicts for one in divisions_of(state.context, verdict)])
    made = carry_out(Model(proto), state, free, paid)
    assert set(made) == {one.tensor for one in paid}
    np.testing.assert_allclose(run_model(proto, samples()), given, rtol=0, atol=1e-5 * np.ptp(given))
