# SPDX-License-Identifier: Apache-2.0
"""An Einsum as a product with a weight: which operand can be one, its channels, what is summed, multiply-adds."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.engine.macs import multiply_adds
from qdqtool.graph.einsum import EinsumProduct
from qdqtool.graph.nodes import Node
from qdqtool.graph.weighted import is_product, summed_over, weight_index
from tests.graphs import view_of


def node_of(equation: str, inputs: str = "xw") -> Node:
    return Node(onnx.helper.make_node("Einsum", list(inputs), ["y"], equation=equation), 0)


@pytest.mark.parametrize(
    ("equation", "axis", "summed"),
    [
        ("bij,jk->bik", 1, "j"),
        ("bij,kj->bik", 0, "j"),
        ("b i j , j k -> b k i", 1, "j"),  # the output may stand in any order
        ("...i,io->...o", 1, "i"),
        ("bthk,hkd->btd", 2, "hk"),  # two axes are summed, one is the output's
        ("btd,dhk->bthk", None, "d"),  # two axes are the output's
        ("ij,jk", 1, "j"),  # without an arrow: letters that come once, in the order of the alphabet
    ],
)
def test_the_weight_of_a_linear_layer(equation: str, axis: int | None, summed: str) -> None:
    product = EinsumProduct.of(node_of(equation))
    assert product is not None and product.is_by_weight(1)
    assert product.channel_axis(1) == axis and product.summed(1) == summed


@pytest.mark.parametrize(
    "equation",
    [
        "bij,bjk->bik",  # a matrix for each b
        "bij,j->bi",  # no channel of its own
        "bij,kl->bijkl",  # nothing is summed over with the other
        "bij,jkl->bik",  # l is summed over alone
        "bij,jk->ik",  # b is summed over alone
        "bij,...jk->bik",
    ],
)
def test_what_is_no_weight_of_a_linear_layer(equation: str) -> None:
    product = EinsumProduct.of(node_of(equation))
    assert product is not None and not product.is_by_weight(1)


@pytest.mark.parametrize("node", [node_of("ij->ji", "x"), node_of("ii,ij->j"), node_of("i,j,k->ijk", "xwv")])
def test_what_is_no_product_of_two_operands(node: Node) -> None:
    assert EinsumProduct.of(node) is None


@pytest.mark.parametrize(
    ("equation", "first", "second"),
    [
        ("bij,jk->bik", (2, 5, 7), (7, 3)),
        ("btd,dhk->bthk", (2, 5, 8), (8, 4, 3)),
        ("bthk,hkd->btd", (2, 5, 4, 3), (4, 3, 6)),
        ("...i,io->...o", (2, 3, 5), (5, 4)),
    ],
)
def test_one_multiply_add_for_each_place_that_each_output_sums(
    equation: str, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    """Of ones, every output is the number of its products."""
    made = np.einsum(equation, np.ones(first), np.ones(second))
    assert multiply_adds(node_of(equation), first, second, made.shape) == made.sum()
    assert summed_over(node_of(equation), 1, second) == made.flat[0]


@pytest.mark.parametrize(
    ("body", "weights", "index"),
    [
        ('y = Einsum<equation="bij,jk->bik">(x, w)', "float[4,3] w", 1),
        ('y = Einsum<equation="kj,bij->bik">(w, x)', "float[3,4] w", 0),
        ('y = Einsum<equation="bij,jk->bik">(x, w)', "float[4,3,1] w", None),  # an axis more than letters
        ('y = Einsum<equation="bij,bjk->bik">(x, w)', "float[1,4,3] w", None),
        ('y = Einsum<equation="bij,bik->bjk">(x, x)', "", None),
    ],
)
def test_which_input_is_the_weight(body: str, weights: str, index: int | None) -> None:
    view = view_of(f"g (float[1,2,4] x) => (float[A,B,C] y) {f'<{weights}>' if weights else ''} {{ {body} }}")
    assert weight_index(view, view.producers["y"]) == index and is_product(view.producers["y"])


def test_an_einsum_of_one_operand_is_no_product() -> None:
    assert not is_product(node_of("ij->ji", "x"))
