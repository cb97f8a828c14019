# SPDX-License-Identifier: Apache-2.0
"""Sums, norms, maxima over axes: their gradients, written for the shapes that are trained with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qdqtool.autodiff.lowered.site import LoweringContext, Replacement, Rule, Wrap, integers, number, reshaped


def axes_of(site: LoweringContext) -> list[int]:
    """The axes that a reduction goes over, not negative, ascending; they are an attribute or a constant input.

    Raises:
        QdqError: they are computed in the graph.
    """
    rank = len(site.shape(0))
    axes = site.attribute("axes")
    if site.has(1):
        given = site.constant(1)
        if given is None:
            raise site.refusal("has axes that are computed in the graph")
        axes = given.reshape(-1).tolist()
    if not axes:
        return [] if site.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(axis % rank for axis in axes)


def _kept(site: LoweringContext, axes: Sequence[int]) -> str:
    """`gk` and `yk`: the gradient and the output with every reduced axis as an axis of one."""
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(site.shape(0)))
    return reshaped("gk", "g", shape) + reshaped("yk", "y", shape)


def _reduction(text: str) -> Rule:
    """The rule of a reduction: `text` makes dx from x, gk and yk."""

    def rule(site: LoweringContext) -> Wrap:
        names = ("x", "axes")[: 1 + site.has(1)]
        return Wrap(names, _kept(site, axes_of(site)) + text, ("x",))

    return rule


def _largest(site: LoweringContext) -> Wrap:
    """ReduceMax and ReduceMin: equal ones share the gradient."""
    axes = axes_of(site)
    if not axes:
        return Wrap(("x", "axes")[: 1 + site.has(1)], "dx = Identity (g)\n", ("x",))
    text = _kept(site, axes) + integers("over", axes) + _SHARE
    return Wrap(("x", "axes")[: 1 + site.has(1)], text, ("x",))


def _global_max(site: LoweringContext) -> Wrap:
    axes = range(2, len(site.shape(0)))
    return Wrap(("x",), _kept(site, axes) + integers("over", axes) + _SHARE, ("x",))


def _sum_or_mean(site: LoweringContext) -> Replacement | None:
    """The builder is right about them where there is something to reduce."""
    return None if axes_of(site) else Replacement(site).end("Identity", [site.inputs[0]])


def _cumulative(site: LoweringContext) -> Wrap:
    """The gradient of a running sum is the running sum from the other end."""
    how = f"<exclusive: int = {site.attribute('exclusive', 0)}, reverse: int = {1 - site.attribute('reverse', 0)}>"
    return Wrap(("x", "axis"), f"dx = CumSum {how} (g, axis)\n", ("x",))


def _global_average(site: LoweringContext) -> Wrap:
    """Gives dx = g / n, spread: the builder's own scale is refused for images of one pixel."""
    shape = site.shape(0)
    text = number("share", 1 / math.prod(shape[2:])) + "part = Mul (g, share)\n" + integers("shape", shape)
    return Wrap(("x",), text + "dx = Expand (part, shape)\n", ("x",))


_SHARE = """
    at = Equal (x, yk)  ones = Cast <to: int = 1> (at)  count = ReduceSum (ones, over)
    part = Div (gk, count)  dx = Mul (ones, part)
"""

REDUCTIONS: dict[str, Rule] = {
    "CumSum": _cumulative,
    "GlobalAveragePool": _global_average,
    "GlobalMaxPool": _global_max,
    "ReduceL1": _reduction("sign = Sign (x)\ndx = Mul (sign, gk)\n"),
    "ReduceL2": _reduction(
        number("zero", 0) + "none = Equal (yk, zero)  over = Div (gk, yk)  safe = Where (none, zero, over)\n"
        "dx = Mul (x, safe)\n"
    ),
    "ReduceLogSum": _reduction(
        "m = Neg (yk)  share = Exp (m)  part = Mul (gk, share)  all = Shape (x)\ndx = Expand (part, all)\n"
    ),
    "ReduceLogSumExp": _reduction("off = Sub (x, yk)  share = Exp (off)\ndx = Mul (share, gk)\n"),
    "ReduceMax": _largest,
    "ReduceMean": _sum_or_mean,
    "ReduceMin": _largest,
    "ReduceSum": _sum_or_mean,
    "ReduceSumSquare": _reduction("twice = Add (x, x)\ndx = Mul (twice, gk)\n"),
}
