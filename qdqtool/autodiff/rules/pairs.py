# SPDX-License-Identifier: Apache-2.0
"""Q/DQ pairs: the straight-through estimator with a mask, and LSQ's gradient for a scale that is learned.

With y the quantized x and mask = (x was not cut off): dx = g mask, dscale = sum(g (y - mask x)) / scale. The formula,
where it comes from and what it leaves out: `autodiff/pairs.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from qdqtool.autodiff.backend import PAIR_DOMAIN
from qdqtool.autodiff.pairs import PairFunction
from qdqtool.autodiff.rules.tape import GraphValue, Shape
from qdqtool.autodiff.rules.vjp_context import Gradients, Rule, VjpContext
from qdqtool.formats import INT8

_LIMITS: dict[int, tuple[int, int]] = {
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
    TensorProto.INT8: INT8.codes,
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-32768, 32767),
    TensorProto.UINT16: (0, 65535),
}
"""The integers of each type, lowest and highest. Float8 is not among them: its steps are not even."""


def _pair(site: VjpContext) -> Gradients:
    pair = PairFunction.parse(site.node.op_type)
    if pair is None:
        raise site.refusal("is not a kind of pair")
    x, g, scale = site.x, site.g, site.given(1)
    mask = _inside(site, pair).cast(x.kind)
    by_scale = None
    if pair.learned and site.wants(1):
        shape = _spread_shape(x, scale, pair.axis)
        by_scale = (g * (site.y - mask * x)).sum_to(shape).reshape(scale.shape) / scale
    return [g * mask if site.wants(0) else None, by_scale]


def _inside(site: VjpContext, pair: PairFunction) -> GraphValue:
    """Where x was not cut off: between the ends of the lowest and the highest step, which round to those steps.

    The same as |y - x| <= scale / 2, in fewer passes over x, and with no rounding of y to blur the border.
    """
    x, scale, zero = site.x, site.given(1), site.given(2)
    lowest, highest = _LIMITS.get(zero.kind, (0, 0))
    known = site.known(zero.name)
    shape = _spread_shape(x, scale, pair.axis)
    if known is None or lowest == highest:
        return (site.y - x).unary("Abs").at_most(scale.reshape(shape) * 0.5)
    steps = np.asarray(known).astype(np.float64).reshape(shape)
    wide = scale.reshape(shape)
    return x.at_least(wide * (lowest - 0.5 - steps)).both(x.at_most(wide * (highest + 0.5 - steps)))


def _spread_shape(x: GraphValue, scale: GraphValue, axis: int | None) -> Shape:
    """The scale's shape beside x: one number, or one per channel of the axis."""
    if axis is None:
        return ()
    return (scale.shape[0], *(1,) * (len(x.shape) - axis - 1))


PAIR = f"{PAIR_DOMAIN}::Pair"
RULES: Mapping[str, Rule] = {PAIR: _pair}
