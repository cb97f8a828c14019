# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Networks for the tests of graft, caches for them, and what stands in a model that came out. No tests here."""

from __future__ import annotations

import numpy as np
import onnx

from qdqtool.cache.text import Cache
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.insert import pair_scale
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.graft import graft
from qdqtool.verbs.graft_options import GraftOptions, GraftResult
from tests.graphs import model_of

V8_6 = TrtVersion(8, 6, 1)
NET = """g (float[1,4,8,8] x) => (float[1,3] z, float[1,4,7,7] t) <float[4,4,1,1] w1, float[4] b, float[4] s, float[4] v = {1,2,3,4}, float[4,4,1,1] w2, float[4,8,1,1] w8, float[4,3] fc, float one = {1}> {
 [first] c = Conv(x, w1, b) n = BatchNormalization(c, s, s, s, v) r = Relu(n) [second] d = Conv(r, w2) e = Add(d, r) f = Relu(e)
 k = Concat<axis=1>(f, r) [third] h = Conv(k, w8) m = MaxPool<kernel_shape=[2,2]>(h) [fourth] o = Conv(m, w2) t = Add(o, one) g = GlobalAveragePool(o) i = Flatten(g) z = MatMul(i, fc) }"""
CHAIN = "g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,4,1,1] w1, float[4,4,1,1] w2> { [first] c = Conv(x, w1) r = Relu(c) [second] z = Conv(r, w2) }"
UPSAMPLED = """g (float[1,4,8,8] x, float[1,4,16,16] s) => (float[1,4,16,16] z) <float[4,4,1,1] w1, float[4,8,1,1] w2, float[4] f = {1,1,2,2}>
 { c = Conv(x, w1) r = Relu(c) u = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(r, , f) k = Concat<axis=1>(u, s) z = Conv(k, w2) }"""


def entries(*names: str) -> dict[str, np.float32]:
    """Another float32 for every name, none of them a round number."""
    values = np.random.default_rng(len(names)).uniform(0.001, 3, len(names)).astype(np.float32)
    return dict(zip(names, values, strict=True))


def cache_of(*names: str) -> Cache:
    return Cache.of(V8_6, entries(*names))


def all_names(model: onnx.ModelProto) -> list[str]:
    return [v.name for v in model.graph.input] + [name for node in model.graph.node for name in node.output]


def pairs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Tensor -> the scale of the pair on it, weights too."""
    view = GraphView(model.graph)
    assert all(len(on) == 1 for on in view.pairs.values())
    return {name: pair_scale(view, on[0]).bits for name, on in view.pairs.items()}


def activations(model: onnx.ModelProto) -> dict[str, bytes]:
    stored = {tensor.name for tensor in model.graph.initializer}
    return {name: bits.tobytes() for name, bits in pairs(model).items() if name not in stored}


def grafted(text: str, *names: str, **options: object) -> GraftResult:
    return graft(model_of(text), cache_of(*names), GraftOptions(**options))  # type: ignore[arg-type]


def with_version(version: str) -> PlanOptions:
    """The plan of a version, heads in INT8."""
    return PlanOptions(trt_version=version, float_heads="none")
