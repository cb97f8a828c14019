# SPDX-License-Identifier: Apache-2.0
"""Conv and ConvTranspose: the gradient by the input, by the weight, by the bias, in any number of dimensions.

Notation: x [N, C, *S] is what the windows lie on, w [M, C / G, *K], g [N, M, *O] has one place per window. Which way
is taken for what shape was measured on onnxruntime's CPU kernels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qdqtool.autodiff.rules.tape import GraphValue, Shape
from qdqtool.autodiff.rules.vjp_context import Gradients, Rule, VjpContext
from qdqtool.autodiff.rules.windows import Windows, windows_of

# Measured on onnxruntime 1.31's CPU kernels with 2 MiB of second-level cache, in numbers, not bytes.
_BLOCK = 100_000  # what the taps of a kernel read again and again: a fifth faster, two fifths for depthwise kernels
_LARGE_BUFFER = 2_000_000  # columns that ConvTranspose holds at once
_NARROW = 8  # channels below which one product over all taps wins
_LONG_ROW = 40  # places in a row from which it is read faster than channels


def _conv(site: VjpContext) -> Gradients:
    x, w, g = site.x, site.given(1), site.g
    groups = int(site.get("group", 1))
    windows = windows_of(site, w.shape[2:], x.shape[2:], g.shape[2:])
    return [
        spread_back(g, w, windows, groups, x.shape[2:]) if site.wants(0) else None,
        weight_gradient(x, g, windows, groups) if site.wants(1) else None,
        bias_gradient(g) if site.wants(2) else None,
    ]


def _conv_transpose(site: VjpContext) -> Gradients:
    """The forward pass is the input gradient of a Conv from y to x, so that Conv is the way back."""
    x, w, g = site.x, site.given(1), site.g
    groups = int(site.get("group", 1))
    windows = transposed_windows(site, w, g)
    by_x = None
    if site.wants(0):
        by_x = site.tape.emit("Conv", [g, w], x.shape, **attributes_of(windows, groups))
    return [
        by_x,
        weight_gradient(g, x, windows, groups) if site.wants(1) else None,
        bias_gradient(g) if site.wants(2) else None,
    ]


def transposed_windows(site: VjpContext, w: GraphValue, g: GraphValue) -> Windows:
    """The windows on the output. Where the output's shape is asked for, the pads are what is left over."""
    windows = windows_of(site, w.shape[2:], g.shape[2:], site.x.shape[2:])
    auto = site.get("auto_pad", "NOTSET")
    if "output_shape" not in site.attributes and not auto.startswith("SAME"):
        return windows
    extra = site.get("output_padding", (0,) * len(windows.kernel))
    reach = windows.reach(site.x.shape[2:])
    totals = [max(0, r + e - size) for r, e, size in zip(reach, extra, g.shape[2:], strict=True)]
    less, more = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    begins, ends = (less, more) if auto == "SAME_UPPER" else (more, less)
    return Windows(windows.kernel, windows.strides, windows.dilations, begins, ends)


def attributes_of(windows: Windows, groups: int) -> dict[str, Any]:
    """The attributes of a Conv over windows."""
    return {
        "kernel_shape": windows.kernel,
        "strides": windows.strides,
        "dilations": windows.dilations,
        "pads": (*windows.begins, *windows.ends),
        "group": groups,
    }


def bias_gradient(g: GraphValue) -> GraphValue:
    """The gradient by a bias per channel, from the gradient by the output."""
    return g.sum([axis for axis in range(len(g.shape)) if axis != 1], keep=False)


# ---------------------------------------------------------------- by the input


def spread_back(g: GraphValue, w: GraphValue, windows: Windows, groups: int, large: Shape) -> GraphValue:
    """The gradient by x [N, C, *large]: every window gives its share back to the places that it saw."""
    shape = (g.shape[0], w.shape[1] * groups, *large)
    if _flipping_pays(g, w, windows, groups):
        return _by_flipped_weight(g, w, windows, groups, shape)
    reach = windows.reach(g.shape[2:])
    padded = zip(large, windows.begins, windows.ends, strict=True)
    left_over = tuple(size + b + e - r for (size, b, e), r in zip(padded, reach, strict=True))
    how = {**attributes_of(windows, groups), "output_padding": left_over}
    return g.tape.emit("ConvTranspose", [g, w], shape, **how)


