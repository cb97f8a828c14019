# SPDX-License-Identifier: Apache-2.0
"""Pools: over windows and over everything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from qdqtool.autodiff.rules.tape import GraphValue, Shape
from qdqtool.autodiff.rules.vjp_context import Gradients, Rule, VjpContext
from qdqtool.autodiff.rules.windows import Windows, averages, windows_of


def _max_pool(site: VjpContext) -> Gradients:
    """The gradient goes to the first of the largest numbers of each window, as elsewhere in the field.

    MaxPool tells its choices when asked, but then takes ten times its time in onnxruntime. Windows that do not meet,
    and windows one place apart, are undone without.
    """
    if any(value is not None for value in site.cotangents[1:]):
        raise site.refusal("returns indices, which have no gradient")
    x, large, small = site.x, site.x.shape[2:], site.y.shape[2:]
    windows = windows_of(site, site.get("kernel_shape", ()), large, small)
    if _tiles(windows, large, small):
        return [_by_tiles(x, site.y, site.g, windows)]
    if all(step == 1 for step in windows.strides) and not site.get("ceil_mode", 0):
        return [_axis_by_axis(site, windows)]
    return [_by_choices(site)]


def _by_choices(site: VjpContext) -> GraphValue:
    """Adds each window's gradient where MaxPool says that its largest number was, counted through the whole tensor."""
    if site.get("storage_order", 0):
        raise site.refusal("with storage_order=1 has no gradient here")
    x, count = site.x, math.prod(site.y.shape)
    places = site.extra_output(1, site.y.shape, TensorProto.INT64).reshape((count,))
    zeros = site.tape.zeros((math.prod(x.shape),), x.kind)
    how: dict[str, Any] = {"axis": 0, "reduction": "add"}
    return site.tape.emit("ScatterElements", [zeros, places, site.g.reshape((count,))], zeros.shape, **how).reshape(
        x.shape
    )


def _axis_by_axis(site: VjpContext, windows: Windows) -> GraphValue:
    """The maximum over a window is the one over its rows' maxima, so one axis after the other is undone."""
    stages = [site.x]
    for axis in reversed(range(1, len(windows.kernel))):
        stages.append(_maximum(stages[-1], windows, axis))
    gradient, maximum = site.g, site.y
    for axis, stage in enumerate(reversed(stages)):
        gradient, maximum = _undo(stage, maximum, gradient, windows, axis), stage
    return gradient


def _maximum(x: GraphValue, windows: Windows, axis: int) -> GraphValue:
    """The maxima of windows along one spatial axis."""
    rank = len(windows.kernel)
    begin, end, span = windows.begins[axis], windows.ends[axis], windows.spans[axis]
    shape = (*x.shape[: 2 + axis], x.shape[2 + axis] + begin + end - span + 1, *x.shape[3 + axis :])
    only = [int(at == axis) for at in range(rank)]
    how: dict[str, Any] = {
        "kernel_shape": [windows.kernel[axis] if own else 1 for own in only],
        "dilations": [windows.dilations[axis] if own else 1 for own in only],
        "pads": [begin * own for own in only] + [end * own for own in only],
    }
    return x.tape.emit("MaxPool", [x], shape, **how)


def _undo(x: GraphValue, y: GraphValue, g: GraphValue, windows: Windows, axis: int) -> GraphValue:
    """The gradient by x of y = the maxima along one axis: each tap takes what earlier ones left, where it is equal."""
    at, begin = 2 + axis, windows.begins[axis]
    size, count = x.shape[at], y.shape[at]
    left, terms = g, []
    for tap in range(windows.kernel[axis]):
        first = tap * windows.dilations[axis] - begin  # the place that window 0 sees
        low, high = max(0, -first), min(count, size - first)
        if low >= high:  # this tap sees nothing but padding
            continue
        places = x.slice([first + low], [first + high], [1], [at])
        seen, rest = (value.slice([low], [high], [1], [at]) for value in (y, left))
        taken = rest * places.equals(seen).cast(g.kind)
        terms.append(_placed(taken, at, first + low, size))
        left = left - _placed(taken, at, low, count)
    return g.tape.add_up(terms)


def _placed(value: GraphValue, axis: int, begin: int, size: int) -> GraphValue:
    """The value from place `begin` on in zeros of a size."""
    rank = len(value.shape)
    begins = [begin if at == axis else 0 for at in range(rank)]
    ends = [size - begin - value.shape[axis] if at == axis else 0 for at in range(rank)]
    return value.pad(begins, ends)


def _tiles(windows: Windows, large: Shape, small: Shape) -> bool:
    """Whether the windows cut two axes into pieces, without gaps and pads."""
    pieces = tuple(count * size for count, size in zip(small, windows.kernel, strict=True))
    return len(large) == 2 and windows.kernel == windows.strides and windows.dilations == (1, 1) and pieces == large


def _by_tiles(x: GraphValue, y: GraphValue, g: GraphValue, windows: Windows) -> GraphValue:
    """Where windows do not meet: equal numbers rank by their place in the window, and the first one is chosen."""
    down, right = windows.kernel
    ranks = np.arange(down * right, 0, -1, dtype=np.float32).reshape(down, right)
    ranks = np.tile(ranks, (y.shape[2], y.shape[3]))
    rank = x.equals(_repeated(y, windows)).cast(x.kind) * ranks
    first = x.tape.emit("MaxPool", [rank], y.shape, kernel_shape=windows.kernel, strides=windows.strides)
    return _repeated(g, windows) * rank.equals(_repeated(first, windows)).cast(x.kind)


def _repeated(value: GraphValue, windows: Windows) -> GraphValue:
    """Every number of the last two axes repeated over its window."""
    shape = (*value.shape[:2], *(size * times for size, times in zip(value.shape[2:], windows.kernel, strict=True)))
    scales = value.tape.constant(np.array([1, 1, *windows.kernel], np.float32))
    how: dict[str, Any] = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return value.tape.emit("Resize", [value, None, scales], shape, **how)


def _average_pool(site: VjpContext) -> Gradients:
    """An average is linear and one axis after the other: the transposed matrix along each."""
    large, small = site.x.shape[2:], site.y.shape[2:]
    windows = windows_of(site, site.get("kernel_shape", ()), large, small)
    counts = bool(site.get("count_include_pad", 0))
    gradient = site.g
    for axis in reversed(range(len(large))):
        gradient = gradient.along(axis + 2, averages(windows, axis, large[axis], small[axis], counts).T)
    return [gradient]


def _global_average(site: VjpContext) -> Gradients:
    share = site.g * (1 / max(1, math.prod(site.x.shape[2:])))
    return [share.expand(site.x.shape)]


def _global_max(site: VjpContext) -> Gradients:
    """Equal shares where several numbers are the largest."""
    hits = site.x.equals(site.y).cast(site.x.kind)
    return [hits * (site.g / hits.sum(range(2, len(site.x.shape))))]


RULES: Mapping[str, Rule] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average,
    "GlobalMaxPool": _global_max,
    "MaxPool": _max_pool,
}
