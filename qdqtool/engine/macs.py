# SPDX-License-Identifier: Apache-2.0
"""Multiply-adds of products, by the shapes of what they multiply. Not how long they take."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qdqtool.graph.einsum import EinsumProduct
from qdqtool.graph.view import Node, attribute


def multiply_adds(node: Node, first: Sequence[int], second: Sequence[int], output: Sequence[int]) -> int:
    """Multiply-adds of a Conv, ConvTranspose, Einsum, Gemm or MatMul."""
    if node.op == "ConvTranspose":
        return math.prod(first) * math.prod(second[1:])
    if node.op == "Conv":
        return math.prod(output) * math.prod(second[1:])
    product = EinsumProduct.of(node) if node.op == "Einsum" else None
    if product is not None:
        return product.multiply_adds(first, second, output)
    summed = first[0] if node.op == "Gemm" and attribute(node, "transA", 0) else first[-1] if first else 1
    return math.prod(output) * summed
