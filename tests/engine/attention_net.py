# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""An attention of a size that one INT8 kernel takes, plain and with pairs. No tests here."""

from __future__ import annotations

import numpy as np

from qdqtool import InsertOptions, InsertResult, insert
from qdqtool.match.options import AttentionType, PlanOptions
from qdqtool.precision.options import Rest
from qdqtool.trtversion import parse
from tests.graphs import model_of

ATTENTION = """g (float[1,2,8,16] x) => (float[1,2,8,16] y) <float[16,16] wq, float[16,16] wk, float[16,16] wv, float[16,16] wo, float s = {0.25}>
{ q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) t = Transpose<perm = [0, 1, 3, 2]>(k)
  a = MatMul(q, t) m = Mul(a, s) p = Softmax<axis = -1>(m) o = MatMul(p, v) y = MatMul(o, wo) }"""


def inserted(how: AttentionType, rest: Rest) -> InsertResult:
    """With pairs, its attention in INT8 or in float."""
    plan = PlanOptions(trt_version=parse("11.4.1"), attention=how, float_heads="none")
    data = np.random.default_rng(0).normal(size=(4, 2, 8, 16)).astype(np.float32)
    return insert(model_of(ATTENTION), data=data, options=InsertOptions(plan, keep_float=0, rest=rest))
