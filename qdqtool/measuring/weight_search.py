# SPDX-License-Identifier: Apache-2.0
"""Scales of a weight's blocks, chosen by what their rounding does to the product, from second moments of its input.

One walk over the data counts x x' of each block of values that a product sums over; what is held does not grow with the
samples. Errors do not travel from one product to the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qdqtool.amax.weight_blocks import Moments
from qdqtool.decisions import Provenance
from qdqtool.errors import QdqError
from qdqtool.graph.view import attribute
from qdqtool.match.plan import Plan, Point
from qdqtool.observers.collect import tasks_of
from qdqtool.passes.insert import block_layout, block_weight
from qdqtool.progress import bar
from qdqtool.runtime.activations import ObservableModel, OrtActivations
from qdqtool.runtime.staged_activations import StagedActivations
from qdqtool.scales import Scale, ScaleTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qdqtool.data.loader import Batch

METHOD = "clip search"


@dataclass(frozen=True, order=True)
class ProductInput:
    """What a product reads: a tensor, whether its rows are its last axis, and the length of the blocks of a row."""

    tensor: str
    turned: bool
    block: int


def counted_moments(
    model: ObservableModel, loader: Iterable[Batch], plan: Plan, *, progress: bool | None = None
) -> tuple[dict[ProductInput, Moments], int]:
    """The second moments of what each product of a plan reads, and the number of samples.

    Raises:
        QdqError: no samples, NaN or Inf in what a product reads, what `OrtActivations` refuses.
    """
    wanted: dict[str, set[ProductInput]] = {}
    for point in plan.weights:
        for one in inputs_of_point(model, point):
            wanted.setdefault(one.tensor, set()).add(one)
    names = model.chosen(wanted)
    found: dict[ProductInput, Moments] = {}
    samples = 0
    activations = StagedActivations.of(model, names) or OrtActivations.of(model, names)
    batches = getattr(loader, "batches", None)
    with bar("calibrate", "batch", batches, progress, 0) as drawn:
        for task in tasks_of(loader):
            batch = task.load()
            samples += task.count
            for name, value in activations.run(batch):
                for one in sorted(wanted[name]):
                    rows = value.T if one.turned else value
                    moments = found.setdefault(one, Moments(rows.shape[-1], one.block))
                    moments.add(np.asarray(rows, np.float32))
                    if not moments.is_finite:
                        reason = "holds NaN or Inf, or values whose squares are beyond float32"
                        raise QdqError(name, reason, "leave that sample out, or look at the weights")
            drawn.advance()
    if not samples:
        raise QdqError("data", "gives no samples", "calibration needs data")
    return found, samples


def inputs_of_point(model: ObservableModel, point: Point) -> list[ProductInput]:
    """What the products of a weight read."""
    nodes = (model.view.producers[read.node] for read in point.reads)
    return [
        ProductInput(model.view.root(node.inputs[0]), bool(attribute(node, "transA", 0)), point.block) for node in nodes
    ]


def tensor_scales(plan: Plan, moments: Mapping[ProductInput, Moments], samples: int) -> ScaleTable:
    """The scale of each activation of a plan with blocks, by its largest magnitude; 1 of one that is all zero."""
    largest: dict[str, np.float32] = {}
    for one, seen in moments.items():
        largest[one.tensor] = max(largest.get(one.tensor, np.float32(0)), seen.largest)
    scales = {
        point.tensor: Scale(
            point.format.scale_of(largest[point.tensor] or point.format.span),
            method="max",
            samples=samples,
            format=point.format,
        )
        for point in plan.activations
    }
    return ScaleTable(scales, provenance=Provenance(method="max", samples=samples))


def search_scales(
    model: ObservableModel, plan: Plan, moments: Mapping[ProductInput, Moments], samples: int
) -> dict[str, Scale]:
    """Scales of each weight of a plan with blocks, at which its products lose least."""
    found: dict[str, Scale] = {}
    for point in plan.weights:
        seen = [moments[one] for one in inputs_of_point(model, point) if one in moments]
        rows = max(sum(one.rows for one in seen), 1)
        mean = np.sum([one.sums for one in seen], axis=0) / rows if seen else None
        weight = block_weight(model.view, point)
        bits, _ = block_layout(point, weight).searched(weight, mean)
        found[point.tensor] = Scale(
            bits, point.axis, "ptq", METHOD, point.rule, samples, format=point.format, block=point.block
        )
    return found
