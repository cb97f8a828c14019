# SPDX-License-Identifier: Apache-2.0
"""What operators make of constants, as ONNX's reference does, in every form an opset has; malformed ones: nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from qdqtool.graph.folding import (
    MAX_ELEMENTS,
    Extent,
    cast,
    combined_shape,
    combined_value,
    divided_shapes,
    divided_value,
    folded_shape,
    folded_value,
    kind_behind,
)

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
ONES = np.arange(6, dtype=np.int64).reshape(1, 2, 1, 3)


def ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


FORMS: list[tuple[int, str, np.ndarray[Any, Any], np.ndarray[Any, Any] | None, dict[str, Any]]] = [
    (13, "Identity", X, None, {}),
    (13, "Transpose", X, None, {}),
    (13, "Transpose", X, None, {"perm": [2, 0, 1]}),
    (13, "Flatten", X, None, {}),
    (13, "Flatten", X, None, {"axis": -1}),
    (13, "Flatten", X, None, {"axis": 3}),
    (9, "Flatten", X, None, {"axis": 0}),
    (5, "Reshape", X, ints(4, -1), {}),
    (13, "Reshape", X, ints(0, 12), {}),
    (14, "Reshape", X, ints(6, 4), {"allowzero": 1}),
    (19, "Reshape", X[:0], ints(0, 12), {"allowzero": 1}),
    (11, "Squeeze", ONES, None, {"axes": [0]}),
    (11, "Squeeze", ONES, None, {}),
    (13, "Squeeze", ONES, ints(-2, 0), {}),
    (21, "Squeeze", ONES, None, {}),
    (11, "Unsqueeze", X, None, {"axes": [0, 4]}),
    (13, "Unsqueeze", X, ints(-1), {}),
    (21, "Unsqueeze", X, ints(1, 0), {}),
    (9, "ConstantOfShape", ints(2, 3), None, {}),
    (
        20,
        "ConstantOfShape",
        ints(2, 3),
        None,
        {"value": helper.make_tensor("v", TensorProto.INT64, [1], [7])},
    ),
    (20, "ConstantOfShape", ints(), None, {}),
    (13, "Cast", X, None, {"to": TensorProto.INT8}),
    (13, "Cast", X, None, {"to": TensorProto.BOOL}),
    (13, "Cast", X - 12, None, {"to": TensorProto.BFLOAT16}),
    (19, "Cast", X * 100, None, {"to": TensorProto.FLOAT8E4M3FN}),
    (19, "Cast", X * 100, None, {"to": TensorProto.FLOAT8E5M2, "saturate": 0}),
]


def folded(node: onnx.NodeProto, value: np.ndarray[Any, Any], operand: np.ndarray[Any, Any] | None) -> Any:
    return folded_value(node, value, value if node.op_type == "ConstantOfShape" else operand)


@pytest.mark.parametrize(("opset", "op", "value", "operand", "attributes"), FORMS)
def test_every_form_is_what_the_reference_makes(
    opset: int, op: str, value: Any, operand: Any, attributes: dict[str, Any]
) -> None:
    feeds = {"x": value} if operand is None else {"x": value, "o": operand}
    node = helper.make_node(op, list(feeds), ["y"], **attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    expected = np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])
    found = folded(node, value, operand)
    assert found is not None and found.shape == expected.shape and found.dtype == expected.dtype
    assert found.astype(np.float64).tolist() == expected.astype(np.float64).tolist()


@pytest.mark.parametrize(
    ("opset", "count", "operand", "attributes"),
    [
        (2, 3, None, {"axis": 1}),
        (11, 2, None, {"axis": -1, "split": [1, 3]}),
        (13, 2, None, {}),
        (13, 3, ints(1, 0, 2), {"axis": 1}),
        (18, 2, None, {"axis": 1, "num_outputs": 2}),  # two and one
        (18, 3, None, {"axis": -1, "num_outputs": 3}),  # two, two and none
    ],
)
def test_every_part_of_a_constant_is_what_the_reference_makes(
    opset: int, count: int, operand: Any, attributes: dict[str, Any]
) -> None:
    feeds = {"x": X} if operand is None else {"x": X, "o": operand}
    names = [f"y{index}" for index in range(count)]
    node = helper.make_node("Split", list(feeds), names, **attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=name) for name in names])
    expected = ReferenceEvaluator(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    ).run(None, feeds)
    assert divided_shapes(node, X.shape, operand) == [part.shape for part in expected]
    for index, part in enumerate(expected):
        found = divided_value(node, X, operand, index)
        assert found is not None and found.tolist() == part.tolist() and np.shares_memory(found, X) == bool(part.size)


@pytest.mark.parametrize(
    ("count", "operand", "attributes"),
    [
        (2, None, {"axis": 3}),
        (2, None, {"axis": 1}),  # three in two equal parts
        (2, None, {"axis": 2, "split": [1, 2]}),
        (2, ints(5, -1), {"axis": 2}),
        (3, ints(2, 2), {"axis": 2}),
        (2, X, {"axis": 2}),
        (3, None, {"axis": 2, "num_outputs": 2}),
        (7, None, {"axis": 2, "num_outputs": 7}),  # the last ones would have less than nothing
    ],
)
def test_a_malformed_split_makes_nothing(count: int, operand: Any, attributes: dict[str, Any]) -> None:
    node = helper.make_node("Split", ["x", "o"], [f"y{index}" for index in range(count)], **attributes)
    assert divided_shapes(node, X.shape, operand) is None and divided_value(node, X, operand, 0) is None


def test_the_first_form_of_reshape_and_cast_has_its_operand_in_attributes() -> None:
    assert folded(helper.make_node("Reshape", ["x"], ["y"], shape=[4, 6]), X, None).shape == (4, 6)
    assert folded(helper.make_node("Cast", ["x"], ["y"], to="INT32"), X, None).dtype == np.int32


@pytest.mark.parametrize(
    ("op", "operand", "attributes"),
    [
        ("Transpose", None, {"perm": [0, 0, 1]}),
        ("Transpose", None, {"perm": [0, 1]}),
        ("Transpose", None, {"perm": 1}),
        ("Flatten", None, {"axis": 4}),
        ("Flatten", None, {"axis": 1.5}),
        ("Reshape", None, {}),
        ("Reshape", ints(5, 5), {}),
        ("Reshape", ints(-1, -1), {}),
        ("Reshape", ints(-2, 12), {}),
        ("Reshape", ints(2, 3, 4, 0), {}),
        ("Reshape", ints(0, -1), {"allowzero": 1}),
        ("Reshape", X, {}),
        ("Squeeze", ints(0), {}),
        ("Squeeze", ints(7), {}),
        ("Unsqueeze", None, {}),
        ("Unsqueeze", ints(0, 0), {}),
        ("Unsqueeze", ints(9), {}),
        ("Unsqueeze", ints(*range(40)), {}),
        ("Cast", None, {}),
        ("Cast", None, {"to": 99}),
        ("Cast", None, {"to": TensorProto.STRING}),
        ("Cast", None, {"to": "NUMBER"}),
    ],
)
def test_a_malformed_operator_makes_nothing(op: str, operand: Any, attributes: dict[str, Any]) -> None:
    node = helper.make_node(op, ["x", "o"], ["y"], **attributes)
    assert folded(node, X, operand) is None


@pytest.mark.parametrize("shape", [(1 << 20, 3, 64, 64), (1 << 40, 1 << 40), (-1, 3), (1,) * 40])
def test_the_size_of_a_filled_constant_is_known_before_it_is_made(shape: tuple[int, ...]) -> None:
    node = helper.make_node("ConstantOfShape", ["s"], ["y"])
    assert folded_shape(node, (len(shape),), ints(*shape)) is None and folded_value(node, ints(), ints(*shape)) is None


def test_a_filled_constant_takes_no_memory() -> None:
    node = helper.make_node("ConstantOfShape", ["s"], ["y"])
    found = folded_value(node, ints(), ints(MAX_ELEMENTS))
    assert found is not None and found.shape == (MAX_ELEMENTS,) and found.strides == (0,)


def test_text_and_complex_numbers_are_not_cast() -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    assert cast(np.array(["1"], object), node) is None and cast(np.array([1j]), node) is None


# ---------------------------------------------------------------------- arithmetic of two constants

FLOAT = TensorProto.FLOAT


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_arithmetic_of_two_constants_is_what_the_reference_makes(op: str) -> None:
    first, second = X, np.array([[2.0], [-0.0], [3.5]], np.float32)
    text = f"g (float[2,3,4] x, float[3,1] o) => (float[N] y) {{ y = {op}(x, o) }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    expected = ReferenceEvaluator(model).run(None, {"x": first, "o": second})[0]
    found = combined_value(model.graph.node[0], first, second)
    assert found.dtype == np.float32 and found.tobytes() == expected.tobytes()
    assert combined_shape(Extent(first.shape, kind=FLOAT), Extent(second.shape, kind=FLOAT)) == found.shape


def test_only_float32_constants_that_go_together_are_combined() -> None:
    assert combined_shape(Extent((2, 3), kind=FLOAT), Extent((3,), kind=FLOAT)) == (2, 3)
    assert combined_shape(Extent((2, 3), kind=FLOAT), Extent((2,), kind=FLOAT)) is None
    assert combined_shape(Extent((2,), kind=TensorProto.INT64), Extent((2,), kind=TensorProto.INT64)) is None
    assert combined_shape(Extent((2,), kind=FLOAT), Extent((2,))) is None, "whose type is not known"
    side = math.isqrt(MAX_ELEMENTS) + 1
    assert combined_shape(Extent((side, 1), kind=FLOAT), Extent((side,), kind=FLOAT)) is None


def test_the_element_type_is_kept_but_by_a_cast() -> None:
    assert kind_behind(helper.make_node("Transpose", ["x"], ["y"]), FLOAT) == FLOAT
    assert kind_behind(helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT8), FLOAT) == TensorProto.INT8
    assert kind_behind(helper.make_node("ConstantOfShape", ["x"], ["y"]), TensorProto.INT64) == TensorProto.UNDEFINED
