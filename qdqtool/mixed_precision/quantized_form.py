# SPDX-License-Identifier: Apache-2.0
"""What of a model with pairs decides its loss at the outputs, so that two such models can be known as the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qdqtool.match.plan import Plan, Read
from qdqtool.scales import Scale


@dataclass(frozen=True)
class QuantizedForm:
    """Where pairs stand and their scales: beside the float model and the samples, all that the loss depends on.

    Attributes:
        places: of every point the tensor, the axis of its scales, its number format and the places that read its pair.
        scales: tensor of every activation point -> bytes of its float32 scale.
    """

    places: frozenset[tuple[str, int | None, str, tuple[Read, ...]]]
    scales: Mapping[str, bytes]

    @classmethod
    def of(cls, plan: Plan, scales: Mapping[str, Scale]) -> QuantizedForm:
        """That of a plan and the scales of its activation points."""
        places = frozenset((point.tensor, point.axis, point.format.name, point.reads) for point in plan.points)
        return cls(places, {name: scale.bits.tobytes() for name, scale in scales.items()})
