# SPDX-License-Identifier: Apache-2.0
"""Where the windows of convolutions and pools lie: attributes and auto_pad made into numbers, axis by axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.autodiff.rules.vjp_context import VjpContext

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Windows:
    """Windows over spatial axes; window o of an axis has its taps at o * stride - begin + tap * dilation.

    Attributes:
        kernel: taps.
        strides: places between windows.
        dilations: places between taps.
        begins: zeros before the first place.
        ends: zeros after the last place; ceil_mode may reach after them.
    """

    kernel: Numbers
    strides: Numbers
    dilations: Numbers
    begins: Numbers
    ends: Numbers

    @property
    def spans(self) -> Numbers:
        """Places from the first tap to the last one, both counted."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def pointwise(self) -> bool:
        """Whether each window is one place, and each place one window."""
        return not any(k != 1 or s != 1 or b or e for k, s, b, e in self._rows())

    def _rows(self) -> zip[tuple[int, int, int, int]]:
        return zip(self.kernel, self.strides, self.begins, self.ends, strict=True)

    def reach(self, counts: Sequence[int]) -> Numbers:
        """Places from the first tap of the first of `counts` windows to the last tap of the last one."""
        return tuple((n - 1) * s + span for n, s, span in zip(counts, self.strides, self.spans, strict=True))


def windows_of(site: VjpContext, kernel: Sequence[int], large: Sequence[int], small: Sequence[int]) -> Windows:
    """The windows of a node."""
    rank = len(kernel)
    strides = tuple(site.get("strides", (1,) * rank))
    dilations = tuple(site.get("dilations", (1,) * rank))
    pads = tuple(site.get("pads", (0,) * (2 * rank)))
    plain = Windows(tuple(kernel), strides, dilations, pads[:rank], pads[rank:])
    auto = site.get("auto_pad", "NOTSET")
    if auto == "VALID":
        return Windows(plain.kernel, strides, dilations, (0,) * rank, (0,) * rank)
    if not auto.startswith("SAME"):
        return plain
    totals = [max(0, reach - size) for reach, size in zip(plain.reach(small), large, strict=True)]
    less, more = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    begins, ends = (less, more) if auto == "SAME_UPPER" else (more, less)
    return Windows(plain.kernel, strides, dilations, begins, ends)


def averages(windows: Windows, axis: int, large: int, small: int, padding_counts: bool) -> npt.NDArray[np.float32]:
    """An average over windows along one axis as a matrix [places, windows].

    Args:
        windows: where they lie.
        axis: which spatial axis.
        large: places.
        small: windows.
        padding_counts: whether a zero of the padding counts as a number; what is after it never does.
    """
    step, begin, dilation = windows.strides[axis], windows.begins[axis], windows.dilations[axis]
    starts = np.arange(small)[:, None] * step - begin
    places = starts + np.arange(windows.kernel[axis]) * dilation
    inside = (places >= 0) & (places < large)
    counted = inside
    if padding_counts:
        counted = (places >= -begin) & (places < large + windows.ends[axis])
    matrix = np.zeros((large, small), np.float64)
    rows = np.broadcast_to(np.arange(small)[:, None], places.shape)
    np.add.at(matrix, (places[inside], rows[inside]), 1.0)
    result: npt.NDArray[np.float32] = (matrix / np.maximum(counted.sum(axis=1), 1)).astype(np.float32)
    return result
