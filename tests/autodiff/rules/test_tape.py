# SPDX-License-Identifier: Apache-2.0
"""Algebra on values against NumPy: the numbers, and the shapes that are kept beside them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper

from qdqtool.autodiff.rules.tape import GraphValue, Tape
from tests.ort_session import session_of

A = np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4)
MAP = np.arange(12, dtype=np.float32).reshape(4, 3)


def evaluate(build: Callable[[GraphValue], GraphValue], array: np.ndarray, opset: int) -> tuple[np.ndarray, GraphValue]:
    tape = Tape(opset, ["x"])
    result = build(GraphValue("x", array.shape, TensorProto.FLOAT, tape))
    tape.nodes.append(helper.make_node("Identity", [result.name], ["out"]))
    x, y = helper.make_tensor_value_info("x", 1, array.shape), helper.make_empty_tensor_value_info("out")
    graph = helper.make_graph(tape.nodes, "g", [x], [y], tape.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return session_of(model).run(None, {"x": array})[0], result


@pytest.mark.parametrize("opset", [16, 21])
@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda x: 1 - x * 2, 1 - A * 2),
        (lambda x: 2 / (x + 1) ** 2, 2 / (A + 1) ** 2),
        (lambda x: 3 + -x, 3 - A),
        (lambda x: x.above(3).both(x.at_most(9)).where(x, 0), np.where((A > 3) & (A <= 9), A, 0)),
        (lambda x: x.at_least(5).cast(1) + x.below(3).cast(1), ((A >= 5) | (A < 3)).astype(np.float32)),
        (lambda x: x.equals(5).cast(1), (A == 5).astype(np.float32)),
        (lambda x: x.maximum(4.5), np.maximum(A, 4.5)),
        (lambda x: x.sum([0, 2]), A.sum((0, 2), keepdims=True)),
        (lambda x: x.sum([1], keep=False), A.sum(1)),
        (lambda x: x.mean([2]), A.mean(2, keepdims=True)),
        (lambda x: x.reduce("ReduceMax", [0, 1], keep=False), A.max((0, 1))),
        (lambda x: x.sum_to((3, 1)), A.sum((0, 2)).reshape(3, 1)),
        (lambda x: x.sum_to(()), A.sum()),
        (lambda x: x.reshape((1, 2, 3, 4)).sum_to((2, 3, 4)), A),
        (lambda x: x.transpose((2, 0, 1)), A.transpose(2, 0, 1)),
        (lambda x: x.reshape((2, 1, 12)).transpose((1, 0, 2)), A.reshape(1, 2, 12)),
        (lambda x: x.slice([1, 0], [3, 4], [1, 2], [1, 2]), A[:, 1:3, ::2]),
        (lambda x: x.slice([0], [3], [1], [1]), A),
        (lambda x: x.flip([0, 2]), A[::-1, :, ::-1]),
        (lambda x: x.pad((0, 1, -1), (1, 0, 2)), np.pad(A[:, :, 1:], ((0, 1), (1, 0), (0, 2)))),
        (lambda x: x.matmul(x.turned()), A @ A.transpose(0, 2, 1)),
        (lambda x: x.reshape((6, 4)).gemm(x.reshape((6, 4)), True, False), A.reshape(6, 4).T @ A.reshape(6, 4)),
        (lambda x: x.reshape((6, 4)).gemm(x.reshape((6, 4)), False, True), A.reshape(6, 4) @ A.reshape(6, 4).T),
        (lambda x: x.along(2, MAP), A @ MAP),
        (lambda x: x.along(1, MAP[:3]), np.einsum("aib,ij->ajb", A, MAP[:3])),
        (lambda x: x.along(0, MAP[:2]), np.einsum("iab,ij->jab", A, MAP[:2])),
        (lambda x: x.along(1, np.eye(3)), A),
        (lambda x: x.tape.concat([x, x.tape.zeros((2, 1, 4), 1)], 1), np.pad(A, ((0, 0), (0, 1), (0, 0)))),
        (lambda x: x.tape.add_up([x, x, x * 2]), A * 4),
        (lambda x: x.reshape((2, 1, 12)).expand((2, 3, 12)), np.repeat(A.reshape(2, 1, 12), 3, 1)),
    ],
)
def test_algebra(build: Callable[[GraphValue], GraphValue], expected: np.ndarray, opset: int) -> None:
    found, value = evaluate(build, A, opset)
    assert found.shape == value.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(("axis", "step"), [(0, 3), (2, 2), (1, 1)])
def test_spread_puts_zeros_between(axis: int, step: int) -> None:
    found, value = evaluate(lambda x: x.spread(axis, step), A, 17)
    shape = list(A.shape)
    shape[axis] = (shape[axis] - 1) * step + 1
    expected = np.zeros(shape, np.float32)
    expected[(slice(None),) * axis + (slice(None, None, step),)] = A
    np.testing.assert_array_equal(found, expected)
    assert value.shape == expected.shape


def test_the_same_node_is_written_once() -> None:
    tape = Tape(17, ["x"])
    x = GraphValue("x", (2,), TensorProto.FLOAT, tape)
    assert (x * 2).name == (x * 2).name
    assert (x * 2).name != (x * 3).name
    assert len(tape.nodes) == 2
    assert len(tape.initializers) == 2


def test_constants_keep_the_type_beside_them() -> None:
    tape = Tape(17, ["x"])
    assert GraphValue("x", (2,), TensorProto.DOUBLE, tape).lift(1).kind == TensorProto.DOUBLE
    assert GraphValue("x", (2,), TensorProto.INT64, tape).lift(1).kind == TensorProto.INT64


def test_names_are_fresh() -> None:
    tape = Tape(17, ["a", "a_1"])
    assert tape.fresh("b") == "b"
    assert len({tape.fresh("b"), tape.fresh("a"), tape.fresh("a"), "b", "a", "a_1"}) == 6
