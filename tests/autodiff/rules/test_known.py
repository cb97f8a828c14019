# SPDX-License-Identifier: Apache-2.0
"""Values that do not depend on data are found through the arithmetic of exporters; what depends on data is not."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.autodiff.rules.known import KnownValues
from tests.graphs import model_of

SHAPES = {"x": (2, 3, 4), "y": (2, 3, 4), "big": (300, 300)}


def known(nodes: str, varying: frozenset[str] = frozenset()) -> KnownValues:
    model = model_of(f"g (float[2,3,4] x) => (float y) <float[3] w> {{ {nodes} y = Mul(x, w) }}")
    shapes = SHAPES | {name: () for node in model.graph.node for name in node.output if name not in SHAPES}
    fixed = {one.name: one for one in model.graph.initializer if one.name not in varying}
    return KnownValues(model.graph.node, fixed, model.opset_import[0].version, shapes)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("a = Constant<value_ints=[3,1]>()", [3, 1]),
        ("a = Constant<value_float=0.5>()", 0.5),
        ("a = Constant<value=int64[1]{7}>()", [7]),
        ("a = Shape(x)", [2, 3, 4]),
        ("a = Shape<start=-2>(x)", [3, 4]),
        ("a = Shape<start=0, end=-1>(x)", [2, 3]),
        ("s = Shape(x) i = Constant<value_int=1>() g = Gather(s, i) a = Add(g, g)", 6),
        ("s = Shape(x) f = Cast<to=1>(s) h = Constant<value_float=0.5>() m = Mul(f, h) a = Floor(m)", [1, 1, 2]),
    ],
)
def test_what_is_known(nodes: str, expected: object) -> None:
    value = known(nodes).value("a")
    assert value is not None
    np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Exp(x)",
        "a = NonZero(x)",
        "s = Shape(z) a = Add(s, s)",
        "s = Constant<value_ints=[300,300]>() big = ConstantOfShape(s) a = Exp(big)",
        "s = Constant<value_ints=[2]>() c = ConstantOfShape(s) a = RandomNormalLike(c)",
        "c = Constant<value_ints=[2]>() a = trt.Own(c)",
    ],
)
def test_what_is_not_known(nodes: str) -> None:
    assert known(nodes).value("a") is None


def test_an_initializer_is_known_unless_it_varies() -> None:
    assert known("").value("w") is not None
    assert known("", frozenset({"w"})).value("w") is None
    assert known("a = Neg(w)", frozenset({"w"})).value("a") is None


def test_a_name_that_nothing_makes() -> None:
    assert known("").value("nothing") is None
