# SPDX-License-Identifier: Apache-2.0
"""Operators that move numbers and compute none: slices, pads, gathers, blocks of depth. Also products of vectors."""

from __future__ import annotations

import numpy as np

from qdqtool.autodiff.lowered.site import Array, LoweringContext, Replacement, Rule, Shape, Treatment


def _split(site: LoweringContext) -> Treatment:
    """The builder drops outputs that the loss does not depend on, and with them their part of the gradient."""
    outputs = site.node.output
    if all(site.wanted) and all(outputs):
        return None
    axis, draft, begin = site.axis(0), Replacement(site), 0
    for name, size in zip(outputs, _split_sizes(site, axis), strict=True):
        if name:
            bounds = [draft.integers([n]) for n in (begin, begin + size, axis)]
            draft.emit("Slice", [site.inputs[0], *bounds])
            draft.nodes[-1].output[0] = name
        begin += size
    return draft


def _split_sizes(site: LoweringContext, axis: int) -> list[int]:
    given, count, whole = site.constant(1), len(site.node.output), site.shape(0)[axis]
    if given is not None:
        return [int(size) for size in given]
    if site.has(1):
        return [site.shapes[name][axis] for name in site.node.output]
    each = -(-whole // count)
    return [min(each, whole - at * each) for at in range(count)]


def _slice(site: LoweringContext) -> Replacement | None:
    """The gradient kernel fails on steps backwards, so those become gathers."""
    site.only_first(1, 2, 3, 4)
    steps = site.constant(4)
    if steps is None or steps.min() > 0:
        return None
    begins, ends = site.constant(1), site.constant(2)
    axes = site.constant(3) if site.has(3) else np.arange(len(steps))
    if begins is None or ends is None or axes is None:
        raise site.refusal("goes backwards to bounds that are computed in the graph")
    draft, name = Replacement(site), site.inputs[0]
    for axis, begin, end, step in zip(axes.tolist(), begins.tolist(), ends.tolist(), steps.tolist(), strict=True):
        order = np.arange(site.shape(0)[axis])[slice(begin, end, step)]
        name = draft.emit("Gather", [name, draft.integers(order)], axis=axis)
    return draft.end("Identity", [name])


def _pad(site: LoweringContext) -> Treatment:
    """The builder knows constants around all axes. Other modes are gathers along each axis."""
    site.only_first(1, 2, 3)
    mode = site.attribute("mode", "constant")
    if mode == "constant" and not site.has(3):
        return None
    given = site.constant(1)
    axes = site.constant(3)
    if given is None or (site.has(3) and axes is None):
        raise site.refusal("has pads that are computed in the graph")
    rank = len(site.shape(0))
    places = range(rank) if axes is None else [int(axis) % rank for axis in axes.reshape(-1)]
    half = len(given) // 2
    before, after = np.zeros(rank, np.int64), np.zeros(rank, np.int64)
    for at, axis in enumerate(places):
        before[axis], after[axis] = given[at], given[half + at]
    draft = Replacement(site)
    if mode == "constant":
        value = [site.inputs[2]] if site.has(2) else []
        draft.again([site.inputs[0], draft.integers([*before, *after]), *value])
        return draft
    return _gathered(site, draft, mode, before, after)


def _gathered(site: LoweringContext, draft: Replacement, mode: str, before: Array, after: Array) -> Replacement:
    """Pads of mode edge, reflect or wrap as one Gather per padded axis."""
    if mode not in ("edge", "reflect", "wrap"):
        raise site.refusal(f"has the mode {mode}")
    if min(before.min(), after.min()) < 0:
        raise site.refusal(f"cuts off with the mode {mode}")
    name = site.inputs[0]
    for axis in np.flatnonzero(before + after).tolist():
        count = (int(before[axis]), int(after[axis]))
        order = np.pad(np.arange(site.shape(0)[axis]), count, mode=mode)  # type: ignore[call-overload]
        name = draft.emit("Gather", [name, draft.integers(order)], axis=axis)
    return draft.end("Identity", [name])


def _scatter(site: LoweringContext) -> None:
    if site.attribute("reduction", "none") != "none":
        raise site.refusal("adds or multiplies into what is there (reduction)")


def _depth_to_space(site: LoweringContext) -> Replacement:
    """Reshape, Transpose, Reshape, as the operator is defined."""
    n, c, h, w = site.shape(0)
    b = int(site.attribute("blocksize"))
    small = c // (b * b)
    if site.attribute("mode", "DCR") == "DCR":
        return _turned(site, (n, b, b, small, h, w), (0, 3, 4, 1, 5, 2))
    return _turned(site, (n, small, b, b, h, w), (0, 1, 4, 2, 5, 3))


def _space_to_depth(site: LoweringContext) -> Replacement:
    n, c, h, w = site.shape(0)
    b = int(site.attribute("blocksize"))
    return _turned(site, (n, c, h // b, b, w // b, b), (0, 3, 5, 1, 2, 4))


def _turned(site: LoweringContext, split: Shape, order: tuple[int, ...]) -> Replacement:
    draft = Replacement(site)
    blocks = draft.emit("Reshape", [site.inputs[0], draft.integers(split)])
    turned = draft.emit("Transpose", [blocks], perm=order)
    return draft.end("Reshape", [turned, draft.integers(site.out)])


def _product(site: LoweringContext) -> Treatment:
    """A vector becomes a matrix of one row or column, which the builder is right about."""
    left, right = site.shape(0), site.shape(1)
    if len(left) > 1 and len(right) > 1:
        return None
    draft, inputs = Replacement(site), list(site.inputs)
    for at, shape in enumerate((left, right)):
        if len(shape) == 1:
            wide = (1, *shape) if at == 0 else (*shape, 1)
            inputs[at] = draft.emit("Reshape", [inputs[at], draft.integers(wide)])
    product = draft.emit("MatMul", inputs)
    return draft.end("Reshape", [product, draft.integers(site.out)])


def _cast(site: LoweringContext) -> None:
    """Activity ends at every type but float32, so what comes here stays float32."""


def _entropy(site: LoweringContext) -> Replacement | None:
    """The builder needs the logarithms as a second output."""
    site.only_first(1, 2)
    if len(site.node.output) > 1 and site.node.output[1]:
        return None
    draft = Replacement(site)
    node = draft.again()
    del node.output[1:]
    node.output.append(draft.fresh())
    return draft


def _largest(site: LoweringContext) -> None:
    site.only_first(1)


MOVING: dict[str, Rule] = {
    "Cast": _cast,
    "DepthToSpace": _depth_to_space,
    "MatMul": _product,
    "Pad": _pad,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    "Slice": _slice,
    "SoftmaxCrossEntropyLoss": _entropy,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "TopK": _largest,
}
