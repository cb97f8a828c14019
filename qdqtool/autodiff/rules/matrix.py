# SPDX-License-Identifier: Apache-2.0
"""Products of matrices, and sums of products by letters."""

from __future__ import annotations

import math
from collections.abc import Mapping

from qdqtool.autodiff.rules.tape import GraphValue, Shape
from qdqtool.autodiff.rules.vjp_context import Gradients, Rule, VjpContext


def _gemm(site: VjpContext) -> Gradients:
    """Y = alpha A' B' + beta C, a dash for a transposition that the attributes ask for."""
    a, b = site.x, site.given(1)
    turn_a, turn_b = bool(site.get("transA", 0)), bool(site.get("transB", 0))
    alpha, beta = site.get("alpha", 1.0), site.get("beta", 1.0)
    g = site.g
    scaled = g if alpha == 1 else g * alpha
    gradients: list[GraphValue | None] = [None, None, None]
    if site.wants(0):
        gradients[0] = b.gemm(scaled, turn_b, True) if turn_a else scaled.gemm(b, False, not turn_b)
    if site.wants(1):
        gradients[1] = scaled.gemm(a, True, turn_a) if turn_b else a.gemm(scaled, not turn_a, False)
    if site.wants(2):
        share = g.sum_to(site.given(2).shape)
        gradients[2] = share if beta == 1 else share * beta
    return gradients


def _matmul(site: VjpContext) -> Gradients:
    """With vectors as matrices of one row or column: dA = G B', dB = A' G, summed over what was broadcast."""
    a, b = site.x, site.given(1)
    left: Shape = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right: Shape = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    rows, columns = left[-2], right[-1]
    lead = site.g.shape[: len(site.g.shape) - (len(a.shape) > 1) - (len(b.shape) > 1)]
    g, first, second = site.g.reshape((*lead, rows, columns)), a.reshape(left), b.reshape(right)
    by_left: GraphValue | None
    by_right: GraphValue | None
    if len(right) == 2:
        by_left, by_right = _by_flat(first, second, g)
    else:
        by_left = g.matmul(second.turned()).sum_to(left) if site.wants(0) else None
        by_right = first.turned().matmul(g).sum_to(right) if site.wants(1) else None
    return [
        by_left.reshape(a.shape) if by_left is not None and site.wants(0) else None,
        by_right.reshape(b.shape) if by_right is not None and site.wants(1) else None,
    ]


def _by_flat(first: GraphValue, second: GraphValue, g: GraphValue) -> tuple[GraphValue, GraphValue]:
    """One matrix for the whole batch: every row of the batch is a row of one large product."""
    inner, columns = second.shape
    rows = g.reshape((math.prod(g.shape[:-1]), columns))
    flat = first.reshape((rows.shape[0], inner))
    return rows.gemm(second, False, True).reshape(first.shape), flat.gemm(rows, True, False)


def _einsum(site: VjpContext) -> Gradients:
    """The gradient by an operand is a sum of products of the others and g, spread over letters that only it has."""
    equation = str(site.get("equation", "")).replace(" ", "")
    if "." in equation:
        raise site.refusal(f"{equation} with an ellipsis has no gradient here")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        letters = left.replace(",", "")
        right = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    if any(len(set(term)) < len(term) for term in terms):
        raise site.refusal(f"{equation} takes a diagonal, which has no gradient here")
    return [_einsum_by(site, terms, right, index) if site.wants(index) else None for index in range(len(terms))]


def _einsum_by(site: VjpContext, terms: list[str], right: str, index: int) -> GraphValue:
    others = [(term, site.given(at)) for at, term in enumerate(terms) if at != index]
    mine, shape = terms[index], site.given(index).shape
    seen = set(right).union(*(term for term, _ in others))
    kept = "".join(letter for letter in mine if letter in seen)
    sizes = dict(zip(mine, shape, strict=True))
    equation = ",".join([right, *(term for term, _ in others)]) + "->" + kept
    values = [site.g, *(value for _, value in others)]
    product = site.tape.emit("Einsum", values, tuple(sizes[letter] for letter in kept), equation=equation)
    open_shape = tuple(sizes[letter] if letter in seen else 1 for letter in mine)
    return product.reshape(open_shape).expand(shape)


RULES: Mapping[str, Rule] = {"Einsum": _einsum, "Gemm": _gemm, "MatMul": _matmul}
