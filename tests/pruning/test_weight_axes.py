# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which axis of a constant follows which axis of a tensor, operator by operator."""

from __future__ import annotations

import pytest

from qdqtool.graph.view import GraphView
from qdqtool.pruning.weight_axes import groups_of, is_contraction, is_depthwise
from tests.graphs import model_of
from tests.pruning.nets import channels_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

TAIL = "y = Conv(a, u)"
ENDS = "g (float[1,4,4,4] x) => (float[1,2,%d,%d] y)"


def conv(constants: str, node: str, side: int = 4) -> str:
    return f"{ENDS % (side, side)} <{constants}> {{ {node}  {TAIL} }}"


# what -> (graph, axes of operator `a` as (input, axis, tensor, tensor axis, role, groups))
AXES = {
    "convolution": (conv("float[6,4,1,1] w, float[6] b, float[2,6,1,1] u", "a = Conv(x, w, b)"), [(1, 0, "a", 1, "made", 1), (1, 1, "x", 1, "read", 1), (2, 0, "a", 1, "along", 1)]),
    "grouped": (conv("float[6,2,1,1] w, float[2,6,1,1] u", "a = Conv<group=2>(x, w)"), [(1, 0, "a", 1, "made", 1), (1, 1, "x", 1, "read", 2)]),
    "depthwise": (conv("float[4,1,1,1] w, float[2,4,1,1] u", "a = Conv<group=4>(x, w)"), [(1, 0, "a", 1, "made", 1)]),
    "transposed": (conv("float[4,6,1,1] w, float[2,6,1,1] u", "a = ConvTranspose(x, w)"), [(1, 0, "x", 1, "read", 1), (1, 1, "a", 1, "made", 1)]),
    "transposed grouped": (conv("float[4,3,1,1] w, float[2,6,1,1] u", "a = ConvTranspose<group=2>(x, w)"), [(1, 0, "x", 1, "read", 1), (1, 1, "a", 1, "made", 2)]),
    "transposed depthwise": (conv("float[4,1,1,1] w, float[2,4,1,1] u", "a = ConvTranspose<group=4>(x, w)"), [(1, 0, "x", 1, "along", 1)]),
    "batch normalization": (conv("float[4] g, float[4] b, float[4] m, float[4] q = {1,1,1,1}, float[2,4,1,1] u", "a = BatchNormalization(x, g, b, m, q)"), [(place, 0, "x", 1, "along", 1) for place in (1, 2, 3, 4)]),
    "a constant beside": (conv("float[4,1,1] m, float[2,4,1,1] u", "a = Mul(x, m)"), [(1, 0, "a", 1, "along", 1)]),
    "one value beside": (conv("float[1] m, float[2,4,1,1] u", "a = Mul(x, m)"), []),
    "gemm": ("g (float[3,4] x) => (float[3,2] y) <float[4,6] w, float[6] b, float[6,2] u> { a = Gemm(x, w, b)  y = MatMul(a, u) }", [(1, 1, "a", 1, "made", 1), (1, 0, "x", 1, "read", 1), (2, 0, "a", 1, "along", 1)]),
    "gemm transposed": ("g (float[3,4] x) => (float[3,2] y) <float[6,4] w, float[6,2] u> { a = Gemm<transB=1>(x, w)  y = MatMul(a, u) }", [(1, 0, "a", 1, "made", 1), (1, 1, "x", 1, "read", 1)]),
    "product of rank three": ("g (float[1,3,4] x) => (float[1,3,2] y) <float[4,6] w, float[6,2] u> { a = MatMul(x, w)  y = MatMul(a, u) }", [(1, 1, "a", 2, "made", 1), (1, 0, "x", 2, "read", 1)]),
    "product of activations": ("g (float[1,3,4] x) => (float[1,3,2] y) <int64[3] turned = {1,4,3}, float[3,2] u> { t = Reshape(x, turned)  a = MatMul(x, t)  y = MatMul(a, u) }", []),
}  # fmt: skip


@pytest.mark.parametrize("what", AXES)
def test_axes(what: str) -> None:
    text, expected = AXES[what]
    found = [axis for axis in channels_of(model_of(text)).axes if axis.use.node.key == "a"]
    told = [(one.use.index, one.axis, one.tensor, one.tensor_axis, one.role, one.groups) for one in found]
    assert told == expected


@pytest.mark.parametrize(
    ("what", "groups", "depthwise", "sums"),
    [
        ("convolution", 1, False, True),
        ("grouped", 2, False, True),
        ("depthwise", 4, True, False),
        ("transposed", 1, False, True),
        ("transposed grouped", 2, False, True),
        ("transposed depthwise", 4, True, False),
    ],
)
def test_kinds_of_convolutions(what: str, groups: int, depthwise: bool, sums: bool) -> None:
    view = GraphView(model_of(AXES[what][0]).graph)
    node = view.producers["a"]
    assert (groups_of(node), is_depthwise(view, node), is_contraction(view, node)) == (groups, depthwise, sums)


@pytest.mark.parametrize(
    ("what", "sums"), [("gemm", True), ("product of rank three", True), ("product of activations", False), ("a constant beside", False)]
)  # fmt: skip
def test_what_sums_channels_up_with_constants(what: str, sums: bool) -> None:
    view = GraphView(model_of(AXES[what][0]).graph)
    assert is_contraction(view, view.producers["a"]) == sums