def _flipping_pays(g: GraphValue, w: GraphValue, windows: Windows, groups: int) -> bool:
    """Where Conv has a kernel of its own, or ConvTranspose makes a buffer that no cache holds."""
    if any(step != 1 for step in windows.strides):
        return False
    depthwise = w.shape[1] == 1 and w.shape[0] == groups > 1 and windows.kernel == (3, 3)
    buffer = math.prod(w.shape[1:]) * math.prod(g.shape[2:])
    return windows.pointwise or depthwise or buffer > _LARGE_BUFFER


def _by_flipped_weight(g: GraphValue, w: GraphValue, windows: Windows, groups: int, shape: Shape) -> GraphValue:
    """A Conv over g with the weight turned and flipped; windows are one place apart."""
    rank = len(windows.kernel)
    begins = tuple(span - 1 - begin for span, begin in zip(windows.spans, windows.begins, strict=True))
    ends = tuple(span - 1 - end for span, end in zip(windows.spans, windows.ends, strict=True))
    if any(count < 0 for count in (*begins, *ends)):  # Conv takes no negative pads
        g, begins, ends = g.pad((0, 0, *begins), (0, 0, *ends)), (0,) * rank, (0,) * rank
    back = Windows(windows.kernel, windows.strides, windows.dilations, begins, ends)
    return g.tape.emit("Conv", [g, _turned(w, groups)], shape, **attributes_of(back, groups))


