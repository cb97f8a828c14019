# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Pairs into a graph that has some: what is there stays, what is missing is added."""

from __future__ import annotations

import pytest

from qdqtool.errors import QdqError
from qdqtool.scales import Scale
from tests.graphs import model_of, plan_of, table_of
from tests.passes.inserted_pairs import TEXT, bytes_of, inserted

# ---------------------------------------------------------------- pairs that are there


def test_inserting_twice_gives_the_same_bytes() -> None:
    model = model_of(TEXT)
    scales = table_of(plan_of(model))
    inserted(model, scales=scales)
    once = bytes_of(model)
    for given in (False, True):
        done, plan = inserted(model, scales=scales if given else {}, given=given)
        assert bytes_of(model) == once
        assert done.added == () and done.kept == plan.points


def test_the_same_model_gives_the_same_bytes() -> None:
    first, second = model_of(TEXT), model_of(TEXT)
    inserted(first)
    inserted(second)
    assert bytes_of(first) == bytes_of(second)


SOME = """g (float[1,4,8,8] x) => (float[N] z, float[N] y) <float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,4,1,1] w3, float s = {0.25}, float s4 = {0.5}, int8 o = {0}> {
 c = Conv(x, w1) cq = QuantizeLinear(c, s, o) cd = DequantizeLinear(cq, s, o) wq = QuantizeLinear(w2, s4, o) wd = DequantizeLinear(wq, s4, o) z = Conv(cd, wd) y = Conv(c, w3) }"""


def test_pairs_that_are_there_stay_and_missing_ones_and_missing_readers_are_added() -> None:
    model = model_of(SOME)
    old = [node.SerializeToString() for node in model.graph.node if node.output[0] in ("cq", "cd", "wq", "wd", "z")]
    done, _ = inserted(model, scales={"x": Scale.of(0.1)})
    assert [point.tensor for point in done.kept] == ["c", "w2"]
    assert [point.tensor for point in done.added] == ["x", "w1", "w3"]
    assert [
        node.SerializeToString() for node in model.graph.node if node.output[0] in ("cq", "cd", "wq", "wd", "z")
    ] == old
    reader = next(node for node in model.graph.node if node.output[0] == "y")
    assert reader.input[0] == "cd", "a reader that missed the pair joins it"
    assert float(done.scales["c"].bits) == 0.25


def test_readers_that_have_pairs_of_their_own_keep_them() -> None:
    text = """g (float[1,4,8,8] x) => (float[N] z, float[N] y) <float[4,4,1,1] w1, float[4,4,1,1] w2, float s = {0.25}, float t = {0.125}, int8 o = {0}> {
     q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) q2 = QuantizeLinear(x, s, o) d2 = DequantizeLinear(q2, s, o)
     v = QuantizeLinear(w1, t, o) u = DequantizeLinear(v, t, o) v2 = QuantizeLinear(w2, t, o) u2 = DequantizeLinear(v2, t, o) z = Conv(d, u) y = Conv(d2, u2) }"""
    model = model_of(text)
    before = bytes_of(model)
    done, _ = inserted(model, scales={})
    assert bytes_of(model) == before and not done.added


def test_a_given_scale_that_differs_from_the_one_that_stands_is_a_conflict() -> None:
    model = model_of(SOME)
    before = bytes_of(model)
    with pytest.raises(QdqError, match=r"^c: its Q/DQ has the scale 3e800000, the table has 3f000000; --requantize"):
        inserted(model, scales={"x": Scale.of(0.1), "c": Scale.of(0.5)}, given=True)
    assert bytes_of(model) == before


def test_a_given_scale_of_a_weight_that_differs_from_the_one_that_stands_is_a_conflict() -> None:
    model = model_of(SOME)
    with pytest.raises(QdqError, match=r"^w2: its Q/DQ has the scale 3f000000, the table has 3f400000"):
        inserted(model, scales={"x": Scale.of(0.1), "w2": Scale.of(0.75)}, given=True)
    done, _ = inserted(model, scales={"x": Scale.of(0.1), "w2": Scale.of(0.5)}, given=True)
    assert "w2" in {point.tensor for point in done.kept}


@pytest.mark.parametrize(("value", "given"), [(0.25, True), (0.5, False)], ids=["the same", "not chosen by the user"])
def test_no_conflict(value: float, given: bool) -> None:
    done, _ = inserted(model_of(SOME), scales={"x": Scale.of(0.1), "c": Scale.of(value)}, given=given)
    assert float(done.scales["c"].bits) == 0.25


def test_a_missing_pair_of_a_tie_takes_the_scale_that_stands() -> None:
    text = """g (float[1,4,8,8] x) => (float[N] z) <float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,8,1,1] w3, float s = {0.25}, int8 o = {0}> {
     c = Conv(x, w1) cq = QuantizeLinear(c, s, o) cd = DequantizeLinear(cq, s, o) d = Conv(x, w2) k = Concat<axis=1>(cd, d) z = Conv(k, w3) }"""
    scales = {"x": Scale.of(0.1), "d": Scale.of(0.75)}
    done, _ = inserted(model_of(text), scales=scales)
    assert float(done.scales["d"].bits) == float(done.scales["c"].bits) == 0.25
    with pytest.raises(QdqError, match=r"^c: its Q/DQ has the scale 3e800000, the table has 3f400000"):
        inserted(model_of(text), scales=scales, given=True)
