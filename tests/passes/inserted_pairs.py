# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""A graph with much to quantize, and pairs put into graphs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.passes.insert import Inserted, insert_pairs
from qdqtool.scales import Scale
from tests.graphs import table_of

TEXT = """g (float[1,3,8,8] x) => (float[1,5] z) <float[4,3,3,3] w1, float[4] b1, float[4] s, float[4] v = {1,2,3,4}, float[4,4,3,3] w2, float[4,4,1,1] wp, float[64,5] fc> {
 c = Conv(x, w1, b1) n = BatchNormalization(c, s, s, s, v) r = Relu(n) d = Conv<pads=[1,1,1,1]>(r, w2) t = Add(d, r) u = Sigmoid(t) k = Mul(t, u)
 q = MaxPool<kernel_shape=[2,2],strides=[2,2]>(k) [pw] e = Conv<pads=[1,1,1,1]>(q, w2) f = ConvTranspose(q, wp) m = Concat<axis=1>(e, f) h = Conv<kernel_shape=[1,1]>(m, w8) l = Flatten(h) [fc] z = Gemm(l, fcw) }"""
TEXT = TEXT.replace("float[64,5] fc>", "float[4,8,1,1] w8, float[36,5] fcw>")


def inserted(
    model: onnx.ModelProto, *, scales: Mapping[str, Scale] | None = None, given: bool = False, **options: object
) -> tuple[Inserted, Plan]:
    view = GraphView(model.graph)
    plan = make_plan(view, PlanOptions(float_heads="none", **options))  # type: ignore[arg-type]
    return insert_pairs(view, plan, table_of(plan) if scales is None else scales, given=given), plan


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.SerializeToString())


def bytes_of(model: onnx.ModelProto) -> bytes:
    return model.SerializeToString(deterministic=True)
