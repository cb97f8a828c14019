# SPDX-License-Identifier: Apache-2.0
"""Function bodies: the same numbers, names of their own, shapes that are known, attributes with their defaults."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.autodiff.decompose import Body, body_of
from qdqtool.fresh_names import FreshNames
from tests.autodiff.running import run_all
from tests.graphs import model_of
from tests.ort_session import PLAIN, session_of

SHAPES = {"x": (2, 3, 4, 2), "s": (3, 1, 1), "t": (2, 4, 2), "k": (3,)}
TYPES = {"x": 1, "s": 1, "t": 7, "k": 1}
FEED = {
    "x": np.random.default_rng(0).normal(0, 2, SHAPES["x"]).astype(np.float32),
    "s": np.array([0.1, -0.2, 0.3], np.float32).reshape(3, 1, 1),
    "t": np.random.default_rng(1).integers(0, 3, SHAPES["t"]),
    "k": np.array([1, 2, 0.5], np.float32),
}
INPUTS = "float[2,3,4,2] x, float[3,1,1] s, int64[2,4,2] t, float[3] k"
CASES = [
    ("y = Mish(x)", 18),
    ("y = HardSwish(x)", 17),
    ("y = Celu<alpha=0.7>(x)", 17),
    ("y = PRelu(x, s)", 17),
    ("y = Gelu(x)", 20),
    ('y = Gelu<approximate="tanh">(x)', 20),
    ("y = CastLike(t, x)", 19),
    ("y = MeanVarianceNormalization(x)", 17),
    ("y = MeanVarianceNormalization<axes=[1]>(x)", 18),
    ("y = NegativeLogLikelihoodLoss(x, t)", 17),
    ('y = NegativeLogLikelihoodLoss<reduction="none", ignore_index=1>(x, t, k)', 17),
    ("y = SoftmaxCrossEntropyLoss(x, t)", 17),
    ('y, z = SoftmaxCrossEntropyLoss<reduction="sum">(x, t, k)', 17),
]


def body(nodes: str, opset: int, taken: tuple[str, ...] = ()) -> tuple[onnx.ModelProto, Body | None]:
    model = model_of(f"g ({INPUTS}) => (float y) {{ {nodes} }}", opset)
    model.graph.node[0].name = "here"
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model, body_of(model.graph.node[0], opset, SHAPES, TYPES, FreshNames(taken).unique)


@pytest.mark.parametrize(("nodes", "opset"), CASES, ids=[f"{nodes} {opset}" for nodes, opset in CASES])
def test_a_body_computes_what_the_operator_computes(nodes: str, opset: int) -> None:
    model, found = body(nodes, opset)
    assert found is not None and all(node.name.startswith("here/") for node in found.nodes)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    made.graph.node.extend(found.nodes)
    wanted, got = (session_of(one, PLAIN).run(["y"], FEED)[0] for one in (model, made))
    np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6)
    seen = run_all(made, FEED)
    inner = {name for node in found.nodes for name in node.output} - {"y", "z"}
    assert {name: np.shape(seen[name]) for name in inner} == found.shapes
    assert {name: onnx.helper.np_dtype_to_tensor_dtype(np.asarray(seen[name]).dtype) for name in inner} == found.types


def test_names_of_the_graph_are_not_taken() -> None:
    plain, moved = (body("y = HardSwish(x)", 17, taken)[1] for taken in ((), ("y/HS_X__1",)))
    assert plain is not None and moved is not None
    assert list(plain.shapes) == ["y/HS_X__1"] and not set(plain.shapes) & set(moved.shapes)


@pytest.mark.parametrize(
    ("nodes", "opset"), [("y = Exp(x)", 17), ("y = Softplus(x)", 17), ("y = ThresholdedRelu(x)", 17)]
)
def test_an_operator_without_a_body_at_its_opset(nodes: str, opset: int) -> None:
    assert body(nodes, opset)[1] is None


def test_the_node_stays_as_it_was() -> None:
    model = model_of(f"g ({INPUTS}) => (float[2,3,4,2] y) {{ y = MeanVarianceNormalization(x) }}")
    node, before = model.graph.node[0], model.SerializeToString(deterministic=True)
    assert body_of(node, 17, SHAPES, TYPES, FreshNames(()).unique) is not None
    assert model.SerializeToString(deterministic=True) == before
