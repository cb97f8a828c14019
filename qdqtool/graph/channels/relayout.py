# SPDX-License-Identifier: Apache-2.0
"""Arrays that describe a tensor, moved as an operator moves the tensor: who was channel 3 before, and who is it now.

An array is broadcastable to its tensor: an axis of size 1 means "alike along it". It holds whatever is known of the
values: moments (`datafree/`) or the channels that they belong to (`atoms.py`). None is given where the result has no
such description, or one of more than `most` elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from qdqtool.graph.shape_values import Shape

Array = npt.NDArray[Any]
_Scalar = TypeVar("_Scalar", bound=np.generic)


def padded(values: npt.NDArray[_Scalar], rank: int) -> npt.NDArray[_Scalar]:
    """With axes of size 1 in front up to a rank; an array of more axes stays."""
    return values.reshape((1,) * max(0, rank - values.ndim) + values.shape)


def reshaped(
    values: npt.NDArray[_Scalar], before: Shape | None, after: Shape | None, most: int, *, exact: bool = False
) -> npt.NDArray[_Scalar] | None:
    """The same values in the same order under another shape.

    Args:
        values: describes the tensor.
        before: the tensor's shape; a free axis counts as one place.
        after: its shape after the operator.
        most: the most elements that the result may have.
        exact: refuse free axes that may not be the same ones before and after.
    """
    if after is None or (values.size > 1 and before is None):
        return None
    if values.size == 1 or before is None:
        return values.reshape((1,) * len(after))
    if exact and not _same_free_axis(before, after):
        return None
    old, new = ([axis or 1 for axis in shape] for shape in (before, after))
    values = padded(values, len(old))
    blocks = _blocks(old, new)
    fits = values.ndim == len(old) and all(h in (1, o) for h, o in zip(values.shape, old, strict=True))
    if blocks is None or not fits:
        return None
    full, target = list(values.shape), [1] * len(new)
    for sources, targets in blocks:
        if all(values.shape[axis] == 1 for axis in sources):
            continue
        for axis in sources:
            full[axis] = old[axis]
        for axis in targets:
            target[axis] = new[axis]
    if np.prod(full) > most or np.prod(full) != np.prod(target):
        return None
    return np.broadcast_to(values, full).reshape(target)


def transposed(values: npt.NDArray[_Scalar], order: Sequence[int]) -> npt.NDArray[_Scalar] | None:
    """Axes in another order."""
    values = padded(values, len(order))
    return values.transpose(order) if values.ndim == len(order) else None


def concatenated(
    parts: Sequence[npt.NDArray[_Scalar]], axis: int, sizes: Sequence[int | None], most: int
) -> npt.NDArray[_Scalar] | None:
    """Tensors after one another along an axis (from 0) on which they have these sizes."""
    known = [size for size in sizes if size]
    if len(known) < len(sizes):
        return None
    try:
        common = np.broadcast_shapes(*(_with(part.shape, axis, 1) for part in parts))
    except ValueError:
        return None
    if sum(known) * np.prod(common) > most:
        return None
    wide = [np.broadcast_to(part, _with(common, axis, size)) for part, size in zip(parts, known, strict=True)]
    return np.concatenate(wide, axis)


def taken(values: npt.NDArray[_Scalar], axis: int, index: Array | slice, most: int) -> npt.NDArray[_Scalar] | None:
    """Some places of one axis: a slice, or indices, whose axes take the place of that axis.

    An array that is alike along the axis of a slice is given back itself.
    """
    axis = axis + values.ndim if axis < 0 else axis
    if not 0 <= axis < values.ndim:
        return None
    uniform = values.shape[axis] == 1
    if isinstance(index, slice):
        cut = values[(slice(None),) * axis + (index,)]
        return values if uniform or cut.size == 0 else cut
    if index.size > most or index.size * values.size > most * most:
        return None
    places = np.zeros((1,) * index.ndim, np.int64) if uniform else index.astype(np.int64)
    if places.size == 0 or places.min() < -values.shape[axis] or places.max() >= values.shape[axis]:
        return None
    return np.take(values, places, axis)


def _same_free_axis(before: Shape, after: Shape) -> bool:
    """Whether at most one axis is free, and then the first of both shapes: the batch."""
    free = [[axis for axis, size in enumerate(shape) if size is None] for shape in (before, after)]
    return free == [[], []] or free == [[0], [0]]


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
