# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Every class of a graph divided by a factor of its own, at random: the float function stays, and no node is added."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from qdqtool.errors import QdqError
from qdqtool.graph.channels.atoms import PINNED, ChannelAtoms
from qdqtool.graph.channels.factors import FactorClasses
from qdqtool.graph.model import Model
from qdqtool.graph.shapes import shapes_of
from qdqtool.graph.view import GraphView
from qdqtool.passes.condition.absorbers import factor_classes
from qdqtool.passes.condition.equalize import equalize
from tests.graphs import model_of

WEIGHTS = """float[4,4,1,1] w, float[4] b, float[4,4,3,3] k, float[4,1,3,3] d, float[4,2,1,1] g, float[2,4,1,1] u, float[4,2,2,2] t,
float[4] s, float[4] m, float[4] v = {1,2,3,4}, float[1,4,1,1] c, float[4,1,1] a, float one = {0.7}, float[4,1,1] slope, float zero = {0}, float six = {6},
float[8,4,1,1] w8, float[2,8,1,1] u8, float[4,2] q, float[4,4] p, float[16,3] f, int64[2] halves = {4,4}, int64[5] apart = {1,2,4,4,4}, int64[4] back = {1,8,4,4},
int64[8] border = {0,0,1,1,0,0,1,1}, int64[8] wide = {0,1,0,0,0,2,0,0}, int64[1] first = {1}, int64[1] last = {9}, int64[1] axis = {1}, int64[2] flat = {1,64}, int64[3] tokens = {1,4,16},
int64[4] order = {2,0,3,1}, float[1,1,1,1] two = {2}, float[64,3] h, float[1,4,4,4] field"""
X = np.random.default_rng(0).normal(size=(1, 4, 4, 4)).astype(np.float32)
RELU = "e = Conv(x, w, b)  r = Relu(e)"
# What stands between, and how many classes have a factor of their own.
NETS = {
    "relu": (f"{RELU}  y = Conv(r, u)", 4),
    "leaky, prelu": ("e = Conv(x, w, b)  l = LeakyRelu(e)  r = PRelu(l, slope)  y = Conv(r, u)", 4),
    "clip from 0": ("e = Conv(x, w, b)  r = Clip(e, zero)  y = Conv(r, u)", 4),
    "clip from 0 to 6": ("e = Conv(x, w, b)  r = Clip(e, zero, six)  y = Conv(r, u)", 0),
    "residual": (f"{RELU}  f1 = Conv(r, w)  z = Add(f1, r)  i = Relu(z)  f2 = Conv(i, w, b)  n = Sub(i, f2)  y = Conv(n, u)", 4),
    "depthwise": (f"{RELU}  i = Conv<group=4>(r, d)  y = Conv(i, u)", 8),
    "grouped": (f"{RELU}  i = Conv<group=2>(r, g)  y = Conv(i, u)", 8),
    "transposed": (f"{RELU}  i = ConvTranspose<group=1>(r, t)  j = Conv<group=2>(i, one_g)  y = Identity(j)", 6),
    "pool, pad": (f"{RELU}  i = MaxPool<kernel_shape=[2,2]>(r)  j = AveragePool<kernel_shape=[2,2]>(i)  n = Pad(j, border)  y = Conv(n, u)", 4),
    "pad of channels": (f"{RELU}  n = Pad(r, wide)  i = Slice(n, first, last, axis)  h2 = Conv(x, w8)  j = Slice(h2, first, last, axis)  y = Conv(i, u6)", 4),
    "pad of another value": (f"{RELU}  n = Pad(r, border, six)  y = Conv(n, u)", 0),
    "add of constants": (f"{RELU}  i = Add(r, a)  j = Add(one, i)  n = Max(j, field)  y = Conv(n, u)", 4),
    "mul of constants": ("e = Conv(x, w)  i = Mul(e, c)  j = Mul(i, one)  n = Div(j, c)  o = Mul(n, field)  y = Conv(o, u)", 8),
    "batch normalization": ("e = Conv(x, w)  n = BatchNormalization(e, s, b, m, v)  r = Relu(n)  y = Conv(r, u)", 8),
    "instance normalization": ("e = Conv(x, w)  n = InstanceNormalization(e, s, b)  y = Conv(n, u)", 4),
    "concat, shuffle, split": ("e = Conv(x, w)  f1 = Conv(x, w, b)  j = Concat<axis=1>(e, f1)  q1 = Reshape(j, apart)  q2 = Transpose<perm=[0,2,1,3,4]>(q1)  q3 = Reshape(q2, back)  h1, h2 = Split<axis=1>(q3, halves)  n = Add(h1, h2)  y = Conv(n, u)", 4),
    "gather": (f"{RELU}  i = Gather<axis=1>(r, order)  y = Conv(i, u)", 4),
    "same twice": (f"{RELU}  j = Concat<axis=1>(r, r)  y = Conv(j, u8)", 4),
    "silu": ("e = Conv(x, w)  n = Sigmoid(e)  i = Mul(e, n)  y = Conv(i, u)", 0),
    "gate": (f"{RELU}  p1 = GlobalAveragePool(r)  p2 = Conv(p1, w)  n = Sigmoid(p2)  i = Mul(n, r)  y = Conv(i, u)", 4),
    "square": (f"{RELU}  i = Mul(r, r)  y = Conv(i, u)", 0),
    "product of two": ("e = Conv(x, w)  f1 = Conv(x, w, b)  i = Mul(e, f1)  y = Conv(i, u)", 4),
    "flatten": (f"{RELU}  i = Flatten(r)  y = Gemm(i, h)", 4),
    "tokens": (f"{RELU}  i = Reshape(r, tokens)  j = Transpose<perm=[0,2,1]>(i)  n = MatMul(j, p)  o = Add(n, b)  q1 = Relu(o)  y = MatMul(q1, q)", 8),
    "layer norm": ("i = Reshape(x, tokens)  j = Transpose<perm=[0,2,1]>(i)  n = LayerNormalization(j, s, b)  y = MatMul(n, q)", 4),
    "layer norm of another axis": ("i = Reshape(x, tokens)  j = Transpose<perm=[0,2,1]>(i)  n = LayerNormalization<axis=1>(j, p16)  y = MatMul(n, q)", 0),
    "attention values": ("i = Reshape(x, tokens)  j = Transpose<perm=[0,2,1]>(i)  o = MatMul(j, p)  q1 = Transpose<perm=[0,2,1]>(j)  q2 = MatMul(j, q1)  n = Softmax(q2)  z = MatMul(n, o)  y = MatMul(z, q)", 4),
    "softmax over channels": (f"{RELU}  i = Softmax<axis=1>(r)  y = Conv(i, u)", 0),
    "mean over channels": (f"{RELU}  i = ReduceMean<axes=[1]>(r)  j = Add(i, r)  y = Conv(j, u)", 0),
    "mean over space": (f"{RELU}  i = ReduceMean<axes=[2,3]>(r)  y = Conv(i, u)", 4),
    "one channel added to all": (f"{RELU}  i = Conv(x, u1)  j = Add(r, i)  y = Conv(j, u)", 1),
    "an output": (f"{RELU}  y = Relu(r)", 0),
    "a weight that two read": (f"{RELU}  i = Conv(r, w)  j = Relu(i)  y = Conv(j, u)", 8),
    "a computed table": ("n = Expand(one, back4)  e = Conv(x, w)  i = Add(e, n)  y = Conv(i, u)", 0),
}  # fmt: skip
MORE = ", float[4,1,1,1] one_g, float[2,6,1,1] u6, float[16,4] p16, float[1,4,1,1] u1, int64[4] back4 = {1,4,4,4}"


