# SPDX-License-Identifier: Apache-2.0
"""Reductions over axes and running sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from onnx import helper

from qdqtool.autodiff.rules.tape import GraphValue
from qdqtool.autodiff.rules.vjp_context import Gradients, Rule, VjpContext

# The gradient by x, from x, y and g; y and g have axes of one where x was reduced over.
_Backward = Callable[[GraphValue, GraphValue, GraphValue, tuple[int, ...]], GraphValue]


def _axes(site: VjpContext) -> tuple[int, ...]:
    axes = site.axes()
    if axes:
        return axes
    return () if site.get("noop_with_empty_axes", 0) else tuple(range(len(site.x.shape)))


def _reduction(backward: _Backward) -> Rule:
    def rule(site: VjpContext) -> Gradients:
        axes = _axes(site)
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(site.x.shape))
        gradient = backward(site.x, site.y.reshape(kept), site.g.reshape(kept), axes)
        return [gradient.expand(site.x.shape)]

    return rule


def _mean(x: GraphValue, y: GraphValue, g: GraphValue, axes: tuple[int, ...]) -> GraphValue:
    return g * (1 / max(1, math.prod(x.shape[axis] for axis in axes)))


def _extreme(x: GraphValue, y: GraphValue, g: GraphValue, axes: tuple[int, ...]) -> GraphValue:
    """Equal shares where several numbers are the largest."""
    hits = x.equals(y).cast(x.kind)
    return hits * (g / hits.sum(axes))


def _norm(x: GraphValue, y: GraphValue, g: GraphValue, axes: tuple[int, ...]) -> GraphValue:
    """Gives x / y, and 0 for a vector of zeros."""
    return x * (g / y.maximum(float(np.finfo(helper.tensor_dtype_to_np_dtype(x.kind)).tiny)))


def _product(x: GraphValue, y: GraphValue, g: GraphValue, axes: tuple[int, ...]) -> GraphValue:
    """The product of the others, exact beside zeros.

    With p the product of what is not zero and n the count of zeros: p / x where n = 0, p at the zero where n = 1,
    else 0.
    """
    zero = x.equals(0)
    filled = zero.where(x.lift(1), x)
    product, count = filled.reduce("ReduceProd", axes), zero.cast(x.kind).sum(axes)
    alone = count.at_most(1).where(product, 0)
    others = count.at_most(0).where(product, 0)
    return g * zero.where(alone, others / filled)


_BACKWARD: Mapping[str, _Backward] = {
    "ReduceL1": lambda x, y, g, axes: g * x.unary("Sign"),
    "ReduceL2": _norm,
    "ReduceLogSum": lambda x, y, g, axes: g * (-y).unary("Exp"),
    "ReduceLogSumExp": lambda x, y, g, axes: g * (x - y).unary("Exp"),
    "ReduceMax": _extreme,
    "ReduceMean": _mean,
    "ReduceMin": _extreme,
    "ReduceProd": _product,
    "ReduceSum": lambda x, y, g, axes: g,
    "ReduceSumSquare": lambda x, y, g, axes: x * (2 * g),
}


def _cumulative_sum(site: VjpContext) -> Gradients:
    """A number counts in every sum from its place on: the running sum of g from the other end."""
    axis = site.given(1)
    how = {"exclusive": int(site.get("exclusive", 0)), "reverse": 1 - int(site.get("reverse", 0))}
    return [site.tape.emit("CumSum", [site.g, axis], site.x.shape, **how)]


RULES: Mapping[str, Rule] = {
    **{op: _reduction(backward) for op, backward in _BACKWARD.items()},
    "CumSum": _cumulative_sum,
}
