# SPDX-License-Identifier: Apache-2.0
"""Multiply-adds of products, counted by hand."""

from __future__ import annotations

import pytest

from qdqtool.engine.macs import multiply_adds
from qdqtool.graph.shapes import shapes_of
from tests.graphs import view_of

PRODUCTS = [
    ("y = Conv<pads=[1,1,1,1]>(x, w)", "float[1,4,8,8] x", "float[6,4,3,3] w", 6 * 64 * 4 * 9),
    ("y = Conv<group=4>(x, w)", "float[1,4,8,8] x", "float[4,1,3,3] w", 4 * 36 * 9),
    ("y = ConvTranspose<strides=[2,2]>(x, w)", "float[1,4,8,8] x", "float[4,6,2,2] w", 4 * 64 * 6 * 4),
    ("y = Gemm(x, w)", "float[5,4] x", "float[4,3] w", 5 * 3 * 4),
    ("y = Gemm<transA=1, transB=1>(x, w)", "float[4,5] x", "float[3,4] w", 5 * 3 * 4),
    ("y = MatMul(x, w)", "float[2,5,4] x", "float[4,3] w", 2 * 5 * 3 * 4),
    ("y = MatMul(w, x)", "float[4,3] x", "float[5,4] w", 5 * 3 * 4),
]


@pytest.mark.parametrize(("node", "given", "weight", "macs"), PRODUCTS)
def test_multiply_adds(node: str, given: str, weight: str, macs: int) -> None:
    view = view_of(f"g ({given}) => (float[] y) <{weight}> {{ {node} }}")
    (product,) = view.every
    shapes = shapes_of(view)
    found = [[axis or 1 for axis in shapes[name]] for name in (*product.inputs, "y")]
    assert multiply_adds(product, *found) == macs
