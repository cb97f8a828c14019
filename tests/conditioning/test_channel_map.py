# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which input channel of which operator holds which channel of which tensor, found by running channel numbers."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.conditioning.channel_map import UNIT, Routes, find_routes
from qdqtool.conditioning.point_consumers import PointConsumers
from qdqtool.graph.view import Use
from tests.conditioning.nets import CONCAT, SILU, context_of, samples, spread
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


def routes_of(text: str, shape: tuple[int, ...] = (4, 6, 6)) -> Routes:
    proto = model_of(text)
    context = context_of(proto)
    return find_routes(context.model, context.ways, {"x": samples(1, shape)})


def test_a_reader_right_behind_a_tensor_has_its_channels_in_order() -> None:
    routes = routes_of(SILU)
    span = routes.spans["m1"]
    assert (span.axis, span.rank, span.channels) == (1, 4, 8)
    assert routes.consumers["y"].labels.tolist() == list(range(span.first, span.first + 8))
    assert routes.left == {}


def test_channels_of_a_concat_behind_a_pool_are_distinguished() -> None:
    routes = routes_of(CONCAT)
    one, other = routes.spans["m1"], routes.spans["m2"]
    expected = [*range(one.first, one.first + 8), *range(other.first, other.first + 8)]
    assert routes.consumers["y"].labels.tolist() == expected


def test_a_channel_shuffle_and_a_split_are_followed() -> None:
    routes = routes_of("""g (float[1,4,6,6] x) => (float[1,2,6,6] y, float[1,2,6,6] z)
<float[4,4,1,1] w, float[2,2,1,1] w2, float[2,2,1,1] w3, int64[5] s1 = {1,2,2,6,6}, int64[4] s2 = {1,4,6,6}, int64[2] two = {2,2}>
{ c = Conv(x, w)  r = Relu(c)  a = Reshape(r, s1)  t = Transpose<perm=[0,2,1,3,4]>(a)  b = Reshape(t, s2)
  p, q = Split<axis=1>(b, two)  y = Conv(p, w2)  z = Conv(q, w3) }""")
    first = routes.spans["r"].first
    assert (routes.consumers["y"].labels - first).tolist() == [0, 2]
    assert (routes.consumers["z"].labels - first).tolist() == [1, 3]


def test_features_of_a_flattened_picture_belong_to_its_channels() -> None:
    routes = routes_of("""g (float[1,4,6,6] x) => (float[1,3] y) <float[4,4,1,1] w, float[144,3] fc>
{ c = Conv(x, w)  r = Relu(c)  f = Flatten(r)  y = Gemm(f, fc) }""")
    expected = np.repeat(np.arange(4) + routes.spans["r"].first, 36)
    assert routes.consumers["y"].labels.tolist() == expected.tolist()


def test_halves_whose_bounds_the_graph_computes_are_followed() -> None:
    routes = routes_of("""g (float[1,4,6,6] x) => (float[1,2,6,6] y)
<float[4,4,1,1] w, float[2,2,1,1] w2, int64 one = {1}, int64[1] at = {1}, int64[1] far = {99}, int64 two = {2}, int64[1] front = {0}>
{ c = Conv(x, w)  r = Relu(c)  s = Shape(r)  n = Gather(s, one)  h = Div(n, two)  m = Unsqueeze(h, front)
  p = Slice(r, m, far, at)  y = Conv(p, w2) }""")
    assert (routes.consumers["y"].labels - routes.spans["r"].first).tolist() == [2, 3]


def test_an_operator_that_cannot_be_followed_leaves_the_tensor_alone() -> None:
    proto = model_of("""g (float[1,4,6,6] x) => (float[1,2,6,6] y) <float[4,4,1,1] w, float[2,4,1,1] w2, int64 one = {1}>
{ c = Conv(x, w)  r = Relu(c)  k = CumSum(r, one)  y = Conv(k, w2) }""")
    context = context_of(proto)
    view = context.view
    moves, reader = (view.producers["k"],), Use(view.producers["y"], 0)
    routes = find_routes(context.model, {"r": PointConsumers(moves, (reader,), (), ())}, {"x": samples(1)})
    assert routes.left.keys() == {"r"} and "cannot be followed" in routes.left["r"]
    assert (dict(routes.spans), dict(routes.consumers)) == ({}, {})


def test_channels_that_come_together_are_left_alone() -> None:
    routes = routes_of("""g (float[1,4,6,6] x) => (float[1,2,6,4] y)
<float[4,4,1,1] w, float[2,6,1,1] w2, int64[4] s = {1,6,6,4}>
{ c = Conv(x, w)  r = Relu(c)  a = Reshape(r, s)  y = Conv(a, w2) }""")
    assert "r" not in routes.spans
    assert "are mixed" in routes.left["r"] and routes.left["r"].endswith(" y")
    assert routes.spans["x"].channels == 4


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        ("y = Conv(r, w2)  d = Conv(x, w3)  z = Add(d, r)  e = Conv(z, w4)", "Add z reads it"),
        ("t = Transpose<perm=[0,1,3,2]>(r)  y = Conv(t, w2)", ""),
    ],
)
def test_a_reader_without_weights_stops(tail: str, reason: str) -> None:
    out = ", float[1,2,6,6] e" if "Add" in tail else ""
    routes = routes_of(f"""g (float[1,4,6,6] x) => (float[1,2,6,6] y{out})
<float[4,4,1,1] w, float[2,4,1,1] w2, float[4,4,1,1] w3, float[2,4,1,1] w4>
{{ c = Conv(x, w)  r = Relu(c)  {tail} }}""")
    assert routes.left.get("r", "")[: len(reason) or None] == reason


def test_a_value_given_out_behind_the_pair_stops() -> None:
    routes = routes_of("""g (float[1,4,6,6] x) => (float[1,2,6,6] y, float[1,4,6,6] p) <float[4,4,1,1] w, float[2,4,1,1] w2>
{ c = Conv(x, w)  r = Relu(c)  p = Transpose<perm=[0,1,3,2]>(r)  y = Conv(p, w2) }""")
    assert routes.left["r"] == "p is given out"


def test_what_is_not_divided_keeps_the_unit() -> None:
    routes = routes_of("""g (float[1,4,6,6] x) => (float[1,2,6,6] y, float[1,2,6,6] z)
<float[4,4,1,1] w, float[2,8,1,1] w2, float[4,4,1,1] v, float[4,4,1,1] v2, float[2,4,1,1] w3>
{ c = Conv(x, w)  r = Relu(c)  d = Conv(x, v)  u = Relu(d)  k = Concat<axis=1>(r, u)  y = Conv(k, w2)
  e = Conv(x, v2)  a = Add(e, u)  z = Conv(a, w3) }""")
    first = routes.spans["r"].first
    assert "u" not in routes.spans
    assert routes.left["u"].startswith("Add a ")
    assert routes.consumers["y"].labels.tolist() == [*range(first, first + 4), UNIT, UNIT, UNIT, UNIT]


def test_the_same_whatever_the_sample() -> None:
    proto = spread(CONCAT)
    context = context_of(proto)
    one, other = (find_routes(context.model, context.ways, {"x": samples()[i : i + 1]}) for i in (0, 5))
    assert one.spans == other.spans
    assert all((one.consumers[key].labels == other.consumers[key].labels).all() for key in one.consumers)
