# SPDX-License-Identifier: Apache-2.0

"""A Mul that divides, and readers that make up for it: weights that are shared, of every operator."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Read
from qdqtool.passes.condition.constants import narrowed, read_constant
from qdqtool.passes.condition.smooth import Division, divide
from tests.graphs import model_of

FACTORS = np.array([2.0, 0.25, 3.0, 1.0], np.float32)
X = np.random.default_rng(0).normal(size=(1, 4, 5, 5)).astype(np.float32)


def run(proto: onnx.ModelProto, x: npt.NDArray[np.float32] = X) -> list[npt.NDArray[np.float32]]:
    made = ReferenceEvaluator(proto).run(None, {"x": x})
    assert isinstance(made, list)
    return made


def divided(proto: onnx.ModelProto, one: Division, *readers: str) -> tuple[onnx.ModelProto, dict[str, str]]:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    done = divide(Model(copy), [one], dict.fromkeys(readers, FACTORS))
    onnx.checker.check_model(copy)
    return copy, done


def by_mul(tensor: str, *reads: tuple[str, int], axis: int = 1, rank: int = 4) -> Division:
    return Division(tensor, FACTORS, axis, rank, tuple(Read(*read) for read in reads))


TWO = """g (float[1,4,5,5] x) => (float[1,2,5,5] y, float[1,4,5,5] z) <float[4,4,1,1] w, float[2,4,1,1] u>
{ c = Conv(x, w)  r = Relu(c)  y = Conv(r, u)  z = Neg(r) }"""


def test_a_mul_is_read_by_those_named_alone() -> None:
    proto = model_of(TWO)
    made, done = divided(proto, by_mul("r", ("y", 0)), "y")
    assert [node.op_type for node in made.graph.node] == ["Conv", "Relu", "Mul", "Conv", "Neg"]
    assert done == {"r": "r_smooth"}
    assert made.graph.node[3].input[0] == "r_smooth"
    assert made.graph.node[4].input[0] == "r"
    for one, other in zip(run(made), run(proto), strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-6)


def test_a_mul_behind_an_input_stands_at_the_front() -> None:
    proto = model_of("g (float[1,4,5,5] x) => (float[1,2,5,5] y) <float[2,4,1,1] u> { y = Conv(x, u) }")
    made, _ = divided(proto, by_mul("x", ("y", 0)), "y")
    assert [node.op_type for node in made.graph.node] == ["Mul", "Conv"]
    assert run(made)[0] == pytest.approx(run(proto)[0], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("body", ["y = Gemm<transB=1>(r, u2)", "y = Gemm(r, u1)", "y = MatMul(r, u1)"])
def test_matrix_products(body: str) -> None:
    proto = model_of(f"""g (float[3,4] x) => (float[3,2] y) <float[4,4] w, float[4] b, float[4,2] u1, float[2,4] u2>
{{ c = Gemm(x, w, b)  r = Relu(c)  {body} }}""")
    x = X.reshape(-1)[:12].reshape(3, 4)
    made, _ = divided(proto, by_mul("r", ("y", 0), axis=1, rank=2), "y")
    assert run(made, x)[0] == pytest.approx(run(proto, x)[0], rel=1e-5, abs=1e-6)


def test_a_weight_that_others_read_is_copied() -> None:
    proto = model_of("""g (float[1,4,5,5] x) => (float[1,4,5,5] y, float[1,4,5,5] z) <float[4,4,1,1] w>
{ c = Conv(x, w)  r = Relu(c)  y = Conv(r, w)  z = Conv(x, w) }""")
    made, _ = divided(proto, by_mul("r", ("y", 0)), "y")
    assert [tensor.name for tensor in made.graph.initializer] == ["w", "r_smooth_factor", "w_conditioned"]
    assert made.graph.initializer[0].SerializeToString() == proto.graph.initializer[0].SerializeToString()
    for one, other in zip(run(made), run(proto), strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-6)


def test_a_weight_in_a_constant_node_moves_to_an_initializer() -> None:
    proto = model_of("g (float[1,4,5,5] x) => (float[1,2,5,5] y) <float[2,4,1,1] u> { y = Conv(x, u) }")
    tensor = proto.graph.initializer.pop()
    proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["u"], value=tensor))
    made, _ = divided(proto, by_mul("x", ("y", 0)), "y")
    assert [node.op_type for node in made.graph.node] == ["Mul", "Conv"]
    assert run(made)[0] == pytest.approx(run(proto)[0], rel=1e-5, abs=1e-6)


def test_what_float32_cannot_hold_is_refused() -> None:
    assert narrowed(np.array([1e38]), "w").dtype == np.float32
    with pytest.raises(QdqError, match="range of float32"):
        narrowed(np.array([1e39]), "w")
    view = GraphView(model_of(TWO).graph)
    assert read_constant(view, view.every[0], 1).shape == (4, 4, 1, 1)
    with pytest.raises(QdqError, match="plain float32 constant"):
        read_constant(view, view.every[0], 0)
