# SPDX-License-Identifier: Apache-2.0
"""How large and how small the values of each tensor are: from histograms, from a scale table, or assumed.

Nothing is run here, and nothing is decided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from qdqtool.amax.histogram import Histogram
from qdqtool.amax.method_table import row_of_scale
from qdqtool.graph.tensors import BLOCK_BYTES
from qdqtool.graph.view import DEQUANTIZE, GraphView
from qdqtool.scales import ScaleTable

Source = Literal["data", "table", "assumed"]
_REAL = "fiu"
_LEVELS = 255  # of 8 bits; signed ones have half


@dataclass(frozen=True)
class ValueRange:
    """The finite values of one tensor.

    Attributes:
        low: the smallest value, 0 where there is none.
        high: the largest value, likewise.
        mean: mean magnitude; None where it is not known.
        smallest: a lower bound of the magnitudes that are not 0: 0.0 where they lie too close to 0 to tell, None where
            nothing is known.
        clipped: whether the bounds are clipping values, beyond which values may have been seen.
        certain: whether no data can have values beyond the bounds.
        infinite: whether infinities were seen beside the finite values.
        elements: how many values the tensor has for one sample, on average; None where it is not known.
    """

    low: float
    high: float
    mean: float | None = None
    smallest: float | None = None
    clipped: bool = False
    certain: bool = False
    infinite: bool = False
    elements: int | None = None

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(-self.low, self.high, 0.0)


@dataclass(frozen=True)
class ValueRanges:
    """The values of a model's float32 activations.

    Attributes:
        tensors: name -> range; Q/DQ pairs are seen through by whoever asks.
        source: where they come from.
        samples: how many samples were run, 0 where nobody says.
        input_shapes: the shapes of the inputs in a run, which give free axes a length; empty where nothing was run.
        assumed: what a tensor has that is not listed; None where that is not known.
        derived: tensors of a rewritten model whose range is a bound that follows from the range of another tensor.
    """

    tensors: Mapping[str, ValueRange] = field(default_factory=dict)
    source: Source = "data"
    samples: int = 0
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    assumed: ValueRange | None = None
    derived: frozenset[str] = frozenset()

    def of(self, view: GraphView, name: str) -> ValueRange | None:
        """The range of a tensor under the name by which it is read; None where it is not known.

        Rounding to a grid moves a value by half a step at most, which any margin covers.
        """
        found = self.tensors.get(name)
        return found or self.tensors.get(view.root(name)) or self.assumed


def range_of_histogram(histogram: Histogram, samples: int = 0) -> ValueRange:
    """The range that a histogram shows; what lies inside one of its bins is taken as evenly spread."""
    elements = -(-histogram.count // samples) if samples else None
    if not histogram.finite:
        return ValueRange(0.0, 0.0, infinite=histogram.has_inf, elements=elements)
    counts, width = histogram.folded()
    values = int(counts.sum())
    if not values:
        return ValueRange(histogram.low, histogram.high, 0.0, math.inf, elements=elements)
    mean = float(np.dot(counts, np.arange(counts.size) + 0.5)) * width / (values + histogram.zeros)
    smallest = int(np.flatnonzero(counts)[0]) * width
    mean = min(mean, float(histogram.amax))
    return ValueRange(histogram.low, histogram.high, mean, smallest, infinite=histogram.has_inf, elements=elements)


def range_of_constant(view: GraphView, name: str) -> ValueRange | None:
    """The magnitudes of a constant of numbers, the finite ones; None where its values cannot be had.

    It is read in blocks: a weight of gigabytes is never in memory as a whole. Of integers behind a DequantizeLinear the
    largest is what their scale allows, and nothing is read.
    """
    maker = view.producers.get(name)
    if maker is not None and maker.op == DEQUANTIZE:
        scale = view.array(maker.inputs[1])
        if scale is None:
            return None
        most = _LEVELS * float(np.abs(scale).max(initial=0.0))
        return ValueRange(-most, most, smallest=0.0)
    array = view.array(name)
    if array is None or array.dtype.kind not in _REAL:
        return None
    flat, largest, smallest = array.reshape(-1), 0.0, math.inf
    step = max(1, BLOCK_BYTES // max(1, array.itemsize))
    for start in range(0, flat.size, step):
        block = np.abs(flat[start : start + step].astype(np.float32, copy=False))
        block = block[np.isfinite(block)]
        largest = max(largest, float(block.max(initial=0.0)))
        smallest = min(smallest, float(block[block > 0].min(initial=np.inf)))
    return ValueRange(-largest, largest, smallest=smallest)


def ranges_of_table(table: ScaleTable) -> ValueRanges:
    """The ranges that a scale table tells: the largest value that was seen, where it keeps it.

    Of a tensor without it, a scale of a method that keeps the range (`max`) says the same; any other is a clipping
    value. What an activation cuts off (`observers/pre_activation.py`) is not in the table: it takes the values that
    get through, since an overflow below 0 is cut off, too.
    """
    found = {}
    for name, scale in table.scales.items():
        seen = table.largest.get(scale.method.removeprefix("as ")) if scale.origin == "derived" else None
        amax = scale.amax if seen is None else seen
        row = row_of_scale(scale.method)
        found[name] = ValueRange(-amax, amax, clipped=seen is None and not (row is not None and row.keeps_range))
    found.update((name, ValueRange(0.0, 0.0)) for name in table.all_zero)
    found.update((name, ValueRange(-value, value)) for name, value in table.largest.items())
    return ValueRanges(found, "table", table.provenance.samples)


def assumed_ranges(largest: float) -> ValueRanges:
    """Ranges that somebody vouches for: no value of any activation beyond `largest`."""
    return ValueRanges(source="assumed", assumed=ValueRange(-largest, largest))
