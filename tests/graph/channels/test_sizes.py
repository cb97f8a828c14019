# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Sizes and ranks as operators, constants and declarations say them, and what nodes say about axes."""

from __future__ import annotations

import pytest

from qdqtool.graph.channels.sizes import END, TensorSizes
from tests.graphs import node_of, view_of

CUTS = "int64[1] one = {1}, int64[1] three = {3}, int64[1] last = {-1}, int64[1] far = {9223372036854775807}"


def test_what_operators_say_goes_before_a_declared_shape() -> None:
    text = "g (float[1,4,6,6] x) => (float[N] z) <float[6,4,1,1] w> { a = Conv(x, w) z = Concat<axis=-3>(a, a) }"
    sizes = TensorSizes(view_of(text))
    assert (sizes.rank("z"), sizes.size("z", 1)) == (4, 12)


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ("z = Conv(x, w)", 6),
        ("z = ConvTranspose<group=2>(x, v8)", 4),
        ("a = Conv(x, w) b = Conv(x, v) z = Concat<axis=1>(a, b)", 8),
        ("a = Conv(x, w) g = GlobalAveragePool(a) z = Flatten(g)", None),
        ("f = Flatten(x) z = Gemm<transB=1>(f, m)", 7),
        ("f = Flatten(x) z = MatMul(f, k)", 5),
        ("a = Conv(x, w) z = Slice(a, one, three, one)", 2),
        ("a = Conv(x, w) z, y = Split<axis=1>(a, p)", 2),
        ("a = Conv(x, w) g = GlobalAveragePool(a) z = Mul(a, g)", 6),
        ("a = Conv(x, w) z = Add(half, a)", 6),
        ("b = trt.Strange(x) z = Relu(b)", None),
        ("t = Transpose<perm=[1,0,2,3]>(back) z = Conv(x, t)", 9),
        ("t = DequantizeLinear(q8, half, zero8) z = Conv(x, t)", 3),
    ],
)
def test_number_of_channels(body: str, size: int | None) -> None:
    weights = (
        "float[6,4,1,1] w, float[2,4,1,1] v, float[4,2,1,1] v8, float[7,144] m, float[144,5] k, float half = {0.5}"
    )
    weights += ", float[4,9,1,1] back, int8[3,4,1,1] q8 = {1,2,3,4,5,6,7,8,9,10,11,12}, int8 zero8 = {0}"
    view = view_of(f"g (float[1,4,6,6] x) => (float y) <{weights}, {CUTS}, int64[2] p = {{2,4}}> {{ {body} }}")
    assert TensorSizes(view).size("z", 1) == size


@pytest.mark.parametrize(
    ("body", "rank"),
    [
        ("z = Conv(x, w)", 4),
        ("z = Flatten(x)", 2),
        ("z = Gemm(x, m)", 2),
        ("z = Reshape(x, s)", 3),
        ("a = Conv(x, w)  z = Mul(a, half)", 4),
        ("z = trt.Strange(x)", None),
        ("a = trt.Strange(x)  z = Transpose(a)", None),
    ],
)
def test_number_of_axes(body: str, rank: int | None) -> None:
    text = f"g (float[1,4,6,6] x) => (float y) <float[6,4,1,1] w, float[144,5] m, int64[3] s = {{1,4,36}}, float half = {{0.5}}> {{ {body} }}"
    assert TensorSizes(view_of(text)).rank("z") == rank


@pytest.mark.parametrize(
    ("node", "made"),
    [
        ("Conv(x, w)", 6),
        ("ConvTranspose<group=2>(x, t)", 6),
        ("Gemm(x, m)", 5),
        ("Gemm<transB=1>(x, m)", 144),
        ("MatMul(x, m)", 5),
        ("Conv(x, x)", None),
        ("Relu(x)", None),
        ("Add(x, m)", None),
    ],
)
def test_channels_that_a_weight_makes(node: str, made: int | None) -> None:
    view = view_of(
        f"g (float[1,4,6,6] x) => (float y) <float[6,4,1,1] w, float[4,3,1,1] t, float[144,5] m> {{ z = {node} }}"
    )
    assert TensorSizes(view).made_by_weight(node_of(view, "z")) == made


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ("Slice(a, one, three, one)", [(1, 1, 3, 1)]),
        ("Slice(a, last, far, one)", [(1, 5, 6, 1)]),
        ("Slice(a, one, far, last)", [(3, 1, END, 1)]),
        ("Slice(a, n, far, one)", None),
        ("Slice(a, far, one, one, last)", None),
    ],
)
def test_bounds_of_a_slice_count_from_the_first(node: str, found: list[tuple[int, int, int, int]] | None) -> None:
    view = view_of(
        f"g (float[1,4,6,4] x, int64[1] n) => (float y) <float[6,4,1,1] w, {CUTS}> {{ a = Conv(x, w)  z = {node} }}"
    )
    assert TensorSizes(view).bounds(node_of(view, "z")) == found


@pytest.mark.parametrize(
    ("node", "pieces"),
    [("Split<axis=1>(a)", [2, 2, 2]), ("Split<axis=1>(a, p)", [1, 2, 3]), ("Split<axis=2>(b)", None)],
)
def test_pieces_of_a_split(node: str, pieces: list[int] | None) -> None:
    view = view_of(
        f"g (float[1,4,6,6] x) => (float y) <float[6,4,1,1] w, int64[3] p = {{1,2,3}}> {{ a = Conv(x, w)  b = trt.Strange(x)  z, u, v = {node} }}"
    )
    assert TensorSizes(view).pieces(node_of(view, "z")) == pieces
