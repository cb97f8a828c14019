# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""What lint says of numbers that FP16 does not hold."""

from __future__ import annotations

import pytest

from tests.graphs import model_of
from tests.linting.quantized import findings_of, graph, pair, places_of

NUMBERS = """float low = {-3.4e38}, float billion = {1e9}, float most = {65504}, float above = {65536}, float minf = {-inf},
 float nan = {nan}, float[2] two = {1, -70000}, float[2] infs = {-inf, 1e6}, int64 whole = {100000}, int64[4] shape = {1,8,8,8}"""
BODIES = {
    "a mask that is added": ("y = Add(x, low)", ["low"]),
    "a mask that is chosen": ("c = Greater(x, most) y = Where(c, x, low)", ["low"]),
    "a factor": ("y = Mul(x, billion)", ["billion"]),
    "the largest that FP16 has": ("y = Mul(x, most)", []),
    "the next above": ("y = Mul(x, above)", ["above"]),
    "one of several": ("e = Reshape(x, s2) m = Mul(e, two) y = Reshape(m, shape)", ["two"]),
    "infinity was meant": ("y = Add(x, minf)", []),
    "NaN is another fault": ("y = Add(x, nan)", []),
    "a finite one beside infinity": ("e = Reshape(x, s2) m = Mul(e, infs) y = Reshape(m, shape)", ["infs"]),
    "bounds of Clip": ("y = Clip(x, low, billion)", []),
    "a bound of Min": ("y = Min(x, billion)", []),
    "statistics of BatchNormalization": ("y = BatchNormalization(x, g, b, b, huge)", []),
    "integers": ("h = Shape(x) k = Add(h, whole) y = Relu(x)", []),
    "a Constant node": ("k = Constant<value_float=-1e9>() y = Add(x, k)", ["k"]),
    "read by two operators": ("r = Add(x, low) y = Add(r, low)", ["low"]),
    "two constants": ("r = Add(x, low) y = Mul(r, billion)", ["low", "billion"]),
    "through a pair": (f"{pair('x', to='v')} {pair('big', to='w')} y = Add(v, w)", []),
}  # fmt: skip
MORE = f"{NUMBERS}, int64[2] s2 = {{256, 2}}, float[1] big = {{1e6}}, float[8] huge = {{1e7,1,1,1,1,1,1,1}}"


@pytest.mark.parametrize(("body", "expected"), BODIES.values(), ids=BODIES)
def test_q035_constants_that_fp16_does_not_hold(body: str, expected: list[str]) -> None:
    assert places_of(graph(body, more=MORE), "Q040") == expected


def test_q035_tells_the_operator_the_number_and_what_to_write() -> None:
    (finding,) = findings_of(graph("y = Add(x, low)", more=MORE), "Q040")
    assert finding.severity == "warning"
    assert finding.message == "Add y reads -3.4e+38 from it, FP16 ends at 65504"
    assert finding.fix == "a mask works with -10000 too; else keep the operator in FP32"


def test_q035_is_not_asked_for_a_dla() -> None:
    assert places_of(graph("y = Add(x, low)", more=MORE), "Q040", target="dla") == []


def test_q035_an_empty_constant() -> None:
    assert (
        places_of(model_of("g (float[2] x) => (float[2] y) <float[0] e = {}> { y = Concat<axis=0>(x, e) }"), "Q040")
        == []
    )
