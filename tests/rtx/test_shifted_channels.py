# SPDX-License-Identifier: Apache-2.0
"""The step `shift` in an engine: its Add and its Pad are no layers of their own, and products stay in INT8."""

from __future__ import annotations

import numpy as np
import pytest

import qdqtool
from qdqtool.match.plan import PlanOptions
from qdqtool.tensorrt_rtx.build import build_engine
from qdqtool.tensorrt_rtx.cost import EngineCost, cost_of
from tests.graphs import model_of

TEXT = """g (float[1,32,32,32] x) => (float[1,64,32,32] y)
<float[64,32,1,1] w1, float[64,1,3,3] w2, float[64,64,1,1] w3,
 float[64] b = {BIAS}, float[64] b2 = {BIAS}, float[64] b3>
{ c1 = Conv(x, w1, b)  s1 = Sigmoid(c1)  m1 = Mul(c1, s1)
  c2 = Conv<pads=[1,1,1,1], group=64>(m1, w2, b2)  s2 = Sigmoid(c2)  m2 = Mul(c2, s2)  y = Conv(m2, w3, b3) }"""


def cost(steps: str | None) -> tuple[EngineCost, list[str]]:
    """The engine of the network in INT8 with its rest in FP16, and what `insert` wrote."""
    model = model_of(TEXT.replace("{BIAS}", "{" + ",".join(["4"] * 64) + "}"))
    data = np.random.default_rng(0).normal(size=(24, 32, 32, 32)).astype(np.float32)
    options = qdqtool.InsertOptions(
        plan=PlanOptions("rtx", float_heads="none"), condition=steps, keep_float=0, rest="fp16", advise=False
    )
    made = qdqtool.insert(model, data=data, options=options).model
    return cost_of(build_engine(made)), [node.op_type for node in made.graph.node]


@pytest.mark.rtx
def test_kernels_take_the_add_and_the_pad_in() -> None:
    plain, before = cost(None)
    shifted, after = cost("shift")
    assert [after.count(op) - before.count(op) for op in ("Pad", "Add")] == [1, 2]
    assert shifted.products == plain.products == {"INT8": 3}
    assert shifted.layers == plain.layers
