# SPDX-License-Identifier: Apache-2.0
"""What nodes say about axes reads the same whether an opset has it as an attribute or as an input."""

from __future__ import annotations

import onnx
import pytest

from qdqtool.graph.channels.arguments import integers, permutation, slices_of
from qdqtool.graph.view import GraphView
from tests.graphs import node_of, view_of

CONSTANTS = "int64[2] first = {0,-3}, int64[2] ends = {2,9}, int64[2] axes = {1,-1}, int64[2] steps = {1,2}"


def sliced(node: str) -> GraphView:
    return view_of(f"g (float[1,4,6] x, int64[2] n) => (float y) <{CONSTANTS}> {{ z = {node} }}")


@pytest.mark.parametrize(
    ("node", "rows"),
    [
        ("Slice(x, first, ends)", [(0, 0, 2, 1), (1, -3, 9, 1)]),
        ("Slice(x, first, ends, axes)", [(1, 0, 2, 1), (-1, -3, 9, 1)]),
        ("Slice(x, first, ends, axes, steps)", [(1, 0, 2, 1), (-1, -3, 9, 2)]),
        ("Slice<starts=[0,-3], ends=[2,9], axes=[1,-1]>(x)", [(1, 0, 2, 1), (-1, -3, 9, 1)]),
        ("Slice<starts=[0,-3], ends=[2,9]>(x)", [(0, 0, 2, 1), (1, -3, 9, 1)]),
        ("Slice<starts=[0,-3], ends=[2,9], axes=[1]>(x)", None),
        ("Slice<starts=[0,-3], ends=[2]>(x)", None),
        ("Slice(x, n, ends)", None),
        ("Slice(x, first, n)", None),
        ("Slice(x, first, ends, n)", None),
        ("Slice(x, first, ends, axes, n)", None),
    ],
)
def test_a_slice_by_attributes_and_by_inputs(node: str, rows: list[tuple[int, int, int, int]] | None) -> None:
    view = sliced(node)
    assert slices_of(node_of(view, "z"), view.array) == rows


@pytest.mark.parametrize(
    ("attributes", "rank", "order"),
    [({"perm": [1, 0, 2]}, None, [1, 0, 2]), ({"perm": [1, 0]}, 5, [1, 0]), ({}, 3, [2, 1, 0]), ({}, None, None)],
)
def test_a_transpose_without_an_order_turns_all_axes(
    attributes: dict[str, list[int]], rank: int | None, order: list[int] | None
) -> None:
    graph = onnx.GraphProto(node=[onnx.helper.make_node("Transpose", ["x"], ["z"], **attributes)])
    assert permutation(node_of(GraphView(graph), "z"), rank) == order


@pytest.mark.parametrize(
    ("node", "found"),
    [("Split<axis=1>(x)", []), ("Split(x, steps)", [1, 2]), ("Split<split=[3,1]>(x)", [3, 1]), ("Split(x, n)", None)],
)
def test_a_list_that_is_absent_is_empty_and_one_that_is_computed_is_not_known(
    node: str, found: list[int] | None
) -> None:
    view = sliced(node)
    assert integers(node_of(view, "z"), 1, "split", view.array) == found
