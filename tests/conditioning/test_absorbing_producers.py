# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Who can take a division in, each guard with one case that passes and one that stops; and pairs that must not move."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.conditioning.absorbing_producers import absorbing_producers
from qdqtool.conditioning.channel_map import find_routes
from qdqtool.conditioning.placement import LEAST_SKIP, kept_divisions
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.condition.equalize import Division
from tests.conditioning.nets import context_of, samples
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

WEIGHTS = "float[4,4,1,1] w, float[4] b, float[4,1,1] a, float[2,4,1,1] u, float[4,1,1] slope, float zero = {0}, float six = {6}"


def makers(body: str, tensor: str, out: str = "") -> tuple[str, ...]:
    proto = model_of(f"g (float[1,4,6,6] x) => (float[1,2,c,d] y{out}) <{WEIGHTS}> {{ {body} }}")
    context = context_of(proto)
    routes = find_routes(context.view, proto, None, context.ways, {"x": samples(1)})
    return absorbing_producers(context, routes.spans[tensor])


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("c = Conv(x, w, b)  r = Relu(c)  y = Conv(r, u)", ("c",)),
        ("c = Conv(x, w, b)  r = LeakyRelu(c)  y = Conv(r, u)", ("c",)),
        ("c = Conv(x, w, b)  r = PRelu(c, slope)  y = Conv(r, u)", ("c",)),
        ("c = Conv(x, w)  d = Add(c, a)  r = Relu(d)  y = Conv(r, u)", ("d", "c")),
        ("c = Conv(x, w)  d = Mul(a, c)  r = Relu(d)  y = Conv(r, u)", ("d",)),
        ("c = Conv(x, w, b)  r = Clip(c, zero, six)  y = Conv(r, u)", ()),
        ("c = Conv(x, w, b)  s = Sigmoid(c)  r = Mul(c, s)  y = Conv(r, u)", ()),
        ("c = ConvTranspose(x, w, b)  r = Relu(c)  y = Conv(r, u)", ()),
        ("c = Conv(x, w, b)  r = Relu(c)  n = Neg(c)  m = Add(n, n)  k = Conv(r, u)  y = Identity(k)", ()),
    ],
)
def test_back_through_what_a_factor_passes(body: str, found: tuple[str, ...]) -> None:
    assert makers(body, "r") == found


def test_a_tensor_that_others_see_stays() -> None:
    body = "c = Conv(x, w, b)  r = Relu(c)  y = Conv(r, u)"
    assert makers(body, "r", ", float[1,4,6,6] r") == ()
    assert makers(body + "  n = Neg(r)", "r", ", float[1,4,6,6] n") == ()
    assert makers(body, "x") == ()


RESIDUAL = """g (float[1,4,6,6] x) => (float[1,2,6,6] y)
<float[4,4,1,1] v, float[4,4,1,1] w, float[4,4,1,1] z, float[2,4,1,1] u>
{ c = Conv(x, v)  s = Relu(c)  d = Conv(s, w)  e = Conv(s, z)  a = Add(e, s)  r = Relu(a)  y = Conv(r, u)  q = Neg(d) }"""


def test_a_mul_behind_a_residual_is_made_only_where_it_wins_much() -> None:
    proto = model_of(RESIDUAL)
    context = context_of(proto)
    reads = {point.tensor: point.reads for point in context.plan.activations}
    assert {read.node for read in reads["s"]} >= {"a"}
    one = Division("r", np.full(4, 2.0, np.float32), 1, 4, reads["r"], ())
    options = PlanOptions(float_heads="none")
    kept, left = kept_divisions(context, [one], {"r": LEAST_SKIP}, options)
    assert (kept, left) == ([one], {})
    kept, left = kept_divisions(context, [one], {"r": LEAST_SKIP - 0.1}, options)
    assert (kept, left) == ([], {"r": "a Mul behind it would move Q/DQ pairs"})


def test_a_plain_mul_and_a_division_in_weights_move_nothing() -> None:
    proto = model_of(RESIDUAL)
    context = context_of(proto)
    reads = {point.tensor: point.reads for point in context.plan.activations}
    one = Division("x", np.full(4, 2.0, np.float32), 1, 4, reads["x"], ())
    other = Division("r", np.full(4, 2.0, np.float32), 1, 4, (), ("a",))
    before = proto.SerializeToString()
    kept, left = kept_divisions(context, [one, other], {"x": 0.5, "r": 0.5}, PlanOptions(float_heads="none"))
    assert kept == [other, one]
    assert left == {}
    assert proto.SerializeToString() == before
