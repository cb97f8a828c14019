# SPDX-License-Identifier: Apache-2.0
"""Moments through operators that only move values: who was channel 3 before, and who is it now."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from qdqtool.datafree.moments import MOST, Array, Moments, collapsed, mixture, padded, rearranged, within
from qdqtool.graph.shapes import Shape

Places = npt.NDArray[np.generic] | slice


def reshape(x: Moments, before: Shape | None, after: Shape | None) -> Moments:
    """The same values in the same order under another shape; free axes count as one."""
    if x.mean.size == 1 or before is None or after is None:
        return collapsed(x) if x.mean.size > 1 or after is None else _alike(x, len(after))
    old, new = ([axis or 1 for axis in shape] for shape in (before, after))
    x = padded(x, len(old))
    blocks = _blocks(old, new)
    if (
        blocks is None
        or x.mean.ndim != len(old)
        or any(h not in (1, o) for h, o in zip(x.mean.shape, old, strict=True))
    ):
        return collapsed(x)
    full, target = list(x.mean.shape), [1] * len(new)
    for sources, targets in blocks:
        if all(x.mean.shape[axis] == 1 for axis in sources):
            continue
        for axis in sources:
            full[axis] = old[axis]
        for axis in targets:
            target[axis] = new[axis]
    if np.prod(full) > MOST or np.prod(full) != np.prod(target):
        return collapsed(x)
    return rearranged(x, lambda values: np.broadcast_to(values, full).reshape(target))


def transpose(x: Moments, perm: Sequence[int] | None) -> Moments:
    """Axes in another order."""
    if x.mean.ndim == 0:
        return x
    order = list(perm) if perm is not None else list(range(x.mean.ndim))[::-1]
    x = padded(x, len(order))
    return rearranged(x, lambda values: values.transpose(order)) if x.mean.ndim == len(order) else collapsed(x)


def concat(parts: list[Moments], axis: int, shapes: list[Shape | None]) -> Moments:
    """Tensors behind one another; a mixture where sizes along the axis are not known or too many."""
    ranks = [len(shape) for shape in shapes if shape is not None] + [part.mean.ndim for part in parts]
    rank = max(ranks)
    axis = axis + rank if axis < 0 else axis
    if not 0 <= axis < rank:
        return mixture([collapsed(part) for part in parts])
    parts = [padded(part, rank) for part in parts]
    sizes = [_size(part, shape, axis) for part, shape in zip(parts, shapes, strict=True)]
    common = _common([part.mean.shape for part in parts], axis)
    known = [size for size in sizes if size]
    varied = any(part.mean.size > 1 or part.mean.flat[0] != parts[0].mean.flat[0] for part in parts)
    if common is None or len(known) < len(sizes) or not varied or sum(known) * np.prod(common) > MOST:
        return mixture([collapsed(part) for part in parts])

    def joined(arrays: list[Array]) -> Array:
        wide = [np.broadcast_to(a, _with(common, axis, n)) for a, n in zip(arrays, known, strict=True)]
        return np.concatenate(wide, axis)

    means, variances = joined([p.mean for p in parts]), joined([p.var for p in parts])
    return within(parts, Moments(means, variances, 0.0, 0.0))


def along(x: Moments, axis: int, rank: int | None, index: Places) -> Moments:
    """Some places of one axis: a slice, or indices (whose axes take the place of that axis)."""
    if x.mean.size == 1 and isinstance(index, slice):
        return x
    x = padded(x, rank or x.mean.ndim)
    axis = axis + x.mean.ndim if axis < 0 else axis
    if not 0 <= axis < x.mean.ndim:
        return collapsed(x)
    uniform = x.mean.shape[axis] == 1
    if isinstance(index, slice):
        cut = (slice(None),) * axis + (index,)
        return x if uniform or x.mean[cut].size == 0 else rearranged(x, lambda values: values[cut])
    if index.size > MOST or index.size * x.mean.size > MOST * MOST:
        return collapsed(x)
    places = np.zeros((1,) * index.ndim, np.int64) if uniform else index.astype(np.int64)
    if places.size == 0 or places.min() < -x.mean.shape[axis] or places.max() >= x.mean.shape[axis]:
        return collapsed(x)
    return rearranged(x, lambda values: np.take(values, places, axis))


def split(x: Moments, axis: int, sizes: list[int | None]) -> list[Moments]:
    """A tensor cut along one axis."""
    axis = axis + x.mean.ndim if axis < 0 else axis
    if not 0 <= axis < x.mean.ndim or x.mean.shape[axis] == 1:
        return [x] * len(sizes)
    total = x.mean.shape[axis]
    if any(not size for size in sizes) or sum(size or 0 for size in sizes) != total:
        if total % len(sizes):
            return [collapsed(x, (axis,))] * len(sizes)
        sizes = [total // len(sizes)] * len(sizes)
    ends = np.cumsum([size or 0 for size in sizes])
    return [along(x, axis, None, slice(int(e) - (s or 0), int(e))) for e, s in zip(ends, sizes, strict=True)]


def _alike(x: Moments, rank: int) -> Moments:
    return rearranged(x, lambda values: values.reshape((1,) * rank))


def _size(part: Moments, shape: Shape | None, axis: int) -> int | None:
    if part.mean.shape[axis] > 1:
        return int(part.mean.shape[axis])
    return shape[axis] if shape is not None and axis < len(shape) else None


def _common(shapes: list[tuple[int, ...]], axis: int) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*(_with(shape, axis, 1) for shape in shapes))
    except ValueError:
        return None


def _with(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _blocks(old: list[int], new: list[int]) -> list[tuple[list[int], list[int]]] | None:
    """Runs of old axes and of new axes that hold the same values: (0 1)(2 3) -> (0)(1 2 3)."""
    if np.prod(old, dtype=object) != np.prod(new, dtype=object) or 0 in old:
        return None
    blocks: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        sources: list[int] = []
        targets: list[int] = []
        left = right = 1
        while True:
            if left <= right and i < len(old) and (left < right or not sources):
                sources.append(i)
                left, i = left * old[i], i + 1
            elif j < len(new) and (right < left or not targets):
                targets.append(j)
                right, j = right * new[j], j + 1
            else:
                break
        blocks.append((sources, targets))
    return blocks
