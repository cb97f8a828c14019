# SPDX-License-Identifier: Apache-2.0
"""Operators that move, repeat or drop numbers by place alone: shapes, axes, slices, pads, joins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from qdqtool.autodiff.rules.tape import GraphValue
from qdqtool.autodiff.rules.vjp_context import Gradients, Rule, VjpContext


def _reshape(site: VjpContext) -> Gradients:
    return [site.g.reshape(site.x.shape)]


def _transpose(site: VjpContext) -> Gradients:
    order = site.get("perm", tuple(reversed(range(len(site.x.shape)))))
    return [site.g.transpose([int(place) for place in np.argsort(order)])]


def _expand(site: VjpContext) -> Gradients:
    return [site.g.sum_to(site.x.shape)]


def _tile(site: VjpContext) -> Gradients:
    """Each axis split into copies and places, and the copies summed."""
    shape = site.x.shape
    if not shape:
        return [site.g]
    copies = [wide // size for wide, size in zip(site.y.shape, shape, strict=True)]
    split = tuple(number for pair in zip(copies, shape, strict=True) for number in pair)
    axes = [2 * axis for axis, count in enumerate(copies) if count > 1]
    return [site.g.reshape(split).sum(axes).reshape(shape)]


def _trilu(site: VjpContext) -> Gradients:
    """The same triangle of the cotangent: numbers outside of it are zeros of y, whatever x holds there."""
    diagonal = site.optional(1)
    inputs = [site.g] if diagonal is None else [site.g, diagonal]
    return [site.tape.emit("Trilu", inputs, site.x.shape, upper=int(site.get("upper", 1)))]


def _concat(site: VjpContext) -> Gradients:
    axis, at = site.axis(0), 0
    gradients: list[GraphValue | None] = []
    for index, value in enumerate(site.inputs):
        size = 0 if value is None else value.shape[axis]
        gradients.append(site.g.slice([at], [at + size], [1], [axis]) if site.wants(index) else None)
        at += size
    return gradients


def _split(site: VjpContext) -> Gradients:
    """The parts joined again, zeros for those that the loss does not depend on."""
    axis, at = site.axis(0), 0
    sizes = _split_sizes(site, axis)
    parts: list[GraphValue] = []
    for cotangent, size in zip(site.cotangents, sizes, strict=True):
        shape = (*site.x.shape[:axis], size, *site.x.shape[axis + 1 :])
        parts.append(site.tape.zeros(shape, site.x.kind) if cotangent is None else cotangent)
        at += size
    return [site.tape.concat(parts, axis)]


def _split_sizes(site: VjpContext, axis: int) -> tuple[int, ...]:
    """The parts' sizes: from an input, else equal, the last one smaller where that does not come out even."""
    given = site.integers(1, "sizes of its parts")
    if given is not None:
        return given
    count, size = len(site.node.output), site.x.shape[axis]
    each = -(-size // count)
    return (*(each,) * (count - 1), size - each * (count - 1))


def _slice(site: VjpContext) -> Gradients:
    """The pieces put back where they were, zeros around and between them."""
    if any(value is not None and site.known(value.name) is None for value in site.inputs[1:]):
        return [_slice_anywhere(site)]
    shape, gradient = site.x.shape, site.g
    begins, ends = [0] * len(shape), [0] * len(shape)
    for axis, places in _slice_places(site).items():
        if not len(places):
            return [site.tape.zeros(shape, site.x.kind)]
        if places.step < 0:
            gradient, places = gradient.flip([axis]), places[::-1]
        gradient = gradient.spread(axis, places.step)
        begins[axis], ends[axis] = places[0], shape[axis] - 1 - places[-1]
    return [gradient.pad(begins, ends)]


def _slice_anywhere(site: VjpContext) -> GraphValue:
    """Where bounds depend on data: the places themselves are sliced, and g is added to zeros there."""
    shape, tape = site.x.shape, site.tape
    count, line = math.prod(site.y.shape), tape.integers([-1])  # the count is that of one batch, the line that of any
    places = tape.constant(np.arange(math.prod(shape), dtype=np.int64).reshape(shape))
    seen = tape.emit("Slice", [places, *site.inputs[1:]], site.y.shape)
    indices, updates = (tape.emit("Reshape", [value, line], (count,)) for value in (seen, site.g))
    zeros = tape.zeros((math.prod(shape),), site.x.kind)
    how: dict[str, Any] = {"axis": 0, "reduction": "add"}
    return tape.emit("ScatterElements", [zeros, indices, updates], zeros.shape, **how).reshape(shape)


def _slice_places(site: VjpContext) -> dict[int, range]:
    """The places that are kept, for each axis that is cut."""
    begins, ends = (site.integers(index, "bounds") or () for index in (1, 2))
    axes = site.integers(3, "axes") or tuple(range(len(begins)))
    steps = site.integers(4, "steps") or (1,) * len(begins)
    places = {}
    for begin, end, axis, step in zip(begins, ends, axes, steps, strict=True):
        size = site.x.shape[axis % len(site.x.shape)]
        places[axis % len(site.x.shape)] = range(*slice(begin, end, step).indices(size))
    return places


def _pad(site: VjpContext) -> Gradients:
    begins, ends = _pad_counts(site)
    shape, mode = site.x.shape, site.get("mode", "constant")
    gradient = site.g
    if mode == "constant":
        gradient = gradient.pad([-count for count in begins], [-count for count in ends])
        return [gradient, None, _pad_value(site, gradient)]
    for axis, size in enumerate(shape):
        if begins[axis] or ends[axis]:
            source = _source(mode, size, begins[axis], ends[axis])
            gradient = gradient.along(axis, np.eye(size, dtype=np.float32)[source])
    return [gradient]


def _pad_value(site: VjpContext, inner: GraphValue) -> GraphValue | None:
    """The number that is padded with stands in every place outside the tensor."""
    if not site.wants(2):
        return None
    everywhere, inside = (value.sum(range(len(value.shape)), keep=False) for value in (site.g, inner))
    return (everywhere - inside).reshape(site.given(2).shape)


def _pad_counts(site: VjpContext) -> tuple[list[int], list[int]]:
    rank = len(site.x.shape)
    pads = site.integers(1, "pads") or (0,) * (2 * rank)
    axes = site.integers(3, "axes") or tuple(range(rank))
    begins, ends = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        begins[axis % rank], ends[axis % rank] = pads[place], pads[place + len(axes)]
    return begins, ends


def _source(mode: str, size: int, begin: int, end: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each place of a padded axis, the place that its number comes from; negative pads cut."""
    places = np.arange(-begin, size + end)
    if mode == "edge":
        return np.clip(places, 0, size - 1)
    if mode == "wrap" or size == 1:
        return places % size
    period = 2 * (size - 1)
    return np.minimum(places % period, -places % period)


def _depth_to_space(site: VjpContext) -> Gradients:
    """Undoes the split of channels into blocks of b x b: the axes of the forward pass in reverse order."""
    block = int(site.get("blocksize", 1))
    n, channels, height, width = site.x.shape
    deep = channels // block**2
    parts = site.g.reshape((n, deep, height, block, width, block))
    if site.get("mode", "DCR") == "CRD":
        return [parts.transpose((0, 1, 3, 5, 2, 4)).reshape(site.x.shape)]
    return [parts.transpose((0, 3, 5, 1, 2, 4)).reshape(site.x.shape)]


def _space_to_depth(site: VjpContext) -> Gradients:
    block = int(site.get("blocksize", 1))
    n, channels, height, width = site.x.shape
    parts = site.g.reshape((n, block, block, channels, height // block, width // block))
    return [parts.transpose((0, 3, 4, 1, 5, 2)).reshape(site.x.shape)]


RULES: Mapping[str, Rule] = {
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _reshape,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _reshape,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _reshape,
}