def classes_of(model: onnx.ModelProto, **sets: set[str]) -> FactorClasses:
    view = GraphView(model.graph)
    return factor_classes(ChannelAtoms(view, shapes_of(view)), **sets)


def free_of(classes: FactorClasses) -> npt.NDArray[np.int64]:
    atoms = np.arange(classes.atoms.size)
    return np.unique([atom for atom in classes.atoms.find(atoms) if atom > PINNED]).astype(np.int64)


def used_of(classes: FactorClasses) -> set[int]:
    """Classes that some node makes up for: those of unread tensors are of no interest."""
    return {int(label) for site in classes.sites for label in site.reads if label > PINNED}


def factors_of(classes: FactorClasses, seed: int = 1) -> npt.NDArray[np.float64]:
    factors = np.ones(classes.atoms.size)
    free = free_of(classes)
    factors[free] = np.exp(np.random.default_rng(seed).uniform(-3, 3, free.size))
    return factors


def run(model: onnx.ModelProto) -> npt.NDArray[np.float32]:
    made = ReferenceEvaluator(model).run(None, {"x": X})
    assert isinstance(made, list)
    found: npt.NDArray[np.float32] = made[0]
    return found


@pytest.mark.parametrize("name", NETS)
def test_any_factors_keep_the_function(name: str) -> None:
    body, expected = NETS[name]
    rank = 3 if "tokens" in body else 2 if "Gemm" in body else 4
    model = model_of(f"g (float[1,4,4,4] x) => (float[{','.join('ABCD'[:rank])}] y) <{WEIGHTS}{MORE}> {{ {body} }}")
    exact, nodes = run(model), [node.SerializeToString() for node in model.graph.node]
    classes = classes_of(model)
    assert len(used_of(classes)) == expected
    edited = equalize(Model(model), classes, factors_of(classes))
    assert bool(edited) == bool(len(free_of(classes)))
    assert [node.op_type for node in model.graph.node] == [onnx.NodeProto.FromString(one).op_type for one in nodes]
    assert run(model) == pytest.approx(exact, rel=2e-5, abs=2e-5 * float(np.abs(exact).max()))


