# SPDX-License-Identifier: Apache-2.0
"""What Conv, Gemm and MatMul sum up at some places of a batch, as the rows of a matrix: [rows, weights of one group].

A row holds the values that one value of the output is made of, in the order of the weights of one output channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.graph.nodes import attribute
from qdqtool.graph.view import Node
from qdqtool.pruning.weight_axes import groups_of

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


def draw_places(node: Node, made: Sequence[int], most: int, random: np.random.Generator) -> Int64:
    """Draw up to `most` places for each index of the first axis of the shape `made`: [first, places], numbered in it.

    The operator is a Conv, a Gemm without transA, or a MatMul with a constant matrix on the right.
    """
    count = int(np.prod(made[2:] if node.op == "Conv" else made[1:-1]))
    if count <= most:
        return np.tile(np.arange(count), (made[0], 1))
    return np.stack([random.choice(count, most, replace=False) for _ in range(made[0])])


def made_rows(node: Node, made: Array, places: Int64) -> Float32:
    """What an operator made at some places: [rows, channels]."""
    channels_last = np.moveaxis(made, 1, -1) if node.op == "Conv" else made
    whole = channels_last.reshape(len(made), -1, channels_last.shape[-1])
    return np.asarray(np.take_along_axis(whole, places[:, :, None], 1), np.float32).reshape(-1, whole.shape[2])


def read_rows(
    node: Node, read: Array, made: Sequence[int], kernel: Sequence[int], places: Int64
) -> tuple[Float32, ...]:
    """What is summed up at some places, for each group: [rows, values that the weights of one channel multiply].

    `made` is the shape of the output, `kernel` the lengths of a convolution's windows, empty for a product.
    """
    if node.op != "Conv":
        return (made_rows(node, read, places),)
    outer = tuple(made[2:])
    samples = np.repeat(np.arange(len(read)), places.shape[1])
    windows = np.moveaxis(_windows(node, read, outer, kernel), 1, len(outer) + 1)
    taken = windows[(samples, *np.unravel_index(places.reshape(-1), outer))]  # [rows, channels, *kernel]
    groups = groups_of(node)
    rows = np.asarray(taken, np.float32).reshape(len(samples), groups, -1)
    return tuple(np.ascontiguousarray(rows[:, group]) for group in range(groups))


def _windows(node: Node, read: Array, outer: Sequence[int], kernel: Sequence[int]) -> Array:
    """A view of the padded input: [samples, channels, *outer, *kernel]."""
    rank = len(outer)
    strides, dilations = (_numbers(node, name, [1] * rank) for name in ("strides", "dilations"))
    wide = [step * (size - 1) + 1 for step, size in zip(dilations, kernel, strict=True)]
    pads = _pads(node, read.shape[2:], outer, wide, strides)
    padded = np.pad(read, [(0, 0), (0, 0), *pads])
    windows = np.lib.stride_tricks.sliding_window_view(padded, tuple(wide), axis=tuple(range(2, 2 + rank)))
    steps = tuple(slice(0, (size - 1) * step + 1, step) for size, step in zip(outer, strides, strict=True))
    return windows[(slice(None), slice(None), *steps, *(slice(None, None, step) for step in dilations))]


def _pads(
    node: Node, sizes: Sequence[int], outer: Sequence[int], wide: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """Zeros before and after each axis."""
    rank, how = len(outer), str(attribute(node, "auto_pad", "NOTSET"))
    if how in ("NOTSET", "VALID"):
        given = _numbers(node, "pads", [0] * (2 * rank)) if how == "NOTSET" else [0] * (2 * rank)
        return list(zip(given[:rank], given[rank:], strict=True))
    whole = [
        max((after - 1) * step + window - size, 0)
        for after, step, window, size in zip(outer, strides, wide, sizes, strict=True)
    ]
    less = [(total // 2, total - total // 2) for total in whole]
    return less if how == "SAME_UPPER" else [(behind, before) for before, behind in less]


def _numbers(node: Node, name: str, default: list[int]) -> list[int]:
    found = attribute(node, name, None)
    return default if found is None else [int(one) for one in found]  # type: ignore[attr-defined]
