# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""One dead Relu (all zero on any data) through the verbs: it stays in float and is named, the rest is quantized."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import qdqtool as verbs
from qdqtool.errors import QdqError
from qdqtool.match.plan import PlanOptions, explain
from qdqtool.trtversion import TrtVersion
from tests.graphs import model_of

V8_5 = TrtVersion(8, 5, 2)
BODY = "c1 = Conv<pads=[1,1,1,1]>(x, w1) r1 = Relu(c1) c2 = Conv<pads=[1,1,1,1]>(r1, w2, low) r2 = Relu(c2)"
WEIGHTS = "float[8,3,3,3] w1, float[8,8,3,3] w2, float[8] low"
ALONE = f"g (float[N,3,8,8] x) => (float[N,8,8,8] z) <{WEIGHTS}, float[8,8,3,3] w3, float[8,8,3,3] w4> {{ {BODY} c3 = Conv<pads=[1,1,1,1]>(r2, w3) r3 = Relu(c3) a = Add(r3, r1) z = Conv<pads=[1,1,1,1]>(a, w4) }}"
JOINED = f"g (float[N,3,8,8] x) => (float[N,8,8,8] z) <{WEIGHTS}, float[8,16,3,3] w3> {{ {BODY} k = Concat<axis=1>(r1, r2) z = Conv<pads=[1,1,1,1]>(k, w3) }}"
ALL = verbs.InsertOptions(plan=PlanOptions(float_heads="none"))


def dead(text: str) -> onnx.ModelProto:
    """The network; a bias far below zero makes r2 zero whatever comes in."""
    model = model_of(text)
    low = next(tensor for tensor in model.graph.initializer if tensor.name == "low")
    low.CopyFrom(numpy_helper.from_array(np.full(8, -1e4, np.float32), "low"))
    return model


def samples() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(3)]


@pytest.mark.parametrize("method", ["auto", "mse", "entropy"])
def test_it_stays_in_float_and_is_named(method: str) -> None:
    from qdqtool.observers.options import CalibrationOptions

    options = verbs.InsertOptions(plan=ALL.plan, calibration=CalibrationOptions(method, progress=False))
    done = verbs.insert(dead(ALONE), data=samples(), options=options)
    assert {point.tensor for point in done.plan.activations} == {"x", "r1", "a"}
    assert any(re.match(r"2 tensors .*: r2 \(is all zero .*, c3\b", note) for note in done.notes)
    reported = "\n".join(explain(verbs.plan(done.model, ALL.plan), "r2"))
    assert "r2: left in float by rule no-scale: is all zero" in reported
    assert not verbs.insert(done.model, scales=done.table, options=ALL).inserted.added, "L2"
    assert not [one for one in verbs.lint(done.model).findings if one.code in ("Q013", "Q026", "Q028")]


def test_a_table_that_says_so_does_the_same_and_one_that_lacks_it_is_refused() -> None:
    placed = verbs.insert(dead(ALONE), data=samples(), options=ALL)
    again = verbs.insert(dead(ALONE), scales=placed.table, options=ALL)
    assert again.plan.points == placed.plan.points
    silent = type(placed.table)(placed.table.scales)
    with pytest.raises(QdqError, match="r2: no scale "):
        verbs.insert(dead(ALONE), scales=silent, options=ALL)


def test_where_it_shares_a_scale_it_takes_that_of_the_others() -> None:
    done = verbs.insert(dead(JOINED), data=samples(), options=ALL)
    assert done.inserted.scales["r2"].same_bits(done.inserted.scales["r1"])
    assert not [note for note in done.notes if "in float: " in note]


@pytest.mark.parametrize("text", [ALONE, JOINED], ids=["alone", "joined"])
def test_choosing_and_conditioning_go_on(text: str) -> None:
    options = verbs.InsertOptions(plan=ALL.plan, keep_float=1, condition="auto")
    assert verbs.insert(dead(text), data=samples(), options=options).plan.points
    found = verbs.sensitivity(dead(text), samples(), verbs.SensitivityOptions(plan=ALL.plan)).ranking
    assert {one.node for one in found.findings} == {"c1", "c2", "z"}
    assert 0 <= found.loss < 0.1


def test_for_the_dla_it_is_left_out_and_peeled_without() -> None:
    options = verbs.InsertOptions(plan=PlanOptions("dla", V8_5))
    done = verbs.insert(dead(ALONE), data=samples(), options=options)
    left = {one.site for one in done.plan.refusals if one.rule == "no-scale"}
    assert "r2" in left and any("r2 (is all zero)" in note for note in done.notes)
    peeled = verbs.peel(done.model, verbs.PeelOptions(V8_5, target="dla"))
    assert peeled.table.unscaled["r2"] == "is all zero" and "r1" in peeled.cache.entries


def test_data_that_are_all_zero_are_refused() -> None:
    zeros = [{"x": np.zeros((1, 3, 8, 8), np.float32)}]
    with pytest.raises(QdqError, match=r"x: is quantized, .*zero in 1 samples"):
        verbs.insert(dead(ALONE), data=zeros, options=ALL)