def test_powers_of_two_keep_every_bit() -> None:
    model = model_of(f"g (float[1,4,4,4] x) => (float[1,2,4,4] y) <{WEIGHTS}> {{ {NETS['residual'][0]} }}")
    exact, classes = run(model), classes_of(model)
    equalize(Model(model), classes, np.exp2(np.rint(np.log2(factors_of(classes)))))
    assert run(model).tobytes() == exact.tobytes()


def test_a_constant_that_gets_an_axis_of_channels_is_a_new_one() -> None:
    """`peel --source` brings values back by name, and refuses one of another shape."""
    model = model_of(
        f"g (float[1,4,4,4] x) => (float[1,2,4,4] y) <{WEIGHTS}> {{ {RELU}  i = Add(r, one)  y = Conv(i, u) }}"
    )
    classes = classes_of(model)
    equalize(Model(model), classes, factors_of(classes))
    assert model.graph.node[2].input[1] == "one_conditioned"
    (made,) = (tensor for tensor in model.graph.initializer if tensor.name == "one_conditioned")
    assert list(made.dims) == [4, 1, 1]


@pytest.mark.parametrize(
    ("fixed", "coarse", "left"), [(set(), set(), 8), ({"i"}, set(), 0), (set(), {"i"}, 4), ({"y"}, set(), 4)]
)
def test_nodes_that_must_stay(fixed: set[str], coarse: set[str], left: int) -> None:
    model = model_of(
        f"g (float[1,4,4,4] x) => (float[1,2,4,4] y) <{WEIGHTS}> {{ {RELU}  i = Conv(r, k)  y = Conv(i, u) }}"
    )
    assert len(used_of(classes_of(model, fixed=fixed, coarse=coarse))) == left


def test_what_a_body_reads_stays() -> None:
    body = "{ z = If(q)<then_branch = a () => (float[B,C,D,E] ta) { ta = Neg(r) }, else_branch = b () => (float[F,G,H,I] eb) { eb = Abs(r) }> }"
    model = model_of(
        f"g (float[1,4,4,4] x, bool q) => (float[1,2,4,4] y, float[J,K,L,M] z) <{WEIGHTS}> {{ {RELU}  y = Conv(r, u)  {body[1:]}"
    )
    assert used_of(classes_of(model)) == set()


def test_a_node_that_is_not_in_the_graph_is_refused() -> None:
    model = model_of(f"g (float[1,4,4,4] x) => (float[1,2,4,4] y) <{WEIGHTS}> {{ {NETS['relu'][0]} }}")
    classes = classes_of(model)
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "other"
    with pytest.raises(QdqError, match="by one node"):
        equalize(Model(model), classes, factors_of(classes))
