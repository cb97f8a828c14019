# SPDX-License-Identifier: Apache-2.0
"""Normalizations: by stored statistics (an affine map) and by the statistics of the input itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from qdqtool.autodiff.rules.tape import GraphValue, Shape
from qdqtool.autodiff.rules.vjp_context import Gradients, Rule, VjpContext


def _batch_normalization(site: VjpContext) -> Gradients:
    """An affine map y = (x - mean) k + bias with k = scale / sqrt(variance + epsilon), each per channel.

    dx = g k; dscale = sum(g (x - mean)) / sqrt(..); dbias = sum(g); and so on for the statistics, should they be asked.
    """
    if site.get("training_mode", 0):
        raise site.refusal("by the statistics of a batch has no gradient here")
    x, g = site.x, site.g
    scale, mean, variance = site.given(1), site.given(3), site.given(4)
    rest = [axis for axis in range(len(x.shape)) if axis != 1]

    per_channel: Shape = (x.shape[1], *(1,) * (len(x.shape) - 2))
    inverse = (variance + site.get("epsilon", 1e-5)).unary("Sqrt").unary("Reciprocal")
    factor = scale * inverse
    total = g.sum(rest, keep=False) if site.wants(2) or site.wants(3) else None
    product = None
    if site.wants(1) or site.wants(4):
        product = (g * (x - mean.reshape(per_channel))).sum(rest, keep=False)
    return [
        g * factor.reshape(per_channel) if site.wants(0) else None,
        product * inverse if product is not None else None,
        total,
        -(total * factor) if total is not None else None,
        product * factor * (inverse * inverse) * -0.5 if product is not None else None,
    ]


def _through_statistics(
    x: GraphValue, upstream: GraphValue, axes: Sequence[int], epsilon: float
) -> tuple[GraphValue, GraphValue]:
    """The way back through x^ = (x - mean) / sqrt(variance + epsilon) over axes.

    dx = (u - mean(u) - x^ mean(u x^)) / sqrt(..), where u is the gradient by x^.
    """
    centered = x - x.mean(axes)
    inverse = ((centered * centered).mean(axes) + epsilon).unary("Sqrt").unary("Reciprocal")
    normal = centered * inverse
    return inverse * (upstream - upstream.mean(axes) - normal * (upstream * normal).mean(axes)), normal


def _layer_normalization(site: VjpContext) -> Gradients:
    axis = site.axis(-1)
    axes = range(axis, len(site.x.shape))
    scale, bias = site.given(1), site.optional(2)
    by_x, normal = _through_statistics(site.x, site.g * scale, axes, site.get("epsilon", 1e-5))
    return [
        by_x,
        (site.g * normal).sum_to(scale.shape) if site.wants(1) else None,
        site.g.sum_to(bias.shape) if bias is not None and site.wants(2) else None,
    ]


def _instance_normalization(site: VjpContext) -> Gradients:
    x, g = site.x, site.g
    axes = range(2, len(x.shape))
    rest = [0, *axes]
    scale = site.given(1).reshape((x.shape[1], *(1,) * len(axes)))
    by_x, normal = _through_statistics(x, g * scale, axes, site.get("epsilon", 1e-5))
    return [by_x, (g * normal).sum(rest, keep=False), g.sum(rest, keep=False)]


def _group_normalization(site: VjpContext) -> Gradients:
    """Over [N, groups, C / groups, *S]; scale and bias are per group until opset 20, per channel since 21."""
    x, g, groups = site.x, site.g, int(site.get("num_groups", 1))
    n, channels, *spatial = x.shape
    split: Shape = (n, groups, channels // groups, *spatial)
    given = site.given(1)
    ones = (1,) * len(spatial)
    scale_shape = (groups, 1, *ones) if given.shape[0] == groups != channels else (groups, channels // groups, *ones)
    axes = range(2, len(split))
    upstream = g.reshape(split)
    scale = given.reshape(scale_shape)
    by_x, normal = _through_statistics(x.reshape(split), upstream * scale, axes, site.get("epsilon", 1e-5))
    return [
        by_x.reshape(x.shape),
        (upstream * normal).sum_to(scale_shape).reshape(given.shape) if site.wants(1) else None,
        upstream.sum_to(scale_shape).reshape(given.shape) if site.wants(2) else None,
    ]


def _lrn(site: VjpContext) -> Gradients:
    """With y = x d^-beta, d = bias + alpha / size * (sum of squares over the window of channels).

    dx = g d^-beta - 2 alpha beta / size * x * (sum of g y / d over the channels whose window holds this one).
    """
    x, g = site.x, site.g
    size, channels = int(site.get("size", 1)), x.shape[1]
    alpha, beta = site.get("alpha", 1e-4), site.get("beta", 0.75)
    ahead = np.arange(channels)[:, None] - np.arange(channels)  # [channel in the window, the window's own]
    band = ((ahead >= -((size - 1) // 2)) & (ahead <= math.ceil((size - 1) / 2))).astype(np.float32)
    d = (x * x).along(1, band) * (alpha / size) + site.get("bias", 1.0)
    seen = (g * site.y / d).along(1, np.ascontiguousarray(band.T))
    return [g * d ** (-beta) - (2 * alpha * beta / size) * x * seen]


def _softmax(site: VjpContext) -> Gradients:
    """The gradient is dx = y (g - sum(g y))."""
    product = site.g * site.y
    return [product - site.y * product.sum([site.axis(-1)])]


def _log_softmax(site: VjpContext) -> Gradients:
    return [site.g - site.y.unary("Exp") * site.g.sum([site.axis(-1)])]


def _lp_normalization(site: VjpContext) -> Gradients:
    """With y = x / |x|: dx = (g - y sum(g y)) / |x| for p = 2, (g - sign(x) sum(g y)) / |x| for p = 1."""
    axis = site.axis(-1)
    p = int(site.get("p", 2))
    norm = site.x.reduce("ReduceL2" if p == 2 else "ReduceL1", [axis])
    along = site.y if p == 2 else site.x.unary("Sign")
    return [(site.g - along * (site.g * site.y).sum([axis])) / norm]


RULES: Mapping[str, Rule] = {
    "BatchNormalization": _batch_normalization,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization,
    "LRN": _lrn,
    "LayerNormalization": _layer_normalization,
    "LogSoftmax": _log_softmax,
    "LpNormalization": _lp_normalization,
    "Softmax": _softmax,
}