def _turned(w: GraphValue, groups: int) -> GraphValue:
    """[M, C / G, *K] as [C, M / G, *K], each kernel from its other end."""
    m, c, *kernel = w.shape
    parts = w.flip(range(2, len(w.shape))).reshape((groups, m // groups, c, *kernel))
    order = (0, 2, 1, *range(3, len(kernel) + 3))
    return parts.transpose(order).reshape((groups * c, m // groups, *kernel))


# ---------------------------------------------------------------- by the weight


def weight_gradient(x: GraphValue, g: GraphValue, windows: Windows, groups: int) -> GraphValue:
    """The gradient by w [M, C / G, *K]: for each tap, g times what that tap saw, summed over windows and images."""
    shape = (g.shape[1], x.shape[1] // groups, *windows.kernel)
    if windows.pointwise and groups == 1:
        return _channels_by_places(g).gemm(_channels_by_places(x), turn_second=True).reshape(shape)
    if x.shape[1] == g.shape[1] == groups > 1:
        return _depthwise(x, g, windows)
    way = _at_once if groups == 1 and x.shape[1] <= _NARROW else _per_tap
    return way(x, g, windows, groups).reshape(shape)


def _channels_by_places(value: GraphValue) -> GraphValue:
    """[N, C, *S] as [C, N * S], the order in which a matrix product reads without a detour."""
    turned = value.transpose((1, 0, *range(2, len(value.shape))))
    return turned.reshape((value.shape[1], math.prod(value.shape) // value.shape[1]))


def _per_tap(x: GraphValue, g: GraphValue, windows: Windows, groups: int) -> GraphValue:
    """One product of matrices per tap: g as [G, M / G, N * O] with what the tap saw, [G, N * O, C / G]."""
    m, c = g.shape[1] // groups, x.shape[1] // groups
    sums: list[list[GraphValue]] = [[] for _ in range(math.prod(windows.kernel))]
    for part, by_part in _by_images(x, g):
        count = math.prod(by_part.shape) // (groups * m)
        left = _channels_by_places(by_part).reshape((groups, m, count))
        seen = _seen(_channels_last(part, windows, groups), windows, g.shape[2:], 2)
        for terms, places in zip(sums, seen, strict=True):
            terms.append(left.matmul(places.reshape((groups, count, c))))
    products = [g.tape.add_up(terms).reshape((1, groups * m * c)) for terms in sums]
    return g.tape.concat(products, 0).transpose((1, 0))


def _at_once(x: GraphValue, g: GraphValue, windows: Windows, groups: int) -> GraphValue:
    """One product for all taps, [K * C, N * O] with g as [N * O, M]: for images, whose channels fill no vector."""
    m, c, rank = g.shape[1], x.shape[1], len(windows.kernel)
    zeros = ((0, 0, *windows.begins), (0, 0, *windows.ends))
    products = []
    for part, by_part in _by_images(x, g):
        padded = part.transpose((1, 0, *range(2, rank + 2))).pad(*zeros)
        count = math.prod(by_part.shape) // m
        places = [seen.reshape((c, count)) for seen in _seen(padded, windows, g.shape[2:], 2)]
        right = by_part.transpose((0, *range(2, rank + 2), 1)).reshape((count, m))
        products.append(g.tape.concat(places, 0).gemm(right))
    total = g.tape.add_up(products).reshape((math.prod(windows.kernel), c, m))
    return total.transpose((2, 1, 0))


def _depthwise(x: GraphValue, g: GraphValue, windows: Windows) -> GraphValue:
    """Every channel on its own: per tap a product number by number, and its sum."""
    channels, places = g.shape[1], math.prod(g.shape[2:])
    step = min(channels, max(1, _BLOCK // places))
    columns = []
    for begin in range(0, channels, step):
        end = min(channels, begin + step)
        mine, by_mine = (value.slice([begin], [end], [1], [1]) for value in (x, g))
        sums: list[list[GraphValue]] = [[] for _ in range(math.prod(windows.kernel))]
        for part, by_part in _by_images(mine, by_mine):
            for terms, term in zip(sums, _depthwise_terms(part, by_part, windows), strict=True):
                terms.append(term)
        columns.append(g.tape.concat([g.tape.add_up(terms).reshape((1, end - begin)) for terms in sums], 0))
    return g.tape.concat(columns, 1).transpose((1, 0)).reshape((channels, 1, *windows.kernel))


def _depthwise_terms(x: GraphValue, g: GraphValue, windows: Windows) -> Iterator[GraphValue]:
    """For each tap the sums [C]; with channels last where the places that a tap sees are no long rows."""
    rank = len(windows.kernel)
    if all(step == 1 for step in windows.strides) and g.shape[-1] >= _LONG_ROW:
        padded = x.pad((0, 0, *windows.begins), (0, 0, *windows.ends))
        for places in _seen(padded, windows, g.shape[2:], 2):
            yield (places * g).sum([0, *range(2, rank + 2)], keep=False)
        return
    order = (0, *range(2, rank + 2), 1)
    padded, turned = x.transpose(order).pad((0, *windows.begins, 0), (0, *windows.ends, 0)), g.transpose(order)
    for places in _seen(padded, windows, g.shape[2:], 1):
        yield (places * turned).sum(range(rank + 1), keep=False)


def _by_images(x: GraphValue, g: GraphValue) -> Iterator[tuple[GraphValue, GraphValue]]:
    """Gives x and g in blocks of images that a cache holds while the taps read them again and again."""
    images = x.shape[0]
    step = max(1, _BLOCK // max(1, math.prod(x.shape[1:])))
    for begin in range(0, images, step):
        end = min(images, begin + step)
        yield x.slice([begin], [end], [1], [0]), g.slice([begin], [end], [1], [0])


def _channels_last(x: GraphValue, windows: Windows, groups: int) -> GraphValue:
    """Gives x as [G, N, *S, C / G], with the windows' zeros around S."""
    rank = len(windows.kernel)
    parts = x.reshape((x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    turned = parts.transpose((1, 0, *range(3, rank + 3), 2))
    return turned.pad((0, 0, *windows.begins, 0), (0, 0, *windows.ends, 0))


def _seen(padded: GraphValue, windows: Windows, counts: Sequence[int], first: int) -> Iterator[GraphValue]:
    """For each tap in order, the places that it sees, one per window; spatial axes begin at `first`."""
    axes = range(first, first + len(windows.kernel))
    for tap in itertools.product(*(range(size) for size in windows.kernel)):
        begins = [place * dilation for place, dilation in zip(tap, windows.dilations, strict=True)]
        ends = [b + (n - 1) * s + 1 for b, n, s in zip(begins, counts, windows.strides, strict=True)]
        yield padded.slice(begins, ends, windows.strides, axes)


RULES: Mapping[str, Rule] = {"Conv": _conv, "ConvTranspose": _conv_transpose}
