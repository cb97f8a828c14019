# SPDX-License-Identifier: Apache-2.0
"""The cells of feature maps: how many there are and where each lies in the input. No boxes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from qdqtool.evaluation.nms import Float64

Size = tuple[int, int]
STRIDES = (8, 16, 32)
STRIDE_SETS = (STRIDES, (8, 16, 32, 64), (16, 32), (16, 32, 64), (32,), (16,), (8,))


def map_size(size: Size, stride: int) -> Size:
    """Columns and rows of the map of a stride; a part of a cell is a cell, as padded convolutions make it."""
    return -(-size[0] // stride), -(-size[1] // stride)


def cell_count(size: Size, strides: Sequence[int]) -> int:
    """Cells of all maps together."""
    return sum(columns * rows for columns, rows in (map_size(size, stride) for stride in strides))


def strides_of(count: int, size: Size, each: int = 1) -> tuple[int, ...]:
    """The strides whose maps have `count` rows of output together, `each` to a cell; () where none of the usual do."""
    return next((strides for strides in STRIDE_SETS if cell_count(size, strides) * each == count), ())


def cells(columns: int, rows: int) -> Float64:
    """Column and row of every cell, row by row: float64 (rows * columns, 2)."""
    down, across = np.mgrid[:rows, :columns]
    return np.stack((across.ravel(), down.ravel()), -1).astype(np.float64)


def all_cells(size: Size, strides: Sequence[int]) -> tuple[Float64, npt.NDArray[np.float64]]:
    """Every cell of maps behind one another and the stride of each: (N, 2), (N, 1)."""
    grids = [cells(*map_size(size, stride)) for stride in strides]
    steps = [np.full((len(grid), 1), float(stride)) for grid, stride in zip(grids, strides, strict=True)]
    return np.concatenate(grids), np.concatenate(steps)
