# SPDX-License-Identifier: Apache-2.0
"""Mul nodes of `smooth` are counted by the bytes that they move: INT8 stays below FP16, or they are left out."""

from __future__ import annotations

import onnx
import pytest

from qdqtool import InsertOptions, insert
from qdqtool.conditioning import node_costs
from qdqtool.conditioning.node_costs import ROUNDED_BEFORE, TOO_MANY_BYTES
from qdqtool.conditioning.run import ConditionSettings, condition_model
from qdqtool.conditioning.smooth_step import Muls
from qdqtool.engine.cost import forecast
from qdqtool.engine.predict import predict_layers
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from tests.conditioning.nets import feed_of, samples, spread

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

PLAN = PlanOptions(float_heads="none")
# Three activations that only a Mul can divide; the channels of the first lie far apart.
CHAIN = """g (float[N,4,40,40] x) => (float[N,8,20,20] y)
<float[8,4,1,1] w1, float[8] b1, float[8,1,3,3] w2, float[8,8,1,1] w3, float[8,8,3,3] w4>
{ c1 = Conv(x, w1, b1)  s1 = Sigmoid(c1)  m1 = Mul(c1, s1)
  c2 = Conv<pads=[1,1,1,1], group=8>(m1, w2)  s2 = Sigmoid(c2)  m2 = Mul(c2, s2)
  c3 = Conv(m2, w3)  s3 = Sigmoid(c3)  m3 = Mul(c3, s3)  y = Conv<pads=[1,1,1,1], strides=[2,2]>(m3, w4) }"""


def done(muls: Muls, **plan: str) -> tuple[onnx.ModelProto, dict[str, str], int]:
    proto = spread(CHAIN, names=("w1", "b1", "w2"))
    options = PlanOptions(float_heads="none", **plan)  # type: ignore[arg-type]
    loader = feed_of(proto, samples(4, (4, 40, 40)))
    reported = condition_model(Model(proto), loader, ConditionSettings(("smooth",), options, muls=muls))
    return proto, reported.left, reported.count("smooth")


def bytes_of(proto: onnx.ModelProto) -> int:
    view = GraphView(proto.graph)
    moved = forecast(view, predict_layers(view)).bytes_moved
    assert moved is not None
    return moved


def quantized(proto: onnx.ModelProto) -> onnx.ModelProto:
    made = insert(proto, options=InsertOptions(plan=PLAN)).model
    assert isinstance(made, onnx.ModelProto)
    return made


def test_int8_stays_below_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_costs, "FEW_BYTES", 0)
    plain = bytes_of(spread(CHAIN))
    every, _, wanted = done("all")
    fitting, left, kept = done("fitting")
    assert bytes_of(quantized(every)) > plain > bytes_of(quantized(fitting))
    assert kept < wanted
    assert sum(why.endswith(TOO_MANY_BYTES) for why in left.values()) == wanted - kept


@pytest.mark.slow
def test_where_bytes_do_not_count_all_that_win_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = done("all")[2]
    assert done("fitting")[2] == wanted > 0
    monkeypatch.setattr(node_costs, "FEW_BYTES", 0)
    assert done("fitting", target="rtx")[2] == done("all", target="rtx")[2] > 0  # its kernels take a Mul in


def test_the_dla_gets_none() -> None:
    """Its SiLU is rounded before a Mul could divide it, so that each is one rounding more."""
    proto, left, kept = done("fitting", target="dla")
    assert kept == 0 and any(why.startswith(ROUNDED_BEFORE) for why in left.values())
    assert len(proto.graph.node) == len(spread(CHAIN).graph.node)
