# SPDX-License-Identifier: Apache-2.0
"""Classes and what was counted of them: tensors that share a scale, tensors that no weights read, shapes of a run."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.conditioning.channel_classes import ClassFamily, count_classes, find_classes
from qdqtool.conditioning.predict import relative_shares
from qdqtool.graph.channels.atoms import PINNED
from tests.conditioning.nets import RELU, SILU, context_of, samples, spread
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

RESIDUAL = """g (float[N,4,6,6] x) => (float[N,3,6,6] y)
<float[8,4,1,1] w1, float[8] b1, float[8,8,1,1] w2, float[3,8,1,1] w3>
{ c1 = Conv(x, w1, b1)  r1 = Relu(c1)  c2 = Conv(r1, w2)  a = Add(c2, r1)  r2 = Relu(a)  y = Conv(r2, w3) }"""
BATCHES = [{"x": row[None]} for row in samples()]


def counted(text: str, names: tuple[str, ...] = ("w1", "b1")) -> tuple[dict[str, ClassFamily], bool, dict[str, float]]:
    context = context_of(spread(text, names=names))
    classes = find_classes(context, BATCHES[0])
    found = count_classes(context, classes, BATCHES)
    return {one.family.spans[0].tensor: one for one in found.families}, classes.free, dict(found.amax)


def test_a_stream_is_one_class_for_each_channel_with_a_scale_for_each_tensor() -> None:
    families, free, amax = counted(RESIDUAL)
    assert free
    assert {"r1", "r2"} <= set(families) <= set(amax)
    assert (families["r1"].classes == families["r2"].classes).all()
    assert families["r1"].free.all() and len(set(families["r1"].classes.tolist())) == 8
    assert (families["x"].classes == PINNED).all()


def test_an_add_that_reads_int8_weighs_channels_as_those_behind_it_do() -> None:
    families, _, _ = counted(RESIDUAL)
    stream = families["r1"].family
    joins = [one for one in stream.consumers if one.key == "a"]
    assert [one.key for one in stream.consumers] == ["c2", "a"] and joins[0].rounded == "no"
    own, join = relative_shares(stream.table, stream.consumers)
    behind = relative_shares(families["r2"].family.table, families["r2"].family.consumers)[0]
    total = own + behind
    assert np.allclose(join / join.sum(), total / total.sum())


@pytest.mark.parametrize(("text", "free"), [(RELU, True), (RESIDUAL, True), (SILU, False)])
def test_whether_anything_may_be_divided(text: str, free: bool) -> None:
    assert counted(text)[1] == free


def test_nodes_whose_constants_must_stay_pin_what_they_touch() -> None:
    context = context_of(model_of(RESIDUAL))
    assert find_classes(context, BATCHES[0]).free
    assert not find_classes(context, BATCHES[0], frozenset({"c2"})).free


def test_free_sides_are_those_of_the_batch() -> None:
    text = """g (float[N,4,H,W] x) => (float[N,3,H,W] y)
    <float[8,4,1,1] w1, float[3,8,1,1] w2, int64[2] two = {0,-1}, int64[4] four = {0,8,6,6}>
    { c = Conv(x, w1)  s = Reshape(c, two)  t = Reshape(s, four)  r = Relu(t)  y = Conv(r, w2) }"""
    context = context_of(model_of(text))
    assert find_classes(context, BATCHES[0]).free
