# SPDX-License-Identifier: Apache-2.0
"""Functions of several tensors with broadcasting: sums, products, powers, choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qdqtool.autodiff.rules.tape import GraphValue
from qdqtool.autodiff.rules.vjp_context import Gradients, Rule, VjpContext


def _each(site: VjpContext, gradient: Callable[[int, GraphValue], GraphValue]) -> Gradients:
    """The gradient by each wanted input, summed over what was broadcast."""
    return [
        gradient(index, value).sum_to(value.shape) if value is not None and site.wants(index) else None
        for index, value in enumerate(site.inputs)
    ]


def _add(site: VjpContext) -> Gradients:
    return _each(site, lambda index, value: site.g)


def _mean(site: VjpContext) -> Gradients:
    share = site.g * (1 / len(site.inputs))
    return _each(site, lambda index, value: share)


def _sub(site: VjpContext) -> Gradients:
    # Summed before the sign turns: the second operand is often the smaller one.
    return _each(site, lambda index, value: -site.g.sum_to(value.shape) if index else site.g)


def _mul(site: VjpContext) -> Gradients:
    return _each(site, lambda index, value: site.g * site.given(1 - index))


def _div(site: VjpContext) -> Gradients:
    """With y = a / b: da = g / b, db = -g y / b."""
    share = site.g / site.given(1)
    return _each(site, lambda index, value: -(share * site.y) if index else share)


def _pow(site: VjpContext) -> Gradients:
    """With y = a^b: da = g b a^(b-1), db = g y ln a, taken as 0 where a <= 0, as elsewhere in the field."""
    base, power = site.x, site.given(1)

    def gradient(index: int, value: GraphValue) -> GraphValue:
        if index:
            positive = base.above(0)
            logarithm = positive.where(positive.where(base, 1).unary("Log"), 0)
            return site.g * site.y * logarithm
        known = site.known(power.name)
        if known is not None and known.size == 1 and known.item() == 2:
            return site.g * (2 * base)  # squares are frequent, and Pow is slow
        exponent = power.cast(base.kind)
        return site.g * exponent * base ** (exponent - 1)

    return _each(site, gradient)


def _extreme(site: VjpContext) -> Gradients:
    """Min and Max: the gradient goes to the input that was chosen, in equal shares where several are."""
    hits = [value.equals(site.y).cast(site.y.kind) for value in site.inputs if value is not None]
    share = site.g if len(hits) == 1 else site.g / site.tape.add_up([hit.expand(site.y.shape) for hit in hits])
    return _each(site, lambda index, value: share * hits[index])


def _where(site: VjpContext) -> Gradients:
    condition = site.inputs[0]

    def gradient(index: int, value: GraphValue) -> GraphValue:
        zero = site.g.lift(0)
        pair = (site.g, zero) if index == 1 else (zero, site.g)
        assert condition is not None
        return condition.where(*pair).expand(site.g.shape)

    return _each(site, gradient)


def _clip(site: VjpContext) -> Gradients:
    """The gradient passes where nothing was cut off, the borders themselves included; the rest goes to the border."""
    x, low = site.x, site.optional(1)

    def gradient(index: int, value: GraphValue) -> GraphValue:
        if index == 0:
            return site.g * x.equals(site.y).cast(x.kind)
        if index == 1:
            return site.g * x.below(value).cast(x.kind)
        cut = x if low is None else x.maximum(low)
        return site.g * cut.above(value).cast(x.kind)

    return _each(site, gradient)


RULES: Mapping[str, Rule] = {
    "Add": _add,
    "Clip": _clip,
    "Div": _div,
    "Max": _extreme,
    "Mean": _mean,
    "Min": _extreme,
    "Mul": _mul,
    "Pow": _pow,
    "Sub": _sub,
    "Sum": _add,
    "Where": _where,
}
