# SPDX-License-Identifier: Apache-2.0
"""Normalizing operators. BatchNormalization is the affine map that it is in the file, never batch statistics."""

from __future__ import annotations

import math

import numpy as np

from qdqtool.autodiff.lowered.site import LoweringContext, Replacement, Rule, Shape, Wrap, integers, number, reshaped


def _batch(site: LoweringContext) -> Wrap:
    """Y = (x - mean) k scale + bias with k = 1 / sqrt(variance + epsilon), and mean and variance fixed.

    dx = g k scale, dscale = k sum g (x - mean), dbias = sum g.
    """
    if site.attribute("training_mode", 0) or len(site.node.output) > 1:
        raise site.refusal("is in training mode: its statistics would change with every batch")
    site.only_first(3, 4)
    shape = site.shape(0)
    column = (1, shape[1], *(1 for _ in shape[2:]))
    text = number("epsilon", site.attribute("epsilon", 1e-5)) + integers("over", _all_but_channels(shape))
    text += "v = Add (variance, epsilon)  root = Sqrt (v)  k = Reciprocal (root)  slope = Mul (k, scale)\n"
    text += reshaped("slopes", "slope", column) + reshaped("means", "mean", column) + "dx = Mul (g, slopes)\n"
    text += "dbias = ReduceSum <keepdims: int = 0> (g, over)\noff = Sub (x, means)  goff = Mul (g, off)\n"
    text += "moved = ReduceSum <keepdims: int = 0> (goff, over)\ndscale = Mul (moved, k)\n"
    return Wrap(("x", "scale", "bias", "mean", "variance"), text, ("x", "scale", "bias"))


def _all_but_channels(shape: Shape) -> list[int]:
    return [axis for axis in range(len(shape)) if axis != 1]


def _instance(site: LoweringContext) -> Replacement:
    """Each channel of each image by its own mean and variance, then scale and bias."""
    draft, shape = Replacement(site), site.shape(0)
    column = (shape[1], *(1 for _ in shape[2:]))
    normal = _normal(draft, site.inputs[0], shape, range(2, len(shape)), site)
    scale = draft.emit("Reshape", [site.inputs[1], draft.integers(column)])
    bias = draft.emit("Reshape", [site.inputs[2], draft.integers(column)])
    return draft.end("Add", [draft.emit("Mul", [normal, scale]), bias])


def _group(site: LoweringContext) -> Replacement:
    """Each group of channels of each image by its own mean and variance; scale and bias by channel, or by group."""
    draft, shape = Replacement(site), site.shape(0)
    groups = int(site.attribute("num_groups"))
    split = (shape[0], groups, shape[1] // groups, *shape[2:])
    parts = draft.emit("Reshape", [site.inputs[0], draft.integers(split)])
    normal = _normal(draft, parts, split, range(2, len(split)), site)
    by_group = site.shape(1) != (shape[1],)
    if not by_group:
        normal = draft.emit("Reshape", [normal, draft.integers(shape)])
    at = split if by_group else shape
    column = (groups, *(1 for _ in at[2:])) if by_group else (shape[1], *(1 for _ in at[2:]))
    scale = draft.emit("Reshape", [site.inputs[1], draft.integers(column)])
    bias = draft.emit("Reshape", [site.inputs[2], draft.integers(column)])
    scaled = draft.emit("Mul", [normal, scale])
    if not by_group:
        return draft.end("Add", [scaled, bias])
    return draft.end("Reshape", [draft.emit("Add", [scaled, bias]), draft.integers(shape)])


def _normal(draft: Replacement, source: str, shape: Shape, axes: range, site: LoweringContext) -> str:
    """Nodes for (x - mean) / sqrt(variance + epsilon) over axes."""
    share = draft.constant(np.float32(1 / math.prod(shape[axis] for axis in axes)))
    mean = draft.emit("Mul", [draft.emit("ReduceSum", [source, draft.integers(axes)]), share])
    off = draft.emit("Sub", [source, mean])
    square = draft.emit("ReduceSum", [draft.emit("Mul", [off, off]), draft.integers(axes)])
    epsilon = draft.constant(np.float32(site.attribute("epsilon", 1e-5)))
    spread = draft.emit("Add", [draft.emit("Mul", [square, share]), epsilon])
    return draft.emit("Div", [off, draft.emit("Sqrt", [spread])])


def _layer(site: LoweringContext) -> Replacement:
    """The builder needs all three outputs, a bias, and both of the shape that is normalized."""
    shape, axis = site.shape(0), site.axis(-1)
    if site.shape(1) != shape[axis:] or (site.has(2) and site.shape(2) != shape[axis:]):
        raise site.refusal("has a scale or bias that is not of the shape that it normalizes")
    draft = Replacement(site)
    bias = site.inputs[2] if site.has(2) else draft.constant(np.zeros(shape[axis:], np.float32))
    node = draft.again([site.inputs[0], site.inputs[1], bias])
    given = [*node.output[1:], "", ""][:2]
    del node.output[1:]
    node.output.extend(name or draft.fresh() for name in given)
    return draft


def _by_norm(site: LoweringContext) -> Replacement:
    """LpNormalization: x / norm along an axis."""
    axis, draft, x = site.axis(-1), Replacement(site), site.inputs[0]
    if int(site.attribute("p", 2)) == 1:
        norm = draft.emit("ReduceSum", [draft.emit("Abs", [x]), draft.integers([axis])])
    else:
        norm = draft.emit("Sqrt", [draft.emit("ReduceSum", [draft.emit("Mul", [x, x]), draft.integers([axis])])])
    return draft.end("Div", [x, norm])


NORMALIZATIONS: dict[str, Rule] = {
    "BatchNormalization": _batch,
    "GroupNormalization": _group,
    "InstanceNormalization": _instance,
    "LayerNormalization": _layer,
    "LpNormalization": _by_norm,
}
