# SPDX-License-Identifier: Apache-2.0
"""What is known of each tensor and each weight: scale, where it comes from, what is clipped, how much is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.amax.histogram import Histogram
from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import is_product, output_axis, pair_behind, weight_index
from qdqtool.match.plan import Plan
from qdqtool.measures import Measure
from qdqtool.passes.quant_params import pair_format
from qdqtool.scales import Scale, ScaleTable

_ROUNDED = 2.0**-22  # relative: a clipping value may be a last place less than the value that it was taken of


@dataclass(frozen=True)
class TensorRow:
    """One activation.

    Attributes:
        tensor: its name in the plain model.
        made_by: operator that makes it, "input" for what the model is given.
        scale: None where it has none.
        paired: whether a Q/DQ pair stands on it.
        reason: why it has a pair, or why it has no scale.
        histogram: of its values on the data; None without.
        sqnr: in dB against the float model on the data; None without.
    """

    tensor: str
    made_by: str
    scale: Scale | None
    paired: bool
    reason: str
    histogram: Histogram | None = None
    sqnr: float | None = None

    @property
    def amax(self) -> float | None:
        """The clipping value."""
        return None if self.scale is None else self.scale.amax

    @property
    def clipped(self) -> float | None:
        """The share of finite values beyond the clipping value, to a bin of the histogram."""
        if self.amax is None or self.histogram is None or not self.histogram.finite:
            return None
        counts, width = self.histogram.folded()
        first = int(min(np.ceil(self.amax * (1 + _ROUNDED) / width), len(counts)))
        return float(counts[first:].sum()) / self.histogram.finite


@dataclass(frozen=True)
class WeightRow:
    """One weight of a product.

    Attributes:
        weight: its name.
        reader: the node that multiplies with it.
        op: the node's operator.
        largest: float32[channels], the largest magnitude of each output channel.
        format: title of the format that it is quantized to; "" of a float weight.
    """

    weight: str
    reader: str
    op: str
    largest: npt.NDArray[np.float32]
    format: str

    @property
    def ratio(self) -> float:
        """The largest channel over the smallest one that is not zero."""
        alive = self.largest[self.largest > 0]
        return float(alive.max()) / float(alive.min()) if alive.size else 1.0


def tensor_rows(
    view: GraphView,
    pairs: Mapping[str, Scale],
    table: ScaleTable,
    plan: Plan,
    histograms: Mapping[str, Histogram],
    measures: Mapping[str, Measure],
) -> list[TensorRow]:
    """The activations that have a pair, a scale in the table, or a histogram, in the order of the graph."""
    reasons = {point.tensor: point.format_reason() for point in plan.activations}
    made = {name: node.op.rpartition("::")[2] for node in view.nodes for name in node.outputs if name}
    known = [name for name in (*view.inputs, *made) if name in pairs or name in table or name in histograms]
    ordered = dict.fromkeys([*known, *pairs])
    return [
        TensorRow(
            name,
            made.get(name, "input"),
            pairs.get(name) or table.get(name),
            name in pairs,
            reasons.get(name, "") if name in pairs else table.unscaled.get(name, ""),
            histograms.get(name),
            measures[name].sqnr if name in measures else None,
        )
        for name in ordered
    ]


def weight_rows(view: GraphView) -> list[WeightRow]:
    """The largest magnitude in each output channel of every weight that a product reads, in the order of the graph."""
    rows = []
    for node in view.nodes:
        index = weight_index(view, node) if is_product(node) else None
        if index is None:
            continue
        array = view.array(node.inputs[index])
        if array is None or array.ndim < 2 or not array.size or array.dtype.kind != "f":
            continue
        name = view.root(node.inputs[index])
        axis = output_axis(node, index, array.ndim)
        others = tuple(one for one in range(array.ndim) if one != axis)
        values = np.asarray(array, np.float32)
        largest: npt.NDArray[np.float32] = np.maximum(values.max(axis=others), -values.min(axis=others))
        pair = pair_behind(view, node.inputs[index]) or next(iter(view.pairs.get(name, ())), None)
        kind = "" if pair is None else pair_format(view, pair).title
        rows.append(WeightRow(name, node.name, node.op, largest, kind))
    return rows


def scales_by_origin(rows: Sequence[TensorRow]) -> dict[str, int]:
    """Where the scales of pairs come from -> how many do."""
    counts: dict[str, int] = {}
    for row in rows:
        if row.paired and row.scale is not None:
            source = row.scale.method if row.scale.origin == "qdq" else row.scale.source()
            counts[source or "the file"] = counts.get(source or "the file", 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
