# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""A Mul must not move pairs; the skip of a residual block that it costs must be worth it."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.conditioning.placement import LEAST_SKIP, MUL, kept_edits
from qdqtool.passes.condition.smooth import Division
from tests.conditioning.nets import context_of
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

RESIDUAL = """g (float[1,4,6,6] x) => (float[1,2,6,6] y)
<float[4,4,1,1] v, float[4,4,1,1] w, float[4,4,1,1] z, float[2,4,1,1] u>
{ c = Conv(x, v)  s = Relu(c)  d = Conv(s, w)  e = Conv(s, z)  a = Add(e, s)  r = Relu(a)  y = Conv(r, u)  q = Neg(d) }"""


def test_a_mul_behind_a_residual_is_made_only_where_it_wins_much() -> None:
    proto = model_of(RESIDUAL)
    context = context_of(proto)
    reads = {point.tensor: point.reads for point in context.plan.activations}
    assert {read.node for read in reads["s"]} >= {"a"}
    one = Division("r", np.full(4, 2.0, np.float32), 1, 4, reads["r"])
    kept, left = kept_edits(context, [one], {"r": LEAST_SKIP}, MUL)
    assert (kept, left) == ([one], {})
    kept, left = kept_edits(context, [one], {"r": LEAST_SKIP - 0.1}, MUL)
    assert kept == [] and left.keys() == {"r"} and left["r"].startswith("a Mul ")


def test_a_plain_mul_moves_nothing() -> None:
    proto = model_of(RESIDUAL)
    context = context_of(proto)
    reads = {point.tensor: point.reads for point in context.plan.activations}
    one = Division("x", np.full(4, 2.0, np.float32), 1, 4, reads["x"])
    before = proto.SerializeToString()
    assert kept_edits(context, [one], {"x": 0.5}, MUL) == ([one], {})
    assert proto.SerializeToString() == before
