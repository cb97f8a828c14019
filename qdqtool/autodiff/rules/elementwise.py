# SPDX-License-Identifier: Apache-2.0
"""Functions of one tensor, number by number: each line is a derivative, written with x, y = f(x) and the node."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from qdqtool.autodiff.rules.tape import GraphValue
from qdqtool.autodiff.rules.vjp_context import Gradients, Rule, VjpContext

# The slope of f at x, from x, y and the node's attributes.
_Slope = Callable[[GraphValue, GraphValue, VjpContext], GraphValue]

_SELU_ALPHA, _SELU_GAMMA = 1.6732632423543772, 1.0507009873554805  # the attributes' defaults


def _by(slope: _Slope) -> Rule:
    def rule(site: VjpContext) -> Gradients:
        return [site.g * slope(site.x, site.y, site)]

    return rule


def _mask(condition: GraphValue, like: GraphValue) -> GraphValue:
    """1 where the condition holds, else 0. A product with it is faster than Where in onnxruntime."""
    return condition.cast(like.kind)


def _relu(x: GraphValue, y: GraphValue, site: VjpContext) -> GraphValue:
    return _mask(y.above(0), x)


def _softsign(x: GraphValue, y: GraphValue, site: VjpContext) -> GraphValue:
    return ((1 + x.unary("Abs")) ** 2).unary("Reciprocal")


def _elu(x: GraphValue, y: GraphValue, site: VjpContext) -> GraphValue:
    return x.above(0).where(x.lift(1), y + site.get("alpha", 1.0))


def _selu(x: GraphValue, y: GraphValue, site: VjpContext) -> GraphValue:
    gamma = site.get("gamma", _SELU_GAMMA)
    return x.above(0).where(x.lift(gamma), y + gamma * site.get("alpha", _SELU_ALPHA))


def _leaky_relu(x: GraphValue, y: GraphValue, site: VjpContext) -> GraphValue:
    slope = float(site.get("alpha", 0.01))
    return _mask(x.above(0), x) * (1 - slope) + slope


def _hard_sigmoid(x: GraphValue, y: GraphValue, site: VjpContext) -> GraphValue:
    return _mask(y.above(0).both(y.below(1)), x) * float(site.get("alpha", 0.2))


def _pass_on(site: VjpContext) -> Gradients:
    return [site.g]


def _cast(site: VjpContext) -> Gradients:
    return [site.g.cast(site.x.kind)]


def _dropout(site: VjpContext) -> Gradients:
    training = site.optional(2)
    if training is not None and (value := site.known(training.name)) is not None and not value.any():
        training = None
    if training is not None:
        raise site.refusal("drops values at random, so its gradient is not that of one function")
    return [site.g]


_SLOPES: Mapping[str, _Slope] = {
    "Abs": lambda x, y, site: x.unary("Sign"),
    "Acos": lambda x, y, site: -1 / (1 - x * x).unary("Sqrt"),
    "Acosh": lambda x, y, site: 1 / (x * x - 1).unary("Sqrt"),
    "Asin": lambda x, y, site: 1 / (1 - x * x).unary("Sqrt"),
    "Asinh": lambda x, y, site: 1 / (x * x + 1).unary("Sqrt"),
    "Atan": lambda x, y, site: 1 / (1 + x * x),
    "Atanh": lambda x, y, site: 1 / (1 - x * x),
    "Cos": lambda x, y, site: -x.unary("Sin"),
    "Cosh": lambda x, y, site: x.unary("Sinh"),
    "Elu": _elu,
    "Erf": lambda x, y, site: (2 / math.sqrt(math.pi)) * (-(x * x)).unary("Exp"),
    "Exp": lambda x, y, site: y,
    "HardSigmoid": _hard_sigmoid,
    "LeakyRelu": _leaky_relu,
    "Log": lambda x, y, site: x.unary("Reciprocal"),
    "Neg": lambda x, y, site: x.lift(-1),
    "Reciprocal": lambda x, y, site: -(y * y),
    "Relu": _relu,
    "Selu": _selu,
    "Sigmoid": lambda x, y, site: y * (1 - y),
    "Sin": lambda x, y, site: x.unary("Cos"),
    "Sinh": lambda x, y, site: x.unary("Cosh"),
    "Softplus": lambda x, y, site: x.unary("Sigmoid"),
    "Softsign": _softsign,
    "Sqrt": lambda x, y, site: 0.5 / y,
    "Tan": lambda x, y, site: 1 + y * y,
    "Tanh": lambda x, y, site: 1 - y * y,
    "ThresholdedRelu": lambda x, y, site: _mask(x.above(site.get("alpha", 1.0)), x),
}

RULES: Mapping[str, Rule] = {
    **{op: _by(slope) for op, slope in _SLOPES.items()},
    "Cast": _cast,
    "Dropout": _dropout,
    "Identity": _pass_on,
}
